//! Functions that few programs use, composed of others in f64: for narrower floats the result is the true one rounded, for f64 itself it is good to a few ulps.

use std::f64::consts::{FRAC_PI_2, LN_2, LOG10_2, PI};

use oxyfuel_base::{DType, Result};
use oxyfuel_graph::Unary;
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, UnaryOp};

use crate::nest::{NestOp, Node};
use crate::pointwise::Writer;

/// From here on `sinh` and `cosh` are half of `e^|x|`.
const FAR: f64 = 20.0;
/// From here on `x^2 + 1` is `x^2`.
const LARGE: f64 = 1e9;

impl Writer<'_> {
    /// `f(x)` in f64, for the functions that have no op of their own.
    pub fn rare(&mut self, f: Unary, x: Node) -> Result<Node> {
        let size = self.un(UnaryOp::Abs, x)?;
        match f {
            Unary::Log10 => {
                let log = self.un(UnaryOp::Log2, x)?;
                self.bin_const(BinaryOp::Mul, log, LOG10_2)
            }
            Unary::Tan => {
                let (sin, cos) = (self.un(UnaryOp::Sin, x)?, self.un(UnaryOp::Cos, x)?);
                self.bin(BinaryOp::Div, sin, cos)
            }
            // atan(x / sqrt((1 - x) (1 + x)))
            Unary::Asin => {
                let (less, more) = self.around_one(x)?;
                let product = self.bin(BinaryOp::Mul, less, more)?;
                let root = self.un(UnaryOp::Sqrt, product)?;
                let slope = self.bin(BinaryOp::Div, x, root)?;
                self.un(UnaryOp::Atan, slope)
            }
            // 2 atan(sqrt((1 - x) / (1 + x)))
            Unary::Acos => {
                let (less, more) = self.around_one(x)?;
                let quotient = self.bin(BinaryOp::Div, less, more)?;
                let root = self.un(UnaryOp::Sqrt, quotient)?;
                let half = self.un(UnaryOp::Atan, root)?;
                self.bin_const(BinaryOp::Mul, half, 2.0)
            }
            // (t + t / (t + 1)) / 2 with t = e^|x| - 1
            Unary::Sinh => {
                let t = self.un(UnaryOp::Expm1, size)?;
                let above = self.bin_const(BinaryOp::Add, t, 1.0)?;
                let rest = self.bin(BinaryOp::Div, t, above)?;
                let sum = self.bin(BinaryOp::Add, t, rest)?;
                let near = self.bin_const(BinaryOp::Mul, sum, 0.5)?;
                let y = self.half_power_from(size, near)?;
                self.signed(y, x)
            }
            // (e + 1 / e) / 2 with e = e^|x|
            Unary::Cosh => {
                let e = self.un(UnaryOp::Exp, size)?;
                let inverse = self.un(UnaryOp::Recip, e)?;
                let sum = self.bin(BinaryOp::Add, e, inverse)?;
                let near = self.bin_const(BinaryOp::Mul, sum, 0.5)?;
                self.half_power_from(size, near)
            }
            // log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))
            Unary::Asinh => {
                let square = self.bin(BinaryOp::Mul, x, x)?;
                let above = self.bin_const(BinaryOp::Add, square, 1.0)?;
                let root = self.un(UnaryOp::Sqrt, above)?;
                let below = self.bin_const(BinaryOp::Add, root, 1.0)?;
                let rest = self.bin(BinaryOp::Div, square, below)?;
                let sum = self.bin(BinaryOp::Add, size, rest)?;
                let near = self.un(UnaryOp::Log1p, sum)?;
                let y = self.log_of_double_from(size, near)?;
                self.signed(y, x)
            }
            // log1p(t + sqrt(t (t + 2))) with t = x - 1
            Unary::Acosh => {
                let t = self.bin_const(BinaryOp::Sub, x, 1.0)?;
                let more = self.bin_const(BinaryOp::Add, t, 2.0)?;
                let product = self.bin(BinaryOp::Mul, t, more)?;
                let root = self.un(UnaryOp::Sqrt, product)?;
                let sum = self.bin(BinaryOp::Add, t, root)?;
                let near = self.un(UnaryOp::Log1p, sum)?;
                let y = self.log_of_double_from(x, near)?;
                let one = self.constant(DType::F64, 1.0)?;
                let nan = self.constant(DType::F64, f64::NAN)?;
                let below = self.cmp(CompareOp::Lt, x, one)?;
                self.select(below, nan, y)
            }
            // log1p(2 |x| / (1 - |x|)) / 2
            Unary::Atanh => {
                let (less, _) = self.around_one(size)?;
                let double = self.bin_const(BinaryOp::Mul, size, 2.0)?;
                let quotient = self.bin(BinaryOp::Div, double, less)?;
                let log = self.un(UnaryOp::Log1p, quotient)?;
                let y = self.bin_const(BinaryOp::Mul, log, 0.5)?;
                self.signed(y, x)
            }
            _ => Ok(x),
        }
    }

    /// The angle of the point `(x, y)`, in f64.
    pub fn angle(&mut self, y: Node, x: Node) -> Result<Node> {
        let (up, along) = (self.un(UnaryOp::Abs, y)?, self.un(UnaryOp::Abs, x)?);
        let slope = self.bin(BinaryOp::Div, up, along)?;
        // Two zeros lie on the axis, two infinities on the diagonal.
        let equal = self.cmp(CompareOp::Eq, up, along)?;
        let (zero, one) = (
            self.constant(DType::F64, 0.0)?,
            self.constant(DType::F64, 1.0)?,
        );
        let at_zero = self.cmp_zero(CompareOp::Eq, up)?;
        let of_equals = self.select(at_zero, zero, one)?;
        let slope = self.select(equal, of_equals, slope)?;
        let angle = self.un(UnaryOp::Atan, slope)?;
        // pi - angle: what the first half loses, the second gives back
        let half = self.constant(DType::F64, FRAC_PI_2)?;
        let low = self.constant(DType::F64, 2.0 * 6.123_233_995_736_766e-17)?;
        let rest = self.bin(BinaryOp::Sub, angle, low)?;
        let pi = self.constant(DType::F64, PI)?;
        let other = self.bin(BinaryOp::Sub, pi, rest)?;
        let behind = self.is_negative(x)?;
        let angle = self.select(behind, other, angle)?;
        // A vertical direction is exactly half of pi.
        let vertical = self.cmp_zero(CompareOp::Eq, x)?;
        let not_origin = self.cmp_zero(CompareOp::Ne, y)?;
        let vertical = self.nest.push(
            NestOp::Binary(BinaryOp::And, vertical, not_origin),
            DType::Bool,
        )?;
        let number = self.cmp(CompareOp::Eq, y, y)?;
        let vertical = self
            .nest
            .push(NestOp::Binary(BinaryOp::And, vertical, number), DType::Bool)?;
        let angle = self.select(vertical, half, angle)?;
        self.signed(angle, y)
    }

    /// `1 - x` and `1 + x`.
    fn around_one(&mut self, x: Node) -> Result<(Node, Node)> {
        let one = self.constant(DType::F64, 1.0)?;
        Ok((
            self.bin(BinaryOp::Sub, one, x)?,
            self.bin(BinaryOp::Add, one, x)?,
        ))
    }

    /// `e^size / 2` where `size` is large, in two factors since the power overflows before its half does.
    fn half_power_from(&mut self, size: Node, near: Node) -> Result<Node> {
        let half = self.bin_const(BinaryOp::Mul, size, 0.5)?;
        let root = self.un(UnaryOp::Exp, half)?;
        let scaled = self.bin_const(BinaryOp::Mul, root, 0.5)?;
        let power = self.bin(BinaryOp::Mul, scaled, root)?;
        let bound = self.constant(DType::F64, FAR)?;
        let far = self.cmp(CompareOp::Gt, size, bound)?;
        self.select(far, power, near)
    }

    /// `log(2 size)` where `size` is large.
    fn log_of_double_from(&mut self, size: Node, near: Node) -> Result<Node> {
        let log = self.un(UnaryOp::Log, size)?;
        let log = self.bin_const(BinaryOp::Add, log, LN_2)?;
        let bound = self.constant(DType::F64, LARGE)?;
        let far = self.cmp(CompareOp::Gt, size, bound)?;
        self.select(far, log, near)
    }

    /// Whether a float is below zero, or the zero that counts as below.
    fn is_negative(&mut self, x: Node) -> Result<Node> {
        let below = self.cmp_zero(CompareOp::Lt, x)?;
        let inverse = self.un(UnaryOp::Recip, x)?;
        let inverse_below = self.cmp_zero(CompareOp::Lt, inverse)?;
        self.nest.push(
            NestOp::Binary(BinaryOp::Or, below, inverse_below),
            DType::Bool,
        )
    }

    /// `y`, which is not negative, with the sign of `x`.
    fn signed(&mut self, y: Node, x: Node) -> Result<Node> {
        let negative = self.is_negative(x)?;
        let minus = self.un(UnaryOp::Neg, y)?;
        self.select(negative, minus, y)
    }
}
