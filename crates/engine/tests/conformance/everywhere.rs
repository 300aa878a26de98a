//! Running one graph on every target.

use oxyfuel_base::{Code, DType};
use oxyfuel_engine::{Executable, Options, Target, agree, compile, cpu_device};
use oxyfuel_graph::{Graph, HostTensor, run};
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::null::NullDevice;
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_testkit::Rng;
use std::sync::Arc;

/// What became of a case on a target.
#[derive(Debug)]
pub enum Outcome {
    Agrees(String),
    /// The target cannot express it.
    NoLowering(String, String),
    Wrong(String, String),
}

impl Outcome {
    pub fn target(&self) -> &str {
        match self {
            Self::Agrees(target) | Self::NoLowering(target, _) | Self::Wrong(target, _) => target,
        }
    }
}

/// Results for inputs that differ a little, which tell how much rounding may cost.
pub type Neighbours = Vec<Vec<HostTensor>>;

pub struct Machines {
    options: Options,
    cpu: Arc<CpuDevice>,
    targets: Vec<Target>,
}

impl Machines {
    pub fn new() -> Self {
        // Kernels are judged one by one as they run, so that a failure names its kernel; the interpreter checks bounds, races and uninitialised reads.
        let options = Options {
            threads: 2,
            verify: true,
            ..Options::default()
        };
        Self {
            cpu: cpu_device(&options),
            targets: Target::all()
                .filter(|t| !t.can_interpret() || t.supported_here())
                .collect(),
            options,
        }
    }

    /// Runs the graph on every target and compares with the graph interpreter.
    pub fn run(&self, graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<Outcome>, String> {
        self.run_loosely(graph, inputs, &Vec::new())
    }

    /// As [`Self::run`], but an element may differ as much as it differs between neighbours.
    pub fn run_loosely(
        &self,
        graph: &Graph,
        inputs: &[HostTensor],
        neighbours: &Neighbours,
    ) -> Result<Vec<Outcome>, String> {
        let mut expected = vec![run(graph, inputs).map_err(|e| e.to_string())?];
        // Between the primitives of a composition eager may round, or overflow, as we do.
        if !neighbours.is_empty() {
            let primitive = oxyfuel_transform::decompose(graph).map_err(|e| e.to_string())?;
            expected.extend(run(&primitive, inputs));
        }
        Ok(self
            .targets
            .iter()
            .map(|target| {
                let name = target.name().to_owned();
                match self.run_on(target, graph, inputs, &expected, neighbours) {
                    Ok(()) => Outcome::Agrees(name),
                    Err((Some(Code::NoLowering), why)) => Outcome::NoLowering(name, why),
                    Err((_, why)) => Outcome::Wrong(name, why),
                }
            })
            .collect())
    }

    fn run_on(
        &self,
        target: &Target,
        graph: &Graph,
        inputs: &[HostTensor],
        expected: &[Vec<HostTensor>],
        neighbours: &Neighbours,
    ) -> Result<(), (Option<Code>, String)> {
        let coded = |e: oxyfuel_base::Error| (Some(e.code), e.to_string());
        let compiled = compile(graph, target, &self.options, false).map_err(coded)?;
        if !target.can_interpret() {
            let device = NullDevice::new(0);
            let executable =
                Executable::load(compiled.plan, compiled.record, device.clone()).map_err(coded)?;
            let tensors: Vec<Tensor> = inputs
                .iter()
                .map(|input| Tensor::empty_on(&*device, input.dtype, &input.shape))
                .collect::<Result<_, _>>()
                .map_err(coded)?;
            executable
                .run(&tensors.iter().collect::<Vec<_>>())
                .map_err(coded)?;
            return Ok(());
        }
        let device: Arc<dyn oxyfuel_runtime::device::Device> = self.cpu.clone();
        let executable = Executable::load(compiled.plan, compiled.record, device).map_err(coded)?;
        let tensors: Vec<Tensor> = inputs
            .iter()
            .map(|input| {
                Tensor::from_bytes(self.cpu.memory(), &input.data, input.dtype, &input.shape)
            })
            .collect::<Result<_, _>>()
            .map_err(coded)?;
        let outputs = executable
            .run(&tensors.iter().collect::<Vec<_>>())
            .map_err(coded)?;
        let mut result = Ok(());
        for expected in expected {
            result = compare_all(graph, &outputs, expected, neighbours);
            if result.is_ok() {
                break;
            }
        }
        result.map_err(|why| (None, why))
    }
}

fn compare_all(
    graph: &Graph,
    outputs: &[Tensor],
    expected: &[HostTensor],
    neighbours: &Neighbours,
) -> Result<(), String> {
    if outputs.len() != expected.len() {
        return Err(format!("{} outputs, not {}", outputs.len(), expected.len()));
    }
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        if output.dtype() != expected.dtype || output.shape() != expected.shape {
            return Err(format!(
                "output {i} is {}{:?}",
                output.dtype(),
                output.shape()
            ));
        }
        let ours = output.to_bytes().map_err(|e| e.to_string())?;
        let near: Vec<&HostTensor> = neighbours.iter().map(|results| &results[i]).collect();
        if let Err(why) = compare(expected, &ours, &near)
            && (near.is_empty() || !jumps(graph, graph.outputs[i].value))
        {
            return Err(format!("output {i}: {why}"));
        }
    }
    Ok(())
}

