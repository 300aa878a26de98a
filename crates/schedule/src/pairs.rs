//! Two products of one operand whose results meet: `silu(x @ a) * (x @ b)`, a gated layer.
//!
//! ```text
//!   x ─┬─▶ mm a ─▶ silu ─┐
//!      └─▶ mm b ─────────┴─▶ mul        one group: x is brought into panels once, and neither product is written to memory
//! ```
//!
//! Both second operands have the same sizes and lie alike, so that one kernel walks along both with the same steps. GPUs keep products of their own, which a library may compute.

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{Category, NodeId, Op, ValueId};
use oxyfuel_plan::OperandHome;

use crate::fuse::{Draft, Fuser};
use crate::group::GroupKind;

/// Rows of a weight whose neighbouring lines fill the places that they share in a second-level cache.
const DEEP: i64 = 512;

impl Fuser<'_> {
    /// What two groups of products are together, where one kernel can be both: one product each, of the same first operand.
    pub(crate) fn pair(&self, a: &Draft, b: &Draft) -> Option<GroupKind> {
        let (GroupKind::Contraction(first), GroupKind::Contraction(second)) = (a.kind, b.kind)
        else {
            return None;
        };
        let is_alone = |draft: &Draft| {
            let products = draft.nodes.iter().filter(|&&node| self.is_product(node));
            products.count() == 1 && draft.reduced.is_empty()
        };
        let fits =
            !self.target.is_simt() && is_alone(a) && is_alone(b) && self.are_alike(first, second);
        fits.then(|| GroupKind::Contraction(first.min(second)))
    }

    fn is_product(&self, node: NodeId) -> bool {
        self.graph.nodes[node].op.category() == Category::Matmul
    }

    /// Whether two products have the same first operand, and second ones of the same sizes that lie alike.
    fn are_alike(&self, first: NodeId, second: NodeId) -> bool {
        let [first, second] = [first, second].map(|node| &self.graph.nodes[node]);
        let panels = |op: &Op| matches!(op, Op::MmPanels { .. });
        // Sums of bytes may be corrected by those of their columns, which are of one operand.
        let bytes = |op: &Op| matches!(op, Op::IntMm);
        let (Some((a, b)), Some((c, d))) =
            (first.op.product_operands(), second.op.product_operands())
        else {
            return false;
        };
        let [a, b] = [first.inputs[a], self.read(first.inputs[b])];
        let [c, d] = [second.inputs[c], self.read(second.inputs[d])];
        let [from_a, from_b, from_c, from_d] = [a, b, c, d].map(|v| self.placements.of(v));
        let same = from_a.root == from_c.root
            && from_a.offset == from_c.offset
            && from_a.strides == from_c.strides
            && self.graph.ty(a) == self.graph.ty(c);
        let known = |v| {
            let shape: Vec<_> = self.shape(v);
            shape.iter().all(|size| size.as_const().is_some())
        };
        // How many rows there are is for the call to say.
        same && known(b)
            && self.graph.ty(b) == self.graph.ty(d)
            && self.graph.ty(first.out()) == self.graph.ty(second.out())
            && from_b.strides == from_d.strides
            && panels(&first.op) == panels(&second.op)
            && !bytes(&first.op)
            && !bytes(&second.op)
            && !self.crowds(a, b)
    }

    /// Whether two weights would push each other out of the cache: one that runs along its columns is copied for the matrix unit a line of each row at a time, and the lines beside them, which come along, wait for the next columns.
    fn crowds(&self, rows: ValueId, weight: ValueId) -> bool {
        let (dtype, ty) = (self.graph.ty(rows).dtype, self.graph.ty(weight));
        let unit = self.target.matrix_unit(dtype, dtype, DType::F32);
        let copied = unit.is_some_and(|unit| unit.operands == OperandHome::Memory);
        let [.., along, across] = &self.placements.of(weight).strides[..] else {
            return false;
        };
        let deep = |size: &Expr| size.as_const().is_some_and(|depth| depth >= DEEP);
        copied
            && across.is_const(1)
            && !along.is_const(1)
            && ty.shape[..ty.rank() - 1].last().is_some_and(deep)
    }
}
