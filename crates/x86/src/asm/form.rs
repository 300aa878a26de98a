//! How an instruction becomes bytes: a [`Form`] says where its operands stand, [`encode`] writes them there.
//!
//! The forms are data ([`super::forms`]), a pair a row of the instruction table, and tests compare both the data and the bytes with another
//! encoder's. Only what the table's rows need is here.

use oxyfuel_base::{Result, err};

use super::forms::FORMS;
use super::table::{Kind, Row};
use crate::mir::{Arg, Base, Class, Inst, Mem, Reg, Width};

/// What stands before the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// There is no such form.
    None,
    Legacy,
    Vex,
    Evex,
}

/// Where an operand stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    None,
    /// Three bits beside the addressing mode.
    Reg,
    /// A register, or memory.
    Rm,
    /// Memory that is always addressed with an index byte.
    Sib,
    /// Four bits of the prefix.
    Prefix,
    /// The low three bits of the opcode.
    Opcode,
    /// The high four bits of a last byte.
    Last,
    Immediate,
}

/// An encoding of one row, but for what the width of its vectors says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub space: Space,
    /// 0: one byte, 1: after `0F`, 2: after `0F 38`, 3: after `0F 3A`.
    pub map: u8,
    /// 0: none, 1: `66`, 2: `F3`, 3: `F2`.
    pub prefix: u8,
    pub opcode: u8,
    pub wide: bool,
    pub places: [Place; 4],
    /// Up to 7 what stands in place of a register operand, [`NOTHING`], or else a whole byte behind the opcode.
    pub extra: u8,
    /// Of the vectors, as the prefix counts it, or [`OWN`].
    pub length: u8,
    /// Bytes that a short displacement counts; at 128 bits where it grows with the width.
    pub scale: u8,
    pub grows: bool,
}

pub const NOTHING: u8 = 0xff;
/// The instruction's own width says it.
pub const OWN: u8 = 0xff;

/// The spellings of [`super::forms`]. Operands are letters: `R` register, `M` register or memory, `B` memory with an index byte,
/// `V` prefix, `O` opcode, `L` last byte, `I` immediate.
impl Form {
    pub const NONE: Form = Form {
        space: Space::None,
        map: 0,
        prefix: 0,
        opcode: 0,
        wide: false,
        places: [Place::None; 4],
        extra: NOTHING,
        length: OWN,
        scale: 1,
        grows: false,
    };

    pub const fn legacy(map: u8, prefix: u8, opcode: u8, wide: u8, operands: &[u8]) -> Form {
        let wide = wide == 1;
        Form {
            space: Space::Legacy,
            map,
            prefix,
            opcode,
            wide,
            places: places(operands),
            ..Form::NONE
        }
    }

    pub const fn vex(map: u8, prefix: u8, opcode: u8, wide: u8, operands: &[u8]) -> Form {
        Form {
            space: Space::Vex,
            ..Form::legacy(map, prefix, opcode, wide, operands)
        }
    }

    pub const fn evex(map: u8, prefix: u8, opcode: u8, wide: u8, operands: &[u8]) -> Form {
        Form {
            space: Space::Evex,
            ..Form::legacy(map, prefix, opcode, wide, operands)
        }
    }

    pub const fn extra(self, extra: u8) -> Form {
        Form { extra, ..self }
    }

    pub const fn length(self, length: u8) -> Form {
        Form { length, ..self }
    }

    /// Displacements count this many bytes at any width.
    pub const fn by(self, scale: u8) -> Form {
        Form { scale, ..self }
    }

    /// Displacements count this many bytes at 128 bits, and twice as many at twice the width.
    pub const fn per(self, scale: u8) -> Form {
        Form {
            scale,
            grows: true,
            ..self
        }
    }
}

