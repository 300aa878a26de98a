//! The tile interpreter as a runner of kernels, and as the judge of machine code.

use std::sync::Arc;

use oxyfuel_base::{Code, DType, Error, Result, Scalar, err};
use oxyfuel_kernel::interp::{self, Arg};
use oxyfuel_kernel::{BufferMode, ParamKind, Program};
use oxyfuel_plan::Kernel;
use oxyfuel_runtime::device::Grid;
use oxyfuel_runtime::runner::{KernelRunner, PreparedKernel, RunnerArg};

use crate::agree::{agree, is_exact, same};

/// Runs mapped programs without machine code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter {
    /// Looks for races and for reads of what nobody wrote.
    pub check: bool,
    /// Judges kernels that have machine code, too.
    pub judge: bool,
}

impl Interpreter {
    /// As the CPU device wants it.
    pub fn runner(self) -> Arc<dyn KernelRunner> {
        Arc::new(self)
    }
}

impl KernelRunner for Interpreter {
    fn prepare(&self, kernel: &Kernel) -> Result<Box<dyn PreparedKernel>> {
        let program = oxyfuel_kernel::parse(&kernel.name, &kernel.program)?;
        Ok(Box::new(Prepared {
            exact: is_exact(&program),
            program,
            options: interp::Options {
                check: self.check,
                step_limit: u64::MAX,
            },
        }))
    }

    fn judges(&self) -> bool {
        self.judge
    }
}

#[derive(Debug)]
struct Prepared {
    program: Program,
    /// Whether machine code has to give the same bits.
    exact: bool,
    options: interp::Options,
}

impl Prepared {
    /// Element type and mode of the buffer that argument `arg` is.
    fn buffer(&self, arg: usize) -> Option<(DType, BufferMode)> {
        match &self.program.params.get(arg)?.kind {
            ParamKind::Buffer(buffer) => Some((buffer.dtype, buffer.mode)),
            ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
        }
    }

    fn is_written(&self, arg: usize) -> bool {
        self.buffer(arg)
            .is_some_and(|(_, mode)| mode != BufferMode::Read)
    }
}

impl PreparedKernel for Prepared {
    fn run(&self, _grids: &[Grid], memory: &mut [&mut [u8]], args: &[RunnerArg]) -> Result<()> {
        // A buffer that is read where another is written is seen as it was before: such kernels read an element before they write it.
        let mut copies: Vec<(usize, Vec<u8>)> = Vec::new();
        for (number, arg) in args.iter().enumerate() {
            if let RunnerArg::Buffer {
                region,
                offset,
                bytes,
            } = *arg
                && bytes > 0
                && !self.is_written(number)
                && users(args, region).any(|other| self.is_written(other))
            {
                copies.push((number, memory[region][offset..offset + bytes].to_vec()));
            }
        }
        let mut slots: Vec<Option<Arg<'_>>> = args.iter().map(|_| None).collect();
        for (number, bytes) in &copies {
            let (dtype, _) = self.buffer(*number).ok_or_else(|| mismatch(*number))?;
            slots[*number] = Some(Arg::Input { dtype, bytes });
        }
        for (region, memory) in memory.iter_mut().enumerate() {
            let mut writers = users(args, region).filter(|&user| self.is_written(user));
            match (writers.next(), writers.next()) {
                (None, _) => {
                    let shared: &[u8] = memory;
                    for user in users(args, region) {
                        let (dtype, _) = self.buffer(user).ok_or_else(|| mismatch(user))?;
                        if let RunnerArg::Buffer { offset, bytes, .. } = args[user] {
                            slots[user] = Some(Arg::Input {
                                dtype,
                                bytes: &shared[offset..offset + bytes],
                            });
                        }
                    }
                }
                (Some(writer), None) => {
                    let (dtype, _) = self.buffer(writer).ok_or_else(|| mismatch(writer))?;
                    if let RunnerArg::Buffer { offset, bytes, .. } = args[writer] {
                        slots[writer] = Some(Arg::Buffer {
                            dtype,
                            bytes: &mut memory[offset..offset + bytes],
                        });
                    }
                }
                (Some(a), Some(b)) => {
                    return Err(err!(
                        DataRace,
                        "arguments {a} and {b} of kernel {} are written and overlap",
                        self.program.name
                    ));
                }
            }
        }
        let mut given = Vec::with_capacity(args.len());
        for (number, (slot, arg)) in slots.into_iter().zip(args).enumerate() {
            given.push(match (slot, *arg) {
                (Some(slot), _) => slot,
                (None, RunnerArg::Buffer { .. }) => {
                    let (dtype, _) = self.buffer(number).ok_or_else(|| mismatch(number))?;
                    Arg::Buffer {
                        dtype,
                        bytes: &mut [],
                    }
                }
                (None, RunnerArg::Index(value)) => Arg::Scalar(Scalar::I(value)),
                (None, RunnerArg::Literal(dtype, bits)) => {
                    Arg::Scalar(Scalar::from_bits(dtype, bits))
                }
            });
        }
        interp::run_with(&self.program, &mut given, self.options)
    }

    fn compare(&self, arg: usize, ours: &[u8], expected: &[u8]) -> Result<()> {
        match self.buffer(arg) {
            Some((dtype, BufferMode::Write | BufferMode::ReadWrite)) => {
                let judge = if self.exact { same } else { agree };
                judge(dtype, ours, expected).map_err(|why| {
                    Error::new(
                        Code::WrongResult,
                        format!(
                            "kernel {}, buffer {}: {why}",
                            self.program.name, self.program.params[arg].name
                        ),
                    )
                })
            }
            Some((_, BufferMode::Read | BufferMode::Workspace)) | None => Ok(()),
        }
    }
}

/// Arguments with memory in a region.
fn users(args: &[RunnerArg], region: usize) -> impl Iterator<Item = usize> {
    args.iter()
        .enumerate()
        .filter_map(move |(number, arg)| match arg {
            RunnerArg::Buffer {
                region: mine,
                bytes,
                ..
            } if *mine == region && *bytes > 0 => Some(number),
            RunnerArg::Buffer { .. } | RunnerArg::Index(_) | RunnerArg::Literal(..) => None,
        })
}

fn mismatch(arg: usize) -> Error {
    err!(
        InvalidPlan,
        "argument {arg} is a buffer, its parameter is not"
    )
}
