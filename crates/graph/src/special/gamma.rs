//! The gamma function's family: its logarithm, the derivatives of that, and Hurwitz' zeta function, which they are sums of.
//!
//! All rest on series in 1 / x that are exact enough from 8 on. Below, the functional equation leads there: a product of eight factors for the logarithm,
//! eight terms of the sum for the derivatives. Arguments left of 1/2 are reflected.

use super::formula::Formula;
use super::tables;
use crate::ir::ValueId;
use oxyfuel_base::Result;
use std::f64::consts::PI;

/// log(2 pi) / 2.
const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_8;
const LOG_PI: f64 = 1.144_729_885_849_400_2;
/// From here on the series hold.
const FAR: f64 = 8.0;
/// Beyond, the factorial leaves what f32 holds.
pub(super) const HIGHEST_ORDER: i64 = 30;

pub(super) fn lgamma(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let left = f.lt(x, 0.5)?;
    let mirrored = f.sub(1.0, x)?;
    let y = f.choose(left, mirrored, x)?;
    let right = lgamma_right(f, y)?;
    // gamma(x) gamma(1 - x) = pi / sin(pi x)
    let whole = f.round(x)?;
    let fraction = f.sub(x, whole)?;
    let turn = f.mul(fraction, PI)?;
    let sine = f.sin(turn)?;
    let size = f.abs(sine)?;
    let log = f.log(size)?;
    let rest = f.sub(LOG_PI, log)?;
    let reflected = f.sub(rest, right)?;
    let value = f.choose(left, reflected, right)?;
    let infinite = f.is_inf(x)?;
    f.choose(infinite, f64::INFINITY, value)
}

/// From 1/2 on.
fn lgamma_right(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let near = f.lt(x, FAR)?;
    let ahead = f.add(x, FAR)?;
    let far = f.choose(near, ahead, x)?;
    let log = f.log(far)?;
    let half = f.sub(far, 0.5)?;
    let leading = f.mul(half, log)?;
    let inverse = f.div(1.0, far)?;
    let z = f.square(inverse)?;
    let series = f.polynomial(tables::STIRLING, z)?;
    let small = f.mul(series, inverse)?;
    let small = f.add(small, HALF_LOG_TAU)?;
    let sum = f.sub(leading, far)?;
    let sum = f.add(sum, small)?;
    let product = f.polynomial(tables::RISING, x)?;
    let product = f.choose(near, product, 1.0)?;
    let steps = f.log(product)?;
    f.sub(sum, steps)
}

pub(super) fn digamma(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let left = f.lt(x, 0.0)?;
    let mirrored = f.sub(1.0, x)?;
    let y = f.choose(left, mirrored, x)?;
    let near = f.lt(y, FAR)?;
    let ahead = f.add(y, FAR)?;
    let far = f.choose(near, ahead, y)?;
    let log = f.log(far)?;
    let inverse = f.div(1.0, far)?;
    let z = f.square(inverse)?;
    let series = f.polynomial(tables::DIGAMMA, z)?;
    let small = f.mul(series, z)?;
    let half = f.mul(inverse, 0.5)?;
    let value = f.sub(log, half)?;
    let value = f.sub(value, small)?;
    // The sum of 1 / (y + i) is the logarithmic derivative of the product.
    let product = f.polynomial(tables::RISING, y)?;
    let slope = f.polynomial(tables::RISING_SLOPE, y)?;
    let steps = f.div(slope, product)?;
    let steps = f.choose(near, steps, 0.0)?;
    let right = f.sub(value, steps)?;
    let whole = f.trunc(x)?;
    let fraction = f.sub(x, whole)?;
    let turn = f.mul(fraction, PI)?;
    let tangent = f.tan(turn)?;
    let cotangent = f.div(PI, tangent)?;
    let reflected = f.sub(right, cotangent)?;
    let pole = f.eq(fraction, 0.0)?;
    let reflected = f.choose(pole, f64::NAN, reflected)?;
    let value = f.choose(left, reflected, right)?;
    let zero = f.eq(x, 0.0)?;
    let at_zero = f.div(-1.0, x)?;
    f.choose(zero, at_zero, value)
}

