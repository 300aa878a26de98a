//! Normalisations over groups of channels and over batches (dim 1 counts channels), and the gradients of all normalisations.

use crate::call::Operand;
use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};
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

/// Gradients of normalisations: this tensor is that of the result, x what was normalised. They are those of x, weight and bias.
impl Tensor {
    /// Of [`layer_norm`](Self::layer_norm) over the last `dims` dims.
    #[track_caller]
    pub fn layer_norm_backward(
        &self,
        x: &Tensor,
        dims: usize,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> [Tensor; 3] {
        let (operands, name) = (gradient_operands(self, x, weight), "layer_norm_backward");
        let dims = i64::try_from(dims).unwrap_or(i64::MAX);
        let numbers = |which: i64| [Scalar::I(dims), eps.into(), Scalar::I(which)];
        let build = Nodes(|r| {
            let over = last_dims(r)?;
            norm_gradient(r, &over, Centre::Mean)
        });
        [
            recipe(name, &operands, &numbers(0), build),
            recipe(name, &operands, &numbers(1), build),
            recipe(name, &operands, &numbers(2), build),
        ]
    }

    /// Of [`rms_norm`](Self::rms_norm) over the last `dims` dims; there is no bias.
    #[track_caller]
    pub fn rms_norm_backward(
        &self,
        x: &Tensor,
        dims: usize,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> [Tensor; 2] {
        let (operands, name) = (gradient_operands(self, x, weight), "rms_norm_backward");
        let dims = i64::try_from(dims).unwrap_or(i64::MAX);
        let numbers = |which: i64| [Scalar::I(dims), eps.into(), Scalar::I(which)];
        let build = Nodes(|r| {
            let over = last_dims(r)?;
            norm_gradient(r, &over, Centre::Zero)
        });
        [
            recipe(name, &operands, &numbers(0), build),
            recipe(name, &operands, &numbers(1), build),
        ]
    }

    /// Of [`group_norm`](Self::group_norm).
    #[track_caller]
    pub fn group_norm_backward(
        &self,
        x: &Tensor,
        groups: i64,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> [Tensor; 3] {
        let (operands, name) = (gradient_operands(self, x, weight), "group_norm_backward");
        let numbers = |which: i64| [Scalar::I(groups), eps.into(), Scalar::I(which)];
        let build = Nodes(|r| {
            let x = r.tensor(1)?;
            let shape = channels(r, x)?;
            let groups = Expr::constant(r.int(0)?);
            ensure!(
                r.int(0)? > 0 && shape[1].floordiv(&groups) * groups.clone() == shape[1],
                InvalidArgument,
                "group_norm_backward: {} channels in {groups} groups",
                shape[1]
            );
            let mut apart = shape.clone();
            apart.splice(1..2, [groups.clone(), shape[1].floordiv(&groups)]);
            let mut parameter = vec![Expr::ONE; apart.len()];
            parameter[1..3].clone_from_slice(&apart[1..3]);
            let over = Over {
                rows: (2..apart.len()).collect(),
                summed: [0].into_iter().chain(3..apart.len()).collect(),
                apart,
                parameter,
                parameter_shape: shape[1..2].to_vec(),
            };
            norm_gradient(r, &over, Centre::Mean)
        });
        [
            recipe(name, &operands, &numbers(0), build),
            recipe(name, &operands, &numbers(1), build),
            recipe(name, &operands, &numbers(2), build),
        ]
    }

    /// Of [`batch_norm_training`](Self::batch_norm_training).
    #[track_caller]
    pub fn batch_norm_backward(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> [Tensor; 3] {
        let (operands, name) = (gradient_operands(self, x, weight), "batch_norm_backward");
        let numbers = |which: i64| [Scalar::I(0), eps.into(), Scalar::I(which)];
        let build = Nodes(|r| {
            let x = r.tensor(1)?;
            let apart = channels(r, x)?;
            let mut parameter = vec![Expr::ONE; apart.len()];
            parameter[1] = apart[1].clone();
            let over = Over {
                rows: (0..apart.len()).filter(|&d| d != 1).collect(),
                summed: (0..apart.len()).filter(|&d| d != 1).collect(),
                parameter_shape: apart[1..2].to_vec(),
                apart,
                parameter,
            };
            norm_gradient(r, &over, Centre::Mean)
        });
        [
            recipe(name, &operands, &numbers(0), build),
            recipe(name, &operands, &numbers(1), build),
            recipe(name, &operands, &numbers(2), build),
        ]
    }
}

fn gradient_operands<'a>(
    grad: &'a Tensor,
    x: &'a Tensor,
    weight: Option<&'a Tensor>,
) -> Vec<Operand<'a>> {
    let tensors = [grad, x].into_iter().chain(weight);
    tensors.map(Operand::from).collect()
}

/// What a normalisation measures distances from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Centre {
    Mean,
    Zero,
}

/// What is normalised together.
struct Over {
    /// x, its groups apart.
    apart: Vec<Expr>,
    /// The dims of `apart` over which statistics go.
    rows: Vec<usize>,
    /// Those that a parameter does not have.
    summed: Vec<usize>,
    /// A parameter, to meet `apart`.
    parameter: Vec<Expr>,
    parameter_shape: Vec<Expr>,
}

/// The last dims, as many as the first number says.
fn last_dims(r: &Recording<'_>) -> Result<Over> {
    let apart = r.shape(r.tensor(1)?);
    let count = usize::try_from(r.int(0)?).unwrap_or(usize::MAX);
    let outer = apart.len().checked_sub(count).filter(|_| count > 0);
    let Some(outer) = outer else {
        return Err(err!(
            RankMismatch,
            "{}: over {} of {} dims",
            r.name,
            r.int(0)?,
            apart.len()
        ));
    };
    Ok(Over {
        rows: (outer..apart.len()).collect(),
        summed: (0..outer).collect(),
        parameter: apart[outer..].to_vec(),
        parameter_shape: apart[outer..].to_vec(),
        apart,
    })
}

/// `(g - mean(g) - hat * mean(g * hat)) / deviation` with g the gradient times the weight, and the sums of the parameters. Numbers: one of the caller's, eps, which gradient.
fn norm_gradient(r: &mut Recording<'_>, over: &Over, centre: Centre) -> Result<ValueId> {
    let (grad, x, weight) = (r.tensor(0)?, r.tensor(1)?, r.tensor(2).ok());
    let (shape, out) = (r.shape(x), r.dtype(x));
    let (eps, which) = (r.float(1)?, r.int(2)?);
    ensure!(
        r.shape(grad) == shape,
        ShapeMismatch,
        "{}: a gradient of shape {:?} for {shape:?}",
        r.name,
        r.shape(grad)
    );
    ensure!(
        out.is_float(),
        UnsupportedDType,
        "{} is of floats, not of {out}",
        r.name
    );
    let dtype = statistics(out);
    let dims: Vec<i64> = over
        .rows
        .iter()
        .filter_map(|&d| i64::try_from(d).ok())
        .collect();
    let (grad, x) = (r.b.cast(grad, dtype)?, r.b.cast(x, dtype)?);
    let (grad, x) = (r.b.view(grad, &over.apart)?, r.b.view(x, &over.apart)?);
    let centred = match centre {
        Centre::Zero => x,
        Centre::Mean => {
            let mean = r.b.mean(x, &dims, true)?;
            r.b.sub(x, mean)?
        }
    };
    let square = r.b.mul(centred, centred)?;
    let var = r.b.mean(square, &dims, true)?;
    let moved = r.b.add(var, eps)?;
    let rstd = r.b.rsqrt(moved)?;
    let hat = r.b.mul(centred, rstd)?;
    if which > 0 {
        let product = if which == 1 {
            r.b.mul(grad, hat)?
        } else {
            grad
        };
        return of_parameter(r, product, over, out);
    }
    let g = match weight {
        Some(w) => {
            ensure!(
                r.shape(w) == over.parameter_shape,
                ShapeMismatch,
                "{}: a weight of shape {:?}, not {:?}",
                r.name,
                r.shape(w),
                over.parameter_shape
            );
            let w = r.b.cast(w, dtype)?;
            let w = r.b.view(w, &over.parameter)?;
            r.b.mul(grad, w)?
        }
        None => grad,
    };
    let product = r.b.mul(g, hat)?;
    let along = r.b.mean(product, &dims, true)?;
    let along = r.b.mul(hat, along)?;
    let mut value = r.b.sub(g, along)?;
    if centre == Centre::Mean {
        let mean = r.b.mean(g, &dims, true)?;
        value = r.b.sub(value, mean)?;
    }
    let y = r.b.mul(value, rstd)?;
    let y = r.b.view(y, &shape)?;
    r.b.cast(y, out)
}

/// The sum over everything that meets one element of a parameter.
fn of_parameter(r: &mut Recording<'_>, x: ValueId, over: &Over, out: DType) -> Result<ValueId> {
    let gone: Vec<i64> = over
        .summed
        .iter()
        .filter_map(|&d| i64::try_from(d).ok())
        .collect();
    let sum = match gone.is_empty() {
        true => x,
        false => r.b.sum(x, &gone, false)?,
    };
    let sum = r.b.view(sum, &over.parameter_shape)?;
    r.b.cast(sum, out)
}
