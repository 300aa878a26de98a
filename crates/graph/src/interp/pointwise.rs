//! Functions of the elements at one index.

use super::function::{float_binary, float_unary, integer_binary, integer_unary};
use super::value::{Data, Tensor, broadcast_offsets, float};
use crate::op::{Binary, Compare, Unary};
use oxyfuel_base::DType;
use oxyfuel_base::convert::{self, Value};
use std::cmp::Ordering;

pub(super) fn unary(f: Unary, x: &Tensor, out: DType) -> Tensor {
    let shape = x.shape.clone();
    match &x.data {
        Data::F(values) => Tensor::floats(out, shape, values.iter().map(|&v| float_unary(f, v))),
        Data::I(values) => Tensor::integers(
            out,
            shape,
            values.iter().map(|&v| integer_unary(f, v, x.dtype)),
        ),
    }
}

pub(super) fn binary(f: Binary, a: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    let (ia, ib) = (
        broadcast_offsets(&a.shape, shape),
        broadcast_offsets(&b.shape, shape),
    );
    let pairs = ia.into_iter().zip(ib);
    match (&a.data, &b.data) {
        (Data::I(x), Data::I(y)) => Tensor::integers(
            a.dtype,
            shape.to_vec(),
            pairs.map(|(i, j)| integer_binary(f, x[i], y[j], a.dtype)),
        ),
        (Data::F(_) | Data::I(_), _) => {
            let step = |x: f64| {
                float(convert::decode(
                    a.dtype,
                    convert::encode(a.dtype, Value::F(x)),
                ))
            };
            let out = pairs.map(|(i, j)| float_binary(f, a.float_at(i), b.float_at(j), step));
            Tensor::floats(a.dtype, shape.to_vec(), out)
        }
    }
}

pub(super) fn compare(f: Compare, a: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    let (ia, ib) = (
        broadcast_offsets(&a.shape, shape),
        broadcast_offsets(&b.shape, shape),
    );
    let order = |i: usize, j: usize| match (&a.data, &b.data) {
        (Data::I(x), Data::I(y)) => Some(x[i].cmp(&y[j])),
        (Data::F(_) | Data::I(_), _) => a.float_at(i).partial_cmp(&b.float_at(j)),
    };
    let holds = |order: Option<Ordering>| match f {
        Compare::Eq => order == Some(Ordering::Equal),
        Compare::Ne => order != Some(Ordering::Equal),
        Compare::Lt => order == Some(Ordering::Less),
        Compare::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Compare::Gt => order == Some(Ordering::Greater),
        Compare::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    };
    let bits = ia
        .into_iter()
        .zip(ib)
        .map(|(i, j)| i128::from(holds(order(i, j))));
    Tensor::integers(DType::Bool, shape.to_vec(), bits)
}

pub(super) fn choose(condition: &Tensor, a: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    let [condition, a, b] = [condition.expand(shape), a.expand(shape), b.expand(shape)];
    let picked = (0..condition.numel()).map(|i| {
        if condition.float_at(i) == 0.0 {
            b.at(i)
        } else {
            a.at(i)
        }
    });
    Tensor::collect(a.dtype, shape.to_vec(), picked)
}
