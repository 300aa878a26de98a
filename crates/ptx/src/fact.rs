//! What is known of an integer while compiling: an interval that holds it, and a number it is a multiple of.
//!
//! Facts decide three things: whether an index fits into 32 bits, whether an address is aligned enough for a wide access, and whether a bound
//! can fail at all. Every rule is conservative: where a result may leave 64 bits, nothing is known.

/// `lo <= x <= hi`, and `multiple` divides `x` (0: only zero is possible).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) lo: i64,
    pub(crate) hi: i64,
    pub(crate) multiple: u64,
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Fact {
    pub(crate) const UNKNOWN: Self = Self {
        lo: i64::MIN,
        hi: i64::MAX,
        multiple: 1,
    };

    pub(crate) fn constant(value: i64) -> Self {
        Self {
            lo: value,
            hi: value,
            multiple: value.unsigned_abs(),
        }
    }

    pub(crate) fn range(lo: i64, hi: i64) -> Self {
        Self {
            lo,
            hi,
            multiple: 1,
        }
    }

    pub(crate) fn as_constant(self) -> Option<i64> {
        (self.lo == self.hi).then_some(self.lo)
    }

    pub(crate) fn fits_i32(self) -> bool {
        self.lo >= i64::from(i32::MIN) && self.hi <= i64::from(i32::MAX)
    }

    pub(crate) fn divisible_by(self, n: u64) -> bool {
        n != 0 && self.multiple.is_multiple_of(n)
    }

    fn from_wide(lo: i128, hi: i128, multiple: u64) -> Self {
        match (i64::try_from(lo), i64::try_from(hi)) {
            (Ok(lo), Ok(hi)) => Self { lo, hi, multiple },
            // A power of two survives wrapping, anything else may not.
            (Ok(_) | Err(_), Ok(_) | Err(_)) => Self {
                multiple: if multiple == 0 {
                    1
                } else {
                    1 << multiple.trailing_zeros()
                },
                ..Self::UNKNOWN
            },
        }
    }

    pub(crate) fn add(self, other: Self) -> Self {
        Self::from_wide(
            i128::from(self.lo) + i128::from(other.lo),
            i128::from(self.hi) + i128::from(other.hi),
            gcd(self.multiple, other.multiple),
        )
    }

    pub(crate) fn sub(self, other: Self) -> Self {
        Self::from_wide(
            i128::from(self.lo) - i128::from(other.hi),
            i128::from(self.hi) - i128::from(other.lo),
            gcd(self.multiple, other.multiple),
        )
    }

    pub(crate) fn mul(self, other: Self) -> Self {
        let corners = [
            (self.lo, other.lo),
            (self.lo, other.hi),
            (self.hi, other.lo),
            (self.hi, other.hi),
        ]
        .map(|(a, b)| i128::from(a) * i128::from(b));
        let (mut lo, mut hi) = (corners[0], corners[0]);
        for corner in corners {
            lo = lo.min(corner);
            hi = hi.max(corner);
        }
        let multiple = self
            .multiple
            .checked_mul(other.multiple)
            .unwrap_or_else(|| {
                // The power of two in it is still known.
                1 << (self.multiple.trailing_zeros() + other.multiple.trailing_zeros()).min(62)
            });
        Self::from_wide(lo, hi, multiple)
    }

    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            lo: self.lo.min(other.lo),
            hi: self.hi.min(other.hi),
            multiple: gcd(self.multiple, other.multiple),
        }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            lo: self.lo.max(other.lo),
            hi: self.hi.max(other.hi),
            multiple: gcd(self.multiple, other.multiple),
        }
    }

    /// Either of two values.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
            multiple: gcd(self.multiple, other.multiple),
        }
    }

    /// Quotient rounded down by a positive constant.
    pub(crate) fn floordiv(self, divisor: i64) -> Self {
        let d = divisor.unsigned_abs();
        let multiple = if self.multiple.is_multiple_of(d) {
            self.multiple / d
        } else {
            1
        };
        Self {
            lo: self.lo.div_euclid(divisor),
            hi: self.hi.div_euclid(divisor),
            multiple,
        }
    }

    /// Remainder of the floored quotient by a positive constant.
    pub(crate) fn modulo(self, divisor: i64) -> Self {
        if self.lo >= 0 && self.hi < divisor {
            return self;
        }
        let multiple = gcd(self.multiple, divisor.unsigned_abs());
        Self {
            lo: 0,
            hi: divisor - 1,
            multiple,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds(fact: Fact, x: i64) -> bool {
        let multiple = if fact.multiple == 0 {
            x == 0
        } else {
            x.unsigned_abs().is_multiple_of(fact.multiple)
        };
        fact.lo <= x && x <= fact.hi && multiple
    }

    /// A value and a fact that is true of it.
    fn known() -> impl Strategy<Value = (i64, Fact)> {
        (any::<i64>(), 0u32..60, 0i64..1000, 0i64..1000, 1u64..50).prop_map(
            |(x, shift, below, above, step)| {
                let base = x >> shift;
                let x = base - base % i64::try_from(step).unwrap_or(1);
                (
                    x,
                    Fact {
                        lo: x.saturating_sub(below),
                        hi: x.saturating_add(above),
                        multiple: step,
                    },
                )
            },
        )
    }

    proptest! {
        #[test]
        fn facts_stay_true((x, a) in known(), (y, b) in known(), d in 1i64..100) {
            prop_assert!(holds(a.add(b), x.wrapping_add(y)));
            prop_assert!(holds(a.sub(b), x.wrapping_sub(y)));
            prop_assert!(holds(a.mul(b), x.wrapping_mul(y)));
            prop_assert!(holds(a.min(b), x.min(y)));
            prop_assert!(holds(a.max(b), x.max(y)));
            prop_assert!(holds(a.join(b), x) && holds(a.join(b), y));
            prop_assert!(holds(a.floordiv(d), x.div_euclid(d)));
            prop_assert!(holds(a.modulo(d), x.rem_euclid(d)));
            prop_assert!(holds(Fact::constant(x), x));
        }
    }

    #[test]
    fn bound_of_a_tail_is_proved() {
        let pid = Fact::range(0, (1 << 18) - 1);
        let left = Fact::constant(1 << 28).sub(pid.mul(Fact::constant(1024)));
        assert!(left.lo >= 1024 && left.divisible_by(4));
    }
}
