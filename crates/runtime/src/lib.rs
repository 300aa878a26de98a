//! Everything that touches memory, threads and drivers; with `python` the only home of `unsafe`.
#![warn(missing_docs)]

pub mod code;
pub mod cpu;
pub mod fork;
pub mod memory;
pub mod pool;
