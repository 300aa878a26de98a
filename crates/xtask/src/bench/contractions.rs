//! `bench --contractions`: products, attention and convolutions against PyTorch's engines, with weights frozen and not, and against the machine's own limits.
//!
//! The rounds are those of `--peers`; what differs is who takes part and what is asked of a row:
//!
//! | verdict | of | bar |
//! |---|---|---|
//! | `met`, `met_frozen` | f32 products: ratio to the better peer | 1.1 where the peer leaves a fifth of the limit, else 0.97 |
//! | `met_share` | rows that say so: speed of a plain read of as many bytes | what the definition says |
//! | `met_peak` | rows that say so: speed of a loop of multiply-adds without memory | what the definition says |
//! | `met_threads` | large rows: one thread's time by that of all | 1.8 in f32, 1.6 in bf16 |
//! | `met_beside` | work in other words: speed of the plain words | 0.97 |
//! | `means[].met` | bf16 products, attention, convolutions: mean of the ratios | see [`MEANS`] |
//!
//! Weights that may change are compared with eager and Inductor, frozen ones with Inductor's frozen ones too. The limit of a row is the longer of its multiply-adds in the loop
//! and its bytes in a plain copy, or read where it hardly writes.

use super::bars::ENOUGH_ROUNDS;
use super::contest::{Contestant, Engines, Times, Who, words};
use super::engine::Engine;
use super::stats::{self, Ratio};
use super::workload::{Family, Workload, workloads};
use super::{record, release_binary};
use crate::{Outcome, revision, venv};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds of a large row: the bars of threads and peaks take twice as many.
const ROUNDS_OF_LARGE: usize = 60;
/// A product's bar where the better peer is slower than this share of the limit, and where it is not.
const LEAVES_ROOM: f64 = 0.8;
const BARS: (f64, f64) = (1.1, 0.97);
/// What all threads have to gain over one.
const THREADS: &[(&str, f64)] = &[("f32", 1.8), ("bf16", 1.6)];
/// Other words may cost so much.
const BESIDE: f64 = 0.97;

/// Name, who is asked, words.
const CONTESTANTS: &[(&str, Who, &str)] = &[
    ("oxyfuel", Who::Ours, "run"),
    ("eager", Who::Torch, "run eager"),
    ("inductor", Who::Torch, "run inductor"),
    ("oxyfuel_frozen", Who::Ours, "frozen"),
    ("inductor_frozen", Who::Torch, "run frozen"),
    ("beside", Who::Ours, "beside"),
    ("alone", Who::Alone, "run"),
    ("arithmetic", Who::Ours, "arithmetic"),
    ("read", Who::Ours, "read"),
    ("copy", Who::Ours, "copy"),
];

/// What is ours, who it is compared with, the name of its ratios, and where its verdict goes.
const RATIOS: &[(&str, &[&str], &str, &str)] = &[
    ("oxyfuel", &["eager", "inductor"], "ratio", "met"),
    (
        "oxyfuel_frozen",
        &["eager", "inductor", "inductor_frozen"],
        "ratio_frozen",
        "met_frozen",
    ),
];

/// Means of the ratios to the better peer: of which rows, in which types, bar.
const MEANS: &[(&str, Family, &[&str], f64)] = &[
    ("bf16 products", Family::Product, &["bf16"], 1.2),
    ("attention", Family::Attention, &["f32", "bf16"], 1.8),
    ("convolutions", Family::Convolution, &["f32", "bf16"], 1.1),
];

struct Wishes {
    families: Vec<Family>,
    filter: String,
    quick: bool,
    rounds: usize,
    record: bool,
}

