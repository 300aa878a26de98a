//! Copies between strided layouts of host memory.

use super::layout::Layout;

/// A dim of a copy: extent, and the distance between neighbours on both sides in bytes.
#[derive(Clone, Copy, Debug)]
struct Dim {
    extent: usize,
    to: usize,
    from: usize,
}

/// Copies every element of `from` to the same index of `to`. Both layouts have the same shape and were checked against
/// their bytes.
pub(super) fn copy(
    to: &mut [u8],
    to_layout: &Layout,
    from: &[u8],
    from_layout: &Layout,
    size: usize,
) {
    // Strides of nothing may be any number.
    if to_layout.shape.contains(&0) {
        return;
    }
    let mut dims: Vec<Dim> = vec![];
    for (dim, extent) in to_layout.shape.iter().enumerate() {
        let scaled = |stride: i64| stride as usize * size;
        let next = Dim {
            extent: *extent as usize,
            to: scaled(to_layout.strides[dim]),
            from: scaled(from_layout.strides[dim]),
        };
        match dims.last_mut() {
            _ if next.extent == 1 => {}
            // Two dims that lie one inside the other on both sides are one.
            Some(last)
                if last.to == next.to * next.extent && last.from == next.from * next.extent =>
            {
                *last = Dim {
                    extent: last.extent * next.extent,
                    ..next
                };
            }
            Some(_) | None => dims.push(next),
        }
    }
    let to = &mut to[to_layout.offset as usize * size..];
    let from = &from[from_layout.offset as usize * size..];
    // The innermost run: contiguous on both sides, or single elements.
    let run = match dims.last() {
        Some(last) if last.to == size && last.from == size => {
            dims.pop().map_or(1, |last| last.extent)
        }
        Some(_) | None => 1,
    };
    walk(to, from, &dims, run * size);
}

fn walk(to: &mut [u8], from: &[u8], dims: &[Dim], run: usize) {
    match dims {
        [] => to[..run].copy_from_slice(&from[..run]),
        [dim] => match run {
            1 => elements::<1>(to, from, *dim),
            2 => elements::<2>(to, from, *dim),
            4 => elements::<4>(to, from, *dim),
            8 => elements::<8>(to, from, *dim),
            run => {
                for i in 0..dim.extent {
                    to[i * dim.to..][..run].copy_from_slice(&from[i * dim.from..][..run]);
                }
            }
        },
        [dim, inner @ ..] => {
            for i in 0..dim.extent {
                walk(&mut to[i * dim.to..], &from[i * dim.from..], inner, run);
            }
        }
    }
}

/// One dim of elements whose size is known, so that a copy is a move.
fn elements<const SIZE: usize>(to: &mut [u8], from: &[u8], dim: Dim) {
    for i in 0..dim.extent {
        to[i * dim.to..][..SIZE].copy_from_slice(&from[i * dim.from..][..SIZE]);
    }
}
