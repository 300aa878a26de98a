//! The sizes of all loops of a convolution: from its shape, the caches and the number of workers.

use oxyfuel_base::DType;
use oxyfuel_plan::TargetDesc;

use super::lines::Lines;
use super::shape::Convolution;
use crate::blocked::counts;
use crate::tile::ceil_div;

#[derive(Clone, Debug, PartialEq)]
pub struct Blocking {
    pub rows: i64,
    pub cols: i64,
    /// What is multiplied: narrow floats are widened as they are copied.
    pub part: DType,
    /// Channels between two visits to the sums; the last chunk may have fewer.
    pub chunk: i64,
    pub chunks: i64,
    /// Panels of rows, blocks of columns and images that an instance has.
    pub band: i64,
    pub across: i64,
    pub images: i64,
    /// Groups that an instance has, one after the other.
    pub groups: i64,
}

/// What things cost, in cycles of a worker: only their ratios matter.
mod cost {
    /// To copy an element of the weight.
    pub const WEIGHT: f64 = 0.5;
    /// To copy an element of `x`, where neighbours stay neighbours and where not.
    pub const NEAR: f64 = 0.25;
    pub const APART: f64 = 1.25;
    /// To copy an element of the lines into the panel of a block.
    pub const GATHER: f64 = 0.1;
    /// To move a vector of sums between registers and cache, there and back.
    pub const MOVE: f64 = 2.0;
    pub const INSTANCE: f64 = 1_000.0;
}

impl Blocking {
    /// Elements from one row of a panel of weights to the next: an odd number of cache lines, so that rows do not share a set.
    pub fn pitch(&self, conv: &Convolution) -> i64 {
        let line = 64 / self.part.size() as i64;
        (ceil_div(self.chunk * conv.reach(), line) | 1) * line
    }

    /// Channels of the last chunk.
    pub fn rest(&self, conv: &Convolution) -> i64 {
        conv.channels - (self.chunks - 1) * self.chunk
    }

    pub fn row_blocks(&self, conv: &Convolution) -> i64 {
        ceil_div(conv.outputs, self.rows)
    }

    pub fn col_blocks(&self, conv: &Convolution) -> i64 {
        ceil_div(conv.places(), self.cols)
    }

    /// Whether what the windows of a block of columns read is gathered for the panels of weights.
    pub fn gathers(&self) -> bool {
        self.band >= 3
    }

    pub fn lines(&self, conv: &Convolution) -> Lines {
        let whole = self.across >= self.col_blocks(conv);
        Lines::of(conv, self.across * self.cols, whole)
    }

    fn bytes(&self, conv: &Convolution) -> i64 {
        let sums = match self.chunks {
            1 => 0,
            _ => self.band * self.rows * self.across * self.cols * self.images,
        };
        let weights = self.band * self.rows * self.pitch(conv);
        let lines = self.chunk * self.lines(conv).channel;
        (sums + weights + lines).saturating_mul(self.part.size() as i64)
    }

    /// Of one instance, in one group.
    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of sizes far below 2^53"
    )]
    fn cost(&self, conv: &Convolution, target: &TargetDesc) -> f64 {
        let f = |n: i64| n as f64;
        let lanes = f64::from(target.lanes(self.part.size() as u32));
        let depth = f(conv.channels * conv.reach());
        let height = f(self.band * self.rows);
        let width = f(self.across * self.cols * self.images);
        let vectors = height * width / lanes;
        let visits = if self.chunks > 1 { f(self.chunks) } else { 0.0 };
        let near = conv.cols.stride * conv.cols.step == 1;
        let copy = if near { cost::NEAR } else { cost::APART };
        let lines = f(self.images * conv.channels * self.lines(conv).channel);
        let gathered = if self.gathers() { width * depth } else { 0.0 };
        vectors * depth / 2.0
            + vectors * visits * cost::MOVE
            + height * depth * cost::WEIGHT
            + lines * copy
            + gathered * cost::GATHER
            + cost::INSTANCE
    }

    /// Instances, if each has one group.
    fn instances(&self, conv: &Convolution) -> i64 {
        ceil_div(conv.images, self.images)
            * conv.groups
            * conv.outer_places()
            * ceil_div(self.row_blocks(conv), self.band)
            * ceil_div(self.col_blocks(conv), self.across)
    }

    /// As many groups that an instance is worth its beginning, and that the workers have several each.
    #[expect(clippy::cast_possible_truncation, reason = "a small quotient")]
    fn with_groups(self, conv: &Convolution, target: &TargetDesc) -> Self {
        let wanted = (cost::INSTANCE * 50.0 / self.cost(conv, target)).ceil() as i64;
        let workers = i64::from(target.workers.max(1));
        let most = self.instances(conv) / (4 * workers);
        let groups = wanted.min(most).clamp(1, conv.groups);
        Self { groups, ..self }
    }
}

