//! The torch door's kernels and small graphs, kernels of a user's in it, and what the host pays for a call.

use super::records::{Field, Records, named};
use super::words::{self, Bar, Verdict, so_many, tenths, times_between};

const INDEXER: &str = "gpu-pq-indexer";
/// Kernels, and microseconds of a single call as one graph.
const INDEXER_BARS: (u32, u32) = (10, 120);
/// Places in a list of times: calls one behind the other, and single calls.
const STREAM: usize = 1;
const WALL: usize = 2;
const OURS: &str = "oxyfuel reduce-overhead";
const THEIRS: &str = "inductor reduce-overhead";

// ---- small graphs ----------------------------------------------------------------------------------------------------

pub fn small_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let rows = records.get("small")?.rows()?;
    let (mut singles, mut streams, mut missed) = (Vec::new(), Vec::new(), Vec::new());
    let mut least = None::<(f64, &str)>;
    for row in &rows {
        let title = row.at(&["title"])?.text()?;
        let single = ratio(row, "wall")?[0];
        singles.push(single);
        streams.push(ratio(row, "stream")?[0]);
        if least.is_none_or(|(least, _)| single < least) {
            least = Some((single, title));
        }
        for sentence in row.at(&["missed"])?.texts()? {
            missed.push(format!("{title}: {sentence}"));
        }
    }
    let what = format!(
        "kernels and small graphs in the torch door under `reduce-overhead`, {}",
        so_many(rows.len(), "row")
    );
    let bar = "Inductor's speed for single calls and one behind the other, no input copied; each";
    let mut bars = vec![match least {
        None => Bar::open(&what, bar, "the record has no row".to_owned()),
        Some((least, title)) => Bar {
            what,
            bar: bar.to_owned(),
            reached: format!(
                "geometric mean {:.2} and {:.2}, least single call {least:.2} ({title})",
                words::geometric_mean(&singles),
                words::geometric_mean(&streams)
            ),
            verdict: Verdict::of_sentences(&missed),
        },
    }];
    bars.push(indexer(&rows)?);
    Ok(bars)
}

/// The PQ indexer as tensor operators.
fn indexer(rows: &[Field<'_>]) -> Result<Bar, String> {
    let (most, slowest) = INDEXER_BARS;
    let what = "PQ indexer as tensor operators in the torch door";
    let bar = format!("{most} kernels; {slowest} us wall as one graph");
    let Some(row) = named(rows, INDEXER) else {
        let why = "the record has no such row".to_owned();
        return Ok(Bar::open(what, &bar, why));
    };
    let said = row.at(&["missed"])?.texts()?;
    let of_these = ["kernels with graphs off", "us as one graph", "differ"];
    let missed: Vec<String> = said
        .into_iter()
        .filter(|s| of_these.iter().any(|w| s.contains(w)))
        .map(str::to_owned)
        .collect();
    let inductor = us(row, THEIRS, WALL)?;
    Ok(Bar {
        what: what.to_owned(),
        bar,
        reached: format!(
            "{} kernels; {} us (Inductor {})",
            row.at(&["kernels", "oxyfuel default"])?.number()?,
            tenths(us(row, OURS, WALL)?),
            tenths(inductor)
        ),
        verdict: Verdict::of_sentences(&missed),
    })
}

pub fn small(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("small")?;
    let mut text = words::facts(&record, "small", links)?;
    text.push_str(&format!("\n{}", words::bars(&small_bars(records)?)));
    text.push_str(
        "\n| | ours, one behind the other | Inductor | eager | ours, single calls | Inductor | Inductor / ours, single calls | one behind the other | kernels | verdict |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &record.rows()? {
        let missed: Vec<String> = row
            .at(&["missed"])?
            .texts()?
            .into_iter()
            .map(str::to_owned)
            .collect();
        let time = |engine: &str, place: usize| us(row, engine, place).map(tenths);
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.at(&["title"])?.text()?,
            time(OURS, STREAM)?,
            time(THEIRS, STREAM)?,
            time("eager", STREAM)?,
            time(OURS, WALL)?,
            time(THEIRS, WALL)?,
            times_between(ratio(row, "wall")?),
            times_between(ratio(row, "stream")?),
            row.at(&["kernels", "oxyfuel default"])?.number()?,
            Verdict::of_sentences(&missed).words(),
        ));
    }
    Ok(text)
}

