//! What programs are made of, to see whether generators reach all of it.

use crate::ir::{ArgOp, BinaryOp, CompareOp, Op, Program, ReduceOp, UnaryOp};
use crate::table::TABLE;
use std::collections::BTreeSet;

/// A row of the op table, and of a family its member.
pub type Word = (&'static str, Option<&'static str>);

/// The words of a program.
pub fn words(program: &Program) -> BTreeSet<Word> {
    let mut words = BTreeSet::new();
    program.walk(|inst| {
        words.insert((inst.op.row().name, member(&inst.op)));
    });
    words
}

fn member(op: &Op) -> Option<&'static str> {
    match op {
        Op::Unary { op, .. } => Some(op.name()),
        Op::Binary { op, .. } => Some(op.name()),
        Op::Compare { op, .. } => Some(op.name()),
        Op::Reduce { op, .. } | Op::Scan { op, .. } | Op::Atomic { op, .. } => Some(op.name()),
        Op::ArgReduce { op, .. } => Some(op.name()),
        Op::ProgramId { .. }
        | Op::NumPrograms { .. }
        | Op::Const { .. }
        | Op::Iota { .. }
        | Op::Splat { .. }
        | Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Select { .. }
        | Op::Fma { .. }
        | Op::Cast { .. }
        | Op::Bitcast { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Sort { .. }
        | Op::Dot { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::Pick { .. }
        | Op::Alloc
        | Op::ConvertLayout { .. }
        | Op::Mma { .. }
        | Op::MmaCommit
        | Op::MmaWait { .. }
        | Op::TensorLoad { .. }
        | Op::TensorStore { .. }
        | Op::CopyAsync { .. }
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::BarrierInit { .. }
        | Op::BarrierArrive { .. }
        | Op::BarrierWait { .. }
        | Op::Sync
        | Op::FenceAsync
        | Op::Roles { .. } => None,
    }
}

/// Every word that the table has.
pub fn all_words() -> BTreeSet<Word> {
    let reductions: Vec<_> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
    let mut families = vec![
        ("unary", UnaryOp::ALL.iter().map(|op| op.name()).collect()),
        ("binary", BinaryOp::ALL.iter().map(|op| op.name()).collect()),
        (
            "compare",
            CompareOp::ALL.iter().map(|op| op.name()).collect(),
        ),
        ("argreduce", ArgOp::ALL.iter().map(|op| op.name()).collect()),
    ];
    families.extend(["reduce", "scan", "atomic"].map(|name| (name, reductions.clone())));
    let mut words = BTreeSet::new();
    for row in TABLE {
        match families.iter().find(|(name, _)| *name == row.name) {
            Some((_, members)) => {
                words.extend(members.iter().map(|member| (row.name, Some(*member))))
            }
            None => {
                words.insert((row.name, None));
            }
        }
    }
    words
}
