//! A context that does nothing, for code of torch's that wants one at every call.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Makes itself where a context is made, and leaves everything as it is.
#[derive(Debug)]
#[pyclass(frozen, module = "oxyfuel._native")]
pub struct Nothing;

#[pymethods]
impl Nothing {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __call__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __enter__(&self) {}

    #[pyo3(signature = (*_cause))]
    fn __exit__(&self, _cause: &Bound<'_, PyTuple>) {}
}
