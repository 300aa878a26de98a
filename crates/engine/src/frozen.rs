//! A graph with frozen inputs as two executables: one runs once, the other at every call with what the first one returned.

use std::sync::Arc;

use oxyfuel_base::Result;
use oxyfuel_graph::{Graph, Op};
use oxyfuel_lower::panel_columns;
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_transform::freeze;

use crate::executable::Executable;
use crate::record::Origin;
use crate::session::Compiler;

/// What a graph with frozen inputs became.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// Computes what is kept, from these inputs of the graph, by position.
    pub prepare: Arc<Executable>,
    pub prepare_inputs: Vec<usize>,
    /// Runs at every call, with these inputs of the graph and then what is kept.
    pub main: Arc<Executable>,
    pub main_inputs: Vec<usize>,
    pub origin: Origin,
    /// Products that read panels.
    pub packed: usize,
}

impl Frozen {
    /// Computes what is kept, from all inputs of the graph.
    pub fn prepare(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let read: Vec<&Tensor> = self.prepare_inputs.iter().map(|&i| inputs[i]).collect();
        self.prepare.run(&read)
    }

    /// In one sentence, for people.
    pub fn text(&self) -> String {
        let kept = self.prepare.plan().outputs.len();
        let (packed, read) = (self.packed, self.prepare_inputs.len());
        format!(
            "frozen: {kept} values are computed once, of {read} inputs; {packed} products read weights in panels"
        )
    }
}

impl Compiler {
    /// Compiles a graph with frozen inputs; `None` where nothing follows from them alone that is worth keeping. Plans hold no weights: what is kept is the caller's.
    pub fn compile_frozen(&self, graph: &Graph) -> Result<Option<Frozen>> {
        oxyfuel_graph::verify(graph)?;
        let desc = &self.target().desc;
        let panels = |graph: &Graph, node: &oxyfuel_graph::Node| panel_columns(graph, node, desc);
        let Some(split) = freeze(graph, &panels)? else {
            return Ok(None);
        };
        let packs = |node: &&oxyfuel_graph::Node| matches!(node.op, Op::MmPanels { .. });
        let (main, origin) = self.find_or_compile(&split.main)?;
        Ok(Some(Frozen {
            packed: split.main.nodes.values().filter(packs).count(),
            prepare: self.compile(&split.prepare)?,
            prepare_inputs: split.prepare_inputs,
            main,
            main_inputs: split.main_inputs,
            origin,
        }))
    }
}
