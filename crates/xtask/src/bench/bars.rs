//! The bars of a comparison: what a row, and all rows together, have to reach, and which of it was missed.
//!
//! | verdict | of | bar |
//! |---|---|---|
//! | `met`, `met_door` | a row's ratio to the better peer | what its definition says; 0.97 where a peer is nearly as fast as a copy |
//! | `met_copy`, `met_copy_door` | a row that memory bounds, with given outputs | 80 % of a copy's speed |
//!
//! Memory bounds a row when a copy of its bytes takes at least as long as its operations (`oxyfuel explain` counts them) take in a loop of multiply-adds without
//! memory, one each, in the same run: `memory_bound` says which it is.
//!
//! | verdict | of | bar |
//! |---|---|---|
//! | `means[].met` | all rows without products | see [`MEANS`] |
//!
//! A verdict that was not made (too few rounds, not all rows) is null, and misses nothing.

use super::contest::{PEERS, Times};
use super::stats::{self, Ratio};
use super::workload::Workload;
use serde_json::{Value, json};

/// Paired ratios that a verdict takes.
pub const ENOUGH_ROUNDS: usize = 30;

/// What is ours, its ending for the peers, the name of its ratios, and where its verdict goes.
const RATIOS: &[(&str, &str, &str, Option<&str>)] = &[
    ("oxyfuel", "", "ratio", Some("met")),
    ("oxyfuel_into", "_into", "ratio_into", None),
    ("door", "", "ratio_door", Some("met_door")),
    ("door_into", "_into", "ratio_door_into", None),
];

/// What is ours, and where the verdict on its share of a copy's speed goes: results of a row with new outputs lie in memory that was not asked for before.
const COPIES: &[(&str, Option<&str>)] = &[
    ("oxyfuel", None),
    ("oxyfuel_into", Some("met_copy")),
    ("door", None),
    ("door_into", Some("met_copy_door")),
];

/// A peer that reaches this share of a copy's speed leaves nothing to gain.
const SATURATED: f64 = 0.85;
/// The bar of 1 where it does.
const BAR_OF_SATURATED: f64 = 0.97;
/// The share of a copy's speed that a row which memory bounds has to reach.
const COPY_BAR: f64 = 0.8;

/// The row of a workload: medians, ratios, verdicts.
pub fn judged(w: &Workload, rounds: usize, bytes: u64, times: &Times) -> Value {
    // A handful of rounds decides nothing.
    let decides = rounds >= ENOUGH_ROUNDS;
    let mut row = json!({
        "name": w.name, "title": w.title, "bar": w.bar, "bytes": bytes, "plain": w.is_plain,
    });
    for (name, times) in &times.all {
        row["us"][*name] = json!(stats::median(times) / 1e3);
    }
    for &(mine, suffix, key, verdict) in RATIOS {
        let Some(mine) = times.of(mine) else {
            continue;
        };
        let mut ratios = Vec::new();
        let mut is_saturated = false;
        for name in PEERS {
            let Some(peer) = times.of(&format!("{name}{suffix}")) else {
                continue;
            };
            let ratio = Ratio::paired(peer, mine);
            row[key][name] = ratio.to_json();
            ratios.push(ratio);
            is_saturated |= times
                .copy(name)
                .is_some_and(|copy| Ratio::paired(copy, peer).median >= SATURATED);
        }
        let Some(ratio) = Ratio::to_the_better(&ratios) else {
            continue;
        };
        row[key]["best"] = ratio.to_json();
        if let (Some(bar), Some(verdict), true) = (w.bar, verdict, decides) {
            let bar = match is_saturated {
                true => bar.min(BAR_OF_SATURATED),
                false => bar,
            };
            row[verdict] = json!(ratio.meets(bar));
        }
    }
    let arithmetic = times.of("arithmetic");
    for &(name, verdict) in COPIES {
        let (Some(mine), Some(copy)) = (times.of(name), times.copy(name)) else {
            continue;
        };
        let share = Ratio::paired(copy, mine);
        row["of_copy"][name] = share.to_json();
        let memory_bound = arithmetic.is_none_or(|least| Ratio::paired(copy, least).median >= 1.0);
        row["memory_bound"][name] = json!(memory_bound);
        if let Some(least) = arithmetic {
            row["of_arithmetic"][name] = Ratio::paired(least, mine).to_json();
        }
        if let (Some(verdict), true, true) = (verdict, decides, memory_bound) {
            row[verdict] = json!(share.meets(COPY_BAR));
        }
    }
    row
}

/// Name, key of the ratios, bar.
const MEANS: &[(&str, &str, f64)] = &[
    ("Rust door", "ratio", 1.7),
    ("torch door", "ratio_door", 1.7),
    ("Rust door, given outputs", "ratio_into", 1.3),
    ("torch door, given outputs", "ratio_door_into", 1.3),
];

/// Geometric means of the ratios to the better peer, over the rows without products; judged where these are all rows in enough rounds.
pub fn means(rows: &[Value], decides: bool) -> Value {
    let mean = |&(name, key, bar): &(&str, &str, f64)| {
        let plain = rows.iter().filter(|row| row["plain"] == true);
        let ratios: Vec<f64> = plain
            .filter_map(|row| row[key]["best"]["median"].as_f64())
            .collect();
        stats::geometric_mean(&ratios).map(|mean| {
            let met = decides.then_some(mean >= bar);
            json!({"of": name, "rows": ratios.len(), "mean": mean, "bar": bar, "met": met})
        })
    };
    MEANS.iter().filter_map(mean).collect()
}

