//! Elementwise ops of the tensor IR as values of a nest, rounding where eager rounds.
//!
//! Arithmetic happens in a dtype that targets compute in: bf16, f16 and the fp8 formats compute in f32 and are rounded once for each op of the tensor IR.

use oxyfuel_base::dtype::Kind;
use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_graph::interp::philox;
use oxyfuel_graph::{Binary, Compare, Reduce, Unary};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, ReduceOp, UnaryOp};

use crate::nest::{Nest, NestOp, Node};

/// The dtype that arithmetic on `dtype` happens in.
pub fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1 | DType::E8M0 => {
            DType::F32
        }
        _ => dtype,
    }
}

/// Writes values into a nest.
pub struct Writer<'a> {
    pub nest: &'a mut Nest,
}

impl Writer<'_> {
    pub fn dtype(&self, node: Node) -> DType {
        self.nest.values[node].dtype
    }

    pub fn cast(&mut self, node: Node, dtype: DType) -> Result<Node> {
        if self.dtype(node) == dtype {
            Ok(node)
        } else {
            self.nest.push(NestOp::Cast(node), dtype)
        }
    }

    pub fn constant(&mut self, dtype: DType, value: impl Into<Scalar>) -> Result<Node> {
        self.nest
            .push(NestOp::Const(value.into().cast(dtype)), dtype)
    }

    /// A size as a number of this dtype.
    pub fn size(&mut self, size: &Expr, dtype: DType) -> Result<Node> {
        if let Some(number) = size.as_const() {
            return self.constant(dtype, number);
        }
        let size = self.nest.push(NestOp::Size(size.clone()), DType::I64)?;
        self.cast(size, dtype)
    }

    pub fn un(&mut self, op: UnaryOp, x: Node) -> Result<Node> {
        let dtype = if op == UnaryOp::IsNan {
            DType::Bool
        } else {
            self.dtype(x)
        };
        self.nest.push(NestOp::Unary(op, x), dtype)
    }

    pub fn bin(&mut self, op: BinaryOp, a: Node, b: Node) -> Result<Node> {
        self.nest.push(NestOp::Binary(op, a, b), self.dtype(a))
    }

    pub fn bin_const(&mut self, op: BinaryOp, a: Node, value: f64) -> Result<Node> {
        let b = self.constant(self.dtype(a), value)?;
        self.bin(op, a, b)
    }

    pub fn cmp(&mut self, op: CompareOp, a: Node, b: Node) -> Result<Node> {
        self.nest.push(NestOp::Compare(op, a, b), DType::Bool)
    }

    pub fn cmp_zero(&mut self, op: CompareOp, a: Node) -> Result<Node> {
        let zero = self.constant(self.dtype(a), 0)?;
        self.cmp(op, a, zero)
    }

    pub fn select(&mut self, cond: Node, a: Node, b: Node) -> Result<Node> {
        self.nest.push(NestOp::Select(cond, a, b), self.dtype(a))
    }

    /// `f(x)` rounded to `out`.
    pub fn unary(&mut self, f: Unary, x: Node, out: DType) -> Result<Node> {
        let x = self.cast(x, compute_dtype(self.dtype(x)))?;
        let dtype = self.dtype(x);
        let rounds_integer = matches!(f, Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc)
            && !dtype.is_float();
        let y = match f {
            Unary::Neg => self.un(UnaryOp::Neg, x)?,
            Unary::Abs if !dtype.is_float() && !dtype.is_signed() => x,
            Unary::Abs => self.un(UnaryOp::Abs, x)?,
            Unary::Sign => self.sign(x)?,
            Unary::Relu => {
                let zero = self.constant(dtype, 0)?;
                self.bin(BinaryOp::Max, x, zero)?
            }
            Unary::Gelu => {
                let scaled = self.bin_const(BinaryOp::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
                let erf = self.un(UnaryOp::Erf, scaled)?;
                self.half_gate(x, erf)?
            }
            Unary::GeluTanh => {
                let square = self.bin(BinaryOp::Mul, x, x)?;
                let cube = self.bin(BinaryOp::Mul, square, x)?;
                let bent = self.bin_const(BinaryOp::Mul, cube, 0.044715)?;
                let sum = self.bin(BinaryOp::Add, x, bent)?;
                let inner =
                    self.bin_const(BinaryOp::Mul, sum, (2.0 / std::f64::consts::PI).sqrt())?;
                let tanh = self.un(UnaryOp::Tanh, inner)?;
                self.half_gate(x, tanh)?
            }
            Unary::Silu => {
                let gate = self.un(UnaryOp::Sigmoid, x)?;
                self.bin(BinaryOp::Mul, x, gate)?
            }
            Unary::Sigmoid => self.un(UnaryOp::Sigmoid, x)?,
            Unary::Tanh => self.un(UnaryOp::Tanh, x)?,
            Unary::Exp => self.un(UnaryOp::Exp, x)?,
            Unary::Exp2 => self.un(UnaryOp::Exp2, x)?,
            Unary::Expm1 => self.un(UnaryOp::Expm1, x)?,
            Unary::Log => self.un(UnaryOp::Log, x)?,
            Unary::Log2 => self.un(UnaryOp::Log2, x)?,
            Unary::Log1p => self.un(UnaryOp::Log1p, x)?,
            Unary::Sqrt => self.un(UnaryOp::Sqrt, x)?,
            Unary::Rsqrt => self.un(UnaryOp::Rsqrt, x)?,
            Unary::Reciprocal => self.un(UnaryOp::Recip, x)?,
            Unary::Erf => self.un(UnaryOp::Erf, x)?,
            Unary::Erfc => self.un(UnaryOp::Erfc, x)?,
            Unary::Sin => self.un(UnaryOp::Sin, x)?,
            Unary::Cos => self.un(UnaryOp::Cos, x)?,
            Unary::Atan => self.un(UnaryOp::Atan, x)?,
            Unary::Log10
            | Unary::Tan
            | Unary::Asin
            | Unary::Acos
            | Unary::Sinh
            | Unary::Cosh
            | Unary::Asinh
            | Unary::Acosh
            | Unary::Atanh => {
                let wide = self.cast(x, DType::F64)?;
                let y = self.rare(f, wide)?;
                self.cast(y, dtype)?
            }
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc if rounds_integer => x,
            Unary::Floor => self.un(UnaryOp::Floor, x)?,
            Unary::Ceil => self.un(UnaryOp::Ceil, x)?,
            Unary::Round => self.un(UnaryOp::Round, x)?,
            Unary::Trunc => self.un(UnaryOp::Trunc, x)?,
            Unary::LogicalNot => self.cmp_zero(CompareOp::Eq, x)?,
            Unary::BitwiseNot => self.un(UnaryOp::Not, x)?,
            Unary::IsNan if dtype.is_float() => self.un(UnaryOp::IsNan, x)?,
            Unary::IsInf if dtype.is_float() => {
                let size = self.un(UnaryOp::Abs, x)?;
                let inf = self.constant(dtype, f64::INFINITY)?;
                self.cmp(CompareOp::Eq, size, inf)?
            }
            Unary::IsNan | Unary::IsInf => self.constant(DType::Bool, false)?,
        };
        self.cast(y, out)
    }

    /// `x * 0.5 * (1 + gate)`.
    fn half_gate(&mut self, x: Node, gate: Node) -> Result<Node> {
        let half = self.bin_const(BinaryOp::Mul, x, 0.5)?;
        let open = self.bin_const(BinaryOp::Add, gate, 1.0)?;
        self.bin(BinaryOp::Mul, half, open)
    }

    fn sign(&mut self, x: Node) -> Result<Node> {
        let dtype = self.dtype(x);
        let (zero, one) = (self.constant(dtype, 0)?, self.constant(dtype, 1)?);
        let above = self.cmp(CompareOp::Gt, x, zero)?;
        let up = self.select(above, one, zero)?;
        if !dtype.is_signed() && !dtype.is_float() {
            return Ok(up);
        }
        let minus = self.constant(dtype, -1)?;
        let below = self.cmp(CompareOp::Lt, x, zero)?;
        self.select(below, minus, up)
    }

    /// `f(a, b)` rounded to `out`.
    pub fn binary(&mut self, f: Binary, a: Node, b: Node, out: DType) -> Result<Node> {
        let dtype = compute_dtype(self.dtype(a));
        let (a, b) = (self.cast(a, dtype)?, self.cast(b, dtype)?);
        let bool_op = dtype.is_bool();
        let y = match f {
            Binary::Add if bool_op => self.bin(BinaryOp::Or, a, b)?,
            Binary::Add => self.bin(BinaryOp::Add, a, b)?,
            Binary::Sub => self.bin(BinaryOp::Sub, a, b)?,
            Binary::Mul if bool_op => self.bin(BinaryOp::And, a, b)?,
            Binary::Mul => self.bin(BinaryOp::Mul, a, b)?,
            Binary::Div => self.bin(BinaryOp::Div, a, b)?,
            Binary::DivFloor if dtype.is_float() => self.float_floor_divide(a, b, dtype)?,
            Binary::DivFloor => self.bin(BinaryOp::FloorDiv, a, b)?,
            Binary::DivTrunc if dtype.is_float() => {
                let quotient = self.bin(BinaryOp::Div, a, b)?;
                self.un(UnaryOp::Trunc, quotient)?
            }
            Binary::DivTrunc => self.bin(BinaryOp::Div, a, b)?,
            Binary::Remainder if dtype.is_float() => self.float_remainder(a, b)?,
            Binary::Remainder => self.bin(BinaryOp::Mod, a, b)?,
            Binary::Fmod => self.bin(BinaryOp::Rem, a, b)?,
            Binary::Atan2 => {
                let (y, x) = (self.cast(a, DType::F64)?, self.cast(b, DType::F64)?);
                let angle = self.angle(y, x)?;
                self.cast(angle, dtype)?
            }
            Binary::Pow if dtype.is_float() => self.bin(BinaryOp::Pow, a, b)?,
            Binary::Pow => self.integer_power(a, b, dtype)?,
            Binary::Maximum if bool_op => self.bin(BinaryOp::Or, a, b)?,
            Binary::Maximum => self.bin(BinaryOp::Max, a, b)?,
            Binary::Minimum if bool_op => self.bin(BinaryOp::And, a, b)?,
            Binary::Minimum => self.bin(BinaryOp::Min, a, b)?,
            Binary::BitwiseAnd => self.bin(BinaryOp::And, a, b)?,
            Binary::BitwiseOr => self.bin(BinaryOp::Or, a, b)?,
            Binary::BitwiseXor => self.bin(BinaryOp::Xor, a, b)?,
            Binary::ShiftLeft => self.bin(BinaryOp::Shl, a, b)?,
            Binary::ShiftRight => self.bin(BinaryOp::Shr, a, b)?,
            Binary::Philox => self.philox(a, b)?,
        };
        self.cast(y, out)
    }

    /// Ten rounds of Philox in 64-bit arithmetic: each multiplies two words of 32 bits and mixes the halves of the products.
    ///
    /// Words are cut to their 32 bits only where they are multiplied, which lets a target see that a product of halves is all it needs.
    fn philox(&mut self, counter: Node, seed: Node) -> Result<Node> {
        let mut wide = |x: Node| {
            // Signed first: a narrow integer counts below zero as it does in 64 bits.
            let signed = self.cast(x, DType::I64)?;
            self.cast(signed, DType::U64)
        };
        let (counter, seed) = (wide(counter)?, wide(seed)?);
        let half = self.constant(DType::U64, 32)?;
        let mask = self.constant(DType::U64, i64::from(u32::MAX))?;
        let zero = self.constant(DType::U64, 0)?;
        let high = |w: &mut Self, x| w.bin(BinaryOp::Shr, x, half);
        let mut c = [counter, high(self, counter)?, zero, zero];
        let mut k = [seed, high(self, seed)?];
        for round in 0..philox::ROUNDS {
            let mut product = |x: Node, factor: u64| {
                let word = self.bin(BinaryOp::And, x, mask)?;
                let factor = self.constant(DType::U64, factor as i64)?;
                self.bin(BinaryOp::Mul, word, factor)
            };
            let p = [
                product(c[0], philox::MULTIPLIERS[0])?,
                product(c[2], philox::MULTIPLIERS[1])?,
            ];
            let mut mixed = |p: Node, word: Node, key: Node| {
                let top = high(self, p)?;
                let both = self.bin(BinaryOp::Xor, word, key)?;
                self.bin(BinaryOp::Xor, both, top)
            };
            c = [
                mixed(p[1], c[1], k[0])?,
                p[1],
                mixed(p[0], c[3], k[1])?,
                p[0],
            ];
            if round + 1 < philox::ROUNDS {
                for (key, step) in k.iter_mut().zip(philox::KEY_STEPS) {
                    let step = self.constant(DType::U64, i64::from(step))?;
                    *key = self.bin(BinaryOp::Add, *key, step)?;
                }
            }
        }
        let top = self.bin(BinaryOp::Shl, c[1], half)?;
        let low = self.bin(BinaryOp::And, c[0], mask)?;
        let bits = self.bin(BinaryOp::Or, top, low)?;
        self.cast(bits, DType::I64)
    }

    /// By squaring, over all bits of the exponent. Its bits are right for the bases 1 and -1 whatever its sign; other bases to a negative power are 0.
    fn integer_power(&mut self, base: Node, exponent: Node, dtype: DType) -> Result<Node> {
        let zero = self.constant(dtype, Scalar::I(0))?;
        let one = self.constant(dtype, Scalar::I(1))?;
        let (mut result, mut square, mut bits) = (one, base, exponent);
        for _ in 0..dtype.bits() {
            let low = self.bin(BinaryOp::And, bits, one)?;
            let odd = self.cmp(CompareOp::Ne, low, zero)?;
            let more = self.bin(BinaryOp::Mul, result, square)?;
            result = self.select(odd, more, result)?;
            square = self.bin(BinaryOp::Mul, square, square)?;
            bits = self.bin(BinaryOp::Shr, bits, one)?;
        }
        if dtype.kind() != Kind::Signed {
            return Ok(result);
        }
        let minus_one = self.constant(dtype, Scalar::I(-1))?;
        let negative = self.cmp(CompareOp::Lt, exponent, zero)?;
        let truncated = self.select(negative, zero, result)?;
        let is_one = self.cmp(CompareOp::Eq, base, one)?;
        let is_minus_one = self.cmp(CompareOp::Eq, base, minus_one)?;
        let unit = self.nest.push(
            NestOp::Binary(BinaryOp::Or, is_one, is_minus_one),
            DType::Bool,
        )?;
        self.select(unit, result, truncated)
    }

    /// The floor of the quotient as eager has it: what is left tells whether rounding lifted the quotient onto the next integer, or lost a number against an infinite
    /// divisor; an infinite dividend gives NaN. In f64 the remainder would need more bits than there are, and only a quotient of zero is looked at.
    fn float_floor_divide(&mut self, a: Node, b: Node, dtype: DType) -> Result<Node> {
        let quotient = self.bin(BinaryOp::Div, a, b)?;
        let floor = self.un(UnaryOp::Floor, quotient)?;
        let at_zero = self.cmp_zero(CompareOp::Eq, floor)?;
        let wide = self.cast(a, DType::F64)?;
        let rest = if dtype == DType::F64 {
            self.constant(DType::F64, 0)?
        } else {
            // The product of two floats is exact here.
            let (q, d) = (self.cast(floor, DType::F64)?, self.cast(b, DType::F64)?);
            let product = self.bin(BinaryOp::Mul, q, d)?;
            self.bin(BinaryOp::Sub, wide, product)?
        };
        let rest = self.select(at_zero, wide, rest)?;
        let too_high = self.signs_differ(rest, b)?;
        let lower = self.bin_const(BinaryOp::Sub, floor, 1.0)?;
        let y = self.select(too_high, lower, floor)?;
        let size = self.un(UnaryOp::Abs, a)?;
        let infinity = self.constant(dtype, f64::INFINITY)?;
        let infinite = self.cmp(CompareOp::Eq, size, infinity)?;
        let nan = self.constant(dtype, f64::NAN)?;
        let y = self.select(infinite, nan, y)?;
        let by_zero = self.cmp_zero(CompareOp::Eq, b)?;
        self.select(by_zero, quotient, y)
    }

    /// Whether something is left, and its sign is not the divisor's.
    fn signs_differ(&mut self, rest: Node, divisor: Node) -> Result<Node> {
        let rest_below = self.cmp_zero(CompareOp::Lt, rest)?;
        let divisor_below = self.cmp_zero(CompareOp::Lt, divisor)?;
        let differ = self.nest.push(
            NestOp::Binary(BinaryOp::Xor, rest_below, divisor_below),
            DType::Bool,
        )?;
        let some = self.cmp_zero(CompareOp::Ne, rest)?;
        self.nest
            .push(NestOp::Binary(BinaryOp::And, differ, some), DType::Bool)
    }

    /// The remainder with the divisor's sign.
    fn float_remainder(&mut self, a: Node, b: Node) -> Result<Node> {
        let rest = self.bin(BinaryOp::Rem, a, b)?;
        let moved = self.bin(BinaryOp::Add, rest, b)?;
        let wrong = self.signs_differ(rest, b)?;
        self.select(wrong, moved, rest)
    }

    pub fn compare(&mut self, f: Compare, a: Node, b: Node) -> Result<Node> {
        let dtype = match self.dtype(a) {
            DType::Bool => DType::U8,
            other => compute_dtype(other),
        };
        let (a, b) = (self.cast(a, dtype)?, self.cast(b, dtype)?);
        let op = match f {
            Compare::Eq => CompareOp::Eq,
            Compare::Ne => CompareOp::Ne,
            Compare::Lt => CompareOp::Lt,
            Compare::Le => CompareOp::Le,
            Compare::Gt => CompareOp::Gt,
            Compare::Ge => CompareOp::Ge,
        };
        self.cmp(op, a, b)
    }

    /// A reduction over the nest's reduced dims; `count` elements go into each result.
    pub fn reduce(&mut self, f: Reduce, x: Node, count: &Expr, out: DType) -> Result<Node> {
        let (x, op) = match f {
            Reduce::Any | Reduce::All => {
                let wide = self.cast(x, compute_dtype(self.dtype(x)))?;
                let truth = if self.dtype(wide).is_bool() {
                    wide
                } else {
                    self.cmp_zero(CompareOp::Ne, wide)?
                };
                (
                    truth,
                    if f == Reduce::Any {
                        ReduceOp::Any
                    } else {
                        ReduceOp::All
                    },
                )
            }
            Reduce::Amax | Reduce::Amin if self.dtype(x).is_bool() => (
                x,
                if f == Reduce::Amax {
                    ReduceOp::Any
                } else {
                    ReduceOp::All
                },
            ),
            Reduce::Sum | Reduce::Mean | Reduce::Prod | Reduce::Amax | Reduce::Amin => {
                // The result's dtype is at least as wide: sums of narrow integers are i64.
                let wide = compute_dtype(if out.is_float() { self.dtype(x) } else { out });
                let op = match f {
                    Reduce::Prod => ReduceOp::Prod,
                    Reduce::Amax => ReduceOp::Max,
                    Reduce::Amin => ReduceOp::Min,
                    Reduce::Sum | Reduce::Mean | Reduce::Any | Reduce::All => ReduceOp::Sum,
                };
                (self.cast(x, wide)?, op)
            }
        };
        // Of a single element nothing is left to reduce; the nest need not even name a dim for it.
        let mut y = match count.as_const() {
            Some(1) => x,
            _ => self.nest.push(NestOp::Reduce(op, x), self.dtype(x))?,
        };
        if f == Reduce::Mean {
            let count = self.size(count, self.dtype(y))?;
            y = self.bin(BinaryOp::Div, y, count)?;
        }
        self.cast(y, out)
    }
}
