//! Tensors out of nothing: constants and counts.

use super::{Builder, default_float};
use crate::ir::{Device, ValueId};
use crate::op::Op;
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

impl Builder {
    /// Every element is the value, rounded to `dtype`.
    #[track_caller]
    pub fn full(
        &mut self,
        value: impl Into<Scalar>,
        shape: Vec<Expr>,
        dtype: DType,
        device: Device,
    ) -> Result<ValueId> {
        let value = value.into().cast(dtype);
        self.emit(
            Op::Full {
                value,
                shape,
                dtype,
                device,
            },
            &[],
        )
    }

    /// A symbolic integer as a tensor without dimensions.
    #[track_caller]
    pub fn scalar_tensor(&mut self, value: Expr, dtype: DType, device: Device) -> Result<ValueId> {
        self.emit(
            Op::ScalarTensor {
                value,
                dtype,
                device,
            },
            &[],
        )
    }

    /// `start, start + step, ...` up to and without `end`; i64 when all are integers, else f32, unless `dtype` says otherwise.
    #[track_caller]
    pub fn arange(
        &mut self,
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: Option<DType>,
        device: Device,
    ) -> Result<ValueId> {
        let (start, end, step): (Scalar, Scalar, Scalar) = (start.into(), end.into(), step.into());
        let float = [start, end, step].iter().any(|s| matches!(s, Scalar::F(_)));
        let count = if float {
            float_count(start, end, step)
        } else {
            integer_count(start, end, step)
        };
        let Some(count) = count else {
            return self.fail(
                Code::InvalidArgument,
                format!("arange: no way from {start} to {end} in steps of {step}"),
            );
        };
        let dtype = dtype.unwrap_or(if float { default_float() } else { DType::I64 });
        // An integer result counts in integers, as PyTorch does, whatever the bounds were written as.
        let (start, step) = if dtype.is_int() {
            (Scalar::I(start.as_i64()), Scalar::I(step.as_i64()))
        } else {
            (Scalar::F(start.as_f64()), Scalar::F(step.as_f64()))
        };
        let shape = vec![Expr::from(count)];
        self.emit(
            Op::Arange {
                start,
                step,
                shape,
                dtype,
                device,
            },
            &[],
        )
    }
}

fn float_count(start: Scalar, end: Scalar, step: Scalar) -> Option<i64> {
    let count = ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil();
    // Beyond 2^53 a float no longer counts.
    (0.0..=9e15).contains(&count).then_some(count as i64)
}

fn integer_count(start: Scalar, end: Scalar, step: Scalar) -> Option<i64> {
    let [start, end, step] = [start, end, step].map(|s| i128::from(s.as_i64()));
    if step == 0 || (end - start).signum() * step.signum() < 0 {
        return None;
    }
    i64::try_from((end - start + step - step.signum()) / step).ok()
}
