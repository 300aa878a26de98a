//! Attention that is written out together with its gradients: forward and backward become an op each.
//!
//! ```text
//!   forward    p = softmax(q k^T * c, masked)                 out = p v
//!   backward   dv = p^T grad        dp = grad v^T        ds = p dp - p sum(p dp), masked, * c
//!              dq = ds k            dk = ds^T q
//! ```
//!
//! The operands are those of the two products as they stand: scales before them, repeated heads and views around them stay in the graph, and so do their gradients. Casts and views that keep rows and
//! columns may stand anywhere between. All three gradients have to be there, of the same scale and mask, and nobody else may read anything between the products: a mask with a gradient of its
//! own, scores that are a result, weights that are dropped out keep everything as it is.
//!
//! A number that is filled in and is not an infinity keeps a row that may look nowhere from being NaN, and its gradient from reaching the scores: no op does that, so such masks stay, but for a causal one, which leaves
//! every row something to see.

use std::collections::BTreeSet;

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Binary, Graph, Node, NodeId, Op, Rebuild, Reduce, ValueId};

use super::{Chain, Given, Mask, Reader, Written};

/// Forward and backward as they were found.
pub(super) struct Training {
    pub forward: Written,
    grad: Chain,
    /// The nodes whose results are gradients of queries, keys and values.
    pub gradients: [NodeId; 3],
    /// Whether that of the keys has rows and columns the other way round.
    is_turned: bool,
}

/// How far from each other two products of the same literals may be.
const ROUNDING: f64 = 1e-6;

