//! How a nest is cut into tiles: a block of each dim for one program instance.
//!
//! Reduced dims lie whole inside a tile. Of the others, the innermost come first, so that a tile is long where memory is contiguous; when windows disagree about
//! which dim is contiguous (a transpose), the tile is square over both. On a CPU a tile is a piece of loop work that fits the first-level cache; where tiles live in registers it is bounded by them.

use oxyfuel_plan::TargetDesc;

use crate::nest::{Dims, Nest, NestOp, NestStore, NestValue};
use crate::split;

/// The block of each dim, at most its extent and at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiling {
    pub block: Vec<i64>,
    /// Two dims whose square blocks an instance takes in pairs, each with the one across the diagonal.
    pub mirrored: Option<(usize, usize)>,
}

impl Tiling {
    pub fn of(block: Vec<i64>) -> Self {
        Self {
            block,
            mirrored: None,
        }
    }
}

/// Elements of a tile in registers: what a block of threads holds without spilling.
const SIMT_TILE: i64 = 4096;
/// The same where nothing is read again along other dims, and small blocks of threads keep memory busier.
const SIMT_FLAT: i64 = 1024;
/// Elements of a tile of loops.
const LOOP_TILE: i64 = 8192;
/// Elements of a tile of rows that several passes walk over.
const LOOP_ROWS: i64 = 2048;
/// Elements of a row from which on it is a tile of its own.
const LOOP_ROW: i64 = 256;
/// Least block of a dim whose extent is not known.
const SMALL_BLOCK: i64 = 64;
/// Side of a tile that two windows walk in different directions.
const SQUARE: i64 = 64;

/// Elements of a reduced row from which on a warp of its own is worth it.
const SIMT_ROW: i64 = 256;

/// The most elements of a dim that an instance has whole because others are read again along it, and instances that every multiprocessor keeps then.
const SIMT_SHARED: i64 = 8;
const SIMT_FEW: i64 = 8;

/// The largest power of two that is at most `n`, which is at least 1.
fn power_of_two(n: i64) -> i64 {
    1 << n.max(1).ilog2()
}

/// `a / b` rounded up, for a positive `b`.
pub fn ceil_div(a: i64, b: i64) -> i64 {
    (a + b - 1).div_euclid(b)
}

