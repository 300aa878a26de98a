//! Random numbers against their distributions: moments, and the largest distance of the empirical from the true distribution function.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::interp::philox::philox;
use oxyfuel_graph::sample::{Distribution, Stream};
use oxyfuel_graph::{Builder, Device, HostTensor, Op, ValueId, run};

const COUNT: i64 = 20_000;

/// What a program of the seed gives.
fn drawn(
    seed: i64,
    build: impl Fn(&mut Builder, ValueId) -> Result<ValueId>,
) -> Result<HostTensor> {
    let mut b = Builder::new("f");
    let input = b.input("seed", DType::I64, vec![], Device::Cpu)?;
    let y = build(&mut b, input)?;
    b.output(y);
    let seed = HostTensor::from_i64(DType::I64, &[], &[seed])?;
    Ok(run(&b.finish()?, &[seed])?.remove(0))
}

fn draw(seed: i64, number: u32, how: Distribution, dtype: DType) -> Vec<f64> {
    let shape = [Expr::from(COUNT)];
    let drawn = drawn(seed, |b, seed| {
        b.sample(Stream { seed, number }, how, &shape, dtype)
    });
    drawn.unwrap().to_f64()
}

/// The largest distance between the distribution of the sample and the true one, times the root of the count: above 1.95 once in a thousand times.
fn distance(mut sample: Vec<f64>, truth: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let apart = sample.iter().enumerate().map(|(i, &x)| {
        let below = truth(x) - i as f64 / n;
        below.abs().max((below - 1.0 / n).abs())
    });
    apart.fold(0.0, f64::max) * n.sqrt()
}

fn moments(sample: &[f64]) -> (f64, f64) {
    let n = sample.len() as f64;
    let mean = sample.iter().sum::<f64>() / n;
    (
        mean,
        sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n,
    )
}

/// The normal distribution function, by a sum over its density.
fn normal_below(x: f64) -> f64 {
    let steps = 2000;
    let width = x / f64::from(steps);
    let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let sum: f64 = (0..steps)
        .map(|i| density((f64::from(i) + 0.5) * width))
        .sum();
    0.5 + sum * width
}

const UNIT: Distribution = Distribution::Uniform {
    low: 0.0,
    high: 1.0,
};

#[test]
fn uniform() {
    for dtype in [DType::F32, DType::F64] {
        let sample = draw(3, 0, UNIT, dtype);
        let (mean, variance) = moments(&sample);
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.003);
        assert!(sample.iter().all(|u| (0.0..1.0).contains(u)));
        assert!(distance(sample, |x| x) < 1.95);
    }
    let how = Distribution::Uniform {
        low: -2.0,
        high: 6.0,
    };
    assert!(distance(draw(4, 0, how, DType::F32), |x| (x + 2.0) / 8.0) < 1.95);
}

/// Half precision has so few digits that rounding would give 1.
#[test]
fn uniform_halves_stay_below_one() {
    for dtype in [DType::BF16, DType::F16] {
        let sample = draw(5, 0, UNIT, dtype);
        assert!(sample.iter().all(|u| (0.0..1.0).contains(u)), "{dtype}");
        assert!((moments(&sample).0 - 0.5).abs() < 0.01);
    }
}

#[test]
fn normal() {
    for dtype in [DType::F32, DType::F64] {
        let how = Distribution::Normal {
            mean: 0.0,
            deviation: 1.0,
        };
        let sample = draw(7, 0, how, dtype);
        let (mean, variance) = moments(&sample);
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
        assert!(distance(sample, normal_below) < 1.95);
    }
    let how = Distribution::Normal {
        mean: 3.0,
        deviation: 0.5,
    };
    let (mean, variance) = moments(&draw(8, 0, how, DType::F32));
    assert!((mean - 3.0).abs() < 0.02 && (variance - 0.25).abs() < 0.02);
}

#[test]
fn exponential() {
    let sample = draw(9, 0, Distribution::Exponential { rate: 2.0 }, DType::F32);
    assert!((moments(&sample).0 - 0.5).abs() < 0.02);
    assert!(distance(sample, |x| 1.0 - (-2.0 * x).exp()) < 1.95);
}

