//! What a thread asks of a device while a callable is recorded.
//!
//! The callable knows nothing of it: its launches and copies go to the default stream, and are turned to the stream that
//! is recorded; its memory is asked of the device, and stays with the recording; kernels and tensors that it uses are
//! held. What cannot be recorded, because it waits for the device or moves bytes of the host, is refused by name.
//!
//! At most one callable is recorded by a thread at a time, and only that thread is concerned.

use crate::device::{ArgKind, DeviceId, Launch, Stream};
use crate::storage::{Kept, Storage};
use oxyfuel_base::{Result, err};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;

thread_local! {
    /// Whether there is a tape: most calls ask for no more.
    static ON: Cell<bool> = const { Cell::new(false) };
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

/// One launch.
#[derive(Debug)]
pub(super) struct Noted {
    pub words: Vec<u64>,
    /// Words that are pointers.
    pub pointers: Vec<usize>,
    /// Pieces of work.
    pub pieces: usize,
    /// Whether tensor maps are built from its words, which cannot be changed then.
    pub maps: bool,
}

/// See the module.
pub(super) struct Tape {
    device: DeviceId,
    stream: Stream,
    /// Tensors that the callable is given, which are not held.
    arguments: Vec<Storage>,
    /// Memory that was asked for.
    pub memory: Vec<Kept>,
    /// Memory of others.
    pub storages: Vec<Storage>,
    /// Whether each argument is written.
    pub written: Vec<bool>,
    /// Code.
    pub code: Vec<Box<dyn Any + Send + Sync>>,
    pub launches: Vec<Noted>,
    /// Addresses of each copy, from and to.
    pub copies: Vec<[u64; 2]>,
    pub bytes: usize,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape")
            .field("device", &self.device)
            .field("launches", &self.launches.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Takes the tape from the thread, whatever happens in between.
#[derive(Debug)]
pub(super) struct Running(());

impl Running {
    /// Begins to write a tape.
    pub fn begin(device: DeviceId, stream: Stream, arguments: Vec<Storage>) -> Self {
        let written = vec![false; arguments.len()];
        TAPE.set(Some(Tape {
            device,
            stream,
            arguments,
            memory: Vec::new(),
            storages: Vec::new(),
            written,
            code: Vec::new(),
            launches: Vec::new(),
            copies: Vec::new(),
            bytes: 0,
        }));
        ON.set(true);
        Self(())
    }

    /// What was written.
    pub fn end(self) -> Result<Tape> {
        TAPE.take()
            .ok_or_else(|| err!(Internal, "a recording lost its tape"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        ON.set(false);
        drop(TAPE.take());
    }
}

/// Whether this thread records a callable on the device.
#[inline]
pub(crate) fn is_on(device: DeviceId) -> bool {
    with(device, |_| ()).is_some()
}

/// Whether this thread records a callable.
#[inline]
pub(crate) fn is_any() -> bool {
    ON.get()
}

#[inline]
fn with<R>(device: DeviceId, change: impl FnOnce(&mut Tape) -> R) -> Option<R> {
    if !ON.get() {
        return None;
    }
    TAPE.with_borrow_mut(|tape| {
        tape.as_mut()
            .filter(|tape| tape.device == device)
            .map(change)
    })
}

/// The stream for work that is asked of `asked`.
#[inline]
pub(crate) fn stream(device: DeviceId, asked: Stream) -> Stream {
    let turned = with(device, |tape| tape.stream);
    turned
        .filter(|_| asked == Stream::default())
        .unwrap_or(asked)
}

/// A kernel is launched in so many pieces of work, whose code stays in place as long as what `code` makes is held.
#[inline]
pub(crate) fn launched(
    device: DeviceId,
    launch: &Launch<'_>,
    pieces: usize,
    code: impl FnOnce() -> Box<dyn Any + Send + Sync>,
) {
    with(device, |tape| {
        let is_pointer = |kind: &ArgKind| matches!(kind, ArgKind::Buffer { .. });
        let kinds = launch.kinds.iter().enumerate();
        tape.launches.push(Noted {
            words: launch.words.to_vec(),
            pointers: kinds
                .filter_map(|(word, kind)| is_pointer(kind).then_some(word))
                .collect(),
            pieces,
            maps: !launch.maps.is_empty(),
        });
        tape.code.push(code());
    });
}

/// Bytes are copied inside of the device.
#[inline]
pub(crate) fn copied(device: DeviceId, from: u64, to: u64) {
    with(device, |tape| tape.copies.push([from, to]));
}

/// Memory of the device: what the recording has and nobody uses any more, or what `make` makes, which stays with it.
#[inline]
pub(crate) fn allocate(
    device: DeviceId,
    bytes: usize,
    make: impl FnOnce() -> Result<Storage>,
) -> Result<Storage> {
    // Work of one stream is done in order, so that memory may serve again within it.
    let again = with(device, |tape| {
        let mut kept = tape.memory.iter();
        kept.find_map(|kept| (kept.bytes() == bytes).then(|| kept.again()).flatten())
    });
    if let Some(Some(storage)) = again {
        return Ok(storage);
    }
    let storage = make()?;
    with(device, |tape| {
        tape.bytes += bytes;
        tape.memory.push(Kept::new(&storage));
    });
    Ok(storage)
}

/// A tensor's memory is read, or written.
#[inline]
pub(crate) fn used(device: DeviceId, storage: &Storage, written: bool) {
    with(device, |tape| {
        if let Some(argument) = tape
            .arguments
            .iter()
            .position(|argument| argument.is_same(storage))
        {
            tape.written[argument] |= written;
            return;
        }
        if tape.memory.iter().any(|kept| kept.is_of(storage)) {
            return;
        }
        if !tape.storages.iter().any(|known| known.is_same(storage)) {
            tape.storages.push(storage.clone());
        }
    });
}

/// An error where a callable is recorded, which cannot hold that.
#[inline]
pub(crate) fn refuse(device: DeviceId, what: &str) -> Result<()> {
    match is_on(device) {
        false => Ok(()),
        true => Err(err!(
            CaptureBroken,
            "{what} on {device} was asked for while a callable is recorded"
        )
        .help("while a callable is recorded it may only launch kernels on tensors that are there: read results after the replay, and make tensors before the capture")),
    }
}
