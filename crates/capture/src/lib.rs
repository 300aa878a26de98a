//! CAPTURE: programs of other frameworks as graphs.
//!
//! | module | what lives there |
//! |---|---|
//! | [`description`] | an FX graph as plain data: what Python writes and [`read`] reads |
//! | [`import`](mod@import) | a description as a GRAPH, what is not compiled as external calls |
//! | [`export`](mod@export) | what rules found, as edits of the host's graph |
//! | [`sites`](mod@sites) | attention that rules found, as calls for the host's graph |
//! | [`aten`] | one row an ATen overload: compiled, and how, or deliberately external |
//! | [`ours`] | operators of ours that rules write into the host's graph |
//!
//! Rust closures do not come through here: the crate `oxyfuel` traces them straight into the graph builder. `docs/capture.md` says the same in prose.
#![forbid(unsafe_code)]

pub mod aten;
mod call;
pub mod description;
pub mod export;
mod host;
pub mod import;
pub mod ours;
pub mod sites;

pub use description::{Description, read};
pub use export::{Edits, Found, export};
pub use import::{
    Drawn, External, ImportOptions, Imported, InputKind, OutputKind, Products, Random, Signature,
    Values, import, import_values,
};
pub use sites::{Rewritten, Sites, sites};
