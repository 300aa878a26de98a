//! Random tile programs: the interpreter against emitted code, bit for bit.
//!
//! Every op here rounds once, so that there is one right answer; sums of floats, where order is free, are left to other tests.

use oxyfuel_base::{Code, DType, Expr, Scalar, Symbol};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Program, ReduceOp, UnaryOp};
use oxyfuel_x86::compile;
use proptest::prelude::*;

use crate::machine::{Buf, execute, levels};

const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::I32,
    DType::BF16,
    DType::F16,
    DType::F64,
    DType::I64,
    DType::I8,
    DType::U8,
    DType::I16,
];

#[derive(Clone, Debug)]
struct Recipe {
    rows: i64,
    cols: i64,
    total_rows: i64,
    inputs: Vec<u8>,
    steps: Vec<(u8, u16, u16, u16)>,
    out: u8,
    /// Bound columns by a launch-time number.
    bound: Option<i64>,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    (
        (
            1..4i64,
            prop_oneof![1..40i64, 60..70i64, Just(128)],
            1..7i64,
        ),
        prop::collection::vec(any::<u8>(), 1..4),
        prop::collection::vec(
            (any::<u8>(), any::<u16>(), any::<u16>(), any::<u16>()),
            1..14,
        ),
        any::<u8>(),
        prop::option::weighted(0.3, 0..80i64),
    )
        .prop_map(
            |((rows, cols, total_rows), inputs, steps, out, bound)| Recipe {
                rows,
                cols,
                total_rows,
                inputs,
                steps,
                out,
                bound,
            },
        )
}

fn build(r: &Recipe) -> Option<(Program, Vec<DType>, DType)> {
    let k = KernelBuilder::new("fuzz");
    let total = k.symbol("rows", Symbol(0));
    let width = k.symbol("width", Symbol(1));
    let types: Vec<DType> = r
        .inputs
        .iter()
        .map(|n| DTYPES[*n as usize % DTYPES.len()])
        .collect();
    let buffers: Vec<_> = types
        .iter()
        .enumerate()
        .map(|(i, t)| {
            k.buffer(format!("x{i}"), *t, BufferMode::Read, total.expr() * r.cols)
                .aligned(64)
        })
        .collect();
    let out_type = DTYPES[r.out as usize % DTYPES.len()];
    let out = k
        .buffer(
            "out",
            out_type,
            BufferMode::ReadWrite,
            total.expr() * r.cols,
        )
        .aligned(64);
    let (rows, cols) = (r.rows, r.cols);
    k.phase([total.expr().ceildiv(rows)], |k| {
        let row = k.program_id(0) * rows;
        let left = total.tile() - &row;
        let base = &row * cols;
        let mut tiles: Vec<Tile> = Vec::new();
        for (i, b) in buffers.iter().enumerate() {
            let mut w = b.at(&base).shape([rows, cols]).valid(0, &left);
            if r.bound.is_some() && i % 2 == 0 {
                w = w.valid(1, width.tile()).fill(3);
            }
            tiles.push(k.load(w));
        }
        for &(op, a, b, c) in &r.steps {
            let pick = |n: u16| tiles[n as usize % tiles.len()].clone();
            if let Some(t) = step(k, op, pick(a), pick(b), pick(c), [rows, cols]) {
                tiles.push(t);
            }
        }
        let last = tiles[tiles.len() - 1].cast(out_type);
        let mut w = out.at(&base).shape([rows, cols]).valid(0, &left);
        if r.bound.is_some() && r.out.is_multiple_of(2) {
            w = w.valid(1, width.tile());
        }
        k.store(w, last);
    });
    k.finish().ok().map(|p| (p, types, out_type))
}

fn step(k: &KernelBuilder, op: u8, a: Tile, b: Tile, c: Tile, shape: [i64; 2]) -> Option<Tile> {
    let number = |t: &Tile| {
        if t.dtype().is_bool() {
            t.cast(DType::I32)
        } else {
            t.clone()
        }
    };
    let truth = |t: &Tile| {
        if t.dtype().is_bool() {
            t.clone()
        } else {
            t.cast(DType::Bool)
        }
    };
    let (x, y) = (number(&a), number(&b).cast(number(&a).dtype()));
    let float = x.dtype().is_float();
    Some(match op % 24 {
        0 => x.binary(BinaryOp::Add, &y),
        1 => x.binary(BinaryOp::Sub, &y),
        2 => x.binary(BinaryOp::Mul, &y),
        3 if float => x.binary(BinaryOp::Div, &y),
        3 => x.binary(BinaryOp::And, &y),
        4 => x.binary(BinaryOp::Min, &y),
        5 => x.binary(BinaryOp::Max, &y),
        6 => x.compare(
            CompareOp::ALL[(op as usize / 24) % CompareOp::ALL.len()],
            &y,
        ),
        7 | 8 => truth(&c).select(&x, &y),
        9 => x.unary(UnaryOp::Neg),
        10 => x.unary(UnaryOp::Abs),
        11 if float => x.unary(
            [
                UnaryOp::Floor,
                UnaryOp::Ceil,
                UnaryOp::Trunc,
                UnaryOp::Round,
            ][op as usize / 24 % 4],
        ),
        11 => x.unary(UnaryOp::Not),
        12 if float => x.unary(UnaryOp::Abs).unary(UnaryOp::Sqrt),
        12 => x.binary(BinaryOp::Xor, &y),
        13 if float => x.unary(UnaryOp::IsNan),
        13 => x.binary(BinaryOp::Or, &y),
        14 | 15 => x.cast(DTYPES[op as usize / 24 % DTYPES.len()]),
        16 => k.iota(
            [DType::I32, DType::I64][op as usize / 24 % 2],
            shape,
            op / 48 % 2,
        ),
        17 => truth(&a).binary(
            [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor][op as usize / 24 % 3],
            truth(&b),
        ),
        18 => x
            .reduce(
                if (op / 24).is_multiple_of(2) {
                    ReduceOp::Max
                } else {
                    ReduceOp::Min
                },
                [1],
            )
            .broadcast_to(shape),
        19 if !float => x.reduce(ReduceOp::Sum, [1]).broadcast_to(shape),
        19 => x.reduce(ReduceOp::Max, [1]).broadcast_to(shape),
        20 => truth(&a)
            .reduce(
                if (op / 24).is_multiple_of(2) {
                    ReduceOp::Any
                } else {
                    ReduceOp::All
                },
                [1],
            )
            .broadcast_to(shape),
        21 => k.full(x.dtype(), shape, f64::from(op / 24) - 3.0),
        22 if !float => x.binary(
            [
                BinaryOp::Div,
                BinaryOp::Rem,
                BinaryOp::FloorDiv,
                BinaryOp::Mod,
            ][op as usize / 24 % 4],
            &y,
        ),
        22 if float => x.fma(&y, number(&c).cast(x.dtype())),
        23 if !float => x.binary(
            if (op / 24).is_multiple_of(2) {
                BinaryOp::Shl
            } else {
                BinaryOp::Shr
            },
            y.binary(BinaryOp::And, &y).cast(x.dtype()),
        ),
        _ => return None,
    })
}

