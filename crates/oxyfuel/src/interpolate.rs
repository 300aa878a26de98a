//! Images of another size, and images read between their pixels.
//!
//! Places are computed in f32 (f64 for f64), one dim after another, the last one first, as PyTorch does. Sizes are numbers: one that changes from call to call is asked for.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe, wide};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Between, Op, Outside, Resized, Unary, ValueId};

/// How a value between pixels comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The old pixel at `floor(i * old / new)`: PyTorch's `nearest`.
    Nearest,
    /// The nearest old pixel: PyTorch's `nearest-exact`.
    NearestExact,
    /// Between two neighbours along each dim: `linear`, `bilinear`, `trilinear`.
    Linear,
    /// Along each dim a cubic through four neighbours: `bicubic`.
    Cubic,
    /// The average of what a new pixel covers: `area`.
    Area,
}

/// What lies between pixels, for [`Tensor::grid_sample`].
pub use oxyfuel_graph::Between as SampleMode;
/// What lies outside of an image, for [`Tensor::grid_sample`].
pub use oxyfuel_graph::Outside as SamplePadding;

/// The curvature of the cubic.
const A: f64 = -0.75;
/// Of a size.
const LARGEST: i64 = i32::MAX as i64;

impl Tensor {
    /// `[batch, channels, sizes…]` in other sizes. With `align_corners` the centres of the corner pixels stay where they are, else the edges of the image do; only [`Interpolation::Linear`] and
    /// [`Interpolation::Cubic`] know corners. PyTorch's `nn.functional.interpolate(size=…)`.
    ///
    /// ```
    /// use oxyfuel::{Interpolation, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let x = Tensor::from_slice(&[0.0f32, 2.0], &[1, 1, 2]);
    /// let y = x.interpolate(&[3], Interpolation::Linear, true);
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn interpolate(&self, sizes: &[i64], how: Interpolation, align_corners: bool) -> Tensor {
        let mode = match how {
            Interpolation::Nearest => 0,
            Interpolation::NearestExact => 1,
            Interpolation::Linear => 2,
            Interpolation::Cubic => 3,
            Interpolation::Area => 4,
        };
        let numbers = [Scalar::I(mode), Scalar::B(align_corners)];
        let sizes = sizes.iter().map(|&n| Scalar::I(n));
        let numbers: Vec<Scalar> = numbers.into_iter().chain(sizes).collect();
        recipe("interpolate", &[self.into()], &numbers, Nodes(interpolate))
    }

    /// [`interpolate`](Self::interpolate) to sizes that are so many times as large, rounded down. PyTorch's `interpolate(scale_factor=…, recompute_scale_factor=True)`.
    #[track_caller]
    pub fn upsample(&self, factor: f64, how: Interpolation, align_corners: bool) -> Tensor {
        if self.check().is_err() {
            return self.clone();
        }
        let old = self.shape().get(2..).unwrap_or_default();
        let new: Vec<i64> = old
            .iter()
            .map(|&n| (n as f64 * factor).floor() as i64)
            .collect();
        self.interpolate(&new, how, align_corners)
    }

    /// This image (`[n, c, h, w]`) at the places of a grid (`[n, h', w', 2]`: column, then row), which run from -1 at one border to 1 at the other. With `align_corners` these are the centres of
    /// the corner pixels, else the edges of the image.
    #[track_caller]
    pub fn grid_sample(
        &self,
        grid: &Tensor,
        between: SampleMode,
        outside: SamplePadding,
        align_corners: bool,
    ) -> Tensor {
        let between = match between {
            Between::Bilinear => 0,
            Between::Nearest => 1,
            Between::Bicubic => 2,
        };
        let outside = match outside {
            Outside::Zeros => 0,
            Outside::Border => 1,
            Outside::Reflection => 2,
        };
        let numbers = [Scalar::I(between), Scalar::I(outside), align_corners.into()];
        recipe(
            "grid_sample",
            &[self.into(), grid.into()],
            &numbers,
            Nodes(grid_sample),
        )
    }
}

