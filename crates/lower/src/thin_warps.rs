//! A matrix product of few rows on a GPU, whose right operand runs along the depth: the activations of a few tokens times a weight that is stored by its outputs.
//!
//! ```text
//!   a block    some columns of the result, all rows
//!   its warps  a share of the depth each:  weights  --16 bytes a lane-->  registers  --matrix unit-->  sums of a share
//!   then       the sums of all warps meet in shared memory, are added in order, and go through the work on the result
//! ```
//!
//! The weights are read once, past shared memory, at the speed of memory: they are the unit's left operand, so that the few rows need not fill 64. A lane reads 8 neighbours along the
//! depth, which the unit takes for 8 places of its own: both operands are read in that order, and the order of a sum is free.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{Geometry, Mode, ReduceOp, Space, TileLayout};
use oxyfuel_plan::TargetDesc;

use crate::direct::Product;
use crate::nest::Nest;
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;
use crate::warps::{Finish, restricted};

/// More rows would have more sums than a warp has registers for; where larger blocks begin to be faster was not measured.
const MOST_ROWS: i64 = 32;
/// Depth that one access of four lanes covers.
const STEP: i64 = 32;
/// Columns of the result that one product of the unit has.
const NARROW: i64 = 16;
/// Between the sums of two rows in shared memory lie so many elements more, so that the lanes of a warp write to banks of their own.
const APART: i64 = 4;

struct Shape {
    /// Rows of the result, as the unit takes them, and columns of a block.
    rows: i64,
    cols: i64,
    warps: i64,
    /// Steps of the depth that a warp reads at a time, and how often it does.
    steps: i64,
    times: i64,
}

/// Builds the program, or says why this product is not for it.
pub fn thin(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    let shape = choose(nest, product, target)?;
    let Shape {
        rows,
        cols,
        warps,
        steps,
        times,
    } = shape;
    let geometry = Geometry {
        lanes: target.warp_lanes,
        warps: warps as u32,
        cluster: [1; 3],
        registers: 0,
    };
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let (few, weights) = (
        &params.mems[product.a.buffer],
        &params.mems[product.b.buffer],
    );
    let result = spread(&shape);
    for small in [[rows, cols], [1, cols], [rows, 1]] {
        k.layout_shape(small, restricted(&result, &small));
    }
    let sums = TileLayout {
        warp: vec![Mode::new(0, warps as u32, 1)],
        lane: vec![Mode::new(2, 4, 2), Mode::new(1, 8, 1)],
        reg: vec![
            Mode::new(2, 2, 1),
            Mode::new(1, 2, 8),
            Mode::new(2, (rows / 8) as u32, 8),
            Mode::new(1, (cols / 16) as u32, 16),
        ],
        ..TileLayout::default()
    };
    k.phase([Expr::constant(ceil_div(product.n, cols))], |k| {
        let share = steps * STEP;
        let pitch = cols + APART;
        let meeting = k.alloc(Space::Shared, DType::F32, warps * rows * pitch, None);
        let block = k.program_id(0);
        let col = &block * cols;
        let first = &col * product.b.strides[1] + product.b.base;
        let zero = k
            .full(product.acc, [warps, cols, rows], 0.0)
            .with_layout(sums.clone());
        let round = warps * share;
        let load = |k: &KernelBuilder, at: &Tile| {
            let heavy = Side {
                mem: weights,
                count: cols,
                apart: product.b.strides[1],
                bound: left(&block, cols, product.n),
                once: true,
            };
            let bound = (product.m < rows).then(|| k.constant(DType::I64, product.m));
            let light = Side {
                mem: few,
                count: rows,
                apart: product.a.strides[0],
                bound,
                once: false,
            };
            (
                heavy.left(k, &shape, &first + at),
                light.right(k, &shape, at + product.a.base),
            )
        };
        let [sum] = k.for_range(0, times * round, round, [zero], |k, at, [sum]| {
            let (a, b) = load(k, &at);
            [k.mma(a.operand(), b.operand(), &sum, false)]
        });
        k.store(
            meeting
                .at(0)
                .shape([warps, cols, rows])
                .strides([rows * pitch, 1, pitch]),
            &sum,
        );
        k.sync();
        let whole = behind_one_more(&result);
        let mut parts = whole.clone();
        parts.reg.push(Mode::new(0, warps as u32, 1));
        let parts = k
            .load(
                meeting
                    .at(0)
                    .shape([warps, rows, cols])
                    .strides([rows * pitch, pitch, 1]),
            )
            .with_layout(parts);
        let sum = parts
            .reduce(ReduceOp::Sum, [0])
            .with_layout(whole)
            .reshape([rows, cols])
            .with_layout(result.clone());
        let mut finish = Finish {
            k,
            params: &params,
            nest,
            product,
            block: [rows, cols],
        };
        finish.store_all(&k.constant(DType::I64, 0), &block, sum);
    });
    k.finish()
}

