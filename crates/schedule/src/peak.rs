//! The most bytes that a call of a plan holds at once, before the plan is there: what the runtime will count, by the likely sizes.

use oxyfuel_base::{Expr, Id, Result};
use oxyfuel_graph::{Graph, Op};
use oxyfuel_plan::{Buffer, BufferHome};

use crate::buffers::BufferPlan;
use crate::group::{GroupKind, Schedule};

/// The arena, what the host holds at its worst, and results.
pub fn peak(graph: &Graph, schedule: &Schedule, plan: &BufferPlan) -> Result<i64> {
    let guesses = graph.guesses();
    let guess = |bytes: &Expr| bytes.eval(&|symbol| guesses.get(&symbol).copied());
    let sizes = plan.buffers.values().map(|buffer| guess(&buffer.bytes));
    let sizes = sizes.collect::<Result<Vec<i64>>>()?;
    let external = |step: usize| matches!(schedule.groups[step].kind, GroupKind::External(_));
    let binds = graph
        .nodes
        .values()
        .any(|node| matches!(&node.op, Op::External { call } if !call.binds.is_empty()));
    let steps = schedule.groups.len();
    let hosted = |buffer: &Buffer| matches!(buffer.home, BufferHome::Host);
    let mut last_use = vec![false; steps];
    for buffer in plan.buffers.values().filter(|buffer| hosted(buffer)) {
        if let Some(last) = last_use.get_mut(buffer.last_step as usize) {
            *last = true;
        }
    }
    let ends = |step: usize| external(step) || step + 1 < steps && external(step + 1);
    let mut most = held(plan, &sizes, steps, &ends);
    if !binds {
        most = most.min(held(plan, &sizes, steps, &|step| {
            ends(step) || last_use[step]
        }));
    }
    // The caller may write what it is given, so a constant that is a result is copied at the end.
    let roots = graph
        .outputs
        .iter()
        .map(|out| schedule.memory.root(out.value));
    let copied = roots.filter_map(|root| {
        let &id = plan.of_value.get(&root)?;
        let constant = matches!(plan.buffers[id].home, BufferHome::Constant(_));
        constant.then(|| sizes[id.index()])
    });
    let results = (plan.buffers.values().zip(&sizes))
        .filter(|(buffer, _)| stays(buffer, steps))
        .map(|(_, size)| size);
    let end = results.copied().chain(copied).fold(0, i64::saturating_add);
    Ok(guess(&plan.arena_bytes)?.saturating_add(most.max(end)))
}

/// Whether somebody holds a buffer when all steps have run.
fn stays(buffer: &Buffer, steps: usize) -> bool {
    match buffer.home {
        BufferHome::Output(_) => true,
        BufferHome::Host => buffer.last_step as usize >= steps,
        BufferHome::Input(_)
        | BufferHome::Arena { .. }
        | BufferHome::Constant(_)
        | BufferHome::Within { .. } => false,
    }
}

/// What is held at once where tensors are made before a segment of steps and forgotten after one; a segment ends with each step that `ends` one.
fn held(plan: &BufferPlan, sizes: &[i64], steps: usize, ends: &dyn Fn(usize) -> bool) -> i64 {
    let mut segment = Vec::with_capacity(steps + 1);
    let mut number = 0;
    for step in 0..steps {
        segment.push(number);
        number += usize::from(ends(step));
    }
    segment.push(number + 1);
    let at = |step: u32| segment[(step as usize).min(steps)];
    let mut first: Vec<u32> = plan.buffers.values().map(|b| b.first_step).collect();
    for buffer in plan.buffers.values() {
        if let BufferHome::Within { buffer: owner, .. } = buffer.home {
            first[owner.index()] = first[owner.index()].min(buffer.first_step);
        }
    }
    let mut change = vec![0i64; number + 3];
    for ((buffer, &size), &first) in plan.buffers.values().zip(sizes).zip(&first) {
        if !matches!(buffer.home, BufferHome::Host | BufferHome::Output(_)) {
            continue;
        }
        let begin = &mut change[at(first)];
        *begin = begin.saturating_add(size);
        if !stays(buffer, steps) {
            let end = &mut change[at(buffer.last_step) + 1];
            *end = end.saturating_sub(size);
        }
    }
    let (mut live, mut most) = (0i64, 0i64);
    for change in change {
        live = live.saturating_add(change);
        most = most.max(live);
    }
    most
}
