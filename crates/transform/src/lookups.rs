//! A few elements of what is computed element by element are computed alone.
//!
//! `gather(f(a, b), i)` is `f(gather(a, i), gather(b, i))`, to the bit: a cross-entropy wants one element of each row of a log-softmax, and nothing else may want the rest. The elements are then looked up in what
//! lies in memory anyway, and the large value is not written (nor computed, where nothing else reads it). See decision 24.
//!
//! What is only a copy is looked up in what it copies, however many elements are wanted, where neighbours along the last dim are neighbours there too.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Result};
use oxyfuel_graph::{Category, Graph, Node, NodeId, Op, Placements, Rebuild, ValueId, place_views};

use crate::decompose::keep_name;

/// A lookup moves when it takes at most one of so many elements along its dim: what is computed again is then small beside what is not written.
const ONE_OF: i64 = 8;

/// The most steps that are computed again.
const MAX_STEPS: usize = 16;

/// The most values that are looked up in the place of one: each lookup is a cache line from afar.
const MAX_LEAVES: usize = 4;

/// Moves every lookup for which it pays in front of the elementwise work that it reads.
pub fn lookups(graph: Graph) -> Result<Graph> {
    let lookup = |node: &Node| matches!(node.op, Op::Gather { .. });
    if !graph.nodes.values().any(lookup) {
        return Ok(graph);
    }
    let definitions = graph.definitions();
    let placements = place_views(&graph)?;
    let moved: BTreeMap<NodeId, Moved> = graph
        .nodes
        .iter()
        .filter_map(|(id, node)| {
            Some((
                id,
                Lookup::of(&graph, &definitions, node)?.moved(&placements)?,
            ))
        })
        .collect();
    if moved.is_empty() {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        let Some(moved) = moved.get(&id) else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let out = moved.build(&graph, &mut rebuild, node)?;
        keep_name(&graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}

/// A lookup of few elements, one for every coordinate of the other dims.
struct Lookup<'a> {
    graph: &'a Graph,
    definitions: &'a Arena<ValueId, Option<NodeId>>,
    source: ValueId,
    dim: usize,
    /// Whether few elements are wanted.
    few: bool,
}

/// What takes a lookup's place.
#[derive(Default)]
struct Moved {
    /// Values to look up, each in memory.
    leaves: Vec<ValueId>,
    /// Elementwise work to do again, and literals to make again, operands first.
    steps: Vec<NodeId>,
}

impl<'a> Lookup<'a> {
    fn of(
        graph: &'a Graph,
        definitions: &'a Arena<ValueId, Option<NodeId>>,
        node: &Node,
    ) -> Option<Self> {
        let (Op::Gather { dim }, [source, index]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        let (all, some) = (&graph.ty(*source).shape, &graph.ty(*index).shape);
        let others = (0..all.len()).all(|d| d == *dim || all[d] == some[d]);
        let known = some[*dim].as_const().zip(all[*dim].as_const());
        let few = known.is_some_and(|(some, all)| some.saturating_mul(ONE_OF) <= all);
        others.then_some(Self {
            graph,
            definitions,
            source: *source,
            dim: *dim,
            few,
        })
    }

    fn moved(&self, placements: &Placements) -> Option<Moved> {
        let mut moved = Moved::default();
        self.visit(self.source, &mut moved)?;
        let pays = self.few || self.is_copied(&moved, placements);
        (pays && !moved.steps.is_empty() && moved.leaves.len() <= MAX_LEAVES).then_some(moved)
    }

    /// Whether all that is done to what is looked up are copies, of neighbours in memory.
    fn is_copied(&self, moved: &Moved, placements: &Placements) -> bool {
        let mut steps = moved.steps.iter();
        let mut leaves = moved.leaves.iter();
        steps.all(|&id| matches!(self.graph.nodes[id].op, Op::Clone))
            && leaves.all(|&leaf| {
                let strides = &placements.of(leaf).strides;
                strides.last().is_some_and(|stride| stride.is_const(1))
            })
    }

    /// Adds a value and what it is computed of; `None` where the lookup has to stay.
    fn visit(&self, value: ValueId, moved: &mut Moved) -> Option<()> {
        let definition = self.definitions[value];
        let seen = definition.is_some_and(|id| moved.steps.contains(&id));
        if seen || moved.leaves.contains(&value) || !self.varies(value) {
            return Some(());
        }
        let elementwise = |id: &NodeId| {
            let op = &self.graph.nodes[*id].op;
            op.category() == Category::Pointwise || matches!(op, Op::Full { .. })
        };
        match definition.filter(elementwise) {
            Some(_) if moved.steps.len() >= MAX_STEPS => return None,
            Some(id) => {
                for &operand in &self.graph.nodes[id].inputs {
                    self.visit(operand, moved)?;
                }
                moved.steps.push(id);
            }
            None if self.in_memory(value) => moved.leaves.push(value),
            None => return None,
        }
        Some(())
    }

    /// Whether an operand of the elementwise work has elements of its own along the dim.
    fn varies(&self, value: ValueId) -> bool {
        let (rank, own) = (self.graph.ty(self.source).rank(), self.graph.ty(value));
        let missing = rank - own.rank();
        self.dim >= missing && !own.shape[self.dim - missing].is_const(1)
    }

    /// Whether a value lies in memory whoever reads it.
    fn in_memory(&self, mut value: ValueId) -> bool {
        while let Some(id) = self.definitions[value] {
            let node = &self.graph.nodes[id];
            match node.op.category() {
                Category::View => value = node.inputs[0],
                Category::Source => return matches!(node.op, Op::Constant { .. }),
                category => {
                    return matches!(
                        category,
                        Category::Matmul
                            | Category::Convolution
                            | Category::Reduction
                            | Category::External
                    );
                }
            }
        }
        true
    }
}

impl Moved {
    /// Writes the work on the looked-up elements; what does not vary along the dim is read as it is.
    fn build(&self, graph: &Graph, rebuild: &mut Rebuild<'_>, lookup: &Node) -> Result<ValueId> {
        let all = &graph.ty(lookup.inputs[0]).shape;
        let some = &graph.ty(lookup.out()).shape;
        let index = rebuild.get(lookup.inputs[1])?;
        let mut made: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for &value in &self.leaves {
            let mut x = rebuild.get(value)?;
            let b = &mut rebuild.builder;
            if graph.ty(value).shape != *all {
                let shape = all.clone();
                x = b.emit(Op::Expand { shape }, &[x])?;
            }
            made.insert(value, b.emit(lookup.op.clone(), &[x, index])?);
        }
        let mut last = index;
        for &step in &self.steps {
            let node = &graph.nodes[step];
            let operands = node
                .inputs
                .iter()
                .map(|v| made.get(v).map_or_else(|| rebuild.get(*v), |&new| Ok(new)))
                .collect::<Result<Vec<_>>>()?;
            let mut op = node.op.clone();
            if let Op::Full { shape, .. } = &mut op {
                shape.clone_from(some);
            }
            last = rebuild.builder.emit(op, &operands)?;
            made.insert(node.out(), last);
        }
        Ok(last)
    }
}
