//! What a compiled graph is and why, as data and as text.
//!
//! Figures that depend on symbols are left out of the data where no number is known; the text shows their expressions.

use std::fmt;
use std::time::Duration;

use oxyfuel_base::Expr;
use oxyfuel_plan::{Artefact, BufferHome, Kernel, Plan, Step};
use serde::Serialize;

use crate::record::{Origin, Record};

/// What the machine can do at best, as measured; the yardstick of [`Bound`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Of a plain copy, reads and writes together.
    pub bytes_per_second: f64,
    pub flops_per_second: f64,
    /// What a launch costs before any work is done.
    pub launch_seconds: f64,
}

/// What a kernel's time is spent on at best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Launch,
    Memory,
    Arithmetic,
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
    /// Read and written, each buffer once.
    pub bytes: Option<u64>,
    pub flops: Option<u64>,
    pub flops_per_byte: Option<f64>,
    pub bound: Option<Bound>,
    /// The least time that the limits allow.
    pub ideal: Option<Duration>,
    /// Why there is no machine code, where there is none.
    pub note: Option<String>,
}

/// An operator that the host runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalReport {
    pub name: String,
    /// Source ops.
    pub ops: Vec<String>,
    /// Source lines, `file:line`.
    pub lines: Vec<String>,
    /// Why it is not compiled.
    pub reason: String,
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
    pub buffers: Vec<BufferReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct BufferReport {
    pub name: String,
    /// `input 0`, `output 1`, `constant`, `arena + 64`.
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

/// Explains a plan; `limits` of the machine tell what bounds each kernel.
pub fn explain(plan: &Plan, record: &Record, limits: Option<Limits>) -> Explanation {
    Explanation {
        name: plan.name.clone(),
        target: plan.isa.clone(),
        origin: record.origin,
        kernels: plan
            .kernels
            .values()
            .map(|kernel| report(kernel, limits))
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
                Step::External(step) => Some(ExternalReport {
                    name: step.call.name.clone(),
                    ops: step.provenance.ops.clone(),
                    lines: step.provenance.lines.clone(),
                    reason: step.call.reason.clone(),
                }),
                Step::Launch { .. } | Step::Copy { .. } => None,
            })
            .collect(),
        memory: memory(plan),
        steps: record
            .steps
            .iter()
            .map(|step| StepTime {
                name: step.name.to_owned(),
                time: step.time,
            })
            .collect(),
        notes: record.notes.clone(),
    }
}

fn number(expr: &Expr) -> Option<u64> {
    expr.as_const().and_then(|n| u64::try_from(n).ok())
}

fn report(kernel: &Kernel, limits: Option<Limits>) -> KernelReport {
    let (code, code_bytes) = match &kernel.artefact {
        Artefact::Interpreted => (CodeKind::Interpreted, 0),
        Artefact::MachineCode(code) => (CodeKind::Machine, code.code.len()),
        Artefact::Ptx(module) => (CodeKind::Ptx, module.text.len()),
    };
    let moved = number(&kernel.cost.bytes_read).zip(number(&kernel.cost.bytes_written));
    let bytes = moved.map(|(read, written)| read + written);
    let flops = number(&kernel.cost.flops);
    let work = bytes.zip(flops);
    let judged = limits
        .zip(work)
        .map(|(limits, (bytes, flops))| limits.judge(bytes, flops));
    let grid = |grid: &[Expr]| {
        grid.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" x ")
    };
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
        bytes,
        flops,
        flops_per_byte: work
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, flops)| flops as f64 / bytes as f64),
        bound: judged.map(|(bound, _)| bound),
        ideal: judged.map(|(_, ideal)| ideal),
        note: kernel.note.clone(),
    }
}

impl Limits {
    /// What takes longest, and how long all takes when they overlap perfectly behind the launch.
    pub fn judge(&self, bytes: u64, flops: u64) -> (Bound, Duration) {
        let memory = bytes as f64 / self.bytes_per_second.max(1.0);
        let arithmetic = flops as f64 / self.flops_per_second.max(1.0);
        let work = memory.max(arithmetic);
        let bound = if self.launch_seconds > work {
            Bound::Launch
        } else if memory >= arithmetic {
            Bound::Memory
        } else {
            Bound::Arithmetic
        };
        let seconds = (self.launch_seconds.max(0.0) + work).min(1e9);
        (bound, Duration::from_secs_f64(seconds))
    }
}

