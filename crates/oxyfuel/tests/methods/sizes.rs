//! Sizes that change from call to call: compiled once with a symbol, and what needs a number says so.

use crate::{ints, numbers};
use oxyfuel::{ClassLoss, Code, Options, Padding, Reduction, Tensor, compile};

type Function = fn(&Tensor) -> Vec<Tensor>;

const FREE: &[(&str, Function)] = &[
    ("statistics", |x| {
        vec![
            x.logsumexp(&[0], false),
            x.norm(2.0, &[0], true),
            x.std(&[0], 1.0, false),
            x.max_dim(0, false).1,
            x.median_dim(0, false).0,
            x.argmax_all(),
        ]
    }),
    ("order", |x| {
        vec![
            x.flip(&[0, 1]),
            x.roll(&[3, -1], &[0, 1]),
            x.tril(-1),
            x.triu(1),
            x.repeat(&[2, 3]),
            x.repeat_interleave(2, 0),
        ]
    }),
    ("borders", |x| {
        vec![
            x.pad(&[1, 2, 3, 0], Padding::Constant(1.0)),
            x.pad(&[0, 0, 1, 1], Padding::Reflect),
            x.pad(&[0, 0, 5, 4], Padding::Replicate),
        ]
    }),
    ("diagonals", |x| {
        vec![x.select(1, 0).diag_embed(1, 0, 1), x.diag_embed(-1, 0, 2)]
    }),
    ("index", |x| {
        vec![
            x.index(&[Some(&ints(&[1, -1])), Some(&ints(&[0, 2]))]),
            x.index_fill(0, &ints(&[-1]), 3.0),
            x.take(&ints(&[1, -1])),
        ]
    }),
    ("losses", |x| {
        vec![
            x.mse_loss(&x.exp(), Reduction::Mean),
            x.smooth_l1_loss(&x.exp(), 1.0, Reduction::None),
            x.cross_entropy(
                &x.argmax(1, false),
                &ClassLoss {
                    label_smoothing: 0.1,
                    ..ClassLoss::default()
                },
            ),
        ]
    }),
    ("elements", |x| {
        vec![
            x.mish(),
            x.hypot(&x.exp()),
            x.lerp(x, 0.3),
            x.glu(1),
            x.isfinite(),
        ]
    }),
];

#[test]
fn one_program_serves_many_sizes() {
    for (name, f) in FREE {
        let f = *f;
        let compiled = compile(move |x: &Tensor| f(x), Options::default()).unwrap();
        for rows in [4, 7, 9, 5] {
            let x = numbers(&[rows, 6], 0, 'f');
            let ours = compiled
                .call(&[&x])
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            for (i, (ours, eager)) in ours.iter().zip(f(&x)).enumerate() {
                assert_eq!(ours.shape(), eager.shape(), "{name} {i}");
                oxyfuel_engine::agree(
                    ours.dtype(),
                    &ours.to_bytes().unwrap(),
                    &eager.to_bytes().unwrap(),
                )
                .unwrap_or_else(|why| panic!("{name} {i}: {why}"));
            }
        }
        let variants = compiled.explain().variants.len();
        assert_eq!(variants, 2, "{name}: the first size, and a symbol");
    }
}

/// What needs a number says so, and asking for the size as one helps.
#[test]
fn sizes_that_must_be_known() {
    let needs: &[Function] = &[
        |x| vec![x.cummax(0).0],
        |x| vec![x.logcumsumexp(0)],
        |x| vec![x.unsqueeze(0).max_pool2d([2, 2], [2, 2], [0, 0], [1, 1])],
        |x| vec![x.unsqueeze(0).adaptive_avg_pool2d([2, 2])],
        |x| vec![x.pad(&[0, 0, 3, 3], Padding::Reflect)],
    ];
    for (i, &f) in needs.iter().enumerate() {
        let free = compile(move |x: &Tensor| f(x), Options::default()).unwrap();
        let fixed = compile(
            move |x: &Tensor| {
                x.size(0)?;
                Ok::<_, oxyfuel::Error>(f(x))
            },
            Options::default(),
        )
        .unwrap();
        for rows in [4, 7, 9] {
            let x = numbers(&[rows, 6], 0, 'f');
            let want = f(&x)[0].to_bytes().unwrap();
            assert_eq!(
                fixed.call(&[&x]).unwrap()[0].to_bytes().unwrap(),
                want,
                "{i}"
            );
            match free.call(&[&x]) {
                Ok(ours) => assert_eq!(ours[0].to_bytes().unwrap(), want, "{i}"),
                Err(error) => {
                    assert_eq!(error.code, Code::DataDependent, "{i}: {error}");
                    assert!(error.help.is_some() && rows != 4, "{i}: {error}");
                }
            }
        }
    }
}
