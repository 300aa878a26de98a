//! Python as the host of a plan: its tensors hold the buffers, its operators run the steps that we did not compile.

use crate::dlpack::{View, tensor};
use crate::form::{Call, Form, Forms, Value, Window};
use crate::graph::Inner;
use crate::lanes;
use crate::place::{Home, Place};
use crate::torch::{Torch, vectorcall};
use oxyfuel_base::{Code, Error, Id, Result, err};
use oxyfuel_plan::{BufferHome, Plan, Step};
use oxyfuel_runtime::device::Stream;
use oxyfuel_runtime::execute::{Host, LANES};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// Kernels that move less than this run without letting the GIL go: taking it back may cost more than they do.
const TINY: u64 = 64 << 10;

/// From here on memory is ours: its pages are kept.
const LARGE: usize = 1 << 20;

/// One call of a graph.
pub struct Caller<'a, 'py> {
    pub py: Python<'py>,
    pub torch: &'a Torch,
    pub graph: &'a Inner,
    pub forms: Arc<Forms>,
    /// What the host holds for each buffer.
    pub slots: Vec<Option<Py<PyAny>>>,
    view: View,
    operands: Vec<Bound<'py, PyAny>>,
    /// What lives between kernels, where the memory is torch's.
    arena: Option<Py<PyAny>>,
    /// Whether torch's profiler is told of each step, and the span of the one that runs.
    profiled: bool,
    range: Option<Bound<'py, PyAny>>,
    /// What Python raised; it outlives the error that stands for it on our side.
    pub raised: Option<PyErr>,
}

impl Host for Caller<'_, '_> {
    /// On a GPU all memory is torch's: what it frees on a stream it gives out again to what comes later on that stream.
    fn arena(&mut self, bytes: usize) -> Result<Option<u64>> {
        let Some(device) = &self.graph.home.device else {
            return Ok(None);
        };
        let made = self.torch.bytes(self.py, bytes, device).and_then(|tensor| {
            self.view.read(&tensor, self.graph.home.place)?;
            Ok(tensor)
        });
        self.arena = Some(self.keep(made)?.unbind());
        Ok(Some(self.view.address))
    }

    fn allocate(&mut self, buffer: usize, bytes: usize) -> Result<u64> {
        let forms = self.forms.clone();
        if bytes >= LARGE
            && self.graph.pool()
            && let Some(form) = &forms.buffers[buffer]
        {
            let storage = self.graph.device().allocate(bytes)?;
            let made = tensor(self.py, &storage, form.dtype, &form.shape, &form.strides);
            if let Some(tensor) = self.keep(made)? {
                self.slots[buffer] = Some(tensor.unbind());
                return Ok(storage.address());
            }
        }
        let made = match &forms.buffers[buffer] {
            Some(form) => form.empty(self.py, self.torch, &self.graph.home),
            None => return Err(err!(Internal, "buffer {buffer} has no form")),
        };
        let tensor = made.and_then(|tensor| {
            self.view.read(&tensor, self.graph.home.place)?;
            Ok(tensor)
        });
        let tensor = self.keep(tensor)?;
        self.slots[buffer] = Some(tensor.unbind());
        Ok(self.view.address)
    }

    fn external(&mut self, step: usize, addresses: &mut [u64], numbers: &mut [i64]) -> Result<()> {
        let ran = self.run(step, addresses, numbers);
        let binds = self.keep(ran)?;
        for &input in &self.graph.last_reads[step] {
            self.slots[input] = None;
        }
        if binds {
            let forms = self.graph.forms(self.py, numbers);
            self.forms = self.keep(forms)?;
        }
        Ok(())
    }

    fn release(&mut self, buffer: usize) {
        self.slots[buffer] = None;
    }

    fn compute(&mut self, bytes: u64, work: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        if bytes < TINY {
            work()
        } else {
            self.py.detach(work)
        }
    }

    fn lanes(&mut self, stream: Stream) -> Option<[Stream; LANES]> {
        match self.graph.branches() {
            true => lanes::offered(stream),
            false => None,
        }
    }

    fn on_lane(&mut self, lane: usize) -> Result<()> {
        let entered = lanes::enter(self.py, self.torch, lane);
        self.keep(entered)
    }

    fn watches(&self) -> bool {
        self.profiled
    }