fn compare(expected: &HostTensor, ours: &[u8], near: &[&HostTensor]) -> Result<(), String> {
    let Err(why) = agree(expected.dtype, ours, &expected.data) else {
        return Ok(());
    };
    if near.is_empty() {
        return Err(why);
    }
    let ours = HostTensor::new(expected.dtype, &expected.shape, ours.to_vec())
        .map_err(|e| e.to_string())?;
    let largest = expected
        .to_f64()
        .into_iter()
        .filter(|x| x.is_finite())
        .fold(0f64, |m, x| m.max(x.abs()));
    for at in 0..expected.numel() {
        let (a, b) = (ours.get(at).as_f64(), expected.get(at).as_f64());
        let around = near.iter().map(|t| t.get(at).as_f64());
        // Not a number here or there, or a jump: rounding decides, and nothing can be said.
        let unstable = around
            .clone()
            .any(|n| n.is_finite() != b.is_finite() || (!expected.dtype.is_float() && n != b));
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || unstable {
            continue;
        }
        let spread = around.map(|n| (n - b).abs()).fold(0f64, f64::max);
        let ulps = if expected.dtype == DType::BF16 {
            0.5
        } else if expected.dtype == DType::F16 {
            0.06
        } else {
            1e-5
        };
        if (a - b).abs() > 64.0 * spread + ulps * largest.min(b.abs() + 1.0) {
            return Err(format!(
                "element {at} is {a}, not {b} (neighbours differ by {spread})"
            ));
        }
    }
    Ok(())
}

/// Ops whose result jumps where their operand moves a little.
const JUMPS: &[&str] = &[
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "remainder",
    "fmod",
    "div_floor",
    "div_trunc",
    "any",
    "all",
    "logical_not",
    "_to_copy",
];

/// Whether a value depends on a jump over floats that were computed: a last bit may decide it, and two right answers may differ by much.
fn jumps(graph: &Graph, value: oxyfuel_graph::ValueId) -> bool {
    let mut jumpy = std::collections::HashSet::new();
    for node in graph.nodes.values() {
        let computed =
            |v: &oxyfuel_graph::ValueId| !graph.inputs.contains(v) && graph.ty(*v).dtype.is_float();
        let here = JUMPS.contains(&node.op.name())
            && node.inputs.iter().any(computed)
            && !(node.op.name() == "_to_copy" && graph.ty(node.out()).dtype.is_float());
        if here || node.inputs.iter().any(|v| jumpy.contains(v)) {
            jumpy.extend(node.outputs.iter().copied());
        }
    }
    jumpy.contains(&value)
}

/// Results for inputs a little above and a little below.
pub fn perturbed(graph: &Graph, inputs: &[HostTensor]) -> Neighbours {
    let moved = |by: f64| -> Vec<HostTensor> {
        let one = |(n, t): (usize, &HostTensor)| {
            if !t.dtype.is_float() {
                return t.clone();
            }
            // A step that the type can show, in a different direction for each element.
            let step = match t.dtype {
                DType::BF16 => 2f64.powi(-7),
                DType::F16 => 2f64.powi(-10),
                _ => 2f64.powi(-21),
            };
            let values: Vec<f64> = t
                .to_f64()
                .iter()
                .enumerate()
                .map(|(i, x)| {
                    if (i * 7 + n) % 3 == 0 {
                        x * (1.0 - by * step)
                    } else {
                        x * (1.0 + by * step)
                    }
                })
                .collect();
            HostTensor::from_f64(t.dtype, &t.shape, &values).unwrap_or_else(|_| t.clone())
        };
        inputs.iter().enumerate().map(one).collect()
    };
    [1.0, -1.0]
        .iter()
        .filter_map(|&by| run(graph, &moved(by)).ok())
        .collect()
}

/// Numbers around zero for floats, small ones for integers: indices into dims of the cases stay in range.
pub fn random_inputs(graph: &Graph, rng: &mut Rng) -> Result<Vec<HostTensor>, String> {
    let tensor = |&value: &oxyfuel_graph::ValueId| {
        let ty = graph.ty(value);
        let shape: Option<Vec<i64>> = ty.shape.iter().map(|e| e.as_const()).collect();
        let shape = shape.ok_or("a seeded case has constant sizes")?;
        let count: i64 = shape.iter().product();
        let made = if ty.dtype.is_float() {
            let values: Vec<f64> = (0..count).map(|_| rng.normal()).collect();
            HostTensor::from_f64(ty.dtype, &shape, &values)
        } else {
            let values: Vec<i64> = (0..count)
                .map(|_| rng.between(0, if ty.dtype == DType::Bool { 1 } else { 4 }))
                .collect();
            HostTensor::from_i64(ty.dtype, &shape, &values)
        };
        made.map_err(|e| e.to_string())
    };
    graph.inputs.iter().map(tensor).collect()
}

/// Inputs as a case file has them.
pub fn show(inputs: &[HostTensor]) -> String {
    let line = |t: &HostTensor| {
        format!(
            "{}{:?} = {}\n",
            t.dtype,
            t.shape,
            oxyfuel_graph::text::elements_text(t)
        )
    };
    inputs.iter().map(line).collect()
}
