//! Plans on disk, so that a second process compiles nothing.
//!
//! Cached machine code is code execution. So the directory is the user's own and closed to others (0700, owner checked), links are not followed, and an entry counts
//! only when it belongs to the same user, was written by this very build under this very name and passes its checksum. Anything else found in its place is replaced.
//!
//! An entry is written beside its place and renamed into it: readers see a whole entry or none, and two processes may write the same one at once. Deleting (eviction,
//! `clear`) holds a lock file, so that two processes do not both make room.
//!
//! Every entry says what it is of ([`Label`]), so that a miss can be explained and a directory be tidied without loading any code.
//!
//! Nothing here fails a compile: whoever asks gets the plan or the reason why there is none.

mod archive;
mod envelope;
mod label;
pub(crate) mod lines;
mod tidy;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use oxyfuel_base::hash::Hasher;
use oxyfuel_base::{Code, Digest, Error, Result, err};
use oxyfuel_graph::Graph;
use oxyfuel_plan::{Plan, TargetDesc};
use oxyfuel_runtime::cuda::CubinStore;
use oxyfuel_runtime::user::effective_user;
use serde::Serialize;

use crate::options::Options;
pub use archive::Imported;
use envelope::{unwrap, wrap};
pub use label::{Label, Miss, Missed};
pub use tidy::{Tidied, Tidy};

/// The build that writes entries: version, and a hash of the sources where they are at hand.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("OXYFUEL_BUILD"));

/// Bytes that all entries together may take unless told otherwise.
pub const DEFAULT_LIMIT: u64 = 1 << 30;

const LOCK: &str = "lock";
const TEMPORARY: &str = "tmp-";
/// Where files cannot be locked, one that is being written for longer than this was left by a process that died.
const STALE: Duration = Duration::from_secs(3600);

/// Whoever cleans up may find a file between its making and its lock; that it happens so often in a row means that something else is wrong.
const ATTEMPTS: u32 = 16;

/// What to do about an entry that cannot be used.
const REPLACED: &str = "nothing is lost: the graph is compiled, and the entry replaced";

/// A directory of entries.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    limit: u64,
    user: u32,
}

/// What a cache has for a key.
#[derive(Clone, Debug)]
pub enum Found<T> {
    Entry(T),
    Nothing,
    /// Something that cannot be used, and why; the next write replaces it.
    Unusable(Error),
}

/// What is in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheInfo {
    pub dir: PathBuf,
    pub entries: usize,
    pub bytes: u64,
    pub limit: u64,
    /// Entries that this build can use: of others, and broken ones, there may be more.
    pub usable: usize,
}

/// Everything that the code of a plan follows from. Lines of the user's program do not count: a blank line above a function changes nothing that it computes.
pub fn plan_key(graph: &Graph, target: &TargetDesc, options: &Options) -> Result<Digest> {
    let mut hasher = Hasher::new();
    hasher.add_bytes(BUILD.as_bytes());
    hasher.add(&lines::program(graph)?)?;
    hasher.add(target)?;
    hasher.add_bytes(options.key().as_bytes());
    Ok(hasher.finish())
}

