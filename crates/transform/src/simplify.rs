//! Rules that remove work without changing a bit of any result.
//!
//! A rule looks at one node (and what defines its operands) and may name a value that already holds the node's result. Rules run in one walk from inputs to outputs, so a
//! rewrite is seen by everything after it; what nobody reads any more disappears at the end.

use std::collections::{HashMap, HashSet};

use oxyfuel_base::{Result, Scalar, err};
use oxyfuel_graph::{
    Binary, Category, Graph, Node, NodeId, Op, Origin, Rebuild, Reduce, Value, ValueId, place_views,
};

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

    /// Whether a value lies in the memory of an input. A result that is computed has memory of its own: it cannot be replaced by such a value, since it, or a view
    /// of it, may be an output.
    fn borrowed(&self, mut value: ValueId) -> bool {
        while let Some(node) = self.defined_by(value) {
            if node.op.category() != Category::View {
                return false;
            }
            value = node.inputs[0];
        }
        true
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
        doc: "A view, expand, slice or permute that changes nothing is its operand.",
        apply: view_of_same,
    },
    Rule {
        name: "views-back",
        doc: "Views in a row that come back to a shape, and permutes that come back to an order, are the value that had it.",
        apply: views_back,
    },
    Rule {
        name: "write-of-all",
        doc: "What is written over all of a tensor is the result; what writes nothing leaves it.",
        apply: write_of_all,
    },
    Rule {
        name: "times-one",
        doc: "x * 1 and x / 1 are x, for a literal 1 of the same type.",
        apply: times_one,
    },
];

fn cast_of_same(seen: &Seen<'_>) -> Option<ValueId> {
    let x = seen.inputs.first().copied()?;
    (matches!(seen.op, Op::Cast { .. }) && seen.same_type(x) && !seen.borrowed(x)).then_some(x)
}

fn view_of_same(seen: &Seen<'_>) -> Option<ValueId> {
    let x = seen.inputs.first().copied()?;
    let same = match seen.op {
        // A slice of the same size takes everything.
        Op::View { .. } | Op::Expand { .. } | Op::Slice { .. } => seen.same_type(x),
        Op::Permute { dims } => dims.iter().copied().eq(0..dims.len()) && seen.same_type(x),
        _ => false,
    };
    same.then_some(x)
}

fn views_back(seen: &Seen<'_>) -> Option<ValueId> {
    let mut x = seen.inputs.first().copied()?;
    let mut order = match seen.op {
        Op::View { .. } => None,
        Op::Permute { dims } => Some(dims.clone()),
        _ => return None,
    };
    loop {
        let node = seen.defined_by(x)?;
        match (&node.op, &mut order) {
            (Op::View { .. }, None) => {}
            (Op::Permute { dims }, Some(order)) => {
                order.iter_mut().for_each(|d| *d = dims[*d]);
            }
            _ => return None,
        }
        x = node.inputs[0];
        let in_order = |order: &Vec<usize>| order.iter().copied().eq(0..order.len());
        if order.as_ref().is_none_or(in_order) && seen.same_type(x) {
            return Some(x);
        }
    }
}

fn write_of_all(seen: &Seen<'_>) -> Option<ValueId> {
    let (Op::Copy | Op::SliceScatter { .. } | Op::IndexPut { .. }, [x, src, ..]) =
        (seen.op, seen.inputs)
    else {
        return None;
    };
    let all = !matches!(seen.op, Op::IndexPut { .. });
    if all && seen.same_type(*src) && !seen.borrowed(*src) {
        return Some(*src);
    }
    let written = &seen.new.values[*src].ty.shape;
    let nothing = !matches!(seen.op, Op::Copy) && written.iter().any(|extent| extent.is_const(0));
    (nothing && seen.same_type(*x) && !seen.borrowed(*x)).then_some(*x)
}

fn times_one(seen: &Seen<'_>) -> Option<ValueId> {
    let (Op::Binary(op), [a, b]) = (seen.op, seen.inputs) else {
        return None;
    };
    let one = |v: ValueId| seen.literal(v).is_some_and(|s| s.as_f64() == 1.0);
    let same = |v: ValueId| seen.same_type(v) && !seen.borrowed(v);
    match op {
        Binary::Mul if one(*b) && same(*a) => Some(*a),
        Binary::Mul if one(*a) && same(*b) => Some(*b),
        Binary::Div if one(*b) && same(*a) => Some(*a),
        _ => None,
    }
}

/// What a node without work gives everywhere: anything where there are no elements, the identity where a reduction or product has nothing to go over.
fn empty(graph: &Graph, node: &Node) -> Result<Option<Scalar>> {
    let [out] = node.outputs[..] else {
        return Ok(None);
    };
    if matches!(node.op, Op::External { .. }) {
        return Ok(None);
    }
    if matches!(node.op, Op::Full { .. }) {
        return Ok(None);
    }
    let none = |value: ValueId| {
        graph.values[value]
            .ty
            .shape
            .iter()
            .any(|e| e.as_const() == Some(0))
    };
    if none(out) {
        return Ok(Some(Scalar::I(0)));
    }
    Ok(match (&node.op, &node.inputs[..]) {
        (Op::Mm | Op::Bmm | Op::IntMm, [a, _]) | (Op::Addmm { .. }, [_, a, _]) if none(*a) => {
            Some(Scalar::I(0))
        }
        (Op::Reduce { op, .. }, [x]) if none(*x) => Some(match op {
            Reduce::Sum => Scalar::I(0),
            Reduce::Prod => Scalar::I(1),
            Reduce::Mean => Scalar::F(f64::NAN),
            Reduce::Any => Scalar::B(false),
            Reduce::All => Scalar::B(true),
            Reduce::Amax | Reduce::Amin => {
                return Err(err!(ShapeMismatch, "{} of no elements", node.op.name()));
            }
        }),
        _ => None,
    })
}

