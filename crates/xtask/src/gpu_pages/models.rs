//! Whole models in the torch door: calls, training steps, and first calls.

use super::records::{Field, Records};
use super::words::{self, Bar, Verdict, so_many, times_between};

const MODES: [&str; 2] = ["default", "reduce-overhead"];
/// The bars of speed beside Inductor: of a model, and of the geometric mean of all.
const SPEED: f64 = 0.98;
const MEAN: f64 = 1.05;
/// Our own compile is at most such a part of Inductor's.
const SHARE: f64 = 10.0;

/// Titles of models by name, and the peer that one is judged beside.
const MODELS: [(&str, &str, Peer); 6] = [
    ("gpu-resnet18", "ResNet-18 f32, batch 16", Peer::Inductor),
    ("gpu-gpt2", "GPT-2 bf16, 8x512", Peer::Inductor),
    ("gpu-bert", "BERT base f32, 16x256", Peer::Inductor),
    ("gpu-llama-1b-1x16", "Llama 1B bf16, 1x16", Peer::Inductor),
    (
        "gpu-llama-1b-4x1024",
        "Llama 1B bf16, 4x1024",
        Peer::Inductor,
    ),
    (
        "gpu-decoder-40b-1x1-4096",
        "decoder layer, 40B-shaped, bf16, 1 token, 4,096 cached",
        Peer::Eager,
    ),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Inductor,
    Eager,
}

fn known<'n>(row: &Field<'n>) -> Result<(&'n str, Peer), String> {
    let name = row.at(&["name"])?.text()?;
    let found = MODELS.iter().find(|(known, ..)| *known == name);
    Ok(found.map_or((name, Peer::Inductor), |(_, title, peer)| (*title, *peer)))
}

fn title<'n>(row: &Field<'n>) -> Result<&'n str, String> {
    Ok(known(row)?.0)
}

fn missed(row: &Field<'_>) -> Result<Vec<String>, String> {
    let mut said: Vec<String> = row
        .at(&["missed"])?
        .texts()?
        .into_iter()
        .map(str::to_owned)
        .collect();
    if !row.at(&["right"])?.flag()? {
        said.push("results are wrong".to_owned());
    }
    Ok(said)
}

fn ratio(row: &Field<'_>, peer: Peer, mode: &str) -> Result<[f64; 3], String> {
    let other = match peer {
        Peer::Inductor => format!("inductor {mode}"),
        Peer::Eager => "eager".to_owned(),
    };
    row.at(&["ratios", &format!("{other} / oxyfuel {mode}, wall")])?
        .interval()
}

/// The rows of a record that are of training, or are not.
fn of<'r>(record: &Field<'r>, training: bool) -> Result<Vec<Field<'r>>, String> {
    let mut rows = Vec::new();
    for row in record.rows()? {
        if row.at(&["training"])?.flag()? == training {
            rows.push(row);
        }
    }
    Ok(rows)
}

// ---- calls and steps -------------------------------------------------------------------------------------------------

/// A bar for the rows that are judged beside one peer: the least of them.
fn least(rows: &[Field<'_>], peer: Peer, what: &str) -> Result<Bar, String> {
    let (mut least, mut all_missed, mut number) = (None::<(f64, String)>, Vec::new(), 0);
    for row in rows {
        let (title, judged_beside) = known(row)?;
        if judged_beside != peer {
            continue;
        }
        number += 1;
        for mode in MODES {
            let middle = ratio(row, peer, mode)?[0];
            if least.as_ref().is_none_or(|(least, _)| middle < *least) {
                least = Some((
                    middle,
                    match peer {
                        Peer::Inductor => format!("{title}, `{mode}`"),
                        Peer::Eager => format!("`{mode}`"),
                    },
                ));
            }
        }
        all_missed.extend(missed(row)?.into_iter().map(|m| format!("{title}: {m}")));
    }
    let bar = match peer {
        Peer::Inductor => format!("{SPEED} of Inductor's speed, each in both modes"),
        Peer::Eager => "eager's speed in both modes".to_owned(),
    };
    let Some((least, place)) = least else {
        return Ok(Bar::open(what, &bar, "the record has no row".to_owned()));
    };
    Ok(Bar {
        what: format!("{what}, {}", so_many(number, "row")),
        bar,
        reached: format!("least {least:.3} ({place})"),
        verdict: Verdict::of_sentences(&all_missed),
    })
}

pub fn model_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let rows = of(&records.get("models")?, false)?;
    Ok(vec![
        least(&rows, Peer::Inductor, "whole models, inference")?,
        least(
            &rows,
            Peer::Eager,
            "decoder layer, 40B-shaped, that memory bounds",
        )?,
    ])
}

