//! Kernels that users write: a tile program on its own, outside of any graph.

use oxyfuel_base::{Code, Result};
use oxyfuel_kernel::{Form, Program};
use oxyfuel_plan::Artefact;

use crate::target::Target;

/// A user's program on a machine.
#[derive(Clone, Debug)]
pub struct UserKernel {
    pub mapped: Program,
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
        artefact,
        note,
    })
}
