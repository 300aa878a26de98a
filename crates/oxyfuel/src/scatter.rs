//! Writing at places that an index says.

use crate::call::{Call, Operand, apply};
use crate::tensor::Tensor;
use oxyfuel_graph::Meet;

impl Tensor {
    /// This tensor with the elements of `src` (a tensor, or a number) where `index` says: `src[i…]` goes to `x[i…]` with the coordinate in `dim` taken from `index[i…]`. Of several for one place
    /// the last along `dim` stays.
    #[track_caller]
    pub fn scatter<'a>(&self, dim: i64, index: &'a Tensor, src: impl Into<Operand<'a>>) -> Self {
        let call = Call::Scatter {
            how: None,
            dim,
            slices: false,
            include_self: true,
        };
        apply(call, &[self.into(), index.into(), src.into()])
    }

    /// As [`scatter`](Self::scatter), but elements are added to what is there, one after another.
    #[track_caller]
    pub fn scatter_add(&self, dim: i64, index: &Tensor, src: &Tensor) -> Self {
        self.scatter_reduce(dim, index, src, Meet::Sum, true)
    }

    /// As [`scatter`](Self::scatter), but elements meet what is there. Without `include_self`, what this tensor holds where something goes does not count.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: i64,
        index: &Tensor,
        src: &Tensor,
        how: Meet,
        include_self: bool,
    ) -> Self {
        let call = Call::Scatter {
            how: Some(how),
            dim,
            slices: false,
            include_self,
        };
        apply(call, &[self.into(), index.into(), src.into()])
    }

    /// This tensor with the slices of `src` along `dim` added to those that the one-dimensional `index` names.
    #[track_caller]
    pub fn index_add(&self, dim: i64, index: &Tensor, src: &Tensor) -> Self {
        self.index_reduce(dim, index, src, Meet::Sum, true)
    }

    /// As [`index_add`](Self::index_add), but slices meet in another way. Without `include_self`, what this tensor holds where something goes does not count.
    #[track_caller]
    pub fn index_reduce(
        &self,
        dim: i64,
        index: &Tensor,
        src: &Tensor,
        how: Meet,
        include_self: bool,
    ) -> Self {
        let call = Call::Scatter {
            how: Some(how),
            dim,
            slices: true,
            include_self,
        };
        apply(call, &[self.into(), index.into(), src.into()])
    }
}
