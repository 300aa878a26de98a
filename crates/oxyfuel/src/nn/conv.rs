//! Convolutions as layers. How a kernel moves is plain data: it is compiled in.

use super::{Module, uniform};
use crate::tensor::Tensor;
use crate::{Convolution, Tensors};
use oxyfuel_base::DType;

/// Weights and biases, uniform within one over the root of what an output sums, as PyTorch draws them.
#[track_caller]
fn parameters(
    shape: &[i64],
    outputs: i64,
    bias: bool,
    dtype: DType,
    seed: u64,
) -> (Tensor, Option<Tensor>) {
    let summed = shape[1..].iter().map(|&n| n as f64).product::<f64>();
    let bound = 1.0 / summed.max(1.0).sqrt();
    // Not inside of a closure, which has no caller.
    let bias = match bias {
        true => Some(uniform(&[outputs], bound, dtype, seed ^ 0x5EED)),
        false => None,
    };
    (uniform(shape, bound, dtype, seed), bias)
}

/// The channels of a group; of no groups none, so that the convolution says what is wrong.
fn grouped(channels: i64, how: &Convolution) -> i64 {
    channels.checked_div(how.groups).unwrap_or(0)
}

macro_rules! layers {
    ($($name:ident $method:ident $transposed:ident $transposed_method:ident $dims:literal;)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($method), "`] with parameters, over `[batch, inputs, sizes…]` or one example of it.")]
        #[derive(Clone, Debug, Tensors)]
        pub struct $name {
            /// `[outputs, inputs / groups, kernel…]`.
            pub weight: Tensor,
            /// `[outputs]`.
            pub bias: Option<Tensor>,
            /// How the kernel moves.
            pub how: Convolution,
        }

        impl $name {
            /// Random weights, uniform within one over the root of the number of products that an output sums.
            #[track_caller]
            pub fn new(inputs: i64, outputs: i64, kernel: [i64; $dims], how: Convolution, bias: bool, dtype: DType, seed: u64) -> Self {
                let mut shape = vec![outputs, grouped(inputs, &how)];
                shape.extend(kernel);
                let (weight, bias) = parameters(&shape, outputs, bias, dtype, seed);
                Self { weight, bias, how }
            }
        }

        impl Module for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                x.$method(&self.weight, self.bias.as_ref(), &self.how)
            }
        }

        #[doc = concat!("[`Tensor::", stringify!($transposed_method), "`] with parameters, over `[batch, inputs, sizes…]` or one example of it.")]
        #[derive(Clone, Debug, Tensors)]
        pub struct $transposed {
            /// `[inputs, outputs / groups, kernel…]`.
            pub weight: Tensor,
            /// `[outputs]`.
            pub bias: Option<Tensor>,
            /// How the kernel moves.
            pub how: Convolution,
            /// More positions at the end of each dim of the result.
            pub output_padding: Vec<i64>,
        }

        impl $transposed {
            /// Random weights, as PyTorch draws them; no output padding.
            #[track_caller]
            pub fn new(inputs: i64, outputs: i64, kernel: [i64; $dims], how: Convolution, bias: bool, dtype: DType, seed: u64) -> Self {
                let mut shape = vec![inputs, grouped(outputs, &how)];
                shape.extend(kernel);
                let (weight, bias) = parameters(&shape, outputs, bias, dtype, seed);
                Self { weight, bias, how, output_padding: vec![0] }
            }
        }

        impl Module for $transposed {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                x.$transposed_method(&self.weight, self.bias.as_ref(), &self.how, &self.output_padding)
            }
        }
    )*};
}

layers! {
    Conv1d conv1d ConvTranspose1d conv_transpose1d 1;
    Conv2d conv2d ConvTranspose2d conv_transpose2d 2;
    Conv3d conv3d ConvTranspose3d conv_transpose3d 3;
}
