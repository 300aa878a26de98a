//! pow in f64: the logarithm and its product with the exponent as sums of two floats, because an error of the exponent is multiplied by up to 1075.

use super::arith::Arith;
use super::double::{EXP, LN2_HI, LN2_LO, LOG, nearest_power_in_two, split};

/// `2/3` rounded, and what that loses.
const TWO_THIRDS: (f64, f64) = (2.0 / 3.0, 3.700_743_415_417_188e-17);

/// As C's `pow`: `x^0` and `1^y` are 1 even for NaN, a negative base has a value for integer `y` only.
pub fn pow<A: Arith>(a: &A, x: A::D, y: A::D) -> A::D {
    let (zero, one, infinity) = (a.double(0.0), a.double(1.0), a.double(f64::INFINITY));
    let base = a.dabs(x);
    let (log, log_lost) = log_pair(a, base);
    let t = a.dmul(y, log);
    let t_lost = a.dfma(y, log_lost, a.dfma(y, log, a.dneg(t)));
    let sane = a.dlt(a.dabs(t), a.double(800.0));
    let t_lost = a.dselect(sane, t_lost, zero);
    let t = a.dmin(a.dmax(t, a.double(-800.0)), a.double(800.0));
    let (k, first, second) = nearest_power_in_two(a, t, std::f64::consts::LOG2_E);
    let high = a.dfma(k, a.double(-LN2_HI), t);
    let low = a.dmul(k, a.double(-LN2_LO));
    let r = a.dadd(high, low);
    let lost = a.dadd(a.dadd(a.dsub(high, r), low), t_lost);
    let p = exp_once(a, r, lost);
    let size = a.dmul(a.dmul(p, first), second);
    // zero and infinity have no logarithm: their powers are theirs, or each other's
    let down = a.dlt(y, zero);
    let of_zero = a.dselect(down, infinity, zero);
    let of_infinity = a.dselect(down, zero, infinity);
    let size = a.dselect(a.deq(base, zero), of_zero, size);
    let size = a.dselect(a.deq(base, infinity), of_infinity, size);
    // an infinite power sends what is above 1 one way and what is below the other
    let endless = a.deq(a.dabs(y), infinity);
    let above = a.dselect(down, zero, infinity);
    let below = a.dselect(down, infinity, zero);
    let limit = a.dselect(a.dlt(one, base), above, below);
    let size = a.dselect(endless, limit, size);
    let size = a.dselect(a.deq(base, one), one, size);
    // the sign of x counts for odd y; y is even where its half is whole
    let whole = a.deq(a.dround(y), y);
    let half = a.dmul(y, a.double(0.5));
    let even = a.deq(a.dround(half), half);
    let odd_sign = a.dselect(even, zero, a.dselect(whole, x, zero));
    let signed = a.dwith_sign(size, odd_sign);
    let bounded = a.dselect(a.dlt(base, infinity), a.double(f64::NAN), signed);
    let undefined = a.dselect(a.dlt(x, zero), bounded, signed);
    let result = a.dselect(whole, signed, undefined);
    // NaN operands: only x^0 and 1^y have a value
    let numbers = a.dadd(base, y);
    let result = a.dselect(a.deq(base, base), result, numbers);
    let result = a.dselect(a.deq(y, y), result, numbers);
    let result = a.dselect(a.deq(y, zero), one, result);
    a.dselect(a.deq(x, one), one, result)
}

/// `e^(r + lost)` for `|r| <= ln(2) / 2`, rounded once: a power that is a whole number is that number.
fn exp_once<A: Arith>(a: &A, r: A::D, lost: A::D) -> A::D {
    let one = a.double(1.0);
    let high = a.dadd(one, r);
    let low = a.dadd(a.dsub(one, high), r);
    let rest = a.dfma(a.dmul(r, r), a.dpoly(r, &EXP), low);
    let near = a.dadd(high, rest);
    a.dadd(high, a.dfma(near, lost, rest))
}

/// The natural logarithm of a positive finite number, as a float and the rest.
fn log_pair<A: Arith>(a: &A, x: A::D) -> (A::D, A::D) {
    let two = a.double(2.0);
    let (f, k) = split(a, x);
    // s = f / (2 + f)
    let d = a.dadd(f, two);
    let d_lost = a.dsub(f, a.dsub(d, two));
    let s = a.ddiv(f, d);
    let left = a.dfma(a.dneg(s), d, f);
    let s_lost = a.ddiv(a.dfma(a.dneg(s), d_lost, left), d);
    // log(1 + f) = s (2 + 2/3 z + z^2 q(z)) with z = s^2
    let z = a.dmul(s, s);
    let z_lost = a.dfma(a.dmul(s, two), s_lost, a.dfma(s, s, a.dneg(z)));
    let (third, third_lost) = (a.double(TWO_THIRDS.0), a.double(TWO_THIRDS.1));
    let c = a.dmul(z, third);
    let c_lost = a.dfma(z, third, a.dneg(c));
    let c_lost = a.dadd(c_lost, a.dfma(z_lost, third, a.dmul(z, third_lost)));
    let rest = a.dmul(a.dmul(z, z), a.dpoly(z, &LOG[1..]));
    let u = a.dadd(c, rest);
    let u_lost = a.dadd(a.dsub(c, u), rest);
    let sum = a.dadd(two, u);
    let sum_lost = a.dadd(a.dadd(a.dsub(two, sum), u), a.dadd(u_lost, c_lost));
    let log = a.dmul(s, sum);
    let log_lost = a.dfma(s, sum, a.dneg(log));
    let log_lost = a.dadd(log_lost, a.dfma(s, sum_lost, a.dmul(s_lost, sum)));
    // + k ln 2
    let large = a.dmul(k, a.double(LN2_HI));
    let total = a.dadd(large, log);
    let lost = a.dadd(a.dsub(large, total), log);
    let lost = a.dadd(lost, a.dfma(k, a.double(LN2_LO), log_lost));
    // the parts may overlap; the product wants the first to be the nearest float
    let high = a.dadd(total, lost);
    (high, a.dadd(a.dsub(total, high), lost))
}
