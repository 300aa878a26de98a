//! What a compiled function became, for people and for programs.

use crate::core::{Core, Request};
use crate::frozen::Once;
use crate::machine;
use crate::variant::{Kind, Variant, Whole};
use oxyfuel_base::{Expr, Result, Symbol, err};
use oxyfuel_engine::cache::Missed;
use oxyfuel_engine::cost::operators;
use oxyfuel_engine::explain::{CodeKind, KernelReport, Measured, Verdict, best_times};
use oxyfuel_engine::{Basis, Executable, Origin, explain};
use oxyfuel_graph::Graph;
use oxyfuel_plan::{BufferHome, SymbolSource};
use serde::Serialize;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// All variants of a compiled function.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The function's name.
    pub name: String,
    /// In the order of their compiles.
    pub variants: Vec<VariantReport>,
    /// Variants that made room for newer ones.
    pub forgotten: u64,
}

/// One variant.
#[derive(Clone, Debug, Serialize)]
pub struct VariantReport {
    /// What it was compiled for, an argument each: `f32[4, 8] cpu`.
    pub arguments: Vec<String>,
    /// Why it was compiled: `first call`, or every guard of the nearest variant that failed.
    pub reasons: Vec<String>,
    /// What became of each declared bucket, and why: padded, a symbol, or compiled as it is.
    pub buckets: Vec<String>,
    /// The machine it was compiled for.
    pub target: String,
    /// How often it was called.
    pub calls: u64,
    /// How many of them ran eagerly, because their arguments overlap where one is written.
    pub eager_calls: u64,
    /// Where the function reads a tensor and is cut: what it does and the line. Such a function runs anew at every call; its segments are compiled once.
    pub cuts: Vec<String>,
    /// Where its plan came from; of a function that is cut, compiled if one of its segments was.
    pub origin: Origin,
    /// Why the plan had to be compiled although there is a cache on disk: what that had instead. Found out when this report is made.
    pub missed: Option<Missed>,
    /// What happened on the way: a cache that could not be used, and why.
    pub notes: Vec<String>,
    /// Each step of the compile, capture first.
    pub steps: Vec<(&'static str, Duration)>,
    /// The kernels in the order of the plan.
    pub kernels: Vec<KernelReport>,
    /// Memory of a call in bytes.
    pub memory: MemoryReport,
    /// What it should take and gain; `None` where the machine cannot be measured.
    pub verdict: Option<Verdict>,
    /// What all kernels took, where they were measured.
    pub measured: Option<Measured>,
}

/// Bytes by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// Arguments and captured tensors.
    pub inputs: i64,
    /// Results, asked for at each call.
    pub outputs: i64,
    /// Everything in between, kept from call to call.
    pub arena: i64,
    /// Numbers of the program itself.
    pub constants: i64,
}

impl Core {
    /// Every variant, that of these arguments with what its kernels take.
    pub(crate) fn explain_measured(&self, request: &Request<'_>) -> Result<Explanation> {
        let variant = self.variant(request)?;
        let whole = one_plan(&variant)?;
        let times = whole.with_tensors(&variant, request.inputs, |tensors| {
            best_times(&whole.executable, tensors)
        })?;
        Ok(self.explain(Some((&variant, &times))))
    }
}

/// The one plan of a variant.
pub(crate) fn one_plan(variant: &Variant) -> Result<&Whole> {
    match &variant.kind {
        Kind::Whole(whole) => Ok(whole),
        Kind::Cut(_) => Err(err!(
            DataDependent,
            "a function that reads tensors on its way has no one list of steps"
        )
        .help("set fullgraph to see what cuts it")),
    }
}

