//! LOWER: a group of the schedule becomes a tile program, first logical, then mapped onto a machine.
//!
//! | file | idea |
//! |---|---|
//! | `build.rs`, `pointwise.rs` | a group as nests: values over one iteration domain |
//! | `rare.rs` | functions composed of others |
//! | `nest.rs` | what a nest is; merging its dims |
//! | `tile.rs` | how a nest is cut into tiles |
//! | `separate.rs` | a nest as several, where some of its stores must happen though others have nothing to do |
//! | `size.rs` | sizes that are known, and sizes that a kernel is given when it runs |
//! | `together.rs` | reductions that do not need each other, next to each other |
//! | `rows.rs`, `rows/places.rs`, `chunk.rs`, `walk.rs`, `split.rs` | a nest as phases of a logical program: whole tiles, reads and stores at places that an index says, long rows in chunks, rows of symbolic length, cut reductions |
//! | `online.rs` | what a softmax needs of a long row, in one reading of it |
//! | `scan.rs`, `running.rs` | running sums, products and recurrences: step by step; and on a GPU by a block of threads |
//! | `sort.rs`, `select.rs`, `digits.rs` | positions in order: an instance a row; and on a GPU a block of threads, or for long rows all multiprocessors |
//! | `team.rs` | a block of threads that has one row on a GPU |
//! | `scatter.rs` | stores at computed places |
//! | `direct.rs`, `blocked.rs`, `thin.rs`, `flat.rs`, `packed.rs`, `outputs.rs`, `warps.rs` | matrix products: as a plain reduction, on vector units, of few rows or columns there (in both orders of memory), on a CPU's matrix unit (and with a weight that is stored by its outputs), by warp groups |
//! | `deep.rs` | products of a great depth with few blocks, in parts |
//! | `staged.rs`, `staged_product.rs`, `staged_attention.rs` | what a block of threads on a GPU multiplies through shared memory: products, attention |
//! | `library.rs` | matrix products that a library of the machine's may compute instead |
//! | `convolution` | convolutions as products with windows that are never whole in memory |
//! | `attention.rs`, `decode.rs` | attention with a running softmax: block by block, and of few queries over parts of the keys |
//! | `attention_backward.rs` | its gradients, from weights that are computed anew tile by tile |
//! | `codes.rs` | storage floats as bytes |
//! | `maths` | transcendental functions in terms of plain arithmetic |
//! | `wide.rs` | narrow values kept in f32 inside of a kernel, and arithmetic on pairs of them |
//! | `stream.rs` | results that no cache holds, written past them |
//! | `behind.rs` | such rows, each stored while the next one is reduced |
//! | `pairs.rs` | short rows, two an instance |
//! | `join.rs` | programs side by side in one grid |
//! | `gathered.rs` | programs one after the other in one launch |
//! | `map.rs`, `aligned.rs` | layouts for every tile, and how many neighbours an access moves |
//!
//! This is the only crate that sees both IRs.
#![forbid(unsafe_code)]

mod aligned;
mod attention;
mod attention_backward;
mod behind;
mod blocked;
mod build;
mod chains;
mod chunk;
mod codes;
mod convolution;
mod decode;
mod deep;
mod digits;
mod direct;
mod flat;
mod gathered;
mod images;
mod join;
mod library;
mod map;
pub mod maths;
mod nest;
mod online;
mod outputs;
mod packed;
mod pairs;
mod pointwise;
mod rare;
mod rows;
mod running;
mod scan;
mod scatter;
mod select;
mod separate;
mod size;
mod sort;
mod split;
mod staged;
mod staged_attention;
mod staged_product;
mod stream;
mod team;
mod thin;
mod thin_warps;
mod tile;
mod together;
mod walk;
mod warps;
mod wide;

use std::cell::RefCell;

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem};
use oxyfuel_kernel::ir::{BufferMode, ParamKind, Phase, UnaryOp};
use oxyfuel_plan::{Gemm, TargetDesc};
use oxyfuel_schedule::{Group, GroupKind, Schedule, Strategy};

use crate::attention_backward::Backward;
use crate::nest::{Nest, NestBuffer};
use crate::size::{Known, Params, Sizes};

pub use crate::gathered::{MOST_PHASES, gather, gathers};
pub use crate::join::{MOST_PARAMS, MOST_PROGRAMS, join, join_arguments, joins};
pub use crate::wide::Rounding;

