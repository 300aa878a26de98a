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
            BufferHome::Within { buffer, .. }
                if !matches!(
                    plan.buffers.get(buffer).map(|owner| &owner.home),
                    Some(BufferHome::Output(_) | BufferHome::Host)
                ) =>
            {
                return bad(format!(
                    "buffer {id} lies within {buffer}, which is neither an output nor the host's"
                ));
            }
            BufferHome::Input(_) | BufferHome::Constant(_) => written[id.index()] = true,
            BufferHome::Output(_)
            | BufferHome::Arena { .. }
            | BufferHome::Host
            | BufferHome::Within { .. } => {}
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
    let mut placed: Vec<Placed> = plan
        .buffers
        .iter()
        .filter_map(|(id, buffer)| {
            let (owner, offset) = match &buffer.home {
                BufferHome::Arena { offset } => (None, offset),
                BufferHome::Within { buffer, offset } => (Some(*buffer), offset),
                BufferHome::Input(_)
                | BufferHome::Output(_)
                | BufferHome::Constant(_)
                | BufferHome::Host => return None,
            };
            let begin = offset.as_const()?;
            Some(Placed {
                id,
                owner,
                begin,
                end: begin.checked_add(buffer.bytes.as_const()?)?,
                first: buffer.first_step,
                last: buffer.last_step,
            })
        })
        .collect();
    // In the order of their first steps, only those that live then can be in the way.
    placed.sort_by_key(|buffer| buffer.first);
    let mut alive: Vec<&Placed> = Vec::new();
    for a in &placed {
        alive.retain(|b| a.first <= b.last);
        if let Some(b) = alive.iter().find(|b| a.is_in_the_way_of(b)) {
            return bad(format!(
                "buffers {} and {} live at once and overlap",
                a.id.max(b.id),
                a.id.min(b.id)
            ));
        }
        let room = a
            .owner
            .and_then(|owner| plan.buffers[owner].bytes.as_const());
        if a.begin < 0 || room.is_some_and(|room| a.end > room) {
            return bad(format!("buffer {} reaches beyond its owner", a.id));
        }
        alive.push(a);
    }
    verify_tenants(plan)
}

/// A buffer with a place that is known.
struct Placed {
    id: BufferId,
    /// The buffer that it lies within; `None`: it lies in the arena.
    owner: Option<BufferId>,
    begin: i64,
    end: i64,
    first: u32,
    last: u32,
}

impl Placed {
    fn is_in_the_way_of(&self, other: &Placed) -> bool {
        self.owner == other.owner
            && other.first <= self.last
            && self.begin < other.end
            && other.begin < self.end
    }
}

/// What lies within a buffer is touched while it lives. No step touches an output before all that lies within is dead, and a buffer of the host's never: that holds nothing else, and is there as
/// long as what lies within.
fn verify_tenants(plan: &Plan) -> Result<()> {
    // By buffer that others lie within, the first step that may touch it.
    let mut free = vec![0u32; plan.buffers.len()];
    for (id, buffer) in plan.buffers.iter() {
        let BufferHome::Within { buffer: owner, .. } = buffer.home else {
            continue;
        };
        let room = &plan.buffers[owner];
        let free = &mut free[owner.index()];
        match room.home {
            BufferHome::Host => {
                *free = u32::MAX;
                if buffer.first_step < room.first_step || room.last_step < buffer.last_step {
                    return Err(Error::new(
                        Code::InvalidPlan,
                        format!("buffer {id} lives longer than {owner}, which it lies within"),
                    ));
                }
            }
            BufferHome::Input(_)
            | BufferHome::Output(_)
            | BufferHome::Arena { .. }
            | BufferHome::Constant(_)
            | BufferHome::Within { .. } => {
                *free = (*free).max(buffer.last_step.saturating_add(1));
            }
        }
    }
    let check = |number: usize, id: BufferId| {
        let step = u32::try_from(number).unwrap_or(u32::MAX);
        let buffer = &plan.buffers[id];
        let alive = buffer.first_step <= step && step <= buffer.last_step;
        let tenant = matches!(buffer.home, BufferHome::Within { .. });
        if step < free[id.index()] || (tenant && !alive) {
            return Err(Error::new(
                Code::InvalidPlan,
                format!("step {number} touches buffer {id} while its memory is another's"),
            ));
        }
        Ok(())
    };
    for (number, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Launch { args, .. } => {
                for arg in args {
                    if let ArgRef::Buffer { buffer, .. } = arg {
                        check(number, *buffer)?;
                    }
                }
            }
            Step::Copy { src, dst, .. } => {
                check(number, *src)?;
                check(number, *dst)?;
            }
            Step::External(step) => {
                for operand in &step.operands {
                    check(number, operand.buffer)?;
                }
                for &result in &step.results {
                    check(number, result)?;
                }
            }
        }
    }
    let returned = plan.outputs.iter().map(|output| output.buffer);
    match returned.into_iter().find(|id| free[id.index()] == u32::MAX) {
        Some(id) => Err(Error::new(
            Code::InvalidPlan,
            format!("an output is buffer {id}, which holds others"),
        )),
        None => Ok(()),
    }
}
