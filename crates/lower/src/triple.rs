//! A product of f32 on a CPU's matrix unit for bf16: each number as the sum of three of bf16, of whose nine products six count.
//!
//! ```text
//!   x = x0 + x1 + x2        x0 the nearest bf16, x1 that of what is left, x2 the rest: 8 bits each, all 24 of x
//!   a @ b  ~  (a0 b2 + a1 b1 + a2 b0) + (a0 b1 + a1 b0) + a0 b0        what is left out is below 2^-25 of |a| |b|
//!
//!   an instance computes  band x across  blocks of the result, 32 x 32 each
//!
//!   for each chunk of the depth:
//!     its part of a is copied in three parts       [band][part][chunk / 32][32][32]     second-level cache
//!     for each of the columns' panels:
//!       its part of b is copied in three parts     [part][chunk / 2][32][2]
//!       for each panel of a: six products, the least ones first, from zero              matrix registers
//! ```
//!
//! A unit that multiplies sixteen times as many numbers a second as the vectors do is more than twice as fast at this than they are, and sums of a chunk that begin at zero, the small products first, round no more often than theirs.
//!
//! Two things it does otherwise than f32: infinities split into NaN, and numbers below the normal ones are zero to it. A block with a result that is no number, or with one so small that products may have been lost where an operand was small enough for that, is
//! computed again, on vectors. What comes out is then what f32 gives, for all operands.
//!
//! A second operand that is stored by its outputs (`x @ w.t()`) lies as a left one does: the product is computed with sides changed, and its blocks are turned.

use oxyfuel_base::{DType, Result, ensure};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, MmaDim, MmaOperand, ReduceOp, Space};
use oxyfuel_plan::TargetDesc;

use crate::blocked::counts;
use crate::direct::Product;
use crate::map::{Spread, vector};
use crate::nest::Nest;
use crate::outputs::turned;
use crate::packed::{finish, lay_out, matrix_layout, origin, zeros};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// Rows and columns of a block, and elements of the depth of a step.
const SIDE: i64 = 32;
/// Elements of the depth that lie side by side in a panel of `b`.
const PAIR: i64 = 2;
const PARTS: i64 = 3;
/// Which parts are multiplied, the least products first.
const PRODUCTS: [(i64, i64); 6] = [(0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)];
/// Elements of the depth between two visits to the sums: both panels' parts fit the first-level cache, or nearly.
const CHUNK: i64 = 256;
/// Below so many multiply-adds, or so few of the depth, copies cost more than they save.
const WORTH: i64 = 1 << 20;
const DEEP: i64 = 64;
/// Elements of the depth that are multiplied on vectors at a time, where a block is computed again.
const AGAIN: i64 = 64;

/// Bits of a float's magnitude: from infinity on there is no number.
const MAGNITUDE: i64 = 0x7fff_ffff;
const INFINITE: i64 = 0x7f80_0000;
/// Products of numbers from here on, and what they split into, are normal numbers: 2^-45.
const SMALL: i64 = (127 - 45) << 23;
/// Results from here on are larger than all that may have been lost: 2^-89.
const LOST: i64 = (127 - 89) << 23;

/// What things cost, in cycles of a worker. Measured on Xeons with AMX; only their ratios matter.
mod cost {
    /// A step of the depth of a block: six products.
    pub const STEP: i64 = 500;
    /// To split an element, in tenths.
    pub const SPLIT: i64 = 9;
    /// To add a block's sums to those before, and to end a block.
    pub const VISIT: i64 = 300;
    pub const INSTANCE: i64 = 2_000;
}

/// Whether products are worth splitting; sizes as the kernel sees them.
fn suits(product: &Product, target: &TargetDesc) -> bool {
    let Product { batch, m, n, k, .. } = *product;
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    let f32s = [product.a.dtype, product.b.dtype, product.acc];
    target.splits_f32
        && f32s.iter().all(|dtype| *dtype == DType::F32)
        && product.pair.is_none()
        && product.late.is_none()
        && product.b.panels.is_none()
        && m.min(n) >= SIDE
        && k >= DEEP
        && work >= WORTH
}

