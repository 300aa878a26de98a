//! Executable memory.
//!
//! Invariants:
//! * no page is ever writable and executable at once. A chunk is one memfd mapped twice: code is written through the
//!   write side and runs on the execute side. Where the system refuses that, each piece of code gets pages of its own
//!   that are written first and then turned executable by `mprotect`.
//! * code is position independent; it starts on a 64-byte boundary and stays where it is until its [`CodeHandle`] drops.
//! * freed memory is reused, unless a forked child may still be running what it held (the mapping is shared): code
//!   that was there at a fork is never overwritten. A child starts with an arena of its own.

mod gdb;
mod map;
mod perf;

use crate::fork::{self, PerProcess};
use map::Pages;
use oxyfuel_base::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const ALIGN: usize = 64;
const CHUNK: usize = 2 << 20;
/// What free space is filled with: a jump into freed code stops at once (`int3`).
const TRAP: u8 = 0xcc;

/// How code memory behaves; both flags name kernels for other people's tools and cost a little time per kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeOptions {
    /// Append each kernel to `/tmp/perf-PID.map`, which `perf report` reads.
    pub perf_map: bool,
    /// Register each kernel with GDB's JIT interface.
    pub gdb: bool,
    /// Use `mprotect` even where a double mapping is possible.
    pub single_mapping: bool,
}

/// The owner of executable memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct CodeMemory {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    options: CodeOptions,
    arena: PerProcess<Mutex<Arena>>,
}

#[derive(Debug, Default)]
struct Arena {
    chunks: Vec<Chunk>,
    /// Set after the system refused a double mapping, so that it is asked once.
    single_mapping: bool,
    perf: perf::Map,
}

/// A double mapping and the free ranges in it (offset to length, never adjacent).
#[derive(Debug)]
struct Chunk {
    pages: Pages,
    free: BTreeMap<usize, usize>,
}

#[derive(Debug)]
enum Place {
    /// A range of a chunk.
    Shared {
        chunk: usize,
        offset: usize,
        length: usize,
    },
    /// Pages of its own.
    Own(#[expect(dead_code, reason = "held for its drop")] Pages),
}

/// A piece of machine code; dropping it gives its memory back.
#[derive(Debug)]
pub struct CodeHandle {
    address: usize,
    length: usize,
    place: Place,
    generation: u64,
    forks: u64,
    gdb: Option<gdb::Registration>,
    shared: Arc<Shared>,
}

impl CodeMemory {
    /// Code memory that behaves as asked; takes nothing from the system before the first [`Self::emit`].
    pub fn new(options: CodeOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                options,
                arena: PerProcess::new(),
            }),
        }
    }

    /// Places `code` in executable memory; `name` is what profilers and debuggers will show.
    pub fn emit(&self, name: &str, code: &[u8]) -> Result<CodeHandle> {
        let options = self.shared.options;
        let mut arena = self.shared.arena();
        let (place, address) = arena.place(code, options.single_mapping)?;
        if options.perf_map {
            arena.perf.append(address, code.len(), name);
        }
        drop(arena);
        Ok(CodeHandle {
            address,
            length: code.len(),
            place,
            generation: fork::generation(),
            forks: fork::forks(),
            gdb: options
                .gdb
                .then(|| gdb::register(name, address, code.len())),
            shared: self.shared.clone(),
        })
    }

    /// Bytes mapped for code in this process.
    pub fn reserved(&self) -> usize {
        self.shared
            .arena()
            .chunks
            .iter()
            .map(|c| c.pages.len())
            .sum()
    }
}

