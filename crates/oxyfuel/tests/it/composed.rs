//! Special functions, random numbers, convolutions and attention through the door: eager, compiled and interpreted results agree, and all of it is machine code.

use oxyfuel::{CodeKind, Convolution, DType, Options, Result, Tensor, compile};

/// The three agree, and all of it is machine code.
fn check(name: &str, f: fn(&[Tensor]) -> Result<Vec<Tensor>>, inputs: &[Tensor]) {
    for variant in &crate::agree::check(name, f, inputs).explain().variants {
        for kernel in &variant.kernels {
            assert_eq!(kernel.code, CodeKind::Machine, "{name}: {}", kernel.name);
        }
    }
}

fn f32s(shape: &[i64], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F32, seed)
}

#[test]
fn special_functions() {
    check(
        "special",
        |x| {
            let x = &x[0];
            let positive = x.abs();
            Ok(vec![
                x.lgamma(),
                x.digamma(),
                x.erfcx(),
                x.tanh().erfinv(),
                x.sigmoid().ndtri(),
                x.log_ndtr(),
                x.i0() + x.i1e(),
                positive.modified_bessel_k0() + positive.scaled_modified_bessel_k1(),
                x.bessel_j0() * positive.bessel_y1(),
                x.airy_ai() + x.spherical_bessel_j0(),
                positive.polygamma(2),
                (&positive + 1.5).zeta(&(&positive + 0.5)),
            ])
        },
        &[f32s(&[7, 33], 1)],
    );
}

#[test]
fn divisors() {
    let (a, b) = (
        Tensor::from_slice(&[12i64, -18, 0, 7], &[4]),
        Tensor::from_slice(&[18i64, 12, 5, 21], &[4]),
    );
    assert_eq!(a.gcd(&b).to_vec::<i64>().unwrap(), [6, 6, 5, 7]);
}

#[test]
fn random_numbers() {
    check(
        "random",
        |x| {
            let (x, seed) = (&x[0], &x[1]);
            Ok(vec![
                x.rand_like(seed),
                x + x.randn_like(&(seed + 1)),
                x.uniform_like(-1.0, 3.0, seed),
                x.normal_like(2.0, 0.1, seed),
                x.exponential_like(0.5, seed),
                x.randint_like(0, 10, seed),
                x.sigmoid().bernoulli(seed),
                x.dropout(0.3, seed).sum(&[1], false),
            ])
        },
        &[f32s(&[9, 50], 2), Tensor::from_slice(&[42i64], &[])],
    );
}

/// Another seed is other numbers and no other program; the same seed the same numbers, on any number of threads.
#[test]
fn seeds_are_data() {
    let draw = |threads: usize| {
        let options = Options {
            threads,
            ..Options::default()
        };
        compile(|x: &Tensor, seed: &Tensor| x.dropout(0.5, seed), options).unwrap()
    };
    let x = Tensor::ones(&[512, 300], DType::F32);
    let seed = |n: i64| Tensor::from_slice(&[n], &[]);
    let (one, two) = (draw(1), draw(2));
    let values = |t: Tensor| t.to_vec::<f32>().unwrap();
    let first = values(one.call_one(&[&x, &seed(1)]).unwrap());
    assert_eq!(first, values(two.call_one(&[&x, &seed(1)]).unwrap()));
    assert_eq!(first, values(one.call_one(&[&x, &seed(1)]).unwrap()));
    assert_ne!(first, values(one.call_one(&[&x, &seed(2)]).unwrap()));
    assert_eq!(one.explain().variants.len(), 1);
    assert_eq!(first, values(x.dropout(0.5, 1)));
    let kept = first.iter().filter(|&&v| v == 2.0).count() as f64 / first.len() as f64;
    assert!((kept - 0.5).abs() < 0.01, "{kept}");
}

