//! The f64 functions against the system's, which are within one ulp themselves; the exact remainder against the machine's.

use oxyfuel_lower::maths::native::Native;
use oxyfuel_lower::maths::remainder::{rem_of_doubles, rem_of_singles};
use oxyfuel_lower::maths::{double, double_angle, double_error, double_power};

/// Distance in units of the last place of `want`; infinite where NaN, infinity or a zero's sign differ.
fn ulps(got: f64, want: f64) -> f64 {
    if got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    if got.is_nan() || want.is_nan() || want == 0.0 || got.is_infinite() != want.is_infinite() {
        return f64::INFINITY;
    }
    let unit = want.abs().max(f64::MIN_POSITIVE);
    let unit = f64::from_bits(unit.to_bits() + 1) - unit;
    ((got - want) / unit).abs()
}

/// Numbers of every size and both signs, many of them ordinary, and the special ones.
fn inputs() -> Vec<f64> {
    let special = [
        0.0,
        f64::MIN_POSITIVE,
        5e-324,
        1e-310,
        1e-20,
        0.5,
        1.0,
        2.0,
        27.3,
        709.78,
        745.2,
        1e5,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ];
    let mut all: Vec<f64> = special.iter().flat_map(|x| [*x, -x]).collect();
    let mut state = 1u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    for _ in 0..60_000 {
        let (x, bits) = (next() as f64 / 2f64.powi(53) - 0.5, next());
        all.extend([x, x * 4.0, x * 60.0, x * 1500.0]);
        all.push(f64::from_bits(bits << 11 | next() >> 42));
    }
    all
}

#[test]
fn functions_of_one_operand() {
    type Function = fn(f64) -> f64;
    let cases: [(&str, Function, Function, f64); 13] = [
        ("exp", |x| double::exp(&Native, x), f64::exp, 1.6),
        ("exp2", |x| double::exp2(&Native, x), f64::exp2, 1.6),
        ("expm1", |x| double::expm1(&Native, x), f64::exp_m1, 2.0),
        ("log", |x| double::log(&Native, x), f64::ln, 1.6),
        ("log2", |x| double::log2(&Native, x), f64::log2, 1.6),
        ("log1p", |x| double::log1p(&Native, x), f64::ln_1p, 2.0),
        ("tanh", |x| double::tanh(&Native, x), f64::tanh, 3.0),
        (
            "sigmoid",
            |x| double::sigmoid(&Native, x),
            |x| 1.0 / (1.0 + (-x).exp()),
            2.0,
        ),
        ("sin", |x| double_angle::sin(&Native, x), f64::sin, 1.6),
        ("cos", |x| double_angle::cos(&Native, x), f64::cos, 1.6),
        ("atan", |x| double_angle::atan(&Native, x), f64::atan, 1.6),
        ("erf", |x| double_error::erf(&Native, x), libm::erf, 2.0),
        ("erfc", |x| double_error::erfc(&Native, x), libm::erfc, 6.0),
    ];
    let mut wrong = Vec::new();
    for (name, ours, truth, bound) in cases {
        let mut worst = (0.0, 0.0);
        for x in inputs() {
            let error = ulps(ours(x), truth(x));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        if worst.0 > bound {
            let (got, want) = (ours(worst.1), truth(worst.1));
            wrong.push(format!(
                "{name}({:e}) = {got:e}, not {want:e}: {} ulp",
                worst.1, worst.0
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn powers() {
    let values = inputs();
    let mut worst = (0.0, 0.0, 0.0);
    let special: Vec<f64> = values[..30].to_vec();
    let mut pairs: Vec<(f64, f64)> = special
        .iter()
        .flat_map(|&x| special.iter().map(move |&y| (x, y)))
        .collect();
    for (i, &x) in values.iter().enumerate() {
        let y = values[(i * 7 + 3) % values.len()];
        pairs.extend([
            (x, y),
            (x, (y * 8.0).round()),
            (x.abs(), 700.0 / x.abs().ln() * (y / 750.0)),
        ]);
    }
    for (x, y) in pairs {
        let error = ulps(double_power::pow(&Native, x, y), x.powf(y));
        if error > worst.0 {
            worst = (error, x, y);
        }
    }
    let (error, x, y) = worst;
    assert!(
        error < 1.1,
        "{x:e} ^ {y:e} = {:e}, not {:e}: {error} ulp",
        double_power::pow(&Native, x, y),
        x.powf(y)
    );
}

/// Whoever rounds a power down to an integer afterwards needs the very number.
#[test]
fn whole_powers_of_whole_numbers_are_exact() {
    for base in 1..100u64 {
        for power in 0..53u32 {
            let Some(exact) = base.checked_pow(power).filter(|n| *n < 1 << 53) else {
                break;
            };
            let got = double_power::pow(&Native, base as f64, f64::from(power));
            assert_eq!(got, exact as f64, "{base} ^ {power}");
        }
    }
}

#[test]
fn remainders_are_exact() {
    let values = inputs();
    for (i, &x) in values.iter().enumerate().step_by(7) {
        for y in [
            values[(i * 13 + 5) % values.len()],
            values[i % 30],
            values[(i * 31 + 7) % values.len()],
        ] {
            for (a, b) in [(x, y), (y, x)] {
                let got = rem_of_doubles(&Native, a, b);
                assert_eq!(
                    ulps(got, a % b),
                    0.0,
                    "{a:e} % {b:e} = {got:e}, not {:e}",
                    a % b
                );
                let (a, b) = (f64::from(a as f32), f64::from(b as f32));
                let got = rem_of_singles(&Native, a, b);
                assert_eq!(
                    ulps(got, a % b),
                    0.0,
                    "{a:e} % {b:e} = {got:e}, not {:e}",
                    a % b
                );
            }
        }
    }
}
