//! Einstein's notation and attention against the sums that define them.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Builder, Device, HostTensor, ValueId, run};

fn numbers(shape: &[i64], seed: i64) -> HostTensor {
    let count = shape.iter().product::<i64>();
    let values: Vec<f64> = (0..count)
        .map(|i| ((i * 7 + seed * 5) % 11 - 5) as f64)
        .collect();
    HostTensor::from_f64(DType::F32, shape, &values).unwrap()
}

fn evaluate(
    inputs: &[HostTensor],
    build: impl Fn(&mut Builder, &[ValueId]) -> Result<ValueId>,
) -> Result<HostTensor> {
    let mut b = Builder::new("f");
    let mut values = vec![];
    for (i, t) in inputs.iter().enumerate() {
        let shape = t.shape.iter().map(|&n| Expr::from(n)).collect();
        values.push(b.input(&format!("x{i}"), t.dtype, shape, Device::Cpu)?);
    }
    let y = build(&mut b, &values)?;
    b.output(y);
    Ok(run(&b.finish()?, inputs)?.remove(0))
}

/// The sum over all letters, one term after another.
fn naive(terms: &[&str], result: &str, tensors: &[HostTensor]) -> Vec<f64> {
    let mut sizes: Vec<(char, i64)> = vec![];
    for (term, t) in terms.iter().zip(tensors) {
        for (c, &n) in term.chars().zip(&t.shape) {
            if !sizes.iter().any(|s| s.0 == c) {
                sizes.push((c, n));
            }
        }
    }
    let size = |c: char| sizes.iter().find(|s| s.0 == c).unwrap().1;
    let index = |term: &str, place: &[i64]| {
        term.chars().fold(0, |i, c| {
            let at = sizes.iter().position(|s| s.0 == c).unwrap();
            i * size(c) + place[at]
        }) as usize
    };
    let count = result.chars().map(size).product::<i64>();
    let mut y = vec![0.0; count as usize];
    let all = sizes.iter().map(|s| s.1).product::<i64>();
    for mut flat in 0..all {
        let mut place = vec![0; sizes.len()];
        for (p, s) in place.iter_mut().zip(&sizes).rev() {
            *p = flat % s.1;
            flat /= s.1;
        }
        let term = |(term, t): (&&str, &HostTensor)| t.get(index(term, &place)).as_f64();
        y[index(result, &place)] += terms.iter().zip(tensors).map(term).product::<f64>();
    }
    y
}

#[test]
fn einsum_is_the_sum() {
    let cases: &[(&str, &[&[i64]], &str)] = &[
        ("ij,jk->ik", &[&[2, 3], &[3, 4]], "ik"),
        ("ij,jk", &[&[2, 3], &[3, 4]], "ik"),
        ("bij,bjk->bik", &[&[2, 2, 3], &[2, 3, 4]], "bik"),
        ("i,j->ij", &[&[2], &[3]], "ij"),
        ("i,i->", &[&[3], &[3]], ""),
        ("ij->ji", &[&[2, 3]], "ji"),
        ("ij->", &[&[2, 3]], ""),
        ("ij,kl->il", &[&[2, 3], &[4, 2]], "il"),
        (
            "bhqd, bhkd -> bhqk",
            &[&[2, 2, 3, 4], &[2, 2, 5, 4]],
            "bhqk",
        ),
        ("ab,bc,cd->da", &[&[2, 3], &[3, 2], &[2, 4]], "da"),
        ("ba,ca->abc", &[&[2, 3], &[4, 3]], "abc"),
    ];
    for (equation, shapes, result) in cases {
        let tensors: Vec<HostTensor> = shapes
            .iter()
            .enumerate()
            .map(|(i, s)| numbers(s, i as i64))
            .collect();
        let ours = evaluate(&tensors, |b, v| b.einsum(equation, v)).unwrap();
        let plain: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let left = plain.split("->").next().unwrap().to_owned();
        let terms: Vec<&str> = left.split(',').collect();
        assert_eq!(ours.to_f64(), naive(&terms, result, &tensors), "{equation}");
        assert_eq!(ours.shape.len(), result.len(), "{equation}");
    }
}

#[test]
fn equations_that_mean_nothing() {
    let cases: &[(&str, &[&[i64]], &str)] = &[
        ("ij,jk->ik", &[&[2, 3]], "E0108"),
        ("ij->i", &[&[2, 3, 4]], "E0104"),
        ("ij,jk->ik", &[&[2, 3], &[4, 5]], "E0101"),
        ("ii->i", &[&[2, 2]], "E0110"),
        ("...i->i", &[&[2, 2]], "E0110"),
        ("i1->i", &[&[2, 2]], "E0201"),
        ("ij->ik", &[&[2, 2]], "E0109"),
        ("ij->ii", &[&[2, 2]], "E0109"),
    ];
    for (equation, shapes, code) in cases {
        let tensors: Vec<HostTensor> = shapes.iter().map(|s| numbers(s, 0)).collect();
        let error = evaluate(&tensors, |b, v| b.einsum(equation, v)).unwrap_err();
        assert!(error.to_string().contains(code), "{equation}: {error}");
    }
}

