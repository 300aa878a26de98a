//! Functions of elements that the vocabulary does not have, composed: in the formulas that lose no digits where the plain ones do, computed in at least f32 and rounded once.

use crate::call::{Call, Operand, apply};
use crate::recipe::Build::{Floats, Fractions, Nodes};
use crate::recipe::{Recording, recipe, recipes, wide};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, Scalar, ensure};
use oxyfuel_graph::special::Formula;
use oxyfuel_graph::{Binary, Op, Operand as Value, Unary, ValueId};
use std::f64::consts::{LOG2_E, PI};

recipes! {
    /// More functions of elements. Names that end in `_` overwrite the tensor; operands other than this one are tensors or numbers.
    impl {
        /// `x * x`.
        square / square_: [] () = Nodes(|r| {
            let x = r.tensor(0)?;
            r.b.mul(x, x)
        });
        /// The part behind the point, with the sign of x.
        frac / frac_: [] () = Floats(|f, v, _| {
            let whole = f.trunc(v[0])?;
            f.sub(v[0], whole)
        });
        /// True where x is neither NaN nor an infinity.
        isfinite: [] () = Nodes(|r| {
            let x = r.tensor(0)?;
            let (nan, inf) = (r.b.unary(Unary::IsNan, x)?, r.b.unary(Unary::IsInf, x)?);
            let either = r.b.logical_or(nan, inf)?;
            r.b.unary(Unary::LogicalNot, either)
        });
        /// True where x is the positive infinity.
        isposinf: [] () = Nodes(|r| is_this(r, f64::INFINITY));
        /// True where x is the negative infinity.
        isneginf: [] () = Nodes(|r| is_this(r, f64::NEG_INFINITY));
        /// True where x is below 0 or the negative zero. Of NaN false.
        signbit: [] () = Nodes(|r| {
            let x = r.tensor(0)?;
            negative(r, x)
        });
        /// `|a|` with the sign of b; of integers a float.
        copysign / copysign_: [other] () = Nodes(copysign);
        /// The larger; a number wins over NaN.
        fmax: [other] () = Nodes(|r| number_wins(r, Binary::Maximum));
        /// The smaller; a number wins over NaN.
        fmin: [other] () = Nodes(|r| number_wins(r, Binary::Minimum));
        /// `sqrt(a^2 + b^2)` without overflow on the way.
        hypot / hypot_: [other] () = Fractions(hypot);
        /// `a log(b)`, and 0 where a is 0 and b is not NaN.
        xlogy / xlogy_: [other] () = Fractions(|f, v, _| {
            let log = f.log(v[1])?;
            or_zero(f, v, log)
        });
        /// `a log(1 + b)`, and 0 where a is 0 and b is not NaN.
        xlog1py: [other] () = Fractions(|f, v, _| {
            let log = f.log1p(v[1])?;
            or_zero(f, v, log)
        });
        /// `log(exp(a) + exp(b))` without overflow on the way.
        logaddexp: [other] () = Floats(|f, v, _| log_of_sum(f, v, |f, x| f.exp(x), 1.0));
        /// `log2(2^a + 2^b)` without overflow on the way.
        logaddexp2: [other] () = Floats(|f, v, _| log_of_sum(f, v, |f, x| f.exp2(x), LOG2_E));
        /// `a * 2^b`.
        ldexp / ldexp_: [other] () = Fractions(|f, v, _| {
            let power = f.exp2(v[1])?;
            f.mul(v[0], power)
        });
        /// 0 below 0, 1 above, and `values` at 0.
        heaviside / heaviside_: [values] () = Nodes(|r| {
            let (x, values) = (r.operand(0)?, r.operand(1)?);
            let dtype = r.b.common_dtype(&[x, values])?;
            let x = r.tensor(0)?;
            let (at, above) = (r.b.eq(x, 0)?, r.b.gt(x, 0)?);
            let step = r.b.cast(above, dtype)?;
            let y = r.b.where_(at, values, step)?;
            r.b.cast(y, dtype)
        });
        /// `sin(pi x) / (pi x)`, 1 at 0.
        sinc / sinc_: [] () = Fractions(|f, v, _| {
            let turned = f.mul(v[0], PI)?;
            let sine = f.sin(turned)?;
            let ratio = f.div(sine, turned)?;
            let zero = f.eq(v[0], 0.0)?;
            f.choose(zero, 1.0, ratio)
        });
        /// Degrees as radians.
        deg2rad / deg2rad_: [] () = Fractions(|f, v, _| f.mul(v[0], PI / 180.0));
        /// Radians as degrees.
        rad2deg / rad2deg_: [] () = Fractions(|f, v, _| f.mul(v[0], 180.0 / PI));
        /// 0 of a number above 0 or 0, pi below.
        angle: [] () = Fractions(|f, v, _| {
            let below = f.lt(v[0], 0.0)?;
            let angle = f.choose(below, PI, 0.0)?;
            let nan = f.is_nan(v[0])?;
            f.choose(nan, v[0], angle)
        });
        /// The nearest number of so many decimals, ties to even; of fewer than 0, of so many zeros before the point.
        round_decimals: [] (decimals: i64) = Nodes(round_decimals);
        /// The least common multiple of integers.
        lcm: [other] () = Nodes(lcm);
        /// At `weight` (a tensor or a number) of the way from this tensor to `end`.
        lerp / lerp_: [end, weight] () = Floats(|f, v, _| {
            let (start, end, weight) = (v[0], v[1], v[2]);
            let distance = f.sub(end, start)?;
            let step = f.mul(weight, distance)?;
            let from_start = f.add(start, step)?;
            let rest = f.sub(1.0, weight)?;
            let back = f.mul(distance, rest)?;
            let from_end = f.sub(end, back)?;
            let size = f.abs(weight)?;
            let near = f.lt(size, 0.5)?;
            f.choose(near, from_start, from_end)
        });
        /// `x + value * a * b`.
        addcmul / addcmul_: [a, b] (value: f64) = Nodes(|r| plus_of_two(r, Binary::Mul));
        /// `x + value * a / b`, of floats.
        addcdiv / addcdiv_: [a, b] (value: f64) = Nodes(|r| plus_of_two(r, Binary::Div));
        /// NaN and the infinities replaced by numbers.
        nan_to_num / nan_to_num_: [] (nan: f64, posinf: f64, neginf: f64) = Nodes(|r| {
            let x = r.tensor(0)?;
            if !r.dtype(x).is_float() {
                return Ok(x);
            }
            let numbers = [r.number(0)?, r.number(1)?, r.number(2)?];
            let is_nan = r.b.unary(Unary::IsNan, x)?;
            let mut y = r.b.where_(is_nan, numbers[0], x)?;
            for (infinity, number) in [(f64::INFINITY, numbers[1]), (f64::NEG_INFINITY, numbers[2])] {
                let is = r.b.eq(x, infinity)?;
                y = r.b.where_(is, number, y)?;
            }
            r.b.cast(y, r.dtype(x))
        });
        /// No less than `low`, a tensor or a number.
        clamp_min / clamp_min_: [low] () = Nodes(|r| {
            let (x, low) = (r.operand(0)?, r.operand(1)?);
            r.b.maximum(x, low)
        });
        /// No more than `high`, a tensor or a number.
        clamp_max / clamp_max_: [high] () = Nodes(|r| {
            let (x, high) = (r.operand(0)?, r.operand(1)?);
            r.b.minimum(x, high)
        });
        /// The next float of this type in the direction of `other`; of f32, f16 and bf16.
        nextafter: [other] () = Nodes(|r| {
            let [a, b] = pair(r)?;
            oxyfuel_graph::special::nextafter(r.b, a, b)
        });
    }
}

