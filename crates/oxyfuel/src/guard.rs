//! What compiled code assumes of an input: element type, device, shape, strides, alignment.

use crate::machine::Device;
use crate::trace::required;
use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{TensorType, Value};
use oxyfuel_runtime::device::DeviceId;
use oxyfuel_runtime::tensor as rt;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// Memory that starts at a multiple of this counts as aligned; what allocators of ours give.
pub(crate) const ALIGNED: u64 = 64;

/// What is assumed of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub dtype: DType,
    pub device: DeviceId,
    pub shape: Box<[i64]>,
    pub strides: Box<[i64]>,
    /// Alignment in bytes that the code relies on.
    pub align: u32,
}

pub(crate) fn alignment(tensor: &rt::Tensor) -> u32 {
    if tensor.address().is_multiple_of(ALIGNED) {
        ALIGNED as u32
    } else {
        tensor.dtype().size() as u32
    }
}

impl Guard {
    pub fn of(tensor: &rt::Tensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            device: tensor.device(),
            shape: tensor.shape().into(),
            strides: tensor.strides().into(),
            align: alignment(tensor),
        }
    }

    /// Whether the tensor is what is assumed. Strides of dims with at most one element do not count.
    pub fn admits(&self, tensor: &rt::Tensor) -> bool {
        self.dtype == tensor.dtype()
            && rt::layout::same(&self.shape, tensor.shape())
            && self.device == tensor.device()
            && same_strides(&self.strides, tensor)
            && self.align == alignment(tensor)
    }

    /// A value of a graph that has these properties.
    pub fn value(&self, name: String) -> Value {
        let shape = self
            .shape
            .iter()
            .map(|&extent| Expr::from(extent))
            .collect();
        Value {
            ty: TensorType::new(self.dtype, shape, Device::from(self.device).into()),
            layout: required(&self.strides),
            align: self.align,
            given: false,
            frozen: false,
            name: Some(name),
        }
    }

    /// Everything about `tensor` that is not as assumed: a sentence each, with what to do about it.
    pub fn failures(&self, name: &str, tensor: &rt::Tensor) -> Vec<String> {
        let mut out = Vec::new();
        if self.dtype != tensor.dtype() {
            out.push(format!(
                "{name} is {}, was {}: cast it with to() to keep one variant",
                tensor.dtype(),
                self.dtype
            ));
        }
        if self.device != tensor.device() {
            out.push(format!(
                "{name} is on {}, was on {}: move it with to_device()",
                tensor.device(),
                self.device
            ));
        }
        if self.shape.len() != tensor.rank() {
            out.push(format!(
                "{name} has {} dims, had {}: reshape it",
                tensor.rank(),
                self.shape.len()
            ));
            return out;
        }
        let mut shape_differs = false;
        for (dim, (new, old)) in tensor.shape().iter().zip(&self.shape).enumerate() {
            if new != old {
                shape_differs = true;
                out.push(format!("dim {dim} of {name} is {new}, was {old}"));
            }
        }
        // The strides of another shape differ by themselves.
        if !shape_differs && !same_strides(&self.strides, tensor) {
            out.push(format!(
                "{name} has strides {:?}, had {:?}: call contiguous() before the call to keep one variant",
                tensor.strides(),
                self.strides
            ));
        }
        if self.align != alignment(tensor) {
            out.push(format!(
                "{name} starts at a multiple of {} bytes, was {}: a slice with an odd offset costs a variant of its own",
                alignment(tensor),
                self.align
            ));
        }
        out
    }
}

fn same_strides(strides: &[i64], tensor: &rt::Tensor) -> bool {
    let dims = strides.iter().zip(tensor.strides()).zip(tensor.shape());
    dims.into_iter()
        .all(|((a, b), extent)| a == b || *extent == 1)
        || tensor.is_empty()
}

/// Mixes what a guard looks at into a hash; equal for every tensor that the same guard admits.
pub(crate) fn hash_tensor(tensor: &rt::Tensor, state: &mut FxHasher) {
    tensor.dtype().hash(state);
    tensor.device().hash(state);
    tensor.shape().hash(state);
    if !tensor.is_empty() {
        for (stride, extent) in tensor.strides().iter().zip(tensor.shape()) {
            state.write_i64(if *extent == 1 { 0 } else { *stride });
        }
    }
    state.write_u32(alignment(tensor));
}
