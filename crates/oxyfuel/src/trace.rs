//! Capture: a closure runs once on traced tensors, and what it does is noted in a graph.
//!
//! A trace is open while its closure runs. A tensor of a trace that is over, or of another one, is a leak and says so. Concrete tensors that the closure uses become
//! further inputs of the graph, read at every call: nothing is copied, and later writes to them are seen.

use crate::call::{Call, Operand, origin};
use crate::core::{Request, Template};
use crate::guard::Guard;
use crate::machine::Device;
use crate::tensor::{State, Tensor};
use oxyfuel_base::{Arena, DType, Error, Expr, Result, ensure, err};
use oxyfuel_graph::{
    Builder, Category, Graph, GraphOutput, HostTensor, Layout, Node, Op, Operand as Value,
    TensorType, ValueId,
};
use oxyfuel_runtime::tensor as rt;
use oxyfuel_runtime::tensor::layout::contiguous_strides;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value of a trace.
#[derive(Clone)]
pub(crate) struct Traced {
    trace: Arc<Trace>,
    value: ValueId,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub device: Device,
}

pub(crate) struct Trace {
    /// `None` once it is over.
    open: Mutex<Option<Open>>,
}

struct Open {
    builder: Builder,
    captured: Vec<(rt::Tensor, ValueId)>,
    /// What tensors that were overwritten are now.
    current: HashMap<ValueId, ValueId>,
    /// Views of tensors that were overwritten since.
    stale: HashSet<ValueId>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

/// What a closure did.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Inputs are the arguments, then the captured tensors. Behind the results stand the new values of arguments that the closure overwrote.
    pub graph: Graph,
    pub tensors: Vec<rt::Tensor>,
    /// How many tensors the closure returned.
    pub results: usize,
    /// The structure that they were returned in.
    pub template: Option<Template>,
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traced {
    /// Whether the trace is over.
    pub fn is_over(&self) -> bool {
        self.trace.lock().is_none()
    }

    pub fn leak(&self, what: &str) -> Error {
        err!(
            TraceLeak,
            "{what} uses a traced tensor outside of the function that was captured"
        )
        .help("return the tensor from the function instead of keeping it")
    }

    fn of(trace: &Arc<Trace>, builder: &Builder, value: ValueId) -> Result<Self> {
        let TensorType {
            dtype,
            shape,
            device,
        } = builder.ty(value);
        let extent = |e: &Expr| {
            e.as_const()
                .ok_or_else(|| err!(Internal, "a captured shape is not a number: {e}"))
        };
        let shape: Vec<i64> = shape.iter().map(extent).collect::<Result<_>>()?;
        let strides = match builder.graph().values[value].layout.strides() {
            Some(strides) => strides.iter().map(extent).collect::<Result<_>>()?,
            None => contiguous_strides(&shape),
        };
        Ok(Self {
            trace: trace.clone(),
            value,
            dtype: *dtype,
            shape,
            strides,
            device: Device::from(*device),
        })
    }
}

/// Notes an operation in the trace of `value`.
pub(crate) fn note(
    value: &Traced,
    call: &Call,
    operands: &[Operand<'_>],
    caller: &Location<'_>,
) -> Result<Tensor> {
    let trace = &value.trace;
    let mut open = trace.lock();
    let Some(open) = open.as_mut() else {
        return Err(value.leak("an operation"));
    };
    open.builder.set_origin(Some(origin(caller)));
    let operands = operands
        .iter()
        .map(|operand| match operand {
            Operand::Number(number) => Ok(Value::Number(*number)),
            Operand::Tensor(tensor) => Ok(Value::Value(open.value_of(trace, tensor)?)),
        })
        .collect::<Result<Vec<_>>>()?;
    let out = call.record(&mut open.builder, &operands)?;
    let traced = Traced::of(trace, &open.builder, out)?;
    Ok(Tensor {
        state: State::Traced(traced),
    })
}

/// Notes that a tensor is overwritten: from here on, it is the other one.
pub(crate) fn overwrite(target: &Traced, from: &Tensor, caller: &Location<'_>) -> Result<()> {
    let trace = &target.trace;
    let mut open = trace.lock();
    let Some(open) = open.as_mut() else {
        return Err(target.leak("copy_"));
    };
    open.builder.set_origin(Some(origin(caller)));
    let source = open.value_of(trace, from)?;
    open.overwrite(target.value, source)
}

/// Notes a whole graph in the trace of its arguments, which must have the types of its inputs.
pub(crate) fn splice(graph: &Graph, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let traced = arguments.iter().find_map(|tensor| match &tensor.state {
        State::Traced(traced) => Some(traced),
        State::Concrete(_) | State::Failed(_) => None,
    });
    let traced = traced.ok_or_else(|| err!(Internal, "a graph is spliced into no trace"))?;
    let trace = traced.trace.clone();
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| traced.leak("a graph"))?;
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    for (i, (&input, argument)) in graph.inputs.iter().zip(arguments).enumerate() {
        let value = open.value_of(&trace, argument)?;
        let (want, have) = (graph.ty(input), open.builder.ty(value));
        ensure!(
            want.dtype == have.dtype,
            DTypeMismatch,
            "input {i} of @{} is {}, got {}",
            graph.name,
            want.dtype,
            have.dtype
        );
        ensure!(
            want.shape == have.shape,
            ShapeMismatch,
            "input {i} of @{} has shape {:?}, got {:?}",
            graph.name,
            want.shape,
            have.shape
        );
        new.insert(input, value);
    }
    let moved = |new: &HashMap<ValueId, ValueId>, old: &ValueId| {
        new.get(old)
            .copied()
            .ok_or_else(|| err!(InvalidGraph, "{old} is used before it is defined"))
    };
    for node in graph.nodes.values() {
        open.builder.set_origin(Some(node.origin.clone()));
        let outputs = if let Op::Constant { id, device } = &node.op {
            let constant = &graph.constants[*id];
            let tensor = HostTensor::clone(&constant.tensor);
            vec![open.builder.constant(&constant.name, tensor, *device)?]
        } else {
            let inputs = node
                .inputs
                .iter()
                .map(|old| moved(&new, old))
                .collect::<Result<Vec<_>>>()?;
            open.builder.node(node.op.clone(), &inputs)?
        };
        new.extend(node.outputs.iter().copied().zip(outputs));
    }
    let outputs = graph.outputs.iter().map(|output| {
        let value = moved(&new, &output.value)?;
        let traced = Traced::of(&trace, &open.builder, value)?;
        Ok(Tensor {
            state: State::Traced(traced),
        })
    });
    outputs.collect()
}

impl Open {
    /// The value that a tensor is in this graph.
    fn value_of(&mut self, trace: &Arc<Trace>, tensor: &Tensor) -> Result<ValueId> {
        match &tensor.state {
            State::Traced(traced) if Arc::ptr_eq(&traced.trace, trace) => {
                ensure!(
                    !self.stale.contains(&traced.value),
                    UnsupportedOp,
                    "a view that was taken before its tensor was overwritten is used after it"
                );
                Ok(self.now(traced.value))
            }
            State::Traced(traced) => Err(traced.leak("an operation of another trace")),
            State::Failed(error) => Err((**error).clone()),
            State::Concrete(tensor) => {
                let same = |known: &rt::Tensor| {
                    known.storage().is_same(tensor.storage())
                        && known.layout() == tensor.layout()
                        && known.dtype() == tensor.dtype()
                };
                if let Some((_, value)) = self.captured.iter().find(|(known, _)| same(known)) {
                    return Ok(*value);
                }
                // Inputs stand before every node, so a place is held until the closure is done.
                let shape = tensor.shape().iter().map(|&n| Expr::from(n)).collect();
                let device = Device::from(tensor.device()).into();
                let value = self.builder.full(0, shape, tensor.dtype(), device)?;
                self.captured.push((tensor.clone(), value));
                Ok(value)
            }
        }
    }
}

impl Open {
    /// What a tensor is now.
    fn now(&self, value: ValueId) -> ValueId {
        self.current.get(&value).copied().unwrap_or(value)
    }

