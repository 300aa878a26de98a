//! Functions whose results are rounded to 16 bits before anything else can tell their bits apart, on machines that have powers of two and reciprocals of their own.
//!
//! Half a unit in the last place of an f16 is 2^-12 of a number or more, of a bf16 2^-9. What stands here is within 2^-17 of the true value (a test says so of the formulas, and the machine's own functions add
//! less than 2^-20), so that a rounded result is at most 0.52 units from it where a perfect one is at most 0.5. Denormal results are right too.

use super::arith::Arith;
use super::coefficients as c;

pub fn exp<A: Arith>(a: &A, x: A::F) -> A::F {
    a.exp2(a.mul(x, a.float(c::LOG2E)))
}

/// `e^x` of what is at most zero, as a term of a sum: within 3 ulp, and zero below the normal numbers. The product with `log2(e)` is kept as a float and what it lost.
pub fn summand<A: Arith>(a: &A, x: A::F) -> A::F {
    let x = a.max(x, a.float(-104.0));
    let product = a.mul(x, a.float(c::LOG2E));
    let lost = a.fma(x, a.float(c::LOG2E), a.neg(product));
    let lost = a.fma(x, a.float(c::LOG2E_LO), lost);
    let power = a.near_exp2(product);
    a.fma(a.mul(power, a.float(c::LN2)), lost, power)
}

/// `2^DOWN` times smaller, the denominator of a small result is no infinity and its reciprocal no denormal number; the last product makes it one.
const DOWN: f32 = 32.0;

/// `scale / (1 + 2^(x slope))`.
fn inverse_of_one_and_power<A: Arith>(a: &A, x: A::F, slope: f32, scale: f32) -> A::F {
    let down = (-DOWN).exp2();
    let power = a.near_exp2(a.fma(x, a.float(slope), a.float(-DOWN)));
    let inverse = a.near_recip(a.add(power, a.float(down)));
    a.mul(inverse, a.float(scale * down))
}

pub fn sigmoid<A: Arith>(a: &A, x: A::F) -> A::F {
    inverse_of_one_and_power(a, x, -c::LOG2E, 1.0)
}

/// Up to here two terms of the series do.
const NEAR_ZERO: f32 = 0.0625;

/// `1 - 2 / (1 + e^2x)`, which cancels near zero: there `x (1 - x^2 / 3)`.
pub fn tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let one = a.float(1.0);
    let power = a.near_exp2(a.mul(x, a.float(2.0 * c::LOG2E)));
    let far = a.fma(a.near_recip(a.add(power, one)), a.float(-2.0), one);
    let series = a.fma(a.mul(x, x), a.float(-1.0 / 3.0), one);
    let is_near = a.lt(a.abs(x), a.float(NEAR_ZERO));
    a.select(is_near, a.mul(x, series), far)
}

/// The gate of the other gelu, `2 / (1 + e^-2x)`.
pub fn one_plus_tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    inverse_of_one_and_power(a, x, -2.0 * c::LOG2E, 2.0)
}
