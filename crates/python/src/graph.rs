//! A compiled graph as Python sees it: a callable that takes a list of tensors, empties it, and returns a tuple.

use crate::compile::Compiled;
use crate::dlpack::View;
use crate::errors::raise;
use crate::form::{Form, Forms, Maker, Output};
use crate::host::{Caller, take};
use crate::torch::Torch;
use oxyfuel_base::{Result, Symbol, err};
use oxyfuel_capture::{External, InputKind, Signature};
use oxyfuel_engine::Executable;
use oxyfuel_plan::{Plan, Step, SymbolSource};
use oxyfuel_runtime::device::Stream;
use oxyfuel_runtime::execute::LATER;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
    pub executable: Arc<Executable>,
    pub signature: Signature,
    /// The calls that stay with the host.
    pub externals: Vec<External>,
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
}

/// A callable of Python's and the names of its last arguments.
#[derive(Debug)]
pub struct Target {
    pub callable: Py<PyAny>,
    pub names: Option<Py<PyTuple>>,
}

impl Graph {
    pub fn new(py: Python<'_>, compiled: Compiled, objects: Py<PyList>) -> PyResult<Self> {
        let Compiled {
            executable,
            signature,
            externals,
        } = compiled;
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
        let mut inner = Inner {
            written: written.collect(),
            executable,
            signature,
            externals,
            objects,
            targets,
            only: None,
            known: Mutex::default(),
            given,
        };
        if inner.plan().symbols.is_empty() {
            inner.only = Some(Arc::new(inner.make_forms(py, &[])?));
        }
        Ok(Self { inner })
    }
}

impl Inner {
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
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
            outputs: &self.signature.outputs,
            objects: self.objects.bind(py),
            numbers: &numbers,
        };
        maker.make()
    }

    fn call<'py>(&self, inputs: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
        let py = inputs.py();
        let torch = Torch::get(py)?;
        if inputs.len() != self.signature.inputs.len() {
            return Err(raise(err!(
                ArityMismatch,
                "{} inputs for a graph with {}",
                inputs.len(),
                self.signature.inputs.len()
            )));
        }
        let items = take(inputs)?;
        let plan = self.plan();
        let mut addresses = vec![0; plan.inputs.len()];
        let mut slots: Vec<Option<Bound<'py, PyAny>>> = vec![None; plan.buffers.len()];
        let mut numbers = vec![LATER; plan.symbols.len()];
        let mut views = vec![];
        for (parameter, (item, kind)) in items.into_iter().zip(&self.signature.inputs).enumerate() {
            match kind {
                InputKind::Tensor(input) => {
                    let mut view = View::default();
                    view.read(&item)?;
                    views.push((*input, item, view));
                }
                InputKind::Object(input) => {
                    slots[oxyfuel_base::Id::index(plan.inputs[*input].buffer)] = Some(item);
                }
                InputKind::Symbol(_) => {
                    if let Some((_, place)) = self.given.iter().find(|(p, _)| *p == parameter) {
                        numbers[*place] = item.extract()?;
                    }
                }
                InputKind::Unused => {}
            }
        }
        for (place, binding) in plan.symbols.iter().enumerate() {
            if let SymbolSource::Extent { input, dim } = binding.source {
                let view = views.iter().find(|(index, ..)| *index == input as usize);
                let extent = view.and_then(|(_, _, view)| view.shape.get(dim as usize));
                numbers[place] = *extent
                    .ok_or_else(|| raise(err!(RankMismatch, "input {input} has no dim {dim}")))?;
            }
        }
        let forms = self.forms(py, &numbers)?;
        let mut written_back = vec![];
        for (input, item, view) in views {
            let spec = &plan.inputs[input];
            let Some(form) = &forms.inputs[input] else {
                return Err(raise(err!(
                    UnboundSymbol,
                    "input {} has no form",
                    spec.name
                )));
            };
            let item = match check(form, &view, spec.align, &spec.name).map_err(raise)? {
                true => {
                    addresses[input] = view.address;
                    item
                }
                false => {
                    let copy = form.copy(py, torch, &item)?;
                    let mut view = view;
                    view.read(&copy)?;
                    addresses[input] = view.address;
                    if self.written[input] {
                        written_back.push((item, copy.clone()));
                    }
                    copy
                }
            };
            slots[oxyfuel_base::Id::index(spec.buffer)] = Some(item);
        }
        let mut caller = Caller {
            py,
            torch,
            graph: self,
            forms,
            slots,
            view: View::default(),
            raised: None,
        };
        // SAFETY: every input was read from a live tensor that a slot holds, and has the form that the plan says; what the caller makes has the sizes of the
        // plan's own forms, and results of calls were checked against them.
        let ran = unsafe {
            self.executable.program().call_hosted(
                &mut numbers,
                &addresses,
                &mut caller,
                Stream::default(),
            )
        };
        if let Err(error) = ran {
            return Err(caller.raised.take().unwrap_or_else(|| raise(error)));
        }
        for (item, copy) in written_back {
            item.call_method1("copy_", (copy,))?;
        }
        self.results(&mut caller)
    }

    fn results<'py>(&self, caller: &mut Caller<'_, 'py>) -> PyResult<Bound<'py, PyTuple>> {
        let forms = caller.forms.clone();
        let mut results: Vec<Bound<'py, PyAny>> = Vec::with_capacity(forms.outputs.len());
        for output in &forms.outputs {
            results.push(match output {
                Output::Constant(object) => object.bind(caller.py).clone(),
                Output::Same(earlier) => results[*earlier].clone(),
                Output::Window(window) => caller.window(window, &[])?,
            });
        }
        PyTuple::new(caller.py, results)
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
    Ok(form.same_strides(&view.strides) && view.address.is_multiple_of(u64::from(align.max(1))))
}

#[pymethods]
impl Graph {
    fn __call__<'py>(&self, inputs: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyTuple>> {
        self.inner.call(inputs)
    }
}
