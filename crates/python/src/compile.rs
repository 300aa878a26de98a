//! From text to a compiled graph.
//!
//! A kernel that has no machine code would run in the tile interpreter, thousands of times slower than the host's own operators: the nodes that it came from
//! are given to the host, and the graph is compiled again.

use crate::place::Place;
use oxyfuel_base::{Code, DType, Error, Result, err};
use oxyfuel_capture::{
    Description, ImportOptions, Imported, InputKind, OutputKind, Products, Random, Signature,
};
use oxyfuel_engine::cache::BUILD;
use oxyfuel_engine::{
    Compiler, CudaGraphs, Executable, Frozen, Options, Record, Windows, cpu_device,
};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Graph, Node, Op};
use oxyfuel_plan::{Artefact, Plan};
use oxyfuel_runtime::cuda::CudaDevice;
use oxyfuel_runtime::device::{Device, MemorySummary};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// More rounds than this, and something is wrong with the provenance of kernels.
const ROUNDS: usize = 8;

/// What torch's operators run in: its OpenMP threads run our kernels too.
const TORCH: &str = "libtorch_cpu.so";

/// The part of the options that the Rust side reads.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    mode: String,
    numerics: String,
    #[serde(default)]
    deterministic: bool,
    /// Random numbers are those that the host's operators draw.
    #[serde(default)]
    fallback_random: bool,
    target: String,
    /// Where the graph's tensors are: `cpu`, `cuda:0`, or `null`, which computes nothing.
    #[serde(default = "cpu")]
    device: String,
    threads: usize,
    /// Calls use as many threads as torch does at that time; `threads` is what that was when the graph was compiled.
    #[serde(default)]
    follow_threads: bool,
    verify: bool,
    /// Calls wait for the device after each step, so that a fault names it.
    #[serde(default)]
    launch_blocking: bool,
    /// Steps of recorded calls that need nothing of each other are done at once.
    #[serde(default)]
    cudagraph_branches: bool,
    cache_dir: Option<PathBuf>,
    trace_dir: Option<PathBuf>,
    #[serde(default)]
    output_pool: bool,
    /// Launches go to the driver one by one, where those that follow each other go at once otherwise.
    #[serde(default)]
    one_by_one: bool,
    /// The most bytes that a call may take; 0: no limit.
    #[serde(default)]
    memory_limit: usize,
    /// FX nodes that the host shall run.
    #[serde(default)]
    external: Vec<String>,
    /// Who computes products, convolutions and attention: `own`, `torch`, or `auto`.
    #[serde(default)]
    contractions: String,
    /// Parameters that are the same at every call, by position.
    #[serde(default)]
    frozen: Vec<usize>,
    /// Every convolution has a kernel that reads its weight in panels.
    #[serde(default)]
    images: bool,
}

fn cpu() -> String {
    "cpu".to_owned()
}

impl Settings {
    /// Whether a parameter is the same at every call.
    pub fn is_frozen(&self, parameter: usize) -> bool {
        self.frozen.contains(&parameter)
    }

    pub fn branches(&self) -> bool {
        self.cudagraph_branches
    }

    pub fn place(&self) -> Result<Place> {
        Place::named(&self.device)
    }

    pub fn read(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| Error::new(Code::InvalidOption, e.to_string()))
    }

    /// How descriptions are read.
    pub fn import(&self) -> ImportOptions {
        ImportOptions {
            random: if self.fallback_random {
                Random::Host
            } else {
                Random::Own
            },
            products: match self.contractions.as_str() {
                "own" => Products::Own,
                "auto" => Products::Faster,
                _ => Products::Host,
            },
            frozen: self.frozen.iter().copied().collect(),
            images: self.images,
            ..ImportOptions::default()
        }
    }

    /// What they say about running a plan that is loaded.
    fn set_up(&self, executable: Executable) -> Result<Executable> {
        executable
            .limited(self.memory_limit)?
            .submitting(self.options()?.submits())?
            .waiting(self.launch_blocking)
    }

    fn options(&self) -> Result<Options> {
        let mut options = Options::default();
        options.set("mode", &self.mode)?;
        options.set("numerics", &self.numerics)?;
        options.deterministic = self.deterministic;
        options.target.clone_from(&self.target);
        options.threads = self.threads;
        if self.follow_threads {
            TORCH.clone_into(&mut options.host_threads);
        }
        options.verify = self.verify;
        options.launch_blocking = self.launch_blocking;
        if self.one_by_one {
            options.cudagraphs = CudaGraphs::Off;
        }
        options.cache_dir.clone_from(&self.cache_dir);
        options.trace_dir.clone_from(&self.trace_dir);
        options.memory_limit = self.memory_limit;
        Ok(options)
    }
}

