//! Images of few channels on a matrix unit: what a window reads of a line is one pixel.
//!
//! ```text
//!   a line of x, with zeros around it      [column][c]     or, where channels lie apart,   [c][column]          first-level cache
//!   what each window reads of it           [out column][kernel column, c, zeros]           [.. c, kernel column, zeros]
//! ```
//!
//! Channels are filled up to whole steps of the unit, of which three would leave one in ten that counts. A window of 7 columns of 3 channels has 21 numbers in a line, which fill most of one step. To the product that is an image with so many channels, whose
//! kernel has one column.

use oxyfuel_base::Expr;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, Space};

use super::pack::Panels;
use super::shape::{Axis, Images, STEP};
use crate::map::Spread;
use crate::packed::lay_out;
use crate::rows::left;
use crate::tile::ceil_div;

/// The columns and channels of the image itself.
#[derive(Clone, Debug)]
pub struct Joined {
    cols: Axis,
    channels: i64,
    channel_step: i64,
}

impl Joined {
    /// Joins columns of the kernel with channels, where that leaves fewer zeros, and lines lie as runs.
    pub fn of(images: Images) -> Images {
        let (cols, channels) = (images.cols.clone(), images.channels);
        let all = cols.kernel * channels;
        let joined = ceil_div(all, STEP) * STEP;
        let is_run = images.channel_step == 1 && cols.step == channels;
        let pays = joined * 4 <= cols.kernel * images.padded * 3;
        if images.unit.is_none() || !pays || !(is_run || cols.step == 1) {
            return images;
        }
        Images {
            channels: all,
            padded: joined,
            cols: Axis {
                size: cols.out,
                kernel: 1,
                stride: 1,
                padding: 0,
                ..cols.clone()
            },
            joined: Some(Self {
                cols,
                channels,
                channel_step: images.channel_step,
            }),
            ..images
        }
    }

    /// Runs that a window's pixel is made of, and the elements of each: all of it, or columns of one channel after those of another.
    fn runs(&self) -> (i64, i64) {
        match self.channel_step {
            1 => (1, self.cols.kernel * self.channels),
            _ => (self.channels, self.cols.kernel),
        }
    }

    /// Elements of a copied line for each run, and from one column of it to the next.
    fn line(&self) -> (i64, i64) {
        let cols = &self.cols;
        let read = (cols.out - 1) * cols.stride + cols.kernel;
        let columns = read.max(cols.padding + cols.size);
        let pixel = match self.channel_step {
            1 => self.channels,
            _ => 1,
        };
        (columns * pixel, pixel)
    }

    pub fn lay_out(&self, k: &KernelBuilder, spread: &Spread, images: &Images) {
        let ((runs, length), (line, pixel)) = (self.runs(), self.line());
        for run in [[runs * line], [self.cols.size * pixel]] {
            k.layout_shape(run, spread.layout(&run, &run));
        }
        lay_out(k, spread, &[self.cols.out, length]);
        lay_out(k, spread, &[1, images.width]);
    }

    /// A place for a line, with zeros where nothing is copied to.
    pub fn place(&self, k: &KernelBuilder, images: &Images) -> Mem {
        let run = [self.runs().0 * self.line().0];
        let place = k.alloc(Space::Panel, images.dtype, run[0], None);
        k.store(place.at(0).shape(run), k.full(images.dtype, run, 0.0));
        place
    }

    /// Copies a line, and what its windows read to their pixels.
    pub fn copy(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (from, at): (&Mem, &Tile),
        place: &Mem,
        (to, home): (&Mem, &Tile),
    ) {
        let ((runs, length), (line, pixel)) = (self.runs(), self.line());
        let cols = &self.cols;
        k.for_range(0, runs, 1, [], |k, run, []| {
            let all = [cols.size * pixel];
            let tile = k.load(from.at(at + &run * self.channel_step).shape(all));
            k.store(
                place.at(&run * line + cols.padding * pixel).shape(all),
                &tile,
            );
            []
        });
        k.for_range(0, runs, 1, [], |k, run, []| {
            let shape = [cols.out, length];
            let windows = place.at(&run * line).shape(shape);
            let tile = k.load(windows.strides([cols.stride * pixel, 1]));
            let pixels = to.at(home + &run * length).shape(shape);
            k.store(pixels.strides([images.padded, 1]), &tile);
            []
        });
    }

    /// A phase that makes the panels: an instance has a line of the kernel for one of them, row by row, since there are few.
    pub fn pack(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (weight, [across, channel, down, along]): (&Mem, [i64; 4]),
        panels: &Panels,
    ) {
        let (width, pack) = (images.width, images.unit.map_or(1, |unit| unit.pack));
        let grid = [images.lines.kernel, images.panels()].map(Expr::constant);
        // The slower and the faster of column and channel, by the order of a pixel.
        let (slow, fast) = match self.channel_step {
            1 => ([self.cols.kernel, along], [self.channels, channel]),
            _ => ([self.channels, channel], [self.cols.kernel, along]),
        };
        k.phase(grid, |k| {
            let (line, panel) = (k.program_id(0), k.program_id(1));
            let first = &panel * (width * across) + &line * down + images.weight_base;
            let home = panels.home(&panel) + &line * (images.padded * width);
            let rest = left(&panel, width, images.n);
            let store = |k: &KernelBuilder, row: &Tile, tile: &Tile| {
                let side = row.binary(BinaryOp::Rem, pack);
                let at = &home + (row - &side) * width + &side;
                let to = panels.mem.at(at).shape([1, width]);
                k.store(to.strides([width * pack, pack]), tile);
            };
            k.for_range(0, slow[0], 1, [], |k, i, []| {
                k.for_range(0, fast[0], 1, [], |k, j, []| {
                    let from = weight.at(&first + &i * slow[1] + &j * fast[1]);
                    let from = from.shape([1, width]).strides([1, across]);
                    let tile = k.load(match &rest {
                        Some(rest) => from.valid(1, rest),
                        None => from,
                    });
                    store(k, &(&i * fast[0] + &j), &tile);
                    []
                });
                []
            });
            if images.padded > images.channels {
                k.for_range(images.channels, images.padded, 1, [], |k, row, []| {
                    store(k, &row, &k.full(images.dtype, [1, width], 0.0));
                    []
                });
            }
        });
    }
}
