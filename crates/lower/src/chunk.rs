//! Rows too long for registers: reductions as loops over chunks of a row.
//!
//! Every layer of reductions is one loop that reads the row anew, computes what it needs and combines it into an accumulator tile of one chunk; after the loop the accumulator is
//! reduced across its elements. Columns side by side, which come from memory, are summed in the same way, some rows at a time: each chunk is reduced first, and combined with accumulators of one row. A last loop computes and stores what varies along the row. Softmax reads its row three times this way, and never holds it; where threads hold accumulators of their own, twice ([`crate::online`]).

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{IntoIndex, KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::nest::{Dims, Nest, NestOp, Node};
use crate::online::Online;
use crate::rows::{Blocks, Frame, depends_on_reduction};
use crate::size::Params;
use crate::tile::Tiling;

/// Adds the phase that computes `nest`, walking reduced dim `along` in chunks of its block. The other reduced dims lie whole inside a tile.
pub fn emit_chunked(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    tiling: &Tiling,
    along: usize,
    target: &TargetDesc,
) {
    let blocks = Blocks::new(nest, tiling, Dims::default().with(along));
    let grid: Vec<Expr> = blocks.grid.clone();
    let layers = layers(nest);
    let deepest = layers.iter().copied().max().unwrap_or(0);
    // Where threads hold what they have met, the row need not be read twice for its largest element and the sum beside it.
    let online = (0..nest.values.len())
        .filter(|_| target.is_simt())
        .find_map(|node| Online::of(nest, tiling, along, node));
    k.phase_ordered(grid, Order::Plain, |k| {
        let mut outer = Frame::new(k, params, nest, tiling, &blocks);
        for layer in 0..=deepest {
            for (node, value) in nest.values.iter().enumerate() {
                let sums = matches!(value.op, NestOp::Reduce(..));
                if layers[node] == layer && is_small(nest, node) && !sums {
                    outer.value(node);
                }
            }
            if let Some(online) = online.as_ref().filter(|o| layers[o.largest] == layer + 1) {
                let (largest, sum) = online.emit(k, &outer);
                outer.give(online.largest, largest);
                outer.give(online.sum, sum);
            }
            let given = |node: Node| {
                let mut both = online.iter().flat_map(|o| [o.largest, o.sum]);
                both.any(|n| n == node)
            };
            let sums: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
                .filter(|&node| !given(node))
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
            let step = tiling.block[along];
            let end = params.sizes.index(&nest.dims[along]);
            let folds = target.tiles_spill && along + 1 < nest.rank();
            let walked = Walked { along, step, folds };
            for (node, total) in walked.totals(k, nest, [&outer, &outer], (0, end), &sums) {
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
            let (end, step) = (params.sizes.index(&nest.dims[along]), tiling.block[along]);
            k.for_range_vec(0, end, step, Vec::new(), |_, at, _| {
                let mut inner = outer.at_chunk(along, &at, step);
                needed(nest, big.iter().map(|store| store.value))
                    .into_iter()
                    .for_each(|node| inner.value(node));
                for store in &big {
                    inner.store(store.value, &store.window);
                }
                Vec::new()
            });
        }
    });
}

/// Adds the phase that reduces each part of a cut reduction, as [`crate::rows::emit_partial`] does, where a part is longer than what registers hold: each is walked in chunks of `step` along the dim that is cut.
pub fn emit_partial(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    tiling: &Tiling,
    step: i64,
    workspaces: &[(Node, Mem)],
) {
    let blocks = Blocks::new(nest, tiling, Dims::default());
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let parts = blocks.count[cut].clone();
    let sums: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
        .filter_map(|node| match nest.values[node].op {
            NestOp::Reduce(f, operand) => Some((node, f, operand)),
            _ => None,
        })
        .collect();
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut outer = Frame::new(k, params, nest, tiling, &blocks);
        outer.cut = Some(cut);
        outer.streams = true;
        for node in 0..nest.values.len() {
            if is_small(nest, node) && !depends_on_reduction(nest, node) {
                outer.value(node);
            }
        }
        let (begin, end) = outer.range(cut);
        let first = outer.at_chunk(cut, &begin, step);
        let walked = Walked {
            along: cut,
            step,
            folds: false,
        };
        for (node, total) in walked.totals(k, nest, [&outer, &first], (&begin, &end), &sums) {
            outer.give(node, total);
        }
        for (node, mem) in workspaces {
            outer.store_partial(*node, mem, &parts, cut);
        }
    });
}

