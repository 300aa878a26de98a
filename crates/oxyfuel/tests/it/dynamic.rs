//! Sizes that change: symbols from the second size on, and what stays a number.

use crate::numbers::{close, randn};
use oxyfuel::{Code, DType, Options, Result, Tensor, compile};

fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    (q.matmul(&k.transpose(-1, -2)) * 0.25)
        .softmax(-1)
        .matmul(v)
}

#[test]
fn one_variant_serves_all_sizes_from_the_second_on() {
    let f = compile(attention, Options::default()).unwrap();
    for (batch, length) in [(2, 5), (3, 7), (2, 40), (9, 3), (4, 70), (2, 2)] {
        let [q, k, v] = [0, 1, 2].map(|seed| randn(&[batch, length, 8], seed));
        close(&f.call_one(&[&q, &k, &v]).unwrap(), &attention(&q, &k, &v));
    }
    let report = f.explain();
    assert_eq!(report.variants.len(), 2, "{report}");
    assert_eq!(report.variants[1].calls, 5);
    assert_eq!(report.variants[1].arguments[0], "f32[s0, s1, 8] cpu");
    assert_eq!(report.variants[1].interpreted().count(), 0, "{report}");
}

#[test]
fn sizes_of_one_and_none_have_variants_of_their_own() {
    let f = compile(|x: &Tensor, y: &Tensor| x + y, Options::default()).unwrap();
    for n in [4, 6, 1, 0, 5, 1, 0] {
        let (x, y) = (randn(&[n, 3], 0), randn(&[n, 3], 1));
        close(&f.call_one(&[&x, &y]).unwrap(), &(&x + &y));
    }
    assert_eq!(f.explain().variants.len(), 4, "{}", f.explain());
    // Sizes that were always equal are told apart when they are not.
    let (x, y) = (randn(&[1, 3], 0), randn(&[5, 3], 1));
    close(&f.call_one(&[&x, &y]).unwrap(), &(&x + &y));
}

#[test]
fn an_index_that_grows_beyond_what_it_indexes_is_an_error() {
    let index = |rows: i64| Tensor::randint(0, 3, &[rows, 2], DType::I64, 1);
    let gather = compile(|x: &Tensor, i: &Tensor| x.gather(1, i), Options::default()).unwrap();
    let scatter = compile(
        |x: &Tensor, i: &Tensor| x.scatter_add(1, i, &i.to(DType::F32)),
        Options::default(),
    )
    .unwrap();
    for (rows, picked) in [(4, 3), (6, 5), (9, 2), (7, 7)] {
        let (x, i) = (randn(&[rows, 3], 0), index(picked));
        close(&gather.call_one(&[&x, &i]).unwrap(), &x.gather(1, &i));
        let sum = x.scatter_add(1, &i, &i.to(DType::F32));
        close(&scatter.call_one(&[&x, &i]).unwrap(), &sum);
    }
    let (x, i) = (randn(&[5, 3], 0), index(8));
    for f in [&gather, &scatter] {
        let error = f.call_one(&[&x, &i]).unwrap_err();
        assert_eq!(error.code, Code::ShapeMismatch, "{error}");
        assert!(error.to_string().contains("dimension 0 of"), "{error}");
    }
}

#[test]
fn sizes_that_went_together_may_part() {
    let f = compile(
        |x: &Tensor, y: &Tensor| (x.sum(&[0], false), y * 2.0),
        Options::default(),
    )
    .unwrap();
    for (a, b) in [(3, 3), (4, 4), (5, 6), (8, 9), (6, 5)] {
        let (x, y) = (randn(&[a, 2], 0), randn(&[b, 2], 1));
        let out = f.call(&[&x, &y]).unwrap();
        close(&out[0], &x.sum(&[0], false));
        close(&out[1], &(&y * 2.0));
    }
    assert_eq!(f.explain().variants.len(), 3, "{}", f.explain());
}