/// The first derivative of digamma, step by step as PyTorch computes it.
pub(super) fn trigamma(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let left = f.lt(x, 0.5)?;
    let turn = f.mul(x, PI)?;
    let sine = f.sin(turn)?;
    let sine = f.square(sine)?;
    let pi = f.value(PI)?;
    let pi = f.square(pi)?;
    let reflection = f.div(pi, sine)?;
    let reflection = f.neg(reflection)?;
    let mut sum = f.choose(left, reflection, 0.0)?;
    let mirrored = f.sub(1.0, x)?;
    let mut y = f.choose(left, mirrored, x)?;
    for _ in 0..6 {
        let square = f.square(y)?;
        let term = f.div(1.0, square)?;
        sum = f.add(sum, term)?;
        y = f.add(y, 1.0)?;
    }
    let square = f.square(y)?;
    let z = f.div(1.0, square)?;
    let series = f.polynomial(&[1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0], z)?;
    let series = f.mul(series, z)?;
    let double = f.mul(y, 2.0)?;
    let half = f.div(1.0, double)?;
    let head = f.add(half, 1.0)?;
    let tail = f.add(head, series)?;
    let tail = f.div(tail, y)?;
    let sum = f.add(sum, tail)?;
    let minus = f.neg(sum)?;
    f.choose(left, minus, sum)
}

/// A derivative of digamma of order 2 or more.
pub(super) fn polygamma(f: &mut Formula<'_>, n: i64, x: ValueId) -> Result<ValueId> {
    let factorial: f64 = (1..=n).map(|k| k as f64).product();
    let sign = if n % 2 == 0 { -1.0 } else { 1.0 };
    let left = f.lt(x, 0.5)?;
    let mirrored = f.sub(1.0, x)?;
    let y = f.choose(left, mirrored, x)?;
    let s = (n + 1) as f64;
    let zeta = zeta_right(f, Exponent::Whole(n as u32 + 1), y)?;
    let right = f.mul(zeta, sign * factorial)?;
    // f(x) = (-1)^n f(1 - x) - pi d^n cot(pi x) / dx^n
    let whole = f.round(x)?;
    let fraction = f.sub(x, whole)?;
    let turn = f.mul(fraction, PI)?;
    let tangent = f.tan(turn)?;
    let cotangent = f.div(1.0, tangent)?;
    let slope = f.polynomial(&cotangent_derivative(n), cotangent)?;
    let slope = f.mul(slope, PI.powf(s))?;
    let other = f.mul(right, -sign)?;
    let reflected = f.sub(other, slope)?;
    let value = f.choose(left, reflected, right)?;
    let pole = f.eq(fraction, 0.0)?;
    let pole = f.and(pole, left)?;
    f.choose(pole, sign * f64::INFINITY, value)
}

/// The n-th derivative of the cotangent as a polynomial in the cotangent: each differentiation multiplies by -(1 + c^2).
fn cotangent_derivative(n: i64) -> Vec<f64> {
    let mut p = vec![0.0, 1.0];
    for _ in 0..n {
        let slope: Vec<f64> = p
            .iter()
            .enumerate()
            .skip(1)
            .map(|(k, c)| k as f64 * c)
            .collect();
        p = vec![0.0; slope.len() + 2];
        for (k, c) in slope.iter().enumerate() {
            p[k] -= c;
            p[k + 2] -= c;
        }
    }
    p
}

/// The exponent of a sum of powers.
#[derive(Clone, Copy)]
enum Exponent {
    Whole(u32),
    Any(ValueId),
}

