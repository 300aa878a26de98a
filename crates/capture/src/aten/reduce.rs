//! Reductions. Halves are added in f32 and rounded once; that is what the ops of GRAPH mean.

use super::pointwise::wide;
use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Op, Reduce, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    (
        "aten.sum.default",
        Compiled(|c| added(c, Reduce::Sum, Over::All)),
    ),
    (
        "aten.sum.dim_IntList",
        Compiled(|c| added(c, Reduce::Sum, Over::Dims)),
    ),
    (
        "aten.mean.default",
        Compiled(|c| added(c, Reduce::Mean, Over::All)),
    ),
    (
        "aten.mean.dim",
        Compiled(|c| added(c, Reduce::Mean, Over::Dims)),
    ),
    (
        "aten.prod.default",
        Compiled(|c| added(c, Reduce::Prod, Over::All)),
    ),
    (
        "aten.prod.dim_int",
        Compiled(|c| added(c, Reduce::Prod, Over::Dims)),
    ),
    (
        "aten.amax.default",
        Compiled(|c| picked(c, Reduce::Amax, Over::Dims)),
    ),
    (
        "aten.amin.default",
        Compiled(|c| picked(c, Reduce::Amin, Over::Dims)),
    ),
    (
        "aten.max.default",
        Compiled(|c| picked(c, Reduce::Amax, Over::All)),
    ),
    (
        "aten.min.default",
        Compiled(|c| picked(c, Reduce::Amin, Over::All)),
    ),
    (
        "aten.any.default",
        Compiled(|c| picked(c, Reduce::Any, Over::All)),
    ),
    (
        "aten.any.dim",
        Compiled(|c| picked(c, Reduce::Any, Over::Dims)),
    ),
    (
        "aten.any.dims",
        Compiled(|c| picked(c, Reduce::Any, Over::NamedDims)),
    ),
    (
        "aten.all.default",
        Compiled(|c| picked(c, Reduce::All, Over::All)),
    ),
    (
        "aten.all.dim",
        Compiled(|c| picked(c, Reduce::All, Over::Dims)),
    ),
    (
        "aten.all.dims",
        Compiled(|c| picked(c, Reduce::All, Over::NamedDims)),
    ),
    ("aten.var.correction", Compiled(|c| variance(c, false))),
    ("aten.var.dim", Compiled(var_dim)),
    ("aten.std.correction", Compiled(|c| variance(c, true))),
    ("aten.var_mean.correction", Compiled(var_mean)),
    ("aten.argmax.default", Compiled(|c| position(c, true))),
    ("aten.argmin.default", Compiled(|c| position(c, false))),
    ("aten.max.dim", Compiled(|c| extreme_and_position(c, true))),
    ("aten.min.dim", Compiled(|c| extreme_and_position(c, false))),
    (
        "aten.cumsum.default",
        Compiled(|c| running(c, |dim| Op::Cumsum { dim })),
    ),
    (
        "aten.cumprod.default",
        Compiled(|c| running(c, |dim| Op::Cumprod { dim })),
    ),
    (
        "aten.cummax.default",
        Compiled(|c| running_extreme(c, true)),
    ),
    (
        "aten.cummin.default",
        Compiled(|c| running_extreme(c, false)),
    ),
    ("aten.logcumsumexp.default", Compiled(logcumsumexp)),
];

/// Which dimensions an overload reduces.
#[derive(Clone, Copy)]
enum Over {
    All,
    /// `dim` at position 1 and `keepdim` at 2; an empty list means all.
    Dims,
    /// The same, but an empty list means none.
    NamedDims,
}

