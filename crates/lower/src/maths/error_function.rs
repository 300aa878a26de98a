//! erf: an odd polynomial near zero, `1 - e^p(|x|)` beyond.

use super::arith::Arith;
use super::coefficients as c;
use super::exponential::{NEGATIVE, expm1_core, nearest_power};

pub fn erf<A: Arith>(a: &A, x: A::F) -> A::F {
    let z = a.mul(x, x);
    let near = a.fma(a.poly(z, &c::ERF_NEAR), x, x);
    let y = a.min(a.abs(x), a.float(3.95));
    let p = a.poly(y, &c::ERF_FAR);
    let (k, minus_scale) = nearest_power(a, p, c::LOG2E, NEGATIVE);
    let r = a.fma(k, a.float(-c::LN2), p);
    let h = expm1_core(a, r, &c::EXP);
    let far = a.fma(minus_scale, h, a.add(minus_scale, a.float(1.0)));
    a.select(a.lt(y, a.float(1.0)), near, a.with_sign(far, x))
}
