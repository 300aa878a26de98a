//! What a convolution computes, in numbers, and where its operands lie.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_plan::{OperandHome, TargetDesc};
use oxyfuel_schedule::Placements;

use crate::build::{accumulator, checked, constant};
use crate::nest::Nest;

/// Products that follow each other in one block: each has code of its own.
const MOST_LINES: i64 = 16;
/// Columns of a kernel, whose steps are written out.
const MOST_COLUMNS: i64 = 32;

/// Whether a node is a convolution of a kind and size that this kernel is for.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let Op::Convolution { .. } = &node.op else {
        return false;
    };
    let ty = |value: ValueId| &graph.values[value].ty;
    let fixed = |value: ValueId| -> Option<Vec<i64>> {
        let sizes = ty(value).shape.iter();
        sizes.map(|n| n.as_const().filter(|&n| n > 0)).collect()
    };
    let (Some(_), Some(weight), Some(out)) = (
        fixed(node.inputs[0]),
        fixed(node.inputs[1]),
        fixed(node.out()),
    ) else {
        return false;
    };
    let dtype = ty(node.inputs[0]).dtype;
    let acc = accumulator(dtype);
    // The matrix unit is faster, windows in memory and all.
    let unit = target.matrix_unit(dtype, dtype, acc);
    let has_unit = unit.is_some_and(|unit| unit.operands == OperandHome::Memory);
    let columns = weight[weight.len() - 1];
    let lines: i64 = weight[2..weight.len() - 1].iter().product();
    target.vector_bytes > 0
        && matches!(dtype, DType::F32 | DType::BF16 | DType::F16 | DType::F64)
        && !has_unit
        && out[out.len() - 1] >= 2
        && lines <= MOST_LINES
        && columns <= MOST_COLUMNS
}

/// One dim that the kernel moves along.
#[derive(Clone, Debug)]
pub struct Axis {
    pub size: i64,
    pub out: i64,
    pub kernel: i64,
    pub stride: i64,
    pub padding: i64,
    pub dilation: i64,
    /// Elements of `x` from one position to the next, and of the weight.
    pub step: i64,
    pub weight_step: i64,
}

impl Axis {
    /// A dim of one position.
    fn single() -> Self {
        Self {
            size: 1,
            out: 1,
            kernel: 1,
            stride: 1,
            padding: 0,
            dilation: 1,
            step: 0,
            weight_step: 0,
        }
    }

    /// Whether every window is the input itself.
    fn is_identity(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.padding == 0
    }
}

/// A tensor in memory: its strides along images (or outputs) and channels.
#[derive(Clone, Debug)]
pub struct Place {
    pub buffer: usize,
    pub base: i64,
    pub strides: [i64; 2],
}

/// A convolution in numbers. Channels and outputs are those of one group.
#[derive(Clone, Debug)]
pub struct Convolution {
    pub images: i64,
    pub groups: i64,
    pub channels: i64,
    pub outputs: i64,
    /// Dims whose output positions instances have one of.
    pub outer: Vec<Axis>,
    /// The dims whose output positions are columns of the product, one line after the other.
    pub lines: Axis,
    pub cols: Axis,
    pub x: Place,
    pub weight: Place,
    /// What the operands are, and what is multiplied and added.
    pub dtype: DType,
    pub part: DType,
}

