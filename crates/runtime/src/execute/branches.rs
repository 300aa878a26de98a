//! Steps of recorded work that need not wait for each other.
//!
//! ```text
//!   the order of a plan     norm  q  k  v  turn q  turn k  attention
//!   lane 0                  norm ── q ── turn q ──────── attention       a step goes behind the step that it needs, where that is the last of its lane,
//!   lane 1                     └─── k ── turn k ────────┘                and to another lane otherwise; what it needs of other lanes it waits for
//!   lane 2                     └─── v ──────────────────┘
//! ```
//!
//! A step needs the last writer of what it reads, and the readers and the writer of what it writes, by bytes of the memory that the plan gave out in its own order: memory that is used twice is
//! an order too. A call of the host that has effects, or of which nothing is known, is a wall: everything before it is before, and everything behind it is behind.
//!
//! Memory of the host goes back to the lane that asked for it, and only when that lane waits for all its uses: the host may give it to the next step of the lane at once.

use super::hosted::{Host, each_step, held};
use super::instance::{Home, Instance, ReadyStep};
use super::{Program, Watch, Workspace};
use crate::device::{Device, Mark, Stream};
use oxyfuel_base::{Id, Result};
use oxyfuel_plan::{ArgRef, Plan, Step};
use std::ops::Range;

/// The most steps that are under way at once. Each lane on which the host computes a product may cost it a work space of its own (32 MiB for torch's library on an H200).
pub const LANES: usize = 3;

/// Memory that nobody needs and that its lane cannot have back yet: above so many bytes, and above such a part of what a call holds at most, all lanes wait for each other.
const KEPT_BYTES: usize = 32 << 20;
const KEPT_PART: usize = 4;

/// Where a step goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub lane: usize,
    /// Steps of other lanes that it waits for.
    pub after: Vec<usize>,
}

/// Memory that steps share: a place that others are not in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Arena,
    Buffer(usize),
}

/// What was done last with some bytes.
#[derive(Debug)]
struct Touched {
    space: Space,
    bytes: Range<usize>,
    writer: Option<usize>,
    readers: Vec<usize>,
}

/// The steps that each step needs, all of them before it.
pub(super) fn needs(plan: &Plan, instance: &Instance) -> Vec<Vec<usize>> {
    let mut memory: Vec<Touched> = vec![];
    let mut wall = None;
    let mut all = vec![];
    for (number, step) in plan.steps.iter().enumerate().take(instance.steps.len()) {
        let mut needed: Vec<usize> = wall.into_iter().collect();
        if is_wall(step) {
            needed.extend(wall.map_or(0, |wall| wall + 1)..number);
            wall = Some(number);
        }
        for (buffer, written) in touches(plan, step) {
            let Some((space, bytes)) = place_of(instance, buffer) else {
                continue;
            };
            touch(&mut memory, space, bytes, written, number, &mut needed);
        }
        needed.sort_unstable();
        needed.dedup();
        needed.retain(|&other| other != number);
        all.push(needed);
    }
    all
}

/// Effects have an order that memory does not tell; nor is it known of operators that are not torch's own what they do.
fn is_wall(step: &Step) -> bool {
    match step {
        Step::External(step) => {
            let call = &step.call;
            call.ordered || !call.binds.is_empty() || !call.name.starts_with("aten.")
        }
        Step::Launch { .. } | Step::Copy { .. } => false,
    }
}

/// The buffers of a step, and whether it writes each.
fn touches(plan: &Plan, step: &Step) -> Vec<(usize, bool)> {
    match step {
        Step::Launch { kernel, args } => {
            let written = &plan.kernels[*kernel].written;
            let buffers = args.iter().enumerate().filter_map(|(at, arg)| match arg {
                ArgRef::Buffer { buffer, .. } => {
                    Some((buffer.index(), written.get(at) != Some(&false)))
                }
                ArgRef::Index(_) | ArgRef::Literal { .. } | ArgRef::TensorMap => None,
            });
            buffers.collect()
        }
        Step::Copy { src, dst, .. } => vec![(src.index(), false), (dst.index(), true)],
        Step::External(step) => {
            let read = step
                .operands
                .iter()
                .map(|operand| (operand.buffer.index(), false));
            let made = step.results.iter().map(|buffer| (buffer.index(), true));
            read.chain(made).collect()
        }
    }
}

/// The bytes of a buffer; `None` where nobody writes.
fn place_of(instance: &Instance, buffer: usize) -> Option<(Space, Range<usize>)> {
    let bytes = instance.buffers[buffer].bytes;
    match instance.buffers[buffer].home {
        Home::Arena { offset } => Some((Space::Arena, offset..offset + bytes)),
        Home::Within { buffer, offset } => Some((Space::Buffer(buffer), offset..offset + bytes)),
        // An object of the host's has no bytes, and an order all the same.
        Home::Input(_) | Home::Output(_) | Home::Host | Home::Later => {
            Some((Space::Buffer(buffer), 0..bytes.max(1)))
        }
        Home::Constant => None,
    }
}

