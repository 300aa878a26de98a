//! ENGINE: the compiler as one function, and what surrounds it.
//!
//! | file | idea |
//! |---|---|
//! | `pipeline.rs` | the order of all steps, from graph to plan |
//! | `record.rs` | what each step did: time and text |
//! | `options.rs` | everything a user can set, in one struct |
//! | `target.rs` | the concrete machines: their descriptions and their emitters |
//! | `assemble.rs` | kernels, buffers and steps become a plan |
//! | `executable.rs` | a plan on a device, callable, with its guards |
//! | `interpret.rs` | the tile interpreter as a runner and as a judge |
//! | `agree.rs` | when two results count as equal |
//!
//! This is the only crate that names concrete targets.
#![forbid(unsafe_code)]

mod agree;
mod assemble;
mod executable;
mod interpret;
mod options;
pub mod pipeline;
mod record;
mod target;

pub use agree::agree;
pub use executable::{Executable, Mismatch};
pub use interpret::Interpreter;
pub use options::{Mode, Numerics, Options};
pub use pipeline::{Compiled, compile};
pub use record::{Record, Stage, StepRecord};
pub use target::{Target, cpu_device};