fn ratio(row: &Field<'_>, what: &str) -> Result<[f64; 3], String> {
    row.at(&["ratios", &format!("reduce-overhead, {what}")])?
        .interval()
}

fn us(row: &Field<'_>, engine: &str, place: usize) -> Result<f64, String> {
    Ok(row.at(&["us", engine])?.interval()?[place])
}

// ---- kernels of a user's ---------------------------------------------------------------------------------------------

/// The rows that have times, in a record of kernels of a user's; the others say whether something is as in eager.
fn timed<'r>(record: &Field<'r>) -> Result<Vec<Field<'r>>, String> {
    let rows = record.rows()?;
    Ok(rows
        .into_iter()
        .filter(|r| r.find("us").is_some())
        .collect())
}

pub fn custom_bar(records: &Records) -> Result<Bar, String> {
    let record = records.get("custom")?;
    let mut missed = Vec::new();
    for row in record.rows()? {
        if !row.at(&["passed"])?.flag()? {
            missed.push(row.at(&["name"])?.text()?.to_owned());
        }
    }
    let (least, most) = shares(&record)?;
    Ok(Bar {
        what: "kernels of a user's inside of graphs, their time by that outside".to_owned(),
        bar: "0.98 to 1.02, each".to_owned(),
        reached: format!("{least:.3} to {most:.3}"),
        verdict: Verdict::of_sentences(&missed),
    })
}

fn shares(record: &Field<'_>) -> Result<(f64, f64), String> {
    let mut shares = Vec::new();
    for row in timed(record)? {
        for mode in ["default", "reduce-overhead"] {
            shares.push(row.at(&["share_of_outside", mode])?.number()?);
        }
    }
    words::ends(shares).ok_or_else(|| "h200-custom.json has no row with times".to_owned())
}

pub fn custom(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("custom")?;
    let mut text = words::facts(&record, "custom", links)?;
    text.push_str(
        "\n| | outside | `default` | `reduce-overhead` | verdict |\n|---|---|---|---|---|\n",
    );
    for row in record.rows()? {
        let verdict = Verdict::of(row.at(&["passed"])?.flag()?);
        let name = row.at(&["name"])?.text()?;
        if row.find("us").is_none() {
            text.push_str(&format!("| {name} | | | | {} |\n", verdict.words()));
            continue;
        }
        let inside = |mode: &str| {
            let us = tenths(row.at(&["us", mode])?.number()?);
            let share = row.at(&["share_of_outside", mode])?.number()?;
            Ok::<_, String>(format!("{us} us ({share:.3})"))
        };
        text.push_str(&format!(
            "| {name} | {} us | {} | {} | {} |\n",
            tenths(row.at(&["us", "outside"])?.number()?),
            inside("default")?,
            inside("reduce-overhead")?,
            verdict.words()
        ));
    }
    text.push_str(&format!("\n{}", words::bars(&[custom_bar(records)?])));
    Ok(text)
}

/// The sentence of the torch door's page.
pub fn custom_sentence(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("custom")?;
    let (least, most) = shares(&record)?;
    Ok(format!(
        "Inside of a graph they take {least:.3} to {most:.3} of the time that they take outside ({}; [record]({links}h200.md)).\n",
        words::machine_and_code(&record)?
    ))
}

// ---- the host --------------------------------------------------------------------------------------------------------

/// A bar of the host's: its name in the record, what it is about, and where the figure stands.
struct Host {
    key: &'static str,
    what: &'static str,
    group: usize,
    figure: Figure,
}

