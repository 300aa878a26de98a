//! Programs whose elements wait for each other: running combinations, sorts and atomic updates.
//!
//! What is combined does not depend on the order: integers, extremes and truth values.

use super::{Case, Choices, Given};
use crate::builder::KernelBuilder;
use crate::ir::{BufferMode, ReduceOp};
use oxyfuel_base::{DType, Result};

const DTYPES: [DType; 6] = [
    DType::I32,
    DType::F32,
    DType::I64,
    DType::BF16,
    DType::U8,
    DType::F64,
];

/// The dtype in which a combination is the same in any order.
fn dtype_for(op: ReduceOp, wanted: DType) -> DType {
    match op {
        ReduceOp::Sum | ReduceOp::Prod if wanted.is_float() => DType::I32,
        ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max => wanted,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
    }
}

/// The program that the numbers mean.
pub fn ordered(numbers: &[u32]) -> Result<Case> {
    let mut choices = Choices::new(numbers);
    let kind = choices.below(3);
    let op = choices.pick(ReduceOp::ALL);
    let wanted = choices.pick(&DTYPES);
    let axis = choices.below(2) as u8;
    let is_turned = choices.below(2) == 1;
    let shape = [1 + choices.below(5) as i64, 1 + choices.below(20) as i64];
    let count = 1 + choices.below(3) as i64;
    let places = 1 + choices.below(12) as i64;
    let seed = choices.below(1 << 20) as u32;

    let size = shape[0] * shape[1];
    let is_sort = kind == 1;
    let dtype = if is_sort {
        wanted
    } else {
        dtype_for(op, wanted)
    };
    let out_len = if kind == 2 { places } else { count * size };
    let k = KernelBuilder::new("ordered");
    let x = k.buffer("x", dtype, BufferMode::Read, count * size);
    let index = k.buffer("index", DType::I32, BufferMode::Read, count * size);
    let out = k.buffer("out", dtype, BufferMode::ReadWrite, out_len);
    let positions = k.buffer("positions", DType::I64, BufferMode::ReadWrite, count * size);
    k.phase([count], |k| {
        let base = k.program_id(0) * size;
        let tile = k.load(x.at(&base).shape(shape));
        match kind {
            0 => k.store(out.at(&base).shape(shape), tile.scan(op, axis, is_turned)),
            1 => {
                let (sorted, from) = tile.sort(axis, is_turned, DType::I64);
                k.store(out.at(&base).shape(shape), sorted);
                k.store(positions.at(&base).shape(shape), from);
            }
            _ => {
                let raw = k.load(index.at(&base).shape(shape));
                let mask = is_turned.then(|| raw.gt(0));
                k.atomic(op, &out, &raw.modulo(places), &tile, mask.as_ref());
            }
        }
    });
    let len = |len: i64| usize::try_from(len).unwrap_or(0);
    let args = vec![
        Given::random(dtype, len(count * size), seed),
        Given::random(DType::I32, len(count * size), seed.wrapping_add(1)),
        Given::random(dtype, len(out_len), seed.wrapping_add(2)),
        Given::zeros(DType::I64, len(count * size)),
    ];
    Ok(Case {
        program: k.finish()?,
        args,
        open: false,
    })
}
