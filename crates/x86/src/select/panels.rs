//! The panel that a loop multiplies next is asked for while this one is multiplied.
//!
//! ```text
//!   for each panel of b            a panel comes from memory once, when the first panel of a meets it
//!     for each panel of a          each of these asks for its share of the next panel of b, into the second-level cache
//!       sums += a @ b
//! ```
//!
//! Where the panel is copied first, what the next copy reads is asked for in the same way ([`super::copied`]).
//!
//! Weights of a model are larger than the caches: without this, every panel of them is waited for while the units are idle. Asking changes no result, and what lies behind the last panel is no fault.

use oxyfuel_base::Result;
use oxyfuel_kernel::ir::{Access, BinaryOp, Block, BufferMode, Index, Op, Val};

use super::Select;
use super::copied::Lines;
use super::mma::Operand;
use crate::mir::{A, Mem, Op as X, Reg, Width};

const LINE: i64 = 64;
/// Panels further apart are not neighbours in any cache.
const MOST: i64 = 4 << 20;

/// A loop around what is being taken.
#[derive(Clone, Copy, Debug)]
pub struct Around<'p> {
    pub body: &'p Block,
    pub counter: Val,
    pub step: i64,
    /// How often it runs at most, where that is known.
    pub times: Option<i64>,
}

/// Where the panel of the next round lies.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// From this panel, or from the window that was copied into it.
    pub bytes: i64,
    /// The loop inside of that over panels, each round of which reads this panel, and how often it runs at most.
    pub shared: Option<(Val, i64)>,
    /// What is copied: its buffer and place, and what of it this product asks for.
    pub window: Option<(Val, Index, Lines)>,
}

/// A walk over what is read next: so many lines with each round of the depth.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pointer: Reg,
    lines: i64,
    /// Rounds for each row, rows, and bytes from the end of one to the next, where they are not one behind the other.
    pub rows: Option<(i64, i64, i64)>,
}

