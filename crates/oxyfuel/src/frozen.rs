//! Compiled functions whose weights do not change: what follows from them alone is computed once.
//!
//! ```text
//!   compile(|x, w| …)  ──freeze(&[&w])──▶  first call:  w ──▶ panels, casts, folded scales   kept by the handle
//!                                          every call:  x, what is kept ──▶ results
//! ```
//!
//! Every write to a tensor is counted where its memory is borrowed, so a handle knows by itself that a weight is not what it was.

use crate::compiled::{Called, Compiled, Traceable};
use crate::core::Core;
use crate::explain::Explanation;
use crate::tensor::{Tensor, located};
use crate::trace::{Captured, Out};
use crate::variant::{Kind, Variant, compile, of_ours};
use oxyfuel_base::error::caught;
use oxyfuel_base::{Error, Result, ensure, err};
use oxyfuel_engine::{Compiler, Executable, Frozen, Origin};
use oxyfuel_runtime::storage::Mark;
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError, RwLock};

/// A compiled function whose weights do not change; [`Compiled::freeze`] makes one.
///
/// What follows from the weights alone (casts, scales of batch norms, the panels that kernels of products read) is computed at the first call of each kind and kept. A weight that was written since is
/// E0606 before anything runs: the next [`refreeze`](Self::refreeze) computes anew. Writes through tensors of this crate are noticed; whoever changes a weight's memory otherwise says so with
/// [`invalidate`](Self::invalidate).
///
/// Calls may run at once on several threads.
///
/// ```
/// use oxyfuel::{Code, DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let x = Tensor::randn(&[64, 256], DType::F32, 0);
/// let mut w = Tensor::randn(&[256, 128], DType::F32, 1);
/// let f = oxyfuel::compile(|x: &Tensor, w: &Tensor| x.matmul(w).relu(), Options::default())?;
/// let frozen = f.freeze(&[&w])?;
/// assert_eq!(frozen.call_one(&[&x])?.shape(), [64, 128]);
///
/// w.fill_(0)?;
/// assert_eq!(frozen.call_one(&[&x]).unwrap_err().code, Code::StaleFrozen);
/// frozen.refreeze()?;
/// assert_eq!(frozen.call_one(&[&x])?.to_vec::<f32>()?, [0.0; 64 * 128]);
/// # Ok(())
/// # }
/// ```
pub struct FrozenCall {
    compiled: Compiled,
    weights: Arc<Weights>,
}

impl fmt::Debug for FrozenCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenCall")
            .field("compiled", &self.compiled)
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Makes these tensors the last arguments of every call, and takes them, and all tensors that the function captured, for weights that do not change; see [`FrozenCall`].
    ///
    /// Nothing is computed before the first call. A function that writes to a weight or reads tensors on its way cannot be frozen. Sizes that change between calls become symbols as ever; products
    /// of such sizes read their weights as they are.
    ///
    /// A model is frozen as a part of a closure:
    ///
    /// ```
    /// use oxyfuel::nn::{Linear, Module};
    /// use oxyfuel::{DType, Options, Tensor};
    /// # fn main() -> oxyfuel::Result<()> {
    /// let layer = Linear::new(256, 128, true, DType::F32, 7);
    /// let model = oxyfuel::compile(move |x: &Tensor| layer.forward(x).relu(), Options::default())?;
    /// let mut model = model.freeze(&[])?;
    /// let y = model.call_one(&[&Tensor::ones(&[64, 256], DType::F32)])?;
    /// model.release()?; // the weight is held once, in panels
    /// # assert_eq!(y.shape(), [64, 128]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn freeze(self, weights: &[&Tensor]) -> Result<FrozenCall> {
        let caller = Location::caller();
        self.frozen(weights, caller)
            .map_err(|error| located(error, caller))
    }

    fn frozen(mut self, weights: &[&Tensor], caller: &Location<'_>) -> Result<FrozenCall> {
        let mut tensors = Vec::with_capacity(weights.len());
        for (number, weight) in weights.iter().enumerate() {
            let tensor = weight.concrete(&format!("weight {number}"), caller)?;
            tensors.push(tensor.clone());
        }
        if let Some(arity) = &mut self.arity {
            *arity = arity.checked_sub(weights.len()).ok_or_else(|| {
                err!(
                    ArityMismatch,
                    "{} weights for {}, which takes {arity} tensors",
                    weights.len(),
                    self.core.name
                )
            })?;
        }
        let (core, known) = frozen_core(self.core, &tensors)?;
        let given: Vec<Tensor> = tensors.into_iter().map(Tensor::from).collect();
        let function = self.function.function;
        let function: Traceable =
            Box::new(move |arguments| function(&[arguments, &given].concat()));
        Ok(FrozenCall {
            compiled: Compiled {
                core,
                function: Called { function },
                arity: self.arity,
            },
            weights: known,
        })
    }
}

