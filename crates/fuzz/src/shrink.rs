//! The smallest list of numbers that still goes wrong.
//!
//! Fewer numbers are a smaller program and lower ones a plainer one, so taking away and lowering is all there is to do.

use std::time::{Duration, Instant};

/// How long to look.
const PATIENCE: Duration = Duration::from_secs(20);

/// Shrinks `numbers` while `fails` says so.
pub fn shrink(mut numbers: Vec<u32>, mut fails: impl FnMut(&[u32]) -> bool) -> Vec<u32> {
    let begin = Instant::now();
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        let mut width = numbers.len().max(1);
        while width > 0 {
            let mut at = 0;
            while at < numbers.len() {
                if begin.elapsed() > PATIENCE {
                    return numbers;
                }
                let mut fewer = numbers.clone();
                fewer.drain(at..(at + width).min(numbers.len()));
                if fails(&fewer) {
                    numbers = fewer;
                    has_changed = true;
                } else {
                    at += width;
                }
            }
            width /= 2;
        }
        for at in 0..numbers.len() {
            for lower in [0, 1, numbers[at] % 64, numbers[at] / 2] {
                if begin.elapsed() > PATIENCE {
                    return numbers;
                }
                if lower < numbers[at] {
                    let before = std::mem::replace(&mut numbers[at], lower);
                    if fails(&numbers) {
                        has_changed = true;
                        break;
                    }
                    numbers[at] = before;
                }
            }
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_left() {
        let all: Vec<u32> = (0..60).map(|i| i * 7919 % 1000).collect();
        let fails = |numbers: &[u32]| numbers.iter().filter(|&&n| n >= 500).count() >= 2;
        let small = shrink(all, fails);
        assert_eq!(small.len(), 2);
        assert!(small.iter().all(|&n| (500..1000).contains(&n)));
    }
}
