//! Memory that the driver gives: the device's, the host's that the device reaches, and pools in the order of queues.

use super::abi::{CuPool, PoolProps, pool_attribute};
use super::context::Context;
use super::stream::OwnStream;
use crate::memory::Source;
use oxyfuel_base::{Result, ensure};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

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

/// Memory of the device that is given out and taken back in the order of queues: neither waits for the device.
///
/// What is freed stays with the pool, up to [`Pool::keep`] bytes at the next synchronisation.
#[derive(Debug)]
pub struct Pool {
    raw: CuPool,
    context: Arc<Context>,
}

/// Where the bytes of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Taken from the device.
    pub reserved: u64,
    /// In use.
    pub used: u64,
    /// The most that was ever in use at once.
    pub used_high: u64,
}

impl Pool {
    /// A pool of at most `max_bytes` (0: what the device has).
    pub(super) fn new(context: &Arc<Context>, max_bytes: usize) -> Result<Arc<Self>> {
        let mut raw = CuPool::NULL;
        let entered = context.enter()?;
        let props = PoolProps::on_device(context.device, max_bytes);
        // SAFETY: the pointers are valid for one handle and for the properties.
        unsafe { entered.driver().pool_create(&mut raw, &props) }?;
        drop(entered);
        Ok(Arc::new(Self {
            raw,
            context: context.clone(),
        }))
    }

    /// How many bytes that nobody uses stay with the pool.
    pub fn keep(&self, bytes: u64) -> Result<()> {
        let mut bytes = bytes;
        let entered = self.context.enter()?;
        let value = std::ptr::from_mut(&mut bytes).cast();
        // SAFETY: the value is a 64-bit number, as the attribute wants it.
        unsafe {
            entered
                .driver()
                .pool_set(self.raw, pool_attribute::RELEASE_THRESHOLD, value)
        }
    }

    /// Gives what nobody uses back to the device, but for `keep` bytes.
    pub fn trim(&self, keep: usize) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: the pool lives as long as `self`.
        unsafe { entered.driver().pool_trim(self.raw, keep) }
    }

    /// Where its bytes are.
    pub fn stats(&self) -> Result<PoolStats> {
        let entered = self.context.enter()?;
        let ask = |attribute: c_int| -> Result<u64> {
            let mut value = 0u64;
            let place: *mut c_void = std::ptr::from_mut(&mut value).cast();
            // SAFETY: the value is a 64-bit number, as the attributes are.
            unsafe { entered.driver().pool_get(self.raw, attribute, place) }?;
            Ok(value)
        };
        Ok(PoolStats {
            reserved: ask(pool_attribute::RESERVED)?,
            used: ask(pool_attribute::USED)?,
            used_high: ask(pool_attribute::USED_HIGH)?,
        })
    }

    /// Memory with arbitrary contents, for work on `stream`; it goes back to the pool in the order of that stream.
    pub fn allocate(self: &Arc<Self>, bytes: usize, stream: &Arc<OwnStream>) -> Result<PoolBlock> {
        ensure!(
            stream.context.device == self.context.device,
            DeviceMismatch,
            "a stream of another device"
        );
        let mut address = 0;
        let entered = self.context.enter()?;
        // SAFETY: the pointer is valid for one address; pool and stream are alive.
        unsafe {
            entered
                .driver()
                .pool_allocate(&mut address, bytes.max(1), self.raw, stream.raw)
        }?;
        drop(entered);
        Ok(PoolBlock {
            address,
            bytes,
            pool: self.clone(),
            stream: stream.clone(),
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: created by `new` and destroyed once; its blocks hold it, so none is left.
            let _at_exit = unsafe { entered.driver().pool_destroy(self.raw) };
        }
    }
}

/// Memory of a pool.
#[derive(Debug)]
pub struct PoolBlock {
    address: u64,
    bytes: usize,
    pool: Arc<Pool>,
    stream: Arc<OwnStream>,
}

impl PoolBlock {
    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no byte was asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        if let Ok(entered) = self.pool.context.enter() {
            // SAFETY: allocated from the pool and freed once; work on the stream before this moment may still use it.
            let _at_exit = unsafe { entered.driver().pool_free(self.address, self.stream.raw) };
        }
    }
}
