//! What the borders of a graph demand of memory: strides of outputs, memory of their own, and mutations of inputs.
//!
//! After this pass
//! - an output lies with the strides that its layout requires: the root behind it got them, or a `clone` has them;
//! - an output is no window on an input which is written, nor on a constant;
//! - every mutation of an input is a chain of nodes that write its memory ([`oxyfuel_graph::overwrite`]): updates in place where the input's old value is not needed
//!   after them, otherwise a `clone` at the end. Nodes stand in an order in which all who read the memory come before the one who overwrites it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use oxyfuel_base::{Arena, Expr, Id, Result, err};
use oxyfuel_graph::overwrite::{Chain, chains, is_update, stands_alone, updated_window};
use oxyfuel_graph::{
    Category, Graph, Layout, Node, NodeId, Op, Origin, Placements, Rebuild, Value, ValueId,
    place_views, root_strides, same_strides,
};

/// Settles what the borders demand.
pub fn borders(graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    let original = graph.nodes.len();
    lend_strides(&mut graph)?;
    let beside = beside(&graph)?;
    own_memory(&mut graph, &beside)?;
    let chains = write_back(&mut graph, &beside)?;
    if graph.nodes.len() == original && chains.is_empty() {
        return Ok(graph);
    }
    ordered(&graph, original, &chains)
}

/// The inputs that are written.
fn written(graph: &Graph) -> BTreeSet<ValueId> {
    let aliases = graph.outputs.iter().filter_map(|out| out.alias);
    aliases.map(|input| graph.inputs[input]).collect()
}

// ---- strides ---------------------------------------------------------------------------------------------------------------------

/// Roots whose layout is free take the strides that a border asks of a view, and updates of a written input take the input's.
fn lend_strides(graph: &mut Graph) -> Result<()> {
    let definitions = graph.definitions();
    let mut asked: BTreeMap<ValueId, Vec<Expr>> = BTreeMap::new();
    for out in &graph.outputs {
        let Layout::Required(strides) = &graph.values[out.value].layout else {
            continue;
        };
        let (mut value, mut strides) = (out.value, strides.clone());
        while let Some(id) = definitions[value]
            && let Op::Permute { dims } = &graph.nodes[id].op
        {
            strides = before_permute(&strides, dims);
            value = graph.nodes[id].inputs[0];
        }
        let free = definitions[value].is_some_and(|id| lays_out(&graph.nodes[id].op))
            && !matches!(graph.values[value].layout, Layout::Required(_));
        if free && value != out.value {
            asked.entry(value).or_insert(strides);
        }
    }
    lend_to_heads(graph, &mut asked);
    for (value, strides) in asked {
        graph.values[value].layout = Layout::Chosen(strides);
    }
    let mut family = written(graph);
    if family.is_empty() {
        return Ok(());
    }
    let mut placements = place_views(graph)?;
    for i in 0..graph.outputs.len() {
        let out = graph.outputs[i];
        let Some(input) = out.alias else {
            continue;
        };
        let alone = definitions[out.value].is_some_and(|id| stands_alone(&graph.nodes[id].op));
        let strides = placements.of(graph.inputs[input]).strides.clone();
        if alone && is_free(graph, out.value, &strides) {
            graph.values[out.value].layout = Layout::Chosen(strides);
        }
    }
    for id in graph.nodes.ids().collect::<Vec<_>>() {
        let node = &graph.nodes[id];
        if !is_update(&node.op) || !family.contains(&placements.root(node.inputs[0])) {
            continue;
        }
        let (value, strides) = (node.out(), placements.of(node.inputs[0]).strides.clone());
        if !is_free(graph, value, &strides) {
            continue;
        }
        family.insert(value);
        let shape = &graph.values[value].ty.shape;
        if !same_strides(shape, &strides, &placements.of(value).strides) {
            graph.values[value].layout = Layout::Chosen(strides);
            placements = place_views(graph)?;
        }
    }
    Ok(())
}

