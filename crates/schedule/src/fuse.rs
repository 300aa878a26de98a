//! Which nodes share a group.
//!
//! Nodes are visited in order. A pointwise node joins the group of an operand when their dims can be matched; groups of several operands are merged when no third
//! group lies between them. A reduction joins its operand's group when the group has no other reduced dims. A matrix product starts a group of its own that
//! takes elementwise work on its result. What a node reads through a view that only relabels dims (permute, expand, added or dropped extents of 1) counts as read from the group itself; through any other view the
//! operand must be in memory, so the node starts a new group.
//!
//! Matching dims is free choice where only operands from memory run along a dim: their strides adapt to any order. That is why `x - amax(x)` finds the reduced dim again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use oxyfuel_base::{Code, Error, Expr, Id, Result};
use oxyfuel_graph::overwrite::is_update;
use oxyfuel_graph::{
    Category, Graph, Node, NodeId, Op, Overwrites, Placements, Users, ValueId, place_views,
};
use oxyfuel_plan::TargetDesc;

use crate::destinations::{Destinations, place};
use crate::group::{Before, DimMap, Group, GroupKind, Schedule};
use crate::reuse::reuse;
use crate::strategy::strategies;
use crate::views::view_map;
use crate::waits::Waits;

/// Groups with more nodes gain nothing and cost registers.
pub(crate) const MAX_NODES: usize = 128;
/// A group of at most so many nodes is recomputed along a new dim rather than stored.
const MAX_GROWN_NODES: usize = 12;

/// Groups the nodes of a verified graph of primitive ops.
pub fn schedule(graph: &Graph, target: &TargetDesc) -> Result<Schedule> {
    schedule_by(graph, target, Guide::default())
}

/// What else decides who shares a group.
#[derive(Clone, Copy, Default)]
pub(crate) struct Guide<'a> {
    /// Values that are copies of work that another group does: each is for the group of the copies with the same number, and joins no other.
    pub(crate) copies: Option<&'a BTreeMap<ValueId, usize>>,
    /// Parts of a concatenation are copied to their places, so that its result lives no sooner than it must.
    pub(crate) copied: bool,
    /// By node, the part of the graph that it belongs to; nodes of different parts share no group. Empty: there is one part.
    pub(crate) parts: &'a [u32],
}

impl Guide<'_> {
    pub(crate) fn copy(&self, value: ValueId) -> Option<usize> {
        self.copies.and_then(|copies| copies.get(&value).copied())
    }

    pub(crate) fn part(&self, node: NodeId) -> u32 {
        self.parts.get(node.index()).copied().unwrap_or(0)
    }
}

/// The same with a guide.
pub(crate) fn schedule_by(
    graph: &Graph,
    target: &TargetDesc,
    guide: Guide<'_>,
) -> Result<Schedule> {
    let (placements, destinations) = match guide.copied {
        true => (place_views(graph)?, Destinations::default()),
        false => place(graph)?,
    };
    let overwrites = Overwrites::new(graph, &placements);
    let mut fuser = Fuser::new(
        graph,
        target,
        &placements,
        &overwrites,
        &destinations,
        guide,
    );
    for (id, node) in graph.nodes.iter() {
        fuser.visit(id, node)?;
        fuser.wait_for_readers(id, node);
    }
    fuser.fuse_siblings();
    fuser.fold_operands();
    let producers = fuser.producer.clone();
    let groups = fuser.finish(target)?;
    let reuse = reuse(graph, &groups, &placements, &overwrites, &destinations);
    let memory = placements.map(|place| reuse.memory(destinations.memory(place)));
    let memory = overwrites.memory_of_all(&memory);
    Ok(Schedule {
        groups,
        producers,
        placements,
        overwrites,
        memory,
    })
}

/// A group while it grows.
pub(crate) struct Draft {
    pub(crate) kind: GroupKind,
    pub(crate) dims: Vec<Expr>,
    pub(crate) reduced: BTreeSet<usize>,
    /// The dim that recurrences run along.
    pub(crate) scanned: Option<usize>,
    pub(crate) nodes: Vec<NodeId>,
    /// Merged into another group.
    pub(crate) dead: bool,
    /// Writes into an input: a second run of the same element would read what the first one wrote.
    pub(crate) overwrites: bool,
    /// The group began with a copy of another's work, for those who read it.
    pub(crate) copies: Option<usize>,
    /// The part of the graph that all of its nodes belong to.
    pub(crate) part: u32,
    /// The dead group whose work a product does on its first operand, which is the value.
    pub(crate) before: Option<(usize, ValueId)>,
}

