//! Windows over neighbours: the largest and the average of each, windows that share a dim out evenly, windows side by side.
//!
//! Windows lie over the last dims, whose sizes are numbers: a size that changes from call to call is asked for, and each is a variant of its own.

use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe};
use crate::tensor::Tensor;
use oxyfuel_base::{Expr, Result, Scalar, ensure, err};
use oxyfuel_graph::{Divisor, ValueId, Windows};

/// Windows of a pool: one number a dim, or one for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// Elements of a window.
    pub size: Vec<i64>,
    /// From one window to the next; empty for the window's own size.
    pub stride: Vec<i64>,
    /// Before and after each dim: half of a window is the most.
    pub padding: Vec<i64>,
    /// From one element of a window to the next; of an average always 1.
    pub dilation: Vec<i64>,
    /// Whether a window may begin inside and end beyond the padding: PyTorch's `ceil_mode`.
    pub ceil: bool,
    /// Whether the padding counts as zeros of an average: PyTorch's `count_include_pad`.
    pub count_padding: bool,
    /// What an average is divided by, if it is not the number of elements.
    pub divisor: Option<i64>,
}

impl Default for Pooling {
    fn default() -> Self {
        Self {
            size: vec![2],
            stride: vec![],
            padding: vec![0],
            dilation: vec![1],
            ceil: false,
            count_padding: true,
            divisor: None,
        }
    }
}

/// Of sizes and steps, so that no product of two overflows.
const LARGEST: i64 = i32::MAX as i64;

impl Pooling {
    /// The pool as numbers, for so many dims: the dims, whether it may end beyond, whether padding counts, the divisor (or 0), and four numbers a dim.
    fn numbers(&self, dims: usize) -> Result<Vec<Scalar>> {
        let each = |what: &str, list: &[i64], other: &[i64]| match list {
            [] => Ok(other.to_vec()),
            [one] => Ok(vec![*one; dims]),
            list if list.len() == dims => Ok(list.to_vec()),
            list => Err(err!(
                InvalidArgument,
                "pool: {} numbers for the {what} of windows over {dims} dims",
                list.len()
            )),
        };
        ensure!(
            !self.size.is_empty(),
            InvalidArgument,
            "pool: windows without a size"
        );
        let size = each("size", &self.size, &[])?;
        let lists = [
            size.clone(),
            each("stride", &self.stride, &size)?,
            each("padding", &self.padding, &vec![0; dims])?,
            each("dilation", &self.dilation, &vec![1; dims])?,
        ];
        ensure!(
            self.divisor != Some(0),
            InvalidArgument,
            "pool: an average divided by 0"
        );
        let mut all = vec![
            Scalar::I(i64::try_from(dims).unwrap_or(0)),
            Scalar::B(self.ceil),
            Scalar::B(self.count_padding),
            Scalar::I(self.divisor.unwrap_or(0)),
        ];
        all.extend(lists.into_iter().flatten().map(Scalar::I));
        Ok(all)
    }
}

/// The windows that the numbers of a pool say, over a tensor of this shape.
fn windows(r: &Recording<'_>, shape: &[Expr], from: usize) -> Result<Vec<Windows>> {
    let dims = usize::try_from(r.int(from)?).unwrap_or(0);
    let ceil = r.flag(from + 1)?;
    let lists = r.ints(from + 4);
    let Some(first) = shape.len().checked_sub(dims) else {
        return Err(err!(
            RankMismatch,
            "pool: windows over {dims} dims of a tensor with {} dims",
            shape.len()
        ));
    };
    let number = |list: usize, i: usize| lists.get(list * dims + i).copied().unwrap_or(0);
    let one = |i: usize| {
        let length = r.known(&shape[first + i], "windows over a dim")?;
        let [size, step, padding, dilation] = [0, 1, 2, 3].map(|list| number(list, i));
        let fail = || {
            err!(
                InvalidArgument,
                "pool: windows of {size} every {step}, padded by {padding}, over {length} elements"
            )
            .help("windows fit into the padded dim, and half of a window is the most padding")
        };
        let sound = (1..LARGEST).contains(&size)
            && (1..LARGEST).contains(&step)
            && (1..LARGEST).contains(&dilation)
            && (0..=size / 2).contains(&padding)
            && (1..LARGEST).contains(&length);
        if !sound {
            return Err(fail());
        }
        let room = length + 2 * padding - (size - 1) * dilation - 1;
        if room < 0 {
            return Err(fail());
        }
        let mut count = room / step + 1;
        if ceil && room % step != 0 && count * step < length + padding {
            count += 1;
        }
        Ok(Windows {
            dim: first + i,
            length,
            count,
            size,
            step,
            dilation,
            padding,
        })
    };
    (0..dims).map(one).collect()
}

