//! Normalisation.

use super::Module;
use crate::Tensors;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, err};

/// Over the last dims: `(x - mean) / sqrt(var + eps) * weight + bias`.
#[derive(Clone, Debug, Tensors)]
pub struct LayerNorm {
    /// Of the shape that is normalised.
    pub weight: Tensor,
    /// Of the shape that is normalised.
    pub bias: Option<Tensor>,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Weights of 1, biases of 0.
    #[track_caller]
    pub fn new(shape: &[i64], dtype: DType) -> Self {
        Self {
            weight: Tensor::ones(shape, dtype),
            bias: Some(Tensor::zeros(shape, dtype)),
            eps: 1e-5,
        }
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let shape = self.weight.shape();
        x.layer_norm(shape, Some(&self.weight), self.bias.as_ref(), self.eps)
    }
}

/// Over the last dims: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone, Debug, Tensors)]
pub struct RmsNorm {
    /// Of the shape that is normalised.
    pub weight: Tensor,
    /// Added to the mean square.
    pub eps: f64,
}

impl RmsNorm {
    /// Weights of 1.
    #[track_caller]
    pub fn new(shape: &[i64], dtype: DType) -> Self {
        Self {
            weight: Tensor::ones(shape, dtype),
            eps: 1e-6,
        }
    }
}

impl Module for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.rms_norm(self.weight.shape(), Some(&self.weight), self.eps)
    }
}

/// A vector of channels, shaped to meet dim 1 of a tensor.
#[track_caller]
fn channels(vector: &Tensor, rank: usize) -> Tensor {
    let mut shape = vec![1; rank.saturating_sub(1)];
    if let Some(first) = shape.first_mut() {
        *first = -1;
    }
    vector.reshape(&shape)
}

/// Each channel (dim 1) over the batch and all further dims; of running statistics outside of training. Parameters have the names of PyTorch's `BatchNorm`.
#[derive(Clone, Debug, Tensors)]
pub struct BatchNorm {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// `[channels]`; written by every forward in training.
    pub running_mean: Tensor,
    /// `[channels]`; written by every forward in training.
    pub running_var: Tensor,
    /// How many batches the running statistics have seen, an i64 without dims; counted by every forward in training.
    pub num_batches_tracked: Tensor,
    /// Added to the variance.
    pub eps: f64,
    /// How much of a batch's statistics enters the running ones.
    pub momentum: f64,
    /// Whether the batch's own statistics are used.
    pub training: bool,
}

impl BatchNorm {
    /// Weights and variances of 1, biases and means of 0, not in training.
    #[track_caller]
    pub fn new(channels: i64, dtype: DType) -> Self {
        Self {
            weight: Tensor::ones(&[channels], dtype),
            bias: Tensor::zeros(&[channels], dtype),
            running_mean: Tensor::zeros(&[channels], dtype),
            running_var: Tensor::ones(&[channels], dtype),
            num_batches_tracked: Tensor::zeros(&[], DType::I64),
            eps: 1e-5,
            momentum: 0.1,
            training: false,
        }
    }

    #[track_caller]
    fn batch_statistics(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let dims: Vec<i64> = (0..x.rank() as i64).filter(|&dim| dim != 1).collect();
        let mean = x.mean(&dims, false);
        let (var, sample) = (x.var(&dims, 0.0, false), x.var(&dims, 1.0, false));
        let running = [(&self.running_mean, &mean), (&self.running_var, &sample)];
        for (old, new) in running {
            let blended = old * (1.0 - self.momentum) + new * self.momentum;
            old.clone().copy_(&blended)?;
        }
        self.num_batches_tracked.clone().add_(1)?;
        Ok((mean, var))
    }
}

impl Module for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let rank = x.rank();
        if rank < 2 && x.check().is_ok() {
            return Tensor::refused(
                err!(RankMismatch, "batch norm of a tensor with {rank} dims")
                    .help("dim 0 is the batch, dim 1 the channels"),
            );
        }
        let (mean, var) = match self.training {
            true => match self.batch_statistics(x) {
                Ok(statistics) => statistics,
                Err(error) => return Tensor::refused(error),
            },
            false => (self.running_mean.clone(), self.running_var.clone()),
        };
        let scale = (var + self.eps).rsqrt() * &self.weight;
        let normal = (x - channels(&mean, rank)) * channels(&scale, rank);
        normal + channels(&self.bias, rank)
    }
}

/// Each of several groups of channels (dim 1), over its channels and all further dims.
#[derive(Clone, Debug, Tensors)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// The number of groups.
    pub groups: i64,
    /// Added to the variance.
    pub eps: f64,
}

impl GroupNorm {
    /// Weights of 1, biases of 0.
    #[track_caller]
    pub fn new(groups: i64, channels: i64, dtype: DType) -> Self {
        Self {
            weight: Tensor::ones(&[channels], dtype),
            bias: Tensor::zeros(&[channels], dtype),
            groups,
            eps: 1e-5,
        }
    }
}

impl Module for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let rank = x.rank();
        if rank < 2 && x.check().is_ok() {
            return Tensor::refused(
                err!(RankMismatch, "group norm of a tensor with {rank} dims")
                    .help("dim 0 is the batch, dim 1 the channels"),
            );
        }
        let grouped = x.unflatten(1, &[self.groups, -1]);
        let dims: Vec<i64> = (2..=rank as i64).collect();
        let centred = &grouped - grouped.mean(&dims, true);
        let scale = (grouped.var(&dims, 0.0, true) + self.eps).rsqrt();
        let normal = (centred * scale).flatten_dims(1, 2);
        normal * channels(&self.weight, rank) + channels(&self.bias, rank)
    }
}
