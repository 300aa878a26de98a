//! Functions of whole numbers.

use crate::builder::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op, Unary};
use oxyfuel_base::{DType, Result, Scalar, ensure};

/// The longest run of Euclid's algorithm: neighbours among Fibonacci's numbers, the largest below the dtype's.
fn longest(dtype: DType) -> usize {
    match dtype.bits() {
        ..=8 => 13,
        9..=16 => 24,
        17..=32 => 47,
        _ => 93,
    }
}

/// The greatest common divisor, never negative; 0 of two zeros.
#[track_caller]
pub fn gcd(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let dtype = b.common_dtype(&[x.into(), y.into()])?;
    ensure!(
        dtype.is_int(),
        UnsupportedDType,
        "gcd is of integers, not of {dtype}"
    );
    let (mut x, mut y) = (b.cast(x, dtype)?, b.cast(y, dtype)?);
    if dtype.is_signed() {
        (x, y) = (b.unary(Unary::Abs, x)?, b.unary(Unary::Abs, y)?);
    }
    let device = b.ty(x).device;
    let zero = b.full(Scalar::I(0), vec![], dtype, device)?;
    for _ in 0..longest(dtype) {
        // Modulo zero is zero, so the end is a fixed point.
        let rest = b.emit(Op::Binary(Binary::Fmod), &[x, y])?;
        let done = b.emit(Op::Compare(Compare::Eq), &[y, zero])?;
        x = b.emit(Op::Where, &[done, x, y])?;
        y = rest;
    }
    if dtype.is_signed() {
        x = b.unary(Unary::Abs, x)?;
    }
    Ok(x)
}
