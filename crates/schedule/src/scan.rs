//! Recurrences in groups: what they are made of is computed step by step beside them, and so is what is made of them.
//!
//! A group with a recurrence walks one dim in order. It takes elementwise work on either side, and afterwards reductions over other dims that are short enough to lie whole in a step, so that the
//! states themselves need not be stored.

use std::collections::BTreeSet;

use oxyfuel_base::Result;
use oxyfuel_graph::{Node, NodeId, Op};

use crate::fuse::{Draft, Fuser};
use crate::group::GroupKind;

/// The most elements that a reduction folds at every step of a recurrence.
const MAX_FOLDED: i64 = 64;
/// Fewer lines than this side by side are no work for vectors, and what would join is better computed before.
const MIN_LINES: i64 = 8;

impl Fuser<'_> {
    pub(crate) fn visit_scan(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let Op::LinearScan { dim } = node.op else {
            return self.start(id, node, GroupKind::Writes(id), self.shape(node.out()));
        };
        let shape = self.shape(node.out());
        let known = shape
            .iter()
            .map(|extent| extent.as_const().unwrap_or(MIN_LINES));
        let beside = known.enumerate().filter(|&(d, _)| d != dim);
        let lines = beside.fold(1i64, |all, (_, extent)| all.saturating_mul(extent));
        let mut candidates: Vec<usize> = node
            .inputs
            .iter()
            .filter_map(|&v| self.group_behind(v))
            .filter(|&group| lines >= MIN_LINES && self.may_join(id, group))
            .collect();
        candidates.sort_unstable();
        candidates.dedup();
        let joined = candidates.iter().rev().find_map(|&g| {
            let (map, grown) = self.dims_for(node, g)?;
            let draft = &self.drafts[g];
            let covers = map.iter().flatten().count() == draft.dims.len();
            let along = map.get(dim).copied().flatten();
            let fits = draft.kind == GroupKind::Loops
                && draft.reduced.is_empty()
                && covers
                && !draft.overwrites
                && (draft.scanned.is_none() || draft.scanned == along)
                && (along.is_some() || shape.get(dim).is_none_or(|extent| extent.is_const(1)));
            fits.then_some((g, map, grown))
        });
        let group = match joined {
            Some((group, map, grown)) => {
                self.place(id, node, group, (map, grown));
                group
            }
            None => {
                self.start(id, node, GroupKind::Loops, shape)?;
                self.drafts.len() - 1
            }
        };
        let along = self.maps[&node.out()].get(dim).copied().flatten();
        self.drafts[group].scanned = self.drafts[group].scanned.or(along);
        for other in candidates {
            if other != group && !self.drafts[other].dead {
                self.try_merge(node, other, group);
            }
        }
        Ok(())
    }

    /// Whether a step of the group's recurrence holds all that a reduction over these dims needs.
    pub(crate) fn folds_in_a_step(&self, draft: &Draft, reduced: &BTreeSet<usize>) -> bool {
        let folded = reduced
            .iter()
            .map(|&d| draft.dims[d].as_const().unwrap_or(i64::MAX))
            .fold(1, i64::saturating_mul);
        folded <= MAX_FOLDED && draft.scanned.is_none_or(|along| !reduced.contains(&along))
    }
}
