//! What this crate takes from torch: found once, by the names that `oxyfuel._torch` gives them.

use crate::place::Place;
use oxyfuel_base::DType;
use oxyfuel_runtime::device::Stream;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

/// Functions and objects of torch.
#[derive(Debug)]
pub struct Torch {
    /// `(shape, strides, dtype)`: a new tensor.
    empty_strided: Py<PyAny>,
    /// `(shape, strides, dtype=, device=)`: the same on any device.
    empty_strided_on: Py<PyAny>,
    /// The names of its last arguments.
    placed: Py<PyTuple>,
    /// `(index)`: the stream that operators of a GPU are put on now, as the driver's handle.
    stream: Py<PyAny>,
    /// `(stream)`: operators of a GPU are put on it from now on.
    set_stream: Py<PyAny>,
    /// `(tensor, shape, strides, offset)`: a window on a tensor.
    window: Py<PyAny>,
    /// `()`: how many threads torch's operators use.
    threads: Py<PyAny>,
    /// `()`: whether torch's profiler watches.
    profiled: Py<PyAny>,
    /// `(name)`: a context that its profiler shows.
    range: Py<PyAny>,
    /// `(name, objects)`: what a call's name stands for.
    resolve: Py<PyAny>,
    /// `(kind, name)`: a dtype, device, layout or memory format.
    constant: Py<PyAny>,
    /// In the order of [`DType::ALL`].
    dtypes: Vec<Py<PyAny>>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

impl Torch {
    /// The only one.
    pub fn get(py: Python<'_>) -> PyResult<&Torch> {
        TORCH.get_or_try_init(py, || {
            let names = py.import("oxyfuel._torch")?;
            let constant = names.getattr("constant")?;
            let dtypes = DType::ALL.iter().map(|dtype| {
                let found = constant.call1(("dtype", dtype.torch_name()));
                // An element type that this torch lacks is never asked for.
                Ok(found.map_or_else(|_| py.None(), Bound::unbind))
            });
            Ok(Torch {
                empty_strided: names.getattr("empty_strided_cpu")?.unbind(),
                empty_strided_on: names.getattr("empty_strided")?.unbind(),
                placed: PyTuple::new(py, ["dtype", "device"])?.unbind(),
                stream: names.getattr("current_stream")?.unbind(),
                set_stream: names.getattr("set_stream")?.unbind(),
                window: names.getattr("window")?.unbind(),
                threads: names.getattr("num_threads")?.unbind(),
                profiled: names.getattr("profiler_enabled")?.unbind(),
                range: names.getattr("profiler_range")?.unbind(),
                resolve: names.getattr("resolve")?.unbind(),
                dtypes: dtypes.collect::<PyResult<_>>()?,
                constant: constant.unbind(),
            })
        })
    }

    pub fn dtype(&self, dtype: DType) -> &Py<PyAny> {
        &self.dtypes[dtype as usize]
    }

    /// A new tensor, on the CPU unless a device is named.
    pub fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Py<PyTuple>,
        strides: &Py<PyTuple>,
        dtype: DType,
        device: Option<&Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shape, strides) = (shape.as_ptr(), strides.as_ptr());
        let dtype = self.dtype(dtype).as_ptr();
        match device {
            None => vectorcall(py, &self.empty_strided, &[shape, strides, dtype], None),
            Some(device) => {
                let args = [shape, strides, dtype, device.as_ptr()];
                vectorcall(py, &self.empty_strided_on, &args, Some(&self.placed))
            }
        }
    }

    /// Memory of so many bytes on a device.
    pub fn bytes<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        device: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape = PyTuple::new(py, [bytes])?.unbind();
        let strides = PyTuple::new(py, [1])?.unbind();
        self.empty(py, &shape, &strides, DType::U8, Some(device))
    }

    /// The queue that operators of a place are put on now.
    pub fn stream(&self, py: Python<'_>, place: Place) -> PyResult<Stream> {
        match place {
            Place::Cpu | Place::Nothing => Ok(Stream::default()),
            Place::Cuda(index) => {
                let index = index.into_pyobject(py)?;
                let handle = vectorcall(py, &self.stream, &[index.as_ptr()], None)?;
                Ok(Stream(handle.extract()?))
            }
        }
    }

    /// Operators of a GPU are put on that stream from now on.
    pub fn set_stream(&self, py: Python<'_>, stream: &Py<PyAny>) -> PyResult<()> {
        vectorcall(py, &self.set_stream, &[stream.as_ptr()], None)?;
        Ok(())
    }

    /// A window on a tensor, `offset` elements from its first.
    pub fn window<'py>(
        &self,
        tensor: &Bound<'py, PyAny>,
        shape: &Py<PyTuple>,
        strides: &Py<PyTuple>,
        offset: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        let offset = offset.into_pyobject(py)?;
        let args = [
            tensor.as_ptr(),
            shape.as_ptr(),
            strides.as_ptr(),
            offset.as_ptr(),
        ];
        vectorcall(py, &self.window, &args, None)
    }

    /// How many threads torch's operators use.
    pub fn threads(&self, py: Python<'_>) -> PyResult<usize> {
        vectorcall(py, &self.threads, &[], None)?.extract()
    }

    /// Whether torch's profiler watches.
    pub fn is_profiled(&self, py: Python<'_>) -> PyResult<bool> {
        vectorcall(py, &self.profiled, &[], None)?.is_truthy()
    }

    /// A span of time that torch's profiler shows by this name, until [`Self::end_range`].
    pub fn begin_range<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let range = self.range.bind(py).call1((name,))?;
        range.call_method0("__enter__")?;
        Ok(range)
    }

    pub fn end_range(range: &Bound<'_, PyAny>) -> PyResult<()> {
        let none = range.py().None();
        range.call_method1("__exit__", (&none, &none, &none))?;
        Ok(())
    }

    /// What the name of a call stands for.
    pub fn resolve(&self, py: Python<'_>, name: &str, objects: &Py<PyAny>) -> PyResult<Py<PyAny>> {
        self.resolve.call1(py, (name, objects))
    }

    /// A dtype, device, layout or memory format by its name.
    pub fn constant(&self, py: Python<'_>, kind: &str, name: &str) -> PyResult<Py<PyAny>> {
        self.constant.call1(py, (kind, name))
    }
}

unsafe extern "C" {
    // In the stable ABI since Python 3.12, and exported by 3.11 just the same.
    fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        args: *const *mut ffi::PyObject,
        count: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Calls with arguments that the caller keeps alive; the last of them belong to `names`.
pub fn vectorcall<'py>(
    py: Python<'py>,
    callable: &Py<PyAny>,
    args: &[*mut ffi::PyObject],
    names: Option<&Py<PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (named, names) = match names {
        Some(names) => (names.bind(py).len(), names.as_ptr()),
        None => (0, std::ptr::null_mut()),
    };
    debug_assert!(named <= args.len());
    // SAFETY: every argument is a live object that the caller holds; the names are a tuple of strings, one for each of the last arguments; the GIL is held.
    // A null result has its exception set.
    unsafe {
        let result =
            PyObject_Vectorcall(callable.as_ptr(), args.as_ptr(), args.len() - named, names);
        Bound::from_owned_ptr_or_err(py, result)
    }
}
