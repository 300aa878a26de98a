//! Reductions and scans beyond the vocabulary's own: norms, logarithms of sums, extremes with their positions, order statistics, running extremes.
//!
//! Dims may be negative, and then count from the end; an empty list of dims means all of them. Halves are computed in f32 and rounded once.

use crate::call::{Call, apply};
use crate::recipe::Build::Nodes;
use crate::recipe::{Recording, recipe, wide};
use crate::tensor::Tensor;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure};
use oxyfuel_graph::{Compare, Reduce, Unary, ValueId};

/// Numbers of a recipe: a few of its own, then a list of dims.
fn with_dims(numbers: &[Scalar], dims: &[i64]) -> Vec<Scalar> {
    let dims = dims.iter().map(|&d| Scalar::I(d));
    numbers.iter().copied().chain(dims).collect()
}

/// Statistics over dims.
impl Tensor {
    /// `log(sum(exp(x)))` without overflow on the way; of integers a float.
    #[track_caller]
    pub fn logsumexp(&self, dims: &[i64], keepdim: bool) -> Tensor {
        let numbers = with_dims(&[keepdim.into()], dims);
        recipe("logsumexp", &[self.into()], &numbers, Nodes(logsumexp))
    }

    /// The p-norm: `sum(|x|^p)^(1/p)`; the number of elements that are not 0 for p = 0, the largest and the smallest `|x|` for the infinities. PyTorch's `linalg.vector_norm`.
    ///
    /// ```
    /// # fn main() -> oxyfuel::Result<()> {
    /// let x = oxyfuel::Tensor::from_slice(&[3.0f32, -4.0], &[2]);
    /// assert_eq!(x.norm(2.0, &[], false).to_vec::<f32>()?, [5.0]);
    /// assert_eq!(x.norm(f64::INFINITY, &[], false).to_vec::<f32>()?, [4.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn norm(&self, p: f64, dims: &[i64], keepdim: bool) -> Tensor {
        let numbers = with_dims(&[p.into(), keepdim.into()], dims);
        recipe("norm", &[self.into()], &numbers, Nodes(norm))
    }

    /// The root of the variance, with `correction` taken off the count (1 for a sample).
    #[track_caller]
    pub fn std(&self, dims: &[i64], correction: f64, keepdim: bool) -> Tensor {
        let numbers = with_dims(&[correction.into(), keepdim.into()], dims);
        let std = Nodes(|r| {
            let (x, dims) = (r.tensor(0)?, r.ints(2));
            let out = r.dtype(x);
            let x = r.b.cast(x, wide(out))?;
            let var = r.b.var(x, &dims, r.float(0)?, r.flag(1)?)?;
            let y = r.b.sqrt(var)?;
            r.b.cast(y, out)
        });
        recipe("std", &[self.into()], &numbers, std)
    }

    /// Variance and mean.
    #[track_caller]
    pub fn var_mean(&self, dims: &[i64], correction: f64, keepdim: bool) -> (Tensor, Tensor) {
        let var = self.var(dims, correction, keepdim);
        (var, self.mean(dims, keepdim))
    }

    /// The root of the variance, and the mean.
    #[track_caller]
    pub fn std_mean(&self, dims: &[i64], correction: f64, keepdim: bool) -> (Tensor, Tensor) {
        let std = self.std(dims, correction, keepdim);
        (std, self.mean(dims, keepdim))
    }

    /// The number of elements that are not 0, an i64.
    #[track_caller]
    pub fn count_nonzero(&self, dims: &[i64]) -> Tensor {
        self.ne(0).to(DType::I64).sum(dims, false)
    }

    /// The sum of what is not NaN.
    #[track_caller]
    pub fn nansum(&self, dims: &[i64], keepdim: bool) -> Tensor {
        self.masked_fill(&self.isnan(), 0).sum(dims, keepdim)
    }

    /// The mean of what is not NaN.
    #[track_caller]
    pub fn nanmean(&self, dims: &[i64], keepdim: bool) -> Tensor {
        let count = self.isnan().logical_not().to(DType::I64).sum(dims, keepdim);
        self.nansum(dims, keepdim).div(&count)
    }

    /// `|a - b|`'s p-norm over all dims.
    #[track_caller]
    pub fn dist(&self, other: &Tensor, p: f64) -> Tensor {
        self.sub(other).norm(p, &[], false)
    }

    /// The p-norm of the difference of every row of this tensor and every row of the other: `[.., a, k]` and `[.., b, k]` give `[.., a, b]`.
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: f64) -> Tensor {
        self.unsqueeze(-2)
            .sub(&other.unsqueeze(-3))
            .norm(p, &[-1], false)
    }
}

/// Extremes, and where they are.
impl Tensor {
    /// The largest of all elements; NaN if any is. Along dims: [`amax`](Self::amax); with positions: [`max_dim`](Self::max_dim).
    #[track_caller]
    pub fn max(&self) -> Tensor {
        self.amax(&[], false)
    }

    /// The smallest of all elements; NaN if any is.
    #[track_caller]
    pub fn min(&self) -> Tensor {
        self.amin(&[], false)
    }

