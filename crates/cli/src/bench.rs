//! `oxyfuel bench`: eager against compiled, and against the machine.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use oxyfuel_base::{Result, err};
use oxyfuel_engine::{Compiler, Executable, Options, Target, cpu_device};
use oxyfuel_graph::HostTensor;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::cpu::features::Machine;
use oxyfuel_runtime::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::bars::{Bar, all_met};
use crate::check::Expected;
use crate::define::{Bound, Place, Workload, workloads};
use crate::eager::Eager;
use crate::limit::{self, Limit};
use crate::measure::{Effort, Times, measure, median, seconds_text};
use crate::{Common, compare, env, modes, overhead, steps};

/// Turns of a row that is judged by its share of the limit, the place of the lower 95 % bound of their median, and how near to the bar that has to be.
const TURNS: usize = 31;
const LOW: usize = 9;
const CLOSE: f64 = 0.95;

/// Every result is checked against the interpreter before it is timed; a row whose check failed is not printed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  oxyfuel bench
  oxyfuel bench --filter softmax --threads 1
  oxyfuel bench --json > old.json; …; oxyfuel bench --json > new.json; oxyfuel bench --compare old.json new.json
  oxyfuel bench --compile
  oxyfuel bench --overhead --json
  oxyfuel bench --modes --filter softmax")]
pub struct BenchArgs {
    #[command(flatten)]
    common: Common,
    /// Only workloads whose name or title contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// 2 warm-ups and 7 timed calls instead of 10 and 50: to see that it works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Print data instead of a table
    #[arg(long)]
    json: bool,
    /// Compare two files that --json wrote, and measure nothing
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    compare: Option<Vec<PathBuf>>,
    /// Measure how long compiling takes, by step, and run nothing; fails when a bar is missed
    #[arg(long)]
    compile: bool,
    /// Compile one graph and print the milliseconds: what --compile asks of fresh processes
    #[arg(long, value_name = "NAME", requires = "compile", hide = true)]
    cold: Option<String>,
    /// Measure what a call costs beside its work, ordinary and bound, and nothing else; fails when a bar is missed
    #[arg(long)]
    overhead: bool,
    /// A row for each compile mode
    #[arg(long)]
    modes: bool,
    /// List the workloads and measure nothing
    #[arg(long)]
    list: bool,
}

/// Everything one run measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: String,
    pub machine: MachineReport,
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineReport {
    pub cpu: String,
    pub cores: usize,
    pub threads: usize,
    pub target: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub title: String,
    pub bound: Bound,
    pub eager: Option<Times>,
    pub eager_kernels: Option<usize>,
    pub compiled: Times,
    /// With outputs that the caller has.
    pub compiled_into: Times,
    /// Bytes or operations a second, by the median.
    pub rate: f64,
    pub rate_into: f64,
    pub limit: Option<Limit>,
    /// `rate_into` by the limit's rate; of a row that is judged by it, the median of ratios in turns.
    pub share: Option<f64>,
    /// What the share has to be, and whether it is.
    #[serde(default)]
    pub share_bar: Option<f64>,
    #[serde(default)]
    pub met: Option<bool>,
    pub kernels: usize,
    /// First compile of the graph in this process, code in place.
    pub compile_ms: f64,
}

impl Row {
    /// A sentence where its bar is missed.
    fn miss(&self) -> Option<String> {
        let (share, bar) = (self.share? * 100.0, self.share_bar? * 100.0);
        (self.met == Some(false))
            .then(|| format!("{}: {share:.0} % of the limit, bar {bar:.0} %", self.name))
    }

    /// `92 %`, with the bar and the verdict where there is one.
    fn share_text(&self) -> String {
        let Some(share) = self.share else {
            return "-".to_owned();
        };
        let bar = Bar {
            bar: self.share_bar.map(|bar| (bar * 100.0).round()),
            met: self.met,
        };
        match self.share_bar {
            Some(_) => format!("{:.0} %, bar {}", share * 100.0, bar.text()),
            None => format!("{:.0} %", share * 100.0),
        }
    }
}

