//! A matrix product on the vector unit of a CPU, cut so that each level of its caches holds what it is asked for most.
//!
//! ```text
//!   an instance computes  band x across  blocks of the result, rows x cols each
//!
//!   for each chunk of the depth:
//!     its part of a is copied into panels             [band][rows][chunk]      second-level cache
//!     for each of the columns' panels:
//!       its part of b is copied into a panel          [chunk][cols]            second-level cache, rows asked for ahead
//!       for each panel of a: rows x cols sums, from zero                       registers, added to those of other chunks in the second-level cache
//! ```
//!
//! A weight that is stored by its outputs (`x @ w.t()`) is the left operand, as it lies, and the few rows of `x` are turned instead: sums are of the result turned, stay in the second-level cache, and are turned as the work on the result reads them.
//!
//! Where rows of the result are reduced, or rows of `a` are made by the kernel, an instance has all columns: it makes its rows first, over the whole depth, in place of the panels of `a`, and reduces rows of sums at the end.
//!
//! Where many instances use the same columns, `b` is copied once, by a phase of its own, in the order in which it lies. The first copy of an operand is the only time it is read from where it lies; every loop
//! after that reads in order. Where `b` was cut into panels ahead of time (`mm_panels`), they are what that phase would have written, and it is left out. Sums are added chunk by chunk in the same order whoever computes them: the cut into chunks depends on the caches alone, not
//! on the threads. A great depth with few blocks is multiplied in parts ([`crate::deep`]). A depth of a few hundred is one chunk, whose panel of `b` is read from the second-level cache. Sums begin at zero at least every [`SUMMED`] elements, and are then added up: a sum of many terms has the errors of few.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use crate::build::accumulator;
use crate::deep::{Deep, Sums};
use crate::direct::{Late, Product, remaining};
use crate::map::vector;
use crate::nest::{self, Nest};
use crate::outputs::turned;
use crate::packed::{complete, finish, lay_out, origin, zeros};
use crate::rows::{Frame, left};
use crate::size::{Known, Params};
use crate::tile::{Tiling, ceil_div};

/// Below so many multiply-adds the copies cost more than they save.
const WORTH_COPYING: i64 = 1 << 15;
/// Products of so few rows have kernels that read `b` where it lies.
const FEW: i64 = 16;
/// Elements of a chunk where only a call knows how deep a product is, at most, and the step and least of them: what is left empty of the last one is multiplied, too.
const OPEN: i64 = 128;
const SHALLOW: i64 = 16;
/// What parts of a great depth are multiples of.
const DEEP_STEP: i64 = 16;
/// Rows that a product has at least when blocks are chosen for any number of them.
const ANY: i64 = 64;
/// Elements of the depth that are copied at a time: with the columns they fit the first-level cache, where they are turned if memory runs along the depth.
const PIECE: i64 = 128;
/// The same for all panels of columns, one after the other: as many pages are read and written at a time.
const SLICE: i64 = 16;

/// Elements of the depth that are summed from zero, at most: rounding errors grow with the length of a sum, and so those of many short ones stay below those of a long one.
pub const SUMMED: i64 = 384;

/// The sizes of all loops.
#[derive(Clone, Debug, PartialEq)]
struct Blocking {
    rows: i64,
    cols: i64,
    /// What is multiplied: narrow floats are widened as they are copied.
    part: DType,
    /// Elements of the depth between two visits to the sums; the last chunk may be shorter.
    chunk: i64,
    chunks: i64,
    /// Panels of rows and of columns that an instance has.
    band: i64,
    across: i64,
    /// `b` is copied by a phase of its own.
    shared: bool,
    /// There are as many chunks as a call's depth takes, all of one length; the last is filled with zeros.
    open: bool,
    finish: Finish,
    /// Elements of the depth that panels of `a` have, which the instance makes itself, row by row, before anything else.
    made: Option<i64>,
}

/// When the work on the result is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// Block by block, each as soon as its sums are there.
    Blocks,
    /// When all sums of an instance are there: they are of the result turned.
    Turned,
    /// When all sums of an instance are there, row by row: it has whole rows, which are reduced.
    Rows,
}

impl Blocking {
    /// Elements from one row of a panel of `a` to the next: an odd number of cache lines, so that rows do not share a set.
    fn pitch(&self) -> i64 {
        let line = 64 / self.part.size() as i64;
        (ceil_div(self.made.unwrap_or(self.chunk), line) | 1) * line
    }

    /// Whether an instance has whole rows of the result.
    fn is_whole(&self) -> bool {
        self.finish == Finish::Rows || self.made.is_some()
    }

    /// Elements from one row of sums to the next where an instance has whole rows: an odd number of cache lines, too.
    fn row_pitch(&self) -> i64 {
        let line = 64 / self.part.size() as i64;
        (ceil_div(self.across * self.cols, line) | 1) * line
    }

    /// Whether all sums of an instance wait until it has them all.
    fn keeps(&self) -> bool {
        self.chunks > 1 || self.finish != Finish::Blocks
    }

    /// Where the sums of a block are, of all those of an instance.
    fn home(&self, sums: &Mem, i: &Tile, j: &Tile) -> Window {
        let (rows, cols) = (self.rows, self.cols);
        if self.finish == Finish::Rows {
            let pitch = self.row_pitch();
            let home = sums.at(i * (rows * pitch) + j * cols);
            return home.shape([rows, cols]).strides([pitch, 1]);
        }
        sums.at((j * self.band + i) * (rows * cols))
            .shape([rows, cols])
    }

    /// Depth of the last chunk.
    fn rest(&self, product: &Product) -> i64 {
        if self.open {
            return self.chunk;
        }
        product.k - (self.chunks - 1) * self.chunk
    }

