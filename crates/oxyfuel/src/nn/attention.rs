//! Attention with several heads.

use super::{KvCache, Linear, Module, uniform};
use crate::Tensors;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result, err};

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
        let bound = (1.5 / width.max(1) as f64).sqrt();
        // A width whose triple no tensor has is refused by the tensor itself.
        let rows = width.saturating_mul(3);
        Self {
            in_proj_weight: uniform(&[rows, width], bound, dtype, seed),
            in_proj_bias: Some(Tensor::zeros(&[rows], dtype)),
            out_proj: Linear::new(width, width, true, dtype, seed ^ 0xA11),
            heads,
            causal: false,
        }
    }

    /// Attention of `query` to `key` and `value`. Where `mask` (of bools, broadcast to `[batch, heads, queries, keys]`) does not hold, a key is not seen; a query that sees none gets zeros.
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
        let q = self.projected(query, 0);
        let k = self.projected(key, 1);
        let v = self.projected(value, 2);
        let seen = match mask {
            Some(mask) if self.causal => {
                let mask = mask.logical_and(&earlier(&q, &k));
                q.scaled_dot_product_attention(&k, &v, Some(&mask), false, None)
            }
            mask => q.scaled_dot_product_attention(&k, &v, mask, self.causal, None),
        };
        self.out_proj
            .forward(&seen.transpose(1, 2).flatten_dims(2, 3))
    }
}

impl MultiHeadAttention {
    /// Attention of new positions to themselves and to all before them, whose keys and values are in a cache, where those of the new ones are put first.
    ///
    /// `positions` (i64, `[length of x]`) says where the rows of `x` stand. `reach` is how many positions of the cache are looked at, at least the last one's: it is compiled in, so that a few of them (multiples of 128, say) read little
    /// more than they must.
    #[track_caller]
    pub fn attend_cached(
        &self,
        x: &Tensor,
        cache: &KvCache,
        positions: &Tensor,
        reach: i64,
    ) -> Result<Tensor> {
        let [q, k, v] = [0, 1, 2].map(|part| self.projected(x, part));
        cache.put(&k, &v, positions)?;
        let keys = cache.keys.narrow(2, 0, reach);
        let values = cache.values.narrow(2, 0, reach);
        let place = Tensor::arange(0, reach, 1, DType::I64);
        let seen = place.le(&positions.unsqueeze(-1));
        let seen = seen.unsqueeze(0).unsqueeze(0);
        let made = q.scaled_dot_product_attention(&keys, &values, Some(&seen), false, None);
        Ok(self
            .out_proj
            .forward(&made.transpose(1, 2).flatten_dims(2, 3)))
    }

    /// The queries, keys or values of each head, `[batch, heads, length, width]`.
    #[track_caller]
    fn projected(&self, x: &Tensor, part: usize) -> Tensor {
        let weights = self.in_proj_weight.chunk(3, 0);
        let biases = self.in_proj_bias.as_ref().map(|bias| bias.chunk(3, 0));
        let bias = biases.as_ref().and_then(|biases| biases.get(part));
        let Some(weight) = weights.get(part) else {
            return Tensor::refused(
                err!(ShapeMismatch, "in_proj_weight has fewer than 3 rows")
                    .help("it has 3 times as many rows as the model is wide"),
            );
        };
        let heads = x.linear(weight, bias).unflatten(-1, &[self.heads, -1]);
        heads.transpose(1, 2)
    }
}

/// Whether a key stands no later than a query, `[1, 1, queries, keys]`: positions are counted without asking how many there are.
#[track_caller]
fn earlier(query: &Tensor, key: &Tensor) -> Tensor {
    positions(key).transpose(2, 3).le(&positions(query))
}

/// `1, 2, …` along dim 2, `[1, 1, length, 1]`.
#[track_caller]
fn positions(x: &Tensor) -> Tensor {
    let column = x.slice(0, 0, 1, 1).slice(1, 0, 1, 1).slice(3, 0, 1, 1);
    column.full_like(1).to(DType::I32).cumsum(2)
}

impl Module for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.attend(x, x, x, None)
    }
}