fn divisor(r: &Recording<'_>, from: usize) -> Result<Divisor> {
    Ok(match (r.int(from + 3)?, r.flag(from + 2)?) {
        (0, true) => Divisor::Padded,
        (0, false) => Divisor::Elements,
        (number, _) => Divisor::Number(number),
    })
}

fn largest(r: &mut Recording<'_>, which: usize) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let windows = windows(r, &r.shape(x), 0)?;
    Ok(r.b.max_pool(x, &windows)?[which])
}

fn average(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let windows = windows(r, &r.shape(x), 0)?;
    ensure!(
        windows.iter().all(|w| w.dilation == 1),
        InvalidArgument,
        "avg_pool: windows with gaps"
    );
    let divisor = divisor(r, 0)?;
    r.b.avg_pool(x, &windows, divisor)
}

/// Pools over the last dims.
impl Tensor {
    #[track_caller]
    fn pooled(
        &self,
        dims: usize,
        how: &Pooling,
        name: &'static str,
        build: crate::recipe::Build,
    ) -> Tensor {
        match how.numbers(dims) {
            Ok(numbers) => recipe(name, &[self.into()], &numbers, build),
            Err(error) => Tensor::refused(error),
        }
    }

    /// The largest element of each window over the last `dims` dims, NaN if a window holds one; and where it is, counted over these dims (i64): the first of equals.
    #[track_caller]
    pub fn max_pool(&self, dims: usize, how: &Pooling) -> (Tensor, Tensor) {
        (
            self.pooled(dims, how, "max_pool", Nodes(|r| largest(r, 0))),
            self.pooled(dims, how, "max_pool_positions", Nodes(|r| largest(r, 1))),
        )
    }

    /// The average of each window over the last `dims` dims.
    #[track_caller]
    pub fn avg_pool(&self, dims: usize, how: &Pooling) -> Tensor {
        self.pooled(dims, how, "avg_pool", Nodes(average))
    }

    /// The gradient of [`avg_pool`](Self::avg_pool) of a tensor of this shape, from that of its result.
    #[track_caller]
    pub fn avg_pool_backward(&self, grad: &Tensor, dims: usize, how: &Pooling) -> Tensor {
        let build = Nodes(|r| {
            let (x, grad) = (r.tensor(0)?, r.tensor(1)?);
            let windows = windows(r, &r.shape(x), 0)?;
            let (have, want) = (r.shape(grad), r.shape(x));
            let fits =
                have.len() == want.len() && windows.iter().all(|w| have[w.dim].is_const(w.count));
            ensure!(
                fits,
                ShapeMismatch,
                "avg_pool_backward: a gradient of shape {have:?}"
            );
            let divisor = divisor(r, 0)?;
            r.b.avg_pool_backward(grad, &windows, divisor)
        });
        match how.numbers(dims) {
            Ok(numbers) => recipe(
                "avg_pool_backward",
                &[self.into(), grad.into()],
                &numbers,
                build,
            ),
            Err(error) => Tensor::refused(error),
        }
    }

