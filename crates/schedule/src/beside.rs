//! Groups that share a launch: each has a domain of its own, and none of them touches what another one writes.
//!
//! A launch costs microseconds, whatever it does. An optimiser's step over the parameters of a model is hundreds of groups that do the same to tensors of a dozen shapes and know nothing of each other: laid end to
//! end in one grid they are one launch. Groups that are near each other in order are brought together, the later one up or the earlier ones down, wherever nothing between them cares.

use std::collections::{BTreeSet, HashMap};

use oxyfuel_graph::ValueId;
use rustc_hash::FxHashMap;

use crate::group::{Group, GroupKind, Schedule};

/// How many groups may stand between one that joins a launch and the last that did: results that wait long keep memory, and leave the caches.
const NEAR: usize = 64;

/// What is known of a group that may share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joinable {
    /// Groups of one class may share a launch.
    pub class: usize,
    /// Groups of one program have their code in common.
    pub program: usize,
    /// Parameters of its own.
    pub params: usize,
}

/// The most that one launch holds.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub programs: usize,
    pub params: usize,
}

/// Groups that run at once, and what they touch.
#[derive(Debug)]
struct Step {
    groups: Vec<usize>,
    programs: BTreeSet<usize>,
    params: usize,
    reads: BTreeSet<ValueId>,
    writes: BTreeSet<ValueId>,
    /// Its place in the order.
    time: usize,
}

/// When memory was touched last.
#[derive(Default)]
struct Touched {
    read: FxHashMap<ValueId, usize>,
    written: FxHashMap<ValueId, usize>,
}

impl Touched {
    fn note(&mut self, step: &Step) {
        for (values, times) in [
            (&step.reads, &mut self.read),
            (&step.writes, &mut self.written),
        ] {
            for &value in values {
                let time = times.entry(value).or_default();
                *time = step.time.max(*time);
            }
        }
    }

    /// The last time at which something ran that a step with these reads and writes must not change places with.
    fn conflict(&self, step: &Step) -> usize {
        let written = |value| self.written.get(value);
        let read = |value| self.read.get(value);
        let reads = step.reads.iter().filter_map(written);
        let writes =
            (step.writes.iter()).flat_map(|value| written(value).into_iter().chain(read(value)));
        reads.chain(writes).copied().max().unwrap_or(0)
    }
}

/// The groups of a schedule in an order in which they can run, those that share a launch together.
pub fn beside(schedule: &Schedule, joinable: &[Option<Joinable>], room: Room) -> Vec<Vec<usize>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut touched = Touched::default();
    // The last step of each class.
    let mut open: HashMap<usize, usize> = HashMap::new();
    for (number, group) in schedule.groups.iter().enumerate() {
        let time = number + 1;
        let roots = |values: &[ValueId]| values.iter().map(|&v| schedule.memory.root(v)).collect();
        let this = joinable.get(number).copied().flatten();
        let mut step = Step {
            groups: vec![number],
            programs: this.map(|this| this.program).into_iter().collect(),
            params: this.map_or(0, |this| this.params),
            reads: roots(&group.inputs),
            writes: roots(&group.outputs),
            time,
        };
        // A call of the host may do anything.
        if let GroupKind::External(_) = group.kind {
            open.clear();
        }
        let earlier = this.and_then(|this| open.get(&this.class).copied());
        let earlier = earlier.filter(|&at| {
            let other = &steps[at];
            other
                .groups
                .last()
                .is_some_and(|last| last + NEAR >= number)
                && other.params + step.params <= room.params
                && other.programs.union(&step.programs).count() <= room.programs
                && apart(other, &step)
        });
        if let Some(at) = earlier {
            // Up, where nothing since then cares; or those that ran then down to here.
            let up = touched.conflict(&step) < steps[at].time;
            let down = !up && touched.conflict(&steps[at]) <= steps[at].time;
            if up || down {
                let other = &mut steps[at];
                if up {
                    step.time = other.time;
                } else {
                    other.time = time;
                    touched.note(other);
                }
                touched.note(&step);
                other.groups.extend(step.groups);
                other.programs.extend(step.programs);
                other.params += step.params;
                other.reads.extend(step.reads);
                other.writes.extend(step.writes);
                continue;
            }
        }
        touched.note(&step);
        if let Some(this) = this {
            open.insert(this.class, steps.len());
        }
        steps.push(step);
    }
    steps.sort_by_key(|step| step.time);
    steps.into_iter().map(|step| step.groups).collect()
}

/// Whether neither writes what the other touches.
fn apart(a: &Step, b: &Step) -> bool {
    a.writes.is_disjoint(&b.writes)
        && a.writes.is_disjoint(&b.reads)
        && a.reads.is_disjoint(&b.writes)
}

impl Schedule {
    /// The same work in the given order, the groups of each list as one, side by side.
    #[must_use]
    pub fn together(&self, steps: &[Vec<usize>]) -> Self {
        self.united(steps, false)
    }

    /// The same work, the groups of each list as one that does them in order. Lists are the groups as they come.
    #[must_use]
    pub fn one_after_the_other(&self, steps: &[Vec<usize>]) -> Self {
        self.united(steps, true)
    }

