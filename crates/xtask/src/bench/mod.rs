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

mod door;
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
usage: cargo xtask bench --peers [--torch-door] [--filter TEXT] [--quick] [--rounds N] [--threads N] [--record]
       cargo xtask bench --door [--parts LIST] [--model NAME] [--rounds N] [--processes N] [--inductor] [--record FILE] [--mixed]

--peers: builds the release binary, makes the pinned environment `.venv-peers` (OXYFUEL_PEERS_PYTHON names an interpreter with
torch and numpy to use instead) and runs every CPU workload of bench/definitions on Oxyfuel, torch eager and torch
Inductor, alternating call by call. Results are compared before anything is timed. Ratios above 1 are ours. Rows that memory bounds
are also compared with a copy of as many bytes, ours or torch's, whichever is faster.

  --torch-door   also `torch.compile(backend=\"oxyfuel\")`, in the process of eager and Inductor: with the interpreter of --door
  --filter TEXT  only workloads whose name contains this
  --proofs       only workloads that have a bar
  --quick        5 rounds instead of 40: to see that it works, not who is faster
  --rounds N     another number of rounds, at least 30 for a record
  --threads N    threads of every engine (default: all cores)
  --record       write bench/record/ and the figures of README.md

--door: builds the Python package with the release profile into `.venv-test` (OXYFUEL_DOOR_PYTHON names an interpreter
that has it, torch, torchvision and transformers, to use instead) and measures `torch.compile(backend=\"oxyfuel\")`.

  --parts LIST   of models (against eager, a process each), overhead (of a call), first (calls in fresh processes) and
                 warm (the same with a warm cache); default: all of them, half an hour or more
  --model NAME   only this model; may be said several times
  --rounds N     paired turns of models and calls (default: 30)
  --processes N  fresh processes of each engine for first and warm (default: 5)
  --inductor     beside eager and backends that do nothing, Inductor; it needs a C++ compiler. Where a record is written,
                 of first and warm by default (--no-inductor)
  --record FILE  write the figures there, and into README.md; `default` names the file of this processor in
                 bench/record/. Parts of another commit that the file holds, and that are not measured now, are refused
  --mixed        keep them; the record says so

Fails when a bar is missed, after the figures are written.
";

pub use record::readme;
pub const README_HELP: &str = record::README_HELP;

/// Longer than the threads of the engines spin after their last work.
const PAUSE: Duration = Duration::from_millis(40);

