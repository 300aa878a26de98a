//! Random numbers for tests: one seed, one sequence, on every machine.
//!
//! The generator is SplitMix64: a counter passed through a mixing function. It is not for secrets; it is short, has no
//! bad seeds, and passes the usual statistical tests, which is what random tensors need.

/// A deterministic generator. The same seed gives the same sequence for ever: goldens may depend on it.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number in `0..bound`; 0 where `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `low..=high`. The two may stand in any order.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let (low, high) = (low.min(high), low.max(high));
        let span = high.abs_diff(low);
        let step = if span == u64::MAX {
            self.next_u64()
        } else {
            self.below(span + 1)
        };
        low.wrapping_add_unsigned(step)
    }

    pub fn flip(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Uniform in `0.0..1.0`, every value a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Normally distributed with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Any bit pattern of an `f32`: NaN, infinities and denormals included.
    pub fn any_f32(&mut self) -> f32 {
        f32::from_bits(self.next_u32())
    }

    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.index(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of SplitMix64 with seed 1234567, as its authors list them.
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn ranges_hold_at_their_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<i64> = (0..1000).map(|_| rng.between(-2, 2)).collect();
        assert!((-2..=2).all(|v| drawn.contains(&v)));
        assert!(drawn.iter().all(|v| (-2..=2).contains(v)));
        assert_eq!(rng.between(5, 5), 5);
        assert!((3..=7).contains(&rng.between(7, 3)));
        rng.between(i64::MIN, i64::MAX);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.pick::<u8>(&[]), None);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }

    #[test]
    fn normals_have_the_right_moments() {
        let values = Rng::new(7).normals(100_000);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 1e5;
        let variance =
            values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 1e5 - mean * mean;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02,
            "mean {mean}, variance {variance}"
        );
        assert!(values.iter().all(|v| v.is_finite()));
    }

    #[test]
    fn a_shuffle_keeps_what_it_moves() {
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
