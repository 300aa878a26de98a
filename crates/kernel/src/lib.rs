//! The tile IR of Oxyfuel: see [`ir`] for its meaning.
//!
//! | module | what lives there |
//! |---|---|
//! | [`ir`] | the types and the op enum, with the semantics |
//! | [`table`] | the op table: names, forms, syntax |
//! | [`infer`] | types of results and the rules that operands meet |
//! | [`visit`] | walking over operands, blocks and programs |
//! | [`text`], [`parse`] | programs as text, both ways |
//! | [`verify`] | the invariants |
//! | [`builder`] | the kernel language, and rewriting for passes |
//! | [`generate`] | random programs for fuzzers |
//! | [`examples`] | programs that tests run and targets take as first inputs |
//! | [`interp`] | the interpreter, which is the meaning |
//! | [`layout`] | layout algebra as plain data |
//! | [`tile_layout`] | which lane and register holds which element of a tile |
#![forbid(unsafe_code)]

pub mod builder;
pub mod examples;
pub mod generate;
pub mod infer;
pub mod interp;
pub mod ir;
pub mod layout;
pub mod parse;
pub mod table;
pub mod text;
pub mod tile_layout;
pub mod verify;
pub mod visit;

pub use ir::*;
pub use oxyfuel_base::{DType, Expr, Scalar, Symbol};
pub use parse::parse;
pub use verify::verify;
