//! Windows over images, as layers. Sizes are plain data: they are compiled in.

use super::Module;
use crate::Tensors;
use crate::tensor::Tensor;

/// [`Tensor::max_pool2d`] over the last two dims.
#[derive(Clone, Debug, PartialEq, Eq, Tensors)]
pub struct MaxPool2d {
    /// Extents of a window.
    pub size: [i64; 2],
    /// From one window to the next.
    pub step: [i64; 2],
    /// Before and after each dim.
    pub padding: [i64; 2],
    /// From one element of a window to the next.
    pub dilation: [i64; 2],
}

impl MaxPool2d {
    /// Windows side by side, without padding.
    pub fn new(size: [i64; 2]) -> Self {
        Self {
            size,
            step: size,
            padding: [0, 0],
            dilation: [1, 1],
        }
    }
}

impl Module for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.max_pool2d(self.size, self.step, self.padding, self.dilation)
    }
}

/// [`Tensor::avg_pool2d`] over the last two dims.
#[derive(Clone, Debug, PartialEq, Eq, Tensors)]
pub struct AvgPool2d {
    /// Extents of a window.
    pub size: [i64; 2],
    /// From one window to the next.
    pub step: [i64; 2],
    /// Zeros before and after each dim.
    pub padding: [i64; 2],
}

impl AvgPool2d {
    /// Windows side by side, without padding.
    pub fn new(size: [i64; 2]) -> Self {
        Self {
            size,
            step: size,
            padding: [0, 0],
        }
    }
}

impl Module for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.avg_pool2d(self.size, self.step, self.padding)
    }
}
