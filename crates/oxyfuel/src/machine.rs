//! The process's devices: made at the first use, shared by every tensor.
//!
//! Threads, memory and code belong to a process, not to a call, so they live here and nowhere else; everything that changes how code is made is an argument
//! ([`Options`]).

use crate::Options;
use crate::tensor::located;
use oxyfuel_base::{Result, err};
use oxyfuel_engine::{Compiler, Figures, Target, cpu_device};
use oxyfuel_graph as graph;
use oxyfuel_runtime as runtime;
use runtime::cpu::CpuDevice;
use runtime::cpu::features::{CpuFeatures, Machine};
use runtime::cuda::CudaDevice;
pub use runtime::device::MemorySummary;
use runtime::device::{Device as Handle, DeviceId, DeviceKind};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's own processor.
    #[default]
    Cpu,
    /// A GPU behind the CUDA driver, by its number.
    Cuda(u32),
}

impl Device {
    /// The host's own processor.
    pub fn cpu() -> Self {
        Self::Cpu
    }

    /// The GPU of that number.
    pub fn cuda(index: u32) -> Self {
        Self::Cuda(index)
    }

    /// Whether it can be used here; if not, why.
    #[track_caller]
    pub fn check(self) -> Result<()> {
        let caller = Location::caller();
        let found = handle(self).map(drop);
        found.map_err(|error| located(error, caller))
    }

    /// Where the bytes of the device are: how many it has, how many are free, in use by tensors of this process, and kept for reuse. Its text is a table for people.
    ///
    /// ```
    /// # fn main() -> oxyfuel::Result<()> {
    /// println!("{}", oxyfuel::Device::cpu().memory_summary()?);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn memory_summary(self) -> Result<MemorySummary> {
        let caller = Location::caller();
        let report = handle(self).and_then(|handle| handle.memory_summary());
        report.map_err(|error| located(error, caller))
    }

    /// Gives memory that is kept for reuse back to the system, and says how many bytes that were.
    #[track_caller]
    pub fn trim(self) -> Result<usize> {
        let caller = Location::caller();
        let trimmed = handle(self).map(|handle| handle.trim());
        trimmed.map_err(|error| located(error, caller))
    }

    /// Waits until everything asked of the device so far is done.
    #[track_caller]
    pub fn synchronize(self) -> Result<()> {
        let caller = Location::caller();
        let done = handle(self).and_then(|handle| handle.synchronize());
        done.map_err(|error| located(error, caller))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        graph::Device::from(*self).fmt(f)
    }
}

impl From<Device> for graph::Device {
    fn from(device: Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            Device::Cuda(index) => Self::Cuda(index),
        }
    }
}

impl From<graph::Device> for Device {
    fn from(device: graph::Device) -> Self {
        match device {
            // An object of a host is in its memory; nothing here can look into it.
            graph::Device::Cpu | graph::Device::Host => Self::Cpu,
            graph::Device::Cuda(index) => Self::Cuda(index),
        }
    }
}

impl From<DeviceId> for Device {
    fn from(id: DeviceId) -> Self {
        match id.kind {
            DeviceKind::Cuda => Self::Cuda(id.index),
            // Tensors of this crate are never on the null device.
            DeviceKind::Cpu | DeviceKind::Null => Self::Cpu,
        }
    }
}

/// The host's processor with default options.
pub(crate) fn cpu() -> &'static Arc<CpuDevice> {
    static CPU: OnceLock<Arc<CpuDevice>> = OnceLock::new();
    CPU.get_or_init(|| cpu_device(&Options::default()))
}

/// The GPU of that number, opened once. One that we have no code for is refused before anything lies on it.
fn cuda(index: u32) -> Result<Arc<CudaDevice>> {
    static OPEN: OnceLock<Mutex<HashMap<u32, Arc<CudaDevice>>>> = OnceLock::new();
    let open = OPEN.get_or_init(Mutex::default);
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(&index) {
        return Ok(device.clone());
    }
    let device = CudaDevice::new(index, None)?;
    Target::of_gpu(device.info(), "")?;
    open.insert(index, device.clone());
    Ok(device)
}

pub(crate) fn handle(device: Device) -> Result<Arc<dyn Handle>> {
    match device {
        Device::Cpu => Ok(cpu().clone()),
        Device::Cuda(index) => Ok(cuda(index)?),
    }
}

/// What to compile for and where to run it, for tensors of `device`.
pub(crate) fn target(device: Device, options: &Options) -> Result<(Target, Arc<dyn Handle>)> {
    target_on(device, options, Machine::get().features)
}

/// The same where the host's processor has these features.
fn target_on(
    device: Device,
    options: &Options,
    features: CpuFeatures,
) -> Result<(Target, Arc<dyn Handle>)> {
    let named = match options.target.as_str() {
        "" => None,
        name => Some(Target::by_name(name)?),
    };
    let on_gpu = named.as_ref().map(|target| !target.can_interpret());
    match device {
        Device::Cpu => {
            if on_gpu == Some(true) {
                return Err(err!(
                    DeviceMismatch,
                    "target {} cannot compute on tensors of the CPU",
                    options.target
                )
                .help("move the tensors with to_device, or leave the target to us"));
            }
            let target = Target::host(options)?;
            target.check(features)?;
            let plain = options.threads == 0 && !options.verify && !options.perf_map;
            let handle = if plain {
                cpu().clone()
            } else {
                cpu_device(options)
            };
            Ok((target, handle))
        }
        Device::Cuda(index) => {
            if on_gpu == Some(false) {
                return Err(err!(
                    DeviceMismatch,
                    "target {} cannot compute on tensors of {device}",
                    options.target
                ));
            }
            let handle = cuda(index)?;
            let target = Target::of_gpu(handle.info(), &options.target)?;
            let library = handle.has_product_library();
            Ok((target.with_product_library(library), handle))
        }
    }
}

/// What the machine of a compiler can do at best, measured once for each target and number of threads.
pub(crate) fn figures(compiler: &Compiler) -> Option<Figures> {
    type Known = HashMap<(String, u32), Option<Figures>>;
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let desc = &compiler.target().desc;
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = known
        .entry((desc.name.clone(), desc.workers))
        .or_insert_with(|| compiler.figures().cloned());
    figures.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Code;

    /// On a processor of no more than AVX2: its code would end the process, so nothing is made.
    #[test]
    fn a_level_that_the_processor_lacks_is_refused() {
        let features = CpuFeatures {
            avx2: true,
            ..CpuFeatures::default()
        };
        let named = |name: &str| {
            let options = Options {
                target: name.to_owned(),
                ..Options::default()
            };
            target_on(Device::Cpu, &options, features).map(|(target, _)| target.name().to_owned())
        };
        assert_eq!(named("avx2").unwrap(), "avx2");
        assert_eq!(named("interpreter").unwrap(), "interpreter");
        for (name, lacks) in [
            ("avx512", "avx512"),
            ("avx512-amx", "amx-bf16"),
            ("avx2-vnni", "avx-vnni"),
        ] {
            let error = named(name).unwrap_err();
            assert_eq!(error.code, Code::UnsupportedDevice);
            assert!(
                error.message.contains(name) && error.message.contains(lacks),
                "{error}"
            );
            assert!(error.help.unwrap().contains("name avx2"));
        }
    }
}
