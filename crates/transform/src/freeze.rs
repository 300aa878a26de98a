//! A graph with frozen inputs becomes two: one that runs once, and one that runs at every call.
//!
//! ```text
//!   x ────────────────▶ mm ─▶ relu          prepare:  w frozen ─▶ cast ─▶ panels ─▶ kept
//!   w frozen ─▶ cast ──┘                    main:     x, kept ─▶ mm_panels ─▶ relu
//! ```
//!
//! What follows from frozen inputs and constants alone is computed once. A view computes nothing, so it stays where it is read. The weight of a convolution is multiplied by what a batch norm behind
//! it multiplies with, and weights are cut into the panels that their kernels read ([`pack`]). Neither graph has the weights in it: plans and their keys are the same whatever they are, and whoever runs them keeps what `prepare` returns.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, DType, Expr, Id, Result};
use oxyfuel_graph::{
    Binary, Category, Graph, GraphOutput, Layout, Node, NodeId, Op, Rebuild, Users, Value, ValueId,
};

use crate::decompose::keep_name;
use crate::images::images;
use crate::pack::{Reads, pack};

/// Two graphs for one.
#[derive(Clone, Debug)]
pub struct Split {
    /// Computes what is kept, from these inputs of the graph (by position).
    pub prepare: Graph,
    pub prepare_inputs: Vec<usize>,
    /// Computes the results, from these inputs of the graph and then what is kept.
    pub main: Graph,
    pub main_inputs: Vec<usize>,
}

/// What a value follows from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum From {
    /// Numbers in the program.
    Nothing,
    /// Frozen inputs and constants.
    Frozen,
    Varying,
}

/// Splits a graph; `None` where nothing is to be kept. `product` and `convolution` say which panels the kernels for those read: their columns, and whether they are of points.
pub fn freeze(
    graph: &Graph,
    product: Reads<'_, i64>,
    convolution: Reads<'_, (i64, bool)>,
) -> Result<Option<Split>> {
    let frozen = graph.inputs.iter().any(|&v| graph.values[v].frozen);
    let is_constant = |node: &Node| matches!(node.op, Op::Constant { .. });
    if !frozen && !graph.nodes.values().any(is_constant) {
        return Ok(None);
    }
    let graph = images(pack(&fold(graph)?, product, convolution)?)?;
    let from = sources(&graph);
    let kept = kept(&graph, &from);
    if kept.is_empty() {
        return Ok(None);
    }
    let outputs = |values: &[ValueId]| -> Vec<GraphOutput> {
        let output = |&value: &ValueId| GraphOutput { value, alias: None };
        values.iter().map(output).collect()
    };
    let (prepare, prepare_inputs) = part(&graph, &[], outputs(&kept), |_| false)?;
    let written: Vec<usize> = graph.outputs.iter().filter_map(|o| o.alias).collect();
    let stays = |i: usize| {
        let value = &graph.values[graph.inputs[i]];
        let fixed = value.ty.shape.iter().all(|n| n.as_const().is_some());
        !value.frozen || !fixed || written.contains(&i)
    };
    let (main, main_inputs) = part(&graph, &kept, graph.outputs.clone(), stays)?;
    Ok(Some(Split {
        prepare,
        prepare_inputs,
        main,
        main_inputs,
    }))
}

/// A convolution whose channels are multiplied by something frozen.
struct Scaled<'a> {
    conv: &'a Node,
    scale: ValueId,
    /// What is added to its channels, or taken from them, before that.
    shifts: Vec<(Binary, ValueId)>,
}