/// Chooses the tile of a collapsed nest.
pub fn choose(nest: &Nest, target: &TargetDesc) -> Tiling {
    let rank = nest.rank();
    let mut block = vec![1; rank];
    if rank == 0 {
        return Tiling::of(block);
    }
    let extent: Vec<i64> = (0..rank).map(|d| nest.guess(d)).collect();
    let reduced: i64 = nest
        .reduced
        .iter()
        .filter(|&d| d < rank)
        .fold(1, |all: i64, d| all.saturating_mul(extent[d]));
    for d in nest.reduced.iter().filter(|&d| d < rank) {
        block[d] = extent[d].max(1);
    }
    let last = rank - 1;
    if nest.has_reduction() && !nest.reduced.contains(last) {
        // Columns: enough neighbours for full cache lines and several independent accumulators.
        let lanes = i64::from(target.lanes(4));
        // Threads that are lanes read several neighbours each where there are columns enough for all.
        let enough = extent[last] >= lanes * 4 * 2 * i64::from(target.workers.max(1));
        let lanes = lanes * if target.is_simt() && !enough { 1 } else { 4 };
        block[last] = block_of(nest, last, lanes);
        if let Some(shared) = shared_places(nest).filter(|_| target.is_simt()) {
            let wide = block_of(nest, last, i64::from(target.lanes(4)) * 4);
            let instances = (0..last).filter(|&d| d != shared && !nest.reduced.contains(d));
            let instances = instances.fold(extent[last] / wide, |n, d| n * extent[d]);
            if instances >= i64::from(target.workers.max(1)) * SIMT_FEW {
                block[shared] = extent[shared];
                block[last] = wide;
            }
        }
        return Tiling::of(block);
    }
    let total = extent.iter().fold(1, |all: i64, &n| all.saturating_mul(n));
    let share = total / (i64::from(target.workers.max(1)) * 4);
    let mut budget = if target.is_simt() && is_flat(nest) {
        SIMT_FLAT
    } else if target.is_simt() {
        SIMT_TILE
    } else {
        LOOP_TILE.min(share.max(1024))
    };
    if nest.has_reduction() && !target.is_simt() {
        // Passes over a row want the row to stay in the first-level cache; of longer ones an instance has one, or two at a time (`pairs.rs`).
        budget = match reduced >= LOOP_ROW {
            true => 1,
            false => budget.min(LOOP_ROWS),
        };
    }
    budget = (budget / reduced.max(1)).max(1);
    if let Some(other) = transposed(nest)
        && nest.reduced.contains(last)
        && !nest.reduced.contains(other)
        && target.tiles_spill
    {
        // Rows that lie across the memory: as many as a vector has lanes share its lines, and are turned together.
        block[other] = block_of(nest, other, i64::from(target.lanes(4)));
        return Tiling::of(block);
    }
    if nest.has_reduction() && target.is_simt() && reduced >= SIMT_ROW {
        // As many rows as there are warps, of which every one has whole rows; and no more than leave work for all.
        let each = total / reduced.max(1) / (i64::from(target.workers.max(1)) * 2);
        budget = power_of_two(budget.min(each.max(1)));
    }
    if let Some(other) = transposed(nest)
        && !nest.has_reduction()
    {
        let side = if target.is_simt() { 32 } else { SQUARE };
        block[last] = block_of(nest, last, side);
        block[other] = block_of(nest, other, side);
        // Where tiles live in registers, the second of a pair would find nothing there.
        let mirrored = mirrored(nest, &block).filter(|_| target.tiles_spill);
        return Tiling { block, mirrored };
    }
    // An indirect read wants its index outside the tile: then it is one scalar, and the rest is contiguous.
    let indirect = nest
        .values
        .iter()
        .any(|value| matches!(value.op, NestOp::LoadAt { .. }));
    let rows = looked_up(nest);
    let outermost = (0..rank).find(|&d| !nest.reduced.contains(d));
    for d in (0..rank).rev() {
        if nest.reduced.contains(d) {
            continue;
        }
        if rows.contains(d) {
            break;
        }
        // An extent that is not known may turn out to be small: a block of its guess leaves room for rows above it, which make an instance worth its start.
        block[d] = match nest.dims[d].as_const() {
            None if Some(d) == outermost => budget.min(bound(nest, d)),
            _ => block_of(nest, d, budget),
        };
        budget /= block[d];
        if budget <= 1 || block[d] < extent[d] || (indirect && d == last) {
            break;
        }
    }
    Tiling::of(block)
}

/// A short dim along which elements are looked up at the same places: an instance that has all of it reads them once.
fn shared_places(nest: &Nest) -> Option<usize> {
    let last = nest.rank() - 1;
    let places = nest.values.iter().find_map(|value| match value.op {
        NestOp::LoadAt { index, .. } => Some(nest.values[index].support),
        _ => None,
    })?;
    let short = |d: &usize| matches!(nest.dims[*d].as_const(), Some(2..=SIMT_SHARED));
    let mut shared = (0..last).filter(|&d| !nest.reduced.contains(d) && !places.contains(d));
    shared.find(short).filter(|_| places.contains(last))
}

/// Whether memory is walked from its beginning to its end, whole rows at a time, and nothing is read again along other rows.
fn is_flat(nest: &Nest) -> bool {
    let last = nest.rank() - 1;
    let again = |value: &NestValue| match &value.op {
        NestOp::Load(window) => (0..last).any(|d| !nest.window_support(window).contains(d)),
        NestOp::LoadAt { .. } => true,
        _ => false,
    };
    let short = last == 0 || nest.guess(last) * 4 <= SIMT_FLAT;
    short && !nest.has_reduction() && !nest.values.iter().any(again)
}

