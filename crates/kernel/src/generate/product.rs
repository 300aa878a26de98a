//! Products of matrices whose tiles do not divide them.

use super::{Case, Choices, Given};
use crate::examples;
use oxyfuel_base::{DType, Result};

/// The product that the numbers mean. Its numbers have few bits, so that sums are exact in any order.
pub fn product(numbers: &[u32]) -> Result<Case> {
    let mut choices = Choices::new(numbers);
    let dtype = choices.pick(&[DType::F32, DType::BF16, DType::F16]);
    let tile = [16, 40, 20].map(|most| 1 + choices.below(most) as i64);
    let [m, n, k] = [20, 45, 24].map(|most| 1 + choices.below(most));
    let seed = choices.below(1 << 20) as u32;
    let size = |size: usize| Given::Number(i64::try_from(size).unwrap_or(0));
    let args = vec![
        size(m),
        size(n),
        size(k),
        Given::quarters(dtype, m * k, seed),
        Given::quarters(dtype, k * n, seed.wrapping_add(1)),
        Given::zeros(DType::F32, m * n),
    ];
    let program = examples::tiled_matmul(dtype, tile)?;
    Ok(Case { program, args })
}
