//! Linear-scan register allocation over one interval a register.
//!
//! An interval reaches from the first to the last occurrence in list order, and to the end of every loop that the register
//! lives into. When a class runs out of registers, the interval with the least use for its length (uses count eight times
//! more per loop level; a constant that the pool can give again counts half) lives in memory for its whole life. The scan
//! is then repeated with as many registers of that class kept back as an instruction needs for reloads at once, so that a
//! function without spills pays nothing for the possibility, and one whose constants come out of the pool pays one.

use crate::level::Level;
use crate::mir::{Class, Func, Item, Op, Reg, Remat, Role};
use crate::rewrite::reloads_at_once;

pub const RAX: u8 = 0;
pub const RDX: u8 = 2;
pub const RSP: u8 = 4;
pub const RBP: u8 = 5;
/// rdi, rsi, rdx, rcx: where the launch contract puts its arguments.
pub const ARGUMENTS: [u8; 4] = [7, 6, RDX, 1];
/// rbx, rbp, r12 to r15.
pub const CALLEE_SAVED: [u8; 6] = [3, RBP, 12, 13, 14, 15];

/// General registers in the order they are handed out: those the caller does not want back first.
const GPR_ORDER: [u8; 15] = [RAX, 1, RDX, 6, 7, 8, 9, 10, 11, 3, 12, 13, 14, 15, RBP];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loc {
    /// Never occurs.
    Unused,
    Reg(u8),
    /// Byte offset in the frame.
    Stack(u32),
    Pool(Remat),
}

#[derive(Debug)]
pub struct Allocation {
    pub locs: Vec<Loc>,
    pub frame_bytes: u32,
    /// Reload registers of each class, empty where nothing of it needs one.
    pub scratch: [Vec<u8>; 3],
    pub spilled: u32,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    start: u32,
    end: u32,
    weight: f32,
    reg: Reg,
    hints: [Reg; 3],
    fixed: Option<u8>,
}

/// Loops of a function by item index, from its backward jumps: for every item the innermost loop, for every loop its
/// parent and bounds.
#[derive(Debug)]
struct Loops {
    of_item: Vec<u32>,
    bounds: Vec<(u32, u32)>,
    parent: Vec<u32>,
}

const NO_LOOP: u32 = u32::MAX;

fn find_loops(items: &[Item], labels: u32) -> Loops {
    let mut bound = vec![u32::MAX; labels as usize];
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Bind(l) => bound[l.0 as usize] = i as u32,
            Item::Jump(_, l) if bound[l.0 as usize] != u32::MAX => {
                spans.push((bound[l.0 as usize], i as u32))
            }
            Item::Jump(..) | Item::Inst(_) | Item::Copy(..) | Item::Align | Item::Entry(_) => {}
        }
    }
    // Outer loops first: a loop's parent is then the nearest open one on a stack.
    spans.sort_by_key(|&(s, e)| (s, std::cmp::Reverse(e)));
    let mut loops = Loops {
        of_item: vec![NO_LOOP; items.len()],
        bounds: spans.clone(),
        parent: vec![NO_LOOP; spans.len()],
    };
    let mut stack: Vec<u32> = Vec::new();
    for (n, &(s, _)) in spans.iter().enumerate() {
        while let Some(&top) = stack.last()
            && spans[top as usize].1 < s
        {
            stack.pop();
        }
        loops.parent[n] = stack.last().copied().unwrap_or(NO_LOOP);
        stack.push(n as u32);
    }
    let mut next = 0;
    let mut current = NO_LOOP;
    for i in 0..items.len() as u32 {
        while next < spans.len() && spans[next].0 == i {
            current = next as u32;
            next += 1;
        }
        loops.of_item[i as usize] = current;
        while current != NO_LOOP && spans[current as usize].1 == i {
            current = loops.parent[current as usize];
        }
    }
    loops
}

