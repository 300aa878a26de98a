//! `oxyfuel serve`: an engine for a driver that compares engines.
//!
//! One command a line comes in, one line of JSON goes out:
//!
//! | command | answer |
//! |---|---|
//! | `prepare WORKLOAD` | `{"compile_ms": …, "kernels": …, "bytes": …, "loops": …, "has": […]}`; inputs made, compiled, checked, run once; `has` lists the words below that this workload has an answer to |
//! | `run WARM TIMED` | `{"ns": […]}`: that many calls not timed, then that many timed |
//! | `into WARM TIMED` | the same with given outputs; of a workload that is an update, over the inputs that it updates |
//! | `frozen WARM TIMED` | the same with the weights frozen |
//! | `beside WARM TIMED` | the same of the workload that computes it in other words |
//! | `copy WARM TIMED` | the same for a compiled copy that moves as many bytes as the workload reads and writes |
//! | `read WARM TIMED` | the same for a plain read of as many bytes, of workloads that hardly write |
//! | `arithmetic WARM TIMED` | the same for a loop of multiply-adds without memory, of products in their own type; the workload has `loops` times as many operations |
//! | `output NUMBER FILE` | `{"saved": 1}`: that output as `.npy` |
//! | `quit` | ends |
//!
//! A mistake answers `{"error": …}` and the engine goes on. Between commands nothing runs: the pool's threads sleep.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use oxyfuel_base::{DType, Result, err};
use oxyfuel_engine::{Options, Target, cpu_device};
use oxyfuel_graph::HostTensor;
use oxyfuel_runtime::cpu::CpuDevice;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::tensor::Tensor;
use serde_json::{Value, json};

use crate::bench::{ready, to_device};
use crate::check::Expected;
use crate::define::{Bound, Workload, workload};
use crate::limit::{Loop, Read, hardly_writes};
use crate::measure::timed;
use crate::{Common, env};

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    common: Common,
}

struct Engine {
    target: Target,
    options: Options,
    device: Arc<dyn Device>,
    /// Where a plain read runs.
    cpu: Option<Arc<CpuDevice>>,
    /// What arithmetic takes at best, for each type that was asked for.
    arithmetic: HashMap<DType, Option<Loop>>,
    ready: Option<Prepared>,
}

/// A workload as a compiled function with its arguments.
struct Prepared {
    about: Workload,
    host_inputs: Vec<HostTensor>,
    results: Vec<Tensor>,
    /// What the loop of multiply-adds computes in.
    dtype: DType,
    workload: Timed,
    /// With its weights frozen; made when it is asked for.
    frozen: Option<Frozen>,
    /// The workload that computes the same in other words; made when it is asked for.
    beside: Option<Timed>,
    /// Reads as many bytes; made when it is asked for.
    read: Option<Read>,
    /// The workload as a function that writes its results over its inputs, if it is an update.
    update: Option<Timed>,
    /// Moves as many bytes.
    copy: Timed,
}

struct Timed {
    function: oxyfuel::Compiled,
    inputs: Vec<oxyfuel::Tensor>,
    outputs: Vec<oxyfuel::Tensor>,
}

impl Timed {
    /// The function with memory for its results, run once.
    fn new(
        graph: oxyfuel_graph::Graph,
        inputs: Vec<oxyfuel::Tensor>,
        options: &Options,
    ) -> Result<Self> {
        let function = oxyfuel::compile_graph(graph, options.clone())?;
        let outputs = function.call(&inputs.iter().collect::<Vec<_>>())?;
        Ok(Self {
            function,
            inputs,
            outputs,
        })
    }
}

/// A function whose last arguments do not change.
struct Frozen {
    function: oxyfuel::FrozenCall,
    inputs: Vec<oxyfuel::Tensor>,
}

impl Frozen {
    /// Checked like the workload itself, whose results say what its own look like.
    fn new(ready: &Prepared, options: &Options, device: &Arc<dyn Device>) -> Result<Self> {
        let (w, all) = (&ready.about, &ready.workload.inputs);
        let (inputs, weights) = all.split_at(all.len() - w.weights());
        let function = oxyfuel::compile_graph(w.graph.clone(), options.clone())?;
        let function = function.freeze(&weights.iter().collect::<Vec<_>>())?;
        let like = |t: &Tensor| Tensor::empty_on(&**device, t.dtype(), t.shape());
        let results: Vec<Tensor> = ready.results.iter().map(like).collect::<Result<_>>()?;
        let mut given: Vec<oxyfuel::Tensor> = results.iter().cloned().map(Into::into).collect();
        function.call_into(&inputs.iter().collect::<Vec<_>>(), &mut given)?;
        Expected::of(w, &ready.host_inputs)?.check("the graph with frozen weights", &results)?;
        Ok(Self {
            function,
            inputs: inputs.to_vec(),
        })
    }
}

