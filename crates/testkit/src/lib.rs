//! What the tests of every crate share.
//!
//! - [`filetests`]: cases kept as files (header, input text, expected text), rewritten by `BLESS=1`;
//! - [`compare`]: distances between floating-point numbers, and what "agrees with eager" means;
//! - [`damage`]: bytes that were changed, for whoever reads files;
//! - [`driver`]: libraries in the place of the CUDA driver's, with GPUs that are not here;
//! - [`rng`]: random numbers that are the same on every machine and in every run;
//! - [`ptxas`]: NVIDIA's assembler as a judge of PTX text, on machines without a GPU too.
//!
//! The crate depends on nothing, so that every other one, `base` included, can have it as a dev-dependency without a
//! circle. What needs the IRs (generators of graphs, conformance suites) belongs in `tests/` of a crate that sees them.
#![forbid(unsafe_code)]

pub mod compare;
pub mod damage;
pub mod diff;
pub mod driver;
pub mod filetests;
pub mod ptxas;
pub mod rng;

pub use filetests::{Case, check_folder, run_folder};
pub use rng::Rng;
