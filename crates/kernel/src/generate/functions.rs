//! Functions that targets expand: one a program, of any type that has it.
//!
//! The expansion is the same on every target and says every rounding, so that code has to give its bits. The function itself, as the interpreter knows it, is near.

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Tile};
use crate::ir::{BinaryOp, BufferMode, UnaryOp};
use oxyfuel_base::{DType, Result, Symbol};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

/// By how much arguments are made smaller: most functions do what is hard near 0 and 1.
const SCALES: [f64; 5] = [1.0, 0.0625, 0.0078125, 16.0, 9.5367431640625e-07];

#[derive(Clone, Copy)]
enum Function {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

/// Whether an op of one operand is expanded, or may be rounded in more than one way.
fn is_open(op: UnaryOp) -> bool {
    match op {
        UnaryOp::Exp
        | UnaryOp::Exp2
        | UnaryOp::NearExp2
        | UnaryOp::Expm1
        | UnaryOp::Log
        | UnaryOp::Log2
        | UnaryOp::Log1p
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Tanh
        | UnaryOp::Atan
        | UnaryOp::Erf
        | UnaryOp::Erfc
        | UnaryOp::Sigmoid
        | UnaryOp::Rsqrt
        | UnaryOp::NearRecip => true,
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Sqrt
        | UnaryOp::Recip
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Trunc
        | UnaryOp::Round
        | UnaryOp::IsNan => false,
    }
}

/// The program that the numbers mean.
pub fn functions(numbers: &[u32]) -> Result<Case> {
    let open = UnaryOp::ALL.iter().filter(|op| is_open(**op));
    let mut all: Vec<Function> = open.map(|op| Function::Unary(*op)).collect();
    all.extend([BinaryOp::Pow, BinaryOp::Rem].map(Function::Binary));
    let mut choices = Choices::new(numbers);
    let function = choices.pick(&all);
    let dtype = choices.pick(&DTYPES);
    let scale = choices.pick(&SCALES);
    let is_positive = choices.below(3) == 2;
    let cols = 1 + choices.below(40) as i64;
    let rows = 1 + choices.below(3);
    let seed = choices.below(1 << 20) as u32;

    let k = KernelBuilder::new("functions");
    let total = k.symbol("rows", Symbol(0));
    let [x, y] = ["x", "y"].map(|name| {
        k.buffer(name, dtype, BufferMode::Read, total.expr() * cols)
            .aligned(64)
    });
    let out = k
        .buffer("out", dtype, BufferMode::Write, total.expr() * cols)
        .aligned(64);
    k.phase([total.expr()], |k| {
        let base = k.program_id(0) * cols;
        let near = |tile: Tile| {
            let tile = if is_positive { tile.abs() } else { tile };
            tile * scale
        };
        let a = near(k.load(x.at(&base).shape([1, cols])));
        let value = match function {
            Function::Unary(op) => a.unary(op),
            Function::Binary(op) => a.binary(op, k.load(y.at(&base).shape([1, cols]))),
        };
        k.store(out.at(&base).shape([1, cols]), value);
    });
    let len = rows * usize::try_from(cols).unwrap_or(1);
    let args = vec![
        Given::Number(i64::try_from(rows).unwrap_or(1)),
        Given::random(dtype, len, seed),
        Given::random(dtype, len, seed.wrapping_add(1)),
        Given::zeros(dtype, len),
    ];
    Ok(Case {
        program: k.finish()?,
        args,
        open: true,
    })
}
