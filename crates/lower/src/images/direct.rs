//! Every window is summed: a product for each line of the kernel, whose columns and channels lie side by side in the copied lines as in the panels.

use oxyfuel_base::{Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use super::lines::Lines;
use super::pack::{Panels, panels};
use super::shape::Images;
use super::{Block, divisors, finish, parts};
use crate::blocked::{SUMMED, summed};
use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{lay_out, zeros};
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// What things cost, in cycles of a worker: only their ratios matter.
mod cost {
    /// To copy an element of the lines, to bring one of a panel from memory.
    pub const COPY: f64 = 0.15;
    pub const STREAM: f64 = 0.3;
    pub const INSTANCE: f64 = 1_000.0;
}

/// The sizes of all loops.
#[derive(Clone, Debug)]
struct Blocking {
    /// Positions of a block along a line; where lines are short, several of them.
    rows: i64,
    together: i64,
    /// Blocks in a line, and groups of lines that a block has one of.
    blocks: i64,
    groups: i64,
    /// Images, groups of lines and panels of columns that an instance has.
    images: i64,
    band: i64,
    across: i64,
    /// Panels whose results fill a vector, which is written at once.
    beside: i64,
}

impl Blocking {
    fn lines(&self, images: &Images) -> Lines {
        let (lines, cols) = (&images.lines, &images.cols);
        let out = self.band * self.together;
        let count = (out - 1) * lines.stride + (lines.kernel - 1) * lines.dilation + 1;
        let columns =
            (self.blocks * self.rows - 1) * cols.stride + (cols.kernel - 1) * cols.dilation + 1;
        Lines::of(images, count, columns)
    }

    /// Elements of all copies.
    fn elements(&self, images: &Images) -> i64 {
        let sums = self.band * self.blocks * self.rows * self.together * images.width * self.beside;
        self.images * (self.lines(images).elements() + sums)
    }

    fn instances(&self, images: &Images) -> i64 {
        images.images / self.images * (self.groups / self.band) * (images.part / self.across)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, images: &Images, target: &TargetDesc) -> f64 {
        let f = |n: i64| n as f64;
        let lanes = f64::from(target.lanes(images.dtype.size() as u32));
        let (columns, deep) = (f(self.across * images.width), f(images.deep()));
        let vectors = f(self.across) * (f(images.width) / lanes).max(1.0);
        let rows = f(self.images * self.band * self.together * self.blocks * self.rows);
        let turns = ceil_div(self.instances(images), i64::from(target.workers.max(1)));
        let one = rows * vectors * deep / 2.0
            + f(self.images * self.lines(images).elements()) * cost::COPY
            + columns * deep * cost::STREAM
            + cost::INSTANCE;
        f(turns) * one
    }
}

/// The loops that the workers are done with first.
fn choose(images: &Images, merged: bool, target: &TargetDesc) -> Blocking {
    let lanes = i64::from(target.lanes(images.dtype.size() as u32));
    let most = (i64::from(target.registers) - 4) / (images.width / lanes).max(1);
    let wide = images.cols.out;
    let tallest = match merged {
        true => (most / wide).clamp(1, images.lines.out),
        false => 1,
    };
    // Many lines of one column: a few less in a block may make more numbers of blocks that are parts of all.
    let fewest = match wide {
        1 => (tallest * 3 / 4).max(2).min(tallest),
        _ => tallest,
    };
    let blocks = ceil_div(wide, most);
    let beside = match images.beside(lanes) {
        beside if images.part % beside == 0 => beside,
        _ => 1,
    };
    let of = |together: i64| Blocking {
        rows: ceil_div(wide, blocks),
        together,
        blocks,
        groups: ceil_div(images.lines.out, together),
        images: 1,
        band: 1,
        across: beside,
        beside,
    };
    let room = i64::try_from(target.l2_bytes / 2).unwrap_or(i64::MAX);
    let mut best = (f64::INFINITY, of(tallest));
    for blocking in (fewest..=tallest).rev().map(of) {
        for (together, band) in parts(images.images, blocking.groups) {
            for across in divisors(images.part / beside) {
                let shape = Blocking {
                    images: together,
                    band,
                    across: across * beside,
                    ..blocking.clone()
                };
                let fits = images.bytes(shape.elements(images)) <= room;
                let cost = shape.cost(images, target);
                if (fits || together * band == 1) && cost < best.0 {
                    best = (cost, shape);
                }
            }
        }
    }
    best.1
}

/// A run of a panel's rows, and of the lines that it is multiplied with: along one line of the kernel.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Line of the kernel, and elements of the copied line before the run.
    kernel: i64,
    first: i64,
    /// Rows of the panel before it.
    row: i64,
    /// Columns of the kernel, one after another in the panel, and rows for each.
    columns: i64,
    length: i64,
}

/// Channels of a group up to which columns of the kernel are one run, channel by channel in the code.
const FEW: i64 = 8;

