//! Gradients of activations, softmax and layer norm, in the formulas of eager's kernels: computed in f32, rounded once.

use super::maths::Steps;
use super::pointwise::wide;
use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Binary, Compare, Op, Reduce, Unary, ValueId};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

pub(super) const ROWS: &[Row] = &[
    (
        "aten.sigmoid_backward.default",
        Compiled(|c| of_two(c, sigmoid)),
    ),
    ("aten.tanh_backward.default", Compiled(|c| of_two(c, tanh))),
    ("aten.silu_backward.default", Compiled(|c| of_two(c, silu))),
    (
        "aten.hardsigmoid_backward.default",
        Compiled(|c| of_two(c, hardsigmoid)),
    ),
    (
        "aten.hardswish_backward.default",
        Compiled(|c| of_two(c, hardswish)),
    ),
    ("aten.gelu_backward.default", Compiled(gelu)),
    ("aten.threshold_backward.default", Compiled(threshold)),
    ("aten.leaky_relu_backward.default", Compiled(leaky_relu)),
    ("aten.hardtanh_backward.default", Compiled(hardtanh)),
    ("aten.elu_backward.default", Compiled(elu)),
    ("aten.softplus_backward.default", Compiled(softplus)),
    ("aten.logit_backward.default", Compiled(logit)),
    (
        "aten._softmax_backward_data.default",
        Compiled(|c| softmax(c, false)),
    ),
    (
        "aten._log_softmax_backward_data.default",
        Compiled(|c| softmax(c, true)),
    ),
    (
        "aten.native_layer_norm_backward.default",
        Compiled(layer_norm),
    ),
];

/// The first two tensors in the wide dtype, that dtype, and the dtype of the result.
fn wide_two(c: &mut Call<'_>) -> Result<(ValueId, ValueId, DType, DType)> {
    // Names differ from operator to operator; FX passes both by position.
    let (grad, x) = (c.tensor(0, "grad_output")?, c.tensor(1, "self")?);
    let out = c.out(0)?.dtype;
    if !out.is_float() || out.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    let dtype = wide(out);
    Ok((c.b.cast(grad, dtype)?, c.b.cast(x, dtype)?, dtype, out))
}

