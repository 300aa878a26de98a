//! Weights in the order in which kernels read them.
//!
//! ```text
//!   mm x, w             ─▶  mm_panels x, panels(w)                               w frozen
//!   convolution x, w    ─▶  permute ─▶ conv_panels .., panels(w) ─▶ permute      w frozen
//!   convolution x, w    ─▶  permute ─▶ conv_panels .., w ─▶ permute              the kernel makes panels at every call
//! ```
//!
//! The second operand of a product is cut into the panels that its kernel would make at every call. A convolution of images has a kernel that reads panels only with channels last; [`images`](crate::images) takes the permutations out from between two of them. Where
//! a convolution of the graph has none, all stay as they are: each change of order is a copy, and one costs more than a kernel gains.

use std::collections::BTreeMap;

use oxyfuel_base::{Expr, Id, Result};
use oxyfuel_graph::conv_panels::{ConvPanels, first, last};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Graph, Node, NodeId, Op, Rebuild, ValueId};

use crate::decompose::keep_name;
use crate::freeze::{From, sources};

/// What a machine's kernel for a node reads of its weight, where it reads panels.
pub type Reads<'a, T> = &'a dyn Fn(&Graph, &Node) -> Option<T>;

/// Cuts frozen operands into panels: those of products have so many columns, and so have those of convolutions, which may be of points.
pub(crate) fn pack(
    graph: &Graph,
    product: Reads<'_, i64>,
    convolution: Reads<'_, (i64, bool)>,
) -> Result<Graph> {
    let from = sources(graph);
    let packs = |a: ValueId, b: ValueId| {
        from[a.index()] == From::Varying && from[b.index()] == From::Frozen
    };
    let image = |node: &Node| {
        let panels = || convolution(graph, node);
        packs(node.inputs[0], node.inputs[1]).then(panels).flatten()
    };
    let mut all = graph.nodes.values();
    let images =
        all.all(|node| !matches!(node.op, Op::Convolution { .. }) || image(node).is_some());
    let mut pack = Pack::new(graph);
    for (id, node) in graph.nodes.iter() {
        pack.rebuild.at(id);
        let out = match (&node.op, &node.inputs[..]) {
            (Op::Mm, &[a, b]) if packs(a, b) => {
                let width = product(graph, node);
                width.map(|width| pack.product(a, b, None, width))
            }
            (Op::Addmm { beta, alpha }, &[bias, a, b])
                if beta.as_f64() == 1.0 && alpha.as_f64() == 1.0 && packs(a, b) =>
            {
                let width = product(graph, node);
                width.map(|width| pack.product(a, b, Some(bias), width))
            }
            (Op::Convolution { .. }, _) if images => image(node).map(|reads| {
                let panels = pack.panels(node.inputs[1], reads)?;
                pack.convolution(node, panels, reads.1)
            }),
            _ => None,
        };
        pack.put(id, node, out)?;
    }
    pack.rebuild.finish()
}

/// Convolutions of images with channels last, whose weights are brought into panels at every call: those for which `winograd` says whether the panels are of points.
pub fn pack_at_calls(graph: &Graph, winograd: Reads<'_, bool>) -> Result<Graph> {
    let mut pack = Pack::new(graph);
    for (id, node) in graph.nodes.iter() {
        pack.rebuild.at(id);
        let out = match node.op {
            Op::Convolution { .. } => winograd(graph, node).map(|winograd| {
                let weight = pack.rebuild.get(node.inputs[1])?;
                pack.convolution(node, weight, winograd)
            }),
            _ => None,
        };
        pack.put(id, node, out)?;
    }
    pack.rebuild.finish()
}

struct Pack<'a> {
    graph: &'a Graph,
    rebuild: Rebuild<'a>,
    /// Panels of a weight, by their columns and whether they are of points.
    cut: BTreeMap<(ValueId, i64, bool), ValueId>,
}

impl<'a> Pack<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            rebuild: Rebuild::new(graph),
            cut: BTreeMap::new(),
        }
    }

    /// The result of a node; without one, the node as it is.
    fn put(&mut self, id: NodeId, node: &Node, out: Option<Result<ValueId>>) -> Result<()> {
        let Some(out) = out else {
            return self.rebuild.copy(id);
        };
        let out = out?;
        keep_name(self.graph, node.out(), &mut self.rebuild.builder, out);
        self.rebuild.define(node.out(), out);
        Ok(())
    }

    fn product(
        &mut self,
        a: ValueId,
        b: ValueId,
        bias: Option<ValueId>,
        width: i64,
    ) -> Result<ValueId> {
        let panels = match self.cut.get(&(b, width, false)) {
            Some(&panels) => panels,
            None => {
                let whole = self.rebuild.get(b)?;
                self.rebuild.builder.panels(whole, width)?
            }
        };
        self.cut.insert((b, width, false), panels);
        let n = usize::try_from(self.known(b, 1)).unwrap_or(0);
        let a = self.rebuild.get(a)?;
        let bias = bias.map(|v| self.rebuild.get(v)).transpose()?;
        self.rebuild.builder.mm_panels(a, panels, n, bias)
    }

    /// The panels of a convolution's weight.
    fn panels(&mut self, weight: ValueId, (width, winograd): (i64, bool)) -> Result<ValueId> {
        let panels = match self.cut.get(&(weight, width, winograd)) {
            Some(&panels) => panels,
            None => {
                let whole = self.rebuild.get(weight)?;
                let builder = &mut self.rebuild.builder;
                builder.conv_weight_panels(whole, width, winograd)?
            }
        };
        self.cut.insert((weight, width, winograd), panels);
        Ok(panels)
    }

    fn convolution(&mut self, node: &Node, panels: ValueId, winograd: bool) -> Result<ValueId> {
        let [x, weight] = [node.inputs[0], node.inputs[1]];
        let rank = self.graph.ty(weight).rank();
        let numbers = ConvPanels {
            how: Convolution::of(&node.op).unwrap_or_default(),
            kernel: (2..rank).map(|d| self.known(weight, d)).collect(),
            n: self.known(weight, 0),
            winograd,
        };
        let x = self.rebuild.get(x)?;
        let builder = &mut self.rebuild.builder;
        let images = builder.emit(Op::Permute { dims: last(rank) }, &[x])?;
        let out = builder.conv_panels(images, panels, &numbers)?;
        builder.emit(Op::Permute { dims: first(rank) }, &[out])
    }

    /// A size of a weight.
    fn known(&self, weight: ValueId, dim: usize) -> i64 {
        let size: &Expr = &self.graph.ty(weight).shape[dim];
        size.as_const().unwrap_or(0)
    }
}
