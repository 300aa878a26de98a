//! A matrix product on a GPU with warp-group products and a copy engine: one warp group fetches, two multiply.
//!
//! ```text
//!   producer    wait empty[s] -> announce bytes on full[s] -> copy a box of a and of b into stage s
//!   consumers   wait full[s] -> multiply from shared memory -> arrive on empty[s] one step later
//!               ... after the last step: the work on the result in registers, then out through shared memory or straight
//! ```
//!
//! Boxes beyond an edge read as zeros and are dropped when written, so that no extent needs to divide; rows must start at multiples of 16 bytes, which the copy engine asks for.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{
    BinaryOp, Geometry, MmaDim, MmaOperand, Mode, Op, Order, Space, Swizzle, TileLayout, Type,
};
use oxyfuel_plan::{MatrixUnit, TargetDesc};

use crate::direct::Product;
use crate::nest::Nest;
use crate::rows::{Frame, left};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

/// Bytes of a swizzled row of shared memory.
const ROW_BYTES: i64 = 128;
/// Warps of the group that fetches.
const PRODUCER_WARPS: u32 = 4;
/// Groups that multiply, one under the other.
const CONSUMERS: i64 = 2;
/// Registers a thread of each role asks for: together they are what a block of three groups has.
const PRODUCER_REGISTERS: u32 = 40;
const CONSUMER_REGISTERS: u32 = 232;
/// Block rows for each step along the columns, so that neighbours share operands in the cache.
const GROUP: u32 = 16;
/// Steps of the depth in flight, where shared memory has room for them.
const MOST_STAGES: i64 = 4;

struct Shape {
    rows: i64,
    cols: i64,
    /// Depth of one stage: a swizzled row.
    depth: i64,
    /// The columns of `b` are contiguous (row-major `[k, n]`); otherwise its depth is.
    b_by_columns: bool,
    stages: i64,
    warps: u32,
}

