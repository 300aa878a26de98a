//! `fuzz`: the long differential fuzzing, in a release binary of its own (`crates/fuzz`).

use crate::{Outcome, bench, process, revision, workspace};
use serde_json::{Value, json};

pub const HELP: &str = "\
usage: cargo xtask fuzz [--tiles N] [--graphs N] [--seed S] [--threads N] [--shard I/N] [--targets NAMES] [--limit SECONDS] [--json FILE] [--record]

Builds `target/release/oxyfuel-fuzz`, which needs nothing but itself, and runs it: random tile programs, the tile interpreter
against the code of every target of this machine, and random graphs, the graph interpreter against what the engine compiles. What
is checked follows from the seed alone. A mismatch is printed in its smallest form, as a filetest, and makes the command fail.
--record writes bench/record/fuzz.json: the command, the seed, what was counted, mismatches, digests, the commit.
docs/fuzz.md says more.
";

pub fn run(args: &[String]) -> Outcome {
    let wants_record = args.iter().any(|word| word == "--record");
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let words: Vec<&str> = words.into_iter().filter(|w| *w != "--record").collect();
    if wants_record && words.contains(&"--json") {
        return Err("--record writes its own file: leave out --json".to_owned());
    }
    let file = workspace::root().join("target/fuzz-record.json");
    let mut command = process::cargo();
    command
        .current_dir(workspace::root())
        .args(["run", "--release", "-p", "oxyfuel-fuzz", "--"])
        .args(&words);
    if !wants_record {
        return process::run(&mut command, "the fuzzer");
    }
    // What an earlier run left there is not what this one found.
    match std::fs::remove_file(&file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {e}", file.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let ran = process::run(command.arg("--json").arg(&file), "the fuzzer");
    match std::fs::read_to_string(&file) {
        // Mismatches are part of the record.
        Ok(text) => {
            let found = serde_json::from_str(&text)
                .map_err(|e| format!("the fuzzer wrote no JSON: {e}"))?;
            bench::save("fuzz", &record(&words, found), None)?;
            ran
        }
        Err(e) => ran.and(Err(format!("the fuzzer wrote nothing: {e}"))),
    }
}

/// What was found, with the words that find it again.
fn record(words: &[&str], mut found: Value) -> Value {
    found["command"] = json!(format!("cargo xtask fuzz {}", words.join(" ")));
    revision::stamp(&mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_how_to_repeat_it() {
        let found = json!({"seed": 7, "mismatches": 0, "tiles": {"digest": "ab"}});
        let record = record(&["--tiles", "10", "--seed", "7"], found);
        assert_eq!(record["command"], "cargo xtask fuzz --tiles 10 --seed 7");
        assert_eq!(record["tiles"]["digest"], "ab");
        assert!(record["commit"].is_string() && record["at"].is_string());
    }

    /// `12345` as `12,345`.
    fn grouped(n: u64) -> String {
        let digits = n.to_string();
        let parts: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .filter_map(|part| std::str::from_utf8(part).ok())
            .collect();
        parts.join(",")
    }

    #[test]
    fn the_page_has_the_figures_of_the_record() {
        let read = |path| std::fs::read_to_string(workspace::root().join(path)).unwrap();
        let (page, record) = (read("docs/fuzz.md"), read("bench/record/fuzz.json"));
        let record: Value = serde_json::from_str(&record).unwrap();
        let command = record["command"].as_str().unwrap();
        assert!(page.contains(command), "{command}");
        for kind in ["tiles", "graphs"] {
            let figure = |key: &str| grouped(record[kind][key].as_u64().unwrap());
            let counts = format!("({} comparisons)", figure("comparisons"));
            assert!(page.contains(&counts), "{kind}: {counts}");
            assert!(page.contains(&figure("cases")), "{kind}");
            assert_eq!(record[kind]["mismatches"], 0);
        }
        for target in record["targets"].as_array().unwrap() {
            let name = format!("`{}`", target.as_str().unwrap());
            assert!(page.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_record_has_a_file_of_its_own() {
        let words = ["--record", "--json", "x"].map(str::to_owned);
        assert!(run(&words).unwrap_err().contains("leave out --json"));
    }
}
