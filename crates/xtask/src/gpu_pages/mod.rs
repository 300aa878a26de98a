//! `gpu-pages`: the figures of a GPU on the pages, written from `bench/record`.
//!
//! | file | idea |
//! |---|---|
//! | `records.rs` | the records, and values that know where they stand |
//! | `words.rs` | figures, bars and verdicts as text |
//! | `kernels.rs`, `door.rs`, `models.rs`, `correctness.rs` | a function for each block |
//!
//! A verdict is that of the program that measured, where its record has one. A block is a function of the records alone, so that a page cannot say
//! what they do not.

mod correctness;
mod door;
mod kernels;
mod models;
mod records;
mod words;

use crate::{Outcome, blocks, workspace};
use records::{GPU, NAMES, Records};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use words::Bar;

pub const HELP: &str = "\
usage: cargo xtask gpu-pages [FOLDER | --check]

Writes the blocks `<!-- gpu: NAME -->` … `<!-- /gpu -->` of README.md, bench/record/h200.md, bench/record/h200-models.md and docs/torch.md from the
records bench/record/h200.json and h200-NAME.json.

  FOLDER    what `oxyfuel-gpu/gpu-records --to FOLDER` left: its records take the place of those in bench/record first. Parts that were not measured,
            or whose program did not end (FOLDER/NAME.log does not close with 'N passed, N failed'), keep their older record
  --check   change nothing; fail at the first block that is not what the records give

Nothing is written unless every record can be read and has what its blocks show.
";

const FOLDER: &str = "bench/record";
const END: &str = "<!-- /gpu -->";

/// Records, and where links to them begin, to text.
type Block = fn(&Records, &str) -> Result<String, String>;

struct Page {
    path: &'static str,
    /// From the page to the folder of the records.
    links: &'static str,
    blocks: &'static [(&'static str, Block)],
}

const PAGES: [Page; 4] = [
    Page {
        path: "README.md",
        links: "bench/record/",
        blocks: &[("summary", summary)],
    },
    Page {
        path: "bench/record/h200.md",
        links: "",
        blocks: &[
            ("proofs", kernels::proofs),
            ("rows", kernels::rows),
            ("custom", door::custom),
            ("ops", correctness::ops),
            ("host", door::host_tables),
            ("sorts", kernels::sorts),
            ("correctness", correctness::correctness),
            ("small", door::small),
        ],
    },
    Page {
        path: "bench/record/h200-models.md",
        links: "",
        blocks: &[
            ("models", models::models),
            ("training", models::training),
            ("start", models::start),
            ("start-training", models::start_training),
        ],
    },
    Page {
        path: "docs/torch.md",
        links: "../bench/record/",
        blocks: &[("custom-share", door::custom_sentence)],
    },
];

pub fn run(args: &[String]) -> Outcome {
    let (folder, check) = parsed(args)?;
    let root = workspace::root();
    let mut records = Records::read(&root.join(FOLDER))?;
    let taken = match &folder {
        None => Taken::default(),
        Some(folder) => Taken::from(folder)?,
    };
    let mut notes = taken.notes;
    for (name, _, record) in &taken.records {
        notes.extend(lost_rows(
            name,
            records.put(name, record.clone()).as_ref(),
            record,
        ));
    }
    let pages = written(&root, &records)?;
    if check {
        return checked(&pages);
    }
    for note in &notes {
        eprintln!("{note}");
    }
    for (name, path, _) in &taken.records {
        let file = records::file_name(name);
        fs::copy(path, root.join(FOLDER).join(&file))
            .map_err(|e| format!("cannot copy {} to {FOLDER}: {e}", path.display()))?;
        eprintln!("took {file}");
    }
    for page in pages.iter().filter(|page| page.old != page.new) {
        fs::write(root.join(page.path), &page.new)
            .map_err(|e| format!("cannot write {}: {e}", page.path))?;
        eprintln!("wrote {}", page.path);
    }
    Ok(())
}

fn parsed(args: &[String]) -> Result<(Option<PathBuf>, bool), String> {
    let (mut folder, mut check) = (None, false);
    for arg in args {
        match arg.as_str() {
            "--check" => check = true,
            flag if flag.starts_with('-') => {
                return Err(format!("unknown option `{flag}` (known here: --check)"));
            }
            path if folder.is_none() => folder = Some(PathBuf::from(path)),
            more => return Err(format!("one folder is enough, but there is `{more}` too")),
        }
    }
    if check && folder.is_some() {
        return Err(
            "--check is about the records that are in bench/record: it takes no FOLDER".to_owned(),
        );
    }
    Ok((folder, check))
}

// ---- the records of a run --------------------------------------------------------------------------------------------

