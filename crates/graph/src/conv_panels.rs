//! `conv_panels`: a convolution of images whose channels lie last, with a weight in the order of its kernel.
//!
//! ```text
//!   weight [n, c, kh, kw] ─▶ [kh, kw, c, n] ──────────────────▶ [positions * c, n] ─▶ panels [n/w, positions * c, w]
//!                            or G w Gᵀ of it, [4, 4, c, n] ───┘
//! ```
//!
//! Its second operand is the panels, or the weight itself, which the kernel then brings into that order at every call. In several groups it is always the weight.
//!
//! With `winograd` the sixteen positions are the points of F(2x2, 3x3), four along each dim: four results of a kernel of 3 x 3 from sixteen products instead of thirty-six.
//!
//! ```text
//!   G w  = [w0,  (w0 + w1 + w2) / 2,  (w0 - w1 + w2) / 2,  w2]      of a weight's lines, and then of its columns
//!   Bᵀ d = [d0 - d2,  d1 + d2,  d2 - d1,  d1 - d3]                  of four neighbouring pixels
//!   Aᵀ m = [m0 + m1 + m2,  m1 - m2 - m3]                            of the products at the points: two neighbouring results
//! ```

use crate::builder::Builder;
use crate::convolution::{Convolution, LARGEST, result};
use crate::ir::{TensorType, ValueId};
use crate::op::Op;
use oxyfuel_base::{DType, Expr, Result, ensure};

/// The numbers of [`Op::ConvPanels`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvPanels {
    /// In one group, or with a weight as it is.
    pub how: Convolution,
    pub kernel: [i64; 2],
    /// Output channels.
    pub n: i64,
    pub winograd: bool,
}

/// Points of F(2x2, 3x3) along a dim.
pub const POINTS: i64 = 4;

impl ConvPanels {
    /// `None` for another op.
    pub fn of(op: &Op) -> Option<Self> {
        let Op::ConvPanels {
            kernel,
            stride,
            padding,
            dilation,
            groups,
            n,
            winograd,
        } = op
        else {
            return None;
        };
        let number = |&n: &usize| i64::try_from(n).unwrap_or(i64::MAX);
        let numbers = |list: &[usize]| list.iter().map(number).collect::<Vec<i64>>();
        Some(Self {
            how: Convolution {
                stride: numbers(stride),
                padding: numbers(padding),
                dilation: numbers(dilation),
                groups: number(groups),
            },
            kernel: numbers(kernel).try_into().ok()?,
            n: number(n),
            winograd: *winograd,
        })
    }

    pub fn op(&self) -> Op {
        let number = |&n: &i64| usize::try_from(n).unwrap_or(0);
        let numbers = |list: &[i64]| list.iter().map(number).collect::<Vec<usize>>();
        Op::ConvPanels {
            kernel: numbers(&self.kernel),
            stride: numbers(&self.how.stride),
            padding: numbers(&self.how.padding),
            dilation: numbers(&self.how.dilation),
            groups: number(&self.how.groups),
            n: number(&self.n),
            winograd: self.winograd,
        }
    }

    /// Along the depth of the panels, beside the channels.
    pub fn positions(&self) -> i64 {
        if self.winograd {
            POINTS * POINTS
        } else {
            self.kernel[0].saturating_mul(self.kernel[1])
        }
    }

    /// Whether F(2x2, 3x3) computes it.
    pub fn can_be_winograd(&self) -> bool {
        self.kernel == [3, 3]
            && self.how.stride == [1, 1]
            && self.how.dilation == [1, 1]
            && self.how.groups == 1
    }

    /// The type of the result.
    pub(crate) fn result(&self, x: &TensorType, panels: &TensorType) -> Result<TensorType> {
        ensure!(
            x.rank() == 4 && matches!(panels.rank(), 3 | 4),
            RankMismatch,
            "conv_panels: images of {} dims with panels, or a weight, of {}, where 4 with 3, or 4, are read",
            x.rank(),
            panels.rank()
        );
        ensure!(
            !self.winograd || self.can_be_winograd(),
            InvalidArgument,
            "conv_panels: winograd is for kernels of 3 x 3 that move by one, in one group"
        );
        let groups = self.how.groups;
        ensure!(
            groups == 1 || (groups > 1 && panels.rank() == 4),
            InvalidArgument,
            "conv_panels: {groups} groups with panels, which are of one group"
        );
        let largest = self.n.max(self.positions());
        ensure!(
            largest <= LARGEST,
            InvalidArgument,
            "conv_panels: a kernel of {} positions and {} channels",
            self.positions(),
            self.n
        );
        let [b, h, w, c] = [0, 1, 2, 3].map(|d| x.shape[d].clone());
        let of_group = match groups {
            1 => c.clone(),
            _ => panels.shape[1].clone(),
        };
        let weight = [
            Expr::constant(self.n),
            of_group,
            self.kernel[0].into(),
            self.kernel[1].into(),
        ];
        if panels.rank() == 4 {
            ensure!(
                panels.shape == weight,
                ShapeMismatch,
                "conv_panels: a weight of sizes {:?}, where {:?} are read",
                panels.shape,
                weight
            );
        } else {
            self.fits(&c, panels)?;
        }
        let images = TensorType::new(x.dtype, vec![b.clone(), c, h, w], x.device);
        let weight = TensorType::new(x.dtype, weight.to_vec(), x.device);
        let out = result(&images, &weight, &self.how)?.shape;
        let shape = vec![b, out[2].clone(), out[3].clone(), out[1].clone()];
        Ok(TensorType::new(x.dtype, shape, x.device))
    }

