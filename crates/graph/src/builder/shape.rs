//! Views, indexing, updates and matrix products.

use super::{Builder, Operand};
use crate::ir::ValueId;
use crate::op::Op;
use crate::rules::{broadcast_shapes, numel, shape_text};
use oxyfuel_base::{Code, Expr, Result, Scalar};

impl Builder {
    /// The same elements, in row-major order, under another shape; one size may be -1.
    #[track_caller]
    pub fn view(&mut self, x: ValueId, shape: &[Expr]) -> Result<ValueId> {
        let holes: Vec<usize> = (0..shape.len())
            .filter(|&d| shape[d].is_const(-1))
            .collect();
        let mut shape = shape.to_vec();
        match holes[..] {
            [] => {}
            [hole] => {
                shape[hole] = Expr::ONE;
                let (total, known) = (self.ty(x).numel(), numel(&shape));
                let size = if known.is_const(0) {
                    Expr::ZERO
                } else {
                    total.floordiv(&known)
                };
                if &size * &known != total || known.is_const(0) {
                    let message = format!(
                        "view: {} does not divide into {}",
                        shape_text(&self.ty(x).shape),
                        shape_text(&shape)
                    );
                    return self.fail(Code::ShapeMismatch, message);
                }
                shape[hole] = size;
            }
            _ => {
                return self.fail(
                    Code::InvalidArgument,
                    "view: only one size can be -1".to_owned(),
                );
            }
        }
        if self.ty(x).shape == shape {
            Ok(x)
        } else {
            self.emit(Op::View { shape }, &[x])
        }
    }

