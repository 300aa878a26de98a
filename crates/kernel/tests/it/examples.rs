//! The example programs verify, go through text, and compute what a naive oracle computes.

use crate::common::{assert_close, bytes_of, matmul, numbers, rounded, values_of};
use oxyfuel_kernel::interp::{Arg, run};
use oxyfuel_kernel::{DType, Program, Scalar, examples, parse, verify};

/// Verifies a program and takes it through its text.
fn checked(program: oxyfuel_base::Result<Program>) -> Program {
    let program = program.unwrap_or_else(|error| panic!("{error}"));
    verify(&program).unwrap();
    let text = program.to_string();
    let read = parse("example", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read, program.compact(), "{text}");
    assert_eq!(read.to_string(), text);
    read
}

fn int(n: usize) -> Arg<'static> {
    Arg::Scalar(Scalar::I(n as i64))
}

#[test]
fn bias_gelu_computes() {
    for dtype in [DType::F32, DType::BF16] {
        let (rows, cols) = (7, 24);
        let program = checked(examples::bias_gelu(dtype, cols as i64));
        let (x, b) = (
            rounded(dtype, &numbers(1, rows * cols)),
            rounded(dtype, &numbers(2, cols)),
        );
        let (xb, bb) = (bytes_of(dtype, &x), bytes_of(dtype, &b));
        let mut y = vec![0; xb.len()];
        run(
            &program,
            &mut [
                int(rows),
                Arg::Input { dtype, bytes: &xb },
                Arg::Input { dtype, bytes: &bb },
                Arg::Buffer {
                    dtype,
                    bytes: &mut y,
                },
            ],
        )
        .unwrap();
        let expected: Vec<f64> = (0..rows * cols)
            .map(|i| {
                let v = x[i] + b[i % cols];
                v * 0.5 * (1.0 + libm::erf(v / 2f64.sqrt()))
            })
            .collect();
        assert_close(
            &values_of(dtype, &y),
            &expected,
            if dtype == DType::F32 { 1e-6 } else { 1e-2 },
        );
    }
}

#[test]
fn bias_relu_computes() {
    let dtype = DType::F32;
    let (n, cols) = (16 * 5, 16);
    let program = checked(examples::bias_relu(dtype, 16, 64));
    let (x, b) = (
        rounded(dtype, &numbers(1, n)),
        rounded(dtype, &numbers(2, cols)),
    );
    let (xb, bb) = (bytes_of(dtype, &x), bytes_of(dtype, &b));
    let mut y = vec![0; xb.len()];
    run(
        &program,
        &mut [
            int(n),
            Arg::Input { dtype, bytes: &xb },
            Arg::Input { dtype, bytes: &bb },
            Arg::Buffer {
                dtype,
                bytes: &mut y,
            },
        ],
    )
    .unwrap();
    let expected: Vec<f64> = (0..n)
        .map(|i| (x[i] + b[i % cols]).max(0.0) * 2.0)
        .collect();
    assert_close(&values_of(dtype, &y), &expected, 1e-6);
}

#[test]
fn softmax_computes() {
    let dtype = DType::F32;
    let (rows, cols) = (3, 37);
    let program = checked(examples::softmax(dtype, cols as i64));
    let x = rounded(dtype, &numbers(3, rows * cols));
    let xb = bytes_of(dtype, &x);
    let mut y = vec![0; xb.len()];
    run(
        &program,
        &mut [
            int(rows),
            Arg::Input { dtype, bytes: &xb },
            Arg::Buffer {
                dtype,
                bytes: &mut y,
            },
        ],
    )
    .unwrap();
    let mut expected = Vec::new();
    for row in x.chunks(cols) {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        expected.extend(row.iter().map(|x| x.exp() / total));
    }
    assert_close(&values_of(dtype, &y), &expected, 1e-6);
}

