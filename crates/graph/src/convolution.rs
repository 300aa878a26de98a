//! Convolutions: the op, its geometry, and what stands for it where there is no kernel of its own, windows and a product.
//!
//! ```text
//!   x [n, g, c, size..] ──windows──▶ [g, c, kernel.., n, out..] ──┐
//!   w [g, o, c, kernel..] ────────────────────────────────────────┴─ product over c and kernel ─▶ [g, o, n, out..] ─▶ [n, g o, out..]
//! ```
//!
//! A window is a choice of positions along each dim: kernel position `k` at output position `o` reads `o stride + k dilation - padding`; transposed, the position
//! `p` with `o = p stride + k dilation - padding`, if there is one. What lies outside of the input is zero. The gradients are the same windows: that of the input
//! a transposed convolution of the result's, that of the weight the product of the result's gradient with the windows. A transposed convolution is an ordinary one wherever that computes it ([`transposed`]).

mod transposed;

use crate::builder::Builder;
use crate::ir::{TensorType, ValueId};
use crate::op::{Accepts, Binary, Compare, Op};
use crate::rules::accepts;
use oxyfuel_base::{DType, Expr, Result, Scalar, ensure, err};

/// How a kernel moves: one number a dim, or one for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub stride: Vec<i64>,
    /// Zeros before and after each dim.
    pub padding: Vec<i64>,
    pub dilation: Vec<i64>,
    pub groups: i64,
}

impl Default for Convolution {
    fn default() -> Self {
        Self {
            stride: vec![1],
            padding: vec![0],
            dilation: vec![1],
            groups: 1,
        }
    }
}

/// One dim that the kernel moves along.
#[derive(Clone, Debug)]
struct Axis {
    size: Expr,
    out: Expr,
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
}

/// Of sizes and steps, so that no product of two overflows.
pub(crate) const LARGEST: i64 = i32::MAX as i64;

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Transposed,
}

/// Which gradients of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    pub input: ValueId,
    pub weight: ValueId,
    pub bias: ValueId,
}

impl Builder {
    /// `x` [n, c, size..] with `weight` [out, c / groups, kernel..] and a `bias` [out]; `x` may lack its first dim.
    #[track_caller]
    pub fn convolution(
        &mut self,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        how: &Convolution,
    ) -> Result<ValueId> {
        let (x, single) = self.batched(x, weight)?;
        let (of_x, of_weight) = (self.ty(x), self.ty(weight));
        let axes = axes(of_x, of_weight, how)?;
        let outputs = channels(of_x, of_weight, how.groups, Direction::Forward)?.outputs;
        let dims = of_x.rank() - 2;
        if !accepts(Accepts::Float, of_x.dtype) {
            let y = self.composed_convolution(x, weight, how)?;
            return self.finished(y, bias, outputs, single);
        }
        if how.groups == 1 && axes.iter().all(Axis::is_whole) {
            let y = self.product_of_images(x, weight)?;
            return self.finished(y, bias, outputs, single);
        }
        let numbers = |what: &str, given: &[i64]| -> Result<Vec<usize>> {
            let all = spread(what, given, dims, 0)?;
            Ok(all.into_iter().filter_map(|n| n.try_into().ok()).collect())
        };
        let op = Op::Convolution {
            stride: numbers("stride", &how.stride)?,
            padding: numbers("padding", &how.padding)?,
            dilation: numbers("dilation", &how.dilation)?,
            groups: usize::try_from(how.groups).unwrap_or(1),
        };
        let y = self.emit(op, &[x, weight])?;
        self.finished(y, bias, outputs, single)
    }

    /// Kernels as large as the images: each image is one row of a product.
    fn product_of_images(&mut self, x: ValueId, weight: ValueId) -> Result<ValueId> {
        let [rows, columns] = [x, weight].map(|value| self.ty(value).shape.clone());
        let deep = columns[1..].iter().fold(Expr::ONE, |n, d| n * d.clone());
        let images = self.view(x, &[rows[0].clone(), deep.clone()])?;
        let kernels = self.view(weight, &[columns[0].clone(), deep])?;
        let kernels = self.transpose(kernels, 0, 1)?;
        let y = self.mm(images, kernels)?;
        let mut shape = vec![Expr::ONE; rows.len()];
        shape[..2].clone_from_slice(&[rows[0].clone(), columns[0].clone()]);
        self.view(y, &shape)
    }

