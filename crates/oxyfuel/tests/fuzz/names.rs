//! Every public method of [`Tensor`](oxyfuel::Tensor) is called by a table of random calls: the names in its sources beside the names in the tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where random calls are written down, and tests that call every row with tensors that nobody means.
const TABLES: &[&str] = &[
    include_str!("methods.rs"),
    include_str!("main.rs"),
    include_str!("../methods/fuzz.rs"),
    include_str!("../methods/table.rs"),
];

/// Macros whose rows are methods: their names stand before the first capital, string or bracket.
const MACROS: &[&str] = &[
    "unary! {",
    "binary! {",
    "reductions! {",
    "special! {",
    "convolutions! {",
    "pools! {",
    "in_place! {",
    "recipes! {",
];

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The names in the row of a macro; nothing for lines that begin none.
fn row(line: &str) -> impl Iterator<Item = &str> {
    line.split([' ', ':', ';'])
        .filter(|part| !matches!(*part, "/" | "1" | "2" | "3"))
        .take_while(|part| part.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(word)
}

/// The public methods that a source declares: in blocks of `impl Tensor`, and in rows of macros that write such blocks.
fn declared(source: &str, found: &mut BTreeSet<String>) {
    let (mut in_impl, mut in_macro) = (false, None);
    for line in source.lines() {
        if line.starts_with("impl Tensor {") {
            in_impl = true;
        } else if let Some(name) = MACROS.iter().find(|name| line.starts_with(**name)) {
            in_macro = Some(if *name == "recipes! {" { 8 } else { 4 });
        } else if line.starts_with('}') {
            (in_impl, in_macro) = (false, None);
        } else if in_impl && let Some(rest) = line.strip_prefix("    pub fn ") {
            found.insert(word(rest).to_owned());
        } else if let Some(indent) = in_macro
            && line.len() - line.trim_start().len() == indent
        {
            found.extend(row(line.trim_start()).map(str::to_owned));
        }
    }
}

fn sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            declared(&fs::read_to_string(path).unwrap(), found);
        }
    }
}

/// What is called in a text: words behind a dot or behind the type, before a bracket.
fn called(text: &str) -> BTreeSet<&str> {
    let behind = |mark: &'static str| {
        text.match_indices(mark)
            .map(move |(at, _)| &text[at + mark.len()..])
    };
    behind(".")
        .chain(behind("Tensor::"))
        .filter(|rest| rest[word(rest).len()..].starts_with(['(', ':']))
        .map(word)
        .collect()
}

#[test]
fn every_method_has_a_row() {
    let mut methods = BTreeSet::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut methods,
    );
    for known in [
        "add",
        "add_",
        "sum",
        "lgamma",
        "conv_transpose2d",
        "max_pool3d_positions",
        "square_",
        "clamp_",
        "topk",
        "hardtanh",
    ] {
        assert!(methods.contains(known), "the reader misses {known}");
    }
    let tables: BTreeSet<&str> = TABLES.iter().flat_map(|text| called(text)).collect();
    // A form that overwrites is written by the macro that writes the other one.
    let has_row = |name: &str| tables.contains(name) || tables.contains(name.trim_end_matches('_'));
    let missing: Vec<&String> = methods.iter().filter(|name| !has_row(name)).collect();
    assert!(
        missing.is_empty(),
        "no random calls of {missing:?}: give them rows in methods.rs"
    );
}

#[test]
fn a_method_without_a_row_is_seen() {
    let mut found = BTreeSet::new();
    let source = "impl Tensor {\n    pub fn brand_new(&self) {\n}\nunary! {\n    fresh / fresh_ Fresh \"new\";\n}\nrecipes! {\n    impl {\n        baked: [] () = Nodes(|r| {\n            let x = r.tensor(0)?;\n        });\n}\n";
    declared(source, &mut found);
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(names, ["baked", "brand_new", "fresh", "fresh_"]);
    assert!(!called("x.fresh()").contains("brand_new") && called("x.fresh()").contains("fresh"));
}
