//! Casts of weights that the kernels of products make themselves, as they read or copy the weight.
//!
//! ```text
//!   w i8 ─▶ _to_copy ─▶ mm        one group: the product reads bytes, and nothing wide is written to memory
//! ```
//!
//! The cast is exact, stands right before the product, and nobody else reads it. It is a node of the product's group without a place in the group's domain.

use oxyfuel_base::Id;
use oxyfuel_graph::{Node, NodeId, Op, ValueId};

use crate::fuse::Fuser;

impl Fuser<'_> {
    /// Whether a node is a cast that the product behind it makes.
    pub(crate) fn is_widened(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes[id];
        if self.target.is_simt() || !matches!(node.op, Op::Cast { .. }) {
            return false;
        }
        let (source, out) = (node.inputs[0], node.out());
        let root = self.placements.root(source);
        // What nobody writes to is the same whenever it is read.
        let Some(input) = self.graph.inputs.iter().position(|&input| input == root) else {
            return false;
        };
        let written = self.graph.outputs.iter().any(|o| o.alias == Some(input));
        let reader = match self.users.of(out) {
            [reader] if self.users.count(out) == 1 => *reader,
            _ => return false,
        };
        let product = &self.graph.nodes[reader];
        let plain = matches!(product.op, Op::Mm | Op::Bmm | Op::Addmm { .. });
        let second = product.op.product_operands().map(|(_, second)| second);
        let mut others = product.inputs.iter().enumerate();
        plain
            && !written
            && others.all(|(i, &input)| (input == out) == (Some(i) == second))
            && self.guide.copy(out).is_none()
            && self.guide.part(id) == self.guide.part(reader)
            && Op::product_widens(self.graph.ty(source).dtype, self.graph.ty(out).dtype)
    }

    /// What is read of an operand of a product: what it was cast from, where the product makes the cast.
    pub(crate) fn read(&self, operand: ValueId) -> ValueId {
        match self.producer[operand.index()] {
            Some(cast) if self.is_widened(cast) => self.graph.nodes[cast].inputs[0],
            _ => operand,
        }
    }

    /// Gives the group that was started last, of a product, the casts that it makes.
    pub(crate) fn take_widened(&mut self, product: &Node) {
        let group = self.drafts.len() - 1;
        for &operand in &product.inputs {
            let Some(cast) = self.producer[self.placements.root(operand).index()] else {
                continue;
            };
            if self.is_widened(cast) {
                self.group_of[cast.index()] = Some(group);
                self.drafts[group].nodes.push(cast);
            }
        }
        self.drafts[group].nodes.sort_unstable();
    }
}