fn touch(
    memory: &mut Vec<Touched>,
    space: Space,
    bytes: Range<usize>,
    written: bool,
    step: usize,
    needed: &mut Vec<usize>,
) {
    let mut known = false;
    for one in memory.iter_mut() {
        let shared =
            one.space == space && one.bytes.start < bytes.end && bytes.start < one.bytes.end;
        if !shared {
            continue;
        }
        needed.extend(one.writer);
        match written {
            // Whoever writes the rest of the bytes later has to wait for the same readers.
            true => needed.extend(&one.readers),
            false => one.readers.push(step),
        }
        known |= one.bytes == bytes;
    }
    if written {
        // What lies within the bytes has a new writer; what reaches beyond them keeps its writer and its readers.
        let inside = |one: &Touched| {
            one.space == space && bytes.start <= one.bytes.start && one.bytes.end <= bytes.end
        };
        memory.retain(|one| !inside(one));
    }
    if written || !known {
        memory.push(Touched {
            space,
            bytes,
            writer: written.then_some(step),
            readers: if written { vec![] } else { vec![step] },
        });
    }
}

/// Steps on lanes.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub places: Vec<Place>,
    /// For each step and lane, how many steps of the lane are done when the step is: itself and what it waited for.
    done: Vec<[usize; LANES]>,
    /// The number of each step on its lane.
    numbers: Vec<usize>,
    /// The last step of each lane.
    tails: [Option<usize>; LANES],
}

impl Order {
    /// Lanes for steps with these needs.
    pub fn new(needs: &[Vec<usize>]) -> Self {
        let mut order = Self::default();
        for needed in needs {
            order.put(needed);
        }
        order
    }

    fn is_done(&self, step: usize, done: &[usize; LANES]) -> bool {
        done[self.places[step].lane] > self.numbers[step]
    }

    fn put(&mut self, needed: &[usize]) {
        let mut before = [0; LANES];
        for &step in needed {
            later(&mut before, &self.done[step]);
        }
        let lane = self.choose(needed, &before);
        let tail = self.tails[lane];
        let mut done = tail.map_or([0; LANES], |tail| self.done[tail]);
        let mut after = vec![];
        // A later step has waited for more.
        for &step in needed.iter().rev() {
            if !self.is_done(step, &done) {
                after.push(step);
                later(&mut done, &self.done[step]);
            }
        }
        let number = tail.map_or(0, |tail| self.numbers[tail] + 1);
        done[lane] = number + 1;
        self.tails[lane] = Some(self.places.len());
        self.places.push(Place { lane, after });
        self.numbers.push(number);
        self.done.push(done);
    }

    /// The lane whose last step is needed; one whose last step is done by then; an empty one; or the one whose last step is oldest.
    fn choose(&self, needed: &[usize], before: &[usize; LANES]) -> usize {
        let lanes = || self.tails.iter().enumerate();
        let behind = lanes().find(|(_, tail)| tail.is_some_and(|tail| needed.contains(&tail)));
        let idle = || lanes().find(|(_, tail)| tail.is_some_and(|tail| self.is_done(tail, before)));
        let empty = || lanes().find(|(_, tail)| tail.is_none());
        let oldest = || lanes().min_by_key(|(_, tail)| **tail);
        let found = behind.or_else(idle).or_else(empty).or_else(oldest);
        found.map_or(0, |(lane, _)| lane)
    }
}

/// What is done when both are.
fn later(done: &mut [usize; LANES], other: &[usize; LANES]) {
    for (mine, theirs) in done.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

/// A buffer of the host's that no step to come needs.
#[derive(Debug)]
struct Leaving {
    buffer: usize,
    /// The lane that asked for its memory.
    lane: usize,
    uses: Vec<usize>,
}

/// Work on several lanes; the first is the call's own stream.
struct Lanes<'a> {
    device: &'a dyn Device,
    streams: [Stream; LANES],
    order: &'a Order,
    /// Where all lanes begin. Those that were not used yet have not waited for it.
    beginning: Mark,
    begun: [bool; LANES],
    /// Moments behind steps that others wait for.
    marks: Vec<Option<Mark>>,
    /// What the next step of each lane is behind, as [`Order::done`].
    done: [[usize; LANES]; LANES],
    leaving: Vec<Leaving>,
}

