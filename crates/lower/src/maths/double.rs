//! exp, log and their relatives in f64.
//!
//! The methods are those of the f32 functions, with power series instead of fitted polynomials: a few more terms cost less than a second set of fits,
//! and f64 is rare. Errors are below 2 ulp (`tests/maths_double.rs` measures them).

use super::arith::Arith;

/// `1.5 * 2^52 + 1023`: a float near it has an ulp of 1, and its low bits are an exponent field.
const SHIFTER: f64 = 6_755_399_441_055_744.0 + 1023.0;
const LOG2E: f64 = std::f64::consts::LOG2_E;
const LOG2E_LO: f64 = 2.035_527_374_093_103_3e-17;
/// 38 bits, so that its products with exponents are exact.
pub(super) const LN2_HI: f64 = 0.693_147_180_558_298_7;
pub(super) const LN2_LO: f64 = 1.646_594_958_289_708_2e-12;

/// `1/2!, 1/3!, ...`: with 13 of them `r^2 q(r)` is `e^r - 1 - r` to 2^-60 on `|r| <= ln(2) / 2`.
pub(super) const EXP: [f64; 13] = {
    let mut terms = [0.5; 13];
    let mut n = 1;
    while n < terms.len() {
        terms[n] = terms[n - 1] / (n as f64 + 2.0);
        n += 1;
    }
    terms
};
/// `ln(2)^n / n!`.
const EXP2: [f64; 14] = {
    let mut terms = [std::f64::consts::LN_2; 14];
    let mut n = 1;
    while n < terms.len() {
        terms[n] = terms[n - 1] * std::f64::consts::LN_2 / (n as f64 + 1.0);
        n += 1;
    }
    terms
};
/// `2/3, 2/5, ...`: `log((1 + s) / (1 - s)) = 2 s + s^3 q(s^2)`, to 2^-60 on `|s| <= 1/5`.
pub(super) const LOG: [f64; 13] = {
    let mut terms = [0.0; 13];
    let mut n = 0;
    while n < terms.len() {
        terms[n] = 2.0 / (2.0 * n as f64 + 3.0);
        n += 1;
    }
    terms
};

/// `(k, s, t)` with `k` the integer nearest to `x * scale` and `s * t = 2^k`: two factors, because `2^k` leaves the range before results do.
pub(super) fn nearest_power_in_two<A: Arith>(a: &A, x: A::D, scale: f64) -> (A::D, A::D, A::D) {
    let shifter = a.double(SHIFTER + 1023.0);
    let shifted = a.dfma(x, a.double(scale), shifter);
    let k = a.dsub(shifted, shifter);
    let half = a.dbits(a.dfma(x, a.double(scale / 2.0), a.double(SHIFTER)));
    let rest = a.lsub(a.dbits(shifted), half);
    (
        k,
        a.of_dbits(a.lshl(half, 52)),
        a.of_dbits(a.lshl(rest, 52)),
    )
}

/// `e^r` for `|r| <= ln(2) / 2`.
fn exp_core<A: Arith>(a: &A, r: A::D) -> A::D {
    let one = a.double(1.0);
    a.dadd(a.dfma(a.dmul(r, r), a.dpoly(r, &EXP), r), one)
}

pub fn exp<A: Arith>(a: &A, x: A::D) -> A::D {
    let x = a.dmin(a.dmax(x, a.double(-746.0)), a.double(710.0));
    let (k, s, t) = nearest_power_in_two(a, x, LOG2E);
    let r = a.dfma(k, a.double(-LN2_HI), x);
    let r = a.dfma(k, a.double(-LN2_LO), r);
    a.dmul(a.dmul(exp_core(a, r), s), t)
}

pub fn exp2<A: Arith>(a: &A, x: A::D) -> A::D {
    let x = a.dmin(a.dmax(x, a.double(-1076.0)), a.double(1025.0));
    let (k, s, t) = nearest_power_in_two(a, x, 1.0);
    let f = a.dsub(x, k);
    let p = a.dfma(a.dpoly(f, &EXP2), f, a.double(1.0));
    a.dmul(a.dmul(p, s), t)
}

/// `2^k (r + r^2 q) + (2^k - 1)`, halved while it is summed because `2^1024` is no float. What the large part of the sum loses joins the small part.
pub fn expm1<A: Arith>(a: &A, x: A::D) -> A::D {
    let y = a.dmin(a.dmax(x, a.double(-40.0)), a.double(710.0));
    let shifter = a.double(SHIFTER - 1.0);
    let shifted = a.dfma(y, a.double(LOG2E), shifter);
    let k = a.dsub(shifted, shifter);
    let scale = a.of_dbits(a.lshl(a.dbits(shifted), 52));
    let high = a.dfma(k, a.double(-LN2_HI), y);
    let low = a.dmul(k, a.double(-LN2_LO));
    let r = a.dadd(high, low);
    let small = a.dfma(a.dmul(r, r), a.dpoly(r, &EXP), low);
    let offset = a.dsub(scale, a.double(0.5));
    let large = a.dfma(scale, high, offset);
    let offset_lost = a.dsub(a.dsub(scale, offset), a.double(0.5));
    let lost = a.dfma(scale, high, a.dadd(a.dsub(offset, large), offset_lost));
    let half = a.dadd(a.dfma(scale, small, lost), large);
    let tiny = a.dlt(a.dabs(x), a.double(f64::EPSILON / 4.0));
    a.dselect(tiny, x, a.dadd(half, half))
}