fn grid_sample(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, grid) = (r.tensor(0)?, r.tensor(1)?);
    let between = match r.int(0)? {
        0 => Between::Bilinear,
        1 => Between::Nearest,
        _ => Between::Bicubic,
    };
    let outside = match r.int(1)? {
        0 => Outside::Zeros,
        1 => Outside::Border,
        _ => Outside::Reflection,
    };
    let (shape, places) = (r.shape(x), r.shape(grid));
    ensure!(
        shape.len() == 4 && places.len() == 4 && places[3].is_const(2) && shape[0] == places[0],
        ShapeMismatch,
        "grid_sample: an image [n, c, h, w] and a grid [n, h', w', 2], not {shape:?} and {places:?}"
    );
    ensure!(
        r.dtype(x).is_float() && r.dtype(x) == r.dtype(grid),
        DTypeMismatch,
        "grid_sample: an image of {} and a grid of {}",
        r.dtype(x),
        r.dtype(grid)
    );
    for extent in &shape[2..] {
        let size = r.known(extent, "an image")?;
        ensure!(
            size > 0,
            ShapeMismatch,
            "grid_sample: an image without pixels"
        );
    }
    let corners = r.flag(2)?;
    r.b.grid_sampler_2d(x, grid, between, outside, corners)
}

fn interpolate(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let (mode, corners, sizes, shape) = (r.int(0)?, r.flag(1)?, r.ints(2), r.shape(x));
    ensure!(
        !sizes.is_empty() && shape.len() == sizes.len() + 2,
        RankMismatch,
        "interpolate: {} sizes for an image with {} dims, of which two are batch and channels",
        sizes.len(),
        shape.len()
    );
    ensure!(
        mode == 2 || mode == 3 || !corners,
        InvalidArgument,
        "interpolate: align_corners is for Linear and Cubic"
    );
    ensure!(
        sizes.iter().all(|n| (1..LARGEST).contains(n)),
        InvalidArgument,
        "interpolate: sizes of {sizes:?}"
    );
    let mut old = vec![];
    for extent in &shape[2..] {
        let size = r.known(extent, "an image")?;
        ensure!(
            (1..LARGEST).contains(&size),
            ShapeMismatch,
            "interpolate: an image of {extent} pixels"
        );
        old.push(size);
    }
    if mode == 4 {
        return r.b.adaptive_avg_pool(x, &sizes);
    }
    let out = r.dtype(x);
    ensure!(
        mode < 2 || out.is_float() && !out.is_narrow_float(),
        UnsupportedDType,
        "interpolate: Linear and Cubic are of floats, not of {out}"
    );
    let mut y = if mode < 2 { x } else { r.b.cast(x, wide(out))? };
    for (i, (&old, &new)) in old.iter().zip(&sizes).enumerate().rev() {
        let axis = Axis {
            dim: i + 2,
            old,
            new,
            corners,
        };
        y = match mode {
            0 | 1 => nearest(r, y, &axis, if mode == 0 { 0.0 } else { 0.5 })?,
            2 => r.b.resize_linear(y, axis.dim, axis.resized())?,
            _ => cubic(r, y, &axis)?,
        };
    }
    r.b.cast(y, out)
}

/// One dim, from so many pixels to so many.
struct Axis {
    dim: usize,
    old: i64,
    new: i64,
    corners: bool,
}

impl Axis {
    fn dim(&self) -> i64 {
        i64::try_from(self.dim).unwrap_or(0)
    }

    fn resized(&self) -> Resized {
        Resized {
            old: self.old,
            new: self.new,
            corners: self.corners,
            scale: None,
        }
    }