    fn row_blocks(&self, product: &Product) -> i64 {
        ceil_div(product.m, self.rows)
    }

    fn col_blocks(&self, product: &Product) -> i64 {
        ceil_div(product.n, self.cols)
    }
}

/// What things cost, in cycles of a worker. Measured on Xeons with 1 MiB of second-level cache; only their ratios matter.
mod cost {
    /// To copy an element that comes from memory.
    pub const COPY: f64 = 1.0;
    /// To copy an element and to write it where others find it.
    pub const SHARE: f64 = 2.0;
    /// To read an element of a panel in order that another instance left.
    pub const STREAM: f64 = 0.25;
    /// To move a vector of sums between registers and cache, there and back.
    pub const MOVE: f64 = 2.0;
    /// To begin an instance, and a phase.
    pub const INSTANCE: f64 = 1_000.0;
    pub const PHASE: f64 = 8_000.0;
}

/// Builds the program, or says why this product is not for it.
pub fn blocked(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    made: Option<&(Nest, nest::Node)>,
    target: &TargetDesc,
) -> Result<Program> {
    let whole = product;
    let by_rows = nest.has_reduction();
    let finish = match by_rows {
        true => Finish::Rows,
        false => Finish::Blocks,
    };
    let is_made = made.is_some();
    let mut blocking = choose(whole, target, finish, is_made)?;
    let cut = !blocking.is_whole();
    let deep = Deep::of(whole, [blocking.rows, blocking.cols], DEEP_STEP).filter(|_| cut);
    let other = turned(whole);
    let turns = deep.is_none() && cut && is_worth_turning(whole);
    let product = match &deep {
        Some(deep) => &deep.product,
        None if turns => &other,
        None => whole,
    };
    if deep.is_some() {
        blocking = choose(product, target, Finish::Blocks, false)?;
    } else if turns {
        blocking = choose(product, target, Finish::Turned, false)?;
    }
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let (rows, cols) = (blocking.rows, blocking.cols);
    let parts = deep.as_ref().map(|deep| deep.sums(&k, [rows, cols]));
    lay_out(&k, &spread, &[rows, cols]);
    match blocking.finish {
        Finish::Blocks => {}
        Finish::Turned => lay_out(&k, &spread, &[cols, blocking.band * rows]),
        Finish::Rows => {
            lay_out(&k, &spread, &[1, product.n]);
            k.layout_shape([1], spread.layout(&[1], &[product.n]));
        }
    }
    if is_made {
        lay_out(&k, &spread, &[1, product.k]);
        k.layout_shape([1], spread.layout(&[1], &[product.k]));
    }
    for deep in [blocking.chunk, blocking.rest(product)] {
        lay_out(&k, &spread, &[rows, deep]);
        lay_out(&k, &spread, &[deep, rows]);
    }
    let slices = [slice(product), product.k % slice(product)];
    let slices = slices.into_iter().filter(|deep| *deep > 0);
    let pieces = pieces(blocking.chunk).chain(pieces(blocking.rest(product)));
    for deep in pieces.map(|piece| piece.1).chain(slices) {
        lay_out(&k, &spread, &[deep, cols]);
    }
    let work = Work {
        nest,
        params: &params,
        product,
        each: &product.each(),
        exact: &product.exact(),
        blocking: &blocking,
        parts: parts.as_ref(),
        whole,
        made,
    };
    let panels: Vec<Mem> = match (product.b.panels, blocking.shared) {
        (Some(_), _) => {
            let buffers = work.each.iter().map(|product| product.b.buffer);
            buffers.map(|buffer| params.mems[buffer].clone()).collect()
        }
        (None, true) => work.share(&k),
        (None, false) => Vec::new(),
    };
    let grid = [
        work.row_blocks().ceildiv(blocking.band),
        ceil_div(blocking.col_blocks(product), blocking.across).into(),
        work.exact.batch.clone(),
    ];
    k.phase(grid, |k| {
        work.instance(k, &panels);
    });
    if let Some(parts) = &parts {
        parts.finish(&k, &params, nest, whole);
    }
    k.finish()
}

/// Rows of `b` that are copied for all panels before the next ones, where that is how they lie.
fn slice(product: &Product) -> i64 {
    SLICE.min(product.k).max(1)
}

/// Parts of at most [`PIECE`] elements: first element and length.
fn pieces(deep: i64) -> impl Iterator<Item = (i64, i64)> {
    let count = ceil_div(deep, PIECE);
    (0..count).map(move |i| (i * PIECE, PIECE.min(deep - i * PIECE)))
}

/// Parts of nearly equal length that are summed from zero: first element and length.
pub fn summed(deep: i64) -> impl Iterator<Item = (i64, i64)> {
    let length = ceil_div(deep, ceil_div(deep, SUMMED));
    (0..ceil_div(deep, length)).map(move |i| (i * length, length.min(deep - i * length)))
}

/// Whether a weight is stored by its outputs, and the rows so few that these are turned instead.
fn is_worth_turning(product: &Product) -> bool {
    let [along, apart] = product.b.strides;
    let float = product.b.dtype == product.acc;
    let single = product.pair.is_none() && product.late.is_none() && product.b.panels.is_none();
    single && float && along == 1 && apart != 1 && product.m.saturating_mul(2) <= product.n
}

