//! The largest of a row and the sum of exponentials beside it in one reading: what a softmax needs of a row that is too long to be held.
//!
//! ```text
//!   a thread's piece:   x   P threads x V neighbours, K times over
//!   new = max(m, x)     s = s * e^(m - new) + sum e^(x - new)     m = new
//! ```
//!
//! Every thread has a largest number and a sum of its own, and moves the sum when it meets a larger one; threads meet at the end of the row. A row has whole pieces first, then pieces of one reading each, the last of them cut short.

use oxyfuel_base::{DType, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, ReduceOp, UnaryOp};

use crate::chunk::{is_small, needed};
use crate::maths::{Emit, near};
use crate::nest::{Nest, NestOp, Node, Window};
use crate::rows::Frame;
use crate::tile::Tiling;

/// Threads of a block, and elements of a whole piece.
const THREADS: i64 = 512;
const PIECE: i64 = 8192;
/// Bytes of one access.
const ACCESS: i64 = 16;

/// A largest element and a sum of exponentials beside it.
pub struct Online {
    pub largest: Node,
    pub sum: Node,
    /// What both are made of.
    operand: Node,
    /// The nest with the row cut into times, threads and, where there are several, neighbours.
    nest: Nest,
    tiling: Tiling,
    along: usize,
    length: i64,
    neighbours: i64,
}

impl Online {
    /// The two reductions that `largest` begins, if they are such a pair and the row along `along` can be cut.
    pub fn of(nest: &Nest, tiling: &Tiling, along: usize, largest: Node) -> Option<Self> {
        let NestOp::Reduce(ReduceOp::Max, operand) = nest.values[largest].op else {
            return None;
        };
        let moved = |node: Node| match nest.values[node].op {
            NestOp::Binary(BinaryOp::Sub, a, b) => a == operand && b == largest,
            _ => false,
        };
        let powers = |node: Node| match nest.values[node].op {
            NestOp::Unary(UnaryOp::Exp, of) => moved(of),
            _ => false,
        };
        let sum = nest.values.iter().position(
            |value| matches!(value.op, NestOp::Reduce(ReduceOp::Sum, of) if powers(of)),
        )?;
        let length = nest.dims[along].as_const()?;
        let alone = (0..nest.rank()).all(|d| d == along || tiling.block[d] <= 1);
        let plain = |&node: &Node| {
            matches!(
                nest.values[node].op,
                NestOp::Load(_)
                    | NestOp::Const(_)
                    | NestOp::Unary(..)
                    | NestOp::Binary(..)
                    | NestOp::Compare(..)
                    | NestOp::Select(..)
                    | NestOp::Cast(_)
            ) || is_small(nest, node)
        };
        let all_plain = needed(nest, [operand].into_iter()).iter().all(plain);
        let is_f32 = nest.values[operand].dtype == DType::F32;
        if !(alone && all_plain && is_f32 && along + 1 == nest.rank() && length >= PIECE) {
            return None;
        }
        let sizes = nest.values.iter().filter(|value| !value.dtype.is_bool());
        let narrowest = sizes.map(|value| value.dtype.size() as i64).min()?;
        let most = (ACCESS / narrowest).clamp(1, 8);
        let neighbours = 1 << length.trailing_zeros().min(most.trailing_zeros());
        let (nest, tiling) = cut(nest, tiling, along, neighbours);
        Some(Self {
            largest,
            sum,
            operand,
            nest,
            tiling,
            along,
            length,
            neighbours,
        })
    }

