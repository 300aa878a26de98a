//! Machine code from physical instructions: encodings chosen from the table, labels, and a constant pool after the code.
//!
//! Several functions share one buffer and one pool. Backward jumps are short where they reach; forward jumps are near and
//! patched when the buffer is finished, as are the RIP-relative references to the pool.

pub mod pool;
pub mod table;

use iced_x86::{Code, Encoder, Instruction, OpKind, Register};
use oxyfuel_base::{Result, err};

use crate::mir::{Arg, Base, Class, Cond, Inst, Item, Kind, Label, Mem, Op, Reg, Rel, Width};
use pool::Pool;

const RSP: u8 = 4;

fn gpr(number: usize, bytes: u8) -> Register {
    let first = match bytes {
        1 => {
            return [
                Register::AL,
                Register::CL,
                Register::DL,
                Register::BL,
                Register::SPL,
                Register::BPL,
                Register::SIL,
                Register::DIL,
                Register::R8L,
                Register::R9L,
                Register::R10L,
                Register::R11L,
                Register::R12L,
                Register::R13L,
                Register::R14L,
                Register::R15L,
            ][number];
        }
        2 => Register::AX,
        4 => Register::EAX,
        _ => Register::RAX,
    };
    first + number as u32
}

fn vector(number: usize, width: Width) -> Register {
    let first = match width {
        Width::X => Register::XMM0,
        Width::Y => Register::YMM0,
        Width::Z => Register::ZMM0,
    };
    first + number as u32
}

fn mask(reg: Reg) -> Register {
    Register::K0 + reg.number() as u32
}

/// The iced name of a register in a slot of an instruction of this width.
fn register(reg: Reg, kind: Kind, width: Width) -> Register {
    match (reg.class(), kind) {
        (Class::Vec, Kind::Vec { rel, .. } | Kind::VecIndexed(rel)) => {
            vector(reg.number(), width.rel(rel))
        }
        (Class::Vec, _) => vector(reg.number(), width),
        (Class::Mask, _) => mask(reg),
        (Class::Gpr, Kind::Gpr { bytes, .. }) => gpr(reg.number(), bytes),
        (Class::Gpr, _) => gpr(reg.number(), 8),
    }
}

/// EVEX is needed for masks, broadcast memory and the upper sixteen registers; elsewhere VEX is shorter.
fn needs_evex(inst: &Inst) -> bool {
    let upper = |r: Reg| !r.is_none() && r.class() == Class::Vec && r.number() >= 16;
    !inst.mask.is_none()
        || inst.mem.broadcast
        || upper(inst.mem.index)
        || inst
            .args
            .iter()
            .any(|a| matches!(a, Arg::Reg(r) if upper(*r)))
}

pub fn pick_code(inst: &Inst) -> Code {
    let row = inst.op.row();
    if row.slots.iter().any(|s| s.kind == Kind::Imm32) {
        let short = row.codes[1] != Code::INVALID && i8::try_from(inst.imm).is_ok();
        return row.codes[usize::from(short)];
    }
    let vex = match inst.width {
        Width::X | Width::Y => row.codes[inst.width as usize],
        Width::Z => Code::INVALID,
    };
    if vex != Code::INVALID && !needs_evex(inst) {
        vex
    } else {
        row.codes[2 + inst.width as usize]
    }
}

fn jump_code(cond: Cond, short: bool) -> Code {
    let (s, n) = match cond {
        Cond::Always => (Code::Jmp_rel8_64, Code::Jmp_rel32_64),
        Cond::E => (Code::Je_rel8_64, Code::Je_rel32_64),
        Cond::Ne => (Code::Jne_rel8_64, Code::Jne_rel32_64),
        Cond::L => (Code::Jl_rel8_64, Code::Jl_rel32_64),
        Cond::Ge => (Code::Jge_rel8_64, Code::Jge_rel32_64),
        Cond::Le => (Code::Jle_rel8_64, Code::Jle_rel32_64),
        Cond::G => (Code::Jg_rel8_64, Code::Jg_rel32_64),
        Cond::B => (Code::Jb_rel8_64, Code::Jb_rel32_64),
        Cond::Ae => (Code::Jae_rel8_64, Code::Jae_rel32_64),
        Cond::Be => (Code::Jbe_rel8_64, Code::Jbe_rel32_64),
        Cond::A => (Code::Ja_rel8_64, Code::Ja_rel32_64),
        Cond::P => (Code::Jp_rel8_64, Code::Jp_rel32_64),
        Cond::Np => (Code::Jnp_rel8_64, Code::Jnp_rel32_64),
    };
    if short { s } else { n }
}

