//! Gradients of attention on a CPU: tiles of weights are computed anew from the rows' logarithms, used three times and forgotten.
//!
//! ```text
//!   phase 0   queries and gradients, widened:  q rows, grad rows;  a number a row: whole = sum(grad out), and the logarithm
//!   phase 1   keys and values:                 k rows, panels of `cols` keys of k and of v
//!   phase 2   an instance is a part of the keys of one head of keys:
//!                 for each block of keys, each head that looks at it, each chunk of queries
//!                     weights = exp(q @ k panels - lse)                    in scratch
//!                     changes = weights * (grad @ v panels - whole)        in scratch
//!                     dv     += weights^T @ grad rows                      in scratch, stored when the block is done
//!                     dk     += changes^T @ q rows                         the same
//!                     dq     += changes @ k rows                           in memory of this part alone
//!   phase 3   dq = the sum over parts
//! ```
//!
//! Five products, and every one of them in an order that sizes alone decide: results are the same bits on any number of threads.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Index, MmaDim, ReduceOp, Space};
use oxyfuel_plan::TargetDesc;
use oxyfuel_schedule::Placements;

use crate::attention::{Operands, Place, div, left, rem};
use crate::build::constant;
use crate::map::vector;
use crate::maths::weights;
use crate::nest::Nest;
use crate::packed::lay_out;
use crate::size::{Known, Params, Sizes};
use crate::tile::ceil_div;

/// Keys of a block and queries of a chunk, at most: their weights and changes stay in the second-level cache.
const MOST_KEYS: i64 = 256;
const MOST_QUERIES: i64 = 64;
/// What a block costs beside its work, in rows.
const START: i64 = 16;
/// Parts of all heads together that are enough for the threads of any machine.
const PARTS: i64 = 16;
/// Elements between rows of weights beyond a block, so that rows do not share cache sets.
const APART: i64 = 16;

/// What is computed; only a call may know how many batches, queries and keys there are.
pub struct Backward {
    batch: Expr,
    heads: i64,
    groups: i64,
    rows: Expr,
    keys: Expr,
    depth: i64,
    width: i64,
    grad: Place<Expr>,
    q: Place<Expr>,
    k: Place<Expr>,
    v: Place<Expr>,
    out: Place<Expr>,
    lse: Place<Expr>,
    mask: Option<(Place<Expr>, bool)>,
    /// Gradients of q, k and v.
    results: [Place<Expr>; 3],
    dtype: DType,
    causal: bool,
    scale: f64,
}

impl Backward {
    /// Reads the node. `buffers` are the roots in argument order.
    pub fn read(
        graph: &Graph,
        memory: &Placements,
        node: &Node,
        buffers: &[ValueId],
    ) -> Result<Self> {
        let Op::SdpaBackward { causal, scale } = node.op else {
            return Err(err!(
                Internal,
                "`{}` is no gradient of attention",
                node.op.name()
            ));
        };
        let of = Operands {
            graph,
            memory,
            buffers,
        };
        let input = |i: usize| of.place(node.inputs[i]);
        let [q, v] = [1, 3].map(|i| of.shape(node.inputs[i]));
        Ok(Self {
            batch: q[0].clone(),
            heads: constant(&q[1])?,
            groups: constant(&v[1])?,
            rows: q[2].clone(),
            keys: v[2].clone(),
            depth: constant(&q[3])?,
            width: constant(&v[3])?,
            grad: input(0)?,
            q: input(1)?,
            k: input(2)?,
            v: input(3)?,
            out: input(4)?,
            lse: input(5)?,
            mask: node.inputs.get(6).map(|&mask| of.mask(mask)).transpose()?,
            results: [
                of.place(node.outputs[0])?,
                of.place(node.outputs[1])?,
                of.place(node.outputs[2])?,
            ],
            dtype: graph.values[node.inputs[1]].ty.dtype,
            causal,
            scale: scale.as_f64(),
        })
    }

    /// Elements of other work that take as long as one element of the queries' gradient.
    pub fn work(&self, known: &Known) -> i64 {
        let each = known.guess(&self.keys) * (3 * self.depth + 2 * self.width);
        (each / self.depth / 16).max(1)
    }

