//! Philox 4x32-10: random words by counting. A word is a function of seed and counter alone, so numbers can be drawn in any order, on any number of threads, and again.

/// Four random words for a counter under a seed.
pub fn philox(seed: u64, counter: u64) -> [u32; 4] {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        let p0 = MULTIPLIERS[0] * u64::from(c[0]);
        let p1 = MULTIPLIERS[1] * u64::from(c[2]);
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ k[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ k[1],
            p0 as u32,
        ];
        k = [
            k[0].wrapping_add(KEY_STEPS[0]),
            k[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    c
}

pub const ROUNDS: usize = 10;
/// What the first and the third word are multiplied with.
pub const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What is added to the key after each round.
pub const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// What the operator gives: the first two words, the first one low.
pub(super) fn two_words(counter: i128, seed: i128) -> i128 {
    let [low, high, ..] = philox(seed as u64, counter as u64);
    i128::from((u64::from(high) << 32 | u64::from(low)) as i64)
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
        assert_eq!(two_words(0, 0) as u64, 0xe169_c58d_6627_e8d5);
    }
}