    /// The op as windows and a product, for machines and sizes without a kernel of its own.
    pub fn composed_convolution(
        &mut self,
        x: ValueId,
        weight: ValueId,
        how: &Convolution,
    ) -> Result<ValueId> {
        let axes = axes(self.ty(x), self.ty(weight), how)?;
        let channels = channels(self.ty(x), self.ty(weight), how.groups, Direction::Forward)?;
        let windows = self.windows(x, &axes, how.groups, Direction::Forward)?;
        let factor = self.rows(weight, how.groups, channels.outputs)?;
        self.product(factor, windows, x, &axes, channels.outputs)
    }

    /// The transposed convolution: `weight` is [c, out / groups, kernel..]; the result has `more` positions at the end of each dim than the least that fits.
    #[track_caller]
    pub fn conv_transpose(
        &mut self,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
        how: &Convolution,
        more: &[i64],
    ) -> Result<ValueId> {
        let (x, single) = self.batched(x, weight)?;
        let dims = self.ty(x).rank() - 2;
        let more = spread("output_padding", more, dims, 0)?;
        let mut axes = plain_axes(self.ty(x), self.ty(weight), how)?;
        for (axis, more) in axes.iter_mut().zip(more) {
            ensure!(
                more < axis.stride.max(axis.dilation),
                InvalidArgument,
                "an output_padding of {more} must be smaller than the stride {} or the dilation {}",
                axis.stride,
                axis.dilation
            );
            let reach = axis.dilation * (axis.kernel - 1) + 1 - 2 * axis.padding + more;
            axis.out = (axis.size.clone() - 1) * axis.stride + reach;
            nonempty(axis)?;
        }
        let channels = channels(
            self.ty(x),
            self.ty(weight),
            how.groups,
            Direction::Transposed,
        )?;
        let y = self.transposed(x, weight, &axes, how.groups, channels.outputs)?;
        self.finished(y, bias, channels.outputs, single)
    }

    /// The gradients of [`Self::convolution`], `x` with its first dim, from that of its result.
    #[track_caller]
    pub fn convolution_backward(
        &mut self,
        grad: ValueId,
        x: ValueId,
        weight: ValueId,
        how: &Convolution,
    ) -> Result<Gradients> {
        let axes = axes(self.ty(x), self.ty(weight), how)?;
        let channels = channels(self.ty(x), self.ty(weight), how.groups, Direction::Forward)?;
        let mut expected = vec![self.ty(x).shape[0].clone(), channels.outputs.into()];
        expected.extend(axes.iter().map(|a| a.out.clone()));
        ensure!(
            self.ty(grad).shape == expected,
            ShapeMismatch,
            "the gradient of a convolution has the shape {}, its result {}",
            text(&self.ty(grad).shape),
            text(&expected)
        );
        // Input and output change places.
        let back: Vec<Axis> = axes
            .iter()
            .map(|a| Axis {
                size: a.out.clone(),
                out: a.size.clone(),
                ..a.clone()
            })
            .collect();
        let input = self.transposed(grad, weight, &back, how.groups, channels.inputs)?;
        let windows = self.windows(x, &axes, how.groups, Direction::Forward)?;
        let n = self.ty(x).shape[0].clone();
        let places = axes.iter().fold(n.clone(), |all, a| all * a.out.clone());
        let per_group = channels.outputs / how.groups;
        let mut split = vec![n, how.groups.into(), per_group.into()];
        split.extend(axes.iter().map(|a| a.out.clone()));
        let g = self.view(grad, &split)?;
        let mut order: Vec<i64> = vec![1, 2, 0];
        order.extend((0..axes.len() as i64).map(|d| d + 3));
        let g = self.permute(g, &order)?;
        let g = self.view(g, &[how.groups.into(), per_group.into(), places])?;
        let columns = self.transpose(windows, 1, 2)?;
        let slope = self.bmm(g, columns)?;
        let shape = self.ty(weight).shape.clone();
        let weight = self.view(slope, &shape)?;
        let mut dims: Vec<i64> = vec![0];
        dims.extend((0..axes.len() as i64).map(|d| d + 2));
        let bias = self.sum(grad, &dims, false)?;
        Ok(Gradients {
            input,
            weight,
            bias,
        })
    }

