//! Rows that are combined with what is at their places, on a GPU: the gradient of an embedding.
//!
//! Elements for one place follow each other in order, and different places have nothing to do with each other. So elements of one place are linked, and every first one of a place has a block that walks along the others:
//!
//! ```text
//!   element     0  1  2  3  4  5
//!   its place   7  3  7  9  3  7
//!   phase 0     every element is compared with all others:
//!     how many  3  2  0  1  0  0      with this place; none where one before has it
//!     next      2  4  5  -  -  -
//!   phase 1     a block for each element that has a number: 0, 2, 5    1, 4    3
//! ```
//!
//! The comparisons are the square of the elements, on registers, which is why there is a most of them. One place that has all of the elements is walked by one block alone.

use oxyfuel_base::{DType, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Order, ReduceOp};

use crate::nest::{Dims, Nest};
use crate::rows::{Blocks, Frame};
use crate::scatter::write;
use crate::size::Params;
use crate::tile::Tiling;

/// Elements that a block compares with the others, and how many of those at a time.
const MINE: i64 = 16;
const OTHERS: i64 = 256;
/// Fewer elements are walked by one block; the square of more takes longer than walking.
const LEAST: i64 = 64;
const MOST: i64 = 1 << 15;

/// Whether elements along a dim have one place each, for all that lies across, and are few enough to be compared with each other.
pub fn applies(nest: &Nest, along: usize) -> bool {
    let [scatter] = nest.scatters.as_slice() else {
        return false;
    };
    let one_place = nest.values[scatter.index].support == Dims::default().with(along);
    let few = nest.dims[along]
        .as_const()
        .is_some_and(|n| (LEAST..=MOST).contains(&n));
    let near = scatter
        .extent
        .as_const()
        .is_some_and(|n| n <= i64::from(i32::MAX));
    let across = (0..nest.rank()).filter(|&d| d != along).count();
    scatter.old.is_some() && one_place && few && near && across <= 2
}

/// Adds both phases.
pub fn emit_chains(k: &KernelBuilder, params: &Params, nest: &Nest, tiling: &Tiling, along: usize) {
    let n = nest.guess(along);
    let workspace = |name: &str| {
        k.buffer(name, DType::I32, BufferMode::Workspace, Expr::constant(n))
            .aligned(64)
    };
    let (count, next) = (workspace("count"), workspace("next"));
    emit_links(k, params, nest, along, (&count, &next));

    let blocks = Blocks::new(nest, tiling, nest.scanned);
    let axis = blocks.grid.len() as u8;
    let grid = blocks.grid.iter().cloned().chain([Expr::constant(n)]);
    k.phase_ordered(grid.collect::<Vec<_>>(), Order::Plain, |k| {
        let outer = Frame::new(k, params, nest, tiling, &blocks);
        let first = k.program_id(axis);
        let links = k.load(count.at(&first)).cast(DType::I64);
        k.for_range_vec(0, &links, 1, vec![first], |k, _, carried| {
            let element = &carried[0];
            write(k, nest, &mut outer.at_chunk(along, element, 1), None);
            vec![k.load(next.at(element)).cast(DType::I64)]
        });
    });
}

/// Adds the phase that finds, for every element, how many have its place from it on, and the next of them.
fn emit_links(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    along: usize,
    (count, next): (&Mem, &Mem),
) {
    let mut nest = nest.clone();
    nest.scanned = Dims::default();
    for d in (0..nest.rank()).filter(|&d| d != along) {
        nest.dims[d] = Expr::ONE;
    }
    let scatter = nest.scatters[0].clone();
    let n = nest.guess(along);
    let mut block = vec![1; nest.rank()];
    block[along] = MINE;
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(&nest, &tiling, Dims::default());
    let wanted = nest.behind([scatter.index]);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let place = |mut frame: Frame<'_>, shape: [i64; 2]| -> Tile {
            for node in (0..wanted.len()).filter(|&node| wanted[node]) {
                frame.value(node);
            }
            let places = frame.place_of_each(&scatter).cast(DType::I32);
            places.reshape(shape).broadcast_to([MINE, OTHERS])
        };
        let frame = Frame::new(k, params, &nest, &tiling, &blocks);
        let (begin, _) = frame.range(along);
        let shape = [MINE, OTHERS];
        let mine = place(frame.clone(), [MINE, 1]);
        let i = k.iota(DType::I32, shape, 0) + begin.cast(DType::I32).broadcast_to(shape);
        let all = |value: i64| k.constant(DType::I32, value).broadcast_to(shape);
        let (none, one, last) = (all(0), all(1), all(i64::from(i32::MAX)));
        let inits = vec![none.clone(), none.clone(), last.clone()];
        let found = k.for_range_vec(0, n, OTHERS, inits, |k, at, carried| {
            let others = place(frame.at_chunk(along, &at, OTHERS), [1, OTHERS]);
            let j = k.iota(DType::I32, shape, 1) + at.cast(DType::I32).broadcast_to(shape);
            let mut same = mine.compare(CompareOp::Eq, &others);
            if n % OTHERS != 0 {
                same = same.binary(BinaryOp::And, j.compare(CompareOp::Lt, n));
            }
            let is = |op: CompareOp| same.binary(BinaryOp::And, j.compare(op, &i));
            let before = is(CompareOp::Lt).select(&one, &carried[0]);
            let from_here = is(CompareOp::Ge).select(&one, &none);
            let later = is(CompareOp::Gt).select(&j, &last);
            vec![
                before,
                &carried[1] + &from_here,
                carried[2].binary(BinaryOp::Min, &later),
            ]
        });
        let before = found[0].reduce(ReduceOp::Max, [1]);
        let from_here = found[1].reduce(ReduceOp::Sum, [1]);
        let nearest = found[2].reduce(ReduceOp::Min, [1]);
        let is_first = before.compare(CompareOp::Eq, 0i64);
        let number = is_first.select(&from_here, 0i64);
        for (mem, value) in [(count, number), (next, nearest)] {
            let mut window = mem.at(&begin).shape([MINE, 1]);
            if n % MINE != 0 {
                let left = k.constant(DType::I64, n) - &begin;
                window = window.valid(0, &left);
            }
            k.store(window, &value);
        }
    });
}
