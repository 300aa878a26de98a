//! Activation functions, in PyTorch's formulas: of floats, computed in at least f32 and rounded once.

use crate::recipe::Build::{Floats, Nodes};
use crate::recipe::{Recording, recipe, recipes};
use crate::tensor::Tensor;
use oxyfuel_base::{Expr, Result, Scalar, ensure};
use oxyfuel_graph::special::Formula;
use oxyfuel_graph::{Binary, Op, ValueId};

/// The scale and the slope at the left end of `selu`.
const SELU: [f64; 2] = [1.0507009873554805, 1.6732632423543772];

recipes! {
    /// Activation functions. Names that end in `_` overwrite the tensor.
    impl {
        /// x above 0, `negative_slope * x` below.
        leaky_relu / leaky_relu_: [] (negative_slope: f64) = Floats(|f, v, n| {
            let scaled = f.mul(v[0], n[0])?;
            let above = f.gt(v[0], 0.0)?;
            f.choose(above, v[0], scaled)
        });
        /// x above 0, `weight * x` below; the weight (a tensor) has one element, or one for each position of dim 1.
        prelu: [weight] () = Nodes(prelu);
        /// x above 0, `alpha * (exp(x) - 1)` below.
        elu / elu_: [] (alpha: f64) = Floats(|f, v, n| elu(f, v[0], n[0], 1.0, 1.0));
        /// [`elu`](Self::elu) with the constants that keep mean and variance.
        selu / selu_: [] () = Floats(|f, v, _| elu(f, v[0], SELU[1], SELU[0], 1.0));
        /// x above 0, `alpha * (exp(x / alpha) - 1)` below.
        celu / celu_: [] (alpha: f64) = Floats(|f, v, n| {
            ensure!(n[0] != 0.0, InvalidArgument, "celu: alpha is 0");
            elu(f, v[0], n[0], 1.0, 1.0 / n[0])
        });
        /// `log(1 + exp(beta * x)) / beta`; x itself where `beta * x` is above the threshold. PyTorch's defaults are 1 and 20.
        softplus: [] (beta: f64, threshold: f64) = Floats(|f, v, n| {
            let scaled = f.mul(v[0], n[0])?;
            let e = f.exp(scaled)?;
            let log = f.log1p(e)?;
            let soft = f.div(log, n[0])?;
            let linear = f.gt(scaled, n[1])?;
            f.choose(linear, v[0], soft)
        });
        /// x brought between two bounds.
        hardtanh / hardtanh_: [] (low: f64, high: f64) = Floats(|f, v, n| {
            let up = f.max(v[0], n[0])?;
            f.min(up, n[1])
        });
        /// x brought between 0 and 6.
        relu6 / relu6_: [] () = Floats(|f, v, _| {
            let up = f.max(v[0], 0.0)?;
            f.min(up, 6.0)
        });
        /// `min(max(x + 3, 0), 6) / 6`.
        hardsigmoid / hardsigmoid_: [] () = Floats(|f, v, _| {
            let gate = gate6(f, v[0])?;
            f.div(gate, 6.0)
        });
        /// `x * min(max(x + 3, 0), 6) / 6`.
        hardswish / hardswish_: [] () = Floats(|f, v, _| {
            let gate = gate6(f, v[0])?;
            let product = f.mul(v[0], gate)?;
            f.div(product, 6.0)
        });
        /// `x * tanh(log(1 + exp(x)))`.
        mish / mish_: [] () = Floats(|f, v, _| {
            let e = f.exp(v[0])?;
            let soft = f.log1p(e)?;
            let gate = f.tanh(soft)?;
            f.mul(v[0], gate)
        });
        /// `log(sigmoid(x))` without cancellation: PyTorch's `logsigmoid`.
        log_sigmoid: [] () = Floats(|f, v, _| {
            let size = f.abs(v[0])?;
            let below = f.neg(size)?;
            let e = f.exp(below)?;
            let log = f.log1p(e)?;
            let least = f.min(v[0], 0.0)?;
            f.sub(least, log)
        });
        /// `x / (1 + |x|)`.
        softsign: [] () = Floats(|f, v, _| {
            let size = f.abs(v[0])?;
            let by = f.add(size, 1.0)?;
            f.div(v[0], by)
        });
        /// `x - tanh(x)`.
        tanhshrink: [] () = Floats(|f, v, _| {
            let t = f.tanh(v[0])?;
            f.sub(v[0], t)
        });
        /// x moved towards 0 by `lambda`, which it does not cross.
        softshrink: [] (lambda: f64) = Floats(|f, v, n| {
            let (less, more) = (f.sub(v[0], n[0])?, f.add(v[0], n[0])?);
            let (above, below) = (f.gt(v[0], n[0])?, f.lt(v[0], -n[0])?);
            let zero = f.mul(v[0], 0.0)?;
            let rest = f.choose(below, more, zero)?;
            f.choose(above, less, rest)
        });
        /// 0 from `-lambda` to `lambda`, x elsewhere.
        hardshrink: [] (lambda: f64) = Floats(|f, v, n| {
            let (low, high) = (f.ge(v[0], -n[0])?, f.le(v[0], n[0])?);
            let inside = f.and(low, high)?;
            f.choose(inside, 0.0, v[0])
        });
        /// x above the threshold, `value` elsewhere.
        threshold / threshold_: [] (threshold: f64, value: f64) = Floats(|f, v, n| {
            let below = f.le(v[0], n[0])?;
            f.choose(below, n[1], v[0])
        });
        /// The first half of a dim times the sigmoid of the second.
        glu: [] (dim: i64) = Nodes(glu);
    }
}

