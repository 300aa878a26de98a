//! Reductions that end where their data does.
//!
//! `reduce.sum (select (iota < %n) %x identity)` counts what lies below `%n` along a dim and nothing else. Written out, every element of the tile costs a comparison, those beyond `%n` too. Here it
//! becomes `reduce.sum %x` with a note of the limit, and the loops of its stage end at `%n`, provided that nothing else in them wants more ([`super::nest`] checks it).

use std::borrow::Cow;

use oxyfuel_kernel::ir::{Block, CompareOp, Op, Program, Val};
use rustc_hash::FxHashMap;

use super::reduce::identity;
use super::values::Values;
use crate::emit::lane_bits;

/// Of a reduction: the dim that is limited, and the scalar that limits it.
pub type Limits = FxHashMap<Val, (u8, Val)>;

/// The program with such reductions bare, and their limits.
pub fn bounded(program: Cow<'_, Program>) -> (Cow<'_, Program>, Limits) {
    let mut limits = Limits::default();
    let (mut reduces, mut selects) = (false, false);
    program.walk(|inst| {
        reduces |= matches!(inst.op, Op::Reduce { .. });
        selects |= matches!(inst.op, Op::Select { .. });
    });
    if !reduces || !selects {
        return (program, limits);
    }
    let mut ops: Ops<'_> = Values::new(program.values.len());
    program.walk(|inst| {
        if let Some(&result) = inst.results.first() {
            ops.insert(result, &inst.op);
        }
    });
    let mut any = false;
    program.walk(|inst| any |= limited(&inst.op, &program, &ops).is_some());
    if !any {
        return (program, limits);
    }
    let mut out = Program::clone(&program);
    for phase in &mut out.phases {
        rewrite(&mut phase.body, &program, &ops, &mut limits);
    }
    (Cow::Owned(out), limits)
}

/// The op that defines each value.
type Ops<'p> = Values<&'p Op>;

fn rewrite(block: &mut Block, program: &Program, ops: &Ops<'_>, limits: &mut Limits) {
    for inst in &mut block.insts {
        for inner in inst.op.blocks_mut() {
            rewrite(inner, program, ops, limits);
        }
        if let Some((bare, dim, limit)) = limited(&inst.op, program, ops)
            && let Op::Reduce { value, .. } = &mut inst.op
            && let Some(&result) = inst.results.first()
        {
            *value = bare;
            limits.insert(result, (dim, limit));
        }
    }
}

/// What a limited reduction reduces, the limited dim and the limit.
fn limited(op: &Op, program: &Program, ops: &Ops<'_>) -> Option<(Val, u8, Val)> {
    let Op::Reduce { op, value, axes } = op else {
        return None;
    };
    let Op::Select {
        cond,
        on_true,
        on_false,
    } = ops.get(value)?
    else {
        return None;
    };
    let tile = program.tile(*value).ok()?;
    let Op::Const { value: neutral } = ops.get(&strip(*on_false, ops))? else {
        return None;
    };
    let expected = identity(*op, tile.dtype);
    if lane_bits(*neutral, tile.dtype) != lane_bits(expected, tile.dtype) {
        return None;
    }
    let Op::Compare {
        op: CompareOp::Lt,
        lhs,
        rhs,
    } = ops.get(&strip(*cond, ops))?
    else {
        return None;
    };
    let counter = strip(*lhs, ops);
    let Op::Iota { dim } = ops.get(&counter)? else {
        return None;
    };
    let limit = strip(*rhs, ops);
    let same_rank = program.tile(counter).ok()?.shape.len() == tile.shape.len();
    let scalar = program.tile(limit).ok()?.shape.is_empty();
    let several = tile.shape.get(usize::from(*dim)).is_some_and(|&n| n > 1);
    (same_rank && scalar && several && axes.contains(dim)).then_some((*on_true, *dim, limit))
}

/// What a value repeats.
fn strip(v: Val, ops: &Ops<'_>) -> Val {
    match ops.get(&v) {
        Some(Op::Broadcast { value } | Op::Splat { value } | Op::ConvertLayout { value }) => {
            strip(*value, ops)
        }
        _ => v,
    }
}
