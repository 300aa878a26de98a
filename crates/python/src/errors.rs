//! Errors of ours as exceptions of Python's: `oxyfuel.OxyfuelError` with the code, the sentence and the help.

use oxyfuel_base::{Error, Result, error};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// What the work returns, without Python's lock meanwhile. A panic in it is an ordinary exception: torch runs the graph without us then.
pub fn caught<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| error::caught(work)).map_err(raise)
}

/// The exception for an error.
pub fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        let made = exception(py, &error).map(PyErr::from_value);
        made.unwrap_or_else(|_| PyRuntimeError::new_err(error.to_string()))
    })
}

/// The same, not raised.
pub fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("oxyfuel.errors")?.getattr("OxyfuelError")?;
    class.call1((error.code.code(), &error.message, &error.help))
}
