//! The streams of torch's that recorded work may go to.
//!
//! Whoever records offers them to the graphs that run meanwhile on its thread; see `oxyfuel_runtime::execute::Host::lanes`.

use crate::torch::Torch;
use oxyfuel_runtime::device::Stream;
use oxyfuel_runtime::execute::LANES;
use pyo3::prelude::*;
use std::cell::RefCell;

thread_local! {
    static OFFERED: RefCell<Vec<(Py<PyAny>, Stream)>> = const { RefCell::new(Vec::new()) };
}

/// Offers these streams, or none, to the graphs of this thread.
pub fn offer(streams: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
    let known = streams.into_iter().map(|stream| {
        let handle = Stream(stream.getattr("cuda_stream")?.extract()?);
        Ok((stream.unbind(), handle))
    });
    let known = known.collect::<PyResult<Vec<_>>>()?;
    OFFERED.with_borrow_mut(|offered| *offered = known);
    Ok(())
}

/// The streams that are offered, where the first is the one at hand.
pub fn offered(own: Stream) -> Option<[Stream; LANES]> {
    OFFERED.with_borrow(|offered| {
        let handles: Vec<Stream> = offered.iter().map(|(_, handle)| *handle).collect();
        let lanes: [Stream; LANES] = handles.try_into().ok()?;
        (lanes[0] == own).then_some(lanes)
    })
}

/// Operators of torch's go to that lane from now on.
pub fn enter(py: Python<'_>, torch: &Torch, lane: usize) -> PyResult<()> {
    let stream = OFFERED.with_borrow(|offered| {
        let stream = offered.get(lane);
        stream.map(|(stream, _)| stream.clone_ref(py))
    });
    stream.map_or(Ok(()), |stream| torch.set_stream(py, &stream))
}