    /// Whether panels hold a weight for so many channels.
    fn fits(&self, channels: &Expr, panels: &TensorType) -> Result<()> {
        let sizes = [0, 2].map(|d| panels.shape[d].as_const());
        let holds = |count: i64, width: i64| width > 0 && (self.n + width - 1) / width == count;
        let deep = channels.clone() * self.positions();
        ensure!(
            panels.shape[1] == deep
                && matches!(sizes, [Some(count), Some(width)] if holds(count, width)),
            ShapeMismatch,
            "conv_panels: {} panels of {} rows and {} columns do not hold {deep} rows and {} columns",
            panels.shape[0],
            panels.shape[1],
            panels.shape[2],
            self.n
        );
        Ok(())
    }
}

/// Lines of columns.
pub(crate) fn turned<T: Copy, const N: usize>(columns: [[T; N]; 4]) -> [[T; 4]; N] {
    std::array::from_fn(|row| columns.map(|column| column[row]))
}

impl Builder {
    /// The panels of `width` columns that `conv_panels` reads, of a weight [n, c, kh, kw].
    #[track_caller]
    pub fn conv_weight_panels(
        &mut self,
        weight: ValueId,
        width: i64,
        winograd: bool,
    ) -> Result<ValueId> {
        ensure!(
            self.ty(weight).rank() == 4,
            RankMismatch,
            "the panels of a weight of {} dims: it has 4",
            self.ty(weight).rank()
        );
        let mut whole = self.permute(weight, &[2, 3, 1, 0])?;
        if winograd {
            for dim in [0, 1] {
                whole = self.points_of(whole, dim)?;
            }
        }
        let shape = self.ty(whole).shape.clone();
        let deep = shape[..3].iter().cloned().product::<Expr>();
        let matrix = self.view(whole, &[deep, shape[3].clone()])?;
        self.panels(matrix, width)
    }

    /// `G` along a dim of three: `[w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2]`.
    fn points_of(&mut self, weight: ValueId, dim: i64) -> Result<ValueId> {
        let row = |b: &mut Self, i: i64| b.slice(weight, dim, i, i + 1, 1);
        let [first, middle, last] = [row(self, 0)?, row(self, 1)?, row(self, 2)?];
        let ends = self.add(first, last)?;
        let sum = self.add(ends, middle)?;
        let difference = self.sub(ends, middle)?;
        let [sum, difference] = [self.mul(sum, 0.5)?, self.mul(difference, 0.5)?];
        self.cat(&[first, sum, difference, last], dim)
    }

    /// A convolution of images [b, h, w, c] with a weight in panels, or [n, c, kh, kw].
    #[track_caller]
    pub fn conv_panels(
        &mut self,
        x: ValueId,
        panels: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        self.emit(how.op(), &[x, panels])
    }

    /// The same with this vocabulary's other ops.
    pub fn composed_conv_panels(
        &mut self,
        x: ValueId,
        panels: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        if how.how.groups > 1 {
            let images = self.permute(x, &[0, 3, 1, 2])?;
            let out = self.composed_convolution(images, panels, &how.how)?;
            return self.permute(out, &[0, 2, 3, 1]);
        }
        if self.ty(panels).rank() == 4 {
            return self.composed_with_weight(x, panels, how);
        }
        let shape = self.ty(panels).shape.clone();
        let turned = self.permute(panels, &[1, 0, 2])?;
        let all = shape[0].clone() * shape[2].clone();
        let whole = self.view(turned, &[shape[1].clone(), all])?;
        let whole = self.slice(whole, 1, 0, how.n, 1)?;
        if how.winograd {
            return self.composed_winograd(x, whole, how);
        }
        let channels = self.ty(x).shape[3].clone();
        let [high, wide] = how.kernel;
        let split = [high.into(), wide.into(), channels, how.n.into()];
        let weight = self.view(whole, &split)?;
        let weight = self.permute(weight, &[3, 2, 0, 1])?;
        let images = self.permute(x, &[0, 3, 1, 2])?;
        let out = self.composed_convolution(images, weight, &how.how)?;
        self.permute(out, &[0, 2, 3, 1])
    }

