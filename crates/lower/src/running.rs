//! Running sums and products on a GPU: a block of threads has one row.
//!
//! ```text
//!   a chunk of the row, an element a thread ─▶ combined over 1, 2, 4, ... threads before ─▶ and with all chunks before ─▶ stored
//! ```
//!
//! Step by step, a row takes the time of as many loads as it has elements, one after another; where rows are few, or lie along memory, a block has a chunk in a few steps. What is combined with what depends on the length alone.

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{CompareOp, Order, ReduceOp, Space};
use oxyfuel_plan::TargetDesc;

use crate::chunk::combine;
use crate::nest::{Nest, NestOp, NestStore, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::team::{Before, Team};
use crate::tile::Tiling;

/// Shorter rows are done step by step.
const SHORT: i64 = 32;
/// So many rows keep a GPU busy with a thread each, where neighbouring rows lie side by side.
const MANY_ROWS: i64 = 1 << 14;

/// Whether a block of threads is faster than a thread a row.
fn pays(nest: &Nest, along: usize) -> bool {
    let rows = (0..nest.rank()).filter(|&d| d != along);
    let rows = rows.fold(1i64, |all, d| all.saturating_mul(nest.guess(d)));
    let beside = |store: &NestStore| store.window.strides[along].is_const(1);
    nest.guess(along) >= SHORT && (rows < MANY_ROWS || nest.stores.iter().any(beside))
}

/// Builds the program that combines the rows of `nest` along a dim; nothing where a thread a row does.
pub fn running(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    along: usize,
    target: &TargetDesc,
) -> Result<Option<(Program, Params)>> {
    let scans: Vec<(Node, ReduceOp, Node)> = (0..nest.values.len())
        .filter_map(|node| match nest.values[node].op {
            NestOp::Scan(f, operand) => Some((node, f, operand)),
            _ => None,
        })
        .collect();
    let steps = |node: &Node| matches!(nest.values[*node].op, NestOp::Recurrence { .. });
    let other = (0..nest.values.len()).any(|node| steps(&node)) || nest.has_reduction();
    if scans.is_empty() || other || !nest.scatters.is_empty() || !pays(nest, along) {
        return Ok(None);
    }
    let team = Team::of(nest.guess(along), target);
    let threads = team.threads;
    let k = KernelBuilder::mapped(&nest.name, team.geometry);
    let params = params_of(&k);
    team.lay_out(&k);
    let mut block = vec![1; nest.rank()];
    block[along] = threads;
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(nest, &tiling, nest.scanned);
    let moves = |node: Node| nest.values[node].support.contains(along);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut outer = Frame::new(k, &params, nest, &tiling, &blocks);
        for node in (0..nest.values.len()).filter(|&node| !moves(node)) {
            outer.value(node);
        }
        let rows: Vec<Row> = scans
            .iter()
            .map(|&(node, f, _)| Row::new(k, threads, f, nest.values[node].dtype))
            .collect();
        let before = rows.iter().map(|row| row.before.nothing(k)).collect();
        let end = params.sizes.index(&nest.dims[along]);
        k.for_range_vec(0, end, threads, before, |k, at, before| {
            let mut inner = outer.at_chunk(along, &at, threads);
            let mut after = Vec::new();
            for node in (0..nest.values.len()).filter(|&node| moves(node)) {
                match scans.iter().position(|scan| scan.0 == node) {
                    Some(i) => {
                        let own = inner.get(scans[i].2).broadcast_to([threads]);
                        let here = combine(scans[i].1, &before[i], &rows[i].before.up_to(k, own));
                        after.push(rows[i].last(k, &here));
                        inner.give(node, here);
                    }
                    None => inner.value(node),
                }
            }
            for store in &nest.stores {
                inner.store(store.value, &store.window);
            }
            after
        });
    });
    Ok(Some((k.finish()?, params)))
}

/// What a block's threads tell each other of one scan.
struct Row {
    threads: i64,
    before: Before,
    total: Mem,
}

impl Row {
    fn new(k: &KernelBuilder, threads: i64, f: ReduceOp, dtype: DType) -> Self {
        Self {
            threads,
            before: Before::new(k, threads, f, dtype),
            total: k.alloc(Space::Shared, dtype, 1, None),
        }
    }

    /// What the last thread has, for all of them.
    fn last(&self, k: &KernelBuilder, here: &Tile) -> Tile {
        let me = k.iota(DType::I32, [self.threads], 0);
        let last = me.compare(CompareOp::Eq, self.threads - 1);
        let first = k.full(DType::I32, [self.threads], 0i64);
        k.scatter(&self.total, &first, here, Some(&last));
        k.sync();
        k.gather(&self.total, &first, None, 0)
    }
}