    /// `x` with a first dim, and whether it lacked it.
    fn batched(&mut self, x: ValueId, weight: ValueId) -> Result<(ValueId, bool)> {
        let (rank, full) = (self.ty(x).rank(), self.ty(weight).rank());
        ensure!(
            (3..=5).contains(&full),
            RankMismatch,
            "the weight of a convolution has 3 to 5 dims, not {full}: {}",
            text(&self.ty(weight).shape)
        );
        if rank + 1 == full {
            return Ok((self.unsqueeze(x, 0)?, true));
        }
        ensure!(
            rank == full,
            RankMismatch,
            "a convolution with a weight of {full} dims is of a tensor with {full} or {}, not {rank}: {}",
            full - 1,
            text(&self.ty(x).shape)
        );
        let (a, b) = (self.ty(x).dtype, self.ty(weight).dtype);
        ensure!(
            a == b,
            DTypeMismatch,
            "a convolution of {a} with a weight of {b}"
        );
        Ok((x, false))
    }

    /// [groups, channels of one times kernel positions, n times output positions].
    fn windows(
        &mut self,
        x: ValueId,
        axes: &[Axis],
        groups: i64,
        direction: Direction,
    ) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let mut x = x;
        for (d, axis) in axes.iter().enumerate() {
            if axis.is_identity() {
                continue;
            }
            x = self.chosen(x, d + 2, axis, direction)?;
        }
        let n = ty.shape[0].clone();
        let channels = known("a number of channels", &ty.shape[1])?;
        let mut split = vec![n.clone(), groups.into(), (channels / groups).into()];
        let (mut kernels, mut outs): (Vec<i64>, Vec<i64>) = (vec![], vec![]);
        for axis in axes {
            kernels.push(split.len() as i64);
            split.push(axis.kernel.into());
            outs.push(split.len() as i64);
            split.push(axis.out.clone());
        }
        let x = self.view(x, &split)?;
        let order: Vec<i64> = [1, 2]
            .into_iter()
            .chain(kernels)
            .chain([0])
            .chain(outs)
            .collect();
        let x = self.permute(x, &order)?;
        let reach: i64 = axes.iter().map(|a| a.kernel).product();
        let places = axes.iter().fold(n, |all, a| all * a.out.clone());
        let rows = (channels / groups) * reach;
        self.view(x, &[groups.into(), rows.into(), places])
    }

    /// A dim as kernel positions times output positions, zero where a position lies outside.
    fn chosen(
        &mut self,
        x: ValueId,
        dim: usize,
        axis: &Axis,
        direction: Direction,
    ) -> Result<ValueId> {
        let ty = self.ty(x).clone();
        let device = ty.device;
        let length = axis.out.clone() * axis.kernel;
        let counter = self.emit(
            Op::Arange {
                start: Scalar::I(0),
                step: Scalar::I(1),
                shape: vec![length.clone()],
                dtype: DType::I64,
                device,
            },
            &[],
        )?;
        let out = self.scalar_tensor(axis.out.clone(), DType::I64, device)?;
        let size = self.scalar_tensor(axis.size.clone(), DType::I64, device)?;
        let k = self.binary(Binary::DivFloor, counter, out)?;
        let start = self.mul(k, out)?;
        let o = self.sub(counter, start)?;
        let reach = self.mul(k, axis.dilation)?;
        let (position, mut inside) = match direction {
            Direction::Forward => {
                let step = self.mul(o, axis.stride)?;
                let sum = self.add(step, reach)?;
                (self.sub(sum, axis.padding)?, None)
            }
            Direction::Transposed => {
                let ahead = self.add(o, axis.padding)?;
                let distance = self.sub(ahead, reach)?;
                let position = self.binary(Binary::DivFloor, distance, axis.stride)?;
                let again = self.mul(position, axis.stride)?;
                (position, Some(self.eq(again, distance)?))
            }
        };
        let above = self.ge(position, 0)?;
        let below = self.emit(Op::Compare(Compare::Lt), &[position, size])?;
        let within = self.logical_and(above, below)?;
        inside = Some(match inside {
            Some(whole) => self.logical_and(whole, within)?,
            None => within,
        });
        let last = self.sub(size, 1)?;
        let index = self.maximum(position, 0)?;
        let index = self.minimum(index, last)?;
        let taken = self.index_select(x, dim as i64, index)?;
        let Some(inside) =
            inside.filter(|_| direction == Direction::Transposed || axis.padding > 0)
        else {
            return Ok(taken);
        };
        let mut column = vec![Expr::ONE; ty.rank()];
        column[dim] = length;
        let inside = self.view(inside, &column)?;
        let zero = self.full(0, vec![], ty.dtype, device)?;
        self.emit(Op::Where, &[inside, taken, zero])
    }

    /// A weight as [groups, outputs of one, what is summed over].
    fn rows(&mut self, weight: ValueId, groups: i64, outputs: i64) -> Result<ValueId> {
        let shape = &self.ty(weight).shape;
        let columns = shape[1..].iter().fold(Expr::ONE, |n, d| n * d.clone());
        self.view(weight, &[groups.into(), (outputs / groups).into(), columns])
    }

    fn transposed(
        &mut self,
        x: ValueId,
        weight: ValueId,
        axes: &[Axis],
        groups: i64,
        outputs: i64,
    ) -> Result<ValueId> {
        if let Some(y) = self.by_phases(x, weight, axes, groups, outputs)? {
            return Ok(y);
        }
        let windows = self.windows(x, axes, groups, Direction::Transposed)?;
        let shape = self.ty(weight).shape.clone();
        let first = known("a number of channels", &shape[0])?;
        let mut split = vec![groups.into(), (first / groups).into()];
        split.extend(shape[1..].iter().cloned());
        let w = self.view(weight, &split)?;
        let w = self.transpose(w, 1, 2)?;
        let columns = shape[2..]
            .iter()
            .fold(Expr::from(first / groups), |n, d| n * d.clone());
        let w = self.view(w, &[groups.into(), (outputs / groups).into(), columns])?;
        self.product(w, windows, x, axes, outputs)
    }

    /// The product, with the batch first again.
    fn product(
        &mut self,
        rows: ValueId,
        windows: ValueId,
        x: ValueId,
        axes: &[Axis],
        outputs: i64,
    ) -> Result<ValueId> {
        let y = self.bmm(rows, windows)?;
        let mut shape = vec![outputs.into(), self.ty(x).shape[0].clone()];
        shape.extend(axes.iter().map(|a| a.out.clone()));
        let y = self.view(y, &shape)?;
        self.transpose(y, 0, 1)
    }

    fn finished(
        &mut self,
        y: ValueId,
        bias: Option<ValueId>,
        outputs: i64,
        single: bool,
    ) -> Result<ValueId> {
        let mut y = y;
        if let Some(bias) = bias {
            ensure!(
                self.ty(bias).shape == [Expr::from(outputs)],
                ShapeMismatch,
                "a bias {} of a convolution with {outputs} output channels",
                text(&self.ty(bias).shape)
            );
            let mut column = vec![Expr::ONE; self.ty(y).rank()];
            column[1] = outputs.into();
            let bias = self.view(bias, &column)?;
            y = self.add(y, bias)?;
        }
        if single { self.squeeze(y, 0) } else { Ok(y) }
    }
}

