//! A matrix product on a CPU's matrix unit, or on vectors that multiply groups of the depth: operands are copied into panels first, then multiplied block by block.
//!
//! ```text
//!   phase 0   a [m, k]  ->  panels of `rows` rows:     [blocks of m][blocks of k][rows][depth]
//!   phase 1   b [k, n]  ->  panels of `cols` columns:  [blocks of n][k / pack][cols][pack]
//!   phase 2   each instance multiplies panels of a with panels of b, finishes their blocks and stores them
//!
//!   an instance for a matrix unit:
//!     for each panel of b
//!       for each chunk of the depth                    b's part stays in the first-level cache
//!         for each panel of a of a band                its parts pass by it, from the second-level cache
//!           sums += a @ b                              from and to the second-level cache, if there are several chunks
//! ```
//!
//! Where all of `a` fits the second-level cache (few rows, as in a layer of a model), an instance has one panel of `b` and all of those of `a`: it copies the panel itself, into its own cache, and phase 1 is left out.
//! A weight is then read from memory once, and nothing of it is written there.
//!
//! Vectors multiply unsigned bytes by signed ones. Where both are alike, those of `a` are moved by 128, and what that adds to a column of results, 128 times the sum of a column of `b`, is taken off again;
//! a product of a row of 128 with the panel is that number.
//!
//! Two products of one `a` (a gated layer) have panels of both second operands: an instance multiplies its panel of `a` with one of each, and the work on the result takes both blocks.
//!
//! A great depth with few blocks is multiplied in parts ([`crate::deep`]).
//!
//! Panels are what the unit reads in order: no cache set is hit by every row, no page is left half used, and edges are filled with zeros, so that
//! the inner loop has no masks. The block is as large as the accumulators allow; the work on the result happens on the block while it is in the cache.