/// Parts, polynomials, and choices by a mask.
impl Tensor {
    /// A fraction in [1/2, 1) and the power of two (an i32) that it is multiplied with; of f32, f16 and bf16.
    #[track_caller]
    pub fn frexp(&self) -> (Tensor, Tensor) {
        let fraction = Nodes(|r| {
            let x = r.tensor(0)?;
            Ok(oxyfuel_graph::special::frexp(r.b, x)?[0])
        });
        let power = Nodes(|r| {
            let x = r.tensor(0)?;
            Ok(oxyfuel_graph::special::frexp(r.b, x)?[1])
        });
        (
            recipe("frexp_fraction", &[self.into()], &[], fraction),
            recipe("frexp_power", &[self.into()], &[], power),
        )
    }

    /// `1 / 2 (1 + erf(x / sqrt 2))`: the normal distribution function.
    #[track_caller]
    pub fn ndtr(&self) -> Tensor {
        let ndtr = Fractions(|f, v, _| {
            let scaled = f.mul(v[0], -std::f64::consts::FRAC_1_SQRT_2)?;
            let tail = f.erfc(scaled)?;
            f.mul(tail, 0.5)
        });
        recipe("ndtr", &[self.into()], &[], ndtr)
    }

    /// `other - alpha * self`.
    #[track_caller]
    pub fn rsub<'a>(&self, other: impl Into<Operand<'a>>, alpha: f64) -> Tensor {
        let scaled = if alpha == 1.0 {
            self.clone()
        } else {
            self.mul(alpha)
        };
        apply(Call::Binary(Binary::Sub), &[other.into(), (&scaled).into()])
    }

    /// Whether both are within `atol + rtol * |b|` of each other; equal infinities are, and NaN is where `equal_nan` says so. PyTorch's defaults are 1e-5 and 1e-8.
    #[track_caller]
    pub fn isclose(&self, other: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Tensor {
        let same = self.eq(other);
        let room = other.abs().mul(rtol).add(atol);
        let near = self.sub(other).abs().le(&room);
        let mut close = same.logical_or(&near.logical_and(&other.isfinite()));
        if equal_nan {
            close = close.logical_or(&self.isnan().logical_and(&other.isnan()));
        }
        close
    }
}