    /// The largest element along a dim and the position of the first such (an i64); a NaN if there is one. PyTorch's `max(dim, keepdim)`.
    #[track_caller]
    pub fn max_dim(&self, dim: i64, keepdim: bool) -> (Tensor, Tensor) {
        let call = Call::Argmax { dim, keepdim };
        (
            self.amax(&[dim], keepdim),
            apply(call, &[(&self.ordered_bits()).into()]),
        )
    }

    /// The smallest element along a dim and the position of the first such (an i64); a NaN if there is one. PyTorch's `min(dim, keepdim)`.
    #[track_caller]
    pub fn min_dim(&self, dim: i64, keepdim: bool) -> (Tensor, Tensor) {
        let call = Call::Argmin { dim, keepdim };
        (
            self.amin(&[dim], keepdim),
            apply(call, &[(&self.ordered_bits()).into()]),
        )
    }

    /// Bools have an order as bytes.
    #[track_caller]
    fn ordered_bits(&self) -> Tensor {
        match self.dtype() {
            DType::Bool => self.to(DType::U8),
            _ => self.clone(),
        }
    }

    /// Position of the first largest of all elements, counted in row-major order: PyTorch's `argmax()`.
    #[track_caller]
    pub fn argmax_all(&self) -> Tensor {
        self.flatten().argmax(0, false)
    }

    /// Position of the first smallest of all elements, counted in row-major order: PyTorch's `argmin()`.
    #[track_caller]
    pub fn argmin_all(&self) -> Tensor {
        self.flatten().argmin(0, false)
    }

    /// The smallest and the largest element.
    #[track_caller]
    pub fn aminmax(&self, dims: &[i64], keepdim: bool) -> (Tensor, Tensor) {
        (self.amin(dims, keepdim), self.amax(dims, keepdim))
    }

    /// The k-th smallest element along a dim, counted from 1, and its position; NaN is above everything.
    #[track_caller]
    pub fn kthvalue(&self, k: i64, dim: i64, keepdim: bool) -> (Tensor, Tensor) {
        let positions = recipe(
            "kthvalue",
            &[self.into()],
            &[dim.into(), keepdim.into(), k.into()],
            Nodes(kth_position),
        );
        (self.at(dim, keepdim, &positions), positions)
    }

    /// The median along a dim, the lower one of two, and its position; NaN if there is one.
    #[track_caller]
    pub fn median_dim(&self, dim: i64, keepdim: bool) -> (Tensor, Tensor) {
        let numbers = [dim.into(), keepdim.into()];
        let positions = recipe("median", &[self.into()], &numbers, Nodes(kth_position));
        (self.at(dim, keepdim, &positions), positions)
    }

    /// The median of all elements, the lower one of two; NaN if there is one.
    #[track_caller]
    pub fn median(&self) -> Tensor {
        self.flatten().median_dim(0, false).0
    }

    /// The elements at positions along a dim, which is kept or not.
    #[track_caller]
    fn at(&self, dim: i64, keepdim: bool, positions: &Tensor) -> Tensor {
        if self.rank() == 0 {
            return self.clone();
        }
        match keepdim {
            true => self.gather(dim, positions),
            false => {
                let numbers = [dim.into()];
                let operands = [self.into(), positions.into()];
                recipe(
                    "at",
                    &operands,
                    &numbers,
                    Nodes(|r| {
                        let (x, at) = (r.tensor(0)?, r.tensor(1)?);
                        let dim = r.int(0)?;
                        let at = r.b.unsqueeze(at, dim)?;
                        let y = r.b.gather(x, dim, at)?;
                        r.b.squeeze(y, dim)
                    }),
                )
            }
        }
    }
}

/// Running extremes.
impl Tensor {
    /// The largest element so far along a dim, whose size is known, and the last position of it; NaN from the first NaN on.
    #[track_caller]
    pub fn cummax(&self, dim: i64) -> (Tensor, Tensor) {
        self.running_extreme("cummax", Compare::Ge, dim)
    }

    /// The smallest element so far along a dim, whose size is known, and the last position of it; NaN from the first NaN on.
    #[track_caller]
    pub fn cummin(&self, dim: i64) -> (Tensor, Tensor) {
        self.running_extreme("cummin", Compare::Le, dim)
    }

    #[track_caller]
    fn running_extreme(&self, name: &'static str, f: Compare, dim: i64) -> (Tensor, Tensor) {
        let largest = f == Compare::Ge;
        let numbers = |positions: bool| [dim.into(), largest.into(), positions.into()];
        let build = Nodes(running_extreme);
        (
            recipe(name, &[self.into()], &numbers(false), build),
            recipe(name, &[self.into()], &numbers(true), build),
        )
    }

    /// `log(cumsum(exp(x)))` along a dim, whose size is known, without overflow on the way.
    #[track_caller]
    pub fn logcumsumexp(&self, dim: i64) -> Tensor {
        recipe(
            "logcumsumexp",
            &[self.into()],
            &[dim.into()],
            Nodes(logcumsumexp),
        )
    }
}

