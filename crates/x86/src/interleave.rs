//! The order of instructions within a loop's body: vectors that do not wait for each other are computed side by side.
//!
//! Selection writes one vector of an unrolled loop after the other. A vector of an exponential function is a chain of some twenty instructions that wait four cycles each; the processor looks
//! ahead far enough to overlap a few of them, and stalls where the chains are longer. Here the body is put in the order in which its instructions can start: those with the longest way to the end
//! first, two a cycle.
//!
//! Only the order changes, so results stay the same to the bit. Reads of memory move before writes that stood before them, except where both may be the same place of one window: the loops of a nest
//! read an element before they write it, and the vectors of a step are different elements.
//!
//! Side by side needs registers. An instruction that wants one more than there are waits, unless it is the first of the list that is left; then a smaller part of the list is
//! looked at, and at last it stays as it is.

use crate::level::Level;
use crate::mir::{Arg, Base, Class, Func, Inst, Item, Mem, Op, Reg, Role};

/// Vector registers left to reloads, the most that one instruction needs.
const RELOADS: i32 = 3;
/// Shorter bodies overlap by themselves, longer ones cost too much time to look at.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=1200;
/// Cycles from the first to the last instruction of a chain from which on the processor does not look far enough ahead.
const LONG: u32 = 40;
/// Parts of the list that are tried as windows, in twelfths.
const WINDOWS: [usize; 5] = [12, 8, 6, 4, 2];
/// Registers of each class that only the first instruction that is left may take, so that it finds one.
const KEPT: [i32; 3] = [0, 5, 2];
/// More results that live through the loop are a product's, whose order is chosen already.
const SUMS: u32 = 16;
/// Instructions that begin in one cycle.
const STARTS: u32 = 2;

const NONE: u32 = u32::MAX;

/// Reorders the bodies of innermost loops.
pub fn interleave(func: &Func, items: &mut [Item], level: Level) {
    if !level.avx512 {
        return;
    }
    let mut occurrences = vec![0u32; func.regs as usize];
    for item in items.iter() {
        for_each_reg(item, |r, _| occurrences[r.number()] += 1);
    }
    let mut heads: Vec<Option<usize>> = vec![None; func.labels as usize];
    let mut bodies: Vec<(usize, usize)> = Vec::new();
    let mut innermost = 0;
    for (i, item) in items.iter().enumerate() {
        match item {
            // Loops over vectors are aligned; what other loops do in memory is their own affair.
            Item::Bind(l) if i > 0 && items[i - 1] == Item::Align => heads[l.0 as usize] = Some(i),
            Item::Bind(_) => {}
            Item::Jump(_, l) => {
                if let Some(head) = heads[l.0 as usize] {
                    if head >= innermost {
                        bodies.push((head + 1, i));
                    }
                    innermost = i;
                }
            }
            Item::Inst(_) | Item::Copy(..) | Item::Align | Item::Entry(_) => {}
        }
    }
    let mut numbers = vec![NONE; func.regs as usize];
    for (from, to) in bodies {
        let mut at = from;
        while at < to {
            let length = items[at..to].iter().take_while(|i| moves(i)).count();
            if LENGTHS.contains(&length) {
                reorder(
                    func,
                    &mut items[at..at + length],
                    &occurrences,
                    &mut numbers,
                );
            }
            at += length + 1;
        }
    }
}

/// Whether an item may change its place: work on vectors and masks that touches no flags and changes no general register.
fn moves(item: &Item) -> bool {
    match item {
        Item::Inst(inst) => {
            let vectors = |arg: &Arg| match arg {
                Arg::Reg(r) => r.class() != Class::Gpr,
                Arg::None | Arg::Mem | Arg::Imm => true,
                Arg::Tile(_) => false,
            };
            let touches = inst.args.iter().any(|a| matches!(a, Arg::Reg(_)));
            let flags = matches!(inst.op, Op::VUcomiSs | Op::VUcomiSd | Op::KOrTestW);
            (touches || asks(inst)) && !flags && inst.args.iter().all(vectors)
        }
        Item::Copy(_, to, _) => to.class() != Class::Gpr,
        Item::Bind(_) | Item::Align | Item::Jump(..) | Item::Entry(_) => false,
    }
}

