//! Where the time of a piece of a program goes, on the host and on its devices.
//!
//! ```text
//!   profile(work) ──▶ each call of a plan       host time; its steps between marks in the order of the device
//!                     each launch of a recording   the same, as one
//!                     each compile                 host time, counted apart
//!                 ──▶ Profile ── table (Display)   wall = device + overhead
//!                             └─ chrome_trace()    rows of the host and of every device
//! ```
//!
//! While work is profiled, calls that would be launched as one run step by step, but for recordings of callables. The time
//! of a step on a GPU is that between two events: of a step that is shorter than its launch, it is the launch that is seen.
//! Only what the calling thread asks for is seen; other threads take part where they say so ([`Profiling::part`]).

mod table;
mod trace;

use crate::device::{Device, DeviceId, Mark, Stream};
use oxyfuel_base::Result;
use oxyfuel_plan::{Kernel, Plan, Step};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use table::Row;

/// What a span of time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// A call of a plan, all its steps included.
    Call,
    /// A kernel of matrix products, or of what is built on them.
    Product,
    /// A kernel that combines elements of a row.
    Reduction,
    /// Any other kernel.
    Pointwise,
    /// Bytes that are moved.
    Copy,
    /// An operator of a host framework.
    External,
    /// Work that was recorded and is launched as one.
    Replay,
    /// Making code.
    Compile,
}

impl Category {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Product => "product",
            Self::Reduction => "reduction",
            Self::Pointwise => "pointwise",
            Self::Copy => "copy",
            Self::External => "external",
            Self::Replay => "replay",
            Self::Compile => "compile",
        }
    }

    /// Whether it is work of a device, and not a frame around such.
    pub fn is_work(self) -> bool {
        match self {
            Self::Product
            | Self::Reduction
            | Self::Pointwise
            | Self::Copy
            | Self::External
            | Self::Replay => true,
            Self::Call | Self::Compile => false,
        }
    }

    fn of(kernel: &Kernel) -> Self {
        /// Operators that combine elements.
        const COMBINING: &[&str] = &[
            "sum",
            "prod",
            "mean",
            "var",
            "amax",
            "amin",
            "max",
            "min",
            "argmax",
            "argmin",
            "any",
            "all",
            "softmax",
            "log_softmax",
            "layer_norm",
            "cumsum",
            "cumprod",
            "scan",
            "sort",
            "argsort",
        ];
        if kernel.cost.products.as_const() != Some(0) {
            return Self::Product;
        }
        let combines = |op: &String| COMBINING.contains(&op.as_str());
        match kernel.provenance.ops.iter().any(combines) {
            true => Self::Reduction,
            false => Self::Pointwise,
        }
    }
}

/// A span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of a kernel or of a plan.
    pub name: String,
    /// What it was spent on.
    pub category: Category,
    /// Source operators of a kernel, in order.
    pub ops: Vec<String>,
    /// Source lines of a kernel.
    pub lines: Vec<String>,
    /// The span that it is a part of, by its number.
    pub parent: Option<usize>,
    /// When the host began with it, from the start of the profile.
    pub begin: Duration,
    /// How long the host took: a launch that returns early is short.
    pub host: Duration,
    /// When and how long a device worked on it.
    pub device: Option<DeviceTime>,
}

/// Time on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// Which device.
    pub device: DeviceId,
    /// From the start of the profile.
    pub begin: Duration,
    /// How long.
    pub time: Duration,
}

/// Where time went; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// From the start until every device was done, compiles included.
    pub total: Duration,
    /// In the order in which the host began with them; a span comes after the one that it is a part of.
    pub spans: Vec<Span>,
}

impl Profile {
    fn sum(&self, of: impl Fn(&Span) -> Option<Duration>) -> Duration {
        self.spans.iter().filter_map(of).sum()
    }

    /// Time that was spent making code.
    pub fn compile(&self) -> Duration {
        self.sum(|span| (span.category == Category::Compile).then_some(span.host))
    }

    /// From the start until every device was done, without compiles.
    pub fn wall(&self) -> Duration {
        self.total.saturating_sub(self.compile())
    }