fn choose(
    product: &Product,
    target: &TargetDesc,
    finish: Finish,
    is_made: bool,
) -> Result<Blocking> {
    let Product { batch, m, n, k, .. } = *product;
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    let part = match (product.acc, product.a.dtype, product.b.dtype) {
        (DType::F64, DType::F64, DType::F64) => DType::F64,
        (
            DType::F32,
            DType::F32 | DType::BF16 | DType::F16,
            DType::F32 | DType::BF16 | DType::F16 | DType::I8 | DType::U8,
        ) => DType::F32,
        (_, a, b) => {
            return Err(err!(
                NoLowering,
                "no blocked product of {a} and {b} on this machine"
            ));
        }
    };
    if target.is_simt() || target.vector_bytes == 0 || m < 2 || n < 2 || work < WORTH_COPYING {
        return Err(err!(
            NoLowering,
            "a product of {m}x{n}x{k} is not worth its copies"
        ));
    }
    let size = part.size() as i64;
    let lanes = i64::from(target.lanes(part.size() as u32));
    if let Some(width) = product.b.panels
        && (product.b.dtype != part
            || width != widest(n, lanes, target)
            || product.b.strides != [width, 1])
    {
        return Err(err!(
            NoLowering,
            "panels of {width} columns are not those of this machine"
        ));
    }
    let cols = widest(n, lanes, target);
    // A number of rows that is not known takes the tallest blocks.
    let unknown = |late: &Late| late.m.as_const().is_none();
    let likely = match product.late.as_ref().is_some_and(unknown) {
        true => m.max(ANY),
        false => m,
    };
    let rows = height(likely, cols / lanes, target);
    // A depth that leaves most of the second-level cache to others is not cut: sums never leave their registers. A third and a fourth vector of columns do not make it shallower.
    let wide = cols.min(2 * lanes);
    let deepest = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX) / (wide * size);
    let uncut = deepest(target.l2_bytes / 16);
    // The deeper a chunk, the fewer visits to the sums, and the longer the runs where memory runs along the depth. The panel is as large as the first-level cache: its rows are asked for ahead of time.
    let deepest = if k <= uncut.min(held(product, target)) {
        uncut
    } else {
        deepest(target.l1_bytes)
    }
    .max(16);
    let open = product.is_open();
    let chunk = match open {
        true => (ceil_div(k, SHALLOW) * SHALLOW).clamp(SHALLOW, OPEN.min(deepest)),
        false => ((ceil_div(k, ceil_div(k, deepest)) + 3) / 4 * 4).min(k),
    };
    let blocking = Blocking {
        rows,
        cols,
        part,
        chunk,
        // Sums of an unknown number of chunks wait for the next one.
        chunks: ceil_div(k, chunk).max(1 + i64::from(open)),
        band: 1,
        across: 1,
        shared: product.b.panels.is_some(),
        open,
        finish,
        made: is_made.then_some(k),
    };
    Ok(cheapest(&blocking, product, target))
}

/// Rows of `b` of which the second-level cache holds a piece at once. Rows a multiple of a large power of two apart share few of its places, and what is asked for of the next panel would push itself out.
fn held(product: &Product, target: &TargetDesc) -> i64 {
    let [along, across] = product.b.strides;
    let apart = along.saturating_mul(product.b.dtype.size() as i64);
    if product.b.panels.is_some() || across != 1 || apart <= 0 {
        return i64::MAX;
    }
    let shared = 1i64 << apart.trailing_zeros();
    i64::try_from(target.l2_bytes).unwrap_or(i64::MAX) / shared
}

/// Columns of a block: two vectors of them, unless that leaves too many empty.
pub fn columns(n: i64, lanes: i64) -> i64 {
    let padded = |cols: i64| ceil_div(n, cols) * cols;
    if padded(2 * lanes) > padded(lanes) + n / 16 {
        lanes
    } else {
        2 * lanes
    }
}

/// Columns of a product's block: three vectors of f32, or four, where there are registers for as many sums and few stay empty, which take fewer loads for as many multiply-adds.
fn widest(n: i64, lanes: i64, target: &TargetDesc) -> i64 {
    let padded = |cols: i64| ceil_div(n, cols) * cols;
    let cols = columns(n, lanes);
    let narrow = lanes == i64::from(target.lanes(4));
    let full = |wide: &i64| padded(*wide) <= padded(cols) + n / 48;
    match narrow && target.registers >= 32 {
        true => [3, 4]
            .map(|vectors| vectors * lanes)
            .into_iter()
            .find(full)
            .unwrap_or(cols),
        false => cols,
    }
}

/// Rows of a block: those that take the fewest instructions, with `vectors` of columns each. A step of the depth loads every row's element and every vector, and multiplies them all; empty rows of the last block cost as much as others.
fn height(m: i64, vectors: i64, target: &TargetDesc) -> i64 {
    // Every register but those for b and two to spare accumulates.
    let most = (i64::from(target.registers) - (vectors + 2).max(4)) / vectors;
    let equal = |most: i64| ceil_div(m, ceil_div(m, most));
    let instructions = |rows: i64| ceil_div(m, rows) * (rows * vectors + rows + vectors);
    let heights = (most * 3 / 4..=most).rev().map(equal);
    heights.min_by_key(|&rows| instructions(rows)).unwrap_or(1)
}

