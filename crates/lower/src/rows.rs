//! A nest and its tiling as a phase of a logical tile program.
//!
//! Dims whose block is smaller than their extent become grid axes; dims with a block above 1 become tile dims. A value that varies over no tile dim is a scalar. Tiles hold extent 1
//! along dims that a value does not vary over, so that broadcasting stays visible to targets.

mod places;

use oxyfuel_base::{DType, Expr, Scalar};
use oxyfuel_kernel::builder::{KernelBuilder, Mem, Tile, Window as TileWindow};
use oxyfuel_kernel::ir::{BinaryOp, CompareOp, Index, Order, ReduceOp};

use crate::nest::{Dims, Nest, NestOp, NestValue, Node, Window};
use crate::size::Params;
use crate::tile::Tiling;

/// Adds the phase that computes `nest`.
pub fn emit(k: &KernelBuilder, params: &Params, nest: &Nest, tiling: &Tiling) {
    let mut blocks = Blocks::new(nest, tiling, Dims::default());
    let mirrored = tiling.mirrored.and_then(|dims| blocks.paired(dims));
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let whole = |k: &KernelBuilder, positions: Vec<Option<Tile>>| {
            let mut frame = Frame::at(k, params, nest, tiling, &blocks, positions);
            for node in 0..nest.values.len() {
                frame.value(node);
            }
            for store in &nest.stores {
                frame.store(store.value, &store.window);
            }
        };
        let positions = blocks.positions(k, params);
        match mirrored {
            Some(pair) => pair.emit(k, positions, whole),
            None => whole(k, positions),
        }
    });
}

/// Square blocks of two dims in pairs, each with the one across the diagonal: what the first reads, the second reads the other way round and finds in the cache.
///
/// ```text
///   instance (row, away), away <= blocks / 2:   block (row, row + away) and block (row + away, row), counted round
/// ```
#[derive(Clone, Copy)]
struct Pair {
    row: usize,
    column: usize,
    blocks: i64,
}

impl Pair {
    /// Both blocks of an instance, each once: `positions` has the row, and how far away the column is.
    fn emit(
        self,
        k: &KernelBuilder,
        positions: Vec<Option<Tile>>,
        whole: impl Fn(&KernelBuilder, Vec<Option<Tile>>),
    ) {
        let zero = || k.constant(DType::I64, 0);
        let row = positions[self.row].clone().unwrap_or_else(zero);
        let away = positions[self.column].clone().unwrap_or_else(zero);
        let column = (&row + &away).binary(BinaryOp::Rem, self.blocks);
        let at = |row: &Tile, column: &Tile| {
            let mut at = positions.clone();
            at[self.row] = Some(row.clone());
            at[self.column] = Some(column.clone());
            at
        };
        let both = |k: &KernelBuilder| {
            whole(k, at(&row, &column));
            let other = away.compare(CompareOp::Ne, 0i64);
            k.when(&other, |k| whole(k, at(&column, &row)));
        };
        if self.blocks % 2 != 0 {
            return both(k);
        }
        // Half of the way round, both of a pair find each other: the first one does the work.
        let first = row.compare(CompareOp::Lt, self.blocks / 2);
        let near = away.compare(CompareOp::Lt, self.blocks / 2);
        k.when(&first.binary(BinaryOp::Or, &near), both);
    }
}

/// Adds the phase that reduces each part of a cut reduction: results of part `p` go to element `kept * parts + p` of a workspace each. Stores that lie along the parts are made here.
///
/// The outermost reduced dim is cut by `tiling`.
pub fn emit_partial(
    k: &KernelBuilder,
    params: &Params,
    nest: &Nest,
    tiling: &Tiling,
    workspaces: &[(Node, Mem)],
) {
    let blocks = Blocks::new(nest, tiling, Dims::default());
    let cut = nest.reduced.iter().next().unwrap_or(0);
    let parts = blocks.count[cut].clone();
    k.phase_ordered(blocks.grid.clone(), Order::Plain, |k| {
        let mut frame = Frame::new(k, params, nest, tiling, &blocks);
        frame.cut = Some(cut);
        for node in 0..nest.values.len() {
            let whole = nest.values[node].support.union(nest.reduced) == nest.values[node].support;
            let sums = matches!(nest.values[node].op, NestOp::Reduce(..));
            if whole || sums || !depends_on_reduction(nest, node) {
                frame.value(node);
            }
        }
        for store in nest.stores.iter().filter(|s| !nest.is_small_store(s)) {
            frame.store(store.value, &store.window);
        }
        for (node, mem) in workspaces {
            frame.store_partial(*node, mem, &parts, cut);
        }
    });
}

