//! The tensor IR: what a program computes, before anyone decides how.
//!
//! | module | what lives there |
//! |---|---|
//! | [`ir`] | graph, values, nodes: the data and its meaning |
//! | [`op`] | the vocabulary: one table of all operators |
//! | [`rules`] | dtype and shape rules, one match |
//! | [`builder`] | building graphs with PyTorch's broadcasting and promotion |
//! | [`edit`] | users, replacement, rebuilding: what passes are made of |
//! | [`verify`](mod@verify) | the invariants, and their check |
//! | [`text`], [`parse`](mod@parse) | readable text and back |
//! | [`interp`] | the interpreter: what every operator means |
//! | [`bind`](mod@bind) | values of symbols from actual shapes |
//! | [`convolution`] | convolutions, their geometry, and as windows and a product |
//! | [`overwrite`] | values that take over the memory of an input |
//! | [`place`] | a view as an offset and strides over a root value |
//! | [`product`] | sums of products and attention, composed |
//! | [`random`] | random programs for fuzzing |
//! | [`sample`] | random numbers of a distribution |
//! | [`special`] | special functions, composed |
//! | [`tensor`] | dense tensors in host memory |
//!
//! `docs/graph.md` has the semantics in prose.
#![forbid(unsafe_code)]

pub mod bind;
pub mod builder;
pub mod conv_panels;
pub mod convolution;
pub mod edit;
pub mod interp;
pub mod ir;
pub mod op;
pub mod overwrite;
pub mod parse;
pub mod place;
pub mod product;
pub mod random;
pub mod rules;
pub mod sample;
pub mod special;
pub mod tensor;
pub mod text;
pub mod verify;

pub use bind::{Bindings, bind};
pub use builder::{
    Between, Border, Bordering, Builder, Divisor, Indexed, Meet, Operand, Outside, Resized, Windows,
};
pub use edit::{Rebuild, Users};
pub use interp::run;
pub use ir::{
    ConstId, Constant, Device, Graph, GraphOutput, Layout, Node, NodeId, Origin, Place, SymbolInfo,
    TensorType, Value, ValueId,
};
pub use op::{
    Accepts, AttrKind, AttrValue, Binary, Category, Compare, Effect, Gives, Op, OpInfo, Reduce,
    Scatter, Unary,
};
pub use overwrite::Overwrites;
pub use parse::{parse, parse_tensor};
pub use place::{Placement, Placements, place_views, reshape_strides, root_strides, same_strides};
pub use rules::infer;
pub use tensor::HostTensor;
pub use verify::verify;
