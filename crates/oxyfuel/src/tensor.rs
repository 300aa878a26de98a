//! The tensor that users hold.
//!
//! One type for three states, so that a function is written once and runs both ways:
//!
//! | state | where it comes from | what an operation does with it |
//! |---|---|---|
//! | concrete | constructors, eager operations, results of compiled functions | runs one kernel, now; views copy nothing |
//! | traced | the arguments of a closure while [`compile`](crate::compile()) captures it | notes one node in a graph |
//! | failed | an operation that went wrong | passes the first error on |
//!
//! **Errors.** Whatever makes a tensor returns a tensor, so that formulas read like formulas; a mistake makes a *failed* tensor that remembers the error and the
//! line of the user's program. Whatever leaves the world of tensors ([`Tensor::to_vec`], [`Tensor::item`], [`Tensor::check`],
//! [`Compiled::call`](crate::Compiled::call)) returns a `Result` with that first error. Nothing panics.
//!
//! ```
//! use oxyfuel::{Code, DType, Tensor};
//! let x = Tensor::ones(&[2, 3], DType::F32);
//! let y = Tensor::ones(&[4], DType::F32);
//! let z = (&x + &y).relu() * 2.0; // no panic, no `?`
//! let error = z.to_vec::<f32>().unwrap_err();
//! assert_eq!(error.code, Code::ShapeMismatch);
//! println!("{error}"); // with file and line of the addition
//! assert!(error.at.is_some());
//! ```

use crate::machine::{self, Device};
use crate::trace::{self, Traced};
use oxyfuel_base::{DType, Error, Location, Result, Scalar, ensure, err};
use oxyfuel_graph::HostTensor;
use oxyfuel_runtime::tensor as rt;
use oxyfuel_runtime::tensor::element::Element;
use std::fmt;
use std::panic;
use std::sync::Arc;

/// A tensor: a strided window on memory of a device, a value of a captured program, or an error. See the module's documentation.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) state: State,
}

#[derive(Clone)]
pub(crate) enum State {
    Concrete(rt::Tensor),
    Traced(Traced),
    Failed(Arc<Error>),
}

/// The place of a caller in the user's program.
pub(crate) fn place(caller: &panic::Location<'_>) -> Location {
    Location::new(caller.file(), caller.line(), caller.column())
}

/// Adds the place in the user's program and what to do, where they are not known yet.
pub(crate) fn located(error: Error, caller: &panic::Location<'_>) -> Error {
    let error = crate::advice::advised(error);
    match error.at {
        Some(_) => error,
        None => error.at(place(caller)),
    }
}

impl From<rt::Tensor> for Tensor {
    fn from(tensor: rt::Tensor) -> Self {
        Self {
            state: State::Concrete(tensor),
        }
    }
}

impl Tensor {
    pub(crate) fn failed(error: impl Into<Arc<Error>>) -> Self {
        Self {
            state: State::Failed(error.into()),
        }
    }

    /// The failed tensor of an error, at the caller.
    #[track_caller]
    pub(crate) fn refused(error: Error) -> Self {
        Self::failed(located(error, panic::Location::caller()))
    }

    /// A tensor, or the failed tensor of an error, at the caller.
    #[track_caller]
    pub(crate) fn or_refused(made: Result<Self>) -> Self {
        match made {
            Ok(tensor) => tensor,
            Err(error) => Self::refused(error),
        }
    }

    /// A tensor, or the failed tensor of an error at `caller`.
    pub(crate) fn made(made: Result<rt::Tensor>, caller: &panic::Location<'_>) -> Self {
        match made {
            Ok(tensor) => tensor.into(),
            Err(error) => Self::failed(located(error, caller)),
        }
    }

    /// A new tensor with elements of its own: in a function that is being captured, at every call.
    fn new(made: Result<rt::Tensor>, caller: &panic::Location<'_>) -> Self {
        match (made, trace::current()) {
            (Ok(tensor), Some(trace)) => trace::copied(&trace, tensor, caller)
                .unwrap_or_else(|error| Self::failed(located(error, caller))),
            (made, _) => Self::made(made, caller),
        }
    }

    /// A tensor that a captured program makes by itself, where one is being captured.
    fn noted(
        caller: &panic::Location<'_>,
        make: impl FnOnce(&mut oxyfuel_graph::Builder) -> Result<oxyfuel_graph::ValueId>,
    ) -> Option<Self> {
        let trace = trace::current()?;
        let made = trace::source(&trace, caller, make);
        Some(made.unwrap_or_else(|error| Self::failed(located(error, caller))))
    }

    // ---- what it is -------------------------------------------------------------------------------------------------------------