#[test]
fn convolutions() {
    check(
        "conv",
        |x| {
            let conv = Convolution {
                stride: vec![2, 1],
                padding: vec![1],
                groups: 2,
                ..Convolution::default()
            };
            let y = x[0].conv2d(&x[1], Some(&x[2]), &conv);
            let [input, weight, bias] = x[0].conv_backward(&x[1], &y, &conv);
            Ok(vec![y.relu(), input, weight, bias])
        },
        &[
            f32s(&[2, 4, 9, 8], 1),
            f32s(&[6, 2, 3, 3], 2),
            f32s(&[6], 3),
        ],
    );
    check(
        "conv1d and 3d",
        |x| {
            let conv = Convolution {
                dilation: vec![2],
                ..Convolution::default()
            };
            Ok(vec![
                x[0].conv1d(&x[1], None, &conv),
                x[2].conv3d(&x[3], None, &Convolution::default()),
            ])
        },
        &[
            f32s(&[2, 3, 12], 1),
            f32s(&[4, 3, 3], 2),
            f32s(&[2, 5, 6, 4], 3),
            f32s(&[3, 2, 2, 3, 2], 4),
        ],
    );
    check(
        "conv_transpose",
        |x| {
            let conv = Convolution {
                stride: vec![3, 2],
                padding: vec![1],
                ..Convolution::default()
            };
            Ok(vec![x[0].conv_transpose2d(
                &x[1],
                Some(&x[2]),
                &conv,
                &[2, 1],
            )])
        },
        &[
            f32s(&[2, 4, 5, 3], 1),
            f32s(&[4, 3, 3, 4], 2),
            f32s(&[3], 3),
        ],
    );
}

#[test]
fn a_convolution_that_does_not_fit() {
    let (x, w) = (f32s(&[1, 2, 4, 4], 1), f32s(&[3, 2, 5, 5], 2));
    let error = x
        .conv2d(&w, None, &Convolution::default())
        .to_vec::<f32>()
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("E0101") && text.contains("a kernel of 5"),
        "{text}"
    );
    let text = x
        .conv1d(&w, None, &Convolution::default())
        .to_vec::<f32>()
        .unwrap_err()
        .to_string();
    assert!(text.contains("E0104"), "{text}");
}

#[test]
fn products() {
    check(
        "products",
        |x| {
            let (batch, other, matrix, vector) = (&x[0], &x[1], &x[2], &x[3]);
            Ok(vec![
                matrix.mv(vector),
                vector.dot(vector),
                vector.outer(vector),
                batch.bmm(other).baddbmm(batch, other, 0.5, 2.0),
                matrix.matmul(&matrix.t()).addbmm(batch, other, 1.0, 0.5),
                matrix.mv(vector).addmv(matrix, vector, 2.0, 1.0),
                Tensor::einsum(
                    "bij,bjk,kl->bil",
                    &[batch, other, &matrix.matmul(&matrix.t())],
                ),
            ])
        },
        &[
            f32s(&[3, 4, 5], 1),
            f32s(&[3, 5, 4], 2),
            f32s(&[4, 6], 3),
            f32s(&[6], 4),
        ],
    );
}

#[test]
fn attention() {
    check(
        "attention",
        |x| {
            let (q, k, v) = (&x[0], &x[1], &x[2]);
            let mask = q.matmul(&k.transpose(-2, -1)).gt(-0.5);
            Ok(vec![
                q.scaled_dot_product_attention(k, v, None, false, None),
                q.scaled_dot_product_attention(k, v, None, true, Some(0.25)),
                q.scaled_dot_product_attention(k, v, Some(&mask), false, None),
            ])
        },
        &[
            f32s(&[2, 3, 10, 8], 1),
            f32s(&[2, 3, 12, 8], 2),
            f32s(&[2, 3, 12, 5], 3),
        ],
    );
}

/// Dropout of probability 0 between softmax and product draws nothing: the whole is one kernel of attention.
#[test]
fn attention_written_out_with_dropout_of_nothing() {
    let inputs = [
        f32s(&[2, 3, 10, 8], 1),
        f32s(&[2, 3, 12, 8], 2),
        f32s(&[2, 3, 12, 5], 3),
    ];
    let written = |x: &[Tensor]| {
        let scores = x[0].matmul(&x[1].transpose(-2, -1)) * 0.3;
        let weights = scores.softmax(-1).dropout(0.0, 7);
        Ok(vec![weights.matmul(&x[2])])
    };
    let explained = crate::agree::check("dropout of nothing", written, &inputs).explain();
    for variant in &explained.variants {
        let names: Vec<&str> = variant.kernels.iter().map(|k| &k.name[..]).collect();
        assert!(
            names.len() == 1 && names[0].contains("sdpa"),
            "{names:?}\n{explained}"
        );
    }
}
