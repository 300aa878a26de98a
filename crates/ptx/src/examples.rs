//! Mapped programs that the emitter was built on: tests assemble them, and people who write a mapping can start from them.
//!
//! | program | shows |
//! |---|---|
//! | [`add_relu_mul`] | pointwise, 16 bytes a thread at a time, tails where the size asks for them |
//! | [`mxint8_decode`] | bytes in, bf16 out, a scale for each group of 32 |
//! | [`softmax`] | a row a block in registers, two reductions over lanes and warps |
//! | [`warp_matmul`] | products of single warps: copies by threads, fragments from shared memory |
//! | [`matmul`] | warp roles: one thread feeds a ring of shared memory by tensor copies, two warpgroups multiply |

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::ir::{
    BufferMode, Form, Geometry, MmaDim, Mode, Order, Program, Space, Swizzle, TileLayout, Type,
};

/// The geometry of a block of `warps` warps.
pub fn block_of(warps: u32) -> Geometry {
    Geometry {
        lanes: 32,
        warps,
        cluster: [1; 3],
        registers: 0,
    }
}

/// A logical program placed on a block: every tile gets `layout`, replicated along dims of extent 1; scalars are replicated.
pub fn lay_out(mut program: Program, geometry: Geometry, layout: &TileLayout) -> Program {
    program.form = Form::Mapped;
    program.geometry = geometry;
    for data in program.values.values_mut() {
        let Type::Tile(tile) = &data.ty else { continue };
        let project = |modes: &[Mode], registers: bool| -> Vec<Mode> {
            let one = |mode: &Mode| {
                tile.shape
                    .get(usize::from(mode.dim))
                    .is_none_or(|extent| *extent == 1)
            };
            modes
                .iter()
                .filter(|mode| !(registers && one(mode)))
                .filter(|_| !tile.shape.is_empty())
                .map(|mode| Mode {
                    stride: if one(mode) { 0 } else { mode.stride },
                    ..*mode
                })
                .collect()
        };
        data.layout = Some(TileLayout {
            warp: project(&layout.warp, false),
            lane: project(&layout.lane, false),
            reg: project(&layout.reg, true),
            ..TileLayout::default()
        });
    }
    program
}

/// `relu(x + b) * 2` over `n` floats, `warps * 32 * 4 * vectors` a block.
pub fn add_relu_mul(n: i64, warps: u32, vectors: u32) -> Result<Program> {
    let block = i64::from(warps * 32 * 4 * vectors);
    let k = KernelBuilder::new("add_relu_mul");
    let x = k.buffer("x", DType::F32, BufferMode::Read, n).aligned(16);
    let b = k.buffer("b", DType::F32, BufferMode::Read, n).aligned(16);
    let y = k.buffer("y", DType::F32, BufferMode::Write, n).aligned(16);
    k.phase([Expr::from((n + block - 1) / block)], |k| {
        let base = k.program_id(0) * block;
        let left = k.constant(DType::I64, n) - &base;
        let at = |mem: &oxyfuel_kernel::builder::Mem| mem.at(&base).shape([block]).valid(0, &left);
        let sum = k.load(at(&x)) + k.load(at(&b));
        k.store(at(&y), sum.maximum(0.0) * 2.0);
    });
    let layout = TileLayout {
        warp: vec![Mode::new(0, warps, 128)],
        lane: vec![Mode::new(0, 32, 4)],
        reg: vec![Mode::new(0, 4, 1), Mode::new(0, vectors, 128 * warps)],
        ..TileLayout::default()
    };
    Ok(lay_out(k.finish()?, block_of(warps), &layout))
}

