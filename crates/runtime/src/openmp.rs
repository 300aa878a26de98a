//! Threads of an OpenMP runtime that is in the process already.
//!
//! Two pools on the same cores spoil each other: after its own work an OpenMP thread looks for more for milliseconds before it sleeps, and holds the core
//! that a thread of ours needs. A host whose operators run between our kernels therefore lends its threads: the same
//! ones run both, and are awake when the next piece of work comes.
//!
//! Only two functions of the runtime are called, both with a C interface that GNU's, LLVM's and Intel's runtimes share:
//! `GOMP_parallel`, which a compiler emits for `#pragma omp parallel`, and `omp_get_thread_num`.

use std::ffi::{c_int, c_uint, c_void};

/// Calls a function with its data on every thread of a team (the caller is one of them) and waits for all.
pub type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
/// The number of the calling thread within its team.
pub type ThreadNumber = unsafe extern "C" fn() -> c_int;

/// An OpenMP runtime.
#[derive(Clone, Copy, Debug)]
pub struct OpenMp {
    parallel: Parallel,
    thread: ThreadNumber,
}

impl OpenMp {
    /// A runtime that offers these functions.
    ///
    /// # Safety
    /// They do what their types' documentation says, from any thread, as long as the process lives.
    pub unsafe fn new(parallel: Parallel, thread: ThreadNumber) -> Self {
        Self { parallel, thread }
    }

    /// The runtime that `library` was linked with; `None` where no such library is loaded, or it has none.
    #[cfg(unix)]
    pub fn of(library: &str) -> Option<Self> {
        use libloading::os::unix::{Library, RTLD_LAZY};
        let flags = RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the library is loaded already, so that no code of it runs now.
        let library = unsafe { Library::open(Some(library), flags) }.ok()?;
        // SAFETY: the types are those that OpenMP (and GNU's interface for compilers) gives to these names.
        let (parallel, thread) = unsafe {
            (
                *library.get::<Parallel>(b"GOMP_parallel\0").ok()?,
                *library.get::<ThreadNumber>(b"omp_get_thread_num\0").ok()?,
            )
        };
        // Its code must stay.
        std::mem::forget(library);
        Some(Self { parallel, thread })
    }

    /// The runtime that `library` was linked with: cannot be asked for here.
    #[cfg(not(unix))]
    pub fn of(_library: &str) -> Option<Self> {
        None
    }

    /// Calls `body` once on each thread of a team of `threads` (fewer where the runtime has fewer to give), with the thread's number. It must not panic.
    pub fn team(&self, threads: usize, body: &(dyn Fn(usize) + Sync)) {
        struct Team<'a> {
            body: &'a (dyn Fn(usize) + Sync),
            thread: ThreadNumber,
        }
        extern "C" fn enter(data: *mut c_void) {
            // SAFETY: `data` is the `Team` below, which outlives the call of `parallel`.
            let team = unsafe { &*data.cast::<Team<'_>>() };
            // SAFETY: promised by `new`.
            let number = unsafe { (team.thread)() };
            (team.body)(usize::try_from(number).unwrap_or(0));
        }
        let mut team = Team {
            body,
            thread: self.thread,
        };
        let threads = c_uint::try_from(threads).unwrap_or(c_uint::MAX);
        // SAFETY: `enter` takes what it is given here and may run on any thread at once, since `body` is `Sync`; `parallel` returns when all have ended.
        unsafe { (self.parallel)(enter, (&raw mut team).cast(), threads, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_lends_nothing() {
        assert!(OpenMp::of("libno-such-library.so").is_none());
    }
}
