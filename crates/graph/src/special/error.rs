//! The error function's family.

use super::formula::Formula;
use super::tables;
use crate::ir::ValueId;
use oxyfuel_base::Result;
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

pub(super) fn erfcx(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    let below = f.sub(a, 4.0)?;
    let above = f.add(a, 4.0)?;
    let t = f.div(below, above)?;
    let value = f.polynomial(tables::ERFCX, t)?;
    let double = f.mul(a, 2.0)?;
    let scale = f.add(double, 1.0)?;
    let right = f.div(value, scale)?;
    let infinite = f.is_inf(x)?;
    let right = f.choose(infinite, 0.0, right)?;
    let square = f.square(x)?;
    let power = f.exp(square)?;
    let twice = f.mul(power, 2.0)?;
    let reflected = f.sub(twice, right)?;
    let left = f.lt(x, 0.0)?;
    f.choose(left, reflected, right)
}

/// The distance from the middle of the normal distribution beyond which lies `p`, for p below 1/8.
fn tail(f: &mut Formula<'_>, p: ValueId) -> Result<ValueId> {
    let log = f.log(p)?;
    let square = f.mul(log, -2.0)?;
    let r = f.sqrt(square)?;
    let near = f.fit(tables::NDTRI_NEAR, r, [2.0, 4.0])?;
    let far = f.fit(tables::NDTRI_FAR, r, [4.0, 10.0])?;
    let farthest = f.fit(tables::NDTRI_FARTHEST, r, [10.0, 40.0])?;
    let is_far = f.lt(r, 10.0)?;
    let z = f.choose(is_far, far, farthest)?;
    let is_near = f.lt(r, 4.0)?;
    let z = f.choose(is_near, near, z)?;
    let none = f.eq(p, 0.0)?;
    f.choose(none, f64::INFINITY, z)
}

/// `erfinv(y)` for |y| up to 3/4.
fn erfinv_middle(f: &mut Formula<'_>, y: ValueId) -> Result<ValueId> {
    let square = f.square(y)?;
    let ratio = f.fit(tables::ERFINV, square, [0.0, 0.5625])?;
    f.mul(ratio, y)
}

pub(super) fn erfinv(f: &mut Formula<'_>, y: ValueId) -> Result<ValueId> {
    let middle = erfinv_middle(f, y)?;
    let a = f.abs(y)?;
    let rest = f.sub(1.0, a)?;
    let p = f.mul(rest, 0.5)?;
    let z = tail(f, p)?;
    let sign = f.sign_of(y)?;
    let z = f.mul(z, sign)?;
    let outer = f.mul(z, FRAC_1_SQRT_2)?;
    let inside = f.le(a, 0.75)?;
    f.choose(inside, middle, outer)
}

pub(super) fn ndtri(f: &mut Formula<'_>, y: ValueId) -> Result<ValueId> {
    let double = f.mul(y, 2.0)?;
    let centred = f.sub(double, 1.0)?;
    let middle = erfinv_middle(f, centred)?;
    let middle = f.mul(middle, SQRT_2)?;
    let rest = f.sub(1.0, y)?;
    let p = f.min(y, rest)?;
    let z = tail(f, p)?;
    let sign = f.sign_of(centred)?;
    let outer = f.mul(z, sign)?;
    let distance = f.abs(centred)?;
    let inside = f.le(distance, 0.75)?;
    f.choose(inside, middle, outer)
}

pub(super) fn log_ndtr(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let t = f.mul(x, FRAC_1_SQRT_2)?;
    let minus = f.neg(t)?;
    let scaled = erfcx(f, minus)?;
    let half = f.mul(scaled, 0.5)?;
    let log = f.log(half)?;
    let square = f.square(t)?;
    let low = f.sub(log, square)?;
    let rest = f.erfc(t)?;
    let rest = f.mul(rest, -0.5)?;
    let high = f.log1p(rest)?;
    let left = f.lt(x, -1.0)?;
    f.choose(left, low, high)
}
