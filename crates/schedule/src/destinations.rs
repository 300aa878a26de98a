//! Parts of a concatenation that are computed in their place.
//!
//! What is read by a concatenation alone needs no memory of its own: its root takes the strides of its window on the result, and whoever computes it writes there. The concatenation
//! copies the other parts, and where there are none it is no kernel at all.
//!
//! A part is computed in its place where
//! - the concatenation is its only reader, through views that name every element once (so that nobody reads the result's memory before all parts are there);
//! - a kernel of ours computes it, near the concatenation: the memory of the whole result lives from the first part on;
//! - its strides are ours to choose;
//! - the memory is new, or an input whose old contents nobody reads.

use std::collections::BTreeMap;

use oxyfuel_base::{Expr, Id, Result};
use oxyfuel_graph::{
    Category, Graph, Layout, Node, NodeId, Op, Overwrites, Placement, Placements, ValueId,
    place_views, root_strides, same_strides,
};

/// How many nodes may stand between a part and its concatenation.
const NEAR: usize = 64;
/// Parts at different places are different kernels: many small ones are copied by one instead.
const MOST_PARTS: usize = 16;

/// The roots that lie in the result of a concatenation.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    /// The result whose memory it is, and where in it the root starts, in elements.
    homes: BTreeMap<ValueId, (ValueId, Expr)>,
}

impl Destinations {
    /// Whether the value of a root lies in the result of a concatenation.
    pub fn contains(&self, root: ValueId) -> bool {
        self.homes.contains_key(&root)
    }

    /// The result whose memory a root has a part of.
    pub fn owner(&self, root: ValueId) -> Option<ValueId> {
        self.homes.get(&root).map(|(owner, _)| *owner)
    }

    /// Where a value lies, given its placement over the root that computes it.
    pub fn memory(&self, place: &Placement) -> Placement {
        match self.homes.get(&place.root) {
            Some((owner, offset)) => Placement {
                root: *owner,
                offset: offset + &place.offset,
                strides: place.strides.clone(),
            },
            None => place.clone(),
        }
    }
}

/// Where every value lies over the root that computes it, and which roots lie in a result that they are part of.
pub fn place(graph: &Graph) -> Result<(Placements, Destinations)> {
    let placements = place_views(graph)?;
    let is_cat = |node: &Node| matches!(node.op, Op::Cat { .. });
    // Behind a call that gives a symbol its number, the size of a result is not known when its first part is.
    let binds = |node: &Node| matches!(&node.op, Op::External { call } if !call.binds.is_empty());
    if !graph.nodes.values().any(is_cat) || graph.nodes.values().any(binds) {
        return Ok((placements, Destinations::default()));
    }
    let overwrites = Overwrites::new(graph, &placements);
    let search = Search::new(graph, &placements, &overwrites);
    let mut found = Found::default();
    let cats: Vec<NodeId> = graph
        .nodes
        .iter()
        .filter_map(|(id, node)| is_cat(node).then_some(id))
        .collect();
    // The last first: where a result lies is known before its parts are placed.
    for &id in cats.iter().rev() {
        search.concatenation(id, &mut found);
    }
    let Found {
        destinations,
        strides,
    } = found;
    let moved = |(value, strides): (&ValueId, &Vec<Expr>)| {
        let shape = &graph.values[*value].ty.shape;
        !same_strides(shape, strides, &placements.of(*value).strides)
    };
    if !strides.iter().any(moved) {
        return Ok((placements, destinations));
    }
    let mut settled = graph.clone();
    for (value, strides) in strides {
        settled.values[value].layout = Layout::Chosen(strides);
    }
    Ok((place_views(&settled)?, destinations))
}

#[derive(Default)]
struct Found {
    destinations: Destinations,
    strides: BTreeMap<ValueId, Vec<Expr>>,
}

struct Search<'a> {
    graph: &'a Graph,
    placements: &'a Placements,
    overwrites: &'a Overwrites,
    /// How many operands and outputs name each value.
    uses: Vec<u32>,
    producers: Vec<Option<NodeId>>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, placements: &'a Placements, overwrites: &'a Overwrites) -> Self {
        let mut uses = vec![0; graph.values.len()];
        let mut producers = vec![None; graph.values.len()];
        for (id, node) in graph.nodes.iter() {
            node.inputs.iter().for_each(|v| uses[v.index()] += 1);
            for out in &node.outputs {
                producers[out.index()] = Some(id);
            }
        }
        for out in &graph.outputs {
            uses[out.value.index()] += 1;
        }
        Self {
            graph,
            placements,
            overwrites,
            uses,
            producers,
        }
    }

    /// Finds the parts of a concatenation that can be computed in their places.
    fn concatenation(&self, id: NodeId, found: &mut Found) {
        let node = &self.graph.nodes[id];
        let Op::Cat { dim } = node.op else {
            return;
        };
        let out = node.out();
        if node.inputs.len() > MOST_PARTS {
            return;
        }
        let own = self.placements.of(out);
        let place = found.destinations.memory(&Placement {
            strides: found.strides.get(&out).unwrap_or(&own.strides).clone(),
            ..own.clone()
        });
        // Whoever reads what the memory held would have to run before every part.
        let last = self.producers[place.root.index()].unwrap_or(id);
        if !self.overwrites.readers(last).is_empty() {
            return;
        }
        let mut at = Expr::ZERO;
        for &operand in &node.inputs {
            if let Some((root, strides)) = self.part(id, operand, &place.strides) {
                let offset = &place.offset + &at * &place.strides[dim];
                found.destinations.homes.insert(root, (place.root, offset));
                found.strides.insert(root, strides);
            }
            at += &self.graph.ty(operand).shape[dim];
        }
    }

    /// The root behind an operand that shall lie with these strides, and the root's own strides; none where it must lie elsewhere.
    fn part(
        &self,
        cat: NodeId,
        operand: ValueId,
        strides: &[Expr],
    ) -> Option<(ValueId, Vec<Expr>)> {
        let shape = |value: ValueId| &self.graph.ty(value).shape;
        if shape(operand).iter().any(|extent| extent.is_const(0)) {
            return None;
        }
        let mut value = operand;
        loop {
            let id = self.producers[value.index()]?;
            let node = &self.graph.nodes[id];
            if self.uses[value.index()] != 1 || cat.index() - id.index() > NEAR {
                return None;
            }
            if !self.placements.is_view(node) {
                let free = self.graph.values[value].layout == Layout::Any;
                (free && writes_anywhere(node)).then_some(())?;
                break;
            }
            value = node.inputs[0];
        }
        let producer = |v: ValueId| self.producers[v.index()];
        let strides = root_strides(self.graph, self.placements, &producer, operand, strides)?;
        Some((value, strides))
    }
}

/// Whether a kernel of ours computes a node's result with any strides.
pub(crate) fn writes_anywhere(node: &Node) -> bool {
    match node.op.category() {
        Category::Pointwise
        | Category::Reduction
        | Category::Matmul
        | Category::Convolution
        | Category::Indexing
        | Category::Scan => node.outputs.len() == 1,
        Category::Update => matches!(node.op, Op::Copy),
        Category::View
        | Category::Source
        | Category::Sort
        | Category::Attention
        | Category::Composite
        | Category::External => false,
    }
}
