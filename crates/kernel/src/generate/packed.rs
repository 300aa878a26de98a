//! Products of the mapped form: operands are copied into panels of the worker, then multiplied on its matrix or vector unit.
//!
//! ```text
//!   a [rows, depth]  ──▶ panel  [rows][depth]                  or read where it lies
//!   b [depth, cols]  ──▶ panel  [depth / pack][cols][pack]     or read where it lies, without a pack
//!   zero + a @ b     ──▶ in one step, or block by block of the depth ──▶ work on the result ──▶ c
//! ```
//!
//! Numbers have few bits, so that sums are exact in any order.

use super::{Case, Choices, Given};
use crate::builder::{KernelBuilder, Mem, Tile};
use crate::ir::{
    BufferMode, Geometry, MmaDim, MmaOperand, Mode, Op, Program, Space, TileLayout, Type,
};
use oxyfuel_base::{DType, Result};

/// A matrix unit's view of a type: types of the operands and of the sum, elements of `b` that lie side by side along the depth, and the depth of one step.
#[derive(Clone, Copy)]
struct Unit {
    a: DType,
    b: DType,
    acc: DType,
    pack: i64,
    step: i64,
}

const UNITS: [Unit; 7] = [
    unit(DType::F32, DType::F32, DType::F32, 1, 1),
    unit(DType::BF16, DType::BF16, DType::F32, 2, 32),
    unit(DType::I8, DType::I8, DType::I32, 4, 64),
    unit(DType::U8, DType::I8, DType::I32, 4, 64),
    unit(DType::I8, DType::U8, DType::I32, 4, 64),
    unit(DType::BF16, DType::BF16, DType::F32, 1, 4),
    unit(DType::F16, DType::F16, DType::F32, 1, 4),
];

const fn unit(a: DType, b: DType, acc: DType, pack: i64, step: i64) -> Unit {
    Unit {
        a,
        b,
        acc,
        pack,
        step,
    }
}

const LANES: u32 = 16;

/// What is multiplied, and how.
struct Shape {
    unit: Unit,
    /// Of one block, and how many of its last rows are not there.
    rows: i64,
    cols: i64,
    missing: i64,
    blocks: [i64; 2],
    /// Steps of the depth in one product, and how many of those.
    depth: i64,
    trips: i64,
    in_matrix: bool,
    is_asynchronous: bool,
    /// Operands read where they lie.
    direct: [bool; 2],
    is_clipped: bool,
}

impl Shape {
    fn read(choices: &mut Choices<'_>) -> Self {
        let unit = choices.pick(&UNITS);
        let rows = 1 + choices.below(32) as i64;
        let cols = choices.pick(&[16, 32, 8, 20, 48]);
        let steps = if unit.step > 4 { 2 } else { 6 };
        let missing = if choices.below(3) == 2 {
            choices.below(usize::try_from(rows).unwrap_or(1)) as i64
        } else {
            0
        };
        let direct = [choices.below(3) == 2, choices.below(3) == 2];
        Self {
            unit,
            rows,
            cols,
            missing,
            blocks: [0; 2].map(|_| 1 + choices.below(2) as i64),
            depth: unit.step * (1 + choices.below(steps) as i64),
            trips: 1 + choices.below(3) as i64,
            in_matrix: unit.step > 4 && cols % 16 == 0 && cols <= 32 && choices.below(4) > 0,
            is_asynchronous: choices.below(4) == 3,
            // What is not there is filled in the panel alone.
            direct: [direct[0] && missing == 0, direct[1] && unit.pack == 1],
            is_clipped: choices.below(2) == 1,
        }
    }

    fn m(&self) -> i64 {
        self.blocks[0] * self.rows - self.missing
    }

    fn n(&self) -> i64 {
        self.blocks[1] * self.cols
    }

    fn k(&self) -> i64 {
        self.depth * self.trips
    }
}

/// The product that the numbers mean.
pub fn packed(numbers: &[u32]) -> Result<Case> {
    let mut choices = Choices::new(numbers);
    let shape = Shape::read(&mut choices);
    let seed = choices.below(1 << 20) as u32;
    let matrix = |dtype: DType, len: i64, seed: u32| {
        let len = usize::try_from(len).unwrap_or(0);
        if dtype.is_float() {
            Given::quarters(dtype, len, seed)
        } else {
            Given::random(dtype, len, seed)
        }
    };
    let (m, n, k) = (shape.m(), shape.n(), shape.k());
    let args = vec![
        matrix(shape.unit.a, m * k, seed),
        matrix(shape.unit.b, k * n, seed.wrapping_add(1)),
        Given::zeros(shape.unit.acc, usize::try_from(m * n).unwrap_or(0)),
    ];
    Ok(Case {
        program: program(&shape)?,
        args,
        open: false,
    })
}

