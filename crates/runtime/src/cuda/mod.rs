//! NVIDIA GPUs through the driver library that their owners have anyway.
//!
//! Nothing is linked: the library is opened at run time, and a machine without it gets a sentence. Work goes to the
//! default stream (the one that torch uses unless told otherwise) or to the stream that a launch names. Memory that is
//! freed is kept and given out again; on one stream that is safe without waiting, because the device works in order.
//! After a fork CUDA is gone for the child, and says so.
//!
//! ```text
//!   driver    the table of functions, by dlopen; abi: its types and numbers; library: what is used beside it
//!   context   the primary context, which torch shares
//!   stream    queues and events          memory   device, pinned and pooled memory
//!   module    PTX, cubins, launches      graph    recorded work
//!   launches  what may have faulted
//! ```

mod abi;
#[cfg(test)]
mod capture_tests;
mod context;
mod driver;
#[cfg(test)]
mod fake;
mod gemm;
mod graph;
mod launches;
mod library;
mod memory;
mod module;
#[cfg(test)]
mod replay_tests;
mod stream;
#[cfg(test)]
mod submit_tests;
#[cfg(test)]
mod tests;

pub use context::driver;
pub use driver::{Driver, LIBRARIES, OLDEST_VERSION};
pub use graph::{Recorded, Replay};
pub use library::{CUBLAS_LT, cublas_lt};
pub use memory::{Pool, PoolBlock, PoolStats};
pub use module::{CudaKernel, FunctionInfo};
pub use stream::{Event, EventUse, OwnStream};

use crate::capture::tape;
use crate::device::{
    Device, DeviceId, DeviceKind, LoadedKernel, Mark, MarkKind, MemorySummary, Replayed, Stream,
};
use crate::execute::Recordings;
use crate::memory::{Caching, MemoryOptions, MemoryStats};
use crate::storage::Storage;
use abi::{CuStream, device_attribute};
use context::Context;
use gemm::GemmKernel;
use memory::{DeviceMemory, Pinned};
use oxyfuel_base::{Code, Error, Result, ensure, err};
use oxyfuel_plan::{Artefact, Kernel, PtxModule};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaInfo {
    /// Its name.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads that one multiprocessor holds.
    pub threads_per_multiprocessor: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_per_multiprocessor: u32,
    /// Shared memory that one block may ask for in bytes.
    pub shared_per_block: u32,
    /// Second-level cache in bytes.
    pub l2_bytes: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Clock in kHz.
    pub clock_khz: u32,
    /// Memory clock in kHz (0 where newer drivers no longer say).
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// CUDA version of the driver, 1000 * major + 10 * minor.
    pub driver_version: u32,
    /// Whether it has memory pools in the order of queues.
    pub memory_pools: bool,
}

/// Where machine code made from PTX is kept between runs.
pub trait CubinStore: std::fmt::Debug + Send + Sync {
    /// The machine code of this PTX for the device and driver named by `tag`.
    fn get(&self, ptx: &str, tag: &str) -> Option<Vec<u8>>;
    /// Keeps it.
    fn put(&self, ptx: &str, tag: &str, cubin: &[u8]);
}

/// A store, and what the machine code of one device and driver is called there.
#[derive(Debug)]
struct Cubins {
    store: Arc<dyn CubinStore>,
    tag: String,
}

/// A kernel from its PTX, through a store where there is one.
fn kernel_of(
    context: &Arc<Context>,
    cubins: Option<&Cubins>,
    ptx: &PtxModule,
) -> Result<CudaKernel> {
    let Some(Cubins { store, tag }) = cubins else {
        return CudaKernel::new(context, ptx, None);
    };
    // A stale or damaged entry is not an error: the PTX is still there.
    if let Some(cubin) = store.get(&ptx.text, tag)
        && let Ok(kernel) = CudaKernel::new(context, ptx, Some(&cubin))
    {
        return Ok(kernel);
    }
    let cubin = module::link(context, &ptx.text)?;
    store.put(&ptx.text, tag, &cubin);
    CudaKernel::new(context, ptx, Some(&cubin))
}

/// A GPU.
#[derive(Debug)]
pub struct CudaDevice {
    index: u32,
    info: CudaInfo,
    context: Arc<Context>,
    memory: Caching<DeviceMemory>,
    recordings: Arc<Recordings>,
    submissions: Arc<Recordings>,
    store: Option<Arc<dyn CubinStore>>,
    this: Weak<CudaDevice>,
}

/// The number of GPUs; an error where there is no driver.
pub fn device_count() -> Result<u32> {
    let mut count = 0;
    // SAFETY: the pointer is valid for one int.
    unsafe { driver()?.device_count(&mut count) }?;
    Ok(count.unsigned_abs())
}

