//! Windows over neighbours: the largest and the average of each, and their gradients.
//!
//! A window is taken apart into its taps: tap `t` of all windows along a dimension is a slice whose step is that of the windows. Combining taps is elementwise work, so one kernel reads all of
//! them. Windows of many taps go one dimension at a time.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op, Scatter, Unary};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// More taps than these go one dimension at a time.
const TOGETHER: i64 = 27;
/// More taps of one dimension are not taken apart.
const MOST: i64 = 256;

/// Of so many elements a copy with a border costs more than a few kernels.
const LARGE: i64 = 1 << 16;
/// Runs of windows that are pooled by themselves, over all dimensions.
const MOST_PARTS: usize = 4;

/// The windows along one dimension of known size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    pub dim: usize,
    /// Elements of the dimension.
    pub length: i64,
    /// Windows along it.
    pub count: i64,
    /// Taps of a window.
    pub size: i64,
    /// From one window to the next.
    pub step: i64,
    /// From one tap to the next.
    pub dilation: i64,
    /// Elements before the first.
    pub padding: i64,
}

impl Windows {
    /// What all windows cover, from the first element of the padding on.
    pub(super) fn covered(&self) -> i64 {
        (self.count - 1) * self.step + (self.size - 1) * self.dilation + 1
    }

    /// Neighbours that have the same taps inside.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = vec![];
        for first in 0..self.count {
            let begin = first * self.step - self.padding;
            // The first tap at an element or behind it.
            let tap = |element: i64| {
                let distance = (element - begin).max(0) + self.dilation - 1;
                (distance / self.dilation).min(self.size)
            };
            let taps = tap(0)..tap(self.length);
            match runs.last_mut() {
                Some(run) if run.taps == taps => run.count += 1,
                _ => runs.push(Run {
                    first,
                    count: 1,
                    taps,
                }),
            }
        }
        runs
    }

    /// For each window the taps that count towards an average.
    fn divisors(&self, padded: bool) -> Vec<i64> {
        let divisor = |i: i64| {
            let begin = i * self.step - self.padding;
            let end = (begin + self.size).min(self.length + self.padding);
            if padded {
                end - begin
            } else {
                end.min(self.length) - begin.max(0)
            }
        };
        (0..self.count).map(divisor).collect()
    }
}

/// Windows side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    first: i64,
    count: i64,
    /// Those that are elements.
    taps: Range<i64>,
}

/// What divides the sum of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// The taps, those in the padding too.
    Padded,
    /// The taps that are elements.
    Elements,
    Number(i64),
}

impl Builder {
    #[track_caller]
    pub(super) fn windows_ok(&self, windows: &[Windows]) -> Result<()> {
        let bad = windows.iter().any(|w| {
            w.size < 1
                || w.step < 1
                || w.dilation < 1
                || w.count < 1
                || w.size > MOST
                || w.padding < 0
        });
        if bad || windows.is_empty() {
            let message = "pool: windows without elements, or of too many".to_owned();
            return self.fail(Code::InvalidArgument, message);
        }
        Ok(())
    }

