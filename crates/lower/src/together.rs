//! An order of a nest's values in which reductions that do not need each other stand next to each other: where threads meet for every reduction, they meet once for all of them.

use crate::chunk::layers;
use crate::nest::{Nest, NestOp, Node};

/// Puts the values in that order. Others stay where they are, but for what a reduction that came forward needs.
pub fn reductions_together(nest: &mut Nest) {
    let layers = layers(nest);
    let reduces = |n: &Node| matches!(nest.values[*n].op, NestOp::Reduce(..));
    let mut order = Order {
        nest,
        nodes: Vec::with_capacity(nest.values.len()),
        placed: vec![false; nest.values.len()],
    };
    for node in 0..nest.values.len() {
        if !reduces(&node) {
            order.place(node);
            continue;
        }
        let together: Vec<Node> = (node..nest.values.len())
            .filter(|n| reduces(n) && layers[*n] == layers[node])
            .collect();
        for &one in &together {
            order.place_operands(one);
        }
        for one in together {
            order.place(one);
        }
    }
    let nodes = order.nodes;
    nest.reorder(&nodes);
}

struct Order<'a> {
    nest: &'a Nest,
    nodes: Vec<Node>,
    placed: Vec<bool>,
}

impl Order<'_> {
    /// A value behind all that it needs.
    fn place(&mut self, node: Node) {
        if !self.placed[node] {
            self.place_operands(node);
            self.placed[node] = true;
            self.nodes.push(node);
        }
    }

    fn place_operands(&mut self, node: Node) {
        for operand in self.nest.values[node].op.operands() {
            self.place(operand);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::{Dims, NestBuffer, NestStore, Window};
    use oxyfuel_base::{DType, Expr};
    use oxyfuel_kernel::ir::{BinaryOp, ReduceOp};
    use std::rc::Rc;

    #[test]
    fn a_sum_of_squares_comes_forward_to_the_sum() {
        let mut nest = Nest::new("n", [4, 8].map(Expr::constant).to_vec(), &Rc::default());
        nest.reduced = Dims(0b10);
        nest.buffers.push(NestBuffer {
            dtype: DType::F32,
            read: true,
            written: false,
            len: 32.into(),
            align: 64,
        });
        let window = Window {
            buffer: 0,
            base: Expr::ZERO,
            strides: [8, 1].map(Expr::constant).to_vec(),
        };
        let mut push = |op| nest.push(op, DType::F32).unwrap();
        let x = push(NestOp::Load(window.clone()));
        let sum = push(NestOp::Reduce(ReduceOp::Sum, x));
        let less = push(NestOp::Binary(BinaryOp::Sub, x, sum));
        let square = push(NestOp::Binary(BinaryOp::Mul, x, x));
        let squares = push(NestOp::Reduce(ReduceOp::Sum, square));
        let value = push(NestOp::Binary(BinaryOp::Mul, less, squares));
        nest.stores.push(NestStore { value, window });
        reductions_together(&mut nest);
        let reduces = |n: usize| matches!(nest.values[n].op, NestOp::Reduce(..));
        assert!(reduces(2) && reduces(3) && !reduces(1));
        assert_eq!(nest.values[4].op, NestOp::Binary(BinaryOp::Sub, 0, 2));
        assert_eq!(nest.values[5].op, NestOp::Binary(BinaryOp::Mul, 4, 3));
        assert_eq!(nest.stores[0].value, 5);
    }
}