    fn begin(&mut self, step: usize) -> Result<()> {
        let name = label(&self.graph.plan().steps[step], self.graph.plan());
        let range = self.torch.begin_range(self.py, &name);
        self.range = Some(self.keep(range)?);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let ended = self.range.take().map_or(Ok(()), |r| Torch::end_range(&r));
        // What the step itself raised says more.
        match self.raised {
            None => self.keep(ended),
            Some(_) => Ok(()),
        }
    }
}

/// What a profiler calls a step: who does it, the operators that it came from, and the first line of the program behind them.
fn label(step: &Step, plan: &Plan) -> String {
    let (name, provenance) = match step {
        Step::Launch { kernel, .. } => {
            let kernel = &plan.kernels[*kernel];
            (kernel.name.as_str(), &kernel.provenance)
        }
        Step::Copy { .. } => return "oxyfuel::copy".to_owned(),
        Step::External(step) => (step.call.name.as_str(), &step.provenance),
    };
    let mut ops = provenance.ops.join(", ");
    if let Some(line) = provenance.lines.first() {
        ops = format!("{ops} at {line}");
    }
    format!("oxyfuel::{name} ({})", ops.trim())
}

impl<'a, 'py> Caller<'a, 'py> {
    pub fn new(
        py: Python<'py>,
        torch: &'a Torch,
        graph: &'a Inner,
        forms: Arc<Forms>,
        slots: Vec<Option<Py<PyAny>>>,
        profiled: bool,
    ) -> Self {
        Self {
            profiled,
            range: None,
            py,
            torch,
            graph,
            forms,
            slots,
            view: View::default(),
            operands: vec![],
            arena: None,
            raised: None,
        }
    }

    /// An exception of Python's as an error of ours, kept so that the caller sees the exception itself.
    fn keep<T>(&mut self, result: PyResult<T>) -> Result<T> {
        result.map_err(|raised| {
            let error = Error::new(Code::HostCall, raised.to_string());
            self.raised = Some(raised);
            error
        })
    }

