//! Special functions as compositions of the vocabulary: gamma, error and bessel functions, orthogonal polynomials.
//!
//! ```text
//!   tables   coefficients as data, written by `tools/special.py`
//!   formula  the evaluator: arithmetic and polynomials on values of one dtype
//!   gamma, error, bessel, orthogonal, number, parts   what to evaluate where
//! ```
//!
//! Every function is built once, here, of operators that all targets and the interpreter have. There are no branches: each piece of a domain is evaluated and the
//! right one chosen. Being rare, they are computed in f64 whatever the dtype of the operand, which leaves nothing to argue about in f32; in f64 a result is within
//! some ten units in the last place of the function's largest value nearby. Where a true value fits in f32, it is given, even where an f32 computation on its way to it would overflow.
//!
//! Invariants: a function takes a value of `Formula::dtype` and gives one; a NaN operand gives NaN.

mod bessel;
mod error;
mod formula;
mod gamma;
mod number;
mod orthogonal;
mod parts;
mod tables;

pub use formula::{Formula, Term};
pub use number::gcd;
pub use orthogonal::{Chebyshev, Recurrence, chebyshev, recurrence};
pub use parts::{frexp, nextafter};

use crate::builder::Builder;
use crate::ir::ValueId;
use oxyfuel_base::{DType, Result, err};

/// A function of one value.
pub type Function = fn(&mut Formula<'_>, ValueId) -> Result<ValueId>;

macro_rules! functions {
    ($($name:ident $text:literal $path:path, $doc:literal;)*) => {
        /// Special functions of one element, under PyTorch's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Special {
            $(#[doc = $doc] $name,)*
        }

        impl Special {
            pub const ALL: &[Special] = &[$(Special::$name),*];

            /// PyTorch's name without a prefix.
            pub const fn name(self) -> &'static str {
                match self { $(Special::$name => $text),* }
            }

            fn function(self) -> Function {
                match self { $(Special::$name => $path),* }
            }
        }
    };
}

functions! {
    Lgamma "lgamma" gamma::lgamma, "log |gamma(x)|; infinite at 0, -1, -2, ...";
    Digamma "digamma" gamma::digamma, "The derivative of `lgamma`; NaN at -1, -2, ..., infinite at 0.";
    Erfinv "erfinv" error::erfinv, "The inverse of the error function; NaN outside [-1, 1].";
    Erfcx "erfcx" error::erfcx, "exp(x^2) erfc(x).";
    Ndtri "ndtri" error::ndtri, "The inverse of the normal distribution function; NaN outside [0, 1].";
    LogNdtr "log_ndtr" error::log_ndtr, "The logarithm of the normal distribution function.";
    I0 "i0" bessel::i0, "Modified bessel function of the first kind, order 0.";
    I0e "i0e" bessel::i0e, "exp(-|x|) I0(x).";
    I1 "i1" bessel::i1, "Modified bessel function of the first kind, order 1.";
    I1e "i1e" bessel::i1e, "exp(-|x|) I1(x).";
    K0 "modified_bessel_k0" bessel::k0, "Modified bessel function of the second kind, order 0; NaN below 0.";
    K1 "modified_bessel_k1" bessel::k1, "Modified bessel function of the second kind, order 1; NaN below 0.";
    K0e "scaled_modified_bessel_k0" bessel::k0e, "exp(x) K0(x).";
    K1e "scaled_modified_bessel_k1" bessel::k1e, "exp(x) K1(x).";
    J0 "bessel_j0" bessel::j0, "Bessel function of the first kind, order 0.";
    J1 "bessel_j1" bessel::j1, "Bessel function of the first kind, order 1.";
    Y0 "bessel_y0" bessel::y0, "Bessel function of the second kind, order 0; NaN below 0.";
    Y1 "bessel_y1" bessel::y1, "Bessel function of the second kind, order 1; NaN below 0.";
    SphericalJ0 "spherical_bessel_j0" bessel::spherical_j0, "sin(x) / x, 1 at 0.";
    AiryAi "airy_ai" bessel::airy_ai, "The airy function Ai.";
}

/// The dtype that a fraction of such elements has.
fn fractional(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

impl Builder {
    /// A special function; of integers an f32.
    #[track_caller]
    pub fn special(&mut self, f: Special, x: ValueId) -> Result<ValueId> {
        self.in_f64(&[x], |s, values| f.function()(s, values[0]))
    }

    /// The derivative of order `n` of `digamma`; of integers an f32.
    #[track_caller]
    pub fn polygamma(&mut self, n: i64, x: ValueId) -> Result<ValueId> {
        match n {
            0 => self.special(Special::Digamma, x),
            // PyTorch's own formula with its roundings: at the poles it is huge, not infinite.
            1 => self.formula(
                &[x],
                |d| if d == DType::F64 { d } else { DType::F32 },
                |s, v| gamma::trigamma(s, v[0]),
            ),
            2..=gamma::HIGHEST_ORDER => self.in_f64(&[x], |s, v| gamma::polygamma(s, n, v[0])),
            _ => Err(err!(
                InvalidArgument,
                "polygamma is of order 0 to {}, not {n}",
                gamma::HIGHEST_ORDER
            )),
        }
    }

    /// Hurwitz' zeta function: the sum of (q + k)^-x over k = 0, 1, ...
    #[track_caller]
    pub fn zeta(&mut self, x: ValueId, q: ValueId) -> Result<ValueId> {
        self.in_f64(&[x, q], |s, v| gamma::zeta(s, v[0], v[1]))
    }

    /// A formula in f64 on values that are first rounded to the dtype of the result, as PyTorch rounds integers.
    #[track_caller]
    pub fn in_f64(
        &mut self,
        values: &[ValueId],
        build: impl FnOnce(&mut Formula<'_>, &[ValueId]) -> Result<ValueId>,
    ) -> Result<ValueId> {
        self.formula(values, |_| DType::F64, build)
    }

    #[track_caller]
    fn formula(
        &mut self,
        values: &[ValueId],
        compute: impl FnOnce(DType) -> DType,
        build: impl FnOnce(&mut Formula<'_>, &[ValueId]) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let operands: Vec<_> = values.iter().map(|&v| v.into()).collect();
        let out = fractional(self.common_dtype(&operands)?);
        let compute = compute(out);
        let values = values.iter().map(|&v| {
            let v = self.cast(v, out)?;
            self.cast(v, compute)
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        let device = self.ty(values[0]).device;
        let y = build(
            &mut Formula {
                b: self,
                dtype: compute,
                device,
            },
            &values,
        )?;
        self.cast(y, out)
    }
}
