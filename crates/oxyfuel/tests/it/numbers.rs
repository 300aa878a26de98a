//! Tensors to try functions on, and what counts as equal.

use oxyfuel::{DType, Tensor};

/// Normal numbers from a seed.
pub fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

/// The same shape, and numbers that differ by rounding alone.
pub fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.to_f64().unwrap().iter().zip(b.to_f64().unwrap()) {
        let same = a.is_nan() && b.is_nan();
        assert!(same || (a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} {b}");
    }
}
