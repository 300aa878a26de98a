//! The host processor: what it is.
pub mod features;
