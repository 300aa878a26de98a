//! How many neighbours one access can move: what is known of where rows begin.
//!
//! A tile whose threads hold several neighbours each is read and written in wide accesses where rows begin at multiples of those. Where some row begins at an odd place (a slice of a wider buffer, rows of
//! 50,257), each thread would go over its neighbours one by one, lanes far from each other; then neighbours had better belong to neighbouring lanes.

use std::collections::HashMap;

use oxyfuel_base::Scalar;
use oxyfuel_kernel::ir::{Access, BinaryOp, BufferParam, Index, Op, ParamKind, Program, Val};
use oxyfuel_plan::WIDEST_ACCESS;

/// Bytes of the widest access.
const WIDEST: u64 = WIDEST_ACCESS as u64;

/// Elements from one to the next that are still near: windows of a pool, every other element.
const NEAR: i64 = 4;

/// Bytes that are little for one access of a thread.
const LITTLE: u64 = 4;

/// The most neighbours, at most `wanted`, that every read of rows of tiles as long as those of `largest` can move at once; where nothing is read so, every write.
///
/// What is written can still change hands before ([`odd_stores`]).
pub fn neighbours(program: &Program, largest: &[i64], wanted: u32) -> u32 {
    let known = Multiples::of(program);
    let (mut read, mut written) = (None, u64::from(wanted));
    let (mut jumps, mut skips) = (false, false);
    program.walk(|inst| {
        let (Op::Load { access, .. } | Op::Store { access, .. }) = &inst.op else {
            return;
        };
        if access.shape.last() != largest.last() {
            return;
        }
        match access.strides.last() {
            Some(Index::Const(0 | 1)) | None => {}
            Some(Index::Const(step)) if (2..=NEAR).contains(&step.abs()) => skips = true,
            Some(_) => jumps = true,
        }
        let Some(fits) = known.fits(program, access, wanted) else {
            return;
        };
        if matches!(inst.op, Op::Load { .. }) {
            read = Some(read.unwrap_or(u64::from(wanted)).min(fits));
        } else {
            written = written.min(fits);
        }
    });
    // Across the order of memory lanes are far from each other anyway.
    if jumps {
        wanted
    } else if skips {
        // Lanes side by side share what memory gives at once; a lane's own neighbours would have it asked for again and again.
        1
    } else {
        read.unwrap_or(written) as u32
    }
}

/// Of the program's stores, counted in order, those of whole tiles to rows at odd places, and how many neighbours one access can move there.
pub fn odd_stores(program: &Program, largest: &[i64], held: u32) -> Vec<(usize, u32)> {
    let known = Multiples::of(program);
    let mut stores = Vec::new();
    let mut number = 0;
    program.walk(|inst| {
        let Op::Store { access, mask, .. } = &inst.op else {
            return;
        };
        number += 1;
        if access.shape == largest
            && mask.is_none()
            && let Some((buffer, size)) = given(program, access)
            && !buffer.dtype.is_bool()
            && let Some(fits) = known.fits(program, access, held)
            && fits * size <= LITTLE
            && u64::from(held) * size > LITTLE
        {
            stores.push((number - 1, fits as u32));
        }
    });
    stores
}

/// The parameter that an access goes to, and the bytes of an element; `None` where the memory is not one that the program was given.
fn given<'p>(program: &'p Program, access: &Access) -> Option<(&'p BufferParam, u64)> {
    program.params.iter().find_map(|param| match &param.kind {
        ParamKind::Buffer(buffer) if param.value == access.mem => {
            Some((buffer, buffer.dtype.size() as u64))
        }
        ParamKind::Buffer(_) | ParamKind::Scalar { .. } | ParamKind::TensorMap(_) => None,
    })
}

/// Numbers that scalars are multiples of; 0 where only zero is possible, or where it is not this analysis that knows.
struct Multiples(HashMap<Val, u64>);

impl Multiples {
    fn of(program: &Program) -> Self {
        // Nothing is known of sizes that come at launch.
        let sizes = program.params.iter();
        let sizes = sizes.filter(|param| matches!(param.kind, ParamKind::Scalar { .. }));
        let mut known = Self(sizes.map(|size| (size.value, 1)).collect());
        program.walk(|inst| {
            if let Op::For { iv, lo, step, .. } = &inst.op {
                let begin = known.index(lo);
                known.0.insert(*iv, gcd(begin, step.unsigned_abs()));
            }
            if let [result] = inst.results.as_slice()
                && let Some(multiple) = known.made(&inst.op)
            {
                known.0.insert(*result, multiple);
            }
        });
        known
    }

    /// What an op makes of what is known of its operands.
    fn made(&self, op: &Op) -> Option<u64> {
        Some(match *op {
            Op::ProgramId { .. } | Op::Load { .. } => 1,
            Op::Const {
                value: Scalar::I(n),
            } => n.unsigned_abs(),
            Op::Cast { value } | Op::Reshape { value } => self.of_value(value),
            Op::Binary { op, lhs, rhs } => {
                let (a, b) = (self.of_value(lhs), self.of_value(rhs));
                match op {
                    BinaryOp::Mul => a.saturating_mul(b),
                    BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max => gcd(a, b),
                    BinaryOp::Mod | BinaryOp::Rem => gcd(a, b),
                    BinaryOp::FloorDiv | BinaryOp::Div if b != 0 && a.is_multiple_of(b) => a / b,
                    _ => 1,
                }
            }
            _ => return None,
        })
    }

    fn of_value(&self, value: Val) -> u64 {
        self.0.get(&value).copied().unwrap_or(0)
    }

    fn index(&self, index: &Index) -> u64 {
        match index {
            Index::Const(n) => n.unsigned_abs(),
            Index::Val(value) => self.of_value(*value),
        }
    }

    /// How many neighbours, at most `most`, one access to rows that memory walks in order can move; `most` also where one access would not move as many anyway.
    fn fits(&self, program: &Program, access: &Access, most: u32) -> Option<u64> {
        let (buffer, size) = given(program, access)?;
        if access.strides.last() != Some(&Index::Const(1)) {
            return None;
        }
        let rows = access.strides.iter().zip(&access.shape);
        let rows = rows.take(access.shape.len().saturating_sub(1));
        let between = rows
            .filter(|&(_, &extent)| extent > 1)
            .fold(0, |all, (stride, _)| gcd(all, self.index(stride)));
        let begin = gcd(self.index(&access.base), between);
        let multiple = gcd(begin, u64::from(buffer.align) / size);
        let fits = 1 << multiple.trailing_zeros().min(8);
        let whole = fits >= (WIDEST / size).min(u64::from(most));
        Some(if whole { u64::from(most) } else { fits })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
