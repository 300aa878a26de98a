//! A reader that leaves.

/// Lets the operating system end this process, without a word, when it prints to a pipe that nobody reads any more (`oxyfuel dump … | head`).
///
/// For commands, which own their process; a guest in someone else's must not call it. Rust begins with the signal ignored, so that printing fails instead, and `println!` panics.
pub fn end_with_the_reader() {
    #[cfg(unix)]
    // SAFETY: no handler is installed, only the default action of one signal; nothing in this process relies on its being ignored.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}
