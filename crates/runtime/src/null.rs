//! The device that accepts everything and computes nothing.
//!
//! With it the whole way to a GPU runs on a machine without one: plans are loaded, buffers placed, launches made; what
//! was asked is on record and what is read back is zero. It describes a card ([`h200`], [`small_card`]), whose multiprocessors code is
//! made for and whose memory can run out.

use crate::cuda::CudaInfo;
use crate::device::{
    Device, DeviceId, DeviceKind, Launch, LoadedKernel, Mark, MarkKind, MemorySummary, Stream,
};
use crate::memory::MemoryStats;
use crate::storage::Storage;
use oxyfuel_base::Result;
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

/// An H200: 132 multiprocessors and 141 GB.
pub fn h200() -> CudaInfo {
    CudaInfo {
        name: "null H200".to_owned(),
        capability: (9, 0),
        multiprocessors: 132,
        threads_per_multiprocessor: 2048,
        registers_per_multiprocessor: 1 << 16,
        shared_per_multiprocessor: 228 << 10,
        shared_per_block: 227 << 10,
        l2_bytes: 50 << 20,
        memory: 141 << 30,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6144,
        driver_version: 13_000,
        memory_pools: true,
    }
}

/// A card for the office: 16 multiprocessors and 4 GB.
pub fn small_card() -> CudaInfo {
    CudaInfo {
        name: "null card of 16 multiprocessors".to_owned(),
        capability: (8, 6),
        multiprocessors: 16,
        threads_per_multiprocessor: 1536,
        registers_per_multiprocessor: 1 << 16,
        shared_per_multiprocessor: 100 << 10,
        shared_per_block: 99 << 10,
        l2_bytes: 2 << 20,
        memory: 4 << 30,
        clock_khz: 1_500_000,
        memory_clock_khz: 6_000_000,
        memory_bus_bits: 128,
        driver_version: 13_000,
        memory_pools: true,
    }
}

/// See the module.
#[derive(Debug)]
pub struct NullDevice {
    index: u32,
    info: CudaInfo,
    used: Arc<Used>,
    next_address: AtomicU64,
    record: Record,
    this: Weak<NullDevice>,
}

impl NullDevice {
    /// An H200 that is not there, with that number.
    pub fn new(index: u32) -> Arc<Self> {
        Self::of(h200(), index)
    }

    /// That card, with that number.
    pub fn of(info: CudaInfo, index: u32) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            index,
            info,
            used: Arc::default(),
            next_address: AtomicU64::new(1 << 32),
            record: Record::default(),
            this: this.clone(),
        })
    }

    /// The card that it describes.
    pub fn info(&self) -> &CudaInfo {
        &self.info
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

/// Bytes that are in use, and the most that were.
#[derive(Debug, Default)]
struct Used(Mutex<(usize, usize)>);

impl Used {
    /// Takes bytes where so many are left below `limit`.
    fn take(self: &Arc<Self>, bytes: usize, limit: usize) -> Option<Held> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live = used.0.checked_add(bytes).filter(|live| *live <= limit)?;
        *used = (live, used.1.max(live));
        Some(Held(self.clone(), bytes))
    }

    fn stats(&self) -> MemoryStats {
        let (live, peak) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MemoryStats {
            live,
            peak,
            ..MemoryStats::default()
        }
    }
}

/// Bytes that are given back when it goes.
#[derive(Debug)]
struct Held(Arc<Used>, usize);

impl Drop for Held {
    fn drop(&mut self) {
        let mut used = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.0 -= self.1;
    }
}

impl Device for NullDevice {
    fn id(&self) -> DeviceId {
        DeviceId {
            kind: DeviceKind::Null,
            index: self.index,
        }
    }

    fn name(&self) -> String {
        self.info.name.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Storage> {
        note(&self.record, NullCall::Allocate(bytes));
        let held = self.used.take(bytes, self.info.memory as usize);
        let held = held.map_or_else(|| Err(self.memory_summary()?.too_little_for(bytes)), Ok)?;
        // Addresses only have to be distinct and aligned; a page between them catches no one but reads well.
        let room = bytes.next_multiple_of(4096) as u64 + 4096;
        let address = self.next_address.fetch_add(room, Ordering::Relaxed);
        let device = self.this.upgrade().map(|this| this as Arc<dyn Device>);
        // SAFETY: nothing ever touches memory of this device, so any address is valid.
        Ok(unsafe { Storage::on_device(self.id(), device, address, bytes, Box::new(held)) })
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
        let (total, ours) = (self.info.memory as usize, self.used.stats());
        Ok(MemorySummary {
            device: self.id(),
            name: self.name(),
            free: Some(total - ours.live),
            total,
            ours,
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
