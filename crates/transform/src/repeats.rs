//! What looks up with a repeated index does so before dims are joined.
//!
//! ```text
//!   codes [8, 1, n] ─▶ expand [8, 4, n] ─▶ clone ─▶ view [32, n] ─▶ gather of a table [32, 64] ─▶ sum ─▶ [32]
//!   codes [8, 1, n] ─▶ expand [8, 4, n] ─▶ clone ─▶ gather of the table, viewed as [8, 4, 64] ─▶ sum [8, 4] ─▶ view [32]
//! ```
//!
//! Repeating each element of a dim (`repeat_interleave`) is an expand, and a view that joins the repeated dim with the next: no strides say that, so the index is copied, each element as often as it is repeated, and looked at once. Before the dims
//! are joined the copy is elementwise work of the kernel that looks up. The view moves behind the lookup and the elementwise work and reductions that alone read it, as far as they leave the joined dims alone; parting the dims of the table costs nothing. It moves
//! where it ends behind a reduction, or where nobody computes with what it shows.
//!
//! The copy may also turn the index around, so that neighbours lie next to each other. The vectors of a CPU read such a copy in a row, and elements that lie apart one by one, each as often as it is repeated: there it stays. To the bit, what is computed stays the same.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Expr, Result};
use oxyfuel_graph::{
    Category, Graph, Node, NodeId, Op, Placements, Rebuild, Users, ValueId, place_views,
};

use crate::decompose::keep_name;
use crate::reshapes::parts;

/// Moves every view that joins the repeated dims of an index behind the lookup; where its neighbours lie apart in memory, only if it may be read `across`.
pub fn repeats(graph: Graph, across: bool) -> Result<Graph> {
    let lookup = |node: &Node| matches!(node.op, Op::Gather { .. });
    if !graph.nodes.values().any(lookup) {
        return Ok(graph);
    }
    let search = Search {
        graph: &graph,
        across,
        placements: place_views(&graph)?,
        definitions: graph.definitions(),
        users: graph.users(),
    };
    let chains: Vec<Chain> = graph
        .nodes
        .ids()
        .filter_map(|id| search.chain(id))
        .collect();
    if chains.is_empty() {
        return Ok(graph);
    }
    // By the last node of a chain; the others are done with it.
    let last: BTreeMap<NodeId, &Chain> = chains
        .iter()
        .filter_map(|chain| Some((chain.steps.last()?.node, chain)))
        .collect();
    let inside = |id: NodeId| {
        let mut steps = chains.iter().flat_map(|chain| &chain.steps);
        steps.any(|step| step.node == id)
    };
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        if let Some(chain) = last.get(&id) {
            let out = search.build(chain, &mut rebuild)?;
            keep_name(&graph, node.out(), &mut rebuild.builder, out);
            rebuild.define(node.out(), out);
        } else if !inside(id) {
            rebuild.copy(id)?;
        }
    }
    rebuild.finish()
}

/// A lookup and what follows it, in the shape that its index has before its dims are joined.
struct Chain {
    /// The index in that shape.
    index: ValueId,
    /// The table's shape.
    table: Vec<Expr>,
    steps: Vec<Step>,
}

struct Step {
    node: NodeId,
    op: Op,
    /// What the step before gives.
    before: ValueId,
}

struct Search<'a> {
    graph: &'a Graph,
    across: bool,
    placements: Placements,
    definitions: Arena<ValueId, Option<NodeId>>,
    users: Users,
}

/// Of each joined dim, the extents that it is joined from.
type Joined = Vec<Vec<Expr>>;

