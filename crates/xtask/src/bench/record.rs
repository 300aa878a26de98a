//! What was measured, on paper: the printed table, `bench/record/`, and the figures of `README.md`.
//!
//! A record names the processor, the number of cores and the versions; nothing in it tells one machine of a kind from another.

use super::door;
use crate::args::Args;
use crate::{Outcome, blocks, workspace};
use serde_json::Value;
use std::path::PathBuf;

pub const README_HELP: &str = "\
usage: cargo xtask readme [--check]

Writes the tables of figures in README.md (between their markers) from the records under bench/record/.

  --check   change nothing; fail where the table is not what the records say
";

/// Where figures stand on the page: the records they come from, and the lines around them.
const PLACES: [(&str, Figures, [&str; 2]); 2] = [
    (
        "peers-",
        figures,
        ["<!-- figures: cargo xtask readme -->", "<!-- /figures -->"],
    ),
    (
        "torch-door-",
        door::figures,
        ["<!-- door: cargo xtask readme -->", "<!-- /door -->"],
    ),
];
/// Records to text.
type Figures = fn(&[Value]) -> String;
const FOLDER: &str = "bench/record";

/// The table that is printed and stands in a record.
pub fn table(report: &Value) -> String {
    let mut text = String::from(
        "| work | Oxyfuel us | torch door us | eager us | Inductor us | torch's own kernel us | to the better (95 %) | torch door: to the better | given outputs: to the better | torch door, given outputs | of a copy's speed | bar |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows(report) {
        let us = |name: &str| {
            row["us"][name]
                .as_f64()
                .map_or("-".to_owned(), |t| format!("{t:.1}"))
        };
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row["title"].as_str().unwrap_or_default(),
            us("oxyfuel"),
            us("door"),
            us("eager"),
            us("inductor"),
            us("library"),
            interval(&row["ratio"]["best"]),
            interval(&row["ratio_door"]["best"]),
            interval(&row["ratio_into"]["best"]),
            interval(&row["ratio_door_into"]["best"]),
            of_copy(row),
            verdict(row),
        ));
    }
    for mean in report["means"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "\nGeometric mean of {} rows without products, {}: {} (bar {}, {}).\n",
            mean["rows"],
            mean["of"].as_str().unwrap_or_default(),
            number(&mean["mean"]),
            number(&mean["bar"]),
            met(&mean["met"]),
        ));
    }
    let text_of = |v: &Value| v.as_str().unwrap_or("?").to_owned();
    text.push_str(&format!(
        "\n{}, {} cores, {} threads for every engine; oxyfuel {}, torch {}; {} rounds; commit {}, {}. A ratio is the peer's time by ours in the same round: above 1 is ours. The copy moves as many bytes, preallocated; given outputs are compared with it (bar 0.80 from 1 MiB on, where memory bounds the row): the Rust door with ours or torch's, whichever is faster, the torch door with torch's, whose tensors lie in the same memory. Arithmetic bounds a row when its operations, one multiply-add each, take longer than the copy in a loop without memory.\n",
        text_of(&report["cpu"]),
        report["cores"],
        report["threads"],
        text_of(&report["versions"]["oxyfuel"]),
        text_of(&report["versions"]["torch"]),
        report["rounds"],
        text_of(&report["commit"]),
        text_of(&report["at"]),
    ));
    text
}

/// Share of a copy's speed with given outputs; in brackets with new ones, and through the torch door. Where arithmetic bounds a row, the share of its speed too.
fn of_copy(row: &Value) -> String {
    let share = |name: &str| {
        let median = row["of_copy"][name]["median"].as_f64();
        median.map(|share| format!("{:.0} %", share * 100.0))
    };
    let (Some(into), Some(new)) = (share("oxyfuel_into"), share("oxyfuel")) else {
        return "-".to_owned();
    };
    let arithmetic = match row["of_arithmetic"]["oxyfuel_into"]["median"].as_f64() {
        Some(share) if row["memory_bound"]["oxyfuel_into"] == false => {
            format!(
                "; arithmetic bounds it: {:.0} % of its speed",
                share * 100.0
            )
        }
        _ => String::new(),
    };
    match share("door_into") {
        Some(door) => format!("{into} (new outputs {new}, torch door {door}){arithmetic}"),
        None => format!("{into} (new outputs {new}){arithmetic}"),
    }
}

