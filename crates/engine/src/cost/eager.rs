//! The same program one operator at a time, as it would run without a compiler: each reads its operands from memory and writes its results there.

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Graph, Node, Op, Placements, ValueId, place_views};

use super::{Reads, bytes, external_flops, node_flops, node_products};

/// One operator that an uncompiled program calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    pub name: String,
    /// Only names elements anew: a call, and no work.
    pub view: bool,
    pub bytes_read: Expr,
    pub bytes_written: Expr,
    /// `None` where an operator of the host's own is not known.
    pub flops: Option<Expr>,
    /// Of these, those of products.
    pub products: Option<Expr>,
    /// Of elements that a matrix unit takes.
    pub narrow: bool,
}

/// The operators of a captured graph, in order. Nodes with the same label were one operator of the source program; without a label each is its own.
pub fn operators(graph: &Graph, label: &dyn Fn(&Node) -> Option<String>) -> Result<Vec<Operator>> {
    let places = place_views(graph)?;
    let mut parts: Vec<(Option<String>, Vec<&Node>)> = vec![];
    for node in graph.nodes.values() {
        if !is_called(graph, node) {
            continue;
        }
        let label = label(node);
        let same = label.as_ref().and_then(|label| {
            parts
                .iter_mut()
                .rev()
                .find(|(known, _)| known.as_ref() == Some(label))
        });
        match same {
            Some((_, nodes)) => nodes.push(node),
            None => parts.push((label, vec![node])),
        }
    }
    let mut operators = vec![];
    for (_, nodes) in parts {
        operators.push(operator(graph, &places, &nodes));
    }
    Ok(operators)
}

/// Constants are there already, and single numbers are arguments of those who read them.
fn is_called(graph: &Graph, node: &Node) -> bool {
    let returned = || graph.outputs.iter().any(|out| out.value == node.out());
    !matches!(node.op, Op::Constant { .. }) && (!is_argument(&node.op) || returned())
}

/// Whether an op stands for a number that an uncompiled program passes along.
fn is_argument(op: &Op) -> bool {
    match op {
        Op::ScalarTensor { .. } => true,
        Op::Full { shape, .. } => shape.is_empty(),
        _ => false,
    }
}

fn operator(graph: &Graph, places: &Placements, nodes: &[&Node]) -> Operator {
    let inside = |value: ValueId| nodes.iter().any(|node| node.outputs.contains(&value));
    let is_number = |value: ValueId| {
        let mut makers = graph.nodes.values();
        let maker = makers.find(|node| node.outputs.contains(&value));
        maker.is_some_and(|node| is_argument(&node.op))
    };
    let mut reads = Reads::default();
    let mut written = Expr::ZERO;
    let (mut flops, mut products) = (Some(Expr::ZERO), Some(Expr::ZERO));
    for node in nodes {
        let (more, of_products) = match &node.op {
            Op::External { call } => {
                let shapes: Vec<Option<&[Expr]>> = node
                    .inputs
                    .iter()
                    .map(|&value| Some(graph.values[value].ty.shape.as_slice()))
                    .collect();
                let all = external_flops(call, &shapes);
                (all.clone(), all)
            }
            _ => (
                Some(node_flops(graph, node)),
                Some(node_products(graph, node)),
            ),
        };
        let add =
            |sum: Option<Expr>, more| sum.zip(more).map(|(sum, more): (Expr, Expr)| sum + more);
        flops = add(flops, more);
        products = add(products, of_products);
        if places.is_view(node) {
            continue;
        }
        let picked = graph.values[node.out()].ty.numel();
        for (i, &value) in node.inputs.iter().enumerate() {
            if !inside(places.root(value)) && !is_number(places.root(value)) {
                reads.read(graph, places, &node.op, i, value, &picked);
            }
        }
        for &value in &node.outputs {
            let ty = &graph.values[value].ty;
            if leaves(graph, places, nodes, value) {
                written += bytes(ty.numel(), ty.dtype);
            }
        }
    }
    let first = nodes[0];
    Operator {
        name: first
            .origin
            .ops
            .first()
            .cloned()
            .unwrap_or_else(|| first.op.name().to_owned()),
        view: nodes.iter().all(|node| places.is_view(node)),
        bytes_read: reads.bytes(graph),
        bytes_written: written,
        flops,
        products,
        narrow: nodes.iter().flat_map(|node| &node.inputs).any(|&value| {
            let dtype = graph.values[value].ty.dtype;
            dtype.is_float() && dtype.size() <= 2
        }),
    }
}

/// Whether somebody outside of the operator reads a value, or nobody does: then it is a result that was not wanted.
fn leaves(graph: &Graph, places: &Placements, nodes: &[&Node], value: ValueId) -> bool {
    if nodes.len() == 1 {
        return true;
    }
    let is_it = |other: ValueId| places.root(other) == value;
    let returned = graph.outputs.iter().any(|out| is_it(out.value));
    let mut readers = graph
        .nodes
        .values()
        .filter(|node| node.inputs.iter().any(|&input| is_it(input)))
        .peekable();
    let unread = readers.peek().is_none();
    let is_mine = |node: &Node| nodes.iter().any(|mine| std::ptr::eq(*mine, node));
    returned || unread || readers.any(|node| !is_mine(node))
}