pub(crate) struct Fuser<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) target: &'a TargetDesc,
    pub(crate) placements: &'a Placements,
    pub(crate) overwrites: &'a Overwrites,
    pub(crate) destinations: &'a Destinations,
    pub(crate) guide: Guide<'a>,
    pub(crate) users: Users,
    /// Node that computes a value.
    pub(crate) producer: Vec<Option<NodeId>>,
    /// Group of each node; nodes that are views or repeated sources have none.
    pub(crate) group_of: Vec<Option<usize>>,
    pub(crate) drafts: Vec<Draft>,
    pub(crate) maps: BTreeMap<ValueId, DimMap>,
    /// Dims of what a reduction or a copied reshape reads, which its result does not show.
    pub(crate) operand_maps: BTreeMap<NodeId, DimMap>,
    /// The group of the ordered call before.
    last_ordered: Option<usize>,
    pub(crate) waits: Waits,
    /// Sources (full, arange) that someone needs in memory; elementwise readers make them again.
    in_memory: Vec<bool>,
}

/// How a node sees an operand from inside a group.
enum Seen {
    /// Computed by the group, with these dims.
    Inside(DimMap),
    /// In memory, or cheap enough to be made again.
    Outside,
    /// Computed by the group but needed in memory.
    Blocked,
}

impl<'a> Fuser<'a> {
    fn new(
        graph: &'a Graph,
        target: &'a TargetDesc,
        placements: &'a Placements,
        overwrites: &'a Overwrites,
        destinations: &'a Destinations,
        guide: Guide<'a>,
    ) -> Self {
        let producer = producers(graph);
        let mut in_memory = in_memory(graph, placements, &producer);
        // What is made in the place of a slice of an input is that slice.
        for node in graph.nodes.values() {
            if repeatable(&node.op) && overwrites.contains(node.out()) {
                in_memory[node.out().index()] = true;
            }
        }
        Self {
            graph,
            target,
            placements,
            overwrites,
            destinations,
            guide,
            users: graph.users(),
            producer,
            group_of: vec![None; graph.nodes.len()],
            drafts: Vec::new(),
            maps: BTreeMap::new(),
            operand_maps: BTreeMap::new(),
            last_ordered: None,
            waits: Waits::default(),
            in_memory,
        }
    }

    fn visit(&mut self, id: NodeId, node: &Node) -> Result<()> {
        match node.op.category() {
            Category::View if !self.placements.is_root(node.out()) => Ok(()),
            // A reshape that strides cannot express is a copy: it walks its operand and writes row-major.
            Category::View => self.start_copy(id, node),
            Category::Source => {
                if repeatable(&node.op) && self.in_memory[node.out().index()] {
                    self.start(id, node, GroupKind::Loops, self.shape(node.out()))?;
                }
                Ok(())
            }
            // A part of the product that reads it.
            Category::Pointwise if self.is_widened(id) => Ok(()),
            Category::Pointwise | Category::Indexing if !matches!(node.op, Op::Cat { .. }) => {
                self.visit_pointwise(id, node)
            }
            Category::Reduction => self.visit_reduction(id, node),
            Category::Matmul => {
                self.start(id, node, GroupKind::Contraction(id), self.shape(node.out()))?;
                self.take_widened(node);
                Ok(())
            }
            Category::Convolution => {
                self.start(id, node, GroupKind::Convolution(id), self.shape(node.out()))
            }
            Category::Attention => {
                self.start(id, node, GroupKind::Attention(id), self.shape(node.out()))
            }
            Category::Scan if matches!(node.op, Op::LinearScan { .. }) => self.visit_scan(id, node),
            Category::Indexing | Category::Scan | Category::Sort => {
                self.start(id, node, GroupKind::Writes(id), self.shape(node.out()))
            }
            Category::Update => match node.op {
                Op::Copy => self.visit_pointwise(id, node),
                _ => self.start(id, node, GroupKind::Writes(id), self.shape(node.out())),
            },
            Category::Composite => Err(Error::new(
                Code::Internal,
                format!(
                    "`{}` reached the schedule; composites are decomposed before",
                    node.op.name()
                ),
            )),
            Category::Pointwise => self.visit_pointwise(id, node),
            Category::External => self.start_external(id, node),
        }
    }

