//! Rules that remove work without changing a bit of any result.
//!
//! A rule looks at one node (and what defines its operands) and may name a value that already holds the node's result. Rules run in one walk from inputs to outputs, so a
//! rewrite is seen by everything after it; what nobody reads any more disappears at the end.

use std::collections::HashMap;

use oxyfuel_base::{Result, Scalar};
use oxyfuel_graph::{Graph, Node, NodeId, Op, Rebuild, ValueId};

/// A named rule. It may fire when its `apply` finds a value of the new graph that equals the node's result.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub name: &'static str,
    pub doc: &'static str,
    apply: fn(&Seen<'_>) -> Option<ValueId>,
}

/// What a rule sees: a node with operands of the new graph, and how those were defined.
struct Seen<'a> {
    new: &'a Graph,
    definitions: &'a HashMap<ValueId, NodeId>,
    op: &'a Op,
    inputs: &'a [ValueId],
    old: &'a Graph,
    node: &'a Node,
}

impl Seen<'_> {
    fn defined_by(&self, value: ValueId) -> Option<&Node> {
        self.definitions.get(&value).map(|&id| &self.new.nodes[id])
    }

    fn same_type(&self, value: ValueId) -> bool {
        let result = &self.old.values[self.node.out()];
        let other = &self.new.values[value];
        other.ty == result.ty && result.layout.strides().is_none()
    }

    /// The literal behind an operand.
    fn literal(&self, value: ValueId) -> Option<Scalar> {
        match &self.defined_by(value)?.op {
            Op::Full { value, .. } => Some(*value),
            _ => None,
        }
    }
}

/// All rules, in the order in which they are tried.
pub const RULES: &[Rule] = &[
    Rule {
        name: "cast-of-same",
        doc: "A cast to the dtype that a value has is the value.",
        apply: cast_of_same,
    },
    Rule {
        name: "view-of-same",
        doc: "A view, expand or permute that changes nothing is its operand.",
        apply: view_of_same,
    },
    Rule {
        name: "times-one",
        doc: "x * 1 and x / 1 are x, for a literal 1 of the same type.",
        apply: times_one,
    },
];

fn cast_of_same(seen: &Seen<'_>) -> Option<ValueId> {
    let x = seen.inputs.first().copied()?;
    (matches!(seen.op, Op::Cast { .. }) && seen.same_type(x)).then_some(x)
}

fn view_of_same(seen: &Seen<'_>) -> Option<ValueId> {
    let x = seen.inputs.first().copied()?;
    let same = match seen.op {
        Op::View { .. } | Op::Expand { .. } => seen.same_type(x),
        Op::Permute { dims } => dims.iter().copied().eq(0..dims.len()) && seen.same_type(x),
        _ => false,
    };
    same.then_some(x)
}

fn times_one(seen: &Seen<'_>) -> Option<ValueId> {
    use oxyfuel_graph::Binary;
    let (Op::Binary(op), [a, b]) = (seen.op, seen.inputs) else {
        return None;
    };
    let one = |v: ValueId| seen.literal(v).is_some_and(|s| s.as_f64() == 1.0);
    match op {
        Binary::Mul if one(*b) && seen.same_type(*a) => Some(*a),
        Binary::Mul if one(*a) && seen.same_type(*b) => Some(*b),
        Binary::Div if one(*b) && seen.same_type(*a) => Some(*a),
        _ => None,
    }
}

/// Runs all rules and makes equal nodes one.
pub fn simplify(graph: &Graph) -> Result<Graph> {
    let mut rebuild = Rebuild::new(graph);
    let mut definitions: HashMap<ValueId, NodeId> = HashMap::new();
    let mut known: HashMap<String, ValueId> = HashMap::new();
    for (id, node) in graph.nodes.iter() {
        let inputs = node
            .inputs
            .iter()
            .map(|&v| rebuild.get(v))
            .collect::<Result<Vec<_>>>()?;
        let seen = Seen {
            new: rebuild.builder.graph(),
            definitions: &definitions,
            op: &node.op,
            inputs: &inputs,
            old: graph,
            node,
        };
        if let Some(value) = RULES.iter().find_map(|rule| (rule.apply)(&seen)) {
            rebuild.define(node.out(), value);
            continue;
        }
        // Ops hold floats and expressions, which have no hash; their text tells equal ones.
        let layouts: Vec<_> = node
            .outputs
            .iter()
            .map(|&v| &graph.values[v].layout)
            .collect();
        let key = format!("{:?} {inputs:?} {layouts:?}", node.op);
        if node.outputs.len() == 1
            && let Some(&value) = known.get(&key)
        {
            rebuild.define(node.out(), value);
            continue;
        }
        rebuild.copy(id)?;
        let new = rebuild.builder.graph();
        if let Some((new_id, new_node)) = new.nodes.iter().last() {
            for &out in &new_node.outputs {
                definitions.insert(out, new_id);
            }
            if new_node.outputs.len() == 1 {
                known.insert(key, new_node.out());
            }
        }
    }
    rebuild.finish()
}