    fn united(&self, steps: &[Vec<usize>], in_order: bool) -> Self {
        let groups = steps.iter().map(|step| match step[..] {
            [one] => self.groups[one].clone(),
            _ => union(
                step.iter()
                    .map(|&group| self.groups[group].clone())
                    .collect(),
                in_order,
            ),
        });
        Self {
            groups: groups.collect(),
            ..self.clone()
        }
    }
}

/// Groups as one that is all of them.
fn union(members: Vec<Group>, in_order: bool) -> Group {
    let mut union = Group {
        kind: GroupKind::Loops,
        dims: Vec::new(),
        reduced: Vec::new(),
        scanned: None,
        nodes: Vec::new(),
        before: None,
        maps: Default::default(),
        operand_maps: Default::default(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        alternatives: Vec::new(),
        members: Vec::new(),
        in_order,
    };
    let (mut inputs, mut outputs) = (BTreeSet::new(), BTreeSet::new());
    for member in &members {
        union.nodes.extend(&member.nodes);
        inputs.extend(&member.inputs);
        outputs.extend(&member.outputs);
    }
    union.inputs = inputs.into_iter().collect();
    union.outputs = outputs.into_iter().collect();
    union.members = members;
    union
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::schedule;
    use oxyfuel_graph::{Graph, parse};
    use oxyfuel_plan::TargetDesc;

    fn target() -> TargetDesc {
        TargetDesc {
            name: "small cpu".into(),
            isa: "test".into(),
            vector_bytes: 64,
            warp_lanes: 1,
            max_warps: 1,
            max_cluster: 1,
            registers: 32,
            workers: 2,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            shared_bytes: 0,
            tiles_spill: true,
            powers_of_two: true,
            storage_floats: vec![],
            narrowed: vec![],
            tensor_copies: false,
            matrix_units: vec![],
            product_library: false,
        }
    }

    /// What every step computes: the first value of each of its groups. Groups of a subtraction may share a launch, two parameters each.
    fn steps(nodes: &str, room: Room) -> Vec<Vec<String>> {
        let text = format!(
            "graph @f(%x: f32[8, 9] cpu, %y: f32[8, 9] cpu, %z: f32[5] cpu, %w: f32[5] cpu) {{\n{nodes}\n}}"
        );
        let graph: Graph = parse("test", &text).unwrap();
        let schedule = schedule(&graph, &target()).unwrap();
        let first = |group: &Group| graph.nodes[group.nodes[0]].clone();
        let joinable = |(program, group): (usize, &Group)| {
            (first(group).op.name() == "sub").then_some(Joinable {
                class: 0,
                program,
                params: 2,
            })
        };
        let joinable: Vec<_> = schedule.groups.iter().enumerate().map(joinable).collect();
        let name = |&group: &usize| {
            let value = first(&schedule.groups[group]).out();
            graph.values[value].name.clone().unwrap()
        };
        let steps = beside(&schedule, &joinable, room);
        let named = steps.iter().map(|step| step.iter().map(name).collect());
        named.collect()
    }

    const ROOM: Room = Room {
        programs: 8,
        params: 64,
    };

    #[test]
    fn the_later_one_comes_up_past_what_does_not_care() {
        let found = steps(
            "%a: f32[8, 9] = sub %x, %y
             %c: f32[8, 9] = cumsum %a, dim=1
             %b: f32[5] = sub %z, %w
             return %c, %b",
            ROOM,
        );
        assert_eq!(found, [vec!["a", "b"], vec!["c"]]);
    }

    #[test]
    fn the_earlier_one_comes_down_to_what_must_wait() {
        let found = steps(
            "%a: f32[8, 9] = sub %x, %y
             %s: f32[5] = cumsum %z, dim=0
             %b: f32[5] = sub %s, %w
             return %a, %b",
            ROOM,
        );
        assert_eq!(found, [vec!["s"], vec!["a", "b"]]);
    }

    #[test]
    fn what_reads_the_other_stays_behind_it() {
        let found = steps(
            "%a: f32[8, 9] = sub %x, %y
             %c: f32[8, 9] = cumsum %a, dim=1
             %b: f32[8, 9] = sub %c, %y
             return %b",
            ROOM,
        );
        assert_eq!(found, [["a"], ["c"], ["b"]]);
    }

    #[test]
    fn what_is_written_in_place_is_read_before() {
        // The second subtraction reads the input that the first one writes: by the program, what was in it before.
        let found = steps(
            "%a: f32[8, 9] = sub %x, %y
             %c: f32[8, 9] = cumsum %a, dim=1
             %d: f32[8, 9] = cumsum %x, dim=0
             %b: f32[8, 9] = sub %d, %x
             return %b, %c, %a into %x",
            ROOM,
        );
        let together = found.iter().any(|step| step.len() > 1);
        assert!(!together, "{found:?}");
    }

    #[test]
    fn a_launch_has_room_for_so_much() {
        let nodes = "%a: f32[8, 9] = sub %x, %y
             %b: f32[5] = sub %z, %w
             return %a, %b";
        let apart = [vec!["a"], vec!["b"]];
        let programs = Room {
            programs: 1,
            ..ROOM
        };
        let params = Room { params: 3, ..ROOM };
        assert_eq!(steps(nodes, ROOM), [["a", "b"]]);
        assert_eq!(steps(nodes, programs), apart);
        assert_eq!(steps(nodes, params), apart);
    }
}
