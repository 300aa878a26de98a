//! Long differential fuzzing: random tile programs and random graphs, the interpreters against every target of this machine.
//!
//! ```text
//!   seed, index ──▶ numbers ──▶ program ──┬─▶ interpreter ──────────┐
//!                     ▲                   └─▶ each target, each ────┴─▶ the same? ── no ──▶ shrink the numbers, print the program
//!                     └────────────────────── number of threads                                         │
//!                                                                                      ◀────────────────┘
//! ```
//!
//! A case is a function of seed and index alone, so that neither the number of workers nor a cut into shards or ranges changes what is checked. The generators are those
//! of the short runs among the tests (`oxyfuel_kernel::generate`, `oxyfuel_graph::random`). The binary needs nothing but itself; exit codes: 0 no mismatch, 1 a mismatch or a
//! crash, 2 wrong usage.
#![forbid(unsafe_code)]

mod call;
mod case;
mod drive;
mod graphs;
#[path = "../../engine/tests/conformance/judge.rs"]
#[expect(dead_code, reason = "files are judged more closely than random graphs")]
mod judge;
#[path = "../../engine/tests/conformance/memory.rs"]
#[expect(dead_code, reason = "other devices are for the conformance suite")]
mod memory;
mod shrink;
mod supervise;
mod tiles;

use case::Kind;
use clap::Parser;
use drive::{Plan, drive};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Random tile programs and graphs, the interpreters against every target of this machine.
#[derive(Parser, Clone, Debug)]
#[command(name = "oxyfuel-fuzz")]
pub struct Options {
    /// Tile programs to check: a number, or a range such as 200000..1000000
    #[arg(long, value_name = "N", default_value = "0", value_parser = range)]
    tiles: (u64, u64),
    /// Graphs to check: a number, or a range
    #[arg(long, value_name = "N", default_value = "0", value_parser = range)]
    graphs: (u64, u64),
    /// What all cases follow from
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Cases checked at the same time; as many as there are cores when left out
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Only part I of N, from 0 on
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = shard)]
    shard: (u64, u64),
    /// Targets to check, with commas between them; those of this machine when left out. Code for another one is not run: programs of graphs are interpreted as that target has them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    targets: Vec<String>,
    /// Stop after so many seconds, and say with which ranges to go on
    #[arg(long, value_name = "S")]
    limit: Option<u64>,
    /// Stop after so many mismatches
    #[arg(long, value_name = "N", default_value_t = 10)]
    keep: usize,
    /// Write what was checked to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Check in this very process, noting the current cases in FILE: what the supervising process starts
    #[arg(long, value_name = "FILE", hide = true)]
    crumbs: Option<PathBuf>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let number = |text: &str| {
        let digits = text.replace(['_', ','], "");
        digits
            .parse::<u64>()
            .map_err(|_| format!("`{text}` is not a number"))
    };
    match text.split_once("..") {
        None => Ok((0, number(text)?)),
        Some((from, to)) => {
            let range = (number(from)?, number(to)?);
            if range.0 > range.1 {
                return Err(format!("`{text}` ends before it begins"));
            }
            Ok(range)
        }
    }
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    let part = text.split_once('/');
    let part = part.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    part.filter(|(i, n)| i < n)
        .ok_or_else(|| format!("`{text}` is not I/N with I below N"))
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.crumbs.is_none() {
        return supervise::run(&options);
    }
    // A panic is reported with its program, once, when that is small.
    std::panic::set_hook(Box::new(|_| {}));
    match fuzz(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Checks everything that was asked for; the number of mismatches.
fn fuzz(options: &Options) -> Result<usize, String> {
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads,
    };
    let targets = match &options.targets[..] {
        [] => case::targets(),
        names => case::targets_named(names)?,
    };
    let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
    println!(
        "seed {}, {threads} workers, targets {}",
        options.seed,
        names.join(" ")
    );
    let crumbs = options.crumbs.as_deref();
    let crumbs = crumbs.map(supervise::Crumbs::open).transpose()?;
    let mut record = serde_json::Map::new();
    let mut mismatches = 0;
    let mut left = options.limit.map(Duration::from_secs);
    for (kind, range) in [(Kind::Tile, options.tiles), (Kind::Graph, options.graphs)] {
        if range.0 == range.1 {
            continue;
        }
        let plan = Plan {
            kind,
            range,
            shard: options.shard,
            seed: options.seed,
            threads,
            limit: left,
            keep: options.keep,
        };
        let tally = drive(&plan, &targets, crumbs.as_ref())?;
        println!("{}", tally.line(&plan));
        mismatches += tally.mismatches;
        left = left.map(|left| left.saturating_sub(tally.taken));
        record.insert(kind.name().to_owned(), tally.json(&plan));
    }
    if let Some(path) = &options.json {
        record.insert("seed".to_owned(), options.seed.into());
        record.insert("workers".to_owned(), threads.into());
        record.insert("targets".to_owned(), names.into());
        record.insert("mismatches".to_owned(), mismatches.into());
        let text = serde_json::to_string_pretty(&record).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n")
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(mismatches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::Tally;

    #[test]
    fn ranges_and_shards_are_read() {
        assert_eq!(range("1_000"), Ok((0, 1000)));
        assert_eq!(range("5..9"), Ok((5, 9)));
        assert!(range("9..5").is_err() && range("many").is_err());
        assert_eq!(shard("1/4"), Ok((1, 4)));
        assert!(shard("4/4").is_err() && shard("1").is_err());
    }

    /// What a short run checks, in one number.
    fn digest(kind: Kind, threads: usize, shard: (u64, u64)) -> Tally {
        let plan = Plan {
            kind,
            range: (0, 60),
            shard,
            seed: 7,
            threads,
            limit: None,
            keep: 1,
        };
        drive(&plan, &case::targets(), None).expect("a run")
    }

    #[test]
    fn what_is_checked_follows_from_the_seed() {
        for kind in [Kind::Tile, Kind::Graph] {
            let one = digest(kind, 1, (0, 1));
            assert_eq!(one.mismatches, 0);
            assert!(one.programs > 40, "{one:?}");
            assert_eq!(one.digest, digest(kind, 3, (0, 1)).digest);
            let halves = [0, 1].map(|i| digest(kind, 2, (i, 2)).digest);
            assert_eq!(one.digest, halves[0].wrapping_add(halves[1]));
        }
    }

    #[test]
    fn every_worker_checks_alike() {
        let check = |numbers: &[u32]| {
            let mut worker = Kind::Tile.worker(&case::targets());
            worker.check(numbers)
        };
        let numbers = case::numbers(Kind::Tile, 3, 11);
        assert_eq!(
            format!("{:?}", check(&numbers)),
            format!("{:?}", check(&numbers))
        );
    }
}
