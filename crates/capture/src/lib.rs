//! CAPTURE: programs of other frameworks as graphs: FX descriptions and `.pt2` files, decomposed to core operators.
//!
//! Nothing is imported yet. Rust closures do not come through here: the crate `oxyfuel` traces them straight into the graph builder.
#![forbid(unsafe_code)]
