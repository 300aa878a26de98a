//! From an allocation to physical items: operands replaced, reloads and stores around spilled values, pseudo instructions
//! expanded, prologue and epilogue of the SysV ABI.
//!
//! A spilled operand becomes the instruction's memory operand where the table allows it; constants are read from the pool,
//! with embedded broadcast where the level has it.

use crate::asm::move_inst;
use crate::interleave::interleave;
use crate::level::Level;
use crate::mir::{A, Arg, Base, Class, Func, Inst, Item, Mem, Op, Reg, Role, Width};
use crate::regalloc::{
    ARGUMENTS, Allocation, CALLEE_SAVED, Loc, RAX, RBP, RDX, RSP, allocate, is_fma,
};

/// A function ready for the assembler.
#[derive(Debug)]
pub struct Physical {
    /// Saves what the caller wants back.
    pub prologue: Vec<Item>,
    pub items: Vec<Item>,
    /// Restores it and returns.
    pub epilogue: Vec<Item>,
    pub labels: u32,
    pub spilled: u32,
}

impl Physical {
    /// Everything, in order.
    pub fn parts(&self) -> [&[Item]; 3] {
        [&self.prologue, &self.items, &self.epilogue]
    }
}

pub fn compile(func: &Func, level: Level) -> Physical {
    let mut items = func.items();
    interleave(func, &mut items, level);
    let allocation = allocate(func, &items, level);
    rewrite(func, &items, &allocation, level)
}

pub fn rewrite(func: &Func, items: &[Item], allocation: &Allocation, level: Level) -> Physical {
    let mut r = Rewriter {
        allocation,
        level,
        out: Vec::with_capacity(items.len() + items.len() / 8 + 16),
    };
    for item in items {
        match item {
            Item::Inst(inst) => r.inst(*inst),
            Item::Copy(width, to, from) => r.copy(*width, *to, *from),
            Item::Entry(args) => r.entry(*args),
            Item::Bind(_) | Item::Align | Item::Jump(..) => r.out.push(*item),
        }
    }
    let items = r.out;
    let mut saved = callee_saved(&items);
    let framed = allocation.frame_bytes > 0;
    saved.retain(|&s| !(framed && s == RBP));
    let g = |n: u8| A::R(Reg::phys(Class::Gpr, n));
    let mut prologue = Vec::new();
    let mut emit = |op: Op, args: &[A]| prologue.push(Item::Inst(Inst::new(op, Width::X, args)));
    if framed {
        emit(Op::Push, &[g(RBP)]);
        emit(Op::Mov, &[g(RBP), g(RSP)]);
    }
    for &s in &saved {
        emit(Op::Push, &[g(s)]);
    }
    if framed {
        emit(Op::SubI, &[g(RSP), A::I(i64::from(allocation.frame_bytes))]);
        emit(Op::AndI, &[g(RSP), A::I(-64)]);
    }
    let mut epilogue = Vec::new();
    let mut emit = |op: Op, args: &[A]| epilogue.push(Item::Inst(Inst::new(op, Width::X, args)));
    if framed {
        let back = Mem::at(Reg::phys(Class::Gpr, RBP), -8 * saved.len() as i32);
        emit(Op::Lea, &[g(RSP), A::M(back)]);
    }
    for &s in saved.iter().rev() {
        emit(Op::Pop, &[g(s)]);
    }
    if framed {
        emit(Op::Pop, &[g(RBP)]);
    }
    emit(Op::VZeroUpper, &[]);
    emit(Op::Ret, &[]);
    Physical {
        prologue,
        items,
        epilogue,
        labels: func.labels,
        spilled: allocation.spilled,
    }
}

fn callee_saved(items: &[Item]) -> Vec<u8> {
    let mut used = 0u32;
    let mut note = |r: Reg| {
        if !r.is_none() && r.class() == Class::Gpr {
            used |= 1 << r.number();
        }
    };
    for item in items {
        match item {
            Item::Inst(inst) => inst.for_each_reg(|r, _| note(r)),
            Item::Copy(_, to, from) => {
                note(*to);
                note(*from);
            }
            Item::Bind(_) | Item::Align | Item::Jump(..) | Item::Entry(_) => {}
        }
    }
    CALLEE_SAVED
        .into_iter()
        .filter(|&r| used >> r & 1 == 1)
        .collect()
}