/// Builds the program, or says why this product is not for it. Tensor maps follow the buffers as parameters: `a`, `b`, and the result where it leaves by the copy engine.
pub fn warps(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    let unit = target
        .group_unit(product.a.dtype, product.b.dtype, product.acc)
        .ok_or_else(|| {
            err!(
                NoLowering,
                "this machine has no warp-group product of {} and {}",
                product.a.dtype,
                product.b.dtype
            )
        })?;
    let shape = choose(product, unit, target)?;
    let starts = [product.a.buffer, product.b.buffer];
    ensure!(
        starts
            .iter()
            .all(|&b| nest.buffers[b].align.is_multiple_of(16)),
        NoLowering,
        "an operand is not known to start at a multiple of 16 bytes"
    );
    let dtype = product.a.dtype;
    let size = dtype.size() as i64;
    let (rows, cols, depth) = (shape.rows, shape.cols, shape.depth);
    let swizzle = Some(Swizzle::B128);
    let all_warps = PRODUCER_WARPS + shape.warps;
    let geometry = Geometry {
        lanes: target.warp_lanes,
        warps: all_warps,
        cluster: [1; 3],
        registers: 0,
    };
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let mems = &params.mems;
    let e = Expr::constant;
    let (a, b) = (&mems[product.a.buffer], &mems[product.b.buffer]);
    let map_a = k.tensor_map(
        "map_a",
        a,
        [e(product.m), e(product.k)],
        [e(product.a.strides[0]), e(1)],
        [rows, depth],
        swizzle,
    );
    let map_b = if shape.b_by_columns {
        k.tensor_map(
            "map_b",
            b,
            [e(product.k), e(product.n)],
            [e(product.b.strides[0]), e(1)],
            [depth, depth],
            swizzle,
        )
    } else {
        k.tensor_map(
            "map_b",
            b,
            [e(product.n), e(product.k)],
            [e(product.b.strides[1]), e(1)],
            [cols, depth],
            swizzle,
        )
    };
    let staged = staged_store(nest, size).then(|| &nest.stores[0]);
    let map_c = staged.map(|store| {
        let strides = &store.window.strides;
        k.tensor_map(
            "map_c",
            &mems[store.window.buffer],
            [e(product.m), e(product.n)],
            [strides[0].clone(), e(1)],
            [rows, depth],
            swizzle,
        )
    });

    let acc_layout = accumulator(cols, shape.warps);
    for small in [[rows, cols], [1, cols], [rows, 1]] {
        k.layout_shape(small, restricted(&acc_layout, &small));
    }
    let steps = ceil_div(product.k, depth);
    let grid = [ceil_div(product.m, rows), ceil_div(product.n, cols)];
    k.phase_ordered(grid.map(e), Order::Grouped { group: GROUP }, |k| {
        let ring_a = k.alloc(Space::Shared, dtype, shape.stages * rows * depth, swizzle);
        let ring_b = k.alloc(Space::Shared, dtype, shape.stages * depth * cols, swizzle);
        // The result leaves through the stages of `b`, when everyone is done with them.
        let out = map_c.as_ref().map(|_| &ring_b);
        let full = k.alloc(Space::Shared, DType::U64, shape.stages, None);
        let empty = k.alloc(Space::Shared, DType::U64, shape.stages, None);
        for stage in 0..shape.stages {
            k.barrier_init(full.slot(k, stage), 1);
            k.barrier_init(empty.slot(k, stage), shape.warps);
        }
        k.sync();
        let (row_block, col_block) = (k.program_id(0), k.program_id(1));
        let (row, col) = (&row_block * rows, &col_block * cols);
        k.roles(|roles| {
            roles.role("producer", 0, PRODUCER_WARPS, PRODUCER_REGISTERS, |k| {
                k.for_range(0, steps, 1, [], |k, step, []| {
                    let stage = step.binary(BinaryOp::Mod, shape.stages);
                    let parity = (step
                        .binary(BinaryOp::FloorDiv, shape.stages)
                        .binary(BinaryOp::Mod, 2i64)
                        .binary(BinaryOp::Xor, 1i64))
                    .cast(DType::I32);
                    k.barrier_wait(empty.slot(k, &stage), &parity);
                    let barrier = full.slot(k, &stage);
                    k.barrier_arrive(barrier, Some((rows + cols) * depth * size));
                    let at = &step * depth;
                    k.tensor_load(
                        &map_a,
                        [&row, &at],
                        &ring_a,
                        &stage * (rows * depth),
                        barrier,
                    );
                    let b_stage = &stage * (depth * cols);
                    if shape.b_by_columns {
                        for j in 0..cols / depth {
                            k.tensor_load(
                                &map_b,
                                [&at, &(&col + j * depth)],
                                &ring_b,
                                &b_stage + j * depth * depth,
                                barrier,
                            );
                        }
                    } else {
                        k.tensor_load(&map_b, [&col, &at], &ring_b, &b_stage, barrier);
                    }
                    []
                });
            });
            roles.role(
                "consumers",
                PRODUCER_WARPS,
                shape.warps,
                CONSUMER_REGISTERS,
                |k| {
                    let zero = k.constant(product.acc, 0);
                    let made = k.append(
                        Op::Splat { value: zero.val() },
                        &[Type::tile(product.acc, &[rows, cols])],
                    );
                    let acc = k.tile(made.first().copied().unwrap_or(zero.val()));
                    let [acc] = k.for_range(0, steps, 1, [acc], |k, step, [acc]| {
                        let stage = step.binary(BinaryOp::Mod, shape.stages);
                        let parity = step
                            .binary(BinaryOp::FloorDiv, shape.stages)
                            .binary(BinaryOp::Mod, 2i64)
                            .cast(DType::I32);
                        k.barrier_wait(full.slot(k, &stage), &parity);
                        let a = ring_a
                            .at(&(&stage * (rows * depth)))
                            .shape([rows, depth])
                            .operand([MmaDim::Side, MmaDim::K]);
                        let b = b_operand(&ring_b, &stage, &shape);
                        let acc = k.mma(a, b, &acc, true);
                        k.mma_commit();
                        let [acc] = k.mma_wait(1, [acc]);
                        // The products of the step before are done with their memory.
                        k.when(
                            &step.compare(oxyfuel_kernel::ir::CompareOp::Gt, 0i64),
                            |k| {
                                let before = (&step - 1i64).binary(BinaryOp::Mod, shape.stages);
                                k.barrier_arrive_per_warp(empty.slot(k, &before));
                            },
                        );
                        [acc]
                    });
                    let [sum] = k.mma_wait(0, [acc]);
                    let mut finish = Finish {
                        k,
                        params: &params,
                        nest,
                        product,
                        block: [rows, cols],
                    };
                    match (&map_c, out) {
                        (Some(map), Some(out)) => {
                            let tile =
                                finish.value(&row_block, &col_block, sum, nest.stores[0].value);
                            let boxes = tile
                                .reshape([rows, cols / depth, depth])
                                .with_layout(in_boxes(&acc_layout, depth));
                            k.sync();
                            k.store(
                                out.at(0).shape([rows, cols / depth, depth]).strides([
                                    depth,
                                    rows * depth,
                                    1,
                                ]),
                                &boxes,
                            );
                            k.fence_async();
                            k.sync();
                            for j in 0..cols / depth {
                                k.tensor_store(
                                    map,
                                    [&row, &(&col + j * depth)],
                                    out,
                                    j * rows * depth,
                                );
                            }
                            k.copy_commit();
                            k.copy_wait(0);
                        }
                        _ => finish.store_all(&row_block, &col_block, sum),
                    }
                },
            );
        });
    });
    k.finish()
}