    /// The element type; `f32` for a failed tensor.
    pub fn dtype(&self) -> DType {
        match &self.state {
            State::Concrete(tensor) => tensor.dtype(),
            State::Traced(traced) => traced.facts().dtype,
            State::Failed(_) => DType::F32,
        }
    }

    /// The extent of each dim; empty for a failed tensor, so prefer [`Self::dims`] or [`Self::size`] to indexing.
    ///
    /// In a function that is being captured, an extent that is looked at is a number of the program: another one leads to another variant. What is only passed on (as by `reshape(&[-1, 4])`,
    /// `unflatten`, `zeros_like`) may change freely.
    #[track_caller]
    pub fn shape(&self) -> &[i64] {
        match &self.state {
            State::Concrete(tensor) => tensor.shape(),
            State::Traced(traced) => traced.shape(panic::Location::caller()),
            State::Failed(_) => &[],
        }
    }

    /// The extents for our own use: those of a traced tensor as the call has them, whether they are symbols or not.
    pub(crate) fn extents(&self) -> &[i64] {
        match &self.state {
            State::Concrete(tensor) => tensor.shape(),
            State::Traced(traced) => &traced.facts().shape,
            State::Failed(_) => &[],
        }
    }

    /// All extents, where there are `N`: `let [rows, cols] = x.dims()?;`.
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> Result<[i64; N]> {
        self.check()?;
        let caller = panic::Location::caller();
        <[i64; N]>::try_from(self.shape()).map_err(|_| {
            located(
                err!(
                    RankMismatch,
                    "a tensor of shape {:?} has {} dims, not {N}",
                    self.shape(),
                    self.rank()
                ),
                caller,
            )
        })
    }

    /// One extent; a negative dim counts from the end.
    #[track_caller]
    pub fn size(&self, dim: i64) -> Result<i64> {
        self.check()?;
        let rank = self.rank() as i64;
        let index = if dim < 0 { dim + rank } else { dim };
        let index = usize::try_from(index).ok();
        let caller = panic::Location::caller();
        if let State::Traced(traced) = &self.state {
            traced.fix(index, caller);
        }
        let extent = index.and_then(|index| self.extents().get(index));
        extent.copied().ok_or_else(|| {
            located(
                err!(DimOutOfRange, "dim {dim} of a tensor with {rank} dims"),
                caller,
            )
        })
    }

    /// The distance between neighbours of each dim, in elements. A traced tensor shows those that it would have eagerly.
    #[track_caller]
    pub fn strides(&self) -> &[i64] {
        match &self.state {
            State::Concrete(tensor) => tensor.strides(),
            State::Traced(traced) => traced.strides(panic::Location::caller()),
            State::Failed(_) => &[],
        }
    }

    /// The number of dims.
    pub fn rank(&self) -> usize {
        self.extents().len()
    }

    /// The number of elements; 0 for a failed tensor.
    #[track_caller]
    pub fn numel(&self) -> i64 {
        match &self.state {
            State::Failed(_) => 0,
            State::Concrete(_) | State::Traced(_) => count(self.shape()),
        }
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        match &self.state {
            State::Concrete(tensor) => tensor.device().into(),
            State::Traced(traced) => traced.facts().device,
            State::Failed(_) => Device::Cpu,
        }
    }

    /// Whether the elements are dense and in row-major order.
    pub fn is_contiguous(&self) -> bool {
        match &self.state {
            State::Concrete(tensor) => tensor.is_contiguous(),
            State::Traced(traced) => traced.facts().contiguous,
            State::Failed(_) => false,
        }
    }

    /// Whether it stands for a value of a program that is being captured.
    pub fn is_traced(&self) -> bool {
        matches!(self.state, State::Traced(_))
    }

    /// The first error behind this tensor, if there is one.
    pub fn check(&self) -> Result<()> {
        match &self.state {
            State::Concrete(_) | State::Traced(_) => Ok(()),
            State::Failed(error) => Err((**error).clone()),
        }
    }

    /// The tensor itself, or the first error behind it: `let y = x.matmul(&w).try_ok()?;`.
    pub fn try_ok(self) -> Result<Self> {
        self.check().map(|()| self)
    }

    // ---- constructors -----------------------------------------------------------------------------------------------------------

    /// Every element is `value`, rounded to `dtype`.
    #[track_caller]
    pub fn full(shape: &[i64], value: impl Into<Scalar>, dtype: DType) -> Self {
        let caller = panic::Location::caller();
        let value = value.into();
        if let Some(noted) = Self::noted(caller, |b| full(b, shape, value, dtype)) {
            return noted;
        }
        let code = value.to_bits(dtype).to_le_bytes();
        let make = || {
            let tensor = rt::Tensor::empty(machine::cpu().memory(), dtype, shape)?;
            let mut writing = tensor.storage().borrow_mut()?;
            for element in writing.bytes()?.chunks_exact_mut(dtype.size()) {
                element.copy_from_slice(&code[..dtype.size()]);
            }
            drop(writing);
            Ok(tensor)
        };
        Self::new(make(), caller)
    }

