//! What will be copied into a panel next is asked for while the panel is multiplied.
//!
//! ```text
//!   for each panel of b
//!     its window of b is copied            rows of a weight where it lies
//!     for each panel of a                  each of these asks for its share of the window that is copied next
//!       sums += a @ panel
//! ```
//!
//! The copy could ask for the next one itself, but has nothing to do meanwhile: a machine has few requests under way, and those behind them wait. The product has all the time in the world.

use oxyfuel_kernel::ir::{Access, Block, BufferMode, Index, Inst, MmaOperand, Op, Val};

use super::panels::Next;
use super::{Def, Select};

const LINE: i64 = 64;

/// A window that a loop copies into a panel, which a loop inside of it multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'p> {
    pub load: Val,
    from: &'p Access,
    panel: Val,
    /// Counts the loop that copies.
    around: Val,
}

/// Rows of a buffer, some lines each.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    pub rows: i64,
    /// Bytes from one row to the next.
    pub apart: i64,
    pub lines: i64,
}

impl<'p> Select<'p, '_> {
    /// Remembers that a window is copied into a panel, if a product will ask for the next one.
    pub fn note_copy(&mut self, access: &'p Access, value: Val) {
        let Some((load, from)) = self.copied_from(value) else {
            return;
        };
        let Some(around) = self.loops.last() else {
            return;
        };
        let plain = |access: &Access| access.valid.iter().all(Option::is_none);
        let buffer = self.modes.get(&from.mem) == Some(&BufferMode::Read);
        if plain(from) && buffer && self.multiplies(around.body, access.mem) {
            self.copied.push(Copied {
                load,
                from,
                panel: access.mem,
                around: around.counter,
            });
        }
    }

    fn copied_from(&self, value: Val) -> Option<(Val, &'p Access)> {
        match self.defs.get(&value) {
            Some(Def::Lazy(Inst {
                op: Op::Cast { value },
                ..
            })) => self.copied_from(*value),
            Some(Def::Lazy(Inst {
                op: Op::Load {
                    access, mask: None, ..
                },
                ..
            })) => Some((value, access)),
            _ => None,
        }
    }

    /// Whether a loop of a block, of so many rounds at most, multiplies with a panel.
    fn multiplies(&self, block: &Block, panel: Val) -> bool {
        block.insts.iter().any(|inst| match &inst.op {
            Op::For {
                lo, hi, step, body, ..
            } => {
                self.rounds(*lo, *hi, *step).is_some()
                    && body.insts.iter().any(|inst| match &inst.op {
                        Op::Mma {
                            b: MmaOperand::Mem { access, .. },
                            ..
                        } => access.mem == panel && access.shape.len() == 2,
                        _ => false,
                    })
            }
            _ => false,
        })
    }

    /// Whether a product asks for what a window will be in the next round.
    pub fn asked_by_product(&self, load: Val) -> bool {
        self.copied.iter().any(|copied| copied.load == load)
    }

    /// Where the window that is copied into a panel lies in the next round, and how much of it is copied to where the product reads.
    pub fn next_copy(&self, access: &Access) -> Option<Next> {
        let current = |c: &&Copied<'p>| {
            c.panel == access.mem && self.loops.iter().any(|l| l.counter == c.around)
        };
        let pieces: Vec<&Copied<'p>> = self.copied.iter().filter(current).collect();
        let first = pieces.first()?;
        let Index::Val(base) = first.from.base else {
            return None;
        };
        // A place that was computed where only some instances come is not known here.
        if !matches!(self.defs.get(&base), Some(Def::Gpr(_))) {
            return None;
        }
        let size = self.p.mem(first.from.mem).ok()?.dtype.size() as i64;
        let (bytes, shared) = self.moved_around(first.from.base, size)?;
        shared?;
        let ([deep, cols], [Index::Const(along), Index::Const(across)]) =
            (&first.from.shape[..], &first.from.strides[..])
        else {
            return None;
        };
        let mut depth = *deep;
        for piece in &pieces[1..] {
            let follows = self.difference(first.from.base, piece.from.base) == Some(depth * along);
            if !follows
                || piece.from.shape[1..] != [*cols]
                || piece.from.strides != first.from.strides
            {
                return None;
            }
            depth += piece.from.shape[0];
        }
        // The product's part of the depth.
        let begin = self.difference(Index::Const(0), access.base)?;
        let ([deep, width], true) = (&access.shape[..], begin % cols == 0) else {
            return None;
        };
        if width != cols || begin / cols + deep > depth {
            return None;
        }
        let (rows, apart, run) = match (*along, *across) {
            (along, 1) => (*deep, along * size, cols * size),
            (1, across) => (*cols, across * size, deep * size),
            _ => return None,
        };
        // Distances are written into instructions.
        let reach = apart.checked_mul(rows)?.abs();
        if reach > i64::from(i32::MAX) {
            return None;
        }
        let odd = i64::from(apart % LINE != 0 || run % LINE != 0);
        Some(Next {
            bytes: bytes + begin / cols * along * size,
            shared,
            window: Some((
                first.from.mem,
                first.from.base,
                Lines {
                    rows,
                    apart,
                    lines: run / LINE + odd,
                },
            )),
        })
    }
}
