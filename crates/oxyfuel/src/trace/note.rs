//! What a program does, noted down: operations, tensors from nothing, writes, whole graphs.
//!
//! What fails with symbols may be right with numbers: after a cut it is tried again with those of this call.

use super::memory::{self, Place};
use super::{Open, Trace, current, leak, suspended};
use crate::call::{Call, Operand, origin};
use crate::tensor::{State, Tensor};
use oxyfuel_base::{DType, Expr, Result, Scalar, Symbol, ensure, err};
use oxyfuel_graph::{Builder, Graph, HostTensor, Op, Operand as Value, ValueId};
use oxyfuel_runtime::tensor as rt;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

/// Notes an operation.
pub(crate) fn note(
    trace: &Arc<Trace>,
    call: &Call,
    operands: &[Operand<'_>],
    caller: &Location<'_>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("an operation"))?;
    open.builder.set_origin(Some(origin(caller)));
    let noted = open.note(trace, call, operands, caller);
    match noted {
        Err(error) if open.settle_all(caller, &error) => open.note(trace, call, operands, caller),
        noted => noted,
    }
}

/// Notes a tensor that the program makes from nothing.
pub(crate) fn source(
    trace: &Arc<Trace>,
    caller: &Location<'_>,
    make: impl FnOnce(&mut Builder) -> Result<ValueId>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a constructor"))?;
    open.builder.set_origin(Some(origin(caller)));
    let value = make(&mut open.builder)?;
    let place = open.fresh(value)?;
    open.tensor(trace, value, place)
}

/// Notes a tensor that begins as a copy of one that was made during the capture, in memory of its own.
pub(crate) fn copied(
    trace: &Arc<Trace>,
    tensor: rt::Tensor,
    caller: &Location<'_>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a constructor"))?;
    open.builder.set_origin(Some(origin(caller)));
    let (value, _) = open.operand(trace, &tensor.into())?;
    let place = open.fresh(value)?;
    open.tensor(trace, value, place)
}

/// Notes that the elements of a tensor are overwritten with those of another of the same type and shape.
pub(crate) fn write(
    trace: &Arc<Trace>,
    target: &Tensor,
    source: &Tensor,
    caller: &Location<'_>,
) -> Result<()> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a write"))?;
    open.builder.set_origin(Some(origin(caller)));
    let written = open.write(trace, target, source);
    match written {
        Err(error) if open.settle_all(caller, &error) => open.write(trace, target, source),
        written => written,
    }
}

/// Notes a whole graph in the current trace; its arguments must have the types of its inputs.
pub(crate) fn splice(graph: &Graph, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let trace = current().ok_or_else(|| err!(Internal, "a graph is spliced into no trace"))?;
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a graph"))?;
    let spliced = open.splice(&trace, graph, arguments);
    match spliced {
        Err(error) if open.settle_all(Location::caller(), &error) => {
            open.splice(&trace, graph, arguments)
        }
        spliced => spliced,
    }
}