fn query(context: &Context) -> Result<CudaInfo> {
    let (driver, device) = (&context.driver, context.device);
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is valid for one int.
        unsafe { driver.device_attribute(&mut value, attribute, device) }?;
        Ok(value.unsigned_abs())
    };
    // What only `doctor` prints may be unknown.
    let ask_gently = |attribute| ask(attribute).unwrap_or(0);
    let mut name = [0u8; 256];
    let mut memory = 0;
    // SAFETY: the driver writes at most the length given, with a final zero, and one size.
    unsafe {
        driver.device_name(name.as_mut_ptr().cast(), name.len() as i32, device)?;
        driver.device_memory(&mut memory, device)?;
    }
    let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
    Ok(CudaInfo {
        name: name.unwrap_or_default(),
        capability: (
            ask(device_attribute::CAPABILITY_MAJOR)?,
            ask(device_attribute::CAPABILITY_MINOR)?,
        ),
        multiprocessors: ask(device_attribute::MULTIPROCESSOR_COUNT)?,
        threads_per_multiprocessor: ask(device_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?,
        registers_per_multiprocessor: ask(device_attribute::REGISTERS_PER_MULTIPROCESSOR)?,
        shared_per_multiprocessor: ask(device_attribute::SHARED_PER_MULTIPROCESSOR)?,
        shared_per_block: ask(device_attribute::SHARED_PER_BLOCK_OPT_IN)?,
        l2_bytes: ask(device_attribute::L2_CACHE_SIZE)?,
        memory: memory as u64,
        clock_khz: ask_gently(device_attribute::CLOCK_RATE),
        memory_clock_khz: ask_gently(device_attribute::MEMORY_CLOCK_RATE),
        memory_bus_bits: ask_gently(device_attribute::MEMORY_BUS_WIDTH),
        driver_version: driver.version()?,
        memory_pools: ask_gently(device_attribute::MEMORY_POOLS) != 0,
    })
}

fn raw(stream: Stream) -> CuStream {
    CuStream(stream.0 as *mut c_void)
}

impl CudaDevice {
    /// The GPU of that number; `store` keeps compiled kernels between runs.
    pub fn new(index: u32, store: Option<Arc<dyn CubinStore>>) -> Result<Arc<Self>> {
        Self::of(driver()?, index, store)
    }

    fn of(
        driver: Arc<Driver>,
        index: u32,
        store: Option<Arc<dyn CubinStore>>,
    ) -> Result<Arc<Self>> {
        let context = Arc::new(Context::new(driver, index)?);
        let info = query(&context)?;
        let total = usize::try_from(info.memory).unwrap_or(usize::MAX);
        // Without a bound on the cache: what is not used goes back when the driver has no more.
        let options = MemoryOptions {
            cache_limit: total,
            limit: total,
        };
        let memory = Caching::with_source(DeviceMemory(context.clone()), options);
        Ok(Arc::new_cyclic(|this| Self {
            index,
            info,
            context,
            memory,
            recordings: Arc::default(),
            submissions: Arc::default(),
            store,
            this: this.clone(),
        }))
    }

    /// What it is.
    pub fn info(&self) -> &CudaInfo {
        &self.info
    }

    /// Whether the vendor's library of matrix products is there.
    pub fn has_product_library(&self) -> bool {
        gemm::library().is_some()
    }

