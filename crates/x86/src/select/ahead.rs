//! What the next instance will touch is asked for while this one computes.
//!
//! An instance that reads its rows in several stages waits for memory in the first and computes in the second, so that each is idle while the other works. The second stage asks for what the
//! first stage of the next instance will read, and so do loops that read what loops before them read; a worker's instances follow each other. Short rows far from each other (the tiles of a transpose) are nothing that the machine foresees, neither
//! where they are read nor where they are written: each vector asks for its place in the next instance. Asking changes no result, and what lies behind the last row is no fault.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{BinaryOp, Block, CacheHint, Index, Inst, Op, Space, Val};

use super::nest::{Ctx, Window};
use super::run::{Axis, Nest, Sink, effect_key};
use super::{Def, Select};
use crate::mir::{Op as X, Width};

const LINE: i64 = 64;
/// Below this the machine's own prefetching is already at the next instance.
const LEAST: i64 = 1 << 10;
/// Up to here the first-level cache holds this instance and the next one.
const NEAR: i64 = 1 << 14;
/// Beyond this the second-level cache does not.
const MOST: i64 = 1 << 19;
/// Steps of a stage that hardly computes.
const LIGHT: usize = 4;
/// Rows up to this many bytes end before the machine has learnt to follow them.
const SHORT: i64 = 512;
/// Rows this far apart are in pages of their own.
const FAR: i64 = 1 << 11;
/// Rows from here on are asked for before they are written; shorter ones are over before that pays.
const WRITTEN: i64 = 1 << 10;
/// How far ahead a loop over what lies in order asks.
const FURTHER: i64 = 1 << 11;

/// A part of a row: where it starts, in bytes, and which part of the whole it is.
#[derive(Clone, Copy, Debug)]
struct Share {
    start: i64,
    of: i64,
}