/// How an instance is cut.
struct Blocking {
    chunk: i64,
    chunks: i64,
    /// Panels of rows and of columns.
    band: i64,
    across: i64,
}

impl Blocking {
    /// The cut that the workers are done with first.
    fn of(product: &Product, target: &TargetDesc) -> Self {
        let chunks = ceil_div(product.k, CHUNK);
        let chunk = ceil_div(ceil_div(product.k, chunks), SIDE) * SIDE;
        let chunks = ceil_div(product.k, chunk);
        let [row_blocks, col_blocks] = [product.m, product.n].map(|n| ceil_div(n, SIDE));
        let workers = i64::from(target.workers.max(1));
        let room = i64::try_from(target.l2_bytes).unwrap_or(i64::MAX) / 4 * 3;
        let panel = SIDE * chunk * PARTS * DType::BF16.size() as i64;
        let shape = |band: i64, across: i64| {
            let kept = if chunks > 1 {
                band * across * SIDE * SIDE * 4
            } else {
                0
            };
            let fits = (band + 1) * panel + kept <= room;
            let blocks = band * across;
            let instance = blocks * ceil_div(product.k, SIDE) * cost::STEP
                + (band + across) * SIDE * product.k * cost::SPLIT / 10
                + blocks * chunks * cost::VISIT
                + cost::INSTANCE;
            let instances =
                product.batch * ceil_div(row_blocks, band) * ceil_div(col_blocks, across);
            let time = ceil_div(instances, workers).saturating_mul(instance);
            (fits || (band == 1 && across == 1)).then_some((time, band, across))
        };
        let shapes = counts(row_blocks)
            .flat_map(|bands| counts(col_blocks).map(move |parts| (bands, parts)));
        let shapes = shapes.filter_map(|(bands, parts)| {
            shape(ceil_div(row_blocks, bands), ceil_div(col_blocks, parts))
        });
        let (_, band, across) = shapes.min().unwrap_or((0, 1, 1));
        Self {
            chunk,
            chunks,
            band,
            across,
        }
    }
}

/// Builds the program, or says why this product is not for it.
pub fn triple(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    whole: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    ensure!(
        suits(whole, target),
        NoLowering,
        "a product of {}x{}x{} that is not worth splitting",
        whole.m,
        whole.n,
        whole.k
    );
    let flips = whole.b.strides[0] == 1 && whole.b.strides[1] != 1;
    let product = if flips { turned(whole) } else { whole.clone() };
    let blocking = Blocking::of(&product, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    for shape in [
        [SIDE, SIDE],
        [SIDE / PAIR, SIDE],
        [SIDE, AGAIN],
        [AGAIN, SIDE],
    ] {
        lay_out(&k, &spread, &shape);
    }
    // Of the smallest and the largest number of a tile.
    k.layout_shape([1, 1], spread.layout(&[1, 1], &[SIDE, SIDE]));
    let work = Work {
        nest,
        params: &params,
        whole,
        product: &product,
        flips,
        blocking,
        spread,
    };
    let blocks = |len: i64, each: i64| ceil_div(ceil_div(len, SIDE), each);
    let grid = [
        blocks(product.m, work.blocking.band),
        blocks(product.n, work.blocking.across),
        product.batch,
    ];
    k.phase(grid, |k| work.instance(k));
    k.finish()
}

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    whole: &'a Product,
    /// The product with the sides that the kernel has.
    product: &'a Product,
    flips: bool,
    blocking: Blocking,
    spread: Spread,
}

/// The place of an instance, and what it keeps.
struct Here {
    /// First panel of rows and of columns.
    row: Tile,
    col: Tile,
    batch: Option<Tile>,
    a: Mem,
    b: Mem,
    sums: Mem,
    /// The key of the smallest number that was split.
    least: Mem,
}

/// The same order as that of magnitudes, but zero is the largest.
fn key(magnitude: &Tile) -> Tile {
    magnitude + MAGNITUDE
}

