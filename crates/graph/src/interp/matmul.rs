//! Matrix products: summed wide in index order, rounded once.

use super::value::{Data, Tensor};
use oxyfuel_base::{DType, Scalar};

/// Sums before rounding.
enum Sums {
    F(Vec<f64>),
    I(Vec<i128>),
}

/// `batch` products of [m, k] and [k, n].
fn product(a: &Tensor, b: &Tensor, batch: usize) -> Sums {
    let [m, k] = [a.shape[a.shape.len() - 2], a.shape[a.shape.len() - 1]];
    let n = b.shape[b.shape.len() - 1];
    match (&a.data, &b.data) {
        (Data::I(x), Data::I(y)) => Sums::I(sums(x, y, [batch, m, k, n], 0, |sum, a, b| {
            sum.wrapping_add(a.wrapping_mul(b))
        })),
        (Data::F(x), Data::F(y)) => {
            Sums::F(sums(x, y, [batch, m, k, n], 0.0, |sum, a, b| sum + a * b))
        }
        // The verifier demands one dtype.
        (Data::F(_), Data::I(_)) | (Data::I(_), Data::F(_)) => {
            Sums::F(vec![f64::NAN; batch * m * n])
        }
    }
}

fn sums<T: Copy>(
    x: &[T],
    y: &[T],
    [batch, m, k, n]: [usize; 4],
    zero: T,
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut out = vec![zero; batch * m * n];
    for b in 0..batch {
        for i in 0..m {
            for l in 0..k {
                let left = x[(b * m + i) * k + l];
                for j in 0..n {
                    let sum = &mut out[(b * m + i) * n + j];
                    *sum = add(*sum, left, y[(b * k + l) * n + j]);
                }
            }
        }
    }
    out
}

fn round(dtype: DType, shape: Vec<usize>, sums: Sums) -> Tensor {
    match sums {
        Sums::F(x) => Tensor::floats(dtype, shape, x.into_iter()),
        Sums::I(x) => Tensor::integers(dtype, shape, x.into_iter()),
    }
}

pub(super) fn mm(a: &Tensor, b: &Tensor) -> Tensor {
    round(a.dtype, vec![a.shape[0], b.shape[1]], product(a, b, 1))
}

pub(super) fn bmm(a: &Tensor, b: &Tensor) -> Tensor {
    round(
        a.dtype,
        vec![a.shape[0], a.shape[1], b.shape[2]],
        product(a, b, a.shape[0]),
    )
}

/// Of matrices or of batches of them, in i32.
pub(super) fn int_mm(a: &Tensor, b: &Tensor) -> Tensor {
    let rows = a.shape.len() - 1;
    let batch = a.shape[..rows - 1].iter().product();
    let shape = [&a.shape[..rows], &b.shape[rows..]].concat();
    round(DType::I32, shape, product(a, b, batch))
}

/// The columns of all panels side by side, as far as there are any.
pub(super) fn from_panels(panels: &Tensor, n: usize) -> Tensor {
    let [k, width] = [panels.shape[1], panels.shape[2]];
    let places = (0..k).flat_map(|row| (0..n).map(move |col| (row, col)));
    let at = |(row, col): (usize, usize)| (col / width * k + row) * width + col % width;
    let data = match &panels.data {
        Data::F(x) => Data::F(places.map(|place| x[at(place)]).collect()),
        Data::I(x) => Data::I(places.map(|place| x[at(place)]).collect()),
    };
    Tensor {
        shape: vec![k, n],
        data,
        ..panels.clone()
    }
}

pub(super) fn mm_panels(operands: &[&Tensor], n: usize) -> Tensor {
    let (a, b) = (operands[0], from_panels(operands[1], n));
    match operands.get(2) {
        Some(bias) => addmm(bias, a, &b, Scalar::I(1), Scalar::I(1)),
        None => mm(a, &b),
    }
}

pub(super) fn addmm(bias: &Tensor, a: &Tensor, b: &Tensor, beta: Scalar, alpha: Scalar) -> Tensor {
    let shape = vec![a.shape[0], b.shape[1]];
    let bias = bias.expand(&shape);
    let sums = match (product(a, b, 1), &bias.data) {
        (Sums::F(x), bias) => {
            let (beta, alpha) = (beta.as_f64(), alpha.as_f64());
            let add = |i: usize| match bias {
                Data::F(b) if beta != 0.0 => beta * b[i],
                Data::F(_) | Data::I(_) => 0.0,
            };
            Sums::F(
                x.iter()
                    .enumerate()
                    .map(|(i, v)| add(i) + alpha * v)
                    .collect(),
            )
        }
        (Sums::I(x), bias) => {
            let (beta, alpha) = (i128::from(beta.as_i64()), i128::from(alpha.as_i64()));
            let add = |i: usize| match bias {
                Data::I(b) => b[i].wrapping_mul(beta),
                Data::F(_) => 0,
            };
            Sums::I(
                x.iter()
                    .enumerate()
                    .map(|(i, v)| v.wrapping_mul(alpha).wrapping_add(add(i)))
                    .collect(),
            )
        }
    };
    round(a.dtype, shape, sums)
}