/// Registers of each class that one instruction at most needs beside those of the allocation.
pub fn reloads_at_once(items: &[Item], locs: &[Loc], level: Level) -> [usize; 3] {
    let loc = |reg: Reg| match reg.is_virt() {
        true => locs[reg.number()],
        false => Loc::Reg(reg.number() as u8),
    };
    let away = |reg: Reg| !matches!(loc(reg), Loc::Reg(_));
    let mut most = [0; 3];
    for item in items {
        let mut needed = [0; 3];
        match item {
            Item::Inst(inst) => {
                let mut none = true;
                inst.for_each_reg(|reg, _| none &= !away(reg));
                if none || is_pooled(inst, &loc) {
                    continue;
                }
                let mut inst = *inst;
                fold(&mut inst, &loc, level);
                let mut seen: Vec<Reg> = Vec::new();
                inst.for_each_reg(|reg, role| {
                    if reg.is_none() || !away(reg) {
                        return;
                    }
                    let class = reg.class() as usize;
                    if role == Role::Def {
                        needed[class] = needed[class].max(1);
                    } else if !seen.contains(&reg) {
                        seen.push(reg);
                    }
                });
                for (class, needed) in needed.iter_mut().enumerate() {
                    let reloads = seen.iter().filter(|reg| reg.class() as usize == class);
                    *needed = (*needed).max(reloads.count());
                }
            }
            Item::Copy(_, to, from) if away(*to) && away(*from) => needed[to.class() as usize] = 1,
            Item::Copy(..) | Item::Entry(_) | Item::Bind(_) | Item::Align | Item::Jump(..) => {}
        }
        most = std::array::from_fn(|class| most[class].max(needed[class]));
    }
    most
}

/// The definition of a constant that is read from the pool at each use.
fn is_pooled(inst: &Inst, loc: &dyn Fn(Reg) -> Loc) -> bool {
    matches!(inst.args[0], Arg::Reg(d) if inst.op.row().slots[0].role == Role::Def && matches!(loc(d), Loc::Pool(_)))
}

/// Turns one spilled operand into memory where the instruction can read it from there.
fn fold(inst: &mut Inst, loc: &dyn Fn(Reg) -> Loc, level: Level) {
    let row = inst.op.row();
    if row.sparse || inst.has_mem() {
        return;
    }
    for i in 0..inst.args.len() {
        let Arg::Reg(reg) = inst.args[i] else {
            continue;
        };
        let slot = row.slots[i];
        if !slot.takes_mem() || inst.role(i) != Role::Use {
            continue;
        }
        let mem = match loc(reg) {
            Loc::Stack(at) => Mem::stack(at),
            Loc::Pool(r) if level.avx512 && r.element != 0 && r.element == row.broadcast => {
                Mem::pool(r.pool).repeated()
            }
            Loc::Pool(r) if r.element == 0 => Mem::pool(r.pool),
            Loc::Pool(r) => match r.whole {
                Some(whole) => Mem::pool(whole),
                None => continue,
            },
            Loc::Reg(_) | Loc::Unused => continue,
        };
        inst.args[i] = Arg::Mem;
        inst.mem = mem;
        return;
    }
}

struct Rewriter<'a> {
    allocation: &'a Allocation,
    level: Level,
    out: Vec<Item>,
}

