//! Cases under `tests/filetests/kernel`: `print` and `verify` a text, or `run` it on literal data.
//!
//! `; test: run n=3 x=1,2,3 y=3` gives each parameter by name: numbers for an input or a scalar, `0:LEN` for a buffer of LEN zeros. The result is the contents of every buffer that the
//! program writes.

use crate::common::{bytes_of, values_of};
use oxyfuel_base::Error;
use oxyfuel_kernel::interp::{Arg, run};
use oxyfuel_kernel::{BufferMode, ParamKind, Program, Scalar, parse, verify};
use oxyfuel_testkit::Case;

fn text(error: Error) -> String {
    error.to_string()
}

fn read(case: &Case) -> Result<Program, String> {
    parse("input", &case.input).map_err(text)
}

fn run_case(case: &Case) -> Result<String, String> {
    let program = read(case)?;
    verify(&program).map_err(text)?;
    let mut storage = Vec::new();
    for param in &program.params {
        let bytes = match &param.kind {
            ParamKind::TensorMap(_) => continue,
            ParamKind::Scalar { dtype, .. } => {
                bytes_of(*dtype, &numbers(case.require(&param.name)?)?)
            }
            ParamKind::Buffer(buffer) => {
                bytes_of(buffer.dtype, &numbers(case.require(&param.name)?)?)
            }
        };
        storage.push((param, bytes));
    }
    let mut args = Vec::new();
    for (param, bytes) in &mut storage {
        args.push(match &param.kind {
            ParamKind::Scalar { dtype, .. } => {
                let value = values_of(*dtype, bytes).first().copied().unwrap_or(0.0);
                Arg::Scalar(if dtype.is_float() {
                    Scalar::F(value)
                } else {
                    Scalar::I(value as i64)
                })
            }
            ParamKind::Buffer(buffer) => Arg::Buffer {
                dtype: buffer.dtype,
                bytes,
            },
            ParamKind::TensorMap(_) => continue,
        });
    }
    run(&program, &mut args).map_err(text)?;
    let mut out = String::new();
    for (param, bytes) in &storage {
        if let ParamKind::Buffer(buffer) = &param.kind
            && !matches!(buffer.mode, BufferMode::Read | BufferMode::Workspace)
        {
            let values: Vec<String> = values_of(buffer.dtype, bytes)
                .iter()
                .map(|x| x.to_string())
                .collect();
            out += &format!("{} = {}\n", param.name, values.join(" "));
        }
    }
    Ok(out)
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    if let Some(len) = text.strip_prefix("0:") {
        return Ok(vec![
            0.0;
            len.parse()
                .map_err(|_| format!("`{len}` is not a length"))?
        ]);
    }
    text.split(',')
        .map(|x| x.parse().map_err(|_| format!("`{x}` is not a number")))
        .collect()
}

#[test]
fn kernel() {
    oxyfuel_testkit::run_folder("kernel", |case| match case.command.as_str() {
        "print" => {
            let program = read(case)?;
            verify(&program).map_err(text)?;
            Ok(program.to_string())
        }
        "run" => run_case(case),
        other => Err(format!("unknown command `{other}`")),
    });
}
