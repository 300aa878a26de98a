//! Which loops a run of tile ops becomes.
//!
//! Dims of tiles that must be walked together are one *axis* (found by unification over the ops). For the effects that
//! share a nest: an axis that no reduction folds is *parallel* and becomes an outer loop, an axis that one folds is *staged*. Ops
//! after a reduction belong to the next *stage*: for each step of the parallel loops the stages run one after another, each
//! a loop over the staged axes. A value of an early stage that a later one needs is read or computed again where that is cheap,
//! and kept in scratch otherwise.

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Access, Index, Inst, Op, UnaryOp, Val};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Def, Select, slot};
use crate::emit::lane_bytes;

pub type Axis = usize;

/// What a run must bring about.
#[derive(Clone, Copy, Debug)]
pub enum Sink<'p> {
    Effect(&'p Inst),
    /// A value that must exist after the run.
    Keep(Val),
}

/// The loops for some sinks.
#[derive(Debug)]
pub struct Nest<'p> {
    pub sinks: Vec<Sink<'p>>,
    pub parallel: Vec<Axis>,
    pub staged: Vec<Axis>,
    pub vector: Option<Axis>,
    pub lanes: u32,
    pub stages: usize,
    /// Stage of every reachable value.
    pub stage: FxHashMap<Val, usize>,
    /// The axes along which a value really changes.
    pub varies: FxHashMap<Val, Vec<Axis>>,
    /// Reductions by the stage that accumulates them.
    pub reductions: Vec<Vec<Val>>,
    /// Values kept in scratch between stages, by the stage that computes them.
    pub saved: Vec<Vec<Val>>,
    /// Rough count of vector ops in each stage.
    pub cost: Vec<usize>,
    /// Loads of what a sink of this nest writes: they come before all of its sinks.
    pub updated: Vec<Val>,
}

/// Axes of every dim of every tile in a run.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    parent: Vec<usize>,
    first: FxHashMap<Key, (usize, usize)>,
    pub extent: Vec<i64>,
}

/// What has dims: a value, or the window of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Val(usize),
    Effect(usize),
    /// Where a value stays between the stages of a nest.
    Scratch(usize),
    /// Where a value stays between nests.
    Kept(usize),
}

pub fn effect_key(inst: &Inst) -> Key {
    Key::Effect(std::ptr::from_ref(inst) as usize)
}

impl Axes {
    fn dims(&mut self, key: Key, shape: &[i64]) -> usize {
        if let Some(&(at, _)) = self.first.get(&key) {
            return at;
        }
        let at = self.parent.len();
        self.parent.extend(at..at + shape.len());
        self.extent.extend_from_slice(shape);
        self.first.insert(key, (at, shape.len()));
        at
    }

    fn find(&self, mut n: usize) -> usize {
        while self.parent[n] != n {
            n = self.parent[n];
        }
        n
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b && self.extent[a] == self.extent[b] && self.extent[a] > 1 {
            self.parent[a.max(b)] = a.min(b);
        }
    }

    /// The same dim of tiles of the same rank and extent walked together even where no op asks for it, so that tiles which
    /// meet only through a reduction share their loops. `None` where that would give one tile an axis twice.
    fn aligned(&self) -> Option<Axes> {
        let mut out = self.clone();
        let mut keys: Vec<(usize, usize)> = self.first.values().copied().collect();
        keys.sort_unstable();
        let mut seen: FxHashMap<(usize, usize, i64), usize> = FxHashMap::default();
        for &(at, rank) in &keys {
            for d in 0..rank {
                let first = *seen.entry((rank, d, self.extent[at + d])).or_insert(at + d);
                out.join(first, at + d);
            }
        }
        for (at, rank) in keys {
            let mut mine: Vec<usize> = (0..rank)
                .map(|d| out.find(at + d))
                .filter(|r| out.extent[*r] > 1)
                .collect();
            let count = mine.len();
            mine.sort_unstable();
            mine.dedup();
            if mine.len() != count {
                return None;
            }
        }
        Some(out)
    }

    /// The axis of a dim; `None` where its extent is 1.
    pub fn of(&self, key: Key, dim: usize) -> Option<Axis> {
        let root = self.find(self.first.get(&key)?.0 + dim);
        (self.extent[root] > 1).then_some(root)
    }

    pub fn all(&self, key: Key, rank: usize) -> Vec<Axis> {
        (0..rank).filter_map(|d| self.of(key, d)).collect()
    }
}

