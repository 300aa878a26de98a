//! `conv_panels`: a convolution of lines, images or volumes whose channels lie last, with a weight in the order of its kernel.
//!
//! ```text
//!   weight [n, c, kh, kw] ─▶ [kh, kw, c, n] ──────────────────▶ [positions * c, n] ─▶ panels [n/w, positions * c, w]
//!                            or G w Gᵀ of it, [4, 4, c, n] ───┘
//! ```
//!
//! Its second operand is the panels, or the weight itself, which the kernel then brings into that order at every call.
//!
//! In groups, c is the channels of one: each column has rows for those of its own group, so that columns of different groups in a panel multiply the same row with different channels.
//!
//! What it says of images holds for the others as well ([`ConvPanels::flat`]): a line [b, l, c] is an image of one column, and each plane of a volume's result is made of an image that has the channels of all planes that it reads, one plane after the other.
//!
//! ```text
//!   lines    [b, l, c]          with [n, c, k]             ─▶  images [b, l, 1, c]             with [n, c, k, 1]
//!   volumes  [b, d, h, w, c]    with [n, c, kd, kh, kw]    ─▶  images [b * out, h, w, kd * c]  with [n, kd * c, kh, kw]
//! ```
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
use oxyfuel_base::{DType, Expr, Result, ensure, err};

