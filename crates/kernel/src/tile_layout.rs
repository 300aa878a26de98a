//! [`TileLayout`]: which block, warp, lane and register holds which element of a tile.
//!
//! Every mode moves along one dim and modes are independent of each other, so that questions about a whole layout split into one question for each dim.

use oxyfuel_base::{Result, ensure};

use crate::ir::{Mode, TileLayout};
use crate::layout::Layout;

/// The place of an element: indices of block in the cluster, warp, lane and register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub cluster: u32,
    pub warp: u32,
    pub lane: u32,
    pub reg: u32,
}

fn extent(modes: &[Mode]) -> u32 {
    modes
        .iter()
        .fold(1u32, |n, mode| n.saturating_mul(mode.extent))
}

/// Adds to `coord` what index `index` of a level contributes.
fn step(modes: &[Mode], index: u32, coord: &mut [i64]) {
    let mut rest = index;
    for mode in modes {
        let i = rest % mode.extent.max(1);
        rest /= mode.extent.max(1);
        if let Some(c) = coord.get_mut(usize::from(mode.dim)) {
            *c += i64::from(i) * i64::from(mode.stride);
        }
    }
}

impl Mode {
    pub const fn new(dim: u8, extent: u32, stride: u32) -> Self {
        Self {
            dim,
            extent,
            stride,
        }
    }
}

impl TileLayout {
    /// Vectors of `lanes` along the last dim; everything else in registers, the last dim first. A rank of 0 is a replicated scalar.
    pub fn rows(shape: &[i64], lanes: u32) -> Self {
        let mut layout = Self::default();
        let fit = |extent: i64| u32::try_from(extent).unwrap_or(u32::MAX);
        for (dim, &extent) in shape.iter().enumerate().rev() {
            let dim = u8::try_from(dim).unwrap_or(u8::MAX);
            if usize::from(dim) + 1 == shape.len() {
                layout.lane.push(Mode::new(dim, lanes, 1));
                layout
                    .reg
                    .push(Mode::new(dim, fit(extent).div_ceil(lanes.max(1)), lanes));
            } else {
                layout.reg.push(Mode::new(dim, fit(extent), 1));
            }
        }
        layout
    }

    pub fn levels(&self) -> [&[Mode]; 4] {
        [&self.cluster, &self.warp, &self.lane, &self.reg]
    }

    fn levels_mut(&mut self) -> [&mut Vec<Mode>; 4] {
        [
            &mut self.cluster,
            &mut self.warp,
            &mut self.lane,
            &mut self.reg,
        ]
    }

    pub fn warps(&self) -> u32 {
        extent(&self.warp)
    }

    pub fn lanes(&self) -> u32 {
        extent(&self.lane)
    }

    /// Registers of a lane that hold the tile.
    pub fn regs(&self) -> u32 {
        extent(&self.reg)
    }

    /// The coordinate that a place holds. It may lie outside the tile, where the element is inactive.
    pub fn coord(&self, place: Place, rank: usize) -> Vec<i64> {
        let mut coord = vec![0; rank];
        let indices = [place.cluster, place.warp, place.lane, place.reg];
        for (modes, index) in self.levels().into_iter().zip(indices) {
            step(modes, index, &mut coord);
        }
        coord
    }

    /// Every place with its coordinate, registers fastest.
    pub fn places(&self, rank: usize) -> impl Iterator<Item = (Place, Vec<i64>)> {
        let [clusters, warps, lanes, regs] = self.levels().map(|modes| u64::from(extent(modes)));
        (0..clusters
            .saturating_mul(warps)
            .saturating_mul(lanes)
            .saturating_mul(regs))
            .map(move |i| {
                let low = |i: u64, n: u64| u32::try_from(i % n.max(1)).unwrap_or(0);
                let place = Place {
                    reg: low(i, regs),
                    lane: low(i / regs, lanes),
                    warp: low(i / regs / lanes, warps),
                    cluster: low(i / regs / lanes / warps, clusters),
                };
                (place, self.coord(place, rank))
            })
    }

    /// Whether every coordinate of a tile of `shape` is held somewhere.
    pub fn covers(&self, shape: &[i64]) -> bool {
        let well_formed = self
            .levels()
            .into_iter()
            .flatten()
            .all(|mode| usize::from(mode.dim) < shape.len() && mode.extent > 0);
        // Along one dim, with strides rising, everything up to `reach` is held; a stride beyond the next coordinate leaves it out for good.
        well_formed
            && (0..shape.len()).all(|dim| {
                let mut reach = 0i64;
                for mode in self.along(dim) {
                    if i64::from(mode.stride) > reach + 1 {
                        break;
                    }
                    reach =
                        reach.saturating_add((i64::from(mode.extent) - 1) * i64::from(mode.stride));
                }
                reach + 1 >= shape[dim]
            })
    }