fn memory(plan: &Plan) -> MemoryReport {
    let buffer = |buffer: &oxyfuel_plan::Buffer| BufferReport {
        name: buffer.name.clone(),
        home: match &buffer.home {
            BufferHome::Input(i) => format!("input {i}"),
            BufferHome::Output(i) => format!("output {i}"),
            BufferHome::Arena { offset } => format!("arena + {offset}"),
            BufferHome::Constant(_) => "constant".to_owned(),
            BufferHome::Host => "host".to_owned(),
        },
        bytes: number(&buffer.bytes),
        first_step: buffer.first_step,
        last_step: buffer.last_step,
    };
    MemoryReport {
        arena: plan.arena_bytes.to_string(),
        arena_bytes: number(&plan.arena_bytes),
        buffers: plan.buffers.values().map(buffer).collect(),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.kernels.len();
        let plural = if kernels == 1 { "" } else { "s" };
        write!(
            f,
            "{}: {kernels} kernel{plural} for {}",
            self.name, self.target
        )?;
        if self.copies > 0 {
            write!(f, ", {} copies", self.copies)?;
        }
        if !self.externals.is_empty() {
            write!(f, ", {} external calls", self.externals.len())?;
        }
        let total: Duration = self.steps.iter().map(|step| step.time).sum();
        match self.origin {
            Origin::Compiled => writeln!(f, ", compiled in {total:.2?}")?,
            Origin::Disk => writeln!(f, ", from the disk cache")?,
        }
        for kernel in &self.kernels {
            write!(f, "{kernel}")?;
        }
        if !self.externals.is_empty() {
            writeln!(f, "\nexternal calls")?;
        }
        let mut counts: Vec<(&ExternalReport, usize)> = vec![];
        for call in &self.externals {
            match counts
                .iter_mut()
                .find(|(known, _)| known.name == call.name && known.reason == call.reason)
            {
                Some((_, count)) => *count += 1,
                None => counts.push((call, 1)),
            }
        }
        for (call, count) in counts {
            writeln!(f, "  {count:>4} x {}: {}", call.name, call.reason)?;
        }
        writeln!(f, "\nmemory: arena of {} bytes", self.memory.arena)?;
        for buffer in &self.memory.buffers {
            writeln!(
                f,
                "  {:<14} {:<18} {:>12} bytes, steps {}..{}",
                buffer.name,
                buffer.home,
                shown(buffer.bytes),
                buffer.first_step,
                buffer.last_step
            )?;
        }
        if !self.steps.is_empty() {
            writeln!(f, "\ncompile time")?;
        }
        for step in &self.steps {
            writeln!(f, "  {:<10} {:>10.1?}", step.name, step.time)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}", self.name)?;
        writeln!(f, "  from     {}", self.ops.join(", "))?;
        if !self.lines.is_empty() {
            writeln!(f, "  at       {}", self.lines.join(", "))?;
        }
        match self.code {
            CodeKind::Interpreted => writeln!(f, "  code     none, runs in the interpreter")?,
            CodeKind::Machine => {
                writeln!(f, "  code     {} bytes of machine code", self.code_bytes)?
            }
            CodeKind::Ptx => writeln!(f, "  code     {} bytes of PTX", self.code_bytes)?,
        }
        if let Some(note) = &self.note {
            writeln!(f, "  because  {note}")?;
        }
        writeln!(f, "  grid     {}", self.grids.join(", then "))?;
        write!(
            f,
            "  work     {} bytes, {} FLOPs",
            shown(self.bytes),
            shown(self.flops)
        )?;
        if let Some(ratio) = self.flops_per_byte {
            write!(f, ", {ratio:.2} FLOPs/byte")?;
        }
        writeln!(f)?;
        if let (Some(bound), Some(ideal)) = (self.bound, self.ideal) {
            let what = match bound {
                Bound::Launch => "the launch",
                Bound::Memory => "memory",
                Bound::Arithmetic => "arithmetic",
            };
            writeln!(f, "  bound    by {what}, {ideal:.1?} at best")?;
        }
        Ok(())
    }
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), |n| n.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        bytes_per_second: 1e10,
        flops_per_second: 1e12,
        launch_seconds: 1e-6,
    };

    #[test]
    fn the_longest_part_is_the_bound() {
        assert_eq!(LIMITS.judge(100, 100).0, Bound::Launch);
        assert_eq!(LIMITS.judge(1 << 20, 1 << 20).0, Bound::Memory);
        assert_eq!(LIMITS.judge(1 << 20, 1 << 30).0, Bound::Arithmetic);
    }
}
