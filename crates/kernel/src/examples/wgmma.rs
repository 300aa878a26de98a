//! A warp-specialised matrix product for a GPU with warpgroup products and a copy engine.

use oxyfuel_base::{DType, Expr, Result, Symbol};

use crate::builder::{KernelBuilder, Tile};
use crate::ir::{BufferMode, Geometry, MmaDim, Mode, Order, Program, Space, Swizzle, TileLayout};

/// Rows that one warpgroup multiplies.
const GROUP_ROWS: i64 = 64;
/// Elements of a swizzled row of 128 bytes.
const ROW: i64 = 64;

/// How sums leave the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Each lane writes its pairs.
    Direct,
    /// Through shared memory and the copy engine.
    Staged,
}

/// The shape of one instance.
#[derive(Clone, Copy, Debug)]
pub struct WgmmaTile {
    /// Consumer warpgroups, 64 rows each.
    pub consumers: u32,
    /// Columns, a multiple of 64 up to 256.
    pub columns: i64,
    pub stages: i64,
    /// Steps along the rows for each step along the columns.
    pub group: u32,
    pub epilogue: Epilogue,
}

impl WgmmaTile {
    /// What suits large products on an H100 or H200.
    pub const LARGE: Self = Self {
        consumers: 2,
        columns: 256,
        stages: 4,
        group: 8,
        epilogue: Epilogue::Direct,
    };
}

/// 64 rows over 4 warps; lanes 8 down and 4 across; pairs of columns.
fn accumulator(columns: i64) -> TileLayout {
    let repeats = u32::try_from(columns / 8).unwrap_or(1);
    TileLayout {
        warp: vec![Mode::new(0, 4, 16)],
        lane: vec![Mode::new(1, 4, 2), Mode::new(0, 8, 1)],
        reg: vec![
            Mode::new(1, 2, 1),
            Mode::new(0, 2, 8),
            Mode::new(1, repeats, 8),
        ],
        ..TileLayout::default()
    }
}

/// The same under `[64, columns / 64, 64]`.
fn accumulator_in_rows(columns: i64) -> TileLayout {
    let blocks = u32::try_from(columns / ROW).unwrap_or(1);
    TileLayout {
        warp: vec![Mode::new(0, 4, 16)],
        lane: vec![Mode::new(2, 4, 2), Mode::new(0, 8, 1)],
        reg: vec![
            Mode::new(2, 2, 1),
            Mode::new(0, 2, 8),
            Mode::new(2, 8, 8),
            Mode::new(1, blocks, 1),
        ],
        ..TileLayout::default()
    }
}

