//! The lines of an image that some windows touch, copied with zeros around them.
//!
//! ```text
//!   [line][column][channel, filled up for a matrix unit], from `padding` lines and columns before the first one on
//! ```

use oxyfuel_base::DType;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp};

use super::shape::Images;
use crate::map::Spread;
use crate::packed::lay_out;
use crate::tile::ceil_div;

/// Columns that are turned together: the lanes of the widest vectors.
const SQUARE: i64 = 16;

/// The sizes of the copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    pub count: i64,
    pub columns: i64,
    /// Columns of zeros before, columns of the image, columns of zeros after.
    before: i64,
    pub(super) inner: i64,
    after: i64,
    /// Channels that are copied at once: of a volume, those of one plane.
    channels: i64,
    /// Elements of a pixel, and how many of them are channels, which come first; the rest is zero.
    pub(super) padded: i64,
    filled: i64,
}

impl Lines {
    /// So many lines, as wide as `columns` from the padding on.
    pub fn of(images: &Images, count: i64, columns: i64) -> Self {
        let before = images.cols.padding.min(columns);
        let inner = images.cols.size.min(columns - before);
        Self {
            count,
            columns,
            before,
            inner,
            after: columns - before - inner,
            channels: images.of_tap(),
            padded: images.padded,
            filled: images.channels,
        }
    }

    /// Elements from one line to the next.
    pub fn pitch(&self) -> i64 {
        self.columns * self.padded
    }

    pub fn elements(&self) -> i64 {
        self.count * self.pitch()
    }

    /// Whether columns lie side by side, and channels apart: the copy is turned, square by square. The last one has columns of the one before, too, where columns are no whole squares.
    fn is_turned(&self, images: &Images) -> bool {
        images.cols.step == 1 && images.channel_step != 1 && self.inner >= SQUARE
    }

    /// Whether lines are single pixels that lie side by side, and channels apart: they are turned as columns are.
    fn is_turned_down(&self, images: &Images) -> bool {
        images.cols.size == 1
            && self.columns == 1
            && images.lines.step == 1
            && images.channel_step != 1
            && self.count >= SQUARE
    }

    /// Copies some columns of a line.
    fn copy_columns(
        &self,
        k: &KernelBuilder,
        images: &Images,
        from: Window,
        to: Window,
        columns: i64,
    ) {
        let shape = [columns, self.channels];
        let steps = [images.cols.step, images.channel_step];
        let tile = k.load(from.shape(shape).strides(steps));
        k.store(to.shape(shape).strides([self.padded, 1]), &tile);
    }

    /// Whether what is copied of a line is one run of memory.
    fn is_run(images: &Images) -> bool {
        images.channel_step == 1
            && images.cols.step == images.channels
            && images.padded == images.channels
            && images.taps() == 1
    }

    pub fn lay_out(&self, k: &KernelBuilder, spread: &Spread, images: &Images) {
        for columns in [self.before, self.after, self.inner] {
            let run = [columns * self.padded];
            if columns > 0 {
                k.layout_shape(run, spread.layout(&run, &run));
            }
        }
        if let Some(joined) = &images.joined {
            joined.lay_out(k, spread, images);
        } else if !Self::is_run(images) {
            let squares = self.is_turned(images) || self.is_turned_down(images);
            if squares {
                lay_out(k, spread, &[SQUARE, self.channels]);
            }
            if !squares || images.taps() > 1 || self.is_turned_down(images) {
                lay_out(k, spread, &[self.inner, self.channels]);
            }
        }
        if self.padded > self.filled {
            lay_out(k, spread, &[self.inner, self.padded - self.filled]);
        }
    }

    pub(super) fn clear(
        &self,
        k: &KernelBuilder,
        images: &Images,
        to: &Mem,
        at: &Tile,
        columns: i64,
    ) {
        if columns > 0 {
            let run = [columns * self.padded];
            let zero = k.full(images.dtype, run, 0.0);
            k.store(to.at(at).shape(run), &zero);
        }
    }

