//! Reductions, and the composites built on them.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Op, Reduce};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

impl Builder {
    /// A reduction over dimensions; over all of them when none is named. Sums and products of integers are i64, as in PyTorch.
    #[track_caller]
    pub fn reduce(
        &mut self,
        op: Reduce,
        x: ValueId,
        dims: &[i64],
        keepdim: bool,
    ) -> Result<ValueId> {
        let dims = self.dims(op.info().name, x, dims)?;
        let dtype = self.ty(x).dtype;
        let x = match op {
            Reduce::Sum | Reduce::Prod if !dtype.is_float() => self.cast(x, DType::I64)?,
            Reduce::Sum
            | Reduce::Prod
            | Reduce::Mean
            | Reduce::Amax
            | Reduce::Amin
            | Reduce::Any
            | Reduce::All => x,
        };
        let out = self.emit(Op::Reduce { op, dims, keepdim }, &[x])?;
        match op {
            // PyTorch keeps u8 here, for programs older than its bool.
            Reduce::Any | Reduce::All if dtype == DType::U8 => self.cast(out, DType::U8),
            Reduce::Sum
            | Reduce::Prod
            | Reduce::Mean
            | Reduce::Amax
            | Reduce::Amin
            | Reduce::Any
            | Reduce::All => Ok(out),
        }
    }

    #[track_caller]
    pub fn sum(&mut self, x: ValueId, dims: &[i64], keepdim: bool) -> Result<ValueId> {
        self.reduce(Reduce::Sum, x, dims, keepdim)
    }

    #[track_caller]
    pub fn mean(&mut self, x: ValueId, dims: &[i64], keepdim: bool) -> Result<ValueId> {
        self.reduce(Reduce::Mean, x, dims, keepdim)
    }

    #[track_caller]
    pub fn amax(&mut self, x: ValueId, dims: &[i64], keepdim: bool) -> Result<ValueId> {
        self.reduce(Reduce::Amax, x, dims, keepdim)
    }

    #[track_caller]
    pub fn amin(&mut self, x: ValueId, dims: &[i64], keepdim: bool) -> Result<ValueId> {
        self.reduce(Reduce::Amin, x, dims, keepdim)
    }

    /// The position of the first largest element along a dimension.
    #[track_caller]
    pub fn argmax(&mut self, x: ValueId, dim: i64, keepdim: bool) -> Result<ValueId> {
        let dim = self.dim("argmax", dim, self.ty(x).rank())?;
        self.emit(Op::Argmax { dim, keepdim }, &[x])
    }

    /// The position of the first smallest element along a dimension.
    #[track_caller]
    pub fn argmin(&mut self, x: ValueId, dim: i64, keepdim: bool) -> Result<ValueId> {
        let dim = self.dim("argmin", dim, self.ty(x).rank())?;
        self.emit(Op::Argmin { dim, keepdim }, &[x])
    }

    /// Running sums along a dimension; those of integers are i64, as in PyTorch.
    #[track_caller]
    pub fn cumsum(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let dim = self.dim("cumsum", dim, self.ty(x).rank())?;
        let x = self.widened(x)?;
        self.emit(Op::Cumsum { dim }, &[x])
    }

    /// Running products along a dimension; those of integers are i64, as in PyTorch.
    #[track_caller]
    pub fn cumprod(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let dim = self.dim("cumprod", dim, self.ty(x).rank())?;
        let x = self.widened(x)?;
        self.emit(Op::Cumprod { dim }, &[x])
    }

    /// Positions that put a dimension in order, equal elements as they stand; NaN is above everything.
    #[track_caller]
    pub fn argsort(&mut self, x: ValueId, dim: i64, descending: bool) -> Result<ValueId> {
        let dim = self.dim("argsort", dim, self.ty(x).rank())?;
        let x = match self.ty(x).dtype {
            DType::Bool => self.cast(x, DType::U8)?,
            _ => x,
        };
        self.emit(Op::Argsort { dim, descending }, &[x])
    }

