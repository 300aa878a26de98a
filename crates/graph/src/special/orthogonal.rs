//! Orthogonal polynomials.
//!
//! Those of Chebyshev are sines and cosines of multiples of an angle, so their degree may be data. The others are recurrences as long as their degree, which must
//! be known.

use super::formula::Formula;
use crate::ir::ValueId;
use oxyfuel_base::{Result, err};

/// The four kinds. With x = cos a: cos(n a), sin((n + 1) a) / sin a, cos((n + 1/2) a) / cos(a / 2), sin((n + 1/2) a) / sin(a / 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chebyshev {
    T,
    U,
    V,
    W,
}

/// The polynomial of degree `n`, cut to an integer; 0 for a negative one.
pub fn chebyshev(f: &mut Formula<'_>, kind: Chebyshev, x: ValueId, n: ValueId) -> Result<ValueId> {
    let n = f.trunc(n)?;
    let a = f.abs(x)?;
    let even = f.is_even(n)?;
    let parity = f.choose(even, 1.0, -1.0)?;
    let left = f.lt(x, 0.0)?;
    let inner_a = f.min(a, 1.0)?;
    let outer_a = f.max(a, 1.0)?;
    // On [-1, 1] the angle is that of |x| too: a polynomial of -x is one of x, with the sign of the degree.
    let angle = f.acos(inner_a)?;
    let rapidity = f.acosh(outer_a)?;
    let kind_left = match kind {
        Chebyshev::T => Chebyshev::T,
        Chebyshev::U => Chebyshev::U,
        Chebyshev::V => Chebyshev::W,
        Chebyshev::W => Chebyshev::V,
    };
    let outside = f.gt(a, 1.0)?;
    let mut of = |kind: Chebyshev| -> Result<ValueId> {
        let inner = wave(f, kind, n, angle, false)?;
        let outer = wave(f, kind, n, rapidity, true)?;
        let value = f.choose(outside, outer, inner)?;
        let one = f.eq(a, 1.0)?;
        let at_one = end(f, kind, n)?;
        f.choose(one, at_one, value)
    };
    let right_value = of(kind)?;
    let left_value = if kind == kind_left {
        right_value
    } else {
        of(kind_left)?
    };
    let left_value = f.mul(left_value, parity)?;
    let value = f.choose(left, left_value, right_value)?;
    let none = f.lt(n, 0.0)?;
    let value = f.choose(none, 0.0, value)?;
    let unknown = f.is_nan(x)?;
    f.choose(unknown, f64::NAN, value)
}

fn wave(
    f: &mut Formula<'_>,
    kind: Chebyshev,
    n: ValueId,
    angle: ValueId,
    hyperbolic: bool,
) -> Result<ValueId> {
    let sine = |f: &mut Formula<'_>, x| if hyperbolic { f.sinh(x) } else { f.sin(x) };
    let cosine = |f: &mut Formula<'_>, x| if hyperbolic { f.cosh(x) } else { f.cos(x) };
    let more = match kind {
        Chebyshev::T => 0.0,
        Chebyshev::U => 1.0,
        Chebyshev::V | Chebyshev::W => 0.5,
    };
    let multiple = f.add(n, more)?;
    let many = f.mul(multiple, angle)?;
    let part = f.mul(angle, more)?;
    match kind {
        Chebyshev::T => cosine(f, many),
        Chebyshev::U | Chebyshev::W => {
            let (above, below) = (sine(f, many)?, sine(f, part)?);
            f.div(above, below)
        }
        Chebyshev::V => {
            let (above, below) = (cosine(f, many)?, cosine(f, part)?);
            f.div(above, below)
        }
    }
}

/// The value at 1.
fn end(f: &mut Formula<'_>, kind: Chebyshev, n: ValueId) -> Result<ValueId> {
    match kind {
        Chebyshev::T | Chebyshev::V => f.value(1.0),
        Chebyshev::U => f.add(n, 1.0),
        Chebyshev::W => {
            let double = f.mul(n, 2.0)?;
            f.add(double, 1.0)
        }
    }
}

/// Families that a recurrence of three terms defines: p[k+1] = (a x + b) p[k] - c p[k-1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recurrence {
    HermiteH,
    HermiteHe,
    Laguerre,
    Legendre,
}

impl Recurrence {
    /// a, b and c of a step.
    fn step(self, k: f64) -> [f64; 3] {
        match self {
            Recurrence::HermiteH => [2.0, 0.0, 2.0 * k],
            Recurrence::HermiteHe => [1.0, 0.0, k],
            Recurrence::Laguerre => [-1.0 / (k + 1.0), (2.0 * k + 1.0) / (k + 1.0), k / (k + 1.0)],
            Recurrence::Legendre => [(2.0 * k + 1.0) / (k + 1.0), 0.0, k / (k + 1.0)],
        }
    }
}

/// The longest recurrence that is written out.
const LONGEST: i64 = 64;

/// The polynomial of degree `n`; 0 for a negative one.
pub fn recurrence(f: &mut Formula<'_>, family: Recurrence, x: ValueId, n: i64) -> Result<ValueId> {
    if n > LONGEST {
        return Err(err!(
            UnsupportedOp,
            "a recurrence of {n} steps; up to {LONGEST} are compiled"
        ));
    }
    if n < 0 {
        return f.mul(x, 0.0);
    }
    let zero = f.mul(x, 0.0)?;
    let (mut before, mut this) = (zero, f.add(zero, 1.0)?);
    for k in 0..n {
        let [a, b, c] = family.step(k as f64);
        let slope = f.mul(x, a)?;
        let factor = f.add(slope, b)?;
        let grown = f.mul(factor, this)?;
        let lost = f.mul(before, c)?;
        (before, this) = (this, f.sub(grown, lost)?);
    }
    Ok(this)
}