/// `a^-s`.
fn power(f: &mut Formula<'_>, a: ValueId, s: Exponent) -> Result<ValueId> {
    match s {
        Exponent::Any(s) => {
            let log = f.log2(a)?;
            let minus = f.neg(s)?;
            let exponent = f.mul(minus, log)?;
            f.exp2(exponent)
        }
        Exponent::Whole(mut s) => {
            let mut square = f.div(1.0, a)?;
            let mut product = None;
            while s > 0 {
                if s % 2 == 1 {
                    product = Some(match product {
                        None => square,
                        Some(p) => f.mul(p, square)?,
                    });
                }
                s /= 2;
                if s > 0 {
                    square = f.square(square)?;
                }
            }
            match product {
                Some(p) => Ok(p),
                None => f.value(1.0),
            }
        }
    }
}

/// The sum of (q + k)^-s for q > 0: nine terms, and the rest as an integral with its corrections.
fn zeta_right(f: &mut Formula<'_>, s: Exponent, q: ValueId) -> Result<ValueId> {
    let exponent = match s {
        Exponent::Whole(s) => f.value(f64::from(s))?,
        Exponent::Any(s) => s,
    };
    let mut sum = power(f, q, s)?;
    let mut a = q;
    let mut last = sum;
    for _ in 0..9 {
        a = f.add(a, 1.0)?;
        last = power(f, a, s)?;
        sum = f.add(sum, last)?;
    }
    let less = f.sub(exponent, 1.0)?;
    let integral = f.mul(last, a)?;
    let integral = f.div(integral, less)?;
    let half = f.mul(last, 0.5)?;
    let mut rest = f.sub(integral, half)?;
    let inverse = f.div(1.0, a)?;
    let inverse_square = f.square(inverse)?;
    let mut term = f.mul(last, inverse)?;
    term = f.mul(term, exponent)?;
    for (k, &c) in tables::EULER_MACLAURIN.iter().enumerate() {
        if k > 0 {
            let low = f.add(exponent, (2 * k - 1) as f64)?;
            let high = f.add(exponent, (2 * k) as f64)?;
            let factor = f.mul(low, high)?;
            let factor = f.mul(factor, inverse_square)?;
            term = f.mul(term, factor)?;
        }
        let correction = f.mul(term, c)?;
        rest = f.add(rest, correction)?;
    }
    // Steep sums are over before the series begins, and its factors may overflow.
    let tiny = f.mul(sum, f64::EPSILON / 2.0)?;
    let over = f.le(last, tiny)?;
    let rest = f.choose(over, 0.0, rest)?;
    f.add(sum, rest)
}

pub(super) fn zeta(f: &mut Formula<'_>, x: ValueId, q: ValueId) -> Result<ValueId> {
    let s = Exponent::Any(x);
    let left = f.le(q, 0.0)?;
    // Left of 0 only whole exponents have a value. The terms before 0 are those of 1 - q mirrored, and what begins at the fraction follows.
    let down = f.floor(q)?;
    let fraction = f.sub(q, down)?;
    let start = f.choose(left, fraction, q)?;
    let right = zeta_right(f, s, start)?;
    let first = f.sub(1.0, fraction)?;
    let beyond = f.sub(1.0, q)?;
    let beyond = f.choose(left, beyond, 1.0)?;
    let all = zeta_right(f, s, first)?;
    let excess = zeta_right(f, s, beyond)?;
    let mirrored = f.sub(all, excess)?;
    let even = f.is_even(x)?;
    let minus = f.neg(mirrored)?;
    let mirrored = f.choose(even, mirrored, minus)?;
    let with_mirrored = f.add(right, mirrored)?;
    let x_down = f.floor(x)?;
    let whole_exponent = f.eq(x, x_down)?;
    let with_mirrored = f.choose(whole_exponent, with_mirrored, f64::NAN)?;
    let pole = f.eq(q, down)?;
    let with_mirrored = f.choose(pole, f64::INFINITY, with_mirrored)?;
    let value = f.choose(left, with_mirrored, right)?;
    let below = f.lt(x, 1.0)?;
    let value = f.choose(below, f64::NAN, value)?;
    let one = f.eq(x, 1.0)?;
    f.choose(one, f64::INFINITY, value)
}
