//! `fuzz`: the long differential fuzzing, in a release binary of its own (`crates/fuzz`).

use crate::{Outcome, process, workspace};

pub const HELP: &str = "\
usage: cargo xtask fuzz [--tiles N] [--graphs N] [--seed S] [--threads N] [--shard I/N] [--limit SECONDS] [--json FILE]

Builds `target/release/oxyfuel-fuzz`, which needs nothing but itself, and runs it: random tile programs, the tile interpreter
against the code of every target of this machine, and random graphs, the graph interpreter against what the engine compiles. What
is checked follows from the seed alone. A mismatch is printed in its smallest form, as a filetest, and makes the command fail.
docs/fuzz.md says more.
";

pub fn run(args: &[String]) -> Outcome {
    let mut command = process::cargo();
    command
        .current_dir(workspace::root())
        .args(["run", "--release", "-p", "oxyfuel-fuzz", "--"])
        .args(args);
    process::run(&mut command, "the fuzzer")
}
