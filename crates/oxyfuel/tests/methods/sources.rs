//! Tensors out of nothing.

use crate::cases;
use oxyfuel::{DType, Tensor};

cases! {
    linspace f [[3, 7]] (_) => vec![
        Tensor::linspace(-1.5, 2.5, 7, DType::F32), Tensor::linspace(0, 10, 4, DType::I64), Tensor::linspace(3, 4, 1, DType::F32),
        Tensor::linspace(0, 1, 0, DType::F32), Tensor::linspace(-3, 5, 9, DType::BF16),
    ];
    logspace f [[3, 7]] (_) => Tensor::logspace(-1, 2, 5, 2.0, DType::F32);
    eye f [[3, 7]] (_) => (Tensor::eye(3, 4, DType::F32), Tensor::eye(2, 2, DType::I64), Tensor::eye(0, 2, DType::F32));
    likes fi [[3, 7]] (x) => vec![
        x.full_like(3), x.zeros_like(), x.ones_like(), x.new_zeros(&[2], x.dtype()), x.new_ones(&[1, 2], x.dtype()), x.empty_like(),
    ];
}

#[test]
fn sources_are_those_of_pytorch() {
    crate::judge(CASES, include_str!("sources.txt"));
    assert_eq!(
        Tensor::empty(&[2], DType::F32).to_vec::<f32>().unwrap(),
        [0.0; 2]
    );
}
