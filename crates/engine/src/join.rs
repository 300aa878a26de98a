//! Launches that can share one: which kernels stand side by side, and what the schedule is then.

use std::collections::HashMap;

use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::Graph;
use oxyfuel_kernel::ir::Geometry;
use oxyfuel_lower::{Lowered, MOST_PARAMS, MOST_PROGRAMS, join, join_arguments, joins};
use oxyfuel_plan::TargetDesc;
use oxyfuel_schedule::{Group, GroupKind, Joinable, Room, Schedule, beside, least_bytes};

use crate::share::{Kernels, Launch};

/// The schedule with groups that share a launch as one, and its kernels. Nothing changes where a call would hold more than `most` bytes, and more than it does now.
pub fn join_all(
    graph: &Graph,
    schedule: Schedule,
    kernels: Kernels<Lowered>,
    target: &TargetDesc,
    most: i64,
    name: &dyn Fn(&Group, usize) -> String,
) -> Result<(Schedule, Kernels<Lowered>)> {
    let room = Room {
        programs: MOST_PROGRAMS,
        params: MOST_PARAMS,
    };
    let joinable = joinable(graph, &schedule, &kernels, target.launch_counts());
    let steps = beside(&schedule, &joinable, room);
    if steps.len() == schedule.groups.len() {
        return Ok((schedule, kernels));
    }
    let together = schedule.together(&steps);
    let bytes = least_bytes(graph, &together);
    if bytes > most && bytes > least_bytes(graph, &schedule) {
        return Ok((schedule, kernels));
    }
    let kernels = joined(&schedule, kernels, &steps, name)?;
    Ok((together, kernels))
}

/// What is known of each group of at most so many elements that may share a launch: those that do the same ops, whatever their shapes, are of one class.
fn joinable(
    graph: &Graph,
    schedule: &Schedule,
    kernels: &Kernels<Lowered>,
    largest: i64,
) -> Vec<Option<Joinable>> {
    let geometries: Vec<Option<Geometry>> = kernels.unique.iter().map(joins).collect();
    let mut classes: HashMap<(Geometry, Vec<&str>), usize> = HashMap::new();
    let groups = schedule.groups.iter().zip(&kernels.launches);
    let joinable = groups.map(|(group, launch)| {
        let launch = launch.as_ref()?;
        let geometry = geometries[launch.kernel]?;
        // Products and the like are work beside which a launch is nothing.
        let light = matches!(group.kind, GroupKind::Loops | GroupKind::Writes(_));
        let elements: Expr = group.dims.iter().cloned().product();
        if !light || elements.as_const().is_none_or(|n| n > largest) {
            return None;
        }
        let ops = group.nodes.iter().map(|&node| graph.nodes[node].op.name());
        let next = classes.len();
        let class = *classes.entry((geometry, ops.collect())).or_insert(next);
        Some(Joinable {
            class,
            program: launch.kernel,
            params: launch.arguments.len(),
        })
    });
    joinable.collect()
}

/// The kernels of the steps. Those that no step launches any more are gone.
fn joined(
    schedule: &Schedule,
    kernels: Kernels<Lowered>,
    steps: &[Vec<usize>],
    name: &dyn Fn(&Group, usize) -> String,
) -> Result<Kernels<Lowered>> {
    let mut unique: Vec<Lowered> = Vec::new();
    // By the programs of a kernel, and on how many sets of tensors each of them runs.
    let mut known: HashMap<Vec<(usize, usize)>, usize> = HashMap::new();
    let mut launches = Vec::new();
    for step in steps {
        let mut parts: Vec<(usize, Vec<&Launch>)> = Vec::new();
        for launch in step
            .iter()
            .filter_map(|&group| kernels.launches[group].as_ref())
        {
            match parts
                .iter_mut()
                .find(|(program, _)| *program == launch.kernel)
            {
                Some((_, sets)) => sets.push(launch),
                None => parts.push((launch.kernel, vec![launch])),
            }
        }
        if parts.is_empty() {
            launches.push(None);
            continue;
        }
        let key: Vec<(usize, usize)> = parts.iter().map(|(p, sets)| (*p, sets.len())).collect();
        let kernel = match known.get(&key) {
            Some(&kernel) => kernel,
            None => {
                let made = match key[..] {
                    [(program, 1)] => kernels.unique[program].clone(),
                    _ => {
                        let first = &schedule.groups[step[0]];
                        let name = format!("{}_x{}", name(first, step[0]), step.len());
                        let programs = key.iter().map(|&(p, sets)| (&kernels.unique[p], sets));
                        join(&name, &programs.collect::<Vec<_>>())?
                    }
                };
                unique.push(made);
                known.insert(key, unique.len() - 1);
                unique.len() - 1
            }
        };
        let parts = parts.into_iter().map(|(_, sets)| {
            let sets = sets.into_iter().map(|set| &set.arguments[..]);
            sets.collect()
        });
        let parts: Vec<Vec<_>> = parts.collect();
        launches.push(Some(Launch {
            kernel,
            arguments: join_arguments(&parts),
        }));
    }
    Ok(Kernels { unique, launches })
}
