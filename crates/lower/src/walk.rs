//! Reductions over dims whose extent is known only when the kernel runs: loops over chunks of a row.
//!
//! As in [`crate::chunk`], every layer of reductions is one walk over the row that reads it anew, and a last walk computes and stores what varies along the row. Here each chunk is reduced at once and
//! its result combined with those before, so that nothing of a chunk's size is carried along. The row is walked in large chunks that need no bounds, and then in small ones that do: a row of
//! any length costs about what the same row of a known length does, and an empty row leaves the identity.

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::{combine, is_small, layers, needed};
use crate::nest::{Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::{Tiling, block_of};

/// Elements of a large chunk along the dim that vectors run along.
const LARGE: i64 = 256;
/// Rows of a large chunk where vectors run along a kept dim.
const LARGE_ROWS: i64 = 32;
/// A dim of a known extent up to this lies whole inside a tile.
const WHOLE: i64 = 2048;

/// How the reduced dims of a nest are walked.
#[derive(Clone, Debug)]
pub struct Walk {
    tiling: Tiling,
    /// Dims that are walked one coordinate at a time, the slowest first.
    single: Vec<usize>,
    /// The dim that is walked in chunks, and its small chunk.
    chunked: Option<(usize, i64)>,
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
            block[innermost] = if along_vector { LARGE } else { LARGE_ROWS };
            Some((innermost, if along_vector { lanes } else { 1 }))
        }
    };
    Some(Walk {
        tiling: Tiling { block },
        single: outer.to_vec(),
        chunked,
    })
}

/// Adds the phase that computes `nest`.
pub fn emit_walk(k: &KernelBuilder, params: &Params, nest: &Nest, walk: &Walk) {
    let blocks = Blocks::new(nest, &walk.tiling, nest.reduced);
    let layers = layers(nest);
    let deepest = layers.iter().copied().max().unwrap_or(0);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut outer = Frame::new(k, params, nest, &walk.tiling, &blocks);
        for layer in 0..=deepest {
            for (node, value) in nest.values.iter().enumerate() {
                let sums = matches!(value.op, NestOp::Reduce(..));
                if layers[node] == layer && is_small(nest, node) && !sums {
                    outer.value(node);
                }
            }
            let sums: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
                .filter_map(|node| match nest.values[node].op {
                    NestOp::Reduce(f, operand) if layers[node] == layer + 1 => {
                        Some((node, f, operand))
                    }
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
                            Some((along, _)) => inner.chunk_operand(f, operand, along),
                            None => inner.whole_operand(operand),
                        };
                        combine(f, &total, &inner.reduce_tile(f, tile))
                    })
                    .collect()
            };
            let totals = along_row(k, params, nest, walk, &outer, Tail::Small, inits, &chunk);
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
            // Bounds cost a store nothing: loops end at them.
            along_row(
                k,
                params,
                nest,
                walk,
                &outer,
                Tail::Bounded,
                Vec::new(),
                &chunk,
            );
        }
    });
}

/// How the end of a row is walked.
#[derive(Clone, Copy, PartialEq)]
enum Tail {
    /// In chunks of the small size.
    Small,
    /// In a chunk like the others, with a bound.
    Bounded,
}

/// Runs `chunk` over all chunks of the row, handing values from one to the next.
#[expect(clippy::too_many_arguments, reason = "the state of one loop nest")]
fn along_row<'a>(
    k: &'a KernelBuilder,
    params: &Params,
    nest: &Nest,
    walk: &Walk,
    frame: &Frame<'a>,
    tail: Tail,
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
            let Some((along, small)) = walk.chunked else {
                return chunk(frame.clone(), inits);
            };
            let large = walk.tiling.block[along];
            let extent = &nest.dims[along];
            let end = params.sizes.index(extent);
            if tail == Tail::Bounded {
                return k.for_range_vec(0, end, large, inits, |_, at, carried| {
                    chunk(frame.at_chunk(along, &at, large, false), carried)
                });
            }
            let full: Expr = extent.floordiv(large) * large;
            let middle = params.sizes.index(&full);
            let totals = k.for_range_vec(0, middle, large, inits, |_, at, carried| {
                chunk(frame.at_chunk(along, &at, large, true), carried)
            });
            k.for_range_vec(middle, end, small, totals, |_, at, carried| {
                chunk(frame.at_chunk(along, &at, small, false), carried)
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
        let inner = frame.at_chunk(d, &at, 1, true);
        single(k, params, nest, rest, &inner, carried, body)
    })
}
