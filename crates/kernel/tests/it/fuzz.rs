//! Random programs and random texts.

use oxyfuel_base::Code;
use oxyfuel_kernel::generate::{Vocabulary, generate};
use oxyfuel_kernel::interp::{Arg, Options, run, run_with};
use oxyfuel_kernel::{DType, Program, examples, parse, verify};
use proptest::prelude::*;

fn round_trip(program: &Program) {
    let text = program.to_string();
    let read = parse("fuzz", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read, program.clone().compact(), "{text}");
    assert_eq!(read.to_string(), text);
    verify(&read).unwrap();
}

/// Runs a text that may be anything on buffers that may not fit: an error is fine, a panic is not.
fn survive(text: &str) {
    let Ok(program) = parse("fuzz", text) else {
        return;
    };
    let _ = program.to_string();
    if verify(&program).is_err() {
        return;
    }
    round_trip(&program);
    let mut storage: Vec<Vec<u8>> = program.params.iter().map(|_| vec![0; 256]).collect();
    let mut args: Vec<Arg<'_>> = Vec::new();
    for (param, bytes) in program.params.iter().zip(&mut storage) {
        args.push(match &param.kind {
            oxyfuel_kernel::ParamKind::Buffer(buffer) => Arg::Buffer {
                dtype: buffer.dtype,
                bytes,
            },
            oxyfuel_kernel::ParamKind::Scalar { .. } => Arg::Scalar(2i64.into()),
            oxyfuel_kernel::ParamKind::TensorMap(_) => continue,
        });
    }
    let _ = run_with(
        &program,
        &mut args,
        Options {
            check: true,
            step_limit: 2000,
        },
    );
}

fn example_text(which: u8) -> String {
    let program = match which % 5 {
        0 => examples::softmax(DType::F32, 8),
        1 => examples::tiled_matmul(DType::F32, [2, 2, 2]),
        2 => examples::mxint8_decode(8, 16),
        3 => examples::amx_matmul(),
        _ => examples::bias_gelu(DType::F32, 4),
    };
    program.unwrap().to_string()
}

proptest! {
    #[test]
    fn generated_programs_round_trip_and_run(numbers in proptest::collection::vec(any::<u32>(), 0..80)) {
        let generated = generate(&numbers, Vocabulary::Full).unwrap();
        round_trip(&generated.program);
        let len = usize::try_from(generated.len).unwrap() * 4;
        let x: Vec<u8> = (0..len).map(|i| (i * 37 % 251) as u8).collect();
        let (mut y, mut z) = (vec![0; len], vec![0; len]);
        let mut args = [
            Arg::Input { dtype: DType::F32, bytes: &x },
            Arg::Input { dtype: DType::I32, bytes: &x },
            Arg::Buffer { dtype: DType::F32, bytes: &mut y },
            Arg::Buffer { dtype: DType::I32, bytes: &mut z },
        ];
        run(&generated.program, &mut args).unwrap();
    }

    #[test]
    fn any_text_is_survived(text in ".*") {
        survive(&text);
    }

    #[test]
    fn broken_programs_are_survived(which: u8, cuts in proptest::collection::vec((any::<u16>(), 0usize..6, "[%a-z0-9 \\[\\]{},:;=_-]{0,4}"), 1..4)) {
        let mut text = example_text(which);
        for (at, remove, insert) in cuts {
            let at = usize::from(at) % text.len().max(1);
            let end = (at + remove).min(text.len());
            text.replace_range(at..end, &insert);
        }
        survive(&text);
    }
}

#[test]
fn nesting_is_limited() {
    let deep = format!(
        "kernel @t logical {{ phase grid [1] plain {{ %c: bool = const true {} {} }} }}",
        "if %c {".repeat(10_000),
        "}".repeat(10_000)
    );
    assert_eq!(parse("deep", &deep).unwrap_err().code, Code::NestedTooDeep);
}

#[test]
fn mistakes_in_user_code_have_a_place() {
    use oxyfuel_kernel::builder::KernelBuilder;
    let k = KernelBuilder::new("wrong");
    let line = std::cell::Cell::new(0);
    k.phase([1], |k| {
        let a = k.full(DType::F32, [4], 1.0);
        let b = k.full(DType::F32, [3], 1.0);
        line.set(line!() + 1);
        let c = &a + &b;
        let _ = c.max(7) * k.full(DType::I32, [4], 1);
    });
    let error = k.finish().unwrap_err();
    let at = error.at.clone().unwrap();
    assert_eq!(error.code, Code::ShapeMismatch);
    assert!(
        at.file.ends_with("fuzz.rs") && at.line == line.get(),
        "{error}"
    );
}

#[test]
fn an_op_outside_of_a_phase_is_a_mistake() {
    use oxyfuel_kernel::builder::KernelBuilder;
    let k = KernelBuilder::new("wrong");
    let _ = k.constant(DType::F32, 1.0) + 2.0;
    assert_eq!(k.finish().unwrap_err().code, Code::InvalidKernel);
}
