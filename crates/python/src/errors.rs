//! Errors of ours as exceptions of Python's: `oxyfuel.OxyfuelError` with the code, the sentence and the help.

use oxyfuel_base::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The exception for an error.
pub fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let class = py.import("oxyfuel.errors")?.getattr("OxyfuelError")?;
            let exception = class.call1((error.code.code(), &error.message, &error.help))?;
            Ok(PyErr::from_value(exception))
        };
        make().unwrap_or_else(|_| PyRuntimeError::new_err(error.to_string()))
    })
}
