//! The concrete machines: a description for everything above the emitters, and the emitter itself.

use oxyfuel_base::{Code, Error, Result};
use oxyfuel_kernel::Program;
use oxyfuel_plan::{Artefact, TargetDesc};

/// A machine to compile for.
#[derive(Clone, Debug)]
pub struct Target {
    pub desc: TargetDesc,
    emitter: Emitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emitter {
    /// No code: the tile interpreter runs the programs.
    Interpreter,
}

impl Target {
    /// The interpreter with the shape of a small vector machine: portable, slow, and the judge of the others.
    pub fn interpreter() -> Self {
        Self {
            desc: cpu("interpreter", 32, 16, 1),
            emitter: Emitter::Interpreter,
        }
    }

    /// Emits a mapped program.
    pub fn emit(&self, _program: &Program) -> Result<Artefact> {
        match self.emitter {
            Emitter::Interpreter => Ok(Artefact::Interpreted),
        }
    }

    /// Whether kernels without code can run by the interpreter here.
    pub fn can_interpret(&self) -> bool {
        !self.desc.is_simt()
    }

    /// Code for people.
    pub fn listing(&self, artefact: &Artefact) -> String {
        match artefact {
            Artefact::Interpreted => "; runs in the tile interpreter\n".to_owned(),
            Artefact::MachineCode(code) => format!("; {} bytes of machine code\n", code.code.len()),
            Artefact::Ptx(module) => module.text.clone(),
        }
    }

    /// A target by name.
    pub fn by_name(name: &str) -> Result<Self> {
        match name {
            "interpreter" => Ok(Self::interpreter()),
            _ => Err(Error::new(
                Code::InvalidOption,
                format!("there is no target `{name}`"),
            )),
        }
    }
}

fn cpu(name: &str, vector_bytes: u32, registers: u32, workers: u32) -> TargetDesc {
    TargetDesc {
        name: name.to_owned(),
        isa: name.to_owned(),
        vector_bytes,
        warp_lanes: 1,
        max_warps: 1,
        registers,
        workers,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        shared_bytes: 0,
        tiles_spill: true,
        tensor_copies: false,
        matrix_units: Vec::new(),
    }
}
