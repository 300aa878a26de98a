//! What rules found, as edits of the host's graph.
//!
//! Rules on a joint graph (forward and backward before they are cut) run on GRAPH; the host's cut runs on its own graph. So the way back does not write
//! the graph anew: it says which of the host's values are others of the host's values, and which nodes nobody needs then. Everything else stays what it is, with all that the
//! host hung on it. As JSON:
//!
//! ```text
//! {"version": 1,
//!  "new":     [{"name": "oxyfuel_seed", "target": "oxyfuel.seed.default", "args": [], "kwargs": {}, "before": "rand_like"},
//!              {"name": "oxyfuel_uniform_0", "target": "oxyfuel.uniform.default", "args": [{"node": "oxyfuel_seed"}, 0, 0.0, 1.0],
//!               "kwargs": {"size": {"sizes": "rand_like"}, "stride": null, "dtype": {"dtype": "float32"}}, "before": "rand_like"}],
//!  "replace": [{"value": {"node": "mul_3"}, "with": {"node": "mul_1"}}],
//!  "remove":  ["mul_3"]}
//! ```
//!
//! `new` nodes come first, each before the node it names; their arguments are written as in [`crate::description`], and `{"sizes": n}` and `{"strides": n}` stand for
//! those of the host's value n. Then every use of `value` becomes a use of `with`, which the host's graph defines earlier; `{"node": n, "index": i}` is a part of a
//! sequence. Then the nodes of `remove` go, in the order given: each is unused when its turn comes.
//!
//! New nodes are operators of ours ([`crate::ours`]). A node that draws random numbers in the forward half becomes a draw under a seed: the cut may then keep the seed and
//! draw again in the backward, where it had to keep every number. What the backward half alone draws stays, since each run of it must draw anew.
//!
//! A value is replaced only by one of the same dtype, shape and strides, and never where it is a result of the graph or written over an input: those are tensors of their own.

use crate::description::{Description, Item, Node, Type, Value};
use crate::import::{Drawn, Values, gpu, tensor_type};
use crate::ours;
use oxyfuel_base::{Expr, Id, Result, Scalar, Symbol, ensure};
use oxyfuel_graph::{ValueId, same_strides};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

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
    pub target: &'static str,
    pub args: Vec<Value>,
    pub kwargs: BTreeMap<&'static str, Argument>,
    /// The node it comes before.
    pub before: String,
}

/// An argument of a new node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Argument {
    /// The sizes of this node's value.
    Sizes(String),
    /// Its strides.
    Strides(String),
    #[serde(untagged)]
    Value(Value),
}

/// What rules found in a joint graph.
#[derive(Clone, Copy, Debug)]
pub struct Found<'f> {
    /// For each value the first one that holds what it holds.
    pub same: &'f [ValueId],
    /// How many results are the forward's: the first ones.
    pub forward: usize,
}

/// A value that another one holds too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replace {
    pub value: Value,
    pub with: Value,
}

/// A result of the description: name and index.
type Name<'d> = (&'d str, usize);

/// The edits that follow from what was found.
pub fn export(description: &Description, values: &Values, found: Found<'_>) -> Result<Edits> {
    let Found { same, forward } = found;
    ensure!(
        same.len() == values.graph.values.len(),
        InvalidArgument,
        "{} answers for {} values",
        same.len(),
        values.graph.values.len()
    );
    let types = types(description);
    let kept = kept(description);
    let draws = forward_draws(description, values, forward);
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
    let (new, drawn) = drawn_again(&draws, &types);
    replace.extend(drawn);
    Ok(Edits {
        version: crate::description::VERSION,
        new,
        replace,
        remove: unused(description, &other, &kept, &draws),
    })
}

/// The draws that results of the forward, or what is written over inputs, come of.
fn forward_draws<'v>(
    description: &Description,
    values: &'v Values,
    forward: usize,
) -> Vec<&'v Drawn> {
    if values.draws.is_empty() {
        return vec![];
    }
    let mut read: FxHashSet<&str> = FxHashSet::default();
    let results = description.outputs.iter().take(forward);
    let written = description.mutations.iter().map(|m| &m.value);
    for value in results.chain(written) {
        visit(value, &mut |(name, _)| {
            read.insert(name);
        });
    }
    for node in description.nodes.iter().rev() {
        if read.contains(node.name.as_str()) {
            for value in arguments(node) {
                visit(value, &mut |(name, _)| {
                    read.insert(name);
                });
            }
        }
    }
    let draws = values.draws.iter();
    draws.filter(|d| read.contains(d.node.as_str())).collect()
}

/// The nodes that draw under a seed, and what they take the place of.
fn drawn_again(
    draws: &[&Drawn],
    types: &FxHashMap<Name<'_>, &Type>,
) -> (Vec<NewNode>, Vec<Replace>) {
    let value = |name: &str| Value::Node {
        name: name.to_owned(),
        index: None,
    };
    let (mut new, mut replace) = (vec![], vec![]);
    for draw in draws {
        let ty = types.get(&(draw.node.as_str(), 0));
        let Some((ty, tensor)) = ty.and_then(|ty| Some((ty, tensor_type(ty)?))) else {
            continue;
        };
        if new.is_empty() {
            new.push(NewNode {
                name: "oxyfuel_seed".to_owned(),
                target: ours::SEED,
                args: vec![],
                // The host's own memory is where it puts a tensor unasked.
                kwargs: gpu(tensor.device)
                    .map(|_| Argument::Value(Value::Device(ty.device.clone())))
                    .map(|device| ("device", device))
                    .into_iter()
                    .collect(),
                before: draw.node.clone(),
            });
        }
        let (target, spread) = ours::call_of(draw.how);
        let name = format!("oxyfuel_draw_{}", draw.stream);
        let stream = Value::Number(Scalar::I(i64::from(draw.stream)));
        let mut args = vec![value("oxyfuel_seed"), stream];
        args.extend(spread);
        let row_major = same_strides(&ty.shape, &ty.strides, &tensor.contiguous_strides());
        let stride = if row_major {
            Argument::Value(Value::None)
        } else {
            Argument::Strides(draw.node.clone())
        };
        replace.push(Replace {
            value: value(&draw.node),
            with: value(&name),
        });
        new.push(NewNode {
            name,
            target,
            args,
            kwargs: BTreeMap::from([
                ("size", Argument::Sizes(draw.node.clone())),
                ("stride", stride),
                ("dtype", Argument::Value(Value::DType(ty.dtype.clone()))),
            ]),
            before: draw.node.clone(),
        });
    }
    (new, replace)
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

fn arguments(node: &Node) -> impl Iterator<Item = &Value> {
    let named = node.kwargs.iter().map(|(_, value)| value);
    node.args.iter().chain(named)
}

pub(crate) fn visit<'d>(value: &'d Value, see: &mut impl FnMut(Name<'d>)) {
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
    draws: &[&Drawn],
) -> Vec<String> {
    let drawn: FxHashSet<&str> = draws.iter().map(|draw| draw.node.as_str()).collect();
    let mut read: FxHashSet<&str> = kept.iter().map(|(name, _)| *name).collect();
    let known = told_by_inputs(description);
    let mut remove = vec![];
    for node in description.nodes.iter().rev() {
        let name = node.name.as_str();
        let unread = !read.contains(name) && !has_effects(node, &known);
        if unread || drawn.contains(name) {
            remove.push(node.name.clone());
            continue;
        }
        for value in arguments(node) {
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
