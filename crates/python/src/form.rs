//! Everything in a plan that the host needs with numbers in it: forms of tensors, windows, integers in arguments.
//!
//! Made once for each assignment of numbers to the plan's symbols, so that a call only looks up.

use crate::torch::Torch;
use oxyfuel_base::{Arg, DType, Expr, External, ExternalResult, Id, Symbol};
use oxyfuel_capture::OutputKind;
use oxyfuel_plan::{HostOperand, Plan, Step};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyList, PyString, PyTuple};

/// A tensor's form, for us and for Python.
#[derive(Debug)]
pub struct Form {
    pub dtype: DType,
    pub shape: Box<[i64]>,
    pub strides: Box<[i64]>,
    pub py_shape: Py<PyTuple>,
    pub py_strides: Py<PyTuple>,
}

/// Elements of a buffer as a tensor.
#[derive(Debug)]
pub struct Window {
    pub buffer: usize,
    /// `None`: the object as it is.
    pub form: Option<Form>,
    /// From the buffer's start, in elements.
    pub offset: i64,
    /// The window is the buffer's own tensor.
    pub whole: bool,
    /// The form that a call must see, where the window's differs from it.
    pub required: Option<Form>,
}

/// An argument of a call.
#[derive(Debug)]
pub enum Value {
    Constant(Py<PyAny>),
    Operand(usize),
    List(Vec<Value>),
    Tuple(Vec<Value>),
}

/// A call of the host, ready but for its operands.
#[derive(Debug)]
pub struct Call {
    pub operands: Vec<Window>,
    pub args: Vec<Value>,
    /// The form of each result that is a tensor; `None` where a symbol in it has no number before the call.
    pub results: Vec<Option<Form>>,
}

/// A result of the graph.
#[derive(Debug)]
pub enum Output {
    Window(Window),
    /// The same as an earlier one.
    Same(usize),
    /// The argument of this number.
    Input(usize),
    Constant(Py<PyAny>),
}

/// A plan with numbers, as far as they are known.
#[derive(Debug)]
pub struct Forms {
    /// The tensors that the host makes.
    pub buffers: Vec<Option<Form>>,
    /// `None`: an object.
    pub inputs: Vec<Option<Form>>,
    /// By step; `None` where there is no call, or a number is missing.
    pub calls: Vec<Option<Call>>,
    /// Empty while a number is missing.
    pub outputs: Vec<Output>,
}

/// What the forms are made of, and with which numbers.
pub struct Maker<'a, 'py> {
    pub py: Python<'py>,
    pub torch: &'a Torch,
    pub plan: &'a Plan,
    pub outputs: &'a [OutputKind],
    pub objects: &'a Bound<'py, PyList>,
    pub numbers: &'a [(Symbol, i64)],
}

impl Maker<'_, '_> {
    pub fn make(&self) -> PyResult<Forms> {
        let plan = self.plan;
        let mut buffers = vec![];
        for buffer in plan.buffers.values() {
            buffers.push(match &buffer.tensor {
                Some(spec) => self.form(spec.dtype, &spec.shape, &spec.strides)?,
                None => None,
            });
        }
        let mut inputs = vec![];
        for spec in &plan.inputs {
            let object = plan.buffers[spec.buffer].tensor.is_none();
            inputs.push(if object {
                None
            } else {
                self.form(spec.dtype, &spec.shape, &spec.strides)?
            });
        }
        let mut forms = Forms {
            buffers,
            inputs,
            calls: vec![],
            outputs: vec![],
        };
        for step in &plan.steps {
            let call = match step {
                Step::External(step) => self.call(&forms, &step.call, &step.operands)?,
                Step::Launch { .. } | Step::Copy { .. } => None,
            };
            forms.calls.push(call);
        }
        if let Some(outputs) = self.outputs(&forms)? {
            forms.outputs = outputs;
        }
        Ok(forms)
    }

    fn number(&self, expr: &Expr) -> Option<i64> {
        let value = |symbol| {
            let found = self.numbers.iter().find(|(known, _)| *known == symbol);
            found.map(|(_, value)| *value)
        };
        expr.eval(&value).ok()
    }

    fn numbers(&self, exprs: &[Expr]) -> Option<Box<[i64]>> {
        exprs.iter().map(|expr| self.number(expr)).collect()
    }

    fn form(&self, dtype: DType, shape: &[Expr], strides: &[Expr]) -> PyResult<Option<Form>> {
        let (Some(shape), Some(strides)) = (self.numbers(shape), self.numbers(strides)) else {
            return Ok(None);
        };
        Ok(Some(Form {
            dtype,
            py_shape: PyTuple::new(self.py, shape.iter())?.unbind(),
            py_strides: PyTuple::new(self.py, strides.iter())?.unbind(),
            shape,
            strides,
        }))
    }

