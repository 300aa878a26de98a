//! Normalisations over groups of channels and over batches: dim 1 counts channels.

use crate::call::Operand;
use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure};
use oxyfuel_graph::{Reduce, ValueId};

/// Normalisations; statistics are computed in at least f32.
impl Tensor {
    /// Each group of channels brought to mean 0 and variance 1, then scaled and shifted a channel.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: i64,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let (operands, mut numbers) = with_affine(self, &[], weight, bias);
        numbers.extend([Scalar::I(groups), Scalar::F(eps)]);
        recipe("group_norm", &operands, &numbers, Nodes(group_norm))
    }

    /// Each channel moved and scaled by given statistics: `(x - mean) / sqrt(var + eps) * weight + bias`.
    #[track_caller]
    pub fn batch_norm(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let (operands, mut numbers) = with_affine(self, &[mean, var], weight, bias);
        numbers.push(Scalar::F(eps));
        recipe("batch_norm", &operands, &numbers, Nodes(batch_norm))
    }

    /// Each channel brought to mean 0 and variance 1 over the batch; with the mean and the variance (divided by the count) that did it.
    #[track_caller]
    pub fn batch_norm_training(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> [Tensor; 3] {
        let (name, build) = ("batch_statistics", Nodes(batch_statistic));
        let mean = recipe(name, &[self.into()], &[0.into()], build);
        let var = recipe(name, &[self.into()], &[1.into()], build);
        [self.batch_norm(&mean, &var, weight, bias, eps), mean, var]
    }

    /// Each channel of each example brought to mean 0 and variance 1.
    #[track_caller]
    pub fn instance_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let (operands, mut numbers) = with_affine(self, &[], weight, bias);
        numbers.extend([Scalar::I(0), Scalar::F(eps)]);
        recipe("instance_norm", &operands, &numbers, Nodes(group_norm))
    }
}

/// Operands, and two numbers that say whether weight and bias are among them.
fn with_affine<'a>(
    x: &'a Tensor,
    others: &[&'a Tensor],
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
) -> (Vec<Operand<'a>>, Vec<Scalar>) {
    let tensors = [x].into_iter().chain(others.iter().copied());
    let operands = tensors.chain(weight).chain(bias).map(Operand::from);
    let given = [weight.is_some(), bias.is_some()].map(Scalar::B);
    (operands.collect(), given.to_vec())
}

/// The dtype a normalisation computes in.
fn statistics(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

fn channels(r: &Recording<'_>, x: ValueId) -> Result<Vec<Expr>> {
    let shape = r.shape(x);
    ensure!(
        shape.len() > 1,
        RankMismatch,
        "{}: a tensor with {} dims has no channels",
        r.name,
        shape.len()
    );
    ensure!(
        r.dtype(x).is_float(),
        UnsupportedDType,
        "{} is of floats, not of {}",
        r.name,
        r.dtype(x)
    );
    Ok(shape)
}

/// One number a channel, to meet `[batch, channels, …]`.
fn per_channel(r: &mut Recording<'_>, p: ValueId, shape: &[Expr], dtype: DType) -> Result<ValueId> {
    ensure!(
        r.shape(p) == shape[1..2],
        ShapeMismatch,
        "{}: a parameter of shape {:?} for {} channels",
        r.name,
        r.shape(p),
        shape[1]
    );
    let p = r.b.cast(p, dtype)?;
    let mut row = vec![Expr::ONE; shape.len() - 1];
    row[0] = shape[1].clone();
    r.b.view(p, &row)
}

/// Scaled and shifted by what follows the first operands.
fn affine(r: &mut Recording<'_>, mut y: ValueId, shape: &[Expr], first: usize) -> Result<ValueId> {
    let dtype = r.dtype(y);
    let (weight, bias) = (r.flag(0)?, r.flag(1)?);
    if weight {
        let w = r.tensor(first)?;
        let w = per_channel(r, w, shape, dtype)?;
        y = r.b.mul(y, w)?;
    }
    if bias {
        let c = r.tensor(first + usize::from(weight))?;
        let c = per_channel(r, c, shape, dtype)?;
        y = r.b.add(y, c)?;
    }
    Ok(y)
}

/// Numbers: weight, bias, groups (0: as many as channels), eps.
fn group_norm(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let shape = channels(r, x)?;
    let (out, eps) = (r.dtype(x), r.float(3)?);
    let groups = match r.int(2)? {
        0 if r.name == "instance_norm" => shape[1].clone(),
        groups => {
            let groups = Expr::constant(groups);
            ensure!(
                r.int(2)? > 0 && shape[1].floordiv(&groups) * groups.clone() == shape[1],
                InvalidArgument,
                "group_norm: {} channels in {groups} groups",
                shape[1]
            );
            groups
        }
    };
    let area: Expr = shape[2..].iter().cloned().product();
    let row = shape[1].floordiv(&groups) * area;
    let wide = r.b.cast(x, statistics(out))?;
    let rows = r.b.view(wide, &[shape[0].clone(), groups, row])?;
    let [hat, ..] = r.b.native_layer_norm(rows, 1, None, None, eps)?;
    let hat = r.b.view(hat, &shape)?;
    let y = affine(r, hat, &shape, 1)?;
    r.b.cast(y, out)
}

/// Numbers: weight, bias, eps.
fn batch_norm(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, mean, var) = (r.tensor(0)?, r.tensor(1)?, r.tensor(2)?);
    let shape = channels(r, x)?;
    let out = r.dtype(x);
    let dtype = statistics(out);
    let (mean, var) = (
        per_channel(r, mean, &shape, dtype)?,
        per_channel(r, var, &shape, dtype)?,
    );
    let x = r.b.cast(x, dtype)?;
    let eps = r.float(2)?;
    let moved = r.b.add(var, eps)?;
    let rstd = r.b.rsqrt(moved)?;
    let centred = r.b.sub(x, mean)?;
    let hat = r.b.mul(centred, rstd)?;
    let y = affine(r, hat, &shape, 3)?;
    r.b.cast(y, out)
}

/// Number: 0 for the mean, 1 for the variance.
fn batch_statistic(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let shape = channels(r, x)?;
    let wide = r.b.cast(x, statistics(r.dtype(x)))?;
    let dims = (0..shape.len()).filter(|&d| d != 1);
    let dims: Vec<i64> = dims.filter_map(|d| i64::try_from(d).ok()).collect();
    match r.int(0)? {
        0 => r.b.reduce(Reduce::Mean, wide, &dims, false),
        _ => r.b.var(wide, &dims, 0.0, false),
    }
}
