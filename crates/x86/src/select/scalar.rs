//! Tiles of rank 0: integers and bools in general registers, floats repeated over a vector.
//!
//! A small integer is kept extended to 64 bits as its signedness says, so that 64-bit arithmetic followed by the same
//! extension is the type's own.

use oxyfuel_base::{DType, Error, Expr, Result, err};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Index, Inst, Op, ParamKind, UnaryOp, Val};

use super::{Def, Select, slot};
use crate::emit::{lane_bits, lane_bytes};
use crate::mir::{A, Cond, Mem, Op as X, Reg, Width};

impl<'p> Select<'p, '_> {
    /// Emits an op whose result is a scalar.
    pub fn scalar(&mut self, inst: &'p Inst, result: Val) -> Result<()> {
        let dtype = self.dtype(result)?;
        let def = match &inst.op {
            Op::ProgramId { axis } => {
                let r = *self
                    .pids
                    .get(*axis as usize)
                    .ok_or_else(|| axis_error(*axis))?;
                Def::Gpr(r)
            }
            Op::NumPrograms { axis } => {
                let r = *self
                    .extents
                    .get(*axis as usize)
                    .ok_or_else(|| axis_error(*axis))?;
                Def::Gpr(r)
            }
            Op::Const { value } if dtype.is_float() => {
                let r = self.e.constant(lane_bits(*value, dtype), lane_bytes(dtype));
                Def::Uniform(r)
            }
            Op::Const { value } => Def::Gpr(self.e.imm(value.cast(dtype).as_i64())),
            Op::Load {
                access, mask, fill, ..
            } => {
                if mask.is_some() {
                    return Err(err!(
                        NoLowering,
                        "a masked load of a scalar (fill {fill:?})"
                    ));
                }
                let pointer = self.address(access.mem, &access.base)?;
                let mem = Mem::at(pointer, 0);
                if dtype.is_float() {
                    Def::Uniform(self.e.load_uniform(dtype, mem)?)
                } else {
                    Def::Gpr(self.e.load_gpr(dtype, mem)?)
                }
            }
            Op::Gather {
                mem,
                index,
                mask: None,
                ..
            } => {
                let pointer = self.address(*mem, &Index::Val(*index))?;
                let mem = Mem::at(pointer, 0);
                if dtype.is_float() {
                    Def::Uniform(self.e.load_uniform(dtype, mem)?)
                } else {
                    Def::Gpr(self.e.load_gpr(dtype, mem)?)
                }
            }
            Op::Unary { op, value } if dtype.is_float() => {
                let a = self.uniform(*value)?;
                Def::Uniform(
                    self.e
                        .unary(*op, dtype, a, self.e.full_lanes(lane_bytes(dtype)))?,
                )
            }
            Op::Unary {
                op: UnaryOp::IsNan,
                value,
            } => {
                let from = self.dtype(*value)?;
                let a = self.uniform(*value)?;
                Def::Gpr(self.float_test(
                    |s| {
                        s.e.unary(UnaryOp::IsNan, from, a, s.e.full_lanes(lane_bytes(from)))
                    },
                    from,
                )?)
            }
            Op::Unary { op, value } => Def::Gpr(self.int_unary(*op, dtype, *value)?),
            Op::Binary { op, lhs, rhs } if dtype.is_float() => {
                let (a, b) = (self.uniform(*lhs)?, self.uniform(*rhs)?);
                Def::Uniform(self.e.binary(
                    *op,
                    dtype,
                    a,
                    b,
                    self.e.full_lanes(lane_bytes(dtype)),
                )?)
            }
            Op::Binary { op, lhs, rhs } if self.by_constant(*op, *rhs, dtype).is_some() => {
                let a = self.gpr(*lhs)?;
                let (row, amount) = self.by_constant(*op, *rhs, dtype).unwrap_or((X::AddI, 0));
                let d = self.e.copy_gpr(a);
                self.e.g(row, &[d.into(), A::I(amount)]);
                Def::Gpr(self.extend(dtype, d))
            }
            Op::Binary { op, lhs, rhs } => {
                let (a, b) = (self.gpr(*lhs)?, self.gpr(*rhs)?);
                Def::Gpr(self.int_binary(*op, dtype, a, b)?)
            }
            Op::Compare { op, lhs, rhs } => {
                let from = self.dtype(*lhs)?;
                if from.is_float() {
                    let (a, b) = (self.uniform(*lhs)?, self.uniform(*rhs)?);
                    let lanes = self.e.full_lanes(lane_bytes(from));
                    Def::Gpr(self.float_test(|s| s.e.compare(*op, from, a, b, lanes), from)?)
                } else {
                    let (a, b) = (self.gpr(*lhs)?, self.gpr(*rhs)?);
                    Def::Gpr(self.int_compare(*op, from, a, b))
                }
            }
            Op::Select {
                cond,
                on_true,
                on_false,
            } => {
                let c = self.gpr(*cond)?;
                if dtype.is_float() {
                    let (a, b) = (self.uniform(*on_true)?, self.uniform(*on_false)?);
                    let bytes = lane_bytes(dtype);
                    let mask = self.e.splat_bool(c);
                    self.e.mask_bytes = bytes;
                    Def::Uniform(self.e.select(dtype, mask, a, b, self.e.full_lanes(bytes))?)
                } else {
                    let (a, b) = (self.gpr(*on_true)?, self.gpr(*on_false)?);
                    let d = self.e.copy_gpr(b);
                    self.e.g(X::Test, &[c.into(), c.into()]);
                    self.e.g(X::CmovNe, &[d.into(), a.into()]);
                    Def::Gpr(d)
                }
            }
            Op::Fma { a, b, c } if dtype.is_float() => {
                let (a, b, c) = (self.uniform(*a)?, self.uniform(*b)?, self.uniform(*c)?);
                Def::Uniform(
                    self.e
                        .fma(dtype, a, b, c, self.e.full_lanes(lane_bytes(dtype)))?,
                )
            }
            Op::Fma { a, b, c } => {
                let (a, b, c) = (self.gpr(*a)?, self.gpr(*b)?, self.gpr(*c)?);
                let product = self.int_binary(BinaryOp::Mul, dtype, a, b)?;
                Def::Gpr(self.int_binary(BinaryOp::Add, dtype, product, c)?)
            }
            Op::Cast { value } => self.scalar_cast(*value, dtype)?,
            Op::Bitcast { value } => self.scalar_bitcast(*value, dtype)?,
            Op::Reshape { value }
            | Op::Broadcast { value }
            | Op::ConvertLayout { value }
            | Op::Permute { value, .. } => self.scalar_of_tile(*value, dtype)?,
            Op::Splat { value } => self
                .defs
                .get(value)
                .cloned()
                .ok_or_else(|| err!(Internal, "{value} is not here"))?,
            _ => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for a scalar `{}`",
                    inst.op.row().name
                ));
            }
        };
        self.defs.insert(result, def);
        Ok(())
    }

    /// A tile of one element as a scalar.
    fn scalar_of_tile(&mut self, value: Val, dtype: DType) -> Result<Def<'p>> {
        if let Some(def @ (Def::Gpr(_) | Def::Uniform(_))) = self.defs.get(&value)
            && (self.is_scalar(value) || dtype.is_float())
        {
            return Ok(def.clone());
        }
        let kept = self.folded_beside(value);
        self.flush(&kept)?;
        let v = match self.defs.get(&value) {
            Some(Def::Uniform(v)) => *v,
            _ => return Err(err!(NoLowering, "a tile of several elements as a scalar")),
        };
        if dtype.is_float() {
            return Ok(Def::Uniform(v));
        }
        if dtype.is_bool() {
            return Ok(Def::Gpr(self.e.bool_of(v)));
        }
        let op = if lane_bytes(dtype) == 8 {
            X::VMovQG
        } else {
            X::VMovDG
        };
        let r = self.e.f.gpr();
        self.e.f.inst(op, Width::X, &[r.into(), v.into()]);
        Ok(Def::Gpr(self.extend(dtype, r)))
    }

    /// A tile of one element, and others like it that wait for reductions and that later code reads: one pass over what they fold serves all of them.
    fn folded_beside(&self, value: Val) -> Vec<Val> {
        let folds = |v: Val| {
            let (mut seen, mut order) = (self.marks(), Vec::new());
            self.reach(v, &mut seen, &mut order);
            let defs = order.iter().filter_map(|v| self.defs.get(v));
            defs.into_iter()
                .any(|def| matches!(def, Def::Lazy(inst) if matches!(inst.op, Op::Reduce { .. })))
        };
        let one = |v: Val| (self.p.tile(v)).is_ok_and(|t| t.shape.iter().product::<i64>() == 1);
        let waits = |v: &Val| {
            let lazy = matches!(self.defs.get(v), Some(Def::Lazy(_)));
            *v != value && lazy && one(*v) && self.uses[slot(*v)] > 0
        };
        let mut kept = vec![value];
        if folds(value) {
            kept.extend(self.defs.keys().filter(waits).filter(|v| folds(*v)));
        }
        kept
    }

    /// The one instruction that an integer op with a constant is.
    fn by_constant(&self, op: BinaryOp, rhs: Val, dtype: DType) -> Option<(X, i64)> {
        let Some(Op::Const { value }) = self.origin(rhs) else {
            return None;
        };
        let n = value.as_i64();
        let power = n > 0 && n & (n - 1) == 0;
        let log = i64::from(n.trailing_zeros());
        let small = i32::try_from(n).is_ok();
        match op {
            BinaryOp::Add if small => Some((X::AddI, n)),
            BinaryOp::Sub if small => Some((X::SubI, n)),
            BinaryOp::Mul if power => Some((X::ShlI, log)),
            BinaryOp::FloorDiv if power && dtype.is_signed() => Some((X::SarI, log)),
            BinaryOp::Div | BinaryOp::FloorDiv if power && !dtype.is_signed() => {
                Some((X::ShrI, log))
            }
            BinaryOp::Mod if power && small => Some((X::AndI, n - 1)),
            BinaryOp::Rem if power && small && !dtype.is_signed() => Some((X::AndI, n - 1)),
            _ => None,
        }
    }

    fn float_test(
        &mut self,
        test: impl FnOnce(&mut Self) -> Result<Reg>,
        from: DType,
    ) -> Result<Reg> {
        self.e.mask_bytes = lane_bytes(from);
        let m = test(self)?;
        Ok(self.e.bool_of(m))
    }

    fn scalar_cast(&mut self, value: Val, to: DType) -> Result<Def<'p>> {
        let from = self.dtype(value)?;
        if !from.is_float() && !to.is_float() {
            let r = self.gpr(value)?;
            if to.is_bool() {
                let zero = self.e.imm(0);
                return Ok(Def::Gpr(self.int_compare(
                    CompareOp::Ne,
                    DType::I64,
                    r,
                    zero,
                )));
            }
            return Ok(Def::Gpr(self.extend(to, r)));
        }
        let v = match (from.is_float(), from.is_bool()) {
            (true, _) => self.uniform(value)?,
            (false, true) => {
                let r = self.gpr(value)?;
                self.e.splat_bool(r)
            }
            (false, false) if from != DType::U64 && matches!(to, DType::F32 | DType::F64) => {
                let r = self.gpr(value)?;
                let double = to == DType::F64;
                let zero = self.e.f.vec();
                self.e.f.inst(X::VZero, Width::X, &[zero.into()]);
                let row = if double { X::VCvtSi2Sd } else { X::VCvtSi2Ss };
                let v = self.e.vec(row, Width::X, &[zero.into(), r.into()]);
                return Ok(Def::Uniform(self.e.splat_lane(v, lane_bytes(to))));
            }
            (false, false) => {
                let r = self.gpr(value)?;
                self.e.splat_gpr(r, lane_bytes(from))
            }
        };
        let v = self.cast_uniform(from, to, v)?;
        if to.is_float() {
            return Ok(Def::Uniform(v));
        }
        if to.is_bool() {
            return Ok(Def::Gpr(self.e.bool_of(v)));
        }
        let r = self.e.f.gpr();
        self.e.f.inst(
            if lane_bytes(to) == 8 {
                X::VMovQG
            } else {
                X::VMovDG
            },
            Width::X,
            &[r.into(), v.into()],
        );
        Ok(Def::Gpr(self.extend(to, r)))
    }

    fn scalar_bitcast(&mut self, value: Val, to: DType) -> Result<Def<'p>> {
        let from = self.dtype(value)?;
        if !from.is_float() && !to.is_float() {
            let r = self.gpr(value)?;
            return Ok(Def::Gpr(self.extend(to, r)));
        }
        let v = self.splat_scalar(value)?;
        let v = self
            .e
            .bitcast(from, to, v, self.e.full_lanes(lane_bytes(from)))?;
        if to.is_float() {
            return Ok(Def::Uniform(v));
        }
        let r = self.e.f.gpr();
        self.e.f.inst(
            if lane_bytes(to) == 8 {
                X::VMovQG
            } else {
                X::VMovDG
            },
            Width::X,
            &[r.into(), v.into()],
        );
        Ok(Def::Gpr(self.extend(to, r)))
    }

    /// A cast of a uniform value; lanes that a narrowing conversion left out are filled again.
    pub fn cast_uniform(&mut self, from: DType, to: DType, v: Reg) -> Result<Reg> {
        let bytes = lane_bytes(from).max(lane_bytes(to));
        self.e.mask_bytes = if from.is_bool() {
            lane_bytes(to)
        } else {
            lane_bytes(from)
        };
        let lanes = match (from.is_bool(), to.is_bool()) {
            (true, _) => self.e.full_lanes(lane_bytes(to)),
            (_, true) => self.e.full_lanes(lane_bytes(from)),
            _ => self.e.full_lanes(bytes),
        };
        let d = self.e.cast(from, to, v, lanes)?;
        if to.is_bool() && !from.is_bool() {
            return Ok(self.e.uniform_mask(d, lane_bytes(from)));
        }
        if !to.is_bool() && !from.is_bool() && lane_bytes(from) != lane_bytes(to) {
            return Ok(self.e.splat_lane(d, lane_bytes(to)));
        }
        Ok(d)
    }

    pub fn gpr(&mut self, v: Val) -> Result<Reg> {
        match self.defs.get(&v) {
            Some(Def::Gpr(r)) => Ok(*r),
            _ => Err(err!(Internal, "{v} is not in a general register")),
        }
    }

    pub fn uniform(&mut self, v: Val) -> Result<Reg> {
        match self.defs.get(&v) {
            Some(Def::Uniform(r)) => Ok(*r),
            _ => Err(err!(Internal, "{v} is not a uniform value")),
        }
    }

    /// A scalar of any kind in all lanes of a vector (or as a uniform mask).
    pub fn splat_scalar(&mut self, v: Val) -> Result<Reg> {
        let dtype = self.dtype(v)?;
        if let Some(Op::Const { value }) = self.origin(v)
            && !dtype.is_bool()
        {
            return Ok(self.e.constant(lane_bits(*value, dtype), lane_bytes(dtype)));
        }
        match self.defs.get(&v) {
            Some(Def::Uniform(r)) => Ok(*r),
            Some(Def::Gpr(r)) => {
                let r = *r;
                Ok(if dtype.is_bool() {
                    self.e.splat_bool(r)
                } else {
                    self.e.splat_gpr(r, lane_bytes(dtype))
                })
            }
            _ => Err(err!(Internal, "{v} is not a scalar here")),
        }
    }

    /// An index in a register; constants are loaded.
    pub fn index(&mut self, index: &Index) -> Result<Reg> {
        match index {
            Index::Const(c) => Ok(self.e.imm(*c)),
            Index::Val(v) => self.gpr(*v),
        }
    }

    /// The address of element `base` of a memory.
    pub fn address(&mut self, mem: Val, base: &Index) -> Result<Reg> {
        let pointer = self.memory(mem)?;
        let size = self.p.mem(mem)?.dtype.size() as i64;
        match base {
            Index::Const(0) => Ok(pointer),
            Index::Const(c) => {
                let d = self.e.copy_gpr(pointer);
                self.e.gpr_imm(X::AddI, X::Add, d, c * size);
                Ok(d)
            }
            Index::Val(v) => {
                let r = self.gpr(*v)?;
                Ok(self
                    .e
                    .gpr(X::Lea, &[Mem::indexed(pointer, r, size as u8, 0).into()]))
            }
        }
    }

    /// Brings the low bits of a register into the form its type has in 64 bits.
    pub fn extend(&mut self, dtype: DType, r: Reg) -> Reg {
        match dtype {
            DType::I32 => self.e.gpr(X::MovSxd, &[r.into()]),
            DType::U32 => self.e.gpr(X::Mov32, &[r.into()]),
            DType::I8 | DType::I16 => {
                let d = self.e.copy_gpr(r);
                let shift = A::I(64 - i64::from(dtype.bits()));
                self.e.g(X::ShlI, &[d.into(), shift]);
                self.e.g(X::SarI, &[d.into(), shift]);
                d
            }
            DType::U8 | DType::U16 => {
                let d = self.e.copy_gpr(r);
                self.e.g(X::AndI, &[d.into(), A::I(dtype.mask() as i64)]);
                d
            }
            _ => r,
        }
    }

    fn int_unary(&mut self, op: UnaryOp, dtype: DType, value: Val) -> Result<Reg> {
        let a = self.gpr(value)?;
        let d = self.e.copy_gpr(a);
        match op {
            UnaryOp::Neg => self.e.g(X::Neg, &[d.into()]),
            UnaryOp::Not if dtype.is_bool() => self.e.g(X::XorI, &[d.into(), A::I(1)]),
            UnaryOp::Not => self.e.g(X::Not, &[d.into()]),
            UnaryOp::Abs if dtype.is_signed() => {
                self.e.g(X::Neg, &[d.into()]);
                self.e.g(X::CmpI, &[d.into(), A::I(0)]);
                self.e.g(X::CmovL, &[d.into(), a.into()]);
            }
            UnaryOp::Abs => {}
            _ => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for a scalar `{}` of {dtype}",
                    op.name()
                ));
            }
        }
        Ok(self.extend(dtype, d))
    }

    pub fn int_binary(&mut self, op: BinaryOp, dtype: DType, a: Reg, b: Reg) -> Result<Reg> {
        let signed = dtype.is_signed();
        let two = |s: &mut Self, row: X| {
            let d = s.e.copy_gpr(a);
            s.e.g(row, &[d.into(), b.into()]);
            d
        };
        let d = match op {
            BinaryOp::Add => two(self, X::Add),
            BinaryOp::Sub => two(self, X::Sub),
            BinaryOp::Mul => two(self, X::Imul),
            BinaryOp::And => two(self, X::And),
            BinaryOp::Or => two(self, X::Or),
            BinaryOp::Xor => two(self, X::Xor),
            BinaryOp::Min | BinaryOp::Max => {
                let d = self.e.copy_gpr(a);
                self.e.g(X::Cmp, &[b.into(), a.into()]);
                let row = match (op == BinaryOp::Min, signed) {
                    (true, true) => X::CmovL,
                    (true, false) => X::CmovB,
                    (false, true) => X::CmovG,
                    (false, false) => X::CmovA,
                };
                self.e.g(row, &[d.into(), b.into()]);
                d
            }
            BinaryOp::Shl | BinaryOp::Shr => self.shift(op, dtype, a, b),
            BinaryOp::Div | BinaryOp::Rem | BinaryOp::FloorDiv | BinaryOp::Mod => {
                self.divide(op, signed, a, b)
            }
            BinaryOp::Pow => {
                return Err(err!(
                    NoLowering,
                    "x86 has no code for a scalar `pow` of {dtype}"
                ));
            }
        };
        Ok(self.extend(dtype, d))
    }

    fn shift(&mut self, op: BinaryOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        let arithmetic = op == BinaryOp::Shr && dtype.is_signed();
        let row = match (op, arithmetic) {
            (BinaryOp::Shl, _) => X::Shlx,
            (_, true) => X::Sarx,
            (_, false) => X::Shrx,
        };
        // The machine takes the amount modulo 64; from the width on the answer is 0, or the sign.
        let amount = self.e.copy_gpr(b);
        let limit = self.e.imm(63);
        let far = self.e.imm(0);
        self.e
            .g(X::CmpI, &[b.into(), A::I(i64::from(dtype.bits()))]);
        if arithmetic {
            self.e.g(X::CmovAe, &[amount.into(), limit.into()]);
            return self.e.gpr(row, &[a.into(), amount.into()]);
        }
        let d = self.e.gpr(row, &[a.into(), amount.into()]);
        self.e
            .g(X::CmpI, &[b.into(), A::I(i64::from(dtype.bits()))]);
        self.e.g(X::CmovAe, &[d.into(), far.into()]);
        d
    }

    /// Division that never traps: by zero gives 0, by -1 negates.
    fn divide(&mut self, op: BinaryOp, signed: bool, a: Reg, b: Reg) -> Reg {
        // A vanishing or negative divisor is rare and the branches are predicted.
        let q = self.e.imm(0);
        let r = self.e.imm(0);
        let done = self.e.f.label();
        self.e.g(X::Test, &[b.into(), b.into()]);
        self.e.f.jump(Cond::E, done);
        if signed {
            let plain = self.e.f.label();
            self.e.g(X::CmpI, &[b.into(), A::I(-1)]);
            self.e.f.jump(Cond::Ne, plain);
            self.e.f.copy(Width::X, q, a);
            self.e.g(X::Neg, &[q.into()]);
            self.e.f.jump(Cond::Always, done);
            self.e.f.bind(plain);
        }
        let row = if signed { X::DivS } else { X::DivU };
        self.e.g(row, &[q.into(), a.into(), b.into()]);
        let product = self.e.copy_gpr(q);
        self.e.g(X::Imul, &[product.into(), b.into()]);
        self.e.f.copy(Width::X, r, a);
        self.e.g(X::Sub, &[r.into(), product.into()]);
        if signed && matches!(op, BinaryOp::FloorDiv | BinaryOp::Mod) {
            // Rounded down where the remainder's sign is not the divisor's.
            self.e.g(X::Test, &[r.into(), r.into()]);
            self.e.f.jump(Cond::E, done);
            let signs = self.e.copy_gpr(r);
            self.e.g(X::Xor, &[signs.into(), b.into()]);
            self.e.g(X::CmpI, &[signs.into(), A::I(0)]);
            self.e.f.jump(Cond::Ge, done);
            self.e.g(X::SubI, &[q.into(), A::I(1)]);
            self.e.g(X::Add, &[r.into(), b.into()]);
        }
        self.e.f.bind(done);
        if matches!(op, BinaryOp::Div | BinaryOp::FloorDiv) {
            q
        } else {
            r
        }
    }

    pub fn int_compare(&mut self, op: CompareOp, dtype: DType, a: Reg, b: Reg) -> Reg {
        let signed = dtype.is_signed();
        let row = match (op, signed) {
            (CompareOp::Eq, _) => X::SetE,
            (CompareOp::Ne, _) => X::SetNe,
            (CompareOp::Lt, true) => X::SetL,
            (CompareOp::Lt, false) => X::SetB,
            (CompareOp::Le, true) => X::SetLe,
            (CompareOp::Le, false) => X::SetBe,
            (CompareOp::Gt, true) => X::SetG,
            (CompareOp::Gt, false) => X::SetA,
            (CompareOp::Ge, true) => X::SetGe,
            (CompareOp::Ge, false) => X::SetAe,
        };
        self.e.g(X::Cmp, &[a.into(), b.into()]);
        let low = self.e.gpr(row, &[]);
        self.e.gpr(X::MovZxBG, &[low.into()])
    }

    /// A size expression over the symbols of scalar parameters. Its text is its public form.
    pub fn expr(&mut self, expr: &Expr) -> Result<Reg> {
        if let Some(c) = expr.as_const() {
            return Ok(self.e.imm(c));
        }
        let text = expr.to_string();
        let mut parser = Grammar {
            text: text.as_bytes(),
            at: 0,
        };
        parser.sum(self)
    }

    fn symbol(&mut self, name: &str) -> Result<Reg> {
        let p = self.p;
        for param in &p.params {
            if let ParamKind::Scalar {
                symbol: Some(s), ..
            } = &param.kind
                && s.to_string() == name
            {
                return self.gpr(param.value);
            }
        }
        Err(err!(UnboundSymbol, "no parameter gives the symbol {name}"))
    }
}