/// What a folder of `gpu-records` has for us.
#[derive(Debug, Default)]
struct Taken {
    records: Vec<(&'static str, PathBuf, Value)>,
    /// What to know of its programs, in sentences.
    notes: Vec<String>,
}

impl Taken {
    fn from(folder: &Path) -> Result<Taken, String> {
        let entries = fs::read_dir(folder)
            .map_err(|e| format!("cannot read the folder {}: {e}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .collect();
        files.sort();
        let mut taken = Taken::default();
        for path in files {
            taken.take(folder, path)?;
        }
        if taken.records.is_empty() && taken.notes.is_empty() {
            return Err(format!(
                "{} has no record of {GPU} ({GPU}.json, {GPU}-NAME.json)",
                folder.display()
            ));
        }
        Ok(taken)
    }

    fn take(&mut self, folder: &Path, path: PathBuf) -> Outcome {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = NAMES
            .iter()
            .find(|name| records::file_name(name) == file)
            .ok_or_else(|| {
                format!(
                    "{} is no record that a page shows: {GPU}.json, or {GPU}-NAME.json of {}",
                    path.display(),
                    NAMES.join(", ")
                )
            })?;
        match ending(&folder.join(format!("{name}.log"))) {
            Ending::Open(last) => {
                self.notes.push(format!(
                    "{file} is left: its program did not end, its log closes with `{last}`"
                ));
                return Ok(());
            }
            Ending::Failed(failed) => self
                .notes
                .push(format!("{file}: its program closed with {failed} failed")),
            Ending::Passed => {}
        }
        let record = records::parsed(&path)?;
        let gpu = record["gpu"].as_str().unwrap_or_default();
        if records::slug(gpu) != GPU {
            return Err(format!(
                "{} is of `{gpu}`, and the pages are of {GPU}",
                path.display()
            ));
        }
        self.records.push((name, path, record));
        Ok(())
    }
}

/// How the program that wrote a record ended, by its log.
enum Ending {
    /// Or there is no log.
    Passed,
    Failed(u32),
    /// Its last line.
    Open(String),
}

fn ending(log: &Path) -> Ending {
    let Ok(text) = fs::read(log) else {
        return Ending::Passed;
    };
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.unwrap_or_default().trim();
    let failed = last
        .strip_suffix(" failed")
        .and_then(|rest| rest.split_once(" passed, "))
        .and_then(|(_, failed)| failed.parse().ok());
    match failed {
        Some(0) => Ending::Passed,
        Some(failed) => Ending::Failed(failed),
        None => Ending::Open(last.chars().take(120).collect()),
    }
}

/// The rows of an older record that a new one lacks, in a sentence: a row whose measurement raised is in no record, and nobody has judged it.
fn lost_rows(name: &str, old: Option<&Value>, new: &Value) -> Option<String> {
    let names = |record: &Value| -> Vec<String> {
        let rows = record["rows"].as_array().into_iter().flatten();
        let words = |row: &Value| {
            let words =
                ["part", "name"].map(|key| row[key].as_str().unwrap_or_default().to_owned());
            words.join(" ").trim().to_owned()
        };
        rows.map(words).collect()
    };
    let new = names(new);
    let lost: Vec<String> = names(old?)
        .into_iter()
        .filter(|row| !new.contains(row))
        .collect();
    (!lost.is_empty()).then(|| {
        format!(
            "{} lacks rows that the older record has: {}",
            records::file_name(name),
            lost.join(", ")
        )
    })
}

// ---- the pages -------------------------------------------------------------------------------------------------------

#[derive(Debug)]
struct Written {
    path: &'static str,
    blocks: Vec<&'static str>,
    old: String,
    new: String,
}

/// Every page with its blocks from the records.
fn written(root: &Path, records: &Records) -> Result<Vec<Written>, String> {
    PAGES
        .iter()
        .map(|page| page.written(root, records))
        .collect()
}

impl Page {
    fn written(&self, root: &Path, records: &Records) -> Result<Written, String> {
        let old = fs::read_to_string(root.join(self.path))
            .map_err(|e| format!("cannot read {}: {e}", self.path))?;
        let new = self.with_blocks(&old, records)?;
        Ok(Written {
            path: self.path,
            blocks: self.blocks.iter().map(|(name, _)| *name).collect(),
            old,
            new,
        })
    }

    fn with_blocks(&self, page: &str, records: &Records) -> Result<String, String> {
        let there = page.lines().filter(|l| l.starts_with("<!-- gpu: ")).count();
        if there > self.blocks.len() {
            let names: Vec<&str> = self.blocks.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "{} has {there} blocks `gpu:`, and the command knows one each of: {}",
                self.path,
                names.join(", ")
            ));
        }
        let mut text = page.to_owned();
        for (name, block) in self.blocks {
            let markers = [begin(name), END.to_owned()];
            let [begin, end] = [markers[0].as_str(), markers[1].as_str()];
            text = blocks::replaced(self.path, &text, [begin, end], &block(records, self.links)?)?;
        }
        Ok(text)
    }
}

fn begin(name: &str) -> String {
    format!("<!-- gpu: {name} -->")
}

/// Fails at the first block that is not what the records give, with its first line that differs.
fn checked(pages: &[Written]) -> Outcome {
    for page in pages.iter().filter(|page| page.old != page.new) {
        for name in &page.blocks {
            let markers = begin(name);
            let of =
                |text| blocks::parts(page.path, text, [&markers, END]).map(|(_, inside, _)| inside);
            let (old, new) = (of(&page.old)?, of(&page.new)?);
            if old == new {
                continue;
            }
            let (has, gives) = first_difference(old, new);
            return Err(format!(
                "the block `gpu: {name}` of {} is not what the records give: run `cargo xtask gpu-pages`\n  it has:           {has}\n  the records give: {gives}",
                page.path
            ));
        }
    }
    Ok(())
}

fn first_difference<'t>(old: &'t str, new: &'t str) -> (&'t str, &'t str) {
    let (mut old, mut new) = (old.lines(), new.lines());
    loop {
        match (old.next(), new.next()) {
            (Some(a), Some(b)) if a == b => {}
            (None, None) => return ("", ""),
            (a, b) => return (a.unwrap_or("nothing more"), b.unwrap_or("nothing more")),
        }
    }
}

