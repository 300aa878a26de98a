//! An explanation for people. Modelled times are rounded to two digits: more would be a claim.

use std::fmt;
use std::time::Duration;

use super::{CodeKind, Explanation, ExternalReport, KernelReport, Measured, Verdict};
use crate::figures::Figures;
use crate::record::Origin;

/// Two digits and a unit.
pub fn about_seconds(seconds: f64) -> String {
    let (scaled, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "us"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", two_digits(scaled))
}

/// How many times, with two digits.
pub fn about_times(ratio: f64) -> String {
    format!("{}x", two_digits(ratio))
}

fn two_digits(number: f64) -> String {
    if !number.is_finite() || number <= 0.0 {
        return "0".to_owned();
    }
    let step = 10f64.powi(number.log10().floor() as i32 - 1);
    let rounded = (number / step).round() * step;
    if rounded >= 9.95 {
        format!("{rounded:.0}")
    } else if rounded >= 0.995 {
        format!("{rounded:.1}")
    } else {
        format!("{rounded:.2}")
    }
}

/// `83 % of memory bandwidth`.
fn share_of(share: f64, what: &str) -> String {
    format!("{} % of {what}", two_digits(100.0 * share))
}

/// Thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), grouped)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.kernels.len();
        let plural = if kernels == 1 { "" } else { "s" };
        write!(
            f,
            "{}: {kernels} kernel{plural} for {}",
            self.name, self.target
        )?;
        if self.copies > 0 {
            write!(f, ", {} copies", self.copies)?;
        }
        if !self.externals.is_empty() {
            write!(f, ", {} external calls", self.externals.len())?;
        }
        let total: Duration = self.steps.iter().map(|step| step.time).sum();
        match self.origin {
            Origin::Compiled => writeln!(f, ", compiled in {total:.2?}")?,
            Origin::Memory | Origin::Disk => writeln!(f, ", {}", self.origin)?,
        }
        for kernel in &self.kernels {
            write!(f, "{kernel}")?;
        }
        self.calls(f)?;
        writeln!(
            f,
            "\nmemory: arena of {} bytes, scratch of {} bytes for each worker",
            self.memory.arena, self.memory.scratch_bytes
        )?;
        for buffer in &self.memory.buffers {
            writeln!(
                f,
                "  {:<14} {:<18} {:>12} bytes, steps {}..{}",
                buffer.name,
                buffer.home,
                shown(buffer.bytes),
                buffer.first_step,
                buffer.last_step
            )?;
        }
        if !self.steps.is_empty() {
            writeln!(f, "\ncompile time")?;
        }
        for step in &self.steps {
            writeln!(f, "  {:<10} {:>10.1?}", step.name, step.time)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        if let Some(figures) = &self.figures {
            write!(f, "{figures}")?;
        }
        if let Some(verdict) = &self.verdict {
            write!(f, "{verdict}")?;
        }
        if let Some(measured) = &self.measured {
            write!(f, "{measured}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nmeasured")?;
        write!(f, "  kernels  {} a call", about_seconds(self.seconds))?;
        match self.roofline_share {
            Some(share) => writeln!(f, ", {}", share_of(share, "the machine's limits")),
            None => writeln!(f),
        }
    }
}

impl Explanation {
    /// Host calls, the same ones once.
    fn calls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.externals.is_empty() {
            writeln!(f, "\nexternal calls")?;
        }
        let mut counts: Vec<(&ExternalReport, usize, Option<u64>)> = vec![];
        for call in &self.externals {
            let same = |known: &&mut (&ExternalReport, usize, Option<u64>)| {
                known.0.name == call.name && known.0.reason == call.reason
            };
            match counts.iter_mut().find(same) {
                Some((_, count, flops)) => {
                    *count += 1;
                    *flops = flops.zip(call.flops).map(|(sum, more)| sum + more);
                }
                None => counts.push((call, 1, call.flops)),
            }
        }
        for (call, count, flops) in counts {
            write!(f, "  {count:>4} x {}: {}", call.name, call.reason)?;
            match flops {
                Some(flops) => writeln!(f, "; {} operations", grouped(flops))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}", self.name)?;
        writeln!(f, "  from     {}", self.ops.join(", "))?;
        if !self.lines.is_empty() {
            writeln!(f, "  at       {}", self.lines.join(", "))?;
        }
        match self.code {
            CodeKind::Interpreted => writeln!(f, "  code     none, runs in the interpreter")?,
            CodeKind::Machine => {
                writeln!(f, "  code     {} bytes of machine code", self.code_bytes)?
            }
            CodeKind::Ptx => writeln!(f, "  code     {} bytes of PTX", self.code_bytes)?,
        }
        if let Some(note) = &self.note {
            writeln!(f, "  because  {note}")?;
        }
        let rounds = match self.rounds {
            1 => String::new(),
            rounds => format!(", in {rounds} rounds"),
        };
        let gathered = match self.gathered {
            None => String::new(),
            Some(1) => ", all in one block".to_owned(),
            Some(blocks) => format!(", all in one launch of {blocks} blocks"),
        };
        writeln!(
            f,
            "  grid     {}{rounds}{gathered}",
            self.grids.join(", then ")
        )?;
        if self.members > 1 {
            writeln!(
                f,
                "  members  {} pieces of work on tensors of their own, side by side",
                self.members
            )?;
        }
        if self.launches > 1 {
            writeln!(f, "  runs     {} times a call", self.launches)?;
        }
        write!(
            f,
            "  work     reads {} bytes, writes {}; {} operations",
            shown(self.bytes_read),
            shown(self.bytes_written),
            shown(self.flops)
        )?;
        if let Some(ratio) = self.flops_per_byte {
            write!(f, ", {ratio:.2} a byte")?;
        }
        writeln!(f)?;
        if let Some(expected) = &self.expected {
            writeln!(
                f,
                "  bound    by {}: about {} expected, {}; data from the {}",
                expected.bound.words(),
                about_seconds(expected.seconds),
                share_of(expected.roofline_share(), &expected.roof_words()),
                expected.level
            )?;
        }
        if let Some(seconds) = self.measured_seconds {
            write!(f, "  measured {}", about_seconds(seconds))?;
            if let (Some(share), Some(expected)) = (self.roofline_share, &self.expected) {
                write!(f, ", {}", share_of(share, &expected.roof_words()))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nmachine, as measured now with {} threads",
            self.threads
        )?;
        for level in &self.levels {
            let size = level.bytes.map_or_else(String::new, |bytes| {
                format!(", {} KiB", grouped(bytes >> 10))
            });
            let rate = two_digits(level.bytes_per_second / 1e9);
            writeln!(f, "  {:<19} {rate:>5} GB/s{size}", level.name)?;
        }
        let rate = |rate: f64| two_digits(rate / 1e9);
        write!(
            f,
            "  {:<19} {:>5} Gop/s",
            "multiply-adds",
            rate(self.flops_per_second)
        )?;
        if let Some(matrix) = self.matrix_flops_per_second {
            write!(f, ", {} in bf16 on the matrix unit", rate(matrix))?;
        }
        writeln!(
            f,
            "\n  {:<19} {:>5}",
            "a launch",
            about_seconds(self.launch_seconds)
        )?;
        writeln!(
            f,
            "  {:<19} {:>5}, a view {}, a compiled graph {}",
            "an eager operator",
            about_seconds(self.host.dispatch_seconds),
            about_seconds(self.host.view_seconds),
            about_seconds(self.host.call_seconds)
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nexpected")?;
        let shares: Vec<String> = self
            .shares
            .named()
            .into_iter()
            .filter(|(_, share)| *share >= 0.005)
            .map(|(bound, share)| format!("{:.0} % {}", 100.0 * share, bound.words()))
            .collect();
        writeln!(
            f,
            "  compiled about {} a call, {} bytes: {}",
            about_seconds(self.compiled_seconds),
            grouped(self.compiled_bytes),
            shares.join(", ")
        )?;
        writeln!(
            f,
            "  work     {:.0} % of it waits for {}",
            100.0 * self.roof_share,
            self.roof.words()
        )?;
        writeln!(
            f,
            "  eager    about {} a call, {} bytes: {} operators, {} views",
            about_seconds(self.eager_seconds),
            grouped(self.eager_bytes),
            self.eager_operators,
            self.eager_views
        )?;
        write!(f, "  gain     about {}", about_times(self.gain))?;
        match (self.compile_seconds, self.break_even) {
            (Some(seconds), Some(calls)) => writeln!(
                f,
                "; compiling ({}) has paid after about {} calls",
                about_seconds(seconds),
                two_digits(calls.max(1) as f64)
            )?,
            (Some(seconds), None) => writeln!(
                f,
                "; too little to say when compiling ({}) has paid",
                about_seconds(seconds)
            )?,
            (None, _) => writeln!(f)?,
        }
        for advice in &self.advice {
            writeln!(f, "  advice   {advice}")?;
        }
        for assumption in &self.assumptions {
            writeln!(f, "  assumed  {assumption}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_digits() {
        let times = [1.234e-9, 0.000_000_345_6, 1.25e-6, 0.012_34, 0.999_9, 123.0];
        let texts: Vec<String> = times.into_iter().map(about_seconds).collect();
        assert_eq!(
            texts,
            ["1.2 ns", "350 ns", "1.3 us", "12 ms", "1000 ms", "120 s"]
        );
        assert_eq!(about_times(2.345), "2.3x");
        assert_eq!(about_times(0.5), "0.50x");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            [grouped(0), grouped(999), grouped(1000), grouped(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