/// Compilers of this process, by their options: devices, thread pools and known plans are shared between graphs.
static COMPILERS: Mutex<Option<Compilers>> = Mutex::new(None);

type Compilers = HashMap<String, (Place, Arc<Compiler>)>;

/// The compiler for these options.
pub fn compiler(settings: &Settings) -> Result<Arc<Compiler>> {
    let options = settings.options()?;
    let place = settings.place()?;
    let key = format!("{place:?} {options:?}");
    let mut known = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some((_, compiler)) = known.get(&key) {
        return Ok(compiler.clone());
    }
    let compiler = Arc::new(match place {
        Place::Cpu => Compiler::new(options)?,
        Place::Cuda(index) => Compiler::on_gpu(options, index)?,
        Place::Nothing => Compiler::on_nothing(options)?,
    });
    if !settings.launch_blocking {
        // Torch's operators and everybody else's: only who waits after each step knows whose a fault is.
        compiler.device().share();
    }
    known.insert(key, (place, compiler.clone()));
    Ok(compiler)
}

/// What the machine can do at best, measured now: what an explanation is based on was measured once.
pub fn figures(settings: &Settings) -> Result<String> {
    let compiler = compiler(settings)?;
    let (target, options) = (compiler.target(), compiler.options());
    let figures = oxyfuel_engine::Figures::measure_on(target, options, compiler.device())?;
    serde_json::to_string(&figures).map_err(|e| err!(Internal, "figures cannot be written: {e}"))
}

/// Of a convolution: the shapes of images and weight; stride, padding and dilation; groups.
pub type Numbers = ([Vec<i64>; 2], [Vec<i64>; 3], i64);

/// The convolution of these numbers.
pub fn windows(([x, weight], [stride, padding, dilation], groups): Numbers) -> Windows {
    let how = Convolution {
        stride,
        padding,
        dilation,
        groups,
    };
    (x, weight, how)
}

/// Whether a graph's convolutions of a type (`f32`, `bf16`) have kernels that read their weights in panels, frozen or made at every call.
pub fn packs_convolutions(
    settings: &Settings,
    convolutions: &[Windows],
    dtype: &str,
    frozen: bool,
) -> Result<bool> {
    let dtype = dtype.parse::<DType>()?;
    compiler(settings)?.packs_convolutions(convolutions, dtype, frozen)
}

/// Gives memory that is kept for later calls back to the system; how many bytes that were.
pub fn trim() -> usize {
    let known = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    trim_all(known.as_ref())
}

fn trim_all(known: Option<&Compilers>) -> usize {
    let compilers = known.into_iter().flat_map(HashMap::values);
    compilers
        .map(|(_, compiler)| compiler.device().trim())
        .sum()
}

/// Where the bytes of a device are, as text.
pub fn memory_summary(device: &str) -> Result<String> {
    let place = Place::named(device)?;
    let known = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let compilers = known.iter().flat_map(HashMap::values);
    let here = compilers.filter(|(other, _)| *other == place);
    let devices: Vec<_> = here.map(|(_, c)| c.device().clone()).collect();
    drop(known);
    let mut found: Option<MemorySummary> = None;
    for device in devices {
        let summary = device.memory_summary()?;
        found = Some(match found {
            None => summary,
            Some(found) => found.and(&summary),
        });
    }
    // Nothing has been compiled for it yet.
    let summary = match (found, place) {
        (Some(found), _) => found,
        (None, Place::Cuda(index)) => CudaDevice::new(index, None)?.memory_summary()?,
        (None, Place::Cpu | Place::Nothing) => cpu_device(&Options::default()).memory_summary()?,
    };
    Ok(summary.to_string())
}

/// What to say of a GPU that is lost to the process, where one is: `answer` is the driver's number in the error that torch was given, or 0.
pub fn fault(answer: i32) -> Option<Error> {
    let known = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let compilers = known.iter().flat_map(HashMap::values);
    let devices: Vec<_> = compilers.map(|(_, c)| c.device().clone()).collect();
    drop(known);
    devices.iter().find_map(|device| device.fault(answer))
}

