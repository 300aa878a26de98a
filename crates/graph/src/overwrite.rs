//! Values that take over the memory of an input.
//!
//! A graph is functional; a mutation is an output aliased to an input. Where nothing reads the old contents any more, the new value can be computed right there: a `clone`,
//! a concatenation, a scan or the like with the input's strides writes straight into the input, and a functional update of the input (`slice_scatter`, `index_put`, `scatter`)
//! writes its part alone. What a `slice_scatter` brings is computed in its place where nothing else reads it.
//!
//! A [`Chain`] is such a way for one mutated input: the nodes that write its memory one after another, each with those that must have read it before.
//!
//! - The last value lies in the input exactly as the input itself does.
//! - An update's base is what lies in the memory at that time; what it brings lies elsewhere, or is itself an update of that very part (a write into a slice of a slice).
//! - No value of the chain but the last is an output, and neither is the input's old value.
//! - Whoever reads the input or a value of the chain runs before the next member writes.
//! - A part, which an update brings, is elementwise work that the update alone reads. A chain is as right without its parts: they are left out where the order of others
//!   forbids them.
//!
//! The first three are properties of the graph; the last one holds where the readers stand before the writer ([`Overwrites`]), which is what a schedule keeps to.

use crate::ir::{Graph, Node, NodeId, ValueId};
use crate::op::{Category, Op};
use crate::place::{Placement, Placements, same_strides};
use oxyfuel_base::{Arena, Expr};
use std::collections::{BTreeMap, BTreeSet};

/// A node that writes the memory of an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub node: NodeId,
    pub value: ValueId,
    /// Where the value starts in the input, in elements; its strides are those of its own placement.
    pub offset: Expr,
    /// Nodes that read what the memory held before, or wrote it.
    pub readers: Vec<NodeId>,
    /// Whether this is what an update brings, computed in its place.
    pub part: bool,
}

/// The nodes that turn an input into its new value, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Position of the input.
    pub input: usize,
    pub members: Vec<Member>,
}

impl Chain {
    /// The chain whose updates copy what they bring.
    pub fn without_parts(mut self) -> Self {
        self.members.retain(|member| !member.part);
        self
    }
}

/// Every chain of a graph, whatever the order of its nodes.
pub fn chains(graph: &Graph, placements: &Placements) -> Vec<Chain> {
    let aliased = graph
        .outputs
        .iter()
        .filter_map(|out| Some((out.value, out.alias?)));
    let mut search = None;
    let chains = aliased.filter_map(|(value, input)| {
        search
            .get_or_insert_with(|| Search::new(graph, placements))
            .chain(value, input)
    });
    chains.collect()
}

/// Whether every reader stands before the member that overwrites what it reads.
pub fn in_order(chain: &Chain) -> bool {
    let early = |member: &Member| member.readers.iter().all(|&reader| reader < member.node);
    chain.members.iter().all(early)
}

/// The chains that the order of the nodes allows.
#[derive(Clone, Debug, Default)]
pub struct Overwrites {
    homes: BTreeMap<ValueId, (ValueId, Expr)>,
    readers: BTreeMap<NodeId, Vec<NodeId>>,
}

impl Overwrites {
    pub fn new(graph: &Graph, placements: &Placements) -> Self {
        let mut this = Self::default();
        for chain in chains(graph, placements) {
            let chain = if in_order(&chain) {
                chain
            } else {
                chain.without_parts()
            };
            if !in_order(&chain) {
                continue;
            }
            let owner = graph.inputs[chain.input];
            for member in chain.members {
                this.homes.insert(member.value, (owner, member.offset));
                this.readers.insert(member.node, member.readers);
            }
        }
        this
    }

    /// Whether the value of a root lives in an input.
    pub fn contains(&self, root: ValueId) -> bool {
        self.homes.contains_key(&root)
    }

    /// The roots that live in an input, each with the input.
    pub fn iter(&self) -> impl Iterator<Item = (ValueId, ValueId)> {
        self.homes
            .iter()
            .map(|(&value, (owner, _))| (value, *owner))
    }

