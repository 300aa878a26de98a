//! Tensors out of nothing. Shape and dtype are those of the host's result: the arguments say the same less plainly.

use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use crate::import::is_dense;
use oxyfuel_base::{Result, Scalar};
use oxyfuel_graph::{Binary, Device, Op, ValueId};

pub(super) const ROWS: &[Row] = &[
    (
        "aten.full.default",
        Compiled(|c| filled_with(c, 1, "fill_value")),
    ),
    (
        "aten.full_like.default",
        Compiled(|c| filled_with(c, 1, "fill_value")),
    ),
    (
        "aten.new_full.default",
        Compiled(|c| filled_with(c, 2, "fill_value")),
    ),
    ("aten.zeros.default", Compiled(|c| filled(c, 0))),
    ("aten.zeros_like.default", Compiled(|c| filled(c, 0))),
    ("aten.new_zeros.default", Compiled(|c| filled(c, 0))),
    ("aten.ones.default", Compiled(|c| filled(c, 1))),
    ("aten.ones_like.default", Compiled(|c| filled(c, 1))),
    ("aten.new_ones.default", Compiled(|c| filled(c, 1))),
    ("aten.empty.memory_format", Compiled(|c| filled(c, 0))),
    ("aten.empty_like.default", Compiled(|c| filled(c, 0))),
    ("aten.empty_strided.default", Compiled(empty_strided)),
    ("aten.empty_permuted.default", Compiled(|c| filled(c, 0))),
    ("aten.new_empty.default", Compiled(|c| filled(c, 0))),
    ("aten.new_empty_strided.default", Compiled(empty_strided)),
    (
        "aten.scalar_tensor.default",
        Compiled(|c| filled_with(c, 0, "s")),
    ),
    (
        "aten.arange.default",
        Compiled(|c| arange(c, None, Some(0), None)),
    ),
    (
        "aten.arange.start",
        Compiled(|c| arange(c, Some(0), Some(1), None)),
    ),
    (
        "aten.arange.start_step",
        Compiled(|c| arange(c, Some(0), Some(1), Some(2))),
    ),
    ("prims.iota.default", Compiled(iota)),
];

fn filled(c: &mut Call<'_>, value: i64) -> Result<Vec<ValueId>> {
    let ty = c.out(0)?;
    Ok(vec![c.b.full(
        Scalar::I(value),
        ty.shape,
        ty.dtype,
        Device::Cpu,
    )?])
}

/// Strides with gaps or overlaps are the host's to make.
fn empty_strided(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let ty = c.meta(0)?;
    if !is_dense(&ty.shape, &ty.strides) {
        return refuse("strides with gaps or overlaps");
    }
    filled(c, 0)
}

fn filled_with(c: &mut Call<'_>, position: usize, name: &str) -> Result<Vec<ValueId>> {
    let ty = c.out(0)?;
    match c.factor(position, name)? {
        Factor::Number(value) => {
            if value.as_f64().is_nan() && !ty.dtype.is_float() {
                return refuse("NaN as an integer");
            }
            Ok(vec![c.b.full(value, ty.shape, ty.dtype, Device::Cpu)?])
        }
        Factor::Symbolic(e) => {
            let one = c.value_of(&Factor::Symbolic(e), ty.dtype)?;
            Ok(vec![c.b.expand(one, &ty.shape)?])
        }
        Factor::Value(_) => refuse(format!("`{name}` is a tensor")),
    }
}

/// Counting from a start in steps; positions of start, end and step among the arguments.
fn arange(
    c: &mut Call<'_>,
    start: Option<usize>,
    end: Option<usize>,
    step: Option<usize>,
) -> Result<Vec<ValueId>> {
    let start = match start {
        Some(position) => c.factor(position, "start")?,
        None => Factor::Number(Scalar::I(0)),
    };
    let step = match step {
        Some(position) => c.number(position, "step")?.unwrap_or(Scalar::I(1)),
        None => Scalar::I(1),
    };
    // A fractional bound of an integer count changes how eager counts.
    let bound = end.map(|position| c.factor(position, "end")).transpose()?;
    if !c.out(0)?.dtype.is_float() && matches!(bound, Some(Factor::Number(Scalar::F(_)))) {
        return refuse("an integer count up to a float");
    }
    count(c, start, step)
}

/// `iota(length, start, step)`: always integers.
fn iota(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let start = c.factor(1, "start")?;
    let step = c.number(2, "step")?.unwrap_or(Scalar::I(1));
    count(c, start, step)
}

fn count(c: &mut Call<'_>, start: Factor, step: Scalar) -> Result<Vec<ValueId>> {
    let ty = c.out(0)?;
    let cast = |n: Scalar| -> Option<Scalar> {
        match (ty.dtype.is_float(), n) {
            (true, n) => Some(Scalar::F(n.as_f64())),
            (false, Scalar::I(_) | Scalar::B(_)) => Some(Scalar::I(n.as_i64())),
            (false, Scalar::F(_)) => None,
        }
    };
    let Some(step) = cast(step) else {
        return refuse("an integer count in fractional steps");
    };
    let (first, offset) = match start {
        Factor::Number(n) => match cast(n) {
            Some(first) => (first, None),
            None => return refuse("an integer count from a float"),
        },
        Factor::Symbolic(e) if ty.dtype.is_int() => (Scalar::I(0), Some(e)),
        Factor::Symbolic(_) => return refuse("a float count from a symbolic start"),
        Factor::Value(_) => return refuse("`start` is a tensor"),
    };
    let counted = c.b.emit(
        Op::Arange {
            start: first,
            step,
            shape: ty.shape,
            dtype: ty.dtype,
            device: Device::Cpu,
        },
        &[],
    )?;
    let Some(offset) = offset else {
        return Ok(vec![counted]);
    };
    let offset = c.value_of(&Factor::Symbolic(offset), ty.dtype)?;
    Ok(vec![c.b.emit(Op::Binary(Binary::Add), &[counted, offset])?])
}
