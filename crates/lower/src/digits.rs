//! Positions in order on a GPU by all of its multiprocessors: long rows, and rows whose length only the call knows, digit by digit.
//!
//! A row is cut into tiles with a block of threads each. Digits have eight bits, the lowest come first, and each takes three phases:
//!
//! ```text
//!   sort    a tile              keys ─▶ by the digit in shared memory, four bits a round ─▶ stored;  how often each value occurs, and where it begins in the tile
//!   count   a row, or a value   counts added up over the tiles of a row ─▶ where a tile's elements of a value go, from the value's first place on
//!   place   a tile              where each value begins in the row ─▶ (key, position) moved there; for the last digit, positions are the result
//! ```
//!
//! Every step keeps equal digits as they stand, so that the whole is a stable sort. Nothing is counted by atomics: results are the same in every run, and keys that are much alike cost what others do. Elements of one value
//! lie side by side in a sorted tile, so that neighbouring threads move them to neighbouring places.
//!
//! In a round a thread has elements that follow each other. It counts their four bits in bytes of two words, the block adds up what all threads before have in quarters of four words, and a place is the sum of a quarter and a byte:
//!
//! ```text
//!   a thread's counts    [0 1 2 3 4 5 6 7] [8 9 a b c d e f]
//!   the block's sums     [0 2 4 6] [1 3 5 7] [8 a c e] [9 b d f]
//! ```

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Order, ReduceOp, Space};
use oxyfuel_plan::TargetDesc;

use crate::nest::{Dims, Nest, NestOp, Node};
use crate::rows::{Blocks, Frame};
use crate::select::Places;
use crate::size::Params;
use crate::sort::{SHORT, Sort, key_of};
use crate::team::{Before, Last, Team};
use crate::tile::Tiling;

/// Threads of a block: one for each value of a digit.
const THREADS: i64 = 1 << DIGIT_BITS;
const DIGIT_BITS: u32 = 8;
/// Bits that one round sorts by.
const ROUND_BITS: u32 = 4;
/// Values of them.
const VALUES: i64 = 1 << ROUND_BITS;
/// Elements of a thread: so many make runs of one value as long as what memory moves at a time, where values are spread evenly.
const EACH: i64 = 8;
const TILE: i64 = THREADS * EACH;
/// Tiles whose counts a thread reads at once, where it adds up those of a value; and tiles of a row up to which a thread does so however few the rows. Many rows keep the machine busy with longer ones.
const AT_ONCE: i64 = 8;
const FEW_TILES: i64 = 16;
/// Rows of known length that shared memory has room for are sorted there by a block each, where they are shorter or where there are many.
const FEW_LONG: i64 = 8192;
/// The even bytes of a word as its quarters, and a number in each quarter.
const BYTES: i64 = 0x00ff_00ff_00ff_00ff;
const QUARTERS: i64 = 0x0001_0001_0001_0001;

/// Whether rows are sorted by all multiprocessors, not a block each.
fn pays(nest: &Nest, (node, along): (Node, usize), key: DType, target: &TargetDesc) -> bool {
    let Some(length) = nest.dims[along].as_const() else {
        return nest.guess(along) > SHORT;
    };
    let rows = (0..nest.rank()).filter(|&d| d != along);
    let rows = rows.fold(1i64, |all, d| all.saturating_mul(nest.guess(d)));
    let few = rows < i64::from(target.workers);
    let places = Places::of(nest, (node, along));
    let whole = places.is_none_or(|places| !places.chosen);
    let fit = places.is_some_and(|places| places.fit(key, target));
    length > FEW_LONG && whole && (few || !fit)
}

/// Whether a nest stores the order, and nothing that is made of it: a digit's places are where the result goes.
fn is_plain(nest: &Nest, node: Node) -> bool {
    let everywhere = |strides: &[Expr]| {
        let mut dims = strides.iter().zip(&nest.dims);
        dims.all(|(stride, dim)| dim.is_const(1) || !stride.is_const(0))
    };
    node + 1 == nest.values.len()
        && nest.scatters.is_empty()
        && (nest.stores.iter())
            .all(|store| store.value == node && everywhere(&store.window.strides))
}

