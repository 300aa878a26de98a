//! Reading a graph along its edges, and making a new one from an old.
//!
//! Passes take a graph and return a graph. Most walk the nodes of the old one in order and [`Rebuild`] the new one, copying a node or
//! putting something else in its place; small ones rewire uses with [`Graph::replace`] and let [`Graph::compact`] put the result
//! in order.

use crate::builder::Builder;
use crate::ir::{Graph, GraphOutput, Node, NodeId, Origin, SymbolInfo, TensorType, ValueId};
use oxyfuel_base::{Arena, Code, Digest, Error, Id, Ranges, Result, Symbol, digest_of};
use std::collections::BTreeMap;

/// What a size is taken for where nobody says what it is likely to be.
const LIKELY: i64 = 64;

/// Who reads each value.
#[derive(Clone, Debug)]
pub struct Users {
    nodes: Vec<Vec<NodeId>>,
    outputs: Vec<usize>,
}

impl Users {
    /// The nodes that read a value, each once, in order.
    pub fn of(&self, value: ValueId) -> &[NodeId] {
        &self.nodes[value.index()]
    }

    /// How many results of the graph a value is.
    pub fn outputs(&self, value: ValueId) -> usize {
        self.outputs[value.index()]
    }

    /// Readers of any kind.
    pub fn count(&self, value: ValueId) -> usize {
        self.of(value).len() + self.outputs(value)
    }
}

impl Graph {
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value].ty
    }

    /// The ranges of all symbols.
    pub fn ranges(&self) -> Ranges {
        let mut ranges = Ranges::default();
        for s in &self.symbols {
            ranges.set(s.symbol, s.min, s.max);
        }
        ranges
    }

    /// What each symbol is likely to be: its hint, or a middling size within its range. For decisions about speed.
    pub fn guesses(&self) -> BTreeMap<Symbol, i64> {
        let guess = |s: &SymbolInfo| s.hint.unwrap_or(LIKELY).max(s.min).min(s.max);
        self.symbols.iter().map(|s| (s.symbol, guess(s))).collect()
    }

    /// A digest of all that decides what the graph computes and how its values are laid out; where nodes came from does not count.
    pub fn digest(&self) -> Result<Digest> {
        let mut plain = self.clone();
        plain
            .nodes
            .values_mut()
            .for_each(|node| node.origin = Origin::default());
        digest_of(&plain)
    }

    /// The node that defines each value, `None` for inputs; indexed by value.
    pub fn definitions(&self) -> Arena<ValueId, Option<NodeId>> {
        let mut out: Arena<ValueId, Option<NodeId>> = self.values.ids().map(|_| None).collect();
        for (id, node) in self.nodes.iter() {
            for &v in &node.outputs {
                out[v] = Some(id);
            }
        }
        out
    }

    /// Who reads each value.
    pub fn users(&self) -> Users {
        let mut users = Users {
            nodes: vec![vec![]; self.values.len()],
            outputs: vec![0; self.values.len()],
        };
        for (id, node) in self.nodes.iter() {
            for v in &node.inputs {
                let list = &mut users.nodes[v.index()];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        for output in &self.outputs {
            users.outputs[output.value.index()] += 1;
        }
        users
    }

    /// The nodes some result depends on, in order.
    pub fn live_nodes(&self) -> Vec<NodeId> {
        let mut live = vec![false; self.values.len()];
        for output in &self.outputs {
            live[output.value.index()] = true;
        }
        let mut nodes: Vec<NodeId> = self
            .nodes
            .iter()
            .rev()
            .filter_map(|(id, node)| {
                let used = node.op.is_ordered() || node.outputs.iter().any(|v| live[v.index()]);
                if used {
                    node.inputs.iter().for_each(|v| live[v.index()] = true);
                }
                used.then_some(id)
            })
            .collect();
        nodes.reverse();
        nodes
    }

    /// Makes every reader of `old`, results of the graph included, read `new` instead.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        let swap = |v: &mut ValueId| {
            if *v == old {
                *v = new;
            }
        };
        self.nodes
            .values_mut()
            .flat_map(|n| &mut n.inputs)
            .for_each(swap);
        self.outputs.iter_mut().map(|o| &mut o.value).for_each(swap);
    }

    /// The same program without dead nodes and unused constants, nodes in an order of definition before use (otherwise as they stood),
    /// values renumbered accordingly. An error when a node depends on itself.
    pub fn compact(&self) -> Result<Graph> {
        let order = self.topological()?;
        let mut rebuild = Rebuild::new(self);
        for node in order {
            rebuild.copy(node)?;
        }
        let mut graph = rebuild.finish_as_is()?;
        graph.drop_unused_constants();
        Ok(graph)
    }

    /// Live nodes, operands first; an iterative depth-first walk, since graphs can be deep.
    fn topological(&self) -> Result<Vec<NodeId>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let definitions = self.definitions();
        let mut live = vec![false; self.nodes.len()];
        let mut pending: Vec<NodeId> = self
            .outputs
            .iter()
            .filter_map(|o| definitions[o.value])
            .collect();
        let ordered = self.nodes.iter().filter(|(_, node)| node.op.is_ordered());
        pending.extend(ordered.map(|(id, _)| id));
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut live[node.index()], true) {
                pending.extend(
                    self.nodes[node]
                        .inputs
                        .iter()
                        .filter_map(|&v| definitions[v]),
                );
            }
        }
        let mut marks = vec![Mark::New; self.nodes.len()];
        let mut order = vec![];
        for root in self.nodes.ids().filter(|n| live[n.index()]) {
            let mut stack = vec![root];
            while let Some(&node) = stack.last() {
                if marks[node.index()] == Mark::Done {
                    stack.pop();
                    continue;
                }
                marks[node.index()] = Mark::Open;
                let before = stack.len();
                for operand in self.nodes[node]
                    .inputs
                    .iter()
                    .rev()
                    .filter_map(|&v| definitions[v])
                {
                    match marks[operand.index()] {
                        Mark::Done => {}
                        Mark::New => stack.push(operand),
                        Mark::Open => {
                            return Err(Error::new(
                                Code::InvalidGraph,
                                format!("{node} depends on itself"),
                            ));
                        }
                    }
                }
                if stack.len() == before {
                    marks[node.index()] = Mark::Done;
                    order.push(node);
                    stack.pop();
                }
            }
        }
        Ok(order)
    }

    fn drop_unused_constants(&mut self) {
        let used: std::collections::BTreeSet<_> = self
            .nodes
            .values()
            .filter_map(|n| n.op.constant())
            .collect();
        if used.len() == self.constants.len() {
            return;
        }
        let kept: Vec<_> = used.into_iter().collect();
        self.constants = kept.iter().map(|&id| self.constants[id].clone()).collect();
        for node in self.nodes.values_mut() {
            if let crate::op::Op::Constant { id, .. } = &mut node.op
                && let Ok(position) = kept.binary_search(id)
            {
                *id = crate::ir::ConstId::from_index(position);
            }
        }
    }
}

