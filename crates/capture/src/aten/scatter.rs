//! Elements written, or met, at places that an index says.

use super::index::{at_least_1d, size_of, wrapped};
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Meet, Op, Operand, Scatter, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.scatter.src", Compiled(scatter)),
    ("aten.scatter.value", Compiled(scatter)),
    ("aten.scatter.reduce", Compiled(scatter)),
    ("aten.scatter.value_reduce", Compiled(scatter)),
    ("aten.scatter_add.default", Compiled(scatter_add)),
    ("aten.scatter_reduce.two", Compiled(scatter_reduce)),
    ("aten.index_add.default", Compiled(index_add)),
    ("aten.index_reduce.default", Compiled(index_reduce)),
    ("aten.put.default", Compiled(put)),
    ("aten.take.default", Compiled(take)),
    ("aten.masked_scatter.default", Compiled(masked_scatter)),
    (
        "aten.masked_scatter_backward.default",
        Compiled(masked_scatter_backward),
    ),
    (
        "aten.embedding_dense_backward.default",
        Compiled(embedding_dense_backward),
    ),
];

/// An index of a width that positions have.
fn position(c: &mut Call<'_>, index: ValueId) -> Result<ValueId> {
    match c.dtype(index) {
        DType::I64 | DType::I32 => Ok(index),
        _ => c.b.cast(index, DType::I64),
    }
}

fn scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index) = (c.tensor(0, "self")?, c.tensor(2, "index")?);
    let dim = c.int(1, "dim", 0)?;
    let op = match c.text(4, "reduce")? {
        None => Scatter::Set,
        Some("add") => Scatter::Sum,
        Some("multiply") => Scatter::Prod,
        Some(other) => return refuse(format!("reduce {other:?}")),
    };
    let src = match c
        .factor(3, "src")
        .or_else(|_| c.factor(usize::MAX, "value"))?
    {
        Factor::Value(v) => Operand::Value(v),
        Factor::Number(n) => Operand::Number(n),
        Factor::Symbolic(e) => {
            let dtype = c.dtype(x);
            let number = c.value_of(&Factor::Symbolic(e), dtype)?;
            let shape = c.shape(index);
            Operand::Value(c.b.expand(number, &shape)?)
        }
    };
    let index = position(c, index)?;
    Ok(vec![c.b.scatter(op, x, dim, index, src)?])
}

fn scatter_add(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index, src) = (
        c.tensor(0, "self")?,
        c.tensor(2, "index")?,
        c.tensor(3, "src")?,
    );
    let dim = c.int(1, "dim", 0)?;
    let index = position(c, index)?;
    Ok(vec![c.b.scatter(Scatter::Sum, x, dim, index, src)?])
}

fn meet(c: &Call<'_>) -> Result<Meet> {
    let name = c.text(4, "reduce")?.unwrap_or_default();
    match Meet::ALL.iter().find(|meet| meet.name() == name) {
        Some(meet) => Ok(*meet),
        None => refuse(format!("reduce {name:?}")),
    }
}

fn scatter_reduce(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index, src) = (
        c.tensor(0, "self")?,
        c.tensor(2, "index")?,
        c.tensor(3, "src")?,
    );
    let (dim, how) = (c.int(1, "dim", 0)?, meet(c)?);
    let own = c.flag(5, "include_self", true)?;
    let index = position(c, index)?;
    Ok(vec![c.b.scatter_reduce(how, x, dim, index, src, own)?])
}

fn slices(c: &mut Call<'_>, how: Meet, src: ValueId, own: bool) -> Result<Vec<ValueId>> {
    let (x, index) = (c.tensor(0, "self")?, c.tensor(2, "index")?);
    let dim = c.int(1, "dim", 0)?;
    let shape = c.shape(x);
    let (x, src) = (at_least_1d(c, x)?, at_least_1d(c, src)?);
    let index = position(c, index)?;
    let y = c.b.index_reduce(how, x, dim, index, src, own)?;
    Ok(vec![c.b.view(y, &shape)?])
}

fn index_add(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let mut src = c.tensor(3, "source")?;
    let alpha = c.number(4, "alpha")?.unwrap_or(Scalar::I(1));
    if alpha.as_f64() != 1.0 {
        let dtype = c.dtype(src);
        let alpha = c.value_of(&Factor::Number(alpha), dtype)?;
        src = c.b.emit(Op::Binary(Binary::Mul), &[src, alpha])?;
    }
    slices(c, Meet::Sum, src, true)
}

