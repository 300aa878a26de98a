//! Other names for elements: shapes, orders, parts, repetition.
//!
//! The shape of the result is the host's, so that a size it proved need not be proved again.

use super::{Import::Compiled, Import::View, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.view.default", View(reshape)),
    ("aten._unsafe_view.default", View(reshape)),
    ("aten.reshape.default", View(reshape)),
    ("aten._reshape_alias.default", View(reshape)),
    ("aten.squeeze.default", View(reshape)),
    ("aten.squeeze.dim", View(reshape)),
    ("aten.squeeze.dims", View(reshape)),
    ("aten.unsqueeze.default", View(reshape)),
    ("aten.permute.default", View(permute)),
    ("aten.transpose.int", View(transpose)),
    ("aten.t.default", View(t)),
    ("aten.expand.default", View(expand)),
    ("aten.alias.default", View(same)),
    ("aten.detach.default", View(same)),
    ("aten.lift_fresh.default", View(same)),
    ("aten.slice.Tensor", View(slice)),
    ("aten.select.int", View(select)),
    ("aten.split_with_sizes.default", View(|c| split(c, 2))),
    ("aten.split.Tensor", View(|c| split(c, 2))),
    ("aten.split.sizes", View(|c| split(c, 2))),
    ("aten.unsafe_split.Tensor", View(|c| split(c, 2))),
    (
        "aten.unsafe_split_with_sizes.default",
        View(|c| split(c, 2)),
    ),
    ("aten.chunk.default", View(|c| split(c, 2))),
    ("aten.unbind.int", View(unbind)),
    ("aten.view_copy.default", Compiled(reshape)),
    ("aten.permute_copy.default", Compiled(permute)),
    ("aten.expand_copy.default", Compiled(expand)),
    ("aten.unsqueeze_copy.default", Compiled(reshape)),
    ("aten.squeeze_copy.default", Compiled(reshape)),
    ("aten.squeeze_copy.dim", Compiled(reshape)),
    ("aten.squeeze_copy.dims", Compiled(reshape)),
    ("aten.transpose_copy.int", Compiled(transpose)),
    ("aten.t_copy.default", Compiled(t)),
    ("aten.alias_copy.default", Compiled(same)),
    ("aten.detach_copy.default", Compiled(same)),
    ("aten.slice_copy.Tensor", Compiled(slice)),
    ("aten.select_copy.int", Compiled(select)),
    ("aten.unbind_copy.int", Compiled(unbind)),
    ("aten.split_copy.Tensor", Compiled(|c| split(c, 2))),
    (
        "aten.split_with_sizes_copy.default",
        Compiled(|c| split(c, 2)),
    ),
    ("aten.narrow_copy.default", Compiled(narrow)),
    ("aten.repeat.default", Compiled(repeat)),
    ("aten.roll.default", Compiled(roll)),
];

fn same(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    Ok(vec![c.tensor(0, "self")?])
}

fn reshape(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let shape = c.out(0)?.shape;
    if c.out(0)?.dtype != c.dtype(x) {
        return refuse("the bits under another dtype");
    }
    Ok(vec![c.b.view(x, &shape)?])
}

fn permute(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Some(dims) = c.ints(1, "dims")? else {
        return refuse("no order of dimensions");
    };
    Ok(vec![c.b.permute(x, &dims)?])
}

fn transpose(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let (a, b) = (c.int(1, "dim0", 0)?, c.int(2, "dim1", 0)?);
    if c.rank(x) == 0 {
        return Ok(vec![x]);
    }
    Ok(vec![c.b.transpose(x, a, b)?])
}

fn t(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    if c.rank(x) < 2 {
        return Ok(vec![x]);
    }
    Ok(vec![c.b.transpose(x, 0, 1)?])
}

fn expand(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.expand(x, &shape)?])
}

/// A dimension counted from the end when negative.
pub(super) fn dim_of(c: &Call<'_>, x: ValueId, dim: i64) -> Result<usize> {
    let rank = i64::try_from(c.rank(x)).unwrap_or(i64::MAX);
    match usize::try_from(if dim < 0 { dim + rank } else { dim }) {
        Ok(d) if d < c.rank(x) => Ok(d),
        Ok(_) | Err(_) => refuse(format!("dimension {dim} of {rank}")),
    }
}

/// A start that counts from the end when it is a negative constant.
pub(super) fn from_end(start: Expr, size: &Expr) -> Expr {
    match start.as_const() {
        Some(c) if c < 0 => size + c,
        Some(_) | None => start,
    }
}

/// Whether an expression is certainly not negative.
pub(super) fn not_negative(c: &Call<'_>, e: &Expr) -> bool {
    match e.as_const() {
        Some(value) => value >= 0,
        None => Expr::ZERO.provably_le(e, &c.b.graph().ranges()),
    }
}

