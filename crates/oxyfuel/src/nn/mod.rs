//! Layers with parameters. A model is a plain struct of layers that derives [`Tensors`]; its tree of fields is the tree of its parameters, with PyTorch's names.
//!
//! ```
//! use oxyfuel::nn::{Activation, Linear, Module, Sequential};
//! use oxyfuel::{DType, Options, Tensor};
//! # fn main() -> oxyfuel::Result<()> {
//! let model = Sequential::new()
//!     .with(Linear::new(4, 8, true, DType::F32, 0))
//!     .with(Activation::Gelu)
//!     .with(Linear::new(8, 2, true, DType::F32, 1));
//! assert_eq!(oxyfuel::structure::names(&model), ["0.weight", "0.bias", "2.weight", "2.bias"]);
//!
//! let f = oxyfuel::jit(|m: &Sequential, x: &Tensor| m.forward(x), Options::default())?;
//! let y = f.call((&model, &Tensor::ones(&[3, 4], DType::F32)))?;
//! assert_eq!(y.shape(), [3, 2]);
//! # Ok(())
//! # }
//! ```
//!
//! Weights come from and go to safetensors files by [`load`] and [`save`]; names and shapes are those of PyTorch's layers, so that a checkpoint of a model with the same names of fields fits.

mod attention;
mod cache;
mod conv;
mod layers;
mod norm;
mod pool;
mod weights;

pub use attention::MultiHeadAttention;
pub use cache::KvCache;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use layers::{Activation, Dropout, Embedding, Flatten, Linear, Sequential};
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use pool::{AvgPool2d, MaxPool2d};
pub use weights::{Difference, difference, load, load_partial, save};

use crate::structure::{Mapper, Tensors, Visitor};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result};

/// A layer or model of one tensor.
pub trait Module: Tensors {
    /// What it makes of a tensor.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor;
}

/// A [`Module`] of any type, as [`Sequential`] keeps it; every module is one.
pub trait Layer: Send + Sync {
    /// As [`Module::forward`].
    #[track_caller]
    fn forward_layer(&self, x: &Tensor) -> Tensor;

    /// As [`Tensors::visit`].
    fn visit_layer<'a>(&'a self, visitor: &mut dyn Visitor<'a>);

    /// As [`Tensors::map`].
    fn map_layer(&self, mapper: &mut dyn Mapper) -> Result<Box<dyn Layer>>;
}

impl<M: Module + Send + Sync + 'static> Layer for M {
    #[track_caller]
    fn forward_layer(&self, x: &Tensor) -> Tensor {
        self.forward(x)
    }

    fn visit_layer<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        // Two types with the same tensors are not the same layer.
        visitor.constant(crate::structure::Constant::Tag(std::any::type_name::<M>()));
        self.visit(visitor);
    }

    fn map_layer(&self, mapper: &mut dyn Mapper) -> Result<Box<dyn Layer>> {
        Ok(Box::new(self.map(mapper)?))
    }
}

/// Uniform between `-bound` and `bound`.
#[track_caller]
fn uniform(shape: &[i64], bound: f64, dtype: DType, seed: u64) -> Tensor {
    ((Tensor::rand(shape, DType::F32, seed) * 2.0 - 1.0) * bound).to(dtype)
}
