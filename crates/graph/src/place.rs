//! A view as an offset and strides over a root value.
//!
//! A root is an input, a constant or the result of a computing node; roots that this graph computes are row-major unless their layout says otherwise. A
//! `view` (reshape) that no strides can express is a root itself: the schedule copies it, row-major. The layout of any other view says what a border demands, not where
//! the view lies.

use crate::ir::{Graph, Node, NodeId, ValueId};
use crate::op::{Category, Op};
use oxyfuel_base::{Expr, ExternalResult, Id, Result};

/// Element `(i0, i1, ..)` of a value is element `offset + sum(i * strides)` of its root.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    pub root: ValueId,
    pub offset: Expr,
    pub strides: Vec<Expr>,
}

/// The placement of every value of a graph.
#[derive(Clone, Debug, Default)]
pub struct Placements(Vec<Placement>);

impl Placements {
    pub fn of(&self, value: ValueId) -> &Placement {
        &self.0[value.index()]
    }

    /// Every placement moved by `f`.
    pub fn map(&self, f: impl Fn(&Placement) -> Placement) -> Self {
        Self(self.0.iter().map(f).collect())
    }

    pub fn root(&self, value: ValueId) -> ValueId {
        self.of(value).root
    }

    pub fn is_root(&self, value: ValueId) -> bool {
        self.root(value) == value
    }

    /// Whether a node only names elements of its operand anew, without work.
    pub fn is_view(&self, node: &Node) -> bool {
        node.op.category() == Category::View && !self.is_root(node.out())
    }
}

/// Whether two lists of strides walk a shape in the same way: those of dims that do not move say nothing, and neither do any where there is no element.
pub fn same_strides(shape: &[Expr], a: &[Expr], b: &[Expr]) -> bool {
    shape.iter().any(|extent| extent.is_const(0))
        || (shape.iter().zip(a.iter().zip(b))).all(|(extent, (a, b))| extent.is_const(1) || a == b)
}

/// Places every value. The graph must be verified.
pub fn place_views(graph: &Graph) -> Result<Placements> {
    let mut all: Vec<Option<Placement>> = vec![None; graph.values.len()];
    let root = |value: ValueId, free: bool| {
        let data = &graph.values[value];
        let strides = match data.layout.strides() {
            Some(strides) if free => strides.to_vec(),
            _ => data.ty.contiguous_strides(),
        };
        Placement {
            root: value,
            offset: Expr::constant(0),
            strides,
        }
    };
    for &input in &graph.inputs {
        all[input.index()] = Some(root(input, true));
    }
    for (_, node) in graph.nodes.iter() {
        for &out in &node.outputs {
            let viewed = if node.op.category() == Category::View {
                let operand = node.inputs[0];
                all[operand.index()]
                    .as_ref()
                    .and_then(|place| view_of(graph, &node.op, operand, out, place))
            } else {
                None
            };
            // Constants and copied reshapes are row-major whatever their layout asks for.
            let free = !matches!(node.op, Op::View { .. } | Op::Constant { .. });
            all[out.index()] = Some(viewed.unwrap_or_else(|| root(out, free)));
        }
        if let Op::External { call } = &node.op {
            for (&out, result) in node.outputs.iter().zip(&call.results) {
                if let (ExternalResult::Tensor { strides, .. }, Some(place)) =
                    (result, &mut all[out.index()])
                {
                    place.strides.clone_from(strides);
                }
            }
        }
    }
    let places = all
        .into_iter()
        .zip(graph.values.iter())
        .map(|(place, (id, _))| place.unwrap_or_else(|| root(id, true)))
        .collect();
    Ok(Placements(places))
}

fn view_of(
    graph: &Graph,
    op: &Op,
    operand: ValueId,
    out: ValueId,
    place: &Placement,
) -> Option<Placement> {
    let from = &graph.values[operand].ty.shape;
    let to = &graph.values[out].ty.shape;
    let strides = match op {
        Op::Permute { dims } => dims.iter().map(|&d| place.strides[d].clone()).collect(),
        Op::Expand { .. } => {
            let lead = to.len() - from.len();
            (0..to.len())
                .map(|j| {
                    let repeated = j < lead
                        || (from[j - lead] == Expr::constant(1) && to[j] != Expr::constant(1));
                    if repeated {
                        Expr::constant(0)
                    } else {
                        place.strides[j - lead].clone()
                    }
                })
                .collect()
        }
        Op::Slice {
            dim, start, step, ..
        } => {
            let mut strides = place.strides.clone();
            let offset = place.offset.clone() + start.clone() * strides[*dim].clone();
            strides[*dim] = strides[*dim].clone() * *step;
            return Some(Placement {
                root: place.root,
                offset,
                strides,
            });
        }
        Op::View { .. } => reshape_strides(from, &place.strides, to)?,
        _ => return None,
    };
    Some(Placement {
        root: place.root,
        offset: place.offset.clone(),
        strides,
    })
}

