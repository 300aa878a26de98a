//! What a convolution of images computes, in numbers, and where its operands lie. Lines and volumes are images here: see [`Flat`].

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::conv_panels::ConvPanels;
use oxyfuel_graph::{Graph, Node, ValueId};
use oxyfuel_kernel::builder::Tile;
use oxyfuel_kernel::ir::BinaryOp;
use oxyfuel_plan::{OperandHome, TargetDesc};
use oxyfuel_schedule::Placements;

use super::divisors;
use super::joined::Joined;
use crate::blocked::columns;
use crate::build::{checked, constant};
use crate::tile::ceil_div;

/// One dim that the kernel moves along.
#[derive(Clone, Debug)]
pub struct Axis {
    pub size: i64,
    pub out: i64,
    pub kernel: i64,
    pub stride: i64,
    pub padding: i64,
    pub dilation: i64,
    /// Elements of `x` from one position to the next.
    pub step: i64,
}

impl Axis {
    /// A dim of one position.
    fn single(step: i64) -> Self {
        Self {
            size: 1,
            out: 1,
            kernel: 1,
            stride: 1,
            padding: 0,
            dilation: 1,
            step,
        }
    }

    /// The same where a kernel of one position skips some: those are not copied.
    fn without_gaps(self) -> Self {
        if self.kernel > 1 || self.padding > 0 {
            return self;
        }
        Self {
            size: self.out,
            stride: 1,
            step: self.step * self.stride,
            ..self
        }
    }
}

/// What multiplies groups of channels: a matrix unit, or vectors that have such an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Positions and output channels of a tile of sums.
    pub rows: i64,
    pub cols: i64,
    /// Channels that lie side by side in panels.
    pub pack: i64,
    /// Sums lie in matrix registers, two tiles by two at a time.
    pub matrix: bool,
}

/// Channels of a pixel are filled up to whole steps of the matrix unit.
pub const STEP: i64 = 32;

/// The unit of a machine for convolutions of a type.
pub fn unit(dtype: DType, target: &TargetDesc) -> Option<Unit> {
    let unit = match dtype {
        DType::BF16 if !target.is_simt() => target.matrix_unit(dtype, dtype, DType::F32)?,
        _ => return None,
    };
    Some(Unit {
        rows: i64::from(unit.m),
        cols: i64::from(unit.n),
        pack: i64::from(unit.b_pack),
        matrix: unit.operands == OperandHome::Memory,
    })
}

/// Columns of panels for so many output channels. In groups, those of one group, be they the half of a vector, or of several smaller ones in a vector; `None` where groups and vectors do not fit.
pub fn width(
    [channels, n]: [i64; 2],
    groups: i64,
    dtype: DType,
    target: &TargetDesc,
) -> Option<i64> {
    let lanes = i64::from(target.lanes(dtype.size() as u32));
    if groups == 1 {
        return Some(match unit(dtype, target) {
            Some(unit) if unit.matrix && n > unit.cols => 2 * unit.cols,
            Some(unit) => unit.cols,
            None => columns(n, lanes),
        });
    }
    if is_depthwise([channels, n], groups) {
        return Some(lanes);
    }
    let own = n / groups;
    match own % lanes {
        0 if own % (2 * lanes) == 0 => Some(2 * lanes),
        0 => Some(lanes),
        _ if 2 * own == lanes && n % lanes == 0 => Some(own),
        _ => (lanes % own == 0 && n % lanes == 0).then_some(lanes),
    }
}

/// Whether every channel has a kernel of its own.
pub fn is_depthwise([channels, n]: [i64; 2], groups: i64) -> bool {
    groups > 1 && groups == channels && groups == n
}

/// Rows of a panel, or elements of a pixel, for so many channels.
pub fn padded(channels: i64, unit: Option<Unit>) -> i64 {
    match unit {
        Some(_) => ceil_div(channels, STEP).saturating_mul(STEP),
        None => channels,
    }
}

/// A convolution of lines, images or volumes as one of images with sizes [b, h, w, c]: a line is an image of one column, and each plane of a volume's result is made of an image that has the channels of all planes that it reads.
#[derive(Clone, Debug)]
pub struct Flat {
    pub x: [i64; 4],
    pub out: [i64; 4],
    pub how: ConvPanels,
}

impl Flat {
    /// Of sizes with channels last; `None` where there are dims of something else.
    pub fn of(x: &[i64], out: &[i64], how: &ConvPanels) -> Option<Self> {
        let (x, out) = match (x, out) {
            (&[b, l, c], &[_, length, n]) => ([b, l, 1, c], [b, length, 1, n]),
            (&[b, h, w, c], &[_, high, wide, n]) => ([b, h, w, c], [b, high, wide, n]),
            (&[b, _, h, w, c], &[_, deep, high, wide, n]) => {
                let planes = b.saturating_mul(deep);
                let channels = c.saturating_mul(how.taps());
                ([planes, h, w, channels], [planes, high, wide, n])
            }
            _ => return None,
        };
        let how = how.flat();
        Some(Self { x, out, how })
    }

