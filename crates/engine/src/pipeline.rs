//! The whole compiler, in order.

use oxyfuel_base::{Code, Result};
use oxyfuel_graph::Graph;
use oxyfuel_lower::{Lowered, lower_group};
use oxyfuel_plan::{Artefact, Plan};
use oxyfuel_schedule::{Group, GroupKind, Schedule, schedule};
use oxyfuel_transform::{borders, decompose, simplify};

use crate::assemble::{Emitted, assemble};
use crate::options::Options;
use crate::record::{Record, Stage};
use crate::target::Target;

/// A plan and how it came to be.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub plan: Plan,
    pub record: Record,
}

/// Compiles a graph for a target. Every step is named, timed and verified; texts of stages are kept when `texts` is set.
pub fn compile(graph: &Graph, target: &Target, options: &Options, texts: bool) -> Result<Compiled> {
    let mut record = Record::new(texts || options.trace_dir.is_some());

    record.step("verify", || oxyfuel_graph::verify(graph))?;
    record.reached(Stage::Graph, || graph);

    let graph = record.step("decompose", || verified(decompose(graph)?))?;
    record.reached(Stage::Decomposed, || &graph);

    let graph = record.step("simplify", || verified(simplify(&graph)?))?;
    record.reached(Stage::Simplified, || &graph);

    let graph = record.step("borders", || verified(borders(&graph)?))?;
    record.reached(Stage::Settled, || &graph);

    let schedule = record.step("schedule", || schedule(&graph, &target.desc))?;
    record.reached(Stage::Schedule, || schedule.display(&graph).to_string());

    let lowered = record.step("lower", || lower_all(&graph, &schedule, target))?;
    record.reached(Stage::Logical, || {
        programs(&lowered, |l| l.logical.to_string())
    });

    record.step("map", || {
        lowered
            .iter()
            .flatten()
            .try_for_each(|l| oxyfuel_kernel::verify(&l.mapped))
    })?;
    record.reached(Stage::Mapped, || {
        programs(&lowered, |l| l.mapped.to_string())
    });

    let kernels = record.step("emit", || emit_all(lowered, target))?;
    record.reached(Stage::Code, || listings(&kernels, target));

    let plan = record.step("plan", || {
        assemble(&graph, &schedule, kernels, &target.desc.isa)
    })?;
    record.reached(Stage::Plan, || format!("{plan:#?}"));

    Ok(Compiled { plan, record })
}

fn verified(graph: Graph) -> Result<Graph> {
    oxyfuel_graph::verify(&graph)?;
    Ok(graph)
}

/// The kernel of each group; none for a call of the host.
fn lower_all(graph: &Graph, schedule: &Schedule, target: &Target) -> Result<Vec<Option<Lowered>>> {
    let lower = |(i, group): (usize, &Group)| {
        if let GroupKind::External(_) = group.kind {
            return Ok(None);
        }
        let name = kernel_name(graph, group, i);
        let mut failure = None;
        // The first way that the target can express is taken; alternatives are for the tuner and for shapes that the best way does not cover.
        for &strategy in &group.alternatives {
            match lower_group(graph, schedule, group, strategy, &target.desc, &name) {
                Ok(lowered) => return Ok(Some(lowered)),
                Err(error) if error.code == Code::NoLowering => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| oxyfuel_base::err!(Internal, "group {i} has no way to run")))
    };
    schedule.groups.iter().enumerate().map(lower).collect()
}

/// A name that says what the kernel does: its ops, cut to a readable length.
fn kernel_name(graph: &Graph, group: &Group, number: usize) -> String {
    let mut name = format!("k{number}");
    for &node in &group.nodes {
        let op = graph.nodes[node].op.name().trim_start_matches('_');
        if name.len() + op.len() > 48 {
            break;
        }
        name.push('_');
        name.push_str(op);
    }
    name
}

fn emit_all(lowered: Vec<Option<Lowered>>, target: &Target) -> Result<Vec<Option<Emitted>>> {
    let emit = |lowered: Lowered| match target.emit(&lowered.mapped) {
        Ok(artefact) => Ok(Emitted {
            lowered,
            artefact,
            note: None,
        }),
        // What the emitter cannot express yet runs in the interpreter, and says so.
        Err(error) if error.code == Code::NoLowering && target.can_interpret() => Ok(Emitted {
            lowered,
            artefact: Artefact::Interpreted,
            note: Some(error.message),
        }),
        Err(error) => Err(error),
    };
    lowered
        .into_iter()
        .map(|kernel| kernel.map(emit).transpose())
        .collect()
}

fn programs(lowered: &[Option<Lowered>], text: impl Fn(&Lowered) -> String) -> String {
    let texts: Vec<String> = lowered.iter().flatten().map(text).collect();
    texts.join("\n")
}

fn listings(kernels: &[Option<Emitted>], target: &Target) -> String {
    kernels
        .iter()
        .flatten()
        .map(|kernel| {
            format!(
                "; {}\n{}",
                kernel.lowered.mapped.name,
                target.listing(&kernel.artefact)
            )
        })
        .collect::<Vec<_>>()
        .join("\n")
}
