//! A nest and its tiling as a phase of a logical tile program.
//!
//! Dims whose block is smaller than their extent become grid axes; dims with a block above 1 become tile dims. A value that varies over no tile dim is a scalar. Tiles hold extent 1
//! along dims that a value does not vary over, so that broadcasting stays visible to targets.

use oxyfuel_base::{DType, Expr, Scalar};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window as TileWindow};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Order, ReduceOp};

use crate::nest::{Dims, Nest, NestOp, NestValue, Node, Window};
use crate::tile::{Tiling, ceil_div};

/// Adds the phase that computes `nest`.
pub fn emit(k: &KernelBuilder, mems: &[Mem], nest: &Nest, tiling: &Tiling) {
    let blocks = Blocks::new(nest, tiling);
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut frame = Frame::new(k, mems, nest, tiling, &blocks);
        for node in 0..nest.values.len() {
            frame.value(node);
        }
        for store in &nest.stores {
            frame.store(store.value, &store.window);
        }
    });
}

/// Adds the phase that reduces each part of a cut reduction: results of part `p` go to element `kept * parts + p` of a workspace each.
///
/// The outermost reduced dim is cut by `tiling`. Returns the number of parts.
pub fn emit_partial(
    k: &KernelBuilder,
    mems: &[Mem],
    nest: &Nest,
    tiling: &Tiling,
    workspaces: &[(Node, Mem)],
) {
    let blocks = Blocks::new(nest, tiling);
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let parts = blocks.count[cut];
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut frame = Frame::new(k, mems, nest, tiling, &blocks);
        frame.cut = Some(cut);
        for node in 0..nest.values.len() {
            let whole = nest.values[node].support.union(nest.reduced) == nest.values[node].support;
            let sums = matches!(nest.values[node].op, NestOp::Reduce(..));
            if whole || sums || !depends_on_reduction(nest, node) {
                frame.value(node);
            }
        }
        for (node, mem) in workspaces {
            let window = partial_window(nest, usize::MAX, parts);
            frame.store_partial(*node, mem, &window, cut);
        }
    });
}

/// The window of partial results: row-major over the kept dims, then the parts.
fn partial_window(nest: &Nest, buffer: usize, parts: i64) -> Window {
    let mut strides = vec![0; nest.rank()];
    let mut step = parts;
    for d in (0..nest.rank()).rev() {
        if !nest.reduced.contains(d) {
            strides[d] = step;
            step *= nest.dims[d];
        }
    }
    Window {
        buffer,
        base: 0,
        strides,
    }
}

/// Whether a value needs the result of a reduction.
pub fn depends_on_reduction(nest: &Nest, node: Node) -> bool {
    let op = &nest.values[node].op;
    matches!(op, NestOp::Reduce(..))
        || op
            .operands()
            .into_iter()
            .any(|n| depends_on_reduction(nest, n))
}

/// The grid: how many blocks each dim has, and which axis counts them.
pub struct Blocks {
    pub count: Vec<i64>,
    /// Dims counted by each axis, the slowest first; several share the last axis when there are more than three.
    axes: Vec<Vec<usize>>,
    pub grid: Vec<Expr>,
}

/// The most instances that every machine's launch takes along any axis but the first.
const SHORT_AXIS: i64 = 65_535;

impl Blocks {
    pub fn new(nest: &Nest, tiling: &Tiling) -> Self {
        let count: Vec<i64> = nest
            .dims
            .iter()
            .zip(&tiling.block)
            .map(|(&n, &b)| ceil_div(n, b.max(1)))
            .collect();
        let mut axes: Vec<Vec<usize>> = Vec::new();
        for d in (0..count.len()).rev().filter(|&d| count[d] > 1) {
            if axes.len() < 3 {
                axes.push(vec![d]);
            } else if let Some(axis) = axes.last_mut() {
                axis.insert(0, d);
            }
        }
        if count.contains(&0) {
            // Nothing to do, and nobody to do it.
            return Self {
                count,
                axes: Vec::new(),
                grid: vec![Expr::constant(0)],
            };
        }
        let extent = |dims: &Vec<usize>| dims.iter().map(|&d| count[d]).product::<i64>();
        if axes.iter().skip(1).any(|dims| extent(dims) > SHORT_AXIS) {
            axes = vec![(0..count.len()).filter(|&d| count[d] > 1).collect()];
        }
        if axes.is_empty() {
            axes.push(Vec::new());
        }
        let grid = axes
            .iter()
            .map(|dims| Expr::constant(dims.iter().map(|&d| count[d]).product()))
            .collect();
        Self { count, axes, grid }
    }

