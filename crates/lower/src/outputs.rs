//! A product of few rows on a CPU's matrix unit, with a weight that is stored by its outputs: `x @ w.t()`, every linear layer of a model.
//!
//! ```text
//!   phase 0   x [m, k]  ->  panels of 32 rows, turned:      [blocks of m][k / pack][32][pack]
//!   phase 1   an instance has some blocks of 32 outputs
//!             for each block, for each chunk of the depth
//!               their rows of w are copied as they lie      [blocks of k][32][depth]              first-level cache
//!               for each panel of x: sums [32 outputs, 32 rows] +=                                second-level cache
//!             for each panel of x: the sums of all blocks are turned, finished and stored
//! ```
//!
//! The unit reads its left operand row by row and its right one in groups of the depth. A weight that is stored by its outputs lies as a left operand does, and every element of it would have to be turned for it to be a
//! right one; the few rows are turned in no time. So the weight is the left operand, and what comes out is the result turned. Two weights of one `x` (a gated layer) have their outputs side by side in an instance.

use oxyfuel_base::{DType, Expr, Result, ensure};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BufferMode, MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use crate::direct::{Operand, Product};
use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{
    CopyB, across, choose, copy_chunk, finish, lay_out, matrix_layout, right, zeros,
};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// The product of the same operands whose result is turned.
pub fn turned(product: &Product) -> Product {
    let turn = |operand: &Operand| {
        let [first, second] = operand.strides;
        Operand {
            strides: [second, first],
            ..operand.clone()
        }
    };
    Product {
        m: product.n,
        n: product.m,
        a: turn(&product.b),
        b: turn(&product.a),
        ..product.clone()
    }
}

/// Builds the program, or says why this product is not for it.
pub fn outputs(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    let [along, apart] = product.b.strides;
    let all: Vec<Product> = product.each().iter().map(turned).collect();
    let turned = &all[0];
    let blocking = choose(turned, target)?;
    let (rows, cols) = (blocking.rows, blocking.cols);
    let row_blocks = ceil_div(turned.m, rows);
    let room = i64::try_from(target.l2_bytes / 2).unwrap_or(i64::MAX);
    let held = |lines: i64, dtype: DType| lines.saturating_mul(product.k) * dtype.size() as i64;
    let enough = 2 * i64::from(target.workers.max(1));
    ensure!(
        blocking.matrix
            && along == 1
            && apart != 1
            && held(product.m, product.a.dtype) <= room
            && held(rows * product.count(), product.b.dtype) <= room
            && row_blocks.saturating_mul(product.batch) >= enough,
        NoLowering,
        "a product whose second operand is not stored by its columns, or whose first one is too large for a cache"
    );
    let col_blocks = ceil_div(turned.n, cols);
    // An instance has as many blocks of outputs as the second-level cache holds sums of.
    let block = product.count() * col_blocks * rows * cols * 4;
    ensure!(
        block <= room,
        NoLowering,
        "sums of {block} bytes for 32 outputs"
    );
    let depth_blocks = blocking.steps(turned.k);
    let depth = depth_blocks * blocking.depth;
    let blocks = across(row_blocks, product.batch, target).min((room / 2 / block).max(1));
    let width = blocks * rows;

    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let length = Expr::constant(product.batch * col_blocks * cols * depth);
    let panels = k.buffer("panels", blocking.parts[1], BufferMode::Workspace, length);
    let panels = panels.aligned(64);
    lay_out(&k, &spread, &[rows, blocking.depth]);
    lay_out(&k, &spread, &[rows, cols]);
    lay_out(&k, &spread, &[cols, width]);
    let copy = CopyB {
        from: &params.mems[turned.b.buffer],
        product: turned,
        blocking: &blocking,
        depth,
        cut: false,
    };
    copy.lay_out(&k, &spread);
    copy.phase(&k, &panels);

    let groups = ceil_div(row_blocks, blocks);
    k.phase([groups, product.batch].map(Expr::constant), |k| {
        let group = k.program_id(0);
        let batch = (product.batch > 1).then(|| k.program_id(1));
        let count =
            left(&group, blocks, row_blocks).unwrap_or_else(|| k.constant(DType::I64, blocks));
        let part = blocking.chunk * blocking.depth;
        let weight = k.alloc(Space::Panel, blocking.parts[0], rows * part, None);
        let sums = |_: &Product| {
            let length = col_blocks * width * cols;
            k.alloc(Space::Panel, product.acc, length, None)
        };
        let sums: Vec<Mem> = all.iter().map(sums).collect();
        let start = k.constant(DType::I64, 0);
        let panel = |row: &Tile| {
            let row = match &batch {
                Some(batch) => batch * col_blocks + row,
                None => row.clone(),
            };
            row * (cols * depth)
        };
        let chunks = depth_blocks / blocking.chunk;
        let block = |k: &KernelBuilder, number: usize, at: [&Tile; 2], chunk: &Tile| {
            let [row, block] = at;
            let a = weight.at(0).shape([blocking.chunk, rows, blocking.depth]);
            let a = a.operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
            let b = right(
                &panels,
                &(panel(row) + chunk * (part * cols)),
                &blocking,
                part,
            );
            let home = sums[number].at(row * (width * cols) + block * (rows * cols));
            let home = home.shape([rows, cols]);
            let acc = match chunks {
                1 => zeros(k, product.acc, rows, cols),
                _ => k.load(home.clone()),
            };
            let acc = acc.convert_layout(matrix_layout(rows, cols));
            let sum = k.mma(a, b, &acc, false);
            let layout = spread.layout(&[rows, cols], &[rows, cols]);
            k.store(home, sum.convert_layout(layout));
        };
        k.for_range(0, &count, 1, [], |k, number, []| {
            let output = &group * blocks + &number;
            for (product, turned) in all.iter().enumerate() {
                if chunks > 1 {
                    k.for_range(0, col_blocks, 1, [], |k, row, []| {
                        let home = &row * (width * cols) + &number * (rows * cols);
                        let home = sums[product].at(home).shape([rows, cols]);
                        k.store(home, k.full(turned.acc, [rows, cols], 0));
                        []
                    });
                }
                let chunk = |k: &KernelBuilder, chunk: &Tile| {
                    let at = (&output, batch.as_ref());
                    let to = (&weight, &start);
                    copy_chunk(k, &params, to, turned, &blocking, at, chunk);
                    k.for_range(0, col_blocks, 1, [], |k, row, []| {
                        block(k, product, [&row, &number], chunk);
                        []
                    });
                };
                if chunks == 1 {
                    chunk(k, &start);
                    continue;
                }
                k.for_range(0, chunks, 1, [], |k, number, []| {
                    chunk(k, &number);
                    []
                });
            }
            []
        });
        k.for_range(0, col_blocks, 1, [], |k, row, []| {
            let exist = left(&group, width, product.n);
            let turned = sums.iter().map(|sums| {
                let sums = sums.at(&row * (width * cols)).shape([cols, width]);
                let mut sums = sums.strides([1, cols]);
                if let Some(exist) = &exist {
                    sums = sums.valid(1, exist);
                }
                k.load(sums)
            });
            let turned = turned.collect();
            let (block, at) = ([cols, width], [&row, &group]);
            finish(k, &params, nest, product, block, at, batch.as_ref(), turned);
            []
        });
    });
    k.finish()
}
