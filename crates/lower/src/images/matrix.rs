//! Every window is summed by a unit that multiplies pairs of channels: tiles of the matrix unit, or vectors that have such an instruction.
//!
//! ```text
//!   lines of x, bf16, channels filled up with zeros     [line][column][channel]             second-level cache
//!   panels of the weight, pairs of channels together    [n / 32][position, c / 2][32][2]    second-level cache
//!
//!   sums[2 tiles of up to 16 positions, 32] += lines[.. of the window's line ..] @ panel    matrix registers
//!   y    [2 tiles of positions][32]                                                         first-level cache
//!   the work on the result, line by line
//! ```
//!
//! A row of a tile is a position, and rows have to be equally far apart: a tile has positions of one line, and a block two neighbouring tiles of a line, or those of two lines, whichever lines can be cut into. Where lines are so short
//! that a tile holds several, and a kernel moves by one, it has what lies between them, too: columns of zeros, whose sums nobody reads.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{CompareOp, MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use super::lines::Lines;
use super::pack::{Panels, panels};
use super::shape::{Images, Unit};
use super::{Block, divisors, finish, parts};
use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{lay_out, matrix_layout, zeros};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// What things cost, in cycles of a worker: only their ratios matter.
mod cost {
    /// A row of a tile times a step of the depth, for 16 columns.
    pub const ROW: f64 = 1.2;
    /// The same in vectors: 16 instructions, two of them a cycle.
    pub const ROW_OF_VECTORS: f64 = 8.0;
    /// To copy an element of the lines, to bring one of a panel from memory.
    pub const COPY: f64 = 0.1;
    pub const STREAM: f64 = 0.1;
    /// The work on an element of the result.
    pub const FINISH: f64 = 0.4;
    pub const INSTANCE: f64 = 1_000.0;
}

/// The sizes of all loops.
#[derive(Clone, Debug)]
struct Blocking {
    /// Rows of a tile, and lines of the result that it has.
    rows: i64,
    together: i64,
    /// Tiles of a block beside each other in a line, or in lines below each other.
    beside: i64,
    below: i64,
    /// Blocks in a line, and groups of lines that a block has one of.
    blocks: i64,
    groups: i64,
    /// Images, groups of lines and panels of columns that an instance has.
    images: i64,
    band: i64,
    across: i64,
}

impl Blocking {
    /// A block for lines of this length.
    fn of(images: &Images, unit: Unit) -> Self {
        let (lines, cols) = (&images.lines, &images.cols);
        let line = cols.out + cols.kernel - 1;
        let moves_by_one = lines.stride == 1 && cols.stride == 1;
        let together = match moves_by_one && unit.matrix && cols.out < unit.rows {
            true => ((unit.rows - cols.out) / line + 1).min(lines.out),
            false => 1,
        };
        let tiles = ceil_div(cols.out, unit.rows);
        let rows = match together {
            1 => ceil_div(cols.out, tiles),
            several => (several - 1) * line + cols.out,
        };
        let (beside, below) = match (unit.matrix, tiles % 2) {
            (false, _) => (1, 1),
            (true, 0) => (2, 1),
            (true, _) => (1, 2),
        };
        Self {
            rows,
            together,
            beside,
            below,
            blocks: tiles / beside,
            groups: ceil_div(lines.out, together * below),
            images: 1,
            band: 1,
            across: 1,
        }
    }

    /// Lines of the result that a block has.
    fn high(&self) -> i64 {
        self.together * self.below
    }

    /// Rows of all of its tiles.
    fn all(&self) -> i64 {
        self.rows * self.beside * self.below
    }

    fn lines(&self, images: &Images) -> Lines {
        let (lines, cols) = (&images.lines, &images.cols);
        let out = self.band * self.high();
        let count = (out - 1) * lines.stride + (lines.kernel - 1) * lines.dilation + 1;
        let wide = match self.together {
            1 => self.blocks * self.beside * self.rows,
            _ => cols.out,
        };
        let columns = (wide - 1) * cols.stride + (cols.kernel - 1) * cols.dilation + 1;
        Lines::of(images, count, columns)
    }