use oxyfuel_base::{DType, Expr, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{
    BinaryOp, BufferMode, CompareOp, MmaDim, MmaOperand, Mode, Op, Order, Space, TileLayout, Type,
};
use oxyfuel_plan::{OperandHome, TargetDesc};

use crate::deep::Deep;
use crate::direct::{Operand, Product, remaining};
use crate::map::{Spread, vector};
use crate::nest::{Nest, NestOp};
use crate::rows::{Frame, left};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

/// Below so many multiply-adds the copies cost more than they save.
const WORTH_PACKING: i64 = 1 << 18;
/// Elements of the depth that are copied into a panel of `b` at a time: with the columns they fit the first-level cache, where they are turned if memory runs along the depth.
const PIECE: i64 = 128;
/// Rows of `b` that are copied for all panels before the next ones, where that is how they lie: as many pages are read at a time.
const SLICE: i64 = 16;
/// Groups of the depth that lie next to each other in a panel of `a` for vectors: a step of the loop.
const DEEP: i64 = 8;

/// The shape of one block and of its panels.
pub struct Blocking {
    pub rows: i64,
    pub cols: i64,
    /// Elements of the depth that lie next to each other in a panel of `a`.
    pub depth: i64,
    /// Elements of the depth that lie next to each other in a panel of `b`.
    pub pack: i64,
    /// What panels of `a` and of `b` hold, and the unit multiplies.
    pub parts: [DType; 2],
    /// Sums lie in matrix registers.
    pub matrix: bool,
    /// Steps of the depth (`depth` elements each) between two visits to the sums, of a matrix unit.
    pub chunk: i64,
    /// An instance has a panel of `b`, which it copies, and all panels of `a`.
    own: bool,
}

impl Blocking {
    /// Steps of a panel: whole chunks.
    pub fn steps(&self, depth: i64) -> i64 {
        ceil_div(ceil_div(depth, self.depth), self.chunk) * self.chunk
    }

    /// Whether panels of `a` hold its elements moved by 128.
    fn moved(&self, product: &Product) -> bool {
        self.parts[0] != parts(product)[0]
    }
}

/// 128 as an unsigned byte, -128 as a signed one: what moves one kind to the other.
fn half(dtype: DType) -> i64 {
    if dtype == DType::U8 { 128 } else { -128 }
}

/// Builds the program, or says why this product is not for it.
pub fn packed(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    product: &Product,
    target: &TargetDesc,
) -> Result<Program> {
    let whole = product;
    let mut blocking = choose(whole, target)?;
    let (rows, cols) = (blocking.rows, blocking.cols);
    let deep = match blocking.moved(whole) {
        true => None,
        false => Deep::of(whole, [rows, cols], blocking.depth),
    };
    let product = deep.as_ref().map_or(whole, |deep| &deep.product);
    if deep.is_some() {
        blocking = choose(product, target)?;
    }
    let lanes = target.lanes(4);
    let (geometry, spread) = vector(lanes);
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let parts = deep.as_ref().map(|deep| deep.sums(&k, [rows, cols]));
    let (mems, sizes) = (&params.mems, &params.sizes);
    let exact = product.exact();
    let (row_blocks, col_blocks) = (exact.m.ceildiv(rows), ceil_div(product.n, cols));
    let depth_blocks = blocking.steps(product.k);
    let depth = depth_blocks * blocking.depth;
    let (a_panel, b_panel) = (rows * depth, cols * depth);
    let (a_len, b_len) = (
        &exact.batch * &row_blocks * a_panel,
        &exact.batch * (col_blocks * b_panel),
    );
    let workspace = |name: &str, dtype: DType, len: &Expr| {
        k.buffer(name, dtype, BufferMode::Workspace, len.clone())
            .aligned(64)
    };
    let products = product.each();
    let panels_a = workspace("panels_a", blocking.parts[0], &a_len);
    let names = ["panels_b", "panels_c"].into_iter().zip(&products);
    let panels_b: Vec<Mem> = names
        .filter(|_| !blocking.own)
        .map(|(name, _)| workspace(name, blocking.parts[1], &b_len))
        .collect();
    let moved = blocking.moved(product);
    ensure!(
        !moved || product.pair.is_none(),
        NoLowering,
        "two products of bytes that are moved"
    );
    let columns = &exact.batch * (col_blocks * cols);
    let added = moved.then(|| workspace("added", product.acc, &columns));

    let late = product.late.is_some() && blocking.own;
    let shape = bands(product, &blocking, target, deep.is_some() || late);
    lay_out(&k, &spread, &[rows, blocking.depth]);
    lay_out(&k, &spread, &[rows, cols]);
    lay_out(&k, &spread, &[rows, shape[1] * cols]);
    lay_out(&k, &spread, &[1, blocking.depth]);

    pack_a(&k, &params, &panels_a, product, &blocking, depth_blocks);
    let copies = products.iter().map(|product| CopyB {
        from: &mems[product.b.buffer],
        product,
        blocking: &blocking,
        depth,
        cut: blocking.own,
    });
    let copies: Vec<CopyB> = copies.collect();
    for copy in &copies {
        copy.lay_out(&k, &spread);
    }
    for (copy, panels_b) in copies.iter().zip(&panels_b) {
        copy.phase(&k, panels_b);
    }

    if let (Some(added), Some(panels_b)) = (&added, panels_b.first()) {
        let grid = [col_blocks.into(), exact.batch.clone()];
        k.phase(grid, |k: &KernelBuilder| {
            let col = k.program_id(0);
            let col = match exact.batch_of(k, 1) {
                None => col,
                Some(batch) => batch * col_blocks + col,
            };
            let [part, _] = blocking.parts;
            let row = k.alloc(Space::Panel, part, blocking.depth, None);
            let halves = k.full(part, [1, blocking.depth], half(part));
            k.store(row.at(0).shape([1, blocking.depth]), &halves);
            let a = row.at(0).shape([depth_blocks, 1, blocking.depth]);
            let a = a
                .strides([0, 0, 1])
                .operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
            let b = right(panels_b, &(&col * b_panel), &blocking, depth);
            let sum = k.mma(a, b, &zeros(k, product.acc, 1, cols), false);
            k.store(added.at(&col * cols).shape([1, cols]), &sum);
        });
    }

    // The sums of a block, with a panel of `b`.
    let multiply = |k: &KernelBuilder, b, [row, col]: [&Tile; 2], batch: Option<&Tile>| -> Tile {
        let panel = |block: &Tile, blocks: &Expr, size: i64| match batch {
            Some(batch) => (sizes.times(batch, blocks) + block) * size,
            None => block * size,
        };
        let a = panels_a.at(panel(row, &row_blocks, a_panel)).shape([
            depth_blocks,
            rows,
            blocking.depth,
        ]);
        let a = a.operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
        let acc = zeros(k, product.acc, rows, cols);
        let mut sum = k.mma(a, b, &acc, false);
        if let Some(added) = &added {
            let at = panel(col, &col_blocks.into(), cols);
            sum = sum
                - k.load(added.at(at).shape([1, cols]))
                    .broadcast_to([rows, cols]);
        }
        sum
    };
    // The last work on a block: of a part of the depth, the sums are kept.
    let done = |k: &KernelBuilder,
                block: [i64; 2],
                at: [&Tile; 2],
                batch: Option<&Tile>,
                sums: Vec<Tile>| match (&parts, batch, &sums[..]) {
        (Some(parts), Some(part), [sum]) => parts.keep(k, part, at, sum),
        _ => finish(k, &params, nest, product, block, at, batch, sums),
    };
    let end = |k: KernelBuilder| {
        if let Some(parts) = &parts {
            parts.finish(&k, &params, nest, whole);
        }
        k.finish()
    };
    if blocking.matrix {
        let right = match blocking.own {
            true => Right::Own(&copies),
            false => Right::Shared(&panels_b),
        };
        let bands = Bands {
            params: &params,
            product,
            blocking: &blocking,
            spread: &spread,
            panels_a: &panels_a,
            right,
            depth_blocks,
            shape,
        };
        bands.phase(&k, done);
        return end(k);
    }
    // A band of panels of a stays in the second-level cache while the panels of b pass by, each used by the whole band.
    let a_bytes = u64::try_from(a_panel).unwrap_or(1) * blocking.parts[0].size() as u64;
    let most = u64::try_from(ceil_div(product.m, rows)).unwrap_or(1);
    let band = (target.l2_bytes / 2 / a_bytes.max(1)).clamp(1, most.max(1));
    let grid = [row_blocks.clone(), col_blocks.into(), exact.batch.clone()];
    let group = u32::try_from(band).unwrap_or(1);
    k.phase_ordered(grid, Order::Grouped { group }, |k: &KernelBuilder| {
        let (row, col) = (k.program_id(0), k.program_id(1));
        let batch = exact.batch_of(k, 2);
        let at = match &batch {
            Some(batch) => batch * col_blocks + &col,
            None => col.clone(),
        } * b_panel;
        let (block, batch) = ([&row, &col], batch.as_ref());
        let sums = panels_b.iter().map(|panels| {
            let b = right(panels, &at, &blocking, depth);
            multiply(k, b, block, batch)
        });
        done(k, [rows, cols], block, batch, held(k, [rows, cols], sums));
    });
    end(k)
}

/// Who copies `b`: a phase of its own, or each instance.
enum Right<'a> {
    Shared(&'a [Mem]),
    Own(&'a [CopyB<'a>]),
}

/// The phase that multiplies on a matrix unit.
struct Bands<'a> {
    params: &'a Params,
    product: &'a Product,
    blocking: &'a Blocking,
    spread: &'a Spread,
    panels_a: &'a Mem,
    right: Right<'a>,
    depth_blocks: i64,
    /// Panels of `a` and of `b` that an instance has.
    shape: [i64; 2],
}

