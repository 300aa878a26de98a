//! Results that no cache holds until somebody reads them are written past the caches.
//!
//! An ordinary store reads the line that it is going to write, and pushes out lines that are still wanted: a copy moves three bytes for every two. That pays where the reader finds the result in a cache, and is a third of the
//! time where it does not. Tiles of a transposed result are there sooner: their rows are in pages of their own, which no prefetcher follows, so that a store waits for each line that it reads. A hint changes no result. Stores of narrow elements fill no line at a time and stay as they are; so does what the kernel reads as well, whose lines it has anyway.

use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{Access, BufferMode, CacheHint, Index, Op, Param, ParamKind, Phase, Val};

/// Bytes that a kernel touches from which on its results are gone from the caches before they are read.
const FAR: i64 = 64 << 20;
/// The same where the results are written in tiles.
const FAR_TILES: i64 = 16 << 20;
/// Bytes from one row of a tile to the next from which on a prefetcher does not follow.
const PAGE: i64 = 4096;
/// Results that are smaller are found again, whatever else was read meanwhile.
const LARGE: i64 = 1 << 20;
/// Bytes of an element from which on a vector is as long as a line.
pub const WIDE: i64 = 4;

/// What a kernel touches of one buffer.
struct Touched {
    mem: Val,
    /// Bytes of an element.
    size: i64,
    bytes: i64,
    /// Whether it is a result that may go past the caches.
    past: bool,
}

/// Whether a kernel that touches so many bytes, of which so many are results in whole rows, writes those past the caches.
pub fn is_far(touched: i64, results: i64) -> bool {
    touched >= FAR && results >= FAR / 2
}

/// Gives the stores of a kernel that touches so much their hint, where half of that is results.
pub fn stream(program: &mut Program) {
    let Some(windows) = windows(&program.phases) else {
        return;
    };
    let touched: Vec<Touched> = (program.params.iter())
        .filter_map(|param| buffer(param, &windows))
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

/// Whether the rows of a window are shorter than a page and at least as far apart.
fn is_tile(access: &Access, size: i64) -> bool {
    let dims = || access.shape.iter().zip(&access.strides);
    let is_short = dims().any(|(n, s)| *s == Index::Const(1) && n * size < PAGE);
    let is_far = |s: &Index| matches!(s, Index::Const(s) if s * size >= PAGE);
    is_short && dims().any(|(n, s)| *n > 1 && is_far(s))
}

/// Every window that is read or written, with the elements that all instances have in it; nothing where their number is not known. A window inside a loop counts once.
fn windows(phases: &[Phase]) -> Option<Vec<(Val, i64)>> {
    let mut windows = Vec::new();
    for phase in phases {
        let mut instances = 1i64;
        for extent in &phase.grid {
            instances = instances.saturating_mul(extent.as_const()?);
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

fn buffer(param: &Param, windows: &[(Val, i64)]) -> Option<Touched> {
    let ParamKind::Buffer(buffer) = &param.kind else {
        return None;
    };
    let size = buffer.dtype.size() as i64;
    let mine = windows.iter().filter(|(mem, _)| *mem == param.value);
    let elements = mine.map(|(_, n)| *n).fold(0, i64::saturating_add);
    // What several instances read, such as a row of weights, is touched once.
    let all = buffer.len.as_ref().and_then(|len| len.as_const())?;
    let bytes = elements.min(all).saturating_mul(size);
    Some(Touched {
        mem: param.value,
        size,
        bytes,
        past: buffer.mode == BufferMode::Write && size >= WIDE && bytes >= LARGE,
    })
}
