//! What holds of a dimension's elements so far, where the vocabulary has no scan of its own: the extreme and where it stands, and the logarithm of a sum of powers.
//!
//! Each element is combined with the one before it, then with the two before those, then four: as many steps as doublings reach the whole row, whose length is known.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Compare, Op, Unary};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

/// Tensors that go through a scan together.
type State<'a> = &'a [ValueId];

impl Builder {
    /// The largest element so far along a dimension (the smallest where `largest` is false), and the last position of it; NaN from the first NaN on.
    #[track_caller]
    pub fn running_extreme(
        &mut self,
        x: ValueId,
        dim: i64,
        largest: bool,
    ) -> Result<(ValueId, ValueId)> {
        let ty = self.ty(x).clone();
        let dim = self.dim("running_extreme", dim, ty.rank())?;
        let Some(extent) = ty.shape.get(dim).cloned() else {
            return Ok((x, self.full(0, vec![], DType::I64, ty.device)?));
        };
        let values = match ty.dtype {
            DType::Bool => self.cast(x, DType::U8)?,
            _ => x,
        };
        let count = Op::Arange {
            start: Scalar::I(0),
            step: Scalar::I(1),
            shape: vec![extent.clone()],
            dtype: DType::I64,
            device: ty.device,
        };
        let count = self.emit(count, &[])?;
        let mut row = vec![Expr::ONE; ty.rank()];
        row[dim] = extent;
        let count = self.view(count, &row)?;
        let count = self.expand(count, &ty.shape)?;
        let f = if largest { Compare::Ge } else { Compare::Le };
        let state = self.doubled(vec![values, count], dim, |b, before, this| {
            let mut later = b.compare(f, this[0], before[0])?;
            if ty.dtype.is_float() {
                let nan = b.unary(Unary::IsNan, this[0])?;
                later = b.logical_or(later, nan)?;
            }
            let mut pick = |i: usize| b.where_(later, this[i], before[i]);
            Ok(vec![pick(0)?, pick(1)?])
        })?;
        Ok((self.cast(state[0], ty.dtype)?, state[1]))
    }

    /// `log(cumsum(exp(x)))` along a dimension, without overflow on the way; in the dtype of `x`.
    #[track_caller]
    pub fn logcumsumexp(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let rank = self.ty(x).rank();
        let dim = self.dim("logcumsumexp", dim, rank)?;
        if rank == 0 {
            return Ok(x);
        }
        let state = self.doubled(vec![x], dim, |b, before, this| {
            let (before, this) = (before[0], this[0]);
            let larger = b.maximum(before, this)?;
            let distance = b.sub(before, this)?;
            let distance = b.abs(distance)?;
            let below = b.neg(distance)?;
            let ratio = b.exp(below)?;
            let more = b.unary(Unary::Log1p, ratio)?;
            let sum = b.add(larger, more)?;
            // Two infinities of one sign have no difference.
            let infinite = b.unary(Unary::IsInf, before)?;
            let same = b.compare(Compare::Eq, before, this)?;
            let endless = b.logical_and(infinite, same)?;
            Ok(vec![b.where_(endless, before, sum)?])
        })?;
        Ok(state[0])
    }

    /// Elements of a dimension, each combined with all before it.
    #[track_caller]
    fn doubled(
        &mut self,
        mut state: Vec<ValueId>,
        dim: usize,
        combine: impl Fn(&mut Self, State<'_>, State<'_>) -> Result<Vec<ValueId>>,
    ) -> Result<Vec<ValueId>> {
        let extent = &self.ty(state[0]).shape[dim];
        let Some(length) = extent.as_const() else {
            let message = format!("a scan over a dimension of unknown size {extent}");
            return self.fail(Code::DataDependent, message);
        };
        let at = i64::try_from(dim).unwrap_or(0);
        let mut reach = 1;
        while reach < length {
            let mut parts = [vec![], vec![], vec![]];
            for &x in &state {
                parts[0].push(self.slice(x, at, 0, reach, 1)?);
                parts[1].push(self.slice(x, at, 0, length - reach, 1)?);
                parts[2].push(self.slice(x, at, reach, length, 1)?);
            }
            let rest = combine(self, &parts[1], &parts[2])?;
            for (i, x) in state.iter_mut().enumerate() {
                *x = self.cat(&[parts[0][i], rest[i]], at)?;
            }
            reach *= 2;
        }
        Ok(state)
    }
}
