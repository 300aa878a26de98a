//! Functions as a device computes them, against f64: what `docs/maths.md` claims, held where a GPU computes by instructions of its own that no other machine imitates to the bit.
//!
//! On the processor a small part of the inputs tells that the measure is right; a GPU has one bit pattern in 257 of all there are (a prime, so that every exponent meets every kind of
//! mantissa), and every bf16 and f16.

use super::gpu;
use oxyfuel::{DType, Device, Options, Tensor, compile};

/// How far from the true value a result may be.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// Units of the last place of the result's dtype, at the true value.
    Ulps(f64),
    /// Parts in 2^23 of the true value.
    Parts(f64),
    /// The same; zero will do for what is no normal number.
    PartsOrZero(f64),
    /// As it is, from -8 to 8.
    Within(f64),
}

struct Function {
    name: &'static str,
    ours: fn(&Tensor) -> Tensor,
    truth: fn(f64) -> f64,
    /// Where a GPU is not held to the row of the page's first table.
    on_gpu: Option<Bound>,
}

const fn row(name: &'static str, ours: fn(&Tensor) -> Tensor, truth: fn(f64) -> f64) -> Function {
    Function {
        name,
        ours,
        truth,
        on_gpu: None,
    }
}

fn sigmoid(x: f64) -> f64 {
    match x < 0.0 {
        true => x.exp() / (1.0 + x.exp()),
        false => 1.0 / (1.0 + (-x).exp()),
    }
}

fn gelu(x: f64) -> f64 {
    x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    x * sigmoid(2.0 * inner * (x + 0.044715 * x * x * x))
}

