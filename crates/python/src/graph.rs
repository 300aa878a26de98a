//! A compiled graph as Python sees it: a callable that takes a list of tensors, empties it, and returns a tuple.

use crate::compile::{self, Compiled, Leftovers};
use crate::dlpack::View;
use crate::errors::raise;
use crate::form::{Form, Forms, Maker, Output};
use crate::frozen::Frozen;
use crate::host::Caller;
use crate::place::Home;
use crate::torch::Torch;
use oxyfuel_base::{Id, Result, Symbol, err};
use oxyfuel_capture::{InputKind, OutputKind};
use oxyfuel_engine::Executable;
use oxyfuel_plan::{ArgRef, BufferId, Plan, Step, SymbolSource};
use oxyfuel_runtime::device::Device;
use oxyfuel_runtime::execute::LATER;
use oxyfuel_runtime::overlap::{Range, overlaps};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// More assignments than this and the oldest knowledge is forgotten.
const MAX_FORMS: usize = 256;

/// A compiled graph.
#[pyclass(frozen, module = "oxyfuel._native", name = "CompiledGraph")]
#[derive(Debug)]
pub struct Graph {
    pub inner: Inner,
}

/// What a graph is made of.
#[derive(Debug)]
pub struct Inner {
    compiled: Compiled,
    /// Where everything is that kernels touch.
    pub home: Home,
    /// Objects that arguments name by number.
    pub objects: Py<PyList>,
    /// By step: what an external call calls.
    pub targets: Vec<Option<Target>>,
    /// The forms of a plan without symbols.
    only: Option<Arc<Forms>>,
    known: Mutex<HashMap<Box<[i64]>, Arc<Forms>>>,
    /// For each parameter that is a symbol, the symbol's place in the plan.
    given: Vec<(usize, usize)>,
    /// Inputs that the plan writes.
    written: Vec<bool>,
    /// Parameters that are results too.
    returned: Vec<usize>,
    /// By buffer: whether anybody reads it. A result of an external call that nobody reads is let go unseen, whatever it is.
    pub read: Vec<bool>,
    /// The buffer of each input.
    input_buffers: Vec<usize>,
    /// By step: inputs that nobody reads after this external call.
    pub last_reads: Vec<Vec<usize>>,
    /// The plan on devices with other numbers of threads than it was compiled for.
    others: Mutex<HashMap<usize, Arc<Executable>>>,
    /// What calls need for themselves, waiting for the next.
    states: Mutex<Vec<State>>,
    /// What was computed once, of frozen parameters.
    frozen: Option<Frozen>,
    /// Inputs that are frozen parameters as they are, and where calls found them.
    weights: Vec<usize>,
    weights_at: Mutex<BTreeSet<u64>>,
    _leftovers: Leftovers,
}

/// More calls at once than this, and what they needed is not kept.
const MAX_STATES: usize = 16;

/// What a call needs for itself.
#[derive(Debug)]
struct State {
    views: Vec<View>,
    addresses: Vec<u64>,
    numbers: Vec<i64>,
    slots: Vec<Option<Py<PyAny>>>,
    /// Addresses and numbers with which no written input overlapped another input.
    apart: Option<(Vec<u64>, Vec<i64>)>,
    ranges: Vec<Range>,
}

impl State {
    fn new(plan: &Plan) -> Self {
        let mut slots = vec![];
        slots.resize_with(plan.buffers.len(), || None);
        Self {
            views: vec![View::default(); plan.inputs.len()],
            addresses: vec![0; plan.inputs.len()],
            numbers: vec![LATER; plan.symbols.len()],
            slots,
            apart: None,
            ranges: vec![],
        }
    }
}

/// A callable of Python's and the names of its last arguments.
#[derive(Debug)]
pub struct Target {
    pub callable: Py<PyAny>,
    pub names: Option<Py<PyTuple>>,
}