    /// Points are not rounded to narrow types, of which a weight may be.
    fn composed_with_weight(
        &mut self,
        x: ValueId,
        weight: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        let dtype = self.ty(x).dtype;
        let narrow = how.winograd && dtype.size() < 4;
        let wide = |b: &mut Self, value: ValueId| match narrow {
            true => b.cast(value, DType::F32),
            false => Ok(value),
        };
        let [x, weight] = [wide(self, x)?, wide(self, weight)?];
        let panels = self.conv_weight_panels(weight, how.n, how.winograd)?;
        let out = self.composed_conv_panels(x, panels, how)?;
        match narrow {
            true => self.cast(out, dtype),
            false => Ok(out),
        }
    }

    /// A product for each point, of what the tiles are there; `points` is [16 * c, n].
    fn composed_winograd(
        &mut self,
        x: ValueId,
        points: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        let shape = self.ty(x).shape.clone();
        let (count, channels) = (shape[0].clone(), shape[3].clone());
        let mut x = x;
        let mut tiles = Vec::new();
        let mut outs = Vec::new();
        for (d, padding) in [1, 2].into_iter().zip(&how.how.padding) {
            let out = shape[d].clone() + (2 * padding - 2);
            let half = (out.clone() + 1).floordiv(2);
            let all = half.clone() * 2 + 2;
            let after = all - shape[d].clone() - *padding;
            x = self.with_zeros(x, d, [Expr::from(*padding), after])?;
            tiles.push(half);
            outs.push(out);
        }
        let ends: Vec<Expr> = tiles.iter().map(|half| half.clone() * 2).collect();
        let pixel = |b: &mut Self, row: i64, col: i64| -> Result<ValueId> {
            let lines = b.slice(x, 1, row, ends[0].clone() + row, 2)?;
            b.slice(lines, 2, col, ends[1].clone() + col, 2)
        };
        let along = |b: &mut Self, d: [ValueId; 4]| -> Result<[ValueId; 4]> {
            let [first, sum] = [b.sub(d[0], d[2])?, b.add(d[1], d[2])?];
            Ok([first, sum, b.sub(d[2], d[1])?, b.sub(d[1], d[3])?])
        };
        let mut columns = [[x; 4]; 4];
        for (col, column) in columns.iter_mut().enumerate() {
            let mut d = [x; 4];
            for (row, d) in d.iter_mut().enumerate() {
                *d = pixel(self, row as i64, col as i64)?;
            }
            *column = along(self, d)?;
        }
        let number = count.clone() * tiles[0].clone() * tiles[1].clone();
        let mut all = Vec::new();
        for line in turned(columns) {
            for value in along(self, line)? {
                all.push(self.view(value, &[Expr::ONE, number.clone(), channels.clone()])?);
            }
        }
        let a = self.cat(&all, 0)?;
        let b = self.view(points, &[(POINTS * POINTS).into(), channels, how.n.into()])?;
        let products = self.bmm(a, b)?;
        let back = |b: &mut Self, m: [ValueId; 4]| -> Result<[ValueId; 2]> {
            let (sum, difference) = (b.add(m[0], m[1])?, b.sub(m[1], m[2])?);
            Ok([b.add(sum, m[2])?, b.sub(difference, m[3])?])
        };
        let mut columns = [[x; 2]; 4];
        for (col, column) in columns.iter_mut().enumerate() {
            let mut m = [x; 4];
            for (row, m) in m.iter_mut().enumerate() {
                let at = row as i64 * POINTS + col as i64;
                *m = self.slice(products, 0, at, at + 1, 1)?;
            }
            *column = back(self, m)?;
        }
        let apart = [
            count.clone(),
            tiles[0].clone(),
            Expr::ONE,
            tiles[1].clone(),
            Expr::ONE,
            how.n.into(),
        ];
        let mut lines = Vec::new();
        for line in turned(columns) {
            let pair = back(self, line)?;
            let [left, right] = [self.view(pair[0], &apart)?, self.view(pair[1], &apart)?];
            lines.push(self.cat(&[left, right], 4)?);
        }
        let y = self.cat(&lines, 2)?;
        let whole = [count, ends[0].clone(), ends[1].clone(), how.n.into()];
        let y = self.view(y, &whole)?;
        let y = self.slice(y, 1, 0, outs[0].clone(), 1)?;
        self.slice(y, 2, 0, outs[1].clone(), 1)
    }

    /// Zeros before and after a dim.
    fn with_zeros(&mut self, x: ValueId, dim: usize, sizes: [Expr; 2]) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let zeros = |b: &mut Self, size: Expr| {
            let mut shape = ty.shape.clone();
            shape[dim] = size;
            b.full(0.0, shape, ty.dtype, ty.device)
        };
        let [before, after] = sizes;
        let mut parts = Vec::new();
        if !before.is_const(0) {
            parts.push(zeros(self, before)?);
        }
        parts.push(x);
        if !after.is_const(0) {
            parts.push(zeros(self, after)?);
        }
        match parts[..] {
            [one] => Ok(one),
            _ => self.cat(&parts, dim as i64),
        }
    }
}
