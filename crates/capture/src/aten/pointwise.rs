//! Functions of the elements at one index that GRAPH has itself: arithmetic, comparisons, bits, choices, casts.

use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::{Accepts, Binary, Compare, Op, Operand, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.abs.default", Compiled(|c| c.unary(Unary::Abs))),
    ("aten.neg.default", Compiled(|c| c.unary(Unary::Neg))),
    ("aten.sign.default", Compiled(|c| c.unary(Unary::Sign))),
    ("aten.sgn.default", Compiled(|c| c.unary(Unary::Sign))),
    ("aten.relu.default", Compiled(|c| c.unary(Unary::Relu))),
    ("aten.silu.default", Compiled(|c| c.unary(Unary::Silu))),
    (
        "aten.sigmoid.default",
        Compiled(|c| c.unary(Unary::Sigmoid)),
    ),
    ("aten.tanh.default", Compiled(|c| c.unary(Unary::Tanh))),
    ("aten.exp.default", Compiled(|c| c.unary(Unary::Exp))),
    ("aten.exp2.default", Compiled(|c| c.unary(Unary::Exp2))),
    ("aten.expm1.default", Compiled(|c| c.unary(Unary::Expm1))),
    ("aten.log.default", Compiled(|c| c.unary(Unary::Log))),
    ("aten.log2.default", Compiled(|c| c.unary(Unary::Log2))),
    ("aten.log1p.default", Compiled(|c| c.unary(Unary::Log1p))),
    ("aten.sqrt.default", Compiled(|c| c.unary(Unary::Sqrt))),
    ("aten.rsqrt.default", Compiled(|c| c.unary(Unary::Rsqrt))),
    (
        "aten.reciprocal.default",
        Compiled(|c| c.unary(Unary::Reciprocal)),
    ),
    ("aten.erf.default", Compiled(|c| c.unary(Unary::Erf))),
    ("aten.log10.default", Compiled(|c| c.unary(Unary::Log10))),
    ("aten.erfc.default", Compiled(|c| c.unary(Unary::Erfc))),
    ("aten.tan.default", Compiled(|c| c.unary(Unary::Tan))),
    ("aten.asin.default", Compiled(|c| c.unary(Unary::Asin))),
    ("aten.acos.default", Compiled(|c| c.unary(Unary::Acos))),
    ("aten.atan.default", Compiled(|c| c.unary(Unary::Atan))),
    ("aten.sinh.default", Compiled(|c| c.unary(Unary::Sinh))),
    ("aten.cosh.default", Compiled(|c| c.unary(Unary::Cosh))),
    ("aten.asinh.default", Compiled(|c| c.unary(Unary::Asinh))),
    ("aten.acosh.default", Compiled(|c| c.unary(Unary::Acosh))),
    ("aten.atanh.default", Compiled(|c| c.unary(Unary::Atanh))),
    ("aten.sin.default", Compiled(|c| c.unary(Unary::Sin))),
    ("aten.cos.default", Compiled(|c| c.unary(Unary::Cos))),
    ("aten.floor.default", Compiled(|c| c.unary(Unary::Floor))),
    ("aten.ceil.default", Compiled(|c| c.unary(Unary::Ceil))),
    ("aten.round.default", Compiled(|c| c.unary(Unary::Round))),
    ("aten.trunc.default", Compiled(|c| c.unary(Unary::Trunc))),
    (
        "aten.logical_not.default",
        Compiled(|c| c.unary(Unary::LogicalNot)),
    ),
    (
        "aten.bitwise_not.default",
        Compiled(|c| c.unary(Unary::BitwiseNot)),
    ),
    ("aten.isnan.default", Compiled(|c| c.unary(Unary::IsNan))),
    ("aten.isinf.default", Compiled(|c| c.unary(Unary::IsInf))),
    ("aten.gelu.default", Compiled(gelu)),
    ("aten.add.Tensor", Compiled(|c| add(c, Binary::Add))),
    ("aten.add.Scalar", Compiled(|c| add(c, Binary::Add))),
    ("aten.sub.Tensor", Compiled(|c| add(c, Binary::Sub))),
    ("aten.sub.Scalar", Compiled(|c| add(c, Binary::Sub))),
    ("aten.rsub.Tensor", Compiled(rsub)),
    ("aten.rsub.Scalar", Compiled(rsub)),
    ("aten.mul.Tensor", Compiled(|c| c.both(Binary::Mul))),
    ("aten.mul.Scalar", Compiled(|c| c.both(Binary::Mul))),
    ("aten.div.Tensor", Compiled(|c| c.both(Binary::Div))),
    ("aten.true_divide.Tensor", Compiled(|c| c.both(Binary::Div))),
    ("aten.div.Scalar", Compiled(|c| c.both(Binary::Div))),
    ("aten.div.Tensor_mode", Compiled(div_mode)),
    ("aten.div.Scalar_mode", Compiled(div_mode)),
    (
        "aten.floor_divide.default",
        Compiled(|c| c.both(Binary::DivFloor)),
    ),
    (
        "aten.floor_divide.Scalar",
        Compiled(|c| c.both(Binary::DivFloor)),
    ),
    (
        "aten.remainder.Tensor",
        Compiled(|c| c.both(Binary::Remainder)),
    ),
    (
        "aten.remainder.Scalar",
        Compiled(|c| c.both(Binary::Remainder)),
    ),
    (
        "aten.remainder.Scalar_Tensor",
        Compiled(|c| c.both(Binary::Remainder)),
    ),
    ("aten.fmod.Tensor", Compiled(|c| c.both(Binary::Fmod))),
    ("aten.fmod.Scalar", Compiled(|c| c.both(Binary::Fmod))),
    ("aten.atan2.default", Compiled(|c| c.both(Binary::Atan2))),
    ("aten.pow.Tensor_Tensor", Compiled(|c| c.both(Binary::Pow))),
    ("aten.pow.Tensor_Scalar", Compiled(pow_number)),
    ("aten.pow.Scalar", Compiled(|c| c.both(Binary::Pow))),
    (
        "aten.maximum.default",
        Compiled(|c| c.both(Binary::Maximum)),
    ),
    (
        "aten.minimum.default",
        Compiled(|c| c.both(Binary::Minimum)),
    ),
    (
        "aten.bitwise_and.Tensor",
        Compiled(|c| c.both(Binary::BitwiseAnd)),
    ),
    (
        "aten.bitwise_and.Scalar",
        Compiled(|c| c.both(Binary::BitwiseAnd)),
    ),
    (
        "aten.bitwise_and.Scalar_Tensor",
        Compiled(|c| c.both(Binary::BitwiseAnd)),
    ),
    (
        "aten.bitwise_or.Tensor",
        Compiled(|c| c.both(Binary::BitwiseOr)),
    ),
    (
        "aten.bitwise_or.Scalar",
        Compiled(|c| c.both(Binary::BitwiseOr)),
    ),
    (
        "aten.bitwise_or.Scalar_Tensor",
        Compiled(|c| c.both(Binary::BitwiseOr)),
    ),
    (
        "aten.bitwise_xor.Tensor",
        Compiled(|c| c.both(Binary::BitwiseXor)),
    ),
    (
        "aten.bitwise_xor.Scalar",
        Compiled(|c| c.both(Binary::BitwiseXor)),
    ),
    (
        "aten.bitwise_xor.Scalar_Tensor",
        Compiled(|c| c.both(Binary::BitwiseXor)),
    ),
    (
        "aten.bitwise_left_shift.Tensor",
        Compiled(|c| c.both(Binary::ShiftLeft)),
    ),
    (
        "aten.bitwise_left_shift.Tensor_Scalar",
        Compiled(|c| c.both(Binary::ShiftLeft)),
    ),
    (
        "aten.bitwise_left_shift.Scalar_Tensor",
        Compiled(|c| c.both(Binary::ShiftLeft)),
    ),
    (
        "aten.bitwise_right_shift.Tensor",
        Compiled(|c| c.both(Binary::ShiftRight)),
    ),
    (
        "aten.bitwise_right_shift.Tensor_Scalar",
        Compiled(|c| c.both(Binary::ShiftRight)),
    ),
    (
        "aten.bitwise_right_shift.Scalar_Tensor",
        Compiled(|c| c.both(Binary::ShiftRight)),
    ),
    (
        "aten.logical_and.default",
        Compiled(|c| logical(c, Binary::BitwiseAnd)),
    ),
    (
        "aten.logical_or.default",
        Compiled(|c| logical(c, Binary::BitwiseOr)),
    ),
    (
        "aten.logical_xor.default",
        Compiled(|c| logical(c, Binary::BitwiseXor)),
    ),
    ("aten.eq.Tensor", Compiled(|c| compare(c, Compare::Eq))),
    ("aten.eq.Scalar", Compiled(|c| compare(c, Compare::Eq))),
    ("aten.ne.Tensor", Compiled(|c| compare(c, Compare::Ne))),
    ("aten.ne.Scalar", Compiled(|c| compare(c, Compare::Ne))),
    ("aten.lt.Tensor", Compiled(|c| compare(c, Compare::Lt))),
    ("aten.lt.Scalar", Compiled(|c| compare(c, Compare::Lt))),
    ("aten.le.Tensor", Compiled(|c| compare(c, Compare::Le))),
    ("aten.le.Scalar", Compiled(|c| compare(c, Compare::Le))),
    ("aten.gt.Tensor", Compiled(|c| compare(c, Compare::Gt))),
    ("aten.gt.Scalar", Compiled(|c| compare(c, Compare::Gt))),
    ("aten.ge.Tensor", Compiled(|c| compare(c, Compare::Ge))),
    ("aten.ge.Scalar", Compiled(|c| compare(c, Compare::Ge))),
    ("aten.where.self", Compiled(choose)),
    ("aten.where.ScalarSelf", Compiled(choose)),
    ("aten.where.ScalarOther", Compiled(choose)),
    ("aten.where.Scalar", Compiled(choose)),
    ("aten.clamp.default", Compiled(clamp)),
    ("aten.clamp.Tensor", Compiled(clamp)),
    ("aten.clamp_min.default", Compiled(|c| clamp_one(c, true))),
    ("aten.clamp_min.Tensor", Compiled(|c| clamp_one(c, true))),
    ("aten.clamp_max.default", Compiled(|c| clamp_one(c, false))),
    ("aten.clamp_max.Tensor", Compiled(|c| clamp_one(c, false))),
    ("aten.masked_fill.Scalar", Compiled(masked_fill)),
    ("aten.masked_fill.Tensor", Compiled(masked_fill)),
    ("aten._to_copy.default", Compiled(to_copy)),
    ("prims.convert_element_type.default", Compiled(to_copy)),
    ("aten.clone.default", Compiled(clone)),
    ("aten.lift_fresh_copy.default", Compiled(clone)),
    ("aten.positive.default", Compiled(clone)),
    ("aten.copy.default", Compiled(copy)),
    ("aten.fill.Scalar", Compiled(fill)),
    ("aten.fill.Tensor", Compiled(fill)),
];

