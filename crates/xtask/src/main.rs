//! Developer commands: `cargo xtask --help`.
//!
//! Everything a contributor or a CI machine runs goes through here, so that both run the same thing. The crate stays
//! small (one dependency, a JSON reader for `cargo metadata`): it is built before anything else can be checked.
//!
//! A command is one row of [`COMMANDS`]; its function gets the arguments after its name and returns one clear
//! sentence when it fails.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod blocks;
mod cross;
mod deny;
mod deps;
mod disk;
mod fuzz;
mod gpu_pack;
mod gpu_pages;
mod judge;
mod links;
mod lint;
mod process;
mod revision;
mod sources;
mod spdx;
mod tally;
mod test;
mod venv;
mod workspace;

use std::process::ExitCode;

/// What a command returns: nothing, or one sentence for the person at the terminal.
type Outcome = Result<(), String>;

/// The error of a command whose own last line has to stay the last one.
const ALREADY_SAID: &str = "";

struct Command {
    name: &'static str,
    summary: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Outcome,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "test",
        summary: "all checks, then all tests; what CI runs",
        help: test::HELP,
        run: test::run,
    },
    Command {
        name: "validate",
        summary: "the same as `test`",
        help: test::HELP,
        run: test::run,
    },
    Command {
        name: "package",
        summary: "build the Python package into `.venv-test`",
        help: venv::PACKAGE_HELP,
        run: venv::package,
    },
    Command {
        name: "install",
        summary: "`pip install .` in a fresh environment, and the quickstart",
        help: venv::INSTALL_HELP,
        run: venv::install,
    },
    Command {
        name: "fmt",
        summary: "format the workspace (or --check it)",
        help: lint::FMT_HELP,
        run: lint::fmt,
    },
    Command {
        name: "clippy",
        summary: "clippy over every target, warnings are errors",
        help: lint::CLIPPY_HELP,
        run: lint::clippy,
    },
    Command {
        name: "deps",
        summary: "check the crate table: who may import whom, who may be unsafe",
        help: deps::HELP,
        run: deps::run,
    },
    Command {
        name: "deny",
        summary: "check licences, banned crates and sources",
        help: deny::HELP,
        run: deny::run,
    },
    Command {
        name: "links",
        summary: "check the links between the Markdown pages",
        help: links::HELP,
        run: links::run,
    },
    Command {
        name: "cross",
        summary: "check that the workspace builds for ARM and macOS",
        help: cross::HELP,
        run: cross::run,
    },
    Command {
        name: "bench",
        summary: "compare with PyTorch's engines (--peers), measure the torch door (--door), compiles and calls",
        help: bench::HELP,
        run: bench::run,
    },
    Command {
        name: "fuzz",
        summary: "many random tile programs and graphs, interpreters against every target",
        help: fuzz::HELP,
        run: fuzz::run,
    },
    Command {
        name: "readme",
        summary: "write the figures of README.md from bench/record",
        help: bench::README_HELP,
        run: bench::readme,
    },
    Command {
        name: "gpu-pack",
        summary: "one archive with tests and benchmarks for a machine with a GPU",
        help: gpu_pack::HELP,
        run: gpu_pack::run,
    },
    Command {
        name: "gpu-pages",
        summary: "write the figures of a GPU on the pages from bench/record",
        help: gpu_pages::HELP,
        run: gpu_pages::run,
    },
    Command {
        name: "opinfo",
        summary: "PyTorch's operator database through the backend, against eager",
        help: judge::OPINFO_HELP,
        run: judge::opinfo,
    },
    Command {
        name: "programs",
        summary: "random torch programs through the backend, against eager",
        help: judge::PROGRAMS_HELP,
        run: judge::programs,
    },
    Command {
        name: "models",
        summary: "torchvision and transformers models through the backend, against eager",
        help: judge::MODELS_HELP,
        run: judge::models,
    },
    Command {
        name: "venv",
        summary: "make the pinned Python environment of the tests",
        help: venv::HELP,
        run: venv::run,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        eprint!("{}", overview());
        return ExitCode::from(2);
    };
    if matches!(name.as_str(), "--help" | "-h" | "help") {
        print!("{}", overview());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|c| c.name == name) else {
        eprintln!("error: unknown command `{name}`; `cargo xtask --help` lists them");
        return ExitCode::from(2);
    };
    let before_dashes = rest.iter().take_while(|a| *a != "--");
    if before_dashes
        .into_iter()
        .any(|a| a == "--help" || a == "-h")
    {
        print!("{}", command.help);
        return ExitCode::SUCCESS;
    }
    match (command.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            if sentence != ALREADY_SAID {
                eprintln!("error: {sentence}");
            }
            ExitCode::FAILURE
        }
    }
}

fn overview() -> String {
    let mut text = String::from(
        "Developer commands of Oxyfuel.\n\nusage: cargo xtask <command> [options]\n\n",
    );
    for c in COMMANDS {
        text.push_str(&format!("  {:<10} {}\n", c.name, c.summary));
    }
    text.push_str("\n`cargo xtask <command> --help` says more.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_name_of_its_own_and_help() {
        for (i, c) in COMMANDS.iter().enumerate() {
            assert!(c.help.starts_with("usage: cargo xtask "), "{}", c.name);
            assert!(c.help.ends_with('\n'), "{}", c.name);
            assert!(
                !COMMANDS[..i].iter().any(|d| d.name == c.name),
                "{} twice",
                c.name
            );
            assert!(overview().contains(c.summary));
        }
    }
}
