//! Normalisation over groups of channels, and its gradients: computed in f32, rounded once.
//!
//! Images are seen as `[N, groups, channels of a group, points]`. The gradients read them twice: once for two sums a channel, from which everything that is added up follows, and once for the input's.

use super::maths::Steps;
use super::norm::{affine, cast_results, statistics};
use super::{Import::Compiled, Row};
use crate::call::{Call, Factor, refuse};
use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Reduce, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.native_group_norm.default", Compiled(forward)),
    (
        "aten.native_group_norm_backward.default",
        Compiled(backward),
    ),
];

/// How channels fall into groups.
struct Groups {
    batch: Expr,
    count: Expr,
    /// Channels of one.
    each: Expr,
    /// Places of a channel.
    points: Expr,
}

impl Groups {
    /// From four arguments, the first at `position`.
    fn new(c: &Call<'_>, position: usize) -> Result<Self> {
        let sizes = [(0, "N"), (1, "C"), (2, "HxW")];
        let [n, channels, points] = sizes.map(|(i, name)| c.expr(position + i, name));
        let (Some(batch), Some(channels), Some(points)) = (n?, channels?, points?) else {
            return refuse("sizes are left out");
        };
        let count = c.int(position + 3, "group", 1)?;
        Ok(Self {
            batch,
            each: channels.floordiv(count),
            count: Expr::constant(count),
            points,
        })
    }

    /// The shape of statistics: one number a group.
    fn rows(&self) -> [Expr; 2] {
        [self.batch.clone(), self.count.clone()]
    }

    fn apart(&self) -> [Expr; 4] {
        let [batch, count] = self.rows();
        [batch, count, self.each.clone(), self.points.clone()]
    }

    /// The shape of one number a channel, beside images.
    fn parameter(&self) -> [Expr; 4] {
        [Expr::ONE, self.count.clone(), self.each.clone(), Expr::ONE]
    }

    /// Elements of one.
    fn size(&self) -> Expr {
        self.each.clone() * self.points.clone()
    }
}

/// A layer norm of each group of channels, then scale and shift a channel.
fn forward(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "input")?;
    let (weight, bias) = (
        c.optional_tensor(1, "weight")?,
        c.optional_tensor(2, "bias")?,
    );
    let groups = Groups::new(c, 3)?;
    let eps = c.float(7, "eps", 1e-5)?;
    let dtype = statistics(c.dtype(x));
    let shape = c.shape(x);
    let x = seen(c, x, &groups.apart(), dtype)?;
    let [hat, mean, rstd] = c.b.native_layer_norm(x, 2, None, None, eps)?;
    let rows = groups.rows();
    let (mean, rstd) = (c.b.view(mean, &rows)?, c.b.view(rstd, &rows)?);
    let mut parameter = |p: Option<ValueId>| {
        p.map(|p| seen(c, p, &groups.parameter(), dtype))
            .transpose()
    };
    let (weight, bias) = (parameter(weight)?, parameter(bias)?);
    let out = affine(&mut Steps { c, dtype }, hat, weight, bias)?;
    // Rounded before it is seen as an image again: a view in between would be stored wide.
    let mut results = cast_results(c, vec![out, mean, rstd])?;
    results[0] = c.b.view(results[0], &shape)?;
    Ok(results)
}

/// A value as wide as `dtype`, in another shape.
fn seen(c: &mut Call<'_>, value: ValueId, shape: &[Expr], dtype: DType) -> Result<ValueId> {
    let value = c.b.cast(value, dtype)?;
    c.b.view(value, shape)
}

/// Gradients of input, weight and bias; those the mask leaves out are nothing.
///
/// With `d` the distance to the mean and `n` elements a group, that of the input is `rstd w g - d rstd³ Σ(w g d) / n - rstd Σ(w g) / n`. Sums over the points of a channel, of `g` and of `g d`, serve all three.
fn backward(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let (grad, x) = (c.tensor(0, "grad_out")?, c.tensor(1, "input")?);
    let (mean, rstd) = (c.tensor(2, "mean")?, c.tensor(3, "rstd")?);
    let weight = c.optional_tensor(4, "weight")?;
    let groups = Groups::new(c, 5)?;
    if c.result_count() != 3 {
        return refuse("without three results");
    }
    let wanted = [0, 1, 2].map(|i| c.meta(i).is_ok());
    let dtype = statistics(c.dtype(x));
    let (apart, rows) = (groups.apart(), groups.rows());
    let [batch, count] = rows.clone();
    let of_group = [batch, count, Expr::ONE, Expr::ONE];
    let of_channel = [&apart[..3], &[Expr::ONE]].concat();
    let (grad, x) = (seen(c, grad, &apart, dtype)?, seen(c, x, &apart, dtype)?);
    let (mean, rstd) = (seen(c, mean, &rows, dtype)?, seen(c, rstd, &rows, dtype)?);
    let weight = weight.map(|w| seen(c, w, &groups.parameter()[..3], dtype));
    let weight = weight.transpose()?;

    let centre = c.b.view(mean, &of_group)?;
    let each = c.b.view(rstd, &of_group[..3])?;
    let mut s = Steps { c, dtype };
    let distance = s.sub(x, centre)?;
    let along = s.mul(grad, distance)?;
    let along = s.c.b.reduce(Reduce::Sum, along, &[3], false)?;
    let plain = s.c.b.reduce(Reduce::Sum, grad, &[3], false)?;
    let mut out = vec![grad; 3];
    if wanted[0] {
        // One number a group and one a channel first, in shapes of their own, so that the pass over the images does nothing but use them.
        let n = s.c.value_of(&Factor::Symbolic(groups.size()), dtype)?;
        let share = s.div(rstd, n)?;
        let mut total = |sum: ValueId| {
            let sum = match weight {
                Some(w) => s.mul(sum, w)?,
                None => sum,
            };
            s.c.b.reduce(Reduce::Sum, sum, &[2], false)
        };
        let (along, plain) = (total(along)?, total(plain)?);
        let square = s.mul(rstd, rstd)?;
        let slope = s.mul(along, square)?;
        let slope = s.mul(slope, share)?;
        let moved = s.mul(plain, share)?;
        // By the input and not by its distance, which would be stored for this.
        let shift = s.mul(slope, mean)?;
        let shift = s.sub(shift, moved)?;
        let [slope, shift] = [slope, shift].map(|value| s.c.b.view(value, &of_group));
        let scale = match weight {
            Some(w) => {
                let scale = s.mul(each, w)?;
                s.c.b.view(scale, &of_channel)?
            }
            None => s.c.b.view(rstd, &of_group)?,
        };
        let scaled = s.mul(grad, scale)?;
        let bent = s.mul(x, slope?)?;
        let rest = s.sub(shift?, bent)?;
        out[0] = s.add(scaled, rest)?;
    }
    let scaled = s.mul(along, each)?;
    for (i, sum) in [(1, scaled), (2, plain)] {
        if wanted[i] {
            out[i] = s.c.b.reduce(Reduce::Sum, sum, &[0], false)?;
        }
    }
    for i in (0..3).filter(|&i| wanted[i]) {
        let ty = c.out(i)?;
        let rounded = c.b.cast(out[i], ty.dtype)?;
        out[i] = c.b.view(rounded, &ty.shape)?;
    }
    Ok(out)
}