    #[track_caller]
    pub fn permute(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId> {
        let rank = self.ty(x).rank();
        let mut order = vec![];
        for &d in dims {
            order.push(self.dim("permute", d, rank)?);
        }
        let dims = order;
        if rank == 0 && dims.is_empty() {
            Ok(x)
        } else {
            self.emit(Op::Permute { dims }, &[x])
        }
    }

    /// Two dimensions exchanged.
    #[track_caller]
    pub fn transpose(&mut self, x: ValueId, a: i64, b: i64) -> Result<ValueId> {
        let rank = self.ty(x).rank();
        let (a, b) = (
            self.dim("transpose", a, rank)?,
            self.dim("transpose", b, rank)?,
        );
        if a == b {
            return Ok(x);
        }
        let mut dims: Vec<usize> = (0..rank).collect();
        dims.swap(a, b);
        self.emit(Op::Permute { dims }, &[x])
    }

    /// Repetition along new leading dimensions and dimensions of size 1; -1 keeps a size.
    #[track_caller]
    pub fn expand(&mut self, x: ValueId, shape: &[Expr]) -> Result<ValueId> {
        let from = &self.ty(x).shape;
        let mut shape = shape.to_vec();
        let skip = shape.len().saturating_sub(from.len());
        for (want, have) in shape[skip..].iter_mut().zip(from) {
            if want.is_const(-1) {
                *want = have.clone();
            }
        }
        if *from == shape {
            Ok(x)
        } else {
            self.emit(Op::Expand { shape }, &[x])
        }
    }

    /// A new dimension of size 1.
    #[track_caller]
    pub fn unsqueeze(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let mut shape = self.ty(x).shape.clone();
        let dim = self.dim("unsqueeze", dim, shape.len() + 1)?;
        shape.insert(dim, Expr::ONE);
        self.view(x, &shape)
    }

    /// A dimension of size 1 removed; any other stays.
    #[track_caller]
    pub fn squeeze(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let mut shape = self.ty(x).shape.clone();
        let dim = self.dim("squeeze", dim, shape.len())?;
        if shape.get(dim).is_some_and(|n| n.is_const(1)) {
            shape.remove(dim);
        }
        self.view(x, &shape)
    }

    /// `x[start:end:step]` along a dimension, with Python's rules for bounds: negative constants count from the end, all are clamped.
    #[track_caller]
    pub fn slice(
        &mut self,
        x: ValueId,
        dim: i64,
        start: impl Into<Expr>,
        end: impl Into<Expr>,
        step: i64,
    ) -> Result<ValueId> {
        let (dim, start, end) = self.slice_bounds("slice", x, dim, start.into(), end.into())?;
        if step == 1 && start.is_const(0) && end == self.ty(x).shape[dim] {
            return Ok(x);
        }
        self.emit(
            Op::Slice {
                dim,
                start,
                end,
                step,
            },
            &[x],
        )
    }

    /// One position of a dimension, which disappears.
    #[track_caller]
    pub fn select(&mut self, x: ValueId, dim: i64, index: impl Into<Expr>) -> Result<ValueId> {
        let rank = self.ty(x).rank();
        let d = self.dim("select", dim, rank)?;
        if rank == 0 {
            return self.fail(
                Code::RankMismatch,
                "select: the tensor has no dimensions".to_owned(),
            );
        }
        let size = self.ty(x).shape[d].clone();
        let mut index = index.into();
        if index.as_const().is_some_and(|i| i < 0) {
            index += &size;
        }
        let out_of_range = match (index.as_const(), size.as_const()) {
            (Some(i), Some(n)) => i < 0 || i >= n,
            (Some(_) | None, _) => false,
        };
        if out_of_range {
            return self.fail(
                Code::IndexOutOfRange,
                format!("select: index {index} in a dimension of size {size}"),
            );
        }
        let end = &index + 1;
        let row = self.emit(
            Op::Slice {
                dim: d,
                start: index,
                end,
                step: 1,
            },
            &[x],
        )?;
        let mut shape = self.ty(row).shape.clone();
        shape.remove(d);
        self.view(row, &shape)
    }

    /// `x` with a slice replaced.
    #[track_caller]
    pub fn slice_scatter(
        &mut self,
        x: ValueId,
        src: ValueId,
        dim: i64,
        start: impl Into<Expr>,
        end: impl Into<Expr>,
        step: i64,
    ) -> Result<ValueId> {
        let (dim, start, end) =
            self.slice_bounds("slice_scatter", x, dim, start.into(), end.into())?;
        let src = self.cast(src, self.ty(x).dtype)?;
        self.emit(
            Op::SliceScatter {
                dim,
                start,
                end,
                step,
            },
            &[x, src],
        )
    }

    /// `x` with the slices along `dim` that `index` names replaced.
    #[track_caller]
    pub fn index_put(
        &mut self,
        x: ValueId,
        src: ValueId,
        dim: i64,
        index: ValueId,
    ) -> Result<ValueId> {
        let dim = self.dim("index_put", dim, self.ty(x).rank())?;
        let src = self.cast(src, self.ty(x).dtype)?;
        self.emit(Op::IndexPut { dim }, &[x, src, index])
    }

    /// What writing `src` over all of `x` leaves.
    #[track_caller]
    pub fn copy(&mut self, x: ValueId, src: impl Into<Operand>) -> Result<ValueId> {
        let (dtype, device) = (self.ty(x).dtype, self.ty(x).device);
        let src = match src.into() {
            Operand::Value(v) => self.cast(v, dtype)?,
            Operand::Number(n) => self.full(n, vec![], dtype, device)?,
        };
        self.emit(Op::Copy, &[x, src])
    }

    #[track_caller]
    fn slice_bounds(
        &self,
        op: &str,
        x: ValueId,
        dim: i64,
        start: Expr,
        end: Expr,
    ) -> Result<(usize, Expr, Expr)> {
        let rank = self.ty(x).rank();
        let dim = self.dim(op, dim, rank)?;
        let Some(size) = self.ty(x).shape.get(dim) else {
            return self.fail(
                Code::RankMismatch,
                format!("{op}: the tensor has no dimensions"),
            );
        };
        let (start, end) = (self.clamped(start, size), self.clamped(end, size));
        // Python gives an empty slice when the end lies before the start.
        let end = if start.provably_le(&end, &self.ranges) {
            end
        } else {
            Expr::max(&end, start.clone())
        };
        Ok((dim, start, end))
    }

    /// A bound as Python reads it: counted from the end when negative, and brought between 0 and the size.
    fn clamped(&self, bound: Expr, size: &Expr) -> Expr {
        let mut e = match bound.as_const() {
            Some(i64::MAX) => return size.clone(),
            // Far enough below zero is below every size.
            Some(i) if i < 0 => size + i.max(-(1 << 62)),
            Some(_) | None => bound,
        };
        if !Expr::ZERO.provably_le(&e, &self.ranges) {
            e = Expr::max(&e, 0);
        }
        if e.provably_le(size, &self.ranges) {
            e
        } else {
            Expr::min(&e, size)
        }
    }

    /// Tensors one after another, promoted to one dtype.
    #[track_caller]
    pub fn cat(&mut self, tensors: &[ValueId], dim: i64) -> Result<ValueId> {
        // PyTorch still lets an empty one-dimensional tensor join anything.
        let legacy = |b: &Self, v: ValueId| b.ty(v).rank() == 1 && b.ty(v).shape[0].is_const(0);
        let operands: Vec<Operand> = tensors.iter().map(|&v| Operand::Value(v)).collect();
        let dtype = self.common_dtype(&operands)?;
        let kept: Vec<Operand> = tensors
            .iter()
            .filter(|&&v| !legacy(self, v))
            .map(|&v| Operand::Value(v))
            .collect();
        let values = self.as_values(if kept.is_empty() { &operands } else { &kept }, dtype)?;
        let rank = self.ty(values[0]).rank();
        let dim = self.dim("cat", dim, rank)?;
        self.emit(Op::Cat { dim }, &values)
    }

    #[track_caller]
    pub fn gather(&mut self, x: ValueId, dim: i64, index: ValueId) -> Result<ValueId> {
        let dim = self.dim("gather", dim, self.ty(x).rank())?;
        self.emit(Op::Gather { dim }, &[x, index])
    }

    #[track_caller]
    pub fn index_select(&mut self, x: ValueId, dim: i64, index: ValueId) -> Result<ValueId> {
        let dim = self.dim("index_select", dim, self.ty(x).rank())?;
        self.emit(Op::IndexSelect { dim }, &[x, index])
    }

    #[track_caller]
    pub fn embedding(&mut self, weight: ValueId, indices: ValueId) -> Result<ValueId> {
        self.emit(Op::Embedding, &[weight, indices])
    }

    #[track_caller]
    pub fn mm(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.emit(Op::Mm, &[a, b])
    }

    #[track_caller]
    pub fn bmm(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.emit(Op::Bmm, &[a, b])
    }

    /// A product of bytes in i32, of two matrices or of two batches of them.
    #[track_caller]
    pub fn int_mm(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.emit(Op::IntMm, &[a, b])
    }

    /// `beta * bias + alpha * (a x b)`.
    #[track_caller]
    pub fn addmm(
        &mut self,
        bias: ValueId,
        a: ValueId,
        b: ValueId,
        beta: impl Into<Scalar>,
        alpha: impl Into<Scalar>,
    ) -> Result<ValueId> {
        let (beta, alpha) = (beta.into(), alpha.into());
        self.emit(Op::Addmm { beta, alpha }, &[bias, a, b])
    }

    /// The panels of `width` columns that `mm_panels` reads, of a matrix: `[n / width, k, width]`, filled up with zeros.
    #[track_caller]
    pub fn panels(&mut self, b: ValueId, width: i64) -> Result<ValueId> {
        let [k, n] = match &self.ty(b).shape[..] {
            [k, n] => [k.as_const(), n.as_const()],
            _ => [None, None],
        };
        let (Some(k), Some(n), true) = (k, n, width > 0) else {
            return Err(oxyfuel_base::err!(
                InvalidArgument,
                "panels of {width} columns of something that is no matrix of known sizes"
            ));
        };
        let (whole, rest) = (n / width, n % width);
        if rest == 0 {
            let panels = self.cut(b, [k, whole, width])?;
            return self.emit(Op::Clone, &[panels]);
        }
        // The last panel alone is filled up: all others go where they belong at once.
        let ty = self.ty(b).clone();
        let zeros = [k, width - rest].map(Expr::constant).to_vec();
        let zeros = self.full(0.0, zeros, ty.dtype, ty.device)?;
        let last = self.slice(b, 1, whole * width, n, 1)?;
        let last = self.cat(&[last, zeros], 1)?;
        let last = self.view(last, &[1, k, width].map(Expr::constant))?;
        if whole == 0 {
            return self.emit(Op::Clone, &[last]);
        }
        let full = self.slice(b, 1, 0, whole * width, 1)?;
        let full = self.cut(full, [k, whole, width])?;
        self.cat(&[full, last], 0)
    }

    /// The panels of a matrix that they fill.
    fn cut(&mut self, b: ValueId, sizes: [i64; 3]) -> Result<ValueId> {
        let split = self.view(b, &sizes.map(Expr::constant))?;
        self.permute(split, &[1, 0, 2])
    }

    /// The matrix product with a matrix of `n` columns in panels, plus a bias.
    #[track_caller]
    pub fn mm_panels(
        &mut self,
        a: ValueId,
        panels: ValueId,
        n: usize,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let operands = [Some(a), Some(panels), bias];
        let operands: Vec<ValueId> = operands.into_iter().flatten().collect();
        self.emit(Op::MmPanels { n }, &operands)
    }

    /// The same as products of this vocabulary's other ops: the panels as the matrix that they were cut from.
    pub fn composed_mm_panels(
        &mut self,
        a: ValueId,
        panels: ValueId,
        n: usize,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let shape = self.ty(panels).shape.clone();
        let turned = self.permute(panels, &[1, 0, 2])?;
        let all = shape[0].clone() * shape[2].clone();
        let whole = self.view(turned, &[shape[1].clone(), all])?;
        let b = self.slice(whole, 1, 0, i64::try_from(n).unwrap_or(i64::MAX), 1)?;
        match bias {
            Some(bias) => self.addmm(bias, a, b, 1, 1),
            None => self.mm(a, b),
        }
    }

    /// `torch.matmul`: vectors, matrices, and batches of them that broadcast.
    #[track_caller]
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        let (ra, rb) = (self.ty(a).rank(), self.ty(b).rank());
        if ra == 0 || rb == 0 {
            return self.fail(
                Code::RankMismatch,
                "matmul: both operands need at least one dimension".to_owned(),
            );
        }
        // A vector is a matrix of one row on the left, of one column on the right.
        let left = if ra == 1 { self.unsqueeze(a, 0)? } else { a };
        let right = if rb == 1 { self.unsqueeze(b, 1)? } else { b };
        let (sl, sr) = (self.ty(left).shape.clone(), self.ty(right).shape.clone());
        let [m, k] = [sl[sl.len() - 2].clone(), sl[sl.len() - 1].clone()];
        let [k2, n] = [sr[sr.len() - 2].clone(), sr[sr.len() - 1].clone()];
        let Some(batch) = broadcast_shapes([&sl[..sl.len() - 2], &sr[..sr.len() - 2]]) else {
            let message = format!(
                "matmul: batches of {} and {} do not broadcast",
                shape_text(&sl),
                shape_text(&sr)
            );
            return self.fail(Code::ShapeMismatch, message);
        };
        let mut shape = batch.clone();
        let product = if batch.is_empty() {
            self.mm(left, right)?
        } else if sr.len() == 2 {
            // Rows of all batches meet one matrix: a single product.
            let rows = self.view(left, &[numel(&batch) * &m, k])?;
            self.mm(rows, right)?
        } else {
            let left = self.spread(left, &batch, [&m, &k])?;
            let right = self.spread(right, &batch, [&k2, &n])?;
            self.bmm(left, right)?
        };
        if ra > 1 {
            shape.push(m);
        }
        if rb > 1 {
            shape.push(n);
        }
        self.view(product, &shape)
    }

    /// Matrices repeated over a batch, which becomes one dimension.
    #[track_caller]
    fn spread(&mut self, v: ValueId, batch: &[Expr], [rows, cols]: [&Expr; 2]) -> Result<ValueId> {
        let mut shape = batch.to_vec();
        shape.extend([rows.clone(), cols.clone()]);
        let v = self.expand(v, &shape)?;
        self.view(v, &[numel(batch), rows.clone(), cols.clone()])
    }

    /// `x @ weight^T + bias`.
    #[track_caller]
    pub fn linear(
        &mut self,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let weight = if self.ty(weight).rank() == 2 {
            self.transpose(weight, 0, 1)?
        } else {
            weight
        };
        let (Some(bias), true) = (bias, self.ty(x).rank() >= 2) else {
            let product = self.matmul(x, weight)?;
            return match bias {
                Some(bias) => self.add(product, bias),
                None => Ok(product),
            };
        };
        let mut shape = self.ty(x).shape.clone();
        let k = shape.pop().unwrap_or(Expr::ONE);
        let rows = self.view(x, &[numel(&shape), k])?;
        let out = self.addmm(bias, rows, weight, 1, 1)?;
        shape.push(self.ty(out).shape[1].clone());
        self.view(out, &shape)
    }
}