/// The window of partial results: row-major over the kept dims, then the parts.
fn partial_window(nest: &Nest, buffer: usize, parts: &Expr) -> Window {
    let mut strides = vec![Expr::ZERO; nest.rank()];
    let mut step = parts.clone();
    for d in (0..nest.rank()).rev() {
        if !nest.reduced.contains(d) {
            strides[d] = step.clone();
            step *= &nest.dims[d];
        }
    }
    Window {
        buffer,
        base: Expr::ZERO,
        strides,
    }
}

/// Whether a value needs the result of a reduction.
pub fn depends_on_reduction(nest: &Nest, node: Node) -> bool {
    let behind = nest.behind([node]).into_iter();
    let mut behind = behind.zip(&nest.values).filter(|(is_behind, _)| *is_behind);
    behind.any(|(_, value)| matches!(value.op, NestOp::Reduce(..)))
}

/// The grid: how many blocks each dim has, and which axis counts them.
pub struct Blocks {
    pub count: Vec<Expr>,
    /// Dims counted by each axis, the slowest first; several share the last axis when there are more than three.
    axes: Vec<Vec<usize>>,
    pub grid: Vec<Expr>,
    walked: Dims,
}

/// The most instances that every machine's launch takes along any axis but the first.
const SHORT_AXIS: i64 = 65_535;

impl Blocks {
    /// Blocks of a tiling; every instance has all of the `walked` dims.
    pub fn new(nest: &Nest, tiling: &Tiling, walked: Dims) -> Self {
        let blocks = |d: usize| match tiling.block[d] {
            _ if walked.contains(d) => Expr::ONE,
            block if block <= 1 => nest.dims[d].clone(),
            block => nest.dims[d].ceildiv(block),
        };
        let count: Vec<Expr> = (0..nest.rank()).map(blocks).collect();
        let most = |extent: &Expr| extent.bounds(&nest.known.ranges).hi;
        let several = |d: &usize| most(&count[*d]) > 1;
        let mut axes: Vec<Vec<usize>> = Vec::new();
        let mut order: Vec<usize> = (0..count.len()).rev().filter(several).collect();
        if let Some(at) = finds_again(nest, tiling, &order) {
            order[..=at].rotate_right(1);
        }
        for d in order {
            if axes.len() < 3 {
                axes.push(vec![d]);
            } else if let Some(axis) = axes.last_mut() {
                axis.insert(0, d);
            }
        }
        let some = some_to_do(nest, &axes);
        if some.is_const(0) || count.contains(&Expr::ZERO) {
            // Nothing to do, and nobody to do it.
            return Self {
                count,
                axes: Vec::new(),
                grid: vec![Expr::ZERO],
                walked,
            };
        }
        let extent =
            |dims: &Vec<usize>| -> Expr { dims.iter().map(|&d| count[d].clone()).product() };
        if axes
            .iter()
            .skip(1)
            .any(|dims| most(&extent(dims)) > SHORT_AXIS)
        {
            axes = vec![(0..count.len()).filter(several).collect()];
        }
        if axes.is_empty() {
            axes.push(Vec::new());
        }
        let mut grid: Vec<Expr> = axes.iter().map(extent).collect();
        grid[0] *= some;
        // A dim of one element or none has no axis, and a block of one no bounds: the grid says whether the element is there.
        let kept = |d: &usize| !walked.contains(*d) && !nest.reduced.contains(*d);
        let unguarded = |d: &usize| tiling.block[*d] <= 1 && !several(d) && nest.least(*d) < 1;
        let single = (0..count.len()).filter(kept).filter(unguarded);
        grid[0] *= single.map(|d| count[d].clone()).product::<Expr>();
        Self {
            count,
            axes,
            grid,
            walked,
        }
    }

