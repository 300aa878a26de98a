//! Views that speak of memory: `as_strided`, and diagonals.
//!
//! GRAPH's views name elements, not memory. A stride can be expressed where the operand's memory holds its elements and nothing else: then memory order is
//! an order of the elements, and what the strides pick is a slice of it.

use super::view::dim_of;
use super::{Import::Compiled, Import::View, Row};
use crate::call::{Call, refuse};
use crate::import::order_of;
use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.as_strided.default", View(as_strided)),
    ("aten.diagonal.default", View(diagonal)),
    ("aten.as_strided_copy.default", Compiled(as_strided)),
    ("aten.diagonal_copy.default", Compiled(diagonal)),
    ("aten.diagonal_scatter.default", Compiled(diagonal_scatter)),
    (
        "aten.as_strided_scatter.default",
        Compiled(as_strided_scatter),
    ),
];

fn as_strided(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let from = c.strides(0, "self")?.to_vec();
    let (size, stride) = (c.exprs(1, "size")?, c.exprs(2, "stride")?);
    let (Some(size), Some(stride)) = (size, stride) else {
        return refuse("no size or stride");
    };
    let offset = c.expr(3, "storage_offset")?.unwrap_or(Expr::ZERO);
    let shape = c.shape(x);
    // The stride of a single row reaches no other element.
    let in_place = |d: usize| stride[d] == from[d] || size[d].is_const(1);
    if size == shape && offset.is_const(0) && (0..size.len()).all(in_place) {
        return Ok(vec![x]);
    }
    let Some(order) = order_of(&shape, &from) else {
        return refuse("of memory with gaps");
    };
    let count: Expr = shape.iter().cloned().product();
    // Dimensions that stay in place are repetitions; the rest must be dense.
    let moving: Vec<usize> = (0..size.len())
        .filter(|&d| !stride[d].is_const(0) || size[d].is_const(1))
        .collect();
    let pick = |all: &[Expr]| -> Vec<Expr> { moving.iter().map(|&d| all[d].clone()).collect() };
    let (part, part_stride) = (pick(&size), pick(&stride));
    let Some(to) = order_of(&part, &part_stride) else {
        return refuse("with gaps");
    };
    let flat = in_memory_order(c, x, &order, &count)?;
    let wanted: Expr = part.iter().cloned().product();
    let end = offset.clone() + wanted.clone();
    let cut = if offset.is_const(0) && wanted == count {
        flat
    } else {
        let start = offset;
        c.b.emit(
            Op::Slice {
                dim: 0,
                start,
                end,
                step: 1,
            },
            &[flat],
        )?
    };
    let dense = from_memory_order(c, cut, &part, &to)?;
    if moving.len() == size.len() {
        return Ok(vec![dense]);
    }
    let single: Vec<Expr> = (0..size.len())
        .map(|d| match moving.contains(&d) {
            true => size[d].clone(),
            false => Expr::ONE,
        })
        .collect();
    let single = c.b.view(dense, &single)?;
    Ok(vec![c.b.expand(single, &size)?])
}

/// The memory of `self` with a dense part of it replaced.
fn as_strided_scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, src) = (c.tensor(0, "self")?, c.tensor(1, "src")?);
    let from = c.strides(0, "self")?.to_vec();
    let (size, stride) = (c.exprs(2, "size")?, c.exprs(3, "stride")?);
    let (Some(size), Some(stride)) = (size, stride) else {
        return refuse("no size or stride");
    };
    let start = c.expr(4, "storage_offset")?.unwrap_or(Expr::ZERO);
    let shape = c.shape(x);
    let (Some(order), Some(part)) = (order_of(&shape, &from), order_of(&size, &stride)) else {
        return refuse("of memory with gaps");
    };
    let count: Expr = shape.iter().cloned().product();
    let written: Expr = size.iter().cloned().product();
    let src = c.b.cast(src, c.dtype(x))?;
    let src = in_memory_order(c, src, &part, &written)?;
    let flat = if start.is_const(0) && written == count {
        src
    } else {
        let flat = in_memory_order(c, x, &order, &count)?;
        let end = start.clone() + written;
        let op = Op::SliceScatter {
            dim: 0,
            start,
            end,
            step: 1,
        };
        c.b.emit(op, &[flat, src])?
    };
    Ok(vec![from_memory_order(c, flat, &shape, &order)?])
}

/// The elements one after another as they lie in memory.
fn in_memory_order(c: &mut Call<'_>, x: ValueId, order: &[usize], count: &Expr) -> Result<ValueId> {
    let rank = c.rank(x);
    let ones = (0..rank).filter(|d| !order.contains(d));
    let dims: Vec<usize> = ones.chain(order.iter().copied()).collect();
    let sorted = dims.windows(2).all(|w| w[0] < w[1]);
    let x = if sorted {
        x
    } else {
        c.b.emit(Op::Permute { dims }, &[x])?
    };
    c.b.view(x, std::slice::from_ref(count))
}

