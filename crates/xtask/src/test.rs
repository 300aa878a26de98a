//! `test`: everything CI asks, in one command, on a machine that has Rust and Python 3 and nothing else.

use crate::args::Args;
use crate::tally::{Runner, Tally};
use crate::venv::Tools;
use crate::{Outcome, cross, deny, deps, disk, links, lint, process, venv, workspace};
use std::process::Command;
use std::time::Instant;

pub const HELP: &str = "\
usage: cargo xtask test [--only-tests] [-- <arguments for the runner>]

Runs everything CI runs: room on the disk, formatting, the crate table (`deps`), licences (`deny`), the pages' `links`, clippy,
then all tests and doctests of the workspace, then the Python package: its tests, the counts of every operator and
model, and `pip install .` with the quickstart in a fresh environment. Makes the pinned Python environment
`.venv-test` by itself. Uses cargo-nextest where it is installed. Closes with one line: `N passed, N failed`, and how many tests of
the Python package this machine could not run.

  --only-tests   leave out the checks before the tests
  -- ...         handed to the runner in place of `--workspace`, for instance `-- -p oxyfuel-graph`; leaves out the
                 checks too
";

/// Set for the tests, so that a test may refuse to do without a tool that this command provides.
const FULL_RUN: &str = "OXYFUEL_FULL_TEST";

type Step = (&'static str, fn() -> Outcome);

/// Before anything takes room.
const ROOM: &[Step] = &[("disk", disk::check)];

const CHECKS: &[Step] = &[
    ("fmt", || lint::format(true)),
    ("deps", deps::check),
    ("deny", deny::check),
    ("links", links::check),
    ("clippy", || lint::lint(&[])),
    ("cross", cross::check_installed),
];

pub fn run(args: &[String]) -> Outcome {
    let args = Args::parse(args, &["--only-tests"])?;
    let with_checks = !args.has("--only-tests") && args.after_dashes.is_empty();
    let (start, mut tally) = (Instant::now(), Tally::default());
    let outcome =
        prepared(with_checks).and_then(|tools| tests(&tools, &args.after_dashes, &mut tally));
    if outcome.is_err() && tally.failed == 0 {
        // A check, or the build itself: the closing line must not read like a success.
        tally.failed = 1;
    }
    println!("== all: {:.1} s", start.elapsed().as_secs_f64());
    if let Err(sentence) = &outcome {
        eprintln!("error: {sentence}");
    }
    println!("{}", tally.line());
    outcome.map_err(|_| crate::ALREADY_SAID.to_owned())
}

/// The environment of the tests, and all checks done. Fetching it leaves the cores to the checks.
fn prepared(with_checks: bool) -> Result<Tools, String> {
    let chosen = |steps: &'static [Step]| if with_checks { steps } else { &[] };
    checks(chosen(ROOM))?;
    std::thread::scope(|scope| {
        let tools = scope.spawn(|| timed("venv", venv::ensure));
        let checked = checks(chosen(CHECKS));
        let tools = tools.join();
        checked?;
        tools.map_err(|_| "making the Python environment has panicked".to_owned())?
    })
}

fn checks(steps: &[Step]) -> Outcome {
    for (name, step) in steps {
        timed(name, *step)?;
    }
    Ok(())
}

fn tests(tools: &Tools, arguments: &[String], tally: &mut Tally) -> Outcome {
    let nextest = process::find_program("cargo-nextest").is_some();
    let (runner, mut main) = if nextest {
        let args = ["nextest", "run", "--no-fail-fast", "--no-tests=pass"];
        (Runner::Nextest, cargo(&args))
    } else {
        // Doctests follow in a run of their own, as they must with nextest.
        let targets = ["--lib", "--bins", "--tests", "--examples"];
        let mut command = cargo(&["test", "--no-fail-fast"]);
        command.args(targets);
        (Runner::CargoTest, command)
    };
    let mut doc = cargo(&["test", "--quiet", "--doc", "--no-fail-fast"]);
    let mut runs = vec![("tests", runner, &mut main)];
    if arguments.is_empty() {
        runs.push(("doctests", Runner::CargoTest, &mut doc));
    }
    let mut failed = Vec::new();
    for (name, runner, command) in runs {
        if arguments.is_empty() {
            command.arg("--workspace")
        } else {
            command.args(arguments)
        };
        command
            .env(FULL_RUN, "1")
            .env("OXYFUEL_PYTHON", &tools.python);
        if let Some(ptxas) = &tools.ptxas {
            command.env("OXYFUEL_PTXAS", ptxas);
        }
        let mut seen = Tally::default();
        let status = timed(name, || {
            process::watch(command, |line| seen.see(runner, line))
        })?;
        tally.add(seen);
        match (status.success(), seen.failed) {
            (true, _) => {}
            // What does not build now will not build as a doctest either.
            (false, 0) => return Err(format!("the {name} could not be built or run")),
            (false, n) => failed.push(format!("{n} of the {name} failed")),
        }
    }
    if arguments.is_empty() {
        let mut seen = Tally::default();
        let status = python_tests(&mut seen)?;
        tally.add(seen);
        match (status, seen.failed) {
            (true, _) => {}
            (false, 0) => return Err("the Python tests could not be run".to_owned()),
            (false, n) => failed.push(format!("{n} of the Python tests failed")),
        }
        timed("install", || venv::install_fresh(tools))?;
    }
    // A filter skips on purpose; in a full run a skipped test is one that nobody runs.
    if arguments.is_empty() && tally.ignored > 0 {
        failed.push(format!(
            "{} ignored: a test is run or removed, never ignored",
            tally.ignored
        ));
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

/// Processes of Python tests, each of which takes a few GB.
const MOST_WORKERS: usize = 4;

/// The tests of the Python package; whether all passed.
fn python_tests(seen: &mut Tally) -> Result<bool, String> {
    let tools = timed("package", || venv::ensure_package("dev"))?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = workers.min(MOST_WORKERS).to_string();
    let mut pytest = Command::new(&tools.python);
    pytest
        .current_dir(workspace::root())
        .env(FULL_RUN, "1")
        // Quiet by its settings already; twice quiet it would not say how many passed.
        .args(["-m", "pytest", "python/tests", "--durations", "25"])
        // Most of the time is torch's tracing, which uses one core.
        .args(["-n", &workers, "--dist", "worksteal"]);
    let status = timed("python", || {
        process::watch(&mut pytest, |line| seen.see(Runner::Pytest, line))
    })?;
    if status.success() && seen.passed == 0 {
        return Err("pytest does not say how many tests passed".to_owned());
    }
    Ok(status.success())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = process::cargo();
    command.current_dir(workspace::root()).args(args);
    command
}

fn timed<T>(name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    println!("== {name}");
    let start = Instant::now();
    let result = step();
    println!("== {name}: {:.1} s", start.elapsed().as_secs_f64());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failing_check_stops_the_rest() {
        let steps: &[Step] = &[
            ("good", || Ok(())),
            ("bad", || Err("no".to_owned())),
            ("never", || Err("never".to_owned())),
        ];
        assert_eq!(checks(steps).unwrap_err(), "no");
        assert_eq!(checks(&steps[..1]), Ok(()));
    }
}
