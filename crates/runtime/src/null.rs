//! The device that accepts everything and computes nothing.
//!
//! With it the whole way to a GPU runs on a machine without one: plans are loaded, buffers placed, launches made; what
//! was asked is on record and what is read back is zero.

use crate::device::{
    Device, DeviceId, DeviceKind, Launch, LoadedKernel, Mark, MarkKind, MemorySummary, Stream,
};
use crate::memory::MemoryStats;
use crate::storage::Storage;
use oxyfuel_base::{Result, err};
use oxyfuel_plan::Kernel;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Something that was asked of a null device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NullCall {
    /// Memory of this many bytes.
    Allocate(usize),
    /// Bytes from the host.
    Write(usize),
    /// Bytes to the host.
    Read(usize),
    /// Bytes inside the device.
    Move(usize),
    /// A kernel was loaded.
    Load(String),
    /// A kernel was launched: name, words, extents of each phase.
    Launch(String, Vec<u64>, Vec<[u64; 3]>),
    /// Waited for.
    Synchronize,
}

type Record = Arc<Mutex<Vec<NullCall>>>;

/// See the module.
#[derive(Debug)]
pub struct NullDevice {
    index: u32,
    next_address: AtomicU64,
    record: Record,
    this: Weak<NullDevice>,
}

impl NullDevice {
    /// A null device with that number.
    pub fn new(index: u32) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            index,
            next_address: AtomicU64::new(1 << 32),
            record: Record::default(),
            this: this.clone(),
        })
    }

    /// Everything asked so far, in order.
    pub fn calls(&self) -> Vec<NullCall> {
        self.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn note(record: &Record, call: NullCall) {
    record
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(call);
}

impl Device for NullDevice {
    fn id(&self) -> DeviceId {
        DeviceId {
            kind: DeviceKind::Null,
            index: self.index,
        }
    }

    fn name(&self) -> String {
        "null".into()
    }

    fn allocate(&self, bytes: usize) -> Result<Storage> {
        note(&self.record, NullCall::Allocate(bytes));
        // Addresses only have to be distinct and aligned; a page between them catches no one but reads well.
        let room = (bytes as u64)
            .checked_next_multiple_of(4096)
            .and_then(|bytes| bytes.checked_add(4096));
        let room = room.filter(|room| *room < 1 << 48);
        let room =
            room.ok_or_else(|| err!(OutOfMemory, "{bytes} bytes are too many even for nothing"))?;
        let address = self.next_address.fetch_add(room, Ordering::Relaxed);
        let device = self.this.upgrade().map(|this| this as Arc<dyn Device>);
        // SAFETY: nothing ever touches memory of this device, so any address is valid.
        Ok(unsafe { Storage::on_device(self.id(), device, address, bytes, Box::new(())) })
    }

    unsafe fn write(&self, _to: u64, from: &[u8]) -> Result<()> {
        note(&self.record, NullCall::Write(from.len()));
        Ok(())
    }

    unsafe fn read(&self, _from: u64, to: &mut [u8]) -> Result<()> {
        note(&self.record, NullCall::Read(to.len()));
        to.fill(0);
        Ok(())
    }

    unsafe fn move_bytes(&self, _from: u64, _to: u64, bytes: usize, _stream: Stream) -> Result<()> {
        note(&self.record, NullCall::Move(bytes));
        Ok(())
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        note(&self.record, NullCall::Load(kernel.name.clone()));
        Ok(Box::new(NullKernel {
            name: kernel.name.clone(),
            record: self.record.clone(),
        }))
    }

    fn synchronize(&self) -> Result<()> {
        note(&self.record, NullCall::Synchronize);
        Ok(())
    }

    fn trim(&self) -> usize {
        0
    }

    fn memory_summary(&self) -> Result<MemorySummary> {
        Ok(MemorySummary {
            device: self.id(),
            name: self.name(),
            free: None,
            total: 0,
            ours: MemoryStats::default(),
        })
    }

    fn mark(&self, _stream: Stream) -> Result<Mark> {
        Ok(Mark(MarkKind::Clock(Instant::now())))
    }

    fn elapsed(&self, _from: &Mark, _to: &Mark) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}

#[derive(Debug)]
struct NullKernel {
    name: String,
    record: Record,
}

impl LoadedKernel for NullKernel {
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let grids = launch.grids.iter().map(|grid| grid.extents).collect();
        note(
            &self.record,
            NullCall::Launch(self.name.clone(), launch.words.to_vec(), grids),
        );
        Ok(())
    }
}