/// The loops that the workers are done with first.
pub fn choose(conv: &Convolution, target: &TargetDesc) -> Blocking {
    let size = conv.part.size() as i64;
    let lanes = i64::from(target.lanes(conv.part.size() as u32));
    let registers = i64::from(target.registers);
    // Few rows leave registers for more columns.
    let vectors = match registers {
        32.. if conv.outputs < 7 => 4,
        _ => 2,
    };
    let vectors = vectors.min(ceil_div(conv.places(), lanes));
    let vectors = if vectors == 3 { 2 } else { vectors };
    let cols = (vectors * lanes).min(conv.places().max(2));
    let most = (registers - 4) / vectors;
    let rows = ceil_div(conv.outputs, ceil_div(conv.outputs, most));
    // What a block reads of `x` fits half of the first-level cache.
    let l1 = i64::try_from(target.l1_bytes).unwrap_or(i64::MAX);
    let deepest = (l1 / 2 / (cols * size * conv.reach())).max(1);
    let chunks = ceil_div(conv.channels, deepest);
    let chunk = ceil_div(conv.channels, chunks);
    let blocking = Blocking {
        rows,
        cols,
        part: conv.part,
        chunk,
        chunks: ceil_div(conv.channels, chunk),
        band: 1,
        across: 1,
        images: 1,
        groups: 1,
    };
    cheapest(&blocking, conv, target).with_groups(conv, target)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an estimate of sizes far below 2^53"
)]
fn cheapest(blocking: &Blocking, conv: &Convolution, target: &TargetDesc) -> Blocking {
    let all = blocking.col_blocks(conv);
    // Some of the second-level cache is for what passes by.
    let room = i64::try_from(target.l2_bytes / 4 * 3).unwrap_or(i64::MAX);
    let mut best = (f64::INFINITY, blocking.clone());
    let mut consider = |band: i64, across: i64, images: i64| {
        let shape = Blocking {
            band,
            across,
            images,
            ..blocking.clone()
        };
        if shape.bytes(conv) > room && (band, across, images) != (1, 1, 1) {
            return;
        }
        let turns = ceil_div(shape.instances(conv), i64::from(target.workers.max(1)));
        let cost = shape.cost(conv, target) * turns as f64;
        if cost < best.0 {
            best = (cost, shape);
        }
    };
    for band in parts(blocking.row_blocks(conv)) {
        for across in parts(all) {
            consider(band, across, 1);
        }
        for images in parts(conv.images) {
            consider(band, all, images);
        }
    }
    best.1
}

/// The sizes of equal parts that so many blocks can be cut into.
fn parts(blocks: i64) -> impl Iterator<Item = i64> {
    counts(blocks).map(move |count| ceil_div(blocks, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_blocks() {
        for blocks in 1..200 {
            let sizes: Vec<i64> = parts(blocks).collect();
            assert_eq!(sizes.first(), Some(&blocks));
            assert_eq!(sizes.last(), Some(&1));
            assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]));
        }
    }
}