    /// A dimension with a number around it, as far as windows reach.
    #[track_caller]
    pub(super) fn bordered(&mut self, x: ValueId, w: &Windows, number: Scalar) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let dim = i64::try_from(w.dim).unwrap_or(0);
        let mut parts = vec![];
        let after = w.covered() - w.padding - w.length;
        for (size, middle) in [(w.padding, true), (after, false)] {
            if size > 0 {
                let mut shape = ty.shape.clone();
                shape[w.dim] = Expr::constant(size);
                parts.push(self.full(number, shape, ty.dtype, ty.device)?);
            }
            if middle {
                parts.push(x);
            }
        }
        match parts.len() {
            1 => Ok(x),
            _ => self.cat(&parts, dim),
        }
    }

    #[track_caller]
    fn tap(&mut self, mut x: ValueId, windows: &[Windows], taps: &[i64]) -> Result<ValueId> {
        for (w, t) in windows.iter().zip(taps) {
            let start = t * w.dilation;
            let end = start + (w.count - 1) * w.step + 1;
            x = self.slice(x, i64::try_from(w.dim).unwrap_or(0), start, end, w.step)?;
        }
        Ok(x)
    }

    /// A number for each window of a dimension: `step * i + start`.
    #[track_caller]
    fn of_windows(&mut self, x: ValueId, w: &Windows, start: i64, step: i64) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let op = Op::Arange {
            start: Scalar::I(start),
            step: Scalar::I(step),
            shape: vec![Expr::constant(w.count)],
            dtype: DType::I64,
            device: ty.device,
        };
        let numbers = self.emit(op, &[])?;
        let mut shape = vec![Expr::ONE; ty.rank()];
        shape[w.dim] = Expr::constant(w.count);
        self.view(numbers, &shape)
    }

    #[track_caller]
    fn integers(&mut self, f: Binary, a: ValueId, b: i64) -> Result<ValueId> {
        let ty = self.ty(a).clone();
        let b = self.full(b, vec![], ty.dtype, ty.device)?;
        self.emit(Op::Binary(f), &[a, b])
    }

    /// The largest element of each window, NaN before all; and where it is, counted over the windowed dimensions: the first of equals, the last NaN.
    #[track_caller]
    pub fn max_pool(&mut self, x: ValueId, windows: &[Windows]) -> Result<[ValueId; 2]> {
        self.windows_ok(windows)?;
        // How far one element of each windowed dimension is from the next.
        let mut strides = vec![1; windows.len()];
        for i in (1..windows.len()).rev() {
            strides[i - 1] = strides[i] * windows[i].length;
        }
        if self.is_apart(x, windows) {
            self.max_pool_apart(x, windows, &strides, 0)
        } else {
            self.max_pool_at(x, windows, &strides, 0)
        }
    }

    /// Whether windows that reach over an end are pooled by themselves: with a border around it a large tensor is copied first.
    fn is_apart(&self, x: ValueId, windows: &[Windows]) -> bool {
        let elements = self.ty(x).numel().as_const();
        let taps: i64 = windows.iter().map(|w| w.size).product();
        if elements.is_none_or(|elements| elements < LARGE) || taps > TOGETHER {
            return false;
        }
        let runs: Vec<Vec<Run>> = windows.iter().map(Windows::runs).collect();
        let some = |run: &Run| run.taps.start < run.taps.end;
        let parts: usize = runs.iter().map(Vec::len).product();
        (2..=MOST_PARTS).contains(&parts) && runs.iter().flatten().all(some)
    }

    /// [`max_pool`](Self::max_pool), run by run.
    #[track_caller]
    fn max_pool_apart(
        &mut self,
        x: ValueId,
        windows: &[Windows],
        strides: &[i64],
        origin: i64,
    ) -> Result<[ValueId; 2]> {
        let reaches_over = |w: &Windows| w.padding > 0 || w.covered() > w.padding + w.length;
        let Some(i) = windows.iter().position(reaches_over) else {
            return self.max_pool_at(x, windows, strides, origin);
        };
        let w = windows[i];
        let dim = i64::try_from(w.dim).unwrap_or(0);
        // The longest run first: what is pooled near the end is computed where it belongs.
        let mut runs = w.runs();
        runs.sort_by_key(|run| Reverse(run.count));
        let mut parts = BTreeMap::new();
        for run in runs {
            let begin = run.first * w.step - w.padding + run.taps.start * w.dilation;
            let mut inside = windows.to_vec();
            inside[i] = Windows {
                count: run.count,
                size: run.taps.end - run.taps.start,
                padding: 0,
                ..w
            };
            inside[i].length = inside[i].covered();
            let part = self.slice(x, dim, begin, begin + inside[i].length, 1)?;
            let origin = origin + begin * strides[i];
            let pooled = self.max_pool_apart(part, &inside, strides, origin)?;
            parts.insert(run.first, pooled);
        }
        let parts: Vec<[ValueId; 2]> = parts.into_values().collect();
        if let [only] = parts[..] {
            return Ok(only);
        }
        let best: Vec<ValueId> = parts.iter().map(|part| part[0]).collect();
        let place: Vec<ValueId> = parts.iter().map(|part| part[1]).collect();
        Ok([self.cat(&best, dim)?, self.cat(&place, dim)?])
    }

    /// [`max_pool`](Self::max_pool), with a border as far as windows reach. Places are counted with these strides, from `origin` on.
    #[track_caller]
    fn max_pool_at(
        &mut self,
        x: ValueId,
        windows: &[Windows],
        strides: &[i64],
        origin: i64,
    ) -> Result<[ValueId; 2]> {
        let ty = self.ty(x).clone();
        let lowest = lowest(ty.dtype);
        // The first tap that is an element, for windows that hold nothing larger than nothing.
        let (mut first, mut corner) = (None, None);
        for (w, &stride) in windows.iter().zip(strides) {
            let begin = self.of_windows(x, w, -w.padding, w.step)?;
            let missing = self.emit(Op::Unary(Unary::Neg), &[begin])?;
            let missing = self.integers(Binary::Maximum, missing, 0)?;
            let skipped = self.integers(Binary::Add, missing, w.dilation - 1)?;
            let skipped = self.integers(Binary::DivFloor, skipped, w.dilation)?;
            let skipped = self.integers(Binary::Mul, skipped, w.dilation * stride)?;
            let begin = self.integers(Binary::Mul, begin, stride)?;
            first = Some(self.sum_of(first, skipped)?);
            corner = Some(self.sum_of(corner, begin)?);
        }
        let (Some(first), Some(corner)) = (first, corner) else {
            return self.fail(Code::Internal, "pool: no windows".to_owned());
        };
        let mut best = x;
        let mut place: Option<ValueId> = None;
        let all: i64 = windows.iter().map(|w| w.size).product();
        let mut rounds: Vec<Vec<usize>> = match all <= TOGETHER {
            true => vec![(0..windows.len()).collect()],
            false => (0..windows.len()).rev().map(|i| vec![i]).collect(),
        };
        let end = rounds.len();
        for (round, dims) in rounds.drain(..).enumerate() {
            let part: Vec<Windows> = dims.iter().map(|&i| windows[i]).collect();
            for w in &part {
                best = self.bordered(best, w, lowest)?;
                if let Some(p) = place {
                    place = Some(self.bordered(p, w, Scalar::I(0))?);
                }
            }
            let (mut chosen, mut at) = (None, None);
            for taps in all_taps(&part) {
                let here = self.tap(best, &part, &taps)?;
                let offset = dims
                    .iter()
                    .zip(&taps)
                    .map(|(&i, t)| t * windows[i].dilation * strides[i]);
                let offset: i64 = offset.sum();
                let own = match place {
                    Some(p) => {
                        let p = self.tap(p, &part, &taps)?;
                        self.integers(Binary::Add, p, offset)?
                    }
                    None => self.full(offset, vec![], DType::I64, ty.device)?,
                };
                let (old, old_at) = match (chosen, at) {
                    (Some(old), Some(at)) => (old, at),
                    _ => {
                        let none = self.full(lowest, vec![], ty.dtype, ty.device)?;
                        // Only the last round's windows all lie where the elements are.
                        let start = match round + 1 == end {
                            true => first,
                            false => self.full(0, vec![], DType::I64, ty.device)?,
                        };
                        (none, start)
                    }
                };
                let mut better = self.emit(Op::Compare(Compare::Gt), &[here, old])?;
                if ty.dtype.is_float() {
                    let nan = self.emit(Op::Unary(Unary::IsNan), &[here])?;
                    better = self.emit(Op::Binary(Binary::BitwiseOr), &[better, nan])?;
                }
                chosen = Some(self.emit(Op::Where, &[better, here, old])?);
                at = Some(self.emit(Op::Where, &[better, own, old_at])?);
            }
            let (Some(chosen), Some(at)) = (chosen, at) else {
                return self.fail(Code::Internal, "pool: no taps".to_owned());
            };
            (best, place) = (chosen, Some(at));
        }
        let Some(place) = place else {
            return self.fail(Code::Internal, "pool: no rounds".to_owned());
        };
        let mut place = self.emit(Op::Binary(Binary::Add), &[place, corner])?;
        if origin != 0 {
            place = self.integers(Binary::Add, place, origin)?;
        }
        let shape = self.ty(best).shape.clone();
        let place = self.expand(place, &shape)?;
        Ok([best, place])
    }

    /// The gradient of [`max_pool`](Self::max_pool): what comes for a window goes to its largest element. `dims` is how many windowed dimensions there are, at the end.
    #[track_caller]
    pub fn max_pool_backward(
        &mut self,
        grad: ValueId,
        shape: &[Expr],
        place: ValueId,
        dims: usize,
    ) -> Result<ValueId> {
        self.placed(Scatter::Sum, grad, shape, place, dims)
    }

    /// Zeros in `shape`, but for the elements of `x` where `place` says, counted over the last `dims` dimensions: [`max_pool`](Self::max_pool) undone. Of several for one place the last stays.
    #[track_caller]
    pub fn max_unpool(
        &mut self,
        x: ValueId,
        shape: &[Expr],
        place: ValueId,
        dims: usize,
    ) -> Result<ValueId> {
        self.placed(Scatter::Set, x, shape, place, dims)
    }

    #[track_caller]
    fn placed(
        &mut self,
        op: Scatter,
        x: ValueId,
        shape: &[Expr],
        place: ValueId,
        dims: usize,
    ) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let kept = shape.len().saturating_sub(dims);
        let flat = |shape: &[Expr]| {
            let mut flat = shape[..kept].to_vec();
            flat.push(shape[kept..].iter().cloned().product());
            flat
        };
        let zeros = self.full(0, flat(shape), ty.dtype, ty.device)?;
        let x = self.view(x, &flat(&ty.shape))?;
        let place = self.view(place, &flat(&ty.shape))?;
        let along = i64::try_from(kept).unwrap_or(0);
        let y = self.scatter(op, zeros, along, place, x)?;
        self.view(y, shape)
    }

    #[track_caller]
    fn sum_of(&mut self, a: Option<ValueId>, b: ValueId) -> Result<ValueId> {
        match a {
            None => Ok(b),
            Some(a) => self.emit(Op::Binary(Binary::Add), &[a, b]),
        }
    }

    /// The average of each window.
    #[track_caller]
    pub fn avg_pool(
        &mut self,
        x: ValueId,
        windows: &[Windows],
        divisor: Divisor,
    ) -> Result<ValueId> {
        self.windows_ok(windows)?;
        let out = self.ty(x).dtype;
        let mut sum = self.cast(x, wide(out))?;
        let all: i64 = windows.iter().map(|w| w.size).product();
        let rounds: Vec<&[Windows]> = match all <= TOGETHER {
            true => vec![windows],
            false => windows.chunks(1).rev().collect(),
        };
        for part in rounds {
            let mut x = sum;
            for w in part {
                x = self.bordered(x, w, Scalar::I(0))?;
            }
            let mut total = None;
            for taps in all_taps(part) {
                let tap = self.tap(x, part, &taps)?;
                total = Some(self.sum_of(total, tap)?);
            }
            sum = total.unwrap_or(x);
        }
        let y = self.divided(sum, windows, divisor)?;
        self.cast(y, out)
    }

    /// Sums of windows, or what comes for them, divided.
    #[track_caller]
    fn divided(&mut self, x: ValueId, windows: &[Windows], divisor: Divisor) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let op = match ty.dtype.is_float() {
            true => Binary::Div,
            false => Binary::DivTrunc,
        };
        let padded = match divisor {
            Divisor::Number(n) => {
                let n = self.full(n, vec![], ty.dtype, ty.device)?;
                return self.emit(Op::Binary(op), &[x, n]);
            }
            Divisor::Padded => true,
            Divisor::Elements => false,
        };
        let mut product = None;
        let mut number = 1;
        for w in windows {
            let taps = w.divisors(padded);
            if taps.iter().all(|n| *n == taps[0]) {
                number *= taps[0];
                continue;
            }
            let begin = self.of_windows(x, w, -w.padding, w.step)?;
            let mut last = self.integers(Binary::Add, begin, w.size)?;
            last = self.integers(Binary::Minimum, last, w.length + w.padding)?;
            let mut from = begin;
            if !padded {
                last = self.integers(Binary::Minimum, last, w.length)?;
                from = self.integers(Binary::Maximum, from, 0)?;
            }
            let taps = self.emit(Op::Binary(Binary::Sub), &[last, from])?;
            product = Some(match product {
                None => taps,
                Some(p) => self.emit(Op::Binary(Binary::Mul), &[p, taps])?,
            });
        }
        let by = match product {
            None => self.full(number, vec![], ty.dtype, ty.device)?,
            Some(p) => {
                let p = self.integers(Binary::Mul, p, number)?;
                self.cast(p, ty.dtype)?
            }
        };
        self.emit(Op::Binary(op), &[x, by])
    }

    /// The gradient of [`avg_pool`](Self::avg_pool): every element gets its share of the windows that hold it. `windows` are those of the forward.
    #[track_caller]
    pub fn avg_pool_backward(
        &mut self,
        grad: ValueId,
        windows: &[Windows],
        divisor: Divisor,
    ) -> Result<ValueId> {
        self.windows_ok(windows)?;
        let out = self.ty(grad).dtype;
        let grad = self.cast(grad, wide(out))?;
        let mut x = self.divided(grad, windows, divisor)?;
        for w in windows.iter().rev() {
            // Windows as far apart as elements, with room for those that only begin or end here: a sum over neighbours then reaches every window of an element.
            let reach = w.size - 1;
            let spread = reach + (w.count - 1) * w.step + 1;
            let ty = self.ty(x).clone();
            let mut shape = ty.shape.clone();
            shape[w.dim] = Expr::constant(spread.max(w.padding + w.length + reach));
            let dim = i64::try_from(w.dim).unwrap_or(0);
            let zeros = self.full(0, shape, ty.dtype, ty.device)?;
            let apart = self.slice_scatter(zeros, x, dim, reach, spread, w.step)?;
            let mut total = None;
            for t in 0..w.size {
                let start = w.padding + t;
                let tap = self.slice(apart, dim, start, start + w.length, 1)?;
                total = Some(self.sum_of(total, tap)?);
            }
            x = total.unwrap_or(apart);
        }
        self.cast(x, out)
    }
}

/// Every tap of the windows together, the last dimension fastest.
fn all_taps(windows: &[Windows]) -> Vec<Vec<i64>> {
    windows.iter().fold(vec![vec![]], |taps, w| {
        let next = |tap: Vec<i64>| {
            (0..w.size).map(move |t| tap.iter().copied().chain([t]).collect::<Vec<i64>>())
        };
        taps.into_iter().flat_map(next).collect()
    })
}

/// The dtype that sums of windows are kept in.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

fn lowest(dtype: DType) -> Scalar {
    if dtype.is_float() {
        Scalar::F(f64::NEG_INFINITY)
    } else if dtype.is_signed() {
        Scalar::I(i64::MIN >> (64 - dtype.bits()))
    } else {
        Scalar::I(0)
    }
}
