//! What every place that can compute offers: memory, copies, kernels, events.
//!
//! ```text
//!   Device ──allocate──▶ Storage          gives its memory back when the last holder goes
//!     │  └──load───────▶ LoadedKernel     machine code in place, module in the driver, program in the interpreter
//!     │                      └──launch──▶ all phases of a kernel, one after the other
//!     └──mark──────────▶ Mark             a moment in the order of the device's work
//! ```
//!
//! A device works in order: what was asked first is done first, copies included. The host's own processor is done when
//! a call returns; others are done after [`Device::synchronize`]. Nothing here panics on a machine without the device.

use crate::cuda::CubinStore;
use crate::execute::Recordings;
use crate::memory::MemoryStats;
use crate::storage::Storage;
use oxyfuel_base::{DType, Error, Result, ensure, err};
use oxyfuel_plan::Kernel;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What kind of place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The host's own processor.
    Cpu,
    /// A GPU behind the CUDA driver.
    Cuda,
    /// Accepts everything and computes nothing.
    Null,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// What kind.
    pub kind: DeviceKind,
    /// Which of its kind.
    pub index: u32,
}

impl DeviceId {
    /// The host's own processor.
    pub const CPU: Self = Self {
        kind: DeviceKind::Cpu,
        index: 0,
    };
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            DeviceKind::Null => write!(f, "null:{}", self.index),
        }
    }
}

/// A place that computes.
pub trait Device: fmt::Debug + Send + Sync {
    /// Which one.
    fn id(&self) -> DeviceId;

    /// Its name for people.
    fn name(&self) -> String;

    /// Memory with arbitrary contents, aligned to at least 64 bytes.
    fn allocate(&self, bytes: usize) -> Result<Storage>;

    /// Copies from the host; done when it returns.
    ///
    /// # Safety
    /// `to` is the address of `from.len()` bytes of this device that the caller may write.
    unsafe fn write(&self, to: u64, from: &[u8]) -> Result<()>;

    /// Copies to the host; done when it returns.
    ///
    /// # Safety
    /// `from` is the address of `to.len()` bytes of this device that the caller may read.
    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()>;

    /// Copies inside the device, in the order of its work on `stream`.
    ///
    /// # Safety
    /// Both are addresses of `bytes` bytes of this device, which do not overlap and stay valid until the copy is done.
    unsafe fn move_bytes(&self, from: u64, to: u64, bytes: usize, stream: Stream) -> Result<()>;

    /// Makes a kernel ready to launch.
    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>>;

    /// Makes kernels ready to launch, in their order.
    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn LoadedKernel>>> {
        kernels.iter().map(|kernel| self.load(kernel)).collect()
    }

    /// Where its bytes are.
    fn memory_summary(&self) -> Result<MemorySummary>;

    /// The same device with a place where machine code is kept between runs; `None` where none is made when kernels are loaded.
    fn storing(&self, _store: Arc<dyn CubinStore>) -> Option<Arc<dyn Device>> {
        None
    }

    /// The recordings of its programs; `None` where it records no work.
    fn recordings(&self) -> Option<&Arc<Recordings>> {
        None
    }

    /// Launches of its programs that are submitted together, below a limit of their own; `None` where it records no work.
    fn submissions(&self) -> Option<&Arc<Recordings>> {
        None
    }

    /// Whether it can record work.
    fn records(&self) -> bool {
        self.recordings().is_some()
    }

    /// What `work` asks of the stream it is given, recorded instead of done. Memory may be asked for meanwhile only where `allocates` says so.
    fn record_work(
        &self,
        _allocates: bool,
        _work: &mut dyn FnMut(Stream) -> Result<()>,
    ) -> Result<Box<dyn Replayed>> {
        Err(err!(UnsupportedDevice, "{} records no work", self.id()))
    }

    /// Waits until everything asked so far is done.
    fn synchronize(&self) -> Result<()>;

    /// Whether what is asked on the stream is recorded now, by whomever, and not done: it cannot be waited for.
    fn is_recording(&self, _stream: Stream) -> bool {
        false
    }