    /// Every element is 0.
    #[track_caller]
    pub fn zeros(shape: &[i64], dtype: DType) -> Self {
        let caller = panic::Location::caller();
        if let Some(noted) = Self::noted(caller, |b| full(b, shape, Scalar::I(0), dtype)) {
            return noted;
        }
        Self::new(
            rt::Tensor::zeros(machine::cpu().memory(), dtype, shape),
            caller,
        )
    }

    /// Every element is 1.
    #[track_caller]
    pub fn ones(shape: &[i64], dtype: DType) -> Self {
        Self::full(shape, 1, dtype)
    }

    /// A tensor without dims.
    #[track_caller]
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Self {
        Self::full(&[], value, dtype)
    }

    /// `start, start + step, …` up to and without `end`, each rounded once.
    #[track_caller]
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Self {
        let caller = panic::Location::caller();
        let (start, end, step): (Scalar, Scalar, Scalar) = (start.into(), end.into(), step.into());
        let cpu = oxyfuel_graph::Device::Cpu;
        let noted = Self::noted(caller, |b| b.arange(start, end, step, Some(dtype), cpu));
        if let Some(noted) = noted {
            return noted;
        }
        let make = || {
            let mut b = oxyfuel_graph::Builder::new("arange");
            b.set_origin(Some(crate::call::origin(caller)));
            let counted = b.arange(start, end, step, Some(dtype), oxyfuel_graph::Device::Cpu)?;
            let count = b.ty(counted).shape[0].as_const().unwrap_or(0);
            let tensor = rt::Tensor::empty(machine::cpu().memory(), dtype, &[count])?;
            let element = |i: i64| match dtype.is_int() {
                true => Scalar::I(start.as_i64().wrapping_add(i.wrapping_mul(step.as_i64()))),
                false => Scalar::F(start.as_f64() + i as f64 * step.as_f64()),
            };
            let mut writing = tensor.storage().borrow_mut()?;
            let elements = writing.bytes()?.chunks_exact_mut(dtype.size());
            for (i, bytes) in elements.enumerate() {
                let code = element(i as i64).to_bits(dtype).to_le_bytes();
                bytes.copy_from_slice(&code[..dtype.size()]);
            }
            drop(writing);
            Ok(tensor)
        };
        Self::new(make(), caller)
    }

