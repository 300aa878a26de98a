//! Elements picked by position or by data, put together, or replaced.

use super::view::{dim_of, from_end, not_negative};
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Indexed, Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.cat.default", Compiled(cat)),
    ("aten.stack.default", Compiled(stack)),
    ("aten.gather.default", Compiled(gather)),
    ("aten.index_select.default", Compiled(index_select)),
    ("aten.index.Tensor", Compiled(index)),
    ("aten._unsafe_index.Tensor", Compiled(index)),
    ("aten.embedding.default", Compiled(embedding)),
    ("aten.slice_scatter.default", Compiled(slice_scatter)),
    ("aten.select_scatter.default", Compiled(select_scatter)),
    ("aten.index_put.default", Compiled(index_put)),
    ("aten._unsafe_index_put.default", Compiled(index_put)),
    ("aten.flip.default", Compiled(flip)),
];

fn cat(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let tensors = c.tensors(0, "tensors")?;
    let dim = c.int(1, "dim", 0)?;
    let dtype = c.out(0)?.dtype;
    let tensors = tensors
        .into_iter()
        .map(|t| c.b.cast(t, dtype))
        .collect::<Result<Vec<_>>>()?;
    Ok(vec![c.b.cat(&tensors, dim)?])
}

fn stack(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let tensors = c.tensors(0, "tensors")?;
    let dim = c.int(1, "dim", 0)?;
    let dtype = c.out(0)?.dtype;
    let mut rows = vec![];
    for t in tensors {
        let t = c.b.cast(t, dtype)?;
        rows.push(c.b.unsqueeze(t, dim)?);
    }
    Ok(vec![c.b.cat(&rows, dim)?])
}

/// A tensor without dimensions as one of one element.
pub(super) fn at_least_1d(c: &mut Call<'_>, x: ValueId) -> Result<ValueId> {
    if c.rank(x) == 0 {
        c.b.view(x, &[Expr::ONE])
    } else {
        Ok(x)
    }
}

fn gather(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index) = (c.tensor(0, "self")?, c.tensor(2, "index")?);
    let dim = c.int(1, "dim", 0)?;
    let out = c.out(0)?;
    if out.shape.iter().any(|n| n.is_const(0)) {
        // An empty index may have any rank.
        return Ok(vec![c.b.full(0, out.shape, c.dtype(x), out.device)?]);
    }
    let (x, index) = (at_least_1d(c, x)?, at_least_1d(c, index)?);
    let index = match c.dtype(index) {
        DType::I64 | DType::I32 => index,
        _ => c.b.cast(index, DType::I64)?,
    };
    let y = c.b.gather(x, dim, index)?;
    Ok(vec![c.b.view(y, &out.shape)?])
}

fn index_select(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, index) = (c.tensor(0, "self")?, c.tensor(2, "index")?);
    let dim = c.int(1, "dim", 0)?;
    let shape = c.out(0)?.shape;
    let (x, index) = (at_least_1d(c, x)?, at_least_1d(c, index)?);
    let y = c.b.index_select(x, dim, index)?;
    Ok(vec![c.b.view(y, &shape)?])
}

fn embedding(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (weight, indices) = (c.tensor(0, "weight")?, c.tensor(1, "indices")?);
    Ok(vec![c.b.embedding(weight, indices)?])
}

/// Positions that count from the end brought to the front.
pub(super) fn wrapped(c: &mut Call<'_>, index: ValueId, size: &Expr) -> Result<ValueId> {
    c.b.wrapped(index, size)
}

pub(super) fn size_of(c: &mut Call<'_>, size: &Expr) -> Result<ValueId> {
    match size.as_const() {
        Some(n) => c.value_of(&Factor::Number(Scalar::I(n)), DType::I64),
        None => c.value_of(&Factor::Symbolic(size.clone()), DType::I64),
    }
}

/// `x[i, :, j, ..]`: the indexed dimensions become one, so that one index selects from it.
fn indexed(c: &mut Call<'_>, x: ValueId) -> Result<Indexed> {
    let indices = c.optional_tensors(1, "indices")?;
    let mut picked = indices.iter().flatten();
    if picked.any(|&i| !matches!(c.dtype(i), DType::I64 | DType::I32)) {
        return refuse("a mask picks a number of elements that only the data says");
    }
    let Some(last) = indices.iter().rposition(Option::is_some) else {
        return refuse("without an index");
    };
    if last >= c.rank(x) {
        return refuse("more indices than dimensions");
    }
    c.b.indexed(x, &indices)
}