    /// The gradient of a [`max_pool`](Self::max_pool) or [`adaptive_max_pool2d`](Self::adaptive_max_pool2d) of a tensor of this shape: what comes for a window goes to its largest element, where `positions` says.
    #[track_caller]
    pub fn max_pool_backward(&self, grad: &Tensor, positions: &Tensor, dims: usize) -> Tensor {
        let build = Nodes(|r| {
            let (x, grad, place) = (r.tensor(0)?, r.tensor(1)?, r.tensor(2)?);
            let shape = r.shape(x);
            let dims = placed(r, &shape, grad, place, r.int(0)?)?;
            r.b.max_pool_backward(grad, &shape, place, dims)
        });
        let operands = [self.into(), grad.into(), positions.into()];
        let dims = i64::try_from(dims).unwrap_or(i64::MAX);
        recipe("max_pool_backward", &operands, &[dims.into()], build)
    }

    /// A [`max_pool`](Self::max_pool) undone: zeros, whose last dims have these sizes, but for the elements of this tensor where `positions` says.
    #[track_caller]
    pub fn max_unpool(&self, positions: &Tensor, sizes: &[i64]) -> Tensor {
        let build = Nodes(|r| {
            let (x, place) = (r.tensor(0)?, r.tensor(1)?);
            let (mut shape, sizes) = (r.shape(x), r.ints(0));
            let kept = shape.len().saturating_sub(sizes.len());
            let bad = sizes.iter().any(|n| !(0..LARGEST).contains(n));
            ensure!(!bad, InvalidArgument, "max_unpool: sizes of {sizes:?}");
            let dims = placed(r, &shape, x, place, i64::try_from(sizes.len()).unwrap_or(0))?;
            shape.splice(kept.., sizes.into_iter().map(Expr::constant));
            r.b.max_unpool(x, &shape, place, dims)
        });
        let sizes: Vec<Scalar> = sizes.iter().map(|&n| Scalar::I(n)).collect();
        recipe(
            "max_unpool",
            &[self.into(), positions.into()],
            &sizes,
            build,
        )
    }
}

/// Checks positions of windows over the last dims of `shape`, which `x` comes from or goes to; how many dims.
fn placed(
    r: &Recording<'_>,
    shape: &[Expr],
    x: ValueId,
    place: ValueId,
    dims: i64,
) -> Result<usize> {
    let (have, places) = (r.shape(x), r.shape(place));
    let dims = usize::try_from(dims)
        .ok()
        .filter(|n| (1..=shape.len()).contains(n));
    let kept = dims.map(|dims| shape.len() - dims);
    let fits = have == places
        && have.len() == shape.len()
        && kept.is_some_and(|kept| have[..kept] == shape[..kept]);
    match dims {
        Some(dims) if fits => Ok(dims),
        _ => Err(err!(
            ShapeMismatch,
            "{}: positions of shape {places:?} for {have:?}",
            r.name
        )),
    }
}

