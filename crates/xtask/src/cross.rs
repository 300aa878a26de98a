//! `cross`: the workspace type-checks on machines that we do not emit code for.
//!
//! Oxyfuel is portable by its interpreter, so nothing may assume x86 or Linux at compile time. Checking needs no C
//! compiler for the other machine, and a dependency that asks for one is a broken promise.

use crate::args::Args;
use crate::{Outcome, process, workspace};
use std::path::Path;
use std::process::Command;

pub const HELP: &str = "\
usage: cargo xtask cross

Runs `cargo check` for 64-bit ARM Linux and macOS. The targets have to be installed:
`rustup target add aarch64-unknown-linux-gnu aarch64-apple-darwin`. (`cargo xtask test` checks those that are.)
";

const TARGETS: &[&str] = &["aarch64-unknown-linux-gnu", "aarch64-apple-darwin"];

pub fn run(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    for target in TARGETS {
        if !is_installed(target)? {
            return Err(format!(
                "the target {target} is not installed: `rustup target add {target}`"
            ));
        }
        check(target)?;
    }
    Ok(())
}

/// Checks the targets that are there, and names those that are not.
pub fn check_installed() -> Outcome {
    for target in TARGETS {
        if is_installed(target)? {
            check(target)?;
        } else {
            println!("cross: {target} is not installed, so it is not checked");
        }
    }
    Ok(())
}

fn check(target: &str) -> Outcome {
    let mut command = process::cargo();
    command.current_dir(workspace::root()).args([
        "check",
        "--quiet",
        "--workspace",
        "--target",
        target,
    ]);
    process::run(&mut command, &format!("checking for {target}"))
}

fn is_installed(target: &str) -> Result<bool, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", target]);
    let folder = process::capture(&mut command, "rustc --print target-libdir")?;
    Ok(Path::new(folder.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_we_run_on_is_installed_and_nonsense_is_an_error() {
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        if cfg!(all(target_os = "linux", target_env = "gnu")) {
            assert_eq!(is_installed(&host), Ok(true));
        }
        assert!(is_installed("no-such-machine").is_err());
    }
}
