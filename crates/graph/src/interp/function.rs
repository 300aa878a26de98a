//! The scalar functions of the unary and binary families.

use super::philox;
use crate::op::{Binary, Unary};
use oxyfuel_base::DType;
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

/// On a float; the caller rounds.
pub(super) fn float_unary(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        Unary::Relu => {
            if x.is_nan() || x > 0.0 {
                x
            } else {
                0.0
            }
        }
        // erfc keeps the digits that 1 + erf loses for negative x.
        Unary::Gelu => 0.5 * x * erfc(-x * FRAC_1_SQRT_2),
        Unary::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Tanh => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Log10 => x.log10(),
        Unary::Erf => erf(x),
        Unary::Erfc => erfc(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => asinh(x),
        Unary::Acosh => acosh(x),
        Unary::Atanh => x.atanh(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::LogicalNot => f64::from(u8::from(x == 0.0)),
        Unary::IsNan => f64::from(u8::from(x.is_nan())),
        Unary::IsInf => f64::from(u8::from(x.is_infinite())),
        // The table gives these to integers alone; here the value they would leave.
        Unary::BitwiseNot => x,
    }
}

/// On an integer or bool; the caller wraps.
pub(super) fn integer_unary(f: Unary, x: i128, dtype: DType) -> i128 {
    match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => x.signum(),
        Unary::Relu => x.max(0),
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => x,
        Unary::LogicalNot => i128::from(x == 0),
        Unary::BitwiseNot if dtype.is_bool() => i128::from(x == 0),
        Unary::BitwiseNot => !x,
        Unary::IsNan | Unary::IsInf => 0,
        // The table gives these to floats alone; the builder casts first.
        Unary::Gelu
        | Unary::GeluTanh
        | Unary::Silu
        | Unary::Sigmoid
        | Unary::Tanh
        | Unary::Exp
        | Unary::Exp2 => x,
        Unary::Expm1 | Unary::Log | Unary::Log2 | Unary::Log1p | Unary::Sqrt | Unary::Rsqrt => x,
        Unary::Reciprocal | Unary::Log10 | Unary::Erf | Unary::Erfc => x,
        Unary::Sin | Unary::Cos | Unary::Tan | Unary::Asin | Unary::Acos | Unary::Atan => x,
        Unary::Sinh | Unary::Cosh | Unary::Asinh | Unary::Acosh | Unary::Atanh => x,
    }
}

/// On floats; the caller rounds. Where a definition has several steps, each is rounded to the dtype by `step`, as eager PyTorch does.
pub(super) fn float_binary(f: Binary, a: f64, b: f64, step: impl Fn(f64) -> f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::DivFloor => floor_divide(a, b, step),
        Binary::DivTrunc => step(a / b).trunc(),
        Binary::Remainder => {
            let rest = a % b;
            if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
                rest + b
            } else {
                rest
            }
        }
        Binary::Fmod => a % b,
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Maximum => extreme(a, b, a > b),
        Binary::Minimum => extreme(a, b, a < b),
        // The table gives these to integers alone.
        Binary::BitwiseAnd
        | Binary::BitwiseOr
        | Binary::BitwiseXor
        | Binary::ShiftLeft
        | Binary::ShiftRight
        | Binary::Philox => a,
    }
}

fn extreme(a: f64, b: f64, first: bool) -> f64 {
    if a.is_nan() || (first && !b.is_nan()) {
        a
    } else {
        b
    }
}

/// The quotient is made exact by taking the remainder off first, so that rounding cannot lift it over the next integer.
fn floor_divide(a: f64, b: f64, step: impl Fn(f64) -> f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let mut quotient = step(step(a - rest) / b);
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
        quotient = step(quotient - 1.0);
    }
    if quotient == 0.0 {
        return 0.0f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    }
}