impl BenchArgs {
    fn effort(&self) -> Effort {
        match self.quick {
            true => Effort::QUICK,
            false => Effort::FULL,
        }
    }
}

/// Whether all bars are met of what is judged.
pub fn bench(args: &BenchArgs) -> Result<bool> {
    if let Some(files) = &args.compare {
        compare::compare(&files[0], &files[1], args.json)?;
        return Ok(true);
    }
    if args.overhead {
        return overhead::overhead(&args.common, args.json, args.quick);
    }
    if let Some(name) = &args.cold {
        steps::cold(&args.common, name)?;
        return Ok(true);
    }
    let chosen = chosen(args)?;
    if args.list {
        for w in &chosen {
            println!("{:<28} {}", w.name, w.title);
        }
        return Ok(true);
    }
    if args.compile {
        return steps::steps(&args.common, &chosen, args.json, args.quick);
    }
    if args.modes {
        modes::modes(&args.common, &chosen, args.json, args.effort())?;
        return Ok(true);
    }
    speed(args, &chosen)
}

/// Eager against compiled, and against the machine; whether all bars are met.
fn speed(args: &BenchArgs, chosen: &[Workload]) -> Result<bool> {
    let bench = Bench::new(args)?;
    let report = bench.all(chosen);
    if args.json {
        println!("{}", json(&report)?);
    } else {
        print!("{}", text(&report));
    }
    for failure in &report.failures {
        eprintln!("{failure}");
    }
    // Who reads data reads the verdicts there.
    let missed = report.rows.iter().filter(|_| !args.json);
    let missed: Vec<String> = missed.filter_map(Row::miss).collect();
    let met = all_met(&missed);
    match report.failures.len() {
        0 => Ok(met),
        n => Err(err!(
            WrongResult,
            "{n} of {} workloads failed",
            chosen.len()
        )),
    }
}

pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|error| err!(Internal, "writing JSON: {error}"))
}

/// The workloads that the filter and the target leave.
fn chosen(args: &BenchArgs) -> Result<Vec<Workload>> {
    let place = match &args.common.target {
        Some(name) if !Target::by_name(name)?.can_interpret() => Place::Gpu,
        Some(_) | None => Place::Cpu,
    };
    let matches = |w: &Workload| w.name.contains(&args.filter) || w.title.contains(&args.filter);
    let chosen: Vec<Workload> = workloads()?
        .into_iter()
        .filter(|w| w.place == place && matches(w))
        .collect();
    if chosen.is_empty() {
        return Err(
            err!(UnknownName, "no workload is called like `{}`", args.filter)
                .help("`oxyfuel bench --list` names them"),
        );
    }
    Ok(chosen)
}

/// What all rows share.
struct Bench {
    target: Target,
    options: Options,
    compiler: Compiler,
    cpu: Option<Arc<CpuDevice>>,
    effort: Effort,
}

/// A workload in memory, compiled.
pub struct Ready {
    pub host_inputs: Vec<HostTensor>,
    pub inputs: Vec<Tensor>,
    pub executable: Executable,
    pub compile_ms: f64,
}

impl Bench {
    fn new(args: &BenchArgs) -> Result<Self> {
        // A plan from disk would hide what compiling costs, and the judge would be timed.
        let options = Options {
            cache_dir: None,
            verify: false,
            ..env::options(&args.common)?
        };
        let target = Target::host(&options)?;
        target.check_here()?;
        let cpu = target.can_interpret().then(|| cpu_device(&options));
        let device = match &cpu {
            Some(cpu) => cpu.clone(),
            None => target.device(&options)?,
        };
        Ok(Self {
            compiler: Compiler::on(target.clone(), options.clone(), device),
            target,
            options,
            cpu,
            effort: args.effort(),
        })
    }

