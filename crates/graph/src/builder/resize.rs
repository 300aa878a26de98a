//! Images of another size whose pixels lie between the old ones: places along a dimension, and a line between two neighbours.

use super::Builder;
use crate::ir::{Device, ValueId};
use crate::op::{Op, Unary};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

/// A dimension on its way from so many pixels to so many.
#[derive(Clone, Copy, Debug)]
pub struct Resized {
    pub old: i64,
    pub new: i64,
    /// Whether the corner pixels stay where they are, by their centres.
    pub corners: bool,
    /// Old pixels a new one, where it is not what the sizes say.
    pub scale: Option<f64>,
}

impl Resized {
    /// As PyTorch keeps it: in the dtype of the places.
    fn scale(&self, dtype: DType) -> f64 {
        let exact = match self.scale {
            _ if self.corners && self.new == 1 => 0.0,
            _ if self.corners => (self.old - 1) as f64 / (self.new - 1) as f64,
            Some(scale) => scale,
            None => self.old as f64 / self.new as f64,
        };
        match dtype {
            DType::F64 => exact,
            _ => f64::from(exact as f32),
        }
    }
}

impl Builder {
    /// Where each new pixel lies among the old ones.
    #[track_caller]
    pub fn pixel_places(&mut self, axis: Resized, dtype: DType, device: Device) -> Result<ValueId> {
        let count = Op::Arange {
            start: Scalar::F(0.0),
            step: Scalar::F(1.0),
            shape: vec![Expr::constant(axis.new)],
            dtype,
            device,
        };
        let count = self.emit(count, &[])?;
        let scale = axis.scale(dtype);
        if axis.corners {
            return self.mul(count, scale);
        }
        let centre = self.add(count, 0.5)?;
        let place = self.mul(centre, scale)?;
        self.sub(place, 0.5)
    }

    /// A dimension of floats at another size, each pixel on the line between two old ones.
    #[track_caller]
    pub fn resize_linear(&mut self, x: ValueId, dim: usize, axis: Resized) -> Result<ValueId> {
        // Whatever the scale is, as PyTorch has it.
        if axis.old == axis.new {
            return Ok(x);
        }
        let ty = self.ty(x).clone();
        if axis.old < 1 || axis.new < 1 || dim >= ty.rank() {
            let message = format!("resize: from {} to {} pixels", axis.old, axis.new);
            return self.fail(Code::ShapeMismatch, message);
        }
        let at = i64::try_from(dim).unwrap_or(0);
        let place = self.pixel_places(axis, ty.dtype, ty.device)?;
        let place = self.maximum(place, 0.0)?;
        let floor = self.unary(Unary::Floor, place)?;
        let right = self.sub(place, floor)?;
        let left = self.sub(1.0, right)?;
        let first = self.cast(floor, DType::I64)?;
        let mut along = vec![Expr::ONE; ty.rank()];
        along[dim] = Expr::constant(axis.new);
        let part = |b: &mut Self, next: i64, weight: ValueId| {
            let place = b.add(first, next)?;
            let place = b.minimum(place, axis.old - 1)?;
            let pixels = b.index_select(x, at, place)?;
            let weight = b.view(weight, &along)?;
            b.mul(pixels, weight)
        };
        let (a, b) = (part(self, 0, left)?, part(self, 1, right)?);
        self.add(a, b)
    }
}