    /// `None`: a number is missing.
    fn call(
        &self,
        forms: &Forms,
        call: &External,
        operands: &[HostOperand],
    ) -> PyResult<Option<Call>> {
        let mut windows = vec![];
        for operand in operands {
            let form = match &operand.tensor {
                None => None,
                Some(spec) => match self.form(spec.dtype, &spec.shape, &spec.strides)? {
                    None => return Ok(None),
                    form => form,
                },
            };
            let required = match (&operand.required, &operand.tensor) {
                (Some(strides), Some(spec)) => self.form(spec.dtype, &spec.shape, strides)?,
                (None, _) | (_, None) => None,
            };
            let Some(offset) = self.number(&operand.offset) else {
                return Ok(None);
            };
            // Strides of dims with one element move nothing; operators read them all the same, and are given eager's.
            let (form, required) = match (form, required) {
                (Some(form), Some(required)) if form.same(&required.shape, &required.strides) => {
                    (Some(required), None)
                }
                (Some(form), required) => (Some(form), required),
                (None, _) => (None, None),
            };
            let buffer = operand.buffer.index();
            let whole = self.is_whole(forms, buffer, form.as_ref(), offset);
            windows.push(Window {
                buffer,
                form,
                offset,
                whole,
                required,
            });
        }
        let mut args = vec![];
        let named = call.kwargs.iter().map(|(_, arg)| arg);
        for arg in call.args.iter().chain(named) {
            match self.value(arg)? {
                Some(value) => args.push(value),
                None => return Ok(None),
            }
        }
        let mut results = vec![];
        for result in &call.results {
            results.push(match result {
                ExternalResult::Tensor {
                    dtype,
                    shape,
                    strides,
                } => self.form(*dtype, shape, strides)?,
                ExternalResult::Opaque | ExternalResult::Nothing => None,
            });
        }
        Ok(Some(Call {
            operands: windows,
            args,
            results,
        }))
    }

    /// Whether a window is the tensor that the host holds for the buffer.
    fn is_whole(&self, forms: &Forms, buffer: usize, form: Option<&Form>, offset: i64) -> bool {
        let Some(form) = form else { return true };
        let input = self
            .plan
            .inputs
            .iter()
            .position(|spec| spec.buffer.index() == buffer);
        let held = match input {
            Some(input) => &forms.inputs[input],
            None => &forms.buffers[buffer],
        };
        offset == 0
            && held.as_ref().is_some_and(|held| {
                held.dtype == form.dtype && held.shape == form.shape && held.strides == form.strides
            })
    }

    /// `None`: a number is missing.
    fn value(&self, arg: &Arg) -> PyResult<Option<Value>> {
        let py = self.py;
        let constant = |object: Bound<'_, PyAny>| Value::Constant(object.unbind());
        Ok(Some(match arg {
            Arg::Operand(number) => Value::Operand(*number as usize),
            Arg::None => Value::Constant(py.None()),
            Arg::Bool(value) => constant(value.into_pyobject(py)?.to_owned().into_any()),
            Arg::Int(expr) => match self.number(expr) {
                Some(value) => constant(value.into_pyobject(py)?.into_any()),
                None => return Ok(None),
            },
            Arg::Float(bits) => constant(PyFloat::new(py, f64::from_bits(*bits)).into_any()),
            Arg::Str(text) => constant(PyString::new(py, text).into_any()),
            Arg::DType(name) => Value::Constant(self.torch.constant(py, "dtype", name)?),
            Arg::Device(name) => Value::Constant(self.torch.constant(py, "device", name)?),
            Arg::Layout(name) => Value::Constant(self.torch.constant(py, "layout", name)?),
            Arg::MemoryFormat(name) => {
                Value::Constant(self.torch.constant(py, "memory_format", name)?)
            }
            Arg::Object(number) => constant(self.objects.get_item(*number as usize)?),
            Arg::List(items) => match self.values(items)? {
                Some(values) => Value::List(values).folded(py)?,
                None => return Ok(None),
            },
            Arg::Tuple(items) => match self.values(items)? {
                Some(values) => Value::Tuple(values).folded(py)?,
                None => return Ok(None),
            },
        }))
    }

    fn values(&self, items: &[Arg]) -> PyResult<Option<Vec<Value>>> {
        items.iter().map(|item| self.value(item)).collect()
    }

