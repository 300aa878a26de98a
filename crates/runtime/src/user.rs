//! Who this process is to the file system.

/// The user that files made by this process belong to.
pub fn effective_user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}
