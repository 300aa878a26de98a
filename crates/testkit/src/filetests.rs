//! Cases kept as files: header, input text, expected text. The format is described in `docs/filetests.md`.
//!
//! ```text
//! ; test: print
//! ; test: run target=interpreter
//!
//! the input text
//!
//! ; expect
//! the expected text
//! ```
//!
//! A crate drives a folder of them with one closure from its own `tests/filetests.rs`:
//!
//! ```no_run
//! oxyfuel_testkit::run_folder("graph", |case| match case.command.as_str() {
//!     "print" => Ok(case.input.to_uppercase()),
//!     other => Err(format!("unknown command `{other}`")),
//! });
//! ```
//!
//! What the closure returns, `Ok` or `Err`, is compared with the expected text: a case may expect an error. Where a
//! header has several `; test:` lines, each is run on the same input and each must give that same text: so one file can
//! hold an interpreter and three targets to one result. Under `BLESS=1` the files are rewritten with what came.

use crate::diff;
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const TEST: &str = "; test:";
const EXPECT: &str = "; expect";

/// One `; test:` line of one file, with the file's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub path: PathBuf,
    /// The file's name without its ending.
    pub name: String,
    /// The pass, stage or action that the header names.
    pub command: String,
    pub args: BTreeMap<String, String>,
    /// The text between the header and `; expect`, without blank lines around it.
    pub input: String,
    /// The line of the file (from 1) on which `input` begins, for messages.
    pub input_line: usize,
    /// The expected text as it stands in the file, for the parts of it that not every machine can check.
    pub expected: Option<String>,
}

impl Case {
    pub fn arg(&self, key: &str) -> Option<&str> {
        self.args.get(key).map(String::as_str)
    }

    /// An argument that must be there; the error is a sentence for the report.
    pub fn require(&self, key: &str) -> Result<&str, String> {
        self.arg(key)
            .ok_or_else(|| format!("error: `{TEST} {}` needs `{key}=…`", self.command))
    }
}

/// How to run: read from the environment by [`run_folder`], given as data to [`run_dir`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Rewrite the expectations (`BLESS=1`).
    pub bless: bool,
    /// Run only the files whose path contains this (`FILETEST=…`).
    pub filter: Option<String>,
}

impl Settings {
    pub fn from_env() -> Settings {
        let set = |key: &str| {
            std::env::var(key)
                .ok()
                .filter(|v| !v.is_empty() && v != "0")
        };
        Settings {
            bless: set("BLESS").is_some(),
            filter: set("FILETEST"),
        }
    }
}

/// What happened to the files of a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub passed: usize,
    pub blessed: Vec<PathBuf>,
    /// One readable text a file that failed.
    pub failures: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests")
}

/// Gives the cases of one command under `tests/filetests/<folder>/`, which another crate drives, to a check that rewrites nothing. Says how many
/// there were, and panics with a report where one fails.
pub fn check_folder(
    folder: &str,
    command: &str,
    check: impl Fn(&Case) -> Result<(), String>,
) -> usize {
    let mut files = Vec::new();
    list(&root().join(folder), &mut files).unwrap_or_else(|sentence| panic!("{sentence}"));
    if let Some(filter) = Settings::from_env().filter {
        files.retain(|f| f.to_string_lossy().contains(&filter));
    }
    let (mut checked, mut failures) = (0, Vec::new());
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let cases = parse(&path, &text).map(|file| file.cases);
        let cases = cases.unwrap_or_else(|sentence| panic!("{}: {sentence}", path.display()));
        for case in cases.iter().filter(|case| case.command == command) {
            checked += 1;
            if let Err(text) = check(case) {
                failures.push(format!("{}:\n{text}", path.display()));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {checked} cases of `{folder}` failed\n\n{}",
        failures.len(),
        failures.join("\n")
    );
    checked
}

/// Runs every case under `tests/filetests/<folder>/` of this repository, and panics with a report where one fails.
pub fn run_folder(folder: &str, run: impl Fn(&Case) -> Result<String, String>) {
    let settings = Settings::from_env();
    let report = run_dir(&root().join(folder), &settings, run);
    for path in &report.blessed {
        println!("blessed {}", path.display());
    }
    assert!(
        report.failures.is_empty(),
        "{} of {} filetests failed in `{folder}`\n\n{}",
        report.failures.len(),
        report.failures.len() + report.passed + report.blessed.len(),
        report.failures.join("\n")
    );
}

/// Runs every case in a folder and the folders in it.
pub fn run_dir(
    dir: &Path,
    settings: &Settings,
    run: impl Fn(&Case) -> Result<String, String>,
) -> Report {
    let mut report = Report::default();
    let mut files = Vec::new();
    if let Err(sentence) = list(dir, &mut files) {
        report.failures.push(sentence);
        return report;
    }
    // A folder that lost its files, or a wrong name, must not pass as "nothing to do".
    if files.is_empty() {
        report
            .failures
            .push(format!("{}: no filetests here", dir.display()));
    }
    if let Some(filter) = &settings.filter {
        files.retain(|f| f.to_string_lossy().contains(filter.as_str()));
    }
    for path in files {
        match run_file(&path, settings.bless, &run) {
            Ok(false) => report.passed += 1,
            Ok(true) => report.blessed.push(path),
            Err(text) => report.failures.push(format!("{}:\n{text}", path.display())),
        }
    }
    report
}

/// The case files under a folder, sorted. A file that is neither a case nor a `README.md` is a mistake.
fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("{}: cannot be read: {e}", dir.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(cannot)? {
        entries.push(entry.map_err(cannot)?.path());
    }
    entries.sort();
    for path in entries {
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "txt") {
            files.push(path);
        } else if path.file_name().is_none_or(|n| n != "README.md") {
            return Err(format!("{}: a filetest ends in .txt", path.display()));
        }
    }
    Ok(())
}

