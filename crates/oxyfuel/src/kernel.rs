//! Kernels of your own: the tile language, compiled for the same machines by the same back ends.
//!
//! A kernel says what one instance of a grid does with tiles. Sizes are symbols that the launch supplies, masks keep tiles inside their buffers.
//!
//! ```
//! use oxyfuel::kernel::{Argument, BufferMode, KernelBuilder, Symbol};
//! use oxyfuel::{DType, Options, Tensor};
//! # fn main() -> oxyfuel::Result<()> {
//! // y = relu(x + b) * 2, a block of 1024 elements an instance.
//! let k = KernelBuilder::new("bias_relu");
//! let n = k.symbol("n", Symbol(0));
//! let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
//! let b = k.buffer("b", DType::F32, BufferMode::Read, n.expr());
//! let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
//! k.phase([n.expr().ceildiv(1024)], |k| {
//!     let base = k.program_id(0) * 1024;
//!     let left = n.tile() - &base;
//!     let v = k.load(x.at(&base).shape([1024]).valid(0, &left)) + k.load(b.at(&base).shape([1024]).valid(0, &left));
//!     k.store(y.at(&base).shape([1024]).valid(0, &left), &(v.maximum(0.0) * 2.0));
//! });
//! let kernel = oxyfuel::kernel::compile(&k.finish()?, Options::default())?;
//!
//! let x = Tensor::randn(&[5000], DType::F32, 0);
//! let b = Tensor::randn(&[5000], DType::F32, 1);
//! let y = Tensor::zeros(&[5000], DType::F32);
//! // Parameters in the order of their declaration: the size, then the buffers.
//! let arguments = [Argument::from(5000), (&x).into(), (&b).into(), (&y).into()];
//! kernel.check(&arguments)?; // slowly, in the interpreter: bounds, races, reads of what nobody wrote
//! kernel.launch(&arguments)?;
//! assert_eq!(y.to_vec::<f32>()?, ((&x + &b).relu() * 2.0).to_vec::<f32>()?);
//! # Ok(())
//! # }
//! ```
//!
//! **Trust.** A kernel is code: like one written in C or CUDA it may reach outside of its buffers if its masks are wrong. [`Kernel::check`] runs it in the interpreter, on copies, and
//! reports such mistakes; [`Kernel::launch`] checks what it can (types, lengths, alignment, devices, overlap) and trusts the rest.

use crate::advice::advised;
use crate::call::Operand;
use crate::machine::{self, Device};
use crate::tensor::located;
use crate::{Options, Result};
use oxyfuel_base::error::caught;
use oxyfuel_base::{Expr, Scalar, ensure, err};
use oxyfuel_engine::{Executable, Record, Target, UserKernel, compile_kernel};
use oxyfuel_kernel::ParamKind;
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_runtime::device::Device as Handle;
use oxyfuel_runtime::tensor as rt;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

pub use oxyfuel_kernel::builder::{KernelBuilder, Mem, Size, Tile};
pub use oxyfuel_kernel::{BufferMode, Program, Symbol};

/// An argument of a launch: a tensor for a buffer, a number for a scalar or a size.
pub type Argument<'a> = Operand<'a>;

/// A compiled kernel of a user.
pub struct Kernel {
    program: Program,
    made: UserKernel,
    target: Target,
    options: Options,
    ready: Mutex<Vec<Ready>>,
}

/// How many instructions [`Kernel::check`] runs before it gives up: minutes of the interpreter, and a loop without an end has one.
pub const CHECK_STEPS: u64 = 1 << 27;

/// More than this many kinds of launches, and the oldest goes.
const KEEP: usize = 16;

/// The kernel with the lengths and numbers of one kind of launch.
struct Ready {
    device: Device,
    lengths: Vec<i64>,
    numbers: Vec<Scalar>,
    executable: Arc<Executable>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.program.name)
            .field("target", &self.target.name())
            .finish_non_exhaustive()
    }
}

/// Reads a program from text, as `docs/kernel.md` describes it; `name` stands for the text in messages.
pub fn parse(name: &str, text: &str) -> Result<Program> {
    oxyfuel_kernel::parse(name, text).map_err(advised)
}

/// Compiles a program for the target of the options, or for this machine's processor.
#[track_caller]
pub fn compile(program: &Program, options: Options) -> Result<Kernel> {
    let caller = Location::caller();
    let make = || {
        let target = Target::host(&options)?;
        Ok((compile_kernel(program, &target)?, target))
    };
    let (made, target) = caught(make).map_err(|error| located(error, caller))?;
    Ok(Kernel {
        made,
        program: program.clone(),
        target,
        options,
        ready: Mutex::default(),
    })
}

