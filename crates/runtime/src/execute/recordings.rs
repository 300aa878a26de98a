//! All recordings of a device's programs, below a limit of bytes.
//!
//! ```text
//!   Recordings ──▶ for each: what it keeps, when it last ran, where its workspace waits
//!                  no room for another one: the workspace that was not used for longest goes, and its recording with it
//! ```
//!
//! A recording keeps the arena that it works in and what the driver needs for its launches; submissions ([`super::submit`]) have a list of their own and keep the latter alone. One that runs now stays, and so does that of a call whose tensors are bound, as long as that call lives.

use super::Ready;
use super::replay::{Replay, Stats};
use crate::fork;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What the driver keeps for a recorded launch, about: it does not say, and what a device has free is changed by every program of the machine.
pub(super) const LAUNCH_BYTES: usize = 10 << 10;

/// See the module; a device has one.
#[derive(Debug, Default)]
pub struct Recordings {
    known: Mutex<Vec<Known>>,
    clock: AtomicU64,
}

#[derive(Debug)]
struct Known {
    bytes: usize,
    used: Arc<AtomicU64>,
    waits_in: Weak<Ready>,
}

impl Recordings {
    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all of them keep.
    pub fn bytes(&self) -> usize {
        self.known().iter().map(|known| known.bytes).sum()
    }
}

/// The part of one recording.
#[derive(Debug)]
pub(super) struct Share {
    all: Arc<Recordings>,
    bytes: usize,
    used: Arc<AtomicU64>,
    stats: Stats,
    /// Of the process that it is of.
    generation: u64,
}

impl Share {
    /// Room for a recording of so many bytes, whose workspace waits there between calls. `None`: those that cannot go leave too little.
    pub fn take(
        all: &Arc<Recordings>,
        bytes: usize,
        limit: usize,
        waits_in: &Weak<Ready>,
        stats: &Stats,
    ) -> Option<Self> {
        let mut tried: Vec<Arc<AtomicU64>> = Vec::new();
        loop {
            let mut known = all.known();
            let total: usize = known.iter().map(|known| known.bytes).sum();
            let stays = |known: &&Known| known.waits_in.strong_count() == 0;
            let staying: usize = known.iter().filter(stays).map(|known| known.bytes).sum();
            if staying + bytes > limit {
                // Nothing goes where that would not do.
                return None;
            }
            if total + bytes <= limit {
                let used = Arc::new(AtomicU64::default());
                known.push(Known {
                    bytes,
                    used: used.clone(),
                    waits_in: waits_in.clone(),
                });
                drop(known);
                stats.change(|stats| {
                    stats.recordings += 1;
                    stats.bytes += bytes;
                });
                let share = Self {
                    all: all.clone(),
                    bytes,
                    used,
                    stats: stats.clone(),
                    generation: fork::generation(),
                };
                share.touch();
                return Some(share);
            }
            let oldest = known
                .iter()
                .filter(|known| !tried.iter().any(|tried| Arc::ptr_eq(tried, &known.used)))
                .min_by_key(|known| known.used.load(Ordering::Relaxed))?;
            tried.push(oldest.used.clone());
            let home = oldest.waits_in.upgrade();
            // What goes takes itself off the list.
            drop(known);
            if let Some(workspace) = home.and_then(|ready| ready.take())
                && let Replay::Recorded(recorded) = &workspace.replay
            {
                recorded.share.stats.change(|stats| stats.evicted += 1);
            }
        }
    }

    /// It runs now.
    pub fn touch(&self) {
        let now = self.all.clock.fetch_add(1, Ordering::Relaxed);
        self.used.store(now, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A thread that is not in a forked child may hold the lock there.
            return;
        }
        let mut known = self.all.known();
        known.retain(|known| !Arc::ptr_eq(&known.used, &self.used));
        drop(known);
        self.stats.change(|stats| {
            stats.recordings -= 1;
            stats.bytes -= self.bytes;
        });
    }
}
