//! Emitted loops against plain Rust.

use crate::machine::{Buf, levels, run};
use oxyfuel_base::{DType, Symbol};
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::examples;
use oxyfuel_kernel::ir::BufferMode;

fn data(n: usize, seed: u32) -> Buf<f32> {
    Buf::new(&numbers(n, seed))
}

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 20) as f32 - 8.0
        })
        .collect()
}

#[test]
fn bias_relu_of_every_size() {
    for (name, level) in levels() {
        for (cols, rows) in [
            (32, 1),
            (32, 5),
            (40, 7),
            (17, 3),
            (100, 9),
            (1024, 4),
            (3, 6),
        ] {
            let program = examples::bias_relu(DType::F32, cols, cols * 4).expect("builds");
            let n = (cols * rows) as usize;
            let (x, b) = (data(n, 1), data(cols as usize, 2));
            let y = Buf::new(&vec![f32::NAN; n + 16]);
            let args = [n as u64, x.ptr(), b.ptr(), y.ptr()];
            run(&program, level, &args, &[(rows as u64).div_ceil(4)]);
            for i in 0..n {
                let expected = (x[i] + b[i % cols as usize]).max(0.0) * 2.0;
                assert_eq!(y[i], expected, "{name} {cols}x{rows} at {i}");
            }
            assert!(
                y[n..].iter().all(|v| v.is_nan()),
                "{name} {cols}x{rows} writes past the end"
            );
        }
    }
}

#[test]
fn narrow_types_round_and_widen() {
    for (name, level) in levels() {
        for (cols, rows) in [(32, 5), (40, 7), (17, 3), (3, 6)] {
            for dtype in [DType::BF16, DType::F16] {
                let program = examples::bias_relu(dtype, cols, cols * 4).expect("builds");
                let n = (cols * rows) as usize;
                let code = |v: f32| oxyfuel_base::Scalar::F(f64::from(v)).to_bits(dtype) as u16;
                let value =
                    |c: u16| oxyfuel_base::Scalar::from_bits(dtype, u64::from(c)).as_f64() as f32;
                let x = Buf::new(&numbers(n, 3).into_iter().map(code).collect::<Vec<u16>>());
                let b = Buf::new(
                    &numbers(cols as usize, 4)
                        .into_iter()
                        .map(code)
                        .collect::<Vec<u16>>(),
                );
                let y = Buf::new(&vec![0xdead_u16; n + 32]);
                let args = [n as u64, x.ptr(), b.ptr(), y.ptr()];
                run(&program, level, &args, &[(rows as u64).div_ceil(4)]);
                for i in 0..n {
                    let expected = code((value(x[i]) + value(b[i % cols as usize])).max(0.0) * 2.0);
                    assert_eq!(y[i], expected, "{name} {dtype} {cols}x{rows} at {i}");
                }
                assert!(
                    y[n..].iter().all(|v| *v == 0xdead),
                    "{name} {dtype} {cols}x{rows} writes past the end"
                );
            }
        }
    }
}

/// Row statistics in one nest: mean, variance and a normalised row, as layer norm has them.
#[test]
fn rows_are_normalised() {
    for (name, level) in levels() {
        for cols in [16i64, 48, 100, 257, 1024, 7] {
            let k = KernelBuilder::new("norm");
            let rows = k.symbol("rows", Symbol(0));
            let x = k.buffer("x", DType::F32, BufferMode::Read, rows.expr() * cols);
            let y = k.buffer("y", DType::F32, BufferMode::Write, rows.expr() * cols);
            let m = k.buffer("m", DType::F32, BufferMode::Write, rows.expr());
            k.phase([rows.expr()], |k| {
                let row = k.program_id(0);
                let base = &row * cols;
                let t = k.load(x.at(&base).shape([1, cols]));
                let mean = t.sum(1) * (1.0 / cols as f64);
                let d = &t - &mean;
                let var = (&d * &d).sum(1) * (1.0 / cols as f64);
                let scale = (var + 1e-5).rsqrt();
                k.store(m.at(&row).shape([1, 1]), mean);
                k.store(y.at(&base).shape([1, cols]), d * scale);
            });
            let program = k.finish().expect("builds");
            let n_rows = 5usize;
            let n = n_rows * cols as usize;
            let x = data(n, 7);
            let (y, m) = (Buf::new(&vec![0f32; n]), Buf::new(&vec![0f32; n_rows]));
            let args = [n_rows as u64, x.ptr(), y.ptr(), m.ptr()];
            run(&program, level, &args, &[n_rows as u64]);
            for r in 0..n_rows {
                let row: Vec<f64> = x[r * cols as usize..(r + 1) * cols as usize]
                    .iter()
                    .map(|v| f64::from(*v))
                    .collect();
                let mean = row.iter().sum::<f64>() / cols as f64;
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64;
                assert!(
                    (f64::from(m[r]) - mean).abs() < 1e-5,
                    "{name} {cols}: mean {} and {mean}",
                    m[r]
                );
                for (c, v) in row.iter().enumerate() {
                    let expected = (v - mean) / (var + 1e-5).sqrt();
                    let got = f64::from(y[r * cols as usize + c]);
                    assert!(
                        (got - expected).abs() < 1e-4,
                        "{name} {cols} at {r},{c}: {got} and {expected}"
                    );
                }
            }
        }
    }
}
