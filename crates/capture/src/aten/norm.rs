//! Softmax and the normalisations, computed in f32 and rounded once.

use super::maths::Steps;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Op, Reduce, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten._softmax.default", Compiled(|c| softmax(c, false))),
    (
        "aten._safe_softmax.default",
        super::Import::External("rows without any finite element are zero, not NaN"),
    ),
    ("aten._log_softmax.default", Compiled(|c| softmax(c, true))),
    ("aten.native_layer_norm.default", Compiled(layer_norm)),
    (
        "aten._native_batch_norm_legit_no_training.default",
        Compiled(batch_norm_inference),
    ),
    (
        "aten._native_batch_norm_legit.no_stats",
        Compiled(batch_norm_own),
    ),
    (
        "aten._native_batch_norm_legit_functional.default",
        Compiled(batch_norm_training),
    ),
    (
        "aten._batch_norm_with_update_functional.default",
        Compiled(batch_norm_with_update),
    ),
];

fn softmax(c: &mut Call<'_>, log: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", 0)?;
    let out = c.out(0)?.dtype;
    // `half_to_float` asks for the unrounded result.
    let x = c.b.cast(x, out)?;
    Ok(vec![if log {
        c.b.log_softmax(x, dim)?
    } else {
        c.b.softmax(x, dim)?
    }])
}

/// The dtype a normalisation computes in.
pub(super) fn statistics(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

fn layer_norm(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "input")?;
    let rank = c.exprs(1, "normalized_shape")?.map_or(0, |s| s.len());
    let weight = c.optional_tensor(2, "weight")?;
    let bias = c.optional_tensor(3, "bias")?;
    let eps = c.float(4, "eps", 1e-5)?;
    let out = c.dtype(x);
    let one_dtype = [weight, bias].iter().flatten().all(|&p| c.dtype(p) == out);
    let dtype = if one_dtype { out } else { statistics(out) };
    let x = c.b.cast(x, dtype)?;
    let mut cast = |p: Option<ValueId>| p.map(|p| c.b.cast(p, dtype)).transpose();
    let (weight, bias) = (cast(weight)?, cast(bias)?);
    let all = c.b.native_layer_norm(x, rank, weight, bias, eps)?;
    cast_results(c, all.to_vec())
}

/// Results in the dtypes that the host says; of those that it leaves out it says none.
pub(super) fn cast_results(c: &mut Call<'_>, mut values: Vec<ValueId>) -> Result<Vec<ValueId>> {
    for (i, value) in values.iter_mut().enumerate() {
        if let Ok(ty) = c.out(i) {
            *value = c.b.cast(*value, ty.dtype)?;
        }
    }
    Ok(values)
}

/// A parameter of one number a channel, as wide as `dtype` and shaped to stand at dimension 1 of `rank`.
fn channel(
    c: &mut Call<'_>,
    p: Option<ValueId>,
    rank: usize,
    dtype: DType,
) -> Result<Option<ValueId>> {
    let Some(p) = p else { return Ok(None) };
    let p = c.b.cast(p, dtype)?;
    let mut shape = c.shape(p);
    shape.extend(vec![Expr::ONE; rank.saturating_sub(2)]);
    c.b.view(p, &shape).map(Some)
}

/// `x * weight + bias`, where they are.
pub(super) fn affine(
    s: &mut Steps<'_, '_>,
    x: ValueId,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<ValueId> {
    let scaled = match weight {
        Some(w) => s.mul(x, w)?,
        None => x,
    };
    match bias {
        Some(b) => s.add(scaled, b),
        None => Ok(scaled),
    }
}

/// With given statistics: scale and shift are those of eager, so that each element costs one product and one sum.
fn batch_norm_inference(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "input")?;
    let (weight, bias) = (
        c.optional_tensor(1, "weight")?,
        c.optional_tensor(2, "bias")?,
    );
    let (mean, var) = (c.tensor(3, "running_mean")?, c.tensor(4, "running_var")?);
    let eps = c.float(6, "eps", 1e-5)?;
    let (rank, dtype) = (c.rank(x), statistics(c.dtype(x)));
    if rank < 2 {
        return refuse("without channels");
    }
    let mut parameter = |p| channel(c, p, rank, dtype);
    let (weight, bias) = (parameter(weight)?, parameter(bias)?);
    let (Some(mean), Some(var)) = (parameter(Some(mean))?, parameter(Some(var))?) else {
        return refuse("statistics are left out");
    };
    let x = c.b.cast(x, dtype)?;
    let mut s = Steps { c, dtype };
    let var = s.plus(var, eps)?;
    let rstd = s.unary(Unary::Rsqrt, var)?;
    let scale = match weight {
        Some(w) => s.mul(rstd, w)?,
        None => rstd,
    };
    let moved = s.mul(mean, scale)?;
    let shift = match bias {
        Some(b) => s.sub(b, moved)?,
        None => s.unary(Unary::Neg, moved)?,
    };
    let product = s.mul(x, scale)?;
    let mut results = vec![s.add(product, shift)?];
    // The saved statistics are empty.
    for i in 1..c.result_count() {
        let ty = c.out(i)?;
        results.push(c.b.full(Scalar::I(0), ty.shape, ty.dtype, ty.device)?);
    }
    cast_results(c, results)
}

