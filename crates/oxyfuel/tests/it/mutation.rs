//! Captured functions that overwrite what they are given.

use oxyfuel::{Code, DType, Options, Result, Tensor, compile};
use proptest::prelude::*;

fn counting(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    Tensor::arange(0, count, 1, DType::F32).reshape(shape)
}

#[test]
fn an_argument_is_updated_in_place_by_every_call() {
    let step = |p: &Tensor, g: &Tensor| {
        let mut p = p.clone();
        let old = &p * 1.5;
        p.copy_(&(&p - g * 0.5)).map(|()| old + p)
    };
    let f = compile(step, Options::default()).unwrap();
    let (p, g) = (counting(&[3, 4]), Tensor::ones(&[3, 4], DType::F32));
    let first = f.call_one(&[&p, &g]).unwrap().to_vec::<f32>().unwrap();
    let second = f.call_one(&[&p, &g]).unwrap().to_vec::<f32>().unwrap();
    for (i, (&a, &b)) in first.iter().zip(&second).enumerate() {
        let x = i as f32;
        assert_eq!((a, b), (x * 2.5 - 0.5, (x - 0.5) * 2.5 - 0.5));
    }
    assert_eq!(p.to_vec::<f32>().unwrap()[..2], [-1.0, 0.0]);
    let mut out = [Tensor::ones(&[3, 4], DType::F32)];
    f.call_into(&[&p, &g], &mut out).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap()[0], -3.0);
    assert_eq!(p.to_vec::<f32>().unwrap()[0], -1.5);
}

#[test]
fn a_cache_gets_its_new_row() {
    let step = |cache: &Tensor, row: &Tensor| {
        let mut cache = cache.clone();
        let updated = cache.slice_scatter(row, 0, 2, 3, 1);
        cache.copy_(&updated).map(|()| cache.sum(&[0], false))
    };
    let f = compile(step, Options::default()).unwrap();
    let (cache, row) = (counting(&[4, 3]), Tensor::full(&[1, 3], -1, DType::F32));
    let sum = f.call_one(&[&cache, &row]).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [11.0, 14.0, 17.0]);
    let rows = cache.to_vec::<f32>().unwrap();
    assert_eq!(rows[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(rows[6..], [-1.0, -1.0, -1.0, 9.0, 10.0, 11.0]);
}

#[test]
fn two_arguments_change_places() {
    let swap = |x: &Tensor, y: &Tensor| {
        let (mut x, mut y) = (x.clone(), y.clone());
        let old = x.clone() + 0.0;
        x.copy_(&y)?;
        y.copy_(&old).map(|()| y)
    };
    let f = compile(swap, Options::default()).unwrap();
    let (x, y) = (counting(&[5]), Tensor::ones(&[5], DType::F32));
    f.call(&[&x, &y]).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 5]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_write_into_a_view_is_seen_everywhere() {
    let f = |x: &Tensor| {
        let rows = x.slice(0, 1, 3, 1);
        let before = &rows + 0.0;
        x.t().select(0, 2).fill_(-1)?;
        rows.unsqueeze(0).mul_(10.0)?;
        x.clone()
            .slice_assign(1, 0, 1, 1, &Tensor::full(&[1], 7, DType::F32))?;
        Ok::<_, oxyfuel::Error>((before, rows + 0.0))
    };
    let (a, b) = (counting(&[4, 3]), counting(&[4, 3]));
    let eager = f(&a).unwrap();
    let compiled = compile(f, Options::default()).unwrap();
    let ours = compiled.call(&[&b]).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    assert_eq!(
        a.to_vec::<f32>().unwrap(),
        [7., 1., -1., 7., 40., -10., 7., 70., -10., 7., 10., -1.]
    );
    for (ours, eager) in ours.iter().zip([eager.0, eager.1]) {
        assert_eq!(
            ours.to_vec::<f32>().unwrap(),
            eager.to_vec::<f32>().unwrap()
        );
    }
}

#[test]
fn captured_tensors_are_written_by_every_call() {
    let total = Tensor::zeros(&[3], DType::F32);
    let held = total.clone();
    let f = compile(
        move |x: &Tensor| {
            let mut held = held.clone();
            held.add_(x)?;
            Ok::<_, oxyfuel::Error>(&held * 2.0)
        },
        Options::default(),
    )
    .unwrap();
    let x = Tensor::ones(&[3], DType::F32);
    for i in 1..4 {
        let out = f.call_one(&[&x]).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(out, [2.0 * i as f32; 3]);
        assert_eq!(total.to_vec::<f32>().unwrap(), [i as f32; 3]);
    }
}

#[test]
fn what_a_function_makes_is_new_at_every_call() {
    let f = compile(
        |x: &Tensor| {
            let mut sum = Tensor::zeros(&[2], DType::F32);
            let mut list = Tensor::from_slice(&[1.0f32, 2.0], &[2]);
            sum.add_(x)?;
            list.mul_(x)?;
            Ok::<_, oxyfuel::Error>((sum, list))
        },
        Options::default(),
    )
    .unwrap();
    let x = Tensor::full(&[2], 3, DType::F32);
    for _ in 0..3 {
        let mut out = f.call(&[&x]).unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), [3.0, 3.0]);
        assert_eq!(out[1].to_vec::<f32>().unwrap(), [3.0, 6.0]);
        out[0].zero_().unwrap();
        out[1].zero_().unwrap();
    }
}

