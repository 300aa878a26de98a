//! Linear maps, embeddings, activations, and layers one after another.

use super::{Layer, Module, uniform};
use crate::Tensors;
use crate::structure::{Constant, Mapper, Step, Visitor};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result};
use std::fmt;

/// `x weight^T + bias`.
#[derive(Clone, Debug, Tensors)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Random weights, uniform within `1 / sqrt(inputs)`.
    #[track_caller]
    pub fn new(inputs: i64, outputs: i64, bias: bool, dtype: DType, seed: u64) -> Self {
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        // Not inside of a closure, which has no caller.
        let bias = match bias {
            true => Some(uniform(&[outputs], bound, dtype, seed ^ 0x5EED)),
            false => None,
        };
        Self {
            weight: uniform(&[outputs, inputs], bound, dtype, seed),
            bias,
        }
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, self.bias.as_ref())
    }
}

/// Rows of a table by number.
#[derive(Clone, Debug, Tensors)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Tensor,
}

impl Embedding {
    /// Random rows, standard normal.
    #[track_caller]
    pub fn new(rows: i64, width: i64, dtype: DType, seed: u64) -> Self {
        Self {
            weight: Tensor::randn(&[rows, width], dtype, seed),
        }
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        Tensor::embedding(x, &self.weight)
    }
}

/// Functions of one element, as layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Tensors)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// The approximation of gelu by tanh.
    GeluTanh,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
}

impl Module for Activation {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::Silu => x.silu(),
            Self::Sigmoid => x.sigmoid(),
            Self::Tanh => x.tanh(),
        }
    }
}

/// Dims of each example as one: `[batch, …]` to `[batch, elements]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Tensors)]
pub struct Flatten {
    /// The first dim that is folded.
    pub start: i64,
    /// The last one.
    pub end: i64,
}

impl Default for Flatten {
    fn default() -> Self {
        Self { start: 1, end: -1 }
    }
}

impl Module for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.flatten_dims(self.start, self.end)
    }
}

/// In training, zeros in the place of some elements, and the others larger by as much; the identity else.
///
/// Which elements follows from a seed and the number of the forward. Both are no parameters: weight files know nothing of them, as PyTorch's do not.
#[derive(Clone, Debug, Tensors)]
pub struct Dropout {
    /// How likely an element becomes zero.
    pub probability: f64,
    /// Whether it does anything.
    pub training: bool,
    /// The seed of the next forward, an i64 without dims.
    #[tensors(skip)]
    seed: Tensor,
}

impl Dropout {
    /// Not in training.
    #[track_caller]
    pub fn new(probability: f64, seed: i64) -> Self {
        Self {
            probability,
            training: false,
            seed: Tensor::full(&[], seed, DType::I64),
        }
    }
}

impl Module for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        if !self.training {
            return x.clone();
        }
        let dropped = x.dropout(self.probability, &self.seed);
        match self.seed.clone().add_(1) {
            Ok(()) => dropped,
            Err(error) => Tensor::refused(error),
        }
    }
}

/// Layers one after another, of any types. Parameters are named by position: `0.weight`.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// No layer: the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more layer at the end.
    #[must_use]
    pub fn with(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether it is the identity.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequential")
            .field("layers", &self.layers.len())
            .finish()
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward_layer(&x);
        }
        x
    }
}

impl Tensors for Sequential {
    fn visit<'a>(&'a self, visitor: &mut dyn Visitor<'a>) {
        visitor.constant(Constant::Int(self.layers.len() as i128));
        for (index, layer) in self.layers.iter().enumerate() {
            visitor.enter(Step::Index(index));
            layer.visit_layer(visitor);
            visitor.leave();
        }
    }

    fn map(&self, mapper: &mut dyn Mapper) -> Result<Self> {
        let mut layers = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            mapper.enter(Step::Index(index));
            let mapped = layer.map_layer(mapper);
            mapper.leave();
            layers.push(mapped?);
        }
        Ok(Self { layers })
    }
}
