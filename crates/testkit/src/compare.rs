//! How far two floating-point results are apart, and when that is near enough.
//!
//! [`agrees`] is the project's definition of *agrees with eager*, per tensor. With E the largest error and R the
//! root-mean-square error against an f64 reference, ours passes where
//! - E(ours) <= 2 E(eager) + u and R(ours) <= 2 R(eager) + u, u being one ulp of the tensor's largest magnitude, or
//! - every element is within the default tolerance of `torch.testing.assert_close` of eager's.
//!
//! In both cases NaN and the infinities stand in the same places. Integers and bools are compared exactly, by `==`.
//! All formats of the compiler fit in an f64 without loss, so tensors come here as `&[f64]`.

use std::fmt;

/// What a floating-point format can express, and how near two of its values must be to count as close.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Format {
    pub name: &'static str,
    /// Stored bits of the significand.
    pub mantissa: i32,
    /// Exponent of the smallest normal number.
    pub min_exponent: i32,
    /// Default tolerances of `torch.testing.assert_close`.
    pub rtol: f64,
    pub atol: f64,
}

pub const F64: Format = Format {
    name: "f64",
    mantissa: 52,
    min_exponent: -1022,
    rtol: 1e-7,
    atol: 1e-7,
};
pub const F32: Format = Format {
    name: "f32",
    mantissa: 23,
    min_exponent: -126,
    rtol: 1.3e-6,
    atol: 1e-5,
};
pub const F16: Format = Format {
    name: "f16",
    mantissa: 10,
    min_exponent: -14,
    rtol: 1e-3,
    atol: 1e-5,
};
pub const BF16: Format = Format {
    name: "bf16",
    mantissa: 7,
    min_exponent: -126,
    rtol: 1.6e-2,
    atol: 1e-5,
};
pub const F8E4M3: Format = Format {
    name: "f8e4m3",
    mantissa: 3,
    min_exponent: -6,
    rtol: 0.0,
    atol: 0.0,
};
pub const F8E5M2: Format = Format {
    name: "f8e5m2",
    mantissa: 2,
    min_exponent: -14,
    rtol: 0.0,
    atol: 0.0,
};

impl Format {
    /// The distance between neighbouring values of this format at the magnitude of `x`. Infinite or NaN for such `x`.
    pub fn ulp(&self, x: f64) -> f64 {
        if !x.is_finite() {
            return x.abs();
        }
        power_of_two(exponent(x).max(self.min_exponent) - self.mantissa)
    }

    /// The error of `actual` in ulps of the exact value. Zero where both are NaN or the same infinity; infinite where
    /// only one is.
    pub fn error_in_ulps(&self, actual: f64, exact: f64) -> f64 {
        if actual == exact || (actual.is_nan() && exact.is_nan()) {
            return 0.0;
        }
        if !actual.is_finite() || !exact.is_finite() {
            return f64::INFINITY;
        }
        (actual - exact).abs() / self.ulp(exact)
    }

    /// Whether `actual` is within the default tolerance of `expected`.
    pub fn is_close(&self, actual: f64, expected: f64) -> bool {
        actual == expected
            || (actual.is_nan() && expected.is_nan())
            || (expected.is_finite()
                && (actual - expected).abs() <= self.atol + self.rtol * expected.abs())
    }
}

fn exponent(x: f64) -> i32 {
    // Zero and the denormals of f64 lie below every format's smallest normal number but f64's own, where they belong.
    match (x.abs().to_bits() >> 52) as i32 {
        0 => -1022,
        biased => biased - 1023,
    }
}

fn power_of_two(exponent: i32) -> f64 {
    if exponent >= -1022 {
        f64::from_bits(((exponent.min(1023) + 1023) as u64) << 52)
    } else {
        f64::from_bits(1u64 << (exponent + 1074).clamp(0, 51))
    }
}

/// How many representable numbers lie between two values: 0 for equal ones, 1 for neighbours; the two zeros are equal,
/// two NaN as well, and a NaN is infinitely far (`u64::MAX`) from everything else.
pub fn ulps_f32(a: f32, b: f32) -> u64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => 0,
        (false, false) => {
            ordered(u64::from(a.to_bits()), 32).abs_diff(ordered(u64::from(b.to_bits()), 32))
        }
        (true, false) | (false, true) => u64::MAX,
    }
}

