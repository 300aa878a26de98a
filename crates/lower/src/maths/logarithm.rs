//! log, log2 and log1p: `x = 2^k m` with `m` around 1, then a polynomial in `m - 1`.

use super::arith::Arith;
use super::coefficients as c;

/// Splits `x = 2^k m` with `m` in `[sqrt(1/2), sqrt(2))`: gives `m - 1` and `2^23 k`, which for zero, infinity and what has no logarithm is what the result must be:
/// -inf, inf, NaN.
pub(super) fn split<A: Arith>(a: &A, x: A::F) -> (A::F, A::F) {
    let denormal = a.lt(x, a.float(f32::MIN_POSITIVE));
    let scaled = a.select(denormal, a.mul(x, a.float(8_388_608.0)), x);
    let i = a.bits(scaled);
    let e = a.and(a.isub(i, a.int(SQRT_HALF)), a.int(0xff80_0000_u32 as i32));
    let m = a.of_bits(a.isub(i, e));
    let bad = a.select(
        a.lt(x, a.float(0.0)),
        a.float(f32::NAN),
        a.float(f32::NEG_INFINITY),
    );
    let low = a.select(a.lt(a.float(0.0), x), a.float(-23.0 * 8_388_608.0), bad);
    let k = a.add(a.to_float(e), a.select(denormal, low, a.float(0.0)));
    let k = a.select(a.lt(x, a.float(f32::INFINITY)), k, x);
    (a.sub(m, a.float(1.0)), k)
}

/// Bits of the square root of 1/2, where `k` changes.
const SQRT_HALF: i32 = 0x3f35_04f3;

/// Bits of the float above 3/4, where `k` changes in `log1p`: `f` must not go below -1/4, or the sum that makes it is no longer exact.
const ABOVE_THREE_QUARTERS: i32 = 0x3f40_0001;

pub(super) const ULP: f32 = 1.0 / 8_388_608.0;

pub fn log<A: Arith>(a: &A, x: A::F) -> A::F {
    let (f, k) = split(a, x);
    let r = a.fma(a.mul(f, f), a.poly(f, &c::LOG), f);
    a.fma(k, a.float(c::LN2 * ULP), r)
}

pub fn log2<A: Arith>(a: &A, x: A::F) -> A::F {
    let (f, k) = split(a, x);
    let r = a.fma(
        a.mul(f, f),
        a.poly(f, &c::LOG2),
        a.mul(f, a.float(c::LOG2E_LO)),
    );
    let r = a.fma(f, a.float(c::LOG2E), r);
    a.fma(k, a.float(ULP), r)
}

/// `1 + x = 2^k (1 + f)` with `f = 2^-k x + (2^-k - 1)`, which keeps the low bits of `x` that `1 + x` loses.
pub fn log1p<A: Arith>(a: &A, x: A::F) -> A::F {
    let u = a.add(x, a.float(1.0));
    let e = a.and(
        a.isub(a.bits(u), a.int(ABOVE_THREE_QUARTERS)),
        a.int(0xff80_0000_u32 as i32),
    );
    let m = a.of_bits(a.isub(a.bits(x), e));
    let inverse = a.of_bits(a.isub(a.int(0x4080_0000), e));
    let f = a.add(m, a.fma(inverse, a.float(0.25), a.float(-1.0)));
    let r = a.fma(a.mul(f, f), a.poly(f, &c::LOG1P), f);
    let r = a.fma(a.to_float(e), a.float(c::LN2 * ULP), r);
    // -1 -> -inf, below -> NaN, NaN and inf and zero -> themselves
    let ok = a.lt(a.float(0.0), u);
    let bad = a.select(
        a.eq(u, a.float(0.0)),
        a.float(f32::NEG_INFINITY),
        a.float(f32::NAN),
    );
    let r = a.select(ok, r, bad);
    let itself = a.lt(a.abs(x), a.float(f32::EPSILON / 4.0));
    let r = a.select(itself, x, r);
    a.select(a.lt(x, a.float(f32::INFINITY)), r, x)
}
