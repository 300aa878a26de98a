//! Convolution: every window summed wide, rounded once.

use super::value::{Data, Tensor};
use crate::conv_panels::{ConvPanels, turned};
use crate::convolution::Convolution;

/// `x` [n, c, size..] with `weight` [o, c / groups, kernel..]; `shape` is that of the result.
pub(super) fn convolution(
    x: &Tensor,
    weight: &Tensor,
    how: &Convolution,
    shape: Vec<usize>,
) -> Tensor {
    let (sizes, kernel, outs) = (&x.shape[2..], &weight.shape[2..], &shape[2..]);
    let inputs = weight.shape[1];
    let reach: usize = kernel.iter().product();
    let places: usize = outs.iter().product();
    let area: usize = sizes.iter().product();
    // Where in a channel a kernel position reads at an output position; `None` outside of it.
    let read = |place: usize, position: usize| -> Option<usize> {
        let (mut place, mut position) = (place, position);
        let (mut at, mut step) = (0, 1);
        for d in (0..sizes.len()).rev() {
            let ahead = place % outs[d] * numbers(&how.stride, d)
                + position % kernel[d] * numbers(&how.dilation, d);
            let here = ahead.checked_sub(numbers(&how.padding, d))?;
            if here >= sizes[d] {
                return None;
            }
            at += here * step;
            step *= sizes[d];
            place /= outs[d];
            position /= kernel[d];
        }
        Some(at)
    };
    let per_group = shape[1] / numbers(&[how.groups], 0).max(1);
    let mut out = vec![0.0; shape[0] * shape[1] * places];
    for position in 0..reach {
        for place in 0..places {
            let Some(at) = read(place, position) else {
                continue;
            };
            for (row, sums) in out.chunks_mut(places).enumerate() {
                let (n, o) = (row / shape[1], row % shape[1]);
                let first = (n * x.shape[1] + o / per_group.max(1) * inputs) * area + at;
                for c in 0..inputs {
                    let factor = weight.float_at((o * inputs + c) * reach + position);
                    sums[place] += factor * x.float_at(first + c * area);
                }
            }
        }
    }
    Tensor::floats(x.dtype, shape, out.into_iter())
}

/// Images with channels last, and a weight [positions * c / groups, n]; `shape` is that of the result.
pub(super) fn conv_panels(
    x: &Tensor,
    weight: &Tensor,
    how: &ConvPanels,
    shape: Vec<usize>,
) -> Tensor {
    if x.shape.len() != 4 {
        let (images, flat) = flat_images(x, how, &shape);
        let out = conv_panels(&images, weight, &how.flat(), flat);
        return Tensor { shape, ..out };
    }
    let ([b, h, w, c], n) = ([0, 1, 2, 3].map(|d| x.shape[d]), shape[3]);
    let images = Tensor::floats(
        x.dtype,
        vec![b, c, h, w],
        moved([b, c, h, w], |[i, j, y, x]| [i, y, x, j], [b, h, w, c]).map(|at| x.float_at(at)),
    );
    if how.winograd {
        return winograd(x, weight, how, shape);
    }
    let [high, wide] = [numbers(&how.kernel, 0), numbers(&how.kernel, 1)];
    let c = c / numbers(&[how.how.groups], 0).max(1);
    let kernel = |o: usize, channel: usize, y: usize, x: usize| {
        weight.float_at(((y * wide + x) * c + channel) * n + o)
    };
    let size = n * c * high * wide;
    let values = (0..size).map(|i| {
        let (x, i) = (i % wide, i / wide);
        let (y, i) = (i % high, i / high);
        kernel(i / c, i % c, y, x)
    });
    let weight = Tensor {
        dtype: weight.dtype,
        shape: vec![n, c, high, wide],
        data: Data::F(values.collect()),
    };
    let first = [shape[0], n, shape[1], shape[2]];
    let out = convolution(&images, &weight, &how.how, first.to_vec());
    let last = [shape[0], shape[1], shape[2], n];
    let places = moved(last, |[i, y, x, o]| [i, o, y, x], first);
    let values: Vec<f64> = places.map(|at| out.float_at(at)).collect();
    Tensor::floats(x.dtype, shape, values.into_iter())
}

/// Lines as images of one column; volumes as an image for each plane of the result, with the channels of all planes that it is made of. And the shape of the result.
fn flat_images(x: &Tensor, how: &ConvPanels, shape: &[usize]) -> (Tensor, Vec<usize>) {
    let (b, c) = (x.shape[0], x.shape[x.shape.len() - 1]);
    if x.shape.len() == 3 {
        let images = Tensor {
            shape: vec![b, x.shape[1], 1, c],
            ..x.clone()
        };
        return (images, vec![b, shape[1], 1, shape[2]]);
    }
    let [deep, area] = [x.shape[1], x.shape[2] * x.shape[3]];
    let [stride, padding, dilation] =
        [&how.how.stride, &how.how.padding, &how.how.dilation].map(|list| numbers(list, 0));
    let (outs, taps) = (shape[1], numbers(&how.kernel, 0));
    let size = b * outs * area * taps * c;
    let values = (0..size).map(|i| {
        let (channel, i) = (i % c, i / c);
        let (tap, i) = (i % taps, i / taps);
        let (place, i) = (i % area, i / area);
        let (out, image) = (i % outs, i / outs);
        match (out * stride + tap * dilation).checked_sub(padding) {
            Some(plane) if plane < deep => {
                x.float_at(((image * deep + plane) * area + place) * c + channel)
            }
            _ => 0.0,
        }
    });
    let flat = vec![b * outs, x.shape[2], x.shape[3], taps * c];
    let images = Tensor::floats(x.dtype, flat, values.collect::<Vec<f64>>().into_iter());
    (images, vec![b * outs, shape[2], shape[3], shape[4]])
}

