//! Keys and values of the positions that a model has seen, kept for those to come.

use crate::Tensors;
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Result};

/// Keys and values of one layer, in memory of a fixed size: as an argument of a compiled function it is written in place, and what is not written stays where it is.
///
/// ```
/// use oxyfuel::nn::{KvCache, MultiHeadAttention};
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let layer = MultiHeadAttention::new(16, 2, DType::F32, 0);
/// let cache = KvCache::new(1, 2, 64, 8, DType::F32);
/// let f = oxyfuel::jit(
///     |m: &MultiHeadAttention, cache: &KvCache, x: &Tensor, at: &Tensor| m.attend_cached(x, cache, at, 64),
///     Options::default(),
/// )?;
/// // Three positions at once, then one more: two plans, the same weights, the same cache.
/// let x = Tensor::randn(&[1, 4, 16], DType::F32, 1);
/// f.call((&layer, &cache, &x.narrow(1, 0, 3), &Tensor::arange(0, 3, 1, DType::I64)))?;
/// let last = f.call((&layer, &cache, &x.narrow(1, 3, 1), &Tensor::full(&[1], 3, DType::I64)))?;
/// assert_eq!(last.shape(), [1, 1, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Tensors)]
pub struct KvCache {
    /// `[batch, heads, length, width]`.
    pub keys: Tensor,
    /// The same of values.
    pub values: Tensor,
}

impl KvCache {
    /// Room for `length` positions, all zeros. Grouped heads have fewer heads here than queries have.
    #[track_caller]
    pub fn new(batch: i64, heads: i64, length: i64, width: i64, dtype: DType) -> Self {
        let zeros = || Tensor::zeros(&[batch, heads, length, width], dtype);
        Self {
            keys: zeros(),
            values: zeros(),
        }
    }

    /// Writes keys and values of new positions, `[batch, heads, count, width]`, where `positions` (i64, `[count]`) says.
    #[track_caller]
    pub fn put(&self, keys: &Tensor, values: &Tensor, positions: &Tensor) -> Result<()> {
        self.keys.clone().index_put_(keys, 2, positions)?;
        self.values.clone().index_put_(values, 2, positions)
    }
}
