//! A profile as a table: one row a kernel, plan or compile.

use super::{Category, Profile, Span};
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

/// All spans of one name and category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Of a kernel or of a plan.
    pub name: String,
    /// What the time was spent on.
    pub category: Category,
    /// Source operators of a kernel, in order.
    pub ops: Vec<String>,
    /// How many spans there are.
    pub calls: usize,
    /// Time of the host, without that of the parts.
    pub self_host: Duration,
    /// Time of the host.
    pub total_host: Duration,
    /// Time of devices, without that of the parts.
    pub self_device: Duration,
    /// Time of devices.
    pub total_device: Duration,
}

impl Profile {
    /// One row a kernel, plan or compile: those that took most device time first, then those that took most of the host's.
    pub fn rows(&self) -> Vec<Row> {
        let device = |span: &Span| span.device.map_or(Duration::ZERO, |device| device.time);
        let mut parts = vec![(Duration::ZERO, Duration::ZERO); self.spans.len()];
        for span in &self.spans {
            if let Some(parent) = span.parent {
                parts[parent].0 += span.host;
                parts[parent].1 += device(span);
            }
        }
        let mut rows: Vec<Row> = Vec::new();
        for (span, (host_parts, device_parts)) in self.spans.iter().zip(parts) {
            let known = rows
                .iter()
                .position(|row| row.category == span.category && row.name == span.name);
            let number = known.unwrap_or_else(|| {
                rows.push(Row {
                    name: span.name.clone(),
                    category: span.category,
                    ops: span.ops.clone(),
                    calls: 0,
                    self_host: Duration::ZERO,
                    total_host: Duration::ZERO,
                    self_device: Duration::ZERO,
                    total_device: Duration::ZERO,
                });
                rows.len() - 1
            });
            let row = &mut rows[number];
            row.calls += 1;
            row.total_host += span.host;
            row.self_host += span.host.saturating_sub(host_parts);
            row.total_device += device(span);
            row.self_device += device(span).saturating_sub(device_parts);
        }
        rows.sort_by_key(|row| Reverse((row.self_device, row.self_host)));
        rows
    }

    /// How many pieces of work of each category there were, the most frequent first.
    pub fn launches(&self) -> Vec<(Category, usize)> {
        let mut counts: Vec<(Category, usize)> = Vec::new();
        for span in self.spans.iter().filter(|span| span.category.is_work()) {
            match counts.iter_mut().find(|(known, _)| *known == span.category) {
                Some((_, count)) => *count += 1,
                None => counts.push((span.category, 1)),
            }
        }
        counts.sort_by_key(|(category, count)| (Reverse(*count), *category));
        counts
    }
}

fn time(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        0.0 => "-".into(),
        micros if micros < 1e3 => format!("{micros:.1} us"),
        micros if micros < 1e6 => format!("{:.2} ms", micros / 1e3),
        micros => format!("{:.2} s", micros / 1e6),
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "wall {} = device {} + overhead {}; compile {} apart",
            time(self.wall()),
            time(self.device()),
            time(self.overhead()),
            time(self.compile())
        )?;
        let launches: Vec<String> = self
            .launches()
            .iter()
            .map(|(category, count)| format!("{count} {}", category.name()))
            .collect();
        writeln!(f, "launches: {}", launches.join(", "))?;
        let rows = self.rows();
        let width = rows.iter().map(|row| row.name.chars().count()).max();
        let width = width.unwrap_or(0).clamp(4, 48);
        writeln!(
            f,
            "{:width$}  {:9}  {:>6}  {:>11}  {:>11}  {:>11}  {:>11}  source",
            "name", "what", "calls", "self device", "device", "self host", "host"
        )?;
        for row in &rows {
            let line = format!(
                "{:width$}  {:9}  {:>6}  {:>11}  {:>11}  {:>11}  {:>11}  {}",
                row.name,
                row.category.name(),
                row.calls,
                time(row.self_device),
                time(row.total_device),
                time(row.self_host),
                time(row.total_host),
                row.ops.join(", ")
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