    /// Writes the reading; gives the largest element and the sum, as scalars.
    pub fn emit<'a>(&'a self, k: &KernelBuilder, outer: &Frame<'a>) -> (Tile, Tile) {
        let row = outer.over(&self.nest, &self.tiling);
        let last = self.nest.rank() - 1;
        let reading = THREADS * self.neighbours;
        let whole = self.length - self.length % PIECE;
        let mut shape = vec![1; last + 1 - self.along];
        shape[1] = THREADS;
        let inits = vec![
            k.full(DType::F32, &shape, f64::NEG_INFINITY),
            k.full(DType::F32, &shape, 0.0),
        ];
        let carried = k.for_range_vec(0, whole, PIECE, inits, |k, at, carried| {
            let piece = row.piece((last, &at), (self.along, PIECE / reading), None);
            self.step(k, piece, &carried)
        });
        let carried = k.for_range_vec(whole, self.length, reading, carried, |k, at, carried| {
            let left = (&at * -1 + self.length).binary(BinaryOp::Min, reading);
            let left = left.binary(BinaryOp::FloorDiv, self.neighbours);
            let left = Some((self.along + 1, left));
            let piece = row.piece((last, &at), (self.along, 1), left);
            self.step(k, piece, &carried)
        });
        let [largest, sum] = carried.as_slice() else {
            return (k.constant(DType::F32, 0.0), k.constant(DType::F32, 0.0));
        };
        let all = largest.reduce(ReduceOp::Max, [1]);
        // A row of nothing but minus infinity has no sum, as in the steps that are written out.
        let sum = (sum * powers(k, &(largest - &all))).reduce(ReduceOp::Sum, [1]);
        let none = [0i64; 0];
        (all.reshape(none), sum.reshape(none))
    }

    fn step(&self, k: &KernelBuilder, mut piece: Frame<'_>, carried: &[Tile]) -> Vec<Tile> {
        let [largest, sum] = carried else {
            return carried.to_vec();
        };
        for node in needed(&self.nest, [self.operand].into_iter()) {
            piece.value(node);
        }
        let x = piece.chunk_operand(ReduceOp::Max, self.operand, self.along + 1);
        // All but the threads.
        let own: &[u8] = if self.neighbours > 1 { &[0, 2] } else { &[0] };
        let new = largest.binary(BinaryOp::Max, x.reduce(ReduceOp::Max, own));
        // Where nothing but minus infinity was met, its distance to itself must not count.
        let nothing = new.compare(CompareOp::Eq, f64::NEG_INFINITY);
        let near = nothing.select(0.0, &new);
        let more = powers(k, &(x - &near)).reduce(ReduceOp::Sum, own);
        let sum = sum.fma(powers(k, &(largest - &near)), more);
        vec![new, sum]
    }
}

/// `e^x` of what is at most zero and summed up.
fn powers(k: &KernelBuilder, x: &Tile) -> Tile {
    let emit = Emit::new(k, x.shape());
    k.tile(near::summand(&emit, x.val()))
}

/// The row as three dims (two where there are no neighbours), of `PIECE` elements together.
fn cut(nest: &Nest, tiling: &Tiling, along: usize, neighbours: i64) -> (Nest, Tiling) {
    let reading = THREADS * neighbours;
    let mut steps = vec![(PIECE / reading, reading), (THREADS, neighbours)];
    if neighbours > 1 {
        steps.push((neighbours, 1));
    }
    let mut out = nest.clone();
    let mut tiling = tiling.clone();
    out.dims.truncate(along);
    tiling.block.truncate(along);
    for (at, &(extent, _)) in steps.iter().enumerate() {
        out.dims.push(Expr::constant(extent));
        tiling.block.push(extent);
        out.reduced = out.reduced.with(along + at);
    }
    let recut = |window: &mut Window| {
        let stride = window.strides[along].clone();
        window.strides.truncate(along);
        let strides = steps.iter().map(|&(_, step)| stride.clone() * step);
        window.strides.extend(strides);
    };
    for value in &mut out.values {
        if let NestOp::Load(window) = &mut value.op {
            recut(window);
        }
        if value.support.contains(along) {
            for at in 1..steps.len() {
                value.support = value.support.with(along + at);
            }
        }
    }
    (out, tiling)
}
