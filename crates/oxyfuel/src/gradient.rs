//! Gradients as functions: each takes the gradient of a result (this tensor) and what the forward saw or gave, and returns that of its operand. In PyTorch's formulas, computed in at least f32 and
//! rounded once.

use crate::recipe::Build::{Floats, Nodes};
use crate::recipe::{Recording, recipe, recipes, wide};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, ensure};
use oxyfuel_graph::ValueId;
use oxyfuel_graph::special::Formula;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

recipes! {
    /// Gradients of activations.
    impl {
        /// Of `y = sigmoid(x)`, from y.
        sigmoid_backward: [y] () = Floats(|f, v, _| {
            let rest = f.sub(1.0, v[1])?;
            let slope = f.mul(rest, v[1])?;
            f.mul(v[0], slope)
        });
        /// Of `y = tanh(x)`, from y.
        tanh_backward: [y] () = Floats(|f, v, _| {
            let square = f.mul(v[1], v[1])?;
            let slope = f.sub(1.0, square)?;
            f.mul(v[0], slope)
        });
        /// Of `silu(x)`.
        silu_backward: [x] () = Floats(|f, v, _| {
            let gate = f.sigmoid(v[1])?;
            let rest = f.sub(1.0, gate)?;
            let bend = f.mul(v[1], rest)?;
            let bend = f.add(bend, 1.0)?;
            let slope = f.mul(gate, bend)?;
            f.mul(v[0], slope)
        });
        /// Of `gelu(x)`.
        gelu_backward: [x] () = Floats(|f, v, _| {
            let x = v[1];
            let scaled = f.mul(x, FRAC_1_SQRT_2)?;
            let e = f.erf(scaled)?;
            let part = f.add(e, 1.0)?;
            let part = f.mul(part, 0.5)?;
            let square = f.mul(x, x)?;
            let below = f.mul(square, -0.5)?;
            let density = f.exp(below)?;
            let density = f.mul(density, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)?;
            let more = f.mul(x, density)?;
            let slope = f.add(part, more)?;
            f.mul(v[0], slope)
        });
        /// Of `gelu(x, approximate="tanh")`.
        gelu_tanh_backward: [x] () = Floats(|f, v, _| {
            const CUBE: f64 = 0.044715;
            let scale = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
            let x = v[1];
            let square = f.mul(x, x)?;
            let cube = f.mul(square, x)?;
            let cube = f.mul(cube, CUBE)?;
            let sum = f.add(x, cube)?;
            let inner = f.mul(sum, scale)?;
            let t = f.tanh(inner)?;
            let left = f.mul(x, 0.5)?;
            let right = f.add(t, 1.0)?;
            let of_left = f.mul(right, 0.5)?;
            let t_square = f.mul(t, t)?;
            let of_tanh = f.sub(1.0, t_square)?;
            let of_inner = f.mul(square, 3.0 * CUBE)?;
            let of_inner = f.add(of_inner, 1.0)?;
            let of_inner = f.mul(of_inner, scale)?;
            let of_right = f.mul(left, of_tanh)?;
            let of_right = f.mul(of_right, of_inner)?;
            let slope = f.add(of_left, of_right)?;
            f.mul(v[0], slope)
        });
        /// Of `threshold(x)`, and of `relu(x)` with a threshold of 0: what comes where x is above it.
        threshold_backward: [x] (threshold: f64) = Floats(|f, v, n| {
            let below = f.le(v[1], n[0])?;
            f.choose(below, 0.0, v[0])
        });
        /// Of `leaky_relu(x)`.
        leaky_relu_backward: [x] (negative_slope: f64) = Floats(|f, v, n| {
            let scaled = f.mul(v[0], n[0])?;
            let above = f.gt(v[1], 0.0)?;
            f.choose(above, v[0], scaled)
        });
        /// Of `hardtanh(x)`.
        hardtanh_backward: [x] (low: f64, high: f64) = Floats(|f, v, n| inside(f, v[1], [n[0], n[1]], v[0]));
        /// Of `hardsigmoid(x)`.
        hardsigmoid_backward: [x] () = Floats(|f, v, _| {
            let scaled = f.mul(v[0], 1.0 / 6.0)?;
            inside(f, v[1], [-3.0, 3.0], scaled)
        });
        /// Of `hardswish(x)`.
        hardswish_backward: [x] () = Floats(|f, v, _| {
            let ratio = f.div(v[1], 3.0)?;
            let slope = f.add(ratio, 0.5)?;
            let middle = f.mul(v[0], slope)?;
            let (below, under) = (f.le(v[1], -3.0)?, f.lt(v[1], 3.0)?);
            let above = f.choose(under, middle, v[0])?;
            f.choose(below, 0.0, above)
        });
        /// Of `elu(x)`.
        elu_backward: [x] (alpha: f64) = Floats(|f, v, n| {
            let e = f.exp(v[1])?;
            let slope = f.mul(e, n[0])?;
            let left = f.mul(v[0], slope)?;
            let below = f.le(v[1], 0.0)?;
            f.choose(below, left, v[0])
        });
        /// Of `softplus(x)`.
        softplus_backward: [x] (beta: f64, threshold: f64) = Floats(|f, v, n| {
            let scaled = f.mul(v[1], n[0])?;
            let gate = f.sigmoid(scaled)?;
            let soft = f.mul(v[0], gate)?;
            let linear = f.gt(scaled, n[1])?;
            f.choose(linear, v[0], soft)
        });
        /// Of `logit(x)` without a margin.
        logit_backward: [x] () = Floats(|f, v, _| {
            let rest = f.sub(1.0, v[1])?;
            let slope = f.mul(v[1], rest)?;
            f.div(v[0], slope)
        });
        /// Of `y = softmax(x, dim)`, from y.
        softmax_backward: [y] (dim: i64) = Nodes(|r| softmax(r, false));
        /// Of `y = log_softmax(x, dim)`, from y.
        log_softmax_backward: [y] (dim: i64) = Nodes(|r| softmax(r, true));
    }
}

