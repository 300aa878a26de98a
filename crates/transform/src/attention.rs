//! Attention that is written out becomes one op.
//!
//! ```text
//!   q ─ views, * c ─┐                                                                  v ─ views ─┐
//!                   ├─ product ─ * c ─ + mask, or where(look, ., -inf) ─ softmax ─ casts ─────────┴─ product
//!   k ─ views, * c ─┘
//! ```
//!
//! The pass starts at the second product and walks back. Views that keep the last two dims, copies and casts between floats may stand anywhere; scales are literals, multiplied or divided by, before the
//! first product or after it; keys and values may be heads that were repeated. It leaves everything alone where the scores or the weights are used by anybody else.
//!
//! A row of written-out attention that may look nowhere is NaN, one of `sdpa` is 0: where a mask may blind a row, the result says so by the logarithm of the row's sum. Where a number is filled in that is no infinity, such a row is the
//! mean of the values.

mod training;

use std::borrow::Cow;
use std::collections::BTreeMap;

use oxyfuel_base::{Arena, DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::{
    Binary, Compare, Graph, HostTensor, Node, NodeId, Op, Rebuild, Reduce, Unary, Users, ValueId,
};

use training::Training;

/// What is filled in where nobody shall look, at most: beside a score it leaves nothing of a weight.
const HIDDEN: f64 = -1e9;

/// Puts `sdpa` in the place of every composition that computes it.
pub fn attention(graph: &Graph) -> Result<Cow<'_, Graph>> {
    Ok(match rewritten(graph, Blind::BySums)? {
        None => Cow::Borrowed(graph),
        Some((rebuild, _)) => Cow::Owned(rebuild.finish()?),
    })
}

/// A graph with `sdpa` in the place of compositions, for whoever wants to know what became of each value.
#[derive(Clone, Debug)]
pub struct WithAttention {
    pub graph: Graph,
    /// For each value of the old graph the one that stands for it.
    pub values: Vec<Option<ValueId>>,
    /// The old values that are computed otherwise: the result of each attention, and its gradients.
    pub sites: Vec<Vec<ValueId>>,
}

/// What [`attention`] does, where others compute the op: what a row without anything to look at gives is taken from its mask. `None` where there is nothing to do.
pub fn with_attention(graph: &Graph) -> Result<Option<WithAttention>> {
    let Some((rebuild, sites)) = rewritten(graph, Blind::ByMask)? else {
        return Ok(None);
    };
    let (graph, values) = rebuild.finish_with_values()?;
    Ok(Some(WithAttention {
        graph,
        values,
        sites,
    }))
}

/// How one sees that a row may look nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blind {
    /// The logarithm of its sum, which the op gives, is that of nothing.
    BySums,
    /// Its mask has nothing.
    ByMask,
}

/// The new graph and the old values that are computed otherwise.
type Rewritten<'a> = (Rebuild<'a>, Vec<Vec<ValueId>>);

fn rewritten(graph: &Graph, blind: Blind) -> Result<Option<Rewritten<'_>>> {
    let reader = Reader {
        graph,
        definitions: graph.definitions(),
        users: graph.users(),
    };
    let found: BTreeMap<NodeId, Written> = graph
        .nodes
        .iter()
        .filter_map(|(id, node)| Some((id, reader.written(node)?)))
        .collect();
    let with_gradients: BTreeMap<NodeId, Training> = graph
        .nodes
        .ids()
        .filter_map(|id| Some((id, reader.training(id)?)))
        .collect();
    if found.is_empty() && with_gradients.is_empty() {
        return Ok(None);
    }
    // Of each gradient's node, the forward it belongs to.
    let gradients: BTreeMap<NodeId, NodeId> = with_gradients
        .iter()
        .flat_map(|(&id, training)| training.gradients.map(|gradient| (gradient, id)))
        .collect();
    let mut given: BTreeMap<NodeId, Given> = BTreeMap::new();
    let mut rebuild = Rebuild::new(graph);
    for (id, node) in graph.nodes.iter() {
        rebuild.at(id);
        let training = with_gradients.get(&id);
        if let Some(written) = found.get(&id).or(training.map(|t| &t.forward)) {
            let shape = &graph.ty(node.out()).shape;
            let (out, here) = written.build(&mut rebuild, shape, blind)?;
            rebuild.define(node.out(), out);
            given.insert(id, here);
        } else if let Some(forward) = gradients.get(&id) {
            // The first of the three makes all of them.
            if let Some(here) = given.remove(forward) {
                with_gradients[forward].build(graph, &mut rebuild, &here)?;
            }
        } else {
            rebuild.copy(id)?;
        }
    }
    let sites = found
        .keys()
        .filter(|id| !with_gradients.contains_key(id))
        .map(|id| (id, [].as_slice()))
        .chain(
            with_gradients
                .iter()
                .map(|(id, t)| (id, t.gradients.as_slice())),
        )
        .map(|(id, gradients)| {
            let nodes = std::iter::once(id).chain(gradients);
            nodes.map(|&id| graph.nodes[id].out()).collect()
        })
        .collect();
    Ok(Some((rebuild, sites)))
}

