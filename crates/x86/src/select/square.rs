//! Loops that take a transposed window square by square, and turn it on their way.
//!
//! ```text
//!             vectors ->                     as many rows as a vector has lanes are read along the memory,
//!   rows   [ square ][ square ] ...          turned in registers, and each column meets its row of what else
//!     |    [ square ][ square ] ...          the loops read; a square is written before the next is read
//!     v
//! ```
//!
//! Nothing waits in scratch. The copies of a step, which elsewhere are vectors side by side, are the rows of a square here. Rows that are written a multiple of a page apart are left to [`super::turn`]: their lines have one set of the
//! first-level cache to themselves, and a square has more of them at a time than that holds (x + x.t() of 2048 x 2048 took 1.15 times as long in squares, of 256 x 256 0.62 times). Rows that go past the caches need no line there, however far apart.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{Access, CacheHint, Index, Inst, Op, Val};

use super::nest::Ctx;
use super::run::{Axes, Axis, Key, Nest, Sink, effect_key};
use super::{Def, Select, slot};
use crate::mir::{A, Mem, Op as X, Reg};

/// Bytes that a way of the first-level cache holds: rows as far apart are in the same set.
const WAY: i64 = 4096;

/// What is turned on the way, and the axis of the rows of its squares.
#[derive(Clone, Copy, Debug)]
pub struct Square<'p> {
    pub value: Val,
    pub rows: Axis,
    access: &'p Access,
    /// The dim of the window that the vectors run along.
    far: usize,
    /// Bytes to what is read next, where nothing else asks for that.
    next: Option<i64>,
}

