//! Products of matrices whose tiles do not divide them, of operands that lie either way, with work on the result.

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Mem, Size, Tile};
use crate::ir::{BufferMode, Program};
use oxyfuel_base::{DType, Expr, Result, Symbol};

/// Types of the operands and of the sum.
const TYPES: [(DType, DType); 6] = [
    (DType::F32, DType::F32),
    (DType::BF16, DType::F32),
    (DType::F16, DType::F32),
    (DType::I8, DType::I32),
    (DType::U8, DType::I32),
    (DType::I32, DType::I32),
];

/// What happens to the sum before it is stored.
#[derive(Clone, Copy)]
struct Finish {
    has_bias: bool,
    is_clipped: bool,
    /// Another product is added to the sum, and the sum to that.
    goes_on: bool,
    /// Stored as what it is, or as the operands are.
    dtype: DType,
}

/// A matrix in memory: row-major, or turned.
struct Matrix<'a> {
    mem: &'a Mem,
    rows: &'a Size,
    cols: &'a Size,
    is_turned: bool,
}

impl Matrix<'_> {
    /// The tile of `shape` whose first element stands at `row` and `col`; zeros beyond the ends.
    fn tile(&self, k: &KernelBuilder, [row, col]: [&Tile; 2], shape: [i64; 2]) -> Tile {
        let left = [self.rows.tile() - row, self.cols.tile() - col];
        let one = k.constant(DType::I64, 1);
        let [down, across] = if self.is_turned {
            [one, self.rows.tile()]
        } else {
            [self.cols.tile(), one]
        };
        let base = row * &down + col * &across;
        let mut window = self.mem.at(&base).shape(shape);
        // A step of 1 that is known is what makes a window contiguous.
        window = if self.is_turned {
            window.stride(0, 1).stride(1, &across)
        } else {
            window.stride(0, &down)
        };
        k.load(window.valid(0, &left[0]).valid(1, &left[1]))
    }
}

/// The product that the numbers mean. Its numbers have few bits, so that sums are exact in any order.
pub fn product(numbers: &[u32]) -> Result<Case> {
    let mut choices = Choices::new(numbers);
    let (dtype, acc) = choices.pick(&TYPES);
    let tile = [16, 40, 20].map(|most| 1 + choices.below(most) as i64);
    let [m, n, k] = [20, 45, 24].map(|most| 1 + choices.below(most));
    let seed = choices.below(1 << 20) as u32;
    let is_turned = [0; 2].map(|_| choices.below(4) == 3);
    let finish = Finish {
        has_bias: choices.below(3) == 2,
        is_clipped: choices.below(3) == 2,
        dtype: choices.pick(&[acc, acc, dtype]),
        goes_on: choices.below(3) == 2,
    };
    let size = |size: usize| Given::Number(i64::try_from(size).unwrap_or(0));
    let matrix = |len: usize, seed: u32| {
        if dtype.is_float() {
            Given::quarters(dtype, len, seed)
        } else {
            Given::random(dtype, len, seed)
        }
    };
    let args = vec![
        size(m),
        size(n),
        size(k),
        matrix(m * k, seed),
        matrix(k * n, seed.wrapping_add(1)),
        Given::quarters(acc, n, seed.wrapping_add(2)),
        Given::zeros(finish.dtype, m * n),
    ];
    Ok(Case {
        program: tiled(dtype, acc, tile, is_turned, finish)?,
        args,
        open: false,
    })
}

fn tiled(
    dtype: DType,
    acc: DType,
    [tm, tn, tk]: [i64; 3],
    is_turned: [bool; 2],
    finish: Finish,
) -> Result<Program> {
    let k = KernelBuilder::new("product");
    let m = k.symbol("m", Symbol(0));
    let n = k.symbol("n", Symbol(1));
    let depth = k.symbol("k", Symbol(2));
    let a = k.buffer("a", dtype, BufferMode::Read, m.expr() * depth.expr());
    let b = k.buffer("b", dtype, BufferMode::Read, depth.expr() * n.expr());
    let bias = k.buffer("bias", acc, BufferMode::Read, n.expr());
    let c = k.buffer("c", finish.dtype, BufferMode::Write, m.expr() * n.expr());
    let left = Matrix {
        mem: &a,
        rows: &m,
        cols: &depth,
        is_turned: is_turned[0],
    };
    let right = Matrix {
        mem: &b,
        rows: &depth,
        cols: &n,
        is_turned: is_turned[1],
    };
    let grid: [Expr; 2] = [m.expr().ceildiv(tm), n.expr().ceildiv(tn)];
    k.phase(grid, |k| {
        let (row, col) = (k.program_id(0) * tm, k.program_id(1) * tn);
        let (rows, cols) = (m.tile() - &row, n.tile() - &col);
        let zero = k.full(acc, [tm, tn], 0);
        let [mut sum] = k.for_range(0, depth.tile(), tk, [zero], |k, at, [sum]| {
            let ta = left.tile(k, [&row, &at], [tm, tk]);
            let tb = right.tile(k, [&at, &col], [tk, tn]);
            [k.dot(&ta, &tb, &sum)]
        });
        if finish.goes_on {
            let at = k.constant(DType::I64, 0);
            let ta = left.tile(k, [&row, &at], [tm, tk]);
            let tb = right.tile(k, [&at, &col], [tk, tn]);
            sum = k.dot(&ta, &tb, &sum) + &sum;
        }
        if finish.has_bias {
            sum = sum + k.load(bias.at(&col).shape([1, tn]).valid(1, &cols));
        }
        if finish.is_clipped {
            sum = sum.maximum(k.constant(acc, 0));
        }
        let to = &row * &n.tile() + &col;
        k.store(
            c.at(&to)
                .shape([tm, tn])
                .stride(0, n.tile())
                .valid(0, &rows)
                .valid(1, &cols),
            sum.cast(finish.dtype),
        );
    });
    k.finish()
}
