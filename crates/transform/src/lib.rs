//! TRANSFORM: passes from graph to graph.
//!
//! | file | pass |
//! |---|---|
//! | `decompose.rs` | named compositions (softmax, layer norm, variance) in terms of primitive ops |
//! | `outputs.rs` | outputs that look into an input which is written get memory of their own |
//! | `simplify.rs` | rules that remove work: equal nodes become one, no-ops disappear, constants meet |
//!
//! A pass takes a graph and returns a graph; the pipeline verifies what comes out.
#![forbid(unsafe_code)]

mod decompose;
mod outputs;
mod simplify;

pub use decompose::decompose;
pub use outputs::keep_old_values;
pub use simplify::{RULES, Rule, simplify};