pub fn run(args: &[String]) -> Outcome {
    let wishes = parse(args)?;
    let mut all = workloads(&wishes.filter, false)?;
    all.retain(|w| w.family.is_some_and(|f| wishes.families.contains(&f)));
    if all.is_empty() {
        return Err(format!(
            "no product, attention or convolution is called like `{}`",
            wishes.filter
        ));
    }
    let python = match std::env::var_os("OXYFUEL_PEERS_PYTHON") {
        Some(python) => PathBuf::from(python),
        None => venv::ensure_peers()?,
    };
    let binary = release_binary()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut engines = start(&binary, &python, threads)?;
    let about = engines.torch.ask("about")?;
    let mut missed = Vec::new();
    for &family in &wishes.families {
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        let chosen: Vec<&Workload> = all.iter().filter(|w| w.family == Some(family)).collect();
        for w in &chosen {
            eprintln!("{} …", w.title);
            match measure(w, &wishes, &mut engines) {
                Ok(row) => rows.push(row),
                Err(sentence) => failures.push(format!("{}: {sentence}", w.name)),
            }
        }
        for failure in &failures {
            eprintln!("error: {failure}");
        }
        let decides = wishes.rounds >= ENOUGH_ROUNDS && wishes.filter.is_empty();
        let mut report = json!({
            "family": family.name(), "cpu": record::cpu_model(), "cores": threads, "threads": threads,
            "rounds": wishes.rounds,
            "versions": {"oxyfuel": env!("CARGO_PKG_VERSION"), "torch": about["torch"]},
            "rows": rows,
            "means": means(&rows, decides && failures.is_empty()),
        });
        revision::stamp(&mut report);
        let page = page(&report);
        print!("{page}");
        missed.extend(misses(&report));
        if !failures.is_empty() {
            return Err(format!(
                "{} of {} workloads failed",
                failures.len(),
                chosen.len()
            ));
        }
        if wishes.record {
            let stem = record::stem(family.name(), report["cpu"].as_str().unwrap_or("unknown"));
            record::save(&stem, &report, Some(&page))?;
        }
    }
    engines.quit();
    super::no_bar_missed(&missed)
}

fn parse(args: &[String]) -> Result<Wishes, String> {
    let mut wishes = Wishes {
        families: Vec::new(),
        filter: String::new(),
        quick: false,
        rounds: 0,
        record: false,
    };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .cloned()
                .ok_or_else(|| format!("{word} wants a value"))
        };
        match word.as_str() {
            "--quick" => wishes.quick = true,
            "--record" => wishes.record = true,
            "--filter" => wishes.filter = value()?,
            "--rounds" => {
                let text = value()?;
                wishes.rounds = text
                    .parse()
                    .ok()
                    .filter(|n| *n > 0)
                    .ok_or_else(|| format!("{word} wants a number above 0, not `{text}`"))?;
            }
            name => {
                let named = Family::ALL.into_iter().find(|f| f.name() == name);
                wishes.families.push(named.ok_or_else(|| {
                    let names = Family::ALL.map(Family::name).join(", ");
                    format!("`{name}` is neither an option nor one of {names} (`cargo xtask bench --help`)")
                })?);
            }
        }
    }
    if wishes.families.is_empty() {
        wishes.families = Family::ALL.to_vec();
    }
    if wishes.rounds == 0 {
        wishes.rounds = if wishes.quick { 5 } else { ENOUGH_ROUNDS };
    }
    if wishes.record && (wishes.rounds < ENOUGH_ROUNDS || !wishes.filter.is_empty()) {
        return Err(format!(
            "a record takes all rows of a family and at least {ENOUGH_ROUNDS} rounds"
        ));
    }
    Ok(wishes)
}

/// Ours on all threads and on one, and torch with its frozen weights.
fn start(binary: &Path, python: &Path, threads: usize) -> Result<Engines, String> {
    let serve = |threads: usize| {
        let mut command = Command::new(binary);
        command.args(["serve", "--threads", &threads.to_string()]);
        Engine::start("oxyfuel", command)
    };
    let mut torch = Command::new(python);
    torch
        .arg(crate::workspace::root().join("bench/engines/torch_engine.py"))
        .args([&threads.to_string(), "frozen"]);
    Ok(Engines {
        ours: serve(threads)?,
        alone: Some(serve(1)?),
        torch: Engine::start("torch", torch)?,
    })
}

