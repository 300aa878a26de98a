//! How loops walk over memory: values of rows computed before the rows, stores beside each other, rows asked for ahead.

use oxyfuel_base::{DType, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, ReduceOp};

use crate::programs::{agree, kernel};

/// More steps than are worth repeating.
fn many_steps(t: &Tile) -> Tile {
    let mut out = t.clone();
    for _ in 0..6 {
        out = (&out * &out) * 0.25 + 0.5;
    }
    out
}

#[test]
fn a_value_of_each_row_is_computed_before_the_rows() {
    for (rows, cols) in [(64i64, 32i64), (33, 8), (48, 100), (256, 16), (40, 3)] {
        for grid in [1i64, 3] {
            let program = kernel("scale", |k| {
                let len = Expr::constant(rows * cols * grid);
                let x = k.buffer("x", DType::F32, BufferMode::Read, len.clone());
                let s = k.buffer(
                    "s",
                    DType::F32,
                    BufferMode::Read,
                    Expr::constant(rows * grid),
                );
                let y = k.buffer("y", DType::F32, BufferMode::Write, len);
                let z = k.buffer(
                    "z",
                    DType::F32,
                    BufferMode::Write,
                    Expr::constant(rows * grid),
                );
                k.phase([Expr::constant(grid)], |k| {
                    let first = k.program_id(0) * rows;
                    let base = &first * cols;
                    let t = k.load(x.at(&base).shape([rows, cols]).strides([cols, 1]));
                    let e = k.load(s.at(&first).shape([rows, 1]).strides([1, 0]));
                    let scale = many_steps(&e);
                    let wide = scale.broadcast_to([rows, cols]);
                    k.store(
                        y.at(&base).shape([rows, cols]).strides([cols, 1]),
                        &t * &wide,
                    );
                    k.store(z.at(&first).shape([rows, 1]).strides([1, 0]), scale + 1.0);
                });
            });
            let (all, few) = ((rows * cols * grid) as usize, (rows * grid) as usize);
            agree(&program, &[], &[all, few, all, few], &[grid as u64], 0.0);
        }
    }
}

#[test]
fn stores_share_a_loop_where_they_share_no_element() {
    // Beside each other, overlapping, equal, and a row apart.
    for shift in [64i64, 32, 0, 128, 100] {
        let program = kernel("beside", |k| {
            let x = k.buffer("x", DType::F32, BufferMode::Read, Expr::constant(4096));
            let y = k.buffer("y", DType::F32, BufferMode::Write, Expr::constant(8192));
            k.phase([Expr::constant(2)], |k| {
                let base = k.program_id(0) * 2048;
                let window = [16i64, 64];
                let a = k.load(x.at(&base).shape(window).strides([128i64, 1]));
                let b = k.load(x.at(&base + 64).shape(window).strides([128i64, 1]));
                let out = k.program_id(0) * 4096;
                k.store(y.at(&out).shape(window).strides([128i64, 1]), &a + &b);
                k.store(
                    y.at(&out + shift).shape(window).strides([128i64, 1]),
                    &a - &b,
                );
            });
        });
        agree(&program, &[], &[4096, 8192], &[2], 0.0);
    }
}

#[test]
fn rows_that_are_looked_up() {
    for (cols, grid) in [(256i64, 9i64), (200, 1), (16, 4), (1024, 5)] {
        let program = kernel("rows", |k| {
            let table = k.buffer(
                "table",
                DType::F32,
                BufferMode::Read,
                Expr::constant(7 * cols),
            );
            let ids = k.buffer("ids", DType::I64, BufferMode::Read, Expr::constant(grid));
            let len = Expr::constant(grid * cols);
            let y = k.buffer("y", DType::F32, BufferMode::Write, len.clone());
            let z = k.buffer("z", DType::F32, BufferMode::Write, len);
            k.phase([Expr::constant(grid)], |k| {
                let own = k.program_id(0);
                let id = k.load(ids.at(&own));
                let row = id.binary(BinaryOp::Min, 6i64).binary(BinaryOp::Max, 0i64) * cols;
                let t = k.load(table.at(&row).shape([cols]));
                let out = &own * cols;
                k.store(y.at(&out).shape([cols]), &t * 2.0);
                let sum = t.sum(0).broadcast_to([cols]);
                k.store(z.at(&out).shape([cols]), (&t - &sum) * &t);
            });
        });
        let (rows, all) = ((7 * cols) as usize, (grid * cols) as usize);
        agree(
            &program,
            &[],
            &[rows, grid as usize, all, all],
            &[grid as u64],
            1e-4,
        );
    }
}

#[test]
fn tiles_of_a_transpose() {
    // Rows of 4 KiB, whose lines crowd a set of the cache, and others; written through the caches and past them.
    for (n, past, align) in [
        (1024i64, false, 64),
        (1024, true, 64),
        (1024, true, 4),
        (960, true, 64),
    ] {
        let program = kernel("turned", |k| {
            let len = Expr::constant(n * n);
            let x = k.buffer("x", DType::F32, BufferMode::Read, len.clone());
            let y = k
                .buffer("y", DType::F32, BufferMode::Write, len)
                .aligned(align);
            k.phase([Expr::constant(n / 64), Expr::constant(n / 64)], |k| {
                let (i, j) = (k.program_id(1) * 64, k.program_id(0) * 64);
                let straight = &i * n + &j;
                let across = &j * n + &i;
                let a = k.load(x.at(&straight).shape([64, 64]).strides([n, 1]));
                let b = k.load(x.at(&across).shape([64, 64]).strides([1, n]));
                let window = y.at(&straight).shape([64, 64]).strides([n, 1]);
                let window = if past { window.streaming() } else { window };
                k.store(window, a - b);
            });
        });
        let (len, instances) = ((n * n) as usize, (n / 64).pow(2) as u64);
        agree(&program, &[], &[len, len], &[instances], 0.0);
    }
}

