//! `bench --compile`: how long compiling takes, by step, and how it grows with the graph.

use std::time::Instant;

use oxyfuel_base::{Result, err};
use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::Graph;
use serde::Serialize;

use crate::bench::{MachineReport, json, machine, table};
use crate::define::Workload;
use crate::measure::median;
use crate::mixed::mixed;
use crate::{Common, env};

/// What the mixed graphs are drawn from; a record names graphs by it.
const SEED: u64 = 1;

/// Compiles of one graph; all times in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Line {
    name: String,
    nodes: usize,
    kernels: usize,
    /// The first compile in this process.
    cold: f64,
    /// The median of the rest.
    median: f64,
    /// The median of each step, in order.
    steps: Vec<(String, f64)>,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: MachineReport,
    lines: Vec<Line>,
    /// How many times longer ten times the mixed nodes take, cold.
    growth: f64,
    /// How many times longer two threads take that compile the mixed nodes at once, each on itself alone, than one of them.
    pair: f64,
}

pub fn steps(common: &Common, chosen: &[Workload], as_json: bool, quick: bool) -> Result<()> {
    let options = Options {
        cache_dir: None,
        ..env::options(common)?
    };
    let target = Target::host(&options)?;
    let times = if quick { 3 } else { 11 };
    let mut lines = Vec::new();
    for w in chosen {
        let line = one(&w.name, &w.graph, &target, &options, times);
        lines.push(line.map_err(|error| error.context(&w.name))?);
    }
    let (short, long) = if quick { (100, 1000) } else { (1000, 10_000) };
    let mut generated = |nodes: usize, times: usize| -> Result<f64> {
        let name = format!("{nodes} mixed nodes");
        lines.push(one(&name, &mixed(nodes, SEED)?, &target, &options, times)?);
        Ok(lines.last().map_or(0.0, |line| line.cold))
    };
    let small = generated(short, times)?;
    let growth = generated(long, times.min(3))? / small;
    let report = Report {
        machine: machine(&target, &options),
        lines,
        growth,
        pair: pair(&mixed(short, SEED)?, &target, &options, times)?,
    };
    if as_json {
        println!("{}", json(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// The least time of two compiles at once over the least time of one.
fn pair(graph: &Graph, target: &Target, options: &Options, times: usize) -> Result<f64> {
    let options = Options {
        threads: 1,
        ..options.clone()
    };
    let run = || compile(graph, target, &options, false).map(drop);
    let both = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(run);
            let mine = run();
            let lost = |_| Err(err!(Internal, "a compiling thread did not end"));
            other.join().unwrap_or_else(lost).and(mine)
        })
    };
    Ok(least(times, both)? / least(times, run)?)
}

/// The least seconds of several runs.
fn least(times: usize, run: impl Fn() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn one(
    name: &str,
    graph: &Graph,
    target: &Target,
    options: &Options,
    times: usize,
) -> Result<Line> {
    let runs = (0..=times)
        .map(|_| compile(graph, target, options, false))
        .collect::<Result<Vec<_>>>()?;
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let steps = runs[0].record.steps.iter().enumerate().map(|(at, step)| {
        let values = runs[1..].iter().map(|run| ms(run.record.steps[at].time));
        (step.name.to_owned(), middle(values.collect()))
    });
    Ok(Line {
        name: name.to_owned(),
        nodes: graph.nodes.len(),
        kernels: runs[0].plan.kernels.len(),
        cold: ms(runs[0].record.total()),
        median: middle(runs[1..].iter().map(|run| ms(run.record.total())).collect()),
        steps: steps.collect(),
    })
}

fn text(report: &Report) -> String {
    let names: Vec<&str> = report
        .lines
        .first()
        .map(|line| line.steps.iter().map(|(name, _)| name.as_str()).collect())
        .unwrap_or_default();
    let mut header = vec!["graph", "nodes", "kernels", "cold ms", "median ms"];
    header.extend(names);
    let mut table = table(&header);
    for line in &report.lines {
        let mut cells = vec![
            line.name.clone(),
            line.nodes.to_string(),
            line.kernels.to_string(),
            format!("{:.2}", line.cold),
            format!("{:.2}", line.median),
        ];
        cells.extend(line.steps.iter().map(|(_, ms)| format!("{ms:.3}")));
        table.add_row(cells);
    }
    format!(
        "{table}\nten times the mixed nodes take {:.1} times as long; two threads that compile at once take {:.2} times as long as one; {}, target {}; steps: medians in ms\n",
        report.growth, report.pair, report.machine.cpu, report.machine.target
    )
}
