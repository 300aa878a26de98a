//! Running plans for a host: whoever brought the program owns its tensors and runs the operators that we did not compile.
//!
//! ```text
//!   steps     k k k | x | k k | x | k          k: our kernels and copies, x: a call of the host
//!   segments  [   ]   [ ] [  ]  [ ] [ ]        before a segment the host makes the buffers it first touches,
//!                                              after it the host forgets those it touched last
//! ```
//! Segments of kernels are cut further where the host can forget a tensor before it makes the next, if the peak is lower then.
//!
//! A call of the host may give symbols their numbers (a size that depends on data). The steps after it then belong to another
//! instance; nothing in the arena lives across such a step.

use super::branches::LANES;
use super::instance::{Home, Instance, ReadyStep};
use super::{Program, Ready, Watch, Workspace};
use crate::device::Stream;
use crate::profile;
use oxyfuel_base::{Code, Error, Result, ensure};
use oxyfuel_plan::{Plan, Step, SymbolBinding, SymbolSource};
use std::ops::Range;
use std::sync::Arc;

/// A symbol whose number is not known yet, in a list of numbers.
pub const LATER: i64 = i64::MIN;

/// What a plan needs of whoever brought the program. Buffers and steps are named by their number in the plan.
pub trait Host {
    /// Memory for everything between kernels, until the end of the call or until it is asked for again, and where it lies. `None`: the device's own allocator makes it, and
    /// keeps it for the next call.
    fn arena(&mut self, _bytes: usize) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Makes the tensor of a buffer (see [`oxyfuel_plan::Buffer::tensor`]) and tells its address.
    fn allocate(&mut self, buffer: usize, bytes: usize) -> Result<u64>;
    /// Runs an external step: its results are the host's from now on, their addresses are put into `addresses`. The numbers that
    /// the step gives to symbols go into `numbers`, which has one place for each symbol of the plan.
    fn external(&mut self, step: usize, addresses: &mut [u64], numbers: &mut [i64]) -> Result<()>;
    /// Nobody needs the buffer any more.
    fn release(&mut self, buffer: usize);
    /// Runs our kernels, which move about so many bytes: a host that holds a lock lets it go meanwhile.
    fn compute(&mut self, bytes: u64, work: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()>;
    /// Where work that is recorded on `stream` now may go besides, so that steps which need nothing of each other are done at once: all lanes, the first is the stream itself. `None`: it stays in the order
    /// of the plan.
    fn lanes(&mut self, _stream: Stream) -> Option<[Stream; LANES]> {
        None
    }
    /// What the host does from now on, it does on that lane.
    fn on_lane(&mut self, _lane: usize) -> Result<()> {
        Ok(())
    }
    /// Whether it wants to know of each step: they run one by one then, between [`Self::begin`] and [`Self::end`].
    fn watches(&self) -> bool {
        false
    }
    /// A step of the plan is about to run.
    fn begin(&mut self, _step: usize) -> Result<()> {
        Ok(())
    }
    /// The step that began has been asked for, or has failed.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Steps that run without the host, or one call of it.
#[derive(Debug)]
pub(super) struct Segment {
    pub steps: Range<usize>,
    pub external: bool,
    /// Buffers the host makes before.
    pub allocate: Vec<usize>,
    /// Buffers that the host's own call returns.
    pub returned: Vec<usize>,
    /// Buffers the host forgets after.
    pub release: Vec<usize>,
    /// What the kernels move.
    pub bytes: u64,
}

/// Cuts the steps that an instance knows into segments: at the calls of the host, and where it can forget a tensor before it makes another one, if that makes the peak lower.
pub(super) fn segments(plan: &Plan, instance: &Instance, bytes: &[u64]) -> Vec<Segment> {
    let external = |step: &ReadyStep| matches!(step, ReadyStep::External);
    let later = |binding: &SymbolBinding| matches!(binding.source, SymbolSource::Step(_));
    let whole = cut(plan, instance, bytes, &|_| false);
    // A call goes on from one instance to the next by the number of the segment.
    if !(instance.apart || instance.steps.iter().any(external)) || plan.symbols.iter().any(later) {
        return whole;
    }
    let mut last_use = vec![false; instance.steps.len()];
    for (buffer, spec) in instance.buffers.iter().zip(plan.buffers.values()) {
        if let (Home::Host, Some(last)) = (buffer.home, last_use.get_mut(spec.last_step as usize)) {
            *last = true;
        }
    }
    let finer = cut(plan, instance, bytes, &|step| last_use[step]);
    if held(instance, &finer).0 < held(instance, &whole).0 {
        finer
    } else {
        whole
    }
}

/// Every step by itself.
pub(super) fn each_step(plan: &Plan, instance: &Instance) -> Vec<Segment> {
    cut(plan, instance, &vec![0; instance.steps.len()], &|_| true)
}

/// The most bytes that the host holds at once, and those that it holds at the end.
pub(super) fn held(instance: &Instance, segments: &[Segment]) -> (usize, usize) {
    let bytes = |buffer: &usize| instance.buffers[*buffer].bytes;
    let sum = |buffers: &[usize]| buffers.iter().map(bytes).fold(0, usize::saturating_add);
    let (mut live, mut most) = (0usize, 0usize);
    for segment in segments {
        live = live.saturating_add(sum(&segment.allocate));
        live = live.saturating_add(sum(&segment.returned));
        most = most.max(live);
        live = live.saturating_sub(sum(&segment.release));
    }
    (most, live)
}

/// Segments that end with a call of the host, before one, or after a step that `ends` one.
fn cut(
    plan: &Plan,
    instance: &Instance,
    bytes: &[u64],
    ends: &dyn Fn(usize) -> bool,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = vec![];
    for (number, step) in instance.steps.iter().enumerate() {
        let external = matches!(step, ReadyStep::External);
        match segments.last_mut() {
            Some(last) if !external && !last.external && !ends(number - 1) => {
                last.steps.end = number + 1;
                last.bytes += bytes[number];
            }
            _ => segments.push(Segment {
                steps: number..number + 1,
                external,
                allocate: vec![],
                returned: vec![],
                release: vec![],
                bytes: bytes[number],
            }),
        }
    }
    // What lies within a buffer needs its memory before the buffer itself does.
    let mut first_use: Vec<usize> = (plan.buffers.values())
        .map(|spec| spec.first_step as usize)
        .collect();
    for (buffer, spec) in instance.buffers.iter().zip(plan.buffers.values()) {
        if let Home::Within { buffer: owner, .. } = buffer.home {
            first_use[owner] = first_use[owner].min(spec.first_step as usize);
        }
    }
    let at = |step: usize| segments.partition_point(|s| s.steps.end <= step);
    let mut allocate: Vec<(usize, usize)> = vec![];
    let mut returned: Vec<(usize, usize)> = vec![];
    let mut release: Vec<(usize, usize)> = vec![];
    for (id, spec) in plan.buffers.values().enumerate() {
        let (first_segment, last_segment) = (at(first_use[id]), at(spec.last_step as usize));
        match instance.buffers[id].home {
            Home::Host | Home::Output(_) => {
                match segments.get(first_segment) {
                    Some(segment) if segment.external => returned.push((first_segment, id)),
                    Some(_) => allocate.push((first_segment, id)),
                    None => {}
                }
                if instance.buffers[id].home == Home::Host {
                    release.push((last_segment, id));
                }
            }
            Home::Input(_)
            | Home::Arena { .. }
            | Home::Constant
            | Home::Later
            | Home::Within { .. } => {}
        }
    }
    for (segment, id) in allocate {
        segments[segment].allocate.push(id);
    }
    for (segment, id) in returned {
        segments[segment].returned.push(id);
    }
    for (segment, id) in release {
        // A buffer that lives to the end is the caller's.
        if let Some(segment) = segments.get_mut(segment) {
            segment.release.push(id);
        }
    }
    segments
}

/// A step of which the host knows when it begins and ends, if it wants to.
fn watched(
    host: &mut dyn Host,
    step: usize,
    work: &mut dyn FnMut(&mut dyn Host) -> Result<()>,
) -> Result<()> {
    if !host.watches() {
        return work(host);
    }
    host.begin(step)?;
    let worked = work(host);
    let ended = host.end();
    worked.and(ended)
}

impl Program {
    /// The numbers that a caller gives: one place for each symbol, [`LATER`] for those that a step of the plan binds.
    pub fn numbers(&self) -> Vec<i64> {
        vec![LATER; self.plan.symbols.len()]
    }

    /// Runs the plan with the memory and the operators of a host. `inputs` has the address of each input; outputs are in the
    /// host's hands when this returns. `numbers` has one place for each symbol of the plan, in its order; those that a step binds are
    /// filled in.
    ///
    /// # Safety
    /// The inputs are as the plan's [`oxyfuel_plan::InputSpec`]s say for these numbers, on the program's device; nobody writes
    /// them until the device is done. What the host allocates and returns is as large as the plan says.
    pub unsafe fn call_hosted(
        &self,
        numbers: &mut [i64],
        inputs: &[u64],
        host: &mut dyn Host,
        stream: Stream,
    ) -> Result<()> {
        let mut ready = self.ready(numbers)?;
        ensure!(
            inputs.len() == ready.instance.inputs.len(),
            ArityMismatch,
            "{} inputs for a plan with {}",
            inputs.len(),
            ready.instance.inputs.len()
        );
        let mut workspace = self.hosted_workspace(&ready, host, stream)?;
        for (address, buffer) in workspace.addresses.iter_mut().zip(&ready.instance.buffers) {
            if let Home::Input(input) = buffer.home {
                *address = inputs[input];
            }
        }
        if let Some(streams) = host
            .lanes(stream)
            .filter(|_| self.may_branch(&ready, host, stream))
        {
            let instance = &ready.instance;
            // SAFETY: promised by the caller.
            let ran =
                unsafe { self.run_branched(instance, &mut workspace, host, numbers, streams) };
            ready.put(workspace);
            return ran;
        }
        let mut call = match profile::is_on() && !self.device.is_recording(stream) {
            true => Some(profile::Call::begin(&self.device)?),
            false => None,
        };
        if let Some(call) = &mut call {
            call.mark(stream)?;
        }
        let mut segment = 0;
        let ran = loop {
            let Some(now) = ready.instance.segments.get(segment) else {
                break Ok(());
            };
            segment += 1;
            if now.external {
                let step = now.steps.start;
                let called = watched(host, step, &mut |host| {
                    host.external(step, &mut workspace.addresses, numbers)
                });
                let called = called.and_then(|()| self.after_external(step, stream, &mut call));
                if let Err(error) = called {
                    break Err(error);
                }
                if self.binds(step) {
                    // More sizes are known now: go on with the instance that knows them, at the same place.
                    let next = match self.ready(numbers) {
                        Ok(next) => next,
                        Err(error) => break Err(error),
                    };
                    let mut other = match self.hosted_workspace(&next, host, stream) {
                        Ok(other) => other,
                        Err(error) => break Err(error),
                    };
                    for (index, buffer) in next.instance.buffers.iter().enumerate() {
                        if !matches!(buffer.home, Home::Arena { .. } | Home::Constant) {
                            other.addresses[index] = workspace.addresses[index];
                        }
                    }
                    for &buffer in &now.release {
                        host.release(buffer);
                    }
                    ready.put(std::mem::replace(&mut workspace, other));
                    ready = next;
                    continue;
                }
            } else {
                let made = now.allocate.iter().try_for_each(|&buffer| {
                    let bytes = ready.instance.buffers[buffer].bytes;
                    workspace.addresses[buffer] = host.allocate(buffer, bytes)?;
                    Ok(())
                });
                let mut run = |host: &mut dyn Host, steps: Range<usize>| {
                    host.compute(now.bytes, &mut || {
                        let instance = &ready.instance;
                        let nobody = &mut Watch::nobody();
                        // SAFETY: promised by the caller; arena and constants are the program's own.
                        unsafe {
                            self.run_together(instance, steps.clone(), &mut workspace, nobody)
                        }
                    })
                };
                let ran = made.and_then(|()| {
                    if call.is_none() && !host.watches() {
                        return run(host, now.steps.clone());
                    }
                    now.steps.clone().try_for_each(|step| {
                        watched(host, step, &mut |host| run(host, step..step + 1))?;
                        call.iter_mut().try_for_each(|call| call.mark(stream))
                    })
                });
                if let Err(error) = ran {
                    break Err(error);
                }
            }
            for &buffer in &now.release {
                host.release(buffer);
            }
        };
        ready.put(workspace);
        if let (Ok(()), Some(call)) = (&ran, call) {
            call.end(&self.plan);
        }
        ran
    }

    /// Whether steps may be done in another order than the plan's: it is recorded, it is known whole, and nobody looks on.
    fn may_branch(&self, ready: &Ready, host: &dyn Host, stream: Stream) -> bool {
        ready.instance.steps.len() == self.plan.steps.len()
            && !host.watches()
            && self.device.is_recording(stream)
    }

    /// What follows a call of the host: a wait, where each step is waited for, and a mark of who profiles.
    fn after_external(
        &self,
        step: usize,
        stream: Stream,
        call: &mut Option<profile::Call>,
    ) -> Result<()> {
        self.wait(stream)
            .map_err(|error| self.of_the_host(step, error))?;
        call.iter_mut().try_for_each(|call| call.mark(stream))
    }

    /// A fault behind a call of the host, when all of ours before it had ended well.
    fn of_the_host(&self, step: usize, mut error: Error) -> Error {
        if let (Code::KernelFault, Step::External(step)) = (error.code, &self.plan.steps[step]) {
            let line = step.provenance.lines.first();
            let line = line.map_or_else(String::new, |line| format!(" at {line}"));
            error.message = format!("{}, in {}{line}", error.message, step.call.name);
            return error.help(
                "the operator is the host's, not a kernel of ours. The context of the device is lost: start a new process",
            );
        }
        error
    }

    /// A workspace whose arena is the host's, where it wants to own it.
    fn hosted_workspace(
        &self,
        ready: &Arc<Ready>,
        host: &mut dyn Host,
        stream: Stream,
    ) -> Result<Box<Workspace>> {
        let bytes = ready.instance.arena_bytes;
        let lent = if bytes == 0 { None } else { host.arena(bytes)? };
        let Some(arena) = lent else {
            return self.workspace(ready, stream);
        };
        // Nothing of a former call is left in it: whatever memory it worked in was the host's.
        let mut workspace = match ready.take() {
            Some(workspace) => workspace,
            None => {
                let mut made = self.workspace_in(&ready.instance, None, stream);
                made.waits_in = Arc::downgrade(ready);
                made
            }
        };
        workspace.stream = stream;
        for (address, buffer) in workspace.addresses.iter_mut().zip(&ready.instance.buffers) {
            if let Home::Arena { offset } = buffer.home {
                *address = arena + offset as u64;
            }
        }
        Ok(workspace)
    }

    /// Whether a step of the plan gives symbols their numbers.
    fn binds(&self, step: usize) -> bool {
        matches!(&self.plan.steps[step], Step::External(step) if !step.call.binds.is_empty())
    }

    /// The numbers of symbols that are known before any step ran must be there, and all of them within the ranges that the code was made for.
    pub(super) fn check_numbers(&self, values: &[i64]) -> Result<()> {
        for (binding, &value) in self.plan.symbols.iter().zip(values) {
            let (symbol, min, max) = (binding.symbol, binding.min, binding.max);
            if value == LATER {
                ensure!(
                    matches!(binding.source, SymbolSource::Step(_)),
                    UnboundSymbol,
                    "nobody says what {symbol} is"
                );
                continue;
            }
            ensure!(
                min <= value && value <= max,
                ShapeMismatch,
                "{symbol} must lie between {min} and {max}, is {value}"
            );
        }
        Ok(())
    }
}
