//! The table of expansions: op, error, cost.

use oxyfuel_kernel::UnaryOp;

use super::arith::Arith;
use super::count::Count;
use super::{double, double_angle, double_error};
use super::{error_function, exponential, logarithm, roots, trigonometric};

/// One row: what is known of an expansion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expansion {
    pub op: UnaryOp,
    /// Upper bound on the error in units of the last place, over f32 inputs: measured (`docs/maths.md` says over which) and held by the tests.
    pub max_ulp: f64,
    /// Bits of the input where the largest error was met.
    pub worst: u32,
    /// How it is computed, in a few words.
    pub method: &'static str,
}

impl Expansion {
    /// How many instructions it takes; bit casts and constants are free.
    pub fn instructions(&self) -> u32 {
        instructions(self.op)
    }

    /// How many of the instructions are f64, which take twice the vector registers and, on small GPUs, far more time.
    pub fn f64_instructions(&self) -> u32 {
        let count = Count::default();
        apply(&count, self.op, ());
        count.doubles()
    }
}

macro_rules! expansions {
    ($($op:ident $function:path, $max_ulp:literal at $worst:literal, $method:literal;)*) => {
        /// Every expansion of an op of one operand.
        pub const TABLE: &[Expansion] = &[$(
            Expansion { op: UnaryOp::$op, max_ulp: $max_ulp, worst: $worst, method: $method },
        )*];

        /// `op` of `x` by its expansion; `None` for the ops that targets have themselves.
        #[inline]
        pub fn apply<A: Arith>(a: &A, op: UnaryOp, x: A::F) -> Option<A::F> {
            match op {
                $(UnaryOp::$op => Some($function(a, x)),)*
                // Rare enough to be computed in f64.
                UnaryOp::Atan => Some(a.narrow(double_angle::atan(a, a.widen(x)))),
                UnaryOp::Erfc => Some(a.narrow(double_error::erfc(a, a.widen(x)))),
                UnaryOp::NearExp2 => Some(exponential::near_exp2(a, x)),
                UnaryOp::Neg
                | UnaryOp::Abs
                | UnaryOp::Not
                | UnaryOp::Sqrt
                | UnaryOp::Recip
                | UnaryOp::NearRecip
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Trunc
                | UnaryOp::Round
                | UnaryOp::IsNan => None,
            }
        }
    };
}

expansions! {
    Exp     exponential::exp,      0.892 at 0xc0bb_2813, "2^k (1 + r + r^2 q(r)), scaled in two steps";
    Exp2    exponential::exp2,     0.879 at 0xc2fc_fe35, "2^k (1 + f q(f)), scaled in two steps";
    Expm1   exponential::expm1,    0.890 at 0x3eb1_7e5d, "2^k (r + r^2 q(r)) + (2^k - 1), lost bits recovered";
    Log     logarithm::log,        0.920 at 0x3fc8_82ce, "k ln 2 + f + f^2 q(f), f in [sqrt(1/2) - 1, sqrt(2) - 1]";
    Log2    logarithm::log2,       0.976 at 0x3fb3_52cd, "k + f log2(e) + f^2 q(f)";
    Log1p   logarithm::log1p,      0.924 at 0xbebe_cd3f, "as log, of x scaled before 1 is added";
    Sin     trigonometric::sin,    0.874 at 0x43a6_1ca3, "f64 reduction by 2/pi for all x, f32 polynomials";
    Cos     trigonometric::cos,    0.873 at 0x4cc7_8b7a, "f64 reduction by 2/pi for all x, f32 polynomials";
    Tanh    exponential::tanh,     0.927 at 0x3f75_2fa8, "x + x^3 q(x^2) below 0.95, then 1 - 2 / (1 + e^2x)";
    Erf     error_function::erf,   0.986 at 0x3f7e_d47f, "x + x q(x^2) below 1, then 1 - e^p(x)";
    Sigmoid exponential::sigmoid,  0.944 at 0xbea5_f070, "y = e / (1 + e) with e = exp(-abs x), lost bits recovered; or 1 - y";
    Rsqrt   roots::rsqrt,          0.850 at 0x003f_eb3a, "sqrt(1 / x), scaled";
}

/// `op` of an f64 by its expansion; `None` for the ops that targets have themselves.
pub fn apply_double<A: Arith>(a: &A, op: UnaryOp, x: A::D) -> Option<A::D> {
    let function = match op {
        UnaryOp::Exp => double::exp,
        UnaryOp::Exp2 | UnaryOp::NearExp2 => double::exp2,
        UnaryOp::Expm1 => double::expm1,
        UnaryOp::Log => double::log,
        UnaryOp::Log2 => double::log2,
        UnaryOp::Log1p => double::log1p,
        UnaryOp::Sin => double_angle::sin,
        UnaryOp::Cos => double_angle::cos,
        UnaryOp::Atan => double_angle::atan,
        UnaryOp::Tanh => double::tanh,
        UnaryOp::Erf => double_error::erf,
        UnaryOp::Erfc => double_error::erfc,
        UnaryOp::Sigmoid => double::sigmoid,
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Recip
        | UnaryOp::NearRecip
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Trunc
        | UnaryOp::Round
        | UnaryOp::IsNan => return None,
    };
    Some(function(a, x))
}

/// How many instructions an op takes on one f32; 1 for those that targets have themselves.
pub fn instructions(op: UnaryOp) -> u32 {
    let count = Count::default();
    match apply(&count, op, ()) {
        Some(()) => count.total(),
        None => 1,
    }
}

/// Whether an op is one that this module expands.
pub fn has_expansion(op: UnaryOp) -> bool {
    matches!(op, UnaryOp::Atan | UnaryOp::Erfc | UnaryOp::NearExp2)
        || TABLE.iter().any(|row| row.op == op)
}