fn measure(w: &Workload, wishes: &Wishes, engines: &mut Engines) -> Result<Value, String> {
    let words_of = format!("prepare {}", w.name);
    let us = engines.ours.ask(&words_of)?;
    let them = engines.torch.ask(&words_of)?;
    engines.agree(them["outputs"].as_u64().unwrap_or(1))?;
    let alone = match (w.large, &mut engines.alone) {
        (true, Some(alone)) => {
            alone.ask(&words_of)?;
            true
        }
        (true, None) | (false, _) => false,
    };
    let loops = us["loops"].as_f64();
    let contestants = contestants(w, &words(&us), &words(&them), loops.is_some(), alone);
    let rounds = match (w.large, wishes.quick) {
        (true, false) => wishes.rounds.max(ROUNDS_OF_LARGE),
        (false, _) | (_, true) => wishes.rounds,
    };
    let times = engines.play(&contestants, rounds, loops)?;
    let mut row = judged(w, rounds, &times);
    for key in ["compile_ms", "kernels", "target"] {
        row[key] = us[key].clone();
    }
    Ok(row)
}

fn contestants(
    w: &Workload,
    ours: &[&str],
    theirs: &[&str],
    has_loop: bool,
    alone: bool,
) -> Vec<Contestant> {
    let takes_part = |who: Who, words: &str| match (who, words) {
        (Who::Alone, _) => alone,
        (Who::Torch, words) => theirs.contains(&words),
        (Who::Ours, "frozen" | "beside" | "read") => ours.contains(&words),
        (Who::Ours, "arithmetic") => has_loop && !w.is_bytes,
        (Who::Ours, "copy") => !ours.contains(&"read"),
        (Who::Ours, _) => true,
    };
    let all = CONTESTANTS.iter();
    all.filter(|(_, who, words)| takes_part(*who, words))
        .map(|&(name, who, words)| Contestant {
            name,
            who,
            words: words.to_owned(),
        })
        .collect()
}

/// The least time of each round that the machine allows: multiply-adds or bytes, whichever take longer.
fn limit(times: &Times) -> Option<Vec<f64>> {
    let memory = times.of("read").or(times.of("copy"))?;
    Some(match times.of("arithmetic") {
        Some(arithmetic) => memory
            .iter()
            .zip(arithmetic)
            .map(|(m, a)| m.max(*a))
            .collect(),
        None => memory.to_vec(),
    })
}

/// The row of a workload: medians, ratios, verdicts.
fn judged(w: &Workload, rounds: usize, times: &Times) -> Value {
    let decides = rounds >= ENOUGH_ROUNDS;
    let verdict = |ratio: Ratio, bar: f64| decides.then(|| ratio.meets(bar));
    let mut row = json!({
        "name": w.name, "title": w.title, "family": w.family.map(Family::name), "dtype": w.dtype, "rounds": rounds,
    });
    for (name, times) in &times.all {
        row["us"][*name] = json!(stats::median(times) / 1e3);
    }
    let limit = limit(times);
    for &(mine, peers, key, met) in RATIOS {
        let Some(mine) = times.of(mine) else {
            continue;
        };
        let mut best: Option<(Ratio, &[f64])> = None;
        for &name in peers {
            let Some(peer) = times.of(name) else {
                continue;
            };
            let ratio = Ratio::paired(peer, mine);
            row[key][name] = ratio.to_json();
            if best.is_none_or(|(known, _)| ratio.median < known.median) {
                best = Some((ratio, peer));
            }
        }
        let Some((ratio, peer)) = best else {
            continue;
        };
        row[key]["best"] = ratio.to_json();
        let Some(limit) = &limit else {
            continue;
        };
        row[key]["limit"] = Ratio::paired(limit, mine).to_json();
        let share = Ratio::paired(limit, peer);
        row[key]["peer_limit"] = share.to_json();
        if w.family == Some(Family::Product) && w.dtype == "f32" {
            let bar = if share.median < LEAVES_ROOM {
                BARS.0
            } else {
                BARS.1
            };
            row[key]["bar"] = json!(bar);
            row[met] = json!(verdict(ratio, bar));
        }
    }
    let Some(mine) = times.of("oxyfuel") else {
        return row;
    };
    let threads = THREADS.iter().find(|(dtype, _)| *dtype == w.dtype);
    let others = [
        ("share", times.of("read"), w.share),
        ("peak", times.of("arithmetic"), w.of_peak),
        ("threads", times.of("alone"), threads.map(|(_, bar)| *bar)),
        ("beside", times.of("beside"), Some(BESIDE)),
    ];
    for (what, other, bar) in others {
        let (Some(other), Some(bar)) = (other, bar) else {
            continue;
        };
        let ratio = Ratio::paired(other, mine);
        row[what] = ratio.to_json();
        row[what]["bar"] = json!(bar);
        row[format!("met_{what}")] = json!(verdict(ratio, bar));
    }
    row
}

