//! Named compositions in terms of primitive ops.
//!
//! Each is computed in f32 (f64 stays f64) and rounded once at the end, as eager does.

use oxyfuel_base::{DType, Expr, Result, Scalar, err};
use oxyfuel_graph::conv_panels::ConvPanels;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{
    Binary, Builder, Compare, Graph, Node, Op, Rebuild, Reduce, Scatter, Unary, ValueId,
};

/// Replaces every composite op. What comes out has primitive ops only.
pub fn decompose(graph: &Graph) -> Result<Graph> {
    decompose_but(graph, &|_| false)
}

/// Replaces every composite op but those that `stays` names: the target has a kernel for them.
pub fn decompose_but(graph: &Graph, stays: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    let mut rebuild = Rebuild::new(graph);
    for (id, node) in graph.nodes.iter() {
        let inputs = node
            .inputs
            .iter()
            .map(|&v| rebuild.get(v))
            .collect::<Result<Vec<_>>>()?;
        rebuild.at(id);
        let outs = match &node.op {
            _ if stays(node) => {
                rebuild.copy(id)?;
                continue;
            }
            Op::Softmax { dim } => vec![softmax(&mut rebuild.builder, inputs[0], *dim)?],
            Op::LogSoftmax { dim } => vec![log_softmax(&mut rebuild.builder, inputs[0], *dim)?],
            Op::Argmax { dim, keepdim } => {
                vec![position(
                    &mut rebuild.builder,
                    Reduce::Amax,
                    inputs[0],
                    *dim,
                    *keepdim,
                )?]
            }
            Op::Argmin { dim, keepdim } => {
                vec![position(
                    &mut rebuild.builder,
                    Reduce::Amin,
                    inputs[0],
                    *dim,
                    *keepdim,
                )?]
            }
            Op::NativeLayerNorm { rank, eps } => {
                layer_norm(&mut rebuild.builder, &inputs, *rank, eps.as_f64())?
            }
            Op::Sdpa { causal, scale } => {
                let (operands, mask) = ([inputs[0], inputs[1], inputs[2]], inputs.get(3).copied());
                let scale = Some(scale.as_f64());
                let b = &mut rebuild.builder;
                b.composed_attention(operands, mask, *causal, scale)?
                    .to_vec()
            }
            Op::SdpaBackward { causal, scale } => {
                let operands = [inputs[1], inputs[2], inputs[3]];
                let (given, mask) = ([inputs[4], inputs[5]], inputs.get(6).copied());
                let (b, scale) = (&mut rebuild.builder, scale.as_f64());
                b.composed_attention_backward(inputs[0], operands, given, mask, *causal, scale)?
                    .to_vec()
            }
            Op::Convolution { .. } => {
                let how = Convolution::of(&node.op).unwrap_or_default();
                let b = &mut rebuild.builder;
                vec![b.composed_convolution(inputs[0], inputs[1], &how)?]
            }
            Op::ConvPanels { .. } => {
                let b = &mut rebuild.builder;
                match ConvPanels::of(&node.op) {
                    Some(how) => vec![b.composed_conv_panels(inputs[0], inputs[1], &how)?],
                    None => return Err(err!(Internal, "a kernel of one to three sizes")),
                }
            }
            Op::MmPanels { n } => {
                let (a, panels, bias) = (inputs[0], inputs[1], inputs.get(2).copied());
                let b = &mut rebuild.builder;
                vec![b.composed_mm_panels(a, panels, *n, bias)?]
            }
            Op::Var {
                dims,
                correction,
                keepdim,
            } => vec![var(
                &mut rebuild.builder,
                inputs[0],
                dims,
                correction.as_f64(),
                *keepdim,
            )?],
            Op::Scatter {
                op: op @ (Scatter::Sum | Scatter::Prod),
                dim,
            } if is_half(rebuild.builder.ty(inputs[0]).dtype) => {
                vec![scatter(&mut rebuild.builder, *op, &inputs, *dim)?]
            }
            _ => {
                rebuild.copy(id)?;
                continue;
            }
        };
        for (&old, new) in node.outputs.iter().zip(outs) {
            keep_name(graph, old, &mut rebuild.builder, new);
            rebuild.define(old, new);
        }
    }
    rebuild.finish()
}

