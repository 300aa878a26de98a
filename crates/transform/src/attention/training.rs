//! Attention that is written out together with its gradients: forward and backward become an op each.
//!
//! ```text
//!   forward    p = softmax(q k^T * c, masked)                 out = p v
//!   backward   dv = p^T grad        dp = grad v^T        ds = p dp - p sum(p dp), masked, * c
//!              dq = ds k            dk = ds^T q
//! ```
//!
//! The operands are those of the two products as they stand: scales before them and views around them stay in the graph, and so do their gradients. Heads of keys and values that were repeated for the
//! queries are read as they were before, where the sums of their gradients over the repeats are there: the op gives those sums. Casts and views that keep rows and
//! columns may stand anywhere between. All three gradients have to be there, of the same scale and mask, and nobody else may read anything between the products: a mask with a gradient of its
//! own, scores that are a result, weights that are dropped out keep everything as it is.
//!
//! A number that is filled in and is not an infinity keeps a row that may look nowhere from being NaN, and its gradient from reaching the scores: such a row looks everywhere alike, whatever queries and keys are. The op gives no
//! gradient of it, and what it means for the values is added: its mean over the keys. A causal mask leaves every row something to see.

use std::collections::BTreeSet;

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::{Binary, Graph, Node, NodeId, Op, Rebuild, Reduce, ValueId};

use super::{Chain, Given, Mask, Reader, Written};

/// Forward and backward as they were found.
pub(super) struct Training {
    pub forward: Written,
    grad: Chain,
    /// The nodes whose results are gradients of queries, keys and values.
    pub gradients: [NodeId; 3],
    /// In which order the dims of the op's gradients of keys and values come in them, before they are cut anew.
    orders: [Vec<usize>; 2],
}

/// Where a gradient is read: a value whose dims are made of the dims of a tensor `[batch, heads, length, width]` of known sizes.
struct Made {
    node: NodeId,
    /// Of each dim of the value, which dims of the tensor it is made of, and how many elements each has. Heads come in two: those before they were repeated, and the repeats.
    dims: Vec<Vec<(Part, i64)>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Batch,
    Head,
    Repeat,
    Length,
    Width,
}

/// Keys and values of fewer heads than the queries have.
struct Shared {
    operands: [Chain; 2],
    /// The nodes that sum their gradients over the repeats.
    sums: [NodeId; 2],
    orders: [Vec<usize>; 2],
    /// What is between the products and the sums, the products among them.
    inside: BTreeSet<NodeId>,
}

impl Made {
    /// Cuts the dims anew; `None` where a part would be cut in two.
    fn cut(&mut self, shape: &[Expr]) -> Option<()> {
        let mut parts = self
            .dims
            .concat()
            .into_iter()
            .filter(|(_, size)| *size != 1);
        self.dims = shape
            .iter()
            .map(|size| {
                let (size, mut here, mut dim) = (size.as_const()?, 1, Vec::new());
                while here < size {
                    let part = parts.next()?;
                    here *= part.1;
                    dim.push(part);
                }
                (here == size).then_some(dim)
            })
            .collect::<Option<_>>()?;
        Some(())
    }

    /// In which order the tensor's own dims come; those of one element anywhere.
    fn order(&self) -> Option<Vec<usize>> {
        let mut order = Vec::new();
        for (part, _) in self.dims.concat() {
            order.push(match part {
                Part::Batch => 0,
                Part::Head => 1,
                Part::Repeat => return None,
                Part::Length => 2,
                Part::Width => 3,
            });
        }
        let missing: Vec<usize> = (0..4).filter(|d| !order.contains(d)).collect();
        Some([missing, order].concat())
    }
}

