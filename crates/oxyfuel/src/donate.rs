//! Arguments that are given away.

use crate::tensor::Tensor;

/// An argument of [`Compiled::call_donating`](crate::Compiled::call_donating): lent for the time of the call, or given away.
#[derive(Clone, Debug)]
pub enum Argument<'a> {
    /// It stays as it is.
    Lent(&'a Tensor),
    /// Its memory may become that of a result, where nobody else holds it: no clone, no view.
    Given(Tensor),
}

impl Argument<'_> {
    pub(crate) fn tensor(&self) -> &Tensor {
        match self {
            Self::Lent(tensor) => tensor,
            Self::Given(tensor) => tensor,
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        match self {
            Self::Lent(_) => false,
            Self::Given(_) => true,
        }
    }
}

impl<'a> From<&'a Tensor> for Argument<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Lent(tensor)
    }
}

impl From<Tensor> for Argument<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::Given(tensor)
    }
}