/// What the batch's own statistics give.
struct OfBatch {
    out: ValueId,
    mean: ValueId,
    rstd: ValueId,
    /// The mean of squared distances.
    var: ValueId,
}

fn of_batch(c: &mut Call<'_>, eps: f64) -> Result<OfBatch> {
    let x = c.tensor(0, "input")?;
    let (weight, bias) = (
        c.optional_tensor(1, "weight")?,
        c.optional_tensor(2, "bias")?,
    );
    let (rank, dtype) = (c.rank(x), statistics(c.dtype(x)));
    if rank < 2 {
        return refuse("without channels");
    }
    let channels = vec![c.shape(x)[1].clone()];
    let dims: Vec<usize> = (0..rank).filter(|&d| d != 1).collect();
    let average = |s: &mut Steps<'_, '_>, x: ValueId| {
        let op = Op::Reduce {
            op: Reduce::Mean,
            dims: dims.clone(),
            keepdim: true,
        };
        // As eager: sums over a batch are in f64, whatever it normalises.
        let wide = s.c.b.cast(x, DType::F64)?;
        let average = s.c.b.emit(op, &[wide])?;
        s.c.b.cast(average, s.dtype)
    };
    let weight = channel(c, weight, rank, dtype)?;
    let bias = channel(c, bias, rank, dtype)?;
    let x = c.b.cast(x, dtype)?;
    let mut s = Steps { c, dtype };
    let mean = average(&mut s, x)?;
    let centred = s.sub(x, mean)?;
    let square = s.mul(centred, centred)?;
    let var = average(&mut s, square)?;
    let moved = s.plus(var, eps)?;
    let rstd = s.unary(Unary::Rsqrt, moved)?;
    let hat = s.mul(centred, rstd)?;
    let out = affine(&mut s, hat, weight, bias)?;
    let mut flat = |v| c.b.view(v, &channels);
    let (mean, rstd, var) = (flat(mean)?, flat(rstd)?, flat(var)?);
    Ok(OfBatch {
        out,
        mean,
        rstd,
        var,
    })
}

/// With the batch's own statistics, which are results too.
fn batch_norm_own(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    if !c.flag(3, "training", true)? {
        return refuse("without statistics");
    }
    let eps = c.float(5, "eps", 1e-5)?;
    let batch = of_batch(c, eps)?;
    cast_results(c, vec![batch.out, batch.mean, batch.rstd])
}

/// The same, with the running statistics moved towards the batch's.
fn batch_norm_training(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    if !c.flag(5, "training", true)? {
        return refuse("not in training");
    }
    let momentum = c.float(6, "momentum", 0.1)?;
    let eps = c.float(7, "eps", 1e-5)?;
    let [out, mean, rstd, moved_mean, moved_var] = with_moved_statistics(c, momentum, eps)?;
    cast_results(c, vec![out, mean, rstd, moved_mean, moved_var])
}

/// The same in another order, and what the host's library keeps for the gradient: nothing.
fn batch_norm_with_update(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let momentum = c.float(5, "momentum", 0.1)?;
    let eps = c.float(6, "eps", 1e-5)?;
    let kept = c.out(3)?;
    if !kept.shape.iter().any(|n| n.is_const(0)) {
        return refuse("the gradient needs what the host's library keeps");
    }
    let kept = c.b.full(0, kept.shape, kept.dtype, kept.device)?;
    let [out, mean, rstd, moved_mean, moved_var] = with_moved_statistics(c, momentum, eps)?;
    cast_results(c, vec![out, mean, rstd, kept, moved_mean, moved_var])
}

/// The result, the batch's mean and reciprocal root, and the running statistics as they are then.
fn with_moved_statistics(c: &mut Call<'_>, momentum: f64, eps: f64) -> Result<[ValueId; 5]> {
    let (x, mean, var) = (
        c.tensor(0, "input")?,
        c.tensor(3, "running_mean")?,
        c.tensor(4, "running_var")?,
    );
    let shape = c.shape(x);
    let count: Expr = (0..shape.len())
        .filter(|&d| d != 1)
        .map(|d| shape[d].clone())
        .product();
    let dtype = statistics(c.dtype(x));
    let batch = of_batch(c, eps)?;
    let (mean, var) = (c.b.cast(mean, dtype)?, c.b.cast(var, dtype)?);
    let [n, less] = [&count, &(count.clone() - 1)].map(|e| match e.as_const() {
        Some(n) => Factor::Number(Scalar::I(n)),
        None => Factor::Symbolic(e.clone()),
    });
    let (n, less) = (c.value_of(&n, dtype)?, c.value_of(&less, dtype)?);
    let mut s = Steps { c, dtype };
    let sum = s.mul(batch.var, n)?;
    let unbiased = s.div(sum, less)?;
    let mut towards = |old: ValueId, new: ValueId| {
        let new = s.times(new, momentum)?;
        let old = s.times(old, 1.0 - momentum)?;
        s.add(new, old)
    };
    let (mean, var) = (towards(mean, batch.mean)?, towards(var, unbiased)?);
    Ok([batch.out, batch.mean, batch.rstd, mean, var])
}