/// `c = a @ b` for row-major bf16 `[m, k]` and `[k, n]`, f32 sums, bf16 result. Symbols: m s0, n s1, k s2; any sizes whose rows are multiples of 16 bytes.
///
/// Warp 0 only copies: boxes of 64 rows of 64 elements into a ring of stages, each guarded by a *full* barrier (the copies' bytes) and an *empty* barrier (one arrival of each consumer). Consumers
/// multiply straight from shared memory, keep one group of products in flight, and hand a stage back when the group after it has started.
pub fn wgmma_matmul(tile: WgmmaTile) -> Result<Program> {
    let WgmmaTile {
        consumers,
        columns,
        stages,
        group,
        epilogue,
    } = tile;
    let rows = GROUP_ROWS * i64::from(consumers);
    let k = KernelBuilder::mapped(
        "wgmma_matmul",
        Geometry {
            lanes: 32,
            warps: 4 + 4 * consumers,
            cluster: [1; 3],
            registers: 168,
        },
    );
    let (m, n, depth) = (
        k.symbol("m", Symbol(0)),
        k.symbol("n", Symbol(1)),
        k.symbol("k", Symbol(2)),
    );
    let a = k
        .buffer("a", DType::BF16, BufferMode::Read, m.expr() * depth.expr())
        .aligned(16);
    let b = k
        .buffer("b", DType::BF16, BufferMode::Read, depth.expr() * n.expr())
        .aligned(16);
    let c = k
        .buffer("c", DType::BF16, BufferMode::Write, m.expr() * n.expr())
        .aligned(16);
    let boxed = [GROUP_ROWS, ROW];
    let swizzle = Some(Swizzle::B128);
    let map_a = k.tensor_map(
        "map_a",
        &a,
        [m.expr(), depth.expr()],
        [depth.expr(), Expr::ONE],
        boxed,
        swizzle,
    );
    let map_b = k.tensor_map(
        "map_b",
        &b,
        [depth.expr(), n.expr()],
        [n.expr(), Expr::ONE],
        boxed,
        swizzle,
    );
    let map_c = match epilogue {
        Epilogue::Direct => None,
        Epilogue::Staged => Some(k.tensor_map(
            "map_c",
            &c,
            [m.expr(), n.expr()],
            [n.expr(), Expr::ONE],
            boxed,
            swizzle,
        )),
    };

    // A box is 64 by 64 elements: a stage holds one for each consumer of `a`, and one for each 64 columns of `b`.
    let box_len = GROUP_ROWS * ROW;
    let (stage_a, stage_b) = (box_len * i64::from(consumers), box_len * (columns / ROW));
    let grid: [Expr; 2] = [m.expr().ceildiv(rows), n.expr().ceildiv(columns)];
    k.phase_ordered(grid, Order::Grouped { group }, |k| {
        let shared_a = k.alloc(Space::Shared, DType::BF16, stages * stage_a, swizzle);
        let shared_b = k.alloc(Space::Shared, DType::BF16, stages * stage_b, swizzle);
        let shared_c = map_c.as_ref().map(|_| {
            k.alloc(
                Space::Shared,
                DType::BF16,
                i64::from(consumers) * stage_b,
                swizzle,
            )
        });
        let full = k.alloc(Space::Shared, DType::U64, stages, None);
        let empty = k.alloc(Space::Shared, DType::U64, stages, None);
        for slot in 0..stages {
            k.barrier_init(full.slot(k, slot), 1);
            k.barrier_init(empty.slot(k, slot), consumers);
        }
        k.sync();
        let (row, col) = (k.program_id(0) * rows, k.program_id(1) * columns);
        let steps = (depth.tile() + (ROW - 1)).floordiv(ROW);
        // Which slot of the ring a step uses, and the parity of its full barrier's phase.
        let ring = |step: &Tile| {
            (
                step.modulo(stages),
                step.floordiv(stages).modulo(2).cast(DType::I32),
            )
        };

        k.roles(|list| {
            list.role("producer", 0, 1, 40, |k| {
                k.for_range(0, &steps, 1, [], |k, step, []| {
                    let (slot, parity) = ring(&step);
                    k.barrier_wait(empty.slot(k, &slot), &(1 - parity));
                    k.barrier_arrive(full.slot(k, &slot), Some((stage_a + stage_b) * 2));
                    let at_k = &step * ROW;
                    let (to_a, to_b) = (&slot * stage_a, &slot * stage_b);
                    for part in 0..i64::from(consumers) {
                        let from = [&row + part * GROUP_ROWS, at_k.clone()];
                        k.tensor_load(
                            &map_a,
                            from,
                            &shared_a,
                            &to_a + part * box_len,
                            full.slot(k, &slot),
                        );
                    }
                    for part in 0..columns / ROW {
                        let from = [at_k.clone(), &col + part * ROW];
                        k.tensor_load(
                            &map_b,
                            from,
                            &shared_b,
                            &to_b + part * box_len,
                            full.slot(k, &slot),
                        );
                    }
                    []
                });
            });
            for consumer in 0..consumers {
                let own = i64::from(consumer);
                list.role(
                    &format!("consumer{consumer}"),
                    4 + 4 * consumer,
                    4,
                    232,
                    |k| {
                        let zero = k
                            .full(DType::F32, [GROUP_ROWS, columns], 0.0)
                            .with_layout(accumulator(columns));
                        let [sum] = k.for_range(0, &steps, 1, [zero], |k, step, [acc]| {
                            let (slot, parity) = ring(&step);
                            k.barrier_wait(full.slot(k, &slot), &parity);
                            let part_a = shared_a
                                .at(&slot * stage_a + own * box_len)
                                .shape([GROUP_ROWS, ROW])
                                .operand([MmaDim::Side, MmaDim::K]);
                            let part_b = shared_b
                                .at(&slot * stage_b)
                                .shape([ROW, columns / ROW, ROW])
                                .strides([ROW, box_len, 1])
                                .operand([MmaDim::K, MmaDim::Side, MmaDim::Side]);
                            let sum = k.mma(part_a, part_b, &acc, true);
                            k.mma_commit();
                            let [sum] = k.mma_wait(1, [sum]);
                            k.when(&step.gt(0), |k| {
                                k.barrier_arrive(empty.slot(k, (&step - 1).modulo(stages)), None)
                            });
                            [sum]
                        });
                        let [sum] = k.mma_wait(0, [sum]);
                        let first = &row + own * GROUP_ROWS;
                        match (&map_c, &shared_c) {
                            (Some(map_c), Some(shared_c)) => {
                                let blocks = columns / ROW;
                                let out = sum
                                    .cast(DType::BF16)
                                    .reshape([GROUP_ROWS, blocks, ROW])
                                    .with_layout(accumulator_in_rows(columns));
                                k.store(
                                    shared_c
                                        .at(own * stage_b)
                                        .shape([GROUP_ROWS, blocks, ROW])
                                        .strides([ROW, box_len, 1]),
                                    out,
                                );
                                k.fence_async();
                                k.sync();
                                for part in 0..blocks {
                                    k.tensor_store(
                                        map_c,
                                        [first.clone(), &col + part * ROW],
                                        shared_c,
                                        own * stage_b + part * box_len,
                                    );
                                }
                                k.copy_commit();
                                k.copy_wait(0);
                            }
                            (None, _) | (Some(_), None) => {
                                let (rows_left, cols_left) = (m.tile() - &first, n.tile() - &col);
                                let to = &first * n.tile() + &col;
                                let window = c
                                    .at(&to)
                                    .shape([GROUP_ROWS, columns])
                                    .stride(0, n.tile())
                                    .valid(0, &rows_left)
                                    .valid(1, &cols_left);
                                k.store(window, sum.cast(DType::BF16));
                            }
                        }
                    },
                );
            }
        });
    });
    k.finish()
}
