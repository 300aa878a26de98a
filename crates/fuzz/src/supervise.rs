//! The process that starts the one that checks: wrong machine code may end it, and somebody has to say which program that was.
//!
//! Every worker notes what it is about to check in a small file. When the checking process dies, each case noted there runs again, alone.

use crate::Options;
use crate::case::{self, Kind, numbers};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// Bytes of a worker's note: kind and index.
const NOTE: usize = 16;

/// The file of notes.
#[derive(Debug)]
pub struct Crumbs(File);

impl Crumbs {
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(path);
        file.map(Self)
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// Notes what a worker begins. A note that cannot be written is missed only after a crash.
    pub fn note(&self, worker: usize, kind: Kind, index: u64) {
        let mut note = [0; NOTE];
        note[0] = match kind {
            Kind::Tile => 1,
            Kind::Graph => 2,
        };
        note[8..].copy_from_slice(&index.to_le_bytes());
        let _ = self.0.write_at(&note, (worker * NOTE) as u64);
    }

    fn read(path: &Path) -> Vec<(Kind, u64)> {
        let bytes = std::fs::read(path).unwrap_or_default();
        let note = |note: &[u8]| {
            let kind = match note[0] {
                1 => Kind::Tile,
                2 => Kind::Graph,
                _ => return None,
            };
            let index = note[8..].try_into().map(u64::from_le_bytes).ok()?;
            Some((kind, index))
        };
        bytes.chunks_exact(NOTE).filter_map(note).collect()
    }
}

/// Starts the checks in a process of their own.
pub fn run(options: &Options) -> ExitCode {
    let crumbs = std::env::temp_dir().join(format!("oxyfuel-fuzz-{}", std::process::id()));
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let outcome = start(&args, &crumbs).map(|status| match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => {
            println!("the checks ended with {status}");
            blame(options, &Crumbs::read(&crumbs), &crumbs);
            ExitCode::FAILURE
        }
    });
    let _ = std::fs::remove_file(&crumbs);
    outcome.unwrap_or_else(|sentence| {
        eprintln!("error: {sentence}");
        ExitCode::FAILURE
    })
}

fn start(args: &[String], crumbs: &Path) -> Result<ExitStatus, String> {
    let me: PathBuf = std::env::current_exe().map_err(|e| format!("where is this binary? {e}"))?;
    let mut command = Command::new(me);
    command.args(args).arg("--crumbs").arg(crumbs);
    command
        .status()
        .map_err(|e| format!("cannot start the checks: {e}"))
}

/// Runs each case that was under way alone and prints those that end their process.
fn blame(options: &Options, cases: &[(Kind, u64)], crumbs: &Path) {
    for &(kind, index) in cases {
        let mut args = vec![
            format!("--{}={index}..{}", kind.name(), index + 1),
            format!("--seed={}", options.seed),
            "--threads=1".to_owned(),
        ];
        if !options.targets.is_empty() {
            args.push(format!("--targets={}", options.targets.join(",")));
        }
        match start(&args, crumbs) {
            Ok(status) if status.code().is_some() => {}
            Ok(status) => {
                let numbers = numbers(kind, options.seed, index);
                let text = kind.worker(&case::targets()).text(&numbers);
                println!(
                    "MISMATCH {} {index} (seed {}) ends its process with {status}\n{text}",
                    kind.name(),
                    options.seed
                );
            }
            Err(sentence) => eprintln!("error: {sentence}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_again() {
        let path = std::env::temp_dir().join(format!("oxyfuel-crumbs-{}", std::process::id()));
        let crumbs = Crumbs::open(&path).unwrap();
        crumbs.note(2, Kind::Graph, 77);
        crumbs.note(0, Kind::Tile, 5);
        assert_eq!(Crumbs::read(&path), [(Kind::Tile, 5), (Kind::Graph, 77)]);
        std::fs::remove_file(&path).unwrap();
    }
}
