//! Stores at computed places.
//!
//! Where a nest has a scanned dim, stores along it may fall on one place, and follow each other in order: a loop in every instance. Elements of different rows never meet, so rows
//! run side by side: on vectors where they share their places, otherwise on threads. Without a scanned dim the order is nobody's business, and the lanes of a GPU put an element each. What was there before is read right before it is written.

use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::Order;
use oxyfuel_plan::TargetDesc;

use crate::nest::{Nest, NestScatter};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::{Tiling, block_of, ceil_div};

/// Elements of a tile where tiles live in registers, and where they are loops.
const SIMT_TILE: i64 = 4096;
const LOOP_TILE: i64 = 8192;
/// Elements with a place each that a block of threads puts at a time.
const PUT_AT_ONCE: i64 = 256;
/// Elements of a tile that is walked once for every step: fewer are not worth a walk of their own.
const LEAST: i64 = 64;
/// The block of each dim. A slice is a tile where its place is one number; neighbours with a place each, in the last dim of the result, are walked one by one.
fn tiling(nest: &Nest, scatter: &NestScatter, target: &TargetDesc) -> (Tiling, Option<usize>) {
    let mut block = vec![1; nest.rank()];
    let index = nest.values[scatter.index].support;
    let free = |d: usize| !nest.scanned.contains(d);
    let whole = (0..nest.rank())
        .rev()
        .find(|&d| free(d) && !index.contains(d));
    let last = nest.rank().checked_sub(1).filter(|&d| free(d));
    // Every block walks along all of the index, so that there are as few as threads need.
    let share = |d: usize| {
        let lanes = i64::from(target.lanes(4));
        let share = ceil_div(nest.guess(d), 2 * i64::from(target.workers.max(1)));
        (ceil_div(share, lanes) * lanes).clamp(LEAST, LOOP_TILE)
    };
    let ordered = !nest.scanned.is_empty();
    match (whole, last) {
        (Some(d), _) => {
            let most = match (target.is_simt(), ordered) {
                (true, _) => SIMT_TILE,
                (false, true) => share(d),
                (false, false) => LOOP_TILE,
            };
            block[d] = block_of(nest, d, most);
            (Tiling::of(block), None)
        }
        // Lanes of their own, each with an element of its own; or, where elements may meet, with a row.
        (None, Some(d)) if target.is_simt() && !ordered => {
            block[d] = block_of(nest, d, PUT_AT_ONCE);
            (Tiling::of(block), None)
        }
        (None, Some(_)) if target.is_simt() => (Tiling::of(block), None),
        (None, Some(d)) if ordered => {
            block[d] = block_of(nest, d, share(d));
            (Tiling::of(block), Some(d))
        }
        (None, _) => (Tiling::of(block), None),
    }
}

/// Adds the phase that stores what `nest` scatters.
pub fn emit_scatter(k: &KernelBuilder, params: &Params, nest: &Nest, target: &TargetDesc) {
    let Some(first) = nest.scatters.first() else {
        return;
    };
    let (tiling, singly) = tiling(nest, first, target);
    let blocks = Blocks::new(nest, &tiling, nest.scanned);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let outer = Frame::new(k, params, nest, &tiling, &blocks);
        let step = |k: &KernelBuilder, frame: &Frame<'_>| match singly {
            None => write(k, nest, &mut frame.clone()),
            Some(d) => {
                let (begin, end) = frame.range(d);
                k.for_range_vec(begin, end, 1, Vec::new(), |k, at, _| {
                    write(k, nest, &mut frame.at_chunk(d, &at, 1));
                    Vec::new()
                });
            }
        };
        let Some(along) = nest.scanned.iter().next() else {
            return step(k, &outer);
        };
        let end = params.sizes.index(&nest.dims[along]);
        k.for_range_vec(0, end, 1, Vec::new(), |k, at, _| {
            step(k, &outer.at_chunk(along, &at, 1));
            Vec::new()
        });
    });
}

/// One step: what is there is read, the new value made of it, and stored.
fn write(k: &KernelBuilder, nest: &Nest, frame: &mut Frame<'_>) {
    for scatter in &nest.scatters {
        for node in 0..=scatter.index {
            frame.value(node);
        }
        if frame.has_places(scatter.index) {
            for node in 0..nest.values.len() {
                frame.value(node);
            }
            frame.put_each(scatter);
            continue;
        }
        let target = frame.target(scatter);
        if let Some(old) = scatter.old {
            frame.give(old, k.load(target.clone()));
        }
        for node in 0..nest.values.len() {
            frame.value(node);
        }
        let mut value: Tile = frame.get(scatter.value);
        if target.access().shape.is_empty() && !value.shape().is_empty() {
            value = value.reshape([0i64; 0]);
        }
        k.store(target, &value);
    }
}
