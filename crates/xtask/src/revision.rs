//! Which code was measured and when: what every record says about itself.

use crate::workspace;
use serde_json::{Value, json};
use std::process::Command;

/// What the built code is made from, as in `python/tests/judge/revision.py`; tests, pages and records are not.
const CODE: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    ":!crates/xtask",
    ":!crates/*/tests",
    "python/oxyfuel",
];

/// Writes commit and time into a report.
pub fn stamp(report: &mut Value) {
    report["commit"] = json!(commit());
    report["at"] = json!(now());
}

/// The last commit that touched the code; `+` behind it where files differ from it, `unknown` outside of a clone.
pub fn commit() -> String {
    let commit = git(&["log", "-1", "--format=%h", "--abbrev=12", "--"]);
    if commit.is_empty() {
        return "unknown".to_owned();
    }
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--"]);
    commit + if changed.is_empty() { "" } else { "+" }
}

/// Empty where git has no answer.
fn git(words: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(workspace::root()).args(words);
    said(command.args(CODE))
}

/// To the minute, UTC.
fn now() -> String {
    said(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]))
}

fn said(command: &mut Command) -> String {
    let output = command.output().ok().filter(|o| o.status.success());
    output.map_or_else(String::new, |o| {
        String::from_utf8_lossy(&o.stdout).trim().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_which_code_and_when() {
        let mut report = json!({});
        stamp(&mut report);
        let at = report["at"].as_str().unwrap();
        assert!(
            at.starts_with("20") && at.ends_with('Z') && at.len() == 17,
            "{at}"
        );
        let commit = report["commit"].as_str().unwrap();
        let hex = commit.trim_end_matches('+');
        assert!(
            commit == "unknown" || (hex.len() >= 12 && hex.chars().all(|c| c.is_ascii_hexdigit())),
            "{commit}"
        );
    }
}
