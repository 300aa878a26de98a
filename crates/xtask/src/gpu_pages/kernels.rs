//! Kernels of the Rust door beside eager, Inductor and a copy: what `gpu-bench` records.

use super::records::{Field, Records, named};
use super::words::{
    self, Bar, Verdict, count, percent, percent_between, so_many, tenths, whole_percent,
};

/// The workloads of the third proof.
const PROOFS: &[&str] = &[
    "gpu-matmul-bf16-4096",
    "gpu-matmul-bf16-8192",
    "gpu-add-relu-mul-2e28",
    "gpu-mxint8-decode",
    "gpu-softmax-bf16",
];
const INDEXER: &str = "gpu-pq-indexer";
/// Milliseconds from a graph to PTX, and the least mean over the better of eager and Inductor: the bars that no row has.
const COMPILE_MS: f64 = 5.0;
const MEAN: f64 = 1.15;

/// Every bar of a row, how far it came, and the verdict that `gpu-bench` gave.
fn row_bars(row: &Field<'_>) -> Result<Bar, String> {
    let bars = row.at(&["bar"])?;
    let (mut asked, mut reached) = (Vec::new(), Vec::new());
    let least = |key: &str| bars.find(key).map(|b| b.number()).transpose();
    if let Some(bar) = least("eager")? {
        asked.push(format!("{} of eager's speed", whole_percent(bar)));
        reached.push(percent_between(ratio(row, "eager")?));
    }
    if let Some(bar) = least("better")? {
        asked.push(format!(
            "{} of the better of eager and Inductor",
            whole_percent(bar)
        ));
        reached.push(match better(row)? {
            Some((peer, ratio)) => format!("{}, {peer}", percent_between(ratio)),
            None => "-".to_owned(),
        });
    }
    if let Some(bar) = least("copy")? {
        asked.push(format!("{} of a copy", whole_percent(bar)));
        reached.push(percent_between(ratio(row, "copy")?));
    }
    if let Some(bar) = least("kernels")? {
        asked.push(format!("{} kernels", count(bar)));
        reached.push(format!("{} kernels", count(number(row, &["kernels"])?)));
    }
    if let Some(bar) = least("one_graph_us")? {
        asked.push(format!("{} us wall as one graph", count(bar)));
        reached.push(format!(
            "{} us",
            tenths(number(row, &["wall_us", "replay"])?)
        ));
    }
    Ok(Bar {
        what: row.at(&["title"])?.text()?.to_owned(),
        bar: asked.join("; "),
        reached: reached.join("; "),
        verdict: verdict(row)?,
    })
}

/// What `gpu-bench` says of a row.
fn verdict(row: &Field<'_>) -> Result<Verdict, String> {
    let sentences = missed(row)?;
    let open = row.at(&["not_judged"])?.texts()?;
    if sentences.is_empty() && !open.is_empty() {
        return Ok(Verdict::Open(format!(
            "without a peer for {}",
            open.join(", ")
        )));
    }
    Ok(Verdict::of_sentences(&sentences))
}

fn missed(row: &Field<'_>) -> Result<Vec<String>, String> {
    let mut sentences: Vec<String> = row
        .at(&["missed"])?
        .texts()?
        .into_iter()
        .map(str::to_owned)
        .collect();
    if !row.at(&["right"])?.flag()? {
        sentences.push("results are wrong".to_owned());
    }
    Ok(sentences)
}

/// The five workloads of the third proof, and how long compiling them takes.
pub fn proof_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let rows = records.get("proofs")?.rows()?;
    let (mut bars, mut compiles) = (Vec::new(), Vec::new());
    for name in PROOFS {
        match named(&rows, name) {
            Some(row) => {
                bars.push(row_bars(row)?);
                compiles.push(number(row, &["compile_us"])? / 1e3);
            }
            None => bars.push(lacking(name)),
        }
    }
    if let Some((least, most)) = words::ends(compiles.iter().copied()) {
        bars.push(Bar {
            what: "compile, cold, to PTX text, of these rows".to_owned(),
            bar: format!("{COMPILE_MS:.0} ms"),
            reached: format!("{least:.1} to {most:.1} ms"),
            verdict: Verdict::of(most <= COMPILE_MS),
        });
    }
    Ok(bars)
}

/// What rows with bars come to together, and the indexer.
pub fn summary_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let rows = records.get("proofs")?.rows()?;
    let mut bars = beside_torch(&with_bar(&rows, "better"))?;
    bars.extend(beside_a_copy(&with_bar(&rows, "copy"))?);
    bars.push(match named(&rows, INDEXER) {
        Some(row) => row_bars(row)?,
        None => lacking(INDEXER),
    });
    Ok(bars)
}

