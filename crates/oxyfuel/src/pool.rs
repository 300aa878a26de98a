//! Windows over neighbours.

use crate::call::{Call, Pool, apply};
use crate::tensor::Tensor;
use oxyfuel_base::{Result, err};
use oxyfuel_graph::{Builder, Divisor, ValueId, Windows};

impl Pool {
    /// Notes it down: windows over the last two dims.
    pub(crate) fn record(&self, b: &mut Builder, x: ValueId) -> Result<ValueId> {
        let shape = b.ty(x).shape.clone();
        let Some(first) = shape.len().checked_sub(2) else {
            return Err(err!(RankMismatch, "pool: an image has at least two dims"));
        };
        let mut windows = vec![];
        for i in 0..2 {
            let Some(length) = shape[first + i].as_const() else {
                return Err(err!(
                    NoLowering,
                    "pool: windows over a dim of symbolic size"
                ));
            };
            let (size, step, padding) = (self.size[i], self.step[i], self.padding[i]);
            let covered = size
                .checked_sub(1)
                .and_then(|n| n.checked_mul(self.dilation[i]));
            let room = covered.map(|covered| length + 2 * padding - covered - 1);
            match room {
                Some(room) if room >= 0 && step > 0 && padding >= 0 && 2 * padding <= size => {
                    windows.push(Windows {
                        dim: first + i,
                        length,
                        count: room / step + 1,
                        size,
                        step,
                        dilation: self.dilation[i],
                        padding,
                    });
                }
                _ => {
                    return Err(err!(
                        InvalidArgument,
                        "pool: windows of {size} every {step}, padded by {padding}, over {length} elements"
                    )
                    .help("windows fit into the padded dim, and half of a window is the most padding"));
                }
            }
        }
        match self.average {
            true => b.avg_pool(x, &windows, Divisor::Padded),
            false => Ok(b.max_pool(x, &windows)?[usize::from(self.positions)]),
        }
    }
}

impl Tensor {
    /// The largest element of each window over the last two dims; NaN if a window holds one.
    #[track_caller]
    pub fn max_pool2d(
        &self,
        size: [i64; 2],
        step: [i64; 2],
        padding: [i64; 2],
        dilation: [i64; 2],
    ) -> Self {
        let call = Pool {
            average: false,
            positions: false,
            size,
            step,
            padding,
            dilation,
        };
        apply(Call::Pool(call), &[self.into()])
    }

    /// Where the largest element of each window is, counted over both dims (i64): the first of equals.
    #[track_caller]
    pub fn max_pool2d_positions(
        &self,
        size: [i64; 2],
        step: [i64; 2],
        padding: [i64; 2],
        dilation: [i64; 2],
    ) -> Self {
        let call = Pool {
            average: false,
            positions: true,
            size,
            step,
            padding,
            dilation,
        };
        apply(Call::Pool(call), &[self.into()])
    }

    /// The average of each window over the last two dims; the padding counts as zeros.
    #[track_caller]
    pub fn avg_pool2d(&self, size: [i64; 2], step: [i64; 2], padding: [i64; 2]) -> Self {
        let call = Pool {
            average: true,
            positions: false,
            size,
            step,
            padding,
            dilation: [1, 1],
        };
        apply(Call::Pool(call), &[self.into()])
    }
}