/// Builds the program that sorts the rows of `nest` along a dim by all multiprocessors; nothing where a block a row is faster.
pub fn by_digits(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    (node, along): (Node, usize),
    target: &TargetDesc,
) -> Result<Option<(Program, Params)>> {
    let NestOp::Order {
        operand, wanted, ..
    } = nest.values[node].op
    else {
        return Ok(None);
    };
    let team = Team::of(THREADS, target);
    let key = key_of(nest.values[operand].dtype);
    let known = team.threads == THREADS && is_plain(nest, node);
    if !known || !pays(nest, (node, along), key, target) {
        return Ok(None);
    }
    let k = KernelBuilder::mapped(&nest.name, team.geometry);
    let params = params_of(&k);
    team.lay_out(&k);
    let Some(sort) = Sort::of(nest, &params, (node, along), THREADS) else {
        return Ok(None);
    };
    let rows = sort.rows();
    let mut block = vec![1; nest.rank()];
    block[along] = TILE;
    let tiling = Tiling::of(block);
    let blocks = Blocks::new(nest, &tiling, Dims::default());
    let digits = digits_of(&sort);
    let few_tiles = FEW_TILES.max(nest.known.guess(&rows).saturating_mul(2));
    let work = ByDigits {
        scratch: Scratch::new(&k, &sort, &rows, &blocks.count[along]),
        rows: nest.known.guess(&blocks.count[along]) <= few_tiles,
        tiles: blocks.count[along].clone(),
        sort: &sort,
        wanted,
    };
    let grid = match work.rows {
        true => rows,
        false => rows * Expr::constant(THREADS),
    };
    for (number, &shift) in digits.iter().enumerate() {
        let last = number + 1 == digits.len();
        k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
            let frame = Frame::new(k, &params, nest, &tiling, &blocks);
            work.sort_tile(k, &Part::new(k, &work, &frame), shift, number == 0);
        });
        k.phase_ordered([grid.clone()], Order::Plain, |k| match work.rows {
            true => work.count_row(k),
            false => work.count_value(k),
        });
        k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
            let frame = Frame::new(k, &params, nest, &tiling, &blocks);
            work.place_tile(k, &Part::new(k, &work, &frame), shift, last);
        });
    }
    Ok(Some((k.finish()?, params)))
}

/// Where the digits of keys begin, the lowest first: those of bits that may differ.
fn digits_of(sort: &Sort<'_>) -> Vec<u32> {
    let narrow = match sort.nest.values[sort.operand].op {
        NestOp::Cast(narrow) => sort.nest.values[narrow].dtype,
        _ => sort.dtype(),
    };
    // What was a half before has these last bits all alike where it has the others so.
    let begin = match (sort.dtype(), narrow) {
        (DType::F32, DType::BF16) => 16,
        (DType::F32, DType::F16) => 13,
        _ => 0,
    };
    let digits = (begin..sort.dtype().bits()).step_by(DIGIT_BITS as usize);
    digits.collect()
}

/// The digit that begins at a bit. Beyond a key's end it has copies of the highest bit, which change no order.
fn digit(key: &Tile, shift: u32) -> Tile {
    let value = key.binary(BinaryOp::Shr, i64::from(shift));
    value.binary(BinaryOp::And, THREADS - 1).cast(DType::I32)
}

/// Memory of whole rows. A digit reads the first keys and positions, has them sorted tile by tile in the second, and moves them back.
struct Scratch {
    keys: [Mem; 2],
    positions: [Mem; 2],
    /// Of every value and tile of a row: how often it occurs, and from bit 16 on where it begins in the tile.
    counts: Mem,
    /// Of the same: where the tile's first element would go, counted from the value's first one.
    places: Mem,
    /// Of every value of a row: how often it occurs.
    totals: Mem,
}