impl Call<'_> {
    /// A function of `self`.
    fn unary(&mut self, f: Unary) -> Result<Vec<ValueId>> {
        let x = self.tensor(0, "self")?;
        Ok(vec![self.b.unary(f, x)?])
    }

    /// A function of `self` and `other`.
    fn both(&mut self, f: Binary) -> Result<Vec<ValueId>> {
        let (a, b) = (self.factor(0, "self")?, self.factor(1, "other")?);
        Ok(vec![self.binary(f, &a, &b)?])
    }

    /// The dtype PyTorch gives a function of these.
    pub(super) fn common(&self, factors: &[&Factor]) -> Result<DType> {
        let operands: Vec<Operand> = factors.iter().map(|f| f.operand()).collect();
        self.b.common_dtype(&operands)
    }

    /// A function of two operands with PyTorch's promotion.
    pub(super) fn binary(&mut self, f: Binary, a: &Factor, b: &Factor) -> Result<ValueId> {
        if let (Some(left), Some(right)) = (self.plain(a), self.plain(b))
            && !self.keeps_precise(f, a, b)?
        {
            return self.b.binary(f, left, right);
        }
        let mut dtype = self.common(&[a, b])?;
        if f.info().accepts == Accepts::IntToFloat && !dtype.is_float() {
            dtype = DType::F32;
        }
        let compute = if self.keeps_precise(f, a, b)? {
            DType::F32
        } else {
            dtype
        };
        let (x, y) = (self.value_of(a, compute)?, self.value_of(b, compute)?);
        let out = self.b.emit(Op::Binary(f), &[x, y])?;
        self.b.cast(out, dtype)
    }

    fn plain(&self, factor: &Factor) -> Option<Operand> {
        match factor {
            Factor::Symbolic(_) => None,
            Factor::Value(_) | Factor::Number(_) => Some(factor.operand()),
        }
    }

    /// Eager multiplies and divides a half-precision tensor by a wider tensor without dimensions as it is, not rounded to half precision.
    fn keeps_precise(&self, f: Binary, a: &Factor, b: &Factor) -> Result<bool> {
        if !matches!(f, Binary::Mul | Binary::Div) {
            return Ok(false);
        }
        let wide_scalar = |factor: &Factor| match factor {
            Factor::Value(v) => {
                self.rank(*v) == 0 && matches!(self.dtype(*v), DType::F32 | DType::F64)
            }
            Factor::Number(_) => false,
            Factor::Symbolic(_) => true,
        };
        Ok((wide_scalar(a) || wide_scalar(b))
            && matches!(self.common(&[a, b])?, DType::F16 | DType::BF16))
    }
}

