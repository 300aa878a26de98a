//! The device that accepts everything and computes nothing.
//!
//! With it the whole way to a GPU runs on a machine without one: plans are loaded, buffers placed, launches made; what
//! was asked is on record and what is read back is zero. It describes a card ([`h200`], [`small_card`]), whose multiprocessors code is
//! made for and whose memory can run out. It records work as the driver of a GPU does ([`recording`]), so that calls that are launched as one can be looked at.

mod recording;

use crate::capture::tape;
use crate::cuda::CudaInfo;
use crate::device::{
    Device, DeviceId, DeviceKind, Grid, Launch, LoadedKernel, Mark, MarkKind, MemorySummary,
    Replayed, Stream,
};
use crate::execute::Recordings;
use crate::memory::MemoryStats;
use crate::storage::Storage;
use oxyfuel_base::Result;
use oxyfuel_plan::{Artefact, Kernel};
use recording::{Asked, Piece};
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
    /// Bytes inside the device: from, to, how many.
    Move(u64, u64, usize),
    /// A kernel was loaded.
    Load(String),
    /// A kernel was launched: name, words, extents of each phase, or of the first where code has one entry for all.
    Launch(String, Vec<u64>, Vec<[u64; 3]>),
    /// Work was recorded, and not done: so many launches of kernels and so many copies.
    Record(usize, usize),
    /// A recorded launch got other words, from the next time on: its number, and the words.
    SetWords(usize, Vec<u64>),
    /// Recorded work was launched as one: a launch a phase and the copies, as they are now.
    Replay(Vec<NullCall>),
    /// Waited for.
    Synchronize,
}

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
    asked: Arc<Asked>,
    recordings: Arc<Recordings>,
    submissions: Arc<Recordings>,
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
            asked: Arc::default(),
            recordings: Arc::default(),
            submissions: Arc::default(),
            this: this.clone(),
        })
    }

    /// The card that it describes.
    pub fn info(&self) -> &CudaInfo {
        &self.info
    }

    /// Everything asked so far, in order.
    pub fn calls(&self) -> Vec<NullCall> {
        self.asked.calls()
    }

    /// New memory.
    fn take(&self, bytes: usize) -> Result<Storage> {
        self.asked.may_allocate(self.id())?;
        self.asked.note(NullCall::Allocate(bytes));
        let held = self.used.take(bytes, self.info.memory as usize);
        let held = held.map_or_else(|| Err(self.memory_summary()?.too_little_for(bytes)), Ok)?;
        // Addresses only have to be distinct and aligned; a page between them catches no one but reads well.
        let room = bytes.next_multiple_of(4096) as u64 + 4096;
        let address = self.next_address.fetch_add(room, Ordering::Relaxed);
        let device = self.this.upgrade().map(|this| this as Arc<dyn Device>);
        // SAFETY: nothing ever touches memory of this device, so any address is valid.
        Ok(unsafe { Storage::on_device(self.id(), device, address, bytes, Box::new(held)) })
    }
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
        tape::allocate(self.id(), bytes, || self.take(bytes))
    }

    unsafe fn write(&self, _to: u64, from: &[u8]) -> Result<()> {
        tape::refuse(self.id(), "a copy from the host")?;
        self.asked.may_wait(self.id(), "a copy from the host")?;
        self.asked.note(NullCall::Write(from.len()));
        Ok(())
    }

    unsafe fn read(&self, _from: u64, to: &mut [u8]) -> Result<()> {
        tape::refuse(self.id(), "a copy to the host")?;
        self.asked.may_wait(self.id(), "a copy to the host")?;
        self.asked.note(NullCall::Read(to.len()));
        to.fill(0);
        Ok(())
    }

    unsafe fn move_bytes(&self, from: u64, to: u64, bytes: usize, stream: Stream) -> Result<()> {
        let stream = tape::stream(self.id(), stream);
        tape::copied(self.id(), from, to);
        let copy = Piece::Copy(from, to, bytes);
        self.asked.on(self.id(), stream, vec![copy], || {
            NullCall::Move(from, to, bytes)
        })
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        self.asked.note(NullCall::Load(kernel.name.clone()));
        Ok(Box::new(NullKernel {
            name: kernel.name.clone(),
            entries: match &kernel.artefact {
                Artefact::Ptx(ptx) => ptx.entries.len(),
                Artefact::Interpreted | Artefact::MachineCode(_) => usize::MAX,
            },
            device: self.id(),
            asked: self.asked.clone(),
        }))
    }

    fn recordings(&self) -> Option<&Arc<Recordings>> {
        Some(&self.recordings)
    }

    fn submissions(&self) -> Option<&Arc<Recordings>> {
        Some(&self.submissions)
    }

    fn record_work(
        &self,
        allocates: bool,
        work: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<Box<dyn Replayed>> {
        let recorded = recording::record(&self.asked, allocates, work)?;
        Ok(Box::new(recorded))
    }

    fn synchronize(&self) -> Result<()> {
        tape::refuse(self.id(), "a wait for the device")?;
        self.asked.may_wait(self.id(), "a wait for the device")?;
        self.asked.note(NullCall::Synchronize);
        Ok(())
    }

    fn is_recording(&self, stream: Stream) -> bool {
        self.asked.is_recording(stream)
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
        tape::refuse(self.id(), "a mark in time")?;
        Ok(Mark(MarkKind::Clock(Instant::now())))
    }

    fn elapsed(&self, _from: &Mark, _to: &Mark) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}

#[derive(Debug)]
struct NullKernel {
    name: String,
    /// Of the code; one of them may be of all phases.
    entries: usize,
    device: DeviceId,
    asked: Arc<Asked>,
}

impl LoadedKernel for NullKernel {
    fn pieces(&self, grids: &[Grid]) -> usize {
        let phases = grids.iter().take(self.entries);
        phases.filter(|grid| grid.total() > 0).count()
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let stream = tape::stream(self.device, launch.stream);
        let phases = launch.grids.iter().take(self.entries);
        let pieces = phases
            .filter(|grid| grid.total() > 0)
            .map(|grid| Piece::Launch {
                name: self.name.clone(),
                words: launch.words.to_vec(),
                extents: grid.extents,
                maps: !launch.maps.is_empty(),
            });
        self.asked.on(self.device, stream, pieces.collect(), || {
            let launched = launch.grids.iter().take(self.entries);
            let grids = launched.map(|grid| grid.extents).collect();
            NullCall::Launch(self.name.clone(), launch.words.to_vec(), grids)
        })?;
        let pieces = self.pieces(launch.grids);
        tape::launched(self.device, launch, pieces, || Box::new(()));
        Ok(())
    }
}