    /// Whether a window is one run of memory: pixels below each other lie side by side.
    pub fn is_column(&self) -> bool {
        self.x[2] == 1 && self.how.kernel[1] == 1 && self.how.how.dilation[0] == 1
    }
}

#[derive(Clone, Debug)]
pub struct Images {
    /// Of a volume, planes of its results.
    pub images: i64,
    /// Of a volume, those of all planes that a result reads.
    pub channels: i64,
    /// Along the planes of a volume.
    pub depth: Option<Axis>,
    pub groups: i64,
    /// With those that fill the last step of the unit.
    pub padded: i64,
    pub unit: Option<Unit>,
    /// Output channels, in panels of so many columns.
    pub n: i64,
    pub width: i64,
    pub lines: Axis,
    pub cols: Axis,
    pub winograd: bool,
    pub dtype: DType,
    /// `x`: its buffer, first element, and elements from one image, or one channel, to the next.
    pub x: usize,
    pub base: i64,
    pub image_step: i64,
    pub channel_step: i64,
    /// The panels; or the weight as it is, with the elements from one output channel, channel, line and column of the kernel to the next.
    pub weight: usize,
    pub weight_base: i64,
    pub whole: Option<[i64; 4]>,
    /// Elements of that from the kernel for one plane of a volume to the next.
    pub tap_step: i64,
    /// Panels that there are at once: all, or equal parts of them, one after another.
    pub part: i64,
    /// The image, where columns of the kernel count as channels here.
    pub joined: Option<Joined>,
}

/// Bytes of panels that are made at once for each image: what a program holds grows with its images, and parts of panels are read by more instances than all would be.
const AT_ONCE: i64 = 4 << 20;

/// How many of so many panels are made at once.
pub fn part(panels: i64, bytes: i64, images: i64) -> i64 {
    let fits = |part: &i64| part.saturating_mul(bytes) <= images.saturating_mul(AT_ONCE);
    divisors(panels).filter(fits).last().unwrap_or(1)
}

/// Bytes of a panel.
pub fn panel_bytes(how: &ConvPanels, padded: i64, width: i64, dtype: DType) -> i64 {
    let deep = padded.saturating_mul(how.positions());
    deep.saturating_mul(width * dtype.size() as i64)
}

impl Images {
    /// Reads the node. `buffers` are the roots in argument order.
    pub fn read(
        graph: &Graph,
        memory: &Placements,
        node: &Node,
        buffers: &[ValueId],
        target: &TargetDesc,
    ) -> Result<Self> {
        let Some(how) = ConvPanels::of(&node.op) else {
            return Err(err!(Internal, "`{}` has no panels", node.op.name()));
        };
        let numbers = |sizes: &[Expr]| sizes.iter().map(constant).collect::<Result<Vec<i64>>>();
        let place = |value: ValueId| -> Result<(usize, i64, Vec<i64>)> {
            let place = memory.of(value);
            let buffer = buffers.iter().position(|&root| root == place.root);
            let buffer = buffer.ok_or_else(|| err!(Internal, "an operand has no buffer"))?;
            let base = constant(&checked(&place.offset)?)?;
            Ok((buffer, base, numbers(&place.strides)?))
        };
        let shape = |value: ValueId| numbers(&graph.ty(value).shape);
        let (sizes, results) = (shape(node.inputs[0])?, shape(node.out())?);
        let operand = shape(node.inputs[1])?;
        let flat = Flat::of(&sizes, &results, &how)
            .ok_or_else(|| err!(Internal, "images of {} dims", sizes.len()))?;
        let (x, base, strides) = place(node.inputs[0])?;
        let (weight, weight_base, steps) = place(node.inputs[1])?;
        let dtype = graph.ty(node.inputs[0]).dtype;
        let channel = sizes.len() - 1;
        let is_whole = how.is_whole(&sizes[channel], &operand);
        // Of a kernel with one column, the step along columns is open.
        let (whole, tap_step) = match steps[..] {
            _ if !is_whole => (None, 0),
            [across, channel, down] => (Some([across, channel, down, down]), 0),
            [across, channel, down, along] => (Some([across, channel, down, along]), 0),
            [across, channel, tap, down, along] => (Some([across, channel, down, along]), tap),
            _ => (None, 0),
        };
        let groups = how.how.groups;
        let width = match whole {
            Some(_) => width([flat.x[3], how.n], groups, dtype, target)
                .ok_or_else(|| err!(Internal, "groups that fill no vectors"))?,
            None => operand[2],
        };
        let unit = unit(dtype, target).filter(|_| groups == 1);
        let padded = padded(flat.x[3], unit);
        // Along a dim of the images, and one of what they are made of.
        let axis = |d: usize| Axis {
            size: sizes[d + 1],
            out: results[d + 1],
            kernel: how.kernel[d],
            stride: how.how.stride[d],
            padding: how.how.padding[d],
            dilation: how.how.dilation[d],
            step: strides[d + 1],
        };
        let (depth, lines, cols) = match channel {
            2 => (None, axis(0), Axis::single(sizes[channel])),
            3 => (None, axis(0), axis(1)),
            _ => (Some(axis(0)), axis(1), axis(2)),
        };
        // Columns that lie side by side are turned together, whoever wants them.
        let cols = match strides[channel] == 1 {
            true => cols.without_gaps(),
            false => cols,
        };
        let images = Joined::of(Self {
            images: flat.x[0],
            channels: flat.x[3],
            depth,
            groups,
            padded,
            unit,
            n: how.n,
            width,
            lines: lines.without_gaps(),
            cols,
            winograd: how.winograd,
            dtype,
            x,
            base,
            image_step: strides[0],
            channel_step: strides[channel],
            weight,
            weight_base,
            tap_step,
            part: ceil_div(how.n, width),
            whole,
            joined: None,
        });
        let bytes = images.bytes(images.deep() * width);
        let part = match whole {
            Some(_) if images.in_panel() == 1 => part(images.part, bytes, images.images),
            Some(_) | None => images.part,
        };
        Ok(Self { part, ..images })
    }

