//! Programs over rows of many types, whose last rows and columns only the launch knows.
//!
//! Every op here rounds once, so that there is one right answer; sums of floats, where order is free, are left out.

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Tile};
use crate::ir::{BinaryOp, BufferMode, CompareOp, ReduceOp, UnaryOp};
use oxyfuel_base::{DType, Result, Symbol};

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

/// Most ops of a program.
const STEPS: usize = 14;

/// The program that the numbers mean, or nothing where its types do not fit together.
pub fn mixed(numbers: &[u32]) -> Result<Option<Case>> {
    let mut choices = Choices::new(numbers);
    let rows = 1 + choices.below(3) as i64;
    let cols = match choices.below(8) {
        0..=4 => 1 + choices.below(39) as i64,
        5 | 6 => 60 + choices.below(10) as i64,
        _ => 128,
    };
    let total_rows = 1 + choices.below(6) as i64;
    let types: Vec<DType> = (0..=choices.below(3))
        .map(|_| choices.pick(&DTYPES))
        .collect();
    let out_type = choices.pick(&DTYPES);
    let is_bounded = choices.below(10) > 6;
    let width = choices.below(80) as i64;
    let is_store_bounded = choices.below(2) == 1;
    let seed = choices.below(1 << 20) as u32;

    let k = KernelBuilder::new("fuzz");
    let total = k.symbol("rows", Symbol(0));
    let bound = k.symbol("width", Symbol(1));
    let buffers: Vec<_> = (types.iter().enumerate())
        .map(|(i, t)| {
            k.buffer(format!("x{i}"), *t, BufferMode::Read, total.expr() * cols)
                .aligned(64)
        })
        .collect();
    let out = k
        .buffer("out", out_type, BufferMode::ReadWrite, total.expr() * cols)
        .aligned(64);
    k.phase([total.expr().ceildiv(rows)], |k| {
        let row = k.program_id(0) * rows;
        let left = total.tile() - &row;
        let base = &row * cols;
        let mut tiles: Vec<Tile> = Vec::new();
        for (i, b) in buffers.iter().enumerate() {
            let mut window = b.at(&base).shape([rows, cols]).valid(0, &left);
            if is_bounded && i % 2 == 0 {
                window = window.valid(1, bound.tile()).fill(3);
            }
            tiles.push(k.load(window));
        }
        for _ in 0..STEPS {
            if choices.is_empty() {
                break;
            }
            let op = choices.below(256);
            let [a, b, c] = [0; 3].map(|_| choices.pick(&tiles));
            if let Some(tile) = step(k, op, a, b, c, [rows, cols]) {
                tiles.push(tile);
            }
        }
        let last = tiles[tiles.len() - 1].cast(out_type);
        let mut window = out.at(&base).shape([rows, cols]).valid(0, &left);
        if is_bounded && is_store_bounded {
            window = window.valid(1, bound.tile());
        }
        k.store(window, last);
    });
    let Ok(program) = k.finish() else {
        return Ok(None);
    };
    let len = usize::try_from(total_rows * cols).unwrap_or(0);
    let mut args = vec![Given::Number(total_rows), Given::Number(width)];
    for (i, dtype) in types.iter().enumerate() {
        args.push(Given::random(*dtype, len, seed.wrapping_add(i as u32 + 1)));
    }
    args.push(Given::random(out_type, len, seed.wrapping_add(77)));
    Ok(Some(Case {
        program,
        args,
        open: false,
    }))
}

fn step(k: &KernelBuilder, op: usize, a: Tile, b: Tile, c: Tile, shape: [i64; 2]) -> Option<Tile> {
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
        6 => x.compare(CompareOp::ALL[(op / 24) % CompareOp::ALL.len()], &y),
        7 | 8 => truth(&c).select(&x, &y),
        9 => x.unary(UnaryOp::Neg),
        10 => x.unary(UnaryOp::Abs),
        11 if float => x.unary(
            [
                UnaryOp::Floor,
                UnaryOp::Ceil,
                UnaryOp::Trunc,
                UnaryOp::Round,
            ][op / 24 % 4],
        ),
        11 => x.unary(UnaryOp::Not),
        12 if float => x.unary(UnaryOp::Abs).unary(UnaryOp::Sqrt),
        12 => x.binary(BinaryOp::Xor, &y),
        13 if float => x.unary(UnaryOp::IsNan),
        13 => x.binary(BinaryOp::Or, &y),
        14 | 15 => x.cast(DTYPES[op / 24 % DTYPES.len()]),
        16 => k.iota(
            [DType::I32, DType::I64][op / 24 % 2],
            shape,
            (op / 48 % 2) as u8,
        ),
        17 => truth(&a).binary(
            [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor][op / 24 % 3],
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
        21 => k.full(x.dtype(), shape, (op / 24) as f64 - 3.0),
        22 if !float => x.binary(
            [
                BinaryOp::Div,
                BinaryOp::Rem,
                BinaryOp::FloorDiv,
                BinaryOp::Mod,
            ][op / 24 % 4],
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
