//! Transposed convolutions, and gradients of convolutions with respect to their input, as convolutions.
//!
//! ```text
//!   o + padding = q stride + r        output position o is number q of its phase r; of the kernel it meets k = r + j stride,
//!                                     and of the input q - j: a convolution of its own for every phase
//!
//!   w [c, o, kernel]  ──one look-up──▶ [c, o, phases, taps] ──▶ [phases o, c, taps]
//!   x [n, c, size]    ──one convolution──▶ [n, phases o, q] ──▶ [n, o, q phases] ──slice──▶ [n, o, out]
//! ```
//!
//! With a stride of 1 there is one phase, and the kernel may be dilated. A kernel shorter than the stride leaves phases out, which are zero.

use super::{Axis, known};
use crate::builder::{Border, Builder};
use crate::ir::ValueId;
use crate::op::{Accepts, Op};
use crate::rules::accepts;
use crate::tensor::HostTensor;
use oxyfuel_base::{DType, Expr, Result, Scalar};

/// One dim of the convolution that stands for the transposed one.
struct Phased<'a> {
    axis: &'a Axis,
    /// Taps that an output position meets, and how far apart they are.
    taps: i64,
    dilation: i64,
    /// Phases that have taps.
    phases: i64,
    /// Zeros on both sides of the input.
    padding: i64,
    /// Positions before the first one of the result.
    before: i64,
    /// Positions that are computed, all phases counted.
    computed: Expr,
}

impl<'a> Phased<'a> {
    /// `None` where phases of a dilated kernel would have taps at uneven distances.
    fn of(axis: &'a Axis) -> Option<Self> {
        let Axis {
            kernel,
            stride,
            dilation,
            ..
        } = *axis;
        if stride > 1 && dilation > 1 && kernel > 1 {
            return None;
        }
        let taps = (kernel + stride - 1) / stride;
        let reach = dilation * (taps - 1);
        // The last position of the result, counted from the last of the input; a constant, whatever the size.
        let past = axis.out.clone() - axis.size.clone() * stride + (axis.padding - 1 + stride);
        let past = past.as_const()?.div_euclid(stride);
        let padding = (reach - axis.padding / stride).max(past).max(0);
        let first = reach - padding;
        Some(Self {
            axis,
            taps,
            dilation: if stride == 1 { dilation } else { 1 },
            phases: kernel.min(stride),
            padding,
            before: axis.padding - first * stride,
            computed: (axis.size.clone() + (2 * padding - reach)) * stride,
        })
    }
}

/// Whether an input has one position and the result nothing but elements of the kernel.
fn is_of_a_point(axis: &Axis) -> bool {
    let dense = axis.dilation == 1 || axis.kernel == 1;
    let end = axis.out.as_const().map(|out| out + axis.padding);
    dense && axis.size.is_const(1) && end.is_some_and(|end| end <= axis.kernel)
}

