//! Loops around evaluated tiles.
//!
//! A nest under construction is a stack of levels, the outermost first: level 0 is the straight code before the loops, each
//! further one a loop. A level knows where code can still be put that runs once per iteration of it (`hoist`), so that
//! values and addresses land outside every loop they do not depend on. Addresses along loops are pointers that move; along
//! the vector axis one counter serves all accesses by scaled indexing.

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Access, Index, Inst, Op, Val};
use rustc_hash::FxHashMap;

use super::run::{Axes, Axis, Key, Nest, Sink, effect_key};
use super::square::Square;
use super::{Def, Select};
use crate::mir::{A, Chunk, Cond, Item, Mem, Op as X, Reg, Width};

/// Most vectors that one step of a vector loop takes.
pub const MAX_UNROLL: i64 = 8;

/// Values of one vector that loops may leave in the registers of the widest machine.
const MOST_HELD: usize = 24;

/// How far a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Static(i64),
    /// A register that holds at most the axis's extent; it may be zero or negative.
    Dynamic(Reg),
}

/// The part of the vector axis that a loop runs over.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// So many elements, fewer than a vector has, get a step of their own before the others.
    first: Option<Reg>,
    bound: Bound,
    /// Vectors past a dynamic bound count too (as fills), up to the axis's extent.
    beyond: bool,
}

impl Stretch {
    fn of(bound: Bound) -> Self {
        Self {
            first: None,
            bound,
            beyond: false,
        }
    }
}

/// Windows further apart have pointers of their own, and so many windows lead others at most.
const FARTHEST: i64 = 1 << 28;
const MOST_LEADERS: usize = 32;

#[derive(Debug)]
pub struct LoopLevel {
    pub axis: Option<Axis>,
    pub counter: Reg,
    /// Before the loop, inside its parent.
    pre: Chunk,
    /// At the start of each iteration.
    pub hoist: Chunk,
    /// Values of this level by value and unrolled copy.
    pub memo: FxHashMap<(Val, u32), Reg>,
    pub pointers: FxHashMap<Key, Reg>,
    pub masks: FxHashMap<(Key, usize), Reg>,
    /// Pointers to move at the end of an iteration.
    moves: Vec<(Reg, Step)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Bytes(i64),
    Reg(Reg),
}

/// The nest being written.
#[derive(Debug)]
pub struct Ctx<'n, 'p> {
    pub nest: &'n Nest<'p>,
    pub axes: &'n Axes,
    pub levels: Vec<LoopLevel>,
    /// Level that code is being emitted at.
    pub at: usize,
    /// Index of the vector level once it is open.
    pub vector_level: Option<usize>,
    /// The window whose squares the loops take: the copies of a step are rows of it then, instead of vectors side by side.
    pub square: Option<Square<'p>>,
    /// Lanes that count in a partial vector.
    pub tail: Option<Reg>,
    /// Whether bounds along the vector axis must be tested.
    pub test_bounds: bool,
    /// Whether the vector loop begins where a vector of the one store in it is whole.
    pub begins_whole: bool,
    /// Bounds that the loops themselves keep: axis and the index that limits it.
    pub kept: Vec<(Axis, Index)>,
    /// A staged axis whose loops end at this scalar.
    pub limited: Option<(Axis, Val)>,
    pub stage: usize,
    /// Level at which the stages run.
    pub inner: usize,
    /// Scratch of values kept between stages.
    pub scratch: FxHashMap<Val, u32>,
    pub accumulators: FxHashMap<Val, Vec<super::reduce::Acc>>,
    /// Windows as they are addressed, and those whose pointers they use.
    addressed: FxHashMap<Key, Window>,
    leaders: Vec<Window>,
}

/// Elements of a row of which an instance may have two, and ops of a stage of both up to which its loop is unrolled.
const SHORT_ROW: i64 = 1024;
const LONG_STAGE: usize = 128;

