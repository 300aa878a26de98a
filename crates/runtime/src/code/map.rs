//! Mappings: the two ways to come by executable pages without ever having them writable and executable at once.

use oxyfuel_base::{Result, err};
use std::io;
use std::ptr::{NonNull, null_mut};

/// Mapped pages: written at `write` (while there is a write side) and run at `execute`.
#[derive(Debug)]
pub(super) struct Pages {
    write: Option<NonNull<u8>>,
    execute: NonNull<u8>,
    length: usize,
}

// SAFETY: `Pages` owns its mappings; every write needs `&mut self`.
unsafe impl Send for Pages {}
// SAFETY: through `&self` nothing is written.
unsafe impl Sync for Pages {}

fn page_multiple(length: usize) -> usize {
    // SAFETY: `sysconf` only returns a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    length.next_multiple_of(page)
}

/// `mmap` that answers with a `Result`; the mapping is fresh, so nothing else refers to it.
fn map(length: usize, protection: i32, flags: i32, fd: i32) -> Result<NonNull<u8>> {
    // SAFETY: without MAP_FIXED and with a null hint the kernel chooses unused addresses.
    let address = unsafe { libc::mmap(null_mut(), length, protection, flags, fd, 0) };
    match NonNull::new(address.cast::<u8>()) {
        Some(address) if address.as_ptr().cast() != libc::MAP_FAILED => Ok(address),
        Some(_) | None => Err(err!(
            NoExecutableMemory,
            "cannot map memory for machine code: {}",
            io::Error::last_os_error()
        )),
    }
}

impl Pages {
    /// One memfd mapped twice.
    #[cfg(target_os = "linux")]
    pub fn double(length: usize) -> Result<Self> {
        let length = page_multiple(length);
        let fd = memory_file(length)?;
        let map = |protection| {
            map(
                length,
                protection,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&fd),
            )
        };
        let execute = map(libc::PROT_READ | libc::PROT_EXEC)?;
        // Owned before the second mapping is tried, so that a refusal there unmaps the first.
        let mut pages = Self {
            write: None,
            execute,
            length,
        };
        pages.write = Some(map(libc::PROT_READ | libc::PROT_WRITE)?);
        Ok(pages)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn double(_length: usize) -> Result<Self> {
        Err(err!(NoExecutableMemory, "this system has no memory files"))
    }

    /// Pages that hold `code` and nothing else: written first, executable after.
    pub fn executable_copy(code: &[u8]) -> Result<Self> {
        let length = page_multiple(code.len().max(1));
        let pages = map(
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )?;
        let pages = Self {
            write: None,
            execute: pages,
            length,
        };
        // SAFETY: the mapping is at least `code.len()` bytes, writable, and ours alone.
        unsafe {
            pages
                .execute
                .copy_from_nonoverlapping(NonNull::from(code).cast(), code.len())
        };
        // SAFETY: the range is exactly the mapping made above, and no reference into it exists.
        if unsafe {
            libc::mprotect(
                pages.execute.as_ptr().cast(),
                length,
                libc::PROT_READ | libc::PROT_EXEC,
            )
        } != 0
        {
            return Err(err!(
                NoExecutableMemory,
                "the system refuses executable memory: {}",
                io::Error::last_os_error()
            ));
        }
        Ok(pages)
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn execute_address(&self) -> usize {
        self.execute.as_ptr() as usize
    }

    /// Copies `code` to `offset` through the write side.
    pub fn write(&mut self, offset: usize, code: &[u8]) {
        if let Some(side) = self.side(offset, code.len()) {
            // SAFETY: `side` has room for `code.len()` bytes and no reference into it exists elsewhere.
            unsafe { side.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len()) };
        }
    }

    /// Fills a range through the write side.
    pub fn fill(&mut self, offset: usize, length: usize, value: u8) {
        if let Some(side) = self.side(offset, length) {
            // SAFETY: `side` has room for `length` bytes and no reference into it exists elsewhere.
            unsafe { side.write_bytes(value, length) };
        }
    }

    fn side(&mut self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        assert!(
            offset
                .checked_add(length)
                .is_some_and(|end| end <= self.length),
            "write outside of code memory"
        );
        // SAFETY: the offset was just checked to lie inside the mapping.
        self.write.map(|side| unsafe { side.add(offset) })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for side in self.write.into_iter().chain([self.execute]) {
            // SAFETY: each side is a mapping of `length` bytes that this value owns.
            unsafe { libc::munmap(side.as_ptr().cast(), self.length) };
        }
    }
}

/// An anonymous file of `length` bytes.
#[cfg(target_os = "linux")]
fn memory_file(length: usize) -> Result<std::fs::File> {
    use std::os::fd::FromRawFd;
    /// Says that the file is meant to be executable; kernels before 6.3 do not know the flag and need none.
    const MFD_EXEC: libc::c_uint = 0x10;
    let create = |flags| {
        // SAFETY: the name is a C string; the answer is a new descriptor or -1.
        let fd = unsafe { libc::memfd_create(c"oxyfuel-code".as_ptr(), libc::MFD_CLOEXEC | flags) };
        // SAFETY: a descriptor that the kernel just made belongs to nobody else.
        (fd >= 0).then(|| unsafe { std::fs::File::from_raw_fd(fd) })
    };
    let file = create(MFD_EXEC).or_else(|| create(0));
    let file = file.ok_or_else(|| {
        err!(
            NoExecutableMemory,
            "the system refuses a memory file: {}",
            io::Error::last_os_error()
        )
    })?;
    file.set_len(length as u64)
        .map_err(|e| err!(OutOfMemory, "no room for machine code: {e}"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;

    #[test]
    fn pages_that_the_system_refuses() {
        // A mapping of no bytes is one that every system refuses.
        let error = Pages::double(0).unwrap_err();
        assert_eq!(error.code, Code::NoExecutableMemory, "{error}");
    }
}