#[test]
fn a_size_that_is_looked_at_stays_a_number() {
    let f = compile(
        |x: &Tensor| -> Result<Tensor> {
            let [_, columns] = x.dims()?;
            Ok(x.sum(&[1], true) / columns as f64)
        },
        Options::default(),
    )
    .unwrap();
    let g = compile(
        |x: &Tensor| x.sum(&[1], true) / x.shape()[1] as f64,
        Options::default(),
    )
    .unwrap();
    for n in [3, 4, 5] {
        let x = randn(&[2, n], 0);
        close(&f.call_one(&[&x]).unwrap(), &x.mean(&[1], true));
        close(&g.call_one(&[&x]).unwrap(), &x.mean(&[1], true));
    }
    let report = g.explain();
    assert_eq!(report.variants.len(), 3);
    let reasons = report.variants[1].reasons.join("\n");
    assert!(
        reasons.contains("dim 1 of argument 0 is 4, was 3"),
        "{reasons}"
    );
    assert!(
        reasons.contains("dim 1 of argument 0 stays a number: the function asks for it at"),
        "{reasons}"
    );
    assert!(reasons.contains("dynamic.rs:"), "{reasons}");
}

#[test]
fn writes_views_and_layouts_with_symbols() {
    let step = |cache: &Tensor, x: &Tensor| -> Result<(Tensor, Tensor)> {
        cache.clone().slice(0, 0, 1, 1).copy_(x)?;
        Ok((cache.t(), cache.flatten() * 2.0))
    };
    let f = oxyfuel::jit(step, Options::default()).unwrap();
    for n in [4, 6, 9, 12] {
        let (a, b) = (randn(&[3, n], 0), randn(&[3, n], 0));
        let x = randn(&[n], 2);
        let (view, flat) = f.call((&a, &x)).unwrap();
        let expected = step(&b, &x).unwrap();
        close(&view, &expected.0);
        close(&flat, &expected.1);
        close(&a, &b);
        assert_eq!(view.data_ptr().unwrap(), a.data_ptr().unwrap());
    }
    assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
    let g = compile(|x: &Tensor| x.relu() + 1.0, Options::default()).unwrap();
    for n in [4, 6, 9] {
        let x = randn(&[n, 5], 0).t();
        close(&g.call_one(&[&x]).unwrap(), &(x.relu() + 1.0));
    }
    assert_eq!(g.explain().variants.len(), 2, "{}", g.explain());
}

/// Arguments that are no dense tensors: parts of larger ones, every second element, repeated ones.
#[test]
fn symbols_of_parts_of_larger_tensors() {
    type Part = fn(i64) -> Tensor;
    let parts: &[(&str, Part)] = &[
        ("first columns of many", |n| {
            randn(&[6, 100], 1).slice(1, 0, n, 1)
        }),
        ("first columns of more each time", |n| {
            randn(&[6, 2 * n + 1], 1).slice(1, 0, n, 1)
        }),
        ("without the borders", |n| {
            randn(&[n + 2, n + 2], 1)
                .slice(0, 1, n + 1, 1)
                .slice(1, 1, n + 1, 1)
        }),
        ("every second column", |n| {
            randn(&[6, 2 * n], 1).slice(1, 0, 2 * n, 2)
        }),
        ("transposed part", |n| {
            randn(&[n, 64], 1).slice(1, 0, 8, 1).t()
        }),
        ("one of three", |n| randn(&[2, n, 24], 1).slice(2, 8, 16, 1)),
        ("heads", |n| {
            let x = randn(&[2, n, 48], 1).slice(2, 0, 16, 1);
            x.reshape(&[2, n, 4, 4]).transpose(1, 2)
        }),
        ("repeated rows", |n| randn(&[8], 1).expand(&[n, 8])),
        ("repeated columns", |n| randn(&[n, 1], 1).expand(&[n, 8])),
        ("the same columns of wider ones", |n| {
            randn(&[6, 8 + n], 1).slice(1, 0, 8, 1)
        }),
    ];
    let functions: &[fn(&Tensor) -> Tensor] = &[
        |x| (x * 2.0 + 1.0).softmax(-1) + x.sum(&[-1], true),
        |x| x.matmul(&x.transpose(-1, -2)).relu(),
        |x| x.cumsum(-1).transpose(-1, -2) * 3.0,
        |x| x.amax(&[0], false) - x.mean(&[0], false),
        |x| x.flatten().sort(0, false).0,
    ];
    for ((name, part), function) in parts
        .iter()
        .flat_map(|p| functions.iter().map(move |f| (p, f)))
    {
        let f = compile(*function, Options::default()).unwrap();
        for n in [5, 7, 12, 3, 31, 2, 18] {
            let x = part(n);
            let ours = f.call_one(&[&x]);
            let ours = ours.unwrap_or_else(|error| panic!("{name} of {n}: {error}"));
            close(&ours, &function(&x));
        }
        let report = f.explain();
        // Another alignment of the first element may cost one more.
        assert!(report.variants.len() <= 3, "{name}: {report}");
        assert!(!report.to_string().contains("stay"), "{name}: {report}");
    }
}

