//! Who computes a product, a convolution or attention on a CPU, where the import may choose: whoever was measured to be faster.

use crate::call::{Call, refuse};
use oxyfuel_base::{DType, Expr, Result};
use oxyfuel_graph::{Category, Device, ValueId};

/// Products of so few rows read a weight where it lies, frozen or not, and were not measured against the host's library.
const FEW: i64 = 16;

/// A product of matrices: ours where the weight is frozen, since its copy into panels is then made once.
pub(super) fn product(c: &Call<'_>, a: ValueId, b: ValueId) -> Result<()> {
    on_cpu(c, a)?;
    known(c, &[a, b])?;
    let ty = c.b.ty(a);
    let many = ty.rank() == 2 && ty.shape[0].as_const().is_some_and(|rows| rows > FEW);
    match ty.dtype == DType::F32 && many && is_frozen(c, b) {
        true => Ok(()),
        false => refuse("products run in the host's library"),
    }
}

/// Not measured in whole models yet.
pub(super) fn convolution() -> Result<()> {
    refuse("convolutions run in the host's library")
}

/// Not measured in whole models yet.
pub(super) fn attention() -> Result<()> {
    refuse("fused attention runs in the host's library")
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

/// Whether a value is a frozen input, seen in any way.
fn is_frozen(c: &Call<'_>, mut value: ValueId) -> bool {
    let graph = c.b.graph();
    loop {
        if graph.values[value].frozen {
            return true;
        }
        let mut nodes = graph.nodes.values().rev();
        match nodes.find(|node| node.outputs.contains(&value)) {
            Some(node) if node.op.category() == Category::View => value = node.inputs[0],
            _ => return false,
        }
    }
}
