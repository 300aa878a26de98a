//! Windows that share a dimension out evenly: window `i` of `to` over `from` elements begins at `floor(i * from / to)` and ends before `ceil((i + 1) * from / to)`.
//!
//! The windows that hold element `j` are, by the same formula, window `j` of `from` over `to`: the gradient of a sum over windows is a sum over windows.

use super::Builder;
use crate::ir::ValueId;
use crate::op::{Binary, Compare, Op, Reduce, Unary};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

/// More elements of one window are not taken apart.
const MOST: i64 = 64;

/// The windows along one dimension of known size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shared {
    dim: usize,
    from: i64,
    to: i64,
}

impl Shared {
    fn begin(&self, i: i64) -> i64 {
        i * self.from / self.to
    }

    fn size(&self, i: i64) -> i64 {
        ((i + 1) * self.from + self.to - 1) / self.to - self.begin(i)
    }

    fn sizes(&self) -> (i64, i64) {
        let sizes = (0..self.to).map(|i| self.size(i));
        sizes.fold((i64::MAX, 0), |(least, most), n| {
            (least.min(n), most.max(n))
        })
    }

    fn dim(&self) -> i64 {
        i64::try_from(self.dim).unwrap_or(0)
    }
}

impl Builder {
    /// The windows over the last dimensions of `x` that give it so many elements there.
    #[track_caller]
    fn shared(&self, x: ValueId, to: &[i64]) -> Result<Vec<Shared>> {
        let shape = &self.ty(x).shape;
        let first = shape.len().checked_sub(to.len());
        let known = first.and_then(|first| {
            let sizes = shape[first..].iter().map(Expr::as_const);
            let all = sizes.zip(to).enumerate().map(|(i, (from, &to))| {
                let from =
                    from.filter(|&n| (1..1 << 31).contains(&n) && (1..1 << 31).contains(&to))?;
                let dim = first + i;
                Some(Shared { dim, from, to })
            });
            all.collect::<Option<Vec<Shared>>>()
        });
        match known {
            Some(windows) if !windows.is_empty() => Ok(windows),
            _ => self.fail(
                Code::InvalidArgument,
                "adaptive pool: a dimension that is empty or of unknown size".to_owned(),
            ),
        }
    }

