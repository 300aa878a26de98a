//! The copy of the lines of `x` that some windows touch.
//!
//! ```text
//!   [channel][position along the outer dims][column of the kernel][kind of line][line][output column]
//! ```
//!
//! A line of the copy holds, for one column of the kernel, what each output column reads: shifted, every `stride`-th element, zero outside of `x`. Lines that a stride takes apart
//! (the even and the odd ones of stride 2) are of different kinds, so that those of neighbouring output lines always follow each other.

use oxyfuel_base::DType;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp};

use super::shape::{Axis, Convolution};
use super::{Here, Work};
use crate::tile::ceil_div;

/// Where things lie in the copy, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Output columns of a line.
    pub width: i64,
    /// Lines of a kind.
    pub count: i64,
    /// First lines of the kinds that some line of the kernel reads.
    pub kinds: Vec<i64>,
    /// From one of the kernel's columns to the next, and from one channel to the next.
    pub column: i64,
    pub channel: i64,
}

impl Lines {
    /// The lines behind `places` output positions that begin anywhere, or with the first of an image.
    pub fn of(conv: &Convolution, places: i64, from_first: bool) -> Self {
        let lines = &conv.lines;
        let (width, count, kinds) = if conv.is_line() {
            (places, 1, vec![0])
        } else {
            let width = conv.cols.out;
            let before = if from_first { 0 } else { width - 1 };
            let touched = ceil_div(before + places, width);
            let further = (lines.kernel - 1) * lines.dilation / lines.stride;
            let mut kinds: Vec<i64> = (0..lines.kernel)
                .map(|line| line * lines.dilation % lines.stride)
                .collect();
            kinds.sort_unstable();
            kinds.dedup();
            (width, touched + further, kinds)
        };
        let column = width * count * kinds.len() as i64;
        // An odd number of cache lines, so that channels do not share sets.
        let line = 64 / conv.part.size() as i64;
        let all = conv.outer_reach() * conv.cols.kernel * column;
        Self {
            width,
            count,
            kinds,
            column,
            channel: (ceil_div(all, line) | 1) * line,
        }
    }

    /// Where a line of the kernel finds its first output line.
    pub fn of_kernel_line(&self, conv: &Convolution, outer: i64, line: i64) -> i64 {
        let ahead = line * conv.lines.dilation;
        let kind = self.kind(ahead % conv.lines.stride);
        let line = kind * self.count + ahead / conv.lines.stride;
        self.at(conv, outer, 0) + line * self.width
    }

    fn kind(&self, first: i64) -> i64 {
        let kind = self.kinds.iter().position(|&kind| kind == first);
        kind.unwrap_or(0) as i64
    }

    /// The first element for a position along the outer dims and a column of the kernel.
    fn at(&self, conv: &Convolution, outer: i64, column: i64) -> i64 {
        (outer * conv.cols.kernel + column) * self.column
    }
}

/// Output columns whose window has its column inside of `x`: the first, and the one behind the last.
fn inside(axis: &Axis, column: i64) -> (i64, i64) {
    let ahead = column * axis.dilation - axis.padding;
    let first = ceil_div((-ahead).max(0), axis.stride).min(axis.out);
    let room = axis.size - ahead;
    let end = ceil_div(room.max(0), axis.stride).min(axis.out);
    (first, end.max(first))
}

/// Both, where there are both.
fn both(a: Option<Tile>, b: Option<Tile>) -> Option<Tile> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.binary(BinaryOp::And, &b)),
        (a, b) => a.or(b),
    }
}

