//! Elements in order, places among elements in order, and distances.

use super::pointwise::wide;
use super::view::dim_of;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Compare, Op, Reduce, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.sort.stable", Compiled(sort)),
    ("aten.searchsorted.Tensor", Compiled(|c| search(c, 0, 1))),
    ("aten.searchsorted.Scalar", Compiled(|c| search(c, 0, 1))),
    ("aten.bucketize.Tensor", Compiled(|c| search(c, 1, 0))),
    ("aten.bucketize.Scalar", Compiled(|c| search(c, 1, 0))),
    ("aten._cdist_forward.default", Compiled(distances)),
    ("aten.dist.default", Compiled(distance)),
];

/// Equal elements keep their order; eager's own order of equals, where it need not be stable, is nobody else's.
fn sort(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    if !c.flag(usize::MAX, "stable", false)? {
        return refuse("the order of equal elements is the host's own");
    }
    let dim = c.int(usize::MAX, "dim", -1)?;
    let descending = c.flag(usize::MAX, "descending", false)?;
    if c.rank(x) == 0 {
        let device = c.device();
        let place = c.b.full(0, vec![], DType::I64, device)?;
        return Ok(vec![x, place]);
    }
    let dim = i64::try_from(dim_of(c, x, dim)?).unwrap_or(0);
    let order = c.b.argsort(x, dim, descending)?;
    Ok(vec![c.b.gather(x, dim, order)?, order])
}

/// Rows from which on eager multiplies instead.
const MANY: i64 = 25;

/// The p-norm of the difference of every row of one and every row of the other.
fn distances(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "x1")?, c.tensor(1, "x2")?);
    let p = c.float(2, "p", 2.0)?;
    let mode = c.int(3, "compute_mode", 0)?;
    let out = c.out(0)?;
    let (rank, columns) = (out.shape.len(), c.shape(a).last().cloned());
    if rank < 2 || c.rank(a) < 2 || c.rank(b) < 2 || p.is_nan() || p < 0.0 {
        return refuse("no rows");
    }
    let rows = out.shape[rank - 2..].iter();
    let many = rows.map(Expr::as_const).any(|n| n.is_none_or(|n| n > MANY));
    if p == 2.0 && (mode == 1 || (mode == 0 && many)) {
        return refuse("distances by a product run in the host's library");
    }
    if columns.is_none_or(|n| n.as_const().is_none_or(|n| n < 1)) {
        return refuse("rows that may be empty");
    }
    let dtype = wide(out.dtype);
    let (a, b) = (c.b.unsqueeze(a, -2)?, c.b.unsqueeze(b, -3)?);
    let (a, b) = (c.b.cast(a, dtype)?, c.b.cast(b, dtype)?);
    let d = c.b.emit(Op::Binary(Binary::Sub), &[a, b])?;
    let y = norm(c, d, p, vec![rank])?;
    Ok(vec![c.b.cast(y, out.dtype)?])
}

/// The p-norm over dimensions, of which none is empty.
fn norm(c: &mut Call<'_>, d: ValueId, p: f64, dims: Vec<usize>) -> Result<ValueId> {
    let d = c.b.emit(Op::Unary(Unary::Abs), &[d])?;
    let dtype = c.dtype(d);
    let number = |c: &mut Call<'_>, v: f64| c.value_of(&Factor::Number(Scalar::F(v)), dtype);
    let keepdim = false;
    let reduce = |c: &mut Call<'_>, op, x| {
        let dims = dims.clone();
        c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])
    };
    Ok(if p == 0.0 {
        let zero = number(c, 0.0)?;
        let other = c.b.emit(Op::Compare(Compare::Ne), &[d, zero])?;
        let other = c.b.cast(other, dtype)?;
        reduce(c, Reduce::Sum, other)?
    } else if p == 1.0 {
        reduce(c, Reduce::Sum, d)?
    } else if p == 2.0 {
        let squares = c.b.emit(Op::Binary(Binary::Mul), &[d, d])?;
        let sum = reduce(c, Reduce::Sum, squares)?;
        c.b.emit(Op::Unary(Unary::Sqrt), &[sum])?
    } else if p.is_infinite() {
        let extreme = if p > 0.0 { Reduce::Amax } else { Reduce::Amin };
        reduce(c, extreme, d)?
    } else {
        let (power, root) = (number(c, p)?, number(c, 1.0 / p)?);
        let powers = c.b.emit(Op::Binary(Binary::Pow), &[d, power])?;
        let sum = reduce(c, Reduce::Sum, powers)?;
        c.b.emit(Op::Binary(Binary::Pow), &[sum, root])?
    })
}

/// The p-norm of a difference, which is rounded first, as eager's.
fn distance(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.tensor(0, "self")?, c.tensor(1, "other")?);
    let p = c.float(2, "p", 2.0)?;
    let out = c.out(0)?.dtype;
    if !out.is_float() || p.is_nan() {
        return refuse(format!("on {out}"));
    }
    let (a, b) = (c.b.cast(a, out)?, c.b.cast(b, out)?);
    let d = c.b.emit(Op::Binary(Binary::Sub), &[a, b])?;
    let shape = c.shape(d);
    if shape.iter().any(|n| n.as_const().is_none_or(|n| n < 1)) {
        return refuse("a tensor that may be empty");
    }
    let d = c.b.cast(d, wide(out))?;
    let y = norm(c, d, p, (0..shape.len()).collect())?;
    Ok(vec![c.b.cast(y, out)?])
}

/// Places of values among rows in order, at these positions among the arguments.
fn search(c: &mut Call<'_>, rows: usize, values: usize) -> Result<Vec<ValueId>> {
    let row = c.tensor(rows, "sorted_sequence")?;
    let values = c.factor(values, "self")?;
    if matches!(values, Factor::Symbolic(_)) {
        return refuse("a value that only the sizes say");
    }
    let right = match c.text(usize::MAX, "side")? {
        Some(side) => side == "right",
        None => c.flag(usize::MAX, "right", false)?,
    };
    let sorter = c.optional_tensor(usize::MAX, "sorter")?;
    let out = c.out(0)?;
    if out.shape.iter().any(|n| n.is_const(0)) {
        return Ok(vec![c.b.full(0, out.shape, out.dtype, out.device)?]);
    }
    let y = c.b.searchsorted(row, values.operand(), right, sorter)?;
    Ok(vec![c.b.cast(y, out.dtype)?])
}
