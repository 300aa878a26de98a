//! Buffers for everything that a schedule keeps in memory: who owns each, how long it lives, and where in the arena it lies.
//!
//! | who owns it | what |
//! |---|---|
//! | the caller | inputs |
//! | the plan | constants, and the arena with what lives between two kernels |
//! | the caller, from us | outputs |
//! | the host | what its own operators return or read, and whatever lives while one of them gives a symbol its number: sizes behind such a step are not known before it; the arena, where it would lie idle beside the host's largest tensors |
//! | whoever calls | with [`Between::Apart`], each value between two kernels; without operators of a host the runtime itself is the host |

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Arena, DType, Expr, Id, Ranges, Result};
use oxyfuel_graph::{Device, Graph, Op, Value, ValueId};
use oxyfuel_plan::{Buffer, BufferHome, BufferId, Lent, Lifetime, Place, TensorSpec, plan_memory};

use crate::group::{GroupKind, Schedule};

/// Alignment of every buffer we allocate: a cache line and the widest vector.
pub const ALIGN: u32 = 64;

/// The buffers of a plan, and which root value each one holds.
#[derive(Clone, Debug)]
pub struct BufferPlan {
    pub buffers: Arena<BufferId, Buffer>,
    pub of_value: BTreeMap<ValueId, BufferId>,
    pub arena_bytes: Expr,
}

/// First and last step that touch each root, and the steps after which more symbols are known.
struct Uses {
    last: Vec<u32>,
    binding: Vec<u32>,
    /// Steps of the host.
    external: Vec<u32>,
    /// Roots that an external call makes.
    made_by_host: BTreeSet<ValueId>,
    /// Roots that an external call reads.
    read_by_host: BTreeSet<ValueId>,
}

impl Uses {
    fn new(graph: &Graph, schedule: &Schedule) -> Self {
        let mut this = Self {
            last: vec![0; graph.values.len()],
            binding: Vec::new(),
            external: Vec::new(),
            made_by_host: BTreeSet::new(),
            read_by_host: BTreeSet::new(),
        };
        for (step, group) in schedule.groups.iter().enumerate() {
            let step = u32::try_from(step).unwrap_or(u32::MAX);
            for value in group.inputs.iter().chain(&group.outputs) {
                this.last[schedule.owner(*value).index()] = step;
            }
            let GroupKind::External(node) = group.kind else {
                continue;
            };
            this.external.push(step);
            this.made_by_host.extend(&group.outputs);
            this.read_by_host.extend(&group.inputs);
            if matches!(&graph.nodes[node].op, Op::External { call } if !call.binds.is_empty()) {
                this.binding.push(step);
            }
        }
        let end = u32::try_from(schedule.groups.len()).unwrap_or(u32::MAX);
        for out in &graph.outputs {
            let root = schedule.placements.root(out.value);
            this.last[schedule.owner(root).index()] = end;
        }
        this
    }

    /// How many steps have given a symbol its number before step `first`.
    fn epoch(&self, first: u32) -> u32 {
        let before = self.binding.iter().filter(|&&step| step < first).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Outputs of ours, whose memory is free until the first step that writes them. Where the host runs steps it makes an output just before the segment that writes it, so it is free from
    /// there on; and where a step gives a symbol its number, memory behind it is not known before.
    fn lenders(&self, buffers: &Arena<BufferId, Buffer>) -> Vec<(BufferId, Lent)> {
        if !self.binding.is_empty() {
            return Vec::new();
        }
        let lender = |(id, buffer): (BufferId, &Buffer)| {
            let (BufferHome::Output(_), Some(tensor)) = (&buffer.home, &buffer.tensor) else {
                return None;
            };
            // What lies between the elements of a tensor that the caller brings is not ours.
            let elements: Expr = tensor.shape.iter().cloned().product();
            let dense = elements * tensor.dtype.size() == buffer.bytes;
            let until = buffer.first_step;
            let before = self.external.iter().filter(|&&step| step < until).max();
            let from = before.map_or(0, |step| step + 1);
            let bytes = buffer.bytes.clone();
            (dense && from < until).then_some((id, Lent { bytes, from, until }))
        };
        buffers.iter().filter_map(lender).collect()
    }

    /// Whether an arena of so many bytes that all steps but these leave alone is there while the host holds most, so that a call takes less where the host makes it before these steps and
    /// forgets it after them.
    fn lies_idle(
        &self,
        bytes: i64,
        (first, last): (u32, u32),
        buffers: &Arena<BufferId, Buffer>,
        guess: &dyn Fn(&Expr) -> Result<i64>,
    ) -> bool {
        if self.external.is_empty() || !self.binding.is_empty() {
            return false;
        }
        // The host makes tensors before a segment of steps and forgets them after one; each step of its own is a segment.
        let mut starts: Vec<u32> = self.external.iter().flat_map(|&s| [s, s + 1]).collect();
        starts.dedup();
        let segment = |step: u32| starts.partition_point(|&start| start <= step);
        let mut change = vec![0i64; starts.len() + 2];
        for buffer in buffers.values() {
            let end = match buffer.home {
                BufferHome::Host => segment(buffer.last_step) + 1,
                BufferHome::Output(_) => starts.len() + 1,
                BufferHome::Input(_)
                | BufferHome::Arena { .. }
                | BufferHome::Constant(_)
                | BufferHome::Within { .. } => continue,
            };
            let Ok(bytes) = guess(&buffer.bytes) else {
                return false;
            };
            change[segment(buffer.first_step)] += bytes;
            change[end] -= bytes;
        }
        let (mut live, mut most, mut beside) = (0, 0, 0);
        for (number, change) in change[..=starts.len()].iter().enumerate() {
            live += change;
            most = most.max(live);
            if (segment(first)..=segment(last)).contains(&number) {
                beside = beside.max(live);
            }
        }
        most.max(beside + bytes) < most + bytes
    }

    /// Lives while an external call gives a symbol its number.
    fn crosses(&self, first: u32, last: u32) -> bool {
        self.binding
            .iter()
            .any(|&step| first <= step && step < last)
    }
}

/// Where what lives between two kernels lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// In one arena, which waits for the next call.
    Arena,
    /// Each in memory of its own, made before the first step that touches it and forgotten after the last: no gaps, and results are made when they are written.
    Apart,
}