    /// `None`: a number is missing.
    fn outputs(&self, forms: &Forms) -> PyResult<Option<Vec<Output>>> {
        let mut outputs = vec![];
        for (number, kind) in self.outputs.iter().enumerate() {
            let earlier = self.outputs[..number].iter().position(|other| {
                matches!((other, kind), (OutputKind::Value(a), OutputKind::Value(b)) if a == b)
            });
            if let Some(earlier) = earlier {
                outputs.push(Output::Same(earlier));
                continue;
            }
            outputs.push(match kind {
                OutputKind::None => Output::Constant(self.py.None()),
                OutputKind::Input(parameter) => Output::Input(*parameter),
                OutputKind::Int(expr) => match self.number(expr) {
                    Some(value) => {
                        Output::Constant(value.into_pyobject(self.py)?.into_any().unbind())
                    }
                    None => return Ok(None),
                },
                OutputKind::Constant(arg) => match self.value(arg)? {
                    Some(Value::Constant(object)) => Output::Constant(object),
                    Some(Value::Operand(_) | Value::List(_) | Value::Tuple(_)) | None => {
                        return Ok(None);
                    }
                },
                OutputKind::Value(index) | OutputKind::View(index) => {
                    let spec = &self.plan.outputs[*index];
                    let buffer = spec.buffer.index();
                    let object = self.is_object(buffer);
                    let form = if object {
                        None
                    } else {
                        match self.form(spec.dtype, &spec.shape, &spec.strides)? {
                            None => return Ok(None),
                            form => form,
                        }
                    };
                    let Some(offset) = self.number(&spec.offset) else {
                        return Ok(None);
                    };
                    // Two results of one buffer are two tensors.
                    let taken = outputs.iter().any(|earlier| {
                        matches!(earlier, Output::Window(window) if window.buffer == buffer)
                    });
                    let apart = taken || matches!(kind, OutputKind::View(_));
                    let whole =
                        (object || !apart) && self.is_whole(forms, buffer, form.as_ref(), offset);
                    Output::Window(Window {
                        buffer,
                        form,
                        offset,
                        whole,
                        required: None,
                    })
                }
            });
        }
        Ok(Some(outputs))
    }

    /// Whether a buffer holds something that is no tensor of ours.
    fn is_object(&self, buffer: usize) -> bool {
        self.plan
            .buffers
            .values()
            .nth(buffer)
            .is_some_and(|buffer| {
                buffer.tensor.is_none()
                    && !matches!(buffer.home, oxyfuel_plan::BufferHome::Constant(_))
            })
    }
}

impl Value {
    /// A sequence of constants is a constant.
    fn folded(self, py: Python<'_>) -> PyResult<Value> {
        let (Value::List(items) | Value::Tuple(items)) = &self else {
            return Ok(self);
        };
        let mut constants = vec![];
        for item in items {
            match item {
                Value::Constant(object) => constants.push(object.clone_ref(py)),
                Value::Operand(_) | Value::List(_) | Value::Tuple(_) => return Ok(self),
            }
        }
        Ok(Value::Constant(match &self {
            Value::List(_) => PyList::new(py, constants)?.into_any().unbind(),
            Value::Tuple(_) | Value::Constant(_) | Value::Operand(_) => {
                PyTuple::new(py, constants)?.into_any().unbind()
            }
        }))
    }

    /// The argument for these operands.
    pub fn build<'py>(
        &self,
        py: Python<'py>,
        operands: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = |items: &[Value]| -> PyResult<Vec<Bound<'py, PyAny>>> {
            items.iter().map(|item| item.build(py, operands)).collect()
        };
        Ok(match self {
            Value::Constant(object) => object.bind(py).clone(),
            Value::Operand(number) => operands[*number].clone(),
            Value::List(items) => PyList::new(py, all(items)?)?.into_any(),
            Value::Tuple(items) => PyTuple::new(py, all(items)?)?.into_any(),
        })
    }
}

impl Form {
    /// From the first element to the end of the last.
    pub fn bytes(&self) -> u64 {
        if self.shape.contains(&0) {
            return 0;
        }
        let dims = self.shape.iter().zip(&self.strides);
        let last: i64 = dims.map(|(extent, stride)| (extent - 1) * stride).sum();
        let bits = (last + 1).unsigned_abs() * u64::from(self.dtype.bits());
        bits.div_ceil(8)
    }

    /// Whether a tensor has this form. Strides of dims with one element do not matter, nor those of a tensor without elements.
    pub fn same(&self, shape: &[i64], strides: &[i64]) -> bool {
        *self.shape == *shape && self.same_strides(strides)
    }

    pub fn same_strides(&self, strides: &[i64]) -> bool {
        *self.strides == *strides
            || self.shape.contains(&0)
            || self
                .strides
                .iter()
                .zip(strides)
                .zip(&self.shape)
                .all(|((a, b), extent)| *extent == 1 || a == b)
    }
}
