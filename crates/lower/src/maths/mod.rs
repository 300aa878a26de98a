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
//! * No branches, no tables: only selects. All targets therefore give the same bits, but for what a machine with powers of its own computes by them (`gate.rs`, `near.rs`).
//! * bf16 and f16 are computed in f32 and rounded once.
//! * f64 has functions of its own (`double*.rs`), within 2 ulp over what the tests try.

pub mod arith;
mod coefficients;
mod count;
pub mod double;
pub mod double_angle;
pub mod double_error;
pub mod double_power;
mod emit;
pub mod error_function;
mod expand;
pub mod exponential;
pub mod gate;
pub mod logarithm;
pub mod narrow;
pub mod native;
pub mod near;
pub mod power;
pub mod powers;
pub mod remainder;
pub mod roots;
mod rounded;
mod table;
pub mod trigonometric;

pub(crate) use emit::Emit;
pub use expand::{code_cast, expand, expand_on, weights};
pub use table::{Expansion, TABLE, apply, apply_double, has_expansion, instructions};
