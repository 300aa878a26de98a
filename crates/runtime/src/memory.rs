//! Host memory: a caching allocator.
//!
//! Fresh pages cost more than the arithmetic done on them (the kernel clears each one at its first touch), so freed
//! blocks are kept for the next request of the same size class.
//!
//! * A block is aligned to 64 bytes; from 4 MiB on it is a mapping of its own, aligned to 2 MiB, on huge pages where
//!   the system has them.
//! * Size classes are eighths of a power of two: at most an eighth of a block is waste, and a large block's waste is
//!   never touched.
//! * What is kept is bounded by a number of bytes; nothing runs in the background; [`HostAllocator::trim`] gives all back.
//! * A size that this machine cannot have is an error before anything is asked of the system.

use crate::cpu::features::Machine;
use crate::fork;
use oxyfuel_base::{Result, err};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every block.
pub const ALIGN: usize = 64;
/// From here on a block is a mapping on huge pages.
const LARGE: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;
const CLASSES: usize = 8 * usize::BITS as usize;

/// How an allocator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Most bytes kept for reuse.
    pub cache_limit: usize,
    /// Most bytes in use at once; more is refused.
    pub limit: usize,
}

impl Default for MemoryOptions {
    /// A quarter of the memory is kept at most, and no more than the memory is given out.
    fn default() -> Self {
        let memory = usize::try_from(Machine::get().memory).unwrap_or(usize::MAX);
        Self {
            cache_limit: memory / 4,
            limit: memory,
        }
    }
}

/// Where the bytes are; all figures in bytes but the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use, as rounded to their size class.
    pub live: usize,
    /// Bytes kept for reuse.
    pub cached: usize,
    /// The most that was ever in use at once.
    pub peak: usize,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that had to ask the system.
    pub misses: u64,
}

/// Where an allocator's memory comes from.
pub trait Source: std::fmt::Debug + Send + Sync + 'static {
    /// Memory of exactly `size` bytes, or `None` when there is no more.
    fn take(&self, size: usize) -> Option<u64>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `address` came from `take(size)` of this source and is not used again.
    unsafe fn give(&self, address: u64, size: usize);
}

/// Memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory;

/// The caching allocator of host memory.
pub type HostAllocator = Caching<HostMemory>;

/// A caching allocator; clones share it.
#[derive(Debug)]
pub struct Caching<S: Source> {
    shared: Arc<Shared<S>>,
}

impl<S: Source> Clone for Caching<S> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

#[derive(Debug)]
struct Shared<S: Source> {
    options: MemoryOptions,
    generation: u64,
    source: S,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stats: MemoryStats,
    /// Addresses of free blocks by class.
    free: Vec<Vec<u64>>,
}

/// A block in use; its memory returns to the allocator at drop.
#[derive(Debug)]
pub struct Block<S: Source = HostMemory> {
    address: u64,
    length: usize,
    owner: Caching<S>,
}

/// The class of a size, and the size of blocks in that class.
fn class_of(size: usize) -> Option<(usize, usize)> {
    let size = if size >= LARGE {
        size.checked_next_multiple_of(HUGE_PAGE)?
    } else {
        size.max(512)
    };
    let power = size.ilog2() as usize;
    let step = 1usize << (power - 3);
    let eighths = (size - (1 << power)).div_ceil(step);
    Some((
        power * 8 + eighths,
        (1usize << power).checked_add(eighths * step)?,
    ))
}

/// The inverse of [`class_of`].
fn class_size(class: usize) -> usize {
    let (power, eighths) = (class / 8, class % 8);
    (1 << power) + (eighths << power.saturating_sub(3))
}

impl<S: Source> Caching<S> {
    /// An allocator with nothing in it yet.
    pub fn with_source(source: S, options: MemoryOptions) -> Self {
        let state = State {
            stats: MemoryStats::default(),
            free: (0..=CLASSES).map(|_| Vec::new()).collect(),
        };
        let (generation, state) = (fork::generation(), Mutex::new(state));
        Self {
            shared: Arc::new(Shared {
                options,
                generation,
                source,
                state,
            }),
        }
    }