fn slice(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", 0)?;
    let start = c.expr(2, "start")?.unwrap_or(Expr::ZERO);
    let end = c.expr(3, "end")?.unwrap_or(Expr::constant(i64::MAX));
    let step = c.int(4, "step", 1)?;
    let out = c.out(0)?;
    let plain = c.b.slice(x, dim, start.clone(), end, step)?;
    if c.shape(plain) == out.shape {
        return Ok(vec![plain]);
    }
    // The host knows how many there are; with a plain step that says where the end is.
    let d = dim_of(c, x, dim)?;
    let start = from_end(start, &c.shape(x)[d]);
    if step != 1 || !not_negative(c, &start) {
        return refuse("bounds whose order is not known");
    }
    let end = start.clone() + out.shape[d].clone();
    let op = Op::Slice {
        dim: d,
        start,
        end,
        step,
    };
    Ok(vec![c.b.emit(op, &[x])?])
}

fn select(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", 0)?;
    let Some(index) = c.expr(2, "index")? else {
        return refuse("no index");
    };
    if index.as_const().is_none() && !not_negative(c, &index) {
        return refuse("an index that may count from the end");
    }
    Ok(vec![c.b.select(x, dim, index)?])
}

/// So many elements of a dimension from a start.
fn narrow(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", 0)?;
    let (Some(start), Some(length)) = (c.expr(2, "start")?, c.expr(3, "length")?) else {
        return refuse("no bounds");
    };
    let dim = dim_of(c, x, dim)?;
    let start = from_end(start, &c.shape(x)[dim]);
    if !not_negative(c, &start) {
        return refuse("bounds whose order is not known");
    }
    let end = start.clone() + length;
    let op = Op::Slice {
        dim,
        start,
        end,
        step: 1,
    };
    Ok(vec![c.b.emit(op, &[x])?])
}

/// Parts one after another along a dimension; the results say how large each is.
fn split(c: &mut Call<'_>, dim_position: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(dim_position, "dim", 0)?;
    let dim = dim_of(c, x, dim)?;
    let mut start = Expr::ZERO;
    let mut parts = vec![];
    for i in 0..c.result_count() {
        let size = c.out(i)?.shape.get(dim).cloned().unwrap_or(Expr::ZERO);
        let end = start.clone() + size;
        let whole = start.is_const(0) && end == c.shape(x)[dim];
        let op = Op::Slice {
            dim,
            start,
            end: end.clone(),
            step: 1,
        };
        parts.push(if whole { x } else { c.b.emit(op, &[x])? });
        start = end;
    }
    Ok(parts)
}

fn unbind(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let dim = c.int(1, "dim", 0)?;
    let count = i64::try_from(c.result_count()).unwrap_or(0);
    (0..count).map(|i| c.b.select(x, dim, i)).collect()
}

/// The whole tensor several times along each dimension.
fn repeat(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Some(repeats) = c.exprs(1, "repeats")? else {
        return refuse("no counts");
    };
    let shape = c.shape(x);
    let Some(lead) = repeats.len().checked_sub(shape.len()) else {
        return refuse("fewer counts than dimensions");
    };
    let (mut single, mut full) = (vec![], vec![]);
    for (i, count) in repeats.iter().enumerate() {
        let size = i
            .checked_sub(lead)
            .and_then(|d| shape.get(d).cloned())
            .unwrap_or(Expr::ONE);
        single.extend([Expr::ONE, size.clone()]);
        full.extend([count.clone(), size]);
    }
    let x = c.b.view(x, &single)?;
    let x = c.b.expand(x, &full)?;
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.view(x, &shape)?])
}

/// The end of each dimension moved before its start.
fn roll(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let (shifts, dims) = (c.ints(1, "shifts")?, c.ints(2, "dims")?);
    let shifts = shifts.unwrap_or_default();
    let dims = dims.unwrap_or_default();
    let shape = c.shape(x);
    let (mut x, dims) = match dims.is_empty() {
        true => {
            let count: Expr = shape.iter().cloned().product();
            (c.b.view(x, &[count])?, vec![0])
        }
        false => (x, dims),
    };
    if shifts.len() != dims.len() {
        return refuse("not one shift a dimension");
    }
    for (shift, dim) in shifts.into_iter().zip(dims) {
        let d = dim_of(c, x, dim)?;
        if c.shape(x)[d].as_const().is_none() {
            return refuse("a dimension of unknown size");
        }
        x = c.b.roll(x, shift, dim)?;
    }
    Ok(vec![c.b.view(x, &shape)?])
}
