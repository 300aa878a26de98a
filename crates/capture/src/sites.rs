//! Attention that rules found in a program of the host's, as calls for the host's graph.
//!
//! The rules rewrite GRAPH; the host keeps its own graph. What a rule made of each attention is said as nodes that the host can put in: a few of its own operators for views and masks, and between them calls
//! that have no operator of one name everywhere, since the host itself knows which of its fused kernels takes these operands. As JSON:
//!
//! ```text
//! {"version": 1, "sites": [
//!   {"new":     [{"name": "oxyfuel_view_0", "target": "aten.view.default", "args": [{"node": "q"}, [1, 8, 64, 32]], "kwargs": {}, "before": "bmm_1"},
//!                {"name": "oxyfuel_attention_0", "target": "oxyfuel.attention", "args": [Q, K, V, MASK or null, CAUSAL, SCALE], "kwargs": {}, "before": "bmm_1"},
//!                {"name": "oxyfuel_attention_backward_0", "target": "oxyfuel.attention_backward", "args": ["oxyfuel_attention_0", GRAD], "kwargs": {}, "before": "bmm_2"}],
//!    "replace": [{"value": {"node": "bmm_1"}, "with": {"node": "oxyfuel_attention_0", "index": 0}}]}]}
//! ```
//!
//! `oxyfuel.attention` gives the result, `oxyfuel.attention_backward` the gradients of queries, keys and values. A site is all or nothing: whoever cannot put in one of its nodes leaves the site alone. Attention whose sizes only a call knows is left out.

use crate::description::{Description, VERSION, Value};
use crate::export::{Argument, NewNode, Replace};
use crate::import::{Values, gpu};
use oxyfuel_base::{Arena, Expr, Id, Scalar};
use oxyfuel_graph::{Binary, Compare, Device, Graph, Node, NodeId, Op, Reduce, Unary, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that was found in one graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sites {
    pub version: u32,
    pub sites: Vec<Site>,
}

impl Default for Sites {
    fn default() -> Self {
        Self {
            version: VERSION,
            sites: Vec::new(),
        }
    }
}

/// One attention, with its gradients where they were found. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Site {
    pub new: Vec<NewNode>,
    pub replace: Vec<Replace>,
}

/// What rules made of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Rewritten<'r> {
    pub graph: &'r Graph,
    /// For each value of the graph before the one that stands for it.
    pub stands: &'r [Option<ValueId>],
    /// The values of the graph before that are computed otherwise: of each site the result first, then gradients.
    pub sites: &'r [Vec<ValueId>],
}

/// The calls that compute what the rules changed.
pub fn sites(description: &Description, values: &Values, rewritten: Rewritten<'_>) -> Sites {
    let Rewritten { stands, sites, .. } = rewritten;
    let mut host: FxHashMap<ValueId, Vec<(&str, usize)>> = FxHashMap::default();
    let mut names: FxHashMap<ValueId, (&str, usize)> = FxHashMap::default();
    for (name, index, old) in &values.names {
        host.entry(*old).or_default().push((name, *index));
        if let Some(new) = stands[old.index()] {
            names.entry(new).or_insert((name, *index));
        }
    }
    let order: FxHashMap<&str, usize> = description
        .nodes
        .iter()
        .enumerate()
        .map(|(i, node)| (node.name.as_str(), i))
        .collect();
    let sequences: FxHashSet<&str> = description
        .nodes
        .iter()
        .filter(|node| node.sequence)
        .map(|node| node.name.as_str())
        .collect();
    let mut made = Vec::new();
    for site in sites {
        let own: FxHashSet<ValueId> = site.iter().filter_map(|v| stands[v.index()]).collect();
        let mut teller = Teller {
            graph: rewritten.graph,
            definitions: rewritten.graph.definitions(),
            names: &names,
            sequences: &sequences,
            own,
            told: FxHashMap::default(),
            attention: FxHashMap::default(),
            count: made.len(),
            new: Vec::new(),
            before: String::new(),
        };
        let old = |v: ValueId| {
            host.get(&v)?
                .iter()
                .find(|(name, _)| order.contains_key(name))
                .copied()
        };
        let Some(hosts) = site.iter().map(|&v| old(v)).collect::<Option<Vec<_>>>() else {
            continue;
        };
        // A gradient is made where the first of them was.
        let first = hosts[1..].iter().min_by_key(|(name, _)| order[name]);
        let mut replace = Vec::new();
        for (i, (&value, &(name, index))) in site.iter().zip(&hosts).enumerate() {
            let (before, _) = if i == 0 {
                (name, index)
            } else {
                *first.unwrap_or(&(name, index))
            };
            teller.before = before.to_owned();
            let Some(with) = stands[value.index()].and_then(|new| teller.computed(new)) else {
                break;
            };
            replace.push(Replace {
                value: teller.named((name, index)),
                with,
            });
        }
        if replace.len() == site.len() {
            made.push(Site {
                new: teller.new,
                replace,
            });
        }
    }
    Sites {
        version: VERSION,
        sites: made,
    }
}

/// Says values of the new graph in the host's words.
struct Teller<'t> {
    graph: &'t Graph,
    definitions: Arena<ValueId, Option<NodeId>>,
    /// Values that the host has.
    names: &'t FxHashMap<ValueId, (&'t str, usize)>,
    sequences: &'t FxHashSet<&'t str>,
    /// Those of them that are to be computed otherwise.
    own: FxHashSet<ValueId>,
    told: FxHashMap<ValueId, Value>,
    /// The names of calls of attention, by what they give.
    attention: FxHashMap<ValueId, String>,
    /// How many sites there were before.
    count: usize,
    new: Vec<NewNode>,
    before: String,
}