/// What a forward leaves for its backward: operands, mask and results of the op.
struct Given {
    operands: [ValueId; 3],
    mask: Option<ValueId>,
    causal: bool,
    out: ValueId,
    lse: ValueId,
    blind: Blind,
}

impl Given {
    /// Whether each row may look nowhere: `[batch, heads, rows]`.
    fn blind(&self, b: &mut Builder) -> Result<ValueId> {
        let mask = match (self.blind, self.mask) {
            (Blind::ByMask, Some(mask)) => mask,
            (Blind::BySums, _) | (Blind::ByMask, None) => {
                return b.eq(self.lse, f64::NEG_INFINITY);
            }
        };
        let blind = match b.ty(mask).dtype {
            DType::Bool => {
                let seen = b.reduce(Reduce::Any, mask, &[3], false)?;
                b.emit(Op::Unary(Unary::LogicalNot), &[seen])?
            }
            _ => {
                let most = b.amax(mask, &[3], false)?;
                b.eq(most, f64::NEG_INFINITY)?
            }
        };
        let rows = b.ty(self.lse).shape.clone();
        b.expand(blind, &rows)
    }
}

/// Attention as it was found.
struct Written {
    q: Chain,
    k: Chain,
    v: Chain,
    scale: f64,
    mask: Option<Mask>,
}

/// Where to look.
#[derive(Clone, Copy)]
enum Mask {
    Causal,
    /// Where this holds, or does not.
    Where(ValueId, bool),
    /// The same, and a number elsewhere that leaves nothing of a weight: a row that may look nowhere looks everywhere alike.
    Filled(ValueId, bool),
    Added(ValueId),
}

/// The scores before the softmax.
struct Scores<'a> {
    product: &'a Node,
    scale: f64,
    mask: Option<Mask>,
}

/// A value and views of it, one after the other.
#[derive(Clone)]
struct Chain {
    root: ValueId,
    shape: Vec<Expr>,
    views: Vec<Op>,
    /// What the value has to be multiplied with.
    scale: f64,
}

struct Reader<'a> {
    graph: &'a Graph,
    definitions: Arena<ValueId, Option<NodeId>>,
    users: Users,
}

