//! Attention on a CPU: blocks of queries pass over chunks of keys, with a running softmax; scores never leave the first-level cache.
//!
//! ```text
//!   phase 0   k [keys, depth]  ->  panels of `cols` keys:     [blocks of keys][depth / pack][cols][pack]
//!   phase 1   v [keys, width]  ->  panels of `cols` columns:  [blocks of width][keys / pack][cols][pack]
//!   phase 2   an instance is a block of `rows` queries of one head:
//!                 for each chunk of keys
//!                     scores   = q @ k panels                          in scratch
//!                     most     = max(most, scores)                     a number a row
//!                     powers   = exp(scores - most)                    in scratch
//!                     sum, acc = sum * fade + powers, acc * fade + powers @ v panels,   where fade = exp(the old most - most)
//!                 out = acc / sum, lse = most + log(sum)
//! ```
//!
//! Chunks that every query of the block may see whole come first, in a loop without comparisons; those at the end of the keys or at the diagonal follow in a second one.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, MmaDim, ReduceOp, Space};
use oxyfuel_plan::{OperandHome, TargetDesc};
use oxyfuel_schedule::Placements;

use crate::build::{checked, constant};
use crate::decode::{MOST_QUERIES, decode};
use crate::map::{Spread, vector};
use crate::maths::weights;
use crate::nest::Nest;
use crate::packed::{lay_out, matrix_layout, zeros};
use crate::size::Params;
use crate::staged_attention;
use crate::tile::ceil_div;

/// Keys that pass between two looks at the largest score: scores and powers of a block lie in the first-level cache.
const CHUNK: i64 = 256;
/// Elements between rows of scores beyond a chunk, so that rows do not share cache sets.
const APART: i64 = 16;
/// Below so many queries a block is mostly empty: they are decoding steps.
const LEAST_ROWS: i64 = 4;

/// Whether a node is attention, or its gradients, of a kind and size that has a kernel.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let fixed = |value: ValueId| {
        let shape = &graph.values[value].ty.shape;
        shape.iter().all(|n| n.as_const().is_some_and(|n| n > 0))
    };
    let number = |n: &Expr| n.as_const().unwrap_or(0);
    let sized = match node.op {
        Op::Sdpa { .. } => {
            let [q, k] = [0, 1].map(|i| &graph.values[node.inputs[i]].ty);
            let (rows, depth) = (number(&q.shape[2]), number(&q.shape[3]));
            let queries = rows * number(&q.shape[1]) / number(&k.shape[1]).max(1);
            if target.is_simt() {
                let width = &graph.values[node.inputs[2]].ty.shape[3];
                staged_attention::fits(q.dtype, depth, number(width), target)
            } else {
                rows >= LEAST_ROWS || (depth > 1 && queries <= MOST_QUERIES)
            }
        }
        Op::SdpaBackward { .. } => !target.is_simt(),
        _ => return false,
    };
    let dtype = graph.values[node.inputs[0]].ty.dtype;
    (target.is_simt() || target.vector_bytes > 0)
        && matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
        && graph.symbols.is_empty()
        && node.inputs.iter().all(|&value| fixed(value))
        && sized
}

/// A tensor of 4 dims in memory.
pub struct Place {
    pub buffer: usize,
    pub base: i64,
    pub strides: [i64; 4],
}

/// Reads where operands lie. `buffers` are the roots in argument order.
pub struct Operands<'a> {
    pub graph: &'a Graph,
    pub memory: &'a Placements,
    pub buffers: &'a [ValueId],
}

