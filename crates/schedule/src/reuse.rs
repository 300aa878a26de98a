//! Results that are computed where an operand lies that nobody reads any more.
//!
//! A group may write a result over an intermediate value that dies in it: the two are one buffer then, as an input and its update are, and lowering sees a buffer that is read and written. It may where
//! - the group is elementwise, or has reductions none of which waits for another, and all of its results have every dim of its domain that is not reduced, and no other: each element is written once, after all that is read for it;
//! - every read of the value in the group is of the very element that the result has at that point: same dtype, same strides over the domain, as many elements;
//! - a kernel of ours made the value and nobody reads it later; neither of the two is an operand or a result of the host.
//!
//! An input that is given away is such a value too, where a result of the graph ends up in its memory.
//!
//! An update (`slice_scatter`, `index_put`, `scatter`) of a value that dies in it writes its part alone, for the same reasons.
//!
//! Values that lie in each other's place form a chain; its memory is that of the first, or of the last where that is returned.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Expr, Id};
use oxyfuel_graph::overwrite::is_update;
use oxyfuel_graph::{
    Device, Graph, Node, Op, Overwrites, Placement, Placements, ValueId, same_strides,
};

use crate::destinations::{Destinations, writes_anywhere};
use crate::fuse::{reads_memory, result_dim};
use crate::group::{DimMap, Group, GroupKind};

/// The roots that lie in the memory of another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reuse {
    homes: BTreeMap<ValueId, ValueId>,
}

impl Reuse {
    /// Where a value lies, given its placement over the root whose part it is.
    pub(crate) fn memory(&self, place: Placement) -> Placement {
        match self.homes.get(&place.root) {
            Some(&root) => Placement { root, ..place },
            None => place,
        }
    }
}

/// Finds the results of groups, in the order in which they run, that can lie where an operand was.
pub(crate) fn reuse(
    graph: &Graph,
    groups: &[Group],
    placements: &Placements,
    overwrites: &Overwrites,
    destinations: &Destinations,
) -> Reuse {
    let binds = |op: &Op| matches!(op, Op::External { call } if !call.binds.is_empty());
    let elsewhere = graph
        .values
        .values()
        .any(|value| matches!(value.ty.device, Device::Cuda(_)));
    // Behind a call that gives a symbol its number, memory is another's.
    if elsewhere || graph.nodes.values().any(|node| binds(&node.op)) {
        return Reuse::default();
    }
    let search = Search::new(graph, groups, placements, overwrites, destinations);
    let mut next: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (step, group) in groups.iter().enumerate() {
        for (result, operand) in search.pairs(step, group) {
            next.insert(operand, result);
        }
    }
    let results: BTreeSet<ValueId> = next.values().copied().collect();
    let mut homes = BTreeMap::new();
    for &head in next.keys().filter(|root| !results.contains(root)) {
        let mut chain: Vec<ValueId> =
            std::iter::successors(Some(head), |root| next.get(root).copied()).collect();
        let last = chain.last().copied();
        let returned = last.filter(|last| search.returned.contains(last));
        let owner = match (graph.values[head].given, returned) {
            (true, Some(_)) => head,
            // Memory that no result needs is left alone.
            (true, None) => {
                chain.remove(0);
                chain[0]
            }
            (false, returned) => returned.unwrap_or(head),
        };
        homes.extend(
            chain
                .into_iter()
                .filter(|&root| root != owner)
                .map(|root| (root, owner)),
        );
    }
    Reuse { homes }
}

struct Search<'a> {
    graph: &'a Graph,
    placements: &'a Placements,
    overwrites: &'a Overwrites,
    destinations: &'a Destinations,
    /// The last group that touches each root.
    last: Vec<usize>,
    /// Roots that kernels of ours make, wherever they shall lie.
    made: BTreeSet<ValueId>,
    /// Roots that the host reads or makes.
    hosted: BTreeSet<ValueId>,
    returned: BTreeSet<ValueId>,
}

impl<'a> Search<'a> {
    fn new(
        graph: &'a Graph,
        groups: &[Group],
        placements: &'a Placements,
        overwrites: &'a Overwrites,
        destinations: &'a Destinations,
    ) -> Self {
        let (mut made, mut hosted) = (BTreeSet::new(), BTreeSet::new());
        let mut last = vec![0; graph.values.len()];
        for (step, group) in groups.iter().enumerate() {
            for &root in group.inputs.iter().chain(&group.outputs) {
                last[root.index()] = step;
            }
            match group.kind {
                GroupKind::External(_) => {
                    hosted.extend(group.inputs.iter().chain(&group.outputs).copied());
                }
                GroupKind::Attention(_) => {}
                GroupKind::Loops
                | GroupKind::Contraction(_)
                | GroupKind::Convolution(_)
                | GroupKind::Writes(_) => {
                    let nodes = group.nodes.iter().map(|&id| &graph.nodes[id]);
                    let free = nodes.filter(|node| writes_anywhere(node) || is_update(&node.op));
                    made.extend(free.map(|node| node.out()));
                }
            }
        }
        let returned = (graph.outputs.iter())
            .map(|out| placements.root(out.value))
            .collect();
        Self {
            graph,
            placements,
            overwrites,
            destinations,
            last,
            made,
            hosted,
            returned,
        }
    }

