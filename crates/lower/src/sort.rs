//! Positions in order: every instance sorts one row.
//!
//! Elements become integer keys that compare as the elements should: NaN above everything, -0 as 0, complemented for a descending order.
//!
//! ```text
//!   short rows   the place of an element is how many keys stand before it, counted a vector at a time
//!   long rows    keys ─▶ count every digit ─▶ for each digit, lowest first: places from the counts, (key, position) moved there
//! ```
//!
//! Both keep equal elements as they stand. On a GPU, rows of known length have a block of threads each ([`crate::select`]), and all multiprocessors sort long rows and those that only the call knows to be long
//! ([`crate::digits`]).

use oxyfuel_base::{DType, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::nest::{Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::tile::Tiling;

/// Rows up to this length are sorted by counting; the table of digits costs more than the comparisons.
pub const SHORT: i64 = 256;
/// Values of one digit.
const DIGIT: i64 = 256;
const DIGIT_BITS: u32 = 8;

/// The node that sorts, and the dim along which it does.
pub fn along(nest: &Nest) -> Option<(Node, usize)> {
    let sorts = |node: &Node| matches!(nest.values[*node].op, NestOp::Order { .. });
    let node = (0..nest.values.len()).find(sorts)?;
    Some((node, nest.reduced.iter().next()?))
}

/// Adds the phase that sorts the rows of `nest` along a dim.
pub fn emit_sort(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    (node, along): (Node, usize),
    target: &TargetDesc,
) {
    let lanes = i64::from(target.lanes(4));
    let Some(sort) = Sort::of(nest, params, (node, along), lanes) else {
        return;
    };
    let mut block = vec![1; nest.rank()];
    block[along] = sort.lanes;
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(nest, &tiling, nest.reduced);
    let long = (nest.guess(along) > SHORT).then(|| Scratch::new(k, &sort, target));
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let frame = Frame::new(k, params, nest, &tiling, &blocks);
        match &long {
            Some(scratch) => sort.by_digits(k, &frame, scratch),
            None => sort.by_counting(k, &frame),
        }
    });
}

/// What is sorted, and how.
pub struct Sort<'a> {
    pub params: &'a Params,
    pub nest: &'a Nest,
    pub along: usize,
    pub node: Node,
    pub operand: Node,
    pub descending: bool,
    pub lanes: i64,
}

/// Memory of long rows: keys and positions twice, since a digit's pass reads one copy and writes the other, and the counts of every digit.
struct Scratch {
    keys: [Mem; 2],
    positions: [Mem; 2],
    counts: Mem,
    /// Counts that are cleared at a time.
    cleared: i64,
}

impl Scratch {
    fn new(k: &KernelBuilder, sort: &Sort<'_>, target: &TargetDesc) -> Self {
        let rows = &sort.rows();
        let elements = rows * &sort.nest.dims[sort.along];
        let workspace = |name: &str, dtype: DType, len: Expr| {
            k.buffer(name, dtype, BufferMode::Workspace, len)
                .aligned(64)
        };
        let twice = |name: &str, dtype: DType| {
            [0, 1].map(|i| workspace(&format!("{name}{i}"), dtype, elements.clone()))
        };
        Self {
            keys: twice("keys", sort.key_dtype()),
            positions: twice("positions", sort.position_dtype()),
            counts: workspace(
                "counts",
                sort.position_dtype(),
                rows * &Expr::constant(DIGIT * sort.digits()),
            ),
            // On a GPU one lane does all that a row's counts depend on: lanes do not see each other's writes without a barrier.
            cleared: if target.is_simt() { 1 } else { 64 },
        }
    }
}

/// What keys of elements are compared as.
pub fn key_of(dtype: DType) -> DType {
    match dtype {
        DType::U32 => DType::I64,
        dtype if dtype.bits() == 64 => DType::I64,
        _ => DType::I32,
    }
}

