//! Writes at places that an index says, and PyTorch's operators that are such writes.

use super::{Builder, Operand};
use crate::ir::ValueId;
use crate::op::{Binary, Scatter};
use crate::op::{Compare, Op};
use oxyfuel_base::{DType, Expr, Result, Scalar};

/// How elements that go to one place meet in [`Builder::scatter_reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meet {
    Sum,
    Prod,
    /// Their sum divided by their number; rounded down for integers.
    Mean,
    Amax,
    Amin,
}

impl Meet {
    pub const ALL: &[Meet] = &[Meet::Sum, Meet::Prod, Meet::Mean, Meet::Amax, Meet::Amin];

    /// Its name in PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            Meet::Sum => "sum",
            Meet::Prod => "prod",
            Meet::Mean => "mean",
            Meet::Amax => "amax",
            Meet::Amin => "amin",
        }
    }

    fn scatter(self) -> Scatter {
        match self {
            Meet::Sum | Meet::Mean => Scatter::Sum,
            Meet::Prod => Scatter::Prod,
            Meet::Amax => Scatter::Amax,
            Meet::Amin => Scatter::Amin,
        }
    }

    /// What changes nothing that it meets.
    fn neutral(self, dtype: DType) -> Scalar {
        let bits = dtype.bits();
        match self {
            Meet::Sum | Meet::Mean => Scalar::I(0),
            Meet::Prod => Scalar::I(1),
            Meet::Amax if dtype.is_float() => Scalar::F(f64::NEG_INFINITY),
            Meet::Amin if dtype.is_float() => Scalar::F(f64::INFINITY),
            Meet::Amax if dtype.is_signed() => Scalar::I(i64::MIN >> (64 - bits)),
            Meet::Amin if dtype.is_signed() => Scalar::I(i64::MAX >> (64 - bits)),
            Meet::Amax => Scalar::I(0),
            Meet::Amin if dtype.is_bool() => Scalar::B(true),
            Meet::Amin => Scalar::I(((1u128 << bits) - 1) as i64),
        }
    }
}

