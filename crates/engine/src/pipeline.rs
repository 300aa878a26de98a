//! The whole compiler, in order.

use std::borrow::Cow;
use std::collections::BTreeSet;

use oxyfuel_base::{Code, DType, Result};
use oxyfuel_graph::{Graph, Node};
use oxyfuel_kernel::Program;
use oxyfuel_lower::{Lowered, Rounding, has_kernel, image_points, lower_group, packs_images};
use oxyfuel_plan::{Artefact, Plan};
use oxyfuel_schedule::{Group, Schedule, least_bytes, schedule_by_bytes};
use oxyfuel_transform::{
    attention, borders, concatenations, decompose_but, images, lookups, masks, operands,
    pack_at_calls, products, puts_in_order, recurrences, repeats, reshapes, scalars, simplify,
    simplify_each, views, widen,
};

use crate::assemble::{Emitted, assemble};
use crate::cost::{live_bytes, node_flops};
use crate::gather::gather_all;
use crate::join::join_all;
use crate::options::{Numerics, Options};
use crate::parallel;
use crate::record::{Record, Stage};
use crate::share::{Kernels, share};
use crate::target::Target;

/// Graphs of more nodes are not compiled a second way for the sake of memory.
const THRIFTY: usize = 512;
/// Fewer kernels are verified sooner than a thread has begun to help.
const VERIFIED_ALONE: usize = 64;

/// A plan and how it came to be.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub plan: Plan,
    pub record: Record,
}

/// Compiles a graph for a target. Every step is named, timed and verified; texts of stages are kept when `texts` is set.
pub fn compile(graph: &Graph, target: &Target, options: &Options, texts: bool) -> Result<Compiled> {
    let mut record = Record::new(texts || options.trace_dir.is_some());
    let (graph, schedule, most) = scheduled(graph, target, options, &mut record)?;

    let seen = record.keep_text;
    let lowered = record.step("lower", || {
        lower_all(&graph, &schedule, target, options, seen)
    })?;
    record.reached(Stage::Logical, || {
        let logical = |l: &Lowered| l.logical.as_ref().map(Program::to_string);
        programs(&lowered, |l| logical(l).unwrap_or_default())
    });

    let (schedule, lowered) = record.step("join", || {
        let name = |group: &Group, number| kernel_name(&graph, group, number);
        join_all(&graph, schedule, lowered, &target.desc, most, &name)
    })?;
    let (schedule, lowered) = match options.gathers() {
        true => record.step("gather", || {
            gather_all(&graph, schedule, lowered, &target.desc, most)
        })?,
        false => (schedule, lowered),
    };
    record.reached(Stage::Schedule, || schedule.display(&graph).to_string());

    record.step("map", || {
        let verify = |l: &Lowered| oxyfuel_kernel::verify(&l.mapped);
        let threads = match lowered.unique.len() {
            ..VERIFIED_ALONE => 1,
            _ => options.threads,
        };
        let verified = parallel::map(&lowered.unique, threads, verify);
        verified.into_iter().collect::<Result<()>>()
    })?;
    record.reached(Stage::Mapped, || {
        programs(&lowered, |l| l.mapped.to_string())
    });

    let kernels = record.step("emit", || emit_all(lowered, target, options))?;
    record.reached(Stage::Code, || listings(&kernels, target));

    let plan = record.step("plan", || {
        assemble(&graph, &schedule, kernels, &target.desc.isa, most)
    })?;
    record.reached(Stage::Plan, || format!("{plan:#?}"));

    Ok(Compiled { plan, record })
}

