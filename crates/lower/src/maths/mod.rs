//! Maths expansion: transcendental functions written in the operations that every target has.
//!
//! ```text
//!  exponential  logarithm  trigonometric  error_function  roots  power   one function an op, written once over `Arith`
//!        └──────────┴───────────┴───────────────┴───────────┘
//!                               │
//!             ┌─────────────────┼──────────────────┐
//!          Native             Count              Emit
//!     (f32: measured)   (instructions)     (tile IR: used)
//! ```
//!
//! # What is promised
//! * Every function of [`TABLE`] is within 1 ulp of the true value for every f32 input, denormals included, and the table states the largest error
//!   measured (`docs/maths.md` says over which inputs; for all but `sigmoid`, over all 2^32). Zeros keep their sign, infinities, overflow and underflow are as in C's `libm`, NaN gives NaN.
//! * No branches, no tables: only selects. All targets therefore give the same bits.
//! * bf16 and f16 are computed in f32 and rounded once.

pub mod arith;
mod coefficients;
mod count;
mod emit;
pub mod error_function;
mod expand;
pub mod exponential;
pub mod logarithm;
pub mod native;
pub mod power;
pub mod roots;
mod table;
pub mod trigonometric;

pub use expand::expand;
pub use table::{Expansion, TABLE, apply, has_expansion};