impl<'a> Reader<'a> {
    fn node(&self, value: ValueId) -> Option<&'a Node> {
        self.definitions[value].map(|id| &self.graph.nodes[id])
    }

    /// The node of a value that nobody but one other node reads.
    fn alone(&self, value: ValueId) -> Option<&'a Node> {
        (self.users.count(value) == 1)
            .then(|| self.node(value))
            .flatten()
    }

    fn shape(&self, value: ValueId) -> &'a [Expr] {
        &self.graph.ty(value).shape
    }

    /// The number that every element of a value is, as casts and products on the way round it.
    fn literal(&self, value: ValueId) -> Option<f64> {
        let node = self.node(value)?;
        match &node.op {
            Op::Full { value, .. } => Some(value.as_f64()),
            Op::View { .. } | Op::Expand { .. } => self.literal(node.inputs[0]),
            Op::Cast { .. } => self.rounded(value, self.literal(node.inputs[0])?),
            Op::Binary(Binary::Mul) => {
                let [a, b] = [0, 1].map(|i| self.literal(node.inputs[i]));
                self.rounded(value, a? * b?)
            }
            _ => None,
        }
    }

    /// The number as a value's type holds it.
    fn rounded(&self, value: ValueId, number: f64) -> Option<f64> {
        let held = HostTensor::from_f64(self.graph.ty(value).dtype, &[], &[number]);
        Some(held.ok()?.get(0).as_f64())
    }

    /// What a node hands on: the operand of a cast between floats, of a copy, and of a multiplication with ones, which dropout of probability 0 leaves.
    fn handed_on(&self, node: &Node) -> Option<ValueId> {
        let float = |value: ValueId| self.graph.ty(value).dtype.is_float();
        let times_one = |x: usize, one: usize| {
            let (x, one) = (node.inputs[x], node.inputs[one]);
            let same = self.graph.ty(x) == self.graph.ty(node.out());
            (same && self.literal(one) == Some(1.0)).then_some(x)
        };
        match node.op {
            Op::Cast { .. } => {
                (float(node.out()) && float(node.inputs[0])).then_some(node.inputs[0])
            }
            Op::Clone => Some(node.inputs[0]),
            Op::Binary(Binary::Mul) => times_one(0, 1).or_else(|| times_one(1, 0)),
            Op::Binary(Binary::Div) => times_one(0, 1),
            _ => None,
        }
    }

    /// The same, or the operand of a view that leaves the last two dims as they are.
    fn rows_handed_on(&self, node: &Node) -> Option<ValueId> {
        let seen = || self.keeps_rows(node).then(|| node.inputs[0]);
        self.handed_on(node).or_else(seen)
    }

    /// A view that leaves the last two dims as they are.
    fn keeps_rows(&self, node: &Node) -> bool {
        if !matches!(node.op, Op::View { .. }) {
            return false;
        }
        let (from, to) = (self.shape(node.inputs[0]), self.shape(node.out()));
        from.len() >= 2 && to.len() >= 2 && from[from.len() - 2..] == to[to.len() - 2..]
    }

    fn written(&self, node: &Node) -> Option<Written> {
        if !matches!(node.op, Op::Mm | Op::Bmm)
            || self.graph.values[node.out()].layout.strides().is_some()
        {
            return None;
        }
        let dtype = self.graph.ty(node.out()).dtype;
        if !dtype.is_float() {
            return None;
        }
        let softmax = self.softmax(node.inputs[0])?;
        let scores = self.scores(softmax.inputs[0], true, 1)?;
        let [q, k] = [0, 1].map(|i| self.chain(scores.product.inputs[i], dtype));
        let v = self.chain(node.inputs[1], dtype);
        let same = |chain: &Chain| self.graph.ty(chain.root).dtype == dtype;
        if ![&q, &k, &v].into_iter().all(same) || v.scale != 1.0 {
            return None;
        }
        let scale = scores.scale * q.scale * k.scale;
        let space = self.shape(softmax.inputs[0]);
        let lead: [Expr; 2] = match space {
            [b, h, _, _] => [b.clone(), h.clone()],
            [b, _, _] => match (&scores.mask, &q.above()[..]) {
                (None | Some(Mask::Causal), [batch, heads, _, _]) => [batch.clone(), heads.clone()],
                // Of heads there is a known number.
                (None | Some(Mask::Causal), _) if b.as_const().is_none() => [b.clone(), Expr::ONE],
                _ => [Expr::ONE, b.clone()],
            },
            [_, _] => [Expr::ONE, Expr::ONE],
            _ => return None,
        };
        let (q, mut k, mut v) = (
            q.of_four(&lead),
            k.of_four(&lead).turned(),
            v.of_four(&lead),
        );
        if let (Some(keys), Some(values)) = (k.ungrouped(), v.ungrouped())
            && keys.shape()[1] == values.shape()[1]
        {
            (k, v) = (keys, values);
        }
        // How many there are of batches, rows and keys, a call may say.
        let fixed = |chain: &Chain| {
            let shape = chain.shape();
            [1, 3].iter().all(|&dim| shape[dim].as_const().is_some())
        };
        if ![&q, &k, &v].into_iter().all(fixed) {
            return None;
        }
        let mask = match scores.mask {
            Some(Mask::Added(mask)) => Some(Mask::Added(self.added(mask, dtype)?)),
            other => other,
        };
        scale.is_finite().then_some(Written {
            q,
            k,
            v,
            scale,
            mask,
        })
    }

    /// The softmax along the last dim behind the weights.
    fn softmax(&self, mut weights: ValueId) -> Option<&'a Node> {
        loop {
            let node = self.alone(weights)?;
            if let Op::Softmax { dim } = node.op {
                let last = dim + 1 == self.graph.ty(node.out()).rank();
                return last.then_some(node);
            }
            weights = self.rows_handed_on(node)?;
        }
    }

    /// Reads a value as scores. `masked`: at most so many masks may be found. `whole`: the value has the dims of the softmax, which a mask is given for.
    fn scores(&self, value: ValueId, whole: bool, masks: u32) -> Option<Scores<'a>> {
        let node = self.alone(value)?;
        if let Some(x) = self.handed_on(node) {
            return self.scores(x, whole, masks);
        }
        let either = || {
            let (a, b) = (node.inputs[0], node.inputs[1]);
            [(a, b), (b, a)]
        };
        let scaled = |x: ValueId, by: f64| {
            let mut scores = self.scores(x, whole, 0)?;
            scores.scale *= by;
            Some(scores)
        };
        let masked = |x: ValueId, mask: Mask| {
            if !whole || masks == 0 || self.shape(x) != self.shape(value) {
                return None;
            }
            let scores = self.scores(x, whole, 0)?;
            Some(Scores {
                mask: Some(mask),
                ..scores
            })
        };
        match &node.op {
            Op::Mm | Op::Bmm => Some(Scores {
                product: node,
                scale: 1.0,
                mask: None,
            }),
            Op::Binary(Binary::Mul) => either()
                .into_iter()
                .find_map(|(x, c)| scaled(x, self.literal(c)?)),
            Op::Binary(Binary::Div) => scaled(node.inputs[0], 1.0 / self.literal(node.inputs[1])?),
            Op::Binary(Binary::Add) => either()
                .into_iter()
                .find_map(|(x, mask)| masked(x, Mask::Added(mask))),
            Op::Where => {
                let (look, a, b) = (node.inputs[0], node.inputs[1], node.inputs[2]);
                [(a, b, true), (b, a, false)]
                    .into_iter()
                    .find_map(|(x, fill, holds)| {
                        let fill = self.literal(fill)?;
                        masked(x, self.filled(look, holds, fill)?)
                    })
            }
            _ if self.keeps_rows(node) => self.scores(node.inputs[0], false, masks),
            _ => None,
        }
    }

    /// A mask that looks where a condition holds (or does not), and finds `fill` elsewhere.
    fn filled(&self, look: ValueId, holds: bool, fill: f64) -> Option<Mask> {
        if fill > HIDDEN {
            return None;
        }
        if self.is_causal(look, holds) {
            return Some(Mask::Causal);
        }
        Some(if fill == f64::NEG_INFINITY {
            Mask::Where(look, holds)
        } else {
            Mask::Filled(look, holds)
        })
    }

    /// Whether a condition holds (or fails) just where the last dim's position is not beyond that of the dim before it.
    fn is_causal(&self, condition: ValueId, holds: bool) -> bool {
        let Some(node) = self.node(condition) else {
            return false;
        };
        let [a, b] = match node.inputs[..] {
            [a, b] => [a, b].map(|v| self.counts(v)),
            _ => return false,
        };
        let (row, column) = (Some(1), Some(0));
        match (&node.op, holds) {
            (Op::Compare(Compare::Ge), true) | (Op::Compare(Compare::Lt), false) => {
                (a, b) == (row, column)
            }
            (Op::Compare(Compare::Le), true) | (Op::Compare(Compare::Gt), false) => {
                (a, b) == (column, row)
            }
            _ => false,
        }
    }

    /// Which dim, from the last, a value counts along from 0 by 1.
    fn counts(&self, mut value: ValueId) -> Option<usize> {
        let shape = self.shape(value);
        loop {
            let node = self.node(value)?;
            match &node.op {
                Op::Arange { start, step, .. } => {
                    let plain = start.as_f64() == 0.0 && step.as_f64() == 1.0;
                    let long = |n: &&Expr| !n.is_const(1);
                    let dim = shape.iter().rev().position(|n| !n.is_const(1))?;
                    return (plain && shape.iter().filter(long).count() == 1).then_some(dim);
                }
                Op::View { .. } => value = node.inputs[0],
                _ => return None,
            }
        }
    }

    /// A mask to add, of this dtype and no larger than it has to be.
    fn added(&self, mut mask: ValueId, dtype: DType) -> Option<ValueId> {
        while let Some(node) = self.node(mask) {
            let ty = self.graph.ty(mask);
            let from = self.graph.ty(node.inputs.first().copied()?);
            match node.op {
                Op::Expand { .. } if from.rank() <= ty.rank() => mask = node.inputs[0],
                Op::Cast { .. } if ty.dtype != dtype && from.dtype == dtype => {
                    mask = node.inputs[0]
                }
                _ => break,
            }
        }
        (self.graph.ty(mask).dtype == dtype).then_some(mask)
    }

    /// A value as views of something, past scales and casts from this dtype.
    fn chain(&self, value: ValueId, dtype: DType) -> Chain {
        let shape = |v: ValueId| self.shape(v).to_vec();
        let mut chain = Chain {
            root: value,
            shape: shape(value),
            views: Vec::new(),
            scale: 1.0,
        };
        while let Some(node) = self.node(chain.root) {
            let number = |i: usize| {
                let same = |x: &ValueId| self.shape(*x) == self.shape(chain.root);
                let x = node.inputs.get(1 - i).copied().filter(same)?;
                Some((x, self.literal(*node.inputs.get(i)?)?))
            };
            let under = match &node.op {
                Op::View { .. } | Op::Permute { .. } | Op::Expand { .. } => {
                    chain.views.insert(0, node.op.clone());
                    node.inputs[0]
                }
                Op::Clone => node.inputs[0],
                Op::Cast { .. } if self.graph.ty(node.inputs[0]).dtype == dtype => node.inputs[0],
                Op::Binary(Binary::Mul) => match number(1).or_else(|| number(0)) {
                    Some((x, by)) => {
                        chain.scale *= by;
                        x
                    }
                    None => break,
                },
                Op::Binary(Binary::Div) => match number(1) {
                    Some((x, by)) => {
                        chain.scale /= by;
                        x
                    }
                    None => break,
                },
                _ => break,
            };
            chain.root = under;
            chain.shape = shape(under);
        }
        chain
    }
}

