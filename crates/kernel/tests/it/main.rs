//! Tests of whole programs, in one binary.

mod checks;
mod common;
mod examples;
