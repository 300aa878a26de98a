//! The true values in f64, and distances from them in ulps of f32.

use oxyfuel_kernel::UnaryOp;

/// How a function answers to the sign of its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Symmetry {
    None,
    Odd,
    Even,
}

pub fn symmetry(op: UnaryOp) -> Symmetry {
    match op {
        UnaryOp::Sin | UnaryOp::Tanh | UnaryOp::Erf => Symmetry::Odd,
        UnaryOp::Cos => Symmetry::Even,
        _ => Symmetry::None,
    }
}

/// The function in f64, good to 1e-15.
pub fn truth(op: UnaryOp) -> fn(f64) -> f64 {
    match op {
        UnaryOp::Exp => f64::exp,
        UnaryOp::Exp2 => f64::exp2,
        UnaryOp::Expm1 => f64::exp_m1,
        UnaryOp::Log => f64::ln,
        UnaryOp::Log2 => f64::log2,
        UnaryOp::Log1p => f64::ln_1p,
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Erf => erf,
        UnaryOp::Sigmoid => |x| {
            if x < 0.0 {
                x.exp() / (1.0 + x.exp())
            } else {
                1.0 / (1.0 + (-x).exp())
            }
        },
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        _ => panic!("{} is no transcendental op", op.name()),
    }
}

/// A series without cancellation, then the continued fraction of the complement.
pub fn erf(x: f64) -> f64 {
    use std::f64::consts::{FRAC_2_SQRT_PI, PI};
    let a = x.abs();
    if a < 1e-8 {
        x * FRAC_2_SQRT_PI
    } else if a < 3.0 {
        let (z, mut term, mut sum, mut n) = (a * a, 1.0, 1.0, 1.0);
        while term > 1e-18 * sum {
            term *= 2.0 * z / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        x * sum * (-z).exp() * FRAC_2_SQRT_PI
    } else if a < 7.0 {
        let tail = (1..60)
            .rev()
            .fold(a, |tail, k| a + f64::from(k) / 2.0 / tail);
        (1.0 - (-a * a).exp() / tail / PI.sqrt()).copysign(x)
    } else if a.is_nan() {
        x
    } else {
        1f64.copysign(x)
    }
}

/// `|got - want|` in units of the last place of an f32 of `want`'s size; infinite where NaN, infinity or a zero's sign differ.
pub fn ulp_error(got: f32, want: f64) -> f64 {
    let two = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
    let wrong = |ok: bool| if ok { 0.0 } else { f64::INFINITY };
    if want.is_nan() || got.is_nan() {
        return wrong(want.is_nan() && got.is_nan());
    }
    if want == 0.0 {
        return wrong(got == 0.0 && got.is_sign_negative() == want.is_sign_negative());
    }
    // from here on, rounding to nearest overflows
    if want.abs() >= f64::from(f32::MAX) + two(103) {
        return wrong(got.is_infinite() && (got > 0.0) == (want > 0.0));
    }
    let got = if got.is_infinite() {
        two(128).copysign(f64::from(got))
    } else {
        f64::from(got)
    };
    let exponent = ((want.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (got - want).abs() / two(exponent.max(-126) - 23)
}
