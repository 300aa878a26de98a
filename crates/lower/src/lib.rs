//! LOWER: a group of the schedule becomes a tile program, first logical, then mapped onto a machine.
//!
//! | file | idea |
//! |---|---|
//! | `build.rs`, `pointwise.rs` | a group as nests: values over one iteration domain |
//! | `nest.rs` | what a nest is; merging its dims |
//! | `tile.rs` | how a nest is cut into tiles |
//! | `rows.rs`, `chunk.rs`, `split.rs` | a nest as phases of a logical program: whole tiles, long rows in chunks, cut reductions |
//! | `direct.rs`, `packed.rs`, `warps.rs` | matrix products: as a plain reduction, through packed panels, by warp groups |
//! | `maths` | transcendental functions in terms of plain arithmetic |
//! | `map.rs` | layouts for every tile |
//!
//! This is the only crate that sees both IRs.
#![forbid(unsafe_code)]

mod build;
mod chunk;
mod direct;

mod map;
pub mod maths;
mod nest;
mod packed;
mod pointwise;
mod rows;
mod split;
mod tile;
mod warps;

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Graph, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem};
use oxyfuel_kernel::ir::{BufferMode, Phase};
use oxyfuel_plan::TargetDesc;
use oxyfuel_schedule::{Group, GroupKind, Schedule, Strategy};

use crate::nest::{Nest, NestBuffer};

/// What a kernel's parameter stands for, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The buffer of a root value.
    Value(ValueId),
    /// Scratch of so many bytes.
    Workspace(u64),
    /// A tensor map over an earlier buffer parameter.
    TensorMap,
}

/// A group as programs of both forms.
#[derive(Clone, Debug)]
pub struct Lowered {
    pub logical: Program,
    pub mapped: Program,
    pub arguments: Vec<Argument>,
    /// Instances of each phase that one worker should take at least.
    pub min_chunk: Vec<u64>,
}

/// Elements of work below which a second thread costs more than it brings.
const WORTH_A_THREAD: i64 = 16 * 1024;

/// Lowers a group for a machine in the way of `strategy`.
pub fn lower_group(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    strategy: Strategy,
    target: &TargetDesc,
    name: &str,
) -> Result<Lowered> {
    let mut work = build::build(graph, schedule, group, name)?;
    let mut arguments: Vec<Argument> = work
        .buffers
        .iter()
        .map(|&root| Argument::Value(root))
        .collect();
    let (logical, mapped, workspaces) = match group.kind {
        GroupKind::Contraction(node) => {
            let node = &graph.nodes[node];
            let product = direct::product(graph, &schedule.memory, node, &work.buffers)?;
            let nest = &work.nests[0];
            if strategy == Strategy::PackedProduct && target.is_simt() {
                let (program, maps) =
                    warps::warps(nest, |k| parameters(k, nest), &product, target)?;
                arguments.extend((0..maps).map(|_| Argument::TensorMap));
                let mapped = expanded(program.clone())?;
                (program, mapped, Vec::new())
            } else if strategy == Strategy::PackedProduct {
                let made = packed::packed(nest, |k| parameters(k, nest), &product, target)?;
                let mapped = expanded(made.program.clone())?;
                (made.program, mapped, made.workspaces)
            } else {
                work.nests = vec![direct::direct(&work.nests[0], group, node.out(), &product)?];
                loops(&mut work.nests, strategy, target, name)?
            }
        }
        GroupKind::Loops | GroupKind::Writes(_) | GroupKind::External(_) => {
            loops(&mut work.nests, strategy, target, name)?
        }
    };
    arguments.extend(workspaces.into_iter().map(Argument::Workspace));
    let elements: i64 = work
        .nests
        .iter()
        .map(|nest| nest.dims.iter().product::<i64>())
        .max()
        .unwrap_or(1);
    let min_chunk = mapped
        .phases
        .iter()
        .map(|phase| min_chunk(phase, elements))
        .collect();
    Ok(Lowered {
        logical,
        mapped,
        arguments,
        min_chunk,
    })
}

/// Transcendental functions as arithmetic that every target has. What has no expansion stays: targets without it leave the kernel to the interpreter.
fn expanded(program: Program) -> Result<Program> {
    maths::expand(program, &|_, dtype| dtype != DType::F64)
}

/// Places a logical program of any author on a machine: maths expanded, every tile laid out.
pub fn place(logical: &Program, target: &TargetDesc) -> Result<Program> {
    map::map(expanded(logical.clone())?, target)
}

/// Instances that make a thread worth waking, if all of them share `elements`.
fn min_chunk(phase: &Phase, elements: i64) -> u64 {
    let extents = phase
        .grid
        .iter()
        .map(|extent| extent.as_const().unwrap_or(1));
    let instances = extents.product::<i64>().max(1);
    let chunk = tile::ceil_div(WORTH_A_THREAD * instances, elements.max(1)).max(1);
    u64::try_from(chunk).unwrap_or(1)
}

/// One parameter a buffer of the nest.
fn parameters(k: &KernelBuilder, nest: &Nest) -> Vec<Mem> {
    let parameter = |(i, buffer): (usize, &NestBuffer)| {
        let mode = match (buffer.read, buffer.written) {
            (true, true) => BufferMode::ReadWrite,
            (_, true) => BufferMode::Write,
            (_, false) => BufferMode::Read,
        };
        k.buffer(
            format!("p{i}"),
            buffer.dtype,
            mode,
            Expr::constant(buffer.len),
        )
        .aligned(buffer.align.max(buffer.dtype.size() as u32))
    };
    nest.buffers.iter().enumerate().map(parameter).collect()
}

/// Elementwise work, reductions and writes: every nest is a phase, or two where its reduction is cut.
fn loops(
    nests: &mut [Nest],
    strategy: Strategy,
    target: &TargetDesc,
    name: &str,
) -> Result<(Program, Program, Vec<u64>)> {
    let k = KernelBuilder::new(name);
    let mems = nests
        .first()
        .map(|nest| parameters(&k, nest))
        .unwrap_or_default();
    let mut workspaces = Vec::new();
    for nest in nests {
        nest.collapse();
        let tiling = tile::choose(nest, target);
        match strategy {
            Strategy::SplitReduction { parts } if split::applies(nest) => {
                let finish = |nest: &Nest| tile::choose(nest, target);
                let made = split::emit_split(&k, &mems, nest, tiling, i64::from(parts), finish)?;
                let bytes = |(dtype, len): (DType, i64)| {
                    dtype.size() as u64 * u64::try_from(len).unwrap_or(0)
                };
                workspaces.extend(made.into_iter().map(bytes));
            }
            Strategy::Tiles
            | Strategy::SplitReduction { .. }
            | Strategy::PackedProduct
            | Strategy::DirectProduct => match tile::chunked(nest, target, &tiling) {
                Some((tiling, along)) => {
                    chunk::emit_chunked(&k, &mems, nest, &tiling, along);
                }
                None => rows::emit(&k, &mems, nest, &tiling),
            },
        }
    }
    let logical = k.finish()?;
    let mapped = map::map(expanded(logical.clone())?, target)?;
    Ok((logical, mapped, workspaces))
}
