//! Matrix products against plain Rust, on every unit this machine has.

use crate::machine::{Buf, amx, levels, run};
use oxyfuel_base::{DType, Expr, Scalar, Symbol};
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::examples;
use oxyfuel_kernel::ir::{BufferMode, Geometry, MmaDim, TileLayout};
use oxyfuel_x86::Level;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(99);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few bits, so that sums are exact in f32.
            ((state >> 16) % 17) as f32 / 4.0 - 2.0
        })
        .collect()
}

fn naive(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
        }
    }
    c
}

fn bf16(values: &[f32]) -> Vec<u16> {
    values
        .iter()
        .map(|v| Scalar::F(f64::from(*v)).to_bits(DType::BF16) as u16)
        .collect()
}

#[test]
fn logical_products_with_edges() {
    for (name, level) in levels() {
        for (tile, [m, n, k]) in [
            ([16, 32, 16], [32usize, 64, 48]),
            ([16, 32, 16], [37, 45, 50]),
            ([30, 40, 7], [61, 83, 20]),
            ([4, 16, 8], [9, 17, 33]),
        ] {
            let program = examples::tiled_matmul(DType::F32, tile).expect("builds");
            let (a, b) = (Buf::new(&numbers(m * k, 1)), Buf::new(&numbers(k * n, 2)));
            let c = Buf::new(&vec![f32::NAN; m * n]);
            let grid = m.div_ceil(tile[0] as usize) * n.div_ceil(tile[1] as usize);
            run(
                &program,
                level,
                &[m as u64, n as u64, k as u64, a.ptr(), b.ptr(), c.ptr()],
                &[grid as u64],
            );
            assert_eq!(
                c[..],
                naive(&a, &b, m, n, k)[..],
                "{name} {tile:?} {m}x{n}x{k}"
            );
        }
    }
}

#[test]
fn logical_products_of_bf16() {
    for (name, level) in levels() {
        let [m, n, k] = [20usize, 36, 24];
        let program = examples::tiled_matmul(DType::BF16, [8, 16, 8]).expect("builds");
        let (x, y) = (numbers(m * k, 3), numbers(k * n, 4));
        let (a, b) = (Buf::new(&bf16(&x)), Buf::new(&bf16(&y)));
        let c = Buf::new(&vec![f32::NAN; m * n]);
        let grid = m.div_ceil(8) * n.div_ceil(16);
        run(
            &program,
            level,
            &[m as u64, n as u64, k as u64, a.ptr(), b.ptr(), c.ptr()],
            &[grid as u64],
        );
        assert_eq!(c[..], naive(&x, &y, m, n, k)[..], "{name}");
    }
}

/// A micro-kernel as a mapping writes it: `a` in blocks of 16 of the depth, `b` in panels, all of the depth in one product.
#[test]
fn packed_products_stay_in_registers() {
    for (name, level) in levels() {
        let (rows, cols) = if level.avx512 {
            (14i64, 32i64)
        } else {
            (6, 16)
        };
        let depth = 64i64;
        let lanes = level.vector_bytes() / 4;
        let k = KernelBuilder::mapped(
            "packed",
            Geometry {
                lanes,
                warps: 1,
                cluster: [1; 3],
                registers: 0,
            },
        );
        let a = k.buffer(
            "a",
            DType::F32,
            BufferMode::Read,
            Expr::constant(rows * depth),
        );
        let b = k.buffer(
            "b",
            DType::F32,
            BufferMode::Read,
            Expr::constant(cols * depth),
        );
        let c = k.buffer(
            "c",
            DType::F32,
            BufferMode::Write,
            Expr::constant(rows * cols),
        );
        k.phase([Expr::constant(1)], |k| {
            let layout = TileLayout::rows(&[rows, cols], lanes);
            let zero = k.full(DType::F32, [rows, cols], 0.0).with_layout(layout);
            let left =
                a.at(0)
                    .shape([depth / 16, rows, 16])
                    .operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
            let right = b
                .at(0)
                .shape([depth, cols])
                .operand([MmaDim::K, MmaDim::Side]);
            let sum = k.mma(left, right, &zero, false);
            k.store(c.at(0).shape([rows, cols]), sum.maximum(0.0));
        });
        let program = k.finish().expect("builds");
        let (x, y) = (
            numbers((rows * depth) as usize, 5),
            numbers((depth * cols) as usize, 6),
        );
        // From [block][row][16] to row-major.
        let mut plain = vec![0.0; x.len()];
        for (i, v) in x.iter().enumerate() {
            let (block, rest) = (i / (rows as usize * 16), i % (rows as usize * 16));
            plain[rest / 16 * depth as usize + block * 16 + rest % 16] = *v;
        }
        let (a, b) = (Buf::new(&x), Buf::new(&y));
        let c = Buf::new(&vec![f32::NAN; (rows * cols) as usize]);
        let artefact = run(&program, level, &[a.ptr(), b.ptr(), c.ptr()], &[1]);
        let expected: Vec<f32> = naive(&plain, &y, rows as usize, cols as usize, depth as usize)
            .iter()
            .map(|v| v.max(0.0))
            .collect();
        assert_eq!(c[..], expected[..], "{name}");
        assert_eq!(artefact.stats.spilled, 0, "{name}");
    }
}

