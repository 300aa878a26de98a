//! sin and cos: `x = n pi/2 + r`, then both polynomials on `|r| <= pi/4`, one of which `n` selects.
//!
//! There are two reductions. [`reduce_full`] holds for every f32: it multiplies by 2/pi in f64, with the bits that matter for large arguments chosen
//! by one select (the idea of Payne and Hanek). [`reduce_bounded`] stays in f32 and holds up to [`BOUND`]; it costs about a third.
//! Both give `r` as a float and its rounding error, without which the result could not be within one ulp.

use super::arith::Arith;
use super::coefficients as c;

/// How far [`sin_bounded`] and [`cos_bounded`] keep their accuracy.
pub const BOUND: f32 = 131_072.0;

/// `1.5 * 2^23`: a float near it has an ulp of 1, and its low bits count from zero.
const SHIFTER: f32 = 12_582_912.0;

/// `x` reduced: the quadrant (its two low bits count), the remainder and what the remainder's rounding lost.
struct Reduced<A: Arith + ?Sized> {
    quadrant: A::I,
    r: A::F,
    lost: A::F,
}

/// Three-part pi/2. The first step is exact; what the second's product and difference lose is recovered and takes up the third part.
fn reduce_bounded<A: Arith>(a: &A, x: A::F) -> Reduced<A> {
    let shifted = a.fma(x, a.float(std::f32::consts::FRAC_2_PI), a.float(SHIFTER));
    let n = a.sub(shifted, a.float(SHIFTER));
    let first = a.fma(n, a.float(-c::HALF_PI[0]), x);
    let second = a.mul(n, a.float(c::HALF_PI[1]));
    let second_lost = a.fma(n, a.float(-c::HALF_PI[1]), second);
    let r = a.sub(first, second);
    let step = a.sub(first, r);
    let difference_lost = a.add(a.sub(first, a.add(r, step)), a.sub(step, second));
    let lost = a.fma(
        n,
        a.float(-c::HALF_PI[2]),
        a.add(difference_lost, second_lost),
    );
    Reduced {
        quadrant: a.bits(shifted),
        r,
        lost,
    }
}

/// From here on, the bits of 2/pi above 2^-25 contribute only multiples of 4 to `x * 2/pi`, and are left out.
const LARGE: f32 = 1_125_899_906_842_624.0;

/// `x * 2/pi` modulo 4 in three exact pieces. Every piece is reduced by itself; the integer is taken off the leading piece before the others are
/// added, so that a sum near zero (an `x` near a multiple of pi/2) keeps all its bits.
fn reduce_full<A: Arith>(a: &A, x: A::F) -> Reduced<A> {
    let large = a.lt(a.float(LARGE), a.abs(x));
    let part = |i: usize| {
        a.dselect(
            large,
            a.double(c::TWO_OVER_PI_LARGE[i]),
            a.double(c::TWO_OVER_PI[i]),
        )
    };
    let modulo_4 = |v: A::D| {
        let turns = a.dround(a.dmul(v, a.double(0.25)));
        a.dfma(turns, a.double(-4.0), v)
    };
    let x = a.widen(x);
    let product = |part: A::D| {
        let high = a.dmul(x, part);
        (high, a.dfma(x, part, a.dneg(high)))
    };
    let (first, first_lost) = product(part(0));
    let (second, second_lost) = product(part(1));
    let first = a.dadd(modulo_4(first), modulo_4(first_lost));
    let second = modulo_4(second);
    let third = a.dfma(x, part(2), second_lost);
    let n = a.dround(a.dadd(a.dadd(first, second), third));
    let f = a.dadd(a.dadd(a.dsub(first, n), second), third);
    let r = a.dmul(f, a.double(std::f64::consts::FRAC_PI_2));
    let high = a.narrow(r);
    let lost = a.narrow(a.dsub(r, a.widen(high)));
    Reduced {
        quadrant: a.dto_int(n),
        r: high,
        lost,
    }
}

/// Sine of what was reduced, or cosine when `quarter` turns are added.
fn evaluate<A: Arith>(a: &A, x: Reduced<A>, quarter: i32) -> A::F {
    let Reduced { quadrant, r, lost } = x;
    let one = a.float(1.0);
    let z = a.mul(r, r);
    let sine = a.add(r, a.fma(a.mul(z, r), a.poly(z, &c::SIN), lost));
    let top = a.fma(z, a.float(-0.5), one);
    let top_lost = a.fma(z, a.float(-0.5), a.sub(one, top));
    let top_lost = a.fma(a.neg(r), lost, top_lost);
    let cosine = a.add(top, a.fma(a.mul(z, z), a.poly(z, &c::COS), top_lost));
    let quadrant = if quarter == 0 {
        quadrant
    } else {
        a.iadd(quadrant, a.int(quarter))
    };
    let odd = a.nonzero(a.and(quadrant, a.int(1)));
    let sign = a.and(a.shl(quadrant, 30), a.int(i32::MIN));
    a.of_bits(a.xor(a.bits(a.select(odd, cosine, sine)), sign))
}

pub fn sin<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = evaluate(a, reduce_full(a, x), 0);
    a.select(a.eq(x, a.float(0.0)), x, y)
}

pub fn cos<A: Arith>(a: &A, x: A::F) -> A::F {
    evaluate(a, reduce_full(a, x), 1)
}

/// [`sin`] for `|x| <= BOUND`; beyond it the result is a finite number of little meaning.
pub fn sin_bounded<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = evaluate(a, reduce_bounded(a, x), 0);
    a.select(a.eq(x, a.float(0.0)), x, y)
}

/// [`cos`] for `|x| <= BOUND`.
pub fn cos_bounded<A: Arith>(a: &A, x: A::F) -> A::F {
    evaluate(a, reduce_bounded(a, x), 1)
}
