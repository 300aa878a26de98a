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
//! A kernel runs where its tensors are. It is compiled for the target of its options, or for this machine's processor, when it is made, and for a GPU at the first launch on tensors of that GPU.
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
    /// For the target.
    made: Arc<UserKernel>,
    target: Target,
    options: Options,
    known: Mutex<Known>,
}

/// What launches have found so far.
#[derive(Default)]
struct Known {
    places: Vec<(Device, Place)>,
    ready: Vec<Ready>,
}

/// The kernel on one device.
#[derive(Clone)]
struct Place {
    made: Arc<UserKernel>,
    handle: Arc<dyn Handle>,
}

impl Place {
    fn load(&self, lengths: &[i64], numbers: &[Scalar]) -> Result<Arc<Executable>> {
        let plan = self.made.plan(lengths, numbers)?;
        let executable = Executable::load(plan, Record::default(), self.handle.clone())?;
        Ok(Arc::new(executable))
    }
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

/// Compiles a program for the target of the options, or for this machine's processor; for a GPU again at the first launch there.
#[track_caller]
pub fn compile(program: &Program, options: Options) -> Result<Kernel> {
    let caller = Location::caller();
    let make = || {
        let target = Target::host(&options)?;
        Ok((compile_kernel(program, &target)?, target))
    };
    let (made, target) = caught(make).map_err(|error| located(error, caller))?;
    Ok(Kernel {
        made: Arc::new(made),
        program: program.clone(),
        target,
        options,
        known: Mutex::default(),
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

    /// Runs every instance, where the tensors are: all of them on one device. Tensors are dense; those of written buffers are overwritten in place.
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

    /// Where all tensors of a launch are.
    fn device(&self, tensors: &[&rt::Tensor]) -> Result<Device> {
        let Some(first) = tensors.first() else {
            return Ok(Device::Cpu);
        };
        let mut named = self.buffers().zip(tensors);
        if let Some(((name, _), other)) = named.find(|(_, t)| t.device() != first.device()) {
            return Err(err!(
                DeviceMismatch,
                "kernel {}: {name} is on {}, and tensors before it are on {}",
                self.program.name,
                other.device(),
                first.device()
            )
            .help("move them to one device with to_device before the launch"));
        }
        Ok(first.device().into())
    }

    /// The kernel on a device, compiled now where it is a GPU and the first launch there.
    fn place(&self, device: Device, known: &mut Known) -> Result<Place> {
        if let Some((_, place)) = known.places.iter().find(|(there, _)| *there == device) {
            return Ok(place.clone());
        }
        let (target, handle) = machine::target(device, &self.options)?;
        let made = match device {
            Device::Cpu => self.made.clone(),
            Device::Cuda(_) => Arc::new(compile_kernel(&self.program, &target)?),
        };
        let place = Place { made, handle };
        known.places.push((device, place.clone()));
        Ok(place)
    }

    /// The kernel for this kind of launch, ready to run.
    fn ready(&self, tensors: &[&rt::Tensor], numbers: &[Scalar]) -> Result<Arc<Executable>> {
        let device = self.device(tensors)?;
        let lengths = || tensors.iter().map(|tensor| tensor.len() as i64);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = known.ready.iter().find(|ready| {
            ready.device == device
                && ready.numbers == numbers
                && ready.lengths.iter().copied().eq(lengths())
        });
        if let Some(ready) = ready {
            return Ok(ready.executable.clone());
        }
        let lengths: Vec<i64> = lengths().collect();
        let place = self.place(device, &mut known)?;
        let executable = place.load(&lengths, numbers)?;
        if known.ready.len() >= KEEP {
            known.ready.remove(0);
        }
        known.ready.push(Ready {
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

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::DType;
    use oxyfuel_runtime::null::{NullCall, NullDevice};

    /// `y = x * 2`, a block of 256 elements an instance.
    fn twice() -> Program {
        let k = KernelBuilder::new("twice");
        let n = k.symbol("n", Symbol(0));
        let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
        let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
        k.phase([n.expr().ceildiv(256)], |k| {
            let base = k.program_id(0) * 256;
            let left = n.tile() - &base;
            let from = x.at(&base).shape([256]).valid(0, &left);
            k.store(
                y.at(&base).shape([256]).valid(0, &left),
                &(k.load(from) * 2.0),
            );
        });
        k.finish().unwrap()
    }

    /// What a GPU would be asked for.
    #[test]
    fn a_place_on_a_gpu_launches_code_for_it_on_its_tensors() {
        for name in ["sm_80", "sm_90a"] {
            let null = NullDevice::new(0);
            let target = Target::by_name(name).unwrap();
            let place = Place {
                made: Arc::new(compile_kernel(&twice(), &target).unwrap()),
                handle: null.clone(),
            };
            let executable = place.load(&[1000, 1000], &[Scalar::I(1000)]).unwrap();
            let tensor = || rt::Tensor::empty_on(&*null, DType::F32, &[1000]).unwrap();
            let (x, y) = (tensor(), tensor());
            executable.run(&[&x, &y]).unwrap();
            let calls = null.calls();
            let Some(NullCall::Launch(kernel, words, grids)) = calls.last() else {
                panic!("{calls:?}");
            };
            assert_eq!((kernel.as_str(), grids.len()), ("twice", 1));
            assert!(words.contains(&x.address()) && words.contains(&y.address()));
            assert_eq!(grids[0][0], 4, "{grids:?}");
            // Its tensors are those of that device.
            let there = rt::Tensor::empty_on(&*machine::cpu().clone(), DType::F32, &[1000]);
            let error = executable.run(&[&x, &there.unwrap()]).unwrap_err();
            assert_eq!(error.code, oxyfuel_base::Code::DeviceMismatch);
        }
    }

    #[test]
    fn tensors_of_two_devices_are_refused_by_name() {
        let kernel = compile(&twice(), Options::default()).unwrap();
        let x = rt::Tensor::empty_on(&*machine::cpu().clone(), DType::F32, &[8]).unwrap();
        let y = rt::Tensor::empty_on(&*NullDevice::new(0), DType::F32, &[8]).unwrap();
        let error = kernel.ready(&[&x, &y], &[Scalar::I(8)]).unwrap_err();
        assert_eq!(error.code, oxyfuel_base::Code::DeviceMismatch);
        let said = "kernel twice: y is on null:0, and tensors before it are on cpu";
        assert_eq!(error.message, said);
        assert!(error.help.unwrap().contains("to_device"));
    }
}
