//! What survives a `fork`, and what must be abandoned.
//!
//! A child process inherits memory but no threads, locks in whatever state they were, and *shared* mappings that the
//! parent keeps on writing. So every piece of process-wide state (pool, code memory, allocator, CUDA) lives in a
//! [`PerProcess`] cell: the first use in a child finds a value of an older generation, leaks it untouched and builds anew.
//!
//! Two counters are kept by a `pthread_atfork` handler, so that asking costs one load and never a system call:
//! [`generation`] changes in the child, [`forks`] in the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static FORKS: AtomicU64 = AtomicU64::new(0);
static REGISTER: Once = Once::new();

#[cfg(unix)]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(unix)]
extern "C" fn in_parent() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

fn register() {
    REGISTER.call_once(|| {
        #[cfg(unix)]
        // SAFETY: both handlers are plain atomic increments, which are async-signal-safe, and they live as long as the program text.
        unsafe {
            libc::pthread_atfork(None, Some(in_parent), Some(in_child));
        }
    });
}

/// How many forks lie between the process that started and this one.
#[inline]
pub fn generation() -> u64 {
    if !REGISTER.is_completed() {
        register();
    }
    GENERATION.load(Ordering::Relaxed)
}

/// How many children this process has forked: memory shared with them must not be rewritten.
pub fn forks() -> u64 {
    if !REGISTER.is_completed() {
        register();
    }
    FORKS.load(Ordering::Relaxed)
}

struct Entry<T> {
    generation: u64,
    value: T,
}

/// A lazily built value that a forked child rebuilds instead of inheriting.
pub struct PerProcess<T> {
    current: AtomicPtr<Entry<T>>,
}

// SAFETY: the cell hands out `&T` to any thread and drops `T` on any thread, exactly like `OnceLock<T>`.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as above; the pointer is owned by the cell.
unsafe impl<T: Send> Send for PerProcess<T> {}

impl<T> PerProcess<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The value of this process, if it was built already.
    #[inline]
    pub fn peek(&self) -> Option<&T> {
        let entry = self.current.load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from `Box::into_raw` in `get_or_try_init` and is freed by `drop` alone.
        let entry = unsafe { entry.as_ref() }?;
        (entry.generation == generation()).then_some(&entry.value)
    }

    /// The value of this process; built at the first call, and again at the first call after a fork.
    /// Two threads that race may both build; the loser's value is dropped.
    pub fn get_or_try_init<E>(&self, build: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.peek() {
            return Ok(value);
        }
        let before = self.current.load(Ordering::Acquire);
        // SAFETY: as in `peek`.
        if let Some(entry) = unsafe { before.as_ref() }
            && entry.generation == generation()
        {
            return Ok(&entry.value);
        }
        let fresh = Box::into_raw(Box::new(Entry {
            generation: generation(),
            value: build()?,
        }));
        // The entry of an older generation is leaked on purpose: its locks and threads belong to the parent.
        let kept =
            match self
                .current
                .compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => fresh,
                Err(winner) => {
                    // SAFETY: `fresh` was never published, so this is its only owner.
                    drop(unsafe { Box::from_raw(fresh) });
                    winner
                }
            };
        // SAFETY: `kept` is published and lives until the cell is dropped.
        Ok(unsafe { &(*kept).value })
    }

    /// [`Self::get_or_try_init`] for a value that cannot fail.
    #[inline]
    pub fn get_or_init(&self, build: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, std::convert::Infallible>(build())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let entry = *self.current.get_mut();
        if entry.is_null() {
            return;
        }
        // SAFETY: `&mut self` proves that no reference handed out is alive.
        let entry = unsafe { Box::from_raw(entry) };
        if entry.generation != generation() {
            std::mem::forget(entry);
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PerProcess").field(&self.peek()).finish()
    }
}

/// Runs `child` in a forked child and returns its exit status: for tests of what happens after a fork.
#[cfg(all(test, unix))]
pub(crate) fn exit_status_of_child(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs Rust code on the only thread it has and leaves by `_exit`, without unwinding into the test harness.
    unsafe {
        match libc::fork() {
            0 => {
                let ok =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
                libc::_exit(if ok { 0 } else { 1 })
            }
            pid => {
                let mut status = 0;
                libc::waitpid(pid, &mut status, 0);
                status
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn child_rebuilds_and_parent_keeps() {
        let cell: PerProcess<u64> = PerProcess::new();
        assert_eq!(*cell.get_or_init(|| 1), 1);
        assert_eq!(*cell.get_or_init(|| 2), 1);
        let before = forks();
        assert_eq!(
            exit_status_of_child(|| cell.peek().is_none() && *cell.get_or_init(|| 3) == 3),
            0
        );
        assert_eq!(*cell.get_or_init(|| 4), 1);
        assert!(forks() > before);
    }

    #[test]
    fn a_failed_build_leaves_the_cell_empty() {
        let cell: PerProcess<u64> = PerProcess::new();
        assert_eq!(cell.get_or_try_init(|| Err("no")), Err("no"));
        assert_eq!(*cell.get_or_init(|| 5), 5);
    }

    #[test]
    fn racing_threads_see_one_value() {
        let cell: PerProcess<usize> = PerProcess::new();
        let seen: Vec<usize> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..8)
                .map(|i| {
                    s.spawn({
                        let cell = &cell;
                        move || *cell.get_or_init(|| i)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|v| *v == seen[0]));
    }
}