impl Graph {
    pub fn new(py: Python<'_>, compiled: Compiled, objects: Py<PyList>) -> PyResult<Self> {
        let (executable, signature) = (&compiled.executable, &compiled.signature);
        let torch = Torch::get(py)?;
        let plan = executable.plan();
        let mut targets = vec![];
        for step in &plan.steps {
            targets.push(match step {
                Step::External(step) => {
                    let names: Vec<&str> = step
                        .call
                        .kwargs
                        .iter()
                        .map(|(name, _)| name.as_str())
                        .collect();
                    Some(Target {
                        callable: torch.resolve(py, &step.call.name, objects.as_any())?,
                        names: if names.is_empty() {
                            None
                        } else {
                            Some(PyTuple::new(py, names)?.unbind())
                        },
                    })
                }
                Step::Launch { .. } | Step::Copy { .. } => None,
            });
        }
        let place = |symbol: Symbol| plan.symbols.iter().position(|s| s.symbol == symbol);
        let mut given = vec![];
        for (parameter, kind) in signature.inputs.iter().enumerate() {
            if let InputKind::Symbol(expr) = kind
                && let Some(place) = expr.as_symbol().and_then(place)
            {
                given.push((parameter, place));
            }
        }
        let written = (0..plan.inputs.len()).map(|input| {
            let input = u32::try_from(input).unwrap_or(u32::MAX);
            plan.outputs
                .iter()
                .any(|output| output.alias == Some(input))
        });
        let returned = signature.outputs.iter().filter_map(|output| match output {
            OutputKind::Input(parameter) => Some(*parameter),
            OutputKind::Value(_)
            | OutputKind::View(_)
            | OutputKind::Int(_)
            | OutputKind::None
            | OutputKind::Constant(_) => None,
        });
        let frozen = match &compiled.once {
            Some(once) => Some(Frozen::new(py, once, &compiled.settings, &objects)?),
            None => None,
        };
        let weights = signature.inputs.iter().enumerate();
        let weights = weights.filter_map(|(parameter, kind)| match kind {
            InputKind::Tensor(input) if compiled.settings.is_frozen(parameter) => Some(*input),
            InputKind::Tensor(_)
            | InputKind::Object(_)
            | InputKind::Symbol(_)
            | InputKind::Unused => None,
        });
        let mut inner = Inner {
            frozen,
            weights: weights.collect(),
            weights_at: Mutex::default(),
            written: written.collect(),
            returned: returned.collect(),
            read: read_buffers(plan),
            input_buffers: plan.inputs.iter().map(|spec| spec.buffer.index()).collect(),
            last_reads: last_reads(plan),
            others: Mutex::default(),
            states: Mutex::default(),
            home: Home::new(py, torch, compiled.settings.place().map_err(raise)?)?,
            compiled,
            objects,
            targets,
            only: None,
            known: Mutex::default(),
            given,
            _leftovers: Leftovers,
        };
        if inner.plan().symbols.is_empty() {
            inner.only = Some(Arc::new(inner.make_forms(py, &[])?));
        }
        Ok(Self { inner })
    }
}

fn read_buffers(plan: &Plan) -> Vec<bool> {
    let mut read = vec![false; plan.buffers.len()];
    let mut see = |buffer: BufferId| read[buffer.index()] = true;
    for step in &plan.steps {
        match step {
            Step::Launch { args, .. } => {
                for arg in args {
                    if let ArgRef::Buffer { buffer, .. } = arg {
                        see(*buffer);
                    }
                }
            }
            Step::Copy { src, .. } => see(*src),
            Step::External(step) => step.operands.iter().for_each(|o| see(o.buffer)),
        }
    }
    plan.outputs.iter().for_each(|output| see(output.buffer));
    read
}

impl Inner {
    pub fn plan(&self) -> &Plan {
        self.compiled.executable.plan()
    }

    /// Large tensors live on memory of ours.
    pub fn pool(&self) -> bool {
        self.compiled.pool()
    }

    /// Steps of recorded calls that need nothing of each other may be done at once.
    pub fn branches(&self) -> bool {
        self.compiled.settings.branches()
    }

    /// The plan with as many threads as torch uses now.
    fn executable(&self, py: Python<'_>, torch: &Torch) -> PyResult<Arc<Executable>> {
        let compiled = &self.compiled;
        let Some(usual) = compiled.followed() else {
            return Ok(compiled.executable.clone());
        };
        let threads = torch.threads(py)?;
        if threads == usual {
            return Ok(compiled.executable.clone());
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = others.get(&threads) {
            return Ok(other.clone());
        }
        let other = compiled.with_threads(threads).map_err(raise)?;
        others.insert(threads, other.clone());
        Ok(other)
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        self.compiled.executable.device()
    }

    /// The forms for these numbers, one for each symbol of the plan.
    pub fn forms(&self, py: Python<'_>, numbers: &[i64]) -> PyResult<Arc<Forms>> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(forms) = known().get(numbers) {
            return Ok(forms.clone());
        }
        let forms = Arc::new(self.make_forms(py, numbers)?);
        let mut known = known();
        if known.len() >= MAX_FORMS {
            known.clear();
        }
        known.insert(numbers.into(), forms.clone());
        Ok(forms)
    }

