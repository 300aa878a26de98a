//! A literal number: what a constant in IR text or an attribute holds.
//!
//! Two scalars are equal when their kinds and bits are: `0.0 != -0.0`, `nan == nan`, `1 != 1.0`. So
//! a scalar can be a key, and constant folding cannot lose a sign.

use crate::convert::{self, Value};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// A floating point, integer or boolean literal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Scalar {
    /// A float.
    F(f64),
    /// An integer.
    I(i64),
    /// A truth value.
    B(bool),
}

impl Scalar {
    /// The value after a conversion to `dtype`: rounded as the type rounds, and of the kind that the
    /// type holds. A `u64` above `i64::MAX` comes back as the `I` with the same bits.
    #[must_use]
    pub fn cast(self, dtype: DType) -> Scalar {
        Scalar::from_bits(dtype, self.to_bits(dtype))
    }

    /// The code of the value in `dtype`, in the low bits.
    pub fn to_bits(self, dtype: DType) -> u64 {
        let value = match self {
            Scalar::F(x) => Value::F(x),
            Scalar::I(x) => Value::I(x.into()),
            Scalar::B(x) => Value::B(x),
        };
        convert::encode(dtype, value)
    }

    /// The value of a code of `dtype`; a `u64` keeps its bits.
    pub fn from_bits(dtype: DType, bits: u64) -> Scalar {
        match convert::decode(dtype, bits) {
            Value::F(x) => Scalar::F(x),
            Value::I(x) => Scalar::I(x as i64),
            Value::B(x) => Scalar::B(x),
        }
    }

    /// The nearest float; true is 1.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::F(x) => x,
            Scalar::I(x) => x as f64,
            Scalar::B(x) => f64::from(u8::from(x)),
        }
    }

    /// The integer: floats are cut toward zero and saturate, NaN is 0 (see [`crate::convert`]).
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::F(x) => x as i64,
            Scalar::I(x) => x,
            Scalar::B(x) => i64::from(x),
        }
    }

    /// Whether it is other than zero; NaN is.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::F(x) => x != 0.0,
            Scalar::I(x) => x != 0,
            Scalar::B(x) => x,
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Scalar::F(x) => (0, x.to_bits()),
            Scalar::I(x) => (1, x as u64),
            Scalar::B(x) => (2, u64::from(x)),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Ord for Scalar {
    /// Floats (by `total_cmp`), then integers, then truth values.
    fn cmp(&self, other: &Scalar) -> Ordering {
        match (self, other) {
            (Scalar::F(a), Scalar::F(b)) => a.total_cmp(b),
            (Scalar::I(a), Scalar::I(b)) => a.cmp(b),
            (Scalar::F(_) | Scalar::I(_) | Scalar::B(_), _) => self.key().cmp(&other.key()),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Scalar) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Scalar {
        Scalar::F(x)
    }
}

impl From<f32> for Scalar {
    fn from(x: f32) -> Scalar {
        Scalar::F(x.into())
    }
}

impl From<i64> for Scalar {
    fn from(x: i64) -> Scalar {
        Scalar::I(x)
    }
}

impl From<i32> for Scalar {
    fn from(x: i32) -> Scalar {
        Scalar::I(x.into())
    }
}

impl From<bool> for Scalar {
    fn from(x: bool) -> Scalar {
        Scalar::B(x)
    }
}

/// The NaN that `nan` in text means; any other shows its bits.
const NAN: u64 = 0x7ff8_0000_0000_0000;

impl fmt::Display for Scalar {
    /// `1.5` `1e300` `-0.0` `inf` `nan` `nan:0xfff8000000000000` `3` `true`: floats always show that
    /// they are, in the fewest digits that read back to the same bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Scalar::F(x) if x.is_nan() && x.to_bits() != NAN => {
                write!(f, "nan:{:#018x}", x.to_bits())
            }
            Scalar::F(x) if x.is_nan() => f.write_str("nan"),
            Scalar::F(x) => write!(f, "{x:?}"),
            Scalar::I(x) => write!(f, "{x}"),
            Scalar::B(x) => write!(f, "{x}"),
        }
    }
}

