//! Example programs of the logical form.

use oxyfuel_base::{DType, Expr, Result, Symbol};

use crate::builder::{KernelBuilder, Tile};
use crate::ir::{BufferMode, Program};

/// `1 / sqrt(2)`.
const FRAC_1_SQRT_2: f64 = std::f64::consts::FRAC_1_SQRT_2;

/// `y[r, c] = gelu(x[r, c] + b[c])` over `rows` (symbol s0) by `cols`, a row block an instance. `gelu(v) = v * (1 + erf(v / sqrt(2))) / 2`.
pub fn bias_gelu(dtype: DType, cols: i64) -> Result<Program> {
    const ROWS: i64 = 4;
    let k = KernelBuilder::new("bias_gelu");
    let rows = k.symbol("rows", Symbol(0));
    let x = k
        .buffer("x", dtype, BufferMode::Read, rows.expr() * cols)
        .aligned(64);
    let b = k.buffer("b", dtype, BufferMode::Read, cols).aligned(64);
    let y = k
        .buffer("y", dtype, BufferMode::Write, rows.expr() * cols)
        .aligned(64);
    k.phase([rows.expr().ceildiv(ROWS)], |k| {
        let row = k.program_id(0) * ROWS;
        let left = rows.tile() - &row;
        let base = &row * cols;
        let bias = k.load(b.at(0).shape([1, cols])).cast(DType::F32);
        let v = k
            .load(x.at(&base).shape([ROWS, cols]).valid(0, &left))
            .cast(DType::F32)
            + bias;
        let gelu = &v * 0.5 * ((&v * FRAC_1_SQRT_2).erf() + 1.0);
        k.store(
            y.at(&base).shape([ROWS, cols]).valid(0, &left),
            gelu.cast(dtype),
        );
    });
    k.finish()
}

/// `y = relu(x + b) * 2` over `n` (symbol s0) elements with one bias for each of `cols` columns; `block` elements an instance. `cols` divides `block`.
pub fn bias_relu(dtype: DType, cols: i64, block: i64) -> Result<Program> {
    let k = KernelBuilder::new("bias_relu");
    let n = k.symbol("n", Symbol(0));
    let x = k.buffer("x", dtype, BufferMode::Read, n.expr()).aligned(64);
    let b = k.buffer("b", dtype, BufferMode::Read, cols).aligned(64);
    let y = k
        .buffer("y", dtype, BufferMode::Write, n.expr())
        .aligned(64);
    let shape = [block / cols, cols];
    k.phase([n.expr().ceildiv(block)], |k| {
        let base = k.program_id(0) * block;
        let rows_left = (n.tile() - &base).floordiv(cols);
        let bias = k.load(b.at(0).shape([1, cols])).cast(DType::F32);
        let v = k
            .load(x.at(&base).shape(shape).valid(0, &rows_left))
            .cast(DType::F32)
            + bias;
        let out = (v.maximum(0.0) * 2.0).cast(dtype);
        k.store(
            y.at(&base).shape(shape).valid(0, &rows_left).streaming(),
            out,
        );
    });
    k.finish()
}

/// Softmax along rows of `cols` elements, a row an instance; `rows` is symbol s0. Computes in f32.
pub fn softmax(dtype: DType, cols: i64) -> Result<Program> {
    let k = KernelBuilder::new("softmax");
    let rows = k.symbol("rows", Symbol(0));
    let x = k
        .buffer("x", dtype, BufferMode::Read, rows.expr() * cols)
        .aligned(64);
    let y = k
        .buffer("y", dtype, BufferMode::Write, rows.expr() * cols)
        .aligned(64);
    k.phase([rows.expr()], |k| {
        let base = k.program_id(0) * cols;
        let t = k
            .load(x.at(&base).shape([1, cols]))
            .cast(DType::F32)
            .named("t");
        let shifted = &t - t.max(1);
        let e = shifted.exp().named("e");
        let total = e.sum(1).named("total");
        k.store(y.at(&base).shape([1, cols]), (e / total).cast(dtype));
    });
    k.finish()
}

