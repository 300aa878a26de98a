//! What a compiled graph is and why, as data and as text.
//!
//! | file | idea |
//! |---|---|
//! | this one | the data: kernels, host calls, memory, compile steps |
//! | `model.rs` | what each should take by the machine's figures, and what the whole should gain |
//! | `measured.rs` | what each took, and its share of the roofline |
//! | `text.rs` | the same for people |
//!
//! Counts are exact; times are a model, and say by which assumptions ([`model::ASSUMPTIONS`]). Figures that depend on symbols are left out where no number is known.

mod measured;
mod model;
mod text;

use std::time::Duration;

use oxyfuel_base::{Expr, Symbol};
use oxyfuel_plan::{ArgRef, Artefact, BufferHome, Kernel, KernelId, Plan, Step, TensorSpec};
use serde::Serialize;

use crate::cost::{Operator, external_flops};
use crate::figures::Figures;
use crate::record::{Origin, Record};

pub use measured::{Measured, best_times};
pub use model::{ASSUMPTIONS, Bound, Expected, Shares, Verdict, Work};
pub use text::{about_seconds, about_times};

/// What an explanation may draw on beside the plan.
#[derive(Clone, Copy, Default)]
pub struct Basis<'a> {
    /// What the machine can do; without it no times are given.
    pub figures: Option<&'a Figures>,
    /// Numbers of the symbols: those of a call, or likely ones.
    pub sizes: Option<&'a dyn Fn(Symbol) -> Option<i64>>,
    /// The program one operator at a time; without it there is no verdict.
    pub operators: Option<&'a [Operator]>,
    /// What getting ready cost, where it was more than the steps of the compile.
    pub compile_time: Option<Duration>,
    /// What each step of the plan took; without it there are no measured shares.
    pub measured: Option<&'a [Duration]>,
}

impl std::fmt::Debug for Basis<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Basis")
            .field("figures", &self.figures)
            .field("operators", &self.operators)
            .finish_non_exhaustive()
    }
}

impl Basis<'_> {
    fn number(&self, expr: &Expr) -> Option<u64> {
        let value = match expr.as_const() {
            Some(value) => value,
            None => expr.eval(self.sizes?).ok()?,
        };
        u64::try_from(value).ok()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    pub name: String,
    pub target: String,
    pub origin: Origin,
    pub kernels: Vec<KernelReport>,
    pub copies: usize,
    /// Calls of the host's own operators.
    pub externals: Vec<ExternalReport>,
    pub memory: MemoryReport,
    /// Compile steps in order; empty where the plan came from disk.
    pub steps: Vec<StepTime>,
    /// Cache problems and the like.
    pub notes: Vec<String>,
    /// What the machine can do, as far as it was measured.
    pub figures: Option<Figures>,
    /// What the whole should take and gain.
    pub verdict: Option<Verdict>,
    /// What all kernels took together, where they were measured.
    pub measured: Option<Measured>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    pub name: String,
    /// Source ops in order.
    pub ops: Vec<String>,
    /// Source lines, `file:line`.
    pub lines: Vec<String>,
    pub code: CodeKind,
    /// Bytes of machine code or of text.
    pub code_bytes: usize,
    /// One grid a phase.
    pub grids: Vec<String>,
    /// How often the phases run, each time on a part of their grids.
    pub rounds: u32,
    /// Blocks that run all phases in one launch, where they do.
    pub gathered: Option<u32>,
    /// How often a call launches it: the same work elsewhere in the graph is the same kernel.
    pub launches: usize,
    /// How many pieces of work that know nothing of each other share a launch.
    pub members: u32,
    /// Of one launch, each element once.
    pub bytes_read: Option<u64>,
    pub bytes_written: Option<u64>,
    /// Read and written.
    pub bytes: Option<u64>,
    /// Operations of one launch; see `docs/explain.md` for what counts as one.
    pub flops: Option<u64>,
    pub flops_per_byte: Option<f64>,
    /// Of one launch.
    pub expected: Option<Expected>,
    /// Of one launch, the mean of those of a call; each the shortest of several runs.
    pub measured_seconds: Option<f64>,
    /// What the work would take at the machine's best, by what it took: the longer of its bytes at the bandwidth of where they lie and its operations at the peak.
    pub roofline_share: Option<f64>,
    /// Why there is no machine code, where there is none.
    pub note: Option<String>,
}

