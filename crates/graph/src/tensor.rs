//! Dense tensors in host memory: what constants hold and what the interpreter takes and gives.
//!
//! Elements are stored row-major without gaps, each in [`DType::size`] little-endian bytes (a packed format still takes one byte an
//! element). Simple rather than fast: this is the oracle's side of the house.

use oxyfuel_base::{DType, Result, Scalar, ensure};
use serde::{Deserialize, Serialize};

/// A dense tensor in host memory. Equal tensors have equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTensor {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub data: Vec<u8>,
}

impl HostTensor {
    /// A tensor over bytes; their number must be what dtype and shape say.
    pub fn new(dtype: DType, shape: &[i64], data: Vec<u8>) -> Result<Self> {
        let bytes = byte_len(dtype, shape)?;
        ensure!(
            data.len() == bytes,
            InvalidArgument,
            "{dtype}{shape:?} takes {bytes} bytes, got {}",
            data.len()
        );
        Ok(Self {
            dtype,
            shape: shape.to_vec(),
            data,
        })
    }

    /// A tensor of scalars, each cast to `dtype`.
    pub fn from_scalars(dtype: DType, shape: &[i64], scalars: &[Scalar]) -> Result<Self> {
        let mut data = Vec::with_capacity(scalars.len() * dtype.size());
        for s in scalars {
            data.extend_from_slice(&s.to_bits(dtype).to_le_bytes()[..dtype.size()]);
        }
        Self::new(dtype, shape, data)
    }

    pub fn from_f64(dtype: DType, shape: &[i64], values: &[f64]) -> Result<Self> {
        Self::from_scalars(
            dtype,
            shape,
            &values.iter().map(|&v| Scalar::F(v)).collect::<Vec<_>>(),
        )
    }

    pub fn from_i64(dtype: DType, shape: &[i64], values: &[i64]) -> Result<Self> {
        Self::from_scalars(
            dtype,
            shape,
            &values.iter().map(|&v| Scalar::I(v)).collect::<Vec<_>>(),
        )
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// The code of element `index` (row-major), in the low bits.
    pub fn bits(&self, index: usize) -> u64 {
        let size = self.dtype.size();
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&self.data[index * size..][..size]);
        u64::from_le_bytes(bytes)
    }

    /// Element `index` (row-major).
    pub fn get(&self, index: usize) -> Scalar {
        Scalar::from_bits(self.dtype, self.bits(index))
    }

    pub fn scalars(&self) -> impl Iterator<Item = Scalar> + '_ {
        (0..self.numel()).map(|i| self.get(i))
    }

    /// The elements as floats.
    pub fn to_f64(&self) -> Vec<f64> {
        self.scalars().map(Scalar::as_f64).collect()
    }
}

/// Bytes of a dense tensor; an error when a size is negative or the product does not fit.
pub fn byte_len(dtype: DType, shape: &[i64]) -> Result<usize> {
    let mut bytes = dtype.size();
    for &n in shape {
        ensure!(n >= 0, InvalidArgument, "negative size {n} in {shape:?}");
        let next = usize::try_from(n)
            .ok()
            .and_then(|n| bytes.checked_mul(n))
            .filter(|&b| i64::try_from(b).is_ok());
        let Some(next) = next else {
            return Err(oxyfuel_base::err!(
                SizeOverflow,
                "a tensor of shape {shape:?} does not fit into 64 bits"
            ));
        };
        bytes = next;
    }
    Ok(bytes)
}
