//! Which loops a run of tile ops becomes.
//!
//! Dims of tiles that must be walked together are one *axis* (found by unification over the ops). For the effects that
//! share a nest: an axis that no reduction folds is *parallel* and becomes an outer loop, an axis that one folds is *staged*. Ops
//! after a reduction belong to the next *stage*: for each step of the parallel loops the stages run one after another, each
//! a loop over the staged axes. A value of an early stage that a later one needs is read or computed again where that is cheap,
//! and kept in scratch otherwise.

use std::collections::VecDeque;

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Access, CacheHint, Index, Inst, Op, UnaryOp, Val};
use rustc_hash::{FxHashMap, FxHashSet};

use super::values::{Marks, Operands, Values, operands};
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

impl Sink<'_> {
    /// The tiles whose elements it wants.
    pub fn roots(&self) -> Operands {
        match self {
            Sink::Keep(v) => Operands::one(*v),
            Sink::Effect(inst) => operands(&inst.op),
        }
    }
}

/// What a nest knows of a value.
#[derive(Clone, Copy, Debug)]
pub struct Fact {
    stage: usize,
    /// The last stage that computes or reads it again.
    last: usize,
    /// The axes along which the value really changes, as bits by their place in the nest's list.
    varies: u64,
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
    /// Of every reachable value.
    pub facts: Values<Fact>,
    /// The parallel axes, then the staged ones.
    axes: Vec<Axis>,
    /// Reductions by the stage that accumulates them.
    pub reductions: Vec<Vec<Val>>,
    /// Values kept in scratch between stages, by the stage that computes them.
    pub saved: Vec<Vec<Val>>,
    /// Rough count of vector ops in each stage.
    pub cost: Vec<usize>,
    /// Loads of what a sink of this nest writes: they come before all of its sinks.
    pub updated: Vec<Val>,
}

impl Nest<'_> {
    /// The stage of a value, where the nest reaches it.
    pub fn stage(&self, v: Val) -> Option<usize> {
        self.facts.get(&v).map(|fact| fact.stage)
    }

    /// The last stage in which it is computed, or read again.
    pub fn last_stage(&self, v: Val) -> Option<usize> {
        self.facts.get(&v).map(|fact| fact.last)
    }

    /// Whether a value really changes along an axis.
    pub fn varies(&self, v: Val, axis: Axis) -> bool {
        let bits = self.facts.get(&v).map_or(0, |fact| fact.varies);
        bits & self.bit(axis) != 0
    }

    /// The stage in which a sink's values are all there.
    pub fn sink_stage(&self, sink: &Sink<'_>) -> usize {
        let stages = sink.roots().into_iter().filter_map(|v| self.stage(v));
        stages.max().unwrap_or(0)
    }

    fn bit(&self, axis: Axis) -> u64 {
        let at = self.axes.iter().position(|a| *a == axis);
        at.map_or(0, |at| 1 << at)
    }

    fn bits(&self, axes: impl IntoIterator<Item = Axis>) -> u64 {
        axes.into_iter().fold(0, |bits, a| bits | self.bit(a))
    }
}

/// Most axes of one nest: they are bits of a word.
const MOST_AXES: usize = 64;

/// Axes of every dim of every tile in a run.
#[derive(Clone, Debug, Default)]
pub struct Axes {
    /// Of every dim an earlier one of the same axis, or itself.
    parent: Vec<usize>,
    /// First dim and rank of values, by their number, and of effects.
    values: Vec<Option<(usize, usize)>>,
    effects: FxHashMap<usize, (usize, usize)>,
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
    /// Where a window of a value begins in the next instance.
    Next(usize),
}

pub fn effect_key(inst: &Inst) -> Key {
    Key::Effect(std::ptr::from_ref(inst) as usize)
}

impl Axes {
    fn place(&self, key: Key) -> Option<(usize, usize)> {
        match key {
            Key::Val(at) => self.values.get(at).copied().flatten(),
            Key::Effect(at) => self.effects.get(&at).copied(),
            Key::Scratch(_) | Key::Kept(_) | Key::Next(_) => None,
        }
    }

