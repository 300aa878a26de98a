//! Views of what a group computes: dims that a view only relabels stay dims of the group.

use oxyfuel_base::Expr;
use oxyfuel_graph::{Category, Graph, NodeId, Op, ValueId};

use crate::group::{DimMap, Group};

/// Dims of a view of a value that a group computes, given the value's own; `None` if the view does more than relabel dims.
pub fn view_dims(
    graph: &Graph,
    group: &Group,
    producer: &dyn Fn(ValueId) -> Option<NodeId>,
    value: ValueId,
) -> Option<DimMap> {
    if let Some(map) = group.maps.get(&value) {
        return Some(map.clone());
    }
    let node = &graph.nodes[producer(value)?];
    if node.op.category() != Category::View {
        return None;
    }
    let operand = node.inputs[0];
    let inner = view_dims(graph, group, producer, operand)?;
    view_map(
        &node.op,
        &graph.values[operand].ty.shape,
        &graph.values[value].ty.shape,
        &inner,
    )
}

/// Dims of a view, given those of its operand, if the view only relabels dims.
pub(crate) fn view_map(op: &Op, from: &[Expr], to: &[Expr], inner: &DimMap) -> Option<DimMap> {
    let one = Expr::constant(1);
    match op {
        Op::Permute { dims } => Some(dims.iter().map(|&d| inner[d]).collect()),
        Op::Expand { .. } => {
            let lead = to.len() - from.len();
            Some(
                (0..to.len())
                    .map(|j| {
                        if j < lead || from[j - lead] == one {
                            None
                        } else {
                            inner[j - lead]
                        }
                    })
                    .collect(),
            )
        }
        Op::View { .. } => {
            let kept_from: Vec<usize> = (0..from.len()).filter(|&j| from[j] != one).collect();
            let kept_to: Vec<usize> = (0..to.len()).filter(|&j| to[j] != one).collect();
            let same = kept_from.len() == kept_to.len()
                && kept_from
                    .iter()
                    .zip(&kept_to)
                    .all(|(&a, &b)| from[a] == to[b]);
            same.then(|| {
                let mut map = vec![None; to.len()];
                for (&a, &b) in kept_from.iter().zip(&kept_to) {
                    map[b] = inner[a];
                }
                map
            })
        }
        _ => None,
    }
}
