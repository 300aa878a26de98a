//! Attention of few queries on a CPU: a step of decoding, which reads every key and value once and computes next to nothing with them.
//!
//! ```text
//!   phase 0   an instance is a part of the keys of one head of keys, for all queries that look at them:
//!                 for each chunk of keys
//!                     scores   = q @ k                                 where the keys lie, a vector along the depth for each
//!                     most     = max(most, scores)                     a number a query
//!                     powers   = exp(scores - most)                    in scratch
//!                     sum, acc = sum * fade + powers, acc * fade + powers @ v,   where fade = exp(the old most - most)
//!   phase 1   an instance is a query: parts are weighed by exp(their most - the largest) and added
//! ```
//!
//! Nothing is packed: a copy would cost as much as the whole. Heads that share keys (grouped heads) are rows of one small product, so that a key is read once for all of them. How the keys are cut depends on sizes alone, not on
//! threads: results are the same bits on any number of them. Keys of one part need no second phase.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, MmaDim, ReduceOp, Space, UnaryOp};
use oxyfuel_plan::TargetDesc;

use crate::attention::{Attention, Place, div, rem};
use crate::map::vector;
use crate::maths::weights;
use crate::nest::Nest;
use crate::packed::{lay_out, zeros};
use crate::size::Params;
use crate::thin;
use crate::tile::ceil_div;

/// Keys that pass between two looks at the largest score.
const CHUNK: i64 = 128;
/// Chunks that a part has at least: fewer, and joining the parts takes longer than sharing them out saves.
const LEAST_CHUNKS: i64 = 2;
/// Parts of all heads together that are enough for the threads of any machine.
const PARTS: i64 = 64;
/// Keys that are read side by side: more streams than this, and the prefetcher loses count.
const STREAMS: i64 = 8;
/// Elements between rows of scores beyond a chunk, so that rows do not share cache sets.
const APART: i64 = 16;
/// Queries of a group: more are better off as rows of an ordinary product.
pub const MOST_QUERIES: i64 = 32;

/// How the work is cut.
struct Cut {
    /// Heads that look at the same keys, and queries of all of them.
    heads: i64,
    queries: i64,
    /// Queries of one small product: first and how many.
    heights: Vec<(i64, i64)>,
    /// Keys of one small product.
    streams: i64,
    /// Columns of values that are summed at a time: first and how many.
    columns: Vec<(i64, i64)>,
    chunk: i64,
    /// Whole chunks, and the keys that are left.
    chunks: i64,
    rest: i64,
    parts: i64,
    /// Whole chunks of a part; the last one may have fewer, and has the rest.
    chunks_a_part: i64,
}

impl Cut {
    fn of(a: &Attention, target: &TargetDesc) -> Self {
        let registers = i64::from(target.registers);
        let heads = a.heads / a.groups;
        let queries = heads * a.rows;
        let heights = thin::parts(queries, if registers >= 32 { 6 } else { 3 });
        let tallest = heights.iter().map(|part| part.1).max().unwrap_or(1);
        // As in any product along the depth: a vector a sum, one a query, and one that passes by.
        let room = ((registers - 2 - tallest) / tallest).clamp(1, STREAMS);
        let streams = 1 << room.ilog2();
        let lanes = i64::from(target.lanes(4));
        // The fewer queries, the more vectors of values it takes to keep the unit busy.
        let vectors = match queries {
            ..=2 => registers / 4,
            3..=6 => registers / 8,
            _ => 2,
        };
        let width = vectors * lanes;
        let columns = (0..ceil_div(a.width, width))
            .map(|i| (i * width, width.min(a.width - i * width)))
            .collect();
        let chunk = CHUNK.min(a.keys);
        let chunks = a.keys / chunk;
        let wanted = ceil_div(PARTS, a.batch * a.groups);
        let chunks_a_part = ceil_div(chunks, wanted).max(LEAST_CHUNKS);
        Self {
            heads,
            queries,
            heights,
            streams,
            columns,
            chunk,
            chunks,
            rest: a.keys % chunk,
            parts: ceil_div(chunks, chunks_a_part),
            chunks_a_part,
        }
    }

    /// Elements from one row of scores to the next.
    fn pitch(&self) -> i64 {
        self.chunk + APART
    }
}

