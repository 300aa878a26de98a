//! Short lists of extents or strides, one a dim.
//!
//! A list of up to [`FEW`] numbers lies in the value itself, so that making a tensor, cloning it and dropping it ask for no memory.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// As many dims as most tensors have.
const FEW: usize = 5;

/// One number a dim; a slice in all but its place.
#[derive(Clone)]
pub struct Dims(Place);

#[derive(Clone)]
enum Place {
    /// The first `count` of them.
    Here {
        count: u8,
        numbers: [i64; FEW],
    },
    Elsewhere(Box<[i64]>),
}

impl Deref for Dims {
    type Target = [i64];

    #[inline]
    fn deref(&self) -> &[i64] {
        match &self.0 {
            Place::Here { count, numbers } => &numbers[..usize::from(*count)],
            Place::Elsewhere(numbers) => numbers,
        }
    }
}

impl DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [i64] {
        match &mut self.0 {
            Place::Here { count, numbers } => &mut numbers[..usize::from(*count)],
            Place::Elsewhere(numbers) => numbers,
        }
    }
}

impl From<&[i64]> for Dims {
    #[inline]
    fn from(list: &[i64]) -> Self {
        if list.len() > FEW {
            return Self(Place::Elsewhere(list.into()));
        }
        let mut numbers = [0; FEW];
        // A loop right here: a call of the C library's copy takes longer than the few numbers do.
        for (number, value) in numbers.iter_mut().zip(list) {
            *number = *value;
        }
        Self(Place::Here {
            count: list.len() as u8,
            numbers,
        })
    }
}

impl From<Vec<i64>> for Dims {
    fn from(list: Vec<i64>) -> Self {
        match list.len() > FEW {
            true => Self(Place::Elsewhere(list.into())),
            false => list.as_slice().into(),
        }
    }
}

impl FromIterator<i64> for Dims {
    fn from_iter<I: IntoIterator<Item = i64>>(numbers: I) -> Self {
        numbers.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Dims {
    type Item = &'a i64;
    type IntoIter = std::slice::Iter<'a, i64>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Dims {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Dims {}

impl<const N: usize> PartialEq<[i64; N]> for Dims {
    fn eq(&self, other: &[i64; N]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_the_same_list() {
        for count in 0..12i64 {
            let list: Vec<i64> = (0..count).map(|i| i * i + 1).collect();
            let mut dims = Dims::from(list.as_slice());
            assert_eq!(*dims, *list);
            assert_eq!(dims, Dims::from(list.clone()));
            assert_eq!(dims, list.iter().copied().collect::<Dims>());
            assert_eq!(format!("{dims:?}"), format!("{list:?}"));
            let here = matches!(dims.0, Place::Here { .. });
            assert_eq!(here, list.len() <= FEW);
            if let Some(last) = dims.last_mut() {
                *last = 0;
                assert_ne!(*dims, *list);
            }
        }
    }
}