/// The function that computes a graph and writes each result over an input, on inputs of its own.
fn update_of(
    graph: &oxyfuel_graph::Graph,
    updated: Vec<usize>,
    inputs: &[oxyfuel::Tensor],
    options: &Options,
) -> Result<Timed> {
    let step = oxyfuel::compile_graph(graph.clone(), options.clone())?;
    let update = move |tensors: &[oxyfuel::Tensor]| {
        let results = step.call(&tensors.iter().collect::<Vec<_>>())?;
        for (&at, result) in updated.iter().zip(&results) {
            tensors[at].clone().copy_(result)?;
        }
        Ok(Vec::new())
    };
    Ok(Timed {
        function: oxyfuel::compile(update, options.clone())?,
        inputs: inputs.to_vec(),
        outputs: Vec::new(),
    })
}

/// A copy that reads half of the bytes and writes the other half.
fn copy_of(bytes: u64, options: &Options) -> Result<Timed> {
    let count = (bytes / 8).max(16);
    let text = format!(
        "graph @copy(%x: f32[{count}] cpu) {{\n  %y: f32[{count}] = clone %x\n  return %y\n}}\n"
    );
    let shape = [i64::try_from(count).map_err(|_| err!(TooLarge, "{bytes} bytes"))?];
    let from = oxyfuel::Tensor::ones(&shape, DType::F32);
    Timed::new(oxyfuel_graph::parse("copy", &text)?, vec![from], options)
}

pub fn serve(args: &ServeArgs) -> Result<()> {
    let options = Options {
        cache_dir: None,
        verify: false,
        ..env::options(&args.common)?
    };
    let target = Target::host(&options)?;
    let cpu = target.can_interpret().then(|| cpu_device(&options));
    let device = match &cpu {
        Some(cpu) => cpu.clone(),
        None => target.device(&options)?,
    };
    let mut engine = Engine {
        arithmetic: HashMap::new(),
        target,
        options,
        device,
        cpu,
        ready: None,
    };
    let pipe = |error: std::io::Error| err!(FileUnreadable, "the driver's pipe: {error}");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(pipe)?;
        if line.trim() == "quit" {
            break;
        }
        let answer = engine
            .answer(&line)
            .unwrap_or_else(|error| json!({"error": error.to_string()}));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .map_err(pipe)?;
    }
    Ok(())
}