/// Uses stand at even positions and definitions at odd ones, so that a value that dies at an instruction can give its
/// register to that instruction's result.
fn intervals(func: &Func, items: &[Item]) -> Vec<Interval> {
    let loops = find_loops(items, func.labels);
    let depth_weight = |mut l: u32| {
        let mut w = 1.0f32;
        while l != NO_LOOP {
            w *= 8.0;
            l = loops.parent[l as usize];
        }
        w
    };
    let weights: Vec<f32> = (0..loops.bounds.len())
        .map(|l| depth_weight(l as u32))
        .collect();
    let none = Interval {
        start: u32::MAX,
        end: 0,
        weight: 0.0,
        reg: Reg::NONE,
        hints: [Reg::NONE; 3],
        fixed: None,
    };
    let mut out = vec![none; func.regs as usize];
    let mut touch = |i: usize, reg: Reg, role: Role| {
        let iv = &mut out[reg.number()];
        let (first, last) = match role {
            Role::Use => (2 * i as u32, 2 * i as u32),
            Role::Def => (2 * i as u32 + 1, 2 * i as u32 + 1),
            Role::Mod => (2 * i as u32, 2 * i as u32 + 1),
        };
        iv.reg = reg;
        iv.start = iv.start.min(first);
        iv.end = iv.end.max(last);
        let mut l = loops.of_item[i];
        iv.weight += if l == NO_LOOP {
            1.0
        } else {
            weights[l as usize]
        };
        while l != NO_LOOP {
            let (s, e) = loops.bounds[l as usize];
            if iv.start < 2 * s {
                iv.end = iv.end.max(2 * e + 1);
            }
            l = loops.parent[l as usize];
        }
    };
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Inst(inst) => inst.for_each_reg(|r, role| {
                if r.is_virt() {
                    touch(i, r, role);
                }
            }),
            Item::Copy(_, to, from) => {
                touch(i, *from, Role::Use);
                touch(i, *to, Role::Def);
            }
            Item::Entry(args) => args.iter().for_each(|r| touch(i, *r, Role::Def)),
            Item::Bind(_) | Item::Align | Item::Jump(..) => {}
        }
    }
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Copy(_, to, from) if out[to.number()].start == 2 * i as u32 + 1 => {
                out[to.number()].hints[0] = *from
            }
            Item::Inst(inst) if is_fma(inst.op) => {
                let regs = inst.args.map(|a| {
                    if let crate::mir::Arg::Reg(r) = a {
                        r
                    } else {
                        Reg::NONE
                    }
                });
                // The addend first: an accumulation in place needs no move whichever source is memory.
                out[regs[0].number()].hints = [regs[3], regs[1], regs[2]];
            }
            Item::Entry(args) => {
                for (r, p) in args.iter().zip(ARGUMENTS) {
                    out[r.number()].fixed = Some(p);
                }
            }
            Item::Inst(_) | Item::Copy(..) | Item::Bind(_) | Item::Align | Item::Jump(..) => {}
        }
    }
    for iv in &mut out {
        if func.remat.contains_key(&(iv.reg.number())) && !iv.reg.is_none() {
            iv.weight *= 0.5;
        }
        iv.weight /= (iv.end.saturating_sub(iv.start) + 4) as f32;
    }
    out
}

pub fn is_fma(op: Op) -> bool {
    matches!(
        op,
        Op::FmaddPs | Op::FnmaddPs | Op::FmsubPs | Op::FmaddPd | Op::FnmaddPd | Op::FmsubPd
    )
}

fn uses_div(items: &[Item]) -> bool {
    items.iter().any(
        |i| matches!(i, Item::Inst(inst) if matches!(inst.op, Op::DivS | Op::RemS | Op::DivU | Op::RemU)),
    )
}

/// Register files: what each class may hand out, as bit sets.
fn files(level: Level, div: bool, framed: bool, kept: [usize; 3]) -> ([u32; 3], [Vec<u8>; 3]) {
    let mut gpr: u32 = GPR_ORDER.iter().map(|&r| 1 << r).sum();
    if div {
        gpr &= !(1 << RAX | 1 << RDX);
    }
    if framed {
        gpr &= !(1 << RBP);
    }
    let vec = if level.avx512 { u32::MAX } else { 0xffff };
    let mask = 0xfe;
    let mut files = [gpr, vec, mask];
    let mut scratch: [Vec<u8>; 3] = Default::default();
    for class in 0..3 {
        for _ in 0..kept[class] {
            let top = 31 - files[class].leading_zeros() as u8;
            files[class] &= !(1 << top);
            scratch[class].push(top);
        }
    }
    (files, scratch)
}

pub fn allocate(func: &Func, items: &[Item], level: Level) -> Allocation {
    let intervals = intervals(func, items);
    let positions = 2 * items.len();
    let order = by_position(&intervals, positions, |iv| iv.start);
    let ends = by_position(&intervals, positions, |iv| iv.end);
    let div = uses_div(items);
    let (mut framed, mut kept) = (false, [0; 3]);
    // Each round keeps more than the one before, and no instruction has more than a handful of operands.
    loop {
        let (files, scratch) = files(level, div, framed, kept);
        let mut locs = scan(&intervals, &order, &ends, files);
        for &n in &order {
            if let (Loc::Stack(_), Some(remat)) = (locs[n as usize], func.remat.get(&(n as usize)))
            {
                locs[n as usize] = Loc::Pool(*remat);
            }
        }
        let needed = reloads_at_once(items, &locs, level);
        let spills = locs.iter().any(|loc| matches!(loc, Loc::Stack(_)));
        if spills <= framed && (0..3).all(|class| needed[class] <= kept[class]) {
            return place(&intervals, &order, locs, scratch, level);
        }
        framed |= spills;
        kept = std::array::from_fn(|class| kept[class].max(needed[class]));
    }
}