#[test]
fn results_share_memory_as_eager_results_do() {
    let f = |x: &Tensor| {
        let y = x + 1.0;
        (x.t(), y.clone(), y.slice(0, 0, 1, 1), y.t(), x * 2.0)
    };
    let compiled = oxyfuel::jit(f, Options::default()).unwrap();
    let x = counting(&[2, 3]);
    for _ in 0..2 {
        let (mut xt, mut y, part, yt, mut own) = compiled.call((&x,)).unwrap();
        let old = x.to_vec::<f32>().unwrap();
        xt.add_(100.0).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap()[0], old[0] + 100.0);
        y.fill_(5).unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), [5.0; 3]);
        assert_eq!(yt.to_vec::<f32>().unwrap(), [5.0; 6]);
        own.zero_().unwrap();
        assert_eq!(yt.to_vec::<f32>().unwrap(), [5.0; 6]);
    }
}

#[test]
fn overlapping_arguments_give_what_eager_gives() {
    let f = |x: &Tensor, y: &Tensor| {
        x.clone().add_(1.0)?;
        y.clone().mul_(2.0)?;
        Ok::<_, oxyfuel::Error>(x + y)
    };
    let compiled = compile(f, Options::default()).unwrap();
    let (a, b) = (counting(&[6]), counting(&[6]));
    let view = |t: &Tensor| (t.slice(0, 0, 4, 1), t.slice(0, 2, 6, 1));
    // Two calls: the variant is made for arguments that overlap, and found again.
    for _ in 0..2 {
        let ((ax, ay), (bx, by)) = (view(&a), view(&b));
        let eager = f(&ax, &ay).unwrap();
        let ours = compiled.call_one(&[&bx, &by]).unwrap();
        assert_eq!(
            ours.to_vec::<f32>().unwrap(),
            eager.to_vec::<f32>().unwrap()
        );
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    }
    let report = compiled.explain();
    assert_eq!(report.variants[0].eager_calls, 2);
    assert!(
        report.to_string().contains("2 calls ran eagerly"),
        "{report}"
    );
}

#[test]
fn mistakes_of_writes() {
    let mut x = counting(&[2, 3]);
    let mut wide = counting(&[1]).expand(&[4]);
    let mut whole = Tensor::ones(&[3], DType::I64);
    let big = counting(&[4, 2, 3]);
    let cases = [
        (x.add_(&big), Code::ShapeMismatch),
        (x.copy_(&big), Code::ShapeMismatch),
        (wide.fill_(1), Code::AliasedInputs),
        (whole.div_(2), Code::DTypeMismatch),
        (whole.add_(0.5), Code::DTypeMismatch),
        (x.slice_assign(5, 0, 1, 1, 0.0), Code::DimOutOfRange),
        (x.select_assign(0, 9, 0.0), Code::IndexOutOfRange),
        (x.reshape(&[4]).zero_(), Code::ShapeMismatch),
    ];
    for (i, (result, code)) in cases.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.code, code, "{i}: {error}");
        assert!(error.at.is_some(), "{error}");
    }
    let f = compile(
        |x: &Tensor| x.unsqueeze(0).expand(&[3, 4]).fill_(1).map(|()| x.clone()),
        Options::default(),
    );
    let error = f.unwrap().call(&[&counting(&[4])]).unwrap_err();
    assert_eq!(error.code, Code::AliasedInputs, "{error}");
}

// ---- random programs of views and writes ----------------------------------------------------------------------------------------

/// One step: which tensor, what is done, with which numbers.
type Step = (usize, u8, i64, i64, usize);

