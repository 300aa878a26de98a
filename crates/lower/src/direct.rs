//! A matrix product as a plain reduction: every dtype, every shape, every target.
//!
//! The nest gets the depth as one more dim; nothing is copied. Before the columns, one row of `b` after the other is added into a row of results. Where memory runs along the depth
//! of both operands, it is the last dim, and each result the sum along a row. It is the fallback where no kernel for products applies, and the way of those too small to be worth a
//! copy.

use oxyfuel_base::{Code, DType, Error, Expr, Result, ensure, err};
use oxyfuel_graph::{Category, Graph, Node as GraphNode, Op, ValueId};
use oxyfuel_kernel::builder::{KernelBuilder, Tile};
use oxyfuel_kernel::ir::{BinaryOp, ReduceOp};
use oxyfuel_schedule::{Before, Group, Schedule};

use crate::build::{accumulator, checked, constant};
use crate::nest::{Dims, Nest, NestOp, NestStore, Window};
use crate::pointwise::Writer;
use crate::rows::left;
use crate::size::{Known, Sizes};

/// `out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]`, with element strides in this order of dims.
#[derive(Clone, Debug)]
pub struct Product<N = i64> {
    pub batch: N,
    pub m: N,
    pub n: N,
    pub k: N,
    pub a: Operand<N>,
    pub b: Operand<N>,
    /// Another second operand of the same sizes: the work on the result takes both products.
    pub pair: Option<Operand<N>>,
    pub acc: DType,
    /// What only a call knows, where the numbers beside it are guesses.
    pub late: Option<Late>,
}

/// Sizes of a product as they are when it runs: how many products there are, how many rows they have, and how deep they are; and where operands lie by them.
#[derive(Clone, Debug)]
pub struct Late {
    pub batch: Expr,
    pub m: Expr,
    pub k: Expr,
    pub a: Operand<Expr>,
    pub b: Operand<Expr>,
}

/// The buffer of an operand that a kernel makes itself.
pub const NOWHERE: usize = usize::MAX;

/// Where an operand lies.
#[derive(Clone, Debug)]
pub struct Operand<N = i64> {
    pub buffer: usize,
    pub dtype: DType,
    pub base: N,
    pub batch_stride: N,
    /// Along the product's own dims: `[m, k]` for `a`, `[k, n]` for `b`.
    pub strides: [N; 2],
    /// Columns of each panel that it was cut into ahead of time, row by row; strides are those within a panel then.
    pub panels: Option<N>,
}

impl Product {
    /// The products that it is, each with one second operand.
    pub fn each(&self) -> Vec<Self> {
        // A pair is of second operands whose places are numbers.
        let late = |b: &Operand| {
            let late = self.late.clone()?;
            let b = match self.pair {
                Some(_) => b.exact(),
                None => late.b.clone(),
            };
            Some(Late { b, ..late })
        };
        let single = |b: &Operand| Self {
            b: b.clone(),
            pair: None,
            late: late(b),
            ..self.clone()
        };
        let operands = [Some(&self.b), self.pair.as_ref()];
        operands.into_iter().flatten().map(single).collect()
    }

    /// How many those are.
    pub fn count(&self) -> i64 {
        1 + i64::from(self.pair.is_some())
    }

    /// Its sizes as they are when it runs.
    pub fn exact(&self) -> Late {
        let known = || Late {
            batch: self.batch.into(),
            m: self.m.into(),
            k: self.k.into(),
            a: self.a.exact(),
            b: self.b.exact(),
        };
        self.late.clone().unwrap_or_else(known)
    }

    /// Whether only a call knows how deep it is.
    pub fn is_open(&self) -> bool {
        let late = self.late.as_ref();
        late.is_some_and(|late| late.k.as_const().is_none())
    }
}