fn program(s: &Shape) -> Result<Program> {
    let k = KernelBuilder::mapped(
        "packed",
        Geometry {
            lanes: LANES,
            ..Geometry::LOGICAL
        },
    );
    let (m, n, depth) = (s.m(), s.n(), s.k());
    let a = k
        .buffer("a", s.unit.a, BufferMode::Read, m * depth)
        .aligned(64);
    let b = k
        .buffer("b", s.unit.b, BufferMode::Read, depth * n)
        .aligned(64);
    let c = k
        .buffer("c", s.unit.acc, BufferMode::Write, m * n)
        .aligned(64);
    for shape in [
        [s.rows, depth],
        [depth / s.unit.pack, s.cols],
        [s.rows, s.cols],
    ] {
        k.layout_shape(shape, TileLayout::rows(&shape, LANES));
    }
    k.phase(s.blocks, |k| {
        let (row, col) = (k.program_id(0) * s.rows, k.program_id(1) * s.cols);
        let rows_left = (s.missing > 0).then(|| &row * -1 + m);
        let panel_a = (!s.direct[0]).then(|| copy_a(k, s, &a, &row, rows_left.as_ref()));
        let panel_b = (!s.direct[1]).then(|| copy_b(k, s, &b, &col));
        if s.is_asynchronous {
            k.fence_async();
            k.sync();
        }
        let start = zeros(k, s);
        let [sum] = k.for_range(0, s.trips, 1, [start], |k, trip, [sum]| {
            let at = trip * s.depth;
            let left = match &panel_a {
                Some(panel) => panel.at(&at).shape([s.rows, s.depth]),
                None => a.at(&(&row * depth + &at)).shape([s.rows, s.depth]),
            };
            let left = left.stride(0, depth).operand([MmaDim::Side, MmaDim::K]);
            let right = right(k, s, &b, panel_b.as_ref(), &col, &at);
            let sum = k.mma(left, right, &sum, s.is_asynchronous);
            if s.is_asynchronous {
                k.mma_commit();
                return k.mma_wait(0, [sum]);
            }
            [sum]
        });
        let mut out = sum.convert_layout(TileLayout::rows(&[s.rows, s.cols], LANES));
        if s.is_clipped {
            out = out.maximum(k.constant(s.unit.acc, 0));
        }
        let mut window = c
            .at(&(&row * n + &col))
            .shape([s.rows, s.cols])
            .stride(0, n);
        if let Some(left) = &rows_left {
            window = window.valid(0, left);
        }
        k.store(window, out);
    });
    k.finish()
}

/// The accumulator: a tile of its own, since the product updates it in place.
fn zeros(k: &KernelBuilder, s: &Shape) -> Tile {
    let zero = k.constant(s.unit.acc, 0);
    let claimed = Type::tile(s.unit.acc, &[s.rows, s.cols]);
    let made = k.append(Op::Splat { value: zero.val() }, &[claimed]);
    let tile = k.tile(made.first().copied().unwrap_or(zero.val()));
    if !s.in_matrix {
        return tile;
    }
    let extent = |extent: i64| u32::try_from(extent).unwrap_or(1);
    tile.convert_layout(TileLayout {
        reg: vec![
            Mode::new(1, extent(s.cols), 1),
            Mode::new(0, extent(s.rows), 1),
        ],
        matrix: true,
        ..TileLayout::default()
    })
}

/// Rows of `a` in a panel; zeros where there are none.
fn copy_a(k: &KernelBuilder, s: &Shape, a: &Mem, row: &Tile, left: Option<&Tile>) -> Mem {
    let depth = s.k();
    let panel = k.alloc(Space::Panel, s.unit.a, s.rows * depth, None);
    let mut window = a.at(&(row * depth)).shape([s.rows, depth]);
    if let Some(left) = left {
        window = window.valid(0, left);
    }
    k.store(panel.at(0).shape([s.rows, depth]), k.load(window));
    panel
}

/// Columns of `b` in a panel, elements of the depth side by side as the unit wants them.
fn copy_b(k: &KernelBuilder, s: &Shape, b: &Mem, col: &Tile) -> Mem {
    let (depth, pack, n) = (s.k(), s.unit.pack, s.n());
    let panel = k.alloc(Space::Panel, s.unit.b, depth * s.cols, None);
    let shape = [depth / pack, s.cols];
    for lane in 0..pack {
        let from = b.at(&(col + lane * n)).shape(shape).stride(0, pack * n);
        let to = panel.at(lane).shape(shape).strides([s.cols * pack, pack]);
        k.store(to, k.load(from));
    }
    panel
}

fn right(
    k: &KernelBuilder,
    s: &Shape,
    b: &Mem,
    panel: Option<&Mem>,
    col: &Tile,
    at: &Tile,
) -> MmaOperand {
    let (pack, cols, n) = (s.unit.pack, s.cols, s.n());
    let Some(panel) = panel else {
        let window = b.at(&(at * n + col)).shape([s.depth, cols]).stride(0, n);
        return window.operand([MmaDim::K, MmaDim::Side]);
    };
    let from = panel.at(&(at * k.constant(DType::I64, cols)));
    if pack == 1 {
        return from
            .shape([s.depth, cols])
            .operand([MmaDim::K, MmaDim::Side]);
    }
    from.shape([s.depth / pack, cols, pack])
        .operand([MmaDim::K, MmaDim::Side, MmaDim::K])
}