impl<'p> Select<'p, '_> {
    /// The window of a nest that is turned on its way: the first of those that run across the vectors, where everything else has plain rows.
    pub fn square_of(&self, axes: &Axes, nest: &Nest<'p>) -> Result<Option<Square<'p>>> {
        if !nest.staged.is_empty() || !nest.updated.is_empty() {
            return Ok(None);
        }
        for v in nest.facts.keys() {
            let Some((access, across)) = self.turned_window(axes, nest, v)? else {
                continue;
            };
            let Some(rows) = axes.of(Key::Val(slot(v)), across.near) else {
                continue;
            };
            let fits = nest.facts.keys().all(|v| self.has_rows(axes, v, rows))
                && (nest.sinks.iter()).all(|sink| self.writes_rows(axes, nest, sink, rows));
            let next = self.asked_next(axes, nest, v, access)?;
            return Ok(fits.then_some(Square {
                value: v,
                rows,
                access,
                far: across.far,
                next,
            }));
        }
        Ok(None)
    }

    /// Whether the rows of a value are known by their number: nothing but loads a fixed step apart, and what is computed element by element.
    fn has_rows(&self, axes: &Axes, v: Val, rows: Axis) -> bool {
        match self.defs.get(&v) {
            Some(Def::Lazy(inst)) => match &inst.op {
                Op::Load { .. } => (self.plain_load(v))
                    .is_some_and(|access| is_stepped(axes, Key::Val(slot(v)), access, rows)),
                op => is_pointwise(op),
            },
            Some(Def::Uniform(_) | Def::Gpr(_) | Def::Saved { .. }) => true,
            Some(Def::Memory(_) | Def::Rows(_) | Def::Matrix(_)) | None => false,
        }
    }

    fn writes_rows(&self, axes: &Axes, nest: &Nest<'p>, sink: &Sink<'p>, rows: Axis) -> bool {
        let Sink::Effect(
            inst @ Inst {
                op:
                    Op::Store {
                        access,
                        mask: None,
                        hint,
                        ..
                    },
                ..
            },
        ) = sink
        else {
            return false;
        };
        let past =
            *hint == CacheHint::Streaming && self.has_whole_vectors(axes, nest, inst, access);
        let all: Vec<Axis> = self.sink_axes(axes, sink).collect();
        access.valid.iter().all(Option::is_none)
            && all.contains(&rows)
            && nest.vector.is_some_and(|vector| all.contains(&vector))
            && is_stepped(axes, effect_key(inst), access, rows)
            && (past || !self.crowds(axes, inst, access, rows))
    }

    /// Whether a window's vectors stand at multiples of their size, so that they can be written past the caches and need no line there.
    fn has_whole_vectors(
        &self,
        axes: &Axes,
        nest: &Nest<'p>,
        inst: &Inst,
        access: &Access,
    ) -> bool {
        let bytes = i64::from(self.e.level.vector_bytes());
        let key = effect_key(inst);
        let along = (0..access.shape.len()).find(|&d| axes.of(key, d) == nest.vector);
        along.is_some_and(|dim| self.aligned(access, dim, bytes))
    }

    /// Whether rows that are written are in one set of the first-level cache.
    fn crowds(&self, axes: &Axes, inst: &Inst, access: &Access, rows: Axis) -> bool {
        let size = self.p.mem(access.mem).map_or(1, |mem| mem.dtype.size()) as i64;
        (access.strides.iter().enumerate())
            .filter(|(dim, _)| axes.of(effect_key(inst), *dim) == Some(rows))
            .any(|(_, stride)| matches!(stride, Index::Const(n) if n * size % WAY == 0))
    }

    /// Reads and turns the square at the current coordinates; its columns are the value's rows.
    pub fn read_square(&mut self, c: &mut Ctx<'_, 'p>, square: &Square<'p>) -> Result<()> {
        let v = square.value;
        let w = self.window(c, Key::Val(slot(v)), square.access)?;
        let w = self.led(c, w);
        let pointer = self.pointer(c, &w)?;
        let Some(level) = c.vector_level else {
            return Ok(());
        };
        let apart = match square.access.strides[square.far] {
            Index::Const(s) => self.e.imm(s * w.size),
            Index::Val(s) => {
                let s = self.gpr(s)?;
                self.e.gpr(X::ImulI, &[s.into(), A::I(w.size)])
            }
        };
        let row = self.e.copy_gpr(c.levels[level].counter);
        self.e.g(X::Imul, &[row.into(), apart.into()]);
        self.e.g(X::Add, &[row.into(), pointer.into()]);
        let columns: Vec<Reg> =
            self.turned_square(self.dtype(v)?, (row, w.ahead as i32), apart, square.next)?;
        for (copy, column) in columns.into_iter().enumerate() {
            c.levels[level].memo.insert((v, copy as u32), column);
        }
        Ok(())
    }

    /// Computes all rows of a square before the first of them is written.
    pub fn read_rows(&mut self, c: &mut Ctx<'_, 'p>, sinks: &[Sink<'p>], rows: u32) -> Result<()> {
        for value in sinks.iter().flat_map(Sink::roots) {
            let value = self.rounded_from(c, value).unwrap_or(value);
            for row in 0..rows {
                self.eval(c, value, row)?;
            }
        }
        Ok(())
    }

    /// The rows from an address on, turned.
    pub fn turned_square(
        &mut self,
        dtype: oxyfuel_base::DType,
        (row, ahead): (Reg, i32),
        apart: Reg,
        next: Option<i64>,
    ) -> Result<Vec<Reg>> {
        let lanes = self.e.full_lanes(4);
        let mut rows = Vec::new();
        for _ in 0..lanes {
            rows.push(self.e.load(dtype, Mem::at(row, ahead), lanes, None)?);
            if let Some(next) = next {
                let there = Mem::at(row, ahead + next as i32);
                (self.e.f).inst(X::PrefetchT1, crate::mir::Width::X, &[there.into()]);
            }
            self.e.g(X::Add, &[row.into(), apart.into()]);
        }
        Ok(self.turned(&rows))
    }
}

/// Whether a window's rows are a fixed number of elements apart, or all the same.
fn is_stepped(axes: &Axes, key: Key, access: &Access, rows: Axis) -> bool {
    (access.strides.iter().enumerate())
        .filter(|(dim, _)| axes.of(key, *dim) == Some(rows))
        .all(|(_, stride)| matches!(stride, Index::Const(_)))
}

/// Whether an element of the result comes from the same element of each operand, wherever it is.
fn is_pointwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Const { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. }
            | Op::ConvertLayout { .. }
    )
}