impl Open {
    fn note(
        &mut self,
        trace: &Arc<Trace>,
        call: &Call,
        operands: &[Operand<'_>],
        caller: &Location<'_>,
    ) -> Result<Tensor> {
        let mut values = Vec::with_capacity(operands.len());
        let mut places = Vec::with_capacity(operands.len());
        for (i, operand) in operands.iter().enumerate() {
            match operand {
                Operand::Tensor(tensor) => {
                    let (value, place) = self.operand(trace, tensor)?;
                    values.push(Value::Value(value));
                    places.push((value, place));
                }
                Operand::Number(number) => {
                    values.push(self.scalar(call, operands, i, *number)?);
                }
            }
        }
        if let (Call::Squeeze(dim), Some((value, _))) = (call, places.first()) {
            let (value, symbols) = (*value, self.sizes.len());
            self.fix_squeezed(value, *dim, caller);
            if self.sizes.len() != symbols {
                // What was looked up has a symbol that is a number now.
                return self.note(trace, call, operands, caller);
            }
        }
        let out = call.record(&mut self.builder, &values)?;
        let place = self.place_of(call, out, &places)?;
        self.tensor(trace, out, place)
    }

    fn write(&mut self, trace: &Arc<Trace>, target: &Tensor, source: &Tensor) -> Result<()> {
        let (value, _) = self.operand(trace, source)?;
        let (old, place) = self.operand(trace, target)?;
        let (to, from) = (self.builder.ty(old), self.builder.ty(value));
        ensure!(
            to == from,
            ShapeMismatch,
            "a write of {}{:?} into {}{:?}",
            from.dtype,
            from.shape,
            to.dtype,
            to.shape
        );
        let Self {
            builder, memory, ..
        } = self;
        memory.write(builder, &place, value)?;
        if let State::Traced(traced) = &target.state {
            memory.seen(traced.facts.id, value);
        }
        Ok(())
    }

    fn splice(
        &mut self,
        trace: &Arc<Trace>,
        graph: &Graph,
        arguments: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let mut new: HashMap<ValueId, ValueId> = HashMap::new();
        for (i, (&input, argument)) in graph.inputs.iter().zip(arguments).enumerate() {
            let (value, _) = self.operand(trace, argument)?;
            let (want, have) = (graph.ty(input), self.builder.ty(value));
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
            self.builder.set_origin(Some(node.origin.clone()));
            let outputs = if let Op::Constant { id, device } = &node.op {
                let constant = &graph.constants[*id];
                let tensor = HostTensor::clone(&constant.tensor);
                vec![self.builder.constant(&constant.name, tensor, *device)?]
            } else {
                let inputs = node
                    .inputs
                    .iter()
                    .map(|old| moved(&new, old))
                    .collect::<Result<Vec<_>>>()?;
                self.builder.node(node.op.clone(), &inputs)?
            };
            new.extend(node.outputs.iter().copied().zip(outputs));
        }
        let outputs = graph.outputs.iter().map(|output| {
            let value = moved(&new, &output.value)?;
            let place = self.fresh(value)?;
            self.tensor(trace, value, place)
        });
        outputs.collect()
    }

    /// A number of an operation. After a cut it may come from what was read: as an input of its segment it does not lead to another compile when it changes.
    fn scalar(
        &mut self,
        call: &Call,
        operands: &[Operand<'_>],
        i: usize,
        number: Scalar,
    ) -> Result<Value> {
        let other = match operands.get(1 - i.min(1)) {
            Some(Operand::Tensor(other))
                if !self.cuts.is_empty() && call.takes_tensor_numbers() =>
            {
                other
            }
            Some(_) | None => return Ok(Value::Number(number)),
        };
        let alike = matches!(other.dtype(), DType::F32 | DType::F64) && other.rank() > 0;
        if !alike || operands.len() != 2 {
            return Ok(Value::Number(number));
        }
        let made = suspended(|| Tensor::full(&[], number, other.dtype()));
        let State::Concrete(tensor) = &made.state else {
            return Ok(Value::Number(number));
        };
        let Self {
            builder, memory, ..
        } = self;
        let place = memory.lift(tensor, &[], &self.sizes);
        Ok(Value::Value(memory.content(builder, place.base)?))
    }

    /// Where the elements of a result lie: on those of an operand, if the operation is a view of it.
    fn place_of(
        &mut self,
        call: &Call,
        out: ValueId,
        places: &[(ValueId, Arc<Place>)],
    ) -> Result<Arc<Place>> {
        // Only what a call says it is, is looked into.
        let is_operand =
            |value: ValueId| !call.is_view() || places.iter().any(|(known, _)| *known == value);
        let (root, views) = memory::views(self.builder.graph(), out, &is_operand);
        if let Some((_, place)) = places.iter().find(|(value, _)| *value == root)
            && let Some(place) = place.viewed(&views, &|e| self.number(e))?
        {
            return Ok(Arc::new(place));
        }
        self.fresh(out)
    }

    /// Whether a dim disappears is asked of its size, where that may be 1.
    fn fix_squeezed(&mut self, value: ValueId, dim: i64, caller: &Location<'_>) {
        let shape = &self.builder.ty(value).shape;
        let dim = if dim < 0 {
            dim + shape.len() as i64
        } else {
            dim
        };
        let extent = usize::try_from(dim).ok().and_then(|dim| shape.get(dim));
        let mut symbols: Vec<Symbol> = extent
            .map(Expr::symbols)
            .unwrap_or_default()
            .into_iter()
            .collect();
        let infos = &self.builder.graph().symbols;
        symbols.retain(|&symbol| {
            let mut infos = infos.iter();
            infos.any(|info| info.symbol == symbol && info.min < 2)
        });
        self.fix(&symbols, caller);
    }
}