/// MXINT8 to bf16: groups of 32 signed bytes with one biased exponent; `m / 64 * 2^(e - 127)`. Eight values a thread, `vectors` times.
pub fn mxint8_decode(n: i64, warps: u32, vectors: u32) -> Result<Program> {
    let groups = i64::from(warps * 8 * vectors);
    let k = KernelBuilder::new("mxint8_decode");
    let m = k
        .buffer("mantissa", DType::I8, BufferMode::Read, n)
        .aligned(16);
    let e = k
        .buffer("exponent", DType::U8, BufferMode::Read, n / 32)
        .aligned(16);
    let y = k.buffer("y", DType::BF16, BufferMode::Write, n).aligned(16);
    k.phase([Expr::from((n / 32 + groups - 1) / groups)], |k| {
        let first = k.program_id(0) * groups;
        let left = k.constant(DType::I64, n / 32) - &first;
        let mantissa = k
            .load(m.at(&first * 32).shape([groups, 32]).valid(0, &left))
            .cast(DType::F32);
        let exponent = k
            .load(e.at(&first).shape([groups, 1]).valid(0, &left))
            .cast(DType::U32);
        let scale = (exponent << 23).bitcast(DType::F32) * 0.015_625;
        k.store(
            y.at(&first * 32).shape([groups, 32]).valid(0, &left),
            (mantissa * scale).cast(DType::BF16),
        );
    });
    let layout = TileLayout {
        warp: vec![Mode::new(0, warps, 8)],
        lane: vec![Mode::new(1, 4, 8), Mode::new(0, 8, 1)],
        reg: vec![Mode::new(1, 8, 1), Mode::new(0, vectors, 8 * warps)],
        ..TileLayout::default()
    };
    Ok(lay_out(k.finish()?, block_of(warps), &layout))
}

/// Softmax along rows of `cols`, a row a block; exponentials by the hardware's power of two.
pub fn softmax(dtype: DType, rows: i64, cols: i64, warps: u32) -> Result<Program> {
    let k = KernelBuilder::new("softmax");
    let x = k
        .buffer("x", dtype, BufferMode::Read, rows * cols)
        .aligned(16);
    let y = k
        .buffer("y", dtype, BufferMode::Write, rows * cols)
        .aligned(16);
    k.phase([Expr::from(rows)], |k| {
        let base = k.program_id(0) * cols;
        let t = k.load(x.at(&base).shape([1, cols])).cast(DType::F32);
        let e = ((&t - t.max(1)) * std::f64::consts::LOG2_E).exp2();
        let scale = e.sum(1).recip();
        k.store(y.at(&base).shape([1, cols]), (e * scale).cast(dtype));
    });
    let vector = 16 / dtype.size() as u32;
    let reg = u32::try_from(cols)
        .unwrap_or(u32::MAX)
        .div_ceil(32 * warps * vector);
    let layout = TileLayout {
        warp: vec![Mode::new(1, warps, 32 * vector)],
        lane: vec![Mode::new(1, 32, vector)],
        reg: vec![
            Mode::new(1, vector, 1),
            Mode::new(1, reg, 32 * vector * warps),
        ],
        ..TileLayout::default()
    };
    Ok(lay_out(k.finish()?, block_of(warps), &layout))
}

