//! `bench --compile`: how long compiling takes, by step, and how it grows with the graph.
//!
//! | bar | at most |
//! |---|---|
//! | a row of the definitions, cold | 5 ms |
//! | GPT-2 with 12 layers, cold | 300 ms |
//! | 1,000 mixed nodes, cold | 150 ms |
//! | 10,000 mixed nodes | 12 times as long |
//! | two threads that compile at once | 1.5 times as long as one |
//!
//! A cold compile is the first one of a process of its own; the least of several counts, because what else runs on the machine only ever adds to it. The bars are those of CPUs.

use std::process::Command;
use std::time::Instant;

use oxyfuel_base::{Result, err};
use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::{Category, Graph};
use serde::Serialize;

use crate::bars::{Bar, all_met};
use crate::bench::{MachineReport, json, machine, table};
use crate::define::{Workload, workload};
use crate::measure::median;
use crate::mixed::mixed;
use crate::stacked::gpt2;
use crate::{Common, env};

/// What the mixed graphs are drawn from; a record names graphs by it.
const SEED: u64 = 1;

const ROW_MS: f64 = 5.0;
const MODEL_MS: f64 = 300.0;
const MIXED_MS: f64 = 150.0;
const GROWTH: f64 = 12.0;
const PAIR: f64 = 1.5;

/// A workload has one bar, and a block one for each product in it, which has a kernel of its own.
fn row_ms(workload: &Workload) -> f64 {
    let nodes = workload.graph.nodes.values();
    let products = nodes.filter(|node| {
        let category = node.op.category();
        matches!(category, Category::Matmul | Category::Convolution)
    });
    match workload.is_block {
        true => ROW_MS * products.count() as f64,
        false => ROW_MS,
    }
}

/// How a graph is called that is generated, before its number of nodes.
const MIXED: &str = "mixed/";
/// How a model is called, before its number of layers.
const GPT2: &str = "gpt2/";
const LAYERS: usize = 12;

/// Compiles of one graph; all times in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Line {
    name: String,
    nodes: usize,
    kernels: usize,
    /// The least of the first compiles of fresh processes.
    cold: f64,
    /// Of the cold time, in milliseconds.
    #[serde(flatten)]
    bar: Bar,
    /// The median in this process, but for the first.
    median: f64,
    /// The median of each step, in order.
    steps: Vec<(String, f64)>,
}

/// One time over another.
#[derive(Clone, Debug, Serialize)]
struct Ratio {
    what: &'static str,
    times: f64,
    #[serde(flatten)]
    bar: Bar,
}

#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: MachineReport,
    lines: Vec<Line>,
    ratios: Vec<Ratio>,
    /// The bars that were missed, a sentence each.
    missed: Vec<String>,
}

/// How often, and what it decides.
struct Effort {
    /// Compiles in this process.
    times: usize,
    /// Fresh processes.
    processes: usize,
    decides: bool,
}

