//! Declared buckets: padding never changes results, and what it would change is served without, as few compiles as there are buckets.

use crate::numbers::{close, randn};
use oxyfuel::{Bucket, Code, DType, Options, Result, Tensor, compile, jit};

/// Attention over a padded length: what is no token is masked.
fn masked_attention(x: &Tensor, mask: &Tensor) -> Tensor {
    let scores = x.matmul(&x.transpose(-1, -2)) * 0.25;
    let hidden = mask.logical_not().unsqueeze(1);
    let scores = scores.masked_fill(&hidden, f64::NEG_INFINITY);
    scores.softmax(-1).matmul(&x.relu())
}

#[test]
fn sixty_four_sizes_over_four_buckets_compile_four_times() {
    let bucket = Bucket::new(&[16, 32, 48, 64]).dim(0, 1).dim(1, 1);
    let f = compile(masked_attention, Options::default())
        .unwrap()
        .bucket(bucket)
        .unwrap();
    for length in 1..=64 {
        let x = randn(&[2, length, 8], length as u64);
        let mask = Tensor::ones(&[2, length], DType::Bool);
        close(
            &f.call_one(&[&x, &mask]).unwrap(),
            &masked_attention(&x, &mask),
        );
    }
    let report = f.explain();
    assert_eq!(report.variants.len(), 4, "{report}");
    assert_eq!(report.variants.iter().map(|v| v.calls).sum::<u64>(), 64);
    // Larger than every bucket: served as it is.
    let (x, mask) = (randn(&[2, 70, 8], 0), Tensor::ones(&[2, 70], DType::Bool));
    close(
        &f.call_one(&[&x, &mask]).unwrap(),
        &masked_attention(&x, &mask),
    );
}

type Function = fn(&Tensor) -> Tensor;

#[test]
fn what_padding_does_not_change_is_served() {
    let cases: &[(&str, Function)] = &[
        ("pointwise", |x| (x * 2.0 + 1.0).gelu()),
        ("sum of zeros", |x| x.relu().sum(&[1], false)),
        ("norm of a row", |x| x.layer_norm(&[4], None, None, 1e-5)),
        ("mean of another dim", |x| x.mean(&[2], true) + x),
        ("running sum", |x| x.cumsum(1)),
        ("fold to the right", |x| x.reshape(&[3, -1]).exp()),
        ("transposed", |x| x.transpose(1, 2) * 3.0),
        ("first rows", |x| x.slice(1, 0, 3, 1) + 1.0),
        ("without the last row", |x| x.slice(1, 0, -1, 1) + 1.0),
        ("largest of squares less infinity", |x| {
            let lowest = x.full_like(f64::NEG_INFINITY);
            x.eq(0.0).where_(&lowest, x).amax(&[1], false)
        }),
        ("product of rows", |x| {
            x.relu().transpose(1, 2).matmul(&x.relu())
        }),
        ("view", |x| x.unsqueeze(0)),
    ];
    for (name, function) in cases {
        let f = compile(*function, Options::default())
            .unwrap()
            .bucket(Bucket::new(&[8, 4]).dim(0, 1))
            .unwrap();
        for length in [1, 2, 3, 4, 5, 8] {
            let x = randn(&[3, length, 4], 1);
            let ours = f.call_one(&[&x]);
            let ours = ours.unwrap_or_else(|error| panic!("{name}: {error}"));
            close(&ours, &function(&x));
        }
        assert!(f.explain().variants.len() <= 2, "{name}: {}", f.explain());
    }
}

/// What padding changes: is the size a symbol, or must it be a number?
const CHANGED: &[(&str, bool, Function)] = &[
    ("mean", true, |x| x.mean(&[1], false)),
    ("softmax", true, |x| x.softmax(1)),
    ("sum after exp", true, |x| x.exp().sum(&[1], false)),
    ("sum with a bias", true, |x| {
        (x + &Tensor::ones(&[4], DType::F32)).sum(&[1], false)
    }),
    ("largest", true, |x| x.amax(&[1], false)),
    ("variance", true, |x| x.var(&[1], 1.0, false)),
    ("order", true, |x| x.argsort(1, false)),
    ("position of the largest", true, |x| x.argmax(1, false)),
    ("last row", true, |x| x.select(1, -1)),
    ("fold to the left", true, |x| {
        x.transpose(0, 1)
            .contiguous()
            .transpose(0, 1)
            .reshape(&[-1])
    }),
    ("joined", true, |x| Tensor::cat(&[x, x], 1)),
    ("product over ones", true, |x| {
        (x + 1.0).transpose(1, 2).matmul(x)
    }),
    ("its size", false, |x| x / x.shape()[1] as f64),
    ("squeezed", true, |x| x.squeeze(1)),
];

