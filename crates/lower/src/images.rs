//! Convolutions of images with channels last, on the vector unit of a CPU, with weights in panels (`conv_panels`).

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::conv_panels::ConvPanels;
use oxyfuel_graph::convolution::Convolution;
use oxyfuel_graph::{Graph, Node, Op, ValueId};
use oxyfuel_plan::TargetDesc;

use crate::blocked::columns;

/// Channels and outputs from which on sixteen small products cost less than nine positions of a window.
const WINOGRAD_CHANNELS: i64 = 16;

/// Sizes that are all known.
fn sizes(graph: &Graph, value: ValueId) -> Option<Vec<i64>> {
    let shape = graph.ty(value).shape.iter();
    shape.map(Expr::as_const).collect()
}

fn has_vectors(dtype: DType, target: &TargetDesc) -> bool {
    matches!(dtype, DType::F32 | DType::F64) && !target.is_simt() && target.vector_bytes > 0
}

/// The panels for the weight of a convolution: their columns, and whether they are of points.
pub fn panels(graph: &Graph, node: &Node, target: &TargetDesc) -> Option<(i64, bool)> {
    let how = Convolution::of(&node.op)?;
    let [x, weight] = [node.inputs[0], node.inputs[1]].map(|value| sizes(graph, value));
    let (x, weight) = (x?, weight?);
    let dtype = graph.ty(node.out()).dtype;
    if x.len() != 4 || how.groups != 1 || !has_vectors(dtype, target) || x.contains(&0) {
        return None;
    }
    let (n, channels) = (weight[0], weight[1]);
    let lanes = i64::from(target.lanes(dtype.size() as u32));
    if n < lanes {
        return None;
    }
    let numbers = ConvPanels {
        how,
        kernel: [weight[2], weight[3]],
        n,
        winograd: false,
    };
    let winograd = numbers.can_be_winograd() && channels.min(n) >= WINOGRAD_CHANNELS;
    Some((columns(n, lanes), winograd))
}

/// Whether a node is a convolution with the panels of this machine's kernel, which lie as they were written: an input, one panel behind the other.
pub fn applies(graph: &Graph, node: &Node, target: &TargetDesc) -> bool {
    let Op::ConvPanels { .. } = node.op else {
        return false;
    };
    let _ = (graph, target);
    false
}
