//! Capture: a function runs on traced tensors, and what it does is noted in a graph.
//!
//! ```text
//!   arguments ─┐                    ┌─ note: one node an operation (note.rs)
//!              ├─▶ traced tensors ──┼─ write: memory gets a new content (memory.rs)
//!   captured ──┘                    ├─ read: a cut; the segment so far is compiled and run (segment.rs)
//!                                   └─ return: outputs, views of inputs, write-backs (finish.rs)
//! ```
//!
//! A trace is open while its function runs, and is the current one of its thread: every operation there is noted, also one on concrete tensors only, which become further inputs of
//! the graph, read at every call. A tensor of a trace that is over, or of another one, is a leak and says so.
//!
//! **Sizes.** Extents of arguments may be symbols. Whoever asks for one as a number fixes it: the trace notes which and where, and its caller captures again with that extent known. After a cut a part of
//! the function has run, and it cannot be captured again: the symbol is the number of this call from there on ([`settle`]).

mod finish;
mod memory;
mod note;
mod segment;
mod settle;

pub(crate) use finish::{Captured, Out, replay};
pub(crate) use note::{copied, note, source, splice, write};
pub(crate) use segment::{Cut, Segment};

use crate::core::{Compilers, Request, Returned};
use crate::guard::Guard;
use crate::machine::Device;
use crate::tensor::{State, Tensor, located};
use memory::{Memory, Place};
use oxyfuel_base::{DType, Error, Expr, Result, Symbol, err};
use oxyfuel_graph::{Builder, Layout as Border, SymbolInfo, ValueId};
use oxyfuel_runtime::tensor as rt;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value of a trace.
#[derive(Clone)]
pub(crate) struct Traced {
    trace: Arc<Trace>,
    facts: Arc<Facts>,
}

/// What is known of a traced tensor without asking its trace. Its trace knows by it whether anyone still holds the tensor.
#[derive(Debug)]
pub(crate) struct Facts {
    id: usize,
    pub dtype: DType,
    /// Extents, with symbols as the call has them.
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub contiguous: bool,
    pub device: Device,
    /// Symbols that each extent depends on; none at all where all are known.
    symbols: Vec<Vec<Symbol>>,
}

pub(crate) struct Trace {
    /// `None` once it is over.
    open: Mutex<Option<Open>>,
}