/// Builds the program.
pub fn decode(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    a: &Attention,
    target: &TargetDesc,
) -> Result<Program> {
    let cut = Cut::of(a, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let mut shapes = vec![[cut.heads, a.depth], [1, cut.parts]];
    for keys in [cut.chunk, cut.rest] {
        shapes.extend([[cut.queries, keys], [cut.heads, keys]]);
        shapes.extend([[keys, a.depth], [keys, a.width]]);
        for &(_, high) in &cut.heights {
            shapes.extend([[high, cut.streams], [high, keys % cut.streams]]);
        }
    }
    for &(_, cols) in &cut.columns {
        shapes.extend([[cut.queries, cols], [cut.heads, cols], [1, cols]]);
    }
    for shape in shapes.iter().filter(|shape| shape[1] > 0 && shape[0] > 0) {
        lay_out(&k, &spread, shape);
    }
    let workspace = |name: &str, each: i64| {
        let len = a.batch * a.groups * cut.queries * cut.parts * each;
        let len = Expr::constant(len);
        k.buffer(name, DType::F32, BufferMode::Workspace, len)
            .aligned(64)
    };
    let joined = (cut.parts > 1).then(|| Parts {
        most: workspace("most", 1),
        sums: workspace("sums", 1),
        acc: workspace("acc", a.width),
    });
    let w = Writer {
        a,
        cut,
        mems: &params.mems,
    };
    let (parts, groups) = (w.cut.parts, a.batch * a.groups);
    k.phase([parts, groups].map(Expr::constant), |k| {
        w.part(k, joined.as_ref());
    });
    if let Some(parts) = &joined {
        k.phase([w.cut.queries, groups].map(Expr::constant), |k| {
            w.join(k, parts);
        });
    }
    k.finish()
}

/// What the parts leave for the second phase: `[heads of keys][queries][parts]`, and a row of sums each.
struct Parts {
    most: Mem,
    sums: Mem,
    acc: Mem,
}

/// Memories of one instance.
struct Scratch {
    q: Mem,
    scores: Mem,
    powers: Mem,
    /// Blocks of columns, each `[queries, columns]`.
    acc: Mem,
    /// Numbers a query that many ask for, a memory each: what is read and what is written do not share one.
    kept: [Mem; 4],
    /// Copies of keys and values whose rows are not contiguous.
    k: Option<Mem>,
    v: Option<Mem>,
}

/// A head of keys.
struct Head {
    number: Tile,
    batch: Tile,
    group: Tile,
}

struct Writer<'a> {
    a: &'a Attention,
    cut: Cut,
    mems: &'a [Mem],
}