macro_rules! pools {
    ($($dims:literal $max:ident $positions:ident $avg:ident $adaptive_avg:ident $adaptive_max:ident;)*) => {
        /// Pools over one, two and three dims: a number a dim.
        impl Tensor {
            $(
            #[doc = concat!("The largest element of each window over the last dims (", stringify!($dims), "); NaN if a window holds one.")]
            #[track_caller]
            pub fn $max(&self, size: [i64; $dims], step: [i64; $dims], padding: [i64; $dims], dilation: [i64; $dims]) -> Self {
                self.pooled($dims, &pooling(&size, &step, &padding, &dilation), "max_pool", Nodes(|r| largest(r, 0)))
            }

            #[doc = concat!("Where the largest element of each window is, counted over the last dims (", stringify!($dims), ", an i64): the first of equals.")]
            #[track_caller]
            pub fn $positions(&self, size: [i64; $dims], step: [i64; $dims], padding: [i64; $dims], dilation: [i64; $dims]) -> Self {
                self.pooled($dims, &pooling(&size, &step, &padding, &dilation), "max_pool_positions", Nodes(|r| largest(r, 1)))
            }

            #[doc = concat!("The average of each window over the last dims (", stringify!($dims), "); the padding counts as zeros.")]
            #[track_caller]
            pub fn $avg(&self, size: [i64; $dims], step: [i64; $dims], padding: [i64; $dims]) -> Self {
                self.avg_pool($dims, &pooling(&size, &step, &padding, &[1]))
            }

            #[doc = concat!("The averages of windows that share the last dims (", stringify!($dims), ") out evenly: so many a dim.")]
            #[track_caller]
            pub fn $adaptive_avg(&self, to: [i64; $dims]) -> Self {
                recipe(stringify!($adaptive_avg), &[self.into()], &to.map(Scalar::I), Nodes(|r| {
                    let (x, to) = (r.tensor(0)?, shared(r, 0)?);
                    r.b.adaptive_avg_pool(x, &to)
                }))
            }

            #[doc = concat!("The largest elements of windows that share the last dims (", stringify!($dims), ") out evenly, so many a dim; and where they are, counted over these dims (i64).")]
            #[track_caller]
            pub fn $adaptive_max(&self, to: [i64; $dims]) -> (Self, Self) {
                let (name, to) = (stringify!($adaptive_max), to.map(Scalar::I));
                (
                    recipe(name, &[self.into()], &to, Nodes(|r| adaptive_largest(r, 0))),
                    recipe(name, &[self.into()], &to, Nodes(|r| adaptive_largest(r, 1))),
                )
            }
            )*
        }
    };
}

pools! {
    1 max_pool1d max_pool1d_positions avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d;
    2 max_pool2d max_pool2d_positions avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d;
    3 max_pool3d max_pool3d_positions avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d;
}

fn pooling(size: &[i64], stride: &[i64], padding: &[i64], dilation: &[i64]) -> Pooling {
    Pooling {
        size: size.to_vec(),
        stride: stride.to_vec(),
        padding: padding.to_vec(),
        dilation: dilation.to_vec(),
        ..Pooling::default()
    }
}

/// How many windows share each of the last dims.
fn shared(r: &Recording<'_>, from: usize) -> Result<Vec<i64>> {
    let (to, shape) = (r.ints(from), r.shape(r.tensor(0)?));
    ensure!(
        to.len() <= shape.len() && to.iter().all(|n| (1..LARGEST).contains(n)),
        InvalidArgument,
        "{}: windows of {to:?} over a tensor with {} dims",
        r.name,
        shape.len()
    );
    for extent in &shape[shape.len() - to.len()..] {
        r.known(extent, "windows over a dim")?;
    }
    Ok(to)
}

fn adaptive_largest(r: &mut Recording<'_>, which: usize) -> Result<ValueId> {
    let (x, to) = (r.tensor(0)?, shared(r, 0)?);
    Ok(r.b.adaptive_max_pool(x, &to)?[which])
}

/// Windows side by side.
impl Tensor {
    /// The gradient of an adaptive average over the last dims of a tensor that had these sizes there; this tensor is the gradient of its result.
    #[track_caller]
    pub fn adaptive_avg_pool_backward(&self, sizes: &[i64]) -> Tensor {
        let sizes: Vec<Scalar> = sizes.iter().map(|&n| Scalar::I(n)).collect();
        recipe(
            "adaptive_avg_pool_backward",
            &[self.into()],
            &sizes,
            Nodes(|r| {
                let (grad, sizes) = (r.tensor(0)?, shared(r, 0)?);
                ensure!(
                    !sizes.is_empty(),
                    InvalidArgument,
                    "adaptive_avg_pool_backward: no sizes"
                );
                r.b.adaptive_avg_pool_backward(grad, &sizes)
            }),
        )
    }

