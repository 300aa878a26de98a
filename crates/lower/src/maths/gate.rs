//! `1 + erf(x)` and `1 + tanh(x)`, which open the gates of gelus, on machines that have a power of two of their own.
//!
//! The first is `erfc(-x)`: one polynomial for the logarithm of `erfc` at the size of `x`, whatever its size, and one power. Far out the polynomial falls without end, and the power is zero. The second is
//! `2 / (1 + e^-2x)`. Below zero nothing cancels, so that the tails of gelus keep their digits.

use super::arith::Arith;
use super::coefficients as c;

pub fn one_plus_erf<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.abs(x);
    let rest = a.exp2(a.mul(a.poly(y, &c::LOG2_ERFC), y));
    let below = a.lt(x, a.float(0.0));
    a.select(below, rest, a.sub(a.float(2.0), rest))
}

/// From this exponent on the second gate is shut: its reciprocals would be no normal numbers.
const SHUT: f32 = 125.0;

pub fn one_plus_tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let exponent = a.mul(x, a.float(-2.0 * c::LOG2E));
    let power = a.near_exp2(a.min(exponent, a.float(SHUT)));
    let half = a.float(0.5);
    let open = a.inverse(a.fma(power, half, half));
    a.select(a.lt(a.float(SHUT), exponent), a.float(0.0), open)
}
