//! Functions of elements that GRAPH does not have, built from those it has.
//!
//! Each is computed in f32 (f64 stays f64) and rounded once. The formulas are those that lose no digits near the points where the plain ones do, so that a result
//! is within a few units in the last place of the f32.

use super::pointwise::wide;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::{Binary, Compare, Op, Unary, ValueId};
use std::f64::consts::LOG2_E;

pub(super) const ROWS: &[Row] = &[
    ("aten.square.default", Compiled(square)),
    ("aten.frac.default", Compiled(|c| float_function(c, frac))),
    ("aten.isfinite.default", Compiled(isfinite)),
    (
        "aten.isposinf.default",
        Compiled(|c| is_this(c, f64::INFINITY)),
    ),
    (
        "aten.isneginf.default",
        Compiled(|c| is_this(c, f64::NEG_INFINITY)),
    ),
    ("aten.signbit.default", Compiled(signbit)),
    ("aten.copysign.Tensor", Compiled(copysign)),
    ("aten.copysign.Scalar", Compiled(copysign)),
    (
        "aten.fmax.default",
        Compiled(|c| number_wins(c, Binary::Maximum)),
    ),
    (
        "aten.fmin.default",
        Compiled(|c| number_wins(c, Binary::Minimum)),
    ),
    ("aten.addcmul.default", Compiled(|c| addc(c, Binary::Mul))),
    ("aten.addcdiv.default", Compiled(|c| addc(c, Binary::Div))),
    ("aten.ldexp.Tensor", Compiled(ldexp)),
    ("aten.lerp.Scalar", Compiled(lerp)),
    ("aten.lerp.Tensor", Compiled(lerp)),
    ("aten.xlogy.Tensor", Compiled(xlogy)),
    ("aten.xlogy.Scalar_Other", Compiled(xlogy)),
    ("aten.xlogy.Scalar_Self", Compiled(xlogy)),
    (
        "aten.logaddexp.default",
        Compiled(|c| logaddexp(c, Unary::Exp, 1.0)),
    ),
    (
        "aten.logaddexp2.default",
        Compiled(|c| logaddexp(c, Unary::Exp2, LOG2_E)),
    ),
];

/// Steps on values of one dtype, for formulas.
#[derive(Debug)]
pub(super) struct Steps<'c, 'a> {
    pub c: &'c mut Call<'a>,
    /// The dtype of every number.
    pub dtype: DType,
}

impl Steps<'_, '_> {
    pub fn number(&mut self, value: f64) -> Result<ValueId> {
        self.c
            .value_of(&Factor::Number(Scalar::F(value)), self.dtype)
    }

    pub fn unary(&mut self, f: Unary, x: ValueId) -> Result<ValueId> {
        self.c.b.emit(Op::Unary(f), &[x])
    }

    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.c.b.emit(Op::Binary(f), &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(Binary::Add, a, b)
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(Binary::Sub, a, b)
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(Binary::Mul, a, b)
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(Binary::Div, a, b)
    }

    /// `x * factor`.
    pub fn times(&mut self, x: ValueId, factor: f64) -> Result<ValueId> {
        let factor = self.number(factor)?;
        self.mul(x, factor)
    }

    /// `x + term`.
    pub fn plus(&mut self, x: ValueId, term: f64) -> Result<ValueId> {
        let term = self.number(term)?;
        self.add(x, term)
    }

    /// `number - x`.
    pub fn from(&mut self, number: f64, x: ValueId) -> Result<ValueId> {
        let number = self.number(number)?;
        self.sub(number, x)
    }

    /// Where `x` compares so with the number.
    pub fn is(&mut self, f: Compare, x: ValueId, number: f64) -> Result<ValueId> {
        let number = self.number(number)?;
        self.c.b.emit(Op::Compare(f), &[x, number])
    }

    pub fn choose(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.c.b.emit(Op::Where, &[condition, a, b])
    }
}