/// `a` where `low < x < high`, else 0.
fn inside(f: &mut Formula<'_>, x: ValueId, [low, high]: [f64; 2], a: ValueId) -> Result<ValueId> {
    let (above, below) = (f.gt(x, low)?, f.lt(x, high)?);
    let both = f.and(above, below)?;
    f.choose(both, a, 0.0)
}

/// `(grad - sum(grad * y)) * y`, or `grad - exp(y) * sum(grad)` of the logarithm.
fn softmax(r: &mut Recording<'_>, log: bool) -> Result<ValueId> {
    let (grad, y, dim) = (r.tensor(0)?, r.tensor(1)?, r.int(0)?);
    let out = r.dtype(y);
    let dtype = wide(out);
    let (grad, y) = (r.b.cast(grad, dtype)?, r.b.cast(y, dtype)?);
    let value = if log {
        let sum = r.b.sum(grad, &[dim], true)?;
        let e = r.b.exp(y)?;
        let share = r.b.mul(e, sum)?;
        r.b.sub(grad, share)?
    } else {
        let product = r.b.mul(grad, y)?;
        let sum = r.b.sum(product, &[dim], true)?;
        let share = r.b.mul(y, sum)?;
        r.b.sub(product, share)?
    };
    r.b.cast(value, out)
}

/// Gradients of layers.
impl Tensor {
    /// That of an embedding's weight of so many rows: the rows of this tensor added where they came from. Rows from `padding` are left out; with `by_count` each counts for its share of all that came
    /// from the same row. PyTorch's `embedding_dense_backward`.
    #[track_caller]
    pub fn embedding_backward(
        &self,
        indices: &Tensor,
        rows: i64,
        padding: Option<i64>,
        by_count: bool,
    ) -> Tensor {
        let numbers = [rows.into(), padding.unwrap_or(-1).into(), by_count.into()];
        recipe(
            "embedding_backward",
            &[self.into(), indices.into()],
            &numbers,
            Nodes(|r| {
                let (grad, indices) = (r.tensor(0)?, r.tensor(1)?);
                let (have, want) = (r.shape(grad), r.shape(indices));
                let rows = r.int(0)?;
                ensure!(
                    rows >= 0,
                    InvalidArgument,
                    "embedding_backward: {rows} rows"
                );
                ensure!(
                    have.len() == want.len() + 1 && have[..want.len()] == want,
                    ShapeMismatch,
                    "embedding_backward: a gradient of shape {have:?} for indices of shape {want:?}"
                );
                ensure!(
                    r.dtype(indices).is_int(),
                    DTypeMismatch,
                    "embedding_backward: indices of {}",
                    r.dtype(indices)
                );
                let indices = r.b.cast(indices, DType::I64)?;
                let padding = Some(r.int(1)?).filter(|&p| p >= 0);
                let by_count = r.flag(2)?;
                r.b.embedding_backward(grad, indices, Expr::constant(rows), padding, by_count)
            }),
        )
    }
}