    /// A block of at least `size` bytes with arbitrary contents (host memory is initialised, though).
    pub fn allocate(&self, size: usize) -> Result<Block<S>> {
        let Shared {
            options, source, ..
        } = &*self.shared;
        let too_much = || {
            err!(
                OutOfMemory,
                "{size} bytes are more than is left of {} bytes of memory",
                options.limit
            )
            .help("use smaller shapes, or free other tensors first")
        };
        let (class, rounded) = class_of(size).ok_or_else(too_much)?;
        if size > options.limit {
            return Err(too_much());
        }
        let block = |address| Block {
            address,
            length: size,
            owner: self.clone(),
        };
        // In a forked child the lock may be held by a thread that does not exist there.
        let Some(mut state) = self.shared.lock() else {
            return source.take(rounded).map(block).ok_or_else(too_much);
        };
        if state.stats.live.saturating_add(rounded) > options.limit.saturating_add(HUGE_PAGE) {
            return Err(too_much());
        }
        let address = match state.free[class].pop() {
            Some(address) => {
                state.stats.cached -= rounded;
                state.stats.hits += 1;
                address
            }
            None => {
                state.stats.misses += 1;
                let address = source.take(rounded).or_else(|| {
                    state.release_all(source);
                    source.take(rounded)
                });
                address.ok_or_else(too_much)?
            }
        };
        state.stats.live += rounded;
        state.stats.peak = state.stats.peak.max(state.stats.live);
        drop(state);
        Ok(block(address))
    }

    /// Gives everything that is kept for reuse back to where it came from, and says how many bytes that were.
    pub fn trim(&self) -> usize {
        let Some(mut state) = self.shared.lock() else {
            return 0;
        };
        let kept = state.stats.cached;
        state.release_all(&self.shared.source);
        kept
    }

    /// Where the bytes are.
    pub fn stats(&self) -> MemoryStats {
        self.shared
            .lock()
            .map_or_else(MemoryStats::default, |state| state.stats)
    }

    fn free(&self, address: u64, size: usize) {
        let Shared {
            options, source, ..
        } = &*self.shared;
        // The same arithmetic as at the allocation, which succeeded.
        let Some((class, rounded)) = class_of(size) else {
            return;
        };
        let Some(mut state) = self.shared.lock() else {
            // SAFETY: the block came from `take(rounded)`, and its owner is being dropped.
            return unsafe { source.give(address, rounded) };
        };
        state.stats.live = state.stats.live.saturating_sub(rounded);
        if rounded > options.cache_limit {
            drop(state);
            // SAFETY: as above.
            return unsafe { source.give(address, rounded) };
        }
        // Sizes of yesterday make room for those of today, the largest first.
        let mut from = CLASSES;
        while state.stats.cached + rounded > options.cache_limit {
            match state.free[from].pop() {
                Some(victim) => state.release(source, victim, from),
                None if from == 0 => break,
                None => from -= 1,
            }
        }
        state.free[class].push(address);
        state.stats.cached += rounded;
    }
}

impl HostAllocator {
    /// An allocator of host memory with nothing in it yet.
    pub fn new(options: MemoryOptions) -> Self {
        Self::with_source(HostMemory, options)
    }
}

impl Default for HostAllocator {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl<S: Source> Shared<S> {
    /// The state, or `None` in a forked child, which must not touch the parent's lock.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        (self.generation == fork::generation())
            .then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S: Source> Drop for Shared<S> {
    fn drop(&mut self) {
        if let Some(mut state) = self.lock() {
            state.release_all(&self.source);
        }
    }
}

impl State {
    fn release(&mut self, source: &impl Source, address: u64, class: usize) {
        let rounded = class_size(class);
        self.stats.cached -= rounded;
        // SAFETY: a block in the list of `class` came from `take` of that class's size and is unused.
        unsafe { source.give(address, rounded) };
    }

    fn release_all(&mut self, source: &impl Source) {
        for class in 0..=CLASSES {
            while let Some(block) = self.free[class].pop() {
                self.release(source, block, class);
            }
        }
    }
}

impl<S: Source> Block<S> {
    /// Where the block is; aligned to [`ALIGN`].
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size asked for.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte was asked for.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<S: Source> Drop for Block<S> {
    fn drop(&mut self) {
        self.owner.free(self.address, self.length);
    }
}

impl Source for HostMemory {
    fn take(&self, size: usize) -> Option<u64> {
        system_allocate(size).map(|address| address.as_ptr() as u64)
    }

    unsafe fn give(&self, address: u64, size: usize) {
        if let Some(address) = NonNull::new(address as *mut u8) {
            // SAFETY: promised by the caller.
            unsafe { system_free(address, size) };
        }
    }
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, ALIGN).ok()
}

#[cfg(not(unix))]
pub(crate) fn system_allocate(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: sizes of classes are never zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(size)?) })
}

/// Zeroed memory from the system (so that no byte of a block is ever uninitialised): the general allocator for small sizes, an aligned mapping on huge pages for large ones.
#[cfg(unix)]
pub(crate) fn system_allocate(size: usize) -> Option<NonNull<u8>> {
    if size < LARGE {
        // SAFETY: sizes of classes are never zero.
        return NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(size)?) });
    }
    // A mapping longer by one huge page contains an aligned one; the ends are given back.
    let mapped = size.checked_add(HUGE_PAGE)?;
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let head = base.align_offset(HUGE_PAGE);
    let address = base.wrapping_byte_add(head);
    let end = address.wrapping_byte_add(size);
    // SAFETY: both ranges lie inside the mapping made above and outside `address..end`, which stays.
    unsafe {
        if head > 0 {
            libc::munmap(base, head);
        }
        if mapped > head + size {
            libc::munmap(end, mapped - head - size);
        }
        // Only a wish: without huge pages the memory works the same.
        #[cfg(target_os = "linux")]
        libc::madvise(address, size, libc::MADV_HUGEPAGE);
    }
    NonNull::new(address.cast())
}

