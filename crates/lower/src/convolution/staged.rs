//! A convolution on a GPU: the product of its weight and of windows that exist in shared memory alone, a stage of the depth at a time.
//!
//! ```text
//!   rows      output channels of one group
//!   columns   output positions of one image: a box of them, powers of two along each dim, that wastes least
//!   depth     channels and kernel positions; channels the fastest where they are neighbours in memory
//! ```
//!
//! What lies outside of an image is 0, and is not read.

use oxyfuel_base::{DType, Expr, Result, err};
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Index, Mode, TileLayout};
use oxyfuel_plan::TargetDesc;

use crate::build::accumulator;
use crate::convolution::shape::{Axis, Convolution};
use crate::nest::Nest;
use crate::rows::{Frame, left};
use crate::size::Params;
use crate::staged::{Held, Part, Team};
use crate::tile::{Tiling, ceil_div};
use crate::warps::restricted;

/// Below so many channels of a group, or positions of an image, most of a block is empty.
const LEAST: i64 = 16;

/// Whether a node is a convolution that this kernel is for.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let Some(how) = oxyfuel_graph::convolution::Convolution::of(&node.op) else {
        return false;
    };
    let Op::Convolution { .. } = &node.op else {
        return false;
    };
    let ty = |value: ValueId| &graph.values[value].ty;
    let fixed = |value: ValueId| -> Option<Vec<i64>> {
        let sizes = ty(value).shape.iter();
        sizes.map(|n| n.as_const().filter(|&n| n > 0)).collect()
    };
    let (Some(x), Some(weight), Some(out)) = (
        fixed(node.inputs[0]),
        fixed(node.inputs[1]),
        fixed(node.out()),
    ) else {
        return false;
    };
    let dtype = ty(node.inputs[0]).dtype;
    // Places are counted in 32 bits.
    let counts = |shape: &[i64]| shape.iter().product::<i64>() < 1 << 30;
    graph.symbols.is_empty()
        && Team::of(target, [dtype; 2], accumulator(dtype), [1, 1]).is_some()
        && weight[0] / how.groups >= LEAST
        && out[2..].iter().product::<i64>() >= LEAST
        && counts(&x)
        && counts(&weight)
        && counts(&out)
}

/// How a block works.
struct Shape {
    team: Team,
    rows: i64,
    /// The box of output positions, along each dim.
    cols: Vec<i64>,
    step: i64,
}

impl Shape {
    fn places(&self) -> i64 {
        self.cols.iter().product()
    }
}

/// The box of so many positions that has fewest outside of the image; the longest runs among those.
fn least_waste(axes: &[&Axis], places: i64) -> Vec<i64> {
    let before = match axes {
        [] => return Vec::new(),
        [_] => return vec![places],
        [before @ .., _] => before,
    };
    let sizes = (0..).map(|log| 1 << log).take_while(|&n| n <= places);
    let boxes = sizes.map(|n| {
        let mut all = least_waste(before, places / n);
        all.push(n);
        all
    });
    let covered = |shape: &Vec<i64>| -> i64 {
        let axes = axes.iter().zip(shape);
        axes.map(|(axis, &n)| ceil_div(axis.out, n) * n).product()
    };
    boxes
        .min_by_key(|shape| (covered(shape), -shape.last().copied().unwrap_or(1)))
        .unwrap_or_default()
}

struct Writer<'a> {
    conv: &'a Convolution,
    axes: Vec<&'a Axis>,
    shape: Shape,
    params: &'a Params,
    nest: &'a Nest,
    /// Channels are the fastest along the depth, not kernel positions.
    channels_last: bool,
}

/// Where a block is.
struct Here {
    image: Tile,
    group: Tile,
    row: Tile,
    /// The number of its box along each dim.
    cols: Vec<Tile>,
}

/// What the columns of a block know before the depth is walked: where their windows begin, in elements of `x`, and along each dim.
struct Windows {
    layout: TileLayout,
    offset: Tile,
    first: Vec<Tile>,
}

/// A stretch of the depth: which channel each element is of, and where in the kernel.
struct Depth {
    there: Tile,
    channel: Tile,
    kernel: Vec<Tile>,
}

