//! `conv_panels`: a convolution of images whose channels lie last, with a weight that was brought into the order of its kernel ahead of time.
//!
//! ```text
//!   weight [n, c, kh, kw] ─▶ [kh, kw, c, n] ──────────────────▶ [positions * c, n] ─▶ panels [n/w, positions * c, w]
//!                            or G w Gᵀ of it, [4, 4, c, n] ───┘
//! ```
//!
//! With `winograd` the sixteen positions are those of F(2x2, 3x3): four results of a kernel of 3 x 3 from sixteen products instead of thirty-six. `G` has one row for each of the four points, and the
//! weight can be had back: its first and last rows are the weight's, its second less its third the middle one.

use crate::builder::Builder;
use crate::convolution::{Convolution, LARGEST, result};
use crate::ir::{TensorType, ValueId};
use crate::op::Op;
use oxyfuel_base::{Expr, Result, ensure};

/// The numbers of [`Op::ConvPanels`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvPanels {
    /// In one group.
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
                groups: 1,
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
        self.kernel == [3, 3] && self.how.stride == [1, 1] && self.how.dilation == [1, 1]
    }

    /// The type of the result.
    pub(crate) fn result(&self, x: &TensorType, panels: &TensorType) -> Result<TensorType> {
        ensure!(
            x.rank() == 4 && panels.rank() == 3,
            RankMismatch,
            "conv_panels: images of {} dims and panels of {}, where 4 and 3 are read",
            x.rank(),
            panels.rank()
        );
        ensure!(
            !self.winograd || self.can_be_winograd(),
            InvalidArgument,
            "conv_panels: winograd is for kernels of 3 x 3 that move by one"
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
        let sizes = [0, 2].map(|d| panels.shape[d].as_const());
        let holds = |count: i64, width: i64| width > 0 && (self.n + width - 1) / width == count;
        let deep = c.clone() * self.positions();
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
        let images = TensorType::new(x.dtype, vec![b.clone(), c.clone(), h, w], x.device);
        let weight = [
            Expr::constant(self.n),
            c,
            self.kernel[0].into(),
            self.kernel[1].into(),
        ];
        let weight = TensorType::new(x.dtype, weight.to_vec(), x.device);
        let out = result(&images, &weight, &self.how)?.shape;
        let shape = vec![b, out[2].clone(), out[3].clone(), out[1].clone()];
        Ok(TensorType::new(x.dtype, shape, x.device))
    }
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

    fn of_points(&mut self, points: ValueId, dim: i64) -> Result<ValueId> {
        let row = |b: &mut Self, i: i64| b.slice(points, dim, i, i + 1, 1);
        let (first, last) = (row(self, 0)?, row(self, 3)?);
        let (sum, difference) = (row(self, 1)?, row(self, 2)?);
        let middle = self.sub(sum, difference)?;
        self.cat(&[first, middle, last], dim)
    }

    /// A convolution of images [b, h, w, c] with a weight in panels.
    #[track_caller]
    pub fn conv_panels(
        &mut self,
        x: ValueId,
        panels: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        self.emit(how.op(), &[x, panels])
    }

    /// The same with this vocabulary's other ops: the weight that the panels were made of.
    pub fn composed_conv_panels(
        &mut self,
        x: ValueId,
        panels: ValueId,
        how: &ConvPanels,
    ) -> Result<ValueId> {
        let shape = self.ty(panels).shape.clone();
        let turned = self.permute(panels, &[1, 0, 2])?;
        let all = shape[0].clone() * shape[2].clone();
        let whole = self.view(turned, &[shape[1].clone(), all])?;
        let whole = self.slice(whole, 1, 0, how.n, 1)?;
        let [high, wide] = if how.winograd {
            [POINTS; 2]
        } else {
            how.kernel
        };
        let channels = self.ty(x).shape[3].clone();
        let split = [high.into(), wide.into(), channels, how.n.into()];
        let mut weight = self.view(whole, &split)?;
        if how.winograd {
            for dim in [0, 1] {
                weight = self.of_points(weight, dim)?;
            }
        }
        let weight = self.permute(weight, &[3, 2, 0, 1])?;
        let images = self.permute(x, &[0, 3, 1, 2])?;
        let out = self.composed_convolution(images, weight, &how.how)?;
        self.permute(out, &[0, 2, 3, 1])
    }
}
