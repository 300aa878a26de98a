//! Products on vectors whose lanes multiply a group of the depth at a time: four bytes (VNNI), or two bf16 (AVX-512 BF16).
//!
//! `b` has the elements of a group side by side, `[k / group, n, group]`, as for the matrix unit, and `a` runs along the depth. A group is four bytes: to the loop over the depth it is one element of 32 bits
//! that is loaded, repeated and multiplied as numbers of that size are. Only the multiplication is another.

use oxyfuel_base::DType;

use super::Select;
use super::mma::{Operand, Stride};
use crate::mir::Op as X;

/// Bytes of a group: a lane.
const GROUP: i64 = 4;

/// The instruction that multiplies groups and adds their sum to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dot {
    pub op: X,
    /// `b` is the operand that the instruction has first: of two bytes the unsigned one.
    pub is_b_first: bool,
}

/// A product in groups: operands whose elements are groups.
#[derive(Debug)]
pub struct Grouped {
    pub a: Operand,
    pub b: Operand,
    pub dot: Dot,
}

impl Select<'_, '_> {
    /// The product as one of groups, where its operands lie for it and the machine has the instruction.
    pub fn grouped(&self, a: &Operand, b: &Operand, acc: DType) -> Option<Grouped> {
        let level = self.e.level;
        let bytes = if level.avx512 {
            X::VPDpBusd
        } else {
            X::VPDpBusdY
        };
        let dot = |op: X, is_b_first: bool| Dot { op, is_b_first };
        let dot = match (a.dtype, b.dtype, acc) {
            (DType::U8, DType::I8, DType::I32) if level.vnni() => dot(bytes, false),
            (DType::I8, DType::U8, DType::I32) if level.vnni() => dot(bytes, true),
            (DType::BF16, DType::BF16, DType::F32) if level.avx512_bf16 => dot(X::VDpBf16Ps, true),
            _ => return None,
        };
        let size = a.dtype.size() as i64;
        let group = GROUP / size;
        let &[(steps, step), (inner, Stride::Bytes(near))] = &b.depth[..] else {
            return None;
        };
        let &[side @ (_, Stride::Bytes(GROUP))] = &b.side[..] else {
            return None;
        };
        let (&(run, Stride::Bytes(along)), blocks) = a.depth.split_last()? else {
            return None;
        };
        let fits = inner == group && near == size && along == size && run % group == 0;
        let of_groups = |operand: &Operand, depth, side| Operand {
            dtype: acc,
            depth,
            side,
            ..operand.clone()
        };
        let mut depth = blocks.to_vec();
        depth.push((run / group, Stride::Bytes(GROUP)));
        fits.then(|| Grouped {
            a: of_groups(a, depth, a.side.clone()),
            b: of_groups(b, vec![(steps, step)], vec![side]),
            dot,
        })
    }
}