    fn dims(&mut self, key: Key, shape: &[i64]) -> usize {
        if let Some((at, _)) = self.place(key) {
            return at;
        }
        let at = self.parent.len();
        self.parent.extend(at..at + shape.len());
        self.extent.extend_from_slice(shape);
        let place = (at, shape.len());
        match key {
            Key::Val(v) => {
                if self.values.len() <= v {
                    self.values.resize(v + 1, None);
                }
                self.values[v] = Some(place);
            }
            Key::Effect(e) => {
                self.effects.insert(e, place);
            }
            // Windows in scratch follow the values in them.
            Key::Scratch(_) | Key::Kept(_) | Key::Next(_) => {}
        }
        at
    }

    /// Every dim right below the first of its axis, once all are joined: parents stand before their children.
    fn flatten(&mut self) {
        for n in 0..self.parent.len() {
            self.parent[n] = self.parent[self.parent[n]];
        }
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
        let values = self.values.iter().flatten();
        let mut keys: Vec<(usize, usize)> = values.chain(self.effects.values()).copied().collect();
        keys.sort_unstable();
        let mut seen: FxHashMap<(usize, usize, i64), usize> = FxHashMap::default();
        for &(at, rank) in &keys {
            for d in 0..rank {
                let first = *seen.entry((rank, d, self.extent[at + d])).or_insert(at + d);
                out.join(first, at + d);
            }
        }
        out.flatten();
        let mut mine: Vec<usize> = Vec::new();
        for (at, rank) in keys {
            mine.clear();
            for root in (at..at + rank).map(|dim| out.parent[dim]) {
                if out.extent[root] > 1 {
                    if mine.contains(&root) {
                        return None;
                    }
                    mine.push(root);
                }
            }
        }
        Some(out)
    }

    /// The axis of a dim; `None` where its extent is 1.
    pub fn of(&self, key: Key, dim: usize) -> Option<Axis> {
        let root = self.find(self.place(key)?.0 + dim);
        (self.extent[root] > 1).then_some(root)
    }

    pub fn all(&self, key: Key, rank: usize) -> impl Iterator<Item = Axis> {
        (0..rank).filter_map(move |d| self.of(key, d))
    }
}

