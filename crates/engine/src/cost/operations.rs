//! Operations on one element: one table.
//!
//! An addition, a multiplication, a comparison or a choice is one operation; a function such as `exp` is as many as its expansion has instructions
//! (`docs/maths.md`). Moving, casting and naming anew are none. Integers count as floats do.

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{Binary, Graph, Node, Op, Reduce, Scatter, Unary, ValueId};
use oxyfuel_kernel::UnaryOp;
use oxyfuel_lower::maths::instructions;

/// Operations of `pow`, which has two operands and stands in no table of one (`docs/maths.md`).
const POW: u32 = 70;
/// Operations of ten rounds of Philox.
const PHILOX: u32 = 150;
/// Digits of 50 bits that the remainder of two f32 divides by, some five operations each.
const REMAINDER: u32 = 30;

/// Halvings of a row whose length is a symbol.
const USUAL_HALVINGS: u32 = 10;

fn unary(op: Unary) -> u32 {
    let of = instructions;
    match op {
        Unary::Neg
        | Unary::Abs
        | Unary::Relu
        | Unary::Sqrt
        | Unary::Reciprocal
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Trunc
        | Unary::LogicalNot
        | Unary::BitwiseNot
        | Unary::IsNan
        | Unary::IsInf => 1,
        Unary::Sign => 2,
        Unary::Gelu => of(UnaryOp::Erf) + 4,
        Unary::GeluTanh => of(UnaryOp::Tanh) + 8,
        Unary::Silu => of(UnaryOp::Sigmoid) + 1,
        Unary::Sigmoid => of(UnaryOp::Sigmoid),
        Unary::Tanh => of(UnaryOp::Tanh),
        Unary::Exp => of(UnaryOp::Exp),
        Unary::Exp2 => of(UnaryOp::Exp2),
        Unary::Expm1 => of(UnaryOp::Expm1),
        Unary::Log => of(UnaryOp::Log),
        Unary::Log2 => of(UnaryOp::Log2),
        Unary::Log1p => of(UnaryOp::Log1p),
        Unary::Log10 => of(UnaryOp::Log) + 1,
        Unary::Rsqrt => of(UnaryOp::Rsqrt),
        Unary::Erf => of(UnaryOp::Erf),
        Unary::Erfc => of(UnaryOp::Erfc),
        Unary::Sin => of(UnaryOp::Sin),
        Unary::Cos => of(UnaryOp::Cos),
        Unary::Tan => of(UnaryOp::Sin) + of(UnaryOp::Cos) + 1,
        Unary::Asin | Unary::Acos | Unary::Atan => of(UnaryOp::Atan) + 4,
        Unary::Sinh | Unary::Cosh => of(UnaryOp::Expm1) + 4,
        Unary::Asinh | Unary::Acosh | Unary::Atanh => of(UnaryOp::Log1p) + 5,
    }
}

fn binary(op: Binary, dtype: DType) -> u32 {
    match op {
        Binary::Add
        | Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::Maximum
        | Binary::Minimum
        | Binary::BitwiseAnd
        | Binary::BitwiseOr
        | Binary::BitwiseXor
        | Binary::ShiftLeft
        | Binary::ShiftRight => 1,
        Binary::DivFloor | Binary::DivTrunc => 2,
        Binary::Remainder | Binary::Fmod if dtype.is_float() => REMAINDER,
        Binary::Remainder | Binary::Fmod => 3,
        Binary::Pow => POW,
        Binary::Philox => PHILOX,
        Binary::Atan2 => instructions(UnaryOp::Atan) + 8,
    }
}

