//! Tensors out of nothing. Shape and dtype are those of the host's result: the arguments say the same less plainly.

use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use crate::import::is_dense;
use oxyfuel_base::{DType, Result, Scalar};
use oxyfuel_graph::{Binary, Op, ValueId};

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
    ("aten.arange.default", Compiled(|c| arange(c, None, None))),
    ("aten.arange.start", Compiled(|c| arange(c, Some(0), None))),
    (
        "aten.arange.start_step",
        Compiled(|c| arange(c, Some(0), Some(2))),
    ),
    ("prims.iota.default", Compiled(iota)),
    ("aten.linspace.default", Compiled(linspace)),
    ("aten.linspace.Tensor_Tensor", Compiled(linspace)),
    ("aten.linspace.Tensor_Scalar", Compiled(linspace)),
    ("aten.linspace.Scalar_Tensor", Compiled(linspace)),
    ("aten.logspace.default", Compiled(logspace)),
    ("aten.logspace.Tensor_Tensor", Compiled(logspace)),
    ("aten.logspace.Tensor_Scalar", Compiled(logspace)),
    ("aten.logspace.Scalar_Tensor", Compiled(logspace)),
];

fn filled(c: &mut Call<'_>, value: i64) -> Result<Vec<ValueId>> {
    let ty = c.out(0)?;
    Ok(vec![c.b.full(
        Scalar::I(value),
        ty.shape,
        ty.dtype,
        ty.device,
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
            Ok(vec![c.b.full(value, ty.shape, ty.dtype, ty.device)?])
        }
        Factor::Symbolic(e) => {
            let one = c.value_of(&Factor::Symbolic(e), ty.dtype)?;
            Ok(vec![c.b.expand(one, &ty.shape)?])
        }
        Factor::Value(_) => refuse(format!("`{name}` is a tensor")),
    }
}

/// Counting from a start in steps; their positions among the arguments. How far, the host's shape says.
fn arange(c: &mut Call<'_>, start: Option<usize>, step: Option<usize>) -> Result<Vec<ValueId>> {
    let start = match start {
        Some(position) => c.factor(position, "start")?,
        None => Factor::Number(Scalar::I(0)),
    };
    let step = match step {
        Some(position) => c.number(position, "step")?.unwrap_or(Scalar::I(1)),
        None => Scalar::I(1),
    };
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
    // Integers count in integers, as eager does, whatever the bounds were written as.
    let cast = |n: Scalar| match ty.dtype.is_float() {
        true => Scalar::F(n.as_f64()),
        false => Scalar::I(n.as_i64()),
    };
    let step = cast(step);
    let (first, offset) = match start {
        Factor::Number(n) => (cast(n), None),
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
            device: ty.device,
        },
        &[],
    )?;
    let Some(offset) = offset else {
        return Ok(vec![counted]);
    };
    let offset = c.value_of(&Factor::Symbolic(offset), ty.dtype)?;
    Ok(vec![c.b.emit(Op::Binary(Binary::Add), &[counted, offset])?])
}

/// One end of a space, as wide as it was written.
fn end(c: &mut Call<'_>, end: &Factor) -> Result<ValueId> {
    let dtype = match end {
        Factor::Value(v) => c.dtype(*v),
        Factor::Number(Scalar::F(_)) => DType::F64,
        Factor::Number(_) | Factor::Symbolic(_) => DType::I64,
    };
    c.value_of(end, dtype)
}

fn steps(c: &Call<'_>) -> Result<i64> {
    match c.out(0)?.shape.as_slice() {
        [n] => match n.as_const() {
            Some(n) => Ok(n),
            None => refuse("a number of steps that is not known when compiling"),
        },
        _ => refuse("no row of steps"),
    }
}

fn linspace(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "start")?, c.factor(1, "end")?);
    let (a, b) = (end(c, &a)?, end(c, &b)?);
    let dtype = c.out(0)?.dtype;
    let steps = steps(c)?;
    Ok(vec![c.b.linspace(a, b, steps, dtype)?])
}

/// Integers as large as this are right to the last digit.
const EXACT: f64 = 35_184_372_088_832.0;

fn logspace(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (c.factor(0, "start")?, c.factor(1, "end")?);
    let base = c.float(3, "base", 10.0)?;
    let dtype = c.out(0)?.dtype;
    for factor in [&a, &b] {
        if let Factor::Number(n) = factor
            && !dtype.is_float()
            && base.powf(n.as_f64()).abs() >= EXACT
        {
            return refuse("integers of more digits than a power has");
        }
    }
    let (a, b) = (end(c, &a)?, end(c, &b)?);
    let steps = steps(c)?;
    Ok(vec![c.b.logspace(a, b, steps, base, dtype)?])
}
