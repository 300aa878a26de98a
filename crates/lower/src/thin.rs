//! A matrix product with few rows or few columns, on the vector unit of a CPU, whose operands both run along the depth: activations of a few tokens times a weight that is stored by its
//! outputs.
//!
//! ```text
//!   an instance computes  few x width  sums, each a vector along the depth until its lanes are added
//!
//!   a  ─ few rows ─▶  every instance reads them, from a cache
//!   b  ─ width columns ─▶  read once, where they lie, at the speed of memory
//! ```
//!
//! Nothing is copied: a copy would cost more than the few multiply-adds that an element is for.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{CompareOp, MmaDim};
use oxyfuel_plan::TargetDesc;

use crate::direct::{Operand, Product};
use crate::map::{Spread, vector};
use crate::nest::Nest;
use crate::packed::{Place, finish_at, lay_out, zeros};
use crate::size::Params;
use crate::tile::ceil_div;

/// From so many rows and columns on, copies pay.
const FEW: i64 = 16;
/// Below so many multiply-adds, or so few of the depth, a plain reduction is as good.
const WORTH: i64 = 1 << 12;
const DEEP: i64 = 32;
/// Columns (or rows, if columns are few) that an instance reads side by side: more streams than this, and the prefetcher loses count.
const STREAMS: i64 = 8;

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
    let work = Work {
        nest,
        params: &params_of(&k),
        product,
        spread,
        flat,
        heights,
        width,
    };
    let grid = [ceil_div(many, width), batch].map(Expr::constant);
    k.phase(grid, |k| {
        let block = k.program_id(0);
        let batch = (batch > 1).then(|| k.program_id(1));
        let (full, rest) = (many / width, many % width);
        if rest == 0 {
            return work.block(k, &block, width, batch.as_ref());
        }
        if full > 0 {
            k.when(&block.compare(CompareOp::Lt, full), |k| {
                work.block(k, &block, width, batch.as_ref());
            });
        }
        k.when(&block.compare(CompareOp::Ge, full), |k| {
            work.block(k, &block, rest, batch.as_ref());
        });
    });
    k.finish()
}

fn suits(product: &Product, target: &TargetDesc) -> Result<()> {
    let Product { batch, m, n, k, .. } = *product;
    let float = |dtype: DType| match product.acc {
        DType::F64 => dtype == DType::F64,
        DType::F32 => matches!(dtype, DType::F32 | DType::BF16 | DType::F16),
        _ => false,
    };
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    let along = product.a.strides[1] == 1 && product.b.strides[0] == 1;
    let sized = m.min(n) >= 2 && m.min(n) <= FEW && k >= DEEP && work >= WORTH;
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

/// Parts of at most `most` elements, as equal as can be: first element and length.
fn parts(len: i64, most: i64) -> Vec<(i64, i64)> {
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
    /// Rows are the few.
    flat: bool,
    heights: Vec<(i64, i64)>,
    width: i64,
}

impl Work<'_> {
    /// All sums of `len` columns, or rows if columns are few.
    fn block(&self, k: &KernelBuilder, block: &Tile, len: i64, batch: Option<&Tile>) {
        let product = self.product;
        let many = (block * self.width, block.clone());
        for (number, &(first, high)) in self.heights.iter().enumerate() {
            let number = i64::try_from(number).unwrap_or(0);
            let constant = |n: i64| k.constant(DType::I64, n);
            let few = (constant(first), constant(number));
            let (sizes, [row, col]) = if self.flat {
                ([high, len], [&few, &many])
            } else {
                ([len, high], [&many, &few])
            };
            let [rows, cols] = sizes;
            lay_out(k, &self.spread, &sizes);
            let at = |operand: &Operand, first: &Tile, stride: i64| {
                let mut at = first * stride + operand.base;
                if let Some(batch) = batch {
                    at = at + batch * operand.batch_stride;
                }
                self.params.mems[operand.buffer].at(&at)
            };
            let a = at(&product.a, &row.0, product.a.strides[0])
                .shape([rows, product.k])
                .strides(product.a.strides)
                .operand([MmaDim::Side, MmaDim::K]);
            let b = at(&product.b, &col.0, product.b.strides[1])
                .shape([product.k, cols])
                .strides(product.b.strides)
                .operand([MmaDim::K, MmaDim::Side]);
            let sum = k.mma(a, b, &zeros(k, product.acc, rows, cols), false);
            let place = Place {
                block: sizes,
                position: [row.1.clone(), col.1.clone()],
                start: [row.0.clone(), col.0.clone()],
                left: [None, None],
            };
            finish_at(k, self.params, self.nest, place, batch, sum);
        }
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