/// Geometric means over the rows that are neither bound by a read nor said in other words; of frozen weights over those that have some.
fn means(rows: &[Value], decides: bool) -> Value {
    let mut all = Vec::new();
    for &(name, family, dtypes, bar) in MEANS {
        for (key, how) in [("ratio", ""), ("ratio_frozen", ", frozen")] {
            let ratios: Vec<f64> = rows
                .iter()
                .filter(|row| {
                    let plain = row["share"].is_null() && row["beside"].is_null();
                    let of = dtypes.iter().any(|dtype| row["dtype"] == *dtype);
                    plain && of && row["family"] == family.name()
                })
                .filter_map(|row| row[key]["best"]["median"].as_f64())
                .collect();
            if let Some(mean) = stats::geometric_mean(&ratios) {
                let met = decides.then_some(mean >= bar);
                all.push(json!({"of": format!("{name}{how}"), "rows": ratios.len(), "mean": mean, "bar": bar, "met": met}));
            }
        }
    }
    Value::Array(all)
}

/// Verdict, where its number is, what it is about.
const VERDICTS: &[(&str, &str, &str)] = &[
    ("met", "ratio", "ratio to the better peer"),
    (
        "met_frozen",
        "ratio_frozen",
        "frozen weights: ratio to the best peer",
    ),
    ("met_share", "share", "of a plain read's speed"),
    (
        "met_peak",
        "peak",
        "of the speed of multiply-adds without memory",
    ),
    ("met_threads", "threads", "times the speed of one thread"),
    ("met_beside", "beside", "of the speed of the plain words"),
];

/// The ratio and the bar of a verdict.
fn of(row: &Value, key: &str) -> (Value, f64) {
    let ratio = match row[key]["best"].is_object() {
        true => &row[key]["best"],
        false => &row[key],
    };
    (ratio.clone(), row[key]["bar"].as_f64().unwrap_or(f64::NAN))
}

