//! Windows that run across the vectors of a nest.
//!
//! A transposed operand is contiguous along one axis while the loops take vectors along another: gathers would fetch a cache line an element. Such a window is copied
//! into scratch before the loops instead, square by square: as many rows as a vector has lanes are read along the memory, turned in registers, and written along the loops' vectors. What the loops then
//! read lies in the first-level cache, one row after another.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{Access, Index, Inst, Op, Val};

use super::run::{Axes, Key, Nest};
use super::{Def, Select, slot};
use crate::emit::lane_bytes;
use crate::mir::{A, Cond, Mem, Op as X, Reg, Width};

/// The most bytes of one turned tile: with what else the loops touch, it must stay in the first-level cache.
const MOST: i64 = 32 * 1024;
/// The most where its rows are reduced: they are long, and the second-level cache is better than a line for every element.
const MOST_REDUCED: i64 = 512 * 1024;

/// A window to turn: the dim that is contiguous in memory, and the one that the vectors run along.
pub struct Across {
    pub near: usize,
    pub far: usize,
}

impl<'p> Select<'p, '_> {
    /// Turns every window of the nest that runs across its vectors, but for one that is turned on its way.
    pub fn turn(&mut self, axes: &Axes, nest: &Nest<'p>, but: Option<Val>) -> Result<()> {
        for v in nest.facts.keys().filter(|v| Some(*v) != but) {
            if let Some((access, across)) = self.turned_window(axes, nest, v)? {
                let next = self.asked_next(axes, nest, v, access)?;
                self.turn_one(v, access, &across, next)?;
            }
        }
        Ok(())
    }

    /// The window of a value that runs across the vectors.
    pub fn turned_window(
        &self,
        axes: &Axes,
        nest: &Nest<'p>,
        v: Val,
    ) -> Result<Option<(&'p Access, Across)>> {
        let Some(Def::Lazy(Inst {
            op: Op::Load {
                access, mask: None, ..
            },
            ..
        })) = self.defs.get(&v)
        else {
            return Ok(None);
        };
        let across = self.across(axes, nest, v, access)?;
        Ok(across.map(|across| (access, across)))
    }

    /// Bytes to where the next instance or round reads a window that nothing else asks for: what is read both ways round is asked for where it is read along the vectors.
    pub fn asked_next(
        &self,
        axes: &Axes,
        nest: &Nest<'p>,
        v: Val,
        access: &Access,
    ) -> Result<Option<i64>> {
        for other in nest.facts.keys() {
            if self.plain_load(other).is_some_and(|a| a.mem == access.mem)
                && self.turned_window(axes, nest, other)?.is_none()
            {
                return Ok(None);
            }
        }
        let size = self.p.mem(access.mem)?.dtype.size() as i64;
        let next = self.apart_of(access.base, size);
        Ok(match self.asked_by_product(v) {
            true => None,
            false => next.or_else(|| self.next_round(access.base, size)),
        })
    }

    /// Whether a window has two dims, without bounds and in whole squares, of which the vectors run along the one that is not contiguous.
    fn across(
        &self,
        axes: &Axes,
        nest: &Nest<'p>,
        v: Val,
        access: &Access,
    ) -> Result<Option<Across>> {
        let dtype = self.dtype(v)?;
        let lanes = i64::from(self.e.full_lanes(4));
        let whole = access.valid.iter().all(Option::is_none);
        let dims: Vec<usize> = (0..access.shape.len())
            .filter(|&d| access.shape[d] > 1)
            .collect();
        let [a, b] = dims[..] else {
            return Ok(None);
        };
        let (near, far) = if access.strides[a] == Index::Const(1) {
            (a, b)
        } else {
            (b, a)
        };
        let most = match nest.staged.is_empty() {
            true => MOST,
            false => MOST_REDUCED,
        };
        let along = axes.of(Key::Val(slot(v)), far);
        let fits = access.strides[near] == Index::Const(1)
            && !matches!(access.strides[far], Index::Const(-1..=1))
            && along.is_some()
            && along == nest.vector
            && access.shape[near] % lanes == 0
            && access.shape[far] % lanes == 0
            && access.shape[near] * access.shape[far] * 4 <= most;
        let plain = !dtype.is_bool() && lane_bytes(dtype) == 4 && nest.lanes == lanes as u32;
        Ok((whole && plain && fits).then_some(Across { near, far }))
    }

    fn turn_one(
        &mut self,
        v: Val,
        access: &Access,
        across: &Across,
        next: Option<i64>,
    ) -> Result<()> {
        let dtype = self.dtype(v)?;
        let size = self.p.mem(access.mem)?.dtype.size() as i64;
        let lanes = i64::from(self.e.full_lanes(4));
        let (near, far) = (access.shape[across.near], access.shape[across.far]);
        let offset = self.take_scratch((near * far * 4) as u32)?;
        let memory = self.memory(access.mem)?;
        let start = match access.base {
            Index::Const(n) => {
                let p = self.e.copy_gpr(memory);
                self.e.gpr_imm(X::AddI, X::Add, p, n * size);
                p
            }
            Index::Val(n) => {
                let mem = Mem::indexed(memory, self.gpr(n)?, size as u8, 0);
                self.e.gpr(X::Lea, &[mem.into()])
            }
        };
        let apart = match access.strides[across.far] {
            Index::Const(s) => self.e.imm(s * size),
            Index::Val(s) => {
                let s = self.gpr(s)?;
                self.e.gpr(X::ImulI, &[s.into(), A::I(size)])
            }
        };
        let into = self
            .e
            .gpr(X::Lea, &[Mem::at(self.scratch, offset as i32).into()]);
        // Rows of squares along the far dim, and in each of them squares along the near one.
        let band = self.e.copy_gpr(apart);
        let rows = self.e.imm(lanes);
        self.e.g(X::Imul, &[band.into(), rows.into()]);
        self.repeat(far / lanes, |s| {
            let (from, to) = (s.e.copy_gpr(start), s.e.copy_gpr(into));
            s.repeat(near / lanes, |s| {
                s.square(dtype, (from, apart, next), (to, (far * 4) as i32))?;
                s.e.gpr_imm(X::AddI, X::Add, from, lanes * size);
                s.e.gpr_imm(X::AddI, X::Add, to, lanes * far * 4);
                Ok(())
            })?;
            s.e.g(X::Add, &[start.into(), band.into()]);
            s.e.gpr_imm(X::AddI, X::Add, into, lanes * 4);
            Ok(())
        })?;
        let mut strides = vec![0; access.shape.len()];
        strides[across.near] = far;
        strides[across.far] = 1;
        self.defs.insert(v, Def::Saved { offset, strides });
        Ok(())
    }

    /// A loop that runs `count` times.
    fn repeat(&mut self, count: i64, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let counter = self.e.imm(0);
        let head = self.e.f.label();
        self.e.f.bind(head);
        body(self)?;
        self.e.g(X::AddI, &[counter.into(), A::I(1)]);
        self.e.gpr_imm(X::CmpI, X::Cmp, counter, count);
        self.e.f.jump(Cond::L, head);
        Ok(())
    }

    /// One square: rows `apart` from each other become columns, written in rows of `step` bytes. `next` bytes on, where that is known, the next instance or round will read.
    fn square(
        &mut self,
        dtype: oxyfuel_base::DType,
        (from, apart, next): (Reg, Reg, Option<i64>),
        (to, step): (Reg, i32),
    ) -> Result<()> {
        let lanes = self.e.full_lanes(4);
        let row = self.e.copy_gpr(from);
        let columns = self.turned_square(dtype, (row, 0), apart, next)?;
        for (i, column) in columns.into_iter().enumerate() {
            let mem = Mem::at(to, i as i32 * step);
            self.e
                .store(super::eval::raw(dtype), mem, column, lanes, None, false)?;
        }
        Ok(())
    }

    /// The columns of a square of rows: pairs, then fours inside of each 128-bit part, then the parts.
    pub fn turned(&mut self, rows: &[Reg]) -> Vec<Reg> {
        let w = self.e.level.width();
        let mut two = |op: X, a: Reg, b: Reg| self.e.vec(op, w, &[a.into(), b.into()]);
        let mut fours: Vec<Reg> = Vec::new();
        for r in rows.chunks_exact(4) {
            let pairs = [
                two(X::VUnpcklPs, r[0], r[1]),
                two(X::VUnpckhPs, r[0], r[1]),
                two(X::VUnpcklPs, r[2], r[3]),
                two(X::VUnpckhPs, r[2], r[3]),
            ];
            fours.push(two(X::VUnpcklPd, pairs[0], pairs[2]));
            fours.push(two(X::VUnpckhPd, pairs[0], pairs[2]));
            fours.push(two(X::VUnpcklPd, pairs[1], pairs[3]));
            fours.push(two(X::VUnpckhPd, pairs[1], pairs[3]));
        }
        // Part `p` of `fours[4 * k + c]` is column `4 * p + c` of rows `4 * k` to `4 * k + 3`.
        let mut columns = vec![Reg::NONE; rows.len()];
        let mut parts =
            |op: X, a: Reg, b: Reg, how: i64| self.e.vec(op, w, &[a.into(), b.into(), A::I(how)]);
        for c in 0..4 {
            if w == Width::Z {
                let (low, high) = ((fours[c], fours[4 + c]), (fours[8 + c], fours[12 + c]));
                let even = (
                    parts(X::VShufF32x4, low.0, low.1, 0x88),
                    parts(X::VShufF32x4, high.0, high.1, 0x88),
                );
                let odd = (
                    parts(X::VShufF32x4, low.0, low.1, 0xdd),
                    parts(X::VShufF32x4, high.0, high.1, 0xdd),
                );
                columns[c] = parts(X::VShufF32x4, even.0, even.1, 0x88);
                columns[8 + c] = parts(X::VShufF32x4, even.0, even.1, 0xdd);
                columns[4 + c] = parts(X::VShufF32x4, odd.0, odd.1, 0x88);
                columns[12 + c] = parts(X::VShufF32x4, odd.0, odd.1, 0xdd);
            } else {
                columns[c] = parts(X::VPerm2F128, fours[c], fours[4 + c], 0x20);
                columns[4 + c] = parts(X::VPerm2F128, fours[c], fours[4 + c], 0x31);
            }
        }
        columns
    }
}
