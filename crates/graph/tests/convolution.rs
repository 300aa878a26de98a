//! Convolutions against the sum that defines them, and their gradients against a product: the gradient of <y, g> along a direction is linear in each operand.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Builder, Device, HostTensor, ValueId, run};
use proptest::prelude::*;

fn exprs(shape: &[i64]) -> Vec<Expr> {
    shape.iter().map(|&n| Expr::from(n)).collect()
}

/// Small whole numbers: sums are exact.
fn numbers(shape: &[i64], seed: i64) -> HostTensor {
    let count = shape.iter().product::<i64>();
    let values: Vec<f64> = (0..count)
        .map(|i| ((i * 7 + seed * 5) % 11 - 5) as f64)
        .collect();
    HostTensor::from_f64(DType::F32, shape, &values).unwrap()
}

fn evaluate(
    inputs: &[HostTensor],
    build: impl Fn(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Result<Vec<HostTensor>> {
    let mut b = Builder::new("f");
    let mut values = vec![];
    for (i, t) in inputs.iter().enumerate() {
        values.push(b.input(&format!("x{i}"), t.dtype, exprs(&t.shape), Device::Cpu)?);
    }
    for y in build(&mut b, &values)? {
        b.output(y);
    }
    run(&b.finish()?, inputs)
}

/// Every position of a shape.
fn positions(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter()
            .flat_map(|p| (0..n).map(move |i| [p.as_slice(), &[i]].concat()))
            .collect()
    })
}

fn at(t: &HostTensor, position: &[i64]) -> f64 {
    let mut index = 0;
    for (i, n) in position.iter().zip(&t.shape) {
        index = index * n + i;
    }
    t.get(index as usize).as_f64()
}

fn per_dim(given: &[i64], d: usize) -> i64 {
    *given.get(d).unwrap_or(&given[0])
}

/// The definition, term by term: pairs of input and output positions that a kernel position joins. `joined(o, k, d)` is the input position.
fn naive(x: &HostTensor, w: &HostTensor, how: &Convolution, out: &[i64]) -> Vec<f64> {
    let group = w.shape[0] / how.groups;
    let inner = w.shape[1];
    let mut y = vec![];
    for place in positions(out) {
        let (n, o) = (place[0], place[1]);
        let mut sum = 0.0;
        for part in positions(&w.shape[1..]) {
            let mut from = vec![n, o / group * inner + part[0]];
            let inside = (0..out.len() - 2).all(|d| {
                let p = place[d + 2] * per_dim(&how.stride, d)
                    + part[d + 1] * per_dim(&how.dilation, d)
                    - per_dim(&how.padding, d);
                from.push(p);
                (0..x.shape[d + 2]).contains(&p)
            });
            if inside {
                let weight = [&[o], part.as_slice()].concat();
                sum += at(x, &from) * at(w, &weight);
            }
        }
        y.push(sum);
    }
    y
}

fn total(a: &HostTensor, b: &HostTensor) -> f64 {
    a.to_f64().iter().zip(b.to_f64()).map(|(x, y)| x * y).sum()
}

#[derive(Clone, Debug)]
struct Sample {
    x: Vec<i64>,
    w: Vec<i64>,
    how: Convolution,
}

