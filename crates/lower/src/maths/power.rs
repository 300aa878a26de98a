//! pow: `2^(y log2 |x|)`, the logarithm and its product in f64.
//!
//! An error of the exponent is multiplied by up to 150 on its way into the result, so f32 is not enough for it; f64 is so much more than enough that the
//! result is nearly correctly rounded.

use super::arith::Arith;
use super::coefficients as c;
use super::exponential::nearest_power_in_two;
use super::logarithm::{ULP, split};

/// As C's `pow`: `x^0` and `1^y` are 1 even for NaN, a negative base has a value for integer `y` only.
pub fn pow<A: Arith>(a: &A, x: A::F, y: A::F) -> A::F {
    let (zero, one, infinity) = (a.float(0.0), a.float(1.0), a.float(f32::INFINITY));
    let base = a.abs(x);
    let (f, k) = split(a, base);
    // log2(1 + f) = s q(s^2) with s = f / (2 + f)
    let wide = a.widen(f);
    let s = a.ddiv(wide, a.dadd(wide, a.double(2.0)));
    let k = a.widen(a.mul(k, a.float(ULP)));
    let log = a.dfma(s, a.dpoly(a.dmul(s, s), &c::POW_LOG2), k);
    let exponent = a.widen(y);
    let t = a.dmul(exponent, log);
    let t = a.dmin(a.dmax(t, a.double(-160.0)), a.double(160.0));
    let n = a.dround(t);
    let p = a.narrow(a.dpoly(a.dsub(t, n), &c::POW_EXP2));
    let (_, first, second) = nearest_power_in_two(a, a.narrow(n), 1.0);
    let size = a.mul(a.mul(p, first), second);
    let size = a.select(a.eq(base, one), one, size);
    // the sign of x counts for odd y; y is even where its half is whole
    let whole = a.deq(a.dround(exponent), exponent);
    let half = a.dmul(exponent, a.double(0.5));
    let even = a.deq(a.dround(half), half);
    let odd_sign = a.select(even, zero, a.select(whole, x, zero));
    let signed = a.with_sign(size, odd_sign);
    let negative = a.lt(x, zero);
    let bounded = a.lt(base, infinity);
    let undefined = a.select(
        negative,
        a.select(bounded, a.float(f32::NAN), signed),
        signed,
    );
    let result = a.select(whole, signed, undefined);
    // NaN operands: only x^0 and 1^y have a value
    let result = a.select(a.eq(y, zero), one, result);
    a.select(a.eq(x, one), one, result)
}
