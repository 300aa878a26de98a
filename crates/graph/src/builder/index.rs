//! `x[i, :, j, ..]`: elements at places that several indices name together, read and written.

use super::{Builder, Meet};
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op};
use oxyfuel_base::{Code, DType, Expr, Result};

/// A tensor whose indexed dimensions have become one, and an index along it.
#[derive(Clone, Debug)]
pub struct Indexed {
    pub x: ValueId,
    /// The dimension that the index names slices of.
    pub dim: usize,
    pub linear: ValueId,
    /// What the indices, broadcast, looked like.
    pub index_shape: Vec<Expr>,
    /// The shape before dimensions became one, and the permutation that brought them together.
    pub shape: Vec<Expr>,
    pub order: Option<Vec<usize>>,
}

impl Builder {
    /// Positions that count from the end brought to the front.
    #[track_caller]
    pub fn wrapped(&mut self, index: ValueId, size: &Expr) -> Result<ValueId> {
        let index = self.cast(index, DType::I64)?;
        let zero = self.full(0, vec![], DType::I64, self.ty(index).device)?;
        let size = self.size_value(size, index)?;
        let negative = self.emit(Op::Compare(Compare::Lt), &[index, zero])?;
        let moved = self.emit(Op::Binary(Binary::Add), &[index, size])?;
        self.emit(Op::Where, &[negative, moved, index])
    }

    /// The indexed dimensions become one, so that one index selects from it. Indices are i64 or i32 and broadcast together; a dimension without one is kept whole.
    #[track_caller]
    pub fn indexed(&mut self, x: ValueId, indices: &[Option<ValueId>]) -> Result<Indexed> {
        let at: Vec<usize> = (0..indices.len())
            .filter(|&d| indices[d].is_some())
            .collect();
        let picked: Vec<ValueId> = indices.iter().flatten().copied().collect();
        let (Some(&first), Some(&last)) = (at.first(), at.last()) else {
            return self.fail(Code::ArityMismatch, "index: no index".to_owned());
        };
        let rank = self.ty(x).rank();
        if last >= rank {
            let message = format!("index: an index of dimension {last} of {rank}");
            return self.fail(Code::RankMismatch, message);
        }
        let together = last - first + 1 == at.len();
        // Indexed dimensions that are apart move to the front, as in PyTorch.
        let (x, dim, order) = if together {
            (x, first, None)
        } else {
            let rest = (0..rank).filter(|d| !at.contains(d));
            let dims: Vec<usize> = at.iter().copied().chain(rest).collect();
            let order = Some(dims.clone());
            (self.emit(Op::Permute { dims }, &[x])?, 0, order)
        };
        let shape = self.ty(x).shape.clone();
        let sizes = &shape[dim..dim + at.len()];
        let mut linear: Option<ValueId> = None;
        for (&i, size) in picked.iter().zip(sizes) {
            let i = self.wrapped(i, size)?;
            linear = Some(match linear {
                None => i,
                Some(have) => {
                    let size = self.size_value(size, i)?;
                    let scaled = self.emit(Op::Binary(Binary::Mul), &[have, size])?;
                    self.emit(Op::Binary(Binary::Add), &[scaled, i])?
                }
            });
        }
        let Some(linear) = linear else {
            return self.fail(Code::ArityMismatch, "index: no index".to_owned());
        };
        let index_shape = self.ty(linear).shape.clone();
        let count: Expr = index_shape.iter().cloned().product();
        let linear = self.view(linear, &[count])?;
        let merged: Expr = sizes.iter().cloned().product();
        let mut flat = shape[..dim].to_vec();
        flat.push(merged);
        flat.extend_from_slice(&shape[dim + at.len()..]);
        let x = self.view(x, &flat)?;
        Ok(Indexed {
            x,
            dim,
            linear,
            index_shape,
            shape,
            order,
        })
    }

    /// The shape of the slices that an index names: its own in the place of the indexed dimensions.
    pub fn slices_of(&self, at: &Indexed) -> Vec<Expr> {
        let flat = &self.ty(at.x).shape;
        let mut slices = flat[..at.dim].to_vec();
        slices.extend(at.index_shape.iter().cloned());
        slices.extend_from_slice(&flat[at.dim + 1..]);
        slices
    }

    /// The tensor with the slices that an index names replaced by `values`, which broadcast, or with these added to them.
    #[track_caller]
    pub fn put_slices(
        &mut self,
        at: &Indexed,
        values: ValueId,
        accumulate: bool,
    ) -> Result<ValueId> {
        let slices = self.slices_of(at);
        let values = self.expand(values, &slices)?;
        let mut rows = self.ty(at.x).shape.clone();
        rows[at.dim] = at.index_shape.iter().cloned().product();
        let values = self.view(values, &rows)?;
        let y = if accumulate {
            let dim = i64::try_from(at.dim).unwrap_or(0);
            self.index_reduce(Meet::Sum, at.x, dim, at.linear, values, true)?
        } else {
            let put = Op::IndexPut { dim: at.dim };
            self.emit(put, &[at.x, values, at.linear])?
        };
        let y = self.view(y, &at.shape)?;
        let Some(order) = &at.order else {
            return Ok(y);
        };
        let back = (0..order.len()).map(|d| order.iter().position(|&o| o == d).unwrap_or(d));
        let dims = back.collect();
        self.emit(Op::Permute { dims }, &[y])
    }
}