    /// A count for each window, shaped to meet `x`.
    #[track_caller]
    fn count_windows(&mut self, x: ValueId, w: &Shared) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let op = Op::Arange {
            start: Scalar::I(0),
            step: Scalar::I(1),
            shape: vec![Expr::constant(w.to)],
            dtype: DType::I64,
            device: ty.device,
        };
        self.emit(op, &[])
    }

    /// Where each window begins and how many elements it has, along one dimension.
    #[track_caller]
    fn begins_and_sizes(&mut self, x: ValueId, w: &Shared) -> Result<[ValueId; 2]> {
        let at = self.count_windows(x, w)?;
        let scaled = self.mul(at, w.from)?;
        let begin = self.div_by(scaled, w.to)?;
        let next = self.add(scaled, w.from + w.to - 1)?;
        let end = self.div_by(next, w.to)?;
        let size = self.emit(Op::Binary(Binary::Sub), &[end, begin])?;
        Ok([begin, size])
    }

    #[track_caller]
    fn div_by(&mut self, x: ValueId, by: i64) -> Result<ValueId> {
        let by = self.full(by, vec![], DType::I64, self.ty(x).device)?;
        self.emit(Op::Binary(Binary::DivFloor), &[x, by])
    }

    /// Numbers along the windows' dimension, to meet a tensor of this rank.
    #[track_caller]
    fn along(&mut self, numbers: ValueId, w: &Shared, rank: usize) -> Result<ValueId> {
        let mut shape = vec![Expr::ONE; rank];
        shape[w.dim] = Expr::constant(w.to);
        self.view(numbers, &shape)
    }

    #[track_caller]
    fn few_taps(&self, w: &Shared) -> Result<(i64, i64)> {
        let sizes = w.sizes();
        if sizes.1 > MOST {
            let message = format!("adaptive pool: windows of {} elements", sizes.1);
            return self.fail(Code::InvalidArgument, message);
        }
        Ok(sizes)
    }

    /// The element `tap` of each window (the last of the dimension where there is none), its position, and whether the window has it; `None` when all do.
    #[track_caller]
    fn shared_tap(
        &mut self,
        [begin, size]: [ValueId; 2],
        w: &Shared,
        (tap, least): (i64, i64),
        rank: usize,
    ) -> Result<(ValueId, Option<ValueId>)> {
        let device = self.ty(begin).device;
        let index = self.add(begin, tap)?;
        if tap < least {
            return Ok((index, None));
        }
        let last = self.full(w.from - 1, vec![], DType::I64, device)?;
        let index = self.emit(Op::Binary(Binary::Minimum), &[index, last])?;
        let here = self.full(tap, vec![], DType::I64, device)?;
        let has = self.emit(Op::Compare(Compare::Gt), &[size, here])?;
        Ok((index, Some(self.along(has, w, rank)?)))
    }

    /// The sum of each window along one dimension.
    #[track_caller]
    fn shared_sum(&mut self, x: ValueId, w: &Shared) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        if w.from % w.to == 0 {
            let mut shape = ty.shape.clone();
            shape[w.dim] = Expr::constant(w.to);
            shape.insert(w.dim + 1, Expr::constant(w.from / w.to));
            let apart = self.view(x, &shape)?;
            let op = Op::Reduce {
                op: Reduce::Sum,
                dims: vec![w.dim + 1],
                keepdim: false,
            };
            return self.emit(op, &[apart]);
        }
        let (least, most) = self.few_taps(w)?;
        let windows = self.begins_and_sizes(x, w)?;
        let zero = self.full(0, vec![], ty.dtype, ty.device)?;
        let mut total = None;
        for tap in 0..most {
            let (index, has) = self.shared_tap(windows, w, (tap, least), ty.rank())?;
            let mut here = self.index_select(x, w.dim(), index)?;
            if let Some(has) = has {
                here = self.emit(Op::Where, &[has, here, zero])?;
            }
            total = Some(match total {
                None => here,
                Some(sum) => self.emit(Op::Binary(Binary::Add), &[sum, here])?,
            });
        }
        Ok(total.unwrap_or(x))
    }

    /// What has an element a window, divided by the windows' sizes.
    #[track_caller]
    fn by_sizes(&mut self, x: ValueId, windows: &[Shared]) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let (mut number, mut product) = (1, None);
        for w in windows {
            let (least, most) = w.sizes();
            if least == most {
                number *= most;
                continue;
            }
            let [_, size] = self.begins_and_sizes(x, w)?;
            let size = self.along(size, w, ty.rank())?;
            product = Some(match product {
                None => size,
                Some(p) => self.emit(Op::Binary(Binary::Mul), &[p, size])?,
            });
        }
        let by = match product {
            None => self.full(number, vec![], ty.dtype, ty.device)?,
            Some(p) => {
                let p = self.mul(p, number)?;
                self.cast(p, ty.dtype)?
            }
        };
        self.emit(Op::Binary(Binary::Div), &[x, by])
    }

    #[track_caller]
    fn floats(&self, x: ValueId) -> Result<DType> {
        match self.ty(x).dtype {
            DType::F16 | DType::BF16 | DType::F32 => Ok(DType::F32),
            DType::F64 => Ok(DType::F64),
            other => self.fail(
                Code::UnsupportedDType,
                format!("adaptive pool: averages of {other}"),
            ),
        }
    }

    /// The average of each window; `to` is how many there are along each of the last dimensions.
    #[track_caller]
    pub fn adaptive_avg_pool(&mut self, x: ValueId, to: &[i64]) -> Result<ValueId> {
        let windows = self.shared(x, to)?;
        let out = self.ty(x).dtype;
        let wide = self.floats(x)?;
        let mut y = self.cast(x, wide)?;
        for w in windows.iter().rev() {
            y = self.shared_sum(y, w)?;
        }
        y = self.by_sizes(y, &windows)?;
        self.cast(y, out)
    }

    /// The gradient of [`adaptive_avg_pool`](Self::adaptive_avg_pool): `from` is how many elements the forward had along each of the last dimensions.
    #[track_caller]
    pub fn adaptive_avg_pool_backward(&mut self, grad: ValueId, from: &[i64]) -> Result<ValueId> {
        let back = self.shared(grad, from)?;
        let forward: Vec<Shared> = back
            .iter()
            .map(|w| Shared {
                dim: w.dim,
                from: w.to,
                to: w.from,
            })
            .collect();
        let out = self.ty(grad).dtype;
        let wide = self.floats(grad)?;
        let grad = self.cast(grad, wide)?;
        let mut y = self.by_sizes(grad, &forward)?;
        for w in back.iter().rev() {
            y = self.shared_sum(y, w)?;
        }
        self.cast(y, out)
    }

    /// The largest element of each window, NaN before all; and where it is, counted over the windowed dimensions: the first of equals, the last NaN.
    #[track_caller]
    pub fn adaptive_max_pool(&mut self, x: ValueId, to: &[i64]) -> Result<[ValueId; 2]> {
        let windows = self.shared(x, to)?;
        let rank = self.ty(x).rank();
        let float = self.ty(x).dtype.is_float();
        let (mut best, mut place, mut stride) = (x, None, 1);
        for w in windows.iter().rev() {
            let (least, most) = self.few_taps(w)?;
            let ends = self.begins_and_sizes(x, w)?;
            let mut chosen: Option<(ValueId, ValueId)> = None;
            for tap in 0..most {
                let (index, has) = self.shared_tap(ends, w, (tap, least), rank)?;
                let here = self.index_select(best, w.dim(), index)?;
                let own = self.mul(index, stride)?;
                let mut own = self.along(own, w, rank)?;
                if let Some(place) = place {
                    let inner = self.index_select(place, w.dim(), index)?;
                    own = self.emit(Op::Binary(Binary::Add), &[inner, own])?;
                }
                let Some((old, at)) = chosen else {
                    chosen = Some((here, own));
                    continue;
                };
                let mut better = self.emit(Op::Compare(Compare::Gt), &[here, old])?;
                if float {
                    let nan = self.emit(Op::Unary(Unary::IsNan), &[here])?;
                    better = self.emit(Op::Binary(Binary::BitwiseOr), &[better, nan])?;
                }
                if let Some(has) = has {
                    better = self.emit(Op::Binary(Binary::BitwiseAnd), &[better, has])?;
                }
                let new = self.emit(Op::Where, &[better, here, old])?;
                let at = self.emit(Op::Where, &[better, own, at])?;
                chosen = Some((new, at));
            }
            let Some((new, at)) = chosen else {
                return self.fail(Code::Internal, "adaptive pool: no taps".to_owned());
            };
            let shape = self.ty(new).shape.clone();
            place = Some(self.expand(at, &shape)?);
            best = new;
            stride *= w.from;
        }
        match place {
            Some(place) => Ok([best, place]),
            None => self.fail(Code::Internal, "adaptive pool: no windows".to_owned()),
        }
    }
}
