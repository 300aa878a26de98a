//! One graph, compiled and loaded, that a driver in another process runs and times turn by turn with its own kernels.
//!
//! Inputs are files of raw bytes, one each, which the driver wrote, so that both sides work on the same numbers. Every answer is one line:
//!
//! ```text
//!   ready compile_us=… load_us=… kernels=…      after start
//!   run N      -> times in microseconds, one a run, between events of the device
//!   graph on   -> done; compiled anew for it, calls are recorded at their second time and launched as one from then on (`graph off` for the opposite)
//!   submit on  -> done; launches that follow each other go to the driver at once after two calls, as by default (`submit off`: one by one)
//!   wall N     -> two medians over N calls in microseconds: of the host's time to ask for one, the device idle before, and of the time until its results are there
//!   save FILE  -> saved; the bytes of all outputs, one after another
//!   ptx FILE   -> saved; the code of all kernels
//!   quit
//! ```

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use oxyfuel_base::{Error, Result, ensure, err};
use oxyfuel_engine::{Executable, Mode, Options, compile};
use oxyfuel_plan::Artefact;
use oxyfuel_runtime::device::Stream;
use oxyfuel_runtime::execute::{CALLS_BEFORE, ReplayOptions};
use oxyfuel_runtime::tensor::Tensor;

use crate::Place;

fn io(error: std::io::Error) -> Error {
    err!(InvalidArgument, "{error}")
}

pub fn serve(place: &Place, file: &str, files: &[&str]) -> Result<()> {
    let text = std::fs::read_to_string(file).map_err(io)?;
    let graph = oxyfuel_graph::parse(file, &text)?;
    // The first compile of a process touches every page of the compiler for the first time; users pay it, so it is the one that is told.
    let start = Instant::now();
    let compiled = compile(&graph, &place.target, &Options::default(), false)?;
    let compile_time = start.elapsed();
    let start = Instant::now();
    let mut executable = Executable::load(compiled.plan, compiled.record, place.device.clone())?
        .submitting(Options::default().submits())?;
    let load_time = start.elapsed();
    let mut warm = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        compile(&graph, &place.target, &Options::default(), false)?;
        warm = warm.min(start.elapsed());
    }

    let mut inputs = Vec::new();
    for (number, &value) in graph.inputs.iter().enumerate() {
        let ty = graph.ty(value);
        let shape: Option<Vec<i64>> = ty.shape.iter().map(|extent| extent.as_const()).collect();
        let shape =
            shape.ok_or_else(|| err!(InvalidArgument, "input {number} has a symbolic size"))?;
        let tensor = Tensor::empty_on(&*place.device, ty.dtype, &shape)?;
        if !place.null {
            let file = files
                .get(number)
                .ok_or_else(|| err!(InvalidArgument, "input {number} has no file"))?;
            let bytes = std::fs::read(file).map_err(io)?;
            ensure!(
                bytes.len() == tensor.storage().len(),
                InvalidArgument,
                "{file} has {} bytes, input {number} has {}",
                bytes.len(),
                tensor.storage().len()
            );
            place.device.copy_in(&bytes, tensor.storage(), 0)?;
        }
        inputs.push(tensor);
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let mut outputs = executable.run(&inputs)?;
    for output in &outputs {
        // What no kernel writes must show.
        if !place.null && output.storage().len() < 1 << 32 {
            place
                .device
                .copy_in(&vec![0xff; output.storage().len()], output.storage(), 0)?;
        }
    }
    executable.run_into(&inputs, &mut outputs)?;
    place.device.synchronize()?;

    let mut out = std::io::stdout().lock();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let kernels = executable.plan().kernels.len();
    writeln!(
        out,
        "ready compile_us={:.0} warm_us={:.0} load_us={:.0} kernels={kernels}",
        us(compile_time),
        us(warm),
        us(load_time)
    )
    .map_err(io)?;
    out.flush().map_err(io)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(io)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["run", count] => {
                let count: usize = count
                    .parse()
                    .map_err(|_| err!(InvalidArgument, "run {count}"))?;
                // Two runs ahead keep the device busy while the host asks for the rest.
                executable.run_into(&inputs, &mut outputs)?;
                executable.run_into(&inputs, &mut outputs)?;
                let mut marks = vec![place.device.mark(Stream::default())?];
                for _ in 0..count {
                    executable.run_into(&inputs, &mut outputs)?;
                    marks.push(place.device.mark(Stream::default())?);
                }
                place.device.synchronize()?;
                let times: Result<Vec<String>> = marks
                    .windows(2)
                    .map(|pair| {
                        let time = place.device.elapsed(&pair[0], &pair[1])?;
                        Ok(format!("{:.3}", us(time)))
                    })
                    .collect();
                writeln!(out, "{}", times?.join(" ")).map_err(io)?;
            }
            ["graph", wanted] => {
                let recorded = *wanted == "on";
                let options = Options {
                    mode: match recorded {
                        true => Mode::ReduceOverhead,
                        false => Mode::Default,
                    },
                    ..Options::default()
                };
                let compiled = compile(&graph, &place.target, &options, false)?;
                executable =
                    Executable::load(compiled.plan, compiled.record, place.device.clone())?
                        .submitting(options.submits())?
                        .replaying(recorded.then(ReplayOptions::default))?;
                writeln!(out, "done").map_err(io)?;
            }
            ["submit", wanted] => {
                let before = (*wanted == "on").then_some(CALLS_BEFORE);
                executable = executable.submitting(before)?;
                writeln!(out, "done").map_err(io)?;
            }
            ["wall", count] => {
                let count: usize = count
                    .parse()
                    .map_err(|_| err!(InvalidArgument, "wall {count}"))?;
                let (mut asked, mut done) = (Vec::new(), Vec::new());
                // The first calls make what later ones use again.
                for number in 0..count + 5 {
                    place.device.synchronize()?;
                    let start = Instant::now();
                    executable.run_into(&inputs, &mut outputs)?;
                    let host = start.elapsed();
                    place.device.synchronize()?;
                    if number >= 5 {
                        asked.push(host);
                        done.push(start.elapsed());
                    }
                }
                let median = |times: &mut Vec<Duration>| {
                    times.sort_unstable();
                    us(times.get(times.len() / 2).copied().unwrap_or_default())
                };
                let (asked, done) = (median(&mut asked), median(&mut done));
                writeln!(out, "{asked:.3} {done:.3}").map_err(io)?;
            }
            ["save", file] => {
                let mut to = std::fs::File::create(file).map_err(io)?;
                for output in &outputs {
                    to.write_all(&output.to_bytes()?).map_err(io)?;
                }
                writeln!(out, "saved").map_err(io)?;
            }
            ["ptx", file] => {
                let texts: Vec<&str> = executable
                    .plan()
                    .kernels
                    .values()
                    .filter_map(|kernel| match &kernel.artefact {
                        Artefact::Ptx(module) => Some(module.text.as_str()),
                        Artefact::Interpreted | Artefact::MachineCode(_) => None,
                    })
                    .collect();
                std::fs::write(file, texts.join("\n")).map_err(io)?;
                writeln!(out, "saved").map_err(io)?;
            }
            ["quit"] | [] => return Ok(()),
            _ => writeln!(out, "unknown").map_err(io)?,
        }
        out.flush().map_err(io)?;
    }
    Ok(())
}
