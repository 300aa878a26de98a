//! `bench`: Oxyfuel against PyTorch's engines, call by call (`--peers`), and the torch door (`--door`).
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

mod engine;
mod record;
mod stats;

use crate::{Outcome, process, venv, workspace};
use engine::Engine;
use serde_json::{Value, json};
use stats::Ratio;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub const HELP: &str = "\
usage: cargo xtask bench --peers [--filter TEXT] [--quick] [--rounds N] [--threads N] [--record]
       cargo xtask bench --door [--parts LIST] [--model NAME] [--rounds N] [--processes N] [--inductor] [--record FILE]

--peers: builds the release binary, makes the pinned environment `.venv-peers` (OXYFUEL_PEERS_PYTHON names an interpreter with
torch and numpy to use instead) and runs every CPU workload of bench/definitions on Oxyfuel, torch eager and torch
Inductor, alternating call by call. Results are compared before anything is timed. Ratios above 1 are ours.

  --filter TEXT  only workloads whose name contains this
  --proofs       only workloads that have a bar
  --quick        5 rounds instead of 40: to see that it works, not who is faster
  --rounds N     another number of rounds, at least 30 for a record
  --threads N    threads of every engine (default: all cores)
  --record       write bench/record/ and the figures of README.md

--door: builds the Python package with the release profile into `.venv-test` (OXYFUEL_DOOR_PYTHON names an interpreter
that has it, torch, torchvision and transformers, to use instead) and measures `torch.compile(backend=\"oxyfuel\")`.

  --parts LIST   of models (against eager), overhead (of a call), first (calls in fresh processes) and warm (the same
                 with a warm cache); default: models,overhead,first,warm
  --model NAME   only this model; may be said several times
  --rounds N     paired turns of models and calls (default: 30)
  --processes N  fresh processes of each engine for first and warm (default: 5)
  --inductor     beside eager and backends that do nothing, Inductor; it needs a C++ compiler
  --record FILE  write the figures there; `default` names the file of this processor in bench/record/
";

pub use record::readme;
pub const README_HELP: &str = record::README_HELP;

/// Longer than the threads of the engines spin after their last work.
const PAUSE: Duration = Duration::from_millis(40);

/// Paired ratios that a verdict takes.
const ENOUGH_ROUNDS: usize = 30;

struct Wishes {
    filter: String,
    proofs: bool,
    quick: bool,
    rounds: usize,
    threads: usize,
    record: bool,
}

pub fn run(args: &[String]) -> Outcome {
    if args.first().is_some_and(|word| word == "--door") {
        return door(&args[1..]);
    }
    let wishes = parse(args)?;
    let workloads = workloads(&wishes)?;
    let python = match std::env::var_os("OXYFUEL_PEERS_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => venv::ensure_peers()?,
    };
    let root = workspace::root();
    let mut build = process::cargo();
    build
        .current_dir(&root)
        .args(["build", "--release", "-p", "oxyfuel-cli"]);
    process::run(&mut build, "building the release binary")?;
    let binary = root.join("target/release/oxyfuel");

    let threads = wishes.threads.to_string();
    let mut serve = Command::new(&binary);
    serve.args(["serve", "--threads", &threads]);
    let mut ours = Engine::start("oxyfuel", serve)?;
    let mut torch = Command::new(&python);
    torch
        .arg(root.join("bench/engines/torch_engine.py"))
        .arg(&threads);
    let mut theirs = Engine::start("torch", torch)?;
    let about = theirs.ask("about")?;

    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for workload in &workloads {
        eprintln!("{} …", workload.title);
        match measure(workload, &wishes, &mut ours, &mut theirs) {
            Ok(row) => rows.push(row),
            Err(sentence) => failures.push(format!("{}: {sentence}", workload.name)),
        }
    }
    ours.quit();
    theirs.quit();
    let report = json!({
        "cpu": record::cpu_model(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "threads": wishes.threads,
        "rounds": wishes.rounds,
        "versions": {"oxyfuel": env!("CARGO_PKG_VERSION"), "torch": about["torch"]},
        "rows": rows,
    });
    print!("{}", record::table(&report));
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    if wishes.record && failures.is_empty() {
        let limits = limits(&binary, &wishes)?;
        record::write(&report, &limits)?;
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{} of {} workloads failed",
            failures.len(),
            workloads.len()
        ))
    }
}