impl<'a> Sort<'a> {
    /// The sort of a node; nothing where it is none.
    pub fn of(
        nest: &'a Nest,
        params: &'a Params,
        (node, along): (Node, usize),
        lanes: i64,
    ) -> Option<Self> {
        let NestOp::Order {
            operand,
            descending,
            ..
        } = nest.values[node].op
        else {
            return None;
        };
        Some(Self {
            params,
            nest,
            along,
            node,
            operand,
            descending,
            lanes,
        })
    }

    /// How many rows are sorted.
    pub fn rows(&self) -> Expr {
        let dims = (0..self.nest.rank()).filter(|&d| d != self.along);
        dims.map(|d| self.nest.dims[d].clone()).product()
    }

    pub fn dtype(&self) -> DType {
        self.nest.values[self.operand].dtype
    }

    pub fn key_dtype(&self) -> DType {
        key_of(self.dtype())
    }

    /// Whether the highest digit of a key carries a sign.
    pub fn has_sign(&self) -> bool {
        let dtype = self.dtype();
        dtype.is_float() || dtype.is_signed() || dtype == DType::U64
    }

    pub fn position_dtype(&self) -> DType {
        if self.nest.most(self.along) <= i64::from(i32::MAX) {
            DType::I32
        } else {
            DType::I64
        }
    }

    /// Digits of a key that may differ; narrow integers use the low ones.
    fn digits(&self) -> i64 {
        i64::from(self.dtype().bits().div_ceil(DIGIT_BITS))
    }

    /// Elements as integers in the wanted order.
    fn key(&self, x: &Tile) -> Tile {
        let key = match self.dtype() {
            DType::F32 | DType::F64 => {
                let (integer, most) = match self.dtype() {
                    DType::F64 => (DType::I64, i64::MAX),
                    _ => (DType::I32, i64::from(i32::MAX)),
                };
                let bits = x.bitcast(integer);
                let negative = bits.compare(CompareOp::Lt, 0i64);
                let ordered = negative.select(bits.binary(BinaryOp::Xor, most), &bits);
                // Both zeros are one key.
                let zero = x.compare(CompareOp::Eq, 0.0f64);
                let ordered = zero.select(0i64, &ordered);
                x.compare(CompareOp::Ne, x).select(most, &ordered)
            }
            DType::U64 => x.bitcast(DType::I64).binary(BinaryOp::Xor, i64::MIN),
            _ => x.cast(self.key_dtype()),
        };
        if self.descending {
            key.binary(BinaryOp::Xor, -1i64)
        } else {
            key
        }
    }

    /// The elements from `at` on.
    pub fn keys(&self, frame: &Frame<'_>, at: &Tile, block: i64) -> Tile {
        self.keys_of(frame.at_chunk(self.along, at, block))
    }

    /// The elements of a frame.
    pub fn keys_of(&self, mut inner: Frame<'_>) -> Tile {
        for node in 0..self.node {
            inner.value(node);
        }
        self.key(&inner.get(self.operand))
    }

    fn key_at(&self, frame: &Frame<'_>, at: &Tile) -> Tile {
        scalar(self.keys(frame, at, 1))
    }

    /// Writes where an element of the input stood into its place of the result.
    fn put(&self, frame: &Frame<'_>, place: &Tile, position: &Tile) {
        let inner = frame.at_chunk(self.along, place, 1);
        self.put_tile(inner, position.cast(DType::I64));
    }

    /// Writes what stands at the places of a frame.
    pub fn put_tile(&self, mut inner: Frame<'_>, positions: Tile) {
        inner.give(self.node, positions);
        for node in self.node + 1..self.nest.values.len() {
            inner.value(node);
        }
        for store in &self.nest.stores {
            inner.store(store.value, &store.window);
        }
    }

