//! A row is stored while the next one is reduced.
//!
//! A row of a softmax is reduced, which reads and computes, and then stored, which hardly does either: memory waits in the one and computing in the other. Where results go past the caches, an instance has several rows, and the stores
//! of each are in the loops that reduce the one after it. Results of reductions are carried from row to row.
//!
//! ```text
//!   reduce 0 │ reduce 1 │ reduce 2 │ reduce 3 │
//!            │ store 0  │ store 1  │ store 2  │ store 3
//! ```

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, Order};
use oxyfuel_plan::TargetDesc;

use crate::chunk::{is_small, layers};
use crate::nest::{Nest, NestOp, NestStore, Node};
use crate::rows::{Frame, depends_on_reduction};
use crate::size::Params;
use crate::stream;
use crate::tile::Tiling;

/// Most rows of an instance; with fewer than the least, the first and the last one, which are alone, are too many of them.
const MOST: i64 = 16;
const LEAST: i64 = 4;
/// Instances that every worker shall have, so that all of them are done at the same time.
const EACH: i64 = 8;
/// Bytes of a row from which on the machine does not look beyond it by itself.
const LONG: i64 = 1 << 14;
/// Rows that the second-level cache holds at a time: the one that is stored, the one that is reduced, the one that is asked for, and what was asked for too early.
const HELD: i64 = 4;

/// Rows whose stores come behind.
pub struct Behind<'a> {
    nest: &'a Nest,
    tiling: &'a Tiling,
    rows: i64,
    /// Rows of an instance.
    together: i64,
    /// Results of reductions that stores need.
    carried: Vec<Node>,
    /// What they and the stores of single elements are computed from, and what the others are, in order.
    before: Vec<Node>,
    after: Vec<Node>,
}

impl<'a> Behind<'a> {
    /// Whether a nest on a machine is better off this way.
    pub fn of(nest: &'a Nest, target: &TargetDesc, tiling: &'a Tiling) -> Option<Self> {
        let rank = nest.rank();
        let rows = nest.dims.first()?.as_const()?;
        let each = nest.dims[1..].iter().map(Expr::as_const);
        let row: i64 = each.collect::<Option<Vec<_>>>()?.into_iter().product();
        let kept_is_first = (0..rank).all(|d| nest.reduced.contains(d) == (d > 0));
        let together = (rows / (i64::from(target.workers.max(1)) * EACH)).min(MOST);
        if !target.tiles_spill || !kept_is_first || tiling.block[0] != 1 || together < LEAST {
            return None;
        }
        let plain = |node: Node| {
            let op = &nest.values[node].op;
            let read = match op {
                NestOp::Load(window) => !nest.buffers[window.buffer].written,
                _ => true,
            };
            let simple = matches!(
                op,
                NestOp::Load(_)
                    | NestOp::Const(_)
                    | NestOp::Unary(..)
                    | NestOp::Binary(..)
                    | NestOp::Compare(..)
                    | NestOp::Select(..)
                    | NestOp::Cast(_)
                    | NestOp::Reduce(..)
            );
            read && simple
        };
        let behind = |store: &NestStore| {
            let whole = nest.store_support(store) == nest.window_support(&store.window);
            whole && depends_on_reduction(nest, store.value)
        };
        let (small, big): (Vec<_>, Vec<_>) = nest
            .stores
            .iter()
            .partition(|store| nest.is_small_store(store));
        // One reduction is over as soon as its row has been read: nothing is computed that stores could be beside.
        let reduced_twice = layers(nest).into_iter().max() >= Some(2);
        let all_plain = reduced_twice && (0..nest.values.len()).all(plain);
        if !all_plain || big.is_empty() || !big.iter().all(|store| behind(store)) {
            return None;
        }
        let bytes = |size: usize| row.saturating_mul(size as i64);
        let read = |node: &Node| match &nest.values[*node].op {
            NestOp::Load(_) if !is_small(nest, *node) => bytes(nest.values[*node].dtype.size()),
            _ => 0,
        };
        let read: i64 = (0..nest.values.len()).map(|node| read(&node)).sum();
        let sizes = big
            .iter()
            .map(|store| nest.values[store.value].dtype.size());
        let narrow = sizes.clone().any(|size| (size as i64) < stream::WIDE);
        let written: i64 = sizes.map(bytes).sum();
        let long = read >= LONG && read * HELD <= i64::try_from(target.l2_bytes).ok()?;
        let all = |bytes: i64| bytes.saturating_mul(rows);
        if narrow || !long || !stream::is_far(all(read + written), all(written)) {
            return None;
        }
        let is_carried = |node: Node| is_small(nest, node) && depends_on_reduction(nest, node);
        let mut after = reached(nest, big.iter().map(|store| store.value), is_carried);
        let carried: Vec<Node> = after.iter().copied().filter(|&n| is_carried(n)).collect();
        after.retain(|&node| !is_carried(node));
        let needed = carried.iter().copied();
        let before = reached(
            nest,
            needed.chain(small.iter().map(|store| store.value)),
            |_| false,
        );
        Some(Self {
            nest,
            tiling,
            rows,
            together,
            carried,
            before,
            after,
        })
    }

