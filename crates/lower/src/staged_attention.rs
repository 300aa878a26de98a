//! Attention on a GPU: a block of threads has a block of queries of one head and passes over blocks of keys, which come through shared memory; scores and weights stay in registers.
//!
//! ```text
//!   q [rows, depth]  ->  shared memory, once
//!   for each block of keys:   k [keys, depth], v [keys, width]  ->  shared memory
//!       scores   = q @ k^T                               [rows, keys], in registers
//!       most     = max(most, scores)                     a number a row
//!       powers   = exp(scores - most)
//!       sum, acc = sum * fade + powers, acc * fade + powers @ v,   where fade = exp(the old most - most)
//!   out = acc / sum, lse = most + log(sum)
//! ```
//!
//! Warps are side by side along the queries, so that what a row needs of its scores is within a warp; the weights lie as the unit takes its left operand, and pass through shared memory only where outer
//! products are what multiplies.
//!
//! How many batches, queries and keys there are, and where they lie, only a call may know.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Tile, Window};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Index, ReduceOp, UnaryOp};
use oxyfuel_plan::TargetDesc;

use crate::attention::{Attention, Place, div, left, rem};
use crate::maths::weights;
use crate::nest::Nest;
use crate::size::Params;
use crate::staged::{Held, Part, Team};

/// Warps of a block, each with 16 queries.
const WARPS: i64 = 4;
const ROWS: i64 = 16 * WARPS;
/// Columns of the result that a thread's registers hold.
const MOST_WIDTH: i64 = 256;
/// Keys of a block, the first of which that shared memory has room for.
const KEYS: [i64; 2] = [64, 32];

/// How a block works.
struct Shape {
    team: Team,
    keys: i64,
    /// Depth and width, filled up.
    depth: i64,
    width: i64,
}

/// Whether there is a kernel for heads of this depth and width.
pub fn fits(dtype: DType, depth: i64, width: i64, target: &TargetDesc) -> bool {
    choose(dtype, depth, width, target).is_some()
}

fn choose(dtype: DType, depth: i64, width: i64, target: &TargetDesc) -> Option<Shape> {
    let team = Team::of(target, [dtype; 2], DType::F32, [WARPS, 1])?;
    let filled = |n: i64| (n as u64).next_power_of_two().max(32) as i64;
    let (depth, width) = (filled(depth), filled(width));
    let bytes = |keys: i64| {
        let along = team.along_depth();
        let powers = if team.unit {
            0
        } else {
            team.bytes([ROWS, keys], false)
        };
        team.bytes([ROWS, depth], along)
            + team.bytes([keys, depth], along)
            + team.bytes([width, keys], false)
            + powers
    };
    let fit = |keys: &i64| bytes(*keys) <= i64::from(target.shared_bytes) - 1024;
    let keys = KEYS.into_iter().find(fit)?;
    (width <= MOST_WIDTH).then_some(Shape {
        team,
        keys,
        depth,
        width,
    })
}

struct Writer<'a> {
    a: &'a Attention<Expr>,
    shape: Shape,
    params: &'a Params,
}

/// Where a block is.
struct Here {
    batch: Tile,
    head: Tile,
    /// Its first query, and how many there are.
    first: Tile,
    rows: Option<Tile>,
}

/// What a block has in shared memory.
struct Memory {
    q: Held,
    k: Held,
    v: Held,
    powers: Option<Held>,
}

/// Builds the program.
pub fn attention(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    a: &Attention<Expr>,
    target: &TargetDesc,
) -> Result<Program> {
    let shape = choose(a.dtype, a.depth, a.width, target).ok_or_else(|| {
        err!(
            NoLowering,
            "heads of {} by {} are too large for a block",
            a.depth,
            a.width
        )
    })?;
    let k = KernelBuilder::mapped(&nest.name, shape.team.geometry(target));
    let params = params_of(&k);
    let w = Writer {
        a,
        shape,
        params: &params,
    };
    let blocks = a.rows.ceildiv(ROWS);
    k.phase([&blocks * &a.batch * a.heads], |k| {
        let id = k.program_id(0);
        let (block, head) = match blocks.as_const() {
            Some(blocks) => (rem(&id, blocks), div(&id, blocks)),
            None => {
                let blocks = params.sizes.tile(&blocks);
                (
                    id.binary(BinaryOp::Rem, &blocks),
                    id.binary(BinaryOp::Div, &blocks),
                )
            }
        };
        let first = block * ROWS;
        let here = Here {
            batch: div(&head, a.heads),
            head: rem(&head, a.heads),
            rows: w.left(&first, ROWS, &a.rows, &(&blocks * ROWS)),
            first,
        };
        w.block(k, &here);
    });
    k.finish()
}

