//! Arithmetic on values of one dtype, as formulas are written.

use crate::builder::Builder;
use crate::ir::{Device, ValueId};
use crate::op::{Binary, Compare, Op, Unary};
use oxyfuel_base::{DType, Result, Scalar};

/// A value or a number.
#[derive(Clone, Copy, Debug)]
pub enum Term {
    Value(ValueId),
    Number(f64),
}

impl From<ValueId> for Term {
    fn from(value: ValueId) -> Self {
        Term::Value(value)
    }
}

impl From<f64> for Term {
    fn from(number: f64) -> Self {
        Term::Number(number)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Formula<'b> {
    pub b: &'b mut Builder,
    /// The dtype of every value and number.
    pub dtype: DType,
    pub device: Device,
}

macro_rules! methods {
    (unary: $($u:ident $uf:ident),*; binary: $($n:ident $nf:ident),*; compare: $($c:ident $cf:ident),*;) => {
        impl Formula<'_> {
            $(pub fn $u(&mut self, x: ValueId) -> Result<ValueId> {
                self.b.emit(Op::Unary(Unary::$uf), &[x])
            })*
            $(pub fn $n(&mut self, a: impl Into<Term>, b: impl Into<Term>) -> Result<ValueId> {
                let values = [self.value(a)?, self.value(b)?];
                self.b.emit(Op::Binary(Binary::$nf), &values)
            })*
            $(pub fn $c(&mut self, a: impl Into<Term>, b: impl Into<Term>) -> Result<ValueId> {
                let values = [self.value(a)?, self.value(b)?];
                self.b.emit(Op::Compare(Compare::$cf), &values)
            })*
        }
    };
}

methods! {
    unary: neg Neg, abs Abs, sign Sign, sqrt Sqrt, exp Exp, exp2 Exp2, log Log, log2 Log2, log1p Log1p, sin Sin, cos Cos, tan Tan, acos Acos,
        erf Erf, erfc Erfc, sinh Sinh, cosh Cosh, acosh Acosh, expm1 Expm1, tanh Tanh, sigmoid Sigmoid, floor Floor, round Round, trunc Trunc, is_inf IsInf, is_nan IsNan, not LogicalNot;
    binary: add Add, sub Sub, mul Mul, div Div, min Minimum, max Maximum, remainder Remainder, and BitwiseAnd, or BitwiseOr;
    compare: eq Eq, lt Lt, le Le, gt Gt, ge Ge;
}

impl Formula<'_> {
    /// A number is a tensor without dimensions; a value is itself.
    pub fn value(&mut self, term: impl Into<Term>) -> Result<ValueId> {
        match term.into() {
            Term::Value(value) => Ok(value),
            Term::Number(number) => self
                .b
                .full(Scalar::F(number), vec![], self.dtype, self.device),
        }
    }

    pub fn choose(
        &mut self,
        condition: ValueId,
        a: impl Into<Term>,
        b: impl Into<Term>,
    ) -> Result<ValueId> {
        let values = [condition, self.value(a)?, self.value(b)?];
        self.b.emit(Op::Where, &values)
    }

    /// `sum of c[k] t^k`.
    pub fn polynomial(&mut self, coefficients: &[f64], t: ValueId) -> Result<ValueId> {
        let Some((&last, rest)) = coefficients.split_last() else {
            return self.value(0.0);
        };
        let mut y = self.value(last)?;
        for &c in rest.iter().rev() {
            y = self.mul(y, t)?;
            // Odd and even polynomials have gaps.
            if c != 0.0 {
                y = self.add(y, c)?;
            }
        }
        Ok(y)
    }

    /// A table over [low, high]: its variable runs from -1 to 1.
    pub fn fit(
        &mut self,
        coefficients: &[f64],
        x: ValueId,
        [low, high]: [f64; 2],
    ) -> Result<ValueId> {
        let slope = self.mul(x, 2.0 / (high - low))?;
        let t = self.sub(slope, (high + low) / (high - low))?;
        self.polynomial(coefficients, t)
    }

    /// A table over [limit, infinity): its variable runs from 1 to -1.
    pub fn fit_far(&mut self, coefficients: &[f64], x: ValueId, limit: f64) -> Result<ValueId> {
        let near = self.div(2.0 * limit, x)?;
        let t = self.sub(near, 1.0)?;
        self.polynomial(coefficients, t)
    }

    pub fn square(&mut self, x: ValueId) -> Result<ValueId> {
        self.mul(x, x)
    }

    /// -1 and 1, where zero counts as positive.
    pub fn sign_of(&mut self, x: ValueId) -> Result<ValueId> {
        let below = self.lt(x, 0.0)?;
        self.choose(below, -1.0, 1.0)
    }

    pub fn is_even(&mut self, whole: ValueId) -> Result<ValueId> {
        let half = self.mul(whole, 0.5)?;
        let down = self.floor(half)?;
        self.eq(half, down)
    }
}