/// The convolution behind a product of its channels, where nobody else reads what stands between.
fn scaled<'a>(
    graph: &'a Graph,
    from: &[From],
    (definitions, users): (&Arena<ValueId, Option<NodeId>>, &Users),
    node: &Node,
) -> Option<Scaled<'a>> {
    let whole = graph.ty(node.out());
    // Something frozen for each channel.
    let channels = |v: ValueId| {
        let sizes = &graph.ty(v).shape;
        let Some(channel) = (sizes.len() + 1).checked_sub(whole.shape.len()) else {
            return false;
        };
        let mut others = sizes.iter().enumerate().filter(|(i, _)| *i != channel);
        from[v.index()] == From::Frozen
            && sizes.get(channel) == whole.shape.get(1)
            && others.all(|(_, n)| n.is_const(1))
    };
    let alone = |v: ValueId| users.count(v) == 1 && graph.ty(v) == whole;
    let (Op::Binary(Binary::Mul), &[a, b]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    let pairs = [(a, b), (b, a)];
    let pair = pairs
        .into_iter()
        .find(|(image, scale)| alone(*image) && channels(*scale));
    let (mut image, scale) = pair?;
    let mut shifts = Vec::new();
    loop {
        let before = &graph.nodes[definitions[image]?];
        let (shift, inner, by) = match (&before.op, &before.inputs[..]) {
            (Op::Convolution { .. }, &[_, weight]) => {
                shifts.reverse();
                return (from[weight.index()] == From::Frozen).then_some(Scaled {
                    conv: before,
                    scale,
                    shifts,
                });
            }
            (Op::Binary(shift @ (Binary::Add | Binary::Sub)), &[a, b]) if channels(b) => {
                (*shift, a, b)
            }
            (Op::Binary(Binary::Add), &[a, b]) if channels(a) => (Binary::Add, b, a),
            _ => return None,
        };
        if !alone(inner) {
            return None;
        }
        shifts.push((shift, by));
        image = inner;
    }
}