/// How many columns the panels have that a product's second operand may be cut into ahead of time.
pub fn panel_columns(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<i64> {
    let (a, b) = match node.op {
        Op::Mm => (node.inputs[0], node.inputs[1]),
        Op::Addmm { .. } => (node.inputs[1], node.inputs[2]),
        _ => return None,
    };
    let (left, right) = (graph.ty(a), graph.ty(b));
    let m = Known::of(graph).guess(&left.shape[0]);
    let (k, n) = (left.shape[1].as_const()?, right.shape[1].as_const()?);
    let part = accumulator(left.dtype);
    let float = matches!(left.dtype, DType::F32 | DType::F64);
    // Few rows read the operand where it lies.
    let many = m > FEW && n > 1 && m.saturating_mul(n).saturating_mul(k) >= WORTH_COPYING;
    let vectors = !target.is_simt() && target.vector_bytes > 0;
    let lanes = || i64::from(target.lanes(part.size() as u32));
    (float && many && vectors).then(|| widest(n, lanes(), target))
}

/// Whether the panels of a node are those of this machine's kernel, and lie as they were written: an input, one panel behind the other.
pub fn reads_panels(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let (Op::MmPanels { n }, [a, panels, ..]) = (&node.op, &node.inputs[..]) else {
        return false;
    };
    let (left, right) = (graph.ty(*a), graph.ty(*panels));
    let strides = graph.values[*panels].layout.strides();
    let dense = strides.is_none_or(|strides| strides == right.contiguous_strides());
    if !dense || !graph.inputs.contains(panels) {
        return false;
    }
    let m = Known::of(graph).guess(&left.shape[0]);
    let sizes = [&left.shape[1], &right.shape[2]];
    let [Some(k), Some(width)] = sizes.map(Expr::as_const) else {
        return false;
    };
    let n = i64::try_from(*n).unwrap_or(i64::MAX);
    let float = matches!(left.dtype, DType::F32 | DType::F64);
    let worth = m > 1 && n > 1 && m.saturating_mul(n).saturating_mul(k) >= WORTH_COPYING;
    let lanes = || i64::from(target.lanes(left.dtype.size() as u32));
    let vectors = !target.is_simt() && target.vector_bytes > 0;
    float && worth && vectors && width == widest(n, lanes(), target)
}

/// The shape of an instance that the workers are done with first.
fn cheapest(blocking: &Blocking, product: &Product, target: &TargetDesc) -> Blocking {
    let (row_blocks, col_blocks) = (blocking.row_blocks(product), blocking.col_blocks(product));
    let sizes = sizes(product);
    let mut best = (f64::INFINITY, blocking.clone());
    for bands in counts(row_blocks) {
        for parts in counts(col_blocks) {
            for shared in [false, true] {
                if (product.b.panels.is_some() && !shared) || (blocking.open && shared) {
                    continue;
                }
                if blocking.is_whole() && parts > 1 {
                    continue;
                }
                let shape = Blocking {
                    band: ceil_div(row_blocks, bands),
                    across: ceil_div(col_blocks, parts),
                    shared,
                    ..blocking.clone()
                };
                if !shape.fits(product, target) {
                    continue;
                }
                let cost = sizes
                    .iter()
                    .map(|(product, weight)| shape.cost(product, target) * weight)
                    .sum();
                if cost < best.0 {
                    best = (cost, shape);
                }
            }
        }
    }
    best.1
}

/// The sizes that an instance is chosen for, and how much each counts: a number of rows that is not known may be a few times smaller or larger than the guess, and counts for what a row costs.
#[expect(
    clippy::cast_precision_loss,
    reason = "an estimate of sizes far below 2^53"
)]
fn sizes(product: &Product) -> Vec<(Product, f64)> {
    let of_rows = |m: i64| {
        let product = Product {
            m,
            ..product.clone()
        };
        (product, 1.0 / m as f64)
    };
    match &product.late {
        Some(late) if late.m.as_const().is_none() => {
            let m = product.m;
            [(m / 4).max(1), m, m.saturating_mul(4)].map(of_rows).into()
        }
        _ => vec![(product.clone(), 1.0)],
    }
}

/// Into how many parts so many blocks may be cut.
pub fn counts(blocks: i64) -> impl Iterator<Item = i64> {
    let mut next = Some(1);
    std::iter::from_fn(move || {
        let now = next?;
        let height = ceil_div(blocks, now);
        // The next number of parts that are lower.
        next = (height > 1).then(|| ceil_div(blocks, height - 1));
        Some(now)
    })
}

impl Blocking {
    /// Sums take at most half of the second-level cache, with the panels of `a` three quarters.
    fn fits(&self, product: &Product, target: &TargetDesc) -> bool {
        let size = self.part.size() as i64;
        let l2 = i64::try_from(target.l2_bytes).unwrap_or(i64::MAX);
        let width = match self.finish {
            Finish::Rows => self.row_pitch(),
            Finish::Blocks | Finish::Turned => self.across * self.cols,
        };
        let sums = self.band * self.rows * width * size;
        let copied = self.band * self.rows * self.pitch() * size;
        // Those of the first of two products wait for the second.
        let waiting = product.count() - i64::from(!self.keeps());
        let kept = sums * waiting;
        let least = self.across == 1 || self.is_whole();
        (self.band == 1 && least) || (kept <= l2 / 2 && kept + copied <= l2 / 4 * 3)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, product: &Product, target: &TargetDesc) -> f64 {
        let lanes = f64::from(target.lanes(self.part.size() as u32));
        let f = |n: i64| n as f64;
        let workers = f64::from(target.workers.max(1));
        let depth = f(product.k);
        let products = f(product.count());
        // Where there are fewer rows than were guessed, an instance has those that there are.
        let band = self.band.min(self.row_blocks(product));
        let (height, width) = (f(band * self.rows), f(self.across * self.cols) * products);
        let vectors = height * width / lanes;
        let multiply = vectors * depth / 2.0;
        let visits = if self.chunks > 1 { f(self.chunks) } else { 0.0 };
        let of_b = if self.shared {
            cost::STREAM
        } else {
            cost::COPY
        };
        let instance = multiply
            + vectors * visits * cost::MOVE
            + height * depth * cost::COPY
            + width * depth * of_b
            + cost::INSTANCE;
        let instances = product.batch
            * ceil_div(self.row_blocks(product), self.band)
            * ceil_div(self.col_blocks(product), self.across);
        let turns = (f(instances) / workers).ceil();
        let sharing = if self.shared && product.b.panels.is_none() {
            let elements = f(product.batch) * depth * f(self.col_blocks(product) * self.cols);
            products * elements * cost::SHARE / workers + cost::PHASE
        } else {
            0.0
        };
        turns * instance + sharing
    }
}

