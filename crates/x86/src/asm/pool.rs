//! The constant pool: deduplicated bytes behind the code, each entry aligned to its own size.

use rustc_hash::FxHashMap;

#[derive(Debug, Default)]
pub struct Pool {
    bytes: Vec<u8>,
    known: FxHashMap<Vec<u8>, u32>,
}

impl Pool {
    /// Offset of these bytes; their length is a power of two up to 64.
    pub fn add(&mut self, bytes: &[u8]) -> u32 {
        if let Some(&at) = self.known.get(bytes) {
            return at;
        }
        let aligned = self.bytes.len().next_multiple_of(bytes.len().clamp(1, 64));
        self.bytes.resize(aligned, 0);
        self.bytes.extend_from_slice(bytes);
        self.known.insert(bytes.to_vec(), aligned as u32);
        aligned as u32
    }

    /// One element of `size` bytes.
    pub fn scalar(&mut self, bits: u64, size: u8) -> u32 {
        self.add(&bits.to_le_bytes()[..size as usize])
    }

    /// An element repeated over a vector of `total` bytes.
    pub fn repeated(&mut self, bits: u64, size: u8, total: u32) -> u32 {
        let element = &bits.to_le_bytes()[..size as usize];
        self.add(&element.repeat(total as usize / size as usize))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
