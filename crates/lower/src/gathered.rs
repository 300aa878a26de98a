//! Programs one after the other: the phases of several kernels as those of one, which a few blocks run in one launch.
//!
//! ```text
//!   kernel A   phase of 1 instance    ┐              ┌ phase of 1 instance
//!   kernel B   phase of 12 instances  ┼─ gathered 8 ─┤ phase of 12 instances
//!   kernel C   phase of 2 instances   ┘              └ phase of 2 instances
//! ```
//!
//! A launch costs microseconds of the host's time and of the device's, whatever it does; a meeting of blocks in one cluster costs some hundred nanoseconds. Work that fills a few blocks and needs what such work made is
//! sooner done by the blocks that are there.

use oxyfuel_base::{Arena, Id, Result, ensure, err};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{
    Block, Form, Geometry, Inst, Op, Order, Param, ParamKind, Phase, Role, Val,
};

use crate::join::instances;
use crate::{Lowered, MOST_PARAMS};

/// The most phases of one kernel: a driver's compiler takes about 10 ms for each, and for those of one kernel one after the other.
pub const MOST_PHASES: usize = 8;
/// How often a block may take a turn in one phase: with more, the whole machine is sooner done.
const TURNS: i64 = 2;

/// Instances of the largest phase, where a program may run in at most so many blocks; `None` where it is better launched by itself: it is too large, its sizes are not known, its warps have roles, copies complete on
/// barriers, or a library may compute it.
pub fn gathers(lowered: &Lowered, blocks: u32) -> Option<i64> {
    let program = &lowered.mapped;
    let mut plain = true;
    program.walk(|inst| {
        plain &= !matches!(
            inst.op,
            Op::Roles { .. }
                | Op::Dot { .. }
                | Op::Mma { .. }
                | Op::CopyAsync { .. }
                | Op::TensorLoad { .. }
                | Op::TensorStore { .. }
                | Op::BarrierInit { .. }
        );
    });
    let buffer = |param: &Param| matches!(param.kind, ParamKind::Buffer(_));
    let fits = plain
        && program.form == Form::Mapped
        && program.rounds == 1
        && program.gathered == 0
        && program.geometry.cluster == [1; 3]
        && program.geometry.lanes > 1
        && lowered.gemm.is_none()
        && program.params.iter().all(buffer)
        && program.params.len() <= MOST_PARAMS
        && program.phases.len() <= MOST_PHASES;
    let in_order = |phase: &Phase| instances(phase).filter(|_| phase.order == Order::Plain);
    let largest = || {
        let mut sizes = program.phases.iter().map(in_order);
        sizes.try_fold(0, |most, size| Some(size?.max(most)))
    };
    let largest = fits.then(largest).flatten()?;
    (largest <= TURNS * i64::from(blocks)).then_some(largest)
}

/// One kernel of programs that [`gathers`] says may be gathered, one after the other. Parameters are those of the first, then those of the next.
pub fn gather(name: &str, parts: &[&Lowered], blocks: u32) -> Result<Lowered> {
    let warps = parts.iter().map(|part| part.mapped.geometry.warps).max();
    let warps = warps.ok_or_else(|| err!(Internal, "a kernel of no programs"))?;
    let mut program = Program {
        name: name.to_owned(),
        form: Form::Mapped,
        params: Vec::new(),
        values: Arena::new(),
        geometry: Geometry {
            warps,
            registers: 0,
            ..parts[0].mapped.geometry
        },
        rounds: 1,
        gathered: blocks,
        phases: Vec::new(),
    };
    for (number, part) in parts.iter().enumerate() {
        ensure!(
            gathers(part, blocks).is_some() && part.mapped.geometry.lanes == program.geometry.lanes,
            Internal,
            "a program that cannot be gathered"
        );
        append(&mut program, number, &part.mapped);
    }
    let min_chunk = parts.iter().flat_map(|part| part.min_chunk.iter().copied());
    Ok(Lowered {
        logical: None,
        mapped: program,
        arguments: Vec::new(),
        min_chunk: min_chunk.collect(),
        gemm: None,
    })
}

/// The phases of a program behind those that are there, in values and parameters of their own.
fn append(program: &mut Program, number: usize, part: &Program) {
    let before = program.values.len();
    for data in part.values.values() {
        program.values.push(data.clone());
    }
    let rename = |v: Val| Val::from_index(before + v.index());
    for (i, param) in part.params.iter().enumerate() {
        program.params.push(Param {
            value: rename(param.value),
            name: format!("p{number}_{i}"),
            kind: param.kind.clone(),
        });
    }
    for phase in &part.phases {
        let mut phase = phase.clone();
        phase.body.rename(&rename);
        if part.geometry.warps < program.geometry.warps {
            phase.body = first_warps(part.geometry.warps, phase.body);
        }
        program.phases.push(phase);
    }
}

/// A body that the first warps of a block run alone.
fn first_warps(warps: u32, body: Block) -> Block {
    let role = Role {
        name: "first".to_owned(),
        first_warp: 0,
        warps,
        registers: 0,
        body,
    };
    Block {
        insts: vec![Inst {
            op: Op::Roles { roles: vec![role] },
            results: Vec::new(),
        }],
        yields: Vec::new(),
    }
}