/// Strides of `to` over memory that `from` walks with `strides`, if there are any: runs of dims that are contiguous with each other may be cut anew.
pub fn reshape_strides(from: &[Expr], strides: &[Expr], to: &[Expr]) -> Option<Vec<Expr>> {
    let one = Expr::constant(1);
    if from.iter().any(|d| *d == Expr::constant(0)) {
        let mut result = vec![one.clone(); to.len()];
        for j in (1..to.len()).rev() {
            result[j - 1] = result[j].clone() * to[j].clone();
        }
        return Some(result);
    }
    // Dims of extent 1 carry no information; the others form runs that memory walks as one dim.
    let dims: Vec<(Expr, Expr)> = from
        .iter()
        .cloned()
        .zip(strides.iter().cloned())
        .filter(|(d, _)| *d != one)
        .collect();
    let mut runs: Vec<(Expr, Expr)> = Vec::new();
    for (extent, stride) in dims {
        match runs.last_mut() {
            Some((run, inner)) if *inner == stride.clone() * extent.clone() => {
                *run = run.clone() * extent;
                *inner = stride;
            }
            _ => runs.push((extent, stride)),
        }
    }
    let mut result = vec![one.clone(); to.len()];
    let mut j = to.len();
    for (extent, stride) in runs.into_iter().rev() {
        let mut taken = one.clone();
        while taken != extent {
            if j == 0 {
                return None;
            }
            j -= 1;
            result[j] = stride.clone() * taken.clone();
            taken *= to[j].clone();
            if let (Some(have), Some(want)) = (taken.as_const(), extent.as_const())
                && have > want
            {
                return None;
            }
        }
    }
    to[..j].iter().all(|d| *d == one).then_some(result)
}

/// The strides that the root behind `value` must have for `value` to lie with `strides`, through views that name every element once; none where a view does more.
pub fn root_strides(
    graph: &Graph,
    placements: &Placements,
    definitions: &impl Fn(ValueId) -> Option<NodeId>,
    value: ValueId,
    strides: &[Expr],
) -> Option<Vec<Expr>> {
    let shape = |value: ValueId| &graph.ty(value).shape;
    let (mut value, mut strides) = (value, strides.to_vec());
    while !placements.is_root(value) {
        let node = &graph.nodes[definitions(value)?];
        let inner = node.inputs[0];
        strides = match &node.op {
            Op::Permute { dims } => {
                let mut before = strides.clone();
                for (stride, &d) in strides.iter().zip(dims) {
                    before[d] = stride.clone();
                }
                before
            }
            Op::View { .. } => {
                let before = reshape_strides(shape(value), &strides, shape(inner))?;
                let there = reshape_strides(shape(inner), &before, shape(value))?;
                same_strides(shape(value), &there, &strides).then_some(before)?
            }
            _ => return None,
        };
        value = inner;
    }
    Some(strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exprs(values: &[i64]) -> Vec<Expr> {
        values.iter().map(|&v| Expr::constant(v)).collect()
    }

    fn reshape(from: &[i64], strides: &[i64], to: &[i64]) -> Option<Vec<i64>> {
        let strides = reshape_strides(&exprs(from), &exprs(strides), &exprs(to))?;
        Some(strides.iter().map(|s| s.as_const().unwrap()).collect())
    }

    #[test]
    fn contiguous_dims_split_and_merge() {
        assert_eq!(reshape(&[6, 4], &[4, 1], &[24]), Some(vec![1]));
        assert_eq!(reshape(&[24], &[1], &[2, 3, 4]), Some(vec![12, 4, 1]));
        assert_eq!(reshape(&[6, 4], &[4, 1], &[2, 12]), Some(vec![12, 1]));
    }

    #[test]
    fn a_transposed_matrix_cannot_be_flattened() {
        assert_eq!(reshape(&[4, 6], &[1, 4], &[24]), None);
        assert_eq!(reshape(&[4, 6], &[1, 4], &[2, 2, 6]), Some(vec![2, 1, 4]));
    }

    #[test]
    fn dims_of_one_come_and_go() {
        assert_eq!(reshape(&[1, 5, 1], &[5, 1, 1], &[5]), Some(vec![1]));
        assert_eq!(reshape(&[5], &[1], &[1, 5, 1]).map(|s| s[1]), Some(1));
        assert_eq!(
            reshape(&[5, 3], &[0, 1], &[5, 1, 3]).map(|s| (s[0], s[2])),
            Some((0, 1))
        );
    }
}
