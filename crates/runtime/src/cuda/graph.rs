//! Work that is recorded once and launched as one: the driver's graphs.
//!
//! ```text
//!   OwnStream ──record(work)──▶ Recorded ──instantiate──▶ Replay ──launch──▶ a stream
//!                               nodes, in order             └─ arguments and grids may be changed between launches
//! ```
//!
//! A recorded launch keeps its addresses: whoever launches it answers for the memory behind them. The driver does not
//! lock these objects, so they may move between threads but not be shared by them.

use super::abi::{
    CAPTURE_RELAXED, CAPTURE_THIS_THREAD, CuGraph, CuGraphExec, CuNode, CuStream, KernelNode,
    UpdateResult, node_kind,
};
use super::context::Context;
use super::module::Params;
use super::stream::OwnStream;
use crate::device::{Replayed, Stream};
use oxyfuel_base::{Code, Result, ensure, err};
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

/// The driver's rule for graphs, for the compiler: one thread at a time.
type OneThread = PhantomData<Cell<()>>;

/// Recorded work.
#[derive(Debug)]
pub struct Recorded {
    raw: CuGraph,
    context: Arc<Context>,
    _one_thread: OneThread,
}

/// Ends a capture that was begun, whatever happens in between.
struct Capturing<'a>(Option<&'a OwnStream>);

impl Capturing<'_> {
    fn end(&mut self) -> Result<CuGraph> {
        let mut raw = CuGraph::NULL;
        let stream = self.0.take();
        let stream = stream.ok_or_else(|| err!(Internal, "a capture that has ended"))?;
        stream.context.launches.recorded(stream.handle());
        let entered = stream.context.enter()?;
        // SAFETY: the pointer is valid for one handle, and this stream is being captured.
        unsafe { entered.driver().capture_end(stream.raw, &mut raw) }?;
        Ok(raw)
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.0
            && let Ok(raw) = self.end()
        {
            drop(Recorded::of(raw, &stream.context));
        }
    }
}

impl Recorded {
    fn of(raw: CuGraph, context: &Arc<Context>) -> Self {
        Self {
            raw,
            context: context.clone(),
            _one_thread: PhantomData,
        }
    }

    /// What `work` asks of `stream`, instead of being done. Nothing that waits for the device may be asked on this thread meanwhile, and memory only where `allocates` says so.
    pub(super) fn of_work(
        stream: &OwnStream,
        allocates: bool,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let mode = match allocates {
            true => CAPTURE_RELAXED,
            false => CAPTURE_THIS_THREAD,
        };
        let entered = stream.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { entered.driver().capture_begin(stream.raw, mode) }?;
        drop(entered);
        stream.context.launches.record(stream.handle());
        let mut capturing = Capturing(Some(stream));
        // What went wrong in the work says more than that the capture is broken by it.
        work()?;
        let raw = capturing.end()?;
        ensure!(raw != CuGraph::NULL, CaptureBroken, "nothing was recorded");
        Ok(Self::of(raw, &stream.context))
    }

    /// The pieces of work, in the order in which they were asked for.
    fn nodes(&self) -> Result<Vec<CuNode>> {
        let entered = self.context.enter()?;
        let mut count = 0;
        // SAFETY: without room for nodes the driver says how many there are; then there is room for them.
        unsafe {
            entered
                .driver()
                .graph_nodes(self.raw, std::ptr::null_mut(), &mut count)?;
            let mut nodes = vec![CuNode::NULL; count];
            if count > 0 {
                entered
                    .driver()
                    .graph_nodes(self.raw, nodes.as_mut_ptr(), &mut count)?;
            }
            nodes.truncate(count);
            Ok(nodes)
        }
    }

    /// How many pieces of work there are.
    pub fn len(&self) -> Result<usize> {
        Ok(self.nodes()?.len())
    }

    /// Whether there is no work.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Its launches of kernels, in order, without their arguments.
    fn kernels(&self) -> Result<Vec<(CuNode, KernelNode)>> {
        let nodes = self.nodes()?;
        let entered = self.context.enter()?;
        let mut kernels = Vec::new();
        for node in nodes {
            let mut kind = 0;
            // SAFETY: the node belongs to this graph, and the pointer is valid for one int.
            unsafe { entered.driver().node_kind(node, &mut kind) }?;
            if kind != node_kind::KERNEL {
                continue;
            }
            let mut params = KernelNode::NOTHING;
            // SAFETY: the node is a kernel's; the pointer is valid for its parameters.
            unsafe { entered.driver().node_kernel(node, &mut params) }?;
            params.params = std::ptr::null_mut();
            params.extra = std::ptr::null_mut();
            kernels.push((node, params));
        }
        Ok(kernels)
    }