/// Paired ratios that a verdict takes.
const ENOUGH_ROUNDS: usize = 30;

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
    if args.first().is_some_and(|word| word == "--door") {
        return door::run(&args[1..]);
    }
    let wishes = parse(args)?;
    let workloads = workloads(&wishes)?;
    let python = match std::env::var_os("OXYFUEL_PEERS_PYTHON") {
        _ if wishes.torch_door => door_python()?,
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
        .arg(&threads)
        .args(wishes.torch_door.then_some("door"));
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
        "means": means(&rows),
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

/// An interpreter that has the package.
fn door_python() -> Result<PathBuf, String> {
    match std::env::var_os("OXYFUEL_DOOR_PYTHON") {
        Some(python) => Ok(PathBuf::from(python)),
        None => Ok(venv::ensure_package("release")?.python),
    }
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
    /// Memory is what limits it.
    is_bytes: bool,
    /// No product of matrices is in it.
    is_plain: bool,
    /// Too short for what a call from Python costs.
    rust_door_only: bool,
}

/// Ops whose definitions are products.
const PRODUCTS: &[&str] = &["= mm ", "= bmm ", "= addmm ", "= matmul ", "= sdpa "];

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
        for definition in value["definitions"].as_array().into_iter().flatten() {
            let body = definition["body"].to_string();
            let instances = definition["instances"].as_array().into_iter().flatten();
            for instance in instances.filter(|i| i["device"] == "cpu") {
                all.push(Workload {
                    name: instance["name"].as_str().unwrap_or_default().to_owned(),
                    title: instance["title"].as_str().unwrap_or_default().to_owned(),
                    bar: instance["proof"].as_f64(),
                    is_bytes: definition["bound"] == "bytes",
                    is_plain: !PRODUCTS.iter().any(|op| body.contains(op)),
                    rust_door_only: instance["rust_door_only"] == true,
                });
            }
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
    /// The command, but for the numbers of calls.
    words: String,
}

/// Name, whether it is ours, words. `door` is the torch door.
const CONTESTANTS: &[(&str, bool, &str)] = &[
    ("oxyfuel", true, "run"),
    ("eager", false, "run eager"),
    ("inductor", false, "run inductor"),
    ("door", false, "run door"),
    ("copy", true, "copy"),
    ("oxyfuel_into", true, "into"),
    ("eager_into", false, "into eager"),
    ("inductor_into", false, "into inductor"),
    ("door_into", false, "into door"),
    ("torch_copy", false, "copy"),
];

/// Those of a workload: `bytes` is what it moves, `into` says for which modes torch has a call with given outputs.
fn contestants(w: &Workload, torch_door: bool, bytes: u64, into: &Value) -> Vec<Contestant> {
    let fits = |name: &str, ours: bool, words: &str| {
        let mode = words.split_once(' ').map_or("", |(_, mode)| mode);
        let has_into = ours || !words.starts_with("into") || into[mode] == true;
        let has_door = mode != "door" || (torch_door && !w.rust_door_only);
        has_into && has_door && (w.is_bytes || !name.ends_with("copy"))
    };
    let all = CONTESTANTS.iter();
    all.filter(|(name, ours, words)| fits(name, *ours, words))
        .map(|&(name, ours, words)| Contestant {
            name,
            ours,
            words: match name {
                "torch_copy" => format!("{words} {bytes}"),
                _ => words.to_owned(),
            },
        })
        .collect()
}

/// Times of a row by contestant, one a round.
struct Times {
    all: Vec<(&'static str, Vec<f64>)>,
}

impl Times {
    fn of(&self, name: &str) -> Option<&[f64]> {
        let found = self.all.iter().find(|(known, _)| *known == name);
        found.map(|(_, times)| times.as_slice())
    }

    /// The faster of the two copies.
    fn copy(&self) -> Option<&[f64]> {
        let copies = ["copy", "torch_copy"].into_iter();
        copies
            .filter_map(|name| self.of(name))
            .min_by(|a, b| stats::median(a).total_cmp(&stats::median(b)))
    }
}

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
    if wishes.torch_door {
        let answer = theirs.ask("door")?;
        if answer["ok"] != true {
            return Err(format!("the torch door is wrong: {}", answer["error"]));
        }
    }
    let bytes = us["bytes"].as_u64().unwrap_or(0);
    let contestants = contestants(w, wishes.torch_door, bytes, &them["into"]);
    let mut turns = Vec::new();
    for c in &contestants {
        let engine = if c.ours { &mut *ours } else { &mut *theirs };
        let first = stats::median(&engine.turn(&c.words, 2, 3)?);
        turns.push(turn_size(first));
    }
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    for round in 0..wishes.rounds {
        for k in 0..contestants.len() {
            // Who goes first moves on, so that nobody always follows the same neighbour's cache and heat.
            let at = (k + round) % contestants.len();
            let c = &contestants[at];
            std::thread::sleep(PAUSE);
            let engine = if c.ours { &mut *ours } else { &mut *theirs };
            let (warm, timed) = turns[at];
            times[at].push(stats::median(&engine.turn(&c.words, warm, timed)?));
        }
    }
    let names = contestants.iter().map(|c| c.name);
    let times = Times {
        all: names.zip(times).collect(),
    };
    let mut row = judged(w, wishes.rounds, bytes, &times);
    row["compile_ms"] = us["compile_ms"].clone();
    row["kernels"] = us["kernels"].clone();
    row["inductor_first_call_s"] = them["inductor_s"].clone();
    row["target"] = us["target"].clone();
    Ok(row)
}

/// What is ours, its ending for the peers, the name of its ratios, and where its verdict goes.
const RATIOS: &[(&str, &str, &str, Option<&str>)] = &[
    ("oxyfuel", "", "ratio", Some("met")),
    ("oxyfuel_into", "_into", "ratio_into", None),
    ("door", "", "ratio_door", Some("met_door")),
    ("door_into", "_into", "ratio_door_into", None),
];

/// A peer that reaches this share of a copy's speed leaves nothing to gain.
const SATURATED: f64 = 0.85;
/// The bar of 1 where it does.
const BAR_OF_SATURATED: f64 = 0.97;
/// The share of a copy's speed that a row which memory bounds has to reach.
const COPY_BAR: f64 = 0.8;
/// Below it calls and caches are measured, not memory.
const LEAST_BYTES: u64 = 1 << 20;

/// The row of a workload: medians, ratios, verdicts.
fn judged(w: &Workload, rounds: usize, bytes: u64, times: &Times) -> Value {
    // A handful of rounds decides nothing.
    let decides = rounds >= ENOUGH_ROUNDS;
    let mut row = json!({
        "name": w.name, "title": w.title, "bar": w.bar, "bytes": bytes, "plain": w.is_plain,
    });
    for (name, times) in &times.all {
        row["us"][*name] = json!(stats::median(times) / 1e3);
    }
    for &(mine, suffix, key, verdict) in RATIOS {
        let Some(mine) = times.of(mine) else {
            continue;
        };
        let mut ratios = Vec::new();
        let mut is_saturated = false;
        for name in ["eager", "inductor"] {
            let peer = times.of(&format!("{name}{suffix}"));
            let ratio = peer.map(|p| Ratio::paired(p, mine));
            row[key][name] = ratio.map_or(Value::Null, Ratio::to_json);
            ratios.extend(ratio);
            is_saturated |= peer
                .zip(times.copy())
                .is_some_and(|(peer, copy)| Ratio::paired(copy, peer).median >= SATURATED);
        }
        if let Some(ratio) = Ratio::to_the_better(&ratios) {
            row[key]["best"] = ratio.to_json();
            if let (Some(bar), Some(verdict), true) = (w.bar, verdict, decides) {
                let bar = if is_saturated {
                    bar.min(BAR_OF_SATURATED)
                } else {
                    bar
                };
                row[verdict] = json!(ratio.meets(bar));
            }
        }
    }
    if let Some(copy) = times.copy() {
        for name in ["oxyfuel", "oxyfuel_into", "door", "door_into"] {
            let share = times.of(name).map(|mine| Ratio::paired(copy, mine));
            row["of_copy"][name] = share.map_or(Value::Null, Ratio::to_json);
            if let (Some(share), "oxyfuel_into", true) = (share, name, decides)
                && bytes >= LEAST_BYTES
            {
                row["met_copy"] = json!(share.meets(COPY_BAR));
            }
        }
    }
    row
}

/// Name, key of the ratios, bar.
const MEANS: &[(&str, &str, f64)] = &[
    ("Rust door", "ratio", 1.7),
    ("torch door", "ratio_door", 1.7),
    ("Rust door, given outputs", "ratio_into", 1.3),
    ("torch door, given outputs", "ratio_door_into", 1.3),
];

/// Geometric means of the ratios to the better peer, over the rows without products.
fn means(rows: &[Value]) -> Value {
    let mean = |&(name, key, bar): &(&str, &str, f64)| {
        let plain = rows.iter().filter(|row| row["plain"] == true);
        let ratios: Vec<f64> = plain
            .filter_map(|row| row[key]["best"]["median"].as_f64())
            .collect();
        stats::geometric_mean(&ratios).map(|mean| {
            json!({"of": name, "rows": ratios.len(), "mean": mean, "bar": bar, "met": mean >= bar})
        })
    };
    MEANS.iter().filter_map(mean).collect()
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

    fn workload(name: &str) -> Workload {
        let wishes = parse(&strings(&["--peers", "--filter", name])).unwrap();
        workloads(&wishes).unwrap().remove(0)
    }

    #[test]
    fn who_takes_part_follows_from_the_workload() {
        let into = json!({"eager": true, "inductor": true, "door": true});
        let names = |w: &Workload, door| -> Vec<String> {
            let all = contestants(w, door, 64, &into).into_iter();
            all.map(|c| format!("{}: {}", c.name, c.words)).collect()
        };
        let all = names(&workload("add-relu-mul-10m"), true);
        assert_eq!(all.len(), CONTESTANTS.len());
        assert_eq!(all[3..5], ["door: run door", "copy: copy"]);
        assert_eq!(all[9], "torch_copy: copy 64");
        assert_eq!(names(&workload("add-relu-mul-10m"), false).len(), 8);
        assert_eq!(names(&workload("add-relu-mul-1k"), true).len(), 8);
        // Arithmetic bounds it: no copy.
        assert_eq!(names(&workload("matmul-1024"), true).len(), 8);
        let w = workload("add-relu-mul-10m");
        let none = contestants(&w, true, 64, &json!({}));
        assert!(!none.iter().any(|c| c.name.ends_with("r_into")));
    }

    #[test]
    fn rows_without_products_are_told_by_their_graphs() {
        assert!(workload("softmax").is_plain && workload("rotary").is_plain);
        assert!(!workload("matmul-1024").is_plain && !workload("attention").is_plain);
        assert!(workload("add-relu-mul-1k").rust_door_only);
    }

    #[test]
    fn a_row_is_judged_by_ratios_and_by_a_copy() {
        let times = |all: &[(&'static str, f64)]| Times {
            all: all.iter().map(|&(n, t)| (n, vec![t; 30])).collect(),
        };
        let w = workload("add-relu-mul-10m");
        let base = [
            ("oxyfuel", 100.0),
            ("oxyfuel_into", 50.0),
            ("door", 102.0),
            ("eager", 300.0),
            ("inductor", 100.0),
            ("copy", 45.0),
            ("torch_copy", 60.0),
        ];
        let row = judged(&w, 30, 8 << 20, &times(&base));
        assert_eq!(row["met"], true);
        assert_eq!(row["met_door"], false);
        assert_eq!(row["met_copy"], true);
        assert_eq!(row["of_copy"]["oxyfuel_into"]["median"], 0.9);
        // A peer at 85 % of a copy's speed lowers the bar to 0.97.
        let mut near = base;
        near[5].1 = 90.0;
        near[6].1 = 91.0;
        let row = judged(&w, 30, 8 << 20, &times(&near));
        assert_eq!(row["met_door"], true);
        let few = judged(&w, 5, 8 << 20, &times(&base));
        assert!(few["met"].is_null() && few["met_copy"].is_null());
        let means = means(&[row.clone(), row]);
        assert_eq!(means[0]["of"], "Rust door");
        assert_eq!(means[0]["mean"], 1.0);
        assert_eq!(means[0]["met"], false);
    }

    #[test]
    fn short_calls_are_repeated_in_a_turn() {
        assert_eq!(turn_size(1e3), (10, 25));
        assert_eq!(turn_size(1e6), (5, 5));
        assert_eq!(turn_size(1e9), (1, 1));
    }
}
