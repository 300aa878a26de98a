//! How figures, bars and verdicts are written.

use super::records::Field;

/// What a bar came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// With what was missed, where more than one thing could be.
    Missed(String),
    /// It was not judged, and why.
    Open(String),
}

impl Verdict {
    pub fn of(met: bool) -> Verdict {
        if met {
            Verdict::Met
        } else {
            Verdict::Missed(String::new())
        }
    }

    /// Of the sentences with which a program says what was missed.
    pub fn of_sentences(missed: &[String]) -> Verdict {
        if missed.is_empty() {
            Verdict::Met
        } else {
            Verdict::Missed(missed.join("; "))
        }
    }

    /// As it stands in a table.
    pub fn words(&self) -> String {
        self.said().replace('|', "\\|")
    }

    fn said(&self) -> String {
        match self {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed(what) if what.is_empty() => "**missed**".to_owned(),
            Verdict::Missed(what) => format!("**missed**: {what}"),
            Verdict::Open(why) => format!("not judged: {why}"),
        }
    }
}

/// One line of a table of bars.
#[derive(Debug, Clone)]
pub struct Bar {
    pub what: String,
    pub bar: String,
    pub reached: String,
    pub verdict: Verdict,
}

impl Bar {
    /// A bar for which the record has nothing.
    pub fn open(what: &str, bar: &str, why: String) -> Bar {
        Bar {
            what: what.to_owned(),
            bar: bar.to_owned(),
            reached: "-".to_owned(),
            verdict: Verdict::Open(why),
        }
    }
}

/// Several bars in one line.
pub fn joined(what: &str, bars: &[Bar]) -> Bar {
    let all = |of: fn(&Bar) -> &str| bars.iter().map(of).collect::<Vec<_>>().join("; ");
    let of = |verdict: fn(&Verdict) -> Option<&str>| {
        let found = bars.iter().filter_map(|bar| verdict(&bar.verdict));
        found.collect::<Vec<_>>().join("; ")
    };
    let missed = bars
        .iter()
        .any(|bar| matches!(bar.verdict, Verdict::Missed(_)));
    let open = bars
        .iter()
        .any(|bar| matches!(bar.verdict, Verdict::Open(_)));
    Bar {
        what: what.to_owned(),
        bar: all(|bar| &bar.bar),
        reached: all(|bar| &bar.reached),
        verdict: if missed {
            Verdict::Missed(of(|v| match v {
                Verdict::Missed(what) => Some(what),
                _ => None,
            }))
        } else if open {
            Verdict::Open(of(|v| match v {
                Verdict::Open(why) => Some(why),
                _ => None,
            }))
        } else {
            Verdict::Met
        },
    }
}

pub fn bars(bars: &[Bar]) -> String {
    let mut text = String::from("| what | bar | reached | verdict |\n|---|---|---|---|\n");
    for bar in bars {
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            bar.what,
            bar.bar,
            bar.reached,
            bar.verdict.words()
        ));
    }
    text
}

/// The line that says what a record is of, and where it is.
pub fn facts(record: &Field<'_>, name: &str, links: &str) -> Result<String, String> {
    let file = super::records::file_name(name);
    Ok(format!(
        "{}: [{file}]({links}{file}).\n",
        machine_and_code(record)?
    ))
}

/// GPU, driver, commit and torch of a record.
pub fn machine_and_code(record: &Field<'_>) -> Result<String, String> {
    Ok(format!("{}, {}", machine(record)?, code(record)?))
}

/// GPU and driver.
pub fn machine(record: &Field<'_>) -> Result<String, String> {
    let text = |key: &str| record.at(&[key])?.text();
    Ok(format!("{}, driver {}", text("gpu")?, text("driver")?))
}

/// Commit and torch. Some programs do without torch, and do not know its version.
pub fn code(record: &Field<'_>) -> Result<String, String> {
    let torch = match (record.find("torch"), record.find("cuda")) {
        (Some(torch), Some(cuda)) => format!("torch {} with CUDA {}", torch.text()?, cuda.text()?),
        (Some(torch), None) => format!("torch {}", torch.text()?),
        _ => "torch not in the record".to_owned(),
    };
    Ok(format!(
        "commit {}, {torch}",
        record.at(&["commit"])?.text()?
    ))
}