/// A graph on its way.
struct Open {
    builder: Builder,
    memory: Memory,
    /// The symbols, and what each of them is in this call.
    symbols: Vec<SymbolInfo>,
    sizes: BTreeMap<Symbol, i64>,
    /// Symbols that the function wanted as numbers, and where: before it was cut, and after.
    fixed: BTreeMap<Symbol, String>,
    settled: BTreeMap<Symbol, String>,
    /// What went wrong where no error could be returned.
    broken: Option<Error>,
    /// How segments are compiled; `None` where the function must stay whole.
    compilers: Option<Arc<Compilers>>,
    cuts: Vec<Cut>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

thread_local! {
    /// The traces of this thread, the innermost last; `None` where one is suspended.
    static CURRENT: RefCell<Vec<Option<Arc<Trace>>>> = const { RefCell::new(Vec::new()) };
}

/// The trace that operations of this thread are noted in.
pub(crate) fn current() -> Option<Arc<Trace>> {
    CURRENT.with_borrow(|all| all.last().cloned().flatten())
}

/// Whether operations of this thread are noted.
pub(crate) fn is_tracing() -> bool {
    CURRENT.with_borrow(|all| matches!(all.last(), Some(Some(_))))
}

/// Makes a trace the current one, or suspends it, until it is dropped.
struct Entered;

impl Entered {
    fn new(trace: Option<Arc<Trace>>) -> Self {
        CURRENT.with_borrow_mut(|all| all.push(trace));
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(Vec::pop);
    }
}

/// Runs something outside of every trace.
pub(crate) fn suspended<R>(f: impl FnOnce() -> R) -> R {
    let _entered = Entered::new(None);
    f()
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traced {
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Extents as numbers, which fixes those that are symbols.
    pub fn shape(&self, caller: &Location<'_>) -> &[i64] {
        self.fix(None, caller);
        &self.facts.shape
    }

    /// Notes that an extent, or all of them, was asked for as a number.
    pub fn fix(&self, dim: Option<usize>, caller: &Location<'_>) {
        let symbols = match dim {
            Some(dim) => self.facts.symbols.get(dim..=dim).unwrap_or_default(),
            None => &self.facts.symbols,
        };
        if symbols.iter().all(Vec::is_empty) {
            return;
        }
        if let Some(open) = self.trace.lock().as_mut() {
            let symbols: Vec<Symbol> = symbols.iter().flatten().copied().collect();
            open.fix(&symbols, caller);
        }
    }

    /// Strides as numbers, which fixes all that they may depend on.
    pub fn strides(&self, caller: &Location<'_>) -> &[i64] {
        self.fix(None, caller);
        if !self.facts.contiguous
            && let Some(open) = self.trace.lock().as_mut()
        {
            let symbols: Vec<Symbol> = open.sizes.keys().copied().collect();
            open.fix(&symbols, caller);
        }
        &self.facts.strides
    }

    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// The error of whoever wants memory that a captured program does not have.
    pub fn memory_wanted(&self, what: &str) -> Error {
        if self.trace.lock().is_none() {
            return leak(what);
        }
        err!(
            DataDependent,
            "{what} needs the memory of a tensor that is only being captured"
        )
        .help("do it outside of the function, or in oxyfuel::disable")
    }
}

fn leak(what: &str) -> Error {
    err!(
        TraceLeak,
        "{what} uses a traced tensor outside of the function that was captured"
    )
    .help("return the tensor from the function instead of keeping it")
}

impl Open {
    fn new(name: &str, borders: &Borders, compilers: Option<Arc<Compilers>>) -> Self {
        let mut open = Self {
            builder: Builder::new(name),
            memory: Memory::default(),
            symbols: borders.symbols.clone(),
            sizes: borders.sizes.clone(),
            fixed: BTreeMap::new(),
            settled: BTreeMap::new(),
            broken: None,
            compilers,
            cuts: Vec::new(),
        };
        open.declare();
        open
    }

    /// Tells the builder of a new graph which symbols there are.
    fn declare(&mut self) {
        for info in &self.symbols {
            self.builder.declare(info.clone());
        }
    }

    /// What symbols are in this call.
    fn number(&self, e: &Expr) -> Result<i64> {
        e.eval(&|symbol| self.sizes.get(&symbol).copied())
    }

    /// The value that a tensor is in this graph now, and where its elements lie.
    fn operand(&mut self, trace: &Arc<Trace>, tensor: &Tensor) -> Result<(ValueId, Arc<Place>)> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let Self {
            builder, memory, ..
        } = self;
        match &tensor.state {
            State::Traced(traced) if Arc::ptr_eq(&traced.trace, trace) => {
                memory.value_of(builder, traced.facts.id)
            }
            State::Traced(_) => Err(leak("an operation of another trace")),
            State::Failed(error) => Err((**error).clone()),
            State::Concrete(tensor) => {
                let place = memory.lift(tensor, &self.cuts, &self.sizes);
                Ok((memory.content(builder, place.base)?, place))
            }
        }
    }

    /// New memory for a value.
    fn fresh(&mut self, value: ValueId) -> Result<Arc<Place>> {
        let shape = self.extents(value)?;
        Ok(self.memory.fresh(value, &shape))
    }

    fn extents(&self, value: ValueId) -> Result<Vec<i64>> {
        let shape = &self.builder.ty(value).shape;
        shape.iter().map(|e| self.number(e)).collect()
    }

    fn tensor(&mut self, trace: &Arc<Trace>, value: ValueId, place: Arc<Place>) -> Result<Tensor> {
        let ty = self.builder.ty(value);
        let symbols = match self.sizes.is_empty() {
            true => Vec::new(),
            false => {
                let extents = ty.shape.iter();
                extents.map(|e| e.symbols().into_iter().collect()).collect()
            }
        };
        let facts = Arc::new(Facts {
            id: self.memory.tensors.len(),
            dtype: ty.dtype,
            shape: self.extents(value)?,
            strides: place.layout.strides.to_vec(),
            contiguous: place.layout.is_contiguous(),
            device: Device::from(ty.device),
            symbols,
        });
        self.memory.know(&facts, place, value);
        Ok(Tensor {
            state: State::Traced(Traced {
                trace: trace.clone(),
                facts,
            }),
        })
    }
}

/// What came of running a function on traced tensors.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is one graph.
    Whole(Captured),
    /// It was cut into segments, which have run.
    Cut(Ran),
    /// It wants these sizes as numbers, and nothing of it has run: capture again with them known.
    Fixed(BTreeMap<Symbol, String>),
    /// It failed after a part of it had run.
    Failed(Error),
}

