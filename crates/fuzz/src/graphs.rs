//! Graphs: the graph interpreter against what the engine compiles, on one thread and on several, with inputs in the layouts that the graph asks for, and outputs in new tensors, in
//! given ones or in the memory of inputs.

use crate::call::{Way, call};
use crate::case::{Check, Found, Mismatch, digest};
use crate::judge::{Neighbours, compare_all, expectations, order_decides, perturbed, show};
use crate::memory;
use oxyfuel_base::{Code, Error};
use oxyfuel_engine::{Executable, Options, Target, compile, cpu_device};
use oxyfuel_graph::random::{self, Choices, Limits};
use oxyfuel_graph::{Graph, HostTensor, bind, run};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::cpu::CpuDevice;
use std::sync::Arc;

/// Values of the two symbols of a graph, and of one with large sizes: one compile serves all of them.
const ASSIGNMENTS: [[i64; 2]; 3] = [[3, 2], [0, 2], [6, 1]];
const LARGE_ASSIGNMENTS: [[i64; 2]; 3] = [[257, 2], [1, 3], [64, 0]];

pub struct Worker {
    targets: Vec<Target>,
    /// On one thread and on three.
    devices: [Arc<CpuDevice>; 2],
    options: Options,
}

impl Worker {
    pub fn new(targets: &[Target]) -> Self {
        let options = |threads| Options {
            threads,
            ..Options::default()
        };
        Self {
            targets: targets.to_vec(),
            devices: [1, 3].map(|threads| cpu_device(&options(threads))),
            options: options(3),
        }
    }

    /// A graph on a target, loaded on every device; with it the kernels without code. Nothing where the target cannot express it.
    fn load(&self, graph: &Graph, target: &Target) -> Result<Option<Loaded>, Error> {
        let compiled = match compile(graph, target, &self.options, false) {
            Ok(compiled) => compiled,
            Err(e) if e.code == Code::NoLowering => return Ok(None),
            Err(e) => return Err(e),
        };
        let kernels = compiled.plan.kernels.values();
        let without_code = kernels.filter(|kernel| kernel.artefact == Artefact::Interpreted);
        let without_code = without_code.count() as u64;
        let mut executables = Vec::new();
        for device in &self.devices {
            let (plan, record) = (compiled.plan.clone(), compiled.record.clone());
            executables.push(Executable::load(plan, record, device.clone())?);
        }
        Ok(Some(Loaded {
            executables,
            without_code,
        }))
    }

    /// Whether a run on a device gives what is expected.
    fn judge(
        &self,
        way: Way,
        executable: &Executable,
        device: &CpuDevice,
        graph: &Graph,
        inputs: &[HostTensor],
        expected: &[HostTensor],
    ) -> Result<(), String> {
        let text = |e: Error| e.to_string();
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &input.shape[..]).collect();
        let bindings = bind(graph, &shapes).map_err(text)?;
        let tensors = memory::place(graph, &bindings, inputs, device.memory()).map_err(text)?;
        let outputs = call(
            way,
            executable,
            (graph, &bindings),
            &tensors,
            expected,
            device.memory(),
        )?;
        if !way.spends_inputs() {
            memory::check(graph, &bindings, inputs, &tensors, &outputs)?;
        }
        let plain = [expected.to_vec()];
        if compare_all(graph, &outputs, &plain, &Neighbours::new()).is_ok() {
            return Ok(());
        }
        // How much rounding may cost is worth knowing only where something differs.
        if order_decides(graph, inputs) {
            return Ok(());
        }
        let neighbours = perturbed(graph, inputs);
        let expected = expectations(graph, inputs, &neighbours)?;
        compare_all(graph, &outputs, &expected, &neighbours)
    }
}

struct Loaded {
    /// One a device.
    executables: Vec<Executable>,
    without_code: u64,
}

/// A graph, and the values that its symbols take.
struct Made {
    graph: Graph,
    assignments: &'static [[i64; 2]],
}

fn make(choices: &mut Choices<'_>) -> Result<Made, Error> {
    let large = choices.below(4) == 3;
    let symbols = choices.below(3) == 2;
    let limits = Limits {
        symbols,
        large,
        steps: if large { 12 } else { 30 },
        elements: if large { 6000 } else { 2000 },
        ..Limits::default()
    };
    let alike = !symbols && choices.below(6) == 5;
    Ok(Made {
        graph: match alike {
            true => random::alike(choices, &limits)?,
            false => random::graph(choices, &limits)?,
        },
        assignments: match (symbols, large) {
            (false, _) => &[[0; 2]],
            (true, false) => &ASSIGNMENTS,
            (true, true) => &LARGE_ASSIGNMENTS,
        },
    })
}

impl Check for Worker {
    fn check(&mut self, numbers: &[u32]) -> Result<Found, Mismatch> {
        let mut choices = Choices::new(numbers);
        let Made { graph, assignments } = make(&mut choices).map_err(|e| Mismatch {
            why: format!("generator: {e}"),
            text: format!("{numbers:?}"),
        })?;
        let wrong = |why: String, inputs: &[HostTensor]| Mismatch {
            why,
            text: format!("; test: run\n\n{graph}\n\n{}", show(inputs)),
        };
        let mut found = Found::default();
        let load = |target: &Target| self.load(&graph, target).map_err(|e| e.to_string());
        let loaded: Vec<_> = self.targets.iter().map(load).collect();
        for values in assignments {
            let inputs = random::inputs_of(&graph, values, &mut choices)
                .map_err(|e| wrong(format!("generator: {e}"), &[]))?;
            // With a symbol of 0 there may be nothing to choose the largest of, or to look up.
            let Ok(expected) = run(&graph, &inputs) else {
                continue;
            };
            found.programs = 1;
            let parts: Vec<&[u8]> = expected.iter().map(|t| t.data.as_slice()).collect();
            found.digest = found.digest.wrapping_add(digest(&parts));
            for (target, made) in self.targets.iter().zip(&loaded) {
                let name = target.name();
                let made = made.as_ref();
                let Some(made) = made.map_err(|why| wrong(format!("{name}: {why}"), &inputs))?
                else {
                    continue;
                };
                let ways = [Way::New, Way::ALL[numbers.len() % Way::ALL.len()]];
                let runs = made.executables.iter().zip(&self.devices).zip(ways);
                for ((executable, device), way) in runs {
                    self.judge(way, executable, device, &graph, &inputs, &expected)
                        .map_err(|why| {
                            let (threads, way) = (device.pool().threads(), way.name());
                            let why = format!("{name} on {threads} threads, {way}: {why}");
                            wrong(why, &inputs)
                        })?;
                    found.compared += 1;
                }
            }
        }
        for made in loaded.iter().flatten() {
            found.without_code += made.as_ref().map_or(1, |made| made.without_code);
        }
        Ok(found)
    }

    fn text(&self, numbers: &[u32]) -> String {
        let mut choices = Choices::new(numbers);
        match make(&mut choices) {
            Ok(made) => {
                let inputs = random::inputs_of(&made.graph, &made.assignments[0], &mut choices);
                let inputs = show(&inputs.unwrap_or_default());
                format!("; test: run\n\n{}\n\n{inputs}", made.graph)
            }
            Err(error) => format!("{error}\n"),
        }
    }
}
