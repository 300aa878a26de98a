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
    // A result that is a view of the argument keeps it.
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

/// Calls a function with all arguments given, twice, and returns how many results lie where an argument was; what it computes must be what it computes on arguments that are lent.
fn taken(f: &Compiled, shapes: &[&[i64]]) -> usize {
    let make = || -> Vec<Tensor> {
        let seeds = (1u64..).zip(shapes);
        seeds.map(|(seed, shape)| randn(shape, seed)).collect()
    };
    let lent = make();
    let lent: Vec<&Tensor> = lent.iter().collect();
    let expected: Vec<Vec<f32>> = f
        .call(&lent)
        .unwrap()
        .iter()
        .map(|y| y.to_vec().unwrap())
        .collect();
    let mut counts = [0; 2];
    for count in &mut counts {
        let arguments = make();
        let places: Vec<_> = arguments.iter().map(|x| x.data_ptr().unwrap()).collect();
        let given = arguments.into_iter().map(Argument::from).collect();
        let ys = f.call_donating(given).unwrap();
        let found: Vec<Vec<f32>> = ys.iter().map(|y| y.to_vec().unwrap()).collect();
        assert_eq!(found, expected);
        let there = |y: &&Tensor| places.contains(&y.data_ptr().unwrap());
        *count = ys.iter().filter(there).count();
    }
    assert_eq!(counts[0], counts[1]);
    counts[0]
}

#[test]
fn a_kernel_writes_its_result_over_the_argument_that_it_reads() {
    for n in [1, 7, 1000, 100_003] {
        let one = compile(|x: &Tensor| x.relu() * 2.0, Options::default()).unwrap();
        assert_eq!(taken(&one, &[&[n]]), 1, "{n} elements");
    }
    // Of two operands one is taken, and a result as large as none of them takes none.
    let sum = compile(|x: &Tensor, y: &Tensor| (x + y).exp(), Options::default()).unwrap();
    assert_eq!(taken(&sum, &[&[33, 7], &[33, 7]]), 1);
    assert_eq!(taken(&sum, &[&[33, 7], &[7]]), 1);
    assert_eq!(taken(&sum, &[&[33, 1], &[7]]), 0);
}

#[test]
fn every_state_of_a_step_stays_where_it_is() {
    // One kernel of an optimiser: each new state needs the old states of others.
    let step = |w: &Tensor, m: &Tensor, v: &Tensor, g: &Tensor| {
        let m = m * 0.9 + g * 0.1;
        let v = v * 0.99 + (g * g) * 0.01;
        (w - &m / (v.abs().sqrt() + 0.001), m, v)
    };
    let f = compile(step, Options::default()).unwrap();
    let shape: &[i64] = &[67, 131];
    assert_eq!(taken(&f, &[shape; 4]), 3);
    assert_eq!(f.explain().variants[0].kernels.len(), 1, "{}", f.explain());
}

#[test]
fn an_element_that_another_needs_later_stays() {
    // Each result reads the argument elsewhere too: at the transposed place, in a sum over it, through a shift.
    let f = compile(|x: &Tensor| x + &x.t(), Options::default()).unwrap();
    assert_eq!(taken(&f, &[&[65, 65]]), 0);
    let f = compile(|x: &Tensor| x - &x.sum(&[1], true), Options::default()).unwrap();
    taken(&f, &[&[65, 65]]);
    let f = compile(|x: &Tensor| x.roll(&[1], &[0]) + x, Options::default()).unwrap();
    assert_eq!(taken(&f, &[&[65, 65]]), 0);
    // A reader in another kernel runs before.
    let f = compile(
        |x: &Tensor, w: &Tensor| (x.matmul(w), x * 2.0),
        Options::default(),
    )
    .unwrap();
    taken(&f, &[&[64, 64], &[64, 64]]);
}

#[test]
fn a_part_of_a_given_argument_is_written_alone() {
    let f = compile(
        |cache: &Tensor, row: &Tensor| cache.slice_scatter(&row.exp(), 0, 3, 4, 1),
        Options::default(),
    )
    .unwrap();
    assert_eq!(taken(&f, &[&[64, 32], &[1, 32]]), 1);
}

#[test]
fn given_once_is_not_given_always() {
    let f = compile(|x: &Tensor| x.relu(), Options::default()).unwrap();
    let expected = randn(&[1000], 1).relu().to_vec::<f32>().unwrap();
    let run = |x: Argument<'_>| f.call_donating(vec![x]).unwrap().remove(0);
    let x = randn(&[1000], 1);
    let before = x.to_vec::<f32>().unwrap();
    let place = x.data_ptr().unwrap();
    let y = run(randn(&[1000], 1).into());
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    // Lent, or held by somebody else: it stays.
    let y = run((&x).into());
    assert_ne!(y.data_ptr().unwrap(), place);
    let held = x.clone();
    let y = run(x.into());
    assert_ne!(y.data_ptr().unwrap(), place);
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    assert_eq!(held.to_vec::<f32>().unwrap(), before);
    let y = run(held.into());
    assert_eq!(y.data_ptr().unwrap(), place);
    // A small part of large memory would keep all of it.
    let large = randn(&[4096], 2);
    let place = large.data_ptr().unwrap();
    let part = large.narrow(0, 0, 1000);
    drop(large);
    assert_ne!(run(part.into()).data_ptr().unwrap(), place);
}
