//! Where the time of calls went: the runtime's own profile, for a host that begins and ends it.

use crate::errors::raise;
use oxyfuel_runtime::profile::{Category, Profile, Profiling as Running};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A profile: from the moment it is made until `finish`.
#[pyclass(frozen, module = "oxyfuel._native", name = "Profiling")]
#[derive(Debug)]
pub struct Profiling {
    running: Running,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When code began to be made, where some is.
    compiling: Option<Instant>,
    done: Profile,
}

impl Profiling {
    fn with<R>(&self, see: impl FnOnce(&mut State) -> R) -> R {
        see(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Profiling {
    #[new]
    fn new() -> Self {
        Self {
            running: Running::start(),
            state: Mutex::default(),
        }
    }

    /// Calls with the inputs, as a part of the profile, on whatever thread.
    fn call<'py>(
        &self,
        callable: &Bound<'py, PyAny>,
        inputs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.running.part(|| callable.call1((inputs,)))
    }

    /// Somebody begins to make code.
    fn compile_begins(&self) {
        self.with(|state| state.compiling = Some(Instant::now()));
    }

    /// The code is made.
    fn compile_ends(&self, name: &str) {
        if let Some(since) = self.with(|state| state.compiling.take()) {
            self.running.compiled(name, since);
        }
    }

    /// Ends it: waits for the devices.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let done = py.detach(|| self.running.finish()).map_err(raise)?;
        self.with(|state| state.done = done);
        Ok(())
    }

    /// Seconds: from the start to the end, of that making code, the rest, and what of the rest devices worked.
    fn seconds(&self) -> [f64; 4] {
        self.with(|state| {
            let done = &state.done;
            [done.total, done.compile(), done.wall(), done.device()].map(|t| t.as_secs_f64())
        })
    }

    /// One dictionary a kernel, graph or compile.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows = self.with(|state| state.done.rows());
        let rows = rows.into_iter().map(|row| {
            let made = PyDict::new(py);
            made.set_item("name", row.name)?;
            made.set_item("category", row.category.name())?;
            made.set_item("ops", row.ops)?;
            made.set_item("calls", row.calls)?;
            let times: [(&str, Duration); 4] = [
                ("self_host_seconds", row.self_host),
                ("host_seconds", row.total_host),
                ("self_device_seconds", row.self_device),
                ("device_seconds", row.total_device),
            ];
            for (name, time) in times {
                made.set_item(name, time.as_secs_f64())?;
            }
            Ok(made)
        });
        rows.collect()
    }

    /// How many pieces of work of each category there were.
    fn launches(&self) -> Vec<(&'static str, usize)> {
        let found = self.with(|state| state.done.launches());
        let named = |(category, count): (Category, usize)| (category.name(), count);
        found.into_iter().map(named).collect()
    }

    fn chrome_trace(&self) -> String {
        self.with(|state| state.done.chrome_trace())
    }

    fn __str__(&self) -> String {
        self.with(|state| state.done.to_string())
    }
}
