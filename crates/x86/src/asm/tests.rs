//! Every row of the table encoded, decoded again by iced's decoder, and printed beside a golden text.

use super::*;
use crate::mir::{A, Role};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

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
    let entry = asm.function(&items, 2).expect("encodes");
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
