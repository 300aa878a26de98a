//! Windows of halves and bytes that are copied as they are: line by line, whatever their elements mean.
//!
//! ```text
//!   rows       source and target both run along the last dim               64 bytes at a time
//!   groups     rows of the source, two of halves or four of bytes,         as many lines are read, and their elements written side by side
//!              side by side in the target: a panel for a matrix unit
//!   turned     the same from a source that runs along the groups           squares of 16 x 16 groups
//! ```
//!
//! In every other loop an element of two bytes or one has a lane of four, which takes four instructions for half a line. Panels alone are copied so: other results are written in loops that know what goes past the caches and what is read next.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{Access, BufferMode, Index, Inst, Space, Val};

use super::Select;
use super::values::operands;
use crate::mir::{Mem, Op as X, Reg, Width};

const LINE: i64 = 64;
/// Bytes of a group: what a matrix unit multiplies at once in a column.
const GROUP: i64 = 4;
/// Groups along both sides of a square, each a lane.
const SQUARE: i64 = 16;
/// Lines that are copied one after the other without a jump.
const UNROLLED: i64 = 8;

/// One dim of a copy: its extent, and bytes from one element to the next in the source and in the target.
#[derive(Clone, Copy, Debug)]
struct Dim {
    extent: i64,
    from: i64,
    to: i64,
}

/// What is copied between two jumps.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// So many lines, one behind the other.
    Lines(i64),
    /// A line's worth of groups of so many rows, so many bytes apart in the source.
    Groups { rows: i64, apart: i64 },
    /// A square, with the bytes between its rows in the source and in the target.
    Square(Dim),
}

/// A copy as loops around a unit, the outermost first.
struct Plan {
    loops: Vec<Dim>,
    unit: Unit,
}

