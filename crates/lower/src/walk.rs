//! Reductions over dims whose extent is known only when the kernel runs: loops over chunks of a row.
//!
//! As in [`crate::chunk`], every layer of reductions is one walk over the row that reads it anew, and a last walk computes and stores what varies along the row. Here each chunk is reduced at once and
//! its result combined with those before, so that nothing of a chunk's size is carried along; the last chunk has a bound, and an empty row leaves the identity. A row of several layers that fits into one chunk
//! is not walked but held: nothing is read or computed twice.

use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{CompareOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::{combine, is_small, layers, needed};
use crate::nest::{Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::{Tiling, block_of};

/// Elements of a chunk along the dim that vectors run along.
const CHUNK: i64 = 1024;
/// The most of them, where rows are likely to be longer.
const MOST: i64 = 4096;
/// Rows of a chunk where vectors run along a kept dim.
const CHUNK_ROWS: i64 = 128;
/// A dim of a known extent up to this lies whole inside a tile.
const WHOLE: i64 = 2048;

/// How the reduced dims of a nest are walked.
#[derive(Clone, Debug)]
pub struct Walk {
    tiling: Tiling,
    /// Dims that are walked one coordinate at a time, the slowest first.
    single: Vec<usize>,
    /// The dim that is walked in chunks.
    chunked: Option<usize>,
    /// A row that fits into one chunk is held.
    held: bool,
}

/// The walk of a collapsed nest, if a reduced dim of it is symbolic.
pub fn plan(nest: &Nest, target: &TargetDesc) -> Option<Walk> {
    let symbolic = |d: usize| nest.dims[d].as_const().is_none();
    let reduced: Vec<usize> = nest.reduced.iter().filter(|&d| d < nest.rank()).collect();
    let (&innermost, outer) = reduced.split_last()?;
    if !nest.has_reduction() || !reduced.iter().any(|&d| symbolic(d)) {
        return None;
    }
    let last = nest.rank() - 1;
    let lanes = i64::from(target.lanes(4)) * if target.is_simt() { 1 } else { 4 };
    let mut block = vec![1; nest.rank()];
    let along_vector = innermost == last;
    if !along_vector {
        block[last] = block_of(nest, last, lanes);
    }
    let whole = nest.dims[innermost].as_const().filter(|&n| n <= WHOLE);
    let chunked = match whole {
        Some(extent) => {
            block[innermost] = extent.max(1);
            None
        }
        None => {
            let likely = block_of(nest, innermost, MOST);
            block[innermost] = if along_vector {
                likely.max(CHUNK)
            } else {
                CHUNK_ROWS
            };
            Some(innermost)
        }
    };
    let passes = layers(nest).into_iter().max().unwrap_or(0)
        + usize::from(nest.stores.iter().any(|store| !nest.is_small_store(store)));
    Some(Walk {
        tiling: Tiling { block },
        single: outer.to_vec(),
        chunked,
        held: along_vector && chunked.is_some() && outer.is_empty() && passes > 1,
    })
}

/// Adds the phase that computes `nest`.
pub fn emit_walk(k: &KernelBuilder, params: &Params, nest: &Nest, walk: &Walk) {
    let blocks = Blocks::new(nest, &walk.tiling, nest.reduced);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let frame = Frame::new(k, params, nest, &walk.tiling, &blocks);
        let Some(along) = walk.chunked.filter(|_| walk.held) else {
            return walk_row(k, params, nest, walk, frame);
        };
        let (chunk, most) = (walk.tiling.block[along], nest.most(along));
        let extent = params.sizes.tile(&nest.dims[along]);
        let hold = || {
            let mut whole = frame.bounded(along, &extent);
            for node in 0..nest.values.len() {
                whole.value(node);
            }
            for store in &nest.stores {
                whole.store(store.value, &store.window);
            }
        };
        if most <= chunk {
            return hold();
        }
        k.when(&extent.compare(CompareOp::Le, chunk), |_| hold());
        k.when(&extent.compare(CompareOp::Gt, chunk), |k| {
            walk_row(k, params, nest, walk, frame.clone());
        });
    });
}