/// Runs one file. `Ok(true)` means that its expectation was rewritten.
fn run_file(
    path: &Path,
    bless: bool,
    run: &impl Fn(&Case) -> Result<String, String>,
) -> Result<bool, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("cannot be read: {e}"))?;
    let file = parse(path, &text)?;
    let mut results: Vec<(&Case, String)> = Vec::new();
    for case in &file.cases {
        results.push((case, result_text(case, run)?));
    }
    let Some(((first, actual), others)) = results.split_first() else {
        return Ok(false);
    };
    for (case, other) in others {
        if other != actual && (bless || file.expected.is_none()) {
            let difference = diff::lines(actual, other);
            return Err(format!(
                "`{}` (-) and `{}` (+) disagree:\n{difference}",
                header(first),
                header(case)
            ));
        }
    }
    if bless {
        if file.expected.as_deref() == Some(actual) {
            return Ok(false);
        }
        fs::write(
            path,
            format!("{}\n\n{EXPECT}\n{actual}", file.before_expect.trim_end()),
        )
        .map_err(|e| format!("cannot be rewritten: {e}"))?;
        return Ok(true);
    }
    let Some(expected) = &file.expected else {
        return Err(format!(
            "has no `{EXPECT}` line; BLESS=1 would write this:\n{actual}"
        ));
    };
    for (case, actual) in &results {
        if actual != expected {
            let difference = diff::lines(expected, actual);
            return Err(format!(
                "`{}`: - expected, + came (BLESS=1 rewrites):\n{difference}",
                header(case)
            ));
        }
    }
    Ok(false)
}

fn header(case: &Case) -> String {
    let args = case.args.iter().map(|(k, v)| format!(" {k}={v}"));
    format!("{TEST} {}{}", case.command, args.collect::<String>())
}

/// The text a case gives; an error is text too, and a panic is a failure of its own.
fn result_text(
    case: &Case,
    run: &impl Fn(&Case) -> Result<String, String>,
) -> Result<String, String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(case)));
    let result = result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        format!("`{}` panicked: {text}", header(case))
    })?;
    Ok(match result {
        Ok(text) => tidy(&text),
        Err(text) if text.starts_with("error") => tidy(&text),
        Err(text) => tidy(&format!("error: {text}")),
    })
}

/// Without blanks at line ends and blank lines around; with one newline at the end unless empty.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let start = lines
        .iter()
        .position(|l| !l.is_empty())
        .unwrap_or(lines.len());
    let end = lines
        .iter()
        .rposition(|l| !l.is_empty())
        .map_or(start, |at| at + 1);
    lines[start..end].iter().flat_map(|l| [*l, "\n"]).collect()
}

#[derive(Debug)]
struct File<'a> {
    cases: Vec<Case>,
    before_expect: &'a str,
    expected: Option<String>,
}

fn parse<'a>(path: &Path, text: &'a str) -> Result<File<'a>, String> {
    let (before_expect, expected) = split_at_expect(text);
    let is_header = |line: &&str| line.starts_with(';') || line.trim().is_empty();
    let header_len = before_expect.lines().take_while(is_header).count();
    let mut tests = Vec::new();
    for (at, line) in before_expect.lines().enumerate() {
        let at_line = |sentence: String| format!("line {}: {sentence}", at + 1);
        if let Some(rest) = line.strip_prefix(TEST) {
            if at >= header_len {
                return Err(at_line(format!(
                    "`{TEST}` belongs in the header, above the input"
                )));
            }
            tests.push(parse_test(rest).map_err(at_line)?);
        } else if line.trim_start_matches([';', ' ']).starts_with("test:") {
            return Err(at_line(format!(
                "write a header as `{TEST} <command> key=value…`"
            )));
        }
    }
    if tests.is_empty() {
        return Err(format!("has no `{TEST}` line"));
    }
    let rest: Vec<&str> = before_expect.lines().skip(header_len).collect();
    let input = tidy(&rest.join("\n"));
    let name = path
        .file_stem()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let expected = expected.map(tidy);
    let case = |(command, args)| Case {
        path: path.to_owned(),
        name: name.clone(),
        command,
        args,
        input: input.clone(),
        input_line: header_len + 1,
        expected: expected.clone(),
    };
    let cases = tests.into_iter().map(case).collect();
    Ok(File {
        cases,
        before_expect,
        expected,
    })
}

/// Splits at the first line that is exactly `; expect`; what follows it may contain anything.
fn split_at_expect(text: &str) -> (&str, Option<&str>) {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_end() == EXPECT {
            return (&text[..at], Some(&text[at + line.len()..]));
        }
        at += line.len();
    }
    (text, None)
}

fn parse_test(text: &str) -> Result<(String, BTreeMap<String, String>), String> {
    let mut words = text.split_whitespace();
    let command = words
        .next()
        .filter(|w| !w.contains('='))
        .ok_or("the header names no command")?;
    let mut args = BTreeMap::new();
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(k, _)| !k.is_empty()) else {
            return Err(format!("`{word}` is not of the form key=value"));
        };
        if args.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{key}` is given twice"));
        }
    }
    Ok((command.to_owned(), args))
}

#[cfg(test)]
mod tests;
