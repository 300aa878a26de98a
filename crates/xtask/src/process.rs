//! Running other programs: what they print is passed through, and a failure becomes one sentence.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// The cargo that runs us, so that a toolchain override holds for what we start.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs to the end with inherited output; `what` names the step in the error.
pub fn run(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| cannot_start(command, &e))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{what} failed ({})", describe(status)))
    }
}

/// Runs to the end and returns what it wrote on standard output.
pub fn capture(command: &mut Command, what: &str) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| cannot_start(command, &e))?;
    if !output.status.success() {
        return Err(format!("{what} failed ({})", describe(output.status)));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("{what} printed something that is not UTF-8"))
}

/// Runs to the end, passes both streams through line by line, and shows each line to `see`.
///
/// Pipes would turn colours off, so they are asked for where our own output is a terminal; `see` gets plain text.
pub fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> Result<ExitStatus, String> {
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| cannot_start(command, &e))?;
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the child process has no output pipes".to_owned());
    };
    let (sender, lines) = std::sync::mpsc::channel::<(bool, Vec<u8>)>();
    std::thread::scope(|scope| {
        let from_err = sender.clone();
        scope.spawn(move || forward(out, false, &sender));
        scope.spawn(move || forward(err, true, &from_err));
        for (is_err, line) in lines {
            // A closed terminal must not stop the count, so failures to echo are dropped.
            let _ = if is_err {
                std::io::stderr().write_all(&line)
            } else {
                std::io::stdout().write_all(&line)
            };
            see(plain(&String::from_utf8_lossy(&line)).trim_end());
        }
    });
    child
        .wait()
        .map_err(|e| format!("waiting for a child process failed: {e}"))
}

fn forward(stream: impl Read, is_err: bool, to: &std::sync::mpsc::Sender<(bool, Vec<u8>)>) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        if to.send((is_err, std::mem::take(&mut line))).is_err() {
            return;
        }
    }
}

/// The text without terminal colour sequences (`ESC [ … letter`).
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Where a program lies on the search path, if it does.
pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| is_file(p))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    let program: &OsStr = command.get_program();
    format!("cannot start `{}`: {error}", program.to_string_lossy())
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}"),
        None => "killed by a signal".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_stripped() {
        assert_eq!(
            plain("\u{1b}[32;1m  Summary\u{1b}[0m [ 0.1s]"),
            "  Summary [ 0.1s]"
        );
    }

    #[test]
    fn watch_sees_both_streams_and_the_status() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let status = watch(&mut command, |l| lines.push(l.to_owned())).unwrap();
        lines.sort();
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn failures_are_sentences() {
        let error = run(&mut Command::new("no-such-program-here"), "it").unwrap_err();
        assert!(
            error.contains("cannot start `no-such-program-here`"),
            "{error}"
        );
        let error = run(Command::new("sh").args(["-c", "exit 7"]), "the step").unwrap_err();
        assert_eq!(error, "the step failed (exit code 7)");
    }
}