    fn instances(&self, images: &Images) -> i64 {
        images.images / self.images * (self.groups / self.band) * (images.part / self.across)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, images: &Images, unit: Unit, target: &TargetDesc) -> f64 {
        let f = |n: i64| n as f64;
        let (columns, deep) = (f(self.across * images.width), f(images.deep()));
        let rows = f(self.images * self.band * self.blocks * self.all());
        let turns = ceil_div(self.instances(images), i64::from(target.workers.max(1)));
        let row = match unit.matrix {
            true => cost::ROW,
            false => cost::ROW_OF_VECTORS,
        };
        let one = rows * (columns / 16.0) * (deep / 32.0) * row
            + rows * columns * cost::FINISH
            + f(self.images * self.lines(images).elements()) * cost::COPY
            + columns * deep * cost::STREAM
            + cost::INSTANCE;
        f(turns) * one
    }
}

/// The loops that the workers are done with first.
fn choose(images: &Images, unit: Unit, target: &TargetDesc) -> Blocking {
    let blocking = Blocking::of(images, unit);
    let room = i64::try_from(target.l2_bytes / 2).unwrap_or(i64::MAX);
    let mut best = (f64::INFINITY, blocking.clone());
    for (together, band) in parts(images.images, blocking.groups) {
        for across in divisors(images.part) {
            let shape = Blocking {
                images: together,
                band,
                across,
                ..blocking.clone()
            };
            let fits = images.bytes(together * shape.lines(images).elements()) <= room;
            let cost = shape.cost(images, unit, target);
            if (fits || together * band == 1) && cost < best.0 {
                best = (cost, shape);
            }
        }
    }
    best.1
}

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    images: &'a Images,
    unit: Unit,
    panels: &'a Panels,
    blocking: &'a Blocking,
    /// The copied lines.
    copied: &'a Lines,
}

/// An instance's copies.
struct Here {
    lines: Mem,
    y: Mem,
    /// First image, first group of lines.
    image: Tile,
    group: Tile,
}

