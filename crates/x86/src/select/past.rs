//! Stores past the caches.
//!
//! Such a store writes whole vectors at multiples of their size. Rows that begin elsewhere (50,257 columns) have a few elements before the first such place: these are written by themselves, and the loop begins there.
//!
//! ```text
//!   row     ..abcdefgh|ijklmnop|qrstuvwx|yz..
//!   stores    masked    past     past    masked
//! ```

use oxyfuel_base::{DType, Result};
use oxyfuel_kernel::ir::{Access, CacheHint, Index, Inst, Op};

use super::Select;
use super::nest::Ctx;
use super::run::{Axis, Sink, effect_key};
use crate::mir::{A, Op as X, Reg};

/// Vectors of a row from which on its first elements are worth a step of their own.
const LONG: i64 = 16;
/// Bytes of the least store past the caches.
const LEAST: i64 = 16;

impl<'p> Select<'p, '_> {
    /// Whether a whole vector along a dim of a window is written past the caches.
    pub fn streams(
        &self,
        c: &Ctx<'_, 'p>,
        access: &Access,
        dim: usize,
        dtype: DType,
        hint: CacheHint,
    ) -> bool {
        let bytes = i64::from(c.nest.lanes) * dtype.size() as i64;
        hint == CacheHint::Streaming
            && access.strides[dim] == Index::Const(1)
            && bytes >= LEAST
            && (c.begins_whole || self.aligned(access, dim, bytes))
    }

    /// Whether a stage will write this window past the caches.
    pub fn will_stream(&self, c: &Ctx<'_, 'p>, inst: &Inst, axis: Axis, stage: usize) -> bool {
        let Op::Store { access, hint, .. } = &inst.op else {
            return false;
        };
        let key = effect_key(inst);
        let along = (0..access.shape.len()).find(|&d| c.axes.of(key, d) == Some(axis));
        let (Some(dim), Ok(mem)) = (along, self.p.mem(access.mem)) else {
            return false;
        };
        self.streams(c, access, dim, mem.dtype, *hint) || self.odd_rows(c, axis, stage).is_some()
    }

    /// The one store of a stage, where it is to go past the caches and its rows begin anywhere.
    fn odd_rows(
        &self,
        c: &Ctx<'_, 'p>,
        axis: Axis,
        stage: usize,
    ) -> Option<(&'p Inst, &'p Access)> {
        let alone = c.nest.saved[stage].is_empty();
        let [Sink::Effect(inst)] = self.staged_sinks(c, stage)[..] else {
            return None;
        };
        let Op::Store {
            access,
            mask: None,
            hint: CacheHint::Streaming,
            ..
        } = &inst.op
        else {
            return None;
        };
        let lanes = i64::from(c.nest.lanes);
        let size = self.p.mem(access.mem).ok()?.dtype.size() as i64;
        let key = effect_key(inst);
        let dim = (0..access.shape.len()).find(|&d| c.axes.of(key, d) == Some(axis))?;
        // An element that may lie across a multiple of its size has no whole vector after it.
        let align = self.aligns.get(&access.mem).copied().unwrap_or(1);
        // Sums beside it begin where its whole vectors do, which must be the same place in every call.
        let vector = self.e.level.vector_bytes();
        let settled = c.nest.reductions[stage].is_empty() || align % vector == 0;
        let plain = settled
            && access.strides[dim] == Index::Const(1)
            && i64::from(align) % size == 0
            && access.valid.iter().all(Option::is_none)
            && lanes * size == i64::from(vector)
            && c.axes.extent[axis] >= LONG * lanes;
        (alone && plain && !self.aligned(access, dim, lanes * size)).then_some((inst, access))
    }

    /// How many elements of this stage's rows stand before the first whole vector, if they are to be written by themselves.
    pub fn before_whole(&mut self, c: &mut Ctx<'_, 'p>, axis: Axis) -> Result<Option<Reg>> {
        let Some((inst, access)) = self.odd_rows(c, axis, c.stage) else {
            return Ok(None);
        };
        let w = self.window(c, effect_key(inst), access)?;
        let row = self.pointer(c, &w)?;
        let before = self.e.copy_gpr(row);
        let vector = i64::from(self.e.level.vector_bytes());
        self.e.g(X::Neg, &[before.into()]);
        self.e.g(X::AndI, &[before.into(), A::I(vector - 1)]);
        let shift = i64::from(w.size.trailing_zeros());
        self.e.g(X::ShrI, &[before.into(), A::I(shift)]);
        Ok(Some(before))
    }
}