/// The core of a function whose captured tensors, and these, are weights from now on.
pub(crate) fn frozen_core(old: Core, tensors: &[rt::Tensor]) -> Result<(Core, Arc<Weights>)> {
    let known = Arc::new(Weights::default());
    known.mark(tensors);
    let mut core = Core::new(old.name, old.compilers.options.clone())?;
    core.compilers = old.compilers;
    core.buckets = old.buckets;
    core.frozen = Some(known.clone());
    core.symbolic = old.symbolic.map(|(graph, captured)| {
        let all = tensors.iter().cloned().chain(captured);
        (graph, all.collect())
    });
    Ok((core, known))
}

/// What all handles do with the variants of a function and its weights.
pub(crate) struct Handle<'a> {
    pub core: &'a Core,
    pub weights: &'a Weights,
}

impl Handle<'_> {
    pub fn check(&self, caller: &Location<'_>) -> Result<()> {
        let checked = self.weights.check(&self.core.name);
        checked.map_err(|error| located(error, caller))
    }

    pub fn invalidate(&self) {
        self.weights.set_invalid(true);
        self.each(Once::forget);
    }

    pub fn refreeze(&self) -> Result<()> {
        self.weights.check_kept(&self.core.name)?;
        self.invalidate();
        self.weights.renew();
        let variants = self.core.all();
        for (number, variant) in variants.iter().enumerate() {
            if let Some(once) = once_of(variant) {
                once.compute(self.weights, &variants[..number])?;
            }
        }
        self.weights.set_invalid(false);
        Ok(())
    }

    /// An error where nothing stands for the weights yet.
    pub fn check_called(&self) -> Result<()> {
        match self.core.all().is_empty() {
            true => Err(err!(
                InvalidArgument,
                "{} was never called, so nothing stands for its weights yet",
                self.core.name
            )
            .help("call it, or use warm_up, on arguments of each kind first")),
            false => Ok(()),
        }
    }

    /// Lets go of the weights that no call reads any more; the function is gone already.
    pub fn release(&self) {
        self.each(Once::release);
        let variants = self.core.all();
        let held: Vec<_> = variants
            .iter()
            .filter_map(|v| once_of(v))
            .map(Once::held)
            .collect();
        let left = held.iter().flat_map(|held| held.originals.iter().flatten());
        self.weights.keep(&left.collect::<Vec<_>>());
    }

    fn each(&self, act: impl Fn(&Once)) {
        for variant in self.core.all() {
            once_of(&variant).into_iter().for_each(&act);
        }
    }
}

impl FrozenCall {
    /// Calls it with the arguments before the weights.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.handle().check(Location::caller())?;
        self.compiled.call(inputs)
    }

    /// Calls a function that returns one tensor.
    #[track_caller]
    pub fn call_one(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        self.handle().check(Location::caller())?;
        self.compiled.call_one(inputs)
    }

    /// Calls it and puts the results into tensors that the caller has; see [`Compiled::call_into`].
    #[track_caller]
    pub fn call_into(&self, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
        self.handle().check(Location::caller())?;
        self.compiled.call_into(inputs, outputs)
    }

    /// Compiles for arguments like these, and computes what follows from the weights, without a call; nothing where that is done already.
    #[track_caller]
    pub fn warm_up(&self, inputs: &[&Tensor]) -> Result<()> {
        self.handle().check(Location::caller())?;
        self.compiled.warm_up(inputs)
    }

    /// Every variant; see [`Compiled::explain`]. The notes of each say what is computed once.
    pub fn explain(&self) -> Explanation {
        self.compiled.explain()
    }

    /// The name it has in graphs, kernels and explanations.
    pub fn name(&self) -> &str {
        self.compiled.name()
    }

    /// Says that a weight is not what it was: every call is E0606 until the next [`refreeze`](Self::refreeze), and what was computed of the weights is let go.
    pub fn invalidate(&self) {
        self.handle().invalidate();
    }

    /// Whether a call would find the weights as they were.
    pub fn is_valid(&self) -> bool {
        self.weights.check(self.name()).is_ok()
    }

    /// Takes the weights for what they are now, and computes what follows from them anew. Nothing is compiled.
    #[track_caller]
    pub fn refreeze(&self) -> Result<()> {
        let caller = Location::caller();
        let again = self.handle().refreeze();
        again.map_err(|error| located(error, caller))
    }

    /// Lets go of the function, and of all weights that no call reads any more: where nobody else holds those either, memory has the weights once.
    ///
    /// From here on the kinds of arguments that it was called with before are all it serves; any other, and [`refreeze`](Self::refreeze), is E0606. Writes to weights that were let go do not concern
    /// it any more.
    #[track_caller]
    pub fn release(&mut self) -> Result<()> {
        let caller = Location::caller();
        let called = self.handle().check_called();
        called.map_err(|error| located(error, caller))?;
        let name = self.name().to_owned();
        self.compiled.function.function = Box::new(move |_| Err(released(&name)));
        if let Some((_, tensors)) = &mut self.compiled.core.symbolic {
            tensors.clear();
        }
        self.handle().release();
        Ok(())
    }

    fn handle(&self) -> Handle<'_> {
        Handle {
            core: &self.compiled.core,
            weights: &self.weights,
        }
    }
}

