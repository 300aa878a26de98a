//! Kernels, buffers and steps become a plan.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Code, Error, Expr, External, Id, Result, Symbol, err};
use oxyfuel_graph::{Device, Graph, Layout, Op, Value, ValueId};
use oxyfuel_lower::{Argument, Lowered};
use oxyfuel_plan::{
    ArgRef, Artefact, BufferId, Cost, ExternalStep, HostOperand, InputSpec, Kernel, KernelId,
    KernelPhase, OutputSpec, Plan, Provenance, SizeLimit, Step, SymbolBinding, SymbolSource,
    TensorSpec,
};
use oxyfuel_schedule::{Between, BufferPlan, Group, GroupKind, Schedule, peak, plan_buffers};

use crate::cost::kernel_cost;
use crate::share::Kernels;

/// A kernel with its code, and the program it came from.
#[derive(Clone, Debug)]
pub struct Emitted {
    pub lowered: Lowered,
    /// The mapped program as text.
    pub program: String,
    pub artefact: Artefact,
    /// Why it is interpreted, if it is.
    pub note: Option<String>,
}

/// Puts everything together, in at most `most` bytes where that can be.
pub fn assemble(
    graph: &Graph,
    schedule: &Schedule,
    kernels: Kernels<Emitted>,
    isa: &str,
    most: i64,
) -> Result<Plan> {
    let mut workspaces = Vec::new();
    for (step, launch) in kernels.launches.iter().enumerate() {
        for argument in launch.iter().flat_map(|launch| &launch.arguments) {
            if let Argument::Workspace(bytes) = argument {
                workspaces.push((u32::try_from(step).unwrap_or(u32::MAX), bytes.clone()));
            }
        }
    }
    let (buffers, scratch) = place_buffers(graph, schedule, &workspaces, most)?;
    let mut scratch = scratch.into_iter();
    let mut plan_kernels: Arena<KernelId, Kernel> = Arena::new();
    for emitted in kernels.unique {
        let Lowered {
            mapped, min_chunk, ..
        } = &emitted.lowered;
        plan_kernels.push(Kernel {
            name: mapped.name.clone(),
            program: emitted.program,
            artefact: emitted.artefact,
            phases: (mapped.phases.iter().zip(min_chunk))
                .map(|(phase, &min_chunk)| KernelPhase {
                    grid: phase.grid.clone(),
                    min_chunk,
                })
                .collect(),
            rounds: mapped.rounds,
            written: mapped.written(),
            provenance: Provenance::default(),
            cost: Cost::NOTHING,
            members: 1,
            gemm: emitted.lowered.gemm.clone(),
            note: emitted.note,
        });
    }
    let mut steps = Vec::new();
    for (group, launch) in schedule.groups.iter().zip(kernels.launches) {
        let Some(launch) = launch else {
            let step = external_step(graph, schedule, group, &buffers)?;
            steps.push(Step::External(step));
            continue;
        };
        let id = KernelId::from_index(launch.kernel);
        let kernel = &mut plan_kernels[id];
        let args = launch.arguments.iter().map(|argument| {
            let buffer = match argument {
                Argument::Value(value) => buffers.of_value.get(value).copied(),
                Argument::Workspace(_) => scratch.next(),
                Argument::Size(size) => return Ok(ArgRef::Index(size.clone())),
                Argument::TensorMap => return Ok(ArgRef::TensorMap),
            };
            let buffer = buffer.ok_or_else(|| {
                err!(
                    Internal,
                    "kernel {} has no buffer for an argument",
                    kernel.name
                )
            })?;
            Ok(ArgRef::Buffer {
                buffer,
                offset: Expr::constant(0),
            })
        });
        let args = args.collect::<Result<Vec<_>>>()?;
        kernel.cost = Cost::NOTHING;
        let mut came_from = Provenance::default();
        for piece in group.pieces() {
            kernel.cost = kernel.cost.and(&kernel_cost(graph, schedule, piece));
            let piece = provenance(graph, piece);
            match group.in_order {
                true => came_from.then(piece),
                false => came_from.extend(piece),
            }
        }
        kernel.provenance.extend(came_from);
        kernel.members = match group.in_order {
            true => 1,
            false => u32::try_from(group.pieces().len()).unwrap_or(u32::MAX),
        };
        steps.push(Step::Launch { kernel: id, args });
    }

    let inputs = graph
        .inputs
        .iter()
        .map(|&value| {
            let data = &graph.values[value];
            InputSpec {
                name: data.name.clone().unwrap_or_else(|| value.to_string()),
                dtype: data.ty.dtype,
                shape: data.ty.shape.clone(),
                strides: schedule.placements.of(value).strides.clone(),
                align: data.align,
                buffer: buffers.of_value[&value],
            }
        })
        .collect();
    let mut outputs = Vec::new();
    for out in &graph.outputs {
        let place = schedule.memory.of(out.value);
        let Value { ty, layout, .. } = &graph.values[out.value];
        let root = *buffers.of_value.get(&place.root).ok_or_else(|| {
            Error::new(
                Code::Internal,
                format!("output {} has no buffer", out.value),
            )
        })?;
        let viewed = graph.inputs.iter().position(|&input| input == place.root);
        if let Some(input) = out.alias
            && place.root != graph.inputs[input]
        {
            return Err(err!(
                Internal,
                "the new value of input {input} does not lie in it"
            ));
        }
        // Where a dim does not move, the border's word counts.
        let strides = match (layout, out.alias) {
            (Layout::Required(strides), None) => strides,
            (Layout::Required(_) | Layout::Any | Layout::Chosen(_), _) => &place.strides,
        };
        outputs.push(OutputSpec {
            dtype: ty.dtype,
            shape: ty.shape.clone(),
            strides: strides.clone(),
            buffer: root,
            offset: place.offset.clone(),
            alias: viewed.map(|i| u32::try_from(i).unwrap_or(u32::MAX)),
        });
    }
    let plan = Plan {
        name: graph.name.clone(),
        isa: isa.to_owned(),
        symbols: bindings(graph, &steps),
        limits: limits(graph),
        inputs,
        outputs,
        buffers: buffers.buffers,
        arena_bytes: buffers.arena_bytes,
        kernels: plan_kernels,
        steps,
    };
    oxyfuel_plan::verify(&plan)?;
    Ok(plan)
}

