//! A product of a great depth with few blocks: its depth is cut into parts, so that there is work for many.
//!
//! ```text
//!   part 0   a[:, 0..l] @ b[0..l, :]     ┐
//!   part 1   a[:, l..2l] @ b[l..2l, :]   ├─▶  sums [parts][blocks]  ─▶  added in the order of the parts ─▶ the work on the result
//!   ...                                  ┘
//! ```
//!
//! To the kernels that multiply, parts are products of one batch. How many there are depends on the sizes alone: sums do not depend on the number of threads.

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::BufferMode;

use crate::direct::{Operand, Product};
use crate::nest::Nest;
use crate::packed::finish;
use crate::size::Params;
use crate::tile::ceil_div;

/// As many blocks are shared out evenly by the workers of any machine.
const ENOUGH: i64 = 64;
/// Elements of the depth that a part has at least: what a block's sums cost, written and read again, is little beside it.
const LEAST: i64 = 1024;

/// Parts of the depth: as many as leave all of them alike, so that none has edges of its own. One where it stays whole.
fn parts(product: &Product, [rows, cols]: [i64; 2], step: i64) -> i64 {
    let single = product.batch == 1 && product.pair.is_none() && product.late.is_none();
    if !single || product.b.panels.is_some() {
        return 1;
    }
    let blocks = ceil_div(product.m, rows) * ceil_div(product.n, cols);
    let most = (ENOUGH / blocks.max(1)).min(product.k / LEAST);
    let alike = |parts: &i64| product.k % (parts * step) == 0;
    (2..=most).rev().find(alike).unwrap_or(1)
}

/// A product whose parts are products of one batch.
pub struct Deep {
    pub product: Product,
    parts: i64,
}

impl Deep {
    /// Nothing where the depth stays whole. `block` is the shape of a block of the result, `step` what parts are multiples of.
    pub fn of(product: &Product, block: [i64; 2], step: i64) -> Option<Self> {
        let parts = parts(product, block, step);
        let length = product.k / parts;
        let part = |operand: &Operand, along: usize| Operand {
            batch_stride: operand.strides[along] * length,
            ..operand.clone()
        };
        (parts > 1).then(|| Self {
            product: Product {
                batch: parts,
                k: length,
                a: part(&product.a, 1),
                b: part(&product.b, 0),
                ..product.clone()
            },
            parts,
        })
    }

    /// Room for the sums of every part.
    pub fn sums(&self, k: &KernelBuilder, block: [i64; 2]) -> Sums {
        let [rows, cols] = block;
        let blocks = [
            ceil_div(self.product.m, rows),
            ceil_div(self.product.n, cols),
        ];
        let len = self.parts * blocks[0] * blocks[1] * rows * cols;
        let home = k.buffer(
            "sums",
            self.product.acc,
            BufferMode::Workspace,
            Expr::constant(len),
        );
        Sums {
            home: home.aligned(64),
            parts: self.parts,
            block,
            blocks,
        }
    }
}

/// The sums of all parts, a block after the other.
pub struct Sums {
    home: Mem,
    parts: i64,
    block: [i64; 2],
    blocks: [i64; 2],
}

impl Sums {
    fn window(&self, part: &Tile, [row, col]: [&Tile; 2]) -> oxyfuel_kernel::builder::Window {
        let number = (part * self.blocks[0] + row) * self.blocks[1] + col;
        let [rows, cols] = self.block;
        self.home.at(number * (rows * cols)).shape(self.block)
    }

    /// Keeps the sums of a block of a part.
    pub fn keep(&self, k: &KernelBuilder, part: &Tile, block: [&Tile; 2], sum: &Tile) {
        k.store(self.window(part, block), sum);
    }

    /// The phase that adds up the parts and does the work on the result.
    pub fn finish(&self, k: &KernelBuilder, params: &Params, nest: &Nest, product: &Product) {
        let grid = self.blocks.map(Expr::constant);
        k.phase(grid, |k| {
            let (row, col) = (k.program_id(0), k.program_id(1));
            let block = [&row, &col];
            let part = |k: &KernelBuilder, part: &Tile| k.load(self.window(part, block));
            let first = part(k, &k.constant(oxyfuel_base::DType::I64, 0));
            let [sum] = k.for_range(1, self.parts, 1, [first], |k, number, [sum]| {
                [sum + part(k, &number)]
            });
            finish(k, params, nest, product, self.block, block, None, vec![sum]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::DType;

    fn product(m: i64, n: i64, k: i64) -> Product {
        let operand = |strides| Operand {
            buffer: 0,
            dtype: DType::F32,
            base: 0,
            batch_stride: 0,
            strides,
            panels: None,
        };
        Product {
            batch: 1,
            m,
            n,
            k,
            a: operand([k, 1]),
            b: operand([n, 1]),
            pair: None,
            acc: DType::F32,
            late: None,
        }
    }

    #[test]
    fn parts_are_alike_and_cover_the_depth() {
        let block = [8, 48];
        for (m, n) in [(17, 17), (24, 32), (64, 64), (200, 100), (4096, 4096)] {
            for k in (1..70_000).step_by(523).chain([2048, 4096, 65_536]) {
                let whole = product(m, n, k);
                let Some(deep) = Deep::of(&whole, block, 16) else {
                    continue;
                };
                let part = &deep.product;
                assert_eq!(part.k * part.batch, k);
                assert!(part.k >= LEAST && part.k % 16 == 0, "{m} {n} {k}");
                assert_eq!(part.a.batch_stride, part.k);
                assert_eq!(part.b.batch_stride, part.k * n);
                let blocks = ceil_div(m, block[0]) * ceil_div(n, block[1]);
                assert!(blocks * part.batch <= ENOUGH);
            }
        }
        assert!(Deep::of(&product(4096, 4096, 65_536), block, 16).is_none());
        assert!(Deep::of(&product(32, 32, 2047), block, 16).is_none());
        let cut = Deep::of(&product(32, 32, 65_536), block, 16);
        assert_eq!(cut.map(|deep| deep.parts), Some(16));
    }
}