    /// Time that devices worked.
    pub fn device(&self) -> Duration {
        self.sum(|span| {
            let device = span.device.filter(|_| span.category.is_work());
            device.map(|device| device.time)
        })
    }

    /// What is left of the wall time: the host was at work and no device was.
    pub fn overhead(&self) -> Duration {
        self.wall().saturating_sub(self.device())
    }
}

/// What is written down while work is profiled.
#[derive(Debug)]
struct Log {
    start: Instant,
    /// Each device, the moment of its first mark, and that mark.
    devices: Vec<(Arc<dyn Device>, Duration, Mark)>,
    spans: Vec<Span>,
    /// Spans whose device time is that between two marks of a device.
    marked: Vec<Marked>,
}

#[derive(Debug)]
struct Marked {
    span: usize,
    device: usize,
    /// Marks are shared by neighbours.
    from: Arc<Mark>,
    to: Arc<Mark>,
}

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static LOG: RefCell<Option<Profiling>> = const { RefCell::new(None) };
}

/// A profile that is under way, for work that is no single closure and for threads that share one.
#[derive(Clone, Debug)]
pub struct Profiling(Arc<Mutex<Log>>);

/// Work of a thread that is a part of a profile, until this is dropped.
struct Part {
    before: (bool, Option<Profiling>),
}

impl Drop for Part {
    fn drop(&mut self) {
        let (on, log) = std::mem::take(&mut self.before);
        ON.set(on);
        LOG.set(log);
    }
}

impl Profiling {
    /// From now on.
    pub fn start() -> Self {
        Self(Arc::new(Mutex::new(Log {
            start: Instant::now(),
            devices: Vec::new(),
            spans: Vec::new(),
            marked: Vec::new(),
        })))
    }

    fn with<R>(&self, change: impl FnOnce(&mut Log) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does work of this thread as a part of the profile.
    pub fn part<R>(&self, work: impl FnOnce() -> R) -> R {
        let _part = Part {
            before: (ON.replace(true), LOG.replace(Some(self.clone()))),
        };
        work()
    }

    /// Code was made since then; the time counts apart.
    pub fn compiled(&self, name: &str, since: Instant) {
        self.with(|log| log.compiled(name, since));
    }

    /// Until now: waits for the devices that were met.
    pub fn finish(&self) -> Result<Profile> {
        self.with(Log::finish)
    }
}

/// Does some work and says where its time went. Inside of another profile the work is a part of that one, and this one is empty.
pub fn profile<R>(work: impl FnOnce() -> R) -> Result<(R, Profile)> {
    if ON.get() {
        return Ok((work(), Profile::default()));
    }
    let profiling = Profiling::start();
    let result = profiling.part(work);
    Ok((result, profiling.finish()?))
}

impl Log {
    fn compiled(&mut self, name: &str, since: Instant) {
        let begin = since.saturating_duration_since(self.start);
        let (name, host) = (name.to_owned(), since.elapsed());
        self.spans
            .push(Span::plain(name, Category::Compile, begin, host));
    }

    fn finish(&mut self) -> Result<Profile> {
        for (device, ..) in &self.devices {
            device.synchronize()?;
        }
        let total = self.start.elapsed();
        for marked in std::mem::take(&mut self.marked) {
            let (device, start, first) = &self.devices[marked.device];
            self.spans[marked.span].device = Some(DeviceTime {
                device: device.id(),
                begin: *start + device.elapsed(first, &marked.from)?,
                time: device.elapsed(&marked.from, &marked.to)?,
            });
        }
        Ok(Profile {
            total,
            spans: std::mem::take(&mut self.spans),
        })
    }

    /// The number of a device, which is waited for when it is first met: its clock and the host's are compared then.
    fn device(&mut self, device: &Arc<dyn Device>) -> Result<usize> {
        let known = self
            .devices
            .iter()
            .position(|(known, ..)| known.id() == device.id());
        if let Some(known) = known {
            return Ok(known);
        }
        device.synchronize()?;
        let mark = device.mark(Stream::default())?;
        self.devices
            .push((device.clone(), self.start.elapsed(), mark));
        Ok(self.devices.len() - 1)
    }
}

/// Whether this thread's work is profiled.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.get()
}