/// Buffers in an arena; apart from each other where the arena would be more than `most` bytes with all that a call holds beside it, and they are less. What one step moves its operands through comes
/// on top: it is there however values lie.
fn place_buffers(
    graph: &Graph,
    schedule: &Schedule,
    workspaces: &[(u32, Expr)],
    most: i64,
) -> Result<(BufferPlan, Vec<BufferId>)> {
    let together = plan_buffers(graph, schedule, workspaces, Between::Arena)?;
    // Sizes that only a step tells are not compared.
    let Ok(bytes) = peak(graph, schedule, &together.0) else {
        return Ok(together);
    };
    let guesses = graph.guesses();
    let mut beside: BTreeMap<u32, i64> = BTreeMap::new();
    for (step, size) in workspaces {
        let bytes = size.eval(&|symbol| guesses.get(&symbol).copied())?;
        let sum = beside.entry(*step).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let most = most.saturating_add(beside.into_values().max().unwrap_or(0));
    if bytes <= most {
        return Ok(together);
    }
    let apart = plan_buffers(graph, schedule, workspaces, Between::Apart)?;
    Ok(match peak(graph, schedule, &apart.0)? < bytes {
        true => apart,
        false => together,
    })
}

/// Sizes of indices that nothing proves to lie within what they index.
fn limits(graph: &Graph) -> Vec<SizeLimit> {
    let ranges = graph.ranges();
    let mut limits = Vec::new();
    for node in graph.nodes.values() {
        let (x, index, along) = match (&node.op, &node.inputs[..]) {
            (Op::Gather { dim }, &[x, index]) => (x, index, *dim),
            (Op::Scatter { op: _, dim }, &[x, _, index]) => (x, index, *dim),
            _ => continue,
        };
        let sizes = graph.ty(index).shape.iter().zip(&graph.ty(x).shape);
        for (dim, (size, limit)) in sizes.enumerate() {
            if dim != along && !size.provably_le(limit, &ranges) {
                limits.push(SizeLimit {
                    size: size.clone(),
                    limit: limit.clone(),
                    what: format!("dimension {dim} of the index of `{}`", node.op.name()),
                });
            }
        }
    }
    limits
}

/// The call of a group that is the host's, with the places of its operands.
fn external_step(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    buffers: &BufferPlan,
) -> Result<ExternalStep> {
    let lost = || err!(Internal, "an external call has no buffer for an operand");
    let (GroupKind::External(id), [_]) = (group.kind, &group.nodes[..]) else {
        return Err(err!(
            Internal,
            "a group without a kernel is no external call"
        ));
    };
    let node = &graph.nodes[id];
    let Op::External { call } = &node.op else {
        return Err(err!(Internal, "`{}` is no external call", node.op.name()));
    };
    let operand = |(i, &value): (usize, &ValueId)| {
        let place = schedule.memory.of(value);
        let ty = &graph.values[value].ty;
        Ok(HostOperand {
            buffer: *buffers.of_value.get(&place.root).ok_or_else(lost)?,
            tensor: (ty.device != Device::Host).then(|| TensorSpec {
                dtype: ty.dtype,
                shape: ty.shape.clone(),
                strides: place.strides.clone(),
            }),
            offset: place.offset.clone(),
            required: call.operand_strides.get(i).cloned().flatten(),
        })
    };
    let result = |value: &ValueId| buffers.of_value.get(value).copied().ok_or_else(lost);
    Ok(ExternalStep {
        call: External::clone(call),
        operands: node
            .inputs
            .iter()
            .enumerate()
            .map(operand)
            .collect::<Result<_>>()?,
        results: node.outputs.iter().map(result).collect::<Result<_>>()?,
        provenance: provenance(graph, group),
    })
}

/// Where each symbol gets its number: the plain extent of an input, an external step, or the caller.
fn bindings(graph: &Graph, steps: &[Step]) -> Vec<SymbolBinding> {
    let source = |symbol: Symbol| {
        for (i, &input) in graph.inputs.iter().enumerate() {
            let shape = &graph.values[input].ty.shape;
            if let Some(d) = shape.iter().position(|e| e.as_symbol() == Some(symbol)) {
                return SymbolSource::Extent {
                    input: u32::try_from(i).unwrap_or(0),
                    dim: u32::try_from(d).unwrap_or(0),
                };
            }
        }
        let step = steps.iter().position(|step| {
            matches!(step, Step::External(step) if step.call.binds.iter().any(|b| b.symbol == symbol))
        });
        step.map_or(SymbolSource::Given, |step| {
            SymbolSource::Step(u32::try_from(step).unwrap_or(u32::MAX))
        })
    };
    let symbols = graph.symbols.iter().map(|info| SymbolBinding {
        symbol: info.symbol,
        source: source(info.symbol),
        min: info.min,
        max: info.max,
    });
    symbols.collect()
}

fn provenance(graph: &Graph, group: &Group) -> Provenance {
    let mut provenance = Provenance::default();
    for &id in &group.nodes {
        let node = &graph.nodes[id];
        let names: Vec<String> = if node.origin.ops.is_empty() {
            vec![node.op.name().to_owned()]
        } else {
            node.origin.ops.iter().map(|op| op.to_string()).collect()
        };
        for name in names {
            if provenance.ops.last() != Some(&name) {
                provenance.ops.push(name);
            }
        }
        if let Some(place) = &node.origin.at {
            let line = place.to_string();
            if !provenance.lines.contains(&line) {
                provenance.lines.push(line);
            }
        }
        if let Some(source) = &node.origin.source
            && provenance.sources.last() != Some(source)
        {
            provenance.sources.push(source.clone());
        }
    }
    provenance
}
