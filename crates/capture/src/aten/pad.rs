//! Borders around a tensor: of one number, of its mirror image, of its own edge.

use super::view::not_negative;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Binary, Device, Op, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.constant_pad_nd.default", Compiled(constant)),
    (
        "aten.reflection_pad1d.default",
        Compiled(|c| indexed(c, mirrored)),
    ),
    (
        "aten.reflection_pad2d.default",
        Compiled(|c| indexed(c, mirrored)),
    ),
    (
        "aten.reflection_pad3d.default",
        Compiled(|c| indexed(c, mirrored)),
    ),
    (
        "aten.replication_pad1d.default",
        Compiled(|c| indexed(c, clamped)),
    ),
    (
        "aten.replication_pad2d.default",
        Compiled(|c| indexed(c, clamped)),
    ),
    (
        "aten.replication_pad3d.default",
        Compiled(|c| indexed(c, clamped)),
    ),
];

/// (dimension, before, after), the last dimension first, as PyTorch lists them.
fn borders(c: &Call<'_>, x: ValueId, name: &str) -> Result<Vec<(usize, Expr, Expr)>> {
    let list = c.exprs(1, name)?.unwrap_or_default();
    let rank = c.rank(x);
    if list.len() % 2 != 0 || list.len() / 2 > rank {
        return refuse("borders that do not fit the dimensions");
    }
    let pairs = list.chunks_exact(2).enumerate();
    Ok(pairs
        .map(|(i, pair)| (rank - 1 - i, pair[0].clone(), pair[1].clone()))
        .collect())
}

fn constant(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let mut x = c.tensor(0, "self")?;
    let value = c.number(2, "value")?.unwrap_or(Scalar::I(0));
    for (dim, before, after) in borders(c, x, "pad")? {
        let d = i64::try_from(dim).unwrap_or(0);
        // A negative border cuts.
        if let (Some(b), Some(a)) = (before.as_const(), after.as_const())
            && (b < 0 || a < 0)
        {
            let size = c.shape(x)[dim].clone();
            let (start, end) = (Expr::constant((-b).max(0)), size + a.min(0));
            let op = Op::Slice {
                dim,
                start,
                end,
                step: 1,
            };
            x = c.b.emit(op, &[x])?;
        } else if !not_negative(c, &before) || !not_negative(c, &after) {
            return refuse("a border that may be negative");
        }
        let ty = c.b.ty(x).clone();
        let mut parts = vec![];
        for (size, middle) in [(before, true), (after, false)] {
            if size.as_const().is_none_or(|n| n > 0) {
                let mut shape = ty.shape.clone();
                shape[dim] = size;
                parts.push(c.b.full(value, shape, ty.dtype, Device::Cpu)?);
            }
            if middle {
                parts.push(x);
            }
        }
        if parts.len() > 1 {
            x = c.b.cat(&parts, d)?;
        }
    }
    Ok(vec![x])
}

/// A border whose elements are those of the tensor at other positions.
fn indexed(
    c: &mut Call<'_>,
    place: fn(&mut Call<'_>, ValueId, ValueId) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let mut x = c.tensor(0, "self")?;
    for (dim, before, after) in borders(c, x, "padding")? {
        if before.is_const(0) && after.is_const(0) {
            continue;
        }
        let size = c.shape(x)[dim].clone();
        let count = c.b.emit(
            Op::Arange {
                start: Scalar::I(0),
                step: Scalar::I(1),
                shape: vec![size.clone() + before.clone() + after],
                dtype: DType::I64,
                device: Device::Cpu,
            },
            &[],
        )?;
        let before = integer(c, before)?;
        let position = c.b.emit(Op::Binary(Binary::Sub), &[count, before])?;
        let last = integer(c, size - 1)?;
        let index = place(c, position, last)?;
        x =
            c.b.index_select(x, i64::try_from(dim).unwrap_or(0), index)?;
    }
    Ok(vec![x])
}

fn integer(c: &mut Call<'_>, e: Expr) -> Result<ValueId> {
    let factor = match e.as_const() {
        Some(n) => Factor::Number(Scalar::I(n)),
        None => Factor::Symbolic(e),
    };
    c.value_of(&factor, DType::I64)
}

/// `last - |last - |position||`: the edge is not repeated.
fn mirrored(c: &mut Call<'_>, position: ValueId, last: ValueId) -> Result<ValueId> {
    let abs = c.b.emit(Op::Unary(Unary::Abs), &[position])?;
    let rest = c.b.emit(Op::Binary(Binary::Sub), &[last, abs])?;
    let rest = c.b.emit(Op::Unary(Unary::Abs), &[rest])?;
    c.b.emit(Op::Binary(Binary::Sub), &[last, rest])
}

fn clamped(c: &mut Call<'_>, position: ValueId, last: ValueId) -> Result<ValueId> {
    let zero = integer(c, Expr::ZERO)?;
    let low = c.b.emit(Op::Binary(Binary::Maximum), &[position, zero])?;
    c.b.emit(Op::Binary(Binary::Minimum), &[low, last])
}
