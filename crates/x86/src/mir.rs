//! Machine IR: instructions of the table over virtual registers, in structured order.
//!
//! Meaning: a [`Func`] is a list of items executed in order; a jump goes to a label of the same function. Virtual registers
//! are mutable variables of one class each.
//!
//! Invariants (the allocator relies on them, [`crate::check`] verifies the result):
//! 1. In list order a register is defined before it is used; a loop-carried register is defined before its loop.
//! 2. A backward jump closes a loop, and loops nest. A forward jump stays inside the loops that enclose it, or leaves them.
//! 3. A value defined inside a loop and not before it is not read at the loop's head before its definition.
//! 4. An instruction has at most one memory operand.

use rustc_hash::FxHashMap;

pub use crate::asm::table::{Kind, Op, Rel, Role};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    Gpr = 0,
    Vec = 1,
    Mask = 2,
}

/// A register: virtual before allocation, physical after it; [`Reg::NONE`] where an operand is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reg(u32);

const PHYS: u32 = 1 << 29;
const NUMBER: u32 = PHYS - 1;

impl Reg {
    pub const NONE: Reg = Reg(u32::MAX);

    pub fn virt(class: Class, number: u32) -> Reg {
        Reg((class as u32) << 30 | number)
    }

    pub const fn phys(class: Class, number: u8) -> Reg {
        Reg((class as u32) << 30 | PHYS | number as u32)
    }

    pub fn is_none(self) -> bool {
        self == Reg::NONE
    }

    pub fn is_virt(self) -> bool {
        !self.is_none() && self.0 & PHYS == 0
    }

    pub fn number(self) -> usize {
        (self.0 & NUMBER) as usize
    }

    pub fn class(self) -> Class {
        match self.0 >> 30 {
            0 => Class::Gpr,
            1 => Class::Vec,
            _ => Class::Mask,
        }
    }
}