pub fn training_bars(records: &Records) -> Result<Vec<Bar>, String> {
    let record = records.get("training")?;
    let rows = of(&record, true)?;
    Ok(vec![
        least(&rows, Peer::Inductor, "training steps")?,
        mean(&record)?,
    ])
}

/// The mean over inference and training, which the program makes where every row is there.
fn mean(record: &Field<'_>) -> Result<Bar, String> {
    let what = "their geometric mean, inference and training together";
    let bar = format!("{MEAN} in both modes");
    let means = record.at(&["means"])?;
    let (Some(default), Some(recorded)) = (means.find(MODES[0]), means.find(MODES[1])) else {
        let lacking = match record.find("missing") {
            Some(names) => names.texts()?.join(", "),
            None => "the models of inference".to_owned(),
        };
        return Ok(Bar::open(what, &bar, format!("the record lacks {lacking}")));
    };
    let (default, recorded) = (default.number()?, recorded.number()?);
    Ok(Bar {
        what: what.to_owned(),
        bar,
        reached: format!("`default` {default:.3}, `reduce-overhead` {recorded:.3}"),
        verdict: Verdict::of(default >= MEAN && recorded >= MEAN),
    })
}

/// Inductor's time by ours in both modes, in a sentence.
pub fn sentence(records: &Records) -> Result<String, String> {
    let said = |rows: &[Field<'_>]| {
        let mut words = Vec::new();
        for row in rows {
            let [default, recorded] = MODES.map(|mode| ratio(row, Peer::Inductor, mode));
            words.push(format!(
                "{}: {:.2}, {:.2}",
                title(row)?,
                default?[0],
                recorded?[0]
            ));
        }
        Ok::<_, String>(words.join("; "))
    };
    Ok(format!(
        "Inductor's time by ours in `default` and in `reduce-overhead`. Calls: {}. Training steps: {}.\n",
        said(&of(&records.get("models")?, false)?)?,
        said(&of(&records.get("training")?, true)?)?,
    ))
}

fn table(rows: &[Field<'_>]) -> Result<String, String> {
    let mut text = String::from(
        "| model | eager | ours | Inductor | Inductor / ours | ours, `reduce-overhead` | Inductor, `reduce-overhead` | Inductor / ours | eager / ours, `default`, `reduce-overhead` | first call | verdict |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let ms = |engine: &str| {
            let times = row.at(&["us", engine])?.list()?;
            let wall = times
                .get(1)
                .ok_or_else(|| format!("no time by the clock for {engine}"))?;
            Ok::<_, String>(format!("{:.2}", wall.number()? / 1e3))
        };
        let first = |engine: &str| row.at(&["first_s", engine])?.number();
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {:.2}, {:.2} | {:.1} / {:.1} / {:.1} | {} |\n",
            title(row)?,
            ms("eager")?,
            ms("oxyfuel default")?,
            ms("inductor default")?,
            times_between(ratio(row, Peer::Inductor, MODES[0])?),
            ms("oxyfuel reduce-overhead")?,
            ms("inductor reduce-overhead")?,
            times_between(ratio(row, Peer::Inductor, MODES[1])?),
            ratio(row, Peer::Eager, MODES[0])?[0],
            ratio(row, Peer::Eager, MODES[1])?[0],
            first("capture")?,
            first("oxyfuel default")?,
            first("inductor default")?,
            Verdict::of_sentences(&missed(row)?).words(),
        ));
    }
    Ok(text)
}

pub fn models(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("models")?;
    let rows = of(&record, false)?;
    let mut text = words::facts(&record, "models", links)?;
    text.push_str(&format!(
        "\n{}\n{}",
        table(&rows)?,
        words::bars(&model_bars(records)?)
    ));
    for row in &rows {
        if let Some(said) = row.find("verdict") {
            let lines: Vec<&str> = said.text()?.lines().take(2).map(str::trim).collect();
            text.push_str(&format!(
                "\n`explain` says of {}: {}.\n",
                title(row)?,
                lines.join("; ")
            ));
        }
    }
    Ok(text)
}