impl<'p> Select<'p, '_> {
    /// How often a loop runs at most, where that is known: a band of blocks may end early, and is then a part of those that there could be.
    pub fn rounds(&self, lo: Index, hi: Index, step: i64) -> Option<i64> {
        let length = self.at_most(hi)?.checked_sub(self.number(lo)?)?;
        Some(length.max(0).div_euclid(step) + i64::from(length.rem_euclid(step) > 0))
    }

    fn number(&self, index: Index) -> Option<i64> {
        match index {
            Index::Const(n) => Some(n),
            Index::Val(v) => match self.origin(v) {
                Some(Op::Const { value }) => Some(value.as_i64()),
                _ => None,
            },
        }
    }

    fn at_most(&self, index: Index) -> Option<i64> {
        let smaller = |index: Index| match index {
            Index::Val(v) => match self.origin(v) {
                Some(Op::Binary {
                    op: BinaryOp::Min,
                    lhs,
                    rhs,
                }) => [*lhs, *rhs]
                    .into_iter()
                    .find_map(|v| self.number(Index::Val(v))),
                _ => None,
            },
            Index::Const(_) => None,
        };
        self.number(index).or_else(|| smaller(index))
    }

    /// By how many bytes the innermost loop that moves a window does so, and which one that is.
    fn moved(&self, base: Index, size: i64) -> Option<(usize, i64)> {
        let Index::Val(base) = base else {
            return None;
        };
        let moves = |around: &Around<'_>| {
            let elements = self.factor(base, around.counter)?;
            elements.checked_mul(around.step)?.checked_mul(size)
        };
        let mut loops = self.loops.iter();
        let found = loops.rposition(|around| moves(around) != Some(0))?;
        let bytes = moves(&self.loops[found]).filter(|bytes| (1..=MOST).contains(bytes))?;
        Some((found, bytes))
    }

    /// How many bytes further a window will be in the next round of the innermost loop that moves it.
    pub fn next_round(&self, base: Index, size: i64) -> Option<i64> {
        self.moved(base, size).map(|(_, bytes)| bytes)
    }

    /// The same, with the loop inside of that one, if it is the only one and is known to run so many times at most.
    pub fn moved_around(&self, base: Index, size: i64) -> Option<(i64, Option<(Val, i64)>)> {
        let (found, bytes) = self.moved(base, size)?;
        let shared = match self.loops[found + 1..] {
            [inner] => inner.times.map(|times| (inner.counter, times)),
            _ => None,
        };
        Some((bytes, shared))
    }

    /// Where what an operand reads will be in the next round of the innermost loop that moves it: in a buffer, or in one that a panel is copied from.
    pub fn next_panel(&self, access: &Access, size: i64) -> Option<Next> {
        match self.modes.get(&access.mem)? {
            BufferMode::Read | BufferMode::Workspace => {
                let (bytes, shared) = self.moved_around(access.base, size)?;
                let window = None;
                Some(Next {
                    bytes,
                    shared,
                    window,
                })
            }
            BufferMode::ReadWrite | BufferMode::Write => self.next_copy(access),
        }
    }

    /// Begins to ask, for a loop of `times` rounds over `row` bytes each.
    pub fn ask_next(&mut self, b: &Operand, row: Option<i64>, times: i64) -> Result<Option<Asked>> {
        match (b.next, row) {
            (
                Some(Next {
                    bytes,
                    shared: Some(shared),
                    window: Some((mem, base, lines)),
                }),
                _,
            ) => {
                let start = self.address(mem, &base)?;
                self.ask_rows(start, bytes, lines, shared, times).map(Some)
            }
            (Some(next), Some(row)) => self.ask_panel(b, next, row, times).map(Some),
            _ => Ok(None),
        }
    }

    /// A share of the rows for each round of the loop around, and for each round of the depth a few lines of them.
    fn ask_rows(
        &mut self,
        start: Reg,
        bytes: i64,
        all: Lines,
        shared: (Val, i64),
        times: i64,
    ) -> Result<Asked> {
        let (counter, parts) = shared;
        let rows = (all.rows + parts - 1) / parts.max(1);
        let lines = ((rows * all.lines + times - 1) / times).max(1);
        let rounds = (all.lines + lines - 1) / lines;
        let rows = rows.min(times / rounds).max(1);
        let pointer = self.e.copy_gpr(start);
        self.e.gpr_imm(X::AddI, X::Add, pointer, bytes);
        let at = self.gpr(counter)?;
        let by = self.e.gpr(X::ImulI, &[at.into(), A::I(rows * all.apart)]);
        self.e.g(X::Add, &[pointer.into(), by.into()]);
        let rows = Some((rounds, rows, all.apart - rounds * lines * LINE));
        Ok(Asked {
            pointer,
            lines,
            rows,
        })
    }

    fn ask_panel(&mut self, b: &Operand, next: Next, row: i64, times: i64) -> Result<Asked> {
        let pointer = self.e.copy_gpr(b.pointer);
        self.e.gpr_imm(X::AddI, X::Add, pointer, next.bytes);
        let parts = next.shared.map_or(1, |(_, times)| times.max(1));
        let lines = ((row / LINE + parts - 1) / parts).max(1);
        if let Some((counter, _)) = next.shared {
            let at = self.gpr(counter)?;
            let share = A::I(times * lines * LINE);
            let by = self.e.gpr(X::ImulI, &[at.into(), share]);
            self.e.g(X::Add, &[pointer.into(), by.into()]);
        }
        let rows = None;
        Ok(Asked {
            pointer,
            lines,
            rows,
        })
    }

    /// Goes to the next row.
    pub fn ask_further(&mut self, asked: &Asked, by: i64) {
        self.e.gpr_imm(X::AddI, X::Add, asked.pointer, by);
    }

    /// One round's share.
    pub fn ask_lines(&mut self, asked: &Asked) {
        for line in 0..asked.lines {
            let there = Mem::at(asked.pointer, (line * LINE) as i32);
            self.e.f.inst(X::PrefetchT1, Width::X, &[there.into()]);
        }
        let by = asked.lines * LINE;
        self.e.gpr_imm(X::AddI, X::Add, asked.pointer, by);
    }
}
