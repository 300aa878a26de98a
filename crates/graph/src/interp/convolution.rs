//! Convolution: every window summed wide, rounded once.

use super::value::Tensor;
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

fn numbers(list: &[i64], d: usize) -> usize {
    usize::try_from(list[d]).unwrap_or(0)
}