impl Scratch {
    fn new(k: &KernelBuilder, sort: &Sort<'_>, rows: &Expr, tiles: &Expr) -> Self {
        let workspace = |name: &str, dtype, len: &Expr| {
            k.buffer(name, dtype, BufferMode::Workspace, len.clone())
                .aligned(64)
        };
        let position = sort.position_dtype();
        let elements = rows * &sort.nest.dims[sort.along];
        let values = Expr::constant(THREADS) * rows;
        let cells = &values * tiles;
        let twice = |name: &str, dtype| {
            [0, 1].map(|number| workspace(&format!("{name}{number}"), dtype, &elements))
        };
        Self {
            keys: twice("keys", sort.key_dtype()),
            positions: twice("positions", position),
            counts: workspace("counts", DType::I32, &cells),
            places: workspace("places", position, &cells),
            totals: workspace("totals", position, &values),
        }
    }
}

/// One tile of a row.
struct Part<'a> {
    frame: &'a Frame<'a>,
    /// Its first element, and how many there are.
    begin: Tile,
    count: Tile,
    /// The first element of its row among those of all rows.
    row: Tile,
    /// Each thread's value among those of all rows, and that value's cell of this tile.
    value: Tile,
    cell: Tile,
}

impl<'a> Part<'a> {
    fn new(k: &KernelBuilder, work: &ByDigits<'_>, frame: &'a Frame<'a>) -> Self {
        let (along, sizes) = (work.sort.along, &work.sort.params.sizes);
        let length = &work.sort.nest.dims[along];
        let row = frame.row(along);
        let (begin, _) = frame.range(along);
        let number = begin.binary(BinaryOp::Shr, i64::from(TILE.trailing_zeros()));
        let count = sizes.minus(length, &begin).binary(BinaryOp::Min, TILE);
        let me = k.iota(DType::I64, [THREADS], 0);
        let value = &me + &row * THREADS;
        let cell = match work.rows {
            true => (sizes.times(&row, &work.tiles) + number) * THREADS + me,
            false => sizes.times(&value, &work.tiles) + number,
        };
        Self {
            frame,
            begin,
            count: count.cast(DType::I32),
            row: sizes.times(&row, length),
            value,
            cell,
        }
    }
}

struct ByDigits<'a> {
    sort: &'a Sort<'a>,
    scratch: Scratch,
    /// Tiles of a row.
    tiles: Expr,
    /// Whether a block adds up counts of all values of a row, each thread those of one; or of one value, each thread those of some tiles.
    rows: bool,
    wanted: Option<i64>,
}

/// The elements of a tile in shared memory.
struct Shared {
    keys: Mem,
    positions: Mem,
}

impl Shared {
    fn new(k: &KernelBuilder, sort: &Sort<'_>) -> Self {
        let len = TILE + (TILE >> BANK_BITS);
        Self {
            keys: k.alloc(Space::Shared, sort.key_dtype(), len, None),
            positions: k.alloc(Space::Shared, sort.position_dtype(), len, None),
        }
    }

    fn put(&self, k: &KernelBuilder, place: &Tile, [key, position]: [&Tile; 2]) {
        let at = spread(place);
        k.scatter(&self.keys, &at, key, None);
        k.scatter(&self.positions, &at, position, None);
    }

    fn get(&self, k: &KernelBuilder, place: &Tile) -> [Tile; 2] {
        let at = spread(place);
        [&self.keys, &self.positions].map(|mem| k.gather(mem, &at, None, 0))
    }
}

/// Banks of shared memory, as a power of two.
const BANK_BITS: i64 = 5;

/// Where an element lies: threads that read one each of those that follow each other meet no two in one bank.
fn spread(place: &Tile) -> Tile {
    place + place.binary(BinaryOp::Shr, BANK_BITS)
}

/// The number of each thread.
fn threads(k: &KernelBuilder) -> Tile {
    k.iota(DType::I32, [THREADS], 0)
}

