//! Random numbers by counting: Philox 4x32-10. Number `i` of a seed is a function of both, so tensors can be filled in any order.

use oxyfuel_graph::interp::philox::philox;

/// A multiple of 2^-24 in [0, 1): exact in f32.
fn unit(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1u32 << 24)
}

/// Uniform in [0, 1).
pub(crate) fn uniform(seed: u64, i: u64) -> f64 {
    unit(philox(seed, i)[0])
}

/// Uniform among the integers of `0..count`, by the high half of a product: its bias is below 2^-64 times `count`.
pub(crate) fn below(seed: u64, i: u64, count: u64) -> u64 {
    let [a, b, ..] = philox(seed, i);
    let word = u64::from(a) << 32 | u64::from(b);
    ((u128::from(word) * u128::from(count)) >> 64) as u64
}

/// Standard normal.
pub(crate) fn normal(seed: u64, i: u64) -> f64 {
    let [a, b, ..] = philox(seed, i);
    // 1 - u lies in (0, 1], where the logarithm is finite.
    let radius = (-2.0 * (1.0 - unit(a)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(b)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let n = 20_000;
        let draws: Vec<f64> = (0..n).map(|i| normal(7, i)).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let var = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(
            mean.abs() < 0.03 && (var - 1.0).abs() < 0.05,
            "{mean} {var}"
        );
        let mean = (0..n).map(|i| uniform(7, i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