impl std::fmt::Debug for Reg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_none() {
            return f.write_str("-");
        }
        let letter = ["r", "v", "k"][self.class() as usize];
        write!(
            f,
            "{}{letter}{}",
            if self.is_virt() { "%" } else { "" },
            self.number()
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Width {
    X = 0,
    Y = 1,
    Z = 2,
}

impl Width {
    pub fn bytes(self) -> u32 {
        16 << self as u32
    }

    /// The narrowest width that holds this many bytes; at most 64.
    pub fn of_bytes(bytes: u32) -> Width {
        match bytes {
            0..=16 => Width::X,
            17..=32 => Width::Y,
            _ => Width::Z,
        }
    }

    pub fn rel(self, rel: Rel) -> Width {
        let steps = match rel {
            Rel::Full => 0,
            Rel::Half => 1,
            Rel::Quarter => 2,
            Rel::Xmm => return Width::X,
        };
        Width::of_bytes(self.bytes() >> steps)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    None,
    Reg(Reg),
    /// Byte offset in the constant pool.
    Pool(u32),
    /// Byte offset in the stack frame; written by the allocator only.
    Stack(u32),
}

/// `[base + index * scale + disp]`. The index is a general register, or a vector register in a gather or scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mem {
    pub base: Base,
    pub index: Reg,
    pub scale: u8,
    pub disp: i32,
    /// One element read and repeated over the vector.
    pub broadcast: bool,
}

impl Mem {
    pub const NONE: Mem = Mem {
        base: Base::None,
        index: Reg::NONE,
        scale: 1,
        disp: 0,
        broadcast: false,
    };

    pub fn at(base: Reg, disp: i32) -> Mem {
        Mem {
            base: Base::Reg(base),
            disp,
            ..Mem::NONE
        }
    }

    pub fn indexed(base: Reg, index: Reg, scale: u8, disp: i32) -> Mem {
        Mem {
            base: Base::Reg(base),
            index,
            scale,
            disp,
            broadcast: false,
        }
    }

    pub fn pool(offset: u32) -> Mem {
        Mem {
            base: Base::Pool(offset),
            ..Mem::NONE
        }
    }

    pub fn stack(offset: u32) -> Mem {
        Mem {
            base: Base::Stack(offset),
            ..Mem::NONE
        }
    }

    pub fn repeated(self) -> Mem {
        Mem {
            broadcast: true,
            ..self
        }
    }

    pub fn plus(self, bytes: i32) -> Mem {
        Mem {
            disp: self.disp + bytes,
            ..self
        }
    }
}

/// An operand as the caller writes it.
#[derive(Clone, Copy, Debug)]
pub enum A {
    R(Reg),
    M(Mem),
    I(i64),
    T(u8),
}

impl From<Reg> for A {
    fn from(r: Reg) -> A {
        A::R(r)
    }
}

impl From<Mem> for A {
    fn from(m: Mem) -> A {
        A::M(m)
    }
}

/// An operand as an instruction stores it: memory and immediate occur at most once and stand beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    None,
    Reg(Reg),
    Mem,
    Imm,
    Tile(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inst {
    pub op: Op,
    pub width: Width,
    /// Zeroing instead of merging under the mask.
    pub zero: bool,
    pub mask: Reg,
    pub args: [Arg; 4],
    pub mem: Mem,
    pub imm: i64,
}

impl Inst {
    pub fn new(op: Op, width: Width, args: &[A]) -> Inst {
        let mut inst = Inst {
            op,
            width,
            zero: false,
            mask: Reg::NONE,
            args: [Arg::None; 4],
            mem: Mem::NONE,
            imm: 0,
        };
        debug_assert_eq!(args.len(), op.row().slots.len(), "operand count of {op:?}");
        for (slot, a) in inst.args.iter_mut().zip(args) {
            *slot = match *a {
                A::R(r) => Arg::Reg(r),
                A::M(m) => {
                    inst.mem = m;
                    Arg::Mem
                }
                A::I(i) => {
                    inst.imm = i;
                    Arg::Imm
                }
                A::T(t) => Arg::Tile(t),
            };
        }
        inst
    }

    pub fn masked(self, mask: Reg, zero: bool) -> Inst {
        Inst { mask, zero, ..self }
    }

    pub fn has_mem(&self) -> bool {
        self.args.contains(&Arg::Mem)
    }

    /// Gathers and scatters clear their mask as they go.
    pub fn mask_role(&self) -> Role {
        if self.op.row().sparse {
            Role::Mod
        } else {
            Role::Use
        }
    }

    /// Role of operand `i`; merging under a mask keeps the old value of the lanes that are off.
    pub fn role(&self, i: usize) -> Role {
        match self.op.row().slots[i].role {
            Role::Def if !self.mask.is_none() && !self.zero && !self.blends() => Role::Mod,
            role => role,
        }
    }

    /// Compares and blends define every bit of their result under a mask.
    fn blends(&self) -> bool {
        matches!(self.op, Op::VBlendMPs | Op::VBlendMPd)
            || matches!(self.op.row().slots[0].kind, Kind::Mask { .. })
    }

    /// Calls `f` with every register and its role, and replaces it by the answer.
    pub fn map_regs(&mut self, mut f: impl FnMut(Reg, Role) -> Reg) {
        if let Base::Reg(r) = self.mem.base {
            self.mem.base = Base::Reg(f(r, Role::Use));
        }
        if !self.mem.index.is_none() {
            self.mem.index = f(self.mem.index, Role::Use);
        }
        if !self.mask.is_none() {
            self.mask = f(self.mask, self.mask_role());
        }
        for i in 0..self.args.len() {
            if let Arg::Reg(r) = self.args[i] {
                let role = self.role(i);
                self.args[i] = Arg::Reg(f(r, role));
            }
        }
    }

    /// Calls `f` with every register and its role, in the order of [`Inst::map_regs`].
    pub fn for_each_reg(&self, mut f: impl FnMut(Reg, Role)) {
        if let Base::Reg(r) = self.mem.base {
            f(r, Role::Use);
        }
        if !self.mem.index.is_none() {
            f(self.mem.index, Role::Use);
        }
        if !self.mask.is_none() {
            f(self.mask, self.mask_role());
        }
        for (i, arg) in self.args.iter().enumerate() {
            if let Arg::Reg(r) = arg {
                f(*r, self.role(i));
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cond {
    Always,
    E,
    Ne,
    L,
    Ge,
    Le,
    G,
    B,
    Ae,
    Be,
    A,
    P,
    Np,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Inst(Inst),
    /// A register copy; the allocator drops it where both ends get the same register.
    Copy(Width, Reg, Reg),
    Bind(Label),
    /// The next label heads a hot loop: begin it at a fetch boundary.
    Align,
    Jump(Cond, Label),
    /// First item of a function: the four arguments of the launch contract.
    Entry([Reg; 4]),
}

/// Where a constant register's value stands in the pool, so that a spill needs no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remat {
    pub pool: u32,
    /// Element size when the pool holds one element to repeat, 0 when it holds the whole vector.
    pub element: u8,
    /// Offset of a whole-vector copy for targets without embedded broadcast; equals `pool` where `element` is 0.
    pub whole: Option<u32>,
}

/// A list of items under construction, split in chunks so that invariant code can still be placed before a loop that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(u32);

#[derive(Debug)]
pub struct Func {
    chunks: Vec<Vec<Item>>,
    cursor: usize,
    pub(crate) regs: u32,
    pub(crate) labels: u32,
    pub(crate) remat: FxHashMap<usize, Remat>,
    pub args: [Reg; 4],
}

impl Default for Func {
    fn default() -> Func {
        let mut f = Func {
            chunks: vec![Vec::new()],
            cursor: 0,
            regs: 0,
            labels: 0,
            remat: FxHashMap::default(),
            args: [Reg::NONE; 4],
        };
        f.args = std::array::from_fn(|_| f.reg(Class::Gpr));
        let args = f.args;
        f.push(Item::Entry(args));
        f
    }
}

impl Func {
    pub fn reg(&mut self, class: Class) -> Reg {
        self.regs += 1;
        Reg::virt(class, self.regs - 1)
    }

    pub fn gpr(&mut self) -> Reg {
        self.reg(Class::Gpr)
    }

    pub fn vec(&mut self) -> Reg {
        self.reg(Class::Vec)
    }

    pub fn mask(&mut self) -> Reg {
        self.reg(Class::Mask)
    }

    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    pub fn push(&mut self, item: Item) {
        self.chunks[self.cursor].push(item);
    }

    pub fn inst(&mut self, op: Op, width: Width, args: &[A]) {
        self.push(Item::Inst(Inst::new(op, width, args)));
    }

    pub fn copy(&mut self, width: Width, to: Reg, from: Reg) {
        if to != from {
            self.push(Item::Copy(width, to, from));
        }
    }

    pub fn bind(&mut self, label: Label) {
        self.push(Item::Bind(label));
    }

    pub fn jump(&mut self, cond: Cond, label: Label) {
        self.push(Item::Jump(cond, label));
    }

    /// A place that later instructions can still be added to while construction goes on after it.
    pub fn hoist_point(&mut self) -> Chunk {
        let here = self.chunks.len();
        self.chunks.push(Vec::new());
        self.chunks.push(Vec::new());
        self.cursor = here + 1;
        Chunk(here as u32)
    }

    /// Emits into `chunk` for the time of `f`.
    pub fn at<T>(&mut self, chunk: Chunk, f: impl FnOnce(&mut Func) -> T) -> T {
        let back = std::mem::replace(&mut self.cursor, chunk.0 as usize);
        let out = f(self);
        self.cursor = back;
        out
    }

    /// Emits into `chunk` from now on; [`Func::leave`] with the answer goes back.
    pub fn enter(&mut self, chunk: Chunk) -> usize {
        std::mem::replace(&mut self.cursor, chunk.0 as usize)
    }

    pub fn leave(&mut self, cursor: usize) {
        self.cursor = cursor;
    }

    /// Makes `to` hold what the last instruction defined as `from`, without a copy where it can be defined there at once.
    pub fn retarget(&mut self, from: Reg, to: Reg, width: Width) {
        if let Some(Item::Inst(inst)) = self.chunks[self.cursor].last_mut()
            && inst.args[0] == Arg::Reg(from)
            && inst.role(0) == Role::Def
        {
            inst.args[0] = Arg::Reg(to);
            return;
        }
        self.copy(width, to, from);
    }

    /// The finished list.
    pub fn items(&self) -> Vec<Item> {
        let mut items = Vec::with_capacity(self.chunks.iter().map(Vec::len).sum());
        for chunk in &self.chunks {
            items.extend_from_slice(chunk);
        }
        items
    }
}