/// The records that the README shows.
const SUMMARY: [&str; 10] = [
    "proofs",
    "small",
    "host",
    "models",
    "training",
    "start",
    "start-training",
    "custom",
    "tests",
    "ops",
];

/// The block of the README: bars and verdicts, and models in a sentence.
fn summary(records: &Records, links: &str) -> Result<String, String> {
    let mut bars: Vec<Bar> = kernels::proof_bars(records)?;
    bars.extend(kernels::summary_bars(records)?);
    bars.extend(door::small_bars(records)?);
    bars.extend(door::host_summary(records)?);
    bars.extend(models::model_bars(records)?);
    bars.extend(models::training_bars(records)?);
    bars.extend([
        models::start_line(records, "start")?,
        models::start_line(records, "start-training")?,
        door::custom_bar(records)?,
        correctness::tests_bar(records)?,
        correctness::ops_bar(records)?,
    ]);
    Ok(format!(
        "{}\n{}\n{}\n",
        words::bars(&bars),
        models::sentence(records)?,
        sources(records, links)?
    ))
}

/// What records are of, those of one machine and of one commit together.
fn sources(records: &Records, links: &str) -> Result<String, String> {
    let mut machines: Groups<(String, Vec<String>)> = Vec::new();
    for name in SUMMARY {
        let record = records.get(name)?;
        let link = format!("[{name}]({links}{})", records::file_name(name));
        let codes = group(&mut machines, words::machine(&record)?);
        group(codes, words::code(&record)?).push(link);
    }
    let mut said = Vec::new();
    for (machine, codes) in machines {
        let of = |(code, links): (String, Vec<String>)| format!("{} ({code})", links.join(", "));
        let codes: Vec<String> = codes.into_iter().map(of).collect();
        said.push(format!("Records of {machine}: {}.", codes.join("; ")));
    }
    Ok(said.join(" "))
}

type Groups<T> = Vec<(String, Vec<T>)>;