/// Builds the program.
pub fn convolution(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    conv: &Convolution,
    target: &TargetDesc,
) -> Result<Program> {
    let axes: Vec<&Axis> = conv.outer.iter().chain([&conv.lines, &conv.cols]).collect();
    let shape = choose(conv, &axes, target)
        .ok_or_else(|| err!(NoLowering, "no block of threads multiplies {}", conv.dtype))?;
    let k = KernelBuilder::mapped(&nest.name, shape.team.geometry(target));
    let params = params_of(&k);
    let w = Writer {
        conv,
        channels_last: conv.x.strides[1] == 1 && conv.channels > 1,
        axes,
        shape,
        params: &params,
        nest,
    };
    let rows = ceil_div(conv.outputs, w.shape.rows);
    let boxes: Vec<i64> = (w.axes.iter().zip(&w.shape.cols))
        .map(|(axis, &n)| ceil_div(axis.out, n))
        .collect();
    let all = rows * boxes.iter().product::<i64>() * conv.groups * conv.images;
    k.phase([Expr::constant(all)], |k| {
        let mut rest = k.program_id(0);
        let mut next = |extent: i64| {
            let (part, more) = split(&rest, extent);
            rest = more;
            part
        };
        let mut cols: Vec<Tile> = boxes.iter().rev().map(|&n| next(n)).collect();
        cols.reverse();
        let (row, group, image) = (next(rows), next(conv.groups), next(conv.images));
        let here = Here {
            image,
            group,
            row,
            cols,
        };
        w.block(k, &here);
    });
    k.finish()
}

fn choose(conv: &Convolution, axes: &[&Axis], target: &TargetDesc) -> Option<Shape> {
    let team = |warps| Team::of(target, [conv.dtype; 2], conv.part, warps);
    let large = team([4, 2])?;
    let step = if large.unit { 32 } else { 16 };
    let places: i64 = axes.iter().map(|axis| axis.out).product();
    let blocks = conv.images * conv.groups * ceil_div(conv.outputs, 128) * ceil_div(places, 128);
    let wide = conv.part.size() == 4 && conv.outputs > 64 && blocks >= i64::from(target.workers);
    let (team, side) = if wide {
        (large, 128)
    } else {
        (team([2, 2])?, 64)
    };
    let cols = least_waste(axes, side);
    // A dim of one position is none of the result's.
    let mut boxes = axes.iter().zip(&cols);
    boxes
        .all(|(axis, &n)| axis.out > 1 || n == 1)
        .then_some(Shape {
            team,
            rows: side,
            cols,
            step,
        })
}

