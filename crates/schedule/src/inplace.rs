//! Nodes that write into an input, among the groups: whoever reads the old contents runs before, or reads an element just before it is written.

use oxyfuel_base::{Expr, Id};
use oxyfuel_graph::overwrite::updated_window;
use oxyfuel_graph::{Node, NodeId, Op, Placement, ValueId, same_strides};

use crate::fuse::{Fuser, reads_memory, result_dim};
use crate::group::{DimMap, GroupKind};

impl Fuser<'_> {
    /// The group of a node that overwrites an input comes after those of all who read it.
    pub(crate) fn wait_for_readers(&mut self, id: NodeId, node: &Node) {
        if !node.outputs.iter().any(|&v| self.overwrites.contains(v)) {
            return;
        }
        let Some(group) = self.group_of[id.index()] else {
            return;
        };
        let before = self.overwrites.readers(id).iter();
        let before: Vec<usize> = before
            .filter_map(|reader| self.group_of[reader.index()])
            .filter(|&other| other != group)
            .collect();
        for other in before {
            self.waits.add(group, other);
        }
        self.drafts[group].overwrites = true;
    }

    /// Whether a node may overwrite an input inside of a group: readers in other groups can run before it, and those in this one read the very element that the node
    /// writes, once.
    pub(crate) fn may_overwrite(
        &self,
        id: NodeId,
        node: &Node,
        group: usize,
        map: &DimMap,
        fits: bool,
    ) -> bool {
        let readers = self.overwrites.readers(id);
        let (inside, outside): (Vec<NodeId>, Vec<NodeId>) = readers
            .iter()
            .partition(|reader| self.group_of[reader.index()] == Some(group));
        let early = |reader: &NodeId| {
            self.group_of[reader.index()].is_none_or(|other| !self.depends(other, group))
        };
        if !outside.iter().all(early) {
            return false;
        }
        if inside.is_empty() {
            return true;
        }
        let draft = &self.drafts[group];
        let target = self.overwrites.memory(self.placements.of(node.out()));
        let whole = (0..draft.dims.len()).all(|dim| map.contains(&Some(dim)));
        let written = self.walk(group, node.out(), &target, map);
        fits && draft.reduced.is_empty()
            && whole
            && inside
                .iter()
                .all(|&reader| self.reads_the_same(reader, group, &target, &written))
    }

    /// Whether a write has nothing to do: it brings nothing, or what it brings was computed in its very place.
    pub(crate) fn is_there(&self, kind: GroupKind) -> bool {
        let GroupKind::Writes(id) = kind else {
            return false;
        };
        let node = &self.graph.nodes[id];
        let empty = |value: ValueId| self.graph.ty(value).shape.iter().any(|e| e.is_const(0));
        if let Op::Cat { .. } = node.op {
            let there = |v: ValueId| self.destinations.contains(self.placements.root(v));
            return node.inputs.iter().all(|&v| there(v) || empty(v))
                && node.inputs.iter().any(|&v| there(v));
        }
        let [base, src, ..] = node.inputs[..] else {
            return false;
        };
        if !self.overwrites.contains(node.out()) {
            return false;
        }
        if empty(src) {
            return true;
        }
        let place = self.overwrites.memory(self.placements.of(src));
        let base = self.overwrites.memory(self.placements.of(base));
        updated_window(&node.op, &base).is_some_and(|window| {
            place.root == window.root
                && place.offset == window.offset
                && same_strides(&self.graph.ty(src).shape, &place.strides, &window.strides)
        })
    }

    fn reads_the_same(
        &self,
        reader: NodeId,
        group: usize,
        target: &Placement,
        written: &[Expr],
    ) -> bool {
        let node = &self.graph.nodes[reader];
        let Some(map) = self.maps.get(&node.out()) else {
            return false;
        };
        node.inputs.iter().enumerate().all(|(i, &operand)| {
            let place = self.overwrites.memory(self.placements.of(operand));
            if place.root != target.root {
                return true;
            }
            // Where it reads, only the data says.
            if reads_memory(&node.op, i) {
                return false;
            }
            let rank = self.graph.ty(operand).rank();
            let dims: DimMap = match self.operand_maps.get(&reader) {
                Some(dims) => dims.clone(),
                None => (0..rank)
                    .map(|j| map[result_dim(&node.op, i, j, map.len(), rank)])
                    .collect(),
            };
            place.offset == target.offset && self.walk(group, operand, &place, &dims) == written
        })
    }

    /// How far a value moves in memory along each dim of a group.
    fn walk(
        &self,
        group: usize,
        value: ValueId,
        place: &Placement,
        dims: &[Option<usize>],
    ) -> Vec<Expr> {
        let mut strides = vec![Expr::ZERO; self.drafts[group].dims.len()];
        let shape = &self.graph.ty(value).shape;
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