/// What is said of a value is said of the one in its place.
pub(crate) fn keep_name(graph: &Graph, old: ValueId, builder: &mut Builder, new: ValueId) {
    let value = &graph.values[old];
    if let Some(name) = &value.name {
        builder.set_name(new, name);
    }
    builder.set_layout(new, value.layout.clone());
}

/// The dtype that a composite computes in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}

fn reduce(b: &mut Builder, op: Reduce, x: ValueId, dims: &[usize]) -> Result<ValueId> {
    b.emit(
        Op::Reduce {
            op,
            dims: dims.to_vec(),
            keepdim: true,
        },
        &[x],
    )
}

fn unary(b: &mut Builder, op: Unary, x: ValueId) -> Result<ValueId> {
    b.emit(Op::Unary(op), &[x])
}

fn binary(b: &mut Builder, op: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
    b.emit(Op::Binary(op), &[x, y])
}

/// `x - max` and its exponential, in the wide dtype.
fn shifted(b: &mut Builder, x: ValueId, dim: usize) -> Result<(ValueId, ValueId)> {
    let dtype = wide(b.ty(x).dtype);
    let x = b.cast(x, dtype)?;
    let max = reduce(b, Reduce::Amax, x, &[dim])?;
    let centred = binary(b, Binary::Sub, x, max)?;
    Ok((centred, unary(b, Unary::Exp, centred)?))
}

fn softmax(b: &mut Builder, x: ValueId, dim: usize) -> Result<ValueId> {
    let out = b.ty(x).dtype;
    if b.ty(x).rank() == 0 || b.ty(x).numel() == Expr::constant(0) {
        return empty_or_single(b, x, 1.0);
    }
    let (_, exp) = shifted(b, x, dim)?;
    let sum = reduce(b, Reduce::Sum, exp, &[dim])?;
    // One division a row instead of one an element: half an ulp more, well inside the bound.
    let scale = unary(b, Unary::Reciprocal, sum)?;
    let y = binary(b, Binary::Mul, exp, scale)?;
    b.cast(y, out)
}

fn log_softmax(b: &mut Builder, x: ValueId, dim: usize) -> Result<ValueId> {
    let out = b.ty(x).dtype;
    if b.ty(x).rank() == 0 || b.ty(x).numel() == Expr::constant(0) {
        return empty_or_single(b, x, 0.0);
    }
    let (centred, exp) = shifted(b, x, dim)?;
    let sum = reduce(b, Reduce::Sum, exp, &[dim])?;
    let log = unary(b, Unary::Log, sum)?;
    let y = binary(b, Binary::Sub, centred, log)?;
    b.cast(y, out)
}

/// A row of one element, or of none, has a fixed answer; NaN and infinities still spread as in `x - x`.
fn empty_or_single(b: &mut Builder, x: ValueId, value: f64) -> Result<ValueId> {
    let zero = binary(b, Binary::Sub, x, x)?;
    let ty = b.ty(x).clone();
    let one = b.full(value, ty.shape.clone(), ty.dtype, ty.device)?;
    binary(b, Binary::Add, zero, one)
}

