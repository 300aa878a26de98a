//! What no cache holds until somebody reads it again: results of CPUs are written past the caches, and on GPUs what is read is let go of last.
//!
//! An ordinary store reads the line that it is going to write, and pushes out lines that are still wanted: a copy moves three bytes for every two. That pays where the reader finds the result in a cache, and is a third of the
//! time where it does not. Tiles of a transposed result are there sooner: their rows are in pages of their own, which no prefetcher follows, so that a store waits for each line that it reads. A hint changes no result. Stores of narrow elements fill no line at a time and stay as they are; so does what the kernel reads as well, whose lines it has anyway.
//!
//! A GPU's stores never read. But plain kernels that touch several times its cache are about one per cent faster where the cache lets go last of what they read (measured, decision 97; why, the machine does not say).

use oxyfuel_base::Expr;
use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{
    Access, BufferMode, CacheHint, Index, Op, Param, ParamKind, Phase, Type, Val,
};
use oxyfuel_plan::TargetDesc;

use crate::size::Known;
use crate::tile::far_bytes;

/// Bytes that a kernel touches from which on its results are gone from the caches before they are read.
const FAR: i64 = 64 << 20;
/// The same where the results are written in tiles.
const FAR_TILES: i64 = 16 << 20;
/// Bytes from one row of a tile to the next from which on a prefetcher does not follow.
const PAGE: i64 = 4096;
/// Results that are smaller are found again, whatever else was read meanwhile.
const LARGE: i64 = 1 << 20;
/// Bytes of a run from which on the lines that follow it are asked for.
const RUN: i64 = 1 << 10;
/// Bytes of a part of a run, and how many parts it has, that are still read in order.
const PART: i64 = 128;
const PARTS: i64 = 4;
/// Bytes of an element from which on a vector is as long as a line.
pub const WIDE: i64 = 4;

/// How many times the cache of a GPU a kernel touches from which on nothing of its results is there when it ends.
const FAR_OF_CACHE: i64 = 4;
/// Ops on whole tiles up to which memory alone bounds a kernel.
const PLAIN: usize = 16;

/// What a kernel touches of one buffer.
struct Touched {
    mem: Val,
    /// Bytes of an element.
    size: i64,
    bytes: i64,
    is_read: bool,
    /// Whether it is a result that may go past the caches.
    past: bool,
}

/// Whether a kernel that touches so many bytes, of which so many are results in whole rows, writes those past the caches.
pub fn is_far(touched: i64, results: i64) -> bool {
    touched >= FAR && results >= FAR / 2
}

/// Gives the stores of a kernel that touches so much their hint, where half of that is results.
pub fn stream(program: &mut Program) {
    let Some(windows) = windows(&program.phases, &Expr::as_const) else {
        return;
    };
    let touched: Vec<Touched> = (program.params.iter())
        .filter_map(|param| buffer(param, &windows, &Expr::as_const))
        .collect();
    let sum = |of: &dyn Fn(&&Touched) -> bool| {
        let bytes = touched.iter().filter(of).map(|t| t.bytes);
        bytes.fold(0, i64::saturating_add)
    };
    let far = match writes_tiles(program, &touched) {
        true => FAR_TILES,
        false => FAR,
    };
    if sum(&|_| true) < far || sum(&|t| t.past) < far / 2 {
        return;
    }
    program.walk_mut(|inst| {
        if let Op::Store { access, hint, .. } = &mut inst.op
            && touched.iter().any(|t| t.past && t.mem == access.mem)
        {
            *hint = CacheHint::Streaming;
        }
    });
}

/// Gives what a kernel reads and writes in order the hint that the lines further on are asked for, where it touches more than its workers' caches hold.
pub fn ahead(program: &mut Program, known: &Known, target: &TargetDesc) {
    // Of sizes that only a call knows a guess will do: asking for little is in vain, and harmless.
    let size = |extent: &Expr| Some(known.guess(extent));
    let Some(windows) = windows(&program.phases, &size) else {
        return;
    };
    let touched: Vec<Touched> = (program.params.iter())
        .filter_map(|param| buffer(param, &windows, &size))
        .collect();
    let bytes = touched.iter().map(|t| t.bytes);
    if bytes.fold(0, i64::saturating_add) < far_bytes(target) {
        return;
    }
    let in_order = |access: &Access| {
        let size = |t: &&Touched| t.mem == access.mem && t.bytes >= LARGE;
        let Some(size) = touched.iter().find(size).map(|t| t.size) else {
            return false;
        };
        is_in_order(access, size)
    };
    program.walk_mut(|inst| {
        if let Op::Load { access, hint, .. } | Op::Store { access, hint, .. } = &mut inst.op
            && *hint == CacheHint::Default
            && in_order(access)
        {
            *hint = CacheHint::Ahead;
        }
    });
}