    /// Lets instances have two blocks each, across the diagonal of two dims.
    fn paired(&mut self, (row, column): (usize, usize)) -> Option<Pair> {
        let blocks = self.count[row].as_const()?;
        let alone = |d: usize| {
            let axis = self.axes.iter().position(|axis| axis[..] == [d])?;
            (self.grid[axis] == self.count[d]).then_some(axis)
        };
        let (_, axis) = (alone(row)?, alone(column)?);
        self.grid[axis] = Expr::constant(blocks / 2 + 1);
        Some(Pair {
            row,
            column,
            blocks,
        })
    }

    /// The block number of every dim that has several.
    fn positions(&self, k: &KernelBuilder, params: &Params) -> Vec<Option<Tile>> {
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
                    positions[d] = Some(params.sizes.binary(&rest, BinaryOp::Mod, &self.count[d]));
                    rest = params
                        .sizes
                        .binary(&rest, BinaryOp::FloorDiv, &self.count[d]);
                }
            }
        }
        positions
    }
}

/// Bytes of one instance's tiles that are worth finding in the cache again.
const WORTH_FINDING: i64 = 16 * 1024;

/// The place of the dim that had better be counted fastest: along it the next instance reads much again that is in the cache now, while along the dim that would be fastest it reads something else.
fn finds_again(nest: &Nest, tiling: &Tiling, order: &[usize]) -> Option<usize> {
    let &fastest = order.first()?;
    let mut read = 0i64;
    let mut again = vec![0i64; order.len()];
    for value in &nest.values {
        let NestOp::Load(window) = &value.op else {
            continue;
        };
        let along = nest.window_support(window);
        let size = value.dtype.size() as i64;
        let bytes = along
            .iter()
            .fold(size, |n, d| n.saturating_mul(tiling.block[d]));
        read = read.saturating_add(bytes);
        for (at, &d) in order.iter().enumerate() {
            if along.contains(fastest) && !along.contains(d) {
                again[at] = again[at].saturating_add(bytes);
            }
        }
    }
    let (at, &most) = again.iter().enumerate().max_by_key(|&(_, bytes)| bytes)?;
    (at > 0 && most >= WORTH_FINDING && most >= read / 4).then_some(at)
}

/// 1 where an instance may read the tables that the nest looks up, 0 where it must not run.
///
/// A table without elements has nothing to read, not even for lanes that do not count; whoever asks for a row of none is wrong and must stay harmless. Where there is nothing to reduce, no table is read,
/// and the results must be stored.
fn some_to_do(nest: &Nest, axes: &[Vec<usize>]) -> Expr {
    let at_least_one = |size: &Expr| size.min(1).simplify(&nest.known.ranges);
    let tables = nest.values.iter().filter_map(|value| match &value.op {
        NestOp::LoadAt { window, extent, .. } => Some([extent, &nest.buffers[window.buffer].len]),
        _ => None,
    });
    let targets = nest.scatters.iter().map(|scatter| {
        let target = &nest.buffers[scatter.window.buffer];
        [&scatter.extent, &target.len]
    });
    let sizes: Vec<&Expr> = tables.chain(targets).flatten().collect();
    if sizes.is_empty() {
        return Expr::ONE;
    }
    let readable: Expr = sizes.into_iter().map(at_least_one).product();
    let reduced: Expr = nest
        .reduced
        .iter()
        .map(|d| at_least_one(&nest.dims[d]))
        .product();
    let kept: Expr = (0..nest.rank())
        .filter(|d| !nest.reduced.contains(*d) && !axes.iter().flatten().any(|axis| axis == d))
        .map(|d| at_least_one(&nest.dims[d]))
        .product();
    kept * (-reduced + 1).max(readable).simplify(&nest.known.ranges)
}

/// What is left of an extent from a block on, at most the block.
pub fn left(block: &Tile, size: i64, extent: i64) -> Option<Tile> {
    (extent % size != 0).then(|| (block * -size + extent).binary(BinaryOp::Min, size))
}