    /// The block number of every dim that has several.
    fn positions(&self, k: &KernelBuilder) -> Vec<Option<Tile>> {
        let mut positions = vec![None; self.count.len()];
        for (axis, dims) in self.axes.iter().enumerate() {
            let mut rest = if dims.is_empty() {
                continue;
            } else {
                k.program_id(axis as u8)
            };
            for (i, &d) in dims.iter().enumerate().rev() {
                if i == 0 {
                    positions[d] = Some(rest.clone());
                } else {
                    positions[d] = Some(rest.binary(BinaryOp::Mod, self.count[d]));
                    rest = rest.binary(BinaryOp::FloorDiv, self.count[d]);
                }
            }
        }
        positions
    }
}

/// What is left of an extent from a block on, at most the block.
pub fn left(block: &Tile, size: i64, extent: i64) -> Option<Tile> {
    (extent % size != 0).then(|| (block * -size + extent).binary(BinaryOp::Min, size))
}

/// Values of one program instance while they are written.
pub struct Frame<'a> {
    k: &'a KernelBuilder,
    mems: &'a [Mem],
    nest: &'a Nest,
    tiling: &'a Tiling,
    /// Domain dims that are dims of the tile, in order.
    tile_dims: Vec<usize>,
    /// First coordinate of this instance along each dim; `None` where it is 0.
    start: Vec<Option<Tile>>,
    /// Block numbers, for values that only the first block of a dim stores.
    position: Vec<Option<Tile>>,
    /// How many coordinates exist from the start on, where the last block is cut short.
    left: Vec<Option<Tile>>,
    values: Vec<Option<Tile>>,
    /// The reduced dim that this phase sees a part of.
    cut: Option<usize>,
}

impl<'a> Frame<'a> {
    pub fn new(
        k: &'a KernelBuilder,
        mems: &'a [Mem],
        nest: &'a Nest,
        tiling: &'a Tiling,
        blocks: &Blocks,
    ) -> Self {
        let position = blocks.positions(k);
        let start: Vec<Option<Tile>> = position
            .iter()
            .zip(&tiling.block)
            .map(|(p, &b)| p.as_ref().map(|p| if b == 1 { p.clone() } else { p * b }))
            .collect();
        let left = (0..nest.rank())
            .map(|d| match &start[d] {
                Some(start) if tiling.block[d] > 1 && nest.dims[d] % tiling.block[d] != 0 => {
                    Some((start * -1 + nest.dims[d]).binary(BinaryOp::Min, tiling.block[d]))
                }
                _ => None,
            })
            .collect();
        Self::place(k, mems, nest, tiling, position, start, left)
    }

    /// A frame at coordinates that the caller computed.
    pub fn place(
        k: &'a KernelBuilder,
        mems: &'a [Mem],
        nest: &'a Nest,
        tiling: &'a Tiling,
        position: Vec<Option<Tile>>,
        start: Vec<Option<Tile>>,
        left: Vec<Option<Tile>>,
    ) -> Self {
        let mut tile_dims: Vec<usize> = (0..nest.rank()).filter(|&d| tiling.block[d] > 1).collect();
        if tile_dims.is_empty() && nest.rank() > 0 {
            tile_dims.push(nest.rank() - 1);
        }
        Self {
            k,
            mems,
            nest,
            tiling,
            tile_dims,
            start,
            position,
            left,
            values: vec![None; nest.values.len()],
            cut: None,
        }
    }

    /// Gives the value of a [`NestOp::Given`].
    pub fn give(&mut self, node: Node, tile: Tile) {
        self.values[node] = Some(tile);
    }

