//! Outputs that would change under the caller's eyes.
//!
//! A graph is functional: an output that is an input, or a view of one, is the value that the input had at the start. Where the same call writes that input at its
//! end, such an output needs memory of its own.

use std::collections::BTreeSet;

use oxyfuel_base::{Id, Result};
use oxyfuel_graph::{Category, Graph, NodeId, Op, Rebuild, ValueId};

/// Clones every output that looks into an input which is written.
pub fn keep_old_values(graph: Graph) -> Result<Graph> {
    let written: BTreeSet<ValueId> = graph
        .outputs
        .iter()
        .filter_map(|out| out.alias.map(|input| graph.inputs[input]))
        .collect();
    if written.is_empty() {
        return Ok(graph);
    }
    let mut producer: Vec<Option<NodeId>> = vec![None; graph.values.len()];
    for (id, node) in graph.nodes.iter() {
        for &out in &node.outputs {
            producer[out.index()] = Some(id);
        }
    }
    let root = |mut value: ValueId| {
        while let Some(node) = producer[value.index()].map(|id| &graph.nodes[id])
            && node.op.category() == Category::View
        {
            value = node.inputs[0];
        }
        value
    };
    let shared: BTreeSet<ValueId> = graph
        .outputs
        .iter()
        .map(|out| out.value)
        .filter(|&value| written.contains(&root(value)))
        .collect();
    if shared.is_empty() {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    for node in graph.nodes.ids() {
        rebuild.copy(node)?;
    }
    // Every reader has been copied, so only the list of outputs sees the clones.
    for value in shared {
        let old = rebuild.get(value)?;
        let clone = rebuild.builder.emit(Op::Clone, &[old])?;
        rebuild.define(value, clone);
    }
    rebuild.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_is_written_and_returned_is_cloned() {
        let text = "graph @f(%x: f32[2] cpu, %y: f32[2] cpu) {
  %1: f32[2] = exp %x
  return %x, %y, %1 into %x
}";
        let graph = oxyfuel_graph::parse("test", text).unwrap();
        let kept = keep_old_values(graph).unwrap();
        oxyfuel_graph::verify(&kept).unwrap();
        let clones = kept.nodes.values().filter(|n| n.op == Op::Clone).count();
        assert_eq!(clones, 1, "{kept}");
        assert_eq!(kept.outputs[1].value, kept.inputs[1]);
    }
}
