//! A group of the schedule: each element that it touches read once, each result written once.

use oxyfuel_base::Expr;
use oxyfuel_graph::overwrite::is_update;
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_plan::Cost;
use oxyfuel_schedule::{Group, GroupKind, Schedule};

use super::{Reads, bytes, node_flops, node_products};

/// Whether an update lies where its base does, so that it writes its part alone.
fn updates_in_place(schedule: &Schedule, node: &Node) -> bool {
    let root = |value: ValueId| schedule.memory.root(value);
    is_update(&node.op) && root(node.inputs[0]) == root(node.out())
}

/// Bytes and operations of a group's kernel.
pub fn kernel_cost(graph: &Graph, schedule: &Schedule, group: &Group) -> Cost {
    let mut reads = Reads::default();
    for &id in &group.nodes {
        let node = &graph.nodes[id];
        let picked = graph.values[node.out()].ty.numel();
        // An update in place leaves the rest of its base where it is.
        let base = match group.kind {
            GroupKind::Writes(_) if updates_in_place(schedule, node) => 1,
            GroupKind::Writes(_)
            | GroupKind::Loops
            | GroupKind::Contraction(_)
            | GroupKind::Convolution(_)
            | GroupKind::Attention(_)
            | GroupKind::External(_) => 0,
        };
        for (i, &value) in node.inputs.iter().enumerate().skip(base) {
            if group.inputs.contains(&schedule.placements.root(value)) {
                reads.read(graph, &schedule.placements, &node.op, i, value, &picked);
            }
        }
    }
    let size = |&value: &ValueId| {
        let ty = &graph.values[value].ty;
        bytes(ty.numel(), ty.dtype)
    };
    let written: Expr = match group.kind {
        // Parts that were computed in their places are not written again.
        GroupKind::Writes(id) if matches!(graph.nodes[id].op, Op::Cat { .. }) => {
            let node = &graph.nodes[id];
            let home = schedule.memory.root(node.out());
            let parts = node.inputs.iter();
            let copied = parts.filter(|&&part| schedule.memory.root(part) != home);
            copied.map(size).sum()
        }
        // An update in place writes what it brings.
        GroupKind::Writes(id) if updates_in_place(schedule, &graph.nodes[id]) => {
            graph.nodes[id].inputs[1..2].iter().map(size).sum()
        }
        GroupKind::Writes(_)
        | GroupKind::Loops
        | GroupKind::Contraction(_)
        | GroupKind::Convolution(_)
        | GroupKind::Attention(_)
        | GroupKind::External(_) => group.outputs.iter().map(size).sum(),
    };
    let nodes = group.nodes.iter().map(|&id| &graph.nodes[id]);
    Cost {
        bytes_read: reads.bytes(graph),
        bytes_written: written,
        flops: nodes.clone().map(|node| node_flops(graph, node)).sum(),
        products: nodes.map(|node| node_products(graph, node)).sum(),
    }
}