/// What a graph leaves behind when it goes: its arena is memory that nobody may ask for again. The last field of what owns one.
#[derive(Debug)]
pub struct Leftovers;

impl Drop for Leftovers {
    fn drop(&mut self) {
        // In a forked child a thread that does not exist there may hold the lock.
        if let Ok(known) = COMPILERS.try_lock() {
            trim_all(known.as_ref());
        }
    }
}

/// A graph that was compiled, and how its host calls it.
#[derive(Debug)]
pub struct Compiled {
    pub executable: Arc<Executable>,
    pub signature: Signature,
    pub externals: Vec<oxyfuel_capture::External>,
    pub settings: Settings,
    pub once: Option<Once>,
}

/// What runs once for a graph with frozen parameters; its results are the last inputs of the graph.
#[derive(Clone, Debug)]
pub struct Once {
    pub executable: Arc<Executable>,
    /// The parameters that it reads, and of those the ones that nothing else reads.
    pub parameters: Vec<usize>,
    pub alone: Vec<bool>,
    /// In a sentence, for people.
    pub text: String,
}

impl Once {
    /// A graph of its own, that takes its parameters and returns what is kept.
    pub fn compiled(&self, settings: &Settings) -> Compiled {
        let results = self.executable.plan().outputs.len();
        Compiled {
            executable: self.executable.clone(),
            signature: Signature {
                inputs: (0..self.parameters.len()).map(InputKind::Tensor).collect(),
                outputs: (0..results).map(OutputKind::Value).collect(),
            },
            externals: vec![],
            settings: Settings {
                frozen: vec![],
                ..settings.clone()
            },
            once: None,
        }
    }

    /// What a split became for the host, whose parameters the graph of every call has fewer of.
    fn of(frozen: &Frozen, signature: &mut Signature) -> Self {
        let at = |input: usize| frozen.main_inputs.iter().position(|&i| i == input);
        let parameter = |&input: &usize| {
            let mut all = signature.inputs.iter();
            all.position(|kind| *kind == InputKind::Tensor(input))
        };
        let parameters: Vec<usize> = frozen.prepare_inputs.iter().filter_map(parameter).collect();
        let alone = frozen.prepare_inputs.iter().map(|&i| at(i).is_none());
        let once = Self {
            executable: frozen.prepare.clone(),
            parameters,
            alone: alone.collect(),
            text: frozen.text(),
        };
        for kind in &mut signature.inputs {
            *kind = match kind {
                InputKind::Tensor(i) => at(*i).map_or(InputKind::Unused, InputKind::Tensor),
                InputKind::Object(i) => at(*i).map_or(InputKind::Unused, InputKind::Object),
                InputKind::Symbol(expr) => InputKind::Symbol(expr.clone()),
                InputKind::Unused => InputKind::Unused,
            };
        }
        once
    }
}

impl Compiled {
    /// Large tensors live on memory of ours.
    pub fn pool(&self) -> bool {
        self.settings.output_pool && self.on_cpu()
    }

    fn on_cpu(&self) -> bool {
        matches!(self.settings.place(), Ok(Place::Cpu))
    }

    /// The number of threads that the executable was made for, where calls follow torch's.
    pub fn followed(&self) -> Option<usize> {
        let follows = self.settings.follow_threads && self.on_cpu();
        follows.then_some(self.settings.threads)
    }

    /// The same plan on a device with so many threads.
    pub fn with_threads(&self, threads: usize) -> Result<Arc<Executable>> {
        let settings = Settings {
            threads,
            ..self.settings.clone()
        };
        let device = compiler(&settings)?.device().clone();
        let (plan, record) = (self.executable.plan(), self.executable.record());
        let executable = Executable::load(plan.clone(), record.clone(), device)?;
        Ok(Arc::new(self.settings.set_up(executable)?))
    }
}

fn has_half_images(graph: &Graph) -> bool {
    let half = |node: &Node| {
        matches!(node.op, Op::Convolution { .. }) && graph.ty(node.out()).dtype.size() < 4
    };
    graph.nodes.values().any(half)
}

