//! The table: one row an ATen overload, compiled and how, or deliberately external and why.
//!
//! A row builds the call's results in the vocabulary of GRAPH; where one ATen operator needs several of ours, the row is its decomposition. Rounding is eager's: what
//! eager computes in f32 inside one kernel is built in f32 and rounded once at the end (`wide`). A row refuses what it cannot express, and every result is compared
//! with the host's own types afterwards, so a row need not check what it is given beyond its own needs.
//!
//! Every operator that PyTorch tags `core` has a row (`tests/core.rs`). A target without one is external.

mod activation;
mod attention;
mod backward;
mod choice;
mod external;
mod group_norm;
mod index;
mod maths;
mod norm;
mod order;
mod pad;
mod pointwise;
mod pool;
mod product;
pub mod random;
mod reduce;
mod resample;
mod scatter;
mod source;
mod special;
mod strided;
mod unfold;
mod view;

use crate::call::Call;
use oxyfuel_base::Result;
use oxyfuel_graph::ValueId;
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Builds the results of a call, or says why it cannot.
pub type Build = fn(&mut Call<'_>) -> Result<Vec<ValueId>>;

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
pub enum Import {
    /// New tensors.
    Compiled(Build),
    /// Other names for the elements of its first operand, which the results may be.
    View(Build),
    /// The host's own operator, and why.
    External(&'static str),
}

/// A row: the overload's name and what becomes of it.
pub type Row = (&'static str, Import);

const FAMILIES: &[&[Row]] = &[
    pointwise::ROWS,
    maths::ROWS,
    special::ROWS,
    activation::ROWS,
    backward::ROWS,
    source::ROWS,
    reduce::ROWS,
    norm::ROWS,
    group_norm::ROWS,
    view::ROWS,
    strided::ROWS,
    index::ROWS,
    scatter::ROWS,
    pad::ROWS,
    pool::ROWS,
    unfold::ROWS,
    order::ROWS,
    resample::ROWS,
    product::ROWS,
    attention::ROWS,
    external::ROWS,
];

/// Every row.
pub fn rows() -> impl Iterator<Item = Row> {
    FAMILIES.iter().copied().flatten().copied()
}

/// The row of a target.
pub fn find(target: &str) -> Option<Import> {
    static BY_NAME: OnceLock<FxHashMap<&'static str, Import>> = OnceLock::new();
    BY_NAME
        .get_or_init(|| rows().collect())
        .get(target)
        .copied()
}
