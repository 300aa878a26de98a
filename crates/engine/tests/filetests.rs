//! The stages between a graph and code, as files: one command a stage, one folder a room.

use oxyfuel_engine::{Options, Stage, Target, compile};
use oxyfuel_graph::{Graph, HostTensor, Node, parse};
use oxyfuel_plan::{Artefact, BufferHome, Plan, Step};
use oxyfuel_testkit::compare::F64;
use oxyfuel_testkit::{Case, Rng, run_folder};
use oxyfuel_transform::{
    attention, borders, concatenations, decompose, freeze, images, lookups, masks, operands,
    pack_at_calls, puts_in_order, recurrences, repeats, reshapes, scalars, simplify, views, widen,
};

fn graph(case: &Case) -> Result<Graph, String> {
    let graph = parse("input", &case.input).map_err(|e| e.to_string())?;
    oxyfuel_graph::verify(&graph).map_err(|e| e.to_string())?;
    Ok(graph)
}

/// The text of one stage for the target that the case names.
fn stage(case: &Case, stage: Stage) -> Result<String, String> {
    let target = Target::by_name(case.require("target")?).map_err(|e| e.to_string())?;
    let compiled =
        compile(&graph(case)?, &target, &Options::default(), true).map_err(|e| e.to_string())?;
    Ok(compiled.record.text(stage).unwrap_or_default().to_owned())
}

/// Buffers with their homes, sizes and lifetimes.
fn memory(plan: &Plan) -> String {
    let mut text = format!("arena {} bytes\n", plan.arena_bytes);
    for (id, buffer) in plan.buffers.iter() {
        let home = match &buffer.home {
            BufferHome::Input(i) => format!("input {i}"),
            BufferHome::Output(i) => format!("output {i}"),
            BufferHome::Arena { offset } => format!("arena at {offset}"),
            BufferHome::Constant(bytes) => format!("constant of {} bytes", bytes.len()),
            BufferHome::Host => "host".to_owned(),
            BufferHome::Within { buffer, offset } => format!("within {buffer} at {offset}"),
        };
        text += &format!(
            "{id} {}: {home}, {} bytes, steps {}..={}\n",
            buffer.name, buffer.bytes, buffer.first_step, buffer.last_step
        );
    }
    text
}

/// What a call runs on the device, one line a step, and how many launches and calls that is: each phase of a kernel of a GPU is a launch, unless all of them share one.
fn launches(plan: &Plan) -> String {
    let mut text = String::new();
    let mut all = 0;
    for step in &plan.steps {
        let (name, times) = match step {
            Step::Launch { kernel, .. } => {
                let kernel = &plan.kernels[*kernel];
                let times = match &kernel.artefact {
                    Artefact::Ptx(module) => module.entries.len(),
                    Artefact::MachineCode(_) | Artefact::Interpreted => 1,
                };
                (kernel.name.clone(), times)
            }
            Step::External(step) => (step.call.name.clone(), 1),
            Step::Copy { .. } => ("copy".to_owned(), 1),
        };
        all += times;
        text += &format!("{times} {name}\n");
    }
    text + &format!("{all} in all")
}

/// The graph in f64, where only rounding's last bits may differ, before and after: among random bools there are rows of nothing but one of them.
fn rewritten_means_the_same(case: &Case) -> Result<(), String> {
    let mut text = case.input.clone();
    for dtype in ["bf16[", "f16[", "f32["] {
        text = text.replace(dtype, "f64[");
    }
    let before = parse(&case.name, &text).map_err(|e| e.to_string())?;
    let after = attention(&before).map_err(|e| e.to_string())?;
    let mut rng = Rng::new(5);
    let mut inputs = Vec::new();
    for &value in &before.inputs {
        let ty = before.ty(value);
        let shape: Option<Vec<i64>> = ty.shape.iter().map(|n| n.as_const()).collect();
        let Some(shape) = shape else { return Ok(()) };
        let row = shape.last().copied().unwrap_or(1);
        let number = |i: i64| match ty.dtype.is_float() {
            true => rng.normal(),
            false => match i / row % 4 {
                1 => 0.0,
                2 => 1.0,
                _ => f64::from(u8::from(rng.flip())),
            },
        };
        let numbers: Vec<f64> = (0..shape.iter().product()).map(number).collect();
        inputs.push(HostTensor::from_f64(ty.dtype, &shape, &numbers).map_err(|e| e.to_string())?);
    }
    let run = |graph| oxyfuel_graph::run(graph, &inputs).map_err(|e| e.to_string());
    for (output, (is, was)) in run(&after)?.iter().zip(&run(&before)?).enumerate() {
        for i in 0..was.numel() {
            let [is, was] = [is, was].map(|tensor| tensor.get(i).as_f64());
            if !F64.is_close(is, was) {
                return Err(format!("element {i} of output {output} is {is}, not {was}"));
            }
        }
    }
    Ok(())
}