/// An operator that the host runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExternalReport {
    pub name: String,
    /// Source ops.
    pub ops: Vec<String>,
    /// Source lines, `file:line`.
    pub lines: Vec<String>,
    /// Why it is not compiled.
    pub reason: String,
    /// Operands and results that are tensors.
    pub bytes: Option<u64>,
    /// Of products, convolutions and attention; unknown for the others.
    pub flops: Option<u64>,
    pub expected: Option<Expected>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeKind {
    Interpreted,
    Machine,
    Ptx,
}

#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    pub arena: String,
    pub arena_bytes: Option<u64>,
    /// What the kernel that needs most asks of each worker thread, for itself.
    pub scratch_bytes: u64,
    pub buffers: Vec<BufferReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct BufferReport {
    pub name: String,
    /// `input 0`, `output 1`, `constant`, `arena + 64`; `its own` for one that is made and forgotten while a call runs.
    pub home: String,
    pub bytes: Option<u64>,
    pub first_step: u32,
    pub last_step: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct StepTime {
    pub name: String,
    pub time: Duration,
}

/// Explains a plan.
pub fn explain(plan: &Plan, record: &Record, basis: &Basis<'_>) -> Explanation {
    let mut explanation = Explanation {
        name: plan.name.clone(),
        target: plan.isa.clone(),
        origin: record.origin,
        kernels: plan
            .kernels
            .iter()
            .map(|(id, kernel)| report(plan, id, kernel, basis))
            .collect(),
        copies: plan
            .steps
            .iter()
            .filter(|step| matches!(step, Step::Copy { .. }))
            .count(),
        externals: plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::External(step) => Some(external(plan, step, basis)),
                Step::Launch { .. } | Step::Copy { .. } => None,
            })
            .collect(),
        memory: memory(plan, basis),
        steps: record
            .steps
            .iter()
            .map(|step| StepTime {
                name: step.name.to_owned(),
                time: step.time,
            })
            .collect(),
        notes: record.notes.clone(),
        figures: basis.figures.cloned(),
        verdict: None,
        measured: None,
    };
    if let Some(times) = basis.measured {
        measured::add(plan, times, &mut explanation.kernels);
        explanation.measured = Measured::of(&explanation.kernels);
    }
    explanation.verdict = model::verdict(plan, &explanation, record, basis);
    explanation
}

/// Blocks that run all phases of a kernel in one launch.
fn gathered(kernel: &Kernel) -> Option<u32> {
    match &kernel.artefact {
        Artefact::Ptx(ptx) if ptx.entries.len() < kernel.phases.len() => {
            ptx.persistent_blocks.first().copied()
        }
        Artefact::Ptx(_) | Artefact::MachineCode(_) | Artefact::Interpreted => None,
    }
}

fn report(plan: &Plan, id: KernelId, kernel: &Kernel, basis: &Basis<'_>) -> KernelReport {
    let (code, code_bytes) = match &kernel.artefact {
        Artefact::Interpreted => (CodeKind::Interpreted, 0),
        Artefact::MachineCode(code) => (CodeKind::Machine, code.code.len()),
        Artefact::Ptx(module) => (CodeKind::Ptx, module.text.len()),
    };
    let mut launches = plan.steps.iter().filter_map(|step| match step {
        Step::Launch { kernel, args } if *kernel == id => Some(args),
        Step::Launch { .. } | Step::Copy { .. } | Step::External(_) => None,
    });
    let first = launches.next();
    let bytes_read = basis.number(&kernel.cost.bytes_read);
    let bytes_written = basis.number(&kernel.cost.bytes_written);
    let bytes = bytes_read
        .zip(bytes_written)
        .map(|(read, written)| read + written);
    let flops = basis.number(&kernel.cost.flops);
    let narrow = first.is_some_and(|args| {
        args.iter().any(|arg| match arg {
            ArgRef::Buffer { buffer, .. } => {
                let tensor = plan.buffers[*buffer].tensor.as_ref();
                tensor.is_some_and(is_narrow)
            }
            ArgRef::Index(_) | ArgRef::Literal { .. } | ArgRef::TensorMap => false,
        })
    });
    let work = bytes.zip(flops).map(|(bytes, flops)| Work {
        bytes,
        flops,
        products: basis.number(&kernel.cost.products).unwrap_or(0),
        narrow,
    });
    let grid = |grid: &[Expr]| {
        grid.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" x ")
    };
    let is_code = code != CodeKind::Interpreted;
    KernelReport {
        name: kernel.name.clone(),
        ops: kernel.provenance.ops.clone(),
        lines: kernel.provenance.lines.clone(),
        code,
        code_bytes,
        grids: kernel
            .phases
            .iter()
            .map(|phase| grid(&phase.grid))
            .collect(),
        rounds: kernel.rounds,
        gathered: gathered(kernel),
        launches: usize::from(first.is_some()) + launches.count(),
        members: kernel.members,
        bytes_read,
        bytes_written,
        bytes,
        flops,
        flops_per_byte: bytes
            .zip(flops)
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, flops)| flops as f64 / bytes as f64),
        // The interpreter's time follows from none of the figures.
        expected: basis
            .figures
            .zip(work)
            .filter(|_| is_code)
            .map(|(figures, work)| figures.expect(&work, figures.launch_seconds)),
        measured_seconds: None,
        roofline_share: None,
        note: kernel.note.clone(),
    }
}