impl ByDigits<'_> {
    /// Sorts a tile by a digit, and counts its values.
    fn sort_tile(&self, k: &KernelBuilder, part: &Part<'_>, shift: u32, first: bool) {
        let me = threads(k);
        let shared = Shared::new(k, self.sort);
        // Where each value's elements begin in the sorted tile, and where they end.
        let [begins, ends] = [0, 1].map(|_| k.alloc(Space::Shared, DType::I32, THREADS, None));
        for bounds in [&begins, &ends] {
            k.scatter(bounds, &me, 0i64, None);
        }
        for step in 0..EACH {
            let place = &me + step * THREADS;
            let [key, position] = match first {
                true => self.element(k, part, step),
                false => self.load(k, part, 0, step),
            };
            shared.put(k, &place, [&key, &position]);
        }
        k.sync();
        let rounds = Rounds::new(k);
        let count = DIGIT_BITS / ROUND_BITS;
        k.for_range(0, i64::from(count), 1, [], |k, round, []| {
            let shift = round * i64::from(ROUND_BITS) + i64::from(shift);
            rounds.sort(k, &shared, &shift, &part.count);
            []
        });
        for step in 0..EACH {
            let place = &me + step * THREADS;
            let [key, position] = shared.get(k, &place);
            self.store(k, part, step, [&key, &position]);
            let before = (&place - 1).binary(BinaryOp::Max, 0i64);
            let (value, before) = (digit(&key, shift), digit(&shared.get(k, &before)[0], shift));
            let differs = value.compare(CompareOp::Ne, &before);
            let begin = place.compare(CompareOp::Eq, 0i64);
            let inside = place.compare(CompareOp::Lt, &part.count);
            let begin = begin.binary(BinaryOp::Or, &differs);
            k.scatter(
                &begins,
                &value,
                &place,
                Some(&begin.binary(BinaryOp::And, &inside)),
            );
            let end = differs.binary(BinaryOp::And, &inside);
            k.scatter(&ends, &before, &place, Some(&end));
            let last = (&place + 1).compare(CompareOp::Eq, &part.count);
            k.scatter(&ends, &value, &place + 1, Some(&last));
        }
        k.sync();
        let [begin, end] = [&begins, &ends].map(|bounds| k.gather(bounds, &me, None, 0));
        let count = (end - &begin) + begin.binary(BinaryOp::Shl, 16i64);
        k.scatter(&self.scratch.counts, &part.cell, &count, None);
    }

    /// How often a value occurs in a tile, and where it begins there.
    fn cell(&self, k: &KernelBuilder, cell: &Tile, there: &Tile) -> [Tile; 2] {
        let dtype = self.sort.position_dtype();
        let count = k.gather(&self.scratch.counts, cell, Some(there), 0);
        let begin = count.binary(BinaryOp::Shr, 16i64).cast(dtype);
        [count.binary(BinaryOp::And, 0xffff_i64).cast(dtype), begin]
    }

    /// Says where the elements of a value go, tile by tile.
    fn count_value(&self, k: &KernelBuilder) {
        let dtype = self.sort.position_dtype();
        let sizes = &self.sort.params.sizes;
        let value = k.program_id(0);
        let first = sizes.times(&value, &self.tiles);
        let extent = sizes.tile(&self.tiles);
        let before = Before::new(k, THREADS, ReduceOp::Sum, dtype);
        let last = Last::new(k, THREADS, dtype, 1);
        let zero = before.nothing(k);
        let end = sizes.index(&self.tiles);
        let [total] = k.for_range(0, end, THREADS, [zero], |k, at, [sum]| {
            let tile = k.iota(DType::I64, [THREADS], 0) + &at;
            let there = tile.compare(CompareOp::Lt, &extent);
            let cell = tile + &first;
            let [own, begin] = self.cell(k, &cell, &there);
            let here = before.up_to(k, own.clone());
            let place = &here - own + &sum - begin;
            k.scatter(&self.scratch.places, &cell, &place, Some(&there));
            [sum + last.of(k, &here)]
        });
        let first = threads(k).compare(CompareOp::Eq, 0i64);
        let value = k.full(DType::I64, [THREADS], 0i64) + value;
        k.scatter(&self.scratch.totals, &value, &total, Some(&first));
    }

    /// The same for all values of a row.
    fn count_row(&self, k: &KernelBuilder) {
        let dtype = self.sort.position_dtype();
        let sizes = &self.sort.params.sizes;
        let row = k.program_id(0);
        let me = k.iota(DType::I64, [THREADS], 0);
        let first = sizes.times(&row, &self.tiles);
        let (extent, end) = (sizes.tile(&self.tiles), sizes.index(&self.tiles));
        let zero = k.full(dtype, [THREADS], 0i64);
        let none = k.full(DType::I64, [THREADS], 0i64);
        let [total] = k.for_range(0, end, AT_ONCE, [zero], |k, at, [mut sum]| {
            let cells: Vec<_> = (0..AT_ONCE)
                .map(|step| {
                    let tile = &at + step;
                    let there = (&none + &tile).compare(CompareOp::Lt, &extent);
                    let cell = (tile + &first) * THREADS + &me;
                    let counts = self.cell(k, &cell, &there);
                    (cell, there, counts)
                })
                .collect();
            for (cell, there, [own, begin]) in cells {
                let place = &sum - begin;
                k.scatter(&self.scratch.places, &cell, &place, Some(&there));
                sum = sum + own;
            }
            [sum]
        });
        let value = row * THREADS + me;
        k.scatter(&self.scratch.totals, &value, &total, None);
    }

    /// Moves the elements of a sorted tile to their places by a digit.
    fn place_tile(&self, k: &KernelBuilder, part: &Part<'_>, shift: u32, last: bool) {
        let me = threads(k);
        let dtype = self.sort.position_dtype();
        let total = k.gather(&self.scratch.totals, &part.value, None, 0);
        let before = Before::new(k, THREADS, ReduceOp::Sum, dtype);
        let place = k.gather(&self.scratch.places, &part.cell, None, 0);
        let begin = before.up_to(k, total.clone()) - total + place;
        let begins = k.alloc(Space::Shared, dtype, THREADS, None);
        k.scatter(&begins, &me, &begin, None);
        k.sync();
        for step in 0..EACH {
            let [key, position] = self.load(k, part, 1, step);
            let there = &me + step * THREADS;
            let mut inside = there.compare(CompareOp::Lt, &part.count);
            let place = k.gather(&begins, &digit(&key, shift), None, 0) + there.cast(dtype);
            if last {
                if let Some(wanted) = self.wanted {
                    let wanted = place.compare(CompareOp::Lt, wanted);
                    inside = inside.binary(BinaryOp::And, wanted);
                }
                let (place, position) = (place.cast(DType::I64), position.cast(DType::I64));
                for store in &self.sort.nest.stores {
                    let elements = (&place, &position);
                    (part.frame).scatter(&store.window, self.sort.along, elements, &inside);
                }
            } else {
                let place = place.cast(DType::I64) + &part.row;
                k.scatter(&self.scratch.keys[0], &place, &key, Some(&inside));
                k.scatter(&self.scratch.positions[0], &place, &position, Some(&inside));
            }
        }
    }

    /// Elements of a tile as the operand has them, one a thread, and where they stand in the row.
    fn element(&self, k: &KernelBuilder, part: &Part<'_>, step: i64) -> [Tile; 2] {
        let along = self.sort.along;
        let at = &part.begin + step * THREADS;
        let sizes = &self.sort.params.sizes;
        let end = sizes.tile(&self.sort.nest.dims[along]);
        let inner = (part.frame).at_chunk_before(along, &at, THREADS, &end);
        let keys = self.sort.keys_of(inner).broadcast_to([THREADS]);
        // Digits have no sign: the highest bit of those that differ says which keys are the larger ones.
        let keys = match self.sort.has_sign() {
            true => keys.binary(BinaryOp::Xor, i64::MIN >> (64 - self.sort.dtype().bits())),
            false => keys,
        };
        let dtype = self.sort.position_dtype();
        [keys, k.iota(dtype, [THREADS], 0) + at.cast(dtype)]
    }

    /// How many elements are left from a step of a tile on.
    fn left(part: &Part<'_>, step: i64) -> Tile {
        part.count.cast(DType::I64) - step * THREADS
    }

    fn load(&self, k: &KernelBuilder, part: &Part<'_>, copy: usize, step: i64) -> [Tile; 2] {
        let at = &part.row + &part.begin + step * THREADS;
        let left = Self::left(part, step);
        let Scratch {
            keys, positions, ..
        } = &self.scratch;
        [&keys[copy], &positions[copy]]
            .map(|mem| k.load(mem.at(&at).shape([THREADS]).valid(0, &left)))
    }

    fn store(&self, k: &KernelBuilder, part: &Part<'_>, step: i64, pair: [&Tile; 2]) {
        let at = &part.row + &part.begin + step * THREADS;
        let left = Self::left(part, step);
        let Scratch {
            keys, positions, ..
        } = &self.scratch;
        for (mem, tile) in [&keys[1], &positions[1]].into_iter().zip(pair) {
            k.store(mem.at(&at).shape([THREADS]).valid(0, &left), tile);
        }
    }
}

