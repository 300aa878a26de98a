//! What surrounds an entry's contents: magic, length of the label, label, checksum of label and contents, contents.
//!
//! The label stands outside of what a build alone understands, so that every build can say what an entry is.

use oxyfuel_base::hash::Hasher;
use oxyfuel_base::{Digest, Result, err};

use super::{BUILD, Label};

const MAGIC: &[u8; 8] = b"oxyfuel\x02";

fn checksum(label: &[u8], payload: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.add_bytes(label);
    hasher.add_bytes(payload);
    hasher.finish()
}

pub fn wrap(label: &Label, payload: &[u8]) -> Result<Vec<u8>> {
    let label = serde_json::to_vec(label)
        .map_err(|error| err!(Internal, "a label cannot be written: {error}"))?;
    let length = u32::try_from(label.len())
        .map_err(|_| err!(Internal, "a label of {} bytes", label.len()))?;
    let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + label.len() + 32 + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&label);
    bytes.extend_from_slice(&checksum(&label, payload).0);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The label and the contents of an entry of this build.
pub fn unwrap(bytes: &[u8]) -> Result<(Label, &[u8])> {
    let (label, payload) = open(bytes)?;
    if label.build != BUILD {
        let (theirs, ours) = (&label.build, BUILD);
        return Err(err!(
            UnsupportedVersion,
            "written by build {theirs}, this is {ours}"
        ));
    }
    Ok((label, payload))
}

/// The label and the contents of an entry of any build.
pub fn open(bytes: &[u8]) -> Result<(Label, &[u8])> {
    let short = || err!(CacheCorrupt, "cut short");
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| err!(CacheCorrupt, "not an entry of this cache"))?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (label, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    let (sum, payload) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    if *sum != checksum(label, payload).0 {
        return Err(err!(CacheCorrupt, "its checksum does not match"));
    }
    let label =
        serde_json::from_slice(label).map_err(|error| err!(CacheCorrupt, "its label: {error}"))?;
    Ok((label, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_tells_every_change() {
        let good = wrap(&Label::cubin("text", "sm_90a"), b"payload").unwrap();
        assert_eq!(unwrap(&good).unwrap().1, b"payload");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(unwrap(&bad).is_err(), "byte {at}");
            assert!(unwrap(&good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_build_is_named() {
        let mut label = Label::cubin("text", "sm_90a");
        label.build = "0.0.1-old".to_owned();
        let entry = wrap(&label, b"payload").unwrap();
        let error = unwrap(&entry).unwrap_err();
        assert_eq!(error.code, oxyfuel_base::Code::UnsupportedVersion);
        assert!(error.message.contains("0.0.1-old"), "{error}");
        assert_eq!(open(&entry).unwrap().0.build, "0.0.1-old");
    }
}