impl Operands<'_> {
    pub fn shape(&self, value: ValueId) -> Result<Vec<i64>> {
        let shape = &self.graph.values[value].ty.shape;
        shape.iter().map(constant).collect()
    }

    pub fn place(&self, value: ValueId) -> Result<Place> {
        let place = self.memory.of(value);
        let buffer = self.buffers.iter().position(|&root| root == place.root);
        let strides = place.strides.iter().map(constant);
        let mut strides = strides.collect::<Result<Vec<i64>>>()?;
        strides.resize(4, 0);
        Ok(Place {
            buffer: buffer.ok_or_else(|| err!(Internal, "an operand has no buffer"))?,
            base: constant(&checked(&place.offset)?)?,
            strides: [strides[0], strides[1], strides[2], strides[3]],
        })
    }

    /// A mask, whose sizes of 1 are repeated, and whether it is of bools.
    pub fn mask(&self, value: ValueId) -> Result<(Place, bool)> {
        let mut at = self.place(value)?;
        for (stride, size) in at.strides.iter_mut().zip(self.shape(value)?) {
            if size == 1 {
                *stride = 0;
            }
        }
        Ok((at, self.graph.values[value].ty.dtype.is_bool()))
    }
}

/// What is computed, in numbers.
pub struct Attention {
    pub batch: i64,
    pub heads: i64,
    pub groups: i64,
    pub rows: i64,
    pub keys: i64,
    pub depth: i64,
    pub width: i64,
    pub q: Place,
    pub k: Place,
    pub v: Place,
    pub mask: Option<(Place, bool)>,
    pub out: Place,
    pub sums: Place,
    pub dtype: DType,
    pub causal: bool,
    pub scale: f64,
}

impl Attention {
    /// Reads the node. `buffers` are the roots in argument order.
    pub fn read(
        graph: &Graph,
        memory: &Placements,
        node: &Node,
        buffers: &[ValueId],
    ) -> Result<Self> {
        let Op::Sdpa { causal, scale } = node.op else {
            return Err(err!(Internal, "`{}` is no attention", node.op.name()));
        };
        let of = Operands {
            graph,
            memory,
            buffers,
        };
        let place = |value: ValueId| of.place(value);
        let [q, k, v] = [0, 1, 2].map(|i| of.shape(node.inputs[i]));
        let (q, k, v) = (q?, k?, v?);
        let mask = node.inputs.get(3).map(|&value| of.mask(value));
        Ok(Self {
            batch: q[0],
            heads: q[1],
            groups: k[1],
            rows: q[2],
            // Nobody sees the others.
            keys: if causal { k[2].min(q[2]) } else { k[2] },
            depth: q[3],
            width: v[3],
            q: place(node.inputs[0])?,
            k: place(node.inputs[1])?,
            v: place(node.inputs[2])?,
            mask: mask.transpose()?,
            out: place(node.outputs[0])?,
            sums: place(node.outputs[1])?,
            dtype: graph.values[node.inputs[0]].ty.dtype,
            causal,
            scale: scale.as_f64(),
        })
    }
}

impl Attention {
    /// Elements of other work that take as long as one element of the result.
    pub fn work(&self) -> i64 {
        (self.keys * (self.depth + self.width) / self.width / 16).max(1)
    }
}

/// The shape of a block and of the panels.
struct Blocking {
    rows: i64,
    cols: i64,
    /// Elements of the depth that one step of the unit takes.
    step: i64,
    /// Elements of the depth that lie next to each other in a panel.
    pack: i64,
    /// What the unit multiplies.
    part: DType,
    matrix: bool,
}

fn blocking(queries: i64, dtype: DType, target: &TargetDesc) -> Blocking {
    if let Some(unit) = target.matrix_unit(dtype, dtype, DType::F32)
        && unit.operands == OperandHome::Memory
    {
        return Blocking {
            rows: i64::from(unit.m) * 2,
            cols: i64::from(unit.n) * 2,
            step: i64::from(unit.k),
            pack: i64::from(unit.b_pack),
            part: dtype,
            matrix: true,
        };
    }
    // Every register but those for the panel and two to spare accumulates; blocks share the queries evenly.
    let most = (i64::from(target.registers) - 4) / 2;
    Blocking {
        rows: ceil_div(queries, ceil_div(queries, most)),
        cols: i64::from(target.lanes(4)) * 2,
        step: 1,
        pack: 1,
        part: DType::F32,
        matrix: false,
    }
}