/// A whole number with its thousands apart.
pub fn count(number: f64) -> String {
    thousands(format!("{number:.0}"))
}

/// One decimal, thousands apart.
pub fn tenths(number: f64) -> String {
    thousands(format!("{number:.1}"))
}

fn thousands(number: String) -> String {
    let end = number.find('.').unwrap_or(number.len());
    let (whole, rest) = number.split_at(end);
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let mut apart = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    format!("{sign}{apart}{rest}")
}

/// A ratio in percent, with a decimal where it is not far from 1.
pub fn percent(ratio: f64) -> String {
    format!("{} %", bare_percent(ratio))
}

/// A bar in percent: a round number.
pub fn whole_percent(bar: f64) -> String {
    format!("{} %", count(100.0 * bar))
}

fn bare_percent(ratio: f64) -> String {
    if ratio < 1.1 {
        tenths(100.0 * ratio)
    } else {
        count(100.0 * ratio)
    }
}

/// The same with its interval.
pub fn percent_between([middle, low, high]: [f64; 3]) -> String {
    format!(
        "{} ({} to {})",
        percent(middle),
        bare_percent(low),
        bare_percent(high)
    )
}

/// A ratio with its interval.
pub fn times_between([middle, low, high]: [f64; 3]) -> String {
    format!("{middle:.3} ({low:.3} to {high:.3})")
}

/// The least and the largest.
pub fn ends(numbers: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    numbers.into_iter().fold(None, |ends, n| match ends {
        None => Some((n, n)),
        Some((least, most)) => Some((least.min(n), most.max(n))),
    })
}

pub fn geometric_mean(numbers: &[f64]) -> f64 {
    let logs: f64 = numbers.iter().map(|n| n.ln()).sum();
    (logs / numbers.len() as f64).exp()
}

/// "1 row", "2 rows".
pub fn so_many(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(tenths(1749.66), "1,749.7");
        assert_eq!(count(12345678.0), "12,345,678");
        assert_eq!(tenths(-1234.0), "-1,234.0");
        assert_eq!(tenths(999.0), "999.0");
    }

    #[test]
    fn ratios_near_one_have_a_decimal() {
        assert_eq!(percent(0.9642), "96.4 %");
        assert_eq!(percent(12.4), "1,240 %");
        assert_eq!(
            percent_between([1.0047, 1.0, 1.12]),
            "100.5 % (100.0 to 112)"
        );
    }

    #[test]
    fn verdicts_are_words() {
        assert_eq!(Verdict::of(true).words(), "met");
        assert_eq!(Verdict::of(false).words(), "**missed**");
        let two = ["a".to_owned(), "b".to_owned()];
        assert_eq!(Verdict::of_sentences(&two).words(), "**missed**: a; b");
        assert_eq!(Verdict::of_sentences(&[]), Verdict::Met);
        assert_eq!(Verdict::Open("x|y".to_owned()).words(), "not judged: x\\|y");
    }

    #[test]
    fn bars_in_one_line_are_missed_where_one_is() {
        let bar = |verdict| Bar {
            verdict,
            ..Bar::open("a", "1 s", String::new())
        };
        let open = || bar(Verdict::Open("no row".to_owned()));
        let missed = || bar(Verdict::Missed("b".to_owned()));
        let line = |bars: &[Bar]| joined("all", bars);
        let all = line(&[bar(Verdict::Met), open(), missed()]);
        assert_eq!(
            (all.what.as_str(), all.bar.as_str()),
            ("all", "1 s; 1 s; 1 s")
        );
        assert_eq!(all.verdict, Verdict::Missed("b".to_owned()));
        assert_eq!(
            line(&[open(), bar(Verdict::Met)]).verdict,
            Verdict::Open("no row".to_owned())
        );
        assert_eq!(line(&[bar(Verdict::Met)]).verdict, Verdict::Met);
    }
}
