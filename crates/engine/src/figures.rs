//! What this machine can do at best, measured in a tenth of a second: the yardstick of [`crate::explain`].
//!
//! | figure | how | on a GPU |
//! |---|---|---|
//! | bytes a second, for each cache | a compiled copy of half its size, on all threads | the same, between events |
//! | operations a second | products whose sums stay in registers: [`crate::peak`] | a chain of products of one element; a product of bf16 matrices |
//! | a launch | a copy of sixteen elements | the same |
//!
//! The best of a few runs counts: nothing makes a loop faster than it is, and another process makes it slower.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxyfuel_base::{DType, Result, err};
use oxyfuel_graph::parse;
use oxyfuel_runtime::cpu::features::Machine;
use oxyfuel_runtime::device::{Device, DeviceKind, Stream};
use oxyfuel_runtime::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::executable::Executable;
use crate::options::{Mode, Options};
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
    /// Measures a device for which the target is; `None` for a target whose code this machine cannot run.
    pub fn measure_on(
        target: &Target,
        options: &Options,
        device: &Arc<dyn Device>,
    ) -> Result<Option<Self>> {
        if !target.desc.is_simt() {
            return Self::measure(target, options);
        }
        if device.id().kind != DeviceKind::Cuda {
            return Ok(None);
        }
        let options = plain(options);
        let copy = |bytes: u64| copy(target, &options, device, bytes);
        let launch_seconds = copy(128)?;
        let rate = |bytes: u64, seconds: f64| bytes as f64 / (seconds - launch_seconds).max(1e-9);
        let cached = target.desc.l2_bytes;
        let levels = vec![
            Level {
                name: "second-level cache".to_owned(),
                bytes: Some(cached),
                bytes_per_second: rate(cached / 2, copy(cached / 2)?),
            },
            Level {
                name: "memory".to_owned(),
                bytes: None,
                bytes_per_second: rate(4 * LARGEST, copy(4 * LARGEST)?),
            },
        ];
        let single = timed(target, &options, device, &chain())?;
        let matrix = timed(target, &options, device, &product());
        // What was measured with is not needed again.
        device.trim();
        let host = HostFigures {
            dispatch_seconds: launch_seconds,
            view_seconds: 0.0,
            call_seconds: 0.0,
        };
        Ok(Some(Self {
            threads: target.desc.workers,
            levels,
            // Each of them could have been a multiply-add.
            flops_per_second: 2.0 * (CHAIN * CHAINS) as f64 / single,
            matrix_flops_per_second: matrix
                .ok()
                .map(|seconds| 2.0 * DEEP.pow(3) as f64 / seconds),
            launch_seconds,
            host,
        }))
    }

    /// Measures this machine; `None` for a target whose code it cannot run, or whose lanes are threads.
    pub fn measure(target: &Target, options: &Options) -> Result<Option<Self>> {
        let desc = &target.desc;
        if desc.is_simt() || !target.supported_here() || *target == Target::interpreter() {
            return Ok(None);
        }
        let options = plain(options);
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
            let seconds = best(device, LONG, || executable.run_into(&[], &mut outputs))?;
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

/// Options that have nothing to do with speed are left out.
fn plain(options: &Options) -> Options {
    Options {
        cache_dir: None,
        trace_dir: None,
        verify: false,
        launch_blocking: false,
        mode: Mode::Default,
        ..options.clone()
    }
}

/// Elements, and the products of each, of a chain that shows the rate of arithmetic.
const CHAINS: u64 = 1 << 22;
const CHAIN: u64 = 512;
/// Rows, columns and depth of a product that shows that of a matrix unit.
const DEEP: u64 = 4096;

/// A graph whose work is arithmetic: one element in, many products, one out.
fn chain() -> String {
    let mut text = format!("graph @chain(%x: f32[{CHAINS}] cuda:0 align 64) {{\n");
    let mut last = "%x".to_owned();
    for number in 0..CHAIN {
        let made = format!("%y{number}");
        text += &format!("  {made}: f32[{CHAINS}] = mul {last}, %x\n");
        last = made;
    }
    text + &format!("  return {last}\n}}\n")
}

/// A product of bf16 matrices.
fn product() -> String {
    let matrix = format!("bf16[{DEEP}, {DEEP}]");
    format!(
        "graph @product(%a: {matrix} cuda:0 align 64, %b: {matrix} cuda:0 align 64) {{\n  %y: {matrix} = mm %a, %b\n  return %y\n}}\n"
    )
}

/// Seconds of a graph on a device, on zeros.
fn timed(target: &Target, options: &Options, device: &Arc<dyn Device>, text: &str) -> Result<f64> {
    let made = compile(&parse("figure", text)?, target, options, false)?;
    let executable = Executable::load(made.plan, made.record, device.clone())?;
    let inputs = executable.plan().inputs.iter().map(|spec| {
        let shape = spec.shape.iter().map(|dim| dim.as_const().unwrap_or(1));
        let tensor = Tensor::empty_on(&**device, spec.dtype, &shape.collect::<Vec<i64>>())?;
        device.copy_in(&vec![0; tensor.storage().len()], tensor.storage(), 0)?;
        Ok(tensor)
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let mut outputs = executable.run(&inputs)?;
    best(device, LONG, || executable.run_into(&inputs, &mut outputs))
}

/// Seconds of a compiled copy that reads and writes so many bytes together.
fn copy(target: &Target, options: &Options, device: &Arc<dyn Device>, bytes: u64) -> Result<f64> {
    let count = (bytes / 8).max(16);
    let place = match target.desc.is_simt() {
        true => "cuda:0",
        false => "cpu",
    };
    let text = format!(
        "graph @copy(%x: f32[{count}] {place} align 64) {{\n  %y: f32[{count}] = clone %x\n  return %y\n}}\n"
    );
    let made = compile(&parse("copy", &text)?, target, options, false)?;
    let executable = Executable::load(made.plan, made.record, device.clone())?;
    let shape = [i64::try_from(count).map_err(|_| err!(TooLarge, "{count} elements"))?];
    let from = Tensor::empty_on(&**device, DType::F32, &shape)?;
    device.copy_in(&vec![0; from.storage().len()], from.storage(), 0)?;
    let mut to = [Tensor::empty_on(&**device, DType::F32, &shape)?];
    let least = if bytes > LONG_BYTES { LONG } else { SHORT };
    best(device, least, || executable.run_into(&[&from], &mut to))
}

/// The shortest of a few runs, by the clock of the device.
fn best(device: &Arc<dyn Device>, least: u32, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    for runs in 0.. {
        if runs >= least && start.elapsed() > BUDGET {
            break;
        }
        let from = device.mark(Stream::default())?;
        run()?;
        let to = device.mark(Stream::default())?;
        best = best.min(device.elapsed(&from, &to)?.as_secs_f64());
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