/// Attention whose heads somebody puts side by side is stored that way: the view of what was permuted copies nothing then.
fn lend_to_heads(graph: &Graph, asked: &mut BTreeMap<ValueId, Vec<Expr>>) {
    let definitions = graph.definitions();
    let users = graph.users();
    let read_once = |value: ValueId| users.count(value) == 1;
    for node in graph.nodes.values() {
        let Op::View { .. } = node.op else {
            continue;
        };
        let mut value = node.inputs[0];
        let mut strides = graph.ty(value).contiguous_strides();
        while let Some(id) = definitions[value]
            && let Op::Permute { dims } = &graph.nodes[id].op
            && read_once(value)
        {
            strides = before_permute(&strides, dims);
            value = graph.nodes[id].inputs[0];
        }
        let attention = definitions[value]
            .is_some_and(|id| graph.nodes[id].op.category() == Category::Attention);
        let free = graph.values[value].layout == Layout::Any && value != node.inputs[0];
        if attention && free && read_once(value) {
            asked.entry(value).or_insert(strides);
        }
    }
}

/// The strides of a permute's operand, by those of its result.
fn before_permute(strides: &[Expr], dims: &[usize]) -> Vec<Expr> {
    let mut before = strides.to_vec();
    for (stride, &d) in strides.iter().zip(dims) {
        before[d] = stride.clone();
    }
    before
}

/// Whether a value may lie with these strides: its own are not required, and none of them names an element twice.
fn is_free(graph: &Graph, value: ValueId, strides: &[Expr]) -> bool {
    let data = &graph.values[value];
    let repeats = |(extent, stride): (&Expr, &Expr)| !extent.is_const(1) && stride.is_const(0);
    !data.ty.shape.iter().zip(strides).any(repeats) && !matches!(data.layout, Layout::Required(_))
}

/// Whether the layout of an op's result is ours to choose.
fn lays_out(op: &Op) -> bool {
    match op.category() {
        Category::View | Category::External => false,
        Category::Source => !matches!(op, Op::Constant { .. }),
        Category::Pointwise
        | Category::Reduction
        | Category::Scan
        | Category::Sort
        | Category::Indexing
        | Category::Matmul
        | Category::Attention
        | Category::Convolution
        | Category::Composite
        | Category::Update => true,
    }
}

// ---- memory of their own -----------------------------------------------------------------------------------------------------------

/// Inputs whose new value is returned too, and cannot be computed in the input itself: it is a result, and stored from there.
fn beside(graph: &Graph) -> Result<BTreeSet<usize>> {
    let placements = place_views(graph)?;
    let stored = |value: ValueId| {
        let mut outputs = graph.outputs.iter();
        outputs.find_map(|out| (out.value == placements.root(value)).then_some(out.alias?))
    };
    let plain = graph.outputs.iter().filter(|out| out.alias.is_none());
    let both: BTreeSet<usize> = plain.filter_map(|out| stored(out.value)).collect();
    if both.is_empty() {
        return Ok(both);
    }
    let mut tried = graph.clone();
    own_memory(&mut tried, &BTreeSet::new())?;
    let in_place = in_place(&tried, &place_views(&tried)?);
    Ok(both.difference(&in_place).copied().collect())
}

/// Clones the outputs that lie elsewhere than they should. The new values of inputs `beside` them lie where they are computed.
fn own_memory(graph: &mut Graph, beside: &BTreeSet<usize>) -> Result<()> {
    let placements = place_views(graph)?;
    let definitions = graph.definitions();
    let written = written(graph);
    let there = |input: usize| !beside.contains(&input);
    let mutated: BTreeSet<ValueId> = graph
        .outputs
        .iter()
        .filter(|out| out.alias.is_some_and(there))
        .map(|out| placements.root(out.value))
        .collect();
    let mut clones: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for i in 0..graph.outputs.len() {
        let out = graph.outputs[i];
        let root = placements.root(out.value);
        let op = definitions[root].map(|id| &graph.nodes[id].op);
        let needed = match out.alias {
            Some(input) => out.value != graph.inputs[input] && written.contains(&root),
            None => {
                written.contains(&root)
                    || op.is_some_and(|op| {
                        matches!(op, Op::Constant { .. })
                            || (is_update(op) && mutated.contains(&root))
                    })
                    || !lies_as_required(graph, &placements, out.value)
            }
        };
        if needed {
            let clone = match clones.get(&out.value) {
                Some(&clone) => clone,
                None => {
                    let layout = graph.values[out.value].layout.clone();
                    add_clone(graph, &definitions, out.value, layout)
                }
            };
            clones.insert(out.value, clone);
            graph.outputs[i].value = clone;
        }
    }
    Ok(())
}

