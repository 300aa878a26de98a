//! Reductions: within a thread, across lanes by shuffles, across warps through shared memory, which those of a cluster write in each of its blocks ([`crate::cluster`]); and tiles that change their layout.

use std::rc::Rc;

use oxyfuel_base::{DType, Result, Scalar, ensure, err};
use oxyfuel_kernel::ir::{BinaryOp, Inst, Mode, Op, ReduceOp, TileLayout, Val};

use crate::access::When;
use crate::asm::{Class, Opd, Reg, braces};
use crate::emit::Emitter;
use crate::place::{Place, row_major};
use crate::scalar::compute_dtype;
use crate::value::{Int, Slot, Tile, class_of, literal, range_of};

/// The op on two elements, and the dtype it runs in.
fn step_of(op: ReduceOp, dtype: DType) -> (BinaryOp, DType) {
    match op {
        ReduceOp::Sum => (BinaryOp::Add, compute_dtype(dtype)),
        ReduceOp::Prod => (BinaryOp::Mul, compute_dtype(dtype)),
        ReduceOp::Min => (BinaryOp::Min, compute_dtype(dtype)),
        ReduceOp::Max => (BinaryOp::Max, compute_dtype(dtype)),
        // Truth values travel as integers, because predicates cannot be shuffled.
        ReduceOp::Any => (BinaryOp::Max, DType::U32),
        ReduceOp::All => (BinaryOp::Min, DType::U32),
    }
}

/// What changes nothing.
fn neutral(op: ReduceOp, dtype: DType) -> Opd {
    let extreme = |up: bool| {
        if dtype.is_float() {
            Scalar::F(if up { f64::INFINITY } else { f64::NEG_INFINITY })
        } else {
            let range = range_of(dtype);
            match (dtype, up) {
                (DType::U64, true) => Scalar::I(-1),
                (DType::U64, false) => Scalar::I(0),
                (_, true) => Scalar::I(range.hi),
                (_, false) => Scalar::I(range.lo),
            }
        }
    };
    match op {
        ReduceOp::Sum | ReduceOp::Any => literal(dtype, Scalar::I(0)),
        ReduceOp::Prod | ReduceOp::All => literal(dtype, Scalar::I(1)),
        ReduceOp::Min => literal(dtype, extreme(true)),
        ReduceOp::Max => literal(dtype, extreme(false)),
    }
}

/// A mode with the place it takes in its level.
fn placed(modes: &[Mode]) -> Vec<(u32, Mode)> {
    let mut by = 1;
    let mut out = Vec::new();
    for mode in modes {
        out.push((by, *mode));
        by *= mode.extent;
    }
    out
}

/// A reduction whose warps have not met yet.
pub(crate) struct Reducing {
    result: Val,
    step: BinaryOp,
    dtype: DType,
    /// What is reduced, and along which dims.
    tile: Tile,
    axes: Vec<u8>,
    /// One register for each of the coordinates that are kept.
    partial: Vec<Reg>,
    kept: Vec<Vec<i64>>,
    /// Where warps leave what they have, if several have a part.
    met: Option<Meeting>,
}

/// Partial results of all warps in shared memory.
struct Meeting {
    across: Vec<(u32, Mode)>,
    /// All lanes of a warp hold the same.
    uniform: bool,
    scratch: Reg,
    bytes: i64,
}

