//! The parts of floats: fractions and powers of two, and neighbours.

use super::Formula;
use crate::builder::Builder;
use crate::ir::ValueId;
use oxyfuel_base::{DType, Result, ensure, err};

/// The exponent of the power of two that is not above |x|, exact for what f32 holds.
fn exponent(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let size = f.abs(x)?;
    let log = f.log2(size)?;
    f.floor(log)
}

/// A fraction in [1/2, 1) and the power of two (an i32) that it is multiplied with; of floats narrower than f64, whose exponents reach as far as the arithmetic.
#[track_caller]
pub fn frexp(b: &mut Builder, x: ValueId) -> Result<[ValueId; 2]> {
    let dtype = b.ty(x).dtype;
    ensure!(
        dtype != DType::F64,
        UnsupportedDType,
        "frexp is of f32 and narrower floats, not of {dtype}"
    );
    let mut power = None;
    let mantissa = b.in_f64(&[x], |f, v| {
        let x = v[0];
        let e = exponent(f, x)?;
        let e = f.add(e, 1.0)?;
        let zero = f.eq(x, 0.0)?;
        let infinite = f.is_inf(x)?;
        let nan = f.is_nan(x)?;
        let other = f.or(zero, infinite)?;
        let other = f.or(other, nan)?;
        let e = f.choose(other, 0.0, e)?;
        power = Some(e);
        let minus = f.neg(e)?;
        let scale = f.exp2(minus)?;
        f.mul(x, scale)
    })?;
    match power {
        Some(e) => Ok([mantissa, b.cast(e, DType::I32)?]),
        None => Err(err!(Internal, "frexp without an exponent")),
    }
}

/// The next number of `a`'s dtype in the direction of `b`; both have that dtype, f32 or narrower.
#[track_caller]
pub fn nextafter(b: &mut Builder, from: ValueId, to: ValueId) -> Result<ValueId> {
    // Digits after the point, the least exponent, the largest number.
    let (digits, least, largest): (f64, f64, f64) = match b.ty(from).dtype {
        DType::F32 => (23.0, -126.0, f64::from(f32::MAX)),
        DType::BF16 => (7.0, -126.0, 255.0 * 2f64.powi(120)),
        DType::F16 => (10.0, -14.0, 65504.0),
        other => {
            return Err(err!(
                UnsupportedDType,
                "nextafter is of f32 and halves, not of {other}"
            ));
        }
    };
    b.in_f64(&[from, to], |f, v| {
        let (a, b) = (v[0], v[1]);
        let up = f.lt(a, b)?;
        let direction = f.choose(up, 1.0, -1.0)?;
        let size = f.abs(a)?;
        let e = exponent(f, a)?;
        let e = f.max(e, least)?;
        let power = f.exp2(e)?;
        // Below a power of two numbers lie twice as close.
        let at_power = f.eq(size, power)?;
        let not_least = f.gt(e, least)?;
        let at_power = f.and(at_power, not_least)?;
        let sign = f.sign_of(a)?;
        let inwards = f.mul(sign, direction)?;
        let inwards = f.lt(inwards, 0.0)?;
        let closer = f.and(at_power, inwards)?;
        let factor = f.choose(closer, 0.5, 1.0)?;
        let step = f.mul(power, (-digits).exp2())?;
        let step = f.mul(step, factor)?;
        let step = f.mul(step, direction)?;
        let next = f.add(a, step)?;
        let smallest = f.mul(direction, (least - digits).exp2())?;
        let zero = f.eq(a, 0.0)?;
        let next = f.choose(zero, smallest, next)?;
        let infinite = f.is_inf(a)?;
        let end = f.mul(sign, largest)?;
        let next = f.choose(infinite, end, next)?;
        let same = f.eq(a, b)?;
        let next = f.choose(same, b, next)?;
        let sum = f.add(a, b)?;
        let nans = (f.is_nan(a)?, f.is_nan(b)?);
        let nan = f.or(nans.0, nans.1)?;
        f.choose(nan, sum, next)
    })
}
