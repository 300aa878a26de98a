//! Attention on a CPU: blocks of queries pass over chunks of keys, with a running softmax; scores never leave the first-level cache.
//!
//! ```text
//!   phase 0   k [keys, depth]  ->  panels of `cols` keys:     [blocks of keys][depth / pack][cols][pack]
//!   phase 1   v [keys, width]  ->  panels of `cols` columns:  [blocks of width][keys / pack][cols][pack]
//!   phase 2   an instance is a block of `rows` queries of one head:
//!                 for each chunk of keys
//!                     scores   = q @ k panels                          in scratch
//!                     most     = max(most, scores)                     a number a row
//!                     powers   = 2^((scores - most) * unit)            in scratch
//!                     sum, acc = sum * fade + powers, acc * fade + powers @ v panels,   where fade = 2^((the old most - most) * unit)
//!                 out = acc / sum, lse = most * scale + log(sum)
//! ```
//!
//! Scores stand in scratch as the product leaves them, where nothing is added to them: `unit` is then the scale times `log2(e)`.
//!
//! Chunks that every query of the block may see whole come first, in a loop without comparisons; those at the end of the keys or at the diagonal follow in a second one, and at the diagonal they are short.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Index, MmaDim, ReduceOp, Space};
use oxyfuel_plan::{OperandHome, TargetDesc};
use oxyfuel_schedule::Placements;

use crate::build::{checked, constant};
use crate::decode::{MOST_QUERIES, decode};
use crate::map::{Spread, vector};
use crate::nest::Nest;
use crate::packed::{lay_out, matrix_layout, zeros};
use crate::size::{Known, Params, Sizes};
use crate::staged_attention;
use crate::tile::ceil_div;

/// Keys that pass between two looks at the largest score: scores and powers of a block lie in the first-level cache.
const CHUNK: i64 = 256;
/// Keys of a chunk at the diagonal, half of which few queries see.
const CUT_CHUNK: i64 = 64;
/// Elements between rows of scores beyond a chunk, so that rows do not share cache sets.
const APART: i64 = 16;
/// Below so many queries a block is mostly empty: they are decoding steps.
const LEAST_ROWS: i64 = 4;

/// Whether a node is attention, or its gradients, of a kind and size that has a kernel.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let number = |n: &Expr| n.as_const().unwrap_or(0);
    let is_fixed = graph.symbols.is_empty()
        && node.inputs.iter().all(|&value| {
            let shape = &graph.values[value].ty.shape;
            shape.iter().all(|n| number(n) > 0)
        });
    let first = match node.op {
        Op::Sdpa { .. } => 0,
        Op::SdpaBackward { .. } if !target.is_simt() => 1,
        _ => return false,
    };
    let [q, k, v] = [0, 1, 2].map(|i| &graph.values[node.inputs[first + i]].ty);
    let [heads, depth] = [1, 3].map(|dim| number(&q.shape[dim]));
    let (groups, width) = (number(&k.shape[1]), number(&v.shape[3]));
    let rows = &q.shape[2];
    // How many there are of batches, queries and keys, only a call may know.
    let sizes = [&q.shape[0], rows, &k.shape[2]];
    let some = !sizes.iter().any(|size| size.is_const(0))
        && [heads, groups, depth, width].iter().all(|&n| n > 0);
    let sized = if target.is_simt() {
        some && staged_attention::fits(q.dtype, depth, width, target)
    } else if first > 0 || rows.as_const().is_none_or(|rows| rows >= LEAST_ROWS) {
        some
    } else {
        is_fixed && depth > 1 && number(rows) * heads / groups <= MOST_QUERIES
    };
    (target.is_simt() || target.vector_bytes > 0)
        && matches!(q.dtype, DType::F32 | DType::BF16 | DType::F16)
        && sized
}

/// A tensor of 4 dims in memory.
pub struct Place<N = i64> {
    pub buffer: usize,
    pub base: N,
    pub strides: [N; 4],
}

