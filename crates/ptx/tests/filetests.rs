//! Goldens: a mapped program as text, the PTX that comes of it, and the assembler's consent.

use oxyfuel_kernel::parse::parse;
use oxyfuel_ptx::{Target, emit};
use oxyfuel_testkit::ptxas;

#[test]
fn ptx() {
    oxyfuel_testkit::run_folder("ptx", |case| {
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
        if let Some(tool) = ptxas::find() {
            ptxas::assemble(&tool, &module.text, target)?;
        }
        Ok(module.text)
    });
}
