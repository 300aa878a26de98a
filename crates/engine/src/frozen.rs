//! A graph with frozen inputs as two executables: one runs once, the other at every call with what the first one returned.

use std::sync::Arc;

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Device, Graph, Node, Op};
use oxyfuel_lower::{image_panels, image_workspace, packs_images, panel_columns};
use oxyfuel_runtime::tensor::Tensor;
use oxyfuel_transform::{freeze, operands};

use crate::cost::live;
use crate::executable::Executable;
use crate::record::Origin;
use crate::session::Compiler;

/// A convolution: the sizes of its images and of its weight, and its numbers.
pub type Windows = (Vec<i64>, Vec<i64>, Convolution);

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
    /// Convolutions that do.
    pub images: usize,
}

impl Frozen {
    /// Computes what is kept, from all inputs of the graph.
    pub fn prepare(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let read: Vec<&Tensor> = self.prepare_inputs.iter().map(|&i| inputs[i]).collect();
        self.prepare.run_once(&read)
    }

    /// In one sentence, for people.
    pub fn text(&self) -> String {
        let kept = self.prepare.plan().outputs.len();
        let (packed, read) = (self.packed, self.prepare_inputs.len());
        let convolutions = match self.images {
            0 => String::new(),
            images => format!(" and {images} convolutions"),
        };
        format!(
            "frozen: {kept} values are computed once, of {read} inputs; {packed} products{convolutions} read weights in panels"
        )
    }
}

impl Compiler {
    /// Whether a graph's convolutions of one type, each with the sizes of images and weight, are computed by kernels that read panels: all have one, and where weights are not frozen, or a matrix unit reads them, panels are worth making at every call.
    pub fn packs_convolutions(&self, all: &[Windows], dtype: DType, frozen: bool) -> Result<bool> {
        let mut b = Builder::new("convolutions");
        let sizes = |shape: &[i64]| shape.iter().copied().map(Expr::constant).collect();
        let mut inputs = Vec::with_capacity(all.len());
        for (x, weight, how) in all {
            let x = b.input("x", dtype, sizes(x), Device::Cpu)?;
            let weight = b.input("weight", dtype, sizes(weight), Device::Cpu)?;
            inputs.push((x, weight, how));
        }
        for (x, weight, how) in inputs {
            let out = b.convolution(x, weight, None, how)?;
            b.output(out);
        }
        let graph = b.finish()?;
        let desc = &self.target().desc;
        let is_convolution = |node: &&Node| matches!(node.op, Op::Convolution { .. });
        let mut nodes = graph.nodes.values().filter(is_convolution);
        Ok(match frozen && dtype.size() >= 4 {
            true => nodes.all(|node| image_panels(&graph, node, desc).is_some()),
            false => packs_images(&graph, desc),
        })
    }

    /// Whether a graph's convolutions make panels of their weights at every call, and hold no more with them than the program does somewhere one operator at a time.
    pub fn packs_images(&self, graph: &Graph) -> Result<bool> {
        let desc = &self.target().desc;
        if !packs_images(graph, desc) {
            return Ok(false);
        }
        let live = live(graph)?;
        let held = |(node, &at): (&Node, &i64)| {
            let panels = image_workspace(graph, node, desc)?;
            Some(panels.saturating_add(at))
        };
        let mut all = graph.nodes.values().zip(&live.at);
        Ok(all.all(|here| held(here).is_none_or(|held| held <= live.most)))
    }

    /// Compiles a graph with frozen inputs; `None` where nothing follows from them alone that is worth keeping. Plans hold no weights: what is kept is the caller's.
    pub fn compile_frozen(&self, graph: &Graph) -> Result<Option<Frozen>> {
        oxyfuel_graph::verify(graph)?;
        let desc = &self.target().desc;
        let products = |graph: &Graph, node: &Node| panel_columns(graph, node, desc);
        let convolutions = |graph: &Graph, node: &Node| image_panels(graph, node, desc);
        // Casts and scales of weights are where products take them, so that those of few rows read bytes.
        let moved = match desc.is_simt() {
            true => None,
            false => Some(operands(graph.clone())?),
        };
        let graph = moved.as_ref().unwrap_or(graph);
        let Some(split) = freeze(graph, &products, &convolutions)? else {
            return Ok(None);
        };
        let count = |is: fn(&&Node) -> bool| split.main.nodes.values().filter(is).count();
        let (main, origin) = self.find_or_compile(&split.main)?;
        Ok(Some(Frozen {
            packed: count(|node| matches!(node.op, Op::MmPanels { .. })),
            images: count(|node| matches!(node.op, Op::ConvPanels { .. })),
            prepare: self.compile(&split.prepare)?,
            prepare_inputs: split.prepare_inputs,
            main,
            main_inputs: split.main_inputs,
            origin,
        }))
    }
}