impl Cache {
    /// Opens a directory, or makes it.
    pub fn open(dir: &Path, limit: u64) -> Result<Self> {
        let bad = |error: io::Error| cannot_write(&error, dir);
        match fs::symlink_metadata(dir) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
                made.map_err(bad)?;
            }
            Err(error) => return Err(cannot_read(&error, dir)),
        }
        let found = fs::symlink_metadata(dir).map_err(|error| cannot_read(&error, dir))?;
        if !found.is_dir() {
            return Err(
                err!(CacheUnwritable, "{} is not a directory", dir.display())
                    .help("name another directory, or remove what is there"),
            );
        }
        let user = effective_user();
        let mode = found.mode();
        if found.uid() != user || mode & 0o022 != 0 {
            return Err(err!(
                CacheUntrusted,
                "{} belongs to user {} with mode {:o}; a cache of machine code must be yours alone",
                dir.display(),
                found.uid(),
                mode & 0o777
            )
            .help("name a directory that does not exist yet"));
        }
        if mode & 0o777 != 0o700 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(bad)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            limit,
            user,
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The plan of a key.
    pub fn get(&self, key: &Digest) -> Found<Plan> {
        match self.read(&plan_file(key)) {
            Ok(Some(bytes)) => match postcard::from_bytes(&bytes) {
                Ok(plan) => Found::Entry(plan),
                Err(error) => {
                    let error = err!(CacheCorrupt, "the plan of {}: {error}", key.short());
                    Found::Unusable(error.help(REPLACED))
                }
            },
            Ok(None) => Found::Nothing,
            Err(error) => Found::Unusable(error),
        }
    }

    /// Keeps a plan.
    pub fn put(&self, key: &Digest, label: &Label, plan: &Plan) -> Result<()> {
        let bytes = postcard::to_stdvec(plan)
            .map_err(|error| err!(Internal, "a plan cannot be written: {error}"))?;
        self.write(&plan_file(key), label, &bytes)
    }

    pub fn info(&self) -> Result<CacheInfo> {
        let entries = self.entries()?;
        let usable = |entry: &&Entry| self.read_path(&entry.path, |_, _| ()).is_ok();
        Ok(CacheInfo {
            dir: self.dir.clone(),
            entries: entries.len(),
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            limit: self.limit,
            usable: entries.iter().filter(usable).count(),
        })
    }

    /// Deletes all entries, and what processes that died have left, and says how many there were.
    pub fn clear(&self) -> Result<usize> {
        let lock = self.lock_file()?;
        lock.lock()
            .map_err(|error| cannot_write(&error, &self.dir))?;
        let entries = self.entries()?;
        for entry in &entries {
            remove(&entry.path)?;
        }
        Ok(entries.len())
    }

    /// The checked contents of an entry; `None` where there is none.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let found = self.read_path(&self.dir.join(name), |file, payload| {
            // The oldest entries go first; an entry that is used is not old. Where the time cannot be set, it goes a little early.
            let _ = file.set_modified(SystemTime::now());
            payload.to_vec()
        })?;
        Ok(found.map(|(_, payload)| payload))
    }

    /// The label of an entry and what `then` makes of its checked contents; `None` where there is no such file.
    fn read_path<T>(
        &self,
        path: &Path,
        then: impl FnOnce(&File, &[u8]) -> T,
    ) -> Result<Option<(Label, T)>> {
        let Some((file, bytes)) = self.read_own(path)? else {
            return Ok(None);
        };
        let (label, payload) = unwrap(name_of(path), &bytes)
            .map_err(|error| error.context(path.display()).help(REPLACED))?;
        Ok(Some((label, then(&file, payload))))
    }

    /// A file that belongs to this user alone, whole; `None` where there is none.
    fn read_own(&self, path: &Path) -> Result<Option<(File, Vec<u8>)>> {
        let Some(mut file) = self.open_own(path)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|error| cannot_read(&error, path))?;
        Ok(Some((file, bytes)))
    }

    fn open_own(&self, path: &Path) -> Result<Option<File>> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err(err!(CacheUntrusted, "{} is a link", path.display()).help(REPLACED));
            }
            Err(error) => return Err(cannot_read(&error, path)),
        };
        let found = file.metadata().map_err(|error| cannot_read(&error, path))?;
        if found.uid() != self.user || found.mode() & 0o022 != 0 || !found.is_file() {
            return Err(err!(
                CacheUntrusted,
                "{} is not a file that user {} alone can write",
                path.display(),
                self.user
            )
            .help(REPLACED));
        }
        Ok(Some(file))
    }

    fn write(&self, name: &str, label: &Label, payload: &[u8]) -> Result<()> {
        self.write_whole(name, &wrap(name, label, payload)?)?;
        self.make_room(name)
    }

    /// Beside its place, then into it.
    fn write_whole(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new()
                .prefix(TEMPORARY)
                .tempfile_in(&self.dir)?;
            // Held while it is written: whoever cleans up knows by it that somebody lives. Where files cannot be locked, its age tells.
            let _ = file.as_file().lock();
            file.write_all(bytes)?;
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        let mut written = write();
        for _ in 1..ATTEMPTS {
            match &written {
                // It was cleaned up before it could be locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => written = write(),
                Ok(()) | Err(_) => break,
            }
        }
        written.map_err(|error| cannot_write(&error, &path))
    }

    /// Deletes the oldest entries until the rest fits, but never `keep`.
    fn make_room(&self, keep: &str) -> Result<()> {
        let mut entries = self.entries()?;
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        if bytes <= self.limit {
            return Ok(());
        }
        let lock = self.lock_file()?;
        // Somebody else is making room already.
        if lock.try_lock().is_err() {
            return Ok(());
        }
        entries.sort_by_key(|entry| entry.used);
        for entry in entries.iter().filter(|entry| !entry.path.ends_with(keep)) {
            if bytes <= self.limit {
                break;
            }
            remove(&entry.path)?;
            bytes -= entry.bytes;
        }
        Ok(())
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.dir.join(LOCK);
        OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|error| cannot_write(&error, &path))
    }

    /// Whether nobody writes a temporary file any more.
    fn is_left(&self, path: &Path, used: SystemTime) -> bool {
        let Ok(Some(file)) = self.open_own(path) else {
            return false;
        };
        match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => used.elapsed().is_ok_and(|age| age > STALE),
        }
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let bad = |error: io::Error| cannot_read(&error, &self.dir);
        let mut entries = Vec::new();
        for item in fs::read_dir(&self.dir).map_err(bad)? {
            let item = item.map_err(bad)?;
            let name = item.file_name();
            let name = name.to_string_lossy();
            // Another process may have deleted it since.
            let Ok(found) = item.metadata() else { continue };
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let forgotten = name.starts_with(TEMPORARY) && self.is_left(&item.path(), used);
            if ENDINGS.iter().any(|ending| name.ends_with(ending)) || forgotten {
                entries.push(Entry {
                    path: item.path(),
                    bytes: found.len(),
                    used,
                });
            }
        }
        Ok(entries)
    }
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

