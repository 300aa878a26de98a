//! Compiled functions: capture at the first call, guards at every call, a variant for each kind of arguments.
//!
//! ```text
//!   call ──▶ hash of types, shapes, strides, devices ──▶ variant ──▶ run
//!                        │ no variant fits
//!                        ▼
//!            capture, compile (milliseconds), note why ──▶ variant
//! ```
//!
//! Finding the variant takes a hash of the arguments' metadata, one read lock that nobody holds for writing but during a compile, and one comparison.

use crate::Options;
use crate::explain::{Explanation, VariantReport};
use crate::function::Function;
use crate::guard::{Guard, hash_all};
use crate::machine::{self, Device};
use crate::tensor::{State, Tensor, located};
use crate::trace;
use oxyfuel_base::{Error, Result, ensure, err};
use oxyfuel_engine::{Compiler, Executable};
use oxyfuel_graph::Graph;
use oxyfuel_runtime::execute::StepTime;
use oxyfuel_runtime::tensor as rt;
use rustc_hash::FxHashMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// More variants than this and the oldest goes: shapes that never repeat must not fill memory.
const MAX_VARIANTS: usize = 256;

/// A user's function, whatever its arguments and results.
type Traceable = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A function of tensors that is compiled when it is called. Calls may run at once on several threads.
pub struct Compiled {
    name: String,
    function: Traceable,
    arity: Option<usize>,
    /// A graph of symbolic sizes: one variant a device serves them all.
    symbolic: Option<Graph>,
    options: Options,
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
    hash: u64,
    /// Tensors that the closure used beside its arguments.
    captured: Vec<rt::Tensor>,
    /// How many tensors the function returns; behind them stand those that it overwrites.
    results: usize,
    pub executable: Arc<Executable>,
    /// Why it was compiled.
    pub reasons: Vec<String>,
    pub calls: AtomicU64,
    pub capture: Duration,
    pub compiler: Arc<Compiler>,
    /// As it was captured, for whoever asks what came of it.
    pub graph: Graph,
}

/// Makes a function compiled. Nothing happens before its first call, but that the options are checked.
///
/// The function takes one to eight `&Tensor`, or one `&[Tensor]`, and returns a [`Tensor`], a tuple, an array or a vector of them, or a `Result` of these. It runs once for
/// each kind of arguments, on traced tensors: what it does beside tensor operations happens then and not at later calls, and tensors that it captures are read at every call.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(|x: &Tensor, w: &Tensor| (x.matmul(w) + 1.0).relu(), Options::default())?;
/// let x = Tensor::randn(&[4, 8], DType::F32, 0);
/// let w = Tensor::randn(&[8, 3], DType::F32, 1);
/// let y = f.call(&[&x, &w])?;
/// assert_eq!(y[0].shape(), [4, 3]);
/// println!("{}", f.explain());
/// # Ok(())
/// # }
/// ```
pub fn compile<A, F: Function<A>>(function: F, options: Options) -> Result<Compiled> {
    if !options.target.is_empty() {
        oxyfuel_engine::Target::by_name(&options.target)?;
    }
    Ok(Compiled {
        name: short_name(std::any::type_name::<F>()),
        function: Box::new(move |tensors| function.invoke(tensors)),
        arity: F::ARITY,
        symbolic: None,
        options,
        variants: RwLock::default(),
        compilers: Mutex::default(),
        compiling: Mutex::default(),
    })
}

/// Makes a graph, such as one read from text, a compiled function of its inputs.
///
/// It has the guards, variants and explanations of a compiled closure. A graph whose sizes are symbolic is compiled once for all sizes: its inputs are row-major or as their layouts say, and it cannot be captured
/// inside of another function. A graph that writes to its inputs is refused.
///
/// ```
/// # fn main() -> oxyfuel::Result<()> {
/// let text = "graph @twice(%x: f32[3] cpu) {
///   %y: f32[3] = add %x, %x
///   return %y
/// }";
/// let f = oxyfuel::compile_graph(oxyfuel::parse_graph("twice", text)?, oxyfuel::Options::default())?;
/// let x = oxyfuel::Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3]);
/// assert_eq!(f.call_one(&[&x])?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub fn compile_graph(graph: Graph, options: Options) -> Result<Compiled> {
    oxyfuel_graph::verify(&graph)?;
    if graph.outputs.iter().any(|output| output.alias.is_some()) {
        return Err(err!(NoLowering, "@{} writes to an input", graph.name));
    }
    let (name, arity) = (graph.name.clone(), graph.inputs.len());
    let symbolic = (!graph.symbols.is_empty()).then(|| graph.clone());
    let mut compiled = compile(
        move |tensors: &[Tensor]| match graph.symbols.first() {
            Some(symbol) => Err(err!(
                NoLowering,
                "@{} has a symbolic size, {}, and is captured inside of another function",
                graph.name,
                symbol.symbol
            )),
            None => trace::splice(&graph, tensors),
        },
        options,
    )?;
    compiled.arity = Some(arity);
    compiled.symbolic = symbolic;
    Ok(compiled.named(name))
}