/// An operand: so many rows of it, so far apart, of which those below the bound are there.
struct Side<'a> {
    mem: &'a Mem,
    count: i64,
    apart: i64,
    bound: Option<Tile>,
    /// Read once, or by every block.
    once: bool,
}

impl Side<'_> {
    /// Along the depth: steps, then what the unit takes for blocks of 16, halves of them, lanes, and pairs.
    fn depth(shape: &Shape) -> [(i64, i64); 5] {
        [(shape.steps, STEP), (2, 4), (2, 2), (4, 8), (2, 1)]
    }

    /// `[warps, count, depth]`, as the unit takes its left operand.
    fn left(&self, k: &KernelBuilder, shape: &Shape, base: Tile) -> Tile {
        let dims = [(shape.warps, shape.steps * STEP), (self.count, self.apart)];
        let dims: Vec<(i64, i64)> = dims.into_iter().chain(Self::depth(shape)).collect();
        let side = [(1, 2, 8), (1, self.count / 16, 16)];
        let steps = shape.steps;
        let read = layout(
            shape,
            [(5, 4, 1), (1, 8, 1)],
            [(6, 2, 1), (4, 2, 1), (3, 2, 1), (2, steps, 1)],
            &side,
        );
        let taken = layout(
            shape,
            [(2, 4, 2), (1, 8, 1)],
            [(2, 2, 1), (2, 2, 8), (2, 2, 16), (2, steps, 32)],
            &side,
        );
        let whole = [shape.warps, self.count, shape.steps * STEP];
        self.read(k, base, dims, 1, read)
            .reshape(whole)
            .with_layout(taken)
    }

    /// `[warps, depth, count]`, as the unit takes its right operand.
    fn right(&self, k: &KernelBuilder, shape: &Shape, base: Tile) -> Tile {
        let dims = std::iter::once((shape.warps, shape.steps * STEP));
        let dims = dims.chain(Self::depth(shape));
        let dims: Vec<(i64, i64)> = dims.chain([(self.count, self.apart)]).collect();
        let steps = shape.steps;
        let read = layout(
            shape,
            [(4, 4, 1), (6, 8, 1)],
            [(5, 2, 1), (3, 2, 1), (2, 2, 1), (1, steps, 1)],
            &[(6, self.count / 8, 8)],
        );
        let taken = layout(
            shape,
            [(1, 4, 2), (2, 8, 1)],
            [(1, 2, 1), (1, 2, 8), (1, 2, 16), (1, steps, 32)],
            &[(2, self.count / 8, 8)],
        );
        let whole = [shape.warps, shape.steps * STEP, self.count];
        self.read(k, base, dims, 6, read)
            .reshape(whole)
            .with_layout(taken)
    }

    fn read(
        &self,
        k: &KernelBuilder,
        base: Tile,
        dims: Vec<(i64, i64)>,
        side: usize,
        layout: TileLayout,
    ) -> Tile {
        let (extents, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        let window = self.mem.at(&base).shape(extents).strides(strides);
        let window = match &self.bound {
            Some(bound) => window.valid(side, bound),
            None => window,
        };
        let window = if self.once {
            window.streaming()
        } else {
            window
        };
        k.load(window).with_layout(layout)
    }
}

