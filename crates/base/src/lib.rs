//! The ground floor of Oxyfuel: what every other crate speaks about and nothing more.
//!
//! | module | what lives there |
//! |---|---|
//! | [`dtype`] | the element types, one table, and PyTorch's promotion lattice |
//! | [`convert`] | exact conversions between all of them, bit for bit as torch |
//! | [`scalar`] | a literal number and its text |
//! | [`sym`] | symbolic dims: canonical integer expressions, ranges, proofs |
//! | [`id`] | typed ids and the arena they index |
//! | [`hash`] | digests that are stable between runs, machines and versions |
//! | [`external`] | a call of the host's own operator, as data |
//! | [`error`] | the error type of the whole project, its codes and whose fault each is |
//!
//! This crate imports no other crate of the project. Nothing here panics on bad input.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// `define_id!` names this crate by its outside name, also in our own tests.
extern crate self as oxyfuel_base;

pub mod convert;
pub mod dtype;
pub mod error;
pub mod external;
pub mod hash;
pub mod id;
pub mod scalar;
pub mod sym;

pub use dtype::{DType, promote};
pub use error::{Code, Error, Fault, Location, Result};
pub use external::{Arg, Bind, External, ExternalResult};
pub use hash::{Digest, digest_of};
pub use id::{Arena, Id};
pub use scalar::Scalar;
pub use sym::{Expr, Interval, Ranges, Symbol};