    fn all(&self, chosen: &[Workload]) -> Report {
        let bar = progress(chosen.len());
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for w in chosen {
            bar.set_message(w.title.clone());
            match self.row(w, &mut failures) {
                Ok(row) => rows.push(row),
                Err(error) => failures.push(error.context(&w.name).to_string()),
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Report {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine(&self.target, &self.options),
            rows,
            failures,
        }
    }

    fn row(&self, w: &Workload, failures: &mut Vec<String>) -> Result<Row> {
        let ready = ready(w, &self.target, &self.options, self.compiler.device())?;
        let inputs: Vec<&Tensor> = ready.inputs.iter().collect();
        let device = self.compiler.device();
        let expected = Expected::of(w, &ready.host_inputs)?;

        let mut outputs = ready.executable.run(&inputs)?;
        device.synchronize()?;
        expected.check("the compiled graph", &outputs)?;
        let eager = self.eager(w, &inputs, &expected);
        if let Err(error) = &eager {
            failures.push(
                error
                    .clone()
                    .context(format!("{}, eager", w.name))
                    .to_string(),
            );
        }
        let compiled = measure(self.effort, || {
            ready.executable.run(&inputs)?;
            device.synchronize()
        })?;
        let compiled_into = measure(self.effort, || {
            ready.executable.run_into(&inputs, &mut outputs)?;
            device.synchronize()
        })?;
        expected.check("the compiled graph with given outputs", &outputs)?;

        let work = match w.bound {
            Bound::Bytes => w.bytes().0 + w.bytes().1,
            Bound::Flops => w.flops(),
        } as f64;
        let limit = match w.bound {
            Bound::Bytes => Some(limit::bytes(
                &self.compiler,
                self.cpu.as_ref(),
                self.effort,
                w.bytes(),
            )?),
            Bound::Flops => limit::flops(&self.target, device, self.effort, w.dtype())?,
        };
        let rate_into = work / compiled_into.median;
        let mut share = limit.as_ref().map(|l| rate_into / l.rate);
        let mut met = None;
        if let Some(bar) = w.share().filter(|_| self.effort == Effort::FULL) {
            let ratios = self.in_turns(w, || {
                ready.executable.run_into(&inputs, &mut outputs)?;
                device.synchronize()
            })?;
            let (median, low) = (median(&ratios), ratios[LOW]);
            share = Some(median);
            met = Some(median >= bar && low >= CLOSE * bar);
        }
        let (eager, eager_kernels) = eager.ok().unzip();
        Ok(Row {
            name: w.name.clone(),
            title: w.title.clone(),
            bound: w.bound,
            eager,
            eager_kernels,
            compiled,
            compiled_into,
            rate: work / compiled.median,
            rate_into,
            share,
            share_bar: w.share(),
            met,
            limit,
            kernels: ready.executable.plan().kernels.len(),
            compile_ms: ready.compile_ms,
        })
    }

    /// A workload that memory bounds and its limit in turns: what it reaches of it, in order of size.
    fn in_turns(&self, w: &Workload, mut call: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
        let bytes = (w.bytes().0 + w.bytes().1) as f64;
        let mut ratios = Vec::new();
        for _ in 0..TURNS {
            let mine = measure(Effort::QUICK, &mut call)?;
            let limit = limit::bytes(&self.compiler, self.cpu.as_ref(), Effort::QUICK, w.bytes())?;
            ratios.push(bytes / mine.median / limit.rate);
        }
        ratios.sort_by(f64::total_cmp);
        Ok(ratios)
    }

    fn eager(
        &self,
        w: &Workload,
        inputs: &[&Tensor],
        expected: &Expected<'_>,
    ) -> Result<(Times, usize)> {
        let device = self.compiler.device();
        let eager = Eager::new(&w.graph, &self.compiler, inputs)?;
        expected.check("eager execution", &eager.run(inputs)?)?;
        let times = measure(self.effort, || {
            eager.run(inputs)?;
            device.synchronize()
        })?;
        Ok((times, eager.kernels()))
    }
}

/// Makes the inputs and compiles. A kernel that would run in the interpreter is an error: nothing is claimed for it.
pub fn ready(
    w: &Workload,
    target: &Target,
    options: &Options,
    device: &Arc<dyn oxyfuel_runtime::device::Device>,
) -> Result<Ready> {
    let host_inputs = w
        .inputs
        .iter()
        .map(|i| i.make())
        .collect::<Result<Vec<_>>>()?;
    let inputs = host_inputs
        .iter()
        .map(|host| to_device(host, device))
        .collect::<Result<_>>()?;
    let start = Instant::now();
    let compiled = oxyfuel_engine::compile(&w.graph, target, options, false)?;
    let executable = Executable::load(compiled.plan, compiled.record, device.clone())?;
    let compile_ms = start.elapsed().as_secs_f64() * 1e3;
    if target.name() != Target::interpreter().name() {
        for kernel in executable.plan().kernels.values() {
            if let Some(note) = &kernel.note {
                return Err(err!(
                    NoLowering,
                    "kernel {} has no machine code: {note}",
                    kernel.name
                ));
            }
        }
    }
    Ok(Ready {
        host_inputs,
        inputs,
        executable,
        compile_ms,
    })
}

pub fn to_device(
    host: &HostTensor,
    device: &Arc<dyn oxyfuel_runtime::device::Device>,
) -> Result<Tensor> {
    let tensor = Tensor::empty_on(&**device, host.dtype, &host.shape)?;
    device.copy_in(&host.data, tensor.storage(), 0)?;
    Ok(tensor)
}

pub fn machine(target: &Target, options: &Options) -> MachineReport {
    MachineReport {
        cpu: crate::doctor::cpu_model(),
        cores: Machine::get().physical_cores,
        threads: options.threads,
        target: target.name().to_owned(),
    }
}

fn progress(rows: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() || env::plain() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(rows as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// A table without borders on the sides, numbers to the right.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header.iter().copied());
    for number in 1..header.len() {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub fn rate_text(bound: Bound, rate: f64) -> String {
    let unit = match bound {
        Bound::Bytes => "GB/s",
        Bound::Flops => "GFLOP/s",
    };
    format!("{:.1} {unit}", rate / 1e9)
}

fn text(report: &Report) -> String {
    let mut table = table(&[
        "workload",
        "eager",
        "compiled",
        "gain",
        "min",
        "max",
        "std",
        "given outputs",
        "rate",
        "limit",
        "share",
        "kernels",
        "compile ms",
    ]);
    let dash = || "-".to_owned();
    for row in &report.rows {
        let eager = row.eager.as_ref();
        table.add_row([
            row.title.clone(),
            eager.map_or_else(dash, |t| seconds_text(t.median)),
            seconds_text(row.compiled.median),
            eager.map_or_else(dash, |t| format!("{:.2}x", t.median / row.compiled.median)),
            seconds_text(row.compiled.min),
            seconds_text(row.compiled.max),
            seconds_text(row.compiled.std),
            seconds_text(row.compiled_into.median),
            rate_text(row.bound, row.rate_into),
            row.limit
                .as_ref()
                .map_or_else(dash, |l| rate_text(row.bound, l.rate)),
            row.share_text(),
            row.eager_kernels.map_or_else(dash, |k| k.to_string())
                + " -> "
                + &row.kernels.to_string(),
            format!("{:.2}", row.compile_ms),
        ]);
    }
    let m = &report.machine;
    let calls = report
        .rows
        .first()
        .map_or((0, 0), |r| (r.compiled.warm_up_calls, r.compiled.calls));
    format!(
        "{table}\n{}, {} cores, {} threads, target {}; {} warm-ups, {} timed calls (fewer for calls above a second)\n\
         rate, limit and share: with given outputs; limit: a plain copy or read of as many bytes, or multiply-adds without memory\n",
        m.cpu, m.cores, m.threads, m.target, calls.0, calls.1
    )
}
