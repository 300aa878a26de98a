//! Layout algebra: functions from indices to offsets as plain data.
//!
//! A [`Layout`] is a list of modes, each an extent and a stride; index `i` of the whole is split over the extents, the first being the fastest, and the offset is the sum of
//! `index * stride` (strides may be 0: a broadcast). Coordinates are flat: nested shapes are written as several modes, and a tensor of several dims is a layout whose modes are its dims.
//!
//! The operations are the usual ones, and each is defined by an equation that the tests check point by point:
//!
//! * `coalesce(A)(i) = A(i)` with as few modes as possible;
//! * `compose(A, B)(i) = A(B(i))`;
//! * `complement(A, n)`: offsets that, added to those of `A`, reach everything below `n` (rounded up) once;
//! * `divide(A, B) = compose(A, (B, complement(B, size(A))))`: first the tile that `B` picks, then the tiles;
//! * `product(A, B)`: `A` repeated where `B` says;
//! * `local_tile(A, tile, coord)`: the tile of extents `tile` at `coord` of the grid of tiles;
//! * `local_partition(A, threads, t)`: what is left to thread `t` when `threads` is laid over `A` again and again.

use oxyfuel_base::{Result, ensure, err};

use crate::ir::Swizzle;

/// A function from an index to an offset; see the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    pub shape: Vec<i64>,
    pub stride: Vec<i64>,
}

/// A part of a layout: the layout of the part, and the offset of its first element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub offset: i64,
    pub layout: Layout,
}

/// A layout whose offsets, in units of `unit` bytes, go through a swizzle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Swizzled {
    pub swizzle: Swizzle,
    pub unit: u64,
    pub layout: Layout,
}

