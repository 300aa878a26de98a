//! Weights that a product widens as it reads them: bytes and halves that are cast for it, and scaled.
//!
//! ```text
//!   mm x, permute(_to_copy(w))                ─▶  mm x, _to_copy(permute(w))
//!   mm x, permute(_to_copy(w) * scale)        ─▶  (mm x, _to_copy(permute(w))) * scale         a scale for each column of the product
//! ```
//!
//! Kernels for products widen an operand where they copy or read it, if the cast stands right before the product: the schedule then makes it a part of the product's group. So views move in front of the cast, and a scale that does not vary
//! along the depth moves behind the product, where it is work on the result. The cast is exact, and a sum of scaled terms is a scaled sum, but for rounding: scales of bytes, which are quantised weights, move, and in f32 alone, where a sum's own rounding is as large.

use oxyfuel_base::{Arena, DType, Expr, Result};
use oxyfuel_graph::{Binary, Graph, Node, NodeId, Op, Rebuild, Users, ValueId};

use crate::decompose::keep_name;

/// A weight as a product sees it.
struct Weight<'a> {
    /// What is widened.
    source: ValueId,
    dtype: DType,
    /// From the weight to the operand, first to last.
    views: Vec<&'a Node>,
    /// One number for each column of the operand.
    scale: Option<ValueId>,
}

struct Find<'a> {
    graph: &'a Graph,
    definitions: &'a Arena<ValueId, Option<NodeId>>,
    users: &'a Users,
}

impl<'a> Find<'a> {
    /// The node of a value that one other node reads, and nobody else.
    fn alone(&self, value: ValueId) -> Option<&'a Node> {
        let node = &self.graph.nodes[self.definitions[value]?];
        (self.users.count(value) == 1).then_some(node)
    }

    /// The weight of a product, where there is something to move.
    fn weight(&self, node: &Node) -> Option<Weight<'a>> {
        let plain = match &node.op {
            Op::Mm | Op::Bmm => false,
            Op::Addmm { beta, alpha } => beta.as_f64() == 1.0 && alpha.as_f64() == 1.0,
            _ => return None,
        };
        let (_, operand) = node.op.product_operands()?;
        let operand = node.inputs[operand];
        let mut views = Vec::new();
        let mut value = operand;
        let scaled = loop {
            let before = self.alone(value)?;
            match &before.op {
                Op::Permute { .. } => {
                    views.push(before);
                    value = before.inputs[0];
                }
                Op::Cast { .. } => break None,
                Op::Binary(Binary::Mul) => break Some(before),
                _ => return None,
            }
        };
        views.reverse();
        let dtype = self.graph.ty(operand).dtype;
        let cast = |value: ValueId| {
            let node = self.alone(value)?;
            let from = self.graph.ty(*node.inputs.first()?).dtype;
            (matches!(node.op, Op::Cast { .. }) && Op::product_widens(from, dtype))
                .then_some(node.inputs[0])
        };
        let Some(scaled) = scaled else {
            let source = cast(value)?;
            return (!views.is_empty()).then_some(Weight {
                source,
                dtype,
                views,
                scale: None,
            });
        };
        let movable = matches!(node.op, Op::Mm) || plain;
        if !movable || dtype != DType::F32 || views.len() > 1 {
            return None;
        }
        let (source, scale) = match scaled.inputs[..] {
            [a, b] => match (cast(a), cast(b)) {
                (Some(source), _) => (source, b),
                (None, Some(source)) => (source, a),
                (None, None) => return None,
            },
            _ => return None,
        };
        // The dim of the weight that the product's columns run along.
        let columns = match views.first().map(|view| &view.op) {
            Some(Op::Permute { dims }) => *dims.get(1)?,
            _ => 1,
        };
        let (whole, shape) = (&self.graph.ty(value).shape, &self.graph.ty(scale).shape);
        let along = |dim: usize| {
            let own = (dim + shape.len()).checked_sub(2);
            own.map_or(Expr::ONE, |own| shape[own].clone())
        };
        let bytes = matches!(self.graph.ty(source).dtype, DType::I8 | DType::U8);
        let whole_source = self.graph.ty(source).shape == *whole;
        let fits = bytes
            && whole.len() == 2
            && shape.len() <= 2
            && whole_source
            && along(1 - columns).is_const(1)
            && along(columns) == whole[columns];
        fits.then_some(Weight {
            source,
            dtype,
            views,
            scale: Some(scale),
        })
    }
}

/// Brings casts of weights right before the products that read them, and scales behind those.
pub fn operands(graph: Graph) -> Result<Graph> {
    let (definitions, users) = (graph.definitions(), graph.users());
    let find = Find {
        graph: &graph,
        definitions: &definitions,
        users: &users,
    };
    if !graph.nodes.values().any(|node| find.weight(node).is_some()) {
        return Ok(graph);
    }
    let mut rebuild = Rebuild::new(&graph);
    for (id, node) in graph.nodes.iter() {
        let Some(weight) = find.weight(node) else {
            rebuild.copy(id)?;
            continue;
        };
        rebuild.at(id);
        let mut value = rebuild.get(weight.source)?;
        for view in &weight.views {
            value = rebuild.builder.emit(view.op.clone(), &[value])?;
        }
        let cast = rebuild.builder.cast(value, weight.dtype)?;
        let (first, second) = node.op.product_operands().unwrap_or_default();
        let out = match weight.scale {
            None => {
                let mut inputs = Vec::with_capacity(node.inputs.len());
                for (number, &input) in node.inputs.iter().enumerate() {
                    inputs.push(match number == second {
                        true => cast,
                        false => rebuild.get(input)?,
                    });
                }
                rebuild.builder.emit(node.op.clone(), &inputs)?
            }
            Some(scale) => {
                let x = rebuild.get(node.inputs[first])?;
                let product = rebuild.builder.mm(x, cast)?;
                let scale = rebuild.get(scale)?;
                let columns = graph.ty(node.out()).shape[1].clone();
                let scale = rebuild.builder.view(scale, &[columns])?;
                let scaled = rebuild.builder.mul(product, scale)?;
                match first {
                    0 => scaled,
                    _ => {
                        let bias = rebuild.get(node.inputs[0])?;
                        rebuild.builder.add(scaled, bias)?
                    }
                }
            }
        };
        keep_name(&graph, node.out(), &mut rebuild.builder, out);
        rebuild.define(node.out(), out);
    }
    rebuild.finish()
}
