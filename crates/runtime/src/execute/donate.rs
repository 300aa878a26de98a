//! Inputs that were given away: their memory becomes that of outputs.
//!
//! An output may have the memory of an input whose last reader is a step before the output's first writer. Within one step it may not: which elements a kernel reads before it
//! writes others is not in a plan (a plan that was made for given inputs has such outputs in their memory already). Memory that anybody else holds stays as it is.

use super::instance::{Home, Instance};
use crate::memory::ALIGN;
use crate::storage::Storage;
use crate::tensor::Tensor;
use oxyfuel_base::Id;
use oxyfuel_plan::{ArgRef, BufferHome, Plan, Step};

/// First and last step that touch each buffer; `None` for a buffer that no step touches. Empty where steps touch buffers without saying so.
pub(super) fn uses(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut uses = vec![None; plan.buffers.len()];
    for (number, step) in plan.steps.iter().enumerate() {
        let mut touch = |buffer: usize| {
            let (first, _) = uses[buffer].unwrap_or((number, number));
            uses[buffer] = Some((first, number));
        };
        match step {
            Step::Launch { args, .. } => {
                for arg in args {
                    match arg {
                        ArgRef::Buffer { buffer, .. } => touch(buffer.index()),
                        ArgRef::Index(_) | ArgRef::Literal { .. } => {}
                        ArgRef::TensorMap => return Vec::new(),
                    }
                }
            }
            Step::Copy { src, dst, .. } => {
                touch(src.index());
                touch(dst.index());
            }
            Step::External(_) => return Vec::new(),
        }
    }
    // What lies within an output uses its memory too.
    for (id, buffer) in plan.buffers.iter() {
        if let BufferHome::Within { buffer: owner, .. } = buffer.home
            && let Some((first, last)) = uses[id.index()]
        {
            let (before, after) = uses[owner.index()].unwrap_or((first, last));
            uses[owner.index()] = Some((first.min(before), last.max(after)));
        }
    }
    uses
}

/// Memory of an input that was given away, for this buffer of an output.
pub(super) fn donor(
    instance: &Instance,
    inputs: &[&Tensor],
    given: &[bool],
    output: usize,
) -> Option<Storage> {
    if !given.contains(&true) {
        return None;
    }
    let (first, _) = (*instance.uses.get(output)?)?;
    let bytes = instance.buffers[output].bytes;
    instance
        .buffers
        .iter()
        .zip(&instance.uses)
        .find_map(|(buffer, used)| {
            let Home::Input(input) = buffer.home else {
                return None;
            };
            let storage = inputs[input].storage();
            let free = given.get(input) == Some(&true)
                && !instance.inputs[input].written
                && used.is_none_or(|(_, last)| last < first)
                // Also not taken by another output of this call.
                && storage.is_unique();
            // A small output must not keep a large block.
            let fits = storage.address().is_multiple_of(ALIGN as u64)
                && storage.len() >= bytes
                && storage.len() / 2 <= bytes;
            (free && fits).then(|| storage.clone())
        })
}