    fn make_forms(&self, py: Python<'_>, numbers: &[i64]) -> PyResult<Forms> {
        let symbols = self.plan().symbols.iter().zip(numbers);
        let numbers: Vec<(Symbol, i64)> = symbols
            .filter(|(_, value)| **value != LATER)
            .map(|(binding, value)| (binding.symbol, *value))
            .collect();
        let maker = Maker {
            py,
            torch: Torch::get(py)?,
            plan: self.plan(),
            outputs: &self.compiled.signature.outputs,
            objects: self.objects.bind(py),
            numbers: &numbers,
        };
        maker.make()
    }

    pub fn call<'py>(&self, inputs: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
        let count = inputs.len();
        if count != self.compiled.signature.inputs.len() {
            return Err(raise(err!(
                ArityMismatch,
                "{count} inputs for a graph with {}",
                self.compiled.signature.inputs.len()
            )));
        }
        let mut state = self
            .states()
            .pop()
            .unwrap_or_else(|| State::new(self.plan()));
        let called = self.call_with(inputs, &mut state);
        if state.slots.len() == self.plan().buffers.len() {
            state.slots.fill_with(|| None);
        } else {
            state = State::new(self.plan());
        }
        let mut states = self.states();
        if states.len() < MAX_STATES {
            states.push(state);
        }
        drop(states);
        called
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn weights_at(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.weights_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn call_with<'py>(
        &self,
        inputs: &Bound<'py, PyList>,
        state: &mut State,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let py = inputs.py();
        let torch = Torch::get(py)?;
        let plan = self.plan();
        state.numbers.fill(LATER);
        for (parameter, kind) in self.compiled.signature.inputs.iter().enumerate() {
            match kind {
                InputKind::Tensor(input) => {
                    let item = inputs.get_item(parameter)?;
                    state.views[*input]
                        .read(&item, self.home.place)
                        .map_err(|error| unreadable(&item, &plan.inputs[*input].name, error))?;
                    state.slots[self.input_buffers[*input]] = Some(item.unbind());
                }
                InputKind::Object(input) => {
                    let item = inputs.get_item(parameter)?;
                    state.slots[self.input_buffers[*input]] = Some(item.unbind());
                }
                InputKind::Symbol(_) => {
                    if let Some((_, place)) = self.given.iter().find(|(p, _)| *p == parameter) {
                        let item = inputs.get_item(parameter)?;
                        state.numbers[*place] = item.extract().map_err(|_| {
                            let class = item.get_type();
                            raise(err!(
                                InvalidArgument,
                                "input {parameter} is {class}, not an integer"
                            ))
                        })?;
                    }
                }
                InputKind::Unused => {}
            }
        }
        if !self.weights.is_empty() {
            let at = self.weights.iter().map(|&input| state.views[input].address);
            self.weights_at().extend(at);
        }
        if let Some(frozen) = &self.frozen {
            let kept = frozen.kept(inputs, self)?;
            let first = plan.inputs.len() - kept.tensors.len();
            for (number, tensor) in kept.tensors.iter().enumerate() {
                state.views[first + number].read(tensor.bind(py), self.home.place)?;
                let buffer = self.input_buffers[first + number];
                state.slots[buffer] = Some(tensor.clone_ref(py));
            }
        }
        let returned = self.returned.iter().map(|&parameter| {
            let item = inputs.get_item(parameter)?;
            Ok((parameter, item))
        });
        let returned = returned.collect::<PyResult<Vec<_>>>()?;
        inputs.del_slice(0, inputs.len())?;
        for (place, binding) in plan.symbols.iter().enumerate() {
            if let SymbolSource::Extent { input, dim } = binding.source {
                let extent = state.views[input as usize].shape.get(dim as usize);
                state.numbers[place] = *extent
                    .ok_or_else(|| raise(err!(RankMismatch, "input {input} has no dim {dim}")))?;
            }
        }
        let forms = self.forms(py, &state.numbers)?;
        let mut written_back = vec![];
        for (input, (form, spec)) in forms.inputs.iter().zip(&plan.inputs).enumerate() {
            let buffer = self.input_buffers[input];
            let (Some(form), Some(item)) = (form, &state.slots[buffer]) else {
                continue;
            };
            let view = &mut state.views[input];
            if !check(form, view, spec.align, &spec.name).map_err(raise)? {
                let copy = form.copy(py, torch, &self.home, item.bind(py))?;
                view.read(&copy, self.home.place)?;
                if self.written[input] {
                    written_back.push((item.clone_ref(py), copy.clone()));
                }
                state.slots[buffer] = Some(copy.unbind());
            }
            state.addresses[input] = state.views[input].address;
        }
        for input in self.overlapping(&forms, state) {
            let buffer = self.input_buffers[input];
            let (Some(form), Some(item)) = (&forms.inputs[input], &state.slots[buffer]) else {
                continue;
            };
            let copy = form.copy(py, torch, &self.home, item.bind(py))?;
            state.views[input].read(&copy, self.home.place)?;
            state.addresses[input] = state.views[input].address;
            written_back.push((item.clone_ref(py), copy.clone()));
            state.slots[buffer] = Some(copy.unbind());
        }
        let executable = self.executable(py, torch)?;
        let stream = torch.stream(py, self.home.place)?;
        let profiled = torch.is_profiled(py)?;
        let slots = std::mem::take(&mut state.slots);
        let mut caller = Caller::new(py, torch, self, forms, slots, profiled);
        // SAFETY: every input was read from a live tensor that a slot holds, and has the form that the plan says; what the caller makes has the sizes of the
        // plan's own forms, and results of calls were checked against them.
        let ran = unsafe {
            executable.program().call_hosted(
                &mut state.numbers,
                &state.addresses,
                &mut caller,
                stream,
            )
        };
        let result = match ran {
            Err(error) => Err(caller.raised.take().unwrap_or_else(|| raise(error))),
            Ok(()) => {
                for (item, copy) in written_back {
                    item.call_method1(py, "copy_", (copy,))?;
                }
                self.results(&mut caller, &returned)
            }
        };
        state.slots = caller.slots;
        result
    }

