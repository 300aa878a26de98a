//! Every row of the table encoded, decoded again by iced's decoder, and printed beside a golden text.

use super::*;
use crate::mir::{A, Arg, Kind, Mem, Role};
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Formatter, Instruction, IntelFormatter};
use oracle::{forms_of, pick_code, spell, to_iced};

fn decode_one(bytes: &[u8]) -> Instruction {
    Decoder::new(64, bytes, DecoderOptions::NONE).decode()
}

pub fn text(inst: &Instruction) -> String {
    let mut out = String::new();
    let mut formatter = IntelFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    formatter.format(inst, &mut out);
    out
}

/// Operands for a row; memory in the slot `mem`, `high` for registers above fifteen.
fn operands(op: Op, mem: Option<usize>, high: bool) -> Vec<A> {
    let row = op.row();
    let base = if high { 17 } else { 1 };
    let place = |index: Reg| Mem::indexed(Reg::phys(Class::Gpr, 8), index, 4, 0x40);
    row.slots
        .iter()
        .enumerate()
        .map(|(i, slot)| match slot.kind {
            Kind::VecIndexed(_) => A::M(place(Reg::phys(Class::Vec, base + 5))),
            Kind::Mem => A::M(place(Reg::phys(Class::Gpr, 9))),
            _ if mem == Some(i) => A::M(place(Reg::phys(Class::Gpr, 9))),
            Kind::Vec { .. } => A::R(Reg::phys(Class::Vec, base + i as u8)),
            Kind::Mask { .. } => A::R(Reg::phys(Class::Mask, 1 + i as u8)),
            Kind::Gpr { .. } => A::R(Reg::phys(Class::Gpr, 10 + i as u8)),
            Kind::Imm8 => A::I(5),
            Kind::Imm32 => A::I(if high { 0x12345 } else { 5 }),
            Kind::ImmU32 | Kind::Imm64 => A::I(0x1234_5678),
            Kind::Tile => A::T(i as u8),
        })
        .collect()
}

fn variants(op: Op) -> Vec<Inst> {
    let row = op.row();
    let mut out = Vec::new();
    for width in [Width::X, Width::Y, Width::Z] {
        let mems: Vec<Option<usize>> = std::iter::once(None)
            .chain(
                row.slots
                    .iter()
                    .enumerate()
                    .filter(|(_, s)| {
                        s.takes_mem() && !matches!(s.kind, Kind::Mem | Kind::VecIndexed(_))
                    })
                    .map(|(i, _)| Some(i)),
            )
            .collect();
        for mem in mems {
            for high in [false, true] {
                let mut inst = Inst::new(op, width, &operands(op, mem, high));
                let sparse = row
                    .slots
                    .iter()
                    .any(|s| matches!(s.kind, Kind::VecIndexed(_)));
                if sparse && (high || row.codes[0] == Code::INVALID) {
                    inst = inst.masked(Reg::phys(Class::Mask, 3), false);
                }
                if pick_code(&inst) != Code::INVALID {
                    out.push(inst);
                    if row.broadcast != 0 && mem.is_some() && high {
                        inst.mem.broadcast = true;
                        let zero = row.slots[0].role != Role::Mod
                            && !matches!(row.slots[0].kind, Kind::Mask { .. });
                        out.push(inst.masked(Reg::phys(Class::Mask, 2), zero));
                    }
                }
            }
        }
        if row.codes.iter().all(|c| *c == row.codes[0]) {
            break;
        }
    }
    out
}