    /// The tile of a value that was written.
    pub fn get(&self, node: Node) -> Tile {
        self.values[node]
            .clone()
            .unwrap_or_else(|| self.k.constant(self.nest.values[node].dtype, 0))
    }

    /// Shape of a value's tile: its block along dims that it varies over, 1 along the others. A value without any is a scalar.
    fn shape(&self, support: Dims) -> Vec<i64> {
        let shape: Vec<i64> = self
            .tile_dims
            .iter()
            .map(|&d| {
                if support.contains(d) {
                    self.tiling.block[d]
                } else {
                    1
                }
            })
            .collect();
        if shape.iter().all(|&extent| extent == 1)
            && !self.tile_dims.iter().any(|&d| support.contains(d))
        {
            Vec::new()
        } else {
            shape
        }
    }

    fn plus(&self, sum: Option<Tile>, term: Tile) -> Option<Tile> {
        Some(match sum {
            Some(sum) => sum + term,
            None => term,
        })
    }

    /// The element that coordinate 0 of this instance's tile falls on.
    fn base(&self, window: &Window) -> Option<Tile> {
        let mut sum = None;
        for (d, &stride) in window.strides.iter().enumerate() {
            if stride != 0
                && let Some(start) = &self.start[d]
            {
                sum = self.plus(
                    sum,
                    if stride == 1 {
                        start.clone()
                    } else {
                        start * stride
                    },
                );
            }
        }
        match (sum, window.base) {
            (Some(sum), 0) => Some(sum),
            (Some(sum), base) => Some(sum + base),
            (None, 0) => None,
            (None, base) => Some(self.k.constant(DType::I64, base)),
        }
    }

    fn window(&self, mem: &Mem, window: &Window, support: Dims, moved: Option<Tile>) -> TileWindow {
        let base = match (self.base(window), moved) {
            (Some(base), Some(moved)) => Some(base + moved),
            (base, moved) => base.or(moved),
        };
        let at = match &base {
            Some(base) => mem.at(base),
            None => mem.at(0),
        };
        let shape = self.shape(support);
        if shape.is_empty() {
            return at;
        }
        let mut at = at.shape(&shape).strides(self.tile_dims.iter().map(|&d| {
            if support.contains(d) {
                window.strides[d]
            } else {
                0
            }
        }));
        for (i, &d) in self.tile_dims.iter().enumerate() {
            if support.contains(d)
                && let Some(left) = &self.left[d]
            {
                at = at.valid(i, left);
            }
        }
        at
    }

    /// Writes one value into the program.
    pub fn value(&mut self, node: Node) {
        if self.values[node].is_some() {
            return;
        }
        let NestValue { op, dtype, support } = &self.nest.values[node];
        let k = self.k;
        let tile = match op {
            NestOp::Load(window) => {
                k.load(self.window(&self.mems[window.buffer], window, *support, None))
            }
            NestOp::LoadAt {
                window,
                index,
                stride,
                extent,
            } => self.load_at(window, *index, *stride, *extent, *support),
            NestOp::Given => return,
            NestOp::Const(value) => k.constant(*dtype, *value),
            NestOp::Coordinate { dim, scale, offset } => self.coordinate(*dim, *scale, *offset),
            NestOp::Unary(f, a) => self.get(*a).unary(*f),
            NestOp::Binary(f, a, b) => self.get(*a).binary(*f, self.get(*b)),
            NestOp::Compare(f, a, b) => self.get(*a).compare(*f, self.get(*b)),
            NestOp::Select(c, a, b) => self.get(*c).select(self.get(*a), self.get(*b)),
            NestOp::Cast(a) => self.get(*a).cast(*dtype),
            NestOp::Reduce(f, a) => self.reduce(*f, *a),
        };
        self.values[node] = Some(tile);
    }

    fn reduce(&self, f: ReduceOp, operand: Node) -> Tile {
        let tile = match self.cut {
            Some(cut) => self.chunk_operand(f, operand, cut),
            None => self.whole_operand(operand),
        };
        self.reduce_tile(f, tile)
    }

