//! What the tables do not have: other dtypes, memory with gaps, and shapes that fill several vectors and threads. Compiled, eager and interpreted results agree.

use crate::{
    Case, agree, arrange, elements, gradients, losses, numbers, select, statistics, windows,
};
use oxyfuel::{Code, DType, Interpolation, Padding, Pooling, Reduction, Result, Tensor};

const FAMILIES: [&[Case]; 7] = [
    elements::CASES,
    statistics::CASES,
    arrange::CASES,
    windows::CASES,
    select::CASES,
    losses::CASES,
    gradients::CASES,
];

/// The rows of floats that take inputs of this kind: of others they say so.
fn check_all(kind: &str, input: impl Fn(&[i64], i64) -> Tensor) {
    let mut run = 0;
    let cases = FAMILIES.iter().copied().flatten();
    for case in cases.filter(|case| case.dtypes.contains('f')) {
        let inputs: Vec<Tensor> = (0..)
            .zip(case.shapes)
            .map(|(seed, shape)| input(shape, seed))
            .collect();
        let name = format!("{}, {kind}", case.name);
        match (case.f)(&inputs) {
            Ok(_) => {
                agree::check(&name, case.f, &inputs);
                run += 1;
            }
            Err(error) => assert_eq!(error.code, Code::UnsupportedDType, "{name}: {error}"),
        }
    }
    assert!(run > 100, "{kind}: only {run} rows were run");
}

#[test]
fn doubles() {
    check_all("f64", |shape, seed| {
        numbers(shape, seed, 'f').to(DType::F64)
    });
}

#[test]
fn halves() {
    check_all("f16", |shape, seed| {
        numbers(shape, seed, 'f').to(DType::F16)
    });
}

/// Every second element of memory in which the last dim comes first.
#[test]
fn memory_with_gaps() {
    check_all("with gaps", |shape, seed| {
        let x = numbers(shape, seed, 'f');
        let turned: Vec<i64> = (0..shape.len() as i64).rev().collect();
        let mut memory = vec![2];
        memory.extend(shape.iter().rev());
        let apart = Tensor::zeros(&memory, DType::F32).movedim(&[0], &[-1]);
        let mut part = apart.select(-1, 1).permute(&turned);
        part.copy_(&x).unwrap();
        part
    });
}

fn randn(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, DType::F32, 7)
}

macro_rules! large {
    ($($name:ident($x:ident) = $shape:expr => $out:expr;)*) => {$(
        #[test]
        fn $name() {
            fn f(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
                let [$x] = inputs else { panic!("inputs") };
                oxyfuel::Outputs::into_tensors($out)
            }
            agree::check(stringify!($name), f, &[randn(&$shape)]);
        }
    )*};
}

large! {
    activations(x) = [33, 1025] => (x.mish(), x.leaky_relu(0.1) + x.hardswish(), x.softplus(1.0, 20.0), x.elu(2.0));
    mixtures(x) = [129, 67] => (x.lerp(&x.exp(), 0.3), x.addcmul(x, &x.abs(), 0.5), x.hypot(&x.flip(&[0])), x.logaddexp(&x.t().reshape(&[129, 67])));
    norms(x) = [65, 1027] => (x.norm(2.0, &[1], true), x.norm(3.0, &[], false), x.logsumexp(&[1], false), x.logsumexp(&[0], true), x.std(&[0], 1.0, false));
    extremes(x) = [7, 301, 5] => { let (a, b) = x.max_dim(1, false); let (c, d) = x.min_dim(0, true); (a, b, c, d) };
    medians(x) = [9, 257] => { let (a, b) = x.median_dim(1, true); let (c, d) = x.kthvalue(100, 1, false); (a, b, c, d) };
    scans(x) = [5, 300] => { let (a, b) = x.cummax(1); let (c, d) = x.cummin(0); vec![a, b, c, d, x.logcumsumexp(1)] };
    orders(x) = [65, 130] => (x.flip(&[0, 1]), x.roll(&[40, -3], &[0, 1]), x.tril(3) + x.triu(60), x.repeat_interleave(3, 1));
    borders(x) = [3, 33, 65] => (x.pad(&[7, 5, 2, 3], Padding::Reflect), x.pad(&[1, 0, 0, 9], Padding::Circular), x.pad(&[8, 8], Padding::Constant(1.0)) * 2.0);
    pools(x) = [2, 5, 33, 47] => {
        let how = Pooling { size: vec![3], stride: vec![2], padding: vec![1], ceil: true, ..Pooling::default() };
        let (a, b) = x.max_pool(2, &how);
        (a, b, x.avg_pool(2, &how), x.adaptive_avg_pool2d([7, 5]))
    };
    images(x) = [2, 3, 17, 23] => (
        x.interpolate(&[40, 31], Interpolation::Linear, false), x.interpolate(&[9, 50], Interpolation::Cubic, true), x.interpolate(&[34, 46], Interpolation::Nearest, false));
    places(x) = [40, 30] => {
        let (r, c) = (x.argmax(0, false), x.argmin(0, false));
        (x.index(&[Some(&r), Some(&(&c % 30))]), x.index_put_at(&[Some(&r)], &x.slice(0, 0, 30, 1), true), x.take_along_dim(&x.argsort(1, true), 1))
    };
    distances(x) = [31, 200] => (
        x.mse_loss(&x.exp(), Reduction::Mean), x.huber_loss(&x.exp(), 0.5, Reduction::Sum), x.cosine_similarity(&x.exp(), 1, 1e-8), x.cdist(&x.slice(0, 0, 9, 1), 2.0));
}