/// Runs of the kernel: where pixels below each other lie side by side, all of it. Else, of each line, columns and channels in one, or, where channels of other groups or columns that are skipped lie between them, column by column, each a product of its own unless channels are few.
fn runs(images: &Images) -> Vec<Run> {
    if images.groups == 1 && images.is_column() {
        let all = summed(images.lines.kernel * images.span());
        let run = |(first, length)| Run {
            kernel: 0,
            first,
            row: first,
            columns: 1,
            length,
        };
        return all.map(run).collect();
    }
    let lines = 0..images.lines.kernel;
    lines.flat_map(|line| of_line(images, line)).collect()
}

fn of_line(images: &Images, kernel: i64) -> Vec<Run> {
    let (cols, span) = (&images.cols, images.span());
    let apart = images.groups > 1 || cols.dilation > 1;
    if apart && span <= FEW && cols.kernel * span <= SUMMED {
        return vec![Run {
            kernel,
            first: 0,
            row: kernel * cols.kernel * span,
            columns: cols.kernel,
            length: span,
        }];
    }
    let (columns, length) = match apart {
        true => (cols.kernel, span),
        false => (1, cols.kernel * span),
    };
    let along = |column: i64| {
        summed(length).map(move |(first, length)| Run {
            kernel,
            first: column * cols.dilation * images.channels + first,
            row: (kernel * columns + column) * (cols.kernel / columns * span) + first,
            columns: 1,
            length,
        })
    };
    (0..columns).flat_map(along).collect()
}

/// What is summed from zero, piece by piece: runs of [`SUMMED`] rows together at most.
fn pieces(images: &Images) -> Vec<Vec<Run>> {
    let mut pieces: Vec<Vec<Run>> = Vec::new();
    let mut terms = SUMMED;
    for run in runs(images) {
        match pieces.last_mut() {
            Some(piece) if terms + run.columns * run.length <= SUMMED => piece.push(run),
            _ => {
                pieces.push(vec![run]);
                terms = 0;
            }
        }
        terms += run.columns * run.length;
    }
    pieces
}

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    images: &'a Images,
    panels: &'a Panels,
    blocking: &'a Blocking,
    /// Lines and columns of the result are one dim to the work on it.
    merged: bool,
}