pub fn matrix(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    images: &Images,
    target: &TargetDesc,
) -> Result<Program> {
    let Some(unit) = images.unit else {
        return Err(oxyfuel_base::err!(Internal, "images without a unit"));
    };
    let blocking = choose(images, unit, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let copied = blocking.lines(images);
    copied.lay_out(&k, &spread, images);
    for rows in [blocking.all(), blocking.rows, images.cols.out] {
        lay_out(&k, &spread, &[rows, images.width]);
    }
    let grid = images.grid([
        images.panels() / blocking.across,
        blocking.groups / blocking.band,
        images.images / blocking.images,
    ]);
    let work = Work {
        nest,
        params: &params,
        images,
        unit,
        panels: &panels(&k, &spread, &params, images),
        blocking: &blocking,
        copied: &copied,
    };
    k.phase(grid.map(Expr::constant), |k| {
        let layout = spread.layout(
            &[blocking.all(), images.width],
            &[blocking.all(), images.width],
        );
        work.instance(k, &|sum: Tile| match unit.matrix {
            true => sum.convert_layout(layout.clone()),
            false => sum,
        });
    });
    k.finish()
}

impl Work<'_> {
    fn instance(&self, k: &KernelBuilder, plain: &dyn Fn(Tile) -> Tile) {
        let (images, blocking, copied) = (self.images, self.blocking, self.copied);
        let [panels, groups, several] = images.axes();
        let lines = blocking.images * copied.elements();
        let here = Here {
            lines: k.alloc(Space::Panel, images.dtype, lines, None),
            y: k.alloc(
                Space::Panel,
                DType::F32,
                blocking.all() * images.width,
                None,
            ),
            group: k.program_id(groups) * blocking.band,
            image: k.program_id(several) * blocking.images,
        };
        let panel = k.program_id(panels) * blocking.across;
        let high = blocking.high() * images.lines.stride;
        let first = &here.group * high - images.lines.padding;
        k.for_range(0, blocking.images, 1, [], |k, i, []| {
            let home = &i * copied.elements();
            let x = &self.params.mems[images.x];
            copied.clear_edges(k, images, (&here.lines, &home));
            let image = &here.image + &i;
            copied.copy(k, images, x, (&here.lines, &home), [&image, &first]);
            []
        });
        // A panel stays in the second-level cache while every block is multiplied with it.
        k.for_range(0, blocking.across, 1, [], |k, j, []| {
            let panel = &panel + &j;
            k.for_range(0, blocking.images, 1, [], |k, i, []| {
                k.for_range(0, blocking.band, 1, [], |k, line, []| {
                    k.for_range(0, blocking.blocks, 1, [], |k, block, []| {
                        let pixel = images.cols.stride * images.padded;
                        let along = blocking.rows * blocking.beside * pixel;
                        let window = &i * copied.elements()
                            + &line * (high * copied.pitch())
                            + &block * along;
                        let sum = plain(self.multiply(k, &here.lines, &window, &panel));
                        k.store(here.y.at(0).shape(sum.shape()), &sum);
                        let (image, group) = (&here.image + &i, &here.group + &line);
                        self.store(k, &here.y, [&image, &group, &block, &panel]);
                        []
                    });
                    []
                });
                []
            });
            []
        });
    }

    /// A block's sums over its windows.
    fn multiply(&self, k: &KernelBuilder, lines: &Mem, window: &Tile, panel: &Tile) -> Tile {
        let (images, blocking) = (self.images, self.blocking);
        let (rows, cols) = (blocking.all(), images.width);
        let along = images.cols.kernel * images.padded;
        let pixel = images.cols.stride * images.padded;
        let apart = match blocking.below {
            1 => blocking.rows * pixel,
            _ => blocking.together * images.lines.stride * self.copied.pitch(),
        };
        let weight = self.panels.home(panel);
        let mut sum = zeros(k, DType::F32, rows, cols);
        if self.unit.matrix {
            sum = sum.convert_layout(matrix_layout(rows, cols));
        }
        for kernel in 0..images.lines.kernel {
            let from = kernel * images.lines.dilation * self.copied.pitch();
            let a = lines.at(window + from);
            let a = match self.unit.matrix {
                true => a
                    .shape([2, blocking.rows, along])
                    .strides([apart, pixel, 1])
                    .operand([MmaDim::Side, MmaDim::Side, MmaDim::K]),
                false => a
                    .shape([rows, along])
                    .strides([pixel, 1])
                    .operand([MmaDim::Side, MmaDim::K]),
            };
            let pack = self.unit.pack;
            let b = self.panels.mem.at(&weight + kernel * along * cols);
            let b = b.shape([along / pack, cols, pack]);
            let b = b.operand([MmaDim::K, MmaDim::Side, MmaDim::K]);
            sum = k.mma(a, b, &sum, false);
        }
        sum
    }

    /// The work on the lines of a block.
    fn store(&self, k: &KernelBuilder, y: &Mem, [image, group, block, panel]: [&Tile; 4]) {
        let (images, blocking) = (self.images, self.blocking);
        let (high, wide) = (images.lines.out, images.cols.out);
        let rows = match blocking.together {
            1 => blocking.rows * blocking.beside,
            _ => wide,
        };
        let one = |k: &KernelBuilder, line: &Tile, from: Tile| {
            let sum = k.load(y.at(from * images.width).shape([rows, images.width]));
            let (first, cut) = (block * rows, left(block, rows, wide));
            let at = Block {
                image: image.clone(),
                places: vec![(1, line.clone(), None), (rows, first, cut)],
                width: images.width,
                panel: panel.clone(),
            };
            finish(k, (self.nest, self.params), images, at, sum);
        };
        let line = |k: &KernelBuilder, below: &Tile, within: &Tile| {
            let line = (group * blocking.below + below) * blocking.together + within;
            let from = below * blocking.rows + within * self.copied.columns;
            if blocking.groups * blocking.high() > high {
                k.when(&line.compare(CompareOp::Lt, high), |k| one(k, &line, from));
            } else {
                one(k, &line, from);
            }
        };
        k.for_range(0, blocking.below, 1, [], |k, below, []| {
            k.for_range(0, blocking.together, 1, [], |k, within, []| {
                line(k, &below, &within);
                []
            });
            []
        });
    }
}
