//! Functions in files, `.oxy`: a graph as text and the tensors that it captured.
//!
//! A file is one of safetensors, so that every tool for those shows what is in it. The tensors are called by their numbers, in the order of the graph's last inputs, and their dims lie
//! from the slowest to the fastest of the input's strides, so that a weight that was turned is turned again; the metadata has
//!
//! | name | what |
//! |---|---|
//! | `oxyfuel` | the version of this format |
//! | `graph` | the graph, as `docs/graph.md` describes it |
//! | `checksum` | of the graph's text and the elements of every tensor |
//!
//! Nothing in a file is run as it is: the graph is parsed, verified and compiled for the machine at hand when it is first called (decision 59).

use super::safetensors::{bytes_of, parse};
use super::{malformed, read, write};
use crate::Options;
use crate::compiled::{Compiled, check_unwritten, compile_with};
use crate::machine::Device;
use crate::tensor::{Tensor, located};
use crate::trace::required;
use oxyfuel_base::hash::Hasher;
use oxyfuel_base::{Expr, Result, err};
use oxyfuel_graph::{Graph, Layout, Value};
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

/// The version of the format that is written and read.
const VERSION: &str = "1";
const VERSION_KEY: &str = "oxyfuel";
const GRAPH: &str = "graph";
const CHECKSUM: &str = "checksum";

/// A function as a file holds it.
#[derive(Debug)]
pub struct SavedFunction {
    graph: Graph,
    tensors: Vec<Tensor>,
}

/// Reads a function from a file that [`Compiled::save`] wrote, on this machine or another.
///
/// It has the guards, variants and explanations of a compiled closure, and is compiled at its first call. A file may come from anywhere: what is not as it should be is an error.
#[track_caller]
pub fn load(path: impl AsRef<Path>, options: Options) -> Result<Compiled> {
    let caller = Location::caller();
    let load = || SavedFunction::read(path.as_ref())?.compile(options);
    load().map_err(|error| located(error, caller))
}

impl SavedFunction {
    /// The last inputs of the graph are `tensors`.
    pub(crate) fn new(mut graph: Graph, mut tensors: Vec<Tensor>) -> Result<Self> {
        check_unwritten(&graph)?;
        let arguments = graph.inputs.len().saturating_sub(tensors.len());
        let inputs = graph.inputs[arguments..].to_vec();
        for (input, tensor) in inputs.into_iter().zip(&mut tensors) {
            // Windows on more memory than their own are not kept as such.
            if !tensor.permute(&order(tensor.strides())).is_contiguous() {
                *tensor = tensor.contiguous();
            }
            graph.values[input].layout = required(tensor.strides());
        }
        Ok(Self { graph, tensors })
    }

    /// Reads a file, and compiles nothing.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut contents = parse(path, &read(path)?)?;
        let version = contents.metadata.remove(VERSION_KEY);
        match version.as_deref() {
            Some(VERSION) => {}
            Some(other) => {
                return Err(err!(
                    UnsupportedVersion,
                    "{}: a function of format {other}, this reads {VERSION}",
                    path.display()
                )
                .help("save it again, or read it with the version that wrote it"));
            }
            None => {
                return Err(err!(
                    FileMalformed,
                    "{}: no function: a file of tensors alone",
                    path.display()
                )
                .help("name a file that Compiled::save wrote"));
            }
        }
        let mut text = |name: &str| {
            let text = contents.metadata.remove(name);
            text.ok_or_else(|| malformed(path, format!("its metadata has no {name}")))
        };
        let (graph, checksum) = (text(GRAPH)?, text(CHECKSUM)?);
        let mut tensors = Vec::with_capacity(contents.tensors.len());
        for number in 0..contents.tensors.len() {
            let tensor = contents.tensors.remove(&number.to_string());
            tensors.push(tensor.ok_or_else(|| malformed(path, format!("no tensor {number}")))?);
        }
        if checksum_of(&graph, &tensors)? != checksum {
            return Err(malformed(path, "its checksum does not match"));
        }
        let graph = crate::parse_graph(&path.display().to_string(), &graph)?;
        oxyfuel_graph::verify(&graph).map_err(|error| error.context(path.display()))?;
        let inputs = graph.inputs.len();
        let arguments = inputs.checked_sub(tensors.len()).ok_or_else(|| {
            let what = format!("{} tensors for {inputs} inputs", tensors.len());
            malformed(path, what)
        })?;
        for (tensor, &input) in tensors.iter_mut().zip(&graph.inputs[arguments..]) {
            let ty = graph.ty(input);
            let differs = || malformed(path, "a tensor is not as its input says");
            let (shape, strides) = known(&graph.values[input]).ok_or_else(differs)?;
            let order = order(&strides);
            if order.len() != tensor.shape().len() {
                return Err(differs());
            }
            let mut back = vec![0; order.len()];
            for (at, &dim) in order.iter().enumerate() {
                back[dim as usize] = at as i64;
            }
            let here = tensor.permute(&back);
            let mut dims = shape.iter().zip(strides.iter().zip(here.strides()));
            // Nobody moves along one element.
            let lies = dims.all(|(&size, (a, b))| a == b || size == 1) || here.numel() == 0;
            if ty.dtype != here.dtype() || shape != here.shape() || !lies {
                return Err(differs());
            }
            *tensor = here.to_device(Device::from(ty.device));
            tensor.check()?;
        }
        Self::new(graph, tensors).map_err(|error| error.context(path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let graph = self.graph.to_string();
        let lying = |tensor: &Tensor| tensor.permute(&order(tensor.strides()));
        let tensors: Vec<Tensor> = self.tensors.iter().map(lying).collect();
        let names: Vec<String> = (0..tensors.len()).map(|n| n.to_string()).collect();
        let metadata = BTreeMap::from([
            (VERSION_KEY.to_owned(), VERSION.to_owned()),
            (CHECKSUM.to_owned(), checksum_of(&graph, &tensors)?),
            (GRAPH.to_owned(), graph),
        ]);
        let tensors = names.iter().map(String::as_str).zip(&tensors);
        write(path, &bytes_of(tensors, &metadata)?)
    }

    /// A function of the arguments.
    pub fn compile(self, options: Options) -> Result<Compiled> {
        let caller = Location::caller();
        let tensors = self.tensors.iter();
        let tensors = tensors.map(|tensor| tensor.concrete("a captured tensor", caller).cloned());
        let tensors = tensors.collect::<Result<_>>()?;
        compile_with(self.graph, tensors, options)
    }

    /// What it computes: arguments first, then what it captured.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensors that it captured: the last inputs of the graph.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

/// Dims from the slowest to the fastest in memory.
fn order(strides: &[i64]) -> Vec<i64> {
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|&dim| std::cmp::Reverse(strides[dim]));
    order.into_iter().map(|dim| dim as i64).collect()
}

/// Shape and strides of an input, where all are known.
fn known(value: &Value) -> Option<(Vec<i64>, Vec<i64>)> {
    let numbers = |sizes: &[Expr]| sizes.iter().map(Expr::as_const).collect::<Option<Vec<_>>>();
    let Layout::Required(strides) = &value.layout else {
        return None;
    };
    Some((numbers(&value.ty.shape)?, numbers(strides)?))
}

fn checksum_of(graph: &str, tensors: &[Tensor]) -> Result<String> {
    let mut hasher = Hasher::new();
    hasher.add_bytes(graph.as_bytes());
    for tensor in tensors {
        hasher.add_bytes(&tensor.to_bytes()?);
    }
    Ok(hasher.finish().to_string())
}
