//! A graph run eagerly: one executable an op, each result in memory of its own. What compiling is compared with.
//!
//! Numbers (`full` without dimensions) go into the op that reads them, as in eager PyTorch, where they are arguments. Views move nothing. Everything is compiled
//! before the first run, so that a run times execution alone.

use std::sync::Arc;

use oxyfuel_base::{Expr, Result, err};
use oxyfuel_engine::{Compiler, Executable};
use oxyfuel_graph::{Builder, Graph, HostTensor, Layout, NodeId, Op, Value, ValueId};
use oxyfuel_runtime::tensor::Tensor;

/// The ops of a graph, in order, ready to run.
#[derive(Debug)]
pub struct Eager {
    steps: Vec<Step>,
    /// How many values the graph has, and which are its inputs and outputs.
    values: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

#[derive(Debug)]
struct Step {
    executable: Arc<Executable>,
    reads: Vec<usize>,
    writes: Vec<usize>,
    /// Values that nobody reads afterwards.
    last_use: Vec<usize>,
}

impl Eager {
    /// Compiles every op for the strides that it meets, which one run on real inputs tells.
    pub fn new(graph: &Graph, compiler: &Compiler, inputs: &[&Tensor]) -> Result<Self> {
        use oxyfuel_base::Id;
        let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
        for (&input, &tensor) in graph.inputs.iter().zip(inputs) {
            values[input.index()] = Some(tensor.clone());
        }
        let nodes: Vec<NodeId> = graph
            .live_nodes()
            .into_iter()
            .filter(|&node| !is_number(graph, node))
            .collect();
        let mut steps = Vec::new();
        for (at, &node) in nodes.iter().enumerate() {
            let (single, reads) = single(graph, node, &values)?;
            let executable = compiler.compile(&single)?;
            let step = Step {
                executable,
                reads: reads.iter().map(|v| v.index()).collect(),
                writes: graph.nodes[node]
                    .outputs
                    .iter()
                    .map(|v| v.index())
                    .collect(),
                last_use: reads
                    .iter()
                    .filter(|v| {
                        let later = nodes[at + 1..]
                            .iter()
                            .any(|&n| graph.nodes[n].inputs.contains(v));
                        !later && !graph.outputs.iter().any(|o| o.value == **v)
                    })
                    .map(|v| v.index())
                    .collect(),
            };
            step.run(&mut values, false)?;
            steps.push(step);
        }
        Ok(Self {
            steps,
            values: graph.values.len(),
            inputs: graph.inputs.iter().map(|v| v.index()).collect(),
            outputs: graph.outputs.iter().map(|o| o.value.index()).collect(),
        })
    }

    pub fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut values: Vec<Option<Tensor>> = vec![None; self.values];
        for (&at, &tensor) in self.inputs.iter().zip(inputs) {
            values[at] = Some(tensor.clone());
        }
        for step in &self.steps {
            step.run(&mut values, true)?;
        }
        self.outputs
            .iter()
            .map(|&at| values[at].clone().ok_or_else(|| missing(at)))
            .collect()
    }

    /// Kernels of a run; views have none.
    pub fn kernels(&self) -> usize {
        self.steps
            .iter()
            .map(|s| s.executable.plan().kernels.len())
            .sum()
    }
}

impl Step {
    fn run(&self, values: &mut [Option<Tensor>], release: bool) -> Result<()> {
        let reads = self
            .reads
            .iter()
            .map(|&at| values[at].as_ref().ok_or_else(|| missing(at)))
            .collect::<Result<Vec<_>>>()?;
        let results = self.executable.run(&reads)?;
        for (&at, result) in self.writes.iter().zip(results) {
            values[at] = Some(result);
        }
        if release {
            for &at in &self.last_use {
                values[at] = None;
            }
        }
        Ok(())
    }
}

fn missing(value: usize) -> oxyfuel_base::Error {
    err!(Internal, "value {value} was not computed")
}

/// A number rather than a tensor: no kernel of its own.
fn is_number(graph: &Graph, node: NodeId) -> bool {
    let node = &graph.nodes[node];
    match &node.op {
        Op::Full { shape, .. } => shape.is_empty(),
        Op::ScalarTensor { .. } => true,
        _ => false,
    }
}

/// A graph of one node and the numbers it reads, for operands laid out as these; and the values it reads.
fn single(graph: &Graph, id: NodeId, values: &[Option<Tensor>]) -> Result<(Graph, Vec<ValueId>)> {
    use oxyfuel_base::Id;
    let node = &graph.nodes[id];
    let definitions = graph.definitions();
    let mut builder = Builder::new(node.op.name().trim_start_matches('_'));
    let mut reads: Vec<ValueId> = Vec::new();
    let mut mapped: Vec<(ValueId, ValueId)> = Vec::new();
    let number = |v: ValueId| definitions[v].filter(|&n| is_number(graph, n));
    for &operand in &node.inputs {
        if mapped.iter().any(|(old, _)| *old == operand) || number(operand).is_some() {
            continue;
        }
        let tensor = values[operand.index()]
            .as_ref()
            .ok_or_else(|| missing(operand.index()))?;
        let mut value = Value::new(graph.ty(operand).clone());
        value.layout = Layout::Required(
            tensor
                .strides()
                .iter()
                .map(|&s| Expr::constant(s))
                .collect(),
        );
        value.name = Some(format!("x{}", reads.len()));
        mapped.push((operand, builder.input_value(value)?));
        reads.push(operand);
    }
    for &operand in &node.inputs {
        if let Some(n) = number(operand)
            && !mapped.iter().any(|(old, _)| *old == operand)
        {
            let made = builder.node(graph.nodes[n].op.clone(), &[])?;
            mapped.push((operand, made[0]));
        }
    }
    let operands: Vec<ValueId> = node
        .inputs
        .iter()
        .filter_map(|v| mapped.iter().find(|(old, _)| old == v).map(|(_, new)| *new))
        .collect();
    let results = match &node.op {
        // It belongs to its graph.
        Op::Constant { id, device } => {
            let constant = &graph.constants[*id];
            let tensor = HostTensor::clone(&constant.tensor);
            vec![builder.constant(&constant.name, tensor, *device)?]
        }
        op => builder.node(op.clone(), &operands)?,
    };
    for result in results {
        builder.output(result);
    }
    Ok((builder.finish()?, reads))
}
