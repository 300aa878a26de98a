//! The bytes behind tensors: reference counted, on any device, ours or borrowed.
//!
//! A storage knows its device, its address there and its length, and gives the memory back when its last holder goes.
//! Tensors of safe code may share a storage and write to it, so every access of the host is bracketed by a borrow:
//! many readers or one writer at a time. A conflict is an error, never a race.

use crate::device::{Device, DeviceId};
use crate::memory::{Block, HostAllocator};
use oxyfuel_base::{Result, ensure, err};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// Reference-counted bytes on a device.
#[derive(Clone, Debug)]
pub struct Storage {
    inner: Arc<Inner>,
}

struct Inner {
    address: u64,
    length: usize,
    device: Option<Arc<dyn Device>>,
    id: DeviceId,
    /// Readers, or -1 for a writer.
    borrows: AtomicI32,
    /// Writers so far.
    writes: AtomicU64,
    /// A [`Kept`] is among the holders.
    kept: AtomicBool,
    owner: Owner,
}

/// What gives the memory back when dropped.
enum Owner {
    Host { _block: Block },
    Other { _keeper: Box<dyn Any + Send + Sync> },
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner = match self.owner {
            Owner::Host { .. } => "host allocator",
            Owner::Other { .. } => "other",
        };
        f.debug_struct("Storage")
            .field("device", &self.id)
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("owner", &owner)
            .finish()
    }
}

/// Runs a closure when dropped.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

impl Storage {
    /// `length` bytes of host memory with arbitrary contents.
    pub fn host(allocator: &HostAllocator, length: usize) -> Result<Self> {
        let block = allocator.allocate(length)?;
        let address = block.address();
        Ok(Self::build(
            DeviceId::CPU,
            None,
            address,
            length,
            Owner::Host { _block: block },
        ))
    }

    /// Memory of a device; `keeper` gives it back when it is dropped.
    ///
    /// # Safety
    /// `address..address + length` is memory of `device` that stays valid until `keeper` is dropped. If the device is the
    /// host's own processor, the bytes are initialised and nobody else writes them while a borrow of this storage lasts.
    pub unsafe fn on_device(
        id: DeviceId,
        device: Option<Arc<dyn Device>>,
        address: u64,
        length: usize,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::build(
            id,
            device,
            address,
            length,
            Owner::Other { _keeper: keeper },
        )
    }

    /// Somebody else's host memory; `release` is called when the last holder is gone.
    ///
    /// # Safety
    /// As for [`Self::on_device`], until `release` is called.
    pub unsafe fn foreign(
        address: *mut u8,
        length: usize,
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        let keeper = Box::new(OnDrop(Some(release)));
        Self::build(
            DeviceId::CPU,
            None,
            address as u64,
            length,
            Owner::Other { _keeper: keeper },
        )
    }

