//! The op tables of `docs/kernel.md` are those of the code.

use oxyfuel_kernel::table::TABLE;
use oxyfuel_kernel::{ArgOp, BinaryOp, CompareOp, ReduceOp, UnaryOp};
use std::fmt::Write;

const BEGIN: &str = "<!-- ops -->";

fn tables() -> String {
    let mut out = format!("{BEGIN}\n\n| op | form | meaning |\n|---|---|---|\n");
    for row in TABLE {
        writeln!(
            out,
            "| `{}` | {} | {} |",
            row.syntax,
            row.forms.name(),
            row.doc
        )
        .unwrap();
    }
    let families: [(&str, Vec<(&str, &str)>); 5] = [
        (
            "Unary",
            UnaryOp::ALL
                .iter()
                .map(|op| (op.name(), op.doc()))
                .collect(),
        ),
        (
            "Binary",
            BinaryOp::ALL
                .iter()
                .map(|op| (op.name(), op.doc()))
                .collect(),
        ),
        (
            "Compare",
            CompareOp::ALL
                .iter()
                .map(|op| (op.name(), op.doc()))
                .collect(),
        ),
        (
            "Combinations (`reduce.`, `scan.`, `atomic.`)",
            ReduceOp::ALL
                .iter()
                .map(|op| (op.name(), op.doc()))
                .collect(),
        ),
        (
            "Extremes by position",
            ArgOp::ALL.iter().map(|op| (op.name(), op.doc())).collect(),
        ),
    ];
    for (title, rows) in families {
        write!(out, "\n### {title}\n\n| name | meaning |\n|---|---|\n").unwrap();
        for (name, doc) in rows {
            writeln!(out, "| `{name}` | {doc} |").unwrap();
        }
    }
    out
}

#[test]
fn the_page_lists_the_ops_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernel.md");
    let page = std::fs::read_to_string(path).unwrap();
    let words = page.split(BEGIN).next().unwrap_or_default().trim_end();
    let wanted = format!("{words}\n\n{}", tables());
    if std::env::var("BLESS").is_ok_and(|v| v == "1") {
        std::fs::write(path, wanted).unwrap();
    } else {
        assert!(
            page == wanted,
            "docs/kernel.md is out of date: run with BLESS=1"
        );
    }
}
