//! Convolutions on the vector unit of a CPU, as products whose right side is never whole in memory.
//!
//! ```text
//!   out[o, p] = sum over c and kernel positions of  weight[o, (c, k)] * x[c, where position k of the window at p lies]
//!
//!   an instance computes  band x across  blocks of some images' results, rows x cols each: rows are output channels, columns neighbouring output positions
//!
//!   for each chunk of the input channels:
//!     its part of the weight is copied into panels        [band][rows][chunk, kernel]                       second-level cache
//!     for each image:
//!       the lines of x that its windows touch are copied  [chunk][column of the kernel][line][output column]   second-level cache
//!       for each block of columns:
//!         what its windows read is gathered into a panel  [chunk, kernel][cols]                             first-level cache
//!         for each panel of weights: rows x cols sums                                                       registers
//! ```
//!
//! The copy of `x` holds each line once for every column of the kernel, shifted, filled with zeros where the padding is, and with lines that a stride skips sorted out: however a kernel
//! moves, what its windows read at neighbouring output positions lies side by side, over the ends of lines too. Nothing is masked when it is multiplied, and a kernel of 3 x 3
//! takes three copies of a few lines instead of nine of the image. Where few panels of weights would read it, the panel of a block is not worth its copy: the lines are multiplied
//! where they are.
//!
//! | file | idea |
//! |---|---|
//! | `shape.rs` | what is computed, in numbers, and where it lies |
//! | `blocking.rs` | the sizes of all loops |
//! | `lines.rs` | the copy of `x` |
//! | `staged.rs` | the same on a GPU, through shared memory |

mod blocking;
mod lines;
mod shape;
mod staged;

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Graph, Node};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, MmaDim, Space};
use oxyfuel_plan::TargetDesc;

use crate::map::vector;
use crate::nest::Nest;
use crate::packed::{lay_out, zeros};
use crate::rows::{Frame, left};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

use blocking::Blocking;
pub use shape::Convolution;

/// Whether a node is a convolution of a kind and size that this kernel is for.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    match target.is_simt() {
        true => staged::applies(graph, node, target),
        false => shape::applies(graph, node, target),
    }
}

/// Builds the program. `nest` is the work on the result, over its dims.
pub fn convolution(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    conv: &Convolution,
    target: &TargetDesc,
) -> Result<Program> {
    if target.is_simt() {
        return staged::convolution(nest, params_of, conv, target);
    }
    let mut nest = nest.clone();
    let conv = &conv.settled(&mut nest);
    let blocking = blocking::choose(conv, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let work = Work {
        nest: &nest,
        params: &params,
        conv,
        blocking: &blocking,
    };
    for shape in work.shapes() {
        lay_out(&k, &spread, &shape);
    }
    // Lanes along a line that is shorter than a vector, rather than some of two lines: memory is read and written in order.
    let lanes = i64::from(target.lanes(4));
    for shape in work.short_shapes(lanes) {
        let whole = [shape[0], lanes];
        k.layout_shape(shape, spread.layout(&whole, &whole));
    }
    let line = [blocking.cols];
    k.layout_shape(line, spread.layout(&line, &line));
    let grid = [
        ceil_div(blocking.row_blocks(conv), blocking.band),
        ceil_div(blocking.col_blocks(conv), blocking.across) * conv.outer_places(),
        ceil_div(conv.images, blocking.images) * ceil_div(conv.groups, blocking.groups),
    ];
    k.phase(grid.map(Expr::constant), |k| work.instance(k));
    k.finish()
}

/// What all parts of the program need to know.
struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    conv: &'a Convolution,
    blocking: &'a Blocking,
}

/// The place of an instance.
#[derive(Clone)]
struct Here {
    group: Option<Tile>,
    /// First panel of rows, first block of columns, first image.
    row: Tile,
    col: Tile,
    image: Tile,
    /// Output positions along the outer dims.
    outer: Vec<Tile>,
    /// First output line that its columns touch, and the columns of that line before its first one.
    line: Tile,
    before: Tile,
    /// How many of them it has.
    band: Tile,
    across: Tile,
    images: Tile,
    weights: Mem,
    lines: Mem,
    /// What the windows of a block of columns read.
    windows: Option<Mem>,
    /// Sums between two chunks.
    sums: Option<Mem>,
}