pub fn training(records: &Records, links: &str) -> Result<String, String> {
    let record = records.get("training")?;
    let mut text = words::facts(&record, "training", links)?;
    text.push_str(&format!(
        "\n{}\n{}",
        table(&of(&record, true)?)?,
        words::bars(&training_bars(records)?)
    ));
    Ok(text)
}

// ---- first calls -----------------------------------------------------------------------------------------------------

/// The bars of first calls, `start`, or of first training steps, `start-training`.
pub fn start_bars(records: &Records, name: &str) -> Result<Vec<Bar>, String> {
    let rows = records.get(name)?.rows()?;
    let step = if name == "start" {
        "first calls"
    } else {
        "first training steps"
    };
    Ok(vec![
        slowest(
            &rows,
            "first",
            &format!("{step}, above a backend that captures"),
        )?,
        own_compile(&rows, &format!("{step}, our compile by Inductor's"))?,
        slowest(
            &rows,
            "warm",
            &format!("{step} with a warm cache, above a backend that does nothing"),
        )?,
    ])
}

/// The same in one line.
pub fn start_line(records: &Records, name: &str) -> Result<Bar, String> {
    let step = if name == "start" {
        "first calls"
    } else {
        "first training steps"
    };
    let what = format!(
        "{step}: above a backend that captures; our compile by Inductor's; with a warm cache, above a backend that does nothing"
    );
    Ok(words::joined(&what, &start_bars(records, name)?))
}

fn part<'a, 'r>(rows: &'a [Field<'r>], part: &str) -> Vec<&'a Field<'r>> {
    let is = |row: &&Field<'_>| row.find("part").is_some_and(|p| p.text() == Ok(part));
    rows.iter().filter(is).collect()
}