    /// Free and total bytes, as the driver sees them.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let entered = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for one size.
        unsafe { entered.driver().memory_info(&mut free, &mut total) }?;
        Ok((free, total))
    }

    /// Where our own bytes are.
    pub fn memory_stats(&self) -> MemoryStats {
        self.memory.stats()
    }

    /// A stream of our own, which does not wait for the default stream.
    pub fn new_stream(&self) -> Result<OwnStream> {
        OwnStream::new(&self.context)
    }

    /// This moment of a stream.
    pub fn event(&self, stream: Stream, what: EventUse) -> Result<Event> {
        Event::record(&self.context, raw(stream), what)
    }

    /// A pool of memory in the order of queues, of at most `max_bytes` (0: what the device has).
    pub fn pool(&self, max_bytes: usize) -> Result<Arc<Pool>> {
        Pool::new(&self.context, max_bytes)
    }

    /// What `work` asks of `stream`, recorded instead of done.
    pub fn record(
        &self,
        stream: &OwnStream,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Recorded> {
        Recorded::of_work(stream, false, work)
    }

    /// Host memory that the device reaches directly, all zero.
    pub fn pinned(&self, bytes: usize) -> Result<Storage> {
        let pinned = Pinned::new(&self.context, bytes)?;
        let address = pinned.address as u64;
        // SAFETY: the memory is initialised host memory of `bytes` bytes that lives as long as `pinned`.
        Ok(unsafe { Storage::on_device(DeviceId::CPU, None, address, bytes, Box::new(pinned)) })
    }

    /// Memory of the device, from what is kept for reuse or from the driver.
    fn take(&self, bytes: usize) -> Result<Storage> {
        let block = match self.memory.allocate(bytes) {
            Ok(block) => block,
            // A device that is lost answers every request with that, the next one included.
            Err(_) => {
                self.memory.trim();
                return Err(self.memory_summary()?.too_little_for(bytes));
            }
        };
        let address = block.address();
        let device = self.this.upgrade().map(|this| this as Arc<dyn Device>);
        // SAFETY: the block is `bytes` bytes of this device and lives in the storage.
        Ok(unsafe { Storage::on_device(self.id(), device, address, bytes, Box::new(block)) })
    }

    /// Machine code for this device.
    pub fn compile(&self, ptx: &str) -> Result<Vec<u8>> {
        module::link(&self.context, ptx)
    }

    /// Loads a kernel, through the store where there is one.
    pub fn load_ptx(&self, ptx: &PtxModule) -> Result<CudaKernel> {
        kernel_of(&self.context, self.cubins().as_ref(), ptx)
    }

    fn cubins(&self) -> Option<Cubins> {
        let (major, minor) = self.info.capability;
        let store = self.store.clone()?;
        let tag = format!("sm_{major}{minor} driver {}", self.info.driver_version);
        Some(Cubins { store, tag })
    }

    /// Fills memory with a byte, in the order of `stream`.
    ///
    /// # Safety
    /// `to` is the address of `bytes` bytes of this device that stay valid until it is done.
    pub unsafe fn fill(&self, to: u64, value: u8, bytes: usize, stream: Stream) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: promised by the caller.
        unsafe { entered.driver().fill_async(to, value, bytes, raw(stream)) }
    }

    /// Copies from (pinned) host memory in the order of `stream`.
    ///
    /// # Safety
    /// Both ranges are valid and not otherwise written until the copy is done.
    pub unsafe fn write_async(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: promised by the caller.
        unsafe {
            entered
                .driver()
                .copy_in_async(to, from.cast(), bytes, raw(stream))
        }
    }

    /// Copies to (pinned) host memory in the order of `stream`.
    ///
    /// # Safety
    /// Both ranges are valid and not otherwise touched until the copy is done.
    pub unsafe fn read_async(
        &self,
        from: u64,
        to: *mut u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: promised by the caller.
        unsafe {
            entered
                .driver()
                .copy_out_async(to.cast(), from, bytes, raw(stream))
        }
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId {
            kind: DeviceKind::Cuda,
            index: self.index,
        }
    }

    fn name(&self) -> String {
        self.info.name.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Storage> {
        tape::allocate(self.id(), bytes, || self.take(bytes))
    }

    unsafe fn write(&self, to: u64, from: &[u8]) -> Result<()> {
        tape::refuse(self.id(), "a copy from the host")?;
        let entered = self.context.enter()?;
        // SAFETY: promised by the caller.
        unsafe {
            entered
                .driver()
                .copy_in(to, from.as_ptr().cast(), from.len())
        }
    }

    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        tape::refuse(self.id(), "a copy to the host")?;
        let entered = self.context.enter()?;
        let before = self.context.launches.so_far();
        // SAFETY: promised by the caller.
        unsafe {
            entered
                .driver()
                .copy_out(to.as_mut_ptr().cast(), from, to.len())
        }?;
        self.context.launches.settle_default(before);
        Ok(())
    }

    unsafe fn move_bytes(&self, from: u64, to: u64, bytes: usize, stream: Stream) -> Result<()> {
        let entered = self.context.enter()?;
        let stream = tape::stream(self.id(), stream);
        tape::copied(self.id(), from, to);
        // SAFETY: promised by the caller.
        unsafe { entered.driver().copy_async(to, from, bytes, raw(stream)) }
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        match &kernel.artefact {
            Artefact::Ptx(ptx) => {
                let label = launches::label(kernel);
                if let Some(gemm) = &kernel.gemm
                    && let Ok(loaded) =
                        GemmKernel::new(&self.context, gemm, ptx, self.cubins(), label.clone())
                {
                    return Ok(Box::new(loaded));
                }
                let loaded = self
                    .load_ptx(ptx)
                    .map_err(|error| error.context(format_args!("kernel {}", kernel.name)))?;
                Ok(Box::new(loaded.called(label)))
            }
            Artefact::MachineCode(_) | Artefact::Interpreted => Err(err!(
                DeviceMismatch,
                "kernel {} is not code for a GPU",
                kernel.name
            )),
        }
    }

    /// The driver's compiler takes tens of milliseconds a kernel, and works on several threads at once.
    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn LoadedKernel>>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(kernels.len());
        if threads < 2 {
            return kernels.iter().map(|kernel| self.load(kernel)).collect();
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut loaded = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(kernel) = kernels.get(number) else {
                    return loaded;
                };
                loaded.push((number, self.load(kernel)));
            }
        };
        let mut loaded = std::thread::scope(|scope| {
            // Where a thread cannot be had, those that are there do its part.
            let others: Vec<_> = (1..threads)
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mut loaded = work();
            for other in others {
                loaded.extend(other.join().unwrap_or_default());
            }
            loaded
        });
        ensure!(
            loaded.len() == kernels.len(),
            Internal,
            "{} kernels were loaded, not {}",
            loaded.len(),
            kernels.len()
        );
        loaded.sort_by_key(|(number, _)| *number);
        loaded.into_iter().map(|(_, kernel)| kernel).collect()
    }

    fn memory_summary(&self) -> Result<MemorySummary> {
        let (free, total) = self.memory_info()?;
        Ok(MemorySummary {
            device: self.id(),
            name: self.info.name.clone(),
            free: Some(free),
            total,
            ours: self.memory.stats(),
        })
    }

    fn storing(&self, store: Arc<dyn CubinStore>) -> Option<Arc<dyn Device>> {
        Some(Arc::new_cyclic(|this| Self {
            index: self.index,
            info: self.info.clone(),
            context: self.context.clone(),
            memory: self.memory.clone(),
            recordings: self.recordings.clone(),
            submissions: self.submissions.clone(),
            store: Some(store),
            this: this.clone(),
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
        let stream = self.new_stream()?;
        let recorded = Recorded::of_work(&stream, allocates, || work(stream.handle()))?;
        Ok(Box::new(recorded.instantiate()?))
    }

    fn synchronize(&self) -> Result<()> {
        tape::refuse(self.id(), "a wait for the device")?;
        let entered = self.context.enter()?;
        let before = self.context.launches.so_far();
        // SAFETY: no arguments.
        unsafe { entered.driver().context_synchronize() }?;
        self.context.launches.settle(before);
        Ok(())
    }

    fn is_recording(&self, stream: Stream) -> bool {
        let Ok(entered) = self.context.enter() else {
            return false;
        };
        let mut status = 0;
        // SAFETY: the pointer is valid for one int; the stream is alive by the promise of whoever launches on it.
        let asked = unsafe { entered.driver().stream_capturing(raw(stream), &mut status) };
        // Refused where another stream's recording forbids to look at this one: waiting is forbidden then, too.
        asked.map_or_else(|error| error.code == Code::CaptureBroken, |()| status != 0)
    }

    fn share(&self) {
        self.context.launches.share();
    }

    fn fault(&self, answer: i32) -> Option<Error> {
        let driver = &self.context.driver;
        if let Some(error) = driver.fault(answer) {
            return Some(error);
        }
        // Every call answers with the fault then. This one changes nothing, waits for nobody and may be asked while work is recorded.
        let error = self.memory_info().err()?;
        (error.code == Code::KernelFault && driver.has_suspects()).then_some(error)
    }

    fn trim(&self) -> usize {
        self.memory.trim()
    }

    fn mark(&self, stream: Stream) -> Result<Mark> {
        tape::refuse(self.id(), "a mark in time")?;
        Ok(Mark(MarkKind::Cuda(self.event(stream, EventUse::Timing)?)))
    }

    fn wait_for(&self, mark: &Mark, stream: Stream) -> Result<()> {
        match &mark.0 {
            MarkKind::Cuda(event) => event.hold_up(raw(stream)),
            MarkKind::Clock(_) => Err(err!(DeviceMismatch, "a mark of another device")),
        }
    }

    fn elapsed(&self, from: &Mark, to: &Mark) -> Result<Duration> {
        match (&from.0, &to.0) {
            (MarkKind::Cuda(from), MarkKind::Cuda(to)) => Ok(Duration::from_secs_f64(
                f64::from(from.milliseconds_to(to)?.max(0.0)) / 1e3,
            )),
            (MarkKind::Clock(_), _) | (_, MarkKind::Clock(_)) => {
                Err(err!(DeviceMismatch, "a mark of another device"))
            }
        }
    }
}