/// Values of one program instance while they are written.
#[derive(Clone)]
pub struct Frame<'a> {
    k: &'a KernelBuilder,
    params: &'a Params,
    nest: &'a Nest,
    block: Vec<i64>,
    /// Domain dims that are dims of the tile, in order.
    tile_dims: Vec<usize>,
    /// First coordinate of this instance along each dim; `None` where it is 0.
    start: Vec<Option<Tile>>,
    /// Block numbers, for values that only the first block of a dim stores.
    position: Vec<Option<Tile>>,
    /// How many coordinates exist from the start on, where the last block is cut short.
    left: Vec<Option<Tile>>,
    values: Vec<Option<Tile>>,
    /// The reduced dim that may end inside the tile.
    pub cut: Option<usize>,
    /// What is read along all dims is read once: it needs no place in the first cache.
    pub streams: bool,
    /// What is stored goes past the caches.
    pub past: bool,
}

impl<'a> Frame<'a> {
    pub fn new(
        k: &'a KernelBuilder,
        params: &'a Params,
        nest: &'a Nest,
        tiling: &Tiling,
        blocks: &Blocks,
    ) -> Self {
        Self::at(k, params, nest, tiling, blocks, blocks.positions(k, params))
    }

    /// A frame of the block with these numbers.
    fn at(
        k: &'a KernelBuilder,
        params: &'a Params,
        nest: &'a Nest,
        tiling: &Tiling,
        blocks: &Blocks,
        position: Vec<Option<Tile>>,
    ) -> Self {
        let start: Vec<Option<Tile>> = position
            .iter()
            .zip(&tiling.block)
            .map(|(p, &b)| p.as_ref().map(|p| if b == 1 { p.clone() } else { p * b }))
            .collect();
        let left = (0..nest.rank())
            .map(|d| {
                let (block, extent) = (tiling.block[d], &nest.dims[d]);
                let short = block > 1 && !blocks.walked.contains(d) && !nest.divides(block, d);
                match &start[d] {
                    Some(start) if short => Some(
                        params
                            .sizes
                            .minus(extent, start)
                            .binary(BinaryOp::Min, block),
                    ),
                    None if short => Some(params.sizes.tile(extent)),
                    _ => None,
                }
            })
            .collect();
        Self::place(k, params, nest, tiling, position, start, left)
    }

