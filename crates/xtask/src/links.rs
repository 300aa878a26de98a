//! `links`: every relative link in a Markdown page leads to something, and no page has the marks of a merge that was not finished.

use crate::args::Args;
use crate::{Outcome, process, workspace};
use std::path::Path;
use std::process::Command;

pub const HELP: &str = "\
usage: cargo xtask links

Checks that every relative link in the Markdown pages of the repository leads to a file or folder,
and that no page holds the marks of a merge that was not finished.
";

pub fn run(args: &[String]) -> Outcome {
    Args::parse(args, &[])?.nothing_after_dashes()?;
    check()
}

pub fn check() -> Outcome {
    let root = workspace::root();
    let mut git = Command::new("git");
    git.current_dir(&root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        "*.md",
    ]);
    let pages = process::capture(&mut git, "git ls-files")?;
    let (mut count, mut broken) = (0, 0);
    for page in pages.lines() {
        // A page deleted but not yet committed is still listed.
        let Ok(text) = std::fs::read_to_string(root.join(page)) else {
            continue;
        };
        count += 1;
        for line in unmerged(&text) {
            eprintln!("links: {page}:{line}: a merge was not finished here");
            broken += 1;
        }
        let folder = Path::new(page).parent().unwrap_or(Path::new(""));
        for (line, target) in links(&text) {
            if !root.join(folder).join(target).exists() {
                eprintln!("links: {page}:{line}: `{target}` is not there");
                broken += 1;
            }
        }
    }
    match broken {
        0 => {
            println!("links: {count} pages, every link leads somewhere");
            Ok(())
        }
        1 => Err("1 line to mend".to_owned()),
        n => Err(format!("{n} lines to mend")),
    }
}

/// Lines (from 1) that git writes where both sides changed the same.
fn unmerged(text: &str) -> impl Iterator<Item = usize> {
    let marked = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    let lines = text.lines().enumerate();
    lines.filter_map(move |(at, line)| marked(line).then_some(at + 1))
}

/// The targets of relative links outside code blocks, with their lines (from 1) and without fragments.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for part in line.split("](").skip(1) {
            let Some((target, _)) = part.split_once(')') else {
                continue;
            };
            let target = target.split('#').next().unwrap_or(target);
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((at + 1, target));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_merges_that_were_not_finished() {
        let text = "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> 12ab\n";
        assert_eq!(unmerged(text).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(unmerged("a\n=======\n").count(), 0);
    }

    #[test]
    fn finds_relative_links_alone() {
        let page = "see [a](x/a.md), [b](b.md#part) and [c](https://c.example)\n```\n[d](d.md)\n```\n[here](#part)\n[e](e)\n";
        assert_eq!(links(page), [(1, "x/a.md"), (1, "b.md"), (6, "e")]);
    }
}
