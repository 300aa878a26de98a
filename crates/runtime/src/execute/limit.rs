//! How much memory a call will ask for, known before anything runs.
//!
//! A call takes one arena for as long as it runs, its results from the segment on that first writes them, and what the host holds between its own operators; inputs are the caller's, and constants were
//! there before. Scratch of the worker threads belongs to the device, and what an operator of the host needs inside belongs to the host: neither is counted.

use super::Program;
use super::hosted::held;
use super::instance::{Home, Instance};
use crate::tensor::Tensor;
use oxyfuel_base::{Code, Error, Id, Result};
use oxyfuel_plan::Plan;

/// How many buffers a refusal names.
const NAMED: usize = 5;

impl Program {
    /// Refuses calls that would take more than so many bytes, now where all sizes are known, else before the call runs.
    pub fn limit(&mut self, bytes: Option<usize>) -> Result<()> {
        self.memory_limit = bytes;
        match &self.only {
            Some(only) => self.check_limit(&only.instance),
            None => Ok(()),
        }
    }

    /// The most bytes that a call holds at once for intermediates and results; `None` where symbols have no numbers yet.
    pub fn planned_bytes(&self) -> Option<usize> {
        let only = self.only.as_ref()?;
        Some(planned(&only.instance))
    }

    /// The same for a call with these inputs, which give symbols their numbers.
    pub fn planned_bytes_of(&self, inputs: &[&Tensor]) -> Result<usize> {
        Ok(planned(&self.instance(inputs)?.instance))
    }

    /// The error with what the plan needs, where memory is what is lacking; what is kept for reuse goes back to the system.
    pub(super) fn short_of_memory(&self, instance: &Instance, error: Error) -> Error {
        if error.code != Code::OutOfMemory {
            return error;
        }
        self.device.trim();
        let needed = planned(instance);
        error.context(format_args!(
            "{} needs {needed} bytes, {} of them for intermediates",
            self.plan.name, instance.arena_bytes
        ))
    }

    pub(super) fn check_limit(&self, instance: &Instance) -> Result<()> {
        let needed = planned(instance);
        match self.memory_limit {
            Some(limit) if needed > limit => Err(refusal(&self.plan, instance, needed, limit)),
            Some(_) | None => Ok(()),
        }
    }
}

/// The most bytes that live at once.
fn planned(instance: &Instance) -> usize {
    let (most, mut live) = held(instance, &instance.segments);
    // The caller may write what it is given, so a constant that is a result is copied at the end.
    for output in &instance.outputs {
        let buffer = &instance.buffers[output.buffer];
        if buffer.home == Home::Constant {
            live = live.saturating_add(buffer.bytes);
        }
    }
    instance.arena_bytes.saturating_add(most.max(live))
}

fn refusal(plan: &Plan, instance: &Instance, needed: usize, limit: usize) -> Error {
    let mut buffers: Vec<(usize, String)> = plan
        .buffers
        .iter()
        .filter_map(|(id, buffer)| {
            let placed = instance.buffers.get(id.index())?;
            let what = match placed.home {
                Home::Output(_) => "result",
                Home::Host if plan.outputs.iter().any(|output| output.buffer == id) => "result",
                Home::Arena { .. } | Home::Host => "intermediate",
                Home::Input(_) | Home::Constant | Home::Later | Home::Within { .. } => return None,
            };
            let (first, last) = (buffer.first_step, buffer.last_step);
            let line = format!(
                "{} ({what}, {} bytes, steps {first} to {last})",
                buffer.name, placed.bytes
            );
            Some((placed.bytes, line))
        })
        .collect();
    // The largest first; of equal ones those that stand first in the plan.
    buffers.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let named: Vec<String> = buffers
        .into_iter()
        .take(NAMED)
        .map(|(_, line)| line)
        .collect();
    let message = format!(
        "{} needs {needed} bytes, and the option memory_limit allows {limit}",
        plan.name
    );
    Error::new(Code::MemoryLimit, message).help(format!(
        "raise memory_limit or use smaller shapes; the largest buffers are {}",
        named.join(", ")
    ))
}