    pub(crate) fn shape(&self, value: ValueId) -> Vec<Expr> {
        self.graph.values[value].ty.shape.clone()
    }

    // ---- joining ---------------------------------------------------------------------------------------------------------------

    fn visit_pointwise(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let mut candidates: Vec<usize> = node
            .inputs
            .iter()
            .filter_map(|&v| self.group_behind(v))
            .collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates.retain(|&group| self.may_join(id, group));
        let copy = self.guide.copy(node.out());
        if copy.is_some() {
            candidates.retain(|&group| self.drafts[group].copies == copy);
        }
        let mut ways: Vec<_> = candidates
            .iter()
            .rev()
            .filter_map(|&g| self.dims_for(node, g).map(|dims| (g, dims)))
            .filter(|(g, (map, grown))| self.may_overwrite(id, node, *g, map, grown.is_empty()))
            .collect();
        // What is computed for each channel would grow to the whole result, and leave the product, or the reduction that gives it, without work on it.
        let grows = ways
            .first()
            .is_some_and(|(_, (_, grown))| !grown.is_empty());
        let product = ways.iter().position(|(g, _)| {
            let kind = &self.drafts[*g].kind;
            matches!(kind, GroupKind::Contraction(_) | GroupKind::Convolution(_))
        });
        let whole = ways
            .iter()
            .position(|(g, (_, grown))| grown.is_empty() && !self.drafts[*g].reduced.is_empty());
        let chosen = product.or(whole).filter(|_| grows).unwrap_or(0);
        let joined = (chosen < ways.len()).then(|| ways.swap_remove(chosen));
        let Some((group, dims)) = joined else {
            return self.start(id, node, GroupKind::Loops, self.shape(node.out()));
        };
        self.place(id, node, group, dims);
        // Who reads the memory in other groups reads it before this one runs.
        if self.overwrites.contains(node.out()) {
            return Ok(());
        }
        for other in candidates {
            if other != group && !self.drafts[other].dead {
                self.try_merge(node, other, group);
            }
        }
        Ok(())
    }

    fn visit_reduction(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let Op::Reduce { dims, keepdim, .. } = &node.op else {
            return Err(Error::new(
                Code::Internal,
                format!("`{}` is no reduction the schedule knows", node.op.name()),
            ));
        };
        let operand = node.inputs[0];
        let behind = self.group_behind(operand);
        let joined = behind.filter(|&g| self.may_join(id, g)).and_then(|g| {
            let draft = &self.drafts[g];
            let Seen::Inside(map) = self.see(operand, g) else {
                return None;
            };
            let shape = self.shape(operand);
            let complete = shape
                .iter()
                .zip(&map)
                .all(|(extent, dim)| dim.is_some() || *extent == Expr::constant(1));
            let reduced: BTreeSet<usize> = dims.iter().filter_map(|&d| map[d]).collect();
            let of_rows = |product| {
                let last = draft.dims.len().checked_sub(1);
                reduced.iter().copied().eq(last) && self.has_whole_rows(draft, product)
            };
            let can_reduce = match draft.kind {
                GroupKind::Loops => true,
                GroupKind::Contraction(product) => of_rows(product),
                GroupKind::Convolution(_)
                | GroupKind::Attention(_)
                | GroupKind::Writes(_)
                | GroupKind::External(_) => false,
            };
            let fits = can_reduce
                && draft.nodes.len() < MAX_NODES
                && complete
                && (draft.scanned.is_none() || self.folds_in_a_step(draft, &reduced))
                && (draft.reduced.is_empty() || reduced.is_empty() || draft.reduced == reduced);
            fits.then_some((g, map, reduced))
        });
        let map = match joined {
            Some((group, map, reduced)) => {
                // One over extents of 1 alone is elementwise work.
                self.drafts[group].reduced.extend(reduced);
                self.group_of[id.index()] = Some(group);
                self.drafts[group].nodes.push(id);
                map
            }
            None => {
                let shape = self.shape(operand);
                self.start(id, node, GroupKind::Loops, shape.clone())?;
                let group = self.drafts.len() - 1;
                let map = fresh_map(&shape);
                self.drafts[group].reduced = dims.iter().filter_map(|&d| map[d]).collect();
                map
            }
        };
        let out: DimMap = map
            .iter()
            .enumerate()
            .filter(|(d, _)| *keepdim || !dims.contains(d))
            .map(|(d, &dim)| if dims.contains(&d) { None } else { dim })
            .collect();
        self.operand_maps.insert(id, map);
        self.maps.insert(node.out(), out);
        Ok(())
    }

