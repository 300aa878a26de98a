//! The end of a trace: its graph with all inputs in front, its results, and the memory that it writes back.
//!
//! Results lie where eager results lie: a view of an argument comes back as a view of that argument, and two results on the same memory share it.

use super::memory::{self, Content, Input, Place};
use super::{Open, Trace};
use crate::core::{Returned, Template};
use oxyfuel_base::{Arena, DType, Expr, Result, Symbol, err};
use oxyfuel_graph::{
    AttrValue, Builder, Graph, GraphOutput, Layout, Node, Op, TensorType, Value, ValueId,
};
use oxyfuel_runtime::tensor as rt;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What a function did, as one graph.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Inputs are the arguments, then the captured tensors. Behind the results stand the new contents of inputs that the function wrote.
    pub graph: Graph,
    /// The captured tensors.
    pub tensors: Vec<rt::Tensor>,
    /// Symbols that are no size of an input: behind the captured tensors stands a tensor for each, which has that size.
    pub sizes: Vec<Symbol>,
    /// What the function returned.
    pub results: Vec<Out>,
    /// The structure that it was returned in.
    pub template: Option<Template>,
}

/// Where a result is found after a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Out {
    /// An output of the plan.
    Planned(usize),
    /// A view of an output of the plan.
    ViewOfPlanned(usize, Vec<Op>),
    /// A view of an input.
    ViewOfInput(usize, Vec<Op>),
}

impl Open {
    /// The graph, where the function was not cut.
    pub(super) fn finish(
        &mut self,
        trace: &Arc<Trace>,
        returned: Returned,
        all_results: bool,
    ) -> Result<Captured> {
        let mut found = Vec::with_capacity(returned.tensors.len());
        for tensor in &returned.tensors {
            found.push(self.operand(trace, tensor)?);
        }
        let mut planned: Vec<(usize, ValueId)> = Vec::new();
        let mut results = Vec::with_capacity(found.len());
        for (value, place) in &found {
            if all_results {
                planned.push((place.base, *value));
                results.push(Out::Planned(planned.len() - 1));
            } else {
                results.push(self.result(*value, place, &found, &mut planned)?);
            }
        }
        let outputs = planned.into_iter().map(|(_, value)| value).collect();
        let (graph, sizes) = self.close(outputs)?;
        let inputs = std::mem::take(&mut self.memory.inputs);
        let captured = inputs.into_iter().filter(|input| {
            let origin = &self.memory.bases[input.base].origin;
            origin.as_ref().is_none_or(|origin| !origin.is_argument)
        });
        Ok(Captured {
            graph,
            tensors: captured.map(|input| input.tensor).collect(),
            sizes,
            results,
            template: returned.template,
        })
    }

    fn result(
        &mut self,
        value: ValueId,
        place: &Place,
        all: &[(ValueId, Arc<Place>)],
        planned: &mut Vec<(usize, ValueId)>,
    ) -> Result<Out> {
        let base = place.base;
        if self.memory.bases[base].origin.is_some() {
            let mut inputs = self.memory.inputs.iter();
            let input = inputs.position(|input| input.base == base);
            let input =
                input.ok_or_else(|| err!(Internal, "a result on memory that is no input"))?;
            return Ok(Out::ViewOfInput(input, place.views.clone()));
        }
        if let Some(known) = planned.iter().position(|(of, _)| *of == base) {
            return Ok(Out::ViewOfPlanned(known, place.views.clone()));
        }
        // A part of memory that nobody else sees is all that has to be computed of it.
        let alone = all.iter().filter(|(_, other)| other.base == base).count() == 1;
        if alone {
            planned.push((base, value));
            return Ok(Out::Planned(planned.len() - 1));
        }
        planned.push((base, self.memory.content(&mut self.builder, base)?));
        Ok(Out::ViewOfPlanned(planned.len() - 1, place.views.clone()))
    }

    /// The graph of all that was noted, with these results and the contents of written inputs behind them; and the symbols that are no size of an input, for each of which it has one more.
    pub(super) fn close(&mut self, outputs: Vec<ValueId>) -> Result<(Graph, Vec<Symbol>)> {
        let inputs = &self.memory.inputs;
        let mut taken: HashSet<ValueId> = HashSet::new();
        let mut list: Vec<(ValueId, Option<usize>)> =
            outputs.into_iter().map(|value| (value, None)).collect();
        for (i, input) in inputs.iter().enumerate() {
            let base = &self.memory.bases[input.base];
            if let (true, Content::Value(value)) = (base.written, &base.content) {
                list.push((*value, Some(i)));
            }
        }
        let mut results = Vec::with_capacity(list.len());
        for (value, alias) in list {
            // Memory of its own for each: an output must not be what another output or an input is.
            let (root, views) = memory::views(self.builder.graph(), value, &|_| false);
            let held = inputs.iter().any(|input| input.held == root);
            let shared = !taken.insert(root) || held || alias.is_some() && !views.is_empty();
            let own = if shared {
                self.builder.emit(Op::Clone, &[value])?
            } else {
                value
            };
            results.push(GraphOutput { value: own, alias });
        }
        let closed = hoist(self.builder.graph(), &self.memory.inputs, &results)?;
        self.builder = Builder::new(closed.0.name.clone());
        self.declare();
        Ok(closed)
    }
}