#[test]
fn the_matrix_unit_multiplies_bf16() {
    let Some(level) = amx() else { return };
    for [m, n, k] in [[32usize, 32, 32], [64, 96, 128], [96, 64, 160]] {
        let program = examples::amx_matmul().expect("builds");
        let (x, y) = (numbers(m * k, 7), numbers(k * n, 8));
        let (a, b) = (Buf::new(&bf16(&x)), Buf::new(&bf16(&y)));
        let c = Buf::new(&vec![f32::NAN; m * n]);
        let packed = Buf::new(&vec![0u16; k * n]);
        let args = [
            m as u64,
            n as u64,
            k as u64,
            a.ptr(),
            b.ptr(),
            c.ptr(),
            packed.ptr(),
        ];
        let grids = [(k / 32 * (n / 32)) as u64, (m / 32 * (n / 32)) as u64];
        let artefact = run(&program, level, &args, &grids);
        assert!(artefact.matrix_state);
        assert_eq!(c[..], naive(&x, &y, m, n, k)[..], "{m}x{n}x{k}");
        // The same program without the matrix unit, by the vector unit.
        let c = Buf::new(&vec![f32::NAN; m * n]);
        let args = [
            m as u64,
            n as u64,
            k as u64,
            a.ptr(),
            b.ptr(),
            c.ptr(),
            packed.ptr(),
        ];
        let plain = oxyfuel_x86::compile(&program, Level::AVX512);
        if let Ok(artefact) = plain {
            crate::machine::execute(&artefact, &args, &grids);
            assert_eq!(c[..], naive(&x, &y, m, n, k)[..], "vectors {m}x{n}x{k}");
        }
    }
}

#[test]
fn the_matrix_unit_multiplies_bytes() {
    let Some(level) = amx() else { return };
    for (ta, tb) in [
        (DType::I8, DType::I8),
        (DType::U8, DType::I8),
        (DType::I8, DType::U8),
        (DType::U8, DType::U8),
    ] {
        let (m, n, depth) = (20i64, 32i64, 128i64);
        let k = KernelBuilder::mapped(
            "bytes",
            Geometry {
                lanes: 16,
                warps: 1,
                cluster: [1; 3],
                registers: 0,
            },
        );
        let rows = k.symbol("rows", Symbol(0));
        let a = k.buffer("a", ta, BufferMode::Read, rows.expr() * depth);
        let b = k.buffer("b", tb, BufferMode::Read, Expr::constant(n * depth));
        let c = k.buffer("c", DType::I32, BufferMode::Write, rows.expr() * n);
        k.phase([Expr::constant(1)], |k| {
            let layout = TileLayout::rows(&[m, n], 16);
            let zero = k.full(DType::I32, [m, n], 0).with_layout(layout);
            let left = a.at(0).shape([m, depth]).operand([MmaDim::Side, MmaDim::K]);
            let right =
                b.at(0)
                    .shape([depth / 4, n, 4])
                    .operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
            let sum = k.mma(left, right, &zero, false);
            k.store(c.at(0).shape([m, n]), sum);
        });
        let program = k.finish().expect("builds");
        let bytes = |n: usize, seed: u32| -> Vec<u8> {
            numbers(n, seed)
                .iter()
                .map(|v| (*v * 30.0) as i32 as u8)
                .collect()
        };
        let (x, y) = (
            bytes((m * depth) as usize, 9),
            bytes((n * depth) as usize, 10),
        );
        let (a, b) = (Buf::new(&x), Buf::new(&y));
        let c = Buf::new(&vec![-1i32; (m * n) as usize]);
        let artefact = run(
            &program,
            level,
            &[m as u64, a.ptr(), b.ptr(), c.ptr()],
            &[1],
        );
        assert!(artefact.matrix_state);
        let value = |t: DType, v: u8| {
            if t == DType::I8 {
                i32::from(v as i8)
            } else {
                i32::from(v)
            }
        };
        for i in 0..m as usize {
            for j in 0..n as usize {
                let expected: i32 = (0..depth as usize)
                    .map(|l| {
                        value(ta, x[i * depth as usize + l])
                            * value(tb, y[(l / 4 * n as usize + j) * 4 + l % 4])
                    })
                    .sum();
                assert_eq!(c[i * n as usize + j], expected, "{ta} {tb} at {i},{j}");
            }
        }
    }
}

