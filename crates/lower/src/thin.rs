//! A matrix product with few rows or few columns, on the vector unit of a CPU, whose larger operand runs along the depth: activations of a few tokens times a weight that is stored by its
//! outputs.
//!
//! ```text
//!   an instance computes  few x width  sums, each a vector along the depth until its lanes are added
//!
//!   the few rows    ──▶  every instance reads them, from a cache
//!   width columns   ──▶  read once, where they lie, at the speed of memory
//! ```
//!
//! The larger operand is never copied: a copy would cost more than the few multiply-adds that an element is for. The smaller one is turned first where it runs the other way. Where rows and
//! columns are so few that there would be nothing to share out, the depth is cut into parts, by its length alone: sums do not depend on the number of threads.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{BufferMode, CompareOp, MmaDim};
use oxyfuel_plan::TargetDesc;

use crate::direct::{Operand, Product};
use crate::map::{Spread, vector};
use crate::nest::Nest;
use crate::packed::{Place, finish_at, held, lay_out, zeros};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// From so many rows and columns on, copies pay.
const FEW: i64 = 16;
/// Below so many multiply-adds, or so few of the depth, a plain reduction is as good.
const WORTH: i64 = 1 << 12;
const DEEP: i64 = 32;
/// Columns (or rows, if columns are few) that an instance reads side by side: more streams than this, and the prefetcher loses count.
const STREAMS: i64 = 8;
/// The smaller operand is turned where the larger is at least so many times as large.
const WORTH_TURNING: i64 = 8;
/// Elements of the depth that are turned at a time.
const PIECE: i64 = 128;
/// So few blocks are not enough to share out; a part of the depth is at least so deep, which leaves it in the second-level cache for all blocks, and there are at most so many.
const BLOCKS: i64 = 8;
const PART: i64 = 1 << 13;
const PARTS: i64 = 256;

/// Builds the program, or says why this product is not for it.
pub fn thin(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    suits(product, target)?;
    let Product { batch, m, n, .. } = *product;
    let flat = m <= n;
    let (few, many) = (m.min(n), m.max(n));
    let registers = i64::from(target.registers);
    // The taller a block, the fewer loads a multiplication; its vectors of one side and one of the other stand beside the sums.
    let heights = parts(few, if registers >= 32 { 6 } else { 3 });
    let tallest = heights.iter().map(|part| part.1).max().unwrap_or(1);
    let width = width(many, ((registers - 2 - tallest) / tallest).min(STREAMS))?;
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let place = |side: Side, few: bool, name: &str| {
        let mem = &params.mems[side.buffer];
        if few && side.along != 1 {
            turned(&k, &spread, mem, &side, product, name)
        } else {
            (mem.clone(), side)
        }
    };
    let each = product.each();
    let [a, _] = sides(product);
    let a = place(a, flat, "turned");
    let names = ["turned_b", "turned_c"].into_iter().zip(&each);
    let b = names.map(|(name, product)| {
        let [_, b] = sides(product);
        place(b, !flat, name)
    });
    let b = b.collect();
    let work = Work {
        nest,
        params: &params,
        product,
        spread,
        a,
        b,
        flat,
        heights,
        many,
        width,
    };
    let blocks = ceil_div(many, width);
    let parts = if blocks * batch > BLOCKS {
        1
    } else {
        (product.k / PART).clamp(1, PARTS)
    };
    if parts > 1 {
        work.in_parts(&k, blocks, parts);
    } else {
        work.at_once(&k, blocks);
    }
    k.finish()
}

/// An operand as both sides see it.
#[derive(Clone)]
struct Side {
    buffer: usize,
    dtype: DType,
    base: i64,
    batch_stride: i64,
    /// Rows of `a`, or columns of `b`.
    count: i64,
    /// From one of them to the next, and from one element of the depth to the next.
    apart: i64,
    along: i64,
}

fn sides(product: &Product) -> [Side; 2] {
    let side = |operand: &Operand, count: i64, own: usize| Side {
        buffer: operand.buffer,
        dtype: operand.dtype,
        base: operand.base,
        batch_stride: operand.batch_stride,
        count,
        apart: operand.strides[own],
        along: operand.strides[1 - own],
    };
    [
        side(&product.a, product.m, 0),
        side(&product.b, product.n, 1),
    ]
}