    /// Nodes that must run before this one, because it overwrites what they read.
    pub fn readers(&self, node: NodeId) -> &[NodeId] {
        self.readers.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Where every value lies: windows on inputs, constants and buffers, whoever computed them.
    pub fn memory_of_all(&self, placements: &Placements) -> Placements {
        placements.map(|place| self.memory(place))
    }

    /// Where a value lies, given its placement over the root that computes it.
    pub fn memory(&self, place: &Placement) -> Placement {
        match self.homes.get(&place.root) {
            Some((owner, offset)) => Placement {
                root: *owner,
                offset: offset.clone() + place.offset.clone(),
                strides: place.strides.clone(),
            },
            None => place.clone(),
        }
    }
}

/// Whether an op gives its first operand with a part replaced.
pub fn is_update(op: &Op) -> bool {
    matches!(
        op,
        Op::SliceScatter { .. } | Op::IndexPut { .. } | Op::Scatter { .. }
    )
}

/// Whether a node that writes all of a tensor shares its kernel with nobody, so that a copy of its result would be a second pass.
pub fn stands_alone(op: &Op) -> bool {
    match op.category() {
        Category::Indexing => matches!(op, Op::Cat { .. }),
        Category::Scan => !matches!(op, Op::LinearScan { .. }),
        Category::Sort | Category::Attention => true,
        Category::View
        | Category::Source
        | Category::Pointwise
        | Category::Reduction
        | Category::Matmul
        | Category::Convolution
        | Category::Update
        | Category::Composite
        | Category::External => false,
    }
}

/// Whether each element of a node's result is computed by itself, from what any kernel may have computed before.
fn is_elementwise(op: &Op) -> bool {
    match op.category() {
        Category::Pointwise => true,
        Category::Indexing => !matches!(op, Op::Cat { .. }),
        Category::Source => !matches!(op, Op::Constant { .. }),
        Category::Update => matches!(op, Op::Copy),
        Category::Scan
        | Category::Sort
        | Category::Attention
        | Category::View
        | Category::Reduction
        | Category::Matmul
        | Category::Convolution
        | Category::Composite
        | Category::External => false,
    }
}

/// What an update writes over: the window of its second operand in its first, which lies at `base`. None where only the data says.
pub fn updated_window(op: &Op, base: &Placement) -> Option<Placement> {
    let Op::SliceScatter {
        dim, start, step, ..
    } = op
    else {
        return None;
    };
    let mut window = base.clone();
    let stride = window.strides[*dim].clone();
    window.offset += start.clone() * stride.clone();
    window.strides[*dim] = stride * *step;
    Some(window)
}

struct Search<'a> {
    graph: &'a Graph,
    placements: &'a Placements,
    definitions: Arena<ValueId, Option<NodeId>>,
    /// Nodes that read each root, views aside.
    readers: BTreeMap<ValueId, Vec<NodeId>>,
    /// Roots of outputs, and how many outputs lie in each.
    returned: BTreeMap<ValueId, usize>,
}

