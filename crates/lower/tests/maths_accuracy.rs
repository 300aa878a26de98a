//! Every expansion against f64: special points, a strided sample, the worst input known, and (by hand) all 2^32 inputs.
//!
//! ```text
//! RUSTFLAGS="-C target-cpu=native" OXYFUEL_EXHAUSTIVE=all cargo test --release -p oxyfuel-lower --test maths_accuracy exhaustive -- --nocapture
//! ```
//! `OXYFUEL_EXHAUSTIVE` names the ops (`exp,log`) or `all`. It takes minutes an op, and prints the row's numbers for the table.

mod maths_truth;

use maths_truth::ulp_error;
use oxyfuel_kernel::{DType, Scalar, UnaryOp};
use oxyfuel_lower::maths::gate::{one_plus_erf, one_plus_tanh};
use oxyfuel_lower::maths::native::Native;
use oxyfuel_lower::maths::near::{self, summand};
use oxyfuel_lower::maths::powers;
use oxyfuel_lower::maths::roots::rsqrt_of_estimate;
use oxyfuel_lower::maths::{TABLE, apply, trigonometric};

/// How a function answers to the sign of its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Symmetry {
    None,
    Odd,
    Even,
}

fn symmetry(op: UnaryOp) -> Symmetry {
    match op {
        UnaryOp::Sin | UnaryOp::Tanh | UnaryOp::Erf => Symmetry::Odd,
        UnaryOp::Cos => Symmetry::Even,
        _ => Symmetry::None,
    }
}

/// The function in f64, good to 1e-15.
fn truth(op: UnaryOp) -> fn(f64) -> f64 {
    match op {
        UnaryOp::Exp => f64::exp,
        UnaryOp::Exp2 => f64::exp2,
        UnaryOp::Expm1 => f64::exp_m1,
        UnaryOp::Log => f64::ln,
        UnaryOp::Log2 => f64::log2,
        UnaryOp::Log1p => f64::ln_1p,
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Erf => erf,
        UnaryOp::Sigmoid => |x| {
            if x < 0.0 {
                x.exp() / (1.0 + x.exp())
            } else {
                1.0 / (1.0 + (-x).exp())
            }
        },
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        _ => panic!("{} is no transcendental op", op.name()),
    }
}

