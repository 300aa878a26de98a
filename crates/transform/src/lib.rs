//! TRANSFORM: passes from graph to graph.
//!
//! | file | pass |
//! |---|---|
//! | `attention.rs` | attention that is written out becomes one op, and its gradients another |
//! | `borders.rs` | strides of outputs, memory of their own, and mutations of inputs |
//! | `concatenations.rs` | concatenations behind the elementwise work on them, and in place of writes into slices |
//! | `decompose.rs` | named compositions (softmax, layer norm, variance) in terms of primitive ops |
//! | `freeze.rs` | what follows from frozen inputs alone becomes a graph of its own |
//! | `images.rs` | images with channels last, from one convolution in panels to the next |
//! | `lookups.rs` | a few elements of elementwise work are computed alone |
//! | `masks.rs` | a number written into a slice of what is computed is a choice, element by element |
//! | `operands.rs` | casts of weights right before the products that widen them, and their scales behind those |
//! | `order.rs` | slices that an index puts, in the order of the index |
//! | `pack.rs` | weights in the order in which kernels read them |
//! | `products.rs` | products with a sum, as products and sums, where a library computes the products |
//! | `recurrences.rs` | trees that compute a linear recurrence become one scan |
//! | `repeats.rs` | lookups with a repeated index before its dims are joined |
//! | `reshapes.rs` | views that join or part dims in front of the elementwise work that they show |
//! | `scalars.rs` | values of one element where they are used |
//! | `simplify.rs` | rules that remove work: equal nodes become one, no-ops disappear, constants meet |
//! | `views.rs` | views of products behind the elementwise work on them |
//! | `widen.rs` | convolutions of halves in f32 |
//!
//! A pass takes a graph and returns a graph; the pipeline verifies what comes out.
#![forbid(unsafe_code)]

mod attention;
mod borders;
mod concatenations;
mod decompose;
mod freeze;
mod images;
mod lookups;
mod masks;
mod operands;
mod order;
mod pack;
mod products;
mod recurrences;
mod repeats;
mod reshapes;
mod scalars;
mod simplify;
mod views;
mod widen;

pub use attention::{WithAttention, attention, with_attention};
pub use borders::borders;
pub use concatenations::concatenations;
pub use decompose::{decompose, decompose_but};
pub use freeze::{Split, freeze};
pub use images::images;
pub use lookups::lookups;
pub use masks::masks;
pub use operands::operands;
pub use order::puts_in_order;
pub use pack::{Reads, pack_at_calls};
pub use products::products;
pub use recurrences::recurrences;
pub use repeats::repeats;
pub use reshapes::reshapes;
pub use scalars::scalars;
pub use simplify::{RULES, Rule, same_values, simplify, simplify_each};
pub use views::views;
pub use widen::widen;