impl Convolution {
    /// Reads the node. `buffers` are the roots in argument order.
    pub fn read(
        graph: &Graph,
        memory: &Placements,
        node: &Node,
        buffers: &[ValueId],
    ) -> Result<Self> {
        let Some(how) = oxyfuel_graph::convolution::Convolution::of(&node.op) else {
            return Err(err!(Internal, "`{}` is no convolution", node.op.name()));
        };
        let numbers = |sizes: &[Expr]| sizes.iter().map(constant).collect::<Result<Vec<i64>>>();
        let place = |value: ValueId| -> Result<(Place, Vec<i64>)> {
            let place = memory.of(value);
            let buffer = buffers.iter().position(|&root| root == place.root);
            let strides = numbers(&place.strides)?;
            let at = Place {
                buffer: buffer.ok_or_else(|| err!(Internal, "an operand has no buffer"))?,
                base: constant(&checked(&place.offset)?)?,
                strides: [strides[0], strides[1]],
            };
            Ok((at, strides))
        };
        let shape = |value: ValueId| numbers(&graph.values[value].ty.shape);
        let (of_x, of_weight, of_out) = (
            shape(node.inputs[0])?,
            shape(node.inputs[1])?,
            shape(node.out())?,
        );
        let (x, x_strides) = place(node.inputs[0])?;
        let (weight, weight_strides) = place(node.inputs[1])?;
        let axis = |d: usize| Axis {
            size: of_x[d + 2],
            out: of_out[d + 2],
            kernel: of_weight[d + 2],
            stride: how.stride[d],
            padding: how.padding[d],
            dilation: how.dilation[d],
            step: x_strides[d + 2],
            weight_step: weight_strides[d + 2],
        };
        let mut outer: Vec<Axis> = (0..of_x.len() - 2).map(axis).collect();
        let cols = outer.pop().unwrap_or_else(Axis::single);
        let lines = outer.pop().unwrap_or_else(Axis::single);
        Ok(Self {
            images: of_x[0],
            groups: how.groups,
            channels: of_weight[1],
            outputs: of_weight[0] / how.groups,
            outer,
            lines,
            cols,
            x,
            weight,
            dtype: graph.values[node.inputs[0]].ty.dtype,
            part: accumulator(graph.values[node.inputs[0]].ty.dtype),
        })
    }

    /// Elements of other work that take as long as one element of the result.
    pub fn work(&self) -> i64 {
        (self.channels * self.reach() / 16).max(1)
    }

    /// The same with lines and columns as the work on the result allows: over all of an image where every operand of that walks its lines as one, else line by line.
    pub fn settled(&self, nest: &mut Nest) -> Self {
        let mut conv = self.clone();
        if conv.lines.out > 1 && conv.cols.out > 1 {
            let lines = nest.rank() - 2;
            if !nest.merged(lines) {
                let lines = std::mem::replace(&mut conv.lines, Axis::single());
                conv.outer.push(lines);
                return conv;
            }
        }
        // Lines that nothing but their ends tells apart are one.
        let (lines, cols) = (&conv.lines, &conv.cols);
        let whole = lines.step == cols.step * cols.size;
        if lines.is_identity() && cols.is_identity() && (whole || lines.out == 1) {
            conv.cols.size *= lines.size;
            conv.cols.out = conv.cols.size;
            conv.lines = Axis::single();
        }
        conv
    }

    /// Whether the columns are those of one line.
    pub fn is_line(&self) -> bool {
        self.lines.out == 1 && self.lines.kernel == 1 && self.lines.padding == 0
    }

    /// Output positions that are columns of the product.
    pub fn places(&self) -> i64 {
        self.lines.out * self.cols.out
    }

    pub fn outer_places(&self) -> i64 {
        self.outer.iter().map(|axis| axis.out).product()
    }

    /// Kernel positions along the outer dims.
    pub fn outer_reach(&self) -> i64 {
        self.outer.iter().map(|axis| axis.kernel).product()
    }

    /// Kernel positions.
    pub fn reach(&self) -> i64 {
        self.outer_reach() * self.lines.kernel * self.cols.kernel
    }

    /// The kernel position along each outer dim.
    pub fn outer_position(&self, mut number: i64) -> Vec<i64> {
        let mut position = Vec::new();
        for axis in self.outer.iter().rev() {
            position.insert(0, number % axis.kernel);
            number /= axis.kernel;
        }
        position
    }

    /// Elements of the weight from a channel's first kernel position to each of them.
    pub fn kernel_offsets(&self) -> Vec<i64> {
        let mut offsets = vec![0];
        for axis in self.outer.iter().chain([&self.lines, &self.cols]) {
            let along = |from: i64| (0..axis.kernel).map(move |k| from + k * axis.weight_step);
            offsets = offsets.into_iter().flat_map(along).collect();
        }
        offsets
    }

    /// The step along channels and kernel positions, where they follow each other evenly.
    pub fn weight_along(&self) -> Option<i64> {
        let offsets = self.kernel_offsets();
        let step = match offsets.get(1) {
            Some(&second) => second,
            None => self.weight.strides[1],
        };
        let even = offsets.windows(2).all(|pair| pair[1] - pair[0] == step);
        let next = self.channels == 1 || self.weight.strides[1] == step * self.reach();
        (even && next).then_some(step)
    }
}
