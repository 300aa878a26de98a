//! Capture: a function runs on traced tensors, and what it does is noted in a graph.
//!
//! ```text
//!   arguments ─┐                    ┌─ note: one node an operation
//!              ├─▶ traced tensors ──┼─ write: memory gets a new content (memory.rs)
//!   captured ──┘                    ├─ read: a cut; the segment so far is compiled and run (segment.rs)
//!                                   └─ return: outputs, views of inputs, write-backs (finish.rs)
//! ```
//!
//! A trace is open while its function runs, and is the current one of its thread: every operation there is noted, also one on concrete tensors only, which become further inputs of
//! the graph, read at every call. A tensor of a trace that is over, or of another one, is a leak and says so.
//!
//! **Sizes.** Extents of arguments may be symbols. Whoever asks for one as a number fixes it: the trace notes which and where, and its caller captures again with that extent known.

mod finish;
mod memory;
mod segment;

pub(crate) use finish::{Captured, Out, replay};
pub(crate) use segment::{Cut, Segment};

use crate::call::{Call, Operand, origin};
use crate::core::{Compilers, Request, Returned};
use crate::guard::Guard;
use crate::machine::Device;
use crate::tensor::{State, Tensor, located};
use memory::{Memory, Place};
use oxyfuel_base::{DType, Error, Expr, Result, Symbol, ensure, err};
use oxyfuel_graph::{
    Builder, Graph, HostTensor, Layout as Border, Op, Operand as Value, SymbolInfo, ValueId,
};
use oxyfuel_runtime::tensor as rt;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
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
    /// What each symbol is in this call.
    sizes: BTreeMap<Symbol, i64>,
    /// Symbols that the function wanted as numbers, and where.
    fixed: BTreeMap<Symbol, String>,
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
            for &symbol in symbols.iter().flatten() {
                let place = || format!("{}:{}", caller.file(), caller.line());
                open.fixed.entry(symbol).or_insert_with(place);
            }
        }
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

/// Notes an operation.
pub(crate) fn note(
    trace: &Arc<Trace>,
    call: &Call,
    operands: &[Operand<'_>],
    caller: &Location<'_>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("an operation"))?;
    open.builder.set_origin(Some(origin(caller)));
    let mut values = Vec::with_capacity(operands.len());
    let mut places = Vec::with_capacity(operands.len());
    for (i, operand) in operands.iter().enumerate() {
        match operand {
            Operand::Tensor(tensor) => {
                let (value, place) = open.operand(trace, tensor)?;
                values.push(Value::Value(value));
                places.push((value, place));
            }
            Operand::Number(number) => {
                values.push(open.number(call, operands, i, *number)?);
            }
        }
    }
    if let (Call::Squeeze(dim), Some((value, _))) = (call, places.first()) {
        open.fix_squeezed(*value, *dim, caller);
    }
    let out = call.record(&mut open.builder, &values)?;
    let place = open.place_of(call, out, &places)?;
    open.tensor(trace, out, place)
}

/// Notes a tensor that the program makes from nothing.
pub(crate) fn source(
    trace: &Arc<Trace>,
    caller: &Location<'_>,
    make: impl FnOnce(&mut Builder) -> Result<ValueId>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a constructor"))?;
    open.builder.set_origin(Some(origin(caller)));
    let value = make(&mut open.builder)?;
    let place = open.fresh(value)?;
    open.tensor(trace, value, place)
}

/// Notes a tensor that begins as a copy of one that was made during the capture, in memory of its own.
pub(crate) fn copied(
    trace: &Arc<Trace>,
    tensor: rt::Tensor,
    caller: &Location<'_>,
) -> Result<Tensor> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a constructor"))?;
    open.builder.set_origin(Some(origin(caller)));
    let (value, _) = open.operand(trace, &tensor.into())?;
    let place = open.fresh(value)?;
    open.tensor(trace, value, place)
}

/// Notes that the elements of a tensor are overwritten with those of another of the same type and shape.
pub(crate) fn write(
    trace: &Arc<Trace>,
    target: &Tensor,
    source: &Tensor,
    caller: &Location<'_>,
) -> Result<()> {
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a write"))?;
    open.builder.set_origin(Some(origin(caller)));
    let (value, _) = open.operand(trace, source)?;
    let (old, place) = open.operand(trace, target)?;
    let (to, from) = (open.builder.ty(old), open.builder.ty(value));
    ensure!(
        to == from,
        ShapeMismatch,
        "a write of {}{:?} into {}{:?}",
        from.dtype,
        from.shape,
        to.dtype,
        to.shape
    );
    let Open {
        builder, memory, ..
    } = open;
    memory.write(builder, &place, value)?;
    if let State::Traced(traced) = &target.state {
        memory.seen(traced.facts.id, value);
    }
    Ok(())
}