    /// The operand of a reduction with all of its reduced dims.
    fn whole_operand(&self, operand: Node) -> Tile {
        let full = self.shape(self.nest.values[operand].support.union(self.nest.reduced));
        let tile = self.get(operand);
        if full.is_empty() || tile.shape() == full {
            tile
        } else {
            tile.broadcast_to(&full)
        }
    }

    /// The operand of a reduction whose dim `along` may end inside the tile: what lies beyond does not count.
    pub fn chunk_operand(&self, f: ReduceOp, operand: Node, along: usize) -> Tile {
        let tile = self.whole_operand(operand);
        let full = tile.shape();
        let (Some(left), Some(axis)) = (
            &self.left[along],
            self.tile_dims.iter().position(|&d| d == along),
        ) else {
            return tile;
        };
        if full.is_empty() {
            return tile;
        }
        let mut shape = vec![1; full.len()];
        shape[axis] = full[axis];
        let inside = self
            .k
            .iota(DType::I64, &shape, axis as u8)
            .compare(CompareOp::Lt, left);
        let dtype = self.nest.values[operand].dtype;
        inside
            .broadcast_to(&full)
            .select(&tile, self.k.constant(dtype, identity(f, dtype)))
    }

    /// Combines a tile across its reduced dims.
    pub fn reduce_tile(&self, f: ReduceOp, tile: Tile) -> Tile {
        if tile.shape().is_empty() {
            return tile;
        }
        let axes: Vec<u8> = self
            .tile_dims
            .iter()
            .enumerate()
            .filter(|(_, d)| self.nest.reduced.contains(**d))
            .map(|(i, _)| i as u8)
            .collect();
        tile.reduce(f, &axes)
    }

    /// A tile that leaves the reduction of `operand` unchanged.
    pub fn identity_tile(&self, f: ReduceOp, operand: Node) -> Tile {
        let value = &self.nest.values[operand];
        let shape = self.shape(value.support.union(self.nest.reduced));
        self.k.full(value.dtype, &shape, identity(f, value.dtype))
    }

    /// This frame walks `along` in chunks: outside of a chunk nothing along it exists.
    pub fn chunk_along(&mut self, along: usize) {
        self.start[along] = None;
        self.position[along] = None;
        self.left[along] = None;
    }

