//! `bench --overhead`: what a call costs beside its work, through every way of calling a compiled function.
//!
//! The bars: 0.7 us a call, 0.3 us through a bound handle.

use std::time::Instant;

use oxyfuel::{DType, Options, Tensor};
use oxyfuel_base::{Result, err};
use oxyfuel_engine::Target;
use serde::Serialize;

use crate::bars::{Bar, all_met};
use crate::bench::{MachineReport, json, machine, table};
use crate::measure::{Times, seconds_text};
use crate::{Common, env};

/// So little work that a call is mostly the call.
const ELEMENTS: i64 = 1000;
/// Seconds that a batch of calls should take, for the clock; and its most calls.
const BATCH_SECONDS: f64 = 2e-4;
const BATCH: u32 = 200;

/// Ways of calling that have a bar, in microseconds by the median.
const BARS: &[(&str, f64)] = &[(CALL, 0.7), (JIT, 0.7), (BOUND, 0.3)];
const CALL: &str = "call";
const JIT: &str = "call of structures";
const BOUND: &str = "bound";

/// One way of calling; times are of one call, over batches of them.
#[derive(Clone, Debug, Serialize)]
struct Line {
    way: &'static str,
    times: Times,
    /// Microseconds.
    #[serde(flatten)]
    bar: Bar,
}

impl Line {
    fn judge(&mut self, decides: bool) {
        let bar = BARS.iter().find(|(way, _)| *way == self.way);
        if let Some(&(_, bar)) = bar {
            self.bar = Bar::at_most(bar, self.microseconds(), decides);
        }
    }

    fn microseconds(&self) -> f64 {
        self.times.median * 1e6
    }

    fn miss(&self) -> Option<String> {
        self.bar.miss(self.way, self.microseconds(), " us")
    }
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: MachineReport,
    function: &'static str,
    elements: i64,
    lines: Vec<Line>,
    /// The bars that were missed, a sentence each.
    missed: Vec<String>,
}

fn f(x: &Tensor, b: &Tensor) -> Tensor {
    (x + b).relu() * 2.0
}

/// Whether all bars are met.
pub fn overhead(common: &Common, as_json: bool, quick: bool) -> Result<bool> {
    let options = Options {
        cache_dir: None,
        verify: false,
        ..env::options(common)?
    };
    let batches = if quick { 7 } else { 200 };
    let target = Target::host(&options)?;
    let machine = machine(&target, &options);
    let mut lines = lines(options, batches)?;
    for line in &mut lines {
        line.judge(!quick);
    }
    let report = Report {
        machine,
        function: "relu(x + b) * 2",
        elements: ELEMENTS,
        missed: lines.iter().filter_map(Line::miss).collect(),
        lines,
    };
    if as_json {
        println!("{}", json(&report)?);
        return Ok(all_met(&report.missed));
    }
    let mut table = table(&["way", "median", "min", "max", "bar (us)"]);
    for line in &report.lines {
        table.add_row([
            line.way.to_owned(),
            seconds_text(line.times.median),
            seconds_text(line.times.min),
            seconds_text(line.times.max),
            line.bar.text(),
        ]);
    }
    println!("{table}\n{} of {ELEMENTS} f32, one call", report.function);
    Ok(all_met(&report.missed))
}

fn lines(options: Options, batches: usize) -> Result<Vec<Line>> {
    let compiled = oxyfuel::compile(f, options.clone())?;
    let jit = oxyfuel::jit(f, options)?;
    let x = Tensor::randn(&[ELEMENTS], DType::F32, 0);
    let b = Tensor::randn(&[ELEMENTS], DType::F32, 1);
    let expected = f(&x, &b).to_vec::<f32>()?;
    let zeros = || Tensor::zeros(&[ELEMENTS], DType::F32);
    let (mut given, held) = ([zeros()], zeros());
    let mut bound = compiled.bind(&[&x, &b], &[&held])?;
    let lines = vec![
        line("eager, three kernels", batches, || f(&x, &b).check())?,
        line(CALL, batches, || compiled.call(&[&x, &b]).map(drop))?,
        line(JIT, batches, || jit.call((&x, &b)).map(drop))?,
        line("call_into", batches, || {
            compiled.call_into(&[&x, &b], &mut given)
        })?,
        line(BOUND, batches, || bound.call())?,
    ];
    let [given] = given;
    let called = [compiled.call_one(&[&x, &b])?, jit.call((&x, &b))?];
    for result in called.iter().chain([&given, &held]) {
        if result.to_vec::<f32>()? != expected {
            return Err(err!(WrongResult, "a compiled call disagrees with eager"));
        }
    }
    Ok(lines)
}

fn line(way: &'static str, batches: usize, mut call: impl FnMut() -> Result<()>) -> Result<Line> {
    let warm_up = batches.div_ceil(5);
    let mut seconds = Vec::with_capacity(batches);
    let mut calls = 1;
    for batch in 0..warm_up + batches {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        let each = start.elapsed().as_secs_f64() / f64::from(calls);
        if batch < warm_up {
            calls = ((BATCH_SECONDS / each.max(1e-9)) as u32).clamp(1, BATCH);
        } else {
            seconds.push(each);
        }
    }
    Ok(Line {
        way,
        times: Times::of(seconds, warm_up),
        bar: Bar::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_bound_calls_have_bars() {
        let judged = |way, seconds| {
            let mut line = Line {
                way,
                times: Times::of(vec![seconds], 0),
                bar: Bar::default(),
            };
            line.judge(true);
            line.miss()
        };
        assert_eq!(judged(CALL, 0.69e-6), None);
        assert_eq!(
            judged(CALL, 0.75e-6).as_deref(),
            Some("call: 0.75 us, bar 0.7 us")
        );
        assert_eq!(
            judged(BOUND, 0.4e-6).as_deref(),
            Some("bound: 0.40 us, bar 0.3 us")
        );
        assert_eq!(judged("call_into", 1.0), None);
    }
}
