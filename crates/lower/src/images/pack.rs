//! The panels of a weight that may change, made at every call before they are read.
//!
//! ```text
//!   weight [n][c][position]  ─▶  turned   [c][position][w]            first-level cache, some channels at a time
//!                            ─▶  panels   [n / w][position][c][w]     memory; or the sixteen points of each kernel
//! ```
//!
//! In groups c is the channels of one: a panel has columns of one group here, and rows for its channels.
//!
//! A matrix unit reads pairs of channels side by side, [c / 2][w][2], of as many as fill its steps: of what was turned, every second row is written to every second place.
//!
//! A run of a weight's memory has the positions of one channel after those of another, for one output channel; a row of a panel has output channels side by side. So squares are turned, as many whole channels as fill them,
//! and rows are taken from what was turned. Each row of it goes to memory once.

use oxyfuel_base::{DType, Expr};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile};
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, CompareOp, Space};

use super::divisors;
use super::shape::Images;
use crate::map::Spread;
use crate::packed::lay_out;
use crate::size::Params;

/// Channels of an instance: runs of memory that fill whole vectors of every target, and a cache line of f32.
const TOGETHER: i64 = 16;

/// Where panels are read.
pub struct Panels {
    pub mem: Mem,
    /// Where the first one is.
    base: i64,
    /// Panels that there are at once, where that is not all.
    part: Option<i64>,
    /// Elements of a panel.
    length: i64,
}

impl Panels {
    /// Where a panel begins.
    pub fn home(&self, panel: &Tile) -> Tile {
        let number = match self.part {
            Some(part) => panel.binary(BinaryOp::Rem, part),
            None => panel.clone(),
        };
        number * self.length + self.base
    }
}

/// The panels of a convolution. Where the weight is given as it is, a phase makes them; where not all fit at once, phases run in rounds, one for each part of the panels.
pub fn panels(k: &KernelBuilder, spread: &Spread, params: &Params, images: &Images) -> Panels {
    let weight = &params.mems[images.weight];
    let length = images.deep() * images.width;
    let Some(steps) = images.whole else {
        return Panels {
            mem: weight.clone(),
            base: images.weight_base,
            part: None,
            length,
        };
    };
    let few = divisors(inputs(images)).take_while(|&part| part <= TOGETHER);
    let pack = Pack {
        images,
        weight,
        steps,
        block: match images.unit {
            Some(_) => TOGETHER,
            None => few.last().unwrap_or(1),
        },
        side: images.unit.map_or(1, |unit| unit.pack),
    };
    let mem = workspace(k, images, length);
    for rows in [pack.block, pack.block / pack.side] {
        lay_out(k, spread, &[rows, images.width]);
    }
    let rounds = images.rounds();
    k.rounds(u32::try_from(rounds).unwrap_or(u32::MAX));
    let panels = Panels {
        mem,
        base: 0,
        part: (rounds > 1).then_some(images.part),
        length,
    };
    if let Some(joined) = &images.joined {
        joined.pack(k, images, (weight, steps), &panels);
        return panels;
    }
    let grid = [pack.blocks(), images.panels()];
    k.phase(grid.map(Expr::constant), |k| pack.instance(k, &panels));
    panels
}

/// Channels of a weight: those of a group; of a volume, those of one plane.
fn inputs(images: &Images) -> i64 {
    match images.groups {
        1 => images.of_tap(),
        _ => images.span(),
    }
}

fn workspace(k: &KernelBuilder, images: &Images, length: i64) -> Mem {
    let all = Expr::constant(images.part * length);
    k.buffer("panels", images.dtype, BufferMode::Workspace, all)
        .aligned(64)
}

struct Pack<'a> {
    images: &'a Images,
    weight: &'a Mem,
    /// Elements from one output channel, channel, line and column of the kernel to the next.
    steps: [i64; 4],
    /// Channels of an instance, and how many of them lie side by side in a panel.
    block: i64,
    side: i64,
}

/// Where an instance reads a kernel position of its channels.
struct Source<'a> {
    mem: &'a Mem,
    first: Tile,
    /// Elements from one channel, output channel, line and column of the kernel to the next.
    steps: [i64; 4],
    /// Channels and output channels that exist, where that is not all.
    left: Option<[&'a Tile; 2]>,
}

