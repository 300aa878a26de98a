//! SCHEDULE: which nodes share a kernel, in which order, and in which memory.
//!
//! [`schedule`] takes a graph of primitive ops (composites are decomposed before) and returns [`Schedule`]: groups in an order in which they can run. A group
//! becomes one kernel. Views never become kernels: they are [`Placement`]s, strides over the buffer of another value, or relabelled dims inside a group.
//!
//! | file | idea |
//! |---|---|
//! | `group.rs` | what a group is |
//! | `fuse.rs` | which nodes share a group |
//! | `strategy.rs` | the ways in which a group can run |
//! | `views.rs` | views of what a group computes |
//! | `waits.rs` | which group waits for which |
//! | `widened.rs` | casts that products make themselves |
//! | `siblings.rs` | groups side by side |
//! | `beside.rs` | groups that share a launch |
//! | `scan.rs` | recurrences among them |
//! | `inplace.rs` | nodes that write into an input, among the groups |
//! | `destinations.rs` | parts of a concatenation, computed in their places |
//! | `pairs.rs` | two products of one operand |
//! | `folded.rs` | work on an operand that a product does itself |
//! | `row_work.rs` | reductions along the rows of a product's result |
//! | `reuse.rs` | results where an operand was |
//! | `again.rs` | values that are computed again rather than stored |
//! | `thrift.rs` | groups cut in two where too much lives at once |
//! | `buffers.rs` | buffers, lifetimes and offsets |
//! | `peak.rs` | the most bytes that a call holds at once |
#![forbid(unsafe_code)]

mod again;
mod beside;
mod buffers;
mod destinations;
mod folded;
mod fuse;
mod group;
mod inplace;
mod pairs;
mod peak;
mod reuse;
mod row_work;
mod scan;
mod siblings;
mod strategy;
mod text;
mod thrift;
mod views;
mod waits;
mod widened;

pub use again::schedule_by_bytes;
pub use beside::{Joinable, Room, beside};
pub use buffers::{Between, BufferPlan, plan_buffers, span};
pub use fuse::schedule;
pub use group::{Before, DimMap, Group, GroupKind, Schedule, Strategy};
pub use oxyfuel_graph::{Placement, Placements, place_views};
pub use peak::peak;
pub use thrift::least_bytes;
pub use views::view_dims;
