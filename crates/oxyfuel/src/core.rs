//! What all compiled functions share: variants by what they assume, found by a hash, compiled once.
//!
//! ```text
//!   call ──▶ hash of types, shapes, strides, devices, plain data ──▶ variant ──▶ run
//!                        │ no variant fits
//!                        ▼
//!            capture, compile (milliseconds), note why ──▶ variant
//! ```
//!
//! A call like the one before finds its variant without a lock: the first few are never forgotten, and one comparison shows that it fits. Any other takes a hash of the arguments' metadata, one
//! read lock that nobody holds for writing but during a compile, and one comparison.
//!
//! The first variant knows all sizes. When a size changes, the next variant has a symbol in its place and serves all further sizes ([`dynamic`](crate::dynamic)); it is looked for where no variant
//! of known sizes fits. A function that reads tensors is cut into segments, and its variant only remembers that, and which sizes are symbols ([`trace`]).

use crate::Options;
use crate::bucket::{self, Buckets, Declared};
use crate::dynamic::{self, Pattern};
use crate::explain::{Explanation, VariantReport, one_plan};
use crate::frozen::Weights;
use crate::guard::{Guard, hash_tensor};
use crate::machine::{self, Device};
use crate::structure::Constant;
use crate::tensor::Tensor;
use crate::trace::{self, Borders, Captured, Out, Outcome, Ran, Segment};
use crate::variant::{Draft, Kind, Variant, Whole};
use oxyfuel_base::{Code, Result, err};
use oxyfuel_engine::Compiler;
use oxyfuel_graph::Graph;
use oxyfuel_runtime::execute::StepTime;
use oxyfuel_runtime::tensor as rt;
use rustc_hash::{FxHashMap, FxHasher};
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// More variants than this and the oldest behind the first few goes: shapes that never repeat must not fill memory.
const MAX_VARIANTS: usize = 256;
/// So many are never forgotten.
const FEW_VARIANTS: usize = 8;

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
    /// What was decided about sizes in declared buckets.
    pub declared: Option<Declared<'a>>,
}

/// The variants of one function. Calls may run at once on several threads.
pub(crate) struct Core {
    pub name: String,
    /// A graph of symbolic sizes and what it reads beside its arguments: one variant a device serves them all.
    pub symbolic: Option<(Graph, Vec<rt::Tensor>)>,
    pub compilers: Arc<Compilers>,
    pub buckets: Buckets,
    /// What is known of the tensors that the function captures, where they are frozen.
    pub frozen: Option<Arc<Weights>>,
    variants: RwLock<Variants>,
    /// The first of them, in the order of their compiles.
    first: [OnceLock<Arc<Variant>>; FEW_VARIANTS],
    /// Which of the first served a call before: a guess, checked like any other.
    last: AtomicUsize,
    /// One compile at a time: two threads that miss at once do not both compile. No code of a user runs while it is held.
    compiling: Mutex<()>,
}

/// Compilers with the options of a function, one a device.
#[derive(Debug)]
pub(crate) struct Compilers {
    pub options: Options,
    made: Mutex<Vec<(Device, Arc<Compiler>)>>,
}

impl Compilers {
    pub fn get(&self, device: Device) -> Result<Arc<Compiler>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiler)) = made.iter().find(|(known, _)| *known == device) {
            return Ok(compiler.clone());
        }
        let (target, handle) = machine::target(device, &self.options)?;
        let compiler = Arc::new(Compiler::on(target, self.options.clone(), handle));
        made.push((device, compiler.clone()));
        Ok(compiler)
    }
}

#[derive(Debug, Default)]
struct Variants {
    by_hash: FxHashMap<u64, Vec<Arc<Variant>>>,
    /// Those with symbols, which no hash finds.
    symbolic: Vec<Arc<Variant>>,
    /// In the order of their compiles.
    all: Vec<Arc<Variant>>,
    forgotten: u64,
}

