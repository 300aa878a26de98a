//! Where the element stands that is the k-th of a row in order, and the one in the middle.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Reduce, Unary};
use oxyfuel_base::{DType, Expr, Result};

impl Builder {
    /// The position of the element that stands at a place of a dimension in order, counted from 0; the dimension stays with size 1. NaN is above everything.
    #[track_caller]
    pub fn position_at(&mut self, x: ValueId, dim: i64, place: &Expr) -> Result<ValueId> {
        if self.ty(x).rank() == 0 {
            let device = self.ty(x).device;
            return self.full(0, vec![], DType::I64, device);
        }
        let order = self.argsort(x, dim, false)?;
        let index = self.size_value(place, x)?;
        let index = self.view(index, &[Expr::ONE])?;
        self.index_select(order, dim, index)
    }

    /// The position of the median along a dimension that is not empty, the lower one of two; of the first NaN if there is one.
    #[track_caller]
    pub fn median_position(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let at = self.dim("median", dim, ty.rank())?;
        let extent = ty.shape.get(at).cloned().unwrap_or(Expr::ONE);
        let position = self.position_at(x, dim, &(extent - 1).floordiv(2))?;
        if ty.rank() == 0 || !ty.dtype.is_float() {
            return Ok(position);
        }
        let nan = self.unary(Unary::IsNan, x)?;
        let any = self.reduce(Reduce::Any, nan, &[dim], true)?;
        let first = self.argmax(x, dim, true)?;
        self.where_(any, first, position)
    }

    /// The position of the median of what is a number; of the first NaN where nothing is.
    #[track_caller]
    pub fn nanmedian_position(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        if ty.rank() == 0 {
            return self.full(0, vec![], DType::I64, ty.device);
        }
        let order = self.argsort(x, dim, false)?;
        let nan = self.unary(Unary::IsNan, x)?;
        let number = self.unary(Unary::LogicalNot, nan)?;
        let count = self.sum(number, &[dim], true)?;
        let last = self.sub(count, 1)?;
        let last = self.maximum(last, 0)?;
        let place = self.binary(Binary::ShiftRight, last, 1)?;
        self.gather(order, dim, place)
    }
}
