//! The rules of `ARCHITECTURE.md` that show in the sources of a crate rather than in its imports.
//!
//! - every crate root forbids unsafe code, except in [`MAY_BE_UNSAFE`];
//! - every manifest takes the workspace's lints;
//! - the environment is read at the edge alone: [`EDGE`]. Tests may read it.

use crate::deps::short;
use crate::workspace::{self, Package};
use std::path::{Path, PathBuf};

/// The only homes of `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &["runtime", "python"];

/// Where environment variables may be read: files and folders, each with its reason.
const EDGE: &[(&str, &str)] = &[
    ("crates/cli/", "a process of our own begins here"),
    ("crates/oxyfuel/", "a caller's process comes in here"),
    ("crates/python/", "a caller's process comes in here"),
    (
        "crates/runtime/src/pool.rs",
        "thread counts are the process's, not a program's",
    ),
    ("crates/testkit/", "runs inside tests alone"),
    ("crates/xtask/", "a developer's command"),
];

pub fn problems(package: &Package) -> Result<Vec<String>, String> {
    let name = short(&package.name);
    let mut problems = Vec::new();
    if !takes_workspace_lints(&read(&package.manifest)?) {
        problems.push(format!(
            "crates/{name}/Cargo.toml lacks `[lints]` with `workspace = true`"
        ));
    }
    if !MAY_BE_UNSAFE.contains(&name) {
        for file in &package.roots {
            if !forbids_unsafe(&read(file)?) {
                problems.push(format!(
                    "{} lacks `#![forbid(unsafe_code)]`",
                    relative(file)
                ));
            }
        }
    }
    if let Some(folder) = package.manifest.parent() {
        let mut files = Vec::new();
        rust_files(&folder.join("src"), &mut files)?;
        for file in files {
            let path = relative(&file);
            if !EDGE.iter().any(|(edge, _)| path.starts_with(edge))
                && let Some(line) = environment_read(&read(&file)?)
            {
                problems.push(format!(
                    "{path}:{line} reads the environment: take it as an option, or add the file to EDGE in \
                     crates/xtask/src/sources.rs with its reason"
                ));
            }
        }
    }
    Ok(problems)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace::root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// The Rust files under a folder, but those that hold tests by their name.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let stem = path
            .file_stem()
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

/// The first line (from 1) above the file's tests that reads or changes an environment variable.
fn environment_read(source: &str) -> Option<usize> {
    let code = source
        .lines()
        .take_while(|l| !l.starts_with("#[cfg(test)]"));
    let words = ["env::var", "env::set_var", "env::remove_var"];
    let reads = |l: &str| !l.trim_start().starts_with("//") && words.iter().any(|w| l.contains(w));
    code.map(reads).position(|r| r).map(|at| at + 1)
}

fn takes_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).filter(|l| !l.is_empty());
    lines.any(|l| l == "[lints]") && lines.next() == Some("workspace = true")
}

fn forbids_unsafe(source: &str) -> bool {
    source
        .lines()
        .any(|l| l.trim() == "#![forbid(unsafe_code)]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_and_lints_are_looked_for_in_the_right_words() {
        assert!(forbids_unsafe("//! Doc.\n#![forbid(unsafe_code)]\n"));
        assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n"));
        assert!(takes_workspace_lints(
            "[package]\n\n[lints]\nworkspace = true\n"
        ));
        assert!(!takes_workspace_lints(
            "[package]\nworkspace = true\n[lints.rust]\n"
        ));
    }

    #[test]
    fn the_environment_is_found_above_the_tests() {
        assert_eq!(
            environment_read("fn a() {}\nlet v = std::env::var_os(\"X\");\n"),
            Some(2)
        );
        assert_eq!(
            environment_read("// std::env::var\n#[cfg(test)]\nstd::env::var(\"X\");\n"),
            None
        );
        assert_eq!(environment_read("let dir = std::env::temp_dir();\n"), None);
    }

    #[test]
    fn every_edge_says_why() {
        assert!(
            EDGE.iter()
                .all(|(path, why)| path.starts_with("crates/") && !why.is_empty())
        );
    }
}