/// A variant for the time of a call.
enum Found<'a> {
    /// One of the first.
    First(&'a Arc<Variant>),
    Other(Arc<Variant>),
}

impl Deref for Found<'_> {
    type Target = Arc<Variant>;

    fn deref(&self) -> &Arc<Variant> {
        match self {
            Self::First(variant) => variant,
            Self::Other(variant) => variant,
        }
    }
}

/// What the search for a variant ended in.
enum Ready<'a> {
    Variant(Found<'a>),
    /// The capture was cut, and so has run.
    Done(Returned),
}

impl Core {
    pub fn new(name: String, options: Options) -> Result<Self> {
        if !options.target.is_empty() {
            oxyfuel_engine::Target::by_name(&options.target)?;
        }
        Ok(Self {
            name,
            symbolic: None,
            compilers: Arc::new(Compilers {
                options,
                made: Mutex::default(),
            }),
            buckets: Buckets::default(),
            frozen: None,
            variants: RwLock::default(),
            first: Default::default(),
            last: AtomicUsize::new(0),
            compiling: Mutex::default(),
        })
    }

    /// Calls the function.
    pub fn call(&self, request: &Request<'_>) -> Result<Returned> {
        match self.buckets.is_empty() {
            true => self.call_as_is(request),
            false => bucket::call(self, request),
        }
    }

    /// Calls the function on these very arguments.
    pub fn call_as_is(&self, request: &Request<'_>) -> Result<Returned> {
        self.call_given(request, &[])
    }

    /// Calls the function; the memory of arguments that are `given` may become that of results.
    pub fn call_given(&self, request: &Request<'_>, given: &[bool]) -> Result<Returned> {
        let ready = self.ready(request, true)?;
        self.complete(ready, request, given)
    }

    /// Calls the function and puts the results into tensors of the caller; in place, where they are outputs of the plan and nothing else. Returns the structure of the results.
    pub fn call_into(
        &self,
        request: &Request<'_>,
        targets: &mut [rt::Tensor],
    ) -> Result<Option<Template>> {
        if !self.buckets.is_empty() {
            let returned = self.call(request)?;
            copy_all(&self.name, &returned.tensors, targets)?;
            return Ok(returned.template);
        }
        let ready = self.ready(request, true)?;
        if let Ready::Variant(variant) = &ready
            && let Kind::Whole(whole) = &variant.kind
            && whole.is_plain
        {
            check_count(&self.name, whole.results.len(), targets.len())?;
            whole.with_tensors(variant, request.inputs, |tensors| {
                whole.executable.run_into(tensors, targets)
            })?;
            return Ok(whole.template.clone());
        }
        let returned = self.complete(ready, request, &[])?;
        copy_all(&self.name, &returned.tensors, targets)?;
        Ok(returned.template)
    }

    /// Compiles for a call like this one and runs nothing.
    pub fn warm_up(&self, request: &Request<'_>) -> Result<()> {
        match self.buckets.is_empty() {
            true => self.variant(request).map(drop),
            false => bucket::warm_up(self, request),
        }
    }

    /// Calls the function on these very arguments and says how long each step took.
    pub fn profile(&self, request: &Request<'_>) -> Result<(Returned, Vec<StepTime>)> {
        let variant = self.variant(request)?;
        let whole = one_plan(&variant)?;
        let (outputs, times) = whole.with_tensors(&variant, request.inputs, |tensors| {
            whole.executable.profile(tensors)
        })?;
        let returned = Returned {
            tensors: whole.results(&variant, request, outputs)?,
            template: whole.template.clone(),
        };
        Ok((returned, times))
    }

