//! A device's primary context.
//!
//! The primary context is the one that every library in the process shares (torch's tensors live there too). The
//! driver works on the context that is current on the calling thread; [`Context::enter`] makes ours current for a
//! while and is almost free when it already is.

use super::abi::{CuContext, CuDevice};
use super::driver::{Driver, LIBRARIES};
use super::launches::Launches;
use crate::device::{DeviceId, DeviceKind};
use crate::fork::{self, PerProcess};
use oxyfuel_base::{Result, ensure, err};
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
    pub id: DeviceId,
    pub launches: Arc<Launches>,
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
            launches: driver.launches(device),
            driver,
            device,
            id: DeviceId {
                kind: DeviceKind::Cuda,
                index,
            },
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
