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

pub fn one_plus_tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let power = a.exp2(a.mul(x, a.float(-2.0 * c::LOG2E)));
    a.div(a.float(2.0), a.add(power, a.float(1.0)))
}