#[test]
fn coins_and_integers() {
    let sample = draw(
        10,
        0,
        Distribution::Bernoulli { probability: 0.3 },
        DType::Bool,
    );
    assert!((moments(&sample).0 - 0.3).abs() < 0.015);
    for (probability, all) in [(0.0, 0.0), (1.0, 1.0)] {
        let sample = draw(10, 0, Distribution::Bernoulli { probability }, DType::F32);
        assert!(sample.iter().all(|&x| x == all));
    }
    let sample = draw(
        11,
        0,
        Distribution::Integers { low: -2, high: 3 },
        DType::I64,
    );
    for n in -2..3 {
        let share = sample.iter().filter(|&&x| x == f64::from(n)).count() as f64 / COUNT as f64;
        assert!((share - 0.2).abs() < 0.015, "{n}: {share}");
    }
    let wide = Distribution::Integers {
        low: 0,
        high: 1 << 40,
    };
    let sample = draw(12, 0, wide, DType::I64);
    assert!(distance(sample, |x| x / (1u64 << 40) as f64) < 1.95);
}

#[test]
fn dropout_keeps_the_mean() {
    let dropped = drawn(13, |b, seed| {
        let ones = b.full(1, vec![Expr::from(COUNT)], DType::F32, Device::Cpu)?;
        b.dropout(Stream { seed, number: 0 }, ones, 0.25)
    });
    let sample = dropped.unwrap().to_f64();
    let (kept, scale) = (0.75, f64::from(1.0f32 / 0.75));
    assert!(sample.iter().all(|&x| x == 0.0 || (x - scale).abs() < 1e-6));
    let share = sample.iter().filter(|&&x| x != 0.0).count() as f64 / COUNT as f64;
    assert!((share - kept).abs() < 0.015);
    let probabilities = drawn(14, |b, seed| {
        let p = b.full(0.75, vec![Expr::from(COUNT)], DType::F32, Device::Cpu)?;
        b.bernoulli(Stream { seed, number: 0 }, p)
    });
    assert!((moments(&probabilities.unwrap().to_f64()).0 - 0.75).abs() < 0.015);
}

/// A copy: no number is asked for, and what is no number stays none.
#[test]
fn dropout_of_nothing_draws_nothing() {
    let mut b = Builder::new("f");
    let x = b.input("x", DType::F32, vec![Expr::from(4)], Device::Cpu);
    let seed = b.input("seed", DType::I64, vec![], Device::Cpu).unwrap();
    let y = b.dropout(Stream { seed, number: 0 }, x.unwrap(), 0.0);
    b.output(y.unwrap());
    let graph = b.finish().unwrap();
    let ops: Vec<&Op> = graph.nodes.values().map(|node| &node.op).collect();
    assert_eq!(ops, [&Op::Clone]);
}

/// A number is a function of seed, stream and position, whatever the shape.
#[test]
fn counted() {
    let flat = draw(1, 0, UNIT, DType::F32);
    assert_eq!(flat, draw(1, 0, UNIT, DType::F32));
    assert_ne!(flat, draw(2, 0, UNIT, DType::F32));
    assert_ne!(flat, draw(1, 1, UNIT, DType::F32));
    let square = drawn(1, |b, seed| {
        let shape = [Expr::from(100), Expr::from(COUNT / 100)];
        b.sample(Stream { seed, number: 0 }, UNIT, &shape, DType::F32)
    });
    assert_eq!(square.unwrap().to_f64(), flat);
    let word = philox(1, 17)[0];
    assert_eq!(flat[17], f64::from(word >> 8) / f64::from(1 << 24));
}

/// Streams of one seed do not go together.
#[test]
fn streams_are_independent() {
    let (a, b) = (draw(1, 0, UNIT, DType::F64), draw(1, 1, UNIT, DType::F64));
    let product: f64 = a.iter().zip(&b).map(|(x, y)| (x - 0.5) * (y - 0.5)).sum();
    assert!((product / COUNT as f64).abs() < 0.003);
}

#[test]
fn what_has_no_distribution_is_an_error() {
    let wrong = [
        Distribution::Uniform {
            low: 1.0,
            high: 0.0,
        },
        Distribution::Normal {
            mean: 0.0,
            deviation: -1.0,
        },
        Distribution::Exponential { rate: 0.0 },
        Distribution::Bernoulli { probability: 1.5 },
        Distribution::Bernoulli {
            probability: f64::NAN,
        },
        Distribution::Integers { low: 3, high: 3 },
    ];
    for how in wrong {
        let error = drawn(0, |b, seed| {
            b.sample(Stream { seed, number: 0 }, how, &[], DType::F32)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("E0109"), "{how:?}: {error}");
    }
    let error = drawn(0, |b, seed| {
        b.sample(Stream { seed, number: 0 }, UNIT, &[], DType::I32)
    });
    assert!(error.unwrap_err().to_string().contains("E0111"));
    let error = drawn(0, |b, seed| {
        let seed = b.cast(seed, DType::F32)?;
        b.sample(Stream { seed, number: 0 }, UNIT, &[], DType::F32)
    });
    assert!(error.unwrap_err().to_string().contains("E0109"));
}
