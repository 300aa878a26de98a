//! Values of one element are computed where they are used.
//!
//! `1 - lr * decay` of an optimiser's step is used with every parameter of a model. Stored once, every other kernel waits for the one that stores it; and since that kernel has it at hand, the product of each small
//! parameter with it is done there too, once for every row of a large one. Two operations on one element cost nothing: whoever uses such a value with a tensor gets a copy of the work.
//!
//! ```text
//!   s = 1 - lr * decay          s1 = 1 - lr * decay     s2 = 1 - lr * decay
//!   a * s      b * s      ──▶   a * s1                  b * s2
//! ```

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Arena, Expr, Result};
use oxyfuel_graph::{Binary, Category, Graph, NodeId, Op, Rebuild, Unary, ValueId};

/// The most steps that are done again.
const MOST_STEPS: usize = 6;

/// Gives the users of such values that have unlike shapes the work behind them each.
pub fn scalars(graph: Graph) -> Result<Graph> {
    let found = Search::new(&graph).found();
    if found.is_empty() {
        return Ok(graph);
    }
    let values = graph.values.values();
    let taken: BTreeSet<&str> = values.filter_map(|value| value.name.as_deref()).collect();
    let mut copied: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        let steps: BTreeSet<NodeId> = match graph.ty(node.out()).numel() == Expr::constant(1) {
            true => BTreeSet::new(),
            false => node
                .inputs
                .iter()
                .filter_map(|v| found.get(v))
                .flatten()
                .copied()
                .collect(),
        };
        // Old values stand for their copies while the user is copied.
        let mut stood = Vec::new();
        for step in steps {
            let out = graph.nodes[step].out();
            stood.push((out, rebuild.get(out)?));
            let copies = copied.entry(step).or_insert(0);
            *copies += 1;
            rebuild.copy_again(step, &name(&graph, out, *copies, &taken))?;
        }
        rebuild.copy(id)?;
        for (old, new) in stood {
            rebuild.define(old, new);
        }
    }
    // What nobody uses any more goes.
    rebuild.finish()
}

/// A name for a copy, which no value of the graph has.
fn name(graph: &Graph, value: ValueId, copy: usize, taken: &BTreeSet<&str>) -> String {
    let own = match &graph.values[value].name {
        Some(name) => name.clone(),
        None => format!("v{}", oxyfuel_base::Id::index(value)),
    };
    let mut name = format!("{own}_again_{copy}");
    while taken.contains(name.as_str()) {
        name.push('_');
    }
    name
}

struct Search<'a> {
    graph: &'a Graph,
    definitions: Arena<ValueId, Option<NodeId>>,
    /// Inputs whose old contents are gone at some time.
    written: BTreeSet<ValueId>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        let aliases = graph.outputs.iter().filter_map(|out| out.alias);
        Self {
            graph,
            definitions: graph.definitions(),
            written: aliases.map(|input| graph.inputs[input]).collect(),
        }
    }

    /// The values that tensors of unlike shapes are computed with, and the work behind each in order.
    fn found(&self) -> BTreeMap<ValueId, BTreeSet<NodeId>> {
        let users = self.graph.users();
        let mut found = BTreeMap::new();
        for node in self.graph.nodes.values() {
            let [value] = node.outputs[..] else {
                continue;
            };
            if !self.is_one(value) || !is_cheap(&node.op) {
                continue;
            }
            let readers = users.of(value).iter().map(|&id| &self.graph.nodes[id]);
            let tensors = readers.filter(|node| !self.is_one(node.out()));
            let mut tensors = tensors.peekable();
            let Some(first) = tensors.peek().map(|node| &self.graph.ty(node.out()).shape) else {
                continue;
            };
            let mut unlike = false;
            let elementwise = tensors.all(|node| {
                unlike |= self.graph.ty(node.out()).shape != *first;
                node.op.category() == Category::Pointwise
            });
            let mut steps = BTreeSet::new();
            if unlike && elementwise && self.follow(value, &mut steps).is_some() {
                found.insert(value, steps);
            }
        }
        found
    }

    fn is_one(&self, value: ValueId) -> bool {
        self.graph.ty(value).numel() == Expr::constant(1)
    }

    /// Adds the work behind a value, up to inputs and what is made anywhere; `None` where it is more than a few cheap steps on values of one element.
    fn follow(&self, value: ValueId, steps: &mut BTreeSet<NodeId>) -> Option<()> {
        let Some(id) = self.definitions[value] else {
            return (self.is_one(value) && !self.written.contains(&value)).then_some(());
        };
        let node = &self.graph.nodes[id];
        if matches!(node.op, Op::Full { .. }) {
            return Some(());
        }
        if !self.is_one(value) || !is_cheap(&node.op) {
            return None;
        }
        if steps.insert(id) && steps.len() > MOST_STEPS {
            return None;
        }
        node.inputs
            .iter()
            .try_for_each(|&operand| self.follow(operand, steps))
    }
}

/// Work that takes an instruction or a few.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Binary(op) => matches!(
            op,
            Binary::Add
                | Binary::Sub
                | Binary::Mul
                | Binary::Div
                | Binary::Maximum
                | Binary::Minimum
        ),
        Op::Unary(op) => matches!(
            op,
            Unary::Neg | Unary::Abs | Unary::Sqrt | Unary::Reciprocal
        ),
        Op::Cast { .. } => true,
        _ => false,
    }
}