impl VariantReport {
    /// `times`: what each step of its plan took, where it was measured.
    pub(crate) fn of(variant: &Variant, times: Option<&[Duration]>) -> Self {
        let arguments = variant.guards.iter().enumerate().map(|(i, guard)| {
            let shape = match &variant.pattern {
                Some(pattern) => pattern.shape_text(i),
                None => format!("{:?}", guard.shape),
            };
            format!("{}{shape} {}", guard.dtype, guard.device)
        });
        let mut report = Self {
            arguments: arguments.collect(),
            reasons: variant.reasons.clone(),
            buckets: variant.buckets.clone(),
            target: variant.compiler.target().name().to_owned(),
            calls: variant.calls.load(Ordering::Relaxed),
            eager_calls: variant.eager_calls.load(Ordering::Relaxed),
            cuts: Vec::new(),
            origin: Origin::default(),
            missed: None,
            notes: Vec::new(),
            steps: vec![("capture", variant.capture)],
            kernels: Vec::new(),
            memory: MemoryReport::default(),
            verdict: None,
            measured: None,
        };
        match &variant.kind {
            Kind::Whole(whole) => {
                report.verdict = report.add(variant, &whole.executable, &whole.graph, times);
                report.measured = times.and_then(|_| Measured::of(&report.kernels));
                report.origin = whole.origin;
                report.notes.extend(whole.once.as_ref().map(Once::text));
                if whole.origin == Origin::Memory {
                    // What it took is told where it was compiled.
                    report.steps.truncate(1);
                    report.missed = None;
                }
            }
            Kind::Cut(segments) => {
                let segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
                report.cuts.clone_from(&segments.cuts);
                let refused = segments.refused.as_ref();
                let refused =
                    refused.map(|why| format!("its sizes are numbers from now on: {why}"));
                report.reasons.extend(refused);
                let mut verdicts = Vec::new();
                for (part, runs) in &segments.parts {
                    let verdict = report.add(variant, &part.executable, &part.graph, None);
                    let a_call = *runs as f64 / report.calls.max(1) as f64;
                    verdicts.extend(verdict.map(|verdict| (verdict, a_call)));
                }
                if verdicts.len() == segments.parts.len() {
                    report.verdict = Verdict::together(&verdicts).map(in_segments);
                }
                let mut parts = segments.parts.iter();
                let disk = parts.all(|(part, _)| part.executable.record().origin == Origin::Disk);
                if disk && !segments.parts.is_empty() {
                    report.origin = Origin::Disk;
                }
            }
        }
        report
    }

    /// Adds what one plan is; the verdict on it, where there is one.
    fn add(
        &mut self,
        variant: &Variant,
        executable: &Executable,
        graph: &Graph,
        times: Option<&[Duration]>,
    ) -> Option<Verdict> {
        let plan = executable.plan();
        // Sizes of a graph of symbolic sizes are those of the call that it was compiled at.
        let hint = |symbol: Symbol| variant.pattern.as_ref()?.hint(symbol);
        let told = |symbol: Symbol| {
            let binding = plan.symbols.iter().find(|known| known.symbol == symbol)?;
            let SymbolSource::Extent { input, dim } = binding.source else {
                return None;
            };
            let guard = variant.guards.get(input as usize)?;
            guard.shape.get(dim as usize).copied()
        };
        let extent = |symbol: Symbol| hint(symbol).or_else(|| told(symbol));
        let number = |e: &Expr| e.eval(&extent).unwrap_or(0);
        let memory = &mut self.memory;
        memory.arena += number(&plan.arena_bytes);
        for buffer in plan.buffers.values() {
            match &buffer.home {
                BufferHome::Input(_) => memory.inputs += number(&buffer.bytes),
                BufferHome::Output(_) => memory.outputs += number(&buffer.bytes),
                BufferHome::Constant(bytes) => memory.constants += bytes.len() as i64,
                BufferHome::Arena { .. } | BufferHome::Host | BufferHome::Within { .. } => {}
            }
        }
        let record = executable.record();
        let steps = record.steps.iter();
        self.steps.extend(steps.map(|step| (step.name, step.time)));
        self.notes.extend(record.notes.iter().cloned());
        let replays = executable.program().replay_stats();
        self.notes.extend(replays.map(|stats| stats.to_string()));
        self.notes.extend(executable.submitted());
        let missed = || variant.compiler.why_missed(record);
        self.missed = self.missed.take().or_else(missed);
        let figures = machine::figures(&variant.compiler);
        let operators = operators(graph, &|_| None).ok();
        // The capture of a function that is cut is its first call, compiles and all.
        let capture = match &variant.kind {
            Kind::Whole(_) => variant.capture,
            Kind::Cut(_) => Duration::ZERO,
        };
        let basis = Basis {
            figures: figures.as_ref(),
            sizes: Some(&extent),
            operators: operators.as_deref(),
            compile_time: (!record.steps.is_empty()).then(|| capture + record.total()),
            measured: times,
        };
        let said = explain(plan, record, &basis);
        self.kernels.extend(said.kernels);
        said.verdict
    }

