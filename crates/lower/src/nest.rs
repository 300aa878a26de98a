//! A nest: what a group computes, as plain values over one iteration domain.
//!
//! The domain is a list of dims. Every value varies over some of them (its *support*) and is constant along the others, so broadcasting costs nothing and a reduced value is
//! one whose support lost the reduced dims. Buffers are read and written through affine windows (a base and one stride for each dim); views are gone by now, they became strides.
//! A nest knows no tiles and no targets: [`crate::tile`] chooses the tiles, [`crate::rows`] writes the tile program.
//!
//! Extents, strides and offsets are expressions over the graph's symbols. What is constant is compiled in; what is not becomes a parameter of the kernel ([`crate::size`]), and where a
//! decision needs a number, [`Known`] has the symbols' ranges and a guess.
//!
//! Invariants: operands come before their users; an elementwise value's support is the union of its operands'; all reductions of a nest run over the same dims, all of its scans along the
//! same dim, which is none of those.

use std::rc::Rc;

use oxyfuel_base::{Code, DType, Error, Expr, Result, Scalar};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, ReduceOp, UnaryOp};

use crate::size::Known;

/// Position of a value in [`Nest::values`].
pub type Node = usize;

/// A set of domain dims, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    pub base: Expr,
    pub strides: Vec<Expr>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NestOp {
    /// Reads a window.
    Load(Window),
    /// Reads a window moved by `index * stride` elements (gather, embedding); the index counts from the window's base, `0..extent`.
    LoadAt {
        window: Window,
        index: Node,
        stride: Expr,
        extent: Expr,
    },
    /// A value that the surrounding program provides, such as a product's accumulator. Varies over the whole domain.
    Given,
    Const(Scalar),
    /// A size, in i64.
    Size(Expr),
    /// The coordinate along a dim, as `scale * c + offset`.
    Coordinate {
        dim: usize,
        scale: Expr,
        offset: Expr,
    },
    Unary(UnaryOp, Node),
    Binary(BinaryOp, Node, Node),
    Compare(CompareOp, Node, Node),
    Select(Node, Node, Node),
    Cast(Node),
    Reduce(ReduceOp, Node),
    /// The running combination along the scanned dim.
    Scan(ReduceOp, Node),
    /// The state `s = factor * s + term` along the scanned dim, from `s = term` on.
    Recurrence {
        factor: Node,
        term: Node,
    },
    /// Positions (i64) that put the reduced dim, of which there is one, in order. Nobody reads the places behind those that are `wanted`.
    Order {
        operand: Node,
        descending: bool,
        wanted: Option<i64>,
    },
}

impl NestOp {
    /// The values that it reads.
    pub fn operands(&self) -> Vec<Node> {
        match self {
            Self::Load(_)
            | Self::Given
            | Self::Const(_)
            | Self::Size(_)
            | Self::Coordinate { .. } => Vec::new(),
            Self::LoadAt { index, .. } => vec![*index],
            Self::Unary(_, a) | Self::Cast(a) | Self::Reduce(_, a) | Self::Scan(_, a) => vec![*a],
            Self::Order { operand, .. } => vec![*operand],
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => vec![*a, *b],
            Self::Recurrence { factor, term } => vec![*factor, *term],
            Self::Select(c, a, b) => vec![*c, *a, *b],
        }
    }
}

