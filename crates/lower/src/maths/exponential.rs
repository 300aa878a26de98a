//! exp, exp2, expm1 and what is made of them: sigmoid and tanh.
//!
//! All share one reduction, `x = k ln 2 + r`, where `k` is found by adding a large number: its low mantissa bits then hold `k + 127`, so a shift
//! by 23 turns the very same register into the float `2^k`.

use super::arith::Arith;
use super::coefficients as c;

/// `1.5 * 2^23 + 127`: a float near it has an ulp of 1, and its low byte is an f32 exponent field.
const SHIFTER: f32 = 12_583_039.0;

/// With this added to the shifter the power comes out negative: the bit above the exponent field is the sign.
pub(super) const NEGATIVE: f32 = 256.0;

/// `(k, 2^(k + bias))` with `k` the integer nearest to `x * scale`. Holds for `-126 <= k + bias <= 127`.
pub(super) fn nearest_power<A: Arith>(a: &A, x: A::F, scale: f32, bias: f32) -> (A::F, A::F) {
    let shifter = a.float(SHIFTER + bias);
    let shifted = a.fma(x, a.float(scale), shifter);
    let k = a.sub(shifted, shifter);
    (k, a.of_bits(a.shl(a.bits(shifted), 23)))
}

/// `e^r - 1 = r + r^2 q(r)`.
pub(super) fn expm1_core<A: Arith>(a: &A, r: A::F, q: &[f32]) -> A::F {
    a.fma(a.mul(r, r), a.poly(r, q), r)
}

/// `(k, s, t)` with `k` the integer nearest to `x * scale` and `s * t = 2^k`: two factors, because `2^k` leaves the range of f32 at both ends before the
/// results do. Multiplying by one and then the other is exact until the last rounding. Holds for `-252 <= k <= 254`.
pub(super) fn nearest_power_in_two<A: Arith>(a: &A, x: A::F, scale: f32) -> (A::F, A::F, A::F) {
    let shifter = a.float(SHIFTER + 127.0);
    let shifted = a.fma(x, a.float(scale), shifter);
    let k = a.sub(shifted, shifter);
    let half = a.bits(a.fma(x, a.float(scale / 2.0), a.float(SHIFTER)));
    let rest = a.isub(a.bits(shifted), half);
    (k, a.of_bits(a.shl(half, 23)), a.of_bits(a.shl(rest, 23)))
}

/// `x - k ln 2`.
fn reduce<A: Arith>(a: &A, x: A::F, k: A::F) -> A::F {
    let r = a.fma(k, a.float(-c::LN2_HI), x);
    a.fma(k, a.float(-c::LN2_LO), r)
}

/// `e^(x - k ln 2) - 1` as a sum of two: the exact leading part of the reduced argument, and the rest.
fn expm1_parts<A: Arith>(a: &A, x: A::F, k: A::F, q: &[f32]) -> (A::F, A::F) {
    let high = a.fma(k, a.float(-c::LN2_HI), x);
    let low = a.mul(k, a.float(-c::LN2_LO));
    let r = a.add(high, low);
    (high, a.fma(a.mul(r, r), a.poly(r, q), low))
}

pub fn exp<A: Arith>(a: &A, x: A::F) -> A::F {
    exp_bounded(a, a.min(a.max(x, a.float(-104.0)), a.float(89.0)))
}

/// `exp` of what cannot overflow: the same bits without the bound above. NaN stays NaN.
pub fn exp_at_most_zero<A: Arith>(a: &A, x: A::F) -> A::F {
    exp_bounded(a, a.max(x, a.float(-104.0)))
}

/// `2^x` within 3 ulp, where results below the normal numbers are wanted as zero. NaN stays NaN.
pub fn near_exp2<A: Arith>(a: &A, x: A::F) -> A::F {
    let least = a.float(-126.0);
    let y = a.min(a.max(x, least), a.float(128.0));
    // Rounded down, but for what rounding does to the ends: what is behind the point is then between 0 and 1, -126 is no -127 and 2^128 comes of 128 alone.
    let (k, scale) = nearest_power(a, a.sub(y, a.float(0.499_99)), 1.0, 0.0);
    let f = a.sub(y, k);
    let p = a.fma(a.poly(f, &c::NEAR_EXP2), f, a.float(1.0));
    a.select(a.lt(x, least), a.float(0.0), a.mul(p, scale))
}