impl Chain {
    /// The shape behind the first `count` views.
    fn shape_of(&self, count: usize) -> Vec<Expr> {
        let mut shape = self.shape.clone();
        for view in &self.views[..count] {
            shape = match view {
                Op::View { shape } | Op::Expand { shape } => shape.clone(),
                Op::Permute { dims } => dims.iter().map(|&d| shape[d].clone()).collect(),
                _ => shape,
            };
        }
        shape
    }

    fn shape(&self) -> Vec<Expr> {
        self.shape_of(self.views.len())
    }

    /// The shape before the last view that leaves rows and columns as they are.
    fn above(&self) -> Vec<Expr> {
        let (now, before) = (
            self.shape(),
            self.shape_of(self.views.len().saturating_sub(1)),
        );
        let rows = |shape: &[Expr]| shape[shape.len().saturating_sub(2)..].to_vec();
        match self.views.last() {
            Some(Op::View { .. }) if rows(&now) == rows(&before) => before,
            _ => now,
        }
    }

    /// With these two dims in place of the batches.
    fn of_four(mut self, lead: &[Expr; 2]) -> Self {
        let now = self.shape();
        let [rows, columns] = [now[now.len() - 2].clone(), now[now.len() - 1].clone()];
        let [first, second] = lead.clone();
        let wanted = vec![first.clone(), second.clone(), rows.clone(), columns.clone()];
        let across = [first, second, columns, rows];
        let count = self.views.len();
        let turned = |view: &Op| matches!(view, Op::Permute { dims } if dims[..] == [0, 2, 1]);
        if now == wanted {
            return self;
        }
        if self.above() == wanted {
            self.views.pop();
        } else if let [.., Op::View { .. }, last] = &self.views[..]
            && turned(last)
            && self.shape_of(count - 2) == across
        {
            // The batches were joined before rows and columns changed places: neither has to happen.
            self.views.truncate(count - 2);
            let dims = vec![0, 1, 3, 2];
            self.views.push(Op::Permute { dims });
        } else {
            self.views.push(Op::View { shape: wanted });
        }
        self
    }

