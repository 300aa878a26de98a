//! Tile programs: the tile interpreter against the code of every target, bit for bit.
//!
//! Where a program has functions that are expanded, the code must give the bits of the expansion (be near them, where the target has a function of its own), and the expansion must be near what the interpreter gives for the function.

use crate::case::{Check, Found, Mismatch, digest};
use oxyfuel_base::{Code, DType, Error, Scalar};
use oxyfuel_engine::{
    Executable, Options, Record, Target, UserKernel, agree, compile_kernel, cpu_device, same,
};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::generate::{Case, Given, case, words};
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
        let runs_here = targets.iter().filter(|target| target.supported_here());
        let device = |threads| {
            cpu_device(&Options {
                threads,
                ..Options::default()
            })
        };
        Self {
            targets: runs_here.cloned().collect(),
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
        let expansion = case.open.then(|| expanded(case, &kernel, expected));
        let expansion = expansion.transpose()?;
        let (expected, judge): (_, Judge) = match &expansion {
            Some(expansion) if is_left_open(&kernel.mapped) => (&expansion[..], agree),
            Some(expansion) => (&expansion[..], same),
            None => (expected, same),
        };
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        for (at, given) in case.args.iter().enumerate() {
            match given {
                // The plan has room for these.
                Given::Buffer { .. } if case.is_workspace(at) => {}
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
                judge(*dtype, &found, &expected[*at]).map_err(|why| format!("{name}: {why}"))?;
            } else if let Given::Buffer { bytes, .. } = &case.args[*at]
                && found != *bytes
            {
                return Err(format!("{name} is only read, and has changed"));
            }
        }
        Ok(true)
    }
}

/// Whether a target has functions of its own where the program says how near they come and not which bits they give: reciprocal roots, whose root may be rounded or not, and near powers of two.
fn is_left_open(program: &Program) -> bool {
    let words = words(program);
    let open = ["rsqrt", "near_exp2"].map(|name| ("unary", Some(name)));
    open.iter().any(|word| words.contains(word))
}

/// Whether two results of a type count as equal.
type Judge = fn(DType, &[u8], &[u8]) -> Result<(), String>;

/// What the interpreter gives for the expansion of a program, which is near what it gives for the program.
fn expanded(
    case: &Case,
    kernel: &UserKernel,
    expected: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, String> {
    let expansion = Case {
        program: kernel.mapped.clone(),
        ..case.clone()
    };
    let results = expansion.interpret().map_err(|e| e.to_string())?;
    for (at, given) in case.args.iter().enumerate() {
        if let Given::Buffer { dtype, .. } = given
            && case.is_written(at)
        {
            agree(*dtype, &results[at], &expected[at])
                .map_err(|why| format!("the expansion: {why}"))?;
        }
    }
    Ok(results)
}

/// Code as users get it. Logical products have no mapping of their own, but targets take them as they are.
fn made(program: &Program, target: &Target) -> Result<UserKernel, Error> {
    match compile_kernel(program, target) {
        Err(e) if e.code == Code::NoLowering => Ok(UserKernel {
            mapped: program.clone(),
            params: program.params.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Kind, numbers, targets};
    use oxyfuel_kernel::generate::{Word, all_words};
    use std::collections::BTreeSet;

    /// Ops that no target of this machine has code for, and why.
    const NEVER: &[(&str, &str)] = &[
        ("scan", "plans for CPUs have loops in its place"),
        ("sort", "plans for CPUs have loops in its place"),
        ("atomic", "plans for CPUs give each place to one instance"),
        ("tensor_load", "only GPUs have it"),
        ("tensor_store", "only GPUs have it"),
        ("copy_async", "only GPUs have it"),
        ("copy_commit", "only GPUs have it"),
        ("copy_wait", "only GPUs have it"),
        ("barrier_init", "only GPUs have it"),
        ("barrier_arrive", "only GPUs have it"),
        ("barrier_wait", "only GPUs have it"),
        ("roles", "only GPUs have it"),
    ];

    #[test]
    fn every_op_is_compared() {
        let targets = targets();
        if targets.is_empty() {
            return;
        }
        let mut worker = Worker::new(&targets);
        let mut compared = BTreeSet::new();
        for index in 0..2500 {
            let numbers = numbers(Kind::Tile, 5, index);
            let Ok(Some(case)) = case(&numbers) else {
                continue;
            };
            let words = words(&case.program);
            if words.is_subset(&compared) {
                continue;
            }
            let found = worker
                .check(&numbers)
                .unwrap_or_else(|mismatch| panic!("{}\n{}", mismatch.why, mismatch.text));
            if found.compared > 0 {
                compared.extend(words);
            }
        }
        let never = |name: &str| NEVER.iter().any(|(never, _)| *never == name);
        let missing: Vec<Word> = all_words()
            .into_iter()
            .filter(|word| !compared.contains(word) && !never(word.0))
            .collect();
        assert!(missing.is_empty(), "never compared: {missing:?}");
        let made: Vec<&Word> = compared.iter().filter(|word| never(word.0)).collect();
        assert!(made.is_empty(), "there is code after all: {made:?}");
    }

    /// AVX-512 has near powers of two of its own: other bits than those of the expansion, and as near.
    #[test]
    fn functions_of_a_target_s_own_are_near() {
        let targets = targets();
        let mut worker = Worker::new(&targets);
        for numbers in [[30, 554_026, 0, 0, 0, 1], [29, 71_644, 0, 0, 0, 1]] {
            let case = case(&numbers).unwrap().unwrap();
            assert!(is_left_open(&case.program));
            let found = worker
                .check(&numbers)
                .unwrap_or_else(|mismatch| panic!("{}\n{}", mismatch.why, mismatch.text));
            assert_eq!(found.compared > 0, !worker.targets.is_empty());
        }
    }
}
