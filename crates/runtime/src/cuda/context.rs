//! A device's primary context, and the small things that live in it: streams, events, memory.
//!
//! The primary context is the one that every library in the process shares (torch's tensors live there too). The
//! driver works on the context that is current on the calling thread; [`Context::enter`] makes ours current for a
//! while and is almost free when it already is.

use super::driver::{
    CuContext, CuDevice, CuEvent, CuStream, Driver, LIBRARIES, STREAM_NON_BLOCKING,
};
use crate::fork::{self, PerProcess};
use crate::memory::Source;
use oxyfuel_base::{Result, ensure, err};
use std::ffi::c_void;
use std::sync::Arc;

/// The driver of this process, loaded at the first call.
pub fn driver() -> Result<Arc<Driver>> {
    static DRIVER: PerProcess<Arc<Driver>> = PerProcess::new();
    DRIVER
        .get_or_try_init(|| Driver::open(LIBRARIES).map(Arc::new))
        .cloned()
}

/// The primary context of a device.
#[derive(Debug)]
pub(super) struct Context {
    pub driver: Arc<Driver>,
    pub device: CuDevice,
    context: CuContext,
    generation: u64,
}

impl Context {
    pub fn new(driver: Arc<Driver>, index: u32) -> Result<Self> {
        let (mut count, mut device, mut context) = (0, 0, CuContext::NULL);
        // SAFETY: every pointer is valid for what it points to.
        unsafe {
            driver.device_count(&mut count)?;
            let ordinal = i32::try_from(index).ok().filter(|ordinal| *ordinal < count);
            let ordinal = ordinal.ok_or_else(|| {
                err!(
                    NoDevice,
                    "there is no device cuda:{index}; this machine has {count}"
                )
            })?;
            driver.device_get(&mut device, ordinal)?;
            driver.primary_retain(&mut context, device)?;
        }
        Ok(Self {
            driver,
            device,
            context,
            generation: fork::generation(),
        })
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub fn enter(&self) -> Result<Entered<'_>> {
        ensure!(
            self.generation == fork::generation(),
            DriverCall,
            "CUDA was started before this process was forked, and does not survive that"
        );
        let mut current = CuContext::NULL;
        // SAFETY: the pointer is valid for one handle; our context lives as long as `self`.
        unsafe {
            self.driver.context_current(&mut current)?;
            if current == self.context {
                return Ok(Entered {
                    context: self,
                    pushed: false,
                });
            }
            self.driver.context_push(self.context)?;
        }
        Ok(Entered {
            context: self,
            pushed: true,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: retained once by `new`. A failure at the end of the process is nobody's concern.
            let _at_exit = unsafe { self.driver.primary_release(self.device) };
        }
    }
}

/// Our context is current on this thread.
#[derive(Debug)]
pub(super) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
}

impl Entered<'_> {
    pub fn driver(&self) -> &Driver {
        &self.context.driver
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = CuContext::NULL;
            // SAFETY: pushed by `enter` on this thread, and guards are dropped in reverse order.
            let _balanced = unsafe { self.context.driver.context_pop(&mut popped) };
        }
    }
}

/// A queue of our own.
#[derive(Debug)]
pub struct OwnStream {
    raw: CuStream,
    context: Arc<Context>,
}

impl OwnStream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut raw = CuStream::NULL;
        let entered = context.enter()?;
        // SAFETY: the pointer is valid for one handle.
        unsafe {
            entered
                .driver()
                .stream_create(&mut raw, STREAM_NON_BLOCKING)
        }?;
        drop(entered);
        Ok(Self {
            raw,
            context: context.clone(),
        })
    }

    /// The handle, for launches.
    pub fn handle(&self) -> crate::device::Stream {
        crate::device::Stream(self.raw.0 as u64)
    }

    /// Waits until everything asked on this stream is done.
    pub fn synchronize(&self) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { entered.driver().stream_synchronize(self.raw) }
    }

    /// What is asked on this stream from now on waits for the event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: both handles are alive.
        unsafe { entered.driver().stream_wait(self.raw, event.raw, 0) }
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: created by `new` and destroyed once; the driver finishes its work first.
            let _at_exit = unsafe { entered.driver().stream_destroy(self.raw) };
        }
    }
}

/// A moment in a queue.
#[derive(Debug)]
pub struct Event {
    raw: CuEvent,
    context: Arc<Context>,
}

impl Event {
    /// Records this moment of `stream`.
    pub(super) fn record(context: &Arc<Context>, stream: CuStream) -> Result<Self> {
        let mut raw = CuEvent::NULL;
        let entered = context.enter()?;
        // SAFETY: the pointer is valid for one handle.
        unsafe { entered.driver().event_create(&mut raw, 0) }?;
        let event = Self {
            raw,
            context: context.clone(),
        };
        // SAFETY: the event was just created; the stream is the caller's.
        unsafe { entered.driver().event_record(raw, stream) }?;
        Ok(event)
    }

    /// Waits for it.
    pub fn synchronize(&self) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        unsafe { entered.driver().event_synchronize(self.raw) }
    }

    /// Milliseconds from `self` to `later`; waits for both.
    pub fn milliseconds_to(&self, later: &Event) -> Result<f32> {
        self.synchronize()?;
        later.synchronize()?;
        let entered = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and the pointer is valid for one float.
        unsafe {
            entered
                .driver()
                .event_elapsed(&mut milliseconds, self.raw, later.raw)
        }?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: created by `record` and destroyed once.
            let _at_exit = unsafe { entered.driver().event_destroy(self.raw) };
        }
    }
}

/// Memory of the device, as the caching allocator asks for it.
#[derive(Debug)]
pub(super) struct DeviceMemory(pub Arc<Context>);

impl Source for DeviceMemory {
    fn take(&self, size: usize) -> Option<u64> {
        let entered = self.0.enter().ok()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for one address.
        unsafe { entered.driver().memory_allocate(&mut address, size) }.ok()?;
        Some(address)
    }

    unsafe fn give(&self, address: u64, _size: usize) {
        if let Ok(entered) = self.0.enter() {
            // SAFETY: promised by the caller; the driver waits for work that still uses the memory.
            let _at_exit = unsafe { entered.driver().memory_free(address) };
        }
    }
}

/// Host memory that the device reads and writes directly.
#[derive(Debug)]
pub(super) struct Pinned {
    pub address: *mut c_void,
    context: Arc<Context>,
}

// SAFETY: the memory belongs to this value, and the driver frees it from any thread.
unsafe impl Send for Pinned {}
// SAFETY: nothing is reached through `&self` but the address.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        let entered = context.enter()?;
        // SAFETY: the pointer is valid for one address; the memory that comes is `bytes` bytes long and ours.
        unsafe {
            entered
                .driver()
                .pinned_allocate(&mut address, bytes.max(1))?;
            address.cast::<u8>().write_bytes(0, bytes);
        }
        drop(entered);
        Ok(Self {
            address,
            context: context.clone(),
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: allocated by `new` and freed once.
            let _at_exit = unsafe { entered.driver().pinned_free(self.address) };
        }
    }
}
