//! Element types.
//!
//! Everything that can be said of a type without computing with it stands in one table
//! ([`DType::ALL`] lists the rows in order). The meaning of each code (which bits are which number)
//! lives in [`crate::convert`].
//!
//! `F4E2M1` counts one code per byte here: a tile value holds one number in one lane. Two codes in
//! one byte is a way of storing them, which the graph level states in its layouts.

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What kind of number a type holds. The order is PyTorch's order of categories in promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// True or false.
    Bool,
    /// An unsigned integer.
    Unsigned,
    /// A two's complement integer.
    Signed,
    /// A floating point number (of any format).
    Float,
}

macro_rules! dtypes {
    ($($variant:ident $name:literal $kind:ident $bits:literal $size:literal $torch:literal $doc:literal;)*) => {
        /// The type of one element of a tensor or tile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DType { $(#[doc = $doc] $variant,)* }

        /// One row a type, in the order of the enum.
        const TABLE: &[Row] = &[
            $(Row { name: $name, kind: Kind::$kind, bits: $bits, size: $size, torch: $torch },)*
        ];

        impl DType {
            /// Every type, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];
        }
    };
}

struct Row {
    name: &'static str,
    kind: Kind,
    bits: u32,
    size: usize,
    torch: &'static str,
}

dtypes! {
    // variant name    kind   bits size torch              meaning
    F64    "f64"    Float    64 8 "float64"          "IEEE binary64.";
    F32    "f32"    Float    32 4 "float32"          "IEEE binary32.";
    F16    "f16"    Float    16 2 "float16"          "IEEE binary16.";
    BF16   "bf16"   Float    16 2 "bfloat16"         "The upper half of an f32.";
    F8E4M3 "f8e4m3" Float     8 1 "float8_e4m3fn"    "4 exponent bits, no infinity, largest 448, one NaN a sign.";
    F8E5M2 "f8e5m2" Float     8 1 "float8_e5m2"      "5 exponent bits, infinities and NaNs as IEEE.";
    F4E2M1 "f4e2m1" Float     4 1 "float4_e2m1fn_x2" "0 0.5 1 1.5 2 3 4 6 and their negatives; no infinity, no NaN.";
    E8M0   "e8m0"   Float     8 1 "float8_e8m0fnu"   "A power of two from 2^-127 to 2^127, unsigned, with a NaN and no zero.";
    I64    "i64"    Signed   64 8 "int64"            "64-bit two's complement.";
    I32    "i32"    Signed   32 4 "int32"            "32-bit two's complement.";
    I16    "i16"    Signed   16 2 "int16"            "16-bit two's complement.";
    I8     "i8"     Signed    8 1 "int8"             "8-bit two's complement.";
    U64    "u64"    Unsigned 64 8 "uint64"           "64-bit unsigned.";
    U32    "u32"    Unsigned 32 4 "uint32"           "32-bit unsigned.";
    U16    "u16"    Unsigned 16 2 "uint16"           "16-bit unsigned.";
    U8     "u8"     Unsigned  8 1 "uint8"            "8-bit unsigned.";
    Bool   "bool"   Bool      8 1 "bool"             "One byte, 0 or 1.";
}