/// A series without cancellation, then the continued fraction of the complement.
fn erf(x: f64) -> f64 {
    use std::f64::consts::{FRAC_2_SQRT_PI, PI};
    let a = x.abs();
    if a < 1e-8 {
        x * FRAC_2_SQRT_PI
    } else if a < 3.0 {
        let (z, mut term, mut sum, mut n) = (a * a, 1.0, 1.0, 1.0);
        while term > 1e-18 * sum {
            term *= 2.0 * z / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        x * sum * (-z).exp() * FRAC_2_SQRT_PI
    } else if a < 7.0 {
        let tail = (1..60)
            .rev()
            .fold(a, |tail, k| a + f64::from(k) / 2.0 / tail);
        (1.0 - (-a * a).exp() / tail / PI.sqrt()).copysign(x)
    } else if a.is_nan() {
        x
    } else {
        1f64.copysign(x)
    }
}

fn expand(op: UnaryOp, x: f32) -> f32 {
    apply(&Native, op, x).expect("the op is in the table")
}

/// The expansion over a block of numbers, as code that the compiler can turn into vectors.
type Block = fn(&[f32], &mut [f32]);

macro_rules! block_of {
    ($op:expr, $($name:ident)*) => {
        match $op {
            $(UnaryOp::$name => |xs, ys| xs.iter().zip(ys).for_each(|(x, y)| *y = expand(UnaryOp::$name, *x)),)*
            _ => panic!("{} has no expansion", $op.name()),
        }
    };
}

fn block(op: UnaryOp) -> Block {
    block_of!(op, Exp Exp2 Expm1 Log Log2 Log1p Sin Cos Tanh Erf Sigmoid Rsqrt)
}

/// The largest error and where it is, over the bit patterns of `range` by steps of `stride`.
fn worst(
    range: std::ops::Range<u64>,
    stride: usize,
    f: Block,
    truth: fn(f64) -> f64,
) -> (f64, u32) {
    const LEN: usize = 512;
    let (mut xs, mut ys) = ([0.0; LEN], [0.0; LEN]);
    let (mut worst, mut inputs) = ((0.0, 0), range.step_by(stride).peekable());
    while inputs.peek().is_some() {
        let mut len = 0;
        for (x, bits) in xs.iter_mut().zip(inputs.by_ref().take(LEN)) {
            *x = f32::from_bits(bits as u32);
            len += 1;
        }
        f(&xs[..len], &mut ys[..len]);
        for (x, y) in xs[..len].iter().zip(&ys) {
            let error = ulp_error(*y, truth(f64::from(*x)));
            if error > worst.0 {
                worst = (error, x.to_bits());
            }
        }
    }
    worst
}

#[test]
fn a_sample_of_all_inputs_is_within_the_bound() {
    for row in TABLE {
        let op = row.op;
        // a prime, so that low mantissa bits and exponents are met in all combinations
        let (error, bits) = worst(0..1 << 32, 4093, block(op), truth(op));
        assert!(
            error <= row.max_ulp,
            "{}: {error} ulp at {bits:#010x}",
            op.name()
        );
    }
}

#[test]
fn bounds_are_below_one_ulp_and_not_slack() {
    for row in TABLE {
        assert!(row.max_ulp < 1.0, "{}", row.op.name());
        let (error, _) = worst(
            u64::from(row.worst)..u64::from(row.worst) + 1,
            1,
            block(row.op),
            truth(row.op),
        );
        assert!(
            error <= row.max_ulp && error > row.max_ulp - 0.002,
            "{}: {error} at the worst input",
            row.op.name()
        );
    }
}

#[test]
fn special_points_and_their_neighbours() {
    let points = [
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x007f_ffff),
        1e-30,
        f32::EPSILON,
        f32::EPSILON / 2.0,
        0.25,
        0.346_573_6,
        0.5,
        0.92,
        0.95,
        std::f32::consts::FRAC_1_SQRT_2,
        1.0,
        std::f32::consts::SQRT_2,
        std::f32::consts::FRAC_PI_2,
        std::f32::consts::PI,
        3.919_206,
        3.95,
        9.010_913,
        9.5,
        17.328_68,
        18.0,
        87.336_54,
        88.376_26,
        88.722_84,
        89.0,
        103.278_93,
        103.972_08,
        104.0,
        126.0,
        128.0,
        149.0,
        150.0,
        151.0,
        1e5,
        131_072.0,
        8_388_608.0,
        1.677_721_6e7,
        1.125_899_9e15,
        1e30,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        // the f32 that comes nearest to a multiple of pi/2
        16_367_173.0 * 2f32.powi(72),
    ];
    for row in TABLE {
        for point in points {
            for step in -3i64..=3 {
                for sign in [0u32, 1 << 31] {
                    let bits = (i64::from(point.to_bits()) + step)
                        .clamp(0, i64::from(u32::MAX >> 1)) as u32
                        | sign;
                    let x = f32::from_bits(bits);
                    let (got, want) = (expand(row.op, x), truth(row.op)(f64::from(x)));
                    let error = ulp_error(got, want);
                    assert!(
                        error <= row.max_ulp,
                        "{} of {x:e} ({bits:#010x}): {got:e} instead of {want:e}",
                        row.op.name()
                    );
                }
            }
        }
    }
}

#[test]
fn odd_and_even_functions_are_so_in_every_bit() {
    for row in TABLE {
        check_symmetry(row.op, 0..1 << 31, 16_381);
    }
}

/// Asserts that the op answers to a change of sign as it should, bit for bit, over positive bit patterns.
fn check_symmetry(op: UnaryOp, range: std::ops::Range<u64>, stride: usize) {
    let flip = match symmetry(op) {
        Symmetry::None => return,
        Symmetry::Odd => 1 << 31,
        Symmetry::Even => 0,
    };
    let f = block(op);
    for first in range.step_by(stride * 512) {
        let xs: [f32; 512] = std::array::from_fn(|i| {
            f32::from_bits(((first + (i * stride) as u64) & 0x7fff_ffff) as u32)
        });
        let (mut plus, mut minus) = ([0.0; 512], [0.0; 512]);
        f(&xs, &mut plus);
        f(&xs.map(|x| -x), &mut minus);
        for ((x, p), m) in xs.iter().zip(plus).zip(minus) {
            assert!(
                p.to_bits() == m.to_bits() ^ flip || p.is_nan() && m.is_nan(),
                "{} at {x:e}",
                op.name()
            );
        }
    }
}

