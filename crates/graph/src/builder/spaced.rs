//! Numbers at equal distances between two ends, as PyTorch places them: each half is counted from its own end.

use super::Builder;
use crate::ir::{Device, ValueId};
use crate::op::{Binary, Compare, Op, Unary};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

/// Counts up to here times half of the digits of an f64 are exact.
const MOST: i64 = 1 << 26;

/// How `end + step * count` is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounded {
    /// The product, then the sum.
    Twice,
    /// Once, as a fused multiply-add does.
    Once,
}

impl Builder {
    /// `steps` numbers from `start` to `end` (tensors of one element without dimensions), both included; integers are cut off towards zero.
    #[track_caller]
    pub fn linspace(
        &mut self,
        start: ValueId,
        end: ValueId,
        steps: i64,
        dtype: DType,
    ) -> Result<ValueId> {
        let device = self.spaced_ok(start, end, steps, dtype)?;
        let places = vec![Expr::constant(steps)];
        match steps {
            0 => return self.full(0, places, dtype, device),
            1 => {
                let one = self.cast(start, dtype)?;
                return self.expand(one, &places);
            }
            _ => {}
        }
        // Another last bit before the cut is another integer.
        let rounded = match dtype.is_float() {
            true => Rounded::Twice,
            false => Rounded::Once,
        };
        let at = self.spaced([start, end], steps, dtype, rounded)?;
        self.cast(at, dtype)
    }

    /// `base` to the powers of [`linspace`](Self::linspace), computed in f64. An integer beyond 2^52 may differ from the true value's in its last bits.
    #[track_caller]
    pub fn logspace(
        &mut self,
        start: ValueId,
        end: ValueId,
        steps: i64,
        base: f64,
        dtype: DType,
    ) -> Result<ValueId> {
        let device = self.spaced_ok(start, end, steps, dtype)?;
        let places = vec![Expr::constant(steps)];
        let at = match steps {
            0 => return self.full(0, places, dtype, device),
            1 => {
                let one = self.cast(start, DType::F64)?;
                self.expand(one, &places)?
            }
            _ => self.spaced([start, end], steps, dtype, Rounded::Twice)?,
        };
        let at = self.cast(at, DType::F64)?;
        let by = self.full(base, vec![], DType::F64, device)?;
        let mut power = self.emit(Op::Binary(Binary::Pow), &[by, at])?;
        if !dtype.is_float() && base.fract() == 0.0 {
            // A whole power of an integer is one, whatever the last bit says.
            let floor = self.emit(Op::Unary(Unary::Floor), &[at])?;
            let whole = self.emit(Op::Compare(Compare::Eq), &[at, floor])?;
            let zero = self.full(0.0, vec![], DType::F64, device)?;
            let up = self.emit(Op::Compare(Compare::Ge), &[at, zero])?;
            let whole = self.emit(Op::Binary(Binary::BitwiseAnd), &[whole, up])?;
            let near = self.emit(Op::Unary(Unary::Round), &[power])?;
            power = self.emit(Op::Where, &[whole, near, power])?;
        }
        self.cast(power, dtype)
    }

    #[track_caller]
    fn spaced_ok(&self, start: ValueId, end: ValueId, steps: i64, dtype: DType) -> Result<Device> {
        let ends = [self.ty(start), self.ty(end)];
        if ends
            .iter()
            .any(|ty| ty.rank() != 0 || ty.dtype.is_narrow_float())
        {
            let message = "linspace: an end is no single number".to_owned();
            return self.fail(Code::ShapeMismatch, message);
        }
        let fits = matches!(
            dtype,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::I64 | DType::I32
        );
        if !(0..MOST).contains(&steps) || !fits {
            let message = format!("linspace: {steps} numbers of {dtype}");
            return self.fail(Code::InvalidArgument, message);
        }
        Ok(ends[0].device)
    }

    /// At least two places, in f32 (halves too) or f64 (integers too).
    #[track_caller]
    fn spaced(
        &mut self,
        ends: [ValueId; 2],
        steps: i64,
        dtype: DType,
        rounded: Rounded,
    ) -> Result<ValueId> {
        let device = self.ty(ends[0]).device;
        let wide = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            _ => DType::F64,
        };
        let [start, end] = ends;
        let start = self.cast(start, dtype)?;
        let start = self.cast(start, wide)?;
        let end = self.cast(end, dtype)?;
        let end = self.cast(end, wide)?;
        let distance = self.emit(Op::Binary(Binary::Sub), &[end, start])?;
        let parts = self.full(steps - 1, vec![], wide, device)?;
        let step = self.emit(Op::Binary(Binary::Div), &[distance, parts])?;
        let back = self.emit(Op::Unary(Unary::Neg), &[step])?;

        let up = self.emit(
            Op::Arange {
                start: Scalar::I(0),
                step: Scalar::I(1),
                shape: vec![Expr::constant(steps)],
                dtype: DType::I64,
                device,
            },
            &[],
        )?;
        let last = self.full(steps - 1, vec![], DType::I64, device)?;
        let down = self.emit(Op::Binary(Binary::Sub), &[last, up])?;
        let half = self.full(steps / 2, vec![], DType::I64, device)?;
        let first = self.emit(Op::Compare(Compare::Lt), &[up, half])?;
        let count = self.emit(Op::Where, &[first, up, down])?;
        let count = self.cast(count, wide)?;
        let from = self.emit(Op::Where, &[first, start, end])?;
        let by = self.emit(Op::Where, &[first, step, back])?;
        match rounded {
            Rounded::Twice => {
                let way = self.emit(Op::Binary(Binary::Mul), &[by, count])?;
                self.emit(Op::Binary(Binary::Add), &[from, way])
            }
            Rounded::Once => self.once(from, by, count),
        }
    }

    /// `from + by * count` in f64, rounded once: the upper and the lower digits of `by` times a count are exact, and so is what the sum with the upper ones loses.
    #[track_caller]
    fn once(&mut self, from: ValueId, by: ValueId, count: ValueId) -> Result<ValueId> {
        let device = self.ty(by).device;
        let split = self.full(134_217_729.0, vec![], DType::F64, device)?;
        let (add, sub, mul) = (Binary::Add, Binary::Sub, Binary::Mul);
        let mut f = |op, a, b| self.emit(Op::Binary(op), &[a, b]);
        let scaled = f(mul, by, split)?;
        let beyond = f(sub, scaled, by)?;
        let upper = f(sub, scaled, beyond)?;
        let lower = f(sub, by, upper)?;
        let way = f(mul, upper, count)?;
        let rest = f(mul, lower, count)?;
        let sum = f(add, from, way)?;
        let of_way = f(sub, sum, from)?;
        let of_from = f(sub, sum, of_way)?;
        let lost_from = f(sub, from, of_from)?;
        let lost_way = f(sub, way, of_way)?;
        let lost = f(add, lost_from, lost_way)?;
        let small = f(add, lost, rest)?;
        f(add, sum, small)
    }
}
