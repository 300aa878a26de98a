//! `bench --peers`: Oxyfuel against PyTorch's engines, call by call.
//!
//! ```text
//!   driver ──"run 3 5"──▶ oxyfuel serve          asleep ─ asleep
//!          ──────────────  pause  ───────────────────────────────
//!          ──"run eager 3 5"──▶ torch_engine.py  (eager, Inductor)
//! ```
//!
//! Each engine is a process that sleeps unless it is asked; one round asks each of them once, in an order that moves on with every round, with a pause between
//! them: two pools of spinning threads spoil each other. A round gives one paired ratio. Reported is the median of the ratios with bounds that hold for the true
//! median in 95 of 100 runs (order statistics: nothing is assumed about the distribution).

use super::bars::{self, ENOUGH_ROUNDS, judged};
use super::contest::{Engines, contestants, words};
use super::engine::Engine;
use super::workload::{Workload, workloads};
use super::{door_python, record, release_binary};
use crate::{Outcome, process, revision, venv, workspace};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

struct Wishes {
    torch_door: bool,
    filter: String,
    proofs: bool,
    quick: bool,
    rounds: usize,
    threads: usize,
    record: bool,
}

pub fn run(args: &[String]) -> Outcome {
    let wishes = parse(args)?;
    let workloads = workloads(&wishes.filter, wishes.proofs)?;
    let python = match std::env::var_os("OXYFUEL_PEERS_PYTHON") {
        _ if wishes.torch_door => door_python()?,
        Some(python) => PathBuf::from(python),
        None => venv::ensure_peers()?,
    };
    let root = workspace::root();
    let binary = release_binary()?;

    let threads = wishes.threads.to_string();
    let mut serve = Command::new(&binary);
    serve.args(["serve", "--threads", &threads]);
    let ours = Engine::start("oxyfuel", serve)?;
    let mut torch = Command::new(&python);
    torch
        .arg(root.join("bench/engines/torch_engine.py"))
        .arg(&threads)
        .args(wishes.torch_door.then_some("door"));
    let torch = Engine::start("torch", torch)?;
    let mut engines = Engines {
        ours,
        alone: None,
        torch,
    };
    let about = engines.torch.ask("about")?;

    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for workload in &workloads {
        eprintln!("{} …", workload.title);
        match measure(workload, &wishes, &mut engines) {
            Ok(row) => rows.push(row),
            Err(sentence) => failures.push(format!("{}: {sentence}", workload.name)),
        }
    }
    engines.quit();
    // Means are of all rows or they say nothing about the bar.
    let decides = wishes.rounds >= ENOUGH_ROUNDS && wishes.filter.is_empty();
    let mut report = json!({
        "cpu": record::cpu_model(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "threads": wishes.threads,
        "rounds": wishes.rounds,
        "versions": {"oxyfuel": env!("CARGO_PKG_VERSION"), "torch": about["torch"]},
        "rows": rows,
        "means": bars::means(&rows, decides),
    });
    revision::stamp(&mut report);
    print!("{}", record::table(&report));
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    if !failures.is_empty() {
        return Err(format!(
            "{} of {} workloads failed",
            failures.len(),
            workloads.len()
        ));
    }
    if wishes.record {
        let limits = limits(&binary, &wishes)?;
        record::write(&report, &limits)?;
    }
    super::no_bar_missed(&bars::missed(&report))
}

fn parse(args: &[String]) -> Result<Wishes, String> {
    let mut wishes = Wishes {
        torch_door: false,
        filter: String::new(),
        proofs: false,
        quick: false,
        rounds: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        record: false,
    };
    let mut peers = false;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .cloned()
                .ok_or_else(|| format!("{word} wants a value"))
        };
        let number = |text: String| match text.parse::<usize>() {
            Ok(n) if n > 0 => Ok(n),
            Ok(_) | Err(_) => Err(format!("{word} wants a number above 0, not `{text}`")),
        };
        match word.as_str() {
            "--peers" => peers = true,
            "--torch-door" => wishes.torch_door = true,
            "--proofs" => wishes.proofs = true,
            "--quick" => wishes.quick = true,
            "--record" => wishes.record = true,
            "--filter" => wishes.filter = value()?,
            "--rounds" => wishes.rounds = number(value()?)?,
            "--threads" => wishes.threads = number(value()?)?,
            _ => {
                return Err(format!(
                    "unknown option `{word}` (`cargo xtask bench --help` lists them)"
                ));
            }
        }
    }
    if !peers {
        return Err(
            "say `--peers` or, as the first word, `--contractions`, `--door`, `--compile` or `--overhead`; the speed of Oxyfuel alone is measured by `cargo run --release -- bench`".to_owned(),
        );
    }
    if wishes.rounds == 0 {
        wishes.rounds = if wishes.quick { 5 } else { 40 };
    }
    if wishes.record && wishes.rounds < ENOUGH_ROUNDS {
        return Err(format!("a record takes at least {ENOUGH_ROUNDS} rounds"));
    }
    Ok(wishes)
}

fn measure(w: &Workload, wishes: &Wishes, engines: &mut Engines) -> Result<Value, String> {
    let us = engines.ours.ask(&format!("prepare {}", w.name))?;
    let them = engines.torch.ask(&format!("prepare {}", w.name))?;
    engines.agree(them["outputs"].as_u64().unwrap_or(1))?;
    if wishes.torch_door {
        let answer = engines.torch.ask("door")?;
        if answer["ok"] != true {
            return Err(format!("the torch door is wrong: {}", answer["error"]));
        }
    }
    let bytes = us["bytes"].as_u64().unwrap_or(0);
    let mut contestants = contestants(w, bytes, &words(&them));
    // What the loop of multiply-adds takes for as many operations as the workload has.
    let loops = us["loops"].as_f64();
    contestants.retain(|c| c.name != "arithmetic" || loops.is_some());
    let times = engines.play(&contestants, wishes.rounds, loops)?;
    let mut row = judged(w, wishes.rounds, bytes, &times);
    row["compile_ms"] = us["compile_ms"].clone();
    row["kernels"] = us["kernels"].clone();
    row["inductor_first_call_s"] = them["inductor_s"].clone();
    row["target"] = us["target"].clone();
    Ok(row)
}

/// Oxyfuel's own report, for the share of the machine's limit.
fn limits(binary: &std::path::Path, wishes: &Wishes) -> Result<Value, String> {
    let mut command = Command::new(binary);
    command.args(["bench", "--json", "--threads", &wishes.threads.to_string()]);
    let text = process::capture(&mut command, "`oxyfuel bench --json`")?;
    serde_json::from_str(&text).map_err(|e| format!("`oxyfuel bench --json` printed no JSON: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn options_are_read_and_mistakes_are_sentences() {
        let wishes = parse(&strings(&["--peers", "--filter", "soft", "--quick"])).unwrap();
        assert_eq!((wishes.filter.as_str(), wishes.rounds), ("soft", 5));
        for (args, part) in [
            (&["--filter", "x"][..], "--peers"),
            (&["--peers", "--door"], "unknown option"),
            (&["--peers", "--rounds", "0"], "above 0"),
            (&["--peers", "--filter"], "wants a value"),
            (&["--peers", "--quick", "--record"], "30 rounds"),
            (&["--peers", "--what"], "unknown option"),
            (&["--peers", "--overhead"], "unknown option"),
        ] {
            let error = parse(&strings(args)).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
