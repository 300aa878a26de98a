//! Programs over tiles of one shape, in `f32` and `i32`, with loops, scans and reductions along any axis.
//!
//! They read and write these parameters, in order: `x` (f32, read), `i` (i32, read), `y` (f32, write), `z` (i32, write), each of [`Generated::len`] elements.

use oxyfuel_base::{DType, Result};

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Tile};
use crate::ir::{BinaryOp, BufferMode, CompareOp, Program, ReduceOp, UnaryOp};

/// A random program and the length of its buffers.
#[derive(Clone, Debug)]
pub struct Generated {
    pub program: Program,
    pub len: i64,
}

impl Generated {
    /// The program with data that begins at `seed`.
    pub fn case(self, seed: u32) -> Case {
        let len = usize::try_from(self.len).unwrap_or(0);
        let buffer = |dtype, seed| Given::random(dtype, len, seed);
        let args = vec![
            buffer(DType::F32, seed),
            buffer(DType::I32, seed.wrapping_add(1)),
            Given::zeros(DType::F32, len),
            Given::zeros(DType::I32, len),
        ];
        Case {
            program: self.program,
            args,
            open: false,
        }
    }
}

/// Which ops may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Only ops whose results every target must reproduce bit for bit.
    Exact,
    /// Sums, products and transcendental ops as well, whose results may differ in the last places.
    Full,
}

const SHAPES: &[&[i64]] = &[
    &[1],
    &[7],
    &[16],
    &[33],
    &[3, 20],
    &[4, 16],
    &[1, 40],
    &[2, 3, 5],
];

const EXACT_FLOAT: &[BinaryOp] = &[
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Min,
    BinaryOp::Max,
];
const EXACT_UNARY: &[UnaryOp] = &[
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Sqrt,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Trunc,
    UnaryOp::Round,
    UnaryOp::Recip,
];
const INEXACT_UNARY: &[UnaryOp] = &[
    UnaryOp::Exp,
    UnaryOp::Log,
    UnaryOp::Tanh,
    UnaryOp::Atan,
    UnaryOp::Erf,
    UnaryOp::Erfc,
    UnaryOp::Sigmoid,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Rsqrt,
];
const INT: &[BinaryOp] = &[
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Rem,
    BinaryOp::FloorDiv,
    BinaryOp::Mod,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::Shl,
    BinaryOp::Shr,
];

/// The program that the numbers mean.
pub fn generate(numbers: &[u32], vocabulary: Vocabulary) -> Result<Generated> {
    let mut choices = Choices::new(numbers);
    let shape = choices.pick(SHAPES);
    let grid = 1 + choices.below(3) as i64;
    let tile_len: i64 = shape.iter().product();
    let len = tile_len * grid;
    let k = KernelBuilder::new("generated");
    let x = k.buffer("x", DType::F32, BufferMode::Read, len);
    let i = k.buffer("i", DType::I32, BufferMode::Read, len);
    let y = k.buffer("y", DType::F32, BufferMode::Write, len);
    let z = k.buffer("z", DType::I32, BufferMode::Write, len);
    k.phase([grid], |k| {
        let base = k.program_id(0) * tile_len;
        let bound = choices.below(usize::try_from(shape[0]).unwrap_or(1)) as i64 + 1;
        let fx = if choices.below(3) == 0 {
            k.load(x.at(&base).shape(shape).valid(0, bound).fill(1.5))
        } else {
            k.load(x.at(&base).shape(shape))
        };
        let mut pool = Pool {
            floats: vec![fx],
            ints: vec![k.load(i.at(&base).shape(shape))],
            shape: shape.to_vec(),
            vocabulary,
        };
        if choices.below(4) == 0 {
            pool.in_loop(k, &mut choices);
        }
        while !choices.is_empty() {
            pool.step(k, &mut choices);
        }
        k.store(
            y.at(&base).shape(shape),
            pool.floats
                .pop()
                .unwrap_or_else(|| k.constant(DType::F32, 0.0)),
        );
        k.store(
            z.at(&base).shape(shape),
            pool.ints.pop().unwrap_or_else(|| k.constant(DType::I32, 0)),
        );
    });
    Ok(Generated {
        program: k.finish()?,
        len,
    })
}

/// Tiles of the one shape that ops may use.
struct Pool {
    floats: Vec<Tile>,
    ints: Vec<Tile>,
    shape: Vec<i64>,
    vocabulary: Vocabulary,
}

impl Pool {
    fn in_loop(&mut self, k: &KernelBuilder, choices: &mut Choices<'_>) {
        let (count, steps) = (choices.below(4) as i64, 1 + choices.below(4));
        let start = [choices.pick(&self.floats), choices.pick(&self.ints)];
        let [f, i] = k.for_range(0, count, 1, start, |k, counter, [f, i]| {
            let counted = i + counter.cast(DType::I32);
            let mut inner = Self {
                floats: vec![f],
                ints: vec![counted],
                shape: self.shape.clone(),
                vocabulary: self.vocabulary,
            };
            for _ in 0..steps {
                inner.step(k, choices);
            }
            [
                choices.pick(&inner.floats[inner.floats.len() - 1..]),
                choices.pick(&inner.ints[inner.ints.len() - 1..]),
            ]
        });
        self.floats.push(f);
        self.ints.push(i);
    }

    fn step(&mut self, k: &KernelBuilder, choices: &mut Choices<'_>) {
        let full = self.vocabulary == Vocabulary::Full;
        let (a, b) = (choices.pick(&self.floats), choices.pick(&self.floats));
        let (p, q) = (choices.pick(&self.ints), choices.pick(&self.ints));
        let axis = choices.below(self.shape.len()) as u8;
        match choices.below(12) {
            0 | 1 => self.floats.push(a.binary(choices.pick(EXACT_FLOAT), &b)),
            2 if full => self.floats.push(a.unary(choices.pick(INEXACT_UNARY))),
            2 | 3 => self.floats.push(a.unary(choices.pick(EXACT_UNARY))),
            4 => self.ints.push(p.binary(choices.pick(INT), &q)),
            5 => self.floats.push(
                a.compare(choices.pick(CompareOp::ALL), &b)
                    .select(&a, choices.below(9) as f64 - 4.0),
            ),
            6 => self.ints.push(
                p.compare(choices.pick(CompareOp::ALL), choices.below(5) as i64)
                    .select(&q, &p),
            ),
            7 => self.ints.push(if choices.below(2) == 0 {
                a.cast(DType::I32)
            } else {
                // Which NaN it is, is left open.
                let number = a.compare(CompareOp::Eq, &a).select(&a, 0.5);
                number.bitcast(DType::I32)
            }),
            8 => self.floats.push(p.cast(DType::F32)),
            9 if full => self.floats.push(a.sum(axis).broadcast_to(&self.shape)),
            9 => self.floats.push(a.fma(&b, choices.below(7) as f64 - 3.0)),
            10 => self.floats.push(
                a.reduce(choices.pick(&[ReduceOp::Min, ReduceOp::Max]), [axis])
                    .broadcast_to(&self.shape),
            ),
            11 if full => self
                .ints
                .push(p.scan(ReduceOp::Sum, axis, choices.below(2) == 1)),
            _ => self.ints.push(k.iota(DType::I32, &self.shape, axis) + &p),
        }
    }
}