    /// Runs a step; whether it gave symbols their numbers.
    fn run(&mut self, number: usize, addresses: &mut [u64], numbers: &mut [i64]) -> PyResult<bool> {
        let graph = self.graph;
        let Step::External(step) = &graph.plan().steps[number] else {
            return Err(crate::errors::raise(err!(
                Internal,
                "step {number} is no call"
            )));
        };
        let forms = self.forms.clone();
        let (Some(call), Some(target)) = (&forms.calls[number], &graph.targets[number]) else {
            return Err(crate::errors::raise(err!(
                UnboundSymbol,
                "a size in the call of {} has no number",
                step.call.name
            )));
        };
        let returned = self.invoke(call, &target.callable, target.names.as_ref())?;
        let item = |index: usize| -> PyResult<Bound<'py, PyAny>> {
            if step.call.sequence {
                returned.get_item(index)
            } else {
                Ok(returned.clone())
            }
        };
        for bind in &step.call.binds {
            let result = item(bind.result as usize)?;
            let value: i64 = match bind.dim {
                None => result.extract()?,
                Some(dim) => {
                    self.view.read(&result, graph.home.place)?;
                    self.view.shape[dim as usize]
                }
            };
            let place = graph
                .plan()
                .symbols
                .iter()
                .position(|s| s.symbol == bind.symbol);
            if let Some(place) = place {
                numbers[place] = value;
            }
        }
        // A form may hold symbols that this very call has bound.
        let late;
        let call = if step.call.binds.is_empty() {
            call
        } else {
            late = self.graph.forms(self.py, numbers)?;
            late.calls[number].as_ref().unwrap_or(call)
        };
        for (index, buffer) in step.results.iter().enumerate() {
            let buffer = buffer.index();
            if !graph.read[buffer] {
                continue;
            }
            let result = item(index)?;
            self.slots[buffer] = Some(
                match &call.results[index] {
                    None => result,
                    Some(form) => {
                        let result = self.as_promised(result, form, &step.call.name)?;
                        addresses[buffer] = self.view.address;
                        result
                    }
                }
                .unbind(),
            );
        }
        Ok(!step.call.binds.is_empty())
    }

    fn invoke(
        &mut self,
        call: &Call,
        callable: &Py<PyAny>,
        names: Option<&Py<PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut operands = std::mem::take(&mut self.operands);
        for window in &call.operands {
            operands.push(self.window(window)?);
        }
        // Sequences that hold operands are made for this call; the rest is there already.
        let mut made = vec![];
        let mut args = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(match arg {
                Value::Constant(object) => object.as_ptr(),
                Value::Operand(number) => operands[*number].as_ptr(),
                Value::List(_) | Value::Tuple(_) => {
                    let sequence = arg.build(self.py, &operands)?;
                    let pointer = sequence.as_ptr();
                    made.push(sequence);
                    pointer
                }
            });
        }
        let returned = vectorcall(self.py, callable, &args, names);
        operands.clear();
        self.operands = operands;
        returned
    }

    /// The tensor that a call or the caller sees.
    pub fn window(&mut self, window: &Window) -> PyResult<Bound<'py, PyAny>> {
        let held = match &self.slots[window.buffer] {
            Some(held) => held.bind(self.py).clone(),
            None => self.constant(window.buffer)?,
        };
        let Some(form) = &window.form else {
            return Ok(held);
        };
        let seen = if window.whole {
            held
        } else {
            let held = self.of_type(held, form)?;
            self.torch
                .window(&held, &form.py_shape, &form.py_strides, window.offset)?
        };
        match &window.required {
            None => Ok(seen),
            Some(required) => required.copy(self.py, self.torch, &self.graph.home, &seen),
        }
    }

    /// A window of another element type looks at the same bytes.
    fn of_type(&mut self, held: Bound<'py, PyAny>, form: &Form) -> PyResult<Bound<'py, PyAny>> {
        self.view.read(&held, self.graph.home.place)?;
        if self.view.is_of(form.dtype) {
            return Ok(held);
        }
        held.call_method1("view", (self.torch.dtype(form.dtype),))
    }

    /// A constant of the plan as a tensor of its own: the caller may write what it is given.
    fn constant(&mut self, buffer: usize) -> PyResult<Bound<'py, PyAny>> {
        let forms = self.forms.clone();
        let spec = self.graph.plan().buffers.values().nth(buffer);
        let (Some(BufferHome::Constant(bytes)), Some(form)) =
            (spec.map(|spec| &spec.home), &forms.buffers[buffer])
        else {
            return Err(crate::errors::raise(err!(
                Internal,
                "nobody made buffer {buffer}"
            )));
        };
        let (shape, strides) = (&form.py_shape, &form.py_strides);
        let tensor = (self.torch).empty(self.py, shape, strides, form.dtype, None)?;
        self.view.read(&tensor, Place::Cpu)?;
        // SAFETY: the tensor was made with the form that the constant has, dense and of as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.view.address as *mut u8,
                bytes.len(),
            );
        }
        match self.graph.home.device {
            None => Ok(tensor),
            Some(_) => form.copy(self.py, self.torch, &self.graph.home, &tensor),
        }
    }

    /// A result in the form that the plan relies on; the view is of what is returned.
    fn as_promised(
        &mut self,
        result: Bound<'py, PyAny>,
        form: &Form,
        name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.view.read(&result, self.graph.home.place)?;
        if form.same(&self.view.shape, &self.view.strides) && self.view.is_of(form.dtype) {
            return Ok(result);
        }
        if self.view.shape != *form.shape || !self.view.is_of(form.dtype) {
            return Err(crate::errors::raise(err!(
                HostCall,
                "{name} returned a tensor of shape {:?}, not {:?} of {}",
                self.view.shape,
                form.shape,
                form.dtype
            )));
        }
        let copy = form.copy(self.py, self.torch, &self.graph.home, &result)?;
        self.view.read(&copy, self.graph.home.place)?;
        Ok(copy)
    }
}

impl Form {
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        torch: &Torch,
        home: &Home,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shape, strides) = (&self.py_shape, &self.py_strides);
        torch.empty(py, shape, strides, self.dtype, home.device.as_ref())
    }

    /// The same elements in this form, at home.
    pub fn copy<'py>(
        &self,
        py: Python<'py>,
        torch: &Torch,
        home: &Home,
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let copy = self.empty(py, torch, home)?;
        let (mut to, mut from) = (copy.clone(), tensor.clone());
        // Along a stride of 0 all elements are one, which torch wants to be written once.
        for d in (0..self.shape.len()).filter(|&d| self.strides[d] == 0 && self.shape[d] > 1) {
            to = to.call_method1("narrow", (d, 0, 1))?;
            from = from.call_method1("narrow", (d, 0, 1))?;
        }
        to.call_method1("copy_", (from,))?;
        Ok(copy)
    }
}
