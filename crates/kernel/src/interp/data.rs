//! The elements of a tile while it is interpreted.
//!
//! Every float is held as the `f64` of the same value and every integer and bool as an `i64` (a `u64` by its bits). Results are computed from those and rounded to
//! the dtype after each op, through `f32` where the dtype is narrower, as [`oxyfuel_base::convert`] says. That is the same as computing in the dtype: `f64` has more than
//! twice the digits of `f32`, so that rounding a sum, product, quotient or root twice changes nothing.

use oxyfuel_base::{DType, Scalar, convert};

/// The elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    F(Vec<f64>),
    I(Vec<i64>),
}

/// The nearest value of a float dtype.
#[inline]
pub(super) fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::BF16 => f64::from(convert::bf16_to_f32(convert::f32_to_bf16(x as f32))),
        DType::F16 => f64::from(convert::f16_to_f32(convert::f32_to_f16(x as f32))),
        _ => match convert::decode(dtype, convert::encode(dtype, convert::Value::F(x))) {
            convert::Value::F(x) => x,
            convert::Value::I(_) | convert::Value::B(_) => x,
        },
    }
}

/// The low bits of an integer, extended as the dtype is signed or not.
#[inline]
#[expect(
    clippy::cast_lossless,
    reason = "one table of casts reads better in one spelling"
)]
pub(super) fn wrap(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I32 => x as i32 as i64,
        DType::I16 => x as i16 as i64,
        DType::I8 => x as i8 as i64,
        DType::U32 => x as u32 as i64,
        DType::U16 => x as u16 as i64,
        DType::U8 => x as u8 as i64,
        DType::Bool => i64::from(x != 0),
        _ => x,
    }
}

impl Data {
    pub fn splat(dtype: DType, value: Scalar, len: usize) -> Self {
        match value.cast(dtype) {
            Scalar::F(x) => Self::F(vec![x; len]),
            Scalar::I(x) => Self::I(vec![x; len]),
            Scalar::B(x) => Self::I(vec![i64::from(x); len]),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::F(x) => x.len(),
            Self::I(x) => x.len(),
        }
    }

    /// The elements at `indices`.
    pub fn pick(&self, indices: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::F(x) => Self::F(indices.map(|i| x[i]).collect()),
            Self::I(x) => Self::I(indices.map(|i| x[i]).collect()),
        }
    }

    /// All elements of parts of one kind, in order.
    pub fn concat(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or(Self::I(Vec::new()));
        for part in parts {
            match (&mut all, part) {
                (Self::F(all), Self::F(part)) => all.extend(part),
                (Self::I(all), Self::I(part)) => all.extend(part),
                (Self::F(_), Self::I(_)) | (Self::I(_), Self::F(_)) => {}
            }
        }
        all
    }

    /// The integers of an integer or bool tile (nothing for floats, which the verifier keeps away).
    pub fn ints(&self) -> &[i64] {
        match self {
            Self::I(x) => x,
            Self::F(_) => &[],
        }
    }

    /// The first element as an integer.
    pub fn scalar_int(&self) -> i64 {
        match self {
            Self::I(x) => x.first().copied().unwrap_or(0),
            Self::F(x) => x.first().map_or(0, |x| *x as i64),
        }
    }

    pub fn cast(&self, from: DType, to: DType) -> Self {
        match self {
            Self::F(x) if to.is_float() => Self::F(x.iter().map(|&x| round(to, x)).collect()),
            Self::F(x) if to.is_bool() => Self::I(x.iter().map(|&x| i64::from(x != 0.0)).collect()),
            Self::F(x) => Self::I(x.iter().map(|&x| float_to_int(to, x)).collect()),
            Self::I(x) if to.is_float() => {
                Self::F(x.iter().map(|&x| int_to_float(from, to, x)).collect())
            }
            Self::I(x) => Self::I(x.iter().map(|&x| wrap(to, x)).collect()),
        }
    }

    pub fn bits(&self, dtype: DType) -> Vec<u64> {
        match self {
            Self::F(x) => x.iter().map(|&x| float_bits(dtype, x)).collect(),
            Self::I(x) => x.iter().map(|&x| x as u64 & dtype.mask()).collect(),
        }
    }

    pub fn from_bits(dtype: DType, bits: impl Iterator<Item = u64>) -> Self {
        if dtype.is_float() {
            Self::F(bits.map(|b| bits_float(dtype, b)).collect())
        } else {
            Self::I(bits.map(|b| wrap(dtype, b as i64)).collect())
        }
    }
}

fn float_to_int(to: DType, x: f64) -> i64 {
    match to {
        DType::I64 => x as i64,
        DType::I32 => (x as i32).into(),
        DType::I16 => (x as i16).into(),
        DType::I8 => (x as i8).into(),
        DType::U64 => (x as u64) as i64,
        DType::U32 => (x as u32).into(),
        DType::U16 => (x as u16).into(),
        _ => (x as u8).into(),
    }
}

fn int_to_float(from: DType, to: DType, x: i64) -> f64 {
    match (to, from) {
        (DType::F64, DType::U64) => x as u64 as f64,
        (DType::F64, _) => x as f64,
        (_, DType::U64) => round(to, f64::from(x as u64 as f32)),
        _ => round(to, f64::from(x as f32)),
    }
}

#[inline]
pub(super) fn float_bits(dtype: DType, x: f64) -> u64 {
    match dtype {
        DType::F64 => x.to_bits(),
        DType::F32 => (x as f32).to_bits().into(),
        DType::BF16 => convert::f32_to_bf16(x as f32).into(),
        DType::F16 => convert::f32_to_f16(x as f32).into(),
        _ => convert::encode(dtype, convert::Value::F(x)),
    }
}

#[inline]
pub(super) fn bits_float(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::BF16 => convert::bf16_to_f32(bits as u16).into(),
        DType::F16 => convert::f16_to_f32(bits as u16).into(),
        _ => match convert::decode(dtype, bits) {
            convert::Value::F(x) => x,
            convert::Value::I(x) => x as f64,
            convert::Value::B(x) => f64::from(u8::from(x)),
        },
    }
}
