//! Paired ratios and their bounds.

use serde_json::{Value, json};

/// A bar counts as met when the lower bound is at least this part of it.
const SLACK: f64 = 0.95;

/// The median of paired ratios, with a 95 % interval for the true median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: usize,
}

impl Ratio {
    /// Ratios of times taken in the same rounds; above 1 where `ours` is faster.
    pub fn paired(theirs: &[f64], ours: &[f64]) -> Self {
        let mut ratios: Vec<f64> = theirs.iter().zip(ours).map(|(t, o)| t / o).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        let rank = bound_rank(n);
        let at = |i: usize| ratios.get(i).copied().unwrap_or(f64::NAN);
        Self {
            median: median(&ratios),
            low: at(rank),
            high: at(n.saturating_sub(1 + rank)),
            pairs: n,
        }
    }

    /// The ratio to the better peer: the lowest. The better one is chosen for the whole row: the faster of two turns, chosen anew each round, would be
    /// faster than either engine where both run the same code on a machine that is not quiet.
    pub fn to_the_better(peers: &[Self]) -> Option<Self> {
        peers
            .iter()
            .copied()
            .min_by(|a, b| a.median.total_cmp(&b.median))
    }

    pub fn meets(&self, bar: f64) -> bool {
        self.median >= bar && self.low >= SLACK * bar
    }

    pub fn to_json(self) -> Value {
        json!({"median": self.median, "low": self.low, "high": self.high, "pairs": self.pairs})
    }
}

/// Position of the lower bound among sorted ratios, counted from 0: the last one with at most 2.5 % of the binomial distribution at or below it. Few pairs have no such
/// position; their bound is the least ratio.
fn bound_rank(n: usize) -> usize {
    let mut probability = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let (mut below, mut rank) = (0.0, 0);
    for k in 0..n {
        below += probability;
        if below > 0.025 {
            break;
        }
        rank = k;
        probability *= (n - k) as f64 / (k + 1) as f64;
    }
    rank
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (half, 1) => sorted[half],
        (half, _) => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// `None` of nothing.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_ratios_are_geometric() {
        let mean = geometric_mean(&[0.5, 2.0, 8.0]).unwrap();
        assert!((mean - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn ranks_are_those_of_the_sign_test() {
        // Textbook values: with 30 pairs the 10th smallest, with 6 the smallest, with 5 nothing better than the smallest.
        assert_eq!(
            [
                bound_rank(30),
                bound_rank(40),
                bound_rank(6),
                bound_rank(5),
                bound_rank(0)
            ],
            [9, 13, 0, 0, 0]
        );
    }

    #[test]
    fn pairs_cancel_what_both_saw() {
        let ours: Vec<f64> = (1..=40).map(f64::from).collect();
        let theirs: Vec<f64> = ours.iter().map(|t| t * 1.5).collect();
        let ratio = Ratio::paired(&theirs, &ours);
        assert!((ratio.median - 1.5).abs() < 1e-12 && (ratio.low - 1.5).abs() < 1e-12);
        assert!(ratio.meets(1.5) && !ratio.meets(1.6));
        assert_eq!(ratio.pairs, 40);
    }

    #[test]
    fn a_wide_spread_does_not_meet_a_bar() {
        let theirs: Vec<f64> = (0..30).map(|i| if i < 14 { 0.5 } else { 1.2 }).collect();
        let ratio = Ratio::paired(&theirs, &[1.0; 30]);
        assert!(ratio.median >= 1.0 && !ratio.meets(1.0));
    }

    #[test]
    fn two_peers_with_the_same_noise_are_not_faster_together() {
        let ours = [1.0; 40];
        let noise = |offset: usize| -> Vec<f64> {
            let mut times = [0.5, 1.0, 1.0, 1.0].repeat(10);
            times.rotate_left(offset);
            times
        };
        let ratios = [
            Ratio::paired(&noise(0), &ours),
            Ratio::paired(&noise(1), &ours),
        ];
        assert_eq!(Ratio::to_the_better(&ratios).map(|r| r.median), Some(1.0));
        let faster = Ratio::paired(&[0.8; 40], &ours);
        assert_eq!(
            Ratio::to_the_better(&[ratios[0], faster]).map(|r| r.median),
            Some(0.8)
        );
        assert_eq!(Ratio::to_the_better(&[]), None);
    }
}