    /// Fills the columns, and the channels, that are zero whatever is copied.
    pub fn clear_edges(&self, k: &KernelBuilder, images: &Images, (to, home): (&Mem, &Tile)) {
        let rest = self.padded - self.filled;
        if self.before + self.after + rest == 0 {
            return;
        }
        k.for_range(0, self.count, 1, [], |k, line, []| {
            let start = home + &line * self.pitch();
            self.clear(k, images, to, &start, self.before);
            let behind = (self.before + self.inner) * self.padded;
            self.clear(k, images, to, &(&start + behind), self.after);
            if rest > 0 {
                let shape = [self.inner, rest];
                let first = to.at(start + (self.before * self.padded + self.filled));
                let zero = k.full(images.dtype, shape, 0.0);
                k.store(first.shape(shape).strides([self.padded, 1]), &zero);
            }
            []
        });
    }

    /// Copies the lines from `first` on, which may lie before the image or behind it.
    pub fn copy(
        &self,
        k: &KernelBuilder,
        images: &Images,
        from: &Mem,
        (to, home): (&Mem, &Tile),
        [image, first]: [&Tile; 2],
    ) {
        let Some(depth) = &images.depth else {
            let start = image * images.image_step + images.base;
            return self.copy_from(k, images, (from, &start), (to, home), first);
        };
        // Of a volume, each plane that a plane of the result reads has its channels of every pixel.
        let [image, plane] = [BinaryOp::Div, BinaryOp::Rem].map(|op| image.binary(op, depth.out));
        let start = image * images.image_step + images.base;
        for tap in 0..depth.kernel {
            let plane = &plane * depth.stride + (tap * depth.dilation - depth.padding);
            let start = &start + &plane * depth.step;
            let home = home + tap * self.channels;
            let copy = |k: &KernelBuilder| {
                self.copy_from(k, images, (from, &start), (to, &home), first);
            };
            if depth.padding == 0 {
                copy(k);
                continue;
            }
            let within = within(&plane, depth.size);
            k.when(&within, copy);
            let beyond = within.compare(CompareOp::Eq, k.constant(DType::Bool, false));
            k.when(&beyond, |k| {
                k.for_range(0, self.count, 1, [], |k, line, []| {
                    let home = &home + (&line * self.pitch() + self.before * self.padded);
                    self.clear_inner(k, images, to, &home);
                    []
                });
            });
        }
    }

    /// Zeros for the copied columns of a line, of the channels that are copied at once.
    fn clear_inner(&self, k: &KernelBuilder, images: &Images, to: &Mem, home: &Tile) {
        if images.taps() == 1 {
            return self.clear(k, images, to, home, self.inner);
        }
        let shape = [self.inner, self.channels];
        let zero = k.full(images.dtype, shape, 0.0);
        k.store(to.at(home).shape(shape).strides([self.padded, 1]), &zero);
    }

    /// The same of an image that begins there, perhaps with one of its channels.
    pub fn copy_from(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (from, start): (&Mem, &Tile),
        (to, home): (&Mem, &Tile),
        first: &Tile,
    ) {
        let joined = images.joined.as_ref();
        let joined = joined.map(|joined| (joined, joined.place(k, images)));
        let line_of = |k: &KernelBuilder, source: &Tile, home: &Tile| {
            if let Some((joined, place)) = &joined {
                joined.copy(k, images, (from, source), place, (to, home));
            } else if Self::is_run(images) {
                let run = [self.inner * self.padded];
                let tile = k.load(from.at(source).shape(run));
                k.store(to.at(home).shape(run), &tile);
            } else if self.is_turned(images) {
                let column = |k: &KernelBuilder, first: &Tile| {
                    let to = to.at(home + first * self.padded);
                    self.copy_columns(k, images, from.at(source + first), to, SQUARE);
                };
                k.for_range(0, self.inner / SQUARE, 1, [], |k, square, []| {
                    column(k, &(square * SQUARE));
                    []
                });
                if self.inner % SQUARE > 0 {
                    column(k, &k.constant(DType::I64, self.inner - SQUARE));
                }
            } else {
                self.copy_columns(k, images, from.at(source), to.at(home), self.inner);
            }
        };
        let none = |k: &KernelBuilder, home: &Tile| self.clear_inner(k, images, to, home);
        if !self.is_turned_down(images) {
            let all = [
                first,
                &k.constant(DType::I64, 0),
                &k.constant(DType::I64, self.count),
            ];
            return self.each_line(k, images, (start, home), all, line_of, none);
        }
        // Squares of pixels; the last one has some of the one before, too.
        let squares = ceil_div(self.count, SQUARE);
        k.for_range(0, squares, 1, [], |k, square, []| {
            let line = (square * SQUARE).binary(BinaryOp::Min, self.count - SQUARE);
            let (from_line, behind) = (first + &line, first + &line + SQUARE);
            let whole = from_line.compare(CompareOp::Ge, 0i64).binary(
                BinaryOp::And,
                behind.compare(CompareOp::Le, images.lines.size),
            );
            k.when(&whole, |k| {
                let shape = [SQUARE, self.channels];
                let window = from.at(start + &from_line).shape(shape);
                let tile = k.load(window.strides([1, images.channel_step]));
                let to = to.at(home + &line * self.pitch()).shape(shape);
                k.store(to.strides([self.pitch(), 1]), &tile);
            });
            let cut = whole.compare(CompareOp::Eq, k.constant(DType::Bool, false));
            k.when(&cut, |k| {
                let some = [first, &line, &(&line + SQUARE)];
                self.each_line(k, images, (start, home), some, line_of, none);
            });
            []
        });
    }

