//! Values kept wide inside of a kernel: what `fast` numerics mean.
//!
//! Arithmetic on bf16 and f16 happens in f32. Eager rounds after every operator, so a nest does too: a cast to the narrow dtype, and for the next operator one back. Here
//! such a pair goes, and only what is stored is rounded. A cast that the program asks for and takes back goes with them; storage floats (fp8 and narrower) stay, since a cast
//! to them is meant.
//!
//! Where it does round after every operator, [`kept_narrow`] lets machines do so without conversions.

use oxyfuel_base::DType;
use oxyfuel_kernel::ir::BinaryOp;

use crate::nest::{Nest, NestOp, Node};

/// Where values of narrow dtypes are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// After every operator.
    #[default]
    Everywhere,
    /// Where they are stored.
    AtStores,
}

/// The nest without casts to a narrow dtype that the next cast takes back, and without what nobody reads then.
pub fn kept_wide(nest: &Nest) -> Nest {
    // What stands for each value.
    let mut stands: Vec<Node> = Vec::with_capacity(nest.values.len());
    for (node, value) in nest.values.iter().enumerate() {
        stands.push(match back_and_forth(nest, node) {
            Some(wide) => stands[wide],
            None => node,
        });
        debug_assert_eq!(nest.values[stands[node]].dtype, value.dtype);
    }
    pruned(nest, &stands)
}

/// The nest with `stands[node]` in the place of each value, and without what nobody reads then.
fn pruned(nest: &Nest, stands: &[Node]) -> Nest {
    let mut live = vec![false; nest.values.len()];
    for store in &nest.stores {
        live[stands[store.value]] = true;
    }
    for scatter in &nest.scatters {
        live[stands[scatter.value]] = true;
        live[stands[scatter.index]] = true;
    }
    for node in (0..nest.values.len()).rev() {
        if live[node] {
            for operand in nest.values[node].op.operands() {
                live[stands[operand]] = true;
            }
        }
    }
    let mut place = vec![0; nest.values.len()];
    let mut out = nest.clone();
    out.values.clear();
    for (node, value) in nest.values.iter().enumerate() {
        // The surrounding program gives this one whether it is read or not.
        if live[node] || value.op == NestOp::Given {
            place[node] = out.values.len();
            let mut value = value.clone();
            value.op = value.op.with_operands(|operand| place[stands[operand]]);
            out.values.push(value);
        }
    }
    for store in &mut out.stores {
        store.value = place[stands[store.value]];
    }
    for scatter in &mut out.scatters {
        scatter.value = place[stands[scatter.value]];
        scatter.index = place[stands[scatter.index]];
        scatter.old = scatter.old.map(|old| place[stands[old]]);
    }
    out
}

/// Sums, products and extremes of narrow values that are rounded to their own dtype, as operations of that dtype: the same bits, since f32 holds a product exactly and has more than twice the digits of a sum.
/// Machines with arithmetic on pairs do two of them in one instruction, and convert nothing.
pub fn kept_narrow(nest: &Nest) -> Nest {
    let mut out = nest.clone();
    for node in 0..out.values.len() {
        if let Some(op) = of_narrow(&out, node) {
            out.values[node].op = op;
        }
    }
    let same: Vec<Node> = (0..out.values.len()).collect();
    pruned(&out, &same)
}

/// What a cast to a narrow dtype rounds, as an operation of that dtype.
fn of_narrow(nest: &Nest, node: Node) -> Option<NestOp> {
    let to = nest.values[node].dtype;
    if !matches!(to, DType::BF16 | DType::F16) {
        return None;
    }
    let NestOp::Cast(wide) = nest.values[node].op else {
        return None;
    };
    let NestOp::Binary(f, a, b) = nest.values[wide].op else {
        return None;
    };
    let exact = matches!(
        f,
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max
    );
    let widened = |node: Node| match nest.values[node].op {
        NestOp::Cast(narrow) if nest.values[narrow].dtype == to => Some(narrow),
        _ => None,
    };
    let is_single = nest.values[wide].dtype == DType::F32;
    (exact && is_single).then_some(NestOp::Binary(f, widened(a)?, widened(b)?))
}

/// The f32 value that a cast brings back, if it is one.
fn back_and_forth(nest: &Nest, node: Node) -> Option<Node> {
    let value = |node: Node| &nest.values[node];
    let NestOp::Cast(narrow) = value(node).op else {
        return None;
    };
    let NestOp::Cast(wide) = value(narrow).op else {
        return None;
    };
    let is_narrow = matches!(value(narrow).dtype, DType::BF16 | DType::F16);
    let same = value(node).dtype == DType::F32 && value(wide).dtype == DType::F32;
    (is_narrow && same).then_some(wide)
}