/// A physical instruction in iced's form. Pool references point at address zero and are patched later.
pub fn to_iced(inst: &Inst) -> Instruction {
    let row = inst.op.row();
    let mut out = Instruction::default();
    out.set_code(pick_code(inst));
    let mut index_rel = Rel::Full;
    for (i, (slot, arg)) in row.slots.iter().zip(inst.args).enumerate() {
        let i = i as u32;
        if let Kind::VecIndexed(rel) = slot.kind {
            index_rel = rel;
        }
        match arg {
            Arg::None => {}
            Arg::Reg(r) => out.set_op_register(i, register(r, slot.kind, inst.width)),
            Arg::Tile(t) => out.set_op_register(i, Register::TMM0 + u32::from(t)),
            Arg::Mem => out.set_op_kind(i, OpKind::Memory),
            Arg::Imm => set_immediate(&mut out, i, slot.kind, inst.imm),
        }
    }
    if inst.has_mem() {
        set_memory(&mut out, &inst.mem, inst.width.rel(index_rel));
    }
    if !inst.mask.is_none() {
        out.set_op_mask(mask(inst.mask));
        out.set_zeroing_masking(inst.zero);
    }
    out
}

fn set_immediate(out: &mut Instruction, i: u32, kind: Kind, imm: i64) {
    match kind {
        Kind::Imm8 => {
            out.set_op_kind(i, OpKind::Immediate8);
            out.set_immediate8(imm as u8);
        }
        Kind::Imm32
            if i8::try_from(imm).is_ok()
                && out.code() != Code::Mov_rm64_imm32
                && out.code() != Code::Test_rm64_imm32 =>
        {
            out.set_op_kind(i, OpKind::Immediate8to64);
            out.set_immediate8to64(imm);
        }
        Kind::Imm32 => {
            out.set_op_kind(i, OpKind::Immediate32to64);
            out.set_immediate32to64(imm);
        }
        Kind::ImmU32 => {
            out.set_op_kind(i, OpKind::Immediate32);
            out.set_immediate32(imm as u32);
        }
        _ => {
            out.set_op_kind(i, OpKind::Immediate64);
            out.set_immediate64(imm as u64);
        }
    }
}