    /// What its kernels are called, each once; those of other libraries are not known.
    fn names(&self, kernels: &[(CuNode, KernelNode)]) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        for (_, params) in kernels {
            for name in self.context.launches.names(params.function.0 as usize) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// Makes it ready to launch.
    pub fn instantiate(self) -> Result<Replay> {
        let kernels = self.kernels()?;
        let mut raw = CuGraphExec::NULL;
        let entered = self.context.enter()?;
        // SAFETY: the graph is alive and the pointer is valid for one handle.
        unsafe { entered.driver().graph_instantiate(&mut raw, self.raw, 0) }?;
        drop(entered);
        let names = self.names(&kernels);
        self.context.launches.name(raw.0 as usize, names);
        Ok(Replay {
            raw,
            kernels,
            recorded: self,
        })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: made by a capture and destroyed once.
            let _at_exit = unsafe { entered.driver().graph_destroy(self.raw) };
        }
    }
}

/// Recorded work that can be launched any number of times.
#[derive(Debug)]
pub struct Replay {
    raw: CuGraphExec,
    /// The launches of kernels among the nodes, in order.
    kernels: Vec<(CuNode, KernelNode)>,
    /// The nodes live in it.
    recorded: Recorded,
}

// SAFETY: through a shared reference nothing of the driver is reached: whatever calls it takes `&mut self`.
unsafe impl Sync for Replay {}

impl Replayed for Replay {
    fn kernels(&self) -> usize {
        Self::kernels(self)
    }

    fn set_words(&mut self, launch: usize, words: &[u64]) -> Result<()> {
        Self::set_words(self, launch, words)
    }

    unsafe fn launch(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { Self::launch(self, stream) }
    }
}

impl Replay {
    /// How many launches of kernels there are.
    pub fn kernels(&self) -> usize {
        self.kernels.len()
    }

    /// Sends it to the device ahead of its first launch.
    pub fn upload(&mut self, stream: Stream) -> Result<()> {
        let entered = self.recorded.context.enter()?;
        // SAFETY: it is alive; the stream is the caller's.
        unsafe { entered.driver().graph_upload(self.raw, raw(stream)) }
    }

    /// Does the recorded work in the order of `stream`.
    ///
    /// # Safety
    /// Every address that was recorded, or set since, leads to memory as its kernel or copy wants it, which stays valid
    /// until the device is done.
    pub unsafe fn launch(&mut self, stream: Stream) -> Result<()> {
        let entered = self.recorded.context.enter()?;
        let launches = &self.recorded.context.launches;
        launches.note(self.raw.0 as usize, stream);
        // SAFETY: promised by the caller.
        unsafe { entered.driver().graph_launch(self.raw, raw(stream)) }
    }

    /// Other arguments for the kernel launch of that number: one word a parameter, as in a launch. What was launched before is not changed.
    pub fn set_words(&mut self, kernel: usize, words: &[u64]) -> Result<()> {
        let known = self.kernels.get(kernel).copied();
        let (node, mut node_params) =
            known.ok_or_else(|| err!(Internal, "no recorded launch {kernel}"))?;
        let mut params = Params::of(words);
        node_params.params = params.slice().as_mut_ptr();
        let entered = self.recorded.context.enter()?;
        // SAFETY: the node is a kernel's and belongs to this graph; the driver copies the arguments before it returns.
        unsafe { (entered.driver()).node_set_kernel(self.raw, node, &node_params) }
    }

    /// Takes over the arguments of other recorded work of the same shape; `false` where the shape differs, and nothing is changed.
    pub fn update(&mut self, recorded: &Recorded) -> Result<bool> {
        let entered = self.recorded.context.enter()?;
        let mut result = UpdateResult {
            result: 0,
            node: CuNode::NULL,
            from: CuNode::NULL,
        };
        // SAFETY: both are alive and the pointer is valid for one result.
        let updated = unsafe {
            entered
                .driver()
                .graph_update(self.raw, recorded.raw, &mut result)
        };
        match updated {
            Ok(()) => Ok(true),
            Err(error) if error.code == Code::CaptureBroken => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Ok(entered) = self.recorded.context.enter() {
            self.recorded.context.launches.forget(self.raw.0 as usize);
            // SAFETY: instantiated once and destroyed once; the driver lets launches of it end.
            let _at_exit = unsafe { entered.driver().graph_exec_destroy(self.raw) };
        }
    }
}

fn raw(stream: Stream) -> CuStream {
    CuStream(stream.0 as *mut c_void)
}