    /// Whether a node belongs to the same part of the graph as a group.
    pub(crate) fn may_join(&self, node: NodeId, group: usize) -> bool {
        self.drafts[group].part == self.guide.part(node)
    }

    /// Dims of the node's result in a group, if the node can join it; grows nothing.
    pub(crate) fn dims_for(
        &self,
        node: &Node,
        group: usize,
    ) -> Option<(DimMap, Vec<(usize, Expr)>)> {
        let draft = &self.drafts[group];
        if draft.nodes.len() >= MAX_NODES
            || matches!(
                draft.kind,
                GroupKind::Writes(_) | GroupKind::Attention(_) | GroupKind::External(_)
            )
        {
            return None;
        }
        let shape = self.shape(node.out());
        let mut map: DimMap = vec![None; shape.len()];
        // Whether all that the group has for the node is single values.
        let mut single = true;
        for (i, &operand) in node.inputs.iter().enumerate() {
            match self.see(operand, group) {
                Seen::Blocked => return None,
                Seen::Outside => {
                    if self
                        .group_behind(operand)
                        .is_some_and(|other| other != group && self.depends(other, group))
                    {
                        return None;
                    }
                }
                Seen::Inside(_) if reads_memory(&node.op, i) => return None,
                Seen::Inside(dims) => {
                    let rank = dims.len();
                    single &= dims.iter().all(Option::is_none);
                    for (j, dim) in dims.into_iter().enumerate() {
                        let at = result_dim(&node.op, i, j, shape.len(), rank);
                        match (map[at], dim) {
                            (Some(have), Some(want)) if have != want => return None,
                            (None, Some(want)) => map[at] = Some(want),
                            _ => {}
                        }
                    }
                }
            }
        }
        let mut used: BTreeSet<usize> = BTreeSet::new();
        if !map.iter().flatten().all(|&dim| used.insert(dim)) {
            return None;
        }
        let mut grown = Vec::new();
        for j in 0..shape.len() {
            if map[j].is_some() || shape[j] == Expr::constant(1) {
                continue;
            }
            match (0..draft.dims.len()).find(|d| !used.contains(d) && draft.dims[*d] == shape[j]) {
                Some(dim) => {
                    used.insert(dim);
                    map[j] = Some(dim);
                }
                None => grown.push((j, shape[j].clone())),
            }
        }
        if let GroupKind::Contraction(product) = draft.kind
            && leaves(self.graph, product, self.target)
        {
            return None;
        }
        if let GroupKind::Contraction(_) | GroupKind::Convolution(_) = draft.kind {
            let along = || map.iter().flatten().copied();
            let whole = along().eq(0..draft.dims.len());
            let kept = (0..draft.dims.len()).filter(|d| !draft.reduced.contains(d));
            // What follows from a reduction of rows: a number for each.
            let of_rows = !draft.reduced.is_empty() && along().eq(kept);
            return (grown.is_empty() && (whole || of_rows)).then_some((map, grown));
        }
        // The node has every dim of the grown domain: a group that others of unlike shapes share would become their product.
        let covers = used.len() == draft.dims.len();
        // Work on a tensor of its own would be done again for every row of a larger one.
        if single && !covers && !used.is_empty() {
            return None;
        }
        let recomputable = covers
            && draft.reduced.is_empty()
            && draft.scanned.is_none()
            && draft.nodes.len() <= MAX_GROWN_NODES
            && !draft.overwrites;
        if !grown.is_empty() && !recomputable {
            return None;
        }
        Some((map, grown))
    }

    /// Adds the node to a group with the dims that [`Self::dims_for`] found.
    pub(crate) fn place(
        &mut self,
        id: NodeId,
        node: &Node,
        group: usize,
        (mut map, grown): (DimMap, Vec<(usize, Expr)>),
    ) {
        for (j, extent) in grown {
            let at = map[..j].iter().flatten().max().map_or(0, |&d| d + 1);
            self.insert_dim(group, at, extent);
            for dim in map.iter_mut().flatten() {
                if *dim >= at {
                    *dim += 1;
                }
            }
            map[j] = Some(at);
        }
        self.group_of[id.index()] = Some(group);
        let deps: Vec<usize> = node
            .inputs
            .iter()
            .filter_map(|&v| self.group_behind(v))
            .filter(|&g| g != group)
            .collect();
        let draft = &mut self.drafts[group];
        draft.nodes.push(id);
        for other in deps {
            self.waits.add(group, other);
        }
        self.maps.insert(node.out(), map);
    }

