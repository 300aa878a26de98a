//! Reductions and what is built on them.

use super::value::{Data, Tensor, offsets, strides};
use crate::op::Reduce;
use oxyfuel_base::{DType, Result, ensure};

/// A tensor as rows: where each row starts and where its elements lie from there.
struct Rows {
    starts: Vec<usize>,
    steps: Vec<usize>,
}

impl Rows {
    fn new(shape: &[usize], dims: &[usize]) -> Rows {
        let all = strides(shape);
        let part = |keep: bool| -> (Vec<usize>, Vec<usize>) {
            (0..shape.len())
                .filter(|d| dims.contains(d) != keep)
                .map(|d| (shape[d], all[d]))
                .unzip()
        };
        let ((outer, outer_strides), (inner, inner_strides)) = (part(true), part(false));
        Rows {
            starts: offsets(&outer, &outer_strides),
            steps: offsets(&inner, &inner_strides),
        }
    }

    fn floats(&self, x: &Tensor, row: usize) -> Vec<f64> {
        self.steps
            .iter()
            .map(|step| x.float_at(self.starts[row] + step))
            .collect()
    }
}

pub(super) fn reduce(op: Reduce, x: &Tensor, dims: &[usize], shape: Vec<usize>) -> Result<Tensor> {
    let rows = Rows::new(&x.shape, dims);
    match op {
        Reduce::Amax | Reduce::Amin => {
            ensure!(
                !rows.steps.is_empty(),
                ShapeMismatch,
                "{} of no elements",
                op.info().name
            );
        }
        Reduce::Sum | Reduce::Mean | Reduce::Prod | Reduce::Any | Reduce::All => {}
    }
    Ok(match &x.data {
        Data::F(_) => {
            let out = (0..rows.starts.len()).map(|r| float_row(op, &rows.floats(x, r)));
            match op {
                Reduce::Any | Reduce::All => {
                    Tensor::integers(DType::Bool, shape, out.map(|v| v as i128))
                }
                Reduce::Sum | Reduce::Mean | Reduce::Prod | Reduce::Amax | Reduce::Amin => {
                    Tensor::floats(x.dtype, shape, out)
                }
            }
        }
        Data::I(data) => {
            let row = |r: usize| rows.steps.iter().map(move |s| data[r + s]);
            let out = rows.starts.iter().map(|&r| match op {
                Reduce::Sum | Reduce::Mean => row(r).fold(0, i128::wrapping_add),
                Reduce::Prod => row(r).fold(1, i128::wrapping_mul),
                Reduce::Amax => row(r).max().unwrap_or(0),
                Reduce::Amin => row(r).min().unwrap_or(0),
                Reduce::Any => i128::from(row(r).any(|v| v != 0)),
                Reduce::All => i128::from(row(r).all(|v| v != 0)),
            });
            let dtype = match op {
                Reduce::Any | Reduce::All => DType::Bool,
                Reduce::Sum | Reduce::Mean | Reduce::Prod | Reduce::Amax | Reduce::Amin => x.dtype,
            };
            Tensor::integers(dtype, shape, out)
        }
    })
}

fn float_row(op: Reduce, row: &[f64]) -> f64 {
    let best = |better: fn(f64, f64) -> bool, start: f64| {
        row.iter().fold(start, |best, &v| {
            if best.is_nan() || (!v.is_nan() && !better(v, best)) {
                best
            } else {
                v
            }
        })
    };
    match op {
        Reduce::Sum => row.iter().sum::<f64>() + 0.0,
        Reduce::Mean => row.iter().sum::<f64>() / row.len() as f64,
        Reduce::Prod => row.iter().product(),
        Reduce::Amax => best(|a, b| a > b, f64::NEG_INFINITY),
        Reduce::Amin => best(|a, b| a < b, f64::INFINITY),
        Reduce::Any => f64::from(u8::from(row.iter().any(|&v| v != 0.0))),
        Reduce::All => f64::from(u8::from(row.iter().all(|&v| v != 0.0))),
    }
}

/// Where the first extreme of each row stands; NaN counts as the extreme.
pub(super) fn position(x: &Tensor, dim: usize, max: bool, shape: Vec<usize>) -> Result<Tensor> {
    let dims = if x.shape.is_empty() {
        vec![]
    } else {
        vec![dim]
    };
    let rows = Rows::new(&x.shape, &dims);
    ensure!(
        !rows.steps.is_empty(),
        ShapeMismatch,
        "the position of an extreme of no elements"
    );
    let first = |better: &dyn Fn(usize, usize) -> bool| {
        (1..rows.steps.len()).fold(0, |best, i| if better(i, best) { i } else { best }) as i128
    };
    let out: Vec<i128> = (0..rows.starts.len())
        .map(|r| match &x.data {
            Data::F(_) => {
                let row = rows.floats(x, r);
                first(&|i, best| {
                    let (v, b) = (row[i], row[best]);
                    !b.is_nan() && (v.is_nan() || if max { v > b } else { v < b })
                })
            }
            Data::I(data) => {
                let at = |i: usize| data[rows.starts[r] + rows.steps[i]];
                first(&|i, best| {
                    if max {
                        at(i) > at(best)
                    } else {
                        at(i) < at(best)
                    }
                })
            }
        })
        .collect();
    Ok(Tensor::integers(DType::I64, shape, out.into_iter()))
}