/// The least position whose element is the extreme of its row, or NaN.
fn position(b: &mut Builder, op: Reduce, x: ValueId, dim: usize, keepdim: bool) -> Result<ValueId> {
    let ty = b.ty(x).clone();
    if ty.rank() == 0 {
        return b.full(0, vec![], DType::I64, ty.device);
    }
    let extreme = reduce(b, op, x, &[dim])?;
    let mut here = b.emit(Op::Compare(Compare::Eq), &[x, extreme])?;
    if ty.dtype.is_float() {
        // NaN is no number's equal, and is the extreme where there is one.
        let nan = unary(b, Unary::IsNan, x)?;
        here = binary(b, Binary::BitwiseOr, here, nan)?;
    }
    let size = ty.shape[dim].clone();
    let numbers = b.emit(
        Op::Arange {
            start: Scalar::I(0),
            step: Scalar::I(1),
            shape: vec![size.clone()],
            dtype: DType::I64,
            device: ty.device,
        },
        &[],
    )?;
    let mut shape = vec![Expr::ONE; ty.rank()];
    shape[dim] = size;
    let numbers = b.emit(Op::View { shape }, &[numbers])?;
    let beyond = b.full(i64::MAX, vec![], DType::I64, ty.device)?;
    let candidates = b.emit(Op::Where, &[here, numbers, beyond])?;
    b.emit(
        Op::Reduce {
            op: Reduce::Amin,
            dims: vec![dim],
            keepdim,
        },
        &[candidates],
    )
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Sums and products of halves at computed places: rounded once, so kept in f32.
fn scatter(b: &mut Builder, op: Scatter, inputs: &[ValueId], dim: usize) -> Result<ValueId> {
    let out = b.ty(inputs[0]).dtype;
    let (x, src) = (
        b.cast(inputs[0], DType::F32)?,
        b.cast(inputs[1], DType::F32)?,
    );
    let total = b.emit(Op::Scatter { op, dim }, &[x, src, inputs[2]])?;
    b.cast(total, out)
}

fn count_of(b: &Builder, x: ValueId, dims: &[usize]) -> Expr {
    dims.iter().map(|&d| b.ty(x).shape[d].clone()).product()
}

/// Mean, and the mean of squared distances from it, over `dims`, which stay with extent 1.
fn moments(b: &mut Builder, x: ValueId, dims: &[usize]) -> Result<(ValueId, ValueId)> {
    let mean = reduce(b, Reduce::Mean, x, dims)?;
    let centred = binary(b, Binary::Sub, x, mean)?;
    Ok((mean, centred))
}

fn layer_norm(b: &mut Builder, inputs: &[ValueId], rank: usize, eps: f64) -> Result<Vec<ValueId>> {
    let x = inputs[0];
    let out = b.ty(x).dtype;
    let dtype = wide(out);
    let all = b.ty(x).rank();
    let dims: Vec<usize> = (all - rank..all).collect();
    let device = b.ty(x).device;
    let x = b.cast(x, dtype)?;
    // The mean of the distances from a rounded mean is what it lost: with that, a row of equal numbers is exactly 0, which `rstd` would magnify otherwise.
    let (rounded, distance) = moments(b, x, &dims)?;
    let lost = reduce(b, Reduce::Mean, distance, &dims)?;
    let mean = binary(b, Binary::Add, rounded, lost)?;
    let centred = binary(b, Binary::Sub, x, mean)?;
    let square = binary(b, Binary::Mul, distance, distance)?;
    let around = reduce(b, Reduce::Mean, square, &dims)?;
    let excess = binary(b, Binary::Mul, lost, lost)?;
    let variance = binary(b, Binary::Sub, around, excess)?;
    let eps = b.full(eps, vec![], dtype, device)?;
    let moved = binary(b, Binary::Add, variance, eps)?;
    let rstd = unary(b, Unary::Rsqrt, moved)?;
    let mut y = binary(b, Binary::Mul, centred, rstd)?;
    if let Some(&weight) = inputs.get(1) {
        let weight = b.cast(weight, dtype)?;
        y = binary(b, Binary::Mul, y, weight)?;
    }
    if let Some(&bias) = inputs.get(2) {
        let bias = b.cast(bias, dtype)?;
        y = binary(b, Binary::Add, y, bias)?;
    }
    Ok(vec![b.cast(y, out)?, mean, rstd])
}

fn sum(b: &mut Builder, x: ValueId, dims: &[usize], keepdim: bool) -> Result<ValueId> {
    let op = Op::Reduce {
        op: Reduce::Sum,
        dims: dims.to_vec(),
        keepdim,
    };
    b.emit(op, &[x])
}

/// Elements of a row from which on reading it once more costs more than the cache gives: 128 KiB of f32.
const LONG: i64 = 1 << 15;
/// The part of a long row whose mean stands for the row's.
const SAMPLE: i64 = 16;

/// How much of a long row, and along which dim, to take for a first guess of its mean: at least a sixteenth, at most an eighth.
fn sampled(b: &Builder, x: ValueId, dims: &[usize], count: &Expr) -> Option<(i64, usize)> {
    count.as_const().filter(|&n| n >= LONG)?;
    let part = |&d: &usize| {
        let extent = b.ty(x).shape[d].as_const().filter(|&n| n >= SAMPLE / 2)?;
        Some(((extent + SAMPLE - 1) / SAMPLE, d))
    };
    dims.iter().find_map(part)
}

/// The sum of squared distances from the mean of a long row, which is read once: as the distances are from a guess, their own mean is taken off again.
///
/// The guess is the mean of a sample. What is taken off is at most 15 times what stays (a sample of a sixteenth that lies so far from the rest spreads the row as much), so that no more than 4 bits are lost, whatever the data.
fn squares_around(
    b: &mut Builder,
    x: ValueId,
    dims: &[usize],
    sample: i64,
    dim: usize,
    keepdim: bool,
) -> Result<ValueId> {
    let part = b.slice(x, dim as i64, 0, sample, 1)?;
    let guess = reduce(b, Reduce::Mean, part, dims)?;
    let distance = binary(b, Binary::Sub, x, guess)?;
    let square = binary(b, Binary::Mul, distance, distance)?;
    let around = sum(b, square, dims, keepdim)?;
    let total = sum(b, distance, dims, keepdim)?;
    let mean = b.emit(
        Op::Reduce {
            op: Reduce::Mean,
            dims: dims.to_vec(),
            keepdim,
        },
        &[distance],
    )?;
    let excess = binary(b, Binary::Mul, total, mean)?;
    let squares = binary(b, Binary::Sub, around, excess)?;
    let (dtype, device) = (b.ty(x).dtype, b.ty(x).device);
    let zero = b.full(0.0, vec![], dtype, device)?;
    binary(b, Binary::Maximum, squares, zero)
}

fn var(
    b: &mut Builder,
    x: ValueId,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
) -> Result<ValueId> {
    let out = b.ty(x).dtype;
    let dtype = wide(out);
    let device = b.ty(x).device;
    let count = count_of(b, x, dims);
    let x = b.cast(x, dtype)?;
    let squares = match sampled(b, x, dims, &count) {
        Some((sample, dim)) => squares_around(b, x, dims, sample, dim, keepdim)?,
        None => {
            let (_, centred) = moments(b, x, dims)?;
            let square = binary(b, Binary::Mul, centred, centred)?;
            sum(b, square, dims, keepdim)?
        }
    };
    let freedom = match count.as_const() {
        Some(count) => b.full((count as f64 - correction).max(0.0), vec![], dtype, device)?,
        None => {
            let count = b.emit(
                Op::ScalarTensor {
                    value: count,
                    dtype,
                    device,
                },
                &[],
            )?;
            let correction = b.full(correction, vec![], dtype, device)?;
            let freedom = binary(b, Binary::Sub, count, correction)?;
            let zero = b.full(0.0, vec![], dtype, device)?;
            binary(b, Binary::Maximum, freedom, zero)?
        }
    };
    let y = binary(b, Binary::Div, squares, freedom)?;
    b.cast(y, out)
}