fn asks(inst: &Inst) -> bool {
    matches!(
        inst.op,
        Op::PrefetchT0 | Op::PrefetchT1 | Op::PrefetchNta | Op::PrefetchW
    )
}

fn for_each_reg(item: &Item, mut f: impl FnMut(Reg, Role)) {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    No,
    Read(Mem),
    Write(Mem),
}

fn memory(item: &Item) -> Memory {
    match item {
        Item::Inst(inst) if inst.has_mem() && !asks(inst) => match inst.mem.base {
            Base::Pool(_) => Memory::No,
            _ if inst.args[0] == Arg::Mem => Memory::Write(inst.mem),
            Base::None | Base::Reg(_) | Base::Stack(_) => Memory::Read(inst.mem),
        },
        _ => Memory::No,
    }
}

/// Whether a read must stay behind a write: of one window they may be one place, unless both stand at known distances.
fn same_place(write: &Mem, read: &Mem) -> bool {
    const VECTOR: u32 = 64;
    let index = |m: &Mem| (m.index, m.scale);
    let plain = write.index.is_none() || write.index.class() == Class::Gpr;
    if !plain {
        return true;
    }
    if write.base != read.base {
        return false;
    }
    index(write) != index(read) || write.disp.abs_diff(read.disp) < VECTOR
}

/// Cycles until others can use the result.
fn latency(item: &Item) -> u32 {
    let Item::Inst(inst) = item else { return 0 };
    let own = match inst.op {
        Op::VDivPs | Op::VSqrtPs => 18,
        Op::VDivPd | Op::VSqrtPd => 24,
        _ => 4,
    };
    match memory(item) {
        Memory::Read(_) => own + 4,
        Memory::No | Memory::Write(_) => own,
    }
}

/// What waits for what.
struct Graph {
    /// Items that wait for each, and how long.
    after: Vec<Vec<(u32, u32)>>,
    waits: Vec<u32>,
    /// Cycles from the start of each to the end of all.
    height: Vec<u32>,
}

/// The registers of a list, numbered from 0, so that what is noted of them is as long as the list and not as the function.
struct Registers {
    regs: Vec<Reg>,
    /// Number and role of every register of every item, one item after the other.
    all: Vec<(u32, Role)>,
    /// Where the next item's begin.
    ends: Vec<u32>,
}

impl Registers {
    /// `numbers` is free for use, and left as it was.
    fn of(items: &[Item], numbers: &mut [u32]) -> Registers {
        let mut of = Registers {
            regs: Vec::new(),
            all: Vec::with_capacity(4 * items.len()),
            ends: Vec::with_capacity(items.len()),
        };
        for item in items {
            for_each_reg(item, |r, role| {
                let number = &mut numbers[r.number()];
                if *number == NONE {
                    *number = of.regs.len() as u32;
                    of.regs.push(r);
                }
                of.all.push((*number, role));
            });
            of.ends.push(of.all.len() as u32);
        }
        for r in &of.regs {
            numbers[r.number()] = NONE;
        }
        of
    }

    fn item(&self, i: usize) -> &[(u32, Role)] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.all[begin as usize..self.ends[i] as usize]
    }
}