/// The type of a convolution's result.
pub(crate) fn result(x: &TensorType, weight: &TensorType, how: &Convolution) -> Result<TensorType> {
    let axes = axes(x, weight, how)?;
    let each = [&how.stride, &how.padding, &how.dilation];
    ensure!(
        axes.len() <= 3 && each.iter().all(|numbers| numbers.len() == axes.len()),
        InvalidArgument,
        "a convolution over {} dims takes one number for each, of one to three",
        axes.len()
    );
    let outputs = channels(x, weight, how.groups, Direction::Forward)?.outputs;
    let mut shape = vec![x.shape[0].clone(), outputs.into()];
    shape.extend(axes.into_iter().map(|axis| axis.out));
    Ok(TensorType::new(x.dtype, shape, x.device))
}

impl Convolution {
    /// The numbers of [`Op::Convolution`]; `None` for another op.
    pub fn of(op: &Op) -> Option<Self> {
        let Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        } = op
        else {
            return None;
        };
        let numbers = |list: &[usize]| -> Vec<i64> {
            let number = |&n: &usize| i64::try_from(n).unwrap_or(i64::MAX);
            list.iter().map(number).collect()
        };
        Some(Self {
            stride: numbers(stride),
            padding: numbers(padding),
            dilation: numbers(dilation),
            groups: i64::try_from(*groups).unwrap_or(i64::MAX),
        })
    }
}

