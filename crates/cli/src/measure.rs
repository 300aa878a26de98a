//! Timing, and what a list of times says.

use std::time::{Duration, Instant};

use oxyfuel_base::Result;
use serde::{Deserialize, Serialize};

/// How often to run something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    pub warm_up: usize,
    pub timed: usize,
}

impl Effort {
    pub const FULL: Self = Self {
        warm_up: 10,
        timed: 50,
    };
    pub const QUICK: Self = Self {
        warm_up: 2,
        timed: 7,
    };

    /// Fewer calls where one takes longer than a second; the counts are part of every result, so nothing is hidden by it.
    fn for_call_of(self, call: Duration) -> Self {
        if call > Duration::from_secs(1) {
            Self {
                warm_up: self.warm_up.min(1),
                timed: self.timed.min(5),
            }
        } else {
            self
        }
    }
}

/// What a list of times says; all in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub std: f64,
    pub calls: usize,
    pub warm_up_calls: usize,
}

impl Times {
    pub fn of(mut seconds: Vec<f64>, warm_up_calls: usize) -> Self {
        seconds.sort_by(f64::total_cmp);
        let n = seconds.len().max(1) as f64;
        let mean = seconds.iter().sum::<f64>() / n;
        let variance = seconds.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / n;
        Self {
            median: median(&seconds),
            min: seconds.first().copied().unwrap_or(f64::NAN),
            max: seconds.last().copied().unwrap_or(f64::NAN),
            std: variance.sqrt(),
            calls: seconds.len(),
            warm_up_calls,
        }
    }
}

/// The middle of sorted numbers.
pub fn median(sorted: &[f64]) -> f64 {
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (half, 1) => sorted[half],
        (half, _) => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Warms up and times. `call` returns when its work is done.
pub fn measure(effort: Effort, mut call: impl FnMut() -> Result<()>) -> Result<Times> {
    let first = timed(&mut call)?;
    let effort = effort.for_call_of(first);
    for _ in 1..effort.warm_up {
        call()?;
    }
    let mut seconds = Vec::with_capacity(effort.timed);
    for _ in 0..effort.timed {
        seconds.push(timed(&mut call)?.as_secs_f64());
    }
    Ok(Times::of(seconds, effort.warm_up.max(1)))
}

pub fn timed(call: &mut impl FnMut() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed())
}

/// `1.23 ms`, with the unit that suits.
pub fn seconds_text(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_list() {
        let times = Times::of(vec![3.0, 1.0, 2.0, 10.0], 5);
        assert_eq!((times.median, times.min, times.max), (2.5, 1.0, 10.0));
        assert!((times.std - 12.5f64.sqrt()).abs() < 1e-12);
        assert_eq!((times.calls, times.warm_up_calls), (4, 5));
        assert!(Times::of(vec![], 0).median.is_nan());
    }

    #[test]
    fn every_call_is_counted_and_an_error_ends_it() {
        let mut calls = 0;
        let effort = Effort {
            warm_up: 3,
            timed: 4,
        };
        let times = measure(effort, || {
            calls += 1;
            Ok(())
        });
        assert_eq!((calls, times.unwrap().calls), (7, 4));
        let failed = measure(effort, || Err(oxyfuel_base::err!(Internal, "no")));
        assert!(failed.is_err());
    }

    #[test]
    fn units_suit_the_size() {
        assert_eq!(seconds_text(0.0123), "12.3 ms");
        assert_eq!(seconds_text(1.5e-6), "1.50 us");
        assert_eq!(seconds_text(0.5e-3), "500 us");
        assert_eq!(seconds_text(2.0), "2.00 s");
    }
}
