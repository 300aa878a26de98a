//! Variants: what a function became for one kind of arguments, and what runs in a call.

use crate::core::{Request, Template};
use crate::dynamic::{At, Pattern};
use crate::frozen::{Once, Weights};
use crate::guard::{ALIGNED, Guard};
use crate::structure::Constant;
use crate::tensor::Tensor;
use crate::trace::{self, Captured, Cut, Out, Segment};
use oxyfuel_base::error::caught;
use oxyfuel_base::{Code, DType, Error, Expr, Result, Symbol, err};
use oxyfuel_engine::{Compiler, Executable, Origin};
use oxyfuel_graph::Graph;
use oxyfuel_plan::Plan;
use oxyfuel_runtime::tensor as rt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A function that is cut holds so many segments; more are compiled anew at each call.
const MAX_SEGMENTS: usize = 1024;

/// What a function became for one kind of arguments.
#[derive(Debug)]
pub(crate) struct Variant {
    /// The arguments that it was made for.
    pub guards: Vec<Guard>,
    pub constants: Vec<Constant<'static>>,
    pub hash: u64,
    /// Which sizes are symbols; `None` where all are known.
    pub pattern: Option<Pattern>,
    /// Numbers that cannot be symbols, and where they are asked for.
    pub fixed: Vec<(At, String)>,
    /// Why it was compiled.
    pub reasons: Vec<String>,
    /// What became of each declared bucket, and why.
    pub buckets: Vec<String>,
    pub calls: AtomicU64,
    /// Calls that ran eagerly, because their arguments overlap where one is written.
    pub eager_calls: AtomicU64,
    pub capture: Duration,
    pub compiler: Arc<Compiler>,
    pub kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// One graph.
    Whole(Box<Whole>),
    /// It reads tensors on its way, and runs anew at every call.
    Cut(Mutex<Segments>),
}

/// A function as one graph.
#[derive(Debug)]
pub(crate) struct Whole {
    pub executable: Arc<Executable>,
    /// Where it came from.
    pub origin: Origin,
    /// Tensors that the function used beside its arguments.
    pub captured: Vec<rt::Tensor>,
    /// The same where they are frozen, and what was computed of them.
    pub once: Option<Once>,
    /// Symbols whose numbers are told by tensors behind those.
    sizes: Vec<Symbol>,
    pub results: Vec<Out>,
    /// Whether the outputs of the plan are the results, in order, and nothing else.
    pub is_plain: bool,
    pub template: Option<Template>,
    /// As it was captured, for whoever asks what came of it.
    pub graph: Graph,
    /// What runs where some arguments are given away, by which of them are.
    donating: Mutex<Vec<(Vec<bool>, Arc<Executable>)>>,
}

/// What is known of a function that is cut.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// Where it was cut, each place once.
    pub cuts: Vec<String>,
    /// Each once, with how often it ran.
    pub parts: Vec<(Segment, u64)>,
    /// Why sizes are numbers from now on, where they should be symbols.
    pub refused: Option<String>,
}

impl Segments {
    pub fn add(&mut self, cuts: &[Cut], last: Option<Segment>) {
        for cut in cuts {
            let text = cut.to_string();
            if !self.cuts.contains(&text) {
                self.cuts.push(text);
            }
        }
        let new = cuts.iter().filter_map(|cut| cut.segment.clone());
        for segment in new.chain(last) {
            self.refused = self.refused.take().or_else(|| segment.refused.clone());
            let known = self.parts.iter_mut();
            let mut same = known.filter(|(k, _)| Arc::ptr_eq(&k.executable, &segment.executable));
            if let Some((_, runs)) = same.next() {
                *runs += 1;
            } else if self.parts.len() < MAX_SEGMENTS {
                self.parts.push((segment, 1));
            }
        }
    }
}

/// A variant on its way: what is known of it before it is compiled.
pub(crate) struct Draft {
    pub hash: u64,
    pub constants: Vec<Constant<'static>>,
    pub reasons: Vec<String>,
    pub fixed: Vec<(At, String)>,
    pub capture: Duration,
    /// How many variants there were when it was begun.
    pub made: u64,
}

impl Draft {
    /// These sizes must be numbers.
    pub fn note_fixed(&mut self, request: &Request<'_>, places: Vec<(At, String)>) {
        let names = request.source.names(request.inputs.len());
        for (at, place) in &places {
            let what = at.text(&names);
            self.reasons.push(format!(
                "{what} stays a number: the function asks for it at {place}"
            ));
        }
        self.fixed.extend(places);
    }

