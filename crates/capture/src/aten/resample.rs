//! Images of another size whose pixels are the nearest ones of the old, an index along each dimension, or lie between them.

use super::pointwise::wide;
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::{Between, Binary, Op, Outside, Resized, Unary, ValueId};

pub(super) const ROWS: &[Row] = &[
    (
        "aten.upsample_nearest1d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.0)),
    ),
    (
        "aten.upsample_nearest2d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.0)),
    ),
    (
        "aten.upsample_nearest3d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.0)),
    ),
    (
        "aten.upsample_nearest2d.vec",
        Compiled(|c| nearest(c, Scales::Listed, 0.0)),
    ),
    (
        "aten._upsample_nearest_exact1d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.5)),
    ),
    (
        "aten._upsample_nearest_exact2d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.5)),
    ),
    (
        "aten._upsample_nearest_exact3d.default",
        Compiled(|c| nearest(c, Scales::Apart, 0.5)),
    ),
    ("aten.upsample_bilinear2d.vec", Compiled(bilinear)),
    ("aten.grid_sampler_2d.default", Compiled(grid_sampler)),
];

/// How an overload passes its scales.
#[derive(Clone, Copy)]
enum Scales {
    /// One argument a dimension, from position 2 on.
    Apart,
    /// A list at position 2.
    Listed,
}

const NAMES: [&[&str]; 4] = [
    &[],
    &["scales"],
    &["scales_h", "scales_w"],
    &["scales_d", "scales_h", "scales_w"],
];

/// Pixel `i` is the old pixel `floor((i + shift) * ratio)`, computed in f32 as eager does.
fn nearest(c: &mut Call<'_>, scales: Scales, shift: f64) -> Result<Vec<ValueId>> {
    let mut x = c.tensor(0, "input")?;
    let (from, to) = (c.shape(x), c.out(0)?.shape);
    if from.len() < 3 || from.len() != to.len() || from.len() - 2 >= NAMES.len() {
        return refuse("no image");
    }
    let count = from.len() - 2;
    let listed: Vec<Option<Scalar>> = match scales {
        Scales::Listed => c.numbers(2, "scale_factors", count)?,
        Scales::Apart => (0..count)
            .map(|i| c.number(2 + i, NAMES[count][i]))
            .collect::<Result<_>>()?,
    };
    for (i, scale) in listed.into_iter().enumerate() {
        let dim = i + 2;
        let (Some(old), Some(new)) = (from[dim].as_const(), to[dim].as_const()) else {
            return refuse("an image of unknown size");
        };
        if old == new {
            continue;
        }
        let ratio = match scale.map(|s| s.as_f64()).filter(|s| *s > 0.0) {
            Some(scale) => (1.0 / scale) as f32,
            None => old as f32 / new as f32,
        };
        // Twice the size is exact in eager, whatever the scale says.
        let ratio = if new == 2 * old && shift == 0.0 {
            0.5
        } else {
            ratio
        };
        let index = index(c, new, old, ratio, shift)?;
        x =
            c.b.index_select(x, i64::try_from(dim).unwrap_or(0), index)?;
    }
    Ok(vec![x])
}

/// Between two neighbours along each dimension, in f32 until the end.
fn bilinear(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "input")?;
    let corners = c.flag(2, "align_corners", false)?;
    let scales = c.numbers(3, "scale_factors", 2)?;
    let (from, out) = (c.shape(x), c.out(0)?);
    if from.len() != 4 || out.shape.len() != 4 || !out.dtype.is_float() {
        return refuse("no image of floats");
    }
    let mut y = c.b.cast(x, wide(out.dtype))?;
    for dim in [3, 2] {
        let (Some(old), Some(new)) = (from[dim].as_const(), out.shape[dim].as_const()) else {
            return refuse("an image of unknown size");
        };
        let scale = scales[dim - 2].map(|s| s.as_f64()).filter(|s| *s > 0.0);
        let axis = Resized {
            old,
            new,
            corners,
            scale: scale.map(|s| 1.0 / s),
        };
        y = c.b.resize_linear(y, dim, axis)?;
    }
    Ok(vec![c.b.cast(y, out.dtype)?])
}

fn index(c: &mut Call<'_>, count: i64, size: i64, ratio: f32, shift: f64) -> Result<ValueId> {
    let positions = Op::Arange {
        start: Scalar::F(shift),
        step: Scalar::F(1.0),
        shape: vec![Expr::constant(count)],
        dtype: DType::F32,
        device: c.device(),
    };
    let at = c.b.emit(positions, &[])?;
    let ratio = c.value_of(&Factor::Number(Scalar::F(f64::from(ratio))), DType::F32)?;
    let place = c.b.emit(Op::Binary(Binary::Mul), &[at, ratio])?;
    let place = c.b.emit(Op::Unary(Unary::Floor), &[place])?;
    let place = c.b.cast(place, DType::I64)?;
    let last = c.value_of(&Factor::Number(Scalar::I(size - 1)), DType::I64)?;
    c.b.emit(Op::Binary(Binary::Minimum), &[place, last])
}

fn grid_sampler(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (x, grid) = (c.tensor(0, "input")?, c.tensor(1, "grid")?);
    let between = match c.int(2, "interpolation_mode", 0)? {
        0 => Between::Bilinear,
        1 => Between::Nearest,
        2 => Between::Bicubic,
        other => return refuse(format!("interpolation of kind {other}")),
    };
    let outside = match c.int(3, "padding_mode", 0)? {
        0 => Outside::Zeros,
        1 => Outside::Border,
        2 => Outside::Reflection,
        other => return refuse(format!("padding of kind {other}")),
    };
    let corners = c.flag(4, "align_corners", false)?;
    if !matches!(c.dtype(x), DType::F32 | DType::F64) || c.dtype(grid) != c.dtype(x) {
        // The nearest pixel of a rounded place is another pixel.
        return refuse("places that eager rounds to halves");
    }
    let y = c.b.grid_sampler_2d(x, grid, between, outside, corners)?;
    Ok(vec![y])
}