fn index_reduce(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (src, how) = (c.tensor(3, "source")?, meet(c)?);
    let own = c.flag(5, "include_self", true)?;
    slices(c, how, src, own)
}

/// A tensor as one row of its elements.
fn flat(c: &mut Call<'_>, x: ValueId) -> Result<ValueId> {
    let count: Expr = c.shape(x).iter().cloned().product();
    c.b.view(x, &[count])
}

/// A tensor as one row, and an index of its elements, from the end where it is negative.
fn in_one_row(c: &mut Call<'_>, x: ValueId, index: ValueId) -> Result<(ValueId, ValueId)> {
    let (row, index) = (flat(c, x)?, flat(c, index)?);
    let size = c.shape(row)[0].clone();
    Ok((row, wrapped(c, index, &size)?))
}

fn put(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index, src) = (
        c.tensor(0, "self")?,
        c.tensor(1, "index")?,
        c.tensor(2, "source")?,
    );
    let op = match c.flag(3, "accumulate", false)? {
        true => Scatter::Sum,
        false => Scatter::Set,
    };
    let shape = c.shape(x);
    let (row, index) = in_one_row(c, x, index)?;
    let src = flat(c, src)?;
    let y = c.b.scatter(op, row, 0, index, src)?;
    Ok(vec![c.b.view(y, &shape)?])
}

fn take(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index) = (c.tensor(0, "self")?, c.tensor(1, "index")?);
    let shape = c.shape(index);
    let (row, index) = in_one_row(c, x, index)?;
    let y = c.b.index_select(row, 0, index)?;
    Ok(vec![c.b.view(y, &shape)?])
}

/// How many elements before each of a flat mask are true.
fn rank_of(c: &mut Call<'_>, mask: ValueId) -> Result<ValueId> {
    let mask = c.b.cast(mask, DType::I64)?;
    let upto = c.b.cumsum(mask, 0)?;
    c.b.emit(Op::Binary(Binary::Sub), &[upto, mask])
}

/// The elements of the source one after another, where the mask is true.
fn masked_scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, mask, src) = (
        c.tensor(0, "self")?,
        c.tensor(1, "mask")?,
        c.tensor(2, "source")?,
    );
    let shape = c.out(0)?.shape;
    if shape.iter().any(|n| n.is_const(0)) {
        return Ok(vec![c.b.expand(x, &shape)?]);
    }
    if c.shape(src).iter().any(|n| n.is_const(0)) {
        return refuse("a source without elements");
    }
    let (x, mask) = (c.b.expand(x, &shape)?, c.b.expand(mask, &shape)?);
    let row = flat(c, mask)?;
    let rank = rank_of(c, row)?;
    let src = flat(c, src)?;
    let new = c.b.index_select(src, 0, rank)?;
    let new = c.b.view(new, &shape)?;
    Ok(vec![c.b.emit(Op::Where, &[mask, new, x])?])
}

/// What the source of a masked scatter gets: the gradient where the mask is true, one after another, and zeros behind.
fn masked_scatter_backward(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (grad, mask) = (c.tensor(0, "grad_output")?, c.tensor(1, "mask")?);
    let out = c.out(0)?;
    let count: Expr = out.shape.iter().cloned().product();
    let shape = c.shape(grad);
    let mask = c.b.expand(mask, &shape)?;
    let (grad, mask) = (flat(c, grad)?, flat(c, mask)?);
    let rank = rank_of(c, mask)?;
    // What is masked goes to a place of its own behind the others.
    let last = size_of(c, &count)?;
    let place = c.b.emit(Op::Where, &[mask, rank, last])?;
    let zeros =
        c.b.full(0, vec![count.clone() + 1], out.dtype, out.device)?;
    let y = c.b.scatter(Scatter::Set, zeros, 0, place, grad)?;
    let y = c.b.slice(y, 0, 0, count, 1)?;
    Ok(vec![c.b.view(y, &out.shape)?])
}

fn embedding_dense_backward(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (grad, indices) = (c.tensor(0, "grad_output")?, c.tensor(1, "indices")?);
    let Some(rows) = c.expr(2, "num_weights")? else {
        return refuse("no number of rows");
    };
    let padding = c.int(3, "padding_idx", -1)?;
    let by_count = c.flag(4, "scale_grad_by_freq", false)?;
    let indices = position(c, indices)?;
    let padding = Some(padding).filter(|&p| p >= 0);
    let y =
        c.b.embedding_backward(grad, indices, rows, padding, by_count)?;
    Ok(vec![y])
}
