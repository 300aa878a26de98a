//! A number that is written into a slice of what is computed is a choice, element by element.
//!
//! ```text
//!   sum [32, 9] ─▶ slice_scatter(-inf, 5..9)
//!   sum [32, 9] ─▶ where(arange(9) < 5, sum, -inf)
//! ```
//!
//! A write into a slice wants what is around it in memory, and copies it. As a choice it belongs to the kernel that computes the value; a view between the two that keeps the dims from the slice's on moves behind it. Where the value is an input or the result of a
//! product or a call, it is in memory already, and where it is one number the writes are a concatenation (`concatenations.rs`): these stay. To the bit, what is computed stays the same.

use std::collections::BTreeSet;

use oxyfuel_base::{Arena, DType, Result, Scalar};
use oxyfuel_graph::{Binary, Category, Compare, Graph, Node, NodeId, Op, Rebuild, Users, ValueId};

use crate::decompose::keep_name;

/// Makes choices of such writes.
pub fn masks(graph: Graph) -> Result<Graph> {
    let written = |node: &Node| matches!(node.op, Op::SliceScatter { .. });
    if !graph.nodes.values().any(written) {
        return Ok(graph);
    }
    let search = Search {
        graph: &graph,
        definitions: graph.definitions(),
        users: graph.users(),
    };
    let mut rebuild = Rebuild::new(&graph);
    // What became a choice: a write into that is one, too.
    let mut masked: BTreeSet<ValueId> = BTreeSet::new();
    for (id, node) in graph.nodes.iter() {
        let Some(mask) = search.mask(node, &masked) else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let out = search.build(&mask, node, &mut rebuild)?;
        keep_name(&graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
        masked.insert(node.out());
    }
    rebuild.finish()
}

/// A write as a choice.
struct Mask {
    /// What is computed, in front of views.
    value: ValueId,
    /// The dim of it that the slice is of, counted from the last.
    from_last: usize,
    size: i64,
    start: i64,
    end: i64,
    number: Scalar,
}

struct Search<'a> {
    graph: &'a Graph,
    definitions: Arena<ValueId, Option<NodeId>>,
    users: Users,
}

impl Search<'_> {
    fn mask(&self, node: &Node, masked: &BTreeSet<ValueId>) -> Option<Mask> {
        let Op::SliceScatter {
            dim,
            ref start,
            ref end,
            step: 1,
        } = node.op
        else {
            return None;
        };
        let [base, src] = node.inputs[..] else {
            return None;
        };
        let shape = &self.graph.ty(base).shape;
        let (size, start, end) = (shape[dim].as_const()?, start.as_const()?, end.as_const()?);
        let number = self.number(src)?;
        let part = 0 <= start && start < end && end <= size && end - start < size;
        let from_last = shape.len() - dim;
        let value = self.computed(base, from_last, masked)?;
        part.then_some(Mask {
            value,
            from_last,
            size,
            start,
            end,
            number,
        })
    }

    /// The number that a value is made of.
    fn number(&self, mut value: ValueId) -> Option<Scalar> {
        loop {
            let node = &self.graph.nodes[self.definitions[value]?];
            match (&node.op, node.op.category()) {
                (&Op::Full { value, .. }, _) => return Some(value),
                (_, Category::View) => value = node.inputs[0],
                _ => return None,
            }
        }
    }

    /// What a value that the write alone reads is computed as, where a kernel may take elementwise work on it; the views up to there keep so many last dims.
    fn computed(
        &self,
        mut value: ValueId,
        kept: usize,
        masked: &BTreeSet<ValueId>,
    ) -> Option<ValueId> {
        loop {
            if self.users.count(value) != 1 {
                return None;
            }
            let node = &self.graph.nodes[self.definitions[value]?];
            match (&node.op, node.op.category()) {
                (Op::View { shape }, _) => {
                    let before = &self.graph.ty(node.inputs[0]).shape;
                    let mut last = before.iter().rev().zip(shape.iter().rev()).take(kept);
                    if before.len() < kept || last.any(|(a, b)| a != b) {
                        return None;
                    }
                    value = node.inputs[0];
                }
                // A gather; other lookups and concatenations copy slices.
                (Op::Gather { .. }, _) => return Some(value),
                (_, Category::Pointwise | Category::Reduction) => return Some(value),
                _ if masked.contains(&value) => return Some(value),
                _ => return None,
            }
        }
    }

    fn build(&self, mask: &Mask, node: &Node, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let ty = self.graph.ty(node.out());
        let value = rebuild.get(mask.value)?;
        let b = &mut rebuild.builder;
        let dtype = match mask.size <= i64::from(i32::MAX) {
            true => DType::I32,
            false => DType::I64,
        };
        let mut places = b.arange(0, mask.size, 1, Some(dtype), ty.device)?;
        if mask.from_last > 1 {
            let mut shape = vec![1.into(); mask.from_last];
            shape[0] = mask.size.into();
            places = b.emit(Op::View { shape }, &[places])?;
        }
        let mut beside = |op, place: i64| {
            let place = b.full(place, Vec::new(), dtype, ty.device)?;
            b.emit(Op::Compare(op), &[places, place])
        };
        let kept = match (mask.start > 0, mask.end < mask.size) {
            (true, false) => beside(Compare::Lt, mask.start)?,
            (false, _) => beside(Compare::Ge, mask.end)?,
            (true, true) => {
                let (before, behind) = (
                    beside(Compare::Lt, mask.start)?,
                    beside(Compare::Ge, mask.end)?,
                );
                b.emit(Op::Binary(Binary::BitwiseOr), &[before, behind])?
            }
        };
        let number = b.full(mask.number, Vec::new(), ty.dtype, ty.device)?;
        let chosen = b.emit(Op::Where, &[kept, value, number])?;
        match b.ty(chosen).shape == ty.shape {
            true => Ok(chosen),
            false => {
                let shape = ty.shape.clone();
                b.emit(Op::View { shape }, &[chosen])
            }
        }
    }
}