fn choose(product: &Product, unit: &MatrixUnit, target: &TargetDesc) -> Result<Shape> {
    let size = product.a.dtype.size() as i64;
    let depth = ROW_BYTES / size;
    let b_by_columns = product.b.strides[1] == 1;
    ensure!(
        product.m > 1 && product.n > 1,
        NoLowering,
        "a product of {} by {} is no work for blocks",
        product.m,
        product.n
    );
    ensure!(
        product.batch == 1,
        NoLowering,
        "batched products are not warp-specialised yet"
    );
    ensure!(
        product.a.strides[1] == 1,
        NoLowering,
        "the left operand is transposed"
    );
    ensure!(
        b_by_columns || product.b.strides[0] == 1,
        NoLowering,
        "the right operand is strided along both dims"
    );
    let pitch = [
        product.a.strides[0],
        if b_by_columns {
            product.b.strides[0]
        } else {
            product.b.strides[1]
        },
    ];
    let aligned = pitch.iter().all(|&stride| stride * size % 16 == 0)
        && product.a.base == 0
        && product.b.base == 0;
    ensure!(
        aligned,
        NoLowering,
        "rows of an operand do not start at multiples of 16 bytes"
    );
    let cols = if product.n > 128 {
        i64::from(unit.n)
    } else {
        128
    };
    let rows = i64::from(unit.m) * CONSUMERS;
    // Barriers and alignment need a little.
    let room = i64::from(target.shared_bytes) - 2048;
    let stages = (room / ((rows + cols) * depth * size)).min(MOST_STAGES);
    ensure!(
        stages >= 2 && stages * depth >= rows,
        NoLowering,
        "{} bytes of shared memory hold no ring of stages",
        target.shared_bytes
    );
    Ok(Shape {
        rows,
        cols,
        depth,
        b_by_columns,
        stages,
        warps: unit.warps * CONSUMERS as u32,
    })
}

fn b_operand(ring: &Mem, stage: &Tile, shape: &Shape) -> MmaOperand {
    let (cols, depth) = (shape.cols, shape.depth);
    let at = ring.at(&(stage * (depth * cols)));
    if shape.b_by_columns {
        at.shape([depth, cols / depth, depth])
            .strides([depth, depth * depth, 1])
            .operand([MmaDim::K, MmaDim::Side, MmaDim::Side])
    } else {
        at.shape([cols, depth]).operand([MmaDim::Side, MmaDim::K])
    }
}