const fn places(letters: &[u8]) -> [Place; 4] {
    let mut out = [Place::None; 4];
    let mut i = 0;
    while i < letters.len() {
        out[i] = match letters[i] {
            b'R' => Place::Reg,
            b'M' => Place::Rm,
            b'B' => Place::Sib,
            b'V' => Place::Prefix,
            b'O' => Place::Opcode,
            b'L' => Place::Last,
            b'I' => Place::Immediate,
            _ => panic!("no such place"),
        };
        i += 1;
    }
    out
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

/// Which of its row's codes an instruction takes.
pub fn pick(inst: &Inst, row: &Row) -> usize {
    if row.has_imm32() {
        return usize::from(row.has_code(1) && i8::try_from(inst.imm).is_ok());
    }
    match inst.width {
        width @ (Width::X | Width::Y) if row.has_code(width as usize) && !needs_evex(inst) => {
            width as usize
        }
        width => 2 + width as usize,
    }
}

/// Bytes of one instruction, which has at most fifteen.
struct Bytes {
    bytes: [u8; 24],
    len: usize,
}

impl Bytes {
    fn put(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn put_all<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
    }
}

/// The numbers of the registers in their places.
#[derive(Default)]
struct Fields {
    reg: u8,
    rm: u8,
    prefix: u8,
    opcode: u8,
    last: Option<u8>,
    memory: bool,
    sib: bool,
    base: u8,
    index: u8,
}

/// Appends a physical instruction. The answer says where its reference to the pool stands, if it has one, from the end of `code` before.
pub fn encode(code: &mut Vec<u8>, inst: &Inst) -> Result<Option<usize>> {
    let row = inst.op.row();
    let pick = pick(inst, row);
    let second = match row.has_imm32() {
        true => pick == 1,
        false => pick >= 2,
    };
    let wrong = || {
        err!(
            Internal,
            "an instruction does not encode: {:?} of width {:?}",
            inst.op,
            inst.width
        )
    };
    // A row that was added and whose forms were not written yet has none.
    let forms = FORMS.get(inst.op as usize).filter(|_| row.has_code(pick));
    let form = &forms.ok_or_else(wrong)?[usize::from(second)];
    let fields = fields(inst, row, form).ok_or_else(wrong)?;
    let mut out = Bytes {
        bytes: [0; 24],
        len: 0,
    };
    let length = match form.length {
        OWN => inst.width as u8,
        length => length,
    };
    match form.space {
        Space::None => return Err(wrong()),
        Space::Legacy => legacy(&mut out, inst, row, form, &fields),
        Space::Vex => vex(&mut out, form, &fields, length).ok_or_else(wrong)?,
        Space::Evex => evex(&mut out, inst, form, &fields, length),
    }
    out.put(form.opcode + (fields.opcode & 7));
    let addressed = form
        .places
        .iter()
        .any(|p| matches!(p, Place::Reg | Place::Rm | Place::Sib));
    let mut pool = None;
    if fields.memory {
        let scale = match (inst.mem.broadcast, form.grows) {
            (true, _) => row.broadcast,
            (false, true) => form.scale << length,
            (false, false) => form.scale,
        };
        pool = memory(&mut out, &inst.mem, &fields, digit(form, &fields), scale);
    } else if addressed {
        out.put(0xc0 | digit(form, &fields) << 3 | fields.rm & 7);
    } else if form.extra != NOTHING {
        out.put(form.extra);
    }
    if let Some(last) = fields.last {
        out.put(last << 4);
    }
    for (slot, arg) in row.slots.iter().zip(inst.args) {
        if arg == Arg::Imm {
            match slot.kind {
                Kind::Imm8 => out.put(inst.imm as u8),
                Kind::Imm32 if second => out.put(inst.imm as u8),
                Kind::Imm32 | Kind::ImmU32 => out.put_all((inst.imm as u32).to_le_bytes()),
                Kind::Imm64 => out.put_all(inst.imm.to_le_bytes()),
                Kind::Vec { .. } | Kind::Mask { .. } | Kind::Gpr { .. } => return Err(wrong()),
                Kind::Mem | Kind::VecIndexed(_) | Kind::Tile => return Err(wrong()),
            }
        }
    }
    code.extend_from_slice(&out.bytes[..out.len]);
    Ok(pool)
}

/// What stands in place of a register operand, or its number.
fn digit(form: &Form, fields: &Fields) -> u8 {
    match form.extra {
        digit @ 0..8 => digit,
        _ => fields.reg & 7,
    }
}

/// `None` where an operand has no such place.
fn fields(inst: &Inst, row: &Row, form: &Form) -> Option<Fields> {
    let mut f = Fields::default();
    for (i, slot) in row.slots.iter().enumerate() {
        let place = form.places[i];
        let number = match inst.args[i] {
            Arg::Reg(_) if matches!(slot.kind, Kind::Mem | Kind::VecIndexed(_)) => return None,
            Arg::Reg(r) => r.number() as u8,
            Arg::Tile(t) => t,
            Arg::Mem if slot.takes_mem() && matches!(place, Place::Rm | Place::Sib) => {
                f.memory = true;
                f.sib = place == Place::Sib;
                continue;
            }
            Arg::Imm if place == Place::Immediate => continue,
            Arg::Mem | Arg::Imm | Arg::None => return None,
        };
        match place {
            Place::Reg => f.reg = number,
            Place::Rm => f.rm = number,
            Place::Prefix => f.prefix = number,
            Place::Opcode => f.opcode = number,
            Place::Last => f.last = Some(number),
            Place::None | Place::Sib | Place::Immediate => return None,
        }
    }
    if f.memory {
        f.base = match inst.mem.base {
            Base::Reg(r) => r.number() as u8,
            Base::Stack(_) => super::RSP,
            Base::None | Base::Pool(_) => 0,
        };
        if !inst.mem.index.is_none() {
            f.index = inst.mem.index.number() as u8;
        }
    }
    Some(f)
}

impl Fields {
    /// The fourth bits of the register, the index, and the base or what stands in its place.
    fn high(&self) -> [u8; 3] {
        let base = match self.memory {
            true => self.base,
            false => self.rm | self.opcode,
        };
        [self.reg >> 3 & 1, self.index >> 3 & 1, base >> 3 & 1]
    }
}

fn legacy(out: &mut Bytes, inst: &Inst, row: &Row, form: &Form, fields: &Fields) {
    if form.prefix == 1 {
        out.put(0x66);
    }
    let [r, x, b] = fields.high();
    let rex = u8::from(form.wide) << 3 | r << 2 | x << 1 | b;
    // Without the prefix the second four registers of one byte are the upper halves of the first.
    let narrow = row.slots.iter().zip(inst.args).any(|(slot, arg)| {
        matches!(slot.kind, Kind::Gpr { bytes: 1, .. })
            && matches!(arg, Arg::Reg(r) if (4..8).contains(&r.number()))
    });
    if rex != 0 || narrow {
        out.put(0x40 | rex);
    }
    match form.map {
        0 => {}
        1 => out.put(0x0f),
        2 => out.put_all([0x0f, 0x38]),
        _ => out.put_all([0x0f, 0x3a]),
    }
}

/// `None` where a register is one of the upper sixteen.
fn vex(out: &mut Bytes, form: &Form, f: &Fields, length: u8) -> Option<()> {
    if (f.reg | f.rm | f.prefix | f.index | f.last.unwrap_or(0)) & 16 != 0 {
        return None;
    }
    let [r, x, b] = f.high();
    let wide = u8::from(form.wide);
    let tail = !f.prefix << 3 & 0x78 | length << 2 | form.prefix;
    if form.map == 1 && wide | x | b == 0 {
        out.put_all([0xc5, (r ^ 1) << 7 | tail]);
    } else {
        let first = (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | form.map;
        out.put_all([0xc4, first, wide << 7 | tail]);
    }
    Some(())
}

fn evex(out: &mut Bytes, inst: &Inst, form: &Form, f: &Fields, length: u8) {
    let [r, mut x, b] = f.high();
    let mut v = f.prefix >> 4;
    let vector_index =
        f.memory && !inst.mem.index.is_none() && inst.mem.index.class() == Class::Vec;
    if vector_index {
        v = f.index >> 4;
    } else if !f.memory {
        x = f.rm >> 4 & 1;
    }
    let reg = f.reg >> 4 & 1;
    let mask = match inst.mask.is_none() {
        true => 0,
        false => inst.mask.number() as u8,
    };
    out.put_all([
        0x62,
        (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (reg ^ 1) << 4 | form.map,
        u8::from(form.wide) << 7 | !f.prefix << 3 & 0x78 | 4 | form.prefix,
        u8::from(inst.zero) << 7
            | length << 5
            | u8::from(inst.mem.broadcast) << 4
            | (v & 1 ^ 1) << 3
            | mask,
    ]);
}

/// Addressing mode, index byte and the shortest displacement; where the displacement stands if it is one into the pool.
fn memory(out: &mut Bytes, mem: &Mem, f: &Fields, reg: u8, scale: u8) -> Option<usize> {
    const INDEXED: u8 = 4;
    const NO_BASE: u8 = 5;
    const NO_INDEX: u8 = 4;
    let disp = match mem.base {
        Base::Pool(_) => {
            out.put(reg << 3 | NO_BASE);
            let field = out.len;
            out.put_all([0; 4]);
            return Some(field);
        }
        Base::Stack(offset) => mem.disp + offset as i32,
        Base::None | Base::Reg(_) => mem.disp,
    };
    let scale = i32::from(scale);
    let short = i8::try_from(disp / scale)
        .ok()
        .filter(|_| disp % scale == 0);
    let (mode, base) = match (mem.base, short) {
        (Base::None | Base::Pool(_), _) => (0, NO_BASE),
        (Base::Reg(_) | Base::Stack(_), Some(0)) if f.base & 7 != NO_BASE => (0, f.base & 7),
        (Base::Reg(_) | Base::Stack(_), Some(_)) => (1, f.base & 7),
        (Base::Reg(_) | Base::Stack(_), None) => (2, f.base & 7),
    };
    let bare = mem.index.is_none();
    if bare && base != INDEXED && mem.base != Base::None && !f.sib {
        out.put(mode << 6 | reg << 3 | base);
    } else {
        let index = if bare { NO_INDEX } else { f.index & 7 };
        let times = if bare {
            0
        } else {
            mem.scale.trailing_zeros() as u8
        };
        out.put(mode << 6 | reg << 3 | INDEXED);
        out.put(times << 6 | index << 3 | base);
    }
    match (mode, short) {
        (1, Some(disp)) => out.put(disp as u8),
        (0, _) if mem.base != Base::None => {}
        _ => out.put_all(disp.to_le_bytes()),
    }
    None
}
