//! `deny`: which licences, crates and sources may come into the build.
//!
//! `deny.toml` is the one list. cargo-deny reads it where it is installed; where it is not, the same lists are
//! checked here from `cargo metadata`, because building cargo-deny costs four minutes on two cores. The security
//! advisories are cargo-deny's alone: they need a database from the network.

use crate::args::Args;
use crate::workspace::Package;
use crate::{Outcome, process, spdx, workspace};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

pub const HELP: &str = "\
usage: cargo xtask deny [--install] [--advisories]

Checks deny.toml: allowed licences, banned crates, allowed sources. Uses cargo-deny where it is installed and our
own reading of the same file where it is not.

  --install      first build the pinned cargo-deny into target/tools (about four minutes on two cores)
  --advisories   also check the security advisories (needs cargo-deny and the network)
";

const CARGO_DENY: &str = "0.20.2";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn run(args: &[String]) -> Outcome {
    let args = Args::parse(args, &["--install", "--advisories"])?.nothing_after_dashes()?;
    if args.has("--install") {
        install()?;
    }
    let tool = find_cargo_deny();
    if args.has("--advisories") {
        let tool = tool
            .as_ref()
            .ok_or("the advisories need cargo-deny: add --install")?;
        cargo_deny(tool, &["advisories"])?;
    }
    check_with(tool)
}

pub fn check() -> Outcome {
    check_with(find_cargo_deny())
}

fn check_with(tool: Option<PathBuf>) -> Outcome {
    if let Some(tool) = tool {
        cargo_deny(&tool, &["licenses", "bans", "sources"])?;
    }
    // Ours runs even beside cargo-deny: it takes a fraction of a second and keeps itself honest.
    own_check()
}

fn tools() -> PathBuf {
    workspace::root().join("target/tools")
}

fn find_cargo_deny() -> Option<PathBuf> {
    let own = tools().join("bin/cargo-deny");
    if own.is_file() {
        Some(own)
    } else {
        process::find_program("cargo-deny")
    }
}

fn install() -> Outcome {
    let mut command = process::cargo();
    command.current_dir(workspace::root()).args([
        "install",
        "--locked",
        "--version",
        CARGO_DENY,
        "--root",
    ]);
    command.arg(tools()).arg("cargo-deny");
    process::run(&mut command, "installing cargo-deny")
}

fn cargo_deny(tool: &PathBuf, checks: &[&str]) -> Outcome {
    let mut command = Command::new(tool);
    command
        .current_dir(workspace::root())
        .args(["--workspace", "check", "--hide-inclusion-graph"])
        .args(checks);
    process::run(&mut command, "cargo-deny")
}

fn own_check() -> Outcome {
    let path = workspace::root().join("deny.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read deny.toml: {e}"))?;
    let lists = Lists::parse(&text)?;
    let packages = workspace::everything()?;
    let problems: Vec<String> = packages.iter().flat_map(|p| lists.problems(p)).collect();
    if problems.is_empty() {
        println!(
            "deny: {} packages have allowed licences and sources, none is banned",
            packages.len()
        );
        return Ok(());
    }
    for problem in &problems {
        eprintln!("deny: {problem}");
    }
    Err(format!(
        "{} package problem(s) against deny.toml",
        problems.len()
    ))
}

#[derive(Debug)]
struct Lists {
    licences: Vec<String>,
    banned: Vec<String>,
}

impl Lists {
    fn parse(toml: &str) -> Result<Lists, String> {
        let mut lists = string_lists(toml);
        let mut take = |key: &str| {
            lists
                .remove(key)
                .ok_or_else(|| format!("deny.toml has no list `{key}`"))
        };
        Ok(Lists {
            licences: take("licenses.allow")?,
            banned: take("bans.deny")?,
        })
    }

    fn problems(&self, package: &Package) -> Vec<String> {
        let id = format!("{} {}", package.name, package.version);
        let mut problems = Vec::new();
        match &package.license {
            Some(expression) => match spdx::is_satisfied(expression, &self.licences) {
                Ok(true) => {}
                Ok(false) => problems.push(format!("{id}: licence `{expression}` is not allowed")),
                Err(sentence) => problems.push(format!("{id}: {sentence}")),
            },
            None if package.has_license_file => {
                problems.push(format!(
                    "{id}: states its licence only as a file; read it, then decide"
                ));
            }
            None => problems.push(format!("{id}: states no licence")),
        }
        if self.banned.contains(&package.name) {
            problems.push(format!("{id}: this crate is banned"));
        }
        if let Some(source) = package.source.as_deref().filter(|s| *s != CRATES_IO) {
            problems.push(format!("{id}: comes from `{source}`, not from crates.io"));
        }
        problems
    }
}

/// The lists of strings in a TOML file, by `section.key`. Reads the small part of TOML that `deny.toml` keeps to.
fn string_lists(toml: &str) -> BTreeMap<String, Vec<String>> {
    let mut lists = BTreeMap::new();
    let mut section = String::new();
    let mut open: Option<(String, Vec<String>)> = None;
    for line in toml.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        let mut items = line;
        if open.is_none() {
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = name.trim().to_owned();
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let Some(value) = value.trim().strip_prefix('[') else {
                continue;
            };
            open = Some((format!("{section}.{}", key.trim()), Vec::new()));
            items = value;
        }
        if let Some((_, list)) = &mut open {
            list.extend(items.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        if items.ends_with(']') {
            lists.extend(open.take());
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "\
# comment = [\"no\"]
[licenses]
confidence-threshold = 0.9
allow = [
    \"MIT\",
    # \"GPL-3.0\",
    \"Apache-2.0 WITH LLVM-exception\",
]
[bans]
multiple-versions = \"allow\"
deny = [\"bincode\", \"openssl\"]
";

    fn package(name: &str, license: Option<&str>, source: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            has_license_file: false,
            source: source.map(str::to_owned),
            manifest: PathBuf::new(),
            dependencies: Vec::new(),
            roots: Vec::new(),
        }
    }

    #[test]
    fn reads_lists_on_one_line_and_on_many() {
        let lists = Lists::parse(TOML).unwrap();
        assert_eq!(lists.licences, ["MIT", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!(lists.banned, ["bincode", "openssl"]);
        assert!(
            Lists::parse("[licenses]\nallow = []\n")
                .unwrap_err()
                .contains("bans.deny")
        );
    }

    #[test]
    fn each_kind_of_problem_is_found() {
        let lists = Lists::parse(TOML).unwrap();
        let found = |p: Package| lists.problems(&p).join("\n");
        assert_eq!(
            found(package("a", Some("MIT OR GPL-3.0"), Some(CRATES_IO))),
            ""
        );
        assert!(found(package("a", Some("GPL-3.0"), None)).contains("not allowed"));
        assert!(found(package("a", None, None)).contains("states no licence"));
        assert!(found(package("bincode", Some("MIT"), None)).contains("banned"));
        assert!(
            found(package("a", Some("MIT"), Some("git+https://x"))).contains("not from crates.io")
        );
    }

    #[test]
    fn the_file_of_this_repository_can_be_read() {
        let text = std::fs::read_to_string(workspace::root().join("deny.toml")).unwrap();
        let lists = Lists::parse(&text).unwrap();
        assert!(lists.licences.iter().any(|l| l == "MIT"));
        assert!(lists.banned.iter().any(|b| b == "bincode"));
    }
}