    /// A column a window over the last two dims: `[.., channels, h, w]` to `[.., channels * elements, windows]`, zeros where a window reaches beyond. PyTorch's `nn.functional.unfold`.
    #[track_caller]
    pub fn unfold(
        &self,
        size: [i64; 2],
        dilation: [i64; 2],
        padding: [i64; 2],
        stride: [i64; 2],
    ) -> Tensor {
        let numbers = columns(size, dilation, padding, stride);
        recipe(
            "unfold",
            &[self.into()],
            &numbers,
            Nodes(|r| {
                let x = r.tensor(0)?;
                let windows = image_windows(r, &r.shape(x), 0)?;
                r.b.im2col(x, &windows)
            }),
        )
    }

    /// What columns of windows add up to in an image of these sizes: [`unfold`](Self::unfold)'s gradient. PyTorch's `nn.functional.fold`.
    #[track_caller]
    pub fn fold(
        &self,
        sizes: [i64; 2],
        size: [i64; 2],
        dilation: [i64; 2],
        padding: [i64; 2],
        stride: [i64; 2],
    ) -> Tensor {
        let mut numbers = sizes.map(Scalar::I).to_vec();
        numbers.extend(columns(size, dilation, padding, stride));
        recipe("fold", &[self.into()], &numbers, Nodes(fold))
    }
}

fn columns(size: [i64; 2], dilation: [i64; 2], padding: [i64; 2], stride: [i64; 2]) -> Vec<Scalar> {
    let all = [size, dilation, padding, stride].into_iter().flatten();
    all.map(Scalar::I).collect()
}

/// Windows over the last two dims, whose padding may be any.
fn image_windows(r: &Recording<'_>, image: &[Expr], from: usize) -> Result<Vec<Windows>> {
    let list = r.ints(from);
    let Some(first) = image.len().checked_sub(2).filter(|&first| first > 0) else {
        return Err(err!(RankMismatch, "{}: of no image with channels", r.name));
    };
    let one = |i: usize| {
        let length = r.known(&image[first + i], "windows over a dim")?;
        let [size, dilation, padding, step] =
            [0, 2, 4, 6].map(|at| list.get(at + i).copied().unwrap_or(0));
        let small = [size, dilation, step, length]
            .iter()
            .all(|n| (1..LARGEST).contains(n));
        let sound = small && (0..LARGEST).contains(&padding);
        let room = match sound {
            true => length + 2 * padding - dilation * (size - 1) - 1,
            false => -1,
        };
        ensure!(
            room >= 0,
            InvalidArgument,
            "{}: windows of {size} every {step}, padded by {padding}, over {length} elements",
            r.name
        );
        Ok(Windows {
            dim: first + i,
            length,
            count: room / step + 1,
            size,
            step,
            dilation,
            padding,
        })
    };
    (0..2).map(one).collect()
}

fn fold(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let have = r.shape(x);
    let Some(channels) = have.len().checked_sub(2) else {
        return Err(err!(RankMismatch, "fold: columns have at least two dims"));
    };
    let taps = r.int(2)?.checked_mul(r.int(3)?).filter(|&n| n > 0);
    let columns = &have[channels];
    let divided = taps.map(|taps| columns.floordiv(taps));
    let whole = divided
        .clone()
        .zip(taps)
        .is_some_and(|(c, taps)| c * taps == *columns);
    let Some(count) = divided.filter(|_| whole) else {
        return Err(err!(
            ShapeMismatch,
            "fold: {columns} rows of no whole number of channels"
        ));
    };
    let mut shape = have[..channels].to_vec();
    shape.push(count);
    shape.extend([Expr::constant(r.int(0)?), Expr::constant(r.int(1)?)]);
    let windows = image_windows(r, &shape, 2)?;
    let total: i64 = windows.iter().map(|w| w.count).product();
    ensure!(
        have[channels + 1].is_const(total),
        ShapeMismatch,
        "fold: {} columns for {total} windows",
        have[channels + 1]
    );
    r.b.col2im(x, &shape, &windows)
}
