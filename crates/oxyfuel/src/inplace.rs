//! Writing: methods that end in `_` change the elements of a tensor, and everything that looks at the same memory sees it.
//!
//! A `Tensor` is a handle: a clone of it, and every view, is the same memory. Parts are written through views: `x.slice(0, 2, 4, 1).copy_(&y)` is `x[2:4] = y`.
//!
//! In a function that is being captured the writes are noted, and arguments and captured tensors that the function writes are written by every call of the compiled function, as eager
//! execution would; where only a part changes, only that part is.

use crate::call::{Call, Operand, apply};
use crate::tensor::{State, Tensor, located};
use crate::trace;
use oxyfuel_base::{DType, Result, Scalar, ensure, err};
use oxyfuel_graph::Meet;
use std::panic::Location;

impl Tensor {
    /// Gives the elements of this tensor the values of a result of the same shape; its dtype stays. What the methods that end in `_` do with the result of those that do not.
    #[track_caller]
    pub(crate) fn overwrite(&mut self, name: &str, new: &Tensor) -> Result<()> {
        let caller = Location::caller();
        self.store(name, new, caller)
            .map_err(|error| located(error, caller))
    }

    fn store(&mut self, name: &str, new: &Tensor, caller: &Location<'_>) -> Result<()> {
        self.check()?;
        new.check()?;
        ensure!(
            self.extents() == new.extents(),
            ShapeMismatch,
            "{name}: a result of shape {:?} does not fit into a tensor of shape {:?}",
            new.extents(),
            self.extents()
        );
        ensure!(
            rank_of(new.dtype()) <= rank_of(self.dtype()),
            DTypeMismatch,
            "{name}: a result of {} cannot be kept in a tensor of {}",
            new.dtype(),
            self.dtype()
        );
        let new = new.to(self.dtype());
        self.replace(&new, caller)
    }

    /// Overwrites the elements with those of a tensor of the same shape and dtype.
    fn replace(&mut self, new: &Tensor, caller: &Location<'_>) -> Result<()> {
        new.check()?;
        let traced = [&*self, new]
            .into_iter()
            .find_map(|tensor| match &tensor.state {
                State::Traced(traced) => Some(traced.trace().clone()),
                State::Concrete(_) | State::Failed(_) => None,
            });
        if let Some(trace) = traced.or_else(trace::current) {
            return trace::write(&trace, self, new, caller);
        }
        let source = new.concrete("a write", caller)?.clone();
        match &mut self.state {
            State::Concrete(tensor) => {
                let mut dims = tensor.shape().iter().zip(tensor.strides());
                ensure!(
                    !dims.any(|(extent, stride)| *extent > 1 && *stride == 0),
                    AliasedInputs,
                    "a write into an expanded tensor, whose elements share memory"
                );
                tensor.copy_from(&source)
            }
            State::Traced(_) | State::Failed(_) => Ok(()),
        }
    }

    /// Overwrites the elements with those of `from`, broadcast to this shape and converted to this dtype. Views of the same memory see it.
    #[track_caller]
    pub fn copy_<'a>(&mut self, from: impl Into<Operand<'a>>) -> Result<()> {
        let caller = Location::caller();
        let from = from.into();
        let copied = match from {
            Operand::Tensor(tensor)
                if tensor.dtype() == self.dtype() && tensor.extents() == self.extents() =>
            {
                tensor.clone()
            }
            Operand::Tensor(_) | Operand::Number(_) => apply(Call::Copy, &[(&*self).into(), from]),
        };
        let mut write = || {
            self.check()?;
            self.replace(&copied, caller)
        };
        write().map_err(|error| located(error, caller))
    }

    /// Overwrites every element with a number.
    #[track_caller]
    pub fn fill_(&mut self, value: impl Into<Scalar>) -> Result<()> {
        let caller = Location::caller();
        let filled = self.full_like(value);
        self.replace(&filled, caller)
            .map_err(|error| located(error, caller))
    }

    /// Overwrites every element with 0.
    #[track_caller]
    pub fn zero_(&mut self) -> Result<()> {
        self.fill_(0)
    }

    /// `x[start:end:step] = src` along a dim; `src` is broadcast.
    #[track_caller]
    pub fn slice_assign<'a>(
        &mut self,
        dim: i64,
        start: i64,
        end: i64,
        step: i64,
        src: impl Into<Operand<'a>>,
    ) -> Result<()> {
        self.slice(dim, start, end, step).copy_(src)
    }

    /// `x[index] = src` along a dim; `src` is broadcast.
    #[track_caller]
    pub fn select_assign<'a>(
        &mut self,
        dim: i64,
        index: i64,
        src: impl Into<Operand<'a>>,
    ) -> Result<()> {
        self.select(dim, index).copy_(src)
    }
}

/// Which kinds of numbers a dtype holds: a result may be kept in a dtype of its own kind or a later one.
fn rank_of(dtype: DType) -> u8 {
    match (dtype, dtype.is_int()) {
        (DType::Bool, _) => 0,
        (_, true) => 1,
        (_, false) => 2,
    }
}

