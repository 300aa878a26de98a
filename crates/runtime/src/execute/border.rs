//! What a call asks of the tensors it is given, and how it holds them while it runs.
//!
//! Every storage is borrowed for the time of the call: shared, or alone where the plan writes it. A conflict with another call is an error, never a race.

use super::instance::{Input, Instance, Output};
use crate::device::DeviceId;
use crate::memory::ALIGN;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::tensor::layout::same;
use oxyfuel_base::{Result, ensure};
use std::ops::Range;

/// Tensors of the caller that outputs are computed in, borrowed for writing.
pub(super) struct Targets<'a> {
    outputs: &'a [Tensor],
    /// Which of them are, as far as is decided.
    direct: Vec<bool>,
    /// Inputs whose memory outputs without a tensor may take.
    pub given: &'a [bool],
}

impl<'a> Targets<'a> {
    /// All outputs get memory of their own, or that of inputs that are given away.
    pub fn none(given: &'a [bool]) -> Self {
        Self {
            outputs: &[],
            direct: Vec::new(),
            given,
        }
    }

    pub fn new(outputs: &'a [Tensor], instance: &Instance, inputs: &[&Tensor]) -> Self {
        // Held as it is filled, so that a panic in between gives back what was taken.
        let mut this = Self {
            outputs,
            direct: Vec::with_capacity(outputs.len()),
            given: &[],
        };
        for (index, tensor) in outputs.iter().enumerate() {
            let storage = tensor.storage();
            let fits = instance.has_own_memory(index)
                && check_target(index, tensor, instance).is_ok()
                && !inputs.iter().any(|input| input.storage().is_same(storage))
                && storage.acquire(true).is_ok();
            this.direct.push(fits);
        }
        this
    }

    /// The tensor that an output is computed in.
    pub fn get(&self, output: usize) -> Option<&'a Tensor> {
        match self.direct.get(output) {
            Some(true) => self.outputs.get(output),
            Some(false) | None => None,
        }
    }
}

impl Drop for Targets<'_> {
    fn drop(&mut self) {
        for output in 0..self.direct.len() {
            if let Some(tensor) = self.get(output) {
                tensor.storage().release(true);
            }
        }
    }
}

/// Storages that a call holds, each once, and whether it writes them.
pub(super) struct Held<'a> {
    storages: &'a [(Storage, bool)],
    /// How many of them are held.
    taken: usize,
}

impl<'a> Held<'a> {
    pub fn new(storages: &'a [(Storage, bool)]) -> Result<Self> {
        let mut this = Self { storages, taken: 0 };
        for (storage, written) in storages {
            storage.acquire(*written)?;
            this.taken += 1;
        }
        Ok(this)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (storage, written) in &self.storages[..self.taken] {
            storage.release(*written);
        }
    }
}

/// The inputs are borrowed for the time of a call: shared, or alone where the plan writes them.
pub(super) struct Borrowed<'a> {
    inputs: &'a [&'a Tensor],
    specs: &'a [Input],
    any_written: bool,
    /// How many of them are.
    taken: usize,
}

impl<'a> Borrowed<'a> {
    pub fn new(inputs: &'a [&'a Tensor], specs: &'a [Input]) -> Result<Self> {
        let mut this = Self {
            inputs,
            specs,
            any_written: specs.iter().any(|spec| spec.written),
            taken: 0,
        };
        for index in 0..inputs.len() {
            if this.any_written {
                this.check_overlap(index)?;
            }
            if !this.is_covered(index) {
                inputs[index].storage().acquire(specs[index].written)?;
            }
            this.taken = index + 1;
        }
        Ok(this)
    }

    /// Inputs that are written, but for number `index`.
    fn others_written(&self, index: usize) -> impl Iterator<Item = usize> {
        (0..self.inputs.len()).filter(move |other| *other != index && self.specs[*other].written)
    }

    fn range(&self, index: usize) -> Range<u64> {
        let begin = self.inputs[index].address();
        begin..begin + self.specs[index].bytes as u64
    }

    fn check_overlap(&self, index: usize) -> Result<()> {
        let mine = self.range(index);
        for other in self.others_written(index) {
            let theirs = self.range(other);
            ensure!(
                mine.start >= theirs.end || theirs.start >= mine.end,
                AliasedInputs,
                "input {} overlaps input {}, which is written",
                self.specs[index].name,
                self.specs[other].name
            );
        }
        Ok(())
    }

    /// Neighbours in one storage share a writer's borrow (the first writer's, where there are several).
    fn is_covered(&self, index: usize) -> bool {
        if !self.any_written {
            return false;
        }
        let (mine, written) = (self.inputs[index].storage(), self.specs[index].written);
        self.others_written(index)
            .any(|other| (!written || other < index) && mine.is_same(self.inputs[other].storage()))
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        for index in 0..self.taken {
            if !self.is_covered(index) {
                self.inputs[index]
                    .storage()
                    .release(self.specs[index].written);
            }
        }
    }
}