/// The weight of lines or volumes as that of images.
fn flat_weight(weight: &Tensor) -> Tensor {
    let (n, c) = (weight.shape[0], weight.shape[1]);
    let &[taps, high, wide] = &weight.shape[2..] else {
        let mut shape = weight.shape.clone();
        shape.resize(4, 1);
        return Tensor {
            shape,
            ..weight.clone()
        };
    };
    let area = high * wide;
    let values = (0..n * taps * c * area).map(|i| {
        let (place, i) = (i % area, i / area);
        let (channel, i) = (i % c, i / c);
        let (tap, o) = (i % taps, i / taps);
        weight.float_at(((o * c + channel) * taps + tap) * area + place)
    });
    Tensor {
        dtype: weight.dtype,
        shape: vec![n, taps * c, high, wide],
        data: Data::F(values.collect()),
    }
}

/// A weight [n, c, kernel..] as the matrix [positions * c, n] whose columns are cut into panels; of points it is not rounded.
pub(super) fn matrix_of(weight: &Tensor, winograd: bool) -> Tensor {
    let weight = &flat_weight(weight);
    let [n, c, high, wide] = [0, 1, 2, 3].map(|d| weight.shape[d]);
    let own = |o: usize, channel: usize, y: usize, x: usize| {
        weight.float_at(((o * c + channel) * high + y) * wide + x)
    };
    let along = |[a, b, c]: [f64; 3]| [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c];
    // The points of a kernel, line by line.
    let points = |o: usize, channel: usize| {
        let columns = [0, 1, 2].map(|x| along([0, 1, 2].map(|y| own(o, channel, y, x))));
        [0, 1, 2, 3].map(|row| along(columns.map(|column| column[row])))
    };
    let positions = if winograd { 16 } else { high * wide };
    let mut data = Vec::with_capacity(positions * c * n);
    for position in 0..positions {
        for (channel, o) in (0..c).flat_map(|channel| (0..n).map(move |o| (channel, o))) {
            data.push(match winograd {
                true => points(o, channel)[position / 4][position % 4],
                false => own(o, channel, position / wide, position % wide),
            });
        }
    }
    Tensor {
        dtype: weight.dtype,
        shape: vec![positions * c, n],
        data: Data::F(data),
    }
}

/// The same at the points of F(2x2, 3x3); `weight` is [16 * c, n].
fn winograd(x: &Tensor, weight: &Tensor, how: &ConvPanels, shape: Vec<usize>) -> Tensor {
    let ([high, wide, c], n) = ([1, 2, 3].map(|d| x.shape[d]), shape[3]);
    let [down, across] = [0, 1].map(|d| numbers(&how.how.padding, d));
    let pixel = |b: usize, y: usize, x_: usize, channel: usize| {
        let (y, x_) = (y.wrapping_sub(down), x_.wrapping_sub(across));
        match y < high && x_ < wide {
            true => x.float_at(((b * high + y) * wide + x_) * c + channel),
            false => 0.0,
        }
    };
    let along = |d: [f64; 4]| [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]];
    let back = |m: [f64; 4]| [m[0] + m[1] + m[2], m[1] - m[2] - m[3]];
    let mut out = vec![0.0; shape.iter().product()];
    let tiles = [shape[1].div_ceil(2), shape[2].div_ceil(2)];
    for tile in 0..shape[0] * tiles[0] * tiles[1] {
        let (rest, tx) = (tile / tiles[1], tile % tiles[1]);
        let (b, ty) = (rest / tiles[0], rest % tiles[0]);
        let mut products = vec![[[0.0; 4]; 4]; n];
        for channel in 0..c {
            let columns = [0, 1, 2, 3]
                .map(|j| along([0, 1, 2, 3].map(|i| pixel(b, 2 * ty + i, 2 * tx + j, channel))));
            for (i, line) in turned(columns).into_iter().enumerate() {
                for (j, value) in along(line).into_iter().enumerate() {
                    for (o, products) in products.iter_mut().enumerate() {
                        let at = ((i * 4 + j) * c + channel) * n + o;
                        products[i][j] += value * weight.float_at(at);
                    }
                }
            }
        }
        for (o, m) in products.iter().enumerate() {
            for (i, line) in turned(turned(*m).map(back)).into_iter().enumerate() {
                for (j, value) in back(line).into_iter().enumerate() {
                    let (y, x) = (2 * ty + i, 2 * tx + j);
                    if y < shape[1] && x < shape[2] {
                        out[((b * shape[1] + y) * shape[2] + x) * n + o] = value;
                    }
                }
            }
        }
    }
    Tensor::floats(x.dtype, shape, out.into_iter())
}

/// For each place of a shape, the number of the element at another place of another.
fn moved(
    shape: [usize; 4],
    place: impl Fn([usize; 4]) -> [usize; 4],
    of: [usize; 4],
) -> impl Iterator<Item = usize> {
    let all: usize = shape.iter().product();
    (0..all).map(move |mut i| {
        let mut at = [0; 4];
        for d in (0..4).rev() {
            at[d] = i % shape[d];
            i /= shape[d];
        }
        let there = place(at);
        there
            .iter()
            .zip(of)
            .fold(0, |sum, (&at, size)| sum * size + at)
    })
}

fn numbers(list: &[i64], d: usize) -> usize {
    usize::try_from(list[d]).unwrap_or(0)
}