/// What a kernel's parameter stands for, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The buffer of a root value.
    Value(ValueId),
    /// Scratch of so many bytes.
    Workspace(Expr),
    /// A number from the symbols.
    Size(Expr),
    /// A tensor map over an earlier buffer parameter.
    TensorMap,
}

/// Whether a machine has a kernel of its own for a composite node, as it stands.
pub fn has_kernel(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    attention::applies(graph, node, target)
        || convolution::applies(graph, node, target)
        || blocked::reads_panels(graph, node, target)
        || images::applies(graph, node, target)
}

/// How many columns the panels have that a product's second operand is cut into ahead of time; `None` where the kernel for it reads the operand where it lies, or the matrix unit does.
pub fn panel_columns(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<i64> {
    blocked::panel_columns(graph, node, target)
}

/// How many columns the panels have that a convolution's weight may be cut into ahead of time, and whether they are of the points of F(2x2, 3x3). Panels of a matrix unit are made at every call.
pub fn image_panels(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<(i64, bool)> {
    let single = graph.ty(node.out()).dtype.size() >= 4;
    images::panels(graph, node, target).filter(|_| single)
}

/// Whether the panels that a convolution makes of its weight at every call are of points, where it has a kernel that reads panels.
pub fn image_points(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<bool> {
    images::panels(graph, node, target).map(|(_, winograd)| winograd)
}

/// Whether all convolutions of a graph shall read panels that are made of their weights at every call.
pub fn packs_images(graph: &Graph, target: &TargetDesc) -> bool {
    images::pays(graph, target)
}

/// Bytes of the panels that are then made for a convolution.
pub fn image_workspace(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<i64> {
    images::workspace(graph, node, target)
}

/// A group as programs of both forms.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Until nobody wants to see it any more.
    pub logical: Option<Program>,
    pub mapped: Program,
    pub arguments: Vec<Argument>,
    /// Instances of each phase that one worker should take at least.
    pub min_chunk: Vec<u64>,
    /// The product that it is, where a library of the machine's may compute it instead.
    pub gemm: Option<Gemm>,
}

/// Elements of work below which a second thread costs more than it brings.
const WORTH_A_THREAD: i64 = 16 * 1024;

/// Multiply-adds of a packed product that take as long as an element of other work.
const MULTIPLY_ADDS: i64 = 16;

/// Lowers a group for a machine in the way of `strategy`.
pub fn lower_group(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    strategy: Strategy,
    target: &TargetDesc,
    rounding: Rounding,
    name: &str,
) -> Result<Lowered> {
    let mut work = build::build(graph, schedule, group, name)?;
    if rounding == Rounding::AtStores {
        work.nests = work.nests.iter().map(wide::kept_wide).collect();
    }
    let made = work.before.as_ref();
    if target.is_simt() && matches!(group.kind, GroupKind::Loops | GroupKind::Writes(_)) {
        work.nests = work.nests.iter().map(wide::kept_narrow).collect();
    }
    let known = Known::of(graph);
    let mut depth = 1;
    let mut gemm = None;
    let (logical, mapped, sizes) = match group.kind {
        GroupKind::Contraction(node) => {
            let node = &graph.nodes[node];
            let product = direct::product(graph, schedule, group, &work.buffers)?;
            if let Ok(fixed) = product.fixed() {
                gemm = library::gemm(&work.nests[0], &fixed, target);
            }
            if strategy == Strategy::PackedProduct {
                let product = match product.fixed() {
                    Err(_) if !target.is_simt() => product.likely(&known)?,
                    fixed => fixed?,
                };
                depth = (product.count() * product.k / MULTIPLY_ADDS).max(1);
                contraction(&work.nests[0], &product, made, target)?
            } else {
                work.nests = vec![direct::direct(&work.nests[0], group, node.out(), &product)?];
                loops(&work.nests, strategy, target, name)?
            }
        }
        GroupKind::Attention(node) => {
            let node = &graph.nodes[node];
            let nest = &work.nests[0];
            let (memory, buffers) = (&schedule.memory, &work.buffers);
            let sizes = RefCell::new(None);
            let params = |k: &KernelBuilder, more: [&Expr; 3]| {
                let params = parameters_of(k, std::slice::from_ref(nest), &more);
                sizes.replace(Some(params.sizes.clone()));
                params
            };
            let program = if let Op::SdpaBackward { .. } = node.op {
                let a = Backward::read(graph, memory, node, buffers)?;
                depth = a.work(&known);
                attention_backward::backward(nest, |k| params(k, a.sizes()), &a, target)?
            } else {
                let a = attention::Attention::read(graph, memory, node, buffers)?;
                depth = a.likely(&known)?.work();
                attention::attention(nest, |k| params(k, a.sizes()), &a, target)?
            };
            let mapped = expanded(program.clone(), target)?;
            let sizes = sizes.take();
            let sizes = sizes.map_or_else(Vec::new, |sizes| sizes.of_parameters(&mapped));
            (program, mapped, sizes)
        }
        GroupKind::Convolution(node) => {
            let node = &graph.nodes[node];
            let nest = &work.nests[0];
            let params = |k: &KernelBuilder| parameters(k, std::slice::from_ref(nest));
            let (memory, buffers) = (&schedule.memory, &work.buffers);
            let program = if let Op::ConvPanels { .. } = node.op {
                let images = images::Images::read(graph, memory, node, buffers, target)?;
                depth = images.work();
                images::images(nest, params, &images, target)?
            } else {
                let conv = convolution::Convolution::read(graph, memory, node, buffers)?;
                depth = conv.work();
                convolution::convolution(nest, params, &conv, target)?
            };
            let mapped = expanded(program.clone(), target)?;
            (program, mapped, Vec::new())
        }
        GroupKind::Loops | GroupKind::Writes(_) | GroupKind::External(_) => {
            loops(&work.nests, strategy, target, name)?
        }
    };
    let arguments = arguments(&mapped, &work.buffers, &sizes);
    let elements = |nest: &Nest| {
        let extents = (0..nest.rank()).map(|d| nest.guess(d));
        extents.fold(1, i64::saturating_mul)
    };
    let elements = work.nests.iter().map(elements).max().unwrap_or(1);
    let elements = elements.saturating_mul(depth);
    let min_chunk = mapped
        .phases
        .iter()
        .map(|phase| min_chunk(phase, elements, &known))
        .collect();
    Ok(Lowered {
        logical: Some(logical),
        mapped,
        arguments,
        min_chunk,
        gemm,
    })
}

/// What the parameters of a program stand for: roots in order, then scratch, sizes and tensor maps as the program lists them.
fn arguments(program: &Program, roots: &[ValueId], sizes: &[Expr]) -> Vec<Argument> {
    let (mut roots, mut sizes) = (roots.iter(), sizes.iter());
    let argument = |kind: &ParamKind| match kind {
        ParamKind::Buffer(buffer) if buffer.mode == BufferMode::Workspace => {
            let len = buffer.len.clone().unwrap_or_default();
            Some(Argument::Workspace(len * buffer.dtype.size()))
        }
        ParamKind::Buffer(_) => roots.next().map(|&root| Argument::Value(root)),
        ParamKind::Scalar { .. } => sizes.next().map(|size| Argument::Size(size.clone())),
        ParamKind::TensorMap(_) => Some(Argument::TensorMap),
    };
    let kinds = program.params.iter().map(|param| &param.kind);
    kinds.filter_map(argument).collect()
}

/// A matrix product on the units that a machine has for it.
fn contraction(
    nest: &Nest,
    product: &direct::Product,
    made: Option<&(Nest, nest::Node)>,
    target: &TargetDesc,
) -> Result<(Program, Program, Vec<Expr>)> {
    // Those of the kernel that was built are the last ones.
    let sizes = RefCell::new(None);
    let params = |k: &KernelBuilder| {
        let params = parameters(k, std::slice::from_ref(nest));
        sizes.replace(Some(params.sizes.clone()));
        params
    };
    let program = if product.b.panels.is_some() || nest.has_reduction() || made.is_some() {
        blocked::blocked(nest, params, product, made, target)?
    } else if product.late.is_some() {
        packed::packed(nest, params, product, target)
            .or_else(|_| blocked::blocked(nest, params, product, None, target))?
    } else if target.is_simt() {
        thin_warps::thin(nest, params, product, target)
            .or_else(|_| warps::warps(nest, params, product, target))
            .or_else(|_| staged_product::product(nest, params, product, target))?
    } else {
        outputs::outputs(nest, params, product, target)
            .or_else(|_| packed::packed(nest, params, product, target))
            .or_else(|_| thin::thin(nest, params, product, target))
            .or_else(|_| flat::flat(nest, params, product, target))
            .or_else(|_| blocked::blocked(nest, params, product, None, target))?
    };
    let mapped = expanded(program.clone(), target)?;
    let sizes = sizes.take();
    let sizes = sizes.map_or_else(Vec::new, |sizes| sizes.of_parameters(&mapped));
    Ok((program, mapped, sizes))
}

/// Transcendental functions, and conversions of storage floats that the machine lacks, as arithmetic that every target has.
fn expanded(program: Program, target: &TargetDesc) -> Result<Program> {
    // GPUs have powers of two, reciprocals and their roots of their own, and products.
    let is_simt = target.is_simt();
    let needs = |op: UnaryOp, _| !(target.powers_of_two && op == UnaryOp::NearExp2);
    codes::as_bytes(maths::expand_on(program, &needs, is_simt)?, target)
}

/// Places a logical program of any author on a machine: maths expanded, every tile laid out.
pub fn place(logical: &Program, target: &TargetDesc) -> Result<Program> {
    map::map(expanded(logical.clone(), target)?, target)
}

/// Instances that make a thread worth waking, if all of them share `elements`.
fn min_chunk(phase: &Phase, elements: i64, known: &Known) -> u64 {
    let extents = phase.grid.iter().map(|extent| known.guess(extent));
    let instances = extents.fold(1, i64::saturating_mul).max(1);
    let work = WORTH_A_THREAD.saturating_mul(instances);
    u64::try_from(work)
        .unwrap_or(1)
        .div_ceil(u64::try_from(elements).unwrap_or(1).max(1))
        .max(1)
}

/// The program of a block of threads a row, or of several blocks, for what has one: order along rows, and running combinations.
fn by_a_block(
    nest: &Nest,
    nests: &[Nest],
    target: &TargetDesc,
) -> Result<Option<(Program, Params)>> {
    let params = |k: &KernelBuilder| parameters(k, nests);
    if let Some(sort) = sort::along(nest) {
        match digits::by_digits(nest, params, sort, target)? {
            None => select::select(nest, params, sort, target),
            sorted => Ok(sorted),
        }
    } else if let Some(along) = scan::along(nest) {
        running::running(nest, params, along, target)
    } else {
        Ok(None)
    }
}

/// One parameter a buffer of the nests, and one a symbol of their extents.
fn parameters(k: &KernelBuilder, nests: &[Nest]) -> Params {
    parameters_of(k, nests, &[])
}

/// The same, and one a symbol of these sizes.
fn parameters_of(k: &KernelBuilder, nests: &[Nest], more: &[&Expr]) -> Params {
    let parameter = |(i, buffer): (usize, &NestBuffer)| -> Mem {
        let mode = match (buffer.read, buffer.written) {
            (true, true) => BufferMode::ReadWrite,
            (_, true) => BufferMode::Write,
            (_, false) => BufferMode::Read,
        };
        k.buffer(format!("p{i}"), buffer.dtype, mode, buffer.len.clone())
            .aligned(buffer.align.max(buffer.dtype.size() as u32))
    };
    let buffers = nests.first().map_or(&[][..], |nest| &nest.buffers);
    Params {
        mems: buffers.iter().enumerate().map(parameter).collect(),
        sizes: Sizes::new(
            k,
            nests
                .iter()
                .flat_map(Nest::extents)
                .chain(more.iter().copied()),
        ),
    }
}

/// The chunks in which a nest is walked, if it is. Products are summed in the same order by any number of threads, on which it depends who has how many columns.
fn chunks(
    nest: &Nest,
    strategy: Strategy,
    target: &TargetDesc,
    tiling: &tile::Tiling,
) -> Option<(tile::Tiling, usize)> {
    let sums = strategy == Strategy::Tiles;
    let columns = sums.then(|| tile::columns(nest, target)).flatten();
    columns.or_else(|| tile::chunked(nest, target, tiling))
}

/// Elementwise work, reductions and writes: every nest is a phase, or two where its reduction is cut. Returns both forms and what the program's sizes stand for.
fn loops(
    nests: &[Nest],
    strategy: Strategy,
    target: &TargetDesc,
    name: &str,
) -> Result<(Program, Program, Vec<Expr>)> {
    let mut parts = Vec::new();
    for nest in nests {
        let mut nest = nest.clone();
        nest.collapse();
        if target.is_simt() && nest.has_reduction() {
            together::reductions_together(&mut nest);
        }
        parts.extend(separate::separate(nest)?);
    }
    if let [nest] = parts.as_slice()
        && target.is_simt()
        && let Some((program, params)) = by_a_block(nest, nests, target)?
    {
        let mapped = expanded(program.clone(), target)?;
        let sizes = params.sizes.of_parameters(&mapped);
        return Ok((program, mapped, sizes));
    }
    let k = KernelBuilder::new(name);
    let params = parameters(&k, nests);
    for nest in &parts {
        if let Some(sort) = sort::along(nest) {
            sort::emit_sort(&k, &params, nest, sort, target);
            continue;
        }
        if !nest.scatters.is_empty() {
            scatter::emit_scatter(&k, &params, nest, target)?;
            continue;
        }
        if scan::along(nest).is_some() {
            scan::emit_scan(&k, &params, nest, target);
            continue;
        }
        let finish = |nest: &Nest| tile::choose(nest, target);
        if let Some(walk) = walk::plan(nest, target) {
            match strategy {
                Strategy::SplitReduction { parts } if split::applies(nest) => {
                    let parts = i64::from(parts);
                    let first = |workspaces: &[(nest::Node, Mem)]| {
                        walk::emit_parts(&k, &params, nest, &walk, parts, workspaces)
                    };
                    split::emit_split(&k, &params, nest, (parts, "partial"), first, finish)?;
                }
                Strategy::Tiles
                | Strategy::SplitReduction { .. }
                | Strategy::PackedProduct
                | Strategy::DirectProduct => walk::emit_walk(&k, &params, nest, &walk),
            }
            continue;
        }
        let tiling = tile::choose(nest, target);
        match strategy {
            _ if target.is_simt() && split::stores_on_the_way(nest) => {
                let (tiling, parts) = split::small_parts(nest, tiling);
                let first = |workspaces: &[(nest::Node, Mem)]| {
                    rows::emit_partial(&k, &params, nest, &tiling, workspaces);
                    Ok(())
                };
                split::emit_split(&k, &params, nest, (parts, "partial"), first, finish)?;
            }
            Strategy::SplitReduction { parts } if split::applies(nest) => {
                let (mut tiling, mut parts) = split::cut(nest, tiling, i64::from(parts));
                let step = tile::step_of_part(nest, target, &tiling);
                if let Some(step) = step {
                    (tiling, parts) = split::whole_steps(nest, tiling, step);
                }
                let first = |workspaces: &[(nest::Node, Mem)]| {
                    match step {
                        Some(step) => {
                            chunk::emit_partial(&k, &params, nest, &tiling, step, workspaces);
                        }
                        None => rows::emit_partial(&k, &params, nest, &tiling, workspaces),
                    }
                    Ok(())
                };
                split::emit_split(&k, &params, nest, (parts, "partial"), first, finish)?;
            }
            Strategy::SplitReduction { parts } if nest.has_reduction() && target.tiles_spill => {
                split::emit_layers(&k, &params, nest, i64::from(parts), finish)?;
            }
            Strategy::Tiles
            | Strategy::SplitReduction { .. }
            | Strategy::PackedProduct
            | Strategy::DirectProduct => match chunks(nest, strategy, target, &tiling) {
                Some((tiling, along)) => {
                    chunk::emit_chunked(&k, &params, nest, &tiling, along, target);
                }
                None => match behind::Behind::of(nest, target, &tiling) {
                    Some(behind) => behind.emit(&k, &params),
                    None => rows::emit(&k, &params, nest, &tiling),
                },
            },
        }
    }
    let logical = k.finish()?;
    let mut mapped = map::map(expanded(logical.clone(), target)?, target)?;
    if target.tiles_spill {
        stream::stream(&mut mapped);
        if let Some(nest) = nests.first() {
            stream::ahead(&mut mapped, &nest.known, target);
        }
        pairs::in_pairs(&mut mapped);
    } else if target.is_simt() {
        stream::keep(&mut mapped, target);
    }
    let sizes = params.sizes.of_parameters(&mapped);
    Ok((logical, mapped, sizes))
}