/// A chain while it grows.
struct Draft {
    input: ValueId,
    members: Vec<Member>,
    homes: BTreeMap<ValueId, Expr>,
    /// Everything that lies in the memory so far.
    living: Vec<ValueId>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, placements: &'a Placements) -> Self {
        let mut readers: BTreeMap<ValueId, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in graph.nodes.iter() {
            if placements.is_view(node) {
                continue;
            }
            let roots: BTreeSet<ValueId> =
                node.inputs.iter().map(|&v| placements.root(v)).collect();
            for root in roots {
                readers.entry(root).or_default().push(id);
            }
        }
        let mut returned = BTreeMap::new();
        for out in &graph.outputs {
            *returned.entry(placements.root(out.value)).or_default() += 1;
        }
        Self {
            graph,
            placements,
            definitions: graph.definitions(),
            readers,
            returned,
        }
    }

    fn definition(&self, value: ValueId) -> Option<(NodeId, &'a Node)> {
        let id = self.definitions[value]?;
        Some((id, &self.graph.nodes[id]))
    }

    fn chain(&self, value: ValueId, input: usize) -> Option<Chain> {
        let owner = self.graph.inputs[input];
        let mut draft = Draft {
            input: owner,
            members: Vec::new(),
            homes: BTreeMap::from([(owner, Expr::ZERO)]),
            living: vec![owner],
        };
        let root = self.placements.root(value);
        if root != owner {
            if self.returned.contains_key(&owner) || self.returned.get(&root) != Some(&1) {
                return None;
            }
            // Updates of updates, down to the input or to what is written over all of it.
            let mut bases = vec![root];
            while let Some((_, node)) = self.definition(bases[bases.len() - 1])
                && is_update(&node.op)
            {
                bases.push(self.placements.root(node.inputs[0]));
            }
            let last = bases.pop()?;
            if last != owner {
                if !bases.is_empty() || last != value {
                    return None;
                }
                self.whole(&mut draft, last)?;
            }
            for &member in bases.iter().rev() {
                if member != root && self.returned.contains_key(&member) {
                    return None;
                }
                self.update(&mut draft, member)?;
            }
        }
        let place = self.memory(&draft, value)?;
        let own = self.placements.of(owner);
        let shape = &self.graph.ty(owner).shape;
        let exact = place.offset == Expr::ZERO
            && *shape == self.graph.ty(value).shape
            && same_strides(shape, &place.strides, &own.strides);
        exact.then_some(Chain {
            input,
            members: draft.members,
        })
    }

    /// Where a value of the chain lies in the input.
    fn memory(&self, draft: &Draft, value: ValueId) -> Option<Placement> {
        let place = self.placements.of(value);
        let offset = draft.homes.get(&place.root)?;
        Some(Placement {
            root: draft.input,
            offset: offset.clone() + place.offset.clone(),
            strides: place.strides.clone(),
        })
    }

    /// A node that overwrites the whole input.
    fn whole(&self, draft: &mut Draft, value: ValueId) -> Option<()> {
        let (id, node) = self.definition(value)?;
        let inside = |&v: &ValueId| draft.homes.contains_key(&self.placements.root(v));
        let fits = (node.op == Op::Clone || stands_alone(&node.op))
            && !node.inputs.iter().any(inside)
            && self.placements.is_root(value);
        fits.then(|| self.push(draft, id, value, Expr::ZERO, None))
    }

    /// What an update brings, where it can be computed in the window that the update writes.
    fn part(
        &self,
        draft: &mut Draft,
        update: NodeId,
        src: ValueId,
        window: &Placement,
    ) -> Option<()> {
        let place = self.placements.of(src);
        let root = place.root;
        let (id, node) = self.definition(root)?;
        let (ty, whole) = (self.graph.ty(src), self.graph.ty(root));
        let fits = is_elementwise(&node.op)
            && self
                .readers
                .get(&root)
                .is_some_and(|all| all[..] == [update])
            && !self.returned.contains_key(&root)
            && ty.numel() == whole.numel()
            && place.offset == Expr::ZERO
            && same_strides(&ty.shape, &place.strides, &window.strides);
        // It may read the very elements that it writes.
        let own = Placement {
            offset: window.offset.clone(),
            ..self.placements.of(root).clone()
        };
        let same = |&v: &ValueId| {
            self.memory(draft, v).is_none_or(|lies| {
                (node.op.category() == Category::Pointwise || node.op == Op::Copy)
                    && lies.offset == own.offset
                    && self.graph.ty(v).shape == whole.shape
                    && same_strides(&whole.shape, &lies.strides, &own.strides)
            })
        };
        if !fits || !node.inputs.iter().all(same) {
            return None;
        }
        let before: Vec<NodeId> = draft.members.iter().map(|member| member.node).collect();
        self.push(draft, id, root, window.offset.clone(), Some(id));
        let member = draft.members.last_mut()?;
        // The update keeps the rest of the memory as it is: it does not read what its part overwrites. Windows of earlier members may overlap this one.
        member.readers.retain(|&reader| reader != update);
        member.readers.extend(before);
        member.part = true;
        Some(())
    }

    /// An update of what lies in the memory.
    fn update(&self, draft: &mut Draft, value: ValueId) -> Option<()> {
        let (id, node) = self.definition(value)?;
        let [base, src, ..] = node.inputs[..] else {
            return None;
        };
        let place = self.memory(draft, base)?;
        let shape = &self.graph.ty(value).shape;
        if !self.placements.is_root(value)
            || !same_strides(shape, &self.placements.of(value).strides, &place.strides)
        {
            return None;
        }
        // What is written may be an update of the part that it is written to, and of nothing beside it: then it is there already.
        let inner = self.placements.root(src);
        let numel = |v: ValueId| self.graph.ty(v).shape.iter().cloned().product::<Expr>();
        let nested = self.definition(inner).filter(|(_, node)| {
            is_update(&node.op)
                && numel(src) == numel(inner)
                && !draft.homes.contains_key(&inner)
                && self.placements.root(node.inputs[0]) == self.placements.root(base)
        });
        if nested.is_some() && !self.returned.contains_key(&inner) {
            let before = draft.members.len();
            self.update(draft, inner)?;
            // The outer update keeps the rest of the memory as it is: it does not read what the inner one overwrote.
            for member in &mut draft.members[before..] {
                member.readers.retain(|&reader| reader != id);
            }
        } else if let Some(window) = updated_window(&node.op, &place) {
            self.part(draft, id, src, &window);
        }
        for (operand, &v) in node.inputs.iter().enumerate().skip(1) {
            if let Some(lies) = self.memory(draft, v) {
                let window = updated_window(&node.op, &place)?;
                let there = operand == 1
                    && lies.offset == window.offset
                    && same_strides(&self.graph.ty(v).shape, &lies.strides, &window.strides);
                if !there {
                    return None;
                }
            }
        }
        self.push(draft, id, value, place.offset, Some(id));
        Some(())
    }

    fn push(
        &self,
        draft: &mut Draft,
        node: NodeId,
        value: ValueId,
        offset: Expr,
        except: Option<NodeId>,
    ) {
        let own: BTreeSet<NodeId> = draft.members.iter().map(|member| member.node).collect();
        let readers: BTreeSet<NodeId> = draft
            .living
            .iter()
            .filter_map(|root| self.readers.get(root))
            .flatten()
            .copied()
            .filter(|&reader| Some(reader) != except && !own.contains(&reader))
            .collect();
        draft.homes.insert(value, offset.clone());
        draft.living.push(value);
        draft.members.push(Member {
            node,
            value,
            offset,
            readers: readers.into_iter().collect(),
            part: false,
        });
    }
}
