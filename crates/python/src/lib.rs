//! PYTHON: the native half of the Python package.
//!
//! | file | idea |
//! |---|---|
//! | `errors.rs` | errors of ours as exceptions of Python's, with their codes |
//! | `dlpack.rs` | where the elements of a tensor lie, by torch's C table |
//! | `place.rs` | on which device the tensors of a graph are |
//! | `torch.rs` | what is taken from torch, found once |
//! | `compile.rs` | text to a plan |
//! | `form.rs` | everything in a plan that Python needs, with numbers in it |
//! | `frozen.rs` | what was computed once of frozen parameters |
//! | `lanes.rs` | streams that recorded work may go to |
//! | `host.rs` | Python as the host of a plan: memory and operators |
//! | `graph.rs` | the callable |
//! | `explain.rs` | what became of a graph |
//! | `nothing.rs` | a context that does nothing |
//! | `profile.rs` | where the time of calls went |
//!
//! No logic lives here: a graph comes as text, `engine` compiles it, `runtime` runs it, and this crate carries tensors in and out.

mod compile;
mod dlpack;
mod errors;
mod explain;
mod form;
mod frozen;
mod graph;
mod host;
mod lanes;
mod nothing;
mod place;
mod profile;
mod torch;

use pyo3::prelude::*;

/// The module `oxyfuel._native`.
#[pymodule]
mod _native {
    use super::*;
    use oxyfuel_capture::Random;
    use pyo3::types::PyList;

    #[pymodule_export]
    use crate::graph::Graph;

    #[pymodule_export]
    use crate::nothing::Nothing;

    #[pymodule_export]
    use crate::profile::Profiling;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Compiles a described graph. `objects` are what its arguments name by number.
    #[pyfunction]
    fn compile(
        py: Python<'_>,
        description: &str,
        options: &str,
        objects: Py<PyList>,
    ) -> PyResult<Graph> {
        let compiled = errors::caught(py, || {
            let settings = crate::compile::Settings::read(options)?;
            crate::compile::compile(description, &settings)
        })?;
        Graph::new(py, compiled, objects)
    }

    /// A graph from its bytes.
    #[pyfunction]
    fn load(py: Python<'_>, bytes: &[u8], options: &str, objects: Py<PyList>) -> PyResult<Graph> {
        let loaded = errors::caught(py, || {
            let settings = crate::compile::Settings::read(options)?;
            crate::compile::load(bytes, &settings)
        })?;
        Graph::new(py, loaded, objects)
    }

    /// What compiled code depends on besides the graph: this build and the machine.
    #[pyfunction]
    fn fingerprint(options: &str) -> PyResult<String> {
        let settings = crate::compile::Settings::read(options).map_err(errors::raise)?;
        crate::compile::fingerprint(&settings).map_err(errors::raise)
    }

    /// What the machine can do at best, measured now, as JSON; `null` where that cannot be measured.
    #[pyfunction]
    fn figures(py: Python<'_>, options: &str) -> PyResult<String> {
        errors::caught(py, || {
            crate::compile::figures(&crate::compile::Settings::read(options)?)
        })
    }

    /// Whether convolutions of a type (`f32`, `bf16`), all that a graph has, are computed by kernels of ours that read weights in panels. Of each: the shapes of images and weight; stride, padding and dilation; groups.
    #[pyfunction]
    fn packs_convolutions(
        options: &str,
        convolutions: Vec<crate::compile::Numbers>,
        dtype: &str,
        frozen: bool,
    ) -> PyResult<bool> {
        let settings = crate::compile::Settings::read(options).map_err(errors::raise)?;
        let convolutions = convolutions.into_iter().map(crate::compile::windows);
        let convolutions = convolutions.collect::<Vec<_>>();
        crate::compile::packs_convolutions(&settings, &convolutions, dtype, frozen)
            .map_err(errors::raise)
    }

    /// Gives memory that is kept for later calls back to the system; how many bytes that were.
    #[pyfunction]
    fn trim(py: Python<'_>) -> usize {
        py.detach(crate::compile::trim)
    }

    /// Where the bytes of a device are, as text for people.
    #[pyfunction]
    fn memory_summary(py: Python<'_>, device: &str) -> PyResult<String> {
        errors::caught(py, || crate::compile::memory_summary(device))
    }

    /// The error to raise in the place of one that was given to others who use the GPU, where a kernel's fault has lost it; none where no GPU that we use is lost. `answer` is the driver's number in that error, or 0.
    #[pyfunction]
    fn fault(py: Python<'_>, answer: i32) -> PyResult<Option<Bound<'_, PyAny>>> {
        let found = py.detach(|| crate::compile::fault(answer));
        found.map(|error| errors::exception(py, &error)).transpose()
    }

    /// Offers streams to what this thread records, the first of them its own: steps that need nothing of each other are done at once. An empty list takes them back.
    #[pyfunction]
    fn offer_lanes(streams: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        crate::lanes::offer(streams)
    }

    /// How many lanes there are.
    #[pyfunction]
    fn lanes() -> usize {
        oxyfuel_runtime::execute::LANES
    }

    /// The edits that our rules make in a described joint graph, as JSON. Its first `forward` results are the forward's; `own_random`: random numbers are ours to choose.
    #[pyfunction]
    fn rewrite_joint(
        py: Python<'_>,
        description: &str,
        forward: usize,
        own_random: bool,
    ) -> PyResult<String> {
        let random = if own_random {
            Random::Own
        } else {
            Random::Host
        };
        errors::caught(py, || {
            oxyfuel_engine::rewrite_joint(description, forward, random)
        })
    }

    /// Attention that is written out in a described graph, as JSON.
    #[pyfunction]
    fn find_attention(py: Python<'_>, description: &str) -> PyResult<String> {
        errors::caught(py, || oxyfuel_engine::find_attention(description))
    }
}