impl Pack<'_> {
    /// Rows of a panel that are read and written at once: every channel, or every second one.
    fn shape(&self) -> [i64; 2] {
        [self.block / self.side, self.images.width]
    }

    fn positions(&self) -> i64 {
        self.images.lines.kernel * self.images.cols.kernel
    }

    /// Instances along the channels: of a volume, each has those of every plane.
    fn blocks(&self) -> i64 {
        self.images.span() / self.images.taps() / self.block
    }

    /// Whether a run of memory has more than the channels of one position, or pairs of them are wanted apart, so that what is turned has to be taken apart.
    fn is_run(&self) -> bool {
        let wide = self.images.cols.kernel;
        let all = self.positions() * self.images.taps();
        let planes = self.images.taps() == 1 || self.images.tap_step == self.positions();
        let dense = self.steps[1..] == [all, wide, 1] && planes;
        dense
            && (self.positions() > 1 || self.side > 1)
            && self.block == TOGETHER
            && matches!(self.images.dtype, DType::F32 | DType::BF16)
    }

    fn instance(&self, k: &KernelBuilder, panels: &Panels) {
        let images = self.images;
        let (block, panel) = (k.program_id(0), k.program_id(1));
        let [across, channel, down, along] = self.steps;
        let first =
            &panel * (images.width * across) + &block * (self.block * channel) + images.weight_base;
        let home = panels.home(&panel) + &block * (self.block * images.width);
        let taps = images.taps();
        let where_it_lies = |tap: i64, left| Source {
            mem: self.weight,
            first: &first + tap * images.tap_step,
            steps: [channel, across, down, along],
            left,
        };
        let home_of = |tap: i64| &home + tap * inputs(images) * images.width;
        let whole = |k: &KernelBuilder| match self.is_run() {
            true => {
                let turned = self.turned(k, &first);
                let (cols, wide) = (images.width, images.cols.kernel);
                for tap in 0..taps {
                    let source = Source {
                        mem: &turned,
                        first: k.constant(DType::I64, tap * self.positions() * cols),
                        steps: [taps * self.positions() * cols, 1, wide * cols, cols],
                        left: None,
                    };
                    self.write(k, &source, panels, &home_of(tap));
                }
            }
            false => {
                for tap in 0..taps {
                    self.write(k, &where_it_lies(tap, None), panels, &home_of(tap));
                }
            }
        };
        // Bounds keep a window from being turned: only the last panel, and the last channels, have them.
        let full = [inputs(images) / self.block, images.n / images.width];
        let all = [self.blocks(), images.panels()];
        if full == all {
            return whole(k);
        }
        let within = [&block, &panel].into_iter().zip(full);
        let within = within.map(|(number, full)| number.compare(CompareOp::Lt, full));
        let Some(within) = within.reduce(|a, b| a.binary(BinaryOp::And, b)) else {
            return;
        };
        if full.iter().all(|&full| full > 0) {
            k.when(&within, whole);
        }
        let beyond = within.compare(CompareOp::Eq, k.constant(DType::Bool, false));
        let here = |number: &Tile, size: i64, all: i64| {
            let rest = (number * -size + all).binary(BinaryOp::Min, size);
            rest.binary(BinaryOp::Max, 0i64)
        };
        let rows = here(&block, self.block, inputs(images));
        let cols = here(&panel, images.width, images.n);
        k.when(&beyond, |k| {
            for tap in 0..taps {
                let source = where_it_lies(tap, Some([&rows, &cols]));
                self.write(k, &source, panels, &home_of(tap));
            }
        });
    }

    /// A copy of the instance's channels, output channels side by side.
    fn turned(&self, k: &KernelBuilder, first: &Tile) -> Mem {
        let (rows, cols) = (self.block, self.images.width);
        let runs = self.positions() * self.images.taps();
        let turned = k.alloc(Space::Panel, self.images.dtype, runs * rows * cols, None);
        k.for_range(0, runs, 1, [], |k, number, []| {
            let window = self.weight.at(first + &number * rows).shape([rows, cols]);
            let tile = k.load(window.strides([1, self.steps[0]]));
            k.store(turned.at(number * (rows * cols)).shape([rows, cols]), &tile);
            []
        });
        turned
    }

    fn write(&self, k: &KernelBuilder, source: &Source<'_>, panels: &Panels, home: &Tile) {
        if self.images.winograd {
            return self.write_points(k, source, panels, home);
        }
        let (high, wide) = (self.images.lines.kernel, self.images.cols.kernel);
        k.for_range(0, high, 1, [], |k, line, []| {
            k.for_range(0, wide, 1, [], |k, col, []| {
                for side in 0..self.side {
                    let at = &line * source.steps[2] + &col * source.steps[3];
                    let tile = self.read(k, source, at, side);
                    self.store(k, panels, home, &line * wide + &col, side, &tile);
                }
                []
            });
            []
        });
    }

    /// `G w Gᵀ` of every kernel.
    fn write_points(&self, k: &KernelBuilder, source: &Source<'_>, panels: &Panels, home: &Tile) {
        let [_, _, down, along] = source.steps;
        let points = |[first, middle, last]: [&Tile; 3]| {
            let ends = first + last;
            let [sum, difference] = [&ends + middle, &ends - middle];
            [first.clone(), sum * 0.5, difference * 0.5, last.clone()]
        };
        let columns = [0, 1, 2].map(|col| {
            let [a, b, c] = [0, 1, 2].map(|line| {
                let at = k.constant(DType::I64, line * down + col * along);
                self.read(k, source, at, 0)
            });
            points([&a, &b, &c])
        });
        let mut point = 0;
        for row in 0..4 {
            let [a, b, c] = &columns;
            for tile in points([&a[row], &b[row], &c[row]]) {
                let number = k.constant(DType::I64, point);
                self.store(k, panels, home, number, 0, &tile);
                point += 1;
            }
        }
    }

    /// A position of the kernel, of the channels with this place in their group.
    fn read(&self, k: &KernelBuilder, source: &Source<'_>, at: Tile, side: i64) -> Tile {
        let [channel, across, ..] = source.steps;
        let first = &source.first + at + side * channel;
        let window = source.mem.at(first).shape(self.shape());
        let window = window.strides([self.side * channel, across]);
        let Some([rows, cols]) = source.left else {
            return k.load(window);
        };
        let window = window.valid(1, cols);
        k.load(match self.images.unit {
            Some(_) => {
                let rows = (rows + (self.side - 1 - side)).binary(BinaryOp::FloorDiv, self.side);
                window.valid(0, &rows)
            }
            None => window,
        })
    }

    fn store(
        &self,
        k: &KernelBuilder,
        panels: &Panels,
        home: &Tile,
        number: Tile,
        side: i64,
        tile: &Tile,
    ) {
        let width = self.images.width;
        let position = number * (self.images.span() * width);
        let to = panels.mem.at(home + position + side).shape(self.shape());
        k.store(to.strides([self.side * width, self.side]), tile);
    }
}