impl crate::op::Op {
    /// The constant this op reads.
    pub fn constant(&self) -> Option<crate::ir::ConstId> {
        if let crate::op::Op::Constant { id, .. } = self {
            Some(*id)
        } else {
            None
        }
    }
}

/// Makes a new graph by walking an old one: inputs, symbols and constants are there from the start; nodes are copied or replaced.
#[derive(Debug)]
pub struct Rebuild<'a> {
    old: &'a Graph,
    /// For what takes a node's place; its nodes inherit the origin set by [`Rebuild::at`].
    pub builder: Builder,
    map: Vec<Option<ValueId>>,
}

impl<'a> Rebuild<'a> {
    pub fn new(old: &'a Graph) -> Self {
        let mut graph = Graph {
            name: old.name.clone(),
            symbols: old.symbols.clone(),
            constants: old.constants.clone(),
            ..Graph::default()
        };
        let mut map = vec![None; old.values.len()];
        for &v in &old.inputs {
            let new = graph.values.push(old.values[v].clone());
            graph.inputs.push(new);
            map[v.index()] = Some(new);
        }
        Self {
            old,
            builder: Builder::resume(graph),
            map,
        }
    }

    /// The new value that stands for an old one. An error when nothing defined it yet.
    pub fn get(&self, old: ValueId) -> Result<ValueId> {
        self.map.get(old.index()).copied().flatten().ok_or_else(|| {
            Error::new(
                Code::Internal,
                format!("{old} was not rebuilt before its use"),
            )
        })
    }

    /// New nodes come from where this old node came from.
    pub fn at(&mut self, node: NodeId) {
        self.builder
            .set_origin(Some(self.old.nodes[node].origin.clone()));
    }

    /// Lets a new value stand for an old one.
    pub fn define(&mut self, old: ValueId, new: ValueId) {
        self.map[old.index()] = Some(new);
    }

    /// Copies a node with all properties of its results.
    pub fn copy(&mut self, node: NodeId) -> Result<()> {
        self.copy_as(node, None)
    }

    /// Copies a node that was copied before: its result has a name of its own, which no other value has.
    pub fn copy_again(&mut self, node: NodeId, name: &str) -> Result<()> {
        self.copy_as(node, Some(name))
    }

    fn copy_as(&mut self, node: NodeId, name: Option<&str>) -> Result<()> {
        let Node {
            op,
            inputs,
            outputs,
            origin,
        } = &self.old.nodes[node];
        let inputs = inputs
            .iter()
            .map(|&v| self.get(v))
            .collect::<Result<Vec<_>>>()?;
        let values = outputs
            .iter()
            .map(|&v| {
                let mut value = self.old.values[v].clone();
                value.name = name.map(str::to_owned).or(value.name);
                value
            })
            .collect();
        let new = self
            .builder
            .push_raw(op.clone(), inputs, values, origin.clone());
        for (&old, new) in outputs.iter().zip(new) {
            self.define(old, new);
        }
        Ok(())
    }

    /// The new graph, without what became dead.
    pub fn finish(self) -> Result<Graph> {
        self.finish_as_is()?.compact()
    }

    /// The new graph with all that became dead, and for each old value the one that stands for it.
    pub fn finish_with_values(self) -> Result<(Graph, Vec<Option<ValueId>>)> {
        let values = self.map.clone();
        Ok((self.finish_as_is()?, values))
    }

    fn finish_as_is(self) -> Result<Graph> {
        let mut outputs = Vec::with_capacity(self.old.outputs.len());
        for output in &self.old.outputs {
            outputs.push(GraphOutput {
                value: self.get(output.value)?,
                alias: output.alias,
            });
        }
        let mut graph = self.builder.into_graph();
        graph.outputs = outputs;
        Ok(graph)
    }
}