    /// A frame at coordinates that the caller computed.
    pub fn place(
        k: &'a KernelBuilder,
        params: &'a Params,
        nest: &'a Nest,
        tiling: &Tiling,
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
            params,
            nest,
            block: tiling.block.clone(),
            tile_dims,
            start,
            position,
            left,
            values: vec![None; nest.values.len()],
            cut: None,
            streams: false,
            past: false,
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
                    self.block[d]
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
        let sizes = &self.params.sizes;
        let mut sum = None;
        for (d, stride) in window.strides.iter().enumerate() {
            if !stride.is_const(0)
                && let Some(start) = &self.start[d]
            {
                sum = self.plus(sum, sizes.times(start, stride));
            }
        }
        match sum {
            Some(sum) => Some(sizes.plus(&sum, &window.base)),
            None => (!window.base.is_const(0)).then(|| sizes.tile(&window.base)),
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
                self.params.sizes.index(&window.strides[d])
            } else {
                Index::Const(0)
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

    fn mem(&self, window: &Window) -> &'a Mem {
        &self.params.mems[window.buffer]
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
                let read = self.window(self.mem(window), window, *support, None);
                let once = self.streams && *support == Dims::all(self.nest.rank());
                k.load(if once { read.streaming() } else { read })
            }
            NestOp::LoadAt {
                window,
                index,
                stride,
                extent,
            } => self.load_at(window, *index, (stride, extent), *support),
            NestOp::Given => return,
            NestOp::Const(value) => k.constant(*dtype, *value),
            NestOp::Size(size) => self.params.sizes.tile(size),
            NestOp::Coordinate { dim, scale, offset } => self.coordinate(*dim, scale, offset),
            NestOp::Unary(f, a) => self.get(*a).unary(*f),
            NestOp::Binary(f, a, b) => self.get(*a).binary(*f, self.get(*b)),
            NestOp::Compare(f, a, b) => self.get(*a).compare(*f, self.get(*b)),
            NestOp::Select(c, a, b) => self.get(*c).select(self.get(*a), self.get(*b)),
            NestOp::Cast(a) => self.get(*a).cast(*dtype),
            NestOp::Reduce(f, a) => self.reduce(*f, *a),
            // Along one element: what is combined is given otherwise.
            NestOp::Scan(_, a) | NestOp::Recurrence { term: a, .. } => self.get(*a),
            // The order of one element.
            NestOp::Order { .. } => k.constant(DType::I64, 0),
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
    pub fn whole_operand(&self, operand: Node) -> Tile {
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
        let shape = tile.shape();
        let axes: Vec<u8> = self
            .tile_dims
            .iter()
            .enumerate()
            .filter(|(_, d)| self.nest.reduced.contains(**d))
            .map(|(i, _)| i as u8)
            .collect();
        if shape.is_empty() || axes.iter().all(|&axis| shape[usize::from(axis)] == 1) {
            return tile;
        }
        tile.reduce(f, &axes)
    }

    /// A tile that leaves the reduction of `operand` unchanged.
    pub fn identity_tile(&self, f: ReduceOp, operand: Node) -> Tile {
        let value = &self.nest.values[operand];
        let shape = self.shape(value.support.union(self.nest.reduced));
        self.k.full(value.dtype, &shape, identity(f, value.dtype))
    }

    /// What the reduction of `operand` gives where there is nothing to reduce.
    pub fn identity_result(&self, f: ReduceOp, operand: Node) -> Tile {
        let value = &self.nest.values[operand];
        let mut shape = self.shape(value.support.union(self.nest.reduced));
        for (extent, &d) in shape.iter_mut().zip(&self.tile_dims) {
            if self.nest.reduced.contains(d) {
                *extent = 1;
            }
        }
        self.k.full(value.dtype, &shape, identity(f, value.dtype))
    }

    /// What a running combination starts from.
    pub fn before_first(&self, f: ReduceOp, scan: Node) -> Tile {
        let value = &self.nest.values[scan];
        let shape = self.shape(value.support);
        self.k.full(value.dtype, &shape, identity(f, value.dtype))
    }

    /// The frame of the chunk of `block` coordinates that starts at `at`, with everything computed so far.
    pub fn at_chunk(&self, along: usize, at: &Tile, block: i64) -> Frame<'a> {
        let mut inner = self.clone();
        inner.block[along] = block;
        inner.start[along] = Some(at.clone());
        inner.left[along] = (!self.nest.divides(block, along)).then(|| {
            self.params
                .sizes
                .minus(&self.nest.dims[along], at)
                .binary(BinaryOp::Min, block)
        });
        inner
    }

