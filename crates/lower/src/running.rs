//! Running sums and products on a GPU: a block of threads has one row, or a part of one.
//!
//! ```text
//!   a chunk of the row, an element a thread ─▶ combined over 1, 2, 4, ... threads before ─▶ and with all chunks before ─▶ stored
//! ```
//!
//! Step by step, a row takes the time of as many loads as it has elements, one after another; where rows are few, or lie along memory, a block has a chunk in a few steps. What is combined with what depends on the length alone.
//!
//! Rows that are long, and fewer than a GPU has multiprocessors, are cut into parts with a block each:
//!
//! ```text
//!   a total of every part but the last  ─▶  the totals of the parts before combined, and the part's chunks after each other from there on
//! ```
//!
//! A part is read twice, and the work of one block is that of the part. How a row is cut depends on its length alone.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Order, ReduceOp};
use oxyfuel_plan::TargetDesc;

use crate::chunk::combine;
use crate::nest::{Nest, NestOp, NestStore, Node};
use crate::rows::{Blocks, Frame};
use crate::size::Params;
use crate::team::{Before, Last, Team};
use crate::tile::{Tiling, ceil_div};

/// Shorter rows are done step by step.
const SHORT: i64 = 32;
/// So many rows keep a GPU busy with a thread each, where neighbouring rows lie side by side.
const MANY_ROWS: i64 = 1 << 14;

/// Whether a block of threads is faster than a thread a row.
fn pays(nest: &Nest, along: usize) -> bool {
    let rows = (0..nest.rank()).filter(|&d| d != along);
    let rows = rows.fold(1i64, |all, d| all.saturating_mul(nest.guess(d)));
    let beside = |store: &NestStore| store.window.strides[along].is_const(1);
    nest.guess(along) >= SHORT && (rows < MANY_ROWS || nest.stores.iter().any(beside))
}

/// Elements of a part, at least: a few chunks.
const LEAST_PART: i64 = 1 << 12;
/// Parts of a row that is cut, at least.
const LEAST_PARTS: i64 = 4;

/// How a row is cut: elements of a part, a multiple of the block's threads, and parts, at most as many as the block has threads.
#[derive(Clone, Copy)]
struct Cut {
    part: i64,
    parts: i64,
}

impl Cut {
    /// Rows of known length that leave multiprocessors with nothing to do.
    fn of(nest: &Nest, along: usize, threads: i64, target: &TargetDesc) -> Option<Self> {
        let extent = nest.dims[along].as_const()?;
        let rows = (0..nest.rank()).filter(|&d| d != along);
        let rows = rows.fold(1i64, |all, d| all.saturating_mul(nest.guess(d)));
        let part = ceil_div(extent, threads).max(LEAST_PART);
        let part = ceil_div(part, threads) * threads;
        let parts = ceil_div(extent, part);
        (parts >= LEAST_PARTS && rows < i64::from(target.workers)).then_some(Self { part, parts })
    }
}

/// A running combination: its value, how it combines, and what.
type Scan = (Node, ReduceOp, Node);

/// What the phases of one nest share.
struct Running<'a> {
    nest: &'a Nest,
    params: Params,
    along: usize,
    threads: i64,
    tiling: Tiling,
    scans: Vec<Scan>,
}

