//! Output channels of a vector have channels of their own: windows are summed along the output channels of a pixel, with the kernel's positions in registers.
//!
//! ```text
//!   for each image of an instance, whose lines are copied:                      [vector of output channels][channel][line][column][lane]      second-level cache
//!     some lines at a time, for each vector:
//!       sums[line, column, lanes] = channels of a group, positions of the kernel, each a vector * lines[channel, .. at the position ..]
//! ```
//!
//! Where every channel has a kernel of its own, groups have one channel, and lanes lie side by side as they do in the image. Where groups of several channels share a vector, lines are copied once for each channel of a group ([`Lines::copy_shared`]): there
//! is nothing of another group to multiply with zero. Some channels at a time are summed, as many as registers hold the positions of.
//!
//! Vectors of channels are copied apart from each other: pixels of 384 channels, say, would all lie in a few sets of the first-level cache. All vectors of some lines are done before the next lines, so that results are written
//! where the last ones were, and not one line of the cache in every pixel of an image. A position of the kernel takes one multiply-add with an operand in the first-level cache, so that reading and arithmetic take as long as each other. Kernels of more positions than there are registers are summed
//! in pieces, with sums of some lines in the first-level cache between them.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window};
use oxyfuel_kernel::ir::Space;
use oxyfuel_plan::TargetDesc;

use super::lines::Lines;
use super::shape::Images;
use super::{Block, divisors, finish, parts};
use crate::map::{Spread, vector};
use crate::nest::Nest;
use crate::packed::lay_out;
use crate::rows::left;
use crate::size::Params;
use crate::tile::ceil_div;

/// Positions of the largest kernel: each has code of its own.
pub const MOST_POSITIONS: i64 = 128;
/// Sums between two pieces of a kernel, in vectors: a part of the first-level cache.
const BETWEEN: i64 = 128;
/// Sums of a kernel of one piece before the next vector of channels has its turn: what they read of the lines is in the first-level cache.
const TURN: i64 = 256;
/// Bytes of images and results from which on they are in memory, where whole pages are read faster than parts of each pixel.
const FAR: i64 = 16 << 20;
/// Positions of the kernel that are turned together: the lanes of the widest vectors.
const SQUARE: i64 = 16;

/// Positions from which on a sum of them all would be waited for: two are added up side by side.
const LONG: i64 = 12;

fn both(one: Option<Tile>, other: Option<Tile>) -> Option<Tile> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, None) => one,
        (None, other) => other,
    }
}

/// Whether so many lines of one column can be cut into parts that are worth summing together.
pub fn cuts(lines: i64) -> bool {
    divisors(lines).any(|part| (SQUARE..=TURN).contains(&part))
}

/// What things cost, in cycles of a worker: only their ratios matter.
mod cost {
    /// To copy an element of the lines, of parts of pixels in memory, and of the weight.
    pub const COPY: f64 = 0.15;
    pub const PART: f64 = 0.3;
    pub const WEIGHT: f64 = 1.0;
    /// To copy a channel for all output channels of its group.
    pub const SHARED: f64 = 1.2;
    pub const INSTANCE: f64 = 1_000.0;
}

/// The sizes of all loops.
#[derive(Clone, Debug)]
struct Blocking {
    /// Images, output lines and vectors of channels that an instance has.
    images: i64,
    band: i64,
    across: i64,
    /// Output lines that are summed together.
    together: i64,
    /// Channels of a group, and positions of the kernel in these, that are summed together.
    chunk: i64,
    piece: i64,
    lanes: i64,
}

impl Blocking {
    /// Output channels of an instance.
    fn outputs(&self, images: &Images) -> i64 {
        (self.across * self.lanes).min(images.n)
    }

    /// So many channels of a vector of them.
    fn part(&self, images: &Images, channels: i64) -> Images {
        Images {
            channels,
            padded: self.lanes,
            ..images.clone()
        }
    }

    /// The lines of a vector of channels, of which so many exist.
    fn lines(&self, images: &Images, channels: i64) -> Lines {
        let (lines, cols) = (&images.lines, &images.cols);
        let count = (self.band - 1) * lines.stride + (lines.kernel - 1) * lines.dilation + 1;
        let columns = (cols.out - 1) * cols.stride + (cols.kernel - 1) * cols.dilation + 1;
        Lines::of(&self.part(images, channels), count, columns)
    }