/// The last name of a path that is no closure.
fn short_name(path: &str) -> String {
    let mut names = path.rsplit("::").filter(|name| !name.starts_with('{'));
    names.next().unwrap_or("f").to_owned()
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Calls it. Inside of another function that is being captured, it is captured with it.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let caller = Location::caller();
        if inputs.iter().any(|input| input.is_traced()) {
            self.check_arity(inputs.len())
                .map_err(|error| located(error, caller))?;
            let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
            return (self.function)(&inputs);
        }
        let run = || {
            let mut tensors = concrete(inputs, caller)?;
            let variant = self.variant(&tensors)?;
            tensors.extend(&variant.captured);
            let mut outputs = variant.executable.run(&tensors)?;
            outputs.truncate(variant.results);
            Ok(outputs)
        };
        let outputs = run().map_err(|error| located(error, caller))?;
        Ok(outputs.into_iter().map(Tensor::from).collect())
    }

    /// Calls a function that returns one tensor.
    #[track_caller]
    pub fn call_one(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let caller = Location::caller();
        let mut outputs = self.call(inputs).map_err(|error| located(error, caller))?;
        match (outputs.pop(), outputs.len()) {
            (Some(output), 0) => Ok(output),
            (last, before) => Err(located(
                err!(
                    ArityMismatch,
                    "{} returns {} tensors, not one",
                    self.name,
                    before + usize::from(last.is_some())
                )
                .help("use call"),
                caller,
            )),
        }
    }

    /// Calls it and puts the results into tensors that the caller has: no memory is asked for, and results that fit are computed in place.
    #[track_caller]
    pub fn call_into(&self, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
        let caller = Location::caller();
        let run = || {
            let mut tensors = concrete(inputs, caller)?;
            let mut targets = outputs
                .iter()
                .map(|output| output.concrete("an output", caller).cloned())
                .collect::<Result<Vec<_>>>()?;
            let variant = self.variant(&tensors)?;
            tensors.extend(&variant.captured);
            if variant.results == variant.executable.plan().outputs.len() {
                return variant.executable.run_into(&tensors, &mut targets);
            }
            let mut outputs = variant.executable.run(&tensors)?;
            outputs.truncate(variant.results);
            ensure!(
                outputs.len() == targets.len(),
                ArityMismatch,
                "{} outputs for a function with {}",
                targets.len(),
                outputs.len()
            );
            let mut pairs = targets.iter_mut().zip(&outputs);
            pairs.try_for_each(|(target, output)| target.copy_from(output))
        };
        run().map_err(|error| located(error, caller))
    }

    /// Calls it and says how long each step took on the device.
    #[track_caller]
    pub fn profile(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Vec<StepTime>)> {
        let caller = Location::caller();
        let run = || {
            let mut tensors = concrete(inputs, caller)?;
            let variant = self.variant(&tensors)?;
            tensors.extend(&variant.captured);
            let (mut outputs, times) = variant.executable.profile(&tensors)?;
            outputs.truncate(variant.results);
            Ok((outputs, times))
        };
        let (outputs, times) = run().map_err(|error| located(error, caller))?;
        Ok((outputs.into_iter().map(Tensor::from).collect(), times))
    }

    /// Compiles for arguments like these without running; nothing where that is done already.
    #[track_caller]
    pub fn warm_up(&self, inputs: &[&Tensor]) -> Result<()> {
        let caller = Location::caller();
        let tensors = concrete(inputs, caller)?;
        self.variant(&tensors)
            .map(drop)
            .map_err(|error| located(error, caller))
    }

    /// The function as a graph for arguments like these, and the tensors that it captured: inputs of the graph after the arguments.
    #[track_caller]
    pub fn graph(&self, inputs: &[&Tensor]) -> Result<(Graph, Vec<Tensor>)> {
        let caller = Location::caller();
        let capture = || {
            self.check_arity(inputs.len())?;
            self.capture(&concrete(inputs, caller)?)
        };
        let captured = capture().map_err(|error| located(error, caller))?;
        let tensors = captured.tensors.into_iter().map(Tensor::from).collect();
        Ok((captured.graph, tensors))
    }

    /// Every variant: why it was compiled, what its steps took, its kernels, its memory, and what it should gain. Its `Display` is for people.
    ///
    /// The first one of a process measures the machine, which takes a tenth of a second.
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

    /// The name it has in graphs, kernels and explanations.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    fn check_arity(&self, given: usize) -> Result<()> {
        match self.arity {
            Some(arity) if arity != given => Err(err!(
                ArityMismatch,
                "{} takes {arity} tensors, got {given}",
                self.name
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The variant for these arguments.
    fn variant(&self, inputs: &[&rt::Tensor]) -> Result<Arc<Variant>> {
        let hash = match &self.symbolic {
            Some(_) => 0,
            None => hash_all(inputs.iter().copied()),
        };
        let variant = match self.find(hash, inputs) {
            Some(variant) => variant,
            None => self.compile_variant(hash, inputs)?,
        };
        variant.calls.fetch_add(1, Ordering::Relaxed);
        Ok(variant)
    }

    fn find(&self, hash: u64, inputs: &[&rt::Tensor]) -> Option<Arc<Variant>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        // What is left to check of a graph of symbolic sizes, its plan checks.
        let admits = |(guard, input): (&Guard, &&rt::Tensor)| match &self.symbolic {
            Some(_) => guard.device == input.device(),
            None => guard.admits(input),
        };
        let fits = |variant: &&Arc<Variant>| {
            variant.guards.len() == inputs.len() && variant.guards.iter().zip(inputs).all(admits)
        };
        variants.by_hash.get(&hash)?.iter().find(fits).cloned()
    }

    #[cold]
    fn compile_variant(&self, hash: u64, inputs: &[&rt::Tensor]) -> Result<Arc<Variant>> {
        self.check_arity(inputs.len())?;
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(variant) = self.find(hash, inputs) {
            return Ok(variant);
        }
        let reasons = self.reasons(inputs);
        let start = Instant::now();
        let captured = self.capture(inputs)?;
        let capture = start.elapsed();
        let device = inputs
            .iter()
            .copied()
            .chain(&captured.tensors)
            .next()
            .map_or(Device::Cpu, |tensor| tensor.device().into());
        let compiler = self.compiler(device)?;
        let variant = Arc::new(Variant {
            guards: inputs.iter().map(|input| Guard::of(input)).collect(),
            hash,
            captured: captured.tensors,
            results: captured.results,
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

    fn capture(&self, inputs: &[&rt::Tensor]) -> Result<trace::Captured> {
        match &self.symbolic {
            Some(graph) => Ok(trace::Captured {
                graph: graph.clone(),
                results: graph.outputs.len(),
                tensors: Vec::new(),
            }),
            None => trace::capture(&self.name, inputs, &*self.function),
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
    fn reasons(&self, inputs: &[&rt::Tensor]) -> Vec<String> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let failures = |variant: &Arc<Variant>| -> Vec<String> {
            if variant.guards.len() != inputs.len() {
                return vec![format!(
                    "{} arguments were given, {} before",
                    inputs.len(),
                    variant.guards.len()
                )];
            }
            let guards = variant.guards.iter().zip(inputs).enumerate();
            guards
                .flat_map(|(number, (guard, input))| guard.failures(number, input))
                .collect()
        };
        // Of equally near ones the latest: it is the one that the caller remembers.
        let nearest = variants.all.iter().rev().min_by_key(|variant| {
            let guards = variant.guards.iter().zip(inputs);
            let ranks = guards.filter(|(guard, input)| guard.shape.len() != input.rank());
            (ranks.count(), failures(variant).len())
        });
        nearest
            .map(failures)
            .unwrap_or_else(|| vec!["first call".to_owned()])
    }
}

/// The memory behind the arguments of a call.
fn concrete<'a>(inputs: &[&'a Tensor], caller: &Location<'_>) -> Result<Vec<&'a rt::Tensor>> {
    // Room for a few captured tensors, so that the list is made once.
    let mut tensors = Vec::with_capacity(inputs.len() + 8);
    for (number, input) in inputs.iter().enumerate() {
        match &input.state {
            State::Concrete(tensor) => tensors.push(tensor),
            State::Traced(_) | State::Failed(_) => {
                let what = format!("argument {number}");
                tensors.push(input.concrete(&what, caller)?);
            }
        }
    }
    Ok(tensors)
}

/// Calls may run at once on several threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Compiled>();
    shared::<Tensor>();
    shared::<Error>();
};