/// Groups of the depth side by side, multiplied by vectors: the blocks of `a` in memory, and a row that is the same all along the depth.
#[test]
fn vectors_multiply_groups() {
    let kinds = [
        (DType::U8, DType::I8, DType::I32),
        (DType::I8, DType::U8, DType::I32),
    ];
    for (name, level) in levels() {
        if !level.vnni() {
            continue;
        }
        for (ta, tb, acc) in kinds {
            let (rows, cols) = if level.avx512 {
                (14i64, 32i64)
            } else {
                (6, 16)
            };
            let (blocks, deep) = (3i64, 32i64);
            let depth = blocks * deep;
            let lanes = level.vector_bytes() / 4;
            let k = KernelBuilder::mapped(
                "groups",
                Geometry {
                    lanes,
                    warps: 1,
                    cluster: [1; 3],
                    registers: 0,
                },
            );
            let a = k.buffer("a", ta, BufferMode::Read, Expr::constant(rows * depth));
            let b = k.buffer("b", tb, BufferMode::Read, Expr::constant(cols * depth));
            let c = k.buffer("c", acc, BufferMode::Write, Expr::constant(rows * cols));
            k.phase([Expr::constant(1)], |k| {
                let layout = TileLayout::rows(&[rows, cols], lanes);
                let zero = k.full(acc, [rows, cols], 0).with_layout(layout);
                let dims = [MmaDim::K, MmaDim::Side, MmaDim::K];
                let left = a.at(0).shape([blocks, rows, deep]).operand(dims);
                let right = b.at(0).shape([depth / 4, cols, 4]).operand(dims);
                let sum = k.mma(left, right, &zero, false);
                k.store(c.at(0).shape([rows, cols]), sum);
            });
            let program = k.finish().expect("builds");
            let bytes = |n: i64, seed: i64| -> Vec<u8> {
                (0..n)
                    .map(|i| ((i * 37 + seed) * (i + 11) % 256) as u8)
                    .collect()
            };
            let (x, y) = (bytes(rows * depth, 3), bytes(cols * depth, 5));
            let (a, b) = (Buf::new(&x), Buf::new(&y));
            let c = Buf::new(&vec![0i32; (rows * cols) as usize]);
            let artefact = run(&program, level, &[a.ptr(), b.ptr(), c.ptr()], &[1]);
            let number = |dtype: DType, byte: u8| match dtype {
                DType::I8 => i32::from(byte as i8),
                _ => i32::from(byte),
            };
            for i in 0..rows {
                for j in 0..cols {
                    let sum: i32 = (0..depth)
                        .map(|l| {
                            let from_a = (l / deep * rows + i) * deep + l % deep;
                            let from_b = (l / 4 * cols + j) * 4 + l % 4;
                            number(ta, x[from_a as usize]) * number(tb, y[from_b as usize])
                        })
                        .sum();
                    assert_eq!(c[(i * cols + j) as usize], sum, "{name} {ta} {tb} {i} {j}");
                }
            }
            assert_eq!(artefact.stats.spilled, 0, "{name}");
        }
    }
}
