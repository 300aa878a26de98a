//! Reductions over dims whose extent is known only when the kernel runs: loops over chunks of a row.
//!
//! As in [`crate::chunk`], every layer of reductions is one walk over the row that reads it anew, and a last walk computes and stores what varies along the row. Here each chunk is reduced at once and
//! its result combined with those before, so that nothing of a chunk's size is carried along; the last chunk has a bound, and an empty row leaves the identity. A row of several layers that fits into one chunk
//! is not walked but held: nothing is read or computed twice.

use std::collections::BTreeMap;

use oxyfuel_base::{Result, ensure};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::{combine, is_small, layers, needed};
use crate::nest::{Nest, NestOp, NestStore, Node};
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
    let looks_up = nest
        .values
        .iter()
        .any(|value| matches!(value.op, NestOp::LoadAt { .. }));
    let passes = layers(nest).into_iter().max().unwrap_or(0)
        + usize::from(nest.stores.iter().any(|store| !nest.is_small_store(store)));
    Some(Walk {
        tiling: Tiling::of(block),
        single: outer.to_vec(),
        chunked,
        // A row that is held may be empty, and then there may be no table to look anything up in.
        held: along_vector && chunked.is_some() && outer.is_empty() && passes > 1 && !looks_up,
    })
}

/// Adds the phase that computes `nest`.
pub fn emit_walk(k: &KernelBuilder, params: &Params, nest: &Nest, walk: &Walk) {
    let blocks = Blocks::new(nest, &walk.tiling, nest.reduced);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let frame = Frame::new(k, params, nest, &walk.tiling, &blocks);
        let row = Row {
            k,
            params,
            nest,
            walk,
            part: None,
        };
        let Some(along) = walk.chunked.filter(|_| walk.held) else {
            return row.walk(frame);
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
        k.when(&extent.compare(CompareOp::Gt, chunk), |_| {
            row.walk(frame.clone());
        });
    });
}

/// Adds the phase that reduces each of `parts` equal parts of the rows: results go to element `kept * parts + part` of a workspace each. Parts beyond the end of a row leave the identity.
pub fn emit_parts(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    walk: &Walk,
    parts: i64,
    workspaces: &[(Node, Mem)],
) -> Result<()> {
    let blocks = Blocks::new(nest, &walk.tiling, nest.reduced);
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let mut grid = blocks.grid.clone();
    let axis = grid.len() as u8;
    ensure!(axis < 3, NoLowering, "a cut reduction among too many dims");
    grid.push(parts.into());
    k.phase_ordered(grid, Order::Plain, |k| {
        let part = k.program_id(axis);
        let sizes = &params.sizes;
        let share = nest.dims[cut].ceildiv(parts);
        let begin = sizes.times(&part, &share);
        let end = sizes.plus(&begin, &share);
        let end = sizes.binary(&end, BinaryOp::Min, &nest.dims[cut]);
        let mut outer = Frame::new(k, params, nest, &walk.tiling, &blocks).of_part(cut, &part);
        let row = Row {
            k,
            params,
            nest,
            walk,
            part: Some((cut, begin, end)),
        };
        row.layer(&mut outer, &layers(nest), 0);
        for (node, mem) in workspaces {
            outer.store_partial(*node, mem, &parts.into(), cut);
        }
    });
    Ok(())
}

/// A row, or a part of it, while its walks are written.
struct Row<'a> {
    k: &'a KernelBuilder,
    params: &'a Params,
    nest: &'a Nest,
    walk: &'a Walk,
    /// Along this dim only what lies from the first number to the second.
    part: Option<(usize, Tile, Tile)>,
}

type Chunk<'a, 'c> = &'c dyn Fn(Frame<'a>, Vec<Tile>) -> Vec<Tile>;

impl<'a> Row<'a> {
    /// All walks over the row.
    fn walk(&self, mut outer: Frame<'a>) {
        let nest = self.nest;
        let layers = layers(nest);
        for layer in 0..=layers.iter().copied().max().unwrap_or(0) {
            self.layer(&mut outer, &layers, layer);
        }
        let (small, big): (Vec<_>, Vec<_>) = nest
            .stores
            .iter()
            .partition(|store| nest.is_small_store(store));
        for store in small {
            outer.store(store.value, &store.window);
        }
        // A store is made once where it stands still: along a dim that may have no elements it must not wait for one.
        let mut groups: BTreeMap<Vec<usize>, Vec<&NestStore>> = BTreeMap::new();
        for store in big {
            let moves = nest.store_support(store);
            let dims = self.dims().into_iter().filter(|&d| moves.contains(d));
            groups.entry(dims.collect()).or_default().push(store);
        }
        for (dims, stores) in &groups {
            let wanted = needed(nest, stores.iter().map(|store| store.value));
            self.along(dims, &outer, Vec::new(), &|mut inner, _| {
                wanted.iter().for_each(|&node| inner.value(node));
                for store in stores {
                    inner.store(store.value, &store.window);
                }
                Vec::new()
            });
        }
    }

    /// The dims that are walked, the slowest first.
    fn dims(&self) -> Vec<usize> {
        let mut dims = self.walk.single.clone();
        dims.extend(self.walk.chunked);
        dims
    }

    /// What is the same all along the row after so many reductions, and the reductions that follow from it.
    fn layer(&self, outer: &mut Frame<'a>, layers: &[usize], layer: usize) {
        let nest = self.nest;
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
            return;
        }
        let inits = sums
            .iter()
            .map(|&(_, f, operand)| outer.identity_result(f, operand))
            .collect();
        let wanted = needed(nest, sums.iter().map(|s| s.2));
        let totals = self.along(&self.dims(), outer, inits, &|mut inner, carried| {
            wanted.iter().for_each(|&node| inner.value(node));
            let parts = sums.iter().zip(carried);
            parts
                .map(|(&(_, f, operand), total)| {
                    let tile = match self.walk.chunked {
                        Some(along) => inner.chunk_operand(f, operand, along),
                        None => inner.whole_operand(operand),
                    };
                    combine(f, &total, &inner.reduce_tile(f, tile))
                })
                .collect()
        });
        for (&(node, ..), total) in sums.iter().zip(totals) {
            outer.give(node, total);
        }
    }

    /// Runs `chunk` over all chunks of the row along `dims`, handing values from one to the next.
    fn along(
        &self,
        dims: &[usize],
        frame: &Frame<'a>,
        inits: Vec<Tile>,
        chunk: Chunk<'a, '_>,
    ) -> Vec<Tile> {
        let Some((&dim, rest)) = dims.split_first() else {
            return chunk(frame.clone(), inits);
        };
        let block = match self.walk.chunked {
            Some(chunked) if chunked == dim => self.walk.tiling.block[dim],
            Some(_) | None => 1,
        };
        let part = self.part.as_ref().filter(|(cut, ..)| *cut == dim);
        let body = |at: Tile, carried: Vec<Tile>| {
            let inner = match part {
                Some((.., end)) => frame.at_chunk_before(dim, &at, block, end),
                None => frame.at_chunk(dim, &at, block),
            };
            self.along(rest, &inner, carried, chunk)
        };
        match part {
            Some((_, begin, end)) => {
                self.k
                    .for_range_vec(begin, end, block, inits, |_, at, carried| body(at, carried))
            }
            None => {
                let end = self.params.sizes.index(&self.nest.dims[dim]);
                self.k
                    .for_range_vec(0, end, block, inits, |_, at, carried| body(at, carried))
            }
        }
    }
}