/// The walks over one row.
fn walk_row<'a>(
    k: &'a KernelBuilder,
    params: &'a Params,
    nest: &'a Nest,
    walk: &Walk,
    mut outer: Frame<'a>,
) {
    let layers = layers(nest);
    let deepest = layers.iter().copied().max().unwrap_or(0);
    for layer in 0..=deepest {
        for (node, value) in nest.values.iter().enumerate() {
            let sums = matches!(value.op, NestOp::Reduce(..));
            if layers[node] == layer && is_small(nest, node) && !sums {
                outer.value(node);
            }
        }
        let sums: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
            .filter_map(|node| match nest.values[node].op {
                NestOp::Reduce(f, operand) if layers[node] == layer + 1 => Some((node, f, operand)),
                _ => None,
            })
            .collect();
        if sums.is_empty() {
            continue;
        }
        let inits = sums
            .iter()
            .map(|&(_, f, operand)| outer.identity_result(f, operand))
            .collect();
        let wanted = needed(nest, sums.iter().map(|s| s.2));
        let chunk = |mut inner: Frame<'_>, carried: Vec<Tile>| {
            wanted.iter().for_each(|&node| inner.value(node));
            let parts = sums.iter().zip(carried);
            parts
                .map(|(&(_, f, operand), total)| {
                    let tile = match walk.chunked {
                        Some(along) => inner.chunk_operand(f, operand, along),
                        None => inner.whole_operand(operand),
                    };
                    combine(f, &total, &inner.reduce_tile(f, tile))
                })
                .collect()
        };
        let totals = along_row(k, params, nest, walk, &outer, inits, &chunk);
        for (&(node, ..), total) in sums.iter().zip(totals) {
            outer.give(node, total);
        }
    }
    let (small, big): (Vec<_>, Vec<_>) = nest
        .stores
        .iter()
        .partition(|store| nest.is_small_store(store));
    for store in small {
        outer.store(store.value, &store.window);
    }
    if !big.is_empty() {
        let wanted = needed(nest, big.iter().map(|store| store.value));
        let chunk = |mut inner: Frame<'_>, _: Vec<Tile>| {
            wanted.iter().for_each(|&node| inner.value(node));
            for store in &big {
                inner.store(store.value, &store.window);
            }
            Vec::new()
        };
        along_row(k, params, nest, walk, &outer, Vec::new(), &chunk);
    }
}

/// Runs `chunk` over all chunks of the row, handing values from one to the next.
fn along_row<'a>(
    k: &'a KernelBuilder,
    params: &Params,
    nest: &Nest,
    walk: &Walk,
    frame: &Frame<'a>,
    inits: Vec<Tile>,
    chunk: &dyn Fn(Frame<'a>, Vec<Tile>) -> Vec<Tile>,
) -> Vec<Tile> {
    single(
        k,
        params,
        nest,
        &walk.single,
        frame,
        inits,
        &|frame, inits| {
            let Some(along) = walk.chunked else {
                return chunk(frame.clone(), inits);
            };
            let block = walk.tiling.block[along];
            let end = params.sizes.index(&nest.dims[along]);
            k.for_range_vec(0, end, block, inits, |_, at, carried| {
                chunk(frame.at_chunk(along, &at, block), carried)
            })
        },
    )
}

/// Loops over `dims`, one coordinate at a time.
fn single<'a>(
    k: &'a KernelBuilder,
    params: &Params,
    nest: &Nest,
    dims: &[usize],
    frame: &Frame<'a>,
    inits: Vec<Tile>,
    body: &dyn Fn(&Frame<'a>, Vec<Tile>) -> Vec<Tile>,
) -> Vec<Tile> {
    let Some((&d, rest)) = dims.split_first() else {
        return body(frame, inits);
    };
    let end = params.sizes.index(&nest.dims[d]);
    k.for_range_vec(0, end, 1, inits, |_, at, carried| {
        let inner = frame.at_chunk(d, &at, 1);
        single(k, params, nest, rest, &inner, carried, body)
    })
}
