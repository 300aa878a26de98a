//! Attention with several heads.

use super::{Linear, Module, uniform};
use crate::Tensors;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, err};

/// Scaled dot products of queries with keys, as weights of values; the batch comes first: `[batch, length, width]`. Parameters have the names of PyTorch's `MultiheadAttention`.
#[derive(Clone, Debug, Tensors)]
pub struct MultiHeadAttention {
    /// `[3 width, width]`: queries, keys, values.
    pub in_proj_weight: Tensor,
    /// `[3 width]`.
    pub in_proj_bias: Option<Tensor>,
    /// What is made of the heads together.
    pub out_proj: Linear,
    /// How many heads the width is cut into.
    pub heads: i64,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl MultiHeadAttention {
    /// Random weights; every position sees all others.
    #[track_caller]
    pub fn new(width: i64, heads: i64, dtype: DType, seed: u64) -> Self {
        let bound = (6.0 / (4 * width.max(1)) as f64).sqrt();
        Self {
            in_proj_weight: uniform(&[3 * width, width], bound, dtype, seed),
            in_proj_bias: Some(Tensor::zeros(&[3 * width], dtype)),
            out_proj: Linear::new(width, width, true, dtype, seed ^ 0xA11),
            heads,
            causal: false,
        }
    }

    /// Attention of `query` to `key` and `value`. Where `mask` (of bools, broadcast to `[batch, heads, queries, keys]`) does not hold, a key is not seen.
    #[track_caller]
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
    ) -> Tensor {
        for x in [query, key, value] {
            if x.check().is_ok() && x.rank() != 3 {
                return Tensor::refused(
                    err!(RankMismatch, "attention of a tensor with {} dims", x.rank())
                        .help("the dims are batch, length and width"),
                );
            }
        }
        let weights = self.in_proj_weight.chunk(3, 0);
        let biases = self.in_proj_bias.as_ref().map(|bias| bias.chunk(3, 0));
        let projected = |x: &Tensor, part: usize| -> Tensor {
            let (Some(weight), bias) =
                (weights.get(part), biases.as_ref().and_then(|b| b.get(part)))
            else {
                return Tensor::refused(
                    err!(ShapeMismatch, "in_proj_weight has fewer than 3 rows")
                        .help("it has 3 times as many rows as the model is wide"),
                );
            };
            let heads = x.linear(weight, bias).unflatten(-1, &[self.heads, -1]);
            heads.transpose(1, 2)
        };
        let (q, k, v) = (projected(query, 0), projected(key, 1), projected(value, 2));
        let width = match q.size(-1) {
            Ok(width) => width,
            Err(error) => return Tensor::refused(error),
        };
        let mut scores = q.matmul(&k.transpose(-1, -2)) * (1.0 / (width as f64).sqrt());
        if self.causal {
            // Positions, counted without asking how many there are.
            let ones = scores
                .slice(0, 0, 1, 1)
                .slice(1, 0, 1, 1)
                .full_like(1)
                .to(DType::I32);
            let hidden = ones.cumsum(-1).gt(&ones.cumsum(-2));
            scores = scores.masked_fill(&hidden, f64::NEG_INFINITY);
        }
        if let Some(mask) = mask {
            scores = scores.masked_fill(&mask.logical_not(), f64::NEG_INFINITY);
        }
        let seen = scores.softmax(-1).matmul(&v);
        self.out_proj
            .forward(&seen.transpose(1, 2).flatten_dims(2, 3))
    }
}

impl Module for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.attend(x, x, x, None)
    }
}
