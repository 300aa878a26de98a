//! Memories while a program is interpreted: bytes, and shadows that know who wrote and read each element.
//!
//! Three shadows, each only where it can tell something:
//! * *initialised*: for workspaces, write-only buffers and allocations;
//! * *owners*: for global buffers that the program writes: which instance wrote or read an element in this phase;
//! * *stamps*: for shared memory: which agent touched an element at which time, judged by the clocks of [`super::order`].

use oxyfuel_base::{DType, Error, Result, err};

use super::data::{Data, bits_float, float_bits, wrap};
use super::order::{Clock, Stamp};

#[derive(Debug)]
pub(super) enum Storage<'a> {
    Owned(Vec<u8>),
    Shared(&'a [u8]),
    Exclusive(&'a mut [u8]),
}

impl Storage<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Exclusive(bytes) => bytes,
        }
    }

    /// Nothing for memory that may only be read; the verifier keeps stores away from it.
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(_) => &mut [],
            Self::Exclusive(bytes) => bytes,
        }
    }
}

/// Several instances read the element, or wrote it in a phase whose stores overlap.
const MANY: u32 = u32::MAX;
/// The element is under atomic updates.
const ATOMIC: u32 = u32::MAX - 1;

/// Who touched the elements of a global buffer in this phase: an instance's number plus one, 0 for nobody.
#[derive(Debug)]
struct Owners {
    writer: Vec<u32>,
    reader: Vec<u32>,
}

/// Who touched the elements of a shared memory, and when.
#[derive(Debug)]
struct Stamps {
    write: Vec<Option<Stamp>>,
    reads: Vec<Vec<Stamp>>,
}

#[derive(Debug)]
pub(super) struct Memory<'a> {
    pub name: String,
    pub dtype: DType,
    pub len: usize,
    storage: Storage<'a>,
    initialised: Option<Vec<bool>>,
    owners: Option<Owners>,
    stamps: Option<Stamps>,
}

/// On whose behalf memory is touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Toucher<'c> {
    /// The number of the instance in this phase, from 1.
    pub instance: u32,
    /// Other instances of the phase may write the same element: one stays.
    pub overlaps: bool,
    pub stamp: Stamp,
    pub clock: &'c Clock,
    /// The access goes past the ordinary path (copy engine, asynchronous product): ordinary writes must have been fenced.
    pub asynchronous: bool,
}

/// Which shadows a memory needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    pub initialised: bool,
    pub owners: bool,
    pub stamps: bool,
}

impl<'a> Memory<'a> {
    pub fn new(name: String, dtype: DType, storage: Storage<'a>, checked: Checked) -> Self {
        let len = storage.bytes().len() / dtype.size();
        Self {
            name,
            dtype,
            len,
            storage,
            initialised: checked.initialised.then(|| vec![false; len]),
            owners: checked.owners.then(|| Owners {
                writer: vec![0; len],
                reader: vec![0; len],
            }),
            stamps: checked.stamps.then(|| Stamps {
                write: vec![None; len],
                reads: vec![Vec::new(); len],
            }),
        }
    }

    /// Writes of earlier phases are visible to everybody.
    pub fn start_phase(&mut self) {
        if let Some(owners) = &mut self.owners {
            owners.writer.fill(0);
            owners.reader.fill(0);
        }
    }

    fn out_of_bounds(&self, at: i64) -> Error {
        err!(
            OutOfBounds,
            "element {at} of {}, which has {}",
            self.name,
            self.len
        )
    }

    fn race(&self, at: usize, what: &str) -> Error {
        err!(DataRace, "element {at} of {} {what}", self.name)
    }

    fn check(&self, at: i64) -> Result<usize> {
        usize::try_from(at)
            .ok()
            .filter(|&i| i < self.len)
            .ok_or_else(|| self.out_of_bounds(at))
    }