    /// Every size that only a call may know.
    pub fn sizes(&self) -> [&Expr; 3] {
        [&self.batch, &self.rows, &self.keys]
    }
}

/// How the work is cut.
struct Cut {
    /// Rows and columns of sums in registers.
    rows: i64,
    cols: i64,
    /// Keys of a block, and as whole rows of sums.
    keys: i64,
    key_rows: i64,
    key_blocks: Expr,
    /// Queries of a chunk.
    queries: i64,
    chunks: Expr,
    parts: i64,
    blocks_a_part: Expr,
    /// Depth and width, filled up to whole columns of sums.
    depth: i64,
    width: i64,
}

impl Cut {
    fn of(a: &Backward, target: &TargetDesc) -> Self {
        let rows = (i64::from(target.registers) - 4) / 2;
        let cols = i64::from(target.lanes(4)) * 2;
        let whole = |n: i64, unit: i64| ceil_div(n, unit) * unit;
        let cheapest = |extent: i64, unit: i64, most: i64, cost: &dyn Fn(i64) -> i64| {
            let sizes = (1..=(most / unit).max(1)).map(|n| n * unit);
            let all = |&size: &i64| ceil_div(extent, size) * (cost(size) + START);
            sizes.min_by_key(all).unwrap_or(unit)
        };
        // Three products have keys as columns or depth, two as rows. Of any number of them blocks are as large as they may be.
        let keys = a.keys.as_const().unwrap_or(MOST_KEYS);
        let keys = cheapest(keys, cols, MOST_KEYS, &|n| (3 * n + 2 * whole(n, rows)) / 5);
        let queries = a.rows.as_const().unwrap_or(MOST_QUERIES);
        let queries = cheapest(queries, rows, MOST_QUERIES, &|n| n);
        let key_blocks = a.keys.ceildiv(keys);
        // As few as make work for the threads: each has memory for all of the queries' gradient.
        let batch = a.batch.as_const().unwrap_or(1).max(1);
        let wanted = ceil_div(PARTS, batch * a.groups);
        let blocks_a_part = key_blocks.ceildiv(wanted);
        let parts = key_blocks.ceildiv(blocks_a_part.clone()).as_const();
        Self {
            rows,
            cols,
            keys,
            key_rows: whole(keys, rows),
            key_blocks,
            queries,
            chunks: a.rows.ceildiv(queries),
            parts: parts.unwrap_or(wanted),
            blocks_a_part,
            depth: whole(a.depth, cols),
            width: whole(a.width, cols),
        }
    }

    /// Queries and keys of one head, filled up.
    fn all_queries(&self) -> Expr {
        &self.chunks * self.queries
    }

    fn all_keys(&self) -> Expr {
        &self.key_blocks * self.keys
    }

    /// Elements from one row of weights to the next.
    fn pitch(&self) -> i64 {
        self.keys.max(self.key_rows) + APART
    }
}

/// What the phases leave for each other.
struct Kept {
    q: Mem,
    grad: Mem,
    whole: Mem,
    lse: Mem,
    k: Mem,
    k_panels: Mem,
    v_panels: Mem,
    dq: Mem,
}

/// Memories of one instance.
struct Scratch {
    weights: Mem,
    changes: Mem,
    dk: Mem,
    dv: Mem,
}