impl Writer<'_> {
    fn depth(&self) -> i64 {
        self.conv.channels * self.conv.reach()
    }

    /// The dims of a block of the result that are longer than 1: rows, then those of its box.
    fn dims(&self) -> Vec<i64> {
        let long = self.shape.cols.iter().copied().filter(|&n| n > 1);
        std::iter::once(self.shape.rows).chain(long).collect()
    }

    /// The sums of `[rows, cols]` as they lie under [`Writer::dims`].
    fn result(&self) -> TileLayout {
        let dims = self.dims();
        let whole = [self.shape.rows, self.shape.places()];
        let flat = self.shape.team.layout(whole);
        let parted = |modes: &[Mode]| modes.iter().flat_map(|m| parted(*m, &dims)).collect();
        TileLayout {
            warp: parted(&flat.warp),
            lane: parted(&flat.lane),
            reg: parted(&flat.reg),
            ..flat
        }
    }

    /// Layouts for the work on the result: of every tile that is repeated along some of the dims.
    fn lay_out(&self, k: &KernelBuilder) {
        let (dims, layout) = (self.dims(), self.result());
        for kept in 0..1u32 << dims.len() {
            let shape: Vec<i64> = (dims.iter().enumerate())
                .map(|(d, &n)| if kept >> d & 1 == 1 { n } else { 1 })
                .collect();
            k.layout_shape(&shape, restricted(&layout, &shape));
        }
    }

    fn block(&self, k: &KernelBuilder, here: &Here) {
        let (shape, team) = (&self.shape, &self.shape.team);
        let (rows, places, step) = (shape.rows, shape.places(), shape.step);
        let a = team.hold(k, [rows, step], team.along_depth());
        let b = team.hold(k, [places, step], team.along_depth());
        let windows = self.windows(k, here);
        let stage = |k: &KernelBuilder, at: &Tile| -> [Tile; 2] {
            [self.weights(k, here, at), self.images(k, &windows, at)]
        };
        let [x, y] = stage(k, &k.constant(DType::I64, 0));
        let start = [x, y, team.zeros(k, [rows, places])];
        let held: [&Held; 2] = [&a, &b];
        let [_, _, sum] = k.for_range(0, self.depth(), step, start, |k, at, [x, y, sum]| {
            team.put(k, &x, held[0]);
            team.put(k, &y, held[1]);
            k.sync();
            let [x, y] = stage(k, &(&at + step));
            let sum = team.multiply(k, held, [rows, places], step, sum);
            k.sync();
            [x, y, sum]
        });
        self.finish(k, here, sum);
    }

    /// Elements of the depth from a place on, as a tile `[1, step]` of a layout for `[side, step]`.
    fn along(&self, k: &KernelBuilder, at: &Tile, whole: &TileLayout) -> Depth {
        let (conv, step) = (self.conv, self.shape.step);
        let layout = restricted(whole, &[1, step]);
        let place = k.iota(DType::I32, [1, step], 1).with_layout(layout);
        let place = place + at.cast(DType::I32);
        let there = place.compare(CompareOp::Lt, self.depth());
        let (channel, mut rest) = if self.channels_last {
            split(&place, conv.channels)
        } else {
            let (rest, channel) = split(&place, conv.reach());
            (channel, rest)
        };
        let mut kernel = Vec::new();
        for axis in self.axes.iter().rev() {
            let (here, more) = split(&rest, axis.kernel);
            kernel.insert(0, here);
            rest = more;
        }
        Depth {
            there,
            channel,
            kernel,
        }
    }

    /// Weights `[rows, step]`.
    fn weights(&self, k: &KernelBuilder, here: &Here, at: &Tile) -> Tile {
        let (conv, shape) = (self.conv, &self.shape);
        let (rows, step, team) = (shape.rows, shape.step, &shape.team);
        let mem = &self.params.mems[conv.weight.buffer];
        let [apart, next] = conv.weight.strides;
        let first = (&here.group * conv.outputs + &here.row * rows) * apart + conv.weight.base;
        let rows_left = left(&here.row, rows, conv.outputs);
        if let (Some(along), false) = (conv.weight_along(), self.channels_last) {
            let rest = at * -1 + self.depth();
            let rest = rest.binary(BinaryOp::Min, step).binary(BinaryOp::Max, 0);
            return team.fetch(
                k,
                Part {
                    mem,
                    base: first + at * along,
                    shape: [rows, step],
                    strides: [apart, along].map(Index::Const),
                    left: [rows_left, Some(rest)],
                },
            );
        }
        let layout = team.spread([rows, step], 1, 1);
        let depth = self.along(k, at, &layout);
        let mut offset = &depth.channel * next;
        for (place, axis) in depth.kernel.iter().zip(&self.axes) {
            offset = offset + place * axis.weight_step;
        }
        let of_rows = restricted(&layout, &[rows, 1]);
        let row = k.iota(DType::I32, [rows, 1], 0).with_layout(of_rows);
        let wide = |tile: &Tile| {
            let tile = tile.broadcast_to([rows, step]);
            tile.with_layout(layout.clone())
        };
        let index = &row * apart + first.cast(DType::I32);
        let index = wide(&index) + wide(&offset);
        let mut there = wide(&depth.there);
        if let Some(rows_left) = rows_left {
            let row = row.compare(CompareOp::Lt, rows_left.cast(DType::I32));
            there = there.binary(BinaryOp::And, wide(&row));
        }
        k.gather(mem, &index, Some(&there), 0)
    }

    /// What the columns of a block know of their windows.
    fn windows(&self, k: &KernelBuilder, here: &Here) -> Windows {
        let (conv, shape) = (self.conv, &self.shape);
        let places = shape.places();
        let inner = usize::from(self.channels_last);
        let layout = shape.team.spread([places, shape.step], inner, 1);
        let of_cols = restricted(&layout, &[places, 1]);
        let mut rest = k.iota(DType::I32, [places, 1], 0).with_layout(of_cols);
        let start = &here.image * conv.x.strides[0]
            + &here.group * (conv.channels * conv.x.strides[1])
            + conv.x.base;
        let mut first = Vec::new();
        let boxes = shape.cols.iter().zip(&self.axes).zip(&here.cols);
        for ((&n, axis), number) in boxes.rev() {
            let (place, more) = split(&rest, n);
            rest = more;
            let place = place + (number * n).cast(DType::I32);
            first.insert(0, place * axis.stride - axis.padding);
        }
        let mut offset = zero_like(&rest) + start.cast(DType::I32);
        for (first, axis) in first.iter().zip(&self.axes) {
            offset = offset + first * axis.step;
        }
        Windows {
            layout,
            offset,
            first,
        }
    }

    /// Elements of the windows `[places, step]`.
    fn images(&self, k: &KernelBuilder, windows: &Windows, at: &Tile) -> Tile {
        let (conv, shape) = (self.conv, &self.shape);
        let whole = [shape.places(), shape.step];
        let depth = self.along(k, at, &windows.layout);
        let wide = |tile: &Tile| {
            let tile = tile.broadcast_to(whole);
            tile.with_layout(windows.layout.clone())
        };
        let mut offset = &depth.channel * conv.x.strides[1];
        let mut there = wide(&depth.there);
        let axes = self.axes.iter().zip(&shape.cols);
        let places = depth.kernel.iter().zip(&windows.first);
        for ((axis, &n), (kernel, first)) in axes.zip(places) {
            let moved = kernel * axis.dilation;
            offset = offset + &moved * axis.step;
            // Without padding only positions beyond the last one look outside.
            if axis.padding > 0 || axis.out % n != 0 {
                let place = wide(first) + wide(&moved);
                for (op, bound) in [(CompareOp::Ge, 0), (CompareOp::Lt, axis.size)] {
                    there = there.binary(BinaryOp::And, place.compare(op, bound));
                }
            }
        }
        let index = wide(&windows.offset) + wide(&offset);
        k.gather(&self.params.mems[conv.x.buffer], &index, Some(&there), 0)
    }

    /// The work on the result.
    fn finish(&self, k: &KernelBuilder, here: &Here, sum: Tile) {
        self.lay_out(k);
        let (conv, shape) = (self.conv, &self.shape);
        let mut block = Vec::new();
        let mut start = Vec::new();
        let mut position = Vec::new();
        let mut rest = Vec::new();
        let mut push = |size: i64, first: Tile, number: &Tile, left: Option<Tile>| {
            block.push(size);
            start.push(Some(first));
            position.push(Some(number.clone()));
            rest.push(left);
        };
        if conv.images > 1 {
            push(1, here.image.clone(), &here.image, None);
        }
        let channel = &here.group * conv.outputs + &here.row * shape.rows;
        let rows_left = left(&here.row, shape.rows, conv.outputs);
        push(shape.rows, channel.clone(), &channel, rows_left);
        for ((axis, number), &n) in self.axes.iter().zip(&here.cols).zip(&shape.cols) {
            if axis.out > 1 {
                push(n, number * n, number, left(number, n, axis.out));
            }
        }
        let tiling = Tiling::of(block);
        let mut frame = Frame::place(k, self.params, self.nest, &tiling, position, start, rest);
        let sum = sum.reshape(self.dims()).with_layout(self.result());
        frame.give(0, sum);
        for node in 0..self.nest.values.len() {
            frame.value(node);
        }
        for store in &self.nest.stores {
            frame.store(store.value, &store.window);
        }
    }
}

