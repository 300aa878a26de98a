//! Stores at computed places.
//!
//! Where a nest has a scanned dim, stores along it may fall on one place, and follow each other in order: a loop in every instance. Elements of different rows never meet, so rows
//! run side by side: on vectors where they share their places, otherwise on threads. Without a scanned dim the order is nobody's business: stores may overlap, and the lanes of a GPU put an element each. What was there before is read right before it is written.
//!
//! Where a GPU walks, every place has a block of its own ([`crate::chains`]), or every block a part of the places and leaves the others, since rows alone are few blocks.
//!
//! A GPU walks along nothing where elements replace what is there: only the last of those for one place is put, whoever comes first.
//!
//! ```text
//!   last[place] = -1  ─▶  last[place] = max(last[place], position)  ─▶  put, where last[place] is the own position
//! ```

use oxyfuel_base::{DType, Expr, Result, Scalar};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Order};
use oxyfuel_plan::TargetDesc;

use crate::chains;
use crate::nest::{Dims, Nest, NestOp, NestScatter, NestStore, Node, Window};
use crate::rows::{Blocks, Frame, emit};
use crate::size::Params;
use crate::split::workspace;
use crate::tile::{Tiling, block_of, ceil_div, choose};

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

/// Adds the phases that store what `nest` scatters.
pub fn emit_scatter(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    target: &TargetDesc,
) -> Result<()> {
    let Some(first) = nest.scatters.first() else {
        return Ok(());
    };
    match nest.scanned.iter().next() {
        Some(along) if target.is_simt() && first.old.is_none() => {
            emit_last(k, params, nest, along, target)
        }
        Some(along) if target.is_simt() && chains::applies(nest, along) => {
            let (tiling, _) = tiling(nest, first, target);
            chains::emit_chains(k, params, nest, &tiling, along);
            Ok(())
        }
        Some(along) => {
            emit_in_order(k, params, nest, along, target);
            Ok(())
        }
        None => {
            let (tiling, _) = tiling(nest, first, target);
            let blocks = Blocks::new(nest, &tiling, Dims::default());
            k.phase_overlapping(blocks.grid.clone(), |k| {
                write(
                    k,
                    nest,
                    &mut Frame::new(k, params, nest, &tiling, &blocks),
                    None,
                );
            });
            Ok(())
        }
    }
}

/// Every instance walks along a dim.
fn emit_in_order(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    along: usize,
    target: &TargetDesc,
) {
    let (tiling, singly) = tiling(nest, &nest.scatters[0], target);
    let blocks = Blocks::new(nest, &tiling, nest.scanned);
    let parts = parts(nest, &tiling, &blocks, along, target);
    let axis = blocks.grid.len();
    let grid = blocks.grid.iter().cloned();
    let grid = grid.chain(parts.map(Expr::constant)).collect::<Vec<_>>();
    k.phase_ordered(grid, Order::Plain, |k| {
        let outer = Frame::new(k, params, nest, &tiling, &blocks);
        let part = parts.map(|parts| (k.program_id(axis as u8), parts));
        let step = |k: &KernelBuilder, frame: &Frame<'_>| match singly {
            None => match &part {
                None => write(k, nest, &mut frame.clone(), None),
                Some((part, parts)) => {
                    let mut index = frame.clone();
                    for node in 0..=nest.scatters[0].index {
                        index.value(node);
                    }
                    let place = index.only(&nest.scatters[0], &Expr::ONE);
                    let mine = place
                        .binary(BinaryOp::Mod, *parts)
                        .compare(CompareOp::Eq, part);
                    k.when(&mine, |k| write(k, nest, &mut frame.clone(), None));
                }
            },
            Some(d) => {
                let (begin, end) = frame.range(d);
                k.for_range_vec(begin, end, 1, Vec::new(), |k, at, _| {
                    write(k, nest, &mut frame.at_chunk(d, &at, 1), None);
                    Vec::new()
                });
            }
        };
        let end = params.sizes.index(&nest.dims[along]);
        k.for_range_vec(0, end, 1, Vec::new(), |k, at, _| {
            step(k, &outer.at_chunk(along, &at, 1));
            Vec::new()
        });
    });
}

/// Into how many parts the places are cut, each of which an instance has for itself, on a GPU whose blocks would else be few: every instance walks along the whole index, reads and writes the places of its part, and
/// leaves the others. Elements for one place still follow each other in order.
fn parts(
    nest: &Nest,
    tiling: &Tiling,
    blocks: &Blocks,
    along: usize,
    target: &TargetDesc,
) -> Option<i64> {
    /// A step that reads and writes takes as long as so many that look at an index and go on.
    const STEPS: i64 = 16;
    let [scatter] = nest.scatters.as_slice() else {
        return None;
    };
    let index = nest.values[scatter.index].support;
    let one_place = index.iter().all(|d| d == along || tiling.block[d] <= 1);
    if !target.is_simt() || blocks.grid.len() > 2 || !one_place {
        return None;
    }
    let instances = blocks.grid.iter().map(|extent| nest.known.guess(extent));
    let instances = instances.fold(1, i64::saturating_mul).max(1);
    let room = i64::from(target.workers.max(1)) / instances;
    let parts = room
        .min(nest.guess(along) / STEPS)
        .min(nest.known.guess(&scatter.extent));
    // A power of two, since every step takes a remainder.
    (parts > 1).then(|| 1 << parts.ilog2())
}

