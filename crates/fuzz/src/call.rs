//! The ways to call what was compiled: results in new tensors, in tensors that the caller has, or in the memory of inputs that the caller gives away.

use oxyfuel_base::{Error, Result};
use oxyfuel_engine::Executable;
use oxyfuel_graph::{Bindings, Graph, HostTensor, Layout as Asked};
use oxyfuel_runtime::memory::HostAllocator;
use oxyfuel_runtime::storage::Storage;
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_runtime::tensor::layout::Layout;

/// What lies in a given output before the call, and around its elements after it.
const POISON: u8 = 0x5a;
/// Elements before and behind those of a given output.
const MARGIN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    New,
    /// Into tensors that the caller has.
    Into,
    /// The memory of inputs may become that of outputs.
    Given,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::New, Self::Into, Self::Given];

    pub fn name(self) -> &'static str {
        match self {
            Self::New => "results in new tensors",
            Self::Into => "results in given tensors",
            Self::Given => "inputs given away",
        }
    }

    /// Whether inputs that the graph does not change may change.
    pub fn spends_inputs(self) -> bool {
        match self {
            Self::New | Self::Into => false,
            Self::Given => true,
        }
    }
}

/// Calls it. `like` are tensors of the outputs' shapes.
pub fn call(
    way: Way,
    executable: &Executable,
    (graph, bindings): (&Graph, &Bindings),
    inputs: &[Tensor],
    like: &[HostTensor],
    memory: &HostAllocator,
) -> std::result::Result<Vec<Tensor>, String> {
    let text = |e: Error| e.to_string();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    match way {
        Way::New => executable.run(&inputs).map_err(text),
        Way::Given => {
            let given = vec![true; inputs.len()];
            executable.run_given(&inputs, &given).map_err(text)
        }
        Way::Into => {
            let mut outputs = reserve(graph, bindings, like, memory).map_err(text)?;
            executable.run_into(&inputs, &mut outputs).map_err(text)?;
            for (i, output) in outputs.iter().enumerate() {
                if !is_kept_outside(output).map_err(text)? {
                    return Err(format!(
                        "output {i} was given, and memory around it has changed"
                    ));
                }
            }
            Ok(outputs)
        }
    }
}

/// Tensors for the outputs of a graph, laid out as it asks.
fn reserve(
    graph: &Graph,
    bindings: &Bindings,
    like: &[HostTensor],
    memory: &HostAllocator,
) -> Result<Vec<Tensor>> {
    let mut outputs = Vec::with_capacity(like.len());
    for (output, like) in graph.outputs.iter().zip(like) {
        let mut layout = Layout::contiguous(&like.shape);
        if let Asked::Required(strides) = &graph.values[output.value].layout {
            layout.strides = bindings.eval_all(strides)?.into();
        }
        let reach = layout.shape.iter().zip(&layout.strides);
        let reach: i64 = reach.map(|(n, stride)| (n - 1).max(0) * stride).sum();
        layout.offset = i64::try_from(MARGIN).unwrap_or(0);
        let elements = 2 * MARGIN + usize::try_from(reach).unwrap_or(0) + 1;
        let storage = Storage::host(memory, elements * like.dtype.size())?;
        storage.borrow_mut()?.bytes()?.fill(POISON);
        outputs.push(Tensor::from_storage(storage, like.dtype, layout)?);
    }
    Ok(outputs)
}

/// Whether everything but the elements is as it was.
fn is_kept_outside(tensor: &Tensor) -> Result<bool> {
    let layout = tensor.layout();
    let mut elements = vec![layout.offset];
    for (extent, stride) in layout.shape.iter().zip(&layout.strides) {
        let along = |base: &i64| (0..*extent).map(|i| base + i * stride).collect::<Vec<_>>();
        elements = elements.iter().flat_map(along).collect();
    }
    let size = tensor.dtype().size();
    let mut bytes = tensor.storage().borrow()?.bytes()?.to_vec();
    for element in elements {
        let at = usize::try_from(element).unwrap_or(0) * size;
        bytes[at..at + size].fill(POISON);
    }
    Ok(bytes.iter().all(|&byte| byte == POISON))
}
