//! The `oxyfuel` command.
#![forbid(unsafe_code)]

fn main() {}