/// Everything that the phases share.
struct Writer<'a> {
    a: &'a Attention,
    blocking: Blocking,
    /// Keys of a chunk, and chunks.
    chunk: i64,
    chunks: i64,
    /// The depth, filled up to whole steps of the unit.
    depth: i64,
    k_panels: Mem,
    v_panels: Mem,
    spread: Spread,
    mems: &'a [Mem],
}

/// Builds the program.
pub fn attention(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    a: &Attention,
    target: &TargetDesc,
) -> Result<Program> {
    if target.is_simt() {
        return staged_attention::attention(nest, params_of, a, target);
    }
    if a.rows < LEAST_ROWS {
        return decode(nest, params_of, a, target);
    }
    let blocking = blocking(a.rows, a.dtype, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let whole = blocking.cols.max(blocking.step);
    let chunks = ceil_div(a.keys, CHUNK);
    let chunk = ceil_div(ceil_div(a.keys, chunks), whole) * whole;
    let depth = ceil_div(a.depth, blocking.step) * blocking.step;
    let width_blocks = ceil_div(a.width, blocking.cols);
    let keys = chunk * chunks;
    let panels = |name: &str, len: i64| {
        let len = Expr::constant(a.batch * a.groups * len);
        k.buffer(name, blocking.part, BufferMode::Workspace, len)
            .aligned(64)
    };
    let w = Writer {
        k_panels: panels("k_panels", keys * depth),
        v_panels: panels("v_panels", width_blocks * blocking.cols * keys),
        a,
        chunk,
        chunks,
        depth,
        spread,
        mems: &params.mems,
        blocking,
    };
    let (rows, cols) = (w.blocking.rows, w.blocking.cols);
    for shape in [
        [depth / w.blocking.pack, cols],
        [keys / w.blocking.pack, cols],
        [rows, depth],
        [rows, chunk],
        [rows, cols],
    ] {
        lay_out(&k, &w.spread, &shape);
    }
    let keys_of = Side {
        extent: a.keys,
        stride: a.k.strides[2],
    };
    let depth_of = Side {
        extent: a.depth,
        stride: a.k.strides[3],
    };
    w.pack(&k, &a.k, &w.k_panels, keys_of, depth_of, [keys, depth]);
    let width_of = Side {
        extent: a.width,
        stride: a.v.strides[3],
    };
    let keys_of = Side {
        extent: a.keys,
        stride: a.v.strides[2],
    };
    let sizes = [width_blocks * cols, keys];
    w.pack(&k, &a.v, &w.v_panels, width_of, keys_of, sizes);
    let grid = [ceil_div(a.rows, rows), a.batch * a.heads].map(Expr::constant);
    k.phase(grid, |k| w.block(k));
    k.finish()
}

/// A dim of an operand.
struct Side {
    extent: i64,
    stride: i64,
}

/// What is left of an extent from an element on, at most `size` and at least nothing; `None` where blocks, which cover `reach` elements, end with it.
pub fn left(from: &Tile, size: i64, extent: i64, reach: i64) -> Option<Tile> {
    (reach > extent).then(|| {
        let rest = from * -1 + extent;
        rest.binary(BinaryOp::Min, size).binary(BinaryOp::Max, 0)
    })
}

impl Writer<'_> {
    /// Copies an operand into panels of columns, filled with zeros up to `[columns, depth]`.
    fn pack(
        &self,
        k: &KernelBuilder,
        from: &Place,
        panels: &Mem,
        side: Side,
        depth: Side,
        [columns, deep]: [i64; 2],
    ) {
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let blocks = columns / cols;
        let grid = [blocks, self.a.batch * self.a.groups].map(Expr::constant);
        k.phase(grid, |k| {
            let (block, head) = (k.program_id(0), k.program_id(1));
            let first = &block * cols;
            let (batch, group) = (div(&head, self.a.groups), rem(&head, self.a.groups));
            let start = batch * from.strides[0]
                + group * from.strides[1]
                + &first * side.stride
                + from.base;
            let panel = (head * blocks + &block) * (cols * deep);
            let cols_left = left(&first, cols, side.extent, columns);
            for lane in 0..pack {
                let mut window = self.mems[from.buffer]
                    .at(&(&start + lane * depth.stride))
                    .shape([deep / pack, cols])
                    .strides([pack * depth.stride, side.stride]);
                let present = ceil_div(depth.extent - lane, pack);
                if present < deep / pack {
                    window = window.valid(0, present);
                }
                if let Some(cols_left) = &cols_left {
                    window = window.valid(1, cols_left);
                }
                let tile = k.load(window).cast(self.blocking.part);
                let home = panels.at(&(&panel + lane)).shape([deep / pack, cols]);
                k.store(home.strides([cols * pack, pack]), &tile);
            }
        });
    }

    /// A block of queries.
    fn block(&self, k: &KernelBuilder) {
        let (a, b) = (self.a, &self.blocking);
        let (block, head) = (k.program_id(0), k.program_id(1));
        let (batch, head) = (div(&head, a.heads), rem(&head, a.heads));
        let kv = &batch * a.groups + div(&head, a.heads / a.groups);
        let first = &block * b.rows;
        let reach = ceil_div(a.rows, b.rows) * b.rows;
        let rows_left = left(&first, b.rows, a.rows, reach);
        let here = |place: &Place| {
            &batch * place.strides[0]
                + &head * place.strides[1]
                + &first * place.strides[2]
                + place.base
        };
        let panel = |dtype: DType, len: i64| k.alloc(Space::Panel, dtype, len, None);

        let q = panel(b.part, b.rows * self.depth);
        let mut window = self.mems[a.q.buffer]
            .at(here(&a.q))
            .shape([b.rows, self.depth])
            .strides([a.q.strides[2], a.q.strides[3]]);
        if let Some(rows_left) = &rows_left {
            window = window.valid(0, rows_left);
        }
        if a.depth < self.depth {
            window = window.valid(1, a.depth);
        }
        let queries = k.load(window).cast(b.part);
        k.store(q.at(0).shape([b.rows, self.depth]), &queries);

        let scratch = Scratch {
            q,
            scores: panel(DType::F32, b.rows * (self.chunk + APART)),
            powers: panel(b.part, b.rows * (self.chunk + APART)),
            acc: panel(DType::F32, b.rows * self.width()),
        };
        let width_blocks = self.width() / b.cols;
        for block in 0..width_blocks {
            let zero = k.full(DType::F32, [b.rows, b.cols], 0.0);
            k.store(self.acc(&scratch, block * b.rows * b.cols), &zero);
        }

        let at = At {
            first: first.clone(),
            kv,
            mask: a.mask.as_ref().map(|(place, _)| here(place)),
            rows_left: rows_left.clone(),
        };
        let seen = &first + b.rows;
        let (whole, all) = if a.causal {
            let whole = div(&(&first + 1), self.chunk).binary(BinaryOp::Min, a.keys / self.chunk);
            let all = div(&(&seen + (self.chunk - 1)), self.chunk);
            (whole, all.binary(BinaryOp::Min, self.chunks))
        } else {
            let number = |n: i64| k.constant(DType::I64, n);
            (number(a.keys / self.chunk), number(self.chunks))
        };
        let start = [
            k.full(DType::F32, [b.rows, 1], f64::NEG_INFINITY),
            k.full(DType::F32, [b.rows, 1], 0.0),
        ];
        let mut state = k.for_range(0, &whole, 1, start, |k, chunk, state| {
            self.chunk(k, &scratch, &at, &chunk, state, false)
        });
        if a.causal || a.keys % self.chunk != 0 {
            state = k.for_range(&whole, &all, 1, state, |k, chunk, state| {
                self.chunk(k, &scratch, &at, &chunk, state, true)
            });
        }

        let [most, sum] = state;
        let mut scale = sum.unary(oxyfuel_kernel::ir::UnaryOp::Recip);
        if a.mask.is_some() {
            let blind = sum.compare(CompareOp::Eq, 0.0);
            scale = blind.select(0.0, &scale);
        }
        let start = here(&a.out);
        for block in 0..width_blocks {
            let acc = k.load(self.acc(&scratch, block * b.rows * b.cols));
            let mut window = self.mems[a.out.buffer]
                .at(&(&start + block * b.cols * a.out.strides[3]))
                .shape([b.rows, b.cols])
                .strides([a.out.strides[2], a.out.strides[3]]);
            if let Some(rows_left) = &rows_left {
                window = window.valid(0, rows_left);
            }
            if (block + 1) * b.cols > a.width {
                window = window.valid(1, a.width - block * b.cols);
            }
            k.store(window, (acc * &scale).cast(a.dtype));
        }
        let log = sum.unary(oxyfuel_kernel::ir::UnaryOp::Log);
        let mut window = self.mems[a.sums.buffer]
            .at(here(&a.sums))
            .shape([b.rows, 1])
            .strides([a.sums.strides[2], 1]);
        if let Some(rows_left) = &rows_left {
            window = window.valid(0, rows_left);
        }
        k.store(window, most + log);
    }

    /// The width, filled up to whole blocks of columns.
    fn width(&self) -> i64 {
        ceil_div(self.a.width, self.blocking.cols) * self.blocking.cols
    }

    fn acc(&self, scratch: &Scratch, at: i64) -> oxyfuel_kernel::builder::Window {
        let (rows, cols) = (self.blocking.rows, self.blocking.cols);
        scratch.acc.at(at).shape([rows, cols])
    }

    /// One chunk of keys: the largest score and the sum of powers, before and after it.
    fn chunk(
        &self,
        k: &KernelBuilder,
        scratch: &Scratch,
        at: &At,
        chunk: &Tile,
        [most, sum]: [Tile; 2],
        cut: bool,
    ) -> [Tile; 2] {
        let (a, b) = (self.a, &self.blocking);
        let (rows, cols, apart) = (b.rows, b.cols, self.chunk + APART);
        let blocks = self.chunk / cols;
        let key_blocks = blocks * self.chunks;
        k.for_range(0, blocks, 1, [], |k, block, []| {
            let first_key = chunk * self.chunk + &block * cols;
            let panel = (&at.kv * key_blocks + chunk * blocks + &block) * (cols * self.depth);
            let keys = self.right(&self.k_panels, &panel, self.depth);
            let left_side = scratch.q.at(0).shape([rows, self.depth]);
            let left_side = left_side.operand([MmaDim::Side, MmaDim::K]);
            let mut score = self.product(k, left_side, keys) * a.scale;
            if let (Some((place, is_bool)), Some(start)) = (&a.mask, &at.mask) {
                let mut window = self.mems[place.buffer]
                    .at(&(start + &first_key * place.strides[3]))
                    .shape([rows, cols])
                    .strides([place.strides[2], place.strides[3]]);
                if let Some(rows_left) = &at.rows_left {
                    window = window.valid(0, rows_left);
                }
                let reach = if cut {
                    self.chunk * self.chunks
                } else {
                    a.keys
                };
                if let Some(keys_left) = left(&first_key, cols, a.keys, reach) {
                    window = window.valid(1, &keys_left);
                }
                let mask = k.load(window);
                score = if *is_bool {
                    mask.select(&score, f64::NEG_INFINITY)
                } else {
                    score + mask.cast(DType::F32)
                };
            }
            if cut {
                let key = k.iota(DType::I64, [1, cols], 1) + &first_key;
                if a.causal {
                    let row = k.iota(DType::I64, [rows, 1], 0) + &at.first;
                    let seen = key.broadcast_to([rows, cols]).compare(CompareOp::Le, &row);
                    score = seen.select(&score, f64::NEG_INFINITY);
                }
                if a.keys % self.chunk != 0 {
                    let there = key.compare(CompareOp::Lt, a.keys);
                    let there = there.broadcast_to([rows, cols]);
                    score = there.select(&score, f64::NEG_INFINITY);
                }
            }
            let home = scratch.scores.at(&(&block * cols)).shape([rows, cols]);
            k.store(home.strides([apart, 1]), &score);
            []
        });
        let scores = k.load(
            scratch
                .scores
                .at(0)
                .shape([rows, self.chunk])
                .strides([apart, 1]),
        );
        let best = most.binary(BinaryOp::Max, scores.reduce(ReduceOp::Max, [1]));
        let mut base = best.clone();
        if a.mask.is_some() {
            // Nothing seen so far: any number keeps the powers at 0.
            let blind = best.compare(CompareOp::Eq, f64::NEG_INFINITY);
            base = blind.select(0.0, &best);
        }
        let fade = weights(k, &(most - &base));
        let powers = weights(k, &(scores - &base));
        let home = scratch.powers.at(0).shape([rows, self.chunk]);
        k.store(home.strides([apart, 1]), powers.cast(b.part));
        let sum = sum * &fade + powers.reduce(ReduceOp::Sum, [1]);
        let width_blocks = self.width() / cols;
        k.for_range(0, width_blocks, 1, [], |k, block, []| {
            let panel = (&at.kv * width_blocks + &block) * (cols * self.chunk * self.chunks)
                + chunk * (self.chunk * cols);
            let values = self.right(&self.v_panels, &panel, self.chunk);
            let weights = scratch.powers.at(0).shape([rows, self.chunk]);
            let weights = weights.strides([apart, 1]);
            let new = self.product(k, weights.operand([MmaDim::Side, MmaDim::K]), values);
            let home = scratch.acc.at(&(&block * (rows * cols)));
            let home = home.shape([rows, cols]);
            let old = k.load(home.clone());
            k.store(home, old * &fade + new);
            []
        });
        [best, sum]
    }

    /// A panel as the right side of a product.
    fn right(&self, panels: &Mem, at: &Tile, depth: i64) -> oxyfuel_kernel::ir::MmaOperand {
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        if pack == 1 {
            let window = panels.at(at).shape([depth, cols]);
            return window.operand([MmaDim::K, MmaDim::Side]);
        }
        let window = panels.at(at).shape([depth / pack, cols, pack]);
        window.operand([MmaDim::K, MmaDim::Side, MmaDim::K])
    }

    /// A block of a product, in f32.
    fn product(
        &self,
        k: &KernelBuilder,
        left: oxyfuel_kernel::ir::MmaOperand,
        right: oxyfuel_kernel::ir::MmaOperand,
    ) -> Tile {
        let (rows, cols) = (self.blocking.rows, self.blocking.cols);
        let mut acc = zeros(k, DType::F32, rows, cols);
        if !self.blocking.matrix {
            return k.mma(left, right, &acc, false);
        }
        acc = acc.convert_layout(matrix_layout(rows, cols));
        let sum = k.mma(left, right, &acc, false);
        sum.convert_layout(self.spread.layout(&[rows, cols], &[rows, cols]))
    }
}

/// Memories of one block.
struct Scratch {
    q: Mem,
    scores: Mem,
    powers: Mem,
    acc: Mem,
}

/// Where a block is.
struct At {
    /// Its first query.
    first: Tile,
    /// The head of keys and values, counted over batches.
    kv: Tile,
    /// The mask's element of the first query and key.
    mask: Option<Tile>,
    rows_left: Option<Tile>,
}

pub fn div(x: &Tile, by: i64) -> Tile {
    if by == 1 {
        return x.clone();
    }
    x.binary(BinaryOp::Div, by)
}

pub fn rem(x: &Tile, by: i64) -> Tile {
    x.binary(BinaryOp::Rem, by)
}