    fn complete(
        &self,
        ready: Ready<'_>,
        request: &Request<'_>,
        given: &[bool],
    ) -> Result<Returned> {
        let variant = match ready {
            Ready::Variant(variant) => variant,
            Ready::Done(returned) => return Ok(returned),
        };
        let Kind::Whole(whole) = &variant.kind else {
            return self.run_cut(&variant, request);
        };
        // A result that is a view of an argument keeps the argument's memory.
        let viewed = |out: &Out| matches!(out, Out::ViewOfInput(..));
        let given = match !given.is_empty() && whole.results.iter().any(viewed) {
            true => &[],
            false => given,
        };
        let executable = match given.contains(&true) {
            true => &whole.donating(&variant.compiler, request.inputs, given)?,
            false => &whole.executable,
        };
        let ran = whole.with_tensors(&variant, request.inputs, |tensors| {
            executable.run_given(tensors, given)
        });
        match ran {
            Ok(outputs) => Ok(Returned {
                tensors: whole.results(&variant, request, outputs)?,
                template: whole.template.clone(),
            }),
            // A graph says nothing about memory that two names stand for; eager execution does.
            Err(error) if error.code == Code::AliasedInputs => {
                variant.eager_calls.fetch_add(1, Ordering::Relaxed);
                let inputs = request.inputs.iter();
                let tensors: Vec<Tensor> = inputs.map(|&tensor| tensor.clone().into()).collect();
                trace::suspended(|| request.source.invoke(&tensors))
            }
            Err(error) => Err(error),
        }
    }

    fn run_cut(&self, variant: &Variant, request: &Request<'_>) -> Result<Returned> {
        let Kind::Cut(known) = &variant.kind else {
            return Err(err!(
                Internal,
                "a function that is one graph is run in segments"
            ));
        };
        let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
        let capture = |borders: Borders| {
            trace::capture(&self.name, request, borders, Some(self.compilers.clone()))
        };
        let pattern = variant.pattern.as_ref();
        let pattern = pattern.filter(|_| lock().refused.is_none());
        let outcome = match pattern.map(|pattern| capture(pattern.borders(request))) {
            // Nothing has run, and what stands in the way of symbols may be no obstacle to numbers.
            None | Some(Err(_) | Ok(Outcome::Fixed(_))) => capture(Borders::fixed(request))?,
            Some(Ok(outcome)) => outcome,
        };
        match outcome {
            Outcome::Cut(ran) => {
                lock().add(&ran.cuts, ran.last);
                Ok(ran.returned)
            }
            Outcome::Whole(captured) => {
                // Nothing was read this time: one segment.
                let whole = Whole::new(&variant.compiler, captured)?;
                let segment = Segment {
                    executable: whole.executable.clone(),
                    graph: Arc::new(whole.graph.clone()),
                    refused: None,
                };
                lock().add(&[], Some(segment));
                let outputs = whole.with_tensors(variant, request.inputs, |tensors| {
                    whole.executable.run(tensors)
                })?;
                Ok(Returned {
                    tensors: whole.results(variant, request, outputs)?,
                    template: whole.template,
                })
            }
            Outcome::Failed(error) => Err(error),
            Outcome::Fixed(_) => Err(err!(Internal, "a known size was fixed")),
        }
    }

    /// The variant for these arguments, as one graph.
    pub fn variant(&self, request: &Request<'_>) -> Result<Arc<Variant>> {
        match self.ready(request, false)? {
            Ready::Variant(variant) => Ok(variant.clone()),
            Ready::Done(_) => Err(err!(Internal, "a capture that must not run has run")),
        }
    }

