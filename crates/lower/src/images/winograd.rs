//! Tiles of 2 x 2 results at the sixteen points of F(2x2, 3x3): sixteen products of a pixel's channels for four results, where windows take thirty-six.
//!
//! ```text
//!   lines of x ─▶ Bᵀ d B of every tile's 4 x 4 pixels      a     [point][tile][channel]     second-level cache
//!   for each panel of output channels:
//!     for each point:  a[point] @ panel[point]             m     [point][tile][w]           second-level cache
//!     Aᵀ m A of every tile                                 y     [2 lines][column][w]       first-level cache
//!     the work on the result, line by line
//! ```
//!
//! Where weights are larger than images (many channels, few pixels), bringing panels from memory is what takes the time, and an instance must have many tiles for each: it goes through the points in four passes, one line of them
//! each, so that `a` is a quarter, and keeps `m` of all of its panels.
//!
//! Along each dim, of four neighbouring pixels `d` and four points `m`:
//!
//! ```text
//!   Bᵀ d = [d0 - d2,  d1 + d2,  d2 - d1,  d1 - d3]        Aᵀ m = [m0 + m1 + m2,  m1 - m2 - m3]
//! ```

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{CompareOp, MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use super::lines::Lines;
use super::pack::{Panels, panels};
use super::shape::Images;
use super::{Block, divisors, finish, parts};
use crate::blocked::summed;
use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{lay_out, zeros};
use crate::size::Params;
use crate::tile::ceil_div;

/// Along a dim.
pub const POINTS: i64 = oxyfuel_graph::conv_panels::POINTS;
const ALL: i64 = POINTS * POINTS;

/// What things cost, in cycles of a worker: only their ratios matter.
mod cost {
    /// To copy an element of the lines, to bring one of a panel from memory.
    pub const COPY: f64 = 0.15;
    pub const STREAM: f64 = 0.4;
    /// To bring a vector of a tile to its points, and from there.
    pub const THERE: f64 = 60.0;
    pub const BACK: f64 = 50.0;
    pub const INSTANCE: f64 = 1_000.0;
}

/// The sizes of all loops.
#[derive(Clone, Debug)]
struct Blocking {
    /// Tiles along the dims of an image.
    high: i64,
    wide: i64,
    /// Images, lines of tiles and panels of columns that an instance has.
    images: i64,
    band: i64,
    across: i64,
    /// Tiles of a block, as many as registers hold sums for.
    rows: i64,
    /// How often an instance goes through its images, for how many of the lines of points.
    passes: i64,
}

impl Blocking {
    fn tiles(&self) -> i64 {
        self.images * self.band * self.wide
    }

    fn blocks(&self) -> i64 {
        ceil_div(self.tiles(), self.rows)
    }

    /// Tiles with those that fill the last block.
    fn padded(&self) -> i64 {
        self.blocks() * self.rows
    }

    /// Elements from one tile to the next: an odd number of cache lines, so that tiles do not share a set.
    fn pitch(&self, images: &Images) -> i64 {
        let line = 64 / images.dtype.size() as i64;
        (ceil_div(images.channels, line) | 1) * line
    }

    fn lines(&self, images: &Images) -> Lines {
        Lines::of(images, 2 * self.band + 2, 2 * self.wide + 2)
    }

    /// Panels whose products are kept until all points have them.
    fn kept(&self) -> i64 {
        if self.passes > 1 { self.across } else { 1 }
    }

    /// The products of a panel at all points.
    fn products(&self, images: &Images) -> i64 {
        ALL * self.padded() * images.width
    }

    fn instances(&self, images: &Images) -> i64 {
        images.images / self.images * (self.high / self.band) * (images.part / self.across)
    }

    fn elements(&self, images: &Images) -> i64 {
        let a = ALL / self.passes * self.padded() * self.pitch(images);
        a + self.kept() * self.products(images) + self.lines(images).elements()
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, images: &Images, target: &TargetDesc) -> f64 {
        let f = |n: i64| n as f64;
        let lanes = f64::from(target.lanes(images.dtype.size() as u32));
        let (columns, deep) = (f(self.across * images.width), f(images.deep()));
        let turns = ceil_div(self.instances(images), i64::from(target.workers.max(1)));
        let one = f(self.padded()) * columns / lanes * deep / 2.0
            + f(self.passes * self.images * self.lines(images).elements()) * cost::COPY
            + f(self.tiles() * images.channels) / lanes * cost::THERE
            + f(self.tiles()) * columns / lanes * cost::BACK
            + columns * deep * cost::STREAM
            + cost::INSTANCE;
        f(turns) * one
    }
}

/// The loops that the workers are done with first.
fn choose(images: &Images, target: &TargetDesc) -> Blocking {
    let lanes = i64::from(target.lanes(images.dtype.size() as u32));
    let most = (i64::from(target.registers) - 4) / (images.width / lanes).max(1);
    let (high, wide) = (ceil_div(images.lines.out, 2), ceil_div(images.cols.out, 2));
    let room = i64::try_from(target.l2_bytes / 4 * 3).unwrap_or(i64::MAX);
    let mut best: Option<(f64, Blocking)> = None;
    for (together, band) in parts(images.images, high) {
        for (across, passes) in divisors(images.part).flat_map(|n| [(n, 1), (n, POINTS)]) {
            let tiles = together * band * wide;
            let shape = Blocking {
                high,
                wide,
                images: together,
                band,
                across,
                rows: ceil_div(tiles, ceil_div(tiles, most)),
                passes,
            };
            let fits = images.bytes(shape.elements(images)) <= room;
            let cost = shape.cost(images, target);
            let better = best.as_ref().is_none_or(|(least, _)| cost < *least);
            if (fits || band * together == 1) && better {
                best = Some((cost, shape));
            }
        }
    }
    best.map_or_else(
        || Blocking {
            high,
            wide,
            images: 1,
            band: 1,
            across: 1,
            rows: wide.min(most),
            passes: 1,
        },
        |(_, shape)| shape,
    )
}

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    images: &'a Images,
    panels: &'a Panels,
    blocking: &'a Blocking,
}

