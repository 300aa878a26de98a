//! The next instance's rows are asked for while this one's are computed.
//!
//! An instance that reads its rows in several stages waits for memory in the first and computes in the second, so that each is idle while the other works. The second stage asks for what the
//! first stage of the next instance will read; a worker's instances follow each other. Asking changes no result, and what lies behind the last row is no fault.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{BinaryOp, Index, Op, Val};

use super::Select;
use super::nest::{Ctx, Window};
use crate::mir::{Op as X, Width};

const LINE: i64 = 64;
/// Below this the machine's own prefetching is already at the next instance.
const LEAST: i64 = 1 << 10;
/// Up to here the first-level cache holds this instance and the next one.
const NEAR: i64 = 1 << 14;
/// Beyond this the second-level cache does not.
const MOST: i64 = 1 << 19;

impl<'p> Select<'p, '_> {
    /// Asks for what lies where a window's vector `copy` will be in the next instance.
    pub fn ask_ahead(&mut self, c: &mut Ctx<'_, 'p>, v: Val, w: &Window, copy: u32) -> Result<()> {
        let staged = c.nest.vector.is_some_and(|a| c.nest.staged.contains(&a));
        let again = c.stage == 1 && c.nest.stage(v) == Some(0);
        let whole = c.vector_level.is_some() && c.tail.is_none() && !c.test_bounds;
        let first = i64::from(copy * c.nest.lanes) * w.size;
        if !(staged && again && whole && first % LINE == 0) {
            return Ok(());
        }
        let Index::Val(base) = w.base else {
            return Ok(());
        };
        let apart = self.step(base).and_then(|step| step.checked_mul(w.size));
        let Some(apart) = apart.filter(|bytes| (LEAST..=MOST).contains(bytes)) else {
            return Ok(());
        };
        let (mem, stride) = self.place(c, w, copy)?;
        if stride == Index::Const(1) {
            let near = if apart <= NEAR {
                X::PrefetchT0
            } else {
                X::PrefetchT1
            };
            let next = mem.plus(apart as i32);
            self.e.f.inst(near, Width::X, &[next.into()]);
        }
        Ok(())
    }

    /// By how much a scalar grows from one instance to the next, where that is plain: the first axis of the grid counts fastest.
    fn step(&self, v: Val) -> Option<i64> {
        match *self.origin.get(&v)? {
            Op::ProgramId { axis } => Some(i64::from(*axis == 0)),
            Op::Const { .. } => Some(0),
            Op::Binary { op, lhs, rhs } => {
                let (a, b) = (self.step(*lhs)?, self.step(*rhs)?);
                match op {
                    BinaryOp::Add => a.checked_add(b),
                    BinaryOp::Mul => match (self.origin.get(lhs)?, self.origin.get(rhs)?) {
                        (_, Op::Const { value }) => a.checked_mul(value.as_i64()),
                        (Op::Const { value }, _) => b.checked_mul(value.as_i64()),
                        _ => None,
                    },
                    _ => None,
                }
            }
            _ => None,
        }
    }
}
