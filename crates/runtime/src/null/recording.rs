//! Work that a null device is asked for: done at once, which is to say noted, or recorded where that is what its stream is for.
//!
//! ```text
//!   launch, copy ──▶ a stream that is recorded ──▶ pieces, in order ──launch──▶ noted as one
//!               └──▶ any other ──▶ noted
//! ```
//!
//! What the driver refuses while a thread records is refused here, too: waits, copies to and from the host, work of the device's own stream, and memory where the recording may ask for none.

use super::NullCall;
use crate::device::{DeviceId, Replayed, Stream};
use oxyfuel_base::{Result, ensure, err};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A piece of recorded work.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// One phase of a kernel. Words that tensor maps were built from stay.
    Launch {
        name: String,
        words: Vec<u64>,
        extents: [u64; 3],
        maps: bool,
    },
    Copy(u64, u64, usize),
}

impl Piece {
    fn is_launch(&self) -> bool {
        matches!(self, Self::Launch { .. })
    }

    fn call(&self) -> NullCall {
        match self {
            Self::Launch {
                name,
                words,
                extents,
                maps: _,
            } => NullCall::Launch(name.clone(), words.clone(), vec![*extents]),
            Self::Copy(from, to, bytes) => NullCall::Move(*from, *to, *bytes),
        }
    }
}

/// A stream that is recorded.
#[derive(Debug)]
struct Open {
    stream: Stream,
    thread: ThreadId,
    allocates: bool,
    pieces: Vec<Piece>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<NullCall>,
    open: Vec<Open>,
    /// Handles of streams so far; 0 is the device's own.
    streams: u64,
}

/// Everything that a device was asked for.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<State>);

impl Asked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn calls(&self) -> Vec<NullCall> {
        self.state().calls.clone()
    }

    pub fn note(&self, call: NullCall) {
        self.state().calls.push(call);
    }

    /// Whether this thread records, and whether it may ask for memory meanwhile.
    fn recorded_here(&self) -> Option<bool> {
        let here = thread::current().id();
        let state = self.state();
        let open = state.open.iter().find(|open| open.thread == here);
        open.map(|open| open.allocates)
    }

    fn refused(device: DeviceId, what: &str) -> Result<()> {
        Err(err!(
            CaptureBroken,
            "{what} on {device} was asked for while work is recorded"
        ))
    }

    /// An error where this thread records, which a wait would break.
    pub fn may_wait(&self, device: DeviceId, what: &str) -> Result<()> {
        match self.recorded_here() {
            None => Ok(()),
            Some(_) => Self::refused(device, what),
        }
    }

    /// An error where this thread records what asks for no memory.
    pub fn may_allocate(&self, device: DeviceId) -> Result<()> {
        match self.recorded_here() {
            None | Some(true) => Ok(()),
            Some(false) => Self::refused(device, "memory"),
        }
    }

    pub fn is_recording(&self, stream: Stream) -> bool {
        self.state().open.iter().any(|open| open.stream == stream)
    }

    /// Work on a stream: recorded as pieces there, or noted as the call that it is.
    pub fn on(
        &self,
        device: DeviceId,
        stream: Stream,
        pieces: Vec<Piece>,
        call: impl FnOnce() -> NullCall,
    ) -> Result<()> {
        if stream == Stream::default() {
            self.may_wait(device, "work of the device's own stream")?;
        }
        let mut state = self.state();
        match state.open.iter_mut().find(|open| open.stream == stream) {
            Some(open) => open.pieces.extend(pieces),
            None => state.calls.push(call()),
        }
        Ok(())
    }

    fn open(&self, allocates: bool) -> Stream {
        let mut state = self.state();
        state.streams += 1;
        let stream = Stream(state.streams);
        state.open.push(Open {
            stream,
            thread: thread::current().id(),
            allocates,
            pieces: Vec::new(),
        });
        stream
    }

    fn close(&self, stream: Stream) -> Vec<Piece> {
        let mut state = self.state();
        let at = state.open.iter().position(|open| open.stream == stream);
        at.map_or_else(Vec::new, |at| state.open.remove(at).pieces)
    }
}

/// Ends a recording, whatever happens in between.
struct Opened<'a>(&'a Asked, Stream);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

/// What `work` asks of the stream that it is given.
pub(super) fn record(
    asked: &Arc<Asked>,
    allocates: bool,
    work: &mut dyn FnMut(Stream) -> Result<()>,
) -> Result<Recorded> {
    let opened = Opened(asked, asked.open(allocates));
    work(opened.1)?;
    let pieces = asked.close(opened.1);
    let kernels = pieces.iter().filter(|piece| piece.is_launch()).count();
    asked.note(NullCall::Record(kernels, pieces.len() - kernels));
    Ok(Recorded {
        pieces,
        asked: asked.clone(),
    })
}

/// Recorded work.
#[derive(Debug)]
pub(super) struct Recorded {
    pieces: Vec<Piece>,
    asked: Arc<Asked>,
}

impl Replayed for Recorded {
    fn kernels(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.is_launch()).count()
    }

    fn set_words(&mut self, launch: usize, new: &[u64]) -> Result<()> {
        let mut launches = self.pieces.iter_mut().filter(|piece| piece.is_launch());
        let Some(Piece::Launch { words, maps, .. }) = launches.nth(launch) else {
            return Err(err!(Internal, "no recorded launch {launch}"));
        };
        ensure!(
            words.len() == new.len() && !*maps,
            Internal,
            "recorded launch {launch} cannot have those words"
        );
        words.copy_from_slice(new);
        self.asked.note(NullCall::SetWords(launch, new.to_vec()));
        Ok(())
    }

    unsafe fn launch(&mut self, stream: Stream) -> Result<()> {
        ensure!(
            !self.asked.is_recording(stream),
            CaptureBroken,
            "recorded work was launched where work is recorded"
        );
        let calls = self.pieces.iter().map(Piece::call).collect();
        self.asked.note(NullCall::Replay(calls));
        Ok(())
    }
}
