//! `bench --compile`: how long compiling takes, by step, and how it grows with the graph.

use oxyfuel_base::Result;
use oxyfuel_engine::{Options, Target, compile};
use oxyfuel_graph::{Graph, parse};
use serde::Serialize;

use crate::bench::{MachineReport, json, machine, table};
use crate::define::Workload;
use crate::measure::median;
use crate::{Common, env};

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
    /// Milliseconds a thousand nodes of a chain cost.
    ms_per_1000_nodes: f64,
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
    let (short, long) = (chain(100)?, chain(1100)?);
    let small = one("chain of 100", &short, &target, &options, times)?;
    let large = one("chain of 1100", &long, &target, &options, times)?;
    let ms_per_1000_nodes = large.median - small.median;
    lines.extend([small, large]);
    let report = Report {
        machine: machine(&target, &options),
        lines,
        ms_per_1000_nodes,
    };
    if as_json {
        println!("{}", json(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
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

/// Alternating sums and matrix-free reductions, so that fusion ends every few nodes: a graph of many kernels.
fn chain(nodes: usize) -> Result<Graph> {
    let mut text = String::from("graph @chain(%x: f32[64, 64] cpu) {\n");
    let mut last = "%x".to_owned();
    for i in 0..nodes {
        let line = match i % 5 {
            0 => format!("f32[64, 64] = relu {last}"),
            1 => format!("f32[64, 64] = add {last}, %x"),
            2 => format!("f32[64, 64] = tanh {last}"),
            3 => format!("f32[64, 64] = _softmax {last}, dim=1"),
            _ => format!("f32[64, 64] = mm {last}, %x"),
        };
        last = format!("%v{i}");
        text.push_str(&format!("  {last}: {line}\n"));
    }
    text.push_str(&format!("  return {last}\n}}\n"));
    parse("chain", &text)
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
        "{table}\n{:.2} ms a thousand nodes; {}, target {}; steps: medians in ms\n",
        report.ms_per_1000_nodes, report.machine.cpu, report.machine.target
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_a_valid_graph() {
        assert_eq!(chain(10).unwrap().nodes.len(), 10);
    }
}