pub(crate) fn released(name: &str) -> Error {
    err!(StaleFrozen, "the weights of {name} were released").help(
        "call it on arguments of each kind before release, or compile and freeze the function again",
    )
}

fn stale(name: &str, what: &str) -> Error {
    err!(StaleFrozen, "a frozen weight of {name} {what}")
        .help("call refreeze after a change of weights")
}

/// What a handle knows of its weights.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    invalid: bool,
    released: bool,
    /// The memory of each weight, once.
    marks: Vec<Mark>,
}

impl Weights {
    fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Remembers what these are from now on, but for those that it knows.
    fn mark(&self, tensors: &[rt::Tensor]) {
        self.write(|state| {
            for tensor in tensors {
                let storage = tensor.storage();
                if !state.marks.iter().any(|mark| mark.is_of(storage)) {
                    state.marks.push(storage.mark());
                }
            }
        });
    }

    fn renew(&self) {
        self.write(|state| state.marks = state.marks.iter().filter_map(Mark::renewed).collect());
    }

    fn set_invalid(&self, invalid: bool) {
        self.write(|state| state.invalid = invalid);
    }

    /// Only these are left. What was computed of others stays what it is, whoever writes to them.
    fn keep(&self, left: &[&rt::Tensor]) {
        self.write(|state| {
            let is_left = |mark: &Mark| left.iter().any(|tensor| mark.is_of(tensor.storage()));
            state.marks.retain(is_left);
            state.released = true;
        });
    }

    /// An error where a weight is not what it was.
    pub fn check(&self, name: &str) -> Result<()> {
        self.read(|state| match state {
            State { invalid: true, .. } => Err(stale(name, "was declared invalid")),
            State { marks, .. } if marks.iter().any(Mark::is_written) => {
                Err(stale(name, "was written after it was frozen"))
            }
            State { .. } => Ok(()),
        })
    }

    /// An error where the weights are not there any more.
    pub fn check_kept(&self, name: &str) -> Result<()> {
        match self.read(|state| state.released) {
            true => Err(released(name)),
            false => Ok(()),
        }
    }
}

/// The weights of one variant, and what is computed of them once.
#[derive(Debug)]
pub(crate) struct Once {
    /// None where nothing follows from the weights alone that is worth keeping.
    split: Option<Frozen>,
    /// How many inputs of the graph are arguments; the weights stand behind them.
    arguments: usize,
    /// The inputs of the graph that the plan takes before what is kept.
    reads: Vec<usize>,
    /// Whether a call needs each weight.
    needed: Vec<bool>,
    held: RwLock<Arc<Held>>,
}

/// What the calls of a variant read beside their arguments.
#[derive(Debug)]
pub(crate) struct Held {
    /// The weights, but for those that were released.
    originals: Vec<Option<rt::Tensor>>,
    /// What was computed of them; none where they are not what they were.
    kept: Option<Vec<rt::Tensor>>,
}

fn once_of(variant: &Variant) -> Option<&Once> {
    match &variant.kind {
        Kind::Whole(whole) => whole.once.as_ref(),
        Kind::Cut(_) => None,
    }
}

impl Once {
    /// Takes the captured tensors, and compiles; nothing is computed yet.
    pub fn new(
        name: &str,
        compiler: &Compiler,
        captured: &mut Captured,
    ) -> Result<(Self, Arc<Executable>, Origin)> {
        let weights = std::mem::take(&mut captured.tensors);
        let graph = &mut captured.graph;
        let arguments = graph.inputs.len() - captured.sizes.len() - weights.len();
        let frozen = arguments..arguments + weights.len();
        let written = graph.outputs.iter().filter_map(|output| output.alias);
        ensure!(
            !written.into_iter().any(|input| frozen.contains(&input)),
            InvalidArgument,
            "{name} writes to a tensor that is frozen"
        );
        for &input in &graph.inputs[frozen.clone()] {
            graph.values[input].frozen = true;
        }
        let split = caught(|| compiler.compile_frozen(graph)).map_err(of_ours)?;
        let (executable, origin, reads) = match &split {
            Some(split) => (split.main.clone(), split.origin, split.main_inputs.clone()),
            None => {
                let (executable, origin) = compile(compiler, graph)?;
                (executable, origin, (0..graph.inputs.len()).collect())
            }
        };
        let returned = |input: usize| {
            let mut results = captured.results.iter();
            results.any(|out| matches!(out, Out::ViewOfInput(of, _) if *of == input))
        };
        let needed = frozen.map(|input| reads.contains(&input) || returned(input));
        let once = Self {
            split,
            arguments,
            needed: needed.collect(),
            reads,
            held: RwLock::new(Arc::new(Held {
                originals: weights.into_iter().map(Some).collect(),
                kept: None,
            })),
        };
        Ok((once, executable, origin))
    }

