//! Running one graph on every target.

use crate::judge::Judge;
use crate::{memory, recorded};
use oxyfuel_base::Code;
use oxyfuel_engine::{Executable, Options, Target, compile, cpu_device};
use oxyfuel_graph::{Graph, HostTensor, bind, run};
use oxyfuel_plan::{Artefact, Plan};
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::cuda::CudaInfo;
use oxyfuel_runtime::execute::ReplayOptions;
use oxyfuel_runtime::null::{NullDevice, h200, small_card};
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

/// What a worker may take beside the plan.
const MOST_SCRATCH: u64 = 4 << 20;

/// Why a case has no result.
type Failure = (Option<Code>, String);

/// A graph on one target.
pub type Loaded = Result<Made, Failure>;

pub enum Made {
    Ready(Box<Executable>),
    /// Its calls are recorded on a card that is not there.
    Recorded(Box<Executable>, Arc<NullDevice>),
    /// The interpreter would run the very plan that it runs for an earlier target, which is given by its place.
    Again(usize),
}

fn coded(e: oxyfuel_base::Error) -> Failure {
    (Some(e.code), e.to_string())
}

pub struct Machines {
    options: Options,
    cpu: Arc<CpuDevice>,
    targets: Vec<Machine>,
}

/// A target, and the card that a GPU's plans are loaded on.
struct Machine {
    /// Begins with the target's name.
    name: String,
    target: Target,
    card: Option<CudaInfo>,
}

impl Machine {
    /// Every target as it is described in general, on an H200 where it is one of a GPU, and a card of few multiprocessors and little memory.
    fn all() -> Vec<Self> {
        let usual = Target::all().map(|target| Self {
            name: target.name().to_owned(),
            card: (!target.can_interpret()).then(h200),
            target,
        });
        let card = small_card();
        let target = Target::of_gpu(&card, "").expect("a card that is supported");
        let small = Self {
            name: format!(
                "{} of {} multiprocessors",
                target.name(),
                target.desc.workers
            ),
            target,
            card: Some(card),
        };
        usual.chain([small]).collect()
    }
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
            targets: Machine::all(),
            options,
        }
    }

    /// The graph compiled once for every target.
    pub fn load(&self, graph: &Graph) -> Vec<Loaded> {
        let mut interpreted: Vec<(usize, Plan)> = Vec::new();
        let load = |(at, Machine { target, card, .. }): (usize, &Machine)| {
            let mut compiled = compile(graph, target, &self.options, false).map_err(coded)?;
            if target.can_interpret() && !target.supported_here() {
                // Code that this processor lacks instructions for is emitted, and its programs are interpreted as they were laid out.
                for kernel in compiled.plan.kernels.values_mut() {
                    kernel.artefact = Artefact::Interpreted;
                }
                let plan = Plan {
                    isa: String::new(),
                    ..compiled.plan.clone()
                };
                if let Some((earlier, _)) = interpreted.iter().find(|(_, seen)| *seen == plan) {
                    return Ok(Made::Again(*earlier));
                }
                interpreted.push((at, plan));
            }
            for kernel in compiled.plan.kernels.values() {
                if let Artefact::MachineCode(code) = &kernel.artefact
                    && code.scratch_bytes > MOST_SCRATCH
                {
                    let why = format!("{} bytes of scratch", code.scratch_bytes);
                    return Err((None, why));
                }
            }
            let Some(card) = card else {
                let executable = Executable::load(compiled.plan, compiled.record, self.cpu.clone());
                return Ok(Made::Ready(Box::new(executable.map_err(coded)?)));
            };
            let card = NullDevice::of(card.clone(), 0);
            let executable = Executable::load(compiled.plan, compiled.record, card.clone())
                .and_then(|executable| executable.replaying(Some(ReplayOptions::default())));
            Ok(Made::Recorded(Box::new(executable.map_err(coded)?), card))
        };
        self.targets.iter().enumerate().map(load).collect()
    }

    /// Runs what was loaded and compares with the graph interpreter.
    pub fn run_loaded(
        &self,
        graph: &Graph,
        loaded: &[Loaded],
        inputs: &[HostTensor],
        judge: Judge,
    ) -> Result<Vec<Outcome>, String> {
        let expected = run(graph, inputs).map_err(|e| e.to_string())?;
        let mut ran: Vec<Result<(), Failure>> = Vec::new();
        for loaded in loaded {
            ran.push(match loaded {
                Ok(Made::Again(earlier)) => ran[*earlier].clone(),
                Ok(Made::Ready(executable)) => {
                    self.run_here(executable, graph, inputs, &expected, judge)
                }
                Ok(Made::Recorded(executable, card)) => launch(executable, card, graph, inputs),
                Err(failure) => Err(failure.clone()),
            });
        }
        let named = self.targets.iter().map(|machine| machine.name.clone());
        let outcomes = named.zip(ran).map(|(name, ran)| match ran {
            Ok(()) => Outcome::Agrees(name),
            Err((Some(Code::NoLowering), why)) => Outcome::NoLowering(name, why),
            Err((_, why)) => Outcome::Wrong(name, why),
        });
        Ok(outcomes.collect())
    }

    fn run_here(
        &self,
        executable: &Executable,
        graph: &Graph,
        inputs: &[HostTensor],
        expected: &[HostTensor],
        judge: Judge,
    ) -> Result<(), Failure> {
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| &input.shape[..]).collect();
        let bindings = bind(graph, &shapes).map_err(coded)?;
        let memory = self.cpu.memory();
        let tensors = memory::place(graph, &bindings, inputs, memory).map_err(coded)?;
        let outputs = executable
            .run(&tensors.iter().collect::<Vec<_>>())
            .map_err(coded)?;
        memory::check(graph, &bindings, inputs, &tensors, &outputs).map_err(|why| (None, why))?;
        judge(graph, inputs, expected, &outputs).map_err(|why| (None, why))?;
        Ok(())
    }
}

/// Launches on a card that is not there, with the inputs in two places.
fn launch(
    executable: &Executable,
    card: &NullDevice,
    graph: &Graph,
    inputs: &[HostTensor],
) -> Result<(), Failure> {
    let shapes: Vec<&[i64]> = inputs.iter().map(|input| &input.shape[..]).collect();
    let bindings = bind(graph, &shapes).map_err(coded)?;
    let place = || memory::reserve(graph, &bindings, inputs, card).map_err(coded);
    let (here, there) = (place()?, place()?);
    recorded::follows(executable, card, [&here, &there]).map_err(|why| (None, why))
}
