//! Queues of a device, and moments in them.
//!
//! Both may be used from any thread: the driver has locks of its own.

use super::abi::{CuEvent, CuStream, EVENT_NO_TIMING, STREAM_NON_BLOCKING};
use super::context::Context;
use oxyfuel_base::Result;
use std::sync::Arc;

/// A queue of our own.
#[derive(Debug)]
pub struct OwnStream {
    pub(super) raw: CuStream,
    pub(super) context: Arc<Context>,
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

    /// Whether everything asked on this stream is done; does not wait.
    pub fn is_done(&self) -> Result<bool> {
        let entered = self.context.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { entered.driver().stream_is_done(self.raw) }
    }

    /// This moment of the stream.
    pub fn record(&self, what: EventUse) -> Result<Event> {
        Event::record(&self.context, self.raw, what)
    }

    /// What is asked on this stream from now on waits for the event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        event.hold_up(self.raw)
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

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventUse {
    /// Times between moments.
    Timing,
    /// The order of work alone, which costs less.
    Order,
}

impl Event {
    /// Records this moment of `stream`.
    pub(super) fn record(context: &Arc<Context>, stream: CuStream, what: EventUse) -> Result<Self> {
        let mut raw = CuEvent::NULL;
        let entered = context.enter()?;
        let flags = match what {
            EventUse::Timing => 0,
            EventUse::Order => EVENT_NO_TIMING,
        };
        // SAFETY: the pointer is valid for one handle.
        unsafe { entered.driver().event_create(&mut raw, flags) }?;
        let event = Self {
            raw,
            context: context.clone(),
        };
        // SAFETY: the event was just created; the stream is the caller's.
        unsafe { entered.driver().event_record(raw, stream) }?;
        Ok(event)
    }

    /// What is asked on the stream from now on waits for it.
    pub(super) fn hold_up(&self, stream: CuStream) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: the event lives as long as `self`; the stream is the caller's.
        unsafe { entered.driver().stream_wait(stream, self.raw, 0) }
    }

    /// Waits for it.
    pub fn synchronize(&self) -> Result<()> {
        let entered = self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        unsafe { entered.driver().event_synchronize(self.raw) }
    }

    /// Whether it has happened; does not wait.
    pub fn is_done(&self) -> Result<bool> {
        let entered = self.context.enter()?;
        // SAFETY: the event lives as long as `self`.
        unsafe { entered.driver().event_is_done(self.raw) }
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
