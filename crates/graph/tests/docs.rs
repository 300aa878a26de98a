//! The list of operators in `docs/graph.md` is the table.

use oxyfuel_graph::{OpInfo, op};
use std::fmt::Write as _;

const START: &str = "<!-- operators -->\n";
const END: &str = "<!-- end of operators -->\n";

fn row(info: &OpInfo) -> String {
    let mut attrs: Vec<String> = info
        .fixed
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""))
        .collect();
    attrs.extend(info.attrs.iter().map(|(name, _)| (*name).to_owned()));
    let accepts = match info.accepts {
        op::Accepts::Any => "any",
        op::Accepts::Compute => "float, int, bool",
        op::Accepts::Number => "float, int",
        op::Accepts::Integral => "int, bool",
        op::Accepts::Integer => "int",
        op::Accepts::Byte => "i8, u8",
        op::Accepts::Float | op::Accepts::IntToFloat => "float",
    };
    let cell = |items: &[String]| {
        if items.is_empty() {
            String::new()
        } else {
            format!("`{}`", items.join(", "))
        }
    };
    let operands: Vec<String> = info.operands.iter().map(|o| (*o).to_owned()).collect();
    format!(
        "| `{}` | {} | {} | {accepts} | {} |",
        info.name,
        cell(&operands),
        cell(&attrs),
        info.doc.replace('|', "\\|")
    )
}

fn list() -> String {
    let mut out = String::from(
        "\n| operator | operands | attributes | on | meaning |\n|---|---|---|---|---|\n",
    );
    for info in op::table() {
        let _ = writeln!(out, "{}", row(info));
    }
    out + "\n"
}

#[test]
fn the_page_lists_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/graph.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(START).unwrap();
    let (have, after) = rest.split_once(END).unwrap();
    if std::env::var("BLESS").is_ok_and(|v| v == "1") {
        std::fs::write(path, [before, START, &list(), END, after].concat()).unwrap();
        return;
    }
    assert_eq!(have, list(), "BLESS=1 renews docs/graph.md");
}

#[test]
fn names_are_unique_and_documented() {
    let mut seen = std::collections::HashSet::new();
    for info in op::table() {
        assert!(seen.insert((info.name, info.fixed)), "{} twice", info.name);
        assert!(info.doc.ends_with('.'), "{}: {}", info.name, info.doc);
    }
    assert!(seen.len() > 70, "{}", seen.len());
}
