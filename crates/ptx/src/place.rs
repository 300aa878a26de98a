//! Where the elements of a tile live, as numbers: a [`TileLayout`] read as three tables.
//!
//! A coordinate is a sum of what the warp, the lane and the register add to it. So any linear function of the coordinates (an address, a
//! row-major index) is a sum of three parts too, and two layouts agree on such a function when they agree on each part.

use oxyfuel_base::{Result, ensure};
use oxyfuel_kernel::ir::{Mode, TileLayout};

use crate::emit::Slice;

/// Most registers that one tile may take of a thread; above, ptxas spills anyway and our own time explodes.
const MAX_REGISTERS: u64 = 4096;

/// The coordinates that index `index` of a level adds.
fn coords_of(modes: &[Mode], mut index: u64, rank: usize) -> Vec<i64> {
    let mut coords = vec![0; rank];
    for mode in modes {
        let extent = u64::from(mode.extent).max(1);
        if let Some(coord) = coords.get_mut(usize::from(mode.dim)) {
            *coord += (index % extent) as i64 * i64::from(mode.stride);
        }
        index /= extent;
    }
    coords
}

pub(crate) fn extent(modes: &[Mode]) -> u64 {
    modes.iter().map(|mode| u64::from(mode.extent)).product()
}

/// A layout with its shape, checked against the threads it stands on.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) shape: Vec<i64>,
    pub(crate) layout: TileLayout,
    /// What each register adds to each coordinate.
    pub(crate) regs: Vec<Vec<i64>>,
}

impl Place {
    pub(crate) fn new(layout: &TileLayout, shape: &[i64]) -> Result<Self> {
        ensure!(
            !layout.matrix,
            NoLowering,
            "tiles in matrix registers do not exist on this target"
        );
        ensure!(
            extent(&layout.cluster) <= 1,
            Internal,
            "the blocks of a cluster are no warps of a team yet"
        );
        let registers = extent(&layout.reg);
        ensure!(
            registers <= MAX_REGISTERS,
            TooLarge,
            "a tile of shape {shape:?} takes {registers} registers a thread"
        );
        for mode in layout.warp.iter().chain(&layout.lane).chain(&layout.reg) {
            ensure!(
                usize::from(mode.dim) < shape.len() || mode.stride == 0,
                InvalidKernel,
                "a layout names dim {} of shape {shape:?}",
                mode.dim
            );
            ensure!(
                mode.extent > 0,
                InvalidKernel,
                "a layout has a mode of extent 0"
            );
        }
        let regs = (0..registers)
            .map(|r| coords_of(&layout.reg, r, shape.len()))
            .collect();
        Ok(Self {
            shape: shape.to_vec(),
            layout: layout.clone(),
            regs,
        })
    }

    /// The same place with some of its registers.
    pub(crate) fn slice(&self, slice: &Slice) -> Self {
        Self {
            shape: self.shape.clone(),
            layout: self.layout.clone(),
            regs: self.regs[slice.from..slice.until].to_vec(),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The largest coordinate the layout reaches along `dim`, plus one.
    pub(crate) fn cover(&self, dim: usize) -> i64 {
        let all = self
            .layout
            .warp
            .iter()
            .chain(&self.layout.lane)
            .chain(&self.layout.reg);
        1 + all
            .filter(|mode| usize::from(mode.dim) == dim)
            .map(|mode| i64::from(mode.extent - 1) * i64::from(mode.stride))
            .sum::<i64>()
    }

    /// Whether some of its places lie outside the shape along `dim`.
    pub(crate) fn overhangs(&self, dim: usize) -> bool {
        self.cover(dim) > self.shape[dim]
    }

    /// Values of `sum(coord[d] * strides[d])` for every warp, lane and register.
    pub(crate) fn linear(&self, strides: &[i64]) -> Linear {
        let dot = |coords: &[i64]| coords.iter().zip(strides).map(|(c, s)| c * s).sum::<i64>();
        let level = |modes: &[Mode]| {
            (0..extent(modes))
                .map(|i| dot(&coords_of(modes, i, self.rank())))
                .collect()
        };
        Linear {
            warp: level(&self.layout.warp),
            lane: level(&self.layout.lane),
            reg: self.regs.iter().map(|c| dot(c)).collect(),
        }
    }
}

pub(crate) fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// A linear function of a tile's coordinates, by warp, lane and register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    pub(crate) warp: Vec<i64>,
    pub(crate) lane: Vec<i64>,
    pub(crate) reg: Vec<i64>,
}

/// A level that is not mentioned counts as one replicated place; a shorter one repeats.
fn level_agrees(a: &[i64], b: &[i64]) -> bool {
    let n = a.len().max(b.len());
    (0..n).all(|i| a[i % a.len()] == b[i % b.len()])
}

impl Linear {
    /// For each register of `self`, the register of `source` of the same thread with the same value; `None` if some element lives in
    /// another thread.
    pub(crate) fn within_thread(&self, source: &Linear) -> Option<Vec<usize>> {
        if !level_agrees(&self.warp, &source.warp) || !level_agrees(&self.lane, &source.lane) {
            return None;
        }
        let mut by_value = rustc_hash::FxHashMap::default();
        for (r, value) in source.reg.iter().enumerate() {
            by_value.entry(*value).or_insert(r);
        }
        self.reg
            .iter()
            .map(|value| by_value.get(value).copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(dim: u8, extent: u32, stride: u32) -> Mode {
        Mode {
            dim,
            extent,
            stride,
        }
    }

    fn rows(reg: Vec<Mode>) -> Place {
        let layout = TileLayout {
            warp: vec![mode(0, 4, 1)],
            lane: vec![mode(1, 32, 4)],
            reg,
            ..TileLayout::default()
        };
        Place::new(&layout, &[4, 256]).unwrap()
    }

    #[test]
    fn registers_map_where_threads_agree() {
        let a = rows(vec![mode(1, 4, 1), mode(1, 2, 128)]);
        let b = rows(vec![mode(1, 2, 128), mode(1, 4, 1)]);
        let map = b
            .linear(&[256, 1])
            .within_thread(&a.linear(&[256, 1]))
            .unwrap();
        assert_eq!(map, [0, 4, 1, 5, 2, 6, 3, 7]);
        let moved = TileLayout {
            warp: vec![mode(0, 4, 1)],
            lane: vec![mode(1, 32, 8)],
            reg: vec![mode(1, 8, 1)],
            ..TileLayout::default()
        };
        let moved = Place::new(&moved, &[4, 256]).unwrap();
        assert_eq!(
            moved.linear(&[256, 1]).within_thread(&a.linear(&[256, 1])),
            None
        );
    }

    #[test]
    fn a_row_of_one_is_everywhere_when_replicated() {
        let full = rows(vec![mode(1, 4, 1), mode(1, 2, 128)]);
        let one = TileLayout {
            warp: vec![mode(0, 4, 1)],
            lane: vec![mode(1, 32, 0)],
            ..TileLayout::default()
        };
        let one = Place::new(&one, &[4, 1]).unwrap();
        assert_eq!(
            full.linear(&[1, 0]).within_thread(&one.linear(&[1, 0])),
            Some(vec![0; 8])
        );
    }

    #[test]
    fn overhang_is_seen() {
        let p = Place::new(
            &TileLayout {
                lane: vec![mode(0, 32, 4)],
                reg: vec![mode(0, 4, 1)],
                ..TileLayout::default()
            },
            &[100],
        )
        .unwrap();
        assert_eq!(p.cover(0), 128);
        assert!(p.overhangs(0));
    }
}
