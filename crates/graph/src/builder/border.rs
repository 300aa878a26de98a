//! Borders around a tensor: of one number, of its mirror image, of its own edge, of its other end.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Op, Unary};
use oxyfuel_base::{DType, Expr, Result, Scalar};

/// How far a tensor grows at the two ends of a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Border {
    pub dim: usize,
    pub before: Expr,
    pub after: Expr,
}

/// Which elements of the tensor a border shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bordering {
    /// Those at the same distance from the edge, which is not repeated.
    Mirrored,
    /// The edge.
    Clamped,
    /// The other end.
    Circular,
}

impl Builder {
    /// A number around a tensor. A negative constant border cuts instead; other borders are not negative.
    #[track_caller]
    pub fn pad_constant(
        &mut self,
        mut x: ValueId,
        borders: &[Border],
        value: Scalar,
    ) -> Result<ValueId> {
        for border in borders {
            let Border { dim, before, after } = border.clone();
            if let (Some(b), Some(a)) = (before.as_const(), after.as_const())
                && (b < 0 || a < 0)
            {
                let size = self.ty(x).shape[dim].clone();
                let (start, end) = (Expr::constant(b.min(0)) * -1, size + a.min(0));
                let op = Op::Slice {
                    dim,
                    start,
                    end,
                    step: 1,
                };
                x = self.emit(op, &[x])?;
            }
            let ty = self.ty(x).clone();
            let mut parts = vec![];
            for (size, middle) in [(before, true), (after, false)] {
                if size.as_const().is_none_or(|n| n > 0) {
                    let mut shape = ty.shape.clone();
                    shape[dim] = size;
                    parts.push(self.full(value, shape, ty.dtype, ty.device)?);
                }
                if middle {
                    parts.push(x);
                }
            }
            if parts.len() > 1 {
                x = self.cat(&parts, i64::try_from(dim).unwrap_or(0))?;
            }
        }
        Ok(x)
    }

    /// A border whose elements are those of the tensor at other positions.
    #[track_caller]
    pub fn pad_indexed(
        &mut self,
        mut x: ValueId,
        borders: &[Border],
        how: Bordering,
    ) -> Result<ValueId> {
        let device = self.ty(x).device;
        for Border { dim, before, after } in borders.iter().cloned() {
            if before.is_const(0) && after.is_const(0) {
                continue;
            }
            let size = self.ty(x).shape[dim].clone();
            let count = self.emit(
                Op::Arange {
                    start: Scalar::I(0),
                    step: Scalar::I(1),
                    shape: vec![size.clone() + before.clone() + after],
                    dtype: DType::I64,
                    device,
                },
                &[],
            )?;
            let before = self.size_value(&before, x)?;
            let position = self.emit(Op::Binary(Binary::Sub), &[count, before])?;
            let index = match how {
                // `last - |last - |position||`.
                Bordering::Mirrored => {
                    let last = self.size_value(&(size - 1), x)?;
                    let abs = self.emit(Op::Unary(Unary::Abs), &[position])?;
                    let rest = self.emit(Op::Binary(Binary::Sub), &[last, abs])?;
                    let rest = self.emit(Op::Unary(Unary::Abs), &[rest])?;
                    self.emit(Op::Binary(Binary::Sub), &[last, rest])?
                }
                Bordering::Clamped => {
                    let last = self.size_value(&(size - 1), x)?;
                    let zero = self.size_value(&Expr::ZERO, x)?;
                    let low = self.emit(Op::Binary(Binary::Maximum), &[position, zero])?;
                    self.emit(Op::Binary(Binary::Minimum), &[low, last])?
                }
                Bordering::Circular => {
                    let size = self.size_value(&size, x)?;
                    self.emit(Op::Binary(Binary::Remainder), &[position, size])?
                }
            };
            x = self.index_select(x, i64::try_from(dim).unwrap_or(0), index)?;
        }
        Ok(x)
    }

    /// A size as an i64 without dimensions, where `like` is.
    #[track_caller]
    pub fn size_value(&mut self, size: &Expr, like: ValueId) -> Result<ValueId> {
        let device = self.ty(like).device;
        match size.as_const() {
            Some(n) => self.full(n, vec![], DType::I64, device),
            None => self.scalar_tensor(size.clone(), DType::I64, device),
        }
    }

    /// A dimension's elements in the opposite order.
    #[track_caller]
    pub fn flip(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let d = self.dim("flip", dim, self.ty(x).rank())?;
        let Some(size) = self.ty(x).shape.get(d).cloned() else {
            return Ok(x);
        };
        let count = self.emit(
            Op::Arange {
                start: Scalar::I(0),
                step: Scalar::I(-1),
                shape: vec![size.clone()],
                dtype: DType::I64,
                device: self.ty(x).device,
            },
            &[],
        )?;
        let last = self.size_value(&(size - 1), x)?;
        let backwards = self.emit(Op::Binary(Binary::Add), &[count, last])?;
        self.index_select(x, dim, backwards)
    }

    /// A dimension's elements moved on by `shift`, those that leave at one end coming back at the other.
    #[track_caller]
    pub fn roll(&mut self, x: ValueId, shift: i64, dim: i64) -> Result<ValueId> {
        let d = self.dim("roll", dim, self.ty(x).rank())?;
        let Some(size) = self.ty(x).shape.get(d).cloned() else {
            return Ok(x);
        };
        let Some(size) = size.as_const() else {
            let border = Border {
                dim: d,
                before: Expr::constant(shift),
                after: Expr::constant(shift) * -1,
            };
            return self.pad_indexed(x, &[border], Bordering::Circular);
        };
        let cut = match size {
            0 => 0,
            size => (-i128::from(shift)).rem_euclid(i128::from(size)),
        };
        let cut = i64::try_from(cut).unwrap_or(0);
        if cut == 0 {
            return Ok(x);
        }
        let (head, tail) = (
            self.slice(x, dim, 0, cut, 1)?,
            self.slice(x, dim, cut, size, 1)?,
        );
        self.cat(&[tail, head], dim)
    }
}