#[test]
fn mxint8_decodes() {
    let (group, n) = (32, 32 * 7);
    let program = checked(examples::mxint8_decode(group as i64, 128));
    let x: Vec<u8> = (0..n)
        .map(|i| (i * 37 % 255) as u8)
        .map(|b| if b == 128 { 1 } else { b })
        .collect();
    let scales: Vec<u8> = (0..n / group).map(|g| 120 + g as u8 * 3).collect();
    let mut y = vec![0; n * 2];
    run(
        &program,
        &mut [
            int(n),
            Arg::Input {
                dtype: DType::I8,
                bytes: &x,
            },
            Arg::Input {
                dtype: DType::U8,
                bytes: &scales,
            },
            Arg::Buffer {
                dtype: DType::BF16,
                bytes: &mut y,
            },
        ],
    )
    .unwrap();
    let expected: Vec<f64> = (0..n)
        .map(|i| f64::from(x[i] as i8) / 64.0 * 2f64.powi(i32::from(scales[i / group]) - 127))
        .collect();
    assert_eq!(values_of(DType::BF16, &y), expected);
}

#[test]
fn tiled_matmul_computes() {
    let dtype = DType::BF16;
    let [m, n, k] = [13, 19, 10];
    let program = checked(examples::tiled_matmul(dtype, [8, 16, 4]));
    let (a, b) = (
        rounded(dtype, &numbers(4, m * k)),
        rounded(dtype, &numbers(5, k * n)),
    );
    let (ab, bb) = (bytes_of(dtype, &a), bytes_of(dtype, &b));
    let mut c = vec![0; m * n * 4];
    run(
        &program,
        &mut [
            int(m),
            int(n),
            int(k),
            Arg::Input { dtype, bytes: &ab },
            Arg::Input { dtype, bytes: &bb },
            Arg::Buffer {
                dtype: DType::F32,
                bytes: &mut c,
            },
        ],
    )
    .unwrap();
    assert_close(&values_of(DType::F32, &c), &matmul(&a, &b, [m, n, k]), 1e-5);
}

fn run_matmul(
    program: &Program,
    [m, n, k]: [usize; 3],
    out: DType,
    workspace: usize,
) -> (Vec<f64>, Vec<f64>) {
    let dtype = DType::BF16;
    let (a, b) = (
        rounded(dtype, &numbers(6, m * k)),
        rounded(dtype, &numbers(7, k * n)),
    );
    let (ab, bb) = (bytes_of(dtype, &a), bytes_of(dtype, &b));
    let mut c = vec![0; m * n * out.size()];
    let mut scratch = vec![0; workspace * 2];
    let mut args = vec![
        int(m),
        int(n),
        int(k),
        Arg::Input { dtype, bytes: &ab },
        Arg::Input { dtype, bytes: &bb },
        Arg::Buffer {
            dtype: out,
            bytes: &mut c,
        },
    ];
    if workspace > 0 {
        args.push(Arg::Buffer {
            dtype,
            bytes: &mut scratch,
        });
    }
    run(program, &mut args).unwrap_or_else(|error| panic!("{error}"));
    (values_of(out, &c), matmul(&a, &b, [m, n, k]))
}

#[test]
fn amx_matmul_computes() {
    let program = checked(examples::amx_matmul());
    let shape = [64, 96, 160];
    let (ours, expected) = run_matmul(&program, shape, DType::F32, shape[1] * shape[2]);
    assert_close(&ours, &expected, 1e-5);
}

#[test]
fn wgmma_matmul_computes() {
    use examples::{Epilogue, WgmmaTile};
    for epilogue in [Epilogue::Direct, Epilogue::Staged] {
        let tile = WgmmaTile {
            consumers: 2,
            columns: 128,
            stages: 4,
            group: 2,
            epilogue,
        };
        let program = checked(examples::wgmma_matmul(tile));
        // Seven steps wrap around the ring; rows, columns and depth have tails.
        let (ours, expected) = run_matmul(&program, [200, 136, 424], DType::BF16, 0);
        assert_close(&ours, &expected, 1e-2);
    }
    checked(examples::wgmma_matmul(WgmmaTile::LARGE));
}
