//! f32 `sigmoid` and `tanh` on machines that have powers of two and reciprocals of their own, good to 2 ulp each.
//!
//! The power's error is weighed down before it reaches the result: by `e / (1 + e)`, at most a half, for a sigmoid of what is positive; by 0.23 and less for a `tanh` beyond the polynomial's end. A sigmoid of what is negative is the power itself in the end, whose argument is therefore kept as a float and
//! what it lost. Half the instructions of what every machine computes to the same bits ([`super::exponential`]).

use super::arith::Arith;
use super::coefficients as c;
use super::near::summand;

/// With `e = e^-|x|`: `e / (1 + e)` for negative `x`, `1 / (1 + e)` for positive. Zero where the result would be no normal number.
pub fn sigmoid<A: Arith>(a: &A, x: A::F) -> A::F {
    let one = a.float(1.0);
    let minus = a.of_bits(a.or(a.bits(x), a.int(i32::MIN)));
    let power = summand(a, minus);
    let inverse = a.inverse(a.add(power, one));
    let above = a.select(a.lt(x, a.float(0.0)), power, one);
    a.mul(above, inverse)
}

/// An odd polynomial up to 0.95, then `1 - 2 / (1 + e^2x)`.
pub fn tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.min(a.abs(x), a.float(9.5));
    let z = a.mul(y, y);
    let near = a.fma(a.mul(z, y), a.poly(z, &c::TANH), y);
    let power = a.near_exp2(a.mul(y, a.float(2.0 * c::LOG2E)));
    let half = a.float(0.5);
    let far = a.sub(a.float(1.0), a.near_recip(a.fma(power, half, half)));
    a.with_sign(a.select(a.lt(y, a.float(0.95)), near, far), x)
}
