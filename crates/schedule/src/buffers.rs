//! Buffers for the roots that a schedule keeps in memory: who owns each, how long it lives, and where in the arena it lies.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Code, Error, Expr, Result};
use oxyfuel_graph::{Graph, Op, ValueId};
use oxyfuel_plan::{Buffer, BufferHome, BufferId, Lifetime, plan_memory};

use crate::group::Schedule;

/// Alignment of every buffer we allocate: a cache line and the widest vector.
pub const ALIGN: u32 = 64;

/// The buffers of a plan, and which root value each one holds.
#[derive(Clone, Debug)]
pub struct BufferPlan {
    pub buffers: Arena<BufferId, Buffer>,
    pub of_value: BTreeMap<ValueId, BufferId>,
    pub arena_bytes: Expr,
}

/// Gives every root a buffer. Step `i` is group `i`; `workspaces` adds scratch of so many bytes to a step.
pub fn plan_buffers(
    graph: &Graph,
    schedule: &Schedule,
    workspaces: &[(u32, u64)],
) -> Result<(BufferPlan, Vec<BufferId>)> {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut of_value = BTreeMap::new();
    let last_step = u32::try_from(schedule.groups.len()).unwrap_or(u32::MAX);
    let bytes = |value: ValueId| -> Expr {
        graph.values[value].ty.numel() * graph.values[value].ty.dtype.size()
    };
    let name = |value: ValueId| {
        graph.values[value]
            .name
            .clone()
            .unwrap_or_else(|| value.to_string())
    };
    // What lies between the first and the last element of an input: its strides may leave gaps, or stay in place.
    let span = |value: ValueId| -> Expr {
        let ty = &graph.values[value].ty;
        if ty.shape.iter().any(|extent| extent.is_const(0)) {
            return Expr::ZERO;
        }
        let strides = &schedule.placements.of(value).strides;
        let steps = ty
            .shape
            .iter()
            .zip(strides)
            .map(|(extent, stride)| (extent.clone() - 1) * stride.clone());
        (steps.sum::<Expr>() + 1) * ty.dtype.size()
    };
    for (i, &input) in graph.inputs.iter().enumerate() {
        let align = graph.values[input].align;
        let home = BufferHome::Input(u32::try_from(i).unwrap_or(u32::MAX));
        let id = buffers.push(Buffer {
            name: name(input),
            home,
            bytes: span(input),
            align,
            first_step: 0,
            last_step,
        });
        of_value.insert(input, id);
    }
    for (_, node) in graph.nodes.iter() {
        if let Op::Constant { id, .. } = &node.op {
            let home = BufferHome::Constant(graph.constants[*id].tensor.data.clone());
            let buffer = Buffer {
                name: name(node.out()),
                home,
                bytes: bytes(node.out()),
                align: ALIGN,
                first_step: 0,
                last_step,
            };
            of_value.insert(node.out(), buffers.push(buffer));
        }
    }
    for (i, out) in graph.outputs.iter().enumerate() {
        let root = schedule.placements.root(out.value);
        if out.alias.is_none() && !of_value.contains_key(&root) {
            let home = BufferHome::Output(u32::try_from(i).unwrap_or(u32::MAX));
            let id = buffers.push(Buffer {
                name: name(root),
                home,
                bytes: bytes(root),
                align: ALIGN,
                first_step: 0,
                last_step,
            });
            of_value.insert(root, id);
        }
    }

    let mut requests = Vec::new();
    let mut placed = Vec::new();
    for (step, group) in schedule.groups.iter().enumerate() {
        let first = u32::try_from(step).unwrap_or(u32::MAX);
        for &value in &group.outputs {
            if of_value.contains_key(&value) {
                continue;
            }
            let returned = graph
                .outputs
                .iter()
                .any(|out| schedule.placements.root(out.value) == value);
            let last = if returned {
                last_step
            } else {
                last_use(schedule, value, first)
            };
            let size = bytes(value);
            let id = buffers.push(Buffer {
                name: name(value),
                home: BufferHome::Arena {
                    offset: Expr::constant(0),
                },
                bytes: size.clone(),
                align: ALIGN,
                first_step: first,
                last_step: last,
            });
            of_value.insert(value, id);
            requests.push(Lifetime {
                bytes: static_bytes(&size, &name(value))?,
                align: u64::from(ALIGN),
                first,
                last,
            });
            placed.push(id);
        }
    }
    let mut scratch = Vec::new();
    for &(step, size) in workspaces {
        let id = buffers.push(Buffer {
            name: format!("workspace{step}"),
            home: BufferHome::Arena {
                offset: Expr::constant(0),
            },
            bytes: Expr::constant(i64::try_from(size).unwrap_or(i64::MAX)),
            align: ALIGN,
            first_step: step,
            last_step: step,
        });
        requests.push(Lifetime {
            bytes: size,
            align: u64::from(ALIGN),
            first: step,
            last: step,
        });
        placed.push(id);
        scratch.push(id);
    }
    let plan = plan_memory(&requests);
    for (&id, &offset) in placed.iter().zip(&plan.offsets) {
        buffers[id].home = BufferHome::Arena {
            offset: Expr::constant(i64::try_from(offset).unwrap_or(i64::MAX)),
        };
    }
    let arena_bytes = Expr::constant(i64::try_from(plan.total).unwrap_or(i64::MAX));
    Ok((
        BufferPlan {
            buffers,
            of_value,
            arena_bytes,
        },
        scratch,
    ))
}

fn last_use(schedule: &Schedule, value: ValueId, first: u32) -> u32 {
    let uses = schedule
        .groups
        .iter()
        .enumerate()
        .filter(|(_, group)| group.inputs.contains(&value));
    uses.map(|(step, _)| u32::try_from(step).unwrap_or(u32::MAX))
        .max()
        .unwrap_or(first)
        .max(first)
}

fn static_bytes(size: &Expr, name: &str) -> Result<u64> {
    let size = size.check()?;
    let bytes = size.as_const().ok_or_else(|| {
        Error::new(
            Code::NoLowering,
            format!("the size of {name} is symbolic ({size})"),
        )
    });
    bytes.and_then(|b| {
        u64::try_from(b).map_err(|_| {
            Error::new(
                Code::SizeOverflow,
                format!("the size of {name} is {b} bytes"),
            )
        })
    })
}
