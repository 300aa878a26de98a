//! A nest: what a group computes, as plain values over one iteration domain.
//!
//! The domain is a list of dims. Every value varies over some of them (its *support*) and is constant along the others, so broadcasting costs nothing and a reduced value is
//! one whose support lost the reduced dims. Buffers are read and written through affine windows (a base and one stride for each dim); views are gone by now, they became strides.
//! A nest knows no tiles and no targets: [`crate::tile`] chooses the tiles, [`crate::rows`] writes the tile program.
//!
//! Invariants: operands come before their users; an elementwise value's support is the union of its operands'; all reductions of a nest run over the same dims.

use oxyfuel_base::{Code, DType, Error, Result, Scalar};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, ReduceOp, UnaryOp};

/// Position of a value in [`Nest::values`].
pub type Node = usize;

/// A set of domain dims, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dims(pub u32);

impl Dims {
    pub fn all(rank: usize) -> Self {
        Self(((1u64 << rank) - 1) as u32)
    }

    pub fn contains(self, dim: usize) -> bool {
        self.0 >> dim & 1 == 1
    }

    pub fn with(self, dim: usize) -> Self {
        Self(self.0 | 1 << dim)
    }

    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..32).filter(move |&d| self.contains(d))
    }
}

/// An affine window over the domain: element `base + sum(c[d] * strides[d])`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Which buffer of [`Nest::buffers`].
    pub buffer: usize,
    pub base: i64,
    pub strides: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NestOp {
    /// Reads a window.
    Load(Window),
    /// Reads a window moved by `index * stride` elements (gather, embedding); the index counts from the window's base, `0..extent`.
    LoadAt {
        window: Window,
        index: Node,
        stride: i64,
        extent: i64,
    },
    /// A value that the surrounding program provides, such as a product's accumulator. Varies over the whole domain.
    Given,
    Const(Scalar),
    /// The coordinate along a dim, as `scale * c + offset`.
    Coordinate {
        dim: usize,
        scale: i64,
        offset: i64,
    },
    Unary(UnaryOp, Node),
    Binary(BinaryOp, Node, Node),
    Compare(CompareOp, Node, Node),
    Select(Node, Node, Node),
    Cast(Node),
    Reduce(ReduceOp, Node),
}