fn gelu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    match c.text(1, "approximate")?.unwrap_or("none") {
        "none" => c.unary(Unary::Gelu),
        "tanh" => c.unary(Unary::GeluTanh),
        other => refuse(format!("approximate={other:?}")),
    }
}

fn is_one(number: Scalar) -> bool {
    number.as_f64() == 1.0
}

/// `self ± alpha * other`, in half precision rounded once.
fn add(c: &mut Call<'_>, f: Binary) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let alpha = c.number(2, "alpha")?.unwrap_or(Scalar::I(1));
    Ok(vec![c.scaled(f, &a, &b, alpha)?])
}

fn rsub(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let alpha = c.number(2, "alpha")?.unwrap_or(Scalar::I(1));
    Ok(vec![c.scaled(Binary::Sub, &b, &a, alpha)?])
}

impl Call<'_> {
    fn scaled(&mut self, f: Binary, a: &Factor, b: &Factor, alpha: Scalar) -> Result<ValueId> {
        if is_one(alpha) {
            return self.binary(f, a, b);
        }
        let dtype = self.common(&[a, b])?;
        let compute = wide(dtype);
        let (x, y) = (self.value_of(a, compute)?, self.value_of(b, compute)?);
        let alpha = self.value_of(&Factor::Number(alpha), compute)?;
        let y = self.b.emit(Op::Binary(Binary::Mul), &[y, alpha])?;
        let out = self.b.emit(Op::Binary(f), &[x, y])?;
        self.b.cast(out, dtype)
    }
}

