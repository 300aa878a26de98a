//! What can be compiled: closures and functions of one to eight tensors, or of a slice of them, that return one tensor or several.

use crate::tensor::Tensor;
use oxyfuel_base::Result;

/// What a function of tensors may return: a tensor, a tuple, an array or a vector of tensors, or a `Result` of these.
pub trait Outputs {
    /// The tensors in order, or the first error among them.
    fn into_tensors(self) -> Result<Vec<Tensor>>;
}

impl Outputs for Tensor {
    fn into_tensors(self) -> Result<Vec<Tensor>> {
        vec![self].into_tensors()
    }
}

impl Outputs for Vec<Tensor> {
    fn into_tensors(self) -> Result<Vec<Tensor>> {
        self.iter().try_for_each(Tensor::check)?;
        Ok(self)
    }
}

impl<const N: usize> Outputs for [Tensor; N] {
    fn into_tensors(self) -> Result<Vec<Tensor>> {
        Vec::from(self).into_tensors()
    }
}

impl<T: Outputs> Outputs for Result<T> {
    fn into_tensors(self) -> Result<Vec<Tensor>> {
        self?.into_tensors()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: Outputs),*> Outputs for ($($name,)*) {
            fn into_tensors(self) -> Result<Vec<Tensor>> {
                #[expect(non_snake_case, reason = "one name a position serves as type and as value")]
                let ($($name,)*) = self;
                let mut all = Vec::new();
                $(all.extend($name.into_tensors()?);)*
                Ok(all)
            }
        }
    )*};
}
tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

/// A function of tensors. `Arguments` only tells the implementations apart.
pub trait Function<Arguments>: Send + Sync + 'static {
    /// How many tensors it takes; `None` for any number.
    const ARITY: Option<usize>;

    /// Calls it; there are as many tensors as it takes.
    fn invoke(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>>;
}

macro_rules! functions {
    ($($count:literal ($($x:ident $ty:ident)*))*) => {$(
        impl<F, R> Function<[(); $count]> for F
        where
            R: Outputs,
            F: Fn($(&$ty),*) -> R + Send + Sync + 'static,
        {
            const ARITY: Option<usize> = Some($count);

            fn invoke(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
                match tensors {
                    [$($x),*] => self($($x),*).into_tensors(),
                    _ => Err(oxyfuel_base::err!(
                        ArityMismatch, "the function takes {} tensors, got {}", $count, tensors.len()
                    )),
                }
            }
        }
    )*};
}
functions! {
    1 (a Tensor)
    2 (a Tensor b Tensor)
    3 (a Tensor b Tensor c Tensor)
    4 (a Tensor b Tensor c Tensor d Tensor)
    5 (a Tensor b Tensor c Tensor d Tensor e Tensor)
    6 (a Tensor b Tensor c Tensor d Tensor e Tensor f Tensor)
    7 (a Tensor b Tensor c Tensor d Tensor e Tensor f Tensor g Tensor)
    8 (a Tensor b Tensor c Tensor d Tensor e Tensor f Tensor g Tensor h Tensor)
}

impl<F, R> Function<Vec<Tensor>> for F
where
    R: Outputs,
    F: Fn(&[Tensor]) -> R + Send + Sync + 'static,
{
    const ARITY: Option<usize> = None;

    fn invoke(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
        self(tensors).into_tensors()
    }
}
