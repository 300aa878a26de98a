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

/// The same from the machine's own estimate and one step of Newton's: `y + y (1 - x y^2) / 2`, where the product `x y` is kept as a float and its rounding error. Where the estimate is zero or infinite it is the result.
pub fn rsqrt_of_estimate<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.near_rsqrt(x);
    let root = a.mul(x, y);
    let lost = a.fma(x, y, a.neg(root));
    let rest = a.fma(a.neg(root), y, a.float(1.0));
    let rest = a.fma(a.neg(lost), y, rest);
    let better = a.fma(a.mul(y, a.float(0.5)), rest, y);
    a.select(a.lt(a.abs(rest), a.float(0.5)), better, y)
}
