//! Groups side by side: no value passes between them, but one pass can do the work of both.
//!
//! Two groups with the same domain and the same reduced dims share a kernel where neither waits for the other and one of these holds:
//!
//! - they read the same tensor of the domain's size, which is then read once (a mean beside a variance, gradients of two operands);
//! - they compute parts of one concatenation and read something in common (the halves of a rotary embedding).
//!
//! Work on tensors of its own shares no pass, but may share a launch: see `beside.rs`.
//!
//! Groups that write into inputs join too: who reads the old contents runs before them, so that neither of the two does.
//!
//! Only groups that stand near each other in the program are tried: results that wait long for a distant sibling keep memory.

use std::collections::{BTreeSet, HashMap};

use oxyfuel_base::{Expr, Id};
use oxyfuel_graph::{NodeId, ValueId};

use crate::fuse::{Fuser, MAX_NODES, reads_memory};
use crate::group::GroupKind;

/// How many nodes may stand between two siblings.
const NEAR: usize = 64;
/// The most tensors that one pass reads and writes: more streams than the hardware follows make it slower than two passes.
const MOST_STREAMS: usize = 12;
/// How many earlier groups of the same domain are looked at.
const TRIED: usize = 8;

impl Fuser<'_> {
    /// Merges siblings, in the order of the program.
    pub(crate) fn fuse_siblings(&mut self) {
        let mut seen: HashMap<(Vec<Expr>, Vec<usize>), Vec<usize>> = HashMap::new();
        for group in 0..self.drafts.len() {
            let draft = &self.drafts[group];
            let alone = draft.kind != GroupKind::Loops
                || draft.dead
                || draft.scanned.is_some()
                || draft.dims.is_empty();
            if alone {
                continue;
            }
            let key = (draft.dims.clone(), draft.reduced.iter().copied().collect());
            let earlier = seen.entry(key).or_default();
            let sibling = earlier
                .iter()
                .rev()
                .take(TRIED)
                .copied()
                .find(|&other| self.are_siblings(other, group));
            match sibling {
                Some(other) => {
                    earlier.retain(|&g| g != other);
                    earlier.push(group);
                    self.join(other, group);
                }
                None => earlier.push(group),
            }
        }
    }

    fn are_siblings(&self, a: usize, b: usize) -> bool {
        let (first, second) = (&self.drafts[a].nodes, &self.drafts[b].nodes);
        let far = |x: &[NodeId], y: &[NodeId]| match (x.iter().max(), y.iter().min()) {
            (Some(last), Some(first)) => first.index().saturating_sub(last.index()) > NEAR,
            _ => true,
        };
        if self.drafts[a].part != self.drafts[b].part {
            return false;
        }
        if first.len() + second.len() > MAX_NODES || far(first, second) || far(second, first) {
            return false;
        }
        let (reads_a, reads_b) = (self.reads(a), self.reads(b));
        let mut shared = reads_a.intersection(&reads_b).peekable();
        let parts = shared.peek().is_some() && self.parts_of_one(a, b);
        let whole = parts || shared.any(|&root| self.covers(root, a));
        let streams = reads_a.union(&reads_b).count() + self.stored(a) + self.stored(b);
        whole && streams <= MOST_STREAMS && !self.depends(a, b) && !self.depends(b, a)
    }

    /// Whether two groups compute parts of one concatenation in their places.
    fn parts_of_one(&self, a: usize, b: usize) -> bool {
        let owners = |group: usize| {
            let nodes = self.drafts[group].nodes.iter();
            nodes.filter_map(|&n| self.destinations.owner(self.graph.nodes[n].out()))
        };
        let first: BTreeSet<ValueId> = owners(a).collect();
        owners(b).any(|owner| first.contains(&owner))
    }

    /// Roots that a group reads from memory.
    fn reads(&self, group: usize) -> BTreeSet<ValueId> {
        let nodes = self.drafts[group].nodes.iter();
        let operands = nodes.flat_map(|&n| {
            let node = &self.graph.nodes[n];
            let plain = node.inputs.iter().enumerate();
            plain.filter_map(|(i, &v)| (!reads_memory(&node.op, i)).then_some(v))
        });
        operands
            .map(|v| self.placements.root(v))
            .filter(|&root| self.group_behind(root) != Some(group))
            .collect()
    }

    /// Results of a group that someone else reads; an upper bound is good enough.
    fn stored(&self, group: usize) -> usize {
        self.waits.after(group).len().max(1)
    }

    /// Whether a root has as many elements as the domain of a group.
    fn covers(&self, root: ValueId, group: usize) -> bool {
        let domain: Expr = self.drafts[group].dims.iter().cloned().product();
        self.graph.values[root].ty.numel() == domain
    }

    /// Moves all nodes of `from` into `into`, dim by dim.
    fn join(&mut self, from: usize, into: usize) {
        let nodes = std::mem::take(&mut self.drafts[from].nodes);
        for &node in &nodes {
            self.group_of[node.index()] = Some(into);
        }
        let overwrites = self.drafts[from].overwrites;
        let draft = &mut self.drafts[into];
        draft.overwrites |= overwrites;
        draft.nodes.extend(nodes);
        draft.nodes.sort_unstable();
        self.drafts[from].dead = true;
        self.waits.merge(from, into);
    }
}