/// `c = a @ b` in bf16 for row-major `[m, k]` and `[k, n]` on warpgroup products: blocks of 128 by 256, a ring of `stages` slices of 64 along the
/// depth. `m`, `n` and `depth` are multiples of these.
pub fn matmul(m: i64, n: i64, depth: i64, stages: i64, group: u32) -> Result<Program> {
    const BM: i64 = 128;
    const BN: i64 = 256;
    const BK: i64 = 64;
    let bf = DType::BF16;
    let swizzle = Some(Swizzle::B128);
    let k = KernelBuilder::mapped("matmul", block_of(12));
    let a = k.buffer("a", bf, BufferMode::Read, m * depth).aligned(16);
    let b = k.buffer("b", bf, BufferMode::Read, depth * n).aligned(16);
    let c = k.buffer("c", bf, BufferMode::Write, m * n).aligned(16);
    let e = Expr::from;
    let map_a = k.tensor_map(
        "map_a",
        &a,
        [e(m), e(depth)],
        [e(depth), e(1)],
        [BM, BK],
        swizzle,
    );
    let map_b = k.tensor_map(
        "map_b",
        &b,
        [e(depth), e(n)],
        [e(n), e(1)],
        [BK, 64],
        swizzle,
    );
    let map_c = k.tensor_map("map_c", &c, [e(m), e(n)], [e(n), e(1)], [BM, 64], swizzle);
    // The accumulator as the unit leaves it, on two warpgroups one under the other; and the same registers seen as boxes of 64 columns.
    let acc_layout = TileLayout {
        warp: vec![Mode::new(0, 4, 16), Mode::new(0, 2, 64)],
        lane: vec![Mode::new(1, 4, 2), Mode::new(0, 8, 1)],
        reg: vec![Mode::new(1, 2, 1), Mode::new(0, 2, 8), Mode::new(1, 32, 8)],
        ..TileLayout::default()
    };
    let box_layout = TileLayout {
        lane: vec![Mode::new(2, 4, 2), Mode::new(0, 8, 1)],
        reg: vec![
            Mode::new(2, 2, 1),
            Mode::new(0, 2, 8),
            Mode::new(2, 8, 8),
            Mode::new(1, 4, 1),
        ],
        ..acc_layout.clone()
    };
    k.phase_ordered([e(m / BM), e(n / BN)], Order::Grouped { group }, |k| {
        let ring_a = k.alloc(Space::Shared, bf, stages * BM * BK, swizzle);
        let ring_b = k.alloc(Space::Shared, bf, stages * BK * BN, swizzle);
        let out = k.alloc(Space::Shared, bf, BM * BN, swizzle);
        let full = k.alloc(Space::Shared, DType::U64, stages, None);
        let empty = k.alloc(Space::Shared, DType::U64, stages, None);
        for stage in 0..stages {
            k.barrier_init(full.slot(k, stage), 1);
            k.barrier_init(empty.slot(k, stage), 8);
        }
        k.sync();
        let (row, col) = (k.program_id(0) * BM, k.program_id(1) * BN);
        k.roles(|roles| {
            roles.role("producer", 0, 4, 40, |k| {
                k.for_range(0, depth / BK, 1, [], |k, at, []| {
                    let stage = at.modulo(stages);
                    let parity = (at.floordiv(stages).modulo(2) ^ 1).cast(DType::I32);
                    k.barrier_wait(empty.slot(k, &stage), &parity);
                    let barrier = full.slot(k, &stage);
                    k.barrier_arrive(barrier, Some((BM * BK + BK * BN) * 2));
                    let depth_at = &at * BK;
                    k.tensor_load(
                        &map_a,
                        [&row, &depth_at],
                        &ring_a,
                        &stage * (BM * BK),
                        barrier,
                    );
                    for j in 0..BN / 64 {
                        k.tensor_load(
                            &map_b,
                            [&depth_at, &(&col + 64 * j)],
                            &ring_b,
                            &stage * (BK * BN) + j * BK * 64,
                            barrier,
                        );
                    }
                    []
                });
            });
            roles.role("consumers", 4, 8, 232, |k| {
                let zero = k
                    .full(DType::F32, [BM, BN], 0.0)
                    .with_layout(acc_layout.clone());
                let [acc] = k.for_range(0, depth / BK, 1, [zero], |k, at, [acc]| {
                    let stage = at.modulo(stages);
                    let parity = at.floordiv(stages).modulo(2).cast(DType::I32);
                    k.barrier_wait(full.slot(k, &stage), &parity);
                    let wa = ring_a
                        .at(&stage * (BM * BK))
                        .shape([BM, BK])
                        .operand([MmaDim::Side, MmaDim::K]);
                    let wb = ring_b
                        .at(&stage * (BK * BN))
                        .shape([BK, BN / 64, 64])
                        .strides([64i64, BK * 64, 1])
                        .operand([MmaDim::K, MmaDim::Side, MmaDim::Side]);
                    let acc = k.mma(wa, wb, &acc, true);
                    k.mma_commit();
                    let [acc] = k.mma_wait(1, [acc]);
                    // The products of the slice before this one are done with its memory.
                    k.when(&at.gt(0), |k| {
                        let before = (&at - 1).modulo(stages);
                        k.barrier_arrive_per_warp(empty.slot(k, &before));
                    });
                    [acc]
                });
                let [acc] = k.mma_wait(0, [acc]);
                let boxes = acc
                    .cast(bf)
                    .reshape([BM, BN / 64, 64])
                    .with_layout(box_layout.clone());
                k.store(
                    out.at(0)
                        .shape([BM, BN / 64, 64])
                        .strides([64i64, BM * 64, 1]),
                    boxes,
                );
                k.fence_async();
                k.sync();
                for j in 0..BN / 64 {
                    k.tensor_store(&map_c, [&row, &(&col + 64 * j)], &out, j * BM * 64);
                }
                k.copy_commit();
                k.copy_wait(0);
            });
        });
    });
    k.finish()
}