const FUNCTIONS: &[Function] = &[
    row("exp", Tensor::exp, f64::exp),
    row("exp2", Tensor::exp2, f64::exp2),
    row("expm1", Tensor::expm1, f64::exp_m1),
    row("log", Tensor::log, f64::ln),
    row("log2", Tensor::log2, f64::log2),
    row("log1p", Tensor::log1p, f64::ln_1p),
    row("sin", Tensor::sin, f64::sin),
    row("cos", Tensor::cos, f64::cos),
    row("erf", Tensor::erf, libm::erf),
    row("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt()),
    Function {
        on_gpu: Some(Bound::Parts(2.0)),
        ..row("tanh", Tensor::tanh, f64::tanh)
    },
    Function {
        on_gpu: Some(Bound::PartsOrZero(4.5)),
        ..row("sigmoid", Tensor::sigmoid, sigmoid)
    },
];

/// The bound of a function's row in the page's first table.
fn documented(name: &str) -> Bound {
    let page = include_str!("../../../../docs/maths.md");
    let line = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{name}` |")))
        .unwrap_or_else(|| panic!("{name} is not in docs/maths.md"));
    Bound::Ulps(line.split('|').nth(3).unwrap().trim().parse().unwrap())
}

/// Bits of the mantissa behind the point, least and largest exponent of a normal number.
fn shape(dtype: DType) -> (i32, i32, i32) {
    match dtype {
        DType::F32 => (23, -126, 127),
        DType::BF16 => (7, -126, 127),
        DType::F16 => (10, -14, 15),
        _ => unreachable!("results are floats of at most 32 bits"),
    }
}

fn two(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// Whether a result is as near to the true value as it must be; the distance, in what the bound counts.
fn distance(bound: Bound, dtype: DType, got: f64, truth: f64) -> (bool, f64) {
    let (digits, least, most) = shape(dtype);
    let exactly = |same: bool| (same, if same { 0.0 } else { f64::INFINITY });
    if got.is_nan() || truth.is_nan() {
        return exactly(got.is_nan() && truth.is_nan());
    }
    // From half a unit behind the largest number on, the nearest is infinity, which stands where the next number would.
    let end = two(most + 1);
    if truth.abs() >= end {
        return exactly(got.is_infinite() && (got > 0.0) == (truth > 0.0));
    }
    let got = if got.is_infinite() {
        end.copysign(got)
    } else {
        got
    };
    let error = (got - truth).abs();
    if truth == 0.0 && !matches!(bound, Bound::Within(_)) {
        return exactly(got == 0.0 && got.is_sign_negative() == truth.is_sign_negative());
    }
    let parts = error / truth.abs() * two(23);
    match bound {
        Bound::Ulps(most) => {
            let exponent = ((truth.to_bits() >> 52) & 0x7ff) as i32 - 1023;
            let ulps = error / two(exponent.max(least) - digits);
            (ulps <= most, ulps)
        }
        // The last bits of an exponent decide whether its power is a normal number.
        Bound::PartsOrZero(_) if got == 0.0 && truth.abs() < two(least) * (1.0 + two(-16)) => {
            (true, 0.0)
        }
        Bound::Parts(most) | Bound::PartsOrZero(most) => {
            (parts <= most || error <= two(least - digits), parts)
        }
        Bound::Within(most) => (error <= most, error),
    }
}

/// The largest distance over all inputs and where it is; the first one that is too large ends it.
fn worst(
    name: &str,
    bound: Bound,
    dtype: DType,
    truth: fn(f64) -> f64,
    inputs: &[f32],
    results: &[f32],
) -> f64 {
    assert_eq!(inputs.len(), results.len());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = inputs.len().div_ceil(threads).max(1);
    let largest = |inputs: &[f32], results: &[f32]| {
        let mut largest = 0.0;
        for (&x, &got) in inputs.iter().zip(results) {
            let want = truth(f64::from(x));
            let (fits, far) = distance(bound, dtype, f64::from(got), want);
            assert!(
                fits,
                "{name} of {x:e} ({:#010x}) is {got:e}, not {want:e}: {far}, beyond {bound:?}",
                x.to_bits()
            );
            largest = f64::max(largest, far);
        }
        largest
    };
    std::thread::scope(|scope| {
        let parts = inputs.chunks(part).zip(results.chunks(part));
        let running: Vec<_> = parts
            .map(|(inputs, results)| scope.spawn(move || largest(inputs, results)))
            .collect();
        running
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .fold(0.0, f64::max)
    })
}

/// Bit patterns at equal distances, and those at the ends of what floats are.
fn patterns(step: usize) -> Vec<f32> {
    let ends = [
        0u32,
        1,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
    ];
    let both = ends.into_iter().flat_map(|bits| [bits, bits | 1 << 31]);
    let all = (0..=u32::MAX).step_by(step);
    all.chain(both).map(f32::from_bits).collect()
}

/// Every number of 16 bits.
fn halves(dtype: DType) -> Tensor {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    Tensor::from_bytes(&bytes, dtype, &[1 << 16])
}

fn computed(f: fn(&Tensor) -> Tensor, x: &Tensor) -> Vec<f32> {
    let f = compile(move |x: &Tensor| f(x), Options::default()).unwrap();
    // Read and widened on the host, without another kernel.
    let found = f.call_one(&[x]).unwrap();
    match found.dtype() {
        DType::F32 => found.to_vec::<f32>().unwrap(),
        _ => {
            let wide = found.to_f64().unwrap();
            wide.into_iter().map(|value| value as f32).collect()
        }
    }
}

/// Where there is a processor only, the measure is tried on it alone.
fn devices() -> impl Iterator<Item = (Device, bool)> {
    let all = [Some((Device::cpu(), false)), gpu().map(|gpu| (gpu, true))];
    all.into_iter().flatten()
}

#[test]
fn f32_functions_are_within_what_the_page_says() {
    for (device, is_gpu) in devices() {
        let inputs = patterns(if is_gpu { 257 } else { 65_537 });
        let x = Tensor::from_slice(&inputs, &[inputs.len() as i64]).to_device(device);
        for f in FUNCTIONS {
            let name = f.name;
            let bound = f.on_gpu.filter(|_| is_gpu);
            let bound = bound.unwrap_or_else(|| documented(name));
            let results = computed(f.ours, &x);
            let far = worst(name, bound, DType::F32, f.truth, &inputs, &results);
            println!("{name} on {device}: {far:.3} of {bound:?}");
        }
    }
}

#[test]
fn gates_are_within_what_the_page_says() {
    for (device, is_gpu) in devices() {
        let step = if is_gpu { 1 } else { 256 };
        // From -8 to 8, a millionth apart.
        let inputs: Vec<f32> = (-(8 << 20)..=8 << 20)
            .step_by(step)
            .map(|i: i32| i as f32 / (1 << 20) as f32)
            .collect();
        let x = Tensor::from_slice(&inputs, &[inputs.len() as i64]).to_device(device);
        let functions = [
            (row("gelu", Tensor::gelu, gelu), 5e-7),
            (row("gelu_tanh", Tensor::gelu_tanh, gelu_tanh), 6e-7),
        ];
        for (f, most) in functions {
            let (name, bound) = (f.name, Bound::Within(most));
            let results = computed(f.ours, &x);
            let far = worst(name, bound, DType::F32, f.truth, &inputs, &results);
            println!("{name} on {device}: {far:.2e} of {bound:?}");
        }
    }
}

#[test]
fn functions_of_16_bits_are_rounded_as_well_as_the_page_says() {
    let functions = [
        row("exp", Tensor::exp, f64::exp),
        row("sigmoid", Tensor::sigmoid, sigmoid),
        row("tanh", Tensor::tanh, f64::tanh),
    ];
    for (device, _) in devices() {
        for dtype in [DType::BF16, DType::F16] {
            let x = halves(dtype);
            let inputs: Vec<f32> = x.to_f64().unwrap().iter().map(|&x| x as f32).collect();
            let there = x.to_device(device);
            for f in &functions {
                let (name, bound) = (f.name, Bound::Ulps(0.52));
                let results = computed(f.ours, &there);
                let far = worst(name, bound, dtype, f.truth, &inputs, &results);
                println!("{name} of {dtype} on {device}: {far:.4} of {bound:?}");
            }
        }
    }
}

#[test]
fn a_result_that_is_too_far_away_is_seen() {
    let far = |bound, got: f32, truth: f64| distance(bound, DType::F32, f64::from(got), truth).0;
    let (ulps, parts) = (Bound::Ulps(1.0), Bound::Parts(2.5));
    assert!(far(ulps, 1.0, 1.0 + two(-23)) && !far(ulps, 1.0, 1.0 + 1.01 * two(-23)));
    assert!(far(parts, 1.0, 1.0 + 2.4 * two(-23)) && !far(parts, 1.0, 1.0 + 2.6 * two(-23)));
    assert!(
        far(ulps, f32::NAN, f64::NAN) && !far(ulps, 0.0, f64::NAN) && !far(parts, f32::NAN, 0.0)
    );
    assert!(!far(ulps, -0.0, 0.0) && far(ulps, 0.0, two(-151)) && !far(ulps, 0.0, two(-148)));
    let or_zero = Bound::PartsOrZero(2.5);
    assert!(far(or_zero, 0.0, two(-127)) && !far(or_zero, 0.0, two(-125)));
    assert!(!far(parts, 0.0, two(-127)) && !far(parts, -0.0, 0.0));
    assert!(far(ulps, f32::INFINITY, two(128)) && !far(ulps, f32::MAX, two(128)));
    assert!(!far(ulps, f32::INFINITY, two(127)) && !far(parts, f32::INFINITY, 1.0));
    assert!(far(Bound::Within(1e-6), 1.0, 1.0) && !far(Bound::Within(1e-6), 1.0, 1.000_002));
}
