//! Mapped tile programs to PTX text.
//!
//! [`emit`] takes a mapped [`Program`] and a [`Target`] and gives an [`Artefact`]: one entry a phase, and what a launch must know. Nothing here is
//! written for one kernel: what comes out follows from ops, layouts, and the facts that are known of integers.
//!
//! | module | what lives there |
//! |---|---|
//! | [`target`] | one row a target: features, lowest PTX version |
//! | [`artefact`] | the result |
//! | `asm` | registers, instructions, sharing of equal ones |
//! | `fact`, `int` | what is known of integers; index arithmetic in 32 bits where that proves enough |
//! | `place`, `value` | layouts as tables; how elements live in registers |
//! | `scalar`, `cast` | instructions for elementwise ops and conversions |
//! | `access`, `memory` | addresses, wide accesses, bounds; loads, stores, atomics |
//! | `reduce` | reductions and changes of layout |
//! | `mma` | products on matrix units |
//! | `asynchronous` | barriers, the tensor copy engine |
//! | `emit`, `ops`, `control` | the walk over phases and ops; loops, branches, roles |
//! | [`examples`] | mapped programs to start from |
#![forbid(unsafe_code)]

mod access;
pub mod artefact;
mod asm;
mod asynchronous;
mod cast;
mod control;
mod emit;
pub mod examples;
mod fact;
mod int;
mod memory;
mod mma;
mod ops;
mod place;
mod reduce;
mod scalar;
mod shared;
pub mod target;
mod value;

pub use artefact::{Artefact, Entry, LaunchGrid, LaunchParam};
pub use target::{TARGETS, Target};

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Form, ParamKind, Program};

/// The PTX of a mapped program. The program must have passed its verifier; what the target cannot express is an error, never a panic.
pub fn emit(program: &Program, target: &'static Target) -> Result<Artefact> {
    emit_inner(program, target).map_err(|error| {
        error.context(format_args!("kernel @{} for {}", program.name, target.name))
    })
}

fn emit_inner(program: &Program, target: &'static Target) -> Result<Artefact> {
    ensure!(
        program.form == Form::Mapped,
        InvalidKernel,
        "only mapped programs can be emitted"
    );
    let (major, minor) = target.ptx;
    let mut text = format!(
        ".version {major}.{minor}\n.target {}\n.address_size 64\n",
        target.name
    );
    let mut entries = Vec::with_capacity(program.phases.len());
    for number in 0..program.phases.len() {
        let (body, entry) = emit::emit_phase(program, number, target)?;
        text.push('\n');
        text.push_str(&body);
        entries.push(entry);
    }
    let mut params = Vec::with_capacity(program.params.len());
    for param in &program.params {
        params.push(match &param.kind {
            ParamKind::Buffer(_) => LaunchParam::Pointer,
            ParamKind::Scalar { dtype, .. } => LaunchParam::Scalar {
                bytes: dtype.size() as u32,
            },
            ParamKind::TensorMap(map) => {
                let buffer = program.params.iter().position(|p| p.value == map.buffer);
                let buffer = buffer.ok_or_else(|| {
                    err!(
                        InvalidKernel,
                        "tensor map {} describes no parameter",
                        param.name
                    )
                })?;
                LaunchParam::TensorMap {
                    buffer,
                    boxed: map.boxed.clone(),
                    swizzle: map.swizzle,
                }
            }
        });
    }
    Ok(Artefact {
        target: target.name,
        text,
        entries,
        params,
    })
}
