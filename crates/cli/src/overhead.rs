//! `bench --overhead`: what a call costs beside its work, through every way of calling a compiled function.

use std::time::Instant;

use oxyfuel::{Compiled, DType, Options, Tensor};
use oxyfuel_base::{Result, err};
use oxyfuel_engine::Target;
use serde::Serialize;

use crate::bench::{MachineReport, json, machine, table};
use crate::measure::{Times, seconds_text};
use crate::{Common, env};

/// So little work that a call is mostly the call.
const ELEMENTS: i64 = 1000;
/// Long enough for the clock.
const BATCH: u32 = 200;

/// One way of calling; times are of one call, over batches of them.
#[derive(Clone, Debug, Serialize)]
struct Line {
    way: &'static str,
    times: Times,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: MachineReport,
    function: &'static str,
    elements: i64,
    lines: Vec<Line>,
}

fn f(x: &Tensor, b: &Tensor) -> Tensor {
    (x + b).relu() * 2.0
}

pub fn overhead(common: &Common, as_json: bool, quick: bool) -> Result<()> {
    let options = Options {
        cache_dir: None,
        verify: false,
        ..env::options(common)?
    };
    let batches = if quick { 7 } else { 200 };
    let report = Report {
        machine: machine(&Target::host(&options)?, &options),
        function: "relu(x + b) * 2",
        elements: ELEMENTS,
        lines: lines(&oxyfuel::compile(f, options)?, batches)?,
    };
    if as_json {
        println!("{}", json(&report)?);
        return Ok(());
    }
    let mut table = table(&["way", "median", "min", "max"]);
    for line in &report.lines {
        table.add_row([
            line.way.to_owned(),
            seconds_text(line.times.median),
            seconds_text(line.times.min),
            seconds_text(line.times.max),
        ]);
    }
    println!("{table}\n{} of {ELEMENTS} f32, one call", report.function);
    Ok(())
}

fn lines(compiled: &Compiled, batches: usize) -> Result<Vec<Line>> {
    let x = Tensor::randn(&[ELEMENTS], DType::F32, 0);
    let b = Tensor::randn(&[ELEMENTS], DType::F32, 1);
    let expected = f(&x, &b).to_vec::<f32>()?;
    let zeros = || Tensor::zeros(&[ELEMENTS], DType::F32);
    let (mut given, held) = ([zeros()], zeros());
    let mut bound = compiled.bind(&[&x, &b], &[&held])?;
    let lines = vec![
        line("eager, three kernels", batches, || f(&x, &b).check())?,
        line("call", batches, || compiled.call(&[&x, &b]).map(drop))?,
        line("call_into", batches, || {
            compiled.call_into(&[&x, &b], &mut given)
        })?,
        line("bound", batches, || bound.call())?,
    ];
    let [given] = given;
    for result in [&compiled.call_one(&[&x, &b])?, &given, &held] {
        if result.to_vec::<f32>()? != expected {
            return Err(err!(WrongResult, "a compiled call disagrees with eager"));
        }
    }
    Ok(lines)
}

fn line(way: &'static str, batches: usize, mut call: impl FnMut() -> Result<()>) -> Result<Line> {
    let warm_up = batches.div_ceil(5);
    let mut seconds = Vec::with_capacity(batches);
    for batch in 0..warm_up + batches {
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        if batch >= warm_up {
            seconds.push(start.elapsed().as_secs_f64() / f64::from(BATCH));
        }
    }
    let times = Times::of(seconds, warm_up);
    Ok(Line { way, times })
}
