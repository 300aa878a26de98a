//! Images, and lines and volumes, keep their channels last from one convolution in panels to the next.
//!
//! ```text
//!   conv_panels ─▶ permute ─▶ + bias [c, 1, 1] ─▶ relu ─▶ permute ─▶ conv_panels
//!   conv_panels ─▶ + bias [c] ─▶ relu ─▶ conv_panels
//! ```
//!
//! `conv_panels` reads and writes images [b, h, w, c]; the program says what it does to images [b, c, h, w]. One walk keeps for every value of the program that follows from such a result its other version, with channels last: elementwise work,
//! slices, concatenations (of which pooling and padding are made) and reductions are done on that version, and the value itself is a permutation of it, which nobody reads where all that follows is done so too. What is left of
//! permutations stands at the borders: the images that come in, results of the graph, and ops that this file does not know.
//!
//! Values stay what they are, but for the order in which a reduction over channels and positions adds.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Expr, Result};
use oxyfuel_graph::conv_panels::{first, last};
use oxyfuel_graph::{Category, Graph, Node, NodeId, Op, Rebuild, ValueId};

use crate::decompose::keep_name;

/// Dims of lines, images and volumes.
const RANKS: std::ops::RangeInclusive<usize> = 3..=5;
/// Of images.
const IMAGES: usize = 4;

/// Does all that it can with channels last, in a graph of `conv_panels`.
pub fn images(graph: Graph) -> Result<Graph> {
    let is_conv = |node: &Node| matches!(node.op, Op::ConvPanels { .. });
    if !graph.nodes.values().any(is_conv) {
        return Ok(graph);
    }
    let mut walk = Walk {
        graph: &graph,
        definitions: graph.definitions(),
        rebuild: Rebuild::new(&graph),
        last: BTreeMap::new(),
    };
    for id in graph.nodes.ids() {
        walk.visit(id)?;
    }
    walk.rebuild.finish()
}

struct Walk<'a> {
    graph: &'a Graph,
    definitions: Arena<ValueId, Option<NodeId>>,
    rebuild: Rebuild<'a>,
    /// By the value of the program, its version with channels last.
    last: BTreeMap<ValueId, ValueId>,
}