/// `scale * x` above 0, `scale * alpha * (exp(inner * x) - 1)` below.
fn elu(f: &mut Formula<'_>, x: ValueId, alpha: f64, scale: f64, inner: f64) -> Result<ValueId> {
    let scaled = f.mul(x, inner)?;
    let e = f.expm1(scaled)?;
    let below = f.mul(e, alpha * scale)?;
    let above = f.mul(x, scale)?;
    let negative = f.lt(x, 0.0)?;
    f.choose(negative, below, above)
}

/// `min(max(x + 3, 0), 6)`.
fn gate6(f: &mut Formula<'_>, x: ValueId) -> Result<ValueId> {
    let moved = f.add(x, 3.0)?;
    let low = f.max(moved, 0.0)?;
    f.min(low, 6.0)
}

fn prelu(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, weight) = (r.tensor(0)?, r.tensor(1)?);
    ensure!(
        r.dtype(x) == r.dtype(weight),
        DTypeMismatch,
        "prelu: a weight of {} for a tensor of {}",
        r.dtype(weight),
        r.dtype(x)
    );
    let (rank, count) = (r.shape(x).len(), r.b.ty(weight).numel());
    let mut shape = vec![Expr::ONE; rank];
    if let Some(channels) = shape.get_mut(1) {
        *channels = count.clone();
    }
    ensure!(
        rank > 1 || count.is_const(1),
        ShapeMismatch,
        "prelu: {count} weights for a tensor without channels"
    );
    let weight = r.b.view(weight, &shape)?;
    let scaled = r.b.emit(Op::Binary(Binary::Mul), &[weight, x])?;
    let above = r.b.gt(x, 0)?;
    r.b.where_(above, x, scaled)
}

fn glu(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let shape = r.shape(x);
    let dim = r.dim(r.int(0)?, shape.len())?;
    let extent = shape.get(dim).cloned().unwrap_or(Expr::ZERO);
    let half = extent.floordiv(2);
    if half.clone() * 2 != extent {
        r.known(&extent, "the halves of a dim")?;
    }
    ensure!(
        half.clone() * 2 == extent && !shape.is_empty(),
        ShapeMismatch,
        "glu: a dim of extent {extent} has no two halves"
    );
    let at = i64::try_from(dim).unwrap_or(0);
    let first = r.b.slice(x, at, 0, half.clone(), 1)?;
    let second = r.b.slice(x, at, half, extent, 1)?;
    let out = r.dtype(x);
    let dtype = crate::recipe::wide(out);
    let (first, second) = (r.b.cast(first, dtype)?, r.b.cast(second, dtype)?);
    let gate = r.b.sigmoid(second)?;
    let y = r.b.mul(first, gate)?;
    r.b.cast(y, out)
}

/// The logarithm of odds, and the other direction of a dim.
impl Tensor {
    /// `log(x / (1 - x))`; with `eps`, of x brought between `eps` and `1 - eps`.
    #[track_caller]
    pub fn logit(&self, eps: Option<f64>) -> Tensor {
        let margin = Scalar::F(eps.unwrap_or(-1.0));
        recipe(
            "logit",
            &[self.into()],
            &[margin],
            crate::recipe::Build::Fractions(logit),
        )
    }

    /// `exp(-x) / sum(exp(-x))` along a dim.
    #[track_caller]
    pub fn softmin(&self, dim: i64) -> Tensor {
        self.neg().softmax(dim)
    }
}

fn logit(f: &mut Formula<'_>, v: &[ValueId], n: &[f64]) -> Result<ValueId> {
    let mut x = v[0];
    if n[0] >= 0.0 {
        // Above a half the bounds have changed places; the lower one wins then.
        let (above, below) = (f.gt(v[0], 1.0 - n[0])?, f.lt(v[0], n[0])?);
        x = f.choose(above, 1.0 - n[0], x)?;
        x = f.choose(below, n[0], x)?;
    }
    let rest = f.sub(1.0, x)?;
    let odds = f.div(x, rest)?;
    f.log(odds)
}