/// What rows that see nothing add to the gradient of values of this shape: each of them looks at all keys alike.
fn of_nothing(b: &mut Builder, grad: ValueId, seen: ValueId, shape: &[Expr]) -> Result<ValueId> {
    let blind = b.where_(seen, 0.0, grad)?;
    let all = b.ty(blind).shape.clone();
    let [batch, heads, keys, width] = [0, 1, 2, 3].map(|d| shape[d].clone());
    let rows = [batch, heads.clone(), rows_of(&all, &heads), width];
    let blind = b.view(blind, &rows)?;
    let sum = b.sum(blind, &[2], true)?;
    let keys = b.scalar_tensor(keys, b.ty(sum).dtype, b.ty(sum).device)?;
    let mean = b.div(sum, keys)?;
    b.expand(mean, shape)
}

/// Rows of so many heads where those that share one stand one after the other.
fn rows_of(all: &[Expr], heads: &Expr) -> Expr {
    let times = match (all[1].as_const(), heads.as_const()) {
        (Some(all), Some(heads)) if heads > 0 => all / heads,
        _ => 1,
    };
    all[2].clone() * Expr::constant(times)
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
                _ => weights.push(self.rows_handed_on(node)?),
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
            (Some(Mask::Where(a, one) | Mask::Filled(a, one)), Some(Mask::Where(b, other))) => {
                a == b && one == other
            }
            _ => false,
        };
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
        let mut keys = self.plain(k).of_four(&lead).turned();
        let mut values = self.plain(v).of_four(&lead);
        let turned_if = |turn: bool| {
            if turn {
                vec![0, 1, 3, 2]
            } else {
                vec![0, 1, 2, 3]
            }
        };
        let mut orders = [turned_if(is_turned), turned_if(false)];
        let mut gradients = [of_queries, of_keys, of_values];
        if let Some(shared) = self.shared(&lead, [k, v], [(of_keys, is_turned), (of_values, false)])
        {
            [keys, values] = shared.operands;
            orders = shared.orders;
            gradients = [of_queries, shared.sums[0], shared.sums[1]];
            inside.extend(shared.inside);
        }
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
        let mask = match scores.mask {
            Some(Mask::Added(mask)) => Some(Mask::Added(self.added(mask, dtype)?)),
            other => other,
        };
        Some(Training {
            forward: Written {
                q: self.plain(q).of_four(&lead),
                k: keys,
                v: values,
                scale: scores.scale,
                mask,
            },
            grad: self.plain(grad).of_four(&lead),
            gradients,
            orders,
        })
    }

    /// A value as it stands.
    fn plain(&self, root: ValueId) -> Chain {
        Chain {
            root,
            shape: self.shape(root).to_vec(),
            views: Vec::new(),
            scale: 1.0,
        }
    }

    /// Keys and values before their heads were repeated, where their gradients, which are these products (perhaps turned), are read as sums over the repeats and in no other way.
    fn shared(
        &self,
        lead: &[Expr; 2],
        operands: [ValueId; 2],
        gradients: [(NodeId, bool); 2],
    ) -> Option<Shared> {
        let [keys, values] = operands.map(|operand| {
            let dtype = self.graph.ty(operand).dtype;
            let chain = self.chain(operand, dtype);
            (chain.scale == 1.0).then(|| chain.of_four(lead))
        });
        let (keys, values) = (keys?.turned().ungrouped()?, values?.ungrouped()?);
        if keys.shape()[..3] != values.shape()[..3] {
            return None;
        }
        let mut inside = BTreeSet::new();
        let mut sum = |chain: &Chain, (product, is_turned): (NodeId, bool)| {
            self.summed(lead, chain, product, is_turned, &mut inside)
        };
        let (of_keys, first) = sum(&keys, gradients[0])?;
        let (of_values, second) = sum(&values, gradients[1])?;
        Some(Shared {
            operands: [keys, values],
            sums: [of_keys, of_values],
            orders: [first, second],
            inside,
        })
    }

    /// Follows a gradient to its sum over the repeats of heads: the node that sums, and the order in which the dims of the op's gradient come there.
    fn summed(
        &self,
        lead: &[Expr; 2],
        chain: &Chain,
        product: NodeId,
        is_turned: bool,
        inside: &mut BTreeSet<NodeId>,
    ) -> Option<(NodeId, Vec<usize>)> {
        let shape = chain.shape();
        let sizes: Option<Vec<i64>> = shape.iter().map(Expr::as_const).collect();
        let [batch, heads, length, width] = sizes?[..] else {
            return None;
        };
        let repeats = lead[1].as_const()?.checked_div(heads)?;
        let (first, second) = match is_turned {
            true => ((Part::Width, width), (Part::Length, length)),
            false => ((Part::Length, length), (Part::Width, width)),
        };
        let all = [
            (Part::Batch, batch),
            (Part::Head, heads),
            (Part::Repeat, repeats),
            first,
            second,
        ];
        let mut made = Made {
            node: product,
            dims: vec![all.to_vec()],
        };
        made.cut(self.shape(self.graph.nodes[product].out()))?;
        loop {
            let value = self.graph.nodes[made.node].out();
            let id = self.reader(value)?;
            inside.insert(made.node);
            let node = &self.graph.nodes[id];
            match &node.op {
                Op::Clone => {}
                Op::View { shape } => made.cut(shape)?,
                Op::Permute { dims } => {
                    made.dims = dims.iter().map(|&d| made.dims[d].clone()).collect();
                }
                Op::Reduce {
                    op: Reduce::Sum,
                    dims,
                    ..
                } => {
                    let [dim] = dims[..] else { return None };
                    let gone = std::mem::take(&mut made.dims[dim]);
                    let order = made.order();
                    return (gone == [(Part::Repeat, repeats)]).then_some((id, order?));
                }
                _ => return None,
            }
            made.node = id;
        }
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
                if self.rows_handed_on(node) == Some(value) {
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
            if self.rows_handed_on(node) == Some(change) {
                change = node.out();
                continue;
            }
            let weighs = node.inputs.iter().any(|v| weights.contains(v));
            break (weighs && node.op == Op::Binary(Binary::Mul)).then_some(node.out())?;
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
                _ if self.rows_handed_on(node) == Some(change) => {}
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
        let mut made = b.sdpa_backward(
            grad,
            given.operands,
            [given.out, given.lse],
            given.mask,
            given.causal,
            self.forward.scale,
        )?;
        if matches!(self.forward.mask, Some(Mask::Filled(..)))
            && let Some(mask) = given.mask
        {
            let b = &mut rebuild.builder;
            let seen = b.reduce(Reduce::Any, mask, &[3], true)?;
            let term = of_nothing(b, grad, seen, &b.ty(made[2]).shape.clone())?;
            made[2] = b.add(made[2], term)?;
        }
        // A row that may look nowhere has no number for a weight; what was filled in hides that from queries and keys.
        let hidden = match self.forward.mask {
            None | Some(Mask::Causal | Mask::Filled(..)) => [false; 3],
            Some(Mask::Where(..)) => [false, false, true],
            Some(Mask::Added(_)) => [true; 3],
        };
        for (i, (mut value, old)) in made.into_iter().zip(results).enumerate() {
            let b = &mut rebuild.builder;
            if hidden[i] {
                let blind = given.blind(b)?;
                let blind = match i {
                    0 => blind,
                    _ => {
                        let (all, heads) = (b.ty(blind).shape.clone(), &b.ty(value).shape[1]);
                        let rows = [all[0].clone(), heads.clone(), rows_of(&all, heads)];
                        let blind = b.view(blind, &rows)?;
                        b.reduce(Reduce::Any, blind, &[2], true)?
                    }
                };
                let blind = b.unsqueeze(blind, -1)?;
                value = b.where_(blind, f64::NAN, value)?;
            }
            if let Some(order) = i.checked_sub(1).map(|i| &self.orders[i])
                && order[..] != [0, 1, 2, 3]
            {
                let order: Vec<i64> = order.iter().map(|&d| d as i64).collect();
                value = b.permute(value, &order)?;
            }
            let value = b.view(value, &graph.ty(old).shape)?;
            rebuild.define(old, value);
        }
        Ok(())
    }
}