fn plain_axes(x: &TensorType, weight: &TensorType, how: &Convolution) -> Result<Vec<Axis>> {
    let (x, weight) = (&x.shape, &weight.shape);
    ensure!(
        x.len() > 2 && x.len() == weight.len(),
        RankMismatch,
        "a convolution of {} with a weight of {}: both have a dim for channels, one for the batch or the outputs, and at least one more",
        text(x),
        text(weight)
    );
    let dims = x.len() - 2;
    let stride = spread("stride", &how.stride, dims, 1)?;
    let padding = spread("padding", &how.padding, dims, 0)?;
    let dilation = spread("dilation", &how.dilation, dims, 1)?;
    let axis = |d: usize| {
        ensure!(
            !x[d + 2].is_const(0),
            ShapeMismatch,
            "a convolution of nothing: {}",
            text(x)
        );
        Ok(Axis {
            size: x[d + 2].clone(),
            out: Expr::ZERO,
            kernel: known("a kernel size", &weight[d + 2])?,
            stride: stride[d],
            padding: padding[d],
            dilation: dilation[d],
        })
    };
    (0..dims).map(axis).collect()
}

/// Every dim that the kernel moves along, with the size of the result.
fn axes(x: &TensorType, weight: &TensorType, how: &Convolution) -> Result<Vec<Axis>> {
    let mut axes = plain_axes(x, weight, how)?;
    for axis in &mut axes {
        let room = axis.size.clone() + 2 * axis.padding - axis.dilation * (axis.kernel - 1) - 1;
        axis.out = room.floordiv(axis.stride) + 1;
        nonempty(axis)?;
    }
    Ok(axes)
}

fn channels(
    x: &TensorType,
    weight: &TensorType,
    groups: i64,
    direction: Direction,
) -> Result<Channels> {
    let (x, weight) = (&x.shape, &weight.shape);
    ensure!(
        (1..=LARGEST).contains(&groups),
        InvalidArgument,
        "a convolution in {groups} groups"
    );
    let inputs = known("a number of channels", &x[1])?;
    let first = known("a number of channels", &weight[0])?;
    let second = known("a number of channels", &weight[1])?;
    let (read, outputs) = match direction {
        Direction::Forward => (second * groups, first),
        Direction::Transposed => (first, second * groups),
    };
    ensure!(
        inputs == read && first % groups == 0,
        ShapeMismatch,
        "a tensor {} and a weight {} do not go together in {groups} groups: {inputs} channels are given, {read} are read",
        text(x),
        text(weight)
    );
    Ok(Channels { inputs, outputs })
}

struct Channels {
    inputs: i64,
    outputs: i64,
}

impl Axis {
    /// Whether every window is the input itself, and all of it.
    fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.padding == 0 && self.out == self.size
    }

    /// Whether the kernel is as long as the input: there is one window, the input itself.
    fn is_whole(&self) -> bool {
        let dense = self.kernel == 1 || self.dilation == 1;
        dense && self.padding == 0 && self.size.is_const(self.kernel)
    }
}

fn nonempty(axis: &Axis) -> Result<()> {
    let Axis {
        size,
        kernel,
        padding,
        dilation,
        ..
    } = axis;
    ensure!(
        *kernel >= 1 && axis.out.as_const().is_none_or(|n| n >= 1),
        ShapeMismatch,
        "a kernel of {kernel} with a dilation of {dilation} does not fit into a size of {size} with a padding of {padding}"
    );
    Ok(())
}

/// One number a dim: as many as there are dims, or one for all.
fn spread(what: &str, given: &[i64], dims: usize, least: i64) -> Result<Vec<i64>> {
    let all = match given {
        [one] => vec![*one; dims],
        many => many.to_vec(),
    };
    ensure!(
        all.len() == dims && all.iter().all(|n| (least..=LARGEST).contains(n)),
        InvalidArgument,
        "{what} {given:?} of a convolution over {dims} dims: {dims} numbers from {least} to {LARGEST} are needed"
    );
    Ok(all)
}

fn known(what: &str, size: &Expr) -> Result<i64> {
    let Some(number) = size.as_const() else {
        return Err(err!(
            InvalidArgument,
            "{what} must be known when compiling, not {size}"
        ));
    };
    ensure!(number <= LARGEST, TooLarge, "{what} of {number}");
    Ok(number)
}

fn text(shape: &[Expr]) -> String {
    let sizes: Vec<String> = shape.iter().map(Expr::to_string).collect();
    format!("[{}]", sizes.join(", "))
}