    /// These elements in row-major order.
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: &[i64]) -> Self {
        let caller = panic::Location::caller();
        Self::new(
            rt::Tensor::from_slice(machine::cpu().memory(), elements, shape),
            caller,
        )
    }

    /// These elements in row-major order.
    #[track_caller]
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: &[i64]) -> Self {
        Self::from_slice(&elements, shape)
    }

    /// Elements of any dtype as their bytes in row-major order: the way to formats that Rust has no type for, such as fp8.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: &[i64]) -> Self {
        let caller = panic::Location::caller();
        Self::new(
            rt::Tensor::from_bytes(machine::cpu().memory(), bytes, dtype, shape),
            caller,
        )
    }

    /// Uniform in [0, 1): Philox 4x32-10 with key `seed`; element `i` depends on `seed` and `i` alone.
    #[track_caller]
    pub fn rand(shape: &[i64], dtype: DType, seed: u64) -> Self {
        Self::random(shape, dtype, move |i| {
            Scalar::F(crate::random::uniform(seed, i))
        })
    }

    /// Standard normal, by Box and Muller from the numbers of [`Self::rand`]'s generator; element `i` depends on `seed` and `i` alone.
    #[track_caller]
    pub fn randn(shape: &[i64], dtype: DType, seed: u64) -> Self {
        Self::random(shape, dtype, move |i| {
            Scalar::F(crate::random::normal(seed, i))
        })
    }

    /// Uniform integers in `low..high`, from the same generator.
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: &[i64], dtype: DType, seed: u64) -> Self {
        if low >= high {
            let error = err!(InvalidArgument, "randint: no integer in {low}..{high}");
            return Self::failed(located(error, panic::Location::caller()));
        }
        let count = high.wrapping_sub(low) as u64;
        Self::random(shape, dtype, move |i| {
            Scalar::I(low.wrapping_add(crate::random::below(seed, i, count) as i64))
        })
    }

    #[track_caller]
    fn random(shape: &[i64], dtype: DType, element: impl Fn(u64) -> Scalar) -> Self {
        let caller = panic::Location::caller();
        let make = || {
            let tensor = rt::Tensor::empty(machine::cpu().memory(), dtype, shape)?;
            let mut writing = tensor.storage().borrow_mut()?;
            let elements = writing.bytes()?.chunks_exact_mut(dtype.size());
            for (i, bytes) in elements.enumerate() {
                let code = element(i as u64).to_bits(dtype).to_le_bytes();
                bytes.copy_from_slice(&code[..dtype.size()]);
            }
            drop(writing);
            Ok(tensor)
        };
        Self::new(make(), caller)
    }

    // ---- out of the world of tensors --------------------------------------------------------------------------------------------

    /// The memory behind a tensor. In a function that is being captured, reading it cuts the function, or is an error that says so.
    pub(crate) fn read(&self, what: &str, caller: &panic::Location<'_>) -> Result<rt::Tensor> {
        match &self.state {
            State::Failed(error) => Err((**error).clone()),
            State::Traced(traced) => trace::read(traced.trace(), self, what, caller),
            State::Concrete(tensor) => match trace::current() {
                None => Ok(tensor.clone()),
                Some(trace) => trace::read(&trace, self, what, caller),
            },
        }
    }

    /// The memory behind a concrete tensor, of which a captured program has none.
    pub(crate) fn concrete(&self, what: &str, caller: &panic::Location<'_>) -> Result<&rt::Tensor> {
        match &self.state {
            State::Concrete(tensor) => Ok(tensor),
            State::Failed(error) => Err((**error).clone()),
            State::Traced(traced) => Err(located(traced.memory_wanted(what), caller)),
        }
    }

    /// The elements in row-major order.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let caller = panic::Location::caller();
        let tensor = self.read("to_vec", caller)?;
        tensor.to_vec().map_err(|error| located(error, caller))
    }

    /// The bytes of the elements in row-major order.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let caller = panic::Location::caller();
        let tensor = self.read("to_bytes", caller)?;
        tensor.to_bytes().map_err(|error| located(error, caller))
    }

    /// The elements as f64, whatever their type: for looking and comparing.
    #[track_caller]
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        let caller = panic::Location::caller();
        let tensor = self.read("to_f64", caller)?;
        let host = HostTensor::new(tensor.dtype(), tensor.shape(), tensor.to_bytes()?)
            .map_err(|error| located(error, caller))?;
        Ok(host.to_f64())
    }

    /// The only element.
    #[track_caller]
    pub fn item(&self) -> Result<Scalar> {
        let caller = panic::Location::caller();
        let tensor = self.read("item", caller)?;
        let read = || {
            ensure!(
                tensor.len() == 1,
                ShapeMismatch,
                "item of a tensor with {} elements",
                tensor.len()
            );
            Ok(HostTensor::new(tensor.dtype(), tensor.shape(), tensor.to_bytes()?)?.get(0))
        };
        read().map_err(|error| located(error, caller))
    }

    // ---- devices and memory -----------------------------------------------------------------------------------------------------

    /// A dense copy on another device, or this tensor where it lives there already.
    #[track_caller]
    pub fn to_device(&self, device: Device) -> Self {
        let caller = panic::Location::caller();
        if self.device() == device && self.check().is_ok() {
            return self.clone();
        }
        let moved = || {
            let tensor = self.concrete("to_device", caller)?;
            match device {
                Device::Cuda(_) => tensor.to_device(&machine::handle(device)?),
                Device::Cpu => rt::Tensor::from_bytes(
                    machine::cpu().memory(),
                    &tensor.to_bytes()?,
                    tensor.dtype(),
                    tensor.shape(),
                ),
            }
        };
        Self::made(moved(), caller)
    }

    /// The address of the first element on its device; an error where there is none.
    #[track_caller]
    pub fn data_ptr(&self) -> Result<u64> {
        Ok(self
            .concrete("data_ptr", panic::Location::caller())?
            .address())
    }
}

/// The number of elements; a shape of no elements may have any other extents.
fn count(shape: &[i64]) -> i64 {
    rt::layout::element_count(shape).unwrap_or(i64::MAX)
}

/// Every element is `value`, of a shape that memory can hold.
fn full(
    b: &mut oxyfuel_graph::Builder,
    shape: &[i64],
    value: Scalar,
    dtype: DType,
) -> Result<oxyfuel_graph::ValueId> {
    rt::layout::byte_count(shape, dtype.size())?;
    let extents = shape.iter().map(|&n| n.into()).collect();
    b.full(value, extents, dtype, oxyfuel_graph::Device::Cpu)
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Concrete(_) => {
                write!(f, "{}{:?} {}", self.dtype(), self.shape(), self.device())
            }
            State::Traced(_) => write!(
                f,
                "traced {}{:?} {}",
                self.dtype(),
                self.shape(),
                self.device()
            ),
            State::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}