    /// These sizes are numbers after a cut.
    pub fn note_settled(&mut self, request: &Request<'_>, places: &[(At, String)]) {
        let names = request.source.names(request.inputs.len());
        for (at, place) in places {
            let what = at.text(&names);
            self.reasons.push(format!(
                "{what} is a number from {place} on: the function asks for it after a cut"
            ));
        }
    }

    /// A graph of symbolic sizes could not be had.
    pub fn stays_known(&mut self, error: &Error) {
        self.reasons
            .push(format!("its sizes stay numbers: {}", error.message));
    }

    pub fn variant(
        self,
        request: &Request<'_>,
        compiler: Arc<Compiler>,
        pattern: Option<Pattern>,
        kind: Kind,
    ) -> Variant {
        let inputs = request.inputs.iter();
        let declared = request.declared.as_ref();
        let buckets = declared.map(|declared| declared.texts(request, pattern.as_ref()));
        Variant {
            compiler,
            guards: inputs.map(|input| Guard::of(input)).collect(),
            constants: self.constants,
            hash: self.hash,
            pattern,
            fixed: self.fixed,
            reasons: self.reasons,
            buckets: buckets.unwrap_or_default(),
            calls: AtomicU64::new(0),
            eager_calls: AtomicU64::new(0),
            capture: self.capture,
            kind,
        }
    }
}

impl Whole {
    pub fn new(compiler: &Compiler, captured: Captured) -> Result<Self> {
        let (executable, origin) = compile(compiler, &captured.graph)?;
        Ok(Self::of(captured, executable, origin, None))
    }

    /// A function whose captured tensors are frozen; `known` may have computed the same of them.
    pub fn frozen(
        name: &str,
        compiler: &Compiler,
        mut captured: Captured,
        weights: &Weights,
        known: &[Arc<Variant>],
    ) -> Result<Self> {
        let (once, executable, origin) = Once::new(name, compiler, &mut captured)?;
        once.compute(weights, known)?;
        Ok(Self::of(captured, executable, origin, Some(once)))
    }

    fn of(
        captured: Captured,
        executable: Arc<Executable>,
        origin: Origin,
        once: Option<Once>,
    ) -> Self {
        let mut results = captured.results.iter().enumerate();
        let is_plain = captured.results.len() == executable.plan().outputs.len()
            && results.all(|(i, out)| *out == Out::Planned(i));
        Self {
            executable,
            is_plain,
            origin,
            captured: captured.tensors,
            once,
            sizes: captured.sizes,
            results: captured.results,
            template: captured.template,
            graph: captured.graph,
            donating: Mutex::default(),
        }
    }