/// The dtype in which eager computes inside one kernel: f32 for half precision.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

fn div_mode(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    match c.text(2, "rounding_mode")? {
        None => c.both(Binary::Div),
        Some("floor") => c.both(Binary::DivFloor),
        Some("trunc") => c.both(Binary::DivTrunc),
        Some(other) => refuse(format!("rounding_mode={other:?}")),
    }
}

/// Eager has special cases for simple exponents; so have we.
fn pow_number(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let factor = c.factor(1, "exponent")?;
    let Factor::Number(exponent) = factor else {
        return Ok(vec![c.binary(Binary::Pow, &Factor::Value(x), &factor)?]);
    };
    let ty = c.out(0)?;
    if !ty.dtype.is_float() && exponent.as_f64() < 0.0 {
        return refuse("a negative power of integers is an error in eager");
    }
    let compute = wide(ty.dtype);
    let wide_x = c.b.cast(x, compute)?;
    let square = |c: &mut Call<'_>| c.b.emit(Op::Binary(Binary::Mul), &[wide_x, wide_x]);
    let float = ty.dtype.is_float();
    let out = match exponent.as_f64() {
        1.0 => wide_x,
        2.0 => square(c)?,
        3.0 => {
            let s = square(c)?;
            c.b.emit(Op::Binary(Binary::Mul), &[s, wide_x])?
        }
        0.5 if float => c.b.unary(Unary::Sqrt, wide_x)?,
        -0.5 if float => c.b.unary(Unary::Rsqrt, wide_x)?,
        -1.0 if float => c.b.unary(Unary::Reciprocal, wide_x)?,
        -2.0 if float => {
            let s = square(c)?;
            c.b.unary(Unary::Reciprocal, s)?
        }
        _ => return Ok(vec![c.binary(Binary::Pow, &Factor::Value(x), &factor)?]),
    };
    Ok(vec![c.b.cast(out, ty.dtype)?])
}

