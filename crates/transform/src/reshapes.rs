//! Elementwise work that is only read in another shape is done in that shape.
//!
//! ```text
//!   call [128, 512] ─▶ + bias [512] ─▶ view [2, 64, 512] ─▶ gelu
//!   call [128, 512] ─▶ view [2, 64, 512] ─▶ + bias [512] ─▶ gelu
//! ```
//!
//! A view that parts or joins dims stands between two kernels: what it shows has to be in memory. In front of the work it shows what is in memory anyway (an input, a constant, the result of a host's operator), and the work on
//! both sides of it is one kernel. It moves where somebody computes with what it shows, where each operand varies along all of the dims that it joins or along none, and where views of the operands copy nothing. To the bit, what is computed stays the same.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use oxyfuel_base::{Arena, Expr, Result};
use oxyfuel_graph::{Category, Graph, NodeId, Op, Rebuild, Users, ValueId};

use crate::decompose::keep_name;

/// Moves every view for which it joins kernels in front of the elementwise work that it shows.
pub fn reshapes(graph: Graph) -> Result<Graph> {
    let definitions = graph.definitions();
    let users = graph.users();
    let rise = Rise {
        graph: &graph,
        definitions: &definitions,
        users: &users,
    };
    let risen: BTreeMap<NodeId, Risen> = graph
        .nodes
        .ids()
        .filter_map(|id| Some((id, rise.risen(id)?)))
        .collect();
    if risen.is_empty() {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        let Some(risen) = risen.get(&id) else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let out = risen.build(&graph, &mut rebuild)?;
        keep_name(&graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}

/// Work that is done in the shape of the view behind it.
struct Risen {
    /// What the view shows.
    shown: ValueId,
    /// The work, operands first.
    work: Vec<NodeId>,
    /// What the work reads, and the shape in which it reads it now.
    leaves: BTreeMap<ValueId, Vec<Expr>>,
}

impl Risen {
    fn build(&self, graph: &Graph, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let mut made = BTreeMap::new();
        for (&leaf, shape) in &self.leaves {
            let value = rebuild.get(leaf)?;
            let same = graph.ty(leaf).shape == *shape;
            let value = match same {
                true => value,
                false => {
                    let shape = shape.clone();
                    rebuild.builder.emit(Op::View { shape }, &[value])?
                }
            };
            made.insert(leaf, value);
        }
        for &id in &self.work {
            let node = &graph.nodes[id];
            rebuild.at(id);
            let inputs: Vec<ValueId> = node.inputs.iter().map(|operand| made[operand]).collect();
            let value = rebuild.builder.emit(node.op.clone(), &inputs)?;
            made.insert(node.out(), value);
        }
        Ok(made[&self.shown])
    }
}

struct Rise<'a> {
    graph: &'a Graph,
    definitions: &'a Arena<ValueId, Option<NodeId>>,
    users: &'a Users,
}

impl Rise<'_> {
    /// What takes the place of a view and of the work that it shows; `None` where it stays.
    fn risen(&self, id: NodeId) -> Option<Risen> {
        let (Op::View { shape }, out) = (&self.graph.nodes[id].op, self.graph.nodes[id].out())
        else {
            return None;
        };
        if self.is_shown_alone(out) || !self.is_computed_with(out) {
            return None;
        }
        // The first of a chain of views that nobody else reads.
        let mut first = id;
        let mut shown = self.graph.nodes[id].inputs[0];
        while self.is_shown_alone(shown)
            && let Some(before) = self.definitions[shown]
            && let Op::View { .. } = self.graph.nodes[before].op
        {
            (first, shown) = (before, self.graph.nodes[before].inputs[0]);
        }
        let own = &self.graph.ty(shown).shape;
        // Extents of 1 that come or go keep nobody apart.
        let wide = |n: &&Expr| !n.is_const(1);
        if own.iter().filter(wide).eq(shape.iter().filter(wide)) {
            return None;
        }
        let parts = parts(own, shape)?;
        let work = self.work(first, shown)?;
        let mut leaves = BTreeMap::new();
        for &member in &work {
            let member = &self.graph.nodes[member];
            // All of the work has the shape that is shown.
            if self.graph.ty(member.out()).shape != *own {
                return None;
            }
            for &operand in &member.inputs {
                let inside = self.definitions[operand].is_some_and(|id| work.contains(&id));
                if !inside && !leaves.contains_key(&operand) {
                    let seen = seen(&self.graph.ty(operand).shape, own, shape, &parts)?;
                    let as_it_is = self.graph.ty(operand).shape == seen;
                    if !self.is_in_memory(operand, as_it_is) {
                        return None;
                    }
                    leaves.insert(operand, seen);
                }
            }
        }
        let work = work.into_iter().collect();
        Some(Risen {
            shown,
            work,
            leaves,
        })
    }

    /// The elementwise work that nobody reads but the view and other such work.
    fn work(&self, view: NodeId, shown: ValueId) -> Option<BTreeSet<NodeId>> {
        let mut work = BTreeSet::new();
        let mut candidates = BinaryHeap::from([self.definitions[shown]?]);
        // The last node first: its readers are known.
        while let Some(id) = candidates.pop() {
            let node = &self.graph.nodes[id];
            if work.contains(&id) || node.op.category() != Category::Pointwise {
                continue;
            }
            let out = node.out();
            let within = |reader: &NodeId| *reader == view || work.contains(reader);
            if self.users.outputs(out) == 0 && self.users.of(out).iter().all(within) {
                candidates.extend(node.inputs.iter().filter_map(|&v| self.definitions[v]));
                work.insert(id);
            }
        }
        (!work.is_empty()).then_some(work)
    }

    /// Whether all that reads a value is one view of it in another shape.
    fn is_shown_alone(&self, value: ValueId) -> bool {
        let [reader] = self.users.of(value) else {
            return false;
        };
        let view = matches!(self.graph.nodes[*reader].op, Op::View { .. });
        view && self.users.outputs(value) == 0
    }

    /// Whether a kernel computes with a value, as it is or through views.
    fn is_computed_with(&self, value: ValueId) -> bool {
        self.users.of(value).iter().any(|&id| {
            let node = &self.graph.nodes[id];
            match node.op.category() {
                Category::Pointwise | Category::Reduction => true,
                Category::View => self.is_computed_with(node.out()),
                Category::Scan
                | Category::Sort
                | Category::Indexing
                | Category::Source
                | Category::Matmul
                | Category::Attention
                | Category::Convolution
                | Category::Composite
                | Category::Update
                | Category::External => false,
            }
        })
    }

    /// Whether a value is in memory whoever reads it, and, unless it is read as it is, in a row, so that any view of it is free. Numbers that each reader makes for itself count while they keep their shape.
    fn is_in_memory(&self, mut value: ValueId, as_it_is: bool) -> bool {
        let mut in_a_row = true;
        while let Some(id) = self.definitions[value] {
            let node = &self.graph.nodes[id];
            match node.op.category() {
                Category::View => {
                    in_a_row &= matches!(node.op, Op::View { .. });
                    value = node.inputs[0];
                }
                Category::External => break,
                Category::Source if as_it_is || node.op.constant().is_some() => break,
                Category::Source
                | Category::Pointwise
                | Category::Reduction
                | Category::Scan
                | Category::Sort
                | Category::Indexing
                | Category::Matmul
                | Category::Attention
                | Category::Convolution
                | Category::Composite
                | Category::Update => return false,
            }
        }
        let there = &self.graph.values[value];
        let strides = there.layout.strides();
        in_a_row &= strides.is_none_or(|strides| strides == there.ty.contiguous_strides());
        as_it_is || in_a_row
    }
}