#[test]
fn what_padding_changes_is_refused_where_it_must_pad() {
    for (name, _, function) in CHANGED {
        let f = compile(*function, Options::default())
            .unwrap()
            .bucket(Bucket::new(&[4, 8]).dim(0, 1).must_pad())
            .unwrap();
        let error = f.call_one(&[&randn(&[3, 3, 4], 1)]).err();
        let error = error.unwrap_or_else(|| panic!("{name} is served"));
        assert_eq!(error.code, Code::PaddingMatters, "{name}: {error}");
        assert!(error.help.is_some(), "{error}");
        assert!(error.to_string().contains("buckets.rs"), "{name}: {error}");
    }
}

#[test]
fn what_padding_changes_is_served_without() {
    for (name, symbolic, function) in CHANGED {
        let f = compile(*function, Options::default())
            .unwrap()
            .bucket(Bucket::new(&[4, 8]).dim(0, 1))
            .unwrap();
        for length in [3, 2, 4, 7, 5, 8, 6] {
            let x = randn(&[3, length, 4], length as u64);
            let ours = f.call_one(&[&x]);
            let ours = ours.unwrap_or_else(|error| panic!("{name}: {error}"));
            close(&ours, &function(&x));
        }
        let report = f.explain();
        let variants = if *symbolic { 2 } else { 7 };
        assert_eq!(report.variants.len(), variants, "{name}: {report}");
        for variant in &report.variants {
            let said = variant.buckets.join("\n");
            let which = match symbolic {
                true => "dim 1 of argument 0: a symbol of at most ",
                false => "dim 1 of argument 0: compiled for this very size: ",
            };
            assert!(said.starts_with(which), "{name}: {said}");
            assert!(said.contains("buckets.rs:"), "{name}: {said}");
            assert!(report.to_string().contains(&said), "{name}: {report}");
        }
        // One element, and more than the largest bucket.
        for length in [1, 9, 0] {
            let x = randn(&[3, length, 4], 1);
            let eager = function(&x);
            match f.call_one(&[&x]) {
                Ok(ours) => close(&ours, &eager),
                Err(error) => assert!(eager.check().is_err(), "{name}: {error}"),
            }
        }
    }
}

fn normalised(x: &Tensor) -> Result<Tensor> {
    let centred = x - &x.mean(&[1], true);
    let largest = centred.abs().amax(&[], false).item()?.as_f64();
    let scaled = centred.relu() / largest.max(0.5);
    Ok(scaled.softmax(1) + x)
}

#[test]
fn sixty_four_sizes_compile_four_times_without_padding_too() {
    type Fallible = fn(&Tensor) -> Result<Tensor>;
    let cases: &[(&str, Fallible)] = &[
        ("mean", |x| Ok(x - &x.mean(&[1], true))),
        ("softmax", |x| Ok(x.softmax(1) * 2.0)),
        ("sort", |x| Ok(x.sort(1, false).0)),
        ("causal attention", |x| {
            Ok(x.scaled_dot_product_attention(x, &x.relu(), None, true, None))
        }),
        (
            "running sum",
            |x| Ok(x.exp().cumsum(1) / x.amax(&[1], true)),
        ),
        ("position of the largest", |x| Ok(x.argmax(1, false))),
        ("cut", normalised),
    ];
    for (name, function) in cases {
        let f = compile(*function, Options::default())
            .unwrap()
            .bucket(Bucket::new(&[16, 32, 48, 64]).dim(0, 1))
            .unwrap();
        for length in 1..=64 {
            let x = randn(&[2, length, 8], length as u64);
            let ours = f.call_one(&[&x]);
            let ours = ours.unwrap_or_else(|error| panic!("{name} of {length}: {error}"));
            close(&ours, &function(&x).unwrap());
        }
        let report = f.explain();
        assert_eq!(report.variants.len(), 4, "{name}: {report}");
        let calls = report.variants.iter().map(|v| v.calls).sum::<u64>();
        assert_eq!(calls, 64, "{name}: {report}");
        for variant in &report.variants {
            assert!(variant.arguments[0].contains("s0"), "{name}: {report}");
            assert!(variant.buckets[0].contains("a symbol"), "{name}: {report}");
            // A plan for each segment.
            let plans = variant.steps.iter().filter(|(step, _)| *step == "emit");
            let segments = 1 + variant.cuts.len();
            assert_eq!(plans.count(), segments, "{name}: {report}");
        }
    }
}

#[test]
fn a_bucket_is_warmed_up() {
    let cases: &[Function] = &[|x| x * 2.0, |x| x.softmax(1)];
    for function in cases {
        let f = compile(*function, Options::default())
            .unwrap()
            .bucket(Bucket::new(&[4, 8]).dim(0, 1))
            .unwrap();
        for length in [1, 7] {
            f.warm_up(&[&randn(&[3, length], 1)]).unwrap();
        }
        assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
        for length in 1..=8 {
            let x = randn(&[3, length], length as u64);
            close(&f.call_one(&[&x]).unwrap(), &function(&x));
        }
        assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
        assert!(!f.explain().variants[0].buckets.is_empty());
    }
}

