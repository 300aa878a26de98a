//! How a tile interpreter comes to run plans, without this crate knowing any.
//!
//! The engine hands a [`KernelRunner`] to the CPU device. Kernels that have no machine code (a processor without AVX2,
//! a program that the emitter cannot express) are prepared by it once and run by it at each launch. The interpreter is
//! safe code, so it sees memory as slices: the buffers of a launch are merged into regions that do not overlap, and an
//! argument names a region and a place in it.

use crate::device::{ArgKind, Grid, Launch, LoadedKernel};
use oxyfuel_base::{DType, Result, err};
use oxyfuel_plan::Kernel;
use std::fmt;

/// Turns programs into something it can run.
pub trait KernelRunner: fmt::Debug + Send + Sync {
    /// Reads `kernel.program` once.
    fn prepare(&self, kernel: &Kernel) -> Result<Box<dyn PreparedKernel>>;

    /// Whether kernels that have machine code are run here as well, and their results compared.
    fn judges(&self) -> bool {
        false
    }
}

/// A program that is ready to run.
pub trait PreparedKernel: fmt::Debug + Send + Sync {
    /// Runs every instance of all phases, in order.
    fn run(&self, grids: &[Grid], memory: &mut [&mut [u8]], args: &[RunnerArg]) -> Result<()>;

    /// Whether what machine code left in the buffer of argument `arg` agrees with what this runner left there.
    fn compare(&self, arg: usize, ours: &[u8], expected: &[u8]) -> Result<()>;
}

/// An argument as an interpreter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerArg {
    /// A buffer: `bytes` bytes from `offset` of a region.
    Buffer {
        /// Which region.
        region: usize,
        /// Where in it, in bytes.
        offset: usize,
        /// How long.
        bytes: usize,
    },
    /// A 64-bit integer.
    Index(i64),
    /// A number as the bits of its type.
    Literal(DType, u64),
}

/// A prepared kernel as the CPU device launches it.
#[derive(Debug)]
pub(crate) struct Interpreted(pub Box<dyn PreparedKernel>);

impl LoadedKernel for Interpreted {
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let (ranges, args) = regions(launch)?;
        // SAFETY: the caller promises that each buffer is valid memory nobody else touches; merged, they do not overlap.
        let mut memory: Vec<&mut [u8]> = ranges
            .iter()
            .map(|&(begin, end)| unsafe {
                std::slice::from_raw_parts_mut(begin as *mut u8, (end - begin) as usize)
            })
            .collect();
        self.0.run(launch.grids, &mut memory, &args)
    }
}

/// Machine code whose results the interpreter judges.
#[derive(Debug)]
pub(crate) struct Judged {
    pub code: Box<dyn LoadedKernel>,
    pub judge: Box<dyn PreparedKernel>,
}

impl LoadedKernel for Judged {
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let (ranges, args) = regions(launch)?;
        let see = |&(begin, end): &AddressRange| {
            // SAFETY: the caller promises that each buffer is valid memory nobody else touches.
            unsafe { std::slice::from_raw_parts(begin as *const u8, (end - begin) as usize) }
        };
        let mut before: Vec<Vec<u8>> = ranges.iter().map(|range| see(range).to_vec()).collect();
        // SAFETY: promised by the caller.
        unsafe { self.code.launch(launch) }?;
        let mut memory: Vec<&mut [u8]> = before.iter_mut().map(Vec::as_mut_slice).collect();
        self.judge.run(launch.grids, &mut memory, &args)?;
        for (number, arg) in args.iter().enumerate() {
            if let RunnerArg::Buffer {
                region,
                offset,
                bytes,
            } = *arg
                && bytes > 0
            {
                let place = offset..offset + bytes;
                let ours = &see(&ranges[region])[place.clone()];
                self.judge.compare(number, ours, &before[region][place])?;
            }
        }
        Ok(())
    }
}

/// First byte and end.
type AddressRange = (u64, u64);

/// Merges the buffers of a launch into address ranges without overlap, and says where in them each argument is.
fn regions(launch: &Launch<'_>) -> Result<(Vec<AddressRange>, Vec<RunnerArg>)> {
    let mut buffers: Vec<(u64, u64)> = vec![];
    for (word, kind) in launch.words.iter().zip(launch.kinds) {
        match kind {
            ArgKind::Buffer { bytes } if *bytes > 0 => buffers.push((*word, word + *bytes as u64)),
            ArgKind::Buffer { .. } | ArgKind::Index | ArgKind::Literal(_) | ArgKind::TensorMap => {}
        }
    }
    buffers.sort_unstable();
    let mut merged: Vec<(u64, u64)> = vec![];
    for (begin, end) in buffers {
        match merged.last_mut() {
            Some(last) if begin < last.1 => last.1 = last.1.max(end),
            Some(_) | None => merged.push((begin, end)),
        }
    }
    let args = launch
        .words
        .iter()
        .zip(launch.kinds)
        .map(|(word, kind)| match kind {
            ArgKind::Buffer { bytes: 0 } => Ok(RunnerArg::Buffer {
                region: 0,
                offset: 0,
                bytes: 0,
            }),
            ArgKind::Buffer { bytes } => {
                let region = merged
                    .partition_point(|(begin, _)| begin <= word)
                    .saturating_sub(1);
                Ok(RunnerArg::Buffer {
                    region,
                    offset: (word - merged[region].0) as usize,
                    bytes: *bytes,
                })
            }
            ArgKind::Index => Ok(RunnerArg::Index(*word as i64)),
            ArgKind::Literal(dtype) => Ok(RunnerArg::Literal(*dtype, *word)),
            ArgKind::TensorMap => Err(err!(
                NoLowering,
                "a kernel with tensor maps cannot be interpreted on the host"
            )),
        });
    let args = args.collect::<Result<Vec<_>>>()?;
    Ok((merged, args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Stream;

    #[test]
    fn overlapping_buffers_become_one_region() {
        let launch = Launch {
            words: &[1000, 1100, 5000, 7, 1050, 0],
            kinds: &[
                ArgKind::Buffer { bytes: 100 },
                ArgKind::Buffer { bytes: 50 },
                ArgKind::Buffer { bytes: 8 },
                ArgKind::Index,
                ArgKind::Buffer { bytes: 60 },
                ArgKind::Buffer { bytes: 0 },
            ],
            grids: &[],
            maps: &[],
            stream: Stream::default(),
        };
        let (regions, args) = regions(&launch).unwrap();
        assert_eq!(regions, [(1000, 1150), (5000, 5008)]);
        assert_eq!(
            args[0],
            RunnerArg::Buffer {
                region: 0,
                offset: 0,
                bytes: 100
            }
        );
        assert_eq!(
            args[1],
            RunnerArg::Buffer {
                region: 0,
                offset: 100,
                bytes: 50
            }
        );
        assert_eq!(
            args[2],
            RunnerArg::Buffer {
                region: 1,
                offset: 0,
                bytes: 8
            }
        );
        assert_eq!(args[3], RunnerArg::Index(7));
        assert_eq!(
            args[4],
            RunnerArg::Buffer {
                region: 0,
                offset: 50,
                bytes: 60
            }
        );
        assert_eq!(
            args[5],
            RunnerArg::Buffer {
                region: 0,
                offset: 0,
                bytes: 0
            }
        );
    }
}
