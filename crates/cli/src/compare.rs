//! `bench --compare`: two reports side by side, and which differences mean anything.

use std::path::Path;

use oxyfuel_base::{Code, Error, Result, err};
use serde::Serialize;

use crate::bench::{Report, Row, json, table};
use crate::measure::{Times, seconds_text};

/// One workload in both reports, with new or with given outputs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    name: String,
    title: String,
    given_outputs: bool,
    old: f64,
    new: f64,
    /// Above 1: the new one is faster.
    ratio: f64,
    /// Whether the spread of the times leaves the difference standing.
    significant: bool,
}

pub fn compare(old: &Path, new: &Path, as_json: bool) -> Result<()> {
    let (old, new) = (read(old)?, read(new)?);
    if old.machine.cpu != new.machine.cpu || old.machine.threads != new.machine.threads {
        eprintln!(
            "note: the reports come from different machines or thread counts: ratios mean little"
        );
    }
    let rows = new.rows.iter();
    let lines: Vec<Line> = rows.flat_map(|row| lines(&old, row)).collect();
    if lines.is_empty() {
        return Err(err!(
            InvalidArgument,
            "the two reports have no workload in common"
        ));
    }
    if as_json {
        println!("{}", json(&lines)?);
        return Ok(());
    }
    let mut table = table(&["workload", "outputs", "old", "new", "ratio", "verdict"]);
    for line in &lines {
        let verdict = match (line.significant, line.ratio > 1.0) {
            (false, _) => "same",
            (true, true) => "faster",
            (true, false) => "slower",
        };
        table.add_row([
            line.title.clone(),
            if line.given_outputs { "given" } else { "new" }.to_owned(),
            seconds_text(line.old),
            seconds_text(line.new),
            format!("{:.2}", line.ratio),
            verdict.to_owned(),
        ]);
    }
    println!("{table}");
    println!("ratio: old time / new time; same: within twice the standard error of both medians");
    Ok(())
}

fn lines(old: &Report, row: &Row) -> Vec<Line> {
    let Some(before) = old.rows.iter().find(|r| r.name == row.name) else {
        return Vec::new();
    };
    let line = |given_outputs: bool, a: &Times, b: &Times| Line {
        name: row.name.clone(),
        title: row.title.clone(),
        given_outputs,
        old: a.median,
        new: b.median,
        ratio: a.median / b.median,
        significant: (a.median - b.median).abs()
            > 2.0 * (error(a).powi(2) + error(b).powi(2)).sqrt(),
    };
    vec![
        line(false, &before.compiled, &row.compiled),
        line(true, &before.compiled_into, &row.compiled_into),
    ]
}

/// Standard error of a median of normal times.
fn error(times: &Times) -> f64 {
    1.2533 * times.std / (times.calls.max(1) as f64).sqrt()
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path).map_err(|error| file_error(path, &error))?;
    serde_json::from_str(&text).map_err(|error| {
        err!(
            Syntax,
            "{} is no report of `bench --json`: {error}",
            path.display()
        )
    })
}

/// A missing file is the user's fault, another failure the machine's.
pub fn file_error(path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::FileNotFound,
        _ => Code::FileUnreadable,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_shrinks_with_calls() {
        let times = |calls| Times {
            median: 1.0,
            min: 0.9,
            max: 1.1,
            std: 0.1,
            calls,
            warm_up_calls: 1,
        };
        assert!(error(&times(100)) < error(&times(25)));
    }
}