fn index(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let Indexed { x, dim, linear, .. } = indexed(c, x)?;
    let y =
        c.b.index_select(x, i64::try_from(dim).unwrap_or(0), linear)?;
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.view(y, &shape)?])
}

fn slice_scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, src) = (c.tensor(0, "self")?, c.tensor(1, "src")?);
    let dim = c.int(2, "dim", 0)?;
    let start = c.expr(3, "start")?.unwrap_or(Expr::ZERO);
    let end = c.expr(4, "end")?.unwrap_or(Expr::constant(i64::MAX));
    let step = c.int(5, "step", 1)?;
    let src = c.b.cast(src, c.dtype(x))?;
    if let Ok(y) = c.b.slice_scatter(x, src, dim, start.clone(), end, step) {
        return Ok(vec![y]);
    }
    // How large the replacement is says where the end is.
    let dim = dim_of(c, x, dim)?;
    let start = from_end(start, &c.shape(x)[dim]);
    if step != 1 || !not_negative(c, &start) {
        return refuse("bounds whose order is not known");
    }
    let end = start.clone() + c.shape(src).get(dim).cloned().unwrap_or(Expr::ZERO);
    let op = Op::SliceScatter {
        dim,
        start,
        end,
        step,
    };
    Ok(vec![c.b.emit(op, &[x, src])?])
}

fn select_scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, src) = (c.tensor(0, "self")?, c.tensor(1, "src")?);
    let dim = dim_of(c, x, c.int(2, "dim", 0)?)?;
    let Some(index) = c.expr(3, "index")? else {
        return refuse("no index");
    };
    let start = from_end(index, &c.shape(x)[dim]);
    if !not_negative(c, &start) {
        return refuse("an index that may count from the end");
    }
    let src = c.b.cast(src, c.dtype(x))?;
    let src = c.b.unsqueeze(src, i64::try_from(dim).unwrap_or(0))?;
    let end = start.clone() + 1;
    let op = Op::SliceScatter {
        dim,
        start,
        end,
        step: 1,
    };
    Ok(vec![c.b.emit(op, &[x, src])?])
}

/// `x[mask] = number` chooses; `x[i, :, j, ..] = values` replaces slices, or adds to them. A mask with several values goes to places that only the data says.
fn index_put(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, values) = (c.tensor(0, "self")?, c.tensor(2, "values")?);
    let indices = c.optional_tensors(1, "indices")?;
    let accumulate = c.flag(3, "accumulate", false)?;
    let values = c.b.cast(values, c.dtype(x))?;
    let &[Some(mask)] = indices.as_slice() else {
        return put_slices(c, x, values, accumulate);
    };
    if c.dtype(mask) != DType::Bool {
        return put_slices(c, x, values, accumulate);
    }
    if !c.shape(values).iter().all(|n| n.is_const(1)) {
        return refuse("writes to places that only the data says");
    }
    let mut shape = c.shape(mask);
    if shape.len() > c.rank(x) {
        return refuse("a mask of more dimensions");
    }
    shape.resize(c.rank(x), Expr::ONE);
    let mask = c.b.view(mask, &shape)?;
    let mut value = c.b.view(values, &[])?;
    if accumulate {
        value = c.b.emit(Op::Binary(Binary::Add), &[x, value])?;
    }
    Ok(vec![c.b.emit(Op::Where, &[mask, value, x])?])
}

fn put_slices(
    c: &mut Call<'_>,
    x: ValueId,
    values: ValueId,
    accumulate: bool,
) -> Result<Vec<ValueId>> {
    let at = indexed(c, x)?;
    Ok(vec![c.b.put_slices(&at, values, accumulate)?])
}

fn flip(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let mut x = c.tensor(0, "self")?;
    let dims = c.ints(1, "dims")?.unwrap_or_default();
    if c.rank(x) == 0 {
        return Ok(vec![x]);
    }
    for dim in dims {
        dim_of(c, x, dim)?;
        x = c.b.flip(x, dim)?;
    }
    Ok(vec![x])
}