/// Builds the program that combines the rows of `nest` along a dim; nothing where a thread a row does.
pub fn running(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    along: usize,
    target: &TargetDesc,
) -> Result<Option<(Program, Params)>> {
    let scans: Vec<Scan> = (0..nest.values.len())
        .filter_map(|node| match nest.values[node].op {
            NestOp::Scan(f, operand) => Some((node, f, operand)),
            _ => None,
        })
        .collect();
    let steps = |node: &Node| matches!(nest.values[*node].op, NestOp::Recurrence { .. });
    let other = (0..nest.values.len()).any(|node| steps(&node)) || nest.has_reduction();
    if scans.is_empty() || other || !nest.scatters.is_empty() || !pays(nest, along) {
        return Ok(None);
    }
    let team = Team::of(nest.guess(along), target);
    let k = KernelBuilder::mapped(&nest.name, team.geometry);
    let params = params_of(&k);
    team.lay_out(&k);
    let mut block = vec![1; nest.rank()];
    block[along] = team.threads;
    let running = Running {
        nest,
        params,
        along,
        threads: team.threads,
        tiling: Tiling::of(block),
        scans,
    };
    let blocks = Blocks::new(nest, &running.tiling, nest.scanned);
    let cut = Cut::of(nest, along, team.threads, target);
    // The parts have an axis of their own.
    match cut.filter(|_| blocks.grid.len() < 3 && !running.is_nested()) {
        None => {
            k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
                running.whole(k, &blocks);
            });
        }
        Some(cut) => {
            let totals = running.totals(&k, cut);
            let grid = |parts: i64| {
                let mut grid = blocks.grid.clone();
                grid.push(Expr::constant(parts));
                grid
            };
            k.phase_ordered(grid(cut.parts - 1), Order::Plain, |k| {
                running.total(k, &blocks, cut, &totals);
            });
            k.phase_ordered(grid(cut.parts), Order::Plain, |k| {
                running.part(k, &blocks, cut, &totals);
            });
        }
    }
    Ok(Some((k.finish()?, running.params)))
}