pub fn direct(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    images: &Images,
    target: &TargetDesc,
) -> Result<Program> {
    let mut nest = nest.clone();
    // Of lines or columns that are one, the others are all there is.
    let single = images.lines.out == 1 || images.cols.out == 1;
    let merged = single || nest.merged(nest.rank() - 3);
    let blocking = choose(images, merged, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let copied = blocking.lines(images);
    copied.lay_out(&k, &spread, images);
    for cols in [images.width, images.width * blocking.beside] {
        lay_out(&k, &spread, &[blocking.rows * blocking.together, cols]);
    }
    let grid = images.grid([
        images.panels() / blocking.across,
        blocking.groups / blocking.band,
        images.images / blocking.images,
    ]);
    let work = Work {
        nest: &nest,
        params: &params,
        images,
        panels: &panels(&k, &spread, &params, images),
        blocking: &blocking,
        merged,
    };
    k.phase(grid.map(Expr::constant), |k| work.instance(k, &copied));
    k.finish()
}

impl Work<'_> {
    fn instance(&self, k: &KernelBuilder, copied: &Lines) {
        let (images, blocking) = (self.images, self.blocking);
        let panel = |len: i64| k.alloc(Space::Panel, images.dtype, len, None);
        let lines = panel(blocking.images * copied.elements());
        let rows = blocking.rows * blocking.together;
        let blocks = blocking.images * blocking.band * blocking.blocks;
        let all = pieces(images);
        let beside = blocking.beside;
        let wide = images.width * beside;
        let sums = (all.len() > 1 || beside > 1).then(|| panel(blocks * rows * wide));
        let [panels, groups, several] = images.axes();
        let vector = k.program_id(panels) * (blocking.across / beside);
        let group = k.program_id(groups) * blocking.band;
        let image = k.program_id(several) * blocking.images;
        let first = &group * (blocking.together * images.lines.stride) - images.lines.padding;
        k.for_range(0, blocking.images, 1, [], |k, i, []| {
            let home = &i * copied.elements();
            let x = &self.params.mems[images.x];
            copied.clear_edges(k, images, (&lines, &home));
            copied.copy(k, images, x, (&lines, &home), [&(&image + &i), &first]);
            []
        });
        k.for_range(0, blocking.across / beside, 1, [], |k, j, []| {
            let vector = &vector + &j;
            // A piece of the panel stays in the first-level cache while every block is multiplied with it.
            for (number, piece) in all.iter().enumerate() {
                k.for_range(0, blocking.images, 1, [], |k, i, []| {
                    k.for_range(0, blocking.band, 1, [], |k, line, []| {
                        k.for_range(0, blocking.blocks, 1, [], |k, block, []| {
                            let step = blocking.together * images.lines.stride * copied.pitch();
                            let along = blocking.rows * images.cols.stride * images.channels;
                            let window = &i * copied.elements() + &line * step + &block * along;
                            let home = sums.as_ref().map(|sums| {
                                let at = (&i * blocking.band + &line) * blocking.blocks + &block;
                                (sums, at * (rows * wide))
                            });
                            let last = number + 1 == all.len();
                            let from = (copied, &lines, &window);
                            let sum = match &home {
                                Some(home) if beside > 1 => {
                                    self.multiply_beside(k, from, &vector, (number, piece), home);
                                    last.then(|| k.load(home.0.at(&home.1).shape([rows, wide])))
                                }
                                _ => {
                                    let sum = self.multiply(k, from, &vector, piece);
                                    let home = home.map(|(sums, at)| sums.at(at));
                                    added(k, (number, last), sum, home, [rows, wide])
                                }
                            };
                            if let Some(sum) = sum {
                                let (image, group) = (&image + &i, &group + &line);
                                let at = self.place(&image, &group, &block, &vector);
                                finish(k, (self.nest, self.params), images, at, sum);
                            }
                            []
                        });
                        []
                    });
                    []
                });
            }
            []
        });
    }

    /// The sums of panels that fill a vector together, beside each other where they wait for the others.
    fn multiply_beside(
        &self,
        k: &KernelBuilder,
        from: (&Lines, &Mem, &Tile),
        vector: &Tile,
        (number, piece): (usize, &[Run]),
        (sums, at): &(&Mem, Tile),
    ) {
        let (width, beside) = (self.images.width, self.blocking.beside);
        let rows = self.blocking.rows * self.blocking.together;
        k.for_range(0, beside, 1, [], |k, next, []| {
            let sum = self.multiply(k, from, &(vector * beside + &next), piece);
            let home = sums.at(at + &next * width).shape([rows, width]);
            let home = home.strides([width * beside, 1]);
            let sum = match number {
                0 => sum,
                _ => k.load(home.clone()) + sum,
            };
            k.store(home, &sum);
            []
        });
    }

    /// A block's sums over a piece of its windows.
    fn multiply(
        &self,
        k: &KernelBuilder,
        (copied, lines, window): (&Lines, &Mem, &Tile),
        panel: &Tile,
        piece: &[Run],
    ) -> Tile {
        let (images, blocking) = (self.images, self.blocking);
        let (rows, cols) = (blocking.rows * blocking.together, images.width);
        let pixel = images.cols.stride * images.channels;
        let line = images.lines.stride * copied.pitch();
        let weight = self.panels.home(panel);
        let window = match images.first_channel(panel) {
            Some(channel) => window + channel,
            None => window.clone(),
        };
        let mut sum = zeros(k, images.dtype, rows, cols);
        for &Run {
            kernel,
            first,
            row,
            columns,
            length,
        } in piece
        {
            let from = kernel * images.lines.dilation * copied.pitch() + first;
            let mut shape = vec![blocking.rows];
            let mut strides = vec![pixel];
            let mut dims = vec![MmaDim::Side];
            if blocking.together > 1 {
                shape.insert(0, blocking.together);
                strides.insert(0, line);
                dims.insert(0, MmaDim::Side);
            }
            if columns > 1 {
                shape.push(columns);
                strides.push(images.cols.dilation * images.channels);
                dims.push(MmaDim::K);
            }
            shape.push(length);
            strides.push(1);
            dims.push(MmaDim::K);
            let a = lines.at(&window + from).shape(shape).strides(strides);
            let a = a.operand(dims);
            let b = self.panels.mem.at(&weight + row * cols);
            let b = b.shape([columns * length, cols]);
            let b = b.operand([MmaDim::K, MmaDim::Side]);
            sum = k.mma(a, b, &sum, false);
        }
        sum
    }

    fn place(&self, image: &Tile, group: &Tile, block: &Tile, panel: &Tile) -> Block {
        let (images, blocking) = (self.images, self.blocking);
        let (high, wide) = (images.lines.out, images.cols.out);
        let rows = blocking.rows * blocking.together;
        let cut = left(block, blocking.rows, wide);
        let places = if blocking.together > 1 {
            vec![(rows, group * rows, left(group, rows, high * wide))]
        } else if self.merged {
            vec![(rows, group * wide + block * blocking.rows, cut)]
        } else {
            vec![(1, group.clone(), None), (rows, block * blocking.rows, cut)]
        };
        Block {
            image: image.clone(),
            places,
            width: images.width * blocking.beside,
            panel: panel.clone(),
        }
    }
}

/// A piece's sums with those of the pieces before it, or `None` where they wait for the next one.
fn added(
    k: &KernelBuilder,
    (number, last): (usize, bool),
    sum: Tile,
    home: Option<Window>,
    shape: [i64; 2],
) -> Option<Tile> {
    let Some(home) = home.map(|home| home.shape(shape)) else {
        return Some(sum);
    };
    let sum = match number {
        0 => sum,
        _ => k.load(home.clone()) + sum,
    };
    if last {
        return Some(sum);
    }
    k.store(home, &sum);
    None
}