const ENDINGS: [&str; 2] = [".plan", ".cubin"];

/// The last part of a path; an entry of ours has one.
fn name_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

fn plan_file(key: &Digest) -> String {
    format!("{key}.plan")
}

impl CubinStore for Cache {
    fn get(&self, ptx: &str, tag: &str) -> Option<Vec<u8>> {
        self.read(&cubin_file(ptx, tag)).ok().flatten()
    }

    fn put(&self, ptx: &str, tag: &str, cubin: &[u8]) {
        // The driver made it once and can make it again.
        let _ = self.write(&cubin_file(ptx, tag), &Label::cubin(ptx, tag), cubin);
    }
}

fn cubin_file(ptx: &str, tag: &str) -> String {
    let mut hasher = Hasher::new();
    hasher.add_bytes(ptx.as_bytes());
    hasher.add_bytes(tag.as_bytes());
    format!("{}.cubin", hasher.finish())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot_write(&error, path)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn cannot_read(error: &io::Error, path: &Path) -> Error {
    Error::new(
        Code::CacheUnreadable,
        format!("{}: {error}", path.display()),
    )
    .help("name a directory that this user can read, or let the user read this one")
}

fn cannot_write(error: &io::Error, path: &Path) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Code::DiskFull
        }
        _ => Code::CacheUnwritable,
    };
    Error::new(code, format!("{}: {error}", path.display()))
        .help("name a place that this user can write and that has room")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_its_own_code() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(cannot_write(&full, Path::new("x")).code, Code::DiskFull);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            cannot_write(&denied, Path::new("x")).code,
            Code::CacheUnwritable
        );
    }
}
