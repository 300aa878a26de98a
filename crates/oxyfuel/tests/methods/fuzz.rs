//! Arguments that nobody means: whatever the numbers are, a method gives tensors or failed ones with a code, never a panic; and a compiled function gives what eager gives.

use crate::{ints, numbers};
use oxyfuel::{
    ClassLoss, DType, Fault, Interpolation, Options, Padding, Pooling, SampleMode, SamplePadding,
    Tensor, compile,
};
use proptest::prelude::*;

/// A method of a tensor, four whole numbers and a float.
type Method = fn(&Tensor, [i64; 4], f64) -> Vec<Tensor>;

const METHODS: &[Method] = &[
    |x, [a, b, ..], f| {
        vec![
            x.norm(f, &[a, b], true),
            x.logsumexp(&[a], false),
            x.std(&[b], f, false),
        ]
    },
    |x, [a, b, ..], _| {
        vec![
            x.max_dim(a, true).1,
            x.min_dim(b, false).0,
            x.median_dim(a, false).0,
            x.kthvalue(b, a, true).0,
        ]
    },
    |x, [a, ..], _| {
        vec![
            x.cummax(a).0,
            x.cummin(a).1,
            x.logcumsumexp(a),
            x.argmax_all(),
            x.median(),
        ]
    },
    |x, [a, b, c, d], _| {
        vec![
            x.flip(&[a, b]),
            x.roll(&[a, b], &[c, d]),
            x.roll(&[a], &[]),
            x.unfold_dim(a, b, c),
        ]
    },
    |x, [a, b, c, _], _| {
        vec![
            x.repeat(&[a, b, c]),
            x.tile(&[a]),
            x.repeat_interleave(a, b),
            x.one_hot(a),
        ]
    },
    |x, [a, b, c, _], _| {
        vec![
            x.tril(a),
            x.triu(b),
            x.diag_embed(a, b, c),
            x.diagonal(a, b, c),
            x.diag(a),
            x.trace(),
        ]
    },
    |x, [a, b, c, d], _| {
        [
            x.split(a, b),
            x.split_with_sizes(&[a, b], c),
            x.unbind(d),
            x.chunk(a, b),
        ]
        .concat()
    },
    |x, [a, b, c, d], _| {
        vec![
            x.movedim(&[a, b], &[c, d]),
            x.squeeze_dims(&[a, b]),
            x.pixel_shuffle(a),
            x.pixel_unshuffle(b),
            x.glu(c),
        ]
    },
    |x, [a, b, c, d], f| {
        vec![
            x.pad(&[a, b, c, d], Padding::Constant(f)),
            x.pad(&[a, b], Padding::Reflect),
        ]
    },
    |x, [a, b, c, d], _| {
        vec![
            x.pad(&[a, b], Padding::Replicate),
            x.pad(&[a, b, c, d], Padding::Circular),
        ]
    },
    |x, [a, b, c, d], _| {
        let how = Pooling {
            size: vec![a],
            stride: vec![b],
            padding: vec![c],
            dilation: vec![d],
            ceil: a % 2 == 0,
            ..Pooling::default()
        };
        vec![
            x.max_pool(2, &how).1,
            x.avg_pool(1, &how),
            x.avg_pool_backward(x, 1, &how),
        ]
    },
    |x, [a, b, ..], _| {
        vec![
            x.adaptive_avg_pool2d([a, b]),
            x.adaptive_max_pool1d([a]).0,
            x.adaptive_avg_pool_backward(&[a, b]),
            x.max_unpool(&x.argsort(-1, false), &[a]),
        ]
    },
    |x, [a, b, c, d], _| {
        vec![
            x.unfold([a, b], [c, 1], [d, 0], [b, c]),
            x.fold([a, b], [c, d], [1, 1], [0, 0], [1, 1]),
        ]
    },
    |x, [a, b, ..], f| {
        vec![
            x.interpolate(&[a, b], Interpolation::Linear, a % 2 == 0),
            x.interpolate(&[a], Interpolation::Nearest, false),
            x.upsample(f, Interpolation::Cubic, false),
        ]
    },
    |x, [a, ..], _| {
        vec![x.grid_sample(
            &x.slice(-1, 0, a, 1),
            SampleMode::Bilinear,
            SamplePadding::Reflection,
            true,
        )]
    },
    |x, [a, b, c, d], _| {
        vec![
            x.diagonal_scatter(x, a, b, c),
            x.select_scatter(&x.select(a, b), a, d),
            x.take_along_dim(&x.argsort(a, true), b),
        ]
    },
    |x, [a, b, ..], f| {
        vec![
            x.cross_entropy(
                &x.argmax(a, false),
                &ClassLoss {
                    ignore_index: b,
                    label_smoothing: f,
                    ..ClassLoss::default()
                },
            ),
            x.cosine_similarity(x, a, f),
        ]
    },
    |x, [a, b, c, _], f| {
        vec![
            x.group_norm(a, None, None, f),
            x.group_norm_backward(x, b, None, f)[1].clone(),
            x.normalize(f, c, f),
        ]
    },
    |x, [a, ..], f| {
        vec![
            x.layer_norm_backward(x, a as usize, None, f)[0].clone(),
            x.rms_norm_backward(x, 1, None, f)[1].clone(),
            x.softmax_backward(x, a),
        ]
    },
    |x, [a, b, ..], f| {
        vec![
            x.round_decimals(a),
            x.polygamma(b),
            x.hermite_polynomial_h(a),
            x.celu(f),
            x.logit(Some(f)),
            x.softplus(f, f),
            x.nan_to_num(f, f, f),
        ]
    },
    |x, [a, b, ..], f| {
        vec![
            x.addcmul(x, x, f),
            x.lerp(x, f),
            x.hardtanh(f, -f),
            x.clamp_min(a),
            x.fmax(b),
            x.copysign(f),
            x.xlogy(a),
        ]
    },
    |_, [a, b, c, _], f| {
        vec![
            Tensor::linspace(a, f, b.min(1000), DType::F32),
            Tensor::logspace(f, 1, c.min(1000), f, DType::F64),
            Tensor::eye(a.min(100), b.min(100), DType::BF16),
        ]
    },
    |x, [a, b, ..], _| {
        vec![
            x.index_fill(a, &ints(&[0]), b),
            x.embedding_backward(&ints(&[0, 0]), a.min(1000), Some(b), true),
            x.narrow(a, b, 1),
        ]
    },
];

