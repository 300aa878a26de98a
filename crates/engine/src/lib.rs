//! ENGINE: the compiler as one function, and what surrounds it.
//!
//! | file | idea |
//! |---|---|
//! | `pipeline.rs` | the order of all steps, from graph to plan |
//! | `record.rs` | what each step did: time and text |
//! | `options.rs` | everything a user can set, in one struct |
//! | `target.rs` | the concrete machines: their descriptions and their emitters |
//! | `assemble.rs` | kernels, buffers and steps become a plan |
//!
//! This is the only crate that names concrete targets.
#![forbid(unsafe_code)]

mod assemble;
mod options;
pub mod pipeline;
mod record;
mod target;

pub use options::{Mode, Numerics, Options};
pub use pipeline::{Compiled, compile};
pub use record::{Record, Stage, StepRecord};
pub use target::Target;
