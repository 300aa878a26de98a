//! Reductions along the rows of a product's result: `softmax(x @ w)`, a norm of `x @ w + residual`.
//!
//! ```text
//!   mm ─▶ add ─▶ amax ─▶ sub ─▶ exp ─▶ sum ─▶ div        one group: an instance has whole rows, whose sums never leave its caches
//! ```
//!
//! An instance that has whole rows reads all of the second operand, where it would read a share of it otherwise. So that one has to fit a cache beside the rows, and there have to be rows for every worker.
//! Everything is of known size, since the kernel is made for it: what this says yes to, it can do.

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{Category, NodeId, Op};

use crate::fuse::{Draft, Fuser};

/// Rows that an instance has at least.
const ROWS: i64 = 64;
/// Rows and columns below which kernels that read operands where they lie are faster, or a row is over before its reduction has begun.
const FEW: i64 = 16;
pub(crate) const SHORT: i64 = 64;

impl Fuser<'_> {
    /// Whether the kernel of a product can have instances of whole rows, which it reduces, or makes first.
    pub(crate) fn has_whole_rows(&self, draft: &Draft, product: NodeId) -> bool {
        let node = &self.graph.nodes[product];
        let (Op::Mm | Op::Bmm | Op::Addmm { .. }) = node.op else {
            return false;
        };
        let products = draft.nodes.iter().map(|&id| &self.graph.nodes[id]);
        let alone = products
            .filter(|node| node.op.category() == Category::Matmul)
            .count()
            == 1;
        let Some((a, b)) = node.op.product_operands() else {
            return false;
        };
        let [a, b, out] = [node.inputs[a], node.inputs[b], node.out()].map(|v| self.graph.ty(v));
        let single = [a, b, out].iter().all(|ty| ty.dtype == DType::F32);
        let known = |shape: &[Expr]| {
            let sizes = shape.iter().map(Expr::as_const);
            sizes.collect::<Option<Vec<i64>>>()
        };
        let (Some(left), Some(sizes)) = (known(&a.shape), known(&out.shape)) else {
            return false;
        };
        let (&[.., k], &[ref batch @ .., m, n]) = (&left[..], &sizes[..]) else {
            return false;
        };
        let size = a.dtype.size() as i64;
        let half = i64::try_from(self.target.l2_bytes / 2).unwrap_or(i64::MAX);
        let held = |elements: i64| elements.saturating_mul(size) <= half;
        let rows = batch.iter().fold(m, |rows, n| rows.saturating_mul(*n));
        let enough = rows >= ROWS * i64::from(self.target.workers.max(1));
        let vectors = !self.target.is_simt() && self.target.vector_bytes > 0;
        vectors
            && single
            && alone
            && enough
            && m > FEW
            && n >= SHORT
            && k >= FEW
            && held(k.saturating_mul(n))
            && held(n.max(k).saturating_mul(ROWS))
    }
}