impl Work<'_> {
    /// Shapes of the tiles that are copied.
    pub fn line_shapes(&self, channels: i64) -> Vec<[i64; 2]> {
        let conv = self.conv;
        if conv.is_line() {
            return vec![[channels, self.blocking.cols]];
        }
        let lengths = (0..conv.cols.kernel).flat_map(|column| {
            let (first, end) = inside(&conv.cols, column);
            [first, end - first, conv.cols.out - end]
        });
        let lengths = lengths.filter(|&length| length > 0);
        lengths.map(|length| [channels, length]).collect()
    }

    /// Fills the ends of lines that lie in the padding whatever is copied.
    pub fn clear_edges(&self, k: &KernelBuilder, here: &Here) {
        let conv = self.conv;
        if conv.is_line() {
            return;
        }
        let lines = self.blocking.lines(conv);
        let all = lines.count * lines.kinds.len() as i64;
        let edges = |column: i64| {
            let (first, end) = inside(&conv.cols, column);
            let edges = [(0, first), (end, conv.cols.out - end)];
            edges.into_iter().filter(|edge| edge.1 > 0)
        };
        if (0..conv.cols.kernel).all(|column| edges(column).next().is_none()) {
            return;
        }
        k.for_range(0, all, 1, [], |k, line, []| {
            for outer in 0..conv.outer_reach() {
                for column in 0..conv.cols.kernel {
                    for (first, length) in edges(column) {
                        let at = &line * lines.width + (lines.at(conv, outer, column) + first);
                        self.clear(k, here, &at, [self.blocking.chunk, length]);
                    }
                }
            }
            []
        });
    }

    fn clear(&self, k: &KernelBuilder, here: &Here, at: &Tile, shape: [i64; 2]) {
        let lines = self.blocking.lines(self.conv);
        let zero = k.full(self.blocking.part, shape, 0.0);
        let home = here.lines.at(at).shape(shape).strides([lines.channel, 1]);
        k.store(home, &zero);
    }

    /// Copies what the windows of an image read of some channels.
    pub fn copy_lines(
        &self,
        k: &KernelBuilder,
        here: &Here,
        chunk: &Tile,
        image: &Tile,
        channels: i64,
    ) {
        let (conv, x) = (self.conv, &self.conv.x);
        let mut start = (&here.image + image) * x.strides[0]
            + chunk * (self.blocking.chunk * x.strides[1])
            + x.base;
        if let Some(group) = &here.group {
            start = start + group * (conv.channels * x.strides[1]);
        }
        for outer in 0..conv.outer_reach() {
            let (mut from, mut exists) = (start.clone(), None);
            let position = conv.outer_position(outer);
            for ((axis, place), kernel) in conv.outer.iter().zip(&here.outer).zip(position) {
                let at = place * axis.stride + (kernel * axis.dilation - axis.padding);
                if axis.padding > 0 {
                    let above = at.compare(CompareOp::Ge, 0i64);
                    let below = at.compare(CompareOp::Lt, axis.size);
                    exists = both(exists, both(Some(above), Some(below)));
                }
                from = from + at * axis.step;
            }
            match conv.is_line() {
                true => self.copy_line(k, here, outer, &from, exists.as_ref(), channels),
                false => self.copy_many(k, here, outer, &from, exists.as_ref(), channels),
            }
        }
    }

    /// All lines, one output line after the other.
    fn copy_many(
        &self,
        k: &KernelBuilder,
        here: &Here,
        outer: i64,
        from: &Tile,
        exists: Option<&Tile>,
        channels: i64,
    ) {
        let (conv, cols) = (self.conv, &self.conv.cols);
        let lines = self.blocking.lines(conv);
        k.for_range(0, lines.count, 1, [], |k, line, []| {
            for (kind, first) in lines.kinds.iter().enumerate() {
                let at = (&here.line + &line) * conv.lines.stride + (first - conv.lines.padding);
                let below = at.compare(CompareOp::Lt, conv.lines.size);
                let above = (conv.lines.padding > 0).then(|| at.compare(CompareOp::Ge, 0i64));
                let within = both(both(Some(below), above), exists.cloned());
                let from = from + &at * conv.lines.step;
                let each = |k: &KernelBuilder, there: bool| {
                    for column in 0..cols.kernel {
                        let (first, end) = inside(cols, column);
                        if first == end {
                            continue;
                        }
                        let home =
                            lines.at(conv, outer, column) + kind as i64 * lines.count * lines.width;
                        let to = &line * lines.width + (home + first);
                        let shape = [channels, end - first];
                        if !there {
                            self.clear(k, here, &to, shape);
                            continue;
                        }
                        let ahead = first * cols.stride + column * cols.dilation - cols.padding;
                        let window = self.params.mems[conv.x.buffer]
                            .at(&(&from + ahead * cols.step))
                            .shape(shape)
                            .strides([conv.x.strides[1], cols.stride * cols.step]);
                        let tile = k.load(window).cast(self.blocking.part);
                        let home = here.lines.at(&to).shape(shape);
                        k.store(home.strides([lines.channel, 1]), &tile);
                    }
                };
                if let Some(within) = within {
                    k.when(&within, |k| each(k, true));
                    let none = within.compare(CompareOp::Eq, false);
                    k.when(&none, |k| each(k, false));
                }
            }
            []
        });
    }

    /// The part of one line that belongs to the instance's columns, block by block.
    fn copy_line(
        &self,
        k: &KernelBuilder,
        here: &Here,
        outer: i64,
        from: &Tile,
        exists: Option<&Tile>,
        channels: i64,
    ) {
        let (conv, cols, width) = (self.conv, &self.conv.cols, self.blocking.cols);
        let lines = self.blocking.lines(conv);
        let shape = [channels, width];
        let copy = |k: &KernelBuilder, j: &Tile, column: i64| {
            let ahead = column * cols.dilation - cols.padding;
            let place = (&here.col + j) * (width * cols.stride) + ahead;
            let mut window = self.params.mems[conv.x.buffer]
                .at(&(from + &place * cols.step))
                .shape(shape)
                .strides([conv.x.strides[1], cols.stride * cols.step]);
            let rest =
                (&place * -1 + (cols.size + cols.stride - 1)).binary(BinaryOp::Div, cols.stride);
            if cols.padding > 0 {
                // Bounds have no beginning: what lies before the line is masked.
                let places = k.iota(DType::I64, [1, width], 1) * cols.stride + &place;
                let above = places.compare(CompareOp::Ge, 0i64);
                let below = places.compare(CompareOp::Lt, cols.size);
                let mask = above.binary(BinaryOp::And, &below).broadcast_to(shape);
                window = window.mask(&mask);
            } else if cols.size < self.reached(column) {
                window = window.valid(
                    1,
                    rest.binary(BinaryOp::Max, 0i64)
                        .binary(BinaryOp::Min, width),
                );
            }
            let tile = k.load(window).cast(self.blocking.part);
            let to = j * width + lines.at(conv, outer, column);
            let home = here.lines.at(&to).shape(shape);
            k.store(home.strides([lines.channel, 1]), &tile);
        };
        let all = |k: &KernelBuilder, there: bool| {
            k.for_range(0, &here.across, 1, [], |k, j, []| {
                for column in 0..cols.kernel {
                    if there {
                        copy(k, &j, column);
                    } else {
                        let to = &j * width + lines.at(conv, outer, column);
                        self.clear(k, here, &to, shape);
                    }
                }
                []
            });
        };
        match exists {
            None => all(k, true),
            Some(exists) => {
                k.when(exists, |k| all(k, true));
                let none = exists.compare(CompareOp::Eq, false);
                k.when(&none, |k| all(k, false));
            }
        }
    }

    /// The end of what blocks of columns read of a line, for a column of the kernel.
    fn reached(&self, column: i64) -> i64 {
        let places = self.blocking.col_blocks(self.conv) * self.blocking.cols;
        let cols = &self.conv.cols;
        (places - 1) * cols.stride + column * cols.dilation - cols.padding + 1
    }
}