/// A function that was cut into segments and has run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub returned: Returned,
    pub cuts: Vec<Cut>,
    /// What came after the last cut.
    pub last: Option<Segment>,
    /// Symbols that it wanted as numbers on its way, and where.
    pub settled: BTreeMap<Symbol, String>,
}

/// The arguments of a capture, as values of the graph.
pub(crate) struct Borders {
    pub symbols: Vec<SymbolInfo>,
    /// What they are in this call.
    pub sizes: BTreeMap<Symbol, i64>,
    /// One an argument.
    pub values: Vec<oxyfuel_graph::Value>,
    /// Every result is an output of the graph, also what a call finds in its inputs.
    pub all_results: bool,
}

impl Borders {
    /// All sizes known.
    pub fn fixed(request: &Request<'_>) -> Self {
        let names = request.source.names(request.inputs.len());
        let values = request.inputs.iter().zip(&names);
        Self {
            symbols: Vec::new(),
            sizes: BTreeMap::new(),
            values: values
                .map(|(tensor, name)| Guard::of(tensor).value(short(name)))
                .collect(),
            all_results: false,
        }
    }
}

/// Runs the function on traced arguments. Where it reads a tensor, it is cut if there are compilers for its segments.
pub(crate) fn capture(
    name: &str,
    request: &Request<'_>,
    borders: Borders,
    compilers: Option<Arc<Compilers>>,
) -> Result<Outcome> {
    let trace = Arc::new(Trace {
        open: Mutex::default(),
    });
    let mut open = Open::new(name, &borders, compilers);
    let mut tensors = Vec::with_capacity(request.inputs.len());
    for (input, border) in request.inputs.iter().zip(borders.values) {
        let place = open.memory.argument(input, border);
        let Open {
            builder, memory, ..
        } = &mut open;
        let value = memory.content(builder, place.base)?;
        tensors.push(open.tensor(&trace, value, place)?);
    }
    *trace.lock() = Some(open);
    // Whatever happens in the function, the trace is over when this one is.
    let _end = End(&trace);
    let returned = {
        let _entered = Entered::new(Some(trace.clone()));
        request.source.invoke(&tensors)
    };
    let mut open = trace.lock();
    let open = open
        .as_mut()
        .ok_or_else(|| err!(Internal, "a trace ended inside its function"))?;
    if !open.fixed.is_empty() {
        return Ok(Outcome::Fixed(std::mem::take(&mut open.fixed)));
    }
    drop(tensors);
    if open.cuts.is_empty() {
        let captured = open.finish(&trace, returned?, borders.all_results)?;
        return Ok(Outcome::Whole(captured));
    }
    Ok(
        match returned.and_then(|returned| open.last(&trace, returned)) {
            Ok(ran) => Outcome::Cut(ran),
            Err(error) => Outcome::Failed(error),
        },
    )
}

/// The name of an argument as an identifier: `x0`, or the path of a field.
pub(crate) fn short(name: &str) -> String {
    let path = name.trim_start_matches("argument ");
    match path.split_once('.') {
        Some((_, field)) => field.replace('.', "_"),
        None => format!("x{path}"),
    }
}

struct End<'a>(&'a Trace);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// The memory behind a tensor that is being captured: the function is cut here.
pub(crate) fn read(
    trace: &Arc<Trace>,
    tensor: &Tensor,
    what: &str,
    caller: &Location<'_>,
) -> Result<rt::Tensor> {
    let mut open = trace.lock();
    let Some(open) = open.as_mut() else {
        return Err(located(leak(what), caller));
    };
    open.read(trace, &[tensor], what, caller)
        .and_then(|mut tensors| {
            tensors
                .pop()
                .ok_or_else(|| err!(Internal, "a read of nothing"))
        })
        .map_err(|error| located(error, caller))
}

/// As [`read`], of several tensors at one cut.
pub(crate) fn read_all(
    trace: &Arc<Trace>,
    tensors: &[&Tensor],
    what: &str,
    caller: &Location<'_>,
) -> Result<Vec<rt::Tensor>> {
    let mut open = trace.lock();
    let Some(open) = open.as_mut() else {
        return Err(located(leak(what), caller));
    };
    open.read(trace, tensors, what, caller)
        .map_err(|error| located(error, caller))
}

/// The layout of a border of the graph.
pub(crate) fn required(strides: &[i64]) -> Border {
    Border::Required(strides.iter().map(|&stride| Expr::from(stride)).collect())
}