#[derive(Clone, Copy)]
enum Figure {
    /// Of 20 kernels in the Rust door.
    Plan(&'static str),
    /// Of 20 kernels of this side in the torch door, above a backend that only makes the results.
    Above(u32, &'static str),
    /// A replay above a launch of the driver's.
    Replay,
    TorchReplay,
    /// No figure: results are eager's.
    Results,
}

/// What bars of the host are about, together: for a table of all, and for a line.
const GROUPS: [(&str, &str, &str); 4] = [
    (
        "20 kernels in `default`",
        "20 kernels that need each other, asked for in `default`: small ones and launches of their own in the Rust door, then in the torch door",
        "60 us",
    ),
    (
        "20 kernels, `cudagraphs=off`",
        "the same launched one by one, `cudagraphs=off`",
        "60 us",
    ),
    (
        "a replay above one launch of the driver's",
        "a replay above one launch of the driver's, in the Rust door and in the torch door",
        "10 us",
    ),
    ("results", "results", "eager's"),
];

const HOST: [Host; 11] = [
    host(
        "plan",
        "the Rust door, small kernels",
        0,
        Figure::Plan("ours"),
    ),
    host(
        "plan apart",
        "the Rust door, each a launch of its own",
        0,
        Figure::Plan("apart"),
    ),
    host(
        "torch plan",
        "the torch door, small kernels",
        0,
        Figure::Above(64, "ours default"),
    ),
    host(
        "torch plan apart",
        "the torch door, each a launch of its own",
        0,
        Figure::Above(256, "ours default"),
    ),
    host(
        "plan one by one",
        "the Rust door, small kernels",
        1,
        Figure::Plan("single"),
    ),
    host(
        "plan apart one by one",
        "the Rust door, each a launch of its own",
        1,
        Figure::Plan("apart_single"),
    ),
    host(
        "torch plan one by one",
        "the torch door, small kernels",
        1,
        Figure::Above(64, "ours one by one"),
    ),
    host(
        "torch plan apart one by one",
        "the torch door, each a launch of its own",
        1,
        Figure::Above(256, "ours one by one"),
    ),
    host("replay", "the Rust door", 2, Figure::Replay),
    host("torch replay", "the torch door", 2, Figure::TorchReplay),
    host("torch results", "20 and fewer kernels", 3, Figure::Results),
];

const fn host(key: &'static str, what: &'static str, group: usize, figure: Figure) -> Host {
    Host {
        key,
        what,
        group,
        figure,
    }
}

impl Host {
    fn judged(&self, record: &Field<'_>) -> Result<Bar, String> {
        let (group, _, bar) = GROUPS[self.group];
        let what = format!("{group}: {}", self.what);
        let Some(met) = record.at(&["met"])?.find(self.key) else {
            let why = "it was not measured".to_owned();
            return Ok(Bar::open(&what, bar, why));
        };
        Ok(Bar {
            what,
            bar: bar.to_owned(),
            reached: match self.figure(record)? {
                Some(us) => format!("{us:.1} us"),
                None => "-".to_owned(),
            },
            verdict: Verdict::of(met.flag()?),
        })
    }

    fn figure(&self, record: &Field<'_>) -> Result<Option<f64>, String> {
        let launch = || rust_row(record, 1)?.at(&["driver"])?.number();
        let above = |side: u32, engine: &str| {
            torch_row(record, 20, side)?
                .at(&[engine, "above"])?
                .number()
        };
        Ok(match self.figure {
            Figure::Plan(key) => Some(rust_row(record, 20)?.at(&[key])?.number()?),
            Figure::Above(side, engine) => Some(above(side, engine)?),
            Figure::Replay => Some(rust_row(record, 20)?.at(&["replay"])?.number()? - launch()?),
            Figure::TorchReplay => Some(above(64, "ours reduce-overhead")? - launch()?),
            Figure::Results => None,
        })
    }
}

fn rust_row<'r>(record: &Field<'r>, kernels: u32) -> Result<Field<'r>, String> {
    found(
        record.rows()?,
        &[("kernels", kernels)],
        "h200-host.json > rows",
    )
}

fn torch_row<'r>(record: &Field<'r>, kernels: u32, side: u32) -> Result<Field<'r>, String> {
    found(
        record.at(&["torch_door"])?.list()?,
        &[("kernels", kernels), ("side", side)],
        "h200-host.json > torch_door",
    )
}

fn found<'r>(
    rows: Vec<Field<'r>>,
    wanted: &[(&str, u32)],
    place: &str,
) -> Result<Field<'r>, String> {
    let is = |row: &Field<'_>, (key, value): &(&str, u32)| {
        row.at(&[key]).and_then(|f| f.number()) == Ok(f64::from(*value))
    };
    rows.into_iter()
        .find(|row| wanted.iter().all(|w| is(row, w)))
        .ok_or_else(|| {
            let words: Vec<String> = wanted.iter().map(|(k, v)| format!("{k} {v}")).collect();
            format!("{place} has no row with {}", words.join(", "))
        })
}

pub fn host_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let record = records.get("host")?;
    HOST.iter().map(|bar| bar.judged(&record)).collect()
}

