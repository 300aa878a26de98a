//! A call whose tensors were decided before: everything that can be checked, evaluated or allocated was, once.
//!
//! ```text
//!   bind: find the instance, check every tensor, put all addresses into the words, take a workspace
//!   call: borrow each storage (an atomic each), launch, give back
//! ```
//!
//! A call checks no guard, asks for no memory (but for values between kernels that the plan keeps apart), takes no lock and makes no system call. The borrows stay, because safe code
//! may hold the same tensors elsewhere: a conflict with another thread is an error, never a race.

use super::border::{Held, check_input, check_output, check_output_count, check_target};
use super::instance::{Home, Instance};
use super::{Program, Ready, Watch, Workspace};
use crate::capture::tape;
use crate::device::Stream;
use crate::profile;
use crate::storage::Storage;
use crate::tensor::Tensor;
use oxyfuel_base::{Error, Result, ensure, err};
use std::ops::Range;
use std::sync::Arc;

/// A program with its tensors. It keeps their memory alive and has an arena of its own, for as long as it lives.
#[derive(Debug)]
pub struct Bound {
    program: Arc<Program>,
    ready: Arc<Ready>,
    workspace: Box<Workspace>,
    /// Each storage once, and whether a call writes it.
    storages: Vec<(Storage, bool)>,
}

impl Bound {
    /// Runs the plan on the bound tensors. On a GPU the work may still be under way when this returns.
    pub fn call(&mut self) -> Result<()> {
        tape::refuse(self.program.device.id(), "a call whose tensors are bound")?;
        let _held = Held::new(&self.storages)?;
        let instance = &self.ready.instance;
        // SAFETY: `Program::bind` checked every tensor against the instance and put its address in its place; `storages` keeps the
        // memory alive, and it is held for the time of the call; arena and constants are the workspace's and the program's own.
        unsafe {
            if !profile::is_on() {
                let nobody = &mut Watch::nobody();
                return self.program.run(instance, &mut self.workspace, nobody);
            }
            let mut call = profile::Call::begin(&self.program.device)?;
            let mut mark = |_, stream| call.mark(stream);
            let watch = &mut Watch(Some(&mut mark));
            self.program.run(instance, &mut self.workspace, watch)?;
            call.end(&self.program.plan);
            Ok(())
        }
    }
}

impl Program {
    /// A call on these tensors, any number of times. Every output is computed in its tensor, which must be laid out as the plan's own
    /// would be and overlap no other tensor of the call. Outputs that are windows on an input need none.
    pub fn bind(
        self: &Arc<Self>,
        inputs: &[&Tensor],
        outputs: &[Option<&Tensor>],
    ) -> Result<Bound> {
        let ready = self.instance(inputs)?;
        let instance = &ready.instance;
        for (tensor, spec) in inputs.iter().zip(&instance.inputs) {
            check_input(tensor, spec, self.device.id())?;
        }
        check_output_count(outputs.len(), instance)?;
        for (index, (tensor, output)) in outputs.iter().zip(&instance.outputs).enumerate() {
            let Some(tensor) = tensor else {
                ensure!(
                    matches!(instance.buffers[output.buffer].home, Home::Input(_)),
                    ArityMismatch,
                    "output {index} has no tensor"
                );
                continue;
            };
            check_output(index, tensor, output, self.device.id())?;
            ensure!(
                instance.has_own_memory(index),
                InvalidArgument,
                "output {index} has no memory of its own: it is a constant, or a window on an input or on another output"
            );
            check_target(index, tensor, instance)?;
        }
        let places = places(instance, inputs, outputs);
        check_overlap(&places)?;
        let mut storages: Vec<(Storage, bool)> = Vec::new();
        for place in &places {
            let storage = place.tensor.storage();
            match storages
                .iter_mut()
                .find(|(known, _)| known.is_same(storage))
            {
                Some((_, written)) => *written |= place.written,
                None => storages.push((storage.clone(), place.written)),
            }
        }
        // One that waits for ordinary calls goes on waiting for them.
        let mut workspace = self.new_workspace(instance, Stream::default())?;
        for (address, buffer) in workspace.addresses.iter_mut().zip(&instance.buffers) {
            match buffer.home {
                Home::Input(input) => *address = inputs[input].address(),
                Home::Output(output) => {
                    *address = outputs[output].map_or(0, Tensor::address);
                }
                Home::Arena { .. } | Home::Constant | Home::Within { .. } | Home::Host => {}
                Home::Later => return Err(hosted()),
            }
        }
        if instance.segments.iter().any(|segment| segment.external) {
            return Err(hosted());
        }
        Ok(Bound {
            program: self.clone(),
            ready: ready.clone(),
            workspace,
            storages,
        })
    }
}

fn hosted() -> Error {
    err!(
        HostCall,
        "the plan has operators of a host, which a bound call cannot run"
    )
}

/// A tensor of a call, with the bytes that kernels may touch.
struct Place<'a> {
    what: String,
    tensor: &'a Tensor,
    range: Range<u64>,
    written: bool,
}

fn places<'a>(
    instance: &Instance,
    inputs: &[&'a Tensor],
    outputs: &[Option<&'a Tensor>],
) -> Vec<Place<'a>> {
    let place = |what, tensor: &'a Tensor, bytes: usize, written| Place {
        what,
        tensor,
        range: tensor.address()..tensor.address() + bytes as u64,
        written,
    };
    let inputs = inputs.iter().zip(&instance.inputs).map(|(tensor, spec)| {
        place(
            format!("input {}", spec.name),
            tensor,
            spec.bytes,
            spec.written,
        )
    });
    let outputs = outputs.iter().zip(&instance.outputs).enumerate();
    let outputs = outputs.filter_map(|(index, (tensor, output))| {
        let bytes = instance.buffers[output.buffer].bytes;
        tensor.map(|tensor| place(format!("output {index}"), tensor, bytes, true))
    });
    inputs.chain(outputs).collect()
}

fn check_overlap(places: &[Place<'_>]) -> Result<()> {
    for (index, one) in places.iter().enumerate() {
        for other in &places[index + 1..] {
            let apart = one.range.start >= other.range.end || other.range.start >= one.range.end;
            ensure!(
                apart || !(one.written || other.written),
                AliasedInputs,
                "{} overlaps {}, and a call writes one of them",
                other.what,
                one.what
            );
        }
    }
    Ok(())
}
