//! The runner against folders made for the occasion.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder of its own under the system's temporary one, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("oxyfuel-filetests-{}-{id}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            let file = path.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Folder(path)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn run(&self) -> Report {
        run_dir(&self.0, &Settings::default(), double)
    }

    fn bless(&self) -> Report {
        run_dir(
            &self.0,
            &Settings {
                bless: true,
                filter: None,
            },
            double,
        )
    }

    fn failure(&self) -> String {
        let report = self.run();
        assert_eq!(report.failures.len(), 1, "{report:?}");
        report.failures[0].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The pass under test: doubles every number.
fn double(case: &Case) -> Result<String, String> {
    match case.command.as_str() {
        "double" => {}
        "off-by-one" => return Ok("3\n".to_owned()),
        "panic" => panic!("on purpose"),
        other => return Err(format!("unknown command `{other}`")),
    }
    let by: i64 = case
        .arg("by")
        .unwrap_or("2")
        .parse()
        .map_err(|_| "error[E0001]: by".to_owned())?;
    let doubled = case.input.lines().map(|line| match line.parse::<i64>() {
        Ok(n) => Ok(format!("{}\n", n * by)),
        Err(_) => Err(format!("error[E0203]: `{line}` is not a number")),
    });
    doubled.collect()
}

#[test]
fn cases_pass_in_depth_and_with_arguments() {
    let folder = Folder::new(&[
        (
            "a.txt",
            "; test: double\n; a remark\n\n1\n2\n\n; expect\n2\n4\n",
        ),
        ("deep/b.txt", "; test: double by=3\n1\n; expect\n3\n"),
        ("README.md", "words"),
    ]);
    assert_eq!(
        folder.run(),
        Report {
            passed: 2,
            ..Report::default()
        }
    );
}

#[test]
fn a_mismatch_shows_the_difference_and_leaves_the_file() {
    let text = "; test: double\n1\n2\n; expect\n2\n5\n";
    let folder = Folder::new(&[("a.txt", text)]);
    let failure = folder.failure();
    assert!(
        failure.contains("a.txt") && failure.contains("  2\n- 5\n+ 4\n"),
        "{failure}"
    );
    assert_eq!(folder.read("a.txt"), text);
}

#[test]
fn errors_are_text_to_expect() {
    let folder = Folder::new(&[
        (
            "coded.txt",
            "; test: double\nx\n; expect\nerror[E0203]: `x` is not a number\n",
        ),
        (
            "plain.txt",
            "; test: triple\nx\n; expect\nerror: unknown command `triple`\n",
        ),
    ]);
    assert_eq!(folder.run().passed, 2);
}

#[test]
fn bless_rewrites_only_what_differs() {
    let good = "; test: double\n1\n; expect\n2\n";
    let folder = Folder::new(&[
        ("good.txt", good),
        ("new.txt", "; test: double\n; why it is here\n\n7\n"),
        (
            "old.txt",
            "; test: double\n1\n\n; expect\nwrong\n; expect\nmore\n",
        ),
    ]);
    let report = folder.bless();
    assert_eq!(
        (report.passed, report.blessed.len(), report.failures.len()),
        (1, 2, 0),
        "{report:?}"
    );
    assert_eq!(folder.read("good.txt"), good);
    assert_eq!(
        folder.read("new.txt"),
        "; test: double\n; why it is here\n\n7\n\n; expect\n14\n"
    );
    assert_eq!(folder.read("old.txt"), "; test: double\n1\n\n; expect\n2\n");
    assert_eq!(folder.run().passed, 3);
}

#[test]
fn several_tests_hold_to_one_expectation() {
    let agree = "; test: double\n; test: off-by-one\n1\n; expect\n2\n";
    let folder = Folder::new(&[("a.txt", agree)]);
    let failure = folder.failure();
    assert!(
        failure.contains("; test: off-by-one") && failure.contains("- 2\n+ 3"),
        "{failure}"
    );
    let report = folder.bless();
    assert!(report.failures[0].contains("disagree"), "{report:?}");
    assert_eq!(folder.read("a.txt"), agree);
}

#[test]
fn a_panic_is_that_files_failure_alone() {
    let folder = Folder::new(&[
        ("a.txt", "; test: panic\n1\n; expect\n2\n"),
        ("b.txt", "; test: double\n1\n; expect\n2\n"),
    ]);
    let report = folder.run();
    assert_eq!(report.passed, 1);
    assert!(
        report.failures[0].contains("panicked: on purpose"),
        "{report:?}"
    );
}

#[test]
fn malformed_headers_say_what_is_wrong() {
    for (text, wanted) in [
        ("1\n; expect\n2\n", "has no `; test:` line"),
        ("; test double\n1\n; expect\n2\n", "has no `; test:` line"),
        (
            "; test:\n1\n; expect\n2\n",
            "line 1: the header names no command",
        ),
        ("; test: by=2\n1\n; expect\n2\n", "names no command"),
        (
            "; test: double fast\n1\n; expect\n2\n",
            "`fast` is not of the form key=value",
        ),
        (
            "; test: double =2\n1\n; expect\n2\n",
            "`=2` is not of the form key=value",
        ),
        (
            "; test: double by=2 by=3\n1\n; expect\n2\n",
            "`by` is given twice",
        ),
        (
            ";test: double\n1\n; expect\n2\n",
            "line 1: write a header as",
        ),
        (
            "; test: double\n1\n; test: double\n; expect\n2\n",
            "line 3: `; test:` belongs in the header",
        ),
        (
            "; test: double\n1\n",
            "has no `; expect` line; BLESS=1 would write this:\n2\n",
        ),
    ] {
        let failure = Folder::new(&[("a.txt", text)]).failure();
        assert!(failure.contains(wanted), "{text:?} gave {failure}");
    }
}

#[test]
fn folders_that_would_pass_by_mistake_fail() {
    assert!(Folder::new(&[]).failure().contains("no filetests here"));
    assert!(
        Folder::new(&[("a.text", "x")])
            .failure()
            .contains("ends in .txt")
    );
    let report = run_dir(Path::new("/no/such/folder"), &Settings::default(), double);
    assert!(report.failures[0].contains("cannot be read"));
}

#[test]
fn a_filter_chooses_files() {
    let folder = Folder::new(&[
        ("one.txt", "; test: double\n1\n; expect\n2\n"),
        ("two.txt", "; test: double\n1\n; expect\nwrong\n"),
    ]);
    let only = |name: &str| Settings {
        bless: false,
        filter: Some(name.to_owned()),
    };
    assert_eq!(
        run_dir(&folder.0, &only("one"), double),
        Report {
            passed: 1,
            ..Report::default()
        }
    );
    assert_eq!(
        run_dir(&folder.0, &only("three"), double),
        Report::default()
    );
}

#[test]
fn the_case_knows_where_its_input_begins() {
    let file = parse(
        Path::new("x/softmax.txt"),
        "; test: a k=v\n\n; remark\n\ninput\n; expect\nout\n",
    )
    .unwrap();
    let case = &file.cases[0];
    assert_eq!(
        (case.name.as_str(), case.input.as_str(), case.input_line),
        ("softmax", "input\n", 5)
    );
    assert_eq!(case.require("k"), Ok("v"));
    assert!(
        case.require("other")
            .unwrap_err()
            .contains("needs `other=…`")
    );
}