    fn build(
        id: DeviceId,
        device: Option<Arc<dyn Device>>,
        address: u64,
        length: usize,
        owner: Owner,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                address,
                length,
                device,
                id,
                borrows: AtomicI32::new(0),
                writes: AtomicU64::new(0),
                kept: AtomicBool::new(false),
                owner,
            }),
        }
    }

    /// Where the bytes are on their device.
    #[inline]
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The device the bytes are on.
    #[inline]
    pub fn device_id(&self) -> DeviceId {
        self.inner.id
    }

    /// The device itself, unless it is the host's own processor.
    #[inline]
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.inner.device.as_ref()
    }

    /// Whether two storages are the same memory object.
    #[inline]
    pub fn is_same(&self, other: &Storage) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether nobody else holds this storage, but for one who keeps it until it is free again.
    pub fn is_unique(&self) -> bool {
        // In this order: a keeper that goes in between clears its flag first, and then counts as a holder.
        let holders = Arc::strong_count(&self.inner);
        fence(Ordering::Acquire);
        holders == 1 + usize::from(self.inner.kept.load(Ordering::Relaxed))
    }

    /// Begins to read: fails while somebody writes.
    pub fn borrow(&self) -> Result<Reading<'_>> {
        self.acquire(false)?;
        Ok(Reading { storage: self })
    }

    /// Begins to write: fails while somebody reads or writes.
    pub fn borrow_mut(&self) -> Result<Writing<'_>> {
        self.acquire(true)?;
        Ok(Writing { storage: self })
    }

    /// Begins to read or write; [`Self::release`] ends it.
    #[inline]
    pub(crate) fn acquire(&self, write: bool) -> Result<()> {
        let next = |borrows: i32| match write {
            true => (borrows == 0).then_some(-1),
            false => (borrows >= 0).then_some(borrows + 1),
        };
        let free = self
            .inner
            .borrows
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, next);
        let conflict = |_| match write {
            true => err!(DataRace, "a tensor is written while another call uses it"),
            false => err!(DataRace, "a tensor is read while another call writes it"),
        };
        free.map_err(conflict)?;
        if write {
            // Nobody else writes now, so that nothing is counted in between.
            let writes = self.inner.writes.load(Ordering::Relaxed);
            self.inner.writes.store(writes + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What tells later whether it was written since.
    pub fn mark(&self) -> Mark {
        Mark {
            inner: Arc::downgrade(&self.inner),
            writes: self.inner.writes.load(Ordering::Relaxed),
        }
    }

    /// Ends what [`Self::acquire`] began.
    #[inline]
    pub(crate) fn release(&self, write: bool) {
        match write {
            true => self.inner.borrows.store(0, Ordering::Release),
            false => {
                self.inner.borrows.fetch_sub(1, Ordering::Release);
            }
        }
    }

    fn on_host(&self) -> Result<*mut u8> {
        ensure!(
            self.inner.id == DeviceId::CPU,
            DeviceMismatch,
            "the host cannot touch memory of {}",
            self.inner.id
        );
        // An empty storage may have any address; a slice wants one that is not null.
        let dangling = std::ptr::NonNull::dangling().as_ptr();
        Ok(if self.inner.length == 0 {
            dangling
        } else {
            self.inner.address as *mut u8
        })
    }
}

/// A storage at some time, which it does not keep alive.
#[derive(Clone, Debug)]
pub struct Mark {
    inner: Weak<Inner>,
    writes: u64,
}

impl Mark {
    /// The storage as it is now, if it still is.
    pub fn renewed(&self) -> Option<Self> {
        let inner = self.inner.upgrade()?;
        let storage = Storage { inner };
        Some(storage.mark())
    }

    /// Whether it is of that storage.
    pub fn is_of(&self, storage: &Storage) -> bool {
        std::ptr::eq(self.inner.as_ptr(), Arc::as_ptr(&storage.inner))
    }

    /// Whether somebody began to write since; nobody writes to a storage that is gone.
    pub fn is_written(&self) -> bool {
        let inner = self.inner.upgrade();
        inner.is_some_and(|inner| inner.writes.load(Ordering::Relaxed) != self.writes)
    }
}

/// A storage that was given out, kept to be given out again when all others have let it go: no allocator is asked, and no lock taken.
#[derive(Debug)]
pub(crate) struct Kept {
    storage: Storage,
}

impl Kept {
    /// Keeps a new storage, which nobody else holds yet.
    pub fn new(storage: &Storage) -> Self {
        storage.inner.kept.store(true, Ordering::Relaxed);
        Self {
            storage: storage.clone(),
        }
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.storage.len()
    }

    /// Whether it keeps that one.
    pub fn is_of(&self, storage: &Storage) -> bool {
        self.storage.is_same(storage)
    }

    /// The storage, whoever has it.
    pub fn storage(&self) -> Storage {
        self.storage.clone()
    }

    /// The storage, if nobody has it any more.
    #[inline]
    pub fn again(&self) -> Option<Storage> {
        let inner = &self.storage.inner;
        // Who holds the only reference is alone in being able to make more.
        if Arc::strong_count(inner) != 1 {
            return None;
        }
        // What the others did with the memory is done: they let go by a release of the count that was just read.
        fence(Ordering::Acquire);
        // A borrow outlives its holder only where it was forgotten.
        (inner.borrows.load(Ordering::Relaxed) == 0).then(|| self.storage.clone())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.storage.inner.kept.store(false, Ordering::Relaxed);
    }
}

/// A storage that is being read.
#[derive(Debug)]
pub struct Reading<'a> {
    storage: &'a Storage,
}

