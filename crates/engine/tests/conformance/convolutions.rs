//! Random convolutions: one to three dims, any stride, padding, dilation and groups, forward and transposed, channels first and last, with what may stand behind them in the same kernel.

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::builder::Builder;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::random::Choices;
use oxyfuel_graph::{Binary, Device, Graph, Unary, ValueId};

/// The most multiply-adds of a program: the interpreters do them one by one.
const WORK: i64 = 200_000;
/// Channels of a group, some of them odd beside the lanes of every vector.
const INPUTS: [i64; 6] = [1, 2, 3, 5, 16, 17];
/// Some more of bf16: its images have a kernel of their own on matrix units.
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::BF16,
    DType::F16,
];
const OUTPUTS: [i64; 7] = [1, 2, 3, 7, 8, 16, 33];

/// How a dim is walked.
#[derive(Clone, Copy)]
struct Axis {
    size: i64,
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
    /// Positions behind the end of a transposed one.
    more: i64,
}

impl Axis {
    fn of(choices: &mut Choices<'_>) -> Self {
        let mut number = |most: usize| choices.below(most) as i64;
        // Most are small; one in four is larger than any kernel of its own is for.
        let kernel = match number(4) {
            3 => 5 + number(4),
            _ => 1 + number(4),
        };
        let stride = 1 + number(3);
        let (dilation, padding) = (1 + number(2), number(3));
        let reach = dilation * (kernel - 1) + 1;
        Self {
            // At least one window fits; the last may end before the size does.
            size: (reach - 2 * padding).max(1) + number(9),
            kernel,
            stride,
            padding,
            dilation,
            more: number(2).min(stride.max(dilation) - 1),
        }
    }

    fn out(&self, transposed: bool) -> i64 {
        let reach = self.dilation * (self.kernel - 1) + 1;
        match transposed {
            true => (self.size - 1) * self.stride + reach - 2 * self.padding + self.more,
            false => (self.size + 2 * self.padding - reach) / self.stride + 1,
        }
    }
}

/// A random program of one convolution.
pub fn program(choices: &mut Choices<'_>) -> Result<Graph> {
    let mut b = Builder::new("conv");
    let dtype = DTYPES[choices.below(DTYPES.len())];
    let transposed = choices.below(4) == 1;
    let mut axes: Vec<Axis> = (0..1 + choices.below(3))
        .map(|_| Axis::of(choices))
        .collect();
    let depthwise = choices.below(4) == 1;
    let (mut batch, mut groups) = (1 + choices.below(3) as i64, 1 + choices.below(3) as i64);
    let mut inputs = INPUTS[choices.below(INPUTS.len())];
    let mut outputs = OUTPUTS[choices.below(OUTPUTS.len())];
    if depthwise {
        (groups, inputs, outputs) = (inputs * groups, 1, 1);
    }
    let work = |axes: &[Axis], batch: i64, channels: i64| {
        let places = axes
            .iter()
            .map(|axis| axis.size.max(axis.out(transposed)) * axis.kernel);
        places.product::<i64>() * batch * channels
    };
    // Smaller, one thing after the other, until it is little enough; odd sizes stay.
    if work(&axes, batch, groups * inputs * outputs) > WORK {
        batch = 1;
    }
    while axes.len() > 1 && work(&axes, batch, groups * inputs * outputs) > WORK {
        axes.pop();
    }
    while work(&axes, batch, groups * inputs * outputs) > WORK {
        (groups, inputs, outputs) = (groups.min(2), inputs.min(5), ceil_half(outputs));
    }
    if axes.iter().any(|axis| axis.out(transposed) < 1) {
        // A transposed one whose padding leaves nothing.
        axes.iter_mut().for_each(|axis| axis.padding = 0);
    }
    let list = |of: fn(&Axis) -> i64| axes.iter().map(of).collect::<Vec<i64>>();
    let how = Convolution {
        stride: list(|axis| axis.stride),
        padding: list(|axis| axis.padding),
        dilation: list(|axis| axis.dilation),
        groups,
    };
    let outs: Vec<i64> = axes.iter().map(|axis| axis.out(transposed)).collect();
    let (from, to) = (groups * inputs, groups * outputs);
    // Inputs come before the first operation.
    let x = image(
        &mut b,
        choices,
        "x",
        dtype,
        [batch, from],
        &list(|axis| axis.size),
    )?;
    let rows = match transposed {
        true => [from, outputs],
        false => [to, inputs],
    };
    let shape: Vec<i64> = rows.into_iter().chain(list(|axis| axis.kernel)).collect();
    let weight = Weight::of(&mut b, choices, dtype, &shape)?;
    let mut channels = |b: &mut Builder, name: &str, ones: usize| match choices.flip() {
        true => {
            let mut shape = vec![Expr::ONE; ones + 1];
            shape[0] = Expr::from(to);
            b.input(name, dtype, shape, Device::Cpu).map(Some)
        }
        false => Ok(None),
    };
    let bias = channels(&mut b, "bias", 0)?;
    let scale = channels(&mut b, "scale", axes.len())?;
    let residual = match choices.flip() {
        true => Some(image(&mut b, choices, "r", dtype, [batch, to], &outs)?),
        false => None,
    };
    let x = x.channels_first(&mut b)?;
    let weight = weight.seen(&mut b)?;
    let mut y = match transposed {
        true => b.conv_transpose(x, weight, bias, &how, &list(|axis| axis.more))?,
        false => b.convolution(x, weight, bias, &how)?,
    };
    if let Some(scale) = scale {
        y = b.binary(Binary::Mul, y, scale)?;
    }
    if let Some(residual) = residual {
        let residual = residual.channels_first(&mut b)?;
        y = b.binary(Binary::Add, y, residual)?;
    }
    if choices.flip() {
        y = b.unary(Unary::Relu, y)?;
    }
    b.output(y);
    b.finish()
}

