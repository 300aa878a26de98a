//! Torch as the judge: the operator database, random programs and whole models, each against eager.
//!
//! The suites are Python (`python/tests/judge`); these commands find the interpreter and hand the options on.

use crate::{Outcome, process, venv, workspace};
use std::process::Command;

pub const OPINFO_HELP: &str = "\
usage: cargo xtask opinfo [--op NAME] [--dtype D] [--limit N] [--shard I/N] [--workers N] [--seed N] [--fresh] [--bless] [--record] ...

Runs PyTorch's operator database through the backend: every operator, every sample, in float32, bfloat16, int64 and
bool, and gradients in float32. The first samples of an operator are graphs of their own, the others are compiled
several to a graph (--together 1: all alone). Results go to target/judge/opinfo.jsonl; jobs of this commit that are in
it are not run again, so a run can be stopped and taken up (--mixed: jobs of any commit). Fails when a result is wrong or a count of external operators or
interpreted kernels is above the recorded one, or when less than 95 % of the samples of a whole run do without torch's
operators (docs/operators.md says which samples count); --bless records counts and share and writes docs/operators.md,
--record writes the outcome of a whole run to bench/record/judge.json and docs/torch.md (with --report: of the results
there are). All options: --options.
";

pub const PROGRAMS_HELP: &str = "\
usage: cargo xtask programs [--programs N] [--seed N] [--workers N] [--failures DIR] [--record] ...

Makes random torch programs, compares each with eager, and prints the smallest form of what is wrong as Python.
About one in 27 cannot be compared (eager refuses it) and is skipped: `--programs 10450 --record` compares 10,000 and
writes the outcome to bench/record/judge.json and docs/torch.md.
All options: --options.
";

pub const MODELS_HELP: &str = "\
usage: cargo xtask models [--model NAME] [--way WAY] [--bless] [--record] ...

Runs torchvision and transformers models with random weights, forward and backward, against eager, and fails when a
result is wrong or a count rose; --record writes the outcome of a whole run. All options: --options.
";

pub fn opinfo(args: &[String]) -> Outcome {
    judge("opinfo", args)
}

pub fn programs(args: &[String]) -> Outcome {
    judge("programs", args)
}

pub fn models(args: &[String]) -> Outcome {
    judge("models", args)
}

fn judge(suite: &str, args: &[String]) -> Outcome {
    let root = workspace::root();
    let mut command = Command::new(venv::ensure_package("dev")?.python);
    command
        .current_dir(root.join("python/tests"))
        .args(["-m", "judge", suite]);
    // `--help` is ours; the suite's own list of options goes by another name.
    for arg in args {
        command.arg(if arg == "--options" { "--help" } else { arg });
    }
    process::run(&mut command, suite)
}