    /// Rows and columns the other way round.
    fn turned(mut self) -> Self {
        let order = [0, 1, 3, 2];
        match self.views.last() {
            Some(Op::Permute { dims }) if dims[..] == order => {
                self.views.pop();
            }
            _ => self.views.push(Op::Permute {
                dims: order.to_vec(),
            }),
        }
        self
    }

    /// Before its heads were repeated, each one so many times in a row.
    fn ungrouped(&self) -> Option<Self> {
        let [before @ .., apart, repeat, Op::View { .. }] = &self.views[..] else {
            return None;
        };
        let (Op::View { .. }, Op::Expand { shape: repeated }) = (apart, repeat) else {
            return None;
        };
        let (from, to) = (self.shape_of(before.len()), self.shape());
        let ([b, g, l, d], [b2, g2, times, l2, d2]) = (&from[..], &repeated[..]) else {
            return None;
        };
        let one = [b, g, &Expr::ONE, l, d].map(Clone::clone);
        let all = [b.clone(), g.clone() * times.clone(), l.clone(), d.clone()];
        let fits =
            (b, g, l, d) == (b2, g2, l2, d2) && self.shape_of(before.len() + 1) == one && to == all;
        fits.then(|| Self {
            views: before.to_vec(),
            ..self.clone()
        })
    }