impl Operand {
    /// The same in expressions.
    fn exact(&self) -> Operand<Expr> {
        Operand {
            buffer: self.buffer,
            dtype: self.dtype,
            base: self.base.into(),
            batch_stride: self.batch_stride.into(),
            strides: self.strides.map(Expr::constant),
            panels: self.panels.map(Expr::constant),
        }
    }
}

impl Operand<Expr> {
    /// The first element of a block of `size` rows of a first operand, whose `own` stride is the first, or of columns of a second one.
    pub fn start(
        &self,
        sizes: &Sizes,
        own: usize,
        (block, size): (&Tile, i64),
        batch: Option<&Tile>,
    ) -> Tile {
        let mut start = sizes.times(block, &(&self.strides[own] * size));
        if let Some(batch) = batch {
            start = start + sizes.times(batch, &self.batch_stride);
        }
        sizes.plus(&start, &self.base)
    }
}

impl Late {
    /// The number of the product that an instance belongs to, where there may be several.
    pub fn batch_of(&self, k: &KernelBuilder, axis: u8) -> Option<Tile> {
        let single = self.batch.is_const(1);
        (!single).then(|| k.program_id(axis))
    }

    /// How many of `size` rows exist in a block, where it may be cut short.
    pub fn rows_left(&self, sizes: &Sizes, block: &Tile, size: i64) -> Option<Tile> {
        match self.m.as_const() {
            Some(m) => left(block, size, m),
            None => Some(remaining(sizes, block, size, &self.m)),
        }
    }
}

/// How many of `size` things there are in a block of an extent.
pub fn remaining(sizes: &Sizes, block: &Tile, size: i64, extent: &Expr) -> Tile {
    sizes
        .plus(&(block * -size), extent)
        .binary(BinaryOp::Min, size)
}

impl Product<Expr> {
    /// Whether memory runs along the depth of both operands, and not along the columns.
    fn runs_along_depth(&self) -> bool {
        let [a, b] = [&self.a.strides[1], &self.b.strides[0]];
        a.is_const(1) && b.is_const(1) && !self.b.strides[1].is_const(1)
    }

    /// The product in numbers, for kernels that are made for one size.
    pub fn fixed(&self) -> Result<Product> {
        self.numbers(&constant)
    }

    /// The product with a guess for what only a call knows, for kernels that take any number of rows, or any depth.
    pub fn likely(&self, known: &Known) -> Result<Product> {
        let product = self.numbers(&|size| Ok(known.guess(&checked(size)?)))?;
        let late = Late {
            batch: self.batch.clone(),
            m: self.m.clone(),
            k: self.k.clone(),
            a: self.a.clone(),
            b: self.b.clone(),
        };
        Ok(Product {
            late: Some(late),
            ..product
        })
    }

    /// The product in numbers: `any` gives those of sizes that a kernel may do without.
    fn numbers(&self, any: &dyn Fn(&Expr) -> Result<i64>) -> Result<Product> {
        let operand = |operand: &Operand<Expr>, any: &dyn Fn(&Expr) -> Result<i64>| {
            let [first, second] = &operand.strides;
            Ok(Operand {
                buffer: operand.buffer,
                dtype: operand.dtype,
                base: any(&operand.base)?,
                batch_stride: any(&operand.batch_stride)?,
                strides: [any(first)?, any(second)?],
                panels: operand.panels.as_ref().map(any).transpose()?,
            })
        };
        let a = operand(&self.a, any)?;
        // A second operand of a known depth is a weight, which lies as it lies.
        let of_b = if self.k.as_const().is_some() {
            &constant
        } else {
            any
        };
        let operand = |b: &Operand<Expr>| -> Result<Operand> { operand(b, of_b) };
        let b = operand(&self.b)?;
        let pair = self.pair.as_ref().map(operand).transpose()?;
        let alike = |other: &Operand| {
            other.dtype == b.dtype
                && other.strides == b.strides
                && other.batch_stride == b.batch_stride
                && other.panels == b.panels
        };
        ensure!(
            pair.as_ref().is_none_or(alike),
            NoLowering,
            "two products whose second operands do not lie alike"
        );
        ensure!(
            pair.is_none() || self.k.as_const().is_some(),
            NoLowering,
            "two products of unknown depth"
        );
        Ok(Product {
            batch: any(&self.batch)?,
            m: any(&self.m)?,
            n: constant(&self.n)?,
            k: any(&self.k)?,
            a,
            b,
            pair,
            acc: self.acc,
            late: None,
        })
    }
}

