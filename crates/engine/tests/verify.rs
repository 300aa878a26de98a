//! `verify`: a kernel whose code is not what its program says is caught at its first call.

use oxyfuel_base::Code;
use oxyfuel_engine::{Executable, Options, Target, compile, cpu_device};
use oxyfuel_plan::{Artefact, Plan};
use oxyfuel_runtime::tensor::Tensor;

fn options(verify: bool) -> Options {
    Options {
        threads: 1,
        verify,
        ..Options::default()
    }
}

fn plan(op: &str, target: &Target) -> Plan {
    let text = format!(
        "graph @f(%x: f32[37] cpu, %y: f32[37] cpu) {{\n  %z: f32[37] = {op} %x, %y\n  return %z\n}}"
    );
    let graph = oxyfuel_graph::parse("test", &text).unwrap();
    let compiled = compile(&graph, target, &options(false), false).unwrap();
    compiled.plan
}

/// Runs `1.5 op 0.5`, whatever the plan holds.
fn run(plan: &Plan, verify: bool) -> oxyfuel_base::Result<Vec<f32>> {
    let device = cpu_device(&options(verify));
    let executable = Executable::load(plan.clone(), Default::default(), device.clone())?;
    let x = Tensor::from_slice(device.memory(), &[1.5f32; 37], &[37])?;
    let y = Tensor::from_slice(device.memory(), &[0.5f32; 37], &[37])?;
    executable.run(&[&x, &y])?[0].to_vec()
}

#[test]
fn wrong_code_is_caught() {
    let levels = Target::all().filter(|t| t.name().starts_with("avx") && t.supported_here());
    for target in levels {
        let good = plan("add", &target);
        assert_eq!(run(&good, true).unwrap(), [2.0; 37]);

        // The program adds, the code subtracts.
        let mut wrong = good.clone();
        let other = plan("sub", &target);
        for (kernel, other) in wrong.kernels.values_mut().zip(other.kernels.values()) {
            assert!(matches!(kernel.artefact, Artefact::MachineCode(_)));
            kernel.artefact = other.artefact.clone();
        }
        assert_eq!(run(&wrong, false).unwrap(), [1.0; 37], "{}", target.name());
        let error = run(&wrong, true).unwrap_err();
        assert_eq!(error.code, Code::WrongResult, "{}", target.name());
        let kernel = &good.kernels.values().next().unwrap().name;
        assert!(error.message.contains(kernel.as_str()), "{error}");
    }
}
