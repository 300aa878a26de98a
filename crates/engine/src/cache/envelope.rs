//! What surrounds an entry's contents: magic, length of the label, label, checksum of the entry's name, label and contents, contents.
//!
//! The label stands outside of what a build alone understands, so that every build can say what an entry is. The name is what the entry is found by: the code of one graph under the name of another
//! is no entry of that graph.

use std::io::Read;

use oxyfuel_base::hash::Hasher;
use oxyfuel_base::{Digest, Result, err};

use super::{BUILD, Label};

const MAGIC: &[u8; 8] = b"oxyfuel\x03";

fn checksum(name: &str, label: &[u8], payload: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.add_bytes(name.as_bytes());
    hasher.add_bytes(label);
    hasher.add_bytes(payload);
    hasher.finish()
}

/// The bytes of an entry of that name.
pub fn wrap(name: &str, label: &Label, payload: &[u8]) -> Result<Vec<u8>> {
    let label = serde_json::to_vec(label)
        .map_err(|error| err!(Internal, "a label cannot be written: {error}"))?;
    let length = u32::try_from(label.len())
        .map_err(|_| err!(Internal, "a label of {} bytes", label.len()))?;
    let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + label.len() + 32 + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&label);
    bytes.extend_from_slice(&checksum(name, &label, payload).0);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The label and the contents of an entry of this name and build.
pub fn unwrap<'a>(name: &str, bytes: &'a [u8]) -> Result<(Label, &'a [u8])> {
    let short = || err!(CacheCorrupt, "cut short");
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| err!(CacheCorrupt, "not an entry of this cache"))?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (label, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    let (sum, payload) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    if *sum != checksum(name, label, payload).0 {
        return Err(err!(
            CacheCorrupt,
            "its checksum does not match: it was changed, or is the entry of another name"
        ));
    }
    let label: Label =
        serde_json::from_slice(label).map_err(|error| err!(CacheCorrupt, "its label: {error}"))?;
    if label.build != BUILD {
        let (theirs, ours) = (&label.build, BUILD);
        return Err(err!(
            UnsupportedVersion,
            "written by build {theirs}, this is {ours}"
        ));
    }
    Ok((label, payload))
}

/// A label of more bytes than this is none.
const LONGEST_LABEL: u32 = 1 << 16;

/// What a file says it is, unchecked.
pub fn label(mut file: impl Read) -> Result<Label> {
    let mut head = [0; 12];
    let bad = |what: &dyn std::fmt::Display| err!(CacheCorrupt, "its label: {what}");
    file.read_exact(&mut head).map_err(|error| bad(&error))?;
    let [m @ .., a, b, c, d] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    if m != *MAGIC || length > LONGEST_LABEL {
        return Err(bad(&"not an entry of this cache"));
    }
    let mut label = vec![0; length as usize];
    file.read_exact(&mut label).map_err(|error| bad(&error))?;
    serde_json::from_slice(&label).map_err(|error| bad(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_tells_every_change() {
        let good = wrap("a.plan", &Label::cubin("text", "sm_90a"), b"payload").unwrap();
        assert_eq!(unwrap("a.plan", &good).unwrap().1, b"payload");
        let renamed = unwrap("b.plan", &good).unwrap_err();
        assert_eq!(renamed.code, oxyfuel_base::Code::CacheCorrupt);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(unwrap("a.plan", &bad).is_err(), "byte {at}");
            assert!(unwrap("a.plan", &good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_build_is_named() {
        let mut label = Label::cubin("text", "sm_90a");
        label.build = "0.0.1-old".to_owned();
        let entry = wrap("a.plan", &label, b"payload").unwrap();
        let error = unwrap("a.plan", &entry).unwrap_err();
        assert_eq!(error.code, oxyfuel_base::Code::UnsupportedVersion);
        assert!(error.message.contains("0.0.1-old"), "{error}");
        assert_eq!(super::label(&entry[..]).unwrap().build, "0.0.1-old");
        for end in 0..entry.len() - b"payload".len() - 32 {
            assert!(super::label(&entry[..end]).is_err(), "cut at {end}");
        }
        let mut long = entry;
        long[11] = 0xff;
        assert!(super::label(&long[..]).is_err());
    }
}
