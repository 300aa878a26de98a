//! What was launched on a device and is not known to have ended well, so that a fault can be told with names.
//!
//! A kernel that faults says nothing: the call of the driver that comes next, of whatever kind, answers that there was a
//! fault. The last launches since the device was last known to be well are therefore kept, as handles in a ring that a
//! launch writes without a lock, beside the names that belong to handles.

use super::abi::CuDevice;
use crate::device::Stream;
use oxyfuel_plan::Kernel;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many launches are kept.
const KEPT: usize = 64;

/// The most kernels that a sentence names.
const NAMED: usize = 12;

/// See the module. One for each device, whatever contexts there are.
#[derive(Debug)]
pub(super) struct Launches {
    device: CuDevice,
    /// What functions, and recorded work of several, are called.
    names: Mutex<Names>,
    /// Streams whose work is recorded and not done.
    recording: Mutex<Vec<u64>>,
    ring: [AtomicUsize; KEPT],
    /// Launches so far.
    count: AtomicUsize,
    /// So many of them are known to have ended well.
    settled: AtomicUsize,
    /// The last one on a stream other than the default one was before this number.
    apart: AtomicUsize,
    /// Others ask work of the device too, which is not counted.
    shared: AtomicBool,
}

#[derive(Debug, Default)]
struct Names {
    known: HashMap<usize, Vec<Arc<str>>>,
    /// Handles that are gone, and how many launches there were then: one of theirs may still be under way.
    gone: Vec<(usize, usize)>,
}

impl Launches {
    pub fn new(device: CuDevice) -> Self {
        Self {
            device,
            names: Mutex::default(),
            recording: Mutex::default(),
            ring: [const { AtomicUsize::new(0) }; KEPT],
            count: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            apart: AtomicUsize::new(0),
            shared: AtomicBool::new(false),
        }
    }

    /// From now on others ask work of the device too: no fault is known to be that of a launch which is counted here.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// From now on the handle is called so.
    pub fn name(&self, handle: usize, names: Vec<Arc<str>>) {
        let Names { known, gone } = &mut *lock(&self.names);
        let (count, settled) = (self.so_far(), self.settled.load(Ordering::Relaxed));
        gone.retain(|&(old, number)| {
            let wanted = number > settled && number + KEPT > count && old != handle;
            if !wanted {
                known.remove(&old);
            }
            wanted
        });
        known.insert(handle, names);
    }

    /// The handle is gone; its name is known until the device was waited for.
    pub fn forget(&self, handle: usize) {
        let number = self.so_far();
        lock(&self.names).gone.push((handle, number));
    }

    /// What the handle is called.
    pub fn names(&self, handle: usize) -> Vec<Arc<str>> {
        let names = lock(&self.names);
        names.known.get(&handle).cloned().unwrap_or_default()
    }

    /// What is asked of the stream is recorded, until [`Self::recorded`].
    pub fn record(&self, stream: Stream) {
        lock(&self.recording).push(stream.0);
    }

    /// What is asked of the stream is done again.
    pub fn recorded(&self, stream: Stream) {
        lock(&self.recording).retain(|known| *known != stream.0);
    }

    /// The driver is about to be asked for a launch.
    #[inline]
    pub fn note(&self, handle: usize, stream: Stream) {
        if stream != Stream::default() {
            if lock(&self.recording).contains(&stream.0) {
                return;
            }
            self.apart
                .store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.ring[number % KEPT].store(handle, Ordering::Relaxed);
    }

    /// The launches so far, to be given to [`Self::settle`] when the device has been waited for.
    pub fn so_far(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All launches before that number have ended well.
    pub fn settle(&self, number: usize) {
        self.settled.fetch_max(number, Ordering::Relaxed);
    }

    /// The same where only the default stream was waited for.
    pub fn settle_default(&self, number: usize) {
        let settled = self.settled.load(Ordering::Relaxed);
        if self.apart.load(Ordering::Relaxed) <= settled {
            self.settle(number);
        }
    }

    /// Who may have faulted, in words: `None` where nothing of ours was under way.
    pub fn suspects(&self) -> Option<Suspects> {
        let (count, settled) = (self.so_far(), self.settled.load(Ordering::Relaxed));
        let first = settled.max(count.saturating_sub(KEPT));
        let mut kernels: Vec<(Arc<str>, usize)> = Vec::new();
        for number in first..count {
            let handle = self.ring[number % KEPT].load(Ordering::Relaxed);
            let mut names = self.names(handle);
            if names.is_empty() {
                names.push("a kernel of others".into());
            }
            for name in names {
                match kernels.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, times)) => *times += 1,
                    None => kernels.push((name, 1)),
                }
            }
        }
        let suspects = Suspects {
            device: self.device,
            kernels,
            // Launches that the ring has forgotten are suspects too.
            earlier: first - settled,
            shared: self.shared.load(Ordering::Relaxed),
        };
        (!suspects.kernels.is_empty()).then_some(suspects)
    }
}

/// Kernels of a device one of which has faulted.
#[derive(Debug)]
pub(super) struct Suspects {
    device: CuDevice,
    /// In the order of their first launch, and how often each was launched.
    kernels: Vec<(Arc<str>, usize)>,
    earlier: usize,
    /// It may have been work of others.
    shared: bool,
}

impl Suspects {
    /// Whether it is known which one it was.
    pub fn is_one(&self) -> bool {
        self.kernels.len() == 1 && self.earlier == 0 && !self.shared
    }
}

impl std::fmt::Display for Suspects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.device;
        if self.is_one() {
            return write!(f, "in kernel {} on cuda:{device}", self.kernels[0].0);
        }
        let others = if self.shared {
            ", or in work of others there"
        } else {
            ""
        };
        write!(
            f,
            "in one of the kernels launched on cuda:{device} since it was last waited for{others}: "
        )?;
        // The last ones are the likely ones.
        let left_out = self.kernels.len().saturating_sub(NAMED);
        if left_out > 0 || self.earlier > 0 {
            write!(f, "... {} before these; ", left_out + self.earlier)?;
        }
        for (number, (name, times)) in self.kernels[left_out..].iter().enumerate() {
            f.write_str(if number == 0 { "" } else { "; " })?;
            f.write_str(name)?;
            if *times > 1 {
                write!(f, " {times} times")?;
            }
        }
        Ok(())
    }
}

/// A kernel as people know it: its name, the operators that it computes and the lines they stand in.
pub(super) fn label(kernel: &Kernel) -> Arc<str> {
    /// More lines than this are a list, not a place.
    const LINES: usize = 3;
    let mut text = kernel.name.clone();
    let provenance = &kernel.provenance;
    if !provenance.ops.is_empty() {
        let _never_fails = write!(text, " ({}", provenance.ops.join(", "));
        if !provenance.lines.is_empty() {
            let lines = provenance.lines.iter().take(LINES).cloned();
            let _never_fails = write!(text, " at {}", lines.collect::<Vec<_>>().join(", "));
        }
        text.push(')');
    }
    text.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