/// Verdict of a row, what it is about, and where its number is.
const VERDICTS: &[(&str, &str, &str, &str)] = &[
    ("met", "ratio to the better peer", "ratio", "best"),
    (
        "met_door",
        "torch door: ratio to the better peer",
        "ratio_door",
        "best",
    ),
    (
        "met_copy",
        "given outputs: of a copy's speed",
        "of_copy",
        "oxyfuel_into",
    ),
    (
        "met_copy_door",
        "torch door, given outputs: of a copy's speed",
        "of_copy",
        "door_into",
    ),
];

/// A sentence for every bar that the report missed.
pub fn missed(report: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for row in report["rows"].as_array().into_iter().flatten() {
        for &(verdict, what, key, of) in VERDICTS {
            if row[verdict] == false {
                let number = row[key][of]["median"].as_f64().unwrap_or(f64::NAN);
                let title = row["title"].as_str().unwrap_or_default();
                all.push(format!("{title}: {what} {number:.2}"));
            }
        }
    }
    for mean in report["means"].as_array().into_iter().flatten() {
        if mean["met"] == false {
            all.push(format!(
                "geometric mean, {}: {:.2}, bar {:.2}",
                mean["of"].as_str().unwrap_or_default(),
                mean["mean"].as_f64().unwrap_or(f64::NAN),
                mean["bar"].as_f64().unwrap_or(f64::NAN),
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::workload::workload;
    use super::*;

    fn times(all: &[(&'static str, f64)]) -> Times {
        Times {
            all: all.iter().map(|&(n, t)| (n, vec![t; 30])).collect(),
        }
    }

    const BASE: [(&str, f64); 8] = [
        ("oxyfuel", 100.0),
        ("oxyfuel_into", 50.0),
        ("door", 102.0),
        ("eager", 300.0),
        ("inductor", 100.0),
        ("copy", 45.0),
        ("torch_copy", 45.0),
        ("door_into", 58.0),
    ];

    #[test]
    fn a_row_is_judged_by_ratios_and_by_a_copy() {
        let w = workload("add-relu-mul-10m");
        let row = judged(&w, 30, 8 << 20, &times(&BASE));
        assert_eq!(row["met"], true);
        assert_eq!(row["met_door"], false);
        assert_eq!(row["met_copy"], true);
        assert_eq!(row["of_copy"]["oxyfuel_into"]["median"], 0.9);
        assert_eq!(row["met_copy_door"], false);
        // A peer at 85 % of a copy's speed lowers the bar to 0.97.
        let mut near = BASE;
        near[5].1 = 90.0;
        near[6].1 = 91.0;
        let row = judged(&w, 30, 8 << 20, &times(&near));
        assert_eq!(row["met_door"], true);
        // Where its operations take longer than the copy, the copy is no bar.
        let mut busy = BASE.to_vec();
        busy.push(("arithmetic", 46.0));
        let row_of_arithmetic = judged(&w, 30, 8 << 20, &times(&busy));
        assert!(row_of_arithmetic["met_copy"].is_null());
        assert_eq!(row_of_arithmetic["memory_bound"]["oxyfuel_into"], false);
        assert_eq!(
            row_of_arithmetic["of_arithmetic"]["oxyfuel_into"]["median"],
            0.92
        );
        busy[8].1 = 44.0;
        assert_eq!(judged(&w, 30, 8 << 20, &times(&busy))["met_copy"], true);
        let few = judged(&w, 5, 8 << 20, &times(&BASE));
        assert!(few["met"].is_null() && few["met_copy"].is_null());
        let all = means(&[row.clone(), row.clone()], true);
        assert_eq!(all[0]["of"], "Rust door");
        assert_eq!(all[0]["mean"], 1.0);
        assert_eq!(all[0]["met"], false);
        assert!(means(&[row], false)[0]["met"].is_null());
    }

    #[test]
    fn torchs_own_kernel_is_a_peer_like_the_others() {
        let mut with = BASE.to_vec();
        with.push(("library", 90.0));
        let row = judged(&workload("adamw"), 30, 8 << 20, &times(&with));
        assert_eq!(row["ratio"]["best"]["median"], 0.9);
        assert_eq!(row["met"], false);
    }

    #[test]
    fn every_missed_bar_is_a_sentence() {
        let row = judged(&workload("add-relu-mul-10m"), 30, 8 << 20, &times(&BASE));
        let report = json!({"rows": [row.clone()], "means": means(&[row], true)});
        assert_eq!(
            missed(&report),
            [
                "relu(x+b)*2, 10M: torch door: ratio to the better peer 0.98",
                "relu(x+b)*2, 10M: torch door, given outputs: of a copy's speed 0.78",
                "geometric mean, Rust door: 1.00, bar 1.70",
                "geometric mean, torch door: 0.98, bar 1.70",
            ]
        );
        let fine = json!({"rows": [{"met": true, "met_copy": null}], "means": [{"met": null}]});
        assert!(missed(&fine).is_empty());
    }
}
