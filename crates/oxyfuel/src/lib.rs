//! Oxyfuel: tensors with PyTorch's names, and a compiler that turns functions of them into machine code.
//!
//! ```
//! use oxyfuel::{DType, Options, Tensor};
//! # fn main() -> oxyfuel::Result<()> {
//! let x = Tensor::randn(&[64, 256], DType::F32, 0);
//! let b = Tensor::randn(&[256], DType::F32, 1);
//!
//! // Eager: one kernel an operation.
//! let eager = (&x + &b).relu() * 2.0;
//!
//! // Compiled: one kernel for all of it.
//! let f = oxyfuel::compile(|x: &Tensor, b: &Tensor| (x + b).relu() * 2.0, Options::default())?;
//! let compiled = f.call_one(&[&x, &b])?;
//!
//! assert_eq!(eager.to_vec::<f32>()?, compiled.to_vec::<f32>()?);
//! assert_eq!(f.explain().variants[0].kernels.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! | to learn about | read |
//! |---|---|
//! | tensors, and how mistakes surface | [`tensor`] |
//! | compiled functions, variants, guards | [`compile`](compile()), [`Compiled`] |
//! | functions of structures of tensors | [`jit`](jit()), [`structure`] |
//! | weights that do not change | [`Compiled::freeze`], [`FrozenCall`] |
//! | why something was compiled, and into what | [`Compiled::explain`] |
//! | what each kernel takes, and its share of the roofline | [`Compiled::explain_measured`] |
//! | where the time of a program goes | [`profile`](profile()) |
//! | CUDA graphs of any callable | [`cuda`] |
//! | layers and their weights | [`nn`], [`io`] |
//! | kernels of your own | [`kernel`] |
//! | settings | [`Options`], [`options_from_env`] |
//!
//! This crate is the only semver surface of the project.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Derived code names this crate by its own name, also inside of it.
extern crate self as oxyfuel;

mod activation;
mod advice;
mod arrange;
mod border;
mod bound;
mod bucket;
mod call;
mod compiled;
mod composed;
mod core;
pub mod cuda;
mod diagonal;
mod donate;
mod dynamic;
mod eager;
mod env;
mod explain;
mod frozen;
mod frozen_jit;
mod function;
mod gradient;
mod guard;
mod inplace;
mod interpolate;
pub mod io;
mod jit;
pub mod kernel;
mod loss;
mod machine;
mod maths;
pub mod nn;
mod norm;
mod operators;
mod ops;
mod padding;
mod polynomial;
mod pool;
mod profile;
mod random;
mod recipe;
mod scatter;
mod select;
mod source;
mod statistics;
pub mod structure;
pub mod tensor;
mod trace;
mod variant;

pub use border::Padding;
pub use bound::BoundCall;
pub use bucket::Bucket;
pub use call::Operand;
pub use compiled::{Compiled, compile, compile_graph, parse_graph};
pub use donate::Argument;
pub use env::options_from_env;
pub use explain::{Explanation, MemoryReport, VariantReport};
pub use frozen::FrozenCall;
pub use frozen_jit::FrozenJit;
pub use function::{Function, Outputs};
pub use half::{bf16, f16};
pub use inplace::disable;
pub use interpolate::{Interpolation, SampleMode, SamplePadding};
pub use io::load;
pub use jit::{Jit, Returns, Signature, jit};
pub use loss::{ClassLoss, Reduction};
pub use machine::{Device, MemorySummary};
pub use oxyfuel_base::{Code, DType, Error, Fault, Location, Result, Scalar};
pub use oxyfuel_derive::Tensors;
pub use oxyfuel_engine::cache::Missed as CacheMiss;
pub use oxyfuel_engine::explain::{
    Bound, CodeKind, Expected, KernelReport, Measured, Shares, Verdict,
};
pub use oxyfuel_engine::{
    CudaGraphs, Figures, HostFigures, Level, Mode, Numerics, Options, Origin as PlanOrigin,
};
pub use oxyfuel_graph::convolution::Convolution;
pub use oxyfuel_graph::{Graph, Meet};
pub use oxyfuel_runtime::execute::StepTime;
pub use oxyfuel_runtime::tensor::element::Element;
pub use pool::Pooling;
pub use profile::{Category, DeviceTime, Profile, Row, Span, profile};
pub use structure::Tensors;
pub use tensor::Tensor;