fn div(x: &Tile, by: i64) -> Tile {
    match by {
        1 => x.clone(),
        _ => x.binary(BinaryOp::Div, by),
    }
}

fn rem(x: &Tile, by: i64) -> Tile {
    x.binary(BinaryOp::Rem, by)
}

impl Work<'_> {
    /// Every shape of a tile.
    fn shapes(&self) -> Vec<[i64; 2]> {
        let (conv, blocking) = (self.conv, self.blocking);
        let mut shapes = Vec::new();
        for channels in [blocking.chunk, blocking.rest(conv)] {
            shapes.push([blocking.rows, channels * conv.reach()]);
            shapes.push([blocking.rows, channels]);
            shapes.push([channels, blocking.cols]);
            shapes.extend(self.line_shapes(channels));
        }
        shapes.push([blocking.rows, blocking.cols]);
        shapes
    }

    /// Shapes of copied lines that do not fill a vector.
    fn short_shapes(&self, lanes: i64) -> Vec<[i64; 2]> {
        let (conv, blocking) = (self.conv, self.blocking);
        let channels = [blocking.chunk, blocking.rest(conv)];
        let mut shapes: Vec<_> = channels.map(|n| self.line_shapes(n)).concat();
        shapes.retain(|shape| {
            (2..lanes).contains(&shape[1]) && *shape != [blocking.rows, blocking.cols]
        });
        shapes
    }

    fn instance(&self, k: &KernelBuilder) {
        let (conv, blocking) = (self.conv, self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let (row, place, image) = (k.program_id(0), k.program_id(1), k.program_id(2));
        let parts = ceil_div(blocking.col_blocks(conv), blocking.across);
        let (mut place, part) = match parts {
            1 => (place, k.constant(DType::I64, 0)),
            _ => (div(&place, parts), rem(&place, parts)),
        };
        let mut outer = Vec::new();
        for axis in conv.outer.iter().rev() {
            outer.insert(0, rem(&place, axis.out));
            place = div(&place, axis.out);
        }
        let several = ceil_div(conv.groups, blocking.groups);
        let (image, group) = match several {
            1 => (image, k.constant(DType::I64, 0)),
            _ => (div(&image, several), rem(&image, several)),
        };
        let many = |part: &Tile, size: i64, all: i64| {
            left(part, size, all).unwrap_or_else(|| k.constant(DType::I64, size))
        };
        let panel = |len: i64| k.alloc(Space::Panel, blocking.part, len, None);
        let first = &part * (blocking.across * cols);
        let line = div(&first, conv.cols.out);
        let blocks = blocking.band * blocking.across * blocking.images;
        let here = Here {
            band: many(&row, blocking.band, blocking.row_blocks(conv)),
            across: many(&part, blocking.across, blocking.col_blocks(conv)),
            images: many(&image, blocking.images, conv.images),
            row: row * blocking.band,
            col: part * blocking.across,
            image: image * blocking.images,
            before: if conv.is_line() {
                k.constant(DType::I64, 0)
            } else {
                &first - &line * conv.cols.out
            },
            line,
            outer,
            group: (conv.groups > 1).then(|| &group * blocking.groups),
            weights: panel(blocking.band * rows * blocking.pitch(conv)),
            lines: panel(blocking.chunk * blocking.lines(conv).channel),
            windows: blocking
                .gathers()
                .then(|| panel(blocking.chunk * conv.reach() * cols)),
            sums: (blocking.chunks > 1).then(|| panel(blocks * rows * cols)),
        };
        self.clear_edges(k, &here);
        let Some(first) = here.group.clone().filter(|_| blocking.groups > 1) else {
            return self.group(k, &here);
        };
        let groups = many(&group, blocking.groups, conv.groups);
        k.for_range(0, &groups, 1, [], |k, next, []| {
            let here = Here {
                group: Some(&first + &next),
                ..here.clone()
            };
            self.group(k, &here);
            []
        });
    }

    /// What an instance computes of one group.
    fn group(&self, k: &KernelBuilder, here: &Here) {
        let blocking = self.blocking;
        let (rows, cols) = (blocking.rows, blocking.cols);
        if let Some(sums) = &here.sums {
            let blocks = blocking.band * blocking.across * blocking.images;
            k.for_range(0, blocks, 1, [], |k, block, []| {
                let zero = k.full(blocking.part, [rows, cols], 0.0);
                let home = sums.at(&(block * (rows * cols))).shape([rows, cols]);
                k.store(home, &zero);
                []
            });
            k.for_range(0, blocking.chunks - 1, 1, [], |k, chunk, []| {
                self.chunk(k, here, &chunk, false);
                []
            });
        }
        let last = k.constant(DType::I64, blocking.chunks - 1);
        self.chunk(k, here, &last, true);
    }

    /// One chunk of the input channels: added to the sums, which the last one finishes.
    fn chunk(&self, k: &KernelBuilder, here: &Here, chunk: &Tile, last: bool) {
        let (conv, blocking) = (self.conv, self.blocking);
        let (rows, cols) = (blocking.rows, blocking.cols);
        let channels = match last {
            true => blocking.rest(conv),
            false => blocking.chunk,
        };
        k.for_range(0, &here.band, 1, [], |k, i, []| {
            self.copy_weights(k, here, chunk, &i, channels);
            []
        });
        k.for_range(0, &here.images, 1, [], |k, image, []| {
            self.copy_lines(k, here, chunk, &image, channels);
            k.for_range(0, &here.across, 1, [], |k, j, []| {
                if let Some(windows) = &here.windows {
                    self.gather(k, here, &j, windows, channels);
                }
                k.for_range(0, &here.band, 1, [], |k, i, []| {
                    let home = here.sums.as_ref().map(|sums| {
                        let block = (&image * blocking.across + &j) * blocking.band + &i;
                        sums.at(&(block * (rows * cols))).shape([rows, cols])
                    });
                    let before = match &home {
                        Some(home) => k.load(home.clone()),
                        None => zeros(k, blocking.part, rows, cols),
                    };
                    let sum = self.multiply(k, here, [&i, &j], channels, before);
                    match home {
                        Some(home) if !last => k.store(home, &sum),
                        _ => self.finish(k, here, [&i, &j], &image, sum),
                    }
                    []
                });
                []
            });
            []
        });
    }

    /// Copies what the windows of a block of columns read of some channels: `[channel, kernel][cols]`.
    fn gather(&self, k: &KernelBuilder, here: &Here, j: &Tile, windows: &Mem, channels: i64) {
        let (conv, cols) = (self.conv, self.blocking.cols);
        let lines = self.blocking.lines(conv);
        let mut position = 0;
        for outer in 0..conv.outer_reach() {
            for line in 0..conv.lines.kernel {
                for column in 0..conv.cols.kernel {
                    let at = lines.of_kernel_line(conv, outer, line) + column * lines.column;
                    let from = here
                        .lines
                        .at(&(&here.before + j * cols + at))
                        .shape([channels, cols])
                        .strides([lines.channel, 1]);
                    let to = windows
                        .at(position * cols)
                        .shape([channels, cols])
                        .strides([conv.reach() * cols, 1]);
                    k.store(to, k.load(from));
                    position += 1;
                }
            }
        }
    }

    /// A block's sums over some channels: of what was gathered, or one product for each line of the kernel.
    fn multiply(
        &self,
        k: &KernelBuilder,
        here: &Here,
        [i, j]: [&Tile; 2],
        channels: i64,
        before: Tile,
    ) -> Tile {
        let (conv, blocking) = (self.conv, self.blocking);
        let (rows, cols, width) = (blocking.rows, blocking.cols, conv.cols.kernel);
        let lines = blocking.lines(conv);
        let pitch = blocking.pitch(conv);
        if let Some(windows) = &here.windows {
            let deep = channels * conv.reach();
            let a = here
                .weights
                .at(&(i * (rows * pitch)))
                .shape([rows, deep])
                .strides([pitch, 1])
                .operand([MmaDim::Side, MmaDim::K]);
            let b = windows.at(0).shape([deep, cols]);
            return k.mma(a, b.operand([MmaDim::K, MmaDim::Side]), &before, false);
        }
        let mut sum = before;
        for outer in 0..conv.outer_reach() {
            for line in 0..conv.lines.kernel {
                let first = (outer * conv.lines.kernel + line) * width;
                let a = here
                    .weights
                    .at(&(i * (rows * pitch) + first))
                    .shape([rows, channels, width])
                    .strides([pitch, conv.reach(), 1])
                    .operand([MmaDim::Side, MmaDim::K, MmaDim::K]);
                let at = lines.of_kernel_line(conv, outer, line);
                let b = here
                    .lines
                    .at(&(&here.before + j * cols + at))
                    .shape([channels, width, cols])
                    .strides([lines.channel, lines.column, 1])
                    .operand([MmaDim::K, MmaDim::K, MmaDim::Side]);
                sum = k.mma(a, b, &sum, false);
            }
        }
        sum
    }

    /// Copies a chunk of the weight, for panel `i` of the band: `[rows][chunk, kernel]`.
    fn copy_weights(&self, k: &KernelBuilder, here: &Here, chunk: &Tile, i: &Tile, channels: i64) {
        let (conv, blocking) = (self.conv, self.blocking);
        let (rows, pitch) = (blocking.rows, blocking.pitch(conv));
        let weight = &conv.weight;
        let row = &here.row + i;
        let mut start = &row * (rows * weight.strides[0])
            + chunk * (blocking.chunk * weight.strides[1])
            + weight.base;
        if let Some(group) = &here.group {
            start = start + group * (conv.outputs * weight.strides[0]);
        }
        let rows_left = left(&row, rows, conv.outputs);
        let home = here.weights.at(&(i * (rows * pitch)));
        let copy = |from: &Tile, shape: [i64; 2], strides: [i64; 2], to: i64, apart: i64| {
            let mut window = self.params.mems[weight.buffer]
                .at(from)
                .shape(shape)
                .strides(strides);
            if let Some(rows_left) = &rows_left {
                window = window.valid(0, rows_left);
            }
            let tile = k.load(window).cast(blocking.part);
            let home = match to {
                0 => home.clone(),
                _ => here.weights.at(&(i * (rows * pitch) + to)),
            };
            k.store(home.shape(shape).strides([pitch, apart]), &tile);
        };
        if let Some(along) = conv.weight_along() {
            let shape = [rows, channels * conv.reach()];
            return copy(&start, shape, [weight.strides[0], along], 0, 1);
        }
        for (position, offset) in conv.kernel_offsets().into_iter().enumerate() {
            let strides = [weight.strides[0], weight.strides[1]];
            let from = &start + offset;
            let to = position as i64;
            copy(&from, [rows, channels], strides, to, conv.reach());
        }
    }

    /// The work on the result, on one block.
    fn finish(&self, k: &KernelBuilder, here: &Here, [i, j]: [&Tile; 2], image: &Tile, sum: Tile) {
        let (conv, blocking) = (self.conv, self.blocking);
        let (row, col) = (&here.row + i, &here.col + j);
        let channel = match &here.group {
            Some(group) => group * conv.outputs + &row * blocking.rows,
            None => &row * blocking.rows,
        };
        let mut block = Vec::new();
        let mut start = Vec::new();
        let mut rest = Vec::new();
        let mut push = |size: i64, first: Tile, left: Option<Tile>| {
            block.push(size);
            start.push(Some(first));
            rest.push(left);
        };
        if conv.images > 1 {
            push(1, &here.image + image, None);
        }
        if conv.groups * conv.outputs > 1 {
            let rows_left = left(&row, blocking.rows, conv.outputs);
            push(blocking.rows, channel, rows_left);
        }
        for (axis, place) in conv.outer.iter().zip(&here.outer) {
            if axis.out > 1 {
                push(1, place.clone(), None);
            }
        }
        push(
            blocking.cols,
            &col * blocking.cols,
            left(&col, blocking.cols, conv.places()),
        );
        let tiling = Tiling::of(block);
        let position = start.clone();
        let mut frame = Frame::place(k, self.params, self.nest, &tiling, position, start, rest);
        // A block of one row is a line to the work on it.
        let sum = match blocking.rows {
            1 => sum.reshape([blocking.cols]),
            _ => sum,
        };
        frame.give(0, sum);
        for node in 0..self.nest.values.len() {
            frame.value(node);
        }
        for store in &self.nest.stores {
            frame.store(store.value, &store.window);
        }
    }
}
