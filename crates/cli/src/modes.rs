//! `bench --modes`: every workload in every compile mode.

use oxyfuel_base::Result;
use oxyfuel_engine::{Compiler, Mode, Options, Target};
use oxyfuel_runtime::tensor::Tensor;
use serde::Serialize;

use crate::bench::{MachineReport, json, machine, ready, table};
use crate::check::Expected;
use crate::define::Workload;
use crate::measure::{Effort, Times, measure, seconds_text};
use crate::{Common, env};

const MODES: [(Mode, &str); 4] = [
    (Mode::Default, "default"),
    (Mode::ReduceOverhead, "reduce-overhead"),
    (Mode::MaxAutotune, "max-autotune"),
    (Mode::MaxAutotuneNoCudagraphs, "max-autotune-no-cudagraphs"),
];

/// One workload in one mode.
#[derive(Clone, Debug, Serialize)]
struct Line {
    name: String,
    title: String,
    mode: &'static str,
    compile_ms: f64,
    kernels: usize,
    compiled: Times,
    /// With outputs that the caller has.
    compiled_into: Times,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: MachineReport,
    lines: Vec<Line>,
}

pub fn modes(common: &Common, chosen: &[Workload], as_json: bool, effort: Effort) -> Result<()> {
    let options = Options {
        cache_dir: None,
        verify: false,
        ..env::options(common)?
    };
    let target = Target::host(&options)?;
    let mut lines = Vec::new();
    for w in chosen {
        for (mode, name) in MODES {
            let options = Options {
                mode,
                ..options.clone()
            };
            let line = line(w, name, &target, &options, effort);
            lines.push(line.map_err(|error| error.context(format!("{}, {name}", w.name)))?);
        }
    }
    let report = Report {
        machine: machine(&target, &options),
        lines,
    };
    if as_json {
        println!("{}", json(&report)?);
        return Ok(());
    }
    let mut table = table(&[
        "workload",
        "mode",
        "compiled",
        "min",
        "given outputs",
        "kernels",
        "compile ms",
    ]);
    for line in &report.lines {
        table.add_row([
            line.title.clone(),
            line.mode.to_owned(),
            seconds_text(line.compiled.median),
            seconds_text(line.compiled.min),
            seconds_text(line.compiled_into.median),
            line.kernels.to_string(),
            format!("{:.2}", line.compile_ms),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn line(
    w: &Workload,
    mode: &'static str,
    target: &Target,
    options: &Options,
    effort: Effort,
) -> Result<Line> {
    let compiler = Compiler::on(target.clone(), options.clone(), target.device(options)?);
    let device = compiler.device();
    let ready = ready(w, target, options, device)?;
    let inputs: Vec<&Tensor> = ready.inputs.iter().collect();
    let expected = Expected::of(w, &ready.host_inputs)?;
    let mut outputs = ready.executable.run(&inputs)?;
    device.synchronize()?;
    expected.check("the compiled graph", &outputs)?;
    let compiled = measure(effort, || {
        ready.executable.run(&inputs)?;
        device.synchronize()
    })?;
    let compiled_into = measure(effort, || {
        ready.executable.run_into(&inputs, &mut outputs)?;
        device.synchronize()
    })?;
    expected.check("the compiled graph with given outputs", &outputs)?;
    Ok(Line {
        name: w.name.clone(),
        title: w.title.clone(),
        mode,
        compile_ms: ready.compile_ms,
        kernels: ready.executable.plan().kernels.len(),
        compiled,
        compiled_into,
    })
}
