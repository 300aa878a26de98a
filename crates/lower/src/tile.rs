//! How a nest is cut into tiles: a block of each dim for one program instance.
//!
//! Reduced dims lie whole inside a tile. Of the others, the innermost come first, so that a tile is long where memory is contiguous; when windows disagree about
//! which dim is contiguous (a transpose), the tile is square over both. On a CPU a tile is a piece of loop work that fits the first-level cache; where tiles live in registers it is bounded by them.

use oxyfuel_plan::TargetDesc;

use crate::nest::{Nest, NestOp};

/// The block of each dim, at most its extent and at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    pub block: Vec<i64>,
}

/// Elements of a tile in registers: what a block of threads holds without spilling.
const SIMT_TILE: i64 = 4096;
/// Elements of a tile of loops.
const LOOP_TILE: i64 = 8192;
/// Elements of a tile of rows that several passes walk over.
const LOOP_ROWS: i64 = 2048;
/// Side of a tile that two windows walk in different directions.
const SQUARE: i64 = 64;

/// `a / b` rounded up, for a positive `b`.
pub fn ceil_div(a: i64, b: i64) -> i64 {
    (a + b - 1).div_euclid(b)
}

/// Chooses the tile of a collapsed nest.
pub fn choose(nest: &Nest, target: &TargetDesc) -> Tiling {
    let rank = nest.rank();
    let mut block = vec![1; rank];
    if rank == 0 {
        return Tiling { block };
    }
    let reduced: i64 = nest
        .reduced
        .iter()
        .filter(|&d| d < rank)
        .map(|d| nest.dims[d])
        .product();
    for d in nest.reduced.iter().filter(|&d| d < rank) {
        block[d] = nest.dims[d].max(1);
    }
    let last = rank - 1;
    if nest.has_reduction() && !nest.reduced.contains(last) {
        // Columns: enough neighbours for full cache lines and several independent accumulators.
        let lanes = i64::from(target.lanes(4)) * if target.is_simt() { 1 } else { 4 };
        block[last] = nest.dims[last].clamp(1, lanes);
        return Tiling { block };
    }
    let total: i64 = nest.dims.iter().product();
    let share = total / (i64::from(target.workers.max(1)) * 4);
    let mut budget = if target.is_simt() {
        SIMT_TILE
    } else {
        LOOP_TILE.min(share.max(1024))
    };
    if nest.has_reduction() && !target.is_simt() {
        // Passes over a row want the row to stay in the first-level cache.
        budget = budget.min(LOOP_ROWS);
    }
    budget = (budget / reduced.max(1)).max(1);
    if let Some(other) = transposed(nest)
        && !nest.has_reduction()
    {
        let side = if target.is_simt() { 32 } else { SQUARE };
        block[last] = nest.dims[last].clamp(1, side);
        block[other] = nest.dims[other].clamp(1, side);
        return Tiling { block };
    }
    // An indirect read wants its index outside the tile: then it is one scalar, and the rest is contiguous.
    let indirect = nest
        .values
        .iter()
        .any(|value| matches!(value.op, NestOp::LoadAt { .. }));
    for d in (0..rank).rev() {
        if nest.reduced.contains(d) {
            continue;
        }
        block[d] = nest.dims[d].clamp(1, budget);
        budget /= block[d];
        if budget <= 1 || block[d] < nest.dims[d] || (indirect && d == last) {
            break;
        }
    }
    Tiling { block }
}

/// The most elements of one tile where tiles live in registers.
const SIMT_MOST: i64 = 32 * 1024;
/// Elements of a chunk of a row that does not fit.
const SIMT_CHUNK: i64 = 8192;

/// A tile that does not fit into registers is walked in chunks along this reduced dim; the tiling has the chunk as its block.
pub fn chunked(nest: &Nest, target: &TargetDesc, tiling: &Tiling) -> Option<(Tiling, usize)> {
    let elements: i64 = tiling.block.iter().product();
    if target.tiles_spill || elements <= SIMT_MOST {
        return None;
    }
    let along = nest
        .reduced
        .iter()
        .filter(|&d| d < nest.rank())
        .max_by_key(|&d| nest.dims[d])?;
    let rest = elements / tiling.block[along].max(1);
    let mut tiling = tiling.clone();
    tiling.block[along] = (SIMT_CHUNK / rest.max(1)).clamp(1, nest.dims[along]);
    Some((tiling, along))
}

/// The dim that some window walks contiguously while it strides over the last one.
fn transposed(nest: &Nest) -> Option<usize> {
    let last = nest.rank() - 1;
    nest.values.iter().find_map(|value| {
        let NestOp::Load(window) = &value.op else {
            return None;
        };
        let jumps = window.strides[last].abs() > 1;
        jumps
            .then(|| (0..last).find(|&d| window.strides[d].abs() == 1 && nest.dims[d] > 1))
            .flatten()
    })
}
