//! A matrix product as a plain reduction: every dtype, every shape, every target.
//!
//! The nest gets the depth as one more dim, before the columns, so that one row of `b` after the other is added into a row of results; nothing is copied. It is the fallback
//! where no matrix unit or packed kernel applies, and the way of products too small to be worth a copy.

use oxyfuel_base::{Code, DType, Error, Result};
use oxyfuel_graph::{Graph, Node as GraphNode, Op, ValueId};
use oxyfuel_kernel::ir::{BinaryOp, ReduceOp};
use oxyfuel_schedule::{Group, Placements};

use crate::build::{accumulator, known};
use crate::nest::{Dims, Nest, NestOp, NestStore, Window};
use crate::pointwise::Writer;

/// `out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, with element strides in this order of dims.
#[derive(Clone, Debug)]
pub struct Product {
    pub batch: i64,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a: Operand,
    pub b: Operand,
    pub acc: DType,
}

/// Where an operand lies.
#[derive(Clone, Debug)]
pub struct Operand {
    pub buffer: usize,
    pub dtype: DType,
    pub base: i64,
    pub batch_stride: i64,
    /// Along the product's own dims: `[m, k]` for `a`, `[k, n]` for `b`.
    pub strides: [i64; 2],
}

/// Reads the product that a contraction node stands for. `buffers` are the roots in argument order.
pub fn product(
    graph: &Graph,
    placements: &Placements,
    node: &GraphNode,
    buffers: &[ValueId],
) -> Result<Product> {
    let (a, b) = match node.op {
        Op::Mm | Op::Bmm => (node.inputs[0], node.inputs[1]),
        Op::Addmm { .. } => (node.inputs[1], node.inputs[2]),
        _ => {
            return Err(Error::new(
                Code::Internal,
                format!("`{}` is no product", node.op.name()),
            ));
        }
    };
    let operand = |value: ValueId| -> Result<Operand> {
        let place = placements.of(value);
        let strides = place
            .strides
            .iter()
            .map(known)
            .collect::<Result<Vec<_>>>()?;
        let rank = strides.len();
        let buffer = buffers
            .iter()
            .position(|&r| r == place.root)
            .ok_or_else(|| Error::new(Code::Internal, "an operand of a product has no buffer"))?;
        Ok(Operand {
            buffer,
            dtype: graph.values[value].ty.dtype,
            base: known(&place.offset)?,
            batch_stride: if rank == 3 { strides[0] } else { 0 },
            strides: [strides[rank - 2], strides[rank - 1]],
        })
    };
    let extent = |value: ValueId, from_end: usize| {
        let shape = &graph.values[value].ty.shape;
        known(&shape[shape.len() - from_end])
    };
    let out = &graph.values[node.out()].ty;
    let batch = if out.rank() == 3 {
        known(&out.shape[0])?
    } else {
        1
    };
    Ok(Product {
        batch,
        m: extent(a, 2)?,
        k: extent(a, 1)?,
        n: extent(b, 1)?,
        a: operand(a)?,
        b: operand(b)?,
        acc: accumulator(out.dtype),
    })
}

/// Puts the product in place of the nest's given value, which is its first.
pub fn direct(nest: &Nest, group: &Group, out: ValueId, product: &Product) -> Result<Nest> {
    let map = &group.maps[&out];
    let columns = map[map.len() - 1];
    let depth = columns.unwrap_or(nest.rank());
    let shift = |d: usize| if d >= depth { d + 1 } else { d };
    let widen = |window: &Window| {
        let mut strides = window.strides.clone();
        strides.insert(depth, 0);
        Window {
            buffer: window.buffer,
            base: window.base,
            strides,
        }
    };
    let mut dims = nest.dims.clone();
    dims.insert(depth, product.k);
    let mut new = Nest::new(nest.name.clone(), dims);
    new.buffers = nest.buffers.clone();
    new.reduced = Dims::default().with(depth);
    let rows = map[map.len() - 2].map(shift);
    let batch = (map.len() == 3).then(|| map[0].map(shift)).flatten();
    let columns = columns.map(shift);
    let window = |operand: &Operand, own: Option<usize>, own_stride: i64, depth_stride: i64| {
        let mut strides = vec![0; nest.rank() + 1];
        strides[depth] = depth_stride;
        if let Some(d) = own {
            strides[d] = own_stride;
        }
        if let Some(d) = batch {
            strides[d] = operand.batch_stride;
        }
        Window {
            buffer: operand.buffer,
            base: operand.base,
            strides,
        }
    };
    let a = new.push(
        NestOp::Load(window(
            &product.a,
            rows,
            product.a.strides[0],
            product.a.strides[1],
        )),
        product.a.dtype,
    )?;
    let b = new.push(
        NestOp::Load(window(
            &product.b,
            columns,
            product.b.strides[1],
            product.b.strides[0],
        )),
        product.b.dtype,
    )?;
    let (a, b) = (
        Writer { nest: &mut new }.cast(a, product.acc)?,
        Writer { nest: &mut new }.cast(b, product.acc)?,
    );
    let mut term = new.push(NestOp::Binary(BinaryOp::Mul, a, b), product.acc)?;
    if product.k == 0 {
        // Nothing to add up: the sum is 0 whatever the operands are.
        term = Writer { nest: &mut new }.constant(product.acc, 0)?;
    }
    let sum = if product.k <= 1 {
        term
    } else {
        new.push(NestOp::Reduce(ReduceOp::Sum, term), product.acc)?
    };
    let mut map = vec![sum];
    for value in &nest.values[1..] {
        let op = match &value.op {
            NestOp::Load(window) => NestOp::Load(widen(window)),
            NestOp::LoadAt {
                window,
                index,
                stride,
                extent,
            } => NestOp::LoadAt {
                window: widen(window),
                index: map[*index],
                stride: *stride,
                extent: *extent,
            },
            NestOp::Coordinate { dim, scale, offset } => NestOp::Coordinate {
                dim: shift(*dim),
                scale: *scale,
                offset: *offset,
            },
            NestOp::Given | NestOp::Reduce(..) => {
                return Err(Error::new(
                    Code::Internal,
                    "work on a product's result may not reduce",
                ));
            }
            NestOp::Const(value) => NestOp::Const(*value),
            NestOp::Unary(f, a) => NestOp::Unary(*f, map[*a]),
            NestOp::Binary(f, a, b) => NestOp::Binary(*f, map[*a], map[*b]),
            NestOp::Compare(f, a, b) => NestOp::Compare(*f, map[*a], map[*b]),
            NestOp::Select(c, a, b) => NestOp::Select(map[*c], map[*a], map[*b]),
            NestOp::Cast(a) => NestOp::Cast(map[*a]),
        };
        map.push(new.push(op, value.dtype)?);
    }
    for store in &nest.stores {
        new.stores.push(NestStore {
            value: map[store.value],
            window: widen(&store.window),
        });
    }
    Ok(new)
}
