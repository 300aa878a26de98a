//! Arguments that are given away: their memory becomes a result's where that is safe, and only there.

use oxyfuel::{Argument, Code, Compiled, DType, Options, Tensor, compile};

fn randn(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

/// Two products: the first reads `x` for the last time before the second writes the result.
fn layers() -> Compiled {
    let f = |x: &Tensor, v: &Tensor, w: &Tensor| x.matmul(v).relu().matmul(w);
    compile(f, Options::default()).unwrap()
}

#[test]
fn a_result_takes_the_memory_of_an_argument() {
    let f = layers();
    let (x, v, w) = (
        randn(&[64, 64], 1),
        randn(&[64, 64], 2),
        randn(&[64, 64], 3),
    );
    let expected = f.call_one(&[&x, &v, &w]).unwrap().to_vec::<f32>().unwrap();
    let steps = f.explain().variants[0].kernels.len();
    assert!(steps >= 2, "{}", f.explain());
    let place = x.data_ptr().unwrap();
    let y = f
        .call_donating(vec![x.into(), (&v).into(), (&w).into()])
        .unwrap();
    assert_eq!(y[0].data_ptr().unwrap(), place);
    assert_eq!(y[0].to_vec::<f32>().unwrap(), expected);
}

#[test]
fn memory_that_somebody_holds_stays_as_it_is() {
    let f = layers();
    let (x, v, w) = (
        randn(&[64, 64], 1),
        randn(&[64, 64], 2),
        randn(&[64, 64], 3),
    );
    let (held, before) = (x.t(), x.t().to_vec::<f32>().unwrap());
    let place = x.data_ptr().unwrap();
    let y = f
        .call_donating(vec![x.into(), (&v).into(), (&w).into()])
        .unwrap();
    assert_ne!(y[0].data_ptr().unwrap(), place);
    assert_eq!(held.to_vec::<f32>().unwrap(), before);
    // Lent arguments stay, whoever else is given.
    let x = randn(&[64, 64], 1);
    let place = x.data_ptr().unwrap();
    let y = f
        .call_donating(vec![(&x).into(), v.into(), w.into()])
        .unwrap();
    assert_ne!(y[0].data_ptr().unwrap(), place);
    assert_eq!(x.t().to_vec::<f32>().unwrap(), before);
}

#[test]
fn what_does_not_fit_is_not_taken() {
    // One kernel reads and writes: its argument is never a result's memory. A result that is a view of the argument keeps it.
    let one = compile(|x: &Tensor| x.relu(), Options::default()).unwrap();
    let x = randn(&[1000], 1);
    let expected = x.relu().to_vec::<f32>().unwrap();
    let y = one.call_donating(vec![x.into()]).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), expected);
    let view = compile(
        |x: &Tensor, v: &Tensor, w: &Tensor| (x.t(), x.matmul(v).relu().matmul(w)),
        Options::default(),
    )
    .unwrap();
    let all = [1, 2, 3].map(|seed| randn(&[64, 64], seed));
    let expected: Vec<Vec<f32>> = view
        .call(&all.each_ref())
        .unwrap()
        .iter()
        .map(|y| y.to_vec().unwrap())
        .collect();
    let given: Vec<Argument<'_>> = all.into_iter().map(Argument::from).collect();
    let ys = view.call_donating(given).unwrap();
    let ys: Vec<Vec<f32>> = ys.iter().map(|y| y.to_vec().unwrap()).collect();
    assert_eq!(ys, expected);
    // A large argument does not stay for the sake of a small result.
    let f = layers();
    let (x, v, w) = (randn(&[64, 64], 1), randn(&[64, 64], 2), randn(&[64, 4], 3));
    let place = x.data_ptr().unwrap();
    let y = f
        .call_donating(vec![x.into(), (&v).into(), (&w).into()])
        .unwrap();
    assert_ne!(y[0].data_ptr().unwrap(), place);
    let error = f.call_donating(vec![w.into()]).unwrap_err();
    assert_eq!(error.code, Code::ArityMismatch);
}
