//! Where the tensors of a graph are, as the host names it and as the run side does.

use oxyfuel_base::{Result, err};
use pyo3::prelude::*;
use std::ffi::c_int;
use std::fmt;

use crate::torch::Torch;

/// One device holds everything that kernels of a graph touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// A GPU by its number.
    Cuda(u32),
    /// The device that computes nothing; its tensors are the CPU's.
    Nothing,
}

impl Place {
    /// By its name.
    pub fn named(name: &str) -> Result<Self> {
        let place = match name.split_once(':') {
            None => match name {
                "cpu" => Some(Self::Cpu),
                "null" => Some(Self::Nothing),
                _ => None,
            },
            Some(("cuda", index)) => index.parse().ok().map(Self::Cuda),
            Some((_, _)) => None,
        };
        place.ok_or_else(|| err!(NoDevice, "nothing is compiled for a device `{name}`"))
    }

    /// DLPack's kind and number.
    pub fn dlpack(self) -> [c_int; 2] {
        match self {
            Self::Cpu | Self::Nothing => [1, 0],
            Self::Cuda(index) => [2, c_int::try_from(index).unwrap_or(c_int::MAX)],
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu | Self::Nothing => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// A place, with what the host needs to make tensors there.
#[derive(Debug)]
pub struct Home {
    pub place: Place,
    /// The host's device, whose memory everything of a call is then; `None`: the CPU, where large tensors and what lives between kernels may be ours.
    pub device: Option<Py<PyAny>>,
}

impl Home {
    pub fn new(py: Python<'_>, torch: &Torch, place: Place) -> PyResult<Self> {
        let device = match place {
            Place::Cpu => None,
            Place::Cuda(_) | Place::Nothing => {
                Some(torch.constant(py, "device", &place.to_string())?)
            }
        };
        Ok(Self { place, device })
    }
}