/// The intervals that occur, ordered by one of their ends, those of one place by number: a sort by counting.
fn by_position(
    intervals: &[Interval],
    positions: usize,
    position: impl Fn(&Interval) -> u32,
) -> Vec<u32> {
    let occur = || {
        intervals
            .iter()
            .enumerate()
            .filter(|(_, iv)| !iv.reg.is_none())
    };
    let mut next = vec![0u32; positions + 1];
    for (_, iv) in occur() {
        next[position(iv) as usize + 1] += 1;
    }
    for at in 1..next.len() {
        next[at] += next[at - 1];
    }
    let mut order = vec![0; next[positions] as usize];
    for (n, iv) in occur() {
        let at = &mut next[position(iv) as usize];
        order[*at as usize] = n as u32;
        *at += 1;
    }
    order
}

/// One scan: a register each, or `Stack(0)` for those that must live in memory.
fn scan(intervals: &[Interval], order: &[u32], ends: &[u32], files: [u32; 3]) -> Vec<Loc> {
    let mut locs = vec![Loc::Unused; intervals.len()];
    let mut free = files;
    let mut holder: [[u32; 32]; 3] = [[u32::MAX; 32]; 3];
    let mut ended = 0;
    for &n in order {
        let iv = &intervals[n as usize];
        let class = iv.reg.class() as usize;
        while let Some(&old) = ends.get(ended)
            && intervals[old as usize].end < iv.start
        {
            ended += 1;
            let class = intervals[old as usize].reg.class() as usize;
            if let Loc::Reg(r) = locs[old as usize]
                && holder[class][r as usize] == old
            {
                free[class] |= 1 << r;
            }
        }
        if let Some(r) = choose(iv, &locs, free[class]) {
            free[class] &= !(1 << r);
            holder[class][r as usize] = n;
            locs[n as usize] = Loc::Reg(r);
            continue;
        }
        let victim = (0..32u8)
            .filter(|&r| files[class] >> r & 1 == 1)
            .map(|r| (r, holder[class][r as usize]))
            .min_by(|a, b| {
                intervals[a.1 as usize]
                    .weight
                    .total_cmp(&intervals[b.1 as usize].weight)
            });
        match victim {
            Some((r, other)) if intervals[other as usize].weight < iv.weight => {
                locs[other as usize] = Loc::Stack(0);
                locs[n as usize] = Loc::Reg(r);
                holder[class][r as usize] = n;
            }
            Some(_) | None => locs[n as usize] = Loc::Stack(0),
        }
    }
    locs
}

fn choose(iv: &Interval, locs: &[Loc], free: u32) -> Option<u8> {
    if free == 0 {
        return None;
    }
    let is_free = |r: u8| free >> r & 1 == 1;
    if let Some(r) = iv.fixed
        && is_free(r)
    {
        return Some(r);
    }
    for h in iv.hints {
        if !h.is_none()
            && h.is_virt()
            && let Loc::Reg(r) = locs[h.number()]
            && is_free(r)
        {
            return Some(r);
        }
    }
    // An argument that cannot stay must not land where another one still waits.
    let taken = |r: u8| iv.fixed.is_some() && ARGUMENTS.contains(&r);
    match iv.reg.class() {
        Class::Gpr => GPR_ORDER.into_iter().find(|&r| is_free(r) && !taken(r)),
        Class::Vec | Class::Mask => Some(free.trailing_zeros() as u8),
    }
}

/// Gives frame slots to what lives in memory; slots are reused once their interval ended.
fn place(
    intervals: &[Interval],
    order: &[u32],
    mut locs: Vec<Loc>,
    scratch: [Vec<u8>; 3],
    level: Level,
) -> Allocation {
    // (end, slot number) of the slots of each size: whole vectors and words.
    let mut slots: [Vec<u32>; 2] = Default::default();
    let mut chosen: Vec<(u32, usize, usize)> = Vec::new();
    for &n in order {
        if locs[n as usize] != Loc::Stack(0) {
            continue;
        }
        let iv = &intervals[n as usize];
        let size = usize::from(iv.reg.class() != Class::Vec);
        let slot = match slots[size].iter().position(|&end| end < iv.start) {
            Some(s) => s,
            None => {
                slots[size].push(0);
                slots[size].len() - 1
            }
        };
        slots[size][slot] = iv.end;
        chosen.push((n, size, slot));
    }
    let vector = level.vector_bytes();
    let words_at = slots[0].len() as u32 * vector;
    for &(n, size, slot) in &chosen {
        let at = if size == 0 {
            slot as u32 * vector
        } else {
            words_at + slot as u32 * 8
        };
        locs[n as usize] = Loc::Stack(at);
    }
    let frame_bytes = (words_at + slots[1].len() as u32 * 8).next_multiple_of(64);
    Allocation {
        locs,
        frame_bytes,
        scratch,
        spilled: chosen.len() as u32,
    }
}