    /// Elements of all copied lines.
    fn elements(&self, images: &Images) -> i64 {
        self.across * images.span() * self.lines(images, self.lanes).elements()
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, images: &Images, target: &TargetDesc) -> f64 {
        let f = |n: i64| n as f64;
        let positions = f(images.lines.kernel * images.cols.kernel * images.span());
        let instances = images.images / self.images
            * (images.lines.out / self.band)
            * (images.panels() / self.across);
        let turns = ceil_div(instances, i64::from(target.workers.max(1)));
        let vectors = f(self.images * self.band * images.cols.out * self.across);
        let pixels = images.lines.size * images.cols.size + images.lines.out * images.cols.out;
        let far = images.bytes(images.images * pixels * images.channels) >= FAR;
        let part = images.channel_step == 1 && self.across < images.panels();
        let copy = match (images.is_depthwise(), far && part) {
            (false, true) => 2.0 * cost::SHARED * f(images.groups) / f(images.n),
            (false, false) => cost::SHARED * f(images.groups) / f(images.n),
            (true, true) => cost::PART,
            (true, false) => cost::COPY,
        };
        let one = vectors * positions / 2.0
            + f(self.images * self.elements(images)) * copy
            + f(self.outputs(images)) * positions * cost::WEIGHT
            + cost::INSTANCE;
        f(turns) * one
    }
}

/// The loops that the workers are done with first.
fn choose(images: &Images, target: &TargetDesc) -> Blocking {
    let positions = images.lines.kernel * images.cols.kernel;
    let most = i64::from(target.registers) * 2 / 3;
    let few = divisors(images.span()).take_while(|chunk| chunk * positions <= most);
    let chunk = few.last().unwrap_or(1);
    let pieces = ceil_div(chunk * positions, most.max(1));
    let blocking = Blocking {
        images: 1,
        band: 1,
        across: 1,
        together: 1,
        chunk,
        piece: ceil_div(chunk * positions, pieces),
        lanes: images.width,
    };
    let room = i64::try_from(target.l2_bytes / 2).unwrap_or(i64::MAX);
    let mut best = (f64::INFINITY, blocking.clone());
    for (together, band) in parts(images.images, images.lines.out) {
        for across in divisors(images.panels()) {
            // Instances have whole vectors, or all channels.
            if images.n % images.width > 0 && across < images.panels() {
                continue;
            }
            let shape = Blocking {
                images: together,
                band,
                across,
                ..blocking.clone()
            };
            let fits = images.bytes(shape.elements(images)) <= room;
            let cost = shape.cost(images, target);
            if (fits || together * band == 1) && cost < best.0 {
                best = (cost, shape);
            }
        }
    }
    let band = best.1.band;
    let sums = match pieces * images.span() / chunk {
        1 => TURN,
        _ => BETWEEN,
    };
    let few = |lines: &i64| lines * images.cols.out <= sums;
    Blocking {
        together: divisors(band).filter(few).last().unwrap_or(1),
        ..best.1
    }
}

struct Work<'a> {
    nest: &'a Nest,
    params: &'a Params,
    images: &'a Images,
    blocking: &'a Blocking,
    /// The lines of a vector of channels.
    copied: Lines,
}

/// Where the kernels of an instance's output channels are read: rows of lanes.
struct Weights {
    mem: Mem,
    first: Tile,
    /// Rows from one position, and from one channel, to the next.
    steps: [i64; 2],
}

pub fn depthwise(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    images: &Images,
    target: &TargetDesc,
) -> Result<Program> {
    let blocking = choose(images, target);
    let (geometry, spread) = vector(target.lanes(4));
    let k = KernelBuilder::mapped(&nest.name, geometry);
    let params = params_of(&k);
    let work = Work {
        nest,
        params: &params,
        images,
        blocking: &blocking,
        copied: blocking.lines(images, blocking.lanes),
    };
    work.lay_out(&k, &spread);
    let grid = [
        images.panels() / blocking.across,
        images.lines.out / blocking.band,
        images.images / blocking.images,
    ];
    k.phase(grid.map(Expr::constant), |k| work.instance(k));
    k.finish()
}

