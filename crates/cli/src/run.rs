//! `oxyfuel run`: a graph from a file on given inputs.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use oxyfuel::io::{read_npy_as, write_npy};
use oxyfuel_base::{Result, Symbol, err};
use oxyfuel_engine::{Compiler, Executable, Target};
use oxyfuel_graph::{Graph, HostTensor};
use oxyfuel_runtime::tensor::Tensor;

use crate::bench::{json, to_device};
use crate::define::{Input, Workload, workload};
use crate::fill::Fill;
use crate::{Common, Source, env, show};

#[derive(Args, Debug)]
#[command(
    after_help = "Inputs are taken in the order of the graph. What no --input names is random, from --seed.

Examples:
  oxyfuel run my.graph --input x.npy --input w.npy --save out
  oxyfuel run model.oxy --input x.npy
  oxyfuel run --workload softmax --seed 7
  oxyfuel run my.graph --profile trace.json"
)]
pub struct RunArgs {
    #[command(flatten)]
    what: What,
    /// Save each output as DIR/NUMBER.npy
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Run it a second time, write where its time went as a trace for Chrome or Perfetto, and print a table
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Print data instead of text
    #[arg(long)]
    json: bool,
}

/// A graph and its inputs.
#[derive(Args, Debug)]
pub struct What {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    common: Common,
    /// A .npy file for the next input
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Seed of inputs without a file
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// A graph that is compiled, with its inputs on the device.
pub struct Ready {
    pub executable: Arc<Executable>,
    pub inputs: Vec<Tensor>,
}

impl What {
    pub fn ready(&self) -> Result<Ready> {
        let options = env::options(&self.common)?;
        let (graph, captured) = show::function(&self.source)?;
        let host = inputs(self, &graph, &captured)?;
        let target = Target::host(&options)?;
        let device = target.device(&options)?;
        let compiler = Compiler::on(target, options, device);
        let executable = compiler.compile(&graph)?;
        if env::log()?.cache {
            eprintln!("cache: {:?}", compiler.stats());
        }
        let inputs = host
            .iter()
            .map(|h| to_device(h, compiler.device()))
            .collect::<Result<_>>()?;
        Ok(Ready { executable, inputs })
    }
}

/// Elements shown of each output.
const SHOWN: usize = 8;

pub fn run(args: &RunArgs) -> Result<()> {
    let Ready { executable, inputs } = args.what.ready()?;
    let borrowed: Vec<&Tensor> = inputs.iter().collect();
    let outputs = executable.run(&borrowed)?;
    let outputs = outputs
        .iter()
        .map(from_device)
        .collect::<Result<Vec<_>>>()?;
    if let Some(path) = &args.profile {
        let (again, profile) = oxyfuel::profile(|| executable.run(&borrowed))?;
        again?;
        let written = std::fs::write(path, profile.chrome_trace());
        written.map_err(|error| crate::compare::file_error(path, &error))?;
        eprint!("{profile}");
    }
    if let Some(dir) = &args.save {
        std::fs::create_dir_all(dir).map_err(|error| crate::compare::file_error(dir, &error))?;
        for (number, output) in outputs.iter().enumerate() {
            let output = oxyfuel::Tensor::from_bytes(&output.data, output.dtype, &output.shape);
            write_npy(dir.join(format!("{number}.npy")), &output)?;
        }
    }
    print(args.json, &outputs)
}

fn print(as_json: bool, outputs: &[HostTensor]) -> Result<()> {
    if as_json {
        let data: Vec<_> = outputs
            .iter()
            .map(|o| serde_json::json!({"dtype": o.dtype.name(), "shape": o.shape, "first": first(o)}))
            .collect();
        println!("{}", json(&data)?);
        return Ok(());
    }
    for (number, output) in outputs.iter().enumerate() {
        let more = if output.numel() > SHOWN { ", …" } else { "" };
        println!(
            "output {number}: {}{:?} = [{}{more}]",
            output.dtype,
            output.shape,
            first(output).join(", ")
        );
    }
    Ok(())
}

fn first(tensor: &HostTensor) -> Vec<String> {
    (0..tensor.numel().min(SHOWN))
        .map(|i| oxyfuel_graph::text::number_text(tensor.dtype, tensor.get(i)))
        .collect()
}

fn from_device(tensor: &Tensor) -> Result<HostTensor> {
    HostTensor::new(tensor.dtype(), tensor.shape(), tensor.to_bytes()?)
}

/// One for each input of the graph; the last ones are what it captured.
fn inputs(args: &What, graph: &Graph, captured: &[oxyfuel::Tensor]) -> Result<Vec<HostTensor>> {
    let arguments = graph.inputs.len() - captured.len();
    if args.input.len() > arguments {
        return Err(err!(
            ArityMismatch,
            "{} files for {arguments} inputs",
            args.input.len()
        ));
    }
    let of = |tensor: &oxyfuel::Tensor| {
        HostTensor::new(tensor.dtype(), tensor.shape(), tensor.to_bytes()?)
    };
    let drawn = Draw::new(&args.source, args.seed)?;
    let mut all = Vec::new();
    for (number, &value) in graph.inputs[..arguments].iter().enumerate() {
        all.push(match args.input.get(number) {
            Some(path) => of(&read_npy_as(path, graph.ty(value).dtype)?)?,
            None => drawn.input(graph, number, &|_| None)?,
        });
    }
    for tensor in captured {
        all.push(of(tensor)?);
    }
    let shapes: Vec<&[i64]> = all.iter().map(|t| t.shape.as_slice()).collect();
    oxyfuel_graph::bind(graph, &shapes)?;
    Ok(all)
}

/// Inputs of a graph from a seed; symbolic sizes are asked for.
pub fn random_inputs(
    source: &Source,
    graph: &Graph,
    seed: u64,
    sizes: &dyn Fn(Symbol) -> Option<i64>,
) -> Result<Vec<HostTensor>> {
    let drawn = Draw::new(source, seed)?;
    (0..graph.inputs.len())
        .map(|number| drawn.input(graph, number, sizes))
        .collect()
}

/// Random inputs: as its definition says of a workload, else as is usual for the type.
struct Draw {
    named: Option<Workload>,
    seed: u64,
}

impl Draw {
    fn new(source: &Source, seed: u64) -> Result<Self> {
        let named = source.workload.as_deref().map(workload).transpose()?;
        Ok(Self { named, seed })
    }

    fn input(
        &self,
        graph: &Graph,
        number: usize,
        sizes: &dyn Fn(Symbol) -> Option<i64>,
    ) -> Result<HostTensor> {
        let value = graph.inputs[number];
        let ty = graph.ty(value);
        let name = oxyfuel_graph::text::value_name(graph, value);
        let size = |e: &oxyfuel_base::Expr| {
            e.eval(sizes).map_err(|_| {
                err!(UnboundSymbol, "input {name} has a symbolic size")
                    .help("give it a file with --input")
            })
        };
        let shape = ty.shape.iter().map(size).collect::<Result<_>>()?;
        let usual = Fill::usual(ty.dtype);
        let fill = self.named.as_ref().map_or(usual, |w| w.inputs[number].fill);
        let input = Input {
            name,
            dtype: ty.dtype,
            shape,
            fill,
            seed: self.seed + number as u64,
        };
        input.make()
    }
}
