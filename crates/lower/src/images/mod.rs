//! Convolutions of images, and of lines and volumes, with channels last, on the vector or the matrix unit of a CPU, with weights in panels (`conv_panels`).
//!
//! Rows of the product are output positions, its columns output channels: a pixel's channels lie side by side, and so do those of the pixels beside it. What a window reads of one line is one run of memory, so that nothing is
//! gathered: an instance copies the lines that its windows touch once, for zeros around them, and multiplies them where they are.
//!
//! ```text
//!   lines of x, with zeros for the padding   [line][column][channel]                                   second-level cache
//!   panels of the weight                     [columns / w][kernel line, kernel column, channel][w]     memory, in order
//!
//!   direct.rs      sums[position, w] += lines[.. of the window's line ..] @ panel                       registers
//!   matrix.rs      the same with a unit that multiplies pairs of channels, in bf16                      matrix registers
//!   winograd.rs    the same at the sixteen points of F(2x2, 3x3): 4 results for 16 products, not 36
//! ```
//!
//! Lines are images of one column: a window is then one run of all that it reads. A plane of a volume's result reads several planes: to the kernels that is an image with the channels of all of them, one plane's after the other's in each copied pixel.
//!
//! | file | idea |
//! |---|---|
//! | `shape.rs` | what is computed, in numbers, and where it lies |
//! | `lines.rs` | the copy of the lines |
//! | `pack.rs` | the panels, of a weight that may change |
//! | `depthwise.rs` | output channels of a vector have channels of their own: groups share it, or every channel has a kernel of its own |
//! | `shared.rs` | the copy of the lines for that, where groups have several channels |
//! | `direct.rs` | every window is summed |
//! | `joined.rs` | few channels on a matrix unit: columns of the kernel count as channels |
//! | `matrix.rs` | every window is summed by a matrix unit |
//! | `winograd.rs` | tiles of 2 x 2 results at their points |

mod depthwise;
mod direct;
mod joined;
mod lines;
mod matrix;
mod pack;
mod shape;
mod shared;
mod winograd;

use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::conv_panels::{ConvPanels, last};
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_kernel::Program;
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::BinaryOp;
use oxyfuel_plan::TargetDesc;

use crate::nest::Nest;
use crate::rows::{Frame, left};
use crate::size::Params;
use crate::tile::{Tiling, ceil_div};

use shape::Flat;
pub use shape::Images;

/// Channels and outputs from which on the points cost less than what they save.
const WINOGRAD_CHANNELS: i64 = 16;
/// Results that tiles of 2 x 2 compute for nothing, as a share of those that are wanted.
const WINOGRAD_WASTE: f64 = 1.6;
/// Multiply-adds for each element of the panels from which on these may be made at every call, as was measured of whole models: ResNet-18 of one image of 64 x 64 pixels has about as many.
const WORTH_PACKING: i64 = 6;
/// One in so many multiply-adds at least is done at points: windows alone are summed as fast where a weight lies as it does.
const AT_POINTS: i64 = 4;
/// Products that follow each other in one block: each has code of its own.
const MOST_PIECES: i64 = 48;

/// Sizes that are all known.
fn sizes(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    let shape = graph.ty(value).shape.iter();
    shape.map(Expr::as_const).collect()
}

/// Whether there is a kernel for such images.
fn suits(dtype: DType, flat: &Flat, is_volume: bool, target: &TargetDesc) -> bool {
    let Flat { x, out, how } = flat;
    let ([_, _, _, c], [_, high, wide, n]) = (x, out);
    let (kernel, how) = (&how.kernel, &how.how);
    let lanes = i64::from(target.lanes(dtype.size() as u32));
    let there = !x.contains(&0) && !out.contains(&0);
    let has_unit = shape::unit(dtype, target).is_some();
    if is_volume && (has_unit || how.groups > 1) {
        return false;
    }
    if there && how.groups == 1 && has_unit {
        let single = how.dilation[1] == 1;
        return single && kernel[0] <= MOST_PIECES && *n >= 2 && *high >= 2 && *wide >= 2;
    }
    let positions = kernel[0].saturating_mul(kernel[1]);
    let pieces = |length: i64| ceil_div(length, crate::blocked::SUMMED).max(1);
    let fits = match how.groups {
        1 if flat.is_column() => pieces(kernel[0] * c) <= MOST_PIECES,
        1 if how.dilation[1] == 1 => kernel[0] * pieces(kernel[1] * c) <= MOST_PIECES,
        1 => positions * pieces(*c) <= MOST_PIECES,
        groups => match shape::width([*c, *n], groups, dtype, target) {
            Some(width) if n / groups >= width => positions * pieces(c / groups) <= MOST_PIECES,
            Some(_) => {
                let together = *wide > 1 || depthwise::cuts(*high);
                positions <= depthwise::MOST_POSITIONS && together
            }
            None => false,
        },
    };
    let floats = matches!(dtype, DType::F32 | DType::F64);
    let vectors = !target.is_simt() && target.vector_bytes > 0;
    let several = *high >= 2 || *wide >= 2;
    floats && vectors && there && several && *n >= lanes && kernel[1] <= MOST_PIECES && fits
}