#[test]
fn two_buckets_and_arguments_that_are_no_rows() {
    let f = compile(
        |x: &Tensor, y: &Tensor| x.softmax(1).matmul(y),
        Options::default(),
    )
    .unwrap()
    .bucket(Bucket::new(&[8, 16]).dim(0, 1).dim(1, 0))
    .unwrap()
    .bucket(Bucket::new(&[4, 32]).dim(1, 1))
    .unwrap();
    let wide = randn(&[32, 20], 3);
    for (length, columns) in [(5, 3), (8, 4), (2, 2), (12, 30), (16, 7), (9, 5)] {
        let x = wide.slice(1, 0, length, 1).slice(0, 0, 6, 1);
        let y = randn(&[columns, length], 4).t();
        let ours = f.call_one(&[&x, &y]).unwrap();
        close(&ours, &x.softmax(1).matmul(&y));
    }
    assert_eq!(f.explain().variants.len(), 2, "{}", f.explain());
}

#[test]
fn a_mean_by_a_mask_is_served() {
    let mean = |x: &Tensor, mask: &Tensor| -> Tensor {
        let count = mask.to(DType::F32).sum(&[1], true);
        (x * &mask.to(DType::F32)).sum(&[1], true) / count
    };
    let f = compile(mean, Options::default())
        .unwrap()
        .bucket(Bucket::new(&[8, 16]).dim(0, 1).dim(1, 1))
        .unwrap();
    for length in [3, 8, 11] {
        let (x, mask) = (
            randn(&[2, length], 3),
            Tensor::ones(&[2, length], DType::Bool),
        );
        close(&f.call_one(&[&x, &mask]).unwrap(), &x.mean(&[1], true));
    }
}

#[test]
fn writes_reach_the_arguments() {
    let step = |x: &Tensor| -> Result<Tensor> {
        x.clone().mul_(2.0)?;
        Ok(x.t())
    };
    let f = compile(step, Options::default())
        .unwrap()
        .bucket(Bucket::new(&[8]).dim(0, 1))
        .unwrap();
    for length in [3, 8] {
        let (a, b) = (randn(&[2, length], 3), randn(&[2, length], 3));
        let ours = f.call_one(&[&a]).unwrap();
        close(&ours, &step(&b).unwrap());
        close(&a, &b);
        assert_eq!(ours.data_ptr().unwrap(), a.data_ptr().unwrap());
    }
}

#[test]
fn mistakes() {
    let make = || compile(|x: &Tensor, y: &Tensor| x + y, Options::default()).unwrap();
    for bucket in [
        Bucket::new(&[]).dim(0, 0),
        Bucket::new(&[0, 4]).dim(0, 0),
        Bucket::new(&[4]),
    ] {
        let error = make().bucket(bucket).err().unwrap();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let twice = make().bucket(Bucket::new(&[4]).dim(0, 0)).unwrap();
    let twice = twice.bucket(Bucket::new(&[8]).dim(0, 0));
    assert_eq!(twice.err().unwrap().code, Code::InvalidArgument);
    let f = make().bucket(Bucket::new(&[4]).dim(0, 7)).unwrap();
    let x = randn(&[3], 0);
    assert_eq!(f.call(&[&x, &x]).unwrap_err().code, Code::DimOutOfRange);
    let f = make()
        .bucket(Bucket::new(&[4]).dim(0, 0).dim(1, 0))
        .unwrap();
    let error = f.call(&[&x, &randn(&[1], 0)]).unwrap_err();
    assert_eq!(error.code, Code::ShapeMismatch, "{error}");
    close(&f.call_one(&[&x, &x]).unwrap(), &(&x * 2.0));
}

/// Whether padding matters is asked of every function that plain data makes of one.
#[test]
fn plain_data_is_asked_again() {
    let f = jit(
        |x: &Tensor, mean: &bool| {
            if *mean {
                x.mean(&[1], false)
            } else {
                x.sum(&[1], false)
            }
        },
        Options::default(),
    );
    let f = f.unwrap().bucket(Bucket::new(&[8]).dim(0, 1)).unwrap();
    let x = Tensor::ones(&[2, 3], DType::F32);
    let sum = f.call((&x, &false)).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0; 2]);
    for _ in 0..2 {
        let mean = f.call((&x, &true)).unwrap();
        assert_eq!(mean.to_vec::<f32>().unwrap(), [1.0; 2]);
        let sum = f.call((&x, &false)).unwrap();
        assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0; 2]);
    }
}

/// Another layout of an argument that is not padded makes a copy of what was a view.
#[test]
fn strides_are_asked_again() {
    let f = compile(
        |x: &Tensor, w: &Tensor| (x * 2.0, w.flatten()),
        Options::default(),
    );
    let f = f.unwrap().bucket(Bucket::new(&[8]).dim(0, 1)).unwrap();
    let (x, w) = (randn(&[2, 3], 1), randn(&[4, 4], 2));
    for w in [w.clone(), w.t(), w.slice(0, 0, 4, 2), w] {
        let ours = f.call(&[&x, &w]).unwrap();
        close(&ours[0], &(&x * 2.0));
        close(&ours[1], &w.flatten());
    }
}
