//! Windows over the last dimensions side by side, and back: `im2col` and `col2im`.

use super::{Builder, Meet, Windows};
use crate::ir::{Device, ValueId};
use crate::op::{Binary, Op};
use oxyfuel_base::{Code, DType, Expr, Result, Scalar};

impl Builder {
    #[track_caller]
    fn counted(&mut self, count: i64, step: i64, device: Device) -> Result<ValueId> {
        let op = Op::Arange {
            start: Scalar::I(0),
            step: Scalar::I(step),
            shape: vec![Expr::constant(count)],
            dtype: DType::I64,
            device,
        };
        self.emit(op, &[])
    }

    /// Where tap `t` of window `i` is, for all taps and windows of one dimension, counted from the first element of the padding.
    #[track_caller]
    fn tap_places(&mut self, w: &Windows, device: Device) -> Result<ValueId> {
        let taps = self.counted(w.size, w.dilation, device)?;
        let taps = self.view(taps, &[Expr::constant(w.size), Expr::ONE])?;
        let windows = self.counted(w.count, w.step, device)?;
        self.emit(Op::Binary(Binary::Add), &[taps, windows])
    }

    #[track_caller]
    fn channels_before(&self, rank: usize, windows: &[Windows]) -> Result<usize> {
        let first = windows.first().map_or(0, |w| w.dim);
        let last = windows.iter().enumerate().all(|(i, w)| w.dim == first + i);
        if first == 0 || !last || first + windows.len() != rank {
            let message = "im2col: windows lie over the last dimensions, behind the channels";
            return self.fail(Code::InvalidArgument, message.to_owned());
        }
        Ok(first)
    }

    /// A column a window: `[.., channels, ..sizes]` to `[.., channels * taps, windows]`, zeros where a window reaches beyond. The windows lie over the last dimensions.
    #[track_caller]
    pub fn im2col(&mut self, x: ValueId, windows: &[Windows]) -> Result<ValueId> {
        self.windows_ok(windows)?;
        let ty = self.ty(x).clone();
        let kept = self.channels_before(ty.rank(), windows)?;
        let (mut y, mut apart) = (x, ty.shape[..kept].to_vec());
        for w in windows {
            y = self.bordered(y, w, Scalar::I(0))?;
            let places = self.tap_places(w, ty.device)?;
            let places = self.view(places, &[Expr::constant(w.size * w.count)])?;
            y = self.index_select(y, i64::try_from(w.dim).unwrap_or(0), places)?;
            apart.extend([Expr::constant(w.size), Expr::constant(w.count)]);
        }
        let y = self.view(y, &apart)?;
        let pairs = (kept..apart.len()).step_by(2);
        let dims: Vec<usize> = (0..kept)
            .chain(pairs.clone())
            .chain(pairs.map(|d| d + 1))
            .collect();
        let y = self.emit(Op::Permute { dims }, &[y])?;
        let mut shape = ty.shape[..kept].to_vec();
        let taps: i64 = windows.iter().map(|w| w.size).product();
        shape[kept - 1] = shape[kept - 1].clone() * Expr::constant(taps);
        shape.push(Expr::constant(windows.iter().map(|w| w.count).product()));
        self.view(y, &shape)
    }

    /// What columns of windows add up to: the gradient of [`im2col`](Self::im2col) into `shape`, whose windows these are.
    #[track_caller]
    pub fn col2im(&mut self, x: ValueId, shape: &[Expr], windows: &[Windows]) -> Result<ValueId> {
        self.windows_ok(windows)?;
        let device = self.ty(x).device;
        let dtype = self.ty(x).dtype;
        let kept = self.channels_before(shape.len(), windows)?;
        // The places of all taps of all windows in the padded image laid end to end, in the order of a column's taps and then of windows.
        let n = windows.len();
        let padded: Vec<i64> = windows
            .iter()
            .map(|w| w.covered().max(w.padding + w.length))
            .collect();
        let mut place: Option<ValueId> = None;
        let mut stride = 1;
        for (i, w) in windows.iter().enumerate().rev() {
            let here = self.tap_places(w, device)?;
            let here = self.mul(here, stride)?;
            let mut apart = vec![Expr::ONE; 2 * n];
            apart[i] = Expr::constant(w.size);
            apart[n + i] = Expr::constant(w.count);
            let here = self.view(here, &apart)?;
            place = Some(match place {
                None => here,
                Some(p) => self.emit(Op::Binary(Binary::Add), &[p, here])?,
            });
            stride *= padded[i];
        }
        let Some(place) = place else {
            return self.fail(Code::Internal, "col2im: no windows".to_owned());
        };
        let count: i64 = windows.iter().map(|w| w.size * w.count).product();
        let place = self.view(place, &[Expr::constant(count)])?;
        let flat = |size: i64| {
            let mut flat = shape[..kept].to_vec();
            flat.push(Expr::constant(size));
            flat
        };
        let src = self.view(x, &flat(count))?;
        let zeros = self.full(0, flat(stride), dtype, device)?;
        let along = i64::try_from(kept).unwrap_or(0);
        let sum = self.index_reduce(Meet::Sum, zeros, along, place, src, true)?;
        let mut image = shape[..kept].to_vec();
        image.extend(padded.iter().map(|&p| Expr::constant(p)));
        let mut y = self.view(sum, &image)?;
        for w in windows {
            let dim = i64::try_from(w.dim).unwrap_or(0);
            y = self.slice(y, dim, w.padding, w.padding + w.length, 1)?;
        }
        Ok(y)
    }
}