    /// The frame of the chunk that starts at `at`, with everything computed so far.
    pub fn at_chunk(&self, k: &'a KernelBuilder, along: usize, at: &Tile) -> Frame<'a> {
        let block = self.tiling.block[along];
        let (mut start, mut left) = (self.start.clone(), self.left.clone());
        start[along] = Some(at.clone());
        left[along] = (self.nest.dims[along] % block != 0)
            .then(|| (at * -1 + self.nest.dims[along]).binary(BinaryOp::Min, block));
        let mut inner = Frame::place(
            k,
            self.mems,
            self.nest,
            self.tiling,
            self.position.clone(),
            start,
            left,
        );
        inner.values = self.values.clone();
        inner
    }

    fn coordinate(&self, dim: usize, scale: i64, offset: i64) -> Tile {
        let k = self.k;
        let start = self.start[dim].as_ref().map(|start| {
            if scale == 1 {
                start.clone()
            } else {
                start * scale
            }
        });
        let base = match start {
            Some(start) if offset != 0 => start + offset,
            Some(start) => start,
            None => k.constant(DType::I64, offset),
        };
        let Some(axis) = self.tile_dims.iter().position(|&d| d == dim) else {
            return base;
        };
        let shape = self.shape(Dims::default().with(dim));
        let steps = k.iota(DType::I64, &shape, axis as u8);
        let steps = if scale == 1 { steps } else { steps * scale };
        steps + base
    }

    /// Reads at computed positions. An index is clamped to its range: memory stays safe whatever the data says.
    fn load_at(
        &self,
        window: &Window,
        index: Node,
        stride: i64,
        extent: i64,
        support: Dims,
    ) -> Tile {
        let mem = &self.mems[window.buffer];
        let index = self
            .get(index)
            .binary(BinaryOp::Min, extent - 1)
            .binary(BinaryOp::Max, 0i64)
            * stride;
        if index.shape().iter().all(|&n| n == 1) {
            let scalar = if index.shape().is_empty() {
                index
            } else {
                index.reshape([0i64; 0])
            };
            let own = support_of(window, self.nest);
            return self.k.load(self.window(mem, window, own, Some(scalar)));
        }
        let mut position = index;
        for &d in &self.tile_dims {
            if window.strides[d] != 0 && self.nest.dims[d] > 1 {
                position = position + self.coordinate_in_tile(d) * window.strides[d];
            }
        }
        if let Some(base) = self.base(window) {
            position = position + base;
        }
        let shape = self.shape(support);
        let mut position = position.broadcast_to(&shape);
        // Coordinates beyond a short last block read element 0 of the window, and nothing uses them.
        for (axis, &d) in self.tile_dims.iter().enumerate() {
            if support.contains(d)
                && let Some(left) = &self.left[d]
            {
                let inside = self
                    .k
                    .iota(DType::I64, &shape, axis as u8)
                    .compare(CompareOp::Lt, left);
                position = inside.select(&position, 0i64);
            }
        }
        self.k.gather(mem, &position, None, 0)
    }

    fn coordinate_in_tile(&self, dim: usize) -> Tile {
        let axis = self.tile_dims.iter().position(|&d| d == dim).unwrap_or(0);
        let shape = self.shape(Dims::default().with(dim));
        self.k.iota(DType::I64, &shape, axis as u8)
    }

    /// Stores a value; along dims that it does not vary over, only the first block does.
    pub fn store(&self, node: Node, window: &Window) {
        self.store_to(node, &self.mems[window.buffer], window, None);
    }

    fn store_partial(&self, node: Node, mem: &Mem, window: &Window, cut: usize) {
        self.store_to(node, mem, window, self.position[cut].clone());
    }

    fn store_to(&self, node: Node, mem: &Mem, window: &Window, moved: Option<Tile>) {
        let support = support_of(window, self.nest);
        let tile = self.get(node);
        let mut first: Option<Tile> = None;
        for d in 0..self.nest.rank() {
            if !support.contains(d)
                && self.cut != Some(d)
                && let Some(position) = &self.position[d]
            {
                let here = position.compare(CompareOp::Eq, 0i64);
                first = Some(match first {
                    Some(first) => first.binary(BinaryOp::And, &here),
                    None => here,
                });
            }
        }
        let target = |frame: &Self| {
            let window = frame.window(mem, window, support, moved.clone());
            if window.access().shape.is_empty() && !tile.shape().is_empty() {
                return (window, tile.reshape([0i64; 0]));
            }
            (window, tile.clone())
        };
        match first {
            Some(first) => self.k.when(&first, |k| {
                let (window, tile) = target(self);
                k.store(window, &tile);
            }),
            None => {
                let (window, tile) = target(self);
                self.k.store(window, &tile);
            }
        }
    }
}

fn support_of(window: &Window, nest: &Nest) -> Dims {
    let mut support = Dims::default();
    for (d, &stride) in window.strides.iter().enumerate() {
        if stride != 0 && nest.dims[d] > 1 {
            support = support.with(d);
        }
    }
    support
}

/// What leaves a reduction unchanged.
fn identity(f: ReduceOp, dtype: DType) -> Scalar {
    match f {
        ReduceOp::Sum => Scalar::I(0).cast(dtype),
        ReduceOp::Prod => Scalar::I(1).cast(dtype),
        ReduceOp::Any => Scalar::B(false),
        ReduceOp::All => Scalar::B(true),
        ReduceOp::Max if dtype.is_float() => Scalar::F(f64::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => Scalar::F(f64::INFINITY),
        ReduceOp::Max => Scalar::I(if dtype.is_signed() {
            i64::MIN >> (64 - dtype.bits())
        } else {
            0
        }),
        ReduceOp::Min => Scalar::I(if dtype.is_signed() {
            i64::MAX >> (64 - dtype.bits())
        } else {
            ((1u128 << dtype.bits()) - 1) as i64
        }),
    }
}