/// The same in a line each of what they are about. Results have no figure, and stand in the table of all.
pub fn host_summary(records: &Records) -> Result<Vec<Bar>, String> {
    let record = records.get("host")?;
    let mut lines = Vec::new();
    for (group, (_, what, bar)) in GROUPS.into_iter().enumerate().take(3) {
        let mut judged = Vec::new();
        for host in HOST.iter().filter(|h| h.group == group) {
            let mut bar = host.judged(&record)?;
            bar.verdict = match bar.verdict {
                Verdict::Missed(_) => Verdict::Missed(host.what.to_owned()),
                Verdict::Open(why) => Verdict::Open(format!("{}: {why}", host.what)),
                Verdict::Met => Verdict::Met,
            };
            judged.push(bar);
        }
        lines.push(Bar {
            bar: bar.to_owned(),
            ..words::joined(what, &judged)
        });
    }
    Ok(lines)
}

pub fn host_tables(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("host")?;
    let mut text = words::facts(&record, "host", links)?;
    text.push_str(&format!("\n{}", words::bars(&host_bars(records)?)));
    text.push_str(
        "\nThe Rust door:\n\n| kernels | ours | as one graph | one by one | apart | apart, one by one | as many launches by the driver itself |\n|---|---|---|---|---|---|---|\n",
    );
    for row in record.rows()? {
        let us = |key: &str| row.at(&[key])?.number();
        let both = |asked: &str, done: &str| {
            Ok::<_, String>(format!("{:.1} ({:.1})", us(asked)?, us(done)?))
        };
        text.push_str(&format!(
            "| {} | {} | {:.1} | {} | {} | {} | {:.1} |\n",
            us("kernels")?,
            both("ours", "done")?,
            us("replay")?,
            both("single", "single_done")?,
            both("apart", "apart_done")?,
            both("apart_single", "apart_single_done")?,
            us("driver")?,
        ));
    }
    let rows = record.at(&["torch_door"])?.list()?;
    if rows.is_empty() {
        return Ok(text);
    }
    text.push_str(
        "\nThe torch door:\n\n| kernels | ours | ours, one by one | Inductor | ours, `reduce-overhead` | Inductor, `reduce-overhead` | nothing |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let side = row.at(&["side"])?.number()?;
        text.push_str(&format!(
            "| {}, {side} x {side}",
            row.at(&["kernels"])?.number()?
        ));
        for engine in [
            "ours default",
            "ours one by one",
            "inductor default",
            "ours reduce-overhead",
            "inductor reduce-overhead",
            "nothing",
        ] {
            let us = |key: &str| row.at(&[engine, key])?.number();
            text.push_str(&format!(" | {:.1} ({:.1})", us("asked")?, us("done")?));
        }
        text.push_str(" |\n");
    }
    Ok(text)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn head(mut record: Value) -> Value {
        for (key, value) in [
            ("gpu", "NVIDIA H200"),
            ("commit", "0123456789ab"),
            ("driver", "580"),
        ] {
            record[key] = json!(value);
        }
        record
    }

    pub fn small_record() -> Value {
        let row = |name: &str, single: f64| {
            json!({
                "name": name, "title": name, "missed": [], "right": true, "kernels": {"oxyfuel default": 8},
                "us": {"eager": [1, 90, 95], "oxyfuel reduce-overhead": [1, 50, 110.5], "inductor reduce-overhead": [1, 60, 186]},
                "ratios": {"reduce-overhead, wall": [single, 1.0, 3.0], "reduce-overhead, stream": [2.0, 1.9, 2.1]},
            })
        };
        head(json!({"rows": [row(INDEXER, 4.0), row("softmax", 1.0)]}))
    }

    pub fn custom_record() -> Value {
        head(json!({"rows": [
            {"name": "a kernel", "passed": true, "us": {"outside": 100.0, "default": 101.0, "reduce-overhead": 99.0},
             "share_of_outside": {"default": 1.01, "reduce-overhead": 0.99}},
            {"name": "strides", "passed": true},
        ]}))
    }

    pub fn host_record() -> Value {
        let row = |kernels: u32| {
            json!({"kernels": kernels, "ours": 2.0, "done": 20.0, "single": 9.0, "single_done": 20.0, "apart": 3.0, "apart_done": 30.0,
                   "apart_single": 70.0, "apart_single_done": 80.0, "replay": 1.5, "driver": 4.5})
        };
        let torch = |kernels: u32, side: u32| {
            let mut row = json!({"kernels": kernels, "side": side, "right": true});
            for engine in [
                "ours default",
                "ours one by one",
                "ours reduce-overhead",
                "inductor default",
                "inductor reduce-overhead",
                "nothing",
            ] {
                row[engine] = json!({"asked": 30.0, "done": 40.0, "above": 8.0});
            }
            row
        };
        let met: serde_json::Map<String, Value> = HOST
            .iter()
            .map(|h| (h.key.to_owned(), json!(h.key != "plan apart one by one")))
            .collect();
        head(
            json!({"rows": [row(1), row(20)], "torch_door": [torch(20, 64), torch(20, 256)], "met": met}),
        )
    }

    fn with(name: &'static str, record: Value) -> Records {
        let mut records = Records::default();
        records.put(name, record);
        records
    }

    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn small_graphs_are_judged_by_what_the_program_missed() {
        let mut record = small_record();
        has(
            &small(&with("small", record.clone()), "").unwrap(),
            &[
                "2 rows | Inductor's speed for single calls and one behind the other, no input copied; each | geometric mean 2.00 and 2.00, least single call 1.00 (softmax) | met |",
                "| 10 kernels; 120 us wall as one graph | 8 kernels; 110.5 us (Inductor 186.0) | met |",
                "| softmax | 50.0 | 60.0 | 90.0 | 110.5 | 186.0 | 1.000 (1.000 to 3.000) | 2.000 (1.900 to 2.100) | 8 | met |",
            ],
        );
        record["rows"][0]["missed"] = json!(["120.5 us as one graph, for at most 120"]);
        record["rows"][1]["missed"] = json!(["single calls run at 0.9"]);
        has(
            &small(&with("small", record), "").unwrap(),
            &[
                "| **missed**: gpu-pq-indexer: 120.5 us as one graph, for at most 120; softmax: single calls run at 0.9 |",
                "| 8 kernels; 110.5 us (Inductor 186.0) | **missed**: 120.5 us as one graph, for at most 120 |",
            ],
        );
    }

    #[test]
    fn kernels_of_a_users_have_the_programs_verdict() {
        let mut record = custom_record();
        has(
            &custom(&with("custom", record.clone()), "").unwrap(),
            &[
                "torch not in the record",
                "| a kernel | 100.0 us | 101.0 us (1.010) | 99.0 us (0.990) | met |",
                "| strides | | | | met |",
                "| 0.98 to 1.02, each | 0.990 to 1.010 | met |",
            ],
        );
        record["rows"][1]["passed"] = json!(false);
        let records = with("custom", record);
        has(
            &custom(&records, "").unwrap(),
            &["0.990 to 1.010 | **missed**: strides |"],
        );
        has(
            &custom_sentence(&records, "../").unwrap(),
            &["they take 0.990 to 1.010 of the time", "(../h200.md)"],
        );
    }

    #[test]
    fn bars_of_the_host_are_those_of_the_record() {
        let mut record = host_record();
        let records = with("host", record.clone());
        has(
            &host_tables(&records, "").unwrap(),
            &[
                "the Rust door, small kernels | 60 us | 2.0 us | met |",
                "the Rust door, each a launch of its own | 60 us | 70.0 us | **missed** |",
                "| 10 us | -3.0 us | met |",
                "| 10 us | 3.5 us | met |",
                "| 20 | 2.0 (20.0) | 1.5 | 9.0 (20.0) | 3.0 (30.0) | 70.0 (80.0) | 4.5 |",
                "| 20, 256 x 256 | 30.0 (40.0) |",
            ],
        );
        let summary = words::bars(&host_summary(&records).unwrap());
        has(
            &summary,
            &[
                "| 60 us | 2.0 us; 3.0 us; 8.0 us; 8.0 us | met |",
                "| **missed**: the Rust door, each a launch of its own |",
            ],
        );
        // Without torch its door is not judged, and the rest is.
        record["torch_door"] = json!([]);
        let met = record["met"].as_object_mut().unwrap();
        met.retain(|key, _| !key.starts_with("torch"));
        let records = with("host", record);
        let text = host_tables(&records, "").unwrap();
        has(&text, &["| 60 us | - | not judged: it was not measured |"]);
        assert!(!text.contains("The torch door:"), "{text}");
        let summary = words::bars(&host_summary(&records).unwrap());
        has(
            &summary,
            &["not judged: the torch door, small kernels: it was not measured; the torch door"],
        );
    }
}
