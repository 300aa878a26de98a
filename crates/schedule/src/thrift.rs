//! Groups cut in two where too much lives at once.
//!
//! A group keeps what it reads until its last node ran, and stores all of its results at once; a group of nodes that stand far apart holds memory for all that runs between them. Where a schedule holds more
//! than it may, the graph is scheduled anew in *parts*: nodes of different parts share no group. Step by step, at the step where most is alive,
//!
//! - groups that have nodes on both sides of the step's own (as the program has them) are cut there, since the program itself holds no more at that point;
//! - where there are none, the step's group is cut in two, at the node where the larger half holds least.
//!
//! Where that is not enough, parts of concatenations are copied to their places instead of being computed there ([`Guide::copied`]): a result that its parts are computed in lives longer.
//!
//! In the end every node is a group of its own, in the order of the program: that holds what the program holds. It is reached seldom, and a graph is scheduled so a few times only.

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Id, Result};
use oxyfuel_graph::{Graph, NodeId, Op, ValueId};
use oxyfuel_plan::TargetDesc;

use crate::fuse::{Guide, schedule_by};
use crate::group::{Group, Schedule};

/// How often a graph is scheduled anew at most, in either way, and how many nodes are looked at in all of these together: a large graph is scheduled twice, and one of thousands of nodes stays as it is.
const TRIES: usize = 48;
const VISITS: usize = 1 << 12;

/// The most bytes that live at once, and the step where they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) bytes: i64,
    pub(crate) step: usize,
}

/// First and last step of every root that has memory from a call, and its bytes by the likely sizes.
struct Lives {
    of: Vec<Option<(usize, usize, i64)>>,
    steps: usize,
}

impl Lives {
    fn new(graph: &Graph, schedule: &Schedule) -> Self {
        let guesses = graph.guesses();
        let steps = schedule.groups.len();
        let mut of: Vec<Option<(usize, usize, i64)>> = vec![None; graph.values.len()];
        let elsewhere =
            |root: ValueId| root.index() < graph.inputs.len() || schedule.overwrites.contains(root);
        for (step, group) in schedule.groups.iter().enumerate() {
            for &value in &group.outputs {
                let root = schedule.owner(value);
                if of[root.index()].is_none() && !elsewhere(root) {
                    let ty = &graph.values[root].ty;
                    let count = ty.numel().eval(&|symbol| guesses.get(&symbol).copied());
                    let bytes = count.unwrap_or(0).saturating_mul(ty.dtype.size() as i64);
                    of[root.index()] = Some((step, step, bytes));
                }
            }
            for &value in group.inputs.iter().chain(&group.outputs) {
                if let Some((_, last, _)) = &mut of[schedule.owner(value).index()] {
                    *last = step;
                }
            }
        }
        for out in &graph.outputs {
            let root = schedule.owner(schedule.placements.root(out.value));
            if let Some((_, last, _)) = &mut of[root.index()] {
                *last = steps;
            }
        }
        Self { of, steps }
    }

    fn most(&self) -> Live {
        let mut change = vec![0i64; self.steps + 2];
        for (first, last, bytes) in self.of.iter().flatten() {
            change[*first] = change[*first].saturating_add(*bytes);
            change[last + 1] = change[last + 1].saturating_sub(*bytes);
        }
        let mut most = Live { bytes: 0, step: 0 };
        let mut bytes = 0i64;
        for (step, change) in change.into_iter().enumerate() {
            bytes = bytes.saturating_add(change);
            if bytes > most.bytes {
                most = Live { bytes, step };
            }
        }
        most
    }

    /// Whether a root is there at a step.
    fn has(&self, root: ValueId, step: usize) -> bool {
        self.of[root.index()].is_some_and(|(first, last, _)| first <= step && step <= last)
    }
}

/// The most bytes that live at once in a schedule, each value in memory of its own; views, inputs and constants have none.
pub(crate) fn live(graph: &Graph, schedule: &Schedule) -> Live {
    Lives::new(graph, schedule).most()
}

/// The same as a number: what a call holds at least.
pub fn least_bytes(graph: &Graph, schedule: &Schedule) -> i64 {
    live(graph, schedule).bytes
}