/// Instances for each worker, at least, so that all are done at about the same time.
const INSTANCES: i64 = 8;
/// Panels of `b` that an instance has at most: rows of so many columns are long enough to be written one after the other.
const ACROSS: i64 = 8;
/// Elements between rows of sums beyond a row, so that rows do not share cache sets.
const APART: i64 = 16;

/// Panels of `a` and of `b` that an instance has: a band of panels of `a`, with its sums, has half of the second-level cache while panels of `b` pass by, each used by the whole band.
fn bands(product: &Product, blocking: &Blocking, target: &TargetDesc, single: bool) -> [i64; 2] {
    let row_blocks = ceil_div(product.m, blocking.rows).max(1);
    let col_blocks = ceil_div(product.n, blocking.cols);
    let wanted = INSTANCES * i64::from(target.workers.max(1));
    let band = if blocking.own {
        row_blocks
    } else {
        let depth = blocking.steps(product.k) * blocking.depth;
        let panel = blocking.rows * depth * blocking.parts[0].size() as i64;
        let sums = product.count() * blocking.rows * ACROSS * blocking.cols * 4;
        let bytes = panel + sums;
        let room = i64::try_from(target.l2_bytes).unwrap_or(i64::MAX) / 2;
        let most = (room / bytes.max(1)).clamp(1, row_blocks);
        let blocks = row_blocks.saturating_mul(col_blocks);
        let blocks = blocks.saturating_mul(product.batch);
        let band = most.min(ceil_div(blocks, wanted));
        // All bands alike.
        ceil_div(row_blocks, ceil_div(row_blocks, band))
    };
    if single {
        return [band, 1];
    }
    let bands = ceil_div(row_blocks, band).saturating_mul(product.batch);
    [band, across(col_blocks, bands, target)]
}

/// How many of so many panels an instance has, of which each has one of `bands` bands.
pub fn across(panels: i64, bands: i64, target: &TargetDesc) -> i64 {
    let wanted = INSTANCES * i64::from(target.workers.max(1));
    let groups = ceil_div(wanted, bands.max(1)).clamp(ceil_div(panels, ACROSS), panels);
    ceil_div(panels, groups)
}