/// The operands of a tile op that are themselves evaluated element by element.
pub fn operands(op: &Op) -> Vec<Val> {
    match op {
        Op::Load { mask, .. } => mask.iter().copied().collect(),
        Op::Store { value, mask, .. } => std::iter::once(*value).chain(*mask).collect(),
        Op::Gather { index, mask, .. } => std::iter::once(*index).chain(*mask).collect(),
        Op::Scatter {
            index, value, mask, ..
        }
        | Op::Atomic {
            index, value, mask, ..
        } => [*index, *value].into_iter().chain(*mask).collect(),
        Op::Splat { .. } | Op::Iota { .. } => Vec::new(),
        other => other.args(),
    }
}

impl<'p> Select<'p, '_> {
    /// Executes everything that waits, and makes `keep` outlive the run.
    pub fn flush(&mut self, keep: &[Val]) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let mut sinks: Vec<Sink<'p>> = pending.into_iter().map(Sink::Effect).collect();
        sinks.extend(
            keep.iter()
                .filter(|v| matches!(self.defs.get(v), Some(Def::Lazy(_))))
                .map(|&v| Sink::Keep(v)),
        );
        if sinks.is_empty() {
            return Ok(());
        }
        let roots: Vec<Val> = sinks.iter().flat_map(|s| self.sink_roots(s)).collect();
        self.settle_products(&roots)?;
        let mut axes = Axes::default();
        let mut seen = FxHashSet::default();
        for sink in &sinks {
            self.unify_sink(&mut axes, &mut seen, sink)?;
        }
        let aligned = axes.aligned();
        let axes = aligned.as_ref().unwrap_or(&axes);
        for nest in self.nests(axes, sinks)? {
            self.turn(axes, &nest)?;
            self.emit_nest(axes, nest)?;
        }
        Ok(())
    }

    fn unify_sink(
        &self,
        axes: &mut Axes,
        seen: &mut FxHashSet<Val>,
        sink: &Sink<'p>,
    ) -> Result<()> {
        match sink {
            Sink::Keep(v) => self.unify(axes, seen, *v),
            Sink::Effect(inst) => {
                let args = operands(&inst.op);
                let shape = match &inst.op {
                    Op::Store { access, .. } => access.shape.clone(),
                    _ => self.tile_of(args[0])?.shape.clone(),
                };
                let me = axes.dims(effect_key(inst), &shape);
                for v in args {
                    self.unify(axes, seen, v)?;
                    self.unify_same(axes, me, v, shape.len())?;
                }
                Ok(())
            }
        }
    }

    fn unify_same(&self, axes: &mut Axes, me: usize, v: Val, rank: usize) -> Result<()> {
        let shape = &self.tile_of(v)?.shape;
        if shape.len() == rank {
            let other = axes.dims(Key::Val(slot(v)), shape);
            (0..rank).for_each(|d| axes.join(me + d, other + d));
        }
        Ok(())
    }

    fn unify(&self, axes: &mut Axes, seen: &mut FxHashSet<Val>, v: Val) -> Result<()> {
        if !seen.insert(v) {
            return Ok(());
        }
        let ty = self.tile_of(v)?;
        let rank = ty.shape.len();
        let me = axes.dims(Key::Val(slot(v)), &ty.shape);
        let Some(Def::Lazy(inst)) = self.defs.get(&v) else {
            return Ok(());
        };
        let args = operands(&inst.op);
        for &a in &args {
            self.unify(axes, seen, a)?;
        }
        match &inst.op {
            Op::Permute { value, perm } => {
                let other = axes.dims(Key::Val(slot(*value)), &self.tile_of(*value)?.shape);
                perm.iter()
                    .enumerate()
                    .for_each(|(d, &p)| axes.join(me + d, other + p as usize));
            }
            Op::Reshape { value } => {
                let from = &self.tile_of(*value)?.shape;
                let dims = |s: &[i64]| {
                    s.iter()
                        .enumerate()
                        .filter(|(_, n)| **n > 1)
                        .map(|(d, n)| (d, *n))
                        .collect::<Vec<_>>()
                };
                let (a, b) = (dims(&ty.shape), dims(from));
                ensure!(
                    a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| x.1 == y.1),
                    NoLowering,
                    "x86 has no code for the reshape of {from:?} to {:?}",
                    ty.shape
                );
                let other = axes.dims(Key::Val(slot(*value)), from);
                a.iter()
                    .zip(&b)
                    .for_each(|(x, y)| axes.join(me + x.0, other + y.0));
            }
            _ => {
                for a in args {
                    self.unify_same(axes, me, a, rank)?;
                }
            }
        }
        Ok(())
    }

    /// The axes a reduction folds.
    pub fn folded(&self, axes: &Axes, v: Val) -> Vec<Axis> {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Reduce {
                    value, axes: dims, ..
                },
                ..
            })) => dims
                .iter()
                .filter_map(|&d| axes.of(Key::Val(slot(*value)), d as usize))
                .collect(),
            Some(Def::Lazy(Inst {
                op: Op::ArgReduce { value, axis, .. },
                ..
            })) => axes
                .of(Key::Val(slot(*value)), *axis as usize)
                .into_iter()
                .collect(),
            _ => Vec::new(),
        }
    }

    fn reach(&self, v: Val, seen: &mut FxHashSet<Val>, order: &mut Vec<Val>) {
        if !seen.insert(v) {
            return;
        }
        if let Some(Def::Lazy(inst)) = self.defs.get(&v) {
            for a in operands(&inst.op) {
                self.reach(a, seen, order);
            }
        }
        order.push(v);
    }

    fn sink_roots(&self, sink: &Sink<'p>) -> Vec<Val> {
        match sink {
            Sink::Keep(v) => vec![*v],
            Sink::Effect(inst) => operands(&inst.op),
        }
    }

    pub fn sink_axes(&self, axes: &Axes, sink: &Sink<'p>) -> Vec<Axis> {
        match sink {
            Sink::Keep(v) => axes.all(
                Key::Val(slot(*v)),
                self.tile_of(*v).map_or(0, |t| t.shape.len()),
            ),
            Sink::Effect(inst) => {
                let rank = match &inst.op {
                    Op::Store { access, .. } => access.shape.len(),
                    other => operands(other)
                        .first()
                        .and_then(|v| self.tile_of(*v).ok())
                        .map_or(0, |t| t.shape.len()),
                };
                axes.all(effect_key(inst), rank)
            }
        }
    }

    /// Groups sinks, in order, into nests of equal parallel axes, as far as loops over those serve all of them.
    fn nests(&self, axes: &Axes, sinks: Vec<Sink<'p>>) -> Result<Vec<Nest<'p>>> {
        let mut nests: Vec<Nest<'p>> = Vec::new();
        for sink in sinks {
            let mut order = Vec::new();
            let mut seen = FxHashSet::default();
            for v in self.sink_roots(&sink) {
                self.reach(v, &mut seen, &mut order);
            }
            let folded: FxHashSet<Axis> =
                order.iter().flat_map(|v| self.folded(axes, *v)).collect();
            let mine: Vec<Axis> = self
                .sink_axes(axes, &sink)
                .into_iter()
                .filter(|a| !folded.contains(a))
                .collect();
            let joined = nests.last().and_then(|nest| {
                let within = |x: &Axis| mine.contains(x);
                let joins = nest.parallel == mine
                    || (!nest.parallel.is_empty() && nest.parallel.iter().all(within));
                let all = nest.sinks.iter().copied().chain([sink]).collect();
                joins.then(|| self.plan(axes, all, nest.parallel.clone()).ok())?
            });
            match (nests.last_mut(), joined) {
                (Some(last), Some(joined)) => *last = joined,
                _ => nests.push(self.plan(axes, vec![sink], mine)?),
            }
        }
        self.check_order(&nests)?;
        Ok(nests)
    }

    /// What one nest reads must not have been written by a nest before it: values are computed where they are wanted, and would see it.
    fn check_order(&self, nests: &[Nest<'p>]) -> Result<()> {
        let mut written: FxHashSet<Val> = FxHashSet::default();
        for nest in nests {
            let reads = nest.stage.keys().filter_map(|v| match self.defs.get(v) {
                Some(Def::Lazy(inst)) => match &inst.op {
                    Op::Load { access, .. } => Some(access.mem),
                    Op::Gather { mem, .. } => Some(*mem),
                    _ => None,
                },
                _ => None,
            });
            for mem in reads {
                ensure!(
                    !written.contains(&mem),
                    NoLowering,
                    "x86 has no code for loops that read what loops before them wrote"
                );
            }
            written.extend(nest.sinks.iter().filter_map(written_memory));
        }
        Ok(())
    }

    fn plan(&self, axes: &Axes, sinks: Vec<Sink<'p>>, parallel: Vec<Axis>) -> Result<Nest<'p>> {
        let mut order = Vec::new();
        let mut seen = FxHashSet::default();
        for sink in &sinks {
            for v in self.sink_roots(sink) {
                self.reach(v, &mut seen, &mut order);
            }
        }
        let written: FxHashSet<Val> = sinks.iter().filter_map(written_memory).collect();
        let mut staged: Vec<Axis> = Vec::new();
        let value_axes = order.iter().flat_map(|v| self.value_axes(axes, *v));
        for a in value_axes.chain(sinks.iter().flat_map(|s| self.sink_axes(axes, s))) {
            if !parallel.contains(&a) && !staged.contains(&a) {
                staged.push(a);
            }
        }
        staged.sort_unstable();
        let mut nest = Nest {
            sinks,
            parallel,
            staged,
            vector: None,
            lanes: 0,
            stages: 1,
            stage: FxHashMap::default(),
            varies: FxHashMap::default(),
            reductions: Vec::new(),
            saved: Vec::new(),
            cost: Vec::new(),
            updated: Vec::new(),
        };
        for &v in &order {
            let mut at = 0;
            if let Some(Def::Lazy(inst)) = self.defs.get(&v) {
                if self.check_hazard(&nest, &written, inst)? {
                    nest.updated.push(v);
                }
                at = operands(&inst.op)
                    .iter()
                    .filter_map(|a| nest.stage.get(a))
                    .copied()
                    .max()
                    .unwrap_or(0);
                let folded = self.folded(axes, v);
                if !folded.is_empty() {
                    let Some(&operand) = operands(&inst.op).first() else {
                        continue;
                    };
                    let inner = self.value_axes(axes, operand);
                    ensure!(
                        inner
                            .iter()
                            .all(|a| folded.contains(a) || nest.parallel.contains(a)),
                        NoLowering,
                        "x86 has no code for a reduction that keeps an axis which another one folds"
                    );
                    if nest.reductions.len() <= at {
                        nest.reductions.resize_with(at + 1, Vec::new);
                    }
                    nest.reductions[at].push(v);
                    at += 1;
                }
            }
            nest.stage.insert(v, at);
            let varies = self.variation(axes, &nest, v);
            nest.varies.insert(v, varies);
        }
        nest.stages = 1 + nest.stage.values().copied().max().unwrap_or(0);
        // The loops of a stage run over all staged axes: whatever happens in them must want all.
        for v in nest.reductions.iter().flatten() {
            let folded = self.folded(axes, *v);
            ensure!(
                nest.staged.iter().all(|a| folded.contains(a)),
                NoLowering,
                "x86 has no code for reductions over different axes in one nest"
            );
        }
        for sink in &nest.sinks {
            let mine = self.sink_axes(axes, sink);
            let some = nest.staged.iter().any(|a| mine.contains(a));
            ensure!(
                !some || nest.staged.iter().all(|a| mine.contains(a)),
                NoLowering,
                "x86 has no code for an effect along some of the folded axes"
            );
        }
        nest.reductions.resize_with(nest.stages, Vec::new);
        nest.saved.resize_with(nest.stages, Vec::new);
        nest.cost.resize(nest.stages, 0);
        self.choose_vector(axes, &mut nest, &order)?;
        self.plan_scratch(axes, &mut nest, &order, &written)?;
        Ok(nest)
    }

    fn variation(&self, axes: &Axes, nest: &Nest<'p>, v: Val) -> Vec<Axis> {
        let Some(Def::Lazy(inst)) = self.defs.get(&v) else {
            return match self.defs.get(&v) {
                Some(Def::Saved { .. }) => self.value_axes(axes, v),
                _ => Vec::new(),
            };
        };
        let mut out: Vec<Axis> = Vec::new();
        for a in operands(&inst.op) {
            out.extend(nest.varies.get(&a).into_iter().flatten());
        }
        let folded = self.folded(axes, v);
        out.retain(|a| !folded.contains(a));
        let key = Key::Val(slot(v));
        match &inst.op {
            Op::Iota { dim } => out.extend(axes.of(key, *dim as usize)),
            Op::Load { access, .. } => {
                let moving =
                    |d: &usize| access.strides[*d] != Index::Const(0) || access.valid[*d].is_some();
                out.extend(
                    (0..access.shape.len())
                        .filter(moving)
                        .filter_map(|d| axes.of(key, d)),
                );
            }
            _ => {}
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    pub fn value_axes(&self, axes: &Axes, v: Val) -> Vec<Axis> {
        axes.all(
            Key::Val(slot(v)),
            self.tile_of(v).map_or(0, |t| t.shape.len()),
        )
    }

    /// A nest may read what it writes only where each element is read by the iteration that writes it.
    fn check_hazard(&self, nest: &Nest<'p>, written: &FxHashSet<Val>, inst: &Inst) -> Result<bool> {
        match &inst.op {
            Op::Load { access, .. } if written.contains(&access.mem) => {
                let same = nest.sinks.iter().all(|s| match s {
                    Sink::Effect(Inst {
                        op: Op::Store { access: to, .. },
                        ..
                    }) if to.mem == access.mem => to == access,
                    Sink::Effect(i) => written_memory(&Sink::Effect(i)) != Some(access.mem),
                    Sink::Keep(_) => true,
                });
                ensure!(
                    same,
                    NoLowering,
                    "x86 has no code for a window read and another one written in one memory"
                );
                Ok(true)
            }
            Op::Gather { mem, .. } if written.contains(mem) => Err(err!(
                NoLowering,
                "x86 has no code for a gather from a memory that the same loops write"
            )),
            _ => Ok(false),
        }
    }

    /// The axis that most elements are contiguous along, and as many lanes as its widest type allows.
    fn choose_vector(&self, axes: &Axes, nest: &mut Nest<'p>, order: &[Val]) -> Result<()> {
        let mut score: FxHashMap<Axis, i64> = FxHashMap::default();
        let mut note = |key: Key, access: &Access| {
            // What is the same for a whole row is read once a row.
            let elements = access.shape.iter().fold(1i64, |n, &e| n.saturating_mul(e));
            for (d, stride) in access.strides.iter().enumerate() {
                let Some(axis) = axes.of(key, d) else {
                    continue;
                };
                let points = match stride {
                    Index::Const(1) => 8,
                    Index::Const(0) => 0,
                    Index::Const(_) | Index::Val(_) => -2,
                };
                let all = score.entry(axis).or_default();
                *all = all.saturating_add(elements.saturating_mul(points));
            }
        };
        for &v in order {
            if let Some(Def::Lazy(Inst {
                op: Op::Load { access, .. },
                ..
            })) = self.defs.get(&v)
            {
                note(Key::Val(slot(v)), access);
            }
        }
        for sink in &nest.sinks {
            if let Sink::Effect(
                inst @ Inst {
                    op: Op::Store { access, .. },
                    ..
                },
            ) = sink
            {
                note(effect_key(inst), access);
            }
        }
        // Without an opinion, the last axis: the innermost dim of the tiles.
        let all = nest.parallel.iter().chain(&nest.staged).copied();
        let lanes = i64::from(self.e.full_lanes(4));
        nest.vector = all.max_by_key(|a| {
            let points = score.get(a).copied().unwrap_or(0);
            (points, axes.extent[*a].min(lanes), *a)
        });
        // What is stored or folded is handled in the loop's vectors even where it does not vary along them.
        let mut handled: FxHashSet<Val> =
            nest.sinks.iter().flat_map(|s| self.sink_roots(s)).collect();
        for v in nest.reductions.iter().flatten() {
            if let Some(Def::Lazy(inst)) = self.defs.get(v) {
                handled.extend(operands(&inst.op));
            }
        }
        let mut widest = 4;
        for &v in order {
            let dtype = self.dtype(v)?;
            let varies = nest.vector.is_some_and(|a| nest.varies[&v].contains(&a));
            if (varies || handled.contains(&v)) && !dtype.is_bool() {
                widest = widest.max(lane_bytes(dtype));
            }
        }
        nest.lanes = self.e.full_lanes(widest);
        Ok(())
    }

    /// Which values are kept between stages; the others are computed again.
    fn plan_scratch(
        &self,
        axes: &Axes,
        nest: &mut Nest<'p>,
        order: &[Val],
        written: &FxHashSet<Val>,
    ) -> Result<()> {
        const CHEAP: usize = 4;
        let mut weight: FxHashMap<Val, usize> = FxHashMap::default();
        for &v in order {
            let w = match self.defs.get(&v) {
                Some(Def::Lazy(inst)) => match &inst.op {
                    // Once written, it cannot be read again.
                    Op::Load { access, .. } if written.contains(&access.mem) => 1000,
                    Op::Reduce { .. } | Op::ArgReduce { .. } => 0,
                    op => {
                        own_cost(op)
                            + operands(op)
                                .iter()
                                .filter_map(|a| weight.get(a))
                                .sum::<usize>()
                    }
                },
                _ => 1,
            };
            let varies = nest.varies[&v].iter().any(|a| nest.staged.contains(a));
            weight.insert(v, if varies { w.min(1000) } else { 0 });
        }
        // Last stage in which each value is wanted, found from users to operands.
        let mut wanted: FxHashMap<Val, usize> = FxHashMap::default();
        for sink in &nest.sinks {
            let roots = self.sink_roots(sink);
            let at = roots
                .iter()
                .filter_map(|v| nest.stage.get(v))
                .copied()
                .max()
                .unwrap_or(0);
            for v in roots {
                let w = wanted.entry(v).or_default();
                *w = (*w).max(at);
            }
        }
        for &v in order.iter().rev() {
            let own = nest.stage[&v];
            let mut until = wanted.get(&v).copied().unwrap_or(own);
            let dtype_ok = self.dtype(v).is_ok_and(|d| !d.is_bool())
                && nest.vector.is_some_and(|a| nest.varies[&v].contains(&a));
            let fold = !self.folded(axes, v).is_empty();
            if fold {
                until = own - 1;
            } else if until > own && weight[&v] > CHEAP && dtype_ok {
                nest.saved[own].push(v);
                until = own;
            }
            if until > own && nest.updated.contains(&v) {
                self.check_again(nest, v, until)?;
            }
            nest.cost[own.min(until)] += usize::from(weight[&v] > 0);
            if let Some(Def::Lazy(inst)) = self.defs.get(&v) {
                for a in operands(&inst.op) {
                    let w = wanted.entry(a).or_default();
                    *w = (*w).max(until);
                }
            }
        }
        Ok(())
    }

    /// A load that is made again in a later stage must still find what it found.
    fn check_again(&self, nest: &Nest<'p>, v: Val, until: usize) -> Result<()> {
        let Some(Def::Lazy(Inst {
            op: Op::Load { access, .. },
            ..
        })) = self.defs.get(&v)
        else {
            return Ok(());
        };
        let gone = nest.sinks.iter().any(|sink| {
            let roots = self.sink_roots(sink);
            let at = roots.iter().filter_map(|v| nest.stage.get(v)).max();
            written_memory(sink) == Some(access.mem) && at.copied().unwrap_or(0) < until
        });
        ensure!(
            !gone,
            NoLowering,
            "x86 has no code for a window that is read again after it was written"
        );
        Ok(())
    }

    /// The loads of what these sinks write that a sink after the first wants; of the others, each comes before its own store anyway.
    pub fn read_ahead(&self, nest: &Nest<'p>, stage: usize, sinks: &[Sink<'p>]) -> Vec<Val> {
        let mut ahead = Vec::new();
        if nest.updated.is_empty() {
            return ahead;
        }
        let mut seen = FxHashSet::default();
        let mut open: Vec<Val> = (sinks.iter().skip(1))
            .flat_map(|sink| self.sink_roots(sink))
            .collect();
        while let Some(v) = open.pop() {
            // What an earlier stage made is not loaded in this one.
            let earlier = |lists: &[Vec<Val>]| lists[..stage].iter().any(|list| list.contains(&v));
            if !seen.insert(v) || earlier(&nest.reductions) || earlier(&nest.saved) {
                continue;
            }
            if nest.updated.contains(&v) {
                ahead.push(v);
            } else if let Some(Def::Lazy(inst)) = self.defs.get(&v) {
                open.extend(operands(&inst.op));
            }
        }
        ahead
    }
}

fn own_cost(op: &Op) -> usize {
    match op {
        Op::Broadcast { .. }
        | Op::Splat { .. }
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::ConvertLayout { .. } => 0,
        Op::Unary {
            op: UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip,
            ..
        } => 6,
        Op::Gather { .. } => 8,
        _ => 1,
    }
}

fn written_memory(sink: &Sink<'_>) -> Option<Val> {
    match sink {
        Sink::Effect(inst) => match &inst.op {
            Op::Store { access, .. } => Some(access.mem),
            Op::Scatter { mem, .. } | Op::Atomic { mem, .. } => Some(*mem),
            _ => None,
        },
        Sink::Keep(_) => None,
    }
}
