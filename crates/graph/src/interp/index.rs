//! Views, indexing, sources and updates: elements moved, none computed.

use super::value::{Data, Tensor, offsets, strides};
use crate::bind::Bindings;
use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar, ensure};

pub(super) fn permute(x: &Tensor, dims: &[usize]) -> Tensor {
    let all = strides(&x.shape);
    let shape: Vec<usize> = dims.iter().map(|&d| x.shape[d]).collect();
    let steps: Vec<usize> = dims.iter().map(|&d| all[d]).collect();
    let from = offsets(&shape, &steps);
    x.pick(shape, &from)
}

/// A slice with its bounds known.
pub(super) struct Slice {
    shape: Vec<usize>,
    /// Where each element of the slice lies in the tensor.
    places: Vec<usize>,
}

impl Slice {
    pub fn new(
        bindings: &Bindings,
        x: &Tensor,
        dim: usize,
        (start, end, step): (&Expr, &Expr, i64),
    ) -> Result<Slice> {
        let (start, end) = (bindings.eval(start)?, bindings.eval(end)?);
        let size = x.shape[dim];
        let bounds = (usize::try_from(start).ok(), usize::try_from(end).ok());
        let (Some(first), Some(last)) = bounds else {
            return Err(out_of_range(start, end, size));
        };
        if first > last || last > size {
            return Err(out_of_range(start, end, size));
        }
        let step = usize::try_from(step).unwrap_or(1).max(1);
        let mut shape = x.shape.clone();
        shape[dim] = (last - first).div_ceil(step);
        let mut steps = strides(&x.shape);
        let base = first * steps[dim];
        steps[dim] *= step;
        let places = offsets(&shape, &steps)
            .into_iter()
            .map(|o| o + base)
            .collect();
        Ok(Slice { shape, places })
    }

    pub fn read(&self, x: &Tensor) -> Tensor {
        x.pick(self.shape.clone(), &self.places)
    }

    pub fn write(&self, x: &Tensor, src: &Tensor) -> Tensor {
        write(x, src, &self.places)
    }
}

/// `x` with the elements at `places` replaced by those of `src`, in order.
pub(super) fn write(x: &Tensor, src: &Tensor, places: &[usize]) -> Tensor {
    let mut out = x.clone();
    match (&mut out.data, &src.data) {
        (Data::F(to), Data::F(from)) => places.iter().zip(from).for_each(|(&i, &v)| to[i] = v),
        (Data::I(to), Data::I(from)) => places.iter().zip(from).for_each(|(&i, &v)| to[i] = v),
        // The verifier demands one dtype.
        (Data::F(_), Data::I(_)) | (Data::I(_), Data::F(_)) => {}
    }
    out
}

fn out_of_range(start: i64, end: i64, size: usize) -> Error {
    Error::new(
        Code::IndexOutOfRange,
        format!("0 <= {start} <= {end} <= {size} does not hold"),
    )
}

pub(super) fn cat(parts: &[&Tensor], dim: usize, shape: Vec<usize>) -> Tensor {
    let outer: usize = shape[..dim].iter().product();
    let mut values = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for part in parts {
            let chunk: usize = part.shape[dim..].iter().product();
            values.extend((o * chunk..(o + 1) * chunk).map(|i| part.at(i)));
        }
    }
    Tensor::collect(parts[0].dtype, shape, values.into_iter())
}

/// An index value as a position below `size`.
fn position(index: &Tensor, i: usize, size: usize) -> Result<usize> {
    let value = match &index.data {
        Data::I(x) => x[i],
        Data::F(x) => x[i] as i128,
    };
    let place = usize::try_from(value).ok().filter(|&p| p < size);
    place.ok_or_else(|| {
        Error::new(
            Code::IndexOutOfRange,
            format!("index {value} in a dimension of size {size}"),
        )
    })
}

pub(super) fn gather(x: &Tensor, dim: usize, index: &Tensor) -> Result<Tensor> {
    Ok(x.pick(index.shape.clone(), &named(x, dim, index)?))
}

/// Where the elements of x lie that an index of as many dimensions names along one.
pub(super) fn named(x: &Tensor, dim: usize, index: &Tensor) -> Result<Vec<usize>> {
    for d in (0..x.shape.len()).filter(|&d| d != dim) {
        ensure!(
            index.shape[d] <= x.shape[d],
            ShapeMismatch,
            "dimension {d} of the index has size {}, of x only {}",
            index.shape[d],
            x.shape[d]
        );
    }
    let mut steps = strides(&x.shape);
    let along = std::mem::take(&mut steps[dim]);
    let mut from = offsets(&index.shape, &steps);
    for (i, place) in from.iter_mut().enumerate() {
        *place += along * position(index, i, x.shape[dim])?;
    }
    Ok(from)
}

pub(super) fn index_select(
    x: &Tensor,
    dim: usize,
    index: &Tensor,
    shape: &[usize],
) -> Result<Tensor> {
    Ok(x.pick(shape.to_vec(), &places(x, dim, index)?))
}

/// Where the elements of the slices that an index names lie.
pub(super) fn places(x: &Tensor, dim: usize, index: &Tensor) -> Result<Vec<usize>> {
    let inner: usize = x.shape[dim + 1..].iter().product();
    let outer: usize = x.shape[..dim].iter().product();
    let mut from = vec![];
    for o in 0..outer {
        for i in 0..index.numel() {
            let start = (o * x.shape[dim] + position(index, i, x.shape[dim])?) * inner;
            from.extend(start..start + inner);
        }
    }
    Ok(from)
}

pub(super) fn embedding(weight: &Tensor, indices: &Tensor, shape: Vec<usize>) -> Result<Tensor> {
    let width = weight.shape[1];
    let mut from = Vec::with_capacity(indices.numel() * width);
    for i in 0..indices.numel() {
        let row = position(indices, i, weight.shape[0])?;
        from.extend(row * width..(row + 1) * width);
    }
    Ok(weight.pick(shape, &from))
}

pub(super) fn arange(start: Scalar, step: Scalar, dtype: DType, shape: Vec<usize>) -> Tensor {
    let count: usize = shape.iter().product();
    if dtype.is_float() {
        let (start, step) = (start.as_f64(), step.as_f64());
        Tensor::floats(dtype, shape, (0..count).map(|i| start + i as f64 * step))
    } else {
        let (start, step) = (i128::from(start.as_i64()), i128::from(step.as_i64()));
        Tensor::integers(dtype, shape, (0..count).map(|i| start + i as i128 * step))
    }
}
