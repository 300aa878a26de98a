//! `deps`: the crate table of `ARCHITECTURE.md` is the law, the manifests must follow it.
//!
//! The table is read, never copied: a new arrow is a change to that page, seen in review. Rules:
//! - every crate has one row and every row has its crate, unless the row says `planned:`;
//! - a crate's `[dependencies]` and `[build-dependencies]` name only workspace crates of its row, and `base`,
//!   the common vocabulary, which is open to all;
//! - a row that says `(dev only)` may import anything, and may itself be imported as a dev-dependency only;
//! - dev-dependencies are free, except that they must not close a circle: then the crate under test would be
//!   built twice, and its types would not match their twins.
//!
//! What the table cannot say (unsafe code, lints, the environment) is checked by [`sources`] in the same command.

use crate::args::Args;
use crate::workspace::{Kind, Package};
use crate::{Outcome, sources, workspace};
use std::collections::{BTreeMap, BTreeSet};

pub const HELP: &str = "\
usage: cargo xtask deps

Checks the manifests against the crate table in ARCHITECTURE.md: who may import whom (`may import` column),
dev-dependencies that close a circle, `#![forbid(unsafe_code)]` in every crate but `runtime` and `python`,
`[lints] workspace = true`, and environment variables read outside the edge. Prints what to fix.
";

/// May be imported by every crate without being named.
const OPEN_TO_ALL: &str = "base";

pub fn run(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    check()
}

pub fn check() -> Outcome {
    let root = workspace::root();
    let page = root.join("ARCHITECTURE.md");
    let text =
        std::fs::read_to_string(&page).map_err(|e| format!("cannot read ARCHITECTURE.md: {e}"))?;
    let table = parse_table(&text)?;
    let packages = workspace::members()?;
    let mut problems = check_arrows(&table, &packages);
    for package in &packages {
        problems.extend(sources::problems(package)?);
    }
    if problems.is_empty() {
        println!(
            "deps: {} crates follow the table in ARCHITECTURE.md",
            packages.len()
        );
        return Ok(());
    }
    for problem in &problems {
        eprintln!("deps: {problem}");
    }
    Err(format!(
        "{} to fix between the manifests and ARCHITECTURE.md",
        count(problems.len(), "thing")
    ))
}

fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    may_import: MayImport,
    planned: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum MayImport {
    Only(BTreeSet<String>),
    /// `(dev only)`: anything, since nothing that ships depends on it.
    DevOnly,
}

type Table = BTreeMap<String, Row>;

