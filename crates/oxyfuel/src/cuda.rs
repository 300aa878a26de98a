//! CUDA graphs of any callable: what it asks of a GPU is recorded once and launched as one from then on.
//!
//! ```text
//!   capture(f, arguments, warmup)   f runs `warmup` times as it is, and is recorded
//!   replay(arguments)               one launch; f itself does not run
//! ```
//!
//! | what | becomes of it |
//! |---|---|
//! | an argument that lies where it lay | nothing is copied or changed |
//! | an argument that lies elsewhere | its address is put into the recorded launches; nothing is copied |
//! | an argument that is copied as a whole, or read by kernels with tensor maps, and lies elsewhere | another recording, for that place |
//! | what `f` writes to an argument | is written to the argument of the replay |
//! | results | stay where they were recorded; while one is held, another recording runs |
//! | tensors that `f` holds by itself | are read and written where they are, and are kept alive; they must not be arguments as well |
//! | random numbers whose seed is a tensor | are new at each replay where `f` changes the seed: `seed.add_(1)` |
//! | other sizes, types or strides of arguments | another recording, after as many calls as they are: see [`CudaGraph::require`] |
//! | reading a tensor, making one of numbers of the host, waiting for the device | E0713: the callable cannot be recorded |
//!
//! Compiled functions inside of `f` are launched kernel by kernel into the recording, whatever their own mode is.

use crate::function::Function;
use crate::tensor::{State, Tensor, located};
use crate::trace;
use oxyfuel_base::{Result, ensure, err};
use oxyfuel_runtime::capture::{CaptureOptions, Captured};
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::panic::Location;

pub use oxyfuel_runtime::capture::CaptureStats;

type Callable = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;
type Key = Box<dyn Fn(&[&Tensor]) -> u64 + Send + Sync>;

/// A callable whose calls are recorded and launched as one; [`capture`] makes it. It belongs to one thread at a time.
pub struct CudaGraph {
    function: Callable,
    key: Option<Key>,
    arity: Option<usize>,
    captured: Captured,
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGraph")
            .field("captured", &self.captured)
            .finish_non_exhaustive()
    }
}

/// Runs a callable `warmup` times (at least once) on these arguments and records it; [`CudaGraph::replay`] launches what was recorded. What the callable writes to its arguments is
/// written that often.
///
/// The callable takes tensors and returns tensors, as one for [`compile`](crate::compile()) does; it runs on tensors with memory, eagerly or by calls of compiled functions.
///
/// ```no_run
/// use oxyfuel::{DType, Device, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let gpu = Device::cuda(0);
/// let w = Tensor::randn(&[512, 512], DType::F32, 1).to_device(gpu);
/// let norm = oxyfuel::compile(|x: &Tensor| x.softmax(-1), Options::default())?;
/// let x = Tensor::randn(&[64, 512], DType::F32, 0).to_device(gpu);
///
/// let mut step = oxyfuel::cuda::capture(
///     move |x: &Tensor| norm.call_one(&[&x.matmul(&w)]),
///     &[&x],
///     1,
/// )?;
/// let y = step.replay(&[&x])?; // one launch
/// println!("{}", step.stats());
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn capture<A, F: Function<A>>(
    function: F,
    inputs: &[&Tensor],
    warmup: usize,
) -> Result<CudaGraph> {
    let caller = Location::caller();
    let name = crate::core::short_name(std::any::type_name::<F>());
    let options = CaptureOptions {
        warmup,
        ..CaptureOptions::default()
    };
    let mut graph = CudaGraph {
        function: Box::new(move |tensors| function.invoke(tensors)),
        key: None,
        arity: F::ARITY,
        captured: Captured::new(name, options),
    };
    let prepare = |graph: &mut CudaGraph| {
        graph.with(inputs, caller, |captured, tensors, run| {
            captured.prepare(None, tensors, run)
        })
    };
    prepare(&mut graph).map_err(|error| located(error, caller))?;
    Ok(graph)
}

impl CudaGraph {
    /// Does what the callable does with these arguments, by one launch where it was recorded for arguments like them. On return the work may still be under way; reading a result waits for it.
    #[track_caller]
    pub fn replay(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let caller = Location::caller();
        let key = self.key.as_ref().map(|key| key(inputs));
        let replayed = self.with(inputs, caller, |captured, tensors, run| {
            captured.call(key, tensors, run)
        });
        let replayed = replayed.map_err(|error| located(error, caller))?;
        Ok(replayed.into_iter().map(Tensor::from).collect())
    }

    /// [`Self::replay`] of a callable that returns one tensor.
    #[track_caller]
    pub fn replay_one(&mut self, inputs: &[&Tensor]) -> Result<Tensor> {
        let caller = Location::caller();
        let mut results = self
            .replay(inputs)
            .map_err(|error| located(error, caller))?;
        match (results.pop(), results.len()) {
            (Some(result), 0) => Ok(result),
            (last, before) => Err(located(
                err!(
                    ArityMismatch,
                    "the callable returns {} tensors, not one",
                    before + usize::from(last.is_some())
                )
                .help("use replay"),
                caller,
            )),
        }
    }

    /// Recordings are found by what `key` says of the arguments instead of by their types, shapes and strides. Two calls with one key and other shapes are E0101.
    #[must_use]
    pub fn keyed_by(mut self, key: impl Fn(&[&Tensor]) -> u64 + Send + Sync + 'static) -> Self {
        self.key = Some(Box::new(key));
        self
    }

    /// From now on a call that is not launched as one is an error: other types or shapes are E0713, a recording that takes more than is allowed is E0605.
    #[must_use]
    pub fn require(mut self) -> Self {
        self.captured.options_mut().require = true;
        self
    }

    /// The most bytes of the GPU that its recordings take together; those that were not used for longest go first. A quarter of its memory where nobody says.
    #[must_use]
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.captured.options_mut().memory_limit = bytes;
        self
    }

    /// What has become of its calls.
    pub fn stats(&self) -> CaptureStats {
        self.captured.stats()
    }

    /// Calls `act` with the recordings, the memory behind the arguments, and the callable on such memory.
    fn with<R>(
        &mut self,
        inputs: &[&Tensor],
        caller: &Location<'_>,
        act: impl FnOnce(
            &mut Captured,
            &[&rt::Tensor],
            &mut dyn FnMut(&[&rt::Tensor]) -> Result<Vec<rt::Tensor>>,
        ) -> Result<R>,
    ) -> Result<R> {
        ensure!(
            !trace::is_tracing(),
            InvalidArgument,
            "a CUDA graph is replayed inside of a function that is being captured"
        );
        if let Some(arity) = self.arity {
            ensure!(
                arity == inputs.len(),
                ArityMismatch,
                "the callable takes {arity} tensors, got {}",
                inputs.len()
            );
        }
        let mut tensors = Vec::with_capacity(inputs.len());
        for (number, input) in inputs.iter().enumerate() {
            tensors.push(input.concrete(&format!("argument {number}"), caller)?);
        }
        let function = &self.function;
        let mut run = |tensors: &[&rt::Tensor]| {
            let tensors: Vec<Tensor> = tensors.iter().map(|&t| t.clone().into()).collect();
            let results = function(&tensors)?;
            let memory = |result: Tensor| match result.state {
                State::Concrete(tensor) => Ok(tensor),
                State::Traced(_) | State::Failed(_) => {
                    result.check()?;
                    Err(err!(
                        TraceLeak,
                        "a result of a recorded callable is a traced tensor"
                    ))
                }
            };
            results.into_iter().map(memory).collect()
        };
        act(&mut self.captured, &tensors, &mut run)
    }
}