impl Engine {
    fn answer(&mut self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["prepare", name] => self.prepare(name),
            [
                what @ ("run" | "into" | "copy" | "frozen" | "beside" | "read"),
                warm,
                times,
            ] => self.run(what, number(warm)?, number(times)?),
            ["arithmetic", warm, times] => self.compute(number(warm)?, number(times)?),
            ["output", at, file] => self.output(number(at)?, Path::new(file)),
            _ => Err(err!(Syntax, "unknown command `{line}`")),
        }
    }

    fn prepare(&mut self, name: &str) -> Result<Value> {
        // The old one first: two large workloads need not fit at once.
        self.ready = None;
        let w = workload(name)?;
        let ready = ready(&w, &self.target, &self.options, &self.device)?;
        let inputs: Vec<&Tensor> = ready.inputs.iter().collect();
        let outputs = ready.executable.run(&inputs)?;
        Expected::of(&w, &ready.host_inputs)?.check("the compiled graph", &outputs)?;
        // What is timed is the call that a Rust program makes, guards and all; the driver compares its output with its own.
        let inputs: Vec<oxyfuel::Tensor> = ready.inputs.iter().cloned().map(Into::into).collect();
        let updated = w.updates()?;
        let update = if updated.is_empty() {
            None
        } else {
            let own = ready.host_inputs.iter();
            let own: Vec<Tensor> = own
                .map(|host| to_device(host, &self.device))
                .collect::<Result<_>>()?;
            let tensors: Vec<oxyfuel::Tensor> = own.iter().cloned().map(Into::into).collect();
            let update = update_of(&w.graph, updated.clone(), &tensors, &self.options)?;
            update.function.call(&tensors.iter().collect::<Vec<_>>())?;
            let new: Vec<Tensor> = updated.iter().map(|&at| own[at].clone()).collect();
            Expected::of(&w, &ready.host_inputs)?.check("the update in place", &new)?;
            Some(update)
        };
        let workload = Timed::new(w.graph.clone(), inputs, &self.options)?;
        let bytes = w.bytes().0 + w.bytes().1;
        let has = [
            ("frozen", w.weights() > 0),
            ("beside", w.beside().is_some()),
            ("read", self.cpu.is_some() && hardly_writes(w.bytes())),
        ];
        let has = has.iter().filter(|(_, there)| *there);
        let has: Vec<&str> = has.map(|(word, _)| *word).collect();
        // A product's floor is that of the unit for its own type; other work is counted in operations on f32.
        let (dtype, operations) = match w.bound {
            Bound::Flops => (w.dtype(), Some(w.flops() as f64)),
            Bound::Bytes => (DType::F32, ready.executable.operations().map(|n| 2.0 * n)),
        };
        let per_loop = self.loop_of(dtype)?.map(|all| all.flops);
        let answer = json!({
            "compile_ms": ready.compile_ms,
            "kernels": ready.executable.plan().kernels.len(),
            "target": self.target.name(),
            "threads": self.options.threads,
            "bytes": bytes,
            "loops": operations.zip(per_loop).map(|(all, one)| all / one),
            "has": has,
        });
        let copy = copy_of(bytes, &self.options)?;
        self.ready = Some(Prepared {
            host_inputs: ready.host_inputs,
            results: outputs,
            dtype,
            workload,
            update,
            frozen: None,
            beside: None,
            read: None,
            copy,
            about: w,
        });
        Ok(answer)
    }

    fn loop_of(&mut self, dtype: DType) -> Result<Option<&mut Loop>> {
        if !self.arithmetic.contains_key(&dtype) {
            let made = Loop::of(&self.target, &self.device, dtype)?;
            self.arithmetic.insert(dtype, made);
        }
        Ok(self.arithmetic.get_mut(&dtype).and_then(Option::as_mut))
    }

    fn compute(&mut self, warm: usize, times: usize) -> Result<Value> {
        let dtype = self.ready.as_ref().ok_or_else(unprepared)?.dtype;
        let Some(all) = self.loop_of(dtype)? else {
            return Err(err!(
                InvalidArgument,
                "no loop of multiply-adds is known for this target"
            ));
        };
        timings(warm, times, || all.run())
    }

    fn run(&mut self, what: &str, warm: usize, times: usize) -> Result<Value> {
        let device = self.device.clone();
        let ready = self.ready.as_mut().ok_or_else(unprepared)?;
        match what {
            "frozen" => {
                if ready.frozen.is_none() {
                    ready.frozen = Some(Frozen::new(ready, &self.options, &device)?);
                }
                let Some(frozen) = &ready.frozen else {
                    return Err(unprepared());
                };
                let inputs: Vec<&oxyfuel::Tensor> = frozen.inputs.iter().collect();
                return timings(warm, times, || {
                    frozen.function.call(&inputs)?;
                    device.synchronize()
                });
            }
            "read" => {
                if ready.read.is_none() {
                    let cpu = self.cpu.clone().ok_or_else(unprepared)?;
                    let (read, written) = ready.about.bytes();
                    ready.read = Some(Read::of(cpu, read + written)?);
                }
                let read = ready.read.as_ref().ok_or_else(unprepared)?;
                return timings(warm, times, || read.run());
            }
            "beside" if ready.beside.is_none() => {
                let name = ready.about.beside().ok_or_else(unprepared)?;
                let inputs = ready.workload.inputs.clone();
                ready.beside = Some(Timed::new(workload(name)?.graph, inputs, &self.options)?);
            }
            _ => {}
        }
        let (timed_one, into) = match (what, &mut ready.update, &mut ready.beside) {
            ("copy", _, _) => (&mut ready.copy, true),
            ("into", Some(update), _) => (update, false),
            ("beside", _, Some(beside)) => (beside, false),
            (what, _, _) => (&mut ready.workload, what == "into"),
        };
        let inputs: Vec<&oxyfuel::Tensor> = timed_one.inputs.iter().collect();
        let call = || {
            if into {
                timed_one
                    .function
                    .call_into(&inputs, &mut timed_one.outputs)?;
            } else {
                timed_one.function.call(&inputs)?;
            }
            device.synchronize()
        };
        timings(warm, times, call)
    }

    fn output(&self, at: usize, file: &Path) -> Result<Value> {
        let ready = self.ready.as_ref().ok_or_else(unprepared)?;
        let Some(output) = ready.workload.outputs.get(at) else {
            return Err(err!(ArityMismatch, "the workload has no output {at}"));
        };
        oxyfuel::io::write_npy(file, output)?;
        Ok(json!({"saved": 1}))
    }
}

/// So many calls not timed, then so many timed.
fn timings(warm: usize, times: usize, mut call: impl FnMut() -> Result<()>) -> Result<Value> {
    for _ in 0..warm {
        call()?;
    }
    let ns = (0..times)
        .map(|_| Ok(timed(&mut call)?.as_nanos() as u64))
        .collect::<Result<Vec<u64>>>()?;
    Ok(json!({"ns": ns}))
}

fn number(word: &str) -> Result<usize> {
    word.parse()
        .map_err(|_| err!(InvalidLiteral, "`{word}` is not a number of calls"))
}

fn unprepared() -> oxyfuel_base::Error {
    err!(InvalidArgument, "no workload is prepared")
}