/// A dim that is walked in steps of so many coordinates.
struct Walked {
    along: usize,
    step: i64,
    /// Each chunk is reduced before it is combined: columns side by side, whose accumulators come from the cache once for all rows of a chunk.
    folds: bool,
}

impl Walked {
    /// The results of reductions from one coordinate to another: every chunk is combined into accumulators of its shape, which `first` has, and those are reduced at the end; or the other way round.
    fn totals(
        &self,
        k: &KernelBuilder,
        nest: &Nest,
        [outer, first]: [&Frame<'_>; 2],
        (begin, end): (impl IntoIndex, impl IntoIndex),
        sums: &[(Node, ReduceOp, Node)],
    ) -> Vec<(Node, Tile)> {
        let inits = sums
            .iter()
            .map(|&(_, f, operand)| match self.folds {
                true => first.identity_result(f, operand),
                false => first.identity_tile(f, operand),
            })
            .collect();
        let totals = k.for_range_vec(begin, end, self.step, inits, |_, at, carried| {
            let mut inner = outer.at_chunk(self.along, &at, self.step);
            needed(nest, sums.iter().map(|s| s.2))
                .into_iter()
                .for_each(|node| inner.value(node));
            sums.iter()
                .zip(carried)
                .map(|(&(_, f, operand), acc)| {
                    let chunk = inner.chunk_operand(f, operand, self.along);
                    match self.folds {
                        true => combine(f, &acc, &inner.reduce_tile(f, chunk)),
                        false => combine(f, &acc, &chunk),
                    }
                })
                .collect()
        });
        let results = sums.iter().zip(totals);
        results
            .map(|(&(node, f, _), total)| (node, first.reduce_tile(f, total)))
            .collect()
    }
}

/// Whether a value is the same for the whole row.
pub fn is_small(nest: &Nest, node: Node) -> bool {
    nest.values[node].support.minus(nest.reduced) == nest.values[node].support
}

/// How many reductions lie one after the other before each value.
pub fn layers(nest: &Nest) -> Vec<usize> {
    let mut layers: Vec<usize> = Vec::with_capacity(nest.values.len());
    for value in &nest.values {
        let below = value
            .op
            .operands()
            .into_iter()
            .map(|n| layers[n])
            .max()
            .unwrap_or(0);
        layers.push(below + usize::from(matches!(value.op, NestOp::Reduce(..))));
    }
    layers
}

/// Everything that `roots` are computed from inside a chunk, in order; what is the same for the whole row is there already.
pub fn needed(nest: &Nest, roots: impl Iterator<Item = Node>) -> Vec<Node> {
    let mut want = vec![false; nest.values.len()];
    for root in roots {
        want[root] = true;
    }
    for node in (0..nest.values.len()).rev() {
        if want[node] && !matches!(nest.values[node].op, NestOp::Reduce(..)) {
            nest.values[node]
                .op
                .operands()
                .into_iter()
                .for_each(|n| want[n] = true);
        }
    }
    (0..nest.values.len()).filter(|&node| want[node]).collect()
}

pub fn combine(f: ReduceOp, a: &Tile, b: &Tile) -> Tile {
    let op = match f {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Any => BinaryOp::Or,
        ReduceOp::All => BinaryOp::And,
    };
    a.binary(op, b)
}