fn with<R>(change: impl FnOnce(&mut Log) -> R) -> Option<R> {
    if !ON.get() {
        return None;
    }
    LOG.with_borrow(|log| log.as_ref().map(|log| log.with(change)))
}

/// Does work that makes code; its time counts apart.
pub fn compiling<R>(name: &str, work: impl FnOnce() -> R) -> R {
    if !ON.get() {
        return work();
    }
    let since = Instant::now();
    // A compile within a compile is a part of it.
    ON.set(false);
    let result = work();
    ON.set(true);
    with(|log| log.compiled(name, since));
    result
}

impl Span {
    fn plain(name: String, category: Category, begin: Duration, host: Duration) -> Self {
        Self {
            name,
            category,
            ops: Vec::new(),
            lines: Vec::new(),
            parent: None,
            begin,
            host,
            device: None,
        }
    }
}

/// A call whose steps are marked.
pub(crate) struct Call {
    device: Arc<dyn Device>,
    begin: Instant,
    /// Before the first step and after each: the host's moment and the device's.
    moments: Vec<(Instant, Arc<Mark>)>,
}

impl Call {
    pub fn begin(device: &Arc<dyn Device>) -> Result<Self> {
        with(|log| log.device(device)).transpose()?;
        Ok(Self {
            device: device.clone(),
            begin: Instant::now(),
            moments: Vec::new(),
        })
    }

    pub fn mark(&mut self, stream: Stream) -> Result<()> {
        let mark = Arc::new(self.device.mark(stream)?);
        self.moments.push((Instant::now(), mark));
        Ok(())
    }

    /// The call is done as far as the host is concerned.
    pub fn end(self, plan: &Plan) {
        self.log(&plan.name, Category::Call, |step| match &plan.steps[step] {
            Step::Launch { kernel, .. } => {
                let kernel = &plan.kernels[*kernel];
                let mut span = Span::plain(
                    kernel.name.clone(),
                    Category::of(kernel),
                    Duration::ZERO,
                    Duration::ZERO,
                );
                span.ops.clone_from(&kernel.provenance.ops);
                span.lines.clone_from(&kernel.provenance.lines);
                span
            }
            Step::Copy { .. } => Span::plain(
                "copy".into(),
                Category::Copy,
                Duration::ZERO,
                Duration::ZERO,
            ),
            Step::External(step) => Span::plain(
                step.call.name.clone(),
                Category::External,
                Duration::ZERO,
                Duration::ZERO,
            ),
        });
    }

    /// Work that was launched as one is.
    pub fn end_replay(self, name: &str) {
        self.log(name, Category::Call, |_| {
            Span::plain(
                name.to_owned(),
                Category::Replay,
                Duration::ZERO,
                Duration::ZERO,
            )
        });
    }

    fn log(self, name: &str, category: Category, step: impl Fn(usize) -> Span) {
        let end = Instant::now();
        with(|log| {
            let since = |moment: Instant| moment.saturating_duration_since(log.start);
            let parent = log.spans.len();
            let begin = since(self.begin);
            let known = log
                .devices
                .iter()
                .position(|(device, ..)| device.id() == self.device.id());
            log.spans.push(Span::plain(
                name.to_owned(),
                category,
                begin,
                since(end) - begin,
            ));
            let Some(device) = known else { return };
            for (number, pair) in self.moments.windows(2).enumerate() {
                let begin = since(pair[0].0);
                log.marked.push(Marked {
                    span: log.spans.len(),
                    device,
                    from: pair[0].1.clone(),
                    to: pair[1].1.clone(),
                });
                log.spans.push(Span {
                    parent: Some(parent),
                    begin,
                    host: since(pair[1].0) - begin,
                    ..step(number)
                });
            }
            if let [(_, from), .., (_, to)] = self.moments.as_slice() {
                log.marked.push(Marked {
                    span: parent,
                    device,
                    from: from.clone(),
                    to: to.clone(),
                });
            }
        });
    }
}
