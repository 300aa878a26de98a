//! Graphs: the graph interpreter against what the engine compiles, on one thread and on several, with inputs in the layouts that the graph asks for, and outputs in new tensors, in
//! given ones or in the memory of inputs.

use crate::call::{Way, call};
use crate::case::{Check, Found, Mismatch, digest};
use crate::judge::{Judged, by_condition, show};
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
        let mut compiled = match compile(graph, target, &self.options, false) {
            Ok(compiled) => compiled,
            Err(e) if e.code == Code::NoLowering => return Ok(None),
            Err(e) => return Err(e),
        };
        let kernels = compiled.plan.kernels.values();
        let without_code = kernels.filter(|kernel| kernel.artefact == Artefact::Interpreted);
        let without_code = without_code.count() as u64;
        if !target.supported_here() {
            for kernel in compiled.plan.kernels.values_mut() {
                kernel.artefact = Artefact::Interpreted;
            }
        }
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
    ) -> Result<Judged, String> {
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
        by_condition(graph, inputs, expected, &outputs)
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
                    found.judged += self
                        .judge(way, executable, device, &graph, &inputs, &expected)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{self, Kind};
    use oxyfuel_base::DType;
    use oxyfuel_engine::agree;
    use oxyfuel_graph::op::{Binary, Op, Reduce, Unary};
    use oxyfuel_graph::parse;

    /// What the judge says of a graph's results where they should be another's.
    fn verdicts(right: &Graph, made: &Graph, inputs: &[HostTensor]) -> Vec<Result<Judged, String>> {
        let worker = Worker::new(&case::targets());
        let expected = run(right, inputs).expect("the interpreter runs it");
        let verdict = |target: &Target| {
            let loaded = worker.load(made, target).expect("it compiles")?;
            let (executable, device) = (&loaded.executables[0], &worker.devices[0]);
            Some(worker.judge(Way::New, executable, device, right, inputs, &expected))
        };
        worker.targets.iter().filter_map(verdict).collect()
    }

    fn graph(body: &str) -> Graph {
        let text = format!("graph @g(%x: f32[3, 4] cpu) {{\n{body}\n}}\n");
        parse("g", &text).expect("a graph")
    }

    fn input(rows: [[f64; 4]; 3]) -> [HostTensor; 1] {
        [HostTensor::from_f64(DType::F32, &[3, 4], &rows.concat()).expect("an input")]
    }

    const SUM: &str = "%s: f32[3] = sum %x, dims=[1], keepdim=false\nreturn %s";
    /// In the last two, order decides: over all digits of one, over the first few of the other.
    const ROWS: [[f64; 4]; 3] = [
        [1.0, 2.0, 3.0, 4.0],
        [1.0, 1e9, -1e9, 3.0],
        [0.25, 3000.0, -3000.0, 0.75],
    ];

    #[test]
    fn what_cancels_may_differ_by_what_cancelled_and_nothing_else_may() {
        let right = graph(SUM);
        let wrong = |errors: [f64; 3]| {
            let errors = errors.map(|e| e.to_string().to_lowercase()).join(", ");
            graph(&format!(
                "const @e: f32[3] = [{errors}]
                 %s: f32[3] = sum %x, dims=[1], keepdim=false
                 %e: f32[3] = constant id=@e
                 %t: f32[3] = add %s, %e
                 return %t"
            ))
        };
        let judged = |errors| verdicts(&right, &wrong(errors), &input(ROWS));
        assert!(!judged([0.0; 3]).is_empty());
        for verdict in judged([0.0, 40.0, 0.0]) {
            let judged = verdict.expect("rounding may cost 40 where 1e9 cancels");
            assert_eq!((judged.values, judged.widened, judged.left_out), (3, 1, 0));
        }
        let nan = f64::NAN;
        for errors in [
            [1e-3, 40.0, 0.0],
            [0.0, 40.0, 0.1],
            [0.0, 1e6, 0.0],
            [nan, 40.0, 0.0],
            [0.0, nan, 0.0],
        ] {
            for verdict in judged(errors) {
                verdict.expect_err("more than rounding costs");
            }
        }
    }

    #[test]
    fn a_quotient_by_what_vanishes_is_left_out_and_those_beside_it_are_not() {
        let body = |more: &str| {
            graph(&format!(
                "const @m: f32[] = [1.001]
                 %g: f32[3, 4] = gelu %x
                 %h: f32[3, 4] = mul %g, %g
                 %r: f32[3, 4] = rsqrt %h
                 {more}"
            ))
        };
        let inputs = input([[-6.4, -1.0, 0.5, 1.0], [2.0; 4], [3.0; 4]]);
        let right = body("return %r");
        for verdict in verdicts(&right, &right, &inputs) {
            let judged = verdict.expect("1 + erf(-6.4 / sqrt(2)) is zero in f32");
            assert!(judged.left_out <= 1, "{judged:?}");
        }
        let wrong = body("%c: f32[] = constant id=@m\n%m: f32[3, 4] = mul %r, %c\nreturn %m");
        for verdict in verdicts(&right, &wrong, &inputs) {
            verdict.expect_err("all others are wrong");
        }
    }

    /// A step of bf16 in what attention gives, which a matrix unit takes in other places than the interpreter, moves its gradients by more than their own size where weights are all but one.
    #[test]
    fn gradients_of_narrow_attention_may_differ_by_a_step_of_what_they_are_made_from() {
        let body = |moved: &str| {
            let text = format!(
                "graph @g(%q: bf16[1, 1, 5, 5] cpu, %k: bf16[1, 1, 9, 5] cpu) {{
                   %o: bf16[1, 1, 5, 5], %l: f32[1, 1, 5] = sdpa %q, %k, %k, causal=false, scale=0.5
                   %w: f32[1, 1, 5, 5] = _to_copy %o
                   %f: f32[] = full value={moved}
                   %m: f32[1, 1, 5, 5] = mul %w, %f
                   %p: bf16[1, 1, 5, 5] = _to_copy %m
                   %d: bf16[1, 1, 5, 5], %e: bf16[1, 1, 9, 5], %h: bf16[1, 1, 9, 5] = sdpa_backward %p, %q, %k, %k, %p, %l, causal=false, scale=0.5
                   return %d
                 }}"
            );
            parse("g", &text).expect("a graph")
        };
        // As the generator's: neighbours are a step of -0.53 apart, and start again at 4.
        let values = |n: i32| -> Vec<f64> {
            (0..n)
                .map(|i| (f64::from(i) * 3.7345 - 0.2637 + 4.0).rem_euclid(8.0) - 4.0)
                .collect()
        };
        let tensor = |rows: i64| {
            let values = values(rows as i32 * 5);
            HostTensor::from_f64(DType::BF16, &[1, 1, rows, 5], &values).expect("an input")
        };
        let inputs = [tensor(5), tensor(9)];
        let right = body("1.0");
        for verdict in verdicts(&right, &body("1.004"), &inputs) {
            verdict.expect("a step of bf16 in the result of attention");
        }
        for verdict in verdicts(&right, &body("1.5"), &inputs) {
            verdict.expect_err("half as much again");
        }
    }

    #[test]
    fn a_sum_without_its_last_term_is_a_mismatch() {
        let right = graph(SUM);
        let wrong = graph(
            "%p: f32[3, 3] = slice %x, dim=1, start=0, end=3, step=1
             %s: f32[3] = sum %p, dims=[1], keepdim=false
             return %s",
        );
        for verdict in verdicts(&right, &wrong, &input(ROWS)) {
            verdict.expect_err("a term is missing");
        }
    }

    /// The graph with another op in the place of one of its own.
    fn wrong(graph: &Graph, turn: usize) -> Option<Graph> {
        let other = |op: &Op| {
            Some(match op {
                Op::Binary(Binary::Add) => Op::Binary(Binary::Sub),
                Op::Binary(Binary::Sub) => Op::Binary(Binary::Add),
                Op::Binary(Binary::Mul) => Op::Binary(Binary::Add),
                Op::Binary(Binary::Maximum) => Op::Binary(Binary::Minimum),
                Op::Unary(Unary::Relu) => Op::Unary(Unary::Abs),
                Op::Unary(Unary::Exp) => Op::Unary(Unary::Sigmoid),
                Op::Reduce {
                    op: Reduce::Sum,
                    dims,
                    keepdim,
                } => Op::Reduce {
                    op: Reduce::Amax,
                    dims: dims.clone(),
                    keepdim: *keepdim,
                },
                _ => return None,
            })
        };
        let nodes = graph.nodes.iter();
        let changes: Vec<_> = nodes
            .filter_map(|(id, node)| Some((id, other(&node.op)?)))
            .collect();
        let (id, op) = changes.get(turn % changes.len().max(1))?;
        let mut wrong = graph.clone();
        wrong.nodes[*id].op = op.clone();
        Some(wrong)
    }

    #[test]
    fn wrong_ops_in_random_graphs_are_mismatches() {
        let mut worker = Worker::new(&case::targets());
        worker.targets.truncate(1);
        let (mut tried, mut caught) = (0, 0);
        for index in 0..600 {
            let numbers = case::numbers(Kind::Graph, 96, index);
            let mut choices = Choices::new(&numbers);
            let Made { graph, assignments } = make(&mut choices).expect("a graph");
            let Some(wrong) = wrong(&graph, index as usize) else {
                continue;
            };
            let inputs = random::inputs_of(&graph, &assignments[0], &mut choices).expect("inputs");
            let (Ok(expected), Ok(found)) = (run(&graph, &inputs), run(&wrong, &inputs)) else {
                continue;
            };
            let mut pairs = expected.iter().zip(&found);
            if pairs.all(|(a, b)| agree(a.dtype, &b.data, &a.data).is_ok()) {
                continue;
            }
            let Ok(Some(loaded)) = worker.load(&wrong, &worker.targets[0]) else {
                continue;
            };
            tried += 1;
            let (executable, device) = (&loaded.executables[0], &worker.devices[0]);
            let verdict = worker.judge(Way::New, executable, device, &graph, &inputs, &expected);
            caught += u32::from(verdict.is_err());
        }
        println!("{caught} of {tried} wrong graphs are mismatches");
        assert!(
            tried > 100 && 10 * caught >= 9 * tried,
            "{caught} of {tried}"
        );
    }
}
