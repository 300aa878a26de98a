//! PYTHON: the native half of the Python package.
//!
//! | file | idea |
//! |---|---|
//! | `errors.rs` | errors of ours as exceptions of Python's, with their codes |
//! | `dlpack.rs` | where the elements of a tensor lie, by torch's C table |
//!
//! No logic lives here: a graph comes as text, `engine` compiles it, `runtime` runs it, and this crate carries tensors in and out.

mod dlpack;
mod errors;

use pyo3::prelude::*;

/// The module `oxyfuel._native`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Compiles a described graph.
    #[pyfunction]
    fn compile(_description: &str, _options: &str, _objects: Vec<Py<PyAny>>) -> PyResult<()> {
        Err(errors::raise(oxyfuel_base::err!(
            NoLowering,
            "graphs of this kind are not compiled yet"
        )))
    }
}