/// What lies apart in one call and together in another is told apart: a view of one is a copy of the other.
#[test]
fn layouts_of_other_kinds_have_variants_of_their_own() {
    let function = |x: &Tensor| -> Result<Tensor> {
        let flat = x.contiguous();
        flat.clone().add_(1.0)?;
        Ok(x * 1.0)
    };
    let f = compile(function, Options::default()).unwrap();
    for (rows, columns) in [(3, 10), (4, 8), (5, 10), (2, 9), (6, 10), (7, 3)] {
        let make = || randn(&[rows, 10], 1).slice(1, 0, columns, 1);
        let (a, b) = (make(), make());
        close(&f.call_one(&[&a]).unwrap(), &function(&b).unwrap());
        close(&a, &b);
    }
    assert!(f.explain().variants.len() <= 4, "{}", f.explain());
}

#[test]
fn strides_that_are_looked_at_stay_numbers() {
    let function = |x: &Tensor| x * x.strides()[0] as f64;
    let f = compile(function, Options::default()).unwrap();
    for width in [20, 30, 40] {
        let x = randn(&[4, width], 1).slice(1, 0, 8, 1);
        close(&f.call_one(&[&x]).unwrap(), &function(&x));
    }
    let report = f.explain();
    assert_eq!(report.variants.len(), 3, "{report}");
    let reasons = report.variants[1].reasons.join("\n");
    assert!(
        reasons.contains(
            "the stride of dim 0 of argument 0 stays a number: the function asks for it at"
        ),
        "{reasons}"
    );
}

/// Parts of larger tensors are written, given back as views, bound and put into outputs.
#[test]
fn every_way_to_call_with_symbols_for_strides() {
    let step = |x: &Tensor| -> Result<(Tensor, Tensor)> {
        x.clone().mul_(2.0)?;
        Ok((x.t(), x + 1.0))
    };
    let f = oxyfuel::jit(step, Options::default()).unwrap();
    for n in [4, 6, 9, 5] {
        let make = || randn(&[3, 3 * n], 1).slice(1, 0, n, 1);
        let (a, b) = (make(), make());
        let (view, sum) = f.call((&a,)).unwrap();
        let expected = step(&b).unwrap();
        close(&view, &expected.0);
        close(&sum, &expected.1);
        close(&a, &b);
        assert_eq!(view.data_ptr().unwrap(), a.data_ptr().unwrap());
    }
    assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
    let g = compile(|x: &Tensor| x.relu() + 1.0, Options::default()).unwrap();
    for n in [4, 6, 9] {
        let x = randn(&[3, 3 * n], 1).slice(1, 0, n, 1);
        let expected = x.relu() + 1.0;
        let mut out = [Tensor::zeros(&[3, n], DType::F32)];
        g.call_into(&[&x], &mut out).unwrap();
        close(&out[0], &expected);
        let bound = Tensor::zeros(&[3, n], DType::F32);
        g.bind(&[&x], &[&bound]).unwrap().call().unwrap();
        close(&bound, &expected);
        close(&g.profile(&[&x]).unwrap().0[0], &expected);
    }
    assert_eq!(g.explain().variants.len(), 2, "{}", g.explain());
}

#[test]
fn eight_threads_and_many_sizes() {
    let f = compile(
        |x: &Tensor, b: &Tensor| (x + b).gelu().softmax(-1),
        Options::default(),
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8i64 {
            let f = &f;
            scope.spawn(move || {
                let b = randn(&[64], 99);
                for i in 0..24 {
                    let x = randn(&[2 + (thread * 5 + i) % 17, 64], i as u64);
                    close(
                        &f.call_one(&[&x, &b]).unwrap(),
                        &(&x + &b).gelu().softmax(-1),
                    );
                }
            });
        }
    });
    let report = f.explain();
    assert_eq!(report.variants.len(), 2, "{report}");
    assert_eq!(report.variants.iter().map(|v| v.calls).sum::<u64>(), 8 * 24);
}

#[test]
fn every_mode_gives_the_same() {
    let x = randn(&[9, 40], 0);
    let expected = x.softmax(-1);
    for mode in [
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    ] {
        let mut options = Options::default();
        options.set("mode", mode).unwrap();
        let f = compile(|x: &Tensor| x.softmax(-1), options).unwrap();
        close(&f.call_one(&[&x]).unwrap(), &expected);
    }
}
