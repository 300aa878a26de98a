//! A cache in one file, to carry it to a machine of the same kind: magic, then for each entry its name and its bytes with their lengths, then a checksum of all.
//!
//! Whoever makes such a file decides what runs: it is taken only where its reader alone can write it, like the cache itself.

use std::path::Path;

use oxyfuel_base::{Digest, Result, ensure, err};
use serde::Serialize;

use super::envelope::unwrap;
use super::{Cache, ENDINGS, cannot_write, name_of};

const MAGIC: &[u8; 8] = b"oxyfuelA";

/// What came in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    pub entries: usize,
    /// Written by other builds, or broken: left out.
    pub unusable: usize,
}

impl Cache {
    /// Writes all entries that this build can use, and says how many.
    pub fn export(&self, to: &Path) -> Result<usize> {
        let bad = |error: std::io::Error| cannot_write(&error, to);
        let mut bytes = MAGIC.to_vec();
        let mut count = 0;
        for entry in self.entries()? {
            let name = name_of(&entry.path);
            let Ok(Some((_, contents))) = self.read_own(&entry.path) else {
                continue;
            };
            if unwrap(name, &contents).is_err() {
                continue;
            }
            for part in [name.as_bytes(), &contents] {
                bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                bytes.extend_from_slice(part);
            }
            count += 1;
        }
        let sum = Digest::of_bytes(&bytes);
        bytes.extend_from_slice(&sum.0);
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file =
            tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(bad)?;
        std::fs::write(file.path(), &bytes).map_err(bad)?;
        file.persist(to).map_err(|error| bad(error.error))?;
        Ok(count)
    }

    /// Takes the entries of a file that [`Self::export`] wrote.
    pub fn import(&self, from: &Path) -> Result<Imported> {
        let (_, bytes) = self
            .read_own(from)
            .map_err(|error| {
                error.help("a file of machine code must be yours alone (chmod go-w); take it only from whom you trust")
            })?
            .ok_or_else(|| err!(FileUnreadable, "{}: no such file", from.display()))?;
        let entries = entries(&bytes).map_err(|error| error.context(from.display()))?;
        let mut done = Imported::default();
        for (name, contents) in entries {
            if unwrap(name, contents).is_err() {
                done.unusable += 1;
                continue;
            }
            self.write_whole(name, contents)?;
            self.make_room(name)?;
            done.entries += 1;
        }
        Ok(done)
    }
}

/// Names and contents, all of it checked before anything is written.
fn entries(bytes: &[u8]) -> Result<Vec<(&str, &[u8])>> {
    let short = || err!(CacheCorrupt, "cut short");
    let (body, sum) = bytes.split_last_chunk::<32>().ok_or_else(short)?;
    let mut rest = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| err!(CacheCorrupt, "not an exported cache"))?;
    ensure!(
        *sum == Digest::of_bytes(body).0,
        CacheCorrupt,
        "its checksum does not match"
    );
    let mut part = || -> Result<Option<&[u8]>> {
        let Some((length, tail)) = rest.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
        let (part, tail) = tail.split_at_checked(length).ok_or_else(short)?;
        rest = tail;
        Ok(Some(part))
    };
    let mut entries = Vec::new();
    while let Some(name) = part()? {
        let contents = part()?.ok_or_else(short)?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_entry(name));
        let name = name.ok_or_else(|| err!(CacheCorrupt, "an entry with a strange name"))?;
        entries.push((name, contents));
    }
    Ok(entries)
}

/// A digest with one of the endings: never a path.
fn is_entry(name: &str) -> bool {
    ENDINGS.iter().any(|ending| {
        name.strip_suffix(ending).is_some_and(|digest| {
            digest.len() == 64 && digest.bytes().all(|c| c.is_ascii_hexdigit())
        })
    })
}
