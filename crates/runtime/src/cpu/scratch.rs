//! Private scratch of a worker: kept by its thread, grown when a kernel needs more, never shrunk.

use crate::memory::{ALIGN, system_allocate, system_free};
use oxyfuel_base::{Result, err};
use std::cell::Cell;
use std::ptr::NonNull;

/// A thread's scratch; lent to one kernel at a time.
struct Scratch {
    address: NonNull<u8>,
    bytes: usize,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated with this size by `with`, and nobody has it any more.
        unsafe { system_free(self.address, self.bytes) };
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// Calls `f` with this thread's scratch: at least `bytes` bytes, aligned to 64, with arbitrary contents. A nested call
/// on the same thread gets memory of its own.
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> Result<R> {
    if bytes == 0 {
        return Ok(f(std::ptr::without_provenance_mut(ALIGN)));
    }
    let kept = SCRATCH.take().filter(|scratch| scratch.bytes >= bytes);
    let scratch = match kept {
        Some(scratch) => scratch,
        None => {
            let bytes = bytes.checked_next_multiple_of(4096).unwrap_or(bytes);
            let address = system_allocate(bytes);
            let address =
                address.ok_or_else(|| err!(OutOfMemory, "no room for {bytes} bytes of scratch"))?;
            Scratch { address, bytes }
        }
    };
    let result = f(scratch.address.as_ptr());
    SCRATCH.set(Some(scratch));
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_is_kept() {
        std::thread::spawn(|| {
            let small = with(100, |p| p as usize).unwrap();
            assert_eq!(small % ALIGN, 0);
            assert_eq!(with(4096, |p| p as usize).unwrap(), small);
            let large = with(1 << 20, |p| p as usize).unwrap();
            assert_eq!(with(1, |p| p as usize).unwrap(), large);
            with(64, |outer| {
                with(64, |inner| assert_ne!(outer, inner)).unwrap()
            })
            .unwrap();
            assert!(with(usize::MAX / 2, |_| ()).is_err());
        })
        .join()
        .unwrap();
    }
}
