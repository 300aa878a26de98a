//! Scans: a loop along the dim carries what was combined so far, and stores it at every step.
//!
//! Vectors run along another dim, the last one there is that no reduction folds; where the scanned dim is the only one, a lane is all there is to use. Reductions fold other dims, which lie whole
//! inside a tile: a step has all that they need. What does not vary along the scanned dim is computed before the loop.

use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{CompareOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::combine;
use crate::nest::{Nest, NestOp, NestStore, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::{Tiling, block_of};

/// Vectors of one tile along its last dim.
const VECTORS: i64 = 4;
/// Elements that a tile is filled up to with neighbouring lines: what is shared between lines is then computed once for several.
const FILLED: i64 = 256;

/// The dim that a nest scans; none where it has one element, and a scan is the element itself.
pub fn along(nest: &Nest) -> Option<usize> {
    nest.scanned.iter().next()
}

/// The dim that vectors run along: the one whose neighbours are stored side by side, otherwise the last.
fn vector_dim(nest: &Nest) -> Option<usize> {
    let fixed = nest.reduced.union(nest.scanned);
    let free = || (0..nest.rank()).rev().filter(|&d| !fixed.contains(d));
    let beside = |store: &NestStore| free().find(|&d| store.window.strides[d].is_const(1));
    nest.stores
        .iter()
        .find_map(beside)
        .or_else(|| free().next())
}

/// The nest with its vector dim last and the reduced dims before it: partial sums are then whole vectors. Where the folded elements themselves are stored, memory decides.
fn arranged(nest: &Nest) -> Nest {
    let mut nest = nest.clone();
    let stored = nest.stores.iter().any(|store| {
        let along = nest.window_support(&store.window);
        along.minus(nest.reduced) != along
    });
    if nest.has_reduction()
        && !stored
        && let Some(vector) = vector_dim(&nest)
    {
        let outer = (0..nest.rank()).filter(|&d| d != vector && !nest.reduced.contains(d));
        let order: Vec<usize> = outer.chain(nest.reduced.iter()).chain([vector]).collect();
        nest.permute(&order);
    }
    nest
}

fn tiling(nest: &Nest, target: &TargetDesc) -> Tiling {
    let mut block = vec![1; nest.rank()];
    for d in nest.reduced.iter() {
        block[d] = nest.guess(d).max(1);
    }
    let fixed = nest.reduced.union(nest.scanned);
    let lanes = i64::from(target.lanes(4));
    let mut room = if target.is_simt() { lanes } else { FILLED };
    let mut most = if target.is_simt() {
        lanes
    } else {
        lanes * VECTORS
    };
    for d in (0..nest.rank()).rev().filter(|&d| !fixed.contains(d)) {
        block[d] = block_of(nest, d, most.min(room));
        room /= block[d];
        most = room;
        if room <= 1 || block[d] < nest.guess(d) {
            break;
        }
    }
    Tiling::of(block)
}

/// The state of a scan after one more step.
fn step(inner: &Frame<'_>, op: &NestOp, state: &Tile, first: &Tile) -> Tile {
    match op {
        NestOp::Recurrence { factor, term } => {
            let term = inner.get(*term);
            let next = inner.get(*factor) * state + &term;
            first.select(term.broadcast_to(next.shape()), next)
        }
        NestOp::Scan(f, operand) => combine(*f, state, &inner.get(*operand)),
        _ => state.clone(),
    }
}

/// Adds the phase that computes `nest`, step by step along the dim.
pub fn emit_scan(k: &KernelBuilder, params: &Params, nest: &Nest, target: &TargetDesc) {
    let nest = &arranged(nest);
    let Some(along) = along(nest) else { return };
    let tiling = tiling(nest, target);
    let blocks = Blocks::new(nest, &tiling, nest.scanned);
    let scans: Vec<(Node, ReduceOp)> = (0..nest.values.len())
        .filter_map(|node| match nest.values[node].op {
            NestOp::Scan(f, _) => Some((node, f)),
            NestOp::Recurrence { .. } => Some((node, ReduceOp::Sum)),
            _ => None,
        })
        .collect();
    let moves = |node: Node| nest.values[node].support.contains(along);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut outer = Frame::new(k, params, nest, &tiling, &blocks);
        for node in (0..nest.values.len()).filter(|&node| !moves(node)) {
            outer.value(node);
        }
        let (each, once): (Vec<&NestStore>, Vec<&NestStore>) = nest
            .stores
            .iter()
            .partition(|store| nest.window_support(&store.window).contains(along));
        for store in once {
            outer.store(store.value, &store.window);
        }
        let inits = scans
            .iter()
            .map(|&(node, f)| outer.before_first(f, node))
            .collect();
        let end = params.sizes.index(&nest.dims[along]);
        k.for_range_vec(0, end, 1, inits, |_, at, carried| {
            let mut inner = outer.at_chunk(along, &at, 1);
            let first = at.compare(CompareOp::Eq, 0i64);
            let mut states = Vec::new();
            for node in (0..nest.values.len()).filter(|&node| moves(node)) {
                match scans.iter().position(|scan| scan.0 == node) {
                    Some(i) => {
                        let state = step(&inner, &nest.values[node].op, &carried[i], &first);
                        inner.give(node, state.clone());
                        states.push(state);
                    }
                    None => inner.value(node),
                }
            }
            for store in &each {
                inner.store(store.value, &store.window);
            }
            states
        });
    });
}