/// Warps along the first dim; modes are a dim, an extent and a stride.
fn layout(
    shape: &Shape,
    lane: [(u8, i64, i64); 2],
    depth: [(u8, i64, i64); 4],
    side: &[(u8, i64, i64)],
) -> TileLayout {
    let mode =
        |&(dim, extent, stride): &(u8, i64, i64)| Mode::new(dim, extent as u32, stride as u32);
    TileLayout {
        warp: vec![Mode::new(0, shape.warps as u32, 1)],
        lane: lane.iter().map(mode).collect(),
        reg: depth.iter().chain(side).map(mode).collect(),
        ..TileLayout::default()
    }
}

fn choose(nest: &Nest, product: &Product, target: &TargetDesc) -> Result<Shape> {
    let Product { batch, m, n, k, .. } = *product;
    let dtype = product.a.dtype;
    target
        .matrix_unit(dtype, product.b.dtype, product.acc)
        .filter(|_| dtype.size() == 2 && target.is_simt())
        .ok_or_else(|| {
            err!(
                NoLowering,
                "this machine has no product of {dtype} and {} on one warp",
                product.b.dtype
            )
        })?;
    ensure!(
        batch == 1 && m <= MOST_ROWS && n >= NARROW,
        NoLowering,
        "a product of {m} by {n} is not one of few rows"
    );
    ensure!(
        product.a.strides[1] == 1 && product.b.strides[0] == 1,
        NoLowering,
        "an operand does not run along the depth"
    );
    let starts = [&product.a, &product.b].iter().all(|o| {
        nest.buffers[o.buffer].align.is_multiple_of(16)
            && o.base % 8 == 0
            && o.strides.iter().all(|s| *s == 1 || s % 8 == 0)
    });
    ensure!(
        starts && k % STEP == 0,
        NoLowering,
        "rows of an operand do not start at multiples of 16 bytes, or the depth is no multiple of {STEP}"
    );
    let rows = (m as u64).next_power_of_two().max(8) as i64;
    let all = k / STEP;
    // Every block reads all rows, so that few wide blocks are better, as long as each processor has one.
    let wide = n > NARROW * i64::from(target.workers);
    let (cols, warps, most) = if wide {
        (2 * NARROW, 4, 4)
    } else {
        (NARROW, 8, 8)
    };
    let warps = [8, 4, 2].into_iter().find(|w| *w <= warps && all % w == 0);
    let warps = warps.unwrap_or(1);
    let each = all / warps;
    let most = (most * 8 / rows).max(1);
    let steps = (1..=most).rev().find(|s| each % s == 0).unwrap_or(1);
    let times = each / steps;
    Ok(Shape {
        rows,
        cols,
        warps,
        steps,
        times,
    })
}

/// Pairs of columns, neighbours on neighbouring lanes; further rows on further lanes and warps, what is left in registers.
fn spread(shape: &Shape) -> TileLayout {
    let [rows, cols, warps] = [shape.rows, shape.cols, shape.warps].map(|x| x as u32);
    let across = (cols / 2).min(32);
    let down = (32 / across).min(rows);
    let lanes_left = 32 / across / down;
    let by_warps = warps.min(rows / down);
    let mut layout = TileLayout {
        warp: vec![
            Mode::new(0, by_warps, down),
            Mode::new(0, warps / by_warps, 0),
        ],
        lane: vec![
            Mode::new(1, across, 2),
            Mode::new(0, down, 1),
            Mode::new(0, lanes_left, 0),
        ],
        reg: vec![
            Mode::new(1, 2, 1),
            Mode::new(1, cols / 2 / across, 2 * across),
            Mode::new(0, rows / down / by_warps, down * by_warps),
        ],
        ..TileLayout::default()
    };
    for modes in [&mut layout.warp, &mut layout.lane, &mut layout.reg] {
        modes.retain(|mode| mode.extent > 1);
    }
    layout
}

/// The layout with one more dim before its own.
fn behind_one_more(layout: &TileLayout) -> TileLayout {
    let mut layout = layout.clone();
    let TileLayout {
        warp, lane, reg, ..
    } = &mut layout;
    for mode in warp.iter_mut().chain(lane).chain(reg) {
        mode.dim += 1;
    }
    layout
}