    /// The frame over a nest whose last dim is this one's cut into several, with everything computed so far.
    pub fn over<'b>(&self, nest: &'b Nest, tiling: &Tiling) -> Frame<'b>
    where
        'a: 'b,
    {
        let longer = |all: &[Option<Tile>]| {
            let mut all = all.to_vec();
            all.resize(nest.rank(), None);
            all
        };
        let (position, start) = (longer(&self.position), longer(&self.start));
        let left = longer(&self.left);
        let mut over = Frame::place(self.k, self.params, nest, tiling, position, start, left);
        over.values.clone_from(&self.values);
        over
    }

    /// The frame of a piece: it starts elsewhere along one dim, has another block of one, and where it is cut short so many coordinates of one.
    pub fn piece(
        &self,
        start: (usize, &Tile),
        block: (usize, i64),
        left: Option<(usize, Tile)>,
    ) -> Frame<'a> {
        let mut piece = self.clone();
        piece.start[start.0] = Some(start.1.clone());
        piece.block[block.0] = block.1;
        if let Some((dim, left)) = left {
            piece.left[dim] = Some(left);
        }
        piece
    }

    /// As [`Self::at_chunk`], where nothing is left from `end` on.
    pub fn at_chunk_before(&self, along: usize, at: &Tile, block: i64, end: &Tile) -> Frame<'a> {
        let mut inner = self.at_chunk(along, at, 1);
        inner.block[along] = block;
        inner.left[along] = (block > 1).then(|| (end - at).binary(BinaryOp::Min, block));
        inner
    }

    /// The frame of an instance that has part number `part` of the reduced dim `cut`.
    pub fn of_part(mut self, cut: usize, part: &Tile) -> Frame<'a> {
        self.position[cut] = Some(part.clone());
        self.cut = Some(cut);
        self
    }

    /// The number of this instance's row, of one coordinate along every dim but `along`.
    pub fn row(&self, along: usize) -> Tile {
        let sizes = &self.params.sizes;
        let mut row = None;
        for d in (0..self.nest.rank()).filter(|&d| d != along) {
            let before = row.map(|row| sizes.times(&row, &self.nest.dims[d]));
            row = match (before, self.start[d].clone()) {
                (Some(before), Some(start)) => Some(before + start),
                (before, start) => before.or(start),
            };
        }
        row.unwrap_or_else(|| self.k.constant(DType::I64, 0))
    }

    /// The frame that holds all of the reduced dim `along`, which ends at `extent`.
    pub fn bounded(&self, along: usize, extent: &Tile) -> Frame<'a> {
        let mut whole = self.clone();
        whole.left[along] = Some(extent.clone());
        whole.cut = Some(along);
        whole
    }

    fn coordinate(&self, dim: usize, scale: &Expr, offset: &Expr) -> Tile {
        let (k, sizes) = (self.k, &self.params.sizes);
        let base = match &self.start[dim] {
            Some(start) => sizes.plus(&sizes.times(start, scale), offset),
            None => sizes.tile(offset),
        };
        let Some(axis) = self.tile_dims.iter().position(|&d| d == dim) else {
            return base;
        };
        let shape = self.shape(Dims::default().with(dim));
        let steps = k.iota(DType::I64, &shape, axis as u8);
        sizes.times(&steps, scale) + base
    }

    /// The coordinates of this instance along a dim: from the first to the one behind the last.
    pub fn range(&self, dim: usize) -> (Tile, Tile) {
        let begin = match &self.start[dim] {
            Some(start) => start.clone(),
            None => self.k.constant(DType::I64, 0),
        };
        let end = match &self.left[dim] {
            Some(left) => &begin + left,
            None => &begin + self.block[dim],
        };
        (begin, end)
    }

    /// Which coordinates of a tile exist, where its last block is cut short.
    fn inside(&self, support: Dims) -> Option<Tile> {
        let shape = self.shape(support);
        let mut inside: Option<Tile> = None;
        for (axis, &d) in self.tile_dims.iter().enumerate() {
            if support.contains(d)
                && let Some(left) = &self.left[d]
            {
                let steps = self.k.iota(DType::I64, &shape, axis as u8);
                let here = steps.compare(CompareOp::Lt, left);
                inside = Some(match inside {
                    Some(inside) => inside.binary(BinaryOp::And, &here),
                    None => here,
                });
            }
        }
        inside
    }

    fn coordinate_in_tile(&self, dim: usize) -> Tile {
        let axis = self.tile_dims.iter().position(|&d| d == dim).unwrap_or(0);
        let shape = self.shape(Dims::default().with(dim));
        self.k.iota(DType::I64, &shape, axis as u8)
    }

    /// Stores a value; along dims that it does not vary over, only the first block does.
    pub fn store(&self, node: Node, window: &Window) {
        self.store_to(node, self.mem(window), window, None);
    }

    /// Stores elements at places along a dim, where the mask is true. Along the others this instance has one coordinate.
    pub fn scatter(
        &self,
        window: &Window,
        along: usize,
        (places, value): (&Tile, &Tile),
        mask: &Tile,
    ) {
        let mut row = self.clone();
        row.start[along] = None;
        let sizes = &self.params.sizes;
        let places = sizes.times(places, &window.strides[along]);
        let places = match row.base(window) {
            Some(base) => places + base,
            None => places,
        };
        self.k.scatter(self.mem(window), &places, value, Some(mask));
    }

    /// Stores what the reduction `node` gave for one of `parts` parts of the dim `cut`.
    pub fn store_partial(&self, node: Node, mem: &Mem, parts: &Expr, cut: usize) {
        let window = partial_window(self.nest, usize::MAX, parts);
        self.store_to(node, mem, &window, self.position[cut].clone());
    }

    fn store_to(&self, node: Node, mem: &Mem, window: &Window, moved: Option<Tile>) {
        let support = self.nest.window_support(window);
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
            let mut window = frame.window(mem, window, support, moved.clone());
            if frame.past {
                window = window.streaming();
            }
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

/// What leaves a reduction unchanged.
pub fn identity(f: ReduceOp, dtype: DType) -> Scalar {
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