/// Reads the product that a contraction group stands for, or the two. `buffers` are the roots in argument order.
pub fn product(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    buffers: &[ValueId],
) -> Result<Product<Expr>> {
    let nodes = group.nodes.iter().map(|&node| &graph.nodes[node]);
    let mut products = nodes.filter(|node| node.op.category() == Category::Matmul);
    let none = || err!(Internal, "a contraction without a product");
    let node = products.next().ok_or_else(none)?;
    let mut product = single(graph, schedule, group, node, buffers)?;
    if let Some(node) = products.next() {
        product.pair = Some(single(graph, schedule, group, node, buffers)?.b);
    }
    Ok(product)
}

/// What an operand is read from: what it was cast from, where the product makes the cast.
fn widened(graph: &Graph, schedule: &Schedule, group: &Group, operand: ValueId) -> ValueId {
    match schedule.producer(operand) {
        Some(cast) if group.is_widened(cast, operand) => graph.nodes[cast].inputs[0],
        _ => operand,
    }
}

/// Reads the product that a node stands for.
fn single(
    graph: &Graph,
    schedule: &Schedule,
    group: &Group,
    node: &GraphNode,
    buffers: &[ValueId],
) -> Result<Product<Expr>> {
    let operands = node.op.product_operands();
    let (a, b) = operands.ok_or_else(|| err!(Internal, "`{}` is no product", node.op.name()))?;
    let (a, b) = (node.inputs[a], node.inputs[b]);
    let packed = matches!(node.op, Op::MmPanels { .. });
    let operand = |value: ValueId| -> Result<Operand<Expr>> {
        let width = || checked(&graph.values[value].ty.shape[2]);
        let panels = (packed && value == b).then(width).transpose()?;
        let value = widened(graph, schedule, group, value);
        let place = schedule.memory.of(value);
        let strides = place
            .strides
            .iter()
            .map(checked)
            .collect::<Result<Vec<_>>>()?;
        let rank = strides.len();
        let made = |before: &Before| before.value == place.root;
        let nowhere = group.before.as_ref().is_some_and(made).then_some(NOWHERE);
        let buffer = (buffers.iter().position(|&r| r == place.root))
            .or(nowhere)
            .ok_or_else(|| Error::new(Code::Internal, "an operand of a product has no buffer"))?;
        Ok(Operand {
            buffer,
            dtype: graph.values[value].ty.dtype,
            base: checked(&place.offset)?,
            batch_stride: if rank == 3 && panels.is_none() {
                strides[0].clone()
            } else {
                Expr::ZERO
            },
            strides: [strides[rank - 2].clone(), strides[rank - 1].clone()],
            panels,
        })
    };
    let extent = |value: ValueId, from_end: usize| {
        let shape = &graph.values[value].ty.shape;
        checked(&shape[shape.len() - from_end])
    };
    let out = &graph.values[node.out()].ty;
    let batch = if out.rank() == 3 {
        checked(&out.shape[0])?
    } else {
        Expr::ONE
    };
    Ok(Product {
        batch,
        m: extent(a, 2)?,
        k: extent(a, 1)?,
        n: checked(&out.shape[out.rank() - 1])?,
        a: operand(a)?,
        b: operand(b)?,
        pair: None,
        acc: accumulator(out.dtype),
        late: None,
    })
}

