//! `fmt` and `clippy`.

use crate::args::Args;
use crate::{Outcome, process, workspace};

pub const FMT_HELP: &str = "\
usage: cargo xtask fmt [--check]

Formats every crate of the workspace.

  --check   change nothing; fail where a file is not formatted
";

pub const CLIPPY_HELP: &str = "\
usage: cargo xtask clippy [-- <clippy arguments>]

Runs clippy over every crate and target with warnings as errors. What follows `--` goes to `cargo clippy`
in place of `--workspace`, for instance `-- -p oxyfuel-graph`.
";

pub fn fmt(args: &[String]) -> Outcome {
    let args = Args::parse(args, &["--check"])?.nothing_after_dashes()?;
    format(args.has("--check"))
}

pub fn clippy(args: &[String]) -> Outcome {
    let args = Args::parse(args, &[])?;
    lint(&args.after_dashes)
}

pub fn format(check: bool) -> Outcome {
    let mut command = process::cargo();
    command
        .current_dir(workspace::root())
        .args(["fmt", "--all"]);
    if check {
        command.args(["--", "--check"]);
    }
    process::run(&mut command, "formatting").map_err(|e| {
        if check {
            format!("{e}; run `cargo xtask fmt`")
        } else {
            e
        }
    })
}

pub fn lint(packages: &[String]) -> Outcome {
    let mut command = process::cargo();
    command
        .current_dir(workspace::root())
        .args(["clippy", "--quiet", "--all-targets"]);
    if packages.is_empty() {
        command.arg("--workspace");
    } else {
        command.args(packages);
    }
    process::run(command.args(["--", "-D", "warnings"]), "clippy")
}
