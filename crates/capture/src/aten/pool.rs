//! Windows over neighbours: the largest and the average of each.

use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{Device, Divisor, ValueId, Windows};

pub(super) const ROWS: &[Row] = &[
    ("aten.avg_pool1d.default", Compiled(|c| average(c, 1))),
    ("aten.avg_pool2d.default", Compiled(|c| average(c, 2))),
    ("aten.avg_pool3d.default", Compiled(|c| average(c, 3))),
    (
        "aten.avg_pool2d_backward.default",
        Compiled(|c| average_backward(c, 2)),
    ),
    (
        "aten.avg_pool3d_backward.default",
        Compiled(|c| average_backward(c, 3)),
    ),
    (
        "aten.max_pool2d_with_indices.default",
        Compiled(|c| largest(c, 2)),
    ),
    (
        "aten.max_pool3d_with_indices.default",
        Compiled(|c| largest(c, 3)),
    ),
    (
        "aten.max_pool2d_with_indices_backward.default",
        Compiled(|c| largest_backward(c, 2)),
    ),
    (
        "aten.max_pool3d_with_indices_backward.default",
        Compiled(|c| largest_backward(c, 3)),
    ),
];

/// A number a dimension: as many as listed, or one for all; the kernel's where the list is empty.
fn each(c: &Call<'_>, at: usize, name: &str, n: usize, other: &[i64]) -> Result<Vec<i64>> {
    match c.ints(at, name)?.unwrap_or_default().as_slice() {
        [] => Ok(other.to_vec()),
        [one] => Ok(vec![*one; n]),
        list if list.len() == n => Ok(list.to_vec()),
        list => refuse(format!("{} numbers for {name}", list.len())),
    }
}

/// The windows that arguments from `at` on name (kernel, step, padding), over the last dimensions of `shape`; `out` says how many there are.
fn windows(
    c: &Call<'_>,
    at: usize,
    n: usize,
    dilation: &[i64],
    (shape, out): (&[Expr], &[Expr]),
) -> Result<Vec<Windows>> {
    let size = each(c, at, "kernel_size", n, &[])?;
    let step = each(c, at + 1, "stride", n, &size)?;
    let padding = each(c, at + 2, "padding", n, &vec![0; n])?;
    if shape.len() < n || shape.len() != out.len() || size.len() != n {
        return refuse("no windows of so many dimensions");
    }
    let first = shape.len() - n;
    let of = |i: usize| {
        let (Some(length), Some(count)) = (shape[first + i].as_const(), out[first + i].as_const())
        else {
            return refuse("windows over a dimension of unknown size");
        };
        Ok(Windows {
            dim: first + i,
            length,
            count,
            size: size[i],
            step: step[i],
            dilation: dilation[i],
            padding: padding[i],
        })
    };
    let all = (0..n).map(of).collect::<Result<Vec<_>>>()?;
    if all.iter().any(|w| w.count == 0 || w.length == 0) {
        return refuse("no windows");
    }
    Ok(all)
}

/// The divisor that arguments from `at` on name.
fn divisor(c: &Call<'_>, at: usize) -> Result<Divisor> {
    let padded = c.flag(at, "count_include_pad", true)?;
    Ok(match c.expr(at + 1, "divisor_override")? {
        Some(n) => match n.as_const() {
            Some(n) => Divisor::Number(n),
            None => return refuse("a divisor that is not known when compiling"),
        },
        None if padded => Divisor::Padded,
        None => Divisor::Elements,
    })
}

fn average(c: &mut Call<'_>, n: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let (shape, out) = (c.shape(x), c.out(0)?.shape);
    let windows = windows(c, 1, n, &vec![1; n], (&shape, &out))?;
    let divisor = divisor(c, 5)?;
    Ok(vec![c.b.avg_pool(x, &windows, divisor)?])
}

fn average_backward(c: &mut Call<'_>, n: usize) -> Result<Vec<ValueId>> {
    let grad = c.tensor(0, "grad_output")?;
    let (out, shape) = (c.shape(grad), c.out(0)?.shape);
    let windows = windows(c, 2, n, &vec![1; n], (&shape, &out))?;
    let divisor = divisor(c, 6)?;
    Ok(vec![c.b.avg_pool_backward(grad, &windows, divisor)?])
}

/// Elements from which on the host's kernel on a CPU, which runs vectors along the channels, is clearly faster than taps with strides.
const MANY: i64 = 1 << 16;

/// Refuses large images of a CPU whose channels lie side by side.
fn channels_apart(c: &Call<'_>, at: usize, name: &str, n: usize) -> Result<()> {
    let x = c.tensor(at, name)?;
    // Kernels of ours run along the channels too where images come from convolutions of ours.
    if c.device() != Device::Cpu || c.images {
        return Ok(());
    }
    let (strides, shape) = (c.strides(at, name)?, c.shape(x));
    let count = shape
        .iter()
        .try_fold(1i64, |all, n| all.checked_mul(n.as_const()?));
    let channels = shape.len().checked_sub(n + 1);
    let beside = channels.is_some_and(|d| strides[d].is_const(1) && !shape[d].is_const(1));
    if beside && count.is_none_or(|count| count >= MANY) {
        return refuse(
            "large images whose channels lie side by side are faster in the host's kernel",
        );
    }
    Ok(())
}

fn largest(c: &mut Call<'_>, n: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    channels_apart(c, 0, "self", n)?;
    let (shape, out) = (c.shape(x), c.out(0)?.shape);
    let dilation = each(c, 4, "dilation", n, &vec![1; n])?;
    let windows = windows(c, 1, n, &dilation, (&shape, &out))?;
    Ok(c.b.max_pool(x, &windows)?.to_vec())
}

/// What comes for a window goes to the element that the forward's positions name.
fn largest_backward(c: &mut Call<'_>, n: usize) -> Result<Vec<ValueId>> {
    let (grad, place) = (c.tensor(0, "grad_output")?, c.tensor(7, "indices")?);
    channels_apart(c, 1, "self", n)?;
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.max_pool_backward(grad, &shape, place, n)?])
}
