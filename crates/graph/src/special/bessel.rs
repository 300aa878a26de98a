//! Bessel functions of orders 0 and 1, and the airy function.
//!
//! Near 0 a power series or a fit of one; far out the asymptotic form, whose slowly varying factors are fits in the inverse of the argument. Angles shifted by
//! quarters of pi are taken apart, so that a large argument loses nothing.

use super::formula::Formula;
use super::tables;
use crate::ir::ValueId;
use oxyfuel_base::Result;
use std::f64::consts::{FRAC_2_PI, PI};

/// I0 or I1 of |x|, and the same times exp(-|x|).
fn modified_first(f: &mut Formula<'_>, order: usize, a: ValueId) -> Result<[ValueId; 2]> {
    let (near_table, far_table) = match order {
        0 => (tables::I0, tables::I0_FAR),
        _ => (tables::I1, tables::I1_FAR),
    };
    let half = f.mul(a, 0.5)?;
    let z = f.square(half)?;
    let mut near = f.polynomial(near_table, z)?;
    if order == 1 {
        near = f.mul(near, half)?;
    }
    let fit = f.fit_far(far_table, a, 8.0)?;
    let root = f.sqrt(a)?;
    let far = f.div(fit, root)?;
    let grow = f.exp(a)?;
    let far_plain = f.mul(grow, far)?;
    let minus = f.neg(a)?;
    let shrink = f.exp(minus)?;
    let near_scaled = f.mul(near, shrink)?;
    let is_near = f.le(a, 8.0)?;
    let plain = f.choose(is_near, near, far_plain)?;
    let scaled = f.choose(is_near, near_scaled, far)?;
    Ok([plain, scaled])
}

pub(super) fn i0(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    Ok(modified_first(f, 0, a)?[0])
}

pub(super) fn i0e(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    Ok(modified_first(f, 0, a)?[1])
}

pub(super) fn i1(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    let value = modified_first(f, 1, a)?[0];
    let sign = f.sign_of(x)?;
    f.mul(value, sign)
}

pub(super) fn i1e(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    let value = modified_first(f, 1, a)?[1];
    let sign = f.sign_of(x)?;
    f.mul(value, sign)
}

/// K0 or K1, and the same times exp(x).
fn modified_second(f: &mut Formula<'_>, order: usize, x: ValueId) -> Result<[ValueId; 2]> {
    let half = f.mul(x, 0.5)?;
    let z = f.square(half)?;
    let log = f.log(half)?;
    let near = if order == 0 {
        let series = f.polynomial(tables::K0, z)?;
        let first = f.polynomial(tables::I0, z)?;
        let part = f.mul(log, first)?;
        f.sub(series, part)?
    } else {
        let series = f.polynomial(tables::K1, z)?;
        let first = f.polynomial(tables::I1, z)?;
        let part = f.mul(log, first)?;
        let both = f.add(series, part)?;
        let both = f.mul(both, half)?;
        let inverse = f.div(1.0, x)?;
        f.add(inverse, both)?
    };
    let zero = f.eq(x, 0.0)?;
    let near = f.choose(zero, f64::INFINITY, near)?;
    let table = if order == 0 {
        tables::K0_FAR
    } else {
        tables::K1_FAR
    };
    let fit = f.fit_far(table, x, 2.0)?;
    let root = f.sqrt(x)?;
    let far = f.div(fit, root)?;
    let minus = f.neg(x)?;
    let shrink = f.exp(minus)?;
    let far_plain = f.mul(far, shrink)?;
    let grow = f.exp(x)?;
    let near_scaled = f.mul(near, grow)?;
    let is_near = f.le(x, 2.0)?;
    let plain = f.choose(is_near, near, far_plain)?;
    let scaled = f.choose(is_near, near_scaled, far)?;
    Ok([plain, scaled])
}

pub(super) fn k0(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    Ok(modified_second(f, 0, x)?[0])
}

pub(super) fn k1(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    Ok(modified_second(f, 1, x)?[0])
}

pub(super) fn k0e(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    Ok(modified_second(f, 0, x)?[1])
}

pub(super) fn k1e(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    Ok(modified_second(f, 1, x)?[1])
}

/// J and Y of an order for arguments from 8 on.
fn far(f: &mut Formula<'_>, order: usize, a: ValueId) -> Result<[ValueId; 2]> {
    let (p_table, q_table) = match order {
        0 => (tables::J0_P, tables::J0_Q),
        _ => (tables::J1_P, tables::J1_Q),
    };
    let square = f.square(a)?;
    let p = f.fit_far(p_table, square, 64.0)?;
    let q = f.fit_far(q_table, square, 64.0)?;
    let q = f.div(q, a)?;
    let (sin, cos) = (f.sin(a)?, f.cos(a)?);
    // Cosine and sine of a - pi/4 (a - 3 pi/4 for order 1), times the root of 2.
    let (sum, difference) = (f.add(sin, cos)?, f.sub(sin, cos)?);
    let minus = f.neg(sum)?;
    let (c, s) = if order == 0 {
        (sum, difference)
    } else {
        (difference, minus)
    };
    let (pc, qs) = (f.mul(p, c)?, f.mul(q, s)?);
    let (ps, qc) = (f.mul(p, s)?, f.mul(q, c)?);
    let (j, y) = (f.sub(pc, qs)?, f.add(ps, qc)?);
    let area = f.mul(a, PI)?;
    let root = f.sqrt(area)?;
    Ok([f.div(j, root)?, f.div(y, root)?])
}