/// Row by row: the exponentials of scores, normalised, over what a row may see.
fn attended(
    q: &HostTensor,
    k: &HostTensor,
    v: &HostTensor,
    sees: impl Fn(i64, i64) -> bool,
) -> Vec<f64> {
    let (rows, width, length) = (q.shape[1], q.shape[2], k.shape[1]);
    let get = |t: &HostTensor, b: i64, i: i64, d: i64| {
        t.get(((b * t.shape[1] + i) * t.shape[2] + d) as usize)
            .as_f64()
    };
    let mut y = vec![];
    for b in 0..q.shape[0] {
        for i in 0..rows {
            let weight = |j: i64| {
                let score: f64 = (0..width).map(|d| get(q, b, i, d) * get(k, b, j, d)).sum();
                if sees(i, j) {
                    (score / (width as f64).sqrt()).exp()
                } else {
                    0.0
                }
            };
            let total: f64 = (0..length).map(weight).sum();
            for d in 0..v.shape[2] {
                let sum: f64 = (0..length).map(|j| weight(j) * get(v, b, j, d)).sum();
                y.push(if total == 0.0 { 0.0 } else { sum / total });
            }
        }
    }
    y
}

fn close(ours: &HostTensor, truth: &[f64]) {
    for (a, b) in ours.to_f64().iter().zip(truth) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    assert_eq!(ours.numel(), truth.len());
}

#[test]
fn attention() {
    let q = numbers(&[2, 3, 4], 1);
    let (k, v) = (numbers(&[2, 5, 4], 2), numbers(&[2, 5, 2], 3));
    let inputs = [q.clone(), k.clone(), v.clone()];
    let run = |mask: Option<HostTensor>, causal: bool| {
        let mut inputs = inputs.to_vec();
        inputs.extend(mask);
        evaluate(&inputs, |b, x| {
            b.scaled_dot_product_attention([x[0], x[1], x[2]], x.get(3).copied(), causal, None)
        })
    };
    close(
        &run(None, false).unwrap(),
        &attended(&q, &k, &v, |_, _| true),
    );
    close(
        &run(None, true).unwrap(),
        &attended(&q, &k, &v, |i, j| j <= i),
    );
    // The second row sees nothing.
    let sees = |i: i64, j: i64| i != 1 && (i + j) % 2 == 0;
    let flags: Vec<f64> = (0..15)
        .map(|n| f64::from(u8::from(sees(n / 5, n % 5))))
        .collect();
    let mask = HostTensor::from_f64(DType::Bool, &[3, 5], &flags).unwrap();
    close(
        &run(Some(mask.clone()), false).unwrap(),
        &attended(&q, &k, &v, sees),
    );
    let added: Vec<f64> = flags
        .iter()
        .map(|&f| if f == 1.0 { 0.0 } else { f64::NEG_INFINITY })
        .collect();
    let added = HostTensor::from_f64(DType::F32, &[3, 5], &added).unwrap();
    close(
        &run(Some(added), false).unwrap(),
        &attended(&q, &k, &v, sees),
    );
    assert!(
        run(Some(mask), true)
            .unwrap_err()
            .to_string()
            .contains("E0109")
    );
}

/// The slope of `sum(grad * attention)` along each element of each operand, by differences in f64, against the op and against its composition.
#[test]
fn gradients_of_attention() {
    let (grad, q) = (numbers64(&[1, 4, 3, 2], 4), numbers64(&[1, 4, 3, 3], 1));
    let (k, v) = (numbers64(&[1, 2, 5, 3], 2), numbers64(&[1, 2, 5, 2], 3));
    let flags: Vec<f64> = (0..15).map(|n| f64::from(u8::from(n % 4 != 1))).collect();
    let flags = HostTensor::from_f64(DType::Bool, &[1, 1, 3, 5], &flags).unwrap();
    let added = numbers64(&[1, 4, 1, 5], 5);
    for (mask, causal) in [
        (None, false),
        (None, true),
        (Some(flags), false),
        (Some(added), false),
    ] {
        let mut inputs = vec![grad.clone(), q.clone(), k.clone(), v.clone()];
        inputs.extend(mask);
        let forward = |inputs: &[HostTensor]| {
            let y = evaluate(inputs, |b, x| {
                let y = b.sdpa([x[1], x[2], x[3]], x.get(4).copied(), causal, 0.3)?[0];
                let y = b.mul(y, x[0])?;
                b.sum(y, &[0, 1, 2, 3], false)
            });
            y.unwrap().to_f64()[0]
        };
        for operand in 0..3 {
            let gradient = |composed: bool| {
                evaluate(&inputs, |b, x| {
                    let (qkv, mask) = ([x[1], x[2], x[3]], x.get(4).copied());
                    let given = b.sdpa(qkv, mask, causal, 0.3)?;
                    let made = match composed {
                        true => {
                            b.composed_attention_backward(x[0], qkv, given, mask, causal, 0.3)?
                        }
                        false => b.sdpa_backward(x[0], qkv, given, mask, causal, 0.3)?,
                    };
                    Ok(made[operand])
                })
                .unwrap()
                .to_f64()
            };
            let (op, composed) = (gradient(false), gradient(true));
            for at in 0..op.len() {
                let moved = |by: f64| {
                    let mut inputs = inputs.clone();
                    let mut values = inputs[operand + 1].to_f64();
                    values[at] += by;
                    let shape = inputs[operand + 1].shape.clone();
                    inputs[operand + 1] =
                        HostTensor::from_f64(DType::F64, &shape, &values).unwrap();
                    forward(&inputs)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let near = |x: f64| (x - slope).abs() < 1e-6;
                assert!(
                    near(op[at]),
                    "operand {operand}, {at}: {} and {slope}",
                    op[at]
                );
                assert!(
                    near(composed[at]),
                    "operand {operand}, {at}: {} and {slope}",
                    composed[at]
                );
            }
        }
    }
}

fn numbers64(shape: &[i64], seed: i64) -> HostTensor {
    let values: Vec<f64> = numbers(shape, seed)
        .to_f64()
        .iter()
        .map(|x| x / 4.0)
        .collect();
    HostTensor::from_f64(DType::F64, shape, &values).unwrap()
}