fn logical(c: &mut Call<'_>, f: Binary) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "other")?);
    let (a, b) = (c.b.cast(a, DType::Bool)?, c.b.cast(b, DType::Bool)?);
    Ok(vec![c.b.emit(Op::Binary(f), &[a, b])?])
}

fn compare(c: &mut Call<'_>, f: Compare) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let dtype = c.common(&[&a, &b])?;
    let (x, y) = (c.value_of(&a, dtype)?, c.value_of(&b, dtype)?);
    Ok(vec![c.b.emit(Op::Compare(f), &[x, y])?])
}

fn choose(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let condition = c.tensor(0, "condition")?;
    let (a, b) = (c.factor(1, "self")?, c.factor(2, "other")?);
    let dtype = c.out(0)?.dtype;
    let condition = c.b.cast(condition, DType::Bool)?;
    let (x, y) = (c.value_of(&a, dtype)?, c.value_of(&b, dtype)?);
    Ok(vec![c.b.emit(Op::Where, &[condition, x, y])?])
}

fn clamp(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let bounds = [c.optional_factor(1, "min")?, c.optional_factor(2, "max")?];
    c.clamped(bounds)
}

fn clamp_one(c: &mut Call<'_>, low: bool) -> Result<Vec<ValueId>> {
    if low {
        let bound = c.factor(1, "min")?;
        c.clamped([Some(bound), None])
    } else {
        let bound = c.factor(1, "max")?;
        c.clamped([None, Some(bound)])
    }
}

impl Call<'_> {
    /// `minimum(maximum(self, low), high)`; NaN wins, as in eager.
    pub(super) fn clamped(&mut self, bounds: [Option<Factor>; 2]) -> Result<Vec<ValueId>> {
        let x = self.tensor(0, "self")?;
        let dtype = self.out(0)?.dtype;
        let mut out = self.b.cast(x, dtype)?;
        for (f, bound) in [Binary::Maximum, Binary::Minimum].into_iter().zip(bounds) {
            if let Some(bound) = bound {
                if let Factor::Number(Scalar::F(v)) = bound
                    && !dtype.is_float()
                {
                    return refuse(format!("the bound {v} of integers"));
                }
                let bound = self.value_of(&saturated(bound, dtype), dtype)?;
                out = self.b.emit(Op::Binary(f), &[out, bound])?;
            }
        }
        Ok(vec![out])
    }
}

/// A bound outside of what integers can be stands for the nearest that they can; elsewhere numbers wrap.
fn saturated(bound: Factor, dtype: DType) -> Factor {
    let (low, high) = match (dtype.is_int(), dtype.is_signed(), dtype.bits()) {
        (true, true, bits @ ..64) => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        (true, false, bits @ ..63) => (0, (1i64 << bits) - 1),
        (true, false, _) => (0, i64::MAX),
        _ => return bound,
    };
    match bound {
        Factor::Number(Scalar::I(v)) => Factor::Number(Scalar::I(v.clamp(low, high))),
        other => other,
    }
}

fn masked_fill(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, mask) = (c.tensor(0, "self")?, c.tensor(1, "mask")?);
    let value = c.factor(2, "value")?;
    let dtype = c.dtype(x);
    let mask = c.b.cast(mask, DType::Bool)?;
    let value = c.value_of(&value, dtype)?;
    Ok(vec![c.b.emit(Op::Where, &[mask, value, x])?])
}

fn to_copy(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dtype = c.out(0)?.dtype;
    let from = c.dtype(x);
    if from == dtype {
        return Ok(vec![c.b.emit(Op::Clone, &[x])?]);
    }
    // On its way from a float to a narrow integer a number is an i32 first, in eager, and wraps from there; GRAPH's own cast saturates.
    let narrow = matches!(dtype, DType::U8 | DType::I8 | DType::I16 | DType::U16);
    let x = if from.is_float() && narrow {
        c.b.cast(x, DType::I32)?
    } else {
        x
    };
    Ok(vec![c.b.cast(x, dtype)?])
}

fn clone(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    Ok(vec![c.b.emit(Op::Clone, &[x])?])
}

fn copy(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, src) = (c.tensor(0, "self")?, c.tensor(1, "src")?);
    Ok(vec![c.b.copy(x, src)?])
}

fn fill(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let value = c.factor(1, "value")?;
    let dtype = c.dtype(x);
    let value = c.value_of(&value, dtype)?;
    Ok(vec![c.b.copy(x, value)?])
}
