//! Loops, branches and roles.
//!
//! Values that change (what a loop carries, what a branch yields) live in registers of their own. Roles are branches on the warp's number; a role whose
//! ops all happen once per role is run by one thread.

use oxyfuel_base::{DType, Result, ensure, err};
use oxyfuel_kernel::ir::{Block, Inst, Op, Role, Val};

use crate::asm::{Class, Opd, Reg};
use crate::emit::{Emitter, Team};
use crate::fact::Fact;
use crate::value::{Int, Slot, Tile, class_of, range_of};

/// Largest number of copies that full unrolling may make.
const MAX_UNROLL: i64 = 64;

impl Emitter<'_> {
    /// Registers of their own for values that change, holding what `from` holds now.
    fn own_registers(&mut self, from: &Tile, fact: Fact) -> Vec<Reg> {
        let class = class_of(from.dtype, fact);
        let regs = self.asm.regs(class, from.slots.len());
        let mut opds = Vec::with_capacity(regs.len());
        for slot in &from.slots {
            opds.push(self.element_in(from, *slot, class));
        }
        for (reg, opd) in regs.iter().zip(opds) {
            self.asm.mov(*reg, opd);
        }
        regs
    }

    fn element_in(&mut self, tile: &Tile, slot: Slot, class: Class) -> Opd {
        let opd = self.asm.element(tile.dtype, slot);
        if class == Class::B64 && tile.dtype == DType::I64 {
            self.asm.widen(Int {
                opd,
                fact: tile.fact,
            })
        } else {
            opd
        }
    }

    /// Moves tiles into registers all at once: a source may be among the targets.
    fn assign(&mut self, moves: Vec<(Reg, Opd)>) {
        let targets: std::collections::HashSet<String> =
            moves.iter().map(|(reg, _)| reg.to_string()).collect();
        let mut late = Vec::new();
        for (reg, opd) in moves {
            if opd == Opd::Reg(reg) {
                continue;
            }
            match opd {
                Opd::Reg(source) if targets.contains(&source.to_string()) => {
                    let copy = self.asm.reg(source.class);
                    self.asm.mov(copy, opd);
                    late.push((reg, copy.into()));
                }
                _ => late.push((reg, opd)),
            }
        }
        for (reg, opd) in late {
            self.asm.mov(reg, opd);
        }
    }

    pub(crate) fn for_loop(&mut self, inst: &Inst) -> Result<()> {
        let Op::For {
            iv,
            lo,
            hi,
            step,
            inits,
            carried,
            body,
            unroll,
        } = &inst.op
        else {
            return Err(err!(Internal, "not a loop"));
        };
        ensure!(*step > 0, InvalidKernel, "a loop steps by {step}");
        let (first, last) = (self.index(*lo)?, self.index(*hi)?);
        let trips = match (first.fact.as_constant(), last.fact.as_constant()) {
            (Some(a), Some(b)) => Some((b.saturating_sub(a).max(0) + step - 1) / step),
            _ => None,
        };
        if let (Some(n), 0, Some(start)) = (trips, *unroll, first.fact.as_constant())
            && n <= MAX_UNROLL
        {
            return self.unrolled(inst, *iv, start, *step, n, inits, carried, body);
        }
        if trips == Some(0) {
            for (result, init) in inst.results.iter().zip(inits) {
                let tile = self.tile(*init)?;
                self.define(*result, tile.slots, tile.fact)?;
            }
            return Ok(());
        }
        // Carried values live in registers of their own.
        let mut homes: Vec<Vec<Reg>> = Vec::with_capacity(inits.len());
        for (param, init) in carried.iter().zip(inits) {
            let tile = self.tile(*init)?;
            let fact = range_of(tile.dtype);
            let regs = self.own_registers(&tile, fact);
            for reg in &regs {
                self.asm.mark_mutable(*reg);
            }
            self.define(
                *param,
                regs.iter().map(|reg| Slot::from(*reg)).collect(),
                fact,
            )?;
            homes.push(regs);
        }
        let most = Fact {
            lo: first.fact.lo,
            hi: last.fact.hi.saturating_sub(1).max(first.fact.lo),
            multiple: first
                .fact
                .add(Fact {
                    lo: 0,
                    hi: 0,
                    multiple: step.unsigned_abs(),
                })
                .multiple,
        };
        // The counter passes the end by up to one step before the loop leaves.
        let room = Fact {
            hi: most.hi.saturating_add(*step),
            ..most
        };
        let class = if room.fits_i32() && last.fact.fits_i32() {
            Class::B32
        } else {
            Class::B64
        };
        let counter = self.asm.reg(class);
        self.asm.mark_mutable(counter);
        let (start, end) = if class == Class::B32 {
            (self.asm.narrow(first), self.asm.narrow(last))
        } else {
            (self.asm.widen(first), self.asm.widen(last))
        };
        self.asm.mov(counter, start);
        let bits = if class == Class::B32 { "s32" } else { "s64" };
        let (head, exit) = (self.asm.label(), self.asm.label());
        if trips.is_none() && first.fact.hi >= last.fact.lo {
            let p = self.asm.reg(Class::Pred);
            self.asm
                .line(format_args!("setp.ge.{bits} {p}, {start}, {end}"));
            self.asm.line(format_args!("@{p} bra {exit}"));
        }
        self.asm.place(&head);
        self.asm.enter();
        self.loops += 1;
        // A copy that stays what it is while the body runs, so that index arithmetic is shared.
        let now = self.asm.reg(class);
        self.asm.mov(now, counter.into());
        let value = if class == Class::B64 && most.fits_i32() {
            self.asm.narrow(Int {
                opd: now.into(),
                fact: most,
            })
        } else {
            now.into()
        };
        self.define(*iv, vec![Slot::Opd(value)], most)?;
        self.block(body)?;
        let mut moves = Vec::new();
        for (home, value) in homes.iter().zip(&body.yields) {
            let tile = self.tile(*value)?;
            for (reg, slot) in home.iter().zip(&tile.slots) {
                moves.push((*reg, self.element_in(&tile, *slot, reg.class)));
            }
        }
        self.assign(moves);
        self.loops -= 1;
        self.asm.leave();
        self.asm
            .line(format_args!("add.{bits} {counter}, {counter}, {step}"));
        let p = self.asm.reg(Class::Pred);
        self.asm
            .line(format_args!("setp.lt.{bits} {p}, {counter}, {end}"));
        self.asm.line(format_args!("@{p} bra {head}"));
        self.asm.place(&exit);
        for (result, home) in inst.results.iter().zip(homes) {
            let fact = range_of(self.dtype(*result)?);
            self.define(*result, home.into_iter().map(Slot::from).collect(), fact)?;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one loop")]
    fn unrolled(
        &mut self,
        inst: &Inst,
        iv: Val,
        start: i64,
        step: i64,
        n: i64,
        inits: &[Val],
        carried: &[Val],
        body: &Block,
    ) -> Result<()> {
        for (param, init) in carried.iter().zip(inits) {
            let tile = self.tile(*init)?;
            self.define(*param, tile.slots, tile.fact)?;
        }
        for i in 0..n {
            self.define_int(iv, Int::constant(start + i * step))?;
            self.block(body)?;
            let next = body
                .yields
                .iter()
                .map(|v| self.tile(*v))
                .collect::<Result<Vec<_>>>()?;
            for (param, tile) in carried.iter().zip(next) {
                self.define(*param, tile.slots, tile.fact)?;
            }
        }
        for (result, param) in inst.results.iter().zip(carried) {
            let tile = self.tile(*param)?;
            self.define(*result, tile.slots, tile.fact)?;
        }
        Ok(())
    }

    pub(crate) fn branch(
        &mut self,
        inst: &Inst,
        cond: Val,
        on_true: &Block,
        on_false: &Block,
    ) -> Result<()> {
        let tile = self.tile(cond)?;
        let slot = tile.scalar()?;
        let p = self.asm.element_reg(DType::Bool, tile.fact, slot);
        let (otherwise, join) = (self.asm.label(), self.asm.label());
        let mut homes: Vec<Vec<Reg>> = Vec::new();
        for result in &inst.results {
            let dtype = self.dtype(*result)?;
            let n = self.place(*result)?.regs.len();
            homes.push(self.asm.regs(class_of(dtype, range_of(dtype)), n));
        }
        self.asm.line(format_args!("@!{p} bra {otherwise}"));
        for (block, first) in [(on_true, true), (on_false, false)] {
            self.asm.enter();
            self.block(block)?;
            for (home, value) in homes.iter().zip(&block.yields) {
                let tile = self.tile(*value)?;
                for (reg, slot) in home.iter().zip(&tile.slots) {
                    let opd = self.element_in(&tile, *slot, reg.class);
                    self.asm.mov(*reg, opd);
                }
            }
            self.asm.leave();
            if first {
                self.asm.line(format_args!("bra {join}"));
                self.asm.place(&otherwise);
            }
        }
        self.asm.place(&join);
        for (result, home) in inst.results.iter().zip(homes) {
            let fact = range_of(self.dtype(*result)?);
            self.define(*result, home.into_iter().map(Slot::from).collect(), fact)?;
        }
        Ok(())
    }

    pub(crate) fn roles(&mut self, roles: &[Role]) -> Result<()> {
        let all = self.team;
        let entry = self.entry_registers();
        let end = self.asm.label();
        let warp = self
            .asm
            .pure(Class::B32, "shr.u32", &[all.tid.into(), Opd::Int(5)]);
        for (i, role) in roles.iter().enumerate() {
            let (first, past) = (
                i64::from(role.first_warp),
                i64::from(role.first_warp) + i64::from(role.warps),
            );
            ensure!(
                role.warps > 0 && past <= i64::from(all.warps),
                InvalidKernel,
                "role {} names warps that do not exist",
                role.name
            );
            ensure!(i < 15, NoLowering, "a block has 16 barriers, one a role");
            let skip = self.asm.label();
            self.asm.comment(format_args!(
                "role {}",
                role.name.replace(|c: char| !c.is_ascii_graphic(), "_")
            ));
            // Registers move between whole groups of four warps; the idle warps of a role's last group give theirs too.
            let budget = role.registers > 0 && self.target.wgmma;
            let (from, until) = if budget {
                (first / 4 * 4, (past + 3) / 4 * 4)
            } else {
                (first, past)
            };
            if budget {
                let shares = roles.iter().enumerate().any(|(j, other)| {
                    let (a, b) = (
                        i64::from(other.first_warp),
                        i64::from(other.first_warp) + i64::from(other.warps),
                    );
                    i != j && a < until && from < b
                });
                ensure!(
                    !shares && until <= i64::from(all.warps),
                    NoLowering,
                    "registers move between groups of four warps; role {} has none of its own",
                    role.name
                );
            }
            self.unless_in(warp, from, until, i64::from(all.warps), &skip);
            self.asm.enter();
            if budget {
                let registers = (role.registers / 8 * 8).clamp(24, 256);
                let way = if registers <= entry { "dec" } else { "inc" };
                self.asm.line(format_args!(
                    "setmaxnreg.{way}.sync.aligned.u32 {registers}"
                ));
            }
            if (from, until) != (first, past) {
                self.unless_in(warp, first, past, i64::from(all.warps), &end);
            }
            let single = single_thread(&role.body);
            self.reads_by_products = single || reads_by_products(&role.body);
            let tid = if first > 0 {
                self.asm.pure(
                    Class::B32,
                    "sub.s32",
                    &[all.tid.into(), Opd::Int(32 * first)],
                )
            } else {
                all.tid
            };
            self.team = Team {
                tid,
                warps: role.warps,
                blocks: 1,
                barrier: i as u32 + 1,
                single,
            };
            if single {
                let p = self
                    .asm
                    .pure(Class::Pred, "setp.ne.s32", &[tid.into(), Opd::Int(0)]);
                self.asm.line(format_args!("@{p} bra {end}"));
            }
            self.block(&role.body)?;
            self.team = all;
            self.reads_by_products = false;
            self.asm.leave();
            self.asm.line(format_args!("bra {end}"));
            self.asm.place(&skip);
        }
        self.asm.place(&end);
        Ok(())
    }

    /// Leaves for `label` in warps outside of `first..past`.
    fn unless_in(&mut self, warp: Reg, first: i64, past: i64, warps: i64, label: &str) {
        let outside = [
            (first > 0, "setp.lt.u32", first),
            (past < warps, "setp.ge.u32", past),
        ];
        for (_, op, bound) in outside.into_iter().filter(|(needed, ..)| *needed) {
            let p = self
                .asm
                .pure(Class::Pred, op, &[warp.into(), Opd::Int(bound)]);
            self.asm.line(format_args!("@{p} bra {label}"));
        }
    }

    /// Registers that each thread has when the block starts.
    fn entry_registers(&self) -> u32 {
        let threads = 32 * self.program.geometry.warps;
        match self.program.geometry.registers {
            0 => (self.target.registers / threads.max(1) / 8 * 8).min(255),
            n => n,
        }
    }
}

/// Whether everything in a role's body happens once per role, so that one thread can do it.
fn single_thread(block: &Block) -> bool {
    let mut single = true;
    block.walk(&mut |inst| {
        single &= match &inst.op {
            Op::TensorLoad { .. }
            | Op::TensorStore { .. }
            | Op::BarrierArrive { .. }
            | Op::BarrierWait { .. } => true,
            Op::ProgramId { .. }
            | Op::NumPrograms { .. }
            | Op::Const { .. }
            | Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. }
            | Op::For { .. }
            | Op::If { .. } => true,
            Op::Iota { .. }
            | Op::Splat { .. }
            | Op::Broadcast { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Atomic { .. }
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Scan { .. }
            | Op::Sort { .. }
            | Op::Dot { .. }
            | Op::Pick { .. }
            | Op::Alloc
            | Op::ConvertLayout { .. }
            | Op::Mma { .. }
            | Op::MmaCommit
            | Op::MmaWait { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::BarrierInit { .. }
            | Op::Sync
            | Op::FenceAsync
            | Op::Roles { .. } => false,
        };
    });
    single
}

/// Whether a role never reads shared memory itself, but only through asynchronous products.
fn reads_by_products(block: &Block) -> bool {
    let (mut loads, mut products) = (false, false);
    block.walk(&mut |inst| {
        loads |= matches!(
            inst.op,
            Op::Load { .. }
                | Op::Gather { .. }
                | Op::Mma {
                    asynchronous: false,
                    ..
                }
        );
        products |= matches!(
            inst.op,
            Op::Mma {
                asynchronous: true,
                ..
            }
        );
    });
    products && !loads
}
