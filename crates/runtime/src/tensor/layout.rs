//! Where the elements of a tensor lie: shape, strides and offset, all in elements, always checked.
//!
//! Invariants of a [`Layout`] once [`Layout::check`] accepted it for a storage: extents and strides are not negative,
//! and the element of every index lies inside the storage. Views keep them: each is checked as it is made.

use super::dims::Dims;
use oxyfuel_base::{Result, ensure, err};

/// Shape, strides and offset in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Extent of each dim.
    pub shape: Dims,
    /// Distance between neighbours of each dim.
    pub strides: Dims,
    /// Position of the first element.
    pub offset: i64,
}

/// The number of elements of a shape; an error where it does not fit into 63 bits or an extent is negative.
pub fn element_count(shape: &[i64]) -> Result<i64> {
    if let Some(extent) = shape.iter().find(|extent| **extent < 0) {
        return Err(err!(
            InvalidArgument,
            "extent {extent} of shape {shape:?} is negative"
        ));
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape
        .iter()
        .try_fold(1i64, |product, extent| product.checked_mul(*extent));
    count.ok_or_else(|| err!(SizeOverflow, "shape {shape:?} has more than 2^63 elements"))
}

/// Whether two short lists of extents or strides are the same. A loop right here: a call of the C library's comparison takes longer than the few numbers do.
#[inline]
pub fn same(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// The bytes of a dense tensor of that shape.
pub fn byte_count(shape: &[i64], element_size: usize) -> Result<usize> {
    let bytes = element_count(shape)?
        .checked_mul(element_size as i64)
        .and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| err!(SizeOverflow, "shape {shape:?} has more than 2^63 bytes"))
}

/// Row-major strides.
pub fn contiguous_strides(shape: &[i64]) -> Dims {
    let mut strides = Dims::from(shape);
    strides.fill(1);
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

impl Layout {
    /// Row-major from the start of a storage.
    pub fn contiguous(shape: &[i64]) -> Self {
        Self {
            shape: shape.into(),
            strides: contiguous_strides(shape),
            offset: 0,
        }
    }

    /// The number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Makes sure that every element lies in a storage of `capacity` elements.
    pub fn check(&self, capacity: usize) -> Result<()> {
        ensure!(
            self.shape.len() == self.strides.len(),
            RankMismatch,
            "shape {:?} and strides {:?} differ in rank",
            self.shape,
            self.strides
        );
        ensure!(
            self.offset >= 0,
            IndexOutOfRange,
            "offset {} is negative",
            self.offset
        );
        if let Some(stride) = self.strides.iter().find(|stride| **stride < 0) {
            return Err(err!(LayoutMismatch, "stride {stride} is negative"));
        }
        if element_count(&self.shape)? == 0 {
            return Ok(());
        }
        let last = self
            .shape
            .iter()
            .zip(&self.strides)
            .try_fold(self.offset, |at, (extent, stride)| {
                at.checked_add((extent - 1).checked_mul(*stride)?)
            });
        let inside = last
            .and_then(|last| usize::try_from(last).ok())
            .is_some_and(|last| last < capacity);
        ensure!(
            inside,
            IndexOutOfRange,
            "shape {:?} with strides {:?} at {} reaches beyond {capacity} elements",
            self.shape,
            self.strides,
            self.offset
        );
        Ok(())
    }

    /// Whether the elements are dense and in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.contains(&0)
            || self
                .shape
                .iter()
                .zip(&self.strides)
                .rev()
                .all(|(extent, stride)| {
                    let fits = *extent == 1 || *stride == expected;
                    expected *= extent;
                    fits
                })
    }

    fn dim(&self, dim: usize) -> Result<usize> {
        ensure!(
            dim < self.rank(),
            DimOutOfRange,
            "dim {dim} of a tensor with {} dims",
            self.rank()
        );
        Ok(dim)
    }

    /// Dims in another order.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        ensure!(
            order.len() == self.rank(),
            RankMismatch,
            "{order:?} permutes {} dims",
            self.rank()
        );
        for (at, dim) in order.iter().enumerate() {
            self.dim(*dim)?;
            ensure!(
                !order[..at].contains(dim),
                DimOutOfRange,
                "dim {dim} twice in {order:?}"
            );
        }
        let pick = |from: &[i64]| order.iter().map(|dim| from[*dim]).collect();
        Ok(Self {
            shape: pick(&self.shape),
            strides: pick(&self.strides),
            offset: self.offset,
        })
    }

    /// `begin..end` of one dim in steps of `step`.
    pub fn slice(&self, dim: usize, begin: i64, end: i64, step: i64) -> Result<Self> {
        let dim = self.dim(dim)?;
        let extent = self.shape[dim];
        ensure!(step > 0, InvalidArgument, "a slice cannot step by {step}");
        ensure!(
            0 <= begin && begin <= end && end <= extent,
            IndexOutOfRange,
            "slice {begin}..{end} of a dim of extent {extent}"
        );
        let mut view = self.clone();
        view.shape[dim] = div_ceil(end - begin, step);
        // An empty slice keeps its offset, which stays inside.
        if begin < end {
            let moved = begin
                .checked_mul(self.strides[dim])
                .and_then(|by| self.offset.checked_add(by));
            view.offset =
                moved.ok_or_else(|| err!(SizeOverflow, "the offset of a slice overflows"))?;
        }
        // One element or none: the stride is never used, and must not overflow.
        view.strides[dim] = self.strides[dim]
            .checked_mul(step)
            .unwrap_or(self.strides[dim]);
        Ok(view)
    }

    /// Repeats dims of extent 1, and new dims in front, without copying.
    pub fn expand(&self, shape: &[i64]) -> Result<Self> {
        element_count(shape)?;
        let new = shape.len().checked_sub(self.rank());
        let new = new.ok_or_else(|| {
            err!(
                RankMismatch,
                "shape {:?} cannot expand to {shape:?}",
                self.shape
            )
        })?;
        let mut strides = Dims::from(shape);
        strides.fill(0);
        for dim in 0..self.rank() {
            let (from, to) = (self.shape[dim], shape[new + dim]);
            ensure!(
                from == to || from == 1,
                ShapeMismatch,
                "shape {:?} cannot expand to {shape:?}",
                self.shape
            );
            strides[new + dim] = if from == to { self.strides[dim] } else { 0 };
        }
        Ok(Self {
            shape: shape.into(),
            strides,
            offset: self.offset,
        })
    }

    /// Another shape over the same elements in the same order, where strides can express it.
    pub fn reshape(&self, shape: &[i64]) -> Result<Self> {
        let count = element_count(shape)?;
        ensure!(
            count == element_count(&self.shape)?,
            ShapeMismatch,
            "shape {:?} and shape {shape:?} differ in their number of elements",
            self.shape
        );
        if count == 0 || self.is_contiguous() {
            return Ok(Self {
                shape: shape.into(),
                strides: contiguous_strides(shape),
                offset: self.offset,
            });
        }
        let strides = self.regroup(shape).ok_or_else(|| {
            err!(
                LayoutMismatch,
                "shape {:?} with strides {:?} is no view of shape {shape:?}",
                self.shape,
                self.strides
            )
            .help("call contiguous() first")
        })?;
        Ok(Self {
            shape: shape.into(),
            strides,
            offset: self.offset,
        })
    }

    /// Strides of `shape` over our elements. Old and new dims are matched from the right in groups of equal element
    /// count; within a group the old dims must be mergeable into one.
    fn regroup(&self, shape: &[i64]) -> Option<Dims> {
        let old: Vec<(i64, i64)> = self
            .shape
            .iter()
            .copied()
            .zip(self.strides.iter().copied())
            .filter(|(extent, _)| *extent != 1)
            .collect();
        let mut strides = Dims::from(shape);
        strides.fill(1);
        let (mut at, mut new) = (old.len(), shape.len());
        while at > 0 {
            // Merge old dims while each continues the one to its right.
            let (mut extent, stride) = old[at - 1];
            at -= 1;
            while at > 0 && old[at - 1].1 == stride.checked_mul(extent)? {
                extent *= old[at - 1].0;
                at -= 1;
            }
            let mut step = stride;
            while extent > 1 {
                new = new.checked_sub(1)?;
                if extent % shape[new] != 0 {
                    return None;
                }
                strides[new] = step;
                step = step.checked_mul(shape[new])?;
                extent /= shape[new];
            }
        }
        Some(strides)
    }
}

