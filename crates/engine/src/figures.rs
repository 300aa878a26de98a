//! What this machine can do at best, measured in a tenth of a second: the yardstick of [`crate::explain`].
//!
//! | figure | how |
//! |---|---|
//! | bytes a second, for each cache | a compiled copy of half its size, on all threads |
//! | operations a second | products whose sums stay in registers: [`crate::peak`] |
//! | a launch | a copy of sixteen elements |
//!
//! The best of a few runs counts: nothing makes a loop faster than it is, and another process makes it slower.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxyfuel_base::{DType, Result, err};
use oxyfuel_graph::parse;
use oxyfuel_runtime::cpu::features::Machine;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::executable::Executable;
use crate::options::Options;
use crate::peak::peak;
use crate::pipeline::compile;
use crate::record::Record;
use crate::target::Target;

/// What a machine can do at best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub threads: u32,
    /// Smallest first; the last one has no end.
    pub levels: Vec<Level>,
    /// Of multiply-adds on vectors, each of which is two operations.
    pub flops_per_second: f64,
    /// Of bf16 products on a matrix unit, where there is one.
    pub matrix_flops_per_second: Option<f64>,
    /// What a launch costs before any work is done.
    pub launch_seconds: f64,
    /// What calls of the host cost.
    pub host: HostFigures,
}

/// A place where data may lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    pub name: String,
    /// What all threads together have of it; `None`: as much as there is.
    pub bytes: Option<u64>,
    /// Of a plain copy, reads and writes together.
    pub bytes_per_second: f64,
}

/// What the host's own machinery costs, before any work is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostFigures {
    /// A call of an operator that computes.
    pub dispatch_seconds: f64,
    /// A call of an operator that only names elements anew.
    pub view_seconds: f64,
    /// A call of a compiled graph, beside its launches.
    pub call_seconds: f64,
}

/// A copy that moves more would take too long to measure; larger caches get the figure of this size.
const LARGEST: u64 = 128 << 20;
/// Time for one figure, after a first run.
const BUDGET: Duration = Duration::from_millis(6);
/// Runs at least: many of short ones, which another process spoils whole.
const SHORT: u32 = 16;
const LONG: u32 = 3;
/// A copy of more bytes is a long one.
const LONG_BYTES: u64 = 16 << 20;

impl Figures {
    /// Measures this machine; `None` for a target whose code it cannot run, or whose lanes are threads.
    pub fn measure(target: &Target, options: &Options) -> Result<Option<Self>> {
        let desc = &target.desc;
        if desc.is_simt() || !target.supported_here() || *target == Target::interpreter() {
            return Ok(None);
        }
        let options = Options {
            cache_dir: None,
            trace_dir: None,
            verify: false,
            ..options.clone()
        };
        // A device of its own: that of the caller may check what it runs.
        let device = &target.device(&options)?;
        let copy = |bytes: u64| copy(target, &options, device, bytes);
        let launch_seconds = copy(128)?;
        let Some(vector) = peak(target, DType::F32)? else {
            return Ok(None);
        };
        let matrix = peak(target, DType::BF16)?;
        let rate = |peak: crate::Peak| -> Result<f64> {
            let executable = Executable::load(peak.plan, Record::default(), device.clone())?;
            let mut outputs = executable.run(&[])?;
            let seconds = best(LONG, || executable.run_into(&[], &mut outputs))?;
            Ok(peak.flops as f64 / seconds)
        };
        let workers = u64::from(desc.workers.max(1));
        let shared = Machine::get().caches.l3 as u64;
        let mut levels: Vec<Level> = vec![];
        let mut measured = (0, 0.0);
        for (name, bytes) in [
            ("first-level cache", Some(desc.l1_bytes * workers)),
            ("second-level cache", Some(desc.l2_bytes * workers)),
            ("shared cache", Some(shared)),
            ("memory", None),
        ] {
            let below = levels.last().and_then(|level| level.bytes).unwrap_or(0);
            if bytes.is_some_and(|bytes| bytes <= below) {
                continue;
            }
            // More than the level below holds, with room for what else lives here.
            let size = bytes.map_or(2 * below, |bytes| (bytes / 2).max(2 * below));
            let size = size.min(LARGEST);
            if size != measured.0 {
                let work = (copy(size)? - launch_seconds).max(1e-9);
                measured = (size, size as f64 / work);
            }
            levels.push(Level {
                name: name.to_owned(),
                bytes,
                bytes_per_second: measured.1,
            });
        }
        // A cache is no slower than what lies behind it, whatever another process did meanwhile.
        for i in (1..levels.len()).rev() {
            let behind = levels[i].bytes_per_second;
            levels[i - 1].bytes_per_second = levels[i - 1].bytes_per_second.max(behind);
        }
        Ok(Some(Self {
            threads: desc.workers,
            levels,
            flops_per_second: rate(vector)?,
            matrix_flops_per_second: matrix.map(rate).transpose()?,
            launch_seconds,
            host: HostFigures {
                dispatch_seconds: launch_seconds,
                view_seconds: 0.0,
                call_seconds: 0.0,
            },
        }))
    }
}

