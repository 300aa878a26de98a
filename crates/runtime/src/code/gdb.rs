//! GDB's JIT interface: a linked list of in-memory object files at a well-known symbol, and a function on which the
//! debugger sets a breakpoint. Each kernel becomes one object with one function symbol.
//!
//! The list is the debugger's protocol, so it is a process-wide static; a lock orders our own updates.

use crate::fork::PerProcess;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    object: *const u8,
    object_size: u64,
}

#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

const ACTION_NONE: u32 = 0;
const ACTION_REGISTER: u32 = 1;
const ACTION_UNREGISTER: u32 = 2;

#[unsafe(no_mangle)]
static mut __jit_debug_descriptor: Descriptor = Descriptor {
    version: 1,
    action: ACTION_NONE,
    relevant: null_mut(),
    first: null_mut(),
};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn __jit_debug_register_code() {
    // The debugger stops here; the call must not be optimised away.
    std::hint::black_box(());
}

static LOCK: PerProcess<Mutex<()>> = PerProcess::new();

fn locked(update: impl FnOnce(*mut Descriptor)) {
    let lock = LOCK.get_or_init(|| Mutex::new(()));
    let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
    update(&raw mut __jit_debug_descriptor);
}

/// A registered object; unregistered at drop.
pub(super) struct Registration {
    entry: *mut Entry,
    /// The debugger reads this memory for as long as the entry is listed.
    _object: Box<[u8]>,
}

// SAFETY: the entry is reached only under the lock, and the object is immutable.
unsafe impl Send for Registration {}
// SAFETY: as above; there is no method that takes `&self`.
unsafe impl Sync for Registration {}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registration")
    }
}

pub(super) fn register(name: &str, address: usize, length: usize) -> Registration {
    let object = object_file(name, address as u64, length as u64).into_boxed_slice();
    let entry = Box::into_raw(Box::new(Entry {
        next: null_mut(),
        previous: null_mut(),
        object: object.as_ptr(),
        object_size: object.len() as u64,
    }));
    // SAFETY: under the lock we are the only writer; `entry` and every listed entry are live boxes.
    locked(|list| unsafe {
        (*entry).next = (*list).first;
        if let Some(first) = (*list).first.as_mut() {
            first.previous = entry;
        }
        (*list).first = entry;
        announce(list, entry, ACTION_REGISTER);
    });
    Registration {
        entry,
        _object: object,
    }
}

/// Tells the debugger.
///
/// # Safety
/// `list` is the descriptor, the caller holds the lock, and `entry` is live.
unsafe fn announce(list: *mut Descriptor, entry: *mut Entry, action: u32) {
    // SAFETY: promised by the caller.
    unsafe {
        (*list).relevant = entry;
        (*list).action = action;
        __jit_debug_register_code();
        (*list).relevant = null_mut();
        (*list).action = ACTION_NONE;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let entry = self.entry;
        // SAFETY: under the lock we are the only writer; the entry was made by `register` and is unlinked exactly once.
        locked(|list| unsafe {
            match (*entry).previous.as_mut() {
                Some(previous) => previous.next = (*entry).next,
                None => (*list).first = (*entry).next,
            }
            if let Some(next) = (*entry).next.as_mut() {
                next.previous = (*entry).previous;
            }
            announce(list, entry, ACTION_UNREGISTER);
            drop(Box::from_raw(entry));
        });
    }
}