/// A convolution's numbers; winograd is still open.
fn numbers(graph: &Graph, node: &Node) -> Option<ConvPanels> {
    let how = Convolution::of(&node.op)?;
    let weight = sizes(graph, node.inputs[1])?;
    (3..=5).contains(&weight.len()).then(|| ConvPanels {
        how,
        kernel: weight[2..].to_vec(),
        n: weight[0],
        winograd: false,
    })
}

/// The panels for the weight of a convolution: their columns, and whether they are of points.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share of sizes far below 2^53"
)]
pub fn panels(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<(i64, bool)> {
    let numbers = numbers(graph, node)?;
    let (x, out) = (sizes(graph, node.inputs[0])?, sizes(graph, node.out())?);
    let dtype = graph.ty(node.out()).dtype;
    let in_order = |sizes: &[i64]| -> Vec<i64> {
        let dims = last(sizes.len());
        dims.into_iter().map(|d| sizes[d]).collect()
    };
    let flat = Flat::of(&in_order(&x), &in_order(&out), &numbers)?;
    if !suits(dtype, &flat, x.len() == 5, target) {
        return None;
    }
    let Flat { x, out, how } = flat;
    let (n, channels) = (out[3], x[3]);
    let width = shape::width([channels, n], how.how.groups, dtype, target)?;
    let tiles = ceil_div(out[1], 2) * ceil_div(out[2], 2) * 4;
    let waste = tiles as f64 / (out[1] * out[2]) as f64;
    let winograd = dtype.size() >= 4
        && how.can_be_winograd()
        && channels.min(n) >= WINOGRAD_CHANNELS
        && waste <= WINOGRAD_WASTE;
    Some((width, winograd))
}

/// Whether all convolutions of a graph have such a kernel, and together compute enough that panels may be made at every call: on a matrix unit, or one in some at least at points or along lines; or some in groups and some not, which keep
/// channels last between them; or kernels of single channels alone. Groups of several channels alone are faster with channels first.
pub fn pays(graph: &Graph, target: &TargetDesc) -> bool {
    let product = |sizes: &[i64]| sizes.iter().copied().fold(1, i64::saturating_mul);
    let (mut all, mut faster, mut packed) = (0_i64, 0_i64, 0_i64);
    let (mut grouped, mut plain, mut single) = (false, false, true);
    let is_convolution = |node: &&Node| matches!(node.op, Op::Convolution { .. });
    for node in graph.nodes.values().filter(is_convolution) {
        let (Some((_, winograd)), Some(how), Some(weight), Some(out)) = (
            panels(graph, node, target),
            numbers(graph, node),
            sizes(graph, node.inputs[1]),
            sizes(graph, node.out()),
        ) else {
            return false;
        };
        let work = product(&out).saturating_mul(product(&weight[1..]));
        all = all.saturating_add(work);
        let groups = how.how.groups;
        grouped |= groups > 1;
        plain |= groups == 1;
        single &= groups == weight[0];
        let is_line = how.kernel.len() == 1;
        if winograd || is_line || shape::unit(graph.ty(node.out()).dtype, target).is_some() {
            faster = faster.saturating_add(work);
        }
        let how = ConvPanels { winograd, ..how };
        let rows = weight[1] * how.taps();
        let deep = rows.saturating_mul(how.positions());
        packed = packed.saturating_add(weight[0].saturating_mul(deep));
    }
    let gains = faster >= all / AT_POINTS && faster > 0;
    (gains || (grouped && (plain || single))) && all / packed.max(1) >= WORTH_PACKING
}

/// Bytes of the panels that are made at once of a convolution's weight at every call.
pub fn workspace(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<i64> {
    let (width, winograd) = panels(graph, node, target)?;
    let (x, weight) = (sizes(graph, node.inputs[0])?, sizes(graph, node.inputs[1])?);
    let how = ConvPanels {
        winograd,
        ..numbers(graph, node)?
    };
    let groups = how.how.groups;
    // Groups that share a vector: instances make copies of their own.
    if groups > 1 && how.n / groups < width {
        return Some(0);
    }
    let dtype = graph.ty(node.out()).dtype;
    let padded = match groups {
        1 => shape::padded(weight[1] * how.taps(), shape::unit(dtype, target)),
        _ => weight[1],
    };
    let bytes = shape::panel_bytes(&how, padded, width, dtype);
    // Of a volume, planes of the result count as images.
    let planes = match how.kernel.len() {
        3 => sizes(graph, node.out())?[2],
        _ => 1,
    };
    let part = shape::part(ceil_div(how.n, width), bytes, x[0] * planes);
    Some(bytes.saturating_mul(part))
}

/// Whether a node is a convolution with a weight as it is, or with the panels of this machine's kernel, which lie as they were written: an input, one panel behind the other.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let Some(how) = ConvPanels::of(&node.op) else {
        return false;
    };
    let [x, panels] = [node.inputs[0], node.inputs[1]];
    let strides = graph.values[panels].layout.strides();
    let dense = strides.is_none_or(|strides| strides == graph.ty(panels).contiguous_strides());
    let (Some(of_x), Some(of_panels), Some(out)) = (
        sizes(graph, x),
        sizes(graph, panels),
        sizes(graph, node.out()),
    ) else {
        return false;
    };
    let Some(flat) = Flat::of(&of_x, &out, &how) else {
        return false;
    };
    let whole = how.is_whole(&of_x[of_x.len() - 1], &of_panels);
    if !whole && (!dense || !graph.inputs.contains(&panels)) {
        return false;
    }
    let dtype = graph.ty(x).dtype;
    let width = shape::width([flat.x[3], how.n], how.how.groups, dtype, target);
    // Panels that were made ahead have single channels.
    let readable = match shape::unit(dtype, target) {
        Some(_) if how.how.groups == 1 => whole && !how.winograd,
        _ => whole || width == Some(of_panels[2]),
    };
    let is_volume = of_x.len() == 5;
    readable && suits(dtype, &flat, is_volume, target)
}