/// A function of `self` in the wide dtype, rounded once to the result's.
pub(super) fn float_function(
    c: &mut Call<'_>,
    f: fn(&mut Steps<'_, '_>, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    if !out.is_float() || out.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    let dtype = wide(out);
    let x = c.b.cast(x, dtype)?;
    let y = f(&mut Steps { c, dtype }, x)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn frac(s: &mut Steps<'_, '_>, x: ValueId) -> Result<ValueId> {
    let whole = s.unary(Unary::Trunc, x)?;
    s.sub(x, whole)
}

fn square(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    Ok(vec![c.b.emit(Op::Binary(Binary::Mul), &[x, x])?])
}

fn isfinite(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let nan = c.b.unary(Unary::IsNan, x)?;
    let inf = c.b.unary(Unary::IsInf, x)?;
    let either = c.b.emit(Op::Binary(Binary::BitwiseOr), &[nan, inf])?;
    Ok(vec![c.b.emit(Op::Unary(Unary::LogicalNot), &[either])?])
}

fn is_this(c: &mut Call<'_>, number: f64) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dtype = c.dtype(x);
    if !dtype.is_float() {
        return refuse("on integers");
    }
    let y = Steps { c, dtype }.is(Compare::Eq, x, number)?;
    Ok(vec![y])
}

/// Whether the sign is set, of zeros too: they tell by their reciprocals. NaN has a sign that GRAPH does not know.
fn negative(c: &mut Call<'_>, x: ValueId) -> Result<ValueId> {
    let dtype = c.dtype(x);
    let mut s = Steps { c, dtype };
    if !dtype.is_float() {
        return s.is(Compare::Lt, x, 0.0);
    }
    let below = s.is(Compare::Lt, x, 0.0)?;
    let inverse = s.unary(Unary::Reciprocal, x)?;
    let below_inverse = s.is(Compare::Lt, inverse, 0.0)?;
    s.binary(Binary::BitwiseOr, below, below_inverse)
}

fn signbit(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    Ok(vec![negative(c, x)?])
}

fn copysign(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let dtype = c.out(0)?.dtype;
    let (a, b) = (c.value_of(&a, dtype)?, c.value_of(&b, dtype)?);
    let below = negative(c, b)?;
    let abs = c.b.unary(Unary::Abs, a)?;
    let minus = c.b.unary(Unary::Neg, abs)?;
    Ok(vec![c.b.emit(Op::Where, &[below, minus, abs])?])
}

/// The larger or smaller, where a NaN loses against a number.
fn number_wins(c: &mut Call<'_>, f: Binary) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let dtype = c.out(0)?.dtype;
    let (a, b) = (c.value_of(&a, dtype)?, c.value_of(&b, dtype)?);
    let mut s = Steps { c, dtype };
    let best = s.binary(f, a, b)?;
    if !dtype.is_float() {
        return Ok(vec![best]);
    }
    let (a_nan, b_nan) = (s.unary(Unary::IsNan, a)?, s.unary(Unary::IsNan, b)?);
    let or_a = s.choose(b_nan, a, best)?;
    Ok(vec![s.choose(a_nan, b, or_a)?])
}

/// `self + value * tensor1 (* or /) tensor2`.
fn addc(c: &mut Call<'_>, f: Binary) -> Result<Vec<ValueId>> {
    let (x, a, b) = (
        c.tensor(0, "self")?,
        c.tensor(1, "tensor1")?,
        c.tensor(2, "tensor2")?,
    );
    let value = c.number(3, "value")?.unwrap_or(Scalar::I(1));
    let out = c.out(0)?.dtype;
    if f == Binary::Div && !out.is_float() {
        return refuse("division of integers");
    }
    let dtype = wide(out);
    let x = c.b.cast(x, dtype)?;
    let (mut a, b) = (c.b.cast(a, dtype)?, c.b.cast(b, dtype)?);
    let value_is_one = value.as_f64() == 1.0;
    let value = c.value_of(&Factor::Number(value), dtype)?;
    let mut s = Steps { c, dtype };
    if !value_is_one {
        a = s.mul(value, a)?;
    }
    let term = s.binary(f, a, b)?;
    let sum = s.add(x, term)?;
    Ok(vec![c.b.cast(sum, out)?])
}

/// Between two tensors, from the nearer end.
fn lerp(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (start, end) = (c.tensor(0, "self")?, c.tensor(1, "end")?);
    let weight = c.factor(2, "weight")?;
    let out = c.out(0)?.dtype;
    let dtype = wide(out);
    let (start, end) = (c.b.cast(start, dtype)?, c.b.cast(end, dtype)?);
    let weight = c.value_of(&weight, dtype)?;
    let mut s = Steps { c, dtype };
    let distance = s.sub(end, start)?;
    let step = s.mul(weight, distance)?;
    let from_start = s.add(start, step)?;
    let rest = s.from(1.0, weight)?;
    let back = s.mul(distance, rest)?;
    let from_end = s.sub(end, back)?;
    let abs = s.unary(Unary::Abs, weight)?;
    let near = s.is(Compare::Lt, abs, 0.5)?;
    let y = s.choose(near, from_start, from_end)?;
    Ok(vec![c.b.cast(y, out)?])
}

/// `self * 2^other`, the power rounded to its own dtype first, as eager's.
fn ldexp(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, exponent) = (c.tensor(0, "self")?, c.tensor(1, "other")?);
    let out = c.out(0)?.dtype;
    let own = match c.dtype(exponent) {
        d if d.is_float() => d,
        _ => DType::F32,
    };
    if !out.is_float() || own.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    let dtype = wide(own);
    let exponent = c.b.cast(exponent, dtype)?;
    let power = Steps { c, dtype }.unary(Unary::Exp2, exponent)?;
    let power = c.b.cast(power, own)?;
    let y = c.binary(Binary::Mul, &Factor::Value(x), &Factor::Value(power))?;
    Ok(vec![c.b.cast(y, out)?])
}

fn xlogy(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "self")?, c.factor(1, "other")?);
    let out = c.out(0)?.dtype;
    if !out.is_float() {
        return refuse("on integers");
    }
    let dtype = wide(out);
    let (x, y) = (c.value_of(&a, dtype)?, c.value_of(&b, dtype)?);
    let mut s = Steps { c, dtype };
    let log = s.unary(Unary::Log, y)?;
    let product = s.mul(x, log)?;
    let zero = s.number(0.0)?;
    let no_x = s.is(Compare::Eq, x, 0.0)?;
    let value = s.choose(no_x, zero, product)?;
    let nan = s.unary(Unary::IsNan, y)?;
    let value = s.choose(nan, y, value)?;
    Ok(vec![c.b.cast(value, out)?])
}

/// `log(base^a + base^b)` from the larger; `scale` is the logarithm of e.
fn logaddexp(c: &mut Call<'_>, power: Unary, scale: f64) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "other")?);
    let out = c.out(0)?.dtype;
    if !out.is_float() {
        return refuse("on integers");
    }
    let dtype = wide(out);
    let (a, b) = (c.b.cast(a, dtype)?, c.b.cast(b, dtype)?);
    let mut s = Steps { c, dtype };
    let larger = s.binary(Binary::Maximum, a, b)?;
    let difference = s.sub(a, b)?;
    let distance = s.unary(Unary::Abs, difference)?;
    let below = s.unary(Unary::Neg, distance)?;
    let ratio = s.unary(power, below)?;
    let log = s.unary(Unary::Log1p, ratio)?;
    let more = s.times(log, scale)?;
    let sum = s.add(larger, more)?;
    // Two infinities of one sign have no difference.
    let infinite = s.unary(Unary::IsInf, a)?;
    let same = s.c.b.emit(Op::Compare(Compare::Eq), &[a, b])?;
    let endless = s.binary(Binary::BitwiseAnd, infinite, same)?;
    let y = s.choose(endless, a, sum)?;
    Ok(vec![c.b.cast(y, out)?])
}