/// `c = a @ b` for row-major bf16 `[m, k]` and `[k, n]` with f32 results, on products of single warps: blocks of 64 by 64 on four warps, slices of 32
/// along the depth. `m`, `n` and `depth` are multiples of these.
pub fn warp_matmul(m: i64, n: i64, depth: i64) -> Result<Program> {
    const BLOCK: i64 = 64;
    const SLICE: i64 = 32;
    let bf = DType::BF16;
    let k = KernelBuilder::mapped("warp_matmul", block_of(4));
    let a = k.buffer("a", bf, BufferMode::Read, m * depth).aligned(16);
    let b = k.buffer("b", bf, BufferMode::Read, depth * n).aligned(16);
    let c = k
        .buffer("c", DType::F32, BufferMode::Write, m * n)
        .aligned(16);
    let acc_layout = TileLayout {
        warp: vec![Mode::new(0, 2, 32), Mode::new(1, 2, 32)],
        lane: vec![Mode::new(1, 4, 2), Mode::new(0, 8, 1)],
        reg: vec![
            Mode::new(1, 2, 1),
            Mode::new(0, 2, 8),
            Mode::new(1, 4, 8),
            Mode::new(0, 2, 16),
        ],
        ..TileLayout::default()
    };
    let e = Expr::from;
    k.phase([e(m / BLOCK), e(n / BLOCK)], |k| {
        let part_a = k.alloc(Space::Shared, bf, BLOCK * SLICE, None);
        let part_b = k.alloc(Space::Shared, bf, SLICE * BLOCK, None);
        let (row, col) = (k.program_id(0) * BLOCK, k.program_id(1) * BLOCK);
        let zero = k
            .full(DType::F32, [BLOCK, BLOCK], 0.0)
            .with_layout(acc_layout.clone());
        let [acc] = k.for_range(0, depth, SLICE, [zero], |k, at, [acc]| {
            let (shape_a, shape_b) = ([BLOCK, SLICE], [SLICE, BLOCK]);
            k.copy_async(
                a.at(&row * depth + &at)
                    .shape(shape_a)
                    .strides([depth, 1i64]),
                part_a.at(0).shape(shape_a),
            );
            k.copy_async(
                b.at(&at * n + &col).shape(shape_b).strides([n, 1i64]),
                part_b.at(0).shape(shape_b),
            );
            k.copy_commit();
            k.copy_wait(0);
            k.sync();
            let acc = k.mma(
                part_a
                    .at(0)
                    .shape(shape_a)
                    .operand([MmaDim::Side, MmaDim::K]),
                part_b
                    .at(0)
                    .shape(shape_b)
                    .operand([MmaDim::K, MmaDim::Side]),
                &acc,
                false,
            );
            k.sync();
            [acc]
        });
        k.store(
            c.at(&row * n + &col)
                .shape([BLOCK, BLOCK])
                .strides([n, 1i64]),
            acc,
        );
    });
    k.finish()
}