/// Rounded up, for numbers that are not negative; nothing in between overflows.
fn div_ceil(number: i64, by: i64) -> i64 {
    number / by + i64::from(number % by != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;
    use proptest::prelude::*;

    /// Positions of all elements in row-major order of their indices, one by one.
    fn positions(layout: &Layout) -> Vec<i64> {
        let mut out = vec![layout.offset];
        for (extent, stride) in layout.shape.iter().zip(&layout.strides) {
            out = out
                .iter()
                .flat_map(|at| (0..*extent).map(move |i| at + i * stride))
                .collect();
        }
        out
    }

    proptest! {
        #[test]
        fn views_stay_inside(
            shape in proptest::collection::vec(0i64..5, 0..4),
            ops in proptest::collection::vec((0usize..5, 0usize..4, 0i64..6, 0i64..6, 1i64..4), 0..6),
        ) {
            let mut layout = Layout::contiguous(&shape);
            let capacity = element_count(&shape).unwrap() as usize;
            for (op, dim, a, b, step) in ops {
                let next = match op {
                    0 => layout.slice(dim, a, b, step),
                    1 => layout.permute(&(0..layout.rank()).rev().collect::<Vec<_>>()),
                    2 => layout.expand(&[&[a], &layout.shape[..]].concat()),
                    3 => layout.reshape(&[element_count(&layout.shape).unwrap()]),
                    _ => layout.reshape(&[&[1], &layout.shape[..], &[1]].concat()),
                };
                if let Ok(next) = next {
                    if op >= 3 {
                        prop_assert_eq!(positions(&next), positions(&layout));
                    }
                    layout = next;
                    layout.check(capacity).unwrap();
                    prop_assert!(positions(&layout).iter().all(|at| (0..capacity as i64).contains(at)));
                }
            }
        }

        #[test]
        fn check_agrees_with_enumeration(
            dims in proptest::collection::vec((0i64..4, 0i64..6), 0..4), offset in 0i64..8, capacity in 0usize..30,
        ) {
            let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
            let layout = Layout { shape: shape.into(), strides: strides.into(), offset };
            let inside = positions(&layout).iter().all(|at| *at < capacity as i64);
            prop_assert_eq!(layout.check(capacity).is_ok(), inside);
        }

        #[test]
        fn contiguous_means_row_major(dims in proptest::collection::vec((0i64..4, 0i64..6), 0..4)) {
            let (shape, strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
            let layout = Layout { shape: shape.into(), strides: strides.into(), offset: 0 };
            let row_major = positions(&layout).iter().enumerate().all(|(i, at)| i as i64 == *at);
            prop_assert_eq!(layout.is_contiguous(), row_major);
        }
    }

    #[test]
    fn reshape_of_a_transpose_needs_a_copy() {
        let t = Layout::contiguous(&[2, 3]).permute(&[1, 0]).unwrap();
        assert_eq!(t.reshape(&[6]).unwrap_err().code, Code::LayoutMismatch);
        assert_eq!(t.reshape(&[3, 1, 2]).unwrap().strides[0], 1);
        assert_eq!(t.reshape(&[5]).unwrap_err().code, Code::ShapeMismatch);
    }

    #[test]
    fn absurd_shapes_are_errors() {
        assert_eq!(
            element_count(&[1 << 40, 1 << 40]).unwrap_err().code,
            Code::SizeOverflow
        );
        assert_eq!(
            byte_count(&[1 << 62], 8).unwrap_err().code,
            Code::SizeOverflow
        );
        assert_eq!(
            element_count(&[-1]).unwrap_err().code,
            Code::InvalidArgument
        );
        assert_eq!(element_count(&[i64::MAX, i64::MAX, 0]).unwrap(), 0);
        let wild = Layout {
            shape: [2, 2].as_slice().into(),
            strides: [i64::MAX, i64::MAX].as_slice().into(),
            offset: 1,
        };
        assert_eq!(
            wild.check(usize::MAX).unwrap_err().code,
            Code::IndexOutOfRange
        );
        assert_eq!(
            Layout::contiguous(&[3]).slice(0, 1, 5, 1).unwrap_err().code,
            Code::IndexOutOfRange
        );
        assert_eq!(
            Layout::contiguous(&[3])
                .slice(0, 0, 3, i64::MAX)
                .unwrap()
                .shape,
            [1]
        );
        assert_eq!(
            Layout::contiguous(&[3]).permute(&[0, 0]).unwrap_err().code,
            Code::RankMismatch
        );
        assert_eq!(
            Layout::contiguous(&[3, 1])
                .permute(&[0, 0])
                .unwrap_err()
                .code,
            Code::DimOutOfRange
        );
    }
}