impl Place<Expr> {
    /// The same in numbers.
    fn numbers(&self, number: Number<'_>) -> Result<Place> {
        let [a, b, c, d] = &self.strides;
        Ok(Place {
            buffer: self.buffer,
            base: number(&self.base)?,
            strides: [number(a)?, number(b)?, number(c)?, number(d)?],
        })
    }
}

/// What a size is taken for.
type Number<'a> = &'a dyn Fn(&Expr) -> Result<i64>;

/// Reads where operands lie. `buffers` are the roots in argument order.
pub struct Operands<'a> {
    pub graph: &'a Graph,
    pub memory: &'a Placements,
    pub buffers: &'a [ValueId],
}

impl Operands<'_> {
    pub fn shape(&self, value: ValueId) -> &[Expr] {
        &self.graph.values[value].ty.shape
    }

    pub fn place(&self, value: ValueId) -> Result<Place<Expr>> {
        let place = self.memory.of(value);
        let buffer = self.buffers.iter().position(|&root| root == place.root);
        let stride = |i: usize| place.strides.get(i).cloned().unwrap_or(Expr::ZERO);
        Ok(Place {
            buffer: buffer.ok_or_else(|| err!(Internal, "an operand has no buffer"))?,
            base: checked(&place.offset)?,
            strides: [stride(0), stride(1), stride(2), stride(3)],
        })
    }

    /// A mask, whose sizes of 1 are repeated, and whether it is of bools.
    pub fn mask(&self, value: ValueId) -> Result<(Place<Expr>, bool)> {
        let mut at = self.place(value)?;
        for (stride, size) in at.strides.iter_mut().zip(self.shape(value)) {
            if size.is_const(1) {
                *stride = Expr::ZERO;
            }
        }
        Ok((at, self.graph.values[value].ty.dtype.is_bool()))
    }
}

/// What is computed: in numbers, or in expressions where only a call knows some.
pub struct Attention<N = i64> {
    pub batch: N,
    pub heads: i64,
    pub groups: i64,
    pub rows: N,
    pub keys: N,
    pub depth: i64,
    pub width: i64,
    pub q: Place<N>,
    pub k: Place<N>,
    pub v: Place<N>,
    pub mask: Option<(Place<N>, bool)>,
    pub out: Place<N>,
    pub sums: Place<N>,
    pub dtype: DType,
    pub causal: bool,
    pub scale: f64,
}