impl Writer<'_> {
    fn head(&self, k: &KernelBuilder) -> Head {
        let number = k.program_id(1);
        Head {
            batch: div(&number, self.a.groups),
            group: rem(&number, self.a.groups),
            number,
        }
    }

    /// The first element of a head's query `row` in a tensor that has all heads.
    fn of_queries(&self, place: &Place, head: &Head, row: i64) -> Tile {
        &head.batch * place.strides[0]
            + &head.group * (self.cut.heads * place.strides[1])
            + (row * place.strides[2] + place.base)
    }

    /// The first element of a head's row `key` in a tensor that has heads of keys.
    fn of_keys(&self, place: &Place, head: &Head, key: &Tile) -> Tile {
        &head.batch * place.strides[0]
            + &head.group * place.strides[1]
            + key * place.strides[2]
            + place.base
    }

    /// A part of the keys, for all queries.
    fn part(&self, k: &KernelBuilder, joined: Option<&Parts>) {
        let (a, cut) = (self.a, &self.cut);
        let (part, head) = (k.program_id(0), self.head(k));
        let panel = |len: i64| k.alloc(Space::Panel, DType::F32, len, None);
        let copy = |place: &Place, width: i64| {
            (place.strides[3] != 1 && width > 1).then(|| panel(cut.chunk * width))
        };
        let scratch = Scratch {
            q: panel(cut.queries * a.depth),
            scores: panel(cut.queries * cut.pitch()),
            powers: panel(cut.queries * cut.pitch()),
            acc: panel(cut.queries * a.width),
            kept: [(); 4].map(|()| panel(cut.queries)),
            k: copy(&a.k, a.depth),
            v: copy(&a.v, a.width),
        };
        for row in 0..a.rows {
            let window = self.mems[a.q.buffer]
                .at(self.of_queries(&a.q, &head, row))
                .shape([cut.heads, a.depth])
                .strides([a.q.strides[1], a.q.strides[3]]);
            let home = scratch.q.at(row * cut.heads * a.depth);
            let queries = k.load(window).cast(DType::F32);
            k.store(home.shape([cut.heads, a.depth]), &queries);
        }
        for &(first, cols) in &cut.columns {
            let zero = k.full(DType::F32, [cut.queries, cols], 0.0);
            k.store(self.acc(&scratch, first, cols), &zero);
        }
        let state = [
            k.full(DType::F32, [cut.queries, 1], f64::NEG_INFINITY),
            k.full(DType::F32, [cut.queries, 1], 0.0),
        ];
        let first = &part * cut.chunks_a_part;
        let end = (&first + cut.chunks_a_part).binary(BinaryOp::Min, cut.chunks);
        let mut state = k.for_range(&first, &end, 1, state, |k, chunk, state| {
            let key = chunk * cut.chunk;
            self.chunk(k, &scratch, &head, &key, cut.chunk, state)
        });
        if cut.rest > 0 {
            // Once in the last part, never in the others.
            let times = (&part + (2 - cut.parts)).binary(BinaryOp::Max, 0);
            state = k.for_range(0, &times, 1, state, |k, _, state| {
                let key = k.constant(DType::I64, cut.chunks * cut.chunk);
                self.chunk(k, &scratch, &head, &key, cut.rest, state)
            });
        }
        match joined {
            Some(parts) => self.leave(k, parts, &scratch, &head, &part, state),
            None => self.finish(k, &scratch, &head, state),
        }
    }

    /// The sums of a block of columns.
    fn acc(&self, scratch: &Scratch, first: i64, cols: i64) -> Window {
        let queries = self.cut.queries;
        scratch.acc.at(first * queries).shape([queries, cols])
    }

    /// Rows of keys or values that run along memory: where they lie, or copied.
    fn rows(
        &self,
        k: &KernelBuilder,
        place: &Place,
        copy: Option<&Mem>,
        start: Tile,
        [keys, width]: [i64; 2],
    ) -> (Mem, Tile, i64) {
        let mem = &self.mems[place.buffer];
        let Some(copy) = copy else {
            return (mem.clone(), start, place.strides[2]);
        };
        let window = mem.at(&start).shape([keys, width]);
        let window = window.strides([place.strides[2], place.strides[3]]);
        let rows = k.load(window).cast(DType::F32);
        k.store(copy.at(0).shape([keys, width]), &rows);
        (copy.clone(), k.constant(DType::I64, 0), width)
    }

    /// One chunk of keys: the largest score and the sum of powers, before and after it.
    fn chunk(
        &self,
        k: &KernelBuilder,
        scratch: &Scratch,
        head: &Head,
        key: &Tile,
        keys: i64,
        [most, sum]: [Tile; 2],
    ) -> [Tile; 2] {
        let (a, cut) = (self.a, &self.cut);
        let pitch = cut.pitch();
        let start = self.of_keys(&a.k, head, key);
        let (mem, start, apart) = self.rows(k, &a.k, scratch.k.as_ref(), start, [keys, a.depth]);
        let some = |k: &KernelBuilder, number: &Tile, count: i64| {
            for &(first, high) in &cut.heights {
                let q = scratch.q.at(first * a.depth).shape([high, a.depth]);
                let rows = mem.at(&(&start + number * apart));
                let rows = rows.shape([a.depth, count]).strides([1, apart]);
                let score = k.mma(
                    q.operand([MmaDim::Side, MmaDim::K]),
                    rows.operand([MmaDim::K, MmaDim::Side]),
                    &zeros(k, DType::F32, high, count),
                    false,
                );
                let home = scratch.scores.at(&(number + first * pitch));
                k.store(home.shape([high, count]).strides([pitch, 1]), &score);
            }
        };
        let left = keys % cut.streams;
        k.for_range(0, keys / cut.streams, 1, [], |k, block, []| {
            some(k, &(block * cut.streams), cut.streams);
            []
        });
        if left > 0 {
            some(k, &k.constant(DType::I64, keys - left), left);
        }
        let mut scores = self.scores(k, scratch, keys);
        if a.mask.is_none() && !a.causal {
            scores = scores * a.scale;
        } else {
            for row in 0..a.rows {
                self.hide(k, scratch, head, key, keys, row);
            }
            scores = self.scores(k, scratch, keys);
        }
        let best = most.binary(BinaryOp::Max, scores.reduce(ReduceOp::Max, [1]));
        let best = self.kept(k, &scratch.kept[0], &best);
        let base = self.base(&best);
        let fade = self.kept(k, &scratch.kept[1], &weights(&(most - &base)));
        let powers = weights(&(scores - &base));
        let home = scratch.powers.at(0).shape([cut.queries, keys]);
        let home = home.strides([pitch, 1]);
        k.store(home.clone(), &powers);
        let sum = sum * &fade + k.load(home.clone()).reduce(ReduceOp::Sum, [1]);
        let start = self.of_keys(&a.v, head, key);
        let (mem, start, apart) = self.rows(k, &a.v, scratch.v.as_ref(), start, [keys, a.width]);
        for &(first, cols) in &cut.columns {
            let values = mem.at(&(&start + first)).shape([keys, cols]);
            let new = k.mma(
                home.clone().operand([MmaDim::Side, MmaDim::K]),
                values
                    .strides([apart, 1])
                    .operand([MmaDim::K, MmaDim::Side]),
                &zeros(k, DType::F32, cut.queries, cols),
                false,
            );
            let old = k.load(self.acc(scratch, first, cols));
            k.store(self.acc(scratch, first, cols), old * &fade + new);
        }
        [best, sum]
    }

    /// Scales the scores of a row of all heads, as far as it may look.
    fn hide(
        &self,
        k: &KernelBuilder,
        scratch: &Scratch,
        head: &Head,
        key: &Tile,
        keys: i64,
        row: i64,
    ) {
        let (a, heads, pitch) = (self.a, self.cut.heads, self.cut.pitch());
        let home = scratch.scores.at(row * heads * pitch);
        let home = home.shape([heads, keys]).strides([pitch, 1]);
        let mut score = k.load(home.clone()) * a.scale;
        if let Some((place, is_bool)) = &a.mask {
            let window = self.mems[place.buffer]
                .at(&(self.of_queries(place, head, row) + key * place.strides[3]))
                .shape([heads, keys])
                .strides([place.strides[1], place.strides[3]]);
            let mask = k.load(window);
            score = if *is_bool {
                mask.select(&score, f64::NEG_INFINITY)
            } else {
                score + mask.cast(DType::F32)
            };
        }
        if a.causal {
            let number = k.iota(DType::I64, [1, keys], 1) + key;
            let seen = number.compare(CompareOp::Le, row);
            let seen = seen.broadcast_to([heads, keys]);
            score = seen.select(&score, f64::NEG_INFINITY);
        }
        k.store(home, &score);
    }

    /// A number a query, computed once for all that ask for it.
    fn kept(&self, k: &KernelBuilder, home: &Mem, value: &Tile) -> Tile {
        let home = home.at(0).shape([self.cut.queries, 1]).strides([1, 1]);
        k.store(home.clone(), value);
        k.load(home)
    }

    fn scores(&self, k: &KernelBuilder, scratch: &Scratch, keys: i64) -> Tile {
        let window = scratch.scores.at(0).shape([self.cut.queries, keys]);
        k.load(window.strides([self.cut.pitch(), 1]))
    }

    /// What is subtracted from scores: where nothing was seen so far, any number keeps their powers at 0.
    fn base(&self, most: &Tile) -> Tile {
        if self.a.mask.is_none() {
            return most.clone();
        }
        let blind = most.compare(CompareOp::Eq, f64::NEG_INFINITY);
        blind.select(0.0, most)
    }

    /// What sums are multiplied with at the end: 0 for a query that may look nowhere.
    fn scale(&self, sum: &Tile) -> Tile {
        let scale = sum.unary(UnaryOp::Recip);
        if self.a.mask.is_none() {
            return scale;
        }
        sum.compare(CompareOp::Eq, 0.0).select(0.0, &scale)
    }

    /// Results, where the keys are one part.
    fn finish(&self, k: &KernelBuilder, scratch: &Scratch, head: &Head, [most, sum]: [Tile; 2]) {
        let (a, cut) = (self.a, &self.cut);
        let scale = self.kept(k, &scratch.kept[2], &self.scale(&sum));
        for &(first, cols) in &cut.columns {
            let acc = k.load(self.acc(scratch, first, cols)) * &scale;
            k.store(self.acc(scratch, first, cols), &acc);
        }
        self.kept(k, &scratch.kept[3], &(most + sum.unary(UnaryOp::Log)));
        for row in 0..a.rows {
            let heads = cut.heads;
            let log = scratch.kept[3].at(row * heads).shape([heads, 1]);
            let window = self.mems[a.sums.buffer]
                .at(self.of_queries(&a.sums, head, row))
                .shape([heads, 1])
                .strides([a.sums.strides[1], 1]);
            k.store(window, k.load(log.strides([1, 1])));
            let start = self.of_queries(&a.out, head, row);
            for &(first, cols) in &cut.columns {
                let acc = scratch.acc.at(first * cut.queries + row * heads * cols);
                let window = self.mems[a.out.buffer]
                    .at(&(&start + first * a.out.strides[3]))
                    .shape([heads, cols])
                    .strides([a.out.strides[1], a.out.strides[3]]);
                k.store(window, k.load(acc.shape([heads, cols])).cast(a.dtype));
            }
        }
    }

    /// What a part has, for the second phase.
    fn leave(
        &self,
        k: &KernelBuilder,
        parts: &Parts,
        scratch: &Scratch,
        head: &Head,
        part: &Tile,
        [most, sum]: [Tile; 2],
    ) {
        let (a, cut) = (self.a, &self.cut);
        let at = &head.number * (cut.queries * cut.parts) + part;
        for (mem, value) in [(&parts.most, most), (&parts.sums, sum)] {
            let window = mem.at(&at).shape([cut.queries, 1]);
            k.store(window.strides([cut.parts, 1]), &value);
        }
        for &(first, cols) in &cut.columns {
            let window = parts.acc.at(&(&at * a.width + first));
            let window = window.shape([cut.queries, cols]);
            let acc = k.load(self.acc(scratch, first, cols));
            k.store(window.strides([cut.parts * a.width, 1]), &acc);
        }
    }

    /// A query: its parts are joined.
    fn join(&self, k: &KernelBuilder, parts: &Parts) {
        let (a, cut) = (self.a, &self.cut);
        let (query, head) = (k.program_id(0), self.head(k));
        let at = (&head.number * cut.queries + &query) * cut.parts;
        let most = k.load(parts.most.at(&at).shape([1, cut.parts]));
        let best = most.reduce(ReduceOp::Max, [1]);
        let shares = weights(&(most - self.base(&best)));
        let sums = k.load(parts.sums.at(&at).shape([1, cut.parts]));
        let sum = (sums * &shares).reduce(ReduceOp::Sum, [1]);
        let panel = k.alloc(Space::Panel, DType::F32, cut.parts, None);
        let left = panel.at(0).shape([1, cut.parts]);
        k.store(left.clone(), &(shares * self.scale(&sum)));
        // Queries are ordered by row, then by head.
        let (row, of_group) = (div(&query, cut.heads), rem(&query, cut.heads));
        let here = |place: &Place| {
            self.of_queries(place, &head, 0)
                + &row * place.strides[2]
                + &of_group * place.strides[1]
        };
        for &(first, cols) in &cut.columns {
            let right = parts.acc.at(&(&at * a.width + first));
            let right = right.shape([cut.parts, cols]).strides([a.width, 1]);
            let acc = k.mma(
                left.clone().operand([MmaDim::Side, MmaDim::K]),
                right.operand([MmaDim::K, MmaDim::Side]),
                &zeros(k, DType::F32, 1, cols),
                false,
            );
            let window = self.mems[a.out.buffer]
                .at(&(here(&a.out) + first * a.out.strides[3]))
                .shape([1, cols])
                .strides([1, a.out.strides[3]]);
            k.store(window, acc.cast(a.dtype));
        }
        let window = self.mems[a.sums.buffer].at(here(&a.sums)).shape([1, 1]);
        k.store(window, best + sum.unary(UnaryOp::Log));
    }
}