/// The remainder, and how often, of what is not negative.
fn split(x: &Tile, by: i64) -> (Tile, Tile) {
    match by {
        1 => (zero_like(x), x.clone()),
        _ => (
            x.binary(BinaryOp::Mod, by),
            x.binary(BinaryOp::FloorDiv, by),
        ),
    }
}

fn zero_like(x: &Tile) -> Tile {
    let zero = x.builder().constant(x.dtype(), 0).broadcast_to(x.shape());
    match x.layout() {
        Some(layout) => zero.with_layout(layout),
        None => zero,
    }
}

/// A mode along the second of two dims, as modes along dims of these extents from there on, the last the fastest.
fn parted(mode: Mode, dims: &[i64]) -> Vec<Mode> {
    if mode.dim == 0 {
        return vec![mode];
    }
    let (mut stride, mut extent) = (i64::from(mode.stride), i64::from(mode.extent));
    let mut modes = Vec::new();
    for (dim, &n) in dims.iter().enumerate().skip(1).rev() {
        if stride >= n {
            stride /= n;
            continue;
        }
        let here = if stride == 0 {
            extent
        } else {
            extent.min(n / stride)
        };
        modes.push(Mode::new(dim as u8, here as u32, stride as u32));
        extent /= here;
        if extent == 1 {
            break;
        }
        stride = 1;
    }
    modes
}