/// The group of this name, in the order in which they came.
fn group<T>(groups: &mut Groups<T>, name: String) -> &mut Vec<T> {
    let at = match groups.iter().position(|(known, _)| *known == name) {
        Some(at) => at,
        None => {
            groups.push((name, Vec::new()));
            groups.len() - 1
        }
    };
    &mut groups[at].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Small records of every program.
    fn records() -> Records {
        let mut records = Records::default();
        for (name, record) in [
            ("proofs", kernels::tests::record()),
            ("rows", kernels::tests::record()),
            ("sorts", kernels::tests::record()),
            ("small", door::tests::small_record()),
            ("custom", door::tests::custom_record()),
            ("host", door::tests::host_record()),
            ("models", models::tests::models_record()),
            ("training", models::tests::training_record()),
            ("start", models::tests::start_record()),
            ("start-training", models::tests::start_record()),
            ("tests", correctness::tests::tests_record()),
            ("ops", correctness::tests::ops_record()),
        ] {
            records.put(name, record);
        }
        records
    }

    /// An empty folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gpu-pages-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn the_pages_are_what_their_records_give() {
        run(&["--check".to_owned()]).unwrap();
    }

    #[test]
    fn every_program_has_a_block_and_each_block_needs_its_record() {
        let all = records();
        for page in &PAGES {
            for (name, block) in page.blocks {
                let text = block(&all, page.links).unwrap();
                assert!(text.contains("commit 0123456789ab"), "{name}: {text}");
                assert!(text.contains("NVIDIA H200"), "{name}: {text}");
                let error = block(&Records::default(), page.links).unwrap_err();
                assert!(error.contains(".json is not there"), "{name}: {error}");
            }
        }
        let text: String = PAGES
            .iter()
            .flat_map(|page| {
                page.blocks
                    .iter()
                    .map(|(_, block)| block(&all, page.links).unwrap())
            })
            .collect();
        for name in NAMES {
            assert!(text.contains(&records::file_name(name)), "{name}");
        }
    }

    #[test]
    fn the_summary_names_its_records_by_commit() {
        let text = summary(&records(), "bench/record/").unwrap();
        for line in [
            "| whole models, inference, 2 rows |",
            "| 1,323 passed, 0 failed | met |",
            "Records of NVIDIA H200, driver 580: [proofs](bench/record/h200-proofs.json), [tests](bench/record/h200-tests.json) (commit 0123456789ab, torch 2.11 with CUDA 13.0); [small]",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_page_that_differs_is_named_with_its_block_and_line() {
        let page = &PAGES[3];
        let text = format!("a\n{}\n\nold\n\n{END}\nb\n", begin("custom-share"));
        let new = page.with_blocks(&text, &records()).unwrap();
        assert!(new.starts_with("a\n") && new.ends_with("\nb\n") && !new.contains("old"));
        assert_eq!(page.with_blocks(&new, &records()).unwrap(), new);
        let written = Written {
            path: page.path,
            blocks: vec!["custom-share"],
            old: text.clone(),
            new: new.clone(),
        };
        let error = checked(&[written]).unwrap_err();
        assert!(
            error.starts_with(
                "the block `gpu: custom-share` of docs/torch.md is not what the records give"
            ),
            "{error}"
        );
        assert!(error.contains("it has:           old\n"), "{error}");
        // A block that nobody writes, and one that is not there.
        let more = format!("{text}{}\n{END}\n", begin("other"));
        let error = page.with_blocks(&more, &records()).unwrap_err();
        assert!(error.contains("2 blocks `gpu:`"), "{error}");
        let error = page.with_blocks("a\n", &records()).unwrap_err();
        assert_eq!(
            error,
            "docs/torch.md lacks the line <!-- gpu: custom-share -->"
        );
    }

    #[test]
    fn records_of_programs_that_ended_are_taken() {
        let folder = folder("taken");
        let write = |file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
        let record = json!({"gpu": "NVIDIA H200"}).to_string();
        write("h200-host.json", &record);
        write("host.log", "plan: missed\n10 passed, 1 failed\n");
        write("h200-custom.json", &record);
        write("custom.log", "5 passed, 0 failed\n");
        write("h200.json", &record);
        write("rows.log", "a row\n");
        write("h200-tests.json", &record);
        let taken = Taken::from(&folder).unwrap();
        let names: Vec<&str> = taken.records.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["custom", "host", "tests"]);
        assert_eq!(
            taken.notes,
            [
                "h200-host.json: its program closed with 1 failed",
                "h200.json is left: its program did not end, its log closes with `a row`",
            ]
        );
        write("h200-more.json", &record);
        let error = Taken::from(&folder).unwrap_err();
        assert!(
            error.contains("h200-more.json is no record that a page shows"),
            "{error}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn rows_that_a_new_record_lacks_are_named() {
        let old = json!({"rows": [{"name": "a", "part": "first"}, {"name": "a", "part": "warm"}]});
        let new = json!({"rows": [{"name": "a", "part": "warm"}, {"name": "b"}]});
        assert_eq!(
            lost_rows("start", Some(&old), &new).unwrap(),
            "h200-start.json lacks rows that the older record has: first a"
        );
        assert_eq!(lost_rows("start", Some(&old), &old), None);
        assert_eq!(lost_rows("start", None, &new), None);
    }

    #[test]
    fn records_of_another_gpu_broken_ones_and_no_records_are_errors() {
        let folder = folder("refused");
        let error = |folder: &Path| Taken::from(folder).unwrap_err();
        assert!(error(&folder).contains("has no record of h200"));
        let file = folder.join("h200-host.json");
        fs::write(&file, r#"{"gpu": "NVIDIA H100"}"#).unwrap();
        assert!(error(&folder).contains("h200-host.json is of `NVIDIA H100`"));
        fs::write(&file, "{").unwrap();
        assert!(error(&folder).contains("h200-host.json is no JSON"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(error(&folder).starts_with("cannot read the folder"));
    }

    #[test]
    fn arguments_are_a_folder_or_a_check() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            parsed(&words)
        };
        assert_eq!(parse(&[]).unwrap(), (None, false));
        assert_eq!(parse(&["--check"]).unwrap(), (None, true));
        assert_eq!(parse(&["a"]).unwrap(), (Some(PathBuf::from("a")), false));
        for wrong in [&["--chek"][..], &["a", "b"], &["a", "--check"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