impl Builder {
    /// `x` after the elements of `src` met what is where `index` says along `dim`. A number stands for a tensor full of it; of a tensor larger than the index the first elements count.
    #[track_caller]
    pub fn scatter(
        &mut self,
        op: Scatter,
        x: ValueId,
        dim: i64,
        index: ValueId,
        src: impl Into<Operand>,
    ) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let dim = self.dim("scatter", dim, ty.rank())?;
        let (row, index) = (self.at_least_1d(x)?, self.at_least_1d(index)?);
        let places = self.ty(index).shape.clone();
        let mut src = match src.into() {
            Operand::Value(v) => {
                let v = self.cast(v, ty.dtype)?;
                self.at_least_1d(v)?
            }
            Operand::Number(n) => self.full(n, places.clone(), ty.dtype, ty.device)?,
        };
        for (d, end) in places.iter().enumerate() {
            let have = self.ty(src).shape.get(d);
            if have.is_some_and(|have| have != end) {
                let d = i64::try_from(d).unwrap_or(0);
                src = self.slice(src, d, 0, end.clone(), 1)?;
            }
        }
        // Truth values have no sums: one that is true makes the sum so.
        let op = match op {
            Scatter::Sum if ty.dtype.is_bool() => Scatter::Amax,
            Scatter::Prod if ty.dtype.is_bool() => Scatter::Amin,
            Scatter::Set | Scatter::Sum | Scatter::Prod | Scatter::Amax | Scatter::Amin => op,
        };
        let out = self.emit(Op::Scatter { op, dim }, &[row, src, index])?;
        if ty.rank() == 0 {
            self.view(out, &[])
        } else {
            Ok(out)
        }
    }

    #[track_caller]
    fn at_least_1d(&mut self, x: ValueId) -> Result<ValueId> {
        match self.ty(x).rank() {
            0 => self.view(x, &[Expr::ONE]),
            _ => Ok(x),
        }
    }

    /// `torch.scatter_reduce`. Without `include_self`, what `x` held where something goes does not count.
    #[track_caller]
    pub fn scatter_reduce(
        &mut self,
        how: Meet,
        x: ValueId,
        dim: i64,
        index: ValueId,
        src: ValueId,
        include_self: bool,
    ) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let base = if include_self {
            x
        } else {
            self.scatter(Scatter::Set, x, dim, index, how.neutral(ty.dtype))?
        };
        let total = self.scatter(how.scatter(), base, dim, index, src)?;
        if how != Meet::Mean {
            return Ok(total);
        }
        let own = i64::from(include_self);
        let none = self.full(own, ty.shape.clone(), DType::I64, ty.device)?;
        let mut count = self.scatter(Scatter::Sum, none, dim, index, 1)?;
        if !include_self {
            // Where nothing goes, x stays.
            let one = self.full(1, vec![], DType::I64, ty.device)?;
            count = self.emit(Op::Binary(Binary::Maximum), &[count, one])?;
        }
        let count = self.cast(count, ty.dtype)?;
        let op = match ty.dtype.is_float() {
            true => Binary::Div,
            false => Binary::DivFloor,
        };
        self.emit(Op::Binary(op), &[total, count])
    }

    /// The one-dimensional `index` of slices along `dim` as an index of single elements of `src`.
    #[track_caller]
    pub fn index_of_slices(&mut self, index: ValueId, dim: i64, src: ValueId) -> Result<ValueId> {
        let shape = self.ty(src).shape.clone();
        let dim = self.dim("index", dim, shape.len())?;
        let mut row = vec![Expr::ONE; shape.len()];
        if let Some(size) = row.get_mut(dim) {
            *size = self.ty(index).numel();
        }
        let index = self.view(index, &row)?;
        self.expand(index, &shape)
    }

    /// `x` after the slices of `src` along `dim` met those that the one-dimensional `index` names: `torch.index_add` and its relatives.
    #[track_caller]
    pub fn index_reduce(
        &mut self,
        how: Meet,
        x: ValueId,
        dim: i64,
        index: ValueId,
        src: ValueId,
        include_self: bool,
    ) -> Result<ValueId> {
        let index = self.index_of_slices(index, dim, src)?;
        self.scatter_reduce(how, x, dim, index, src, include_self)
    }

    /// The gradient of an embedding's weight: the rows of `grad` added where they came from. Rows that came from row `padding` are left out; with `by_count` each counts for its share of all
    /// that came from the same row.
    #[track_caller]
    pub fn embedding_backward(
        &mut self,
        grad: ValueId,
        indices: ValueId,
        rows: Expr,
        padding: Option<i64>,
        by_count: bool,
    ) -> Result<ValueId> {
        let ty = self.ty(grad).clone();
        let count = self.ty(indices).numel();
        let width = ty.shape.last().cloned().unwrap_or(Expr::ONE);
        let mut grad = self.view(grad, &[count.clone(), width.clone()])?;
        let index = self.view(indices, std::slice::from_ref(&count))?;
        let wide = if ty.dtype == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        if by_count {
            let none = self.full(0, vec![rows.clone()], DType::I64, ty.device)?;
            let counts = self.scatter(Scatter::Sum, none, 0, index, 1)?;
            let own = self.index_select(counts, 0, index)?;
            let own = self.cast(own, wide)?;
            let own = self.view(own, &[count.clone(), Expr::ONE])?;
            let one = self.full(1, vec![], wide, ty.device)?;
            let share = self.emit(Op::Binary(Binary::Div), &[one, own])?;
            let exact = self.cast(grad, wide)?;
            let scaled = self.emit(Op::Binary(Binary::Mul), &[exact, share])?;
            grad = self.cast(scaled, ty.dtype)?;
        }
        if let Some(padding) = padding {
            let at = self.full(padding, vec![], self.ty(index).dtype, ty.device)?;
            let padded = self.emit(Op::Compare(Compare::Eq), &[index, at])?;
            let padded = self.view(padded, &[count, Expr::ONE])?;
            let zero = self.full(0, vec![], ty.dtype, ty.device)?;
            grad = self.emit(Op::Where, &[padded, zero, grad])?;
        }
        let zeros = self.full(0, vec![rows, width], ty.dtype, ty.device)?;
        self.index_reduce(Meet::Sum, zeros, 0, index, grad, true)
    }
}
