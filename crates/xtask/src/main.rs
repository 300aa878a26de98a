//! Developer commands: `cargo xtask --help`.
#![forbid(unsafe_code)]

fn main() {}