fn met(met: &Value) -> &'static str {
    match met.as_bool() {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not judged: too few rounds or rows",
    }
}

/// Every bar of a row, and whether it is met.
fn verdict(row: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(bar) = row["bar"].as_f64() {
        parts.push(format!("{bar:.2} {}", met(&row["met"])));
        if row["ratio_door"].is_object() {
            parts.push(format!("door {}", met(&row["met_door"])));
        }
    }
    for (key, what) in [("met_copy", "copy"), ("met_copy_door", "door's copy")] {
        if row[key].is_boolean() {
            parts.push(format!("{what} {}", met(&row[key])));
        }
    }
    if parts.is_empty() {
        return "-".to_owned();
    }
    parts.join(", ")
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten()
}

fn number(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |r| format!("{r:.2}"))
}

pub fn interval(ratio: &Value) -> String {
    match ratio["median"].as_f64() {
        Some(median) => format!(
            "{median:.2} ({}…{})",
            number(&ratio["low"]),
            number(&ratio["high"])
        ),
        None => "-".to_owned(),
    }
}

/// Writes the record and the figures. `limits` is the report of `oxyfuel bench --json`.
pub fn write(report: &Value, limits: &Value) -> Outcome {
    let mut report = report.clone();
    if let Some(rows) = report["rows"].as_array_mut() {
        for row in rows {
            let own = limits["rows"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|r| r["name"] == row["name"]);
            if let Some(own) = own {
                for key in ["bound", "rate", "rate_into", "limit", "share"] {
                    row[key] = own[key].clone();
                }
            }
        }
    }
    let stem = stem("peers", report["cpu"].as_str().unwrap_or("unknown"));
    save(&stem, &report, Some(&table(&report)))?;
    update(false)
}

/// The name of a record of this kind and processor.
pub fn stem(prefix: &str, cpu: &str) -> String {
    format!("{prefix}-{}", slug(cpu))
}

/// Writes a record and, where there is one, the page made from it.
pub fn save(stem: &str, report: &Value, page: Option<&str>) -> Outcome {
    let folder = workspace::root().join(FOLDER);
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot make {FOLDER}: {e}"))?;
    let json =
        serde_json::to_string_pretty(report).map_err(|e| format!("writing the record: {e}"))?;
    let page = page.map(|page| ("md", page.to_owned()));
    for (ending, text) in [("json", json + "\n")].into_iter().chain(page) {
        let path = folder.join(format!("{stem}.{ending}"));
        std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        eprintln!("wrote {FOLDER}/{stem}.{ending}");
    }
    Ok(())
}

fn slug(name: &str) -> String {
    let plain: String = name
        .to_lowercase()
        .replace("(r)", "")
        .replace("(tm)", "")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    plain
        .split('-')
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

pub fn readme(args: &[String]) -> Outcome {
    let args = Args::parse(args, &["--check"])?.nothing_after_dashes()?;
    update(args.has("--check"))
}

pub fn update(check: bool) -> Outcome {
    let path = workspace::root().join("README.md");
    let old = std::fs::read_to_string(&path).map_err(|e| format!("cannot read README.md: {e}"))?;
    let mut new = old.clone();
    for (prefix, figures, markers) in PLACES {
        new = blocks::replaced("README.md", &new, markers, &figures(&records(prefix)?))?;
    }
    if new == old {
        return Ok(());
    }
    if check {
        return Err(
            "the figures of README.md are not those of bench/record: run `cargo xtask readme`"
                .to_owned(),
        );
    }
    std::fs::write(&path, new).map_err(|e| format!("cannot write README.md: {e}"))
}

/// Every record whose name begins so, in the order of names.
fn records(prefix: &str) -> Result<Vec<Value>, String> {
    let folder = workspace::root().join(FOLDER);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Ok(Vec::new());
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| {
            let name = p
                .file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default();
            name.starts_with(prefix) && name.ends_with(".json")
        })
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    };
    files.iter().map(read).collect()
}