#[test]
fn bounded_sine_and_cosine_hold_up_to_their_bound() {
    let bound = u64::from(trigonometric::BOUND.to_bits());
    for sign in [0, 1 << 31] {
        let range = sign..sign + bound + 1;
        let (error, bits) = worst(
            range.clone(),
            1021,
            |xs, ys| {
                xs.iter()
                    .zip(ys)
                    .for_each(|(x, y)| *y = trigonometric::sin_bounded(&Native, *x))
            },
            f64::sin,
        );
        assert!(error < 0.9, "sin: {error} at {bits:#010x}");
        let (error, bits) = worst(
            range,
            1021,
            |xs, ys| {
                xs.iter()
                    .zip(ys)
                    .for_each(|(x, y)| *y = trigonometric::cos_bounded(&Native, *x))
            },
            f64::cos,
        );
        assert!(error < 0.9, "cos: {error} at {bits:#010x}");
    }
}

#[test]
fn instruction_counts_are_the_documented_ones() {
    let page = include_str!("../../../docs/maths.md");
    for row in TABLE {
        let name = format!("| `{}` |", row.op.name());
        let line = page
            .lines()
            .find(|line| line.starts_with(&name))
            .unwrap_or_else(|| panic!("{name} is not in docs/maths.md"));
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let count = match row.f64_instructions() {
            0 => format!("{}", row.instructions()),
            doubles => format!("{} ({doubles} f64)", row.instructions()),
        };
        assert_eq!(
            &cells[2..5],
            &[row.method, &format!("{:.3}", row.max_ulp), &count],
            "the row of {}",
            row.op.name()
        );
    }
}

fn larger(a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
    if b.0 > a.0 { b } else { a }
}

#[test]
fn exhaustive() {
    let Ok(names) = std::env::var("OXYFUEL_EXHAUSTIVE") else {
        return;
    };
    for row in TABLE
        .iter()
        .filter(|row| names == "all" || names.split(',').any(|name| name == row.op.name()))
    {
        let (op, start) = (row.op, std::time::Instant::now());
        let end: u64 = if symmetry(op) == Symmetry::None {
            1 << 32
        } else {
            1 << 31
        };
        // small numbers take longer than large ones: many parts, handed out in turn
        let ranges = [0, 1].map(|worker| {
            (worker..32)
                .step_by(2)
                .map(move |part| part * (end / 32)..(part + 1) * (end / 32))
        });
        let threads = ranges.map(|ranges| {
            std::thread::spawn(move || {
                ranges.fold((0.0, 0), |largest, range| {
                    check_symmetry(op, range.clone(), 1);
                    larger(largest, worst(range, 1, block(op), truth(op)))
                })
            })
        });
        let (error, bits) = threads
            .into_iter()
            .map(|t| t.join().expect("a worker finished"))
            .fold((0.0, 0), larger);
        println!(
            "{:8} {error:.5} ulp at {bits:#010x} ({:e}), {:.0?}",
            op.name(),
            f32::from_bits(bits),
            start.elapsed()
        );
        assert!(error <= row.max_ulp, "{} exceeds its bound", op.name());
    }
}

/// The tails below zero keep their digits, which a sum with 1 loses.
#[test]
fn gates_are_right_below_zero_too() {
    let tanh = |x: f64| 2.0 / (1.0 + (-2.0 * x).exp());
    let erf = |x: f64| libm::erfc(-x);
    for i in -48_000..=96_000 {
        let x = i as f32 / 8000.0;
        for (got, true_value) in [
            (one_plus_erf(&Native, x), erf(f64::from(x))),
            (one_plus_tanh(&Native, x), tanh(f64::from(x))),
        ] {
            let error = (f64::from(got) - true_value).abs();
            let least = if x > -4.0 { 6e-6 } else { 1.0 };
            assert!(
                error <= 1.8e-7 && error <= least * true_value.max(1e-9),
                "of {x}: {got:e}, not {true_value:e}"
            );
        }
    }
    let (inf, low) = (f32::INFINITY, -100.0);
    for gate in [one_plus_erf, one_plus_tanh] {
        let of = |x: f32| gate(&Native, x);
        let some = [of(0.0), of(-0.0), of(inf), of(-inf), of(low)];
        assert_eq!(some, [1.0, 1.0, 2.0, 0.0, 0.0]);
        assert!(of(f32::NAN).is_nan());
    }
}