/// Two operands in their common dtype.
fn pair(r: &mut Recording<'_>) -> Result<[ValueId; 2]> {
    let operands = [r.operand(0)?, r.operand(1)?];
    let mut dtype = r.b.common_dtype(&operands)?;
    if dtype.is_bool() {
        dtype = DType::I64;
    }
    pair_as(r, dtype)
}

fn pair_as(r: &mut Recording<'_>, dtype: DType) -> Result<[ValueId; 2]> {
    let device = r.b.ty(r.tensor(0)?).device;
    let mut values = [r.tensor(0)?; 2];
    for (i, value) in values.iter_mut().enumerate() {
        *value = match r.operand(i)? {
            Value::Value(v) => r.b.cast(v, dtype)?,
            Value::Number(n) => r.b.full(n, vec![], dtype, device)?,
        };
    }
    Ok(values)
}

fn is_this(r: &mut Recording<'_>, number: f64) -> Result<ValueId> {
    let x = r.tensor(0)?;
    match r.dtype(x).is_float() {
        true => r.b.eq(x, number),
        false => {
            let ty = r.b.ty(x).clone();
            r.b.full(Scalar::B(false), ty.shape, DType::Bool, ty.device)
        }
    }
}

/// Zeros tell their sign by their reciprocals.
fn negative(r: &mut Recording<'_>, x: ValueId) -> Result<ValueId> {
    let below = r.b.lt(x, 0)?;
    if !r.dtype(x).is_float() {
        return Ok(below);
    }
    let inverse = r.b.reciprocal(x)?;
    let below_inverse = r.b.lt(inverse, 0)?;
    r.b.logical_or(below, below_inverse)
}

fn copysign(r: &mut Recording<'_>) -> Result<ValueId> {
    let operands = [r.operand(0)?, r.operand(1)?];
    let dtype = match r.b.common_dtype(&operands)? {
        dtype if dtype.is_float() => dtype,
        _ => DType::F32,
    };
    let [a, b] = pair_as(r, dtype)?;
    let below = negative(r, b)?;
    let size = r.b.abs(a)?;
    let minus = r.b.neg(size)?;
    r.b.where_(below, minus, size)
}

fn number_wins(r: &mut Recording<'_>, f: Binary) -> Result<ValueId> {
    let [a, b] = pair(r)?;
    let best = r.b.emit(Op::Binary(f), &[a, b])?;
    if !r.dtype(best).is_float() {
        return Ok(best);
    }
    let (a_nan, b_nan) = (r.b.unary(Unary::IsNan, a)?, r.b.unary(Unary::IsNan, b)?);
    let or_a = r.b.where_(b_nan, a, best)?;
    r.b.where_(a_nan, b, or_a)
}

/// Squares of f32 in f64 do not overflow; those of f64 are scaled by the larger one.
fn hypot(f: &mut Formula<'_>, v: &[ValueId], _: &[f64]) -> Result<ValueId> {
    let (a, b) = (f.abs(v[0])?, f.abs(v[1])?);
    let infinite = (f.is_inf(a)?, f.is_inf(b)?);
    let infinite = f.or(infinite.0, infinite.1)?;
    let (large, small) = (f.max(a, b)?, f.min(a, b)?);
    let none = f.eq(large, 0.0)?;
    let ratio = f.div(small, large)?;
    let square = f.square(ratio)?;
    let sum = f.add(square, 1.0)?;
    let root = f.sqrt(sum)?;
    let length = f.mul(large, root)?;
    let length = f.choose(none, 0.0, length)?;
    f.choose(infinite, f64::INFINITY, length)
}

