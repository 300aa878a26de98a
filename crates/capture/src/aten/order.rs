//! Elements in order, and distances between rows.

use super::pointwise::wide;
use super::view::dim_of;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Compare, Device, Op, Reduce, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.sort.stable", Compiled(sort)),
    ("aten._cdist_forward.default", Compiled(distances)),
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
        let place = c.b.full(0, vec![], DType::I64, Device::Cpu)?;
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
    let d = c.b.emit(Op::Unary(Unary::Abs), &[d])?;
    let number = |c: &mut Call<'_>, v: f64| c.value_of(&Factor::Number(Scalar::F(v)), dtype);
    let dims = vec![rank];
    let keepdim = false;
    let reduce = |c: &mut Call<'_>, op, x| {
        let dims = dims.clone();
        c.b.emit(Op::Reduce { op, dims, keepdim }, &[x])
    };
    let y = if p == 0.0 {
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
        reduce(c, Reduce::Amax, d)?
    } else {
        let (power, root) = (number(c, p)?, number(c, 1.0 / p)?);
        let powers = c.b.emit(Op::Binary(Binary::Pow), &[d, power])?;
        let sum = reduce(c, Reduce::Sum, powers)?;
        c.b.emit(Op::Binary(Binary::Pow), &[sum, root])?
    };
    Ok(vec![c.b.cast(y, out.dtype)?])
}
