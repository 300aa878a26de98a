//! Where the time of a piece of a program goes.

use crate::tensor::located;
use oxyfuel_base::Result;
use std::panic::Location;

pub use oxyfuel_runtime::profile::{Category, DeviceTime, Profile, Row, Span};

/// Does some work and says where its time went: each kernel with the operators that it came from, what it took on the device and what its launch took on the host, calls around kernels, and
/// compiles apart. On the CPU the times of kernels are those of its clock, on a GPU those between events.
///
/// `Display` is a table; [`Profile::chrome_trace`] is JSON for `chrome://tracing` or Perfetto, with a row for the host and one for each device. While work is profiled, calls under
/// `reduce-overhead` run kernel by kernel; a [`CudaGraph`](crate::cuda::CudaGraph) is one piece of work. Only what the calling thread asks for is seen.
///
/// ```
/// use oxyfuel::{DType, Options, Tensor};
/// # fn main() -> oxyfuel::Result<()> {
/// let f = oxyfuel::compile(|x: &Tensor| (x + 1.0).softmax(-1), Options::default())?;
/// let x = Tensor::randn(&[64, 512], DType::F32, 0);
/// let (y, profile) = oxyfuel::profile(|| f.call_one(&[&x]))?;
/// assert_eq!(y?.shape(), [64, 512]);
/// assert_eq!(profile.wall(), profile.device() + profile.overhead());
/// println!("{profile}"); // wall 41.0 us = device 35.2 us + overhead 5.8 us; compile 3.10 ms apart ...
/// let json = profile.chrome_trace();
/// # assert!(json.contains("traceEvents"));
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn profile<R>(work: impl FnOnce() -> R) -> Result<(R, Profile)> {
    let caller = Location::caller();
    oxyfuel_runtime::profile::profile(work).map_err(|error| located(error, caller))
}
