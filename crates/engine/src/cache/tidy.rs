//! Making room by hand: what no build here can use, what was not used for long, and what is too much.

use std::time::{Duration, SystemTime};

use oxyfuel_base::Result;
use serde::Serialize;

use super::{Cache, Label, cannot_write, envelope, remove};

/// What may stay.
#[derive(Clone, Debug, Default)]
pub struct Tidy {
    /// Entries that were not used for longer go.
    pub unused_for: Option<Duration>,
    /// The least recently used go until the rest fits.
    pub limit: Option<u64>,
}

/// What went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tidied {
    /// Of other builds, broken, or left by a process that died.
    pub unusable: usize,
    pub unused: usize,
    pub over_limit: usize,
    pub bytes: u64,
    pub kept: usize,
}

impl Cache {
    /// What every entry that says it is of, of whatever build. Only the labels are read: what they say is for people.
    pub(super) fn labels(&self) -> Result<Vec<Label>> {
        let mut labels = Vec::new();
        for entry in self.entries()? {
            // One that is gone, broken or not ours has nothing to say.
            if let Ok(Some(file)) = self.open_own(&entry.path)
                && let Ok(label) = envelope::label(file)
            {
                labels.push(label);
            }
        }
        Ok(labels)
    }

    /// Deletes what may not stay.
    pub fn tidy(&self, wish: &Tidy) -> Result<Tidied> {
        let lock = self.lock_file()?;
        lock.lock()
            .map_err(|error| cannot_write(&error, &self.dir))?;
        let now = SystemTime::now();
        let mut done = Tidied::default();
        let mut kept = Vec::new();
        for entry in self.entries()? {
            let age = now.duration_since(entry.used).unwrap_or_default();
            let usable = matches!(self.read_path(&entry.path, |_, _| ()), Ok(Some(_)));
            let count = if !usable {
                &mut done.unusable
            } else if wish.unused_for.is_some_and(|limit| age > limit) {
                &mut done.unused
            } else {
                kept.push(entry);
                continue;
            };
            *count += 1;
            done.bytes += entry.bytes;
            remove(&entry.path)?;
        }
        kept.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = kept.iter().map(|entry| entry.bytes).sum();
        let limit = wish.limit.unwrap_or(self.limit);
        done.kept = kept.len();
        for entry in kept {
            if bytes <= limit {
                break;
            }
            remove(&entry.path)?;
            bytes -= entry.bytes;
            done.bytes += entry.bytes;
            done.over_limit += 1;
            done.kept -= 1;
        }
        Ok(done)
    }
}