    /// Results of a group and the operands in whose places they can lie, each at most once.
    fn pairs(&self, step: usize, group: &Group) -> Vec<(ValueId, ValueId)> {
        if let GroupKind::Writes(node) = group.kind {
            return self.update(step, &self.graph.nodes[node]);
        }
        let plain = group.kind == GroupKind::Loops
            && group.scanned.is_none()
            && (group.reduced.is_empty() && group.operand_maps.is_empty()
                || self.reduces_once(group));
        let whole = |root: &ValueId| {
            let map = group.maps.get(root);
            let has = |map: &DimMap, dim: usize| map.contains(&Some(dim));
            let fits = |dim: usize, map| has(map, dim) != group.reduced.contains(&dim);
            map.is_some_and(|map| (0..group.dims.len()).all(|dim| fits(dim, map)))
        };
        let updates = |root: &ValueId| self.overwrites.contains(*root);
        if !plain || !group.outputs.iter().all(whole) || group.outputs.iter().any(updates) {
            return Vec::new();
        }
        let mut free: Vec<ValueId> = (group.inputs.iter().copied())
            .filter(|&root| self.dies(step, root) && self.is_free(root))
            .collect();
        let mut pairs = Vec::new();
        for &result in group.outputs.iter().filter(|&&root| self.is_ours(root)) {
            let found = free
                .iter()
                .position(|&root| self.agree(group, result, root));
            pairs.extend(found.map(|at| (result, free.remove(at))));
        }
        pairs
    }

    /// Whether a group has reductions, and what they read comes from none of them: a kernel in phases then writes no result before all of them have read.
    fn reduces_once(&self, group: &Group) -> bool {
        let mut reduced: BTreeSet<ValueId> = BTreeSet::new();
        for &id in &group.nodes {
            let node = &self.graph.nodes[id];
            let behind = node.inputs.iter().any(|v| reduced.contains(v));
            match node.op {
                Op::Reduce { .. } if behind => return false,
                Op::Reduce { .. } => reduced.extend(&node.outputs),
                _ if group.operand_maps.contains_key(&id) => return false,
                _ if behind => reduced.extend(&node.outputs),
                _ => {}
            }
        }
        !reduced.is_empty()
    }

    /// The result of an update and its base, where the one can lie in the place of the other.
    fn update(&self, step: usize, node: &Node) -> Vec<(ValueId, ValueId)> {
        let [base, ref brought @ ..] = node.inputs[..] else {
            return Vec::new();
        };
        let out = node.out();
        let place = |value: ValueId| self.placements.of(value);
        // What brings nothing copies its base: a kernel has something to do.
        let empty = |&value: &ValueId| self.graph.ty(value).shape.iter().any(|n| n.is_const(0));
        let fits = is_update(&node.op)
            && self.placements.is_root(base)
            && self.dies(step, base)
            && self.is_free(base)
            && self.is_ours(out)
            && same_strides(
                &self.graph.ty(out).shape,
                &place(out).strides,
                &place(base).strides,
            )
            && !brought.iter().any(empty)
            && brought.iter().all(|&value| place(value).root != base);
        if fits { vec![(out, base)] } else { Vec::new() }
    }

    /// Whether nobody reads a root after a group.
    fn dies(&self, step: usize, root: ValueId) -> bool {
        self.last[root.index()] == step && !self.returned.contains(&root)
    }

    /// Whether the memory of a root is for others when it dies.
    fn is_free(&self, root: ValueId) -> bool {
        let given = self.graph.values[root].given && !self.hosted.contains(&root);
        given || self.is_ours(root)
    }

    /// Whether a root has memory of its own, in the arena or as a result.
    fn is_ours(&self, root: ValueId) -> bool {
        self.made.contains(&root)
            && !self.hosted.contains(&root)
            && !self.overwrites.contains(root)
            && !self.destinations.contains(root)
    }

    /// Whether a group reads an operand only at the element that it writes of a result.
    fn agree(&self, group: &Group, result: ValueId, operand: ValueId) -> bool {
        let (ty, other) = (self.graph.ty(result), self.graph.ty(operand));
        if ty.dtype != other.dtype || ty.numel() != other.numel() {
            return false;
        }
        let written = self.walk(group, result, &group.maps[&result]);
        let mut nodes = group.nodes.iter().map(|&id| &self.graph.nodes[id]);
        nodes.all(|node| {
            node.inputs.iter().enumerate().all(|(i, &value)| {
                let place = self.placements.of(value);
                if place.root != operand {
                    return true;
                }
                let Some(map) = group.maps.get(&node.out()) else {
                    return false;
                };
                let reduces = matches!(node.op, Op::Reduce { .. });
                if reads_memory(&node.op, i) || place.offset != Expr::ZERO || reduces {
                    return false;
                }
                let rank = self.graph.ty(value).rank();
                let dims: DimMap = (0..rank)
                    .map(|j| map[result_dim(&node.op, i, j, map.len(), rank)])
                    .collect();
                self.walk(group, value, &dims) == written
            })
        })
    }

    /// How far a value moves in memory along each dim of a group.
    fn walk(&self, group: &Group, value: ValueId, dims: &[Option<usize>]) -> Vec<Expr> {
        let mut strides = vec![Expr::ZERO; group.dims.len()];
        let shape = &self.graph.ty(value).shape;
        let place = self.placements.of(value);
        for ((dim, stride), extent) in dims.iter().zip(&place.strides).zip(shape) {
            if let Some(dim) = dim
                && !extent.is_const(1)
            {
                strides[*dim] += stride.clone();
            }
        }
        strides
    }
}
