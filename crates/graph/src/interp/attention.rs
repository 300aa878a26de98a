//! Attention: every row's scores written out, softmax over them, and the weighted sum of values.

use super::value::Tensor;
use oxyfuel_base::DType;

/// The result and the logarithms of the rows' sums, for operands `q, k, v` and perhaps a mask.
pub(super) fn attention(
    operands: &[&Tensor],
    causal: bool,
    scale: f64,
    wide: DType,
) -> Vec<Tensor> {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    let [batch, heads, rows, depth] = [q.shape[0], q.shape[1], q.shape[2], q.shape[3]];
    let [groups, keys, width] = [k.shape[1], k.shape[2], v.shape[3]];
    let mask = operands
        .get(3)
        .map(|mask| mask.expand(&[batch, heads, rows, keys]));
    let row_of = |b: usize, head: usize| b * groups + head * groups / heads.max(1);
    let mut out = vec![0.0; batch * heads * rows * width];
    let mut sums = Vec::with_capacity(batch * heads * rows);
    for at in 0..batch * heads * rows {
        let (b, head, row) = (at / rows / heads, at / rows % heads, at % rows);
        let kv = row_of(b, head);
        let score = |key: usize| -> f64 {
            let dot = (0..depth)
                .map(|i| q.float_at(at * depth + i) * k.float_at((kv * keys + key) * depth + i));
            let score = dot.sum::<f64>() * scale;
            match &mask {
                _ if causal && key > row => f64::NEG_INFINITY,
                None => score,
                Some(mask) if !mask.dtype.is_bool() => score + mask.float_at(at * keys + key),
                Some(mask) if mask.float_at(at * keys + key) != 0.0 => score,
                Some(_) => f64::NEG_INFINITY,
            }
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let blind = scores.iter().all(|&s| s == f64::NEG_INFINITY);
        let most =
            scores.iter().copied().fold(
                f64::NEG_INFINITY,
                |a, b| {
                    if b.is_nan() || b > a { b } else { a }
                },
            );
        let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        sums.push(if blind { most } else { most + sum.ln() });
        if blind {
            continue;
        }
        for (key, power) in powers.iter().enumerate() {
            for i in 0..width {
                out[at * width + i] += power / sum * v.float_at((kv * keys + key) * width + i);
            }
        }
    }
    let sizes = |last: &[usize]| [&[batch, heads, rows], last].concat();
    vec![
        Tensor::floats(q.dtype, sizes(&[width]), out.into_iter()),
        Tensor::floats(wide, sizes(&[]), sums.into_iter()),
    ]
}
