//! Floats of eight bits and fewer as their codes: how a code becomes an f32, and an f32 a code.
//!
//! A code without its sign, shifted to where an f32 has exponent and mantissa, is the number but for a power of two, denormals included. The other way, numbers with a full mantissa are rounded
//! on their bits, to nearest even; smaller ones by adding the power of two whose last place is the format's.

use oxyfuel_base::DType;

use super::arith::Arith;

/// A format with a sign, exponent and mantissa.
struct Format {
    /// Bits of the mantissa, without the leading one.
    mantissa: i32,
    bias: i32,
    sign: i32,
    /// What larger numbers are cut to before they are rounded.
    most: f32,
    nan: i32,
}

const E4M3: Format = Format {
    mantissa: 3,
    bias: 7,
    sign: 0x80,
    most: 448.0,
    nan: 0x7f,
};
const E5M2: Format = Format {
    mantissa: 2,
    bias: 15,
    sign: 0x80,
    // Rounds to the code of infinity.
    most: 65536.0,
    nan: 0x7e,
};
const E2M1: Format = Format {
    mantissa: 1,
    bias: 1,
    sign: 0x8,
    most: 6.0,
    nan: 0x7,
};

/// The number of a code (in the low bits, the others zero).
pub fn decode<A: Arith>(a: &A, dtype: DType, code: A::I) -> A::F {
    match dtype {
        DType::F8E4M3 => {
            let v = decode_format(a, &E4M3, code);
            let nan = a.eq(a.abs(v), a.float(480.0));
            a.select(nan, a.float(f32::NAN), v)
        }
        DType::F8E5M2 => {
            let v = decode_format(a, &E5M2, code);
            let size = a.abs(v);
            let infinity = a.with_sign(a.float(f32::INFINITY), v);
            let over = a.select(a.eq(size, a.float(65536.0)), infinity, a.float(f32::NAN));
            a.select(a.lt(size, a.float(65536.0)), v, over)
        }
        DType::F4E2M1 => decode_format(a, &E2M1, code),
        // E8M0: the exponent of an f32, but for the lowest, which is a denormal there, and the highest, which is NaN.
        _ => {
            let v = a.of_bits(a.shl(code, 23));
            let v = a.select(a.nonzero(code), v, a.of_bits(a.int(0x0040_0000)));
            a.select(a.eq(v, a.float(f32::INFINITY)), a.float(f32::NAN), v)
        }
    }
}

fn decode_format<A: Arith>(a: &A, f: &Format, code: A::I) -> A::F {
    let size = a.shl(a.and(code, a.int(f.sign - 1)), 23 - f.mantissa);
    let v = a.mul(a.of_bits(size), a.float(2f32.powi(127 - f.bias)));
    let sign = a.shl(a.and(code, a.int(f.sign)), f.sign.leading_zeros() as i32);
    a.of_bits(a.or(a.bits(v), sign))
}

/// The code of a number, in the low bits.
pub fn encode<A: Arith>(a: &A, dtype: DType, x: A::F) -> A::I {
    match dtype {
        DType::F8E4M3 => encode_format(a, &E4M3, x),
        DType::F8E5M2 => encode_format(a, &E5M2, x),
        // No NaN: it becomes the largest positive number.
        DType::F4E2M1 => encode_format(a, &E2M1, x),
        // E8M0: the sign goes; ties go up but for the one between nothing and the second code.
        _ => {
            let size = a.abs(x);
            let tie = a.eq(size, a.of_bits(a.int(0x0040_0000)));
            let up = a.shr(a.iadd(a.bits(size), a.int(0x0040_0000)), 23);
            let code = choose(a, tie, a.int(0), up);
            choose(a, a.eq(x, x), code, a.int(255))
        }
    }
}

fn encode_format<A: Arith>(a: &A, f: &Format, x: A::F) -> A::I {
    let size = a.min(a.abs(x), a.float(f.most));
    let i = a.bits(size);
    let drop = 23 - f.mantissa;
    let odd = a.and(a.shr(i, drop), a.int(1));
    let rounded = a.shr(a.iadd(a.iadd(i, a.int((1 << (drop - 1)) - 1)), odd), drop);
    let normal = a.isub(rounded, a.int((127 - f.bias) << f.mantissa));
    let least = 2f32.powi(1 - f.bias);
    let shifter = a.float(least * 2f32.powi(drop));
    let small = a.isub(a.bits(a.add(size, shifter)), a.bits(shifter));
    let code = choose(a, a.lt(size, a.float(least)), small, normal);
    let sign = a.and(
        a.shr(a.bits(x), f.sign.leading_zeros() as i32),
        a.int(f.sign),
    );
    let signed = a.or(code, sign);
    let nan = if f.sign == E2M1.sign {
        a.int(f.nan)
    } else {
        a.or(a.int(f.nan), sign)
    };
    choose(a, a.eq(x, x), signed, nan)
}

/// A select of integers.
fn choose<A: Arith>(a: &A, cond: A::B, yes: A::I, no: A::I) -> A::I {
    a.bits(a.select(cond, a.of_bits(yes), a.of_bits(no)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maths::native::Native;
    use oxyfuel_base::convert::{Value, decode as true_decode, encode as true_encode};

    const FORMATS: [DType; 4] = [DType::F8E4M3, DType::F8E5M2, DType::F4E2M1, DType::E8M0];

    #[test]
    fn every_code_is_its_number() {
        for dtype in FORMATS {
            for code in 0..=dtype.mask() {
                let Value::F(want) = true_decode(dtype, code) else {
                    panic!("{dtype} is a float");
                };
                let got = f64::from(decode(&Native, dtype, code as i32));
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "{dtype} {code:#x}: {got}, not {want}"
                );
            }
        }
    }

    #[test]
    fn every_number_has_its_code() {
        for dtype in FORMATS {
            let near = (0..=dtype.mask()).flat_map(|code| {
                let bits = decode(&Native, dtype, code as i32).to_bits();
                let next = decode(&Native, dtype, (code as i32 + 1) & dtype.mask() as i32);
                let middle = ((f64::from(f32::from_bits(bits)) + f64::from(next)) / 2.0) as f32;
                let around = |b: u32| [b.wrapping_sub(1), b, b.wrapping_add(1)];
                around(bits).into_iter().chain(around(middle.to_bits()))
            });
            for bits in near.chain((0..1u64 << 32).step_by(99_991).map(|b| b as u32)) {
                let x = f32::from_bits(bits);
                let want = true_encode(dtype, Value::F(x.into()));
                let got = encode(&Native, dtype, x) as u64;
                let nan = |code| matches!(true_decode(dtype, code), Value::F(v) if v.is_nan());
                assert!(
                    got == want || (nan(got) && nan(want)),
                    "{x:e} ({bits:#x}) in {dtype} is {got:#x}, not {want:#x}"
                );
            }
        }
    }
}
