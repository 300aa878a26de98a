//! The host's own processor as a device.
//!
//! A kernel is machine code with one entry a phase:
//! `extern "sysv64" fn(args: *const u64, scratch: *mut u8, begin: u64, end: u64)` runs the program instances
//! `begin..end` of that phase. The pool cuts the grid; its end is the barrier between phases. A kernel that uses matrix
//! tiles sets them up and releases them itself, between its entry and its return.

pub mod features;
mod scratch;

use crate::code::{CodeHandle, CodeMemory, CodeOptions};
use crate::device::{
    Device, DeviceId, Launch, LoadedKernel, Mark, MarkKind, MemorySummary, Stream,
};
use crate::memory::HostAllocator;
use crate::pool::Pool;
use crate::runner::{Interpreted, Judged, KernelRunner};
use crate::storage::Storage;
use features::{CpuFeatures, Machine};
use oxyfuel_base::{Result, ensure, err};
use oxyfuel_plan::{Artefact, Kernel, MachineCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The host's processor: threads, memory, code.
#[derive(Debug)]
pub struct CpuDevice {
    pool: Arc<Pool>,
    memory: HostAllocator,
    code: CodeMemory,
    runner: Option<Arc<dyn KernelRunner>>,
    features: CpuFeatures,
}

impl CpuDevice {
    /// A device on this pool and this memory; `runner` takes the kernels without machine code.
    pub fn new(
        pool: Arc<Pool>,
        memory: HostAllocator,
        options: CodeOptions,
        runner: Option<Arc<dyn KernelRunner>>,
    ) -> Self {
        Self {
            pool,
            memory,
            code: CodeMemory::new(options),
            runner,
            features: Machine::get().features,
        }
    }

    /// The same as if the processor offered no more than this: it takes no other code.
    #[must_use]
    pub fn with_features(self, features: CpuFeatures) -> Self {
        Self { features, ..self }
    }

    /// The threads.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The memory.
    pub fn memory(&self) -> &HostAllocator {
        &self.memory
    }

    fn load_code(
        &self,
        kernel: &Kernel,
        machine_code: &MachineCode,
    ) -> Result<Box<dyn LoadedKernel>> {
        let (name, phases) = (&kernel.name, kernel.phases.len());
        ensure!(
            cfg!(target_arch = "x86_64"),
            UnsupportedDevice,
            "x86-64 code on another processor"
        );
        let whose = format!("kernel {name}");
        self.features.check(machine_code.needs, &whose)?;
        ensure!(
            machine_code.entries.len() == phases,
            InvalidPlan,
            "kernel {name} has {} entries for {phases} phases",
            machine_code.entries.len()
        );
        let code = self.code.emit(name, &machine_code.code)?;
        let entries = machine_code.entries.iter().map(|offset| {
            let entry = code.entry(*offset as usize).map(|entry| entry as usize);
            entry.ok_or_else(|| {
                err!(
                    InvalidPlan,
                    "kernel {name} has an entry outside of its code"
                )
            })
        });
        let entries = entries.collect::<Result<Vec<_>>>()?;
        let scratch_bytes = usize::try_from(machine_code.scratch_bytes).map_err(|_| {
            err!(
                SizeOverflow,
                "kernel {name} wants {} bytes of scratch",
                machine_code.scratch_bytes
            )
        })?;
        Ok(Box::new(Native {
            entries,
            rounds: usize::try_from(kernel.rounds).unwrap_or(usize::MAX).max(1),
            scratch_bytes,
            _code: code,
            pool: self.pool.clone(),
        }))
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        DeviceId::CPU
    }

    fn name(&self) -> String {
        format!("cpu with {} threads", self.pool.threads())
    }

    fn allocate(&self, bytes: usize) -> Result<Storage> {
        Storage::host(&self.memory, bytes)
    }

    unsafe fn write(&self, to: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller promises room for `from.len()` bytes at `to`.
        unsafe { std::ptr::copy(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller promises `to.len()` bytes at `from`.
        unsafe { std::ptr::copy(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn move_bytes(&self, from: u64, to: u64, bytes: usize, _stream: Stream) -> Result<()> {
        // A quarter of a megabyte is about where a second thread begins to pay.
        const MIN_CHUNK: usize = 256 << 10;
        self.pool.run(bytes, MIN_CHUNK, &|_, range| {
            // SAFETY: the caller promises `bytes` bytes at both addresses, without overlap; chunks are disjoint.
            unsafe {
                let from = (from as *const u8).add(range.start);
                std::ptr::copy_nonoverlapping(from, (to as *mut u8).add(range.start), range.len());
            }
        });
        Ok(())
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn LoadedKernel>> {
        match &kernel.artefact {
            Artefact::MachineCode(code) => {
                let code = self.load_code(kernel, code)?;
                match self.runner.as_ref().filter(|runner| runner.judges()) {
                    Some(runner) => Ok(Box::new(Judged {
                        code,
                        judge: runner.prepare(kernel)?,
                    })),
                    None => Ok(code),
                }
            }
            Artefact::Interpreted => {
                let runner = self.runner.as_ref();
                let runner = runner.ok_or_else(|| {
                    err!(
                        UnsupportedDevice,
                        "kernel {} has no machine code and there is no interpreter",
                        kernel.name
                    )
                })?;
                Ok(Box::new(Interpreted(runner.prepare(kernel)?)))
            }
            Artefact::Ptx(_) => Err(err!(
                DeviceMismatch,
                "kernel {} is code for a GPU",
                kernel.name
            )),
        }
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn memory_summary(&self) -> Result<MemorySummary> {
        Ok(MemorySummary {
            device: self.id(),
            name: self.name(),
            free: None,
            total: usize::try_from(Machine::get().memory).unwrap_or(usize::MAX),
            ours: self.memory.stats(),
        })
    }

    fn trim(&self) -> usize {
        self.memory.trim()
    }

    fn mark(&self, _stream: Stream) -> Result<Mark> {
        Ok(Mark(MarkKind::Clock(Instant::now())))
    }

    fn elapsed(&self, from: &Mark, to: &Mark) -> Result<Duration> {
        match (&from.0, &to.0) {
            (MarkKind::Clock(from), MarkKind::Clock(to)) => Ok(to.saturating_duration_since(*from)),
            (MarkKind::Cuda(_), _) | (_, MarkKind::Cuda(_)) => {
                Err(err!(DeviceMismatch, "a mark of another device"))
            }
        }
    }
}

/// Machine code in its place.
#[derive(Debug)]
struct Native {
    entries: Vec<usize>,
    rounds: usize,
    scratch_bytes: usize,
    /// What the entries point into.
    _code: CodeHandle,
    pool: Arc<Pool>,
}

/// How an entry is called. Other processors have no name for the convention, and never get as far as a call.
#[cfg(target_arch = "x86_64")]
type Entry = unsafe extern "sysv64" fn(*const u64, *mut u8, u64, u64);
#[cfg(not(target_arch = "x86_64"))]
type Entry = unsafe extern "C" fn(*const u64, *mut u8, u64, u64);

impl LoadedKernel for Native {
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let no_scratch = AtomicBool::new(false);
        let phases = || self.entries.iter().zip(launch.grids);
        for (round, (entry, grid)) in
            (0..self.rounds).flat_map(|round| phases().map(move |phase| (round, phase)))
        {
            // SAFETY: the address is an entry of code that we own; the emitter's contract is exactly this signature.
            let entry = unsafe { std::mem::transmute::<usize, Entry>(*entry) };
            let min_chunk = usize::try_from(grid.min_chunk).unwrap_or(usize::MAX);
            let total = usize::try_from(grid.total());
            let total = total
                .map_err(|_| err!(SizeOverflow, "a grid of {} program instances", grid.total()))?;
            let total = total / self.rounds;
            let first = round * total;
            self.pool.run_work(total, min_chunk, &|_, range| {
                let ran = scratch::with(self.scratch_bytes, |scratch| {
                    // SAFETY: the caller promises fitting arguments; instances are disjoint; the scratch is this thread's.
                    unsafe {
                        entry(
                            launch.words.as_ptr(),
                            scratch,
                            (first + range.start) as u64,
                            (first + range.end) as u64,
                        )
                    };
                });
                if ran.is_err() {
                    no_scratch.store(true, Ordering::Relaxed);
                }
            });
            ensure!(
                !no_scratch.load(Ordering::Relaxed),
                OutOfMemory,
                "no room for {} bytes of scratch for a worker",
                self.scratch_bytes
            );
        }
        Ok(())
    }
}
