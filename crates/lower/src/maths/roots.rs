//! rsqrt.

use super::arith::Arith;

/// `sqrt(1 / x)` rather than `1 / sqrt(x)`: the root halves the error of the quotient. The argument is moved away from both ends of the range first,
/// by a power of four, because the quotient of a large number is denormal and that of a denormal infinite.
pub fn rsqrt<A: Arith>(a: &A, x: A::F) -> A::F {
    let small = a.lt(x, a.float(1.0));
    let up = |exponent: i32| a.float(2f32.powi(exponent));
    let quotient = a.div(a.float(1.0), a.mul(x, a.select(small, up(64), up(-64))));
    let y = a.mul(a.sqrt(quotient), a.select(small, up(32), up(-32)));
    // a zero's quotient is the infinity of its sign, and so is its result
    let other = a.select(a.eq(x, a.float(0.0)), quotient, a.float(f32::NAN));
    a.select(a.lt(a.float(0.0), x), y, other)
}
