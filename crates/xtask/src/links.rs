//! `links`: every relative link in a Markdown page leads to something.

use crate::args::Args;
use crate::{Outcome, process, workspace};
use std::path::Path;
use std::process::Command;

pub const HELP: &str = "\
usage: cargo xtask links

Checks that every relative link in the Markdown pages of the repository leads to a file or folder.
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
        1 => Err("1 link leads nowhere".to_owned()),
        n => Err(format!("{n} links lead nowhere")),
    }
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
    fn finds_relative_links_alone() {
        let page = "see [a](x/a.md), [b](b.md#part) and [c](https://c.example)\n```\n[d](d.md)\n```\n[here](#part)\n[e](e)\n";
        assert_eq!(links(page), [(1, "x/a.md"), (1, "b.md"), (6, "e")]);
    }
}
