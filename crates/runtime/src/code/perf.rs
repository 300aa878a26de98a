//! The perf map: one line per kernel in `/tmp/perf-PID.map`, the place where `perf` looks for names of generated code.

use std::fs::File;
use std::io::Write;

/// The open map file; it is opened at the first kernel and a failure to write is not an error (only names are lost).
#[derive(Debug, Default)]
pub(super) struct Map {
    file: Option<File>,
    refused: bool,
}

impl Map {
    pub fn append(&mut self, address: usize, length: usize, name: &str) {
        if self.file.is_none() && !self.refused {
            self.file = open();
            self.refused = self.file.is_none();
        }
        if let Some(file) = &mut self.file {
            let name: String = name
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
            // One `write` per line: other writers of the same file (a process has one map) append too.
            let _lost = file.write_all(format!("{address:x} {length:x} {name}\n").as_bytes());
        }
    }
}

/// `/tmp` is shared with strangers: a link planted under the expected name is not followed.
#[cfg(unix)]
fn open() -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("/tmp/perf-{}.map", std::process::id());
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .ok()
}

#[cfg(not(unix))]
fn open() -> Option<File> {
    None
}