impl Search<'_> {
    fn shape(&self, value: ValueId) -> &[Expr] {
        &self.graph.ty(value).shape
    }

    /// The only reader of a value that is no result.
    fn reader(&self, value: ValueId) -> Option<NodeId> {
        match self.users.of(value) {
            &[reader] if self.users.count(value) == 1 => Some(reader),
            _ => None,
        }
    }

    /// What begins with a lookup whose index is the joined copy of repeated elements.
    fn chain(&self, id: NodeId) -> Option<Chain> {
        let node = &self.graph.nodes[id];
        let (&Op::Gather { dim }, &[source, index]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        self.reader(index)?;
        let view = &self.graph.nodes[self.definitions[index]?];
        let (Op::View { .. }, &[apart]) = (&view.op, &view.inputs[..]) else {
            return None;
        };
        self.reader(apart)?;
        let copy = &self.graph.nodes[self.definitions[apart]?];
        let (Op::Clone, &[repeated]) = (&copy.op, &copy.inputs[..]) else {
            return None;
        };
        let joined = joined(self.shape(apart), self.shape(index))?;
        let strides = self.placements.of(repeated).strides.iter();
        let in_a_row = strides.clone().last()?.is_const(1);
        let extents = joined.iter().flat_map(|from| {
            let joins = from.len() > 1;
            from.iter().map(move |extent| (extent, joins))
        });
        let repeats = strides
            .zip(extents)
            .any(|(stride, (extent, joins))| joins && stride.is_const(0) && !extent.is_const(1));
        let fits = (0..joined.len())
            .all(|d| joined[d].len() == 1 || self.shape(source)[d] == self.shape(index)[d]);
        if !(self.across || in_a_row) || !repeats || !fits || joined[dim].len() != 1 {
            return None;
        }
        let table = joined.iter().zip(self.shape(source));
        let table = table.flat_map(|(from, extent)| match from.len() {
            1 => vec![extent.clone()],
            _ => from.clone(),
        });
        let op = Op::Gather {
            dim: apart_dims(&joined, dim),
        };
        let mut chain = Chain {
            index: apart,
            table: table.collect(),
            steps: vec![Step {
                node: id,
                op,
                before: index,
            }],
        };
        let reduces = self.follow(&mut chain, node.out(), joined);
        let end = chain.steps.last()?.node;
        let end = self.graph.nodes[end].out();
        (reduces || !self.is_computed_with(end)).then_some(chain)
    }

    /// Adds what alone reads a value and leaves the joined dims alone; whether that reduces.
    fn follow(&self, chain: &mut Chain, mut value: ValueId, mut joined: Joined) -> bool {
        let mut reduces = false;
        while let Some(id) = self.reader(value) {
            let node = &self.graph.nodes[id];
            let op = match &node.op {
                Op::Reduce { op, dims, keepdim } if dims.iter().all(|&d| joined[d].len() == 1) => {
                    reduces = true;
                    let apart = dims.iter().map(|&d| apart_dims(&joined, d)).collect();
                    if !keepdim {
                        let mut at = 0..;
                        joined.retain(|_| at.next().is_some_and(|d| !dims.contains(&d)));
                    }
                    Op::Reduce {
                        op: *op,
                        dims: apart,
                        keepdim: *keepdim,
                    }
                }
                op if op.category() == Category::Pointwise && self.fits(node, value, &joined) => {
                    op.clone()
                }
                _ => break,
            };
            chain.steps.push(Step {
                node: id,
                op,
                before: value,
            });
            value = node.out();
        }
        reduces
    }

    /// Whether elementwise work has the shape of a value, and its other operands do not vary along the joined dims.
    fn fits(&self, node: &Node, value: ValueId, joined: &Joined) -> bool {
        let behind = joined.iter().rev().take_while(|from| from.len() == 1);
        let behind = behind.count();
        node.outputs.len() == 1
            && self.shape(node.out()) == self.shape(value)
            && node
                .inputs
                .iter()
                .all(|&operand| operand == value || self.shape(operand).len() <= behind)
    }

    /// Whether a kernel computes with a value, as it is or through views.
    fn is_computed_with(&self, value: ValueId) -> bool {
        self.users.of(value).iter().any(|&id| {
            let node = &self.graph.nodes[id];
            match node.op.category() {
                Category::View => self.is_computed_with(node.out()),
                category => matches!(category, Category::Pointwise | Category::Reduction),
            }
        })
    }

    /// Writes a chain down; what comes is seen in the shape that its end has.
    fn build(&self, chain: &Chain, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let mut value = rebuild.get(chain.index)?;
        let mut shape = Vec::new();
        for step in &chain.steps {
            let node = &self.graph.nodes[step.node];
            rebuild.at(step.node);
            let inputs = match step.op {
                Op::Gather { .. } => vec![self.table(chain, node.inputs[0], rebuild)?, value],
                _ => {
                    let operand = |&old: &ValueId| match old == step.before {
                        true => Ok(value),
                        false => rebuild.get(old),
                    };
                    node.inputs.iter().map(operand).collect::<Result<_>>()?
                }
            };
            value = rebuild.builder.emit(step.op.clone(), &inputs)?;
            shape = self.shape(node.out()).to_vec();
        }
        rebuild.builder.emit(Op::View { shape }, &[value])
    }

    /// The table with its dims apart: what a view joined, or a view.
    fn table(&self, chain: &Chain, source: ValueId, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        if let Some(id) = self.definitions[source]
            && let Op::View { .. } = self.graph.nodes[id].op
            && self.shape(self.graph.nodes[id].inputs[0]) == chain.table
        {
            return rebuild.get(self.graph.nodes[id].inputs[0]);
        }
        let shape = chain.table.clone();
        let source = rebuild.get(source)?;
        rebuild.builder.emit(Op::View { shape }, &[source])
    }
}

/// From which extents each dim of a shape is joined; `None` where some are parted, come or go.
fn joined(from: &[Expr], to: &[Expr]) -> Option<Joined> {
    let parts = parts(from, to)?.into_iter();
    let joined = parts
        .map(|(there, here)| (here.len() == 1 && !there.is_empty()).then(|| from[there].to_vec()));
    joined.collect()
}

/// Which dim a joined one, or the first that it is joined from, is before it is joined.
fn apart_dims(joined: &Joined, dim: usize) -> usize {
    joined[..dim].iter().map(Vec::len).sum()
}