/// Positions that put each row in order, equal elements as they stand; NaN is above everything.
pub(super) fn order(x: &Tensor, dim: usize, descending: bool) -> Tensor {
    let dims = if x.shape.is_empty() {
        vec![]
    } else {
        vec![dim]
    };
    let rows = Rows::new(&x.shape, &dims);
    let mut out = vec![0; x.numel()];
    for &start in &rows.starts {
        let place = |i: usize| start + rows.steps[i];
        let ascending = |&a: &usize, &b: &usize| match &x.data {
            Data::F(_) => {
                let (a, b) = (x.float_at(place(a)), x.float_at(place(b)));
                a.partial_cmp(&b)
                    .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
            Data::I(data) => data[place(a)].cmp(&data[place(b)]),
        };
        let mut order: Vec<usize> = (0..rows.steps.len()).collect();
        order.sort_by(|a, b| {
            if descending {
                ascending(b, a)
            } else {
                ascending(a, b)
            }
        });
        for (i, from) in order.into_iter().enumerate() {
            out[place(i)] = from as i128;
        }
    }
    Tensor::integers(DType::I64, x.shape.clone(), out.into_iter())
}

/// Where the elements of each line along a dimension lie; a tensor without dimensions is one line of one element.
fn lines(x: &Tensor, dim: usize) -> Vec<Vec<usize>> {
    let dims = if x.shape.is_empty() {
        vec![]
    } else {
        vec![dim]
    };
    let rows = Rows::new(&x.shape, &dims);
    let places = |start: &usize| rows.steps.iter().map(|step| start + step).collect();
    rows.starts.iter().map(places).collect()
}

/// Affine functions composed along a dimension; the state is kept in f64.
pub(super) fn linear_scan(a: &Tensor, b: &Tensor, dim: usize) -> Tensor {
    let mut out = vec![0.0; b.numel()];
    for line in lines(b, dim) {
        let mut state = None;
        for at in line {
            let next = state.map_or(b.float_at(at), |state| {
                a.float_at(at) * state + b.float_at(at)
            });
            (out[at], state) = (next, Some(next));
        }
    }
    Tensor::floats(b.dtype, b.shape.clone(), out.into_iter())
}

/// Running combinations along a dimension; floats are kept in f64, halves in f32, as in eager: a product that overflows on its way stays infinite. As in
/// eager they begin with a neutral number, so that no sum is -0.
pub(super) fn scan(
    x: &Tensor,
    dim: usize,
    (start, float): (f64, fn(f64, f64) -> f64),
    integer: fn(i128, i128) -> i128,
) -> Tensor {
    match &x.data {
        Data::F(_) => {
            let mut out = vec![0.0; x.numel()];
            for row in lines(x, dim) {
                let mut sum = start;
                for at in row {
                    let next = float(sum, x.float_at(at));
                    let next = if x.dtype.bits() < 32 {
                        f64::from(next as f32)
                    } else {
                        next
                    };
                    (out[at], sum) = (next, next);
                }
            }
            Tensor::floats(x.dtype, x.shape.clone(), out.into_iter())
        }
        Data::I(data) => {
            let mut out = vec![0; x.numel()];
            for row in lines(x, dim) {
                let mut sum = None;
                for at in row {
                    let next = sum.map_or(data[at], |sum| integer(sum, data[at]));
                    (out[at], sum) = (next, Some(next));
                }
            }
            Tensor::integers(x.dtype, x.shape.clone(), out.into_iter())
        }
    }
}

pub(super) fn var(x: &Tensor, dims: &[usize], correction: f64, shape: Vec<usize>) -> Tensor {
    let rows = Rows::new(&x.shape, dims);
    let out = (0..rows.starts.len()).map(|r| {
        let row = rows.floats(x, r);
        let (_, squares) = moments(&row);
        squares / (row.len() as f64 - correction).max(0.0)
    });
    Tensor::floats(x.dtype, shape, out)
}

/// The mean, and the sum of squared distances from it.
fn moments(row: &[f64]) -> (f64, f64) {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    (mean, row.iter().map(|v| (v - mean) * (v - mean)).sum())
}

pub(super) fn softmax(x: &Tensor, dim: usize, log: bool) -> Tensor {
    let dims = if x.shape.is_empty() {
        vec![]
    } else {
        vec![dim]
    };
    let rows = Rows::new(&x.shape, &dims);
    let mut out = vec![0.0; x.numel()];
    for (r, start) in rows.starts.iter().enumerate() {
        let row = rows.floats(x, r);
        let max = float_row(Reduce::Amax, &row);
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        for (step, v) in rows.steps.iter().zip(row) {
            out[start + step] = if log {
                v - max - sum.ln()
            } else {
                (v - max).exp() / sum
            };
        }
    }
    Tensor::floats(x.dtype, x.shape.clone(), out.into_iter())
}

/// Operands x, weight?, bias?; results out, mean, rstd.
pub(super) fn layer_norm(
    operands: &[&Tensor],
    rank: usize,
    eps: f64,
    statistic: Vec<usize>,
    wide: DType,
) -> Vec<Tensor> {
    let x = operands[0];
    let dims: Vec<usize> = (x.shape.len() - rank..x.shape.len()).collect();
    let rows = Rows::new(&x.shape, &dims);
    let parameter = |which: usize, i: usize, default: f64| {
        operands.get(which).map_or(default, |p| p.float_at(i))
    };
    let (mut out, mut means, mut rstds) = (vec![], vec![], vec![]);
    for r in 0..rows.starts.len() {
        let row = rows.floats(x, r);
        let (mean, squares) = moments(&row);
        let rstd = 1.0 / (squares / row.len() as f64 + eps).sqrt();
        out.extend(
            row.iter()
                .enumerate()
                .map(|(i, v)| (v - mean) * rstd * parameter(1, i, 1.0) + parameter(2, i, 0.0)),
        );
        means.push(mean);
        rstds.push(rstd);
    }
    vec![
        Tensor::floats(x.dtype, x.shape.clone(), out.into_iter()),
        Tensor::floats(wide, statistic.clone(), means.into_iter()),
        Tensor::floats(wide, statistic, rstds.into_iter()),
    ]
}
