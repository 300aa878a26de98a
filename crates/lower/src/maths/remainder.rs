//! The remainder of floats, exactly: long division in digits of many bits.
//!
//! With `b_i = 2^(digit i) b`, every step takes `trunc(r / b_i) b_i` off `r`, from the largest `i` that the range of exponents allows down to 0. What is left after a step is below `b_i`, so that the
//! next quotient has at most `digit` bits; the fused product and difference is then exact. A quotient that was rounded up to the next integer leaves a negative rest, to which `b_i` is added again.

use super::arith::Arith;

/// Bits of a quotient's digit: few enough that rounding a quotient is off by less than one.
const DIGIT: i32 = 50;

/// C's `fmod` for operands that are f32 numbers in f64.
pub fn rem_of_singles<A: Arith>(a: &A, x: A::D, y: A::D) -> A::D {
    // From 2^128 down to 2^-149.
    rem(a, x, y, 6)
}

/// C's `fmod`.
pub fn rem_of_doubles<A: Arith>(a: &A, x: A::D, y: A::D) -> A::D {
    // From 2^1024 down to 2^-1074.
    rem(a, x, y, 42)
}

fn rem<A: Arith>(a: &A, x: A::D, y: A::D, digits: usize) -> A::D {
    let (zero, infinity) = (a.double(0.0), a.double(f64::INFINITY));
    let divisor = a.dabs(y);
    let mut r = a.dabs(x);
    let mut shifted = vec![divisor];
    for i in 1..digits {
        shifted.push(a.dmul(shifted[i - 1], a.double(2f64.powi(DIGIT))));
    }
    for b in shifted.into_iter().rev() {
        let quotient = a.dtrunc(a.ddiv(r, b));
        let rest = a.dfma(a.dneg(quotient), b, r);
        let rest = a.dselect(a.dlt(rest, zero), a.dadd(rest, b), rest);
        // A divisor that overflowed is larger than what is left.
        r = a.dselect(a.dlt(b, infinity), rest, r);
    }
    let r = a.dwith_sign(r, x);
    let nan = a.double(f64::NAN);
    let r = a.dselect(a.dlt(a.dabs(x), infinity), r, nan);
    let r = a.dselect(a.deq(y, zero), nan, r);
    a.dselect(a.deq(y, y), r, nan)
}