    /// Elements of other work that take as long as one element of the result.
    pub fn work(&self) -> i64 {
        let together = match self.unit {
            Some(unit) if unit.matrix => 128,
            _ => 16,
        };
        let channels = self.channels / self.groups.max(1);
        (channels * self.lines.kernel * self.cols.kernel / together).max(1)
    }

    pub fn panels(&self) -> i64 {
        ceil_div(self.n, self.width)
    }

    /// Parts that the panels are made in, one after another.
    pub fn rounds(&self) -> i64 {
        self.panels() / self.part
    }

    /// The grid of so many instances along panels, lines and images. A round has some of the panels: these come last then.
    pub fn grid(&self, [panels, lines, images]: [i64; 3]) -> [i64; 3] {
        match self.rounds() {
            1 => [panels, lines, images],
            _ => [lines, images, panels],
        }
    }

    /// The axes of that grid: panels, lines and images.
    pub fn axes(&self) -> [u8; 3] {
        match self.rounds() {
            1 => [0, 1, 2],
            _ => [2, 0, 1],
        }
    }

    /// Rows of a panel.
    pub fn deep(&self) -> i64 {
        let positions = match self.winograd {
            true => super::winograd::POINTS * super::winograd::POINTS,
            false => self.lines.kernel * self.cols.kernel,
        };
        self.span() * positions
    }

    /// Planes of a volume that a plane of its result reads.
    pub fn taps(&self) -> i64 {
        self.depth.as_ref().map_or(1, |depth| depth.kernel)
    }

    /// Channels of each of them.
    pub fn of_tap(&self) -> i64 {
        self.channels / self.taps()
    }

    /// Whether a window is one run of the copied lines.
    pub fn is_column(&self) -> bool {
        self.cols.size == 1 && self.cols.kernel == 1 && self.lines.dilation == 1
    }

    pub fn is_depthwise(&self) -> bool {
        is_depthwise([self.channels, self.n], self.groups)
    }

    /// Groups that a panel has columns of.
    pub fn in_panel(&self) -> i64 {
        match self.groups {
            1 => 1,
            groups => (self.width * groups / self.n).max(1),
        }
    }

    /// Channels that each column of a panel is multiplied with: those of its group.
    pub fn span(&self) -> i64 {
        match self.groups {
            1 => self.padded,
            groups => self.channels / groups,
        }
    }

    /// Panels that fill a vector together, where each is a part of one.
    pub fn beside(&self, lanes: i64) -> i64 {
        (lanes / self.width).max(1)
    }

    /// The first of those channels, where a panel has columns of one group.
    pub fn first_channel(&self, panel: &Tile) -> Option<Tile> {
        let panels_of_group = self.n / self.groups / self.width;
        match (self.groups, panels_of_group) {
            (1, _) => None,
            (_, ..=1) => Some(panel * self.span()),
            (_, several) => Some(panel.binary(BinaryOp::Div, several) * self.span()),
        }
    }

    /// Bytes of so many elements.
    pub fn bytes(&self, elements: i64) -> i64 {
        elements.saturating_mul(self.dtype.size() as i64)
    }
}