/// A tensor whose elements lie so in memory.
fn from_memory_order(
    c: &mut Call<'_>,
    flat: ValueId,
    shape: &[Expr],
    order: &[usize],
) -> Result<ValueId> {
    let ones = (0..shape.len()).filter(|d| !order.contains(d));
    let dims: Vec<usize> = ones.chain(order.iter().copied()).collect();
    let lying: Vec<Expr> = dims.iter().map(|&d| shape[d].clone()).collect();
    let x = c.b.view(flat, &lying)?;
    if dims.windows(2).all(|w| w[0] < w[1]) {
        return Ok(x);
    }
    let mut back = vec![0; dims.len()];
    for (i, &d) in dims.iter().enumerate() {
        back[d] = i;
    }
    c.b.emit(Op::Permute { dims: back }, &[x])
}

/// A matrix inside of a tensor as rows laid end to end, and the places of one diagonal there: every (columns + 1)-th.
struct Diagonal {
    /// The order of dimensions with those of the matrix last.
    dims: Vec<usize>,
    /// The sizes of the others.
    batch: Vec<Expr>,
    rows: i64,
    cols: i64,
    start: i64,
    end: i64,
}

/// The diagonal that arguments from `position` on name: offset and two dimensions.
fn find_diagonal(c: &Call<'_>, x: ValueId, position: usize) -> Result<Diagonal> {
    let mut offset = c.int(position, "offset", 0)?;
    let (dim1, dim2) = (
        c.int(position + 1, "dim1", 0)?,
        c.int(position + 2, "dim2", 1)?,
    );
    let (mut d1, mut d2) = (dim_of(c, x, dim1)?, dim_of(c, x, dim2)?);
    let shape = c.shape(x);
    // Where columns lie end to end, theirs are the rows that a view can lay end to end.
    if let Ok(strides) = c.strides(0, "self")
        && strides[d1] != strides[d2].clone() * shape[d2].clone()
        && strides[d2] == strides[d1].clone() * shape[d1].clone()
    {
        (d1, d2, offset) = (d2, d1, -offset);
    }
    let mut dims: Vec<usize> = (0..shape.len()).filter(|&d| d != d1 && d != d2).collect();
    let batch: Vec<Expr> = dims.iter().map(|&d| shape[d].clone()).collect();
    dims.extend([d1, d2]);
    let (Some(rows), Some(cols)) = (shape[d1].as_const(), shape[d2].as_const()) else {
        return refuse("a matrix of unknown size");
    };
    let length = if offset >= 0 {
        rows.min(cols - offset)
    } else {
        (rows + offset).min(cols)
    };
    let (start, end) = if length <= 0 {
        (0, 0)
    } else {
        let start = if offset >= 0 { offset } else { -offset * cols };
        (start, start + (length - 1) * (cols + 1) + 1)
    };
    Ok(Diagonal {
        dims,
        batch,
        rows,
        cols,
        start,
        end,
    })
}

impl Diagonal {
    fn is_sorted(&self) -> bool {
        self.dims.windows(2).all(|w| w[0] < w[1])
    }

    /// The tensor with the rows of its matrices laid end to end.
    fn flat(&self, c: &mut Call<'_>, x: ValueId) -> Result<ValueId> {
        let dims = self.dims.clone();
        let x = match self.is_sorted() {
            true => x,
            false => c.b.emit(Op::Permute { dims }, &[x])?,
        };
        let mut shape = self.batch.clone();
        shape.push(Expr::constant(self.rows * self.cols));
        c.b.view(x, &shape)
    }
}

fn diagonal(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let d = find_diagonal(c, x, 1)?;
    let flat = d.flat(c, x)?;
    let op = Op::Slice {
        dim: d.batch.len(),
        start: Expr::constant(d.start),
        end: Expr::constant(d.end),
        step: d.cols + 1,
    };
    Ok(vec![c.b.emit(op, &[flat])?])
}

/// The tensor with a diagonal replaced.
fn diagonal_scatter(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, src) = (c.tensor(0, "self")?, c.tensor(1, "src")?);
    let d = find_diagonal(c, x, 2)?;
    let flat = d.flat(c, x)?;
    let src = c.b.cast(src, c.dtype(x))?;
    let op = Op::SliceScatter {
        dim: d.batch.len(),
        start: Expr::constant(d.start),
        end: Expr::constant(d.end),
        step: d.cols + 1,
    };
    let flat = c.b.emit(op, &[flat, src])?;
    let mut shape = d.batch.clone();
    shape.extend([Expr::constant(d.rows), Expr::constant(d.cols)]);
    let x = c.b.view(flat, &shape)?;
    if d.is_sorted() {
        return Ok(vec![x]);
    }
    let mut back = vec![0; d.dims.len()];
    for (i, &dim) in d.dims.iter().enumerate() {
        back[dim] = i;
    }
    Ok(vec![c.b.emit(Op::Permute { dims: back }, &[x])?])
}