impl Emitter<'_> {
    /// Reductions that do not need each other: their warps meet once.
    pub(crate) fn reduce_all(&mut self, insts: &[Inst]) -> Result<()> {
        let mut all = Vec::with_capacity(insts.len());
        for inst in insts {
            let (Op::Reduce { op, value, axes }, &[result]) = (&inst.op, inst.results.as_slice())
            else {
                return Err(err!(Internal, "{} is no reduction", inst.op.row().name));
            };
            let first = all.iter().all(|one: &Reducing| one.met.is_none());
            all.push(self.reduce(result, *op, *value, axes, first)?);
        }
        let met = all.iter().filter_map(|one| one.met.as_ref());
        let bytes: i64 = met.map(|met| met.bytes).sum();
        if bytes > 0 && self.team.blocks > 1 {
            self.receive(bytes)?;
        } else if bytes > 0 {
            self.sync();
        }
        all.into_iter().try_for_each(|one| self.reduced(one))
    }

    /// Reduces within warps. Across warps it only begins: the others are to be waited for. Where reductions come together the first of them waits until scratch is free again.
    fn reduce(
        &mut self,
        result: Val,
        op: ReduceOp,
        value: Val,
        axes: &[u8],
        first: bool,
    ) -> Result<Reducing> {
        let tile = self.tile(value)?;
        let (step, dtype) = step_of(op, tile.dtype);
        let (slots, _) = self
            .asm
            .cast(self.target, tile.dtype, dtype, &tile.slots, tile.fact)?;
        // Sums of narrow integers may be wide.
        let slots: Vec<Slot> = match dtype {
            DType::I64 => slots
                .into_iter()
                .map(|slot| {
                    let opd = self.asm.element(dtype, slot);
                    let fact = tile.fact;
                    Slot::Opd(self.asm.widen(Int { opd, fact }))
                })
                .collect(),
            _ => slots,
        };
        let place = tile.place.clone();
        let on_axis = |mode: &Mode| axes.contains(&mode.dim) && mode.stride > 0 && mode.extent > 1;

        // Within the thread: registers that differ only along the axes.
        let bounds = self.bounds(&place, &vec![None; place.rank()])?;
        let mut kept: Vec<Vec<i64>> = Vec::new();
        let mut groups: Vec<Vec<Opd>> = Vec::new();
        let mut seen: Vec<Vec<i64>> = Vec::new();
        for (r, coords) in place.regs.iter().enumerate() {
            if place
                .layout
                .reg
                .iter()
                .any(|mode| mode.stride == 0 && mode.extent > 1)
            {
                // Copies of one element count once.
                if seen.contains(coords) {
                    continue;
                }
                seen.push(coords.clone());
            }
            let opd = self.asm.element(dtype, slots[r]);
            let along: Vec<_> = bounds
                .iter()
                .enumerate()
                .map(|(d, bound)| bound.filter(|_| axes.contains(&(d as u8))))
                .collect();
            let opd = match self.inside(&place, coords, &along)? {
                When::Always => opd,
                When::Never => neutral(op, dtype),
                When::If(p) => self.asm.select(
                    class_of(dtype, range_of(dtype)),
                    p.into(),
                    opd,
                    neutral(op, dtype),
                ),
            };
            let key: Vec<i64> = coords
                .iter()
                .enumerate()
                .map(|(d, c)| if axes.contains(&(d as u8)) { 0 } else { *c })
                .collect();
            match kept.iter().position(|k| *k == key) {
                Some(at) => groups[at].push(opd),
                None => {
                    kept.push(key);
                    groups.push(vec![opd]);
                }
            }
        }
        let mut partial = Vec::with_capacity(groups.len());
        for group in groups {
            let one = self.tree(step, dtype, group)?;
            partial.push(self.in_register(class_of(dtype, range_of(dtype)), one));
        }

        // Across lanes.
        for (by, mode) in placed(&place.layout.lane)
            .into_iter()
            .filter(|(_, mode)| on_axis(mode))
        {
            ensure!(
                mode.extent.is_power_of_two() && by.is_power_of_two(),
                NoLowering,
                "a reduction over {} lanes has no shuffles",
                mode.extent
            );
            let mut distance = mode.extent / 2;
            while distance > 0 {
                for one in &mut partial {
                    let other = self.shuffle(*one, distance * by);
                    let sum = self.combine(step, dtype, (*one).into(), other.into())?;
                    *one = self.in_register(one.class, sum);
                }
                distance /= 2;
            }
        }

        // Across warps.
        let across: Vec<(u32, Mode)> = placed(&place.layout.warp)
            .into_iter()
            .filter(|(_, mode)| on_axis(mode))
            .collect();
        let met = if across.is_empty() {
            None
        } else {
            let uniform = place
                .layout
                .lane
                .iter()
                .all(|mode| mode.stride == 0 || mode.extent == 1 || axes.contains(&mode.dim));
            Some(self.leave_for_others(&partial, across, uniform, first)?)
        };
        Ok(Reducing {
            result,
            step,
            dtype,
            tile,
            axes: axes.to_vec(),
            partial,
            kept,
            met,
        })
    }

    /// What is left of a reduction when all warps have met.
    fn reduced(&mut self, one: Reducing) -> Result<()> {
        let Reducing {
            result,
            step,
            dtype,
            tile,
            axes,
            mut partial,
            kept,
            met,
        } = one;
        if let Some(met) = met {
            partial = self.gathered(step, dtype, &partial, &met)?;
        }
        let place = tile.place.clone();
        // Where the result now lives: the same threads, replicated along the axes.
        let project = |modes: &[Mode]| {
            modes
                .iter()
                .map(|m| Mode {
                    stride: if axes.contains(&m.dim) { 0 } else { m.stride },
                    ..*m
                })
                .collect()
        };
        let shape: Vec<i64> = place
            .shape
            .iter()
            .enumerate()
            .map(|(d, n)| if axes.contains(&(d as u8)) { 1 } else { *n })
            .collect();
        let layout = TileLayout {
            warp: project(&place.layout.warp),
            lane: project(&place.layout.lane),
            reg: project(&place.layout.reg),
            ..TileLayout::default()
        };
        let mut projected = Place::new(&layout, &shape)?;
        projected.regs = kept;
        let slots: Vec<Slot> = partial.into_iter().map(Slot::from).collect();
        let (slots, fact) =
            self.asm
                .cast(self.target, dtype, tile.dtype, &slots, range_of(dtype))?;
        let reduced = Tile {
            dtype: tile.dtype,
            place: Rc::new(projected),
            slots,
            fact,
        };
        let strides = common_strides(&*self.place(result)?, &reduced.place, tile.dtype);
        self.relayout(result, &reduced, &strides, &strides)
    }

    fn combine(&mut self, op: BinaryOp, dtype: DType, a: Opd, b: Opd) -> Result<Opd> {
        let fact = range_of(dtype);
        Ok(self
            .asm
            .binary(op, dtype, Int { opd: a, fact }, Int { opd: b, fact })?
            .opd)
    }

    /// Combines pairwise, so that no chain is longer than it must be.
    fn tree(&mut self, op: BinaryOp, dtype: DType, mut items: Vec<Opd>) -> Result<Opd> {
        // A few running values hide latency; a full tree would keep every element alive.
        let lanes = items.len().clamp(1, 8).next_power_of_two();
        let rest = items.split_off(lanes.min(items.len()));
        for (i, item) in rest.into_iter().enumerate() {
            let at = i % lanes;
            items[at] = self.combine(op, dtype, items[at], item)?;
        }
        while items.len() > 1 {
            let half = items.len().div_ceil(2);
            for i in half..items.len() {
                items[i - half] = self.combine(op, dtype, items[i - half], items[i])?;
            }
            items.truncate(half);
        }
        items
            .pop()
            .ok_or_else(|| err!(Internal, "a reduction of nothing"))
    }

    /// The register of the lane whose number differs in the bits of `distance`.
    fn shuffle(&mut self, reg: Reg, distance: u32) -> Reg {
        let shuffle = |emitter: &mut Self, x: Reg| {
            let out = emitter.asm.reg(Class::B32);
            emitter.asm.line(format_args!(
                "shfl.sync.bfly.b32 {out}, {x}, {distance}, 31, -1"
            ));
            out
        };
        if reg.class != Class::B64 {
            return shuffle(self, reg);
        }
        let halves = self.asm.regs(Class::B32, 2);
        self.asm
            .line(format_args!("mov.b64 {}, {reg}", braces(&halves)));
        let (low, high) = (shuffle(self, halves[0]), shuffle(self, halves[1]));
        let out = self.asm.reg(Class::B64);
        self.asm
            .line(format_args!("mov.b64 {out}, {}", braces(&[low, high])));
        out
    }

    /// The lanes whose numbers are a scratch's rows, and the bytes and the type of one of its numbers.
    fn scratch_row(class: Class, uniform: bool) -> (i64, i64, &'static str) {
        let lanes = if uniform { 1 } else { 32 };
        if class == Class::B64 {
            (lanes, 8, "b64")
        } else {
            (lanes, 4, "b32")
        }
    }

    /// Leaves the partial results of this warp where the others find them: `[value][warp]` of one number, or `[value][warp][lane]`.
    fn leave_for_others(
        &mut self,
        partial: &[Reg],
        across: Vec<(u32, Mode)>,
        uniform: bool,
        first: bool,
    ) -> Result<Meeting> {
        let class = partial.first().map_or(Class::B32, |reg| reg.class);
        let (lanes, size, ty) = Self::scratch_row(class, uniform);
        let warps = i64::from(self.team.warps);
        let bytes = size * warps * lanes * partial.len() as i64;
        let scratch = self.shared_alloc(bytes.unsigned_abs(), 16);
        if self.loops > 0 && first {
            self.sync();
        }
        let tid = self.team.tid;
        let warp = self
            .asm
            .pure(Class::B32, "shr.u32", &[tid.into(), Opd::Int(5)]);
        let lane = self
            .asm
            .pure(Class::B32, "and.b32", &[tid.into(), Opd::Int(31)]);
        let row = size * lanes;
        let mut own = self.asm.pure(
            Class::B32,
            "mad.lo.s32",
            &[warp.into(), Opd::Int(row), scratch.into()],
        );
        let blocks = i64::from(self.team.blocks);
        let p = if uniform {
            // One lane for each block that wants to know.
            let (op, bound) = match blocks {
                1 => ("setp.eq.s32", 0),
                _ => ("setp.lt.s32", blocks),
            };
            let operands = [lane.into(), Opd::Int(bound)];
            Some(self.asm.pure(Class::Pred, op, &operands))
        } else {
            own = self.asm.pure(
                Class::B32,
                "mad.lo.s32",
                &[lane.into(), Opd::Int(size), own.into()],
            );
            None
        };
        if blocks == 1 {
            for (k, reg) in partial.iter().enumerate() {
                let at = k as i64 * warps * row;
                self.asm.line(format_args!(
                    "{}st.shared.{ty} [{own}+{at}], {reg}",
                    crate::emit::guard(p)
                ));
            }
        } else if uniform {
            let last = Opd::Int(blocks - 1);
            let rank = self.asm.pure(Class::B32, "min.s32", &[lane.into(), last]);
            self.send(p, partial, (own, warps * row, ty), rank.into())?;
        } else {
            for block in 0..blocks {
                self.send(p, partial, (own, warps * row, ty), Opd::Int(block))?;
            }
        }
        Ok(Meeting {
            across,
            uniform,
            scratch,
            bytes,
        })
    }

    /// Combines the partial results of warps that differ along the axes; every thread gets the whole.
    fn gathered(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        partial: &[Reg],
        met: &Meeting,
    ) -> Result<Vec<Reg>> {
        let class = class_of(dtype, range_of(dtype));
        let (lanes, size, ty) = Self::scratch_row(class, met.uniform);
        let (warps, row) = (i64::from(self.team.warps), size * lanes);
        let (across, uniform) = (&met.across, met.uniform);
        let tid = self.team.tid;
        let warp = self
            .asm
            .pure(Class::B32, "shr.u32", &[tid.into(), Opd::Int(5)]);
        let mut column = met.scratch;
        if !uniform {
            let lane = self
                .asm
                .pure(Class::B32, "and.b32", &[tid.into(), Opd::Int(31)]);
            column = self.asm.pure(
                Class::B32,
                "mad.lo.s32",
                &[lane.into(), Opd::Int(size), column.into()],
            );
        }
        // The warps that agree with this one off the axes.
        let mut others = vec![0i64];
        for (by, mode) in across {
            let before = others.clone();
            others = (0..i64::from(mode.extent))
                .flat_map(|i| before.iter().map(move |w| w + i * i64::from(*by)))
                .collect();
        }
        others.sort_unstable();
        if uniform && others.len() as i64 == warps && warps > 32 && warps % 32 == 0 {
            return self.gathered_by_lanes(op, dtype, partial.len(), met.scratch);
        }
        if others.len() as i64 != warps {
            let mut along = Int::constant(0);
            let number = Int {
                opd: warp.into(),
                fact: crate::fact::Fact::range(0, warps - 1),
            };
            for (by, mode) in across {
                let digit = self.asm.int_floordiv(number, i64::from(*by));
                let digit = self.asm.int_mod(digit, i64::from(mode.extent));
                let part = self.asm.int_mul(digit, Int::constant(i64::from(*by)));
                along = self.asm.int_add(along, part);
            }
            let rest = self.asm.int_sub(number, along);
            column = self.asm.pure(
                Class::B32,
                "mad.lo.s32",
                &[rest.opd, Opd::Int(row), column.into()],
            );
        }
        let vector = uniform && size == 4 && others.len() as i64 == warps && warps % 4 == 0;
        let mut out = Vec::with_capacity(partial.len());
        for k in 0..partial.len() {
            let start = k as i64 * warps * row;
            let mut items = Vec::with_capacity(others.len());
            for chunk in others.chunks(if vector { 4 } else { 1 }) {
                let regs = self.asm.regs(class, chunk.len());
                let v = if vector { ".v4" } else { "" };
                self.asm.line(format_args!(
                    "ld.shared{v}.{ty} {}, [{column}+{}]",
                    braces(&regs),
                    start + chunk[0] * row
                ));
                items.extend(regs.into_iter().map(Opd::from));
            }
            let one = self.tree(op, dtype, items)?;
            out.push(self.in_register(class, one));
        }
        Ok(out)
    }

    /// Combines the parts of more warps than a warp has lanes: each lane those of some warps, then all lanes.
    fn gathered_by_lanes(
        &mut self,
        op: BinaryOp,
        dtype: DType,
        values: usize,
        scratch: Reg,
    ) -> Result<Vec<Reg>> {
        let class = class_of(dtype, range_of(dtype));
        let (_, size, ty) = Self::scratch_row(class, true);
        let warps = i64::from(self.team.warps);
        let tid = self.team.tid;
        let lane = self
            .asm
            .pure(Class::B32, "and.b32", &[tid.into(), Opd::Int(31)]);
        let column = self.asm.pure(
            Class::B32,
            "mad.lo.s32",
            &[lane.into(), Opd::Int(size), scratch.into()],
        );
        let mut out = Vec::with_capacity(values);
        for k in 0..values as i64 {
            let mut items = Vec::new();
            for first in (0..warps).step_by(32) {
                let reg = self.asm.reg(class);
                let at = size * (k * warps + first);
                self.asm
                    .line(format_args!("ld.shared.{ty} {reg}, [{column}+{at}]"));
                items.push(Opd::from(reg));
            }
            let one = self.tree(op, dtype, items)?;
            let mut one = self.in_register(class, one);
            for distance in [16, 8, 4, 2, 1] {
                let other = self.shuffle(one, distance);
                let both = self.combine(op, dtype, one.into(), other.into())?;
                one = self.in_register(class, both);
            }
            out.push(one);
        }
        Ok(out)
    }

    // ---- layouts -------------------------------------------------------------------------------------------------------------------

    /// Defines `result` as the elements of `tile`: place `c` of the result is the element whose linear value under `source` equals that of `c`
    /// under `target`. Registers are renamed where every element stays in its thread; else the tile goes through shared memory.
    pub(crate) fn relayout(
        &mut self,
        result: Val,
        tile: &Tile,
        target: &[i64],
        source: &[i64],
    ) -> Result<()> {
        let place = self.place(result)?;
        if let Some(map) = place
            .linear(target)
            .within_thread(&tile.place.linear(source))
        {
            let slots = map.into_iter().map(|r| tile.slots[r]).collect();
            return self.define(result, slots, tile.fact);
        }
        let slots = self.exchange(tile, &place, target, source)?;
        let fact = if tile.dtype == DType::I64 {
            range_of(tile.dtype)
        } else {
            tile.fact
        };
        self.define(result, slots, fact)
    }

    fn exchange(
        &mut self,
        tile: &Tile,
        place: &Place,
        target: &[i64],
        source: &[i64],
    ) -> Result<Vec<Slot>> {
        ensure!(
            !self.team.single,
            NoLowering,
            "a single thread cannot exchange a tile"
        );
        ensure!(
            self.team.blocks == 1,
            NoLowering,
            "the blocks of a cluster cannot exchange a tile"
        );
        let reach = |p: &Place, strides: &[i64]| -> i64 {
            1 + (0..p.rank())
                .map(|d| (p.cover(d) - 1) * strides[d])
                .sum::<i64>()
        };
        let elements = reach(&tile.place, source).max(reach(place, target));
        let bytes = elements
            .saturating_mul(tile.dtype.size() as i64)
            .unsigned_abs();
        let (region, reused) = self.exchange_region(bytes);
        if reused || self.loops > 0 {
            self.sync();
        }
        let out = self.shared_window(tile.dtype, region, source);
        self.store_window(tile, &out, None)?;
        self.sync();
        let back = self.shared_window(tile.dtype, region, target);
        self.load_window(place, &back, None, Scalar::I(0))
    }

    pub(crate) fn convert_layout(&mut self, result: Val, value: Val) -> Result<()> {
        let tile = self.tile(value)?;
        let strides = common_strides(&*self.place(result)?, &tile.place, tile.dtype);
        self.relayout(result, &tile, &strides, &strides)
    }

    pub(crate) fn broadcast(&mut self, result: Val, value: Val) -> Result<()> {
        let tile = self.tile(value)?;
        let place = self.place(result)?;
        ensure!(
            place.rank() == tile.place.rank(),
            RankMismatch,
            "broadcast keeps the rank"
        );
        let mut strides = common_strides(&place, &tile.place, tile.dtype);
        for (d, stride) in strides.iter_mut().enumerate() {
            if tile.place.shape[d] == 1 && place.shape[d] != 1 {
                *stride = 0;
            }
        }
        self.relayout(result, &tile, &strides, &strides)
    }

    pub(crate) fn reshape(&mut self, result: Val, value: Val) -> Result<()> {
        let tile = self.tile(value)?;
        let place = self.place(result)?;
        let exact = |p: &Place| (0..p.rank()).all(|d| !p.overhangs(d));
        ensure!(
            exact(&place) && exact(&tile.place),
            NoLowering,
            "a reshape of a tile that its layout hangs over"
        );
        self.relayout(
            result,
            &tile,
            &row_major(&place.shape),
            &row_major(&tile.place.shape),
        )
    }

    pub(crate) fn permute(&mut self, result: Val, value: Val, perm: &[u8]) -> Result<()> {
        let tile = self.tile(value)?;
        let place = self.place(result)?;
        ensure!(
            perm.len() == tile.place.rank() && place.rank() == perm.len(),
            RankMismatch,
            "a permutation keeps the rank"
        );
        let reach: Vec<i64> = (0..perm.len())
            .map(|d| {
                let at = perm.iter().position(|p| usize::from(*p) == d).unwrap_or(d);
                place
                    .cover(at)
                    .max(tile.place.cover(d))
                    .max(tile.place.shape[d])
            })
            .collect();
        let source = row_major(&padded(reach, tile.dtype));
        let target: Vec<i64> = perm.iter().map(|d| source[usize::from(*d)]).collect();
        self.relayout(result, &tile, &target, &source)
    }
}

/// Strides under which neither layout maps two coordinates to one number. Rows are set off by 16 bytes, so that the elements of a column do not
/// meet in one bank of shared memory.
fn common_strides(a: &Place, b: &Place, dtype: DType) -> Vec<i64> {
    let reach = (0..a.rank().min(b.rank()))
        .map(|d| a.cover(d).max(b.cover(d)).max(a.shape[d]).max(b.shape[d]))
        .collect();
    row_major(&padded(reach, dtype))
}

fn padded(mut reach: Vec<i64>, dtype: DType) -> Vec<i64> {
    let rows: i64 = reach.iter().rev().skip(1).product();
    if let Some(last) = reach.last_mut()
        && rows > 1
    {
        let pad = 16 / dtype.size() as i64;
        *last = (*last + pad - 1) / pad * pad + pad;
    }
    reach
}