/// Gives every root a buffer. Step `i` is group `i`; `workspaces` adds scratch of so many bytes to a step.
pub fn plan_buffers(
    graph: &Graph,
    schedule: &Schedule,
    workspaces: &[(u32, Expr)],
    between: Between,
) -> Result<(BufferPlan, Vec<BufferId>)> {
    let mut buffers: Arena<BufferId, Buffer> = Arena::new();
    let mut of_value = BTreeMap::new();
    let uses = Uses::new(graph, schedule);
    let ranges = graph.ranges();
    let guesses = graph.guesses();
    let last_step = u32::try_from(schedule.groups.len()).unwrap_or(u32::MAX);
    let name = |value: ValueId| {
        graph.values[value]
            .name
            .clone()
            .unwrap_or_else(|| value.to_string())
    };
    let buffer = |value: ValueId, home: BufferHome, first: u32, last: u32| {
        let data = &graph.values[value];
        let tensor = (data.ty.device != Device::Host).then(|| TensorSpec {
            dtype: data.ty.dtype,
            shape: data.ty.shape.clone(),
            strides: schedule.placements.of(value).strides.clone(),
        });
        let align = match home {
            BufferHome::Input(_) => data.align,
            BufferHome::Output(_)
            | BufferHome::Arena { .. }
            | BufferHome::Constant(_)
            | BufferHome::Host
            | BufferHome::Within { .. } => ALIGN,
        };
        Buffer {
            name: name(value),
            home,
            bytes: span(
                &data.ty.shape,
                &schedule.placements.of(value).strides,
                &ranges,
            ) * data.ty.dtype.size(),
            align,
            first_step: first,
            last_step: last,
            tensor,
        }
    };
    for (i, &input) in graph.inputs.iter().enumerate() {
        let home = BufferHome::Input(u32::try_from(i).unwrap_or(u32::MAX));
        of_value.insert(input, buffers.push(buffer(input, home, 0, last_step)));
    }
    for (value, owner) in schedule.overwrites.iter() {
        of_value.insert(value, of_value[&owner]);
    }
    for (_, node) in graph.nodes.iter() {
        if let Op::Constant { id, .. } = &node.op {
            let home = BufferHome::Constant(graph.constants[*id].tensor.data.clone());
            let id = buffers.push(buffer(node.out(), home, 0, last_step));
            of_value.insert(node.out(), id);
        }
    }
    for (i, out) in graph.outputs.iter().enumerate() {
        // What lies in an input that was given away has memory already.
        let root = schedule.owner(schedule.placements.root(out.value));
        if out.alias.is_none()
            && !of_value.contains_key(&root)
            && !uses.made_by_host.contains(&root)
        {
            let home = BufferHome::Output(u32::try_from(i).unwrap_or(u32::MAX));
            of_value.insert(root, buffers.push(buffer(root, home, 0, last_step)));
        }
    }

    let request = |buffer: &Buffer| Lifetime {
        bytes: buffer.bytes.clone(),
        likely: buffer
            .bytes
            .eval(&|symbol| guesses.get(&symbol).copied())
            .unwrap_or(i64::MAX),
        align: u64::from(ALIGN),
        first: buffer.first_step,
        last: buffer.last_step,
        epoch: uses.epoch(buffer.first_step),
    };
    let mut requests = Vec::new();
    let mut placed = Vec::new();
    let mut begun = BTreeSet::new();
    for (step, group) in schedule.groups.iter().enumerate() {
        let first = u32::try_from(step).unwrap_or(u32::MAX);
        for &value in &group.outputs {
            // Memory that several groups write begins with the first of them.
            let value = schedule.owner(value);
            if schedule.overwrites.contains(value) || !begun.insert(value) {
                continue;
            }
            if let Some(&id) = of_value.get(&value) {
                if matches!(buffers[id].home, BufferHome::Input(_)) {
                    continue;
                }
                buffers[id].first_step = buffers[id].first_step.max(first);
                continue;
            }
            let last = uses.last[value.index()].max(first);
            let hosted = between == Between::Apart
                || uses.made_by_host.contains(&value)
                || uses.read_by_host.contains(&value)
                || uses.crosses(first, last);
            if hosted {
                let id = buffers.push(buffer(value, BufferHome::Host, first, last));
                of_value.insert(value, id);
                continue;
            }
            let home = BufferHome::Arena {
                offset: Expr::constant(0),
            };
            let id = buffers.push(buffer(value, home, first, last));
            of_value.insert(value, id);
            requests.push(request(&buffers[id]));
            placed.push(id);
        }
    }
    let mut scratch = Vec::new();
    for (step, size) in workspaces {
        let name = format!("workspace{step}");
        let mut buffer = bytes_of_host(name, size.clone(), *step, *step);
        if between == Between::Arena {
            buffer.tensor = None;
            buffer.home = BufferHome::Arena {
                offset: Expr::constant(0),
            };
            requests.push(request(&buffer));
        }
        let id = buffers.push(buffer);
        if between == Between::Arena {
            placed.push(id);
        }
        scratch.push(id);
    }
    let lenders = uses.lenders(&buffers);
    let lent: Vec<Lent> = lenders.iter().map(|(_, lent)| lent.clone()).collect();
    let mut plan = plan_memory(&requests, &lent, &ranges)?;
    let in_arena = |place: &Place| matches!(place, Place::Arena(_));
    let tenants = placed.iter().zip(&plan.places);
    let tenants = tenants.filter(|(_, place)| in_arena(place));
    let steps = tenants.map(|(&id, _)| (buffers[id].first_step, buffers[id].last_step));
    let steps = steps.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let guess = |bytes: &Expr| bytes.eval(&|symbol| guesses.get(&symbol).copied());
    let room = steps.filter(|&steps| {
        let on_cpu = |value: &Value| matches!(value.ty.device, Device::Cpu | Device::Host);
        graph.values.values().all(on_cpu)
            && guess(&plan.total).is_ok_and(|bytes| uses.lies_idle(bytes, steps, &buffers, &guess))
    });
    let room = room.map(|(first, last)| {
        let bytes = std::mem::replace(&mut plan.total, Expr::ZERO);
        buffers.push(bytes_of_host("arena".to_owned(), bytes, first, last))
    });
    for (&id, place) in placed.iter().zip(plan.places) {
        buffers[id].home = match (place, room) {
            (Place::Arena(offset), Some(buffer)) => BufferHome::Within { buffer, offset },
            (Place::Arena(offset), None) => BufferHome::Arena { offset },
            (Place::Lent(number, offset), _) => BufferHome::Within {
                buffer: lenders[number].0,
                offset,
            },
        };
    }
    Ok((
        BufferPlan {
            buffers,
            of_value,
            arena_bytes: plan.total,
        },
        scratch,
    ))
}

/// A buffer of so many bytes that is made before a step and forgotten after another.
fn bytes_of_host(name: String, bytes: Expr, first: u32, last: u32) -> Buffer {
    Buffer {
        name,
        home: BufferHome::Host,
        bytes: bytes.clone(),
        align: ALIGN,
        first_step: first,
        last_step: last,
        tensor: Some(TensorSpec {
            dtype: DType::U8,
            shape: vec![bytes],
            strides: vec![Expr::constant(1)],
        }),
    }
}

/// Elements from the first to the last of a tensor: its strides may leave gaps, or stay in place. Nothing where an extent is 0.
pub fn span(shape: &[Expr], strides: &[Expr], ranges: &Ranges) -> Expr {
    let steps = shape
        .iter()
        .zip(strides)
        .map(|(extent, stride)| (extent - 1) * stride);
    let span = steps.sum::<Expr>() + 1;
    if span == shape.iter().cloned().product::<Expr>() {
        return span;
    }
    let some = shape.iter().map(|extent| extent.min(1).simplify(ranges));
    span * some.product::<Expr>()
}