fn graph(items: &[Item], registers: &Registers) -> Graph {
    let n = items.len();
    let mut g = Graph {
        after: vec![Vec::new(); n],
        waits: vec![0; n],
        height: vec![0; n],
    };
    let mut defined = vec![NONE; registers.regs.len()];
    let mut used: Vec<Vec<u32>> = vec![Vec::new(); registers.regs.len()];
    let mut reads: Vec<u32> = Vec::new();
    let mut writes: Vec<u32> = Vec::new();
    let mut before: Vec<(u32, u32)> = Vec::new();
    let times: Vec<u32> = items.iter().map(latency).collect();
    for (i, item) in items.iter().enumerate() {
        let me = i as u32;
        before.clear();
        for &(r, role) in registers.item(i) {
            let r = r as usize;
            if defined[r] != NONE {
                let wait = if role == Role::Def {
                    0
                } else {
                    times[defined[r] as usize]
                };
                before.push((defined[r], wait));
            }
            if role != Role::Use {
                before.extend(used[r].iter().map(|&u| (u, 0)));
            }
        }
        for &(r, role) in registers.item(i) {
            if role == Role::Use {
                used[r as usize].push(me);
            }
        }
        for &(r, role) in registers.item(i) {
            if role != Role::Use {
                defined[r as usize] = me;
                used[r as usize].clear();
            }
        }
        match memory(item) {
            Memory::No => {}
            Memory::Read(mem) => {
                let behind = |w: &&u32| match memory(&items[**w as usize]) {
                    Memory::Write(to) => same_place(&to, &mem),
                    Memory::No | Memory::Read(_) => false,
                };
                before.extend(writes.iter().filter(behind).map(|&w| (w, 5)));
                reads.push(me);
            }
            Memory::Write(_) => {
                before.extend(reads.iter().map(|&r| (r, 0)));
                before.extend(writes.last().map(|&w| (w, 0)));
                writes.push(me);
            }
        }
        before.retain(|&(b, _)| b != me);
        before.sort_unstable_by_key(|&(b, wait)| (b, std::cmp::Reverse(wait)));
        before.dedup_by_key(|(b, _)| *b);
        g.waits[i] = before.len() as u32;
        for &(b, wait) in &before {
            g.after[b as usize].push((me, wait));
        }
    }
    for i in (0..n).rev() {
        let longest = g.after[i].iter();
        let longest = longest.map(|&(a, wait)| wait + g.height[a as usize]).max();
        g.height[i] = longest.unwrap_or(times[i]);
    }
    g
}

/// The values of a list while its items are taken: which hold a register, and how many of each class do.
#[derive(Clone)]
struct Alive<'a> {
    /// Registers of each item that occur nowhere else, with their class and how often.
    own: &'a [Vec<(u32, Class, u32)>],
    left: Vec<u32>,
    begun: Vec<bool>,
    count: [i32; 3],
}