    /// Copies an image with channels last so that each of so many vectors of channels, which these lines are of, is a copy of its own, one behind the other: what is read is read in order.
    pub fn copy_apart(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (from, start): (&Mem, &Tile),
        (to, home): (&Mem, &Tile),
        first: &Tile,
        vectors: i64,
    ) {
        let shape = self.apart(vectors);
        let strides = |column: i64, vector: i64| match shape.len() {
            2 => vec![vector, 1],
            _ => vec![column, vector, 1],
        };
        let line_of = |k: &KernelBuilder, source: &Tile, home: &Tile| {
            let from = from.at(source).shape(&shape);
            let tile = k.load(from.strides(strides(images.cols.step, self.channels)));
            let to = to.at(home).shape(&shape);
            k.store(to.strides(strides(self.padded, self.elements())), &tile);
        };
        let all = [
            first,
            &k.constant(DType::I64, 0),
            &k.constant(DType::I64, self.count),
        ];
        let none = |k: &KernelBuilder, home: &Tile| {
            k.for_range(0, vectors, 1, [], |k, vector, []| {
                let home = home + vector * self.elements();
                self.clear(k, images, to, &home, self.inner);
                []
            });
        };
        self.each_line(k, images, (start, home), all, line_of, none);
    }

    /// The tile that holds so many vectors of a line.
    fn apart(&self, vectors: i64) -> Vec<i64> {
        match self.inner {
            1 => vec![vectors, self.channels],
            inner => vec![inner, vectors, self.channels],
        }
    }

    pub fn lay_out_apart(&self, k: &KernelBuilder, spread: &Spread, vectors: i64) {
        let shape = self.apart(vectors);
        k.layout_shape(&shape, spread.layout(&shape, &shape));
    }

    /// Goes through some lines of the copy, whose first one is `first` of the image: where each begins there, or that there is none, and where its columns are copied to.
    pub(super) fn each_line(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (start, home): (&Tile, &Tile),
        [first, begin, end]: [&Tile; 3],
        copy: impl Fn(&KernelBuilder, &Tile, &Tile),
        none: impl Fn(&KernelBuilder, &Tile),
    ) {
        k.for_range(begin, end, 1, [], |k, line, []| {
            let at = first + &line;
            let home = home + (&line * self.pitch() + self.before * self.padded);
            let within = within(&at, images.lines.size);
            k.when(&within, |k| {
                copy(k, &(start + &at * images.lines.step), &home);
            });
            let beyond = within.compare(CompareOp::Eq, k.constant(DType::Bool, false));
            k.when(&beyond, |k| none(k, &home));
            []
        });
    }
}

/// Whether a position is one of so many.
fn within(at: &Tile, size: i64) -> Tile {
    let from = at.compare(CompareOp::Ge, 0i64);
    from.binary(BinaryOp::And, at.compare(CompareOp::Lt, size))
}