fn set_memory(out: &mut Instruction, mem: &Mem, index_width: Width) {
    let (base, disp) = match mem.base {
        Base::None => (Register::None, mem.disp),
        Base::Reg(r) => (gpr(r.number(), 8), mem.disp),
        Base::Stack(offset) => (gpr(RSP as usize, 8), mem.disp + offset as i32),
        Base::Pool(_) => (Register::RIP, 0),
    };
    out.set_memory_base(base);
    if !mem.index.is_none() {
        let index = match mem.index.class() {
            Class::Vec => vector(mem.index.number(), index_width),
            Class::Gpr | Class::Mask => gpr(mem.index.number(), 8),
        };
        out.set_memory_index(index);
        out.set_memory_index_scale(u32::from(mem.scale));
    }
    // 1 lets the encoder take the shortest displacement, the compressed EVEX one included.
    let size = match mem.base {
        Base::None => 4,
        Base::Pool(_) => 8,
        Base::Reg(_) | Base::Stack(_) if disp == 0 => 0,
        Base::Reg(_) | Base::Stack(_) => 1,
    };
    out.set_memory_displ_size(size);
    out.set_memory_displacement64(disp as i64 as u64);
    out.set_is_broadcast(mem.broadcast);
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

pub struct Assembler {
    encoder: Encoder,
    at: usize,
    /// (position of the 32-bit field, end of its instruction, pool offset and displacement)
    pool_fixups: Vec<(usize, usize, i64)>,
    pub instructions: u32,
}

impl std::fmt::Debug for Assembler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl Default for Assembler {
    fn default() -> Assembler {
        Assembler {
            encoder: Encoder::new(64),
            at: 0,
            pool_fixups: Vec::new(),
            instructions: 0,
        }
    }
}

impl Assembler {
    fn raw(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.encoder.write_u8(b);
        }
        self.at += bytes.len();
    }

    fn align(&mut self, to: usize) {
        while !self.at.is_multiple_of(to) {
            let gap = (to - self.at % to).min(NOPS.len());
            self.raw(NOPS[gap - 1]);
        }
    }

    fn encode(&mut self, instruction: &Instruction) -> Result<()> {
        let bytes = self.encoder.encode(instruction, self.at as u64);
        self.at += bytes.map_err(|e| err!(Internal, "an instruction does not encode: {e}"))?;
        self.instructions += 1;
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<()> {
        let start = self.at;
        self.encode(&to_iced(inst))
            .map_err(|e| e.context(format_args!("{:?} of width {:?}", inst.op, inst.width)))?;
        if let Base::Pool(offset) = inst.mem.base
            && inst.has_mem()
        {
            let field = start + self.encoder.get_constant_offsets().displacement_offset();
            self.pool_fixups
                .push((field, self.at, i64::from(offset) + i64::from(inst.mem.disp)));
        }
        Ok(())
    }

    /// Appends one function of physical items and returns the offset of its entry.
    pub fn function(&mut self, items: &[Item], labels: u32) -> Result<u32> {
        self.align(64);
        let entry = self.at;
        let mut bound: Vec<Option<usize>> = vec![None; labels as usize];
        let mut forward: Vec<(usize, Label)> = Vec::new();
        for item in items {
            match item {
                Item::Inst(inst) => self.inst(inst)?,
                Item::Copy(width, to, from) => {
                    if let Some(inst) = move_inst(*width, *to, *from) {
                        self.inst(&inst)?;
                    }
                }
                Item::Align => self.align(LOOP_ALIGNMENT),
                Item::Bind(l) => bound[l.0 as usize] = Some(self.at),
                Item::Jump(cond, l) => {
                    let back = bound[l.0 as usize];
                    let short = back.is_some_and(|to| self.at - to < 120);
                    let mut jump = Instruction::default();
                    jump.set_code(jump_code(*cond, short));
                    jump.set_op_kind(0, OpKind::NearBranch64);
                    jump.set_near_branch64(back.unwrap_or(self.at) as u64);
                    self.encode(&jump)?;
                    if back.is_none() {
                        forward.push((self.at, *l));
                    }
                }
                Item::Entry(_) => {}
            }
        }
        let mut code = self.encoder.take_buffer();
        for (end, label) in forward {
            // Selection binds every label it jumps to; an unbound one would fall through to the end.
            let to = bound[label.0 as usize].unwrap_or(self.at);
            code[end - 4..end].copy_from_slice(&((to as i64 - end as i64) as i32).to_le_bytes());
        }
        self.encoder.set_buffer(code);
        Ok(entry as u32)
    }

    /// The code with its pool behind it. Offsets are final; the code runs at any 64-byte aligned address.
    pub fn finish(mut self, pool: &Pool) -> Vec<u8> {
        self.align(64);
        let start = self.at as i64;
        let mut code = self.encoder.take_buffer();
        for (field, end, offset) in self.pool_fixups {
            let disp = (start + offset - end as i64) as i32;
            code[field..field + 4].copy_from_slice(&disp.to_le_bytes());
        }
        code.extend_from_slice(pool.bytes());
        code
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
mod tests;
