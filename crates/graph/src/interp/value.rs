//! Tensors as the interpreter holds them: exact numbers, row-major.

use super::MAX_ELEMENTS;
use crate::HostTensor;
use oxyfuel_base::convert::{self, Value};
use oxyfuel_base::{DType, Result, Scalar, ensure};

/// A dense tensor of numbers, each of which its dtype can hold.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Data,
}

/// Floats of any dtype, or integers of any dtype (bool as 0 and 1).
#[derive(Clone, Debug)]
pub(super) enum Data {
    F(Vec<f64>),
    I(Vec<i128>),
}

impl Tensor {
    pub fn from_host(host: &HostTensor) -> Result<Tensor> {
        let shape: Vec<usize> = host
            .shape
            .iter()
            .filter_map(|&n| usize::try_from(n).ok())
            .collect();
        let elements = host.numel();
        ensure!(
            elements <= MAX_ELEMENTS,
            TooLarge,
            "{elements} elements are more than the interpreter holds ({MAX_ELEMENTS})"
        );
        let bytes = crate::tensor::byte_len(host.dtype, &host.shape)?;
        ensure!(
            bytes == host.data.len(),
            InvalidArgument,
            "{} bytes for {}{:?}",
            host.data.len(),
            host.dtype,
            host.shape
        );
        let values = (0..elements).map(|i| convert::decode(host.dtype, host.bits(i)));
        Ok(Tensor::collect(host.dtype, shape, values))
    }

    pub fn to_host(&self) -> Result<HostTensor> {
        let shape: Vec<i64> = self
            .shape
            .iter()
            .map(|&n| i64::try_from(n).unwrap_or(i64::MAX))
            .collect();
        let mut data = Vec::with_capacity(self.numel() * self.dtype.size());
        for i in 0..self.numel() {
            data.extend_from_slice(
                &convert::encode(self.dtype, self.at(i)).to_le_bytes()[..self.dtype.size()],
            );
        }
        HostTensor::new(self.dtype, &shape, data)
    }

    /// Rounds or wraps values to a dtype. All NaNs become the same one: machines differ in the sign of those they make.
    pub fn collect(dtype: DType, shape: Vec<usize>, values: impl Iterator<Item = Value>) -> Tensor {
        let rounded = values.map(|v| convert::decode(dtype, convert::encode(dtype, v)));
        let data = if dtype.is_float() {
            Data::F(rounded.map(|v| canonical(float(v))).collect())
        } else {
            Data::I(rounded.map(integer).collect())
        };
        Tensor { dtype, shape, data }
    }

    /// Floats computed wide, rounded to a dtype.
    pub fn floats(dtype: DType, shape: Vec<usize>, values: impl Iterator<Item = f64>) -> Tensor {
        Tensor::collect(dtype, shape, values.map(Value::F))
    }

    /// Integers computed without bound, wrapped to a dtype.
    pub fn integers(dtype: DType, shape: Vec<usize>, values: impl Iterator<Item = i128>) -> Tensor {
        Tensor::collect(dtype, shape, values.map(Value::I))
    }

    pub fn full(dtype: DType, shape: Vec<usize>, value: Scalar) -> Tensor {
        let value = convert::decode(dtype, value.to_bits(dtype));
        let count = shape.iter().product();
        Tensor::collect(dtype, shape, std::iter::repeat_n(value, count))
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element `i`, row-major.
    pub fn at(&self, i: usize) -> Value {
        match &self.data {
            Data::F(x) => Value::F(x[i]),
            Data::I(x) => Value::I(x[i]),
        }
    }

    /// Element `i` as a float.
    pub fn float_at(&self, i: usize) -> f64 {
        float(self.at(i))
    }

    pub fn cast(&self, dtype: DType) -> Tensor {
        Tensor::collect(
            dtype,
            self.shape.clone(),
            (0..self.numel()).map(|i| self.at(i)),
        )
    }

    /// The tensor whose element `i` is element `offsets[i]` of this one.
    pub fn pick(&self, shape: Vec<usize>, offsets: &[usize]) -> Tensor {
        let data = match &self.data {
            Data::F(x) => Data::F(offsets.iter().map(|&i| x[i]).collect()),
            Data::I(x) => Data::I(offsets.iter().map(|&i| x[i]).collect()),
        };
        Tensor {
            dtype: self.dtype,
            shape,
            data,
        }
    }

    /// Repeated to a shape it broadcasts to.
    pub fn expand(&self, shape: &[usize]) -> Tensor {
        self.pick(shape.to_vec(), &broadcast_offsets(&self.shape, shape))
    }
}

fn canonical(x: f64) -> f64 {
    if x.is_nan() {
        f64::from_bits(0x7ff8_0000_0000_0000)
    } else {
        x
    }
}

pub(super) fn float(v: Value) -> f64 {
    match v {
        Value::F(x) => x,
        Value::I(x) => x as f64,
        Value::B(x) => f64::from(u8::from(x)),
    }
}

fn integer(v: Value) -> i128 {
    match v {
        Value::F(x) => x as i128,
        Value::I(x) => x,
        Value::B(x) => x.into(),
    }
}

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d] * shape[d].max(1);
    }
    out
}

/// The dot product of every coordinate of `shape`, in row-major order, with `strides`.
pub(super) fn offsets(shape: &[usize], strides: &[usize]) -> Vec<usize> {
    let mut out = vec![0];
    for (&size, &stride) in shape.iter().zip(strides) {
        out = out
            .iter()
            .flat_map(|&base| (0..size).map(move |i| base + i * stride))
            .collect();
    }
    out
}

/// Where each element of a broadcast result comes from.
pub(super) fn broadcast_offsets(from: &[usize], to: &[usize]) -> Vec<usize> {
    let skip = to.len() - from.len();
    let mut steps = vec![0; to.len()];
    for (d, (&size, &stride)) in from.iter().zip(&strides(from)).enumerate() {
        steps[skip + d] = if size == 1 { 0 } else { stride };
    }
    offsets(to, &steps)
}