impl Figures {
    /// The better of two measurements of one machine, figure by figure: another process only ever makes them worse.
    #[must_use]
    pub fn or_better(mut self, other: &Self) -> Self {
        for (level, again) in self.levels.iter_mut().zip(&other.levels) {
            level.bytes_per_second = level.bytes_per_second.max(again.bytes_per_second);
        }
        self.flops_per_second = self.flops_per_second.max(other.flops_per_second);
        let matrix = (self.matrix_flops_per_second).zip(other.matrix_flops_per_second);
        self.matrix_flops_per_second = matrix.map(|(a, b)| a.max(b));
        self.launch_seconds = self.launch_seconds.min(other.launch_seconds);
        self
    }
}

/// Seconds of a compiled copy that reads and writes so many bytes together.
fn copy(target: &Target, options: &Options, device: &Arc<dyn Device>, bytes: u64) -> Result<f64> {
    let count = (bytes / 8).max(16);
    let text = format!(
        "graph @copy(%x: f32[{count}] cpu) {{\n  %y: f32[{count}] = clone %x\n  return %y\n}}\n"
    );
    let made = compile(&parse("copy", &text)?, target, options, false)?;
    let executable = Executable::load(made.plan, made.record, device.clone())?;
    let shape = [i64::try_from(count).map_err(|_| err!(TooLarge, "{count} elements"))?];
    let from = Tensor::empty_on(&**device, DType::F32, &shape)?;
    device.copy_in(&vec![0; from.storage().len()], from.storage(), 0)?;
    let mut to = [Tensor::empty_on(&**device, DType::F32, &shape)?];
    let least = if bytes > LONG_BYTES { LONG } else { SHORT };
    best(least, || executable.run_into(&[&from], &mut to))
}

/// The shortest of a few runs.
fn best(least: u32, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    for runs in 0.. {
        if runs >= least && start.elapsed() > BUDGET {
            break;
        }
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_figure_of_two_counts() {
        let figures = |rate: f64, launch_seconds: f64| Figures {
            threads: 1,
            levels: vec![Level {
                name: "memory".to_owned(),
                bytes: None,
                bytes_per_second: rate,
            }],
            flops_per_second: 10.0 - rate,
            matrix_flops_per_second: Some(rate),
            launch_seconds,
            host: HostFigures {
                dispatch_seconds: 1.0,
                view_seconds: 0.0,
                call_seconds: 0.0,
            },
        };
        let best = figures(2.0, 5.0).or_better(&figures(3.0, 6.0));
        assert_eq!(best.levels[0].bytes_per_second, 3.0);
        assert_eq!((best.flops_per_second, best.launch_seconds), (8.0, 5.0));
        assert_eq!(best.matrix_flops_per_second, Some(3.0));
    }
}