/// Multiplies the weight of a convolution by what its channels are multiplied by afterwards, as a batch norm in inference does: what is left of that is a sum. What was added before is multiplied too.
fn fold(graph: &Graph) -> Result<Graph> {
    let from = sources(graph);
    let edges = (&graph.definitions(), &graph.users());
    let mut rebuild = Rebuild::new(graph);
    for (id, node) in graph.nodes.iter() {
        let Some(Scaled {
            conv,
            scale,
            shifts,
        }) = scaled(graph, &from, edges, node)
        else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let [x, weight] = [rebuild.get(conv.inputs[0])?, rebuild.get(conv.inputs[1])?];
        let scale = rebuild.get(scale)?;
        let mut shape = vec![Expr::ONE; graph.ty(conv.inputs[1]).shape.len()];
        shape[0] = graph.ty(conv.inputs[1]).shape[0].clone();
        let factor = rebuild.builder.view(scale, &shape)?;
        let weight = rebuild.builder.mul(weight, factor)?;
        let mut out = rebuild.builder.emit(conv.op.clone(), &[x, weight])?;
        for (shift, by) in shifts {
            let by = rebuild.get(by)?;
            let by = rebuild.builder.mul(by, scale)?;
            out = rebuild.builder.binary(shift, out, by)?;
        }
        keep_name(graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}

pub(crate) fn sources(graph: &Graph) -> Vec<From> {
    let mut from = vec![From::Varying; graph.values.len()];
    for &input in &graph.inputs {
        if graph.values[input].frozen {
            from[input.index()] = From::Frozen;
        }
    }
    for node in graph.nodes.values() {
        let known = |&v: &ValueId| {
            let shape = &graph.ty(v).shape;
            shape.iter().all(|n| n.as_const().is_some())
        };
        let own = match &node.op {
            Op::External { .. } | Op::ScalarTensor { .. } => From::Varying,
            Op::Constant { .. } => From::Frozen,
            _ if !node.outputs.iter().all(known) => From::Varying,
            _ => From::Nothing,
        };
        let most = node.inputs.iter().map(|v| from[v.index()]).max();
        let most = most.map_or(own, |most| most.max(own));
        for v in &node.outputs {
            from[v.index()] = most;
        }
    }
    from
}

/// The values that cross from one graph into the other: computed, frozen, and read by what is not.
fn kept(graph: &Graph, from: &[From]) -> Vec<ValueId> {
    let definitions = graph.definitions();
    let mut found = Vec::new();
    // A weight of bytes that a product widens as it reads it stays what it is.
    let widened = |node: &Node| {
        let from = node.inputs.first().map(|&v| graph.ty(v).dtype);
        matches!(node.op, Op::Cast { .. }) && matches!(from, Some(DType::I8 | DType::U8))
    };
    let mut see = |mut value: ValueId, reader: Option<&Node>| {
        if from[value.index()] != From::Frozen {
            return;
        }
        while let Some(id) = definitions[value] {
            let node = &graph.nodes[id];
            match node.op.category() {
                Category::View => value = node.inputs[0],
                Category::Source => return,
                Category::Pointwise if widened(node) && reader.is_some_and(multiplies) => {
                    value = node.inputs[0];
                }
                _ => break,
            }
        }
        if definitions[value].is_some() && !found.contains(&value) {
            found.push(value);
        }
    };
    for node in graph.nodes.values() {
        if node.outputs.iter().any(|v| from[v.index()] != From::Frozen) || node.outputs.is_empty() {
            node.inputs.iter().for_each(|&v| see(v, Some(node)));
        }
    }
    graph
        .outputs
        .iter()
        .for_each(|output| see(output.value, None));
    found
}

/// Whether a node is a product that may widen its second operand.
fn multiplies(node: &Node) -> bool {
    matches!(node.op, Op::Mm | Op::Bmm | Op::Addmm { .. })
}

/// The part of a graph that computes these outputs from its inputs and some values that are given; and the inputs that it has, those that nobody reads only where they stay.
fn part(
    graph: &Graph,
    given: &[ValueId],
    outputs: Vec<GraphOutput>,
    stays: impl Fn(usize) -> bool,
) -> Result<(Graph, Vec<usize>)> {
    let mut live = vec![false; graph.values.len()];
    for output in &outputs {
        live[output.value.index()] = true;
    }
    let mut nodes = Vec::new();
    for (id, node) in graph.nodes.iter().rev() {
        let made = |v: &ValueId| live[v.index()] && !given.contains(v);
        if node.outputs.iter().any(made) || node.op.is_ordered() && !given.is_empty() {
            node.inputs.iter().for_each(|v| live[v.index()] = true);
            nodes.push(id);
        }
    }
    nodes.reverse();
    let mut new = Graph {
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        constants: graph.constants.clone(),
        ..Graph::default()
    };
    if given.is_empty() {
        new.name.push_str("_once");
        new.symbols.clear();
    }
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut inputs = Vec::new();
    for (i, &input) in graph.inputs.iter().enumerate() {
        if live[input.index()] || stays(i) {
            let value = new.values.push(graph.values[input].clone());
            new.inputs.push(value);
            map.insert(input, value);
            inputs.push(i);
        }
    }
    let dense = |value: &Value| Layout::Required(value.ty.contiguous_strides());
    for &value in given {
        let mut input = graph.values[value].clone();
        input.layout = dense(&input);
        input.align = 64;
        input.frozen = true;
        let id = new.values.push(input);
        new.inputs.push(id);
        map.insert(value, id);
    }
    for id in nodes {
        let node = &graph.nodes[id];
        let mut copy = node.clone();
        for input in &mut copy.inputs {
            *input = map[input];
        }
        for output in &mut copy.outputs {
            let mut value = graph.values[*output].clone();
            if given.is_empty() && outputs.iter().any(|o| o.value == *output) {
                value.layout = dense(&value);
            }
            let made = new.values.push(value);
            // One of several results may be given.
            map.entry(*output).or_insert(made);
            *output = made;
        }
        new.nodes.push(copy);
    }
    new.outputs = outputs
        .iter()
        .map(|output| GraphOutput {
            value: map[&output.value],
            alias: output
                .alias
                .and_then(|old| inputs.iter().position(|&i| i == old)),
        })
        .collect();
    Ok((new.compact()?, inputs))
}
