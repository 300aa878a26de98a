//! The table of error codes: unique, stable, documented.

use oxyfuel_base::Code;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// The groups of codes, by their first three characters.
const GROUPS: &[(&str, &str)] = &[
    ("E01", "Capture: shapes, element types, devices"),
    ("E02", "Text"),
    ("E03", "Verifiers and checked execution"),
    ("E04", "Options"),
    ("E05", "Cache and files"),
    ("E06", "Sizes and memory"),
    ("E07", "Device and driver"),
    ("E08", "Internal"),
];

/// Compares with a file of the repository, or rewrites it where `BLESS` is set.
fn golden(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "{} is out of date: run the test with BLESS=1",
        path.display()
    );
}

#[test]
fn codes_are_unique_and_well_formed() {
    let mut seen = BTreeSet::new();
    for code in Code::ALL {
        let text = code.code();
        assert!(seen.insert(text), "{text} twice");
        assert!(
            text.len() == 5 && text[1..].bytes().all(|b| b.is_ascii_digit()),
            "{text}"
        );
        assert!(
            GROUPS.iter().any(|(prefix, _)| text.starts_with(prefix)),
            "{text}"
        );
        assert!(
            code.doc().ends_with('.') && !code.doc().contains('\n'),
            "{text}"
        );
    }
    assert!(
        seen.iter().copied().eq(Code::ALL.iter().map(|c| c.code())),
        "not in order"
    );
}

/// A released code keeps its meaning: blessing adds lines to the file and never changes one.
#[test]
fn codes_are_stable() {
    let lines: Vec<String> = Code::ALL
        .iter()
        .map(|c| format!("{c} {} {:?}", c.name(), c.fault()))
        .collect();
    for released in include_str!("golden/codes.txt").lines() {
        assert!(
            lines.iter().any(|line| line == released),
            "`{released}` is gone or has changed"
        );
    }
    golden("tests/golden/codes.txt", &(lines.join("\n") + "\n"));
}

#[test]
fn documentation_is_generated() {
    let mut text = String::from(
        "# Errors\n\n\
         Generated from the table in `crates/base/src/error.rs`; rewrite it with `BLESS=1 cargo test -p oxyfuel-base`.\n\n\
         Every error shows its code, what happened and, where there is one, the place and a way out:\n\n\
         ```text\nerror[E0101]: cannot broadcast [2, 3] with [4]\n  --> model.graph:3:7\n  help: the last dims must be equal or 1\n```\n\n\
         A code never changes its meaning. The last column says whose fault it is: yours (the program, text or option \
         is wrong), ours (a bug, please report it) or the machine's.\n",
    );
    for (prefix, title) in GROUPS {
        write!(
            text,
            "\n## {prefix}xx {title}\n\n| code | name | meaning | fault |\n|---|---|---|---|\n"
        )
        .unwrap();
        for code in Code::ALL.iter().filter(|c| c.code().starts_with(prefix)) {
            writeln!(
                text,
                "| `{code}` | `{}` | {} | {} |",
                code.name(),
                code.doc(),
                code.fault()
            )
            .unwrap();
        }
    }
    golden("../../docs/errors.md", &text);
}
