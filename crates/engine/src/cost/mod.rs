//! What work costs at least, from the graph alone: bytes that must move, and operations that must happen.
//!
//! | file | idea |
//! |---|---|
//! | `operations.rs` | operations on one element, one table |
//! | `kernel.rs` | a group of the schedule: each element that it touches read once, each result written once |
//! | `external.rs` | products, convolutions and attention that the host computes |
//! | `eager.rs` | the same program one operator at a time, as it would run without a compiler |
//! | `live.rs` | the bytes that live at once in that program |
//!
//! Counts are exact where sizes are numbers, and expressions over the symbols where they are not.

mod eager;
mod external;
mod kernel;
mod live;
mod operations;

pub use eager::{Operator, operators};
pub use external::external_flops;
pub use kernel::kernel_cost;
pub use live::{live, live_bytes};
pub use operations::{node_flops, node_products};

use oxyfuel_base::{DType, Expr};
use oxyfuel_graph::{Graph, Op, Placement, Placements, ValueId};

/// Distinct elements that strides reach: those of dims that do not move count once.
fn touched(shape: &[Expr], strides: &[Expr]) -> Expr {
    let moving = shape.iter().zip(strides);
    moving
        .filter(|(_, stride)| !stride.is_const(0))
        .map(|(extent, _)| extent.clone())
        .product()
}

/// Bytes of so many elements.
fn bytes(elements: Expr, dtype: DType) -> Expr {
    elements * dtype.size()
}

/// What was read of each root: windows, none twice, and never more than the root has.
#[derive(Default)]
struct Reads {
    roots: Vec<(ValueId, Vec<Seen>)>,
}

/// A window on a root: where it lies, its shape, and the elements that it touches.
struct Seen {
    place: Placement,
    shape: Vec<Expr>,
    elements: Expr,
}

impl Reads {
    /// Operand `i` of an op is read.
    fn read(
        &mut self,
        graph: &Graph,
        places: &Placements,
        op: &Op,
        i: usize,
        value: ValueId,
        picked: &Expr,
    ) {
        if !is_read(op, i) {
            return;
        }
        let (place, shape) = (places.of(value), &graph.values[value].ty.shape);
        let mut elements = touched(shape, &place.strides);
        if is_table(op, i) {
            elements = Expr::min(&elements, picked.clone());
        }
        let at = match self.roots.iter().position(|(root, _)| *root == place.root) {
            Some(at) => at,
            None => {
                self.roots.push((place.root, vec![]));
                self.roots.len() - 1
            }
        };
        let windows = &mut self.roots[at].1;
        match windows
            .iter_mut()
            .find(|seen| seen.place == *place && seen.shape == *shape)
        {
            // Picked twice from one table.
            Some(seen) if seen.elements != elements => {
                seen.elements = Expr::max(&seen.elements, elements)
            }
            Some(_) => {}
            None => windows.push(Seen {
                place: place.clone(),
                shape: shape.clone(),
                elements,
            }),
        }
    }

    fn bytes(self, graph: &Graph) -> Expr {
        let root = |(root, windows): (ValueId, Vec<Seen>)| {
            let ty = &graph.values[root].ty;
            let several = windows.len() > 1;
            let sum: Expr = windows.into_iter().map(|seen| seen.elements).sum();
            let all = ty.numel();
            bytes(if several { Expr::min(&sum, all) } else { sum }, ty.dtype)
        };
        self.roots.into_iter().map(root).sum()
    }
}

/// Whether an op looks at the elements of an operand: what an update replaces whole, it does not.
fn is_read(op: &Op, i: usize) -> bool {
    !matches!((op, i), (Op::Copy, 0))
}

/// Whether an op picks elements of an operand by indices.
fn is_table(op: &Op, i: usize) -> bool {
    i == 0
        && matches!(
            op,
            Op::Gather { .. } | Op::IndexSelect { .. } | Op::Embedding
        )
}
