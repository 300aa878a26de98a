//! Layers and kernels with random sizes.

use crate::{int, is_said, make, tensors};
use oxyfuel::kernel::{self, BufferMode, KernelBuilder, Symbol};
use oxyfuel::nn::{
    AvgPool2d, BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Embedding, Flatten, GroupNorm,
    LayerNorm, Linear, MaxPool2d, Module, MultiHeadAttention, RmsNorm,
};
use oxyfuel::{Convolution, DType, Options, Tensor};
use proptest::prelude::*;
use std::sync::OnceLock;

/// A layer of these sizes, called.
type Layer = fn([i64; 4], DType, &Tensor) -> Tensor;

const LAYERS: &[(&str, Layer)] = &[
    ("linear", |[a, b, ..], dtype, x| {
        Linear::new(a, b, true, dtype, 0).forward(x)
    }),
    ("embedding", |[a, b, ..], dtype, x| {
        Embedding::new(a, b, dtype, 0).forward(x)
    }),
    ("layer norm", |[a, b, ..], dtype, x| {
        LayerNorm::new(&[a, b], dtype).forward(x)
    }),
    ("rms norm", |[a, ..], dtype, x| {
        RmsNorm::new(&[a], dtype).forward(x)
    }),
    ("batch norm", |[a, ..], dtype, x| {
        BatchNorm::new(a, dtype).forward(x)
    }),
    ("batch norm in training", |[a, ..], dtype, x| {
        let mut norm = BatchNorm::new(a, dtype);
        norm.training = true;
        norm.forward(x)
    }),
    ("group norm", |[a, b, ..], dtype, x| {
        GroupNorm::new(a, b, dtype).forward(x)
    }),
    ("attention", |[a, b, ..], dtype, x| {
        MultiHeadAttention::new(a, b, dtype, 0).forward(x)
    }),
    ("conv1d", |[a, b, c, d], dtype, x| {
        let how = Convolution {
            groups: d,
            ..Convolution::default()
        };
        Conv1d::new(a, b, [c], how, true, dtype, 0).forward(x)
    }),
    ("conv2d", |[a, b, c, d], dtype, x| {
        let how = Convolution {
            padding: vec![d],
            ..Convolution::default()
        };
        Conv2d::new(a, b, [c, 1], how, false, dtype, 0).forward(x)
    }),
    ("conv transpose", |[a, b, c, d], dtype, x| {
        let how = Convolution {
            groups: d,
            ..Convolution::default()
        };
        ConvTranspose2d::new(a, b, [c, 2], how, true, dtype, 0).forward(x)
    }),
    ("dropout", |[a, b, ..], _, x| {
        let mut dropout = Dropout::new(a as f64 / 4.0, b);
        dropout.training = true;
        dropout.forward(x)
    }),
    ("flatten", |[start, end, ..], _, x| {
        Flatten { start, end }.forward(x)
    }),
    ("max pool", |[a, b, ..], _, x| {
        MaxPool2d::new([a, b]).forward(x)
    }),
    ("average pool", |[a, b, ..], _, x| {
        AvgPool2d::new([a, b]).forward(x)
    }),
];

/// `y = x * factor` over `n` elements, with a workspace of `m`.
fn scale() -> &'static kernel::Kernel {
    static KERNEL: OnceLock<kernel::Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let k = KernelBuilder::new("scale");
        let (n, m) = (k.symbol("n", Symbol(0)), k.symbol("m", Symbol(1)));
        let factor = k.scalar("factor", DType::F32);
        let x = k.buffer("x", DType::F32, BufferMode::Read, n.expr());
        let _w = k.buffer("w", DType::F32, BufferMode::Workspace, m.expr());
        let y = k.buffer("y", DType::F32, BufferMode::Write, n.expr());
        k.phase([n.expr().ceildiv(16)], |k| {
            let base = k.program_id(0) * 16;
            let left = n.tile() - &base;
            let from = x.at(&base).shape([16]).valid(0, &left);
            k.store(
                y.at(&base).shape([16]).valid(0, &left),
                k.load(from) * &factor,
            );
        });
        kernel::compile(&k.finish().unwrap(), Options::default()).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_layer_panics(
        which in 0..LAYERS.len(),
        sizes in [int(), int(), int(), int()],
        dtype in 0..DType::ALL.len(),
        inputs in tensors(),
    ) {
        let x = &make(&inputs)[0];
        let (_, layer) = LAYERS[which];
        if x.check().is_ok() && let Err(error) = layer(sizes, DType::ALL[dtype], x).check() {
            is_said(&error);
        }
    }

    #[test]
    fn no_launch_panics(
        (n, m, factor) in (int(), int(), int()),
        order in prop::collection::vec(0usize..6, 4..7),
        inputs in tensors(),
    ) {
        let tensors: Vec<Tensor> = make(&inputs);
        if tensors.iter().any(|x| x.check().is_err()) {
            return Ok(());
        }
        let (x, y) = (Tensor::ones(&[5], DType::F32), Tensor::zeros(&[5], DType::F32));
        let all = [n.into(), m.into(), factor.into(), (&x).into(), (&y).into(), (&tensors[0]).into()];
        let mixed: Vec<_> = order.iter().map(|&i| all[i]).collect();
        for arguments in [&all[..5], &mixed] {
            for result in [scale().check(arguments), scale().launch(arguments)] {
                if let Err(error) = result {
                    is_said(&error);
                }
            }
        }
    }
}
