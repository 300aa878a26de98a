//! The same instructions by way of iced: what the forms must say, and the bytes that must come out.

use iced_x86::{
    Code, EncodingKind, Instruction, MandatoryPrefix, OpCodeTableKind, OpKind, Register,
};

use super::RSP;
use super::form::{Form, NOTHING, OWN, Place, Space, pick};
use crate::mir::{Arg, Base, Class, Inst, Kind, Mem, Op, Reg, Rel, Width};

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

pub fn pick_code(inst: &Inst) -> Code {
    let row = inst.op.row();
    row.codes[pick(inst, row)]
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

/// The form of one code at a length of 0 (128 bits) to 2 that it is used with, its scale being that of the very length.
fn form_of(code: Code) -> Form {
    let info = code.op_code();
    let space = match info.encoding() {
        EncodingKind::Legacy => Space::Legacy,
        EncodingKind::VEX => Space::Vex,
        EncodingKind::EVEX => Space::Evex,
        other => panic!("{code:?} is {other:?}"),
    };
    let map = match info.table() {
        OpCodeTableKind::Normal => 0,
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        OpCodeTableKind::T0F3A => 3,
        other => panic!("{code:?} is in {other:?}"),
    };
    let mut prefix = match info.mandatory_prefix() {
        MandatoryPrefix::None | MandatoryPrefix::PNP => 0,
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
    };
    let mut wide = info.w() == 1;
    if space == Space::Legacy {
        wide = info.operand_size() == 64 && !info.default_op_size64() && !info.force_op_size64();
        if info.operand_size() == 16 {
            prefix = 1;
        }
    }
    let mut places = [Place::None; 4];
    for i in 0..info.op_count() {
        let kind = format!("{:?}", info.op_kind(i));
        places[i as usize] = match kind.as_str() {
            "sibmem" => Place::Sib,
            k if k.ends_with("_or_mem") || k.starts_with("mem") || k.ends_with("_rm") => Place::Rm,
            k if k.ends_with("_reg") => Place::Reg,
            k if k.ends_with("_vvvv") => Place::Prefix,
            k if k.ends_with("_opcode") => Place::Opcode,
            k if k.contains("_is4") => Place::Last,
            k if k.starts_with("imm") => Place::Immediate,
            k => panic!("{code:?} has {k}"),
        };
    }
    let two = info.op_code_len() == 2;
    let extra = match (two, info.group_index()) {
        (true, _) => info.op_code() as u8,
        (false, -1) => NOTHING,
        (false, digit) => digit as u8,
    };
    // `N16b4`: sixteen bytes, or four repeated.
    let tuple = format!("{:?}", info.tuple_type());
    let scale = tuple.trim_start_matches('N');
    let scale = scale.split('b').next().and_then(|n| n.parse().ok());
    Form {
        space,
        map,
        prefix,
        opcode: (info.op_code() >> if two { 8 } else { 0 }) as u8,
        wide,
        places,
        extra,
        length: info.l() as u8,
        scale: scale.unwrap_or(1),
        grows: false,
    }
}

/// The two forms of a row.
pub fn forms_of(op: Op) -> [Form; 2] {
    let row = op.row();
    let of = |codes: &[(u8, Code)]| {
        let mut known = codes.iter().filter(|(_, code)| *code != Code::INVALID);
        let Some(&(first, code)) = known.next() else {
            return Form::NONE;
        };
        let mut form = form_of(code);
        let own = form.length == first;
        if let Some(&(next, code)) = known.next_back() {
            let last = form_of(code);
            form.grows = last.scale != form.scale;
            if form.grows {
                assert_eq!(last.scale >> next, form.scale >> first, "{op:?}");
                form.scale >>= first;
            }
        }
        if own && form.space != Space::Legacy {
            form.length = OWN;
        }
        form
    };
    let c = row.codes;
    if c.iter().all(|code| *code == c[0]) {
        let mut form = Form::NONE;
        if c[0] != Code::INVALID {
            form = form_of(c[0]);
            if form.space == Space::Legacy {
                form.length = OWN;
            }
        }
        return [form; 2];
    }
    if row.has_imm32() {
        return [0, 1].map(|i| Form {
            length: OWN,
            ..of(&[(0, c[i])])
        });
    }
    [
        of(&[(0, c[0]), (1, c[1])]),
        of(&[(0, c[2]), (1, c[3]), (2, c[4])]),
    ]
}

/// A form as the table spells it.
pub fn spell(form: &Form) -> String {
    let space = match form.space {
        Space::None => return "Form::NONE".to_owned(),
        Space::Legacy => "legacy",
        Space::Vex => "vex",
        Space::Evex => "evex",
    };
    let operands: String = form
        .places
        .iter()
        .filter_map(|p| match p {
            Place::None => None,
            Place::Reg => Some('R'),
            Place::Rm => Some('M'),
            Place::Sib => Some('B'),
            Place::Prefix => Some('V'),
            Place::Opcode => Some('O'),
            Place::Last => Some('L'),
            Place::Immediate => Some('I'),
        })
        .collect();
    let mut out = format!(
        "Form::{space}({}, {}, {:#04x}, {}, b\"{operands}\")",
        form.map,
        form.prefix,
        form.opcode,
        u8::from(form.wide)
    );
    if form.extra != NOTHING {
        out.push_str(&format!(".extra({:#04x})", form.extra));
    }
    if form.length != OWN {
        out.push_str(&format!(".length({})", form.length));
    }
    match (form.grows, form.scale) {
        (false, 1) => {}
        (false, n) => out.push_str(&format!(".by({n})")),
        (true, n) => out.push_str(&format!(".per({n})")),
    }
    out
}