fn axis_error(axis: u8) -> Error {
    err!(InvalidKernel, "the grid has no axis {axis}")
}

/// The grammar of size expressions as `oxyfuel_base` writes them.
struct Grammar<'t> {
    text: &'t [u8],
    at: usize,
}

impl Grammar<'_> {
    fn eat(&mut self, word: &str) -> bool {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        let found = self.text[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn sum(&mut self, s: &mut Select<'_, '_>) -> Result<Reg> {
        let negative = self.eat("-");
        let first = self.product(s)?;
        let d = s.e.copy_gpr(first);
        if negative {
            s.e.g(X::Neg, &[d.into()]);
        }
        loop {
            let row = if self.eat("+") {
                X::Add
            } else if self.eat("-") {
                X::Sub
            } else {
                return Ok(d);
            };
            let r = self.product(s)?;
            s.e.g(row, &[d.into(), r.into()]);
        }
    }

    fn product(&mut self, s: &mut Select<'_, '_>) -> Result<Reg> {
        let mut d = self.atom(s)?;
        loop {
            let op = if self.eat("*") {
                BinaryOp::Mul
            } else if self.eat("//") {
                BinaryOp::FloorDiv
            } else if self.eat("%") {
                BinaryOp::Mod
            } else {
                return Ok(d);
            };
            let r = self.atom(s)?;
            d = s.int_binary(op, DType::I64, d, r)?;
        }
    }

    fn atom(&mut self, s: &mut Select<'_, '_>) -> Result<Reg> {
        if self.eat("(") {
            let r = self.sum(s)?;
            self.eat(")");
            return Ok(r);
        }
        for (name, op) in [("min(", BinaryOp::Min), ("max(", BinaryOp::Max)] {
            if self.eat(name) {
                let mut d = self.sum(s)?;
                while self.eat(",") {
                    let r = self.sum(s)?;
                    d = s.int_binary(op, DType::I64, d, r)?;
                }
                self.eat(")");
                return Ok(d);
            }
        }
        let rest = &self.text[self.at..];
        let len = rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
            .count();
        let word = std::str::from_utf8(&rest[..len])
            .unwrap_or_default()
            .to_owned();
        self.at += len;
        match word.parse::<i64>() {
            Ok(number) => Ok(s.e.imm(number)),
            Err(_) => s.symbol(&word),
        }
    }
}