impl Walk<'_> {
    fn visit(&mut self, id: NodeId) -> Result<()> {
        let node = &self.graph.nodes[id];
        self.rebuild.at(id);
        if self.turn(id, node)? || self.same_rank(node)? || self.other_rank(node)? {
            return Ok(());
        }
        self.rebuild.copy(id)
    }

    fn shape(&self, value: ValueId) -> &[Expr] {
        &self.graph.ty(value).shape
    }

    /// Where the two versions come from and go to.
    fn turn(&mut self, id: NodeId, node: &Node) -> Result<bool> {
        let Op::Permute { dims } = &node.op else {
            return Ok(false);
        };
        let (x, rank) = (node.inputs[0], dims.len());
        if !RANKS.contains(&rank) {
            return Ok(false);
        }
        if *dims == last(rank)
            && let Some(&there) = self.last.get(&x)
        {
            self.rebuild.define(node.out(), there);
            return Ok(true);
        }
        // Dims of other things than images are often turned so.
        if *dims == first(rank) && (rank == IMAGES || self.is_convolved(x)) {
            self.rebuild.copy(id)?;
            self.last.insert(node.out(), self.rebuild.get(x)?);
            return Ok(true);
        }
        Ok(false)
    }

    fn is_convolved(&self, value: ValueId) -> bool {
        let source = self.definitions[value].map(|id| &self.graph.nodes[id].op);
        matches!(source, Some(Op::ConvPanels { .. }))
    }

    /// The version of a value of so many dims that has channels last.
    fn there(&self, value: ValueId, rank: usize) -> Option<ValueId> {
        let there = self.last.get(&value).copied();
        there.filter(|_| self.shape(value).len() == rank)
    }

    /// Work of which both operands and the result are images.
    fn same_rank(&mut self, node: &Node) -> Result<bool> {
        let [out] = node.outputs[..] else {
            return Ok(false);
        };
        let rank = self.shape(out).len();
        if !node.inputs.iter().any(|&v| self.there(v, rank).is_some()) {
            return Ok(false);
        }
        let (first, last) = (first(rank), last(rank));
        let op = match &node.op {
            op if op.category() == Category::Pointwise => op.clone(),
            Op::Slice {
                dim,
                start,
                end,
                step,
            } => Op::Slice {
                dim: first[*dim],
                start: start.clone(),
                end: end.clone(),
                step: *step,
            },
            Op::Cat { dim } => Op::Cat { dim: first[*dim] },
            Op::IndexSelect { dim } => Op::IndexSelect { dim: first[*dim] },
            Op::Expand { shape } if self.shape(node.inputs[0]).len() == rank => Op::Expand {
                shape: last.iter().map(|&d| shape[d].clone()).collect(),
            },
            Op::Reduce {
                op,
                dims,
                keepdim: true,
            } => Op::Reduce {
                op: *op,
                dims: turned(dims, rank),
                keepdim: true,
            },
            _ => return Ok(false),
        };
        // An index is no image.
        let images = match op {
            Op::IndexSelect { .. } => 1,
            _ => node.inputs.len(),
        };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, &v) in node.inputs.iter().enumerate() {
            inputs.push(match i < images {
                true => self.operand(v, &op, rank)?,
                false => self.rebuild.get(v)?,
            });
        }
        let there = self.rebuild.builder.emit(op, &inputs)?;
        let here = {
            let turn = Op::Permute { dims: first };
            self.rebuild.builder.emit(turn, &[there])?
        };
        keep_name(self.graph, out, &mut self.rebuild.builder, here);
        self.rebuild.define(out, here);
        self.last.insert(out, there);
        Ok(true)
    }

    /// Work on images whose result is something else.
    fn other_rank(&mut self, node: &Node) -> Result<bool> {
        let (&[x], &[out]) = (&node.inputs[..], &node.outputs[..]) else {
            return Ok(false);
        };
        let Some(&there) = self.last.get(&x) else {
            return Ok(false);
        };
        let rank = self.shape(x).len();
        let builder = &mut self.rebuild.builder;
        let result = match &node.op {
            // Elements stand in the same order where a pixel is all there is, or a channel.
            Op::View { .. } if is_flat(&self.graph.ty(x).shape) => {
                builder.emit(node.op.clone(), &[there])?
            }
            Op::Reduce {
                op,
                dims,
                keepdim: false,
            } => {
                let reduced = Op::Reduce {
                    op: *op,
                    dims: turned(dims, rank),
                    keepdim: false,
                };
                let reduced = builder.emit(reduced, &[there])?;
                // The dims that are left, in the order of the program.
                let mut left = last(rank);
                left.retain(|d| !dims.contains(d));
                let mut order: Vec<usize> = (0..left.len()).collect();
                order.sort_by_key(|&at| left[at]);
                match order.is_sorted() {
                    true => reduced,
                    false => builder.emit(Op::Permute { dims: order }, &[reduced])?,
                }
            }
            _ => return Ok(false),
        };
        keep_name(self.graph, out, &mut self.rebuild.builder, result);
        self.rebuild.define(out, result);
        Ok(true)
    }

    /// An operand of work on images with channels last.
    fn operand(&mut self, value: ValueId, op: &Op, rank: usize) -> Result<ValueId> {
        if let Some(there) = self.there(value, rank) {
            return Ok(there);
        }
        let own = self.shape(value).to_vec();
        let new = self.rebuild.get(value)?;
        let broadcasts = op.category() == Category::Pointwise;
        if broadcasts && own.iter().all(|n| n.is_const(1)) {
            return Ok(new);
        }
        let mut shape = vec![Expr::ONE; rank - own.len()];
        shape.extend(own);
        let dims = last(rank);
        let turned: Vec<Expr> = dims.iter().map(|&d| shape[d].clone()).collect();
        let source = self.definitions[value].map(|id| &self.graph.nodes[id].op);
        let builder = &mut self.rebuild.builder;
        if let Some(Op::Full {
            value,
            dtype,
            device,
            ..
        }) = source
        {
            return builder.full(*value, turned, *dtype, *device);
        }
        if is_flat(&shape) {
            // Something for each channel is a vector.
            let ones = turned.iter().take_while(|n| n.is_const(1)).count();
            let first = if broadcasts { ones.min(rank - 1) } else { 0 };
            return builder.view(new, &turned[first..]);
        }
        let whole = builder.view(new, &shape)?;
        builder.emit(Op::Permute { dims }, &[whole])
    }
}

/// Dims where they stand with channels last.
fn turned(dims: &[usize], rank: usize) -> Vec<usize> {
    let first = first(rank);
    let mut dims: Vec<usize> = dims.iter().map(|&d| first[d]).collect();
    dims.sort_unstable();
    dims
}

/// Whether images have one channel or one pixel, so that channels are first and last at once.
fn is_flat(shape: &[Expr]) -> bool {
    let one = |n: &Expr| n.is_const(1);
    one(&shape[1]) || shape[2..].iter().all(one)
}
