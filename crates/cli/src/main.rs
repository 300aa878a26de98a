//! The `oxyfuel` command: look, measure, deploy.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 an error (its code is printed) or a missed bar (it is named), 2 wrong usage.
//! This is an edge: the environment is read in [`env`] and becomes [`oxyfuel_engine::Options`]; nothing further in reads it.
#![forbid(unsafe_code)]

mod bars;
mod bench;
mod cache;
mod check;
mod compare;
mod define;
mod doctor;
mod eager;
mod env;
mod fill;
mod limit;
mod measure;
mod mixed;
mod modes;
mod overhead;
mod profile;
mod run;
mod serve;
mod show;
mod stacked;
mod steps;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use oxyfuel_base::Result;

#[derive(Parser)]
#[command(name = "oxyfuel", version, about = "Compile tensor programs, look at them, run and measure them.", after_help = ENVIRONMENT)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const ENVIRONMENT: &str = "Environment:
  OXYFUEL_CACHE_DIR    keep compiled plans in this directory (nowhere when unset)
  OXYFUEL_CACHE_LIMIT  the most bytes that they take (1 GiB when unset)
  OXYFUEL_CUDAGRAPH_MEMORY_LIMIT the most bytes that all recordings of a GPU may take
  OXYFUEL_LAUNCH_BLOCKING=1 wait after each kernel, so that a fault names its kernel
  OXYFUEL_MEMORY_LIMIT the most bytes that a call may take for intermediates and results
  OXYFUEL_TRACE        write every stage of every compile into this directory
  OXYFUEL_VERIFY=1     check every kernel against the tile interpreter as it runs
  OXYFUEL_NUM_THREADS  threads of the CPU device (else OMP_NUM_THREADS, else all cores)
  OXYFUEL_LOG          compile, cache, or both with a comma: say on standard error what happens
  NO_COLOR             plain text

Examples:
  oxyfuel bench --filter softmax
  oxyfuel explain --workload layer-norm
  oxyfuel dump --stage code --target avx2 my.graph";

/// What every command that compiles takes.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// Target by name (`oxyfuel targets` lists them); the best of this machine when left out
    #[arg(long, value_name = "T")]
    pub target: Option<String>,
    /// Threads of the CPU device
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Any option by name, such as numerics=fast
    #[arg(long = "option", short = 'o', value_name = "NAME=VALUE")]
    pub options: Vec<String>,
}

/// A graph from a file or from the definitions.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Source {
    /// A graph as text (`-` reads standard input), or a saved function (.oxy)
    pub file: Option<std::path::PathBuf>,
    /// A workload of the definitions
    #[arg(long, value_name = "NAME")]
    pub workload: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the workloads: eager against compiled, and against what this machine can do at best
    Bench(bench::BenchArgs),
    /// Say which kernels a graph becomes, and why
    Explain(show::ExplainArgs),
    /// Print a stage of a compile as text
    Dump(show::DumpArgs),
    /// Run a graph on inputs from .npy files or a seed
    Run(run::RunArgs),
    /// Say where the time of a graph's calls goes, kernel by kernel
    Profile(profile::ProfileArgs),
    /// Say what this machine offers and what is missing
    Doctor(doctor::DoctorArgs),
    /// Look at the plan cache, or empty it
    Cache(cache::CacheArgs),
    /// List the targets
    Targets(doctor::TargetsArgs),
    /// Answer a driver that compares engines: one command a line on standard input
    #[command(hide = true)]
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    oxyfuel_runtime::pipe::end_with_the_reader();
    let cli = Cli::parse();
    match dispatch(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all bars are met of what judges itself.
fn dispatch(command: Command) -> Result<bool> {
    let done = match command {
        Command::Bench(args) => return bench::bench(&args),
        Command::Explain(args) => show::explain(&args),
        Command::Dump(args) => show::dump(&args),
        Command::Run(args) => run::run(&args),
        Command::Profile(args) => profile::profile(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Cache(args) => cache::cache(&args),
        Command::Targets(args) => doctor::targets(&args),
        Command::Serve(args) => serve::serve(&args),
    };
    done.map(|()| true)
}