/// The first half, up to what runs in which order; and what a call may hold in bytes.
fn scheduled(
    graph: &Graph,
    target: &Target,
    options: &Options,
    record: &mut Record,
) -> Result<(Graph, Schedule, i64)> {
    record.step("verify", || oxyfuel_graph::verify(graph))?;
    record.reached(Stage::Graph, || graph);

    // Where no unit multiplies halves, their images are wide between convolutions, and may take as many bytes as the same program's in f32.
    let desc = &target.desc;
    let wide = match desc.is_simt() || desc.vector_bytes == 0 || packs_images(graph, desc) {
        true => None,
        false => record.step("widen", || widen(graph)?.map(verified).transpose())?,
    };
    let graph = wide.as_ref().unwrap_or(graph);

    // What a call may hold: no more than the program does one operator at a time.
    let most = record.step("bound", || live_bytes(graph))?;
    let ordered = match options.deterministic {
        true => Some(record.step("order", || verified(puts_in_order(graph)?))?),
        false => None,
    };
    let graph = ordered.as_ref().unwrap_or(graph);
    let written = record.step("attention", || {
        let graph = attention(graph)?;
        if let Cow::Owned(written) = &graph {
            oxyfuel_graph::verify(written)?;
        }
        Ok(graph)
    })?;
    let graph = &*written;
    let last = match packs_images(graph, &target.desc) {
        true => {
            let points = |graph: &Graph, node: &Node| image_points(graph, node, &target.desc);
            let packed = || verified(images(pack_at_calls(graph, &points)?)?);
            Some(record.step("images", packed)?)
        }
        false => None,
    };
    let graph = last.as_ref().unwrap_or(graph);

    let decomposed = record.step("decompose", || {
        let stays = |node: &Node| has_kernel(graph, node, &target.desc);
        verified(decompose_but(graph, &stays)?)
    })?;
    record.reached(Stage::Decomposed, || &decomposed);

    let leaves = |dtype, sizes| target.desc.leaves_product(dtype, sizes);
    let decomposed = record.step("products", || verified(products(decomposed, &leaves)?))?;

    let graph = record.step("recurrences", || verified(recurrences(&decomposed)?))?;
    let graph = record.step("simplify", || verified(simplify(&graph)?))?;
    let graph = record.step("masks", || verified(masks(graph)?))?;
    let graph = record.step("repeats", || verified(repeats(graph, desc.is_simt())?))?;
    let graph = record.step("lookups", || verified(lookups(graph)?))?;
    let graph = record.step("views", || verified(views(graph)?))?;
    let graph = record.step("reshapes", || verified(reshapes(graph)?))?;
    let graph = record.step("scalars", || verified(scalars(graph)?))?;
    let graph = match target.desc.is_simt() {
        true => graph,
        false => record.step("operands", || verified(operands(graph)?))?,
    };
    record.reached(Stage::Simplified, || &graph);

    let graph = record.step("concatenations", || verified(concatenations(graph)?))?;
    let graph = record.step("borders", || verified(borders(&graph)?))?;
    record.reached(Stage::Settled, || &graph);

    let (graph, schedule) = record.step("schedule", || {
        schedule_by_bytes(graph, &target.desc, &node_flops, most)
    })?;
    let (graph, schedule) =
        match graph.nodes.len() <= THRIFTY && least_bytes(&graph, &schedule) > most {
            true => record.step("thrift", || {
                thriftier(&decomposed, (graph, schedule), target, most)
            })?,
            false => (graph, schedule),
        };
    Ok((graph, schedule, most))
}

/// What a target has no code for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmade {
    /// The operators of the host that it comes from, each once.
    pub sources: BTreeSet<String>,
    /// Why, of the first.
    pub reason: String,
}

/// The groups of a graph for which a target has no code. Asked where a compile failed: it does the first half of the work again.
pub fn unmade(graph: &Graph, target: &Target, options: &Options) -> Result<Unmade> {
    let (graph, schedule, _) = scheduled(graph, target, options, &mut Record::new(false))?;
    let shared = share(&graph, &schedule);
    let rounding = rounding(options);
    let mut unmade = Unmade::default();
    for (kind, &number) in shared.first.iter().enumerate() {
        let group = &schedule.groups[number];
        let made = lower_one(&graph, &schedule, group, number, target, rounding)
            .and_then(|lowered| target.emit(&lowered.mapped));
        let Err(error) = made else { continue };
        if error.code != Code::NoLowering {
            return Err(error);
        }
        if unmade.reason.is_empty() {
            unmade.reason = error.message;
        }
        for group in shared.alike(kind) {
            let nodes = schedule.groups[group].nodes.iter();
            let sources = nodes.filter_map(|&node| graph.nodes[node].origin.source.clone());
            unmade.sources.extend(sources);
        }
    }
    Ok(unmade)
}

