//! What the command measures about itself: `oxyfuel bench --compile` and `--overhead`, recorded and judged.
//!
//! The command judges its own bars; its JSON is the record, and the page beside it is written from the record alone.

use super::{record, release_binary};
use crate::args::Args;
use crate::{Outcome, revision};
use serde_json::Value;
use std::process::Command;

/// One of the command's measurements.
#[derive(Debug)]
pub struct Own {
    flag: &'static str,
    /// Of the files of the record.
    prefix: &'static str,
    page: fn(&Value) -> String,
}

pub const COMPILE: Own = Own {
    flag: "--compile",
    prefix: "compile",
    page: compile_page,
};

pub const OVERHEAD: Own = Own {
    flag: "--overhead",
    prefix: "overhead",
    page: overhead_page,
};

/// Measures, prints, records where asked to, and fails where a bar is missed.
pub fn run(own: &Own, args: &[String]) -> Outcome {
    let args = Args::parse(args, &["--record", "--quick"])?.nothing_after_dashes()?;
    if args.has("--record") && args.has("--quick") {
        return Err("a quick run decides nothing: no record is made of it".to_owned());
    }
    let mut command = Command::new(release_binary()?);
    command.args(["bench", own.flag, "--json"]);
    command.args(args.has("--quick").then_some("--quick"));
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start the command: {e}"))?;
    // A missed bar is an exit code of 1 after the report; what is no report is another failure.
    let mut report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("`oxyfuel bench {} --json` printed no JSON: {e}", own.flag))?;
    revision::stamp(&mut report);
    let page = (own.page)(&report);
    print!("{page}");
    if args.has("--record") {
        let cpu = report["machine"]["cpu"].as_str().unwrap_or("unknown");
        record::save(&record::stem(own.prefix, cpu), &report, Some(&page))?;
    }
    // The command has named them.
    outcome(&report)
}

fn outcome(report: &Value) -> Outcome {
    match list(&report["missed"]).count() {
        0 => Ok(()),
        n => Err(super::missed(n)),
    }
}

fn compile_page(report: &Value) -> String {
    let steps = &report["lines"][0]["steps"];
    let names: Vec<&str> = list(steps).filter_map(|step| step[0].as_str()).collect();
    let mut text = String::from(
        "# Compile time\n\nFrom a graph to machine code in milliseconds: cold (the least of several first compiles of the graph, each in a process of its own), the median of repeats, and the median of each step. \
         Written by `cargo xtask bench --compile --record`.\n\n",
    );
    text.push_str(&format!(
        "| graph | nodes | kernels | cold | bar | median | {} |\n|---|{}\n",
        names.join(" | "),
        "---:|".repeat(5 + names.len())
    ));
    for line in list(&report["lines"]) {
        let steps = list(&line["steps"]).map(|step| number(&step[1], 3));
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            line["name"].as_str().unwrap_or_default(),
            line["nodes"],
            line["kernels"],
            number(&line["cold"], 2),
            bar(line, 0),
            number(&line["median"], 2),
            steps.collect::<Vec<_>>().join(" | "),
        ));
    }
    for judged in list(&report["ratios"]) {
        text.push_str(&format!(
            "\n{}: {} times as long (bar {}).\n",
            judged["what"].as_str().unwrap_or_default(),
            number(&judged["times"], 2),
            bar(judged, 1),
        ));
    }
    text + &origin(report)
}

fn overhead_page(report: &Value) -> String {
    let mut text = format!(
        "# Overhead of a call\n\n{} of {} values, microseconds a call through every way of calling it. Written by `cargo xtask bench --overhead --record`.\n\n\
         | way | median | min | max | bar |\n|---|---:|---:|---:|---:|\n",
        report["function"].as_str().unwrap_or_default(),
        report["elements"],
    );
    for line in list(&report["lines"]) {
        let us = |key: &str| {
            let seconds = line["times"][key].as_f64();
            seconds.map_or("-".to_owned(), |s| format!("{:.2}", s * 1e6))
        };
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} |\n",
            line["way"].as_str().unwrap_or_default(),
            us("median"),
            us("min"),
            us("max"),
            bar(line, 1),
        ));
    }
    text + &origin(report)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value, digits: usize) -> String {
    let number = value.as_f64();
    number.map_or("-".to_owned(), |n| format!("{n:.digits$}"))
}

/// The bar and whether it is met.
fn bar(of: &Value, digits: usize) -> String {
    let verdict = match of["met"].as_bool() {
        Some(true) => ", met",
        Some(false) => ", missed",
        None => "",
    };
    match of["bar"].is_null() {
        true => "-".to_owned(),
        false => number(&of["bar"], digits) + verdict,
    }
}

fn origin(report: &Value) -> String {
    let machine = &report["machine"];
    format!(
        "\n{}, {} cores, {} threads, target {}; commit {}, {}.\n",
        machine["cpu"].as_str().unwrap_or("?"),
        machine["cores"],
        machine["threads"],
        machine["target"].as_str().unwrap_or("?"),
        report["commit"].as_str().unwrap_or("?"),
        report["at"].as_str().unwrap_or("?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with_origin(mut report: Value) -> Value {
        report["machine"] = json!({"cpu": "A Chip", "cores": 2, "threads": 2, "target": "avx2"});
        report["commit"] = json!("abc");
        report["at"] = json!("2026-11-16T08:00Z");
        report
    }

    #[test]
    fn a_page_shows_every_line_its_bar_and_the_commit() {
        let text = compile_page(&with_origin(json!({
            "lines": [
                {"name": "softmax", "nodes": 3, "kernels": 1, "cold": 0.5, "median": 0.4, "bar": 5.0, "met": true,
                 "steps": [["emit", 0.1], ["lower", 0.2]]},
                {"name": "10000 mixed nodes", "nodes": 10000, "kernels": 9, "cold": 400.0, "median": 390.0, "bar": null,
                 "met": null, "steps": [["emit", 1.0], ["lower", 2.0]]},
            ],
            "ratios": [{"what": "two threads at once", "times": 1.6, "bar": 1.5, "met": false}],
        })));
        for row in [
            "| graph | nodes | kernels | cold | bar | median | emit | lower |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
            "| softmax | 3 | 1 | 0.50 | 5, met | 0.40 | 0.100 | 0.200 |",
            "| 10000 mixed nodes | 10000 | 9 | 400.00 | - | 390.00 | 1.000 | 2.000 |",
            "two threads at once: 1.60 times as long (bar 1.5, missed).",
            "A Chip, 2 cores, 2 threads, target avx2; commit abc, 2026-11-16T08:00Z.",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(outcome(&json!({"missed": []})).is_ok());
        assert_eq!(
            outcome(&json!({"missed": ["softmax: 6 ms, bar 5 ms"]})).unwrap_err(),
            "a bar is missed"
        );
        let text = overhead_page(&with_origin(json!({
            "function": "f", "elements": 1000,
            "lines": [{"way": "call", "times": {"median": 6.5e-7, "min": 6e-7, "max": 9e-7}, "bar": 0.7, "met": true}],
        })));
        assert!(
            text.contains("| call | 0.65 | 0.60 | 0.90 | 0.7, met |"),
            "{text}"
        );
    }
}
