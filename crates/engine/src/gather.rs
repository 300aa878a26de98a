//! Small launches, one after the other, as one.

use std::collections::HashMap;

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::Graph;
use oxyfuel_lower::{Lowered, MOST_PARAMS, MOST_PHASES, gather, gathers};
use oxyfuel_plan::TargetDesc;
use oxyfuel_schedule::{Group, GroupKind, Schedule, least_bytes};

use crate::share::{Kernels, Launch};

/// A launch, of one group or of several that follow each other.
struct Run {
    groups: std::ops::Range<usize>,
    /// Blocks that run it; 0: as many as it has instances.
    blocks: u32,
}

/// The schedule with runs of small groups as one group each, and its kernels. Nothing changes where a call would hold more than `most` bytes and a granule of memory, and more than it does now.
pub fn gather_all(
    graph: &Graph,
    schedule: Schedule,
    kernels: Kernels<Lowered>,
    target: &TargetDesc,
    most: i64,
) -> Result<(Schedule, Kernels<Lowered>)> {
    let runs = runs(&schedule, &kernels, target);
    if runs.iter().all(|run| run.blocks == 0) {
        return Ok((schedule, kernels));
    }
    let steps: Vec<Vec<usize>> = runs
        .iter()
        .map(|run| run.groups.clone().collect())
        .collect();
    let gathered = schedule.one_after_the_other(&steps);
    let bytes = least_bytes(graph, &gathered);
    if bytes > most.max(target.memory_granule()) && bytes > least_bytes(graph, &schedule) {
        return Ok((schedule, kernels));
    }
    let kernels = gathered_kernels(kernels, &runs)?;
    Ok((gathered, kernels))
}

/// All groups, in order.
fn runs(schedule: &Schedule, kernels: &Kernels<Lowered>, target: &TargetDesc) -> Vec<Run> {
    let blocks = target.max_cluster.clamp(1, target.workers.max(1));
    let sizes: Vec<Option<i64>> = kernels.unique.iter().map(|k| gathers(k, blocks)).collect();
    let mut runs: Vec<Run> = Vec::new();
    // Of the last run, where others may follow: phases, parameters, and the instances of the largest phase.
    let mut open: Option<(usize, usize, i64)> = None;
    for (number, (group, launch)) in schedule.groups.iter().zip(&kernels.launches).enumerate() {
        let small = launch
            .as_ref()
            .filter(|_| is_small(group, target.gathered_counts()))
            .and_then(|launch| {
                let phases = kernels.unique[launch.kernel].mapped.phases.len();
                Some((phases, launch.arguments.len(), sizes[launch.kernel]?))
            });
        let follows = match (open, small) {
            (Some((phases, params, most)), Some((more, own, largest)))
                if phases + more <= MOST_PHASES && params + own <= MOST_PARAMS =>
            {
                Some((phases + more, params + own, most.max(largest)))
            }
            _ => None,
        };
        match (follows, runs.last_mut()) {
            (Some(_), Some(last)) => last.groups.end = number + 1,
            _ => runs.push(Run {
                groups: number..number + 1,
                blocks: 0,
            }),
        }
        open = follows.or(small);
        if let (Some((2.., _, largest)), Some(last)) = (open, runs.last_mut()) {
            let wanted = u32::try_from(largest).unwrap_or(u32::MAX);
            last.blocks = wanted.next_power_of_two().min(blocks);
        }
    }
    runs
}

/// Whether a group is little work: elementwise, reductions and writes over at most so many elements.
fn is_small(group: &Group, most: i64) -> bool {
    group.pieces().into_iter().all(|piece| {
        let elements: Expr = piece.dims.iter().cloned().product();
        matches!(piece.kind, GroupKind::Loops | GroupKind::Writes(_))
            && elements.as_const().is_some_and(|n| n <= most)
    })
}

/// The kernels of the runs. Those that no run launches any more are gone.
fn gathered_kernels(kernels: Kernels<Lowered>, runs: &[Run]) -> Result<Kernels<Lowered>> {
    let mut unique: Vec<Lowered> = Vec::new();
    // By the programs of a kernel, and the blocks that run them.
    let mut known: HashMap<(Vec<usize>, u32), usize> = HashMap::new();
    let mut launches = Vec::new();
    for run in runs {
        let parts: Vec<&Launch> = kernels.launches[run.groups.clone()]
            .iter()
            .flatten()
            .collect();
        if parts.is_empty() {
            launches.push(None);
            continue;
        }
        let key = (
            parts.iter().map(|part| part.kernel).collect::<Vec<_>>(),
            run.blocks,
        );
        let kernel = match known.get(&key) {
            Some(&kernel) => kernel,
            None => {
                let programs: Vec<&Lowered> = key.0.iter().map(|&p| &kernels.unique[p]).collect();
                unique.push(match (run.blocks, &programs[..]) {
                    (0, [one]) => (*one).clone(),
                    _ => gather(&name(&programs), &programs, run.blocks)?,
                });
                known.insert(key, unique.len() - 1);
                unique.len() - 1
            }
        };
        let arguments = parts.iter().flat_map(|part| part.arguments.iter().cloned());
        launches.push(Some(Launch {
            kernel,
            arguments: arguments.collect(),
        }));
    }
    Ok(Kernels { unique, launches })
}

/// The first program's, and how many follow.
fn name(programs: &[&Lowered]) -> String {
    let first = &programs[0].mapped.name;
    match programs.len() {
        1 => first.clone(),
        n => format!("{first}_and_{}", n - 1),
    }
}