/// A sentence for every bar that the report missed.
fn misses(report: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for row in rows(report) {
        for &(verdict, key, what) in VERDICTS {
            if row[verdict] == false {
                let (ratio, bar) = of(row, key);
                let title = row["title"].as_str().unwrap_or_default();
                all.push(format!(
                    "{title}: {what} {}, bar {bar}",
                    record::interval(&ratio)
                ));
            }
        }
    }
    for mean in report["means"].as_array().into_iter().flatten() {
        if mean["met"] == false {
            let number = |key: &str| mean[key].as_f64().unwrap_or(f64::NAN);
            all.push(format!(
                "geometric mean, {}: {:.2}, bar {}",
                mean["of"].as_str().unwrap_or_default(),
                number("mean"),
                number("bar")
            ));
        }
    }
    all
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

fn page(report: &Value) -> String {
    let mut text = String::from(
        "| work | Oxyfuel us | frozen us | eager us | Inductor us | Inductor frozen us | to the better (95 %) | frozen: to the best | of the limit, frozen | the peer's share of it | more |\n\
         |---|---:|---:|---:|---:|---:|---|---|---|---|---|\n",
    );
    for row in rows(report) {
        let us = |name: &str| {
            let time = row["us"][name].as_f64();
            time.map_or("-".to_owned(), |t| format!("{t:.1}"))
        };
        let share = |key: &str, of: &str| {
            let share = row[key][of]["median"].as_f64();
            share.map(|share| format!("{:.0} %", share * 100.0))
        };
        let both = |of: &str| {
            let [plain, frozen] = ["ratio", "ratio_frozen"].map(|key| share(key, of));
            let plain = plain.unwrap_or("-".to_owned());
            frozen.map_or(plain.clone(), |frozen| format!("{plain}, {frozen}"))
        };
        let judged = |verdict: &str, key: &str| {
            let (ratio, bar) = of(row, key);
            let met = match row[verdict].as_bool() {
                Some(true) => format!(", bar {bar} met"),
                Some(false) => format!(", bar {bar} **missed**"),
                None => String::new(),
            };
            record::interval(&ratio) + &met
        };
        let more = VERDICTS
            .iter()
            .skip(2)
            .filter(|(_, key, _)| row[*key].is_object());
        let more: Vec<String> = more
            .map(|(verdict, key, what)| format!("{} {what}", judged(verdict, key)))
            .collect();
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row["title"].as_str().unwrap_or_default(),
            us("oxyfuel"),
            us("oxyfuel_frozen"),
            us("eager"),
            us("inductor"),
            us("inductor_frozen"),
            judged("met", "ratio"),
            judged("met_frozen", "ratio_frozen"),
            both("limit"),
            both("peer_limit"),
            if more.is_empty() {
                "-".to_owned()
            } else {
                more.join("; ")
            },
        ));
    }
    for mean in report["means"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "\nGeometric mean of {} rows, {}: {:.2} (bar {}, {}).\n",
            mean["rows"],
            mean["of"].as_str().unwrap_or_default(),
            mean["mean"].as_f64().unwrap_or(f64::NAN),
            mean["bar"],
            match mean["met"].as_bool() {
                Some(true) => "met",
                Some(false) => "missed",
                None => "not judged: too few rounds or rows",
            },
        ));
    }
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    text + &format!(
        "\n{}, {} threads for every engine; oxyfuel {}, torch {}; at least {} rounds; commit {}, {}. Written by `cargo xtask bench --contractions {} --record`. A ratio is the peer's time by ours in the same round: above 1 is ours. Weights that may change are compared with eager and Inductor, frozen ones with Inductor's frozen ones too. The limit is the longer of a row's multiply-adds in a loop without memory and its bytes in a plain copy (or read, where it hardly writes), in turns with the rest.\n",
        word(&report["cpu"]),
        report["threads"],
        word(&report["versions"]["oxyfuel"]),
        word(&report["versions"]["torch"]),
        report["rounds"],
        word(&report["commit"]),
        word(&report["at"]),
        word(&report["family"]),
    )
}