/// An instance's copies.
struct Here {
    lines: Mem,
    a: Mem,
    m: Mem,
    y: Mem,
    /// First image, first line of tiles, first panel.
    image: Tile,
    band: Tile,
    panel: Tile,
}

pub fn winograd(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    images: &Images,
    target: &TargetDesc,
) -> Result<Program> {
    let blocking = choose(images, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let lines = blocking.lines(images);
    lines.lay_out(&k, &spread, images);
    let (wide, width) = (blocking.wide, images.width);
    for shape in [
        [blocking.rows, width],
        [wide, images.channels],
        [wide, width],
        [images.cols.out, width],
        [blocking.padded() - blocking.tiles(), images.channels],
    ] {
        lay_out(&k, &spread, &shape);
    }
    let grid = images.grid([
        images.panels() / blocking.across,
        blocking.high / blocking.band,
        images.images / blocking.images,
    ]);
    let work = Work {
        nest,
        params: &params,
        images,
        panels: &panels(&k, &spread, &params, images),
        blocking: &blocking,
    };
    k.phase(grid.map(Expr::constant), |k| work.instance(k, &lines));
    k.finish()
}

impl Work<'_> {
    fn instance(&self, k: &KernelBuilder, lines: &Lines) {
        let (images, blocking) = (self.images, self.blocking);
        let panel = |len: i64| k.alloc(Space::Panel, images.dtype, len, None);
        let [panels, bands, several] = images.axes();
        let here = Here {
            lines: panel(lines.elements()),
            a: panel(ALL / blocking.passes * blocking.padded() * blocking.pitch(images)),
            m: panel(blocking.kept() * blocking.products(images)),
            y: panel(4 * blocking.wide * images.width),
            panel: k.program_id(panels) * blocking.across,
            band: k.program_id(bands) * blocking.band,
            image: k.program_id(several) * blocking.images,
        };
        let start = k.constant(DType::I64, 0);
        lines.clear_edges(k, images, (&here.lines, &start));
        self.clear_rest(k, &here);
        if blocking.passes == 1 {
            self.copy(k, &here, lines, None);
            k.for_range(0, blocking.across, 1, [], |k, j, []| {
                self.multiply(k, &here, &j, None);
                self.results(k, &here, &j);
                []
            });
            return;
        }
        k.for_range(0, POINTS, 1, [], |k, row, []| {
            self.copy(k, &here, lines, Some(&row));
            k.for_range(0, blocking.across, 1, [], |k, j, []| {
                self.multiply(k, &here, &j, Some(&row));
                []
            });
            []
        });
        k.for_range(0, blocking.across, 1, [], |k, j, []| {
            self.results(k, &here, &j);
            []
        });
    }

    /// Brings all tiles to their points, or to one line of these.
    fn copy(&self, k: &KernelBuilder, here: &Here, lines: &Lines, row: Option<&Tile>) {
        let (images, blocking) = (self.images, self.blocking);
        k.for_range(0, blocking.images, 1, [], |k, i, []| {
            let first = &here.band * 2 - images.lines.padding;
            let x = &self.params.mems[images.x];
            let (image, start) = (&here.image + &i, k.constant(DType::I64, 0));
            lines.copy(k, images, x, (&here.lines, &start), [&image, &first]);
            k.for_range(0, blocking.band, 1, [], |k, line, []| {
                self.bring_to_points(k, here, lines, [&i, &line], row);
                []
            });
            []
        });
    }

    /// What the products of a panel come to, and the work on that.
    fn results(&self, k: &KernelBuilder, here: &Here, j: &Tile) {
        let blocking = self.blocking;
        let panel = &here.panel + j;
        k.for_range(0, blocking.images, 1, [], |k, i, []| {
            k.for_range(0, blocking.band, 1, [], |k, line, []| {
                self.back_from_points(k, here, j, [&i, &line]);
                self.store(k, here, &i, &line, &panel);
                []
            });
            []
        });
    }

    /// Where the products of a panel begin.
    fn products_of(&self, k: &KernelBuilder, j: &Tile) -> Tile {
        match self.blocking.kept() {
            1 => k.constant(DType::I64, 0),
            _ => j * self.blocking.products(self.images),
        }
    }

    /// Tiles that only fill the last block are zero.
    fn clear_rest(&self, k: &KernelBuilder, here: &Here) {
        let (images, blocking) = (self.images, self.blocking);
        let (tiles, all) = (blocking.tiles(), blocking.padded());
        if tiles == all {
            return;
        }
        let pitch = blocking.pitch(images);
        k.for_range(0, ALL / blocking.passes, 1, [], |k, point, []| {
            let shape = [all - tiles, images.channels];
            let zero = k.full(images.dtype, shape, 0.0);
            let home = here.a.at((point * all + tiles) * pitch);
            k.store(home.shape(shape).strides([pitch, 1]), &zero);
            []
        });
    }

    /// Brings a line of tiles to its points, or to one line of these.
    fn bring_to_points(
        &self,
        k: &KernelBuilder,
        here: &Here,
        lines: &Lines,
        [image, line]: [&Tile; 2],
        row: Option<&Tile>,
    ) {
        let (images, blocking) = (self.images, self.blocking);
        let (wide, channels) = (blocking.wide, images.channels);
        let from = line * (2 * lines.pitch());
        let pixel = |at: Tile| {
            let window = here.lines.at(at).shape([wide, channels]);
            k.load(window.strides([2 * channels, 1]))
        };
        let pitch = blocking.pitch(images);
        let tile = (image * blocking.band + line) * (wide * pitch);
        let along = |first: i64, [a, b, c, d]: [Tile; 4]| {
            let along = [&a - &c, &b + &c, &c - &b, &b - &d];
            for (col, value) in along.iter().enumerate() {
                let point = first + col as i64;
                let home = here.a.at(&tile + point * blocking.padded() * pitch);
                k.store(home.shape([wide, channels]).strides([pitch, 1]), value);
            }
        };
        let columns = [0, 1, 2, 3];
        // A line of points is a sum or a difference of two lines of pixels. Which ones is a table in the code for all lines, and chosen in the code for one.
        if let Some(row) = row {
            let constant = |line: i64| k.constant(DType::I64, line);
            let is = |number: i64| row.compare(CompareOp::Eq, number);
            let one = is(0).select(constant(0), is(2).select(constant(2), constant(1)));
            let other = is(3).select(constant(3), is(2).select(constant(1), constant(2)));
            let factor = |value: f64| k.constant(images.dtype, value);
            let sign = is(1).select(factor(1.0), factor(-1.0));
            let [one, other] = [one, other].map(|row| &from + row * lines.pitch());
            return along(
                0,
                columns.map(|col| {
                    let at = |line: &Tile| pixel(line + col * channels);
                    at(&other).fma(&sign, at(&one))
                }),
            );
        }
        let pixels = columns.map(|col| {
            [0, 1, 2, 3].map(|row| pixel(&from + (row * lines.pitch() + col * channels)))
        });
        let down = [
            |[a, _, c, _]: &[Tile; 4]| a - c,
            |[_, b, c, _]: &[Tile; 4]| b + c,
            |[_, b, c, _]: &[Tile; 4]| c - b,
            |[_, b, _, d]: &[Tile; 4]| b - d,
        ];
        for (row, down) in down.into_iter().enumerate() {
            along(row as i64 * POINTS, pixels.each_ref().map(down));
        }
    }

    /// The products of all tiles with a panel, at all points or at one line of these.
    fn multiply(&self, k: &KernelBuilder, here: &Here, j: &Tile, row: Option<&Tile>) {
        let (images, blocking) = (self.images, self.blocking);
        let (rows, cols, pitch) = (blocking.rows, images.width, blocking.pitch(images));
        let mut weight = self.panels.home(&(&here.panel + j));
        let mut kept = self.products_of(k, j);
        if let Some(row) = row {
            weight = weight + row * (POINTS * images.channels * cols);
            kept = kept + row * (POINTS * blocking.padded() * cols);
        }
        let count = ALL / blocking.passes;
        k.for_range(0, count, 1, [], |k, point, []| {
            let weight = &weight + &point * (images.channels * cols);
            // A piece of the panel stays in the first-level cache while every tile is multiplied with it.
            for (first, length) in summed(images.channels) {
                k.for_range(0, blocking.blocks(), 1, [], |k, block, []| {
                    let tile = &point * blocking.padded() + &block * rows;
                    let home = here.m.at(&kept + &tile * cols).shape([rows, cols]);
                    let a = here.a.at(&tile * pitch + first);
                    let a = a.shape([rows, length]).strides([pitch, 1]);
                    let b = self.panels.mem.at(&weight + first * cols);
                    let sum = k.mma(
                        a.operand([MmaDim::Side, MmaDim::K]),
                        b.shape([length, cols]).operand([MmaDim::K, MmaDim::Side]),
                        &zeros(k, images.dtype, rows, cols),
                        false,
                    );
                    let sum = match first {
                        0 => sum,
                        _ => k.load(home.clone()) + sum,
                    };
                    k.store(home, &sum);
                    []
                });
            }
            []
        });
    }

    /// Brings a line of tiles back from its points: two lines of results.
    fn back_from_points(
        &self,
        k: &KernelBuilder,
        here: &Here,
        j: &Tile,
        [image, line]: [&Tile; 2],
    ) {
        let (images, blocking) = (self.images, self.blocking);
        let (wide, cols) = (blocking.wide, images.width);
        let tile = (image * blocking.band + line) * (wide * cols) + self.products_of(k, j);
        let point = |row: i64, col: i64| {
            let at = &tile + (row * POINTS + col) * blocking.padded() * cols;
            k.load(here.m.at(at).shape([wide, cols]))
        };
        let results = |m: [&Tile; 4]| [m[0] + m[1] + m[2], m[1] - m[2] - m[3]];
        let columns = [0, 1, 2, 3].map(|col| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|row| point(row, col));
            results([&a, &b, &c, &d])
        });
        let [first, second] = [0, 1].map(|row| {
            let [a, b, c, d] = &columns;
            results([a, b, c, d].map(|column: &[Tile; 2]| &column[row]))
        });
        for (row, along) in [first, second].iter().enumerate() {
            for (col, value) in along.iter().enumerate() {
                let at = (row as i64 * 2 * wide + col as i64) * cols;
                let home = here.y.at(at).shape([wide, cols]).strides([2 * cols, 1]);
                k.store(home, value);
            }
        }
    }

    /// The work on two lines of results.
    fn store(&self, k: &KernelBuilder, here: &Here, image: &Tile, line: &Tile, panel: &Tile) {
        let (images, blocking) = (self.images, self.blocking);
        let (high, wide, cols) = (images.lines.out, images.cols.out, images.width);
        for row in 0..2 {
            let at = (&here.band + line) * 2 + row;
            let one = |k: &KernelBuilder| {
                let from = here.y.at(row * 2 * blocking.wide * cols);
                let sum = k.load(from.shape([wide, cols]));
                let zero = k.constant(DType::I64, 0);
                let block = Block {
                    image: &here.image + image,
                    places: vec![(1, at.clone(), None), (wide, zero, None)],
                    width: images.width,
                    panel: panel.clone(),
                };
                finish(k, (self.nest, self.params), images, block, sum);
            };
            if row == 1 && high % 2 == 1 {
                k.when(&at.compare(CompareOp::Lt, high), one);
            } else {
                one(k);
            }
        }
    }
}
