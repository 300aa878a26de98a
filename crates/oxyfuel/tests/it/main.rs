//! The Rust door, in one binary: built apart, these files take one and a half times as long.
//!
//! Tests that measure the memory of their process have a binary of their own beside this one.

mod agree;
mod bound;
mod buckets;
mod codes;
mod compiled;
mod composed;
mod convolution;
mod cuts;
mod donation;
mod dynamic;
mod errors;
mod explain;
mod files;
mod functions;
mod generate;
mod jit;
mod kernels;
mod mutation;
mod nn;
mod numbers;
mod structures;