    /// Others ask work of it too, of which nothing is known here: a fault may be theirs.
    fn share(&self) {}

    /// The error to tell, with the kernels that may have done it, where one has faulted and the device is lost to the process; `None` where it is well or no kernel of ours was under way. For whoever was
    /// given an error by others who use the device: `answer` is the driver's number that stands in that error. Where it is none of a fault, the driver is asked.
    fn fault(&self, _answer: i32) -> Option<Error> {
        None
    }

    /// Marks this moment in the order of the device's work on `stream`.
    fn mark(&self, stream: Stream) -> Result<Mark>;

    /// What is asked on `stream` from now on is done behind the mark. A device with one queue does everything in order.
    fn wait_for(&self, _mark: &Mark, _stream: Stream) -> Result<()> {
        Ok(())
    }

    /// The time between two marks of this device; waits for the later one.
    fn elapsed(&self, from: &Mark, to: &Mark) -> Result<Duration>;

    /// Gives memory that is kept for reuse back to the system, and says how many bytes that were.
    fn trim(&self) -> usize;

    /// Fills part of a storage of this device.
    fn copy_in(&self, from: &[u8], to: &Storage, offset: usize) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        check_range(self.id(), to, offset, from.len())?;
        // SAFETY: the range was just checked to lie inside the storage, which the reference keeps alive.
        unsafe { self.write(to.address() + offset as u64, from) }
    }

    /// Reads part of a storage of this device.
    fn copy_out(&self, from: &Storage, offset: usize, to: &mut [u8]) -> Result<()> {
        // A slice of what has no elements begins anywhere.
        if to.is_empty() {
            return Ok(());
        }
        check_range(self.id(), from, offset, to.len())?;
        // SAFETY: the range was just checked to lie inside the storage, which the reference keeps alive.
        unsafe { self.read(from.address() + offset as u64, to) }
    }
}

/// Where the bytes of a device are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySummary {
    /// Which device.
    pub device: DeviceId,
    /// Its name for people.
    pub name: String,
    /// Bytes that nobody uses, other processes included; `None` where nobody says.
    pub free: Option<usize>,
    /// Bytes of the device.
    pub total: usize,
    /// Those of our allocator.
    pub ours: MemoryStats,
}

impl MemorySummary {
    /// What to say where so many bytes are wanted and not there.
    pub(crate) fn too_little_for(&self, bytes: usize) -> Error {
        err!(
            OutOfMemory,
            "{bytes} bytes are wanted on {} ({}), where {} of {} are free and {} are in use by our tensors",
            self.device,
            self.name,
            self.free.unwrap_or(0),
            self.total,
            self.ours.live
        )
        .help("use smaller shapes, or drop tensors first")
    }

    /// The same device seen through two allocators.
    pub fn and(mut self, other: &Self) -> Self {
        let (ours, theirs) = (&mut self.ours, &other.ours);
        ours.live += theirs.live;
        ours.peak += theirs.peak;
        ours.cached += theirs.cached;
        ours.hits += theirs.hits;
        ours.misses += theirs.misses;
        self
    }
}

impl fmt::Display for MemorySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| format!("{:>11.1} MiB", bytes as f64 / f64::from(1 << 20));
        let ours = &self.ours;
        writeln!(f, "{} ({})", self.device, self.name)?;
        writeln!(f, "  of the device    {}", mib(self.total))?;
        if let Some(free) = self.free {
            writeln!(f, "  free             {}", mib(free))?;
        }
        writeln!(f, "  in use by us     {}", mib(ours.live))?;
        writeln!(f, "  most in use      {}", mib(ours.peak))?;
        writeln!(f, "  kept for reuse   {}", mib(ours.cached))?;
        let requests = ours.hits + ours.misses;
        write!(
            f,
            "  requests         {requests:>11}, {} of them answered from what was kept",
            ours.hits
        )
    }
}