impl<'p> Select<'p, '_> {
    /// Executes everything that waits, and makes `keep` outlive the run.
    pub fn flush(&mut self, keep: &[Val]) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let effects: Vec<Sink<'p>> = pending.into_iter().map(Sink::Effect).collect();
        let written: FxHashSet<Val> = effects.iter().filter_map(written_memory).collect();
        let mut before = Vec::new();
        if !written.is_empty() {
            before = self.late_reads(&|mem| written.contains(&mem));
        }
        let lazy = |v: &&Val| matches!(self.defs.get(v), Some(Def::Lazy(_)));
        let after = keep.iter().filter(|v| !before.contains(v)).filter(lazy);
        let after: Vec<Sink<'p>> = after.map(|&v| Sink::Keep(v)).collect();
        let before = before.into_iter().map(Sink::Keep);
        let sinks: Vec<Sink<'p>> = before.chain(effects).chain(after).collect();
        if sinks.is_empty() {
            return Ok(());
        }
        let roots: Vec<Val> = sinks.iter().flat_map(Sink::roots).collect();
        self.settle_products(&roots)?;
        let mut axes = self.axes(&sinks)?;
        let mut nests = self.nests(&axes, &sinks)?;
        let once = self.once_a_row(&axes, &nests);
        if !once.is_empty() {
            self.compute_once(once)?;
            axes = self.axes(&sinks)?;
            nests = self.nests(&axes, &sinks)?;
        }
        self.emit_nests(axes, nests)
    }

    /// Tiles that later code reads and that wait for elements of some memories: what is written there before they are computed would overtake them.
    pub fn late_reads(&self, of: &dyn Fn(Val) -> bool) -> Vec<Val> {
        let waits = |v: &Val| {
            let lazy = matches!(self.defs.get(v), Some(Def::Lazy(_)));
            lazy && self.uses[slot(*v)] > 0 && self.waits_for(&[*v], of)
        };
        let reads = |v: Val| matches!(self.defs.get(&v), Some(Def::Lazy(inst)) if reads(inst, of));
        // Mostly nothing is read where something is written.
        match self.defs.keys().any(reads) {
            true => self.defs.keys().filter(waits).collect(),
            false => Vec::new(),
        }
    }

    /// Whether some tiles are still to be computed from elements of some memories.
    pub fn waits_for(&self, tiles: &[Val], of: &dyn Fn(Val) -> bool) -> bool {
        let mut seen = self.marks();
        let mut order = Vec::new();
        for v in tiles {
            self.reach(*v, &mut seen, &mut order);
        }
        let lazy = order.iter().filter_map(|v| self.defs.get(v));
        lazy.into_iter()
            .any(|def| matches!(def, Def::Lazy(inst) if reads(inst, of)))
    }

    /// Writes nests in order. What one of them keeps is found in scratch by those behind it, which are planned again for it:
    /// a plan knows along which axes values change, and a value in scratch is a place along all of its own.
    pub fn emit_nests(&mut self, mut axes: Axes, nests: Vec<Nest<'p>>) -> Result<()> {
        let mut open: VecDeque<Nest<'p>> = nests.into();
        while let Some(nest) = open.pop_front() {
            let square = self.square_of(&axes, &nest)?;
            self.turn(&axes, &nest, square.map(|square| square.value))?;
            let keeps = (nest.sinks.iter()).any(|sink| matches!(sink, Sink::Keep(_)));
            self.emit_nest(&axes, nest, square)?;
            if keeps && !open.is_empty() {
                let left: Vec<Sink<'p>> = open.iter().flat_map(|nest| nest.sinks.clone()).collect();
                axes = self.axes(&left)?;
                open = self.nests(&axes, &left)?.into();
            }
        }
        Ok(())
    }

    /// The axes of all that some sinks need.
    pub fn axes(&self, sinks: &[Sink<'p>]) -> Result<Axes> {
        let mut axes = Axes::default();
        let mut seen = self.marks();
        for sink in sinks {
            self.unify_sink(&mut axes, &mut seen, sink)?;
        }
        let aligned = axes.aligned();
        axes.flatten();
        Ok(aligned.unwrap_or(axes))
    }

    /// An empty set for the values of the program.
    pub fn marks(&self) -> Marks {
        Marks::new(self.p.values.len())
    }

    fn unify_sink(&self, axes: &mut Axes, seen: &mut Marks, sink: &Sink<'p>) -> Result<()> {
        match sink {
            Sink::Keep(v) => self.unify(axes, seen, *v),
            Sink::Effect(inst) => {
                let args = operands(&inst.op);
                let shape = match &inst.op {
                    Op::Store { access, .. } => &access.shape,
                    _ => &self.tile_of(args[0])?.shape,
                };
                let me = axes.dims(effect_key(inst), shape);
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

    fn unify(&self, axes: &mut Axes, seen: &mut Marks, v: Val) -> Result<()> {
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
        for a in args {
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

    /// A value and all lazy ones below it, operands first.
    pub fn reach(&self, v: Val, seen: &mut Marks, order: &mut Vec<Val>) {
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

    pub fn sink_axes<'x>(
        &self,
        axes: &'x Axes,
        sink: &Sink<'p>,
    ) -> impl Iterator<Item = Axis> + use<'x, 'p> {
        let rank = |v: Val| self.tile_of(v).map_or(0, |t| t.shape.len());
        match sink {
            Sink::Keep(v) => axes.all(Key::Val(slot(*v)), rank(*v)),
            Sink::Effect(inst) => {
                let rank = match &inst.op {
                    Op::Store { access, .. } => access.shape.len(),
                    other => operands(other).first().map_or(0, |&v| rank(v)),
                };
                axes.all(effect_key(inst), rank)
            }
        }
    }

    /// The axes of a sink that no reduction below it folds.
    fn sink_parallel(&self, axes: &Axes, sink: &Sink<'p>, folds: bool) -> Vec<Axis> {
        let mut folded = Vec::new();
        if folds {
            let mut order = Vec::new();
            let mut seen = self.marks();
            for v in sink.roots() {
                self.reach(v, &mut seen, &mut order);
            }
            folded.extend(order.iter().flat_map(|v| self.folded(axes, *v)));
        }
        self.sink_axes(axes, sink)
            .filter(|a| !folded.contains(a))
            .collect()
    }

    /// Groups sinks, in order, into nests of equal parallel axes, as far as loops over those serve all of them.
    pub fn nests(&self, axes: &Axes, sinks: &[Sink<'p>]) -> Result<Vec<Nest<'p>>> {
        let mut order = Vec::new();
        let mut seen = self.marks();
        for v in sinks.iter().flat_map(Sink::roots) {
            self.reach(v, &mut seen, &mut order);
        }
        let folded: Vec<Axis> = (order.iter()).flat_map(|v| self.folded(axes, *v)).collect();
        let mut parallel: Vec<Vec<Axis>> = (sinks.iter())
            .map(|sink| self.sink_parallel(axes, sink, !folded.is_empty()))
            .collect();
        for (mine, _) in (parallel.iter_mut().zip(sinks)).filter(|(_, sink)| self.is_behind(sink)) {
            mine.retain(|axis| !folded.contains(axis));
        }
        let mut nests: Vec<Nest<'p>> = Vec::new();
        let mut at = 0;
        while at < sinks.len() {
            let first = &parallel[at];
            let joins = |mine: &Vec<Axis>| {
                first == mine || (!first.is_empty() && first.iter().all(|x| mine.contains(x)))
            };
            let more = parallel[at + 1..].iter().take_while(|mine| joins(mine));
            let end = at + 1 + more.count();
            // Mostly one nest serves all that may join; where it does not, they join one by one as long as they fit.
            let (nest, taken) = match self.plan(axes, &sinks[at..end], first) {
                Ok(nest) => (nest, end - at),
                Err(_) => self.plan_longest(axes, &sinks[at..end], first)?,
            };
            nests.push(nest);
            at += taken;
        }
        self.check_order(&nests)?;
        Ok(nests)
    }

    /// Whether a sink of a loop may wait for the reductions beside it: a store past the caches, which hardly computes and takes long, is best made bit by bit beside work that computes.
    fn is_behind(&self, sink: &Sink<'p>) -> bool {
        let Sink::Effect(inst) = sink else {
            return false;
        };
        let past = matches!(
            inst.op,
            Op::Store {
                hint: CacheHint::Streaming,
                ..
            }
        );
        past && !self.loops.is_empty()
    }

    /// Brings the stores that may wait to the last stage that reduces, with all that nobody else wants.
    fn put_behind(&self, nest: &mut Nest<'p>, order: &[Val]) {
        let last = nest.reductions.len().saturating_sub(1);
        if last == 0 {
            return;
        }
        let mut wanted = Vec::new();
        let mut seen = self.marks();
        let waits = |sink: &&Sink<'p>| self.is_behind(sink) && nest.sink_stage(sink) == 0;
        let others = nest.sinks.iter().filter(|sink| !waits(sink));
        for v in others.flat_map(Sink::roots) {
            self.reach(v, &mut seen, &mut wanted);
        }
        for v in order.iter().filter(|v| !seen.contains(**v)) {
            if let Some(fact) = nest.facts.get_mut(v) {
                (fact.stage, fact.last) = (last, last);
            }
        }
    }

    /// The nest of the first sinks that fit together, and how many they are.
    fn plan_longest(
        &self,
        axes: &Axes,
        sinks: &[Sink<'p>],
        parallel: &[Axis],
    ) -> Result<(Nest<'p>, usize)> {
        let mut nest = self.plan(axes, &sinks[..1], parallel)?;
        let mut taken = 1;
        while taken < sinks.len()
            && let Ok(joined) = self.plan(axes, &sinks[..=taken], parallel)
        {
            nest = joined;
            taken += 1;
        }
        Ok((nest, taken))
    }

    /// What one nest reads must not have been written by a nest before it: values are computed where they are wanted, and would see it.
    fn check_order(&self, nests: &[Nest<'p>]) -> Result<()> {
        let mut written: FxHashSet<Val> = FxHashSet::default();
        for nest in nests {
            let reads = nest.facts.keys().filter_map(|v| match self.defs.get(&v) {
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

    fn plan(&self, axes: &Axes, sinks: &[Sink<'p>], parallel: &[Axis]) -> Result<Nest<'p>> {
        let mut order = Vec::new();
        let mut seen = self.marks();
        for v in sinks.iter().flat_map(Sink::roots) {
            self.reach(v, &mut seen, &mut order);
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
        let both = [parallel, &staged].concat();
        ensure!(
            both.len() <= MOST_AXES,
            NoLowering,
            "x86 has no code for loops over {} axes",
            both.len()
        );
        let mut nest = Nest {
            sinks: sinks.to_vec(),
            parallel: parallel.to_vec(),
            staged,
            vector: None,
            lanes: 0,
            stages: 1,
            facts: Values::new(self.p.values.len()),
            axes: both,
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
                let before = operands(&inst.op).into_iter();
                at = before.filter_map(|a| nest.stage(a)).max().unwrap_or(0);
                let folded = self.folded(axes, v);
                if !folded.is_empty() {
                    let Some(&operand) = operands(&inst.op).first() else {
                        continue;
                    };
                    let mut inner = self.value_axes(axes, operand);
                    ensure!(
                        inner.all(|a| folded.contains(&a) || nest.parallel.contains(&a)),
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
            nest.stages = nest.stages.max(at + 1);
            let varies = self.variation(axes, &nest, v);
            nest.facts.insert(
                v,
                Fact {
                    stage: at,
                    last: at,
                    varies,
                },
            );
        }
        self.put_behind(&mut nest, &order);
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
            let mine = nest.bits(self.sink_axes(axes, sink));
            let mut staged = nest.staged.iter().map(|a| nest.bit(*a) & mine != 0);
            let first = staged.next().unwrap_or(false);
            ensure!(
                staged.all(|one| one == first),
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

    fn variation(&self, axes: &Axes, nest: &Nest<'p>, v: Val) -> u64 {
        let inst = match self.defs.get(&v) {
            Some(Def::Lazy(inst)) => *inst,
            Some(Def::Saved { .. }) => return nest.bits(self.value_axes(axes, v)),
            _ => return 0,
        };
        let of = |a: Val| nest.facts.get(&a).map_or(0, |fact| fact.varies);
        let from = operands(&inst.op)
            .into_iter()
            .fold(0, |bits, a| bits | of(a));
        let from = from & !nest.bits(self.folded(axes, v));
        let key = Key::Val(slot(v));
        let own = match &inst.op {
            Op::Iota { dim } => nest.bits(axes.of(key, *dim as usize)),
            Op::Load { access, .. } => {
                let moving =
                    |d: &usize| access.strides[*d] != Index::Const(0) || access.valid[*d].is_some();
                let dims = (0..access.shape.len()).filter(moving);
                nest.bits(dims.filter_map(|d| axes.of(key, d)))
            }
            _ => 0,
        };
        from | own
    }

    pub fn value_axes<'x>(
        &self,
        axes: &'x Axes,
        v: Val,
    ) -> impl Iterator<Item = Axis> + use<'x, 'p> {
        let rank = self.tile_of(v).map_or(0, |t| t.shape.len());
        axes.all(Key::Val(slot(v)), rank)
    }

    /// A nest may read what it writes only where each element is read by the iteration that writes it.
    fn check_hazard(&self, nest: &Nest<'p>, written: &FxHashSet<Val>, inst: &Inst) -> Result<bool> {
        match &inst.op {
            Op::Load { access, .. } if written.contains(&access.mem) => {
                let same = nest.sinks.iter().all(|s| match s {
                    Sink::Effect(Inst {
                        op: Op::Store { access: to, .. },
                        ..
                    }) if to.mem == access.mem => self.same_window(to, access),
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
        let mut handled = self.marks();
        for v in nest.sinks.iter().flat_map(Sink::roots) {
            handled.insert(v);
        }
        for v in nest.reductions.iter().flatten() {
            if let Some(Def::Lazy(inst)) = self.defs.get(v) {
                for a in operands(&inst.op) {
                    handled.insert(a);
                }
            }
        }
        let mut widest = 4;
        for &v in order {
            let dtype = self.dtype(v)?;
            let varies = nest.vector.is_some_and(|a| nest.varies(v, a));
            if (varies || handled.contains(v)) && !dtype.is_bool() {
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
        let staged = nest.bits(nest.staged.iter().copied());
        let mut weight = vec![0usize; self.p.values.len()];
        for &v in order {
            let w = match self.defs.get(&v) {
                Some(Def::Lazy(inst)) => match &inst.op {
                    // Once written, it cannot be read again.
                    Op::Load { access, .. } if written.contains(&access.mem) => 1000,
                    Op::Reduce { .. } | Op::ArgReduce { .. } => 0,
                    op => {
                        let before = operands(op).into_iter();
                        own_cost(op) + before.map(|a| weight[slot(a)]).sum::<usize>()
                    }
                },
                _ => 1,
            };
            let varies = nest.facts.get(&v).is_some_and(|f| f.varies & staged != 0);
            weight[slot(v)] = if varies { w.min(1000) } else { 0 };
        }
        // Last stage in which each value is wanted, found from users to operands.
        let mut wanted: Vec<Option<usize>> = vec![None; self.p.values.len()];
        for sink in &nest.sinks {
            let at = nest.sink_stage(sink);
            for v in sink.roots() {
                wanted[slot(v)] = wanted[slot(v)].max(Some(at));
            }
        }
        for &v in order.iter().rev() {
            let own = nest.stage(v).unwrap_or(0);
            let mut until = wanted[slot(v)].unwrap_or(own);
            let dtype_ok = self.dtype(v).is_ok_and(|d| !d.is_bool())
                && nest.vector.is_some_and(|a| nest.varies(v, a));
            let fold = !self.folded(axes, v).is_empty();
            if fold {
                until = own - 1;
            } else if until > own && weight[slot(v)] > CHEAP && dtype_ok {
                nest.saved[own].push(v);
                until = own;
            }
            if until > own && nest.updated.contains(&v) {
                self.check_again(nest, v, until)?;
            }
            nest.cost[own.min(until)] += usize::from(weight[slot(v)] > 0);
            if let Some(fact) = nest.facts.get_mut(&v) {
                fact.last = until;
            }
            if let Some(Def::Lazy(inst)) = self.defs.get(&v) {
                for a in operands(&inst.op) {
                    wanted[slot(a)] = wanted[slot(a)].max(Some(until));
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
        let gone = nest
            .sinks
            .iter()
            .any(|sink| written_memory(sink) == Some(access.mem) && nest.sink_stage(sink) < until);
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
        let mut seen = self.marks();
        let mut open: Vec<Val> = sinks.iter().skip(1).flat_map(Sink::roots).collect();
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

/// Whether an instruction reads one of some memories.
fn reads(inst: &Inst, of: &dyn Fn(Val) -> bool) -> bool {
    match &inst.op {
        Op::Load { access, .. } => of(access.mem),
        Op::Gather { mem, .. } => of(*mem),
        _ => false,
    }
}

pub fn own_cost(op: &Op) -> usize {
    match op {
        Op::Broadcast { .. }
        | Op::Splat { .. }
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::ConvertLayout { .. } => 0,
        Op::Unary {
            op: UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip | UnaryOp::NearRecip,
            ..
        } => 6,
        Op::Gather { .. } => 8,
        _ => 1,
    }
}

pub fn written_memory(sink: &Sink<'_>) -> Option<Val> {
    match sink {
        Sink::Effect(inst) => match &inst.op {
            Op::Store { access, .. } => Some(access.mem),
            Op::Scatter { mem, .. } | Op::Atomic { mem, .. } => Some(*mem),
            _ => None,
        },
        Sink::Keep(_) => None,
    }
}
