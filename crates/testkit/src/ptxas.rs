//! NVIDIA's assembler as a judge: every PTX text we print must pass it, for the target it declares.
//!
//! `cargo xtask test` installs the pinned assembler and names it in `OXYFUEL_PTXAS`; without that variable the one in
//! `.venv-test` is used where `cargo xtask venv` has made it. On a machine with neither, [`find`] says `None` and a test
//! may pass over the check, except in a full run (`OXYFUEL_FULL_TEST`), where that is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the assembler says of one text that it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accepted {
    /// Registers a thread, the largest over the entry points.
    pub registers: u32,
    /// Bytes spilled a thread, stores and loads together.
    pub spilled_bytes: u32,
    /// Each entry point.
    pub entries: Vec<Used>,
    /// Its whole report (`ptxas -v`).
    pub report: String,
}

/// What an entry point takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Used {
    pub name: String,
    pub registers: u32,
    pub spilled_bytes: u32,
}

/// The assembler, if this machine has it. Panics in a full run without it, where a silent pass would hide the gap.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("OXYFUEL_PTXAS").map(PathBuf::from);
    let found = named
        .or_else(|| in_venv(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv-test/lib")));
    let needed = cfg!(target_os = "linux") && std::env::var_os("OXYFUEL_FULL_TEST").is_some();
    assert!(
        found.is_some() || !needed,
        "a full test run needs ptxas: `cargo xtask venv` installs it"
    );
    found
}

/// `<venv>/lib/python3.x/site-packages/nvidia/cuXX/bin/ptxas`, whatever the two numbers are.
fn in_venv(lib: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(lib).ok()?.filter_map(Result::ok);
    let toolkits = pythons
        .filter_map(|p| std::fs::read_dir(p.path().join("site-packages/nvidia")).ok())
        .flatten();
    let mut tools = toolkits
        .filter_map(Result::ok)
        .map(|t| t.path().join("bin/ptxas"));
    tools.find(|t| t.is_file())
}

/// Assembles a text for an architecture such as `sm_90a`. `Err` is the assembler's own complaint.
pub fn assemble(ptxas: &Path, text: &str, architecture: &str) -> Result<Accepted, String> {
    let mut child = Command::new(ptxas)
        .args(["-v", "-arch", architecture, "-o", "/dev/null", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", ptxas.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A refusal may close the pipe early; the exit status below says what happened.
        let _ = std::io::Write::write_all(&mut stdin, text.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|e| format!("ptxas did not finish: {e}"))?;
    let report = [output.stdout, output.stderr].concat();
    let report = String::from_utf8_lossy(&report).into_owned();
    if output.status.success() {
        Ok(read(report))
    } else {
        Err(report)
    }
}

/// Texts that are assembled together, those of one version and target: starting the assembler costs more than its work.
#[derive(Debug, Default)]
pub struct Together {
    /// By what stands before the first entry.
    texts: BTreeMap<String, String>,
}

impl Together {
    /// Adds a text, whose entries have names of their own; `what` says in it where it is from.
    pub fn take(&mut self, what: &str, text: &str) {
        let (head, body) = text.split_once("\n\n").expect("a head, then entries");
        let all = self.texts.entry(head.to_owned()).or_default();
        all.push_str(&format!("\n// {what}\n{body}"));
    }

    /// Assembles each, and gives what was said with its target. Panics, and shows the text, where one is refused.
    pub fn assemble(&self, ptxas: &Path) -> Vec<(&str, Accepted)> {
        let mut all = Vec::new();
        for (head, body) in &self.texts {
            let (_, target) = head.split_once(".target ").expect("a target");
            let target = target.lines().next().unwrap_or_default();
            let text = format!("{head}\n{body}");
            match assemble(ptxas, &text, target) {
                Ok(accepted) => all.push((target, accepted)),
                Err(said) => panic!("{target}: {said}\n{}", numbered(&text)),
            }
        }
        all
    }
}

/// A text with the numbers of its lines, by which the assembler speaks of it.
fn numbered(text: &str) -> String {
    let lines = text.lines().enumerate();
    lines
        .map(|(i, line)| format!("{:5} {line}\n", i + 1))
        .collect()
}

fn read(report: String) -> Accepted {
    let before = |line: &str, unit: &str| {
        let head = line
            .split(unit)
            .next()
            .filter(|head| head.len() < line.len())?;
        head.split([' ', ',']).next_back()?.parse::<u32>().ok()
    };
    let mut entries: Vec<Used> = Vec::new();
    for line in report.lines() {
        if let Some((_, named)) = line.split_once("Compiling entry function '") {
            entries.push(Used {
                name: named.split('\'').next().unwrap_or_default().to_owned(),
                ..Used::default()
            });
        }
        if let Some(entry) = entries.last_mut() {
            entry.registers += before(line, " registers").unwrap_or(0);
            entry.spilled_bytes += before(line, " bytes spill stores").unwrap_or(0)
                + before(line, " bytes spill loads").unwrap_or(0);
        }
    }
    Accepted {
        registers: entries.iter().map(|e| e.registers).max().unwrap_or(0),
        spilled_bytes: entries.iter().map(|e| e.spilled_bytes).sum(),
        entries,
        report,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 from, .param .u64 to)
{
  .reg .b64 %rd<3>;
  .reg .f32 %f<2>;
  ld.param.u64 %rd1, [from];
  ld.param.u64 %rd2, [to];
  ld.global.f32 %f1, [%rd1];
  st.global.f32 [%rd2], %f1;
  ret;
}
";

    #[test]
    fn reads_registers_and_spills_from_a_report() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
            ptxas info    : Function properties for a\n    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : Used 42 registers, used 1 barriers, 368 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'b' for 'sm_80'\n\
            ptxas info    : Used 8 registers, used 0 barriers, 368 bytes cmem[0]\n";
        let accepted = read(report.to_owned());
        assert_eq!((accepted.registers, accepted.spilled_bytes), (42, 20));
        let entries = accepted.entries.iter();
        let counts: Vec<_> = entries
            .map(|e| (&*e.name, e.registers, e.spilled_bytes))
            .collect();
        assert_eq!(counts, [("a", 42, 20), ("b", 8, 0)]);
    }

    #[test]
    fn judges_good_and_bad_text() {
        let Some(ptxas) = find() else { return };
        for architecture in ["sm_80", "sm_90a"] {
            let accepted = assemble(&ptxas, COPY, architecture).unwrap();
            assert!(accepted.registers > 0, "{}", accepted.report);
        }
        let complaint = assemble(
            &ptxas,
            &COPY.replace("ld.global.f32", "ld.nowhere.f32"),
            "sm_80",
        )
        .unwrap_err();
        assert!(
            complaint.contains("fatal") || complaint.contains("error"),
            "{complaint}"
        );
        assert!(
            assemble(Path::new("/no/such/ptxas"), COPY, "sm_80")
                .unwrap_err()
                .contains("cannot start")
        );
    }
}