impl Shared {
    fn arena(&self) -> MutexGuard<'_, Arena> {
        let arena = self.arena.get_or_init(|| Mutex::new(Arena::default()));
        // Every update of the arena is complete before anything can panic, so a poisoned lock hides no damage.
        arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    fn place(&mut self, code: &[u8], single_mapping: bool) -> Result<(Place, usize)> {
        let length = code.len().max(1).next_multiple_of(ALIGN);
        if !(single_mapping || self.single_mapping) {
            if let Some(done) = self.place_in_a_chunk(code, length) {
                return Ok(done);
            }
            match Pages::double(length.max(CHUNK)) {
                Ok(pages) => {
                    let free = BTreeMap::from([(0, pages.len())]);
                    self.chunks.push(Chunk { pages, free });
                    if let Some(done) = self.place_in_a_chunk(code, length) {
                        return Ok(done);
                    }
                }
                Err(_refused) => self.single_mapping = true,
            }
        }
        let pages = Pages::executable_copy(code)?;
        let address = pages.execute_address();
        Ok((Place::Own(pages), address))
    }

    fn place_in_a_chunk(&mut self, code: &[u8], length: usize) -> Option<(Place, usize)> {
        self.chunks
            .iter_mut()
            .enumerate()
            .find_map(|(index, chunk)| {
                let offset = chunk.take(length)?;
                chunk.pages.write(offset, code);
                Some((
                    Place::Shared {
                        chunk: index,
                        offset,
                        length,
                    },
                    chunk.pages.execute_address() + offset,
                ))
            })
    }
}

impl Chunk {
    /// First fit.
    fn take(&mut self, length: usize) -> Option<usize> {
        let (&offset, &found) = self.free.iter().find(|(_, found)| **found >= length)?;
        self.free.remove(&offset);
        if found > length {
            self.free.insert(offset + length, found - length);
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: usize, mut length: usize) {
        self.pages.fill(offset, length, TRAP);
        if let Some(after) = self.free.remove(&(offset + length)) {
            length += after;
        }
        if let Some((&before, &before_length)) = self.free.range(..offset).next_back()
            && before + before_length == offset
        {
            offset = before;
            length += before_length;
        }
        self.free.insert(offset, length);
    }
}

impl CodeHandle {
    /// Where the code runs.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The code's length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no code at all.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of an entry inside the code, or `None` past its end.
    pub fn entry(&self, offset: usize) -> Option<*const u8> {
        (offset < self.length).then(|| (self.address + offset) as *const u8)
    }

    /// The code itself, for listings and debuggers.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the execute side is readable, and these bytes change only after the handle is gone.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) }
    }
}

