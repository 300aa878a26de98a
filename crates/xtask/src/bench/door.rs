//! The torch door: `bench --door` hands over to `bench/engines/torch_door.py`; its record becomes a part of `README.md`.

use super::{door_python, record};
use crate::{Outcome, process, workspace};
use serde_json::Value;
use std::process::Command;

/// Measures; the script reads the options and judges the bars.
pub fn run(args: &[String]) -> Outcome {
    let mut command = Command::new(door_python()?);
    command
        .arg(workspace::root().join("bench/engines/torch_door.py"))
        .args(args);
    let measured = process::run(&mut command, "bench/engines/torch_door.py");
    // A record is written though a bar was missed, and the page says what the record says.
    if args.iter().any(|word| word == "--record") {
        record::update(false)?;
    }
    measured
}

/// The models, the starts and the calls of each record, as tables.
pub fn figures(records: &[Value]) -> String {
    records.iter().map(one).collect()
}

fn one(report: &Value) -> String {
    let mut text = String::from(
        "| model, forward | eager | Oxyfuel | speed of eager's (95 %) |\n|---|---|---|---|\n",
    );
    for line in lines(&report["models"]) {
        let time = |engine: &str| {
            let ms = line["ms"][engine].as_f64();
            ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"))
        };
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            name(line),
            time("eager"),
            time("oxyfuel"),
            record::interval(&line["of_eager"]),
        ));
    }
    text.push_str(
        "\n| start | Oxyfuel | of it our compiler | torch without a compiler | Inductor |\n|---|---|---|---|---|\n",
    );
    for (part, title, base) in STARTS {
        for line in lines(&report[part]) {
            let seconds = |engine: &str| {
                let seconds = line["seconds"][engine].as_f64();
                seconds.map_or("-".to_owned(), |s| format!("{s:.2} s"))
            };
            let own = line["own"]["oxyfuel"].as_f64().filter(|s| *s > 0.0);
            text.push_str(&format!(
                "| {title}, {} | {} | {} | {} | {} |\n",
                name(line),
                seconds("oxyfuel"),
                own.map_or("-".to_owned(), |s| format!("{:.0} ms", s * 1e3)),
                seconds(base),
                seconds("inductor"),
            ));
        }
    }
    let overhead = &report["overhead"];
    if let (Some(ours), Some(above)) = (
        overhead["us"]["oxyfuel"].as_f64(),
        overhead["above_nothing_us"].as_f64(),
    ) {
        text.push_str(&format!(
            "\nA call of one op takes {ours:.1} us, {above:+.1} us to a backend that calls the same op and does nothing else; an operator of torch's inside of a plan {:+.1} us to calling it from Python.\n",
            overhead["external_above_python_us"].as_f64().unwrap_or(f64::NAN),
        ));
    }
    let machine = &report["machine"];
    text.push_str(&format!(
        "\n{}, {} threads, torch {}{}. Medians of paired rounds and of fresh processes.\n",
        machine["cpu"].as_str().unwrap_or("?"),
        machine["threads"],
        machine["torch"].as_str().unwrap_or("?"),
        commits(report),
    ));
    text
}

/// Part of the record, its title, and the engine that the bar names.
const STARTS: [(&str, &str, &str); 2] = [
    ("first", "first call", "aot_eager_decomp_partition"),
    ("warm", "warm cache", "nothing"),
];

/// The commit that was measured, where all parts are of one.
fn commits(report: &Value) -> String {
    let of = report["runs"].as_object().into_iter().flatten();
    let mut all: Vec<&str> = of.filter_map(|(_, run)| run["commit"].as_str()).collect();
    all.sort_unstable();
    all.dedup();
    match (all.as_slice(), report["mixed"] == true) {
        ([], _) => String::new(),
        ([one], false) => format!(", commit {one}"),
        _ => ", parts of different commits".to_owned(),
    }
}

fn lines(part: &Value) -> impl Iterator<Item = &Value> {
    part.as_array().into_iter().flatten()
}

fn name(line: &Value) -> &str {
    line["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_show_models_starts_calls_and_the_commit() {
        let mut report = json!({
            "machine": {"cpu": "A Chip", "threads": 2, "torch": "2.15"},
            "models": [{"name": "gpt2", "ms": {"eager": 10.0, "oxyfuel": 8.0},
                        "of_eager": {"median": 1.25, "low": 1.2, "high": 1.3}}],
            "first": [{"name": "gpt2", "own": {"oxyfuel": 0.0431},
                       "seconds": {"oxyfuel": 4.46, "aot_eager_decomp_partition": 6.1, "inductor": 35.9}}],
            "warm": [{"name": "gpt2", "own": {"oxyfuel": 0.0}, "seconds": {"oxyfuel": 3.0, "nothing": 3.9}}],
            "overhead": {"us": {"oxyfuel": 23.7}, "above_nothing_us": -7.29, "external_above_python_us": -0.18},
            "runs": {"models": {"commit": "abc"}, "first": {"commit": "abc"}},
            "mixed": false,
        });
        let text = figures(std::slice::from_ref(&report));
        for row in [
            "| gpt2 | 10.0 ms | 8.0 ms | 1.25 (1.20…1.30) |",
            "| first call, gpt2 | 4.46 s | 43 ms | 6.10 s | 35.90 s |",
            "| warm cache, gpt2 | 3.00 s | - | 3.90 s | - |",
            "A call of one op takes 23.7 us, -7.3 us to",
            "A Chip, 2 threads, torch 2.15, commit abc.",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        report["mixed"] = json!(true);
        assert!(figures(&[report]).contains("parts of different commits"));
    }
}
