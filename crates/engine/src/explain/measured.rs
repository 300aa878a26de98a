//! What kernels took, and which share of the roofline that is.
//!
//! ```text
//!   share = max(bytes / bandwidth, operations / peak) / measured
//! ```
//!
//! Bandwidth and peak are what a plain copy and multiply-adds reached on this machine ([`Figures`](crate::figures::Figures)), so that a share is of what can be had, not of what a data sheet
//! says. It may pass 1 where the data of a kernel lay nearer than the model thinks.

use std::time::{Duration, Instant};

use oxyfuel_base::Result;
use oxyfuel_plan::{Plan, Step};
use oxyfuel_runtime::tensor::Tensor;
use serde::Serialize;

use super::KernelReport;
use crate::executable::Executable;

/// What all kernels of a call took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Of one call, kernels alone.
    pub seconds: f64,
    /// What they would take at the machine's best, by what they took; `None` where that is not known of one of them.
    pub roofline_share: Option<f64>,
}

impl Measured {
    /// `None` where a kernel was not measured.
    pub fn of(kernels: &[KernelReport]) -> Option<Self> {
        let seconds = kernels
            .iter()
            .map(|kernel| Some(kernel.measured_seconds? * kernel.launches as f64))
            .sum::<Option<f64>>()
            .filter(|seconds| *seconds > 0.0)?;
        let roof = kernels
            .iter()
            .map(|kernel| Some(kernel.expected.as_ref()?.roof_seconds * kernel.launches as f64))
            .sum::<Option<f64>>();
        Some(Self {
            seconds,
            roofline_share: roof.map(|roof| roof / seconds),
        })
    }
}

/// Writes what the steps of a plan took into the reports of its kernels, which are in the plan's order.
pub(super) fn add(plan: &Plan, times: &[Duration], reports: &mut [KernelReport]) {
    for ((id, _), report) in plan.kernels.iter().zip(reports) {
        let launches = plan.steps.iter().zip(times);
        let own = launches.filter_map(|(step, time)| match step {
            Step::Launch { kernel, .. } if *kernel == id => Some(time.as_secs_f64()),
            Step::Launch { .. } | Step::Copy { .. } | Step::External(_) => None,
        });
        let own: Vec<f64> = own.collect();
        let seconds = own.iter().sum::<f64>() / own.len().max(1) as f64;
        // A clock that did not tick says nothing.
        report.measured_seconds = (seconds > 0.0).then_some(seconds);
        report.roofline_share = report
            .measured_seconds
            .zip(report.expected.as_ref())
            .map(|(seconds, expected)| expected.roof_seconds / seconds);
    }
}

/// Time to measure in, and how many runs at least and at most.
const BUDGET: Duration = Duration::from_millis(200);
const RUNS: std::ops::RangeInclusive<usize> = 5..=100;

/// What each step of a plan takes: the shortest of several runs, after one that counts for nothing. What the program writes to its inputs is written at every run.
pub fn best_times(executable: &Executable, inputs: &[&Tensor]) -> Result<Vec<Duration>> {
    executable.run(inputs)?;
    let mut best = vec![Duration::MAX; executable.plan().steps.len()];
    let start = Instant::now();
    for run in 0..*RUNS.end() {
        if run >= *RUNS.start() && start.elapsed() > BUDGET {
            break;
        }
        let (_, times) = executable.profile(inputs)?;
        for step in times {
            best[step.step] = best[step.step].min(step.time);
        }
    }
    Ok(best)
}