    /// Whether no element is held twice (coordinates outside the tile do not count against it).
    pub fn is_injective(&self) -> bool {
        let dims = self
            .levels()
            .into_iter()
            .flatten()
            .map(|mode| usize::from(mode.dim) + 1)
            .max()
            .unwrap_or(0);
        (0..dims).all(|dim| {
            let mut reach = 0i64;
            self.along(dim).iter().all(|mode| {
                let apart = i64::from(mode.stride) > reach;
                reach = reach.saturating_add((i64::from(mode.extent) - 1) * i64::from(mode.stride));
                apart
            })
        })
    }

    /// The modes of one dim that have more than one index, strides rising.
    fn along(&self, dim: usize) -> Vec<Mode> {
        let mut modes: Vec<Mode> = self
            .levels()
            .into_iter()
            .flatten()
            .copied()
            .filter(|mode| usize::from(mode.dim) == dim && mode.extent > 1)
            .collect();
        modes.sort_by_key(|mode| mode.stride);
        modes
    }

    /// A place that holds the coordinate (the first of several, where the strides of each dim nest).
    pub fn place_of(&self, coord: &[i64]) -> Option<Place> {
        let mut rest = coord.to_vec();
        let mut order: Vec<(usize, usize, Mode)> = self
            .levels()
            .into_iter()
            .enumerate()
            .flat_map(|(level, modes)| {
                modes
                    .iter()
                    .enumerate()
                    .map(move |(m, mode)| (level, m, *mode))
            })
            .collect();
        order.sort_by_key(|(_, _, mode)| std::cmp::Reverse(mode.stride));
        let mut index = self.levels().map(|modes| vec![0u32; modes.len()]);
        for (level, m, mode) in order {
            let left = rest.get_mut(usize::from(mode.dim))?;
            if mode.stride > 0 {
                let i = (*left / i64::from(mode.stride)).clamp(0, i64::from(mode.extent) - 1);
                *left -= i * i64::from(mode.stride);
                index[level][m] = u32::try_from(i).ok()?;
            }
        }
        if rest.iter().any(|&left| left != 0) {
            return None;
        }
        let [cluster, warp, lane, reg] = std::array::from_fn(|level| {
            self.levels()[level]
                .iter()
                .zip(&index[level])
                .fold((0u32, 1u32), |(sum, step), (mode, i)| {
                    (sum + i * step, step.saturating_mul(mode.extent))
                })
                .0
        });
        Some(Place {
            cluster,
            warp,
            lane,
            reg,
        })
    }

    /// How many elements that follow each other along `dim` lie in registers that follow each other: the widest vector access of one lane.
    pub fn vector_width(&self, dim: u8) -> u32 {
        let mut width = 1;
        for mode in self.reg.iter().filter(|mode| mode.extent > 1) {
            if mode.dim != dim || mode.stride != width {
                break;
            }
            width = width.saturating_mul(mode.extent);
        }
        width
    }

    /// Whether each lane holds runs of neighbours along `dim`.
    pub fn is_contiguous_along(&self, dim: u8) -> bool {
        self.vector_width(dim) > 1
    }

    /// The layout of a reduction along `axes` (which keep extent 1): lanes and warps along them all hold the result.
    #[must_use]
    pub fn reduced(&self, axes: &[u8]) -> Self {
        let mut out = self.clone();
        out.reg.retain(|mode| !axes.contains(&mode.dim));
        for mode in out
            .cluster
            .iter_mut()
            .chain(&mut out.warp)
            .chain(&mut out.lane)
        {
            if axes.contains(&mode.dim) {
                mode.stride = 0;
            }
        }
        out
    }

    /// The layout after a permutation: dim `d` of the result is dim `perm[d]` of the operand.
    #[must_use]
    pub fn permuted(&self, perm: &[u8]) -> Self {
        let mut out = self.clone();
        for mode in out.levels_mut().into_iter().flatten() {
            if let Some(new) = perm.iter().position(|&p| p == mode.dim) {
                mode.dim = u8::try_from(new).unwrap_or(u8::MAX);
            }
        }
        out
    }

    /// The layout as a function from `(register, lane, warp, block)`, the first fastest, to row-major positions of a tile of `shape`. Exact where every place is active.
    pub fn to_layout(&self, shape: &[i64]) -> Result<Layout> {
        let rows = Layout::row_major(shape)?;
        let modes: Vec<&Mode> = self
            .reg
            .iter()
            .chain(&self.lane)
            .chain(&self.warp)
            .chain(&self.cluster)
            .collect();
        ensure!(
            modes.iter().all(|mode| usize::from(mode.dim) < shape.len()),
            DimOutOfRange,
            "a mode along a dim that {shape:?} lacks"
        );
        let stride = |mode: &&Mode| i64::from(mode.stride) * rows.stride[usize::from(mode.dim)];
        Layout::new(
            modes
                .iter()
                .map(|mode| i64::from(mode.extent))
                .collect::<Vec<_>>(),
            modes.iter().map(stride).collect::<Vec<_>>(),
        )
    }

