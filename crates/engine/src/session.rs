//! The compiler with a memory: a target, a device, and what was compiled before.
//!
//! A graph is looked for in this process, then on disk, then compiled. A cache that cannot be used costs a compile and a note, never the result.
//!
//! A compiler knows what it made as long as somebody holds it: it keeps no executable alive, and so neither its code, nor its constants, nor its arena.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use oxyfuel_base::{Code, Digest, Error, Result, digest_of};
use oxyfuel_graph::Graph;
use oxyfuel_runtime::cuda::CudaDevice;
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::null::NullDevice;
use oxyfuel_runtime::profile;

use crate::cache::{Cache, Found, Label, Miss, Missed, lines, plan_key};
use crate::executable::Executable;
use crate::figures::Figures;
use crate::options::Options;
use crate::pipeline::{self, Unmade};
use crate::record::{Origin, Record, Stage};
use crate::target::Target;

/// Compiles graphs for one target and device; may be shared between threads.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    options: Options,
    device: Arc<dyn Device>,
    cache: Option<Cache>,
    /// Why there is no cache where one was asked for; every record says it.
    no_cache: Option<String>,
    known: Mutex<HashMap<Digest, Weak<Executable>>>,
    stats: Mutex<Stats>,
    traces: AtomicU64,
    figures: OnceLock<Option<Figures>>,
}

/// Where executables came from so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Found in this process.
    pub memory_hits: u64,
    /// Found on disk.
    pub disk_hits: u64,
    /// Compiled, because nothing was found.
    pub compiles: u64,
    /// Why the disk cache could not help, in the order it happened.
    pub cache_problems: Vec<String>,
}

/// More problems than this are the same ones again.
const KEEP_PROBLEMS: usize = 64;

impl Compiler {
    /// For the target that the options name, or the best of this machine, on its device.
    pub fn new(options: Options) -> Result<Self> {
        let target = Target::host(&options)?;
        let device = target.device(&options)?;
        Ok(Self::on(target, options, device))
    }

    /// For the GPU of that number: the target that the options name, or its best.
    pub fn on_gpu(options: Options, index: u32) -> Result<Self> {
        let device = CudaDevice::new(index, None)?;
        let target = Target::of_gpu(device.info(), &options.target)?;
        Ok(Self::on(target, options, device))
    }

    /// For the target that the options name, on a device that computes nothing: what would run on a machine that is not here.
    pub fn on_nothing(options: Options) -> Result<Self> {
        let target = Target::by_name(&options.target)?;
        Ok(Self::on(target, options, NullDevice::new(0)))
    }

