//! Slices that an index puts, in the order of the index.
//!
//! Which slice stays where an index occurs twice is open in `index_put`, and the last one in `scatter`: with the slice's place said for each of its elements, one is the other.

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Graph, Op, Rebuild, Scatter};

use crate::decompose::keep_name;

/// Makes the last slice for a place the one that stays.
pub fn puts_in_order(graph: &Graph) -> Result<Graph> {
    let mut rebuild = Rebuild::new(graph);
    for (id, node) in graph.nodes.iter() {
        rebuild.at(id);
        let Op::IndexPut { dim } = node.op else {
            rebuild.copy(id)?;
            continue;
        };
        let [x, src, index] = [0, 1, 2].map(|i| rebuild.get(node.inputs[i]));
        let (x, src, index) = (x?, src?, index?);
        let b = &mut rebuild.builder;
        let shape = b.ty(src).shape.clone();
        let mut one_dim = vec![Expr::ONE; shape.len()];
        one_dim[dim] = shape[dim].clone();
        let index = b.view(index, &one_dim)?;
        let index = b.expand(index, &shape)?;
        let op = Scatter::Set;
        let new = b.emit(Op::Scatter { op, dim }, &[x, src, index])?;
        keep_name(graph, node.out(), b, new);
        rebuild.define(node.out(), new);
    }
    rebuild.finish()
}