/// `v[0] * log`, 0 where `v[0]` is and `v[1]` is not NaN.
fn or_zero(f: &mut Formula<'_>, v: &[ValueId], log: ValueId) -> Result<ValueId> {
    let product = f.mul(v[0], log)?;
    let none = f.eq(v[0], 0.0)?;
    let value = f.choose(none, 0.0, product)?;
    let nan = f.is_nan(v[1])?;
    f.choose(nan, v[1], value)
}

/// The logarithm of a sum of two powers, from the larger; `scale` is the logarithm of e.
fn log_of_sum(
    f: &mut Formula<'_>,
    v: &[ValueId],
    power: fn(&mut Formula<'_>, ValueId) -> Result<ValueId>,
    scale: f64,
) -> Result<ValueId> {
    let (a, b) = (v[0], v[1]);
    let larger = f.max(a, b)?;
    let difference = f.sub(a, b)?;
    let distance = f.abs(difference)?;
    let below = f.neg(distance)?;
    let ratio = power(f, below)?;
    let log = f.log1p(ratio)?;
    let more = f.mul(log, scale)?;
    let sum = f.add(larger, more)?;
    // Two infinities of one sign have no difference.
    let infinite = f.is_inf(a)?;
    let same = f.eq(a, b)?;
    let endless = f.and(infinite, same)?;
    f.choose(endless, a, sum)
}

/// Each step is rounded to the dtype, as PyTorch's.
fn round_decimals(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, decimals) = (r.tensor(0)?, r.int(0)?);
    if decimals == 0 || !r.dtype(x).is_float() {
        return r.b.unary(Unary::Round, x);
    }
    let ty = r.b.ty(x).clone();
    let power = 10f64.powi(i32::try_from(decimals.unsigned_abs().min(400)).unwrap_or(400));
    let power = r.b.full(Scalar::F(power), vec![], ty.dtype, ty.device)?;
    let (there, back) = match decimals > 0 {
        true => (Binary::Mul, Binary::Div),
        false => (Binary::Div, Binary::Mul),
    };
    let scaled = r.b.emit(Op::Binary(there), &[x, power])?;
    let whole = r.b.unary(Unary::Round, scaled)?;
    r.b.emit(Op::Binary(back), &[whole, power])
}

fn lcm(r: &mut Recording<'_>) -> Result<ValueId> {
    let [a, b] = pair(r)?;
    let divisor = oxyfuel_graph::special::gcd(r.b, a, b)?;
    // Divided by zero an integer is zero.
    let part = r.b.emit(Op::Binary(Binary::DivTrunc), &[a, divisor])?;
    let product = r.b.emit(Op::Binary(Binary::Mul), &[part, b])?;
    match r.dtype(product).is_signed() {
        true => r.b.abs(product),
        false => Ok(product),
    }
}

/// `x + value * a (* or /) b`.
fn plus_of_two(r: &mut Recording<'_>, f: Binary) -> Result<ValueId> {
    let operands = [r.operand(0)?, r.operand(1)?, r.operand(2)?];
    let out = r.b.common_dtype(&operands)?;
    let value = r.float(0)?;
    ensure!(
        out.is_float() || f == Binary::Mul && value.fract() == 0.0,
        UnsupportedDType,
        "{}: of {out}, which holds no fractions",
        r.name
    );
    let (dtype, device) = (wide(out), r.b.ty(r.tensor(0)?).device);
    let mut values = vec![];
    for operand in operands {
        values.push(match operand {
            Value::Value(v) => r.b.cast(v, dtype)?,
            Value::Number(n) => r.b.full(n, vec![], dtype, device)?,
        });
    }
    let mut a = values[1];
    if value != 1.0 {
        let value = r.b.full(Scalar::F(value), vec![], dtype, device)?;
        a = r.b.emit(Op::Binary(Binary::Mul), &[value, a])?;
    }
    let term = r.b.emit(Op::Binary(f), &[a, values[2]])?;
    let sum = r.b.emit(Op::Binary(Binary::Add), &[values[0], term])?;
    r.b.cast(sum, out)
}