impl NestOp {
    /// The values that it reads.
    pub fn operands(&self) -> Vec<Node> {
        match self {
            Self::Load(_) | Self::Given | Self::Const(_) | Self::Coordinate { .. } => Vec::new(),
            Self::LoadAt { index, .. } => vec![*index],
            Self::Unary(_, a) | Self::Cast(a) | Self::Reduce(_, a) => vec![*a],
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => vec![*a, *b],
            Self::Select(c, a, b) => vec![*c, *a, *b],
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NestValue {
    pub op: NestOp,
    pub dtype: DType,
    pub support: Dims,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NestStore {
    pub value: Node,
    pub window: Window,
}

/// A buffer that the nest touches, in argument order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestBuffer {
    pub dtype: DType,
    pub read: bool,
    pub written: bool,
    /// Elements reachable behind the pointer.
    pub len: i64,
    pub align: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    pub name: String,
    pub dims: Vec<i64>,
    /// The dims that reductions run over.
    pub reduced: Dims,
    pub buffers: Vec<NestBuffer>,
    pub values: Vec<NestValue>,
    pub stores: Vec<NestStore>,
}

impl Nest {
    pub fn new(name: impl Into<String>, dims: Vec<i64>) -> Self {
        Self {
            name: name.into(),
            dims,
            reduced: Dims::default(),
            buffers: Vec::new(),
            values: Vec::new(),
            stores: Vec::new(),
        }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Adds a value; its support follows from its operands.
    pub fn push(&mut self, op: NestOp, dtype: DType) -> Result<Node> {
        let support = match &op {
            NestOp::Load(window) => self.window_support(window),
            NestOp::LoadAt { window, index, .. } => self
                .window_support(window)
                .union(self.values[*index].support),
            NestOp::Given => Dims::all(self.rank()),
            NestOp::Const(_) => Dims::default(),
            NestOp::Coordinate { dim, .. } => Dims::default().with(*dim),
            NestOp::Unary(_, a) | NestOp::Cast(a) => self.values[*a].support,
            NestOp::Binary(_, a, b) | NestOp::Compare(_, a, b) => {
                self.values[*a].support.union(self.values[*b].support)
            }
            NestOp::Select(c, a, b) => self.values[*c]
                .support
                .union(self.values[*a].support)
                .union(self.values[*b].support),
            NestOp::Reduce(_, a) => {
                if self.reduced.is_empty() {
                    return Err(Error::new(
                        Code::Internal,
                        format!("nest {} reduces but names no reduced dims", self.name),
                    ));
                }
                self.values[*a].support.minus(self.reduced)
            }
        };
        self.values.push(NestValue { op, dtype, support });
        Ok(self.values.len() - 1)
    }

    fn window_support(&self, window: &Window) -> Dims {
        let mut support = Dims::default();
        for (d, &stride) in window.strides.iter().enumerate() {
            if stride != 0 && self.dims[d] != 1 {
                support = support.with(d);
            }
        }
        support
    }

    pub fn has_reduction(&self) -> bool {
        self.values
            .iter()
            .any(|value| matches!(value.op, NestOp::Reduce(..)))
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        let loads = self.values.iter().filter_map(|value| match &value.op {
            NestOp::Load(window) | NestOp::LoadAt { window, .. } => Some(window),
            _ => None,
        });
        loads.chain(self.stores.iter().map(|store| &store.window))
    }

    /// Merges neighbouring dims that every window walks as one, and drops dims of extent 1, so that tiles run over as few and as long dims as possible.
    pub fn collapse(&mut self) {
        let mut d = self.rank();
        while d > 0 {
            d -= 1;
            if self.dims[d] == 1 {
                self.drop_dim(d);
            }
        }
        let mut outer = self.rank().saturating_sub(1);
        while outer > 0 {
            outer -= 1;
            if self.can_merge(outer) {
                self.merge(outer);
            }
        }
    }

    /// Whether dims `outer` and `outer + 1` can become one.
    fn can_merge(&self, outer: usize) -> bool {
        let inner = outer + 1;
        if self.reduced.contains(outer) != self.reduced.contains(inner) {
            return false;
        }
        let both_or_none = |dims: Dims| dims.contains(outer) == dims.contains(inner);
        let named = self.values.iter().any(|value| matches!(value.op, NestOp::Coordinate { dim, .. } if dim == outer || dim == inner));
        !named
            && self.values.iter().all(|value| both_or_none(value.support))
            && self
                .windows()
                .all(|window| window.strides[outer] == window.strides[inner] * self.dims[inner])
    }

    fn merge(&mut self, outer: usize) {
        self.dims[outer] *= self.dims[outer + 1];
        let inner_strides = |window: &mut Window| window.strides[outer] = window.strides[outer + 1];
        for_each_window(self, inner_strides);
        self.drop_dim(outer + 1);
    }

    fn drop_dim(&mut self, dim: usize) {
        self.dims.remove(dim);
        let shrink = |dims: Dims| Dims(dims.0 & ((1 << dim) - 1) | dims.0 >> 1 & !((1 << dim) - 1));
        self.reduced = shrink(self.reduced);
        for_each_window(self, |window| {
            window.strides.remove(dim);
        });
        for value in &mut self.values {
            value.support = shrink(value.support);
            if let NestOp::Coordinate {
                dim: d,
                scale,
                offset,
            } = value.op
            {
                if d == dim {
                    value.op = NestOp::Const(Scalar::I(offset));
                } else if d > dim {
                    value.op = NestOp::Coordinate {
                        dim: d - 1,
                        scale,
                        offset,
                    };
                }
            }
        }
    }
}

fn for_each_window(nest: &mut Nest, mut f: impl FnMut(&mut Window)) {
    for value in &mut nest.values {
        if let NestOp::Load(window) | NestOp::LoadAt { window, .. } = &mut value.op {
            f(window);
        }
    }
    for store in &mut nest.stores {
        f(&mut store.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(buffer: usize, strides: &[i64]) -> Window {
        Window {
            buffer,
            base: 0,
            strides: strides.to_vec(),
        }
    }

    fn buffer(len: i64) -> NestBuffer {
        NestBuffer {
            dtype: DType::F32,
            read: true,
            written: false,
            len,
            align: 64,
        }
    }

    #[test]
    fn contiguous_dims_become_one() {
        let mut nest = Nest::new("n", vec![4, 1, 8, 16]);
        nest.buffers.push(buffer(512));
        let x = nest
            .push(NestOp::Load(window(0, &[128, 128, 16, 1])), DType::F32)
            .unwrap();
        nest.stores.push(NestStore {
            value: x,
            window: window(0, &[128, 128, 16, 1]),
        });
        nest.collapse();
        assert_eq!(nest.dims, [512]);
        assert_eq!(nest.values[0].support, Dims::all(1));
        assert_eq!(nest.stores[0].window.strides, [1]);
    }

    #[test]
    fn a_broadcast_operand_keeps_its_dim_apart() {
        let mut nest = Nest::new("n", vec![4, 8, 16]);
        nest.buffers.extend([buffer(512), buffer(16)]);
        let x = nest
            .push(NestOp::Load(window(0, &[128, 16, 1])), DType::F32)
            .unwrap();
        let b = nest
            .push(NestOp::Load(window(1, &[0, 0, 1])), DType::F32)
            .unwrap();
        let sum = nest
            .push(NestOp::Binary(BinaryOp::Add, x, b), DType::F32)
            .unwrap();
        nest.stores.push(NestStore {
            value: sum,
            window: window(0, &[128, 16, 1]),
        });
        nest.collapse();
        assert_eq!(nest.dims, [32, 16]);
        assert_eq!(nest.values[b].support, Dims(0b10));
    }

    #[test]
    fn a_reduced_dim_is_not_merged_with_a_kept_one() {
        let mut nest = Nest::new("n", vec![4, 8]);
        nest.reduced = Dims(0b10);
        nest.buffers.push(buffer(32));
        let x = nest
            .push(NestOp::Load(window(0, &[8, 1])), DType::F32)
            .unwrap();
        let sum = nest
            .push(NestOp::Reduce(ReduceOp::Sum, x), DType::F32)
            .unwrap();
        nest.collapse();
        assert_eq!(nest.dims, [4, 8]);
        assert_eq!(nest.values[sum].support, Dims(0b01));
    }
}