/// Builds the program.
pub fn backward(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    a: &Backward,
    target: &TargetDesc,
) -> Result<Program> {
    let cut = Cut::of(a, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    for shape in [
        [cut.rows, cut.depth],
        [cut.rows, cut.width],
        [cut.cols, cut.depth],
        [a.depth, cut.cols],
        [a.width, cut.cols],
        [cut.queries, (cut.key_rows - cut.keys).max(1)],
        [cut.rows, cut.cols],
    ] {
        lay_out(&k, &spread, &shape);
    }
    let workspace = |name: &str, rows: &Expr, each: i64| {
        k.buffer(name, DType::F32, BufferMode::Workspace, rows * each)
            .aligned(64)
    };
    let (heads, groups) = (&a.batch * a.heads, &a.batch * a.groups);
    let (queries, keys) = (&heads * &cut.all_queries(), &groups * &cut.all_keys());
    let kept = Kept {
        q: workspace("q_rows", &queries, cut.depth),
        grad: workspace("grad_rows", &queries, cut.width),
        whole: workspace("whole", &queries, 1),
        lse: workspace("logs", &queries, 1),
        k: workspace("k_rows", &keys, cut.depth),
        k_panels: workspace("k_panels", &keys, a.depth),
        v_panels: workspace("v_panels", &keys, a.width),
        dq: workspace("dq_parts", &queries, cut.parts * cut.depth),
    };
    let w = Writer {
        a,
        cut,
        kept,
        mems: &params.mems,
        sizes: &params.sizes,
    };
    let row_blocks = &w.cut.chunks * (w.cut.queries / w.cut.rows);
    let key_blocks = &w.cut.key_blocks * (w.cut.keys / w.cut.cols);
    k.phase([&row_blocks, &heads].map(Expr::clone), |k| w.queries(k));
    k.phase([&key_blocks, &groups].map(Expr::clone), |k| w.keys(k));
    k.phase([Expr::constant(w.cut.parts), groups], |k| w.part(k));
    k.phase([row_blocks, heads], |k| w.join(k));
    k.finish()
}

struct Writer<'a> {
    a: &'a Backward,
    cut: Cut,
    kept: Kept,
    mems: &'a [Mem],
    sizes: &'a Sizes,
}

/// Where a chunk of queries and a block of keys meet.
struct Meeting {
    /// The first query, and its number among those of all heads, filled up.
    query: Tile,
    row: Tile,
    /// The first key, and its number among those of all heads, filled up.
    key: Tile,
    column: Tile,
    /// The mask's element of the head's first query and key.
    mask: Option<Tile>,
}

