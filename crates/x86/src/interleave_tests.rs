//! A body means the same before and after it is put in another order: both are executed, every instruction as a function of its operands.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;

use crate::interleave::interleave;
use crate::level::Level;
use crate::mir::{A, Arg, Base, Cond, Func, Inst, Item, Mem, Op, Reg, Role, Width};

/// What registers and memory hold, as the history of each value.
#[derive(Debug, Default, PartialEq)]
struct State {
    registers: BTreeMap<usize, u64>,
    memory: BTreeMap<(usize, i32), u64>,
}

fn place(mem: &Mem) -> (usize, i32) {
    match mem.base {
        Base::Reg(r) => (r.number(), mem.disp),
        Base::None | Base::Pool(_) | Base::Stack(_) => (usize::MAX, mem.disp),
    }
}

fn step(state: &mut State, inst: &Inst) {
    let mut hash = DefaultHasher::new();
    (inst.op as u16, inst.imm).hash(&mut hash);
    if !inst.mask.is_none() {
        state.registers.get(&inst.mask.number()).hash(&mut hash);
    }
    let mut results = Vec::new();
    for (i, arg) in inst.args.iter().enumerate() {
        match arg {
            Arg::Reg(r) => {
                let role = inst.role(i);
                if role != Role::Def {
                    state.registers.get(&r.number()).hash(&mut hash);
                }
                if role != Role::Use {
                    results.push(r.number());
                }
            }
            Arg::Mem if i > 0 => state.memory.get(&place(&inst.mem)).hash(&mut hash),
            Arg::Mem | Arg::None | Arg::Imm | Arg::Tile(_) => {}
        }
    }
    let value = hash.finish();
    if inst.args[0] == Arg::Mem {
        state.memory.insert(place(&inst.mem), value);
    }
    for r in results {
        state.registers.insert(r, value);
    }
}

fn run(items: &[Item]) -> State {
    let mut state = State::default();
    for item in items {
        match item {
            Item::Inst(inst) => step(&mut state, inst),
            Item::Copy(_, to, from) => {
                if let Some(&v) = state.registers.get(&from.number()) {
                    state.registers.insert(to.number(), v);
                }
            }
            Item::Bind(_) | Item::Align | Item::Jump(..) | Item::Entry(_) => {}
        }
    }
    state
}

/// A loop whose body is made of numbers: each chooses an instruction and its operands among a few registers and places.
fn body(choices: &[(u8, u8, u8, u8)], temporaries: usize) -> Func {
    let mut f = Func::default();
    let bases = [f.args[0], f.args[1]];
    let registers: Vec<Reg> = (0..temporaries).map(|_| f.vec()).collect();
    let mask = f.mask();
    for &r in &registers {
        f.inst(Op::VZero, Width::Z, &[r.into()]);
    }
    f.inst(
        Op::KXnorW,
        Width::X,
        &[mask.into(), mask.into(), mask.into()],
    );
    let head = f.label();
    f.push(Item::Align);
    f.bind(head);
    for &(what, a, b, c) in choices {
        let reg = |n: u8| A::R(registers[n as usize % registers.len()]);
        let mem = Mem::at(bases[usize::from(b) % 2], i32::from(c % 4) * 64);
        match what % 6 {
            0 => f.inst(Op::VMovUps, Width::Z, &[reg(a), mem.into()]),
            1 => f.inst(Op::VMovUpsS, Width::Z, &[mem.into(), reg(a)]),
            2 => f.inst(Op::FmaddPs, Width::Z, &[reg(a), reg(b), reg(c), reg(a)]),
            3 => f.inst(
                Op::VCmpPsK,
                Width::Z,
                &[mask.into(), reg(a), reg(b), A::I(1)],
            ),
            4 => f.push(Item::Inst(
                Inst::new(Op::VAddPs, Width::Z, &[reg(a), reg(b), reg(c)]).masked(mask, false),
            )),
            _ => f.inst(Op::VDivPs, Width::Z, &[reg(a), reg(b), reg(c)]),
        }
    }
    f.inst(Op::AddI, Width::X, &[bases[0].into(), A::I(256)]);
    f.jump(Cond::L, head);
    f
}

proptest! {
    #[test]
    fn order_keeps_the_meaning(
        choices in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 24..120),
        temporaries in 2usize..24,
    ) {
        let f = body(&choices, temporaries);
        let before = f.items();
        let mut after = before.clone();
        interleave(&f, &mut after, Level::AVX512);
        prop_assert_eq!(run(&before), run(&after));
    }
}

/// Four chains that stand one after the other are woven, each in its own order, and nothing is lost.
#[test]
fn chains_go_side_by_side() {
    let mut f = Func::default();
    let (base, one) = (f.args[0], f.vec());
    f.inst(Op::VZero, Width::Z, &[one.into()]);
    let head = f.label();
    f.push(Item::Align);
    f.bind(head);
    for copy in 0..4 {
        let mem = Mem::at(base, 64 * copy);
        let mut x = f.vec();
        f.inst(Op::VMovUps, Width::Z, &[x.into(), mem.into()]);
        for _ in 0..10 {
            let y = f.vec();
            f.inst(Op::VMulPs, Width::Z, &[y.into(), x.into(), one.into()]);
            x = y;
        }
        f.inst(Op::VMovUpsS, Width::Z, &[mem.into(), x.into()]);
    }
    f.inst(Op::AddI, Width::X, &[base.into(), A::I(256)]);
    f.jump(Cond::L, head);
    let before = f.items();
    let mut after = before.clone();
    interleave(&f, &mut after, Level::AVX512);
    assert_eq!(run(&before), run(&after));
    let loads = |items: &[Item]| {
        let is_load = |i: &Item| matches!(i, Item::Inst(inst) if inst.op == Op::VMovUps);
        items.iter().rposition(is_load)
    };
    assert!(loads(&after) < loads(&before), "{after:?}");
    let mut same = before.clone();
    interleave(&f, &mut same, Level::AVX2);
    assert_eq!(same, before);
}