    /// `out[i] = a[i] * out[i - 1] + b[i]` along a dimension, from `out[0] = b[0]`.
    #[track_caller]
    pub fn linear_scan(&mut self, a: ValueId, b: ValueId, dim: i64) -> Result<ValueId> {
        let dim = self.dim("linear_scan", dim, self.ty(a).rank())?;
        self.emit(Op::LinearScan { dim }, &[a, b])
    }

    /// Integers and bools as i64.
    #[track_caller]
    fn widened(&mut self, x: ValueId) -> Result<ValueId> {
        if self.ty(x).dtype.is_float() {
            Ok(x)
        } else {
            self.cast(x, DType::I64)
        }
    }

    #[track_caller]
    pub fn var(
        &mut self,
        x: ValueId,
        dims: &[i64],
        correction: f64,
        keepdim: bool,
    ) -> Result<ValueId> {
        let dims = self.dims("var", x, dims)?;
        self.emit(
            Op::Var {
                dims,
                correction: Scalar::F(correction),
                keepdim,
            },
            &[x],
        )
    }

    #[track_caller]
    pub fn softmax(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let dim = self.dim("_softmax", dim, self.ty(x).rank())?;
        self.emit(Op::Softmax { dim }, &[x])
    }

    #[track_caller]
    pub fn log_softmax(&mut self, x: ValueId, dim: i64) -> Result<ValueId> {
        let dim = self.dim("_log_softmax", dim, self.ty(x).rank())?;
        self.emit(Op::LogSoftmax { dim }, &[x])
    }

    /// Layer norm over the last `rank` dimensions: the normalised tensor, mean and reciprocal standard deviation.
    #[track_caller]
    pub fn native_layer_norm(
        &mut self,
        x: ValueId,
        rank: usize,
        weight: Option<ValueId>,
        bias: Option<ValueId>,
        eps: f64,
    ) -> Result<[ValueId; 3]> {
        let mut inputs = vec![x];
        match (weight, bias) {
            (Some(w), b) => {
                inputs.push(w);
                inputs.extend(b);
            }
            (None, None) => {}
            (None, Some(b)) => {
                let ty = self.ty(b).clone();
                inputs.push(self.full(1.0, ty.shape, ty.dtype, ty.device)?);
                inputs.push(b);
            }
        }
        let out = self.node(
            Op::NativeLayerNorm {
                rank,
                eps: Scalar::F(eps),
            },
            &inputs,
        )?;
        Ok([out[0], out[1], out[2]])
    }

    /// `torch.nn.functional.layer_norm`.
    #[track_caller]
    pub fn layer_norm(
        &mut self,
        x: ValueId,
        normalized: &[Expr],
        weight: Option<ValueId>,
        bias: Option<ValueId>,
        eps: f64,
    ) -> Result<ValueId> {
        if !self.ty(x).shape.ends_with(normalized) {
            let have = crate::rules::shape_text(&self.ty(x).shape);
            return self.fail(
                Code::ShapeMismatch,
                format!(
                    "layer_norm: {have} does not end in {}",
                    crate::rules::shape_text(normalized)
                ),
            );
        }
        Ok(self.native_layer_norm(x, normalized.len(), weight, bias, eps)?[0])
    }

    /// Dimensions made non-negative, sorted and distinct; all of them when none is named.
    #[track_caller]
    fn dims(&self, op: &str, x: ValueId, dims: &[i64]) -> Result<Vec<usize>> {
        let rank = self.ty(x).rank();
        let mut out = vec![];
        for &d in dims {
            out.push(self.dim(op, d, rank)?);
        }
        if dims.is_empty() || rank == 0 {
            return Ok((0..rank).collect());
        }
        out.sort_unstable();
        if out.windows(2).any(|w| w[0] == w[1]) {
            return self.fail(
                Code::DimOutOfRange,
                format!("{op}: a dimension appears twice in {dims:?}"),
            );
        }
        Ok(out)
    }
}