/// Strides of dims with one element do not matter.
fn same_strides(tensor: &Tensor, strides: &[i64]) -> bool {
    let dims = tensor.strides().iter().zip(strides).zip(tensor.shape());
    dims.into_iter()
        .all(|((a, b), extent)| a == b || *extent == 1)
}

/// Bytes from the first element of a tensor to behind its last. What lies beside them is not its own.
fn span(tensor: &Tensor) -> u64 {
    if tensor.is_empty() {
        return 0;
    }
    let dims = tensor.shape().iter().zip(tensor.strides());
    let last: i64 = dims.map(|(extent, stride)| (extent - 1) * stride).sum();
    u64::try_from(last + 1).unwrap_or(0) * tensor.dtype().size() as u64
}

/// Whether an output that has memory of its own can be computed right here: laid out alike, aligned, with room for the buffer.
pub(super) fn check_target(index: usize, tensor: &Tensor, instance: &Instance) -> Result<()> {
    let output = &instance.outputs[index];
    let needed = instance.buffers[output.buffer].bytes as u64;
    ensure!(
        same_strides(tensor, &output.strides) || tensor.is_empty(),
        LayoutMismatch,
        "output {index} has strides {:?}, not {:?}",
        tensor.strides(),
        output.strides
    );
    ensure!(
        tensor.address().is_multiple_of(ALIGN as u64) || tensor.is_empty(),
        LayoutMismatch,
        "output {index} does not start at a multiple of {ALIGN} bytes"
    );
    let room = span(tensor);
    ensure!(
        room >= needed,
        LayoutMismatch,
        "output {index} has {room} bytes of memory, not {needed}"
    );
    Ok(())
}

/// A tensor, or the lack of one, for each output.
pub(super) fn check_output_count(count: usize, instance: &Instance) -> Result<()> {
    ensure!(
        count == instance.outputs.len(),
        ArityMismatch,
        "{count} outputs for a plan with {}",
        instance.outputs.len()
    );
    Ok(())
}

pub(super) fn check_output(
    index: usize,
    tensor: &Tensor,
    output: &Output,
    device: DeviceId,
) -> Result<()> {
    ensure!(
        tensor.dtype() == output.dtype,
        DTypeMismatch,
        "output {index} is {}, not {}",
        tensor.dtype(),
        output.dtype
    );
    ensure!(
        same(tensor.shape(), &output.shape),
        ShapeMismatch,
        "output {index} has shape {:?}, not {:?}",
        tensor.shape(),
        output.shape
    );
    ensure!(
        tensor.device() == device,
        DeviceMismatch,
        "output {index} is on {}, not {}",
        tensor.device(),
        device
    );
    Ok(())
}

/// Alignments are powers of two, for which no division is needed.
fn is_aligned(address: u64, align: u64) -> bool {
    match align.is_power_of_two() {
        true => address & (align - 1) == 0,
        false => address.is_multiple_of(align),
    }
}

pub(super) fn check_input(tensor: &Tensor, spec: &Input, device: DeviceId) -> Result<()> {
    let name = &spec.name;
    ensure!(
        tensor.dtype() == spec.dtype,
        DTypeMismatch,
        "input {name} is {}, not {}",
        tensor.dtype(),
        spec.dtype
    );
    ensure!(
        same(tensor.shape(), &spec.shape),
        ShapeMismatch,
        "input {name} has shape {:?}, not {:?}",
        tensor.shape(),
        spec.shape
    );
    ensure!(
        tensor.device() == device,
        DeviceMismatch,
        "input {name} is on {}, not {}",
        tensor.device(),
        device
    );
    ensure!(
        same_strides(tensor, &spec.strides) || tensor.is_empty(),
        LayoutMismatch,
        "input {name} has strides {:?}, not {:?}",
        tensor.strides(),
        spec.strides
    );
    ensure!(
        is_aligned(tensor.address(), spec.align) || tensor.is_empty(),
        LayoutMismatch,
        "input {name} is not aligned to {} bytes",
        spec.align
    );
    let room = tensor.storage().len() as u64
        - (tensor.address() - tensor.storage().address()).min(tensor.storage().len() as u64);
    ensure!(
        spec.bytes as u64 <= room,
        LayoutMismatch,
        "input {name} has {room} bytes of memory, not {}",
        spec.bytes
    );
    Ok(())
}
