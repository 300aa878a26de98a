//! `bench`: what is measured, recorded and judged.
//!
//! | file | idea |
//! |---|---|
//! | `peers.rs` | Oxyfuel against PyTorch's engines, call by call (`--peers`) |
//! | `workload.rs` | the definitions that it measures |
//! | `contractions.rs` | products, attention and convolutions, frozen and not, and what the machine allows (`--contractions`) |
//! | `contest.rs` | who takes part in a row, and its rounds |
//! | `engine.rs`, `stats.rs` | a process that answers; paired ratios and their bounds |
//! | `bars.rs` | what a row and all of them have to reach |
//! | `door.rs` | the torch door (`--door`) |
//! | `own.rs` | what the command says about itself: compile times, overhead of a call (`--compile`, `--overhead`) |
//! | `record.rs` | all of it on paper |

mod bars;
mod contest;
mod contractions;
mod door;
mod engine;
mod own;
mod peers;
mod record;
mod stats;
mod workload;

use crate::{Outcome, process, venv, workspace};
use std::path::PathBuf;

pub const HELP: &str = "\
usage: cargo xtask bench --peers [--torch-door] [--filter TEXT] [--quick] [--rounds N] [--threads N] [--record]
       cargo xtask bench --contractions [products|attention|convolutions|blocks …] [--filter TEXT] [--quick] [--rounds N] [--record]
       cargo xtask bench --compile|--overhead [--quick] [--record]
       cargo xtask bench --door [--parts LIST] [--model NAME] [--rounds N] [--processes N] [--inductor] [--record FILE] [--mixed]

--peers: builds the release binary, makes the pinned environment `.venv-peers` (OXYFUEL_PEERS_PYTHON names an interpreter with
torch and numpy to use instead) and runs every CPU workload of bench/definitions on Oxyfuel, torch eager and torch
Inductor, alternating call by call. Results are compared before anything is timed. Ratios above 1 are ours. Rows that memory bounds
are also compared with a copy of as many bytes: ours or torch's, whichever is faster, and the torch door's with torch's. Where torch has a kernel of its own
for a whole workload (a step of AdamW), it is a peer as eager and Inductor are.

  --torch-door   also `torch.compile(backend=\"oxyfuel\")`, in the process of eager and Inductor: with the interpreter of --door
  --filter TEXT  only workloads whose name contains this
  --proofs       only workloads that have a bar
  --quick        5 rounds instead of 40: to see that it works, not who is faster
  --rounds N     another number of rounds, at least 30 for a record
  --threads N    threads of every engine (default: all cores)
  --record       write bench/record/ and the figures of README.md

--contractions: products, attention, convolutions and parts of models, against eager, Inductor and Inductor with freezing, in the same way and with the
same interpreter: as they are, and with weights frozen where they have some. A row takes turns with the machine's limits too: multiply-adds without memory,
a plain copy or read of as many bytes; large rows with one thread.

  NAMES          which of them (default: all; half an hour or more)
  --filter TEXT  only workloads whose name contains this
  --quick        5 rounds instead of 30
  --rounds N     another number of rounds; large rows take 60 at least
  --record       write bench/record/products-*, attention-*, convolutions-* and blocks-*

--compile, --overhead: build the release binary and run `oxyfuel bench --compile` (how long compiling takes) or `--overhead`
(what a call costs beside its work).

  --quick        to see that it works; judges nothing
  --record       write bench/record/compile-* or overhead-*, JSON and the page made from it

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

All of them list the bars that were missed, and fail then, after the figures are written.
";

pub use record::{README_HELP, readme, save};

pub fn run(args: &[String]) -> Outcome {
    match args.split_first() {
        Some((first, rest)) if first == "--door" => door::run(rest),
        Some((first, rest)) if first == "--contractions" => contractions::run(rest),
        Some((first, rest)) if first == "--compile" => own::run(&own::COMPILE, rest),
        Some((first, rest)) if first == "--overhead" => own::run(&own::OVERHEAD, rest),
        _ => peers::run(args),
    }
}

/// The command, built as users get it.
fn release_binary() -> Result<PathBuf, String> {
    let root = workspace::root();
    let mut build = process::cargo();
    build
        .current_dir(&root)
        .args(["build", "--release", "-p", "oxyfuel-cli"]);
    process::run(&mut build, "building the release binary")?;
    Ok(root.join("target/release/oxyfuel"))
}

/// An interpreter that has the package.
fn door_python() -> Result<PathBuf, String> {
    match std::env::var_os("OXYFUEL_DOOR_PYTHON") {
        Some(python) => Ok(PathBuf::from(python)),
        None => Ok(venv::ensure_package("release")?.python),
    }
}

/// Lists what was missed; fails where something was.
fn no_bar_missed(missed: &[String]) -> Outcome {
    for line in missed {
        eprintln!("missed: {line}");
    }
    match missed.len() {
        0 => Ok(()),
        n => Err(self::missed(n)),
    }
}

/// The sentence of so many.
fn missed(count: usize) -> String {
    match count {
        1 => "a bar is missed".to_owned(),
        n => format!("{n} bars are missed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_is_an_error() {
        assert!(no_bar_missed(&[]).is_ok());
        let two = ["a".to_owned(), "b".to_owned()];
        assert_eq!(no_bar_missed(&two).unwrap_err(), "2 bars are missed");
    }
}