impl Running<'_> {
    /// Whether a value differs along the row.
    fn moves(&self, node: Node) -> bool {
        self.nest.values[node].support.contains(self.along)
    }

    /// What the scans are made of.
    fn sources(&self) -> Vec<bool> {
        self.nest.behind(self.scans.iter().map(|scan| scan.2))
    }

    /// Whether a scan needs another's result.
    fn is_nested(&self) -> bool {
        let sources = self.sources();
        self.scans.iter().any(|scan| sources[scan.0])
    }

    /// The frame of a row, with everything that is the same all along it.
    fn row<'a>(&'a self, k: &'a KernelBuilder, blocks: &Blocks) -> Frame<'a> {
        let mut outer = Frame::new(k, &self.params, self.nest, &self.tiling, blocks);
        for node in (0..self.nest.values.len()).filter(|&node| !self.moves(node)) {
            outer.value(node);
        }
        outer
    }

    fn rows(&self, k: &KernelBuilder) -> Vec<Row> {
        let row = |&(node, f, _): &Scan| Row::new(k, self.threads, f, self.nest.values[node].dtype);
        self.scans.iter().map(row).collect()
    }

    /// Every chunk of a row.
    fn whole(&self, k: &KernelBuilder, blocks: &Blocks) {
        let outer = self.row(k, blocks);
        let rows = self.rows(k);
        let before = rows.iter().map(|row| row.before.nothing(k)).collect();
        let end = self.params.sizes.index(&self.nest.dims[self.along]);
        k.for_range_vec(0, end, self.threads, before, |k, at, before| {
            self.chunk(k, &outer, &rows, &at, before)
        });
    }

    /// Stores a chunk, of what is before it; returns what is before the next.
    fn chunk(
        &self,
        k: &KernelBuilder,
        outer: &Frame<'_>,
        rows: &[Row],
        at: &Tile,
        before: Vec<Tile>,
    ) -> Vec<Tile> {
        let mut inner = outer.at_chunk(self.along, at, self.threads);
        let mut after = Vec::new();
        for node in (0..self.nest.values.len()).filter(|&node| self.moves(node)) {
            match self.scans.iter().position(|scan| scan.0 == node) {
                Some(i) => {
                    let (_, f, operand) = self.scans[i];
                    let own = inner.get(operand).broadcast_to([self.threads]);
                    let here = combine(f, &before[i], &rows[i].before.up_to(k, own));
                    after.push(rows[i].total.of(k, &here));
                    inner.give(node, here);
                }
                None => inner.value(node),
            }
        }
        for store in &self.nest.stores {
            inner.store(store.value, &store.window);
        }
        after
    }

    /// Memory for the totals of each scan: of every row all parts but the last.
    fn totals(&self, k: &KernelBuilder, cut: Cut) -> Vec<Mem> {
        let rows = (0..self.nest.rank()).filter(|&d| d != self.along);
        let rows: Expr = rows.map(|d| self.nest.dims[d].clone()).product();
        let memory = |(i, scan): (usize, &Scan)| {
            let (dtype, len) = (self.nest.values[scan.0].dtype, &rows * (cut.parts - 1));
            k.buffer(format!("totals{i}"), dtype, BufferMode::Workspace, len)
                .aligned(64)
        };
        self.scans.iter().enumerate().map(memory).collect()
    }

    /// Where the totals of an instance's row begin.
    fn first_total(&self, outer: &Frame<'_>, cut: Cut) -> Tile {
        outer.row(self.along) * (cut.parts - 1)
    }

    /// The total of one part, whose chunks are whole.
    fn total(&self, k: &KernelBuilder, blocks: &Blocks, cut: Cut, totals: &[Mem]) {
        let outer = self.row(k, blocks);
        let part = k.program_id(blocks.grid.len() as u8);
        let begin = &part * cut.part;
        let rows = self.rows(k);
        let nothing = rows.iter().map(|row| row.before.nothing(k)).collect();
        let (sources, end) = (self.sources(), &begin + cut.part);
        let sums = k.for_range_vec(begin, end, self.threads, nothing, |_, at, sums| {
            let mut inner = outer.at_chunk(self.along, &at, self.threads);
            for node in (0..sources.len()).filter(|&node| sources[node] && self.moves(node)) {
                inner.value(node);
            }
            let with_own = |(scan, sum): (&Scan, &Tile)| {
                let own = inner.get(scan.2).broadcast_to([self.threads]);
                combine(scan.1, sum, &own)
            };
            self.scans.iter().zip(&sums).map(with_own).collect()
        });
        let at = self.first_total(&outer, cut) + part;
        let at = k.full(DType::I64, [self.threads], 0i64) + at;
        let last = self.is_last(k);
        for ((row, sum), memory) in rows.iter().zip(sums).zip(totals) {
            k.scatter(memory, &at, row.before.up_to(k, sum), Some(&last));
        }
    }

    /// Every chunk of a part, behind the totals of the parts before.
    fn part(&self, k: &KernelBuilder, blocks: &Blocks, cut: Cut, totals: &[Mem]) {
        let outer = self.row(k, blocks);
        let part = k.program_id(blocks.grid.len() as u8);
        let rows = self.rows(k);
        let me = k.iota(DType::I64, [self.threads], 0);
        let is_before = me.compare(CompareOp::Lt, &part);
        let first = self.first_total(&outer, cut);
        let before = rows.iter().zip(totals).map(|(row, memory)| {
            let there = k.gather(memory, &(&me + &first), Some(&is_before), 0);
            let there = is_before.select(&there, row.before.nothing(k));
            row.total.of(k, &row.before.up_to(k, there))
        });
        let before = before.collect();
        let begin = &part * cut.part;
        let extent = self.params.sizes.tile(&self.nest.dims[self.along]);
        let end = (&begin + cut.part).binary(BinaryOp::Min, &extent);
        k.for_range_vec(begin, end, self.threads, before, |k, at, before| {
            self.chunk(k, &outer, &rows, &at, before)
        });
    }

    fn is_last(&self, k: &KernelBuilder) -> Tile {
        let me = k.iota(DType::I32, [self.threads], 0);
        me.compare(CompareOp::Eq, self.threads - 1)
    }
}

/// What a block's threads tell each other of one scan.
struct Row {
    before: Before,
    total: Last,
}

impl Row {
    fn new(k: &KernelBuilder, threads: i64, f: ReduceOp, dtype: DType) -> Self {
        Self {
            before: Before::new(k, threads, f, dtype),
            total: Last::new(k, threads, dtype, 1),
        }
    }
}
