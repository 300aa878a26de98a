//! Bars of the measurements that judge themselves, and what a run that misses one says.

use serde::Serialize;

/// What a value may be at most, and whether it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bar {
    pub bar: Option<f64>,
    /// Left out where the run decides nothing.
    pub met: Option<bool>,
}

impl Bar {
    pub fn at_most(bar: f64, value: f64, decides: bool) -> Self {
        Self {
            bar: Some(bar),
            met: decides.then_some(value <= bar),
        }
    }

    /// A sentence where it is missed.
    pub fn miss(&self, what: &str, value: f64, unit: &str) -> Option<String> {
        let bar = self.bar?;
        (self.met == Some(false)).then(|| format!("{what}: {value:.2}{unit}, bar {bar}{unit}"))
    }

    /// `5.00 met`; a dash where there is none.
    pub fn text(&self) -> String {
        let verdict = match self.met {
            Some(true) => " met",
            Some(false) => " missed",
            None => "",
        };
        self.bar
            .map_or("-".to_owned(), |bar| format!("{bar}{verdict}"))
    }
}

/// Says which bars were missed; whether none was.
pub fn all_met(missed: &[String]) -> bool {
    for line in missed {
        eprintln!("missed: {line}");
    }
    missed.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_missed_or_not_judged() {
        let met = Bar::at_most(5.0, 5.0, true);
        assert_eq!((met.met, met.miss("a", 5.0, " ms")), (Some(true), None));
        let missed = Bar::at_most(5.0, 5.25, true);
        assert_eq!(
            missed.miss("softmax", 5.25, " ms").as_deref(),
            Some("softmax: 5.25 ms, bar 5 ms")
        );
        assert_eq!(missed.text(), "5 missed");
        assert_eq!(Bar::at_most(5.0, 9.0, false).met, None);
        assert_eq!(Bar::default().text(), "-");
        assert!(all_met(&[]) && !all_met(&["x".to_owned()]));
    }
}