fn with_bar<'a, 'r>(rows: &'a [Field<'r>], key: &str) -> Vec<&'a Field<'r>> {
    let has = |row: &&Field<'_>| row.find("bar").and_then(|b| b.find(key)).is_some();
    rows.iter().filter(has).collect()
}

/// Rows whose bar is the better of eager and Inductor: each of them, and their geometric mean.
fn beside_torch(rows: &[&Field<'_>]) -> Result<Vec<Bar>, String> {
    let (mut ratios, mut least) = (Vec::new(), None::<(f64, &str)>);
    for row in rows {
        if let Some((_, [ratio, ..])) = better(row)? {
            ratios.push(ratio);
            if least.is_none_or(|(least, _)| ratio < least) {
                least = Some((ratio, row.at(&["title"])?.text()?));
            }
        }
    }
    let of = so_many(rows.len(), "row");
    let what = format!(
        "{of} of relu, gelu, MXINT8, softmax, norms and sums, by the better of eager and Inductor"
    );
    let bar = "1.0, each";
    let (Some((least, title)), true) = (least, ratios.len() == rows.len()) else {
        let why = "eager or Inductor is not in every row".to_owned();
        return Ok(vec![Bar::open(&what, bar, why)]);
    };
    let mean = words::geometric_mean(&ratios);
    Ok(vec![
        Bar {
            what,
            bar: bar.to_owned(),
            reached: format!("least {least:.3} ({title})"),
            verdict: verdict_by(rows, &["eager's speed", "inductor's speed"])?,
        },
        Bar {
            what: format!("their geometric mean, {of}"),
            bar: format!("{MEAN}"),
            reached: format!("{mean:.3}"),
            verdict: Verdict::of(mean >= MEAN),
        },
    ])
}

/// Rows whose bar is a copy.
fn beside_a_copy(rows: &[&Field<'_>]) -> Result<Option<Bar>, String> {
    let mut shares = Vec::new();
    for row in rows {
        shares.push(ratio(row, "copy")?[0]);
    }
    let Some((least, most)) = words::ends(shares) else {
        return Ok(None);
    };
    let bar = rows[0].at(&["bar", "copy"])?.number()?;
    Ok(Some(Bar {
        what: format!(
            "{} of 128 MB and more of them, by a copy of as many bytes",
            rows.len()
        ),
        bar: format!("{}, each", whole_percent(bar)),
        reached: format!("{} to {}", percent(least), percent(most)),
        verdict: verdict_by(rows, &["copy's speed"])?,
    }))
}

/// Of all that was missed, what is said in these words; and wrong results.
fn verdict_by(rows: &[&Field<'_>], words: &[&str]) -> Result<Verdict, String> {
    let mut found = Vec::new();
    for row in rows {
        let title = row.at(&["title"])?.text()?;
        for sentence in missed(row)? {
            if words.iter().any(|w| sentence.contains(w)) || sentence.contains("wrong") {
                found.push(format!("{title} {sentence}"));
            }
        }
    }
    Ok(Verdict::of_sentences(&found))
}

fn lacking(name: &str) -> Bar {
    Bar::open(
        name.trim_start_matches("gpu-"),
        "-",
        "the record has no such row".to_owned(),
    )
}

/// The block of the third proof and of the rows with bars.
pub fn proofs(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("proofs")?;
    let mut text = words::facts(&record, "proofs", links)?;
    text.push_str(&format!("\n{}\n", words::bars(&proof_bars(records)?)));
    text.push_str(&words::bars(&summary_bars(records)?));
    text.push_str(&format!("\n{}", verdicts(&record.rows()?)?));
    Ok(text)
}

/// The block of all rows.
pub fn rows(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("rows")?;
    let rows = record.rows()?;
    let mut text = words::facts(&record, "rows", links)?;
    text.push_str(
        "\n| | ours | eager | Inductor | copy | eager / ours | Inductor / ours | copy / ours | compile | driver | wall | wall, one graph |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &rows {
        text.push_str(&format!(
            "| {} | {} | {} | {} | {:.1} | {:.0} | {} | {} |\n",
            row.at(&["title"])?.text()?,
            ours(row)?,
            times(row, &["eager", "inductor", "copy"])?,
            shares(row, &["eager", "inductor", "copy"])?,
            number(row, &["compile_us"])? / 1e3,
            number(row, &["load_us"])? / 1e3,
            tenths(number(row, &["wall_us", "ours"])?),
            tenths(number(row, &["wall_us", "replay"])?),
        ));
    }
    text.push_str(&format!("\n{}", verdicts(&rows)?));
    Ok(text)
}

/// The block of long rows in order.
pub fn sorts(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("sorts")?;
    let rows = record.rows()?;
    let mut text = words::facts(&record, "sorts", links)?;
    text.push_str(
        "\n| | ours | eager | Inductor | eager / ours | Inductor / ours |\n|---|---|---|---|---|---|\n",
    );
    for row in &rows {
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            row.at(&["title"])?.text()?,
            tenths(number(row, &["us", "ours"])?),
            times(row, &["eager", "inductor"])?,
            shares(row, &["eager", "inductor"])?,
        ));
    }
    text.push_str(&format!("\n{}", verdicts(&rows)?));
    Ok(text)
}

/// How many rows are right and at their bars, and which are not.
fn verdicts(rows: &[Field<'_>]) -> Result<String, String> {
    let mut not = Vec::new();
    for row in rows {
        match verdict(row)? {
            Verdict::Met => {}
            verdict => not.push(format!(
                "- {}: {}.\n",
                row.at(&["title"])?.text()?,
                verdict.words()
            )),
        }
    }
    let barred = rows.iter().filter(|r| r.find("bar").is_some()).count();
    let all = so_many(rows.len(), "row");
    let mut text = match (not.len(), barred) {
        (0, 0) => format!("{all}: every result is right.\n"),
        (0, _) => {
            format!(
                "{all}: every result is right, and those that have bars ({barred}) meet them.\n"
            )
        }
        (n, _) => format!(
            "{all}, of which {} right and at the bars that they have, and not:\n\n",
            rows.len() - n
        ),
    };
    text.push_str(&not.concat());
    Ok(text)
}

fn number(row: &Field<'_>, keys: &[&str]) -> Result<f64, String> {
    row.at(keys)?.number()
}

fn ratio(row: &Field<'_>, peer: &str) -> Result<[f64; 3], String> {
    row.at(&["ratios", peer])?.interval()
}

/// The better of eager and Inductor, and its time over ours; nothing where one of them was left out.
fn better(row: &Field<'_>) -> Result<Option<(&'static str, [f64; 3])>, String> {
    let ratios = row.at(&["ratios"])?;
    let (Some(eager), Some(inductor)) = (ratios.find("eager"), ratios.find("inductor")) else {
        return Ok(None);
    };
    let (eager, inductor) = (eager.interval()?, inductor.interval()?);
    Ok(Some(if eager[0] <= inductor[0] {
        ("eager", eager)
    } else {
        ("Inductor", inductor)
    }))
}

/// Our time, and what that is by the second.
fn ours(row: &Field<'_>) -> Result<String, String> {
    let us = number(row, &["us", "ours"])?;
    let (flops, bytes) = (number(row, &["flops"])?, number(row, &["bytes"])?);
    let rate = match row.at(&["bound"])?.text()? {
        "bytes" => format!(" ({} GB/s)", count(bytes / us / 1e3)),
        _ if flops > 0.0 => format!(" ({} TFLOP/s)", count(flops / us / 1e6)),
        _ => String::new(),
    };
    Ok(format!("{}{rate}", tenths(us)))
}

fn times(row: &Field<'_>, peers: &[&str]) -> Result<String, String> {
    cells(&row.at(&["us"])?, peers, |time| Ok(tenths(time.number()?)))
}

fn shares(row: &Field<'_>, peers: &[&str]) -> Result<String, String> {
    cells(&row.at(&["ratios"])?, peers, |ratio| {
        Ok(percent(ratio.interval()?[0]))
    })
}

/// Cells of a table, with a dash for what is not there.
fn cells(
    of: &Field<'_>,
    peers: &[&str],
    written: impl Fn(&Field<'_>) -> Result<String, String>,
) -> Result<String, String> {
    let cell = |peer: &&str| of.find(peer).map_or(Ok("-".to_owned()), |f| written(&f));
    let cells: Vec<String> = peers.iter().map(cell).collect::<Result<_, _>>()?;
    Ok(cells.join(" | "))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub fn row(name: &str, bar: Value, missed: &[&str]) -> Value {
        json!({
            "name": name, "title": format!("title of {name}"), "bar": bar, "missed": missed, "not_judged": [], "right": true,
            "us": {"ours": 10.0, "eager": 30.0, "inductor": 12.0, "copy": 9.5},
            "ratios": {"eager": [3.0, 2.9, 3.1], "inductor": [1.2, 1.1, 1.3], "copy": [0.95, 0.94, 0.96]},
            "wall_us": {"ours": 20.0, "replay": 15.0}, "kernels": 7.0, "compile_us": 1500.0, "load_us": 20000.0,
            "bound": "bytes", "bytes": 3e7, "flops": 0,
        })
    }

    /// A record with a row of every kind of bar.
    pub fn record() -> Value {
        let mut rows: Vec<Value> = PROOFS
            .iter()
            .map(|name| row(name, json!({"better": 1.0, "copy": 0.9}), &[]))
            .collect();
        rows[0]["bar"] = json!({"eager": 0.6});
        rows.push(row(
            INDEXER,
            json!({"kernels": 10, "one_graph_us": 120}),
            &[],
        ));
        json!({"gpu": "NVIDIA H200", "commit": "0123456789ab", "driver": "580", "torch": "2.11", "cuda": "13.0", "rows": rows})
    }

    fn with(record: Value) -> Records {
        let mut records = Records::default();
        for name in ["proofs", "rows", "sorts"] {
            records.put(name, record.clone());
        }
        records
    }

    #[test]
    fn bars_are_those_of_the_rows_and_met() {
        let text = proofs(&with(record()), "").unwrap();
        assert!(text.starts_with("NVIDIA H200, driver 580, commit 0123456789ab, torch 2.11 with CUDA 13.0: [h200-proofs.json](h200-proofs.json).\n"), "{text}");
        for line in [
            "| title of gpu-matmul-bf16-4096 | 60 % of eager's speed | 300 % (290 to 310) | met |",
            "| title of gpu-softmax-bf16 | 100 % of the better of eager and Inductor; 90 % of a copy | 120 % (110 to 130), Inductor; 95.0 % (94.0 to 96.0) | met |",
            "| compile, cold, to PTX text, of these rows | 5 ms | 1.5 to 1.5 ms | met |",
            "| 1.0, each | least 1.200 (title of gpu-matmul-bf16-8192) | met |",
            "| their geometric mean, 4 rows | 1.15 | 1.200 | met |",
            "| 4 of 128 MB and more of them, by a copy of as many bytes | 90 %, each | 95.0 % to 95.0 % | met |",
            "| title of gpu-pq-indexer | 10 kernels; 120 us wall as one graph | 7 kernels; 15.0 us | met |",
            "6 rows: every result is right, and those that have bars (6) meet them.",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_the_program_missed_is_missed_where_it_belongs() {
        let mut record = record();
        record["rows"][3]["missed"] = json!(["85.0 % of copy's speed, for at least 90 %"]);
        record["rows"][4]["right"] = json!(false);
        let text = proofs(&with(record), "").unwrap();
        assert!(
            text.contains("| 90 %, each | 95.0 % to 95.0 % | **missed**: title of gpu-mxint8-decode 85.0 % of copy's speed, for at least 90 %; title of gpu-softmax-bf16 results are wrong |"),
            "{text}"
        );
        assert!(
            text.contains("| 1.0, each | least 1.200 (title of gpu-matmul-bf16-8192) | **missed**: title of gpu-softmax-bf16 results are wrong |"),
            "{text}"
        );
        assert!(
            text.contains("6 rows, of which 4 right and at the bars that they have, and not:\n\n- title of gpu-mxint8-decode: **missed**"),
            "{text}"
        );
    }

    #[test]
    fn a_mean_below_its_bar_is_missed_and_rows_that_are_not_there_are_not_judged() {
        let mut record = record();
        let slow = json!([1.1, 1.0, 1.2]);
        for row in record["rows"].as_array_mut().unwrap() {
            row["ratios"]["inductor"] = slow.clone();
        }
        let text = proofs(&with(record.clone()), "").unwrap();
        assert!(text.contains("| 1.15 | 1.100 | **missed** |"), "{text}");
        let rows = record["rows"].as_array_mut().unwrap();
        rows.pop();
        rows[1]["ratios"]
            .as_object_mut()
            .unwrap()
            .remove("inductor");
        rows[1]["not_judged"] = json!(["better"]);
        let text = proofs(&with(record), "").unwrap();
        for line in [
            "| 1.0, each | - | not judged: eager or Inductor is not in every row |",
            "| pq-indexer | - | - | not judged: the record has no such row |",
            "| not judged: without a peer for better |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn tables_have_every_row() {
        let text = rows(&with(record()), "x/").unwrap();
        assert!(text.contains("[h200.json](x/h200.json)"), "{text}");
        let line = "| title of gpu-pq-indexer | 10.0 (3,000 GB/s) | 30.0 | 12.0 | 9.5 | 300 % | 120 % | 95.0 % | 1.5 | 20 | 20.0 | 15.0 |";
        assert!(text.contains(line), "{text}");
        let text = sorts(&with(record()), "").unwrap();
        let line = "| title of gpu-pq-indexer | 10.0 | 30.0 | 12.0 | 300 % | 120 % |";
        assert!(text.contains(line), "{text}");
    }
}
