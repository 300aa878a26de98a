//! Elementwise ops.

use super::{Builder, Operand, default_float};
use crate::ir::ValueId;
use crate::op::{Accepts, Binary, Compare, Op, Unary};
use oxyfuel_base::{DType, Result, Scalar};

impl Builder {
    /// A conversion; nothing when the dtype is already right.
    #[track_caller]
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId> {
        if self.ty(x).dtype == dtype {
            Ok(x)
        } else {
            self.emit(Op::Cast { dtype }, &[x])
        }
    }

    #[track_caller]
    pub fn unary(&mut self, f: Unary, x: ValueId) -> Result<ValueId> {
        let x = self.floated(f.info().accepts, x)?;
        self.emit(Op::Unary(f), &[x])
    }

    /// Integers become the default float for ops that PyTorch promotes so.
    #[track_caller]
    fn floated(&mut self, accepts: Accepts, x: ValueId) -> Result<ValueId> {
        if self.ty(x).dtype.is_float() || accepts != Accepts::IntToFloat {
            Ok(x)
        } else {
            self.cast(x, default_float())
        }
    }

    #[track_caller]
    pub fn binary(
        &mut self,
        f: Binary,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Result<ValueId> {
        let (a, b) = (a.into(), b.into());
        let mut dtype = self.common_dtype(&[a, b])?;
        if f.info().accepts == Accepts::IntToFloat && !dtype.is_float() {
            dtype = default_float();
        }
        // PyTorch multiplies and divides a half-precision tensor by the number itself, not by the number rounded to half precision.
        let keeps_number = match f {
            Binary::Mul => inexact(a, dtype) || inexact(b, dtype),
            Binary::Div | Binary::DivFloor | Binary::DivTrunc => inexact(b, dtype),
            Binary::Add
            | Binary::Sub
            | Binary::Remainder
            | Binary::Fmod
            | Binary::Pow
            | Binary::Atan2
            | Binary::Maximum
            | Binary::Minimum => false,
            Binary::BitwiseAnd
            | Binary::BitwiseOr
            | Binary::BitwiseXor
            | Binary::ShiftLeft
            | Binary::ShiftRight
            | Binary::Philox => false,
        };
        let compute = if keeps_number { DType::F32 } else { dtype };
        let values = self.as_values(&[a, b], compute)?;
        let out = self.emit(Op::Binary(f), &values)?;
        self.cast(out, dtype)
    }

    #[track_caller]
    pub fn compare(
        &mut self,
        f: Compare,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Result<ValueId> {
        let (a, b) = (a.into(), b.into());
        let dtype = self.common_dtype(&[a, b])?;
        let values = self.as_values(&[a, b], dtype)?;
        self.emit(Op::Compare(f), &values)
    }

    /// `a` where `condition` holds, else `b`.
    #[track_caller]
    pub fn where_(
        &mut self,
        condition: ValueId,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Result<ValueId> {
        let (a, b) = (a.into(), b.into());
        let dtype = self.common_dtype(&[a, b])?;
        let device = self.ty(condition).device;
        let mut values = vec![condition];
        for operand in [a, b] {
            values.push(match operand {
                Operand::Value(v) => self.cast(v, dtype)?,
                Operand::Number(n) => self.full(n, vec![], dtype, device)?,
            });
        }
        self.emit(Op::Where, &values)
    }

    /// `x` brought between two bounds: `minimum(maximum(x, low), high)`.
    #[track_caller]
    pub fn clamp(
        &mut self,
        x: ValueId,
        low: Option<Operand>,
        high: Option<Operand>,
    ) -> Result<ValueId> {
        let mut operands = vec![Operand::Value(x)];
        operands.extend(low);
        operands.extend(high);
        let dtype = self.common_dtype(&operands)?;
        let mut out = self.cast(x, dtype)?;
        for (f, bound) in [(Binary::Maximum, low), (Binary::Minimum, high)] {
            if let Some(bound) = bound {
                let values = self.as_values(&[Operand::Value(out), bound], dtype)?;
                out = self.emit(Op::Binary(f), &values)?;
            }
        }
        Ok(out)
    }

    #[track_caller]
    pub fn logical_and(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.logical(Binary::BitwiseAnd, a, b)
    }

    #[track_caller]
    pub fn logical_or(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.logical(Binary::BitwiseOr, a, b)
    }

    #[track_caller]
    pub fn logical_xor(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.logical(Binary::BitwiseXor, a, b)
    }

    #[track_caller]
    fn logical(&mut self, f: Binary, a: ValueId, b: ValueId) -> Result<ValueId> {
        let a = self.cast(a, DType::Bool)?;
        let b = self.cast(b, DType::Bool)?;
        self.emit(Op::Binary(f), &[a, b])
    }
}

/// Whether rounding the number to this half-precision dtype would change it.
fn inexact(operand: Operand, dtype: DType) -> bool {
    match (operand, dtype) {
        (Operand::Number(n), DType::F16 | DType::BF16) => {
            n.cast(dtype) != Scalar::F(n.as_f64()).cast(DType::F32)
        }
        (Operand::Number(_) | Operand::Value(_), _) => false,
    }
}

/// Methods with the names of PyTorch for the families: one row, one method.
macro_rules! shorthands {
    (unary: $($u:ident $uv:ident),*; binary: $($b:ident $bv:ident),*; compare: $($c:ident $cv:ident),* $(;)?) => {
        impl Builder {
            $(#[track_caller]
            pub fn $u(&mut self, x: ValueId) -> Result<ValueId> {
                self.unary(Unary::$uv, x)
            })*
            $(#[track_caller]
            pub fn $b(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Result<ValueId> {
                self.binary(Binary::$bv, a, b)
            })*
            $(#[track_caller]
            pub fn $c(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> Result<ValueId> {
                self.compare(Compare::$cv, a, b)
            })*
        }
    };
}

shorthands! {
    unary: neg Neg, abs Abs, relu Relu, gelu Gelu, gelu_tanh GeluTanh, silu Silu, sigmoid Sigmoid, tanh Tanh, exp Exp, exp2 Exp2,
        log Log, sqrt Sqrt, rsqrt Rsqrt, reciprocal Reciprocal, log10 Log10, erf Erf, erfc Erfc, sin Sin, cos Cos, tan Tan,
        asin Asin, acos Acos, atan Atan, sinh Sinh, cosh Cosh, asinh Asinh, acosh Acosh, atanh Atanh;
    binary: add Add, sub Sub, mul Mul, div Div, pow Pow, atan2 Atan2, maximum Maximum, minimum Minimum, philox Philox;
    compare: eq Eq, ne Ne, lt Lt, le Le, gt Gt, ge Ge;
}
