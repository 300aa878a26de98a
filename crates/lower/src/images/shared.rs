//! Copied lines for vectors whose lanes are output channels of several groups: each lane has a channel of its own group, so that no group is multiplied with another's.
//!
//! ```text
//!   output channels of a vector    g g g g h h h h ..          groups of four
//!   copy c of a pixel              x[g, c] four times, x[h, c] four times, ..
//!
//!   [vector][c][line][column][lane]                            as many copies as a group has channels
//! ```

use oxyfuel_base::DType;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};

use super::lines::Lines;
use super::shape::Images;
use crate::map::Spread;
use crate::packed::lay_out;

/// Output channels of a group.
fn outputs(images: &Images) -> i64 {
    images.n / images.groups
}

impl Lines {
    pub fn lay_out_shared(&self, k: &KernelBuilder, spread: &Spread, images: &Images) {
        lay_out(k, spread, &[self.inner, outputs(images)]);
    }

    /// Copies the lines of an image for so many vectors, whose first channel is at `start`.
    pub fn copy_shared(
        &self,
        k: &KernelBuilder,
        images: &Images,
        (from, start): (&Mem, &Tile),
        to: &Mem,
        first: &Tile,
        vectors: i64,
    ) {
        let (own, inputs, step) = (outputs(images), images.span(), images.channel_step);
        let several = images.in_panel();
        let shape = [self.inner, own];
        let line_of = |k: &KernelBuilder, source: &Tile, home: &Tile| {
            k.for_range(0, vectors * inputs, 1, [], |k, copy, []| {
                let [vector, channel] = split(k, &copy, inputs);
                let source = source + (vector * (several * inputs) + channel) * step;
                let home = home + copy * self.elements();
                for group in 0..several {
                    let from = from.at(&source + group * inputs * step).shape(shape);
                    let tile = k.load(from.strides([images.cols.step, 0]));
                    let to = to.at(&home + group * own).shape(shape);
                    k.store(to.strides([self.padded, 1]), &tile);
                }
                []
            });
        };
        let none = |k: &KernelBuilder, home: &Tile| {
            k.for_range(0, vectors * inputs, 1, [], |k, copy, []| {
                self.clear(k, images, to, &(home + copy * self.elements()), self.inner);
                []
            });
        };
        let (zero, all) = (
            k.constant(DType::I64, 0),
            k.constant(DType::I64, self.count),
        );
        self.each_line(
            k,
            images,
            (start, &zero),
            [first, &zero, &all],
            line_of,
            none,
        );
    }
}

/// A number by rows of so many: its row, and its place there.
fn split(k: &KernelBuilder, number: &Tile, of: i64) -> [Tile; 2] {
    use oxyfuel_kernel::ir::BinaryOp;
    match of {
        1 => [number.clone(), k.constant(DType::I64, 0)],
        _ => [BinaryOp::Div, BinaryOp::Rem].map(|op| number.binary(op, of)),
    }
}
