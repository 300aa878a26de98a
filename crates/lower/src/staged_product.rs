//! A matrix product on a GPU through shared memory: every float dtype, any strides, any number of products, on every generation.
//!
//! A block of threads has a block of the result. While it multiplies one stage of the depth, the next one is on its way into registers.

use oxyfuel_base::{Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, Index, Order};
use oxyfuel_plan::TargetDesc;

use crate::direct::{Operand, Product};
use crate::nest::Nest;
use crate::packed::finish;
use crate::rows::left;
use crate::size::Params;
use crate::staged::{Part, Team};
use crate::tile::ceil_div;

/// Below so many rows or columns most of a block is empty: the product is a reduction.
const LEAST: i64 = 16;
/// Block rows for each step along the columns, so that neighbours share operands in the cache.
const GROUP: u32 = 8;

struct Shape {
    team: Team,
    rows: i64,
    cols: i64,
    /// Depth of a stage.
    step: i64,
}

/// Builds the program, or says why this product is not for it.
pub fn product(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    let shape = choose(product, target)?;
    let Shape {
        team,
        rows,
        cols,
        step,
    } = &shape;
    let (rows, cols, step) = (*rows, *cols, *step);
    let k = KernelBuilder::mapped(&nest.name, team.geometry(target));
    let params = params_of(&k);
    for small in [[rows, cols], [1, cols], [rows, 1]] {
        k.layout_shape(small, team.narrow([rows, cols], small));
    }
    let [down, across] = [ceil_div(product.m, rows), ceil_div(product.n, cols)];
    let (grid, order) = match product.batch {
        1 => (vec![down, across], Order::Grouped { group: GROUP }),
        // One dim of the grid, which has no limit that matters.
        batch => (vec![batch * down * across], Order::Plain),
    };
    k.phase_ordered(grid.into_iter().map(Expr::constant), order, |k| {
        let (batch, row, col) = if product.batch == 1 {
            (None, k.program_id(0), k.program_id(1))
        } else {
            let id = k.program_id(0);
            let block = id.binary(BinaryOp::Rem, down * across);
            let row = block.binary(BinaryOp::Rem, down);
            let col = block.binary(BinaryOp::Div, down);
            (Some(id.binary(BinaryOp::Div, down * across)), row, col)
        };
        let a = team.hold(k, [rows, step], team.along_depth());
        let b = team.hold(k, [cols, step], team.along_depth());
        let whole = product.k % step == 0;
        let stage = |k: &KernelBuilder, at: &Tile, past: bool| -> [Tile; 2] {
            let deep = (past || !whole).then(|| {
                let rest = at * -1 + product.k;
                rest.binary(BinaryOp::Min, step).binary(BinaryOp::Max, 0)
            });
            let side = |operand: &Operand, own: usize, block: &Tile, size: i64, extent: i64| {
                let strides = [operand.strides[own], operand.strides[1 - own]];
                let mut base = block * (size * strides[0]) + at * strides[1] + operand.base;
                if let Some(batch) = &batch {
                    base = base + batch * operand.batch_stride;
                }
                team.fetch(
                    k,
                    Part {
                        mem: &params.mems[operand.buffer],
                        base,
                        shape: [size, step],
                        strides: strides.map(Index::Const),
                        left: [left(block, size, extent), deep.clone()],
                    },
                )
            };
            [
                side(&product.a, 0, &row, rows, product.m),
                side(&product.b, 1, &col, cols, product.n),
            ]
        };
        let first = stage(k, &k.constant(oxyfuel_base::DType::I64, 0), false);
        let [x, y] = first;
        let start = [x, y, team.zeros(k, [rows, cols])];
        let [_, _, sum] = k.for_range(0, product.k, step, start, |k, at, [x, y, sum]| {
            team.put(k, &x, &a);
            team.put(k, &y, &b);
            k.sync();
            let [x, y] = stage(k, &(&at + step), true);
            let sum = team.multiply(k, [&a, &b], [rows, cols], step, sum);
            k.sync();
            [x, y, sum]
        });
        let block = [rows, cols];
        finish(
            k,
            &params,
            nest,
            product,
            block,
            [&row, &col],
            batch.as_ref(),
            vec![sum],
        );
    });
    k.finish()
}

fn choose(product: &Product, target: &TargetDesc) -> Result<Shape> {
    let Product { batch, m, n, k, .. } = *product;
    ensure!(
        m >= LEAST && n >= LEAST && k >= LEAST,
        NoLowering,
        "a product of {m} by {n} by {k} is a reduction"
    );
    ensure!(
        product.pair.is_none() && product.late.is_none() && product.b.panels.is_none(),
        NoLowering,
        "a pair of products, or one of symbolic size"
    );
    let dtypes = [product.a.dtype, product.b.dtype];
    let team = |warps| {
        let team = Team::of(target, dtypes, product.acc, warps);
        team.ok_or_else(|| {
            err!(
                NoLowering,
                "no block of threads multiplies {} by {} into {}",
                dtypes[0],
                dtypes[1],
                product.acc
            )
        })
    };
    let large = team([4, 2])?;
    // f64 has half the registers.
    let blocks = batch * ceil_div(m, 128) * ceil_div(n, 128);
    let wide = product.acc.size() == 4 && blocks >= i64::from(target.workers);
    let step = if large.unit { 32 } else { 16 };
    Ok(if wide {
        Shape {
            team: large,
            rows: 128,
            cols: 128,
            step,
        }
    } else {
        Shape {
            team: team([2, 2])?,
            rows: 64,
            cols: 64,
            step,
        }
    })
}
