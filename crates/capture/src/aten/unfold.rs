//! Windows laid side by side and back, and windows that share a dimension out evenly.

use super::{Import::Compiled, Row};
use crate::call::{Call, refuse};
use oxyfuel_base::{Expr, Result};
use oxyfuel_graph::{ValueId, Windows};

pub(super) const ROWS: &[Row] = &[
    ("aten.im2col.default", Compiled(im2col)),
    ("aten.col2im.default", Compiled(col2im)),
    ("aten.max_unpool2d.default", Compiled(|c| unpool(c, 2))),
    ("aten.max_unpool3d.default", Compiled(|c| unpool(c, 3))),
    (
        "aten._adaptive_avg_pool2d.default",
        Compiled(|c| average(c, 2)),
    ),
    (
        "aten._adaptive_avg_pool3d.default",
        Compiled(|c| average(c, 3)),
    ),
    (
        "aten._adaptive_avg_pool2d_backward.default",
        Compiled(|c| average_backward(c, 2)),
    ),
    (
        "aten._adaptive_avg_pool3d_backward.default",
        Compiled(|c| average_backward(c, 3)),
    ),
    (
        "aten.adaptive_max_pool2d.default",
        Compiled(|c| largest(c, 2)),
    ),
    (
        "aten.adaptive_max_pool3d.default",
        Compiled(|c| largest(c, 3)),
    ),
    (
        "aten.adaptive_max_pool2d_backward.default",
        Compiled(|c| largest_backward(c, 2)),
    ),
    (
        "aten.adaptive_max_pool3d_backward.default",
        Compiled(|c| largest_backward(c, 3)),
    ),
];

/// The windows over the last two dimensions of an image that arguments from `at` on name: kernel, dilation, padding, stride.
fn windows(c: &Call<'_>, at: usize, image: &[Expr]) -> Result<Vec<Windows>> {
    let names = ["kernel_size", "dilation", "padding", "stride"];
    let mut numbers = vec![];
    for (i, name) in names.into_iter().enumerate() {
        match c.ints(at + i, name)?.unwrap_or_default().as_slice() {
            [both] => numbers.push([*both; 2]),
            [rows, columns] => numbers.push([*rows, *columns]),
            _ => return refuse(format!("{name} of no image")),
        }
    }
    let [size, dilation, padding, step] = numbers[..] else {
        return refuse("windows of no image");
    };
    let Some(first) = image.len().checked_sub(2) else {
        return refuse("windows of no image");
    };
    let of = |i: usize| {
        let Some(length) = image[first + i].as_const() else {
            return refuse("windows over a dimension of unknown size");
        };
        let room = length + 2 * padding[i] - dilation[i] * (size[i] - 1) - 1;
        if length < 1 || room < 0 || step[i] < 1 {
            return refuse("no windows");
        }
        Ok(Windows {
            dim: first + i,
            length,
            count: room / step[i] + 1,
            size: size[i],
            step: step[i],
            dilation: dilation[i],
            padding: padding[i],
        })
    };
    (0..2).map(of).collect()
}

fn im2col(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let windows = windows(c, 1, &c.shape(x))?;
    Ok(vec![c.b.im2col(x, &windows)?])
}

fn col2im(c: &mut Call<'_>) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let shape = c.out(0)?.shape;
    let windows = windows(c, 2, &shape)?;
    Ok(vec![c.b.col2im(x, &shape, &windows)?])
}

fn unpool(c: &mut Call<'_>, dims: usize) -> Result<Vec<ValueId>> {
    let (x, place) = (c.tensor(0, "self")?, c.tensor(1, "indices")?);
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.max_unpool(x, &shape, place, dims)?])
}

/// The known sizes of the last dimensions.
fn sizes(shape: &[Expr], dims: usize) -> Result<Vec<i64>> {
    let last = shape.iter().skip(shape.len().saturating_sub(dims));
    match last.map(Expr::as_const).collect() {
        Some(sizes) => Ok(sizes),
        None => refuse("windows over a dimension of unknown size"),
    }
}

fn average(c: &mut Call<'_>, dims: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let to = sizes(&c.out(0)?.shape, dims)?;
    Ok(vec![c.b.adaptive_avg_pool(x, &to)?])
}

fn average_backward(c: &mut Call<'_>, dims: usize) -> Result<Vec<ValueId>> {
    let grad = c.tensor(0, "grad_output")?;
    let from = sizes(&c.out(0)?.shape, dims)?;
    Ok(vec![c.b.adaptive_avg_pool_backward(grad, &from)?])
}

fn largest(c: &mut Call<'_>, dims: usize) -> Result<Vec<ValueId>> {
    let x = c.tensor(0, "self")?;
    let to = sizes(&c.out(0)?.shape, dims)?;
    Ok(c.b.adaptive_max_pool(x, &to)?.to_vec())
}

fn largest_backward(c: &mut Call<'_>, dims: usize) -> Result<Vec<ValueId>> {
    let (grad, place) = (c.tensor(0, "grad_output")?, c.tensor(2, "indices")?);
    let shape = c.out(0)?.shape;
    Ok(vec![c.b.max_pool_backward(grad, &shape, place, dims)?])
}
