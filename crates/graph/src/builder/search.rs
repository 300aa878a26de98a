//! Places in rows that are in order: `searchsorted` and `bucketize`.

use super::{Builder, Operand};
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op, Unary};
use oxyfuel_base::{Code, DType, Expr, Result};

impl Builder {
    /// How many elements of a row come before each value: those less than it, or with `right` those that are not greater. NaN comes after all. `rows` is one row for all values, or has a row
    /// for each row of them; `sorter` says in which order a row's elements are in order. The result is i64.
    ///
    /// All values halve their ranges together, as many times as the row's length needs.
    #[track_caller]
    pub fn searchsorted(
        &mut self,
        rows: ValueId,
        values: impl Into<Operand>,
        right: bool,
        sorter: Option<ValueId>,
    ) -> Result<ValueId> {
        let values = values.into();
        let ty = self.ty(rows).clone();
        let shape = match values {
            Operand::Value(v) => self.ty(v).shape.clone(),
            Operand::Number(_) => vec![],
        };
        let fits = ty.rank() == 1
            || (ty.rank() == shape.len() && ty.shape[..ty.rank() - 1] == shape[..ty.rank() - 1]);
        let length = ty.shape.last().and_then(Expr::as_const);
        let (Some(length), true) = (length, fits) else {
            let message = "searchsorted: rows of known length, one or as many as the values'";
            return self.fail(Code::ShapeMismatch, message.to_owned());
        };
        let number = |b: &mut Self, n: i64| b.full(n, vec![], DType::I64, ty.device);
        let zero = self.full(0, shape.clone(), DType::I64, ty.device)?;
        let (mut start, mut end) = (zero, self.full(length, shape, DType::I64, ty.device)?);
        let f = if right { Compare::Gt } else { Compare::Ge };
        for _ in 0..i64::BITS - length.leading_zeros() {
            let sum = self.emit(Op::Binary(Binary::Add), &[start, end])?;
            let one = number(self, 1)?;
            let middle = self.emit(Op::Binary(Binary::ShiftRight), &[sum, one])?;
            // An empty range at the end of a row has no middle.
            let last = number(self, length - 1)?;
            let mut at = self.emit(Op::Binary(Binary::Minimum), &[middle, last])?;
            if let Some(sorter) = sorter {
                at = self.along_rows(sorter, at)?;
                at = self.cast(at, DType::I64)?;
            }
            let here = self.along_rows(rows, at)?;
            let before = self.compare(f, here, values)?;
            let open = self.emit(Op::Compare(Compare::Lt), &[start, end])?;
            let after = self.unary(Unary::LogicalNot, before)?;
            let after = self.emit(Op::Binary(Binary::BitwiseAnd), &[after, open])?;
            let next = self.emit(Op::Binary(Binary::Add), &[middle, one])?;
            start = self.emit(Op::Where, &[after, next, start])?;
            end = self.emit(Op::Where, &[after, end, middle])?;
        }
        Ok(start)
    }

    /// The elements at places of rows: of the one row, or of each place's own.
    #[track_caller]
    fn along_rows(&mut self, rows: ValueId, at: ValueId) -> Result<ValueId> {
        if self.ty(rows).rank() > 1 {
            return self.gather(rows, -1, at);
        }
        let shape = self.ty(at).shape.clone();
        let flat = self.view(at, &[shape.iter().cloned().product()])?;
        let picked = self.index_select(rows, 0, flat)?;
        self.view(picked, &shape)
    }
}