impl Lanes<'_> {
    /// The lane's next step is behind the mark.
    fn wait(&mut self, lane: usize, mark: &Mark, done: &[usize; LANES]) -> Result<()> {
        self.device.wait_for(mark, self.streams[lane])?;
        later(&mut self.done[lane], done);
        Ok(())
    }

    /// Everything that the step waits for.
    fn begin(&mut self, step: usize) -> Result<()> {
        let order = self.order;
        let Place { lane, after } = &order.places[step];
        if !std::mem::replace(&mut self.begun[*lane], true) {
            self.device.wait_for(&self.beginning, self.streams[*lane])?;
        }
        for &before in after {
            if let Some(mark) = self.marks[before].take() {
                self.wait(*lane, &mark, &order.done[before])?;
                self.marks[before] = Some(mark);
            }
        }
        Ok(())
    }

    /// The step was asked for; `awaited` by steps of other lanes.
    fn end(&mut self, step: usize, awaited: bool) -> Result<()> {
        let lane = self.order.places[step].lane;
        later(&mut self.done[lane], &self.order.done[step]);
        if awaited {
            self.marks[step] = Some(self.device.mark(self.streams[lane])?);
        }
        Ok(())
    }

    /// The first lane waits for all others.
    fn join(&mut self) -> Result<()> {
        for lane in 1..LANES {
            if self.begun[lane] && self.done[0][lane] < self.done[lane][lane] {
                let (mark, done) = (self.device.mark(self.streams[lane])?, self.done[lane]);
                self.wait(0, &mark, &done)?;
            }
        }
        Ok(())
    }

    /// All lanes wait for each other.
    fn meet(&mut self) -> Result<()> {
        self.join()?;
        let (mark, done) = (self.device.mark(self.streams[0])?, self.done[0]);
        for lane in 1..LANES {
            if self.begun[lane] {
                self.wait(lane, &mark, &done)?;
            }
        }
        Ok(())
    }

    /// Lets go of buffers whose lane is behind all their uses.
    fn release(&mut self, host: &mut dyn Host) {
        let Self {
            order,
            done,
            leaving,
            ..
        } = self;
        leaving.retain(|leaving| {
            let done = &done[leaving.lane];
            let over = leaving.uses.iter().all(|&step| order.is_done(step, done));
            if over {
                host.release(leaving.buffer);
            }
            !over
        });
    }
}

impl Program {
    /// Runs all steps on lanes.
    ///
    /// # Safety
    /// As [`Program::call_hosted`].
    pub(super) unsafe fn run_branched(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
        host: &mut dyn Host,
        numbers: &mut [i64],
        streams: [Stream; LANES],
    ) -> Result<()> {
        let order = Order::new(&needs(&self.plan, instance));
        let mut lanes = Lanes {
            device: &*self.device,
            beginning: self.device.mark(streams[0])?,
            begun: streams.map(|stream| stream == streams[0]),
            marks: order.places.iter().map(|_| None).collect(),
            done: [[0; LANES]; LANES],
            leaving: vec![],
            order: &order,
            streams,
        };
        // SAFETY: promised by the caller.
        let ran = unsafe { self.run_lanes(instance, workspace, host, numbers, &mut lanes) };
        // What went wrong says more than what follows from it.
        let joined = lanes.join();
        let back = host.on_lane(0);
        workspace.stream = streams[0];
        ran.and(joined).and(back)?;
        // The next call's lanes begin behind the first lane, which is behind everything.
        for leaving in lanes.leaving {
            host.release(leaving.buffer);
        }
        Ok(())
    }

    /// # Safety
    /// As [`Program::call_hosted`].
    unsafe fn run_lanes(
        &self,
        instance: &Instance,
        workspace: &mut Workspace,
        host: &mut dyn Host,
        numbers: &mut [i64],
        lanes: &mut Lanes<'_>,
    ) -> Result<()> {
        let order = lanes.order;
        let mut awaited = vec![false; order.places.len()];
        for &step in order.places.iter().flat_map(|place| &place.after) {
            awaited[step] = true;
        }
        // By buffer: the lane that asked for it, and the steps that touch it.
        let mut known: Vec<(usize, Vec<usize>)> = vec![(0, vec![]); instance.buffers.len()];
        let bytes = |buffer: usize| instance.buffers[buffer].bytes;
        let steps = each_step(&self.plan, instance);
        let most = KEPT_BYTES.max(held(instance, &steps).0 / KEPT_PART);
        for (number, step) in steps.iter().enumerate() {
            let lane = order.places[number].lane;
            host.on_lane(lane)?;
            workspace.stream = lanes.streams[lane];
            lanes.begin(number)?;
            lanes.release(host);
            for &buffer in &step.allocate {
                workspace.addresses[buffer] = host.allocate(buffer, bytes(buffer))?;
            }
            match &instance.steps[number] {
                ReadyStep::External => {
                    host.external(number, &mut workspace.addresses, numbers)?;
                }
                ReadyStep::Launch { .. } | ReadyStep::Copy { .. } => {
                    host.compute(step.bytes, &mut || {
                        let nobody = &mut Watch::nobody();
                        // SAFETY: promised by the caller; arena and constants are the program's own.
                        unsafe { self.run_steps(instance, number..number + 1, workspace, nobody) }
                    })?;
                }
            }
            lanes.end(number, awaited[number])?;
            for &buffer in step.allocate.iter().chain(&step.returned) {
                known[buffer].0 = lane;
            }
            for (buffer, _) in touches(&self.plan, &self.plan.steps[number]) {
                if let Some((Space::Buffer(owner), _)) = place_of(instance, buffer) {
                    known[owner].1.push(number);
                }
            }
            for &buffer in &step.release {
                let (lane, uses) = std::mem::take(&mut known[buffer]);
                lanes.leaving.push(Leaving { buffer, lane, uses });
            }
            lanes.release(host);
            let kept = lanes.leaving.iter().map(|leaving| bytes(leaving.buffer));
            if kept.sum::<usize>() > most {
                lanes.meet()?;
                lanes.release(host);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