fn figures(records: &[Value]) -> String {
    let mut text = String::from(
        "| work | eager | Inductor | Oxyfuel | ratio to the better (95 %) | share of the machine's limit |\n|---|---|---|---|---|---|\n",
    );
    for report in records {
        for row in rows(report) {
            let time = |name: &str| {
                row["us"][name]
                    .as_f64()
                    .map_or("-".to_owned(), microseconds)
            };
            let share = row["share"]
                .as_f64()
                .map_or("-".to_owned(), |s| format!("{:.0} %", s * 100.0));
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} | {share} |\n",
                row["title"].as_str().unwrap_or_default(),
                time("eager"),
                time("inductor"),
                time("oxyfuel"),
                interval(&row["ratio"]["best"]),
            ));
        }
        text.push_str(&format!(
            "\n{}, {} threads for every engine, torch {}. Medians; ratios are medians of paired rounds, above 1 is ours.\n",
            report["cpu"].as_str().unwrap_or("?"),
            report["threads"],
            report["versions"]["torch"].as_str().unwrap_or("?"),
        ));
    }
    text
}

fn microseconds(us: f64) -> String {
    if us >= 1e3 {
        format!("{:.2} ms", us / 1e3)
    } else {
        format!("{us:.1} us")
    }
}

/// The processor's name for itself.
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(
            || std::env::consts::ARCH.to_owned(),
            |(_, name)| name.trim().to_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        let ratio = json!({"median": 1.5, "low": 1.4, "high": 1.6, "pairs": 40});
        json!({
            "cpu": "A(R) Chip @ 2", "cores": 2, "threads": 2, "rounds": 40,
            "versions": {"oxyfuel": "0.1.0", "torch": "2"},
            "rows": [{"title": "softmax", "us": {"oxyfuel": 1000.0, "eager": 1500.0}, "bar": 1.0, "met": true, "share": 0.5,
                      "ratio": {"best": ratio, "eager": ratio}}],
        })
    }

    #[test]
    fn a_table_shows_what_there_is_and_a_dash_for_the_rest() {
        let text = table(&report());
        assert!(
            text.contains(
                "| softmax | 1000.0 | - | 1500.0 | - | - | 1.50 (1.40…1.60) | - | - | - | - | 1.00 met |"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_table_names_every_bar_and_the_means() {
        let mut report = report();
        let ratio = json!({"median": 0.9, "low": 0.8, "high": 1.0, "pairs": 40});
        let row = &mut report["rows"][0];
        row["ratio_door"] = json!({"best": ratio});
        row["met_door"] = json!(false);
        row["of_copy"] = json!({"oxyfuel": ratio, "oxyfuel_into": ratio, "door_into": ratio});
        row["met_copy"] = json!(true);
        row["met_copy_door"] = json!(false);
        report["means"] =
            json!([{"of": "Rust door", "rows": 1, "mean": 1.5, "bar": 1.7, "met": false}]);
        let text = table(&report);
        assert!(
            text.contains(
                "| 90 % (new outputs 90 %, torch door 90 %) | 1.00 met, door missed, copy met, door's copy missed |"
            ),
            "{text}"
        );
        assert!(
            text.contains("1 rows without products, Rust door: 1.50 (bar 1.70, missed)"),
            "{text}"
        );
    }

    #[test]
    fn figures_go_between_the_markers() {
        let (_, _, markers) = PLACES[0];
        let [begin, end] = markers;
        let page = format!("a\n{begin}\nold\n{end}\nb\n");
        let new = blocks::replaced("README.md", &page, markers, &figures(&[report()])).unwrap();
        assert!(new.starts_with("a\n") && new.ends_with("\nb\n") && !new.contains("old"));
        assert!(
            new.contains("| softmax | 1.50 ms | - | 1.00 ms | 1.50 (1.40…1.60) | 50 % |"),
            "{new}"
        );
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(
            slug("Intel(R) Xeon(R) Gold 6430 @ 2.1GHz"),
            "intel-xeon-gold-6430-2-1ghz"
        );
    }

    #[test]
    fn the_readme_is_what_the_records_say() {
        update(true).unwrap();
    }
}