fn logsumexp(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, keepdim, dims) = (r.tensor(0)?, r.flag(0)?, r.ints(1));
    let out = match r.dtype(x) {
        dtype if dtype.is_float() => dtype,
        _ => DType::F32,
    };
    let x = r.b.cast(x, wide(out))?;
    let most = r.b.reduce(Reduce::Amax, x, &dims, true)?;
    // An infinity has no distance to itself.
    let infinite = r.b.unary(Unary::IsInf, most)?;
    let most = r.b.where_(infinite, 0.0, most)?;
    let below = r.b.sub(x, most)?;
    let e = r.b.exp(below)?;
    let sum = r.b.reduce(Reduce::Sum, e, &dims, true)?;
    let log = r.b.log(sum)?;
    let mut y = r.b.add(log, most)?;
    if !keepdim {
        let shape = r.shape(x);
        let mut gone = vec![dims.is_empty(); shape.len()];
        for dim in dims {
            if let Some(gone) = gone.get_mut(r.dim(dim, shape.len())?) {
                *gone = true;
            }
        }
        let kept = shape.into_iter().zip(gone).filter(|(_, gone)| !gone);
        let kept: Vec<Expr> = kept.map(|(extent, _)| extent).collect();
        y = r.b.view(y, &kept)?;
    }
    r.b.cast(y, out)
}

fn norm(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, p, keepdim, dims) = (r.tensor(0)?, r.float(0)?, r.flag(1)?, r.ints(2));
    let out = r.dtype(x);
    ensure!(
        out.is_float() && !out.is_narrow_float(),
        UnsupportedDType,
        "norm is of floats, not of {out}"
    );
    ensure!(!p.is_nan(), InvalidArgument, "norm: p is NaN");
    let x = r.b.cast(x, wide(out))?;
    let size = r.b.abs(x)?;
    let y = if p == 0.0 {
        let other = r.b.ne(size, 0.0)?;
        let other = r.b.cast(other, wide(out))?;
        r.b.sum(other, &dims, keepdim)?
    } else if p == 1.0 {
        r.b.sum(size, &dims, keepdim)?
    } else if p == 2.0 {
        let squares = r.b.mul(size, size)?;
        let sum = r.b.sum(squares, &dims, keepdim)?;
        r.b.sqrt(sum)?
    } else if p.is_infinite() {
        let extreme = if p > 0.0 { Reduce::Amax } else { Reduce::Amin };
        r.b.reduce(extreme, size, &dims, keepdim)?
    } else {
        let powers = r.b.pow(size, p)?;
        let sum = r.b.sum(powers, &dims, keepdim)?;
        r.b.pow(sum, 1.0 / p)?
    };
    r.b.cast(y, out)
}

/// Numbers: dim, keepdim, and k where it is not the median.
fn kth_position(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, keepdim) = (r.tensor(0)?, r.flag(1)?);
    let rank = r.shape(x).len();
    let dim = r.dim(r.int(0)?, rank)?;
    let at = i64::try_from(dim).unwrap_or(0);
    let extent = r.shape(x).get(dim).cloned().unwrap_or(Expr::ONE);
    let is_median = r.number(2).is_err();
    let position = match is_median {
        true => {
            ensure!(
                !extent.is_const(0),
                IndexOutOfRange,
                "median: of a dim without elements"
            );
            r.b.median_position(x, at)?
        }
        false => {
            let k = r.int(2)?;
            let most = extent.as_const();
            ensure!(
                k >= 1 && most.is_none_or(|most| k <= most),
                IndexOutOfRange,
                "kthvalue: number {k} of {extent}"
            );
            r.b.position_at(x, at, &Expr::constant(k - 1))?
        }
    };
    match keepdim || rank == 0 {
        true => Ok(position),
        false => r.b.squeeze(position, at),
    }
}

/// Numbers: dim, whether the largest, whether its position.
fn running_extreme(r: &mut Recording<'_>) -> Result<ValueId> {
    let (x, largest, positions) = (r.tensor(0)?, r.flag(1)?, r.flag(2)?);
    let dim = scanned(r, x)?;
    let (values, at) = r.b.running_extreme(x, dim, largest)?;
    Ok(if positions { at } else { values })
}

/// The dim of a scan, whose size is known.
fn scanned(r: &Recording<'_>, x: ValueId) -> Result<i64> {
    let shape = r.shape(x);
    let dim = r.dim(r.int(0)?, shape.len())?;
    if let Some(extent) = shape.get(dim) {
        r.known(extent, "a scan over a dim")?;
    }
    Ok(i64::try_from(dim).unwrap_or(0))
}

fn logcumsumexp(r: &mut Recording<'_>) -> Result<ValueId> {
    let x = r.tensor(0)?;
    let out = r.dtype(x);
    ensure!(
        out.is_float() && !out.is_narrow_float(),
        UnsupportedDType,
        "logcumsumexp is of floats, not of {out}"
    );
    let dim = scanned(r, x)?;
    let x = r.b.cast(x, wide(out))?;
    let y = r.b.logcumsumexp(x, dim)?;
    r.b.cast(y, out)
}
