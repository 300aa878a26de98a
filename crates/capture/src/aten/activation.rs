//! Activation functions, in the formulas of eager's kernels: computed in f32, rounded once.

use super::maths::{Steps, float_function};
use super::pointwise::wide;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::{Binary, Compare, Op, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.hardtanh.default", Compiled(hardtanh)),
    ("aten.relu6.default", Compiled(relu6)),
    ("aten.leaky_relu.default", Compiled(leaky_relu)),
    ("aten.elu.default", Compiled(elu)),
    ("aten.softplus.default", Compiled(softplus)),
    ("aten.mish.default", Compiled(|c| float_function(c, mish))),
    (
        "aten.hardsigmoid.default",
        Compiled(|c| float_function(c, hardsigmoid)),
    ),
    (
        "aten.hardswish.default",
        Compiled(|c| float_function(c, hardswish)),
    ),
    ("aten.threshold.default", Compiled(threshold)),
    ("aten.logit.default", Compiled(logit)),
    ("aten.log_sigmoid_forward.default", Compiled(log_sigmoid)),
];

fn hardtanh(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let low = c.number(1, "min_val")?.unwrap_or(Scalar::F(-1.0));
    let high = c.number(2, "max_val")?.unwrap_or(Scalar::F(1.0));
    between(c, low, high)
}

fn relu6(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    between(c, Scalar::F(0.0), Scalar::F(6.0))
}

fn between(c: &mut Call<'_>, low: Scalar, high: Scalar) -> Result<Vec<ValueId>> {
    // The bounds are cut to the dtype, as eager does.
    let dtype = c.out(0)?.dtype;
    let bound = |n: Scalar| Some(Factor::Number(n.cast(dtype)));
    c.clamped([bound(low), bound(high)])
}

/// `self` in the dtype of a float kernel, and the dtype of the result.
fn wide_self(c: &mut Call<'_>) -> Result<(ValueId, DType, DType)> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    if !out.is_float() || out.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    Ok((c.b.cast(x, wide(out))?, wide(out), out))
}

fn leaky_relu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let slope = c.float(1, "negative_slope", 0.01)?;
    let (x, dtype, out) = wide_self(c)?;
    let mut s = Steps { c, dtype };
    let scaled = s.times(x, slope)?;
    let positive = s.is(Compare::Gt, x, 0.0)?;
    let y = s.choose(positive, x, scaled)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn elu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let alpha = c.float(1, "alpha", 1.0)?;
    let scale = c.float(2, "scale", 1.0)?;
    let input_scale = c.float(3, "input_scale", 1.0)?;
    let (x, dtype, out) = wide_self(c)?;
    let mut s = Steps { c, dtype };
    let scaled = s.times(x, input_scale)?;
    let e = s.unary(Unary::Expm1, scaled)?;
    let below = s.times(e, alpha * scale)?;
    let above = s.times(x, scale)?;
    let negative = s.is(Compare::Lt, x, 0.0)?;
    let y = s.choose(negative, below, above)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn softplus(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let beta = c.float(1, "beta", 1.0)?;
    let threshold = c.float(2, "threshold", 20.0)?;
    let (x, dtype, out) = wide_self(c)?;
    let mut s = Steps { c, dtype };
    let scaled = s.times(x, beta)?;
    let e = s.unary(Unary::Exp, scaled)?;
    let log = s.unary(Unary::Log1p, e)?;
    let beta = s.number(beta)?;
    let soft = s.div(log, beta)?;
    let linear = s.is(Compare::Gt, scaled, threshold)?;
    let y = s.choose(linear, x, soft)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn mish(s: &mut Steps<'_, '_>, x: ValueId) -> Result<ValueId> {
    let e = s.unary(Unary::Exp, x)?;
    let soft = s.unary(Unary::Log1p, e)?;
    let gate = s.unary(Unary::Tanh, soft)?;
    s.mul(x, gate)
}

/// `min(max(x + 3, 0), 6)`.
fn gate6(s: &mut Steps<'_, '_>, x: ValueId) -> Result<ValueId> {
    let moved = s.plus(x, 3.0)?;
    let (zero, six) = (s.number(0.0)?, s.number(6.0)?);
    let low = s.binary(Binary::Maximum, moved, zero)?;
    s.binary(Binary::Minimum, low, six)
}

fn hardsigmoid(s: &mut Steps<'_, '_>, x: ValueId) -> Result<ValueId> {
    let gate = gate6(s, x)?;
    let six = s.number(6.0)?;
    s.div(gate, six)
}

fn hardswish(s: &mut Steps<'_, '_>, x: ValueId) -> Result<ValueId> {
    let gate = gate6(s, x)?;
    let product = s.mul(x, gate)?;
    let six = s.number(6.0)?;
    s.div(product, six)
}

fn threshold(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let (threshold, value) = (c.factor(1, "threshold")?, c.factor(2, "value")?);
    let dtype = c.dtype(x);
    let (threshold, value) = (c.value_of(&threshold, dtype)?, c.value_of(&value, dtype)?);
    let below = c.b.emit(Op::Compare(Compare::Le), &[x, threshold])?;
    Ok(vec![c.b.emit(Op::Where, &[below, value, x])?])
}

/// `log(x / (1 - x))`, of `x` kept so far from 0 and 1. Eager rounds after every step, and so do we.
fn logit(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let margin = c.number(1, "eps")?.map(|n| n.as_f64());
    let (x, dtype) = (c.tensor(0, "self")?, c.out(0)?.dtype);
    if !dtype.is_float() || dtype.is_narrow_float() {
        return refuse(format!("on {dtype}"));
    }
    let mut x = c.b.cast(x, dtype)?;
    let mut s = Steps { c, dtype };
    if let Some(margin) = margin.filter(|m| *m >= 0.0) {
        let low = s.number(margin)?;
        let high = s.from(1.0, low)?;
        // Above a half the bounds have changed places; the lower one wins then.
        let given = x;
        for (f, bound) in [(Compare::Gt, high), (Compare::Lt, low)] {
            let beyond = s.c.b.emit(Op::Compare(f), &[given, bound])?;
            x = s.choose(beyond, bound, x)?;
        }
    }
    let rest = s.from(1.0, x)?;
    let odds = s.div(x, rest)?;
    Ok(vec![s.unary(Unary::Log, odds)?])
}

/// `min(x, 0) - log1p(exp(-|x|))`, and the exponential, which eager keeps for its gradient.
fn log_sigmoid(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, dtype, out) = wide_self(c)?;
    let mut s = Steps { c, dtype };
    let size = s.unary(Unary::Abs, x)?;
    let below = s.unary(Unary::Neg, size)?;
    let e = s.unary(Unary::Exp, below)?;
    let log = s.unary(Unary::Log1p, e)?;
    let zero = s.number(0.0)?;
    let least = s.binary(Binary::Minimum, x, zero)?;
    let y = s.sub(least, log)?;
    Ok(vec![c.b.cast(y, out)?, c.b.cast(e, out)?])
}