#[test]
fn every_row_survives_the_decoder() {
    let mut golden = String::new();
    for &op in Op::ALL {
        for inst in variants(op) {
            let built = to_iced(&inst);
            let mut encoder = Encoder::new(64);
            let len = encoder
                .encode(&built, 0)
                .unwrap_or_else(|e| panic!("{op:?} {inst:?}: {e}"));
            let bytes = encoder.take_buffer();
            let back = decode_one(&bytes);
            assert_eq!(back.len(), len, "{op:?}");
            assert_eq!(back.code(), built.code(), "{op:?}");
            assert_eq!(text(&back), text(&built), "{op:?}");
            golden.push_str(&text(&back));
            golden.push('\n');
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/asm/encodings.golden");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &golden).expect("write golden text");
    }
    let expected = std::fs::read_to_string(path).expect("golden text; BLESS=1 writes it");
    assert!(
        golden == expected,
        "encodings differ from {path}; BLESS=1 rewrites it"
    );
}

/// The data of the forms, from what iced knows of the table's codes.
#[test]
fn forms_are_those_of_the_codes() {
    let mut text = String::from(
        "//! How each row of the instruction table is encoded; `BLESS=1` writes this file from the table's codes.\n\n\
         use super::form::Form;\n\n\
         /// For each row what its VEX codes share and what its EVEX codes do, or the forms with a long and a short immediate.\n\
         #[rustfmt::skip]\n\
         pub static FORMS: &[[Form; 2]] = &[\n",
    );
    for &op in Op::ALL {
        let [first, second] = forms_of(op).map(|form| spell(&form));
        text.push_str(&format!("    [{first}, {second}], // {op:?}\n"));
    }
    text.push_str("];\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/asm/forms.rs");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &text).expect("write the forms");
    }
    let written = std::fs::read_to_string(path).expect("the forms; BLESS=1 writes them");
    assert!(
        text == written,
        "{path} is not what the table's codes say; BLESS=1 rewrites it"
    );
}

