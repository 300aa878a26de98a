//! Exact conversions between all element types: the one meaning of every cast in the project.
//!
//! - **Float to float**: round to nearest, ties to even. A float narrower than `f32` is always
//!   reached through `f32`, as in torch, so an `f64` rounds twice on its way to `f16`. On overflow
//!   `f16`, `bf16` and `f8e5m2` become infinite; `f8e4m3` and `f4e2m1` saturate to the largest finite
//!   value (infinities too). NaN stays NaN with its sign; in `f4e2m1`, which has none, it becomes
//!   the largest positive value. The payload of a NaN is not part of the meaning.
//! - **To `e8m0`**: the sign is dropped; the exponent is rounded to nearest with ties up, except
//!   that the tie between zero and 2^-126 goes down; zero becomes 2^-127; overflow, infinity and
//!   NaN become NaN.
//! - **Float to int**: cut toward zero. Outside the range torch leaves the result to the machine; here
//!   it saturates, and NaN becomes 0, on every target.
//! - **Int to int**: the low bits (wrapping), sign-extended where the source is signed.
//! - **Int to float**: nearest `f64` or `f32`, ties to even; narrower floats from that `f32`.
//! - **To bool**: whether it differs from zero (NaN does, -0.0 does not). **From bool**: 0 or 1.
//!
//! Two layers: typed functions such as [`f32_to_e4m3`], and codes of any type in the low bits of a
//! `u64` ([`decode`], [`encode`], [`cast_bits`]) for interpreters. Bits above a type's width are
//! ignored on the way in and zero on the way out.

mod float;

pub use float::{
    bf16_to_f32, e2m1_to_f32, e4m3_to_f32, e5m2_to_f32, e8m0_to_f32, f16_to_f32, f32_to_bf16,
    f32_to_e2m1, f32_to_e4m3, f32_to_e5m2, f32_to_e8m0, f32_to_f16,
};

use crate::dtype::DType;

/// The number a code stands for. Every value of every type has exactly one (NaNs apart).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of any float type: all of them are subsets of `f64`.
    F(f64),
    /// Of any integer type.
    I(i128),
    /// Of `Bool`.
    B(bool),
}

/// The value of a code.
pub fn decode(dtype: DType, bits: u64) -> Value {
    let float = |x: f32| Value::F(x.into());
    match dtype {
        DType::F64 => Value::F(f64::from_bits(bits)),
        DType::F32 => float(f32::from_bits(bits as u32)),
        DType::F16 => float(f16_to_f32(bits as u16)),
        DType::BF16 => float(bf16_to_f32(bits as u16)),
        DType::F8E4M3 => float(e4m3_to_f32(bits as u8)),
        DType::F8E5M2 => float(e5m2_to_f32(bits as u8)),
        DType::F4E2M1 => float(e2m1_to_f32(bits as u8)),
        DType::E8M0 => float(e8m0_to_f32(bits as u8)),
        DType::I64 => Value::I((bits as i64).into()),
        DType::I32 => Value::I((bits as i32).into()),
        DType::I16 => Value::I((bits as i16).into()),
        DType::I8 => Value::I((bits as i8).into()),
        DType::U64 => Value::I(bits.into()),
        DType::U32 => Value::I((bits as u32).into()),
        DType::U16 => Value::I((bits as u16).into()),
        DType::U8 => Value::I((bits as u8).into()),
        DType::Bool => Value::B(bits as u8 != 0),
    }
}

/// The code of a value, converted as the module says.
pub fn encode(dtype: DType, value: Value) -> u64 {
    match dtype {
        DType::F64 => value.to_f64().to_bits(),
        DType::F32 => value.to_f32().to_bits().into(),
        DType::F16 => f32_to_f16(value.to_f32()).into(),
        DType::BF16 => f32_to_bf16(value.to_f32()).into(),
        DType::F8E4M3 => f32_to_e4m3(value.to_f32()).into(),
        DType::F8E5M2 => f32_to_e5m2(value.to_f32()).into(),
        DType::F4E2M1 => f32_to_e2m1(value.to_f32()).into(),
        DType::E8M0 => f32_to_e8m0(value.to_f32()).into(),
        DType::I64
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U64
        | DType::U32
        | DType::U16
        | DType::U8 => value.to_int(dtype),
        DType::Bool => value.to_bool().into(),
    }
}

/// The code in `to` of the number that `bits` is in `from`.
pub fn cast_bits(bits: u64, from: DType, to: DType) -> u64 {
    if from == to && !to.is_bool() {
        return bits & to.mask();
    }
    encode(to, decode(from, bits))
}

impl Value {
    fn to_f64(self) -> f64 {
        match self {
            Value::F(x) => x,
            Value::I(x) => x as f64,
            Value::B(x) => f64::from(u8::from(x)),
        }
    }

    fn to_f32(self) -> f32 {
        match self {
            Value::F(x) => x as f32,
            Value::I(x) => x as f32,
            Value::B(x) => f32::from(u8::from(x)),
        }
    }

    fn to_bool(self) -> bool {
        match self {
            Value::F(x) => x != 0.0,
            Value::I(x) => x != 0,
            Value::B(x) => x,
        }
    }

    fn to_int(self, dtype: DType) -> u64 {
        let bits = match self {
            Value::F(x) => {
                // `as` cuts toward zero, saturates far outside every type here, and takes NaN to 0.
                let top = 1i128 << (dtype.bits() - u32::from(dtype.is_signed()));
                (x as i128).clamp(if dtype.is_signed() { -top } else { 0 }, top - 1)
            }
            Value::I(x) => x,
            Value::B(x) => x.into(),
        };
        bits as u64 & dtype.mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_to_int_saturates() {
        let cast = |x: f32, to| cast_bits(x.to_bits().into(), DType::F32, to);
        assert_eq!(cast(-3.9, DType::I8) as i8, -3);
        assert_eq!(cast(300.0, DType::I8) as i8, 127);
        assert_eq!(cast(-300.0, DType::I8) as i8, -128);
        assert_eq!(cast(-1.0, DType::U8), 0);
        assert_eq!(cast(f32::INFINITY, DType::U64), u64::MAX);
        assert_eq!(cast(f32::NEG_INFINITY, DType::I64) as i64, i64::MIN);
        assert_eq!(cast(f32::NAN, DType::I32), 0);
        assert_eq!(cast(9.223_372e18, DType::I64) as i64, i64::MAX);
    }

    #[test]
    fn high_bits_do_not_matter() {
        for &from in DType::ALL {
            for &to in DType::ALL {
                let junk = !from.mask();
                let (a, b) = (cast_bits(1, from, to), cast_bits(1 | junk, from, to));
                assert_eq!(a, b, "{from} {to}");
                assert_eq!(a & !to.mask(), 0);
            }
        }
    }

    #[test]
    fn every_code_survives_a_trip_through_every_wider_type() {
        let narrow = [
            DType::F16,
            DType::BF16,
            DType::F8E4M3,
            DType::F8E5M2,
            DType::F4E2M1,
            DType::E8M0,
        ];
        for from in narrow {
            for through in [DType::F32, DType::F64] {
                for bits in 0..=from.mask() {
                    let back = cast_bits(cast_bits(bits, from, through), through, from);
                    let nan = matches!(decode(from, bits), Value::F(x) if x.is_nan());
                    let still_nan = matches!(decode(from, back), Value::F(x) if x.is_nan());
                    assert!(
                        if nan { still_nan } else { back == bits },
                        "{from} {bits:#x} {back:#x}"
                    );
                }
            }
        }
    }
}
