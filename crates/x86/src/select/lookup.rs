//! The rows that the next instance will look up.
//!
//! Where a window begins at a number from memory (an embedding's row), nothing foresees where the next one is. An instance computes that as the next instance will, with its number instead of the
//! own one, and asks for the row while it handles its own. The last instance of a piece takes itself for the next: what is read is always something that an instance reads.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{BufferMode, Index, Inst, Op, Val};

use super::nest::{Ctx, Window};
use super::run::Key;
use super::{Def, Select, slot};
use crate::mir::{A, Mem, Op as X, Reg, Width};

/// What leads to a number, in order, as far as it differs from instance to instance.
#[derive(Default)]
struct Chain<'p> {
    insts: Vec<&'p Inst>,
    /// The number of the instance.
    own: Vec<Val>,
    loads: bool,
}

impl<'p> Select<'p, '_> {
    /// A pointer to where a window begins in the next instance, where that must be looked up.
    fn next_row(&mut self, c: &mut Ctx<'_, 'p>, v: Val, w: &Window) -> Result<Option<Reg>> {
        let Index::Val(base) = w.base else {
            return Ok(None);
        };
        let key = Key::Next(slot(v));
        if let Some(&known) = c.levels[0].pointers.get(&key) {
            return Ok(Some(known));
        }
        let mut chain = Chain::default();
        let found = self.extents.len() == 1 && self.chain(base, &mut chain) == Some(true);
        if !found || !chain.loads {
            return Ok(None);
        }
        let hoist = c.levels[0].hoist;
        let back = self.e.f.enter(hoist);
        let pointer = self.replayed(base, &chain, w);
        self.e.f.leave(back);
        let pointer = pointer?;
        c.levels[0].pointers.insert(key, pointer);
        Ok(Some(pointer))
    }

    /// Collects what a scalar is made of. Whether it depends on the instance's number; `None` where it has to stay what it is.
    fn chain(&self, v: Val, chain: &mut Chain<'p>) -> Option<bool> {
        let Some(inst) = self.origin.get(&v) else {
            return Some(false);
        };
        if !self.is_scalar(v) {
            return None;
        }
        if chain.own.contains(&v) || chain.insts.iter().any(|i| i.results.contains(&v)) {
            return Some(true);
        }
        let moves = match &inst.op {
            Op::Const { .. } | Op::NumPrograms { .. } => false,
            Op::ProgramId { .. } => {
                chain.own.push(v);
                return Some(true);
            }
            Op::Binary { lhs, rhs, .. } => self.chain(*lhs, chain)? | self.chain(*rhs, chain)?,
            Op::Cast { value } => self.chain(*value, chain)?,
            Op::Load {
                access, mask: None, ..
            } if self.modes.get(&access.mem) == Some(&BufferMode::Read) => {
                let Index::Val(at) = access.base else {
                    return Some(false);
                };
                let moves = self.chain(at, chain)?;
                chain.loads |= moves;
                moves
            }
            _ => return None,
        };
        if moves {
            chain.insts.push(inst);
        }
        Some(moves)
    }

    /// The pointer, computed with the number of the next instance.
    fn replayed(&mut self, base: Val, chain: &Chain<'p>, w: &Window) -> Result<Reg> {
        let [_, _, begin, end] = self.e.f.args;
        let next = self.e.copy_gpr(begin);
        self.e.g(X::AddI, &[next.into(), A::I(1)]);
        self.e.g(X::Cmp, &[next.into(), end.into()]);
        self.e.g(X::CmovGe, &[next.into(), begin.into()]);
        let values: Vec<Val> = (chain.own.iter().copied())
            .chain(chain.insts.iter().flat_map(|i| i.results.iter().copied()))
            .collect();
        let before: Vec<Option<Def<'p>>> = values.iter().map(|v| self.defs.remove(v)).collect();
        for &v in &chain.own {
            self.defs.insert(v, Def::Gpr(next));
        }
        let mut made = Ok(());
        for inst in &chain.insts {
            made = made.and_then(|()| self.scalar(inst, inst.results[0]));
        }
        let pointer = made.and_then(|()| {
            let mem = Mem::indexed(w.memory, self.gpr(base)?, w.size as u8, 0);
            Ok(self.e.gpr(X::Lea, &[mem.into()]))
        });
        for (v, def) in values.into_iter().zip(before) {
            match def {
                Some(def) => self.defs.insert(v, def),
                None => self.defs.remove(&v),
            };
        }
        pointer
    }

    /// Asks for vector `copy` of the next row.
    pub fn ask_next_row(
        &mut self,
        c: &mut Ctx<'_, 'p>,
        v: Val,
        w: &Window,
        copy: u32,
    ) -> Result<()> {
        let along = w.dims.iter().find(|d| d.0.is_some());
        let one = w.dims.iter().filter(|d| d.0.is_some()).count() == 1;
        let Some(&(Some(axis), Index::Const(1))) = along.filter(|_| one) else {
            return Ok(());
        };
        if Some(axis) != c.nest.vector {
            return Ok(());
        }
        let Some(level) = c.vector_level else {
            return Ok(());
        };
        let Some(pointer) = self.next_row(c, v, w)? else {
            return Ok(());
        };
        let first = w.copy(c, copy).0 * w.size;
        let there = Mem::indexed(pointer, c.levels[level].counter, w.size as u8, first as i32);
        self.e.f.inst(X::PrefetchT0, Width::X, &[there.into()]);
        Ok(())
    }
}