    fn insert_dim(&mut self, group: usize, at: usize, extent: Expr) {
        let draft = &mut self.drafts[group];
        draft.dims.insert(at, extent);
        draft.scanned = draft.scanned.map(|d| if d >= at { d + 1 } else { d });
        draft.reduced = draft
            .reduced
            .iter()
            .map(|&d| if d >= at { d + 1 } else { d })
            .collect();
        let nodes = draft.nodes.clone();
        self.relabel(&nodes, &|dim| if dim >= at { dim + 1 } else { dim });
    }

    fn relabel(&mut self, nodes: &[NodeId], new: &dyn Fn(usize) -> usize) {
        for node in nodes {
            let maps = [
                self.maps.get_mut(&self.graph.nodes[*node].out()),
                self.operand_maps.get_mut(node),
            ];
            for dim in maps.into_iter().flatten().flatten().flatten() {
                *dim = new(*dim);
            }
        }
    }

    /// Moves all nodes of `from` into `into`, where `node` already is, if their dims match and no third group stands between.
    pub(crate) fn try_merge(&mut self, node: &Node, from: usize, into: usize) {
        let (a, b) = (&self.drafts[from], &self.drafts[into]);
        let pair = self.pair(a, b);
        let loops = a.kind == GroupKind::Loops && b.kind == GroupKind::Loops;
        if !(loops || pair.is_some())
            || a.overwrites
            || b.overwrites
            || a.nodes.len() + b.nodes.len() > MAX_NODES
        {
            return;
        }
        // `into` depends on `from` only through `node` itself, which was just placed; anything else lies between.
        let direct = |g: usize| {
            self.drafts[g].nodes.iter().any(|&n| {
                let user = &self.graph.nodes[n];
                !std::ptr::eq(user, node)
                    && user
                        .inputs
                        .iter()
                        .any(|&v| self.group_behind(v) == Some(from))
            })
        };
        if direct(into)
            || self.depends(from, into)
            || self
                .waits
                .before(into)
                .iter()
                .any(|&d| d != from && self.depends(d, from))
        {
            return;
        }
        let out_map = &self.maps[&node.out()];
        let mut relabel: Vec<Option<usize>> = vec![None; a.dims.len()];
        for (i, &operand) in node.inputs.iter().enumerate() {
            if self.group_behind(operand) != Some(from) {
                continue;
            }
            if reads_memory(&node.op, i) {
                return;
            }
            let Seen::Inside(dims) = self.see(operand, from) else {
                return;
            };
            let rank = dims.len();
            for (j, dim) in dims.into_iter().enumerate() {
                let at = result_dim(&node.op, i, j, out_map.len(), rank);
                let (Some(old), Some(new)) = (dim, out_map[at]) else {
                    continue;
                };
                if relabel[old].is_some_and(|have| have != new) {
                    return;
                }
                relabel[old] = Some(new);
            }
        }
        for old in 0..relabel.len() {
            if relabel[old].is_none() {
                let taken: BTreeSet<usize> = relabel.iter().flatten().copied().collect();
                relabel[old] =
                    (0..b.dims.len()).find(|d| !taken.contains(d) && b.dims[*d] == a.dims[old]);
            }
        }
        let Some(relabel) = relabel.into_iter().collect::<Option<Vec<usize>>>() else {
            return;
        };
        let distinct: BTreeSet<usize> = relabel.iter().copied().collect();
        let same_extents = relabel
            .iter()
            .enumerate()
            .all(|(old, &new)| a.dims[old] == b.dims[new]);
        let reduced: BTreeSet<usize> = a.reduced.iter().map(|&d| relabel[d]).collect();
        let one_reduction = a.reduced.is_empty() || b.reduced.is_empty() || reduced == b.reduced;
        let scanned = a.scanned.map(|d| relabel[d]);
        let one_scan = (scanned.is_none() && b.scanned.is_none())
            || (scanned == b.scanned && reduced.is_empty() && b.reduced.is_empty());
        if distinct.len() != relabel.len() || !same_extents || !one_reduction || !one_scan {
            return;
        }
        // Blocks of both products are the same part of the domain.
        if pair.is_some() && !relabel.iter().copied().eq(0..b.dims.len()) {
            return;
        }
        let nodes = a.nodes.clone();
        for &n in &nodes {
            self.group_of[n.index()] = Some(into);
        }
        self.relabel(&nodes, &|dim| relabel[dim]);
        let draft = &mut self.drafts[into];
        draft.kind = pair.unwrap_or(draft.kind);
        draft.nodes.extend(nodes);
        draft.nodes.sort_unstable();
        draft.reduced.extend(reduced);
        self.drafts[from].dead = true;
        self.waits.merge(from, into);
    }