/// A fit in x^2 for |x| up to 8.
fn near(f: &mut Formula<'_>, table: &[f64], x: ValueId) -> Result<ValueId> {
    let square = f.square(x)?;
    f.fit(table, square, [0.0, 64.0])
}

pub(super) fn j0(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let inner = near(f, tables::J0, x)?;
    let a = f.abs(x)?;
    let outer = far(f, 0, a)?[0];
    let is_near = f.le(a, 8.0)?;
    f.choose(is_near, inner, outer)
}

pub(super) fn j1(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let ratio = near(f, tables::J1, x)?;
    let inner = f.mul(ratio, x)?;
    let a = f.abs(x)?;
    let outer = far(f, 1, a)?[0];
    let sign = f.sign_of(x)?;
    let outer = f.mul(outer, sign)?;
    let is_near = f.le(a, 8.0)?;
    f.choose(is_near, inner, outer)
}

pub(super) fn y0(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let series = near(f, tables::Y0, x)?;
    let first = near(f, tables::J0, x)?;
    let log = f.log(x)?;
    let part = f.mul(log, first)?;
    let part = f.mul(part, FRAC_2_PI)?;
    let inner = f.add(series, part)?;
    let outer = far(f, 0, x)?[1];
    let is_near = f.le(x, 8.0)?;
    f.choose(is_near, inner, outer)
}

pub(super) fn y1(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let ratio = near(f, tables::Y1, x)?;
    let series = f.mul(ratio, x)?;
    let first = near(f, tables::J1, x)?;
    let first = f.mul(first, x)?;
    let log = f.log(x)?;
    let part = f.mul(log, first)?;
    let inverse = f.div(1.0, x)?;
    let part = f.sub(part, inverse)?;
    let part = f.mul(part, FRAC_2_PI)?;
    let inner = f.add(series, part)?;
    let zero = f.eq(x, 0.0)?;
    let inner = f.choose(zero, f64::NEG_INFINITY, inner)?;
    let outer = far(f, 1, x)?[1];
    let is_near = f.le(x, 8.0)?;
    f.choose(is_near, inner, outer)
}

pub(super) fn spherical_j0(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let sine = f.sin(x)?;
    let ratio = f.div(sine, x)?;
    let zero = f.eq(x, 0.0)?;
    let ratio = f.choose(zero, 1.0, ratio)?;
    let infinite = f.is_inf(x)?;
    f.choose(infinite, 0.0, ratio)
}

pub(super) fn airy_ai(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let a = f.abs(x)?;
    let root = f.sqrt(a)?;
    let cube = f.mul(a, root)?;
    let zeta = f.mul(cube, 2.0 / 3.0)?;
    let quarter = f.sqrt(root)?;
    // Beyond 4 it decays.
    let fit = f.fit_far(tables::AI_FAR, zeta, 16.0 / 3.0)?;
    let minus = f.neg(zeta)?;
    let shrink = f.exp(minus)?;
    let value = f.mul(fit, shrink)?;
    let value = f.div(value, quarter)?;
    let right = f.mul(value, 0.5 / PI.sqrt())?;
    // Before -5 it oscillates.
    let square = f.square(zeta)?;
    let p = f.fit_far(tables::AI_P, square, 500.0 / 9.0)?;
    let q = f.fit_far(tables::AI_Q, square, 500.0 / 9.0)?;
    let q = f.div(q, zeta)?;
    let (sin, cos) = (f.sin(zeta)?, f.cos(zeta)?);
    let (s, c) = (f.add(sin, cos)?, f.sub(cos, sin)?);
    let (ps, qc) = (f.mul(p, s)?, f.mul(q, c)?);
    let wave = f.sub(ps, qc)?;
    let wave = f.div(wave, quarter)?;
    let left = f.mul(wave, (0.5 / PI).sqrt())?;
    let below = f.fit(tables::AI_BELOW, x, [-5.0, 0.0])?;
    let above = f.fit(tables::AI_ABOVE, x, [0.0, 4.0])?;
    let negative = f.lt(x, 0.0)?;
    let middle = f.choose(negative, below, above)?;
    let is_left = f.lt(x, -5.0)?;
    let value = f.choose(is_left, left, middle)?;
    let is_right = f.gt(x, 4.0)?;
    let value = f.choose(is_right, right, value)?;
    let infinite = f.is_inf(x)?;
    f.choose(infinite, f64::NAN, value)
}