    fn counted(
        &self,
        r: &mut Recording<'_>,
        start: f64,
        dtype: DType,
        like: ValueId,
    ) -> Result<ValueId> {
        let op = Op::Arange {
            start: Scalar::F(start),
            step: Scalar::F(1.0),
            shape: vec![Expr::constant(self.new)],
            dtype,
            device: r.b.ty(like).device,
        };
        r.b.emit(op, &[])
    }

    /// The old pixels at these positions, brought inside.
    fn pick(&self, r: &mut Recording<'_>, x: ValueId, at: ValueId) -> Result<ValueId> {
        let low = r.b.maximum(at, 0)?;
        let index = r.b.minimum(low, self.old - 1)?;
        r.b.index_select(x, self.dim(), index)
    }

    /// Numbers along the dim, to meet a tensor of this rank.
    fn along(&self, r: &mut Recording<'_>, numbers: ValueId, rank: usize) -> Result<ValueId> {
        let mut shape = vec![Expr::ONE; rank];
        shape[self.dim] = Expr::constant(self.new);
        r.b.view(numbers, &shape)
    }
}

fn nearest(r: &mut Recording<'_>, x: ValueId, axis: &Axis, shift: f64) -> Result<ValueId> {
    if axis.old == axis.new {
        return Ok(x);
    }
    let ratio = match shift == 0.0 && axis.new == 2 * axis.old {
        true => 0.5,
        false => f64::from(axis.old as f32 / axis.new as f32),
    };
    let at = axis.counted(r, shift, DType::F32, x)?;
    let place = r.b.mul(at, ratio)?;
    let place = r.b.unary(Unary::Floor, place)?;
    let place = r.b.cast(place, DType::I64)?;
    axis.pick(r, x, place)
}

fn cubic(r: &mut Recording<'_>, x: ValueId, axis: &Axis) -> Result<ValueId> {
    let (dtype, rank) = (r.dtype(x), r.shape(x).len());
    if rank != 4 {
        return Err(err!(RankMismatch, "interpolate: Cubic is of two dims"));
    }
    if axis.old == axis.new {
        return Ok(x);
    }
    let device = r.b.ty(x).device;
    let place = r.b.pixel_places(axis.resized(), dtype, device)?;
    let floor = r.b.unary(Unary::Floor, place)?;
    let t = r.b.sub(place, floor)?;
    let first = r.b.cast(floor, DType::I64)?;
    let rest = r.b.sub(1.0, t)?;
    let (far_t, far_rest) = (r.b.add(t, 1.0)?, r.b.add(rest, 1.0)?);
    let weights = [
        far(r, far_t)?,
        near(r, t)?,
        near(r, rest)?,
        far(r, far_rest)?,
    ];
    let mut sum = None;
    for (tap, weight) in weights.into_iter().enumerate() {
        let at = r.b.add(first, i64::try_from(tap).unwrap_or(0) - 1)?;
        let pixel = axis.pick(r, x, at)?;
        let weight = axis.along(r, weight, rank)?;
        let term = r.b.mul(pixel, weight)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => r.b.add(sum, term)?,
        });
    }
    Ok(sum.unwrap_or(x))
}

/// `((A + 2) t - (A + 3)) t t + 1`: the weight at a distance of at most 1.
fn near(r: &mut Recording<'_>, t: ValueId) -> Result<ValueId> {
    let y = r.b.mul(t, A + 2.0)?;
    let y = r.b.sub(y, A + 3.0)?;
    let y = r.b.mul(y, t)?;
    let y = r.b.mul(y, t)?;
    r.b.add(y, 1.0)
}

/// `((A t - 5 A) t + 8 A) t - 4 A`: the weight at a distance from 1 to 2.
fn far(r: &mut Recording<'_>, t: ValueId) -> Result<ValueId> {
    let y = r.b.mul(t, A)?;
    let y = r.b.sub(y, 5.0 * A)?;
    let y = r.b.mul(y, t)?;
    let y = r.b.add(y, 8.0 * A)?;
    let y = r.b.mul(y, t)?;
    r.b.sub(y, 4.0 * A)
}
