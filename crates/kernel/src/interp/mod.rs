//! The interpreter: the meaning of both forms, with checks.
//!
//! It runs instances one after the other and, where an instance splits into roles, the roles by turns: each until it waits for a barrier. What a machine would do asynchronously is done at once, but it
//! *counts* as done only for those who waited for it, so that a program that forgets a wait fails here although its numbers would be right. Reported as errors:
//!
//! * touching an element outside of its memory ([`Code::OutOfBounds`](oxyfuel_base::Code));
//! * reading what nobody wrote: workspaces, write-only buffers, allocations (`UninitializedRead`);
//! * races (`DataRace`): two instances of a phase and one element, unless both only read or both are atomic; equal positions of a scatter (in a phase that overlaps, stores of one element are none, and the one that ran last stays); in shared memory, accesses that no
//!   sync, barrier, group wait or fence orders; reading an accumulator before its `mma_wait`;
//! * a deadlock of roles, or a barrier used wrongly (`InvalidKernel`); running longer than the limit (`StepLimit`).
//!
//! Where the semantics leave freedom (the order of a reduction or product), the interpreter adds in `f64` and rounds once, so that it is the more precise side of a comparison.
//! Transcendental ops are computed in `f64` and rounded once.

mod data;
mod exec;
mod math;
mod memory;
mod order;

use std::collections::HashMap;
use std::rc::Rc;

use oxyfuel_base::{DType, Expr, Id, Result, Scalar, Symbol, ensure, err};

use crate::ir::{BufferMode, ParamKind, Program, Val};
use data::Data;
use exec::{Machine, MapData, Value};
use memory::{Checked, Memory, Storage};

/// What a launch gives for a parameter. Tensor maps get nothing: they follow from their buffer.
#[derive(Debug)]
pub enum Arg<'a> {
    /// A buffer, little-endian.
    Buffer {
        dtype: DType,
        bytes: &'a mut [u8],
    },
    /// A buffer that the program only reads.
    Input {
        dtype: DType,
        bytes: &'a [u8],
    },
    Scalar(Scalar),
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Looks for reads of what nobody wrote and for races. Bounds are always checked.
    pub check: bool,
    /// The most instructions to run, over all instances.
    pub step_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            check: true,
            step_limit: 1 << 32,
        }
    }
}

