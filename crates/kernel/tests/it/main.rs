//! Tests of whole programs, in one binary.

mod checks;
mod common;
mod docs;
mod examples;
mod filetests;
mod fuzz;
mod generated;