/// The number that a copy writes into every element: what it was written over is not wanted for that.
fn number_written(seen: &Seen<'_>) -> Option<Scalar> {
    let (Op::Copy, &[_, mut written]) = (seen.op, seen.inputs) else {
        return None;
    };
    let dtype = seen.old.values[seen.node.out()].ty.dtype;
    if seen.new.values[written].ty.dtype != dtype {
        return None;
    }
    loop {
        let node = seen.defined_by(written)?;
        match (&node.op, node.op.category()) {
            (&Op::Full { value, .. }, _) => return Some(value),
            (_, Category::View) => written = node.inputs[0],
            (_, _) => return None,
        }
    }
}

/// The result of a node for which [`empty`] or [`number_written`] found `value`.
fn constant_result(
    rebuild: &mut Rebuild<'_>,
    graph: &Graph,
    node: &Node,
    inputs: &[ValueId],
    value: Scalar,
) -> Result<ValueId> {
    let ty = graph.values[node.out()].ty.clone();
    let b = &mut rebuild.builder;
    let zeros = b.full(value, ty.shape, ty.dtype, ty.device)?;
    match node.op {
        // The product is zero, what is added to it stays.
        Op::Addmm { beta, .. } if beta.as_f64() != 0.0 => {
            let beta = b.full(beta, Vec::new(), ty.dtype, ty.device)?;
            let added = b.binary(Binary::Mul, inputs[0], beta)?;
            b.binary(Binary::Add, zeros, added)
        }
        _ => Ok(zeros),
    }
}

/// Runs all rules and makes equal nodes one.
pub fn simplify(graph: &Graph) -> Result<Graph> {
    apart(graph, simplified(graph, Equal::Once)?.finish()?)
}

/// Runs all rules, and leaves equal nodes as they are: what is computed once lives until its last reader, what is computed twice lives twice for a short time.
pub fn simplify_each(graph: &Graph) -> Result<Graph> {
    apart(graph, simplified(graph, Equal::Each)?.finish()?)
}

/// Whether equal nodes become one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Equal {
    Once,
    Each,
}

/// For every value of the graph the first one that certainly holds the same: what the rules find, for those who keep the graph in a form of their own.
pub fn same_values(graph: &Graph) -> Result<Vec<ValueId>> {
    let rebuild = simplified(graph, Equal::Once)?;
    let mut first: HashMap<ValueId, ValueId> = HashMap::new();
    graph
        .values
        .ids()
        .map(|old| Ok(*first.entry(rebuild.get(old)?).or_insert(old)))
        .collect()
}

/// One walk of all rules over the graph.
fn simplified(graph: &Graph, equal: Equal) -> Result<Rebuild<'_>> {
    let mut rebuild = Rebuild::new(graph);
    let mut definitions: HashMap<ValueId, NodeId> = HashMap::new();
    let mut known: HashMap<String, ValueId> = HashMap::new();
    // Results that are computed alike are tensors of their own: the caller may write to one of them.
    let returned: HashSet<ValueId> = graph.outputs.iter().map(|out| out.value).collect();
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
        if let Some(value) = empty(graph, node)?.or_else(|| number_written(&seen)) {
            rebuild.at(id);
            let made = constant_result(&mut rebuild, graph, node, &inputs, value)?;
            let layout = graph.values[node.out()].layout.clone();
            rebuild.builder.set_layout(made, layout);
            rebuild.define(node.out(), made);
            continue;
        }
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
        if equal == Equal::Once
            && node.outputs.len() == 1
            && !node.op.is_ordered()
            && !returned.contains(&node.out())
            && let Some(&value) = known.get(&key)
        {
            rebuild.define(node.out(), value);
            continue;
        }
        rebuild.copy(id)?;
        let new = rebuild.builder.graph();
        if let Some((new_id, new_node)) = new.nodes.iter().next_back() {
            for &out in &new_node.outputs {
                definitions.insert(out, new_id);
            }
            if new_node.outputs.len() == 1 {
                known.insert(key, new_node.out());
            }
        }
    }
    Ok(rebuild)
}

/// Results that had memory of their own and came to share it get it back: whoever writes one of them must not see it in the other.
fn apart(old: &Graph, mut new: Graph) -> Result<Graph> {
    let own: Vec<usize> = (0..new.outputs.len())
        .filter(|&i| new.outputs[i].alias.is_none())
        .collect();
    if own.len() < 2 {
        return Ok(new);
    }
    let (before, after) = (place_views(old)?, place_views(&new)?);
    let roots = |i: usize| {
        let (old, new) = (old.outputs[i].value, new.outputs[i].value);
        (before.root(old), after.root(new))
    };
    let mut first: HashMap<ValueId, ValueId> = HashMap::new();
    let mut shared = Vec::new();
    for &i in &own {
        let (was, is) = roots(i);
        if *first.entry(is).or_insert(was) != was {
            shared.push(i);
        }
    }
    let mut clones: HashMap<ValueId, ValueId> = HashMap::new();
    for i in shared {
        let value = new.outputs[i].value;
        let clone = *clones.entry(old.outputs[i].value).or_insert_with(|| {
            let mut data = Value::new(new.values[value].ty.clone());
            data.layout = new.values[value].layout.clone();
            let out = new.values.push(data);
            new.nodes.push(Node {
                op: Op::Clone,
                inputs: vec![value],
                outputs: vec![out],
                origin: Origin::default(),
            });
            out
        });
        new.outputs[i].value = clone;
    }
    Ok(new)
}