/// Dimensions made non-negative and sorted, and whether they stay with size 1.
fn dims(c: &Call<'_>, x: ValueId, over: Over) -> Result<(Vec<usize>, bool)> {
    let rank = c.rank(x);
    let all: Vec<usize> = (0..rank).collect();
    let listed = match over {
        Over::All => return Ok((all, false)),
        Over::Dims | Over::NamedDims => c.ints(1, "dim")?,
    };
    let keepdim = c.flag(2, "keepdim", false)?;
    let listed = match listed {
        None => return Ok((all, keepdim)),
        Some(list) if list.is_empty() && !matches!(over, Over::NamedDims) => {
            return Ok((all, keepdim));
        }
        Some(list) => list,
    };
    let n = i64::try_from(rank).unwrap_or(i64::MAX).max(1);
    let mut out = vec![];
    for d in listed {
        if d < -n || d >= n {
            return refuse(format!("dimension {d} of {rank}"));
        }
        out.push(usize::try_from(if d < 0 { d + n } else { d }).unwrap_or(0));
    }
    if rank == 0 {
        out.clear();
    }
    out.sort_unstable();
    out.dedup();
    Ok((out, keepdim))
}

fn reduce(c: &mut Call<'_>, op: Reduce, x: ValueId, over: Over) -> Result<ValueId> {
    let (dims, keepdim) = dims(c, x, over)?;
    c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])
}

/// The elements are cast to the result's dtype first, as eager does with `dtype=`.
fn added(c: &mut Call<'_>, op: Reduce, over: Over) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    // Of truth values a product is `all`, and a sum `any`.
    let op = match op {
        Reduce::Prod if out.is_bool() => Reduce::All,
        Reduce::Sum if out.is_bool() => Reduce::Any,
        _ if out.is_bool() || out.is_narrow_float() => return refuse(format!("into {out}")),
        op => op,
    };
    let x = c.b.cast(x, out)?;
    Ok(vec![reduce(c, op, x, over)?])
}

fn picked(c: &mut Call<'_>, op: Reduce, over: Over) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    let y = reduce(c, op, x, over)?;
    // `any` and `all` of bytes are bytes.
    Ok(vec![c.b.cast(y, out)?])
}

fn correction(c: &Call<'_>) -> Result<f64> {
    let correction = c.float(usize::MAX, "correction", 1.0)?;
    if correction.is_finite() {
        Ok(correction)
    } else {
        refuse("a correction that is not finite")
    }
}

/// The variance over `dim`, or its root; in f32 until the end.
fn spread(c: &mut Call<'_>, correction: f64, keepdim: bool, root: bool) -> Result<ValueId> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    let (dims, _) = dims(c, x, Over::Dims)?;
    let x = if root { c.b.cast(x, wide(out))? } else { x };
    let op = Op::Var {
        dims,
        correction: Scalar::F(correction),
        keepdim,
    };
    let mut y = c.b.emit(op, &[x])?;
    if root {
        y = c.b.emit(Op::Unary(Unary::Sqrt), &[y])?;
    }
    c.b.cast(y, out)
}

fn variance(c: &mut Call<'_>, root: bool) -> Result<Vec<ValueId>> {
    let keepdim = c.flag(usize::MAX, "keepdim", false)?;
    let correction = correction(c)?;
    Ok(vec![spread(c, correction, keepdim, root)?])
}

fn var_dim(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let unbiased = c.flag(2, "unbiased", true)?;
    let keepdim = c.flag(3, "keepdim", false)?;
    Ok(vec![spread(
        c,
        f64::from(u8::from(unbiased)),
        keepdim,
        false,
    )?])
}

fn var_mean(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let keepdim = c.flag(usize::MAX, "keepdim", false)?;
    let correction = correction(c)?;
    let var = spread(c, correction, keepdim, false)?;
    let x = c.tensor(0, "self")?;
    let (dims, _) = dims(c, x, Over::Dims)?;
    let op = Reduce::Mean;
    let mean = c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])?;
    let dtype: DType = c.out(1)?.dtype;
    Ok(vec![var, c.b.cast(mean, dtype)?])
}