/// Builds the program. `nest` is the work on the result, over its dims.
pub fn images(
    nest: &Nest,
    params_of: impl Fn(&KernelBuilder) -> Params,
    images: &Images,
    target: &TargetDesc,
) -> Result<Program> {
    if images.in_panel() > 1 {
        depthwise::depthwise(nest, params_of, images, target)
    } else if images.unit.is_some() {
        matrix::matrix(nest, params_of, images, target)
    } else if images.winograd {
        winograd::winograd(nest, params_of, images, target)
    } else {
        direct::direct(nest, params_of, images, target)
    }
}

/// Sizes of equal parts that a number of things can be cut into.
fn divisors(all: i64) -> impl Iterator<Item = i64> {
    (1..=all).filter(move |part| all % part == 0)
}

/// How many images and how many of each one's lines an instance may have: several images only whole.
fn parts(images: i64, lines: i64) -> impl Iterator<Item = (i64, i64)> {
    let of_one = divisors(lines).map(|band| (1, band));
    let several = divisors(images).skip(1).map(move |count| (count, lines));
    of_one.chain(several)
}

/// Where a block of the result stands.
struct Block {
    image: Tile,
    /// Along the dims of positions: how many, the first, and how many of them exist where that is not all.
    places: Vec<(i64, Tile, Option<Tile>)>,
    /// Output channels, and which so many of them.
    width: i64,
    panel: Tile,
}

/// The work on the result, on one block of sums.
fn finish(
    k: &KernelBuilder,
    (nest, params): (&Nest, &Params),
    images: &Images,
    at: Block,
    sum: Tile,
) {
    let (mut block, mut start, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    let mut push = |size: i64, first: Tile, left: Option<Tile>| {
        block.push(size);
        start.push(Some(first));
        rest.push(left);
    };
    let planes = images.depth.as_ref().map_or(1, |depth| depth.out);
    let [image, plane] = match planes {
        1 => [at.image, k.constant(DType::I64, 0)],
        _ => [BinaryOp::Div, BinaryOp::Rem].map(|op| at.image.binary(op, planes)),
    };
    if images.images > planes {
        push(1, image, None);
    }
    if planes > 1 {
        push(1, plane, None);
    }
    for (size, first, left) in at.places {
        push(size, first, left);
    }
    let (cols, n) = (at.width, images.n);
    push(cols, &at.panel * cols, left(&at.panel, cols, n));
    let tiling = Tiling::of(block);
    let position = start.clone();
    let mut frame = Frame::place(k, params, nest, &tiling, position, start, rest);
    frame.give(0, sum);
    for node in 0..nest.values.len() {
        frame.value(node);
    }
    for store in &nest.stores {
        frame.store(store.value, &store.window);
    }
}
