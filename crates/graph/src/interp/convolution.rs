//! Convolution: every window summed wide, rounded once.

use super::value::{Data, Tensor};
use crate::conv_panels::{ConvPanels, POINTS};
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

/// Images with channels last, and a weight [positions * c, n]; `shape` is that of the result.
pub(super) fn conv_panels(
    x: &Tensor,
    weight: &Tensor,
    how: &ConvPanels,
    shape: Vec<usize>,
) -> Tensor {
    let ([b, h, w, c], n) = ([0, 1, 2, 3].map(|d| x.shape[d]), shape[3]);
    let images = Tensor::floats(
        x.dtype,
        vec![b, c, h, w],
        moved([b, c, h, w], |[i, j, y, x]| [i, y, x, j], [b, h, w, c]).map(|at| x.float_at(at)),
    );
    let [high, wide] = [numbers(&how.kernel, 0), numbers(&how.kernel, 1)];
    // What the points say of each position of the kernel, along one dim.
    let points = |position: usize| -> Vec<(usize, f64)> {
        match position {
            0 => vec![(0, 1.0)],
            1 => vec![(1, 1.0), (2, -1.0)],
            _ => vec![(3, 1.0)],
        }
    };
    let at =
        |place: usize, channel: usize, o: usize| weight.float_at((place * c + channel) * n + o);
    let kernel = move |o: usize, channel: usize, y: usize, x: usize| -> f64 {
        if !how.winograd {
            return at(y * wide + x, channel, o);
        }
        let across = numbers(&[POINTS], 0);
        let mut sum = 0.0;
        for (i, down) in points(y) {
            for (j, along) in points(x) {
                sum += down * along * at(i * across + j, channel, o);
            }
        }
        sum
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
