//! Machine code from physical instructions: encodings chosen from the table, labels, and a constant pool after the code.
//!
//! Several functions share one buffer and one pool. Backward jumps are short where they reach; forward jumps are near and
//! patched when the buffer is finished, as are the RIP-relative references to the pool.

mod form;
mod forms;
pub mod pool;
pub mod table;

use oxyfuel_base::Result;

use crate::mir::{Base, Class, Cond, Inst, Item, Label, Op, Reg, Width};
use pool::Pool;

const RSP: u8 = 4;

/// The low four bits of a conditional jump's opcode.
fn condition(cond: Cond) -> Option<u8> {
    Some(match cond {
        Cond::Always => return None,
        Cond::B => 0x2,
        Cond::Ae => 0x3,
        Cond::E => 0x4,
        Cond::Ne => 0x5,
        Cond::Be => 0x6,
        Cond::A => 0x7,
        Cond::P => 0xa,
        Cond::Np => 0xb,
        Cond::L => 0xc,
        Cond::Ge => 0xd,
        Cond::Le => 0xe,
        Cond::G => 0xf,
    })
}

/// The recommended no-operation of 1 to 9 bytes.
const NOPS: [&[u8]; 9] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

const LOOP_ALIGNMENT: usize = 32;
/// Jumps back over fewer bytes than this are short.
const SHORT: usize = 120;

#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u8>,
    /// (position of the 32-bit field, end of its instruction, pool offset and displacement)
    pool_fixups: Vec<(usize, usize, i64)>,
    pub instructions: u32,
}

impl Assembler {
    fn align(&mut self, to: usize) {
        while !self.code.len().is_multiple_of(to) {
            let gap = (to - self.code.len() % to).min(NOPS.len());
            self.code.extend_from_slice(NOPS[gap - 1]);
        }
    }

    fn inst(&mut self, inst: &Inst) -> Result<()> {
        let start = self.code.len();
        let field = form::encode(&mut self.code, inst)?;
        self.instructions += 1;
        if let (Some(field), Base::Pool(offset)) = (field, inst.mem.base) {
            let to = i64::from(offset) + i64::from(inst.mem.disp);
            self.pool_fixups.push((start + field, self.code.len(), to));
        }
        Ok(())
    }

    /// A jump back to a known place, short where it reaches; or one whose last four bytes are patched later.
    fn jump(&mut self, cond: Cond, back: Option<usize>) {
        let at = self.code.len();
        let condition = condition(cond);
        self.instructions += 1;
        if let Some(to) = back
            && at - to < SHORT
        {
            let opcode = condition.map_or(0xeb, |c| 0x70 | c);
            let rel = to as i64 - (at as i64 + 2);
            self.code.extend_from_slice(&[opcode, rel as i8 as u8]);
            return;
        }
        match condition {
            Some(c) => self.code.extend_from_slice(&[0x0f, 0x80 | c]),
            None => self.code.push(0xe9),
        }
        let end = self.code.len() + 4;
        let rel = back.map_or(0, |to| to as i64 - end as i64);
        self.code.extend_from_slice(&(rel as i32).to_le_bytes());
    }

    /// Appends one function of physical items, given in parts, and returns the offset of its entry.
    pub fn function(&mut self, parts: &[&[Item]], labels: u32) -> Result<u32> {
        self.align(64);
        let entry = self.code.len();
        let mut bound: Vec<Option<usize>> = vec![None; labels as usize];
        let mut forward: Vec<(usize, Label)> = Vec::new();
        for item in parts.iter().copied().flatten() {
            match item {
                Item::Inst(inst) => self.inst(inst)?,
                Item::Copy(width, to, from) => {
                    if let Some(inst) = move_inst(*width, *to, *from) {
                        self.inst(&inst)?;
                    }
                }
                Item::Align => self.align(LOOP_ALIGNMENT),
                Item::Bind(l) => bound[l.0 as usize] = Some(self.code.len()),
                Item::Jump(cond, l) => {
                    let back = bound[l.0 as usize];
                    self.jump(*cond, back);
                    if back.is_none() {
                        forward.push((self.code.len(), *l));
                    }
                }
                Item::Entry(_) => {}
            }
        }
        for (end, label) in forward {
            // Selection binds every label it jumps to; an unbound one would fall through to the end.
            let to = bound[label.0 as usize].unwrap_or(self.code.len());
            let rel = (to as i64 - end as i64) as i32;
            self.code[end - 4..end].copy_from_slice(&rel.to_le_bytes());
        }
        Ok(entry as u32)
    }

    /// The code with its pool behind it. Offsets are final; the code runs at any 64-byte aligned address.
    pub fn finish(mut self, pool: &Pool) -> Vec<u8> {
        self.align(64);
        let start = self.code.len() as i64;
        for (field, end, offset) in self.pool_fixups {
            let disp = (start + offset - end as i64) as i32;
            self.code[field..field + 4].copy_from_slice(&disp.to_le_bytes());
        }
        self.code.extend_from_slice(pool.bytes());
        self.code
    }
}

/// A copy between two registers of one class; nothing where they are the same.
pub fn move_inst(width: Width, to: Reg, from: Reg) -> Option<Inst> {
    if to == from {
        return None;
    }
    let op = match to.class() {
        Class::Gpr => Op::Mov,
        Class::Vec => Op::VMovUps,
        Class::Mask => Op::KMovQ,
    };
    Some(Inst::new(op, width, &[to.into(), from.into()]))
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