/// What all parts of the program need to know.
struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    product: &'a Product,
    /// The products that it is.
    each: &'a [Product],
    /// The sizes that a call has.
    exact: &'a Late,
    blocking: &'a Blocking,
    /// Where the sums of each part of a great depth go.
    parts: Option<&'a Sums>,
    /// The product whose result it is.
    whole: &'a Product,
    /// The rows of `a`, where the kernel makes them.
    made: Option<&'a (Nest, nest::Node)>,
}

/// A part of the depth: its number, and how many elements each has.
#[derive(Clone, Copy)]
struct Part<'a> {
    number: &'a Tile,
    length: i64,
}

/// Who copies `b`, and where to.
enum Right<'a> {
    Shared(&'a Mem),
    Own(Mem),
}

/// The place of an instance.
struct Here<'a> {
    /// First panel of rows and of columns.
    row: Tile,
    col: Tile,
    batch: Option<Tile>,
    /// How many panels it has.
    band: Tile,
    across: Tile,
    a: Mem,
    /// For each product.
    b: Vec<Right<'a>>,
    /// For each product: sums between two chunks or for the second product, or those of a block between two parts of the only chunk.
    sums: Vec<Option<Mem>>,
}

impl Work<'_> {
    /// Panels of rows, of each product.
    fn row_blocks(&self) -> Expr {
        self.exact.m.ceildiv(self.blocking.rows)
    }

    /// The phase that copies `b` for everyone, of each product: `[batch][panels][depth][cols]`.
    fn share(&self, k: &KernelBuilder) -> Vec<Mem> {
        let (product, blocking) = (self.product, self.blocking);
        let col_blocks = blocking.col_blocks(product);
        let batches = &self.exact.batch;
        let len = batches * (col_blocks * product.k * blocking.cols);
        let panels = ["panels_b", "panels_c"].into_iter().zip(self.each);
        let panels = panels.map(|(name, _)| {
            let panels = k.buffer(name, blocking.part, BufferMode::Workspace, len.clone());
            panels.aligned(64)
        });
        let panels: Vec<Mem> = panels.collect();
        let by_rows = self.by_rows();
        let (length, parts) = match by_rows {
            true => (slice(product), ceil_div(product.k, slice(product))),
            false => (blocking.chunk, blocking.chunks),
        };
        let rest = product.k - (parts - 1) * length;
        let grid = match by_rows {
            true => [1.into(), parts.into(), batches.clone()],
            false => [col_blocks.into(), parts.into(), batches.clone()],
        };
        k.phase(grid, |k: &KernelBuilder| {
            let number = k.program_id(1);
            let part = Part {
                number: &number,
                length,
            };
            let batch = self.exact.batch_of(k, 2);
            let panel = |k: &KernelBuilder, col: &Tile, deep: i64| {
                let batch = batch.as_ref();
                let at = self.shared_panel(product, col, part, batch);
                for (product, panels) in self.each.iter().zip(&panels) {
                    self.copy_b(k, product, col, part, batch, (deep, None), panels, &at);
                }
            };
            let copy = |k: &KernelBuilder, deep: i64| {
                if !by_rows {
                    return panel(k, &k.program_id(0), deep);
                }
                k.for_range(0, col_blocks, 1, [], |k, col, []| {
                    panel(k, &col, deep);
                    []
                });
            };
            if rest == length {
                return copy(k, rest);
            }
            let last = number.compare(CompareOp::Eq, parts - 1);
            if parts > 1 {
                let before = number.compare(CompareOp::Lt, parts - 1);
                k.when(&before, |k| copy(k, length));
            }
            k.when(&last, |k| copy(k, rest));
        });
        panels
    }

    /// Whether the phase that copies `b` goes down its rows, each for all panels: where they lie in one piece, the machine's own prefetching follows them, and few pages are in use.
    fn by_rows(&self) -> bool {
        let rows = |product: &Product| product.b.strides[1] == 1 && product.b.strides[0] != 1;
        self.each.iter().all(rows)
    }

    /// Where the shared copy of a part of a panel begins.
    fn shared_panel(
        &self,
        product: &Product,
        col: &Tile,
        part: Part<'_>,
        batch: Option<&Tile>,
    ) -> Tile {
        let blocks = self.blocking.col_blocks(product);
        let panel = match batch {
            Some(batch) => batch * blocks + col,
            None => col.clone(),
        };
        let at = (panel * product.k + part.number * part.length) * self.blocking.cols;
        match (product.b.panels, product.b.base) {
            (Some(_), base) if base != 0 => at + base,
            _ => at,
        }
    }

    /// Copies `deep` elements of the depth, of which perhaps fewer exist, for one panel of columns.
    #[expect(
        clippy::too_many_arguments,
        reason = "the coordinates of one panel, used once"
    )]
    fn copy_b(
        &self,
        k: &KernelBuilder,
        product: &Product,
        col: &Tile,
        part: Part<'_>,
        batch: Option<&Tile>,
        (deep, exist): (i64, Option<&Tile>),
        to: &Mem,
        at: &Tile,
    ) {
        let cols = self.blocking.cols;
        let sizes = &self.params.sizes;
        let b = product.exact().b;
        let [along, _] = &b.strides;
        let start = b.start(sizes, 1, (col, cols), batch)
            + sizes.times(part.number, &(along * part.length));
        let strides = b.strides.each_ref().map(|stride| sizes.index(stride));
        let whole = |k: &KernelBuilder, cols_left: Option<&Tile>| {
            for (first, deep) in pieces(deep) {
                let moved = |at: &Tile, by: i64| if by == 0 { at.clone() } else { at + by };
                let mut window = self.params.mems[b.buffer]
                    .at(sizes.plus(&start, &(along * first)))
                    .shape([deep, cols])
                    .strides(strides);
                if let Some(exist) = exist {
                    let exist = moved(exist, -first).binary(BinaryOp::Max, 0i64);
                    window = window.valid(0, exist.binary(BinaryOp::Min, deep));
                }
                if let Some(cols_left) = cols_left {
                    window = window.valid(1, cols_left);
                }
                let tile = k.load(window).cast(self.blocking.part);
                let home = to.at(moved(at, first * cols)).shape([deep, cols]);
                k.store(home, &tile);
            }
        };
        let Some(cols_left) = left(col, cols, product.n) else {
            return whole(k, None);
        };
        // Bounds keep a window from being turned: only the last block has them.
        let full = product.n / cols;
        if full > 0 {
            k.when(&col.compare(CompareOp::Lt, full), |k| whole(k, None));
        }
        k.when(&col.compare(CompareOp::Ge, full), |k| {
            whole(k, Some(&cols_left));
        });
    }

    fn instance(&self, k: &KernelBuilder, panels: &[Mem]) {
        let (product, blocking) = (self.product, self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let (row, col) = (k.program_id(0), k.program_id(1));
        let number = row.clone();
        let many = |block: &Tile, size: i64, blocks: i64| {
            left(block, size, blocks).unwrap_or_else(|| k.constant(DType::I64, size))
        };
        let panel = |len: i64| k.alloc(Space::Panel, blocking.part, len, None);
        let last = self.each.len() - 1;
        let width = match blocking.finish {
            Finish::Rows => blocking.row_pitch(),
            Finish::Blocks | Finish::Turned => blocking.across * cols,
        };
        let sums = |number: usize| match blocking.keeps() || number < last {
            true => Some(panel(blocking.band * rows * width)),
            false => (product.k > SUMMED).then(|| panel(rows * cols)),
        };
        let b = match panels {
            [] => {
                let own = panel(blocking.chunk * cols);
                let each = self.each.iter();
                each.map(|_| Right::Own(own.clone())).collect()
            }
            panels => panels.iter().map(Right::Shared).collect(),
        };
        let row_blocks = self.row_blocks();
        let band = match row_blocks.as_const() {
            Some(blocks) => many(&row, blocking.band, blocks),
            None => remaining(&self.params.sizes, &row, blocking.band, &row_blocks),
        };
        let here = Here {
            band,
            across: many(&col, blocking.across, blocking.col_blocks(product)),
            row: &row * blocking.band,
            col: col * blocking.across,
            batch: self.exact.batch_of(k, 2),
            a: panel(blocking.band * rows * blocking.pitch()),
            b,
            sums: (0..self.each.len()).map(sums).collect(),
        };
        if let Some(made) = self.made {
            self.make(k, &here, &number, made);
        }
        let sizes = &self.params.sizes;
        let last = match blocking.open {
            true => Expr::max(&self.exact.k.ceildiv(blocking.chunk), 1) - 1,
            false => Expr::constant(blocking.chunks - 1),
        };
        if blocking.chunks > 1 {
            k.for_range(0, blocking.band * blocking.across, 1, [], |k, block, []| {
                for sums in here.sums.iter().flatten() {
                    let zero = k.full(blocking.part, [rows, cols], 0.0);
                    let home = match blocking.finish {
                        Finish::Rows => {
                            let [i, j] = [BinaryOp::FloorDiv, BinaryOp::Mod]
                                .map(|op| block.binary(op, blocking.across));
                            blocking.home(sums, &i, &j)
                        }
                        Finish::Blocks | Finish::Turned => {
                            sums.at(&(&block * (rows * cols))).shape([rows, cols])
                        }
                    };
                    k.store(home, &zero);
                }
                []
            });
            k.for_range(0, sizes.index(&last), 1, [], |k, chunk, []| {
                self.chunk(k, &here, &chunk, false);
                []
            });
        }
        self.chunk(k, &here, &sizes.tile(&last), true);
        if blocking.finish == Finish::Rows {
            self.rows(k, &here, &number);
        }
        if blocking.finish == Finish::Turned {
            k.for_range(0, &here.across, 1, [], |k, j, []| {
                let height = blocking.band * rows;
                let exist = left(&number, height, product.m);
                let turned = here.sums.iter().flatten().map(|sums| {
                    let sums = sums.at(&j * (height * cols)).shape([cols, height]);
                    let mut sums = sums.strides([1, cols]);
                    if let Some(exist) = &exist {
                        sums = sums.valid(1, exist);
                    }
                    k.load(sums)
                });
                let (sums, at) = (turned.collect(), [&(&here.col + &j), &number]);
                let (batch, block) = (here.batch.as_ref(), [cols, height]);
                finish(
                    k,
                    self.params,
                    self.nest,
                    self.whole,
                    block,
                    at,
                    batch,
                    sums,
                );
                []
            });
        }
    }

    /// One chunk of the depth: added to the sums, which the last one finishes.
    fn chunk(&self, k: &KernelBuilder, here: &Here, chunk: &Tile, last: bool) {
        let (product, blocking) = (self.product, self.blocking);
        let deep = if last {
            blocking.rest(product)
        } else {
            blocking.chunk
        };
        let exist = (blocking.open && last)
            .then(|| remaining(&self.params.sizes, chunk, deep, &self.exact.k));
        let depth = (deep, exist.as_ref());
        // What is turned is read where it lies, but for the last rows.
        let whole = product.m / blocking.rows;
        let lies = blocking.finish == Finish::Turned;
        let copies = !lies || product.m % blocking.rows > 0;
        if copies && self.made.is_none() {
            k.for_range(0, &here.band, 1, [], |k, i, []| {
                match lies {
                    false => self.copy_a(k, here, chunk, &i, depth),
                    true => {
                        let row = &here.row + &i;
                        k.when(&row.compare(CompareOp::Ge, whole), |k| {
                            self.copy_a(k, here, chunk, &i, depth);
                        });
                    }
                }
                []
            });
        }
        for number in 0..self.each.len() {
            k.for_range(0, &here.across, 1, [], |k, j, []| {
                self.panel(k, here, number, &j, chunk, depth, last);
                []
            });
        }
    }

    /// All blocks of the band with panel `j` of a product's `b`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the coordinates of one panel, used once"
    )]
    fn panel(
        &self,
        k: &KernelBuilder,
        here: &Here,
        number: usize,
        j: &Tile,
        chunk: &Tile,
        depth: (i64, Option<&Tile>),
        last: bool,
    ) {
        let deep = depth.0;
        let (product, blocking) = (&self.each[number], self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let col = &here.col + j;
        let part = Part {
            number: chunk,
            length: blocking.chunk,
        };
        let (panel, at) = match &here.b[number] {
            Right::Shared(panels) => {
                let at = self.shared_panel(product, &col, part, here.batch.as_ref());
                (*panels, at)
            }
            Right::Own(panel) => {
                let at = k.constant(DType::I64, 0);
                let batch = here.batch.as_ref();
                self.copy_b(k, product, &col, part, batch, depth, panel, &at);
                (panel, at)
            }
        };
        // The first of two products waits for the second one.
        let waits = number + 1 < self.each.len();
        let stays = blocking.finish != Finish::Blocks;
        k.for_range(0, &here.band, 1, [], |k, i, []| {
            let cut = blocking.chunks > 1;
            let home = |number: usize| {
                let sums = here.sums[number].as_ref()?;
                Some(match blocking.keeps() || number + 1 < self.each.len() {
                    true => blocking.home(sums, &i, j),
                    false => sums.at(0).shape([rows, cols]),
                })
            };
            let multiply = |k: &KernelBuilder, lies: bool| {
                for (first, length) in summed(deep) {
                    let moved = |at: Tile, by: i64| if by > 0 { at + by } else { at };
                    let start = &i * (rows * blocking.pitch());
                    let a = if lies {
                        let [down, along] = product.a.strides;
                        let row = &here.row + &i;
                        let part = chunk * (blocking.chunk * along);
                        let at = origin(&product.a, &row, rows, down, here.batch.as_ref()) + part;
                        let a = self.params.mems[product.a.buffer].at(moved(at, first * along));
                        let a = a.shape([rows, length]).strides([down, along]);
                        a.operand([MmaDim::Side, MmaDim::K])
                    } else if self.upright() {
                        let a = here.a.at(moved(start, first * rows));
                        let a = a.shape([length, rows]);
                        a.operand([MmaDim::K, MmaDim::Side])
                    } else {
                        // All of the depth is there where the rows were made.
                        let start = match self.made {
                            Some(_) => start + chunk * blocking.chunk,
                            None => start,
                        };
                        let a = here.a.at(moved(start, first)).shape([rows, length]);
                        let a = a.strides([blocking.pitch(), 1]);
                        a.operand([MmaDim::Side, MmaDim::K])
                    };
                    let b = panel.at(moved(at.clone(), first * cols));
                    let b = b.shape([length, cols]);
                    let b = b.operand([MmaDim::K, MmaDim::Side]);
                    let sum = k.mma(a, b, &zeros(k, product.acc, rows, cols), false);
                    let own = home(number);
                    let sum = match &own {
                        Some(home) if cut || first > 0 => k.load(home.clone()) + sum,
                        _ => sum,
                    };
                    match own {
                        Some(home) if waits || stays || !last || first + length < deep => {
                            k.store(home, &sum);
                        }
                        _ => {
                            let before = (0..number).filter_map(home).map(|home| k.load(home));
                            let sums = before.chain([sum]).collect();
                            let at = [&(&here.row + &i), &col];
                            let batch = here.batch.as_ref();
                            self.done(k, at, batch, sums);
                        }
                    }
                }
            };
            let whole = product.m / rows;
            match (blocking.finish == Finish::Turned, product.m % rows) {
                (false, _) => multiply(k, false),
                (true, 0) => multiply(k, true),
                (true, _) => {
                    let row = &here.row + &i;
                    k.when(&row.compare(CompareOp::Lt, whole), |k| multiply(k, true));
                    k.when(&row.compare(CompareOp::Ge, whole), |k| multiply(k, false));
                }
            }
            []
        });
    }

    /// How many rows an instance has.
    fn height(&self, k: &KernelBuilder, number: &Tile) -> Tile {
        let height = self.blocking.band * self.blocking.rows;
        let rows = left(number, height, self.product.m);
        rows.unwrap_or_else(|| k.constant(DType::I64, height))
    }

    /// Makes the rows of `a` that an instance has; behind the last one there are zeros, so that every block is whole.
    fn make(
        &self,
        k: &KernelBuilder,
        here: &Here,
        number: &Tile,
        (nest, value): &(Nest, nest::Node),
    ) {
        let (product, blocking) = (self.product, self.blocking);
        let (sizes, pitch) = (&self.params.sizes, blocking.pitch());
        let height = blocking.band * blocking.rows;
        let rows = self.height(k, number);
        let depth = nest.rank() - 1;
        k.for_range(0, &rows, 1, [], |k, row, []| {
            let mut at: Vec<Option<Tile>> = vec![None; nest.rank()];
            let mut rest = number * height + &row;
            for d in (0..depth).rev() {
                if d == 0 {
                    at[d] = Some(rest.clone());
                } else {
                    at[d] = Some(sizes.binary(&rest, BinaryOp::Mod, &nest.dims[d]));
                    rest = sizes.binary(&rest, BinaryOp::FloorDiv, &nest.dims[d]);
                }
            }
            let mut block = vec![1; nest.rank()];
            block[depth] = product.k;
            let (tiling, whole) = (Tiling::of(block), vec![None; nest.rank()]);
            let mut frame = Frame::place(k, self.params, nest, &tiling, at.clone(), at, whole);
            for node in 0..nest.values.len() {
                frame.value(node);
            }
            let mut tile = frame.get(*value).cast(blocking.part);
            if tile.shape() != [product.k] {
                tile = tile.broadcast_to([product.k]);
            }
            k.store(here.a.at(&row * pitch).shape([product.k]), &tile);
            []
        });
        if product.m % blocking.rows > 0 {
            let blocks = &here.band * blocking.rows;
            k.for_range(&rows, &blocks, 1, [], |k, row, []| {
                let zero = k.full(blocking.part, [product.k], 0.0);
                k.store(here.a.at(&row * pitch).shape([product.k]), &zero);
                []
            });
        }
    }

    /// The work on all rows of an instance, one after the other.
    fn rows(&self, k: &KernelBuilder, here: &Here, number: &Tile) {
        let (product, blocking) = (self.product, self.blocking);
        let height = blocking.band * blocking.rows;
        let rows = self.height(k, number);
        k.for_range(0, &rows, 1, [], |k, row, []| {
            let sums = here.sums.iter().flatten();
            let sums = sums.map(|sums| {
                let row = sums.at(&row * blocking.row_pitch());
                k.load(row.shape([product.n]))
            });
            let mut at = vec![Some(number * height + &row), None];
            let mut block = vec![1, product.n];
            if let Some(batch) = &here.batch {
                at.insert(0, Some(batch.clone()));
                block.insert(0, 1);
            }
            let (tiling, whole) = (Tiling::of(block), vec![None; at.len()]);
            let (params, nest) = (self.params, self.nest);
            let frame = Frame::place(k, params, nest, &tiling, at.clone(), at, whole);
            complete(frame, nest, sums);
            []
        });
    }

    /// The last work on a block: of a part of the depth, the sums are kept.
    fn done(&self, k: &KernelBuilder, at: [&Tile; 2], batch: Option<&Tile>, sums: Vec<Tile>) {
        let block = [self.blocking.rows, self.blocking.cols];
        match (self.parts, batch, &sums[..]) {
            (Some(parts), Some(part), [sum]) => parts.keep(k, part, at, sum),
            _ => finish(
                k,
                self.params,
                self.nest,
                self.product,
                block,
                at,
                batch,
                sums,
            ),
        }
    }

    /// Whether memory runs along the rows of `a`: panels do so too, then.
    fn upright(&self) -> bool {
        let [down, along] = &self.exact.a.strides;
        down.is_const(1) && !along.is_const(1)
    }

    /// Copies `deep` elements of the depth, of which perhaps fewer exist, for panel `i` of the band.
    fn copy_a(
        &self,
        k: &KernelBuilder,
        here: &Here,
        chunk: &Tile,
        i: &Tile,
        (deep, exist): (i64, Option<&Tile>),
    ) {
        let (blocking, sizes) = (self.blocking, &self.params.sizes);
        let rows = blocking.rows;
        let a = &self.exact.a;
        let [down, along] = &a.strides;
        let row = &here.row + i;
        let start = a.start(sizes, 0, (&row, rows), here.batch.as_ref())
            + sizes.times(chunk, &(along * blocking.chunk));
        let [down, along] = [down, along].map(|stride| sizes.index(stride));
        let upright = self.upright();
        let (shape, strides, side) = if upright {
            ([deep, rows], [along, down], 1)
        } else {
            ([rows, deep], [down, along], 0)
        };
        let mut window = self.params.mems[a.buffer]
            .at(&start)
            .shape(shape)
            .strides(strides);
        if let Some(rows_left) = self.exact.rows_left(sizes, &row, rows) {
            window = window.valid(side, &rows_left);
        }
        if let Some(exist) = exist {
            window = window.valid(1 - side, exist);
        }
        let tile = k.load(window).cast(blocking.part);
        let home = here.a.at(&(i * (rows * blocking.pitch()))).shape(shape);
        let home = if upright {
            home
        } else {
            home.strides([blocking.pitch(), 1])
        };
        k.store(home, &tile);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_blocks() {
        for blocks in 1..200 {
            let mut last = i64::MAX;
            for parts in counts(blocks) {
                let height = ceil_div(blocks, parts);
                assert!(height < last, "{blocks} blocks: {parts} parts again");
                assert!(height * parts >= blocks);
                last = height;
            }
            assert_eq!(last, 1);
        }
    }
}
