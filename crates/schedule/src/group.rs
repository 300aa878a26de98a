//! What a group is: nodes that become one kernel, over one iteration domain.

use std::collections::BTreeMap;

use oxyfuel_base::{Expr, Id};
use oxyfuel_graph::{NodeId, Overwrites, Placements, ValueId};

/// For each dim of a value, the domain dim that it runs along; `None` where the value does not vary (extent 1, or repeated).
pub type DimMap = Vec<Option<usize>>;

/// The groups of a graph in an order in which they can run, and where views point.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub groups: Vec<Group>,
    /// Views over the roots that groups compute.
    pub placements: Placements,
    /// Roots that live in an input.
    pub overwrites: Overwrites,
    /// Views over memory: as `placements`, but what lives in an input, in the result that it is a part of, or where an operand was, is a window on it.
    pub memory: Placements,
    /// The node that computes each value, by the value's number.
    pub producers: Vec<Option<NodeId>>,
}

impl Schedule {
    /// The node that computes a value.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        self.producers.get(value.index()).copied().flatten()
    }

    /// The root whose memory a root has: its own, that of the result it is a part of, or that of an operand whose place it takes.
    pub fn owner(&self, root: ValueId) -> ValueId {
        if self.overwrites.contains(root) {
            root
        } else {
            self.memory.root(root)
        }
    }
}

/// Nodes that share a kernel.
#[derive(Clone, Debug)]
pub struct Group {
    pub kind: GroupKind,
    /// Extents of the iteration domain; no extent is the constant 1.
    pub dims: Vec<Expr>,
    /// Domain dims that the group's reductions run over, ascending. Empty: no reduction.
    pub reduced: Vec<usize>,
    /// The domain dim that the group's recurrences run along, step by step.
    pub scanned: Option<usize>,
    /// In an order in which they can be computed; those of the work before it among them.
    pub nodes: Vec<NodeId>,
    pub before: Option<Before>,
    /// Dims of every value that the group computes.
    pub maps: BTreeMap<ValueId, DimMap>,
    /// Dims of what a reduction or a copied reshape reads, which the result's dims do not show.
    pub operand_maps: BTreeMap<NodeId, DimMap>,
    /// Values of other groups, inputs and constants that the group reads, as roots.
    pub inputs: Vec<ValueId>,
    /// Values that must be in memory after the group ran.
    pub outputs: Vec<ValueId>,
    /// Ways to run it, best first by the cost model; a tuner may choose another.
    pub alternatives: Vec<Strategy>,
    /// The groups that share a launch here, each over a domain of its own; none where this is one group.
    pub members: Vec<Group>,
    /// Members run one after the other; otherwise side by side, and know nothing of each other.
    pub in_order: bool,
}

/// Work on the first operand of a product, which the product's kernel does row by row.
#[derive(Clone, Debug)]
pub struct Before {
    /// Its own domain, which the maps of its values are of: the rows, and the depth last.
    pub dims: Vec<Expr>,
    pub reduced: Vec<usize>,
    pub nodes: Vec<NodeId>,
    /// The operand.
    pub value: ValueId,
}

impl Group {
    /// Whether a node is part of the work on a product's operand.
    pub fn is_before(&self, node: NodeId) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| before.nodes.contains(&node))
    }

    /// The groups that are one piece of work each.
    pub fn pieces(&self) -> Vec<&Group> {
        match self.members.is_empty() {
            true => vec![self],
            false => self.members.iter().flat_map(Group::pieces).collect(),
        }
    }

    /// Whether a node that computes `out` is a cast that a product of the group makes as it reads its operand: all others have a place in the domain.
    pub fn is_widened(&self, node: NodeId, out: ValueId) -> bool {
        matches!(self.kind, GroupKind::Contraction(_))
            && self.nodes.contains(&node)
            && !self.maps.contains_key(&out)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Elementwise work, reductions and recurrences over one domain.
    Loops,
    /// A matrix product (the node) with elementwise work on its result.
    Contraction(NodeId),
    /// A convolution (the node) with elementwise work on its result.
    Convolution(NodeId),
    /// Attention (the node): its own kernel, with nothing around it.
    Attention(NodeId),
    /// Values copied into parts of one result (concatenation, a write into a slice).
    Writes(NodeId),
    /// A call of the host (the node): no kernel.
    External(NodeId),
}

/// How a group runs. What each means for tiles is decided by `lower`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One pass of tiles over the domain; reduced dims lie whole inside a tile.
    Tiles,
    /// The reduced dims are cut into `parts`, whose partial results a second phase combines.
    SplitReduction { parts: u32 },
    /// Operands are copied into panels first, then multiplied.
    PackedProduct,
    /// Operands are read where they are.
    DirectProduct,
}