impl Drop for CodeHandle {
    fn drop(&mut self) {
        self.gdb.take();
        let Place::Shared {
            chunk,
            offset,
            length,
        } = self.place
        else {
            return;
        };
        // A child must not touch the parent's pages, and a parent must not rewrite what a child may be running.
        if self.generation == fork::generation() && self.forks == fork::forks() {
            self.shared.arena().chunks[chunk].give(offset, length);
        }
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// `mov eax, n; ret`
    fn returns(n: u32) -> Vec<u8> {
        let mut code = vec![0xb8];
        code.extend(n.to_le_bytes());
        code.push(0xc3);
        code
    }

    fn call(code: &CodeHandle) -> u32 {
        // SAFETY: the code is a complete function without arguments that returns in eax.
        unsafe { std::mem::transmute::<usize, extern "sysv64" fn() -> u32>(code.address())() }
    }

    fn permissions(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (from, to) = range.split_once('-')?;
                let (from, to) = (
                    usize::from_str_radix(from, 16).ok()?,
                    usize::from_str_radix(to, 16).ok()?,
                );
                (from..to).contains(&address).then(|| rest[..4].to_string())
            })
            .unwrap()
    }

    #[test]
    fn code_runs_and_no_page_is_writable_and_executable() {
        for single_mapping in [false, true] {
            let memory = CodeMemory::new(CodeOptions {
                single_mapping,
                ..Default::default()
            });
            let handles: Vec<CodeHandle> = (0..100)
                .map(|n| memory.emit("returns", &returns(n)).unwrap())
                .collect();
            for (n, handle) in handles.iter().enumerate() {
                assert_eq!(call(handle), n as u32);
                assert_eq!(handle.address() % ALIGN, 0);
                assert_eq!(&permissions(handle.address())[..3], "r-x");
                assert_eq!(handle.bytes(), returns(n as u32));
            }
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(
                !maps
                    .lines()
                    .any(|l| l.contains("oxyfuel") && l.contains("wx")),
                "{maps}"
            );
            assert_eq!(single_mapping, memory.reserved() == 0);
        }
    }

    #[test]
    fn dropped_code_is_reused_and_neighbours_join() {
        // A fork in another test would forbid the reuse, so this arena is driven directly.
        let mut arena = Arena::default();
        let mut offsets = vec![];
        for n in 0..10 {
            match arena.place(&returns(n), false).unwrap().0 {
                Place::Shared { offset, .. } => offsets.push(offset),
                Place::Own(_) => return, // no double mapping here: nothing to share
            }
        }
        let chunk = &mut arena.chunks[0];
        for index in [3, 5, 4] {
            chunk.give(offsets[index], ALIGN);
        }
        assert_eq!(chunk.free.get(&offsets[3]), Some(&(3 * ALIGN)));
        assert_eq!(chunk.take(2 * ALIGN), Some(offsets[3]));
        assert_eq!(chunk.free.get(&offsets[5]), Some(&ALIGN));
    }

    #[test]
    fn grows_by_chunks_and_takes_code_larger_than_one() {
        let memory = CodeMemory::default();
        let mut big = vec![0x90; 3 << 20];
        big.extend(returns(7));
        let first = memory.emit("small", &returns(1)).unwrap();
        let second = memory.emit("big", &big).unwrap();
        assert_eq!((call(&first), call(&second)), (1, 7));
        assert!(memory.reserved() == 0 || memory.reserved() >= 5 << 20);
    }

    #[test]
    fn entries_stay_inside() {
        let handle = CodeMemory::default().emit("two", &returns(2)).unwrap();
        assert!(handle.entry(5).is_some());
        assert!(handle.entry(6).is_none());
        assert!(!handle.is_empty() && handle.len() == 6);
    }

    #[test]
    fn threads_emit_and_drop_at_once() {
        let memory = CodeMemory::default();
        std::thread::scope(|s| {
            for t in 0..8 {
                let memory = &memory;
                s.spawn(move || {
                    for i in 0..200 {
                        let handle = memory.emit("t", &returns(t * 1000 + i)).unwrap();
                        assert_eq!(call(&handle), t * 1000 + i);
                    }
                });
            }
        });
    }

    #[test]
    fn a_child_runs_old_code_and_emits_into_an_arena_of_its_own() {
        let memory = CodeMemory::default();
        let old = memory.emit("old", &returns(11)).unwrap();
        let status = fork::exit_status_of_child(|| {
            let new = memory.emit("new", &returns(12)).unwrap();
            call(&old) == 11 && call(&new) == 12
        });
        assert_eq!(status, 0);
        // What the child could still be running is not rewritten by the parent.
        let address = old.address();
        drop(old);
        let next = memory.emit("next", &returns(13)).unwrap();
        assert_ne!(next.address(), address);
        assert_eq!(call(&next), 13);
    }

    #[test]
    fn perf_map_names_the_code() {
        let memory = CodeMemory::new(CodeOptions {
            perf_map: true,
            gdb: true,
            ..Default::default()
        });
        let handle = memory
            .emit("softmax kernel\nwith a newline", &returns(3))
            .unwrap();
        let path = format!("/tmp/perf-{}.map", std::process::id());
        let text = std::fs::read_to_string(&path).unwrap();
        let line = format!(
            "{:x} {:x} softmax kernel with a newline",
            handle.address(),
            handle.len()
        );
        assert!(text.lines().any(|l| l == line), "{text}");
        assert_eq!(call(&handle), 3);
        std::fs::remove_file(path).unwrap();
    }
}