impl Teller<'_> {
    fn named(&self, (name, index): (&str, usize)) -> Value {
        Value::Node {
            name: name.to_owned(),
            index: self.sequences.contains(name).then_some(index),
        }
    }

    /// A value as an argument.
    fn value(&mut self, value: ValueId) -> Option<Value> {
        match self.names.get(&value) {
            Some(&name) if !self.own.contains(&value) => Some(self.named(name)),
            _ => self.computed(value),
        }
    }

    /// A value as what nodes that the host lacks compute; `None` where the host has no word for one of them.
    fn computed(&mut self, value: ValueId) -> Option<Value> {
        if let Some(told) = self.told.get(&value) {
            return Some(told.clone());
        }
        let graph = self.graph;
        let node = &graph.nodes[self.definitions[value]?];
        let told = match &node.op {
            Op::Clone => self.value(node.inputs[0])?,
            Op::Sdpa { causal, scale } => self.attention(node, *causal, *scale)?,
            Op::SdpaBackward { .. } => self.attention_backward(node)?,
            _ => self.operator(node)?,
        };
        if node.outputs.len() == 1 {
            self.told.insert(value, told.clone());
            return Some(told);
        }
        let Value::Node { name, .. } = told else {
            return None;
        };
        for (index, &output) in node.outputs.iter().enumerate() {
            let part = Value::Node {
                name: name.clone(),
                index: Some(index),
            };
            self.told.insert(output, part);
        }
        self.told.get(&value).cloned()
    }

    fn attention(&mut self, node: &Node, causal: bool, scale: Scalar) -> Option<Value> {
        let mut args = self.values(&node.inputs)?;
        args.resize(4, Value::None);
        args.push(Value::Number(Scalar::B(causal)));
        args.push(Value::Number(scale));
        let told = self.call("oxyfuel.attention", args, BTreeMap::new());
        if let Value::Node { name, .. } = &told {
            self.attention.insert(node.outputs[0], name.clone());
        }
        Some(told)
    }

    fn attention_backward(&mut self, node: &Node) -> Option<Value> {
        let forward = self.attention.get(&node.inputs[4])?.clone();
        let grad = self.value(node.inputs[0])?;
        let args = vec![Value::Str(forward), grad];
        Some(self.call("oxyfuel.attention_backward", args, BTreeMap::new()))
    }

    /// Views and what masks are made of.
    fn operator(&mut self, node: &Node) -> Option<Value> {
        let mut args = self.values(&node.inputs)?;
        let mut kwargs = BTreeMap::new();
        let target = match &node.op {
            Op::View { shape } => {
                args.push(sizes(shape)?);
                "aten.view.default"
            }
            Op::Expand { shape } => {
                args.push(sizes(shape)?);
                "aten.expand.default"
            }
            Op::Permute { dims } => {
                args.push(numbers(dims));
                "aten.permute.default"
            }
            Op::Cast { dtype } => {
                kwargs.insert(
                    "dtype",
                    Argument::Value(Value::DType(dtype.torch_name().into())),
                );
                "aten._to_copy.default"
            }
            Op::Full {
                value,
                shape,
                dtype,
                device,
            } => {
                args.extend([sizes(shape)?, Value::Number(*value)]);
                kwargs.insert(
                    "dtype",
                    Argument::Value(Value::DType(dtype.torch_name().into())),
                );
                kwargs.insert(
                    "device",
                    Argument::Value(Value::Device(device_name(*device)?)),
                );
                "aten.full.default"
            }
            Op::Reduce { op, dims, keepdim } => {
                args.extend([numbers(dims), Value::Number(Scalar::B(*keepdim))]);
                match op {
                    Reduce::Any => "aten.any.dims",
                    Reduce::Amax => "aten.amax.default",
                    Reduce::Mean => "aten.mean.dim",
                    Reduce::Sum => "aten.sum.dim_IntList",
                    Reduce::Prod | Reduce::Amin | Reduce::All => return None,
                }
            }
            Op::Where => "aten.where.self",
            Op::Compare(Compare::Eq) => "aten.eq.Tensor",
            Op::Unary(Unary::LogicalNot) => "aten.logical_not.default",
            Op::Binary(Binary::Add) => "aten.add.Tensor",
            Op::Binary(Binary::Div) => "aten.div.Tensor",
            _ => return None,
        };
        Some(self.call(target, args, kwargs))
    }

    fn values(&mut self, values: &[ValueId]) -> Option<Vec<Value>> {
        values.iter().map(|&v| self.value(v)).collect()
    }

    fn call(
        &mut self,
        target: &'static str,
        args: Vec<Value>,
        kwargs: BTreeMap<&'static str, Argument>,
    ) -> Value {
        let word = target.split('.').nth(1).unwrap_or(target);
        let name = format!("oxyfuel_{word}_{}_{}", self.count, self.new.len());
        self.new.push(NewNode {
            name: name.clone(),
            target,
            args,
            kwargs,
            before: self.before.clone(),
        });
        Value::Node { name, index: None }
    }
}

fn sizes(shape: &[Expr]) -> Option<Value> {
    let number = |n: &Expr| n.as_const().map(|n| Value::Number(Scalar::I(n)));
    Some(Value::List(
        shape.iter().map(number).collect::<Option<_>>()?,
    ))
}

fn numbers(dims: &[usize]) -> Value {
    let number = |&n: &usize| Value::Number(Scalar::I(n as i64));
    Value::List(dims.iter().map(number).collect())
}

/// The host's name.
fn device_name(device: Device) -> Option<String> {
    match device {
        Device::Cpu => Some("cpu".to_owned()),
        Device::Host => None,
        Device::Cuda(_) => gpu(device).map(|index| format!("cuda:{index}")),
    }
}
