//! Loops and branches of the program itself.
//!
//! Before control flow, everything that waits is executed, and tile values that are still needed are kept, unless they are so
//! cheap that their elements can be made anywhere. Carried scalars live in registers, carried tiles in scratch.

use oxyfuel_base::{Result, ensure, err};
use oxyfuel_kernel::ir::{Block, BufferMode, Index, Inst, Op, Val};

use super::amx::{MOST_STEPS, Matrix};
use super::eval::raw;
use super::mma::Rows;
use super::panels::Around;
use super::{Def, Select, slot};
use crate::emit::lane_bytes;
use crate::mir::{A, Cond, Mem, Op as X, Reg, Width};

/// Where control flow puts a value.
#[derive(Clone, Debug)]
enum Home {
    Gpr(Reg),
    Uniform(Reg),
    Scratch {
        offset: u32,
        strides: Vec<i64>,
        bytes: u32,
    },
    /// Accumulators that their loop updates where they are.
    Rows(Rows),
    Matrix(Matrix),
}

impl<'p> Select<'p, '_> {
    /// Elements can be made again anywhere at the price of a load.
    fn trivial(&self, v: Val) -> bool {
        let Some(Def::Lazy(inst)) = self.defs.get(&v) else {
            return true;
        };
        match &inst.op {
            Op::Splat { .. } | Op::Iota { .. } => true,
            Op::Broadcast { value }
            | Op::Reshape { value }
            | Op::Permute { value, .. }
            | Op::ConvertLayout { value }
            | Op::Cast { value } => self.trivial(*value),
            Op::Load {
                access, mask: None, ..
            } => self.modes.get(&access.mem) == Some(&BufferMode::Read),
            _ => false,
        }
    }

    /// Executes what waits and keeps the tile values that later code reads.
    pub fn settle(&mut self) -> Result<()> {
        let lazy = |v: &Val| matches!(self.defs.get(v), Some(Def::Lazy(_)));
        let keep: Vec<Val> = (self.defs.keys())
            .filter(|v| self.uses[slot(*v)] > 0 && lazy(v) && !self.trivial(*v))
            .collect();
        self.flush(&keep)
    }

    fn home(&mut self, v: Val) -> Result<Home> {
        let ty = self.tile_of(v)?;
        if ty.shape.is_empty() && !ty.dtype.is_float() {
            return Ok(Home::Gpr(self.e.f.gpr()));
        }
        if ty.shape.iter().all(|n| *n == 1) {
            let r = if ty.dtype.is_bool() && self.e.avx512() {
                self.e.f.mask()
            } else {
                self.e.f.vec()
            };
            return Ok(Home::Uniform(r));
        }
        let mut strides = vec![0; ty.shape.len()];
        let mut stride = 1;
        for d in (0..ty.shape.len()).rev() {
            strides[d] = stride;
            stride *= ty.shape[d];
        }
        let size = if ty.dtype.is_bool() {
            1
        } else {
            lane_bytes(ty.dtype)
        };
        let bytes = u32::try_from(stride)
            .ok()
            .and_then(|n| n.checked_mul(size))
            .ok_or_else(|| err!(TooLarge, "a tile of {stride} elements in scratch"))?;
        let offset = self.take_scratch(bytes)?;
        Ok(Home::Scratch {
            offset,
            strides,
            bytes,
        })
    }

    fn def_of(home: &Home) -> Def<'p> {
        match home {
            Home::Gpr(r) => Def::Gpr(*r),
            Home::Uniform(r) => Def::Uniform(*r),
            Home::Rows(rows) => Def::Rows(rows.clone()),
            Home::Matrix(m) => Def::Matrix(m.clone()),
            Home::Scratch {
                offset, strides, ..
            } => Def::Saved {
                offset: *offset,
                strides: strides.clone(),
            },
        }
    }

    /// Brings values to their homes, all read before any is written.
    fn assign(&mut self, values: &[Val], homes: &[Home]) -> Result<()> {
        let lazy: Vec<Val> = values
            .iter()
            .copied()
            .filter(|v| matches!(self.defs.get(v), Some(Def::Lazy(_))))
            .collect();
        let before: Vec<Option<Def<'p>>> = lazy.iter().map(|v| self.defs.get(v).cloned()).collect();
        for (v, home) in values.iter().zip(homes) {
            if let Home::Scratch { strides, .. } = home {
                self.forced_strides.insert(*v, strides.clone());
            }
        }
        self.flush(&lazy)?;
        let in_registers = |(v, home): &(&Val, &Home)| {
            let product = matches!(self.defs.get(v), Some(Def::Rows(_) | Def::Matrix(_)));
            product && !matches!(home, Home::Rows(_) | Home::Matrix(_))
        };
        let products: Vec<Val> = (values.iter().zip(homes))
            .filter(in_registers)
            .map(|(v, _)| *v)
            .collect();
        self.settle_products(&products)?;
        let mut moves: Vec<(Reg, &Home)> = Vec::new();
        let mut copies: Vec<(u32, &Home)> = Vec::new();
        for (v, home) in values.iter().zip(homes) {
            match (self.defs.get(v), home) {
                (Some(Def::Gpr(r)), Home::Gpr(_)) => moves.push((*r, home)),
                (Some(Def::Uniform(r)), Home::Uniform(_)) => moves.push((*r, home)),
                (Some(Def::Saved { offset, .. }), Home::Uniform(_)) => {
                    let from = Mem::at(self.scratch, *offset as i32);
                    let r = self.e.load_uniform(raw(self.dtype(*v)?), from)?;
                    moves.push((r, home));
                }
                (Some(Def::Rows(have)), Home::Rows(rows)) if have == rows => {}
                (Some(Def::Matrix(have)), Home::Matrix(m)) if have == m => {}
                (
                    Some(Def::Saved {
                        offset,
                        strides: from,
                    }),
                    Home::Scratch { strides, .. },
                ) => {
                    ensure!(
                        from == strides,
                        NoLowering,
                        "x86 has no code for a carried tile in another order"
                    );
                    copies.push((*offset, home));
                }
                (other, _) => return Err(err!(Internal, "{v} cannot be carried ({other:?})")),
            }
        }
        // Through temporaries where a home is still to be read.
        let clash = moves.iter().any(|(r, _)| {
            moves
                .iter()
                .any(|(_, h)| matches!(h, Home::Gpr(t) | Home::Uniform(t) if t == r))
        });
        let width = self.e.level.width();
        if clash {
            for (r, _) in &mut moves {
                let t = self.e.f.reg(r.class());
                self.e.f.copy(width, t, *r);
                *r = t;
            }
        }
        for (r, home) in moves {
            if let Home::Gpr(to) | Home::Uniform(to) = home {
                self.e.f.copy(width, *to, r);
            }
        }
        let written = |at: u32| {
            let mut others = copies.iter().map(|(_, home)| home);
            others.any(|home| matches!(home, Home::Scratch { offset, .. } if *offset == at))
        };
        let crossing: Vec<bool> = (copies.iter())
            .map(|(from, home)| {
                let stays = matches!(home, Home::Scratch { offset, .. } if offset == from);
                !stays && written(*from)
            })
            .collect();
        for ((from, home), crosses) in copies.iter_mut().zip(crossing) {
            if let Home::Scratch { bytes, .. } = home
                && crosses
            {
                let aside = self.take_scratch(*bytes)?;
                self.copy_scratch(*from, aside, *bytes);
                *from = aside;
            }
        }
        for (from, home) in copies {
            if let Home::Scratch { offset, bytes, .. } = home {
                self.copy_scratch(from, *offset, *bytes);
            }
        }
        for (v, def) in lazy.into_iter().zip(before) {
            if let Some(def) = def {
                self.defs.insert(v, def);
            }
        }
        Ok(())
    }

    pub fn copy_scratch(&mut self, from: u32, to: u32, bytes: u32) {
        if from == to {
            return;
        }
        let width = self.e.level.width();
        let step = width.bytes();
        let counter = self.e.imm(0);
        let head = self.e.f.label();
        self.e.f.bind(head);
        let v = self.e.vec(
            X::VMovUps,
            width,
            &[Mem::indexed(self.scratch, counter, 1, from as i32).into()],
        );
        self.e.f.inst(
            X::VMovUpsS,
            width,
            &[
                Mem::indexed(self.scratch, counter, 1, to as i32).into(),
                v.into(),
            ],
        );
        self.e.g(X::AddI, &[counter.into(), A::I(i64::from(step))]);
        self.e.gpr_imm(X::CmpI, X::Cmp, counter, i64::from(bytes));
        self.e.f.jump(Cond::L, head);
    }

    /// A place in registers for a value that a loop only adds products to.
    fn accumulator(
        &mut self,
        body: &Block,
        v: Val,
        init: Val,
        taken: &[Home],
    ) -> Result<Option<Home>> {
        if !self.only_products(body, v) {
            return Ok(None);
        }
        let once = self.is_read_once(init);
        match self.defs.get(&init).cloned() {
            Some(Def::Rows(rows)) if once => return Ok(Some(Home::Rows(rows))),
            Some(Def::Rows(rows)) => return Ok(Some(Home::Rows(self.copy_rows(&rows)))),
            Some(Def::Matrix(m)) => {
                if !once {
                    self.settle_products(&[init])?;
                }
                return Ok(Some(Home::Matrix(m)));
            }
            Some(
                Def::Lazy(_) | Def::Gpr(_) | Def::Uniform(_) | Def::Saved { .. } | Def::Memory(_),
            )
            | None => {}
        }
        let free = !taken
            .iter()
            .any(|h| matches!(h, Home::Rows(_) | Home::Matrix(_)));
        if free
            && self.e.level.amx()
            && let Some(matrix) = self.suits_amx(body, v)
        {
            return Ok(Some(Home::Matrix(self.amx_open(matrix, init)?)));
        }
        if !free || !self.fits_registers(v) {
            return Ok(None);
        }
        let ty = self.tile_of(v)?;
        let rows = self.open_rows(ty.shape[0], ty.shape[1], ty.dtype);
        if self.is_zero(init) {
            self.clear_rows(&rows);
        } else {
            let (offset, strides) = self.scratch_home(init)?;
            self.move_rows(&rows, self.scratch, i64::from(offset), strides[0], true)?;
        }
        Ok(Some(Home::Rows(rows)))
    }

    pub fn for_loop(&mut self, inst: &'p Inst) -> Result<()> {
        let Op::For {
            iv,
            lo,
            hi,
            step,
            inits,
            carried,
            body,
            ..
        } = &inst.op
        else {
            return Ok(());
        };
        ensure!(*step > 0, NoLowering, "a loop with step {step}");
        self.note_rows(*iv, *step, body);
        self.settle()?;
        self.amx_leave(inits)?;
        let mut homes = Vec::new();
        for (v, init) in carried.iter().zip(inits) {
            let home = match self.accumulator(body, *v, *init, &homes)? {
                Some(home) => home,
                None => {
                    let home = self.home(*v)?;
                    self.assign(std::slice::from_ref(init), std::slice::from_ref(&home))?;
                    home
                }
            };
            homes.push(home);
        }
        if homes.iter().any(|home| matches!(home, Home::Matrix(_))) {
            self.tile_steps = MOST_STEPS;
        }
        let counter = self.e.f.gpr();
        let first = self.index(lo)?;
        self.e.f.copy(Width::X, counter, first);
        let end = match hi {
            Index::Const(n) => self.e.imm(*n),
            Index::Val(v) => self.gpr(*v)?,
        };
        for (v, home) in carried.iter().zip(&homes) {
            self.defs.insert(*v, Self::def_of(home));
        }
        self.defs.insert(*iv, Def::Gpr(counter));
        self.depth += 1;
        for v in carried {
            self.born.insert(*v, self.depth);
        }
        let (head, done) = (self.e.f.label(), self.e.f.label());
        self.e.g(X::Cmp, &[counter.into(), end.into()]);
        self.e.f.jump(Cond::Ge, done);
        self.e.f.bind(head);
        self.loops.push(Around {
            body,
            counter: *iv,
            step: *step,
            times: self.rounds(*lo, *hi, *step),
        });
        self.inside(body, &homes)?;
        self.loops.pop();
        self.depth -= 1;
        self.e.gpr_imm(X::AddI, X::Add, counter, *step);
        self.e.g(X::Cmp, &[counter.into(), end.into()]);
        self.e.f.jump(Cond::L, head);
        self.e.f.bind(done);
        for (r, home) in inst.results.iter().zip(&homes) {
            self.defs.insert(*r, Self::def_of(home));
        }
        Ok(())
    }

    pub fn if_else(&mut self, inst: &'p Inst) -> Result<()> {
        let Op::If {
            cond,
            on_true,
            on_false,
        } = &inst.op
        else {
            return Ok(());
        };
        self.settle()?;
        self.amx_leave(&[])?;
        let mut homes = Vec::new();
        for v in &inst.results {
            homes.push(self.home(*v)?);
        }
        let c = self.gpr(*cond)?;
        let (other, done) = (self.e.f.label(), self.e.f.label());
        self.e.g(X::Test, &[c.into(), c.into()]);
        self.e.f.jump(Cond::E, other);
        self.inside(on_true, &homes)?;
        self.e.f.jump(Cond::Always, done);
        self.e.f.bind(other);
        self.inside(on_false, &homes)?;
        self.e.f.bind(done);
        for (r, home) in inst.results.iter().zip(&homes) {
            self.defs.insert(*r, Self::def_of(home));
        }
        Ok(())
    }

    /// A block that may run or not: what it computes holds inside of it alone. Values of its own end with it, and those that it
    /// found still to be computed, or in registers of products, are so again for what comes behind it.
    fn inside(&mut self, block: &'p Block, homes: &[Home]) -> Result<()> {
        let open = |v: &Val| match self.defs.get(v) {
            Some(def @ (Def::Lazy(_) | Def::Rows(_) | Def::Matrix(_))) => Some((*v, def.clone())),
            Some(Def::Gpr(_) | Def::Uniform(_) | Def::Saved { .. } | Def::Memory(_)) | None => None,
        };
        let found: Vec<(Val, Def<'p>)> = (self.defs.keys()).filter_map(|v| open(&v)).collect();
        self.block(block)?;
        self.assign(&block.yields, homes)?;
        for r in block.insts.iter().flat_map(|i| &i.results) {
            self.defs.remove(r);
        }
        for (v, def) in found {
            self.defs.insert(v, def);
        }
        Ok(())
    }
}