#[test]
fn stores_round_to_bf16_in_every_range() {
    use crate::machine::{Buf, execute, levels};
    use oxyfuel_base::Scalar;
    let program = kernel("round", |k| {
        let x = k.buffer("x", DType::F32, BufferMode::Read, Expr::constant(4096));
        let y = k.buffer("y", DType::BF16, BufferMode::Write, Expr::constant(4096));
        k.phase([Expr::constant(1)], |k| {
            let t = k.load(x.at(0).shape([4096]));
            k.store(y.at(0).shape([4096]), t.cast(DType::BF16));
        });
    });
    // Every exponent and both signs, with mantissas at and around ties; denormals come alone and among others.
    let mantissas = [
        0u32, 1, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_8000, 0x7f_ffff,
    ];
    let bits: Vec<u32> = (0..4096u32)
        .map(|i| (i >> 3 & 1) << 31 | (i >> 4) << 23 | mantissas[(i & 7) as usize])
        .collect();
    let want: Vec<u16> = bits
        .iter()
        .map(|b| Scalar::F(f64::from(f32::from_bits(*b))).to_bits(DType::BF16) as u16)
        .collect();
    for (name, level) in levels() {
        let artefact = oxyfuel_x86::compile(&program, level).expect("compiles");
        let (x, y) = (Buf::new(&bits), Buf::new(&[0u16; 4096]));
        execute(&artefact, &[x.ptr(), y.ptr()], &[1]);
        for (i, (got, want)) in y.iter().zip(&want).enumerate() {
            let nan = |b: u16| b & 0x7fff > 0x7f80;
            assert!(
                got == want || (nan(*got) && nan(*want)),
                "{name}: {:#x} gave {got:#x}, not {want:#x}",
                bits[i]
            );
        }
    }
}

/// Rows of a known length, less their largest element, written past the caches.
fn moved_rows(rows: i64, cols: i64, first: i64, align: u32) -> oxyfuel_kernel::Program {
    kernel("moved", |k| {
        let len = Expr::constant(rows * cols + first);
        let x = k.buffer("x", DType::F32, BufferMode::Read, len.clone());
        let y = k
            .buffer("y", DType::F32, BufferMode::Write, len)
            .aligned(align);
        k.phase([Expr::constant(rows)], |k| {
            let base = k.program_id(0) * cols + first;
            let t = k.load(x.at(&base).shape([cols]).strides([1]));
            let largest = t.reduce(ReduceOp::Max, [0]).broadcast_to([cols]);
            let window = y.at(&base).shape([cols]).strides([1]);
            k.store(window.streaming(), &t - &largest);
        });
    })
}

#[test]
fn rows_that_begin_anywhere_are_written_past_the_caches() {
    // Rows at whole lines, at any place, and too short to have a step before the first whole vector.
    for (cols, first) in [
        (512i64, 0i64),
        (333, 0),
        (257, 5),
        (1025, 15),
        (256, 3),
        (40, 1),
    ] {
        for align in [1, 4, 64] {
            let program = moved_rows(7, cols, first, align);
            let len = (7 * cols + first) as usize;
            agree(&program, &[], &[len, len], &[7], 0.0);
        }
    }
}

/// Rows less their largest element and the sum of the distances from it, each stored past the caches while the next one is reduced.
fn rows_behind(rows: i64, cols: i64, first: i64, align: u32) -> oxyfuel_kernel::Program {
    kernel("behind", |k| {
        let len = Expr::constant(rows * cols + first);
        let x = k.buffer("x", DType::F32, BufferMode::Read, len.clone());
        let y = k
            .buffer("y", DType::F32, BufferMode::Write, len)
            .aligned(align);
        let reduce = |k: &KernelBuilder, row: &Tile| {
            let t = k.load(x.at(row * cols + first).shape([cols]).strides([1]));
            let largest = t.reduce(ReduceOp::Max, [0]);
            let away = &t - largest.broadcast_to([cols]);
            vec![largest, away.reduce(ReduceOp::Sum, [0])]
        };
        let store = |k: &KernelBuilder, row: &Tile, results: &[Tile]| {
            let base = row * cols + first;
            let t = k.load(x.at(&base).shape([cols]).strides([1]));
            let both = results.iter().map(|r| r.broadcast_to([cols]));
            let moved = both.fold(t, |t, r| &t - &r);
            let window = y.at(&base).shape([cols]).strides([1]);
            k.store(window.streaming(), moved);
        };
        k.phase([Expr::constant(2)], |k| {
            let begin = k.program_id(0) * ((rows + 1) / 2);
            let end = (&begin + (rows + 1) / 2).binary(BinaryOp::Min, rows);
            let results = reduce(k, &begin);
            let results = k.for_range_vec(&begin + 1, &end, 1, results, |k, row, results| {
                let next = reduce(k, &row);
                store(k, &(row - 1), &results);
                next
            });
            store(k, &(end - 1), &results);
        });
    })
}

#[test]
fn rows_are_stored_while_the_next_ones_are_reduced() {
    for (cols, first) in [
        (512i64, 0i64),
        (333, 0),
        (257, 5),
        (1025, 15),
        (40, 1),
        (7, 2),
    ] {
        for align in [4, 64] {
            let program = rows_behind(7, cols, first, align);
            let len = (7 * cols + first) as usize;
            agree(&program, &[], &[len, len], &[2], 1e-4);
        }
    }
}