impl<'p> Select<'p, '_> {
    /// Copies a window of narrow elements at once. False: it has to take the way of all tiles.
    pub fn store_copy(&mut self, access: &'p Access, value: Val) -> Result<bool> {
        let Some(from) = self.plain_load(self.laid_out(value)) else {
            return Ok(false);
        };
        let (source, target) = (self.p.mem(from.mem)?, self.p.mem(access.mem)?);
        let dtype = source.dtype;
        let same = target.dtype == dtype && from.mem != access.mem;
        let workspace = self.modes.get(&access.mem) == Some(&BufferMode::Workspace);
        let panel = workspace || target.space == Space::Panel;
        let plain = access.valid.iter().all(Option::is_none);
        if !self.e.avx512() || !same || !panel || !plain || dtype.size() > 2 || dtype.is_bool() {
            return Ok(false);
        }
        let Some(plan) = plan(from, access, dtype.size() as i64) else {
            return Ok(false);
        };
        let here = |mem: Val| mem == access.mem;
        let waits = |sink: &Inst| self.waits_for(&operands(&sink.op), &here);
        if self.pending.iter().any(|inst| waits(inst)) || !self.late_reads(&here).is_empty() {
            return Ok(false);
        }
        let source = self.address(from.mem, &from.base)?;
        let target = self.address(access.mem, &access.base)?;
        // Registers are interleaved quarter by quarter: where the quarters of both halves belong.
        let places = |first: i64| {
            let quarters = [0, 16, 4, 20].into_iter();
            quarters.flat_map(move |quarter| quarter + first..quarter + first + 4)
        };
        let places = match plan.unit {
            Unit::Groups { rows: 2, .. } => {
                [0, 8].map(|first| self.e.vector(places(first), 4)).to_vec()
            }
            _ => Vec::new(),
        };
        self.copy_loops(&plan, 0, &places, source, target)?;
        Ok(true)
    }

    fn copy_loops(
        &mut self,
        plan: &Plan,
        level: usize,
        places: &[Reg],
        source: Reg,
        target: Reg,
    ) -> Result<()> {
        let Some(dim) = plan.loops.get(level) else {
            return self.copy_unit(plan.unit, places, source, target);
        };
        let (source, target) = (self.e.copy_gpr(source), self.e.copy_gpr(target));
        self.repeated(dim.extent, |s| {
            s.copy_loops(plan, level + 1, places, source, target)?;
            s.e.gpr_imm(X::AddI, X::Add, source, dim.from);
            s.e.gpr_imm(X::AddI, X::Add, target, dim.to);
            Ok(())
        })
    }

    fn copy_unit(&mut self, unit: Unit, places: &[Reg], source: Reg, target: Reg) -> Result<()> {
        match unit {
            Unit::Lines(lines) => {
                for line in 0..lines {
                    let at = (line * LINE) as i32;
                    let v = self.line(Mem::at(source, at), Width::Z);
                    self.put(Mem::at(target, at), v, Width::Z);
                }
            }
            Unit::Groups { rows: 2, apart } => {
                let rows = [0, apart].map(|at| self.line(Mem::at(source, at as i32), Width::Z));
                let [low, high] = [X::VPUnpcklwd, X::VPUnpckhwd]
                    .map(|op| self.e.vec(op, Width::Z, &[rows[0].into(), rows[1].into()]));
                for (number, place) in places.iter().enumerate() {
                    let d = self.e.f.vec();
                    self.e.f.copy(Width::Z, d, low);
                    let args = [d.into(), (*place).into(), high.into()];
                    self.e.f.inst(X::VPermT2D, Width::Z, &args);
                    self.put(Mem::at(target, number as i32 * LINE as i32), d, Width::Z);
                }
            }
            Unit::Groups { apart, .. } => {
                let rows = [0, 1, 2, 3]
                    .map(|row| self.line(Mem::at(source, (row * apart) as i32), Width::X));
                let pair = |s: &mut Self, op: X, [a, b]: [Reg; 2]| {
                    s.e.vec(op, Width::X, &[a.into(), b.into()])
                };
                let bytes = [X::VPUnpcklbw, X::VPUnpckhbw];
                let upper = bytes.map(|op| pair(self, op, [rows[0], rows[1]]));
                let lower = bytes.map(|op| pair(self, op, [rows[2], rows[3]]));
                let mut at = 0;
                for (a, b) in upper.into_iter().zip(lower) {
                    for op in [X::VPUnpcklwd, X::VPUnpckhwd] {
                        let v = pair(self, op, [a, b]);
                        self.put(Mem::at(target, at), v, Width::X);
                        at += 16;
                    }
                }
            }
            Unit::Square(dim) => {
                let row = self.e.copy_gpr(source);
                let apart = self.e.imm(dim.from);
                let columns =
                    self.turned_square(oxyfuel_base::DType::U32, (row, 0), apart, None)?;
                for (number, column) in columns.into_iter().enumerate() {
                    let at = (number as i64 * dim.to) as i32;
                    self.put(Mem::at(target, at), column, Width::Z);
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, from: Mem, width: Width) -> Reg {
        self.e.vec(X::VMovUps, width, &[from.into()])
    }

    fn put(&mut self, to: Mem, v: Reg, width: Width) {
        self.e.f.inst(X::VMovUpsS, width, &[to.into(), v.into()]);
    }
}

/// How a window is copied to another; nothing if not in one of the ways above.
fn plan(from: &Access, to: &Access, size: i64) -> Option<Plan> {
    let number = |stride: &Index| match stride {
        Index::Const(n) => n
            .checked_mul(size)
            .filter(|n| i32::try_from(n * SQUARE).is_ok()),
        Index::Val(_) => None,
    };
    let mut dims = Vec::new();
    for (extent, (a, b)) in from.shape.iter().zip(from.strides.iter().zip(&to.strides)) {
        if *extent > 1 {
            dims.push(Dim {
                extent: *extent,
                from: number(a)?,
                to: number(b)?,
            });
        }
    }
    let (last, outer) = dims.split_last()?;
    if last.to != size {
        return None;
    }
    let grouped = last.extent * size == GROUP;
    if last.from == size && last.extent * size % LINE == 0 {
        let lines = last.extent * size / LINE;
        let unrolled = (1..=UNROLLED.min(lines)).rev().find(|n| lines % n == 0)?;
        let mut loops = outer.to_vec();
        loops.push(Dim {
            extent: lines / unrolled,
            from: unrolled * LINE,
            to: unrolled * LINE,
        });
        return Some(Plan {
            loops,
            unit: Unit::Lines(unrolled),
        });
    }
    let [outer @ .., deep, across] = outer else {
        return None;
    };
    if !grouped || across.to != GROUP {
        return None;
    }
    let mut loops = outer.to_vec();
    if last.from == size && deep.from == GROUP {
        let square = deep.extent % SQUARE == 0 && across.extent % SQUARE == 0;
        loops.push(Dim {
            extent: deep.extent / SQUARE,
            from: SQUARE * deep.from,
            to: SQUARE * deep.to,
        });
        loops.push(Dim {
            extent: across.extent / SQUARE,
            from: SQUARE * across.from,
            to: SQUARE * across.to,
        });
        let unit = Unit::Square(Dim {
            extent: SQUARE,
            from: across.from,
            to: deep.to,
        });
        return square.then_some(Plan { loops, unit });
    }
    // Halves by whole lines, bytes by quarters of them.
    let wide = if size == 2 { LINE } else { LINE / 4 };
    let whole = across.from == size && across.extent * size % wide == 0;
    loops.push(*deep);
    loops.push(Dim {
        extent: across.extent * size / wide,
        from: wide,
        to: wide / size * GROUP,
    });
    let unit = Unit::Groups {
        rows: last.extent,
        apart: last.from,
    };
    whole.then_some(Plan { loops, unit })
}
