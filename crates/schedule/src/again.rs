//! Values that are computed again rather than stored, by bytes.
//!
//! A value that one group stores and others read moves its bytes once for the store and once for each reader. Where it is elementwise work on what lies in memory anyway, the readers can compute it
//! themselves: they read its operands instead, of which some they read already. The cheaper of the two is taken:
//!
//! ```text
//!   stored:   bytes(value) * (1 + readers)
//!   again:    bytes(operands that a reader does not read yet), for each reader,  and operations * elements * readers
//! ```
//!
//! The work behind a product stays with it, which keeps its sums in registers: only the last step before a store is left to readers.
//!
//! The graph gets a copy of the work for each reader and is scheduled anew; the new schedule counts only if all of its groups together move less than those of the old one.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Expr, Id, Result, Symbol};
use oxyfuel_graph::{Category, Graph, Node, NodeId, Rebuild, ValueId};
use oxyfuel_plan::TargetDesc;

use crate::fuse::{Guide, reads_memory, schedule, schedule_by};
use crate::group::{Group, GroupKind, Schedule};
use crate::thrift::{live, within};

/// Values below this stay in a cache between two kernels.
const LEAST: i64 = 1 << 16;
/// The most nodes that are computed again.
const MOST_NODES: usize = 12;
/// Operations that take as long as moving a byte.
const OPERATIONS: i64 = 4;

/// How many operations a node takes.
pub type Operations<'a> = &'a dyn Fn(&Graph, &Node) -> Expr;

/// Schedules a graph, with copies of the work that is cheaper to do again than to store, so that at most `most` bytes live at once where that can be.
pub fn schedule_by_bytes(
    graph: Graph,
    target: &TargetDesc,
    operations: Operations,
    most: i64,
) -> Result<(Graph, Schedule)> {
    let first = schedule(&graph, target)?;
    let held = live(&graph, &first).bytes;
    let search = Search {
        thrifty: held > most,
        ..Search::new(&graph, &first)
    };
    let chosen = search.chosen(operations);
    if chosen.is_empty() {
        let schedule = within(&graph, first, target, None, most)?;
        return Ok((graph, schedule));
    }
    let (again, copies) = search.rewritten(&chosen)?;
    let guide = Guide {
        copies: Some(&copies),
        ..Guide::default()
    };
    let second = schedule_by(&again, target, guide)?;
    let now = live(&again, &second).bytes;
    let better = match held > most {
        true => now < held,
        false => {
            now <= most
                && second.groups.len() <= first.groups.len()
                && Bytes::new(&again).moved(&second) < search.bytes.moved(&first)
        }
    };
    Ok(if better {
        let schedule = within(&again, second, target, Some(&copies), most)?;
        (again, schedule)
    } else {
        let schedule = within(&graph, first, target, None, most)?;
        (graph, schedule)
    })
}

/// Bytes of the values of a graph, by the likely sizes.
struct Bytes {
    guesses: BTreeMap<Symbol, i64>,
    of: Vec<i64>,
}

impl Bytes {
    fn new(graph: &Graph) -> Self {
        let mut this = Self {
            guesses: graph.guesses(),
            of: Vec::with_capacity(graph.values.len()),
        };
        for value in graph.values.values() {
            let numel = this.number(&value.ty.numel());
            this.of
                .push(numel.saturating_mul(value.ty.dtype.size() as i64));
        }
        this
    }

    fn number(&self, size: &Expr) -> i64 {
        let number = size.eval(&|symbol| self.guesses.get(&symbol).copied());
        number.unwrap_or(0).max(0)
    }

    fn of(&self, value: ValueId) -> i64 {
        self.of[value.index()]
    }

    /// What all groups of a schedule read and write.
    fn moved(&self, schedule: &Schedule) -> i64 {
        let groups = schedule.groups.iter();
        let values = groups.flat_map(|group| group.inputs.iter().chain(&group.outputs));
        values.fold(0, |sum: i64, &value| sum.saturating_add(self.of(value)))
    }
}

struct Search<'a> {
    graph: &'a Graph,
    schedule: &'a Schedule,
    bytes: Bytes,
    group_of: Vec<Option<usize>>,
    /// Groups that read each root.
    readers: BTreeMap<ValueId, Vec<usize>>,
    returned: BTreeSet<ValueId>,
    /// Inputs whose old contents are gone at some time.
    written: BTreeSet<ValueId>,
    /// Too much lives at once: small values count too, and those behind a product.
    thrifty: bool,
}