fn check_range(id: DeviceId, storage: &Storage, offset: usize, bytes: usize) -> Result<()> {
    ensure!(
        storage.device_id() == id,
        DeviceMismatch,
        "{id} was given memory of {}",
        storage.device_id()
    );
    let inside = offset
        .checked_add(bytes)
        .is_some_and(|end| end <= storage.len());
    ensure!(
        inside,
        IndexOutOfRange,
        "{bytes} bytes at {offset} of a storage of {} bytes",
        storage.len()
    );
    Ok(())
}

/// A queue of a device, as its driver's handle; 0 is the device's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream(pub u64);

/// A kernel in its place on a device.
pub trait LoadedKernel: fmt::Debug + Send + Sync {
    /// Runs all phases in order.
    ///
    /// # Safety
    /// The launch fits the kernel: as many words as parameters, each of its kind, and every pointer leads to memory of
    /// the device that holds what the kernel reads and writes, that nobody else writes, and that stays valid until the
    /// device is done with the kernel.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Whether pieces of work of a recorded launch can be given other words. Otherwise they stay as they were recorded.
    fn follows(&self) -> bool {
        true
    }

    /// Pieces of work of a recorded launch: one a phase that has instances, or one of all phases.
    fn pieces(&self, grids: &[Grid]) -> usize {
        grids.iter().filter(|grid| grid.total() > 0).count()
    }
}

/// Recorded work that a device does as one.
pub trait Replayed: fmt::Debug + Send + Sync {
    /// How many kernel launches were recorded.
    fn kernels(&self) -> usize;

    /// Other words for the kernel launch of that number, counted in the order of recording, from the next time on.
    fn set_words(&mut self, launch: usize, words: &[u64]) -> Result<()>;

    /// Does all of it, in the order of `stream`.
    ///
    /// # Safety
    /// What [`LoadedKernel::launch`] asks for holds for every launch with the words that it has now.
    unsafe fn launch(&mut self, stream: Stream) -> Result<()>;
}

/// One launch of a kernel: everything evaluated, nothing owned.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// One word a parameter: a pointer, a sign-extended index, or the bits of a literal in the low bytes.
    pub words: &'a [u64],
    /// What each word is.
    pub kinds: &'a [ArgKind],
    /// One grid a phase.
    pub grids: &'a [Grid],
    /// Tensor maps to build from the words.
    pub maps: &'a [MapShape],
    /// The queue to launch on.
    pub stream: Stream,
}

/// What a word of a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A pointer to this many bytes.
    Buffer {
        /// Bytes from the pointer to the end of its buffer.
        bytes: usize,
    },
    /// A 64-bit integer.
    Index,
    /// Bits of a number.
    Literal(DType),
    /// A tensor map; the word is unused.
    TensorMap,
}

/// The program instances of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Extents, the first one fastest; unused ones are 1.
    pub extents: [u64; 3],
    /// Instances that one worker should take at least.
    pub min_chunk: u64,
}

impl Grid {
    /// The number of program instances.
    pub fn total(&self) -> u64 {
        self.extents.iter().product()
    }
}

/// A tensor map with its sizes evaluated; see [`oxyfuel_plan::TensorMapSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// Position of the map among the parameters.
    pub param: usize,
    /// Position of the buffer it describes.
    pub buffer_param: usize,
    /// Element type.
    pub dtype: DType,
    /// Extents, slowest first.
    pub dims: Vec<u64>,
    /// Strides in elements, slowest first.
    pub strides: Vec<u64>,
    /// Extents of the box that one copy moves, slowest first.
    pub boxed: Vec<u32>,
    /// Bytes of the swizzle span: 0, 32, 64 or 128.
    pub swizzle_bytes: u32,
}

/// A moment in the order of a device's work.
#[derive(Debug)]
pub struct Mark(pub(crate) MarkKind);

#[derive(Debug)]
pub(crate) enum MarkKind {
    /// The host's clock.
    Clock(std::time::Instant),
    /// An event of the CUDA driver.
    Cuda(crate::cuda::Event),
}
