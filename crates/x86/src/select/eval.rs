//! The elements of tile values at the current coordinates of a nest, and the effects that use them.

use oxyfuel_base::{DType, Result, Scalar, err};
use oxyfuel_kernel::ir::{Access, BinaryOp, CacheHint, Index, Inst, Op, ReduceOp, UnaryOp, Val};

use super::nest::{Ctx, Window};
use super::run::{Key, Sink, effect_key};
use super::{Def, Select, slot};
use crate::emit::{lane_bits, lane_bytes};
use crate::mir::{A, Mem, Op as X, Reg, Width};
use crate::vmem::{Apart, lane_offsets};

/// The type whose plain loads and stores move a lane as it is.
pub fn raw(dtype: DType) -> DType {
    match (dtype.is_bool(), lane_bytes(dtype)) {
        (true, _) => DType::Bool,
        (false, 8) => DType::F64,
        (false, _) => DType::F32,
    }
}

impl<'p> Select<'p, '_> {
    fn is_vector(&self, c: &Ctx<'_, 'p>, v: Val) -> bool {
        c.nest.vector.is_some_and(|a| c.nest.varies(v, a))
    }

    /// Lanes that a value is computed with: the loop's, or a whole register for a uniform value.
    fn lanes(&self, c: &Ctx<'_, 'p>, v: Val, dtype: DType) -> u32 {
        if self.is_vector(c, v) {
            c.nest.lanes
        } else {
            self.e.full_lanes(lane_bytes(dtype))
        }
    }

    /// Fewer lanes for a quotient or a root that is the same in all of them: one of 64 bytes takes twice as long as one of 16, and what follows waits for it.
    fn narrow(&self, dtype: DType, lanes: u32) -> Option<u32> {
        const FEW: u32 = 16;
        let bytes = lane_bytes(dtype);
        let float = matches!(dtype, DType::F32 | DType::F64);
        (float && lanes * bytes == 64).then_some(FEW / bytes)
    }

    /// The outermost level at which a value is known.
    fn level_of(&self, c: &Ctx<'_, 'p>, v: Val) -> usize {
        let deepest = (0..c.levels.len())
            .rev()
            .find(|&n| c.levels[n].axis.is_some_and(|a| c.nest.varies(v, a)))
            .unwrap_or(0);
        // Results of reductions exist only where the stages run.
        if c.nest.stage(v).is_some_and(|s| s > 0) {
            deepest.max(c.inner)
        } else {
            deepest
        }
    }

    /// Runs `f` with code going to level `level`: to where it stands now, or hoisted there.
    fn at_level<T>(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        level: usize,
        f: impl FnOnce(&mut Self, &mut Ctx<'_, 'p>) -> T,
    ) -> T {
        if level >= c.at {
            return f(self, c);
        }
        let hoist = c.levels[level].hoist;
        let back = self.e.f.enter(hoist);
        let at = std::mem::replace(&mut c.at, level);
        let out = f(self, c);
        c.at = at;
        self.e.f.leave(back);
        out
    }

    /// Whether a value changes with every step of the innermost loop and has not been computed in this one.
    pub fn is_fresh(&self, c: &Ctx<'_, 'p>, v: Val, copy: u32) -> bool {
        let level = self.level_of(c, v);
        let known = c.levels[level].memo.contains_key(&(v, copy));
        self.is_vector(c, v) && level >= c.at && !known
    }

    pub fn eval(&mut self, c: &mut Ctx<'_, 'p>, v: Val, copy: u32) -> Result<Reg> {
        let level = self.level_of(c, v);
        let copies = c.square.map_or(c.nest.vector, |square| Some(square.rows));
        let copy = match copies.is_some_and(|axis| c.nest.varies(v, axis)) {
            true => copy,
            false => 0,
        };
        if let Some(&r) = c.levels[level].memo.get(&(v, copy)) {
            return Ok(r);
        }
        let r = self.at_level(c, level, |s, c| s.compute(c, v, copy))?;
        c.levels[level].memo.insert((v, copy), r);
        Ok(r)
    }

    fn compute(&mut self, c: &mut Ctx<'_, 'p>, v: Val, copy: u32) -> Result<Reg> {
        let dtype = self.dtype(v)?;
        if let Some(stage) = c.nest.saved.iter().position(|list| list.contains(&v))
            && stage < c.stage
        {
            let w = self.scratch_window(c, v)?;
            let (mem, _) = self.place(c, &w, copy)?;
            return self.e.load(raw(dtype), mem, c.nest.lanes, None);
        }
        let inst = match self.defs.get(&v) {
            Some(Def::Lazy(inst)) => *inst,
            Some(Def::Uniform(r)) => return Ok(*r),
            Some(Def::Gpr(_)) => return self.splat_scalar(v),
            Some(Def::Saved { offset, strides }) => {
                let w = self.saved_window(c, v, *offset, &strides.clone())?;
                return self.read(c, &w, raw(dtype), v, None, copy);
            }
            Some(Def::Memory(_) | Def::Rows(_) | Def::Matrix(_)) | None => {
                return Err(err!(Internal, "{v} has no elements here"));
            }
        };
        let lanes = self.lanes(c, v, dtype);
        let uniform = !self.is_vector(c, v);
        // A uniform mask is all ones or zeros whatever its lanes are.
        let mask_bytes = self.e.mask_bytes;
        // What decides how many lanes there are; memory has none.
        let first = match &inst.op {
            Op::Gather { index, .. } => Some(*index),
            op => op.args().first().copied(),
        };
        if uniform && let Some(first) = first {
            let from = self.dtype(first).unwrap_or(dtype);
            self.e.mask_bytes = if from.is_bool() {
                lane_bytes(dtype)
            } else {
                lane_bytes(from)
            };
        }
        let out = self.compute_op(c, inst, v, dtype, lanes, copy, uniform);
        self.e.mask_bytes = mask_bytes;
        out
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; the arguments are what `compute` found out"
    )]
    fn compute_op(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        inst: &'p Inst,
        v: Val,
        dtype: DType,
        lanes: u32,
        copy: u32,
        uniform: bool,
    ) -> Result<Reg> {
        match &inst.op {
            Op::Splat { value } => self.splat_scalar(*value),
            Op::Broadcast { value }
            | Op::Reshape { value }
            | Op::Permute { value, .. }
            | Op::ConvertLayout { value } => self.eval(c, *value, copy),
            Op::Iota { dim } => self.iota(c, v, *dim as usize, dtype, copy),
            Op::Unary { op, value } => {
                let from = self.dtype(*value)?;
                let a = self.eval(c, *value, copy)?;
                let lanes = if uniform {
                    self.e.full_lanes(lane_bytes(from))
                } else {
                    lanes
                };
                let slow = matches!(op, UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip);
                if uniform
                    && slow
                    && let Some(few) = self.narrow(from, lanes)
                {
                    let r = self.e.unary(*op, from, a, few)?;
                    return Ok(self.e.splat_lane(r, lane_bytes(from)));
                }
                let r = self.e.unary(*op, from, a, lanes)?;
                Ok(if uniform && dtype.is_bool() && !from.is_bool() {
                    self.e.uniform_mask(r, lane_bytes(from))
                } else {
                    r
                })
            }
            Op::Binary { op, lhs, rhs } => {
                if *op == BinaryOp::Mul
                    && dtype == DType::F32
                    && self.e.avx512()
                    && c.nest.saved[..c.stage].iter().all(Vec::is_empty)
                    && let Some((p, k)) = self.scaled(v, *lhs, *rhs)
                    && c.nest.stage(k).is_some()
                {
                    let (p, k) = (self.eval(c, p, copy)?, self.eval(c, k, copy)?);
                    let w = Width::of_bytes(lanes * 4);
                    return Ok(self.e.vec(X::VScaleFPs, w, &[p.into(), k.into()]));
                }
                let (a, b) = (self.eval(c, *lhs, copy)?, self.eval(c, *rhs, copy)?);
                if uniform
                    && *op == BinaryOp::Div
                    && let Some(few) = self.narrow(dtype, lanes)
                {
                    let r = self.e.binary(*op, dtype, a, b, few)?;
                    return Ok(self.e.splat_lane(r, lane_bytes(dtype)));
                }
                if self.needs_lanes(*op, dtype, b) {
                    return self.binary_by_lanes(*op, dtype, a, b, lanes);
                }
                if dtype.is_int()
                    && let Some(log) = self.power_of_two(*op, dtype, b)
                {
                    return self.shift_or_mask(*op, dtype, a, log, lanes);
                }
                self.e.binary(*op, dtype, a, b, lanes)
            }
            Op::Compare { op, lhs, rhs } => {
                let from = self.dtype(*lhs)?;
                let (a, b) = (self.eval(c, *lhs, copy)?, self.eval(c, *rhs, copy)?);
                let lanes = if uniform {
                    self.e.full_lanes(lane_bytes(from))
                } else {
                    lanes
                };
                let r = self.e.compare(*op, from, a, b, lanes)?;
                Ok(if uniform && !from.is_bool() {
                    self.e.uniform_mask(r, lane_bytes(from))
                } else {
                    r
                })
            }
            Op::Select {
                cond,
                on_true,
                on_false,
            } => {
                let m = self.eval(c, *cond, copy)?;
                let (a, b) = (
                    self.eval(c, *on_true, copy)?,
                    self.eval(c, *on_false, copy)?,
                );
                if uniform {
                    self.e.mask_bytes = lane_bytes(dtype);
                }
                self.e.select(dtype, m, a, b, lanes)
            }
            Op::Fma { a, b, c: addend } => {
                // Of a long sum what came before is first, so that the factors of all of it do not wait in registers.
                if let Some(Def::Lazy(before)) = self.defs.get(addend)
                    && let Op::Fma { .. } = before.op
                {
                    self.eval(c, *addend, copy)?;
                }
                let (x, y, z) = (
                    self.eval(c, *a, copy)?,
                    self.eval(c, *b, copy)?,
                    self.eval(c, *addend, copy)?,
                );
                self.e.fma(dtype, x, y, z, lanes)
            }
            Op::Cast { value } => {
                let from = self.dtype(*value)?;
                let a = self.eval(c, *value, copy)?;
                if uniform {
                    return self.cast_uniform(from, dtype, a);
                }
                self.e.cast(from, dtype, a, lanes)
            }
            Op::Bitcast { value } => {
                let from = self.dtype(*value)?;
                let a = self.eval(c, *value, copy)?;
                self.e.bitcast(from, dtype, a, lanes)
            }
            Op::Load {
                access, mask, fill, ..
            } => self.load(c, v, access, *mask, *fill, copy),
            Op::Gather {
                mem,
                index,
                mask,
                fill,
            } => {
                let at = self.eval(c, *index, copy)?;
                let index_bytes = lane_bytes(self.dtype(*index)?);
                let user = mask.map(|m| self.eval(c, m, copy)).transpose()?;
                let (lanes, every) = if uniform {
                    (self.e.full_lanes(index_bytes.max(lane_bytes(dtype))), user)
                } else {
                    (lanes, self.with_tail(c, user))
                };
                let base = self.memory(*mem)?;
                let r = self.e.gather(dtype, base, at, index_bytes, lanes, every)?;
                let r = self.filled(dtype, r, user, *fill, lanes)?;
                Ok(match uniform {
                    true if dtype.is_bool() => self.e.uniform_mask(r, index_bytes),
                    true => self.e.splat_lane(r, lane_bytes(dtype)),
                    false => r,
                })
            }
            Op::Reduce { op, value, .. } if self.folded(c.axes, v).is_empty() => {
                let _: &ReduceOp = op;
                self.eval(c, *value, copy)
            }
            Op::ArgReduce { .. } if self.folded(c.axes, v).is_empty() => {
                Ok(self.e.int(0, lane_bytes(dtype)))
            }
            _ => Err(err!(
                NoLowering,
                "x86 has no code for `{}` here",
                inst.op.row().name
            )),
        }
    }

    fn iota(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        v: Val,
        dim: usize,
        dtype: DType,
        copy: u32,
    ) -> Result<Reg> {
        let bytes = lane_bytes(dtype);
        let Some(axis) = c.axes.of(Key::Val(slot(v)), dim) else {
            return Ok(self.e.int(0, bytes));
        };
        let counter = c
            .levels
            .iter()
            .rev()
            .find(|l| l.axis == Some(axis))
            .map(|l| l.counter);
        let counter = counter.ok_or_else(|| err!(Internal, "an axis without its loop"))?;
        let base = self.e.splat_gpr(counter, bytes);
        if Some(axis) != c.nest.vector {
            return Ok(base);
        }
        let steps = self.e.iota(i64::from(copy * c.nest.lanes), bytes);
        self.e.binary(
            BinaryOp::Add,
            if bytes == 8 { DType::I64 } else { DType::I32 },
            base,
            steps,
            c.nest.lanes,
        )
    }

    /// A mask that also leaves out the lanes past a partial vector.
    fn with_tail(&mut self, c: &Ctx<'_, 'p>, mask: Option<Reg>) -> Option<Reg> {
        match (mask, c.tail) {
            (Some(m), Some(t)) => Some(self.e.mask_binary(BinaryOp::And, m, t)),
            (m, t) => m.or(t),
        }
    }

    fn filled(
        &mut self,
        dtype: DType,
        r: Reg,
        mask: Option<Reg>,
        fill: Scalar,
        lanes: u32,
    ) -> Result<Reg> {
        let Some(mask) = mask else { return Ok(r) };
        if dtype.is_bool() {
            if !fill.as_bool() {
                return Ok(self.e.mask_binary(BinaryOp::And, r, mask));
            }
            let off = self.e.mask_not(mask);
            return Ok(self.e.mask_binary(BinaryOp::Or, r, off));
        }
        let bits = lane_bits(fill, dtype);
        if bits == 0 {
            return Ok(r);
        }
        let f = self.e.constant(bits, lane_bytes(dtype));
        self.e.select(dtype, mask, r, f, lanes)
    }

    fn load(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        v: Val,
        access: &Access,
        mask: Option<Val>,
        fill: Scalar,
        copy: u32,
    ) -> Result<Reg> {
        let key = Key::Val(slot(v));
        let dtype = self.dtype(v)?;
        let uniform = !self.is_vector(c, v);
        let user = mask.map(|m| self.eval(c, m, copy)).transpose()?;
        let valid = self.bounds(c, key, access, copy)?;
        let mask = match (user, valid) {
            (Some(a), Some(b)) => Some(self.e.mask_binary(BinaryOp::And, a, b)),
            (a, b) => a.or(b),
        };
        let w = self.window(c, key, access)?;
        let w = self.led(c, w);
        if !uniform {
            self.ask_ahead(c, v, &w, copy)?;
        }
        let r = self.read(c, &w, dtype, v, mask, copy)?;
        let lanes = self.lanes(c, v, dtype);
        if uniform {
            self.e.mask_bytes = lane_bytes(dtype);
        }
        self.filled(dtype, r, mask, fill, lanes)
    }

    /// Reads a window at the current coordinates. Lanes that are off, or past a partial vector, are zero.
    fn read(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        w: &Window,
        dtype: DType,
        v: Val,
        mask: Option<Reg>,
        copy: u32,
    ) -> Result<Reg> {
        if !self.is_vector(c, v) {
            let p = self.pointer(c, w)?;
            let at = w.at(p, w.copy(c, copy).1);
            let Some(mask) = mask else {
                return self.e.load_uniform(dtype, at);
            };
            return self.load_if(dtype, at, mask);
        }
        let every = self.with_tail(c, mask);
        let (mem, stride) = self.place(c, w, copy)?;
        match stride {
            Index::Const(1) => self.e.load(dtype, mem, c.nest.lanes, every),
            // Where a mask is off there may be nothing to read, and zero is the result.
            Index::Const(0) if mask.is_none() => {
                let p = self.e.gpr(X::Lea, &[mem.into()]);
                self.e.load_uniform(dtype, Mem::at(p, 0))
            }
            Index::Const(s) => {
                let offsets = lane_offsets(s, c.nest.lanes).filter(|_| s >= 0 || w.size >= 4);
                let Some(offsets) = offsets else {
                    let apart = self.e.imm(s * w.size);
                    return self.load_one_by_one(c, dtype, mem, apart, every);
                };
                let base = self.e.gpr(X::Lea, &[mem.into()]);
                let index = self.e.vector(offsets, 4);
                self.e.gather(dtype, base, index, 4, c.nest.lanes, every)
            }
            Index::Val(s) => {
                let s = self.gpr(s)?;
                let apart = self.e.gpr(X::ImulI, &[s.into(), A::I(w.size)]);
                self.load_one_by_one(c, dtype, mem, apart, every)
            }
        }
    }

    fn load_one_by_one(
        &mut self,
        c: &Ctx<'_, 'p>,
        dtype: DType,
        mem: Mem,
        apart: Reg,
        mask: Option<Reg>,
    ) -> Result<Reg> {
        let at = self.lane_place()? as i32;
        let place = Mem::at(self.scratch, at);
        self.e
            .load_one_by_one(dtype, mem, apart, c.nest.lanes, mask, place)
    }

    /// One element where a uniform mask is on, zero elsewhere.
    fn load_if(&mut self, dtype: DType, mem: Mem, mask: Reg) -> Result<Reg> {
        let bit = self.e.bool_of(mask);
        let skip = self.e.f.label();
        if dtype.is_bool() {
            let value = self.e.imm(0);
            self.e.g(X::Test, &[bit.into(), bit.into()]);
            self.e.f.jump(crate::mir::Cond::E, skip);
            let loaded = self.e.load_gpr(dtype, mem)?;
            self.e.f.copy(Width::X, value, loaded);
            self.e.f.bind(skip);
            return Ok(self.e.splat_bool(value));
        }
        let d = self.e.f.vec();
        self.e.f.inst(X::VZero, Width::X, &[d.into()]);
        self.e.g(X::Test, &[bit.into(), bit.into()]);
        self.e.f.jump(crate::mir::Cond::E, skip);
        let r = self.e.load_uniform(dtype, mem)?;
        self.e.f.copy(self.e.level.width(), d, r);
        self.e.f.bind(skip);
        Ok(d)
    }

    /// Memory operand of the current vector of a window, and the stride between its lanes.
    pub fn place(&mut self, c: &mut Ctx<'_, 'p>, w: &Window, copy: u32) -> Result<(Mem, Index)> {
        let p = self.pointer(c, w)?;
        let along = w
            .dims
            .iter()
            .find(|d| d.0.is_some() && d.0 == c.nest.vector)
            .map(|d| d.1);
        let stride = along.unwrap_or(Index::Const(1));
        let counter = c.vector_level.map_or(Reg::NONE, |n| c.levels[n].counter);
        let (first, down) = w.copy(c, copy);
        if along.is_none() {
            // Scratch of a parallel vector axis: the vectors of one step side by side.
            return Ok((w.at(p, first * w.size + down), stride));
        }
        match stride {
            Index::Const(1) => Ok((
                Mem::indexed(
                    p,
                    counter,
                    w.size as u8,
                    (w.ahead + first * w.size + down) as i32,
                ),
                stride,
            )),
            Index::Const(0) => Ok((w.at(p, down), stride)),
            Index::Const(_) | Index::Val(_) => {
                let at = self.e.copy_gpr(counter);
                if first > 0 {
                    self.e.gpr_imm(X::AddI, X::Add, at, first);
                }
                match stride {
                    Index::Const(s) => {
                        let r = self.e.imm(s);
                        self.e.g(X::Imul, &[at.into(), r.into()]);
                    }
                    Index::Val(v) => {
                        let r = self.gpr(v)?;
                        self.e.g(X::Imul, &[at.into(), r.into()]);
                    }
                }
                let mem = Mem::indexed(p, at, w.size as u8, (w.ahead + down) as i32);
                Ok((mem, stride))
            }
        }
    }

    /// The mask of a window's own bounds, as far as the loops do not keep them already.
    fn bounds(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        key: Key,
        access: &Access,
        copy: u32,
    ) -> Result<Option<Reg>> {
        let mut all: Option<Reg> = None;
        for (d, valid) in access.valid.iter().enumerate() {
            let Some(valid) = valid else { continue };
            let axis = c.axes.of(key, d);
            if let Index::Const(n) = valid
                && *n >= access.shape[d]
            {
                continue;
            }
            let vector = axis.is_some() && axis == c.nest.vector;
            if let Some(a) = axis
                && (c.kept.contains(&(a, *valid))
                    || (vector && c.nest.staged.contains(&a) && !c.test_bounds))
            {
                continue;
            }
            let level = axis
                .and_then(|a| c.levels.iter().rposition(|l| l.axis == Some(a)))
                .unwrap_or(0);
            let mask = if vector {
                let limit = self.index(valid)?;
                let rest = self.e.copy_gpr(limit);
                self.e
                    .g(X::Sub, &[rest.into(), c.levels[level].counter.into()]);
                if copy > 0 {
                    self.e
                        .gpr_imm(X::SubI, X::Sub, rest, i64::from(copy * c.nest.lanes));
                }
                self.e.lanes_below(rest)
            } else if let Some(&m) = c.levels[level].masks.get(&(key, d)) {
                m
            } else {
                let valid = *valid;
                let m = self.at_level(c, level, |s, c| {
                    let limit = s.index(&valid)?;
                    let at = if axis.is_some() {
                        c.levels[level].counter
                    } else {
                        s.e.imm(0)
                    };
                    let bit =
                        s.int_compare(oxyfuel_kernel::ir::CompareOp::Lt, DType::I64, at, limit);
                    Ok::<Reg, oxyfuel_base::Error>(s.e.splat_bool(bit))
                })?;
                c.levels[level].masks.insert((key, d), m);
                m
            };
            all = Some(match all {
                Some(m) => self.e.mask_binary(BinaryOp::And, m, mask),
                None => mask,
            });
        }
        Ok(all)
    }

    pub fn effect(&mut self, c: &mut Ctx<'_, 'p>, sink: Sink<'p>, copy: u32) -> Result<()> {
        match sink {
            Sink::Effect(inst) => match &inst.op {
                Op::Store {
                    access,
                    value,
                    mask,
                    hint,
                } => self.store(c, inst, access, *value, *mask, *hint, copy),
                Op::Scatter {
                    mem,
                    index,
                    value,
                    mask,
                } => self.scatter(c, *mem, *index, *value, *mask, copy),
                other => Err(err!(
                    NoLowering,
                    "x86 has no code for `{}`",
                    other.row().name
                )),
            },
            Sink::Keep(v) => self.keep_element(c, v, copy),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one op")]
    fn store(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        inst: &'p Inst,
        access: &Access,
        value: Val,
        mask: Option<Val>,
        hint: CacheHint,
        copy: u32,
    ) -> Result<()> {
        let key = effect_key(inst);
        let dtype = self.dtype(value)?;
        let exact = self.rounded_from(c, value);
        let r = self.eval(c, exact.unwrap_or(value), copy)?;
        let user = mask.map(|m| self.eval(c, m, copy)).transpose()?;
        let valid = self.bounds(c, key, access, copy)?;
        let mut all = match (user, valid) {
            (Some(a), Some(b)) => Some(self.e.mask_binary(BinaryOp::And, a, b)),
            (a, b) => a.or(b),
        };
        let w = self.window(c, key, access)?;
        let w = self.led(c, w);
        let along = w
            .dims
            .iter()
            .position(|d| d.0.is_some() && d.0 == c.nest.vector);
        let Some(dim) = along else {
            let r = match exact {
                Some(_) => self.e.round_to_bf16(r, c.nest.lanes),
                None => r,
            };
            return self.store_one(c, &w, dtype, r, all);
        };
        all = self.with_tail(c, all);
        let streaming = all.is_none() && self.streams(c, access, dim, dtype, hint);
        if !streaming {
            self.ask_ahead_to_write(c, &w, copy, hint)?;
        }
        let (mem, stride) = self.place(c, &w, copy)?;
        let whole = stride == Index::Const(1) && all.is_none() && !streaming;
        let r = match exact {
            Some(_) if whole => {
                let normal = exact.is_some_and(|from| self.is_no_denormal(from));
                self.e.store_rounded_bf16(mem, r, c.nest.lanes, normal);
                return Ok(());
            }
            Some(_) => self.e.round_to_bf16(r, c.nest.lanes),
            None => r,
        };
        if stride == Index::Const(1) {
            self.streamed |= streaming;
            return self.e.store(dtype, mem, r, c.nest.lanes, all, streaming);
        }
        self.store_across(dtype, mem, r, c.nest.lanes, stride, all)
    }

    /// What a value is rounded from, if the machine rounds it as it is stored.
    pub fn rounded_from(&self, c: &Ctx<'_, 'p>, value: Val) -> Option<Val> {
        let Some(Def::Lazy(Inst {
            op: Op::Cast { value: from },
            ..
        })) = self.defs.get(&value)
        else {
            return None;
        };
        let fits = self.e.level.avx512_bf16 && c.nest.lanes == self.e.full_lanes(4);
        let casts = self.dtype(value).is_ok_and(|d| d == DType::BF16)
            && self.dtype(*from).is_ok_and(|d| d == DType::F32);
        let kept = c.nest.saved.iter().any(|list| list.contains(&value));
        (fits && casts && !kept && self.is_vector(c, value)).then_some(*from)
    }

    /// Whether a value is certainly no denormal number.
    fn is_no_denormal(&self, value: Val) -> bool {
        let power = |inst: &Inst| {
            matches!(
                inst.op,
                Op::Unary {
                    op: UnaryOp::NearExp2,
                    ..
                }
            )
        };
        matches!(self.defs.get(&value), Some(Def::Lazy(inst)) if power(inst))
    }

    /// Lanes `stride` elements from each other.
    pub fn store_across(
        &mut self,
        dtype: DType,
        mem: Mem,
        r: Reg,
        lanes: u32,
        stride: Index,
        mask: Option<Reg>,
    ) -> Result<()> {
        let size = dtype.size() as i64;
        let apart = match stride {
            Index::Const(s) => Apart::Bytes(s * size),
            Index::Val(s) => {
                let s = self.gpr(s)?;
                Apart::Reg(self.e.gpr(X::ImulI, &[s.into(), A::I(size)]))
            }
        };
        self.e.store_strided(dtype, mem, r, lanes, apart, mask)
    }

    /// Lane 0 of a uniform value.
    pub fn store_one(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        w: &Window,
        dtype: DType,
        r: Reg,
        mask: Option<Reg>,
    ) -> Result<()> {
        let p = self.pointer(c, w)?;
        let bytes = lane_bytes(dtype);
        let back = std::mem::replace(&mut self.e.mask_bytes, bytes);
        let one = self.e.first_lanes(1);
        let m = match mask {
            Some(m) => self.e.mask_binary(BinaryOp::And, one, m),
            None => one,
        };
        let out = self.e.store(
            dtype,
            w.at(p, 0),
            r,
            self.e.full_lanes(bytes),
            Some(m),
            false,
        );
        self.e.mask_bytes = back;
        out
    }

    fn scatter(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        mem: Val,
        index: Val,
        value: Val,
        mask: Option<Val>,
        copy: u32,
    ) -> Result<()> {
        let dtype = self.dtype(value)?;
        let at = self.eval(c, index, copy)?;
        let index_bytes = lane_bytes(self.dtype(index)?);
        let r = self.eval(c, value, copy)?;
        let user = mask.map(|m| self.eval(c, m, copy)).transpose()?;
        let all = self.with_tail(c, user);
        let base = self.memory(mem)?;
        if c.vector_level.is_none() {
            let one = self.e.first_lanes(1);
            let m = match all {
                Some(m) => self.e.mask_binary(BinaryOp::And, one, m),
                None => one,
            };
            let lanes = self.e.full_lanes(index_bytes.max(lane_bytes(dtype)));
            return self
                .e
                .scatter(dtype, base, at, index_bytes, r, lanes, Some(m));
        }
        self.e
            .scatter(dtype, base, at, index_bytes, r, c.nest.lanes, all)
    }
}