fn sample() -> impl Strategy<Value = Sample> {
    let dim = (1i64..4, 1i64..4, 0i64..3, 1i64..3, 0i64..4);
    let dims = prop::collection::vec(dim, 1..4);
    (dims, 1i64..3, 1i64..3, 1i64..3, 1i64..3).prop_map(|(dims, n, groups, c, o)| {
        let mut s = Sample {
            x: vec![n, c * groups],
            w: vec![o * groups, c],
            how: Convolution {
                stride: vec![],
                padding: vec![],
                dilation: vec![],
                groups,
            },
        };
        for (kernel, stride, padding, dilation, more) in dims {
            let reach = dilation * (kernel - 1) + 1;
            s.x.push((reach - 2 * padding).max(1) + more);
            s.w.push(kernel);
            s.how.stride.push(stride);
            s.how.padding.push(padding);
            s.how.dilation.push(dilation);
        }
        s
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn forward_is_the_sum(s in sample()) {
        let (x, w) = (numbers(&s.x, 1), numbers(&s.w, 2));
        let bias = numbers(&[s.w[0]], 3);
        let inputs = [x.clone(), w.clone(), bias.clone()];
        let y = evaluate(&inputs, |b, v| Ok(vec![b.convolution(v[0], v[1], Some(v[2]), &s.how)?])).unwrap().remove(0);
        let mut truth = naive(&x, &w, &s.how, &y.shape);
        for (i, t) in truth.iter_mut().enumerate() {
            let channel = i as i64 / y.shape[2..].iter().product::<i64>() % y.shape[1];
            *t += at(&bias, &[channel]);
        }
        prop_assert_eq!(y.to_f64(), truth);
    }

    /// <conv(x, w), g> = <x, gradient of x> = <w, gradient of w>, exactly in whole numbers; and the transposed convolution is the gradient of x.
    #[test]
    fn gradients_are_adjoint(s in sample()) {
        let (x, w) = (numbers(&s.x, 4), numbers(&s.w, 5));
        let y = evaluate(&[x.clone(), w.clone()], |b, v| Ok(vec![b.convolution(v[0], v[1], None, &s.how)?])).unwrap().remove(0);
        let g = numbers(&y.shape, 6);
        let inputs = [g.clone(), x.clone(), w.clone()];
        let slopes = evaluate(&inputs, |b, v| {
            let s = b.convolution_backward(v[0], v[1], v[2], &s.how)?;
            Ok(vec![s.input, s.weight, s.bias])
        }).unwrap();
        prop_assert_eq!(&slopes[0].shape, &x.shape);
        prop_assert_eq!(&slopes[1].shape, &w.shape);
        prop_assert_eq!(total(&y, &g), total(&x, &slopes[0]));
        prop_assert_eq!(total(&y, &g), total(&w, &slopes[1]));
        prop_assert_eq!(slopes[2].to_f64().iter().sum::<f64>(), g.to_f64().iter().sum::<f64>());
        // As much more as brings the transposed convolution back to the input's size, where that is allowed.
        let more: Vec<i64> = (0..s.x.len() - 2).map(|d| {
            let reach = s.how.dilation[d] * (s.w[d + 2] - 1) + 1;
            s.x[d + 2] - ((y.shape[d + 2] - 1) * s.how.stride[d] - 2 * s.how.padding[d] + reach)
        }).collect();
        let again = evaluate(&[g, w], |b, v| Ok(vec![b.conv_transpose(v[0], v[1], None, &s.how, &more)?])).unwrap();
        prop_assert_eq!(again[0].to_f64(), slopes[0].to_f64());
    }
}

/// What a transposed convolution is: every element of the input times the kernel, put where it goes.
fn spread_out(x: &HostTensor, w: &HostTensor, how: &Convolution, out: &[i64]) -> Vec<f64> {
    let (channels, outputs) = (w.shape[0] / how.groups, w.shape[1]);
    let mut y = vec![0.0; out.iter().product::<i64>() as usize];
    for from in positions(&x.shape) {
        for part in positions(&w.shape[1..]) {
            let mut place = from[0] * out[1] + from[1] / channels * outputs + part[0];
            let inside = (2..out.len()).all(|d| {
                let o = from[d] * per_dim(&how.stride, d - 2)
                    + part[d - 1] * per_dim(&how.dilation, d - 2)
                    - per_dim(&how.padding, d - 2);
                place = place * out[d] + o;
                (0..out[d]).contains(&o)
            });
            if inside {
                let weight = [&[from[1]], part.as_slice()].concat();
                y[place as usize] += at(x, &from) * at(w, &weight);
            }
        }
    }
    y
}

/// Size, kernel, stride, padding, dilation and what is more of each dim; batch, groups, channels and outputs of a group.
type Spread = (Vec<(i64, i64, i64, i64, i64, i64)>, i64, i64, i64, i64);

fn spreads() -> impl Strategy<Value = Spread> {
    let dim = (1i64..5, 1i64..6, 1i64..5, 0i64..4, 1i64..3, 0i64..4);
    let dims = prop::collection::vec(dim, 1..3);
    (dims, 1i64..3, 1i64..3, 1i64..3, 1i64..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn transposed_is_every_element_times_the_kernel((dims, n, groups, c, o) in spreads()) {
        let (mut x, mut w, mut more) = (vec![n, c * groups], vec![c * groups, o], vec![]);
        let mut how = Convolution { stride: vec![], padding: vec![], dilation: vec![], groups };
        let mut out = vec![n, o * groups];
        for (size, kernel, stride, padding, dilation, extra) in dims {
            let extra = extra % stride.max(dilation);
            x.push(size);
            w.push(kernel);
            more.push(extra);
            how.stride.push(stride);
            how.padding.push(padding);
            how.dilation.push(dilation);
            out.push((size - 1) * stride + dilation * (kernel - 1) + 1 - 2 * padding + extra);
        }
        prop_assume!(out.iter().all(|&n| n > 0));
        let (x, w) = (numbers(&x, 1), numbers(&w, 2));
        let y = evaluate(&[x.clone(), w.clone()], |b, v| Ok(vec![b.conv_transpose(v[0], v[1], None, &how, &more)?])).unwrap();
        prop_assert_eq!(&y[0].shape, &out);
        prop_assert_eq!(y[0].to_f64(), spread_out(&x, &w, &how, &out));
    }
}

#[test]
fn transposed_is_one_convolution_or_product() {
    // Images, kernel, stride, padding, dilation, what computes it.
    let cases = [
        ([1, 4, 8, 8], [4, 2, 4, 4], 2, 1, 1, "convolution"),
        ([1, 4, 8, 8], [4, 2, 2, 2], 2, 0, 1, "convolution"),
        ([1, 4, 8, 8], [4, 2, 1, 1], 2, 0, 1, "convolution"),
        ([1, 4, 8, 8], [4, 2, 3, 3], 1, 1, 2, "convolution"),
        ([5, 4, 1, 1], [4, 2, 4, 4], 1, 0, 1, "mm"),
        ([1, 4, 8, 8], [4, 2, 3, 3], 2, 1, 2, "bmm"),
    ];
    for (x, w, stride, padding, dilation, op) in cases {
        let mut b = Builder::new("f");
        let [x, w] = [("x", x), ("w", w)].map(|(name, shape)| {
            b.input(name, DType::F32, exprs(&shape), Device::Cpu)
                .unwrap()
        });
        let how = Convolution {
            stride: vec![stride],
            padding: vec![padding],
            dilation: vec![dilation],
            groups: 1,
        };
        let y = b.conv_transpose(x, w, None, &how, &[0]).unwrap();
        b.output(y);
        let text = b.finish().unwrap().to_string();
        let computed =
            ["convolution", "mm", "bmm"].map(|op| text.matches(&format!("= {op} ")).count());
        let wanted = ["convolution", "mm", "bmm"].map(|known| usize::from(known == op));
        assert_eq!(computed, wanted, "{text}");
    }
}

#[test]
fn without_a_batch() {
    let (x, w) = (numbers(&[2, 5, 6], 1), numbers(&[3, 2, 3, 3], 2));
    let how = Convolution {
        padding: vec![1],
        ..Convolution::default()
    };
    let y = evaluate(&[x, w], |b, v| {
        Ok(vec![b.convolution(v[0], v[1], None, &how)?])
    })
    .unwrap();
    assert_eq!(y[0].shape, [3, 5, 6]);
}

#[test]
fn symbolic_sizes() {
    let mut b = Builder::new("f");
    let (n, h) = (b.symbol("n", 0, 64), b.symbol("h", 3, 64));
    let shape = vec![n, Expr::from(2), h];
    let x = b.input("x", DType::F32, shape, Device::Cpu).unwrap();
    let w = b
        .input("w", DType::F32, exprs(&[3, 2, 3]), Device::Cpu)
        .unwrap();
    let how = Convolution {
        stride: vec![2],
        padding: vec![1],
        ..Convolution::default()
    };
    let y = b.convolution(x, w, None, &how).unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let w = numbers(&[3, 2, 3], 2);
    for (n, h) in [(1, 3), (2, 8)] {
        let x = numbers(&[n, 2, h], 1);
        let y = run(&graph, &[x.clone(), w.clone()]).unwrap().remove(0);
        assert_eq!(y.to_f64(), naive(&x, &w, &how, &[n, 3, (h - 1) / 2 + 1]));
    }
}

#[test]
fn bad_geometry_names_the_sizes() {
    let plain = Convolution::default();
    let with = |stride: i64, padding: i64, dilation: i64, groups: i64| Convolution {
        stride: vec![stride],
        padding: vec![padding],
        dilation: vec![dilation],
        groups,
    };
    type Case = (
        &'static [i64],
        &'static [i64],
        Convolution,
        &'static str,
        &'static str,
    );
    let cases: Vec<Case> = vec![
        (
            &[1, 2, 4],
            &[3, 2, 5],
            plain.clone(),
            "E0101",
            "a kernel of 5",
        ),
        (&[1, 2, 4], &[3, 3, 2], plain.clone(), "E0101", "[1, 2, 4]"),
        (
            &[1, 3, 4],
            &[3, 1, 2],
            with(1, 0, 1, 2),
            "E0101",
            "2 groups",
        ),
        (&[1, 2, 4], &[3, 2, 2], with(0, 0, 1, 1), "E0109", "stride"),
        (
            &[1, 2, 4],
            &[3, 2, 2],
            with(1, -1, 1, 1),
            "E0109",
            "padding",
        ),
        (
            &[1, 2, 4],
            &[3, 2, 2],
            with(1, 0, i64::MAX, 1),
            "E0109",
            "dilation",
        ),
        (
            &[1, 2, 4],
            &[3, 2, 2],
            with(1, 0, 1, 0),
            "E0109",
            "0 groups",
        ),
        (&[4], &[3, 2, 2], plain.clone(), "E0104", "[4]"),
        (&[1, 2, 4], &[3, 2], plain.clone(), "E0104", "[3, 2]"),
        (&[1, 2, 0], &[3, 2, 1], plain.clone(), "E0101", "of nothing"),
        (
            &[1, 2, 4, 4],
            &[3, 2, 1, 1],
            Convolution {
                stride: vec![1, 1, 1],
                ..plain.clone()
            },
            "E0109",
            "over 2 dims",
        ),
    ];
    for (x, w, how, code, words) in cases {
        let inputs = [numbers(x, 1), numbers(w, 2)];
        let error = evaluate(&inputs, |b, v| {
            Ok(vec![b.convolution(v[0], v[1], None, &how)?])
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(code) && error.contains(words), "{error}");
    }
    let inputs = [
        numbers(&[1, 2, 4], 1),
        numbers(&[2, 3, 2], 2),
        numbers(&[5], 3),
    ];
    let error = evaluate(&inputs, |b, v| {
        Ok(vec![b.conv_transpose(
            v[0],
            v[1],
            Some(v[2]),
            &plain,
            &[0],
        )?])
    });
    assert!(error.unwrap_err().to_string().contains("a bias [5]"));
    let error = evaluate(&inputs, |b, v| {
        Ok(vec![b.conv_transpose(v[0], v[1], None, &plain, &[1])?])
    });
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("output_padding of 1")
    );
}