    /// The written inputs that overlap another input. The plan takes inputs for memory of their own: such a one is computed elsewhere and copied at the end.
    ///
    /// Dynamo knows when two arguments are one tensor, and AOTAutograd traces views of one storage as such; neither looks again where a later call brings views that
    /// overlap and the first one did not.
    fn overlapping(&self, forms: &Forms, state: &mut State) -> Vec<usize> {
        if !self.written.contains(&true)
            || matches!(&state.apart, Some((addresses, numbers)) if *addresses == state.addresses && *numbers == state.numbers)
        {
            return vec![];
        }
        state.ranges.clear();
        let inputs = forms.inputs.iter().zip(&state.addresses).enumerate();
        state
            .ranges
            .extend(inputs.filter_map(|(input, (form, &begin))| {
                let end = begin + form.as_ref()?.bytes();
                (end > begin).then_some(Range {
                    begin,
                    end,
                    input,
                    written: self.written[input],
                })
            }));
        let found = overlaps(&mut state.ranges);
        if found.is_empty() {
            state.apart = Some((state.addresses.clone(), state.numbers.clone()));
        }
        found
    }

    fn results<'py>(
        &self,
        caller: &mut Caller<'_, 'py>,
        returned: &[(usize, Bound<'py, PyAny>)],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let forms = caller.forms.clone();
        let mut results: Vec<Bound<'py, PyAny>> = Vec::with_capacity(forms.outputs.len());
        for output in &forms.outputs {
            results.push(match output {
                Output::Constant(object) => object.bind(caller.py).clone(),
                Output::Same(earlier) => results[*earlier].clone(),
                Output::Input(parameter) => match returned.iter().find(|r| r.0 == *parameter) {
                    Some((_, item)) => item.clone(),
                    None => {
                        return Err(raise(err!(
                            Internal,
                            "nobody kept parameter {parameter}, which is a result"
                        )));
                    }
                },
                Output::Window(window) => caller.window(window)?,
            });
        }
        PyTuple::new(caller.py, results)
    }
}

/// By step: inputs that no step after it touches and that are no outputs. Only external calls have any: between them nothing is freed.
fn last_reads(plan: &Plan) -> Vec<Vec<usize>> {
    let mut last = vec![0; plan.buffers.len()];
    let end = plan.steps.len();
    for (number, step) in plan.steps.iter().enumerate() {
        let mut touch = |buffer: BufferId| last[buffer.index()] = number;
        match step {
            Step::External(step) => step.operands.iter().for_each(|o| touch(o.buffer)),
            Step::Copy { src, dst, .. } => [*src, *dst].into_iter().for_each(touch),
            Step::Launch { args, .. } => args.iter().for_each(|arg| {
                if let ArgRef::Buffer { buffer, .. } = arg {
                    touch(*buffer);
                }
            }),
        }
    }
    for output in &plan.outputs {
        last[output.buffer.index()] = end;
    }
    let calls: Vec<usize> = (0..end)
        .filter(|step| matches!(plan.steps[*step], Step::External(_)))
        .collect();
    let mut reads = vec![vec![]; end];
    for spec in &plan.inputs {
        let buffer = spec.buffer.index();
        if let Some(call) = calls.iter().find(|call| **call >= last[buffer]) {
            reads[*call].push(buffer);
        }
    }
    reads
}

/// What to say of an input that cannot be read.
fn unreadable(item: &Bound<'_, PyAny>, name: &str, error: PyErr) -> PyErr {
    let class = item.py().import("torch").and_then(|t| t.getattr("Tensor"));
    match class.and_then(|class| item.is_instance(&class)) {
        Ok(false) => raise(err!(
            InvalidArgument,
            "input {name} is {}, not a tensor",
            item.get_type()
        )),
        Ok(true) | Err(_) => error,
    }
}

/// Whether an input can be used as it is; an error where it is not the tensor that the plan was made for.
fn check(form: &Form, view: &View, align: u32, name: &str) -> Result<bool> {
    if *form.shape != *view.shape {
        return Err(err!(
            ShapeMismatch,
            "input {name} has shape {:?}, not {:?}",
            view.shape,
            form.shape
        ));
    }
    if !view.is_of(form.dtype) {
        return Err(err!(DTypeMismatch, "input {name} is not {}", form.dtype));
    }
    if view.address == 0 && !view.shape.contains(&0) {
        let empty = err!(StaleFrozen, "input {name} has no memory any more");
        return Err(empty.help(
            "weights that oxyfuel.release() gave back are kept for the graphs that had been called before it alone",
        ));
    }
    Ok(form.same_strides(&view.strides) && view.address.is_multiple_of(u64::from(align.max(1))))
}

#[pymethods]
impl Graph {
    fn __call__<'py>(&self, inputs: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
        self.inner.call(inputs)
    }