macro_rules! in_place {
    ($($name:ident / $in_place:ident $(<$life:lifetime>)? ($($argument:ident: $ty:ty),*);)*) => {
        /// Forms that overwrite the tensor with what the method without the `_` returns, of methods that are not in the tables of elementwise functions.
        impl Tensor {
            $(#[doc = concat!("[`", stringify!($name), "`](Self::", stringify!($name), "), in its place.")]
            #[track_caller]
            pub fn $in_place$(<$life>)?(&mut self, $($argument: $ty),*) -> Result<()> {
                let new = self.$name($($argument),*);
                self.overwrite(stringify!($in_place), &new)
            })*
        }
    };
}

in_place! {
    clamp / clamp_ (low: Option<f64>, high: Option<f64>);
    logical_and / logical_and_ (other: &Tensor);
    logical_or / logical_or_ (other: &Tensor);
    logical_xor / logical_xor_ (other: &Tensor);
    logit / logit_ (eps: Option<f64>);
    lgamma / lgamma_ ();
    digamma / digamma_ ();
    erfinv / erfinv_ ();
    i0 / i0_ ();
    polygamma / polygamma_ (n: i64);
    gcd / gcd_ (other: &Tensor);
    cumsum / cumsum_ (dim: i64);
    cumprod / cumprod_ (dim: i64);
    tril / tril_ (diagonal: i64);
    triu / triu_ (diagonal: i64);
    masked_fill / masked_fill_ <'a> (mask: &Tensor, value: impl Into<Operand<'a>>);
    masked_scatter / masked_scatter_ (mask: &Tensor, src: &Tensor);
    index_put / index_put_ (src: &Tensor, dim: i64, index: &Tensor);
    index_put_at / index_put_at_ (indices: &[Option<&Tensor>], values: &Tensor, accumulate: bool);
    index_fill / index_fill_ <'a> (dim: i64, index: &'a Tensor, value: impl Into<Operand<'a>>);
    index_add / index_add_ (dim: i64, index: &Tensor, src: &Tensor);
    index_reduce / index_reduce_ (dim: i64, index: &Tensor, src: &Tensor, how: Meet, include_self: bool);
    put / put_ (index: &Tensor, src: &Tensor, accumulate: bool);
    scatter / scatter_ <'a> (dim: i64, index: &'a Tensor, src: impl Into<Operand<'a>>);
    scatter_add / scatter_add_ (dim: i64, index: &Tensor, src: &Tensor);
    scatter_reduce / scatter_reduce_ (dim: i64, index: &Tensor, src: &Tensor, how: Meet, include_self: bool);
    addmm / addmm_ (a: &Tensor, b: &Tensor, beta: f64, alpha: f64);
    baddbmm / baddbmm_ (a: &Tensor, b: &Tensor, beta: f64, alpha: f64);
    addbmm / addbmm_ (a: &Tensor, b: &Tensor, beta: f64, alpha: f64);
    addmv / addmv_ (matrix: &Tensor, vector: &Tensor, beta: f64, alpha: f64);
    addr / addr_ (a: &Tensor, b: &Tensor, beta: f64, alpha: f64);
    uniform_like / uniform_ <'a> (low: f64, high: f64, seed: impl Into<Operand<'a>>);
    normal_like / normal_ <'a> (mean: f64, deviation: f64, seed: impl Into<Operand<'a>>);
    exponential_like / exponential_ <'a> (rate: f64, seed: impl Into<Operand<'a>>);
    randint_like / random_ <'a> (low: i64, high: i64, seed: impl Into<Operand<'a>>);
    dropout / dropout_ <'a> (probability: f64, seed: impl Into<Operand<'a>>);
}

/// Runs a part of a function eagerly, also while the function is being captured: the function is cut there, and the region runs at every call, on the tensors of that call.
///
/// Writes into its arguments are seen outside. Under `fullgraph` it is an error that names the line.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(
///     |x: &Tensor| {
///         let y = x * 2.0;
///         let sorted = oxyfuel::disable(&y, |y| {
///             let mut numbers = y.to_vec::<f32>()?; // any Rust code
///             numbers.sort_by(f32::total_cmp);
///             Ok::<_, oxyfuel::Error>(Tensor::from_vec(numbers, &[3]))
///         })??;
///         Ok::<_, oxyfuel::Error>(sorted + 1.0)
///     },
///     Options::default(),
/// )?;
/// let y = f.call_one(&[&Tensor::from_slice(&[3.0f32, 1.0, 2.0], &[3])])?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 5.0, 7.0]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn disable<T: crate::Tensors, R>(arguments: &T, region: impl FnOnce(&T) -> R) -> Result<R> {
    let caller = Location::caller();
    let Some(trace) = trace::current() else {
        return Ok(region(arguments));
    };
    let named = crate::structure::named(arguments);
    let tensors: Vec<&Tensor> = named.iter().map(|(_, tensor)| *tensor).collect();
    let read = trace::read_all(&trace, &tensors, "disable", caller)?;
    let mut read = read.into_iter();
    let arguments = crate::structure::map(arguments, &mut |_, _| {
        let next = read.next();
        next.map(Tensor::from)
            .ok_or_else(|| err!(Internal, "a structure changed its tensors"))
    })?;
    Ok(trace::suspended(|| region(&arguments)))
}
