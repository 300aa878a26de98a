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