    /// Computes what follows from the weights, or takes what another variant has computed of the same.
    pub fn compute(&self, weights: &Weights, known: &[Arc<Variant>]) -> Result<()> {
        let held = self.held();
        weights.mark(&held.originals.iter().flatten().cloned().collect::<Vec<_>>());
        let kept = match &self.split {
            None => Vec::new(),
            Some(split) => {
                let missing = || err!(Internal, "a weight that is not there");
                let read = self.prepared(split, &held).ok_or_else(missing)?;
                let same = known.iter().filter_map(|variant| once_of(variant));
                match same.filter_map(|once| once.computed(split, &read)).next() {
                    Some(kept) => kept,
                    None => split.prepare.run_once(&read)?,
                }
            }
        };
        self.set(Held {
            originals: held.originals.clone(),
            kept: Some(kept),
        });
        Ok(())
    }

    /// What the graph that runs once reads.
    fn prepared<'a>(&self, split: &Frozen, held: &'a Held) -> Option<Vec<&'a rt::Tensor>> {
        let inputs = split.prepare_inputs.iter();
        let weight = |input: &usize| held.original(input.checked_sub(self.arguments)?);
        inputs.map(weight).collect()
    }

    /// What was computed here, where it is what the other one computes of these tensors.
    fn computed(&self, other: &Frozen, read: &[&rt::Tensor]) -> Option<Vec<rt::Tensor>> {
        let split = self.split.as_ref()?;
        let held = self.held();
        let own = self.prepared(split, &held)?;
        let same = |(a, b): (&&rt::Tensor, &&rt::Tensor)| {
            a.storage().is_same(b.storage()) && a.address() == b.address()
        };
        let equal = Arc::ptr_eq(&split.prepare, &other.prepare)
            && own.len() == read.len()
            && own.iter().zip(read).all(same);
        held.kept.clone().filter(|_| equal)
    }

    /// In one sentence, for people.
    pub fn text(&self) -> String {
        match &self.split {
            Some(split) => split.text(),
            None => "frozen: nothing follows from the weights alone".to_owned(),
        }
    }

    pub fn held(&self) -> Arc<Held> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    fn set(&self, held: Held) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(held);
    }

    /// Lets go of what was computed.
    fn forget(&self) {
        self.set(Held {
            originals: self.held().originals.clone(),
            kept: None,
        });
    }

    /// Lets go of weights that no call needs.
    fn release(&self) {
        let held = self.held();
        let originals = held.originals.iter().zip(&self.needed);
        self.set(Held {
            originals: originals
                .map(|(tensor, needed)| tensor.clone().filter(|_| *needed))
                .collect(),
            kept: held.kept.clone(),
        });
    }

    /// Does something with all tensors that the plan takes; `sizes` are those that tell sizes.
    pub fn with_tensors<R>(
        &self,
        inputs: &[&rt::Tensor],
        sizes: &[rt::Tensor],
        run: impl FnOnce(&[&rt::Tensor]) -> Result<R>,
    ) -> Result<R> {
        let held = self.held();
        let Some(kept) = &held.kept else {
            return Err(stale("the function", "was declared invalid"));
        };
        let weights = held.originals.iter().map(Option::as_ref);
        let all: Vec<Option<&rt::Tensor>> = inputs
            .iter()
            .map(|input| Some(*input))
            .chain(weights)
            .chain(sizes.iter().map(Some))
            .collect();
        let read = self.reads.iter().map(|&input| all.get(input).copied()?);
        let mut tensors = read
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| err!(Internal, "a tensor of the plan that is not there"))?;
        tensors.extend(kept);
        run(&tensors)
    }
}

impl Held {
    /// A weight, where it was not released.
    pub fn original(&self, number: usize) -> Option<&rt::Tensor> {
        self.originals.get(number)?.as_ref()
    }
}

/// Calls may run at once on several threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<FrozenCall>();
};