/// Bytes against iced's, for every row and all that an operand can be.
#[test]
fn bytes_are_those_of_another_encoder() {
    let r = |n: u8| Reg::phys(Class::Gpr, n);
    let v = |n: u8| Reg::phys(Class::Vec, n);
    let disps = [
        0, 1, 4, 8, 16, 64, 96, 127, 128, -128, -129, 1024, 4096, 8128, 8192, -8192, 123_456,
    ];
    let mut compared = 0;
    for &op in Op::ALL {
        let row = op.row();
        for shape in variants(op) {
            let mut all = vec![shape];
            // Every register in every slot.
            for i in 0..row.slots.len() {
                let Arg::Reg(reg) = shape.args[i] else {
                    continue;
                };
                let count = match reg.class() {
                    Class::Gpr => 16,
                    Class::Vec if pick_is_evex(&shape) => 32,
                    Class::Vec => 16,
                    Class::Mask => 8,
                };
                for n in 0..count {
                    let mut inst = shape;
                    inst.args[i] = Arg::Reg(Reg::phys(reg.class(), n));
                    all.push(inst);
                }
            }
            if shape.has_mem() {
                for base in 0..16 {
                    for disp in disps {
                        let mut inst = shape;
                        inst.mem.base = Base::Reg(r(base));
                        inst.mem.disp = disp;
                        all.push(inst);
                        if !row.sparse {
                            inst.mem.index = Reg::NONE;
                            all.push(inst);
                        }
                    }
                }
                for scale in [1, 2, 4, 8] {
                    for n in 0..if row.sparse { 16 } else { 4 } {
                        let mut inst = shape;
                        inst.mem.scale = scale;
                        inst.mem.index = if row.sparse { v(n) } else { r(n) };
                        all.push(inst);
                        if !row.sparse {
                            inst.mem.base = Base::None;
                            all.push(inst);
                        }
                        inst.mem.base = Base::Stack(128);
                        all.push(inst);
                    }
                }
                let mut inst = shape;
                let tiles = matches!(op, Op::TileLoadD | Op::TileLoadT1 | Op::TileStoreD);
                if !row.sparse && !tiles {
                    inst.mem = Mem {
                        broadcast: inst.mem.broadcast,
                        ..Mem::NONE
                    };
                    inst.mem.base = Base::Pool(64);
                    all.push(inst);
                }
            }
            for imm in [-1, 0, 127, 128, -128, -129, 0x7fff_ffff] {
                if shape.args.contains(&Arg::Imm) {
                    all.push(Inst { imm, ..shape });
                }
            }
            for inst in all {
                let mut theirs = Encoder::new(64);
                let built = to_iced(&inst);
                if theirs.encode(&built, 0).is_err() {
                    continue;
                }
                let mut expected = theirs.take_buffer();
                let mut bytes = Vec::new();
                let pool =
                    form::encode(&mut bytes, &inst).unwrap_or_else(|e| panic!("{inst:?}: {e}"));
                if let Some(field) = pool {
                    let displacement = theirs.get_constant_offsets().displacement_offset();
                    assert_eq!(field, displacement, "{inst:?}");
                    expected[field..field + 4].fill(0);
                }
                assert_eq!(bytes, expected, "{inst:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100_000, "only {compared} were compared");
}

fn pick_is_evex(inst: &Inst) -> bool {
    !matches!(form::pick(inst, inst.op.row()), 0 | 1)
}

#[test]
fn what_has_no_encoding_is_an_error() {
    let v = Reg::phys(Class::Vec, 1);
    let at = Mem::at(Reg::phys(Class::Gpr, 1), 0);
    let wrong = [
        // A pseudo instruction.
        Inst::new(Op::VZero, Width::X, &[v.into()]),
        // No 512-bit form.
        Inst::new(
            Op::VMovMskPs,
            Width::Z,
            &[Reg::phys(Class::Gpr, 1).into(), v.into()],
        ),
        // Memory where only a register can be.
        Inst::new(Op::VAddPs, Width::X, &[v.into(), at.into(), v.into()]),
        // A register where only memory can be.
        Inst::new(Op::VBroadcastSsM, Width::X, &[v.into(), v.into()]),
        // An immediate where a register or memory can be.
        Inst::new(Op::VAddPs, Width::X, &[v.into(), v.into(), A::I(1)]),
        // One of the upper sixteen registers in a form that cannot name it.
        Inst::new(
            Op::VMovMskPs,
            Width::X,
            &[
                Reg::phys(Class::Gpr, 1).into(),
                Reg::phys(Class::Vec, 17).into(),
            ],
        ),
    ];
    for inst in wrong {
        let mut code = Vec::new();
        assert!(form::encode(&mut code, &inst).is_err(), "{inst:?}");
        assert!(code.is_empty());
    }
}

#[test]
fn jumps_and_pool_references_reach_their_targets() {
    let mut pool = Pool::default();
    let at = pool.scalar(0x3f80_0000, 4);
    let r = |n| Reg::phys(Class::Gpr, n);
    let v = Reg::phys(Class::Vec, 3);
    let items = [
        Item::Jump(Cond::E, Label(1)),
        Item::Align,
        Item::Bind(Label(0)),
        Item::Inst(Inst::new(
            Op::VAddPs,
            Width::Z,
            &[v.into(), v.into(), Mem::pool(at).repeated().into()],
        )),
        Item::Inst(Inst::new(Op::SubI, Width::X, &[r(1).into(), A::I(1)])),
        Item::Jump(Cond::Ne, Label(0)),
        Item::Bind(Label(1)),
        Item::Inst(Inst::new(Op::Ret, Width::X, &[])),
    ];
    let mut asm = Assembler::default();
    let entry = asm.function(&[&items], 2).expect("encodes");
    let code = asm.finish(&pool);
    assert_eq!(entry, 0);
    let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
    let all: Vec<Instruction> = (&mut decoder)
        .into_iter()
        .take_while(|i| i.ip() < 64)
        .collect();
    let je = all[0];
    let add = all
        .iter()
        .find(|i| i.code() == Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er)
        .expect("vaddps");
    let jne = all
        .iter()
        .find(|i| i.code() == Code::Jne_rel8_64)
        .expect("short backward jump");
    let ret = all.iter().find(|i| i.code() == Code::Retnq).expect("ret");
    assert_eq!(je.near_branch64(), ret.ip());
    assert_eq!(jne.near_branch64(), add.ip());
    assert_eq!(add.ip() % 32, 0);
    let target = add.ip_rel_memory_address() as usize;
    assert_eq!(code[target..target + 4], 1.0f32.to_le_bytes());
}
