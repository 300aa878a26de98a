//! What all compiled functions share: variants by what they assume, found by a hash, compiled once.
//!
//! ```text
//!   call ──▶ hash of types, shapes, strides, devices, plain data ──▶ variant ──▶ run
//!                        │ no variant fits
//!                        ▼
//!            capture, compile (milliseconds), note why ──▶ variant
//! ```
//!
//! Finding the variant takes a hash of the arguments' metadata, one read lock that nobody holds for writing but during a compile, and one comparison.

use crate::Options;
use crate::explain::{Explanation, VariantReport};
use crate::guard::{Guard, hash_tensor};
use crate::machine::{self, Device};
use crate::structure::Constant;
use crate::tensor::Tensor;
use crate::trace;
use oxyfuel_base::{Result, err};
use oxyfuel_engine::{Compiler, Executable};
use oxyfuel_graph::Graph;
use oxyfuel_runtime::tensor as rt;
use rustc_hash::{FxHashMap, FxHasher};
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// More variants than this and the oldest goes: shapes that never repeat must not fill memory.
const MAX_VARIANTS: usize = 256;

/// The structure of a result, whose tensors are replaced by those of a call.
pub(crate) type Template = Arc<dyn Any + Send + Sync>;

/// What a user's function returned.
#[derive(Debug)]
pub(crate) struct Returned {
    pub tensors: Vec<Tensor>,
    pub template: Option<Template>,
}

/// A user's function with the arguments of one call.
pub(crate) trait Source {
    /// Runs it on other tensors in the place of those of the call.
    fn invoke(&self, tensors: &[Tensor]) -> Result<Returned>;

    /// The names of the tensors among the arguments.
    fn names(&self, count: usize) -> Vec<String>;

    /// The names of the plain data among the arguments.
    fn constant_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A call, with all that decides which variant serves it.
pub(crate) struct Request<'a> {
    pub inputs: &'a [&'a rt::Tensor],
    pub constants: &'a [Constant<'a>],
    pub source: &'a dyn Source,
}

/// The variants of one function. Calls may run at once on several threads.
pub(crate) struct Core {
    pub name: String,
    pub options: Options,
    /// A graph of symbolic sizes: one variant a device serves them all.
    pub symbolic: Option<Graph>,
    variants: RwLock<Variants>,
    /// One a device.
    compilers: Mutex<Vec<(Device, Arc<Compiler>)>>,
    /// One compile at a time: two threads that miss at once do not both compile.
    compiling: Mutex<()>,
}

#[derive(Debug, Default)]
struct Variants {
    by_hash: FxHashMap<u64, Vec<Arc<Variant>>>,
    /// In the order of their compiles.
    all: Vec<Arc<Variant>>,
    forgotten: u64,
}

/// The function compiled for one kind of arguments.
#[derive(Debug)]
pub(crate) struct Variant {
    pub guards: Vec<Guard>,
    constants: Vec<Constant<'static>>,
    hash: u64,
    /// Tensors that the function used beside its arguments.
    pub captured: Vec<rt::Tensor>,
    /// How many tensors the function returns; behind them stand those that it overwrites.
    pub results: usize,
    pub template: Option<Template>,
    pub executable: Arc<Executable>,
    /// Why it was compiled.
    pub reasons: Vec<String>,
    pub calls: AtomicU64,
    pub capture: Duration,
    pub compiler: Arc<Compiler>,
    /// As it was captured, for whoever asks what came of it.
    pub graph: Graph,
}

impl Core {
    pub fn new(name: String, options: Options) -> Result<Self> {
        if !options.target.is_empty() {
            oxyfuel_engine::Target::by_name(&options.target)?;
        }
        Ok(Self {
            name,
            options,
            symbolic: None,
            variants: RwLock::default(),
            compilers: Mutex::default(),
            compiling: Mutex::default(),
        })
    }

    /// Calls the function.
    pub fn call(&self, request: &Request<'_>) -> Result<Returned> {
        let variant = self.variant(request)?;
        let mut outputs = if variant.captured.is_empty() {
            variant.executable.run(request.inputs)?
        } else {
            let mut tensors = request.inputs.to_vec();
            tensors.extend(&variant.captured);
            variant.executable.run(&tensors)?
        };
        outputs.truncate(variant.results);
        Ok(Returned {
            tensors: outputs.into_iter().map(Tensor::from).collect(),
            template: variant.template.clone(),
        })
    }

    /// The variant for these arguments.
    pub fn variant(&self, request: &Request<'_>) -> Result<Arc<Variant>> {
        let hash = match &self.symbolic {
            Some(_) => 0,
            None => hash(request),
        };
        let variant = match self.find(hash, request) {
            Some(variant) => variant,
            None => self.compile_variant(hash, request)?,
        };
        variant.calls.fetch_add(1, Ordering::Relaxed);
        Ok(variant)
    }

    fn find(&self, hash: u64, request: &Request<'_>) -> Option<Arc<Variant>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        // What is left to check of a graph of symbolic sizes, its plan checks.
        let admits = |(guard, input): (&Guard, &&rt::Tensor)| match &self.symbolic {
            Some(_) => guard.device == input.device(),
            None => guard.admits(input),
        };
        let fits = |variant: &&Arc<Variant>| {
            variant.guards.len() == request.inputs.len()
                && variant.constants == request.constants
                && variant.guards.iter().zip(request.inputs).all(admits)
        };
        variants.by_hash.get(&hash)?.iter().find(fits).cloned()
    }

