//! Who computes a product, a convolution or attention on a CPU, where the import may choose: whoever was measured to be faster.

use crate::call::{Call, refuse};
use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Category, Device, ValueId};

/// Products of so few rows read a weight where it lies, frozen or not, and were not measured against the host's library.
const FEW: i64 = 16;

/// Rows up to which a product with a weight that may change was measured to be faster than the host's, and elements from which on a weight comes from memory at each call.
const MANY: i64 = 256;
const LARGE: i64 = 1 << 18;

/// A product of matrices: ours where the weight is frozen, since its copy into panels is then made once, and where some rows meet a large weight, which is then read as fast as memory gives it.
pub(super) fn product(c: &Call<'_>, a: ValueId, b: ValueId) -> Result<()> {
    on_cpu(c, a)?;
    known(c, &[a, b])?;
    let (left, right) = (c.b.ty(a), c.b.ty(b));
    let number = |n: &Expr| n.as_const().unwrap_or(0);
    let rows = match left.rank() {
        2 => number(&left.shape[0]),
        _ => 0,
    };
    let elements = right.shape.iter().map(number);
    let large = elements.fold(1, i64::saturating_mul) >= LARGE;
    let weight = weight(c, b);
    let free = weight.is_some() && large && rows <= MANY;
    let frozen = weight.is_some_and(|w| c.b.graph().values[w].frozen);
    // Behind convolutions of ours everything is: a call in between costs more than a few rows.
    let few = rows <= FEW && !(c.images && frozen && rows > 0);
    match left.dtype == DType::F32 && !few && (frozen || free) {
        true => Ok(()),
        false => refuse("products run in the host's library"),
    }
}

/// A product of bytes.
pub(super) fn int_product(c: &Call<'_>, a: ValueId, b: ValueId) -> Result<()> {
    on_cpu(c, a)?;
    known(c, &[a, b])?;
    refuse("products run in the host's library")
}

/// Convolutions: ours where all of a graph have kernels that read weights in panels, and keep channels last from one to the next. One that has none would stand between copies.
pub(super) fn convolution(c: &Call<'_>, x: ValueId) -> Result<()> {
    match c.images && on_cpu(c, x).is_ok() {
        true => Ok(()),
        false => refuse("convolutions run in the host's library"),
    }
}

/// Multiply-adds of the smallest attention that was measured, with some room: 12 heads of 128 queries and keys have three times as many. What its kernel works in is more than what smaller ones hold.
const WORK: i64 = 1 << 22;

/// Attention: ours where rows of queries fill the blocks of its kernel.
pub(super) fn attention(c: &Call<'_>, operands: [ValueId; 3]) -> Result<()> {
    let queries = c.b.ty(operands[0]);
    on_cpu(c, operands[0])?;
    known(c, &operands)?;
    let keys = c.b.ty(operands[1]);
    let number = |n: &Expr| n.as_const().unwrap_or(0);
    let many = queries.rank() == 4 && keys.rank() == 4 && number(&queries.shape[2]) > FEW;
    let sizes = queries.shape.iter().map(number);
    let work = sizes.fold(1, i64::saturating_mul);
    let work = work.saturating_mul(keys.shape.get(2).map_or(0, number));
    match queries.dtype == DType::F32 && many && work >= WORK {
        true => Ok(()),
        false => refuse("fused attention runs in the host's library"),
    }
}

/// Not measured in whole models yet.
pub(super) fn attention_backward() -> Result<()> {
    refuse("gradients of fused attention are computed in the host's library")
}

fn on_cpu(c: &Call<'_>, x: ValueId) -> Result<()> {
    match c.b.ty(x).device {
        Device::Cpu => Ok(()),
        Device::Cuda(_) | Device::Host => refuse("the library of the GPU computes it"),
    }
}

/// Kernels for fixed sizes are what was measured.
fn known(c: &Call<'_>, values: &[ValueId]) -> Result<()> {
    let fixed = |v: &ValueId| {
        c.b.ty(*v)
            .shape
            .iter()
            .all(|n: &Expr| n.as_const().is_some())
    };
    match values.iter().all(fixed) {
        true => Ok(()),
        false => refuse("a size is a symbol, and the host's library is faster there"),
    }
}

/// The input that a value is, seen in any way.
fn weight(c: &Call<'_>, mut value: ValueId) -> Option<ValueId> {
    let graph = c.b.graph();
    loop {
        let mut nodes = graph.nodes.values().rev();
        match nodes.find(|node| node.outputs.contains(&value)) {
            None => return Some(value),
            Some(node) if node.op.category() == Category::View => value = node.inputs[0],
            Some(_) => return None,
        }
    }
}