impl Bands<'_> {
    fn phase(
        &self,
        k: &KernelBuilder,
        done: impl Fn(&KernelBuilder, [i64; 2], [&Tile; 2], Option<&Tile>, Vec<Tile>),
    ) {
        let (product, blocking) = (self.product, self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let exact = product.exact();
        let [band, across] = self.shape;
        let row_blocks = exact.m.ceildiv(rows);
        let col_blocks = ceil_div(product.n, cols);
        let own = matches!(self.right, Right::Own(_));
        // A number of rows that only a call knows is taken a panel at a time.
        let late = own && row_blocks.as_const().is_none();
        let (band, bands) = match (own, late) {
            (true, true) => (1, 1.into()),
            (true, false) => (band, 1.into()),
            (false, _) => (band, row_blocks.ceildiv(band)),
        };
        let grid = [
            ceil_div(col_blocks, across).into(),
            bands,
            exact.batch.clone(),
        ];
        let sizes = &self.params.sizes;
        k.phase(grid, |k: &KernelBuilder| {
            let (group, number) = (k.program_id(0), k.program_id(1));
            let count =
                left(&group, across, col_blocks).unwrap_or_else(|| k.constant(DType::I64, across));
            let pitch = match across {
                1 => cols,
                _ => across * cols + APART,
            };
            let sums = |_| k.alloc(Space::Panel, product.acc, band * rows * pitch, None);
            let panel = own.then(|| {
                let part = blocking.chunk * blocking.depth;
                k.alloc(Space::Panel, blocking.parts[1], part * cols, None)
            });
            let mut here = Here {
                batch: exact.batch_of(k, 2),
                first_row: &number * band,
                band: k.constant(DType::I64, band),
                first_col: &group * across,
                sums: (0..product.count()).map(sums).collect(),
                pitch,
                panel,
            };
            let finish = |k: &KernelBuilder, here: &Here| {
                k.for_range(0, &here.band, 1, [], |k, i, []| {
                    let width = across * cols;
                    let exist = left(&group, width, product.n);
                    let home = |sums: &Mem| {
                        let home = sums.at(&i * (rows * pitch)).shape([rows, width]);
                        let mut home = home.strides([pitch, 1]);
                        if let Some(exist) = &exist {
                            home = home.valid(1, exist);
                        }
                        k.load(home)
                    };
                    let all = here.sums.iter().map(home).collect();
                    let at = [&(&here.first_row + &i), &group];
                    done(k, [rows, width], at, here.batch.as_ref(), all);
                    []
                });
            };
            if late {
                for number in 0..here.sums.len() {
                    self.copy(k, &here, number, &here.first_col, None);
                }
                k.for_range(0, sizes.index(&row_blocks), 1, [], |k, row, []| {
                    let here = Here {
                        first_row: row,
                        ..here.clone()
                    };
                    let start = k.constant(DType::I64, 0);
                    for number in 0..here.sums.len() {
                        self.block(k, &here, number, [&start, &start], &start);
                    }
                    finish(k, &here);
                    []
                });
                return;
            }
            if !own {
                here.band = match row_blocks.as_const() {
                    Some(blocks) => {
                        left(&number, band, blocks).unwrap_or_else(|| k.constant(DType::I64, band))
                    }
                    None => remaining(sizes, &number, band, &row_blocks),
                };
            }
            let chunks = self.depth_blocks / blocking.chunk;
            k.for_range(0, &count, 1, [], |k, j, []| {
                let col = &here.first_col + &j;
                for number in 0..here.sums.len() {
                    if chunks > 1 {
                        k.for_range(0, &here.band, 1, [], |k, i, []| {
                            let nothing = k.full(product.acc, [rows, cols], 0);
                            k.store(here.home(number, [&i, &j], [rows, cols]), &nothing);
                            []
                        });
                    }
                    let chunk = |k: &KernelBuilder, chunk: &Tile| {
                        self.copy(k, &here, number, &col, Some(chunk));
                        k.for_range(0, &here.band, 1, [], |k, i, []| {
                            self.block(k, &here, number, [&i, &j], chunk);
                            []
                        });
                    };
                    if chunks == 1 {
                        chunk(k, &k.constant(DType::I64, 0));
                        continue;
                    }
                    k.for_range(0, chunks, 1, [], |k, number, []| {
                        chunk(k, &number);
                        []
                    });
                }
                []
            });
            finish(k, &here);
        });
    }

    /// Copies a chunk of a panel of `b` where the instance does so itself.
    fn copy(
        &self,
        k: &KernelBuilder,
        here: &Here,
        number: usize,
        col: &Tile,
        chunk: Option<&Tile>,
    ) {
        if let (Right::Own(copies), Some(panel)) = (&self.right, &here.panel) {
            let start = k.constant(DType::I64, 0);
            copies[number].panel(k, (panel, &start), col, here.batch.as_ref(), chunk);
        }
    }

    /// The sums of a block with a chunk of the panels, added to those before.
    fn block(
        &self,
        k: &KernelBuilder,
        here: &Here,
        number: usize,
        [i, j]: [&Tile; 2],
        chunk: &Tile,
    ) {
        let (product, blocking) = (self.product, self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let sizes = &self.params.sizes;
        let in_batch = |block: Tile, blocks: &Expr| match &here.batch {
            Some(batch) => sizes.times(batch, blocks) + block,
            None => block,
        };
        let depth = self.depth_blocks * blocking.depth;
        let part = blocking.chunk * blocking.depth;
        let row = in_batch(&here.first_row + i, &product.exact().m.ceildiv(rows));
        let a = self
            .panels_a
            .at(row * (rows * depth) + chunk * (rows * part));
        let a = a.shape([blocking.chunk, rows, blocking.depth]);
        let a = a.operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
        let start = k.constant(DType::I64, 0);
        let b = match (&self.right, &here.panel) {
            (Right::Shared(panels), _) => {
                let blocks = ceil_div(product.n, cols).into();
                let col = in_batch(&here.first_col + j, &blocks);
                let at = col * (cols * depth) + chunk * (cols * part);
                right(&panels[number], &at, blocking, part)
            }
            (Right::Own(_), Some(panel)) => right(panel, &start, blocking, part),
            (Right::Own(_), None) => return,
        };
        let home = here.home(number, [i, j], [rows, cols]);
        let acc = match self.depth_blocks > blocking.chunk {
            true => k.load(home.clone()),
            false => zeros(k, product.acc, rows, cols),
        };
        let sum = k.mma(a, b, &acc.convert_layout(matrix_layout(rows, cols)), false);
        let layout = self.spread.layout(&[rows, cols], &[rows, cols]);
        k.store(home, sum.convert_layout(layout));
    }
}

/// The place of an instance.
#[derive(Clone)]
struct Here {
    batch: Option<Tile>,
    first_row: Tile,
    /// Panels of `a`.
    band: Tile,
    first_col: Tile,
    /// For each product: sums of all blocks, and elements from one of their rows to the next.
    sums: Vec<Mem>,
    pitch: i64,
    /// A panel of `b` of its own.
    panel: Option<Mem>,
}

impl Here {
    /// The sums of a block.
    fn home(
        &self,
        number: usize,
        [i, j]: [&Tile; 2],
        [rows, cols]: [i64; 2],
    ) -> oxyfuel_kernel::builder::Window {
        let at = i * (rows * self.pitch) + j * cols;
        let home = self.sums[number].at(at).shape([rows, cols]);
        home.strides([self.pitch, 1])
    }
}

/// Sums of a block, all but the last of which wait in a panel while the next is computed.
pub fn held(
    k: &KernelBuilder,
    block: [i64; 2],
    sums: impl ExactSizeIterator<Item = Tile>,
) -> Vec<Tile> {
    let last = sums.len() - 1;
    let waits = |(number, sum): (usize, Tile)| {
        if number == last {
            return Held::Sum(sum);
        }
        let [rows, cols] = block;
        let home = k.alloc(Space::Panel, sum.dtype(), rows * cols, None);
        k.store(home.at(0).shape(block), &sum);
        Held::In(home)
    };
    let all: Vec<Held> = sums.enumerate().map(waits).collect();
    let take = |held: Held| match held {
        Held::Sum(sum) => sum,
        Held::In(home) => k.load(home.at(0).shape(block)),
    };
    all.into_iter().map(take).collect()
}

enum Held {
    Sum(Tile),
    In(Mem),
}

/// What is multiplied: bytes that meet floats are widened as they are copied.
fn parts(product: &Product) -> [DType; 2] {
    let [a, b] = [product.a.dtype, product.b.dtype];
    match [a.is_float(), b.is_float()] {
        [true, false] => [a, a],
        [false, true] => [b, b],
        [true, true] | [false, false] => [a, b],
    }
}

pub fn choose(product: &Product, target: &TargetDesc) -> Result<Blocking> {
    let Product { batch, m, n, k, .. } = *product;
    let work = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
    ensure!(!product.is_open(), NoLowering, "a product of unknown depth");
    if m < 2 || n < 2 || work < WORTH_PACKING {
        return Err(err!(
            NoLowering,
            "a product of {m}x{n}x{k} is not worth packing"
        ));
    }
    let [a, b] = parts(product);
    let unit = target.matrix_unit(a, b, product.acc);
    if let Some(unit) = unit.filter(|unit| unit.operands == OperandHome::Memory) {
        let cols = i64::from(unit.n) * 2;
        let room = i64::try_from(target.l2_bytes / 2).unwrap_or(i64::MAX);
        let held = |lines: i64, dtype: DType| lines.saturating_mul(k) * dtype.size() as i64;
        let enough = 2 * i64::from(target.workers.max(1));
        // Sums that wait do so in a memory of known size, of which the second-level cache holds a few.
        let sums = product.count() * m.saturating_mul(ACROSS * cols * 4);
        let own = (product.late.is_none() || product.pair.is_none())
            && (product.late.is_some() || sums <= room / 2)
            && held(m, a) <= room
            && held(cols, b) <= room
            && ceil_div(n, cols).saturating_mul(batch) >= enough;
        let steps = ceil_div(k, i64::from(unit.k)).max(1);
        return Ok(Blocking {
            rows: i64::from(unit.m) * 2,
            cols,
            depth: i64::from(unit.k),
            pack: i64::from(unit.b_pack),
            parts: [a, b],
            matrix: true,
            chunk: match own && product.late.is_some() {
                true => steps,
                false => chunk(steps, cols * i64::from(unit.k) * b.size() as i64, target),
            },
            own,
        });
    }
    // Vectors that multiply signed bytes by unsigned ones: the other kind of `a` will do.
    let other = match a {
        DType::I8 => DType::U8,
        DType::U8 => DType::I8,
        other => other,
    };
    let units = [a, other].map(|part| target.matrix_unit(part, b, product.acc).map(|u| (part, u)));
    let Some((part, unit)) = units
        .into_iter()
        .flatten()
        .find(|(_, unit)| unit.operands == OperandHome::Registers && !target.is_simt())
    else {
        return Err(err!(
            NoLowering,
            "no matrix unit for {a} and {b} on this machine"
        ));
    };
    Ok(Blocking {
        rows: i64::from(unit.m),
        cols: i64::from(unit.n),
        depth: i64::from(unit.k) * DEEP,
        pack: i64::from(unit.b_pack),
        parts: [part, b],
        matrix: false,
        chunk: 1,
        own: false,
    })
}

/// Steps of a chunk of the depth, of so many bytes each, which the first-level cache keeps beside what passes by.
fn chunk(steps: i64, bytes: i64, target: &TargetDesc) -> i64 {
    let room = i64::try_from(target.l1_bytes).unwrap_or(i64::MAX) / 4 * 3;
    let most = (room / bytes.max(1)).max(1);
    ceil_div(steps, ceil_div(steps, most))
}
/// A panel of `b` as an operand.
pub fn right(panels: &Mem, at: &Tile, blocking: &Blocking, depth: i64) -> MmaOperand {
    let shape = [depth / blocking.pack, blocking.cols, blocking.pack];
    let panel = panels.at(at).shape(shape);
    panel.operand([MmaDim::K, MmaDim::Side, MmaDim::K])
}

/// An accumulator: a tile of its own, since the product updates it in place.
pub fn zeros(k: &KernelBuilder, dtype: DType, rows: i64, cols: i64) -> Tile {
    let zero = k.constant(dtype, 0);
    let made = k.append(
        Op::Splat { value: zero.val() },
        &[Type::tile(dtype, &[rows, cols])],
    );
    k.tile(made.first().copied().unwrap_or(zero.val()))
}

/// Tiles of this shape, and of the shapes that broadcast to it, run along vector lanes; so does a single row or column without its dim of 1.
pub fn lay_out(k: &KernelBuilder, spread: &Spread, shape: &[i64]) {
    if let &([1, long] | [long, 1]) = shape {
        k.layout_shape([long], spread.layout(&[long], &[long]));
    }
    for small in [[shape[0], shape[1]], [1, shape[1]], [shape[0], 1]] {
        k.layout_shape(small, spread.layout(&small, shape));
    }
}

/// Accumulators in matrix registers: one lane walks the whole block.
pub fn matrix_layout(rows: i64, cols: i64) -> TileLayout {
    let mode = |dim: u8, extent: i64| Mode {
        dim,
        extent: u32::try_from(extent).unwrap_or(1),
        stride: 1,
    };
    TileLayout {
        reg: vec![mode(1, cols), mode(0, rows)],
        matrix: true,
        ..TileLayout::default()
    }
}

/// The first element of a block of an operand.
pub fn origin(
    operand: &Operand,
    block: &Tile,
    size: i64,
    stride: i64,
    batch: Option<&Tile>,
) -> Tile {
    let mut at = block * (size * stride);
    if let Some(batch) = batch {
        at = at + batch * operand.batch_stride;
    }
    if operand.base == 0 {
        at
    } else {
        at + operand.base
    }
}

fn pack_a(
    k: &KernelBuilder,
    params: &Params,
    panels: &Mem,
    product: &Product,
    blocking: &Blocking,
    depth_blocks: i64,
) {
    let (rows, depth) = (blocking.rows, blocking.depth);
    let exact = product.exact();
    let row_blocks = exact.m.ceildiv(rows);
    let grid = [row_blocks.clone(), exact.batch.clone()];
    k.phase(grid, |k| {
        let row = k.program_id(0);
        let batch = exact.batch_of(k, 1);
        let panel = match &batch {
            Some(batch) => params.sizes.times(batch, &row_blocks) + &row,
            None => row.clone(),
        } * (rows * depth * depth_blocks);
        let at = (&row, batch.as_ref());
        copy_rows(k, params, (panels, &panel), product, blocking, at);
    });
}

/// Copies a panel of `a`, of the block of rows and the batch with these numbers.
fn copy_rows(
    k: &KernelBuilder,
    params: &Params,
    to: (&Mem, &Tile),
    product: &Product,
    blocking: &Blocking,
    at: (&Tile, Option<&Tile>),
) {
    let steps = blocking.steps(product.k);
    let start = k.constant(DType::I64, 0);
    copy_steps(k, params, to, product, blocking, at, (&start, steps, true));
}

/// Copies a chunk of it.
pub fn copy_chunk(
    k: &KernelBuilder,
    params: &Params,
    to: (&Mem, &Tile),
    product: &Product,
    blocking: &Blocking,
    at: (&Tile, Option<&Tile>),
    chunk: &Tile,
) {
    let chunks = blocking.steps(product.k) / blocking.chunk;
    let copy = |k: &KernelBuilder, is_last: bool| {
        let first = chunk * blocking.chunk;
        let steps = (&first, blocking.chunk, is_last);
        copy_steps(k, params, to, product, blocking, at, steps);
    };
    if product.k % (blocking.chunk * blocking.depth) == 0 || chunks == 1 {
        return copy(k, chunks == 1);
    }
    k.when(&chunk.compare(CompareOp::Lt, chunks - 1), |k| {
        copy(k, false);
    });
    k.when(&chunk.compare(CompareOp::Ge, chunks - 1), |k| copy(k, true));
}

/// Copies so many steps of a panel of `a`, from one on: the last ones, some of which may have less depth or none, or others.
fn copy_steps(
    k: &KernelBuilder,
    params: &Params,
    (panels, panel): (&Mem, &Tile),
    product: &Product,
    blocking: &Blocking,
    (row, batch): (&Tile, Option<&Tile>),
    (first, steps, are_last): (&Tile, i64, bool),
) {
    let (rows, depth) = (blocking.rows, blocking.depth);
    let (exact, sizes) = (product.exact(), &params.sizes);
    let [_, along] = &exact.a.strides;
    let start = exact.a.start(sizes, 0, (row, rows), batch);
    let rows_left = exact.rows_left(sizes, row, rows);
    let strides = exact.a.strides.each_ref().map(|stride| sizes.index(stride));
    let absent = blocking.steps(product.k) - ceil_div(product.k, depth);
    let exist = steps - if are_last { absent } else { 0 };
    k.for_range(0, exist, 1, [], |k, number, []| {
        let block = first + &number;
        let mut window = params.mems[exact.a.buffer]
            .at(&(&start + sizes.times(&block, &(along * depth))))
            .shape([rows, depth])
            .strides(strides);
        if let Some(rows_left) = &rows_left {
            window = window.valid(0, rows_left);
        }
        if are_last && let Some(depth_left) = left(&block, depth, product.k) {
            window = window.valid(1, &depth_left);
        }
        let mut tile = k.load(window).cast(blocking.parts[0]);
        if blocking.moved(product) {
            tile = tile.binary(BinaryOp::Xor, half(blocking.parts[0]));
        }
        let home = panels.at(&(panel + &number * (rows * depth)));
        k.store(home.shape([rows, depth]), &tile);
        []
    });
    // Chunks are whole.
    for block in exist..steps {
        let home = panels.at(&(panel + block * (rows * depth)));
        let nothing = k.full(blocking.parts[0], [rows, depth], 0);
        k.store(home.shape([rows, depth]), &nothing);
    }
}

/// A part of a panel of `b`, in elements of the depth that one of its lanes has.
struct Piece {
    first: i64,
    deep: i64,
    /// How many of them exist.
    present: i64,
    /// How many pieces like this follow each other.
    times: i64,
}

/// The pieces of lane `lane` of a panel of `b` that is so deep, of which so many elements exist: whole ones, and what is left.
fn pieces(blocking: &Blocking, exist: i64, depth: i64, lane: i64) -> Vec<Piece> {
    let all = depth / blocking.pack;
    let present = ceil_div(exist - lane, blocking.pack).max(0);
    let deep = (PIECE / blocking.pack).min(all);
    let times = present / deep;
    let first = times * deep;
    let whole = Piece {
        first: 0,
        deep,
        present: deep,
        times,
    };
    let rest = Piece {
        first,
        deep: all - first,
        present: present - first,
        times: 1,
    };
    let mut pieces = vec![whole, rest];
    pieces.retain(|piece| piece.times > 0 && piece.deep > 0);
    pieces
}

/// The copies of `b` into panels.
pub struct CopyB<'a> {
    pub from: &'a Mem,
    pub product: &'a Product,
    pub blocking: &'a Blocking,
    /// Of a panel: whole steps of the unit.
    pub depth: i64,
    /// Chunks are copied one at a time.
    pub cut: bool,
}