/// The torch door; the script reads the options.
fn door(args: &[String]) -> Outcome {
    let python = match std::env::var_os("OXYFUEL_DOOR_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => venv::ensure_package("release")?.python,
    };
    let mut command = Command::new(python);
    command
        .arg(workspace::root().join("bench/engines/torch_door.py"))
        .args(args);
    process::run(&mut command, "bench/engines/torch_door.py")
}

fn parse(args: &[String]) -> Result<Wishes, String> {
    let mut wishes = Wishes {
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
            "say `--peers` or, as the first word, `--door`; Oxyfuel alone is measured by `cargo run --release -- bench`".to_owned(),
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

struct Workload {
    name: String,
    title: String,
    /// The ratio to the better peer that it has to reach.
    bar: Option<f64>,
}

/// The CPU workloads of the definitions, in order.
fn workloads(wishes: &Wishes) -> Result<Vec<Workload>, String> {
    let folder = workspace::root().join("bench/definitions");
    let cannot = |e: std::io::Error| format!("cannot read bench/definitions: {e}");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(cannot)?
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(cannot)?;
        let value: Value =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let instances = value["definitions"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|d| d["instances"].as_array().into_iter().flatten());
        for instance in instances.filter(|i| i["device"] == "cpu") {
            all.push(Workload {
                name: instance["name"].as_str().unwrap_or_default().to_owned(),
                title: instance["title"].as_str().unwrap_or_default().to_owned(),
                bar: instance["proof"].as_f64(),
            });
        }
    }
    all.retain(|w| w.name.contains(&wishes.filter) && (!wishes.proofs || w.bar.is_some()));
    if all.is_empty() {
        return Err(format!("no workload is called like `{}`", wishes.filter));
    }
    Ok(all)
}

/// One contestant of a workload: who to ask, and with which words.
struct Contestant {
    name: &'static str,
    ours: bool,
    /// `run` or `into`, and the mode.
    words: &'static str,
}

const CONTESTANTS: &[Contestant] = &[
    Contestant {
        name: "oxyfuel",
        ours: true,
        words: "run",
    },
    Contestant {
        name: "eager",
        ours: false,
        words: "run eager",
    },
    Contestant {
        name: "inductor",
        ours: false,
        words: "run inductor",
    },
    Contestant {
        name: "oxyfuel_into",
        ours: true,
        words: "into",
    },
    Contestant {
        name: "eager_into",
        ours: false,
        words: "into eager",
    },
    Contestant {
        name: "inductor_into",
        ours: false,
        words: "into inductor",
    },
];

fn measure(
    w: &Workload,
    wishes: &Wishes,
    ours: &mut Engine,
    theirs: &mut Engine,
) -> Result<Value, String> {
    let us = ours.ask(&format!("prepare {}", w.name))?;
    let them = theirs.ask(&format!("prepare {}", w.name))?;
    for number in 0..them["outputs"].as_u64().unwrap_or(1) {
        compare(number, ours, theirs)?;
    }

    let offered = |c: &&Contestant| {
        c.ours || !c.words.starts_with("into") || them["into"][&c.words[5..]] == true
    };
    let contestants: Vec<&Contestant> = CONTESTANTS.iter().filter(offered).collect();
    let mut turns = Vec::new();
    for c in &contestants {
        let engine = if c.ours { &mut *ours } else { &mut *theirs };
        let first = stats::median(&engine.turn(c.words, 2, 3)?);
        turns.push(turn_size(first));
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    for round in 0..wishes.rounds {
        for k in 0..contestants.len() {
            // Who goes first moves on, so that nobody always follows the same neighbour's cache and heat.
            let at = (k + round) % contestants.len();
            let c = contestants[at];
            std::thread::sleep(PAUSE);
            let engine = if c.ours { &mut *ours } else { &mut *theirs };
            let (warm, timed) = turns[at];
            times[at].push(stats::median(&engine.turn(c.words, warm, timed)?));
        }
    }
    let of = |name: &str| {
        contestants
            .iter()
            .position(|c| c.name == name)
            .map(|at| times[at].as_slice())
    };
    let mut row = json!({
        "name": w.name, "title": w.title, "bar": w.bar,
        "compile_ms": us["compile_ms"], "kernels": us["kernels"], "inductor_first_call_s": them["inductor_s"],
        "target": us["target"],
    });
    for c in &contestants {
        row["us"][c.name] = json!(of(c.name).map(|t| stats::median(t) / 1e3));
    }
    for (suffix, key) in [("", "ratio"), ("_into", "ratio_into")] {
        let Some(mine) = of(&format!("oxyfuel{suffix}")) else {
            continue;
        };
        let eager = of(&format!("eager{suffix}"));
        let inductor = of(&format!("inductor{suffix}"));
        let mut ratios = Vec::new();
        for (name, peer) in [("eager", eager), ("inductor", inductor)] {
            let ratio = peer.map(|p| Ratio::paired(p, mine));
            row[key][name] = ratio.map_or(Value::Null, Ratio::to_json);
            ratios.extend(ratio);
        }
        if let Some(ratio) = Ratio::to_the_better(&ratios) {
            row[key]["best"] = ratio.to_json();
            // A handful of rounds decides nothing.
            if let (Some(bar), "ratio") = (w.bar, key)
                && wishes.rounds >= ENOUGH_ROUNDS
            {
                row["met"] = json!(ratio.meets(bar));
            }
        }
    }
    Ok(row)
}

/// Both engines must have computed the same thing.
fn compare(number: u64, ours: &mut Engine, theirs: &mut Engine) -> Outcome {
    let file = std::env::temp_dir().join(format!("oxyfuel-bench-{}.npy", std::process::id()));
    let path = file.display().to_string();
    let answer = ours
        .ask(&format!("output {number} {path}"))
        .and_then(|_| theirs.ask(&format!("compare {number} {path}")));
    // The file is only a letter between two processes; leaving it costs disk space and nothing else.
    let _ = std::fs::remove_file(&file);
    let answer = answer?;
    if answer["ok"] == true {
        Ok(())
    } else {
        Err(format!(
            "the engines disagree on output {number}: {}",
            answer["error"]
        ))
    }
}

/// Warm-ups and timed calls of one turn, for a call of so many nanoseconds: enough to wake up, at most a few milliseconds where calls are short.
fn turn_size(ns: f64) -> (usize, usize) {
    let fitting = (5e6 / ns.max(1.0)) as usize;
    (fitting.clamp(1, 10), fitting.clamp(1, 25))
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
        ] {
            let error = parse(&strings(args)).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_definitions_hold_the_proofs() {
        let wishes = parse(&strings(&["--peers", "--proofs"])).unwrap();
        let names: Vec<String> = workloads(&wishes)
            .unwrap()
            .into_iter()
            .map(|w| w.name)
            .collect();
        for name in [
            "softmax",
            "layer-norm",
            "gelu-bias",
            "add-relu-mul-10m",
            "matmul-bf16-2048",
        ] {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
    }

    #[test]
    fn short_calls_are_repeated_in_a_turn() {
        assert_eq!(turn_size(1e3), (10, 25));
        assert_eq!(turn_size(1e6), (5, 5));
        assert_eq!(turn_size(1e9), (1, 1));
    }
}