fn of_two(
    c: &mut Call<'_>,
    f: fn(&mut Steps<'_, '_>, ValueId, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let (grad, x, dtype, out) = wide_two(c)?;
    let y = f(&mut Steps { c, dtype }, grad, x)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn sigmoid(s: &mut Steps<'_, '_>, grad: ValueId, y: ValueId) -> Result<ValueId> {
    let rest = s.from(1.0, y)?;
    let slope = s.mul(rest, y)?;
    s.mul(grad, slope)
}

fn tanh(s: &mut Steps<'_, '_>, grad: ValueId, y: ValueId) -> Result<ValueId> {
    let square = s.mul(y, y)?;
    let slope = s.from(1.0, square)?;
    s.mul(grad, slope)
}

fn silu(s: &mut Steps<'_, '_>, grad: ValueId, x: ValueId) -> Result<ValueId> {
    let gate = s.unary(Unary::Sigmoid, x)?;
    let rest = s.from(1.0, gate)?;
    let bend = s.mul(x, rest)?;
    let bend = s.plus(bend, 1.0)?;
    let slope = s.mul(gate, bend)?;
    s.mul(grad, slope)
}

/// `a` where `low < x < high`, else 0.
fn inside(s: &mut Steps<'_, '_>, x: ValueId, [low, high]: [f64; 2], a: ValueId) -> Result<ValueId> {
    let above = s.is(Compare::Gt, x, low)?;
    let below = s.is(Compare::Lt, x, high)?;
    let both = s.binary(Binary::BitwiseAnd, above, below)?;
    let zero = s.number(0.0)?;
    s.choose(both, a, zero)
}

fn hardsigmoid(s: &mut Steps<'_, '_>, grad: ValueId, x: ValueId) -> Result<ValueId> {
    let scaled = s.times(grad, 1.0 / 6.0)?;
    inside(s, x, [-3.0, 3.0], scaled)
}

fn hardswish(s: &mut Steps<'_, '_>, grad: ValueId, x: ValueId) -> Result<ValueId> {
    let third = s.number(3.0)?;
    let ratio = s.div(x, third)?;
    let slope = s.plus(ratio, 0.5)?;
    let middle = s.mul(grad, slope)?;
    let zero = s.number(0.0)?;
    let below = s.is(Compare::Le, x, -3.0)?;
    let under = s.is(Compare::Lt, x, 3.0)?;
    let upper = s.choose(under, middle, grad)?;
    s.choose(below, zero, upper)
}

fn gelu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    match c.text(2, "approximate")?.unwrap_or("none") {
        "none" => of_two(c, gelu_erf),
        "tanh" => of_two(c, gelu_tanh),
        other => refuse(format!("approximate={other:?}")),
    }
}

fn gelu_erf(s: &mut Steps<'_, '_>, grad: ValueId, x: ValueId) -> Result<ValueId> {
    let scaled = s.times(x, FRAC_1_SQRT_2)?;
    let erf = s.unary(Unary::Erf, scaled)?;
    let erf = s.plus(erf, 1.0)?;
    let cdf = s.times(erf, 0.5)?;
    let square = s.mul(x, x)?;
    let exponent = s.times(square, -0.5)?;
    let e = s.unary(Unary::Exp, exponent)?;
    let pdf = s.times(e, FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.5)?;
    let slope = s.mul(x, pdf)?;
    let slope = s.add(cdf, slope)?;
    s.mul(grad, slope)
}

fn gelu_tanh(s: &mut Steps<'_, '_>, grad: ValueId, x: ValueId) -> Result<ValueId> {
    let (beta, kappa) = (SQRT_2 * FRAC_2_SQRT_PI * 0.5, 0.044715);
    let square = s.mul(x, x)?;
    let cube = s.mul(square, x)?;
    let cube = s.times(cube, kappa)?;
    let inner = s.add(x, cube)?;
    let inner = s.times(inner, beta)?;
    let t = s.unary(Unary::Tanh, inner)?;
    let right = s.plus(t, 1.0)?;
    let left = s.times(x, 0.5)?;
    let left_slope = s.times(right, 0.5)?;
    let t2 = s.mul(t, t)?;
    let t_slope = s.from(1.0, t2)?;
    let inner_slope = s.times(square, 3.0 * kappa)?;
    let inner_slope = s.plus(inner_slope, 1.0)?;
    let inner_slope = s.times(inner_slope, beta)?;
    let right_slope = s.mul(left, t_slope)?;
    let right_slope = s.mul(right_slope, inner_slope)?;
    let slope = s.add(left_slope, right_slope)?;
    s.mul(grad, slope)
}

/// The gradient where `self` lies above the threshold.
fn threshold(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (grad, x) = (c.tensor(0, "grad_output")?, c.tensor(1, "self")?);
    let threshold = c.factor(2, "threshold")?;
    let dtype = c.out(0)?.dtype;
    let (grad, x) = (c.b.cast(grad, dtype)?, c.b.cast(x, dtype)?);
    let threshold = c.value_of(&threshold, dtype)?;
    let zero = Steps { c, dtype }.number(0.0)?;
    let below = c.b.emit(Op::Compare(Compare::Le), &[x, threshold])?;
    Ok(vec![c.b.emit(Op::Where, &[below, zero, grad])?])
}

fn leaky_relu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let slope = c.float(2, "negative_slope", 0.01)?;
    let (grad, x, dtype, out) = wide_two(c)?;
    let mut s = Steps { c, dtype };
    let scaled = s.times(grad, slope)?;
    let positive = s.is(Compare::Gt, x, 0.0)?;
    let y = s.choose(positive, grad, scaled)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn hardtanh(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let bounds = [c.float(2, "min_val", -1.0)?, c.float(3, "max_val", 1.0)?];
    let (grad, x, dtype, out) = wide_two(c)?;
    let y = inside(&mut Steps { c, dtype }, x, bounds, grad)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn elu(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (alpha, scale) = (c.float(1, "alpha", 1.0)?, c.float(2, "scale", 1.0)?);
    let input_scale = c.float(3, "input_scale", 1.0)?;
    let is_result = c.flag(4, "is_result", false)?;
    let (grad, x) = (c.tensor(0, "grad_output")?, c.tensor(5, "self_or_result")?);
    let out = c.out(0)?.dtype;
    let dtype = wide(out);
    let (grad, x) = (c.b.cast(grad, dtype)?, c.b.cast(x, dtype)?);
    let (negative, positive) = (alpha * scale, scale);
    let mut s = Steps { c, dtype };
    let slope = if is_result {
        let moved = s.plus(x, negative)?;
        s.times(moved, input_scale)?
    } else {
        let scaled = s.times(x, input_scale)?;
        let e = s.unary(Unary::Exp, scaled)?;
        s.times(e, negative * input_scale)?
    };
    let below = s.mul(grad, slope)?;
    let above = s.times(grad, positive)?;
    let is_below = s.is(Compare::Le, x, 0.0)?;
    let y = s.choose(is_below, below, above)?;
    Ok(vec![c.b.cast(y, out)?])
}

fn softplus(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (beta, threshold) = (c.float(2, "beta", 1.0)?, c.float(3, "threshold", 20.0)?);
    let (grad, x, dtype, out) = wide_two(c)?;
    let mut s = Steps { c, dtype };
    let scaled = s.times(x, beta)?;
    let gate = s.unary(Unary::Sigmoid, scaled)?;
    let soft = s.mul(grad, gate)?;
    let linear = s.is(Compare::Gt, scaled, threshold)?;
    let y = s.choose(linear, grad, soft)?;
    Ok(vec![c.b.cast(y, out)?])
}

/// `grad / (x (1 - x))`; beyond the margin nothing, and without one NaN. Rounded after every step, as eager does.
fn logit(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let margin = c.number(2, "eps")?.map(|n| n.as_f64());
    let (margin, beyond) = match margin {
        Some(m) if m >= 0.0 => (m, 0.0),
        _ => (0.0, f64::NAN),
    };
    let (grad, x) = (c.tensor(0, "grad_output")?, c.tensor(1, "self")?);
    let dtype = c.out(0)?.dtype;
    let (grad, x) = (c.b.cast(grad, dtype)?, c.b.cast(x, dtype)?);
    let mut s = Steps { c, dtype };
    let rest = s.from(1.0, x)?;
    let slope = s.mul(x, rest)?;
    let mut y = s.div(grad, slope)?;
    let (beyond, low) = (s.number(beyond)?, s.number(margin)?);
    let high = s.from(1.0, low)?;
    for (f, bound) in [(Compare::Lt, low), (Compare::Gt, high)] {
        let outside = s.c.b.emit(Op::Compare(f), &[x, bound])?;
        y = s.choose(outside, beyond, y)?;
    }
    Ok(vec![y])
}

/// `(grad - sum(grad * y)) * y`, or `grad - exp(y) * sum(grad)` of the logarithm.
fn softmax(c: &mut Call<'_>, log: bool) -> Result<Vec<ValueId>> {
    let (grad, y) = (c.tensor(0, "grad_output")?, c.tensor(1, "output")?);
    let dim = c.int(2, "dim", 0)?;
    let out = c.out(0)?.dtype;
    let dtype = wide(out);
    let (grad, y) = (c.b.cast(grad, dtype)?, c.b.cast(y, dtype)?);
    let mut s = Steps { c, dtype };
    let value = if log {
        let sum = s.c.b.reduce(Reduce::Sum, grad, &[dim], true)?;
        let e = s.unary(Unary::Exp, y)?;
        let share = s.mul(e, sum)?;
        s.sub(grad, share)?
    } else {
        let product = s.mul(grad, y)?;
        let sum = s.c.b.reduce(Reduce::Sum, product, &[dim], true)?;
        let share = s.mul(y, sum)?;
        s.sub(product, share)?
    };
    Ok(vec![c.b.cast(value, out)?])
}

/// Gradients of input, weight and bias; those the mask leaves out are nothing.
fn layer_norm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (grad, x) = (c.tensor(0, "grad_out")?, c.tensor(1, "input")?);
    let Some(normalized) = c.exprs(2, "normalized_shape")? else {
        return refuse("no normalized_shape");
    };
    let (mean, rstd) = (c.tensor(3, "mean")?, c.tensor(4, "rstd")?);
    let weight = c.optional_tensor(5, "weight")?;
    if c.result_count() != 3 {
        return refuse("without three results");
    }
    let [gx, gw, gb] = [c.meta(0).is_ok(), c.meta(1).is_ok(), c.meta(2).is_ok()];
    let dtype = match c.dtype(x) {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let rank = c.rank(x);
    let Some(outer) = rank.checked_sub(normalized.len()) else {
        return refuse("more normalised dimensions than the input has");
    };
    let inner: Vec<i64> = (outer..rank).map(index).collect();
    let rows: Vec<i64> = (0..outer).map(index).collect();
    let count: Expr = normalized.iter().cloned().product();
    let [grad, x] = [c.b.cast(grad, dtype)?, c.b.cast(x, dtype)?];
    let [mean, rstd] = [c.b.cast(mean, dtype)?, c.b.cast(rstd, dtype)?];
    let weight = match weight {
        Some(w) => Some(c.b.cast(w, dtype)?),
        None => None,
    };
    let mut s = Steps { c, dtype };
    let centred = s.sub(x, mean)?;
    let hat = s.mul(centred, rstd)?;
    let nothing = grad;
    let mut out = vec![nothing; 3];
    if gx {
        let g = match weight {
            Some(w) => s.mul(grad, w)?,
            None => grad,
        };
        let n = s.c.value_of(&crate::call::Factor::Symbolic(count), dtype)?;
        let sum = s.c.b.reduce(Reduce::Sum, g, &inner, true)?;
        let product = s.mul(g, hat)?;
        let product = s.c.b.reduce(Reduce::Sum, product, &inner, true)?;
        let scaled = s.mul(g, n)?;
        let along = s.mul(hat, product)?;
        let value = s.sub(scaled, sum)?;
        let value = s.sub(value, along)?;
        let factor = s.div(rstd, n)?;
        out[0] = s.mul(factor, value)?;
    }
    if gw {
        let product = s.mul(grad, hat)?;
        out[1] = sum_rows(&mut s, product, &rows)?;
    }
    if gb {
        out[2] = sum_rows(&mut s, grad, &rows)?;
    }
    for (i, wanted) in [gx, gw, gb].into_iter().enumerate() {
        if wanted {
            let dtype = c.out(i)?.dtype;
            out[i] = c.b.cast(out[i], dtype)?;
        }
    }
    Ok(out)
}

fn sum_rows(s: &mut Steps<'_, '_>, x: ValueId, rows: &[i64]) -> Result<ValueId> {
    if rows.is_empty() {
        Ok(x)
    } else {
        s.c.b.reduce(Reduce::Sum, x, rows, false)
    }
}

fn index(dim: usize) -> i64 {
    i64::try_from(dim).unwrap_or(i64::MAX)
}