    /// Checks a read of an element and notes it.
    pub fn touch_read(&mut self, at: i64, by: &Toucher<'_>) -> Result<usize> {
        let i = self.check(at)?;
        if self.initialised.as_ref().is_some_and(|init| !init[i]) {
            return Err(err!(
                UninitializedRead,
                "element {at} of {} is read, but nobody wrote it",
                self.name
            ));
        }
        if let Some(owners) = &mut self.owners {
            let writer = owners.writer[i];
            if writer != 0 && writer != by.instance {
                return Err(self.race(i, "is written by one instance and read by another"));
            }
            let reader = &mut owners.reader[i];
            *reader = if *reader == 0 || *reader == by.instance {
                by.instance
            } else {
                MANY
            };
        }
        if let Some(stamps) = &mut self.stamps {
            if let Some(write) =
                stamps.write[i].filter(|write| !by.clock.sees(*write, by.asynchronous))
            {
                return Err(self.race(
                    i,
                    &format!(
                        "is read before the write by {} is known to be done",
                        write.agent
                    ),
                ));
            }
            let reads = &mut stamps.reads[i];
            reads.retain(|read| read.agent != by.stamp.agent);
            reads.push(by.stamp);
        }
        Ok(i)
    }

    /// Checks a write of an element and notes it.
    pub fn touch_write(&mut self, at: i64, by: &Toucher<'_>) -> Result<usize> {
        let i = self.check(at)?;
        if let Some(owners) = &mut self.owners {
            let (writer, reader) = (owners.writer[i], owners.reader[i]);
            let another = writer != 0 && writer != by.instance;
            if (another && !by.overlaps) || (reader != 0 && reader != by.instance) {
                return Err(self.race(i, "is touched by two instances, one of which writes it"));
            }
            owners.writer[i] = if another { MANY } else { by.instance };
        }
        if let Some(stamps) = &mut self.stamps {
            let early = stamps.write[i]
                .iter()
                .chain(&stamps.reads[i])
                .find(|stamp| !by.clock.sees(**stamp, false))
                .copied();
            if let Some(stamp) = early {
                return Err(self.race(
                    i,
                    &format!(
                        "is overwritten before {} is known to be done with it",
                        stamp.agent
                    ),
                ));
            }
            stamps.write[i] = Some(by.stamp);
            stamps.reads[i].clear();
        }
        if let Some(init) = &mut self.initialised {
            init[i] = true;
        }
        Ok(i)
    }

    /// Checks an atomic update of an element and notes it.
    pub fn touch_atomic(&mut self, at: i64, by: &Toucher<'_>) -> Result<usize> {
        let i = self.check(at)?;
        if self.initialised.as_ref().is_some_and(|init| !init[i]) {
            return Err(err!(
                UninitializedRead,
                "element {at} of {} is updated, but nobody wrote it",
                self.name
            ));
        }
        if let Some(owners) = &mut self.owners {
            let (writer, reader) = (owners.writer[i], owners.reader[i]);
            if !matches!(writer, 0 | ATOMIC) && writer != by.instance
                || reader != 0 && reader != by.instance
            {
                return Err(self.race(i, "is updated atomically by one instance and touched by another in the ordinary way"));
            }
            owners.writer[i] = ATOMIC;
        }
        Ok(i)
    }

    pub fn bits(&self, i: usize) -> u64 {
        let bytes = self.storage.bytes();
        let size = self.dtype.size();
        match (size, &bytes[i * size..][..size]) {
            (1, b) => b[0].into(),
            (2, b) => u16::from_le_bytes([b[0], b[1]]).into(),
            (4, b) => u32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            (_, b) => b.try_into().map_or(0, u64::from_le_bytes),
        }
    }

    fn set_bits(&mut self, i: usize, bits: u64) {
        let size = self.dtype.size();
        if let Some(to) = self.storage.bytes_mut().get_mut(i * size..(i + 1) * size) {
            to.copy_from_slice(&bits.to_le_bytes()[..size]);
        }
    }

    pub fn float(&self, i: usize) -> f64 {
        bits_float(self.dtype, self.bits(i))
    }

    pub fn int(&self, i: usize) -> i64 {
        wrap(self.dtype, self.bits(i) as i64)
    }

    /// Writes element `from` of `data`.
    pub fn set(&mut self, i: usize, data: &Data, from: usize) {
        let bits = match data {
            Data::F(x) => float_bits(self.dtype, x[from]),
            Data::I(x) => x[from] as u64,
        };
        self.set_bits(i, bits);
    }

    /// Elements at checked positions; `fill` where there is none.
    pub fn collect(&self, positions: &[Option<usize>], fill: &Data) -> Data {
        match fill {
            Data::F(fill) => Data::F(
                positions
                    .iter()
                    .map(|p| p.map_or(fill[0], |i| self.float(i)))
                    .collect(),
            ),
            Data::I(fill) => Data::I(
                positions
                    .iter()
                    .map(|p| p.map_or(fill[0], |i| self.int(i)))
                    .collect(),
            ),
        }
    }
}