pub fn sigmoid<A: Arith>(a: &A, x: A::D) -> A::D {
    let one = a.double(1.0);
    a.ddiv(one, a.dadd(one, exp(a, a.dneg(x))))
}

/// `-t / (2 + t)` with `t = e^(-2 |x|) - 1`.
pub fn tanh<A: Arith>(a: &A, x: A::D) -> A::D {
    let t = expm1(a, a.dmul(a.dabs(x), a.double(-2.0)));
    a.dwith_sign(a.ddiv(a.dneg(t), a.dadd(t, a.double(2.0))), x)
}

/// The exponent field of a number of biased bits, as a float without the bias.
fn exponent<A: Arith>(a: &A, biased: A::L) -> A::D {
    let two_52 = 4_503_599_627_370_496.0;
    let field = a.lor(a.lshr(biased, 52), a.long(0x4330_0000_0000_0000));
    a.dsub(a.of_dbits(field), a.double(two_52 + 1023.0))
}

/// `x = 2^k (1 + f)` with `1 + f` in `[sqrt(1/2), sqrt(2))`, for a positive finite `x`: `(f, k)`.
pub(super) fn split<A: Arith>(a: &A, x: A::D) -> (A::D, A::D) {
    let denormal = a.dlt(x, a.double(f64::MIN_POSITIVE));
    let scaled = a.dmul(x, a.double(18_014_398_509_481_984.0));
    let i = a.dbits(a.dselect(denormal, scaled, x));
    let over = a.lsub(i, a.long(0x3fe6_a09e_667f_3bcd));
    let e = a.land(over, a.long(0xfff0_0000_0000_0000));
    let m = a.of_dbits(a.lsub(i, e));
    let k = exponent(a, a.ladd(over, a.long(0x3ff0_0000_0000_0000)));
    let shift = a.dselect(denormal, a.double(-54.0), a.double(0.0));
    (a.dsub(m, a.double(1.0)), a.dadd(k, shift))
}

/// `log(1 + f)` as a float and the rest, `|f| <= 1/2`.
fn log_parts<A: Arith>(a: &A, f: A::D) -> (A::D, A::D) {
    let s = a.ddiv(f, a.dadd(f, a.double(2.0)));
    let z = a.dmul(s, s);
    let rest = a.dmul(z, a.dpoly(z, &LOG));
    let half_square = a.dmul(a.dmul(f, f), a.double(0.5));
    let high = a.dsub(f, half_square);
    let lost = a.dsub(a.dsub(f, high), half_square);
    (high, a.dfma(s, a.dadd(half_square, rest), lost))
}

/// -inf for zero, NaN below, and infinity and NaN themselves.
fn log_edges<A: Arith>(a: &A, x: A::D, y: A::D) -> A::D {
    let zero = a.double(0.0);
    let low = a.dselect(
        a.dlt(x, zero),
        a.double(f64::NAN),
        a.double(f64::NEG_INFINITY),
    );
    let y = a.dselect(a.dlt(zero, x), y, low);
    a.dselect(a.dlt(x, a.double(f64::INFINITY)), y, x)
}

/// `k ln 2 + high + low`.
fn with_exponent<A: Arith>(a: &A, k: A::D, high: A::D, low: A::D) -> A::D {
    let large = a.dmul(k, a.double(LN2_HI));
    let sum = a.dadd(large, high);
    let lost = a.dadd(a.dsub(large, sum), high);
    a.dadd(sum, a.dadd(lost, a.dfma(k, a.double(LN2_LO), low)))
}

pub fn log<A: Arith>(a: &A, x: A::D) -> A::D {
    let (f, k) = split(a, x);
    let (high, low) = log_parts(a, f);
    log_edges(a, x, with_exponent(a, k, high, low))
}

pub fn log2<A: Arith>(a: &A, x: A::D) -> A::D {
    let (f, k) = split(a, x);
    let (high, low) = log_parts(a, f);
    let p = a.dmul(high, a.double(LOG2E));
    let p_lost = a.dfma(high, a.double(LOG2E), a.dneg(p));
    let rest = a.dfma(
        low,
        a.double(LOG2E),
        a.dfma(high, a.double(LOG2E_LO), p_lost),
    );
    let sum = a.dadd(k, p);
    let lost = a.dadd(a.dsub(k, sum), p);
    log_edges(a, x, a.dadd(sum, a.dadd(lost, rest)))
}

/// `1 + x = 2^k (1 + f)` with `f = 2^-k x + (2^-k - 1)`, which keeps the low bits of `x` that `1 + x` loses.
pub fn log1p<A: Arith>(a: &A, x: A::D) -> A::D {
    let u = a.dadd(x, a.double(1.0));
    let over = a.lsub(a.dbits(u), a.long(0x3fe8_0000_0000_0001));
    let e = a.land(over, a.long(0xfff0_0000_0000_0000));
    let m = a.of_dbits(a.lsub(a.dbits(x), e));
    let inverse = a.of_dbits(a.lsub(a.long(0x4010_0000_0000_0000), e));
    let f = a.dadd(m, a.dfma(inverse, a.double(0.25), a.double(-1.0)));
    let k = exponent(a, a.ladd(over, a.long(0x3ff0_0000_0000_0000)));
    let (high, low) = log_parts(a, f);
    let y = log_edges(a, u, with_exponent(a, k, high, low));
    let itself = a.dlt(a.dabs(x), a.double(f64::EPSILON / 4.0));
    a.dselect(itself, x, y)
}