impl FromStr for Scalar {
    type Err = Error;

    fn from_str(s: &str) -> Result<Scalar> {
        let bad = || {
            Error::new(
                Code::InvalidLiteral,
                format!("`{}` is not a number", s.escape_debug()),
            )
        };
        match s {
            "true" => return Ok(Scalar::B(true)),
            "false" => return Ok(Scalar::B(false)),
            "inf" => return Ok(Scalar::F(f64::INFINITY)),
            "-inf" => return Ok(Scalar::F(f64::NEG_INFINITY)),
            "nan" => return Ok(Scalar::F(f64::from_bits(NAN))),
            _ => {}
        }
        if let Some(hex) = s.strip_prefix("nan:0x") {
            let bits = u64::from_str_radix(hex, 16).map_err(|_| bad())?;
            let x = f64::from_bits(bits);
            return if x.is_nan() {
                Ok(Scalar::F(x))
            } else {
                Err(bad())
            };
        }
        // `f64::from_str` also takes `infinity`, `NaN` and a leading `+`, which are not our text.
        let plain = s
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'-' | b'+'));
        if !plain || s.starts_with('+') {
            return Err(bad());
        }
        if s.contains(['.', 'e']) {
            s.parse().map(Scalar::F).map_err(|_| bad())
        } else {
            s.parse().map(Scalar::I).map_err(|_| bad())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_says_the_kind() {
        let cases = [
            (Scalar::F(1.0), "1.0"),
            (Scalar::F(-0.0), "-0.0"),
            (Scalar::F(1e300), "1e300"),
            (Scalar::F(f64::NEG_INFINITY), "-inf"),
            (Scalar::F(f64::from_bits(NAN)), "nan"),
            (Scalar::I(i64::MIN), "-9223372036854775808"),
            (Scalar::B(true), "true"),
        ];
        for (scalar, text) in cases {
            assert_eq!(scalar.to_string(), text);
            assert_eq!(text.parse::<Scalar>().unwrap(), scalar);
        }
        for bad in [
            "",
            "-",
            "+1",
            "infinity",
            "NaN",
            "1.5.",
            "0x1",
            "nan:0x0",
            "9223372036854775808",
            "e",
            ".",
        ] {
            assert!(bad.parse::<Scalar>().is_err(), "{bad}");
        }
    }

    #[test]
    fn casts_round_as_the_type() {
        assert_eq!(
            Scalar::F(1.0 / 3.0).cast(DType::F32),
            Scalar::F((1.0f32 / 3.0).into())
        );
        assert_eq!(Scalar::F(-2.7).cast(DType::I32), Scalar::I(-2));
        assert_eq!(Scalar::I(300).cast(DType::U8), Scalar::I(44));
        assert_eq!(Scalar::I(-1).cast(DType::U64), Scalar::I(-1));
        assert_eq!(Scalar::F(f64::NAN).cast(DType::Bool), Scalar::B(true));
        assert_eq!(Scalar::B(true).cast(DType::F16), Scalar::F(1.0));
    }

    #[test]
    fn equality_is_by_bits() {
        assert_ne!(Scalar::F(0.0), Scalar::F(-0.0));
        assert_eq!(Scalar::F(f64::NAN), Scalar::F(f64::NAN));
        assert_ne!(Scalar::F(1.0), Scalar::I(1));
    }

    proptest! {
        #[test]
        fn floats_round_trip(bits: u64) {
            let x = Scalar::F(f64::from_bits(bits));
            prop_assert_eq!(x.to_string().parse::<Scalar>().unwrap(), x);
        }

        #[test]
        fn any_text_is_survived(s in ".*") {
            if let Ok(x) = s.parse::<Scalar>() {
                prop_assert_eq!(x.to_string().parse::<Scalar>().unwrap(), x);
            }
        }
    }
}