impl Work<'_> {
    fn positions(&self) -> i64 {
        self.images.lines.kernel * self.images.cols.kernel
    }

    /// Sizes of a block of sums, of which those of one are no dims of tiles, and the elements of the copied lines from one to the next.
    fn sums(&self) -> (Vec<i64>, Vec<i64>) {
        let (images, blocking) = (self.images, self.blocking);
        let pitch = self.copied.pitch();
        let dims = [
            (blocking.together, images.lines.stride * pitch),
            (images.cols.out, images.cols.stride * blocking.lanes),
            (blocking.lanes, 1),
        ];
        dims.into_iter().filter(|dim| dim.0 > 1).unzip()
    }

    fn lay_out(&self, k: &KernelBuilder, spread: &Spread) {
        for (lines, part) in [Some(self.whole()), self.rest()].into_iter().flatten() {
            lines.lay_out(k, spread, &part);
        }
        if !self.images.is_depthwise() {
            self.copied.lay_out_shared(k, spread, self.images);
        } else if self.is_apart() {
            self.copied.lay_out_apart(k, spread, self.vectors());
        }
        let (shape, _) = self.sums();
        let mut single = vec![1; shape.len()];
        if let (Some(last), Some(lanes)) = (single.last_mut(), shape.last()) {
            *last = *lanes;
        }
        for small in [&shape, &single] {
            k.layout_shape(small, spread.layout(small, &shape));
        }
        lay_out(k, spread, &[self.turned(), self.blocking.lanes]);
    }

    /// Whole vectors of output channels that an instance has.
    fn vectors(&self) -> i64 {
        self.blocking.outputs(self.images) / self.blocking.lanes
    }

    /// The lines of one of them, and what they are a copy of.
    fn whole(&self) -> (Lines, Images) {
        let lanes = self.blocking.lanes;
        (self.copied.clone(), self.blocking.part(self.images, lanes))
    }

    /// The same of channels that fill no vector.
    fn rest(&self) -> Option<(Lines, Images)> {
        let rest = self.blocking.outputs(self.images) % self.blocking.lanes;
        let of = |blocking: &Blocking| {
            let part = blocking.part(self.images, rest);
            (blocking.lines(self.images, rest), part)
        };
        (rest > 0).then(|| of(self.blocking))
    }

    /// Whether pixels have several vectors of channels that lie side by side: they are read in order.
    fn is_apart(&self) -> bool {
        self.images.channel_step == 1 && self.vectors() > 1
    }

    fn instance(&self, k: &KernelBuilder) {
        let (images, blocking) = (self.images, self.blocking);
        let [block, band, image] = [0, 1, 2].map(|axis| k.program_id(axis));
        let length = blocking.elements(images);
        let lines = k.alloc(Space::Panel, images.dtype, length, None);
        let (shape, _) = self.sums();
        let rounds = images.span() / blocking.chunk;
        let pieces = rounds * ceil_div(blocking.chunk * self.positions(), blocking.piece);
        let length = shape.iter().product::<i64>();
        let sums = (pieces > 1).then(|| k.alloc(Space::Panel, images.dtype, length, None));
        let (panel, across) = (&block * blocking.across, blocking.across);
        let weights = self.weights(k, &panel);
        self.clear_edges(k, &lines);
        let line = &band * blocking.band;
        let first = &line * images.lines.stride - images.lines.padding;
        let channels = across * images.in_panel() * images.span();
        let channel = &block * (channels * images.channel_step);
        let (size, pitch) = (self.copied.elements() * images.span(), self.copied.pitch());
        k.for_range(0, blocking.images, 1, [], |k, i, []| {
            let image = &image * blocking.images + &i;
            let start = &image * images.image_step + &channel + images.base;
            self.copy(k, &start, &lines, &first);
            let steps = blocking.band / blocking.together;
            k.for_range(0, steps, 1, [], |k, step, []| {
                let down = &step * (blocking.together * images.lines.stride * pitch);
                k.for_range(0, across, 1, [], |k, i, []| {
                    let start = &down + &i * size;
                    let sum = self.windows(k, &lines, &weights, &start, &i, sums.as_ref());
                    let panel = &panel + &i;
                    let line = &line + &step * blocking.together;
                    finish(
                        k,
                        (self.nest, self.params),
                        images,
                        self.place(k, &image, line, panel),
                        sum,
                    );
                    []
                });
                []
            });
            []
        });
    }

    fn clear_edges(&self, k: &KernelBuilder, lines: &Mem) {
        let size = self.copied.elements();
        let (copied, part) = self.whole();
        let copies = self.vectors() * self.images.span();
        k.for_range(0, copies, 1, [], |k, vector, []| {
            copied.clear_edges(k, &part, (lines, &(vector * size)));
            []
        });
        if let Some((rest, part)) = self.rest() {
            let home = k.constant(DType::I64, self.vectors() * size);
            rest.clear_edges(k, &part, (lines, &home));
        }
    }

    /// Copies the lines of an image whose first channel is at `start`.
    fn copy(&self, k: &KernelBuilder, start: &Tile, lines: &Mem, first: &Tile) {
        let (images, size) = (self.images, self.copied.elements());
        let x = &self.params.mems[images.x];
        let (vectors, step) = (self.vectors(), self.blocking.lanes * images.channel_step);
        let (copied, part) = self.whole();
        if !images.is_depthwise() {
            return copied.copy_shared(k, images, (x, start), lines, first, vectors);
        }
        if self.is_apart() {
            let to = (lines, &k.constant(DType::I64, 0));
            copied.copy_apart(k, &part, (x, start), to, first, vectors);
        } else {
            k.for_range(0, vectors, 1, [], |k, vector, []| {
                let to = (lines, &(&vector * size));
                copied.copy_from(k, &part, (x, &(start + &vector * step)), to, first);
                []
            });
        }
        if let Some((rest, part)) = self.rest() {
            let to = (lines, &k.constant(DType::I64, vectors * size));
            rest.copy_from(k, &part, (x, &(start + vectors * step)), to, first);
        }
    }

    /// The sums of some lines: those of the last channels and the last piece of the kernel, with what the others left.
    fn windows(
        &self,
        k: &KernelBuilder,
        lines: &Mem,
        weights: &Weights,
        start: &Tile,
        i: &Tile,
        sums: Option<&Mem>,
    ) -> Tile {
        let (images, chunk) = (self.images, self.blocking.chunk);
        let last = images.span() - chunk;
        let weights = (weights, &(i * (self.positions() * images.span())));
        let Some(home) = sums.filter(|_| last > 0) else {
            return self.channels(k, lines, weights, (start, None), None, sums);
        };
        let (shape, _) = self.sums();
        let zero = k.full(images.dtype, &shape, 0.0);
        k.store(home.at(0).shape(&shape), &zero);
        k.for_range(0, last, chunk, [], |k, channel, []| {
            let before = k.load(home.at(0).shape(&shape));
            let from = (start, Some(&channel));
            let sum = self.channels(k, lines, weights, from, Some(before), sums);
            k.store(home.at(0).shape(&shape), &sum);
            []
        });
        let before = k.load(home.at(0).shape(&shape));
        let channel = k.constant(DType::I64, last);
        self.channels(
            k,
            lines,
            weights,
            (start, Some(&channel)),
            Some(before),
            sums,
        )
    }

    /// The sums over some channels of a group, from one on, with those before them.
    fn channels(
        &self,
        k: &KernelBuilder,
        lines: &Mem,
        (weights, row): (&Weights, &Tile),
        (start, channel): (&Tile, Option<&Tile>),
        mut sum: Option<Tile>,
        sums: Option<&Mem>,
    ) -> Tile {
        let (images, blocking) = (self.images, self.blocking);
        let (shape, strides) = self.sums();
        let mut single = vec![1; shape.len()];
        if let Some(last) = single.last_mut() {
            *last = blocking.lanes;
        }
        let (wide, lanes) = (images.cols.kernel, blocking.lanes);
        let [of_position, of_channel] = weights.steps;
        let (start, row) = match channel {
            Some(channel) => (
                start + channel * self.copied.elements(),
                row + channel * of_channel,
            ),
            None => (start.clone(), row.clone()),
        };
        // Every second product of a long piece: neither sum waits for the other.
        let mut second: Option<Tile> = None;
        for number in 0..blocking.chunk * self.positions() {
            let place = number % blocking.piece;
            if number > 0 && place == 0 {
                sum = both(sum, second.take());
            }
            if number > 0
                && place == 0
                && let (Some(sums), Some(before)) = (sums, &sum)
            {
                let home = sums.at(0).shape(&shape);
                k.store(home.clone(), before);
                sum = Some(k.load(home));
            }
            let (channel, position) = (number / self.positions(), number % self.positions());
            let (line, column) = (position / wide, position % wide);
            let from = channel * self.copied.elements()
                + line * images.lines.dilation * self.copied.pitch()
                + column * images.cols.dilation * lanes;
            let pixels = k.load(
                lines
                    .at(&start + from)
                    .shape(&shape)
                    .strides(strides.clone()),
            );
            let at = (&row + (position * of_position + channel * of_channel)) * lanes;
            let weight = k.load(weights.mem.at(&weights.first + at).shape(&single));
            let sum = match blocking.piece >= LONG && place % 2 == 1 {
                true => &mut second,
                false => &mut sum,
            };
            *sum = Some(match sum.take() {
                Some(sum) => pixels.fma(&weight, &sum),
                None => pixels * weight,
            });
        }
        both(sum, second).unwrap_or_else(|| k.full(images.dtype, &shape, 0.0))
    }

    fn place(&self, k: &KernelBuilder, image: &Tile, line: Tile, panel: Tile) -> Block {
        let images = self.images;
        let zero = k.constant(DType::I64, 0);
        let mut places = Vec::new();
        if images.lines.out > 1 {
            places.push((self.blocking.together, line, None));
        }
        if images.cols.out > 1 {
            places.push((images.cols.out, zero, None));
        }
        Block {
            image: image.clone(),
            places,
            width: images.width,
            panel,
        }
    }

    /// The kernels of an instance's output channels, and where they begin: as they were laid ahead of time, or a copy.
    fn weights(&self, k: &KernelBuilder, panel: &Tile) -> Weights {
        let (images, across) = (self.images, self.blocking.across);
        let inputs = images.span();
        let size = inputs * self.positions() * self.blocking.lanes;
        if images.whole.is_none() {
            return Weights {
                mem: self.params.mems[images.weight].clone(),
                first: panel * size + images.weight_base,
                steps: [inputs, 1],
            };
        }
        let copy = k.alloc(Space::Panel, images.dtype, across * size, None);
        k.for_range(0, across, 1, [], |k, i, []| {
            self.copy_weights(k, &copy, panel, &i);
            []
        });
        Weights {
            mem: copy,
            first: k.constant(DType::I64, 0),
            steps: [1, self.positions()],
        }
    }

    /// Rows of a weight, which are positions of its channels, that are copied at once.
    fn turned(&self) -> i64 {
        let (wide, inputs) = (self.images.cols.kernel, self.images.span());
        match self.images.whole {
            Some([_, channel, down, along])
                if down == along * wide
                    && (inputs == 1 || channel == along * self.positions())
                    && self.positions() * inputs >= SQUARE =>
            {
                SQUARE
            }
            _ => 1,
        }
    }

    /// Copies the kernels of a vector of output channels: `[channel][position][lanes]`.
    fn copy_weights(&self, k: &KernelBuilder, weights: &Mem, panel: &Tile, i: &Tile) {
        let (images, lanes) = (self.images, self.blocking.lanes);
        let [across, channel, down, along] = images.whole.unwrap_or_default();
        let (positions, inputs) = (self.positions(), images.span());
        let panel = panel + i;
        let first = &panel * (lanes * across) + images.weight_base;
        let cut = left(&panel, lanes, images.n);
        let home = i * (inputs * positions * lanes);
        let together = self.turned();
        let copy = |k: &KernelBuilder, from: Tile, row: Tile| {
            let window: Window = self.params.mems[images.weight].at(&first + from);
            let window = window.shape([together, lanes]).strides([along, across]);
            let tile = k.load(match &cut {
                Some(cut) => window.valid(1, cut),
                None => window,
            });
            let to = weights.at(&home + row * lanes);
            k.store(to.shape([together, lanes]), &tile);
        };
        if together > 1 {
            let rows = inputs * positions;
            let square = |k: &KernelBuilder, row: &Tile| copy(k, row * along, row.clone());
            k.for_range(0, rows / together, 1, [], |k, number, []| {
                square(k, &(number * together));
                []
            });
            if rows % together > 0 {
                square(k, &k.constant(DType::I64, rows - together));
            }
            return;
        }
        k.for_range(0, inputs, 1, [], |k, number, []| {
            for position in 0..positions {
                let (line, column) = (position / images.cols.kernel, position % images.cols.kernel);
                let from = &number * channel + (line * down + column * along);
                copy(k, from, &number * positions + position);
            }
            []
        });
    }
}