    /// Time from capture to plan.
    pub fn compile_time(&self) -> Duration {
        self.steps.iter().map(|(_, time)| *time).sum()
    }

    /// Kernels without machine code.
    pub fn interpreted(&self) -> impl Iterator<Item = &KernelReport> {
        self.kernels
            .iter()
            .filter(|kernel| kernel.code == CodeKind::Interpreted)
    }
}

/// A verdict on segments together says what it leaves out.
fn in_segments(mut verdict: Verdict) -> Verdict {
    let assumed = [
        "the function is cut: each segment runs as often as in the calls so far",
        "what the function itself does between segments, traced anew at every call, is not counted",
    ];
    verdict.assumptions.extend(assumed.map(str::to_owned));
    verdict.advice.push(
        "the function is cut where it reads a tensor: returned tensors that are read after the call, or where_ for a decision, keep it whole".to_owned(),
    );
    verdict
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// With a unit that keeps the number short.
struct Bytes(i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 10 << 10 => write!(f, "{n} B"),
            n if n < 10 << 20 => write!(f, "{} KiB", n >> 10),
            n if n < 10 << 30 => write!(f, "{} MiB", n >> 20),
            n => write!(f, "{} GiB", n >> 30),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.variants.len();
        let s = if count == 1 { "" } else { "s" };
        writeln!(f, "{}: {count} variant{s}", self.name)?;
        if self.forgotten > 0 {
            writeln!(
                f,
                "  {} older variants made room for newer ones: the arguments rarely repeat",
                self.forgotten
            )?;
        }
        for (number, variant) in self.variants.iter().enumerate() {
            write!(f, "variant {number} {variant}")?;
        }
        Ok(())
    }
}

impl fmt::Display for VariantReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments = self.arguments.join(", ");
        writeln!(f, "({arguments}) for {}, {} calls", self.target, self.calls)?;
        for reason in &self.reasons {
            writeln!(f, "  because: {reason}")?;
        }
        for bucket in &self.buckets {
            writeln!(f, "  bucket: {bucket}")?;
        }
        for cut in &self.cuts {
            writeln!(f, "  cut: {cut}")?;
        }
        if let Some(missed) = &self.missed {
            writeln!(f, "  not on disk: {missed}")?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        if self.eager_calls > 0 {
            writeln!(
                f,
                "  {} calls ran eagerly: arguments overlap where one is written",
                self.eager_calls
            )?;
        }
        write!(
            f,
            "  {} in {}:",
            self.origin,
            milliseconds(self.compile_time())
        )?;
        for (name, time) in &self.steps {
            write!(f, " {name} {}", milliseconds(*time))?;
        }
        writeln!(f)?;
        let memory = self.memory;
        writeln!(
            f,
            "  memory: inputs {}, outputs {}, in between {}, constants {}",
            Bytes(memory.inputs),
            Bytes(memory.outputs),
            Bytes(memory.arena),
            Bytes(memory.constants)
        )?;
        for kernel in &self.kernels {
            write!(f, "{kernel}")?;
        }
        if let Some(verdict) = &self.verdict {
            write!(f, "{verdict}")?;
        }
        if let Some(measured) = &self.measured {
            write!(f, "{measured}")?;
        }
        Ok(())
    }
}
