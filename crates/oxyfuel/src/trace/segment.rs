//! Cuts: a function that reads a tensor while it is traced goes on with the number that it asked for.
//!
//! What was noted so far is a segment: its graph is compiled (or found, as the same one was before), and run on the tensors of this call; what the program can still use of it becomes memory,
//! and the next segment begins. Which way the program takes may depend on what it read, so a function that was cut runs anew at every call; its segments do not compile anew.

use super::memory::{Content, Place};
use super::{Open, Ran, Trace, replay, settle};
use crate::core::Returned;
use crate::guard::alignment;
use crate::machine;
use crate::tensor::Tensor;
use crate::variant::{compile, size_tensors};
use oxyfuel_base::{Result, Symbol, err};
use oxyfuel_engine::Executable;
use oxyfuel_graph::{Graph, Layout, TensorType, Value};
use oxyfuel_runtime::tensor as rt;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A place where a function was cut.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    what: String,
    at: String,
    /// The segment before it, where there was something to compute.
    pub segment: Option<Segment>,
}

/// A part of a function that is cut, compiled.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub executable: Arc<Executable>,
    /// As it was captured, for whoever asks what came of it.
    pub graph: Arc<Graph>,
    /// Why its sizes are numbers, where they should be symbols.
    pub refused: Option<String>,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.at)
    }
}

impl Open {
    /// The memory of tensors, after all that was noted so far has run.
    pub(super) fn read(
        &mut self,
        trace: &Arc<Trace>,
        tensors: &[&Tensor],
        what: &str,
        caller: &Location<'_>,
    ) -> Result<Vec<rt::Tensor>> {
        if self.compilers.is_none() {
            return Err(err!(
                DataDependent,
                "{what} needs the elements of a tensor that is only being captured"
            )
            .help("return the tensor from the function and read it after the call, or write the decision with where_; without fullgraph the function is cut here"));
        }
        if !self.fixed.is_empty() {
            // Nothing has run yet, so that the function can begin again with these sizes as numbers.
            return Err(err!(Internal, "a read in a capture that is begun again"));
        }
        let places = self.places(trace, tensors)?;
        let segment = self.run(&places, true)?;
        self.cuts.push(Cut {
            what: what.to_owned(),
            at: format!("{}:{}", caller.file(), caller.line()),
            segment,
        });
        self.tensors_at(&places)
    }

    /// The last segment: only what is returned is left of it.
    pub(super) fn last(&mut self, trace: &Arc<Trace>, returned: Returned) -> Result<Ran> {
        let tensors: Vec<&Tensor> = returned.tensors.iter().collect();
        let places = self.places(trace, &tensors)?;
        let last = self.run(&places, false)?;
        let tensors = self.tensors_at(&places)?.into_iter();
        Ok(Ran {
            returned: Returned {
                tensors: tensors.map(Tensor::from).collect(),
                template: returned.template,
            },
            cuts: std::mem::take(&mut self.cuts),
            last,
            settled: std::mem::take(&mut self.settled),
        })
    }

    fn places(&mut self, trace: &Arc<Trace>, tensors: &[&Tensor]) -> Result<Vec<Arc<Place>>> {
        let operands = tensors.iter().map(|tensor| self.operand(trace, tensor));
        operands
            .map(|operand| operand.map(|(_, place)| place))
            .collect()
    }

    fn tensors_at(&self, places: &[Arc<Place>]) -> Result<Vec<rt::Tensor>> {
        let bases = &self.memory.bases;
        let size = |symbol: Symbol| self.sizes.get(&symbol).copied();
        let tensors = places.iter().map(|place| match &bases[place.base].content {
            Content::Memory(tensor) => replay(tensor, &place.views, &size),
            Content::Value(_) => Err(err!(Internal, "memory that no segment left")),
        });
        tensors.collect()
    }

    /// Compiles and runs what was noted, and keeps what these places, and the program if it goes on, can still use.
    fn run(&mut self, places: &[Arc<Place>], goes_on: bool) -> Result<Option<Segment>> {
        let mut keep: Vec<bool> = vec![false; self.memory.bases.len()];
        for place in places {
            keep[place.base] = true;
        }
        if goes_on {
            for known in self.memory.tensors.iter().filter(|known| known.is_held()) {
                keep[known.base()] = true;
            }
        }
        let bases = &self.memory.bases;
        let mut outputs = Vec::new();
        for (number, base) in bases.iter().enumerate() {
            if let (true, None, Content::Value(value)) = (keep[number], &base.origin, &base.content)
            {
                outputs.push((number, *value));
            }
        }
        let inputs = &self.memory.inputs;
        let unchanged = |number: usize| {
            let base = &self.memory.bases[number];
            let mut inputs = inputs.iter();
            let input = inputs.find(|input| input.base == number && !base.written);
            input.map(|input| input.tensor.clone())
        };
        let mut contents: Vec<(usize, rt::Tensor)> = Vec::new();
        outputs.retain(|(number, _)| match unchanged(*number) {
            Some(tensor) => {
                contents.push((*number, tensor));
                false
            }
            None => true,
        });
        // What an earlier segment left and this one wrote is an output of this one, not a write-back.
        for input in &self.memory.inputs {
            let base = &mut self.memory.bases[input.base];
            base.written &= base.origin.is_some();
        }
        let any_written = self.memory.bases.iter().any(|base| base.written);
        let types: Vec<TensorType> = outputs
            .iter()
            .map(|(_, value)| self.builder.ty(*value).clone())
            .collect();
        let (mut graph, sizes) = self.close(outputs.iter().map(|(_, value)| *value).collect())?;
        // The same segment of another round is the same graph.
        for (i, &input) in graph.inputs.iter().enumerate() {
            graph.values[input].name = Some(format!("x{i}"));
        }
        let mut segment = None;
        if any_written || !outputs.is_empty() {
            let inputs = &self.memory.inputs;
            let device = inputs.first().map(|input| input.tensor.device().into());
            let compilers = self
                .compilers
                .as_ref()
                .ok_or_else(|| err!(Internal, "a segment without a compiler"))?;
            let compiler = compilers.get(device.unwrap_or_default())?;
            let size = |symbol: Symbol| self.sizes.get(&symbol).copied();
            let sizes = size_tensors(&compiler, &sizes, &size)?;
            let tensors = inputs.iter().map(|input| &input.tensor);
            let tensors: Vec<&rt::Tensor> = tensors.chain(&sizes).collect();
            let mut refused = None;
            let (executable, _) = match compile(&compiler, &graph) {
                Err(error) if !graph.symbols.is_empty() => {
                    refused = Some(error.message);
                    graph = settle::graph(&graph, &size)?;
                    compile(&compiler, &graph)?
                }
                found => found?,
            };
            let made = executable.run(&tensors)?;
            for (((number, _), tensor), ty) in outputs.iter().zip(made).zip(types) {
                let tensor = tensor.contiguous(machine::cpu().memory())?;
                self.memory.bases[*number].kept = Some(Value {
                    layout: Layout::Required(ty.contiguous_strides()),
                    ty,
                    align: alignment(&tensor),
                    given: false,
                    frozen: false,
                    name: None,
                });
                contents.push((*number, tensor));
            }
            segment = Some(Segment {
                executable,
                graph: Arc::new(graph),
                refused,
            });
        }
        for base in &mut self.memory.bases {
            if let Some(origin) = &base.origin {
                base.content = Content::Memory(origin.tensor.clone());
            }
        }
        for (number, tensor) in contents {
            self.memory.bases[number].content = Content::Memory(tensor);
        }
        self.memory.renew();
        Ok(segment)
    }
}
