//! Everything that touches memory, threads and drivers; with `python` the only home of `unsafe`.
//!
//! ```text
//!   plan ──▶ execute ──▶ Device ┬─ cpu    machine code on the pool, or the interpreter through `runner`
//!            tensors            ├─ cuda   the driver, by dlopen
//!            storage            └─ null   nothing, on record
//!            capture: any callable on tensors, as one launch; profile: where time goes
//!   underneath: pool (threads, our own or `openmp`'s), memory (caching allocators), code (executable memory), fork (what a child rebuilds)
//! ```
#![warn(missing_docs)]

pub mod capture;
pub mod code;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod execute;
pub mod fork;
pub mod memory;
pub mod null;
pub mod openmp;
pub mod overlap;
pub mod pipe;
pub mod pool;
pub mod profile;
pub mod runner;
pub mod storage;
pub mod tensor;
pub mod user;
