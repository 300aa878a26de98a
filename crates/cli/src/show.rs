//! `explain` and `dump`: what a graph becomes.

use std::io::Read;
use std::time::Duration;

use clap::Args;
use oxyfuel::io::SavedFunction;
use oxyfuel_base::{Result, Symbol, err};
use oxyfuel_engine::cost::operators;
use oxyfuel_engine::explain::best_times;
use oxyfuel_engine::{
    Basis, Compiled, Executable, Figures, Options, Record, Stage, Target, compile,
};
use oxyfuel_graph::{Graph, parse};

use crate::bench::{json, to_device};
use crate::compare::file_error;
use crate::define::workload;
use crate::{Common, Source, env, run};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  oxyfuel explain --workload softmax
  oxyfuel explain --workload softmax --measure
  oxyfuel explain my.graph --target sm_90a --json")]
pub struct ExplainArgs {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    common: Common,
    /// Run it on random inputs too, and say what each kernel took and its share of the roofline
    #[arg(long)]
    measure: bool,
    /// Print data instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  oxyfuel dump --stage mapped --workload softmax
  oxyfuel dump --stage code --target sm_90a my.graph")]
pub struct DumpArgs {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    common: Common,
    /// graph, decomposed, simplified, settled, schedule, logical, mapped, code or plan
    #[arg(long, value_name = "STAGE", value_parser = stage)]
    stage: Stage,
    /// Print the stage's text in JSON
    #[arg(long)]
    json: bool,
}

fn stage(name: &str) -> std::result::Result<Stage, String> {
    Stage::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Stage::ALL.iter().map(|s| s.name()).collect();
        format!("stages are {}", names.join(", "))
    })
}

pub fn explain(args: &ExplainArgs) -> Result<()> {
    let options = env::options(&args.common)?;
    let source = graph(&args.source)?;
    let (compiled, target) = compiled(&source, &options, false)?;
    let mut figures = Figures::measure(&target, &options)?;
    let operators = operators(&source, &|_| None)?;
    let guesses = source.guesses();
    let sizes = |symbol| guesses.get(&symbol).copied();
    let mut measured = None;
    if args.measure {
        measured = Some(measure(
            args, &source, &compiled, &target, &options, &sizes,
        )?);
        // Once more behind what they judge: what else runs here comes and goes.
        let again = Figures::measure(&target, &options)?;
        figures = figures.zip(again).map(|(a, b)| a.or_better(&b));
    }
    let basis = Basis {
        figures: figures.as_ref(),
        sizes: Some(&sizes),
        operators: Some(&operators),
        compile_time: None,
        measured: measured.as_deref(),
    };
    let explanation = oxyfuel_engine::explain(&compiled.plan, &compiled.record, &basis);
    if args.json {
        println!("{}", json(&explanation)?);
    } else {
        print!("{explanation}");
    }
    Ok(())
}

/// What each step takes on random inputs; symbols have the numbers that the explanation takes for likely.
fn measure(
    args: &ExplainArgs,
    source: &Graph,
    compiled: &Compiled,
    target: &Target,
    options: &Options,
    sizes: &dyn Fn(Symbol) -> Option<i64>,
) -> Result<Vec<Duration>> {
    let device = target.device(options)?;
    let inputs = run::random_inputs(&args.source, source, 1, sizes)?;
    let inputs = inputs.iter().map(|host| to_device(host, &device));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let plan = compiled.plan.clone();
    let executable = Executable::load(plan, Record::default(), device)?;
    best_times(&executable, &inputs.iter().collect::<Vec<_>>())
}

pub fn dump(args: &DumpArgs) -> Result<()> {
    let options = env::options(&args.common)?;
    let (compiled, target) = compiled(&graph(&args.source)?, &options, true)?;
    let text = compiled.record.text(args.stage).ok_or_else(|| {
        err!(
            Internal,
            "the compile left no text of stage {}",
            args.stage.name()
        )
    })?;
    if args.json {
        let value = serde_json::json!({"stage": args.stage, "target": target.name(), "text": text});
        println!("{}", json(&value)?);
    } else {
        println!("{}", text.trim_end());
    }
    Ok(())
}

fn compiled(graph: &Graph, options: &Options, texts: bool) -> Result<(Compiled, Target)> {
    let target = Target::host(options)?;
    let compiled = compile(graph, &target, options, texts)?;
    log_compile(&compiled, options)?;
    Ok((compiled, target))
}

/// The times of a compile on standard error, where the environment asks for it.
pub fn log_compile(compiled: &Compiled, options: &Options) -> Result<()> {
    if env::log()?.compile {
        for step in &compiled.record.steps {
            eprintln!("compile: {:<10} {:.1?}", step.name, step.time);
        }
        let threads = options.threads;
        eprintln!(
            "compile: {:.1?} together, for {threads} threads",
            compiled.record.total()
        );
    }
    Ok(())
}

/// The graph that a command is about.
pub fn graph(source: &Source) -> Result<Graph> {
    function(source).map(|(graph, _)| graph)
}

/// The graph, and the tensors that a file has for its last inputs.
pub fn function(source: &Source) -> Result<(Graph, Vec<oxyfuel::Tensor>)> {
    if let Some(name) = &source.workload {
        return Ok((workload(name)?.graph, Vec::new()));
    }
    let Some(path) = &source.file else {
        return Err(err!(
            InvalidArgument,
            "neither a file nor a workload was named"
        ));
    };
    if path.extension().is_some_and(|extension| extension == "oxy") {
        let saved = SavedFunction::read(path)?;
        return Ok((saved.graph().clone(), saved.tensors().to_vec()));
    }
    let mut text = String::new();
    if path.as_os_str() == "-" {
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|error| file_error(path, &error))?;
    } else {
        text = std::fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
    }
    let graph = parse(&path.display().to_string(), &text)?;
    oxyfuel_graph::verify(&graph).map_err(|error| error.context(path.display()))?;
    Ok((graph, Vec::new()))
}