/// `exp` for `-104 <= x <= 89`.
fn exp_bounded<A: Arith>(a: &A, x: A::F) -> A::F {
    let one = a.float(1.0);
    let (k, s, t) = nearest_power_in_two(a, x, c::LOG2E);
    let r = reduce(a, x, k);
    let p = a.fma(a.fma(a.poly(r, &c::EXP), r, one), r, one);
    a.mul(a.mul(p, s), t)
}

pub fn exp2<A: Arith>(a: &A, x: A::F) -> A::F {
    let x = a.min(a.max(x, a.float(-151.0)), a.float(129.0));
    let (k, s, t) = nearest_power_in_two(a, x, 1.0);
    let f = a.sub(x, k);
    let p = a.fma(a.poly(f, &c::EXP2), f, a.float(1.0));
    a.mul(a.mul(p, s), t)
}

/// `exp2` of a whole number, which is no NaN: the same bits, and nothing to add up.
pub fn exp2_of_whole<A: Arith>(a: &A, x: A::F) -> A::F {
    let x = a.min(a.max(x, a.float(-151.0)), a.float(129.0));
    let both = a.bits(a.add(x, a.float(SHIFTER + 127.0)));
    let half = a.bits(a.fma(x, a.float(0.5), a.float(SHIFTER)));
    let rest = a.isub(both, half);
    a.mul(a.of_bits(a.shl(half, 23)), a.of_bits(a.shl(rest, 23)))
}

/// `2^k (r + r^2 q) + (2^k - 1)`, halved while it is summed because `2^128` is no float. The rounding error of the large part of the sum is
/// recovered and joins the small part.
pub fn expm1<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.min(a.max(x, a.float(-18.0)), a.float(89.0));
    let (k, half_scale) = nearest_power(a, y, c::LOG2E, -1.0);
    let (r, small) = expm1_parts(a, y, k, &c::EXPM1);
    let offset = a.sub(half_scale, a.float(0.5));
    let large = a.fma(half_scale, r, offset);
    let offset_lost = a.sub(a.sub(half_scale, offset), a.float(0.5));
    let lost = a.fma(half_scale, r, a.add(a.sub(offset, large), offset_lost));
    let half = a.add(a.fma(half_scale, small, lost), large);
    let tiny = a.lt(a.abs(x), a.float(f32::EPSILON / 4.0));
    a.select(tiny, x, a.add(half, half))
}

/// With `e = e^-|x|`: `y = e / (1 + e)` for negative `x`, `1 - y` for positive. `e` and the denominator are kept as a float and its rounding error.
pub fn sigmoid<A: Arith>(a: &A, x: A::F) -> A::F {
    let one = a.float(1.0);
    let minus = a.of_bits(a.or(a.bits(x), a.int(i32::MIN)));
    let minus = a.max(minus, a.float(-104.0));
    let (k, s, t) = nearest_power_in_two(a, minus, c::LOG2E);
    let (r, small) = expm1_parts(a, minus, k, &c::EXP);
    let h = a.add(r, small);
    let p = a.add(h, one);
    let scale = a.mul(s, t);
    let d = a.fma(scale, p, one);
    let d_lost = a.fma(scale, h, a.sub(scale, a.sub(d, one)));
    let inverse = a.inverse(d);
    let negative = a.neg(inverse);
    let rest = a.fma(d_lost, negative, a.fma(d, negative, one));
    let g = a.add(r, a.fma(p, rest, small));
    let y = a.fma(inverse, g, inverse);
    let y = a.mul(a.mul(y, s), t);
    a.select(a.lt(x, a.float(0.0)), y, a.sub(one, y))
}

/// An odd polynomial up to 0.95, then `1 - 2 / (1 + e^2x)`, whose subtrahend is small enough there to hide its own error.
pub fn tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.min(a.abs(x), a.float(9.5));
    let z = a.mul(y, y);
    let near = a.fma(a.mul(z, y), a.poly(z, &c::TANH), y);
    let (k, scale) = nearest_power(a, y, 2.0 * c::LOG2E, 0.0);
    // e^2y = 2^k e^2r; everything from here to the quotient is halved, which costs nothing and spares doubling r
    let r = a.fma(k, a.float(-c::LN2 / 2.0), y);
    let h = expm1_core(a, r, &c::EXP_OF_DOUBLE);
    let half = a.float(0.5);
    let d = a.fma(scale, h, a.fma(scale, half, half));
    let far = a.sub(a.float(1.0), a.inverse(d));
    a.with_sign(a.select(a.lt(y, a.float(0.95)), near, far), x)
}
