//! PTX text: virtual registers, instructions, and a scoped memory of pure ones.
//!
//! Registers are untyped bits (`.b32` and so on), which PTX lets any instruction of that width use; so a register is a class and a number.
//! [`Asm::pure`] remembers what it computed in the current scope and the ones around it, and hands out the same register for the same
//! instruction. A register that is written more than once (an accumulator updated in place) must be marked with [`Asm::mark_mutable`],
//! and instructions that read it are then never remembered.

use std::fmt::{self, Write as _};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::target::Version;

/// Width of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Pred,
    B16,
    B32,
    B64,
}

/// One row a class: the declaration's type and the register's prefix.
const CLASSES: [(Class, &str, char); 4] = [
    (Class::Pred, ".pred", 'p'),
    (Class::B16, ".b16", 'h'),
    (Class::B32, ".b32", 'r'),
    (Class::B64, ".b64", 'd'),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg {
    pub(crate) class: Class,
    index: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", CLASSES[self.class as usize].2, self.index)
    }
}

/// What an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Opd {
    Reg(Reg),
    Int(i64),
    F32(u32),
    F64(u64),
}

impl Opd {
    pub(crate) fn reg(self) -> Option<Reg> {
        match self {
            Self::Reg(reg) => Some(reg),
            Self::Int(_) | Self::F32(_) | Self::F64(_) => None,
        }
    }
}

impl From<Reg> for Opd {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl fmt::Display for Opd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reg(reg) => write!(f, "{reg}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::F32(bits) => write!(f, "0f{bits:08X}"),
            Self::F64(bits) => write!(f, "0d{bits:016X}"),
        }
    }
}

/// The body of one entry while it is written.
#[derive(Debug, Default)]
pub(crate) struct Asm {
    text: String,
    counts: [u32; CLASSES.len()],
    labels: u32,
    scopes: Vec<FxHashMap<String, Reg>>,
    mutable: FxHashSet<Reg>,
    /// The newest version that something in it is of.
    version: Version,
}

impl Asm {
    pub(crate) fn new() -> Self {
        Self {
            scopes: vec![FxHashMap::default()],
            ..Self::default()
        }
    }

    /// Says that the text has something of this version, which a target may be older than.
    pub(crate) fn wants(&mut self, version: Version) {
        self.version = self.version.max(version);
    }

    /// The lowest version that has all of that.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.counts[class as usize];
        *count += 1;
        Reg {
            class,
            index: *count - 1,
        }
    }

    pub(crate) fn regs(&mut self, class: Class, n: usize) -> Vec<Reg> {
        (0..n).map(|_| self.reg(class)).collect()
    }

    /// Code until the matching [`Asm::leave`] may not run, or may run again: what it computes is forgotten there.
    pub(crate) fn enter(&mut self) {
        self.scopes.push(FxHashMap::default());
    }

    pub(crate) fn leave(&mut self) {
        self.scopes.pop();
    }

    pub(crate) fn mark_mutable(&mut self, reg: Reg) {
        self.mutable.insert(reg);
    }

    pub(crate) fn is_mutable(&self, reg: Reg) -> bool {
        self.mutable.contains(&reg)
    }

    pub(crate) fn label(&mut self) -> String {
        self.labels += 1;
        format!("$L{}", self.labels - 1)
    }

    pub(crate) fn place(&mut self, label: &str) {
        self.text.push_str(label);
        self.text.push_str(":\n");
    }

    /// One instruction, without its semicolon.
    pub(crate) fn line(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.text, "\t{text};");
    }

    pub(crate) fn comment(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.text, "\t// {text}");
    }

    /// `mnemonic dst, args` into a fresh register, or the register that already holds it.
    pub(crate) fn pure(&mut self, class: Class, mnemonic: &str, args: &[Opd]) -> Reg {
        let key = spell(mnemonic, args);
        if let Some(reg) = self.scopes.iter().rev().find_map(|scope| scope.get(&key)) {
            return *reg;
        }
        let dst = self.reg(class);
        self.emit(dst, mnemonic, args);
        let stable = args
            .iter()
            .filter_map(|arg| arg.reg())
            .all(|reg| !self.mutable.contains(&reg));
        if stable && let Some(scope) = self.scopes.last_mut() {
            scope.insert(key, dst);
        }
        dst
    }

    /// `mnemonic dst, args` into a given register.
    pub(crate) fn emit(&mut self, dst: Reg, mnemonic: &str, args: &[Opd]) {
        let _ = write!(self.text, "\t{mnemonic} {dst}");
        for arg in args {
            let _ = write!(self.text, ", {arg}");
        }
        self.text.push_str(";\n");
    }

    pub(crate) fn mov(&mut self, dst: Reg, src: Opd) {
        if src != Opd::Reg(dst) {
            let mnemonic = match dst.class {
                Class::Pred => "mov.pred",
                Class::B16 => "mov.b16",
                Class::B32 => "mov.b32",
                Class::B64 => "mov.b64",
            };
            self.emit(dst, mnemonic, &[src]);
        }
    }

    /// Declarations and instructions, between the braces of an entry.
    pub(crate) fn finish(self) -> String {
        let mut out = String::with_capacity(self.text.len() + 128);
        for (class, ty, prefix) in CLASSES {
            let count = self.counts[class as usize];
            if count > 0 {
                let _ = writeln!(out, "\t.reg {ty} %{prefix}<{count}>;");
            }
        }
        out.push_str(&self.text);
        out
    }
}

fn spell(mnemonic: &str, args: &[Opd]) -> String {
    let mut key = String::with_capacity(32);
    key.push_str(mnemonic);
    for arg in args {
        let _ = write!(key, ",{arg}");
    }
    key
}

/// `{a,b,c}`, or `a` alone.
pub(crate) fn braces(regs: &[Reg]) -> String {
    if let [one] = regs {
        return one.to_string();
    }
    let list: Vec<String> = regs.iter().map(Reg::to_string).collect();
    format!("{{{}}}", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pure_instructions_share_a_register_until_their_scope_ends() {
        let mut asm = Asm::new();
        let a = asm.reg(Class::B32);
        let outer = asm.pure(Class::B32, "add.s32", &[a.into(), Opd::Int(1)]);
        asm.enter();
        assert_eq!(
            asm.pure(Class::B32, "add.s32", &[a.into(), Opd::Int(1)]),
            outer
        );
        let inner = asm.pure(Class::B32, "add.s32", &[a.into(), Opd::Int(2)]);
        asm.leave();
        assert_ne!(
            asm.pure(Class::B32, "add.s32", &[a.into(), Opd::Int(2)]),
            inner
        );
    }

    #[test]
    fn what_reads_a_mutable_register_is_computed_again() {
        let mut asm = Asm::new();
        let a = asm.reg(Class::B32);
        asm.mark_mutable(a);
        let first = asm.pure(Class::B32, "not.b32", &[a.into()]);
        assert_ne!(asm.pure(Class::B32, "not.b32", &[a.into()]), first);
    }

    #[test]
    fn operands_print_as_ptx_spells_them() {
        assert_eq!(Opd::F32(1.0f32.to_bits()).to_string(), "0f3F800000");
        assert_eq!(Opd::F64(1.0f64.to_bits()).to_string(), "0d3FF0000000000000");
        assert_eq!(Opd::Int(-3).to_string(), "-3");
    }
}
