//! Work on the first operand of a product that the product's kernel does itself: `layer_norm(x) @ w`.
//!
//! ```text
//!   x ─▶ mean ─▶ sub ─▶ mul ─▶ mm        one group: an instance normalises its rows into a cache, and multiplies them there
//! ```
//!
//! The work is a group of its own kind, loops over rows of the depth, whose only result is the operand, which nobody else reads. Its nodes keep the domain that they have ([`Before`]). As with reductions of a
//! product's rows ([`row_work`](crate::row_work)), an instance has all columns, so that nothing is computed twice.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Expr, Id};
use oxyfuel_graph::{Category, NodeId, ValueId};

use crate::fuse::Fuser;
use crate::group::GroupKind;
use crate::row_work::SHORT;

/// Who reads a value of another group: the node, and which of its operands it is.
type Reader = (NodeId, usize);

impl Fuser<'_> {
    /// Lets products do the work on their first operands.
    pub(crate) fn fold_operands(&mut self) {
        let products = (0..self.drafts.len()).filter_map(|g| match self.drafts[g].kind {
            GroupKind::Contraction(product) if !self.drafts[g].dead => Some((g, product)),
            _ => None,
        });
        let products: Vec<(usize, NodeId)> = products.collect();
        if products.is_empty() || self.target.is_simt() {
            return;
        }
        let read = self.read_outside();
        for (group, product) in products {
            if let Some((from, value)) = self.folds(group, product, &read) {
                let nodes = self.drafts[from].nodes.clone();
                for node in nodes {
                    self.group_of[node.index()] = Some(group);
                }
                self.drafts[from].dead = true;
                self.drafts[group].before = Some((from, value));
                self.waits.merge(from, group);
            }
        }
    }

    /// What each group has that others read, and who they are; a value that is returned is read by no node.
    fn read_outside(&self) -> BTreeMap<usize, BTreeSet<(ValueId, Option<Reader>)>> {
        let mut read: BTreeMap<usize, BTreeSet<(ValueId, Option<Reader>)>> = BTreeMap::new();
        let mut note = |value: ValueId, reader: Option<Reader>, user: Option<usize>| {
            let root = self.placements.root(value);
            if let Some(maker) = self.group_behind(root).filter(|maker| user != Some(*maker)) {
                read.entry(maker).or_default().insert((root, reader));
            }
        };
        for out in &self.graph.outputs {
            note(out.value, None, None);
        }
        for (id, node) in self.graph.nodes.iter() {
            if let Some(user) = self.group_of[id.index()] {
                for (i, &input) in node.inputs.iter().enumerate() {
                    note(input, Some((id, i)), Some(user));
                }
            }
        }
        read
    }

    /// The group whose only result is the first operand of a product, row by row as it lies, and that operand.
    fn folds(
        &self,
        group: usize,
        product: NodeId,
        read: &BTreeMap<usize, BTreeSet<(ValueId, Option<Reader>)>>,
    ) -> Option<(usize, ValueId)> {
        let draft = &self.drafts[group];
        let node = &self.graph.nodes[product];
        let (first, _) = node.op.product_operands()?;
        let operand = node.inputs[first];
        let place = self.placements.of(operand);
        let root = place.root;
        let from = self.group_behind(root).filter(|from| *from != group)?;
        let only = BTreeSet::from([(root, Some((product, first)))]);
        let work = &self.drafts[from];
        // What the product itself writes over, or somebody who has to run before it, may be what the work reads.
        let mut before = self.waits.before(group).iter();
        let direct = !before.any(|&other| other != from && self.depends(other, from));
        let plain = work.kind == GroupKind::Loops
            && work.scanned.is_none()
            && direct
            && !work.overwrites
            && !draft.overwrites
            && work.copies.is_none()
            && draft.copies.is_none()
            && work.part == draft.part
            && read.get(&from) == Some(&only);
        let computes = |id: &NodeId| {
            let category = self.graph.nodes[*id].op.category();
            matches!(category, Category::Pointwise | Category::Reduction)
        };
        let [ref rows @ .., ref depth] = work.dims[..] else {
            return None;
        };
        let depth = depth.as_const()?;
        let rows = rows.iter().map(Expr::as_const);
        let rows = rows.collect::<Option<Vec<i64>>>()?;
        let rows = rows.into_iter().fold(1i64, i64::saturating_mul);
        let last = work.dims.len() - 1;
        // Rows of the operand are those of the work, one after the other.
        let along = self.maps.get(&root)?.iter().flatten().copied();
        let shape = &self.graph.ty(operand).shape;
        let [m, k] = shape.as_slice() else {
            return None;
        };
        let fits = along.eq(0..work.dims.len())
            && work.reduced.iter().all(|&dim| dim == last)
            && (m.is_const(rows) && k.is_const(depth))
            && place.offset.is_const(0)
            && place.strides == [Expr::constant(depth), Expr::ONE]
            && depth >= SHORT;
        let does = plain && fits && work.nodes.iter().all(computes);
        (does && self.has_whole_rows(draft, product)).then_some((from, root))
    }
}
