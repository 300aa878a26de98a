//! Expanded programs, run by the tile interpreter, equal the expansions on plain f32 bit for bit.

use oxyfuel_base::Scalar;
use oxyfuel_kernel::builder::KernelBuilder;
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_kernel::{BufferMode, DType, Program, UnaryOp};
use oxyfuel_lower::maths::native::Native;
use oxyfuel_lower::maths::{TABLE, apply, expand};

/// Bit patterns spread over all of f32, and those where something special happens.
fn inputs(step: usize) -> Vec<f32> {
    let special = [
        0.0,
        1.0,
        0.5,
        0.25,
        0.95,
        std::f32::consts::FRAC_PI_2,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        88.722_84,
        104.0,
    ];
    let mut all: Vec<f32> = special.iter().flat_map(|x| [*x, -x]).collect();
    all.extend(
        (0..1u64 << 32)
            .step_by(step)
            .map(|bits| f32::from_bits(bits as u32)),
    );
    // most bit patterns are huge or tiny; these are where functions bend
    all.extend((0..4000).map(|i| (i - 2000) as f32 * 0.0537));
    all
}

fn program(op: UnaryOp, dtype: DType, len: i64) -> Program {
    let k = KernelBuilder::new(op.name());
    let x = k.buffer("x", dtype, BufferMode::Read, len);
    let y = k.buffer("y", dtype, BufferMode::Write, len);
    k.phase([1], |k| {
        let value = k.load(x.at(0).shape([len])).unary(op);
        k.store(y.at(0).shape([len]), &value);
    });
    let program = k.finish().expect("a valid program");
    expand(program, &|_, _| true).expect("the op expands")
}

fn interpret(program: &Program, dtype: DType, x: &[u8]) -> Vec<u8> {
    let mut y = vec![0; x.len()];
    let mut args = [
        Arg::Input { dtype, bytes: x },
        Arg::Buffer {
            dtype,
            bytes: &mut y,
        },
    ];
    interp::run(program, &mut args).expect("the program runs");
    y
}

#[test]
fn f32_is_equal_bit_for_bit() {
    let xs = inputs(999_983);
    let bytes: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
    for row in TABLE {
        let program = program(row.op, DType::F32, xs.len() as i64);
        let got = interpret(&program, DType::F32, &bytes);
        for (x, got) in xs.iter().zip(got.chunks_exact(4)) {
            let got = f32::from_le_bytes(got.try_into().expect("four bytes"));
            let want = apply(&Native, row.op, *x).expect("the op expands");
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{} of {x:e}: {got:e} instead of {want:e}",
                row.op.name()
            );
        }
    }
}

/// A bf16 or f16 as f32 (exact), and the rounding back.
fn widened(dtype: DType, bits: u16) -> f32 {
    Scalar::from_bits(dtype, u64::from(bits)).as_f64() as f32
}

#[test]
fn narrow_floats_are_rounded_once_from_the_f32_result() {
    for dtype in [DType::F16, DType::BF16] {
        let xs: Vec<u16> = (0..=u16::MAX).step_by(7).collect();
        let bytes: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
        for row in TABLE {
            let program = program(row.op, dtype, xs.len() as i64);
            let got = interpret(&program, dtype, &bytes);
            for (x, got) in xs.iter().zip(got.chunks_exact(2)) {
                let got = u16::from_le_bytes(got.try_into().expect("two bytes"));
                let single = apply(&Native, row.op, widened(dtype, *x)).expect("the op expands");
                let want = Scalar::from(single).to_bits(dtype) as u16;
                assert!(
                    got == want || single.is_nan() && widened(dtype, got).is_nan(),
                    "{} of {dtype} {x:#06x}: {got:#06x} instead of {want:#06x}",
                    row.op.name()
                );
            }
        }
    }
}
