//! Elementwise work on a product that is seen in another shape is done in the product's own shape.
//!
//! ```text
//!   mm [128, 512] ─▶ view [2, 64, 512] ─▶ + bias [512] ─▶ gelu ─▶ + residual [2, 64, 512]
//!   mm [128, 512] ─▶ + bias [512] ─▶ gelu ─▶ + residual, viewed as [128, 512] ─▶ view [2, 64, 512]
//! ```
//!
//! A linear layer of more than two dims is a product of two, and a view of it. A product's kernel takes work on its result only where that has the product's shape (decision 39): the view moves behind the work. It moves where it keeps
//! the last dims and the sizes are known; operands are those that do not vary along the others, and whole ones, which are viewed the other way where that copies nothing. To the bit, what is computed stays the same.

use std::collections::BTreeMap;

use oxyfuel_base::{Arena, Expr, Result};
use oxyfuel_graph::{Category, Graph, NodeId, Op, Rebuild, Users, ValueId};

/// Moves every view of a product behind the elementwise work on it.
pub fn views(graph: Graph) -> Result<Graph> {
    let definitions = graph.definitions();
    let users = graph.users();
    let sink = Sink {
        graph: &graph,
        definitions: &definitions,
        users: &users,
    };
    if !graph.nodes.ids().any(|id| sink.product(id).is_some()) {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    // New values that have the elements of an old one in the shape of a product.
    let mut seen: BTreeMap<ValueId, Seen> = BTreeMap::new();
    for (id, node) in graph.nodes.iter() {
        if let Some(product) = sink.product(id) {
            rebuild.copy(id)?;
            let value = rebuild.get(product)?;
            let shape = graph.ty(product).shape.clone();
            let kept = kept(&shape, &graph.ty(node.out()).shape);
            seen.insert(node.out(), Seen { value, shape, kept });
            continue;
        }
        let Some(operands) = sink.operands(id, &seen) else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let mut inputs = Vec::with_capacity(operands.len());
        let mut home = None;
        for (&old, operand) in node.inputs.iter().zip(operands) {
            inputs.push(match operand {
                Operand::Seen => {
                    let there = &seen[&old];
                    home = Some((there.shape.clone(), there.kept));
                    there.value
                }
                Operand::Plain => rebuild.get(old)?,
                Operand::Viewed(shape) => {
                    let value = rebuild.get(old)?;
                    rebuild.builder.emit(Op::View { shape }, &[value])?
                }
            });
        }
        let value = rebuild.builder.emit(node.op.clone(), &inputs)?;
        let old = &graph.values[node.out()];
        let shape = old.ty.shape.clone();
        let out = rebuild.builder.emit(Op::View { shape }, &[value])?;
        if let Some(name) = &old.name {
            rebuild.builder.set_name(out, name);
        }
        rebuild.builder.set_layout(out, old.layout.clone());
        rebuild.define(node.out(), out);
        if let Some((shape, kept)) = home {
            seen.insert(node.out(), Seen { value, shape, kept });
        }
    }
    rebuild.finish()?.compact()
}

/// A value in the shape of a product.
struct Seen {
    value: ValueId,
    shape: Vec<Expr>,
    /// Last dims that both shapes share.
    kept: usize,
}

/// How elementwise work reads an operand in the shape of a product.
enum Operand {
    Seen,
    Plain,
    Viewed(Vec<Expr>),
}

/// How many dims at the end are the same.
fn kept(a: &[Expr], b: &[Expr]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}

struct Sink<'a> {
    graph: &'a Graph,
    definitions: &'a Arena<ValueId, Option<NodeId>>,
    users: &'a Users,
}

impl Sink<'_> {
    /// The product, or the work on it, that a node shows in another shape, if nobody else reads it.
    fn product(&self, id: NodeId) -> Option<ValueId> {
        let node = &self.graph.nodes[id];
        let (Op::View { .. }, [product]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        let matmul = self.is_work_on_a_product(*product);
        let (own, shown) = (
            &self.graph.ty(*product).shape,
            &self.graph.ty(node.out()).shape,
        );
        let known = own.iter().chain(shown).all(|n| n.as_const().is_some());
        let moves = matmul && known && own != shown && kept(own, shown) > 0;
        (moves && self.users.count(*product) == 1).then_some(*product)
    }

    /// Whether a value is a product, or what the product's kernel makes of it before anything is stored.
    fn is_work_on_a_product(&self, mut value: ValueId) -> bool {
        let shape = &self.graph.ty(value).shape;
        while let Some(id) = self.definitions[value] {
            let node = &self.graph.nodes[id];
            if node.op.category() == Category::Matmul {
                return true;
            }
            let of_one = |&operand: &ValueId| {
                self.graph.ty(operand).shape == *shape && self.users.count(operand) == 1
            };
            let mut operands = node.inputs.iter().copied().filter(of_one);
            let (Some(operand), None) = (operands.next(), operands.next()) else {
                return false;
            };
            if node.op.category() != Category::Pointwise {
                return false;
            }
            value = operand;
        }
        false
    }

    /// How each operand of elementwise work is read in the shape of a product that is among them; `None` where the work stays as it is.
    fn operands(&self, id: NodeId, seen: &BTreeMap<ValueId, Seen>) -> Option<Vec<Operand>> {
        let node = &self.graph.nodes[id];
        if node.op.category() != Category::Pointwise || node.outputs.len() != 1 {
            return None;
        }
        let home = node.inputs.iter().find_map(|value| seen.get(value))?;
        let shape = &self.graph.ty(node.out()).shape;
        let read = |&value: &ValueId| {
            let own = &self.graph.ty(value).shape;
            if let Some(there) = seen.get(&value) {
                return (own == shape && there.shape == home.shape).then_some(Operand::Seen);
            }
            if own.len() <= home.kept {
                return Some(Operand::Plain);
            }
            let (first, last) = own.split_at(own.len() - home.kept);
            if first.iter().all(|n| n.is_const(1)) {
                return Some(Operand::Viewed(last.to_vec()));
            }
            let whole = own == shape && self.dense(value);
            whole.then(|| Operand::Viewed(home.shape.clone()))
        };
        node.inputs.iter().map(read).collect()
    }

    /// Whether a value's elements follow each other in memory, so that any view of it is free.
    fn dense(&self, mut value: ValueId) -> bool {
        while let Some(id) = self.definitions[value] {
            let node = &self.graph.nodes[id];
            match (node.op.category(), &node.op) {
                (Category::View, Op::View { .. }) => value = node.inputs[0],
                (category, _) => {
                    return matches!(category, Category::Pointwise | Category::Matmul);
                }
            }
        }
        let input = &self.graph.values[value];
        let strides = input.layout.strides();
        strides.is_none_or(|strides| strides == input.ty.contiguous_strides())
    }
}