/// Whether the only thing stored is the block itself, in rows that the copy engine can write.
fn staged_store(nest: &Nest, size: i64) -> bool {
    let [store] = nest.stores.as_slice() else {
        return false;
    };
    let strides = &store.window.strides;
    let value = &nest.values[store.value];
    nest.rank() == 2
        && strides[1].is_const(1)
        && strides[0]
            .as_const()
            .is_some_and(|stride| stride * size % 16 == 0)
        && store.window.base.is_const(0)
        && value.dtype.size() as i64 == size
}

/// As the unit leaves its sums: 16 rows a warp, lanes 8 down and 4 across, pairs of columns.
fn accumulator(cols: i64, warps: u32) -> TileLayout {
    let mode = |dim, extent, stride| Mode {
        dim,
        extent,
        stride,
    };
    TileLayout {
        warp: vec![mode(0, 4, 16), mode(0, warps / 4, 64)],
        lane: vec![mode(1, 4, 2), mode(0, 8, 1)],
        reg: vec![
            mode(1, 2, 1),
            mode(0, 2, 8),
            mode(1, u32::try_from(cols / 8).unwrap_or(1), 8),
        ],
        ..TileLayout::default()
    }
}

/// The same registers under `[rows, cols / width, width]`.
fn in_boxes(layout: &TileLayout, width: i64) -> TileLayout {
    let width = u32::try_from(width).unwrap_or(1);
    let mode = |dim, extent, stride| Mode {
        dim,
        extent,
        stride,
    };
    let blocks = layout.reg[2].extent * 8 / width;
    TileLayout {
        warp: layout.warp.clone(),
        lane: vec![mode(2, 4, 2), mode(0, 8, 1)],
        reg: vec![
            mode(2, 2, 1),
            mode(0, 2, 8),
            mode(2, width / 8, 8),
            mode(1, blocks, 1),
        ],
        ..TileLayout::default()
    }
}

/// The layout of a tile with extent 1 along some dims: what it does not vary over is replicated.
pub fn restricted(layout: &TileLayout, shape: &[i64]) -> TileLayout {
    let still = |mode: &Mode| shape[usize::from(mode.dim)] == 1;
    let replicate = |modes: &[Mode]| {
        modes
            .iter()
            .map(|mode| {
                if still(mode) {
                    Mode { stride: 0, ..*mode }
                } else {
                    *mode
                }
            })
            .collect()
    };
    TileLayout {
        cluster: Vec::new(),
        warp: replicate(&layout.warp),
        lane: replicate(&layout.lane),
        reg: layout
            .reg
            .iter()
            .filter(|mode| !still(mode))
            .copied()
            .collect(),
        matrix: false,
    }
}

/// The work on the result of one block.
pub struct Finish<'a> {
    pub k: &'a KernelBuilder,
    pub params: &'a Params,
    pub nest: &'a Nest,
    pub product: &'a Product,
    /// Rows and columns of a block.
    pub block: [i64; 2],
}

impl Finish<'_> {
    fn run(&mut self, row: &Tile, col: &Tile, sum: Tile, then: impl FnOnce(&mut Frame<'_>)) {
        let [rows, cols] = self.block;
        let tiling = Tiling::of(vec![rows, cols]);
        let position = vec![Some(row.clone()), Some(col.clone())];
        let start = vec![Some(row * rows), Some(col * cols)];
        let rest = vec![
            left(row, rows, self.product.m),
            left(col, cols, self.product.n),
        ];
        let mut frame = Frame::place(
            self.k,
            self.params,
            self.nest,
            &tiling,
            position,
            start,
            rest,
        );
        frame.give(0, sum);
        for node in 0..self.nest.values.len() {
            frame.value(node);
        }
        then(&mut frame);
    }

    fn value(&mut self, row: &Tile, col: &Tile, sum: Tile, node: usize) -> Tile {
        let mut result = sum.clone();
        self.run(row, col, sum, |frame| result = frame.get(node));
        result
    }

    pub fn store_all(&mut self, row: &Tile, col: &Tile, sum: Tile) {
        let nest = self.nest;
        self.run(row, col, sum, |frame| {
            for store in &nest.stores {
                frame.store(store.value, &store.window);
            }
        });
    }
}