impl Rewriter<'_> {
    fn loc(&self, reg: Reg) -> Loc {
        if !reg.is_virt() {
            return Loc::Reg(reg.number() as u8);
        }
        self.allocation.locs[reg.number()]
    }

    fn push(&mut self, op: Op, args: &[A]) {
        let width = self.level.width();
        self.out.push(Item::Inst(Inst::new(op, width, args)));
    }

    fn load(&mut self, to: Reg, loc: Loc) {
        match (loc, to.class()) {
            (Loc::Stack(at), class) => {
                let op = match class {
                    Class::Gpr => Op::Mov,
                    Class::Vec => Op::VMovUps,
                    Class::Mask => Op::KMovQ,
                };
                self.push(op, &[to.into(), Mem::stack(at).into()]);
            }
            (Loc::Pool(remat), Class::Vec) => {
                let (op, at) = match (remat.whole, remat.element) {
                    (Some(whole), _) if !self.level.avx512 || remat.element == 0 => {
                        (Op::VMovUps, whole)
                    }
                    (_, 1) => (Op::VPBroadcastB, remat.pool),
                    (_, 2) => (Op::VPBroadcastW, remat.pool),
                    (_, 4) => (Op::VBroadcastSsM, remat.pool),
                    (_, 8) => (Op::VBroadcastSdM, remat.pool),
                    (_, _) => (Op::VMovUps, remat.pool),
                };
                self.push(op, &[to.into(), Mem::pool(at).into()]);
            }
            (Loc::Pool(remat), Class::Gpr) => {
                self.push(Op::Mov, &[to.into(), Mem::pool(remat.pool).into()])
            }
            (Loc::Pool(remat), Class::Mask) => {
                self.push(Op::KMovQ, &[to.into(), Mem::pool(remat.pool).into()])
            }
            (Loc::Reg(_) | Loc::Unused, _) => {}
        }
    }

    fn store(&mut self, from: Reg, at: u32) {
        let op = match from.class() {
            Class::Gpr => Op::MovS,
            Class::Vec => Op::VMovUpsS,
            Class::Mask => Op::KMovQS,
        };
        self.push(op, &[Mem::stack(at).into(), from.into()]);
    }

    fn copy(&mut self, width: Width, to: Reg, from: Reg) {
        let class = to.class();
        let (source, target) = (self.loc(from), self.loc(to));
        if target == Loc::Unused {
            return;
        }
        let held = match source {
            Loc::Reg(n) => Reg::phys(class, n),
            Loc::Stack(_) | Loc::Pool(_) | Loc::Unused => {
                let n = match target {
                    Loc::Reg(n) => n,
                    Loc::Stack(_) | Loc::Pool(_) | Loc::Unused => self.scratch(class, 0),
                };
                let held = Reg::phys(class, n);
                self.load(held, source);
                held
            }
        };
        match target {
            Loc::Reg(n) => {
                if let Some(inst) = move_inst(width, Reg::phys(class, n), held) {
                    self.out.push(Item::Inst(inst));
                }
            }
            Loc::Stack(at) => self.store(held, at),
            Loc::Pool(_) | Loc::Unused => {}
        }
    }

    fn scratch(&self, class: Class, n: usize) -> u8 {
        self.allocation.scratch[class as usize][n]
    }

    fn entry(&mut self, args: [Reg; 4]) {
        // Stores before moves: a move may only land in a register that no argument still waits in.
        for (reg, p) in args.into_iter().zip(ARGUMENTS) {
            if let Loc::Stack(at) = self.loc(reg) {
                self.store(Reg::phys(Class::Gpr, p), at);
            }
        }
        for (reg, p) in args.into_iter().zip(ARGUMENTS) {
            if let Loc::Reg(n) = self.loc(reg)
                && let Some(inst) =
                    move_inst(Width::X, Reg::phys(Class::Gpr, n), Reg::phys(Class::Gpr, p))
            {
                self.out.push(Item::Inst(inst));
            }
        }
    }

    fn inst(&mut self, mut inst: Inst) {
        let locs = &self.allocation.locs;
        let mut away = false;
        inst.map_regs(|reg, _| match reg.is_virt().then(|| locs[reg.number()]) {
            Some(Loc::Reg(n)) => Reg::phys(reg.class(), n),
            Some(Loc::Stack(_) | Loc::Pool(_) | Loc::Unused) => {
                away = true;
                reg
            }
            None => reg,
        });
        if !away {
            return self.expand(inst);
        }
        let loc = |reg: Reg| self.loc(reg);
        if is_pooled(&inst, &loc) {
            return;
        }
        fold(&mut inst, &loc, self.level);
        let mut reloads: Vec<(Reg, u8, bool)> = Vec::new();
        let mut used = [0usize; 3];
        let mut stores: Vec<(Reg, u32)> = Vec::new();
        let allocation = self.allocation;
        inst.map_regs(|reg, role| {
            if !reg.is_virt() {
                return reg;
            }
            let class = reg.class();
            let loc = allocation.locs[reg.number()];
            if let Loc::Reg(n) = loc {
                return Reg::phys(class, n);
            }
            let number = match reloads.iter().find(|r| r.0 == reg && role != Role::Def) {
                Some(r) => r.1,
                None => {
                    // A pure definition may share the register of a source that it ends.
                    let k = if role == Role::Def {
                        0
                    } else {
                        used[class as usize]
                    };
                    let n = allocation.scratch[class as usize]
                        .get(k)
                        .copied()
                        .unwrap_or(0);
                    if role != Role::Def {
                        used[class as usize] += 1;
                        reloads.push((reg, n, true));
                    }
                    n
                }
            };
            if let (Loc::Stack(at), Role::Def | Role::Mod) = (loc, role) {
                stores.push((Reg::phys(class, number), at));
            }
            Reg::phys(class, number)
        });
        for (reg, n, _) in reloads {
            let loc = self.loc(reg);
            self.load(Reg::phys(reg.class(), n), loc);
        }
        self.expand(inst);
        for (reg, at) in stores {
            self.store(reg, at);
        }
    }

    fn expand(&mut self, inst: Inst) {
        match inst.op {
            op if is_fma(op) => self.fma(inst),
            Op::VZero => {
                let Arg::Reg(d) = inst.args[0] else { return };
                // The 128-bit form clears the whole register; only EVEX reaches the upper sixteen.
                self.out.push(Item::Inst(Inst::new(
                    Op::VPXor,
                    Width::X,
                    &[d.into(), d.into(), d.into()],
                )));
            }
            Op::DivS | Op::RemS | Op::DivU | Op::RemU => self.divide(inst),
            _ => self.out.push(Item::Inst(inst)),
        }
    }

    fn divide(&mut self, inst: Inst) {
        let [Arg::Reg(d), Arg::Reg(a), Arg::Reg(b), _] = inst.args else {
            return;
        };
        let (rax, rdx) = (Reg::phys(Class::Gpr, RAX), Reg::phys(Class::Gpr, RDX));
        self.push(Op::Mov, &[rax.into(), a.into()]);
        let signed = matches!(inst.op, Op::DivS | Op::RemS);
        if signed {
            self.push(Op::Cqo, &[]);
            self.push(Op::IdivR, &[b.into()]);
        } else {
            self.push(Op::MovU32, &[rdx.into(), A::I(0)]);
            self.push(Op::DivR, &[b.into()]);
        }
        let result = if matches!(inst.op, Op::DivS | Op::DivU) {
            rax
        } else {
            rdx
        };
        self.push(Op::Mov, &[d.into(), result.into()]);
    }

    /// `d = a * b + c`: the form whose overwritten operand already is `d`, or a move first.
    fn fma(&mut self, inst: Inst) {
        let [f132, f213, f231] = match inst.op {
            Op::FmaddPs => [Op::VFmadd132Ps, Op::VFmadd213Ps, Op::VFmadd231Ps],
            Op::FnmaddPs => [Op::VFnmadd132Ps, Op::VFnmadd213Ps, Op::VFnmadd231Ps],
            Op::FmsubPs => [Op::VFmsub132Ps, Op::VFmsub213Ps, Op::VFmsub231Ps],
            Op::FmaddPd => [Op::VFmadd132Pd, Op::VFmadd213Pd, Op::VFmadd231Pd],
            Op::FnmaddPd => [Op::VFnmadd132Pd, Op::VFnmadd213Pd, Op::VFnmadd231Pd],
            _ => [Op::VFmsub132Pd, Op::VFmsub213Pd, Op::VFmsub231Pd],
        };
        let [Arg::Reg(d), mut a, mut b, c] = inst.args else {
            return;
        };
        let operand = |arg: Arg| match arg {
            Arg::Reg(r) => A::R(r),
            Arg::Mem | Arg::None | Arg::Imm | Arg::Tile(_) => A::M(inst.mem),
        };
        // The product commutes: memory, if any, comes second, and so does an operand that is not `d`.
        if a == Arg::Mem || (b == Arg::Reg(d) && a != Arg::Reg(d)) {
            std::mem::swap(&mut a, &mut b);
        }
        let width = inst.width;
        let mut emit = |op: Op, x: Arg, y: Arg| {
            self.out.push(Item::Inst(Inst::new(
                op,
                width,
                &[d.into(), operand(x), operand(y)],
            )));
        };
        let Arg::Reg(first) = a else { return };
        if c == Arg::Reg(d) {
            return emit(f231, a, b);
        }
        if first != d {
            let moved = if let Arg::Reg(addend) = c {
                addend
            } else {
                first
            };
            if let Some(inst) = move_inst(width, d, moved) {
                self.out.push(Item::Inst(inst));
            }
            if moved == first && c == Arg::Mem {
                return self.out.push(Item::Inst(Inst::new(
                    f213,
                    width,
                    &[d.into(), operand(b), operand(c)],
                )));
            }
            return self.out.push(Item::Inst(Inst::new(
                f231,
                width,
                &[d.into(), operand(a), operand(b)],
            )));
        }
        match b {
            Arg::Mem => emit(f132, c, b),
            Arg::Reg(_) | Arg::None | Arg::Imm | Arg::Tile(_) => emit(f213, b, c),
        }
    }
}

/// Whether an item touches the frame; used by tests and statistics.
pub fn touches_stack(item: &Item) -> bool {
    matches!(item, Item::Inst(i) if i.has_mem() && matches!(i.mem.base, Base::Stack(_)))
}