/// Finds the last element for each place, and puts those.
fn emit_last(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    along: usize,
    target: &TargetDesc,
) -> Result<()> {
    let scatter = &nest.scatters[0];
    let moving = nest.values[scatter.index].support.with(along);
    let (mut nest, mut params) = (nest.clone(), params.clone());
    nest.scanned = Dims::default();
    let dtype = match nest.most(along) <= i64::from(i32::MAX) {
        true => DType::I32,
        false => DType::I64,
    };
    let last = places(k, &mut nest, &mut params, (moving, along), dtype);

    let mut none = Nest::new(
        "none",
        vec![nest.buffers[last.buffer].len.clone()],
        &nest.known,
    );
    none.buffers = nest.buffers.clone();
    let value = none.push(NestOp::Const(Scalar::I(-1)), dtype)?;
    let window = Window {
        strides: vec![Expr::ONE],
        ..last.clone()
    };
    none.stores.push(NestStore { value, window });
    emit(k, &params, &none, &choose(&none, target));

    let position = position(&mut nest, along, dtype)?;
    let at_last = NestScatter {
        value: position,
        window: last.clone(),
        stride: Expr::ONE,
        ..nest.scatters[0].clone()
    };
    mark(k, &params, &nest, &at_last, moving);

    let found = NestOp::LoadAt {
        window: last,
        index: at_last.index,
        stride: Expr::ONE,
        extent: at_last.extent,
    };
    let found = nest.push(found, dtype)?;
    let is_last = nest.push(NestOp::Compare(CompareOp::Eq, found, position), DType::Bool)?;
    let (tiling, _) = tiling(&nest, &nest.scatters[0], target);
    let blocks = Blocks::new(&nest, &tiling, Dims::default());
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut frame = Frame::new(k, &params, &nest, &tiling, &blocks);
        write(k, &nest, &mut frame, Some(is_last));
    });
    Ok(())
}

/// The coordinate along a dim.
fn position(nest: &mut Nest, along: usize, dtype: DType) -> Result<Node> {
    let coordinate = NestOp::Coordinate {
        dim: along,
        scale: Expr::ONE,
        offset: Expr::ZERO,
    };
    let position = nest.push(coordinate, DType::I64)?;
    match dtype {
        DType::I64 => Ok(position),
        _ => nest.push(NestOp::Cast(position), dtype),
    }
}

/// A workspace of one number a place, as a buffer of the nest: row-major over the dims that the index moves along, the dim that it indexes last.
fn places(
    k: &KernelBuilder,
    nest: &mut Nest,
    params: &mut Params,
    (moving, along): (Dims, usize),
    dtype: DType,
) -> Window {
    let mut len = nest.scatters[0].extent.clone();
    let mut strides = vec![Expr::ZERO; nest.rank()];
    for d in (0..nest.rank()).rev() {
        if d != along && moving.contains(d) {
            strides[d] = len.clone();
            len *= &nest.dims[d];
        }
    }
    Window {
        buffer: workspace(k, nest, params, "last", dtype, len),
        base: Expr::ZERO,
        strides,
    }
}

/// Adds the phase in which each element tells its place where it stands.
fn mark(k: &KernelBuilder, params: &Params, nest: &Nest, scatter: &NestScatter, moving: Dims) {
    let mut nest = nest.clone();
    // Elements of a slice go together: its first one speaks for it.
    for d in (0..nest.rank()).filter(|&d| !moving.contains(d)) {
        nest.dims[d] = Expr::ONE;
    }
    nest.scatters = vec![scatter.clone()];
    let mut block = vec![1; nest.rank()];
    if let Some(d) = moving.iter().max_by_key(|&d| nest.guess(d)) {
        block[d] = block_of(&nest, d, PUT_AT_ONCE);
    }
    let wanted = nest.behind([scatter.index, scatter.value]);
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(&nest, &tiling, Dims::default());
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut frame = Frame::new(k, params, &nest, &tiling, &blocks);
        for node in (0..wanted.len()).filter(|&node| wanted[node]) {
            frame.value(node);
        }
        frame.mark_each(scatter);
    });
}

/// One step: what is there is read, the new value made of it, and stored; of some elements only, where a value says so.
pub fn write(k: &KernelBuilder, nest: &Nest, frame: &mut Frame<'_>, some: Option<Node>) {
    for scatter in &nest.scatters {
        for node in 0..=scatter.index {
            frame.value(node);
        }
        if frame.has_places(scatter.index) {
            for node in 0..nest.values.len() {
                frame.value(node);
            }
            frame.put_each(scatter, some);
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
        match some.map(|some| frame.get(some)) {
            None => k.store(target, &value),
            Some(some) => {
                let some = match some.shape().is_empty() {
                    true => some,
                    false => some.reshape([0i64; 0]),
                };
                k.when(&some, |k| k.store(target, &value));
            }
        }
    }
}
