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
use oxyfuel_graph::{Binary, Unary};
use std::panic::Location;

impl Tensor {
    /// Gives the elements of this tensor the values of a result of the same shape; its dtype stays.
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
        self.put(&new, caller)
    }

    /// Overwrites the elements with those of a tensor of the same shape and dtype.
    fn put(&mut self, new: &Tensor, caller: &Location<'_>) -> Result<()> {
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
            self.put(&copied, caller)
        };
        write().map_err(|error| located(error, caller))
    }

    /// Overwrites every element with a number.
    #[track_caller]
    pub fn fill_(&mut self, value: impl Into<Scalar>) -> Result<()> {
        let caller = Location::caller();
        let filled = self.full_like(value);
        self.put(&filled, caller)
            .map_err(|error| located(error, caller))
    }

    /// Overwrites every element with 0.
    #[track_caller]
    pub fn zero_(&mut self) -> Result<()> {
        self.fill_(0)
    }

    /// Writes `value` where the mask holds.
    #[track_caller]
    pub fn masked_fill_<'a>(&mut self, mask: &Tensor, value: impl Into<Operand<'a>>) -> Result<()> {
        let caller = Location::caller();
        let filled = self.masked_fill(mask, value);
        self.store("masked_fill_", &filled, caller)
            .map_err(|error| located(error, caller))
    }

    /// Brings the elements between two bounds, either of which may be missing.
    #[track_caller]
    pub fn clamp_(&mut self, low: Option<f64>, high: Option<f64>) -> Result<()> {
        let caller = Location::caller();
        let clamped = self.clamp(low, high);
        self.store("clamp_", &clamped, caller)
            .map_err(|error| located(error, caller))
    }

    /// Replaces the slices along `dim` that the one-dimensional `index` names by those of `src`.
    #[track_caller]
    pub fn index_put_(&mut self, src: &Tensor, dim: i64, index: &Tensor) -> Result<()> {
        let caller = Location::caller();
        let put = self.index_put(src, dim, index);
        self.store("index_put_", &put, caller)
            .map_err(|error| located(error, caller))
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

macro_rules! binary {
    ($($name:ident $f:ident $doc:literal;)*) => {
        /// Functions of two elements that overwrite the first; the other operand is a tensor, which is broadcast, or a number.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name<'a>(&mut self, other: impl Into<Operand<'a>>) -> Result<()> {
                let caller = Location::caller();
                let new = apply(Call::Binary(Binary::$f), &[(&*self).into(), other.into()]);
                self.store(stringify!($name), &new, caller).map_err(|error| located(error, caller))
            })*
        }
    };
}

binary! {
    add_ Add "`a += b`.";
    sub_ Sub "`a -= b`.";
    mul_ Mul "`a *= b`.";
    div_ Div "`a /= b`; not of integers, whose quotient is a float.";
    remainder_ Remainder "`a = a - floor(a / b) b`.";
    pow_ Pow "a to the power b, in its place.";
    maximum_ Maximum "The larger, in its place.";
    minimum_ Minimum "The smaller, in its place.";
    bitwise_and_ BitwiseAnd "`a &= b`.";
    bitwise_or_ BitwiseOr "`a |= b`.";
    bitwise_xor_ BitwiseXor "`a ^= b`.";
}

macro_rules! unary {
    ($($name:ident $f:ident $doc:literal;)*) => {
        /// Functions of one element that overwrite it.
        impl Tensor {
            $(#[doc = $doc]
            #[track_caller]
            pub fn $name(&mut self) -> Result<()> {
                let caller = Location::caller();
                let new = apply(Call::Unary(Unary::$f), &[(&*self).into()]);
                self.store(stringify!($name), &new, caller).map_err(|error| located(error, caller))
            })*
        }
    };
}

unary! {
    neg_ Neg "`-x`, in its place.";
    abs_ Abs "`|x|`, in its place.";
    relu_ Relu "`max(x, 0)`, in its place.";
    exp_ Exp "e to the power x, in its place.";
    sqrt_ Sqrt "Square root, in its place.";
    sigmoid_ Sigmoid "`1 / (1 + exp(-x))`, in its place.";
    tanh_ Tanh "Hyperbolic tangent, in its place.";
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