/// The kernel's positions by phase, and of each phase the last tap first; one behind the kernel where a phase lacks a tap.
fn order_of_taps(phased: &[Phased<'_>]) -> Vec<i64> {
    let behind: i64 = phased.iter().map(|a| a.axis.kernel).product();
    // Along the dims so far: every phase, and of each every tap.
    let mut order = vec![vec![Some(0)]];
    for a in phased {
        let axis = a.axis;
        let position = |phase: i64, tap: i64| {
            Some(phase + (a.taps - 1 - tap) * axis.stride).filter(|&k| k < axis.kernel)
        };
        let phases = order.iter().flat_map(|taps| {
            (0..a.phases).map(|phase| {
                let along = taps.iter().flat_map(|&so_far| {
                    (0..a.taps).map(move |tap| Some(so_far? * axis.kernel + position(phase, tap)?))
                });
                along.collect()
            })
        });
        order = phases.collect();
    }
    order
        .into_iter()
        .flatten()
        .map(|k| k.unwrap_or(behind))
        .collect()
}

impl Builder {
    /// The transposed convolution by one convolution; `None` where that does not compute it.
    pub(super) fn by_phases(
        &mut self,
        x: ValueId,
        weight: ValueId,
        axes: &[Axis],
        groups: i64,
        outputs: i64,
    ) -> Result<Option<ValueId>> {
        if !accepts(Accepts::Float, self.ty(x).dtype) {
            return Ok(None);
        }
        if groups == 1 && axes.iter().all(is_of_a_point) {
            return self.product_of_points(x, weight, axes).map(Some);
        }
        let phased: Option<Vec<Phased<'_>>> = axes.iter().map(Phased::of).collect();
        let Some(phased) = phased else {
            return Ok(None);
        };
        let kernels = self.kernels_of_phases(weight, &phased, groups, outputs)?;
        let numbers = |of: fn(&Phased<'_>) -> i64| -> Vec<usize> {
            phased
                .iter()
                .filter_map(|a| of(a).try_into().ok())
                .collect()
        };
        let op = Op::Convolution {
            stride: vec![1; axes.len()],
            padding: numbers(|a| a.padding),
            dilation: numbers(|a| a.dilation),
            groups: usize::try_from(groups).unwrap_or(1),
        };
        let y = self.emit(op, &[x, kernels])?;
        self.phases_in_turns(y, &phased, groups, outputs).map(Some)
    }

    /// Images of one position are rows of a product whose results are whole kernels.
    fn product_of_points(&mut self, x: ValueId, weight: ValueId, axes: &[Axis]) -> Result<ValueId> {
        let [rows, columns] = [x, weight].map(|value| self.ty(value).shape.clone());
        let wide = columns[1..].iter().fold(Expr::ONE, |n, d| n * d.clone());
        let points = self.view(x, &rows[..2])?;
        let kernels = self.view(weight, &[columns[0].clone(), wide])?;
        let y = self.mm(points, kernels)?;
        let mut shape = vec![rows[0].clone()];
        shape.extend_from_slice(&columns[1..]);
        let mut y = self.view(y, &shape)?;
        for (d, axis) in axes.iter().enumerate() {
            if !axis.out.is_const(axis.kernel) {
                let end = axis.out.clone() + axis.padding;
                y = self.slice(y, d as i64 + 2, axis.padding, end, 1)?;
            }
        }
        Ok(y)
    }

    /// [c, o, kernel..] as [groups phases.. o, c of one group, taps..], the taps in the order in which a convolution meets them.
    fn kernels_of_phases(
        &mut self,
        weight: ValueId,
        phased: &[Phased<'_>],
        groups: i64,
        outputs: i64,
    ) -> Result<ValueId> {
        let inputs = known("a number of channels", &self.ty(weight).shape[0])?;
        let (inputs, outputs) = (inputs / groups, outputs / groups);
        let count = |of: fn(&Phased<'_>) -> i64| -> i64 { phased.iter().map(of).product() };
        let (phases, taps) = (count(|a| a.phases), count(|a| a.taps));
        let positions = count(|a| a.axis.kernel);
        let mut w = self.view(
            weight,
            &[(groups * inputs).into(), outputs.into(), positions.into()],
        )?;
        let order = order_of_taps(phased);
        if !order.iter().copied().eq(0..positions) {
            if order.contains(&positions) {
                let nothing = Border {
                    dim: 2,
                    before: Expr::ZERO,
                    after: Expr::ONE,
                };
                w = self.pad_constant(w, &[nothing], Scalar::I(0))?;
            }
            let device = self.ty(w).device;
            let order = HostTensor::from_i64(DType::I64, &[phases * taps], &order)?;
            let order = self.table("taps", order, device)?;
            w = self.index_select(w, 2, order)?;
        }
        let split = [groups, inputs, outputs, phases, taps].map(Expr::from);
        w = self.view(w, &split)?;
        w = self.permute(w, &[0, 3, 2, 1, 4])?;
        let mut shape: Vec<Expr> = vec![(groups * phases * outputs).into(), inputs.into()];
        shape.extend(phased.iter().map(|a| Expr::from(a.taps)));
        self.view(w, &shape)
    }

    /// [n, groups phases.. o, q..] as [n, groups o, out..]: the phases take turns.
    fn phases_in_turns(
        &mut self,
        y: ValueId,
        phased: &[Phased<'_>],
        groups: i64,
        outputs: i64,
    ) -> Result<ValueId> {
        let dims = phased.len();
        let mut y = y;
        if phased.iter().any(|a| a.axis.stride > 1) {
            let shape = self.ty(y).shape.clone();
            let mut split: Vec<Expr> = vec![shape[0].clone(), groups.into()];
            split.extend(phased.iter().map(|a| Expr::from(a.phases)));
            split.push((outputs / groups).into());
            split.extend(shape[2..].iter().cloned());
            y = self.view(y, &split)?;
            let nothing = phased.iter().enumerate().map(|(d, a)| Border {
                dim: d + 2,
                before: Expr::ZERO,
                after: (a.axis.stride - a.phases).into(),
            });
            let nothing: Vec<Border> = nothing.collect();
            y = self.pad_constant(y, &nothing, Scalar::I(0))?;
            let turns = (0..dims).flat_map(|d| [3 + dims + d, 2 + d]);
            let order = [0, 1, 2 + dims].into_iter().chain(turns);
            let order: Vec<i64> = order.map(|d| d as i64).collect();
            y = self.permute(y, &order)?;
            let mut whole: Vec<Expr> = vec![shape[0].clone(), outputs.into()];
            whole.extend(phased.iter().map(|a| a.computed.clone()));
            y = self.view(y, &whole)?;
        }
        for (d, a) in phased.iter().enumerate() {
            if a.before != 0 || a.computed != a.axis.out {
                let end = a.axis.out.clone() + a.before;
                y = self.slice(y, d as i64 + 2, a.before, end, 1)?;
            }
        }
        Ok(y)
    }
}