fn suits(product: &Product, target: &TargetDesc) -> Result<()> {
    let Product { batch, m, n, k, .. } = *product;
    let float = |dtype: DType| match product.acc {
        DType::F64 => dtype == DType::F64,
        DType::F32 => matches!(dtype, DType::F32 | DType::BF16 | DType::F16),
        _ => false,
    };
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    let [a, b] = sides(product);
    let (small, large) = if m <= n { (a, b) } else { (b, a) };
    let along =
        large.along == 1 && (small.along == 1 || large.count / small.count.max(1) >= WORTH_TURNING);
    let sized = m.max(n) >= 2 && m.min(n) <= FEW && k >= DEEP && work >= WORTH;
    ensure!(
        !target.is_simt()
            && target.vector_bytes > 0
            && float(product.a.dtype)
            && float(product.b.dtype)
            && along
            && sized,
        NoLowering,
        "a product of {m}x{n}x{k} that does not run along the depth with few rows or columns"
    );
    Ok(())
}

/// A phase that turns an operand: `[batch][count][depth]`.
fn turned(
    k: &KernelBuilder,
    spread: &Spread,
    from: &Mem,
    side: &Side,
    product: &Product,
    name: &str,
) -> (Mem, Side) {
    let depth = product.k;
    let len = product.batch * side.count * depth;
    let to = k.buffer(name, side.dtype, BufferMode::Workspace, Expr::constant(len));
    let to = to.aligned(64);
    let deep = PIECE.min(depth);
    lay_out(k, spread, &[side.count, deep]);
    k.phase(
        [ceil_div(depth, deep), product.batch].map(Expr::constant),
        |k| {
            let piece = k.program_id(0);
            let mut at = &piece * (deep * side.along) + side.base;
            let mut home = &piece * deep;
            if product.batch > 1 {
                let batch = k.program_id(1);
                at = at + &batch * side.batch_stride;
                home = home + &batch * (side.count * depth);
            }
            let mut window = from
                .at(&at)
                .shape([side.count, deep])
                .strides([side.apart, side.along]);
            let mut home = to.at(&home).shape([side.count, deep]).strides([depth, 1]);
            if let Some(rest) = left(&piece, deep, depth) {
                window = window.valid(1, &rest);
                home = home.valid(1, &rest);
            }
            k.store(home, k.load(window));
        },
    );
    let side = Side {
        base: 0,
        batch_stride: side.count * depth,
        apart: depth,
        along: 1,
        ..side.clone()
    };
    (to, side)
}

/// Parts of at most `most` elements, as equal as can be: first element and length.
pub fn parts(len: i64, most: i64) -> Vec<(i64, i64)> {
    let count = ceil_div(len, most);
    let bound = |i: i64| len * i / count;
    (0..count)
        .map(|i| (bound(i), bound(i + 1) - bound(i)))
        .collect()
}

/// The width of a block: at most `most`, and none that leaves a last block of one, which would be no matrix.
fn width(len: i64, most: i64) -> Result<i64> {
    let mut widths = (2..=most.min(len)).rev();
    widths
        .find(|w| len % w != 1)
        .ok_or_else(|| err!(NoLowering, "{len} has no blocks of 2 to {most}"))
}

/// What all blocks need to know.
struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    product: &'a Product,
    spread: Spread,
    a: (Mem, Side),
    /// One for each product.
    b: Vec<(Mem, Side)>,
    /// Rows are the few.
    flat: bool,
    heights: Vec<(i64, i64)>,
    many: i64,
    width: i64,
}

