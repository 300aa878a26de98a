//! Kernels that users write: a tile program on its own, outside of any graph.

use std::collections::HashMap;

use oxyfuel_base::{Arena, Code, Expr, Result, Scalar, Symbol, err};
use oxyfuel_kernel::{BufferMode, Form, Param, ParamKind, Program};
use oxyfuel_plan::{self as plan, Artefact};

use crate::target::Target;

/// A user's program on a machine.
#[derive(Clone, Debug)]
pub struct UserKernel {
    pub mapped: Program,
    /// The parameters as its author wrote them: what the machine has as bytes may be a storage float to who launches it.
    pub params: Vec<Param>,
    /// The instructions it needs.
    pub isa: String,
    pub artefact: Artefact,
    /// Why it is interpreted, if it is.
    pub note: Option<String>,
}

/// Compiles a program of either form; one of the mapped form is taken as its author laid it out.
pub fn compile_kernel(program: &Program, target: &Target) -> Result<UserKernel> {
    oxyfuel_kernel::verify(program)?;
    let mapped = match program.form {
        Form::Logical => oxyfuel_lower::place(program, &target.desc)?,
        Form::Mapped => program.clone(),
    };
    oxyfuel_kernel::verify(&mapped)?;
    let (artefact, note) = match target.emit(&mapped) {
        Ok(artefact) => (artefact, None),
        Err(error) if error.code == Code::NoLowering && target.can_interpret() => {
            (Artefact::Interpreted, Some(error.message))
        }
        Err(error) => return Err(error),
    };
    Ok(UserKernel {
        mapped,
        params: program.params.clone(),
        isa: target.desc.isa.clone(),
        artefact,
        note,
    })
}

impl UserKernel {
    /// The symbols that numbers, one a scalar parameter, stand for.
    pub fn symbols(&self, numbers: &[Scalar]) -> HashMap<Symbol, i64> {
        let scalars = (self.params.iter()).filter_map(|param| match &param.kind {
            ParamKind::Scalar { symbol, .. } => Some(*symbol),
            ParamKind::Buffer(_) | ParamKind::TensorMap(_) => None,
        });
        let named = scalars.zip(numbers);
        named
            .filter_map(|(symbol, number)| Some((symbol?, number.as_i64())))
            .collect()
    }

    /// A plan of one launch: every buffer an input, those that are written also outputs.
    pub fn plan(&self, lengths: &[i64], numbers: &[Scalar]) -> Result<plan::Plan> {
        let symbols = self.symbols(numbers);
        let known = |e: &Expr| -> Result<Expr> {
            Ok(Expr::constant(
                e.eval(&|symbol| symbols.get(&symbol).copied())?,
            ))
        };
        let mut buffers = Arena::new();
        let (mut inputs, mut outputs, mut args) = (Vec::new(), Vec::new(), Vec::new());
        let mut arena = 0i64;
        let (mut lengths, mut numbers) = (lengths.iter(), numbers.iter());
        for param in &self.params {
            let arg = match &param.kind {
                ParamKind::TensorMap(_) => {
                    return Err(err!(
                        UnsupportedOp,
                        "kernels with tensor maps as parameters cannot be launched on their own"
                    ));
                }
                ParamKind::Scalar { dtype, symbol } => {
                    let number = numbers.next().copied().unwrap_or(Scalar::I(0));
                    match symbol {
                        Some(_) => plan::ArgRef::Index(Expr::constant(number.as_i64())),
                        None => plan::ArgRef::Literal {
                            dtype: *dtype,
                            value: number,
                        },
                    }
                }
                ParamKind::Buffer(buffer) => {
                    let size = buffer.dtype.size() as i64;
                    let workspace = buffer.mode == BufferMode::Workspace;
                    let (home, len) = if workspace {
                        let len = known(buffer.len.as_ref().unwrap_or(&Expr::ZERO))?;
                        let offset = Expr::constant(arena);
                        let elements = len.as_const().unwrap_or(0);
                        arena = u64::try_from(elements)
                            .ok()
                            .and_then(|n| n.checked_mul(size.unsigned_abs()))
                            .and_then(|bytes| bytes.checked_next_multiple_of(64))
                            .and_then(|bytes| arena.checked_add_unsigned(bytes))
                            .ok_or_else(|| {
                                err!(SizeOverflow, "a workspace of {elements} elements")
                            })?;
                        (plan::BufferHome::Arena { offset }, len)
                    } else {
                        let number = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
                        let len = Expr::constant(lengths.next().copied().unwrap_or(0));
                        (plan::BufferHome::Input(number), len)
                    };
                    let id = buffers.push(plan::Buffer {
                        name: param.name.clone(),
                        home,
                        bytes: len.clone() * size,
                        align: buffer.align,
                        first_step: 0,
                        last_step: 0,
                        tensor: None,
                    });
                    if !workspace {
                        let alias = u32::try_from(inputs.len()).ok();
                        inputs.push(plan::InputSpec {
                            name: param.name.clone(),
                            dtype: buffer.dtype,
                            shape: vec![len.clone()],
                            strides: vec![Expr::ONE],
                            align: buffer.align,
                            buffer: id,
                        });
                        if buffer.mode != BufferMode::Read {
                            outputs.push(plan::OutputSpec {
                                dtype: buffer.dtype,
                                shape: vec![len],
                                strides: vec![Expr::ONE],
                                buffer: id,
                                offset: Expr::ZERO,
                                alias,
                            });
                        }
                    }
                    plan::ArgRef::Buffer {
                        buffer: id,
                        offset: Expr::ZERO,
                    }
                }
            };
            args.push(arg);
        }
        let phases = self.mapped.phases.iter().map(|phase| {
            Ok(plan::KernelPhase {
                grid: phase.grid.iter().map(known).collect::<Result<_>>()?,
                min_chunk: 1,
            })
        });
        let phases = phases.collect::<Result<Vec<_>>>()?;
        let mut kernels = Arena::new();
        let kernel = kernels.push(plan::Kernel {
            name: self.mapped.name.clone(),
            program: self.mapped.to_string(),
            artefact: self.artefact.clone(),
            phases,
            written: self.mapped.written(),
            provenance: plan::Provenance::default(),
            cost: plan::Cost::NOTHING,
            rounds: self.mapped.rounds,
            members: 1,
            gemm: None,
            note: self.note.clone(),
        });
        Ok(plan::Plan {
            name: self.mapped.name.clone(),
            isa: self.isa.clone(),
            symbols: Vec::new(),
            limits: Vec::new(),
            inputs,
            outputs,
            buffers,
            arena_bytes: Expr::constant(arena),
            kernels,
            steps: vec![plan::Step::Launch { kernel, args }],
        })
    }
}