impl CopyB<'_> {
    /// Elements of the depth that are copied at a time, and how many of the last ones exist.
    fn part(&self) -> [i64; 2] {
        let part = match self.cut {
            true => self.blocking.chunk * self.blocking.depth,
            false => self.depth,
        };
        [part, self.product.k - (self.depth - part)]
    }

    pub fn lay_out(&self, k: &KernelBuilder, spread: &Spread) {
        let [part, rest] = self.part();
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let slices = [SLICE, self.product.k % SLICE].map(|rows| [rows, rows]);
        let parts = [[part, part], [part, rest]].into_iter();
        let parts = parts.chain(slices.into_iter().filter(|_| self.by_rows()));
        let parts: Vec<[i64; 2]> = parts.filter(|[_, exist]| *exist > 0).collect();
        for &[part, exist] in &parts {
            let whole = (PIECE / pack).min(exist / pack);
            if !self.by_groups(exist) {
                continue;
            }
            let absent = (self.depth - self.product.k) / pack;
            for deep in [whole, (exist / pack) % whole, (part - exist) / pack, absent] {
                let shape = [deep, cols, pack];
                k.layout_shape(shape, spread.layout(&shape, &shape));
            }
        }
        for lane in 0..self.blocking.pack {
            for &[part, exist] in &parts {
                for piece in pieces(self.blocking, exist, part, lane) {
                    lay_out(k, spread, &[piece.deep, self.blocking.cols]);
                }
            }
        }
    }

    /// Whether the phase that copies all of `b` goes down its rows: where they lie in one piece, the machine's own prefetching follows them, and few pages are in use.
    fn by_rows(&self) -> bool {
        let [along, across] = self.product.b.strides;
        let all = self.product.k % self.blocking.pack == 0 && self.by_groups(self.blocking.pack);
        all && !self.cut && across == 1 && along != 1
    }

    /// Whether so many elements of the depth, and all columns, are copied in groups: as they are, so that only where they stand changes.
    fn by_groups(&self, exist: i64) -> bool {
        let part = self.blocking.parts[1];
        self.blocking.matrix
            && self.product.b.dtype == part
            && self.product.b.strides.contains(&1)
            && exist >= self.blocking.pack
            && exist % self.blocking.pack == 0
    }

    /// The same in groups.
    fn groups(&self, k: &KernelBuilder, to: (&Mem, &Tile), start: &Tile, depth: [i64; 2]) {
        let [part, exist] = depth;
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let [along, across] = self.product.b.strides;
        let (panels, panel) = to;
        let groups = exist / pack;
        let whole = (PIECE / pack).min(groups);
        let copy = |k: &KernelBuilder, first: &Tile, deep: i64| {
            let window = self.from.at(&(start + first * (pack * along)));
            let window = window.shape([deep, cols, pack]);
            let tile = k.load(window.strides([pack * along, across, along]));
            let home = panels.at(&(panel + first * (cols * pack)));
            k.store(home.shape([deep, cols, pack]), &tile);
        };
        let times = groups / whole;
        k.for_range(0, times, 1, [], |k, number, []| {
            copy(k, &(&number * whole), whole);
            []
        });
        let rest = groups - times * whole;
        if rest > 0 {
            copy(k, &k.constant(DType::I64, times * whole), rest);
        }
        if exist < part {
            self.nothing(k, to, [exist, part]);
        }
    }

    /// A phase that copies all of them.
    pub fn phase(&self, k: &KernelBuilder, panels: &Mem) {
        let (product, cols) = (self.product, self.blocking.cols);
        let col_blocks = ceil_div(product.n, cols);
        let exact = product.exact();
        if self.by_rows() {
            return self.slices(k, panels);
        }
        let grid = [col_blocks.into(), exact.batch.clone()];
        k.phase(grid, |k: &KernelBuilder| {
            let col = k.program_id(0);
            let batch = exact.batch_of(k, 1);
            let at = match &batch {
                Some(batch) => batch * col_blocks + &col,
                None => col.clone(),
            } * (cols * self.depth);
            self.panel(k, (panels, &at), &col, batch.as_ref(), None);
        });
    }

    /// The same phase by rows: an instance has some of them, of all panels.
    fn slices(&self, k: &KernelBuilder, panels: &Mem) {
        let (product, cols) = (self.product, self.blocking.cols);
        let col_blocks = ceil_div(product.n, cols);
        let exact = product.exact();
        let [along, across] = product.b.strides;
        let (slices, rest) = (ceil_div(product.k, SLICE), product.k % SLICE);
        let grid = [slices.into(), exact.batch.clone()];
        k.phase(grid, |k: &KernelBuilder| {
            let slice = k.program_id(0);
            let batch = exact.batch_of(k, 1);
            let panel = |col: &Tile| match &batch {
                Some(batch) => (batch * col_blocks + col) * (cols * self.depth),
                None => col * (cols * self.depth),
            };
            let copy = |k: &KernelBuilder, rows: i64| {
                k.for_range(0, col_blocks, 1, [], |k, col, []| {
                    let start = origin(&product.b, &col, cols, across, batch.as_ref())
                        + &slice * (SLICE * along);
                    let at = panel(&col) + &slice * (SLICE * cols);
                    self.columns(k, (panels, &at), &start, &col, [rows, rows]);
                    []
                });
            };
            match rest {
                0 => copy(k, SLICE),
                rest if slices == 1 => copy(k, rest),
                rest => {
                    k.when(&slice.compare(CompareOp::Lt, slices - 1), |k| {
                        copy(k, SLICE);
                    });
                    k.when(&slice.compare(CompareOp::Ge, slices - 1), |k| copy(k, rest));
                }
            }
            if product.k < self.depth {
                k.when(&slice.compare(CompareOp::Ge, slices - 1), |k| {
                    k.for_range(0, col_blocks, 1, [], |k, col, []| {
                        self.nothing(k, (panels, &panel(&col)), [product.k, self.depth]);
                        []
                    });
                });
            }
        });
    }

    /// Fills a part of a panel, between two elements of the depth, with zeros.
    fn nothing(&self, k: &KernelBuilder, (panels, panel): (&Mem, &Tile), [from, to]: [i64; 2]) {
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let shape = [(to - from) / pack, cols, pack];
        let nothing = k.full(self.blocking.parts[1], shape, 0);
        k.store(panels.at(&(panel + from * cols)).shape(shape), &nothing);
    }

    /// Copies the panel of some columns to a place, or a chunk of it.
    fn panel(
        &self,
        k: &KernelBuilder,
        to: (&Mem, &Tile),
        col: &Tile,
        batch: Option<&Tile>,
        chunk: Option<&Tile>,
    ) {
        let (product, cols) = (self.product, self.blocking.cols);
        let [along, across] = product.b.strides;
        let mut start = origin(&product.b, col, cols, across, batch);
        let [part, rest] = self.part();
        let last = self.depth / part - 1;
        if let Some(chunk) = chunk {
            start = start + chunk * (part * along);
        }
        match chunk {
            Some(chunk) if rest < part && last > 0 => {
                k.when(&chunk.compare(CompareOp::Lt, last), |k| {
                    self.columns(k, to, &start, col, [part, part]);
                });
                k.when(&chunk.compare(CompareOp::Ge, last), |k| {
                    self.columns(k, to, &start, col, [part, rest]);
                });
            }
            _ => self.columns(k, to, &start, col, [part, rest]),
        }
    }

    /// Copies so many elements of the depth, of which so many exist, for the columns of a panel.
    fn columns(
        &self,
        k: &KernelBuilder,
        to: (&Mem, &Tile),
        start: &Tile,
        col: &Tile,
        depth: [i64; 2],
    ) {
        let (n, cols) = (self.product.n, self.blocking.cols);
        let Some(cols_left) = left(col, cols, n) else {
            return self.whole(k, to, start, depth, None);
        };
        // Bounds keep a window from being turned: only the last blocks have them.
        let full = n / cols;
        if full > 0 {
            k.when(&col.compare(CompareOp::Lt, full), |k| {
                self.whole(k, to, start, depth, None);
            });
        }
        k.when(&col.compare(CompareOp::Ge, full), |k| {
            self.whole(k, to, start, depth, Some(&cols_left));
        });
    }

    fn whole(
        &self,
        k: &KernelBuilder,
        to: (&Mem, &Tile),
        start: &Tile,
        [part, exist]: [i64; 2],
        left: Option<&Tile>,
    ) {
        if left.is_none() && self.by_groups(exist) {
            return self.groups(k, to, start, [part, exist]);
        }
        for lane in 0..self.blocking.pack {
            for piece in pieces(self.blocking, exist, part, lane) {
                let first = k.constant(DType::I64, piece.first);
                if piece.times == 1 {
                    self.piece(k, to, start, lane, &piece, &first, left);
                    continue;
                }
                k.for_range(0, piece.times, 1, [], |k, number, []| {
                    let at = &first + &number * piece.deep;
                    self.piece(k, to, start, lane, &piece, &at, left);
                    []
                });
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "where a piece is read and written, used once"
    )]
    fn piece(
        &self,
        k: &KernelBuilder,
        (panels, panel): (&Mem, &Tile),
        start: &Tile,
        lane: i64,
        piece: &Piece,
        at: &Tile,
        cols_left: Option<&Tile>,
    ) {
        let (cols, pack) = (self.blocking.cols, self.blocking.pack);
        let [along, across] = self.product.b.strides;
        let mut window = self
            .from
            .at(&(start + at * (pack * along) + lane * along))
            .shape([piece.deep, cols])
            .strides([pack * along, across]);
        if piece.present < piece.deep {
            window = window.valid(0, piece.present);
        }
        if let Some(cols_left) = cols_left {
            window = window.valid(1, cols_left);
        }
        let tile = k.load(window).cast(self.blocking.parts[1]);
        let home = panels.at(&(panel + at * (cols * pack) + lane));
        k.store(
            home.shape([piece.deep, cols]).strides([cols * pack, pack]),
            &tile,
        );
    }
}