/// Runs a program with all checks. There is one argument for each parameter that is not a tensor map, in order.
pub fn run(program: &Program, args: &mut [Arg<'_>]) -> Result<()> {
    run_with(program, args, Options::default())
}

/// Runs a program.
pub fn run_with(program: &Program, args: &mut [Arg<'_>], options: Options) -> Result<()> {
    crate::verify::verify(program)?;
    launch(program, args, options)
        .map_err(|error| error.context(format_args!("kernel @{}", program.name)))
}

fn launch(program: &Program, args: &mut [Arg<'_>], options: Options) -> Result<()> {
    let wanted = program
        .params
        .iter()
        .filter(|param| !matches!(param.kind, ParamKind::TensorMap(_)));
    ensure!(
        wanted.clone().count() == args.len(),
        ArityMismatch,
        "{} arguments for {} parameters",
        args.len(),
        wanted.count()
    );
    let symbols = bind(program, args)?;
    let eval = |expr: &Expr| expr.eval(&|symbol| symbols.get(&symbol).copied());

    let mut machine = Machine::new(program, options);
    let mut args = args.iter_mut();
    for param in &program.params {
        let value = match &param.kind {
            ParamKind::Scalar { dtype, .. } => match args.next() {
                Some(Arg::Scalar(scalar)) => Value::tile(Data::splat(*dtype, *scalar, 1)),
                Some(Arg::Buffer { .. } | Arg::Input { .. }) | None => {
                    return Err(err!(InvalidArgument, "{} is a number", param.name));
                }
            },
            ParamKind::Buffer(buffer) => {
                let (dtype, storage) = match args.next() {
                    Some(Arg::Buffer { dtype, bytes }) => (*dtype, Storage::Exclusive(bytes)),
                    Some(Arg::Input { dtype, bytes }) if buffer.mode == BufferMode::Read => {
                        (*dtype, Storage::Shared(bytes))
                    }
                    Some(Arg::Input { .. }) => {
                        return Err(err!(
                            InvalidArgument,
                            "{} is written, but given as an input",
                            param.name
                        ));
                    }
                    Some(Arg::Scalar(_)) | None => {
                        return Err(err!(InvalidArgument, "{} is a buffer", param.name));
                    }
                };
                ensure!(
                    dtype == buffer.dtype,
                    DTypeMismatch,
                    "{} holds {}, not {dtype}",
                    param.name,
                    buffer.dtype
                );
                let written = buffer.mode != BufferMode::Read;
                let undefined = matches!(buffer.mode, BufferMode::Write | BufferMode::Workspace);
                let checked = Checked {
                    initialised: options.check && undefined,
                    owners: options.check && written,
                    stamps: false,
                };
                let mut memory = Memory::new(param.name.clone(), dtype, storage, checked);
                if let Some(len) = &buffer.len {
                    let len = eval(len)?;
                    let have = i64::try_from(memory.len).unwrap_or(i64::MAX);
                    ensure!(
                        len <= have,
                        IndexOutOfRange,
                        "{} has {have} elements, but the program expects {len}",
                        param.name
                    );
                    // Touching what lies beyond the stated length is a mistake even where memory goes on.
                    memory.len = usize::try_from(len).unwrap_or(0);
                }
                machine.add_memory(memory)
            }
            ParamKind::TensorMap(map) => {
                let dims = map.dims.iter().map(eval).collect::<Result<_>>()?;
                let strides = map.strides.iter().map(eval).collect::<Result<_>>()?;
                machine.maps.insert(
                    param.value,
                    MapData {
                        buffer: map.buffer,
                        dims,
                        strides,
                        boxed: map.boxed.clone(),
                    },
                );
                Value::Map
            }
        };
        machine.set(param.value, value);
    }
    for round in 0..program.rounds {
        for (number, phase) in program.phases.iter().enumerate() {
            let grid = phase.grid.iter().map(eval).collect::<Result<Vec<_>>>()?;
            machine.run_phase(phase, &grid, round).map_err(|error| {
                if program.phases.len() > 1 {
                    error.context(format_args!("phase {number}"))
                } else {
                    error
                }
            })?;
        }
    }
    Ok(())
}

/// The values of the program's symbols.
fn bind(program: &Program, args: &[Arg<'_>]) -> Result<HashMap<Symbol, i64>> {
    let mut symbols = HashMap::new();
    let mut args = args.iter();
    for param in &program.params {
        match &param.kind {
            ParamKind::TensorMap(_) => {}
            ParamKind::Buffer(_) => {
                args.next();
            }
            ParamKind::Scalar { symbol, .. } => {
                if let (Some(Arg::Scalar(value)), Some(symbol)) = (args.next(), symbol) {
                    symbols.insert(*symbol, value.as_i64());
                }
            }
        }
    }
    Ok(symbols)
}

impl Value {
    fn tile(data: Data) -> Self {
        Self::Tile {
            data: Rc::new(data),
            pending: None,
        }
    }
}

/// Values by their number.
#[derive(Debug)]
struct Environment(Vec<Option<Value>>);

impl Environment {
    fn get(&self, v: Val) -> Result<&Value> {
        self.0
            .get(v.index())
            .and_then(Option::as_ref)
            .ok_or_else(|| err!(Internal, "{v} has no value"))
    }

    fn set(&mut self, v: Val, value: Value) {
        if let Some(slot) = self.0.get_mut(v.index()) {
            *slot = Some(value);
        }
    }
}
