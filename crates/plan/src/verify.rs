//! Checks the invariants that [`Plan`] states.

use oxyfuel_base::{Code, Error, Id, Result};

use crate::{ArgRef, BufferHome, BufferId, Plan, Step, SymbolSource};

/// Refuses a plan that the run side could not run safely.
pub fn verify(plan: &Plan) -> Result<()> {
    let bad = |message: String| Err(Error::new(Code::InvalidPlan, message));
    let check = |buffer: BufferId| {
        if plan.buffers.get(buffer).is_some() {
            Ok(())
        } else {
            Err(Error::new(
                Code::InvalidPlan,
                format!("buffer {buffer} does not exist"),
            ))
        }
    };
    let mut written = vec![false; plan.buffers.len()];
    for (id, buffer) in plan.buffers.iter() {
        match buffer.home {
            BufferHome::Input(i) if (i as usize) >= plan.inputs.len() => {
                return bad(format!("buffer {id} names input {i}, which does not exist"));
            }
            BufferHome::Output(i) if (i as usize) >= plan.outputs.len() => {
                return bad(format!(
                    "buffer {id} names output {i}, which does not exist"
                ));
            }
            BufferHome::Input(_) | BufferHome::Constant(_) => written[id.index()] = true,
            BufferHome::Output(_) | BufferHome::Arena { .. } | BufferHome::Host => {}
        }
    }
    for (number, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Launch { kernel, args } => {
                if plan.kernels.get(*kernel).is_none() {
                    return bad(format!(
                        "step {number} launches kernel {kernel}, which does not exist"
                    ));
                }
                for arg in args {
                    if let ArgRef::Buffer { buffer, .. } = arg {
                        check(*buffer)?;
                        written[buffer.index()] = true;
                    }
                }
            }
            Step::Copy { src, dst, .. } => {
                check(*src)?;
                check(*dst)?;
                if !written[src.index()] {
                    return bad(format!(
                        "step {number} copies from buffer {src}, which nothing has written"
                    ));
                }
                written[dst.index()] = true;
            }
            Step::External(step) => {
                for operand in &step.operands {
                    check(operand.buffer)?;
                    if !written[operand.buffer.index()] {
                        return bad(format!(
                            "step {number} reads buffer {}, which nothing has written",
                            operand.buffer
                        ));
                    }
                }
                if step.results.len() != step.call.results.len() {
                    return bad(format!(
                        "step {number} has {} results for a call with {}",
                        step.results.len(),
                        step.call.results.len()
                    ));
                }
                for &result in &step.results {
                    check(result)?;
                    if !matches!(plan.buffers[result].home, BufferHome::Host) {
                        return bad(format!(
                            "step {number} returns buffer {result}, which is not the host's"
                        ));
                    }
                    written[result.index()] = true;
                }
                if step.call.operand_count() > step.operands.len() {
                    return bad(format!(
                        "step {number} calls with operands it does not have"
                    ));
                }
                for bind in &step.call.binds {
                    let known = plan.symbols.iter().any(|s| {
                        s.symbol == bind.symbol
                            && matches!(s.source, SymbolSource::Step(s) if s as usize == number)
                    });
                    if !known || bind.result as usize >= step.results.len() {
                        return bad(format!(
                            "step {number} binds {} to what it does not return",
                            bind.symbol
                        ));
                    }
                }
            }
        }
    }
    for (i, output) in plan.outputs.iter().enumerate() {
        check(output.buffer)?;
        if !written[output.buffer.index()] {
            return bad(format!(
                "output {i} lives in buffer {}, which nothing has written",
                output.buffer
            ));
        }
    }
    let mut arena: Vec<(BufferId, i64, i64, u32, u32)> = plan
        .buffers
        .iter()
        .filter_map(|(id, buffer)| match &buffer.home {
            BufferHome::Arena { offset } => Some((
                id,
                offset.as_const()?,
                buffer.bytes.as_const()?,
                buffer.first_step,
                buffer.last_step,
            )),
            BufferHome::Input(_)
            | BufferHome::Output(_)
            | BufferHome::Constant(_)
            | BufferHome::Host => None,
        })
        .collect();
    // In the order of their first steps, only those that live then can be in the way.
    arena.sort_by_key(|buffer| buffer.3);
    let mut alive: Vec<&(BufferId, i64, i64, u32, u32)> = Vec::new();
    for a in &arena {
        alive.retain(|b| a.3 <= b.4);
        if let Some(b) = (alive.iter()).find(|b| b.3 <= a.4 && a.1 < b.1 + b.2 && b.1 < a.1 + a.2) {
            return bad(format!(
                "buffers {} and {} live at once and overlap",
                a.0.max(b.0),
                a.0.min(b.0)
            ));
        }
        alive.push(a);
    }
    Ok(())
}