    // ---- starting --------------------------------------------------------------------------------------------------------------

    pub(crate) fn start(
        &mut self,
        id: NodeId,
        node: &Node,
        kind: GroupKind,
        shape: Vec<Expr>,
    ) -> Result<()> {
        let deps: Vec<usize> = node
            .inputs
            .iter()
            .filter_map(|&v| self.group_behind(v))
            .collect();
        self.waits.push(deps);
        let one = Expr::constant(1);
        let dims = shape.iter().filter(|d| **d != one).cloned().collect();
        self.drafts.push(Draft {
            kind,
            dims,
            reduced: BTreeSet::new(),
            scanned: None,
            nodes: vec![id],
            dead: false,
            overwrites: false,
            copies: self.guide.copy(node.out()),
            part: self.guide.part(id),
            before: None,
        });
        self.group_of[id.index()] = Some(self.drafts.len() - 1);
        if self.shape(node.out()) == shape {
            self.maps.insert(node.out(), fresh_map(&shape));
        }
        Ok(())
    }

    /// A call of the host. Ordered ones wait for each other.
    fn start_external(&mut self, id: NodeId, node: &Node) -> Result<()> {
        self.start(id, node, GroupKind::External(id), Vec::new())?;
        let group = self.drafts.len() - 1;
        self.drafts[group].dims.clear();
        for out in &node.outputs {
            self.maps.remove(out);
        }
        if node.op.is_ordered()
            && let Some(before) = self.last_ordered.replace(group)
        {
            self.waits.add(group, before);
        }
        Ok(())
    }

    /// A reshape by copy: the domain is the operand's, the result has the same elements in row-major order.
    fn start_copy(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let shape = self.shape(node.inputs[0]);
        self.start(id, node, GroupKind::Loops, shape.clone())?;
        self.maps.remove(&node.out());
        self.operand_maps.insert(id, fresh_map(&shape));
        Ok(())
    }

    // ---- looking ---------------------------------------------------------------------------------------------------------------

    /// The group that computes a value or what it is a view of.
    pub(crate) fn group_behind(&self, value: ValueId) -> Option<usize> {
        self.producer[self.placements.root(value).index()]
            .and_then(|node| self.group_of[node.index()])
    }

    fn see(&self, value: ValueId, group: usize) -> Seen {
        let root = self.placements.root(value);
        if self.group_behind(root) != Some(group) {
            return Seen::Outside;
        }
        // A copied reshape has no dims of its own in the domain: only memory shows it.
        self.relabelled(value, root)
            .map_or(Seen::Blocked, Seen::Inside)
    }

    /// Dims of a view of an in-group value, if the view only relabels them.
    fn relabelled(&self, value: ValueId, root: ValueId) -> Option<DimMap> {
        if value == root {
            return self.maps.get(&value).cloned();
        }
        let node = &self.graph.nodes[self.producer[value.index()]?];
        let inner = self.relabelled(node.inputs[0], root)?;
        view_map(
            &node.op,
            &self.shape(node.inputs[0]),
            &self.shape(value),
            &inner,
        )
    }

    /// Whether `group` needs `other` to have run before.
    pub(crate) fn depends(&self, group: usize, other: usize) -> bool {
        self.waits.depends(group, other)
    }

    // ---- finishing -------------------------------------------------------------------------------------------------------------

