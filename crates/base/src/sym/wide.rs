//! Interval arithmetic on 128 bits.
//!
//! An end without bound is `-INFINITE` or `INFINITE`, which no finite end reaches: what grows beyond
//! `LIMIT` on its outer side becomes infinite, and on its inner side stays at `LIMIT`. Both directions
//! only widen the interval, so it always holds every value.

use super::{Interval, floor_div_mod};
use std::ops::{Add, Mul};

const INFINITE: i128 = i128::MAX;
const LIMIT: i128 = 1 << 120;

/// All integers from `lo` to `hi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    pub(super) lo: i128,
    pub(super) hi: i128,
}

impl Wide {
    pub(super) const ALL: Wide = Wide {
        lo: -INFINITE,
        hi: INFINITE,
    };

    pub(super) fn point(value: i64) -> Wide {
        Wide {
            lo: value.into(),
            hi: value.into(),
        }
    }

    /// The only integer in it.
    pub(super) fn as_point(self) -> Option<i64> {
        if self.lo == self.hi {
            i64::try_from(self.lo).ok()
        } else {
            None
        }
    }

    /// To 64 bits, whose ends mean without bound.
    pub(super) fn narrow(self) -> Interval {
        let clamp = |x: i128| i64::try_from(x).unwrap_or(if x < 0 { i64::MIN } else { i64::MAX });
        Interval {
            lo: clamp(self.lo),
            hi: clamp(self.hi),
        }
    }

    fn new(lo: i128, hi: i128) -> Wide {
        Wide {
            lo: if lo < -LIMIT {
                -INFINITE
            } else {
                lo.min(LIMIT)
            },
            hi: if hi > LIMIT { INFINITE } else { hi.max(-LIMIT) },
        }
    }

    /// The extremes of a function that is monotone in each argument.
    fn corners(a: Wide, b: Wide, f: fn(i128, i128) -> i128) -> Wide {
        let all = [f(a.lo, b.lo), f(a.lo, b.hi), f(a.hi, b.lo), f(a.hi, b.hi)];
        let [first, rest @ ..] = all;
        let lo = rest.into_iter().fold(first, i128::min);
        let hi = rest.into_iter().fold(first, i128::max);
        Wide::new(lo, hi)
    }

    fn contains_zero(self) -> bool {
        self.lo <= 0 && 0 <= self.hi
    }

    fn negated(self) -> Wide {
        Wide {
            lo: -self.hi,
            hi: -self.lo,
        }
    }

    pub(super) fn square(self) -> Wide {
        let ends = [mul_ends(self.lo, self.lo), mul_ends(self.hi, self.hi)];
        let lo = if self.contains_zero() {
            0
        } else {
            ends[0].min(ends[1])
        };
        Wide::new(lo, ends[0].max(ends[1]))
    }

    /// Of divisors of one sign the quotient is monotone in both; a divisor that may be zero tells nothing.
    pub(super) fn floordiv(self, other: Wide) -> Wide {
        if other.contains_zero() {
            Wide::ALL
        } else {
            Wide::corners(self, other, div_ends)
        }
    }

    pub(super) fn modulo(self, other: Wide) -> Wide {
        if other.contains_zero() {
            return Wide::ALL;
        }
        if other.hi < 0 {
            return self.negated().modulo(other.negated()).negated();
        }
        let most = if other.hi == INFINITE {
            INFINITE
        } else {
            other.hi - 1
        };
        let quotient = self.floordiv(other);
        if let (Some(_), true) = (quotient.as_point(), self.lo != -INFINITE) {
            let rest = self + (quotient * other).negated();
            return Wide {
                lo: rest.lo.max(0),
                hi: rest.hi.min(most),
            };
        }
        Wide {
            lo: 0,
            hi: if self.lo >= 0 {
                most.min(self.hi)
            } else {
                most
            },
        }
    }

    pub(super) fn min(self, other: Wide) -> Wide {
        Wide {
            lo: self.lo.min(other.lo),
            hi: self.hi.min(other.hi),
        }
    }

    pub(super) fn max(self, other: Wide) -> Wide {
        Wide {
            lo: self.lo.max(other.lo),
            hi: self.hi.max(other.hi),
        }
    }
}

impl From<Interval> for Wide {
    fn from(interval: Interval) -> Wide {
        Wide {
            lo: if interval.lo == i64::MIN {
                -INFINITE
            } else {
                interval.lo.into()
            },
            hi: if interval.hi == i64::MAX {
                INFINITE
            } else {
                interval.hi.into()
            },
        }
    }
}

impl Add for Wide {
    type Output = Wide;

    fn add(self, other: Wide) -> Wide {
        // Finite ends are far from overflow; saturation keeps an infinite one beyond the limit.
        Wide::new(
            self.lo.saturating_add(other.lo),
            self.hi.saturating_add(other.hi),
        )
    }
}

impl Mul for Wide {
    type Output = Wide;

    fn mul(self, other: Wide) -> Wide {
        Wide::corners(self, other, mul_ends)
    }
}

/// Zero times infinity is zero, since the end bounds products of finite numbers.
fn mul_ends(a: i128, b: i128) -> i128 {
    a.checked_mul(b).unwrap_or(if (a < 0) == (b < 0) {
        INFINITE
    } else {
        -INFINITE
    })
}

/// The divisor is not zero.
fn div_ends(a: i128, b: i128) -> i128 {
    let same_sign = (a < 0) == (b < 0);
    if b.abs() == INFINITE {
        // The limit of the floor; where `a` is infinite too, the other corner has its part.
        if a == 0 || same_sign { 0 } else { -1 }
    } else if a.abs() == INFINITE {
        if same_sign { INFINITE } else { -INFINITE }
    } else {
        floor_div_mod(a, b).map_or(0, |(quotient, _)| quotient)
    }
}