impl<'p> Select<'p, '_> {
    fn level(&mut self, axis: Option<Axis>, counter: Reg, pre: Chunk) -> LoopLevel {
        let hoist = self.e.f.hoist_point();
        LoopLevel {
            axis,
            counter,
            pre,
            hoist,
            memo: FxHashMap::default(),
            pointers: FxHashMap::default(),
            masks: FxHashMap::default(),
            moves: Vec::new(),
        }
    }

    pub fn emit_nest(
        &mut self,
        axes: &Axes,
        nest: Nest<'p>,
        square: Option<Square<'p>>,
    ) -> Result<()> {
        let base = self.e.f.hoist_point();
        let first = self.level(None, Reg::NONE, base);
        self.e.mask_bytes = self.e.level.vector_bytes() / nest.lanes.max(1);
        let mut c = Ctx {
            nest: &nest,
            axes,
            levels: vec![first],
            at: 0,
            vector_level: None,
            square,
            tail: None,
            test_bounds: false,
            begins_whole: false,
            kept: Vec::new(),
            limited: None,
            stage: 0,
            inner: 0,
            scratch: FxHashMap::default(),
            accumulators: FxHashMap::default(),
            addressed: FxHashMap::default(),
            leaders: Vec::new(),
        };
        for v in nest.saved.iter().flatten() {
            // One step of the parallel loops at a time: only staged axes need room, and the vectors of one step.
            let w = self.scratch_window(&c, *v)?;
            let len: i64 = w
                .dims
                .iter()
                .filter_map(|d| d.0)
                .map(|a| axes.extent[a])
                .product();
            let vectors = if nest.staged.contains(&nest.vector.unwrap_or(usize::MAX)) {
                1
            } else {
                MAX_UNROLL * i64::from(nest.lanes)
            };
            let bytes = w.size * len * vectors;
            ensure!(
                bytes < 1 << 28,
                TooLarge,
                "{bytes} bytes of scratch for one value"
            );
            let offset = self.take_scratch(bytes as u32)?;
            c.scratch.insert(*v, offset);
        }
        self.limit_stages(&mut c)?;
        self.parallel(&mut c, 0)?;
        self.keep(&mut c)?;
        self.note_reads(&nest);
        Ok(())
    }

    /// Finds the staged axes whose loops end at the limit of the reductions over them, and makes sure that no limit is lost.
    fn limit_stages(&mut self, c: &mut Ctx<'_, 'p>) -> Result<()> {
        let folds: Vec<Val> = c.nest.reductions.iter().flatten().copied().collect();
        let limit_of = |s: &Self, v: Val| {
            let &(dim, limit) = s.limits.get(&v)?;
            let (_, value) = s.reduction(v).ok()?;
            let axis = c.axes.of(Key::Val(super::slot(value)), usize::from(dim))?;
            Some((axis, limit))
        };
        let limited: Vec<Option<(Axis, Val)>> = folds.iter().map(|&v| limit_of(self, v)).collect();
        let Some((axis, limit)) = limited.iter().copied().flatten().next() else {
            let lost = folds.iter().any(|v| self.limits.contains_key(v));
            ensure!(!lost, NoLowering, "a limited reduction of one element");
            return Ok(());
        };
        let bound = Index::Val(limit);
        let mut windows = self.bounds_along(c, axis);
        windows.retain(|valid| *valid != Some(bound));
        let alone = limited.iter().all(|l| *l == Some((axis, limit)))
            && c.nest.staged.contains(&axis)
            && windows.iter().all(|valid| valid.is_none())
            && c.nest
                .sinks
                .iter()
                .all(|sink| self.ends_at(c, sink, axis, bound));
        ensure!(
            alone,
            NoLowering,
            "a limited reduction among loops that go on"
        );
        c.limited = Some((axis, limit));
        Ok(())
    }

    /// Whether an effect stops at a bound of an axis, or does not run along it.
    fn ends_at(&self, c: &Ctx<'_, 'p>, sink: &Sink<'p>, axis: Axis, bound: Index) -> bool {
        if !self.sink_axes(c.axes, sink).any(|a| a == axis) {
            return true;
        }
        let Sink::Effect(
            inst @ Inst {
                op: Op::Store { access, .. },
                ..
            },
        ) = sink
        else {
            return false;
        };
        (0..access.shape.len())
            .any(|d| c.axes.of(effect_key(inst), d) == Some(axis) && access.valid[d] == Some(bound))
    }

    /// The bound of every window that runs along an axis, `None` for those without.
    fn bounds_along(&self, c: &Ctx<'_, 'p>, axis: Axis) -> Vec<Option<Index>> {
        let mut found = Vec::new();
        let mut note = |key: Key, access: &Access| {
            for (d, valid) in access.valid.iter().enumerate() {
                if c.axes.of(key, d) == Some(axis) {
                    found.push(*valid);
                }
            }
        };
        for v in c.nest.facts.keys() {
            if let Some(Def::Lazy(Inst {
                op: Op::Load { access, .. },
                ..
            })) = self.defs.get(&v)
            {
                note(Key::Val(super::slot(v)), access);
            }
        }
        for sink in &c.nest.sinks {
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
        found
    }

    /// Opens the parallel loops from number `n` on, then runs the stages.
    fn parallel(&mut self, c: &mut Ctx<'_, 'p>, n: usize) -> Result<()> {
        let sequential: Vec<Axis> = c
            .nest
            .parallel
            .iter()
            .copied()
            .filter(|a| Some(*a) != c.nest.vector && Some(*a) != c.square.map(|s| s.rows))
            .collect();
        if let (0, Some(&inner)) = (n, sequential.last())
            && let Some(axis) = c.nest.vector
            && self.is_one_vector(c, axis, inner)
            && self.parallel_bound(c, axis)? == Bound::Static(c.axes.extent[axis])
        {
            let all = Stretch::of(Bound::Static(c.axes.extent[axis]));
            return self.vector_loop(c, axis, all, 1, |s, c, _| s.sequential(c, &sequential));
        }
        if let Some(&axis) = sequential.get(n) {
            let bound = self.parallel_bound(c, axis)?;
            return self.counted(c, axis, bound, 1, |s, c| s.parallel(c, n + 1));
        }
        if let (Some(square), Some(axis)) = (c.square, c.nest.vector) {
            let lanes = c.nest.lanes;
            let [down, along] = [square.rows, axis].map(|a| Bound::Static(c.axes.extent[a]));
            return self.counted(c, square.rows, down, i64::from(lanes), |s, c| {
                s.vector_loop(c, axis, Stretch::of(along), 1, |s, c, _| {
                    s.read_square(c, &square)?;
                    s.stages(c, lanes)
                })
            });
        }
        match c.nest.vector {
            Some(axis) if c.nest.parallel.contains(&axis) => {
                let bound = self.parallel_bound(c, axis)?;
                let cost = c.nest.cost.iter().sum();
                let unroll = self.unroll(c, axis, cost, 0);
                let all = Stretch::of(bound);
                self.vector_loop(c, axis, all, unroll, |s, c, copies| s.stages(c, copies))
            }
            Some(_) | None => self.stages(c, 1),
        }
    }

    /// Loops inside of the one vector that they are about.
    fn sequential(&mut self, c: &mut Ctx<'_, 'p>, axes: &[Axis]) -> Result<()> {
        let Some((&axis, rest)) = axes.split_first() else {
            return self.stages(c, 1);
        };
        let bound = self.parallel_bound(c, axis)?;
        self.counted(c, axis, bound, 1, |s, c| s.sequential(c, rest))
    }

    /// Whether the vector axis has one vector, and some of what is read along it is the same all along the innermost of the other loops: a few registers hold that then, and those loops go inside.
    fn is_one_vector(&self, c: &Ctx<'_, 'p>, vector: Axis, inner: Axis) -> bool {
        let whole = c.axes.extent[vector] == i64::from(c.nest.lanes);
        let plain = c.nest.staged.is_empty() && c.nest.stages == 1 && c.square.is_none();
        if !whole || !plain || !c.nest.parallel.contains(&vector) {
            return false;
        }
        let stays = |v: &Val| c.nest.varies(*v, vector) && !c.nest.varies(*v, inner);
        let is_read = |v: &Val| matches!(self.defs.get(v), Some(Def::Lazy(inst)) if matches!(inst.op, Op::Load { .. }));
        let held = c.nest.facts.keys().filter(stays).filter(is_read).count();
        (2..=MOST_HELD * self.e.full_lanes(4) as usize / 16).contains(&held)
    }

    /// All effects of a nest stop at the same bound of a parallel axis, or the loop covers it all and they test their own.
    fn parallel_bound(&mut self, c: &mut Ctx<'_, 'p>, axis: Axis) -> Result<Bound> {
        let extent = c.axes.extent[axis];
        let mut limit: Option<Option<Index>> = None;
        for sink in &c.nest.sinks {
            let mine = match sink {
                Sink::Effect(
                    inst @ Inst {
                        op: Op::Store { access, .. },
                        ..
                    },
                ) => (0..access.shape.len())
                    .find(|&d| c.axes.of(effect_key(inst), d) == Some(axis))
                    .and_then(|d| access.valid[d]),
                Sink::Effect(_) | Sink::Keep(_) => None,
            };
            limit = match limit {
                None => Some(mine),
                Some(l) if l == mine => Some(l),
                Some(_) => Some(None),
            };
        }
        Ok(match limit.flatten() {
            None => Bound::Static(extent),
            Some(Index::Const(n)) => {
                c.kept.push((axis, Index::Const(n)));
                Bound::Static(n.clamp(0, extent))
            }
            Some(Index::Val(v)) => {
                c.kept.push((axis, Index::Val(v)));
                let valid = self.gpr(v)?;
                Bound::Dynamic(self.minimum(c, valid, extent))
            }
        })
    }

    /// `min(valid, extent)`, computed before the loops.
    fn minimum(&mut self, c: &Ctx<'_, 'p>, valid: Reg, extent: i64) -> Reg {
        let most = self.e.f.gpr();
        let d = self.e.f.gpr();
        let hoist = c.levels[0].hoist;
        self.e.f.at(hoist, |f| {
            f.inst(X::MovU32, Width::X, &[most.into(), A::I(extent)]);
            f.copy(Width::X, d, valid);
            f.inst(X::Cmp, Width::X, &[d.into(), most.into()]);
            f.inst(X::CmovG, Width::X, &[d.into(), most.into()]);
        });
        d
    }

    /// A loop over an axis, `step` coordinates at a time.
    fn counted(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        axis: Axis,
        bound: Bound,
        step: i64,
        mut body: impl FnMut(&mut Self, &mut Ctx<'_, 'p>) -> Result<()>,
    ) -> Result<()> {
        if bound == Bound::Static(0) {
            return Ok(());
        }
        let counter = self.e.imm(0);
        let pre = self.e.f.hoist_point();
        let (head, done) = (self.e.f.label(), self.e.f.label());
        if let Bound::Dynamic(limit) = bound {
            self.e.g(X::Cmp, &[counter.into(), limit.into()]);
            self.e.f.jump(Cond::Ge, done);
        }
        self.e.f.bind(head);
        let level = self.level(Some(axis), counter, pre);
        c.levels.push(level);
        c.at = c.levels.len() - 1;
        body(self, c)?;
        self.close(c, step);
        self.e.g(X::AddI, &[counter.into(), A::I(step)]);
        match bound {
            Bound::Static(n) => self.e.gpr_imm(X::CmpI, X::Cmp, counter, n),
            Bound::Dynamic(limit) => self.e.g(X::Cmp, &[counter.into(), limit.into()]),
        }
        self.e.f.jump(Cond::L, head);
        self.e.f.bind(done);
        Ok(())
    }

    /// Moves the level's pointers and leaves it.
    fn close(&mut self, c: &mut Ctx<'_, 'p>, steps: i64) {
        if let Some(level) = c.levels.pop() {
            for (pointer, step) in level.moves {
                match step {
                    Step::Bytes(n) => self.e.gpr_imm(X::AddI, X::Add, pointer, n * steps),
                    Step::Reg(r) => self.e.g(X::Add, &[pointer.into(), r.into()]),
                }
            }
        }
        c.at = c.levels.len().saturating_sub(1);
    }

    fn unroll(&self, c: &Ctx<'_, 'p>, axis: Axis, cost: usize, folds: usize) -> u32 {
        // An instance may have two short rows, whose partial sums are as many as where it has one: results do not depend on how many rows there are.
        let stores = || (1..c.nest.stages).any(|stage| !self.staged_sinks(c, stage).is_empty());
        let short = folds > 0 && c.axes.extent[axis] <= SHORT_ROW && stores();
        let registers = match (cost, self.e.avx512()) {
            (0..=LONG_STAGE, true) if short => 4,
            (0..=LONG_STAGE, false) if short => 2,
            // Each of the accumulators has a register.
            (0..=4, true) if (1..=2).contains(&folds) => 8,
            (0..=10, _) | (11..=32, true) => 4,
            (11..=32, false) | (33..=64, true) => 2,
            _ => 1,
        };
        let chunks = (c.axes.extent[axis] / i64::from(c.nest.lanes)).max(1);
        registers.min(u32::try_from(chunks).unwrap_or(u32::MAX))
    }

    /// A loop over the vector axis: whole groups of `unroll` vectors, what is left of them, and a partial vector.
    fn vector_loop(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        axis: Axis,
        stretch: Stretch,
        unroll: u32,
        mut body: impl FnMut(&mut Self, &mut Ctx<'_, 'p>, u32) -> Result<()>,
    ) -> Result<()> {
        let lanes = i64::from(c.nest.lanes);
        let counter = self.e.imm(0);
        let pre = self.e.f.hoist_point();
        let group = lanes * i64::from(unroll);
        let mut chunk =
            |s: &mut Self, c: &mut Ctx<'_, 'p>, copies: u32, tail: Option<Reg>| -> Result<()> {
                let level = s.level(Some(axis), counter, pre);
                c.levels.push(level);
                c.at = c.levels.len() - 1;
                c.vector_level = Some(c.at);
                let outer = std::mem::replace(&mut c.tail, tail);
                body(s, c, copies)?;
                c.tail = outer;
                c.vector_level = None;
                s.close(c, 1);
                Ok(())
            };
        let Stretch {
            first,
            mut bound,
            beyond,
        } = stretch;
        if let Some(first) = first {
            let before = self.e.lanes_below(first);
            chunk(self, c, 1, Some(before))?;
            self.e.f.copy(Width::X, counter, first);
            if let Bound::Static(n) = bound {
                bound = Bound::Dynamic(self.e.imm(n));
            }
        }
        match bound {
            Bound::Static(n) => {
                let full = n / lanes;
                let groups = full / i64::from(unroll);
                if groups > 0 {
                    let head = self.e.f.label();
                    if groups > 1 {
                        self.e.f.push(Item::Align);
                        self.e.f.bind(head);
                    }
                    chunk(self, c, unroll, None)?;
                    self.e.gpr_imm(X::AddI, X::Add, counter, group);
                    if groups > 1 {
                        self.e.gpr_imm(X::CmpI, X::Cmp, counter, groups * group);
                        self.e.f.jump(Cond::L, head);
                    }
                }
                let left = full % i64::from(unroll);
                if left > 0 {
                    chunk(self, c, left as u32, None)?;
                    self.e.gpr_imm(X::AddI, X::Add, counter, left * lanes);
                }
                if n % lanes > 0 {
                    let tail = self.e.first_lanes((n % lanes) as u32);
                    chunk(self, c, 1, Some(tail))?;
                }
            }
            Bound::Dynamic(limit) => {
                for copies in if unroll > 1 { vec![unroll, 1] } else { vec![1] } {
                    let step = lanes * i64::from(copies);
                    let last = self.e.copy_gpr(limit);
                    self.e.gpr_imm(X::SubI, X::Sub, last, step);
                    let (head, done) = (self.e.f.label(), self.e.f.label());
                    self.e.g(X::Cmp, &[counter.into(), last.into()]);
                    self.e.f.jump(Cond::G, done);
                    self.e.f.push(Item::Align);
                    self.e.f.bind(head);
                    chunk(self, c, copies, None)?;
                    self.e.gpr_imm(X::AddI, X::Add, counter, step);
                    self.e.g(X::Cmp, &[counter.into(), last.into()]);
                    self.e.f.jump(Cond::Le, head);
                    self.e.f.bind(done);
                }
                let (head, done) = (self.e.f.label(), self.e.f.label());
                let end = if beyond {
                    self.e.imm(c.axes.extent[axis])
                } else {
                    limit
                };
                self.e.g(X::Cmp, &[counter.into(), end.into()]);
                self.e.f.jump(Cond::Ge, done);
                self.e.f.bind(head);
                let rest = self.e.copy_gpr(end);
                self.e.g(X::Sub, &[rest.into(), counter.into()]);
                let tail = self.e.lanes_below(rest);
                let outer = std::mem::replace(&mut c.test_bounds, beyond);
                chunk(self, c, 1, Some(tail))?;
                c.test_bounds = outer;
                if beyond {
                    self.e.gpr_imm(X::AddI, X::Add, counter, lanes);
                    self.e.g(X::Cmp, &[counter.into(), end.into()]);
                    self.e.f.jump(Cond::L, head);
                }
                self.e.f.bind(done);
            }
        }
        Ok(())
    }

    /// All stages at one step of the parallel loops; `copies` vectors at once where the vector axis is parallel.
    fn stages(&mut self, c: &mut Ctx<'_, 'p>, copies: u32) -> Result<()> {
        c.accumulators.clear();
        c.inner = c.levels.len() - 1;
        for stage in 0..c.nest.stages {
            c.stage = stage;
            // What this stage computes outside its loops may rest on the results of the stage before.
            let here = c.levels.len() - 1;
            c.levels[here].hoist = self.e.f.hoist_point();
            let inside = self.staged_sinks(c, stage);
            let saves = c.nest.saved[stage].clone();
            let folds = c.nest.reductions[stage].clone();
            let sequential: Vec<Axis> = c
                .nest
                .staged
                .iter()
                .copied()
                .filter(|a| Some(*a) != c.nest.vector)
                .collect();
            let staged_vector = c.nest.vector.filter(|a| c.nest.staged.contains(a));
            let work = Work {
                sinks: inside,
                saves,
                folds: folds.clone(),
            };
            if !work.sinks.is_empty() || !work.saves.is_empty() || !folds.is_empty() {
                let unroll = match staged_vector {
                    Some(axis) => self.unroll(c, axis, c.nest.cost[stage], folds.len()),
                    None => copies,
                };
                self.open_accumulators(c, &folds, unroll)?;
                self.staged(c, &sequential, staged_vector, unroll, &work)?;
                c.at = here;
                for v in folds {
                    self.close_reduction(c, v, staged_vector.is_some(), unroll)?;
                }
            }
            let outer = self.outer_sinks(c, stage);
            for v in self.read_ahead(c.nest, stage, &outer) {
                for copy in 0..copies {
                    self.eval(c, v, copy)?;
                }
            }
            if c.square.is_some() {
                self.read_rows(c, &outer, copies)?;
            }
            for sink in outer {
                for copy in 0..copies {
                    self.effect(c, sink, copy)?;
                }
            }
        }
        Ok(())
    }

    fn sink_stage(&self, c: &Ctx<'_, 'p>, sink: &Sink<'p>) -> usize {
        c.nest.sink_stage(sink)
    }

    fn is_inside(&self, c: &Ctx<'_, 'p>, sink: &Sink<'p>) -> bool {
        self.sink_axes(c.axes, sink)
            .any(|a| c.nest.staged.contains(&a))
    }

    pub fn staged_sinks(&self, c: &Ctx<'_, 'p>, stage: usize) -> Vec<Sink<'p>> {
        let keep = |s: &&Sink<'p>| self.sink_stage(c, s) == stage && self.is_inside(c, s);
        c.nest.sinks.iter().filter(keep).copied().collect()
    }

    fn outer_sinks(&self, c: &Ctx<'_, 'p>, stage: usize) -> Vec<Sink<'p>> {
        let keep = |s: &&Sink<'p>| self.sink_stage(c, s) == stage && !self.is_inside(c, s);
        c.nest.sinks.iter().filter(keep).copied().collect()
    }

    fn staged(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        sequential: &[Axis],
        vector: Option<Axis>,
        copies: u32,
        work: &Work<'p>,
    ) -> Result<()> {
        if let Some((&axis, rest)) = sequential.split_first() {
            let mut extent = Bound::Static(c.axes.extent[axis]);
            if let Some((limited, limit)) = c.limited
                && limited == axis
            {
                let valid = self.gpr(limit)?;
                extent = Bound::Dynamic(self.minimum(c, valid, c.axes.extent[axis]));
                c.kept.push((axis, Index::Val(limit)));
            }
            return self.counted(c, axis, extent, 1, |s, c| {
                s.staged(c, rest, vector, copies, work)
            });
        }
        let Some(axis) = vector else {
            return self.work(c, copies, work);
        };
        let bound = self.staged_bound(c, axis)?;
        let ends = c.limited.is_some_and(|(limited, _)| limited == axis);
        let whole = bound == Bound::Static(c.axes.extent[axis]);
        let first = match whole {
            true => self.before_whole(c, axis)?,
            false => None,
        };
        let stretch = Stretch {
            first,
            bound,
            beyond: !ends && !whole,
        };
        c.begins_whole = first.is_some();
        self.vector_loop(c, axis, stretch, copies, |s, c, n| s.work(c, n, work))?;
        c.begins_whole = false;
        Ok(())
    }

    /// The part of a staged vector axis in which every access is inside its bounds.
    fn staged_bound(&mut self, c: &mut Ctx<'_, 'p>, axis: Axis) -> Result<Bound> {
        let extent = c.axes.extent[axis];
        let mut limits: Vec<Index> = self.bounds_along(c, axis).into_iter().flatten().collect();
        let own = c.limited.filter(|(limited, _)| *limited == axis);
        limits.extend(own.map(|(_, limit)| Index::Val(limit)));
        // The table of values has no order of its own; code must.
        limits.sort_by_key(|l| match l {
            Index::Const(n) => (0, *n),
            Index::Val(v) => (1, super::slot(*v) as i64),
        });
        limits.dedup();
        if limits.is_empty() {
            return Ok(Bound::Static(extent));
        }
        let mut limit = self.e.imm(extent);
        for l in limits {
            let valid = match l {
                Index::Const(n) => self.e.imm(n),
                Index::Val(v) => self.gpr(v)?,
            };
            let d = self.e.copy_gpr(limit);
            self.e.g(X::Cmp, &[valid.into(), d.into()]);
            self.e.g(X::CmovL, &[d.into(), valid.into()]);
            limit = d;
        }
        Ok(Bound::Dynamic(limit))
    }

    fn work(&mut self, c: &mut Ctx<'_, 'p>, copies: u32, work: &Work<'p>) -> Result<()> {
        let ahead = self.read_ahead(c.nest, c.stage, &work.sinks);
        for copy in 0..copies {
            self.ask_to_write(c, copy)?;
            for v in &work.saves {
                let r = self.eval(c, *v, copy)?;
                self.save(c, *v, r, copy)?;
            }
            for v in &work.folds {
                self.accumulate(c, *v, copy, copies)?;
            }
            for v in &ahead {
                self.eval(c, *v, copy)?;
            }
            for sink in &work.sinks {
                self.effect(c, *sink, copy)?;
            }
        }
        Ok(())
    }

    /// The pointer to a window's element at the current coordinates of all loops but the vector one.
    pub fn pointer(&mut self, c: &mut Ctx<'_, 'p>, w: &Window) -> Result<Reg> {
        let x = Width::X;
        let mut pointer = match c.levels[0].pointers.get(&w.key) {
            Some(&p) => p,
            None => {
                let index = match w.base {
                    Index::Const(_) => Reg::NONE,
                    Index::Val(v) => self.gpr(v)?,
                };
                let d = self.e.f.gpr();
                let disp = if let Index::Const(n) = w.base {
                    n * w.size
                } else {
                    0
                };
                let disp = i32::try_from(disp)
                    .map_err(|_| err!(NoLowering, "an offset of {disp} bytes"))?;
                let mem = Mem {
                    index,
                    scale: w.size as u8,
                    ..Mem::at(w.memory, disp)
                };
                let hoist = c.levels[0].hoist;
                self.e
                    .f
                    .at(hoist, |f| f.inst(X::Lea, x, &[d.into(), mem.into()]));
                c.levels[0].pointers.insert(w.key, d);
                d
            }
        };
        for n in 1..c.levels.len() {
            let Some(axis) = c.levels[n].axis else {
                continue;
            };
            if Some(axis) == c.nest.vector {
                continue;
            }
            let Some(&(_, stride)) = w.dims.iter().find(|d| d.0 == Some(axis)) else {
                continue;
            };
            if stride == Index::Const(0) {
                continue;
            }
            if let Some(&p) = c.levels[n].pointers.get(&w.key) {
                pointer = p;
                continue;
            }
            let step = match stride {
                Index::Const(s) => Step::Bytes(s * w.size),
                Index::Val(v) => {
                    let stride = self.gpr(v)?;
                    let d = self.e.f.gpr();
                    let hoist = c.levels[0].hoist;
                    self.e.f.at(hoist, |f| {
                        f.inst(X::ImulI, x, &[d.into(), stride.into(), A::I(w.size)])
                    });
                    Step::Reg(d)
                }
            };
            let d = self.e.f.gpr();
            let pre = c.levels[n].pre;
            self.e.f.at(pre, |f| f.copy(x, d, pointer));
            c.levels[n].moves.push((d, step));
            c.levels[n].pointers.insert(w.key, d);
            pointer = d;
        }
        Ok(pointer)
    }

    /// The window of a load or store.
    pub fn window(&mut self, c: &Ctx<'_, 'p>, key: Key, access: &Access) -> Result<Window> {
        let ty = self.p.mem(access.mem)?;
        ensure!(
            ty.swizzle.is_none(),
            NoLowering,
            "x86 has no swizzled memories"
        );
        let dims = access
            .strides
            .iter()
            .enumerate()
            .map(|(d, s)| (c.axes.of(key, d), *s))
            .collect();
        Ok(Window {
            key,
            memory: self.memory(access.mem)?,
            base: access.base,
            size: ty.dtype.size() as i64,
            dims,
            ahead: 0,
        })
    }

    /// The same window by the pointer of another one that moves with it, always as far ahead: registers for pointers are few.
    pub fn led(&self, c: &mut Ctx<'_, 'p>, window: Window) -> Window {
        if let Some(known) = c.addressed.get(&window.key) {
            return known.clone();
        }
        let leader = c.leaders.iter().find_map(|leader| {
            let alike = (leader.memory, leader.size) == (window.memory, window.size)
                && leader.dims == window.dims;
            let ahead = alike.then(|| self.difference(leader.base, window.base))??;
            let ahead = ahead.checked_mul(window.size)?;
            (ahead.abs() < FARTHEST).then(|| Window {
                ahead,
                ..leader.clone()
            })
        });
        let key = window.key;
        let led = leader.unwrap_or_else(|| {
            if c.leaders.len() < MOST_LEADERS {
                c.leaders.push(window.clone());
            }
            window
        });
        c.addressed.insert(key, led.clone());
        led
    }
}