    fn build(&self, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let root = rebuild.get(self.root)?;
        let views = self.views.iter();
        views.clone().try_fold(root, |value, view| {
            rebuild.builder.emit(view.clone(), &[value])
        })
    }
}

impl Written {
    /// The op, as a value of shape `shape`.
    fn build(
        &self,
        rebuild: &mut Rebuild<'_>,
        shape: &[Expr],
        blind: Blind,
    ) -> Result<(ValueId, Given)> {
        let operands = [
            self.q.build(rebuild)?,
            self.k.build(rebuild)?,
            self.v.build(rebuild)?,
        ];
        let of_four = |rebuild: &mut Rebuild<'_>, mask: ValueId| {
            let shape = rebuild.builder.ty(mask).shape.clone();
            let missing = 4usize.saturating_sub(shape.len());
            let shape = [vec![Expr::ONE; missing], shape].concat();
            rebuild.builder.view(mask, &shape)
        };
        let mask = match self.mask {
            None | Some(Mask::Causal) => None,
            Some(Mask::Added(mask)) => {
                let mask = rebuild.get(mask)?;
                Some(of_four(rebuild, mask)?)
            }
            Some(Mask::Where(look, holds) | Mask::Filled(look, holds)) => {
                Some(looked(rebuild, look, holds)?)
            }
        };
        let causal = matches!(self.mask, Some(Mask::Causal));
        let b = &mut rebuild.builder;
        let [mut out, lse] = b.sdpa(operands, mask, causal, self.scale)?;
        let given = Given {
            operands,
            mask,
            causal,
            out,
            lse,
            blind,
        };
        if matches!(self.mask, Some(Mask::Filled(..)))
            && let Some(mask) = mask
        {
            let seen = b.reduce(Reduce::Any, mask, &[3], true)?;
            let mean = mean_of_keys(b, operands)?;
            out = b.where_(seen, out, mean)?;
        }
        if matches!(self.mask, Some(Mask::Where(..) | Mask::Added(_))) {
            let blind = given.blind(b)?;
            let blind = b.unsqueeze(blind, -1)?;
            out = b.where_(blind, f64::NAN, out)?;
        }
        Ok((b.view(out, shape)?, given))
    }
}

/// A condition, or its opposite, as a mask of four dims.
fn looked(rebuild: &mut Rebuild<'_>, look: ValueId, holds: bool) -> Result<ValueId> {
    let look = rebuild.get(look)?;
    let b = &mut rebuild.builder;
    let look = match holds {
        true => look,
        false => b.emit(Op::Unary(Unary::LogicalNot), &[look])?,
    };
    b.mask_of_four(look, DType::Bool)
}

/// What a row gives that looks at all keys alike: `[batch, heads of the queries, 1, width]`.
fn mean_of_keys(b: &mut Builder, [q, _, v]: [ValueId; 3]) -> Result<ValueId> {
    let (heads, shape) = (b.ty(q).shape[1].clone(), b.ty(v).shape.clone());
    let mean = b.reduce(Reduce::Mean, v, &[2], true)?;
    if heads == shape[1] {
        return Ok(mean);
    }
    let [batch, groups, width] = [0, 1, 3].map(|d| shape[d].clone());
    let times = match (heads.as_const(), groups.as_const()) {
        (Some(heads), Some(groups)) if groups > 0 => heads / groups,
        _ => 1,
    };
    let apart = [
        batch.clone(),
        groups.clone(),
        Expr::ONE,
        Expr::ONE,
        width.clone(),
    ];
    let mean = b.view(mean, &apart)?;
    let repeated = [
        batch.clone(),
        groups,
        times.into(),
        Expr::ONE,
        width.clone(),
    ];
    let mean = b.expand(mean, &repeated)?;
    b.view(mean, &[batch, heads, Expr::ONE, width])
}
