//! Users' kernels: results, checks, mistakes.

use oxyfuel::kernel::{Argument, BufferMode, KernelBuilder, Program, Symbol};
use oxyfuel::{Code, DType, Options, Tensor, kernel};

const BLOCK: i64 = 256;

/// `y = x * scale`; without masks it runs over the end.
fn scale(masked: bool) -> Program {
    let k = KernelBuilder::new("scale");
    let n = k.symbol("n", Symbol(0));
    let factor = k.scalar("factor", DType::F32);
    let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
    let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
    k.phase([n.expr().ceildiv(BLOCK)], |k| {
        let base = k.program_id(0) * BLOCK;
        let left = n.tile() - &base;
        let (mut from, mut to) = (x.at(&base).shape([BLOCK]), y.at(&base).shape([BLOCK]));
        if masked {
            from = from.valid(0, &left);
            to = to.valid(0, &left);
        }
        k.store(to, k.load(from) * &factor);
    });
    k.finish().unwrap()
}

#[test]
fn launches_agree_with_tensors_on_every_target() {
    for target in ["", "interpreter"] {
        let options = Options {
            target: target.to_owned(),
            ..Options::default()
        };
        let kernel = kernel::compile(&scale(true), options).unwrap();
        for n in [1, 255, 256, 1000] {
            let x = Tensor::randn(&[n], DType::F32, 3);
            let y = Tensor::zeros(&[n], DType::F32);
            for factor in [2.0, -0.5] {
                let arguments = [Argument::from(n), factor.into(), (&x).into(), (&y).into()];
                kernel.check(&arguments).unwrap();
                kernel.launch(&arguments).unwrap();
                assert_eq!(
                    y.to_vec::<f32>().unwrap(),
                    (&x * factor).to_vec::<f32>().unwrap()
                );
            }
        }
    }
}

/// The machine has storage floats as bytes; a launch gives and gets tensors of the type that the author wrote.
#[test]
fn storage_floats_are_what_the_author_wrote() {
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let k = KernelBuilder::new("twice");
        let x = k.buffer("x", dtype, BufferMode::Read, 64);
        let y = k.buffer("y", dtype, BufferMode::Write, 64);
        k.phase([1], |k| {
            let twice = k.load(x.at(0).shape([64])).cast(DType::F32) * 2.0;
            k.store(y.at(0).shape([64]), twice.cast(dtype));
        });
        let program = k.finish().unwrap();
        for target in ["", "interpreter"] {
            let options = Options {
                target: target.to_owned(),
                ..Options::default()
            };
            let kernel = kernel::compile(&program, options).unwrap();
            let x = Tensor::randn(&[64], DType::F32, 5).to(dtype);
            let y = Tensor::zeros(&[64], dtype);
            let arguments = [(&x).into(), (&y).into()];
            kernel.check(&arguments).unwrap();
            kernel.launch(&arguments).unwrap();
            let expected = (x.to(DType::F32) * 2.0).to(dtype).to(DType::F32);
            assert_eq!(
                y.to(DType::F32).to_vec::<f32>().unwrap(),
                expected.to_vec::<f32>().unwrap()
            );
            let bytes = Tensor::zeros(&[64], DType::U8);
            let error = kernel.launch(&[(&x).into(), (&bytes).into()]).unwrap_err();
            assert_eq!(error.code, Code::DTypeMismatch);
        }
    }
}

#[test]
fn a_kernel_that_reaches_outside_is_found() {
    let kernel = kernel::compile(&scale(false), Options::default()).unwrap();
    let x = Tensor::ones(&[300], DType::F32);
    let y = Tensor::zeros(&[300], DType::F32);
    let error = kernel
        .check(&[Argument::from(300), 2.0.into(), (&x).into(), (&y).into()])
        .unwrap_err();
    assert_eq!(error.code, Code::OutOfBounds);
}

#[test]
fn wrong_arguments_are_coded() {
    let kernel = kernel::compile(&scale(true), Options::default()).unwrap();
    let x = Tensor::ones(&[4, 4], DType::F32);
    let i = Tensor::ones(&[16], DType::I32);
    let n = Argument::from(16);
    let factor = Argument::from(2.0);
    let code = |arguments: &[Argument<'_>]| kernel.launch(arguments).unwrap_err().code;
    assert_eq!(code(&[n, factor, (&x).into()]), Code::ArityMismatch);
    assert_eq!(
        code(&[n, factor, (&x).into(), (&x).into(), n]),
        Code::ArityMismatch
    );
    assert_eq!(code(&[n, factor, (&x).into(), n]), Code::InvalidArgument);
    assert_eq!(
        code(&[n, factor, (&i).into(), (&x).into()]),
        Code::DTypeMismatch
    );
    assert_eq!(
        code(&[n, factor, (&x.t()).into(), (&x).into()]),
        Code::LayoutMismatch
    );
    assert_eq!(
        code(&[Argument::from(17), factor, (&x).into(), (&x).into()]),
        Code::ShapeMismatch
    );
    // Reading and writing one tensor through two parameters is refused, not raced.
    assert_eq!(
        code(&[n, factor, (&x).into(), (&x).into()]),
        Code::AliasedInputs
    );
}

/// A loop of `n` rounds over one element, with a workspace of `n` elements.
fn rounds() -> Program {
    let text = "kernel @rounds logical {
  param %n: i64 symbol s0
  param %w: buffer f32 workspace align 64 len s0
  param %y: buffer f32 write align 64 len 1
  phase grid [1] plain {
    %zero: i64 = const 0
    %one: f32 = const 1.0
    %sum: f32 = for %i = %zero to %n step 1 (%x: f32 = %one) {
      %next: f32 = add %x, %one
      yield %next
    }
    store %y[%zero], %sum
  }
}";
    kernel::parse("rounds", text).unwrap()
}

#[test]
fn a_check_has_an_end() {
    let kernel = kernel::compile(&rounds(), Options::default()).unwrap();
    let y = Tensor::zeros(&[1], DType::F32);
    let arguments = [Argument::from(1000), (&y).into()];
    kernel.check(&arguments).unwrap();
    let error = kernel.check_within(&arguments, 100).unwrap_err();
    assert_eq!(error.code, Code::StepLimit, "{error}");
    assert!(error.help.is_some(), "{error}");
}

#[test]
fn a_workspace_that_nobody_has() {
    let kernel = kernel::compile(&rounds(), Options::default()).unwrap();
    let y = Tensor::zeros(&[1], DType::F32);
    for n in [i64::MAX, 1 << 61, 1 << 50, -1] {
        let arguments = [Argument::from(n), (&y).into()];
        for error in [kernel.check(&arguments), kernel.launch(&arguments)] {
            let error = error.unwrap_err();
            let memory = [Code::OutOfMemory, Code::SizeOverflow, Code::TooLarge];
            assert!(memory.contains(&error.code), "{error}");
        }
    }
}