impl DType {
    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The short name, as in IR text: `"bf16"`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The name in `torch.`: `"bfloat16"`.
    pub const fn torch_name(self) -> &'static str {
        self.row().torch
    }

    /// What kind of number it holds.
    pub const fn kind(self) -> Kind {
        self.row().kind
    }

    /// Bits of a code: 4 for `F4E2M1`, 8 for `Bool` (which uses only the lowest).
    pub const fn bits(self) -> u32 {
        self.row().bits
    }

    /// Bytes of one element: 1 for `F4E2M1` (one code per byte; packing is a matter of storage).
    pub const fn size(self) -> usize {
        self.row().size
    }

    /// Any floating point format, the 8- and 4-bit ones included.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }

    /// A signed or unsigned integer; `Bool` is not one.
    pub const fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Signed | Kind::Unsigned)
    }

    /// Whether negative numbers exist in it: signed integers and all floats but `E8M0`.
    pub const fn is_signed(self) -> bool {
        match self.kind() {
            Kind::Signed => true,
            Kind::Float => !matches!(self, DType::E8M0),
            Kind::Bool | Kind::Unsigned => false,
        }
    }

    /// `Bool`.
    pub const fn is_bool(self) -> bool {
        matches!(self.kind(), Kind::Bool)
    }

    /// A float of 8 or fewer bits: a storage format in which torch does no arithmetic.
    pub const fn is_narrow_float(self) -> bool {
        self.is_float() && self.bits() <= 8
    }

    /// The type named `torch.{name}` (with or without the `torch.`).
    pub fn from_torch_name(name: &str) -> Option<DType> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        DType::ALL.iter().copied().find(|d| d.torch_name() == name)
    }

    /// The mask of the bits a code uses.
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(s: &str) -> Result<DType> {
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.name() == s)
            .ok_or_else(|| {
                let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
                Error::new(
                    Code::UnknownName,
                    format!("unknown dtype `{}`", s.escape_debug()),
                )
                .help(format!("one of {}", names.join(" ")))
            })
    }
}

/// The type in which torch computes on two tensors of types `a` and `b` (`torch.promote_types`).
///
/// The result depends on the two types only; that a 0-d tensor or a Python number gives way to a
/// tensor of the same category is the caller's business. As in torch, 8- and 4-bit floats promote
/// with nothing but themselves, and `u16 u32 u64` with no other integer nor bool.
pub fn promote(a: DType, b: DType) -> Result<DType> {
    let unsupported = || {
        Err(Error::new(
            Code::DTypeMismatch,
            format!("{a} and {b} have no common type"),
        )
        .help("cast one of the operands explicitly"))
    };
    if a == b {
        return Ok(a);
    }
    if a.is_narrow_float() || b.is_narrow_float() {
        return unsupported();
    }
    match (a.kind(), b.kind()) {
        (Kind::Float, Kind::Float) if a.bits() == b.bits() => Ok(DType::F32),
        (Kind::Float, Kind::Float) | (Kind::Signed, Kind::Signed) => Ok(wider(a, b)),
        (Kind::Float, Kind::Bool | Kind::Unsigned | Kind::Signed) => Ok(a),
        (Kind::Bool | Kind::Unsigned | Kind::Signed, Kind::Float) => Ok(b),
        _ if is_wide_unsigned(a) || is_wide_unsigned(b) => unsupported(),
        // Only u8 is left of the unsigned: every signed type but i8 holds it, and i16 holds both.
        (Kind::Signed, Kind::Unsigned) => Ok(wider(a, DType::I16)),
        (Kind::Unsigned, Kind::Signed) => Ok(wider(b, DType::I16)),
        (Kind::Bool, Kind::Unsigned | Kind::Signed | Kind::Bool) => Ok(b),
        (Kind::Unsigned | Kind::Signed, Kind::Bool) | (Kind::Unsigned, Kind::Unsigned) => Ok(a),
    }
}

fn is_wide_unsigned(d: DType) -> bool {
    matches!(d.kind(), Kind::Unsigned) && d != DType::U8
}

fn wider(a: DType, b: DType) -> DType {
    if a.bits() >= b.bits() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_rows_are_consistent() {
        for &d in DType::ALL {
            assert_eq!(d.name().parse::<DType>().unwrap(), d);
            assert_eq!(DType::from_torch_name(d.torch_name()), Some(d));
            assert_eq!(d.size(), d.bits().div_ceil(8) as usize);
            assert_eq!(serde_json::to_string(&d).unwrap(), format!("\"{d}\""));
        }
        assert_eq!(DType::from_torch_name("torch.bfloat16"), Some(DType::BF16));
        assert_eq!("f7".parse::<DType>().unwrap_err().code, Code::UnknownName);
    }

    #[test]
    fn promotion_is_commutative() {
        for &a in DType::ALL {
            for &b in DType::ALL {
                assert_eq!(promote(a, b).ok(), promote(b, a).ok(), "{a} {b}");
            }
        }
    }
}