/// Elements that a matrix unit may take.
fn is_narrow(tensor: &TensorSpec) -> bool {
    tensor.dtype.is_float() && tensor.dtype.size() <= 2
}

fn external(plan: &Plan, step: &oxyfuel_plan::ExternalStep, basis: &Basis<'_>) -> ExternalReport {
    let size = |tensor: &TensorSpec| -> Option<u64> {
        let moving = tensor.shape.iter().zip(&tensor.strides);
        let extents = moving.filter(|(_, stride)| !stride.is_const(0));
        let count: Expr = extents.map(|(extent, _)| extent.clone()).product();
        basis.number(&(count * tensor.dtype.size()))
    };
    let operands = step.operands.iter().filter_map(|o| o.tensor.as_ref());
    let results = step
        .results
        .iter()
        .filter_map(|&b| plan.buffers[b].tensor.as_ref());
    let bytes = operands
        .clone()
        .chain(results)
        .map(size)
        .sum::<Option<u64>>();
    let shapes: Vec<Option<&[Expr]>> = step
        .operands
        .iter()
        .map(|operand| operand.tensor.as_ref().map(|t| t.shape.as_slice()))
        .collect();
    let flops = external_flops(&step.call, &shapes).and_then(|flops| basis.number(&flops));
    let work = bytes.map(|bytes| Work {
        bytes,
        flops: flops.unwrap_or(0),
        products: flops.unwrap_or(0),
        narrow: step
            .operands
            .iter()
            .any(|o| o.tensor.as_ref().is_some_and(is_narrow)),
    });
    ExternalReport {
        name: step.call.name.clone(),
        ops: step.provenance.ops.clone(),
        lines: step.provenance.lines.clone(),
        reason: step.call.reason.clone(),
        bytes,
        flops,
        expected: basis
            .figures
            .zip(work)
            .map(|(figures, work)| figures.expect(&work, figures.host.dispatch_seconds)),
    }
}

fn scratch(kernel: &Kernel) -> u64 {
    match &kernel.artefact {
        Artefact::MachineCode(code) => code.scratch_bytes,
        Artefact::Interpreted | Artefact::Ptx(_) => 0,
    }
}

fn memory(plan: &Plan, basis: &Basis<'_>) -> MemoryReport {
    let hosted = plan
        .steps
        .iter()
        .any(|step| matches!(step, Step::External(_)));
    let buffer = |buffer: &oxyfuel_plan::Buffer| BufferReport {
        name: buffer.name.clone(),
        home: match &buffer.home {
            BufferHome::Input(i) => format!("input {i}"),
            BufferHome::Output(i) => format!("output {i}"),
            BufferHome::Arena { offset } => format!("arena + {offset}"),
            BufferHome::Constant(_) => "constant".to_owned(),
            BufferHome::Host if hosted => "host".to_owned(),
            BufferHome::Host => "its own".to_owned(),
            BufferHome::Within { buffer, offset } => {
                format!("{} + {offset}", plan.buffers[*buffer].name)
            }
        },
        bytes: basis.number(&buffer.bytes),
        first_step: buffer.first_step,
        last_step: buffer.last_step,
    };
    MemoryReport {
        arena: plan.arena_bytes.to_string(),
        arena_bytes: basis.number(&plan.arena_bytes),
        scratch_bytes: plan.kernels.values().map(scratch).max().unwrap_or(0),
        buffers: plan.buffers.values().map(buffer).collect(),
    }
}
