//! Functions of structures are called in every way that functions of tensors are: given arguments, given outputs, ahead of time, step by step.

use oxyfuel::{Bucket, Code, DType, Options, Result, Tensor, Tensors, jit};

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

fn f32s(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[derive(Tensors)]
struct Layer {
    first: Tensor,
    second: Tensor,
    scale: f64,
}

#[derive(Tensors)]
struct Output {
    hidden: Tensor,
    sums: Vec<Tensor>,
    depth: usize,
}

fn layer() -> Layer {
    Layer {
        first: randn(&[64, 64], 2),
        second: randn(&[64, 64], 3),
        scale: 0.5,
    }
}

/// Reads `x` for the last time before it writes the result.
fn forward(layer: &Layer, x: &Tensor) -> Tensor {
    x.matmul(&layer.first).relu().matmul(&layer.second) * layer.scale
}

fn summed(layer: &Layer, x: &Tensor) -> Output {
    let hidden = forward(layer, x);
    Output {
        sums: vec![hidden.sum(&[0], false), hidden.sum(&[1], false)],
        hidden,
        depth: 2,
    }
}

/// Takes one way or the other by what it reads.
fn reading(x: &Tensor) -> Result<Tensor> {
    match x.sum(&[], false).item()?.as_f64() > 0.0 {
        true => Ok(x * 2.0),
        false => Ok(x - 1.0),
    }
}

#[test]
fn a_result_takes_the_memory_of_what_is_given() {
    let f = jit(forward, Options::default()).unwrap();
    let (model, x) = (layer(), randn(&[64, 64], 1));
    let expected = f32s(&f.call((&model, &x)).unwrap());
    let place = x.data_ptr().unwrap();
    let y = f.call_donating(((&model).into(), x.into())).unwrap();
    assert_eq!(y.data_ptr().unwrap(), place);
    assert_eq!(f32s(&y), expected);
    // What somebody holds stays, and so does what is lent.
    let x = randn(&[64, 64], 1);
    let held = x.t();
    let before = f32s(&held);
    let y = f.call_donating(((&model).into(), x.into())).unwrap();
    assert_ne!(y.data_ptr().unwrap(), place);
    assert_eq!((f32s(&held), f32s(&y)), (before, expected));
    let x = randn(&[64, 64], 1);
    let (before, place) = (f32s(&x), x.data_ptr().unwrap());
    let y = f.call_donating((model.into(), (&x).into())).unwrap();
    assert_ne!(y.data_ptr().unwrap(), place);
    assert_eq!(f32s(&x), before);
}

#[test]
fn whole_structures_are_given() {
    let step = |state: &Vec<Tensor>, w: &Tensor| -> Vec<Tensor> {
        state.iter().map(|s| s.matmul(w).relu().matmul(w)).collect()
    };
    let f = jit(step, Options::default()).unwrap();
    let w = randn(&[32, 32], 0) * 0.1;
    let state = || vec![randn(&[32, 32], 1), randn(&[32, 32], 2)];
    let expected: Vec<Vec<f32>> = step(&state(), &w).iter().map(f32s).collect();
    let given = state();
    let places: Vec<_> = given.iter().map(|s| s.data_ptr().unwrap()).collect();
    let new = f.call_donating((given.into(), (&w).into())).unwrap();
    let taken = new
        .iter()
        .filter(|s| places.contains(&s.data_ptr().unwrap()));
    assert!(taken.count() > 0, "nothing was taken: {}", f.explain());
    for (new, old) in new.iter().zip(&expected) {
        for (a, b) in f32s(new).iter().zip(old) {
            assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} {b}");
        }
    }
    // Padded arguments are copies, so nothing can be taken from them.
    let f = jit(|x: &Tensor| x * 2.0, Options::default()).unwrap();
    let f = f.bucket(Bucket::new(&[8]).dim(0, 0)).unwrap();
    let y = f.call_donating((randn(&[5], 1).into(),)).unwrap();
    assert_eq!(f32s(&y), f32s(&(randn(&[5], 1) * 2.0)));
}

