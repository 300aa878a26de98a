//! A matrix product for a CPU's tile unit.

use oxyfuel_base::{DType, Expr, Result, Symbol};

use crate::builder::KernelBuilder;
use crate::ir::{BufferMode, Geometry, MmaDim, Mode, Program, TileLayout};

/// Rows, columns and depth of what one instance multiplies at a time: two by two tile registers of 16 rows by 16 floats, fed by two rows of 32 pairs.
const BLOCK: i64 = 32;

/// Two by two matrix registers of 16 rows: rows of one register first, then registers across, then down.
fn accumulator() -> TileLayout {
    TileLayout {
        lane: vec![Mode::new(1, 16, 1)],
        reg: vec![
            Mode::new(0, 16, 1),
            Mode::new(1, 2, 16),
            Mode::new(0, 2, 16),
        ],
        matrix: true,
        ..TileLayout::default()
    }
}

/// `c = a @ b` for row-major bf16 `[m, k]` and `[k, n]`, f32 sums. Symbols: m s0, n s1, k s2, all multiples of 32.
///
/// The first phase packs `b` into panels of 32 columns in which pairs along the depth lie beside each other, `[n / 32, k / 2, 32, 2]`: what the tile unit multiplies with. The second
/// computes a block of `c` an instance, in bands of 4 rows of blocks, with `a` from where it lies.
pub fn amx_matmul() -> Result<Program> {
    let k = KernelBuilder::mapped(
        "amx_matmul",
        Geometry {
            lanes: 16,
            warps: 1,
            cluster: [1; 3],
            registers: 0,
        },
    );
    let (m, n, depth) = (
        k.symbol("m", Symbol(0)),
        k.symbol("n", Symbol(1)),
        k.symbol("k", Symbol(2)),
    );
    let a = k
        .buffer("a", DType::BF16, BufferMode::Read, m.expr() * depth.expr())
        .aligned(64);
    let b = k
        .buffer("b", DType::BF16, BufferMode::Read, depth.expr() * n.expr())
        .aligned(64);
    let c = k
        .buffer("c", DType::F32, BufferMode::Write, m.expr() * n.expr())
        .aligned(64);
    let packed = k
        .buffer(
            "packed",
            DType::BF16,
            BufferMode::Workspace,
            depth.expr() * n.expr(),
        )
        .aligned(64);

    let grid: [Expr; 2] = [depth.expr().floordiv(BLOCK), n.expr().floordiv(BLOCK)];
    k.phase(grid, |k| {
        let (at_k, panel) = (k.program_id(0) * BLOCK, k.program_id(1));
        let from = &at_k * n.tile() + &panel * BLOCK;
        let rows = k
            .load(b.at(&from).shape([BLOCK, BLOCK]).stride(0, n.tile()))
            .with_layout(TileLayout::rows(&[BLOCK, BLOCK], 16));
        let pairs = rows
            .reshape([BLOCK / 2, 2, BLOCK])
            .with_layout(TileLayout::rows(&[BLOCK / 2, 2, BLOCK], 16));
        let interleaved = pairs
            .permute([0, 2, 1])
            .with_layout(TileLayout::rows(&[BLOCK / 2, 2, BLOCK], 16).permuted(&[0, 2, 1]));
        let to = (panel * depth.tile() + at_k) * BLOCK;
        k.store(packed.at(&to).shape([BLOCK / 2, BLOCK, 2]), interleaved);
    });

    let grid: [Expr; 2] = [m.expr().floordiv(BLOCK), n.expr().floordiv(BLOCK)];
    k.phase_ordered(grid, crate::ir::Order::Grouped { group: 4 }, |k| {
        let (row, panel) = (k.program_id(0) * BLOCK, k.program_id(1));
        let zero = k
            .full(DType::F32, [BLOCK, BLOCK], 0.0)
            .with_layout(accumulator());
        let [sum] = k.for_range(0, depth.tile(), BLOCK, [zero], |k, at_k, [acc]| {
            let from_a = &row * depth.tile() + &at_k;
            let from_b = (&panel * depth.tile() + &at_k) * BLOCK;
            let rows = a
                .at(&from_a)
                .shape([BLOCK, BLOCK])
                .stride(0, depth.tile())
                .operand([MmaDim::Side, MmaDim::K]);
            let pairs = packed.at(&from_b).shape([BLOCK / 2, BLOCK, 2]).operand([
                MmaDim::K,
                MmaDim::Side,
                MmaDim::K,
            ]);
            [k.mma(rows, pairs, &acc, false)]
        });
        let out = sum.convert_layout(TileLayout::rows(&[BLOCK, BLOCK], 16));
        let to = &row * n.tile() + panel * BLOCK;
        k.store(c.at(&to).shape([BLOCK, BLOCK]).stride(0, n.tile()), out);
    });
    k.finish()
}
