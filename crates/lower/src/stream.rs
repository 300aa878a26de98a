//! Results that no cache holds until somebody reads them are written past the caches.
//!
//! An ordinary store reads the line that it is going to write, and pushes out lines that are still wanted: a copy moves three bytes for every two. That pays where the reader finds the result in a cache, and is a third of the
//! time where it does not. A hint changes no result. Stores of narrow elements fill no line at a time and stay as they are; so does what the kernel reads as well, whose lines it has anyway.

use oxyfuel_kernel::Program;
use oxyfuel_kernel::ir::{BufferMode, CacheHint, Op, Param, ParamKind, Phase, Val};

/// Bytes that a kernel touches from which on its results are gone from the caches before they are read.
const FAR: i64 = 64 << 20;
/// Results that are smaller are found again, whatever else was read meanwhile.
const LARGE: i64 = 1 << 20;
/// Bytes of an element from which on a vector is as long as a line.
const WIDE: i64 = 4;

/// What a kernel touches of one buffer.
struct Touched {
    mem: Val,
    bytes: i64,
    /// Whether it is a result that may go past the caches.
    past: bool,
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
    if sum(&|_| true) < FAR || sum(&|t| t.past) < FAR / 2 {
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
        bytes,
        past: buffer.mode == BufferMode::Write && size >= WIDE && bytes >= LARGE,
    })
}