/// The weight, and how it lies.
struct Weight {
    value: ValueId,
    /// With its inputs last, as images with channels last have them.
    last: bool,
    /// Every other one of the last dim's elements, behind one that nobody reads; or all of them.
    is_sparse: bool,
}

impl Weight {
    fn of(b: &mut Builder, choices: &mut Choices<'_>, dtype: DType, shape: &[i64]) -> Result<Self> {
        let (last, is_sparse) = (choices.below(3) == 1, choices.below(4) == 1);
        let mut shape = shape.to_vec();
        if last {
            shape[1..].rotate_left(1);
        }
        if is_sparse {
            let end = shape.len() - 1;
            shape[end] = 2 * shape[end] + 1;
        }
        let shape = shape.into_iter().map(Expr::from).collect();
        Ok(Self {
            value: b.input("w", dtype, shape, Device::Cpu)?,
            last,
            is_sparse,
        })
    }

    fn seen(&self, b: &mut Builder) -> Result<ValueId> {
        let mut value = self.value;
        let shape = b.ty(value).shape.clone();
        let rank = shape.len() as i64;
        if self.is_sparse {
            value = b.slice(value, -1, 1, shape[shape.len() - 1].clone(), 2)?;
        }
        if self.last {
            let dims: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
            value = b.permute(value, &dims)?;
        }
        Ok(value)
    }
}

fn ceil_half(n: i64) -> i64 {
    (n + 1) / 2
}

/// An image with its channels first, or last.
struct Image {
    value: ValueId,
    last: bool,
}

fn image(
    b: &mut Builder,
    choices: &mut Choices<'_>,
    name: &str,
    dtype: DType,
    [batch, channels]: [i64; 2],
    sizes: &[i64],
) -> Result<Image> {
    let last = choices.flip();
    let shape = match last {
        true => [&[batch], sizes, &[channels]].concat(),
        false => [&[batch, channels], sizes].concat(),
    };
    let shape = shape.into_iter().map(Expr::from).collect();
    let value = b.input(name, dtype, shape, Device::Cpu)?;
    Ok(Image { value, last })
}

impl Image {
    fn channels_first(&self, b: &mut Builder) -> Result<ValueId> {
        if !self.last {
            return Ok(self.value);
        }
        let rank = b.ty(self.value).rank() as i64;
        let dims: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        b.permute(self.value, &dims)
    }
}