/// A storage that is being written.
#[derive(Debug)]
pub struct Writing<'a> {
    storage: &'a Storage,
}

impl Reading<'_> {
    /// The bytes of host memory.
    pub fn bytes(&self) -> Result<&[u8]> {
        let address = self.storage.on_host()?;
        // SAFETY: the storage owns `len` initialised bytes there, and the borrow excludes writers while `self` lives.
        Ok(unsafe { std::slice::from_raw_parts(address, self.storage.len()) })
    }
}

impl Writing<'_> {
    /// The bytes of host memory.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        let address = self.storage.on_host()?;
        // SAFETY: the storage owns `len` initialised bytes there, and the borrow excludes everybody else while `self` lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(address, self.storage.len()) })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.storage.release(false);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.storage.release(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn borrows_exclude_each_other() {
        let storage = Storage::host(&HostAllocator::default(), 64).unwrap();
        let clone = storage.clone();
        let first = storage.borrow().unwrap();
        let second = clone.borrow().unwrap();
        assert_eq!(storage.borrow_mut().unwrap_err().code, Code::DataRace);
        drop((first, second));
        let mut writer = storage.borrow_mut().unwrap();
        assert_eq!(clone.borrow().unwrap_err().code, Code::DataRace);
        writer.bytes().unwrap().fill(7);
        drop(writer);
        assert_eq!(clone.borrow().unwrap().bytes().unwrap(), [7; 64]);
        assert!(storage.is_same(&clone) && !storage.is_unique());
    }

    #[test]
    fn foreign_memory_is_released_once_by_the_last_holder() {
        static RELEASED: AtomicU32 = AtomicU32::new(0);
        let bytes = Box::leak(vec![1u8, 2, 3].into_boxed_slice());
        // SAFETY: the leaked slice lives for ever and nobody else uses it.
        let storage = unsafe {
            Storage::foreign(bytes.as_mut_ptr(), bytes.len(), || {
                RELEASED.fetch_add(1, Ordering::Relaxed);
            })
        };
        let clone = storage.clone();
        drop(storage);
        assert_eq!(clone.borrow().unwrap().bytes().unwrap(), [1, 2, 3]);
        assert_eq!(RELEASED.load(Ordering::Relaxed), 0);
        drop(clone);
        assert_eq!(RELEASED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn kept_storage_is_given_again_once_all_others_are_gone() {
        let storage = Storage::host(&HostAllocator::default(), 64).unwrap();
        let kept = Kept::new(&storage);
        assert!(storage.is_unique());
        assert!(kept.again().is_none());
        let clone = storage.clone();
        assert!(!storage.is_unique());
        let address = storage.address();
        drop(storage);
        assert!(clone.is_unique() && kept.again().is_none());
        drop(clone);
        let again = kept.again().unwrap();
        assert_eq!(again.address(), address);
        assert!(kept.again().is_none());
        // Who stays behind the keeper is a holder like any other.
        let clone = again.clone();
        drop(kept);
        assert!(!again.is_unique());
        drop(clone);
        assert!(again.is_unique());
    }

    #[test]
    fn a_forgotten_borrow_is_not_given_again() {
        let storage = Storage::host(&HostAllocator::default(), 64).unwrap();
        let kept = Kept::new(&storage);
        std::mem::forget(storage.borrow().unwrap());
        drop(storage);
        assert!(kept.again().is_none());
    }

    #[test]
    fn empty_storage_is_fine() {
        let storage = Storage::host(&HostAllocator::default(), 0).unwrap();
        assert!(storage.is_empty());
        assert_eq!(storage.borrow().unwrap().bytes().unwrap(), [0u8; 0]);
    }
}