impl Kernel {
    /// Why the interpreter runs it, if it does.
    pub fn note(&self) -> Option<&str> {
        self.made.note.as_deref()
    }

    /// The program as laid out on the machine, as text.
    pub fn mapped(&self) -> String {
        self.made.mapped.to_string()
    }

    /// Machine code for people, or PTX.
    pub fn listing(&self) -> String {
        self.target.listing(&self.made.artefact)
    }

    /// Runs every instance. Tensors are dense; those of written buffers are overwritten in place.
    #[track_caller]
    pub fn launch(&self, arguments: &[Argument<'_>]) -> Result<()> {
        let caller = Location::caller();
        let run = || {
            let (tensors, numbers) = self.sort(arguments, caller)?;
            let executable = self.ready(&tensors, &numbers)?;
            // A dense tensor of any shape is flat in memory.
            let flat = tensors
                .iter()
                .map(|tensor| tensor.reshape(&[tensor.len() as i64]))
                .collect::<Result<Vec<_>>>()?;
            executable.run(&flat.iter().collect::<Vec<_>>()).map(drop)
        };
        run().map_err(|error| located(error, caller))
    }

    /// Runs every instance in the interpreter, on copies: finds reads and writes outside of buffers, races, and reads of what nobody wrote. A kernel that runs for more than
    /// [`CHECK_STEPS`] instructions over all its instances is E0307.
    #[track_caller]
    pub fn check(&self, arguments: &[Argument<'_>]) -> Result<()> {
        self.check_within(arguments, CHECK_STEPS)
    }

    /// [`Self::check`] with another limit of instructions.
    #[track_caller]
    pub fn check_within(&self, arguments: &[Argument<'_>], steps: u64) -> Result<()> {
        let caller = Location::caller();
        let run = || {
            let (tensors, numbers) = self.sort(arguments, caller)?;
            let mut copies = tensors
                .iter()
                .map(|tensor| tensor.to_bytes())
                .collect::<Result<Vec<_>>>()?;
            let symbols = self.made.symbols(&numbers);
            let mut workspaces = self.workspaces(&symbols)?;
            let (mut copies, mut workspaces) = (copies.iter_mut(), workspaces.iter_mut());
            let mut numbers = numbers.iter();
            let missing = || err!(Internal, "an argument went missing");
            let mut args = Vec::new();
            for param in &self.program.params {
                args.push(match &param.kind {
                    ParamKind::Buffer(buffer) => {
                        let bytes = match buffer.mode {
                            BufferMode::Workspace => workspaces.next(),
                            BufferMode::Read | BufferMode::Write | BufferMode::ReadWrite => {
                                copies.next()
                            }
                        };
                        Arg::Buffer {
                            dtype: buffer.dtype,
                            bytes: bytes.ok_or_else(missing)?,
                        }
                    }
                    ParamKind::Scalar { .. } => Arg::Scalar(*numbers.next().ok_or_else(missing)?),
                    ParamKind::TensorMap(_) => return Err(maps()),
                });
            }
            let options = interp::Options {
                check: true,
                step_limit: steps,
            };
            interp::run_with(&self.program, &mut args, options)
        };
        run().map_err(|error| located(error, caller))
    }

    /// Tensors and numbers in the order of the parameters, each checked against its own.
    fn sort<'a>(
        &self,
        arguments: &[Argument<'a>],
        caller: &Location<'_>,
    ) -> Result<(Vec<&'a rt::Tensor>, Vec<Scalar>)> {
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        let mut given = arguments.iter();
        for param in &self.program.params {
            let name = &param.name;
            if let ParamKind::Buffer(buffer) = &param.kind
                && buffer.mode == BufferMode::Workspace
            {
                continue;
            }
            let argument = given.next();
            match (&param.kind, argument) {
                (_, None) => {
                    return Err(err!(
                        ArityMismatch,
                        "kernel {}: no argument for {name}",
                        self.program.name
                    ));
                }
                (ParamKind::Buffer(buffer), Some(Operand::Tensor(tensor))) => {
                    let tensor = tensor.concrete("a kernel launch", caller)?;
                    ensure!(
                        tensor.dtype() == buffer.dtype,
                        DTypeMismatch,
                        "{name} is {}, not {}",
                        tensor.dtype(),
                        buffer.dtype
                    );
                    ensure!(
                        tensor.is_contiguous(),
                        LayoutMismatch,
                        "{name} has strides {:?}, and a kernel takes dense tensors",
                        tensor.strides()
                    );
                    tensors.push(tensor);
                }
                (ParamKind::Scalar { dtype, .. }, Some(Operand::Number(number))) => {
                    numbers.push(number.cast(*dtype));
                }
                (ParamKind::TensorMap(_), Some(_)) => return Err(maps()),
                (ParamKind::Buffer(_), Some(Operand::Number(_))) => {
                    return Err(err!(InvalidArgument, "{name} is a buffer, got a number"));
                }
                (ParamKind::Scalar { .. }, Some(Operand::Tensor(_))) => {
                    return Err(err!(InvalidArgument, "{name} is a number, got a tensor"));
                }
            }
        }
        ensure!(
            given.next().is_none(),
            ArityMismatch,
            "kernel {}: {} arguments are too many",
            self.program.name,
            arguments.len()
        );
        let symbols = self.made.symbols(&numbers);
        for (param, tensor) in self.buffers().zip(&tensors) {
            let (name, len) = param;
            if let Some(len) = len {
                let len = len.eval(&|symbol| symbols.get(&symbol).copied())?;
                ensure!(
                    len <= tensor.len() as i64,
                    ShapeMismatch,
                    "{name} has {} elements, and the kernel needs {len}",
                    tensor.len()
                );
            }
        }
        Ok((tensors, numbers))
    }

    /// Name and length of each buffer that the caller brings.
    fn buffers(&self) -> impl Iterator<Item = (&str, Option<&Expr>)> {
        self.program
            .params
            .iter()
            .filter_map(|param| match &param.kind {
                ParamKind::Buffer(buffer) if buffer.mode != BufferMode::Workspace => {
                    Some((param.name.as_str(), buffer.len.as_ref()))
                }
                ParamKind::Buffer(_) | ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
            })
    }

    fn workspaces(&self, symbols: &HashMap<Symbol, i64>) -> Result<Vec<Vec<u8>>> {
        let sizes = self
            .program
            .params
            .iter()
            .filter_map(|param| match &param.kind {
                ParamKind::Buffer(buffer) if buffer.mode == BufferMode::Workspace => Some((
                    buffer.len.clone().unwrap_or(Expr::ZERO),
                    buffer.dtype.size(),
                )),
                ParamKind::Buffer(_) | ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
            });
        sizes
            .map(|(len, size)| {
                let len = len.eval(&|symbol| symbols.get(&symbol).copied())?;
                let bytes = usize::try_from(len)
                    .ok()
                    .and_then(|len| len.checked_mul(size))
                    .ok_or_else(|| err!(SizeOverflow, "a workspace of {len} elements"))?;
                let mut memory = Vec::new();
                memory
                    .try_reserve_exact(bytes)
                    .map_err(|_| err!(OutOfMemory, "a workspace of {bytes} bytes"))?;
                memory.resize(bytes, 0);
                Ok(memory)
            })
            .collect()
    }

    /// The kernel for this kind of launch, ready to run.
    fn ready(&self, tensors: &[&rt::Tensor], numbers: &[Scalar]) -> Result<Arc<Executable>> {
        let device = tensors.first().map_or(Device::Cpu, |t| t.device().into());
        let lengths = || tensors.iter().map(|tensor| tensor.len() as i64);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ready.iter().find(|known| {
            known.device == device
                && known.numbers == numbers
                && known.lengths.iter().copied().eq(lengths())
        });
        if let Some(known) = known {
            return Ok(known.executable.clone());
        }
        let handle: Arc<dyn Handle> = machine::target(device, &self.options)?.1;
        let lengths: Vec<i64> = lengths().collect();
        let plan = self.made.plan(&lengths, numbers)?;
        let executable = Arc::new(Executable::load(plan, Record::default(), handle)?);
        if ready.len() >= KEEP {
            ready.remove(0);
        }
        ready.push(Ready {
            device,
            lengths,
            numbers: numbers.to_vec(),
            executable: executable.clone(),
        });
        Ok(executable)
    }
}

fn maps() -> oxyfuel_base::Error {
    err!(
        UnsupportedOp,
        "kernels with tensor maps as parameters cannot be launched on their own"
    )
}