/// The schedule of a graph in parts, so that at most so many bytes live at once, or as few as were found.
pub(crate) fn within(
    graph: &Graph,
    first: Schedule,
    target: &TargetDesc,
    copies: Option<&BTreeMap<ValueId, usize>>,
    most: i64,
) -> Result<Schedule> {
    let held = live(graph, &first).bytes;
    if held <= most {
        return Ok(first);
    }
    let mut best = (held, first.clone());
    let mut now = first;
    let tries = (VISITS / (2 * graph.nodes.len().max(1))).min(TRIES);
    let concatenates = graph
        .nodes
        .values()
        .any(|node| matches!(node.op, Op::Cat { .. }));
    for copied in [false, true] {
        let mut parts = vec![0u32; graph.nodes.len()];
        if copied && (best.0 <= most || !concatenates) {
            break;
        }
        for number in 0..tries {
            if best.0 <= most {
                break;
            }
            let begins = copied && number == 0;
            if !begins && !cut(graph, &now, &mut parts) {
                break;
            }
            let guide = Guide {
                copies,
                copied,
                parts: &parts,
            };
            now = schedule_by(graph, target, guide)?;
            let bytes = live(graph, &now).bytes;
            if bytes < best.0 {
                best = (bytes, now.clone());
            }
        }
    }
    Ok(best.1)
}

/// Cuts groups at the step where most is alive; false where there is nothing to cut.
fn cut(graph: &Graph, schedule: &Schedule, parts: &mut [u32]) -> bool {
    let lives = Lives::new(graph, schedule);
    let step = lives.most().step;
    let Some(group) = schedule.groups.get(step) else {
        return false;
    };
    let mut next = parts.iter().max().map_or(0, |part| part + 1);
    let Some(&here) = group.nodes.iter().max() else {
        return false;
    };
    let mut found = false;
    for (number, other) in schedule.groups.iter().enumerate() {
        let mut touched = other.inputs.iter().chain(&other.outputs);
        let straddles = number != step
            && other.nodes.iter().any(|&node| node <= here)
            && other.nodes.iter().any(|&node| node > here)
            && touched.any(|&value| lives.has(schedule.owner(value), step));
        if straddles {
            for node in other.nodes.iter().filter(|&&node| node > here) {
                parts[node.index()] = next;
            }
            next += 1;
            found = true;
        }
    }
    if found {
        return true;
    }
    let Some(at) = halves(graph, schedule, &lives, step, group) else {
        return false;
    };
    for node in group.nodes.iter().filter(|&&node| node >= at) {
        parts[node.index()] = next;
    }
    true
}

/// The node with which the second half of a group should begin, so that the larger of both holds least; none where a group is one node.
fn halves(
    graph: &Graph,
    schedule: &Schedule,
    lives: &Lives,
    step: usize,
    group: &Group,
) -> Option<NodeId> {
    let mut nodes = group.nodes.clone();
    nodes.sort_unstable();
    let guesses = graph.guesses();
    let bytes = |root: ValueId| {
        let ty = &graph.values[root].ty;
        let count = ty.numel().eval(&|symbol| guesses.get(&symbol).copied());
        count.unwrap_or(0).saturating_mul(ty.dtype.size() as i64)
    };
    let root = |value: ValueId| schedule.placements.root(value);
    let reads = |nodes: &[NodeId]| -> BTreeSet<ValueId> {
        let inputs = nodes.iter().flat_map(|&node| &graph.nodes[node].inputs);
        inputs.map(|&value| root(value)).collect()
    };
    let makes = |nodes: &[NodeId]| -> BTreeSet<ValueId> {
        let outputs = nodes.iter().flat_map(|&node| &graph.nodes[node].outputs);
        outputs.copied().collect()
    };
    let source = |value: &ValueId| {
        let node = schedule.producer(*value).map(|id| &graph.nodes[id].op);
        matches!(
            node,
            Some(Op::Full { .. } | Op::Arange { .. } | Op::ScalarTensor { .. })
        )
    };
    let stored: BTreeSet<ValueId> = group.outputs.iter().copied().collect();
    let dies = |value: &ValueId| {
        let life = lives.of[schedule.owner(*value).index()];
        life.is_some_and(|(_, last, _)| last == step)
    };
    let cost = |at: usize| {
        let (first, second) = nodes.split_at(at);
        let (reads_first, reads_second) = (reads(first), reads(second));
        let (made_first, made_second) = (makes(first), makes(second));
        let sum = |values: &mut dyn Iterator<Item = &ValueId>| -> i64 {
            let values = values.filter(|value| !source(value));
            values
                .map(|&value| bytes(value))
                .fold(0, i64::saturating_add)
        };
        // What passes from one half to the other is stored.
        let kept: i64 = sum(&mut made_first
            .iter()
            .filter(|value| stored.contains(value) || reads_second.contains(value)));
        let results: i64 = sum(&mut made_second.iter().filter(|value| stored.contains(value)));
        // What only the first half reads is gone before the second runs.
        let freed: i64 = sum(&mut reads_first.iter().filter(|value| {
            dies(value) && !reads_second.contains(value) && !made_first.contains(value)
        }));
        kept.max(kept.saturating_add(results).saturating_sub(freed))
    };
    let at = (1..nodes.len()).min_by_key(|&at| cost(at))?;
    Some(nodes[at])
}