    #[cold]
    fn compile_variant(&self, hash: u64, request: &Request<'_>) -> Result<Arc<Variant>> {
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(variant) = self.find(hash, request) {
            return Ok(variant);
        }
        let inputs = request.inputs;
        let reasons = self.reasons(request);
        let start = Instant::now();
        let captured = self.capture(request)?;
        let capture = start.elapsed();
        let device = inputs
            .iter()
            .copied()
            .chain(&captured.tensors)
            .next()
            .map_or(Device::Cpu, |tensor| tensor.device().into());
        let compiler = self.compiler(device)?;
        let constants = request.constants.iter().cloned();
        let variant = Arc::new(Variant {
            guards: inputs.iter().map(|input| Guard::of(input)).collect(),
            constants: constants.map(Constant::into_owned).collect(),
            hash,
            captured: captured.tensors,
            results: captured.results,
            template: captured.template,
            executable: compiler.compile(&captured.graph)?,
            reasons,
            calls: AtomicU64::new(0),
            capture,
            compiler,
            graph: captured.graph,
        });
        self.keep(&variant);
        Ok(variant)
    }

    pub fn capture(&self, request: &Request<'_>) -> Result<trace::Captured> {
        match &self.symbolic {
            Some(graph) => Ok(trace::Captured {
                graph: graph.clone(),
                results: graph.outputs.len(),
                template: None,
                tensors: Vec::new(),
            }),
            None => trace::capture(&self.name, request),
        }
    }

    fn compiler(&self, device: Device) -> Result<Arc<Compiler>> {
        let mut compilers = self
            .compilers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiler)) = compilers.iter().find(|(known, _)| *known == device) {
            return Ok(compiler.clone());
        }
        let (target, handle) = machine::target(device, &self.options)?;
        let compiler = Arc::new(Compiler::on(target, self.options.clone(), handle));
        compilers.push((device, compiler.clone()));
        Ok(compiler)
    }

    fn keep(&self, variant: &Arc<Variant>) {
        let mut variants = self
            .variants
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if variants.all.len() >= MAX_VARIANTS {
            let old = variants.all.remove(0);
            variants.forgotten += 1;
            if let Some(same) = variants.by_hash.get_mut(&old.hash) {
                same.retain(|known| !Arc::ptr_eq(known, &old));
            }
        }
        variants
            .by_hash
            .entry(variant.hash)
            .or_default()
            .push(variant.clone());
        variants.all.push(variant.clone());
    }

    /// Why no variant fits: every guard of the nearest one that fails.
    fn reasons(&self, request: &Request<'_>) -> Vec<String> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        if variants.all.is_empty() {
            return vec!["first call".to_owned()];
        }
        let inputs = request.inputs;
        let names = request.source.names(inputs.len());
        let failures = |variant: &Arc<Variant>| -> Vec<String> {
            if variant.guards.len() != inputs.len() {
                return vec![format!(
                    "{} arguments were given, {} before",
                    inputs.len(),
                    variant.guards.len()
                )];
            }
            let guards = variant.guards.iter().zip(inputs).zip(&names);
            let mut out: Vec<String> = guards
                .flat_map(|((guard, input), name)| guard.failures(name, input))
                .collect();
            out.extend(data_failures(variant, request));
            out
        };
        // Of equally near ones the latest: it is the one that the caller remembers.
        let nearest = variants.all.iter().rev().min_by_key(|variant| {
            let guards = variant.guards.iter().zip(inputs);
            let ranks = guards.filter(|(guard, input)| guard.shape.len() != input.rank());
            (ranks.count(), failures(variant).len())
        });
        nearest.map(failures).unwrap_or_default()
    }

    pub fn explain(&self) -> Explanation {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        Explanation {
            name: self.name.clone(),
            variants: variants
                .all
                .iter()
                .map(|variant| VariantReport::of(variant))
                .collect(),
            forgotten: variants.forgotten,
        }
    }
}

/// Which plain data differs from what a variant has compiled in.
fn data_failures(variant: &Variant, request: &Request<'_>) -> Vec<String> {
    let (old, new) = (&variant.constants, request.constants);
    let names = request.source.constant_names();
    if old.len() != new.len() || names.len() != new.len() {
        return match old.len() == new.len() {
            true => Vec::new(),
            false => vec!["the arguments have another structure".to_owned()],
        };
    }
    let pairs = old.iter().zip(new).zip(&names);
    pairs
        .filter(|((old, new), _)| old != new)
        .map(|((old, new), name)| {
            format!("{name} is {new}, was {old}: plain data is compiled in; make it a tensor if it changes often")
        })
        .collect()
}

/// Equal for all calls that one variant serves.
fn hash(request: &Request<'_>) -> u64 {
    let mut state = FxHasher::default();
    for tensor in request.inputs {
        hash_tensor(tensor, &mut state);
    }
    if !request.constants.is_empty() {
        request.constants.hash(&mut state);
    }
    state.finish()
}

/// The last name of a path that is no closure.
pub(crate) fn short_name(path: &str) -> String {
    let mut names = path.rsplit("::").filter(|name| !name.starts_with('{'));
    names.next().unwrap_or("f").to_owned()
}

/// As many results as a function has.
pub(crate) fn check_count(name: &str, results: usize, given: usize) -> Result<()> {
    if results == given {
        return Ok(());
    }
    Err(err!(
        ArityMismatch,
        "{given} outputs for {name}, which returns {results}"
    )
    .help("give as many tensors as the function returns"))
}