/// The work behind a value, up to what lies in memory.
#[derive(Default)]
struct Chain {
    /// Nodes that compute, and views between them.
    nodes: BTreeSet<NodeId>,
    /// Roots that it reads.
    leaves: BTreeSet<ValueId>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, schedule: &'a Schedule) -> Self {
        let mut group_of = vec![None; graph.nodes.len()];
        let mut readers: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (number, group) in schedule.groups.iter().enumerate() {
            for node in &group.nodes {
                group_of[node.index()] = Some(number);
            }
            for &root in &group.inputs {
                readers.entry(root).or_default().push(number);
            }
        }
        let aliases = graph.outputs.iter().filter_map(|out| out.alias);
        let outputs = graph.outputs.iter();
        Self {
            graph,
            schedule,
            bytes: Bytes::new(graph),
            group_of,
            readers,
            returned: outputs
                .map(|out| schedule.placements.root(out.value))
                .collect(),
            written: aliases.map(|input| graph.inputs[input]).collect(),
            thrifty: false,
        }
    }

    /// For each group, the values that it shall compute itself, with the work behind each.
    fn chosen(&self, operations: Operations) -> BTreeMap<usize, BTreeSet<NodeId>> {
        let mut chosen: BTreeMap<usize, BTreeSet<NodeId>> = BTreeMap::new();
        for (number, group) in self.schedule.groups.iter().enumerate() {
            let product = matches!(
                group.kind,
                GroupKind::Contraction(_) | GroupKind::Convolution(_)
            );
            if !(group.kind == GroupKind::Loops || product)
                || group.scanned.is_some()
                || group.before.is_some()
            {
                continue;
            }
            for &value in &group.outputs {
                let Some(chain) = self.worth_it(number, group, value, operations) else {
                    continue;
                };
                for &reader in &self.readers[&value] {
                    chosen.entry(reader).or_default().extend(&chain.nodes);
                }
            }
        }
        chosen
    }

    fn worth_it(
        &self,
        number: usize,
        group: &Group,
        value: ValueId,
        operations: Operations,
    ) -> Option<Chain> {
        let own = self.bytes.of(value);
        let readers = self.readers.get(&value)?;
        let lies_alone = self.schedule.memory.root(value) == value
            && !self.schedule.overwrites.contains(value)
            && !self.returned.contains(&value);
        let least = if self.thrifty { 0 } else { LEAST };
        if own < least || !lies_alone || !readers.iter().all(|&r| self.takes(r, value)) {
            return None;
        }
        let mut chain = Chain::default();
        // Behind a product its own work stays, and the last step is what may be left to readers: a cast that doubles the bytes, or a square of what is stored as well.
        let deep = group.kind == GroupKind::Loops || self.thrifty;
        self.follow(number, value, deep, &mut chain)?;
        let computing = |id: &&NodeId| self.group_of[id.index()].is_some();
        if chain.nodes.iter().filter(computing).count() > MOST_NODES {
            return None;
        }
        let mut again = 0i64;
        for &leaf in &chain.leaves {
            let bytes = self.bytes.of(leaf);
            let stored = self.group_of_value(leaf) != Some(number) || group.outputs.contains(&leaf);
            again = again.saturating_add(if stored { 0 } else { bytes });
            for &reader in readers {
                let there = self.schedule.groups[reader].inputs.contains(&leaf);
                again = again.saturating_add(if there { 0 } else { bytes });
            }
        }
        let times = readers.len() as i64;
        let saved = own.saturating_mul(1 + times) - again;
        let works = chain.nodes.iter().map(|&id| {
            let work = operations(self.graph, &self.graph.nodes[id]);
            self.bytes.number(&work)
        });
        let cost = works.fold(0, i64::saturating_add).saturating_mul(times);
        (saved > 0 && cost <= saved.saturating_mul(OPERATIONS)).then_some(chain)
    }

    fn group_of_value(&self, root: ValueId) -> Option<usize> {
        let node = self.schedule.producer(root)?;
        self.group_of[node.index()]
    }

    /// Whether a group reads a root as elementwise work or a reduction does, so that it could be computed there.
    fn takes(&self, group: usize, root: ValueId) -> bool {
        let group = &self.schedule.groups[group];
        group.kind == GroupKind::Loops
            && group.scanned.is_none()
            && group.nodes.iter().all(|&id| {
                let node = &self.graph.nodes[id];
                let mut operands = node.inputs.iter().enumerate();
                operands.all(|(i, &v)| {
                    self.schedule.placements.root(v) != root || !reads_memory(&node.op, i)
                })
            })
    }

    /// Adds the work behind a root of group `number` to a chain, all that the group does of it or (not `deep`) the last step; `None` where it is more than elementwise, or where its operands do not stay as they are.
    fn follow(&self, number: usize, root: ValueId, deep: bool, chain: &mut Chain) -> Option<()> {
        let id = self.schedule.producer(root)?;
        let node = &self.graph.nodes[id];
        if node.op.category() != Category::Pointwise || chain.nodes.len() > 2 * MOST_NODES {
            return None;
        }
        if !chain.nodes.insert(id) {
            return Some(());
        }
        for &operand in &node.inputs {
            self.follow_views(operand, chain);
            let root = self.schedule.placements.root(operand);
            let maker = self.schedule.producer(root).map(|id| &self.graph.nodes[id]);
            match maker.map(|node| node.op.category()) {
                Some(Category::Pointwise) if deep && self.group_of_value(root) == Some(number) => {
                    self.follow(number, root, deep, chain)?;
                }
                // Readers make it again.
                Some(Category::Source) => {}
                _ if self.written.contains(&root) || self.schedule.overwrites.contains(root) => {
                    return None;
                }
                _ => {
                    chain.leaves.insert(root);
                }
            }
        }
        Some(())
    }

    /// The views between a value and its root.
    fn follow_views(&self, value: ValueId, chain: &mut Chain) {
        let mut value = value;
        while !self.schedule.placements.is_root(value)
            && let Some(id) = self.schedule.producer(value)
        {
            chain.nodes.insert(id);
            value = self.graph.nodes[id].inputs[0];
        }
    }

    /// The graph with a copy of the work for each group that shall do it itself, and which group each copied value is for.
    fn rewritten(
        &self,
        chosen: &BTreeMap<usize, BTreeSet<NodeId>>,
    ) -> Result<(Graph, BTreeMap<ValueId, usize>)> {
        let values = self.graph.values.values();
        let taken: BTreeSet<&str> = values.filter_map(|value| value.name.as_deref()).collect();
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut copies: BTreeMap<(usize, ValueId), ValueId> = BTreeMap::new();
        let mut rebuild = Rebuild::new(self.graph);
        for (id, node) in self.graph.nodes.iter() {
            let group = self.group_of[id.index()];
            let Some((group, again)) = group.and_then(|g| Some((g, chosen.get(&g)?))) else {
                rebuild.copy(id)?;
                continue;
            };
            let mut wanted = BTreeSet::new();
            for &operand in &node.inputs {
                self.behind(operand, again, &mut wanted);
            }
            // Old values stand for their copies while this group's node is copied.
            let mut stood = Vec::new();
            for &copied in &wanted {
                let out = self.graph.nodes[copied].out();
                stood.push((out, rebuild.get(out)?));
                match copies.get(&(group, out)) {
                    Some(&copy) => rebuild.define(out, copy),
                    None => {
                        let name = self.name_of_copy(out, group, &taken);
                        rebuild.copy_again(copied, &name)?;
                        names.insert(name, group);
                        copies.insert((group, out), rebuild.get(out)?);
                    }
                }
            }
            rebuild.copy(id)?;
            for (old, new) in stood {
                rebuild.define(old, new);
            }
        }
        let graph = rebuild.finish()?;
        let copies = graph.values.iter().filter_map(|(id, value)| {
            let group = names.get(value.name.as_ref()?)?;
            Some((id, *group))
        });
        let copies = copies.collect();
        Ok((graph, copies))
    }

    /// A name for the copy of a value that a group computes, which no value of the graph has.
    fn name_of_copy(&self, value: ValueId, group: usize, taken: &BTreeSet<&str>) -> String {
        let own = match &self.graph.values[value].name {
            Some(name) => name.clone(),
            None => format!("v{}", value.index()),
        };
        let mut name = format!("{own}_for_{group}");
        while taken.contains(name.as_str()) {
            name.push('_');
        }
        name
    }

    /// The nodes behind a value that are among those to be copied: its views, if its root is, and the work behind the root, in order.
    fn behind(&self, value: ValueId, again: &BTreeSet<NodeId>, wanted: &mut BTreeSet<NodeId>) {
        let root = self.schedule.placements.root(value);
        let Some(maker) = self.schedule.producer(root).filter(|id| again.contains(id)) else {
            return;
        };
        let mut views = Chain::default();
        self.follow_views(value, &mut views);
        wanted.extend(views.nodes);
        if wanted.insert(maker) {
            for &operand in &self.graph.nodes[maker].inputs {
                self.behind(operand, again, wanted);
            }
        }
    }
}
