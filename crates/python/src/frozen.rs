//! What was computed once of frozen parameters, and whether those are still what they were.

use crate::compile::{Once, Settings};
use crate::dlpack::View;
use crate::errors::raise;
use crate::graph::{Graph, Inner};
use oxyfuel_base::err;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyWeakrefMethods, PyWeakrefReference};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sets of weights that one graph keeps results of: models of one class share their code, and so their graphs.
const MOST: usize = 16;

/// The graph that runs once, and its results for each set of parameters that it met.
#[derive(Debug)]
pub struct Frozen {
    once: Box<Graph>,
    parameters: Vec<usize>,
    /// Whether nothing else reads a parameter.
    alone: Vec<bool>,
    known: Mutex<Vec<Arc<Kept>>>,
}

/// Results, and what the parameters were then.
#[derive(Debug)]
pub struct Kept {
    pub tensors: Vec<Py<PyAny>>,
    marks: Vec<Mark>,
    /// Addresses whose memory was given back since.
    released: Mutex<Vec<u64>>,
}

/// A parameter: the object, which is not kept alive, its memory, and how often that was written.
#[derive(Debug)]
struct Mark {
    object: Py<PyWeakrefReference>,
    address: u64,
    version: u64,
}

/// A parameter of this call.
struct Now<'py> {
    object: Bound<'py, PyAny>,
    address: u64,
    version: u64,
}

impl Kept {
    /// Whether it is of these very objects.
    fn is_of(&self, now: &[Now<'_>]) -> bool {
        let same = |(mark, now): (&Mark, &Now<'_>)| {
            let object = mark.object.bind(now.object.py()).upgrade();
            object.is_some_and(|object| object.is(&now.object))
        };
        self.marks.iter().zip(now).all(same)
    }

    /// The first of these objects whose elements are not what they were.
    fn changed(&self, now: &[Now<'_>]) -> Option<usize> {
        let released = lock(&self.released);
        let same = |mark: &Mark, now: &Now<'_>| {
            let gone = now.address == 0 && released.contains(&mark.address);
            mark.version == now.version && (mark.address == now.address || gone)
        };
        (self.marks.iter().zip(now)).position(|(mark, now)| !same(mark, now))
    }

    fn is_alive(&self, py: Python<'_>) -> bool {
        let alive = |mark: &Mark| mark.object.bind(py).upgrade().is_some();
        self.marks.iter().all(alive)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Frozen {
    pub fn new(
        py: Python<'_>,
        once: &Once,
        settings: &Settings,
        objects: &Py<PyList>,
    ) -> PyResult<Self> {
        let graph = Graph::new(py, once.compiled(settings), objects.clone_ref(py))?;
        Ok(Self {
            once: Box::new(graph),
            parameters: once.parameters.clone(),
            alone: once.alone.clone(),
            known: Mutex::default(),
        })
    }

    /// What is kept of these parameters, computed now where it was not before; an error where one of them is not what it was.
    pub fn kept(&self, inputs: &Bound<'_, PyList>, graph: &Inner) -> PyResult<Arc<Kept>> {
        let py = inputs.py();
        let mut view = View::default();
        let mut now = Vec::with_capacity(self.parameters.len());
        for &parameter in &self.parameters {
            let object = inputs.get_item(parameter)?;
            view.read(&object, graph.home.place)?;
            // Tensors of inference mode count nothing.
            let version = object.getattr("_version").and_then(|v| v.extract());
            now.push(Now {
                object,
                address: view.address,
                version: version.unwrap_or(0),
            });
        }
        let known = lock(&self.known)
            .iter()
            .find(|kept| kept.is_of(&now))
            .cloned();
        if let Some(kept) = known {
            let Some(number) = kept.changed(&now) else {
                return Ok(kept);
            };
            let stale = err!(
                StaleFrozen,
                "frozen input {} of the graph was changed after the first call",
                self.parameters[number]
            );
            return Err(raise(stale.help(
                "call oxyfuel.refreeze() after a change of weights, or compile without freezing",
            )));
        }
        let items = PyList::new(py, now.iter().map(|now| &now.object))?;
        let tensors = self.once.inner.call(&items)?;
        let mark = |now: Now<'_>| -> PyResult<Mark> {
            Ok(Mark {
                object: PyWeakrefReference::new(&now.object)?.unbind(),
                address: now.address,
                version: now.version,
            })
        };
        let kept = Arc::new(Kept {
            tensors: tensors.iter().map(Bound::unbind).collect(),
            marks: now.into_iter().map(mark).collect::<PyResult<_>>()?,
            released: Mutex::default(),
        });
        let mut known = lock(&self.known);
        known.retain(|kept| kept.is_alive(py));
        if known.len() >= MOST {
            known.remove(0);
        }
        known.push(kept.clone());
        Ok(kept)
    }

    /// Everything is computed anew when it is next needed.
    pub fn forget(&self) -> PyResult<()> {
        let mut known = lock(&self.known);
        if known.iter().any(|kept| !lock(&kept.released).is_empty()) {
            return Err(raise(err!(
                StaleFrozen,
                "frozen weights were released, and nothing can be computed of them again"
            )));
        }
        known.clear();
        Ok(())
    }

    /// Addresses of parameters that calls do not read any more.
    pub fn unread(&self) -> Vec<u64> {
        let known = lock(&self.known);
        let marks = known
            .iter()
            .flat_map(|kept| kept.marks.iter().zip(&self.alone));
        let unread = marks.filter(|(_, alone)| **alone);
        unread.map(|(mark, _)| mark.address).collect()
    }

    pub fn released(&self, addresses: &[u64]) {
        for kept in lock(&self.known).iter() {
            let here = kept.marks.iter().map(|mark| mark.address);
            lock(&kept.released).extend(here.filter(|address| addresses.contains(address)));
        }
    }
}