/// An affine window of any memory, scratch included, with the axis of each dim.
#[derive(Clone, Debug)]
pub struct Window {
    pub key: Key,
    pub memory: Reg,
    pub base: Index,
    pub size: i64,
    pub dims: Vec<(Option<Axis>, Index)>,
    /// Bytes from the pointer to the window.
    pub ahead: i64,
}

impl Window {
    /// Elements and bytes from the first copy of a step to another one: vectors are side by side, and rows of a square a fixed step apart.
    pub fn copy(&self, c: &Ctx<'_, '_>, copy: u32) -> (i64, i64) {
        let Some(square) = &c.square else {
            return (i64::from(copy * c.nest.lanes), 0);
        };
        let dim = self.dims.iter().find(|dim| dim.0 == Some(square.rows));
        match dim {
            Some((_, Index::Const(step))) => (0, i64::from(copy) * step * self.size),
            _ => (0, 0),
        }
    }

    /// What its pointer points to, so many bytes further.
    pub fn at(&self, pointer: Reg, bytes: i64) -> Mem {
        Mem::at(pointer, (self.ahead + bytes) as i32)
    }
}

/// What one step of a stage's innermost loop does.
#[derive(Debug)]
struct Work<'p> {
    sinks: Vec<Sink<'p>>,
    saves: Vec<Val>,
    folds: Vec<Val>,
}
