//! The programs of `tests/filetests/kernel`, whose results the interpreter is held to, as code.

use std::cell::Cell;

use oxyfuel_base::{DType, Scalar};
use oxyfuel_kernel::generate::{Case, Given};
use oxyfuel_kernel::{ParamKind, Program, parse};
use oxyfuel_testkit as testkit;

use crate::fuzz::compare;
use crate::machine::levels;

/// Numbers of a case's header, `0:LEN` for zeros.
fn numbers(text: &str) -> Option<Vec<f64>> {
    match text.strip_prefix("0:") {
        Some(len) => Some(vec![0.0; len.parse().ok()?]),
        None => text.split(',').map(|x| x.parse().ok()).collect(),
    }
}

fn bytes(dtype: DType, numbers: &[f64]) -> Vec<u8> {
    let bits = numbers.iter().map(|&x| Scalar::F(x).to_bits(dtype));
    bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size()))
        .collect()
}

/// The program and its arguments; `None` where one of them is nothing that random programs have.
fn read(file: &testkit::Case) -> Option<Case> {
    let program: Program = parse("input", &file.input).ok()?;
    let given = |param: &oxyfuel_kernel::Param| {
        let numbers = numbers(file.arg(&param.name)?)?;
        match &param.kind {
            ParamKind::Buffer(buffer) => Some(Given::Buffer {
                dtype: buffer.dtype,
                bytes: bytes(buffer.dtype, &numbers),
            }),
            ParamKind::Scalar { dtype, .. } if dtype.is_int() => {
                Some(Given::Number(*numbers.first()? as i64))
            }
            ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
        }
    };
    let args = program.params.iter().map(given).collect::<Option<_>>()?;
    Some(Case {
        program,
        args,
        open: false,
    })
}

#[test]
fn programs_of_the_interpreter_have_its_results_as_code() {
    let with_code = Cell::new(0);
    testkit::check_folder("kernel", "run", |file| {
        let Some(case) = read(file) else {
            return Ok(());
        };
        // Some are there for the error.
        let Ok(expected) = case.interpret() else {
            return Ok(());
        };
        with_code.set(with_code.get() + compare(&case, &expected)?);
        Ok(())
    });
    let filtered = std::env::var_os("FILETEST").is_some();
    assert!(filtered || with_code.get() >= 40 * levels().len());
}