/// Small numbers, and the ones that break things.
fn bytes(dtype: DType, n: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut out = Vec::new();
    for _ in 0..n {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let pick = state >> 8;
        let value = match pick % 32 {
            0 => Scalar::F(f64::NAN),
            1 => Scalar::F(f64::INFINITY),
            2 => Scalar::F(-0.0),
            3 => Scalar::F(0.0),
            4 => Scalar::F(3e9),
            5 => Scalar::F(-1e38),
            6 => Scalar::I(i64::from(pick).wrapping_mul(0x1234_5678_9abc)),
            _ => Scalar::F(f64::from(pick % 4001) / 16.0 - 125.0),
        };
        out.extend_from_slice(&value.to_bits(dtype).to_le_bytes()[..dtype.size()]);
    }
    out
}

fn same(dtype: DType, a: &[u8], b: &[u8]) -> Result<(), String> {
    for (i, (x, y)) in a
        .chunks(dtype.size())
        .zip(b.chunks(dtype.size()))
        .enumerate()
    {
        let read = |c: &[u8]| {
            let mut all = [0u8; 8];
            all[..c.len()].copy_from_slice(c);
            Scalar::from_bits(dtype, u64::from_le_bytes(all))
        };
        let nan = |s: Scalar| matches!(s, Scalar::F(v) if v.is_nan());
        if x != y && !(nan(read(x)) && nan(read(y))) {
            return Err(format!(
                "element {i}: emitted {:?}, interpreted {:?}",
                read(x),
                read(y)
            ));
        }
    }
    Ok(())
}

fn check(r: &Recipe) -> Result<(), TestCaseError> {
    let Some((program, types, out_type)) = build(r) else {
        return Ok(());
    };
    let n = (r.total_rows * r.cols) as usize;
    let inputs: Vec<Buf<u8>> = types
        .iter()
        .enumerate()
        .map(|(i, t)| Buf::new(&bytes(*t, n, i as u32 + 1)))
        .collect();
    let start = bytes(out_type, n, 77);
    let width = r.bound.unwrap_or(0);
    let mut expected = start.clone();
    let mut args: Vec<Arg<'_>> = vec![
        Arg::Scalar(Scalar::I(r.total_rows)),
        Arg::Scalar(Scalar::I(width)),
    ];
    args.extend(inputs.iter().zip(&types).map(|(b, t)| Arg::Input {
        dtype: *t,
        bytes: b,
    }));
    args.push(Arg::Buffer {
        dtype: out_type,
        bytes: &mut expected,
    });
    interp::run(&program, &mut args)
        .map_err(|e| TestCaseError::fail(format!("interpreter: {e}")))?;
    drop(args);
    for (name, level) in levels() {
        let artefact = match compile(&program, level) {
            Ok(a) => a,
            Err(e) if e.code == Code::NoLowering => continue,
            Err(e) => return Err(TestCaseError::fail(format!("{name}: {e}"))),
        };
        let got = Buf::new(&start);
        let mut pointers = vec![r.total_rows as u64, width as u64];
        pointers.extend(inputs.iter().map(Buf::ptr));
        pointers.push(got.ptr());
        execute(
            &artefact,
            &pointers,
            &[(r.total_rows as u64).div_ceil(r.rows as u64)],
        );
        same(out_type, &got, &expected).map_err(|e| {
            #[cfg(feature = "listing")]
            println!("{program}\n{}", artefact.listing());
            TestCaseError::fail(format!("{name} {out_type}: {e}"))
        })?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn emitted_code_agrees_with_the_interpreter(r in recipe()) {
        check(&r)?;
    }
}

/// Most programs of the kind that fuzzing makes must have code, or the test above tests nothing.
#[test]
fn most_random_programs_have_code() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut made = [0usize; 2];
    for _ in 0..200 {
        let r = recipe().new_tree(&mut runner).expect("a recipe").current();
        let Some((program, ..)) = build(&r) else {
            continue;
        };
        made[0] += 1;
        made[1] += usize::from(compile(&program, oxyfuel_x86::Level::AVX512).is_ok());
    }
    assert!(
        made[0] > 150 && made[1] * 10 > made[0] * 8,
        "{} programs, {} with code",
        made[0],
        made[1]
    );
    let _ = Expr::ZERO;
}