#[cfg(test)]
mod tests {
    use super::super::workload::workload;
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|s| (*s).to_owned()).collect()
    }

    fn times(all: &[(&'static str, f64)]) -> Times {
        Times {
            all: all.iter().map(|&(n, t)| (n, vec![t; 60])).collect(),
        }
    }

    #[test]
    fn options_are_read_and_mistakes_are_sentences() {
        let wishes = parse(&strings(&["attention", "--rounds", "40"])).unwrap();
        assert_eq!(
            (wishes.families, wishes.rounds),
            (vec![Family::Attention], 40)
        );
        assert_eq!(parse(&[]).unwrap().families, Family::ALL);
        for (args, part) in [
            (&["--quick", "--record"][..], "30 rounds"),
            (&["--record", "--filter", "x"], "all rows"),
            (&["--what"], "products, attention, convolutions, blocks"),
            (&["--rounds", "x"], "above 0"),
            (&["--filter"], "wants a value"),
        ] {
            let error = parse(&strings(args)).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn who_takes_part_follows_from_the_workload_and_the_answers() {
        let w = workload("linear-llama-up");
        let torch = ["run eager", "run inductor", "run frozen"];
        let names = |w: &Workload, ours: &[&str], alone| -> Vec<&str> {
            let all = contestants(w, ours, &torch, true, alone).into_iter();
            all.map(|c| c.name).collect()
        };
        assert_eq!(
            names(&w, &["frozen"], true),
            [
                "oxyfuel",
                "eager",
                "inductor",
                "oxyfuel_frozen",
                "inductor_frozen",
                "alone",
                "arithmetic",
                "copy"
            ]
        );
        let w = workload("linear-decode-4096");
        let all = names(&w, &["frozen", "read"], false);
        assert_eq!(all[5..], ["read"]);
    }

    #[test]
    fn a_products_bar_follows_what_the_peer_leaves() {
        let w = workload("linear-llama-up");
        let mut all = vec![
            ("oxyfuel", 100.0),
            ("eager", 120.0),
            ("inductor", 108.0),
            ("oxyfuel_frozen", 95.0),
            ("inductor_frozen", 90.0),
            ("alone", 170.0),
            ("arithmetic", 80.0),
            ("copy", 85.0),
        ];
        // Inductor reaches 79 % of the limit: there is room.
        let row = judged(&w, 60, &times(&all));
        assert_eq!(row["ratio"]["bar"], 1.1);
        assert_eq!(row["met"], false);
        // Its frozen one reaches 94 %.
        assert_eq!(row["ratio_frozen"]["bar"], 0.97);
        assert_eq!(row["met_frozen"], false);
        assert_eq!(row["met_threads"], false);
        assert_eq!(row["threads"]["bar"], 1.8);
        all[5].1 = 190.0;
        all[2].1 = 111.0;
        let row = judged(&w, 60, &times(&all));
        assert_eq!(
            (&row["met"], &row["met_threads"]),
            (&json!(true), &json!(true))
        );
        assert!(judged(&w, 5, &times(&all))["met"].is_null());
        let report =
            json!({"rows": [row], "means": [{"of": "x", "mean": 1.0, "bar": 1.1, "met": false}]});
        assert_eq!(
            misses(&report),
            [
                "linear 128x2048 to 5632 (Llama): frozen weights: ratio to the best peer 0.95 (0.95…0.95), bar 0.97",
                "geometric mean, x: 1.00, bar 1.1",
            ]
        );
        let text = page(&report);
        assert!(text.contains("1.11 (1.11…1.11), bar 1.1 met"), "{text}");
        assert!(text.contains("| 85 %, 89 % |"), "{text}");
    }

    #[test]
    fn shares_peaks_and_other_words_have_bars_of_their_own() {
        let all = [("oxyfuel", 100.0), ("eager", 100.0), ("read", 88.0)];
        let row = judged(&workload("linear-decode-4096"), 30, &times(&all));
        assert_eq!(
            (&row["met_share"], &row["share"]["bar"]),
            (&json!(false), &json!(0.9))
        );
        let all = [("oxyfuel", 100.0), ("arithmetic", 61.0), ("copy", 1.0)];
        let row = judged(&workload("matmul-bf16-2048"), 60, &times(&all));
        assert_eq!(row["met_peak"], true);
        let all = [("oxyfuel", 100.0), ("beside", 96.0), ("copy", 1.0)];
        let row = judged(&workload("attention"), 60, &times(&all));
        assert_eq!(row["met_beside"], false);
    }

    #[test]
    fn means_are_of_their_own_rows() {
        let ratio = |x: f64| json!({"best": {"median": x}});
        let row = |family: &str, dtype: &str, x: f64| json!({"family": family, "dtype": dtype, "ratio": ratio(x)});
        let mut read = row("products", "bf16", 9.0);
        read["share"] = json!({"median": 0.9});
        let rows = [
            row("products", "bf16", 1.0),
            row("products", "bf16", 4.0),
            row("products", "f32", 9.0),
            read,
        ];
        let all = means(&rows, true);
        assert_eq!(all.as_array().unwrap().len(), 1);
        assert_eq!(
            (&all[0]["of"], &all[0]["mean"]),
            (&json!("bf16 products"), &json!(2.0))
        );
        assert_eq!(all[0]["met"], true);
        assert!(means(&rows, false)[0]["met"].is_null());
    }
}
