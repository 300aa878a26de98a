//! The float formats narrower than `f32`, each reached from and going to `f32`.
//!
//! All but `bf16` (a cut `f32`) and `e8m0` (an exponent alone) are the same machine with other
//! numbers: sign, exponent, mantissa, subnormals. [`Format`] holds the numbers.

const SIGN: u32 = 0x8000_0000;
const INFINITE: u32 = 0x7f80_0000;

/// A format with sign, exponent and mantissa, described by its numbers.
struct Format {
    /// Explicit bits of the mantissa.
    mantissa: u32,
    /// What is added to an exponent to store it.
    bias: u32,
    /// The code, without sign, that everything too large becomes: infinity or the largest value.
    overflow: u32,
    /// Whether `overflow` is infinity, and all codes above it NaN.
    infinity: bool,
    /// The NaN that conversion makes, without its sign; `None` where there is none.
    nan: Option<u32>,
    /// The position of the sign.
    sign_bit: u32,
}

const F16: Format = Format {
    mantissa: 10,
    bias: 15,
    overflow: 0x7c00,
    infinity: true,
    nan: Some(0x7e00),
    sign_bit: 15,
};
const E5M2: Format = Format {
    mantissa: 2,
    bias: 15,
    overflow: 0x7c,
    infinity: true,
    nan: Some(0x7f),
    sign_bit: 7,
};
const E4M3: Format = Format {
    mantissa: 3,
    bias: 7,
    overflow: 0x7e,
    infinity: false,
    nan: Some(0x7f),
    sign_bit: 7,
};
const E2M1: Format = Format {
    mantissa: 1,
    bias: 1,
    overflow: 0x7,
    infinity: false,
    nan: None,
    sign_bit: 3,
};

impl Format {
    fn encode(&self, x: f32) -> u32 {
        let bits = x.to_bits();
        let sign = (bits >> 31) << self.sign_bit;
        let magnitude = bits & !SIGN;
        if magnitude > INFINITE {
            return self.nan.map_or(self.overflow, |nan| sign | nan);
        }
        let drop = 23 - self.mantissa;
        let smallest_normal = (127 + 1 - self.bias) << 23;
        let code = if magnitude < smallest_normal {
            // One unit of the sum's last place is one unit of the subnormals', so the addition
            // itself rounds, to nearest even.
            let magic = (127 - self.bias + 1 + drop) << 23;
            (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits() - magic
        } else {
            let rebased = magnitude - ((127 - self.bias) << 23);
            let to_even = (rebased >> drop) & 1;
            // The carry may run into the exponent, which is then the right one.
            (rebased + (1 << (drop - 1)) - 1 + to_even) >> drop
        };
        sign | code.min(self.overflow)
    }

    fn decode(&self, code: u32) -> f32 {
        let sign = (code >> self.sign_bit & 1) << 31;
        let magnitude = code & ((1 << self.sign_bit) - 1);
        let drop = 23 - self.mantissa;
        if self.infinity && magnitude >= self.overflow {
            return f32::from_bits(sign | INFINITE | (magnitude << drop));
        }
        if self.nan == Some(magnitude) {
            return f32::from_bits(sign | INFINITE | 0x40_0000);
        }
        let x = if magnitude >> self.mantissa == 0 {
            magnitude as f32 * f32::from_bits((127 + 1 - self.bias - self.mantissa) << 23)
        } else {
            f32::from_bits((magnitude << drop) + ((127 - self.bias) << 23))
        };
        f32::from_bits(sign | x.to_bits())
    }
}

/// Nearest `f16`, ties to even; too large becomes infinite.
pub fn f32_to_f16(x: f32) -> u16 {
    F16.encode(x) as u16
}

/// Exact.
pub fn f16_to_f32(code: u16) -> f32 {
    F16.decode(code.into())
}

/// Nearest `bf16`, ties to even; too large becomes infinite. NaN keeps its sign and stays quiet.
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Exact.
pub fn bf16_to_f32(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Nearest `f8e4m3`, ties to even; too large and infinite saturate to ±448, NaN is 0x7f or 0xff.
pub fn f32_to_e4m3(x: f32) -> u8 {
    E4M3.encode(x) as u8
}

/// Exact.
pub fn e4m3_to_f32(code: u8) -> f32 {
    E4M3.decode(code.into())
}

/// Nearest `f8e5m2`, ties to even; too large becomes infinite, NaN is 0x7f or 0xff.
pub fn f32_to_e5m2(x: f32) -> u8 {
    E5M2.encode(x) as u8
}

/// Exact.
pub fn e5m2_to_f32(code: u8) -> f32 {
    E5M2.decode(code.into())
}

/// Nearest `f4e2m1`, ties to even; too large and infinite saturate to ±6, NaN becomes 6.
pub fn f32_to_e2m1(x: f32) -> u8 {
    E2M1.encode(x) as u8
}

/// Exact; the upper four bits are ignored.
pub fn e2m1_to_f32(code: u8) -> f32 {
    E2M1.decode((code & 0xf).into())
}

/// Nearest power of two, ties up (the tie at 2^-127 stays); the sign is dropped, zero becomes
/// 2^-127, and what is too large, infinite or NaN becomes NaN.
pub fn f32_to_e8m0(x: f32) -> u8 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as u8;
    let half = bits & 0x40_0000 != 0;
    let more = bits & 0x3f_ffff != 0;
    // At exponent 254 this reaches 255, which is NaN; NaN and infinity are there already.
    if half && (more || exponent > 0) {
        exponent.saturating_add(1)
    } else {
        exponent
    }
}

/// Exact: 2^(code - 127), or NaN for 255.
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x40_0000),
        255 => f32::NAN,
        1..=254 => f32::from_bits(u32::from(code) << 23),
    }
}