impl NestOp {
    /// The same op on other values.
    pub fn with_operands(&self, new: impl Fn(Node) -> Node) -> NestOp {
        match self {
            Self::Load(_)
            | Self::Given
            | Self::Const(_)
            | Self::Size(_)
            | Self::Coordinate { .. } => self.clone(),
            Self::LoadAt {
                window,
                index,
                stride,
                extent,
            } => Self::LoadAt {
                window: window.clone(),
                index: new(*index),
                stride: stride.clone(),
                extent: extent.clone(),
            },
            Self::Unary(f, a) => Self::Unary(*f, new(*a)),
            Self::Binary(f, a, b) => Self::Binary(*f, new(*a), new(*b)),
            Self::Compare(f, a, b) => Self::Compare(*f, new(*a), new(*b)),
            Self::Select(c, a, b) => Self::Select(new(*c), new(*a), new(*b)),
            Self::Cast(a) => Self::Cast(new(*a)),
            Self::Reduce(f, a) => Self::Reduce(*f, new(*a)),
            Self::Scan(f, a) => Self::Scan(*f, new(*a)),
            Self::Recurrence { factor, term } => Self::Recurrence {
                factor: new(*factor),
                term: new(*term),
            },
            Self::Order {
                operand,
                descending,
                wanted,
            } => Self::Order {
                operand: new(*operand),
                descending: *descending,
                wanted: *wanted,
            },
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

/// A store that an index moves: element `window + index * stride`; the index counts `0..extent`. Along the scanned dim the window stands still, and stores follow each other in order.
#[derive(Clone, Debug, PartialEq)]
pub struct NestScatter {
    pub value: Node,
    /// Stands for what was there before, where the value is made of it: a [`NestOp::Given`].
    pub old: Option<Node>,
    pub window: Window,
    pub index: Node,
    pub stride: Expr,
    pub extent: Expr,
}

/// A buffer that the nest touches, in argument order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestBuffer {
    pub dtype: DType,
    pub read: bool,
    pub written: bool,
    /// Elements reachable behind the pointer.
    pub len: Expr,
    pub align: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    pub name: String,
    pub dims: Vec<Expr>,
    pub known: Rc<Known>,
    /// The dims that reductions run over.
    pub reduced: Dims,
    /// The dim that scans run along; at most one.
    pub scanned: Dims,
    pub buffers: Vec<NestBuffer>,
    pub values: Vec<NestValue>,
    pub stores: Vec<NestStore>,
    pub scatters: Vec<NestScatter>,
}

impl Nest {
    pub fn new(name: impl Into<String>, dims: Vec<Expr>, known: &Rc<Known>) -> Self {
        Self {
            name: name.into(),
            dims,
            known: Rc::clone(known),
            reduced: Dims::default(),
            scanned: Dims::default(),
            buffers: Vec::new(),
            values: Vec::new(),
            stores: Vec::new(),
            scatters: Vec::new(),
        }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Adds a value; its support follows from its operands. A reduction that is there already is not made again: it would cost a pass.
    pub fn push(&mut self, op: NestOp, dtype: DType) -> Result<Node> {
        if matches!(op, NestOp::Reduce(..))
            && let Some(same) = (self.values.iter()).position(|v| v.op == op && v.dtype == dtype)
        {
            return Ok(same);
        }
        let support = match &op {
            NestOp::Load(window) => self.window_support(window),
            NestOp::LoadAt { window, index, .. } => self
                .window_support(window)
                .union(self.values[*index].support),
            NestOp::Given => Dims::all(self.rank()),
            NestOp::Const(_) | NestOp::Size(_) => Dims::default(),
            NestOp::Coordinate { dim, .. } => Dims::default().with(*dim),
            NestOp::Unary(_, a) | NestOp::Cast(a) => self.values[*a].support,
            NestOp::Binary(_, a, b) | NestOp::Compare(_, a, b) => {
                self.values[*a].support.union(self.values[*b].support)
            }
            NestOp::Select(c, a, b) => self.values[*c]
                .support
                .union(self.values[*a].support)
                .union(self.values[*b].support),
            NestOp::Scan(_, a) => self.values[*a].support.union(self.scanned),
            NestOp::Recurrence { factor, term } => self.values[*factor]
                .support
                .union(self.values[*term].support)
                .union(self.scanned),
            NestOp::Order { operand, .. } => self.values[*operand].support.union(self.reduced),
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

    /// Which values some are made of, themselves included.
    pub fn behind(&self, some: impl IntoIterator<Item = Node>) -> Vec<bool> {
        let mut wanted = vec![false; self.values.len()];
        for node in some {
            wanted[node] = true;
        }
        for node in (0..wanted.len()).rev() {
            if wanted[node] {
                for operand in self.values[node].op.operands() {
                    wanted[operand] = true;
                }
            }
        }
        wanted
    }

    /// The dims along which a window moves.
    pub fn window_support(&self, window: &Window) -> Dims {
        let mut support = Dims::default();
        for (d, stride) in window.strides.iter().enumerate() {
            if !stride.is_const(0) && !self.dims[d].is_const(1) {
                support = support.with(d);
            }
        }
        support
    }

    /// Whether a store has one element for a whole row of the reduced dims; a value that is the same all along the row may still fill it.
    pub fn is_small_store(&self, store: &NestStore) -> bool {
        let all = self.store_support(store);
        all.minus(self.reduced) == all
    }

    /// The dims along which a store's value or place differs.
    pub fn store_support(&self, store: &NestStore) -> Dims {
        let varies = self.values[store.value].support;
        varies.union(self.window_support(&store.window))
    }

    /// The extent of a dim, or a guess.
    pub fn guess(&self, dim: usize) -> i64 {
        self.known.guess(&self.dims[dim])
    }

    /// The most that a dim can have; `i64::MAX` when nothing is known.
    pub fn most(&self, dim: usize) -> i64 {
        self.dims[dim].bounds(&self.known.ranges).hi
    }

    /// The least that a dim can have.
    pub fn least(&self, dim: usize) -> i64 {
        self.dims[dim].bounds(&self.known.ranges).lo
    }

    /// Whether blocks of this size cover a dim exactly.
    pub fn divides(&self, block: i64, dim: usize) -> bool {
        block == 1 || self.dims[dim].is_divisible_by(block, &self.known.ranges)
    }

    /// Every expression that the kernel's grids and lengths are made of.
    pub fn extents(&self) -> impl Iterator<Item = &Expr> {
        let tables = self.values.iter().filter_map(|value| match &value.op {
            NestOp::LoadAt { extent, .. } => Some(extent),
            _ => None,
        });
        let targets = self.scatters.iter().map(|scatter| &scatter.extent);
        let lengths = self.buffers.iter().map(|buffer| &buffer.len);
        self.dims.iter().chain(tables).chain(targets).chain(lengths)
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
        let scatters = self.scatters.iter().map(|scatter| &scatter.window);
        let stores = self.stores.iter().map(|store| &store.window);
        loads.chain(stores).chain(scatters)
    }

    /// Puts the dims in the order of memory, merges neighbours that every window walks as one, and drops dims of extent 1, so that tiles run over as few and as long
    /// dims as possible.
    pub fn collapse(&mut self) {
        self.follow_memory();
        let mut d = self.rank();
        while d > 0 {
            d -= 1;
            if self.dims[d].is_const(1) {
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

    /// Lets dims follow each other as in memory, the one with neighbouring elements last. Stores decide before loads; where a reduction needs its dims in one place,
    /// what it reads whole decides alone.
    fn follow_memory(&mut self) {
        let all = Dims::all(self.rank());
        let loads = self.values.iter().filter_map(|value| match &value.op {
            NestOp::Load(window) => Some(window),
            _ => None,
        });
        let windows: Vec<Vec<i64>> = if self.has_reduction() {
            loads
                .filter(|load| self.window_support(load) == all)
                .collect::<Vec<_>>()
        } else {
            let stores = self.stores.iter().map(|store| &store.window);
            stores.chain(loads).collect()
        }
        .into_iter()
        .map(|window| {
            window
                .strides
                .iter()
                .map(|s| self.known.guess(s).saturating_abs())
                .collect()
        })
        .collect();
        let inside = |a: usize, b: usize| {
            let moving = windows.iter().map(|w| (w[a], w[b]));
            let differs = moving.filter(|&(a, b)| a != 0 && b != 0 && a != b);
            differs.map(|(a, b)| a < b).next().unwrap_or(false)
        };
        let mut order: Vec<usize> = Vec::with_capacity(self.rank());
        for d in 0..self.rank() {
            // Behind the last dim that does not lie inside of this one.
            let at = order
                .iter()
                .rposition(|&other| !inside(other, d))
                .map_or(0, |at| at + 1);
            order.insert(at, d);
        }
        if order.iter().enumerate().any(|(i, &d)| i != d) {
            self.permute(&order);
        }
    }

    /// Dim `order[i]` becomes dim `i`.
    pub fn permute(&mut self, order: &[usize]) {
        let moved = |dims: Dims| {
            let places = (0..order.len()).filter(|&i| dims.contains(order[i]));
            places.fold(Dims::default(), Dims::with)
        };
        self.dims = order.iter().map(|&d| self.dims[d].clone()).collect();
        self.reduced = moved(self.reduced);
        self.scanned = moved(self.scanned);
        for value in &mut self.values {
            value.support = moved(value.support);
            if let NestOp::Coordinate { dim, .. } = &mut value.op {
                *dim = order.iter().position(|d| d == dim).unwrap_or(*dim);
            }
        }
        for_each_window(self, |window| {
            window.strides = order.iter().map(|&d| window.strides[d].clone()).collect();
        });
    }

    /// Puts values in another order; `order` has each of them once, operands before their users.
    pub fn reorder(&mut self, order: &[Node]) {
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        self.values = order
            .iter()
            .map(|&old| NestValue {
                op: self.values[old].op.with_operands(|n| place[n]),
                ..self.values[old].clone()
            })
            .collect();
        for store in &mut self.stores {
            store.value = place[store.value];
        }
        for scatter in &mut self.scatters {
            scatter.value = place[scatter.value];
            scatter.index = place[scatter.index];
            scatter.old = scatter.old.map(|old| place[old]);
        }
    }

    /// Whether dims `outer` and `outer + 1` can become one.
    fn can_merge(&self, outer: usize) -> bool {
        let inner = outer + 1;
        let apart = |dims: Dims| dims.contains(outer) != dims.contains(inner);
        if apart(self.reduced) || apart(self.scanned) {
            return false;
        }
        let both_or_none = |dims: Dims| dims.contains(outer) == dims.contains(inner);
        let named = self.values.iter().any(|value| matches!(value.op, NestOp::Coordinate { dim, .. } if dim == outer || dim == inner));
        !named
            && self.values.iter().all(|value| both_or_none(value.support))
            && self
                .windows()
                .all(|window| window.strides[outer] == &window.strides[inner] * &self.dims[inner])
            && (&self.dims[outer] * &self.dims[inner]).check().is_ok()
    }

    /// Makes dims `outer` and `outer + 1` one, if every window walks them as one.
    pub fn merged(&mut self, outer: usize) -> bool {
        let can = self.can_merge(outer);
        if can {
            self.merge(outer);
        }
        can
    }

    fn merge(&mut self, outer: usize) {
        self.dims[outer] = &self.dims[outer] * &self.dims[outer + 1];
        let inner_strides =
            |window: &mut Window| window.strides[outer] = window.strides[outer + 1].clone();
        for_each_window(self, inner_strides);
        self.drop_dim(outer + 1);
    }

    /// Takes a dim out that nothing varies along.
    pub fn drop_dim(&mut self, dim: usize) {
        self.dims.remove(dim);
        let shrink = |dims: Dims| Dims(dims.0 & ((1 << dim) - 1) | dims.0 >> 1 & !((1 << dim) - 1));
        self.reduced = shrink(self.reduced);
        self.scanned = shrink(self.scanned);
        for_each_window(self, |window| {
            window.strides.remove(dim);
        });
        for value in &mut self.values {
            value.support = shrink(value.support);
            if let NestOp::Coordinate { dim: d, offset, .. } = &mut value.op {
                if *d == dim {
                    value.op = match offset.as_const() {
                        Some(offset) => NestOp::Const(Scalar::I(offset)),
                        None => NestOp::Size(offset.clone()),
                    };
                } else if *d > dim {
                    *d -= 1;
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
    for scatter in &mut nest.scatters {
        f(&mut scatter.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxyfuel_base::Symbol;

    fn window(buffer: usize, strides: &[i64]) -> Window {
        Window {
            buffer,
            base: Expr::ZERO,
            strides: strides.iter().map(|&s| s.into()).collect(),
        }
    }

    fn buffer(len: i64) -> NestBuffer {
        NestBuffer {
            dtype: DType::F32,
            read: true,
            written: false,
            len: len.into(),
            align: 64,
        }
    }

    fn nest(dims: &[i64]) -> Nest {
        let dims = dims.iter().map(|&d| d.into()).collect();
        Nest::new("n", dims, &Rc::default())
    }

    #[test]
    fn contiguous_dims_become_one() {
        let mut nest = nest(&[4, 1, 8, 16]);
        nest.buffers.push(buffer(512));
        let x = nest
            .push(NestOp::Load(window(0, &[128, 128, 16, 1])), DType::F32)
            .unwrap();
        nest.stores.push(NestStore {
            value: x,
            window: window(0, &[128, 128, 16, 1]),
        });
        nest.collapse();
        assert_eq!(nest.dims, [512].map(Expr::constant));
        assert_eq!(nest.values[0].support, Dims::all(1));
        assert_eq!(nest.stores[0].window.strides, [Expr::ONE]);
    }

    #[test]
    fn a_broadcast_operand_keeps_its_dim_apart() {
        let mut nest = nest(&[4, 8, 16]);
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
        assert_eq!(nest.dims, [32, 16].map(Expr::constant));
        assert_eq!(nest.values[b].support, Dims(0b10));
    }

    #[test]
    fn a_reduced_dim_is_not_merged_with_a_kept_one() {
        let mut nest = nest(&[4, 8]);
        nest.reduced = Dims(0b10);
        nest.buffers.push(buffer(32));
        let x = nest
            .push(NestOp::Load(window(0, &[8, 1])), DType::F32)
            .unwrap();
        let sum = nest
            .push(NestOp::Reduce(ReduceOp::Sum, x), DType::F32)
            .unwrap();
        nest.collapse();
        assert_eq!(nest.dims, [4, 8].map(Expr::constant));
        assert_eq!(nest.values[sum].support, Dims(0b01));
    }

    #[test]
    fn symbolic_dims_merge_where_strides_prove_it() {
        let (n, m) = (Expr::symbol(Symbol(0)), Expr::symbol(Symbol(1)));
        let dims = vec![n.clone(), m.clone(), 8.into()];
        let mut nest = Nest::new("n", dims, &Rc::default());
        nest.buffers.push(buffer(0));
        let strides = vec![&m * 8, 8.into(), 1.into()];
        let window = |strides: Vec<Expr>| Window {
            buffer: 0,
            base: Expr::ZERO,
            strides,
        };
        let op = NestOp::Load(window(strides.clone()));
        let value = nest.push(op, DType::F32).unwrap();
        let mut padded = nest.clone();
        nest.stores.push(NestStore {
            value,
            window: window(strides),
        });
        nest.collapse();
        assert_eq!(nest.dims, [&n * &m * 8]);
        padded.stores.push(NestStore {
            value,
            window: window(vec![&m * 16, 16.into(), 1.into()]),
        });
        padded.collapse();
        assert_eq!(padded.dims, [&n * &m, 8.into()]);
    }
}
