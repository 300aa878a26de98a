//! `oxyfuel profile`: where the time of a graph's calls goes.

use std::path::PathBuf;

use clap::Args;
use oxyfuel_base::Result;
use oxyfuel_runtime::profile::Profile;
use oxyfuel_runtime::tensor::Tensor;
use serde_json::{Value, json};

use crate::bench;
use crate::run::{Ready, What};

#[derive(Args, Debug)]
#[command(
    after_help = "The first call is not counted: it makes memory and wakes the device. Times are those of all counted calls together.

Examples:
  oxyfuel profile my.graph --input x.npy
  oxyfuel profile --workload layer-norm --calls 100 --trace trace.json"
)]
pub struct ProfileArgs {
    #[command(flatten)]
    what: What,
    /// How many calls are looked at
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Also write a trace for Chrome or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print data instead of text
    #[arg(long)]
    json: bool,
}

pub fn profile(args: &ProfileArgs) -> Result<()> {
    let Ready { executable, inputs } = args.what.ready()?;
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    executable.run(&inputs)?;
    let calls = || (0..args.calls).try_for_each(|_| executable.run(&inputs).map(drop));
    let (ran, profile) = oxyfuel::profile(calls)?;
    ran?;
    if let Some(path) = &args.trace {
        let written = std::fs::write(path, profile.chrome_trace());
        written.map_err(|error| crate::compare::file_error(path, &error))?;
    }
    match args.json {
        true => println!("{}", bench::json(&data(&profile, args.calls))?),
        false => print!("{profile}"),
    }
    Ok(())
}

/// The table, in seconds.
fn data(profile: &Profile, calls: u32) -> Value {
    let rows: Vec<Value> = profile
        .rows()
        .into_iter()
        .map(|row| {
            json!({
                "name": row.name, "category": row.category.name(), "ops": row.ops, "calls": row.calls,
                "self_device": row.self_device.as_secs_f64(), "total_device": row.total_device.as_secs_f64(),
                "self_host": row.self_host.as_secs_f64(), "total_host": row.total_host.as_secs_f64(),
            })
        })
        .collect();
    let launches: serde_json::Map<String, Value> = profile
        .launches()
        .into_iter()
        .map(|(category, count)| (category.name().to_owned(), json!(count)))
        .collect();
    json!({
        "calls": calls, "wall": profile.wall().as_secs_f64(), "device": profile.device().as_secs_f64(),
        "overhead": profile.overhead().as_secs_f64(), "compile": profile.compile().as_secs_f64(), "launches": launches, "rows": rows,
    })
}