    /// For this target, on this device.
    pub fn on(target: Target, options: Options, device: Arc<dyn Device>) -> Self {
        let (cache, no_cache) = match &options.cache_dir {
            None => (None, None),
            Some(dir) => match Cache::open(dir, options.cache_limit) {
                Ok(cache) => (Some(cache), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        // What a driver makes of our code when it is loaded is kept beside the plans.
        let device = match &cache {
            Some(cache) => device.storing(Arc::new(cache.clone())).unwrap_or(device),
            None => device,
        };
        let stats = Stats {
            cache_problems: no_cache.iter().cloned().collect(),
            ..Stats::default()
        };
        Self {
            target,
            options,
            device,
            cache,
            no_cache,
            known: Mutex::default(),
            stats: Mutex::new(stats),
            traces: AtomicU64::new(0),
            figures: OnceLock::new(),
        }
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    pub fn stats(&self) -> Stats {
        lock(&self.stats).clone()
    }

    /// What the machine can do at best, measured when it is first asked for; `None` where that cannot be measured.
    pub fn figures(&self) -> Option<&Figures> {
        let measure = || {
            let measured = Figures::measure_on(&self.target, &self.options, &self.device);
            measured.ok().flatten()
        };
        self.figures.get_or_init(measure).as_ref()
    }

    /// An executable for the graph.
    pub fn compile(&self, graph: &Graph) -> Result<Arc<Executable>> {
        self.find_or_compile(graph)
            .map(|(executable, _)| executable)
    }

    /// The graph with no more said of where inputs begin than the target's accesses want: a host knows where a tensor lies now, and a call with one that lies otherwise has it copied.
    pub fn with_wanted_alignment(&self, mut graph: Graph) -> Graph {
        for input in graph.inputs.clone() {
            let align = &mut graph.values[input].align;
            *align = (*align).min(self.target.desc.aligned_bytes());
        }
        graph
    }

    /// An executable for the graph; or the operators of a host that it comes from and for which the target has no code, so that the host runs them itself.
    pub fn compile_or_name(&self, graph: &Graph) -> Result<Result<Arc<Executable>, Unmade>> {
        match self.compile(graph) {
            Ok(executable) => Ok(Ok(executable)),
            Err(error) if error.code == Code::NoLowering => {
                let unmade = pipeline::unmade(graph, &self.target, &self.options)?;
                match unmade.sources.is_empty() {
                    true => Err(error),
                    false => Ok(Err(unmade)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// An executable for the graph, and where it came from.
    pub fn find_or_compile(&self, graph: &Graph) -> Result<(Arc<Executable>, Origin)> {
        // What is shown of an executable names the lines of its own graph.
        let exact = digest_of(graph)?;
        if let Some(known) = lock(&self.known).get(&exact).and_then(Weak::upgrade) {
            lock(&self.stats).memory_hits += 1;
            return Ok((known, Origin::Memory));
        }
        let made = profile::compiling(&graph.name, || self.make(graph));
        let executable = Arc::new(made?);
        let origin = executable.record().origin;
        let mut known = lock(&self.known);
        // Two threads may compile the same graph at once; both results are good and the first one stays.
        if let Some(first) = known.get(&exact).and_then(Weak::upgrade) {
            return Ok((first, origin));
        }
        known.retain(|_, executable| executable.strong_count() > 0);
        known.insert(exact, Arc::downgrade(&executable));
        Ok((executable, origin))
    }

    /// Why the plan of an executable was not in the disk cache; `None` where it was, or where there is no cache. Reads every label: for people.
    pub fn why_missed(&self, record: &Record) -> Option<Missed> {
        let cache = self.cache.as_ref()?;
        cache.why_missed(record.miss.as_ref()?).ok()
    }

    fn make(&self, graph: &Graph) -> Result<Executable> {
        let mut notes = Vec::new();
        let mut miss = None;
        let key = match &self.cache {
            Some(_) => Some(plan_key(graph, &self.target.desc, &self.options)?),
            None => None,
        };
        // A trace wants every stage, which only a compile has.
        if self.options.trace_dir.is_none()
            && let (Some(cache), Some(key)) = (&self.cache, &key)
        {
            match cache.get(key) {
                Found::Entry(mut plan) => {
                    lines::put_back(&mut plan, graph);
                    match Executable::load(plan, Record::from_disk(), self.device.clone()) {
                        Ok(executable) => {
                            lock(&self.stats).disk_hits += 1;
                            return self.set_up(executable);
                        }
                        Err(error) => notes.push(error.to_string()),
                    }
                }
                Found::Nothing => miss = Some(Miss::of(self.label(graph)?)),
                Found::Unusable(error) => notes.push(error.to_string()),
            }
        }
        let mut compiled = pipeline::compile(graph, &self.target, &self.options, false)?;
        lock(&self.stats).compiles += 1;
        if let (Some(cache), Some(key)) = (&self.cache, &key) {
            let mut plan = compiled.plan.clone();
            lines::take_out(&mut plan, graph);
            let put = self.label(graph).and_then(|l| cache.put(key, &l, &plan));
            notes.extend(put.err().map(|error| error.to_string()));
        }
        if let Some(dir) = &self.options.trace_dir
            && let Err(error) = self.trace(dir, graph, &compiled.record)
        {
            notes.push(error.to_string());
        }
        if !notes.is_empty() {
            let mut stats = lock(&self.stats);
            stats.cache_problems.extend(notes.iter().cloned());
            stats.cache_problems.truncate(KEEP_PROBLEMS);
        }
        notes.extend(self.no_cache.clone());
        compiled.record.notes = notes;
        compiled.record.miss = miss;
        self.set_up(Executable::load(
            compiled.plan,
            compiled.record,
            self.device.clone(),
        )?)
    }

    /// What the options say about running it.
    fn set_up(&self, executable: Executable) -> Result<Executable> {
        executable
            .limited(self.options.memory_limit)?
            .waiting(self.options.launch_blocking)?
            .submitting(self.options.submits())?
            .replaying(self.options.replays())
    }

    fn label(&self, graph: &Graph) -> Result<Label> {
        Label::new(graph, &self.target.desc, &self.options)
    }

    /// Writes every stage as a text file.
    fn trace(&self, dir: &Path, graph: &Graph, record: &Record) -> Result<PathBuf> {
        let number = self.traces.fetch_add(1, Ordering::Relaxed);
        let name: String = graph
            .name
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '_' })
            .collect();
        let dir = dir.join(format!("{}-{number:03}-{name}", std::process::id()));
        let bad = |error: std::io::Error| {
            Error::new(Code::FileUnreadable, format!("{}: {error}", dir.display()))
                .help("name a directory for traces that this user can write and that has room")
        };
        std::fs::create_dir_all(&dir).map_err(bad)?;
        for (number, stage) in Stage::ALL.into_iter().enumerate() {
            if let Some(text) = record.text(stage) {
                std::fs::write(dir.join(format!("{number}-{}.txt", stage.name())), text)
                    .map_err(bad)?;
            }
        }
        Ok(dir)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
