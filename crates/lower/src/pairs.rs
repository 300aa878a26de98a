//! Two short rows an instance.
//!
//! A norm of a short row waits: for a sum across lanes, a quotient, a root, each of which needs the one before, and the next row is too far behind to begin meanwhile. An instance that has two rows takes every step for both, so that one waits while
//! the other computes. Rows of all instances are those of before, each computed as before: it has as many partial sums alone (`unroll` in `x86/src/select/nest.rs`).

use std::collections::{BTreeMap, BTreeSet};

use oxyfuel_base::{Expr, Scalar};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{BinaryOp, BufferMode, Inst, Op, ParamKind, Type, Val};

/// Bytes of a row: shorter ones share an instance with others anyway, and two longer ones with their results and weights crowd the first-level cache.
const LEAST: i64 = 1 << 10;
const MOST: i64 = 1 << 12;
/// Ops on a whole row up to which two of them share a loop.
const OPS: usize = 64;
/// The least rows: fewer are no work for several workers, and not many for one.
const ROWS: i64 = 64;

/// Makes instances of two rows of those of one, where that pays.
pub fn in_pairs(program: &mut Program) {
    let [phase] = program.phases.as_slice() else {
        return;
    };
    let [grid] = phase.grid.as_slice() else {
        return;
    };
    let Some(count) = grid.as_const().filter(|n| n % 2 == 0 && *n >= ROWS) else {
        return;
    };
    if !is_row(program) {
        return;
    }
    let body = std::mem::take(&mut program.phases[0].body.insts);
    program.phases[0].grid = vec![Expr::constant(count / 2)];
    program.phases[0].body.insts = twice(program, body);
}

/// Whether an instance has one short row, which it reduces and then stores, and whose buffers are read or written, not both.
fn is_row(program: &Program) -> bool {
    let bytes = |v: Val| match &program.value(v).ty {
        Type::Tile(tile) => tile.len().saturating_mul(tile.dtype.size() as i64),
        Type::Mem(_) | Type::TensorMap => 0,
    };
    let both = program.params.iter().any(|param| match &param.kind {
        ParamKind::Buffer(buffer) => !matches!(buffer.mode, BufferMode::Read | BufferMode::Write),
        ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => true,
    });
    let (mut row, mut reductions, mut ops) = (0, 0, 0);
    let mut late: BTreeSet<Val> = BTreeSet::new();
    let mut stores_late = false;
    for inst in &program.phases[0].body.insts {
        let args = inst.op.args();
        let mut is_late = args.iter().any(|v| late.contains(v));
        match &inst.op {
            Op::ProgramId { axis: 0 }
            | Op::Const { .. }
            | Op::Load { mask: None, .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Cast { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Fma { .. } => {}
            Op::Reduce { value, .. } => {
                row = row.max(bytes(*value));
                reductions += 1;
                is_late = true;
            }
            Op::Store {
                value, mask: None, ..
            } => stores_late |= late.contains(value) && bytes(*value) >= LEAST,
            _ => return false,
        }
        ops += usize::from(inst.results.iter().any(|&v| bytes(v) >= LEAST));
        if is_late {
            late.extend(&inst.results);
        }
    }
    let short = (LEAST..=MOST).contains(&row) && ops <= OPS;
    !both && stores_late && reductions > 0 && short
}

/// Every instruction that depends on the instance for its first row and for its second one.
fn twice(program: &mut Program, body: Vec<Inst>) -> Vec<Inst> {
    let mut second: BTreeMap<Val, Val> = BTreeMap::new();
    let mut insts = Vec::with_capacity(2 * body.len());
    for inst in body {
        if let Op::ProgramId { .. } = inst.op {
            let number = |program: &mut Program| {
                let data = program.value(inst.results[0]).clone();
                program.values.push(data)
            };
            let [pair, two, one, next] = [(); 4].map(|()| number(program));
            let constant = |n: i64, result: Val| Inst {
                op: Op::Const {
                    value: Scalar::I(n),
                },
                results: vec![result],
            };
            let binary = |op: BinaryOp, lhs: Val, rhs: Val, result: Val| Inst {
                op: Op::Binary { op, lhs, rhs },
                results: vec![result],
            };
            let first = inst.results[0];
            insts.push(Inst {
                op: inst.op,
                results: vec![pair],
            });
            insts.push(constant(2, two));
            insts.push(binary(BinaryOp::Mul, pair, two, first));
            insts.push(constant(1, one));
            insts.push(binary(BinaryOp::Add, first, one, next));
            second.insert(first, next);
            continue;
        }
        if !inst.op.args().iter().any(|v| second.contains_key(v)) {
            insts.push(inst);
            continue;
        }
        let mut other = inst.clone();
        other.op.map_args(|v| second.get(&v).copied().unwrap_or(v));
        for v in &mut other.results {
            let data = program.value(*v).clone();
            let new = program.values.push(data);
            second.insert(*v, new);
            *v = new;
        }
        insts.push(inst);
        insts.push(other);
    }
    insts
}