/// On integers or bools; the caller wraps.
pub(super) fn integer_binary(f: Binary, a: i128, b: i128, dtype: DType) -> i128 {
    let bits = i128::from(dtype.bits());
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a.wrapping_mul(b),
        Binary::DivFloor if b != 0 => a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0),
        Binary::DivTrunc if b != 0 => a / b,
        Binary::Remainder if b != 0 => ((a % b) + b) % b,
        Binary::Fmod if b != 0 => a % b,
        Binary::DivFloor | Binary::DivTrunc | Binary::Remainder | Binary::Fmod => 0,
        Binary::Pow => integer_power(a, b),
        Binary::Maximum => a.max(b),
        Binary::Minimum => a.min(b),
        Binary::BitwiseAnd => a & b,
        Binary::BitwiseOr => a | b,
        Binary::BitwiseXor => a ^ b,
        Binary::ShiftLeft if (0..bits).contains(&b) => {
            a.wrapping_shl(u32::try_from(b).unwrap_or(0))
        }
        Binary::ShiftLeft => 0,
        Binary::ShiftRight => a >> if (0..bits).contains(&b) { b } else { bits },
        Binary::Philox => philox::two_words(a, b),
        // The table gives these to floats alone.
        Binary::Div | Binary::Atan2 => 0,
    }
}

fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut out) = (base, exponent, 1i128);
    while exponent > 0 {
        if exponent & 1 == 1 {
            out = out.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    out
}

/// By `log1p`, which keeps the digits of small arguments; far out the square would overflow.
fn asinh(x: f64) -> f64 {
    let size = x.abs();
    let y = if size > 1e9 {
        size.ln() + LN_2
    } else {
        (size + size * size / (1.0 + (size * size + 1.0).sqrt())).ln_1p()
    };
    y.copysign(x)
}

fn acosh(x: f64) -> f64 {
    if x < 1.0 {
        f64::NAN
    } else if x > 1e9 {
        x.ln() + LN_2
    } else {
        let above = x - 1.0;
        (above + (above * (above + 2.0)).sqrt()).ln_1p()
    }
}

/// The error function: a series of positive terms near 0, the complement elsewhere.
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() < 2.0 {
        erf_series(x)
    } else {
        (1.0 - erfc_fraction(x.abs())).copysign(x)
    }
}

/// 1 - erf(x) without cancellation.
pub(super) fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() < 2.0 {
        1.0 - erf_series(x)
    } else if x > 0.0 {
        erfc_fraction(x)
    } else {
        2.0 - erfc_fraction(-x)
    }
}

/// 2/sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n+1) / (2n+1)!!
fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 && n < 400.0 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// The continued fraction of erfc for x >= 2, evaluated from the far end.
fn erfc_fraction(x: f64) -> f64 {
    if x > 30.0 {
        return 0.0;
    }
    let mut tail = 0.0;
    for k in (1..=120).rev() {
        tail = f64::from(k) / 2.0 / (x + tail);
    }
    (-x * x).exp() / (PI.sqrt() * (x + tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_agrees_with_tables() {
        // Values of Abramowitz and Stegun, table 7.1, and of erfc further out.
        let table = [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.5, 0.999_593_047_982_555),
        ];
        for (x, want) in table {
            assert!((erf(x) - want).abs() < 4e-16, "{x}: {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erfc(3.0) / 2.209_049_699_858_544e-5 - 1.0).abs() < 1e-14);
        assert!((erfc(6.0) / 2.151_973_671_249_891e-17 - 1.0).abs() < 1e-13);
        assert!((erf_series(2.0) - (1.0 - erfc_fraction(2.0))).abs() < 1e-15);
        assert_eq!(
            (erf(f64::INFINITY), erf(f64::NEG_INFINITY), erf(0.0)),
            (1.0, -1.0, 0.0)
        );
    }

    #[test]
    fn integer_division_rounds_down() {
        for (a, b, q, r) in [
            (7, 2, 3, 1),
            (-7, 2, -4, 1),
            (7, -2, -4, -1),
            (-7, -2, 3, -1),
            (6, -2, -3, 0),
            (5, 0, 0, 0),
        ] {
            assert_eq!(
                integer_binary(Binary::DivFloor, a, b, DType::I32),
                q,
                "{a} // {b}"
            );
            assert_eq!(
                integer_binary(Binary::Remainder, a, b, DType::I32),
                r,
                "{a} % {b}"
            );
        }
    }
}