    fn ready(&self, request: &Request<'_>, may_cut: bool) -> Result<Ready<'_>> {
        let ready = match self.find(request) {
            Some(variant) => Ready::Variant(variant),
            None => self.compile_variant(self.hash(request), request, may_cut)?,
        };
        // Who may not cut does not call.
        if let (Ready::Variant(variant), true) = (&ready, may_cut) {
            variant.calls.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ready)
    }

    /// Whether a variant is there for these arguments.
    pub fn knows(&self, request: &Request<'_>) -> bool {
        self.find(request).is_some()
    }

    fn hash(&self, request: &Request<'_>) -> u64 {
        match &self.symbolic {
            Some(_) => 0,
            None => hash(request),
        }
    }

    fn find(&self, request: &Request<'_>) -> Option<Found<'_>> {
        // What is left to check of a graph of symbolic sizes, its plan checks.
        let admits = |(guard, input): (&Guard, &&rt::Tensor)| match &self.symbolic {
            Some(_) => guard.device == input.device(),
            None => guard.admits(input),
        };
        let fits = |variant: &&Arc<Variant>| {
            variant.guards.len() == request.inputs.len()
                && variant.constants == request.constants
                && match &variant.pattern {
                    None => variant.guards.iter().zip(request.inputs).all(admits),
                    Some(pattern) => pattern.admits(request.inputs),
                }
        };
        // Most calls are like the one before.
        let last = self.first.get(self.last.load(Ordering::Relaxed));
        let last = last.and_then(OnceLock::get);
        if let Some(last) = last.filter(|last| last.pattern.is_none() && fits(last)) {
            return Some(Found::First(last));
        }
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let known = variants.by_hash.get(&self.hash(request));
        let known = known.and_then(|same| same.iter().find(fits));
        if let Some(known) = known {
            let first = |slot: &OnceLock<Arc<Variant>>| {
                slot.get().is_some_and(|first| Arc::ptr_eq(first, known))
            };
            if let Some(at) = self.first.iter().position(first) {
                self.last.store(at, Ordering::Relaxed);
            }
        }
        // The latest of those with symbols is the most general one.
        let found = known.or_else(|| variants.symbolic.iter().rev().find(fits));
        found.cloned().map(Found::Other)
    }

    /// Captures and compiles. The user's function runs without any lock of ours held, so that it may call itself; whoever was faster meanwhile wins.
    #[cold]
    fn compile_variant(
        &self,
        hash: u64,
        request: &Request<'_>,
        may_cut: bool,
    ) -> Result<Ready<'_>> {
        if let Some(weights) = &self.frozen {
            weights.check_kept(&self.name)?;
        }
        let (mut new, mut symbols) = self.draft(hash, request);
        let options = &self.compilers.options;
        let may_cut = may_cut && !options.fullgraph && self.frozen.is_none();
        let compilers = || may_cut.then(|| self.compilers.clone());
        let start = Instant::now();
        loop {
            let (pattern, outcome) = match symbols.take() {
                Some(pattern) => {
                    let borders = pattern.borders(request);
                    match trace::capture(&self.name, request, borders, compilers()) {
                        Ok(Outcome::Fixed(places)) => {
                            symbols = pattern.above_one(request.inputs);
                            if symbols.is_none() {
                                new.note_fixed(request, pattern.numbers_of(&places));
                                symbols = pattern.without(&places, request.inputs);
                            }
                            continue;
                        }
                        Ok(outcome) => (Some(pattern), outcome),
                        Err(error) => {
                            symbols = pattern.above_one(request.inputs);
                            if symbols.is_none() {
                                new.stays_known(&error);
                            }
                            continue;
                        }
                    }
                }
                None => (None, self.capture_known(request, compilers(), false)?),
            };
            new.capture = start.elapsed();
            // Much of what a view is shows only at sizes above 1.
            let shows = |pattern: &Pattern| !pattern.has_one(request.inputs);
            let captured = match outcome {
                Outcome::Whole(_) if !pattern.as_ref().is_none_or(shows) => continue,
                Outcome::Whole(captured) => captured,
                Outcome::Cut(ran) => return self.keep_cut(new, request, pattern, ran),
                Outcome::Failed(error) => return Err(error),
                Outcome::Fixed(_) => return Err(err!(Internal, "a known size was fixed")),
            };
            let _one = self
                .compiling
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(variant) = self.find(request) {
                return Ok(Ready::Variant(variant));
            }
            // What others compiled meanwhile may tell which sizes change.
            if self.made() != new.made {
                (new, symbols) = self.draft(hash, request);
                continue;
            }
            let compiler = self.compiler(request.inputs, &captured.tensors)?;
            match (self.whole(&compiler, captured), pattern) {
                (Ok(whole), pattern) => {
                    let kind = Kind::Whole(Box::new(whole));
                    let variant = Arc::new(new.variant(request, compiler, pattern, kind));
                    self.keep(&variant);
                    return Ok(Ready::Variant(Found::Other(variant)));
                }
                (Err(error), Some(pattern)) => {
                    symbols = pattern.above_one(request.inputs);
                    if symbols.is_none() {
                        new.stays_known(&error);
                    }
                }
                (Err(error), None) => return Err(error),
            }
        }
    }

    fn whole(&self, compiler: &Compiler, captured: Captured) -> Result<Whole> {
        match &self.frozen {
            None => Whole::new(compiler, captured),
            Some(weights) => Whole::frozen(&self.name, compiler, captured, weights, &self.all()),
        }
    }

    /// All variants, in the order of their compiles.
    pub fn all(&self) -> Vec<Arc<Variant>> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        variants.all.clone()
    }