impl<'a> Alive<'a> {
    fn new(own: &'a [Vec<(u32, Class, u32)>], regs: usize) -> Alive<'a> {
        let mut left = vec![0; regs];
        for &(r, _, times) in own.iter().flatten() {
            left[r as usize] += times;
        }
        Alive {
            own,
            left,
            begun: vec![false; regs],
            count: [0; 3],
        }
    }

    /// By how much an item changes the number of registers in use. A result may take the place of an operand that ends.
    fn change(&self, item: u32) -> [i32; 3] {
        let mut change = [0; 3];
        for &(r, class, times) in &self.own[item as usize] {
            let begins = !self.begun[r as usize];
            let ends = self.left[r as usize] == times;
            change[class as usize] += i32::from(begins) - i32::from(ends);
        }
        change
    }

    fn take(&mut self, item: u32) {
        let change = self.change(item);
        for (all, one) in self.count.iter_mut().zip(change) {
            *all += one;
        }
        for &(r, _, times) in &self.own[item as usize] {
            self.begun[r as usize] = true;
            self.left[r as usize] -= times;
        }
    }

    fn fits(&self, item: u32, room: [i32; 3]) -> bool {
        let change = self.change(item);
        (1..3).all(|class| change[class] <= 0 || self.count[class] + change[class] <= room[class])
    }
}

/// The order in which items start, where only those less than `window` behind the first that has not started are looked at, and those that want a register only where there is one. `None` where that
/// first item had to be taken without a register for it.
fn order(
    items: &[Item],
    g: &Graph,
    mut alive: Alive<'_>,
    room: [i32; 3],
    window: usize,
) -> Option<Vec<u32>> {
    let n = items.len();
    let mut waits = g.waits.clone();
    let mut from = vec![0u32; n];
    let mut open: Vec<u32> = (0..n as u32).filter(|&i| waits[i as usize] == 0).collect();
    let mut started = vec![false; n];
    let mut first = 0;
    let mut out = Vec::with_capacity(n);
    let (mut now, mut starts) = (0u32, 0u32);
    let others = std::array::from_fn(|class| room[class] - KEPT[class]);
    while out.len() < n {
        while first < n && started[first] {
            first += 1;
        }
        let may = |i: u32| {
            i as usize == first || ((i as usize) < first + window && alive.fits(i, others))
        };
        // Of the highest the first; whether it may start is asked last, since that takes longest.
        let mut best: Option<(usize, u32)> = None;
        for (at, &i) in open.iter().enumerate() {
            let higher = best.is_none_or(|(_, b)| {
                let key = |i: u32| (g.height[i as usize], std::cmp::Reverse(i));
                key(i) > key(b)
            });
            if higher && from[i as usize] <= now && may(i) {
                best = Some((at, i));
            }
        }
        let Some((at, i)) = best else {
            let next = open.iter().filter(|&&i| may(i)).map(|&i| from[i as usize]);
            now = next.min().unwrap_or(now).max(now + 1);
            starts = 0;
            continue;
        };
        if !alive.fits(i, room) {
            return None;
        }
        open.swap_remove(at);
        started[i as usize] = true;
        alive.take(i);
        out.push(i);
        for &(a, wait) in &g.after[i as usize] {
            let a = a as usize;
            from[a] = from[a].max(now + wait);
            waits[a] -= 1;
            if waits[a] == 0 {
                open.push(a as u32);
            }
        }
        let computes = matches!(&items[i as usize], Item::Inst(inst) if inst.args[0] != Arg::Mem);
        starts += u32::from(computes);
        if starts == STARTS {
            now += 1;
            starts = 0;
        }
    }
    Some(out)
}

fn reorder(func: &Func, items: &mut [Item], occurrences: &[u32], numbers: &mut [u32]) {
    let registers = Registers::of(items, numbers);
    let g = graph(items, &registers);
    let longest = g.height.iter().max().copied().unwrap_or(0);
    if longest < LONG || longest * STARTS * 2 <= items.len() as u32 {
        return;
    }
    let regs = registers.regs.len();
    let mut inside = vec![0u32; regs];
    for &(r, _) in &registers.all {
        inside[r as usize] += 1;
    }
    let mut room = [0, 32 - RELOADS, 7];
    let mut own: Vec<Vec<(u32, Class, u32)>> = vec![Vec::new(); items.len()];
    let mut seen = vec![false; regs];
    let mut sums = 0;
    for (i, own) in own.iter_mut().enumerate() {
        for &(n, role) in registers.item(i) {
            let r = registers.regs[n as usize];
            let outside = inside[n as usize] != occurrences[r.number()];
            if !outside {
                match own.iter_mut().find(|o| o.0 == n) {
                    Some(o) => o.2 += 1,
                    None => own.push((n, r.class(), 1)),
                }
            } else if !std::mem::replace(&mut seen[n as usize], true)
                && !func.remat.contains_key(&r.number())
            {
                // What lives through the loop; constants can be read from memory at each use.
                room[r.class() as usize] -= 1;
            }
            sums += u32::from(outside && role != Role::Use);
        }
    }
    if sums > SUMS {
        return;
    }
    let alive = Alive::new(&own, regs);
    for twelfths in WINDOWS {
        let window = items.len() * twelfths / 12;
        if let Some(order) = order(items, &g, alive.clone(), room, window) {
            let before = items.to_vec();
            for (item, from) in items.iter_mut().zip(order) {
                *item = before[from as usize];
            }
            return;
        }
    }
}