    fn finish(self, target: &TargetDesc) -> Result<Vec<Group>> {
        let mut outputs: Vec<BTreeSet<ValueId>> = vec![BTreeSet::new(); self.drafts.len()];
        let mut inputs: Vec<BTreeSet<ValueId>> = vec![BTreeSet::new(); self.drafts.len()];
        for out in &self.graph.outputs {
            if let Some(g) = self.group_behind(out.value) {
                outputs[g].insert(self.placements.root(out.value));
            }
        }
        for (id, node) in self.graph.nodes.iter() {
            let Some(user) = self.group_of[id.index()] else {
                continue;
            };
            let in_place = node
                .outputs
                .first()
                .filter(|&&v| self.overwrites.contains(v));
            outputs[user].extend(in_place);
            for (i, &operand) in node.inputs.iter().enumerate() {
                if in_place.is_some() && i == 0 && is_update(&node.op) {
                    // What it does not replace is there already.
                    continue;
                }
                let root = self.placements.root(operand);
                let widened = self.producer[root.index()].is_some_and(|n| self.is_widened(n));
                let made = self.drafts[user].before;
                let made = made.is_some_and(|(_, value)| value == root);
                let inside = self.group_behind(root) == Some(user)
                    && (widened || made || !reads_memory(&node.op, i));
                let repeated = self.producer[root.index()].is_some_and(|n| {
                    made_again(&node.op, i, &self.graph.nodes[n].op)
                        && self.group_of[n.index()] != Some(user)
                });
                if inside || repeated {
                    continue;
                }
                // A part that is computed in its place is not read again.
                if !self.destinations.contains(root) {
                    inputs[user].insert(root);
                }
                if let Some(maker) = self.group_behind(root) {
                    outputs[maker].insert(root);
                }
            }
        }
        let order = self.order()?.into_iter();
        let working = order.filter(|&g| !self.is_there(self.drafts[g].kind));
        let guesses = self.graph.guesses();
        let guess = |size: &Expr| {
            size.eval(&|symbol| guesses.get(&symbol).copied())
                .unwrap_or(1)
        };
        let groups = working.map(|g| {
            let draft = &self.drafts[g];
            let before = draft.before.map(|(from, value)| {
                let work = &self.drafts[from];
                Before {
                    dims: work.dims.clone(),
                    reduced: work.reduced.iter().copied().collect(),
                    nodes: work.nodes.clone(),
                    value,
                }
            });
            let work = before.iter().flat_map(|before| &before.nodes);
            let mut nodes: Vec<NodeId> = work.chain(&draft.nodes).copied().collect();
            nodes.sort_unstable();
            let maps = nodes
                .iter()
                .flat_map(|&n| &self.graph.nodes[n].outputs)
                .filter_map(|&v| Some((v, self.maps.get(&v)?.clone())))
                .collect();
            let operand_maps = nodes
                .iter()
                .filter_map(|&n| Some((n, self.operand_maps.get(&n)?.clone())))
                .collect();
            let mut group = Group {
                kind: draft.kind,
                dims: draft.dims.clone(),
                reduced: draft.reduced.iter().copied().collect(),
                scanned: draft.scanned,
                nodes,
                before,
                maps,
                operand_maps,
                inputs: inputs[g].iter().copied().collect(),
                outputs: match draft.kind {
                    GroupKind::External(node) | GroupKind::Attention(node) => {
                        self.graph.nodes[node].outputs.clone()
                    }
                    GroupKind::Loops
                    | GroupKind::Contraction(_)
                    | GroupKind::Convolution(_)
                    | GroupKind::Writes(_) => outputs[g].iter().copied().collect(),
                },
                alternatives: Vec::new(),
                members: Vec::new(),
                in_order: false,
            };
            group.alternatives = strategies(&group, target, &guess);
            group
        });
        Ok(groups.collect())
    }
}

impl Fuser<'_> {
    /// Groups as the program had them: of those that can run, the one whose last node stood first.
    fn order(&self) -> Result<Vec<usize>> {
        let mut waits = vec![0usize; self.drafts.len()];
        let mut ready = BinaryHeap::new();
        let rank = |g: usize| Reverse((self.drafts[g].nodes.iter().max().copied(), g));
        let alive: Vec<usize> = (0..self.drafts.len())
            .filter(|&g| !self.drafts[g].dead)
            .collect();
        for &g in &alive {
            waits[g] = self.waits.before(g).len();
            if waits[g] == 0 {
                ready.push(rank(g));
            }
        }
        let mut order = Vec::with_capacity(alive.len());
        while let Some(Reverse((_, g))) = ready.pop() {
            order.push(g);
            for &reader in self.waits.after(g) {
                waits[reader] -= 1;
                if waits[reader] == 0 {
                    ready.push(rank(reader));
                }
            }
        }
        if order.len() < alive.len() {
            return Err(Error::new(
                Code::Internal,
                format!(
                    "the groups of graph @{} wait for each other",
                    self.graph.name
                ),
            ));
        }
        Ok(order)
    }
}