/// [`ulps_f32`] for f64.
pub fn ulps_f64(a: f64, b: f64) -> u64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => 0,
        (false, false) => ordered(a.to_bits(), 64).abs_diff(ordered(b.to_bits(), 64)),
        (true, false) | (false, true) => u64::MAX,
    }
}

/// The distance of two bit patterns of a 16-bit or smaller sign-and-magnitude format (f16, bf16, fp8). The caller sorts
/// out NaN, which each format spells in its own way.
pub fn ulps_bits(a: u16, b: u16, width: u32) -> u64 {
    ordered(u64::from(a), width).abs_diff(ordered(u64::from(b), width))
}

/// Maps a sign-and-magnitude pattern to an integer in the order of the numbers.
fn ordered(bits: u64, width: u32) -> i64 {
    let sign = 1u64 << (width - 1);
    let magnitude = (bits & (sign - 1)) as i64;
    if bits & sign == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Why two tensors do not agree.
#[derive(Debug, Clone, PartialEq)]
pub enum Disagreement {
    Length {
        ours: usize,
        eager: usize,
        reference: usize,
    },
    /// NaN or an infinity that only one of the two has.
    Place { index: usize, ours: f64, eager: f64 },
    /// Neither the errors nor the tolerance hold. `index` is the element farthest outside the tolerance.
    Value {
        index: usize,
        ours: f64,
        eager: f64,
        reference: f64,
        errors: Errors,
    },
}

/// Errors against the reference, over the elements where all three are finite.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    pub ours_max: f64,
    pub eager_max: f64,
    pub ours_rms: f64,
    pub eager_rms: f64,
    /// One ulp of the tensor's largest magnitude.
    pub ulp: f64,
}

impl Errors {
    fn hold(&self) -> bool {
        self.ours_max <= 2.0 * self.eager_max + self.ulp
            && self.ours_rms <= 2.0 * self.eager_rms + self.ulp
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disagreement::Length {
                ours,
                eager,
                reference,
            } => {
                write!(
                    f,
                    "lengths differ: ours {ours}, eager {eager}, reference {reference}"
                )
            }
            Disagreement::Place { index, ours, eager } => {
                write!(f, "element {index}: ours is {ours:e}, eager's is {eager:e}")
            }
            Disagreement::Value {
                index,
                ours,
                eager,
                reference,
                errors: e,
            } => write!(
                f,
                "element {index}: ours {ours:e}, eager {eager:e}, reference {reference:e}; largest error {:e} (eager \
                 {:e}), rms {:e} (eager {:e}), one ulp {:e}",
                e.ours_max, e.eager_max, e.ours_rms, e.eager_rms, e.ulp
            ),
        }
    }
}

impl std::error::Error for Disagreement {}

/// Whether `ours` agrees with `eager`, given an f64 `reference`: the definition at the top of this module.
pub fn agrees(
    format: &Format,
    ours: &[f64],
    eager: &[f64],
    reference: &[f64],
) -> Result<(), Disagreement> {
    if ours.len() != eager.len() || ours.len() != reference.len() {
        return Err(Disagreement::Length {
            ours: ours.len(),
            eager: eager.len(),
            reference: reference.len(),
        });
    }
    check_places(ours, eager)?;
    let Some(index) = farthest(format, ours, eager) else {
        return Ok(());
    };
    let errors = errors(format, ours, eager, reference);
    // Where the reference itself is not finite there is no error to speak of: eager alone is the judge there.
    let undecided = |i: usize| !reference[i].is_finite() && !format.is_close(ours[i], eager[i]);
    if errors.hold() && !(0..ours.len()).any(undecided) {
        return Ok(());
    }
    let (ours, eager, reference) = (ours[index], eager[index], reference[index]);
    Err(Disagreement::Value {
        index,
        ours,
        eager,
        reference,
        errors,
    })
}

/// Whether every element is within the default tolerance, for results that have no better reference.
pub fn is_close(format: &Format, ours: &[f64], expected: &[f64]) -> Result<(), Disagreement> {
    // With the expected values as their own reference, their error is zero, and one ulp would be let pass: judge alone.
    if ours.len() != expected.len() {
        return Err(Disagreement::Length {
            ours: ours.len(),
            eager: expected.len(),
            reference: expected.len(),
        });
    }
    check_places(ours, expected)?;
    match farthest(format, ours, expected) {
        None => Ok(()),
        Some(index) => Err(Disagreement::Value {
            index,
            ours: ours[index],
            eager: expected[index],
            reference: expected[index],
            errors: errors(format, ours, expected, expected),
        }),
    }
}