    /// The inverse of [`to_layout`](Self::to_layout) for modes that each stay inside one dim: `counts` are the indices of `reg`, `lane`, `warp` and `cluster`.
    pub fn from_layout(layout: &Layout, counts: [i64; 4], shape: &[i64]) -> Result<Self> {
        let rows = Layout::row_major(shape)?;
        let mut out = Self::default();
        let mut at = 0;
        for (count, level) in
            counts
                .into_iter()
                .zip([&mut out.reg, &mut out.lane, &mut out.warp, &mut out.cluster])
        {
            let mut have = 1;
            while have < count {
                ensure!(
                    at < layout.rank(),
                    LayoutMismatch,
                    "{layout:?} has fewer than {counts:?} indices"
                );
                let (extent, stride) = (layout.shape[at], layout.stride[at]);
                // The slowest dim whose step divides the stride is the one the mode moves along.
                let dim = (0..shape.len()).find(|&d| {
                    stride == 0
                        || (stride % rows.stride[d] == 0
                            && stride / rows.stride[d] < shape[d].max(2))
                });
                let dim = dim.ok_or_else(|| {
                    oxyfuel_base::err!(
                        LayoutMismatch,
                        "a stride of {stride} in a tile of {shape:?}"
                    )
                })?;
                let fit = |n: i64| {
                    u32::try_from(n).map_err(|_| oxyfuel_base::err!(TooLarge, "a mode of {n}"))
                };
                level.push(Mode {
                    dim: u8::try_from(dim).unwrap_or(u8::MAX),
                    extent: fit(extent)?,
                    stride: fit(stride / rows.stride[dim])?,
                });
                have *= extent;
                at += 1;
            }
            ensure!(
                have == count,
                LayoutMismatch,
                "{layout:?} does not split into {counts:?}"
            );
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The accumulator of a warpgroup: 64 rows over 4 warps, 8 lanes down and 4 across, pairs of columns.
    fn accumulator(n: u32) -> TileLayout {
        TileLayout {
            warp: vec![Mode::new(0, 4, 16)],
            lane: vec![Mode::new(1, 4, 2), Mode::new(0, 8, 1)],
            reg: vec![
                Mode::new(1, 2, 1),
                Mode::new(0, 2, 8),
                Mode::new(1, n / 8, 8),
            ],
            ..TileLayout::default()
        }
    }

    #[test]
    fn warpgroup_accumulators_cover_once() {
        let layout = accumulator(256);
        assert!(layout.covers(&[64, 256]) && layout.is_injective() && !layout.covers(&[65, 256]));
        assert_eq!(
            (layout.warps(), layout.lanes(), layout.regs()),
            (4, 32, 128)
        );
        assert_eq!(layout.vector_width(1), 2);
        assert_eq!(layout.vector_width(0), 1);
        let place = layout.place_of(&[27, 13]).unwrap();
        assert_eq!(layout.coord(place, 2), [27, 13]);
    }

    #[test]
    fn reductions_replicate() {
        let layout = accumulator(64).reduced(&[1]);
        assert!(layout.covers(&[64, 1]) && !layout.is_injective());
        assert_eq!(layout.regs(), 2);
    }

    #[test]
    fn rows_cover_any_shape() {
        for shape in [&[][..], &[1], &[17], &[3, 100], &[2, 3, 5]] {
            assert!(TileLayout::rows(shape, 16).covers(shape), "{shape:?}");
        }
    }

    #[test]
    fn conversion_to_a_layout_and_back() {
        let layout = accumulator(32);
        let flat = layout.to_layout(&[64, 32]).unwrap();
        for (i, (_, coord)) in layout.places(2).enumerate() {
            assert_eq!(flat.at(i as i64), coord[0] * 32 + coord[1]);
        }
        assert_eq!(
            TileLayout::from_layout(&flat, [16, 32, 4, 1], &[64, 32]).unwrap(),
            layout
        );
    }

    fn arbitrary() -> impl Strategy<Value = TileLayout> {
        let mode = (0u8..2, 1u32..5, 0u32..9).prop_map(|(dim, extent, stride)| Mode {
            dim,
            extent,
            stride,
        });
        let level = || proptest::collection::vec(mode.clone(), 0..3);
        (level(), level(), level()).prop_map(|(warp, lane, reg)| TileLayout {
            warp,
            lane,
            reg,
            ..TileLayout::default()
        })
    }

    proptest! {
        #[test]
        fn covering_and_injectivity_agree_with_enumeration(layout in arbitrary(), rows in 1i64..9, cols in 1i64..9) {
            let mut seen: HashMap<Vec<i64>, usize> = HashMap::new();
            for (_, coord) in layout.places(2) {
                *seen.entry(coord).or_default() += 1;
            }
            let all = (0..rows).all(|r| (0..cols).all(|c| seen.contains_key(&vec![r, c])));
            prop_assert_eq!(layout.covers(&[rows, cols]), all);
            if layout.is_injective() {
                prop_assert!(seen.values().all(|&n| n == 1));
                for coord in seen.keys() {
                    let place = layout.place_of(coord);
                    prop_assert_eq!(place.map(|p| layout.coord(p, 2)), Some(coord.clone()));
                }
            }
        }
    }
}