/// The symbols that a graph with these inputs depends on.
fn used(graph: &Graph, inputs: &[Input]) -> BTreeSet<Symbol> {
    let mut found = BTreeSet::new();
    let mut add = |e: &Expr| found.extend(e.symbols());
    for input in inputs {
        input.border.ty.shape.iter().for_each(&mut add);
        let strides = input.border.layout.strides().unwrap_or_default();
        strides.iter().for_each(&mut add);
    }
    for node in graph.nodes.values() {
        for attr in node.op.attrs() {
            if let AttrValue::Expr(e) = &attr {
                add(e);
            }
        }
        let types = node.outputs.iter().map(|&out| graph.ty(out));
        types.flat_map(|ty| &ty.shape).for_each(&mut add);
    }
    found
}

/// The graph with held places as inputs, and its results; behind the inputs one for each symbol that is no size of theirs.
fn hoist(graph: &Graph, inputs: &[Input], results: &[GraphOutput]) -> Result<(Graph, Vec<Symbol>)> {
    let used = used(graph, inputs);
    let symbols = graph.symbols.iter();
    let mut out = Graph {
        name: graph.name.clone(),
        symbols: symbols
            .filter(|info| used.contains(&info.symbol))
            .cloned()
            .collect(),
        constants: graph.constants.clone(),
        values: Arena::new(),
        nodes: Arena::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
    };
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    let mut names: HashSet<String> = HashSet::new();
    for (i, input) in inputs.iter().enumerate() {
        let mut border = input.border.clone();
        border.name = border.name.map(|name| identifier(&name));
        if let Some(name) = &mut border.name
            && !names.insert(name.clone())
        {
            *name = format!("{name}_{i}");
            names.insert(name.clone());
        }
        let id = out.values.push(border);
        out.inputs.push(id);
        new.insert(input.held, id);
    }
    let extents = inputs.iter().flat_map(|input| &input.border.ty.shape);
    let told: BTreeSet<Symbol> = extents.filter_map(Expr::as_symbol).collect();
    let sizes: Vec<Symbol> = used.difference(&told).copied().collect();
    let device = inputs.first().map(|input| input.border.ty.device);
    for &symbol in &sizes {
        let ty = TensorType::new(
            DType::U8,
            vec![Expr::from(symbol)],
            device.unwrap_or_default(),
        );
        let id = out.values.push(Value {
            layout: Layout::Required(vec![Expr::ZERO]),
            ..Value::new(ty)
        });
        out.inputs.push(id);
    }
    let moved = |new: &HashMap<ValueId, ValueId>, old: &ValueId| {
        new.get(old)
            .copied()
            .ok_or_else(|| err!(Internal, "{old} is used before it is defined"))
    };
    for node in graph.nodes.values() {
        if node.outputs.iter().any(|output| new.contains_key(output)) {
            continue;
        }
        let inputs = node
            .inputs
            .iter()
            .map(|old| moved(&new, old))
            .collect::<Result<Vec<_>>>()?;
        let outputs = node.outputs.iter().map(|&old| {
            let id = out.values.push(graph.values[old].clone());
            new.insert(old, id);
            id
        });
        let outputs = outputs.collect();
        out.nodes.push(Node {
            op: node.op.clone(),
            inputs,
            outputs,
            origin: node.origin.clone(),
        });
    }
    for output in results {
        out.outputs.push(GraphOutput {
            value: moved(&new, &output.value)?,
            alias: output.alias,
        });
    }
    oxyfuel_graph::verify(&out)?;
    Ok((out, sizes))
}

/// A name that the text of a graph can have.
fn identifier(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut out: String = name.chars().map(word).collect();
    if !out.starts_with(|c: char| c.is_ascii_alphabetic()) {
        out.insert(0, 'x');
    }
    out
}

/// A chain of views on a tensor of this call.
pub(crate) fn replay(
    tensor: &rt::Tensor,
    views: &[Op],
    size: &dyn Fn(Symbol) -> Option<i64>,
) -> Result<rt::Tensor> {
    let number = |e: &Expr| e.eval(size);
    let numbers = |list: &[Expr]| list.iter().map(number).collect::<Result<Vec<_>>>();
    let mut out = tensor.clone();
    for op in views {
        out = match op {
            Op::View { shape } => out.reshape(&numbers(shape)?)?,
            Op::Permute { dims } => out.permute(dims)?,
            Op::Expand { shape } => out.expand(&numbers(shape)?)?,
            Op::Slice {
                dim,
                start,
                end,
                step,
            } => out.slice(*dim, number(start)?, number(end)?, *step)?,
            _ => return Err(err!(Internal, "{} is no view", op.name())),
        };
    }
    Ok(out)
}