/// The two dims of equal square blocks of which some buffer is read both ways round.
fn mirrored(nest: &Nest, block: &[i64]) -> Option<(usize, usize)> {
    let windows = || {
        nest.values.iter().filter_map(|value| match &value.op {
            NestOp::Load(window) => Some(window),
            _ => None,
        })
    };
    let square = |&(a, b): &(usize, usize)| {
        let side = block[a];
        side > 1
            && side == block[b]
            && nest.dims[a] == nest.dims[b]
            && nest.dims[a].as_const().is_some_and(|n| n > side)
    };
    let crossed = |&(a, b): &(usize, usize)| {
        windows().any(|window| {
            let mut other = window.clone();
            other.strides.swap(a, b);
            other != *window && windows().any(|window| *window == other)
        })
    };
    let pairs = (0..nest.rank()).flat_map(|b| (0..b).map(move |a| (a, b)));
    pairs.filter(square).find(crossed)
}

/// A block of at most `most` along a dim: the dim itself where it is small, and room for twice the guess where it is symbolic.
pub fn block_of(nest: &Nest, dim: usize, most: i64) -> i64 {
    match nest.dims[dim].as_const() {
        Some(extent) => extent.clamp(1, most),
        None => {
            let roomy = nest.guess(dim).saturating_mul(2).max(SMALL_BLOCK);
            roomy.min(most).min(bound(nest, dim)).max(1)
        }
    }
}

/// The largest block that a symbolic dim can fill.
fn bound(nest: &Nest, dim: usize) -> i64 {
    let most = u64::try_from(nest.most(dim)).unwrap_or(1);
    i64::try_from(most.next_power_of_two()).unwrap_or(i64::MAX)
}

/// The most elements of one tile where tiles live in registers, of one block of threads.
pub const SIMT_MOST: i64 = 32 * 1024;
/// Elements of a chunk of a row that does not fit.
const SIMT_CHUNK: i64 = 8192;
/// The most elements of one tile of loops whose values wait for a reduction: a worker's scratch holds some of them.
const LOOP_MOST: i64 = 1 << 18;
/// Elements of a chunk of a row that is longer: its accumulators stay in the first-level cache.
const LOOP_CHUNK: i64 = 2048;

/// Columns whose sums are taken together, at most and at least, and how many of their rows at a time.
const COLUMNS_MOST: i64 = 1024;
const COLUMNS_LEAST: i64 = 128;
const COLUMNS_STEP: i64 = 16;

/// A tile that does not fit (into registers; into the scratch of a worker, where values wait for a reduction) is walked in chunks along this reduced dim; the tiling has the chunk as its block.
pub fn chunked(nest: &Nest, target: &TargetDesc, tiling: &Tiling) -> Option<(Tiling, usize)> {
    let elements: i64 = tiling.block.iter().product();
    let (most, chunk) = match target.tiles_spill {
        true => (LOOP_MOST, LOOP_CHUNK),
        false if is_held(nest) => (SIMT_MOST * i64::from(target.max_cluster), SIMT_CHUNK),
        false => (SIMT_MOST, SIMT_CHUNK),
    };
    if elements <= most || (target.tiles_spill && split::applies(nest)) {
        return None;
    }
    let along = nest
        .reduced
        .iter()
        .filter(|&d| d < nest.rank())
        .max_by_key(|&d| nest.guess(d))?;
    let rest = elements / tiling.block[along].max(1);
    let mut tiling = tiling.clone();
    tiling.block[along] = (chunk / rest.max(1)).clamp(1, nest.guess(along));
    Some((tiling, along))
}

