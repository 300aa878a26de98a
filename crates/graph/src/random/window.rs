//! Windows over one dimension and borders around it: compositions in which many elements read one.

use super::Choices;
use crate::builder::{Border, Bordering, Builder, Divisor, Windows};
use crate::ir::ValueId;
use oxyfuel_base::{Expr, Result, Scalar, err};

pub(super) fn windowed(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    x: ValueId,
    dim: i64,
) -> Result<ValueId> {
    match choices.below(8) {
        0 => b.flip(x, dim),
        1 => {
            let shift = choices.below(5) as i64 - 2;
            b.roll(x, shift, dim)
        }
        2 => {
            let border = border(choices, dim);
            if b.ty(x).rank() == 0 {
                return Err(err!(InvalidArgument, "no dimension to grow"));
            }
            b.pad_constant(x, &[border], Scalar::I(1).cast(b.ty(x).dtype))
        }
        3 => {
            // As far as the mirrored elements reach.
            let how = [Bordering::Clamped, Bordering::Circular, Bordering::Mirrored];
            let how = choices.pick(&how);
            let border = border(choices, dim);
            if length(b, x, dim)? < 3 {
                return Err(err!(InvalidArgument, "a border longer than the tensor"));
            }
            b.pad_indexed(x, &[border], how)
        }
        4 => {
            let windows = windows(b, choices, x, dim)?;
            let divisor = choices.pick(&[Divisor::Padded, Divisor::Elements, Divisor::Number(3)]);
            b.avg_pool(x, &[windows], divisor)
        }
        5 => {
            let windows = windows(b, choices, x, b.ty(x).rank() as i64 - 1)?;
            b.im2col(x, &[windows])
        }
        _ => {
            let windows = windows(b, choices, x, dim)?;
            let both = b.max_pool(x, &[windows])?;
            Ok(choices.pick(&both))
        }
    }
}

fn border(choices: &mut Choices<'_>, dim: i64) -> Border {
    let mut side = || Expr::from(choices.below(3) as i64);
    Border {
        dim: usize::try_from(dim).unwrap_or(0),
        before: side(),
        after: side(),
    }
}

/// The size of a dimension, where it is known and there is one.
fn length(b: &Builder, x: ValueId, dim: i64) -> Result<i64> {
    let size = usize::try_from(dim).ok();
    let size = size.and_then(|dim| b.ty(x).shape.get(dim)?.as_const());
    size.filter(|&size| size > 0)
        .ok_or_else(|| err!(InvalidArgument, "no elements to count"))
}

fn windows(b: &Builder, choices: &mut Choices<'_>, x: ValueId, dim: i64) -> Result<Windows> {
    let length = length(b, x, dim)?;
    let size = 1 + choices.below(3) as i64;
    let (dilation, step) = (1 + choices.below(2) as i64, 1 + choices.below(2) as i64);
    let padding = choices.below(2) as i64 * (size / 2);
    let room = length + 2 * padding - dilation * (size - 1) - 1;
    if room < 0 {
        return Err(err!(InvalidArgument, "a window longer than the tensor"));
    }
    Ok(Windows {
        dim: usize::try_from(dim).unwrap_or(0),
        length,
        count: room / step + 1,
        size,
        step,
        dilation,
        padding,
    })
}
