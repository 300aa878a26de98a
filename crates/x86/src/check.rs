//! An allocation verified by other means than those that made it.
//!
//! Liveness comes from backward dataflow over the control-flow graph, not from intervals: at every definition, no other
//! live value may share the location that is written. Tests run this on random programs.

use crate::mir::{Func, Item, Reg, Role};
use crate::regalloc::{Allocation, Loc};

/// The first conflict found, in words; `None` where the allocation is right.
pub fn conflict(func: &Func, items: &[Item], allocation: &Allocation) -> Option<String> {
    let live_out = liveness(func, items);
    for (i, item) in items.iter().enumerate() {
        let mut problem = None;
        for_each(item, |reg, role| {
            let loc = allocation.locs[reg.number()];
            if loc == Loc::Unused {
                problem = Some(format!("item {i}: {reg:?} has no place"));
            }
            if role == Role::Use || matches!(loc, Loc::Pool(_) | Loc::Unused) {
                return;
            }
            for (other, live) in live_out[i].iter().enumerate() {
                if other == reg.number() || !live || allocation.locs[other] != loc {
                    continue;
                }
                let other_class = class_of(items, other);
                if matches!(loc, Loc::Stack(_)) || other_class == Some(reg.class()) {
                    problem = Some(format!(
                        "item {i}: {reg:?} overwrites live value {other} in {loc:?}"
                    ));
                }
            }
        });
        if problem.is_some() {
            return problem;
        }
    }
    None
}

fn class_of(items: &[Item], number: usize) -> Option<crate::mir::Class> {
    let mut class = None;
    for item in items {
        for_each(item, |r, _| {
            if r.number() == number {
                class = Some(r.class());
            }
        });
        if class.is_some() {
            break;
        }
    }
    class
}

fn for_each(item: &Item, mut f: impl FnMut(Reg, Role)) {
    match item {
        Item::Inst(inst) => inst.for_each_reg(|r, role| {
            if r.is_virt() {
                f(r, role);
            }
        }),
        Item::Copy(_, to, from) => {
            f(*from, Role::Use);
            f(*to, Role::Def);
        }
        Item::Entry(args) => args.iter().for_each(|r| f(*r, Role::Def)),
        Item::Bind(_) | Item::Align | Item::Jump(..) => {}
    }
}

/// For every item the registers live after it, by iteration to a fixed point.
fn liveness(func: &Func, items: &[Item]) -> Vec<Vec<bool>> {
    let n = func.regs as usize;
    let mut target = vec![usize::MAX; func.labels as usize];
    for (i, item) in items.iter().enumerate() {
        if let Item::Bind(l) = item {
            target[l.0 as usize] = i;
        }
    }
    let mut live_in = vec![vec![false; n]; items.len() + 1];
    let mut live_out = vec![vec![false; n]; items.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for i in (0..items.len()).rev() {
            let mut out = vec![false; n];
            let mut join = |from: &Vec<bool>| out.iter_mut().zip(from).for_each(|(o, f)| *o |= f);
            match items[i] {
                Item::Jump(crate::mir::Cond::Always, l) => join(&live_in[target[l.0 as usize]]),
                Item::Jump(_, l) => {
                    join(&live_in[i + 1]);
                    join(&live_in[target[l.0 as usize]]);
                }
                Item::Inst(_) | Item::Copy(..) | Item::Bind(_) | Item::Align | Item::Entry(_) => {
                    join(&live_in[i + 1])
                }
            }
            let mut inn = out.clone();
            for_each(&items[i], |r, role| {
                if role == Role::Def {
                    inn[r.number()] = false;
                }
            });
            for_each(&items[i], |r, role| {
                if role != Role::Def {
                    inn[r.number()] = true;
                }
            });
            if inn != live_in[i] || out != live_out[i] {
                live_in[i] = inn;
                live_out[i] = out;
                changed = true;
            }
        }
    }
    live_out
}