/// Sums of columns that come from memory: some rows at a time, of as many columns as are left for a worker. Rows of a few lines each, a page or more apart, are nothing that the machine's own prefetching follows.
pub fn columns(nest: &Nest, target: &TargetDesc) -> Option<(Tiling, usize)> {
    let (last, workers) = (
        nest.rank().checked_sub(1)?,
        i64::from(target.workers.max(1)),
    );
    let mut reduced = nest.reduced.iter().filter(|&d| d < nest.rank());
    let (along, None) = (reduced.next()?, reduced.next()) else {
        return None;
    };
    let [rows, width] = [along, last].map(|d| nest.dims[d].as_const());
    let (rows, width) = (rows?, width?);
    let size = |value: &NestValue| match &value.op {
        NestOp::Load(window) if nest.window_support(window) == Dims::all(nest.rank()) => {
            value.dtype.size() as i64
        }
        _ => 0,
    };
    let bytes = nest.values.iter().map(size).max()?;
    let total = (0..nest.rank()).fold(bytes, |all, d| all.saturating_mul(nest.guess(d)));
    let blocks = ceil_div(width, workers * COLUMNS_MOST) * workers;
    let lanes = i64::from(target.lanes(4)) * 4;
    let block = ceil_div(ceil_div(width, blocks), lanes) * lanes;
    let far = total >= far_bytes(target);
    if !target.tiles_spill
        || along == last
        || !far
        || block < COLUMNS_LEAST
        || rows < COLUMNS_STEP * 4
        || !split::applies(nest)
    {
        return None;
    }
    let mut tiling = Tiling::of(vec![1; nest.rank()]);
    tiling.block[last] = block.min(width);
    tiling.block[along] = COLUMNS_STEP;
    Some((tiling, along))
}

/// Bytes that a kernel touches from which on they come from far away: several times what the second-level caches of all workers hold.
pub fn far_bytes(target: &TargetDesc) -> i64 {
    const BEYOND: i64 = 2;
    let cache = i64::try_from(target.l2_bytes).unwrap_or(i64::MAX);
    let workers = i64::from(target.workers.max(1));
    cache.saturating_mul(workers).saturating_mul(BEYOND)
}

/// Whether several blocks of threads had better hold a row of known length together than one walk over it: it is wanted again after it has been reduced.
fn is_held(nest: &Nest) -> bool {
    let Some(last) = nest.rank().checked_sub(1) else {
        return false;
    };
    let row = nest.reduced.iter().filter(|&d| d < nest.rank()).eq([last]);
    let again = |store: &NestStore| !nest.is_small_store(store);
    let plain = |value: &NestValue| {
        let looked_up = matches!(
            value.op,
            NestOp::LoadAt { .. }
                | NestOp::Given
                | NestOp::Scan(..)
                | NestOp::Recurrence { .. }
                | NestOp::Order { .. }
        );
        let wide = value.dtype.size() > 4 && value.support.contains(last);
        !looked_up && !wide
    };
    row && nest.dims[last].as_const().is_some()
        && nest.values.iter().all(plain)
        && nest.stores.iter().any(again)
}

/// The chunks in which a part of a cut reduction is walked that registers do not hold.
pub fn step_of_part(nest: &Nest, target: &TargetDesc, tiling: &Tiling) -> Option<i64> {
    let elements: i64 = tiling.block.iter().product();
    let cut = nest.reduced.iter().next()?;
    let part = tiling.block[cut].max(1);
    let step = (SIMT_CHUNK / (elements / part).max(1)).max(1);
    (!target.tiles_spill && elements > SIMT_CHUNK && part > step).then_some(step)
}

/// The dims along which indices of whole rows differ.
fn looked_up(nest: &Nest) -> Dims {
    let last = nest.rank() - 1;
    let indices = nest.values.iter().filter_map(|value| match value.op {
        NestOp::LoadAt { index, .. } => Some(nest.values[index].support),
        _ => None,
    });
    let rows = indices.filter(|along| !along.contains(last));
    rows.fold(Dims::default(), Dims::union)
}

/// The dim that some window walks contiguously while it strides over the last one.
fn transposed(nest: &Nest) -> Option<usize> {
    let last = nest.rank() - 1;
    nest.values.iter().find_map(|value| {
        let NestOp::Load(window) = &value.op else {
            return None;
        };
        let near = |d: usize, steps: i64| {
            let stride = window.strides[d].as_const();
            stride.is_some_and(|stride| stride.abs() <= steps)
        };
        let jumps = !near(last, 1);
        let runs = |&d: &usize| near(d, 1) && !near(d, 0) && nest.most(d) > 1;
        jumps.then(|| (0..last).find(runs)).flatten()
    })
}
