//! Random numbers by counting: Philox 4x32-10. Number `i` of a seed is a function of both, so tensors can be filled in any order.

/// Four random words for counter `counter` under `key`.
pub(crate) fn philox(key: u64, counter: u64) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let p0 = MULTIPLIERS[0] * u64::from(c[0]);
        let p1 = MULTIPLIERS[1] * u64::from(c[2]);
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ k[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ k[1],
            p0 as u32,
        ];
        k = [k[0].wrapping_add(STEPS[0]), k[1].wrapping_add(STEPS[1])];
    }
    c
}

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
    fn known_answers() {
        // From the test vectors that the authors of Random123 publish.
        assert_eq!(
            philox(0, 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
    }

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