impl Swizzled {
    /// The offset in elements after the swizzle.
    pub fn at(&self, index: i64) -> i64 {
        let offset = u64::try_from(self.layout.at(index)).unwrap_or(0);
        i64::try_from(self.swizzle.apply(offset * self.unit) / self.unit).unwrap_or(i64::MAX)
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

impl Layout {
    /// Extents must be positive, and there is one stride for each.
    pub fn new(shape: impl Into<Vec<i64>>, stride: impl Into<Vec<i64>>) -> Result<Self> {
        let (shape, stride) = (shape.into(), stride.into());
        ensure!(
            shape.len() == stride.len(),
            RankMismatch,
            "a layout of {} extents and {} strides",
            shape.len(),
            stride.len()
        );
        ensure!(
            shape.iter().all(|&e| e > 0),
            ShapeMismatch,
            "extents of a layout are positive, not {shape:?}"
        );
        Ok(Self { shape, stride })
    }

    /// Dense, the first mode fastest (column-major).
    pub fn compact(shape: impl Into<Vec<i64>>) -> Result<Self> {
        let shape = shape.into();
        let stride = shape
            .iter()
            .scan(1i64, |step, &extent| {
                Some(std::mem::replace(step, step.saturating_mul(extent)))
            })
            .collect::<Vec<_>>();
        Self::new(shape, stride)
    }

    /// Dense, the last mode fastest (row-major).
    pub fn row_major(shape: impl Into<Vec<i64>>) -> Result<Self> {
        let mut reversed = shape.into();
        reversed.reverse();
        let mut layout = Self::compact(reversed)?;
        layout.shape.reverse();
        layout.stride.reverse();
        Ok(layout)
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// How many indices there are.
    pub fn size(&self) -> i64 {
        self.shape.iter().product()
    }

    /// One more than the largest offset.
    pub fn cosize(&self) -> i64 {
        self.shape
            .iter()
            .zip(&self.stride)
            .map(|(e, s)| (e - 1) * s)
            .sum::<i64>()
            + 1
    }

    /// The coordinate of an index.
    pub fn coord(&self, index: i64) -> Vec<i64> {
        let mut rest = index;
        self.shape
            .iter()
            .map(|&extent| {
                let c = rest % extent;
                rest /= extent;
                c
            })
            .collect()
    }

    /// The offset of a coordinate.
    pub fn at_coord(&self, coord: &[i64]) -> i64 {
        coord.iter().zip(&self.stride).map(|(c, s)| c * s).sum()
    }

    /// The offset of an index.
    pub fn at(&self, index: i64) -> i64 {
        self.at_coord(&self.coord(index))
    }

    /// The coordinate whose offset is `offset`, where one exists.
    pub fn coord_of(&self, offset: i64) -> Option<Vec<i64>> {
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.sort_by_key(|&m| std::cmp::Reverse(self.stride[m]));
        let (mut rest, mut coord) = (offset, vec![0; self.rank()]);
        for m in order {
            if self.stride[m] > 0 {
                coord[m] = (rest / self.stride[m]).min(self.shape[m] - 1);
                rest -= coord[m] * self.stride[m];
            }
        }
        (rest == 0 && offset >= 0).then_some(coord)
    }

    fn modes(&self) -> impl Iterator<Item = (i64, i64)> {
        self.shape.iter().copied().zip(self.stride.iter().copied())
    }

    fn from_modes(modes: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let (shape, stride) = modes.into_iter().unzip();
        Self { shape, stride }
    }

    /// The same function with as few modes as possible.
    #[must_use]
    pub fn coalesce(&self) -> Self {
        let mut out: Vec<(i64, i64)> = Vec::new();
        for (extent, stride) in self.modes().filter(|&(extent, _)| extent != 1) {
            match out.last_mut() {
                Some((e, s)) if *s * *e == stride => *e *= extent,
                _ => out.push((extent, stride)),
            }
        }
        if out.is_empty() {
            out.push((1, 0));
        }
        Self::from_modes(out)
    }

    /// `i -> self(inner(i))`. An error where that is no layout (extents that do not divide).
    pub fn compose(&self, inner: &Self) -> Result<Self> {
        let outer = self.coalesce();
        let mut out = Vec::new();
        for (extent, stride) in inner.modes() {
            out.extend(outer.compose_mode(extent, stride)?);
        }
        ensure!(
            outer.adds_without_carry(inner),
            LayoutMismatch,
            "the steps of {inner:?} together leave a mode of {self:?}"
        );
        Ok(Self::from_modes(out))
    }

    /// Whether the offsets of `inner`'s modes add up inside each mode of `self`: only then is the composition the sum of the modes' own.
    fn adds_without_carry(&self, inner: &Self) -> bool {
        let mut below = 1;
        self.modes()
            .take(self.rank().saturating_sub(1))
            .all(|(extent, _)| {
                let digit = |offset: i64| offset / below % extent;
                let largest =
                    |(steps, stride): (i64, i64)| (0..steps).map(|i| digit(i * stride)).max();
                let sum: i64 = inner.modes().filter_map(largest).sum();
                below *= extent;
                sum < extent
            })
    }

    /// `self` after one mode, as one or more modes.
    fn compose_mode(&self, extent: i64, stride: i64) -> Result<Vec<(i64, i64)>> {
        if stride == 0 || extent == 1 {
            return Ok(vec![(extent, 0)]);
        }
        let (mut skip, mut left, mut out) = (stride, extent, Vec::new());
        for (m, (e, s)) in self.modes().enumerate() {
            let last = m + 1 == self.rank();
            if skip >= e && !last {
                ensure!(
                    skip % e == 0,
                    LayoutMismatch,
                    "a stride of {stride} does not divide over {self:?}"
                );
                skip /= e;
                continue;
            }
            // What remains of this mode after the skip; the last mode goes on beyond its extent.
            let room = if last { left } else { ceil_div(e, skip) };
            let take = left.min(room);
            if take > 1 {
                out.push((take, s * skip));
            }
            if left == take {
                left = 1;
                break;
            }
            ensure!(
                e % skip == 0 && left % room == 0,
                LayoutMismatch,
                "{extent} steps of {stride} do not divide over {self:?}"
            );
            skip = 1;
            left /= room;
        }
        ensure!(
            left == 1,
            LayoutMismatch,
            "{extent} steps of {stride} leave {self:?}"
        );
        if out.is_empty() {
            out.push((1, 0));
        }
        Ok(out)
    }

    /// What to add to the offsets of `self` to reach everything below `cosize`, once each. Needs an injective layout whose modes nest.
    pub fn complement(&self, cosize: i64) -> Result<Self> {
        let mut modes: Vec<_> = self.modes().filter(|&(e, s)| e != 1 && s != 0).collect();
        modes.sort_by_key(|&(_, s)| s);
        let (mut current, mut out) = (1i64, Vec::new());
        for (extent, stride) in modes {
            ensure!(
                stride >= current && stride % current == 0,
                LayoutMismatch,
                "{self:?} has no complement: its modes overlap"
            );
            out.push((stride / current, current));
            current = stride * extent;
        }
        out.push((ceil_div(cosize, current), current));
        Ok(Self::from_modes(out).coalesce())
    }

    /// First the tile that `tiler` picks, then the tiles: mode lists of both, concatenated by [`concat`](Self::concat).
    pub fn divide(&self, tiler: &Self) -> Result<(Self, Self)> {
        let rest = tiler.complement(self.size())?;
        Ok((self.compose(tiler)?, self.compose(&rest)?))
    }

    /// `self`, repeated at the offsets that `tiler` picks from the room beside it: the tile, and the repetition.
    pub fn product(&self, tiler: &Self) -> Result<(Self, Self)> {
        let rest = self.complement(self.size().saturating_mul(tiler.cosize()))?;
        Ok((self.clone(), rest.compose(tiler)?))
    }

    /// The modes of both, one list after the other.
    #[must_use]
    pub fn concat(&self, other: &Self) -> Self {
        Self::from_modes(self.modes().chain(other.modes()))
    }

    /// Mode by mode: each of extent `e` becomes a tile of `tile[m]` and `ceil(e / tile[m])` tiles. Tiles first, then the grid of tiles.
    pub fn zipped_divide(&self, tile: &[i64]) -> Result<(Self, Self)> {
        ensure!(
            tile.len() == self.rank(),
            RankMismatch,
            "a tiler of rank {} for {self:?}",
            tile.len()
        );
        ensure!(
            tile.iter().all(|&t| t > 0),
            ShapeMismatch,
            "extents of a tile are positive, not {tile:?}"
        );
        let inner = self.modes().zip(tile).map(|((_, s), &t)| (t, s));
        let outer = self
            .modes()
            .zip(tile)
            .map(|((e, s), &t)| (ceil_div(e, t), s * t));
        Ok((Self::from_modes(inner), Self::from_modes(outer)))
    }

    /// The tile of extents `tile` at `coord` of the grid of tiles.
    pub fn local_tile(&self, tile: &[i64], coord: &[i64]) -> Result<Part> {
        let (inner, outer) = self.zipped_divide(tile)?;
        ensure!(
            coord.len() == self.rank(),
            RankMismatch,
            "a tile coordinate of rank {}",
            coord.len()
        );
        let inside = coord
            .iter()
            .zip(&outer.shape)
            .all(|(c, e)| (0..*e).contains(c));
        ensure!(
            inside,
            IndexOutOfRange,
            "tile {coord:?} of a grid of {:?}",
            outer.shape
        );
        Ok(Part {
            offset: outer.at_coord(coord),
            layout: inner,
        })
    }

    /// What thread `thread` owns when the thread layout is laid over `self` again and again.
    pub fn local_partition(&self, threads: &Self, thread: i64) -> Result<Part> {
        let coord = threads
            .coord_of(thread)
            .ok_or_else(|| err!(IndexOutOfRange, "thread {thread} is not in {threads:?}"))?;
        let (inner, outer) = self.zipped_divide(&threads.shape)?;
        Ok(Part {
            offset: inner.at_coord(&coord),
            layout: outer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(modes: &[(i64, i64)]) -> Layout {
        Layout::from_modes(modes.iter().copied())
    }

    fn offsets(layout: &Layout) -> Vec<i64> {
        (0..layout.size()).map(|i| layout.at(i)).collect()
    }

    #[test]
    fn coalescing_joins_what_is_dense() {
        assert_eq!(
            layout(&[(2, 1), (1, 6), (6, 2)]).coalesce(),
            layout(&[(12, 1)])
        );
        assert_eq!(
            layout(&[(2, 1), (6, 4)]).coalesce(),
            layout(&[(2, 1), (6, 4)])
        );
        assert_eq!(layout(&[(1, 7)]).coalesce(), layout(&[(1, 0)]));
    }

    #[test]
    fn composition_of_known_layouts() {
        let a = layout(&[(6, 8), (2, 2)]);
        let b = layout(&[(4, 3), (3, 1)]);
        assert_eq!(
            offsets(&a.compose(&b).unwrap()),
            (0..12).map(|i| a.at(b.at(i))).collect::<Vec<_>>()
        );
        assert!(
            layout(&[(4, 1), (5, 7)])
                .compose(&layout(&[(3, 3)]))
                .is_err(),
            "3 does not divide over 4"
        );
    }

    #[test]
    fn division_lists_the_tile_first() {
        let (tile, rest) = layout(&[(24, 1)]).divide(&layout(&[(4, 2)])).unwrap();
        assert_eq!(
            (offsets(&tile), offsets(&rest)),
            (vec![0, 2, 4, 6], vec![0, 1, 8, 9, 16, 17])
        );
    }

    #[test]
    fn product_repeats_beside() {
        let (tile, rest) = layout(&[(4, 1)]).product(&layout(&[(3, 1)])).unwrap();
        assert_eq!(offsets(&tile.concat(&rest)), (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn swizzles_permute_whole_patterns() {
        let swizzled = Swizzled {
            swizzle: Swizzle::B128,
            unit: 2,
            layout: Layout::row_major([8, 64]).unwrap(),
        };
        let mut seen: Vec<_> = (0..512).map(|i| swizzled.at(i)).collect();
        // A column of 16-byte chunks meets eight different bank groups.
        let groups: std::collections::HashSet<_> =
            (0..8).map(|row| swizzled.at(row) % 64 / 8).collect();
        assert_eq!(groups.len(), 8);
        seen.sort_unstable();
        assert_eq!(seen, (0..512).collect::<Vec<_>>());
    }

    /// The dequantiser of MXINT8: mantissas as (group_size, num_groups), a tile of (BLK_M, BLK_K) for a block of threads, one thread an element.
    #[test]
    fn mxint8_tiles_and_partitions() {
        let (group_size, num_groups, blk_m, blk_k) = (32, 12, 8, 4);
        let raw = layout(&[(group_size * num_groups, 1)]);
        let (within, groups) = raw.divide(&layout(&[(group_size, 1)])).unwrap();
        let mx = within.concat(&groups);
        assert_eq!(mx, layout(&[(group_size, 1), (num_groups, group_size)]));
        let scales = layout(&[(num_groups, 1)]);
        let threads = Layout::compact([blk_m, blk_k]).unwrap();
        let mut owner = vec![0; raw.size() as usize];
        for block_x in 0..group_size / blk_m {
            for block_y in 0..num_groups / blk_k {
                let gx = mx.local_tile(&[blk_m, blk_k], &[block_x, block_y]).unwrap();
                let gscale = scales.local_tile(&[blk_k], &[block_y]).unwrap();
                for thread in 0..threads.size() {
                    let own = gx.layout.local_partition(&threads, thread).unwrap();
                    assert_eq!(own.layout.size(), 1, "as many threads as elements");
                    let element = gx.offset + own.offset;
                    owner[element as usize] += 1;
                    // The kernel's own index of the exponent: threadIdx.x / size<0>(layout_tX).
                    let scale = gscale.offset + gscale.layout.at(thread / blk_m);
                    assert_eq!(
                        scale,
                        element / group_size,
                        "the exponent of the element's group"
                    );
                }
            }
        }
        assert!(owner.iter().all(|&n| n == 1));
        assert!(mx.local_tile(&[blk_m, blk_k], &[4, 0]).is_err());
    }

    #[test]
    fn partitions_cover_with_fewer_threads() {
        let tile = Layout::row_major([8, 6]).unwrap();
        let threads = Layout::row_major([4, 2]).unwrap();
        let mut seen: Vec<_> = (0..8)
            .flat_map(|t| {
                let part = tile.local_partition(&threads, t).unwrap();
                offsets(&part.layout)
                    .into_iter()
                    .map(move |o| part.offset + o)
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..48).collect::<Vec<_>>());
    }

    fn arbitrary() -> impl Strategy<Value = Layout> {
        proptest::collection::vec((1i64..7, 0i64..20), 1..4).prop_map(|modes| layout(&modes))
    }

    #[test]
    fn steps_that_carry_over_a_mode_together_are_no_layout() {
        let outer = Layout::from_modes([(6, 0), (2, 1)]);
        let inner = Layout::from_modes([(4, 1), (2, 3)]);
        assert!(outer.compose(&inner).is_err());
        let inside = Layout::from_modes([(3, 1), (2, 3)]);
        assert_eq!(offsets(&outer.compose(&inside).unwrap()), [0; 6]);
    }

    proptest! {
        #[test]
        fn coalesce_is_the_same_function(a in arbitrary()) {
            prop_assert_eq!(offsets(&a.coalesce()), offsets(&a));
        }

        #[test]
        fn compose_is_composition(a in arbitrary(), b in arbitrary()) {
            if let Ok(c) = a.compose(&b) {
                // Beyond its size a layout goes on in its last mode.
                prop_assert_eq!(c.size(), b.size());
                for i in 0..b.size() {
                    if b.at(i) < a.size() {
                        prop_assert_eq!(c.at(i), a.at(b.at(i)), "{:?} after {:?} gives {:?} at {}", a, b, c, i);
                    }
                }
            }
        }

        #[test]
        fn complement_completes(a in arbitrary(), n in 1i64..100) {
            if let Ok(rest) = a.complement(n) {
                let strided = Layout::from_modes(a.modes().filter(|&(_, s)| s != 0));
                let mut all: Vec<_> = offsets(&strided).into_iter().flat_map(|x| offsets(&rest).into_iter().map(move |y| x + y)).collect();
                all.sort_unstable();
                let len = all.len();
                all.dedup();
                prop_assert_eq!(all.len(), len, "reached twice");
                prop_assert!((0..n).all(|x| all.binary_search(&x).is_ok()), "not everything below {} is reached", n);
            }
        }
    }
}