    fn overwrite(&mut self, target: ValueId, source: ValueId) -> Result<()> {
        let (to, from) = (self.builder.ty(target), self.builder.ty(source));
        ensure!(
            to == from,
            ShapeMismatch,
            "copy_ of {}{:?} into {}{:?}",
            from.dtype,
            from.shape,
            to.dtype,
            to.shape
        );
        let held = |value: ValueId| self.captured.iter().any(|(_, held)| *held == value);
        let old = self.now(target);
        let mut owned = false;
        for node in self.builder.graph().nodes.values() {
            let view = node.op.category() == Category::View;
            if view && node.outputs.contains(&target) {
                return Err(
                    err!(UnsupportedOp, "copy_ into a view of a captured tensor")
                        .help("overwrite the whole tensor: x.copy_(&x.slice_scatter(..))"),
                );
            }
            if view
                && node
                    .inputs
                    .iter()
                    .any(|v| *v == old || self.stale.contains(v))
            {
                self.stale.extend(&node.outputs);
            }
            owned |= !view && node.outputs.contains(&source) && !held(source);
        }
        // A tensor that is somebody else's may be overwritten later: this one keeps what it is now.
        let new = if owned {
            source
        } else {
            self.builder.emit(Op::Clone, &[source])?
        };
        self.current.insert(target, new);
        Ok(())
    }
}

/// Runs the function on traced arguments that look like those of the call.
pub(crate) fn capture(name: &str, request: &Request<'_>) -> Result<Captured> {
    let mut builder = Builder::new(name);
    let names = request.source.names(request.inputs.len());
    let arguments = request
        .inputs
        .iter()
        .zip(&names)
        .map(|(tensor, name)| builder.input_value(Guard::of(tensor).value(short(name))))
        .collect::<Result<Vec<_>>>()?;
    let trace = Arc::new(Trace {
        open: Mutex::default(),
    });
    let tensors = arguments
        .iter()
        .map(|&value| {
            Ok(Tensor {
                state: State::Traced(Traced::of(&trace, &builder, value)?),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    *trace.lock() = Some(Open {
        builder,
        captured: Vec::new(),
        current: HashMap::new(),
        stale: HashSet::new(),
    });
    // Whatever happens in the closure, the trace is over when this function is.
    let _end = End(&trace);
    let returned = request.source.invoke(&tensors)?;
    let outputs = returned.tensors;
    let mut open = trace.lock();
    let open = open
        .as_mut()
        .ok_or_else(|| err!(Internal, "a trace ended inside its closure"))?;
    for output in &outputs {
        let value = open.value_of(&trace, output)?;
        open.builder.output(value);
    }
    for (i, argument) in arguments.iter().enumerate() {
        if let Some(&value) = open.current.get(argument) {
            open.builder.mutate(i, value);
        }
    }
    let captured = std::mem::take(&mut open.captured);
    let graph = std::mem::replace(&mut open.builder, Builder::new("over")).finish()?;
    Ok(Captured {
        graph: hoist(&graph, &captured)?,
        results: outputs.len(),
        template: returned.template,
        tensors: captured.into_iter().map(|(tensor, _)| tensor).collect(),
    })
}

/// The name of an argument as an identifier: `x0`, or the path of a field.
fn short(name: &str) -> String {
    let path = name.trim_start_matches("argument ");
    match path.split_once('.') {
        Some((_, field)) => field.replace('.', "_"),
        None => format!("x{path}"),
    }
}

struct End<'a>(&'a Trace);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// The graph with the held places of captured tensors as inputs after the arguments.
fn hoist(graph: &Graph, captured: &[(rt::Tensor, ValueId)]) -> Result<Graph> {
    if captured.is_empty() {
        return Ok(graph.clone());
    }
    let mut out = Graph {
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        constants: graph.constants.clone(),
        values: Arena::new(),
        nodes: Arena::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    for &input in &graph.inputs {
        let id = out.values.push(graph.values[input].clone());
        out.inputs.push(id);
        new.insert(input, id);
    }
    for (i, (tensor, held)) in captured.iter().enumerate() {
        let id = out
            .values
            .push(Guard::of(tensor).value(format!("captured{i}")));
        out.inputs.push(id);
        new.insert(*held, id);
    }
    let moved = |new: &HashMap<ValueId, ValueId>, old: &ValueId| {
        new.get(old)
            .copied()
            .ok_or_else(|| err!(Internal, "{old} is used before it is defined"))
    };
    for node in graph.nodes.values() {
        if captured.iter().any(|(_, held)| node.outputs.contains(held)) {
            continue;
        }
        let inputs = node
            .inputs
            .iter()
            .map(|old| moved(&new, old))
            .collect::<Result<Vec<_>>>()?;
        let outputs = node.outputs.iter().map(|&old| {
            let id = out.values.push(graph.values[old].clone());
            new.insert(old, id);
            id
        });
        let outputs = outputs.collect();
        out.nodes.push(Node {
            op: node.op.clone(),
            inputs,
            outputs,
            origin: node.origin.clone(),
        });
    }
    for output in &graph.outputs {
        out.outputs.push(GraphOutput {
            value: moved(&new, &output.value)?,
            alias: output.alias,
        });
    }
    oxyfuel_graph::verify(&out)?;
    Ok(out)
}

/// The layout of a border of the graph.
pub(crate) fn required(strides: &[i64]) -> Layout {
    Layout::Required(strides.iter().map(|&stride| Expr::from(stride)).collect())
}