/// Whether all bars are met.
pub fn steps(common: &Common, chosen: &[Workload], as_json: bool, quick: bool) -> Result<bool> {
    let (target, options) = setting(common)?;
    let effort = match quick {
        true => Effort {
            times: 3,
            processes: 1,
            decides: false,
        },
        false => Effort {
            times: 11,
            processes: 3,
            decides: target.can_interpret(),
        },
    };
    let mut lines = Vec::new();
    for w in chosen {
        let line = one(&w.name, &w.graph, &target, &options, &effort);
        let mut line = line.map_err(|error| error.context(&w.name))?;
        line.bar = Bar::at_most(row_ms(w), line.cold, effort.decides);
        lines.push(line);
    }
    let name = format!("{GPT2}{LAYERS}");
    let mut model = one(&name, &gpt2(LAYERS)?, &target, &options, &effort)?;
    model.bar = Bar::at_most(MODEL_MS, model.cold, effort.decides);
    lines.push(model);
    let (short, long) = if quick { (100, 1000) } else { (1000, 10_000) };
    let generated = |nodes: usize, times: usize| {
        let name = format!("{MIXED}{nodes}");
        let effort = Effort { times, ..effort };
        one(&name, &mixed(nodes, SEED)?, &target, &options, &effort)
    };
    let mut small = generated(short, effort.times)?;
    small.bar = Bar::at_most(MIXED_MS, small.cold, effort.decides);
    let large = generated(long, effort.times.min(3))?;
    let ratio = |what, times, bar| Ratio {
        what,
        times,
        bar: Bar::at_most(bar, times, effort.decides),
    };
    let pair = pair(&mixed(short, SEED)?, &target, &options, effort.times)?;
    let ratios = vec![
        ratio("ten times the mixed nodes", large.cold / small.cold, GROWTH),
        ratio("two threads that compile at once", pair, PAIR),
    ];
    lines.extend([small, large]);
    let missed = missed(&lines, &ratios);
    let report = Report {
        machine: machine(&target, &options),
        lines,
        ratios,
        missed,
    };
    if as_json {
        println!("{}", json(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(all_met(&report.missed))
}

fn missed(lines: &[Line], ratios: &[Ratio]) -> Vec<String> {
    let lines = lines
        .iter()
        .filter_map(|line| line.bar.miss(&line.name, line.cold, " ms"));
    let ratios = ratios
        .iter()
        .filter_map(|ratio| ratio.bar.miss(ratio.what, ratio.times, " times"));
    lines.chain(ratios).collect()
}

fn setting(common: &Common) -> Result<(Target, Options)> {
    let options = Options {
        cache_dir: None,
        ..env::options(common)?
    };
    Ok((Target::host(&options)?, options))
}

/// `bench --compile --cold NAME`: the milliseconds of one compile in a process that did nothing before.
pub fn cold(common: &Common, name: &str) -> Result<()> {
    let (target, options) = setting(common)?;
    let number = |text: &str| {
        let number = text.parse();
        number.map_err(|_| err!(InvalidLiteral, "`{name}` has no number behind its stroke"))
    };
    let graph = if let Some(nodes) = name.strip_prefix(MIXED) {
        mixed(number(nodes)?, SEED)?
    } else if let Some(layers) = name.strip_prefix(GPT2) {
        gpt2(number(layers)?)?
    } else {
        workload(name)?.graph
    };
    let compiled = compile(&graph, &target, &options, false)?;
    println!("{}", compiled.record.total().as_secs_f64() * 1e3);
    Ok(())
}

/// The least of the cold compiles of several processes, each this command with the same words.
fn coldest(name: &str, processes: usize) -> Result<f64> {
    let cannot =
        |error: std::io::Error| err!(ThreadFailed, "cannot start another process: {error}");
    let me = std::env::current_exe().map_err(cannot)?;
    let mut least = f64::INFINITY;
    for _ in 0..processes {
        let mut command = Command::new(&me);
        command.args(std::env::args_os().skip(1));
        let output = command.args(["--cold", name]).output().map_err(cannot)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let ms: f64 = said.trim().parse().map_err(|_| {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            err!(Internal, "a process of its own could not compile: {why}")
        })?;
        least = least.min(ms);
    }
    Ok(least)
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
    effort: &Effort,
) -> Result<Line> {
    let runs = (0..=effort.times)
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
        cold: coldest(name, effort.processes)?,
        bar: Bar::default(),
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
    let mut header = vec!["graph", "nodes", "kernels", "cold ms", "bar", "median ms"];
    header.extend(names);
    let mut table = table(&header);
    for line in &report.lines {
        let mut cells = vec![
            line.name.clone(),
            line.nodes.to_string(),
            line.kernels.to_string(),
            format!("{:.2}", line.cold),
            line.bar.text(),
            format!("{:.2}", line.median),
        ];
        cells.extend(line.steps.iter().map(|(_, ms)| format!("{ms:.3}")));
        table.add_row(cells);
    }
    let mut text = format!("{table}\n");
    for ratio in &report.ratios {
        text.push_str(&format!(
            "{}: {:.2} times as long; bar {}\n",
            ratio.what,
            ratio.times,
            ratio.bar.text()
        ));
    }
    text + &format!(
        "{}, target {}; cold: the least of fresh processes, steps: medians in ms\n",
        report.machine.cpu, report.machine.target
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missed_bar_is_named() {
        let line = |name: &str, cold, bar| Line {
            name: name.to_owned(),
            nodes: 1,
            kernels: 1,
            cold,
            bar,
            median: cold,
            steps: Vec::new(),
        };
        let lines = [
            line("quick", 1.0, Bar::at_most(ROW_MS, 1.0, true)),
            line("slow", 6.5, Bar::at_most(ROW_MS, 6.5, true)),
            line("unjudged", 9.0, Bar::at_most(ROW_MS, 9.0, false)),
        ];
        let ratios = [Ratio {
            what: "two threads",
            times: 1.75,
            bar: Bar::at_most(PAIR, 1.75, true),
        }];
        assert_eq!(
            missed(&lines, &ratios),
            [
                "slow: 6.50 ms, bar 5 ms",
                "two threads: 1.75 times, bar 1.5 times"
            ]
        );
    }
}