/// The node that computes each value.
fn producers(graph: &Graph) -> Vec<Option<NodeId>> {
    let mut producers = vec![None; graph.values.len()];
    for (id, node) in graph.nodes.iter() {
        for &out in &node.outputs {
            producers[out.index()] = Some(id);
        }
    }
    producers
}

/// Roots that are returned, or read by someone who cannot make a source again.
fn in_memory(graph: &Graph, placements: &Placements, producers: &[Option<NodeId>]) -> Vec<bool> {
    let mut needed = vec![false; graph.values.len()];
    for out in &graph.outputs {
        needed[placements.root(out.value).index()] = true;
    }
    for (_, user) in graph.nodes.iter() {
        if placements.is_view(user) {
            continue;
        }
        for (i, &input) in user.inputs.iter().enumerate() {
            let root = placements.root(input).index();
            let again = |id: NodeId| made_again(&user.op, i, &graph.nodes[id].op);
            needed[root] |= !producers[root].is_some_and(again);
        }
    }
    needed
}

/// Dims of a fresh group whose domain is the shape without its extents of 1.
fn fresh_map(shape: &[Expr]) -> DimMap {
    let mut next = 0;
    shape
        .iter()
        .map(|extent| {
            (*extent != Expr::constant(1)).then(|| {
                next += 1;
                next - 1
            })
        })
        .collect()
}

/// Sources that elementwise readers make again instead of reading them.
fn repeatable(op: &Op) -> bool {
    op.category() == Category::Source && !matches!(op, Op::Constant { .. })
}

/// Whether a source is made again by the kernel of an op that reads it: anywhere by elementwise work, and by what copies it or puts it somewhere; what says where is read from memory.
fn made_again(user: &Op, operand: usize, source: &Op) -> bool {
    let plain = matches!(source, Op::Full { .. } | Op::Arange { .. });
    match user {
        Op::Cat { .. } => plain,
        Op::SliceScatter { .. } | Op::IndexPut { .. } | Op::Scatter { .. } => operand < 2 && plain,
        _ => {
            repeatable(source)
                && !reads_memory(user, operand)
                && user.category() != Category::Reduction
        }
    }
}

/// Whether an op looks its operand up by computed positions, or through tiles of its own, so that the operand must be in memory.
pub(crate) fn reads_memory(op: &Op, operand: usize) -> bool {
    match op.category() {
        Category::Matmul | Category::Attention | Category::Convolution => true,
        Category::Indexing => matches!(op, Op::Cat { .. }) || operand == 0,
        Category::Update => !matches!(op, Op::Copy),
        Category::Scan => !matches!(op, Op::LinearScan { .. }),
        Category::View | Category::External | Category::Sort => true,
        Category::Pointwise | Category::Reduction | Category::Source | Category::Composite => false,
    }
}

/// The dim of the result that dim `j` of an operand runs along: broadcasting aligns the last ones, indices have places of their own.
pub(crate) fn result_dim(
    op: &Op,
    operand: usize,
    j: usize,
    rank: usize,
    operand_rank: usize,
) -> usize {
    match op {
        Op::IndexSelect { dim } if operand == 1 => *dim,
        Op::Embedding if operand == 1 => j,
        _ => rank.saturating_sub(operand_rank) + j,
    }
}

/// Whether a library of the machine's computes the product.
fn leaves(graph: &Graph, product: NodeId, target: &TargetDesc) -> bool {
    let node = &graph.nodes[product];
    let (Op::Mm | Op::Bmm) = node.op else {
        return false;
    };
    let (a, out) = (graph.ty(node.inputs[0]), graph.ty(node.out()));
    let sizes = |shape: &[Expr]| {
        shape
            .iter()
            .map(Expr::as_const)
            .collect::<Option<Vec<i64>>>()
    };
    match (sizes(&out.shape).as_deref(), sizes(&a.shape).as_deref()) {
        (Some([m, n]), Some([_, k])) => target.leaves_product(a.dtype, [1, *m, *n, *k]),
        (Some([batch, m, n]), Some([_, _, k])) => {
            target.leaves_product(a.dtype, [*batch, *m, *n, *k])
        }
        _ => false,
    }
}
