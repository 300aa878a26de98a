//! Tile IR to x86-64 machine code: selection, register allocation, encoding.
//!
//! ```text
//! mapped tile program ─ select ─▶ machine IR (virtual registers) ─ regalloc, rewrite ─▶ physical items ─ asm ─▶ bytes
//! ```
//!
//! Everything about an instruction stands in one row of [`asm::table`]; everything about a machine in a [`Level`].

#![forbid(unsafe_code)]

pub mod asm;
pub mod check;
pub mod emit;
pub mod interleave;
pub mod level;
#[cfg(feature = "listing")]
pub mod listing;
pub mod mir;
pub mod regalloc;
pub mod rewrite;
pub mod select;
pub mod vcast;
pub mod vcast64;
pub mod vmem;
pub mod vops;

pub use level::Level;
pub use select::{Artefact, Stats, compile};

#[cfg(test)]
mod interleave_tests;
#[cfg(test)]
mod regalloc_tests;