const SHAPES: &[&[i64]] = &[
    &[],
    &[0],
    &[1],
    &[2],
    &[5],
    &[2, 3],
    &[4, 4],
    &[3, 0],
    &[2, 4, 4],
    &[1, 2, 3, 4],
    &[1, 1, 2, 3, 2],
];

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3i64..6, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => Just(1i64 << 62), 1 => Just(-(1i64 << 40))]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![4 => -2.0..3.0, 1 => Just(0.0), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 1 => Just(f64::MAX), 1 => Just(-1e300)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn strange_arguments(
        which in 0..METHODS.len(), shape in 0..SHAPES.len(), letter in prop::sample::select(vec!['f', 'f', 'b', 'i']),
        a in number(), b in number(), c in number(), d in number(), f in float(),
    ) {
        let x = numbers(SHAPES[shape], 0, letter);
        let method = METHODS[which];
        let eager = method(&x, [a, b, c, d], f);
        for tensor in &eager {
            if let Err(error) = tensor.check() {
                prop_assert!(error.code.fault() != Fault::Internal, "{}", error);
                prop_assert!(error.help.is_some() && error.at.is_some(), "{}", error);
            }
        }
        // What succeeds eagerly succeeds compiled, and is the same.
        if eager.iter().any(|tensor| tensor.check().is_err()) {
            return Ok(());
        }
        let compiled = compile(move |x: &Tensor| method(x, [a, b, c, d], f), Options::default()).unwrap();
        let ours = compiled.call(&[&x]);
        prop_assert!(ours.is_ok(), "{:?}", ours.err());
        for (i, (ours, eager)) in ours.unwrap_or_default().iter().zip(&eager).enumerate() {
            prop_assert_eq!(ours.shape(), eager.shape());
            let agree = oxyfuel_engine::agree(ours.dtype(), &ours.to_bytes().unwrap(), &eager.to_bytes().unwrap());
            prop_assert!(agree.is_ok(), "result {}: {:?}", i, agree);
        }
    }
}
