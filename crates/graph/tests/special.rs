//! Special functions against their true values, at points on both sides of every seam and at the ends of their domains.

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::special::{Chebyshev, Recurrence, Special, chebyshev, gcd, recurrence};
use oxyfuel_graph::{Builder, Device, HostTensor, ValueId, run};
use std::collections::BTreeSet;

/// `name x truth` a line; written by `tools/special.py truth`.
const TRUTH: &str = include_str!("golden/special.txt");

fn evaluate(
    dtype: DType,
    columns: &[Vec<f64>],
    build: impl Fn(&mut Builder, &[ValueId]) -> ValueId,
) -> Vec<f64> {
    let mut b = Builder::new("f");
    let n = columns[0].len() as i64;
    let inputs: Vec<ValueId> = (0..columns.len())
        .map(|i| {
            b.input(&format!("x{i}"), dtype, vec![Expr::from(n)], Device::Cpu)
                .unwrap()
        })
        .collect();
    let y = build(&mut b, &inputs);
    b.output(y);
    let graph = b.finish().unwrap();
    let tensors: Vec<HostTensor> = columns
        .iter()
        .map(|c| HostTensor::from_f64(dtype, &[n], c).unwrap())
        .collect();
    run(&graph, &tensors).unwrap()[0].to_f64()
}

fn function(b: &mut Builder, name: &str, x: &[ValueId]) -> ValueId {
    if let Some(n) = name.strip_prefix("polygamma") {
        return b.polygamma(n.parse().unwrap(), x[0]).unwrap();
    }
    if name == "zeta" {
        return b.zeta(x[0], x[1]).unwrap();
    }
    let f = Special::ALL.iter().find(|f| f.name() == name).unwrap();
    b.special(*f, x[0]).unwrap()
}

fn points(name: &str) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut columns = vec![];
    let mut truths = vec![];
    for line in TRUTH.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] != name {
            continue;
        }
        let xs: Vec<f64> = words[1].split(',').map(|x| x.parse().unwrap()).collect();
        columns.resize(xs.len(), vec![]);
        for (column, x) in columns.iter_mut().zip(xs) {
            column.push(x);
        }
        truths.push(words[2].parse().unwrap());
    }
    (columns, truths)
}

#[test]
fn every_function_has_points() {
    let named: BTreeSet<&str> = TRUTH.lines().filter_map(|l| l.split(' ').next()).collect();
    for f in Special::ALL {
        assert!(named.contains(f.name()), "{} is not judged", f.name());
    }
}

#[test]
fn true_values() {
    let named: BTreeSet<&str> = TRUTH.lines().filter_map(|l| l.split(' ').next()).collect();
    let mut wrong = vec![];
    for name in named {
        let (columns, truths) = points(name);
        let ours = evaluate(DType::F64, &columns, |b, x| function(b, name, x));
        for (i, (y, truth)) in ours.iter().zip(&truths).enumerate() {
            let x: Vec<f64> = columns.iter().map(|c| c[i]).collect();
            let right = if truth.is_finite() {
                (y - truth).abs() <= 2e-13 * truth.abs() + 4e-15
            } else {
                y == truth || (y.is_nan() && truth.is_nan())
            };
            if !right {
                wrong.push(format!("{name}{x:?} is {y:e}, truly {truth:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In f32 nothing but the last rounding is lost.
#[test]
fn rounded_once_in_f32() {
    let (columns, truths) = points("bessel_j1");
    let ours = evaluate(DType::F32, &columns, |b, x| function(b, "bessel_j1", x));
    for ((x, y), truth) in columns[0].iter().zip(ours).zip(truths) {
        if f64::from(*x as f32) == *x && truth.is_finite() {
            assert_eq!(y, f64::from(truth as f32), "at {x}");
        }
    }
}

#[test]
fn chebyshev_is_its_recurrence() {
    let xs = vec![-3.5, -1.0, -0.999, -0.3, 0.0, 0.25, 0.9, 1.0, 1.25, 7.0];
    // The second polynomial of each kind is 2x less this share of the first.
    let kinds = [
        (Chebyshev::T, 1.0, 0.0),
        (Chebyshev::U, 2.0, 0.0),
        (Chebyshev::V, 2.0, -1.0),
        (Chebyshev::W, 2.0, 1.0),
    ];
    for (kind, slope, shift) in kinds {
        for n in [-1i64, 0, 1, 2, 5, 12] {
            let degrees = vec![n as f64; xs.len()];
            let ours = evaluate(DType::F64, &[xs.clone(), degrees], |b, v| {
                b.in_f64(v, |f, v| chebyshev(f, kind, v[0], v[1])).unwrap()
            });
            for (&x, y) in xs.iter().zip(ours) {
                let (mut p, mut q) = (1.0, slope * x + shift);
                for _ in 0..n {
                    (p, q) = (q, 2.0 * x * q - p);
                }
                let truth = if n < 0 { 0.0 } else { p };
                assert!(
                    (y - truth).abs() <= 1e-11 * truth.abs().max(1.0),
                    "{kind:?} {n} at {x}: {y}, truly {truth}"
                );
            }
        }
    }
}

#[test]
fn recurrences() {
    let x = 1.75f64;
    let cases = [
        (Recurrence::HermiteH, 3, 8.0 * x.powi(3) - 12.0 * x),
        (Recurrence::HermiteHe, 4, x.powi(4) - 6.0 * x * x + 3.0),
        (Recurrence::Laguerre, 2, (x * x - 4.0 * x + 2.0) / 2.0),
        (Recurrence::Legendre, 3, (5.0 * x.powi(3) - 3.0 * x) / 2.0),
        (Recurrence::Legendre, 0, 1.0),
        (Recurrence::Laguerre, -2, 0.0),
    ];
    for (family, n, truth) in cases {
        let ours = evaluate(DType::F64, &[vec![x]], |b, v| {
            b.in_f64(v, |f, v| recurrence(f, family, v[0], n)).unwrap()
        });
        assert!((ours[0] - truth).abs() < 1e-12, "{family:?} {n}: {ours:?}");
    }
}

#[test]
fn divisors() {
    // Neighbours among Fibonacci's numbers are the longest way.
    let x = [12, -18, 0, 0, 7_540_113_804_746_346_429, i64::MIN + 1, 6];
    let y = [18, 12, 5, 0, 4_660_046_610_375_530_309, 2, 0];
    let mut b = Builder::new("f");
    let shape = || vec![Expr::from(x.len() as i64)];
    let p = b.input("x", DType::I64, shape(), Device::Cpu).unwrap();
    let q = b.input("y", DType::I64, shape(), Device::Cpu).unwrap();
    let d = gcd(&mut b, p, q).unwrap();
    b.output(d);
    let graph = b.finish().unwrap();
    let bytes = |v: &[i64]| HostTensor::from_i64(DType::I64, &[v.len() as i64], v).unwrap();
    let ours = run(&graph, &[bytes(&x), bytes(&y)]).unwrap();
    assert_eq!(ours[0], bytes(&[6, 6, 5, 0, 1, 1, 6]));
}

#[test]
fn orders_that_are_too_high_are_errors() {
    let mut b = Builder::new("f");
    let x = b
        .input("x", DType::F32, vec![Expr::from(3)], Device::Cpu)
        .unwrap();
    for n in [-1, 31] {
        let error = b.polygamma(n, x).unwrap_err().to_string();
        assert!(error.contains("E0109"), "{error}");
    }
}