impl Reader<'_> {
    fn is_product(&self, id: NodeId) -> bool {
        matches!(self.graph.nodes[id].op, Op::Mm | Op::Bmm)
    }

    /// Whether a node is its operand with rows and columns the other way round.
    fn turns(&self, node: &Node) -> bool {
        let Op::Permute { dims } = &node.op else {
            return false;
        };
        matches!(dims[..], [1, 0] | [0, 2, 1])
    }

    /// A value past all turns: what is below them, and whether there was an odd number.
    fn unturned(&self, mut value: ValueId) -> (ValueId, bool) {
        let mut is_turned = false;
        while let Some(node) = self.node(value) {
            match &node.op {
                Op::Clone => {}
                _ if self.turns(node) => is_turned = !is_turned,
                _ => break,
            }
            value = node.inputs[0];
        }
        (value, is_turned)
    }

    /// Whether two values are one, with rows and columns the other way round.
    fn is_turned(&self, a: ValueId, b: ValueId) -> bool {
        let ((a, one), (b, other)) = (self.unturned(a), self.unturned(b));
        a == b && one != other
    }

    /// The one node that reads a value.
    fn reader(&self, value: ValueId) -> Option<NodeId> {
        match (self.users.of(value), self.users.outputs(value)) {
            (&[id], 0) => Some(id),
            _ => None,
        }
    }

    pub(super) fn training(&self, id: NodeId) -> Option<Training> {
        let node = &self.graph.nodes[id];
        let dtype = self.graph.ty(node.outputs[0]).dtype;
        if !self.is_product(id) || !dtype.is_float() {
            return None;
        }
        let mut inside = BTreeSet::from([id]);
        let mut weights = vec![node.inputs[0]];
        let softmax = loop {
            let &value = weights.last()?;
            let id = self.definitions[value]?;
            let node = &self.graph.nodes[id];
            inside.insert(id);
            match node.op {
                Op::Softmax { dim } if dim + 1 == self.graph.ty(value).rank() => break node,
                _ if self.keeps_values(node) || self.keeps_rows(node) => {
                    weights.push(node.inputs[0]);
                }
                _ => return None,
            }
        };
        let scores = self.scores(softmax.inputs[0], true, 1)?;
        let (q, k, v) = (
            scores.product.inputs[0],
            scores.product.inputs[1],
            node.inputs[1],
        );

        let (of_values, grad) = self.of_values(&mut weights, &mut inside)?;
        let mut products = self.users.of(grad).iter();
        let &change = products.find(|&&id| {
            let inputs = &self.graph.nodes[id].inputs;
            self.is_product(id) && inputs[0] == grad && self.is_turned(inputs[1], v)
        })?;
        inside.insert(change);
        let change = self.of_softmax(self.graph.nodes[change].out(), &weights, &mut inside)?;
        let (change, scale, mask) = self.of_scores(change, &mut inside)?;
        let (of_queries, of_keys, is_turned) = self.of_product(change, [q, k], &mut inside)?;

        let alike = match (scores.mask, mask) {
            (None | Some(Mask::Added(_)), None) | (Some(Mask::Causal), Some(Mask::Causal)) => true,
            (Some(Mask::Where(a, one)), Some(Mask::Where(b, other))) => a == b && one == other,
            _ => false,
        };
        let gradients = [of_queries, of_keys, of_values];
        let closed = inside.iter().filter(|&&inner| inner != id).all(|&inner| {
            self.graph.nodes[inner].outputs.iter().all(|&value| {
                let readers = self.users.of(value).iter();
                let known = |id: &NodeId| inside.contains(id) || gradients.contains(id);
                self.users.outputs(value) == 0 && readers.clone().all(known)
            })
        });
        let same = |value: &ValueId| self.graph.ty(*value).dtype == dtype;
        let equal = (scale - scores.scale).abs() <= ROUNDING * scale.abs() && scale.is_finite();
        if !alike || !closed || !equal || ![q, k, v, grad].iter().all(same) {
            return None;
        }
        let lead: [Expr; 2] = match self.shape(softmax.inputs[0]) {
            [b, h, _, _] => [b.clone(), h.clone()],
            [b, _, _] => match scores.mask {
                None | Some(Mask::Causal) if b.as_const().is_none() => [b.clone(), Expr::ONE],
                _ => [Expr::ONE, b.clone()],
            },
            [_, _] => [Expr::ONE, Expr::ONE],
            _ => return None,
        };
        // How many there are of batches, rows and keys, a call may say.
        let known = |size: Option<&Expr>| size.is_some_and(|n| n.as_const().is_some());
        let widths = [q, grad].map(|value| self.shape(value).last());
        if !known(Some(&lead[1])) || !widths.into_iter().all(known) {
            return None;
        }
        let mask = match scores.mask {
            Some(Mask::Added(mask)) => Some(Mask::Added(self.added(mask, dtype)?)),
            other => other,
        };
        let plain = |root: ValueId| Chain {
            root,
            shape: self.shape(root).to_vec(),
            views: Vec::new(),
            scale: 1.0,
        };
        Some(Training {
            forward: Written {
                q: plain(q).of_four(&lead),
                k: plain(k).of_four(&lead).turned(),
                v: plain(v).of_four(&lead),
                scale: scores.scale,
                mask,
            },
            grad: plain(grad).of_four(&lead),
            gradients,
            is_turned,
        })
    }

    /// The product that gives the values' gradient, and the gradient that it reads. `weights` grows by what else stands for them.
    fn of_values(
        &self,
        weights: &mut Vec<ValueId>,
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<(NodeId, ValueId)> {
        let mut found = None;
        let mut next = 0;
        while let Some(&value) = weights.get(next) {
            next += 1;
            for &id in self.users.of(value) {
                let node = &self.graph.nodes[id];
                if inside.contains(&id) {
                    continue;
                }
                if self.keeps_values(node) || self.keeps_rows(node) {
                    inside.insert(id);
                    weights.push(node.out());
                } else if self.turns(node) {
                    let product = self.reader(node.out())?;
                    let inputs = &self.graph.nodes[product].inputs;
                    if found.is_some() || !self.is_product(product) || inputs[0] != node.out() {
                        return None;
                    }
                    inside.insert(id);
                    found = Some((product, inputs[1]));
                }
            }
        }
        found
    }

    /// From the gradient of the weights to that of the softmax's operand.
    fn of_softmax(
        &self,
        mut change: ValueId,
        weights: &[ValueId],
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<ValueId> {
        let nodes = &self.graph.nodes;
        let product = loop {
            let id = self.reader(change)?;
            inside.insert(id);
            let node = &nodes[id];
            match node.op {
                Op::Binary(Binary::Mul) => {
                    let weighs = node.inputs.iter().any(|v| weights.contains(v));
                    break weighs.then_some(node.out())?;
                }
                _ if self.keeps_values(node) || self.keeps_rows(node) => change = node.out(),
                _ => return None,
            }
        };
        let last = self.graph.ty(product).rank().checked_sub(1)?;
        let sum = self.users.of(product).iter().copied().find(|&id| {
            matches!(&nodes[id].op, Op::Reduce { op: Reduce::Sum, dims, keepdim: true } if dims[..] == [last])
        })?;
        let share = self.reader(nodes[sum].out())?;
        let weighs = nodes[share].inputs.iter().any(|v| weights.contains(v));
        let left = self.reader(nodes[share].out())?;
        let fits = nodes[share].op == Op::Binary(Binary::Mul)
            && nodes[left].op == Op::Binary(Binary::Sub)
            && nodes[left].inputs[..] == [product, nodes[share].out()];
        inside.extend([sum, share, left]);
        (weighs && fits).then(|| nodes[left].out())
    }

    /// From the gradient of what the softmax read to that of the product, with the scale and mask on the way.
    fn of_scores(
        &self,
        mut change: ValueId,
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<(ValueId, f64, Option<Mask>)> {
        let (mut scale, mut mask) = (1.0, None);
        while let Some(id) = self.reader(change) {
            let node = &self.graph.nodes[id];
            let literal = |i: usize| {
                let other = node.inputs.get(1 - i).copied()?;
                (other == change).then(|| self.literal(node.inputs[i]))?
            };
            match node.op {
                Op::Binary(Binary::Mul) => scale *= literal(1).or_else(|| literal(0))?,
                Op::Binary(Binary::Div) => scale /= literal(1)?,
                Op::Where => {
                    let (look, a, b) = (node.inputs[0], node.inputs[1], node.inputs[2]);
                    let (holds, other) = if a == change { (true, b) } else { (false, a) };
                    if self.literal(other)? != 0.0 || mask.is_some() {
                        return None;
                    }
                    mask = Some(self.filled(look, holds, f64::NEG_INFINITY)?);
                }
                _ if self.keeps_values(node) || self.keeps_rows(node) => {}
                _ => break,
            }
            inside.insert(id);
            change = node.out();
        }
        Some((change, scale, mask))
    }

    /// The products that give the gradients of queries and keys, and whether the latter is turned.
    fn of_product(
        &self,
        change: ValueId,
        [q, k]: [ValueId; 2],
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<(NodeId, NodeId, bool)> {
        let (mut of_queries, mut of_keys) = (None, None);
        for &id in self.users.of(change) {
            let node = &self.graph.nodes[id];
            if self.is_product(id) && node.inputs[0] == change && self.is_turned(node.inputs[1], k)
            {
                of_queries = Some(id);
            } else if self.is_product(id)
                && node.inputs[1] == change
                && self.is_turned(node.inputs[0], q)
            {
                of_keys = Some((id, true));
            } else if self.turns(node)
                && let Some(product) = self.reader(node.out())
                && self.is_product(product)
                && self.graph.nodes[product].inputs[0] == node.out()
                && self.unturned(self.graph.nodes[product].inputs[1]) == self.unturned(q)
            {
                inside.insert(id);
                of_keys = Some((product, false));
            }
        }
        let (of_keys, is_turned) = of_keys?;
        Some((of_queries?, of_keys, is_turned))
    }
}

impl Training {
    /// The gradients, in place of the nodes that gave them.
    pub fn build(&self, graph: &Graph, rebuild: &mut Rebuild<'_>, given: &Given) -> Result<()> {
        let grad = self.grad.build(rebuild)?;
        let results = self.gradients.map(|id| graph.nodes[id].out());
        let b = &mut rebuild.builder;
        let made = b.sdpa_backward(
            grad,
            given.operands,
            [given.out, given.lse],
            given.mask,
            given.causal,
            self.forward.scale,
        )?;
        // A row that may look nowhere has no number for a weight; what was filled in hides that from queries and keys.
        let hidden = match self.forward.mask {
            None | Some(Mask::Causal | Mask::Filled(..)) => [false; 3],
            Some(Mask::Where(..)) => [false, false, true],
            Some(Mask::Added(_)) => [true; 3],
        };
        for (i, (mut value, old)) in made.into_iter().zip(results).enumerate() {
            let b = &mut rebuild.builder;
            if hidden[i] {
                let blind = b.eq(given.lse, f64::NEG_INFINITY)?;
                let blind = match i {
                    0 => blind,
                    _ => b.reduce(Reduce::Any, blind, &[2], true)?,
                };
                let blind = b.unsqueeze(blind, -1)?;
                value = b.where_(blind, f64::NAN, value)?;
            }
            if i == 1 && self.is_turned {
                value = b.permute(value, &[0, 1, 3, 2])?;
            }
            let value = b.view(value, &graph.ty(old).shape)?;
            rebuild.define(old, value);
        }
        Ok(())
    }
}
