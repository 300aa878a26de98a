//! Which values are rounded to 16 bits before anything can tell their last bits apart.
//!
//! Products, quotients, signs and choices hand a small relative error on as it is; a cast to a narrow float swallows it. A sum may cancel, a comparison may tip over, and what is stored in f32 is read by others: values that reach one
//! of these keep all of their bits.

use std::collections::HashSet;

use oxyfuel_kernel::{BinaryOp, DType, Inst, Op, Program, Type, UnaryOp, Val};

/// The f32 values that something reads bit by bit.
#[derive(Default)]
pub(super) struct Exact(HashSet<Val>);

impl Exact {
    pub(super) fn of(program: &Program) -> Self {
        let mut insts: Vec<&Inst> = Vec::new();
        let mut exact = HashSet::new();
        program.walk(|inst| {
            insts.push(inst);
            for block in inst.op.blocks() {
                exact.extend(&block.yields);
            }
        });
        // Whoever reads a value stands behind it.
        for inst in insts.into_iter().rev() {
            let whole = inst.results.iter().any(|v| exact.contains(v));
            if !swallows(program, inst) && (whole || !hands_on(&inst.op)) {
                inst.op.for_each_arg(|v| {
                    exact.insert(v);
                });
            }
        }
        Self(exact)
    }

    /// Whether every bit of the instruction's result counts.
    pub(super) fn contains(&self, inst: &Inst) -> bool {
        inst.results.iter().any(|v| self.0.contains(v))
    }
}

/// Whether an op does nothing to a small relative error of its operands but hand it to its result. Conditions have no such errors.
fn hands_on(op: &Op) -> bool {
    let signs = matches!(op, Op::Unary { op, .. } if matches!(op, UnaryOp::Neg | UnaryOp::Abs));
    let products =
        matches!(op, Op::Binary { op, .. } if matches!(op, BinaryOp::Mul | BinaryOp::Div));
    let moves = matches!(
        op,
        Op::Select { .. }
            | Op::Broadcast { .. }
            | Op::Splat { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::ConvertLayout { .. }
    );
    signs || products || moves
}

/// Whether an op is a cast to a float of 16 bits.
fn swallows(program: &Program, inst: &Inst) -> bool {
    let is_narrow = |&v: &Val| match &program.value(v).ty {
        Type::Tile(tile) => matches!(tile.dtype, DType::BF16 | DType::F16),
        Type::Mem(_) | Type::TensorMap => false,
    };
    matches!(inst.op, Op::Cast { .. }) && inst.results.iter().all(is_narrow)
}
