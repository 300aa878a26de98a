//! Hashes that stay the same between runs, machines and builds: keys of the disk cache.
//!
//! A value is hashed through its serde form in postcard's bytes. What changes the bytes changes the
//! digest (a field added, a variant moved), which is what a cache key wants; what does not reach
//! serde does not count. Maps must have an order of their own (`BTreeMap`, `IndexMap`, `Arena`): a
//! `HashMap` hashes as it happens to iterate.

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// 32 bytes of BLAKE3, shown as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// The first 16 hex digits: a name for people, not a key.
    pub fn short(&self) -> String {
        self.to_string()[..16].to_string()
    }

    /// The first 8 bytes as a number, for hash tables.
    pub fn as_u64(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(s: &str) -> Result<Digest> {
        blake3::Hash::from_hex(s)
            .map(|h| Digest(*h.as_bytes()))
            .map_err(|e| Error::new(Code::InvalidLiteral, format!("not a digest: {e}")))
    }
}

/// The digest of a value's serialised form.
///
/// Fails only for types that postcard cannot write (sequences of unknown length).
pub fn digest_of<T: Serialize + ?Sized>(value: &T) -> Result<Digest> {
    let mut hasher = Hasher::new();
    hasher.add(value)?;
    Ok(hasher.finish())
}

/// Collects several values into one digest.
#[derive(Clone, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Nothing added yet.
    pub fn new() -> Hasher {
        Hasher::default()
    }

    /// Adds a value's serialised form, with its length, so that two values never run together.
    pub fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        let bytes = postcard::to_stdvec(value)
            .map_err(|e| Error::new(Code::Internal, format!("a value cannot be hashed: {e}")))?;
        self.add_bytes(&bytes);
        Ok(())
    }

    /// Adds raw bytes, with their length.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// The digest of all that was added.
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::scalar::Scalar;

    /// A bit of everything a cache key holds.
    fn sample() -> impl Serialize {
        let dims: Vec<crate::sym::Expr> = vec!["8*(s0//8) + 3".parse().unwrap(), 128.into()];
        (
            "kernel",
            DType::BF16,
            dims,
            Scalar::F(-0.0),
            Some(7u64),
            [true, false],
        )
    }

    #[test]
    fn digests_never_change() {
        // A change here invalidates every disk cache: bump it only together with a release note.
        assert_eq!(
            digest_of(&sample()).unwrap().to_string(),
            "579872a60ba23dc8c64a8894b73e1c097560dee4d9e103a5a91b9d8b9ed461db"
        );
        assert_eq!(Digest::of_bytes(b"").short(), "af1349b9f5f9a1a6");
    }

    #[test]
    fn text_round_trips() {
        let digest = digest_of("x").unwrap();
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert_eq!(
            "zz".parse::<Digest>().unwrap_err().code,
            Code::InvalidLiteral
        );
        assert_ne!(digest.as_u64(), digest_of("y").unwrap().as_u64());
    }

    #[test]
    fn values_do_not_run_together() {
        let digest = |parts: &[&str]| {
            let mut hasher = Hasher::new();
            parts.iter().for_each(|p| hasher.add_bytes(p.as_bytes()));
            hasher.finish()
        };
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
