//! What rules found, as edits of the host's graph.
//!
//! Rules on a joint graph (forward and backward before they are cut) run on GRAPH; the host's cut runs on its own graph. So the way back does not write
//! the graph anew: it says which of the host's values are others of the host's values, and which nodes nobody needs then. Everything else stays what it is, with all that the
//! host hung on it. As JSON:
//!
//! ```text
//! {"version": 1,
//!  "new":     [{"name": "oxyfuel_0", "target": "aten.add.Tensor", "args": [A..], "kwargs": {..}, "results": [R..], "before": "mul_3"}],
//!  "replace": [{"value": {"node": "mul_3"}, "with": {"node": "mul_1"}}],
//!  "remove":  ["mul_3"]}
//! ```
//!
//! `new` nodes (an operator of the host or `oxyfuel.*`, described as in [`crate::description`]) come first, each before the node it names. Then every use of `value`
//! becomes a use of `with`, which the host's graph defines earlier; `{"node": n, "index": i}` is a part of a sequence. Then the nodes of `remove` go, in the
//! order given: each is unused when its turn comes. No rule of today makes new nodes.
//!
//! A value is replaced only by one of the same dtype, shape and strides, and never where it is a result of the graph or written over an input: those are tensors of their own.

use crate::description::{Description, Item, Node, Type, Value};
use crate::import::Values;
use oxyfuel_base::{Expr, Id, Result, Symbol, ensure};
use oxyfuel_graph::ValueId;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeSet;

/// Edits of the host's graph. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edits {
    pub version: u32,
    pub new: Vec<NewNode>,
    pub replace: Vec<Replace>,
    pub remove: Vec<String>,
}

/// A node that the host's graph lacks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewNode {
    pub name: String,
    pub target: String,
    pub args: Vec<Value>,
    /// The node it comes before.
    pub before: String,
}

/// A value that another one holds too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replace {
    pub value: Value,
    pub with: Value,
}

/// A result of the description: name and index.
type Name<'d> = (&'d str, usize);

/// The edits that follow from equal values: `same[v]` is the first value that holds what `v` holds.
pub fn export(description: &Description, values: &Values, same: &[ValueId]) -> Result<Edits> {
    ensure!(
        same.len() == values.graph.values.len(),
        InvalidArgument,
        "{} answers for {} values",
        same.len(),
        values.graph.values.len()
    );
    let types = types(description);
    let kept = kept(description);
    // The first name of each value comes earlier in the host's graph than all others.
    let mut first: FxHashMap<ValueId, Vec<Name<'_>>> = FxHashMap::default();
    let mut other: FxHashMap<Name<'_>, Name<'_>> = FxHashMap::default();
    let mut replace = vec![];
    for (name, index, id) in &values.names {
        let name: Name<'_> = (name, *index);
        let Some(ty) = types.get(&name) else { continue };
        let names = first.entry(same[id.index()]).or_default();
        let found = names.iter().find(|known| types.get(*known) == Some(ty));
        match found {
            Some(&known) if !kept.contains(&name) => {
                other.insert(name, known);
                replace.push(Replace {
                    value: value_of(description, name),
                    with: value_of(description, known),
                });
            }
            Some(_) => {}
            None => names.push(name),
        }
    }
    Ok(Edits {
        version: crate::description::VERSION,
        new: vec![],
        replace,
        remove: unused(description, &other, &kept),
    })
}

fn types(description: &Description) -> FxHashMap<Name<'_>, &Type> {
    let inputs = description
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), std::slice::from_ref(&input.item)));
    let nodes = description
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.results.as_slice()));
    let mut out = FxHashMap::default();
    for (name, items) in inputs.chain(nodes) {
        for (i, item) in items.iter().enumerate() {
            if let Item::Tensor { ty } = item {
                out.insert((name, i), ty);
            }
        }
    }
    out
}

/// Values that must stay themselves: results of the graph, and what is written over inputs.
fn kept(description: &Description) -> FxHashSet<Name<'_>> {
    let mut out = FxHashSet::default();
    let written = description.mutations.iter().map(|m| &m.value);
    for value in description.outputs.iter().chain(written) {
        visit(value, &mut |name| {
            out.insert(name);
        });
    }
    out
}

/// How an argument names a result: with an index only where the node gives a sequence.
fn value_of(description: &Description, (name, index): Name<'_>) -> Value {
    let sequence = description
        .nodes
        .iter()
        .any(|node| node.name == name && node.sequence);
    Value::Node {
        name: name.to_owned(),
        index: sequence.then_some(index),
    }
}

fn visit<'d>(value: &'d Value, see: &mut impl FnMut(Name<'d>)) {
    match value {
        Value::Node { name, index } => see((name, index.unwrap_or(0))),
        Value::List(items) | Value::Tuple(items) => items.iter().for_each(|i| visit(i, see)),
        Value::None
        | Value::Number(_)
        | Value::Str(_)
        | Value::Expr(_)
        | Value::DType(_)
        | Value::Device(_)
        | Value::Layout(_)
        | Value::MemoryFormat(_)
        | Value::Object(_) => {}
    }
}

/// The nodes that nobody reads after the replacements, users before what they use. Calls with effects, and calls that tell sizes, stay.
fn unused(
    description: &Description,
    other: &FxHashMap<Name<'_>, Name<'_>>,
    kept: &FxHashSet<Name<'_>>,
) -> Vec<String> {
    let mut read: FxHashSet<&str> = kept.iter().map(|(name, _)| *name).collect();
    let known = told_by_inputs(description);
    let mut remove = vec![];
    for node in description.nodes.iter().rev() {
        if !read.contains(node.name.as_str()) && !has_effects(node, &known) {
            remove.push(node.name.clone());
            continue;
        }
        let named = node.kwargs.iter().map(|(_, value)| value);
        for value in node.args.iter().chain(named) {
            visit(value, &mut |name| {
                read.insert(other.get(&name).copied().unwrap_or(name).0);
            });
        }
    }
    remove
}

fn has_effects(node: &Node, known: &BTreeSet<Symbol>) -> bool {
    let tells = |e: &Expr| e.as_symbol().is_some_and(|s| !known.contains(&s));
    node.ordered
        || node.results.iter().any(|item| match item {
            Item::Int { value } => tells(value),
            Item::Tensor { ty } => ty.shape.iter().any(tells),
            Item::Object | Item::None => false,
        })
}

/// Symbols that the inputs tell.
fn told_by_inputs(description: &Description) -> BTreeSet<Symbol> {
    let mut out = BTreeSet::new();
    for input in &description.inputs {
        match &input.item {
            Item::Int { value } => out.extend(value.symbols()),
            Item::Tensor { ty } => out.extend(ty.shape.iter().flat_map(Expr::symbols)),
            Item::Object | Item::None => {}
        }
    }
    out
}
