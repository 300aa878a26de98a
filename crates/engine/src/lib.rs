//! ENGINE: the compiler as one function, and what surrounds it.
//!
//! | file | idea |
//! |---|---|
//! | `pipeline.rs` | the order of all steps, from graph to plan |
//! | `record.rs` | what each step did: time and text |
//! | `options.rs` | everything a user can set, in one struct |
//! | `target.rs` | the concrete machines: their descriptions and their emitters |
//! | `assemble.rs` | kernels, buffers and steps become a plan |
//! | `cost/` | bytes and operations of kernels, host calls and uncompiled operators |
//! | `executable.rs` | a plan on a device, callable, with its guards |
//! | `frozen.rs` | a graph with frozen inputs: what runs once, and what runs at every call |
//! | `interpret.rs` | the tile interpreter as a runner and as a judge |
//! | `joint.rs` | rules on a joint graph before the host cuts it in two |
//! | `kernel.rs` | users' own tile programs |
//! | `agree.rs` | when two results count as equal |
//! | `cache.rs` | plans on disk |
//! | `share.rs` | groups that do the same work share a kernel |
//! | `session.rs` | a target, a device, and what was compiled before |
//! | `explain/` | what a compiled graph is and why, and what it should gain |
//! | `figures.rs` | what this machine can do at best, measured quickly |
//! | `peak.rs` | how fast the arithmetic units are without memory |
//!
//! This is the only crate that names concrete targets.
#![forbid(unsafe_code)]

mod agree;
mod assemble;
pub mod cache;
pub mod cost;
mod executable;
pub mod explain;
mod figures;
mod frozen;
mod gather;
mod interpret;
mod join;
mod joint;
mod kernel;
mod options;
mod parallel;
mod peak;
pub mod pipeline;
mod record;
mod session;
mod share;
mod target;

pub use agree::{agree, is_close, same};
pub use executable::{Executable, Mismatch};
pub use explain::{Basis, Explanation, explain};
pub use figures::{Figures, HostFigures, Level};
pub use frozen::{Frozen, Windows};
pub use interpret::Interpreter;
pub use joint::{find_attention, rewrite_joint};
pub use kernel::{UserKernel, compile_kernel};
pub use options::{CudaGraphs, Mode, Numerics, Options};
pub use peak::{Peak, peak};
pub use pipeline::{Compiled, Unmade, compile};
pub use record::{Origin, Record, Stage, StepRecord};
pub use session::{Compiler, Stats};
pub use target::{Target, cpu_device};