/// A relocatable ELF object with a `.text` that occupies `address..address+length` in memory (and no bytes in the
/// file) and one function symbol over all of it.
fn object_file(name: &str, address: u64, length: u64) -> Vec<u8> {
    const HEADER: u64 = 64;
    const SYMBOL: u64 = 24;
    const SECTION: usize = 64;
    const SECTION_NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let mut strings = vec![0];
    strings.extend(name.bytes().filter(|b| *b != 0));
    strings.push(0);
    let strings_at = HEADER + 2 * SYMBOL;
    let names_at = strings_at + strings.len() as u64;
    let sections_at = (names_at + SECTION_NAMES.len() as u64).next_multiple_of(8);

    let mut out = Vec::with_capacity(sections_at as usize + 5 * SECTION);
    // Identification: 64 bit, little endian, version 1; then relocatable, x86-64.
    out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend([1u16, 62].map(u16::to_le_bytes).as_flattened());
    out.extend(1u32.to_le_bytes());
    out.extend([0u64, 0, sections_at].map(u64::to_le_bytes).as_flattened());
    out.extend(0u32.to_le_bytes());
    out.extend(
        [HEADER as u16, 0, 0, SECTION as u16, 5, 4]
            .map(u16::to_le_bytes)
            .as_flattened(),
    );
    // Symbols: the null one, then a global function at the start of section 1.
    out.extend([0; SYMBOL as usize]);
    out.extend(1u32.to_le_bytes());
    out.extend([0x12, 0]);
    out.extend(1u16.to_le_bytes());
    out.extend([0, length].map(u64::to_le_bytes).as_flattened());
    out.extend(strings.iter());
    out.extend(SECTION_NAMES);
    out.resize(sections_at as usize, 0);
    /// Fields of a section header in their order, with their widths in bytes.
    const FIELDS: [(&str, usize); 10] = [
        ("name", 4),
        ("type", 4),
        ("flags", 8),
        ("address", 8),
        ("offset", 8),
        ("size", 8),
        ("link", 4),
        ("info", 4),
        ("alignment", 8),
        ("entry size", 8),
    ];
    let sections: [[u64; FIELDS.len()]; 5] = [
        [0; FIELDS.len()],
        [1, 8, 6, address, HEADER, length, 0, 0, 64, 0],
        [7, 2, 0, 0, HEADER, 2 * SYMBOL, 3, 1, 8, SYMBOL],
        [15, 3, 0, 0, strings_at, strings.len() as u64, 0, 0, 1, 0],
        [
            23,
            3,
            0,
            0,
            names_at,
            SECTION_NAMES.len() as u64,
            0,
            0,
            1,
            0,
        ],
    ];
    for (value, (_, width)) in sections
        .iter()
        .flat_map(|section| section.iter().zip(FIELDS))
    {
        out.extend(&value.to_le_bytes()[..width]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<Vec<u8>> {
        let mut found = vec![];
        // SAFETY: under the lock every listed entry and its object are alive.
        locked(|list| unsafe {
            let mut at = (*list).first;
            while let Some(entry) = at.as_ref() {
                found.push(
                    std::slice::from_raw_parts(entry.object, entry.object_size as usize).to_vec(),
                );
                at = entry.next;
            }
        });
        found
    }

    #[test]
    fn entries_come_and_go() {
        let count = |name: &[u8]| {
            listed()
                .iter()
                .filter(|o| o.windows(name.len()).any(|w| w == name))
                .count()
        };
        let a = register("kernel_alpha", 0x1000, 64);
        let b = register("kernel_beta", 0x2000, 64);
        assert_eq!((count(b"kernel_alpha"), count(b"kernel_beta")), (1, 1));
        drop(a);
        assert_eq!((count(b"kernel_alpha"), count(b"kernel_beta")), (0, 1));
        drop(b);
        assert_eq!(count(b"kernel_beta"), 0);
    }

    #[test]
    fn the_object_file_is_well_formed() {
        let object = object_file("k", 0x7000, 100);
        let u64_at = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap());
        let u32_at = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
        assert_eq!(&object[..4], b"\x7fELF");
        let sections = u64_at(40) as usize;
        assert_eq!(object.len(), sections + 5 * 64);
        let names = u64_at(sections + 4 * 64 + 24) as usize;
        let found: Vec<&[u8]> = (0..5)
            .map(|i| {
                let at = names + u32_at(sections + i * 64) as usize;
                object[at..].split(|b| *b == 0).next().unwrap()
            })
            .collect();
        assert_eq!(
            found,
            [&b""[..], b".text", b".symtab", b".strtab", b".shstrtab"]
        );
        assert_eq!(
            (u64_at(sections + 64 + 16), u64_at(sections + 64 + 32)),
            (0x7000, 100)
        );
    }
}
