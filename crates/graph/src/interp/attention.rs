//! Attention: every row's scores written out, softmax over them, and the weighted sum of values; and its gradients, from the same scores.

use super::value::Tensor;
use oxyfuel_base::DType;

/// The result and the logarithms of the rows' sums, for operands `q, k, v` and perhaps a mask.
pub(super) fn attention(
    operands: &[&Tensor],
    causal: bool,
    scale: f64,
    wide: DType,
) -> Vec<Tensor> {
    let looks = Looks::of(
        [operands[0], operands[1], operands[2]],
        operands.get(3).copied(),
        causal,
        scale,
    );
    let [q, v] = [operands[0], operands[2]];
    let Looks {
        sizes: [batch, heads, rows, keys],
        ..
    } = looks;
    let width = v.shape[3];
    let mut out = vec![0.0; batch * heads * rows * width];
    let mut sums = Vec::with_capacity(batch * heads * rows);
    for at in 0..batch * heads * rows {
        let kv = looks.head_of(at);
        let scores: Vec<f64> = (0..keys).map(|key| looks.score(at, key)).collect();
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

/// Who looks where, and how much of it is seen.
struct Looks<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    mask: Option<Tensor>,
    causal: bool,
    scale: f64,
    /// Batches, heads of queries, queries, keys.
    sizes: [usize; 4],
}

impl<'a> Looks<'a> {
    fn of([q, k, _]: [&'a Tensor; 3], mask: Option<&Tensor>, causal: bool, scale: f64) -> Self {
        let sizes = [q.shape[0], q.shape[1], q.shape[2], k.shape[2]];
        Self {
            q,
            k,
            mask: mask.map(|mask| mask.expand(&sizes)),
            causal,
            scale,
            sizes,
        }
    }

    /// The head of keys and values, counted over batches, that query `at` looks at.
    fn head_of(&self, at: usize) -> usize {
        let [_, heads, rows, _] = self.sizes;
        let (batch, head, groups) = (at / rows / heads, at / rows % heads, self.k.shape[1]);
        batch * groups + head * groups / heads
    }

    /// Query `at`, counted over heads and batches, against a key of its own head.
    fn score(&self, at: usize, key: usize) -> f64 {
        let [_, _, rows, keys] = self.sizes;
        if self.causal && key > at % rows {
            return f64::NEG_INFINITY;
        }
        let (depth, kv) = (self.q.shape[3], self.head_of(at));
        let dot = (0..depth).map(|i| {
            self.q.float_at(at * depth + i) * self.k.float_at((kv * keys + key) * depth + i)
        });
        let score = dot.sum::<f64>() * self.scale;
        match &self.mask {
            None => score,
            Some(mask) if !mask.dtype.is_bool() => score + mask.float_at(at * keys + key),
            Some(mask) if mask.float_at(at * keys + key) != 0.0 => score,
            Some(_) => f64::NEG_INFINITY,
        }
    }
}

/// The gradients of `q, k, v`, for operands `grad, q, k, v, out, lse` and perhaps a mask.
pub(super) fn backward(operands: &[&Tensor], causal: bool, scale: f64) -> Vec<Tensor> {
    let [grad, q, k, v, out, lse] = [0, 1, 2, 3, 4, 5].map(|i| operands[i]);
    let looks = Looks::of([q, k, v], operands.get(6).copied(), causal, scale);
    let [batch, heads, rows, keys] = looks.sizes;
    let (depth, width) = (q.shape[3], v.shape[3]);
    let zeros = |x: &Tensor| vec![0.0; x.shape.iter().product()];
    let (mut dq, mut dk, mut dv) = (zeros(q), zeros(k), zeros(v));
    for at in 0..batch * heads * rows {
        let blind = lse.float_at(at) == f64::NEG_INFINITY;
        if blind {
            continue;
        }
        let grad_at = |i: usize| grad.float_at(at * width + i);
        let whole: f64 = (0..width)
            .map(|i| grad_at(i) * out.float_at(at * width + i))
            .sum();
        for key in 0..keys {
            let of = looks.head_of(at) * keys + key;
            let weight = (looks.score(at, key) - lse.float_at(at)).exp();
            let mut change = 0.0;
            for i in 0..width {
                change += grad_at(i) * v.float_at(of * width + i);
                dv[of * width + i] += weight * grad_at(i);
            }
            let change = weight * (change - whole) * scale;
            for i in 0..depth {
                dq[at * depth + i] += change * k.float_at(of * depth + i);
                dk[of * depth + i] += change * q.float_at(at * depth + i);
            }
        }
    }
    [(q, dq), (k, dk), (v, dv)]
        .map(|(x, sums)| Tensor::floats(x.dtype, x.shape.clone(), sums.into_iter()))
        .to_vec()
}