/// Gives the loads of a GPU's kernel that does little but read and write, several times what its cache holds, the hint that they are let go of last.
pub fn keep(program: &mut Program, target: &TargetDesc) {
    let Some(windows) = windows(&program.phases, &Expr::as_const) else {
        return;
    };
    let touched =
        (program.params.iter()).filter_map(|param| buffer(param, &windows, &Expr::as_const));
    let (mut read, mut written) = (0i64, 0i64);
    for buffer in touched {
        let sum = match buffer.is_read {
            true => &mut read,
            false => &mut written,
        };
        *sum = sum.saturating_add(buffer.bytes);
    }
    let cache = i64::try_from(target.l2_bytes).unwrap_or(i64::MAX);
    let far = read.saturating_add(written) / FAR_OF_CACHE >= cache;
    // Where little is written nothing takes the room of what is read.
    if !far || read < cache || written < read / 2 || !is_plain(program) {
        return;
    }
    program.walk_mut(|inst| {
        if let Op::Load { hint, .. } = &mut inst.op
            && *hint == CacheHint::Default
        {
            *hint = CacheHint::Kept;
        }
    });
}

/// Whether a kernel loads, stores, and does little else.
fn is_plain(program: &Program) -> bool {
    let elements = |v: &Val| match &program.value(*v).ty {
        Type::Tile(tile) => tile.len(),
        Type::Mem(_) | Type::TensorMap => 0,
    };
    let mut largest = 0;
    program.walk(|inst| largest = inst.results.iter().map(elements).fold(largest, i64::max));
    let (mut ops, mut others) = (0, 0);
    program.walk(|inst| {
        let is_whole = inst.results.iter().any(|v| elements(v) == largest);
        match &inst.op {
            Op::Load { .. } | Op::Store { .. } | Op::ProgramId { .. } => {}
            Op::Const { .. } | Op::Iota { .. } | Op::Splat { .. } | Op::Broadcast { .. } => {}
            Op::Unary { .. }
            | Op::Binary { .. }
            | Op::Compare { .. }
            | Op::Select { .. }
            | Op::Fma { .. }
            | Op::Cast { .. }
            | Op::Bitcast { .. } => ops += usize::from(is_whole),
            _ => others += 1,
        }
    });
    others == 0 && ops <= PLAIN
}

/// Whether all that may go past the caches is written in tiles.
fn writes_tiles(program: &Program, touched: &[Touched]) -> bool {
    let (mut tiles, mut others) = (0, 0);
    for phase in &program.phases {
        phase.body.walk(&mut |inst| {
            if let Op::Store { access, .. } = &inst.op
                && let Some(t) = touched.iter().find(|t| t.past && t.mem == access.mem)
            {
                match is_tile(access, t.size) {
                    true => tiles += 1,
                    false => others += 1,
                }
            }
        });
    }
    tiles > 0 && others == 0
}

/// Whether a window moves along memory line by line: in one run, or in parts of one next to each other (the halves of a rotated embedding).
fn is_in_order(access: &Access, size: i64) -> bool {
    let dims = || access.shape.iter().zip(&access.strides);
    let stride = |n: i64| dims().find(|(_, s)| **s == Index::Const(n));
    // Elements of one run: rows that follow each other without a gap are one.
    let mut run = 1;
    while run < RUN
        && let Some((n, _)) = stride(run).filter(|(n, _)| **n > 1)
    {
        run *= n;
    }
    let run = run * size;
    let near = |(n, s): (&i64, &Index)| match s {
        Index::Const(s) if s * size > run && s * size <= run.saturating_mul(PARTS) => n * s * size,
        _ => 0,
    };
    run >= RUN || (run >= PART && dims().any(|dim| near(dim) >= RUN))
}

/// Whether the rows of a window are shorter than a page and at least as far apart.
fn is_tile(access: &Access, size: i64) -> bool {
    let dims = || access.shape.iter().zip(&access.strides);
    let is_short = dims().any(|(n, s)| *s == Index::Const(1) && n * size < PAGE);
    let is_far = |s: &Index| matches!(s, Index::Const(s) if s * size >= PAGE);
    is_short && dims().any(|(n, s)| *n > 1 && is_far(s))
}

/// Every window that is read or written, with the elements that all instances have in it; nothing where `size` does not know their number. A window inside a loop counts once.
fn windows(phases: &[Phase], size: &dyn Fn(&Expr) -> Option<i64>) -> Option<Vec<(Val, i64)>> {
    let mut windows = Vec::new();
    for phase in phases {
        let mut instances = 1i64;
        for extent in &phase.grid {
            instances = instances.saturating_mul(size(extent)?);
        }
        phase.body.walk(&mut |inst| {
            if let Op::Load { access, .. } | Op::Store { access, .. } = &inst.op {
                let elements = access.shape.iter().copied();
                windows.push((access.mem, elements.fold(instances, i64::saturating_mul)));
            }
        });
    }
    Some(windows)
}

fn buffer(
    param: &Param,
    windows: &[(Val, i64)],
    extent: &dyn Fn(&Expr) -> Option<i64>,
) -> Option<Touched> {
    let ParamKind::Buffer(buffer) = &param.kind else {
        return None;
    };
    let size = buffer.dtype.size() as i64;
    let mine = windows.iter().filter(|(mem, _)| *mem == param.value);
    let elements = mine.map(|(_, n)| *n).fold(0, i64::saturating_add);
    // What several instances read, such as a row of weights, is touched once.
    let all = buffer.len.as_ref().and_then(extent)?;
    let bytes = elements.min(all).saturating_mul(size);
    Some(Touched {
        mem: param.value,
        size,
        bytes,
        is_read: buffer.mode == BufferMode::Read,
        past: buffer.mode == BufferMode::Write && size >= WIDE && bytes >= LARGE,
    })
}
