//! Arguments that are given away.

use crate::tensor::Tensor;

/// An argument of [`Compiled::call_donating`](crate::Compiled::call_donating), or, as a structure, of [`Jit::call_donating`](crate::Jit::call_donating): lent for the time of the call, or
/// given away.
#[derive(Clone, Debug)]
pub enum Argument<'a, T = Tensor> {
    /// It stays as it is.
    Lent(&'a T),
    /// The memory of its tensors may become that of results, where nobody else holds it: no clone, no view.
    Given(T),
}

impl<T> Argument<'_, T> {
    pub(crate) fn value(&self) -> &T {
        match self {
            Self::Lent(value) => value,
            Self::Given(value) => value,
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        match self {
            Self::Lent(_) => false,
            Self::Given(_) => true,
        }
    }
}

impl<'a, T> From<&'a T> for Argument<'a, T> {
    fn from(value: &'a T) -> Self {
        Self::Lent(value)
    }
}

impl<T> From<T> for Argument<'_, T> {
    fn from(value: T) -> Self {
        Self::Given(value)
    }
}