/// Operations of a node, but for host calls: see [`super::external_flops`].
pub fn node_flops(graph: &Graph, node: &Node) -> Expr {
    let numel = |value: ValueId| graph.values[value].ty.numel();
    let out = |each: u32| match each {
        0 => Expr::ZERO,
        1 => numel(node.out()),
        each => numel(node.out()) * i64::from(each),
    };
    let read = |each: u32| numel(node.inputs[0]) * i64::from(each);
    let exp = instructions(UnaryOp::Exp);
    match &node.op {
        Op::Unary(op) => out(unary(*op)),
        Op::Binary(op) => out(binary(*op, graph.values[node.inputs[0]].ty.dtype)),
        Op::Compare(_) | Op::Where => out(1),
        Op::Reduce { op, .. } => match op {
            Reduce::Sum | Reduce::Prod | Reduce::Amax | Reduce::Amin => read(1),
            Reduce::Any | Reduce::All => read(1),
            Reduce::Mean => read(1) + out(1),
        },
        Op::Mm | Op::Bmm | Op::IntMm => product(graph, node.inputs[0], numel(node.out())),
        // What is added and scaled is one operation an element of the result each, where it is done.
        Op::Addmm { beta, alpha } => {
            let scales = [beta, alpha].into_iter().filter(|s| s.as_f64() != 1.0);
            let adds = u32::from(beta.as_f64() != 0.0);
            let scaled = scales.filter(|s| s.as_f64() != 0.0).count();
            product(graph, node.inputs[1], numel(node.out()))
                + out(adds + u32::try_from(scaled).unwrap_or(0))
        }
        Op::MmPanels { .. } => node_products(graph, node) + out(u32::from(node.inputs.len() > 2)),
        Op::Convolution { .. } | Op::ConvPanels { .. } => node_products(graph, node),
        // Two products, and between them a softmax over the scores.
        Op::Sdpa { .. } => node_products(graph, node) + scores(graph, node) * i64::from(exp + 4),
        // Five products, and between them the weights and their changes.
        Op::SdpaBackward { .. } => {
            node_products(graph, node) + scores(graph, node) * i64::from(exp + 4)
        }
        // Largest, difference, exponential, sum; then a quotient, or the sum's logarithm.
        Op::Softmax { .. } => out(exp + 4),
        Op::LogSoftmax { .. } => out(exp + 5),
        // Mean, squared distances, and then scaled and moved.
        Op::NativeLayerNorm { .. } => {
            let affine = u32::try_from(node.inputs.len() - 1).unwrap_or(0);
            out(6 + affine)
        }
        Op::Var { .. } => read(4),
        Op::Argmax { .. } | Op::Argmin { .. } => read(2),
        Op::Cumsum { .. } | Op::Cumprod { .. } => out(1),
        Op::LinearScan { .. } => out(2),
        // A comparison for each halving of the row.
        Op::Argsort { dim, .. } => {
            // A tensor without dimensions is one element.
            let extent = graph.values[node.inputs[0]].ty.shape.get(*dim);
            let extent = extent.map_or(Some(1), Expr::as_const);
            let halvings = extent.map_or(USUAL_HALVINGS, |n| n.max(1).ilog2() + 1);
            out(halvings)
        }
        Op::Scatter { op, .. } => match op {
            Scatter::Set => Expr::ZERO,
            Scatter::Sum | Scatter::Prod | Scatter::Amax | Scatter::Amin => numel(node.inputs[1]),
        },
        Op::Arange { .. } => out(2),
        Op::Cast { .. }
        | Op::Clone
        | Op::Copy
        | Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Cat { .. }
        | Op::Gather { .. }
        | Op::IndexSelect { .. }
        | Op::Embedding
        | Op::SliceScatter { .. }
        | Op::IndexPut { .. }
        | Op::Full { .. }
        | Op::ScalarTensor { .. }
        | Op::Constant { .. }
        | Op::External { .. } => Expr::ZERO,
    }
}

/// Of a node's operations, those of its matrix product.
pub fn node_products(graph: &Graph, node: &Node) -> Expr {
    let a = match &node.op {
        Op::Sdpa { .. } => {
            let width = |value: ValueId| graph.values[value].ty.shape[3].clone();
            return scores(graph, node) * (width(node.inputs[1]) + width(node.inputs[2])) * 2;
        }
        Op::SdpaBackward { .. } => {
            let width = |value: ValueId| graph.values[value].ty.shape[3].clone();
            let (depth, width) = (width(node.inputs[2]), width(node.inputs[3]));
            return scores(graph, node) * (depth * 3 + width * 2) * 2;
        }
        Op::Convolution { .. } => {
            return graph.values[node.out()].ty.numel() * window(graph, node) * 2;
        }
        // What is computed, not the fewer products that compute it.
        Op::ConvPanels { kernel, groups, .. } => {
            let reach = kernel.iter().fold(2_usize, |all, &n| all.saturating_mul(n));
            let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let channels = graph.values[node.inputs[0]].ty.shape.last();
            let channels = channels.cloned().unwrap_or(Expr::ONE);
            let depth = channels.floordiv(number(*groups).max(1)) * number(reach);
            return graph.values[node.out()].ty.numel() * depth;
        }
        Op::Mm | Op::Bmm | Op::IntMm | Op::MmPanels { .. } => node.inputs[0],
        Op::Addmm { .. } => node.inputs[1],
        _ => return Expr::ZERO,
    };
    product(graph, a, graph.values[node.out()].ty.numel())
}

/// What one element of a convolution's result is the sum of.
fn window(graph: &Graph, node: &Node) -> Expr {
    let weight = &graph.values[node.inputs[1]].ty.shape;
    weight[1..].iter().cloned().product()
}

/// Pairs of a query and a key.
fn scores(graph: &Graph, node: &Node) -> Expr {
    // The backward has the gradient before everything else.
    let q = usize::from(matches!(node.op, Op::SdpaBackward { .. }));
    let rows = &graph.values[node.inputs[q]].ty.shape[..3];
    let keys = &graph.values[node.inputs[q + 1]].ty.shape[2];
    rows.iter().cloned().product::<Expr>() * keys.clone()
}

/// A multiplication and an addition for each element of the result and of the contracted dim, which is the last of the left operand.
fn product(graph: &Graph, a: ValueId, out: Expr) -> Expr {
    let depth = graph.values[a].ty.shape.last().cloned();
    out * depth.unwrap_or(Expr::ONE) * 2
}