/// Compiles a description.
pub fn compile(text: &str, settings: &Settings) -> Result<Compiled> {
    let description: Description = oxyfuel_capture::read(text)?;
    let compiler = compiler(settings)?;
    let mut options = settings.import();
    options.external.extend(settings.external.iter().cloned());
    for _ in 0..ROUNDS {
        let Imported {
            graph,
            mut signature,
            externals,
        } = oxyfuel_capture::import(&description, &options)?;
        // Convolutions that would hold more than the host's are the host's. Panels of halves are made at every call.
        let at_calls = settings.frozen.is_empty() || has_half_images(&graph);
        if options.images && at_calls && !compiler.packs_images(&graph)? {
            options.images = false;
            continue;
        }
        let graph = compiler.with_wanted_alignment(graph);
        let before = options.external.len();
        let frozen = match settings.frozen.is_empty() {
            true => None,
            false => match compiler.compile_frozen(&graph) {
                // Told below, with names.
                Err(error) if error.code == Code::NoLowering => None,
                made => made?,
            },
        };
        let once = frozen.as_ref().map(|f| Once::of(f, &mut signature));
        let made = match frozen {
            Some(frozen) => Ok(frozen.main),
            None => compiler.compile_or_name(&graph)?,
        };
        let executable = match made {
            Ok(executable) => executable,
            Err(unmade) => {
                options.external.extend(unmade.sources);
                if options.external.len() == before {
                    return Err(Error::new(Code::NoLowering, unmade.reason));
                }
                continue;
            }
        };
        options.external.extend(without_code(&executable));
        if options.external.len() == before {
            return Ok(Compiled {
                executable,
                signature,
                externals,
                settings: settings.clone(),
                once,
            });
        }
    }
    Err(err!(
        Internal,
        "kernels without machine code remain after {ROUNDS} rounds"
    ))
}

/// A compiled graph as bytes, for a process of the same build on the same kind of machine.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stored {
    build: String,
    plan: Plan,
    signature: Signature,
    externals: Vec<oxyfuel_capture::External>,
    /// The plan that runs once, which parameters it reads and which of them alone, and what is said of it.
    once: Option<(Plan, Vec<usize>, Vec<bool>, String)>,
}

/// What a graph is stored as.
pub fn store(compiled: &Compiled) -> Result<Vec<u8>> {
    let stored = Stored {
        build: BUILD.to_owned(),
        plan: Plan::clone(compiled.executable.plan()),
        signature: compiled.signature.clone(),
        externals: compiled.externals.clone(),
        once: compiled.once.as_ref().map(|once| {
            let plan = Plan::clone(once.executable.plan());
            let Once {
                parameters,
                alone,
                text,
                ..
            } = once.clone();
            (plan, parameters, alone, text)
        }),
    };
    postcard::to_stdvec(&stored).map_err(|e| err!(Internal, "a plan cannot be written: {e}"))
}

/// A graph from what it was stored as.
pub fn load(bytes: &[u8], settings: &Settings) -> Result<Compiled> {
    let stored: Stored = postcard::from_bytes(bytes)
        .map_err(|e| err!(UnsupportedVersion, "a stored plan cannot be read: {e}"))?;
    let compiler = compiler(settings)?;
    let isa = &compiler.target().desc.isa;
    if stored.build != BUILD || stored.plan.isa != *isa {
        return Err(err!(
            UnsupportedVersion,
            "a stored plan was made by {} for {}, and this is {BUILD} on {isa}",
            stored.build,
            stored.plan.isa
        ));
    }
    let device = compiler.device().clone();
    let load = |plan: Plan| Executable::load(plan, Record::from_disk(), device.clone());
    let once = match stored.once {
        None => None,
        Some((plan, parameters, alone, text)) => Some(Once {
            executable: Arc::new(load(plan)?),
            parameters,
            alone,
            text,
        }),
    };
    Ok(Compiled {
        once,
        executable: Arc::new(settings.set_up(load(stored.plan)?)?),
        signature: stored.signature,
        externals: stored.externals,
        settings: settings.clone(),
    })
}

/// What compiled code depends on besides the graph: this build and the machine.
pub fn fingerprint(settings: &Settings) -> Result<String> {
    let compiler = compiler(settings)?;
    Ok(format!(
        "{BUILD} {:?} {:?}",
        settings.place()?,
        compiler.target().desc
    ))
}

/// The FX nodes behind kernels that would run in the interpreter.
fn without_code(executable: &Executable) -> Vec<String> {
    let kernels = executable.plan().kernels.values();
    kernels
        .filter(|kernel| matches!(kernel.artefact, Artefact::Interpreted))
        .flat_map(|kernel| kernel.provenance.sources.iter().cloned())
        .collect()
}