/// The numbers of [`Op::ConvPanels`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvPanels {
    pub how: Convolution,
    /// Along the dims of lines, images or volumes: one to three numbers.
    pub kernel: Vec<i64>,
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
            kernel: match kernel.len() {
                1..=3 => numbers(kernel),
                _ => return None,
            },
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
            return POINTS * POINTS;
        }
        let planes = self.kernel.len().saturating_sub(2);
        self.kernel[planes..]
            .iter()
            .fold(1, |all, &n| all.saturating_mul(n))
    }

    /// Planes of a volume that a plane of its result is made of; one for everything else.
    pub fn taps(&self) -> i64 {
        match self.kernel[..] {
            [taps, _, _] => taps,
            _ => 1,
        }
    }

    /// The same computed on images.
    pub fn flat(&self) -> Self {
        let of_images = |numbers: &[i64], single: i64| match *numbers {
            [along] => vec![along, single],
            [.., high, wide] => vec![high, wide],
            [] => vec![],
        };
        Self {
            how: Convolution {
                stride: of_images(&self.how.stride, 1),
                padding: of_images(&self.how.padding, 0),
                dilation: of_images(&self.how.dilation, 1),
                groups: self.how.groups,
            },
            kernel: of_images(&self.kernel, 1),
            ..self.clone()
        }
    }

    /// Whether F(2x2, 3x3) computes it.
    pub fn can_be_winograd(&self) -> bool {
        let flat = self.flat();
        flat.kernel == [3, 3]
            && flat.how.stride == [1, 1]
            && flat.how.dilation == [1, 1]
            && flat.how.groups == 1
    }

    /// Whether the second operand, for images of so many channels, is the weight itself.
    pub fn is_whole<T: PartialEq + From<i64>>(&self, channels: &T, operand: &[T]) -> bool {
        let rank = self.kernel.len() + 2;
        let sizes = self.kernel.iter().map(|&n| T::from(n));
        operand.len() == rank
            && operand[0] == T::from(self.n)
            && (self.how.groups > 1 || operand[1] == *channels)
            && operand[2..].iter().eq(sizes.collect::<Vec<T>>().iter())
    }

    /// The type of the result.
    pub(crate) fn result(&self, x: &TensorType, panels: &TensorType) -> Result<TensorType> {
        let rank = self.kernel.len() + 2;
        ensure!(
            x.rank() == rank && (panels.rank() == 3 || panels.rank() == rank),
            RankMismatch,
            "conv_panels: images of {} dims with panels, or a weight, of {}, where {rank} with 3, or {rank}, are read",
            x.rank(),
            panels.rank()
        );
        let numbers = [&self.how.stride, &self.how.padding, &self.how.dilation];
        ensure!(
            numbers.iter().all(|list| list.len() == self.kernel.len()),
            InvalidArgument,
            "conv_panels: stride, padding and dilation have a number for each of the {} dims",
            self.kernel.len()
        );
        ensure!(
            !self.winograd || self.can_be_winograd(),
            InvalidArgument,
            "conv_panels: winograd is for kernels of 3 x 3 that move by one, in one group"
        );
        let groups = self.how.groups;
        ensure!(
            groups == 1 || (groups > 1 && rank < 5),
            InvalidArgument,
            "conv_panels: {groups} groups of volumes, which are read in one"
        );
        let largest = self.n.max(self.positions());
        ensure!(
            largest <= LARGEST,
            InvalidArgument,
            "conv_panels: a kernel of {} positions and {} channels",
            self.positions(),
            self.n
        );
        let c = x.shape[rank - 1].clone();
        let whole = self.is_whole(&c, &panels.shape);
        let of_group = match (groups, c.as_const()) {
            (1, _) => c.clone(),
            (_, Some(c)) if !whole => Expr::constant(c / groups),
            _ => panels.shape[1].clone(),
        };
        let mut weight = vec![Expr::constant(self.n), of_group];
        weight.extend(self.kernel.iter().map(|&n| Expr::from(n)));
        if panels.rank() > 3 {
            ensure!(
                panels.shape == weight,
                ShapeMismatch,
                "conv_panels: a weight of sizes {:?}, where {:?} are read",
                panels.shape,
                weight
            );
        } else if !whole {
            self.fits(&c, panels)?;
        }
        let first = first_of(&x.shape);
        let images = TensorType::new(x.dtype, first, x.device);
        let weight = TensorType::new(x.dtype, weight, x.device);
        let out = result(&images, &weight, &self.how)?.shape;
        let dims = last(rank);
        let shape = dims.into_iter().map(|d| out[d].clone()).collect();
        Ok(TensorType::new(x.dtype, shape, x.device))
    }

    /// Whether panels hold a weight for so many channels.
    fn fits(&self, channels: &Expr, panels: &TensorType) -> Result<()> {
        let sizes = [0, 2].map(|d| panels.shape[d].as_const());
        let holds = |count: i64, width: i64| width > 0 && (self.n + width - 1) / width == count;
        let rows = match (self.how.groups, channels.as_const()) {
            (1, _) => channels.clone() * self.taps(),
            (groups, Some(channels)) => Expr::constant(channels / groups),
            (groups, None) => {
                return Err(err!(
                    ShapeMismatch,
                    "conv_panels: panels for {channels} channels in {groups} groups, a number that is not known"
                ));
            }
        };
        let deep = rows * self.positions();
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

/// `permute` with these dims puts channels last, and first again.
pub fn last(rank: usize) -> Vec<usize> {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

pub fn first(rank: usize) -> Vec<usize> {
    [0, rank - 1].into_iter().chain(1..rank - 1).collect()
}

fn first_of(shape: &[Expr]) -> Vec<Expr> {
    let dims = first(shape.len());
    dims.into_iter().map(|d| shape[d].clone()).collect()
}

/// Lines of columns.
pub(crate) fn turned<T: Copy, const N: usize>(columns: [[T; N]; 4]) -> [[T; 4]; N] {
    std::array::from_fn(|row| columns.map(|column| column[row]))
}

impl Builder {
    /// The panels of `width` columns that `conv_panels` reads, of a weight [n, c / groups, kernel..].
    #[track_caller]
    pub fn conv_weight_panels(
        &mut self,
        weight: ValueId,
        width: i64,
        winograd: bool,
    ) -> Result<ValueId> {
        let order: &[i64] = match self.ty(weight).rank() {
            3 => &[2, 1, 0],
            4 => &[2, 3, 1, 0],
            5 => &[3, 4, 2, 1, 0],
            rank => {
                return Err(err!(
                    RankMismatch,
                    "the panels of a weight of {rank} dims: it has 3 to 5"
                ));
            }
        };
        let mut whole = self.permute(weight, order)?;
        if winograd {
            for dim in [0, 1] {
                whole = self.points_of(whole, dim)?;
            }
        }
        let shape = self.ty(whole).shape.clone();
        let rows = shape.len() - 1;
        let deep = shape[..rows].iter().cloned().product::<Expr>();
        let matrix = self.view(whole, &[deep, shape[rows].clone()])?;
        self.panels(matrix, width)
    }

    /// The weight that panels in groups are of.
    fn weight_of_groups(
        &mut self,
        panels: ValueId,
        channels: i64,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        let of = self.ty(panels).shape.clone();
        let (inputs, positions) = (channels / how.how.groups, how.positions());
        let turned = self.permute(panels, &[0, 2, 1])?;
        let count = of[0].clone() * of[2].clone();
        let rows = self.view(turned, &[count, positions.into(), inputs.into()])?;
        let rows = self.slice(rows, 0, 0, how.n, 1)?;
        let weight = self.permute(rows, &[0, 2, 1])?;
        let mut shape: Vec<Expr> = [how.n, inputs].map(Expr::constant).to_vec();
        shape.extend(how.kernel.iter().map(|&n| Expr::constant(n)));
        self.view(weight, &shape)
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

    /// A convolution of lines, images or volumes [b, size.., c] with a weight in panels, or [n, c, kernel..].
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
        let of_x = self.ty(x).shape.clone();
        let rank = of_x.len();
        let whole = how.is_whole(&of_x[rank - 1], &self.ty(panels).shape);
        if how.how.groups > 1 {
            let images = self.emit(Op::Permute { dims: first(rank) }, &[x])?;
            let weight = match (whole, of_x[rank - 1].as_const()) {
                (false, Some(channels)) => self.weight_of_groups(panels, channels, how)?,
                _ => panels,
            };
            let out = self.composed_convolution(images, weight, &how.how)?;
            return self.emit(Op::Permute { dims: last(rank) }, &[out]);
        }
        if rank != 4 {
            let out = how.result(self.ty(x), self.ty(panels))?.shape;
            let images = self.flat_images(x, how, &out)?;
            let panels = match whole {
                true => self.flat_weight(panels)?,
                false => panels,
            };
            let flat = self.composed_conv_panels(images, panels, &how.flat())?;
            return self.view(flat, &out);
        }
        if whole {
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
        let [high, wide] = [how.kernel[0], how.kernel[1]];
        let split = [high.into(), wide.into(), channels, how.n.into()];
        let weight = self.view(whole, &split)?;
        let weight = self.permute(weight, &[3, 2, 0, 1])?;
        let images = self.permute(x, &[0, 3, 1, 2])?;
        let out = self.composed_convolution(images, weight, &how.how)?;
        self.permute(out, &[0, 2, 3, 1])
    }

    /// Lines and volumes as images; `out` is the shape of the result.
    fn flat_images(&mut self, x: ValueId, how: &ConvPanels, out: &[Expr]) -> Result<ValueId> {
        let shape = self.ty(x).shape.clone();
        if let [b, l, c] = &shape[..] {
            return self.view(x, &[b.clone(), l.clone(), Expr::ONE, c.clone()]);
        }
        let [stride, padding, dilation] =
            [&how.how.stride, &how.how.padding, &how.how.dilation].map(|numbers| numbers[0]);
        let x = self.with_zeros(x, 1, [Expr::from(padding), Expr::from(padding)])?;
        let mut planes = Vec::new();
        for tap in 0..how.taps() {
            let begin = tap * dilation;
            let end = (out[1].clone() - 1) * stride + (begin + 1);
            planes.push(self.slice(x, 1, begin, end, stride)?);
        }
        let all = self.cat(&planes, 4)?;
        let images = shape[0].clone() * out[1].clone();
        let channels = shape[4].clone() * how.taps();
        self.view(all, &[images, shape[2].clone(), shape[3].clone(), channels])
    }

    /// The weight of lines or volumes as that of images.
    fn flat_weight(&mut self, weight: ValueId) -> Result<ValueId> {
        let shape = self.ty(weight).shape.clone();
        if let [n, c, k] = &shape[..] {
            return self.view(weight, &[n.clone(), c.clone(), k.clone(), Expr::ONE]);
        }
        let planes = self.permute(weight, &[0, 2, 1, 3, 4])?;
        let channels = shape[1].clone() * shape[2].clone();
        self.view(
            planes,
            &[
                shape[0].clone(),
                channels,
                shape[3].clone(),
                shape[4].clone(),
            ],
        )
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