impl Writer<'_> {
    /// The first element of a row of a head.
    fn at(&self, place: &Place<Expr>, [batch, head, row]: [&Tile; 3]) -> Tile {
        let start = self.sizes.times(batch, &place.strides[0])
            + self.sizes.times(head, &place.strides[1])
            + self.sizes.times(row, &place.strides[2]);
        self.sizes.plus(&start, &place.base)
    }

    fn steps(&self, place: &Place<Expr>, dims: [usize; 2]) -> [Index; 2] {
        dims.map(|dim| self.sizes.index(&place.strides[dim]))
    }

    fn left(&self, from: &Tile, size: i64, extent: &Expr, reach: &Expr) -> Option<Tile> {
        left(self.sizes, from, size, extent, reach)
    }

    /// A block of an operand's rows, zeros beyond its ends.
    fn rows(
        &self,
        place: &Place<Expr>,
        at: &Tile,
        rows: Option<&Tile>,
        shape: [i64; 2],
        width: i64,
    ) -> Window {
        let mut window = self.mems[place.buffer]
            .at(at)
            .shape(shape)
            .strides(self.steps(place, [2, 3]));
        if let Some(rows) = rows {
            window = window.valid(0, rows);
        }
        if width < shape[1] {
            window = window.valid(1, width);
        }
        window
    }

    /// A block of queries: what all keys will ask of it.
    fn queries(&self, k: &KernelBuilder) {
        let (a, cut, kept) = (self.a, &self.cut, &self.kept);
        let (block, number) = (k.program_id(0), k.program_id(1));
        let (batch, head) = (div(&number, a.heads), rem(&number, a.heads));
        let first = &block * cut.rows;
        let row = self.sizes.times(&number, &cut.all_queries()) + &first;
        let rows = self.left(&first, cut.rows, &a.rows, &cut.all_queries());
        let load = |place: &Place<Expr>, width: i64, whole: i64| {
            let at = self.at(place, [&batch, &head, &first]);
            let window = self.rows(place, &at, rows.as_ref(), [cut.rows, whole], width);
            k.load(window).cast(DType::F32)
        };
        let q = load(&a.q, a.depth, cut.depth);
        k.store(
            kept.q.at(&(&row * cut.depth)).shape([cut.rows, cut.depth]),
            &q,
        );
        let grad = load(&a.grad, a.width, cut.width);
        k.store(
            kept.grad
                .at(&(&row * cut.width))
                .shape([cut.rows, cut.width]),
            &grad,
        );
        let whole = (grad * load(&a.out, a.width, cut.width)).reduce(ReduceOp::Sum, [1]);
        k.store(self.numbers(&kept.whole, &row), &whole);

        let mut window = self.mems[a.lse.buffer]
            .at(self.at(&a.lse, [&batch, &head, &first]))
            .shape([cut.rows, 1])
            .strides([self.sizes.index(&a.lse.strides[2]), Index::Const(1)]);
        if let Some(rows) = &rows {
            window = window.valid(0, rows);
        }
        let mut lse = k.load(window);
        if a.mask.is_some() {
            // Of a query that may look nowhere every weight is to be 0.
            let blind = lse.compare(CompareOp::Eq, f64::NEG_INFINITY);
            lse = blind.select(f64::INFINITY, &lse);
        }
        k.store(self.numbers(&kept.lse, &row), &lse);
    }

    /// A number a query.
    fn numbers(&self, mem: &Mem, row: &Tile) -> Window {
        mem.at(row).shape([self.cut.rows, 1]).strides([1, 1])
    }

    /// A block of keys and values.
    fn keys(&self, k: &KernelBuilder) {
        let (a, cut, kept) = (self.a, &self.cut, &self.kept);
        let (block, number) = (k.program_id(0), k.program_id(1));
        let (batch, group) = (div(&number, a.groups), rem(&number, a.groups));
        let first = &block * cut.cols;
        let column = self.sizes.times(&number, &cut.all_keys()) + &first;
        let keys = self.left(&first, cut.cols, &a.keys, &cut.all_keys());
        let at = self.at(&a.k, [&batch, &group, &first]);
        let window = self.rows(&a.k, &at, keys.as_ref(), [cut.cols, cut.depth], a.depth);
        let home = kept.k.at(&(&column * cut.depth));
        k.store(
            home.shape([cut.cols, cut.depth]),
            k.load(window).cast(DType::F32),
        );
        for (place, panels, deep) in [
            (&a.k, &kept.k_panels, a.depth),
            (&a.v, &kept.v_panels, a.width),
        ] {
            let mut window = self.mems[place.buffer]
                .at(self.at(place, [&batch, &group, &first]))
                .shape([deep, cut.cols])
                .strides(self.steps(place, [3, 2]));
            if let Some(keys) = &keys {
                window = window.valid(1, keys);
            }
            let home = panels.at(&(&column * deep)).shape([deep, cut.cols]);
            k.store(home, k.load(window).cast(DType::F32));
        }
    }

    /// A part of the keys of one head of keys.
    fn part(&self, k: &KernelBuilder) {
        let (a, cut) = (self.a, &self.cut);
        let (part, number) = (k.program_id(0), k.program_id(1));
        let (batch, group) = (div(&number, a.groups), rem(&number, a.groups));
        let sharing = a.heads / a.groups;
        let panel = |len: i64| k.alloc(Space::Panel, DType::F32, len, None);
        let scratch = Scratch {
            weights: panel(cut.queries * cut.pitch()),
            changes: panel(cut.queries * cut.pitch()),
            dk: panel(cut.key_rows * cut.depth),
            dv: panel(cut.key_rows * cut.width),
        };
        let beyond = cut.key_rows - cut.keys;
        if beyond > 0 {
            let zero = k.full(DType::F32, [cut.queries, beyond], 0.0);
            for mem in [&scratch.weights, &scratch.changes] {
                let window = mem.at(cut.keys).shape([cut.queries, beyond]);
                k.store(window.strides([cut.pitch(), 1]), &zero);
            }
        }
        // Queries of all heads, filled up, in this part's memory.
        let all_queries = cut.all_queries();
        let head = &batch * a.heads + &group * sharing;
        let first_row = self.sizes.times(&head, &all_queries);
        let own = self.sizes.times(&part, &self.queries_of_all());
        let count = &cut.chunks * (sharing * (cut.queries / cut.rows));
        k.for_range(0, self.sizes.tile(&count), 1, [], |k, block, []| {
            let row = &own + &first_row + block * cut.rows;
            self.clear(k, &self.kept.dq, &(row * cut.depth), cut.depth);
            []
        });

        let first = self.sizes.times(&part, &cut.blocks_a_part);
        let end = self.sizes.plus(&first, &cut.blocks_a_part);
        let end = self.sizes.binary(&end, BinaryOp::Min, &cut.key_blocks);
        k.for_range(&first, &end, 1, [], |k, block, []| {
            let key = &block * cut.keys;
            k.for_range(0, cut.key_rows / cut.rows, 1, [], |k, rows, []| {
                let row = rows * cut.rows;
                self.clear(k, &scratch.dk, &(&row * cut.depth), cut.depth);
                self.clear(k, &scratch.dv, &(&row * cut.width), cut.width);
                []
            });
            let chunk = match a.causal {
                true => {
                    let chunk = div(&key, cut.queries);
                    self.sizes.binary(&chunk, BinaryOp::Min, &cut.chunks)
                }
                false => k.constant(DType::I64, 0),
            };
            k.for_range(0, sharing, 1, [], |k, shared, []| {
                let mask = a.mask.as_ref().map(|(place, _)| {
                    let head = &group * sharing + &shared;
                    let start = self.sizes.times(&batch, &place.strides[0])
                        + self.sizes.times(&head, &place.strides[1]);
                    self.sizes.plus(&start, &place.base)
                });
                let head_row = &first_row + self.sizes.times(&shared, &all_queries);
                let chunks = self.sizes.tile(&cut.chunks);
                k.for_range(&chunk, &chunks, 1, [], |k, chunk, []| {
                    let query = chunk * cut.queries;
                    let meeting = Meeting {
                        row: &head_row + &query,
                        query,
                        column: self.sizes.times(&number, &cut.all_keys()) + &key,
                        key: key.clone(),
                        mask: mask.clone(),
                    };
                    self.meet(k, &scratch, &meeting, &own);
                    []
                });
                []
            });
            self.give(
                k,
                &a.results[1],
                &scratch.dk,
                [&batch, &group, &key],
                a.depth,
                cut.depth,
            );
            self.give(
                k,
                &a.results[2],
                &scratch.dv,
                [&batch, &group, &key],
                a.width,
                cut.width,
            );
            []
        });
    }

    /// Queries of all heads, filled up.
    fn queries_of_all(&self) -> Expr {
        &(&self.a.batch * self.a.heads) * &self.cut.all_queries()
    }

    /// A block of rows of sums.
    fn clear(&self, k: &KernelBuilder, mem: &Mem, at: &Tile, width: i64) {
        for column in 0..width / self.cut.cols {
            let zero = k.full(DType::F32, [self.cut.rows, self.cut.cols], 0.0);
            k.store(self.sums(mem, &(at + column * self.cut.cols), width), &zero);
        }
    }

    /// A block of sums whose rows lie `width` apart.
    fn sums(&self, mem: &Mem, at: &Tile, width: i64) -> Window {
        mem.at(at)
            .shape([self.cut.rows, self.cut.cols])
            .strides([width, 1])
    }

    /// A chunk of queries against a block of keys.
    fn meet(&self, k: &KernelBuilder, scratch: &Scratch, m: &Meeting, own: &Tile) {
        let (a, cut, kept) = (self.a, &self.cut, &self.kept);
        let (rows, cols, pitch) = (cut.rows, cut.cols, cut.pitch());
        let left_side = |mem: &Mem, at: &Tile, depth: i64, apart: i64| {
            let window = mem.at(at).shape([rows, depth]).strides([apart, 1]);
            window.operand([MmaDim::Side, MmaDim::K])
        };
        let right_side = |mem: &Mem, at: &Tile, depth: i64, apart: i64| {
            let window = mem.at(at).shape([depth, cols]).strides([apart, 1]);
            window.operand([MmaDim::K, MmaDim::Side])
        };
        k.for_range(0, cut.queries / rows, 1, [], |k, above, []| {
            let row = &m.row + &above * rows;
            let query = &m.query + &above * rows;
            let lse = k.load(self.numbers(&kept.lse, &row));
            let whole = k.load(self.numbers(&kept.whole, &row));
            k.for_range(0, cut.keys / cols, 1, [], |k, beside, []| {
                let key = &m.key + &beside * cols;
                let column = &m.column + &beside * cols;
                let home = &above * (rows * pitch) + &beside * cols;
                let score = k.mma(
                    left_side(&kept.q, &(&row * cut.depth), a.depth, cut.depth),
                    right_side(&kept.k_panels, &(&column * a.depth), a.depth, cols),
                    &crate::packed::zeros(k, DType::F32, rows, cols),
                    false,
                );
                let score = self.seen(k, score * a.scale, m, &query, &key);
                k.store(
                    self.sums(&scratch.weights, &home, pitch),
                    weights(&(score - &lse)),
                );
                let change = k.mma(
                    left_side(&kept.grad, &(&row * cut.width), a.width, cut.width),
                    right_side(&kept.v_panels, &(&column * a.width), a.width, cols),
                    &crate::packed::zeros(k, DType::F32, rows, cols),
                    false,
                );
                let weight = k.load(self.sums(&scratch.weights, &home, pitch));
                let change = (change - &whole) * a.scale * weight;
                k.store(self.sums(&scratch.changes, &home, pitch), &change);
                []
            });
            []
        });
        // Keys are rows of these: weights and changes are read along their columns.
        for (left, right, at, home, width) in [
            (
                &scratch.weights,
                &kept.grad,
                &m.row * cut.width,
                &scratch.dv,
                cut.width,
            ),
            (
                &scratch.changes,
                &kept.q,
                &m.row * cut.depth,
                &scratch.dk,
                cut.depth,
            ),
        ] {
            k.for_range(0, cut.key_rows / rows, 1, [], |k, above, []| {
                k.for_range(0, width / cols, 1, [], |k, beside, []| {
                    let window = left.at(&(&above * rows)).shape([cut.queries, rows]);
                    let window = window.strides([pitch, 1]);
                    let home = self.sums(home, &(&above * (rows * width) + &beside * cols), width);
                    let sum = k.mma(
                        window.operand([MmaDim::K, MmaDim::Side]),
                        right_side(right, &(&at + &beside * cols), cut.queries, width),
                        &k.load(home.clone()),
                        false,
                    );
                    k.store(home, &sum);
                    []
                });
                []
            });
        }
        k.for_range(0, cut.queries / rows, 1, [], |k, above, []| {
            k.for_range(0, cut.depth / cols, 1, [], |k, beside, []| {
                let row = own + &m.row + &above * rows;
                let home = self.sums(&kept.dq, &(row * cut.depth + &beside * cols), cut.depth);
                let sum = k.mma(
                    left_side(
                        &scratch.changes,
                        &(&above * (rows * pitch)),
                        cut.keys,
                        pitch,
                    ),
                    right_side(
                        &kept.k,
                        &(&m.column * cut.depth + &beside * cols),
                        cut.keys,
                        cut.depth,
                    ),
                    &k.load(home.clone()),
                    false,
                );
                k.store(home, &sum);
                []
            });
            []
        });
    }

    /// Scores of a block, as far as its queries may look.
    fn seen(
        &self,
        k: &KernelBuilder,
        mut score: Tile,
        m: &Meeting,
        query: &Tile,
        key: &Tile,
    ) -> Tile {
        let (a, cut) = (self.a, &self.cut);
        let (rows, cols) = (cut.rows, cut.cols);
        if let (Some((place, is_bool)), Some(start)) = (&a.mask, &m.mask) {
            let at = start
                + self.sizes.times(query, &place.strides[2])
                + self.sizes.times(key, &place.strides[3]);
            let mut window = self.mems[place.buffer]
                .at(&at)
                .shape([rows, cols])
                .strides(self.steps(place, [2, 3]));
            if let Some(rows_left) = self.left(query, rows, &a.rows, &cut.all_queries()) {
                window = window.valid(0, &rows_left);
            }
            if let Some(keys_left) = self.left(key, cols, &a.keys, &cut.all_keys()) {
                window = window.valid(1, &keys_left);
            }
            let mask = k.load(window);
            score = if *is_bool {
                mask.select(&score, f64::NEG_INFINITY)
            } else {
                score + mask.cast(DType::F32)
            };
        }
        let number = k.iota(DType::I64, [1, cols], 1) + key;
        if a.causal {
            let row = k.iota(DType::I64, [rows, 1], 0) + query;
            let seen = number
                .broadcast_to([rows, cols])
                .compare(CompareOp::Le, &row);
            score = seen.select(&score, f64::NEG_INFINITY);
        }
        if cut.all_keys() != a.keys {
            let keys = self.sizes.tile(&a.keys);
            let there = number.compare(CompareOp::Lt, keys);
            let there = there.broadcast_to([rows, cols]);
            score = there.select(&score, f64::NEG_INFINITY);
        }
        score
    }

    /// A finished block of keys.
    fn give(
        &self,
        k: &KernelBuilder,
        place: &Place<Expr>,
        sums: &Mem,
        at: [&Tile; 3],
        width: i64,
        whole: i64,
    ) {
        let (a, cut) = (self.a, &self.cut);
        k.for_range(0, cut.key_rows / cut.rows, 1, [], |k, above, []| {
            let row = &above * cut.rows;
            let key = at[2] + &row;
            let start = self.at(place, [at[0], at[1], &key]);
            // A block ends with its keys, not with its rows.
            let [block, rows] = [cut.keys, cut.key_rows].map(Expr::constant);
            let of_block = self.left(&row, cut.rows, &block, &rows);
            let of_all = self.left(&key, cut.rows, &a.keys, &cut.all_keys());
            let rows_left = match (of_block, of_all) {
                (Some(one), Some(other)) => Some(one.binary(BinaryOp::Min, &other)),
                (one, other) => one.or(other),
            };
            for column in 0..whole / cut.cols {
                let from = &row * whole + column * cut.cols;
                let tile = k.load(self.sums(sums, &from, whole)).cast(a.dtype);
                k.store(
                    self.block(place, &start, rows_left.as_ref(), column, width),
                    &tile,
                );
            }
            []
        });
    }

    /// A block of columns of a result's rows.
    fn block(
        &self,
        place: &Place<Expr>,
        start: &Tile,
        rows: Option<&Tile>,
        column: i64,
        width: i64,
    ) -> Window {
        let first = column * self.cut.cols;
        let at = self.sizes.plus(start, &(&place.strides[3] * first));
        self.rows(
            place,
            &at,
            rows,
            [self.cut.rows, self.cut.cols],
            width - first,
        )
    }

    /// A block of queries: what the parts have of its gradient.
    fn join(&self, k: &KernelBuilder) {
        let (a, cut) = (self.a, &self.cut);
        let (block, number) = (k.program_id(0), k.program_id(1));
        let (batch, head) = (div(&number, a.heads), rem(&number, a.heads));
        let first = &block * cut.rows;
        let row = self.sizes.times(&number, &cut.all_queries()) + &first;
        let place = &a.results[0];
        let start = self.at(place, [&batch, &head, &first]);
        let rows_left = self.left(&first, cut.rows, &a.rows, &cut.all_queries());
        let apart = self.queries_of_all() * cut.depth;
        for column in 0..cut.depth / cut.cols {
            let at = &row * cut.depth + column * cut.cols;
            let mut sum = k.load(self.sums(&self.kept.dq, &at, cut.depth));
            for part in 1..cut.parts {
                let at = self.sizes.plus(&at, &(&apart * part));
                sum = sum + k.load(self.sums(&self.kept.dq, &at, cut.depth));
            }
            k.store(
                self.block(place, &start, rows_left.as_ref(), column, a.depth),
                sum.cast(a.dtype),
            );
        }
    }
}