    /// What is known of the next variant, and which of its sizes should be symbols.
    fn draft(&self, hash: u64, request: &Request<'_>) -> (Draft, Option<Pattern>) {
        let made = self.made();
        let constants = request.constants.iter().cloned();
        let draft = Draft {
            reasons: self.reasons(request),
            fixed: Vec::new(),
            capture: Duration::ZERO,
            hash,
            constants: constants.map(Constant::into_owned).collect(),
            made,
        };
        let symbols = match (&self.symbolic, &request.declared) {
            (Some(_), _) => None,
            (None, Some(declared)) => declared.pattern(request.inputs),
            // A size beyond all declared ones is one of its own.
            (None, None) if !self.buckets.is_empty() => None,
            (None, None) => self.pattern(request, &draft.constants),
        };
        (draft, symbols)
    }

    /// How many variants there were so far.
    fn made(&self) -> u64 {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        variants.forgotten + variants.all.len() as u64
    }

    /// Remembers that a function is cut, and where; it has run.
    fn keep_cut(
        &self,
        mut new: Draft,
        request: &Request<'_>,
        pattern: Option<Pattern>,
        ran: Ran,
    ) -> Result<Ready<'_>> {
        if let Some(pattern) = &pattern {
            new.note_settled(request, &pattern.numbers_of(&ran.settled));
        }
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let variant = match self.find(request) {
            Some(variant) => variant,
            None => {
                let compiler = self.compiler(request.inputs, &[])?;
                let kind = Kind::Cut(Mutex::default());
                let variant = Arc::new(new.variant(request, compiler, pattern, kind));
                self.keep(&variant);
                Found::Other(variant)
            }
        };
        if let Kind::Cut(segments) = &variant.kind {
            let mut segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
            segments.add(&ran.cuts, ran.last);
        }
        variant.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Ready::Done(ran.returned))
    }

    /// Which sizes should be symbols by now.
    fn pattern(&self, request: &Request<'_>, constants: &[Constant<'static>]) -> Option<Pattern> {
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        let family = variants
            .all
            .iter()
            .filter(|variant| variant.constants == constants);
        dynamic::generalise(request.inputs, &family.map(|v| &**v).collect::<Vec<_>>())
    }

    fn capture_known(
        &self,
        request: &Request<'_>,
        compilers: Option<Arc<Compilers>>,
        all_results: bool,
    ) -> Result<Outcome> {
        match &self.symbolic {
            Some((graph, tensors)) => Ok(Outcome::Whole(Captured {
                graph: graph.clone(),
                results: (0..graph.outputs.len()).map(Out::Planned).collect(),
                template: None,
                tensors: tensors.clone(),
                sizes: Vec::new(),
            })),
            None => {
                let borders = Borders {
                    all_results,
                    ..Borders::fixed(request)
                };
                trace::capture(&self.name, request, borders, compilers)
            }
        }
    }

    /// The function as one graph, with all its results as outputs.
    pub fn capture(&self, request: &Request<'_>) -> Result<Captured> {
        match self.capture_known(request, None, true)? {
            Outcome::Whole(captured) => Ok(captured),
            Outcome::Failed(error) => Err(error),
            Outcome::Cut(_) | Outcome::Fixed(_) => {
                Err(err!(Internal, "a capture of known sizes that is no graph"))
            }
        }
    }

    /// The same with symbols for the sizes that have changed between calls, where the function can be captured so and arguments tell them all.
    pub fn capture_general(&self, request: &Request<'_>) -> Result<Captured> {
        let fits = |variant: &&Arc<Variant>| {
            let pattern = variant.pattern.as_ref();
            variant.constants == request.constants
                && pattern.is_some_and(|pattern| pattern.admits(request.inputs))
        };
        let variant = {
            let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
            variants.symbolic.iter().rev().find(fits).cloned()
        };
        if let Some(pattern) = variant.as_ref().and_then(|v| v.pattern.as_ref()) {
            let borders = Borders {
                all_results: true,
                ..pattern.borders(request)
            };
            let captured = trace::capture(&self.name, request, borders, None)?;
            if let Outcome::Whole(captured) = captured
                && captured.sizes.is_empty()
            {
                return Ok(captured);
            }
        }
        self.capture(request)
    }

    fn compiler(&self, inputs: &[&rt::Tensor], captured: &[rt::Tensor]) -> Result<Arc<Compiler>> {
        let first = inputs.iter().copied().chain(captured).next();
        let device = first.map_or(Device::Cpu, |tensor| tensor.device().into());
        self.compilers.get(device)
    }

    fn keep(&self, variant: &Arc<Variant>) {
        let mut variants = self
            .variants
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if variants.all.len() >= MAX_VARIANTS {
            let old = variants.all.remove(FEW_VARIANTS);
            variants.forgotten += 1;
            if let Some(same) = variants.by_hash.get_mut(&old.hash) {
                same.retain(|known| !Arc::ptr_eq(known, &old));
            }
            variants.symbolic.retain(|known| !Arc::ptr_eq(known, &old));
        }
        match &variant.pattern {
            Some(_) => variants.symbolic.push(variant.clone()),
            None => {
                let same = variants.by_hash.entry(variant.hash).or_default();
                same.push(variant.clone());
            }
        }
        if let Some(first) = self.first.get(variants.all.len()) {
            // Empty until there are as many, and filled once.
            first.get_or_init(|| variant.clone());
        }
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

    /// `measured`: a variant, and what the steps of its plan took.
    pub fn explain(&self, measured: Option<(&Arc<Variant>, &[Duration])>) -> Explanation {
        let times = |variant: &Arc<Variant>| {
            let (_, times) = measured.filter(|(known, _)| Arc::ptr_eq(known, variant))?;
            Some(times)
        };
        let variants = self.variants.read().unwrap_or_else(PoisonError::into_inner);
        Explanation {
            name: self.name.clone(),
            variants: variants
                .all
                .iter()
                .map(|variant| VariantReport::of(variant, times(variant)))
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

/// The last name of a path that is no closure, without type arguments.
pub(crate) fn short_name(path: &str) -> String {
    let mut depth = 0usize;
    let mut plain = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let mut names = plain.rsplit("::").filter(|name| !name.starts_with('{'));
    let name = names.find(|name| !name.is_empty());
    name.unwrap_or("f").to_owned()
}

/// Copies results into tensors of the caller.
fn copy_all(name: &str, results: &[Tensor], targets: &mut [rt::Tensor]) -> Result<()> {
    check_count(name, results.len(), targets.len())?;
    for (target, tensor) in targets.iter_mut().zip(results) {
        target.copy_from(tensor.concrete("a result", Location::caller())?)?;
    }
    Ok(())
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