impl Writer<'_> {
    fn left(&self, from: &Tile, size: i64, extent: &Expr, reach: &Expr) -> Option<Tile> {
        left(&self.params.sizes, from, size, extent, reach)
    }

    /// Whether the last block of keys may have fewer.
    fn has_rest(&self) -> bool {
        !self.a.keys.modulo(self.shape.keys).is_const(0)
    }

    /// The keys, in whole blocks.
    fn padded_keys(&self) -> Expr {
        self.a.keys.ceildiv(self.shape.keys) * self.shape.keys
    }

    /// Steps along a head's rows and columns.
    fn strides(&self, place: &Place<Expr>) -> [Index; 2] {
        [2, 3].map(|dim| self.params.sizes.stride(&place.strides[dim]))
    }

    /// The layout of a number a row.
    fn of_rows(&self) -> oxyfuel_kernel::ir::TileLayout {
        let team = &self.shape.team;
        team.narrow([ROWS, self.shape.keys], [ROWS, 1])
    }

    /// The first element of a head's part of a tensor, from a row on.
    fn start(&self, place: &Place<Expr>, batch: &Tile, head: &Tile, row: &Tile) -> Tile {
        let sizes = &self.params.sizes;
        let [of_batch, of_head, of_row, _] = &place.strides;
        let start = sizes.strides(batch, of_batch) + sizes.strides(head, of_head);
        let start = start + sizes.strides(row, of_row);
        match place.base.as_const() {
            Some(base) => start + base,
            None => sizes.plus(&start, &place.base),
        }
    }

    fn block(&self, k: &KernelBuilder, here: &Here) {
        let (a, shape) = (self.a, &self.shape);
        let (team, keys) = (&shape.team, shape.keys);
        let along = team.along_depth();
        let memory = Memory {
            q: team.hold(k, [ROWS, shape.depth], along),
            k: team.hold(k, [keys, shape.depth], along),
            v: team.hold(k, [shape.width, keys], false),
            powers: (!team.unit).then(|| team.hold(k, [ROWS, keys], false)),
        };
        let short =
            |there: i64, filled: i64| (there < filled).then(|| k.constant(DType::I64, there));
        let queries = team.fetch(
            k,
            Part {
                mem: &self.params.mems[a.q.buffer],
                base: self.start(&a.q, &here.batch, &here.head, &here.first),
                shape: [ROWS, shape.depth],
                strides: self.strides(&a.q),
                left: [here.rows.clone(), short(a.depth, shape.depth)],
            },
        );
        team.put(k, &queries, &memory.q);

        let sizes = &self.params.sizes;
        let (full, blocks) = (a.keys.floordiv(keys), a.keys.ceildiv(keys));
        let (whole, all) = if a.causal {
            // A block that the first query sees all keys of needs no comparison.
            let whole = div(&(&here.first + 1), keys);
            let whole = sizes.binary(&whole, BinaryOp::Min, &full);
            let all = div(&(&here.first + (ROWS + keys - 1)), keys);
            (whole, sizes.binary(&all, BinaryOp::Min, &blocks))
        } else {
            (sizes.tile(&full), sizes.tile(&blocks))
        };
        let a_row = |value: f64| {
            let tile = k.full(DType::F32, [ROWS, 1], value);
            tile.with_layout(self.of_rows())
        };
        let start = [
            a_row(f64::NEG_INFINITY),
            a_row(0.0),
            team.zeros(k, [ROWS, shape.width]),
        ];
        let mut state = k.for_range(0, &whole, 1, start, |k, block, state| {
            self.step(k, here, &memory, &block, state, false)
        });
        if a.causal || self.has_rest() {
            state = k.for_range(&whole, &all, 1, state, |k, block, state| {
                self.step(k, here, &memory, &block, state, true)
            });
        }
        self.finish(k, here, state);
    }

    /// One block of keys.
    fn step(
        &self,
        k: &KernelBuilder,
        here: &Here,
        memory: &Memory,
        block: &Tile,
        [most, sum, acc]: [Tile; 3],
        cut: bool,
    ) -> [Tile; 3] {
        let (a, shape) = (self.a, &self.shape);
        let (team, keys) = (&shape.team, shape.keys);
        let first = block * keys;
        let there = match cut && self.has_rest() {
            true => self.left(&first, keys, &a.keys, &self.padded_keys()),
            false => None,
        };
        let group = div(&here.head, a.heads / a.groups);
        let part = |place: &Place<Expr>, shape: [i64; 2], turned: bool, deep: i64| {
            let mut shape = shape;
            let mut strides = self.strides(place);
            let short = (deep < shape[1]).then(|| k.constant(DType::I64, deep));
            let mut left = [there.clone(), short];
            if turned {
                shape.reverse();
                strides.reverse();
                left.reverse();
            }
            team.fetch(
                k,
                Part {
                    mem: &self.params.mems[place.buffer],
                    base: self.start(place, &here.batch, &group, &first),
                    shape,
                    strides,
                    left,
                },
            )
        };
        let of_keys = part(&a.k, [keys, shape.depth], false, a.depth);
        let values = part(&a.v, [keys, shape.width], true, a.width);
        team.put(k, &of_keys, &memory.k);
        team.put(k, &values, &memory.v);
        k.sync();
        let scores = team.zeros(k, [ROWS, keys]);
        let scores = team.multiply(k, [&memory.q, &memory.k], [ROWS, keys], shape.depth, scores);
        let scores = self.masked(k, here, &first, scores * a.scale, cut);

        let best = scores
            .reduce(ReduceOp::Max, [1])
            .with_layout(self.of_rows());
        let best = most.binary(BinaryOp::Max, &best);
        let mut base = best.clone();
        if a.mask.is_some() {
            // Nothing seen so far: any number keeps the powers at 0.
            let blind = best.compare(CompareOp::Eq, f64::NEG_INFINITY);
            base = blind.select(0.0, &best);
        }
        let wide = |tile: &Tile, cols: i64| {
            let tile = tile.broadcast_to([ROWS, cols]);
            tile.with_layout(team.layout([ROWS, cols]))
        };
        let fade = weights(&(most - &base));
        let powers = weights(&(scores - wide(&base, keys)));
        let added = powers
            .reduce(ReduceOp::Sum, [1])
            .with_layout(self.of_rows());
        let sum = sum * &fade + added;
        let acc = acc * wide(&fade, shape.width);
        let acc = match &memory.powers {
            None => team.multiply_tile(k, &powers.cast(team.part), &memory.v, shape.width, acc),
            Some(held) => {
                team.put(k, &powers, held);
                k.sync();
                team.multiply(k, [held, &memory.v], [ROWS, shape.width], keys, acc)
            }
        };
        k.sync();
        [best, sum, acc]
    }

    /// Scores with those of keys that a query does not see made endless.
    fn masked(
        &self,
        k: &KernelBuilder,
        here: &Here,
        first: &Tile,
        scores: Tile,
        cut: bool,
    ) -> Tile {
        let (a, keys) = (self.a, self.shape.keys);
        let layout = self.shape.team.layout([ROWS, keys]);
        let mut scores = scores;
        if let Some((place, is_bool)) = &a.mask {
            let start = self.start(place, &here.batch, &here.head, &here.first);
            let mut window = self.params.mems[place.buffer]
                .at(&(start + self.params.sizes.strides(first, &place.strides[3])))
                .shape([ROWS, keys])
                .strides(self.strides(place));
            if let Some(rows) = &here.rows {
                window = window.valid(0, rows);
            }
            let reach = if cut {
                self.padded_keys()
            } else {
                a.keys.clone()
            };
            if let Some(there) = self.left(first, keys, &a.keys, &reach) {
                window = window.valid(1, &there);
            }
            let mask = k.load(window).with_layout(layout.clone());
            scores = if *is_bool {
                mask.select(&scores, f64::NEG_INFINITY)
            } else {
                scores + mask.cast(DType::F32)
            };
        }
        if !cut {
            return scores;
        }
        let key = k
            .iota(DType::I32, [ROWS, keys], 1)
            .with_layout(layout.clone());
        let key = key + first.cast(DType::I32);
        if a.causal {
            let row = k.iota(DType::I32, [ROWS, keys], 0).with_layout(layout);
            let row = row + here.first.cast(DType::I32);
            let seen = key.compare(CompareOp::Le, &row);
            scores = seen.select(&scores, f64::NEG_INFINITY);
        }
        if self.has_rest() {
            let there = match a.keys.as_const() {
                Some(keys) => key.compare(CompareOp::Lt, keys),
                None => {
                    let keys = self.params.sizes.tile(&a.keys);
                    key.compare(CompareOp::Lt, keys.cast(DType::I32))
                }
            };
            scores = there.select(&scores, f64::NEG_INFINITY);
        }
        scores
    }

    fn finish(&self, k: &KernelBuilder, here: &Here, [most, sum, acc]: [Tile; 3]) {
        let (a, width) = (self.a, self.shape.width);
        let mut scale = sum.unary(UnaryOp::Recip);
        if a.mask.is_some() || a.keys.as_const().is_none() {
            // Of no keys there is no sum.
            let blind = sum.compare(CompareOp::Eq, 0.0);
            scale = blind.select(0.0, &scale);
        }
        let scale = scale.broadcast_to([ROWS, width]);
        let scale = scale.with_layout(self.shape.team.layout([ROWS, width]));
        let bounded = |window: Window| match &here.rows {
            Some(rows) => window.valid(0, rows),
            None => window,
        };
        let mut window = self.params.mems[a.out.buffer]
            .at(self.start(&a.out, &here.batch, &here.head, &here.first))
            .shape([ROWS, width])
            .strides(self.strides(&a.out));
        if a.width < width {
            window = window.valid(1, a.width);
        }
        k.store(bounded(window), (acc * scale).cast(a.dtype));
        let log = sum.unary(UnaryOp::Log);
        let window = self.params.mems[a.sums.buffer]
            .at(self.start(&a.sums, &here.batch, &here.head, &here.first))
            .shape([ROWS, 1])
            .strides([
                self.params.sizes.stride(&a.sums.strides[2]),
                Index::Const(1),
            ]);
        k.store(bounded(window), most + log);
    }
}