/// Puts the product in place of the nest's given value, which is its first; and the other one in place of the second.
pub fn direct(nest: &Nest, group: &Group, out: ValueId, product: &Product<Expr>) -> Result<Nest> {
    if product.b.panels.is_some() {
        return Err(oxyfuel_base::err!(
            NoLowering,
            "a product with panels that no kernel reads"
        ));
    }
    let map = &group.maps[&out];
    let columns = map[map.len() - 1];
    let depth = if product.runs_along_depth() {
        nest.rank()
    } else {
        columns.unwrap_or(nest.rank())
    };
    let shift = |d: usize| if d >= depth { d + 1 } else { d };
    let widen = |window: &Window| {
        let mut strides = window.strides.clone();
        strides.insert(depth, Expr::ZERO);
        Window {
            buffer: window.buffer,
            base: window.base.clone(),
            strides,
        }
    };
    let mut dims = nest.dims.clone();
    dims.insert(depth, product.k.clone());
    let mut new = Nest::new(nest.name.clone(), dims, &nest.known);
    new.buffers = nest.buffers.clone();
    new.reduced = Dims::default().with(depth);
    let rows = map[map.len() - 2].map(shift);
    let batch = (map.len() == 3).then(|| map[0].map(shift)).flatten();
    let columns = columns.map(shift);
    // `own` is the position of the operand's own stride; the other one runs along the depth.
    let window = |operand: &Operand<Expr>, dim: Option<usize>, own: usize| {
        let mut strides = vec![Expr::ZERO; nest.rank() + 1];
        strides[depth] = operand.strides[1 - own].clone();
        if let Some(d) = dim {
            strides[d] = operand.strides[own].clone();
        }
        if let Some(d) = batch {
            strides[d] = operand.batch_stride.clone();
        }
        Window {
            buffer: operand.buffer,
            base: operand.base.clone(),
            strides,
        }
    };
    let sum_of = |new: &mut Nest, b: &Operand<Expr>| -> Result<usize> {
        let (of_a, of_b) = (window(&product.a, rows, 0), window(b, columns, 1));
        let first = new.push(NestOp::Load(of_a), product.a.dtype)?;
        let second = new.push(NestOp::Load(of_b), b.dtype)?;
        let (first, second) = (
            Writer { nest: new }.cast(first, product.acc)?,
            Writer { nest: new }.cast(second, product.acc)?,
        );
        let mut term = new.push(NestOp::Binary(BinaryOp::Mul, first, second), product.acc)?;
        if product.k.is_const(0) {
            // Nothing to add up: the sum is 0 whatever the operands are.
            term = Writer { nest: new }.constant(product.acc, 0)?;
        }
        match product.k.as_const().is_some_and(|k| k <= 1) {
            true => Ok(term),
            false => new.push(NestOp::Reduce(ReduceOp::Sum, term), product.acc),
        }
    };
    let sum = sum_of(&mut new, &product.b)?;
    let mut map = vec![sum];
    for value in &nest.values[1..] {
        if let (NestOp::Given, Some(pair)) = (&value.op, &product.pair) {
            map.push(sum_of(&mut new, pair)?);
            continue;
        }
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
                stride: stride.clone(),
                extent: extent.clone(),
            },
            NestOp::Coordinate { dim, scale, offset } => NestOp::Coordinate {
                dim: shift(*dim),
                scale: scale.clone(),
                offset: offset.clone(),
            },
            NestOp::Given
            | NestOp::Reduce(..)
            | NestOp::Scan(..)
            | NestOp::Recurrence { .. }
            | NestOp::Order { .. } => {
                return Err(Error::new(
                    Code::Internal,
                    "work on a product's result may not reduce",
                ));
            }
            NestOp::Const(_)
            | NestOp::Size(_)
            | NestOp::Unary(..)
            | NestOp::Binary(..)
            | NestOp::Compare(..)
            | NestOp::Select(..)
            | NestOp::Cast(_) => value.op.with_operands(|n| map[n]),
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