/// MXINT8 to bf16: one biased exponent byte for each group of `group` signed mantissa bytes; `block` elements an instance, `n` (symbol s0) elements in all.
///
/// A mantissa `m` is `m * 2^-6` times `2^(e - 127)`. The bits are put together as hardware would: the sign, the exponent and the six low bits of `|m|` as a fraction; where the leading bit
/// of `|m|` (bit 6) is 0, the implied one of the format was not there, so that `2^(e - 127)` is taken off again.
pub fn mxint8_decode(group: i64, block: i64) -> Result<Program> {
    let k = KernelBuilder::new("mxint8_decode");
    let n = k.symbol("n", Symbol(0));
    let x = k
        .buffer("x", DType::I8, BufferMode::Read, n.expr())
        .aligned(64);
    let scales = k
        .buffer(
            "scales",
            DType::U8,
            BufferMode::Read,
            n.expr().ceildiv(group),
        )
        .aligned(64);
    let y = k
        .buffer("y", DType::BF16, BufferMode::Write, n.expr())
        .aligned(64);
    let shape = [block / group, group];
    k.phase([n.expr().ceildiv(block)], |k| {
        let base = k.program_id(0) * block;
        let groups_left = (n.tile() - &base).floordiv(group);
        let m = k
            .load(x.at(&base).shape(shape).valid(0, &groups_left))
            .cast(DType::I16);
        let first_group = k.program_id(0) * (block / group);
        let exponent = k
            .load(
                scales
                    .at(&first_group)
                    .shape([block / group, 1])
                    .valid(0, &groups_left),
            )
            .cast(DType::U16)
            << 7;
        let magnitude = m.abs().bitcast(DType::U16);
        let sign = (m.bitcast(DType::U16) & 0x80) << 8;
        let fraction = (&magnitude & 0x3f) << 1;
        let with_one = (&sign | &exponent | fraction).bitcast(DType::BF16);
        let bias = (sign | exponent).bitcast(DType::BF16);
        let has_one = (magnitude & 0x40).ne(0);
        let out = has_one.select(&with_one, &with_one - bias);
        k.store(
            y.at(&base).shape(shape).valid(0, &groups_left).streaming(),
            out,
        );
    });
    k.finish()
}

/// `c = a @ b` for row-major `[m, k]` and `[k, n]` in tiles; `a` and `b` of `dtype`, sums in f32. Symbols: m s0, n s1, k s2.
pub fn tiled_matmul(dtype: DType, tile: [i64; 3]) -> Result<Program> {
    let [tm, tn, tk] = tile;
    let k = KernelBuilder::new("tiled_matmul");
    let (m, n, depth) = (
        k.symbol("m", Symbol(0)),
        k.symbol("n", Symbol(1)),
        k.symbol("k", Symbol(2)),
    );
    let a = k.buffer("a", dtype, BufferMode::Read, m.expr() * depth.expr());
    let b = k.buffer("b", dtype, BufferMode::Read, depth.expr() * n.expr());
    let c = k.buffer("c", DType::F32, BufferMode::Write, m.expr() * n.expr());
    let grid: [Expr; 2] = [m.expr().ceildiv(tm), n.expr().ceildiv(tn)];
    k.phase(grid, |k| {
        let (row, col) = (k.program_id(0) * tm, k.program_id(1) * tn);
        let (rows, cols): (Tile, Tile) = (m.tile() - &row, n.tile() - &col);
        let zero = k.full(DType::F32, [tm, tn], 0.0);
        let [acc] = k.for_range(0, depth.tile(), tk, [zero], |k, at, [acc]| {
            let left = depth.tile() - &at;
            let at_a = &row * &depth.tile() + &at;
            let at_b = &at * &n.tile() + &col;
            let ta = k.load(
                a.at(&at_a)
                    .shape([tm, tk])
                    .stride(0, depth.tile())
                    .valid(0, &rows)
                    .valid(1, &left),
            );
            let tb = k.load(
                b.at(&at_b)
                    .shape([tk, tn])
                    .stride(0, n.tile())
                    .valid(0, &left)
                    .valid(1, &cols),
            );
            [k.dot(&ta, &tb, &acc)]
        });
        let at_c = &row * &n.tile() + &col;
        k.store(
            c.at(&at_c)
                .shape([tm, tn])
                .stride(0, n.tile())
                .valid(0, &rows)
                .valid(1, &cols),
            acc,
        );
    });
    k.finish()
}
