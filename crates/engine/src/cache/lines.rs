//! Lines of the user's program in plans on disk.
//!
//! They say where a kernel came from and decide nothing of it, so a plan is found whatever they are: on disk it names nodes of its graph, and whoever reads it puts the lines of these nodes as they
//! are today in their place. Where several nodes stood in one line when the plan was made, it names them all.

use oxyfuel_base::{Digest, Result, digest_of};
use oxyfuel_graph::Graph;
use oxyfuel_plan::{Plan, Provenance, Step};
use std::collections::HashMap;

/// A digest of the graph without the lines that its nodes came from.
pub fn program(graph: &Graph) -> Result<Digest> {
    let mut plain = graph.clone();
    for node in plain.nodes.values_mut() {
        node.origin.at = None;
    }
    digest_of(&plain)
}

/// Numbers of nodes in the place of lines.
pub fn take_out(plan: &mut Plan, graph: &Graph) {
    let mut nodes: HashMap<String, Vec<String>> = HashMap::new();
    for (number, node) in graph.nodes.values().enumerate() {
        if let Some(place) = &node.origin.at {
            let numbers = nodes.entry(place.to_string()).or_default();
            numbers.push(number.to_string());
        }
    }
    replace(plan, |line| match nodes.get(line) {
        Some(numbers) => numbers.clone(),
        None => vec![line.to_owned()],
    });
}

/// Lines in the place of numbers of nodes.
pub fn put_back(plan: &mut Plan, graph: &Graph) {
    let lines: Vec<Option<String>> = graph
        .nodes
        .values()
        .map(|node| node.origin.at.as_ref().map(ToString::to_string))
        .collect();
    replace(plan, |line| match line.parse::<usize>() {
        Ok(number) => lines.get(number).cloned().flatten().into_iter().collect(),
        Err(_) => vec![line.to_owned()],
    });
}

fn replace(plan: &mut Plan, by: impl Fn(&str) -> Vec<String>) {
    let kernels = plan.kernels.values_mut();
    let kernels = kernels.map(|kernel| &mut kernel.provenance);
    let externals = plan.steps.iter_mut().filter_map(|step| match step {
        Step::External(step) => Some(&mut step.provenance),
        Step::Launch { .. } | Step::Copy { .. } => None,
    });
    let all: Vec<&mut Provenance> = kernels.chain(externals).collect();
    for provenance in all {
        let old = std::mem::take(&mut provenance.lines);
        for line in old.iter().flat_map(|line| by(line)) {
            if !provenance.lines.contains(&line) {
                provenance.lines.push(line);
            }
        }
    }
}
