//! Which group waits for which.
//!
//! Groups grow and merge while nodes are visited, so edges come at any time and no order of the groups is final before the end. Every group has a *level* above that of all groups that it waits
//! for: whether one waits for another, even through others, is then a search among the few levels between them, however many groups there are.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

#[derive(Debug, Default)]
pub(crate) struct Waits {
    groups: Vec<Edges>,
}

#[derive(Debug, Default)]
struct Edges {
    level: u32,
    /// Groups that must run before.
    before: BTreeSet<usize>,
    /// Groups that wait for this one.
    after: BTreeSet<usize>,
}

impl Waits {
    /// A group that waits for others.
    pub(crate) fn push(&mut self, before: impl IntoIterator<Item = usize>) {
        let group = self.groups.len();
        self.groups.push(Edges::default());
        for other in before {
            self.add(group, other);
        }
    }

    /// Lets `group` wait for `other`, which does not wait for it.
    pub(crate) fn add(&mut self, group: usize, other: usize) {
        if group == other || !self.groups[group].before.insert(other) {
            return;
        }
        self.groups[other].after.insert(group);
        self.raise(group, self.groups[other].level + 1);
    }

    /// The groups that a group waits for itself.
    pub(crate) fn before(&self, group: usize) -> &BTreeSet<usize> {
        &self.groups[group].before
    }

    /// The groups that wait for a group themselves.
    pub(crate) fn after(&self, group: usize) -> &BTreeSet<usize> {
        &self.groups[group].after
    }

    /// Whether `group` is `other` or needs it to have run before.
    pub(crate) fn depends(&self, group: usize, other: usize) -> bool {
        let floor = self.groups[other].level;
        let mut seen = FxHashSet::default();
        let mut stack = vec![group];
        while let Some(g) = stack.pop() {
            if g == other {
                return true;
            }
            let higher = |&&d: &&usize| d == other || self.groups[d].level > floor;
            if self.groups[g].level > floor && seen.insert(g) {
                stack.extend(self.groups[g].before.iter().filter(higher));
            }
        }
        false
    }

    /// Gives all edges of `from` to `into`; nothing stands between the two.
    pub(crate) fn merge(&mut self, from: usize, into: usize) {
        let Edges { before, after, .. } = std::mem::take(&mut self.groups[from]);
        for other in before {
            self.groups[other].after.remove(&from);
            self.add(into, other);
        }
        for other in after {
            self.groups[other].before.remove(&from);
            self.add(other, into);
        }
    }

    /// A group's level becomes at least so high, and those of all that wait for it follow.
    fn raise(&mut self, group: usize, level: u32) {
        let mut stack = vec![(group, level)];
        // No chain is longer than there are groups: what would go on for ever is a circle, which the order of the groups reports.
        let most = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        while let Some((g, level)) = stack.pop() {
            if self.groups[g].level < level && level <= most {
                self.groups[g].level = level;
                stack.extend(self.groups[g].after.iter().map(|&next| (next, level + 1)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The oracle: a search along all edges.
    fn reaches(edges: &[(usize, usize)], group: usize, other: usize) -> bool {
        let mut seen = BTreeSet::from([group]);
        let mut stack = vec![group];
        while let Some(g) = stack.pop() {
            for &(a, b) in edges {
                if a == g && seen.insert(b) {
                    stack.push(b);
                }
            }
        }
        seen.contains(&other)
    }

    proptest! {
        /// Edges in any order, then merges wherever no third group stands between: both sides agree on who waits for whom.
        #[test]
        fn levels_change_no_answer(
            pairs in prop::collection::vec((0usize..12, 0usize..12), 0..40),
            merges in prop::collection::vec((0usize..12, 0usize..12), 0..6),
        ) {
            let mut waits = Waits::default();
            (0..12).for_each(|_| waits.push([]));
            let mut edges: Vec<(usize, usize)> = Vec::new();
            for (a, b) in pairs {
                if a != b && !reaches(&edges, b, a) {
                    edges.push((a, b));
                    waits.add(a, b);
                }
            }
            let mut dead = BTreeSet::new();
            for (from, into) in merges {
                let between = (0..12).any(|g| g != from && g != into
                    && (reaches(&edges, into, g) && reaches(&edges, g, from) || reaches(&edges, from, g) && reaches(&edges, g, into)));
                if from == into || between || dead.contains(&from) || dead.contains(&into) {
                    continue;
                }
                let renamed = |g: usize| if g == from { into } else { g };
                edges = edges.iter().map(|&(a, b)| (renamed(a), renamed(b))).filter(|(a, b)| a != b).collect();
                waits.merge(from, into);
                dead.insert(from);
            }
            for a in (0..12).filter(|g| !dead.contains(g)) {
                for b in (0..12).filter(|g| !dead.contains(g)) {
                    prop_assert_eq!(waits.depends(a, b), reaches(&edges, a, b), "{} on {}", a, b);
                }
            }
        }
    }
}
