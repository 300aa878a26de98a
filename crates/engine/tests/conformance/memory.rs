//! Inputs in memory as their layouts ask for, between and around which nothing may be touched.

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Bindings, Graph, HostTensor, Layout as Asked, ValueId};
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_runtime::tensor::layout::Layout;

/// What lies where no element is.
const POISON: u8 = 0xa5;
/// Bytes before and behind the elements.
const MARGIN: usize = 64;

/// Where the elements of an input lie in a storage of its own, and how long that is in bytes.
fn layout(
    graph: &Graph,
    bindings: &Bindings,
    value: ValueId,
    shape: &[i64],
) -> Result<(Layout, usize)> {
    let mut layout = Layout::contiguous(shape);
    if let Some(strides) = graph.values[value].layout.strides() {
        layout.strides = bindings.eval_all(strides)?.into();
    }
    let size = graph.ty(value).dtype.size();
    layout.offset = (MARGIN / size) as i64;
    let steps = shape.iter().zip(&layout.strides);
    let span: i64 = steps
        .map(|(extent, stride)| (extent - 1).max(0) * stride)
        .sum();
    Ok((layout, 2 * MARGIN + (span as usize + 1) * size))
}

/// Byte position of each element, row-major.
fn positions(layout: &Layout, size: usize) -> Vec<usize> {
    let mut all = vec![layout.offset];
    for (extent, stride) in layout.shape.iter().zip(&layout.strides) {
        all = all
            .iter()
            .flat_map(|base| (0..*extent).map(move |i| base + i * stride))
            .collect();
    }
    all.iter().map(|&at| at as usize * size).collect()
}

/// The inputs of a graph in host memory.
pub fn place(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[HostTensor],
    memory: &HostAllocator,
) -> Result<Vec<Tensor>> {
    let place = |(&value, input): (&ValueId, &HostTensor)| {
        let (layout, bytes) = layout(graph, bindings, value, &input.shape)?;
        let storage = Storage::host(memory, bytes)?;
        let image = image(&layout, bytes, input);
        storage.borrow_mut()?.bytes()?.copy_from_slice(&image);
        Tensor::from_storage(storage, input.dtype, layout)
    };
    graph.inputs.iter().zip(inputs).map(place).collect()
}

/// The inputs of a graph on a device, with any contents.
pub fn reserve(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[HostTensor],
    device: &dyn Device,
) -> Result<Vec<Tensor>> {
    let reserve = |(&value, input): (&ValueId, &HostTensor)| {
        let (layout, bytes) = layout(graph, bindings, value, &input.shape)?;
        Tensor::from_storage(device.allocate(bytes)?, input.dtype, layout)
    };
    graph.inputs.iter().zip(inputs).map(reserve).collect()
}

/// The inputs of a graph in a device's memory.
pub fn place_on(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[HostTensor],
    device: &dyn Device,
) -> Result<Vec<Tensor>> {
    let tensors = reserve(graph, bindings, inputs, device)?;
    for (tensor, input) in tensors.iter().zip(inputs) {
        let storage = tensor.storage();
        device.copy_in(&image(tensor.layout(), storage.len(), input), storage, 0)?;
    }
    Ok(tensors)
}

/// All bytes of a storage, wherever it is.
fn bytes(storage: &Storage) -> Result<Vec<u8>> {
    let Some(device) = storage.device() else {
        return Ok(storage.borrow()?.bytes()?.to_vec());
    };
    let mut bytes = vec![0; storage.len()];
    device.copy_out(storage, 0, &mut bytes)?;
    Ok(bytes)
}

/// The bytes of a storage that holds these elements.
fn image(layout: &Layout, bytes: usize, elements: &HostTensor) -> Vec<u8> {
    let mut image = vec![POISON; bytes];
    let size = elements.dtype.size();
    for (at, element) in positions(layout, size)
        .into_iter()
        .zip(elements.data.chunks_exact(size))
    {
        image[at..at + size].copy_from_slice(element);
    }
    image
}

/// Outputs lie as their layouts require; mutated inputs hold the output that mutates them; nothing else has changed.
pub fn check(
    graph: &Graph,
    bindings: &Bindings,
    inputs: &[HostTensor],
    tensors: &[Tensor],
    outputs: &[Tensor],
) -> std::result::Result<(), String> {
    let text = |e: oxyfuel_base::Error| e.to_string();
    for (i, (out, tensor)) in graph.outputs.iter().zip(outputs).enumerate() {
        let asked: &[Expr] = match (&graph.values[out.value].layout, out.alias) {
            (Asked::Required(strides), None) => strides,
            (Asked::Required(_) | Asked::Any | Asked::Chosen(_), _) => continue,
        };
        let asked = bindings.eval_all(asked).map_err(text)?;
        let moves = |(extent, (a, b)): (&i64, (&i64, &i64))| *extent > 1 && a != b;
        let differs = (tensor.shape().iter())
            .zip(tensor.strides().iter().zip(&asked))
            .any(moves);
        if differs && !tensor.is_empty() {
            return Err(format!(
                "output {i} has strides {:?}, not {asked:?}",
                tensor.strides()
            ));
        }
    }
    for (i, (tensor, input)) in tensors.iter().zip(inputs).enumerate() {
        let new = graph.outputs.iter().position(|out| out.alias == Some(i));
        let mut elements = input.clone();
        if let Some(new) = new {
            elements.data = outputs[new].to_bytes().map_err(text)?;
        }
        let image = image(tensor.layout(), tensor.storage().len(), &elements);
        if bytes(tensor.storage()).map_err(text)? != image {
            let what = if new.is_some() {
                "holds something else than its new value"
            } else {
                "has changed"
            };
            return Err(format!("input {i} {what}"));
        }
    }
    Ok(())
}
