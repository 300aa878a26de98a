//! Tile programs: the tile interpreter against the code of every target, bit for bit.

use crate::case::{Check, Found, Mismatch, digest};
use oxyfuel_base::{Code, Error, Scalar};
use oxyfuel_engine::{
    Executable, Options, Record, Target, UserKernel, compile_kernel, cpu_device, same,
};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::generate::{Case, Given, case};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::tensor::Tensor;
use std::sync::Arc;

pub struct Worker {
    targets: Vec<Target>,
    /// One thread, and two: instances are then cut between them.
    devices: [Arc<CpuDevice>; 2],
}

impl Worker {
    pub fn new(targets: &[Target]) -> Self {
        let device = |threads| {
            cpu_device(&Options {
                threads,
                ..Options::default()
            })
        };
        Self {
            targets: targets.to_vec(),
            devices: [device(1), device(2)],
        }
    }

    /// Whether the target has code for it and gives what is expected.
    fn run_on(
        &self,
        target: &Target,
        device: &Arc<CpuDevice>,
        case: &Case,
        expected: &[Vec<u8>],
    ) -> Result<bool, String> {
        let text = |e: Error| e.to_string();
        let kernel = match made(&case.program, target) {
            Ok(kernel) => kernel,
            Err(e) if e.code == Code::NoLowering => return Ok(false),
            Err(e) => return Err(text(e)),
        };
        match kernel.artefact {
            Artefact::MachineCode(_) => {}
            Artefact::Interpreted | Artefact::Ptx(_) => return Ok(false),
        }
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        for (at, given) in case.args.iter().enumerate() {
            match given {
                Given::Number(number) => numbers.push(Scalar::I(*number)),
                Given::Buffer { dtype, bytes } => {
                    let len = (bytes.len() / dtype.size()) as i64;
                    let tensor = Tensor::from_bytes(device.memory(), bytes, *dtype, &[len]);
                    tensors.push((at, *dtype, tensor.map_err(text)?));
                }
            }
        }
        let lengths: Vec<i64> = tensors.iter().map(|(_, _, t)| t.len() as i64).collect();
        let plan = kernel.plan(&lengths, &numbers).map_err(text)?;
        let executable = Executable::load(plan, Record::default(), device.clone()).map_err(text)?;
        let inputs: Vec<&Tensor> = tensors.iter().map(|(_, _, t)| t).collect();
        executable.run(&inputs).map_err(text)?;
        for (at, dtype, tensor) in &tensors {
            let found = tensor.to_bytes().map_err(text)?;
            let name = &case.program.params[*at].name;
            if case.is_written(*at) {
                same(*dtype, &found, &expected[*at]).map_err(|why| format!("{name}: {why}"))?;
            } else if let Given::Buffer { bytes, .. } = &case.args[*at]
                && found != *bytes
            {
                return Err(format!("{name} is only read, and has changed"));
            }
        }
        Ok(true)
    }
}

/// Code as users get it. Logical products have no mapping of their own, but targets take them as they are.
fn made(program: &Program, target: &Target) -> Result<UserKernel, Error> {
    match compile_kernel(program, target) {
        Err(e) if e.code == Code::NoLowering => Ok(UserKernel {
            mapped: program.clone(),
            isa: target.desc.isa.clone(),
            artefact: target.emit(program)?,
            note: None,
        }),
        made => made,
    }
}

impl Check for Worker {
    fn check(&mut self, numbers: &[u32]) -> Result<Found, Mismatch> {
        let wrong = |why: String, text: String| Mismatch { why, text };
        let case = match case(numbers) {
            Ok(Some(case)) => case,
            Ok(None) => return Ok(Found::default()),
            Err(e) => return Err(wrong(format!("generator: {e}"), format!("{numbers:?}"))),
        };
        let expected = case
            .interpret()
            .map_err(|e| wrong(format!("interpreter: {e}"), case.filetest()))?;
        let parts: Vec<&[u8]> = expected.iter().map(Vec::as_slice).collect();
        let mut found = Found {
            programs: 1,
            digest: digest(&parts),
            ..Found::default()
        };
        for (n, target) in self.targets.iter().enumerate() {
            let device = &self.devices[(numbers.len() + n) % 2];
            match self.run_on(target, device, &case, &expected) {
                Ok(true) => found.compared += 1,
                Ok(false) => found.without_code += 1,
                Err(why) => {
                    return Err(wrong(format!("{}: {why}", target.name()), case.filetest()));
                }
            }
        }
        Ok(found)
    }

    fn text(&self, numbers: &[u32]) -> String {
        match case(numbers) {
            Ok(Some(case)) => case.filetest(),
            Ok(None) => "no program\n".to_owned(),
            Err(error) => format!("{error}\n"),
        }
    }
}
