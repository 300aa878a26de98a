//! Convolutions of halves in f32.
//!
//! A CPU without a unit for pairs of bf16 has kernels for convolutions of f32; those of halves were products with windows that lie in memory one by one, which is many times as much to read. Halves are exact in f32, sums are of f32 in
//! either way, and the result is rounded to halves at the end: what stands between two convolutions is rounded as it was, and stored wide for the next one.

use oxyfuel_base::{DType, Result};
use oxyfuel_graph::{Graph, Node, Op, Rebuild};

use crate::decompose::keep_name;

/// The graph with its convolutions of bf16 and f16 in f32. `None` where there are none, or where all of them are products as they are: kernels of one position.
pub fn widen(graph: &Graph) -> Result<Option<Graph>> {
    let is_half = |node: &Node| {
        let dtype = graph.ty(node.out()).dtype;
        matches!(node.op, Op::Convolution { .. }) && matches!(dtype, DType::BF16 | DType::F16)
    };
    let has_windows = |node: &Node| {
        let kernel = &graph.ty(node.inputs[1]).shape[2..];
        kernel.iter().any(|extent| !extent.is_const(1))
    };
    let mut nodes = graph.nodes.values();
    if !nodes.any(|node| is_half(node) && has_windows(node)) {
        return Ok(None);
    }
    let mut rebuild = Rebuild::new(graph);
    for (id, node) in graph.nodes.iter() {
        if !is_half(node) {
            rebuild.copy(id)?;
            continue;
        }
        rebuild.at(id);
        let mut operands = Vec::new();
        for &operand in &node.inputs {
            let operand = rebuild.get(operand)?;
            operands.push(rebuild.builder.cast(operand, DType::F32)?);
        }
        let sum = rebuild.builder.emit(node.op.clone(), &operands)?;
        let out = rebuild.builder.cast(sum, graph.ty(node.out()).dtype)?;
        keep_name(graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish().map(Some)
}