/// Reads the table whose header's first cell begins with `crate` and whose last is `may import`.
fn parse_table(page: &str) -> Result<Table, String> {
    let mut lines = page
        .lines()
        .map(cells)
        .skip_while(|c| !is_header(c.as_deref()));
    lines
        .next()
        .ok_or("ARCHITECTURE.md has no table with a `crate` and a `may import` column")?;
    lines.next();
    let mut table = Table::new();
    for row in lines.map_while(|cells| cells) {
        let [names, what, imports] = row.as_slice() else {
            return Err(format!(
                "ARCHITECTURE.md: the crate table has a row of {} cells, not 3",
                row.len()
            ));
        };
        let names = in_backticks(names);
        if names.is_empty() {
            return Err(
                "ARCHITECTURE.md: the crate table has a row without a `crate` name".to_owned(),
            );
        }
        for name in names {
            let row = Row {
                may_import: may_import(imports, &table)?,
                planned: what.starts_with("planned:"),
            };
            if table.insert(name.to_owned(), row).is_some() {
                return Err(format!("ARCHITECTURE.md: crate `{name}` has two rows"));
            }
        }
    }
    let known: BTreeSet<&String> = table.keys().collect();
    for (name, row) in &table {
        if let MayImport::Only(imports) = &row.may_import
            && let Some(stranger) = imports.iter().find(|i| !known.contains(i))
        {
            return Err(format!(
                "ARCHITECTURE.md: `{name}` may import `{stranger}`, which has no row"
            ));
        }
    }
    Ok(table)
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn is_header(cells: Option<&[&str]>) -> bool {
    cells.is_some_and(|c| {
        c.first().is_some_and(|f| f.starts_with("crate")) && c.last() == Some(&"may import")
    })
}

fn in_backticks(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn may_import(cell: &str, above: &Table) -> Result<MayImport, String> {
    match cell {
        "-" => Ok(MayImport::Only(BTreeSet::new())),
        "(dev only)" => Ok(MayImport::DevOnly),
        "all above" => Ok(MayImport::Only(above.keys().cloned().collect())),
        list => {
            let names: BTreeSet<String> = list
                .split(',')
                .map(|n| n.trim().trim_matches('`').to_owned())
                .collect();
            let is_name = |n: &String| {
                !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            match names.iter().find(|n| !is_name(n)) {
                None => Ok(MayImport::Only(names)),
                Some(odd) => Err(format!(
                    "ARCHITECTURE.md: `{odd}` in the may-import column is not a crate name"
                )),
            }
        }
    }
}

/// The directory name of a workspace crate (`oxyfuel-base` lives in `crates/base`).
pub fn short(name: &str) -> &str {
    name.strip_prefix("oxyfuel-").unwrap_or(name)
}

fn check_arrows(table: &Table, packages: &[Package]) -> Vec<String> {
    let members: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    let is_dev_only = |name: &str| {
        table
            .get(name)
            .is_some_and(|r| r.may_import == MayImport::DevOnly)
    };
    let mut problems = Vec::new();
    for package in packages {
        let name = short(&package.name);
        let Some(row) = table.get(name) else {
            problems.push(format!(
                "crate `{name}` has no row in ARCHITECTURE.md: add one"
            ));
            continue;
        };
        if row.planned {
            problems.push(format!(
                "crate `{name}` exists, but its row says `planned:`: remove that word"
            ));
        }
        let ours = package
            .dependencies
            .iter()
            .filter(|d| members.contains(d.name.as_str()));
        for dependency in ours {
            let import = short(&dependency.name);
            if dependency.kind == Kind::Dev {
                if let Some(way) = path(packages, &dependency.name, &package.name) {
                    let way: Vec<&str> = way.iter().map(|n| short(n)).collect();
                    problems.push(format!(
                        "`{name}` has the dev-dependency `{import}`, which leads back to it ({}): move the test to a crate above both",
                        way.join(" -> ")
                    ));
                }
                continue;
            }
            match &row.may_import {
                MayImport::DevOnly => {}
                MayImport::Only(_) if is_dev_only(import) => {
                    problems.push(format!(
                        "`{name}` imports `{import}`, which is for tests alone: make it a dev-dependency"
                    ));
                }
                MayImport::Only(allowed) if allowed.contains(import) || import == OPEN_TO_ALL => {}
                MayImport::Only(allowed) => {
                    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
                    problems.push(format!(
                        "`{name}` imports `{import}`, but may import only: {}; drop it from crates/{name}/Cargo.toml or change the table",
                        if allowed.is_empty() { OPEN_TO_ALL.to_owned() } else { allowed.join(", ") }
                    ));
                }
            }
        }
    }
    let present: BTreeSet<&str> = packages.iter().map(|p| short(&p.name)).collect();
    for (name, row) in table {
        if !row.planned && !present.contains(name.as_str()) {
            problems.push(format!(
                "ARCHITECTURE.md has a row for `{name}`, but there is no such crate"
            ));
        }
    }
    problems
}

/// A way from one package to another along normal and build dependencies.
fn path<'a>(packages: &'a [Package], from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![from]];
    let mut seen = BTreeSet::from([from]);
    while let Some(way) = ways.pop() {
        let last = *way.last()?;
        if last == to {
            return Some(way);
        }
        let Some(package) = packages.iter().find(|p| p.name == last) else {
            continue;
        };
        for d in package.dependencies.iter().filter(|d| d.kind != Kind::Dev) {
            if seen.insert(&d.name) {
                ways.push(way.iter().copied().chain([d.name.as_str()]).collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;
    use std::path::PathBuf;

    const PAGE: &str = "\
Words first.

| crate (`crates/…`) | what lives there | may import |
|---|---|---|
| `base` | words | - |
| `graph` | tensors | base |
| `kernel` | tiles | base |
| `engine` | order | all above |
| `python` | planned: the door | engine |
| `testkit`, `xtask` | tests | (dev only) |

After it.
";

    fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(n, kind)| Dependency {
                name: (*n).to_owned(),
                kind: *kind,
            })
            .collect();
        Package {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            license: None,
            has_license_file: false,
            source: None,
            manifest: PathBuf::new(),
            dependencies,
            roots: Vec::new(),
        }
    }

    fn good() -> Vec<Package> {
        vec![
            package("oxyfuel-base", &[("half", Kind::Normal)]),
            package(
                "oxyfuel-graph",
                &[
                    ("oxyfuel-base", Kind::Normal),
                    ("oxyfuel-testkit", Kind::Dev),
                ],
            ),
            package("oxyfuel-kernel", &[("oxyfuel-base", Kind::Normal)]),
            package(
                "oxyfuel-engine",
                &[
                    ("oxyfuel-graph", Kind::Normal),
                    ("oxyfuel-kernel", Kind::Normal),
                ],
            ),
            package("oxyfuel-testkit", &[]),
            package("xtask", &[]),
        ]
    }

    fn problems(packages: &[Package]) -> Vec<String> {
        check_arrows(&parse_table(PAGE).unwrap(), packages)
    }

    #[test]
    fn a_tree_that_follows_the_table_passes() {
        assert_eq!(problems(&good()), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_outside_the_table_is_named() {
        let mut tree = good();
        tree[1] = package("oxyfuel-graph", &[("oxyfuel-kernel", Kind::Normal)]);
        let found = problems(&tree);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("`graph` imports `kernel`, but may import only: base"),
            "{}",
            found[0]
        );
    }

    #[test]
    fn testkit_may_be_a_dev_dependency_only() {
        let mut tree = good();
        tree[2] = package("oxyfuel-kernel", &[("oxyfuel-testkit", Kind::Normal)]);
        assert!(problems(&tree)[0].contains("make it a dev-dependency"));
    }

    #[test]
    fn a_dev_dependency_that_leads_back_is_a_circle() {
        let mut tree = good();
        tree[4] = package("oxyfuel-testkit", &[("oxyfuel-graph", Kind::Normal)]);
        let found = problems(&tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("testkit -> graph"), "{}", found[0]);
    }

    #[test]
    fn rows_and_crates_must_match() {
        let mut tree = good();
        tree.remove(2);
        tree[2] = package("oxyfuel-engine", &[]);
        tree.push(package("oxyfuel-python", &[]));
        tree.push(package("oxyfuel-extra", &[]));
        let found = problems(&tree).join("\n");
        assert!(
            found.contains("row for `kernel`, but there is no such crate"),
            "{found}"
        );
        assert!(
            found.contains("`python` exists, but its row says `planned:`"),
            "{found}"
        );
        assert!(found.contains("`extra` has no row"), "{found}");
    }

    #[test]
    fn broken_tables_are_sentences() {
        assert!(parse_table("no table").unwrap_err().contains("no table"));
        let header = "| crate | x | may import |\n|---|---|---|\n";
        assert!(
            parse_table(&format!("{header}| `a` | w | b |\n"))
                .unwrap_err()
                .contains("`b`, which has no row")
        );
        assert!(
            parse_table(&format!("{header}| `a` | w |\n"))
                .unwrap_err()
                .contains("2 cells")
        );
        assert!(
            parse_table(&format!("{header}| a | w | - |\n"))
                .unwrap_err()
                .contains("without a `crate` name")
        );
        assert!(
            parse_table(&format!("{header}| `a` | w | - |\n| `a` | w | - |\n"))
                .unwrap_err()
                .contains("two rows")
        );
        assert!(
            parse_table(&format!("{header}| `a` | w | b c |\n"))
                .unwrap_err()
                .contains("not a crate name")
        );
    }
}
