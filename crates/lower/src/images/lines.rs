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

/// Columns that are turned together: the lanes of the widest vectors.
const SQUARE: i64 = 16;

/// The sizes of the copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    pub count: i64,
    pub columns: i64,
    /// Columns of zeros before, columns of the image, columns of zeros after.
    before: i64,
    inner: i64,
    after: i64,
    channels: i64,
    /// Elements of a pixel, of which channels come first; the rest is zero.
    padded: i64,
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
            channels: images.channels,
            padded: images.padded,
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
            let columns = if self.is_turned(images) {
                SQUARE
            } else {
                self.inner
            };
            lay_out(k, spread, &[columns, self.channels]);
        }
        if self.padded > self.channels {
            lay_out(k, spread, &[self.inner, self.padded - self.channels]);
        }
    }

    fn clear(&self, k: &KernelBuilder, images: &Images, to: &Mem, at: &Tile, columns: i64) {
        if columns > 0 {
            let run = [columns * self.padded];
            let zero = k.full(images.dtype, run, 0.0);
            k.store(to.at(at).shape(run), &zero);
        }
    }

    /// Fills the columns, and the channels, that are zero whatever is copied.
    pub fn clear_edges(&self, k: &KernelBuilder, images: &Images, (to, home): (&Mem, &Tile)) {
        let rest = self.padded - self.channels;
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
                let first = to.at(start + (self.before * self.padded + self.channels));
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
        let start = image * images.image_step + images.base;
        self.copy_from(k, images, (from, &start), (to, home), first);
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
        let none = |k: &KernelBuilder, home: &Tile| self.clear(k, images, to, home, self.inner);
        self.each_line(k, images, (start, home), first, line_of, none);
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
        let none = |k: &KernelBuilder, home: &Tile| {
            k.for_range(0, vectors, 1, [], |k, vector, []| {
                let home = home + vector * self.elements();
                self.clear(k, images, to, &home, self.inner);
                []
            });
        };
        self.each_line(k, images, (start, home), first, line_of, none);
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

    /// Goes through the lines from `first` on: where one begins in the image, or that there is none, and where its columns are copied to.
    fn each_line(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (start, home): (&Tile, &Tile),
        first: &Tile,
        copy: impl Fn(&KernelBuilder, &Tile, &Tile),
        none: impl Fn(&KernelBuilder, &Tile),
    ) {
        k.for_range(0, self.count, 1, [], |k, line, []| {
            let at = first + &line;
            let home = home + (&line * self.pitch() + self.before * self.padded);
            let within = at
                .compare(CompareOp::Ge, 0i64)
                .binary(BinaryOp::And, at.compare(CompareOp::Lt, images.lines.size));
            k.when(&within, |k| {
                copy(k, &(start + &at * images.lines.step), &home);
            });
            let beyond = within.compare(CompareOp::Eq, k.constant(DType::Bool, false));
            k.when(&beyond, |k| none(k, &home));
            []
        });
    }
}