    /// The graph as bytes, for [`load`](crate::_native::load).
    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = compile::store(&self.inner.compiled).map_err(raise)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// What became of the graph, as JSON: kernels, how many of them are interpreted, calls of torch's operators with their reasons, memory, compile steps. With a
    /// request (see [`explain`](crate::explain)) also what all of it should take, and what it should gain over eager.
    #[pyo3(signature = (request = None))]
    fn explain(&self, py: Python<'_>, request: Option<&str>) -> PyResult<String> {
        py.detach(|| crate::explain::explain(&self.inner.compiled, request))
            .map_err(raise)
    }

    /// What is computed once, of frozen parameters, is computed anew at the next call; whether there is any.
    fn refreeze(&self) -> PyResult<bool> {
        match &self.inner.frozen {
            Some(frozen) => frozen.forget().map(|()| true),
            None => Ok(false),
        }
    }

    /// Addresses of parameters that a call does not read any more, once what follows from them was computed.
    fn unread(&self) -> Vec<u64> {
        let frozen = self.inner.frozen.as_ref();
        frozen.map(Frozen::unread).unwrap_or_default()
    }

    /// Addresses of frozen parameters that calls read as they are.
    fn reads(&self) -> Vec<u64> {
        self.inner.weights_at().iter().copied().collect()
    }

    /// The memory at these addresses was given back.
    fn released(&self, addresses: Vec<u64>) {
        if let Some(frozen) = &self.inner.frozen {
            frozen.released(&addresses);
        }
    }

    /// How many launches, copies and calls of torch's a call makes.
    #[getter]
    fn steps(&self) -> usize {
        self.inner.plan().steps.len()
    }

    /// What a person should know: a folder that could not be used, and why.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.inner.compiled.executable.record().notes.clone()
    }

    /// The plan as text, for people.
    fn __str__(&self) -> String {
        let executable = &self.inner.compiled.executable;
        let basis = oxyfuel_engine::Basis::default();
        oxyfuel_engine::explain(executable.plan(), executable.record(), &basis).to_string()
    }
}