fn lies_as_required(graph: &Graph, placements: &Placements, value: ValueId) -> bool {
    let data = &graph.values[value];
    match &data.layout {
        Layout::Required(strides) => {
            same_strides(&data.ty.shape, strides, &placements.of(value).strides)
        }
        Layout::Any | Layout::Chosen(_) => true,
    }
}

/// Adds a clone at the end of the graph.
fn add_clone(
    graph: &mut Graph,
    definitions: &Arena<ValueId, Option<NodeId>>,
    value: ValueId,
    layout: Layout,
) -> ValueId {
    let of = definitions[value].map(|id| graph.nodes[id].origin.clone());
    let mut data = Value::new(graph.values[value].ty.clone());
    data.layout = layout;
    let out = graph.values.push(data);
    graph.nodes.push(Node {
        op: Op::Clone,
        inputs: vec![value],
        outputs: vec![out],
        origin: Origin {
            ops: vec![Op::Clone.name().to_owned()],
            ..of.unwrap_or_default()
        },
    });
    out
}

// ---- mutations ---------------------------------------------------------------------------------------------------------------------

/// The inputs whose new values can be computed where they are.
fn in_place(graph: &Graph, placements: &Placements) -> BTreeSet<usize> {
    let mut edges = Edges::new(graph);
    chains(graph, placements)
        .into_iter()
        .map(Chain::without_parts)
        .filter(|chain| edges.admit(chain))
        .map(|chain| chain.input)
        .collect()
}

/// Gives every mutation a chain of writers; returns those that ask for an order among the nodes.
fn write_back(graph: &mut Graph, beside: &BTreeSet<usize>) -> Result<Vec<Chain>> {
    if graph.outputs.iter().all(|out| out.alias.is_none()) {
        return Ok(Vec::new());
    }
    let placements = place_views(graph)?;
    let definitions = graph.definitions();
    let mut in_place = in_place(graph, &placements);
    in_place.retain(|input| !beside.contains(input));
    for i in 0..graph.outputs.len() {
        let out = graph.outputs[i];
        let Some(input) = out.alias.filter(|input| !in_place.contains(input)) else {
            continue;
        };
        let strides = placements.of(graph.inputs[input]).strides.clone();
        graph.outputs[i].value = add_clone(graph, &definitions, out.value, Layout::Chosen(strides));
    }
    lend_windows(graph)?;
    settled(graph)
}

/// The chains of a graph whose mutations all have one: with the parts that an order of the nodes allows.
fn settled(graph: &Graph) -> Result<Vec<Chain>> {
    let chains = chains(graph, &place_views(graph)?);
    let mut edges = Edges::new(graph);
    let each = chains.iter().cloned();
    if let Some(all) = each.map(|chain| edges.admit_with_parts(chain)).collect() {
        return Ok(all);
    }
    Ok(chains.into_iter().map(Chain::without_parts).collect())
}

/// What an update in place brings takes the strides of its window, where it is computed there then.
fn lend_windows(graph: &mut Graph) -> Result<()> {
    let placements = place_views(graph)?;
    let definitions = graph.definitions();
    let mut lent = Vec::new();
    for member in chains(graph, &placements)
        .iter()
        .flat_map(|chain| &chain.members)
    {
        let node = &graph.nodes[member.node];
        let [base, src, ..] = node.inputs[..] else {
            continue;
        };
        let Some(window) = updated_window(&node.op, placements.of(base)) else {
            continue;
        };
        let root = placements.root(src);
        let free = graph.values[root].layout == Layout::Any && definitions[root].is_some();
        let producer = |v: ValueId| definitions[v];
        let strides = root_strides(graph, &placements, &producer, src, &window.strides);
        if let Some(strides) = strides.filter(|s| free && is_free(graph, root, s)) {
            lent.push((root, strides));
        }
    }
    if lent.is_empty() {
        return Ok(());
    }
    for (root, strides) in &lent {
        graph.values[*root].layout = Layout::Chosen(strides.clone());
    }
    // Memory with gaps is taken only where it is the input's.
    let chains = settled(graph)?;
    let members = chains.iter().flat_map(|chain| &chain.members);
    let there: BTreeSet<ValueId> = members.map(|member| member.value).collect();
    for (root, _) in lent {
        if !there.contains(&root) {
            graph.values[root].layout = Layout::Any;
        }
    }
    Ok(())
}