/// A schedule of the graph in which equal work is done each time, where that holds less.
fn thriftier(
    decomposed: &Graph,
    found: (Graph, Schedule),
    target: &Target,
    most: i64,
) -> Result<(Graph, Schedule)> {
    let graph = verified(simplify_each(&recurrences(decomposed)?)?)?;
    let graph = verified(concatenations(lookups(graph)?)?)?;
    let graph = verified(borders(&graph)?)?;
    let other = schedule_by_bytes(graph, &target.desc, &node_flops, most)?;
    Ok(
        match least_bytes(&other.0, &other.1) < least_bytes(&found.0, &found.1) {
            true => other,
            false => found,
        },
    )
}

fn verified(graph: Graph) -> Result<Graph> {
    oxyfuel_graph::verify(&graph)?;
    Ok(graph)
}

/// The kernels of all groups, equal work lowered once; the logical form stays where it will be `seen`.
fn lower_all(
    graph: &Graph,
    schedule: &Schedule,
    target: &Target,
    options: &Options,
    seen: bool,
) -> Result<Kernels<Lowered>> {
    let rounding = rounding(options);
    let shared = share(graph, schedule);
    let lower = |&number: &usize| {
        let group = &schedule.groups[number];
        let mut lowered = lower_one(graph, schedule, group, number, target, rounding)?;
        // Given back here, where other kernels can use the memory.
        lowered.logical = lowered.logical.filter(|_| seen);
        if let Some(gemm) = &mut lowered.gemm {
            gemm.tf32 = options.tf32 && gemm.a.dtype == DType::F32;
        }
        Ok(lowered)
    };
    let lowered = parallel::map(&shared.first, options.threads, lower);
    let unique = lowered.into_iter().collect::<Result<Vec<_>>>()?;
    let launches = shared.launches(&unique)?;
    Ok(Kernels { unique, launches })
}

fn rounding(options: &Options) -> Rounding {
    match options.numerics {
        Numerics::Eager => Rounding::Everywhere,
        Numerics::Fast => Rounding::AtStores,
    }
}

/// The first way that the target can express is taken; alternatives are for the tuner and for shapes that the best way does not cover.
fn lower_one(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    number: usize,
    target: &Target,
    rounding: Rounding,
) -> Result<Lowered> {
    let name = kernel_name(graph, group, number);
    let mut failure = None;
    for &strategy in &group.alternatives {
        let desc = &target.desc;
        match lower_group(graph, schedule, group, strategy, desc, rounding, &name) {
            Ok(lowered) => return Ok(lowered),
            Err(error) if error.code == Code::NoLowering => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or_else(|| oxyfuel_base::err!(Internal, "group {number} has no way to run")))
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

fn emit_all(
    lowered: Kernels<Lowered>,
    target: &Target,
    options: &Options,
) -> Result<Kernels<Emitted>> {
    let emit = |lowered: &Lowered| {
        let (artefact, note) = match target.emit(&lowered.mapped) {
            Ok(artefact) => (artefact, None),
            // What the emitter cannot express yet runs in the interpreter, and says so.
            Err(error) if error.code == Code::NoLowering && target.can_interpret() => {
                (Artefact::Interpreted, Some(error.message))
            }
            Err(error) => return Err(error),
        };
        let program = oxyfuel_kernel::text::text(&lowered.mapped);
        Ok((program, artefact, note))
    };
    let emitted = parallel::map(&lowered.unique, options.threads, emit);
    let kernels = lowered.unique.into_iter().zip(emitted);
    let unique = kernels.map(|(lowered, emitted)| {
        let (program, artefact, note) = emitted?;
        Ok(Emitted {
            lowered,
            program,
            artefact,
            note,
        })
    });
    Ok(Kernels {
        unique: unique.collect::<Result<_>>()?,
        launches: lowered.launches,
    })
}

fn programs(lowered: &Kernels<Lowered>, text: impl Fn(&Lowered) -> String) -> String {
    let texts: Vec<String> = lowered.unique.iter().map(text).collect();
    texts.join("\n")
}

fn listings(kernels: &Kernels<Emitted>, target: &Target) -> String {
    kernels
        .unique
        .iter()
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