fn check_places(ours: &[f64], eager: &[f64]) -> Result<(), Disagreement> {
    let same =
        |a: f64, b: f64| (a.is_finite() && b.is_finite()) || a == b || (a.is_nan() && b.is_nan());
    match ours.iter().zip(eager).position(|(a, b)| !same(*a, *b)) {
        None => Ok(()),
        Some(index) => Err(Disagreement::Place {
            index,
            ours: ours[index],
            eager: eager[index],
        }),
    }
}

/// The element farthest outside the tolerance, if any is outside.
fn farthest(format: &Format, ours: &[f64], eager: &[f64]) -> Option<usize> {
    let excess = |i: &usize| (ours[*i] - eager[*i]).abs() - format.rtol * eager[*i].abs();
    let outside = (0..ours.len()).filter(|i| !format.is_close(ours[*i], eager[*i]));
    outside.max_by(|a, b| excess(a).total_cmp(&excess(b)))
}

fn errors(format: &Format, ours: &[f64], eager: &[f64], reference: &[f64]) -> Errors {
    let mut errors = Errors::default();
    let (mut count, mut largest) = (0usize, 0.0f64);
    for ((o, e), r) in ours.iter().zip(eager).zip(reference) {
        if !(o.is_finite() && e.is_finite() && r.is_finite()) {
            continue;
        }
        count += 1;
        largest = largest.max(r.abs());
        let (ours, eager) = ((o - r).abs(), (e - r).abs());
        errors.ours_max = errors.ours_max.max(ours);
        errors.eager_max = errors.eager_max.max(eager);
        errors.ours_rms += ours * ours;
        errors.eager_rms += eager * eager;
    }
    let mean = |sum: f64| (sum / count.max(1) as f64).sqrt();
    errors.ours_rms = mean(errors.ours_rms);
    errors.eager_rms = mean(errors.eager_rms);
    errors.ulp = format.ulp(largest);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulps_match_the_formats() {
        assert_eq!(F32.ulp(1.0), f64::from(f32::EPSILON));
        assert_eq!(F32.ulp(1.999), f64::from(f32::EPSILON));
        assert_eq!(F32.ulp(-2.0), 2.0 * f64::from(f32::EPSILON));
        assert_eq!(F32.ulp(0.0), f64::from(f32::from_bits(1)));
        assert_eq!(F64.ulp(1.0), f64::EPSILON);
        assert_eq!(F64.ulp(0.0), f64::from_bits(1));
        assert_eq!(F64.ulp(f64::MIN_POSITIVE), f64::from_bits(1));
        assert_eq!(F16.ulp(1024.0), 1.0);
        assert_eq!(BF16.ulp(256.0), 2.0);
        assert_eq!(F8E4M3.ulp(448.0), 32.0);
        assert_eq!(F8E4M3.ulp(0.0), 1.0 / 512.0);
        assert!(F32.ulp(f64::NEG_INFINITY).is_infinite() && F32.ulp(f64::NAN).is_nan());
    }

    #[test]
    fn distances_count_representable_numbers() {
        assert_eq!(ulps_f32(1.0, f32::from_bits(1.0f32.to_bits() + 3)), 3);
        assert_eq!(ulps_f32(0.0, -0.0), 0);
        assert_eq!(ulps_f32(f32::from_bits(1), -f32::from_bits(1)), 2);
        assert_eq!(ulps_f32(f32::MAX, f32::INFINITY), 1);
        assert_eq!(ulps_f32(f32::NAN, f32::NAN), 0);
        assert_eq!(ulps_f32(f32::NAN, 1.0), u64::MAX);
        assert_eq!(ulps_f64(-1.0, -1.0 - f64::EPSILON), 1);
        assert_eq!(
            ulps_f64(f64::NEG_INFINITY, f64::INFINITY),
            2 * 0x7ff0_0000_0000_0000
        );
        assert_eq!(ulps_bits(0x3c00, 0x3c02, 16), 2);
        assert_eq!(ulps_bits(0x8001, 0x0001, 16), 2);
        assert_eq!(ulps_bits(0x80, 0x00, 8), 0);
    }

    #[test]
    fn errors_in_ulps_are_fractions_against_the_exact_value() {
        let exact = 1.0 + 0.25 * f64::from(f32::EPSILON);
        assert_eq!(F32.error_in_ulps(1.0, exact), 0.25);
        assert_eq!(F32.error_in_ulps(f64::NAN, f64::NAN), 0.0);
        assert_eq!(F32.error_in_ulps(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(F32.error_in_ulps(f64::INFINITY, 1e300), f64::INFINITY);
        assert_eq!(F32.error_in_ulps(f64::NAN, 1.0), f64::INFINITY);
    }

    #[test]
    fn twice_eagers_error_passes_and_thrice_fails() {
        let reference = [1000.0, 0.5];
        let ulp = F32.ulp(1000.0);
        let off = |by: f64| [1000.0 + by * 100.0 * ulp, 0.5 + by * 100.0 * ulp];
        let eager = off(1.0);
        assert_eq!(agrees(&F32, &off(-2.0), &eager, &reference), Ok(()));
        let error = agrees(&F32, &off(-3.0), &eager, &reference).unwrap_err();
        assert!(
            matches!(error, Disagreement::Value { index: 1, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("element 1"), "{error}");
    }

    #[test]
    fn one_bad_element_among_many_fails_by_its_largest_error() {
        let eager = vec![1.0; 10_000];
        let mut ours = eager.clone();
        ours[77] = 1.001;
        let error = agrees(&F32, &ours, &eager, &eager).unwrap_err();
        assert!(matches!(error, Disagreement::Value { index: 77, .. }));
    }

    #[test]
    fn a_large_root_mean_square_fails_though_the_largest_error_holds() {
        let reference = vec![1.0; 1000];
        let mut eager = reference.clone();
        eager[0] = 1.01;
        let ours = vec![1.01; 1000];
        assert!(agrees(&F32, &ours, &eager, &reference).is_err());
    }

    #[test]
    fn the_default_tolerance_is_enough_by_itself() {
        // An exact eager result, and ours many ulps of the largest magnitude away, but within bf16's 1.6 %.
        assert_eq!(agrees(&BF16, &[1.015], &[1.0], &[1.0]), Ok(()));
        assert!(agrees(&BF16, &[1.03], &[1.0], &[1.0]).is_err());
        assert!(agrees(&F8E4M3, &[1.25], &[1.0], &[1.0]).is_err());
        assert_eq!(agrees(&F8E4M3, &[1.125], &[1.0], &[1.0]), Ok(()));
    }

    #[test]
    fn nan_and_infinities_stand_in_the_same_places() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(
            agrees(&F16, &[inf, nan, 1.0], &[inf, nan, 1.0], &[7e4, nan, 1.0]),
            Ok(())
        );
        for ours in [
            [-inf, nan, 1.0],
            [inf, 0.0, 1.0],
            [inf, nan, inf],
            [6e4, nan, 1.0],
        ] {
            let error = agrees(&F16, &ours, &[inf, nan, 1.0], &[7e4, nan, 1.0]).unwrap_err();
            assert!(
                matches!(error, Disagreement::Place { .. }),
                "{ours:?}: {error}"
            );
        }
    }

    #[test]
    fn a_reference_that_is_not_finite_leaves_eager_as_the_judge() {
        assert_eq!(agrees(&F32, &[3.0], &[3.0], &[f64::NAN]), Ok(()));
        assert!(agrees(&F32, &[4.0], &[3.0], &[f64::NAN]).is_err());
    }

    #[test]
    fn lengths_and_empty_tensors() {
        assert_eq!(agrees(&F32, &[], &[], &[]), Ok(()));
        assert!(matches!(
            agrees(&F32, &[1.0], &[], &[]),
            Err(Disagreement::Length { .. })
        ));
        assert_eq!(is_close(&F32, &[1.0], &[1.0 + 1e-6]), Ok(()));
        assert!(is_close(&F32, &[1.0], &[1.1]).is_err());
        assert!(is_close(&F32, &[1.0], &[]).is_err());
        assert!(is_close(&F32, &[1.0], &[f64::NAN]).is_err());
    }
}