impl Work<'_> {
    /// One phase: every instance goes down the whole depth.
    fn at_once(&self, k: &KernelBuilder, blocks: i64) {
        let batch = self.product.batch;
        k.phase([blocks, batch].map(Expr::constant), |k| {
            let batch = (batch > 1).then(|| k.program_id(1));
            self.blocks(k, |k, place| {
                let from = k.constant(DType::I64, 0);
                let sums = self
                    .b
                    .iter()
                    .map(|b| self.sum(k, &place, b, &from, self.product.k, batch.as_ref()));
                let sums = held(k, place.block, sums);
                finish_at(k, self.params, self.nest, place, batch.as_ref(), sums);
            });
        });
    }

    /// Two phases: sums of each part of the depth, and their sums.
    fn in_parts(&self, k: &KernelBuilder, blocks: i64, parts: i64) {
        let Product {
            batch,
            m,
            n,
            k: depth,
            acc,
            ..
        } = *self.product;
        // Whole vectors, as many lines in each part.
        let deep = ceil_div(ceil_div(depth, parts), 64) * 64;
        let parts = ceil_div(depth, deep);
        let len = Expr::constant(parts * batch * m * n);
        let names = ["partial", "partial_c"].into_iter().zip(&self.b);
        let partial = names.map(|(name, b)| {
            let buffer = k.buffer(name, acc, BufferMode::Workspace, len.clone());
            (buffer.aligned(64), b)
        });
        let partial: Vec<_> = partial.collect();
        let home = |partial: &Mem, part: &Tile, batch: Option<&Tile>, place: &Place| -> Window {
            let mut at = part * (self.product.batch * m * n);
            if let Some(batch) = batch {
                at = at + batch * (m * n);
            }
            let at = at + &place.start[0] * n + &place.start[1];
            partial.at(&at).shape(place.block).strides([n, 1])
        };
        k.phase([blocks, parts, batch].map(Expr::constant), |k| {
            let part = k.program_id(1);
            let batch = (batch > 1).then(|| k.program_id(2));
            let from = &part * deep;
            let add = |k: &KernelBuilder, deep: i64| {
                self.blocks(k, |k, place| {
                    for (partial, b) in &partial {
                        let sum = self.sum(k, &place, b, &from, deep, batch.as_ref());
                        k.store(home(partial, &part, batch.as_ref(), &place), &sum);
                    }
                });
            };
            let last = depth - (parts - 1) * deep;
            if last == deep {
                return add(k, deep);
            }
            k.when(&part.compare(CompareOp::Lt, parts - 1), |k| add(k, deep));
            k.when(&part.compare(CompareOp::Ge, parts - 1), |k| add(k, last));
        });
        k.phase([blocks, batch].map(Expr::constant), |k| {
            let batch = (batch > 1).then(|| k.program_id(1));
            self.blocks(k, |k, place| {
                let sums = partial.iter().map(|(partial, _)| {
                    let first = k.constant(DType::I64, 0);
                    let sum = k.load(home(partial, &first, batch.as_ref(), &place));
                    let [sum] = k.for_range(1, parts, 1, [sum], |k, part, [sum]| {
                        [sum + k.load(home(partial, &part, batch.as_ref(), &place))]
                    });
                    sum
                });
                let sums = held(k, place.block, sums);
                finish_at(k, self.params, self.nest, place, batch.as_ref(), sums);
            });
        });
    }

    /// All blocks of an instance.
    fn blocks(&self, k: &KernelBuilder, each: impl Fn(&KernelBuilder, Place)) {
        let block = k.program_id(0);
        let (full, rest) = (self.many / self.width, self.many % self.width);
        let of_width = |k: &KernelBuilder, len: i64| {
            for (number, &(first, high)) in self.heights.iter().enumerate() {
                let number = i64::try_from(number).unwrap_or(0);
                let [first, number] = [first, number].map(|n| k.constant(DType::I64, n));
                let (few, many) = (
                    (high, first, number),
                    (len, &block * self.width, block.clone()),
                );
                let (row, col) = if self.flat { (few, many) } else { (many, few) };
                lay_out(k, &self.spread, &[row.0, col.0]);
                let place = Place {
                    block: [row.0, col.0],
                    start: [row.1, col.1],
                    position: [row.2, col.2],
                    left: [None, None],
                };
                each(k, place);
            }
        };
        if rest == 0 {
            return of_width(k, self.width);
        }
        if full > 0 {
            k.when(&block.compare(CompareOp::Lt, full), |k| {
                of_width(k, self.width)
            });
        }
        k.when(&block.compare(CompareOp::Ge, full), |k| of_width(k, rest));
    }

    /// The sums of a block over `deep` elements of the depth.
    fn sum(
        &self,
        k: &KernelBuilder,
        place: &Place,
        b: &(Mem, Side),
        from: &Tile,
        deep: i64,
        batch: Option<&Tile>,
    ) -> Tile {
        let at = |(mem, side): &(Mem, Side), start: &Tile| {
            let mut at = start * side.apart + from + side.base;
            if let Some(batch) = batch {
                at = at + batch * side.batch_stride;
            }
            (mem.at(&at), side.apart)
        };
        let [rows, cols] = place.block;
        let (a, apart) = at(&self.a, &place.start[0]);
        let a = a.shape([rows, deep]).strides([apart, 1]);
        let (b, apart) = at(b, &place.start[1]);
        let b = b.shape([deep, cols]).strides([1, apart]);
        let zero = zeros(k, self.product.acc, rows, cols);
        let a = a.operand([MmaDim::Side, MmaDim::K]);
        let b = b.operand([MmaDim::K, MmaDim::Side]);
        k.mma(a, b, &zero, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_never_one() {
        for most in [3, 6] {
            for len in 2..=FEW {
                let parts = parts(len, most);
                let mut next = 0;
                for (first, long) in parts {
                    assert_eq!(first, next);
                    assert!((2..=most).contains(&long), "{len} in parts of {long}");
                    next = first + long;
                }
                assert_eq!(next, len);
            }
        }
    }

    #[test]
    fn no_block_is_left_with_one() {
        for most in 2..=STREAMS {
            for len in 2..500 {
                let Ok(width) = width(len, most) else {
                    assert!((2..=most).all(|w| len % w == 1));
                    continue;
                };
                assert!((2..=most).contains(&width));
                assert!(len % width != 1, "{len} by {width}");
            }
        }
        assert_eq!(width(4096, 6).unwrap(), 6);
    }
}