/// Who must run before whom: operands, and readers of what is overwritten.
struct Edges {
    /// Nodes that wait for a node.
    next: Vec<Vec<NodeId>>,
}

impl Edges {
    fn new(graph: &Graph) -> Self {
        let definitions = graph.definitions();
        let mut next = vec![Vec::new(); graph.nodes.len()];
        for (id, node) in graph.nodes.iter() {
            for operand in node.inputs.iter().filter_map(|&v| definitions[v]) {
                next[operand.index()].push(id);
            }
        }
        Self { next }
    }

    /// Adds the order that a chain asks for, with its parts or else without them, if it can be kept.
    fn admit_with_parts(&mut self, chain: Chain) -> Option<Chain> {
        if self.admit(&chain) {
            return Some(chain);
        }
        let chain = chain.without_parts();
        self.admit(&chain).then_some(chain)
    }

    /// Adds the order that a chain asks for, if it can be kept.
    fn admit(&mut self, chain: &Chain) -> bool {
        let mut added: Vec<NodeId> = Vec::new();
        for member in &chain.members {
            let reached = self.reached(member.node);
            if member.readers.iter().any(|reader| reached.contains(reader)) {
                for reader in added.into_iter().rev() {
                    self.next[reader.index()].pop();
                }
                return false;
            }
            for reader in &member.readers {
                self.next[reader.index()].push(member.node);
                added.push(*reader);
            }
        }
        true
    }

    fn reached(&self, from: NodeId) -> BTreeSet<NodeId> {
        let mut seen = BTreeSet::from([from]);
        let mut stack = vec![from];
        while let Some(node) = stack.pop() {
            for &next in &self.next[node.index()] {
                if seen.insert(next) {
                    stack.push(next);
                }
            }
        }
        seen
    }
}

/// The graph with its nodes in an order that all chains allow; otherwise as they stood, with clones of old values as early as they can be.
fn ordered(graph: &Graph, original: usize, chains: &[Chain]) -> Result<Graph> {
    let mut edges = Edges::new(graph);
    if !chains.iter().all(|chain| edges.admit(chain)) {
        return Err(err!(
            Internal,
            "the mutations of graph @{} wait for each other",
            graph.name
        ));
    }
    let definitions = graph.definitions();
    let last: BTreeSet<NodeId> = chains
        .iter()
        .flat_map(|chain| &chain.members)
        .map(|member| member.node)
        .filter(|node| node.index() >= original)
        .collect();
    let key = |node: NodeId| {
        if node.index() < original {
            (node.index() + 1, node)
        } else if last.contains(&node) {
            (usize::MAX, node)
        } else {
            let of = definitions[graph.nodes[node].inputs[0]];
            (of.map_or(0, |of| of.index() + 1), node)
        }
    };
    let mut waits = vec![0usize; graph.nodes.len()];
    for next in edges.next.iter().flatten() {
        waits[next.index()] += 1;
    }
    let mut ready: BinaryHeap<_> = graph
        .nodes
        .ids()
        .filter(|node| waits[node.index()] == 0)
        .map(|node| Reverse(key(node)))
        .collect();
    let mut rebuild = Rebuild::new(graph);
    while let Some(Reverse((_, node))) = ready.pop() {
        rebuild.copy(node)?;
        for next in &edges.next[node.index()] {
            waits[next.index()] -= 1;
            if waits[next.index()] == 0 {
                ready.push(Reverse(key(*next)));
            }
        }
    }
    rebuild.finish()
}