/// The least runs of dims that have as many elements in one shape as in the other.
pub(crate) fn parts(from: &[Expr], to: &[Expr]) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    let mut parts = Vec::new();
    let (mut f, mut t) = (0, 0);
    while f < from.len() || t < to.len() {
        let (begin, start) = (f, t);
        // A dim of an unknown size has its like on the other side.
        if f < from.len() && t < to.len() && from[f] == to[t] {
            (f, t) = (f + 1, t + 1);
        } else {
            let (mut there, mut here) = (1, 1);
            loop {
                let next = if there <= here && f < from.len() {
                    f += 1;
                    (&mut there, &from[f - 1])
                } else if t < to.len() {
                    t += 1;
                    (&mut here, &to[t - 1])
                } else {
                    return None;
                };
                *next.0 = i64::checked_mul(*next.0, next.1.as_const().filter(|&n| n > 0)?)?;
                if there == here && (f > begin || t > start) {
                    break;
                }
            }
        }
        parts.push((begin..f, start..t));
    }
    Some(parts)
}

/// The shape of an operand of work on one shape, in work on another; `None` where it varies along some dims of a part and not along the rest.
fn seen(
    operand: &[Expr],
    from: &[Expr],
    to: &[Expr],
    parts: &[(Range<usize>, Range<usize>)],
) -> Option<Vec<Expr>> {
    if operand.is_empty() {
        return Some(Vec::new());
    }
    let missing = from.len() - operand.len();
    let one = Expr::constant(1);
    let extent = |dim: usize| dim.checked_sub(missing).map_or(&one, |dim| &operand[dim]);
    let mut shape = Vec::with_capacity(to.len());
    for (there, here) in parts {
        if there.clone().all(|dim| *extent(dim) == from[dim]) {
            shape.extend_from_slice(&to[here.clone()]);
        } else if there.clone().all(|dim| extent(dim).is_const(1)) {
            shape.extend(here.clone().map(|_| one.clone()));
        } else {
            return None;
        }
    }
    // What an operand without the first dims has there is made by broadcasting.
    let added = shape.iter().take_while(|n| n.is_const(1)).count();
    Some(shape.split_off(if missing > 0 { added } else { 0 }))
}