    fn by_counting(&self, k: &KernelBuilder, frame: &Frame<'_>) {
        let sizes = &self.params.sizes;
        let extent = sizes.tile(&self.nest.dims[self.along]);
        let end = sizes.index(&self.nest.dims[self.along]);
        k.for_range(0, end, 1, [], |k, at, []| {
            let key = self.key_at(frame, &at);
            let zero = k.constant(DType::I64, 0);
            let [place] = k.for_range(0, end, self.lanes, [zero], |k, from, [place]| {
                // One key stands for all where the operand is the same along the dim.
                let shape = [self.lanes];
                let keys = self.keys(frame, &from, self.lanes).broadcast_to(shape);
                let there = k.iota(DType::I64, shape, 0) + &from;
                let before = there
                    .compare(CompareOp::Lt, &at)
                    .binary(BinaryOp::And, keys.compare(CompareOp::Eq, &key))
                    .binary(BinaryOp::Or, keys.compare(CompareOp::Lt, &key))
                    .binary(BinaryOp::And, there.compare(CompareOp::Lt, &extent));
                let ones = before.select(k.full(DType::I32, shape, 1), 0i64);
                let count = scalar(ones.reduce(ReduceOp::Sum, [0]));
                [place + count.cast(DType::I64)]
            });
            self.put(frame, &place, &at);
            []
        });
    }

    fn by_digits(&self, k: &KernelBuilder, frame: &Frame<'_>, scratch: &Scratch) {
        let sizes = &self.params.sizes;
        let length = &self.nest.dims[self.along];
        let end = sizes.index(length);
        let row = frame.row(self.along);
        let first = sizes.times(&row, length);
        let digits = self.digits();
        let counts = row * (DIGIT * digits);
        let cell = |digit: i64, key: &Tile| {
            let value = key
                .binary(BinaryOp::Shr, digit * i64::from(DIGIT_BITS))
                .binary(BinaryOp::And, DIGIT - 1);
            let value = if digit + 1 == digits && self.has_sign() {
                value.binary(BinaryOp::Xor, DIGIT / 2)
            } else {
                value
            };
            scratch
                .counts
                .at(value.cast(DType::I64) + &counts + digit * DIGIT)
        };
        let counter = self.position_dtype();
        let nothing = k.full(counter, [scratch.cleared], 0);
        k.for_range(0, DIGIT * digits, scratch.cleared, [], |k, at, []| {
            let some = scratch.counts.at(at + &counts).shape([scratch.cleared]);
            k.store(some, &nothing);
            []
        });
        k.for_range(0, end, 1, [], |k, at, []| {
            let key = self.key_at(frame, &at);
            for digit in 0..digits {
                let count = k.load(cell(digit, &key));
                k.store(cell(digit, &key), count + 1);
            }
            k.store(scratch.keys[0].at(&at + &first), &key);
            k.store(scratch.positions[0].at(&at + &first), at.cast(counter));
            []
        });
        for digit in 0..digits {
            let base = &counts + digit * DIGIT;
            let zero = k.constant(counter, 0);
            k.for_range(0, DIGIT, 1, [zero], |k, at, [sum]| {
                let cell = || scratch.counts.at(&at + &base);
                let count = k.load(cell());
                k.store(cell(), &sum);
                [sum + count]
            });
            let (from, to) = ((digit % 2) as usize, (1 - digit % 2) as usize);
            k.for_range(0, end, 1, [], |k, at, []| {
                let key = k.load(scratch.keys[from].at(&at + &first));
                let position = k.load(scratch.positions[from].at(&at + &first));
                let place = k.load(cell(digit, &key));
                k.store(cell(digit, &key), &place + 1);
                let place = place.cast(DType::I64);
                if digit + 1 == digits {
                    self.put(frame, &place, &position);
                } else {
                    k.store(scratch.keys[to].at(&place + &first), &key);
                    k.store(scratch.positions[to].at(&place + &first), &position);
                }
                []
            });
        }
    }
}

/// A tile of one element as a number.
pub fn scalar(tile: Tile) -> Tile {
    if tile.shape().is_empty() {
        tile
    } else {
        tile.reshape([0i64; 0])
    }
}