impl Attention<Expr> {
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
        let mask = node.inputs.get(3).map(|&value| of.mask(value));
        Ok(Self {
            batch: q[0].clone(),
            heads: constant(&q[1])?,
            groups: constant(&k[1])?,
            rows: q[2].clone(),
            // Nobody sees the others.
            keys: if causal && k[2] != q[2] {
                Expr::min(&k[2], q[2].clone())
            } else {
                k[2].clone()
            },
            depth: constant(&q[3])?,
            width: constant(&v[3])?,
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

    /// The same in numbers, if all of them are known.
    pub fn fixed(&self) -> Result<Attention> {
        self.numbers(&constant)
    }

    /// The same with guesses for what is not known.
    pub fn likely(&self, known: &Known) -> Result<Attention> {
        self.numbers(&|size| Ok(known.guess(size).max(0)))
    }

    fn numbers(&self, number: Number<'_>) -> Result<Attention> {
        let mask = |(place, is_bool): &(Place<Expr>, bool)| Ok((place.numbers(number)?, *is_bool));
        Ok(Attention {
            batch: number(&self.batch)?,
            heads: self.heads,
            groups: self.groups,
            rows: number(&self.rows)?,
            keys: number(&self.keys)?,
            depth: self.depth,
            width: self.width,
            q: self.q.numbers(number)?,
            k: self.k.numbers(number)?,
            v: self.v.numbers(number)?,
            mask: self.mask.as_ref().map(mask).transpose()?,
            out: self.out.numbers(number)?,
            sums: self.sums.numbers(number)?,
            dtype: self.dtype,
            causal: self.causal,
            scale: self.scale,
        })
    }

    /// Every size that only a call may know.
    pub fn sizes(&self) -> [&Expr; 3] {
        [&self.batch, &self.rows, &self.keys]
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

fn blocking(queries: &Expr, dtype: DType, target: &TargetDesc) -> Blocking {
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
    let even = |queries: i64| ceil_div(queries, ceil_div(queries, most));
    Blocking {
        rows: queries.as_const().map_or(most, even),
        cols: i64::from(target.lanes(4)) * 2,
        step: 1,
        pack: 1,
        part: DType::F32,
        matrix: false,
    }
}

/// Everything that the phases share.
struct Writer<'a> {
    a: &'a Attention<Expr>,
    blocking: Blocking,
    /// Keys of a chunk, and chunks.
    chunk: i64,
    chunks: Expr,
    /// By what scores are multiplied as they are made, and then, as exponents of two.
    scale: f64,
    unit: f64,
    /// The depth, filled up to whole steps of the unit.
    depth: i64,
    k_panels: Mem,
    v_panels: Mem,
    spread: Spread,
    mems: &'a [Mem],
    sizes: &'a Sizes,
}

/// Builds the program.
pub fn attention(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    exact: &Attention<Expr>,
    target: &TargetDesc,
) -> Result<Program> {
    if target.is_simt() {
        return staged_attention::attention(nest, params_of, exact, target);
    }
    match exact.fixed() {
        Ok(a) if a.rows < LEAST_ROWS => decode(nest, params_of, &a, target),
        Ok(_) | Err(_) => blocks(nest, params_of, exact, target),
    }
}

/// Blocks of queries over panels of keys and values.
fn blocks(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    a: &Attention<Expr>,
    target: &TargetDesc,
) -> Result<Program> {
    let blocking = blocking(&a.rows, a.dtype, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let whole = blocking.cols.max(blocking.step);
    // A number of keys that is known is shared out evenly.
    let even = |keys: i64| ceil_div(keys, ceil_div(keys, CHUNK));
    let chunk = ceil_div(a.keys.as_const().map_or(CHUNK, even), whole) * whole;
    let chunks = a.keys.ceildiv(chunk);
    let depth = ceil_div(a.depth, blocking.step) * blocking.step;
    let width_blocks = ceil_div(a.width, blocking.cols);
    let keys = &chunks * chunk;
    let panels = |name: &str, len: &Expr| {
        let len = &(&a.batch * a.groups) * len;
        k.buffer(name, blocking.part, BufferMode::Workspace, len)
            .aligned(64)
    };
    let log2_e = std::f64::consts::LOG2_E;
    // A sum with a mask is of scaled scores, and the largest of negated ones another.
    let (scale, unit) = match a.mask.is_none() && a.scale > 0.0 {
        true => (1.0, a.scale * log2_e),
        false => (a.scale, log2_e),
    };
    let w = Writer {
        k_panels: panels("k_panels", &(&keys * depth)),
        v_panels: panels("v_panels", &(&keys * (width_blocks * blocking.cols))),
        a,
        chunk,
        chunks,
        scale,
        unit,
        depth,
        spread,
        mems: &params.mems,
        sizes: &params.sizes,
        blocking,
    };
    let (rows, cols) = (w.blocking.rows, w.blocking.cols);
    // Values are copied at once, or chunk by chunk.
    let at_once = keys.as_const().unwrap_or(chunk);
    for shape in [
        [depth / w.blocking.pack, cols],
        [at_once / w.blocking.pack, cols],
        [rows, depth],
        [rows, chunk],
        [rows, w.cut_chunk()],
        [rows, cols],
    ] {
        lay_out(&k, &w.spread, &shape);
    }
    for deep in [depth, at_once] {
        let shape = [deep / w.blocking.pack, cols, w.blocking.pack];
        k.layout_shape(shape, w.spread.layout(&shape, &shape));
    }
    let keys_of = Side {
        extent: &a.keys,
        stride: &a.k.strides[2],
    };
    let deep = Expr::constant(a.depth);
    let depth_of = Side {
        extent: &deep,
        stride: &a.k.strides[3],
    };
    let padded = Expr::constant(depth);
    w.pack(&k, &a.k, &w.k_panels, (keys_of, &keys), (depth_of, &padded));
    let wide = Expr::constant(a.width);
    let width_of = Side {
        extent: &wide,
        stride: &a.v.strides[3],
    };
    let keys_of = Side {
        extent: &a.keys,
        stride: &a.v.strides[2],
    };
    let padded = Expr::constant(width_blocks * cols);
    w.pack(&k, &a.v, &w.v_panels, (width_of, &padded), (keys_of, &keys));
    let grid = [a.rows.ceildiv(rows), &a.batch * a.heads];
    k.phase(grid, |k| w.block(k));
    k.finish()
}

/// A dim of an operand.
struct Side<'a> {
    extent: &'a Expr,
    stride: &'a Expr,
}

/// What is left of an extent from an element on, at most `size` and at least nothing; `None` where blocks, which cover `reach` elements, end with it.
pub fn left(sizes: &Sizes, from: &Tile, size: i64, extent: &Expr, reach: &Expr) -> Option<Tile> {
    (reach != extent).then(|| {
        let rest = sizes.minus(extent, from);
        rest.binary(BinaryOp::Min, size).binary(BinaryOp::Max, 0)
    })
}

impl Writer<'_> {
    fn left(&self, from: &Tile, size: i64, extent: &Expr, reach: &Expr) -> Option<Tile> {
        left(self.sizes, from, size, extent, reach)
    }

    /// Copies an operand into panels of columns, filled with zeros up to so many columns and so deep.
    fn pack(
        &self,
        k: &KernelBuilder,
        from: &Place<Expr>,
        panels: &Mem,
        (side, columns): (Side<'_>, &Expr),
        (depth, deep): (Side<'_>, &Expr),
    ) {
        let cols = self.blocking.cols;
        let blocks = columns.floordiv(cols);
        let grid = [blocks.clone(), &self.a.batch * self.a.groups];
        k.phase(grid, |k| {
            let (block, head) = (k.program_id(0), k.program_id(1));
            let first = &block * cols;
            let (batch, group) = (div(&head, self.a.groups), rem(&head, self.a.groups));
            let start = self.sizes.times(&batch, &from.strides[0])
                + self.sizes.times(&group, &from.strides[1])
                + self.sizes.times(&first, side.stride);
            let start = self.sizes.plus(&start, &from.base);
            let panel = self.sizes.times(&head, &blocks) + &block;
            let panel = self.sizes.times(&panel, &(deep * cols));
            let present = self.left(&first, cols, side.extent, columns);
            let copy = Copied {
                buffer: from.buffer,
                side: &side,
                depth: &depth,
                panels,
                present,
            };
            if let (Some(_), Some(deep)) = (depth.extent.as_const(), deep.as_const()) {
                self.copy(k, &copy, &start, &panel, None, deep);
                return;
            }
            k.for_range(0, self.sizes.tile(&self.chunks), 1, [], |k, part, []| {
                let at = &part * self.chunk;
                let start = &start + self.sizes.times(&at, depth.stride);
                let panel = &panel + &at * cols;
                self.copy(k, &copy, &start, &panel, Some(&at), self.chunk);
                []
            });
        });
    }

    /// Copies a piece of a panel that is so deep; `at` is where along the depth it begins, unless that is at 0 of a depth that is known.
    fn copy(
        &self,
        k: &KernelBuilder,
        copied: &Copied<'_>,
        start: &Tile,
        panel: &Tile,
        at: Option<&Tile>,
        deep: i64,
    ) {
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let (side, depth) = (copied.side, copied.depth);
        // Groups of the depth as they are, if all of them exist: only where they stand changes.
        let strides = [depth.stride, side.stride].map(Expr::as_const);
        let whole = at.is_none() && depth.extent.is_const(deep) && copied.present.is_none();
        if let ([Some(along), Some(across)], true) = (strides, whole && self.blocking.matrix)
            && (along == 1 || across == 1)
        {
            let shape = [deep / pack, cols, pack];
            let window = self.mems[copied.buffer].at(start).shape(shape);
            let tile = k.load(window.strides([along * pack, across, along]));
            k.store(copied.panels.at(panel).shape(shape), &tile);
            return;
        }
        for lane in 0..pack {
            let mut window = self.mems[copied.buffer]
                .at(self.sizes.plus(start, &(depth.stride * lane)))
                .shape([deep / pack, cols])
                .strides([
                    self.sizes.index(&(depth.stride * pack)),
                    self.sizes.index(side.stride),
                ]);
            match (depth.extent.as_const(), at) {
                (Some(extent), None) => {
                    let present = ceil_div(extent - lane, pack);
                    if present < deep / pack {
                        window = window.valid(0, present);
                    }
                }
                (_, at) => {
                    let rest = match at {
                        Some(at) => self.sizes.minus(depth.extent, at),
                        None => self.sizes.tile(depth.extent),
                    };
                    let rest = div(&(rest + (pack - 1 - lane)), pack);
                    let present = rest.binary(BinaryOp::Min, deep / pack);
                    window = window.valid(0, present.binary(BinaryOp::Max, 0));
                }
            }
            if let Some(present) = &copied.present {
                window = window.valid(1, present);
            }
            let tile = k.load(window).cast(self.blocking.part);
            let home = copied.panels.at(&(panel + lane));
            let home = home.shape([deep / pack, cols]).strides([cols * pack, pack]);
            k.store(home, &tile);
        }
    }

    /// A block of queries.
    fn block(&self, k: &KernelBuilder) {
        let (a, b, sizes) = (self.a, &self.blocking, self.sizes);
        let (block, head) = (k.program_id(0), k.program_id(1));
        let (batch, head) = (div(&head, a.heads), rem(&head, a.heads));
        let kv = &batch * a.groups + div(&head, a.heads / a.groups);
        let first = &block * b.rows;
        let reach = a.rows.ceildiv(b.rows) * b.rows;
        let rows_left = self.left(&first, b.rows, &a.rows, &reach);
        let here = |place: &Place<Expr>| {
            let start = sizes.times(&batch, &place.strides[0])
                + sizes.times(&head, &place.strides[1])
                + sizes.times(&first, &place.strides[2]);
            sizes.plus(&start, &place.base)
        };
        let steps = |place: &Place<Expr>| [2, 3].map(|dim| sizes.index(&place.strides[dim]));
        let panel = |dtype: DType, len: i64| k.alloc(Space::Panel, dtype, len, None);

        let q = panel(b.part, b.rows * self.depth);
        let mut window = self.mems[a.q.buffer]
            .at(here(&a.q))
            .shape([b.rows, self.depth])
            .strides(steps(&a.q));
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
        let full = a.keys.floordiv(self.chunk);
        let cut = self.cut_chunk();
        let cuts = &self.chunks * (self.chunk / cut);
        let (whole, all) = if a.causal {
            let whole = div(&(&first + 1), self.chunk);
            let all = div(&(&seen + (cut - 1)), cut);
            (
                sizes.binary(&whole, BinaryOp::Min, &full),
                sizes.binary(&all, BinaryOp::Min, &cuts),
            )
        } else {
            (sizes.tile(&full), sizes.tile(&cuts))
        };
        let start = [
            k.full(DType::F32, [b.rows, 1], f64::NEG_INFINITY),
            k.full(DType::F32, [b.rows, 1], 0.0),
        ];
        let mut state = k.for_range(0, &whole, 1, start, |k, chunk, state| {
            self.chunk(k, &scratch, &at, (&chunk, self.chunk), state, false)
        });
        if a.causal || self.has_rest() {
            let first_cut = &whole * (self.chunk / cut);
            state = k.for_range(&first_cut, &all, 1, state, |k, chunk, state| {
                self.chunk(k, &scratch, &at, (&chunk, cut), state, true)
            });
        }

        let [most, sum] = state;
        let mut scale = sum.unary(oxyfuel_kernel::ir::UnaryOp::Recip);
        if a.mask.is_some() || a.keys.as_const().is_none() {
            let blind = sum.compare(CompareOp::Eq, 0.0);
            scale = blind.select(0.0, &scale);
        }
        let start = here(&a.out);
        for block in 0..width_blocks {
            let acc = k.load(self.acc(&scratch, block * b.rows * b.cols));
            let mut window = self.mems[a.out.buffer]
                .at(sizes.plus(&start, &(&a.out.strides[3] * (block * b.cols))))
                .shape([b.rows, b.cols])
                .strides(steps(&a.out));
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
            .strides([sizes.index(&a.sums.strides[2]), Index::Const(1)]);
        if let Some(rows_left) = &rows_left {
            window = window.valid(0, rows_left);
        }
        let most = match self.scale == a.scale {
            true => most,
            false => most * a.scale,
        };
        k.store(window, most + log);
    }

    /// Keys of a chunk some of which some queries may not see.
    fn cut_chunk(&self) -> i64 {
        match self.a.causal && self.chunk % CUT_CHUNK == 0 {
            true => CUT_CHUNK,
            false => self.chunk,
        }
    }

    /// Whether the last chunk may have fewer keys than the others.
    fn has_rest(&self) -> bool {
        let keys = self.a.keys.as_const();
        keys.is_none_or(|keys| keys % self.chunk != 0)
    }

    /// The width, filled up to whole blocks of columns.
    fn width(&self) -> i64 {
        ceil_div(self.a.width, self.blocking.cols) * self.blocking.cols
    }

    fn acc(&self, scratch: &Scratch, at: i64) -> oxyfuel_kernel::builder::Window {
        let (rows, cols) = (self.blocking.rows, self.blocking.cols);
        scratch.acc.at(at).shape([rows, cols])
    }

    /// One chunk of keys, of which it is told the number and how long it is: the largest score and the sum of powers, before and after it.
    fn chunk(
        &self,
        k: &KernelBuilder,
        scratch: &Scratch,
        at: &At,
        (chunk, len): (&Tile, i64),
        [most, sum]: [Tile; 2],
        cut: bool,
    ) -> [Tile; 2] {
        let (a, b) = (self.a, &self.blocking);
        let (rows, cols, apart) = (b.rows, b.cols, self.chunk + APART);
        let blocks = len / cols;
        let key_blocks = &self.chunks * (self.chunk / cols);
        k.for_range(0, blocks, 1, [], |k, block, []| {
            let first_key = chunk * len + &block * cols;
            let panel = self.sizes.times(&at.kv, &key_blocks) + chunk * blocks + &block;
            let panel = panel * (cols * self.depth);
            let keys = self.right(&self.k_panels, &panel, self.depth);
            let left_side = scratch.q.at(0).shape([rows, self.depth]);
            let left_side = left_side.operand([MmaDim::Side, MmaDim::K]);
            let nothing = zeros(k, DType::F32, rows, cols);
            let mut score = self.product(k, left_side, keys, nothing);
            if self.scale != 1.0 {
                score = score * self.scale;
            }
            if let (Some((place, is_bool)), Some(start)) = (&a.mask, &at.mask) {
                let mut window = self.mems[place.buffer]
                    .at(&(start + self.sizes.times(&first_key, &place.strides[3])))
                    .shape([rows, cols])
                    .strides([2, 3].map(|dim| self.sizes.index(&place.strides[dim])));
                if let Some(rows_left) = &at.rows_left {
                    window = window.valid(0, rows_left);
                }
                // Chunks before the last one are whole.
                let keys_left = cut.then(|| {
                    let reach = &self.chunks * self.chunk;
                    self.left(&first_key, cols, &a.keys, &reach)
                });
                if let Some(keys_left) = keys_left.flatten() {
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
                if self.has_rest() {
                    let there = match a.keys.as_const() {
                        Some(keys) => key.compare(CompareOp::Lt, keys),
                        None => key.compare(CompareOp::Lt, self.sizes.tile(&a.keys)),
                    };
                    let there = there.broadcast_to([rows, cols]);
                    score = there.select(&score, f64::NEG_INFINITY);
                }
            }
            let home = scratch.scores.at(&(&block * cols)).shape([rows, cols]);
            k.store(home.strides([apart, 1]), &score);
            []
        });
        let scores = k.load(scratch.scores.at(0).shape([rows, len]).strides([apart, 1]));
        let best = most.binary(BinaryOp::Max, scores.reduce(ReduceOp::Max, [1]));
        let mut base = best.clone();
        if a.mask.is_some() {
            // Nothing seen so far: any number keeps the powers at 0.
            let blind = best.compare(CompareOp::Eq, f64::NEG_INFINITY);
            base = blind.select(0.0, &best);
        }
        let unit = self.unit;
        // Only differences are multiplied: a large score times `unit` is rounded by more than they are.
        let [fade, powers] = [most - &base, scores - &base].map(|x| (x * unit).near_exp2());
        let home = scratch.powers.at(0).shape([rows, len]);
        k.store(home.strides([apart, 1]), powers.cast(b.part));
        let sum = sum * &fade + powers.reduce(ReduceOp::Sum, [1]);
        let width_blocks = self.width() / cols;
        k.for_range(0, width_blocks, 1, [], |k, block, []| {
            let panel = &at.kv * width_blocks + &block;
            let panel = self
                .sizes
                .times(&panel, &(&self.chunks * (cols * self.chunk)))
                + chunk * (len * cols);
            let values = self.right(&self.v_panels, &panel, len);
            let weights = scratch.powers.at(0).shape([rows, len]);
            let weights = weights.strides([apart, 1]);
            let weights = weights.operand([MmaDim::Side, MmaDim::K]);
            let home = scratch.acc.at(&(&block * (rows * cols)));
            let home = home.shape([rows, cols]);
            k.store(home.clone(), k.load(home.clone()) * &fade);
            let faded = k.load(home.clone());
            k.store(home, self.product(k, weights, values, faded));
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

    /// What there is so far and a block of a product, in f32.
    fn product(
        &self,
        k: &KernelBuilder,
        left: oxyfuel_kernel::ir::MmaOperand,
        right: oxyfuel_kernel::ir::MmaOperand,
        so_far: Tile,
    ) -> Tile {
        let (rows, cols) = (self.blocking.rows, self.blocking.cols);
        if !self.blocking.matrix {
            return k.mma(left, right, &so_far, false);
        }
        let acc = so_far.convert_layout(matrix_layout(rows, cols));
        let sum = k.mma(left, right, &acc, false);
        sum.convert_layout(self.spread.layout(&[rows, cols], &[rows, cols]))
    }
}

/// An operand on its way into panels.
struct Copied<'a> {
    buffer: usize,
    side: &'a Side<'a>,
    depth: &'a Side<'a>,
    panels: &'a Mem,
    /// Columns that there are, where a panel may have fewer.
    present: Option<Tile>,
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