#[test]
fn results_are_put_into_a_structure() {
    let f = jit(summed, Options::default()).unwrap();
    let (model, x) = (layer(), randn(&[64, 64], 1));
    let expected = f.call((&model, &x)).unwrap();
    let zeros = |shape: &[i64]| Tensor::zeros(shape, DType::F32);
    let mut out = Output {
        hidden: zeros(&[64, 64]),
        sums: vec![zeros(&[64]), zeros(&[64])],
        depth: 0,
    };
    let (hidden, sum) = (out.hidden.clone(), out.sums[1].clone());
    f.call_into((&model, &x), &mut out).unwrap();
    assert_eq!(f32s(&hidden), f32s(&expected.hidden));
    assert_eq!(f32s(&sum), f32s(&expected.sums[1]));
    assert_eq!(out.hidden.data_ptr().unwrap(), hidden.data_ptr().unwrap());
    assert_eq!(out.depth, 2);
    // As many as the function returns, of the shapes and types that it returns.
    out.sums.pop();
    let error = f.call_into((&model, &x), &mut out).unwrap_err();
    assert_eq!(error.code, Code::ArityMismatch, "{error}");
    out.sums.push(zeros(&[63]));
    let error = f.call_into((&model, &x), &mut out).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch, "{error}");
    out.sums[1] = Tensor::zeros(&[64], DType::I64);
    let error = f.call_into((&model, &x), &mut out).unwrap_err();
    assert_eq!(error.code, Code::DTypeMismatch, "{error}");
    assert!(error.to_string().contains("jit.rs"), "{error}");
    // A function that is cut, and one with buckets, put copies there.
    let cut = jit(reading, Options::default()).unwrap();
    let padded = jit(|x: &Tensor| x * 2.0, Options::default()).unwrap();
    let padded = padded.bucket(Bucket::new(&[8]).dim(0, 0)).unwrap();
    let x = Tensor::ones(&[5], DType::F32);
    let (mut a, mut b) = (zeros(&[5]), zeros(&[5]));
    let (held, kept) = (a.clone(), b.clone());
    cut.call_into((&x,), &mut a).unwrap();
    padded.call_into((&x,), &mut b).unwrap();
    assert_eq!((f32s(&held), f32s(&kept)), (vec![2.0; 5], vec![2.0; 5]));
}

#[test]
fn warming_up_compiles_and_does_not_run() {
    let f = jit(
        |state: &Tensor, by: &f64| -> Result<Tensor> {
            state.clone().add_(*by)?;
            Ok(state * 2.0)
        },
        Options::default(),
    )
    .unwrap();
    let state = Tensor::zeros(&[4], DType::F32);
    f.warm_up((&state, &1.0)).unwrap();
    f.warm_up((&state, &1.0)).unwrap();
    assert_eq!(f.explain().variants.len(), 1, "{}", f.explain());
    assert_eq!(f32s(&state), [0.0; 4]);
    let y = f.call((&state, &1.0)).unwrap();
    assert_eq!((f32s(&state), f32s(&y)), (vec![1.0; 4], vec![2.0; 4]));
    assert_eq!(f.explain().variants.len(), 1, "{}", f.explain());
    let cut = jit(reading, Options::default()).unwrap();
    let error = cut.warm_up((&state,)).unwrap_err();
    assert_eq!(error.code, Code::DataDependent, "{error}");
    assert!(error.help.is_some(), "{error}");
}

#[test]
fn every_step_is_timed() {
    let f = jit(summed, Options::default()).unwrap();
    let (model, x) = (layer(), randn(&[64, 64], 1));
    let expected = f.call((&model, &x)).unwrap();
    let (out, times) = f.profile((&model, &x)).unwrap();
    assert_eq!(f32s(&out.hidden), f32s(&expected.hidden));
    assert_eq!(out.depth, 2);
    assert_eq!(times.len(), f.explain().variants[0].kernels.len());
    let cut = jit(reading, Options::default()).unwrap();
    cut.call((&x,)).unwrap();
    let error = cut.profile((&x,)).err().unwrap();
    assert_eq!(error.code, Code::DataDependent, "{error}");
}

#[test]
fn a_captured_tensor_has_no_memory_to_give() {
    let inner = jit(|x: &Tensor| x * 2.0, Options::default()).unwrap();
    let f = oxyfuel::compile(
        move |x: &Tensor| {
            let mut out = x.clone();
            inner.call_into((x,), &mut out).map(|()| out)
        },
        Options::default(),
    )
    .unwrap();
    let error = f.call(&[&randn(&[4], 1)]).unwrap_err();
    assert_eq!(error.code, Code::DataDependent, "{error}");
    // What is given to a function that is captured with another is an ordinary argument.
    let inner = jit(|x: &Tensor| x * 2.0, Options::default()).unwrap();
    let f = oxyfuel::compile(
        move |x: &Tensor| inner.call_donating(((x + 1.0).into(),)),
        Options::default(),
    )
    .unwrap();
    let y = f.call_one(&[&Tensor::ones(&[4], DType::F32)]).unwrap();
    assert_eq!(f32s(&y), [4.0; 4]);
}