/// The formulas of functions that are rounded to 16 bits, over every bf16 and every f16: half a unit there is 2^-9 and 2^-12 of a number at least.
#[test]
fn functions_to_be_rounded_are_within_their_bound() {
    type Pair = (fn(&Native, f32) -> f32, fn(f64) -> f64);
    let pairs: [Pair; 4] = [
        (near::exp, f64::exp),
        (near::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (near::tanh, f64::tanh),
        (near::one_plus_tanh, |x| 2.0 / (1.0 + (-2.0 * x).exp())),
    ];
    let all = (0..=u16::MAX).flat_map(|bits| {
        let bits = u64::from(bits);
        [DType::BF16, DType::F16].map(|dtype| Scalar::from_bits(dtype, bits).as_f64() as f32)
    });
    for x in all {
        for (function, truth) in pairs {
            let (got, true_value) = (function(&Native, x), truth(f64::from(x)));
            let size = true_value.abs();
            let error = (f64::from(got) - true_value).abs();
            let fits = match size {
                _ if x.is_nan() => got.is_nan(),
                _ if size > f64::from(f32::MAX) => got == f32::INFINITY,
                _ => error <= size * 2f64.powi(-17) + 2f64.powi(-149),
            };
            assert!(fits, "of {x:e}: {got:e}, not {true_value:e}");
        }
    }
    let zero = near::tanh(&Native, -0.0);
    assert!(zero == 0.0 && zero.is_sign_negative());
}

/// f32 functions by powers of the machine's own: the formulas, as far as those are rounded well.
#[test]
fn functions_by_powers_are_within_their_bound() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // One number in 997 of all; a unit of the last place is 2^-23 of a number at most.
    for bits in (0..=u32::MAX).step_by(997) {
        let x = f32::from_bits(bits);
        if x.is_nan() {
            assert!(powers::tanh(&Native, x).is_nan() && powers::sigmoid(&Native, x).is_nan());
            continue;
        }
        for (got, true_value, units) in [
            (powers::tanh(&Native, x), f64::from(x).tanh(), 1.25),
            (powers::sigmoid(&Native, x), sigmoid(f64::from(x)), 2.25),
        ] {
            let error = (f64::from(got) - true_value).abs();
            let bound = units * 2f64.powi(-23) * true_value.abs();
            let is_small = true_value.abs() < f64::from(f32::MIN_POSITIVE);
            assert!(
                error <= bound || (is_small && error < f64::from(f32::MIN_POSITIVE)),
                "of {x:e}: {got:e}, not {true_value:e}"
            );
        }
    }
    let signs = [powers::tanh(&Native, -0.0), powers::tanh(&Native, 0.0)];
    assert!(signs[0].is_sign_negative() && signs[1].is_sign_positive());
    assert_eq!(signs, [0.0, 0.0]);
    let (inf, low) = (f32::INFINITY, f32::NEG_INFINITY);
    let ends = [inf, low].map(|x| (powers::tanh(&Native, x), powers::sigmoid(&Native, x)));
    assert_eq!(ends, [(1.0, 1.0), (-1.0, 0.0)]);
}

/// Terms of a sum of exponentials, as far as the machine's power of two is exact; and roots from estimates that are two units off.
#[test]
fn what_begins_with_estimates_ends_near() {
    for i in 0..100_000 {
        let x = -87.0 * i as f32 / 100_000.0;
        let (got, true_value) = (summand(&Native, x), f64::from(x).exp());
        let error = (f64::from(got) / true_value - 1.0).abs();
        assert!(
            error <= 2f64.powi(-23),
            "of {x}: {got:e}, not {true_value:e}"
        );
    }
    let low = [f32::NEG_INFINITY, -1e30, -104.0].map(|x| summand(&Native, x));
    assert!(low.iter().all(|&power| power < 1e-44));
    assert!(summand(&Native, f32::NAN).is_nan());
    for i in 0..1_000_000u32 {
        let x = f32::from_bits(i * 2139 + 1);
        let got = rsqrt_of_estimate(&Native, x);
        let true_value = 1.0 / f64::from(x).sqrt();
        let error = (f64::from(got) / true_value - 1.0).abs();
        assert!(error <= 0.51 * 2f64.powi(-23), "of {x:e}: {got:e}");
    }
    let of = |x: f32| rsqrt_of_estimate(&Native, x);
    assert_eq!([of(0.0), of(f32::INFINITY)], [f32::INFINITY, 0.0]);
    assert_eq!(of(-0.0), f32::NEG_INFINITY);
    assert!(of(-1.0).is_nan() && of(f32::NAN).is_nan());
}