/// Memory by which a block sorts a tile by four bits at a time.
struct Rounds {
    before: Before,
    total: Last,
}

impl Rounds {
    fn new(k: &KernelBuilder) -> Self {
        Self {
            before: Before::of_several(k, THREADS, ReduceOp::Sum, DType::I64, 4),
            total: Last::new(k, THREADS, DType::I64, 4),
        }
    }

    /// Sorts the elements of a tile, of which there are `count`, by the bits from `begin` on, and what stands behind them stays there.
    fn sort(&self, k: &KernelBuilder, shared: &Shared, begin: &Tile, count: &Tile) {
        let zero = k.full(DType::I64, [THREADS], 0i64);
        let one = k.full(DType::I64, [THREADS], 1i64);
        let mut own = [zero.clone(), zero.clone()];
        let me = threads(k) * EACH;
        let mut elements = Vec::new();
        for number in 0..EACH {
            let place = &me + number;
            let pair = shared.get(k, &place);
            let inside = place.compare(CompareOp::Lt, count);
            let value = pair[0].binary(BinaryOp::Shr, begin.cast(pair[0].dtype()));
            let value = value.binary(BinaryOp::And, VALUES - 1).cast(DType::I32);
            let value = inside.select(value, VALUES - 1);
            let high = value.compare(CompareOp::Ge, 8i64);
            let shift = value.binary(BinaryOp::And, 7i64) * 8;
            let shift = shift.cast(DType::I64);
            let same = high.select(&own[1], &own[0]).binary(BinaryOp::Shr, &shift);
            let same = same.binary(BinaryOp::And, 0xff_i64);
            let this = one.binary(BinaryOp::Shl, &shift);
            own = [
                &own[0] + high.select(&zero, &this),
                &own[1] + high.select(&this, &zero),
            ];
            elements.push((pair, value, same));
        }
        let odd = |word: &Tile| word.binary(BinaryOp::Shr, 8i64);
        let own = [&own[0], &odd(&own[0]), &own[1], &odd(&own[1])]
            .map(|word| word.binary(BinaryOp::And, BYTES));
        let here = self.before.each_up_to(k, own.clone());
        let total = self.total.each_of(k, here.each_ref());
        // How many have a lower value: sums over the quarters before, and of an odd value the even one's own count.
        let pairs = |even: usize| (&total[even] + &total[even + 1]) * QUARTERS;
        let [low, high] = [pairs(0), pairs(2)];
        let all_low = low.binary(BinaryOp::Shr, 48i64) * QUARTERS;
        let lower = [low, high].map(|sums| sums.binary(BinaryOp::Shl, 16i64));
        let lower = [lower[0].clone(), &lower[1] + all_low];
        let lower = [
            lower[0].clone(),
            &lower[0] + &total[0],
            lower[1].clone(),
            &lower[1] + &total[2],
        ];
        let mut words = lower.into_iter().zip(here).zip(own);
        let words: [Tile; 4] = std::array::from_fn(|_| match words.next() {
            Some(((lower, here), own)) => lower + here - own,
            None => zero.clone(),
        });
        for ([key, position], value, same) in elements {
            let high = value.compare(CompareOp::Ge, 8i64);
            let odd = value
                .binary(BinaryOp::And, 1i64)
                .compare(CompareOp::Ne, 0i64);
            let of = |word: usize| odd.select(&words[word + 1], &words[word]);
            let shift = value.binary(BinaryOp::And, 6i64) * 8;
            let word = high.select(of(2), of(0));
            let before = word.binary(BinaryOp::Shr, shift.cast(DType::I64));
            let place = before.binary(BinaryOp::And, 0xffff_i64) + same;
            shared.put(k, &place.cast(DType::I32), [&key, &position]);
        }
        k.sync();
    }
}