/// # Safety
/// The block came from `system_allocate(size)` and is not used again.
pub(crate) unsafe fn system_free(address: NonNull<u8>, size: usize) {
    #[cfg(unix)]
    if size >= LARGE {
        // SAFETY: promised by the caller: this is a whole mapping of ours.
        unsafe { libc::munmap(address.as_ptr().cast(), size) };
        return;
    }
    if let Some(layout) = layout(size) {
        // SAFETY: promised by the caller: the block was allocated with this layout.
        unsafe { std::alloc::dealloc(address.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;
    use proptest::prelude::*;

    fn allocator(cache_limit: usize, limit: usize) -> HostAllocator {
        HostAllocator::new(MemoryOptions { cache_limit, limit })
    }

    fn touch(block: &Block) {
        // SAFETY: the block is ours and has `len` bytes.
        unsafe { (block.address() as *mut u8).write_bytes(0xa5, block.len()) };
    }

    proptest! {
        #[test]
        fn classes_fit_and_waste_little(size in 0usize..1 << 40) {
            let (class, rounded) = class_of(size).unwrap();
            prop_assert!(rounded >= size && class <= CLASSES);
            prop_assert_eq!(class_size(class), rounded);
            prop_assert_eq!(class_of(rounded).unwrap(), (class, rounded));
            prop_assert!(size < 512 || rounded - size <= (size / 8).max(HUGE_PAGE * usize::from(size >= LARGE - HUGE_PAGE)));
        }
    }

    #[test]
    fn blocks_are_aligned_reused_and_counted() {
        let memory = allocator(64 << 20, 1 << 30);
        for size in [0, 1, 63, 64, 4096, 1 << 20, LARGE - 1, LARGE, 9 << 20] {
            let block = memory.allocate(size).unwrap();
            touch(&block);
            assert_eq!(block.address() as usize % ALIGN, 0);
            assert!(size < LARGE || (block.address() as usize).is_multiple_of(HUGE_PAGE));
            let address = block.address();
            drop(block);
            assert_eq!(memory.allocate(size).unwrap().address(), address, "{size}");
        }
        let stats = memory.stats();
        assert_eq!((stats.live, stats.hits), (0, 18 - 5)); // nine sizes in five classes
        assert_eq!(memory.trim(), stats.cached);
        assert_eq!((memory.stats().cached, memory.trim()), (0, 0));
        assert!(memory.stats().peak >= 9 << 20);
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_old_sizes() {
        let memory = allocator(1 << 20, 1 << 30);
        drop(memory.allocate(1 << 20).unwrap());
        assert_eq!(memory.stats().cached, 1 << 20);
        drop(memory.allocate(4096).unwrap());
        assert_eq!(memory.stats().cached, 4096);
        drop(memory.allocate(2 << 20).unwrap());
        assert_eq!(memory.stats().cached, 4096);
    }

    #[test]
    fn absurd_sizes_are_errors() {
        let memory = HostAllocator::default();
        for size in [
            usize::MAX,
            usize::MAX - HUGE_PAGE,
            isize::MAX as usize,
            1 << 52,
        ] {
            assert_eq!(memory.allocate(size).unwrap_err().code, Code::OutOfMemory);
        }
        let small = allocator(0, 1 << 20);
        let _held = small.allocate(1 << 20).unwrap();
        assert_eq!(
            small.allocate((1 << 20) + 1).unwrap_err().code,
            Code::OutOfMemory
        );
    }

    #[test]
    fn many_threads_share_one() {
        let memory = allocator(8 << 20, 1 << 30);
        std::thread::scope(|s| {
            for t in 0..8usize {
                let memory = memory.clone();
                s.spawn(move || {
                    for i in 0..300 {
                        let block = memory.allocate((t * 7919 + i * 104_729) % 100_000).unwrap();
                        touch(&block);
                    }
                });
            }
        });
        assert_eq!(memory.stats().live, 0);
        assert!(memory.stats().cached <= 8 << 20);
    }

    #[cfg(unix)]
    #[test]
    fn a_child_frees_what_it_inherited() {
        let memory = allocator(64 << 20, 1 << 30);
        let mut held = Some((
            memory.allocate(100).unwrap(),
            memory.allocate(LARGE).unwrap(),
        ));
        let status = fork::exit_status_of_child(|| {
            held.take();
            memory.allocate(1000).is_ok()
        });
        assert_eq!(status, 0);
        assert!(held.is_some());
    }
}
