//! Writes at computed places, one element after another.

use super::index::named;
use super::value::{Data, Tensor};
use crate::op::Scatter;
use oxyfuel_base::{DType, Result};

/// `x` after every element of `src`, in row-major order, met what lies where the index says. Row-major order keeps the order along `dim` for each place, since elements of other rows go elsewhere.
pub(super) fn scatter(
    op: Scatter,
    x: &Tensor,
    src: &Tensor,
    dim: usize,
    index: &Tensor,
) -> Result<Tensor> {
    let places = named(x, dim, index)?;
    match (&x.data, &src.data) {
        (Data::F(to), Data::F(from)) => {
            let mut to = to.clone();
            for (&place, &new) in places.iter().zip(from) {
                let met = float(op, to[place], new);
                // The order is given, so every sum is that of a machine: in f32, but for f64.
                to[place] = match x.dtype {
                    DType::F64 => met,
                    _ => f64::from(met as f32),
                };
            }
            Ok(Tensor::floats(x.dtype, x.shape.clone(), to.into_iter()))
        }
        (Data::I(to), Data::I(from)) => {
            let mut to = to.clone();
            for (&place, &new) in places.iter().zip(from) {
                to[place] = integer(op, to[place], new);
            }
            Ok(Tensor::integers(x.dtype, x.shape.clone(), to.into_iter()))
        }
        // The verifier demands one dtype.
        (Data::F(_), Data::I(_)) | (Data::I(_), Data::F(_)) => Ok(x.clone()),
    }
}

fn float(op: Scatter, old: f64, new: f64) -> f64 {
    match op {
        Scatter::Set => new,
        Scatter::Sum => old + new,
        Scatter::Prod => old * new,
        Scatter::Amax | Scatter::Amin if old.is_nan() || new.is_nan() => f64::NAN,
        Scatter::Amax => old.max(new),
        Scatter::Amin => old.min(new),
    }
}

/// Wraps at 128 bits, which keeps the bits of every narrower dtype.
fn integer(op: Scatter, old: i128, new: i128) -> i128 {
    match op {
        Scatter::Set => new,
        Scatter::Sum => old.wrapping_add(new),
        Scatter::Prod => old.wrapping_mul(new),
        Scatter::Amax => old.max(new),
        Scatter::Amin => old.min(new),
    }
}