    /// What runs where these arguments are given away: compiled when that is first asked for, if a result could lie in one of them.
    pub fn donating(
        &self,
        compiler: &Compiler,
        inputs: &[&rt::Tensor],
        given: &[bool],
    ) -> Result<Arc<Executable>> {
        let plan = self.executable.plan();
        let fits = |(i, input): (usize, &&rt::Tensor)| {
            let spec = &plan.inputs[i];
            let size = |shape: &[Expr]| shape.iter().cloned().product::<Expr>();
            let mut outputs = plan.outputs.iter();
            let written = self.graph.outputs.iter().any(|out| out.alias == Some(i));
            given.get(i) == Some(&true)
                && !written
                && is_free(input)
                && outputs.any(|out| {
                    out.dtype == spec.dtype
                        && out.alias.is_none()
                        && size(&out.shape) == size(&spec.shape)
                })
        };
        let taken: Vec<bool> = inputs.iter().enumerate().map(fits).collect();
        if !taken.contains(&true) {
            return Ok(self.executable.clone());
        }
        let mut known = self.donating.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, executable)) = known.iter().find(|(key, _)| *key == taken) {
            return Ok(executable.clone());
        }
        let mut graph = self.graph.clone();
        for (&input, given) in self.graph.inputs.iter().zip(&taken) {
            graph.values[input].given = *given;
        }
        let (executable, _) = compile(compiler, &graph)?;
        let lie_in_inputs = |plan: &Plan| {
            plan.outputs
                .iter()
                .filter(|out| out.alias.is_some())
                .count()
        };
        // One plan is enough where nothing lies elsewhere.
        let executable = match lie_in_inputs(executable.plan()) > lie_in_inputs(plan) {
            true => executable,
            false => self.executable.clone(),
        };
        known.push((taken, executable.clone()));
        Ok(executable)
    }

    /// Does something with all tensors that the plan takes: arguments, then what the function captured, then what tells sizes.
    pub fn with_tensors<R>(
        &self,
        variant: &Variant,
        inputs: &[&rt::Tensor],
        run: impl FnOnce(&[&rt::Tensor]) -> Result<R>,
    ) -> Result<R> {
        if self.captured.is_empty() && self.sizes.is_empty() && self.once.is_none() {
            return run(inputs);
        }
        let size = |symbol: Symbol| variant.pattern.as_ref()?.size(symbol, inputs);
        let sizes = size_tensors(&variant.compiler, &self.sizes, &size)?;
        if let Some(once) = &self.once {
            return once.with_tensors(inputs, &sizes, run);
        }
        let mut tensors = inputs.to_vec();
        tensors.extend(self.captured.iter().chain(&sizes));
        run(&tensors)
    }

    /// What the function returns, from the outputs of the plan.
    pub fn results(
        &self,
        variant: &Variant,
        request: &Request<'_>,
        outputs: Vec<rt::Tensor>,
    ) -> Result<Vec<Tensor>> {
        if self.is_plain {
            return Ok(outputs.into_iter().map(Tensor::from).collect());
        }
        let size = |symbol: Symbol| variant.pattern.as_ref()?.size(symbol, request.inputs);
        let arguments = request.inputs.len();
        let missing = || err!(Internal, "a result that no output is");
        let held = self.once.as_ref().map(Once::held);
        let captured = |i: usize| match &held {
            Some(held) => held.original(i),
            None => self.captured.get(i),
        };
        let result = |out: &Out| match out {
            Out::Planned(i) => outputs.get(*i).cloned().ok_or_else(missing),
            Out::ViewOfPlanned(i, views) => {
                trace::replay(outputs.get(*i).ok_or_else(missing)?, views, &size)
            }
            Out::ViewOfInput(i, views) => {
                let input = match i.checked_sub(arguments) {
                    None => request.inputs[*i],
                    Some(i) => captured(i).ok_or_else(missing)?,
                };
                trace::replay(input, views, &size)
            }
        };
        let results = self.results.iter();
        results.map(|out| result(out).map(Tensor::from)).collect()
    }
}

/// Whether the memory of an argument that is given away can be a result's: nobody else holds it, and it is not much larger than the argument.
fn is_free(tensor: &rt::Tensor) -> bool {
    let bytes = tensor.len() * tensor.dtype().size();
    tensor.storage().is_unique()
        && tensor.address().is_multiple_of(ALIGNED)
        && tensor.storage().len() / 2 <= bytes
}

/// An executable for a graph that was verified. A panic of ours is an error that says so, not the end of the user's program.
pub(crate) fn compile(compiler: &Compiler, graph: &Graph) -> Result<(Arc<Executable>, Origin)> {
    caught(|| compiler.find_or_compile(graph)).map_err(of_ours)
}

/// The graph was good, so a verifier that refuses something refuses what one of our passes made of it.
pub(crate) fn of_ours(mut error: Error) -> Error {
    if let Code::InvalidGraph | Code::InvalidKernel | Code::InvalidPlan = error.code {
        error.code = Code::InvalidLowering;
    }
    error
}

/// Tensors that tell what symbols are: of one element, repeated as often.
pub(crate) fn size_tensors(
    compiler: &Compiler,
    symbols: &[Symbol],
    size: &dyn Fn(Symbol) -> Option<i64>,
) -> Result<Vec<rt::Tensor>> {
    let tensor = |&symbol: &Symbol| {
        let size = size(symbol).ok_or_else(|| err!(Internal, "nobody says what {symbol} is"))?;
        let one = rt::Tensor::empty_on(compiler.device().as_ref(), DType::U8, &[1])?;
        one.expand(&[size])
    };
    symbols.iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::advised;

    #[test]
    fn what_a_verifier_refuses_of_a_good_graph_is_ours() {
        for code in [Code::InvalidGraph, Code::InvalidKernel, Code::InvalidPlan] {
            let error = advised(of_ours(Error::new(code, "a value is defined twice")));
            assert_eq!(error.code, Code::InvalidLowering);
            assert!(error.help.is_some_and(|help| help.contains("report it")));
        }
        let error = of_ours(err!(NoLowering, "a program that no target knows"));
        assert_eq!(error.code, Code::NoLowering);
    }
}