/// A dimension at position 1, made non-negative.
fn dim(c: &Call<'_>, x: ValueId) -> Result<Option<usize>> {
    let n = i64::try_from(c.rank(x)).unwrap_or(i64::MAX).max(1);
    match c.ints(1, "dim")?.as_deref() {
        None => Ok(None),
        Some(&[d]) if (-n..n).contains(&d) => {
            Ok(usize::try_from(if d < 0 { d + n } else { d }).ok())
        }
        Some(other) => refuse(format!("dimension {other:?} of {n}")),
    }
}

fn position_along(
    c: &mut Call<'_>,
    x: ValueId,
    dim: usize,
    keepdim: bool,
    max: bool,
) -> Result<ValueId> {
    let op = if max {
        Op::Argmax { dim, keepdim }
    } else {
        Op::Argmin { dim, keepdim }
    };
    c.b.emit(op, &[x])
}

/// `argmax` and `argmin`; without a dimension, of the tensor as one row.
fn position(c: &mut Call<'_>, max: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    if let Some(dim) = dim(c, x)? {
        let keepdim = c.flag(2, "keepdim", false)?;
        return Ok(vec![position_along(c, x, dim, keepdim, max)?]);
    }
    let row = c.b.ty(x).shape.iter().cloned().product();
    let x = c.b.emit(Op::View { shape: vec![row] }, &[x])?;
    let y = position_along(c, x, 0, false, max)?;
    let shape = c.out(0)?.shape.clone();
    Ok(vec![c.b.emit(Op::View { shape }, &[y])?])
}

/// `max.dim` and `min.dim`: the extreme and where it first is.
fn extreme_and_position(c: &mut Call<'_>, max: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Some(dim) = dim(c, x)? else {
        return refuse("without a dimension".to_owned());
    };
    let keepdim = c.flag(2, "keepdim", false)?;
    let op = if max { Reduce::Amax } else { Reduce::Amin };
    let dims = if c.rank(x) == 0 { vec![] } else { vec![dim] };
    let value = c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])?;
    let ordered = match c.b.ty(x).dtype {
        DType::Bool => c.b.cast(x, DType::U8)?,
        _ => x,
    };
    let place = position_along(c, ordered, dim, keepdim, max)?;
    Ok(vec![value, place])
}

/// `cumsum` and `cumprod`, in the result's dtype.
fn running(c: &mut Call<'_>, op: fn(usize) -> Op) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    if out.is_bool() || out.is_narrow_float() {
        return refuse(format!("into {out}"));
    }
    let Some(dim) = dim(c, x)? else {
        return refuse("without a dimension".to_owned());
    };
    let x = c.b.cast(x, out)?;
    Ok(vec![c.b.emit(op(dim), &[x])?])
}

/// Elements of a row up to which scans by doubling are compiled (decision 101): the host passes once over a longer one.
const LONGEST_EXTREME: i64 = 32;
const LONGEST_LOGARITHM: i64 = 1024;

/// The dimension of a scan by doubling, over at most so many elements.
fn scanned(c: &Call<'_>, x: ValueId, most: i64) -> Result<i64> {
    let Some(dim) = dim(c, x)? else {
        return refuse("without a dimension");
    };
    let length = c.shape(x).get(dim).map_or(Some(1), Expr::as_const);
    match length {
        Some(n) if n <= most => Ok(i64::try_from(dim).unwrap_or(0)),
        Some(_) => refuse("a scan of a long row is one pass in the host's"),
        None => refuse("a scan of a row of unknown length"),
    }
}

/// `cummax` and `cummin`: the extreme so far and its last position.
fn running_extreme(c: &mut Call<'_>, largest: bool) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = scanned(c, x, LONGEST_EXTREME)?;
    let (values, positions) = c.b.running_extreme(x, dim, largest)?;
    Ok(vec![values, positions])
}

fn logcumsumexp(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let out = c.out(0)?.dtype;
    if !out.is_float() || out.is_narrow_float() {
        return refuse(format!("on {out}"));
    }
    let dim = scanned(c, x, LONGEST_LOGARITHM)?;
    let x = c.b.cast(x, wide(out))?;
    let y = c.b.logcumsumexp(x, dim)?;
    Ok(vec![c.b.cast(y, out)?])
}