/// The work on the result, on one block.
#[expect(
    clippy::too_many_arguments,
    reason = "the coordinates of one block, used once"
)]
pub fn finish(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    product: &Product,
    [rows, cols]: [i64; 2],
    [row, col]: [&Tile; 2],
    batch: Option<&Tile>,
    sums: Vec<Tile>,
) {
    let place = Place {
        block: [rows, cols],
        position: [row.clone(), col.clone()],
        start: [row * rows, col * cols],
        left: [
            product.exact().rows_left(&params.sizes, row, rows),
            left(col, cols, product.n),
        ],
    };
    finish_at(k, params, nest, place, batch, sums);
}

/// Where a block of the result stands: along rows and columns.
pub struct Place {
    pub block: [i64; 2],
    /// Its number, and its first element.
    pub position: [Tile; 2],
    pub start: [Tile; 2],
    /// How much of it exists, where it may be cut short.
    pub left: [Option<Tile>; 2],
}

/// The work on the result, on a block anywhere.
pub fn finish_at(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    place: Place,
    batch: Option<&Tile>,
    sums: Vec<Tile>,
) {
    let mut block = place.block.to_vec();
    let mut position = place.position.map(Some).to_vec();
    let mut start = place.start.map(Some).to_vec();
    let mut rest = place.left.to_vec();
    // A nest has no dim of a single row or column.
    let absent = (nest.rank() < block.len() + usize::from(batch.is_some()))
        .then(|| block.iter().position(|&extent| extent == 1))
        .flatten();
    if let Some(dim) = absent {
        block.remove(dim);
        position.remove(dim);
        start.remove(dim);
        rest.remove(dim);
    }
    let shape = block.clone();
    if let Some(batch) = batch {
        block.insert(0, 1);
        position.insert(0, Some(batch.clone()));
        start.insert(0, Some(batch.clone()));
        rest.insert(0, None);
    }
    let tiling = Tiling::of(block);
    let frame = Frame::place(k, params, nest, &tiling, position, start, rest);
    let sums = sums.into_iter().map(|sum| match absent {
        Some(_) => sum.reshape(&shape),
        None => sum,
    });
    complete(frame, nest, sums);
}

/// All that a nest does with the sums of a product.
pub fn complete(mut frame: Frame<'_>, nest: &Nest, sums: impl Iterator<Item = Tile>) {
    let values = nest.values.iter().enumerate();
    let given = values.filter(|(_, value)| value.op == NestOp::Given);
    for ((node, _), sum) in given.zip(sums) {
        frame.give(node, sum);
    }
    for node in 0..nest.values.len() {
        frame.value(node);
    }
    for store in &nest.stores {
        frame.store(store.value, &store.window);
    }
}