/// The first call that is furthest above its base.
fn slowest(rows: &[Field<'_>], which: &str, what: &str) -> Result<Bar, String> {
    let (mut most, mut missed, mut bar) = (None::<(f64, &str)>, Vec::new(), 0.0);
    for row in part(rows, which) {
        let (above, title) = (row.at(&["above"])?.number()?, title(row)?);
        bar = row.at(&["bar"])?.number()?;
        if !row.at(&["met", "above"])?.flag()? {
            missed.push(format!("{title} {above:+.2} s"));
        }
        if most.is_none_or(|(most, _)| above > most) {
            most = Some((above, title));
        }
    }
    let Some((most, title)) = most else {
        return Ok(Bar::open(what, "-", "the record has no row".to_owned()));
    };
    Ok(Bar {
        what: what.to_owned(),
        bar: format!("{bar} s, each"),
        reached: format!("most {most:+.2} s ({title})"),
        verdict: Verdict::of_sentences(&missed),
    })
}

fn own_compile(rows: &[Field<'_>], what: &str) -> Result<Bar, String> {
    let (mut most, mut missed) = (None::<(f64, &str)>, Vec::new());
    for row in part(rows, "first") {
        let Some(share) = row.find("own_of_inductor") else {
            continue;
        };
        let (share, title) = (share.number()?, title(row)?);
        if !row.at(&["met", "own_of_inductor"])?.flag()? {
            missed.push(format!("{title} 1/{:.0}", 1.0 / share));
        }
        if most.is_none_or(|(most, _)| share > most) {
            most = Some((share, title));
        }
    }
    let bar = format!("1/{SHARE:.0}, each");
    let Some((most, title)) = most else {
        let why = "Inductor was left out".to_owned();
        return Ok(Bar::open(what, &bar, why));
    };
    Ok(Bar {
        what: what.to_owned(),
        bar,
        reached: format!("most 1/{:.0} ({title})", 1.0 / most),
        verdict: Verdict::of_sentences(&missed),
    })
}

pub fn start(records: &Records, links: &str) -> Result<String, String> {
    starts(records, links, "start")
}

pub fn start_training(records: &Records, links: &str) -> Result<String, String> {
    starts(records, links, "start-training")
}

fn starts(records: &Records, links: &str, name: &str) -> Result<String, String> {
    let record = records.get(name)?;
    let rows = record.rows()?;
    let mut text = words::facts(&record, name, links)?;
    text.push_str(
        "\n| | ours | a backend that captures | above it | Inductor | our compile | of Inductor's | warm cache: ours | does nothing | above it | the same with a key like ours | verdict |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let warm = part(&rows, "warm");
    for row in part(&rows, "first") {
        let row_name = row.at(&["name"])?.text()?;
        let warm = warm
            .iter()
            .find(|w| w.find("name").is_some_and(|n| n.text() == Ok(row_name)));
        let (warm_cells, mut rows) = match warm {
            Some(warm) => (
                [
                    seconds(warm, "oxyfuel")?,
                    seconds(warm, "nothing")?,
                    format!("{:+.2}", warm.at(&["above"])?.number()?),
                    seconds(warm, "nothing-our-key")?,
                ],
                vec![*warm],
            ),
            None => (["-"; 4].map(str::to_owned), Vec::new()),
        };
        rows.push(row);
        let own = match row.find("own_of_inductor") {
            Some(share) => format!("1/{:.0}", 1.0 / share.number()?),
            None => "-".to_owned(),
        };
        text.push_str(&format!(
            "| {} | {} | {} | {:+.2} | {} | {:.0} ms | {own} | {} | {} |\n",
            title(row)?,
            seconds(row, "oxyfuel")?,
            seconds(row, "aot_eager_decomp_partition")?,
            row.at(&["above"])?.number()?,
            seconds(row, "inductor")?,
            1e3 * row.at(&["own", "oxyfuel"])?.number()?,
            warm_cells.join(" | "),
            Verdict::of(met(&rows)?).words(),
        ));
    }
    text.push_str(&format!("\n{}", words::bars(&start_bars(records, name)?)));
    let mut passed = 0;
    for row in &rows {
        passed += usize::from(met(&[row])?);
    }
    text.push_str(&format!(
        "\n{}: {passed} passed, {} failed.\n",
        so_many(rows.len(), "row"),
        rows.len() - passed
    ));
    Ok(text)
}

/// Whether every bar of these rows is met.
fn met(rows: &[&Field<'_>]) -> Result<bool, String> {
    for row in rows {
        for key in ["above", "own_of_inductor", "above_inductor"] {
            if let Some(met) = row.at(&["met"])?.find(key)
                && !met.flag()?
            {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn seconds(row: &Field<'_>, engine: &str) -> Result<String, String> {
    let found = row.at(&["seconds"])?.find(engine);
    found.map_or(Ok("-".to_owned()), |s| Ok(format!("{:.2}", s.number()?)))
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

    fn row(name: &str, training: bool, ratio: f64) -> Value {
        let mut row = json!({
            "name": name, "training": training, "right": true, "missed": [], "verdict": null, "us": {"eager": [3000.0, 3100.0]}, "ratios": {},
            "first_s": {"capture": 2.7, "oxyfuel default": 2.5, "inductor default": 13.1},
        });
        for mode in MODES {
            for engine in ["oxyfuel", "inductor"] {
                row["us"][format!("{engine} {mode}")] = json!([1000.0, 1100.0]);
            }
            row["ratios"][format!("inductor {mode} / oxyfuel {mode}, wall")] =
                json!([ratio, ratio - 0.01, ratio + 0.01]);
            row["ratios"][format!("eager / oxyfuel {mode}, wall")] = json!([2.5, 2.4, 2.6]);
        }
        row
    }

    pub fn models_record() -> Value {
        let mut decoder = row("gpu-decoder-40b-1x1-4096", false, 0.5);
        decoder["verdict"] = json!("expected: 500 us a call\n  bound by memory\n  more");
        head(
            json!({"means": {}, "missing": ["gpu-gpt2 training"], "rows": [row("gpu-bert", false, 1.01), row("gpu-gpt2", false, 1.2), decoder]}),
        )
    }

    pub fn training_record() -> Value {
        let rows = [row("gpu-bert", false, 1.01), row("gpu-gpt2", true, 1.1)];
        head(
            json!({"means": {"default": 1.06, "reduce-overhead": 1.07}, "missing": [], "rows": rows}),
        )
    }

    pub fn start_record() -> Value {
        let first = json!({"part": "first", "name": "gpu-gpt2", "seconds": {"oxyfuel": 4.0, "aot_eager_decomp_partition": 3.8, "inductor": 12.0},
                           "own": {"oxyfuel": 0.2}, "bar": 1.5, "above": 0.2, "own_of_inductor": 0.025, "met": {"above": true, "own_of_inductor": true}});
        let warm = json!({"part": "warm", "name": "gpu-gpt2", "seconds": {"oxyfuel": 3.0, "nothing": 4.0}, "own": {"oxyfuel": 0.0}, "bar": 0.3,
                          "above": -1.0, "met": {"above": true}});
        head(json!({"rows": [first, warm]}))
    }

    fn with(records: &[(&'static str, Value)]) -> Records {
        let mut all = Records::default();
        for (name, record) in records {
            all.put(name, record.clone());
        }
        all
    }

    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_least_model_is_named_and_the_decoder_is_judged_beside_eager() {
        let mut record = models_record();
        has(
            &models(&with(&[("models", record.clone())]), "").unwrap(),
            &[
                "| BERT base f32, 16x256 | 3.10 | 1.10 | 1.10 | 1.010 (1.000 to 1.020) | 1.10 | 1.10 | 1.010 (1.000 to 1.020) | 2.50, 2.50 | 2.7 / 2.5 / 13.1 | met |",
                "| whole models, inference, 2 rows | 0.98 of Inductor's speed, each in both modes | least 1.010 (BERT base f32, 16x256, `default`) | met |",
                "| eager's speed in both modes | least 2.500 (`default`) | met |",
                "`explain` says of decoder layer, 40B-shaped, bf16, 1 token, 4,096 cached: expected: 500 us a call; bound by memory.\n",
            ],
        );
        record["rows"][1]["missed"] = json!(["default: 0.970 of Inductor's speed"]);
        record["rows"][2]["right"] = json!(false);
        has(
            &models(&with(&[("models", record)]), "").unwrap(),
            &[
                "**missed**: GPT-2 bf16, 8x512: default: 0.970 of Inductor's speed |",
                "4,096 cached: results are wrong |",
            ],
        );
    }

    #[test]
    fn the_mean_is_the_records_and_is_not_judged_without_every_row() {
        let mut record = training_record();
        let text = training(&with(&[("training", record.clone())]), "").unwrap();
        has(
            &text,
            &[
                "| training steps, 1 row | 0.98 of Inductor's speed, each in both modes | least 1.100 (GPT-2 bf16, 8x512, `default`) | met |",
                "| 1.05 in both modes | `default` 1.060, `reduce-overhead` 1.070 | met |",
            ],
        );
        // Rows of the earlier record are no steps of training.
        assert!(!text.contains("BERT"), "{text}");
        record["means"]["default"] = json!(1.04);
        let missed = training(&with(&[("training", record.clone())]), "").unwrap();
        has(
            &missed,
            &["`default` 1.040, `reduce-overhead` 1.070 | **missed** |"],
        );
        record["means"] = json!({});
        record["missing"] = json!(["gpu-bert"]);
        let open = training(&with(&[("training", record)]), "").unwrap();
        has(&open, &["| - | not judged: the record lacks gpu-bert |"]);
    }

    #[test]
    fn first_calls_have_the_verdicts_of_the_record() {
        let mut record = start_record();
        has(
            &start(&with(&[("start", record.clone())]), "").unwrap(),
            &[
                "| GPT-2 bf16, 8x512 | 4.00 | 3.80 | +0.20 | 12.00 | 200 ms | 1/40 | 3.00 | 4.00 | -1.00 | - | met |",
                "| first calls, above a backend that captures | 1.5 s, each | most +0.20 s (GPT-2 bf16, 8x512) | met |",
                "| 1/10, each | most 1/40 (GPT-2 bf16, 8x512) | met |",
                "| 0.3 s, each | most -1.00 s (GPT-2 bf16, 8x512) | met |",
                "2 rows: 2 passed, 0 failed.",
            ],
        );
        record["rows"][0]["met"]["above"] = json!(false);
        record["rows"][0]["above"] = json!(2.0);
        has(
            &start_training(&with(&[("start-training", record)]), "").unwrap(),
            &[
                "| most +2.00 s (GPT-2 bf16, 8x512) | **missed**: GPT-2 bf16, 8x512 +2.00 s |",
                "2 rows: 1 passed, 1 failed.",
            ],
        );
    }

    #[test]
    fn a_sentence_has_every_model_in_both_modes() {
        let records = with(&[("models", models_record()), ("training", training_record())]);
        let text = sentence(&records).unwrap();
        has(
            &text,
            &[
                "Calls: BERT base f32, 16x256: 1.01, 1.01; GPT-2",
                "Training steps: GPT-2 bf16, 8x512: 1.10, 1.10.",
            ],
        );
    }
}
