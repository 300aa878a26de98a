//! NVIDIA's assembler as a judge: every PTX text we print must pass it, for the target it declares.
//!
//! `cargo xtask test` installs the pinned assembler and names it in `OXYFUEL_PTXAS`; without that variable the one in
//! `.venv-test` is used where `cargo xtask venv` has made it. On a machine with neither, [`find`] says `None` and a test
//! may pass over the check, except in a full run (`OXYFUEL_FULL_TEST`), where that is a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the assembler says of one text that it accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accepted {
    /// Registers a thread, the largest over the entry points.
    pub registers: u32,
    /// Bytes spilled a thread, stores and loads together.
    pub spilled_bytes: u32,
    /// Its whole report (`ptxas -v`).
    pub report: String,
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

fn read(report: String) -> Accepted {
    let before = |line: &str, unit: &str| {
        let head = line
            .split(unit)
            .next()
            .filter(|head| head.len() < line.len())?;
        head.split([' ', ',']).next_back()?.parse::<u32>().ok()
    };
    let registers = report
        .lines()
        .filter_map(|l| before(l, " registers"))
        .max()
        .unwrap_or(0);
    let spilled = report.lines().map(|l| {
        before(l, " bytes spill stores").unwrap_or(0) + before(l, " bytes spill loads").unwrap_or(0)
    });
    Accepted {
        registers,
        spilled_bytes: spilled.sum(),
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
        let report = "ptxas info    : 0 bytes gmem\n    0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
                      ptxas info    : Used 42 registers, used 1 barriers, 368 bytes cmem[0]\n";
        let accepted = read(report.to_owned());
        assert_eq!((accepted.registers, accepted.spilled_bytes), (42, 20));
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