fn command(case: &Case) -> Result<String, String> {
    match case.command.as_str() {
        "decompose" => decompose(&graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "attention" => {
            rewritten_means_the_same(case)?;
            attention(&graph(case)?)
                .map(|g| g.to_string())
                .map_err(|e| e.to_string())
        }
        "widen" => widen(&graph(case)?)
            .map(|g| g.map_or("nothing to widen".to_owned(), |g| g.to_string()))
            .map_err(|e| e.to_string()),
        "operands" => operands(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "order" => puts_in_order(&graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "recurrences" => recurrences(&graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "simplify" => simplify(&graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "lookups" => lookups(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "masks" => masks(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "repeats" => repeats(graph(case)?, case.arg("across").is_some())
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "reshapes" => reshapes(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "scalars" => scalars(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "views" => views(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "concatenations" => concatenations(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "borders" => borders(&graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "images" => images(graph(case)?)
            .map(|g| g.to_string())
            .map_err(|e| e.to_string()),
        "pack" => {
            let target = Target::by_name(case.require("target")?).map_err(|e| e.to_string())?;
            let (desc, graph) = (&target.desc, graph(case)?);
            if !oxyfuel_lower::packs_images(&graph, desc) {
                return Ok("stays as it is".to_owned());
            }
            let points =
                |graph: &Graph, node: &Node| oxyfuel_lower::image_points(graph, node, desc);
            pack_at_calls(&graph, &points)
                .and_then(images)
                .map(|g| g.to_string())
                .map_err(|e| e.to_string())
        }
        "freeze" => {
            let target = Target::by_name(case.require("target")?).map_err(|e| e.to_string())?;
            let desc = &target.desc;
            let products =
                |graph: &Graph, node: &Node| oxyfuel_lower::panel_columns(graph, node, desc);
            let convolutions =
                |graph: &Graph, node: &Node| oxyfuel_lower::image_panels(graph, node, desc);
            let split = freeze(&graph(case)?, &products, &convolutions);
            let split = split.map_err(|e| e.to_string())?;
            Ok(match split {
                Some(split) => format!(
                    "{}of inputs {:?}\n\n{}of inputs {:?}, then what is kept",
                    split.prepare, split.prepare_inputs, split.main, split.main_inputs
                ),
                None => "nothing is kept".to_owned(),
            })
        }
        "schedule" => stage(case, Stage::Schedule),
        "launches" => {
            let target = Target::by_name(case.require("target")?).map_err(|e| e.to_string())?;
            let compiled = compile(&graph(case)?, &target, &Options::default(), false)
                .map_err(|e| e.to_string())?;
            Ok(launches(&compiled.plan))
        }
        "logical" => stage(case, Stage::Logical),
        "mapped" => stage(case, Stage::Mapped),
        "code" => stage(case, Stage::Code),
        "memory" => {
            let target = Target::by_name(case.require("target")?).map_err(|e| e.to_string())?;
            let compiled = compile(&graph(case)?, &target, &Options::default(), false)
                .map_err(|e| e.to_string())?;
            Ok(memory(&compiled.plan))
        }
        other => Err(format!("unknown command `{other}`")),
    }
}

#[test]
fn rules() {
    run_folder("rules", command);
}

#[test]
fn schedule() {
    run_folder("schedule", command);
}

#[test]
fn memory_plans() {
    run_folder("memory", command);
}

#[test]
fn lower() {
    run_folder("lower", command);
}

#[test]
fn x86() {
    run_folder("x86", command);
}