/// Notes a whole graph in the current trace; its arguments must have the types of its inputs.
pub(crate) fn splice(graph: &Graph, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
    let trace = current().ok_or_else(|| err!(Internal, "a graph is spliced into no trace"))?;
    let mut open = trace.lock();
    let open = open.as_mut().ok_or_else(|| leak("a graph"))?;
    let mut new: HashMap<ValueId, ValueId> = HashMap::new();
    for (i, (&input, argument)) in graph.inputs.iter().zip(arguments).enumerate() {
        let (value, _) = open.operand(&trace, argument)?;
        let (want, have) = (graph.ty(input), open.builder.ty(value));
        ensure!(
            want.dtype == have.dtype,
            DTypeMismatch,
            "input {i} of @{} is {}, got {}",
            graph.name,
            want.dtype,
            have.dtype
        );
        ensure!(
            want.shape == have.shape,
            ShapeMismatch,
            "input {i} of @{} has shape {:?}, got {:?}",
            graph.name,
            want.shape,
            have.shape
        );
        new.insert(input, value);
    }
    let moved = |new: &HashMap<ValueId, ValueId>, old: &ValueId| {
        new.get(old)
            .copied()
            .ok_or_else(|| err!(InvalidGraph, "{old} is used before it is defined"))
    };
    for node in graph.nodes.values() {
        open.builder.set_origin(Some(node.origin.clone()));
        let outputs = if let Op::Constant { id, device } = &node.op {
            let constant = &graph.constants[*id];
            let tensor = HostTensor::clone(&constant.tensor);
            vec![open.builder.constant(&constant.name, tensor, *device)?]
        } else {
            let inputs = node
                .inputs
                .iter()
                .map(|old| moved(&new, old))
                .collect::<Result<Vec<_>>>()?;
            open.builder.node(node.op.clone(), &inputs)?
        };
        new.extend(node.outputs.iter().copied().zip(outputs));
    }
    let outputs = graph.outputs.iter().map(|output| {
        let value = moved(&new, &output.value)?;
        let place = open.fresh(value)?;
        open.tensor(&trace, value, place)
    });
    outputs.collect()
}

impl Open {
    fn new(name: &str, compilers: Option<Arc<Compilers>>) -> Self {
        Self {
            builder: Builder::new(name),
            memory: Memory::default(),
            sizes: BTreeMap::new(),
            fixed: BTreeMap::new(),
            compilers,
            cuts: Vec::new(),
        }
    }

    /// The value that a tensor is in this graph now, and where its elements lie.
    fn operand(&mut self, trace: &Arc<Trace>, tensor: &Tensor) -> Result<(ValueId, Arc<Place>)> {
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
                let place = memory.lift(tensor, &self.cuts);
                Ok((memory.content(builder, place.base)?, place))
            }
        }
    }

    /// A number of an operation. After a cut it may come from what was read: as an input of its segment it does not lead to another compile when it changes.
    fn number(
        &mut self,
        call: &Call,
        operands: &[Operand<'_>],
        i: usize,
        number: oxyfuel_base::Scalar,
    ) -> Result<Value> {
        let other = match operands.get(1 - i.min(1)) {
            Some(Operand::Tensor(other))
                if !self.cuts.is_empty() && call.takes_tensor_numbers() =>
            {
                other
            }
            Some(_) | None => return Ok(Value::Number(number)),
        };
        let alike = matches!(other.dtype(), DType::F32 | DType::F64) && other.rank() > 0;
        if !alike || operands.len() != 2 {
            return Ok(Value::Number(number));
        }
        let made = suspended(|| Tensor::full(&[], number, other.dtype()));
        let State::Concrete(tensor) = &made.state else {
            return Ok(Value::Number(number));
        };
        let Self {
            builder, memory, ..
        } = self;
        let place = memory.lift(tensor, &[]);
        Ok(Value::Value(memory.content(builder, place.base)?))
    }

    /// Where the elements of a result lie: on those of an operand, if the operation is a view of it.
    fn place_of(
        &mut self,
        call: &Call,
        out: ValueId,
        places: &[(ValueId, Arc<Place>)],
    ) -> Result<Arc<Place>> {
        // Only what a call says it is, is looked into.
        let is_operand =
            |value: ValueId| !call.is_view() || places.iter().any(|(known, _)| *known == value);
        let (root, views) = memory::views(self.builder.graph(), out, &is_operand);
        if let Some((_, place)) = places.iter().find(|(value, _)| *value == root) {
            let sizes = &self.sizes;
            let number = |e: &Expr| e.eval(&|symbol| sizes.get(&symbol).copied());
            if let Some(place) = place.viewed(&views, &number)? {
                return Ok(Arc::new(place));
            }
        }
        self.fresh(out)
    }

    /// Whether a dim disappears is asked of its size, where that may be 1.
    fn fix_squeezed(&mut self, value: ValueId, dim: i64, caller: &Location<'_>) {
        let shape = &self.builder.ty(value).shape;
        let dim = if dim < 0 {
            dim + shape.len() as i64
        } else {
            dim
        };
        let extent = usize::try_from(dim).ok().and_then(|dim| shape.get(dim));
        for symbol in extent.map(Expr::symbols).unwrap_or_default() {
            let mut symbols = self.builder.graph().symbols.iter();
            if symbols.any(|info| info.symbol == symbol && info.min < 2) {
                let place = || format!("{}:{}", caller.file(), caller.line());
                self.fixed.entry(symbol).or_insert_with(place);
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
        shape
            .iter()
            .map(|e| e.eval(&|symbol| self.sizes.get(&symbol).copied()))
            .collect()
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
            strides: place.layout.strides.clone(),
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
    Cut(Returned, Vec<Cut>, Option<Segment>),
    /// It wants these sizes as numbers: capture again with them known.
    Fixed(BTreeMap<Symbol, String>),
}

/// The arguments of a capture, as values of the graph.
pub(crate) struct Borders {
    pub symbols: Vec<SymbolInfo>,
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
    let mut open = Open::new(name, compilers);
    for info in borders.symbols {
        if let Some(hint) = info.hint {
            open.sizes.insert(info.symbol, hint);
        }
        open.builder.declare(info);
    }
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
    let returned = returned?;
    drop(tensors);
    if open.cuts.is_empty() {
        let captured = open.finish(&trace, returned, borders.all_results)?;
        return Ok(Outcome::Whole(captured));
    }
    let cuts = std::mem::take(&mut open.cuts);
    let (returned, last) = open.last(&trace, returned)?;
    Ok(Outcome::Cut(returned, cuts, last))
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