impl<'p> Select<'p, '_> {
    /// Asks for what lies where a window's vector `copy` will be in the next instance.
    pub fn ask_ahead(&mut self, c: &mut Ctx<'_, 'p>, v: Val, w: &Window, copy: u32) -> Result<()> {
        let whole = c.vector_level.is_some() && c.tail.is_none() && !c.test_bounds;
        let first = w.copy(c, copy).0 * w.size;
        if !whole || first % LINE != 0 || !self.reads_buffer(v) {
            return Ok(());
        }
        let staged = c.nest.vector.is_some_and(|a| c.nest.staged.contains(&a));
        let first_read = c.nest.stage(v) == Some(0);
        let again = staged && c.stage == 1 && first_read;
        // Rows beyond the first-level cache are read again at the second one's speed, in the last stage too, which computes least and has time to ask.
        let finally = staged && c.stage > 1 && first_read && c.nest.last_stage(v) == Some(c.stage);
        let later = c.nest.last_stage(v) > Some(1);
        let row = |axes: &[Axis]| axes.iter().map(|a| c.axes.extent[*a]).product::<i64>() * w.size;
        if c.nest.staged.is_empty() && self.hint_of(v) == CacheHint::Ahead {
            return self.ask(c, w, copy, FURTHER, X::PrefetchT0);
        }
        let followed = self.followed(v);
        if followed.is_some() && c.nest.staged.is_empty() {
            return self.ask(c, w, copy, followed.unwrap_or(0), X::PrefetchT1);
        }
        let Some(apart) = followed.filter(|_| again).or_else(|| self.apart(w)) else {
            if let Some(further) = self.next_round(w.base, w.size)
                && self.jumps(c, w)
                && !self.asked_by_product(v)
            {
                return self.ask(c, w, copy, further, X::PrefetchT1);
            }
            let own = row(c.nest.vector.as_slice());
            let asks = match later && self.is_last_heaviest(c) {
                true => finally,
                false => again || c.nest.staged.is_empty(),
            };
            if asks && (SHORT..=NEAR).contains(&own) {
                self.ask_next_row(c, v, w, copy)?;
            }
            return Ok(());
        };
        if staged
            && c.stage == 0
            && self.read_before.contains(&v)
            && (LEAST..=MOST).contains(&apart)
        {
            let how = if apart <= NEAR {
                X::PrefetchT0
            } else {
                X::PrefetchT1
            };
            return self.ask(c, w, copy, apart, how);
        }
        if (again || finally) && apart >= LEAST {
            let near = apart.max(row(&c.nest.staged)) <= NEAR;
            let how = if near { X::PrefetchT0 } else { X::PrefetchT1 };
            if again == (later && (!near || self.is_last_heaviest(c))) {
                return Ok(());
            }
            if finally {
                return self.ask(c, w, copy, apart, how);
            }
            // A stage that hardly computes is over before asking for so much could help.
            return match near || c.nest.cost[c.stage] > LIGHT {
                true => self.ask(c, w, copy, apart, how),
                false => Ok(()),
            };
        }
        if self.jumps(c, w) {
            return self.ask(c, w, copy, apart, X::PrefetchT1);
        }
        Ok(())
    }

    /// Notes how far apart the rows are that a loop reads, where it stores past the caches: who reads such a row, before the loop and behind it too, asks for the one after it.
    pub fn note_rows(&mut self, counter: Val, step: i64, body: &Block) {
        let past = |inst: &Inst| {
            matches!(
                inst.op,
                Op::Store {
                    hint: CacheHint::Streaming,
                    ..
                }
            )
        };
        if !body.insts.iter().any(past) {
            return;
        }
        let mut places: Vec<(Val, i64)> = Vec::new();
        for inst in &body.insts {
            match &inst.op {
                Op::Binary {
                    op: BinaryOp::Mul,
                    lhs,
                    rhs,
                } if *lhs == counter => {
                    if let Some(Op::Const { value }) = self.origin(*rhs) {
                        places.push((inst.results[0], value.as_i64().saturating_mul(step)));
                    }
                }
                Op::Load { access, .. } => {
                    let base = places.iter().find(|(v, _)| access.base == Index::Val(*v));
                    if let (Some((_, apart)), Ok(mem)) = (base, self.p.mem(access.mem)) {
                        let bytes = apart.saturating_mul(mem.dtype.size() as i64);
                        if (LEAST..=MOST).contains(&bytes) {
                            self.rows.insert(access.mem, bytes);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// How far away the row is that will be read after this one.
    fn followed(&self, v: Val) -> Option<i64> {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Load { access, .. },
                ..
            })) => self.rows.get(&access.mem).copied(),
            Some(_) | None => None,
        }
    }

    /// What a load says of how its data is used.
    fn hint_of(&self, v: Val) -> CacheHint {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Load { hint, .. },
                ..
            })) => *hint,
            Some(_) | None => CacheHint::Default,
        }
    }

    /// Whether a value is read from memory that others know, which may be far away; panels of an instance are in its caches.
    fn reads_buffer(&self, v: Val) -> bool {
        match self.defs.get(&v) {
            Some(Def::Lazy(Inst {
                op: Op::Load { access, .. },
                ..
            })) => !matches!(self.p.mem(access.mem), Ok(mem) if mem.space == Space::Panel),
            Some(_) | None => true,
        }
    }

    /// Remembers what a nest read, for the nests after it.
    pub fn note_reads(&mut self, nest: &Nest<'p>) {
        for v in nest.facts.keys() {
            if let Some(Def::Lazy(Inst {
                op: Op::Load { .. },
                ..
            })) = self.defs.get(&v)
            {
                self.read_before.insert(v);
            }
        }
    }

    /// Asks for the row that the last stage writes: a store that misses waits for its line, and a stage that hardly computes would wait for every one.
    pub fn ask_to_write(&mut self, c: &mut Ctx<'_, 'p>, copy: u32) -> Result<()> {
        let Some(vector) = c.nest.vector.filter(|a| c.nest.staged.contains(a)) else {
            return Ok(());
        };
        if c.tail.is_some() || c.test_bounds {
            return Ok(());
        }
        for stage in c.stage..c.nest.stages {
            for sink in self.staged_sinks(c, stage) {
                let Sink::Effect(
                    inst @ Inst {
                        op: Op::Store { access, .. },
                        ..
                    },
                ) = sink
                else {
                    continue;
                };
                let w = self.window(c, effect_key(inst), access)?;
                let first = i64::from(copy * c.nest.lanes) * w.size;
                let row = c.axes.extent[vector] * w.size;
                let along = w.dims.contains(&(Some(vector), Index::Const(1)));
                if along
                    && !self.will_stream(c, inst, vector, stage)
                    && first % LINE == 0
                    && (WRITTEN..=MOST).contains(&row)
                    && let Some(share) = self.share(c, stage, row, w.size)
                {
                    self.ask_share(c, &w, copy, share)?;
                }
            }
        }
        Ok(())
    }

    /// Which part of a row the present stage asks for, where a later one, or this one, writes it.
    ///
    /// Where the writing stage computes most, it asks for the second half itself, and those before it share the first: the lines come in one by one while all stages compute. Otherwise the stage before has most to do, and time to ask for all.
    fn share(&self, c: &Ctx<'_, 'p>, writes: usize, row: i64, size: i64) -> Option<Share> {
        let before = writes.checked_sub(c.stage)?;
        let parts = if writes == 1 { 2 } else { 4 };
        let last = writes + 1 == c.nest.stages;
        let even = last && row <= NEAR && row % (parts * LINE) == 0 && size % parts == 0;
        if !even || !self.is_last_heaviest(c) {
            let all = Share { start: 0, of: 1 };
            return (before == 1).then_some(all);
        }
        match before {
            0 if writes > 0 => Some(Share {
                start: row / 2,
                of: 2,
            }),
            1 | 2 => Some(Share {
                start: row / 2 - before as i64 * row / parts,
                of: parts,
            })
            .filter(|share| share.start >= 0),
            _ => None,
        }
    }

    /// Whether no stage computes more than the last one.
    fn is_last_heaviest(&self, c: &Ctx<'_, 'p>) -> bool {
        c.nest.cost.iter().max() == c.nest.cost.last()
    }

    /// The same for a window that is written.
    pub fn ask_ahead_to_write(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        w: &Window,
        copy: u32,
        hint: CacheHint,
    ) -> Result<()> {
        let first = w.copy(c, copy).0 * w.size;
        let whole = c.tail.is_none() && !c.test_bounds && first % LINE == 0;
        if whole && c.nest.staged.is_empty() && hint == CacheHint::Ahead {
            return self.ask(c, w, copy, FURTHER, X::PrefetchW);
        }
        match self.apart(w) {
            Some(apart) if c.tail.is_none() && first % LINE == 0 && self.jumps(c, w) => {
                self.ask(c, w, copy, apart, X::PrefetchT1)
            }
            _ => Ok(()),
        }
    }

    fn ask(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        w: &Window,
        copy: u32,
        apart: i64,
        how: X,
    ) -> Result<()> {
        let (mem, stride) = self.place(c, w, copy)?;
        if stride == Index::Const(1) {
            let next = mem.plus(apart as i32);
            self.e.f.inst(how, Width::X, &[next.into()]);
        }
        Ok(())
    }

    /// Asks for a share of a row that is going to be written, in step with the loop over all of it.
    fn ask_share(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        w: &Window,
        copy: u32,
        share: Share,
    ) -> Result<()> {
        let first = w.copy(c, copy).0 * w.size;
        if first % (LINE * share.of) != 0 {
            return Ok(());
        }
        let (mut mem, _) = self.place(c, w, copy)?;
        mem.scale = (w.size / share.of) as u8;
        let mem = mem.plus((share.start + first / share.of - first) as i32);
        self.e.f.inst(X::PrefetchW, Width::X, &[mem.into()]);
        Ok(())
    }

    /// How many bytes a window moves from one instance to the next.
    fn apart(&self, w: &Window) -> Option<i64> {
        self.apart_of(w.base, w.size)
    }

    /// The same for the base of a window over elements of so many bytes.
    pub fn apart_of(&self, base: Index, size: i64) -> Option<i64> {
        let Index::Val(base) = base else {
            return None;
        };
        let apart = self.step(base)?.checked_mul(size)?;
        (1..=MOST).contains(&apart).then_some(apart)
    }

    /// Whether a window consists of short rows far from each other.
    fn jumps(&self, c: &Ctx<'_, 'p>, w: &Window) -> bool {
        let Some(vector) = c.nest.vector.filter(|_| c.nest.staged.is_empty()) else {
            return false;
        };
        let bytes = |stride: Index| match stride {
            Index::Const(n) => n.saturating_mul(w.size),
            Index::Val(_) => 0,
        };
        let short = w.size * c.axes.extent[vector] <= SHORT;
        let far = |&(axis, stride): &(Option<Axis>, Index)| {
            axis.is_some() && axis != Some(vector) && bytes(stride) >= FAR
        };
        short && w.dims.iter().any(far)
    }
}
