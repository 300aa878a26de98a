//! Products with a sum, as products and sums, where others compute the products.

use oxyfuel_base::{DType, Result};
use oxyfuel_graph::{Graph, Node, Op, Rebuild};

use crate::decompose::keep_name;

/// Parts a plain `addmm` where `leaves` says of a product `[batch, m, n, k]` that nothing is fused with it: its sum becomes work that is fused with what follows.
pub fn products(graph: Graph, leaves: &dyn Fn(DType, [i64; 4]) -> bool) -> Result<Graph> {
    let parted = |node: &Node| {
        let (Op::Addmm { beta, alpha }, &[_, a, b]) = (&node.op, &node.inputs[..]) else {
            return false;
        };
        if beta.as_f64() != 1.0 || alpha.as_f64() != 1.0 {
            return false;
        }
        let (a, b) = (graph.ty(a), graph.ty(b));
        let sizes = [&a.shape[0], &b.shape[1], &a.shape[1]].map(|size| size.as_const());
        match sizes {
            [Some(m), Some(n), Some(k)] => leaves(a.dtype, [1, m, n, k]),
            _ => false,
        }
    };
    if !graph.nodes.values().any(parted) {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        if !parted(node) {
            rebuild.copy(id)?;
            continue;
        }
        rebuild.at(id);
        let [bias, a, b] = [0, 1, 2].map(|i| rebuild.get(node.inputs[i]));
        let product = rebuild.builder.mm(a?, b?)?;
        let out = rebuild.builder.add(product, bias?)?;
        keep_name(&graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}
