//! A profile as a trace that browsers show (`chrome://tracing`, Perfetto): a row for the host and one for each device.

use super::{Profile, Span};
use crate::device::DeviceId;
use std::fmt::Write;
use std::time::Duration;

/// The process of the host's row; devices follow.
const HOST: usize = 0;

impl Profile {
    /// The trace as JSON, in the format of Chrome's trace viewer.
    pub fn chrome_trace(&self) -> String {
        let mut devices: Vec<DeviceId> = self
            .spans
            .iter()
            .filter_map(|span| Some(span.device?.device))
            .collect();
        devices.sort_unstable();
        devices.dedup();
        let mut events = vec![named(HOST, "host")];
        for (number, device) in devices.iter().enumerate() {
            events.push(named(HOST + 1 + number, &device.to_string()));
        }
        for span in &self.spans {
            events.push(event(span, HOST, span.begin, span.host));
            // A frame around work of a device is not work of it.
            if let Some(on) = span.device.filter(|_| span.category.is_work()) {
                let row = devices.iter().position(|device| *device == on.device);
                let row = HOST + 1 + row.unwrap_or(0);
                events.push(event(span, row, on.begin, on.time));
            }
        }
        format!(
            "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n",
            events.join(",\n")
        )
    }
}

fn named(row: usize, name: &str) -> String {
    format!(
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{row},\"tid\":0,\"args\":{{\"name\":{}}}}}",
        quoted(name)
    )
}

fn event(span: &Span, row: usize, begin: Duration, time: Duration) -> String {
    let micros = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    format!(
        "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{row},\"tid\":0,\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"ops\":{},\"lines\":{}}}}}",
        quoted(&span.name),
        quoted(span.category.name()),
        micros(begin),
        micros(time),
        quoted(&span.ops.join(", ")),
        quoted(&span.lines.join(", "))
    )
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                out.push('\\');
                out.push(letter);
            }
            control if (control as u32) < 0x20 => {
                let _never_fails = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
