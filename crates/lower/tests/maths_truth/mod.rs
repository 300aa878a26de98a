//! Distances from a true value in f64, in ulps of f32.

/// `|got - want|` in units of the last place of an f32 of `want`'s size; infinite where NaN, infinity or a zero's sign differ.
pub fn ulp_error(got: f32, want: f64) -> f64 {
    let two = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
    let wrong = |ok: bool| if ok { 0.0 } else { f64::INFINITY };
    if want.is_nan() || got.is_nan() {
        return wrong(want.is_nan() && got.is_nan());
    }
    if want == 0.0 {
        return wrong(got == 0.0 && got.is_sign_negative() == want.is_sign_negative());
    }
    // from here on, rounding to nearest overflows
    if want.abs() >= f64::from(f32::MAX) + two(103) {
        return wrong(got.is_infinite() && (got > 0.0) == (want > 0.0));
    }
    let got = if got.is_infinite() {
        two(128).copysign(f64::from(got))
    } else {
        f64::from(got)
    };
    let exponent = ((want.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (got - want).abs() / two(exponent.max(-126) - 23)
}