fn magnitude(x: &Tile) -> Tile {
    x.bitcast(DType::I32).binary(BinaryOp::And, MAGNITUDE)
}

/// The key of a magnitude, as the 32 bits wrap.
fn key_of(magnitude: i64) -> i64 {
    magnitude + MAGNITUDE - (1 << 32)
}

const NONE: [i64; 0] = [];

/// The smallest or largest number of a tile.
fn all(tile: &Tile, op: ReduceOp) -> Tile {
    tile.reduce(op, [0, 1]).reshape(NONE)
}

impl Work<'_> {
    fn instance(&self, k: &KernelBuilder) {
        let Blocking {
            chunk,
            chunks,
            band,
            across,
        } = self.blocking;
        let (row, col) = (k.program_id(0), k.program_id(1));
        let many = |block: &Tile, each: i64, len: i64| {
            left(block, each, ceil_div(len, SIDE)).unwrap_or_else(|| k.constant(DType::I64, each))
        };
        let counts = [
            many(&row, band, self.product.m),
            many(&col, across, self.product.n),
        ];
        let parts = |panels: i64| {
            k.alloc(
                Space::Panel,
                DType::BF16,
                panels * PARTS * SIDE * chunk,
                None,
            )
        };
        let kept = if chunks > 1 { band * across } else { 1 };
        let here = Here {
            row: row * band,
            col: col * across,
            batch: (self.product.batch > 1).then(|| k.program_id(2)),
            a: parts(band),
            b: parts(1),
            sums: k.alloc(Space::Panel, DType::F32, kept * SIDE * SIDE, None),
            least: k.alloc(Space::Panel, DType::I32, 1, None),
        };
        k.store(
            here.least.at(0),
            k.constant(DType::I32, i64::from(i32::MAX)),
        );
        if chunks > 1 {
            k.for_range(0, kept, 1, [], |k, block, []| {
                let zero = k.full(DType::F32, [SIDE, SIDE], 0.0);
                k.store(self.home(&here, &block), &zero);
                []
            });
            k.for_range(0, chunks - 1, 1, [], |k, number, []| {
                self.chunk(k, &here, &counts, &number, false);
                []
            });
        }
        let last = k.constant(DType::I64, chunks - 1);
        self.chunk(k, &here, &counts, &last, true);
    }

    fn home(&self, here: &Here, block: &Tile) -> oxyfuel_kernel::builder::Window {
        here.sums.at(block * (SIDE * SIDE)).shape([SIDE, SIDE])
    }

    /// One chunk of the depth: added to the sums, which the last one finishes.
    fn chunk(
        &self,
        k: &KernelBuilder,
        here: &Here,
        [band, across]: &[Tile; 2],
        number: &Tile,
        last: bool,
    ) {
        let Blocking { chunk, chunks, .. } = self.blocking;
        let deep = if last {
            self.product.k - (chunks - 1) * chunk
        } else {
            chunk
        };
        k.for_range(0, band, 1, [], |k, i, []| {
            self.copy_a(k, here, &i, number, deep);
            []
        });
        k.for_range(0, across, 1, [], |k, j, []| {
            self.copy_b(k, here, &j, number, deep);
            k.for_range(0, band, 1, [], |k, i, []| {
                self.block(k, here, [&i, &j], deep, last);
                []
            });
            []
        });
    }

    /// Splits a tile, and writes its parts where `home` says.
    fn split(
        &self,
        k: &KernelBuilder,
        here: &Here,
        x: &Tile,
        home: impl Fn(i64) -> oxyfuel_kernel::builder::Window,
    ) {
        let least = all(&key(&magnitude(x)), ReduceOp::Min);
        let mut rest = x.clone();
        for part in 0..PARTS {
            let rounded = rest.cast(DType::BF16);
            k.store(home(part), &rounded);
            if part + 1 < PARTS {
                rest = rest - rounded.cast(DType::F32);
            }
        }
        let cell = || here.least.at(0);
        k.store(cell(), k.load(cell()).binary(BinaryOp::Min, &least));
    }

    /// Whole steps of `deep` elements, and the elements of the one that is cut short.
    fn steps(deep: i64) -> (i64, i64) {
        (deep / SIDE, deep % SIDE)
    }

    /// The parts of panel `i` of the band.
    fn copy_a(&self, k: &KernelBuilder, here: &Here, i: &Tile, number: &Tile, deep: i64) {
        let chunk = self.blocking.chunk;
        let a = &self.product.a;
        let [down, along] = a.strides;
        let row = &here.row + i;
        let start = origin(a, &row, SIDE, down, here.batch.as_ref()) + number * (chunk * along);
        let panel = i * (PARTS * SIDE * chunk);
        let rows = left(&row, SIDE, self.product.m);
        let step = |k: &KernelBuilder, step: &Tile, present: i64| {
            let mut window = self.params.mems[a.buffer]
                .at(&start + step * (SIDE * along))
                .shape([SIDE, SIDE])
                .strides([down, along]);
            if let Some(rows) = &rows {
                window = window.valid(0, rows);
            }
            if present < SIDE {
                window = window.valid(1, present);
            }
            let x = k.load(window);
            self.split(k, here, &x, |part| {
                let at = &panel + step * (SIDE * SIDE) + part * (SIDE * chunk);
                here.a.at(at).shape([SIDE, SIDE])
            });
        };
        self.each_step(k, deep, step);
    }

    /// The parts of panel `j` of the columns: pairs of the depth side by side.
    fn copy_b(&self, k: &KernelBuilder, here: &Here, j: &Tile, number: &Tile, deep: i64) {
        let chunk = self.blocking.chunk;
        let b = &self.product.b;
        let [along, over] = b.strides;
        let col = &here.col + j;
        let start = origin(b, &col, SIDE, over, here.batch.as_ref()) + number * (chunk * along);
        let cols = left(&col, SIDE, self.product.n);
        let half = SIDE / PAIR;
        let step = |k: &KernelBuilder, step: &Tile, present: i64| {
            for lane in 0..PAIR {
                let mut window = self.params.mems[b.buffer]
                    .at(&start + step * (SIDE * along) + lane * along)
                    .shape([half, SIDE])
                    .strides([PAIR * along, over]);
                if present < SIDE {
                    window = window.valid(0, ceil_div(present - lane, PAIR));
                }
                if let Some(cols) = &cols {
                    window = window.valid(1, cols);
                }
                let x = k.load(window);
                self.split(k, here, &x, |part| {
                    let at = step * (SIDE * SIDE) + (part * SIDE * chunk + lane);
                    let home = here.b.at(at).shape([half, SIDE]);
                    home.strides([SIDE * PAIR, PAIR])
                });
            }
        };
        self.each_step(k, deep, step);
    }

    fn each_step(&self, k: &KernelBuilder, deep: i64, step: impl Fn(&KernelBuilder, &Tile, i64)) {
        let (whole, rest) = Self::steps(deep);
        if whole > 0 {
            k.for_range(0, whole, 1, [], |k, number, []| {
                step(k, &number, SIDE);
                []
            });
        }
        if rest > 0 {
            step(k, &k.constant(DType::I64, whole), rest);
        }
    }

    /// A block's six products, added to its sums; the last chunk finishes it.
    fn block(&self, k: &KernelBuilder, here: &Here, [i, j]: [&Tile; 2], deep: i64, last: bool) {
        let Blocking {
            chunk,
            chunks,
            band,
            ..
        } = self.blocking;
        let steps = ceil_div(deep, SIDE);
        let dims = [MmaDim::K, MmaDim::Side, MmaDim::K];
        let a = |part: i64| -> MmaOperand {
            let at = i * (PARTS * SIDE * chunk) + part * (SIDE * chunk);
            here.a.at(at).shape([steps, SIDE, SIDE]).operand(dims)
        };
        let b = |part: i64| -> MmaOperand {
            let at = k.constant(DType::I64, part * (SIDE * chunk));
            let pairs = here.b.at(&at).shape([steps * SIDE / PAIR, SIDE, PAIR]);
            pairs.operand(dims)
        };
        let none = zeros(k, DType::F32, SIDE, SIDE).convert_layout(matrix_layout(SIDE, SIDE));
        let sum = PRODUCTS.iter().fold(none, |sum, &(of_a, of_b)| {
            k.mma(a(of_a), b(of_b), &sum, false)
        });
        let shape = [SIDE, SIDE];
        let mut sum = sum.convert_layout(self.spread.layout(&shape, &shape));
        let number = match chunks > 1 {
            true => j * band + i,
            false => k.constant(DType::I64, 0),
        };
        let home = || self.home(here, &number);
        if chunks > 1 {
            sum = k.load(home()) + sum;
        }
        k.store(home(), &sum);
        if !last {
            return;
        }
        let (row, col) = (&here.row + i, &here.col + j);
        let bits = magnitude(&k.load(home()));
        let infinite = all(&bits, ReduceOp::Max).compare(CompareOp::Ge, INFINITE);
        let small = k
            .load(here.least.at(0))
            .compare(CompareOp::Lt, key_of(SMALL));
        let lost = all(&key(&bits), ReduceOp::Min).compare(CompareOp::Lt, key_of(LOST));
        let lost = lost.binary(BinaryOp::And, &small);
        let again = infinite.binary(BinaryOp::Or, &lost);
        k.when(&again, |k| self.again(k, here, [&row, &col], &number));
        let (at, sum) = match self.flips {
            true => ([&col, &row], k.load(home().strides([1, SIDE]))),
            false => ([&row, &col], k.load(home())),
        };
        let batch = here.batch.as_ref();
        finish(
            k,
            self.params,
            self.nest,
            self.whole,
            shape,
            at,
            batch,
            vec![sum],
        );
    }

    /// Computes a block as f32 does.
    fn again(&self, k: &KernelBuilder, here: &Here, [row, col]: [&Tile; 2], number: &Tile) {
        let Product {
            a,
            b,
            m,
            n,
            k: depth,
            ..
        } = self.product;
        let panel = || k.alloc(Space::Panel, DType::F32, SIDE * AGAIN, None);
        let (left_panel, right_panel) = (panel(), panel());
        let home = || self.home(here, number);
        k.store(home(), k.full(DType::F32, [SIDE, SIDE], 0.0));
        let batch = here.batch.as_ref();
        let starts = [
            origin(a, row, SIDE, a.strides[0], batch),
            origin(b, col, SIDE, b.strides[1], batch),
        ];
        let sides = [left(row, SIDE, *m), left(col, SIDE, *n)];
        k.for_range(0, ceil_div(*depth, AGAIN), 1, [], |k, piece, []| {
            let deep = left(&piece, AGAIN, *depth);
            let copy = |side: usize, operand: &crate::direct::Operand, to: &Mem| {
                let along = operand.strides[1 - side];
                let shape = if side == 0 {
                    [SIDE, AGAIN]
                } else {
                    [AGAIN, SIDE]
                };
                let mut window = self.params.mems[operand.buffer]
                    .at(&starts[side] + &piece * (AGAIN * along))
                    .shape(shape)
                    .strides(operand.strides);
                if let Some(left) = &sides[side] {
                    window = window.valid(side, left);
                }
                if let Some(deep) = &deep {
                    window = window.valid(1 - side, deep);
                }
                k.store(to.at(0).shape(shape), k.load(window));
            };
            copy(0, a, &left_panel);
            copy(1, b, &right_panel);
            let of_a = left_panel.at(0).shape([SIDE, AGAIN]);
            let of_b = right_panel.at(0).shape([AGAIN, SIDE]);
            let (of_a, of_b) = (
                of_a.operand([MmaDim::Side, MmaDim::K]),
                of_b.operand([MmaDim::K, MmaDim::Side]),
            );
            k.store(home(), k.mma(of_a, of_b, &k.load(home()), false));
            []
        });
    }
}
