//! Goldens: a mapped program as text, the PTX that comes of it, and what the assembler makes of it.
//!
//! A golden ends with a line such as `// sm_90a: 24 registers, 0 bytes spilled`: what `ptxas -v` says of the text for the target that the header
//! declares. Another version of the assembler may count otherwise; the lines are those of the one that `python/requirements-test.txt` pins. A machine without
//! it keeps the line of the file unchecked, also under `BLESS=1`.

use oxyfuel_kernel::parse::parse;
use oxyfuel_ptx::{Target, emit};
use oxyfuel_testkit::{Case, ptxas};
use std::path::Path;

#[test]
fn ptx() {
    let tool = ptxas::find();
    oxyfuel_testkit::run_folder("ptx", |case| golden(case, tool.as_deref()));
}

fn golden(case: &Case, tool: Option<&Path>) -> Result<String, String> {
    if case.command != "emit" {
        return Err(format!("unknown command `{}`", case.command));
    }
    let target = case.require("target")?;
    let program = parse(&case.name, &case.input).map_err(|e| e.to_string())?;
    oxyfuel_kernel::verify(&program).map_err(|e| e.to_string())?;
    let desc = Target::by_name(target)
        .map_err(|e| e.to_string())?
        .describe(132, 50 << 20);
    let module = emit(&program, &desc).map_err(|e| e.to_string())?;
    let used = match tool {
        Some(tool) => Some(used(target, &ptxas::assemble(tool, &module.text, target)?)),
        None => recorded(target, case.expected.as_deref().unwrap_or_default()),
    };
    Ok(format!(
        "{}\n\n{}",
        module.text.trim_end(),
        used.unwrap_or_default()
    ))
}

/// The last line of a golden.
fn used(target: &str, accepted: &ptxas::Accepted) -> String {
    format!(
        "// {target}: {} registers, {} bytes spilled",
        accepted.registers, accepted.spilled_bytes
    )
}

/// The last line of the golden that is there.
fn recorded(target: &str, expected: &str) -> Option<String> {
    let last = expected.lines().next_back()?;
    last.starts_with(&format!("// {target}: "))
        .then(|| last.to_owned())
}

const CASE: &str = "\
kernel @copy mapped {
  geometry lanes 32 warps 1 cluster [1, 1, 1] registers 0
  param %x: buffer f32 read align 16 len 1024
  param %y: buffer f32 write align 16 len 1024
  phase grid [8] plain {
    %2: i64 = program_id 0
    %3: i64 = const 128
    %4: i64 = mul %2, %3
    %5: f32[128] {lane(0:32*4) reg(0:4*1)} = load %x[%4; 1]
    store %y[%4; 1], %5
  }
}
";

#[test]
fn counts_are_checked_with_the_assembler_and_kept_without_it() {
    let case = |expected: Option<&str>| Case {
        path: "copy.txt".into(),
        name: "copy".to_owned(),
        command: "emit".to_owned(),
        args: [("target".to_owned(), "sm_90a".to_owned())].into(),
        input: CASE.to_owned(),
        input_line: 1,
        expected: expected.map(str::to_owned),
    };
    let last = |text: String| text.lines().next_back().unwrap_or_default().to_owned();
    let stale = "ret;\n}\n\n// sm_90a: 999 registers, 7 bytes spilled";
    let kept = golden(&case(Some(stale)), None).unwrap();
    assert!(
        kept.ends_with("\n\n// sm_90a: 999 registers, 7 bytes spilled"),
        "{kept}"
    );
    for without in [
        None,
        Some("}"),
        Some("// sm_80: 1 registers, 0 bytes spilled"),
    ] {
        let text = golden(&case(without), None).unwrap();
        assert!(!text.contains(" registers, "), "{text}");
    }
    let Some(tool) = ptxas::find() else { return };
    let counted = last(golden(&case(Some(stale)), Some(&tool)).unwrap());
    assert!(
        counted.starts_with("// sm_90a: ") && counted.ends_with(" registers, 0 bytes spilled"),
        "{counted}"
    );
    assert_ne!(counted, stale.lines().next_back().unwrap());
}