/// Runs a program on tensors; every result is kept and may be written later.
fn program(steps: &[Step], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all: Vec<Tensor> = inputs.to_vec();
    for &(which, what, a, b, other) in steps {
        let mut x = all[which % all.len()].clone();
        let y = all[other % all.len()].clone();
        let rank = x.rank() as i64;
        let dim = if rank == 0 { 0 } else { a.rem_euclid(rank) };
        let new = match what {
            0 if rank > 0 => x.slice(dim, b % 3, b % 3 + 3, 1 + a % 2),
            1 if rank > 0 && x.size(dim)? > 0 => x.select(dim, b % x.size(dim)?),
            2 => x.unsqueeze(a.rem_euclid(rank + 1)),
            3 if rank > 1 => x.transpose(dim, b.rem_euclid(rank)),
            4 => x.flatten(),
            5 => &x + &y,
            6 => &x * 3,
            7 => x.contiguous(),
            8 => x.reshape(&[-1, 1]),
            9 => x.add_(&y).map(|()| x)?,
            10 => x.copy_(&y).map(|()| x)?,
            11 => x.fill_(b).map(|()| x)?,
            12 => x.mul_(2).map(|()| x)?,
            13 => x.sub_(&y.sum(&[], false)).map(|()| x)?,
            _ => x,
        };
        // A shape that does not fit is a step that is skipped, in all ways of running alike.
        if new.check().is_ok() {
            all.push(new);
        }
    }
    Ok(all.split_off(inputs.len()))
}

/// Skips what fails: mistakes are tested elsewhere.
fn sound(steps: &[Step], inputs: &dyn Fn() -> Vec<Tensor>) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    for &step in steps {
        out.push(step);
        if program(&out, &inputs()).is_err() {
            out.pop();
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn programs_of_views_and_writes_agree_with_eager(
        steps in prop::collection::vec((0usize..64, 0u8..14, 0i64..4, 0i64..6, 0usize..64), 1..10),
    ) {
        let inputs = || {
            let a = Tensor::arange(0, 12, 1, DType::I64).reshape(&[3, 4]);
            let b = Tensor::arange(5, 17, 1, DType::I64).reshape(&[4, 3]).t();
            vec![a, b, Tensor::arange(1, 5, 1, DType::I64)]
        };
        let steps = sound(&steps, &inputs);
        let numbers = |all: &[Tensor]| -> Vec<(Vec<i64>, Vec<i64>)> {
            all.iter().map(|t| (t.shape().to_vec(), t.to_vec::<i64>().unwrap())).collect()
        };
        let (ours, eager) = (inputs(), inputs());
        let mut expected = program(&steps, &eager).unwrap();
        let copy = steps.clone();
        let f = compile(move |x: &[Tensor]| program(&copy, x), Options::default()).unwrap();
        let borrowed: Vec<&Tensor> = ours.iter().collect();
        let mut results = f.call(&borrowed).unwrap();
        prop_assert_eq!(numbers(&results), numbers(&expected));
        prop_assert_eq!(numbers(&ours), numbers(&eager));
        // Results are the memory that they are eagerly: what is written to one is seen in the same others.
        for i in 0..results.len() {
            let (a, b) = (results[i].add_(1000), expected[i].add_(1000));
            prop_assert_eq!(a.is_ok(), b.is_ok());
            prop_assert_eq!(numbers(&results), numbers(&expected));
            prop_assert_eq!(numbers(&ours), numbers(&eager));
        }
    }
}

/// A tensor is scattered into itself as it was before, and the result is a new tensor.
#[test]
fn a_slice_of_a_tensor_goes_into_the_tensor_itself() {
    type Function = fn(&Tensor) -> Tensor;
    let functions: [(Function, [i64; 4]); 4] = [
        (|x| x.slice_scatter(x, 0, 0, 4, 1), [1, 2, 3, 4]),
        (
            |x| x.slice_scatter(&x.slice(0, 0, 2, 1), 0, 2, 4, 1),
            [1, 2, 1, 2],
        ),
        (
            |x| x.slice_scatter(&x.slice(0, 0, 3, 1), 0, 1, 4, 1),
            [1, 1, 2, 3],
        ),
        (
            |x| x.slice_scatter(&x.slice(0, 0, 0, 1), 0, 2, 2, 1),
            [1, 2, 3, 4],
        ),
    ];
    for (number, (f, expected)) in functions.into_iter().enumerate() {
        let x = Tensor::from_slice(&[1i64, 2, 3, 4], &[4]);
        let compiled = compile(move |x: &Tensor| f(x), Options::default()).unwrap();
        for mut y in [f(&x), compiled.call_one(&[&x]).unwrap()] {
            assert_eq!(y.to_vec::<i64>().unwrap(), expected, "{number}");
            y.fill_(0).unwrap();
            assert_eq!(x.to_vec::<i64>().unwrap(), [1, 2, 3, 4], "{number}");
        }
    }
}