    /// Adds the phase that computes the nest.
    pub fn emit(&self, k: &KernelBuilder, params: &Params) {
        let grid = Expr::constant(self.rows).ceildiv(self.together);
        k.phase_ordered(vec![grid], Order::Plain, |k| {
            let first = k.program_id(0) * self.together;
            let mut end = &first + self.together;
            if self.rows % self.together != 0 {
                end = end.binary(BinaryOp::Min, self.rows);
            }
            let results = self.reduce(k, params, &first);
            let results = k.for_range_vec(&first + 1, &end, 1, results, |k, row, results| {
                let next = self.reduce(k, params, &row);
                self.store(k, params, &(row - 1), results);
                next
            });
            self.store(k, params, &(end - 1), results);
        });
    }

    fn frame<'b>(&'b self, k: &'b KernelBuilder, params: &'b Params, row: &Tile) -> Frame<'b> {
        let rank = self.nest.rank();
        let mut place = vec![None; rank];
        place[0] = Some(row.clone());
        let left = vec![None; rank];
        Frame::place(
            k,
            params,
            self.nest,
            self.tiling,
            place.clone(),
            place,
            left,
        )
    }

    /// What the stores of a row will need; what has one element a row is stored at once.
    fn reduce(&self, k: &KernelBuilder, params: &Params, row: &Tile) -> Vec<Tile> {
        let mut frame = self.frame(k, params, row);
        for &node in &self.before {
            frame.value(node);
        }
        for store in &self.nest.stores {
            if self.nest.is_small_store(store) {
                frame.store(store.value, &store.window);
            }
        }
        self.carried.iter().map(|&node| frame.get(node)).collect()
    }

    fn store(&self, k: &KernelBuilder, params: &Params, row: &Tile, results: Vec<Tile>) {
        let mut frame = self.frame(k, params, row);
        frame.past = true;
        for (&node, result) in self.carried.iter().zip(results) {
            frame.give(node, result);
        }
        for &node in &self.after {
            frame.value(node);
        }
        for store in &self.nest.stores {
            if !self.nest.is_small_store(store) {
                frame.store(store.value, &store.window);
            }
        }
    }
}

/// `roots` and all that they are computed from, in order, down to where it `ends`.
fn reached(
    nest: &Nest,
    roots: impl Iterator<Item = Node>,
    ends: impl Fn(Node) -> bool,
) -> Vec<Node> {
    let mut want = vec![false; nest.values.len()];
    for root in roots {
        want[root] = true;
    }
    for node in (0..nest.values.len()).rev() {
        if want[node] && !ends(node) {
            let operands = nest.values[node].op.operands();
            operands.into_iter().for_each(|n| want[n] = true);
        }
    }
    (0..nest.values.len()).filter(|&node| want[node]).collect()
}
