//! Expansions on plain `f32`: the reference that the tile IR must equal bit for bit, and that is measured over every input.

use super::arith::Arith;

/// Computes with the host's `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Arith for Native {
    type F = f32;
    type I = i32;
    type D = f64;
    type L = u64;
    type B = bool;

    #[inline(always)]
    fn float(&self, value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn int(&self, value: i32) -> i32 {
        value
    }
    #[inline(always)]
    fn add(&self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(&self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(&self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(&self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(&self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn min(&self, a: f32, b: f32) -> f32 {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a < b || (a == b && a.is_sign_negative()) {
            a
        } else {
            b
        }
    }
    #[inline(always)]
    fn max(&self, a: f32, b: f32) -> f32 {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a > b || (a == b && a.is_sign_positive()) {
            a
        } else {
            b
        }
    }
    #[inline(always)]
    fn neg(&self, a: f32) -> f32 {
        -a
    }
    #[inline(always)]
    fn abs(&self, a: f32) -> f32 {
        a.abs()
    }
    #[inline(always)]
    fn sqrt(&self, a: f32) -> f32 {
        a.sqrt()
    }
    #[inline(always)]
    fn exp2(&self, a: f32) -> f32 {
        a.exp2()
    }
    #[inline(always)]
    fn near_exp2(&self, a: f32) -> f32 {
        a.exp2()
    }
    #[inline(always)]
    fn near_recip(&self, a: f32) -> f32 {
        1.0 / a
    }
    #[inline(always)]
    fn near_rsqrt(&self, a: f32) -> f32 {
        1.0 / a.sqrt()
    }
    #[inline(always)]
    fn lt(&self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn eq(&self, a: f32, b: f32) -> bool {
        a == b
    }
    #[inline(always)]
    fn select(&self, cond: bool, yes: f32, no: f32) -> f32 {
        if cond { yes } else { no }
    }
    #[inline(always)]
    fn nonzero(&self, a: i32) -> bool {
        a != 0
    }
    #[inline(always)]
    fn bits(&self, a: f32) -> i32 {
        a.to_bits() as i32
    }
    #[inline(always)]
    fn of_bits(&self, a: i32) -> f32 {
        f32::from_bits(a as u32)
    }
    #[inline(always)]
    fn to_float(&self, a: i32) -> f32 {
        a as f32
    }
    #[inline(always)]
    fn iadd(&self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn isub(&self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn and(&self, a: i32, b: i32) -> i32 {
        a & b
    }
    #[inline(always)]
    fn or(&self, a: i32, b: i32) -> i32 {
        a | b
    }
    #[inline(always)]
    fn xor(&self, a: i32, b: i32) -> i32 {
        a ^ b
    }
    #[inline(always)]
    fn shl(&self, a: i32, by: i32) -> i32 {
        a << by
    }
    #[inline(always)]
    fn shr(&self, a: i32, by: i32) -> i32 {
        a >> by
    }
    #[inline(always)]
    fn double(&self, value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn widen(&self, a: f32) -> f64 {
        f64::from(a)
    }
    #[inline(always)]
    fn narrow(&self, a: f64) -> f32 {
        a as f32
    }
    #[inline(always)]
    fn dadd(&self, a: f64, b: f64) -> f64 {
        a + b
    }
    #[inline(always)]
    fn dsub(&self, a: f64, b: f64) -> f64 {
        a - b
    }
    #[inline(always)]
    fn dmul(&self, a: f64, b: f64) -> f64 {
        a * b
    }
    #[inline(always)]
    fn dfma(&self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn ddiv(&self, a: f64, b: f64) -> f64 {
        a / b
    }
    #[inline(always)]
    fn dmin(&self, a: f64, b: f64) -> f64 {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else if a < b || (a == b && a.is_sign_negative()) {
            a
        } else {
            b
        }
    }
    #[inline(always)]
    fn dmax(&self, a: f64, b: f64) -> f64 {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else if a > b || (a == b && a.is_sign_positive()) {
            a
        } else {
            b
        }
    }
    #[inline(always)]
    fn deq(&self, a: f64, b: f64) -> bool {
        a == b
    }
    #[inline(always)]
    fn dneg(&self, a: f64) -> f64 {
        -a
    }
    #[inline(always)]
    fn dround(&self, a: f64) -> f64 {
        a.round_ties_even()
    }
    #[inline(always)]
    fn dselect(&self, cond: bool, yes: f64, no: f64) -> f64 {
        if cond { yes } else { no }
    }
    #[inline(always)]
    fn dto_int(&self, a: f64) -> i32 {
        a as i32
    }
    #[inline(always)]
    fn dabs(&self, a: f64) -> f64 {
        a.abs()
    }
    #[inline(always)]
    fn dsqrt(&self, a: f64) -> f64 {
        a.sqrt()
    }
    #[inline(always)]
    fn dtrunc(&self, a: f64) -> f64 {
        a.trunc()
    }
    #[inline(always)]
    fn dlt(&self, a: f64, b: f64) -> bool {
        a < b
    }
    #[inline(always)]
    fn long(&self, value: u64) -> u64 {
        value
    }
    #[inline(always)]
    fn dbits(&self, a: f64) -> u64 {
        a.to_bits()
    }
    #[inline(always)]
    fn of_dbits(&self, a: u64) -> f64 {
        f64::from_bits(a)
    }
    #[inline(always)]
    fn ladd(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn lsub(&self, a: u64, b: u64) -> u64 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn land(&self, a: u64, b: u64) -> u64 {
        a & b
    }
    #[inline(always)]
    fn lor(&self, a: u64, b: u64) -> u64 {
        a | b
    }
    #[inline(always)]
    fn lshl(&self, a: u64, by: i32) -> u64 {
        a << by
    }
    #[inline(always)]
    fn lshr(&self, a: u64, by: i32) -> u64 {
        a >> by
    }
    #[inline(always)]
    fn lnonzero(&self, a: u64) -> bool {
        a != 0
    }
}
